"""A model's contents: what it holds beside its parameters and buffers, and the exact arithmetic of its weights.

What is beside them: tensors and modules in attributes, lists, closures and hooks. The weights: the tree of modules with
their bytes, the totals, and what training adds.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.program.claims import Place, here, rank
from gpucheck.report.results.model import Holder, LeftKind, ModuleRow, Totals, TrainingBytes, Use

# An object holds objects that hold objects; what lies deeper is nobody's mask or table.
DEEPEST = 6
# A list of so many entries is data, not a list of layers.
LONGEST = 4096

# A module's own books, which `.to()` takes care of.
_BOOKS = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
# What holds nothing.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


@dataclass(frozen=True, slots=True)
class Held:
    """A part that a model holds: its qualified name, the `value` with its `tensors`, what holds it, and the line that
    did it.

    `owner` is the registered module that holds it, by name, and `attribute` the name under which.
    """

    name: str
    kind: LeftKind
    value: Any
    tensors: list[Tensor]
    holder: Holder
    place: Place | None
    owner: str
    attribute: str


class Assignments:
    """The user's line of each attribute that was assigned to a module."""

    def __init__(self) -> None:
        self._places: weakref.WeakKeyDictionary[nn.Module, dict[str, Place]] = weakref.WeakKeyDictionary()

    def of(self, module: nn.Module, name: str) -> Place | None:
        """The line of an attribute's assignment; where none was seen, the class's."""
        return self._places.get(module, {}).get(name) or line_of(type(module))

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Assignments]:
        """Note every assignment while this lasts."""
        original = nn.Module.__setattr__

        def assign(module: nn.Module, name: str, value: Any) -> None:
            original(module, name, value)
            if not isinstance(value, _PLAIN):
                place = here()
                if place is not None:
                    self._places.setdefault(module, {})[name] = place

        nn.Module.__setattr__ = assign
        try:
            yield self
        finally:
            nn.Module.__setattr__ = original


def line_of(value: Any) -> Place | None:
    """Where a class or a function of the user's begins; None for others."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return Place(code.co_filename, code.co_firstlineno) if rank(code.co_filename) < 2 else None
    if not isinstance(value, type) or not _is_users(value):
        return None
    _, line, file = source_of(value)
    return Place(file, line) if file else None


def _is_users(kind: type) -> bool:
    """Return whether a class is of the user's own source or of an installed package other than torch."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and rank(file) < 2


def reached(model: nn.Module, assignments: Assignments) -> list[Held]:
    """Everything that `model` holds and does not register, each once, under the name found first."""
    walk = _Walk(model, assignments)
    for name, module in list(model.named_modules()):
        walk.module(name, module)
    return walk.found


