"""Answer a program's calls to torch as a machine with a GPU would: moves, factories, `.device`, `torch.cuda`.

The function mode sees every call of torch's Python interface before torch does. The engine replaces `torch.cuda` and
classes, whose calls the mode does not see.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gpucheck.machine import torch_private
from gpucheck.program import engine, kernels, rules
from gpucheck.program import simulated_devices as devices
from gpucheck.program.engine import UNSEEN, DeviceMismatch, Dispatch, Simulation, mapped, replaced, tensors_in
from gpucheck.program.simulated_devices import CPU, CURRENT, SIMULATED, UNSEEN_BY_CLASS, Origin, Place
from gpucheck.work.storages import Memory
from gpucheck.work.target import import_compiler

_T = torch.Tensor


class TorchCalls(TorchFunctionMode):  # type: ignore[misc]
    """Answers calls of torch's Python interface, or runs them with the device for the dispatch mode."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim
        self.copied: set[Origin] = set()  # the origins of named tensors that were copied to a device
        self.originals: dict[Any, Any] = {}  # torch's functions, by their replacements
        self._constructors = frozenset(torch_private.need("torch.utils._device._device_constructors")())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        func = self.originals.get(func, func)
        self.sim.here.handling += 1
        try:
            if (answer := FUNCTION_RULES.get(func, _OTHER).answer) is not None:
                return answer(self, *args, **kwargs)
            if kwargs.get("pin_memory"):  # without CUDA torch has no pinned memory
                out = self.__torch_function__(func, types, args, {**kwargs, "pin_memory": False})
                self.check_host(func, [("out", out)])
                return _pinned(self, out)
            if func in self._constructors or kwargs.get("device") is not None:
                return (self._created if kwargs.get("out") is None else self._filled)(func, args, kwargs)
            return self._called(func, args, kwargs)
        except RuntimeError as error:
            if not isinstance(error, DeviceMismatch):
                self.sim.note_dtypes(error)
            raise
        finally:
            self.sim.here.handling -= 1

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule, values = FUNCTION_RULES.get(func, _OTHER), [*args, *kwargs.values()]
        deciding = [*tensors_in(values)][: rule.first]
        device = self.common(deciding)
        if kwargs.get("out") is not None and func not in self._constructors and not rule.fills_any:
            inputs = [*tensors_in([*args, *(value for name, value in kwargs.items() if name != "out")])]
            expected = self.common(inputs) if inputs else None
            for tensor in tensors_in(kwargs["out"]):  # Dispatch sees only a copy if torch compares devices in C++
                self.sim.raise_if_elsewhere("out", tensor, expected, name_of(func), None)
        if (generator := kwargs.get("generator")) is not None and device is not None:
            self._check_generator(func, generator, device)
        if rule.read is not None:
            self.check_host(func, rule.read(*args, **kwargs))
        if rule.alike:
            for index, tensor in enumerate(deciding):
                self.sim.raise_if_elsewhere(f"tensors[{index}]", tensor, device, name_of(func), rule.alike)
        if rule.carries:
            device = self.sim.placements.device(args[0] if args else kwargs["log_probs"]) or device
            if device is not None:
                args, kwargs = mapped(lambda tensor: self.move(tensor, device), (args, kwargs))
        args, kwargs = self._followed(rule, device, args, kwargs)
        with self.sim.calling(name_of(func), device):
            return kernels.call(self.sim, func, args, kwargs)

    def common(self, tensors: Sequence[Tensor]) -> torch.device | None:
        """Return the only device other than the CPU; the CPU if there is no other device; None if there are several or
        a device is unknown. Tensors with 0 dimensions count only if no tensor has dimensions."""
        with UNSEEN_BY_CLASS():  # a lazy parameter raises in its torch function
            shaped = [tensor for tensor in tensors if tensor.dim()]
        placed = {self.sim.placements.device(tensor) for tensor in shaped or tensors}
        if others := placed - {CPU, None}:
            return others.pop() if len(others) == 1 else None
        return None if None in placed else CPU

    def _check_generator(self, func: Any, generator: Any, device: torch.device) -> None:
        if generator.device.type != device.type:
            stand_in = torch.empty(0, device=CPU)  # without `device`, torch would use the program's default device
            origin = Origin("made", "torch.Generator", getattr(generator, "made_at", None))
            self.sim.placements.put(stand_in, generator.device, origin)
            text = rules.OTHER_GENERATOR.format(device.type, generator.device.type)
            self.sim.raise_if_elsewhere("generator", stand_in, device, name_of(func), text)

    def check_host(self, func: Any, tensors: list[tuple[str, Any]]) -> None:
        """Raise torch's error if one of the tensors that the host reads is not on the CPU."""
        text = FUNCTION_RULES.get(func, _OTHER).type_error
        error = RuntimeError if text is None else TypeError
        for name, tensor in tensors:
            self.sim.raise_if_elsewhere(name, tensor, CPU, name_of(func), text, error)

    def device_of(self, value: Any) -> torch.device | None:
        with UNSEEN():
            return self.sim.placements.device(value) if isinstance(value, Tensor) else None

    def _followed(self, rule: FunctionRule, device: torch.device | None, args: Any, kwargs: Any) -> Any:
        """Return the arguments. If they are on several devices, autograd will move their gradients back."""
        with UNSEEN_BY_CLASS():  # a lazy parameter raises in its torch function
            placed = {self.sim.placements.device(tensor) for tensor in tensors_in([*args, *kwargs.values()])} - {None}
            if len(placed) < 2 or not torch.is_grad_enabled():
                return args, kwargs
            target = self.sim.placements.device(args[0]) if rule.copies and args else device

            def followed(value: Any) -> Any:
                if isinstance(value, Tensor) and value.requires_grad and not devices.is_transformed(value):
                    source = self.sim.placements.device(value)
                    if source not in (None, target) and (rule.copies or value.dim() == 0):
                        return _Move.apply(value, self, None, source, value.dtype, {})
                return value

            start = 1 if rule.copies else 0  # a copy writes to its first argument
            return (*args[:start], *map(followed, args[start:])), {key: followed(item) for key, item in kwargs.items()}

    def _created(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Create a tensor on the requested device, or on the default device."""
        device, rule = devices.device_of(kwargs.get("device")), FUNCTION_RULES.get(func, _OTHER)
        at = rule.sparse_at  # indices move to the device of the values
        data = [*args[:2], *kwargs.values()] if at is None else [kwargs.get("values"), *args[at : at + 1]]
        source = next((value for value in data if isinstance(value, Tensor)), None)
        if device is None and func in self._constructors:
            device = devices.device_of(_default_device())
            if device is None and source is not None and rule.of_data:
                device = self.sim.placements.device(source)
            device = device or CPU
        if device is None or device.type not in ("cpu", *SIMULATED):
            return func(*args, **kwargs)
        if device.type in SIMULATED:
            self.sim.use(device)
        if (generator := kwargs.get("generator")) is not None:
            self._check_generator(func, generator, device)
        # The parts of a sparse tensor move first, because the new tensor keeps their devices.
        if at is not None and kwargs.get("device") is not None:
            args, kwargs = mapped(lambda tensor: self.move(tensor, device), (args, kwargs))
        kwargs = {**kwargs, "device": self.sim.home(device)}
        if generator is not None and not self.sim.has_values:
            kwargs["generator"] = None
        with self.sim.calling(name_of(func), device):
            out = func(*args, **kwargs)
        if source is not None and at is None and devices.storage_of(out) is devices.storage_of(source):
            return self.move(source, device)  # torch.as_tensor of a tensor on another device
        origin = Origin("made", name_of(func), devices.here()) if device == CPU else None
        for tensor in tensors_in(out):
            self.sim.placements.put(tensor, device, origin)
        return out

    def _filled(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a factory that writes to its `out`, which must be on the factory's device."""
        device, out_device = devices.device_of(kwargs.get("device") or _default_device()), self.device_of(kwargs["out"])
        if device is not None and out_device is not None and device.type != out_device.type:
            _refuse(f"{name_of(func)} with an out on another device")
        return self._called(func, args, {**kwargs, "device": kwargs["out"].device})

    def move(
        self, tensor: Tensor, device: torch.device, dtype: Any = None, copy: bool = False, memory_format: Any = None
    ) -> Tensor:
        """Return the tensor on `device`. As in torch, a tensor on `device` is returned itself, unless `copy`."""
        source = self.sim.placements.device(tensor)
        more: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
        if device.type not in ("cpu", *SIMULATED):
            return tensor.to(device=device, dtype=dtype, copy=copy, **more)
        if device.type in SIMULATED:
            self.sim.use(device)
        with self.sim.calling("Tensor.to", device):
            stands_in = self.sim.stands_in(tensor)
            if source == device or (tensor.is_meta and not stands_in):
                home = torch.device("meta") if stands_in else CPU
                out = tensor.to(device=home, dtype=dtype or tensor.dtype, copy=copy, **more)
                if out is not tensor:
                    self.sim.placements.put(out, device)
                return out
            if not devices.is_transformed(tensor) and tensor.requires_grad and torch.is_grad_enabled():
                return _Move.apply(tensor, self, device, source, dtype or tensor.dtype, more)
            return self._copied(tensor, device, dtype or tensor.dtype, more)

    def _copied(self, tensor: Tensor, device: torch.device, dtype: Any, more: dict[str, Any]) -> Tensor:
        home = self.sim.home(device)
        with self.sim.placements.memory.paused():
            if tensor.is_meta and home == CPU:
                self.sim.assume("cpu", None)
                out = torch.zeros(tensor.shape, dtype=dtype, device=CPU)
            else:
                out = tensor.to(device=home, dtype=dtype, copy=True, **more)
        if (origin := self.sim.placements.of(tensor).origin) is not None and device != CPU:
            self.copied.add(origin)
        self.sim.placements.put(out, device, Origin("moved", "", devices.here()) if device == CPU else None)
        return out

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with this mode active. torch disables the mode while the mode handles a call."""

        def called(*args: Any, **kwargs: Any) -> Any:
            here = self.sim.here
            if not here.handling:
                return function(*args, **kwargs)
            before, here.handling = here.handling, 0
            try:
                with self:
                    return function(*args, **kwargs)
            finally:
                here.handling = before

        return called


class _Move(torch.autograd.Function):  # type: ignore[misc]
    """A move whose gradient is moved back. If `device` is None, the following operation moves the tensor."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, torch_calls: TorchCalls, device: Any, source: Any, dtype: Any, more: Any
    ) -> Tensor:
        ctx.torch_calls, ctx.source, ctx.dtype = torch_calls, source, tensor.dtype
        return tensor.view_as(tensor) if device is None else torch_calls._copied(tensor, device, dtype, more)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        is_host = ctx.source in (None, CPU)
        # Without `entered`, a copy between two GPUs would count as a copy to the host: its result has no device yet.
        with contextlib.nullcontext() if is_host else ctx.torch_calls.sim.here.entered():
            back = gradient if ctx.source is None else ctx.torch_calls.move(gradient, ctx.source, ctx.dtype)
        return back, None, None, None, None, None


