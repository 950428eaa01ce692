"""The short results: those of `memory`, `doctor`, `explain`, `lint` and `compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.report.finding import Verdict

StepName = Literal["start", "allocate", "peak", "free", "empty_cache"]
Relation = Literal["=", "≥"]


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """One figure with its expected value. `ok` is None if the device does not report the figure."""

    figure: str
    relation: Relation
    expected_bytes: int
    observed_bytes: int | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step of `memory`: its action (`does`), its meaning (`explanation`), and its figures with the expected values.
    `exact` is true if figures must be equal, not only within bounds. `reason` says why a step was not judged."""

    step: StepName
    does: str
    explanation: str
    exact: bool
    figures: tuple[FigureCheck, ...]
    verdict: Verdict
    reason: str | None


# A `held` stage was seen to work. The `broken` stage is the diagnosis. An `unreached` stage is above it and was not
# seen to work. An `absent` stage does not apply to this machine.
StageState = Literal["held", "broken", "unreached", "unknown", "absent"]
# The load `ran` to its end, `failed` (error, crash or hang), or did not run (`none`), as for lack of memory.
LoadOutcome = Literal["ran", "failed", "none"]


@dataclass(frozen=True, slots=True)
class StageStanding:
    """One stage: its state and the evidence, and the reason if the stage was not seen to work."""

    rung: str
    state: StageState
    shown_by: str = ""


@dataclass(frozen=True, slots=True)
class GpuUnderLoad:
    """One GPU under load. `telemetry` is like that of measurements, and `reason` says why it is None. `held_by` counts
    the readings in which NVML gave each reason for a lower clock."""

    device: str
    telemetry: dict[str, Any] | None
    reason: str | None
    held_by: dict[str, int]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The load: its outcome, and the reason if it did not run. `left_out` has the reason for each unloaded GPU."""

    outcome: LoadOutcome
    reason: str | None
    cards: tuple[GpuUnderLoad, ...]
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The diagnosis. `first` is the ID of the first broken condition and `broken` its stage, or None if there is none.
    `rungs` are all stages from the hardware up. `consequences` are the IDs of conditions that only follow from the
    first, and `asked` is the number of checked conditions. `torch_works` is true if torch ran a kernel on a device.
    `load` is None if no load was tried."""

    first: str | None
    broken: str | None
    rungs: tuple[StageStanding, ...]
    consequences: tuple[str, ...]
    asked: int
    torch_works: bool
    load: LoadResult | None


# The weight of the evidence: nothing else is possible, almost always right, or worth checking.
Certainty = Literal["proof", "strong", "hint"]


@dataclass(frozen=True, slots=True)
class KnownId:
    """An ID that has a page. `of` is `text`, or the command whose finding has the ID."""

    id: str
    of: str
    title: str


@dataclass(frozen=True, slots=True)
class IdPage:
    """The page of an ID: its meaning and the next step (`then`). `rung` (the stage) and `verdict` are those of a doctor
    condition, and None for other IDs. `settle` says how to confirm the condition."""

    id: str
    of: str
    title: str
    meaning: str
    then: str
    certainty: Certainty | None = None
    rung: str | None = None
    verdict: Verdict | None = None
    settle: str = ""


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A known error text in the pasted text, and its line. `says` is a sentence with the text's own `numbers`, whose
    keys have units. `then` is the next step, and `specific` is true if it uses the numbers too. `conditions` are
    doctor's conditions that cause the error. A `symptom` says that something failed, but not the cause. `doubt` is a
    reason against the match."""

    id: str
    title: str
    meaning: str
    certainty: Certainty
    then: str
    says: str
    specific: bool
    numbers: dict[str, Any]
    conditions: tuple[str, ...]
    line: int
    symptom: bool
    doubt: str


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """The result of `explain`. Fields that do not belong to the question are None. `characters` is the number of
    characters of a text that were read, and `matches` are the known errors in it, the root cause first.
    `cut_from_bytes` is the size of a text of which only the end was read, and None otherwise. `page` is the page of an
    ID. `known` are all IDs, if neither a text nor an ID was given."""

    characters: int | None = None
    cut_from_bytes: int | None = None
    matches: tuple[TextMatch, ...] | None = None
    page: IdPage | None = None
    known: tuple[KnownId, ...] | None = None


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule, and the verdict of its findings."""

    id: str
    verdict: Verdict
    title: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """The numbers of `files`, of mistakes `ignored` because of a comment, and of `unjudged` files, with the rules."""

    files: int = 0
    ignored: int = 0
    unjudged: int = 0
    rules: tuple[LintRule, ...] = ()


Change = Literal["slower", "faster", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A measurement that both reports have. Times are seconds per call, the medians over the runs' medians. `ratio` is
    the new time over the old, from the runs' lower quartiles. `ci_low` to `ci_high` is its interval at `ci_level`, and
    is None with fewer than 3 runs a side. `differences` are those of the methods. `why` is the reason if `change`
    is "cannot tell". `disturbed` names disturbances of most of the new side's runs, such as other processes on the CPU
    or a throttled clock. `old_disturbed` names those of the old side."""

    name: str
    case: dict[str, Any]
    old_device: str
    new_device: str
    old_runs: int
    new_runs: int
    old_s: float
    new_s: float
    old_rate: float | None
    new_rate: float | None
    rate_unit: str | None
    ratio: float
    ci_low: float | None
    ci_high: float | None
    ci_level: float | None
    change: Change
    why: str | None = None
    differences: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    old_disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two reports. Differences are written as `old → new`. `alpha` is the chance that a table without
    changes shows one. Rows within `same_within` count as the same: 0.05 is ±5 %. `old_command` and `new_command` made
    the documents. `old_measurements` and `new_measurements` count their rows. `doubts` are reasons why figures may be
    unreliable: a wrong result, a lost device, a command that was cut off."""

    rows: tuple[ComparedRow, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    machine: tuple[str, ...]
    software: tuple[str, ...]
    alpha: float
    same_within: float
    old_command: str = ""
    new_command: str = ""
    old_measurements: int | None = None
    new_measurements: int | None = None
    doubts: tuple[str, ...] = ()
