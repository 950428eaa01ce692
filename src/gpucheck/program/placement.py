"""Examine a model on a simulated device: the tensors that its move leaves behind, and the lines that mix devices.

The examination finds tensors and modules in attributes, lists, objects, closures and hooks, and computes the memory of
training. Only child processes import this module, because the examination runs the user's code.
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

from gpucheck.errors import GpucheckError
from gpucheck.machine import child_stdio, torch_private
from gpucheck.messages import message_of
from gpucheck.program import simulated_devices as devices
from gpucheck.program.engine import DeviceMismatch, Mismatch, Simulation, tensors_in
from gpucheck.program.options import ModelOptions
from gpucheck.program.simulated_cuda import TorchCalls, simulated
from gpucheck.program.simulated_devices import COUNTED, CPU, Origin, Place
from gpucheck.report.codec import to_json
from gpucheck.report.results import model as results
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.report.results.model import LeftBehind, ModuleRow, OriginKind
from gpucheck.work import target as work
from gpucheck.work.spec import parse_inputs, parse_target

DEEPEST = 6  # the depth of nested objects to search; masks and tables are not deeper
LONGEST = 4096  # a list with more entries is data, not a list of layers

# Types that cannot hold a tensor.
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)


@dataclass(frozen=True, slots=True)
class UnregisteredPart:
    """A tensor or module that a model holds in an `attribute` without registering it."""

    name: str
    kind: results.LeftKind
    value: Any
    tensors: list[Tensor]
    holder: results.HolderKind
    place: Place | None
    attribute: str


def line_of(kind: type) -> Place | None:
    """Return the first line of a class that is not torch's or Python's; None for other classes."""
    _, line, file = source_of(kind) if _is_users(kind) else (None, 0, "")
    return Place(file, line) if file else None


def _is_users(kind: type) -> bool:
    """Return whether a class is from user code, or from an installed package other than torch."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and devices.rank(file) < 2


def held(model: nn.Module) -> list[UnregisteredPart]:
    """Return every part that a model holds without registering it, once, under the first name found."""
    parts: list[UnregisteredPart] = []
    # Registered and found parts by id. References keep the parts alive, so that Python does not reuse an id.
    met: dict[int, Any] = {id(part): part for part in (*model.parameters(), *model.buffers(), *model.modules())}

    def look(
        value: Any, name: str, holder: results.HolderKind, place: Place | None, attribute: str, depth: int = 0
    ) -> None:
        if isinstance(value, _PLAIN) or id(value) in met or depth > DEEPEST:
            return
        met[id(value)] = value
        if isinstance(value, Tensor):
            parts.append(UnregisteredPart(name, "tensor", value, [value], holder, place, attribute))
        elif isinstance(value, nn.Module):  # the parts of a module belong to the module
            tensors = [*value.parameters(), *value.buffers()]
            met.update({id(part): part for part in (*value.modules(), *tensors)})
            parts.append(UnregisteredPart(name, "module", value, tensors, holder, place, attribute))
        else:
            for key, item, inner_holder in _inside(value):
                inner_holder = inner_holder if holder in ("attribute", "class") else holder
                look(item, f"{name}{key}", inner_holder, place, attribute, depth + 1)

    for owner, module in list(model.named_modules()):
        prefix = f"{owner}." if owner else ""
        parameters = dict(module.named_parameters(recurse=False))
        for name, value in devices.attributes(module):
            # The norms of torch.nn.utils compute an attribute from these parameters before each forward pass.
            if not any(f"{name}_{suffix}" in parameters for suffix in ("orig", "g", "v")):
                look(value, prefix + name, "attribute", _place_of(module, name), name)
        for base in filter(_is_users, type(module).__mro__):
            for name, value in vars(base).items():
                if isinstance(value, (Tensor, list, tuple, dict)) and not name.startswith("__"):
                    look(value, prefix + name, "class", line_of(base), name)
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            for hook in vars(module).get(name, {}).values():
                code: Any = getattr(hook, "__code__", None)
                is_users = code and devices.rank(code.co_filename) < 2
                place = Place(code.co_filename, code.co_firstlineno) if is_users else None
                look(hook, f"{prefix}forward hook", "hook", place, "")
    return parts


