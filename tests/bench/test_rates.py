"""Burst and sustained rates, on a chip that is simulated: its clock rises under load, and falls at its power limit.

Then what a product has of them, and what their rows come to.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fake_device import FakeDevice
from judged import Document, findings

from gpucheck.bench.dtypes import Dtype, Support
from gpucheck.bench.judging import Ceiling, DeviceRows
from gpucheck.bench.matmul import MatmulOptions, judge, rates, work
from gpucheck.bench.matmul.judge import JUDGE
from gpucheck.bench.matmul.product import ProductCase
from gpucheck.compare.comparison import matched
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Notice
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats

CALL_S, ENQUEUE_S = 1.5e-3, 5e-6


@dataclass
class Chip:
    """A device and its host on one simulated clock. A call takes `CALL_S` at the highest clock.

    Under products its rate falls within half a second to `sustained` of what it is from rest; at rest its clock falls
    to `idle` of the highest within a second, and rises within 0.2 s.
    """

    sustained: float = 0.87
    swing: float = 0.0
    now_s: float = 0.0
    free_s: float = 0.0
    loaded_s: float = 0.0
    clock: float = 0.2
    rested_s: float = 10.0

    def host_now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        idle_s = self.now_s - max(self.free_s, self.now_s - seconds)
        if idle_s > 1.0:
            self.clock, self.loaded_s = 0.2, 0.0

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.free_s)

    def record(self) -> float:
        self.free_s = max(self.free_s, self.now_s)
        return self.free_s

    def done(self, mark: float) -> bool:
        return self.now_s >= mark

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    @property
    def has_events(self) -> bool:
        return True

    def hold(self, seconds: float) -> bool:
        self.free_s = max(self.free_s, self.now_s) + seconds
        self.clock = min(1.0, self.clock + seconds * 5)
        return True

    def call(self) -> None:
        self.now_s += ENQUEUE_S
        self.free_s = max(self.free_s, self.now_s)
        share = self.sustained if self.loaded_s > 0.5 else 1.0
        wave = 1 + self.swing * (1 if int(self.loaded_s) % 2 else -1)
        length_s = CALL_S / (share * self.clock) * wave
        self.free_s += length_s
        self.loaded_s += length_s

    def read(self) -> Mapping[str, Any]:
        return {"sm_clock_hz": 1980e6 * self.clock, "max_sm_clock_hz": 1980e6, "temperature_celsius": 40.0}


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    made = Chip()
    monkeypatch.setattr("gpucheck.bench.matmul.rates.time.sleep", made.sleep)
    return made


def median_call_s(timed: timing.Timed) -> float:
    return sorted(timed.run.samples_s)[len(timed.run.samples_s) // 2] / timed.run.calls_per_sample


def test_a_burst_is_the_rate_at_the_highest_clock_whatever_ran_before(chip: Chip) -> None:
    for _ in range(1000):
        chip.call()
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), chip.read)
    assert len(timed.run.samples_s) == rates.BURSTS and timed.flags == ()
    assert median_call_s(timed) == pytest.approx(CALL_S, rel=0.01)
    assert timed.run.calls_per_sample * CALL_S == pytest.approx(rates.BURST_S, rel=0.2)
    assert timed.details["began_sm_clock_hz"] == pytest.approx(1980e6)
    assert timed.details["began_temperature_celsius"] == 40.0


def test_without_telemetry_each_rest_has_one_spin(chip: Chip) -> None:
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), lambda: None)
    assert timed.details["began_sm_clock_hz"] is None
    assert chip.now_s < rates.BURSTS * (rates.REST_S + 0.2)


def test_a_clock_that_a_setting_holds_is_not_waited_for(chip: Chip) -> None:
    held = {"sm_clock_hz": 1000e6, "max_sm_clock_hz": 1980e6}
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), lambda: held)
    assert chip.now_s < rates.BURSTS * (rates.REST_S + rates.LONGEST_SPIN_S + 0.2)
    assert timed.details["began_sm_clock_hz"] == 1000e6


def test_a_burst_in_which_the_device_waited_for_the_host_is_left_out(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = itertools.count()
    monkeypatch.setattr(Chip, "done", lambda self, mark: next(late) < 4)
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), chip.read)
    assert len(timed.run.samples_s) == rates.BURSTS - 4 and "few-samples" in timed.flags


def test_a_sustained_rate_is_settled_once_two_seconds_agree(chip: Chip) -> None:
    chip.clock = 1.0
    timed = rates.sustained(chip, chip.call, CALL_S)
    assert timed.flags == () and timed.details["settled"] is True
    assert rates.LEAST_S <= timed.details["after_s"] < rates.LEAST_S + 1.5
    assert median_call_s(timed) == pytest.approx(CALL_S / 0.87, rel=0.005)
    # Windows of the last two seconds, one after the other without a pause.
    assert sum(timed.run.samples_s) == pytest.approx(2.0, abs=0.2)
    starts = timed.run.started_monotonic_s
    ends = [start + length for start, length in zip(starts, timed.run.samples_s, strict=True)]
    assert all(later - end < 0.01 for end, later in zip(ends, starts[1:], strict=False))


def test_a_rate_that_swings_is_not_settled_and_ends(chip: Chip) -> None:
    chip.clock, chip.swing = 1.0, 0.05
    timed = rates.sustained(chip, chip.call, CALL_S)
    assert timed.flags == ("not-settled",) and timed.details["settled"] is False
    assert rates.LONGEST_S <= timed.details["after_s"] < rates.LONGEST_S + 1


def test_a_sustained_rate_ends_with_its_time(chip: Chip) -> None:
    chip.clock, chip.swing = 1.0, 0.05
    timed = rates.sustained(chip, chip.call, CALL_S, longest_s=4.0)
    assert 4.0 <= timed.details["after_s"] < 4.5


def test_the_device_never_waits_for_the_host(chip: Chip) -> None:
    chip.clock = 1.0
    queued: list[float] = []
    call = chip.call

    def counted() -> None:
        queued.append(chip.free_s - chip.now_s)
        call()

    rates.sustained(chip, counted, CALL_S)
    assert min(queued[100:]) > 0


# what a product has of them

NATIVE = Support("native")


def case(dtype: Dtype, side: int) -> ProductCase:
    return ProductCase(dtype, (side, side, side), NATIVE)


USUAL = [case(dtype, side) for dtype in ("float32", "float16", "bfloat16") for side in (4096, 8192)]
BOTH: tuple[rates.RateKind, ...] = ("sustained", "burst")


@pytest.mark.parametrize(
    ("budget_s", "kinds", "dtypes"),
    [
        (30.0, BOTH, []),
        (60.0, BOTH, ["bfloat16"]),
        (60.0, ("burst",), ["bfloat16", "float16", "float32"]),
        (80.0, BOTH, ["bfloat16", "float16"]),
        (600.0, BOTH, ["bfloat16", "float16", "float32"]),
    ],
)
def test_the_time_says_which_dtypes_have_rates(
    budget_s: float, kinds: tuple[rates.RateKind, ...], dtypes: list[Dtype]
) -> None:
    assert work.rated(USUAL, budget_s, kinds) == {case(dtype, 8192): kinds for dtype in dtypes}


class Steady(FakeDevice):
    """Behind a hold its time stamps are passed once it is waited for, else at once."""

    held = False

    def hold(self, seconds: float) -> bool:
        self.held = True
        return True

    def synchronize(self) -> None:
        self.held = False

    def done(self, mark: float) -> bool:
        return not self.held


class Told(Watch):
    """Telemetry without a sampler: what each moment reads."""

    def __init__(self, **readings: Any) -> None:
        super().__init__(None)
        self.reason, self.readings = "", readings

    def take(self) -> list[dict[str, Any]]:
        return [self.readings]

    def during(self, run: Run, lead_in: float = 0.0) -> tuple[dict[str, Any] | None, str]:
        clock = self.readings.get("sm_clock_hz")
        return {"sm_clock_hz": clock and {"median": clock, "min": clock, "max": clock}, "clock_reasons": []}, ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REST_S", "SPIN_S", "SETTLING_S", "BATCH_S"):
        monkeypatch.setattr(rates, name, 1e-4)
    monkeypatch.setattr(rates, "LONGEST_S", 0.2)
    monkeypatch.setattr(work, "LONGEST_S", 0.2)
    monkeypatch.setattr(rates, "LEAST_S", 0.01)
    # Each call is waited for: the host is never ahead by itself.
    monkeypatch.setattr(timing, "AHEAD_RATIO", 0.0)
    monkeypatch.setattr(timing, "AHEAD_IN_WINDOW", 0.0)


@pytest.mark.usefixtures("quick")
def test_a_product_has_a_row_for_each_rate_and_is_compared_once() -> None:
    watch = Told(sm_clock_hz=1e9, max_sm_clock_hz=1e9, temperature_celsius=50.0)
    rows = work.measure(
        ProductCase("float32", (256, 256, 256), NATIVE),
        Steady(),  # type: ignore[arg-type]
        0.1,
        watch,
        BOTH,
        until=float("inf"),
    )
    assert [row.case["rate"] for row in rows] == ["sustained", "burst"]
    assert all(row.rate is not None and row.case["m"] == 256 for row in rows)
    assert rows[1].method.details["began_temperature_celsius"] == 50.0
    assert ["corruption" in row.method.details for row in rows] == [True, False]
    assert {finding.verdict for finding in findings(JUDGE, rows)} == {"pass", "info"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("watch", "until", "kinds"),
    [
        (Watch(None), float("inf"), [None]),  # no clock: both rates would be guesses
        (Told(), float("inf"), [None]),
        (Told(sm_clock_hz=1e9, max_sm_clock_hz=1e9), 0.0, ["burst"]),  # no time to settle
    ],
)
def test_a_product_without_a_clock_has_its_ordinary_row(watch: Watch, until: float, kinds: list[str | None]) -> None:
    rows = work.measure(ProductCase("float32", (256, 256, 256), NATIVE), Steady(), 0.1, watch, BOTH, until)  # type: ignore[arg-type]
    assert [row.case.get("rate") for row in rows] == kinds


def test_a_burst_that_cannot_be_measured_is_said() -> None:
    document = Document("bench matmul")
    asked = MatmulOptions(dtypes=("float32",), squares=(64,), burst=True, time_budget_s=0.1, device="cpu")
    work.command(asked, document)
    notices = [event.text for event in document.events if isinstance(event, Notice)]
    assert "--burst has no effect on cpu: the device's clock cannot be read" in notices


# what the rows come to


def row(
    kind: str | None, tflops: float, dtype: str = "bfloat16", side: int = 8192, flags: Sequence[str] = ()
) -> Measurement:
    flop = 2.0 * side**3
    seconds = flop / (tflops * 1e12)
    return Measurement(
        name="matmul",
        device=DeviceRef("cuda:0"),
        case={
            "dtype": "bfloat16",
            "m": side,
            "n": side,
            "k": side,
            "support": "native",
            **({"rate": kind} if kind else {}),
        },
        runs=(Run("", 1, (seconds,) * 20, tuple(map(float, range(20)))),),
        time_s=TimeStats(seconds, 20, ci_low=seconds * 0.999, ci_high=seconds * 1.001),
        work={"flop": flop},
        rate=Rate(tflops * 1e12, "FLOP/s"),
        memory=MemoryFigures(),
        method=Method(
            "device events", "unheld", "warm", dtype, dtype, details={"worst_error_of_bound": 0.1, "not_finite": 0}
        ),
        flags=tuple(flags),
    )


SUSTAINED, BURST = row("sustained", 699), row("burst", 799)


def speed(*rows: Measurement) -> str:
    return next(finding.message for finding in findings(JUDGE, rows) if finding.id == "matmul.speed")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((SUSTAINED, BURST), "bfloat16 699 TFLOP/s sustained (burst 799 TFLOP/s)"),
        ((row("sustained", 790), BURST), "bfloat16 790 TFLOP/s"),
        ((BURST,), "bfloat16 799 TFLOP/s burst"),
        ((row(None, 710, side=4096), SUSTAINED, BURST), "bfloat16 699 TFLOP/s sustained (burst 799 TFLOP/s)"),
        ((row(None, 710, side=4096), BURST), "bfloat16 799 TFLOP/s burst"),
        ((row(None, 710),), "bfloat16 710 TFLOP/s"),
    ],
)
def test_a_dtype_is_said_by_its_sustained_rate_and_the_burst_beside_it(rows: Sequence[Measurement], text: str) -> None:
    assert speed(*rows) == text


def decided(*rows: Measurement) -> list[tuple[float | None, str]]:
    figures = JUDGE.thresholds["matmul.min_tflops"].figures(rows, {"bfloat16": Ceiling(989e12)})
    return [(figure.value and round(figure.value / 1e12), figure.doubt) for figure in figures]


def test_a_threshold_is_of_the_sustained_rate_and_of_none_that_did_not_settle() -> None:
    assert decided(SUSTAINED, BURST, row(None, 720, side=4096)) == [(699, "")]
    assert decided(BURST) == [(799, "")]
    assert decided(row("sustained", 699, flags=("not-settled",)), BURST) == [(699, "the rate did not settle")]


def test_a_figure_names_its_rate() -> None:
    rows = DeviceRows("cuda:0", [SUSTAINED, BURST])
    assert [line.case for line in JUDGE.headlines(rows, {})] == ["bfloat16, 8192×8192, sustained"]
    assert judge.rate_word(SUSTAINED, [SUSTAINED, row("burst", 705)]) == ""


def test_a_comparison_never_mixes_rates() -> None:
    pairs, old, new = matched([SUSTAINED, BURST], [row("burst", 780), row(None, 700)])
    assert [(a.case["rate"], b.case["rate"]) for a, b in pairs] == [("burst", "burst")]
    assert len(old) == len(new) == 1