def _default_device() -> Any:
    return getattr(sys.modules["torch.utils._device"], "CURRENT_DEVICE", None)


def name_of(func: Any) -> str:
    """Return the name of a torch function as a program writes it: `torch.add`, `Tensor.to`, `F.linear`."""
    if (name := getattr(func, "__name__", str(func))) == "__get__" or name == "__set__":
        return f"Tensor.{getattr(func.__self__, 'fget', func.__self__).__name__}"
    qualified = getattr(func, "__qualname__", name)
    if qualified.startswith(("TensorBase.", "Tensor.")):
        return _OPERATORS.get(name, f"Tensor.{name}")
    module = getattr(func, "__module__", None) or ""
    if module.startswith(("torch.nn.functional", "torch._C._nn")):
        return f"F.{name}"
    return f"torch.{name}" if not hasattr(torch.nn.functional, name) or hasattr(torch, name) else f"F.{name}"


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "floordiv": "//", "matmul": "@", "pow": "**"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^"}
_OPERATORS = {
    "__getitem__": "x[…]",
    "__setitem__": rules.SET_ITEM,
    **{f"__{name}__": sign for name, sign in _COMPARISONS.items()},
    **{f"__{prefix}{name}__": sign for prefix in ("", "r") for name, sign in _SIGNS.items()},
    **{f"__i{name}__": f"{sign}=" for name, sign in _SIGNS.items()},
    **{name: _SIGNS[name] for name in ("add", "sub", "mul", "div")},
}


