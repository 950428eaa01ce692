"""Record the simulated devices of CPU tensors, and find the lines and names that explain a tensor on a wrong device.

A placement belongs to a storage, so views share a device, and a write in place does not change the device.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.machine import torch_private
from gpucheck.program.run.memory_peaks import Lines, parts
from gpucheck.report.results.model import OriginKind
from gpucheck.work.storages import Memory

# torch.func's transforms wrap tensors.
_unwrapped = torch_private.find("torch._C._functorch.get_unwrapped")
is_transformed = torch_private.find("torch._C._functorch.is_functorch_wrapped_tensor")
if is_transformed is None or _unwrapped is None:
    is_transformed = lambda tensor: False  # noqa: E731
UNSEEN_BY_CLASS = torch_private.need("torch._C.DisableTorchFunctionSubclass")
# Ranks files by owner. A dry run replaces this object with one that knows the program's own package.
lines = Lines("", None)
# Types of simulated devices. torch itself handles all other devices.
SIMULATED = ("cuda", "xpu", "mps")


class _Current(threading.local):
    index = 0  # `torch.cuda.set_device` sets it in each thread


CURRENT = _Current()


def device_of(value: Any) -> torch.device | None:
    """Return the device of a `device` argument, always with an index; None for None and for a tensor."""
    if value is None or isinstance(value, Tensor):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.device("cuda", value)
    device = torch.device(value)
    if device.type in SIMULATED and device.index is None:
        return torch.device(device.type, CURRENT.index if device.type == "cuda" else 0)
    return device


@dataclass(frozen=True, slots=True)
class Place:
    """A line of source: `file` as Python names it, and `line` from 1. Its text is relative to the current folder."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.removeprefix(os.getcwd() + os.sep)}:{self.line}"


def rank(file: str) -> int:
    """Return the owner of a file: 0 for the user, 1 for an installed package, 2 for torch, Python or gpucheck."""
    return lines.distance(file)


def text_of(value: Place | torch.device | None) -> str | None:
    return None if value is None else str(value)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own source, else that of an installed package other than torch."""
    return lines.caller(frame) or lines.caller(frame, most=1)


def here() -> Place | None:
    frame = user_frame(sys._getframe(1))
    return place_of(frame) if frame is not None else None


def place_of(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno)


def source_line(frame: FrameType | None) -> str:
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)


CPU = torch.device("cpu")
COUNTED = torch.device("cuda:0")  # the device whose memory is counted


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a tensor on the CPU: the tensor's name or its creator, and the user's line."""

    kind: OriginKind
    what: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The simulated device of a storage. An unknown device is None until an operation determines the device."""

    device: torch.device | None
    origin: Origin | None = None


class Placements:
    """Placements by storage. A storage without a placement is on the CPU. `memory` counts the tensors on cuda:0."""

    def __init__(self, memory: Memory[Place] | None = None) -> None:
        self.memory = memory or Memory[Place]()
        self.storages = self.memory.storages

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return self._placement(storage) is not None

    def _placement(self, storage: torch.UntypedStorage) -> Placement | None:
        row = self.storages.of(storage)
        return None if row is None else row.placement

    def is_pinned(self, tensor: Tensor) -> bool:
        return any(row.is_pinned for storage in storages_of(tensor) if (row := self.storages.of(storage)) is not None)

    def of(self, tensor: Tensor) -> Placement:
        """Return the placement of a tensor. The device of a tensor without a storage is unknown."""
        if (storage := storage_of(tensor)) is not None and (placement := self._placement(storage)):
            return placement
        if tensor.device.type != "cpu":  # the program's own meta tensor: one of a simulated device has a placement
            return Placement(tensor.device)
        return Placement(None if storage is None else CPU)

    def device(self, tensor: Tensor) -> torch.device | None:
        return self.of(tensor).device

    def device_of_storage(self, storage: Any) -> torch.device | None:
        placement = self._placement(storage.untyped())
        return CPU if placement is None else placement.device

    def put(self, tensor: Tensor, device: torch.device | None, origin: Origin | None = None) -> None:
        for storage in storages_of(tensor):
            self.put_storage(storage, device, origin)

    def put_storage(self, storage: torch.UntypedStorage, device: torch.device | None, origin: Origin | None) -> None:
        """Place a storage on a device. The storage may have no tensor yet, while torch loads a file."""
        if device != CPU or origin is not None:
            self.storages.row(storage).placement = Placement(device, origin)
        elif (row := self.storages.of(storage)) is not None:
            row.placement = None
        self.memory.put(storage, is_held=device == COUNTED)


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    return next(iter(storages_of(tensor)), None)


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """Return the storages of a tensor. A sparse tensor has several, of which the first holds the values."""
    while is_transformed(tensor):
        tensor = _unwrapped(tensor)
    try:
        with UNSEEN_BY_CLASS():  # a lazy parameter raises in its torch function
            return [part.untyped_storage() for part in parts(tensor)]
    except (NotImplementedError, RuntimeError):  # a wrapper or an opaque layout has none
        return []


def cause(
    frame: FrameType, tensor: Tensor, expected: str, placements: Placements, *, has_name: bool
) -> tuple[Origin | None, str | None, str | None]:
    """Return an operand's origin, the operand's name in the failing line, and an expression for the device `expected`
    in the line that creates the operand. The expression is None if the program should move the operand instead."""
    origin = placements.of(tensor).origin
    origin = _of_optimizer(frame, tensor, origin) or _of_module(frame, tensor, origin, placements) or origin
    line = source_line(frame)
    names = (name for name, value in _expressions(frame) if has_name and _same(value, tensor))
    variable = next((name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", line)), None)
    if origin is None or origin.place is None or origin.kind != "made":
        return origin, variable, None
    called = origin.what.rpartition(".")[2]
    line = linecache.getline(origin.place.file, origin.place.line)
    is_same_code = origin.place.file == frame.f_code.co_filename and origin.place.line in _lines(frame.f_code)
    if not re.search(rf"\b{re.escape(called or '.')}\(", line) or not (is_same_code or variable is None):
        return origin, variable, None
    literal = f'"{expected.removesuffix(":0")}"'
    return origin, variable, next(_device_names(frame, origin.place, expected, placements, is_same_code), literal)


def _same(value: Any, tensor: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return False
    storage = storage_of(tensor)
    return value is tensor or (storage is not None and storage_of(value) is storage)


def _expressions(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield expressions that a frame's code can use, with their values: `x`, `self.scale`, `batch["x"]`."""
    variables = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    variables |= frame.f_locals
    yield from variables.items()
    for name, value in variables.items():
        if isinstance(value, dict):
            items = [(key, item) for key, item in value.items() if isinstance(key, str)]
            yield from ((f"{name}[{quote}{key}{quote}]", item) for quote in "\"'" for key, item in items)
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{index}]", item) for index, item in enumerate(value[:64]))
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            yield from ((f"{name}.{key}", item) for key, item in vars(value).items())


