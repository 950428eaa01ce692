"""The result of `model`: the weights, the tensors that stay behind when the model moves to a GPU, and the lines where
the forward pass uses them. A source line is text such as `models.py:12`, or None if unknown. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The kind of a left-behind object. A `tensor` is neither a parameter nor a buffer.
LeftKind = Literal["tensor", "module", "parameter"]
# The forward pass mixed a `mismatched` tensor with others, copied a `copied` one to the device, and did not use an
# `unread` one. The class's source shows `copied` and `unread` if nothing ran.
# Forward created a `cached` tensor itself, on the device.
TensorUse = Literal["mismatched", "copied", "unread", "unknown", "cached"]
# The origin of a mismatched tensor: its role in the model, or the operation that created it.
# A `container` tensor is in a module's plain list or dict. A `module` tensor belongs to a module in such a container.
OriginKind = Literal["attribute", "parameter", "buffer", "input", "made", "moved", "state", "container", "module"]
# The holder is a plain attribute, a list or dict, an object, a function's closure, a forward hook, or the class.
HolderKind = Literal["attribute", "container", "object", "closure", "hook", "class"]
Phase = Literal["forward", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module, or `repeats` equal modules in a row. Sizes are those of one module with its submodules. Tied tensors
    count once. `dtypes` and `devices` are those of its parameters and buffers."""

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
    """A tensor that is still on `device` after the move. `what` describes it, and `use` is how the forward pass uses
    it. `attribute` is its name in the module, `holder` the object that holds it; `is_trained`: it takes a gradient."""

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
    """An operand of a mismatch: its argument's name, its device, and its origin. `variable` is its name in the failing
    line. `maker_device` is an expression for the right device, if the line that creates the tensor should use it."""

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
    """An operation with operands on the wrong device. `peer` is a local variable on the right device, `own_device` the
    program's expression for it, such as `args.device`. `module` is the name of the innermost running module."""

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
    """An operation that is not torch's. It ran, but the devices of its operands were not judged."""

    operation: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A forward pass on the simulated device, or a whole training step if `phase` is `step`. `stopped` is the reason if
    the analysis did not reach the end. It stopped at the line `stopped_at`."""

    phase: Phase
    batch_size: int
    mismatches: tuple[DeviceMismatchEntry, ...] = ()
    unjudged: tuple[UnjudgedOperation, ...] = ()
    stopped: str | None = None
    stopped_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """The model, and the result of its move to `device`. `run` is None if no forward pass was run. `not_run` is then
    the reason, and `proposed` are options that run one. `meta` are parameters and buffers without data.
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
