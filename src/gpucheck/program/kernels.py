"""Memory that CUDA's kernels keep for the backward pass where a CPU's keep something else: attention, dropout, RNNs.

A fused attention keeps no scores, but the logsumexp of each row and, for dropout, a seed. A dropout keeps a mask of one
byte an element. An RNN of cuDNN keeps its output and a reserve, whose size nobody publishes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpucheck.program.engine import World

# kAlignLSE of torch's memory-efficient attention: rows of the logsumexp, in float32.
_LSE_ROWS = 32
_HALF = (torch.float16, torch.bfloat16)
# Gates and cell of each step, layer and direction that cuDNN's reserve holds, beside the input of each layer but the
# first. So were 736 000 000 bytes for an LSTM and 864 000 000 for a GRU of four layers (pytorch issue 2895). Other
# versions may keep more.
_HELD = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_RESERVE_AT_MOST = 1.5

Made = tuple[Tensor, ...]


class _Kernel(torch.autograd.Function):  # type: ignore[misc]
    """A call whose inner tensors are not kept: its backward pass makes them again, and counts only the gradients.

    `kept` are the bytes beside inputs and outputs that the backward pass needs, each with the most that it may be.
    """

    @staticmethod
    def forward(
        ctx: Any,
        world: World,
        compute: Callable[..., Made],
        shapes: Callable[..., Made],
        kept: Sequence[tuple[int, int]],
        device: torch.device,
        *given: Tensor,
    ) -> Any:
        ctx.world, ctx.compute, ctx.device, ctx.count = world, compute, device, len(given)
        ctx.seed = torch.get_rng_state()
        with _uncounted(world):
            out = compute(*given) if world.has_values else shapes(*given)
            books = [torch.empty(size, dtype=torch.uint8, device=world.home(device)) for size, _ in kept]
        for book, (size, most) in zip(books, kept, strict=True):
            if world.claims.memory is not None:
                world.claims.memory.put(book.untyped_storage(), is_held=True, more=most - size)
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
        with _uncounted(world):
            if world.has_values:
                made = _again(ctx.compute, given, needed, gradients, ctx.seed)
            else:
                made = [torch.empty_like(one) if needs else None for one, needs in zip(given, needed, strict=True)]
        for one in made:
            if one is not None:
                world.claims.put(one, ctx.device)
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


@contextlib.contextmanager
def _uncounted(world: World) -> Iterator[None]:
    memory = world.claims.memory
    with memory.paused() if memory is not None else contextlib.nullcontext():
        yield


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


# -- dropout -----------------------------------------------------------------------------------------------------------


def _dropout(world: World, original: Any, input: Any, p: float, train: bool) -> Any:
    if train and 0 < p < 1 and _device(world, [input]) is not None:
        return torch.native_dropout(input, p, train)[0]
    return original(input, p, train)


# -- attention ---------------------------------------------------------------------------------------------------------


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
    """`F.scaled_dot_product_attention` as CUDA runs it where a CPU keeps scores: with dropout, or without values."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    given = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    device = _device(world, given)
    if device is None or not (dropout_p or not world.has_values):
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        given = [one if one.dtype in (torch.bool, torch.float64) else one.to(dtype) for one in given]
    if not _is_fused(given[0], given[1], given[2], attn_mask, enable_gqa):
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if attn_mask is not None and given[3].dtype == torch.bool:  # the kernels add it
        zero = torch.zeros((), dtype=given[0].dtype, device=device)
        given[3] = torch.where(given[3], zero, float("-inf"))

    def compute(*tensors: Tensor) -> Made:
        mask = tensors[3] if len(tensors) > 3 else None
        with torch.autocast("cpu", enabled=False):
            return (original(*tensors[:3], mask, dropout_p, is_causal, **options),)

    def shapes(*tensors: Tensor) -> Made:
        return (tensors[0].new_empty(*tensors[0].shape[:-1], tensors[2].shape[-1]),)

    batch, heads, rows = query.shape[:3]
    sizes = [batch * heads * -(-rows // _LSE_ROWS) * _LSE_ROWS * 4] + [8, 8] * bool(dropout_p)
    with world.calling("F.scaled_dot_product_attention", device):
        return _Kernel.apply(world, compute, shapes, [(one, one) for one in sizes], device, *given)[0]


def _is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Any, grouped: bool) -> bool:
    """Return whether one of CUDA's fused kernels takes it: flash attention, or the memory-efficient one."""
    tensors = (query, key, value)
    if any(one.dim() != 4 or one.stride(-1) != 1 or one.dtype != query.dtype for one in tensors):
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
    layers, _, train, both_ways = rest[1:5]
    device = _device(world, [args[0], *states, *weights])
    if device is None or not torch.backends.cudnn.enabled or any(one.dtype == torch.float64 for one in weights):
        return original(*args)
    directions = 2 if both_ways else 1
    hidden, tokens = weights[1].shape[0] // _GATES[name], args[0].numel() // args[0].shape[-1]
    elements = directions * tokens * hidden * (_HELD[name] * layers + layers - 1)
    reserve = elements * args[0].element_size() if train else 0

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

    kept = [(reserve, int(reserve * _RESERVE_AT_MOST))]
    with world.calling(f"torch.{name}", device):
        return _Kernel.apply(world, compute, shapes, kept, device, args[0], *states, *weights)


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
