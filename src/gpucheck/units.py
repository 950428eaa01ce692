"""One grammar for sizes, durations and percentages, and their text. Inside gpucheck everything is in SI base units.

GB is 10⁹ bytes (rates); GiB is 2³⁰ bytes (capacities).
"""

from __future__ import annotations

import itertools
import math
import re

from gpucheck.errors import UsageError

KIB, MIB, GIB, TIB, PIB = 2**10, 2**20, 2**30, 2**40, 2**50

_SIZE_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE_UNITS |= {f"{prefix}b": scale for prefix, scale in _SIZE_UNITS.items() if prefix in "kmgt" and prefix}
_SIZE_UNITS |= {"kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_DURATION_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*", re.ASCII)

# Larger than any memory of one machine; a larger number is a slip of the keyboard.
LARGEST_SIZE = 2**60


def _split(text: str, option: str, grammar: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {text!r} is not understood", "", f"write it like {grammar}", finding="usage")
    value = float(match.group(1))
    if not math.isfinite(value):
        raise UsageError(f"{option} {text!r} is too large", "", f"write it like {grammar}", finding="usage")
    return value, match.group(2)


def parse_size(text: str, option: str = "--size", *, smallest: int = 1) -> int:
    """Bytes in `64MiB`, `64MB`, `1e9` or `4096`.

    Raises UsageError for anything else, for less than `smallest` bytes and for more than an exbibyte.
    """
    grammar = "64MiB, 64MB or 1e9 (bytes)"
    value, unit = _split(text, option, grammar)
    if unit.lower() not in _SIZE_UNITS:
        raise UsageError(f"{option} {text!r} has an unknown unit {unit!r}", "", f"write it like {grammar}")
    size = value * _SIZE_UNITS[unit.lower()]
    if size < smallest:
        raise UsageError(f"{option} {text!r} is too small", f"the least is {smallest} byte{'s' * (smallest != 1)}")
    if size > LARGEST_SIZE:
        raise UsageError(f"{option} {text!r} is too large", "no machine has an exbibyte of memory")
    if size != int(size):
        raise UsageError(f"{option} {text!r} is not a whole number of bytes", "", f"write it like {grammar}")
    return int(size)


def parse_duration(text: str, option: str = "--time-budget") -> float:
    """Seconds in `30s`, `5m`, `250ms`, `1h` or `30`. Raises UsageError for anything else and for zero or less."""
    grammar = "30s, 5m or 250ms"
    value, unit = _split(text, option, grammar)
    if unit.lower() not in _DURATION_UNITS:
        raise UsageError(f"{option} {text!r} has an unknown unit {unit!r}", "", f"write it like {grammar}")
    seconds = value * _DURATION_UNITS[unit.lower()]
    if seconds <= 0:
        raise UsageError(f"{option} {text!r} is not more than zero", "", f"write it like {grammar}")
    # A year: threading and select refuse timeouts far beyond it.
    if seconds > 366 * 86400:
        raise UsageError(f"{option} {text!r} is longer than a year", "", f"write it like {grammar}")
    return seconds


def parse_percent(text: str, option: str) -> float:
    """The fraction in `5%` or `5`: 0.05. Raises UsageError for less than zero, and for what looks like a fraction."""
    value, unit = _split(text, option, "5%")
    if unit not in ("%", ""):
        raise UsageError(f"{option} {text!r} has an unknown unit {unit!r}", "", "write it like 5%")
    if value < 0:
        raise UsageError(f"{option} {text!r} is less than zero", "", "write it like 5%")
    if not unit and 0 < value < 1:
        why = "percent are meant, and this is less than one"
        raise UsageError(f"{option} {text!r} looks like a fraction", why, f"write it like {value * 100:g}%")
    return value / 100


def parse_whole(text: str, option: str, *, smallest: int = 1, largest: int = 2**31 - 1) -> int:
    """A whole number from `smallest` to `largest`. Raises UsageError for anything else."""
    digits = text.strip()
    if not re.fullmatch(r"[+-]?\d{1,18}", digits, re.ASCII) or not smallest <= int(digits) <= largest:
        raise UsageError(f"{option} {text!r} is out of range", f"it is a whole number from {smallest} to {largest}")
    return int(digits)


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits, without an exponent: 1234.5 → `1230`, 0.01234 → `0.0123`."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1
    return f"{rounded:.{max(places, 0)}f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """`value` in the largest unit of `steps` (descending) that it fills."""
    for scale, unit in steps:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale)} {unit}"
    scale, unit = steps[-1]
    return f"{significant(value / scale)} {unit}"


def capacity(size: float) -> str:
    """A capacity in binary units: 2**30 → `1 GiB`."""
    text = _scaled(size, ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")))
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def duration(seconds: float) -> str:
    """A time span: 1.5e-6 → `1.50 µs`, 90 → `1 min 30 s`."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
        return " ".join(f"{count} {unit}" for count, unit in parts if count)
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def age(seconds: float) -> str:
    """A time span to the whole second or coarser, in its two largest units: 90 → `1 min 30 s`, 97200 → `1 d 3 h`."""
    steps = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    whole = int(seconds)
    for (size, unit), (smaller, below) in itertools.pairwise(steps):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def byte_rate(rate: float) -> str:
    """A rate in decimal units: 5.5e10 → `55.0 GB/s`."""
    return _scaled(rate, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def flop_rate(rate: float, unit: str = "FLOP/s") -> str:
    """A rate of floating-point operations: 7.9e14 → `790 TFLOP/s`; of whole numbers with the unit `OP/s`."""
    return _scaled(rate, ((1e15, f"P{unit}"), (1e12, f"T{unit}"), (1e9, f"G{unit}"), (1e6, f"M{unit}"), (1, unit)))


def percent(fraction: float) -> str:
    """A fraction as a percentage: 0.0512 → `5.1 %`."""
    value = fraction * 100
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"
