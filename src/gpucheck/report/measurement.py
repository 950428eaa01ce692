"""Measurements: raw samples, and the statistics derived from the samples."""

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
    """The samples of one process. A sample is the time of a window with `calls_per_sample` calls."""

    started: str
    calls_per_sample: int
    samples_s: tuple[float, ...]
    started_monotonic_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimeStats:
    """The time per call. `p05` and `p95` are None below 20 samples, and the interval of the median is None below 6."""

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
    """torch's four memory figures on the device. On a CPU they are None, and the resident set is known instead.
    `source` is the allocator or the system interface that reported the figures."""

    memory_allocated_bytes: int | None = None
    max_memory_allocated_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    max_memory_reserved_bytes: int | None = None
    resident_bytes: int | None = None
    max_resident_bytes: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """The method of a measurement. `clock` is `device events` or `host`, and `cache` is warm or cold. `launch` is the
    way to launch calls: `held` (the stream was blocked until all calls of a window were enqueued), `unheld`, `graph` (a
    CUDA graph) or `host` (no stream)."""

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
