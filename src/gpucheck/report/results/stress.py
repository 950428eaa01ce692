"""The answer of `stress`: the curve, the checksums of results, and the errors of each device."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.report.measurement import DeviceRef


@dataclass(frozen=True, slots=True)
class StressSpread:
    """The minimum, median and maximum of the readings of a point."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class StressPoint:
    """A point of a device's curve: the work from `at_s` on, and the readings during this work. `rate` is that of the
    steps. `unit` is FLOP/s or OP/s for products and mixed work, B/s for copies, and `word/s` for memory: words of 64
    bits that were read and written. `word/s` is not the memory's bandwidth, because patterns are computed. Power is a
    mean over at least 2 s of one turn; None in the first 2 s, and on devices that do not count energy. `held` are the
    reasons for a clock below the requested clock."""

    at_s: float
    kind: str
    steps: int
    rate: StressSpread
    unit: str
    sm_clock_hz: StressSpread | None = None
    temperature_celsius: StressSpread | None = None
    power_w: float | None = None
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StressWrong:
    """A step whose result was wrong. `step` counts the device's steps, and `result` names the result. `against` is the
    right value's source: `first` (the device's first result), `pattern` (the written pattern) or `float64`. `elements`
    is the number of wrong elements; None if unknown. `place` is the first wrong index, with its value and the right
    value as bits. `worst_of_bound` is the largest error as a share of the rounding bound, if there is one."""

    at_s: float
    step: int
    kind: str
    result: str
    against: str
    elements: int | None = None
    place: int | None = None
    got: str | None = None
    expected: str | None = None
    worst_of_bound: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class StressDevice:
    """One device; `name` is its id.

    Devices of the same `model` compute the same bits: `checksums` has the checksum of the first result of each kind.
    `reproducible` is whether the libraries promise the same bits every time. `checks` is the number of products that
    were compared with float64, and `worst_of_bound` the largest error as a share of the rounding bound. `wrong` has the
    first wrong steps, and `wrong_steps` is the number of all wrong steps. `counters` is the rise of each error counter
    of the driver. `power_limit_w` is the limit in force. `memory_tested_bytes` is the part of the filled memory that
    the memory test has written and read; None without this test. `ended` is empty, `fault`, `error` or `signal`.
    """

    name: str
    device: DeviceRef
    model: str
    dtype: str = ""
    side: int = 0
    filled_bytes: int = 0
    steps: int = 0
    wrong_steps: int = 0
    checks: int = 0
    worst_of_bound: float | None = None
    reproducible: bool = True
    ended: str = "signal"
    checksums: dict[str, str] = field(default_factory=dict)
    points: tuple[StressPoint, ...] = ()
    wrong: tuple[StressWrong, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    power_limit_w: float | None = None
    memory_tested_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StressResult:
    """The options and the results of all devices. In a turn (`turn_s` on average), all devices do one kind of work."""

    duration_s: float
    turn_s: float
    kinds: tuple[str, ...]
    seed: int
    devices: tuple[StressDevice, ...] = ()
