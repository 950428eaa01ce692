"""A model on a simulated device: what its move leaves behind, and where a step meets that.

What a model holds beside its parameters and buffers: tensors and modules in attributes, lists, objects, closures and
hooks. The exact arithmetic of its weights: the tree of modules with their bytes, the totals, and what training adds.

The user's code runs here, so this is imported in children only. It answers with plain data; `judge` says what is wrong.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import json
import sys
import textwrap
import traceback
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.errors import GpucheckError, TargetError
from gpucheck.machine import child_stdio, torch_private
from gpucheck.messages import message_of
from gpucheck.program.engine import DeviceMismatch, Mismatch, World, tensors_in
from gpucheck.program.options import ModelOptions
from gpucheck.program.simulated_cuda import Surface, simulated
from gpucheck.program.simulated_devices import (
    CPU,
    Origin,
    Place,
    assigned,
    attributes,
    is_conditional,
    place_of,
    rank,
    text_of,
)
from gpucheck.report.codec import to_json
from gpucheck.report.results import model as results
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.report.results.model import LeftBehind, ModuleRow
from gpucheck.work import target as work
from gpucheck.work.spec import Target, parse_inputs, parse_target

# An object holds objects that hold objects; what lies deeper is nobody's mask or table.
DEEPEST = 6
# A list of so many entries is data, not a list of layers.
LONGEST = 4096

# Types that hold nothing.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


@dataclass(frozen=True, slots=True)
class Held:
    """A part that a model holds: its qualified name, the `value` with its `tensors`, what holds it, the line that did
    it, and the attribute of a registered module under which it is."""

    name: str
    kind: results.LeftKind
    value: Any
    tensors: list[Tensor]
    holder: results.Holder
    place: Place | None
    attribute: str


def line_of(kind: type) -> Place | None:
    """Where a class of the user's begins; None for others."""
    if not _is_users(kind):
        return None
    _, line, file = source_of(kind)
    return Place(file, line) if file else None


