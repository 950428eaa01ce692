"""A model on a device that its tensors claim: what its move leaves behind, and where a step meets that.

The user's code runs here, so this is imported in children only. It answers with plain data; `judge` says what is wrong.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.errors import GpucheckError, TargetError, UsageError
from gpucheck.program import contents
from gpucheck.program.claims import CPU, Origin, Place, place_of, rank, storage_of, text_of
from gpucheck.program.contents import Assignments, Held, reached, read_use
from gpucheck.program.engine import DeviceMismatch, Mismatch, World, tensors_in
from gpucheck.program.surface import Surface, claimed
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.report.results.model import (
    ClaimedRun,
    DeviceRun,
    LeftBehind,
    ModelResult,
    PlacedPart,
    Tie,
    TrainingBytes,
    UnjudgedOperation,
    Use,
)
from gpucheck.work.spec import Target
from gpucheck.work.target import Batch, Built, Workload, autocast, build, equip, forward, load, raised, step
from gpucheck.work.target_parts import by_name

# After so many a person has enough to repair.
MOST_MISMATCHES = 20
# Words of errors that a build or a machine without the device raises, not the program.
OF_THE_DEVICE = (
    "cuda",
    "cudnn",
    "nccl",
    "triton",
    "not implemented for",
    "aten_cuda",
    "gpu",
    "flash_attn",
    "xformers",
    "torch._c",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The request: a forward, or with `train` a whole step; `batch_size` samples of it."""

    target: Target
    inputs: tuple[Any, ...]
    train: bool
    optimizer: str
    dtype: str | None
    amp: str | None
    batch_size: int
    depth: int
    device: str = "cuda:0"


def examine(asked: Asked) -> ModelResult:
    """Build the target, move it and run it, all on claimed devices. Raises TargetError and UsageError."""
    world, assignments = World(), Assignments()
    with assignments.recorded(), claimed(world) as surface:
        built = build(asked.target, asked.inputs)
        return _Examination(asked, world, surface, assignments, built).result()


