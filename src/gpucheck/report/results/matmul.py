"""What `bench matmul` answers beside its rows: searches for the fastest shape, and telemetry of long runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchedShape:
    """A shape M×N×K with the median of its rates in the search's unit; the interval is None below six rounds."""

    m: int
    n: int
    k: int
    flop_per_s: float
    ci_low: float | None
    ci_high: float | None
    rounds: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k


@dataclass(frozen=True, slots=True)
class RefusedShape:
    """A shape M×N×K that the library has no kernel for, and what it said."""

    m: int
    n: int
    k: int
    reason: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The search for the fastest shape of one dtype on one device. `unit` is FLOP/s or OP/s.

    `best` is the fastest so far, None before any; `finalists` were measured in turns, the fastest first. `range` has
    the text of each dimension's range; `shapes_in_range` is None where they are too many to count. `complete` is False
    where the search was cut off. `shapes_refused` have no kernel; `refused` are the first of these. `run` is which of
    several runs it is of, from 1; None for the only one.
    """

    device: str
    dtype: str
    unit: str
    best: SearchedShape | None
    finalists: tuple[SearchedShape, ...]
    range: dict[str, str]
    shapes_in_range: int | None
    shapes_tried: int
    tries: int
    time_s: float
    complete: bool
    shapes_refused: int = 0
    refused: tuple[RefusedShape, ...] = ()
    run: int | None = None


@dataclass(frozen=True, slots=True)
class LoadReading:
    """What a device said of itself, `at_s` after a long run began. Power is the mean since the reading before; None
    for the first and where the energy is not counted."""

    at_s: float
    sm_clock_hz: float | None
    temperature_celsius: float | None
    power_w: float | None


@dataclass(frozen=True, slots=True)
class SustainedResult:
    """The telemetry of one long run: product, device, how the device supports the dtype, and its readings.

    `run` is which of several runs it is of, from 1; None for the only one.
    """

    device: str
    dtype: str
    m: int
    n: int
    k: int
    support: str
    readings: tuple[LoadReading, ...]
    run: int | None = None
