"""Judge the devices of an operation's operands as CUDA's kernels do. No I/O.

By default all operands must be on one device, as in torch. Each exception is a row of `RULES`. Sources: `device_check`
in native_functions.yaml, else the checks in the kernels. The rules for 0-dim CPU tensors come from calls of each
operation of torch's CUDA code (2.9) with such a tensor at each argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

CPU = "cpu"
# The namespaces of torch and its compiler. Operations in other namespaces are not judged.
JUDGED = ("aten", "prims")
# CUDA's errors in a process that was forked after its parent had used CUDA: at initialization, and at a kernel or copy.
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
FORKED_KERNEL = "CUDA error: initialization error"
NO_SUCH_GPU = "CUDA error: invalid device ordinal: the program needs {0} GPUs, simulate them with --dry cuda:SIZEx{0}"
HIDDEN_GPU = "CUDA error: invalid device ordinal: no cuda:{}, CUDA_VISIBLE_DEVICES={} leaves {}, numbered from 0"
# The error of a CPU build for `torch.device(0)`, which Python cannot replace.
NO_ACCELERATOR = "Cannot access accelerator device when none is available"
# torch's error for operands on several devices.
APART = "Expected all tensors to be on the same device"
# torch's errors from Python and C++ code above the operations. The placeholders are devices or types.
NO_NUMPY = "can't convert {} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
NO_STATE = "RNG state must be a torch.ByteTensor"
OTHER_GENERATOR = "Expected a '{}' device type for generator but found '{}'"
OTHER_GRAD = (
    "attempting to assign a gradient with device type '{}' to a tensor with device type '{}'. Please ensure that the "
    "gradient and the tensor are on the same device"
)
OTHER_OFFSETS = "values and offsets must be on the same device, but one is on {}"
OTHER_QUANTILE = "quantile() q tensor must be on the same device as the input tensor"
OTHER_GRID = "meshgrid expects all tensors to have the same device"
NO_BACKEND = "No backend type associated with device type {}"
# Phrases that identify these errors in the text of a forked process.
ELSEWHERE = (
    *("device type tensor to numpy", "device type for generator but found", " - expected device "),
    *("attempting to assign a gradient with device type", "No backend type associated with device type"),
    *(OTHER_GRID, OTHER_QUANTILE),
)
# A phrase of gpucheck's error for a single operand on a device that its operation does not accept.
MISPLACED = ", but it is on"
# For each operation: the CUDA kernel, and the dtypes that the CPU's kernel accepts and the CUDA kernel refuses.
# Sources: the dtypes of torch's tests (2.9, 2.13), and torch's CUDA code for floats of one byte.
_INTEGERS = (
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
_HALVES = ("float16", "bfloat16")
NO_KERNELS = {
    **dict.fromkeys(("mm", "addmm", "addbmm"), ("addmm_cuda", _INTEGERS)),
    **dict.fromkeys(("bmm", "baddbmm", "_trilinear"), ("baddbmm_cuda", _INTEGERS)),
    **dict.fromkeys(("mv", "addmv"), ("addmv_impl_cuda", _INTEGERS)),
    **dict.fromkeys(("dot", "vdot"), ("dot", _INTEGERS)),
    **{f"max_pool{n}d_with_indices": (f"max_pool{n}d_with_indices_out_cuda_frame", _INTEGERS) for n in (2, 3)},
    **{f"avg_pool{n}d": (f"avg_pool{n}d_out_cuda_frame", _INTEGERS) for n in (2, 3)},
    "convolution": ("slow_conv2d_cuda", _INTEGERS),
    **{name: (f"{name}_cuda", _HALVES) for name in ("angle", "igamma", "igammac")},
    "histc": ("histc", _HALVES),
    "upsample_bicubic2d": ("upsample_bicubic2d_out_frame", ("uint8",)),
    **dict.fromkeys(
        ("upsample_bilinear2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        ("upsample_bilinear2d_out_frame", ("uint8",)),
    ),
}
NO_KERNEL = f'"({"|".join(sorted({kernel for kernel, _ in NO_KERNELS.values()}))})" not implemented for'
# torch's errors for operands of different dtypes, or for a dtype that CUDA does not support.
MIXED_DTYPES = re.compile(
    r"expected scalar type \w+ but found|must have the same dtype|expect(ed|s) .* to have the same dtype"
    r"|Input type \(.*\) and (bias|weight) type \(.*\) should be the same|expects? .*dtype .* but got"
    rf"|{NO_KERNEL}"
    r"|requires the source and destination dtypes match|must have the same scalar type|expected to have the same dtype"
    r"|Found dtype \w+ but expected \w+|Expected self.dtype to be equal to src.dtype"
)
# Operations whose operands, except indices, must have one dtype on CUDA. Meta tensors and the CPU's norms accept two.
ONE_DTYPE = (
    *("mm", "mv", "bmm", "dot", "addmm", "addbmm", "baddbmm", "convolution", "native_layer_norm"),
    *("native_group_norm", "index_put", "_index_put_impl", "index_add", "index_copy"),
)
OTHER_DTYPE = "{}: operands must have the same dtype, but got {} and {}"

# Autocast's treatment of operations on CUDA (aten/src/ATen/autocast_mode.h, torch 2.6 to 2.13). LOWERED operations run
# in the dtype of the region, PROMOTED ones in the widest dtype of their operands. SUMMED ones return float32 unless the
# program requests another dtype, and NORMED always does. Autocast refuses BANNED, and runs all others in float32.
LOWERED = (
    *("_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d"),
    *("conv_transpose3d", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "prelu", "addmm"),
    *("addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm"),
    *("chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell"),
    *("rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
)
PROMOTED = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
)
SUMMED = ("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum")
NORMED, BANNED = "norm", "binary_cross_entropy"
# Operations that consist of several operations above. In inference mode torch decomposes them after autocast.
COMPOSED = (
    *("cross_entropy_loss", "nll_loss_nd", "inner", "linalg_norm", "linalg_matmul", "pairwise_distance"),
    *("_convolution_mode", "ldexp", "cumulative_trapezoid", "sum_to_size", "lstm", "gru", "rnn_tanh", "rnn_relu"),
)
UNSAFE = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
UNSAFE_TO_AUTOCAST = f"""{UNSAFE}
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand of an operation. An entry of a list has a name such as `tensors[2]`."""

    name: str
    device: str | None  # None if unknown
    dim: int = 1
    written: bool = False  # the operation writes to the tensor

    @property
    def argument(self) -> str:
        return self.name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """An exception from the default, by argument names of torch's schema. "*" is every argument or list entry."""

    operations: tuple[str, ...]
    free: tuple[str, ...] = ()  # arguments that may also be on the CPU
    anywhere: tuple[str, ...] = ()  # on any device
    read: tuple[str, ...] = ()  # on any device if they are 0-dim
    host: tuple[str, ...] = ()  # only on the CPU
    numbers: tuple[str, ...] = ()  # may be 0-dim CPU tensors
    on_host: tuple[int, ...] = ()  # the positions of results that are always on the CPU
    follows: str | None = None  # the argument with the device of the results, if that is not the common device
    by_position: bool = False  # only the entries of several lists at the same position must be on one device