def _place_of(module: nn.Module, name: str) -> Place | None:
    """Return the line in a class's methods that assigns an attribute; if there is none, the line of the class."""
    return devices.assigned(type(module), name, alone=False) or line_of(type(module))


def _inside(value: Any) -> Iterator[tuple[str, Any, results.HolderKind]]:
    """Yield the contents of a container, a function or an object, each with its path in Python notation."""
    if isinstance(value, (Mapping, list, tuple, set, frozenset, deque)):
        if len(value) <= LONGEST:
            pairs = list(value.items()) if isinstance(value, Mapping) else enumerate(value)
            yield from ((f"[{key!r}]", item, "container") for key, item in pairs)
    elif isinstance(value, functools.partial):
        yield from (("", item, "closure") for item in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", item, "closure") for item in (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # the cell is still empty
                yield f" → {name}", cell.cell_contents, "closure"
    else:
        kind, package = type(value), type(value).__module__.partition(".")[0]
        is_holder = kind is types.SimpleNamespace or kind.__module__.startswith("torch.distributions")
        if is_holder or (_is_users(kind) and package not in ("numpy", "torchvision")):
            yield from ((f".{name}", item, "object") for name, item in getattr(value, "__dict__", {}).items())


@functools.lru_cache(maxsize=256)
def source_of(kind: type) -> tuple[ast.AST | None, int, str]:
    """Return the syntax tree of a class, its first line and its file. Without source, the tree is None."""
    try:
        lines, first = inspect.getsourcelines(kind)
        return ast.parse(textwrap.dedent("".join(lines))), first, inspect.getsourcefile(kind) or ""
    except (OSError, TypeError, SyntaxError):
        return None, 0, ""


_MOVES = ("to", "cuda", "type_as", "cpu", "pin_memory")
# Attributes and methods that work for a tensor on any device.
_READS = (
    *("shape", "dtype", "device", "size", "dim", "ndim", "numel"),
    *("tolist", "item", "numpy", "new_zeros", "new_ones"),
)


def read_use(model: nn.Module, name: str) -> results.TensorUse:
    """Return how the methods of the model's classes use an attribute: copied at every read, unread, or unknown."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    uses: list[str] = []
    for tree in (source_of(kind)[0] for kind in filter(_is_users, classes)):
        nodes = [] if tree is None else [*ast.walk(tree)]
        # Reads in `__init__` do not count, because `__init__` runs before the move.
        set_up = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        in_set_up = {id(node) for function in set_up for node in ast.walk(function)}
        parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                uses += [_use_of(node, parents)] if id(node) not in in_set_up else []
    if not (uses := [use for use in uses if use not in _READS]):
        return "unread"
    return "copied" if all(use in _MOVES for use in uses) else "unknown"


def _use_of(node: ast.AST, parents: dict[int, ast.AST]) -> str:
    """Return the attribute that is read from a value; `to` if the value is an index, which torch copies; else ""."""
    above = parents.get(id(node))
    if isinstance(above, ast.Attribute):
        return above.attr
    while isinstance(above, (ast.Tuple, ast.Slice)):
        node, above = above, parents.get(id(above))
    return "to" if isinstance(above, ast.Subscript) and above.slice is node else ""


MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def size_of(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def rows(model: nn.Module, where: Callable[[Tensor], str], depth: int) -> tuple[ModuleRow, ...]:
    """Return a row for the model and for each module with weights, down to `depth`. Equal neighbours share a row."""
    counted: set[int] = set()  # a tied tensor counts in the first module only

    def with_children(module: nn.Module, name: str, level: int) -> list[ModuleRow]:
        parameters = [parameter for parameter in module.parameters() if id(parameter) not in counted]
        buffers = [buffer for buffer in module.buffers() if id(buffer) not in counted]
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
        counted.update(map(id, both))
        with_weights = [child for child in below if child[0].parameters or child[0].buffer_bytes]
        rows = [row]
        # Equal modules have equal rows except for the module's own name.
        unnamed = lambda rows: [replace(row, name=row.name.removeprefix(rows[0].name)) for row in rows]  # noqa: E731
        for equal in (list(group) for _, group in itertools.groupby(with_weights, unnamed)):
            first = equal[0][0].name
            # `layers.0` to `layers.11` become `layers.0-11`, also in the names of their children.
            label = f"{first}-{equal[-1][0].name.rpartition('.')[2]}" if len(equal) > 1 else first
            rows += [replace(r, name=label + r.name[len(first) :], repeats=r.repeats * len(equal)) for r in equal[0]]
        return rows

    return tuple(with_children(model, "", 0))


def totals(model: nn.Module) -> results.Totals:
    return results.Totals(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameter_bytes=sum(map(size_of, model.parameters())),
        buffer_bytes=sum(map(size_of, model.buffers())),
    )


def training(groups: Sequence[tuple[Sequence[nn.Parameter], MakeOptimizer]], text: str) -> results.TrainingBytes:
    """Return the bytes of the gradients, and of the optimizer's state after a step on tensors without memory."""
    gradient = sum(size_of(parameter) for parameters, _ in groups for parameter in parameters)
    try:
        state = sum(_state_bytes(parameters, make) for parameters, make in groups)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return results.TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=None, reason=reason[:200])
    return results.TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=state)


