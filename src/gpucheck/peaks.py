"""What a part can do at most: dense operations and memory bandwidth, from its data sheet or, labelled so, estimated.

The table is `peaks.toml` beside this file, each row with its source. A part is matched by its whole name, its
compute capability, number of multiprocessors and, where that is known, the width of its memory bus.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TABLE = Path(__file__).with_name("peaks.toml")

# What products of these are added up in, unless something else was asked for (cuBLAS, and torch with reduced-precision
# accumulation off).
ACCUMULATORS = {"int8": "int32", "float64": "float64"}
# NVIDIA's brand, not a part: these accumulate in float32 at half the rate of the professional parts of their chip.
GEFORCE = "NVIDIA GeForce "
# Data moves on both edges of the memory's clock, as the driver counts it.
TRANSFERS_PER_CLOCK = 2


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense operations per second with inputs of `dtype` added up in `accumulator`, at this clock."""

    dtype: str
    accumulator: str
    flop_per_s: float
    clock_hz: float
    per_clock_per_sm: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part's peaks and where they are from. `because` says why an estimate stands in the data sheet's place."""

    name: str
    kind: Literal["data sheet", "estimate"]
    source: str
    date: str | None
    capability: tuple[int, int]
    multiprocessors: int
    peaks: tuple[Peak, ...]
    bus_width_bits: int | None = None
    memory_clock_hz: float | None = None
    memory_bytes_per_s: float | None = None
    because: str = ""

    def peak(self, dtype: str, accumulator: str | None = None) -> Peak | None:
        """The peak of a dtype with its usual accumulator, or with this one; None where it is not known."""
        wanted = dtype, accumulator or ACCUMULATORS.get(dtype, "float32")
        return next((peak for peak in self.peaks if (peak.dtype, peak.accumulator) == wanted), None)

    @property
    def label(self) -> str:
        """Where the figures are from, in words."""
        if self.kind == "estimate":
            return f"an estimate: {self.because}"
        return f"{self.source}, collected {self.date}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """No peak, and why."""

    reason: str


def parts() -> tuple[Part, ...]:
    """Every part of the table."""
    return tuple(
        Part(
            name=row["name"],
            kind="data sheet",
            source=row["source"],
            date=row["date"],
            capability=_capability(row),
            multiprocessors=row["multiprocessors"],
            peaks=tuple(Peak(**peak) for peak in row["peaks"]),
            bus_width_bits=row["bus_width_bits"],
            memory_clock_hz=row["memory_clock_hz"],
            memory_bytes_per_s=row["memory_bytes_per_s"],
        )
        for row in _table()["part"]
    )


def lookup(
    name: str | None,
    capability: tuple[int, int] | None,
    multiprocessors: int | None,
    bus_width_bits: int | None = None,
    *,
    clock_hz: float | None = None,
    memory_clock_hz: float | None = None,
) -> Part | Unknown:
    """The part with exactly this name, capability, SM count and bus width; else an estimate from what is given.

    The clocks are the highest that the device may run at; an estimate needs them, the data sheet's figures do not.
    """
    if capability is None or multiprocessors is None:
        return Unknown("the device does not tell its compute capability and multiprocessors")
    named = [part for part in parts() if part.name == name]
    for part in named:
        same_bus = bus_width_bits is None or part.bus_width_bits == bus_width_bits
        if (part.capability, part.multiprocessors) == (capability, multiprocessors) and same_bus:
            return part
    return _estimate(name or "", capability, multiprocessors, bus_width_bits, clock_hz, memory_clock_hz, bool(named))


def _estimate(
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    bus_width_bits: int | None,
    clock_hz: float | None,
    memory_clock_hz: float | None,
    named: bool,
) -> Part | Unknown:
    rows = [row for row in _table()["estimate"] if _capability(row) == capability]
    memory = bandwidth(bus_width_bits, memory_clock_hz)
    told = ".".join(map(str, capability))
    if not (rows and clock_hz) and memory is None:
        what = "the device does not tell its clocks" if rows else f"compute capability {told} is not in the table"
        return Unknown(f"{name or 'this part'} is not in the table, and {what}")
    peaks: tuple[Peak, ...] = ()
    if rows and clock_hz:
        rates: dict[str, float] = {**rows[0]["per_clock_per_sm"], **_geforce(name, rows[0])}
        peaks = tuple(
            Peak(dtype, ACCUMULATORS.get(dtype, "float32"), multiprocessors * rate * clock_hz, clock_hz, rate)
            for dtype, rate in rates.items()
        )
    other = (
        "does not have the multiprocessors or the memory bus of the part" if named else "is not in the table of parts"
    )
    return Part(
        name=name,
        kind="estimate",
        source=rows[0]["source"] if peaks else "the device's bus width and memory clock",
        date=None,
        capability=capability,
        multiprocessors=multiprocessors,
        peaks=peaks,
        bus_width_bits=bus_width_bits,
        memory_clock_hz=memory_clock_hz,
        memory_bytes_per_s=memory,
        because=f"{name or 'this part'} {other}; from {multiprocessors} SMs of "
        f"compute capability {told} and the highest clocks",
    )


def bandwidth(bus_width_bits: int | None, memory_clock_hz: float | None) -> float | None:
    """Bytes per second over a memory bus of this width; None where either is not known."""
    if not bus_width_bits or not memory_clock_hz:
        return None
    return bus_width_bits / 8 * memory_clock_hz * TRANSFERS_PER_CLOCK


def _geforce(name: str, row: Mapping[str, Any]) -> dict[str, float]:
    return dict(row.get("geforce", {})) if name.startswith(GEFORCE) else {}


def _capability(row: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = row["capability"].split(".")
    return int(major), int(minor)


@functools.cache
def _table() -> dict[str, Any]:
    # Read when it is asked for: most commands need no peak.
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    loaded: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return loaded
