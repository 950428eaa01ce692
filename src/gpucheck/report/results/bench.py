"""The results of benchmarks, in addition to their rows and findings."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.report.finding import Verdict


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure. `value` is in `unit` (B/s, FLOP/s, s, 1). `share` is the share of the rate that `of` names."""

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
    """The verdict of a benchmark's findings. `why` is the first finding that causes the verdict; empty for a pass."""

    benchmark: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class BenchAll:
    """The answer of `bench all`."""

    headlines: tuple[Headline, ...]
    benchmarks: tuple[BenchmarkSummary, ...]


@dataclass(frozen=True, slots=True)
class LinkUnderLoad:
    """The link between host and device, read during large copies. `kind` is `PCIe` or `NVLink-C2C`. The maxima are
    those of GPU and system together. `c2c_bytes_per_s` is the rate of NVML's active NVLink-C2C links in one direction,
    and `limit_bytes_per_s` the link's rate in one direction. `unknown_because` is the reason if this limit is None."""

    kind: str | None = None
    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    c2c_bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None
    unknown_because: str | None = None

    @property
    def label(self) -> str:
        """Return `PCIe 5 x16`. A document without a kind means PCIe."""
        return f"PCIe {self.generation} x{self.width}" if self.kind in ("PCIe", None) else self.kind


@dataclass(frozen=True, slots=True)
class PinnedGain:
    """The ratio of a copy's time from pageable memory to its time from pinned memory, both including the call."""

    direction: str
    size_bytes: int
    gain: float


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The link of a device, and the gain of pinned memory."""

    device: str
    link: LinkUnderLoad | None = None
    gains: tuple[PinnedGain, ...] = ()


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """The share of a copy that is hidden behind compute: (copy + compute - both) / min(copy, compute). The times are
    those of a whole group of copies and products. The interval is None below six rounds."""

    device: str
    direction: str
    host_memory: str
    streams: int
    size_bytes: int
    overlap: float
    ci_low: float | None
    ci_high: float | None
    copy_s: float
    compute_s: float
    both_s: float
    rounds: int
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Speedup:
    """The CPU's time divided by the device's time at one size. The interval is None below six rounds."""

    size: int
    ratio: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class CrossoverResult:
    """The size at which a device becomes faster than the CPU, with copies to and from the device (`transfers`) or
    without. The CPU is faster up to `cpu_faster_up_to`, and the device at every tried size from `device_faster_from`
    on; None if no size is. `largest` is the largest size that was tried, and `speedup` the ratio there. `ended_by` is
    the reason why no larger size was tried (`time`, `memory`)."""

    device: str
    operation: str
    transfers: bool
    cpu_faster_up_to: int | None
    device_faster_from: int | None
    largest: int
    ended_by: str | None
    speedup: Speedup | None


@dataclass(frozen=True, slots=True)
class _Shape:
    m: int
    n: int
    k: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k


@dataclass(frozen=True, slots=True)
class SearchedShape(_Shape):
    """A shape M×N×K with its median rate in the search's unit. The interval is None below six rounds."""

    flop_per_s: float
    ci_low: float | None
    ci_high: float | None
    rounds: int


@dataclass(frozen=True, slots=True)
class RefusedShape(_Shape):
    """A shape M×N×K that the library has no kernel for, and its message."""

    reason: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The search for the fastest shape of one dtype on one device. `unit` is FLOP/s or OP/s. `best` is the fastest
    shape so far, or None. `finalists` were measured in turns, and are sorted from the fastest. `range` has the text of
    each dimension's range. `shapes_in_range` is None if there are too many to count. `complete` is False if the search
    was cut off. `shapes_refused` counts the shapes without a kernel, and `refused` has the first of these. `run` is the
    number of the run, from 1; None if there is only one run."""

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
