"""The result of `model`: the weights, the tensors that `.to()` leaves behind, and the lines where the forward pass uses
these tensors. A source line is text such as `models.py:12`, or None if unknown. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The kind of a left-behind object. A `tensor` is neither a parameter nor a buffer.
LeftKind = Literal["tensor", "module", "parameter"]
# The use of a tensor in the forward pass. `mismatched`: mixed with tensors on the device. `copied`: copied to the
# device. `unread`: not used. `cached`: created by the forward pass, on the device. If nothing ran, `copied` and
# `unread` are read from the source of the class.
TensorUse = Literal["mismatched", "copied", "unread", "unknown", "cached"]
# The origin of a mismatched tensor: its role in the model, or the operation that created it. A `container` tensor is in
# a plain list or dict of a module. A `module` tensor belongs to a module in a plain list or dict.
OriginKind = Literal["attribute", "parameter", "buffer", "input", "made", "moved", "state", "container", "module"]
# The holder of a tensor: a plain attribute, a list or dict, an object, a function's closure, a forward hook, the class.
HolderKind = Literal["attribute", "container", "object", "closure", "hook", "class"]
Phase = Literal["forward", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module, or `repeats` equal consecutive modules. Sizes are those of one module with its submodules. Tied tensors
    count once. `dtypes` and `devices` are those of the parameters and buffers."""

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
    """The model's totals, with tied tensors counted once."""

    parameters: int
    parameter_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBytes:
    """The memory of a training step beside the weights. `reason` says why `optimizer_bytes` is unknown (None)."""

    optimizer: str
    gradient_bytes: int
    optimizer_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A tensor that is still on `device` after the move. `what` describes the tensor, and `use` is its use in the
    forward pass. `attribute` is its name in the module, and `holder` its holder. `is_trained`: it takes a gradient."""

    name: str
    kind: LeftKind
    what: str
    device: str
    place: str | None
    use: TensorUse = "unknown"
    holder: HolderKind = "attribute"
    attribute: str = ""
    is_trained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchedTensor:
    """An operand of a mismatch: the argument's name, the device, and the origin. `variable` is its name in the failing
    line. `maker_device` is the expression for `device=` in the line that creates the tensor, if that is the fix."""

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
    """An operation with operands on the wrong device. `peer` is a local variable on the right device, and `own_device`
    the program's expression for this device, such as `args.device`. `module` is the innermost running module."""

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
    """An operation from outside torch. The operation ran, but the devices of its operands were not judged."""

    operation: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A forward pass on the simulated device, or a training step if `phase` is `step`. `stopped` is the reason if the
    analysis stopped early, at the line `stopped_at`."""

    phase: Phase
    batch_size: int
    mismatches: tuple[DeviceMismatchEntry, ...] = ()
    unjudged: tuple[UnjudgedOperation, ...] = ()
    stopped: str | None = None
    stopped_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """The model, and the result of its move to `device`. `run` is None without a forward pass. `not_run` is then the
    reason, and `proposed` are options with which a forward pass runs. `meta` are parameters and buffers without data.
    `not_followed` are parts of the simulation that this version of torch does not support."""

    target: str
    kind: str
    device: str
    rows: tuple[ModuleRow, ...]
    totals: Totals
    training: TrainingBytes | None
    left_behind: tuple[LeftBehind, ...] = ()
    meta: tuple[str, ...] = ()
    run: SimulatedRun | None = None
    not_run: str | None = None
    not_followed: tuple[str, ...] = ()
    proposed: str | None = None