def _device_get(torch_calls: TorchCalls, tensor: Tensor, *rest: Any) -> torch.device:
    return torch_calls.sim.placements.device(tensor) or tensor.device


def _is_on(kind: str, torch_calls: TorchCalls, tensor: Tensor, *rest: Any) -> bool:
    return bool(_device_get(torch_calls, tensor).type == kind)


def _get_device(torch_calls: TorchCalls, tensor: Tensor) -> int:
    device = _device_get(torch_calls, tensor)
    return -1 if device.index is None or device.type == "cpu" else device.index


def _to(torch_calls: TorchCalls, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Answer `Tensor.to` in its three forms: a device, a dtype, another tensor."""
    device, dtype = devices.device_of(kwargs.get("device")), kwargs.get("dtype")
    unread = list(args)
    other = kwargs.get("other") or (unread.pop(0) if unread and isinstance(unread[0], Tensor) else None)
    if other is not None:
        device, dtype = torch_calls.sim.placements.device(other), other.dtype
    elif unread and not isinstance(unread[0], torch.dtype):
        device = devices.device_of(unread.pop(0))
    if unread and (isinstance(unread[0], torch.dtype) or unread[0] is None):
        dtype = unread.pop(0) or dtype
    flags = [flag for flag in unread if isinstance(flag, bool)]
    copy = kwargs.get("copy", flags[1] if len(flags) > 1 else False)
    device = device or torch_calls.sim.placements.device(tensor) or CPU
    return torch_calls.move(tensor, device, dtype, copy, kwargs.get("memory_format"))


def _format(torch_calls: TorchCalls, tensor: Tensor, spec: str) -> str:
    """Answer `format(tensor, spec)`. torch cannot format a meta tensor."""
    if tensor.dim() or type(tensor) is not Tensor:
        return str(torch_calls.again(object.__format__)(tensor, spec))
    if torch_calls.sim.stands_in(tensor):
        return format(torch_calls.sim.assume("format", torch.zeros((), dtype=tensor.dtype, device=CPU).item()), spec)
    return str(tensor.__format__(spec))


def _pin(torch_calls: TorchCalls, tensor: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    torch_calls.check_host(_T.pin_memory, [("self", tensor)])
    return _pinned(torch_calls, tensor.clone())


def _pinned(torch_calls: TorchCalls, tensor: Tensor) -> Tensor:
    for storage in devices.storages_of(tensor):
        torch_calls.sim.placements.storages.row(storage).is_pinned = True
    return tensor


def _tolist(torch_calls: TorchCalls, tensor: Tensor) -> Any:
    if not torch_calls.sim.stands_in(tensor):
        return tensor.tolist()
    torch_calls.sim.assume("tolist", None)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=CPU).tolist()


def _beside(func: Any, torch_calls: TorchCalls, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Create a tensor from data, on the device of `tensor` unless the call names a device."""
    device = kwargs.get("device") or _device_get(torch_calls, tensor)
    return torch_calls._created(func, (tensor, *args), {**kwargs, "device": device})


def _new(torch_calls: TorchCalls, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Answer `Tensor.new`, which SparseAdam uses. The result is on the device of a passed tensor or storage."""
    if args and isinstance(args[0], (Tensor, torch.TypedStorage, torch.UntypedStorage)):
        return tensor.new(*args, **kwargs)
    return _beside(_T.new, torch_calls, tensor, *args, **kwargs)


def _type(torch_calls: TorchCalls, tensor: Tensor, dtype: Any = None, *rest: Any, **kwargs: Any) -> Any:
    device = torch_calls.sim.placements.device(tensor) or CPU
    if dtype is None:
        return tensor.type().replace("torch.", "torch.cuda.", 1) if device.type == "cuda" else tensor.type()
    if isinstance(dtype, torch.dtype):
        return torch_calls.move(tensor, device, dtype)
    if device == CPU and ".cuda." not in str(dtype):
        return tensor.type(dtype, *rest, **kwargs)
    _refuse("Tensor.type with a class of tensors on CUDA")


def _deepcopy(torch_calls: TorchCalls, tensor: Tensor, memo: Any) -> Any:
    """Copy the tensor, and set the device of the copy: the dispatch mode does not see this copy."""
    out = Tensor.__deepcopy__(tensor, memo)
    torch_calls.sim.placements.put(out, torch_calls.sim.placements.device(tensor))
    return out


def _on_host_only(original: Any, torch_calls: TorchCalls, tensor: Tensor, *rest: Any, **kwargs: Any) -> Any:
    """Call a function that is simulated only for CPU tensors. A tensor on CUDA stops the analysis at the line."""
    if _is_on("cuda", torch_calls, tensor):
        _refuse(f"{name_of(original)} of a tensor on CUDA")
    return original(tensor, *rest, **kwargs)


def _unpacked(torch_calls: TorchCalls, *args: Any, **kwargs: Any) -> Any:
    """Return padded sequences and their lengths. The lengths are on the CPU, which the dispatch mode does not see."""
    out = torch_calls._called(_UNPACKED, args, kwargs)
    torch_calls.sim.placements.put(out[1], CPU)
    return out


def _set_grad(torch_calls: TorchCalls, tensor: Tensor, gradient: Any) -> None:
    """Assign `tensor.grad`. torch accepts only a gradient on the tensor's device."""
    types = (getattr(torch_calls.device_of(value), "type", None) for value in (gradient, tensor))
    text = rules.OTHER_GRAD.format(*types)
    torch_calls.sim.raise_if_elsewhere("gradient", gradient, torch_calls.device_of(tensor), "Tensor.grad", text)
    tensor.grad = gradient


def _named_device(value: Any) -> Any:
    """Return the device for a number, as in `module.to(0)`: a CPU build of torch accepts no number."""
    return devices.device_of(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """The treatment of devices by a torch function. By default, all tensors and results are on one device."""

    answer: Callable[..., Any] | None = None  # the replacement of the function
    # Returns the names and values of the arguments that the host reads.
    read: Callable[..., list[tuple[str, Any]]] | None = None
    type_error: str | None = None  # torch's text, if the host's read raises a TypeError
    alike: str | None = None  # torch's text, if the function compares the devices of its tensors
    first: int | None = None  # only this many tensors determine the device of the results; None for all
    # The function copies its inputs: to the device of the first argument, of the result, or of `out`.
    copies: bool = False
    carries: bool = False
    fills_any: bool = False
    of_data: bool = False  # a tensor among the arguments is data, not a size as in `torch.arange(n)`
    sparse_at: int | None = None  # the index of the argument with a sparse tensor's values


_OTHER = FunctionRule()
# A function that this torch lacks is None, a key of FUNCTION_RULES that matches no call.
_PADDED, _UNPACKED = map(torch_private.find, ("torch._C._nn.pad_sequence", "torch._pad_packed_sequence"))
_JAGGED = torch_private.find("torch._nested_view_from_jagged")
_printed, _parsed = map(torch_private.find, ("torch._tensor_str._str", "torch._C._nn._parse_to"))
_SECTIONS = "tensor_indices_or_sections"
_ANSWERS: dict[Any, Callable[..., Any]] = {
    _T.device.__get__: _device_get,
    **{getattr(_T, f"is_{kind}").__get__: functools.partial(_is_on, kind) for kind in ("cpu", *SIMULATED)},
    _T.get_device: _get_device,
    _T.grad.__set__: _set_grad,
    _T.to: _to,
    _T.cuda: lambda torch_calls, tensor, device=None, *rest, **kwargs: torch_calls.move(
        tensor, devices.device_of("cuda" if device is None else device) or CPU
    ),
    _T.cpu: lambda torch_calls, tensor, *rest, memory_format=None: torch_calls.move(
        tensor, CPU, memory_format=memory_format
    ),
    _T.pin_memory: _pin,
    _T.is_shared: lambda torch_calls, tensor: _is_on("cuda", torch_calls, tensor) or tensor.is_shared(),
    _T.is_pinned: lambda torch_calls, tensor, *rest, **kwargs: torch_calls.sim.placements.is_pinned(tensor),
    _T.tolist: _tolist,
    _T.__format__: _format,
    _T.new: _new,
    _T.__dlpack__: functools.partial(_on_host_only, _T.__dlpack__),
    _T.new_tensor: functools.partial(_beside, _T.new_tensor),
    _T.type: _type,
    _T.type_as: _to,
    _T.__deepcopy__: _deepcopy,
    _UNPACKED: _unpacked,
    _printed and _T.__repr__: lambda torch_calls, tensor, **kwargs: torch_calls.again(_printed)(tensor, **kwargs),
    # `Module.to` parses its arguments with this function, which has a `device` but creates no tensor.
    _parsed: lambda torch_calls, *args, **kwargs: _parsed(
        *map(_named_device, args), **{name: _named_device(value) for name, value in kwargs.items()}
    ),
}
FUNCTION_RULES: dict[Any, FunctionRule] = {
    **{func: FunctionRule(answer=answer) for func, answer in _ANSWERS.items()},
    _T.numpy: FunctionRule(
        read=lambda x, *_, force=False, **__: [] if force else [("self", x)], type_error=rules.NO_NUMPY
    ),
    _T.__array__: FunctionRule(read=lambda x, *_, **__: [("self", x)], type_error=rules.NO_NUMPY),
    torch.set_rng_state: FunctionRule(type_error=rules.NO_STATE),
    **dict.fromkeys(
        (torch.tensor_split, _T.tensor_split),
        FunctionRule(read=lambda x, places=None, *_, **more: [(_SECTIONS, more.get(_SECTIONS, places))]),
    ),
    **dict.fromkeys((torch.meshgrid, torch.cartesian_prod), FunctionRule(alike=rules.OTHER_GRID)),
    **dict.fromkeys(
        (torch.quantile, _T.quantile, torch.nanquantile, _T.nanquantile), FunctionRule(alike=rules.OTHER_QUANTILE)
    ),
    _JAGGED: FunctionRule(alike=rules.OTHER_OFFSETS, first=2),
    **dict.fromkeys((torch.bernoulli, torch.normal), FunctionRule(fills_any=True)),
    _PADDED: FunctionRule(first=1),
    **dict.fromkeys((_T.copy_, _T.__setitem__), FunctionRule(copies=True)),
    # Lengths and targets may lie on the CPU.
    **dict.fromkeys((torch.ctc_loss, torch.nn.functional.ctc_loss), FunctionRule(carries=True)),
    **dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray), FunctionRule(of_data=True)),
    torch.sparse_coo_tensor: FunctionRule(of_data=True, sparse_at=1),
    **{
        getattr(torch, f"sparse_{layout}_tensor"): FunctionRule(of_data=True, sparse_at=2)
        for layout in ("compressed", "csr", "csc", "bsr", "bsc")
    },
}


class _Generator(torch.Generator):  # type: ignore[misc]
    """A generator on the CPU that reports the requested device."""

    device = CPU  # hides torch's property of this name
    made_at: Place | None = None

    def __new__(cls, device: Any = "cpu") -> _Generator:
        generator: _Generator = _ORIGINAL_GENERATOR.__new__(cls)
        generator.device, generator.made_at = devices.device_of(device) or CPU, devices.here()
        return generator

    def get_state(self) -> Tensor:
        state = super().get_state()
        return state if self.device == CPU else _state_of_cuda(state)

    def set_state(self, new_state: Tensor) -> Any:
        """Raise RuntimeError as torch does if the state is from a generator of another type of device."""
        return super().set_state(new_state if self.device == CPU else _state_of_host(new_state))


class _AnyGenerator(type):
    """The class of `torch.Generator` while the engine runs. Calls create a `_Generator`."""

    def __call__(cls, device: Any = "cpu") -> Any:
        return _Generator(device)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _ORIGINAL_GENERATOR)


