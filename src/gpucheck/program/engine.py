"""The engine of claimed devices: plain CPU tensors with true values that say that they are on a GPU.

Two modes of torch work together. The function mode (`surface`) sees what the program asks of torch: moves, factories,
`.device`. The dispatch mode here sees every operation below that, in the backward pass too: it judges where the
operands lie and notes where the results do, and what CUDA's kernels would keep of them. What neither can know stays
unknown and is never a finding.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from gpucheck.program import rules
from gpucheck.program.options import Device
from gpucheck.program.simulated_devices import (
    COUNTED,
    CPU,
    Claims,
    Origin,
    Place,
    cause,
    here,
    is_set,
    place_of,
    storage_of,
    text_of,
    user_frame,
)
from gpucheck.report.results.model import DeviceMismatchEntry, MismatchedTensor, Phase
from gpucheck.report.results.run import AssumedValue
from gpucheck.work.storages import Moment

# -- what CUDA's kernels keep ------------------------------------------------------------------------------------------

# For the backward pass, where a CPU's keep something else. A fused attention keeps no scores, but the logsumexp of each
# row and, for dropout, a seed. A dropout keeps a mask of one byte an element. An RNN of cuDNN keeps its output and a
# reserve.

# kAlignLSE of torch's memory-efficient attention: rows of the logsumexp, in float32.
_LSE_ROWS = 32
_HALF = (torch.float16, torch.bfloat16)
# Gates and cell of each step, layer and direction that cuDNN's reserve holds, beside the input of each layer but the
# first, and a bit for each element of that where dropout is. NVIDIA does not publish it. An H200 measured 33 networks
# (torch 2.11, cuDNN 9.19): 30 kept this within 0.4 %, the others up to 1.2 MB more. So did an LSTM (736 000 000 bytes)
# and a GRU (864 000 000) in 2017 (pytorch issue 2895).
_HELD = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}

Made = tuple[Tensor, ...]


class _Kernel(torch.autograd.Function):  # type: ignore[misc]
    """A call whose inner tensors are not kept: its backward pass makes them again, and counts only the gradients.

    `kept` are the bytes beside inputs and outputs that the backward pass needs, `lent` those that it takes itself.
    """

    @staticmethod
    def forward(
        ctx: Any,
        world: World,
        compute: Callable[..., Made],
        shapes: Callable[..., Made],
        kept: Sequence[int],
        lent: int,
        device: torch.device,
        *given: Tensor,
    ) -> Any:
        ctx.world, ctx.compute, ctx.lent, ctx.device, ctx.count = world, compute, lent, device, len(given)
        ctx.seed = torch.get_rng_state()
        with world.uncounted(), _without("AutocastCUDA"):  # what is given was cast
            out = compute(*given) if world.has_values else shapes(*given)
            books = [torch.empty(size, dtype=torch.uint8, device=world.home(device)) for size in kept]
        for tensor in (*out, *books):
            world.claims.put(tensor, device)
        ctx.save_for_backward(*given, *out, *books)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        world: World = ctx.world
        given = ctx.saved_tensors[: ctx.count]
        needed = ctx.needs_input_grad[-ctx.count :]
        with world.uncounted(), _without("AutocastCUDA"):
            if world.has_values:
                made = _again(ctx.compute, given, needed, gradients, ctx.seed)
            else:
                made = [torch.empty_like(one) if needs else None for one, needs in zip(given, needed, strict=True)]
        for one in made:
            if one is not None:
                world.claims.put(one, ctx.device)
        world.lend(ctx.device, ctx.lent)
        return (None,) * (len(ctx.needs_input_grad) - ctx.count) + tuple(made)


def _again(
    compute: Callable[..., Made],
    given: Sequence[Tensor],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
    seed: Tensor,
) -> list[Tensor | None]:
    """The gradients of a call's inputs, from the same random numbers."""
    now = torch.get_rng_state()
    torch.set_rng_state(seed)
    try:
        with torch.enable_grad():
            inputs = [one.detach().requires_grad_(needs) for one, needs in zip(given, needed, strict=True)]
            pairs = [(out, one) for out, one in zip(compute(*inputs), gradients, strict=True) if one is not None]
            wanted = [one for one in inputs if one.requires_grad]
            found = iter(torch.autograd.grad([a for a, _ in pairs], wanted, [b for _, b in pairs], allow_unused=True))
    finally:
        torch.set_rng_state(now)
    return [next(found) if one.requires_grad else None for one in inputs]


def patches(world: World) -> list[tuple[Any, str, Any]]:
    """Return what takes the place of torch's functions. TorchScript knows each by the operator that it stands for."""
    functional, made = torch.nn.functional, []
    attention = functools.partial(_attention, world, functional.scaled_dot_product_attention)
    made.append((functional, "scaled_dot_product_attention", _named(attention, "scaled_dot_product_attention")))
    dropout = _named(functools.partial(_dropout, world, torch._VF.dropout), "dropout")
    made += [(torch, "dropout", dropout), (torch._VF, "dropout", dropout)]
    for name in _HELD:
        recurrent = _named(functools.partial(_recurrent, world, name, getattr(torch._VF, name)), name)
        made += [(torch, name, recurrent), (torch._VF, name, recurrent)]
    return made


