"""One try of a search: what is asked, what is answered, and what answers come to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck import stats
from gpucheck.bench.matmul.search_range import Shape

Stage = Literal["reference", "spread", "line", "crossing", "again", "final"]

# What disturbs a try, or a part of one, makes it slower, never faster, and by more than noise does.
UNDISTURBED = 0.95


@dataclass(frozen=True, slots=True)
class Ask:
    """Try this shape for about so long."""

    shape: Shape
    window_s: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """What a try gave: the rate in operations per second with its interval, and what the whole try took."""

    rate: float
    low: float
    high: float
    spent_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The library has no kernel for the shape: why not, and what the try took."""

    reason: str
    spent_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """A shape with the median of its rates; the interval is None below six rounds of the final."""

    shape: Shape
    rate: float
    low: float | None
    high: float | None
    rounds: int


def found_in(shape: Shape, rates: Sequence[float]) -> Found:
    interval = stats.interval(rates)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Found(shape, stats.median(rates), low, high, len(rates))


def undisturbed(reading: Reading) -> float:
    """The rate; where parts of the try differ widely, that of the fastest."""
    return reading.rate if reading.low >= UNDISTURBED * reading.high else reading.high


def call_s(shape: tuple[float, float, float], rate: float) -> float:
    """Seconds that one call of this shape takes at this rate."""
    return 2.0 * shape[0] * shape[1] * shape[2] / rate
