"""What `bench all` answers: the figures that stand for each benchmark, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.report.finding import Verdict


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure. `value` is in `unit` (B/s, FLOP/s, s, 1); None is unknown. `share` is of what `of` names."""

    benchmark: str
    device: str
    case: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    share: float | None = None
    of: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchmarkSummary:
    """What a benchmark's findings come to; `why` is the first that says so, where it is no pass."""

    benchmark: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class BenchAll:
    """The answer of `bench all`."""

    headlines: tuple[Headline, ...]
    benchmarks: tuple[BenchmarkSummary, ...]
