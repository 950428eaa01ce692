"""The peak rates of a GPU: dense operations and memory bandwidth, from its data sheet or estimated.

The table is `peaks.toml` beside this file, each row with its source. A GPU matches a row if its whole name, its compute
capability, its multiprocessors and, if known, its memory bus width are equal. Some product lines lack units that their
compute capability usually has. No tensor core rates are estimated for these names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gpucheck import config

TABLE = Path(__file__).with_name("peaks.toml")

# The usual accumulator of products (cuBLAS, and torch with reduced-precision accumulation off) if not float32.
ACCUMULATORS = {"int8": "int32", "float64": "float64"}
# The suffix in the names of dtypes that are multiplied with fast accumulation.
FAST = "_fast"

CUT = "similar GPUs lack units that this compute capability usually has, and this GPU is not in the table"


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense operations per second of products of `dtype`, added up in `accumulator`, at this clock. The clock and the
    operations per clock and SM are None if the rate is not their product."""

    dtype: str
    accumulator: str
    flop_per_s: float
    clock_hz: float | None = None
    per_clock_per_sm: float | None = None


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """The peaks of a GPU model, and their source. `because` is the reason for an estimate, and `missing` the reason why
    some peaks are not estimated. `bus_width_bits` is the device's width, else the first of `bus_widths`."""

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
    missing: str = ""
    bus_widths: tuple[int, ...] = ()

    def peak(self, dtype: str, accumulator: str | None = None) -> Peak | None:
        """Return the peak of a dtype with `accumulator`; None means the usual accumulator."""
        accumulator = accumulator or ACCUMULATORS.get(dtype, "float32")
        known = {peak.dtype: peak for peak in self.peaks if peak.accumulator == accumulator}
        # A model with a single rate for float8 reaches this rate with fast accumulation and without.
        return known.get(dtype) or known.get(dtype.removesuffix(FAST))

    @property
    def label(self) -> str:
        return f"an estimate: {self.because}" if self.kind == "estimate" else f"{self.source}, collected {self.date}"


class Unknown(NamedTuple):
    """The reason why no peak is known."""

    reason: str


def parts() -> tuple[GpuPeaks, ...]:
    """Return the GPU models of the table. A key of a row is a field of `GpuPeaks`."""
    models = []
    for row in _table()["part"]:
        width = row["bus_width_bits"]
        widths = tuple(width) if isinstance(width, list) else (width,)
        converted = {"capability": _capability(row), "peaks": tuple(Peak(**peak) for peak in row["peaks"])}
        models.append(
            GpuPeaks(**{**row, **converted, "kind": "data sheet", "bus_width_bits": widths[0], "bus_widths": widths})
        )
    return tuple(models)


def lookup(
    name: str | None,
    capability: tuple[int, int] | None,
    multiprocessors: int | None,
    bus_width_bits: int | None = None,
    *,
    clock_hz: float | None = None,
    memory_clock_hz: float | None = None,
) -> GpuPeaks | Unknown:
    """Return the model with exactly these values, else an estimate from them, which needs the highest clocks."""
    if capability is None or multiprocessors is None:
        return Unknown("the device does not report its compute capability and multiprocessors")
    same_name = [model for model in parts() if model.name == name]
    for model in same_name:
        same_bus = bus_width_bits is None or bus_width_bits in model.bus_widths
        if (model.capability, model.multiprocessors) == (capability, multiprocessors) and same_bus:
            return replace(model, bus_width_bits=bus_width_bits or model.bus_width_bits)
    rows = [row for row in _table()["estimate"] if _capability(row) == capability]
    # Data moves on both edges of the memory's clock, as the driver counts it.
    memory = bus_width_bits / 8 * memory_clock_hz * 2 if bus_width_bits and memory_clock_hz else None
    version, model_name = ".".join(map(str, capability)), name or "this GPU"
    if not (rows and clock_hz) and memory is None:
        why = "the device does not report its clocks" if rows else f"compute capability {version} is not in the table"
        return Unknown(f"{model_name} is not in the table, and {why}")
    peaks: tuple[Peak, ...] = ()
    missing = ""
    if rows and clock_hz:
        rates, missing = _rates(name or "", rows[0])
        peaks = tuple(
            Peak(dtype, ACCUMULATORS.get(dtype, "float32"), multiprocessors * rate * clock_hz, clock_hz, rate)
            for dtype, rate in rates.items()
        )
    differs = "does not have the multiprocessors or the memory bus of the model in the table"
    because = f"{model_name} {differs if same_name else 'is not in the table'}; from {multiprocessors} SMs of "
    return GpuPeaks(
        name=name or "",
        kind="estimate",
        source=rows[0]["source"] if peaks else "the device's bus width and memory clock",
        date=None,
        capability=capability,
        multiprocessors=multiprocessors,
        peaks=peaks,
        bus_width_bits=bus_width_bits,
        memory_clock_hz=memory_clock_hz,
        memory_bytes_per_s=memory,
        because=f"{because}compute capability {version} and the highest clocks",
        missing=missing,
    )


def _rates(name: str, row: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """Return the operations per clock and SM by dtype, and why rates are missing for GPUs of this name."""
    rates: dict[str, float] = dict(row["per_clock_per_sm"])
    # NVIDIA's consumer GPUs accumulate in float32 at half the rate of professional GPUs with the same chip.
    if name.startswith("NVIDIA GeForce "):
        rates |= row.get("geforce", {})
    if re.search(_table()["no_rates"], name):
        return {}, CUT
    if "cut" in row and re.search(row["cut"], name):
        return {dtype: rate for dtype, rate in rates.items() if dtype in row["cuda_cores"]}, CUT
    return rates, ""


def _capability(row: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = row["capability"].split(".")
    return int(major), int(minor)


@functools.cache
def _table() -> dict[str, Any]:
    return config.loaded(TABLE.read_text(encoding="utf-8"))
