"""The short results: those of `memory`, `doctor`, `explain`, `lint` and `compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.report.finding import Verdict

StepName = Literal["start", "allocate", "peak", "free", "empty_cache"]
Relation = Literal["=", "≥"]


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """A memory figure with its expected value. `ok` is None if the device does not report the figure."""

    figure: str
    relation: Relation
    expected_bytes: int
    observed_bytes: int | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step of `memory`: its action (`does`), its meaning (`explanation`), and the figures afterwards. `exact` is
    true if figures must equal the expected values, else false. `reason` says why a step was not judged."""

    step: StepName
    does: str
    explanation: str
    exact: bool
    figures: tuple[FigureCheck, ...]
    verdict: Verdict
    reason: str | None


# `held`: the stage works. `broken`: the diagnosis. `unreached`: a stage above the broken stage, not known to work.
# `absent`: the stage does not apply to this machine.
StageState = Literal["held", "broken", "unreached", "unknown", "absent"]
# The load `ran` to its end, `failed` (error, crash or hang), or did not run (`none`), for example for lack of memory.
LoadOutcome = Literal["ran", "failed", "none"]


@dataclass(frozen=True, slots=True)
class StageStanding:
    """One stage and its state. `shown_by` is the evidence, or the reason if the stage is not known to work."""

    rung: str
    state: StageState
    shown_by: str = ""


@dataclass(frozen=True, slots=True)
class GpuUnderLoad:
    """One GPU under load. `telemetry` is as in measurements, and `reason` says why `telemetry` is None. `held_by`
    counts the readings with each of NVML's reasons for a lower clock."""

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
    """The diagnosis. `first` is the ID of the first broken condition and `broken` its stage; None if nothing is broken.
    `rungs` are all stages from the hardware up. `consequences` are the IDs of conditions that follow from the first,
    and `asked` is the number of checked conditions. `torch_works` is true if torch ran a kernel on a device."""

    first: str | None
    broken: str | None
    rungs: tuple[StageStanding, ...]
    consequences: tuple[str, ...]
    asked: int
    torch_works: bool
    load: LoadResult | None


# The weight of the evidence: proven, almost always right, or worth a check.
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
    condition; None for other IDs. `settle` is a way to confirm the condition."""

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
    """A known error text in the pasted text, and its line. `says` is a sentence with the `numbers` of the text, whose
    keys have units. `then` is the next step, and `specific` is true if this step uses the numbers. `conditions` are
    doctor's conditions that cause the error. A `symptom` has no known cause. `doubt` is a reason against the match."""

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
    """The result of `explain` for a text (`characters`, `matches`), an ID (`page`), or neither (`known`: all IDs). The
    other fields are None. `characters` were read of the text. `matches` are the known errors in the text, the root
    cause first. `cut_from_bytes` is the size of a text of which only the end was read."""

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
    """The rules, and the numbers of judged `files`, of mistakes `ignored` by a comment, and of `unjudged` files."""

    files: int = 0
    ignored: int = 0
    unjudged: int = 0
    rules: tuple[LintRule, ...] = ()


Change = Literal["slower", "faster", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A measurement that both reports have. Times are seconds per call, the median of the runs' medians. `ratio` is the
    new time divided by the old time, from the runs' lower quartiles. `ci_low` to `ci_high` is its interval at
    `ci_level`, None with fewer than 3 runs per side. `differences` are those of the methods. `why` is the reason if
    `change` is "cannot tell". `disturbed` names disturbances of most of the new runs, such as other processes on the
    CPU or a throttled clock, and `old_disturbed` those of most old runs."""

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
    """The comparison of two reports. Differences are written as `old → new`. `alpha` is the probability that any change
    is reported if nothing changed. Rows within `same_within` count as the same: 0.05 is ±5 %. `old_command` and
    `new_command` created the documents, which have `old_measurements` and `new_measurements` rows. `doubts` are reasons
    why times may be wrong: a wrong result, a lost device, a command that was cut off."""

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