def _is_users(kind: type) -> bool:
    """Return whether a class is of the user's own source or of an installed package other than torch."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and rank(file) < 2


def held(model: nn.Module) -> list[Held]:
    """Return everything that a model holds and does not register, each once, under the name found first."""
    found: list[Held] = []
    # Registered parts, and parts that were met; kept alive, so that no id comes twice.
    met: dict[int, Any] = {id(part): part for part in (*model.parameters(), *model.buffers(), *model.modules())}

    def look(
        value: Any, name: str, holder: results.Holder, place: Place | None, attribute: str, depth: int = 0
    ) -> None:
        if isinstance(value, _PLAIN) or id(value) in met or depth > DEEPEST:
            return
        met[id(value)] = value
        if isinstance(value, Tensor):
            found.append(Held(name, "tensor", value, [value], holder, place, attribute))
        elif isinstance(value, nn.Module):  # its own parts belong to it
            tensors = [*value.parameters(), *value.buffers()]
            met.update({id(part): part for part in (*value.modules(), *tensors)})
            found.append(Held(name, "module", value, tensors, holder, place, attribute))
        else:
            for key, inner, kind in _inside(value):
                better = kind if holder in ("attribute", "class") else holder
                look(inner, f"{name}{key}", better, place, attribute, depth + 1)

    for owner, module in list(model.named_modules()):
        above = f"{owner}." if owner else ""
        parameters = dict(module.named_parameters(recurse=False))
        for name, value in attributes(module):
            # A norm of torch.nn.utils makes it anew before each forward.
            if not any(f"{name}_{part}" in parameters for part in ("orig", "g", "v")):
                look(value, above + name, "attribute", _place_of(module, name), name)
        for kind in filter(_is_users, type(module).__mro__):
            for name, value in vars(kind).items():
                if isinstance(value, (Tensor, list, tuple, dict)) and not name.startswith("__"):
                    look(value, above + name, "class", line_of(kind), name)
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            for hook in vars(module).get(name, {}).values():
                code = getattr(hook, "__code__", None)
                place = Place(code.co_filename, code.co_firstlineno) if code and rank(code.co_filename) < 2 else None
                look(hook, f"{above}forward hook", "hook", place, "")
    return found


def _place_of(module: nn.Module, name: str) -> Place | None:
    """The line of a class's methods that assigns an attribute; where there is none, the class's."""
    return assigned(type(module), name, alone=False) or line_of(type(module))


def _inside(value: Any) -> Iterator[tuple[str, Any, results.Holder]]:
    """Yield what a container, a function or an object holds, each with how a person would write the way to it."""
    if isinstance(value, Mapping):
        if len(value) <= LONGEST:
            yield from ((f"[{key!r}]", item, "container") for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        if len(value) <= LONGEST:
            yield from ((f"[{index}]", item, "container") for index, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("", part, "closure") for part in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", part, "closure") for part in (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is empty as yet
                yield f" → {name}", cell.cell_contents, "closure"
    elif _is_of_interest(type(value)):
        yield from ((f".{name}", item, "object") for name, item in getattr(value, "__dict__", {}).items())


def _is_of_interest(kind: type) -> bool:
    """Return whether objects of a class may hold a user's tensors: those of user code and packages, and
    distributions."""
    if kind is types.SimpleNamespace or kind.__module__.startswith("torch.distributions"):
        return True
    return _is_users(kind) and kind.__module__.partition(".")[0] not in ("numpy", "torchvision")


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

# Methods that move a tensor, and attributes that are read on the host.
_MOVES = ("to", "cuda", "type_as", "cpu", "pin_memory")
_READS = (
    *("shape", "dtype", "device", "size", "dim", "ndim", "numel"),
    *("tolist", "item", "numpy", "new_zeros", "new_ones"),
)


def read_use(model: nn.Module, name: str) -> results.Use:
    """Return what the model's own classes do with an attribute: copy it wherever they read it, never read it, or
    else."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    loads: list[str] = []
    for kind in kinds:
        tree = source_of(kind)[0] if _is_users(kind) else None
        if tree is None:
            continue
        # `__init__` runs before the move.
        functions = [function for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)]
        begun = {id(node) for function in functions if function.name == "__init__" for node in ast.walk(function)}
        parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                loads += [_taken_as(node, parents)] if id(node) not in begun else []
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


# -- weights -----------------------------------------------------------------------------------------------------------

Where = Callable[[Tensor], str]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def rows(model: nn.Module, where: Where, depth: int) -> tuple[ModuleRow, ...]:
    """The model and its modules down to `depth`, those without weights left out, alike ones in a row as one."""
    seen: set[int] = set()  # a tied tensor counts where it is met first

    def with_children(module: nn.Module, name: str, level: int) -> list[ModuleRow]:
        parameters = [parameter for parameter in module.parameters() if id(parameter) not in seen]
        buffers = [buffer for buffer in module.buffers() if id(buffer) not in seen]
        both = [*parameters, *buffers]
        row = ModuleRow(
            name=name,
            kind=type(module).__name__,
            depth=level,
            parameters=sum(parameter.numel() for parameter in parameters),
            parameter_bytes=sum(map(size_of, parameters)),
            buffer_bytes=sum(map(size_of, buffers)),
            dtypes=tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in both)),
            devices=tuple(dict.fromkeys(map(where, both))),
        )
        children = module.named_children() if level < depth else ()
        below = [with_children(child, f"{name}.{key}" if name else key, level + 1) for key, child in children]
        seen.update(map(id, both))
        weighty = [child for child in below if child[0].parameters or child[0].buffer_bytes]
        made = [row]
        for alike in (list(group) for _, group in itertools.groupby(weighty, _without_name)):
            own = alike[0][0].name
            # `layers.0` to `layers.11` as `layers.0-11`; what lies below keeps the name of the range.
            ranged = f"{own}-{alike[-1][0].name.rpartition('.')[2]}" if len(alike) > 1 else own
            made += [replace(r, name=ranged + r.name[len(own) :], repeats=r.repeats * len(alike)) for r in alike[0]]
        return made

    return tuple(with_children(model, "", 0))


