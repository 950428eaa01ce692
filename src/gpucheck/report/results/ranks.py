"""The answer about the ranks of a job: who holds it up, where it hangs, which calls do not match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRank:
    """One rank. `late_s` is how much later than its siblings it is in a step, `last_share` in which part of the steps
    it is last. The times are means of a step; None: not known. `state` is the kernel's word for its process at a hang,
    `place` the user's line where it was then. `ended_ns` is on rank 0's clock, after the epoch. `sm_clock_hz`
    is its GPU's while kernels ran. `device` is what it used; several are joined by commas. `left_early`: it ended
    without an error, and others of a group of its made more collectives there. `lost_peer`: its error says that another
    rank was gone."""

    rank: int
    host: str
    device: str | None
    steps: int
    late_s: float | None
    last_share: float | None
    data_s: float | None
    copies_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    gc_s: float | None
    queued_s: float | None
    exit: int | None
    ended_ns: int | None
    state: str | None
    place: str | None
    sm_clock_hz: float | None = None
    left_early: bool = False
    lost_peer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective: its operation, group and number there, and the user's line."""

    name: str
    group: str
    number: int
    sizes: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHang:
    """A collective in which `inside` wait and to which `missing` have not come: of these `waiting` are in another one,
    which waits too. `resumed`: they came later."""

    call: Collective
    waited_s: float
    inside: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    resumed: bool
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMismatch:
    """Ranks that make different calls where the same one is due: `ranks` make `call`, most make `expected`.

    Without `has_majority` as many of the known ranks make each call: `ranks` are all of them, and none is to blame.
    """

    ranks: tuple[int, ...]
    call: Collective
    expected: Collective
    has_majority: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksResult:
    """A job's ranks. `late` are those that hold it up, for `cost_s` of each step of `step_s`; `activity` is what takes
    `activity_s` longer there than on siblings, at `place`. `arrival` says what the times are: arrivals, when the host
    issued the calls (NCCL), or the time inside them. `cost_share` is in which part of the steps nine tenths of the cost
    arise. `p2p` counts sends and receives, which are not judged (gloo's are not recorded)."""

    world: int
    outcome: Literal["straggler", "alternating", "alike", "not_decided"]
    reason: str
    arrival: Literal["arrival", "host issue", "inside"]
    steps: int
    step_s: float | None
    late: tuple[int, ...]
    cost_s: float | None
    last_share: float | None
    activity: str | None
    activity_s: float | None
    place: str | None
    ranks: tuple[JobRank, ...]
    hang: JobHang | None
    mismatch: JobMismatch | None
    not_seen: tuple[str, ...]
    cost_share: float | None = None
    p2p: int = 0
