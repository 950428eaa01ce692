"""The answer of `run`: a program's time, its copies and waits by line, and its memory. `run --dry` has no times,
because a CPU did the work of a simulated device. Sizes are in bytes. A source line is text: `train.py:12`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpucheck.report.results.model import DeviceMismatchEntry, UnjudgedOperation

WaitsFor = Literal["data", "host", "copies", "device", "inconclusive"]


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of `window_s` seconds that exclude each other and add up to 1. `data` is time in the loader's `__next__`,
    `copies` in calls that copy to a device, and `waits` in calls that return once the device is done, such as copies to
    the host. `rest` is all other time: Python, launching kernels, other waits. `device_busy` is NVML's share of the
    time in which any kernel ran on the GPU, and overlaps with the other shares. `cpu` is the processor time of the
    process's threads divided by `window_s`, which several threads can raise above 1."""

    window_s: float
    data: float
    copies: float
    waits: float
    rest: float
    device_busy: float | None
    device_busy_unknown: str | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps of the run. `first_s` are the times of the first and the traced steps, which the median leaves out."""

    count: int
    by: Literal["optimizer", "gpucheck.api.step"]
    median_s: float | None
    slowest_s: float | None
    # Earlier documents do not have this field.
    first_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RunLine:
    """The activity of one line of the program: `kind` is `to_device`, `to_host`, `between`, `data`, `synchronize`,
    `empty_cache`, or the call that waited (`item`, `bool`, `print`, …).

    `time_s` is the time that the program spent in these calls, and `bytes` is the amount that the calls moved or read.
    `pinned` and `pageable` count the copies by their host memory. `unpinned_async` counts the copies with
    `non_blocking` that blocked, because their memory was pageable. `unchanged_again` counts copies of a tensor that had
    been copied to the same device and had not changed. `steps` is the number of steps with such calls. `discarded` is
    whether the statement discards the result.
    """

    kind: str
    file: str
    line: int
    count: int
    bytes: int
    time_s: float
    steps: int
    pinned: int
    pageable: int
    unpinned_async: int
    unchanged_again: int
    discarded: bool
    source: str | None


@dataclass(frozen=True, slots=True)
class RunDevice:
    """The memory that torch took on a device. The peak is that of the whole run, with its step and phase."""

    id: str
    name: str
    total_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_step: int
    peak_phase: str
    fragmented_bytes: int
    retries: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grows from step to step: `bytes_per_step` in each of `steps` steps, `bytes` in total."""

    of: Literal["allocated", "resident"]
    bytes_per_step: float
    steps: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable of the program that held tensors when memory ran out."""

    name: str
    kind: str
    tensors: int
    bytes: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The state when memory ran out. `blame` is `fragmentation`, `other-processes`, `size`, `pinned` (memory to be
    page-locked), `runtime` (CUDA's own request for a stream, an event, a context or a library's start), or None. The
    sums are those of tensors that were alive when the program ended, on the device, or on the host if host memory ran
    out. `others` are activations, data and buffers that Python objects hold. `unnamed` is the rest."""

    device: str
    asked_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    other_processes_bytes: int | None
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    others_bytes: int
    unnamed_bytes: int | None
    blame: str | None
    holders: tuple[Holder, ...]
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class RunError:
    """The exception that ended the program, and the user's line."""

    kind: str
    text: str
    cause: str | None
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class TracedLine:
    """The memory that one line holds, and the module that runs the line. A step leaves `kept_bytes_per_step`."""

    file: str
    line: int
    module: str | None
    phase: str
    peak_bytes: int
    kept_bytes_per_step: float
    held_by: str | None