def _lines(code: CodeType) -> set[int]:
    """Return the lines of a function or module, without those of nested functions."""
    return {line for _, _, line in code.co_lines() if line}


def _device_names(
    frame: FrameType, place: Place, expected: str, placements: Placements, is_same_code: bool
) -> Iterator[str]:
    """Yield expressions for the device `expected` that a line can use: `x.device` of a tensor, or a variable."""
    if is_same_code:
        variables = _assigned_before(frame, place.line)
        yield from (f"{name}.device" for name, value in variables.items() if _is_at(value, expected, placements))
        yield from _devices(variables, expected)
    is_module_level = is_same_code and frame.f_code.co_name == "<module>"
    if place.file == frame.f_code.co_filename and not is_module_level:
        yield from _devices(frame.f_globals, expected)


def peer_and_device(frame: FrameType, expected: str, placements: Placements) -> tuple[str | None, str | None]:
    """Return a local variable with a tensor on the device `expected`, and the program's own name for that device."""
    variables = _assigned_before(frame, frame.f_lineno)
    peers = (name for name, value in variables.items() if name.isidentifier() and _is_at(value, expected, placements))
    return next(peers, None), next(_devices({**frame.f_globals, **variables}, expected), None)


def _assigned_before(frame: FrameType, line: int) -> dict[str, Any]:
    """Return the local variables that have a value before a line: arguments, and variables assigned above the line."""
    code = frame.f_code
    arguments = (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_freevars)
    names = [name for name in frame.f_locals if name in arguments or (_first_line(code, name) or line) < line]
    return {name: frame.f_locals[name] for name in names}


def _devices(variables: Mapping[str, Any], expected: str) -> Iterator[str]:
    """Yield the names that hold the device `expected`: `device`, `args.device`."""

    def is_name(name: str, value: Any) -> bool:
        is_text = isinstance(value, str) and "dev" in name.lower()
        return (is_text or isinstance(value, torch.device)) and str(value) in (expected, expected.removesuffix(":0"))

    yield from (name for name, value in variables.items() if is_name(name, value))
    for name, value in variables.items():
        attributes = getattr(value, "__dict__", {}) if not isinstance(value, (type, ModuleType)) else {}
        yield from (f"{name}.{key}" for key, inner in attributes.items() if is_name(key, inner))


def _first_line(code: CodeType, name: str, calls: str = "") -> int | None:
    """Return the first line that assigns a name and calls the function `calls`, if one is given."""
    line = None
    for instruction in dis.get_instructions(code):
        # From Python 3.13 on, `starts_line` is a bool and `line_number` has the line.
        line = getattr(instruction, "line_number", None) or instruction.starts_line or line
        is_call = not calls or f"{calls}(" in linecache.getline(code.co_filename, line or 0)
        if instruction.opname.startswith("STORE") and instruction.argval == name and is_call:
            return line
    return None