def _state_bytes(parameters: Sequence[nn.Parameter], make: MakeOptimizer, device: str = "meta") -> int:
    """Return the bytes of all states except counters. One parameter of each shape and dtype makes a step."""
    counts = Counter((parameter.shape, parameter.dtype) for parameter in parameters)
    stand_ins = {nn.Parameter(torch.ones(key[0], dtype=key[1], device=device)): count for key, count in counts.items()}
    try:
        for stand_in in stand_ins:
            stand_in.grad = torch.ones_like(stand_in)
        optimizer = make([*stand_ins])
        optimizer.step()
    except (RuntimeError, NotImplementedError):
        if device == "cpu":
            raise
        return _state_bytes(parameters, make, "cpu")  # the optimizer reads values
    return sum(
        count * size_of(state)
        for stand_in, count in stand_ins.items()
        for state in optimizer.state[stand_in].values()
        # A counter is a single number.
        if isinstance(state, Tensor) and (state.dim() > 0 or stand_in.dim() == 0)
    )


MOST_MISMATCHES = 20  # enough for the user to repair at once
MOST_TEXT = 300  # characters of an error's text
# Words in errors of a build or a machine without the device. The program did not cause these errors.
OF_THE_DEVICE = (
    *("cuda", "cudnn", "nccl", "triton", "aten_cuda", "accelerator", "gpu", "flash_attn", "xformers", "torch._c"),
    *("not implemented for", "mixed dtype (cpu)", "on cpu does not support", "zerodivisionerror"),
)


def examine(asked: ModelOptions) -> results.ModelResult:
    """Build the target, move it and run it, all on simulated devices. Raises TargetError and UsageError."""
    sim = Simulation()
    with simulated(sim) as torch_calls:
        built = work.build(parse_target(asked.target), parse_inputs(asked.inputs))
        return _Examination(asked, sim, torch_calls, built).result()


