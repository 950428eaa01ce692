"""The thresholds of measured figures, and the settings file. Other modules read the file.

Values are in SI units here (bytes and FLOP per second, fractions). Files and options use the unit of the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gpucheck import naming, units
from gpucheck.errors import UsageError

ThresholdUnit = Literal["GB/s", "TFLOP/s", "percent"]

# The value of one unit of each kind in SI.
SCALE: dict[ThresholdUnit, float] = {"GB/s": 1e9, "TFLOP/s": 1e12, "percent": 0.01}
SI_UNIT: dict[ThresholdUnit, str] = {"GB/s": "B/s", "TFLOP/s": "FLOP/s", "percent": "1"}


class Threshold(NamedTuple):
    """A threshold of a command: the ID of its finding, the figures that it judges, and the option that sets it."""

    id: str
    command: str
    kind: ThresholdUnit
    direction: Literal["at least", "at most"]
    judges: str
    option: str
    metavar: str
    help: str

    @property
    def key(self) -> str:
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def range(self) -> str:
        """Return the values that the option accepts, with the unit, for help pages."""
        return f"in {self.kind}, 0 or more" if self.kind != "percent" else "0% or more"


def _of_bench(id: str, kind: ThresholdUnit, judges: str, help: str) -> Threshold:
    """Return the lower limit of a benchmark's figures. Its ID names the benchmark and the option."""
    benchmark, _, name = id.partition(".")
    option, metavar = f"--{name.replace('_', '-')}", "PERCENT" if kind == "percent" else "N"
    return Threshold(id, f"bench {benchmark}", kind, "at least", judges, option, metavar, help)


_OF_PEAK = "Fail below this share of the GPU's peak; inconclusive if the peak is only an estimate."

# An ID never changes its meaning: it is the key in a settings file, and the ID of the finding that the limit decides.
THRESHOLDS: tuple[Threshold, ...] = (
    _of_bench(
        "transfer.min_gbps",
        "GB/s",
        "the largest pinned copy of each direction; on a CPU the largest copy",
        "Fail if the largest pinned copy of a direction is slower than N GB/s.",
    ),
    _of_bench(
        "bandwidth.min_gbps",
        "GB/s",
        "every operation on the largest cold arrays",
        "Fail if an operation is slower than N GB/s.",
    ),
    _of_bench(
        "bandwidth.min_percent_of_peak",
        "percent",
        "every operation on the largest cold arrays, as a share of the GPU's peak memory rate",
        _OF_PEAK,
    ),
    _of_bench(
        "matmul.min_tflops",
        "TFLOP/s",
        "the fastest product (`--dtype` selects the dtypes), by its sustained rate if it has one, with `--burst` by "
        "its burst",
        "Fail if the fastest product is slower than N TFLOP/s.",
    ),
    _of_bench(
        "matmul.min_percent_of_peak",
        "percent",
        "the fastest product of each dtype that has a peak, by the same rate, as a share of that dense peak",
        _OF_PEAK,
    ),
    _of_bench(
        "collective.min_busbw",
        "GB/s",
        "the all-reduce of the largest array, from 1 GiB on; without one every collective that was measured",
        "Fail if all-reduce has less than N GB/s of bus bandwidth.",
    ),
    Threshold(
        "compare.slower",
        "compare",
        "percent",
        "at most",
        "how much slower a row is than in the baseline",
        "--fail-if-slower",
        "PERCENT",
        "Fail if a row is slower than the baseline by more than this.",
    ),
)
BY_ID = {threshold.id: threshold for threshold in THRESHOLDS}
# The largest accepted threshold, far above the rate of any GPU: a larger number is a typing error.
LARGEST = 1e9
# The largest factor by which each recorded disturbance can lower a figure, and its name in a sentence. A figure that is
# below its threshold by more than this factor fails despite the flags. The factors of several disturbances multiply.
# The factors are large, because a false failure is worse than an inconclusive result.
DISTURBANCES: dict[str, tuple[float, str]] = {
    # Twice the largest observed factor: noisy rows differ by less than a factor of 2. The same factor applies to a
    # figure with too few samples for an interval.
    "noisy": (4.0, "noise"),
    "no interval": (4.0, "too few samples"),
    # Reading from a cache is faster than from memory, but small calls lose up to half of their time to the launch.
    "warm": (4.0, "a cache"),
    # Threads take turns on a core, and processes on a GPU. A factor of 32 needs 31 others that are busy all the time.
    "cpu-busy": (32.0, "machine busy"),
    "device-shared": (32.0, "other processes on the GPU"),
    # The ratio of the highest clock (2 to 3 GHz) to the lowest (135 to 210 MHz): nvidia-smi -q -d SUPPORTED_CLOCKS.
    "throttled": (20.0, "a throttled clock"),
    # An estimated peak counts units that a GPU may lack: the estimate for float64 on an H20 is 39 TFLOP/s, but the H20
    # reaches 1. The largest ratio of units between GPUs of one architecture is 64 (float64, GA100 to GA102).
    "estimate": (64.0, "an estimated peak"),
}
# A thread that lost its core waits until 31 other threads had their turns, of 3 ms each with Linux's scheduler. As an
# example, copies of 77 µs took 25 to 50 ms with 12 processes on 2 cores.
TURNS_S = 0.1


def largest_loss(disturbances: Collection[str], call_s: float | None = None) -> float:
    """Return the factor by which these disturbances together can lower a figure. It is infinity for a call so short
    (`call_s`) that waiting for a core may take all of its time."""
    factor = math.prod(DISTURBANCES[name][0] for name in disturbances)
    if "cpu-busy" in disturbances and call_s is not None:
        factor *= call_s / (call_s - TURNS_S) if call_s > TURNS_S else math.inf
    return factor


