"""Replace torch's functions where CUDA's kernels differ: autocast's casts, and memory kept for the backward pass."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpucheck.machine import torch_private
from gpucheck.program import rules
from gpucheck.program.engine import UNSEEN, Simulation, mapped, tensors_in, without
from gpucheck.program.simulated_devices import COUNTED, is_transformed

# For the backward pass, a fused attention keeps the logsumexp of each row and, for dropout, a seed. A dropout keeps one
# byte for each element, and an RNN of cuDNN keeps a reserve. The CPU's kernels keep other tensors.

# kAlignLSE of torch's memory-efficient attention: the logsumexp (float32) has a multiple of this many rows.
_LSE_ROWS = 32
# The number of values for each unit (gates and cell) that cuDNN's reserve holds for each step, layer and direction. The
# reserve also holds the input of each layer but the first and, with dropout, a bit for each element of that input.
# NVIDIA does not publish the size. Of 33 networks on an H200 (torch 2.11, cuDNN 9.19), 30 differ from this rule
# by at most 0.4 %; the others need up to 1.2 MB more. The rule also fits an LSTM (736 000 000 bytes) and a GRU
# (864 000 000 bytes) of 2017 (pytorch issue 2895).
_RESERVED = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}

Outputs = tuple[Tensor, ...]


class _Kernel(torch.autograd.Function):  # type: ignore[misc]
    """A call that keeps its inputs, its outputs and buffers of the sizes `kept`. The backward pass repeats the call."""

    @staticmethod
    def forward(
        ctx: Any, sim: Simulation, compute: Any, shapes: Any, kept: Any, temporary: int, device: Any, *inputs: Tensor
    ) -> Any:
        ctx.sim, ctx.compute, ctx.temporary, ctx.device, ctx.count = (sim, compute, temporary, device, len(inputs))
        ctx.seed = torch.get_rng_state()
        with sim.placements.memory.paused(), without("AutocastCUDA"):  # the arguments are already cast
            out = compute(*inputs) if sim.has_values else shapes(*inputs)
            buffers = [torch.empty(size, dtype=torch.uint8, device=sim.home(device)) for size in kept]
        for tensor in (*out, *buffers):
            sim.placements.put(tensor, device)
        ctx.save_for_backward(*inputs, *out, *buffers)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        sim: Simulation = ctx.sim
        inputs = ctx.saved_tensors[: ctx.count]
        needed = ctx.needs_input_grad[-ctx.count :]
        with sim.placements.memory.paused(), without("AutocastCUDA"):
            if sim.has_values:
                results = _input_gradients(ctx.compute, inputs, needed, gradients, ctx.seed)
            else:
                results = [torch.empty_like(x) if needs else None for x, needs in zip(inputs, needed, strict=True)]
        for gradient in filter(torch.is_tensor, results):
            sim.placements.put(gradient, ctx.device)
        if ctx.device == COUNTED:
            sim.placements.memory.lend(ctx.temporary)
        return (None,) * (len(ctx.needs_input_grad) - ctx.count) + tuple(results)


def _input_gradients(
    compute: Callable[..., Outputs], saved: Outputs, needed: Sequence[bool], gradients: Sequence[Any], seed: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a call's inputs. The call runs again with the same random numbers."""
    before = torch.get_rng_state()
    torch.set_rng_state(seed)
    try:
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_(needs) for tensor, needs in zip(saved, needed, strict=True)]
            pairs = [pair for pair in zip(compute(*inputs), gradients, strict=True) if pair[1] is not None]
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            found = iter(torch.autograd.grad([a for a, _ in pairs], wanted, [b for _, b in pairs], allow_unused=True))
    finally:
        torch.set_rng_state(before)
    return [next(found) if tensor.requires_grad else None for tensor in inputs]


def patches(sim: Simulation) -> list[tuple[Any, str, Any]]:
    functional, name = torch.nn.functional, "scaled_dot_product_attention"
    replaced = [(functional, name, _named(name, _attention, sim, functional.scaled_dot_product_attention))]
    calls = {"dropout": (_dropout, sim), **{name: (_recurrent, sim, name) for name in _RESERVED}}
    for name, call in calls.items():
        kernel = f"torch._VF.{name}"
        if torch_private.has(kernel):
            named = _named(name, *call, torch_private.need(kernel))
            replaced += [(torch, name, named), (torch_private.need("torch._VF"), name, named)]
    return replaced


