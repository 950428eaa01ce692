"""What `run --dry` answers: a program on a device that is not here. No times: a CPU did the work. Sizes are bytes.

A line of source is text as `train.py:12`, None where it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.report.results.model import DeviceMismatchEntry, UnjudgedOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class DryLine:
    """What one line of the program copied or read; `kind` and counts are those of `run`."""

    kind: str
    file: str
    line: int
    function: str
    users: bool
    count: int
    bytes: int
    steps: int
    pinned: int
    pageable: int
    unpinned_async: int
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What a line has made in a phase and is held at that moment."""

    place: str | None
    phase: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """Memory at one moment, of step `step` counted from 0: `asked_bytes` were asked for at `place`.

    `held` are the lines that hold most, `made_in` the bytes of all lines by the phase that made them.
    """

    place: str | None
    phase: str
    step: int
    asked_bytes: int
    allocated_bytes: int
    held: tuple[HeldBytes, ...]
    made_in: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryMemory:
    """Tensors' bytes on the device, in blocks of 512. `total_bytes` is what was asked for, None: not judged.

    `parameters_bytes`, `gradients_bytes` and `optimizer_bytes` are exact sums after the last step; None without one.
    `exceeded` is the first moment at which more was held than there is. `most_bytes` is the peak where all that is not
    known exactly is as large as it may be.
    """

    total_bytes: int | None
    total_of: str | None
    peak: MemoryMoment
    peak_by_phase: dict[str, int]
    parameters_bytes: int | None
    gradients_bytes: int | None
    optimizer_bytes: int | None
    exceeded: MemoryMoment | None
    not_counted: tuple[str, ...]
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DryMismatch:
    """A mismatch, raised in the program as CUDA would, `times` times. `ended` is whether the program ended by it.

    `assumed` is how many values had been assumed before.
    """

    mismatch: DeviceMismatchEntry
    ended: bool
    assumed: int
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedValue:
    """A value that the program asked for where there are none, and what it was given."""

    what: str
    value: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What runs in another way than on the device, with its line."""

    text: str
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DryStop:
    """The exception that ended the program. `of_device` is whether this machine or build may be its cause."""

    kind: str
    text: str
    place: str | None
    of_device: bool
    autocast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtError:
    """An error that the program caught, `times` times: about dtypes, or of a process that it forked."""

    text: str
    place: str | None
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryResult:
    """One run of a program on a claimed device. `exit` is its status, or the negative number of a signal.

    `steps` are those that were run, `ended_after_steps` whether the program was ended after them. `memory` None is a
    program that was cut off. `written` are the files of the scratch folder that were new or changed. `mixed` are errors
    about dtypes that the program caught, `in_forks` the last that a process which it forked met, `trains` is whether it
    made an optimizer.
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
    written: tuple[str, ...] | None
    mixed: tuple[CaughtError, ...] = ()
    trains: bool = False
    in_forks: CaughtError | None = None