def _without_name(rows: list[ModuleRow]) -> list[ModuleRow]:
    """The rows of a module by their names below it: alike modules have the same."""
    return [replace(row, name=row.name.removeprefix(rows[0].name)) for row in rows]


def totals(model: nn.Module) -> results.Totals:
    """The whole model; `parameters()` gives a tied one once."""
    parameters = list(model.parameters())
    return results.Totals(
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(map(size_of, parameters)),
        buffer_bytes=sum(map(size_of, model.buffers())),
        trained_bytes=sum(size_of(parameter) for parameter in parameters if parameter.requires_grad),
    )


def training(groups: Sequence[tuple[Sequence[nn.Parameter], MakeOptimizer]], text: str) -> results.TrainingBytes:
    """Return what gradients and the optimizer's state take: the real optimizer steps on tensors without memory.

    `groups` are the trained parameters, each group with what makes its optimizer.
    """
    gradient = sum(size_of(parameter) for parameters, _ in groups for parameter in parameters)
    try:
        state = sum(_state_bytes(parameters, make) for parameters, make in groups)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return results.TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=None, reason=reason[:200])
    return results.TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=state)


def _state_bytes(parameters: Sequence[nn.Parameter], make: MakeOptimizer) -> int:
    """Bytes of all states but the counters. Each shape is asked once: an optimizer's state is each parameter's own."""
    counts = Counter((parameter.shape, parameter.dtype) for parameter in parameters)
    try:
        return _stepped(counts, make, "meta")
    except (RuntimeError, NotImplementedError):  # the optimizer reads values
        return _stepped(counts, make, "cpu")


def _stepped(counts: Counter[tuple[torch.Size, torch.dtype]], make: MakeOptimizer, device: str) -> int:
    """Bytes of the states after a step of so many parameters of each shape and dtype."""
    stand_ins = {nn.Parameter(torch.ones(key[0], dtype=key[1], device=device)): count for key, count in counts.items()}
    for stand_in in stand_ins:
        stand_in.grad = torch.ones_like(stand_in)
    optimizer = make([*stand_ins])
    optimizer.step()
    total = 0
    for stand_in, count in stand_ins.items():
        states = [value for value in optimizer.state[stand_in].values() if isinstance(value, Tensor)]
        # A counter is a number on the CPU, whatever the device.
        total += count * sum(size_of(state) for state in states if state.dim() > 0 or stand_in.dim() == 0)
    return total


# Mismatches that are searched for: a person has enough to repair.
MOST_MISMATCHES = 20
# Characters of an error that a document keeps.
MOST_SAID = 300
# Words of errors that a build or a machine without the device raises, not the program.
OF_THE_DEVICE = (
    *("cuda", "cudnn", "nccl", "triton", "aten_cuda", "accelerator", "gpu", "flash_attn", "xformers", "torch._c"),
    *("not implemented for", "mixed dtype (cpu)", "on cpu does not support", "zerodivisionerror"),
)


DEVICE = "cuda:0"


def examine(asked: ModelOptions) -> results.ModelResult:
    """Build the target, move it and run it, all on simulated devices. Raises TargetError and UsageError."""
    world = World()
    with simulated(world) as surface:
        target = parse_target(asked.target)
        built = work.build(target, parse_inputs(asked.inputs))
        return _Examination(asked, target, world, surface, built).result()