def _named(name: str, function: Any, *first: Any) -> Any:
    """Return the function with its first arguments. TorchScript knows the result as the operator `name`."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*first, *args, **kwargs)

    called.__name__ = called.__qualname__ = name
    torch_private.find("torch.jit._builtins._register_builtin", lambda *known: None)(called, f"aten::{name}")
    return called


def _device(sim: Simulation, tensors: Sequence[Any]) -> torch.device | None:
    """Return the simulated GPU that holds all of these plain tensors; None otherwise, so that torch's function runs."""
    if any(type(tensor) not in (Tensor, torch.nn.Parameter) or is_transformed(tensor) for tensor in tensors):
        return None
    devices = {sim.placements.device(tensor) for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


# torch's autocast casts only tensors that C++ sees on CUDA, and C++ sees the tensors of a simulated GPU on the CPU.

_GUARD, _KEY = "torch._C._IncludeDispatchKeyGuard", "torch._C.DispatchKey"
_REGISTERED = "torch._C._dispatch_get_registrations_for_dispatch_key"
_AUTOCAST = (
    *(_GUARD, _KEY, _REGISTERED, "torch.ops.aten.lift_fresh.default._op_dk", "torch.library.Library._destroy"),
    *("torch.Tensor._is_view", "torch._C._ExcludeDispatchKeyGuard", "torch._C.DispatchKeySet"),
)
_CAN_CAST = all(map(torch_private.has, _AUTOCAST))
# From this version on, the cached cast of a weight has a gradient even if it was created under no_grad.
_KEEPS_GRADIENTS = torch.__version__ >= "2.11"


def autocast_here() -> Any:
    """Return a context in which this thread's operations go through autocast's kernels, if autocast is on."""
    return torch_private.need(_GUARD)(torch_private.need(_KEY).AutocastCUDA) if _CAN_CAST else contextlib.nullcontext()


@contextlib.contextmanager
def autocasting(sim: Simulation) -> Iterator[None]:
    """Let autocast for "cuda" cast simulated tensors until the end of the block."""
    if not _CAN_CAST:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    composite = torch_private.need(_KEY).CompositeImplicitAutograd
    registered = torch_private.need(_REGISTERED)
    cast_names, composed = set(registered("AutocastCUDA")), set(registered(composite.name))
    packets = [name.removeprefix("aten::").partition(".")[0] for name in cast_names if name.startswith("aten::")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its kernels are replaced
        for packet in {*packets, *rules.COMPOSED}:
            for overload in getattr(torch.ops.aten, packet).overloads():
                func = getattr(getattr(torch.ops.aten, packet), overload)
                if func.name() in cast_names:
                    library.impl(func, functools.partial(_autocast, sim, func, packet), "AutocastCUDA")
                elif func.name() in composed:
                    library.impl(func, functools.partial(func._op_dk, composite), "AutocastCUDA")
    try:
        with autocast_here():
            yield
    finally:
        library._destroy()


def call(sim: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Call `func`. Under autocast, torchvision's own kernels run in float32 and return the first tensor's dtype."""
    name = getattr(func, "_qualified_op_name", "")
    is_cast = name.startswith("torchvision::") and torch.is_autocast_enabled("cuda") and _CAN_CAST
    if not is_cast or name not in torch_private.need(_REGISTERED)("AutocastCUDA"):
        return func(*args, **kwargs)
    out = func(*cast(sim, args, torch.float32), **cast(sim, kwargs, torch.float32))
    return cast(sim, out, next(tensors_in([args, kwargs])).dtype)


def _autocast(sim: Simulation, func: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operation that autocast knows, inside a region of autocast. Raises RuntimeError as torch does."""
    with without("AutocastCUDA"):
        with UNSEEN():
            region_dtype = torch.get_autocast_dtype("cuda")
            if name in rules.SUMMED or name == rules.NORMED:
                arguments = [argument.name for argument in func._schema.arguments]
                if "dtype" not in (*kwargs, *arguments[: len(args)]) and _is_cast(sim, args[0]):
                    kwargs = {**kwargs, "dtype": torch.float32}
                    if name == rules.NORMED:
                        args += tuple(argument.default_value for argument in func._schema.arguments[len(args) :])
                        func = func.overloadpacket
            elif name == rules.BANNED:
                if any(_is_on_cuda(sim, tensor) for tensor in tensors_in([args, kwargs])):
                    raise RuntimeError(rules.UNSAFE_TO_AUTOCAST)
            else:
                dtype = region_dtype if name in (*rules.LOWERED, *rules.PROMOTED) else torch.float32
                for tensor in tensors_in([args, kwargs]) if name in rules.PROMOTED else ():
                    if _is_cast(sim, tensor) and tensor.dtype != region_dtype:
                        if torch.float32 not in (dtype, tensor.dtype):
                            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
                        dtype = torch.float32
                args, kwargs = cast(sim, args, dtype), cast(sim, kwargs, dtype)
        return func(*args, **kwargs)


def _is_on_cuda(sim: Simulation, value: Any) -> bool:
    device = sim.placements.device(value) if isinstance(value, Tensor) else None
    return device is not None and device.type == "cuda"


def _is_cast(sim: Simulation, value: Any) -> bool:
    return _is_on_cuda(sim, value) and value.is_floating_point() and value.dtype != torch.float64


def cast(sim: Simulation, value: Any, dtype: torch.dtype) -> Any:
    """Return the arguments with their floating-point tensors on CUDA in another dtype. Casts of weights are cached."""
    if not isinstance(value, Tensor):
        return mapped(lambda tensor: cast(sim, tensor, dtype), value)
    if not _is_cast(sim, value) or value.dtype == dtype:
        return value
    has_cache = torch.is_autocast_cache_enabled() and not (_KEEPS_GRADIENTS and torch.is_inference_mode_enabled())
    is_weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if not has_cache or not is_weight or dtype != torch.get_autocast_dtype("cuda"):
        return value.to(dtype)
    cached = sim.casts.get(value)  # the end of a region in any thread clears all casts
    if cached is None:
        with torch.set_grad_enabled(_KEEPS_GRADIENTS or torch.is_grad_enabled()):
            cached = sim.casts[value] = value.to(dtype)
    return cached


def _dropout(sim: Simulation, original: Any, input: Any, p: float, train: bool) -> Any:
    if train and 0 < p < 1 and _device(sim, [input]) is not None:
        return torch.native_dropout(input, p, train)[0]
    return original(input, p, train)


# The choice of attention's kernels is global in torch, so only one thread may change it at a time.
_SDPA_LOCK = threading.RLock()


def _attention(
    sim: Simulation,
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Run `F.scaled_dot_product_attention` with the kernels that CUDA would choose. The CPU chooses other kernels."""
    inputs = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    if (device := _device(sim, inputs)) is None or query.is_nested:
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
    if torch.is_autocast_enabled("cuda"):
        inputs = cast(sim, inputs, torch.get_autocast_dtype("cuda"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # all kernels add the mask to each score
        inputs[3] = torch.where(inputs[3], torch.zeros((), dtype=inputs[0].dtype, device=device), float("-inf"))
    added = inputs[3] if attn_mask is not None else None
    with _SDPA_LOCK:
        if not _is_fused(inputs[0], inputs[1], inputs[2], attn_mask, options.get("enable_gqa", False)):
            with sdpa_kernel(SDPBackend.MATH) if torch.backends.cuda.math_sdp_enabled() else contextlib.nullcontext():
                unfused = torch_private.find("torch._scaled_dot_product_attention_math")
                is_alike = len({tensor.dtype for tensor in inputs[:3]}) == 1 and query.shape[-3:-2] == key.shape[-3:-2]
                if not dropout_p or not is_alike or unfused is None:
                    return original(query, key, value, added, dropout_p, is_causal, **options)
                # CUDA's dropout keeps a mask of bytes inside the unfused attention too.
                scores = unfused(*inputs[:3], added, 0.0, is_causal, **options)
                return torch.native_dropout(scores[1], dropout_p, True)[0] @ inputs[2]
    batch, heads, rows = query.shape[:3]
    if added is not None:  # the kernels compute a gradient for each score
        inputs[3] = added.expand(batch, heads, rows, key.shape[2])

    # As on CUDA, the heads of a row are adjacent in the result, so that joining the heads makes no copy.
    def compute(*tensors: Tensor) -> Outputs:
        mask = tensors[3] if len(tensors) > 3 else None
        out = original(*tensors[:3], mask, dropout_p, is_causal, **options)
        return (out.transpose(1, 2).contiguous().transpose(1, 2),)

    def shapes(*tensors: Tensor) -> Outputs:
        return (query.new_empty(batch, rows, heads, tensors[2].shape[-1], dtype=tensors[0].dtype).transpose(1, 2),)

    logsumexp = batch * heads * -(-rows // _LSE_ROWS) * _LSE_ROWS * 4
    kept = [logsumexp] + [8, 8] * bool(dropout_p)
    # The backward pass sums the query's gradient in float32, and the products of the output and its gradient.
    temporary = query.numel() * 4 + logsumexp
    with sim.calling("F.scaled_dot_product_attention", device):
        return _Kernel.apply(sim, compute, shapes, kept, temporary, device, *inputs)[0]


def _is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Any, grouped: bool) -> bool:
    """Return whether CUDA would run flash attention or the memory-efficient kernel."""
    tensors = (query, key, value)
    if any(tensor.dim() != 4 or tensor.stride(-1) != 1 or tensor.dtype != query.dtype for tensor in tensors):
        return False
    if mask is not None and mask.stride(-1) != 1:  # such as T5's position bias
        return False
    depths = {tensor.shape[-1] for tensor in tensors}
    is_half, backend = query.dtype in (torch.float16, torch.bfloat16), torch.backends.cuda
    if is_half and mask is None and len(depths) == 1 and max(depths) <= 256 and backend.flash_sdp_enabled():
        return True
    # The memory-efficient kernel loads 16 bytes at once.
    is_aligned = all(depth * query.element_size() % 16 == 0 for depth in depths)
    has_kernel = is_aligned and not grouped and (is_half or query.dtype == torch.float32)
    return has_kernel and backend.mem_efficient_sdp_enabled()


def _recurrent(sim: Simulation, name: str, original: Any, *args: Any) -> Any:
    """Run `lstm`, `gru`, `rnn_tanh` or `rnn_relu` as cuDNN does, for a padded batch or a packed one."""
    is_packed = isinstance(args[3], (list, tuple))
    at = 2 if is_packed else 1
    states = list(args[at]) if isinstance(args[at], (list, tuple)) else [args[at]]
    weights, settings = list(args[at + 1]), args[at + 2 :]
    layers, dropout, train, bidirectional = settings[1:5]
    device = _device(sim, [args[0], *states, *weights])
    if device is None or any(weight.dtype == torch.float64 for weight in weights):
        return original(*args)
    if torch.is_autocast_enabled("cuda"):
        # cuDNN's RNNs run in float16 in a region of any dtype, and do not cache casts of weights (AutocastRNN.cpp).
        dtype = torch.float16 if torch.backends.cudnn.enabled else torch.get_autocast_dtype("cuda")
        state, weights = cast(sim, args[at], dtype), [weight.to(dtype) for weight in weights]
        args = (cast(sim, args[0], dtype), *args[1:at], state, weights, *settings)
        states = list(state) if isinstance(state, (list, tuple)) else [state]
    if not torch.backends.cudnn.enabled:
        return original(*args)
    directions = 2 if bidirectional else 1
    hidden, tokens = weights[1].shape[0] // _GATES[name], args[0].numel() // args[0].shape[-1]
    elements = directions * tokens * hidden
    reserve = elements * (_RESERVED[name] * layers + layers - 1) * args[0].element_size()
    reserve += elements * (layers - 1) // 8 if dropout else 0
    kept = [reserve] if train else []
    if train and args[0].dtype not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES:
        # torch copies weights into one block: for each call, or only once for a dtype of cuDNN's.
        kept.append(sum(weight.nbytes for weight in weights))

    def compute(*tensors: Tensor) -> Outputs:
        new_states = list(tensors[1 : 1 + len(states)])
        state = new_states if isinstance(args[at], (list, tuple)) else new_states[0]
        sizes = (args[1],) if is_packed else ()
        return tuple(original(tensors[0], *sizes, state, list(tensors[1 + len(states) :]), *settings))

    def shapes(*tensors: Tensor) -> Outputs:
        out = args[0].new_empty(*args[0].shape[:-1], states[0].shape[-1] * directions)
        return (out, *map(torch.empty_like, states))

    with sim.calling(f"torch.{name}", device):
        return _Kernel.apply(sim, compute, shapes, kept, 0, device, args[0], *states, *weights)


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
