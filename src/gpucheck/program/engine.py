"""Simulate devices: CPU tensors with true values report a GPU as their device.

The function mode (`simulated_cuda`) sees the program's calls to torch. The dispatch mode in this file sees every
operation below these calls, judges the operands' devices, and records the results' devices. An unknown device never
causes a finding.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gpucheck.machine import torch_private
from gpucheck.program import rules
from gpucheck.program import simulated_devices as devices
from gpucheck.program.options import SimulatedGpu
from gpucheck.program.simulated_devices import COUNTED, CPU, SIMULATED, Origin, Place, Placements
from gpucheck.report.results.model import DeviceMismatchEntry, MismatchedTensor, Phase
from gpucheck.report.results.run import AssumedValue

# The number of temporary tensors, each as large as the first operand. A `*_loss` needs them only for its sum or mean.
_TEMPORARIES = {
    **dict.fromkeys(("aten::_softmax_backward_data", "aten::logsumexp"), 1),
    **dict.fromkeys(("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"), 1),
    "aten::binary_cross_entropy_with_logits": 2,
}
# The index of a reduction's argument that has the dimensions.
_DIMS_AT = {"aten::sum": 1, "aten::mean": 1, "aten::amax": 1, "aten::amin": 1, "aten::linalg_vector_norm": 2}
# A sort of indices takes this many bytes for each: two copies of keys and values, and CUB's temporary memory.
_SORT_BYTES = 56
# Resident threads of a multiprocessor by compute capability (CUDA's programming guide); 2048 for others.
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}


def _temporary_bytes(name: str, args: Sequence[Any], out: Any, gpu: SimulatedGpu) -> int:
    """Return the temporary bytes of torch's own CUDA kernel, as observed with torch 2.9 and 2.11."""
    if name in _TEMPORARIES:
        is_unreduced_loss = isinstance(out, Tensor) and out.numel() == args[0].numel() and "loss" in name
        return 0 if is_unreduced_loss else _TEMPORARIES[name] * int(args[0].nbytes)
    if name in _DIMS_AT and isinstance(out, Tensor) and len(args) > _DIMS_AT[name] and args[_DIMS_AT[name]]:
        return _temporary_of_reduction(args[0], args[_DIMS_AT[name]], out, gpu)
    # The kernel sorts more than 3072 indices. For fewer indices it needs no temporary memory.
    is_embedding = name == "aten::embedding_dense_backward" and args[1].numel() > 3072
    if is_embedding or name == "aten::_embedding_bag_backward":
        indices = args[1].numel()
        runs = indices // 10 + min(indices, out.shape[0])  # the float32 sums of runs of ten equal indices
        return int(runs * out.shape[1] * max(4, out.element_size()) + _SORT_BYTES * indices)
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_") and len(args) > 3 and args[3]:
        return _SORT_BYTES * max((index.numel() for index in args[1] if index is not None), default=0)
    return 0