@dataclass(slots=True)
class _Examination:
    asked: Asked
    world: World
    surface: Surface
    assignments: Assignments
    built: Built
    # Where the model is to be: what was asked for, or where the target itself put it.
    device: str = ""
    was_moved: bool = False

    def result(self) -> ModelResult:
        """The answer: the static half first, for its findings explain the other's."""
        asked, model = self.asked, self.built.model
        self.device = asked.device
        meta = tuple(name for name, tensor in _registered(model) if tensor.is_meta)
        shared = _shared(model)
        split = () if meta else self._placed()
        if not meta and not split and self.device == asked.device:
            self._move()
        model = self.built.model
        self.world.names = {id(module): name for name, module in model.named_modules()}
        things = [] if meta else self._left()
        self._name_origins(things)
        reason = f"parameters without data: {meta[0]}" if meta else None
        run, not_run = (None, reason) if reason else self._run()
        return ModelResult(
            target=asked.target.text,
            kind=type(model).__name__,
            device=self.device,
            rows=contents.rows(model, self._where, asked.depth),
            totals=contents.totals(model),
            training=self._training(),
            left_behind=tuple(self._told(one, run) for one in things),
            untied=() if meta else self._untied(shared),
            meta=meta,
            split=split,
            run=run,
            not_run=not_run,
        )

    # -- the move ------------------------------------------------------------------------------------------------------

    def _placed(self) -> tuple[PlacedPart, ...]:
        """The parts of a model that its target itself put on several devices; empty for one on a single device."""
        names: dict[str, list[str]] = {}
        for name, tensor in _registered(self.built.model):
            names.setdefault(self._where(tensor), []).append(name)
        names.pop("unknown", None)
        if len(names) < 2:
            only = next(iter(names), "cpu")
            self.device = self.asked.device if only == "cpu" else only
            return ()
        return tuple(
            PlacedPart(device=device, count=len(those), first=those[0], place=text_of(self._line_of(those[0])))
            for device, those in names.items()
        )

    def _line_of(self, name: str) -> Place | None:
        """The line that gave a registered tensor its name."""
        owner, _, attribute = name.rpartition(".")
        return self.assignments.of(self.built.model.get_submodule(owner), attribute)

    def _move(self) -> None:
        # As most programs write it: a `.to` of the user's own may take nothing else.
        wanted = (self.device,) if self.asked.dtype is None else (self.device, getattr(torch, self.asked.dtype))
        try:
            moved = self.built.model.to(*wanted)
        except GpucheckError:
            raise
        except Exception as error:
            raise raised(f"{self.asked.target.text}: .to({self.device!r})", error) from error
        # A `.to` of the user's own may return nothing.
        self.built.model = moved if isinstance(moved, nn.Module) else self.built.model
        self.was_moved = True

    def _where(self, tensor: Tensor) -> str:
        device = self.world.claims.device(tensor)
        return "unknown" if device is None else str(device)

    # -- what stayed behind --------------------------------------------------------------------------------------------

    def _left(self) -> list[Held]:
        found = [
            replace(one, tensors=behind)
            for one in reached(self.built.model, self.assignments)
            if (behind := [tensor for tensor in one.tensors if self._is_behind(tensor)])
        ]
        for name, tensor in _registered(self.built.model) if self.was_moved else ():
            if self._is_behind(tensor):
                owner, _, attribute = name.rpartition(".")
                place = self._line_of(name)
                found.append(Held(name, "parameter", tensor, [tensor], "attribute", place, owner, attribute))
        return [*found, *self._optimizer_states()]

    def _is_behind(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the CPU where it matters: a number may lie there."""
        return self.world.claims.device(tensor) == CPU and tensor.dim() > 0 and not tensor.is_meta

    def _optimizer_states(self) -> Iterator[Held]:
        """States that an optimizer made before the move, of parameters that moved."""
        optimizer = getattr(self.built.whole, "optimizer", None)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        names = {id(tensor): name for name, tensor in _registered(self.built.model)}
        for parameter, state in optimizer.state.items():
            if not isinstance(parameter, Tensor) or self._where(parameter) == "cpu":
                continue
            behind = [(key, value) for key, value in state.items() if isinstance(value, Tensor)]
            behind = [(key, value) for key, value in behind if self._is_behind(value)]
            if behind:
                name = f"optimizer.state[{names.get(id(parameter), 'a parameter')}][{behind[0][0]!r}]"
                tensors = [value for _, value in behind]
                yield Held(name, "optimizer-state", optimizer, tensors, "object", None, "", "optimizer")
                return  # one stands for all: they are made in one line

    def _told(self, one: Held, run: ClaimedRun | None) -> LeftBehind:
        shapes = "×".join(map(str, one.tensors[0].shape))
        dtype = str(one.tensors[0].dtype).removeprefix("torch.")
        what = f"{shapes} {dtype} tensor"
        if one.kind == "module":
            elements = sum(tensor.numel() for tensor in one.tensors)
            what = f"{type(one.value).__name__} with {elements} parameters"
        elif one.kind == "optimizer-state":
            what = f"state of {type(one.value).__name__}"
        return LeftBehind(
            name=one.name,
            kind=one.kind,
            what=what,
            device="cpu",
            place=text_of(one.place),
            use=self._use(one, run),
            holder=one.holder,
            attribute=one.attribute,
            is_trained=one.kind == "tensor" and one.tensors[0].requires_grad,
            replaced=self._replaced(one),
        )

    def _use(self, one: Held, run: ClaimedRun | None) -> Use:
        """Return what the run did with it; without a whole run what the source says."""
        origins = [self.world.claims.of(tensor).origin for tensor in one.tensors]
        entries = run.mismatches if run is not None else ()
        wrong = {operand.origin_name for entry in entries for operand in entry.operands if operand.is_wrong}
        if any(origin is not None and origin.what in wrong for origin in origins):
            return "mismatched"
        if any(origin in self.surface.copied for origin in origins):
            return "copied"
        if run is not None and run.stopped is None:
            return "unread"
        if one.kind == "tensor" and one.holder in ("attribute", "class"):
            return read_use(self.built.model, one.attribute)
        return "unknown"

    def _replaced(self, one: Held) -> str | None:
        """The user's own `.to` or `_apply` of a module above: it was to move this, or is why nothing did."""
        model = self.built.model
        parts = one.owner.split(".") if one.owner else []
        for length in range(len(parts), -1, -1):
            module = model.get_submodule(".".join(parts[:length])) if length else model
            for method in ("_apply", "to", "cuda"):
                function = getattr(type(module), method, None)
                code = getattr(function, "__code__", None)
                if code is not None and rank(code.co_filename) < 2:
                    place = Place(code.co_filename, code.co_firstlineno)
                    return f"{type(module).__name__}.{method} ({place})"
        return None

    def _untied(self, shared: list[tuple[str, ...]]) -> tuple[Tie, ...]:
        """Groups that shared their memory before the move and do not any more."""
        now = dict(_registered(self.built.model))
        ties = []
        for names in shared:
            storages = {id(storage_of(now[name])) for name in names if name in now}
            if len(storages) > 1:
                ties.append(Tie(names=names, place=text_of(self._line_of(names[-1]))))
        return tuple(ties)

    def _name_origins(self, things: Sequence[Held]) -> None:
        """Give what is on the CPU its name, so that a mismatch can say whose tensor it met."""
        claims = self.world.claims
        for one in things:
            for tensor in one.tensors:
                kind = (
                    "state"
                    if one.kind == "optimizer-state"
                    else "parameter"
                    if one.kind == "parameter"
                    else "attribute"
                )
                claims.put(tensor, CPU, Origin(kind, one.name, one.place))  # type: ignore[arg-type]
        for name, tensor in _registered(self.built.model):
            device = claims.device(tensor)
            if device is not None and claims.of(tensor).origin is None and not tensor.is_meta:
                claims.put(tensor, device, Origin("parameter" if isinstance(tensor, nn.Parameter) else "buffer", name))

    # -- the run -------------------------------------------------------------------------------------------------------

    def _run(self) -> tuple[ClaimedRun | None, str | None]:
        """A forward or a step, again after each mismatch, which is then let pass; or why there is none."""
        asked = self.asked
        if not self.built.has_inputs:
            return None, "no --input, and the target has no make_batch"
        train = asked.train and any(one.requires_grad for one in self.built.model.parameters())
        self.world.phase = "step" if train else "forward"
        workload = self._workload(train)
        found: list[Mismatch] = []
        stopped: tuple[str, Place | None] | None = None
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
                stopped = self._stop(error, found)
            break
        return (
            ClaimedRun(
                phase=self.world.phase,
                batch_size=asked.batch_size,
                mismatches=tuple(one.entry for one in found),
                unjudged=tuple(
                    UnjudgedOperation(operation=name, place=text_of(place))
                    for name, place in self.world.unjudged.items()
                ),
                stopped=stopped[0] if stopped else None,
                stopped_at=text_of(stopped[1]) if stopped else None,
                note="no parameter requires a gradient: no training step" if asked.train and not train else None,
            ),
            None,
        )

    def _step(self, workload: Workload, train: bool) -> None:
        batch = self._batch(workload)
        if train:
            step(workload, batch)
            return
        # Not inference mode: a forward that takes gradients of its own runs under no_grad alone.
        with torch.no_grad(), autocast(self.asked.amp, workload.device):
            forward(workload, batch)

    def _workload(self, train: bool) -> Workload:
        asked = self.asked
        return equip(
            self.built,
            asked.target,
            mode="train" if train else "infer",
            optimizer=asked.optimizer,
            dtype=asked.dtype,
            device=torch.device(self.device),
            recipe=StepRecipe(amp=asked.amp),
        )

    def _batch(self, workload: Workload) -> Batch:
        batch = workload.make_batch(self.asked.batch_size)
        names = [*inspect.signature(workload.model.forward).parameters]
        for name, value in (*zip(names, batch.arguments, strict=False), *batch.keywords.items()):
            for tensor in tensors_in(value):
                device = self.world.claims.device(tensor)
                if device is not None and not tensor.is_meta:
                    self.world.claims.put(tensor, device, Origin("input", name))
        return batch

    def _stop(self, error: Exception, found: Sequence[Mismatch]) -> tuple[str, Place | None]:
        """Why the run cannot be followed further. Raises TargetError for an error of the program's own."""
        if isinstance(error, GpucheckError):
            # The same words serve a search, whose option is another.
            error.fix = error.fix.replace("add --mode infer", "leave --train out")
            raise error
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        of_device = isinstance(error, (NotImplementedError, ImportError)) or any(
            word in text.lower() for word in OF_THE_DEVICE
        )
        if not of_device and not found:
            what = "the training step" if self.asked.train else "the forward pass"
            raise raised(f"{what} of {self.asked.target.text}", error) from error
        return text[:300], innermost(error.__traceback__)

    # -- what training adds --------------------------------------------------------------------------------------------

    def _training(self) -> TrainingBytes | None:
        trained = [one for one in self.built.model.parameters() if one.requires_grad]
        given = getattr(self.built.whole, "optimizer", None) if self.built.whole is not self.built.model else None
        if not trained:
            return None
        if isinstance(given, torch.optim.Optimizer):
            kind: Any = type(given)
            groups = [
                (group["params"], _like(kind, {key: value for key, value in group.items() if key != "params"}))
                for group in given.param_groups
            ]
            return contents.training(groups, f"{kind.__name__} of the target")
        if callable(given) and not isinstance(given, nn.Module):
            return contents.training([(trained, given)], "the target's own")
        chosen = by_name(self.asked.optimizer)
        return contents.training([(trained, chosen.build)], chosen.text)


def mismatch_in(world: World, error: BaseException) -> Mismatch | None:
    """The mismatch that an exception comes from. TorchScript's own error says nothing of it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DeviceMismatch):
            return link.mismatch
        link = link.__cause__ or link.__context__
    return world.last if "TorchScript" in str(error) else None


def on_device(asked: Asked) -> DeviceRun | None:
    """The same step on the GPU that is here, with nothing in between; None where this torch can use none.

    Raises TargetError and UsageError.
    """
    if not torch.cuda.is_available():
        return None
    recipe = StepRecipe(amp=asked.amp)
    mode = "train" if asked.train else "infer"
    device = torch.device(asked.device)
    try:
        workload = load(
            asked.target,
            asked.inputs,
            mode=mode,  # type: ignore[arg-type]
            optimizer=asked.optimizer,
            dtype=asked.dtype,
            device=device,
            recipe=recipe,
        )
        step(workload, workload.make_batch(asked.batch_size))
        torch.cuda.synchronize(device)
    except (UsageError, TargetError):
        raise
    except Exception as error:  # noqa: BLE001 (the user's model may raise anything)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return DeviceRun(device=asked.device, error=text[:300], place=text_of(innermost(error.__traceback__)))
    return DeviceRun(device=asked.device)


def _registered(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _shared(model: nn.Module) -> list[tuple[str, ...]]:
    """Names of parameters and buffers that are several tensors in one storage: a move copies each by itself.

    One Parameter under two names stays one, and is not among them.
    """
    by_storage: dict[int, list[str]] = {}
    for name, tensor in _registered(model):
        storage = storage_of(tensor)
        if storage is not None and not tensor.is_meta and storage.nbytes() > 0:
            by_storage.setdefault(id(storage), []).append(name)
    return [tuple(names) for names in by_storage.values() if len(names) > 1]


def _like(kind: Any, options: dict[str, Any]) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return what makes an optimizer of a kind with a group's options."""
    known = {key: value for key, value in options.items() if key in inspect.signature(kind.__init__).parameters}
    return lambda parameters: kind(parameters, **known)


def innermost(trace: TracebackType | None) -> Place | None:
    """The user's innermost line of a traceback; where there is none, an installed package's."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    for whose in (0, 1):
        for frame in reversed(frames):
            if rank(frame.f_code.co_filename) == whose:
                return place_of(frame)
    return None