class _Walk:
    def __init__(self, model: nn.Module, assignments: Assignments) -> None:
        self.assignments = assignments
        self.found: list[Held] = []
        own = [*model.parameters(), *model.buffers(), *model.modules()]
        # What is registered, and what was met; kept alive, so that no id comes twice.
        self._met: dict[int, Any] = {id(one): one for one in own}

    def module(self, owner: str, module: nn.Module) -> None:
        """Search one registered module."""
        for name, value in vars(module).items():
            if name in _BOOKS:
                continue
            if name in _HOOKS:
                for hook in value.values():
                    self._look(hook, f"{_in_words(name)}", "hook", line_of(_code_of(hook)), owner, name, 0)
                continue
            if isinstance(value, _PLAIN):
                continue
            if any(f"{name}_{part}" in module._parameters for part in ("orig", "g", "v")):
                continue  # a norm of torch.nn.utils makes it anew before each forward
            place = self.assignments.of(module, name)
            self._look(value, name, "attribute", place, owner, name, 0)
        for kind in type(module).__mro__:
            if not _is_users(kind):
                continue
            for name, value in vars(kind).items():
                if isinstance(value, (Tensor, list, tuple, dict)) and not name.startswith("__"):
                    self._look(value, name, "class", _class_line(kind, name), owner, name, 0)

    def _look(
        self, value: Any, path: str, holder: Holder, place: Place | None, owner: str, attribute: str, depth: int
    ) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._met or depth > DEEPEST:
            return
        self._met[id(value)] = value
        if isinstance(value, (Tensor, nn.Module)):
            name = f"{owner}.{path}" if owner else path
            tensors = [value]
            if isinstance(value, nn.Module):  # its own things are told with it
                tensors = [*value.parameters(), *value.buffers()]
                self._met |= {id(one): one for one in (*value.modules(), *tensors)}
            what: LeftKind = "module" if isinstance(value, nn.Module) else "tensor"
            self.found.append(Held(name, what, value, tensors, holder, place, owner, attribute))
            return
        for key, inner, kind in _inside(value):
            where = line_of(value) or place if kind == "closure" else place
            better = kind if holder in ("attribute", "class") else holder
            self._look(inner, f"{path}{key}", better, where, owner, attribute, depth + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any, Holder]]:
    """Yield what a container, a function or an object holds, each with how a person would write the way to it."""
    if isinstance(value, Mapping):
        if len(value) <= LONGEST:
            yield from ((f"[{key!r}]", item, "container") for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        if len(value) <= LONGEST:
            yield from ((f"[{index}]", item, "container") for index, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield ("", value.func, "closure")
        yield from ((f"({index})", item, "closure") for index, item in enumerate(value.args))
        yield from ((f"({key}=)", item, "closure") for key, item in value.keywords.items())
    elif isinstance(value, types.FunctionType):
        yield from _captured(value)
    elif isinstance(value, types.MethodType):
        yield ("", value.__self__, "closure")
        yield ("", value.__func__, "closure")
    elif is_dataclass(value) or _is_of_interest(type(value)):
        names = [one.name for one in fields(value)] if is_dataclass(value) else []
        held = {**{name: getattr(value, name, None) for name in names}, **getattr(value, "__dict__", {})}
        yield from ((f".{name}", item, "object") for name, item in held.items())


def _captured(function: types.FunctionType) -> Iterator[tuple[str, Any, Holder]]:
    """The variables that a function closes over, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a cell that is empty as yet
            yield (f" → {name}", cell.cell_contents, "closure")
    for index, item in enumerate(function.__defaults__ or ()):
        yield (f" → default {index}", item, "closure")
    for name, item in (function.__kwdefaults__ or {}).items():
        yield (f" → {name}", item, "closure")


def _is_of_interest(kind: type) -> bool:
    """Return whether objects of a class may hold a user's tensors: those of user code and packages, and
    distributions."""
    module = kind.__module__
    if module.startswith("torch.distributions"):
        return True
    if module in ("types", "builtins"):
        return kind is types.SimpleNamespace
    if kind.__name__ == "SimpleNamespace":
        return True
    return _is_users(kind) and module.partition(".")[0] not in ("numpy", "torchvision")


def _code_of(hook: Any) -> Any:
    if isinstance(hook, functools.partial):
        return _code_of(hook.func)
    return hook


def _in_words(books: str) -> str:
    return books.strip("_").removesuffix("s").replace("_", " ")


def _class_line(kind: type, name: str) -> Place | None:
    """The line of a class at which an attribute of the class is assigned."""
    tree, first, file = source_of(kind)
    for node in ast.walk(tree) if tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            return Place(file, first + getattr(node, "lineno", 1) - 1)
    return line_of(kind)


@functools.lru_cache(maxsize=256)
def source_of(kind: type) -> tuple[ast.AST | None, int, str]:
    """The syntax tree of a class, the line at which it begins, and its file; None for one without source."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
        return ast.parse(textwrap.dedent("".join(lines))), first, file
    except (OSError, TypeError, SyntaxError):
        return None, 0, ""


# -- what a class does with an attribute, where nothing runs -----------------------------------------------------------

# What a method of a tensor takes to another device, and what is read of it on the host.
_MOVES = ("to", "cuda", "type_as", "cpu", "pin_memory")
_READS = (
    "shape",
    "dtype",
    "device",
    "size",
    "dim",
    "ndim",
    "numel",
    "tolist",
    "item",
    "numpy",
    "new_zeros",
    "new_ones",
)


def read_use(model: nn.Module, name: str) -> Use:
    """Return what the model's own classes do with an attribute: copy it wherever they read it, never read it, or
    else."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    loads: list[str] = []
    for kind in kinds:
        tree = source_of(kind)[0] if _is_users(kind) else None
        if tree is None:
            continue
        # `__init__` runs before the move.
        begun = {id(node) for one in ast.walk(tree) if _is_init(one) for node in ast.walk(one)}
        parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if id(node) not in begun and _is_load(node, name):
                loads.append(_taken_as(node, parents))
    if not loads:
        return "unread"
    moving = [load for load in loads if load not in _READS]
    if not moving:
        return "unread"
    return "copied" if all(load in _MOVES for load in moving) else "unknown"


def _taken_as(node: ast.AST, parents: dict[int, ast.AST]) -> str:
    """The attribute that is read of a value, `to` where it is an index, which is copied by itself; else nothing."""
    above = parents.get(id(node))
    if isinstance(above, ast.Attribute):
        return above.attr
    while isinstance(above, (ast.Tuple, ast.Slice)):
        node, above = above, parents.get(id(above))
    return "to" if isinstance(above, ast.Subscript) and above.slice is node else ""


def _is_init(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _is_load(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)


# -- weights -----------------------------------------------------------------------------------------------------------

Where = Callable[[Tensor], str]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(slots=True)
class _Node:
    row: ModuleRow
    below: list[_Node]

    @property
    def shape(self) -> object:
        """Return what two modules have alike that are told as one."""
        return (replace(self.row, name=""), [(one.row.name.rpartition(".")[2], one.shape) for one in self.below])


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def rows(model: nn.Module, where: Where, depth: int) -> tuple[ModuleRow, ...]:
    """The model and its modules down to `depth`, those without weights left out, alike ones in a row as one."""
    root = _node(model, "", 0, where, depth, set())
    return tuple(_flat(root))


def _node(module: nn.Module, name: str, depth: int, where: Where, deepest: int, seen: set[int]) -> _Node:
    below: list[_Node] = []
    before = set(seen)
    row = _row(module, name, depth, where, before)
    for child_name, child in module.named_children():
        if depth < deepest:
            path = f"{name}.{child_name}" if name else child_name
            below.append(_node(child, path, depth + 1, where, deepest, seen))
    seen |= {id(one) for one in (*module.parameters(), *module.buffers())}
    return _Node(row, [one for one in below if one.row.parameters or one.row.buffer_bytes])


def _row(module: nn.Module, name: str, depth: int, where: Where, seen: set[int]) -> ModuleRow:
    parameters = [one for one in module.parameters() if id(one) not in seen]
    buffers = [one for one in module.buffers() if id(one) not in seen]
    both = [*parameters, *buffers]
    return ModuleRow(
        name=name,
        kind=type(module).__name__,
        depth=depth,
        parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(map(size_of, parameters)),
        buffer_bytes=sum(map(size_of, buffers)),
        dtypes=tuple(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in both)),
        devices=tuple(dict.fromkeys(map(where, both))),
    )


def _flat(node: _Node) -> Iterator[ModuleRow]:
    yield node.row
    index = 0
    while index < len(node.below):
        first = node.below[index]
        end = index + 1
        while end < len(node.below) and node.below[end].shape == first.shape:
            end += 1
        count = end - index
        for row in _flat(first):
            yield row if count == 1 else _folded(row, first.row.name, node.below[end - 1].row.name, count)
        index = end


def _folded(row: ModuleRow, first: str, last: str, count: int) -> ModuleRow:
    """`layers.0` to `layers.11` as `layers.0-11`; what lies below keeps the name of the range."""
    name = f"{first}-{last.rpartition('.')[2]}{row.name[len(first) :]}"
    return replace(row, name=name, repeats=row.repeats * count)


def totals(model: nn.Module) -> Totals:
    """The whole model; `parameters()` gives a tied one once."""
    parameters = list(model.parameters())
    return Totals(
        parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(map(size_of, parameters)),
        buffer_bytes=sum(map(size_of, model.buffers())),
        trained_bytes=sum(size_of(one) for one in parameters if one.requires_grad),
    )


def training(groups: Sequence[tuple[Sequence[nn.Parameter], MakeOptimizer]], text: str) -> TrainingBytes:
    """Return what gradients and the optimizer's state take: the real optimizer steps on tensors without memory.

    `groups` are the trained parameters, each group with what makes its optimizer.
    """
    gradient = sum(size_of(one) for parameters, _ in groups for one in parameters)
    try:
        state = sum(_state_bytes(parameters, make) for parameters, make in groups)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=None, reason=reason[:200])
    return TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=state)


def _state_bytes(parameters: Sequence[nn.Parameter], make: MakeOptimizer) -> int:
    """Bytes of all states but the counters. Each shape is asked once: an optimizer's state is each parameter's own."""
    sizes: dict[tuple[Any, ...], int] = {}
    total = 0
    for one in parameters:
        key = (tuple(one.shape), one.dtype)
        if key not in sizes:
            sizes[key] = _state_of(one, make)
        total += sizes[key]
    return total


def _state_of(parameter: nn.Parameter, make: MakeOptimizer) -> int:
    """Bytes of one parameter's state after a step: on a meta tensor, or a real one where the optimizer reads values."""
    try:
        return _stepped(parameter, make, torch.device("meta"))
    except (RuntimeError, NotImplementedError):
        return _stepped(parameter, make, torch.device("cpu"))


def _stepped(parameter: nn.Parameter, make: MakeOptimizer, device: torch.device) -> int:
    stand_in = nn.Parameter(torch.ones(parameter.shape, dtype=parameter.dtype, device=device))
    stand_in.grad = torch.ones_like(stand_in)
    optimizer = make([stand_in])
    optimizer.step()
    states = [value for value in optimizer.state[stand_in].values() if isinstance(value, Tensor)]
    # A counter is a number on the CPU, whatever the device.
    return sum(size_of(one) for one in states if one.dim() > 0 or parameter.dim() == 0)