def _temporary_of_reduction(operand: Tensor, dims: Sequence[int], out: Tensor, gpu: SimulatedGpu) -> int:
    """Return the bytes of the partial results if blocks share the rows of a matrix, as for the gradient of a bias (see
    setReduceConfig in torch's Reduce.cuh). A reduction of the innermost dimension counts as 0."""
    if operand.is_nested or operand.layout != torch.strided or not operand.numel():
        return 0
    wide_dims = [dim for dim in range(operand.dim()) if operand.shape[dim] > 1]
    outputs = out.numel()
    if not wide_dims or (inner := min(wide_dims, key=operand.stride)) in {dim % operand.dim() for dim in dims}:
        return 0
    rows, length = operand.numel() // outputs, operand.shape[inner]
    vector = next(count for count in (4, 2, 1) if length % count == 0) if operand.stride(inner) == 1 else 1
    threads = 512 // vector
    across, down = (min(threads, 1 << (size.bit_length() - 1)) for size in (outputs // vector, rows))
    width = min(across, 32)
    height = min(down, threads // width)
    width = min(across, threads // height)
    if rows < min(height * 16, 256):
        return 0
    per_thread, grid = -(-rows // height), -(-(outputs // vector) // width)
    blocks = gpu.multiprocessors * (_THREADS.get(gpu.capability, 2048) // (width * height))
    if per_thread < 256 or grid > blocks:
        return 0
    shares = max(min(-(-blocks // grid), -(-per_thread // 16)), -(-per_thread // 256))
    return max(4, out.element_size()) * outputs * shares * width * vector if shares > 1 else 0


# The place and the operation of a mismatch, and the index of its bytecode instruction in case a line repeats it.
Site = tuple[Place | None, str, int | None]
Operands = list[tuple[rules.Operand, Tensor]]
Error = type[Exception]


@dataclass(slots=True)
class Mismatch:
    """Operands on another device than an operation needs."""

    site: Site
    entry: DeviceMismatchEntry
    assumed: int  # the number of values that were assumed before the mismatch
    times: int = 0


class DeviceMismatch(Exception):
    """The simulation's form of CUDA's error. `text` is torch's message, if known."""

    def __init__(self, mismatch: Mismatch, text: str | None = None) -> None:
        entry = mismatch.entry
        placed = sorted({operand.device for operand in entry.operands})
        found = " and ".join(placed)
        wrong = ", ".join(operand.name for operand in entry.operands if operand.is_wrong)
        if len(placed) > 1:
            message = f"{rules.APART}, but found at least two devices, {found}! ({entry.operation})"
        else:
            message = f"{entry.operation} needs {wrong} on {entry.expected}{rules.MISPLACED} {found}"
        super().__init__(text or message)
        self.mismatch = mismatch


# A program that catches CUDA's built-in error also catches these subclasses. A traceback shows the built-in name.
_RAISED: dict[Error, Any] = {
    kind: type(kind.__name__, (DeviceMismatch, kind), {"__module__": "builtins"}) for kind in (RuntimeError, TypeError)
}


class PerThread(threading.local):
    def __init__(self) -> None:
        # The running calls of torch, each with the device of the tensors that the call creates; None if unknown.
        self.calls: list[tuple[str, torch.device | None]] = []
        self.handling = 0  # the number of calls that the function mode handles now
        # Whether torch runs an operation as Python code. The program did not request the copies of this code.
        self.inside = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before


# torch raises CUDA's errors as this class since version 2.8.
_ACCELERATOR_ERROR: Any = getattr(torch, "AcceleratorError", RuntimeError)
# A line that reads more values waits for a value in a loop. Two updates in reinforcement learning read thousands.
MOST_ASSUMED = 5000


@dataclass(slots=True)
class Simulation:
    placements: Placements = field(default_factory=Placements)
    # Mismatches by site. The sites in `tolerated` raise no error. `last` was raised last.
    refused: dict[Site, Mismatch] = field(default_factory=dict)
    tolerated: set[Site] = field(default_factory=set)
    last: Mismatch | None = None
    phase: Phase = "step"
    mixed: Counter[tuple[Place | None, str]] = field(default_factory=Counter)  # errors about dtypes, by line and text
    gpu: SimulatedGpu = field(default_factory=SimulatedGpu)
    count: int | None = None  # the number of GPUs; None allows any number
    # Without values, tensors on a simulated device are meta tensors. `asked_at` counts the assumed values by line.
    has_values: bool = True
    assumed: list[AssumedValue] = field(default_factory=list)
    asked_at: Counter[Place | None] = field(default_factory=Counter)
    unjudged: dict[str, Place | None] = field(default_factory=dict)  # operations of other libraries, with first lines
    names: dict[int, str] = field(default_factory=dict)  # the qualified names of modules, by id
    met: set[Origin | None] | None = None  # the origins of all operands so far; None collects nothing
    made_by: int = field(default_factory=os.getpid)
    used_by: int | None = None  # the PID of the process that first used a device
    # This callback gets the line and text of each error in a forked process, whose own records are lost.
    in_fork: Callable[[Place | None, str], None] = lambda place, text: None
    here: PerThread = field(default_factory=PerThread)
    casts: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)  # autocast's casts in this region

    @contextlib.contextmanager
    def calling(self, name: str, device: torch.device | None) -> Iterator[None]:
        """Create tensors on `device` until the end of the block, unless a call names another device."""
        # CPU autocast would also cast tensors of a simulated GPU, which C++ sees on the CPU.
        is_apart = device != CPU and torch.is_autocast_enabled("cpu")
        self.here.calls.append((name, device))
        try:
            with without("AutocastCPU") if is_apart else contextlib.nullcontext():
                yield
        finally:
            self.here.calls.pop()

    def home(self, device: torch.device) -> torch.device:
        """Return the real device of a tensor that reports `device`."""
        return CPU if self.has_values or device == CPU else torch.device("meta")

    def refuse(
        self, verdict: rules.Placed, operands: Operands, called: str, text: str | None, kind: Error = RuntimeError
    ) -> None:
        """Raise CUDA's error as a `kind`, unless the site is tolerated. `text` is torch's message, if known."""
        frame = devices.user_frame(sys._getframe(1))
        expected = verdict.expected or "cpu"
        place = devices.place_of(frame) if frame is not None else None
        site = place, called, frame.f_lasti if frame is not None else None
        if site in self.tolerated:
            return
        if site not in self.refused:
            stale = devices.stale(frame, expected, self.placements) if expected != "cpu" else None
            expected, cached = stale or (expected, None)
            peer, own = devices.peer_and_device(frame, expected, self.placements) if frame is not None else (None, None)
            modules = (self.names.get(id(owner)) for owner, _ in devices.methods(sys._getframe(1)))

            def described(operand: rules.Operand, tensor: Tensor) -> MismatchedTensor:
                is_wrong, variable, device = operand in verdict.wrong, None, None
                origin = self.placements.of(tensor).origin
                if frame is not None and operand.device != expected:
                    origin, variable, device = devices.cause(
                        frame, tensor, expected, self.placements, has_name=not operand.written
                    )
                if cached is not None:  # the cached tensor is wrong, and not the tensor that moved with the module
                    is_wrong = operand.device not in (expected, None)
                    origin, variable = (cached, f"self.{cached.what}") if is_wrong else (origin, variable)
                return MismatchedTensor(
                    name=operand.name,
                    device=operand.device or "unknown",
                    shape=() if tensor.is_nested else tuple(tensor.shape),  # a nested tensor has no shape
                    is_wrong=is_wrong,
                    origin=origin.kind if origin is not None else None,
                    origin_name=origin.what if origin is not None else None,
                    origin_place=devices.text_of(origin.place) if origin is not None else None,
                    variable=variable,
                    maker_device=device,
                )

            entry = DeviceMismatchEntry(
                operation=called,
                module=next((name for name in modules if name is not None), None),
                place=devices.text_of(place),
                phase=self.phase,
                expected=expected,
                operands=tuple(described(operand, tensor) for operand, tensor in dict(operands).items()),
                peer=peer,
                own_device=own,
            )
            self.refused[site] = Mismatch(site, entry, len(self.assumed))
        self.last = self.refused[site]
        self.last.times += 1
        if self.is_forked():
            # A worker process sends the error's class name to its parent, which knows only built-in classes.
            self._raise_in_fork(place, str(DeviceMismatch(self.last, text)), kind)
        # A variable for the error would be a reference cycle with its traceback, and keep the operands alive.
        raise _RAISED[kind](self.last, text)

    def raise_if_elsewhere(
        self,
        name: str,
        tensor: Any,
        device: torch.device | None,
        operation: str,
        text: str | None,
        kind: Error = RuntimeError,
    ) -> None:
        """Raise torch's `text` if the tensor is not on `device`. The tensor's own device replaces `{}` in the text."""
        actual = self.placements.device(tensor) if isinstance(tensor, Tensor) else None
        if actual is not None and device is not None and actual != device and "meta" not in (actual.type, device.type):
            operand = rules.Operand(name, str(actual), tensor.dim())
            verdict = rules.Placed(str(device), (operand,), str(device))
            self.refuse(verdict, [(operand, tensor)], operation, text and text.format(actual), kind)

    def _raise_in_fork(self, place: Place | None, text: str, kind: Error = RuntimeError) -> NoReturn:
        self.in_fork(place, text)
        raise kind(text)

    def is_forked(self) -> bool:
        return self.made_by != os.getpid()

    def use(self, device: torch.device | None = None, *, by_kernel: bool = False) -> None:
        """Record the use of a device. Raises CUDA's errors for a missing GPU, and for a fork after the parent's use."""
        if self.used_by is None:
            self.used_by = os.getpid()
        elif self.used_by != os.getpid():
            self._raise_in_fork(devices.here(), rules.FORKED_KERNEL if by_kernel else rules.FORKED)
        if self.count is not None and device is not None and device.type == "cuda" and device.index >= self.count:
            mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            visible = sum(bool(entry.strip()) for entry in mask.split(","))
            if 0 < visible <= device.index:
                raise _ACCELERATOR_ERROR(rules.HIDDEN_GPU.format(device.index, mask, visible))
            raise _ACCELERATOR_ERROR(rules.NO_SUCH_GPU.format(device.index + 1))

    def note_dtypes(self, error: RuntimeError) -> None:
        """Record an error about operands of different dtypes: the program may catch the error."""
        if rules.MIXED_DTYPES.search(str(error)):
            place, text = devices.here(), " ".join(str(error).split())
            self.mixed[place, text] += 1
            if self.is_forked():
                self.in_fork(place, text)

    def stands_in(self, tensor: Tensor) -> bool:
        """Return whether a meta tensor represents a tensor without values on a simulated device."""
        return not self.has_values and tensor.is_meta and str(self.placements.device(tensor)) != "meta"

    def assume(self, what: str, value: Any) -> Any:
        """Return `value` for an unknown value that the program reads. NotImplementedError ends endless reads."""
        place = devices.here()
        self.asked_at[place] += 1
        if self.asked_at[place] > MOST_ASSUMED:
            raise NotImplementedError(f"the program read {MOST_ASSUMED} values; a loop seems to wait for one of them")
        self.assumed.append(AssumedValue(what=what, place=devices.text_of(place)))
        return value


UNSEEN = torch_private.need("torch._C.DisableTorchFunction")
TorchDispatchMode: Any = torch_private.need("torch.utils._python_dispatch.TorchDispatchMode")
_OPERATION: Any = torch_private.need("torch._ops.OpOverload")
torch_private.need("torch.ops.aten.lift_fresh.default._schema")
_is_wrapper = torch_private.find("torch.utils._python_dispatch.is_traceable_wrapper_subclass", lambda tensor: False)
_LIFT_FRESH = torch.ops.aten.lift_fresh.default


@cache
def _arguments(func: Any) -> tuple[tuple[str, bool], ...]:
    """Return the names of an operation's arguments, each with whether the operation writes to the argument."""
    arguments = func._schema.arguments
    return tuple((argument.name, bool(argument.alias_info and argument.alias_info.is_write)) for argument in arguments)


def _operands(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, bool, Tensor]]:
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


def _with_tensors(func: Any, args: Any) -> Any:
    """Return the arguments. TorchScript may pass only numbers: a number at a tensor's position becomes a tensor."""
    if not args or not isinstance(args[0], (int, float, complex)) or any(isinstance(value, Tensor) for value in args):
        return args
    typed = zip(args, func._schema.arguments, strict=False)
    return tuple(torch.tensor(value, device=CPU) if str(entry.type) == "Tensor" else value for value, entry in typed)


def _is_on_cuda(item: rules.Placed | rules.Operand) -> bool:
    return item.device is not None and item.device.startswith("cuda")


def _check_kernel(func: Any, operands: Sequence[tuple[str, bool, Tensor]]) -> None:
    """Raise torch's error if the CPU has a kernel for the operands' dtype and CUDA has none."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")  # an in-place operation has the same kernel
    kernel, refused = rules.NO_KERNELS.get(name, ("", ()))
    if not kernel or operands[0][2].layout != torch.strided:
        return
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for _, _, tensor in operands[:2]))
    if all(tensor.numel() for _, _, tensor in operands) and str(dtype).removeprefix("torch.") in refused:
        type_name = torch.empty(0, dtype=dtype, device=CPU).type().rpartition(".")[2].removesuffix("Tensor")
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{type_name}'")


def _check_dtypes(func: Any, operands: Sequence[tuple[str, bool, Tensor]]) -> None:
    """Raise CUDA's error if an operation needs operands of one dtype and gets several."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name in rules.ONE_DTYPE and all(argument != "out_dtype" for argument, _ in _arguments(func)):
        dtypes = [tensor.dtype for argument, _, tensor in operands if not argument.startswith("ind")]
        if other := next((dtype for dtype in dtypes if dtype != dtypes[0]), None):
            raise RuntimeError(rules.OTHER_DTYPE.format(name, dtypes[0], other))


def without(key: str) -> Any:
    """Return a context in which operations skip the kernels of this dispatch key of torch."""
    names = ("_ExcludeDispatchKeyGuard", "DispatchKeySet", "DispatchKey")
    guard, keys, key_of = (torch_private.find(f"torch._C.{name}") for name in names)
    return guard(keys(getattr(key_of, key))) if None not in (guard, keys, key_of) else contextlib.nullcontext()


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a call's arguments, in which `function` replaces each tensor, also in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return type(value)(mapped(function, item) for item in value) if type(value) in (list, tuple) else value


class Dispatch(TorchDispatchMode):  # type: ignore[misc]
    """Judges the devices of each operation's operands, and records the devices of the results."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self.sim = sim

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, _OPERATION):
            return func(*args, **kwargs)
        with UNSEEN():
            args = _with_tensors(func, args)
            # The result of `torch.tensor` inside torch's own code is on the device of the running call.
            is_data = func is _LIFT_FRESH and self.sim.here.handling > 0
            tensors = [] if is_data else list(_operands(func, args, kwargs))
            for argument in args if self.sim.has_values else ():
                if isinstance(argument, torch.UntypedStorage):  # a source must be on the tensor's device
                    tensors.append(("source", False, torch.empty(0, dtype=torch.uint8, device=CPU).set_(argument)))
            if any(_is_wrapper(tensor) for _, _, tensor in tensors):
                return NotImplemented  # torch calls this method again for the operations on the wrapped tensor
            verdict, operands = self._judged(func, tensors, kwargs)
            storages = [devices.storage_of(tensor) for _, tensor in operands]
        if not self.sim.has_values and any(self.sim.stands_in(tensor) for _, tensor in operands):
            with UNSEEN(), self.sim.here.entered():
                out = without_values(self.sim, func, args, kwargs)
        elif func.namespace in rules.JUDGED:
            with UNSEEN():  # the function mode has already seen this call
                out = func(*args, **kwargs)
        else:  # an operation of another library may call torch functions
            out = func(*args, **kwargs)
        if _is_on_cuda(verdict):
            _check_dtypes(func, tensors)
        if func._schema.name != "aten::set_":  # the result of `set_` has an existing storage
            with UNSEEN():
                self._note(out, verdict, operands, storages)
                if verdict.device == str(COUNTED):
                    self.sim.placements.memory.lend(_temporary_bytes(func._schema.name, args, out, self.sim.gpu))
        return out

    def _judged(self, func: Any, tensors: list[tuple[str, bool, Tensor]], kwargs: Any) -> tuple[rules.Placed, Any]:
        sim = self.sim
        for name, _, tensor in tensors if not sim.has_values else ():
            # C++ creates a tensor for a Python list of indices, on the device of the indexed tensor.
            if name.startswith("indices[") and str(sim.placements.device(tensor)) == "meta":
                sim.placements.put(tensor, sim.placements.device(tensors[0][2]))
        operands = [
            (rules.Operand(name, devices.text_of(sim.placements.device(tensor)), tensor.dim(), written), tensor)
            for name, written, tensor in tensors
        ]
        name = func._schema.name
        if not operands and sim.here.calls:  # a new tensor is on the device of the running call
            return rules.Placed(devices.text_of(sim.here.calls[-1][1])), operands
        if not operands:
            # C++ creates the tensor. Only TorchScript's `torch.ones(3)` and `torch.Tensor(3)` are certainly on the CPU.
            has_no_device = kwargs.get("device") is None and any(name == "device" for name, _ in _arguments(func))
            is_host = has_no_device or "Tensor(" in devices.source_line(devices.user_frame(sys._getframe(1)))
            return rules.Placed("cpu" if is_host else None), operands
        if sim.met is not None:
            sim.met.update(sim.placements.of(tensor).origin for _, tensor in operands)
        if sim.is_forked() and any(_is_on_cuda(operand) for operand, _ in operands):
            sim.use(by_kernel=True)
        if sim.here.calls and sim.here.calls[-1][0] == rules.SET_ITEM:
            name = rules.OF_SET_ITEM.get(name, name)
        verdict = rules.judge(name, [operand for operand, _ in operands])
        if not verdict.judged and name not in sim.unjudged:
            sim.unjudged[name] = devices.here()
        if verdict.wrong:
            called = sim.here.calls[-1][0] if sim.here.calls else name.partition("::")[2]
            sim.refuse(verdict, operands, called, None)
        if _is_on_cuda(verdict):
            _check_kernel(func, tensors)
        return verdict, operands

    def _note(self, out: Any, verdict: rules.Placed, operands: Any, storages: list[Any]) -> None:
        placements = self.sim.placements
        device = torch.device(verdict.device) if verdict.device is not None else None
        if device is not None:
            # An operand with dimensions and an unknown device is on the device of the operation.
            for operand, tensor in operands:
                if operand.device is None and tensor.dim() > 0 and tensor.device == CPU:
                    placements.put(tensor, device)
        origin = next(filter(None, (placements.of(tensor).origin for _, tensor in operands if device == CPU)), None)
        known = {id(storage) for storage in storages if storage is not None}
        for position, result in enumerate(out if isinstance(out, (list, tuple)) else (out,)):
            on_host = position in verdict.on_host
            for tensor in tensors_in(result):
                storage = devices.storage_of(tensor)
                is_new = storage is not None and id(storage) not in known and storage not in placements
                if is_new and (tensor.device == CPU or (tensor.is_meta and not self.sim.has_values)):
                    placements.put(tensor, CPU if on_host else device, None if on_host else origin)


# The sum or mean of these losses is a view that keeps the losses of all elements alive, except on meta.
_LOSSES = ("aten::mse_loss", "aten::smooth_l1_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss")
# In-place operations without a new result.
_IN_PLACE = re.compile(r"aten::(_amp_\w+_|_fused_\w+_)$")


def without_values(sim: Simulation, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on meta tensors of a simulated device. Shapes and dtypes are true; values are assumed."""
    if (name := func._schema.name) == "aten::_local_scalar_dense":
        return sim.assume("item", torch.zeros((), dtype=args[0].dtype).item())
    if name in ("aten::equal", "aten::is_nonzero"):
        return sim.assume("bool", False)
    if _IN_PLACE.match(name):
        return args[0] if func._schema.returns else None
    if name == "aten::copy_" and not args[0].is_meta:
        sim.assume("copy_", None)
        return args[0].zero_()
    if name == "aten::_to_copy" and str(kwargs.get("device")) == "cpu":
        sim.assume("cpu", None)
        return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
    if kwargs.get("generator") is not None:
        kwargs = {**kwargs, "generator": None}
    rule = rules.rule_of(name)
    host = rule.host if rule is not None else ()
    names = [argument for argument, _ in _arguments(func)]
    to_meta = lambda tensor: tensor.to("meta")  # noqa: E731
    meta_args = [value if names[index] in host else mapped(to_meta, value) for index, value in enumerate(args)]
    out = func(*meta_args, **mapped(to_meta, kwargs))
    if name in _LOSSES and out.numel() < meta_args[0].numel():
        return meta_args[0].new_empty(meta_args[0].numel()).as_strided(out.shape, out.stride())
    return out


def new_storage(sim: Simulation, storage_class: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Create a `torch.UntypedStorage` on a device. torch calls this also to copy tensors and to load files."""
    if (target := devices.device_of(device)) is None or target.type not in SIMULATED:
        return _BASE.__new__(storage_class, *args, **kwargs if device is None else {**kwargs, "device": device})
    return _on_simulated(sim, _BASE.__new__(storage_class, *args, **kwargs, device=sim.home(target)), target)


def _on_simulated(sim: Simulation, storage: Any, device: torch.device | None) -> Any:
    sim.use(device)
    sim.placements.put_storage(storage, device, None)
    return storage


def device_of_storage(sim: Simulation, storage: Any) -> Any:
    """Return `UntypedStorage.device`. Code that sends a storage to another process gets the real device. Code that
    loads a file without values gets the real device too, because its tensors accept no other storage."""
    real, device = _DEVICE_OF_STORAGE(storage), sim.placements.device_of_storage(storage)
    callers = sys._getframe(1), sys._getframe(2)  # the second frame is the caller of `is_cuda`
    is_sent = any(frame.f_globals["__name__"] == "torch.multiprocessing.reductions" for frame in callers)
    return real if device in (None, CPU) or is_sent or (real == CPU and not sim.has_values) else device


_BASE = torch_private.need("torch._C.StorageBase")
_DEVICE_OF_STORAGE = _BASE.device.__get__


def to_device(storage: Any, sim: Simulation, device: Any = None, non_blocking: bool = False) -> Any:
    """Answer `UntypedStorage.cuda`, which a user's `map_location` may call."""
    return _on_simulated(sim, storage.clone(), devices.device_of("cuda" if device is None else device))


def of_files(sim: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements of torch's functions that write the devices of tensors to a file, and read them."""

    def tag(storage: Any) -> str | None:
        device = sim.placements.device_of_storage(storage)
        return str(device) if device is not None and device.type in SIMULATED else None

    def restore(storage: Any, location: str) -> Any:
        if location.split(":")[0] not in SIMULATED:
            return None
        _on_simulated(sim, storage.untyped(), devices.device_of(location))
        return storage

    yield from torch_private.replacing(
        "torch.serialization._package_registry", lambda rows: [(-1, tag, restore), *rows]
    )


@contextlib.contextmanager
def replaced(patches: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace existing attributes until the end of the block. Each patch is an owner, a name and the new value."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, value))
        yield