@dataclass(slots=True)
class _Examination:
    asked: ModelOptions
    sim: Simulation
    torch_calls: TorchCalls
    built: work.BuiltTarget
    device: str = str(COUNTED)  # the model's device, unless the target has moved the model to another

    def result(self) -> results.ModelResult:
        """Search for parts that stay behind, then run the model: the run's findings refer to these parts."""
        asked, model = self.asked, self.built.model
        meta = tuple(name for name, tensor in _registered(model) if tensor.is_meta)
        placed = set() if meta else {self._where(tensor) for _, tensor in _registered(model)} - {"cpu", "unknown"}
        if placed:
            self.device = min(placed)
        elif not meta:
            self._move()
        model = self.built.model
        self.sim.names = {id(module): name for name, module in model.named_modules()}
        parts = [] if meta else self._left()
        self._name_origins(parts)
        run, options = (None if meta else self._run()), None
        cached = self._cached() if run is not None and run.stopped is None else []
        not_run = f"parameters without data: {meta[0]}" if meta else None
        if run is None and not meta:
            options, takes = work.proposed(model)
            not_run = "; ".join(filter(None, ("no --input, and the target has no make_batch", takes)))
        return results.ModelResult(
            target=self.built.text,
            kind=type(model).__name__,
            device=self.device,
            rows=rows(model, self._where, asked.depth),
            totals=totals(model),
            training=self._training(),
            left_behind=(*(self._row_of(part, run) for part in parts), *cached),
            meta=meta,
            run=run,
            not_run=not_run,
            not_followed=torch_private.lost("simulation"),
            proposed=options,
        )

    def _move(self) -> None:
        # A user's own `.to` may accept only positional arguments, which most programs pass.
        arguments = (self.device,) if self.asked.dtype is None else (self.device, getattr(torch, self.asked.dtype))
        try:
            moved = self.built.model.to(*arguments)
        except GpucheckError:
            raise
        except Exception as error:
            raise work.raised(f"{self.built.text}: .to({self.device!r})", error) from error
        # A user's own `.to` may return nothing.
        self.built.model = moved if isinstance(moved, nn.Module) else self.built.model

    def _where(self, tensor: Tensor) -> str:
        return str(self.sim.placements.device(tensor) or "unknown")

    def _left(self) -> list[UnregisteredPart]:
        behind = [
            replace(part, tensors=behind)
            for part in held(self.built.model)
            if (behind := [tensor for tensor in part.tensors if self._is_behind(tensor)])
        ]
        for name, tensor in _registered(self.built.model):
            if self._is_behind(tensor):
                owner, _, attribute = name.rpartition(".")
                parent, _, child = owner.rpartition(".")  # the owner may be a module of torch, without a user's line
                place = _place_of(self.built.model.get_submodule(owner), attribute)
                place = place or _place_of(self.built.model.get_submodule(parent), child)
                behind.append(UnregisteredPart(name, "parameter", tensor, [tensor], "attribute", place, attribute))
        return behind

    def _cached(self) -> list[LeftBehind]:
        """Return tensors that forward created once and keeps in a plain attribute: they miss later moves."""
        return [
            replace(self._row_of(part, None), device=self.device, use="cached")
            for part in held(self.built.model)
            if part.holder == "attribute" and part.kind == "tensor" and self._where(part.value) == self.device
            if part.place is not None and devices.is_conditional(part.place)
        ]

    def _is_behind(self, tensor: Tensor) -> bool:
        # A single number may be on the CPU.
        return self.sim.placements.device(tensor) == CPU and tensor.dim() > 0 and not tensor.is_meta

    def _row_of(self, part: UnregisteredPart, run: results.SimulatedRun | None) -> LeftBehind:
        description = f"{str(part.tensors[0].dtype).removeprefix('torch.')} tensor of shape {[*part.tensors[0].shape]}"
        if part.kind == "module":
            count = sum(tensor.numel() for tensor in part.tensors)
            description = f"{type(part.value).__name__} with {count} parameters"
        return LeftBehind(
            name=part.name,
            kind=part.kind,
            what=description,
            device="cpu",
            place=devices.text_of(part.place),
            use=self._use(part, run),
            holder=part.holder,
            attribute=part.attribute,
            is_trained=part.kind == "tensor" and part.tensors[0].requires_grad,
        )

    def _use(self, part: UnregisteredPart, run: results.SimulatedRun | None) -> results.TensorUse:
        """Return how the run used the part. If the run does not show the use, read the source."""
        origins = [self.sim.placements.of(tensor).origin for tensor in part.tensors]
        entries = run.mismatches if run is not None else ()
        wrong = {operand.origin_name for entry in entries for operand in entry.operands if operand.is_wrong}
        if any(origin is not None and origin.what in wrong for origin in origins):
            return "mismatched"
        if part.kind != "parameter" and any(origin in self.torch_calls.copied for origin in origins):
            return "copied"
        has_finished = run is not None and run.stopped is None
        if has_finished and not {*origins}.isdisjoint(self.sim.met or ()):
            return "unread"
        # Another run may use the part, as a head of the model, or in a branch of the other mode.
        if part.kind == "tensor" and part.holder in ("attribute", "class", "container", "object"):
            use = read_use(self.built.model, part.attribute)
            if part.holder in ("attribute", "class"):
                return "unread" if has_finished and use == "copied" else use
            if has_finished and use == "unread":  # nothing reads the object that holds the tensor
                return use
        return "unknown"

    def _name_origins(self, parts: Sequence[UnregisteredPart]) -> None:
        """Record the names of the model's tensors, which a mismatch reports."""
        placements = self.sim.placements
        for part in parts:
            origin = Origin("parameter" if part.kind == "parameter" else "attribute", part.name, part.place)
            for tensor in part.tensors:
                placements.put(tensor, CPU, origin)
        for name, tensor in _registered(self.built.model):
            device = placements.device(tensor)
            if device is not None and placements.of(tensor).origin is None and not tensor.is_meta:
                kind: OriginKind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                placements.put(tensor, device, Origin(kind, name))

    def _run(self) -> results.SimulatedRun | None:
        """Run a pass or a step until no new mismatch occurs. Each found site is tolerated. None without input."""
        asked = self.asked
        if not self.built.has_inputs:
            return None
        train = asked.train and any(parameter.requires_grad for parameter in self.built.model.parameters())
        workload = work.equip(
            self.built,
            mode="train" if train else "infer",
            optimizer=asked.optimizer,
            dtype=asked.dtype,
            device=torch.device(self.device),
            recipe=StepRecipe(amp=asked.amp),
        )
        mismatches: list[Mismatch] = []
        stopped: str | None = None
        stopped_at: Place | None = None
        self.sim.met = set()
        while len(mismatches) < MOST_MISMATCHES:
            self.sim.last = None
            try:
                self._step(workload, train)
            except Exception as error:  # noqa: BLE001 (the user's model may raise anything)
                if (mismatch := mismatch_in(self.sim, error)) is not None:
                    mismatches.append(mismatch)
                    self.sim.tolerated.add(mismatch.site)
                    continue
                stopped, stopped_at = self._stop(error, mismatches)
            break
        return results.SimulatedRun(
            phase="step" if train else "forward",
            batch_size=asked.batch_size,
            mismatches=tuple(causes(mismatch.entry for mismatch in mismatches)),
            unjudged=tuple(
                results.UnjudgedOperation(operation=name, place=devices.text_of(place))
                for name, place in self.sim.unjudged.items()
            ),
            stopped=stopped,
            stopped_at=devices.text_of(stopped_at),
        )

    def _step(self, workload: work.Workload, train: bool) -> None:
        self.sim.phase = "step" if train else "forward"
        if train:
            workload.model.train()
            work.step(workload, self._batch(workload))
            return
        # A forward pass may compute gradients itself, which inference mode would prevent.
        with torch.no_grad(), work.autocast(self.asked.amp, workload.device):
            work.forward(workload, self._batch(workload))

    def _batch(self, workload: work.Workload) -> work.Batch:
        batch = workload.make_batch(self.asked.batch_size)
        names = [*work.parameters_of(workload.model.forward)]
        for name, value in (*zip(names, batch.arguments, strict=False), *batch.keywords.items()):
            for tensor in tensors_in(value):
                if (device := self.sim.placements.device(tensor)) is not None and not tensor.is_meta:
                    self.sim.placements.put(tensor, device, Origin("input", name))
        return batch

    def _stop(self, error: Exception, mismatches: Sequence[Mismatch]) -> tuple[str, Place | None]:
        """Return why and where the analysis stops. Raises TargetError for an error of the program itself."""
        if isinstance(error, GpucheckError):
            # The fix in the error's text names an option of `find-batch-size`.
            error.fix = error.fix.replace("add --mode infer", "leave --train out")
            raise error
        text = f"{type(error).__name__}: {' '.join(message_of(error).split())}"
        if not is_of_device(error, text) and not mismatches:
            phase = "the training step" if self.asked.train else "the forward pass"
            raise work.raised(f"{phase} of {self.built.text}", error) from error
        return text[:MOST_TEXT], innermost(error.__traceback__)

    def _training(self) -> results.TrainingBytes | None:
        trained = [parameter for parameter in self.built.model.parameters() if parameter.requires_grad]
        optimizer = getattr(self.built.whole, "optimizer", None) if self.built.whole is not self.built.model else None
        if not trained:
            return None
        if isinstance(optimizer, torch.optim.Optimizer):
            kind: Any = type(optimizer)
            names = [name for name in inspect.signature(kind.__init__).parameters if name != "params"]
            groups = [
                (group["params"], functools.partial(kind, **{name: group[name] for name in names if name in group}))
                for group in optimizer.param_groups
            ]
            return training(groups, f"{kind.__name__} of the target")
        if callable(optimizer) and not isinstance(optimizer, nn.Module):
            return training([(trained, optimizer)], "the target's own")
        chosen = work.by_name(self.asked.optimizer)
        return training([(trained, chosen.build)], chosen.text)


