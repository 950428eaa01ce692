"""Parse sizes, durations and percentages, and format them as text. All values inside gpucheck are in SI base units.

GB is 10⁹ bytes (rates); GiB is 2³⁰ bytes (capacities).
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from gpucheck.errors import UsageError

KIB, MIB, GIB, TIB, PIB, EIB = 2**10, 2**20, 2**30, 2**40, 2**50, 2**60

_SIZE_UNITS = {
    **{prefix + end: 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t")) for end in ("", "b")},
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_DURATION_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*", re.ASCII)

# No machine has more memory than this; a larger number is a typing error.
LARGEST_SIZE = EIB
LARGEST_WHOLE = 2**31 - 1
# A year: threading and select refuse timeouts far beyond it.
LONGEST_H = 366 * 24


def _number(text: str) -> tuple[float, str]:
    """Return the number and its unit in lower case; NaN for any other text."""
    match = _NUMBER.fullmatch(text)
    return (float(match[1]), match[2].lower()) if match else (math.nan, "")


def refused(option: str, allowed: str, text: object, fix: str = "", why: str = "") -> UsageError:
    return UsageError(f"{option} must be {allowed}, not {text!r}", why, fix, finding="usage")


def _typed(size: int) -> str:
    return capacity(size).replace(" ", "")


@dataclass(frozen=True, slots=True)
class Integer:
    """Reads an integer from `smallest` to `largest`; raises UsageError for anything else."""

    smallest: int = 1
    largest: int = LARGEST_WHOLE

    @property
    def range(self) -> str:
        return f"{self.smallest} or more" if self.largest == LARGEST_WHOLE else f"{self.smallest} to {self.largest}"

    def __call__(self, text: str, option: str) -> int:
        digits = text.strip()
        if not re.fullmatch(r"[+-]?\d{1,18}", digits, re.ASCII) or not self.smallest <= int(digits) <= self.largest:
            raise refused(option, f"an integer from {self.smallest} to {self.largest}", text)
        return int(digits)


@dataclass(frozen=True, slots=True)
class Size:
    """Reads bytes in `64MiB`, `64MB`, `1e9` or `4096`, rounded down to a multiple of `step`. Raises UsageError."""

    smallest: int = 1
    largest: int = LARGEST_SIZE
    step: int = 1

    @property
    def range(self) -> str:
        steps = f", in steps of {_typed(self.step)}" if self.step > 1 else ""
        return f"{_typed(self.smallest)} to {_typed(self.largest)}{steps}"

    def __call__(self, text: str, option: str = "--size") -> int:
        number, unit = _number(text)
        size = number * _SIZE_UNITS.get(unit, math.nan)
        if not self.smallest <= size <= self.largest:
            bounds = f"{_typed(self.smallest)} to {_typed(self.largest)}"
            raise refused(option, f"a size from {bounds}", text, "write it like 64MiB, 64MB or 1e9 (bytes)")
        if size != int(size):
            raise refused(option, "an integer number of bytes", text, "write it like 64MiB, 64MB or 1e9 (bytes)")
        return int(size) // self.step * self.step


class Duration:
    """Reads seconds in `30s`, `5m`, `250ms`, `1h` or `30`, up to a year. Raises UsageError for any other text."""

    @property
    def range(self) -> str:
        return "such as 30s or 5m"

    def __call__(self, text: str, option: str = "--time-budget") -> float:
        number, unit = _number(text)
        seconds = number * _DURATION_UNITS.get(unit, math.nan)
        if not 0 < seconds <= LONGEST_H * 3600:
            raise refused(option, f"a time above 0s, up to {LONGEST_H}h", text, "write it like 30s, 5m or 250ms")
        return seconds


@dataclass(frozen=True, slots=True)
class Percent:
    """Reads `5%` or `5` as 0.05. Raises UsageError. `above` excludes 0 %, and `below` excludes `largest`."""

    largest: float | None = None
    above: bool = False
    below: bool = False

    @property
    def range(self) -> str:
        smallest = "above 0%" if self.above else "at least 0%" if self.largest is None else "0%"
        if self.largest is None:
            return smallest
        to = " to below" if self.below else ", up to" if self.above else " to"
        return f"{smallest}{to} {self.largest * 100:g}%"

    def __call__(self, text: str, option: str) -> float:
        number, unit = _number(text)
        if unit == "" and 0 < number < 1:
            raise refused(option, "a percentage", text, f"write it like {number * 100:g}%", "it looks like a fraction")
        value = number / 100 if unit in ("%", "") and math.isfinite(number) else math.nan
        limit = math.inf if self.largest is None else self.largest
        if not ((value > 0 if self.above else value >= 0) and (value < limit if self.below else value <= limit)):
            raise refused(option, f"a percentage, {self.range}", text, "write it like 5%")
        return value


parse_whole, parse_size, parse_duration, parse_percent = Integer(), Size(), Duration(), Percent()


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, without an exponent: 1234.5 → `1230`, 0.01234 → `0.0123`."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1
    return f"{rounded:.{max(places, 0)}f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """Return `value` in the largest unit that does not exceed it. `steps` are scales and units, the largest first."""
    scale, unit = next((step for step in steps if abs(value) >= step[0] * 0.9995), steps[-1])
    return f"{significant(value / scale)} {unit}"


def capacity(size: float) -> str:
    """Return a capacity in binary units: 2**30 → `1 GiB`."""
    text = _scaled(size, ((EIB, "EiB"), (TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")))
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def duration(seconds: float) -> str:
    """Return a time span: 1.5e-6 → `1.50 µs`, 90 → `1 min 30 s`."""
    steps = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    return age(round(seconds)) if seconds >= 60 else _scaled(seconds, steps)


def age(seconds: float) -> str:
    """Return a time span in its two largest units, to the second at most: 90 → `1 min 30 s`, 97200 → `1 d 3 h`."""
    steps = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    whole = int(seconds)
    for (size, unit), (smaller, below) in itertools.pairwise(steps):
        if whole >= size:
            count = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {count} {below}" if count else "")
    return f"{whole} s"


def byte_rate(rate: float) -> str:
    """Return a rate in decimal units: 5.5e10 → `55.0 GB/s`."""
    return _scaled(rate, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def flop_rate(rate: float, unit: str = "FLOP/s") -> str:
    """Return a rate of floating-point operations: 7.9e14 → `790 TFLOP/s`; integer operations have the unit `OP/s`."""
    return _scaled(rate, ((1e15, f"P{unit}"), (1e12, f"T{unit}"), (1e9, f"G{unit}"), (1e6, f"M{unit}"), (1, unit)))


def percent(fraction: float) -> str:
    """Return a fraction as a percentage: 0.0512 → `5.1 %`."""
    value = fraction * 100
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"