def _rule(
    names: str, follows: str | None = None, on_host: tuple[int, ...] = (), by_position: bool = False, **roles: str
) -> PlacementRule:
    fields: dict[str, Any] = {role: tuple(text.split()) for role, text in roles.items()}
    return PlacementRule(tuple(names.split()), follows=follows, on_host=on_host, by_position=by_position, **fields)


RULES: tuple[PlacementRule, ...] = (
    # torch copies indices, probabilities and a 0-dim value to the device of the other operand.
    _rule("index _unsafe_index", free="indices"),
    _rule("_index_put_impl_ index_put _unsafe_index_put", anywhere="indices index mask", read="values"),
    _rule("bernoulli", free="p", anywhere="out"),
    # These operations copy between devices.
    _rule(
        "copy copy_sparse_to_sparse slice_scatter select_scatter diagonal_scatter as_strided_scatter",
        anywhere="src dst self",
        follows="self",
    ),
    _rule("_foreach_copy", anywhere="self src"),
    # CUDA has no kernel for these operations.
    _rule(
        "histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _spdiags",
        host="self bins weight diagonals offsets",
    ),
    # These operations read only the shape.
    _rule("is_set_to is_same_size view_as reshape_as expand_as _has_same_storage_numel", anywhere="*"),
    _rule("zeros_like ones_like empty_like rand_like randn_like randint_like resize_as", anywhere="*", follows="self"),
    # The host reads and returns the lengths and sizes of sequences. cuDNN accepts targets on the host too.
    _rule("_pack_padded_sequence", host="lengths", on_host=(1,)),
    _rule("_pack_padded_sequence_backward", host="batch_sizes"),
    _rule("_pad_packed_sequence", host="batch_sizes", on_host=(1,)),
    _rule("lstm gru rnn_tanh rnn_relu _cudnn_rnn _cudnn_rnn_backward mkldnn_rnn_layer miopen_rnn", free="batch_sizes"),
    _rule(
        "_ctc_loss ctc_loss _use_cudnn_ctc_loss _cudnn_ctc_loss _ctc_loss_backward",
        free="input_lengths target_lengths targets",
    ),
    # The host reads positions, ends and factors.
    _rule("tensor_split", host="tensor_indices_or_sections"),
    _rule("linspace logspace", anywhere="start end"),
    _rule("_foreach_addcdiv", host="scalars", by_position=True),
    _rule("_foreach_addcmul", host="scalars", numbers="tensor2", by_position=True),
    # A 0-dim CPU tensor counts as a number.
    _rule("_foreach_mul _foreach_div", numbers="* other", by_position=True),
    _rule("_fused_adam _fused_adamw _fused_sgd _fused_adagrad", free="lr", by_position=True),
    _rule("fill full_like index_fill", anywhere="value", follows="self"),
    _rule("masked_fill", free="value"),
    _rule("soft_margin_loss soft_margin_loss_backward", numbers="target"),
    _rule(
        "add sub rsub mul div floor_divide remainder fmod pow float_power ldexp eq ne lt le gt ge maximum minimum fmax "
        "fmin where allclose dist bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ "
        "__rshift__ __ilshift__ __irshift__ atan2 copysign heaviside xlogy special",
        numbers="*",
    ),
    _rule(
        "addcmul lerp logical_and logical_or logical_xor binary_cross_entropy_with_logits",
        numbers="tensor2 weight weights other pos_weight",
    ),
)
_BY_NAME = {name: rule for rule in RULES for name in rule.operations}
_DEFAULT = PlacementRule(())
# torch 2.15 and newer turn `x[index] = 0.5` into these operations if C++ sees both operands on one device.
SET_ITEM = "x[…] = …"
OF_SET_ITEM = {"aten::index_fill_": "aten::index_put_", "aten::masked_fill_": "aten::index_put_"}
# The names on single tensors of two operations on lists.
_ELEMENTS = {"maximum": "clamp_min", "minimum": "clamp_max"}