def causes(entries: Iterable[results.DeviceMismatchEntry]) -> Iterator[results.DeviceMismatchEntry]:
    """Leave out a mismatch in torch's own code, as in a backward pass, if an earlier line mixed the same tensors."""
    known: set[object] = {None}
    for entry in entries:
        wrong = [operand for operand in entry.operands if operand.is_wrong]
        origins = {operand.origin and (operand.origin, operand.origin_name, operand.origin_place) for operand in wrong}
        if entry.place is not None or len(known) == 1 or not origins <= known:
            yield entry
        known |= origins


def is_of_device(error: BaseException, text: str) -> bool:
    """Return whether the cause of an error may be that this machine or build lacks the device."""
    if isinstance(error, ZeroDivisionError):  # CPU kernels raise a RuntimeError with this text instead
        return False
    return isinstance(error, (NotImplementedError, ImportError)) or any(word in text.lower() for word in OF_THE_DEVICE)


def mismatch_in(sim: Simulation, error: BaseException) -> Mismatch | None:
    """Return the mismatch that caused an exception. TorchScript's exception has no cause: return the last mismatch."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DeviceMismatch):
            return link.mismatch
        link = link.__cause__ or link.__context__
    return sim.last if "TorchScript" in message_of(error) else None


def _registered(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def innermost(trace: TracebackType | None) -> Place | None:
    """Return the user's innermost line in a traceback, else the innermost line of an installed package."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)][::-1]
    ranked = (frame for rank in (0, 1) for frame in frames if devices.rank(frame.f_code.co_filename) == rank)
    return next(map(devices.place_of, ranked), None)


def main() -> int:
    options = json.loads(sys.argv[1])
    say = child_stdio.claim_stdout()
    say({"started": True})
    try:
        answer = to_json(examine(ModelOptions(**{**options, "inputs": tuple(options["inputs"])})))
    except (GpucheckError, RuntimeError, MemoryError) as error:  # the user's factory may raise the last two
        known = error if isinstance(error, GpucheckError) else work.raised(f"the target {options['target']}", error)
        say(child_stdio.raised(known, getattr(known, "trace", "") or traceback.format_exc()))
        return 0
    except Exception:  # noqa: BLE001 (errors of the user's code are TargetError by now, so this is a bug of gpucheck)
        say({"failed": traceback.format_exc(), "end": True})
        return 1
    say({"answer": answer, "end": True})
    return 0