# The screens' names for flags that have another name in the document.
FLAG_NAMES = {"cpu-busy": "machine busy", "device-shared": "device in use"}


def in_words(flags: Iterable[str]) -> str:
    """Return flags as the screens name them: `noisy and machine busy`."""
    return " and ".join(FLAG_NAMES.get(flag, flag.replace("-", " ")) for flag in flags)


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold that was set: its value in SI, its `origin`, and the exact name of its GPU; None means all
    devices."""

    id: str
    value: float
    unit: str
    origin: str
    device: str | None = None


def limit(threshold: Threshold, value: Any, origin: str, *, device: str | None = None) -> Limit:
    """Return a threshold set to `value`, a number in its unit or that number as text. Raises UsageError."""
    return Limit(threshold.id, number(threshold.kind, value, origin), SI_UNIT[threshold.kind], origin, device)


def number(kind: ThresholdUnit, value: Any, origin: str) -> float:
    """Return `value`, a number or its text, in SI. Raises UsageError, also for a percentage below 1 without a sign."""
    has_sign = kind == "percent" and isinstance(value, str) and value.rstrip().endswith("%")
    try:
        amount = float(value.rstrip().removesuffix("%") if has_sign else value)
    except (ValueError, TypeError, OverflowError):
        amount = math.nan
    if isinstance(value, bool) or not math.isfinite(amount):
        grammar = "80%" if kind == "percent" else f"50, which is {kind}"
        raise UsageError(f"{origin} must be a number, not {shown(value)}", "", f"write it like {grammar}")
    if not 0 <= amount <= LARGEST:
        unit = "%" if kind == "percent" else f" {kind}"
        raise UsageError(f"{origin} must be from 0 to {LARGEST:.0f}{unit}, not {shown(value)}")
    if kind == "percent" and not has_sign and 0 < amount < 1:
        why = "it looks like a fraction"
        raise UsageError(f"{origin} must be a percentage, not {shown(value)}", why, "write it like 80%")
    return amount * SCALE[kind]


def limit_text(limit: Limit) -> str:
    """Return the requirement of a limit as text: `at least 50.0 GB/s`."""
    threshold = BY_ID[limit.id]
    return f"{threshold.direction} {amount(threshold.kind, limit.value)}"


def amount(kind: ThresholdUnit, value: float) -> str:
    if kind == "percent":
        text = units.significant(value * 100)
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"
    return units.byte_rate(value) if kind == "GB/s" else units.flop_rate(value)


def applying(thresholds: Sequence[Limit], device: str | None) -> tuple[Limit, ...]:
    """Return the first limit of each ID that applies to the device. A limit without a device applies to all."""
    first: dict[str, Limit] = {}
    for limit in thresholds:
        if limit.device in (None, device):
            first.setdefault(limit.id, limit)
    return tuple(first.values())


def shown(value: Any) -> str:
    """Return a value as text for an error, cut to 60 characters."""
    try:
        return clipped(str(value).lower() if isinstance(value, bool) else repr(value))
    except ValueError:  # Python refuses to convert a number with thousands of digits to text
        return "a huge number"


def clipped(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings file, the variables that set an option, and all limits. The first limit that applies counts."""

    file: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    thresholds: tuple[Limit, ...] = ()


def parse(text: str, name: str) -> Settings:
    """Return the settings in the TOML `text` of the file `name`. Raises UsageError unless it has only thresholds."""
    try:
        table = loaded(text)
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, which names the line, and numbers that Python refuses to read
        raise UsageError(f"{name} is not valid TOML", str(error), "correct it or give another --config") from error
    for key, value in table.items():
        origin = f"{name}:{clipped(key)}"
        if key != "thresholds":
            raise UsageError(f"{origin} is unknown", "", "write thresholds below [thresholds]")
        if not isinstance(value, Mapping):
            raise UsageError(f"{origin} must be a table: [thresholds], not {shown(value)}")
    return Settings(name, thresholds=_thresholds(table.get("thresholds", {}), f"{name}:thresholds"))


def loaded(text: str) -> dict[str, Any]:
    """Return the data of a TOML text. Raises ValueError for broken TOML."""
    # Imported late: most commands read no TOML.
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return dict(tomllib.loads(text))


def _thresholds(table: Mapping[str, Any], prefix: str) -> tuple[Limit, ...]:
    """Return the thresholds of a file. Those for a named device come first."""
    limits = []
    for path, value in _flat(table):
        name = ".".join(path)
        # An ID needs no quotes in TOML: `transfer.min_gbps = 1` sets `min_gbps` in a table `transfer`.
        device, id = (None, name) if name in BY_ID else (path[0], ".".join(path[1:]))
        origin = f"{prefix}.{id}" if device is None else f'{prefix}."{clipped(device)}".{clipped(id)}'
        if id not in BY_ID:
            raise UsageError(f"{prefix}.{clipped(name)} is unknown", "", naming.did_you_mean(name, BY_ID))
        if device is not None and BY_ID[id].command == "compare":
            raise UsageError(f"{origin} is not for one device", "", f"write it in [{prefix}]")
        if isinstance(value, str) and BY_ID[id].kind != "percent":
            raise UsageError(f"{origin} {shown(value)} is not a number", "", "write it without quotes")
        limits.append(limit(BY_ID[id], value, origin, device=device))
    return tuple(sorted(limits, key=lambda limit: limit.device is None))


def _flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value
