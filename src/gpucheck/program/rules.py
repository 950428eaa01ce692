"""The operands of an operation that may lie on different devices, by CUDA's kernels. Pure.

The default is torch's own: all operands on one device. Each exception is a row of `RULES`. Sources:
native_functions.yaml (`device_check`), else the checks in the kernels. For 0-dim CPU tensors, each operation of torch's
CUDA code (2.9) was called with such a tensor at each argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

CPU = "cpu"
# Namespaces of torch and its compiler; operations of others are not judged.
JUDGED = ("aten", "prims")
# CUDA's errors in a process that was forked after CUDA was used: at its start, and at a kernel or copy.
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
FORKED_KERNEL = "CUDA error: initialization error"
# CUDA's error for a GPU that does not exist.
NO_SUCH_GPU = "CUDA error: invalid device ordinal: the program needs {0} GPUs, simulate them with --dry cuda:SIZEx{0}"
HIDDEN_GPU = "CUDA error: invalid device ordinal: no cuda:{}, CUDA_VISIBLE_DEVICES={} leaves {}, numbered from 0"
# The error of a CPU build for `torch.device(0)`, which Python cannot replace.
NO_ACCELERATOR = "Cannot access accelerator device when none is available"
# Torch's error for operands on several devices.
APART = "Expected all tensors to be on the same device"
# Torch's errors above its operations, in Python and C++, with the devices or types.
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
# Parts of these errors that identify them in the error text of a forked process.
ELSEWHERE = (
    *("device type tensor to numpy", "device type for generator but found", " - expected device "),
    *("attempting to assign a gradient with device type", "No backend type associated with device type"),
    *(OTHER_GRID, OTHER_QUANTILE),
)
# gpucheck's error for a lone operand on a device that its operation does not take.
MISPLACED = ", but it is on"
# By operation: the CUDA kernel, and dtypes that this kernel refuses although the CPU's kernel accepts them. Sources:
# the dtypes of torch's tests (2.9, 2.13), and torch's CUDA code for floats of one byte.
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
# Torch's errors for operands of different dtypes, or for a dtype that CUDA does not support.
MIXED_DTYPES = re.compile(
    r"expected scalar type \w+ but found|must have the same dtype|expect(ed|s) .* to have the same dtype"
    r"|Input type \(.*\) and (bias|weight) type \(.*\) should be the same|expects? .*dtype .* but got"
    rf"|{NO_KERNEL}"
    r"|requires the source and destination dtypes match|must have the same scalar type|expected to have the same dtype"
    r"|Found dtype \w+ but expected \w+|Expected self.dtype to be equal to src.dtype"
)
# Operations whose operands must have one dtype on CUDA, except indices; a CPU's norms and meta tensors accept two.
ONE_DTYPE = (
    *("mm", "mv", "bmm", "dot", "addmm", "addbmm", "baddbmm", "convolution", "native_layer_norm"),
    *("native_group_norm", "index_put", "_index_put_impl", "index_add", "index_copy"),
)
OTHER_DTYPE = "{}: operands must have the same dtype, but got {} and {}"

# Autocast's treatment of operations on CUDA (aten/src/ATen/autocast_mode.h, torch 2.6 to 2.13). LOWERED run in the
# dtype of the region, PROMOTED in the widest of their operands'. SUMMED return float32 unless the program asks for
# another dtype; NORMED take no other dtype. BANNED is refused. All others that autocast knows run in float32.
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
# Operations that consist of several above. In inference mode torch decomposes them after autocast.
COMPOSED = (
    *("cross_entropy_loss", "nll_loss_nd", "inner", "linalg_norm", "linalg_matmul", "pairwise_distance"),
    *("_convolution_mode", "ldexp", "cumulative_trapezoid", "sum_to_size", "lstm", "gru", "rnn_tanh", "rnn_relu"),
)
# Torch's error for BANNED, and its first sentence.
UNSAFE = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
UNSAFE_TO_AUTOCAST = f"""{UNSAFE}
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operation is given. `device` is None if unknown; the operation writes to a `written` one."""

    name: str
    device: str | None
    dim: int = 1
    written: bool = False

    @property
    def argument(self) -> str:
        """The argument's name, without the position in a list."""
        return self.name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """The placement rule of an operation beyond the default, by the names of its arguments in torch's schema. "*"
    stands for every argument, or with `by_position` for every entry of a list."""

    operations: tuple[str, ...]
    # Arguments that may also be on the CPU, on any device, on any device if they are 0-dim, and only on the CPU.
    free: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()  # may be 0-dim CPU tensors
    on_host: tuple[int, ...] = ()  # the positions of results that are always on the CPU
    # The argument that determines the device of the results, if that is not the common device.
    follows: str | None = None
    # The entries of several lists at one position must agree; other positions do not matter.
    by_position: bool = False


def _rule(
    names: str, free: str = "", anywhere: str = "", read: str = "", host: str = "", numbers: str = "", **more: Any
) -> PlacementRule:
    operations, *roles = (tuple(text.split()) for text in (names, free, anywhere, read, host, numbers))
    return PlacementRule(operations, roles[0], roles[1], roles[2], roles[3], roles[4], **more)