@dataclass(slots=True)
class _Examination:
    asked: ModelOptions
    target: Target
    world: World
    surface: Surface
    built: work.Built
    # The model's device, unless the target itself put it elsewhere.
    device: str = DEVICE

    def result(self) -> results.ModelResult:
        """The answer: the static half first, for its findings explain the other's."""
        asked, model = self.asked, self.built.model
        meta = tuple(name for name, tensor in _registered(model) if tensor.is_meta)
        away = [] if meta else sorted({self._where(tensor) for _, tensor in _registered(model)} - {"cpu", "unknown"})
        if away:
            self.device = away[0]
        elif not meta:
            self._move()
        model = self.built.model
        self.world.names = {id(module): name for name, module in model.named_modules()}
        things = [] if meta else self._left()
        self._name_origins(things)
        reason = f"parameters without data: {meta[0]}" if meta else None
        run, not_run = (None, reason) if reason else self._run()
        cached = self._cached() if run is not None and run.stopped is None else []
        options = None
        if run is None and not reason:
            options, takes = work.proposed(model)
            not_run = f"{not_run}; {takes}" if takes else not_run
        return results.ModelResult(
            target=self.target.text,
            kind=type(model).__name__,
            device=self.device,
            rows=rows(model, self._where, asked.depth),
            totals=totals(model),
            training=self._training(),
            left_behind=(*(self._row_of(part, run) for part in things), *cached),
            meta=meta,
            run=run,
            not_run=not_run,
            not_followed=torch_private.lost("simulation"),
            proposed=options,
        )

    # -- the move ------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        # Positional arguments, as most programs write it: a `.to` of the user's own may take nothing else.
        wanted = (self.device,) if self.asked.dtype is None else (self.device, getattr(torch, self.asked.dtype))
        try:
            moved = self.built.model.to(*wanted)
        except GpucheckError:
            raise
        except Exception as error:
            raise work.raised(f"{self.target.text}: .to({self.device!r})", error) from error
        # A `.to` of the user's own may return nothing.
        self.built.model = moved if isinstance(moved, nn.Module) else self.built.model

    def _where(self, tensor: Tensor) -> str:
        return str(self.world.claims.device(tensor) or "unknown")

    # -- what stayed behind --------------------------------------------------------------------------------------------

    def _left(self) -> list[Held]:
        found = [
            replace(part, tensors=behind)
            for part in held(self.built.model)
            if (behind := [tensor for tensor in part.tensors if self._is_behind(tensor)])
        ]
        for name, tensor in _registered(self.built.model):
            if self._is_behind(tensor):
                owner, _, attribute = name.rpartition(".")
                above, _, part = owner.rpartition(".")  # the module that holds a module of torch's
                place = _place_of(self.built.model.get_submodule(owner), attribute)
                place = place or _place_of(self.built.model.get_submodule(above), part)
                found.append(Held(name, "parameter", tensor, [tensor], "attribute", place, attribute))
        return found

    def _cached(self) -> list[LeftBehind]:
        """Tensors that forward made once and keeps in a plain attribute: they stay when the model moves again."""
        return [
            replace(self._row_of(part, None), device=self.device, use="cached")
            for part in held(self.built.model)
            if part.holder == "attribute" and part.kind == "tensor" and self._where(part.value) == self.device
            if part.place is not None and is_conditional(part.place)
        ]

    def _is_behind(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the CPU where it matters: a number may lie there."""
        return self.world.claims.device(tensor) == CPU and tensor.dim() > 0 and not tensor.is_meta

    def _row_of(self, part: Held, run: results.ClaimedRun | None) -> LeftBehind:
        dtype = str(part.tensors[0].dtype).removeprefix("torch.")
        what = f"{dtype} tensor of shape {[*part.tensors[0].shape]}"
        if part.kind == "module":
            elements = sum(tensor.numel() for tensor in part.tensors)
            what = f"{type(part.value).__name__} with {elements} parameters"
        return LeftBehind(
            name=part.name,
            kind=part.kind,
            what=what,
            device="cpu",
            place=text_of(part.place),
            use=self._use(part, run),
            holder=part.holder,
            attribute=part.attribute,
            is_trained=part.kind == "tensor" and part.tensors[0].requires_grad,
        )

    def _use(self, part: Held, run: results.ClaimedRun | None) -> results.Use:
        """Return what the run did with it; without a whole run what the source says."""
        origins = [self.world.claims.of(tensor).origin for tensor in part.tensors]
        entries = run.mismatches if run is not None else ()
        wrong = {operand.origin_name for entry in entries for operand in entry.operands if operand.is_wrong}
        if any(origin is not None and origin.what in wrong for origin in origins):
            return "mismatched"
        if part.kind != "parameter" and any(origin in self.surface.copied for origin in origins):
            return "copied"
        ran = run is not None and run.stopped is None
        if ran and not {*origins}.isdisjoint(self.world.met or ()):
            return "unread"
        # A part that this run did not reach may be used in the next: a head, a branch of the other mode.
        if part.kind == "tensor" and part.holder in ("attribute", "class", "container", "object"):
            use = read_use(self.built.model, part.attribute)
            if part.holder in ("attribute", "class"):
                return "unread" if ran and use == "copied" else use
            if ran and use == "unread":  # of what lies in it only this is known: nobody reads what holds it
                return use
        return "unknown"

    def _name_origins(self, things: Sequence[Held]) -> None:
        """Give what is on the CPU its name, so that a mismatch can say whose tensor it met."""
        claims = self.world.claims
        for part in things:
            for tensor in part.tensors:
                kind: results.OriginKind = "parameter" if part.kind == "parameter" else "attribute"
                claims.put(tensor, CPU, Origin(kind, part.name, part.place))
        for name, tensor in _registered(self.built.model):
            device = claims.device(tensor)
            if device is not None and claims.of(tensor).origin is None and not tensor.is_meta:
                claims.put(tensor, device, Origin("parameter" if isinstance(tensor, nn.Parameter) else "buffer", name))

    # -- the run -------------------------------------------------------------------------------------------------------

    def _run(self) -> tuple[results.ClaimedRun | None, str | None]:
        """A forward or a step, again after each mismatch, which is then let pass; or why there is none."""
        asked = self.asked
        if not self.built.has_inputs:
            return None, "no --input, and the target has no make_batch"
        train = asked.train and any(parameter.requires_grad for parameter in self.built.model.parameters())
        workload = work.equip(
            self.built,
            self.target,
            mode="train" if train else "infer",
            optimizer=asked.optimizer,
            dtype=asked.dtype,
            device=torch.device(self.device),
            recipe=StepRecipe(amp=asked.amp),
        )
        found: list[Mismatch] = []
        stopped: str | None = None
        stopped_at: Place | None = None
        self.world.met = set()
        while len(found) < MOST_MISMATCHES:
            self.world.last = None
            try:
                self._step(workload, train)
            except Exception as error:  # noqa: BLE001 (the user's model may raise anything)
                mismatch = mismatch_in(self.world, error)
                if mismatch is not None:
                    found.append(mismatch)
                    self.world.tolerated.add(mismatch.site)
                    continue
                stopped, stopped_at = self._stop(error, found)
            break
        unjudged = self.world.unjudged.items()
        run = results.ClaimedRun(
            phase="step" if train else "forward",
            batch_size=asked.batch_size,
            mismatches=tuple(causes(mismatch.entry for mismatch in found)),
            unjudged=tuple(results.UnjudgedOperation(operation=name, place=text_of(place)) for name, place in unjudged),
            stopped=stopped,
            stopped_at=text_of(stopped_at),
        )
        return run, None

    def _step(self, workload: work.Workload, train: bool) -> None:
        if train:
            self.world.phase = "step"
            workload.model.train()
            work.step(workload, self._batch(workload))
            return
        self.world.phase = "forward"
        # no_grad and not inference mode: a forward may take gradients of its own.
        with torch.no_grad(), work.autocast(self.asked.amp, workload.device):
            work.forward(workload, self._batch(workload))

    def _batch(self, workload: work.Workload) -> work.Batch:
        batch = workload.make_batch(self.asked.batch_size)
        names = [*work.parameters_of(workload.model.forward)]
        for name, value in (*zip(names, batch.arguments, strict=False), *batch.keywords.items()):
            for tensor in tensors_in(value):
                device = self.world.claims.device(tensor)
                if device is not None and not tensor.is_meta:
                    self.world.claims.put(tensor, device, Origin("input", name))
        return batch

    def _stop(self, error: Exception, found: Sequence[Mismatch]) -> tuple[str, Place | None]:
        """Why the run cannot be followed further. Raises TargetError for an error of the program's own."""
        if isinstance(error, GpucheckError):
            # A search has the same error, with another option.
            error.fix = error.fix.replace("add --mode infer", "leave --train out")
            raise error
        text = f"{type(error).__name__}: {' '.join(message_of(error).split())}"
        if not is_of_device(error, text) and not found:
            what = "the training step" if self.asked.train else "the forward pass"
            raise work.raised(f"{what} of {self.target.text}", error) from error
        return text[:MOST_SAID], innermost(error.__traceback__)

    # -- what training adds --------------------------------------------------------------------------------------------

    def _training(self) -> results.TrainingBytes | None:
        trained = [parameter for parameter in self.built.model.parameters() if parameter.requires_grad]
        given = getattr(self.built.whole, "optimizer", None) if self.built.whole is not self.built.model else None
        if not trained:
            return None
        if isinstance(given, torch.optim.Optimizer):
            kind: Any = type(given)
            groups = [
                (group["params"], _like(kind, {key: value for key, value in group.items() if key != "params"}))
                for group in given.param_groups
            ]
            return training(groups, f"{kind.__name__} of the target")
        if callable(given) and not isinstance(given, nn.Module):
            return training([(trained, given)], "the target's own")
        chosen = work.by_name(self.asked.optimizer)
        return training([(trained, chosen.build)], chosen.text)


def causes(entries: Iterable[results.DeviceMismatchEntry]) -> Iterator[results.DeviceMismatchEntry]:
    """Leave out what torch's own code meets of tensors that a line before has met: a backward of what was let pass."""
    met: set[object] = {None}
    for entry in entries:
        wrong = [operand for operand in entry.operands if operand.is_wrong]
        origins = {operand.origin and (operand.origin, operand.origin_name, operand.origin_place) for operand in wrong}
        if entry.place is not None or len(met) == 1 or not origins <= met:
            yield entry
        met |= origins


def is_of_device(error: BaseException, text: str) -> bool:
    """Return whether this machine or build, without the device, may be the cause of an error."""
    if isinstance(error, ZeroDivisionError):  # Python's own; a CPU's kernel raises a RuntimeError of this name
        return False
    return isinstance(error, (NotImplementedError, ImportError)) or any(word in text.lower() for word in OF_THE_DEVICE)


def mismatch_in(world: World, error: BaseException) -> Mismatch | None:
    """The mismatch that an exception comes from. TorchScript's own error says nothing of it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DeviceMismatch):
            return link.mismatch
        link = link.__cause__ or link.__context__
    return world.last if "TorchScript" in message_of(error) else None


def _registered(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _like(kind: Any, options: dict[str, Any]) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return what makes an optimizer of a kind with a group's options."""
    known = {key: value for key, value in options.items() if key in inspect.signature(kind.__init__).parameters}
    return lambda parameters: kind(parameters, **known)


def innermost(trace: TracebackType | None) -> Place | None:
    """The user's innermost line of a traceback; where there is none, an installed package's."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)][::-1]
    theirs = (frame for whose in (0, 1) for frame in frames if rank(frame.f_code.co_filename) == whose)
    return next(map(place_of, theirs), None)


# -- the child: one request as its argument, one line as its answer ----------------------------------------------------


def main() -> int:
    """Answer the one request of `program.command`."""
    options = json.loads(sys.argv[1])
    say = child_stdio.claim_stdout()
    say({"started": True})
    try:
        try:
            answer = to_json(examine(ModelOptions(**{**options, "inputs": tuple(options["inputs"])})))
        except (RuntimeError, MemoryError) as error:  # what the factory raises
            raise work.raised(f"the target {options['target']}", error) from error
    except GpucheckError as error:
        trace = error.trace if isinstance(error, TargetError) and error.trace else traceback.format_exc()
        say(child_stdio.raised(error, trace))
        return 0
    except Exception:  # noqa: BLE001 (what the user's code raises is a TargetError by now: this is ours)
        say({"failed": traceback.format_exc(), "end": True})
        return 1
    say({"answer": answer, "end": True})
    return 0