_ORIGINAL_GENERATOR = torch.Generator
# The bytes of a CUDA generator's state: seed and offset. The simulated state has the CPU generator's state before them.
_STATE_BYTES = 16


def _state_of_cuda(state: Tensor) -> Tensor:
    return torch.cat([state, torch.zeros(_STATE_BYTES, dtype=torch.uint8, device=CPU)])


def _state_of_host(state: Tensor) -> Tensor:
    """Return the CPU generator's state in a CUDA state. A state from a real GPU has none: return the current one."""
    current = torch.get_rng_state()
    if state.numel() not in (_STATE_BYTES, current.numel() + _STATE_BYTES):
        raise RuntimeError("RNG state is wrong size")
    return state[:-_STATE_BYTES] if state.numel() > _STATE_BYTES else current


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _of_any_device(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that ignores its arguments, usually a device, and calls `answer`."""
    return lambda *args, **kwargs: answer()


class _Stream(contextlib.AbstractContextManager[Any]):
    """A stream of a simulated device. Its work is always complete."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = devices.device_of("cuda")

    def __exit__(self, *raised: object) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    synchronize = functools.partialmethod(_constant(None))
    record = wait = wait_event = wait_stream = synchronize
    query = functools.partialmethod(_constant(True))
    is_capturing = functools.partialmethod(_constant(False))
    elapsed_time = functools.partialmethod(_constant(0.0))  # simulated work takes no time


class _Event(_Stream):
    """An event: a program may test the type. `run` replaces `synchronize` in each class to count its calls."""

    synchronize = functools.partialmethod(_constant(None))


class _OnDevice(contextlib.ContextDecorator):
    """`with torch.cuda.device(1):`, also with a tensor as the argument."""

    sim: Simulation

    def __init__(self, device: Any) -> None:
        # -1 is `get_device` of a tensor on the CPU and names no device.
        named = device.device if isinstance(device, Tensor) else devices.device_of(None if device == -1 else device)
        self.device = named if named is not None and named.type == "cuda" else None

    def __enter__(self) -> None:
        self.before = CURRENT.index
        _set_device(self.sim, self.device)

    def __exit__(self, *raised: object) -> None:
        CURRENT.index = self.before


def _set_device(sim: Simulation, device: Any) -> None:  # torch's name of the argument
    if (chosen := devices.device_of(device)) is not None and chosen.index is not None:
        sim.use(chosen)
        CURRENT.index = chosen.index


def _cuda_functions(sim: Simulation) -> dict[str, Any]:
    gpu = sim.gpu
    major, minor = gpu.capability
    properties = types.SimpleNamespace(name=gpu.name, major=major, minor=minor, uuid=None, warp_size=32)
    properties.multi_processor_count, properties.total_memory = gpu.multiprocessors, gpu.readable_bytes
    silent = (
        *("synchronize", "init", "_lazy_init", "ipc_collect", "set_stream", "set_sync_debug_mode"),
        *("manual_seed", "manual_seed_all", "seed", "seed_all"),
        *("set_per_process_memory_fraction", "_set_stream_by_id"),
    )
    answers = {
        **dict.fromkeys(silent, _constant(None)),
        **dict.fromkeys(("utilization", "get_sync_debug_mode", "initial_seed", "memory_usage"), _constant(0)),
        **dict.fromkeys(("temperature", "power_draw", "clock_rate", "device_memory_used"), _constant(0)),
        **dict.fromkeys(("is_available", "is_bf16_supported"), _constant(True)),
        **_memory_functions(sim.placements.memory, gpu.readable_bytes),
        "is_initialized": lambda: sim.used_by is not None,
        "is_current_stream_capturing": _constant(False),
        "device_count": _constant(sim.count or 1),
        "current_device": lambda: CURRENT.index,
        "set_device": functools.partial(_set_device, sim),
        **dict.fromkeys(("device", "device_of"), type("device", (_OnDevice,), {"sim": sim})),
        "get_device_name": _constant(gpu.name),
        "get_device_capability": _constant(gpu.capability),
        "get_device_properties": _constant(properties),
        "get_arch_list": _constant([f"sm_{major}{minor}"]),
        "get_rng_state": _of_any_device(lambda: _state_of_cuda(torch.get_rng_state())),
        "get_rng_state_all": lambda: [_state_of_cuda(torch.get_rng_state())],
        "default_generators": tuple(_Generator(f"cuda:{index}") for index in range(sim.count or 1)),
        "Event": _Event,
        **dict.fromkeys(("Stream", "ExternalStream", "current_stream", "default_stream", "stream"), _Stream),
    }
    # Functions that start CUDA in the real `torch.cuda`.
    starting = (
        *("init", "_lazy_init", "synchronize", "ipc_collect", "current_device", "current_stream", "default_stream"),
        *("get_device_name", "get_device_capability", "get_device_properties", "mem_get_info"),
        *("get_rng_state", "get_rng_state_all", "initial_seed"),
    )

    def started(answer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        named = (argument for argument in (*args, *kwargs.values()) if isinstance(argument, (int, str, torch.device)))
        sim.use(devices.device_of(next(named, None)))
        return answer(*args, **kwargs)

    return {**answers, **{name: functools.partial(started, answers[name]) for name in starting}}


def _memory_functions(memory: Memory[Place], total: int) -> dict[str, Any]:
    """Return the functions of `torch.cuda` that report the counted memory."""
    current = _of_any_device(lambda: memory.allocated)
    peak = _of_any_device(lambda: memory.peak_since_reset)

    def reset() -> None:
        memory.peak_since_reset = memory.allocated

    def stats() -> dict[str, int]:
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        sizes = {"current": memory.allocated, "peak": memory.peak_since_reset}
        values = {f"{kind}.all.{when}": size for kind in kinds for when, size in sizes.items()}
        return {**values, "num_alloc_retries": 0, "num_ooms": 0}

    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), current),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), peak),
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _of_any_device(reset)
        ),
        **dict.fromkeys(
            ("mem_get_info", "get_memory_info"), _of_any_device(lambda: (max(total - memory.allocated, 0), total))
        ),
        **dict.fromkeys(("empty_cache", "reset_accumulated_memory_stats"), _constant(None)),
        "memory_stats": _of_any_device(stats),
        **dict.fromkeys(("memory_summary", "list_gpu_processes"), _constant("")),
    }