RULES: tuple[PlacementRule, ...] = (
    # Indices and probabilities, and a 0-dim value, are copied to the device of the other operand.
    _rule("index _unsafe_index", free="indices"),
    _rule("_index_put_impl_ index_put _unsafe_index_put", anywhere="indices index mask", read="values"),
    _rule("bernoulli", free="p", anywhere="out"),
    # These copy between devices.
    _rule(
        "copy copy_sparse_to_sparse slice_scatter select_scatter diagonal_scatter as_strided_scatter",
        anywhere="src dst self",
        follows="self",
    ),
    _rule("_foreach_copy", anywhere="self src"),
    # CUDA has no kernel for these.
    _rule(
        "histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _spdiags",
        host="self bins weight diagonals offsets",
    ),
    # Only the shape is read.
    _rule("is_set_to is_same_size view_as reshape_as expand_as _has_same_storage_numel", anywhere="*"),
    _rule("zeros_like ones_like empty_like rand_like randn_like randint_like resize_as", anywhere="*", follows="self"),
    # Lengths and sizes of sequences are read on the host, and come out there. cuDNN takes targets there too.
    _rule("_pack_padded_sequence", host="lengths", on_host=(1,)),
    _rule("_pack_padded_sequence_backward", host="batch_sizes"),
    _rule("_pad_packed_sequence", host="batch_sizes", on_host=(1,)),
    _rule("lstm gru rnn_tanh rnn_relu _cudnn_rnn _cudnn_rnn_backward mkldnn_rnn_layer miopen_rnn", free="batch_sizes"),
    _rule(
        "_ctc_loss ctc_loss _use_cudnn_ctc_loss _cudnn_ctc_loss _ctc_loss_backward",
        free="input_lengths target_lengths targets",
    ),
    # Positions, ends and factors are read on the host.
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
# torch 2.15 and newer turn `x[index] = 0.5` into these operations if both operands are on one device, as they are here.
SET_ITEM = "x[…] = …"
OF_SET_ITEM = {"aten::index_fill_": "aten::index_put_", "aten::masked_fill_": "aten::index_put_"}
# The operations on single tensors, for those operations on lists whose names differ.
_ELEMENTS = {"maximum": "clamp_min", "minimum": "clamp_max"}


@dataclass(frozen=True, slots=True)
class Placed:
    """The verdict on an operation's operands. Operations of other libraries are not `judged`."""

    device: str | None  # of its results; None if that is unknown
    wrong: tuple[Operand, ...] = ()
    expected: str | None = None  # the right device of the wrong operands
    on_host: tuple[int, ...] = ()  # the positions of results that are always on the CPU
    judged: bool = True


@cache
def rule_of(operation: str) -> PlacementRule | None:
    """Return the rule of an operation such as `aten::index`, or None if the operation is not torch's own."""
    space, _, name = operation.partition("::")
    if space not in JUDGED:
        return None
    own = _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_"))  # an in-place operation has the same rule
    if own is None and name.startswith(("_foreach_", "_amp_foreach_")):  # operations on lists work element by element
        element = name.partition("foreach_")[2].removesuffix("_")
        return replace(_BY_NAME.get(_ELEMENTS.get(element, element), _DEFAULT), by_position=True)
    return own or (_BY_NAME["special"] if name.startswith("special_") else _DEFAULT)


def judge(operation: str, operands: Sequence[Operand]) -> Placed:
    """Return the verdict of `operation` (such as `aten::add`, without its overload) on these operands."""
    rule = rule_of(operation)
    if rule is None:
        return Placed(_common(operands), judged=False)
    return _by_position(rule, operands) if rule.by_position else _judged(rule, operands)


def _judged(rule: PlacementRule, operands: Sequence[Operand]) -> Placed:
    known = [operand for operand in operands if operand.device is not None]
    misplaced = tuple(operand for operand in known if operand.argument in rule.host and operand.device != CPU)
    core = [
        operand
        for operand in known
        if operand.argument not in (*rule.host, *rule.anywhere)
        and "*" not in rule.anywhere
        and not (operand.argument in rule.free and operand.device == CPU)
        and not (operand.argument in rule.read and operand.dim == 0)
    ]
    every = "*" in rule.numbers
    numbers = [
        operand
        for operand in core
        if operand.device == CPU and operand.dim == 0 and not operand.written
        if operand.argument in rule.numbers or (every and not (rule.by_position and operand.name == operand.argument))
    ]
    others = [operand for operand in core if operand not in numbers]
    if not all(operand.argument == "out" for operand in others):  # no kernel of a GPU works on numbers alone
        core = others
    device = _common(core or known)
    if rule.follows is not None:
        device = next((operand.device for operand in operands if operand.argument == rule.follows), device)
    if misplaced:
        return Placed(device, misplaced, CPU, rule.on_host)
    if len({operand.device for operand in core}) < 2:
        return Placed(device, (), None, rule.on_host)
    # The device of most operands that are not on the CPU; in a tie, the first of these devices.
    away = [str(operand.device) for operand in core if operand.device != CPU]
    expected = max(away, key=away.count)
    return Placed(expected, tuple(operand for operand in core if operand.device != expected), expected, rule.on_host)


def _by_position(rule: PlacementRule, operands: Sequence[Operand]) -> Placed:
    """Judge lists position by position, because an optimizer's counters are on the CPU beside parameters on a GPU."""
    alone = [operand for operand in operands if "[" not in operand.name]
    places: dict[str, list[Operand]] = {}
    for operand in operands:
        if "[" in operand.name:
            places.setdefault(operand.name.partition("[")[2], []).append(operand)
    verdicts = [_judged(rule, [*entries, *alone]) for entries in places.values()] or [_judged(rule, alone)]
    wrong = next((verdict for verdict in verdicts if verdict.wrong), None)
    devices = {verdict.device for verdict in verdicts}
    return wrong or Placed(devices.pop() if len(devices) == 1 else None)


def _common(operands: Sequence[Operand]) -> str | None:
    """Return the one device other than the CPU, the CPU if all operands are there, or None for several devices."""
    devices = {operand.device for operand in operands if operand.device is not None}
    others = devices - {CPU}
    if len(others) == 1:
        return others.pop()
    return CPU if devices == {CPU} else None