@dataclass(frozen=True, slots=True)
class Placed:
    """The verdict on an operation's operands."""

    device: str | None  # the device of the results; None if unknown
    wrong: tuple[Operand, ...] = ()
    expected: str | None = None  # the right device of the wrong operands
    on_host: tuple[int, ...] = ()  # the positions of results that are always on the CPU
    judged: bool = True  # False for operations of other libraries


@cache
def rule_of(operation: str) -> PlacementRule | None:
    """Return the rule of an operation such as `aten::index`, or None if the operation is not torch's own."""
    namespace, _, name = operation.partition("::")
    if namespace not in JUDGED:
        return None
    rule = _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_"))  # an in-place operation has the same rule
    if rule is None and name.startswith(("_foreach_", "_amp_foreach_")):  # operations on lists work element by element
        element = name.partition("foreach_")[2].removesuffix("_")
        return replace(_BY_NAME.get(_ELEMENTS.get(element, element), _DEFAULT), by_position=True)
    return rule or (_BY_NAME["special"] if name.startswith("special_") else _DEFAULT)


def judge(operation: str, operands: Sequence[Operand]) -> Placed:
    """Return the verdict of `operation` (such as `aten::add`, without its overload) on these operands."""
    if (rule := rule_of(operation)) is None:
        return Placed(_common(operands), judged=False)
    return _by_position(rule, operands) if rule.by_position else _judged(rule, operands)


def _judged(rule: PlacementRule, operands: Sequence[Operand]) -> Placed:
    known = [operand for operand in operands if operand.device is not None]
    misplaced = tuple(operand for operand in known if operand.argument in rule.host and operand.device != CPU)
    bound = [
        operand
        for operand in known
        if operand.argument not in (*rule.host, *rule.anywhere)
        and "*" not in rule.anywhere
        and not (operand.argument in rule.free and operand.device == CPU)
        and not (operand.argument in rule.read and operand.dim == 0)
    ]
    are_all = "*" in rule.numbers
    numbers = [
        operand
        for operand in bound
        if operand.device == CPU and operand.dim == 0 and not operand.written
        if operand.argument in rule.numbers or (are_all and not (rule.by_position and operand.name == operand.argument))
    ]
    others = [operand for operand in bound if operand not in numbers]
    if not all(operand.argument == "out" for operand in others):  # no CUDA kernel works on numbers alone
        bound = others
    device = _common(bound or known)
    if rule.follows is not None:
        device = next((operand.device for operand in operands if operand.argument == rule.follows), device)
    if misplaced:
        return Placed(device, misplaced, CPU, rule.on_host)
    if len({operand.device for operand in bound}) < 2:
        return Placed(device, (), None, rule.on_host)
    accelerators = [str(operand.device) for operand in bound if operand.device != CPU]
    expected = max(accelerators, key=accelerators.count)  # the most frequent device; in a tie, the first
    return Placed(expected, tuple(operand for operand in bound if operand.device != expected), expected, rule.on_host)


def _by_position(rule: PlacementRule, operands: Sequence[Operand]) -> Placed:
    """Judge lists position by position: an optimizer's lists have entries on the CPU and entries on a GPU."""
    single = [operand for operand in operands if "[" not in operand.name]
    positions: dict[str, list[Operand]] = {}
    for operand in operands:
        if "[" in operand.name:
            positions.setdefault(operand.name.partition("[")[2], []).append(operand)
    verdicts = [_judged(rule, [*entries, *single]) for entries in positions.values()] or [_judged(rule, single)]
    wrong = next((verdict for verdict in verdicts if verdict.wrong), None)
    devices = {verdict.device for verdict in verdicts}
    return wrong or Placed(devices.pop() if len(devices) == 1 else None)


def _common(operands: Sequence[Operand]) -> str | None:
    """Return the only device other than the CPU; the CPU if there is no other device; None if there are several."""
    devices = {operand.device for operand in operands if operand.device is not None}
    others = devices - {CPU}
    if len(others) == 1:
        return others.pop()
    return CPU if devices == {CPU} else None