def _patches(torch_calls: TorchCalls) -> list[tuple[Any, str, Any]]:
    sim, clear = torch_calls.sim, torch.clear_autocast_cache
    of_memory = _memory_functions(sim.placements.memory, sim.gpu.readable_bytes)
    of_accelerators = {
        "is_available": _constant(True),
        "device_count": _constant(sim.count or 1),
        "current_accelerator": _constant(torch.device("cuda")),
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: CURRENT.index),
        **dict.fromkeys(("set_device_index", "set_device_idx"), functools.partial(_set_device, sim)),
        "current_stream": _Stream,
        "device_index": type("device_index", (_OnDevice,), {"sim": sim}),
        **dict.fromkeys(("set_stream", "synchronize"), _constant(None)),
    }

    def uncast() -> None:  # torch calls this at the end of a region of autocast
        sim.casts.clear()
        clear()

    patches: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, value) for name, value in _cuda_functions(sim).items()),
        *(
            (owner, name, value)
            for owner in (torch.cuda.memory, torch.accelerator)
            for name, value in of_memory.items()
        ),
        *((torch.accelerator, name, value) for name, value in of_accelerators.items()),
        *((torch.cuda.nvtx, name, _constant(None)) for name in ("range_push", "range_pop", "mark")),
        (torch.backends.cudnn, "is_acceptable", _constant(False)),
        (torch.cuda.nccl, "version", _constant((2, 0, 0))),  # `torch.distributed` logs this version with an error
        # DataParallel's copies become moves that autograd follows.
        (torch_private.find("torch.nn.parallel._functions.Scatter"), "apply", staticmethod(_scattered)),
        (torch_private.find("torch.nn.parallel._functions.Broadcast"), "apply", staticmethod(_broadcast)),
        (torch_private.find("torch.nn.parallel._functions.Gather"), "apply", staticmethod(_gathered)),
        (torch.nn.parallel.comm, "broadcast_coalesced", lambda xs, gpus, *_: [_broadcast([gpu], *xs) for gpu in gpus]),
        # `record_stream` parses its arguments before it calls the mode, and C++ does not accept a simulated stream.
        (torch.Tensor, "record_stream", _constant(None)),
        (torch, "clear_autocast_cache", uncast),
        (torch, "Generator", _AnyGenerator("Generator", (), {})),
        (torch.UntypedStorage, "cuda", functools.partialmethod(engine.to_device, sim)),
        (torch.UntypedStorage, "__new__", functools.partial(engine.new_storage, sim)),
        (torch.UntypedStorage, "device", property(functools.partial(engine.device_of_storage, sim))),
        *engine.of_files(sim),
        (torch.jit, "load", functools.partial(_refuse, "torch.jit.load")),
        *(
            (owner, "to_dlpack", functools.partial(_on_host_only, owner.to_dlpack, torch_calls))
            for owner in (torch, torch.utils.dlpack)
        ),
        *kernels.patches(sim),
    ]
    begin, start = threading.Thread._bootstrap_inner, _thread.start_new_thread  # type: ignore[attr-defined]

    def begun(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a thread of the program in its own torch modes, because a torch mode applies to one thread only."""
        with kernels.autocast_here(), torch_calls, Dispatch(sim):
            function(*args, **kwargs)

    set_state = torch.set_rng_state

    def restoring(original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which now refuses a state that is not on the host."""

        def restored(*args: Any, **kwargs: Any) -> Any:
            torch_calls.check_host(set_state, [("new_state", state) for state in tensors_in([*args, *kwargs.values()])])
            return original(*args, **kwargs)

        return restored

    def checking(*args: Any, **kwargs: Any) -> None:
        mapped(_state_of_host, (args, kwargs))

    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def loaded(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        load(optimizer, *args, **kwargs)
        origin = Origin("state", f"a restored state of {type(optimizer).__name__}", devices.here())
        for tensor in (value for state in optimizer.state.values() for value in tensors_in([*state.values()])):
            if torch_calls.device_of(tensor) == CPU:
                sim.placements.put(tensor, CPU, origin)

    def backward(run: Any, outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the backward pass. A gradient must be on its output's device; a 0-dim gradient moves there."""
        moved = []
        for index, (gradient, device) in enumerate(zip(gradients, map(torch_calls.device_of, outputs), strict=True)):
            is_number = isinstance(gradient, Tensor) and not gradient.dim()
            moved.append(gradient.to(device) if is_number and device else gradient)
            with UNSEEN():
                text = f"invalid gradient at index {index} - expected device {device} but got {{}}"
                sim.raise_if_elsewhere("gradient", moved[-1], device, "backward", text)
        return run(outputs, tuple(moved), *args, **kwargs)

    return [
        *patches,
        *((owner, "set_rng_state", restoring(set_state)) for owner in (torch, torch.random)),
        *((torch.cuda, name, restoring(checking)) for name in ("set_rng_state", "set_rng_state_all")),
        (_Generator, "set_state", restoring(_Generator.set_state)),
        (torch.optim.Optimizer, "load_state_dict", loaded),
        *torch_private.replacing(
            "torch._C._group_tensors_by_device_and_dtype", functools.partial(_grouped, torch_calls)
        ),
        (threading.Thread, "_bootstrap_inner", functools.partialmethod(lambda thread: begun(begin, thread))),
        (_thread, "start_new_thread", lambda function, *rest: start(functools.partial(begun, function), *rest)),
        # The backward pass runs the user's hooks, checkpoints and functions, as does the saving of tensors for it.
        *torch_private.replacing(
            "torch.autograd._engine_run_backward", lambda run: torch_calls.again(functools.partial(backward, run))
        ),
        *torch_private.replacing(
            "torch._C._autograd._push_saved_tensors_default_hooks",
            lambda push: lambda pack, unpack: push(torch_calls.again(pack), torch_calls.again(unpack)),
        ),
    ]


def _grouped(torch_calls: TorchCalls, original: Any) -> Callable[..., dict[Any, Any]]:
    """Group lists of tensors by dtype and by the simulated device of the first list's tensors, as torch does."""

    def grouped(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
        placed = [torch_calls.device_of(tensor) for tensor in lists[0]]
        groups = {}
        for device in dict.fromkeys(placed):
            rows = [index for index, other in enumerate(placed) if other == device]
            selected = [[column[index] for index in rows] if column else column for column in lists]
            for (real, dtype), (tensors, indices) in original(selected, with_indices).items():
                groups[device or real, dtype] = (tensors, [rows[index] for index in indices])
        return groups

    return grouped


def _scattered(gpus: Any, sizes: Any, dim: int, tensor: Tensor) -> tuple[Tensor, ...]:
    pairs = zip(gpus, tensor.chunk(len(gpus), dim), strict=False)
    return tuple(chunk.to(devices.device_of(gpu)) for gpu, chunk in pairs)


def _broadcast(gpus: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.to(devices.device_of(gpu)) for gpu in gpus for tensor in tensors)


def _gathered(target: Any, dim: int, *tensors: Tensor) -> Tensor:
    home = CPU if target in (-1, "cpu") else devices.device_of(target)
    return torch.cat([tensor.to(home) if tensor.dim() else tensor.to(home).unsqueeze(0) for tensor in tensors], dim)


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Stop the analysis at the line that calls a function which is not simulated."""
    raise NotImplementedError(f"{name} is not simulated")


@contextlib.contextmanager
def simulated(sim: Simulation) -> Iterator[TorchCalls]:
    """Simulate a GPU inside the `with` block: tensors report their devices in `sim`, and torch reports a GPU."""
    # The compiler refuses functions that were replaced before it was loaded.
    import_compiler()
    torch_calls = TorchCalls(sim)
    CURRENT.index = 0
    with replaced(_patches(torch_calls)), kernels.autocasting(sim), torch_calls, Dispatch(sim):
        yield torch_calls
