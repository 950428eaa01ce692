"""The answer of `model`: the weights, the tensors that stay behind when the model moves to a GPU, and the lines where
the forward pass uses them. A source line is text such as `models.py:12`, None if unknown. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a left-behind thing is. `tensor` is one that the model holds outside of its parameters and buffers.
LeftKind = Literal["tensor", "module", "parameter"]
# What the forward did with it: met it where it must not be, copied it to the device, ran without it; or the class's
# source where nothing ran: `copied` and `unread` are then read there.
# `cached` was made by forward, on the device.
Use = Literal["mismatched", "copied", "unread", "unknown", "cached"]
# Where a tensor of a mismatch comes from: what it is called, or what made it.
# `container` is a tensor in a plain list or dict of a module, `module` one of a module there.
OriginKind = Literal["attribute", "parameter", "buffer", "input", "made", "moved", "state", "container", "module"]
# A plain attribute, a list or dictionary, an object, a function's closure, a hook of forward, or the class itself.
Holder = Literal["attribute", "container", "object", "closure", "hook", "class"]
Phase = Literal["forward", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module, or `repeats` alike in a row. Sizes are of one, with all that lies below it; tied tensors count once.

    `dtypes` and `devices` are those of its parameters and buffers.
    """

    name: str
    kind: str
    depth: int
    repeats: int = 1
    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The whole model, tied tensors once. `trained_bytes` are of parameters that take a gradient."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    trained_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBytes:
    """The memory of a training step beside the weights. If `optimizer_bytes` is None, `reason` says why it is
    unknown."""

    optimizer: str
    gradient_bytes: int
    optimizer_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A tensor that is still on `device` after the move. `what` describes it, and `use` says how the forward pass uses
    it.

    `attribute` is its name in the module, `holder` is the object that holds it, and `is_trained` is true if it takes a
    gradient.
    """

    name: str
    kind: LeftKind
    what: str
    device: str
    place: str | None
    use: Use = "unknown"
    holder: Holder = "attribute"
    attribute: str = ""
    is_trained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchedTensor:
    """An operand of a mismatch: its argument's name, where it lies, and where it comes from.

    `variable` is how the failing line names it, and `maker_device` an expression for the right device at the line of
    its origin, if it should be made there.
    """

    name: str
    device: str
    shape: tuple[int, ...]
    is_wrong: bool
    origin: OriginKind | None = None
    origin_name: str | None = None
    origin_place: str | None = None
    variable: str | None = None
    maker_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMismatchEntry:
    """An operation with operands on the wrong device. `peer` is a local variable on the right one, `own_device` the
    program's own name for it, as in `args.device`.

    `module` is the innermost module that was running, by its qualified name.
    """

    operation: str
    module: str | None
    place: str | None
    phase: Phase
    expected: str
    operands: tuple[MismatchedTensor, ...]
    peer: str | None = None
    own_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedOperation:
    """An operation that is not torch's own: it ran, but the devices of its operands were not judged."""

    operation: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRun:
    """A forward pass, or with `phase` `step` a whole training step, on the simulated device.

    `stopped` is why it could not be followed to its end, `stopped_at` the line from which on nothing is known.
    """

    phase: Phase
    batch_size: int
    mismatches: tuple[DeviceMismatchEntry, ...] = ()
    unjudged: tuple[UnjudgedOperation, ...] = ()
    stopped: str | None = None
    stopped_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """The model, and the result of its move to `device`. `run` None is a forward that was not asked for, for `not_run`;
    `proposed` are the options that ask for it.

    `meta` are parameters and buffers without data. `not_followed` is what this torch does not let be followed.
    `proposed` are options that ask for the forward, where `run` is None.
    """

    target: str
    kind: str
    device: str
    rows: tuple[ModuleRow, ...]
    totals: Totals
    training: TrainingBytes | None
    left_behind: tuple[LeftBehind, ...] = ()
    meta: tuple[str, ...] = ()
    run: ClaimedRun | None = None
    not_run: str | None = None
    not_followed: tuple[str, ...] = ()
    proposed: str | None = None