@dataclass(frozen=True, slots=True)
class Traced:
    """The traced steps. `slowdown` is their time divided by that of other steps."""

    steps: int
    peak_bytes: int
    slowdown: float | None
    lines: tuple[TracedLine, ...]


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a program. `exit` is its status, or the negative number of the signal that ended the program. `lines`
    are sorted by time, the longest first. `lines_lost` counts the lines without space in the record. `not_followed`
    names features of this torch that gpucheck cannot observe."""

    program: tuple[str, ...]
    exit: int | None
    wall_s: float
    torch: str | None
    device_used: bool
    waits_for: WaitsFor
    reason: str
    shares: TimeShares | None
    steps: RunSteps | None
    lines: tuple[RunLine, ...]
    lines_lost: int
    devices: tuple[RunDevice, ...]
    host_peak_bytes: int | None
    growth: Growth | None
    error: RunError | None
    out_of_memory: OutOfMemory | None
    traced: Traced | None
    not_followed: tuple[str, ...] = ()


# -- run --dry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DryLine:
    """The copies and reads of one line of the program. `kind` and counts are those of `run`."""

    kind: str
    file: str
    line: int
    count: int
    bytes: int
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Memory that a line allocated in a phase and that is still held."""

    place: str | None
    phase: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """Memory at one moment of step `step`, counted from 0. `asked_bytes` were requested at `place`. `held` are the
    lines that hold the most memory, and `made_in` has all bytes by the phase that allocated them."""

    place: str | None
    phase: str
    step: int
    asked_bytes: int
    allocated_bytes: int
    held: tuple[HeldBytes, ...]
    made_in: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryMemory:
    """The memory of tensors on the device, in blocks of 512 bytes. `total_bytes` is the size of the simulated memory;
    None if memory was not judged. `parameters_bytes`, `gradients_bytes` and `optimizer_bytes` are exact sums after the
    last step; None without a step. `exceeded` is the first moment at which tensors needed more than the total."""

    total_bytes: int | None
    peak: MemoryMoment
    parameters_bytes: int | None
    gradients_bytes: int | None
    optimizer_bytes: int | None
    exceeded: MemoryMoment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DryMismatch:
    """A mismatch that was raised in the program `times` times, as CUDA would raise it. `ended` is whether the mismatch
    ended the program. `assumed` is the number of values that had been assumed before."""

    mismatch: DeviceMismatchEntry
    ended: bool
    assumed: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedValue:
    """A missing value that the program read. The program got 0 or False."""

    what: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A line that runs differently than on the real device."""

    text: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DryStop:
    """The exception that ended the program. `of_device` is whether this machine or build may be the cause."""

    kind: str
    text: str
    place: str | None
    of_device: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtError(Remark):
    """An error that the program caught, `times` times: about dtypes, or of a process that it forked."""

    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryResult:
    """One run of a program on a simulated device. `exit` is its status, or the negative number of a signal.

    `steps` is the number of steps that were run, and `ended_after_steps` is whether gpucheck ended the program after
    these. `memory` is None if the program was cut off. `mixed` are errors about dtypes that the program caught, and the
    last error in a process that the program forked. `trains` is whether the program created an optimizer. `loops_ended`
    is whether loops over a DataLoader were ended early. `not_reached` names code that uses a module, an optimizer or a
    loss and did not run: functions of the program, and the next line of code that runs only once. `not_followed` names
    features of this torch that gpucheck cannot simulate.
    """

    program: tuple[str, ...]
    device: str
    exit: int | None
    torch: str | None
    has_values: bool
    steps: int
    ended_after_steps: bool
    mismatches: tuple[DryMismatch, ...]
    stopped: DryStop | None
    lines: tuple[DryLine, ...]
    memory: DryMemory | None
    assumed: tuple[AssumedValue, ...]
    assumed_count: int
    unjudged: tuple[UnjudgedOperation, ...]
    remarks: tuple[Remark, ...]
    mixed: tuple[CaughtError, ...] = ()
    trains: bool = False
    loops_ended: bool = False
    not_reached: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()


# -- run on several ranks: which rank delays the job, where the job hangs, which calls do not match --------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An exception that ended a rank: its class, its text, and the user's line."""

    type: str
    message: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRank:
    """One rank. Times are means per step, in seconds. `late_s` is its delay after its siblings in a step, and
    `last_share` the share of the steps in which this rank is last. `state` is the state in /proc at a hang, and `place`
    the user's line at that time. `ended_ns` is in nanoseconds after the epoch, on rank 0's clock. `device` names the
    used devices, joined by commas. `left_early`: the rank ended without an error, and other members of one of its
    groups called more collectives there. `lost_peer`: the rank's error says that another rank was gone. `raised` is the
    exception that ended the rank. In a job with sends and receives, `own_s` is the time of a step without waits for
    other ranks, and `p2p_s` the time of waits in sends and receives.
    """

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
    queued_s: float | None
    exit: int | None
    ended_ns: int | None
    state: str | None
    place: str | None
    left_early: bool = False
    lost_peer: bool = False
    raised: RankError | None = None
    own_s: float | None = None
    p2p_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective: its operation, its group, its number in the group, and the user's line."""

    name: str
    group: str
    number: int
    sizes: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHang:
    """A hanging collective. The ranks in `inside` wait in the collective, and those in `missing` have not called it.
    The ranks in `waiting` are missing because they wait in another collective. `resumed` is true if the missing ranks
    came later. `at_ns` is the time of a rank's detection, in nanoseconds after the epoch."""

    call: Collective
    waited_s: float
    inside: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    resumed: bool
    waiting: tuple[int, ...] = ()
    at_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMismatch:
    """Ranks that make different calls under the same number: `ranks` make `call`, and most others `expected`. Without
    `has_majority`, `ranks` are all ranks, and the wrong rank is unknown."""

    ranks: tuple[int, ...]
    call: Collective
    expected: Collective
    has_majority: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicWork:
    """Work in every `every`-th step, such as an evaluation or a checkpoint. The step takes `extra_s` longer than
    others, which is `share` of the job's time. `ranks` do this work; empty if all do or if the ranks are unknown."""

    every: int
    extra_s: float
    share: float
    times: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksResult:
    """The ranks of a job. `late` are the ranks that delay the job, by `cost_s` in each step of `step_s`. `activity` is
    the work that takes `activity_s` longer on these ranks than on their siblings, at `place`. `arrival` is the meaning
    of the times: arrivals, or when the host issued the calls (NCCL). With sends and receives, arrivals do not show
    which rank is slow: there a late rank is slower than its siblings in the stage, or than itself before step `since`.
    `busiest` are the ranks of the stage that works longest, which is not a fault."""

    world: int
    outcome: Literal["straggler", "alternating", "busiest", "alike", "not_decided"]
    reason: str
    arrival: Literal["arrival", "host issue"]
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
    busiest: tuple[int, ...] = ()
    since: int | None = None
    periodic: PeriodicWork | None = None
