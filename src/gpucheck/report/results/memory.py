"""The answer of `memory`: a short sequence of allocations, each figure beside its expected value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gpucheck.report.finding import Verdict

StepName = Literal["start", "allocate", "peak", "free", "empty_cache"]
Relation = Literal["=", "≥", "≤"]


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """One figure beside what must come out. `ok` is None where the device does not tell the figure."""

    figure: str
    relation: Relation
    expected_bytes: int
    observed_bytes: int | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class ResidentSet:
    """The process's resident set after a step, and its peak since the sequence began; None where it is not known."""

    resident_bytes: int | None
    max_resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step: what it does, what it shows (`explanation`), and each figure beside what it must be.

    `exact` is whether figures must be equal rather than within bounds. `observed` is the resident set on a CPU, where
    torch keeps no figures; None elsewhere. `reason` says why a step was not judged.
    """

    step: StepName
    does: str
    explanation: str
    exact: bool
    observed: ResidentSet | None = field(default=None, kw_only=True)
    figures: tuple[FigureCheck, ...]
    verdict: Verdict
    reason: str | None