def methods(frame: FrameType | None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the objects whose methods are running, innermost first, each with the method's local variables."""
    for outer, _ in traceback.walk_stack(frame) if frame is not None else ():
        if outer.f_code.co_varnames[:1] == ("self",) and "self" in outer.f_locals:
            yield outer.f_locals["self"], outer.f_locals


def _of_optimizer(frame: FrameType, tensor: Tensor, origin: Origin | None) -> Origin | None:
    """Return the origin of a state that an optimizer created or restored before the model moved."""
    if origin is not None and origin.kind == "state":
        return origin
    code, variables = frame.f_code, {**frame.f_globals, **frame.f_locals}
    for name, value in (*variables.items(), *((None, owner) for owner, _ in methods(frame))):
        states = value.state.values() if isinstance(value, torch.optim.Optimizer) else ()
        if any(_same(entry, tensor) for state in states for entry in state.values()):
            class_name = type(value).__name__
            line = None if name is None else _first_line(code, name, class_name) or _first_line(code, name)
            place = Place(code.co_filename, line) if line is not None else None
            return Origin("state", f"a state of {class_name}", place)
    return None


def _of_module(frame: FrameType, tensor: Tensor, origin: Origin | None, placements: Placements) -> Origin | None:
    """Return the origin of a tensor that a module holds, or that the program computed from a module's attribute."""
    if origin is not None and origin.kind not in ("made", "moved"):
        return None
    variables = {**frame.f_globals, **frame.f_locals}
    modules = {name: value for name, value in variables.items() if isinstance(value, nn.Module)}
    for owner in (*(owner for owner, _ in methods(frame) if isinstance(owner, nn.Module)), *modules.values()):
        for name, value in attributes(owner):
            has_place = origin is not None and origin.place is not None
            is_derived = has_place and isinstance(value, Tensor) and placements.of(value).origin == origin
            if (is_derived or _same(value, tensor)) and (place := assigned(type(owner), name)) is not None:
                return Origin("attribute", name, place)
            if isinstance(value, (list, tuple, dict)):
                items = [*(value.values() if isinstance(value, dict) else value)]
                if any(_same(item, tensor) for item in items):
                    return Origin("container", name, assigned(type(owner), name))
                if any(_registers(item, tensor) for item in items):
                    return Origin("module", name, assigned(type(owner), name))
    for name, value in modules.items():
        if kind := _registers(value, tensor):
            return Origin(kind, name, origin.place if origin is not None else None)
    return None


# Attributes of every module, such as the dicts of parameters and hooks.
_OWN_ATTRIBUTES = frozenset(vars(nn.Module()))


def attributes(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if name not in _OWN_ATTRIBUTES]


def _registers(module: Any, tensor: Tensor) -> OriginKind | None:
    if not isinstance(module, nn.Module):
        return None
    if any(_same(parameter, tensor) for parameter in module.parameters()):
        return "parameter"
    return "buffer" if any(_same(buffer, tensor) for buffer in module.buffers()) else None


def stale(frame: FrameType | None, expected: str, placements: Placements) -> tuple[str, Origin] | None:
    """Return the device of all registered tensors of a running module, and the origin of a plain attribute that stayed
    on `expected`. Return None if the method has another variable on `expected`, which may be the cause."""
    for module, variables in methods(frame):
        if isinstance(module, nn.Module):
            devices = {str(placements.device(tensor)) for tensor in (*module.parameters(), *module.buffers())}
            names = [name for name, value in attributes(module) if _is_at(value, expected, placements)]
            has_other = any(_is_at(value, expected, placements) for value in variables.values())
            stale = [(name, place) for name in names if (place := assigned(type(module), name)) is not None]
            if len(devices) == 1 and expected not in devices and stale and not has_other:
                line = source_line(frame)
                in_line = (entry for entry in stale if re.search(rf"\bself\.{entry[0]}\b", line))
                return devices.pop(), Origin("attribute", *next(in_line, stale[0]))
    return None


def _is_at(value: Any, device: str, placements: Placements) -> bool:
    return isinstance(value, Tensor) and str(placements.device(value)) == device


def assigned(kind: type, name: str, *, alone: bool = True) -> Place | None:
    """Return the line in a class's methods that assigns `self.name`, as the only target if `alone`."""
    functions = [f for base in kind.__mro__ for f in vars(base).values() if isinstance(f, FunctionType)]
    for code in (function.__code__ for function in functions if rank(function.__code__.co_filename) < 2):
        lines = _lines(code)
        for node in ast.walk(_tree(code.co_filename)):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.lineno not in lines:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            texts = [ast.unparse(part) for target in targets for part in ([target] if alone else ast.walk(target))]
            is_empty = node.value is None or getattr(node.value, "value", node) is None
            if f"self.{name}" in texts and (len(texts) == 1 or not alone) and not is_empty:
                return Place(code.co_filename, node.lineno)
    return None


def is_conditional(place: Place) -> bool:
    tests = (node for node in ast.walk(_tree(place.file)) if isinstance(node, ast.If))
    return any(node.body[0].lineno <= place.line <= (node.end_lineno or 0) for node in tests)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # the file was changed after Python loaded it
        return ast.Module([], [])
