"""The document of `fleet check` for a node, and the answer of `fleet judge` for many nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NODE_SCHEMA = "gpucheck.node/1"

# `silent`: the node left no document, or its check stopped early. `blind`: the check could not read the devices.
NodeState = Literal["good", "bad", "silent", "undecided", "blind"]


@dataclass(frozen=True, slots=True)
class NodePart:
    """A part of a node's check. `exit` is None if the part was ended early. `ended` is the reason."""

    id: str
    exit: int | None
    elapsed_s: float
    ended: str = ""


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """A finding that needs action, from the part `part` of the check."""

    part: str
    id: str
    verdict: str
    title: str
    message: str = ""
    fix: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of a node, with the fields for the comparison with siblings and peaks."""

    id: str
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_bus_width_bits: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFigure:
    """One rate of one device."""

    device: str
    name: str
    case: str
    rate: float
    unit: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """The document of a node, rewritten before every step. `step` is the current step, empty at the end. `exit` is None
    before the end. `ended` is the signal that ended the check at this step; empty after SIGKILL, because a killed
    process cannot write. `expected` is the number of nodes that the launcher started; None if unknown. `settings` are
    versions and settings that siblings share, without environment variables. `gpus` is the number of GPUs, if read."""

    schema: str
    gpucheck: str
    run: str
    host: str
    attempt: int
    boot_id: str | None
    launcher: str
    expected: int | None
    started_wall_s: float
    written_wall_s: float
    written_monotonic_s: float
    within_s: float
    step: str
    exit: int | None
    parts: tuple[NodePart, ...] = ()
    problems: tuple[NodeProblem, ...] = ()
    devices: tuple[NodeDevice, ...] = ()
    figures: tuple[NodeFigure, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class SlowDevice:
    """A device that is slower than its siblings, or than half the peak rate of its model. `ratio` is the rate divided
    by the siblings' rate or the peak. `device` is `all devices` if the whole node is slow."""

    device: str
    figure: str
    rate: float
    unit: str
    ratio: float
    against: Literal["siblings", "peak"]
    certain: bool


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node: its state, the cause and the fix. `step` is the last step that began, empty at the end. `ratios` has the
    rate of the slowest device in each figure, divided by the median of the model."""

    host: str
    state: NodeState
    step: str = ""
    cause: str = ""
    fix: str | None = None
    attempt: int | None = None
    devices: int = 0
    slow: tuple[SlowDevice, ...] = ()
    ratios: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """The devices of one model in one figure. `centre` is the median rate, and `spread` is relative."""

    model: str
    figure: str
    unit: str
    nodes: int
    devices: int
    centre: float
    spread: float
    slow: int
    judged: bool


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that was not judged, and the reason."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The fleet of one run. `suspect`: more nodes are slow or silent than the limit allows, so the check itself may be
    wrong. Then `bad` has only nodes that failed their check. All names in `good` and `bad` are safe in a shell."""

    run: str
    nodes: tuple[FleetNode, ...]
    groups: tuple[FleetGroup, ...]
    counts: dict[str, int]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    suspect: bool
    refused: tuple[RefusedFile, ...] = ()
    unexpected: tuple[str, ...] = ()