def _named(function: Any, name: str) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    called.__name__ = called.__qualname__ = name
    torch.jit._builtins._register_builtin(called, f"aten::{name}")
    return called


def _device(world: World, tensors: Sequence[Any]) -> torch.device | None:
    """The one claimed device of plain tensors; None where there is none, or where an error is torch's to raise."""
    for one in tensors:
        if type(one) not in (Tensor, torch.nn.Parameter) or torch._C._functorch.is_functorch_wrapped_tensor(one):
            return None
    devices = {world.claims.device(one) for one in tensors}
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


# -- autocast ----------------------------------------------------------------------------------------------------------

# Whether it is on, and in which dtype, stays torch's affair. But torch's kernels cast what C++ takes for a tensor on
# CUDA, which a claimed one is not: others take their place.

# From this version on the cast of a weight that is kept has a gradient even where it was made under no_grad.
_KEEPS_GRADIENTS = torch.__version__ >= "2.11"


def autocast_here() -> Any:
    """Send the operations of this thread by the kernels of autocast, while this lasts and it is on."""
    return torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCUDA)


def _without(key: str) -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


@contextlib.contextmanager
def autocasting(world: World) -> Iterator[None]:
    """While this lasts, autocast for "cuda" casts what claims to lie there."""
    library = torch.library.Library("aten", "IMPL")
    parts = torch._C.DispatchKey.CompositeImplicitAutograd
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    known, composed = set(registered("AutocastCUDA")), set(registered(parts.name))
    packets = [one.removeprefix("aten::").partition(".")[0] for one in known if one.startswith("aten::")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its kernels are replaced
        for packet in {*packets, *rules.COMPOSED}:
            for overload in getattr(torch.ops.aten, packet).overloads():
                func = getattr(getattr(torch.ops.aten, packet), overload)
                if func.name() in known:
                    library.impl(func, functools.partial(_autocast, world, func, packet), "AutocastCUDA")
                elif func.name() in composed:
                    library.impl(func, functools.partial(func._op_dk, parts), "AutocastCUDA")
    try:
        with autocast_here():
            yield
    finally:
        library._destroy()


def call(world: World, func: Any, args: Any, kwargs: Any) -> Any:
    """Call it. In a region of autocast torchvision's own kernels run in float32 and return the dtype of the first."""
    name, registered = getattr(func, "_qualified_op_name", ""), torch._C._dispatch_get_registrations_for_dispatch_key
    is_cast = name.startswith("torchvision::") and torch.is_autocast_enabled("cuda")
    if not is_cast or name not in registered("AutocastCUDA"):
        return func(*args, **kwargs)
    out = func(*cast(world, args, torch.float32), **cast(world, kwargs, torch.float32))
    return cast(world, out, next(tensors_in([args, kwargs])).dtype)


def _autocast(world: World, func: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operation that autocast knows, in a region of it. Raises RuntimeError as torch does."""
    with _without("AutocastCUDA"):
        with torch._C.DisableTorchFunction():
            low = torch.get_autocast_dtype("cuda")
            if name in rules.SUMMED or name == rules.NORMED:
                arguments = [one.name for one in func._schema.arguments]
                is_asked = "dtype" in kwargs or "dtype" in arguments[: len(args)]
                if not is_asked and _is_cast(world, args[0]):
                    kwargs = {**kwargs, "dtype": torch.float32}
                    if name == rules.NORMED:
                        args += tuple(one.default_value for one in func._schema.arguments[len(args) :])
                        func = func.overloadpacket
            elif name == rules.BANNED:
                if any(_is_on_cuda(world, one) for one in tensors_in([args, kwargs])):
                    raise RuntimeError(rules.UNSAFE_TO_AUTOCAST)
            else:
                dtype = low if name in rules.LOWERED else torch.float32
                if name in rules.PROMOTED:
                    dtype = _widest(low, [one for one in tensors_in([args, kwargs]) if _is_cast(world, one)])
                args, kwargs = cast(world, args, dtype), cast(world, kwargs, dtype)
        return func(*args, **kwargs)


def _is_on_cuda(world: World, value: Any) -> bool:
    device = world.claims.device(value) if isinstance(value, Tensor) else None
    return device is not None and device.type == "cuda"


def _is_cast(world: World, value: Any) -> bool:
    return _is_on_cuda(world, value) and value.is_floating_point() and value.dtype != torch.float64


def _widest(low: torch.dtype, operands: Sequence[Tensor]) -> torch.dtype:
    dtype = low
    for one in operands:
        if torch.float32 in (dtype, one.dtype):
            dtype = torch.float32
        elif one.dtype != low:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return dtype


def cast(world: World, value: Any, dtype: torch.dtype) -> Any:
    """Arguments with the floats on CUDA in another dtype. In the region's own a weight is cast once in a region."""
    if isinstance(value, (list, tuple)):
        return type(value)(cast(world, one, dtype) for one in value)
    if isinstance(value, dict):
        return {key: cast(world, one, dtype) for key, one in value.items()}
    if not _is_cast(world, value) or value.dtype == dtype:
        return value
    is_kept = torch.is_autocast_cache_enabled() and not (_KEEPS_GRADIENTS and torch.is_inference_mode_enabled())
    is_weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if not is_kept or not is_weight or dtype != torch.get_autocast_dtype("cuda"):
        return value.to(dtype)
    kept = world.casts.get(value)  # a thread whose region ends clears them all
    if kept is None:
        with torch.set_grad_enabled(_KEEPS_GRADIENTS or torch.is_grad_enabled()):
            kept = world.casts[value] = value.to(dtype)
    return kept


# -- dropout -----------------------------------------------------------------------------------------------------------


def _dropout(world: World, original: Any, input: Any, p: float, train: bool) -> Any:
    if train and 0 < p < 1 and _device(world, [input]) is not None:
        return torch.native_dropout(input, p, train)[0]
    return original(input, p, train)


# -- attention ---------------------------------------------------------------------------------------------------------


# Which kernels there are is told to all threads: one that takes the others away for a call would take them for good.
_CHOOSING = threading.RLock()


def _attention(
    world: World,
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`F.scaled_dot_product_attention` as CUDA runs it: a CPU fuses other cases, and none without values."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    given = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    device = _device(world, given)
    if device is None or query.is_nested:
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if torch.is_autocast_enabled("cuda"):
        given = cast(world, given, torch.get_autocast_dtype("cuda"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # all of them add it to each score
        zero = torch.zeros((), dtype=given[0].dtype, device=device)
        given[3] = torch.where(given[3], zero, float("-inf"))
    added = given[3] if attn_mask is not None else None
    with _CHOOSING:
        if not _is_fused(given[0], given[1], given[2], attn_mask, enable_gqa):
            with sdpa_kernel(SDPBackend.MATH) if torch.backends.cuda.math_sdp_enabled() else contextlib.nullcontext():
                if not dropout_p or len({one.dtype for one in given[:3]}) > 1 or query.shape[-3:-2] != key.shape[-3:-2]:
                    return original(query, key, value, added, dropout_p, is_causal, **options)
                # CUDA's dropout keeps bytes inside of it too.
                scores = torch._scaled_dot_product_attention_math(*given[:3], added, 0.0, is_causal, **options)
                return torch.native_dropout(scores[1], dropout_p, True)[0] @ given[2]
    batch, heads, rows = query.shape[:3]
    if added is not None:  # the kernels make a gradient of each score
        given[3] = added.expand(batch, heads, rows, key.shape[2])

    # The heads of a row lie beside each other in the result, so that joining them makes no copy.
    def compute(*tensors: Tensor) -> Made:
        mask = tensors[3] if len(tensors) > 3 else None
        out = original(*tensors[:3], mask, dropout_p, is_causal, **options)
        return (out.transpose(1, 2).contiguous().transpose(1, 2),)

    def shapes(*tensors: Tensor) -> Made:
        return (query.new_empty(batch, rows, heads, tensors[2].shape[-1], dtype=tensors[0].dtype).transpose(1, 2),)

    logsumexp = batch * heads * -(-rows // _LSE_ROWS) * _LSE_ROWS * 4
    kept = [logsumexp] + [8, 8] * bool(dropout_p)
    # The backward pass of each kernel sums the query's gradient in float32, and the output's products with its own.
    lent = query.numel() * 4 + logsumexp
    with world.calling("F.scaled_dot_product_attention", device):
        return _Kernel.apply(world, compute, shapes, kept, lent, device, *given)[0]


def _is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Any, grouped: bool) -> bool:
    """Return whether one of CUDA's fused kernels takes it: flash attention, or the memory-efficient one."""
    tensors = (query, key, value)
    if any(one.dim() != 4 or one.stride(-1) != 1 or one.dtype != query.dtype for one in tensors):
        return False
    if mask is not None and mask.stride(-1) != 1:  # such as T5's position bias
        return False
    depths = {one.shape[-1] for one in tensors}
    half, backend = query.dtype in _HALF, torch.backends.cuda
    if half and mask is None and len(depths) == 1 and max(depths) <= 256 and backend.flash_sdp_enabled():
        return True
    # It loads 16 bytes at once.
    whole = all(one * query.element_size() % 16 == 0 for one in depths)
    return whole and not grouped and (half or query.dtype == torch.float32) and backend.mem_efficient_sdp_enabled()


# -- recurrent networks ------------------------------------------------------------------------------------------------


def _recurrent(world: World, name: str, original: Any, *args: Any) -> Any:
    """`lstm`, `gru`, `rnn_tanh` or `rnn_relu` as cuDNN runs them, of a padded batch or a packed one."""
    is_packed = isinstance(args[3], (list, tuple))
    at = 2 if is_packed else 1
    states = list(args[at]) if isinstance(args[at], (list, tuple)) else [args[at]]
    weights, rest = list(args[at + 1]), args[at + 2 :]
    layers, dropout, train, both_ways = rest[1:5]
    device = _device(world, [args[0], *states, *weights])
    if device is None or any(one.dtype == torch.float64 for one in weights):
        return original(*args)
    if torch.is_autocast_enabled("cuda"):
        # cuDNN's run in float16, whatever the region's dtype, and keep no cast of a weight: AutocastRNN.cpp
        low = torch.float16 if torch.backends.cudnn.enabled else torch.get_autocast_dtype("cuda")
        state, weights = cast(world, args[at], low), [one.to(low) for one in weights]
        args = (cast(world, args[0], low), *args[1:at], state, weights, *rest)
        states = list(state) if isinstance(state, (list, tuple)) else [state]
    if not torch.backends.cudnn.enabled:
        return original(*args)
    directions = 2 if both_ways else 1
    hidden, tokens = weights[1].shape[0] // _GATES[name], args[0].numel() // args[0].shape[-1]
    inner = directions * tokens * hidden
    reserve = inner * (_HELD[name] * layers + layers - 1) * args[0].element_size()
    reserve += inner * (layers - 1) // 8 if dropout else 0
    kept = [reserve] if train else []
    if train and args[0].dtype not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
        # torch lays the weights of other types in one piece for each call, not once for all.
        kept.append(sum(one.nbytes for one in weights))

    def parts(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        inner = list(tensors[1 : 1 + len(states)])
        state = inner if isinstance(args[at], (list, tuple)) else inner[0]
        sizes = (args[1],) if is_packed else ()
        return (tensors[0], *sizes, state, list(tensors[1 + len(states) :]), *rest)

    def compute(*tensors: Tensor) -> Made:
        return tuple(original(*parts(tensors)))

    def shapes(*tensors: Tensor) -> Made:
        width = states[0].shape[-1] * directions
        return (args[0].new_empty(*args[0].shape[:-1], width), *(torch.empty_like(one) for one in states))

    with world.calling(f"torch.{name}", device):
        return _Kernel.apply(world, compute, shapes, kept, 0, device, args[0], *states, *weights)


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


# -- what CUDA's kernels take for themselves ---------------------------------------------------------------------------

# Tensors as large as the first operand that a kernel makes beside its result.
_WHOLE = {
    "aten::_softmax_backward_data": 1,  # the gradient times the result
    "aten::logsumexp": 1,
    # The loss of each element, where the result is their sum or mean.
    **dict.fromkeys(("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"), 1),
    "aten::binary_cross_entropy_with_logits": 2,
}
# Operations that reduce, with the place of the dimensions among their arguments.
_REDUCE = {"aten::sum": 1, "aten::mean": 1, "aten::amax": 1, "aten::amin": 1, "aten::linalg_vector_norm": 2}
# Of a row of indices that are sorted, with their places: keys and values twice, and CUB's own.
_SORTED = 56
# Threads that a multiprocessor runs at once, by capability (CUDA's programming guide); 2048 for others.
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}


def _lent(name: str, args: Sequence[Any], out: Any, card: Device) -> int:
    """Return the bytes that torch's own kernel for CUDA takes and gives back before it ends, beside its results.

    As torch 2.9 and 2.11 were seen to do. What cuDNN and cuBLAS take is not among them.
    """
    if name in _WHOLE:
        is_whole = isinstance(out, Tensor) and out.numel() == args[0].numel() and "loss" in name
        return 0 if is_whole else _WHOLE[name] * int(args[0].nbytes)
    if name in _REDUCE and isinstance(out, Tensor) and len(args) > _REDUCE[name] and args[_REDUCE[name]]:
        return _lent_to_reduce(args[0], args[_REDUCE[name]], out, card)
    if name == "aten::embedding_dense_backward" and args[1].numel() > 3072:  # fewer are added one by one
        return _lent_to_embed(args[1].numel(), out)
    if name == "aten::_embedding_bag_backward":
        return _lent_to_embed(args[1].numel(), out)
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_") and len(args) > 3 and args[3]:
        return _SORTED * max((one.numel() for one in args[1] if one is not None), default=0)
    return 0


def _lent_to_embed(indices: int, out: Tensor) -> int:
    """Sums of each run of ten equal indices, in float32."""
    runs = indices // 10 + min(indices, out.shape[0])
    sums: int = runs * out.shape[1] * max(4, out.element_size())
    return sums + _SORTED * indices


def _lent_to_reduce(given: Tensor, dims: Sequence[int], out: Tensor, card: Device) -> int:
    """Partial results of blocks that share the rows of a matrix, as of a bias's gradient: setReduceConfig of torch's
    Reduce.cuh. Where the innermost dimension is reduced they are few."""
    if given.is_nested or given.layout != torch.strided or not given.numel():
        return 0
    wide = [dim for dim in range(given.dim()) if given.shape[dim] > 1]
    outputs = out.numel()
    if not wide or (inner := min(wide, key=given.stride)) in {dim % given.dim() for dim in dims}:
        return 0
    rows = given.numel() // outputs
    vector = next(one for one in (4, 2, 1) if given.shape[inner] % one == 0) if given.stride(inner) == 1 else 1
    threads = 512 // vector
    across, down = (min(threads, 1 << (size.bit_length() - 1)) for size in (outputs // vector, rows))
    width = min(across, 32)
    height = min(down, threads // width)
    width = min(across, threads // height)
    if rows < min(height * 16, 256):
        return 0
    each, grid = -(-rows // height), -(-(outputs // vector) // width)
    blocks = card.multiprocessors * (_THREADS.get(card.capability, 2048) // (width * height))
    if each < 256 or grid > blocks:
        return 0
    shares = max(min(-(-blocks // grid), -(-each // 16)), -(-each // 256))
    return max(4, out.element_size()) * outputs * shares * width * vector if shares > 1 else 0


# -- where operands lie ------------------------------------------------------------------------------------------------

Site = tuple[Place | None, str, int | None]


@dataclass(slots=True)
class Mismatch:
    """Operands that do not lie where an operation needs them: what results tell of them, and where it was.

    `site` makes it the same mismatch when the program runs again: the line, the operation, and where its code stands in
    Python's, which tells operations of one line apart. `assumed` is how many values had been assumed before it, `times`
    how often it was raised.
    """

    site: Site
    entry: DeviceMismatchEntry
    assumed: int
    times: int = 0


class DeviceMismatch(Exception):
    """Raised where CUDA would raise: the program may catch it, as it would there. `text` is torch's own, if known."""

    def __init__(self, mismatch: Mismatch, text: str | None = None) -> None:
        told = mismatch.entry
        places = sorted({operand.device for operand in told.operands})
        devices = " and ".join(places)
        wrong = ", ".join(operand.name for operand in told.operands if operand.is_wrong)
        apart = f"{rules.APART}, but found at least two devices, {devices}! ({told.operation})"
        alone = f"{told.operation} needs {wrong} on {told.expected}{rules.MISPLACED} {devices}"
        super().__init__(text or (apart if len(places) > 1 else alone))
        self.mismatch = mismatch


# The mismatch as an error of a class of Python's, by which a program catches it and a traceback names it.
_RAISED: dict[type[Exception], Any] = {
    kind: type(kind.__name__, (DeviceMismatch, kind), {"__module__": "builtins"})
    for kind in (RuntimeError, TypeError, BufferError)
}


class PerThread(threading.local):
    """The calls of torch that are running in a thread, each with its name and the device that tensors made inside lie
    on, None where that is not known; and how many of them the function mode works on.

    `inside` is whether an operation of torch's runs as Python, with copies that no program asked for.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, torch.device | None]] = []
        self.handling = 0
        self.inside = False


# What CUDA's own errors are, from torch 2.8 on.
_ACCELERATOR_ERROR: Any = getattr(torch, "AcceleratorError", RuntimeError)

# Of one line. Two updates of a policy ask for some thousand; a loop that waits for a value would ask for ever.
MOST_ASSUMED = 5000


@dataclass(slots=True)
class World:
    """One program's claims, and what was seen of it. `tolerated` are sites that were found before: they raise no more.

    `phase` is what of a model runs, `last` the mismatch that was raised last. `refused` and `mixed` are what was
    raised, once for each site: mismatches, and operands whose dtypes differ, by line and text. `asked_at` counts the
    values that were `assumed` by line.
    `names` gives a module its qualified name. `unjudged` are operations that are not torch's own, with their first
    line. Without `has_values` what claims a device is a meta tensor on it.
    `met` gets the origins of all operands; None where nobody asks.
    `unmet` is the last request for memory that raised as out of memory: the program may go on with less.
    `count` is how many GPUs there are, None for as many as anybody asks for.
    `casts` are the weights that autocast has cast, by weight, until its region ends.
    `used_by` is the process that used a device first. `in_fork` gets the line and text of each error that is raised in
    a forked process, whose own notes nobody reads.
    """

    claims: Claims = field(default_factory=Claims)
    tolerated: set[Site] = field(default_factory=set)
    phase: Phase = "step"
    last: Mismatch | None = None
    refused: dict[Site, Mismatch] = field(default_factory=dict)
    mixed: Counter[tuple[Place | None, str]] = field(default_factory=Counter)
    card: Device = field(default_factory=Device)
    has_values: bool = True
    assumed: list[AssumedValue] = field(default_factory=list)
    asked_at: Counter[Place | None] = field(default_factory=Counter)
    unjudged: dict[str, Place | None] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    met: set[Origin | None] | None = None
    used_by: int | None = None
    count: int | None = None
    unmet: Moment[Place] | None = None
    made_by: int = field(default_factory=os.getpid)
    in_fork: Callable[[Place | None, str], None] = lambda place, text: None
    here: PerThread = field(default_factory=PerThread)
    casts: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    @contextlib.contextmanager
    def calling(self, name: str, device: torch.device | None) -> Iterator[None]:
        """Yield what is made without a device of its own until this ends lies on `device`."""
        # A region of the CPU's casts what lies there, which to C++ is a claimed tensor too.
        is_apart = device != CPU and torch.is_autocast_enabled("cpu")
        self.here.calls.append((name, device))
        try:
            with _without("AutocastCPU") if is_apart else contextlib.nullcontext():
                yield
        finally:
            self.here.calls.pop()

    def uncounted(self) -> contextlib.AbstractContextManager[None]:
        """Count nothing that is made until this ends as memory of the device."""
        memory = self.claims.memory
        return memory.paused() if memory is not None else contextlib.nullcontext()

    def lend(self, device: torch.device, size: int) -> None:
        """A kernel on a device takes so many bytes while it runs."""
        if self.claims.memory is not None and device == COUNTED:
            self.claims.memory.lend(size)

    def home(self, device: torch.device) -> torch.device:
        """Where a tensor really lies that claims a device."""
        return CPU if self.has_values or device == CPU else torch.device("meta")

    def refuse(
        self,
        verdict: rules.Verdict,
        operands: list[tuple[rules.Operand, Tensor]],
        operation: str,
        text: str | None = None,
        kind: type[Exception] = RuntimeError,
    ) -> None:
        """Raise what CUDA would, as its `kind` and with its `text` if that is known, unless it was found before."""
        frame = user_frame(sys._getframe(1))
        expected = verdict.expected or "cpu"
        place = place_of(frame) if frame is not None else None
        site = place, operation, frame.f_lasti if frame is not None else None
        if site in self.tolerated:
            return
        if site not in self.refused:
            told = DeviceMismatchEntry(
                operation=operation,
                module=self._module(sys._getframe(1)),
                place=text_of(place),
                phase=self.phase,
                expected=expected,
                operands=tuple(
                    self._operand(one, tensor, frame, expected, is_wrong=one in verdict.wrong)
                    for one, tensor in dict(operands).items()
                ),
                peer=self._peer(frame, expected) if frame is not None else None,
            )
            self.refused[site] = Mismatch(site, told, len(self.assumed))
        self.last = self.refused[site]
        self.last.times += 1
        if self.is_forked():
            # A worker sends what it raises to its parent, by the class's name.
            self._raise_in_fork(place, str(DeviceMismatch(self.last, text)), kind)
        # In no variable: its traceback holds this frame, and as a circle they would keep the operands, whose memory is
        # counted, after the program has caught it.
        raise _RAISED[kind](self.last, text)

    def apart(
        self,
        name: str,
        tensor: Any,
        device: torch.device | None,
        operation: str,
        text: str | None,
        kind: type[Exception] = RuntimeError,
    ) -> None:
        """Raise with torch's `text`, which may name where it lies, where a lone tensor is known not to lie on
        `device`."""
        now = self.claims.device(tensor) if isinstance(tensor, Tensor) else None
        if now is not None and device is not None and now != device and "meta" not in (now.type, device.type):
            operand = rules.Operand(name, str(now), tensor.dim())
            verdict = rules.Verdict(str(device), (operand,), str(device))
            self.refuse(verdict, [(operand, tensor)], operation, text and text.format(now), kind)

    def _raise_in_fork(self, place: Place | None, text: str, kind: type[Exception] = RuntimeError) -> NoReturn:
        self.in_fork(place, text)
        raise kind(text)

    def is_forked(self) -> bool:
        """Return whether this process came from the one that the world was made in."""
        return self.made_by != os.getpid()

    def use(self, device: torch.device | None = None, *, by_kernel: bool = False) -> None:
        """A device is used. Raises in a forked process what CUDA raises there if its parent has used it before, and
        for a GPU beyond the last."""
        if self.used_by is None:
            self.used_by = os.getpid()
        elif self.used_by != os.getpid():
            self._raise_in_fork(here(), rules.FORKED_KERNEL if by_kernel else rules.FORKED)
        if self.count is not None and device is not None and device.type == "cuda" and device.index >= self.count:
            raise _ACCELERATOR_ERROR(rules.NO_SUCH_GPU.format(device.index + 1, self.count))

    def note_dtypes(self, error: RuntimeError) -> None:
        """Note an error that torch raised for operands of different dtypes: the program may catch it."""
        if rules.MIXED_DTYPES.search(str(error)):
            place, text = here(), " ".join(str(error).split())
            self.mixed[place, text] += 1
            if self.is_forked():
                self.in_fork(place, text)

    def stands_in(self, tensor: Tensor) -> bool:
        """Return whether a meta tensor stands for one on a claimed device, which has no values here."""
        return not self.has_values and tensor.is_meta and str(self.claims.device(tensor)) != "meta"

    def assume(self, what: str, value: Any) -> Any:
        """The value, given for one that is not known, and noted. Raises NotImplementedError where there is no end."""
        place = here()
        self.asked_at[place] += 1
        if self.asked_at[place] > MOST_ASSUMED:
            raise NotImplementedError(f"the program read {MOST_ASSUMED} values; a loop seems to wait for one of them")
        self.assumed.append(AssumedValue(what=what, value=repr(value), place=text_of(place)))
        return value

    def _operand(
        self, operand: rules.Operand, tensor: Tensor, frame: FrameType | None, expected: str, *, is_wrong: bool
    ) -> MismatchedTensor:
        origin, variable, maker_device, by_maker, inside = self.claims.of(tensor).origin, None, None, False, False
        if frame is not None and operand.device != expected:
            origin, variable, maker_device, by_maker, inside = cause(frame, tensor, expected, self.claims)
        return MismatchedTensor(
            name=operand.name,
            device=operand.device or "unknown",
            shape=() if tensor.is_nested else tuple(tensor.shape),  # a nested one has none
            is_wrong=is_wrong,
            origin=origin.kind if origin is not None else None,
            origin_name=origin.what if origin is not None else None,
            origin_place=text_of(origin.place) if origin is not None else None,
            variable=None if operand.written else variable,
            by_maker=by_maker,
            same_function=inside,
            maker_device=maker_device,
        )

    def _module(self, frame: FrameType | None) -> str | None:
        """The innermost module with a name whose method is running."""
        while frame is not None:
            own = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
            if isinstance(own, nn.Module) and id(own) in self.names:
                return self.names[id(own)]
            frame = frame.f_back
        return None

    def _peer(self, frame: FrameType, expected: str) -> str | None:
        """A local variable that holds a tensor where it should be, and did before the user's line."""
        tensors = {
            name: one
            for name, one in frame.f_locals.items()
            if isinstance(one, Tensor) and name.isidentifier() and is_set(frame.f_code, name, frame.f_lineno)
        }
        return next((name for name, one in tensors.items() if str(self.claims.device(one)) == expected), None)


_OF_DATA = torch.ops.aten.lift_fresh.default
# How the allocator of a CPU says that it has no memory.
_REFUSED_BYTES = re.compile(r"you tried to allocate (\d+) bytes")
# `torch.FloatTensor(2, 3)`, `torch.Tensor(3)`.
_OLD_CLASSES = re.compile(r"\b(Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)?Tensor\(")


@cache
def _arguments(func: torch._ops.OpOverload) -> tuple[tuple[str, bool], ...]:
    """The names of an operation's arguments, and whether it writes to each."""
    return tuple((one.name, bool(one.alias_info and one.alias_info.is_write)) for one in func._schema.arguments)


def _operands(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Iterator[tuple[str, bool, Tensor]]:
    arguments = _arguments(func)
    written = dict(arguments)
    named = [(name, value) for (name, _), value in zip(arguments, args, strict=False)]
    for name, value in (*named, *kwargs.items()):
        if isinstance(value, Tensor):
            yield name, written.get(name, False), value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield f"{name}[{index}]", written.get(name, False), item


def _check_dtypes(func: torch._ops.OpOverload, given: Sequence[tuple[str, bool, Tensor]]) -> None:
    """Raise where operands are of several dtypes that CUDA's kernels refuse, and here none has."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name in rules.ONE_DTYPE and all(argument != "out_dtype" for argument, _ in _arguments(func)):
        dtypes = [tensor.dtype for argument, _, tensor in given if not argument.startswith("ind")]
        other = next((one for one in dtypes if one != dtypes[0]), None)
        if other is not None:
            raise RuntimeError(rules.OTHER_DTYPE.format(name, dtypes[0], other))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what a function of torch takes or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


class Dispatch(TorchDispatchMode):  # type: ignore[misc]
    """Judges the operands of every operation, and notes where its results lie."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            # What `torch.tensor` makes of data in torch's own code lies where the call that is running has its own.
            is_data = func is _OF_DATA and self.world.here.handling > 0
            given = [] if is_data else list(_operands(func, args, kwargs))
            if any(is_traceable_wrapper_subclass(tensor) for _, _, tensor in given):
                return NotImplemented  # what it wraps comes by here itself
            verdict, operands = self._judged(func, given, kwargs)
            storages = [storage_of(tensor) for _, tensor in operands]
        if not self.world.has_values and any(self.world.stands_in(tensor) for _, tensor in operands):
            own = self.world.here
            with torch._C.DisableTorchFunction():
                before, own.inside = own.inside, True
                try:
                    out = without_values(self.world, func, args, kwargs)
                finally:
                    own.inside = before
        elif func.namespace in rules.JUDGED:
            # The function mode has seen the call above; below it, only code that is not torch's asks it anything.
            with torch._C.DisableTorchFunction():
                try:
                    out = func(*args, **kwargs)
                except RuntimeError as error:
                    self._out_of_memory(error, verdict.device, func, args, kwargs)
                    raise
        else:
            out = func(*args, **kwargs)
        if verdict.device is not None and verdict.device.startswith("cuda"):
            _check_dtypes(func, given)
        if func._schema.name != "aten::set_":  # it takes a storage that was there before
            with torch._C.DisableTorchFunction():
                self._note(out, verdict, operands, storages)
                if verdict.device == str(COUNTED):
                    self.world.lend(COUNTED, _lent(func._schema.name, args, out, self.world.card))
        return out

    def _out_of_memory(self, error: RuntimeError, device: str | None, func: Any, args: Any, kwargs: Any) -> None:
        """Raise CUDA's error where the host refused memory for a result that the device has no room for either."""
        memory, asked = self.world.claims.memory, _REFUSED_BYTES.search(str(error))
        if asked is None or memory is None or memory.total_bytes is None or device is None or device[:4] != "cuda":
            return
        size = int(asked[1])
        on_meta = {name: _as_meta(one) for name, one in kwargs.items() if name != "generator"}
        on_meta |= {"device": "meta"} if "device" in kwargs else {}
        try:  # what a CPU's kernel takes for itself is none of the device's
            made = sum(one.nbytes for one in tensors_in(func(*_as_meta(args), **on_meta)))
        except NotImplementedError:
            return
        if made >= size and memory.allocated + size > memory.total_bytes:
            free = memory.total_bytes - memory.allocated
            self.world.unmet = memory.unmet(size)
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB. GPU 0 has a total capacity of "
                f"{memory.total_bytes / 2**30:.2f} GiB of which {free / 2**30:.2f} GiB is free."
            ) from None

    def _judged(self, func: Any, given: list[tuple[str, bool, Tensor]], kwargs: Any) -> tuple[rules.Verdict, Any]:
        world = self.world
        for name, _, tensor in given if not world.has_values else ():
            # A list of Python's as an index: C++ makes a tensor of it beside the one that it indexes, unseen.
            if name.startswith("indices[") and str(world.claims.device(tensor)) == "meta":
                world.claims.put(tensor, world.claims.device(given[0][2]))
        operands = [
            (rules.Operand(name, _text(world.claims.device(tensor)), tensor.dim(), written), tensor)
            for name, written, tensor in given
        ]
        name = func._schema.name
        if not operands:
            return rules.Verdict(self._made_where(func, kwargs)), operands
        if world.met is not None:
            world.met.update(world.claims.of(tensor).origin for _, tensor in operands)
        if world.is_forked() and any(one.device is not None and one.device.startswith("cuda") for one, _ in operands):
            world.use(by_kernel=True)
        verdict = rules.judge(name, [operand for operand, _ in operands])
        if not verdict.judged and name not in world.unjudged:
            world.unjudged[name] = here()
        if verdict.wrong:
            called = world.here.calls[-1][0] if world.here.calls else name.partition("::")[2]
            world.refuse(verdict, operands, called)
        kernel = rules.NO_INTEGERS.get(name.partition("::")[2].removesuffix("_"))
        if kernel is not None and verdict.device is not None and verdict.device.startswith("cuda"):
            first = operands[0][1]
            is_run = kernel in rules.RUN_FOR_NONE or all(tensor.numel() for _, tensor in operands)
            if is_run and first.layout == torch.strided and not (first.is_floating_point() or first.is_complex()):
                kind = first.type().rpartition(".")[2].removesuffix("Tensor")
                raise NotImplementedError(f"\"{kernel}\" not implemented for '{kind}'")
        return verdict, operands

    def _made_where(self, func: Any, kwargs: Any) -> str | None:
        """Where a tensor lies that torch makes of nothing: where the call that is running has its own.

        Without such a call it was code in C++, whose device is not known unless it asks for none, as TorchScript's
        `torch.ones(3)`; or a class of old that makes CPU tensors and that the function mode does not see: the line
        says so.
        """
        if self.world.here.calls:
            return _text(self.world.here.calls[-1][1])
        asks_for_none = kwargs.get("device") is None and any(name == "device" for name, _ in _arguments(func))
        frame = user_frame(sys._getframe(3))
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
        return "cpu" if asks_for_none or _OLD_CLASSES.search(line) else None

    def _note(self, out: Any, verdict: rules.Verdict, operands: Any, storages: list[Any]) -> None:
        claims = self.world.claims
        device = torch.device(verdict.device) if verdict.device is not None else None
        if device is not None:
            # What was not known lies where the operation had it: unless that was a number that may lie anywhere.
            for operand, tensor in operands:
                if operand.device is None and tensor.dim() > 0 and tensor.device == CPU:
                    claims.put(tensor, device)
        origin = None
        if device == CPU:
            origins = (claims.of(tensor).origin for _, tensor in operands)
            origin = next((one for one in origins if one is not None), None)
        known = {id(storage) for storage in storages if storage is not None}
        results = out if isinstance(out, (list, tuple)) else (out,)
        for position, result in enumerate(results):
            on_host = position in verdict.on_host
            for tensor in tensors_in(result):
                storage = storage_of(tensor)
                is_new = storage is not None and id(storage) not in known and storage not in claims
                if is_new and (tensor.device == CPU or (tensor.is_meta and not self.world.has_values)):
                    claims.put(tensor, CPU if on_host else device, None if on_host else origin)


# -- without values ----------------------------------------------------------------------------------------------------

# Their sum or mean stands in the memory of the loss of each element, which stays as long; not on the meta device.
_LOSSES = ("aten::mse_loss", "aten::smooth_l1_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss")
# What works in place on what its arguments are given, and returns nothing that is new.
_IN_PLACE = re.compile(r"aten::(_amp_\w+_|_fused_\w+_)$")


def without_values(world: World, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on tensors that stand for claimed ones: shapes and dtypes are true, values are assumed."""
    name = func._schema.name
    if name == "aten::_local_scalar_dense":
        return world.assume("item", torch.zeros((), dtype=args[0].dtype).item())
    if name in ("aten::equal", "aten::is_nonzero"):
        return world.assume("bool", False)
    if _IN_PLACE.match(name):
        return args[0] if func._schema.returns else None
    if name == "aten::copy_" and not args[0].is_meta:
        world.assume("copy_", None)
        return args[0].zero_()
    if name == "aten::_to_copy" and str(kwargs.get("device")) == "cpu":
        world.assume("cpu", None)
        return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
    if kwargs.get("generator") is not None:
        kwargs = {**kwargs, "generator": None}
    rule = rules.rule_of(name)
    host = rule.host if rule is not None else ()
    names = [argument for argument, _ in _arguments(func)]
    sent = [one if names[place] in host else _as_meta(one) for place, one in enumerate(args)]
    out = func(*sent, **_as_meta(kwargs))
    if name in _LOSSES and out.numel() < sent[0].numel():
        return sent[0].new_empty(sent[0].numel()).as_strided(out.shape, out.stride())
    return out


def _as_meta(value: Any) -> Any:
    """Arguments with their tensors on the meta device, numbers too: some operations ask all to lie there."""
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_meta, value)) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: _as_meta(item) for key, item in value.items()}
    return value


def _text(device: torch.device | None) -> str | None:
    return None if device is None else str(device)
