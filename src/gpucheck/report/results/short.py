"""The answers of `memory`, `doctor`, `explain`, `lint` and `compare`, which are short."""

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
    """One step: what it does, what it shows (`explanation`), and each figure with its expected value.

    `exact` is whether figures must be equal rather than within bounds. `reason` says why a step was not judged.
    """

    step: StepName
    does: str
    explanation: str
    exact: bool
    figures: tuple[FigureCheck, ...]
    verdict: Verdict
    reason: str | None


# `held` was seen to hold, `broken` is where the diagnosis stands, `unreached` lies above it and was not seen to hold;
# `unknown` is not known and `absent` does not apply here.
RungState = Literal["held", "broken", "unreached", "unknown", "absent"]
# `ran` to its end; `failed` with an error, a crash or a hang; `none` where it was not started, or had no memory.
LoadOutcome = Literal["ran", "failed", "none"]


@dataclass(frozen=True, slots=True)
class RungStanding:
    """One stage: its state and the evidence, and the reason if the stage was not seen to work."""

    rung: str
    state: RungState
    shown_by: str = ""


@dataclass(frozen=True, slots=True)
class CardUnderLoad:
    """One GPU under load: `telemetry` as measurements carry it, or None and why (`reason`); `held_by` is in how many of
    its readings each of NVML's reasons for a lower clock was given."""

    device: str
    telemetry: dict[str, Any] | None
    reason: str | None
    held_by: dict[str, int]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The load, `load_s` long: its outcome, and the reason if it did not run; `left_out` are GPUs that were not
    loaded, with the reason."""

    outcome: LoadOutcome
    reason: str | None
    load_s: float | None
    cards: tuple[CardUnderLoad, ...]
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The diagnosis: the ID of the first broken condition and its stage, None if there is none. `rungs` are all stages
    from the hardware up, `consequences` the ids of conditions that hold only because of the first, and `asked` is how
    many were asked. `torch_works` is whether torch was seen to run a kernel on a device; `load` is None where no load
    was tried."""

    first: str | None
    broken: str | None
    rungs: tuple[RungStanding, ...]
    consequences: tuple[str, ...]
    asked: int
    torch_works: bool
    load: LoadResult | None


Certainty = Literal["proof", "strong", "hint"]


@dataclass(frozen=True, slots=True)
class KnownId:
    """An id that has a page; `of` is `text`, or the command whose finding it is."""

    id: str
    of: str
    title: str


@dataclass(frozen=True, slots=True)
class IdPage:
    """The page of an id: what it means and what to do `then`. `rung` (the stage) and `verdict` are those of a doctor
    condition, None for others, and `settle` says how to make sure of one."""

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
    """One known text in what was pasted, and on which line.

    `says` is a sentence made of the text's own `numbers` (under keys with units), and `then` the next step: `specific`
    where that too is made of them. `conditions` are those of doctor that bring it about. A `symptom` says that
    something failed and not what; `doubt` is what speaks against it.
    """

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
    """The answer to what was asked; the rest is None.

    To a text: how many `characters` were read, of how many bytes their end is all that was read (`cut_from_bytes`, None
    where nothing was left out), and its `matches`, the root cause first. To an id its `page`; to neither, every id that
    is `known`.
    """

    characters: int | None = None
    cut_from_bytes: int | None = None
    matches: tuple[TextMatch, ...] | None = None
    page: IdPage | None = None
    known: tuple[KnownId, ...] | None = None


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule, and the verdict of what it finds."""

    id: str
    verdict: Verdict
    title: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """The number of checked files, of mistakes that a comment ignores, and of files that could not be judged, with the
    rules."""

    files: int = 0
    ignored: int = 0
    unjudged: int = 0
    rules: tuple[LintRule, ...] = ()


Change = Literal["slower", "faster", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One measurement of both reports. Times are seconds per call, medians over the runs' medians.

    `ratio` is new time over old by the runs' lower quartiles, `ci_low` to `ci_high` its interval at `ci_level`; None
    with fewer than 3 runs a side. `differences` names what differs in method, `why` why it cannot be told. `disturbed`
    is what disturbed most of the new side's runs: others on the CPU, a throttled clock; `old_disturbed` the same of
    the old side.
    """

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
    """The comparison of two reports. Differences are written as `old → new`.

    `alpha` is the chance that a table without a change shows one, `same_within` what counts as the same: 0.05 is ±5 %.
    `old_command` and `new_command` made the documents; `old_measurements` and `new_measurements` count their rows.
    `doubts` say why figures may be unreliable: a wrong result, a lost device, a command that was cut off.
    """

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
