"""Measurements: raw samples, and the statistics derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """The device that a measurement was made on."""

    id: str
    uuid: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The samples of one process. A sample is a whole timed window: the time per call is sample / calls_per_sample."""

    started: str
    calls_per_sample: int
    samples_s: tuple[float, ...]
    started_monotonic_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimeStats:
    """Time per call. `p05`/`p95` are None below 20 samples, the interval of the median is None below 6."""

    median: float
    n: int
    p05: float | None = None
    p95: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_level: float | None = None
    ci_covers: str | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Work per second (`unit` is B/s, FLOP/s or 1/s), derived from the time; `p05` is the rate of the slow samples."""

    median: float
    unit: str
    p05: float | None = None
    p95: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """torch's four figures on the device. They are None on a CPU, where torch keeps none and the resident set is given.
    `source` says which allocator or which system interface they come from."""

    memory_allocated_bytes: int | None = None
    max_memory_allocated_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    max_memory_reserved_bytes: int | None = None
    resident_bytes: int | None = None
    max_resident_bytes: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """The method of a measurement, which a comparison must match. `clock` is `device events` or `host`, and `cache` is
    warm or cold. `launch` says how the calls were launched: `held` (the stream was
    blocked until all calls of a window were enqueued), `unheld`, `graph` (a CUDA graph) or `host` (no stream)."""

    clock: str
    launch: str
    cache: str
    precision_requested: str | None = None
    precision_observed: str | None = None
    numa: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured case on one device. `work` is per call (`bytes`, `flop`); `flags` are reasons for doubt."""

    name: str
    device: DeviceRef
    case: dict[str, Any]
    runs: tuple[Run, ...]
    time_s: TimeStats | None
    work: dict[str, float]
    rate: Rate | None
    memory: MemoryFigures
    method: Method
    telemetry: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
