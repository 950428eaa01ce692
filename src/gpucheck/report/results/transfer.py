"""What `bench transfer` answers of one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LinkUnderLoad:
    """The link between host and device as it was read inside the windows of large copies.

    `kind` is `PCIe` or `NVLink-C2C`. The maxima are those of card and system together, `device_max_…` the card's own.
    `c2c_bytes_per_s` is what NVML's active NVLink-C2C links carry in one direction, `limit_bytes_per_s` what the link
    carries in one direction; None where that is not known, and `unknown_because` then says why.
    """

    kind: str | None = None
    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    device_max_generation: int | None = None
    device_max_width: int | None = None
    c2c_bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None
    unknown_because: str | None = None

    @property
    def label(self) -> str:
        """`PCIe 5 x16`; documents from before the kind was told are of PCIe."""
        return f"PCIe {self.generation} x{self.width}" if self.kind in ("PCIe", None) else self.kind


@dataclass(frozen=True, slots=True)
class PinnedGain:
    """The time of a copy from pageable memory over that from pinned memory, both as called."""

    direction: str
    size_bytes: int
    gain: float


@dataclass(frozen=True, slots=True)
class CopyLatency:
    """The time of the smallest copy of a direction and kind of memory, as called.

    Below `half_rate_bytes` a copy takes longer to start than to run; None where there is no fit that tells it.
    """

    direction: str
    host_memory: str
    size_bytes: int
    time_s: float
    half_rate_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class CopyFit:
    """The line time = `latency_s` + size / `bytes_per_s` through the copies of a direction, kind of memory and clock.

    `sizes` is how many sizes there were, `worst_residual` the largest residual relative to the time, and
    `sizes_off_bytes` are the sizes that do not lie on the line. At `half_rate_bytes` a copy runs at half the rate.
    Where there is no such line they are None, and `unknown_because` says why.
    """

    direction: str
    host_memory: str
    timed: str
    sizes: int
    latency_s: float | None
    bytes_per_s: float | None
    half_rate_bytes: float | None
    worst_residual: float | None
    sizes_off_bytes: tuple[float, ...] | None
    unknown_because: str | None


@dataclass(frozen=True, slots=True)
class IdiomTime:
    """A common line of code that copies: its case, the line itself, and its time over that of the raw copy."""

    case: dict[str, Any]
    call: str
    times_raw: float | None


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What the copies of one device come to: the link, what pinned memory gains, latencies, fits, and common idioms."""

    device: str
    link: LinkUnderLoad | None = None
    gains: tuple[PinnedGain, ...] = ()
    latencies: tuple[CopyLatency, ...] = ()
    fits: tuple[CopyFit, ...] = ()
    idioms: tuple[IdiomTime, ...] = ()
