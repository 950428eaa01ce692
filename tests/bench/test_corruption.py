"""Results of the same inputs: the first against float64, later ones against the first, and what that comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from broken_device import GARBAGE, garbled
from judged import findings as judged
from products_here import needs

from gpucheck.bench.dtypes import Dtype, Support
from gpucheck.bench.matmul import judge, product, work
from gpucheck.bench.matmul.judge import JUDGE
from gpucheck.bench.matmul.product import KINDS, Matrices, ProductCase, RepeatCheck
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.work import reference

CPU = accel.open_device("cpu")
NATIVE = Support("native")
# Of 96 rows these are not among the 64 that are sampled.
UNSAMPLED = next(row for row in range(96) if row not in reference.sampled_rows(96))


def sets(dtype: Dtype = "float32", count: int = 1) -> list[Matrices]:
    """Equal sets with their first results."""
    needs(dtype)
    kind, made = KINDS[dtype], []
    for _ in range(count):
        flat = product.allocate(kind, (96 * 64, 64 * 80, 96 * 80), CPU.device)
        product.fill(flat)
        made.append(product.view(kind, flat, (96, 80, 64)))
        kind.bind(made[-1].a, made[-1].b, made[-1].out)()
    return made


def flip(tensor: torch.Tensor, row: int, column: int, bit: int) -> None:
    product.bits(tensor)[row, column] ^= 1 << bit


# later results, bit for bit


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8"])
def test_any_bit_of_a_later_result_is_seen(dtype: Dtype) -> None:
    made = sets(dtype)
    repeats = RepeatCheck(made, CPU)
    flip(made[0].out, UNSAMPLED, 79, 0)
    repeats.finish()
    seen = repeats.details()
    assert seen["results_differing"] == 1
    assert (seen["worst"]["row"], seen["worst"]["column"]) == (UNSAMPLED, 79)


def test_of_many_that_differ_a_little_the_wrong_one_is_named() -> None:
    made = sets()
    repeats = RepeatCheck(made, CPU)
    product.bits(made[0].out).add_(1)
    right = float(made[0].out[50, 60])
    made[0].out[50, 60] += 0.5
    repeats.finish()
    seen = repeats.details()
    assert (seen["worst"]["row"], seen["worst"]["column"], seen["worst"]["got"]) == (50, 60, right + 0.5)
    assert seen["worst"]["worst"] > 1


def test_a_nan_equals_itself_and_nothing_else() -> None:
    made = sets()
    made[0].out[1, 2] = math.nan
    repeats = RepeatCheck(made, CPU)
    repeats.finish()
    assert repeats.differing == 0
    made[0].out[3, 4] = math.nan
    repeats.finish()
    assert repeats.differing == 1 and repeats.worst is not None
    assert (repeats.worst.row, repeats.worst.column, repeats.worst.worst) == (3, 4, math.inf)


class Flicker:
    """Comparisons of whole results say once that two differ that do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.real, self.calls, self.at = torch.equal, 0, at
        monkeypatch.setattr(torch, "equal", self)

    def __call__(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        self.calls += 1
        return self.calls != self.at and self.real(one, other)


def test_a_difference_that_is_gone_at_the_second_look_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    flicker = Flicker(monkeypatch, at=2)
    findings = found(failing(monkeypatch, lambda number, out: None))
    assert flicker.calls >= 2
    wrong = findings["matmul.corruption"]
    assert wrong.verdict == "fail" and "float32 96x80x64: 1 of " in wrong.message
    assert wrong.message.endswith("at the first look and not at the second")
    assert findings["matmul.result"].verdict == "pass"


def test_no_place_that_a_broken_device_tells_is_an_index() -> None:
    first = sets()[0]
    device = Matrices(garbled(first.a), garbled(first.b), garbled(first.out))
    repeats = RepeatCheck([device], CPU)
    flip(first.out, 20, 30, 28)
    repeats.finish()
    assert repeats.worst is not None and (repeats.worst.row, repeats.worst.column) == (20, 30)
    checked = product.check_first(device, garbled(first.out), None)
    assert (checked.sums.row, checked.sums.column) == (20, 0) and not checked.sums.passed
    assert checked.element is not None and (checked.element.row, checked.element.column) == (20, 30)


def test_a_count_that_a_broken_device_tells_is_never_told() -> None:
    first = sets()[0]
    device = Matrices(first.a, first.b, garbled(first.out))
    told = product.check_first(device, device.out, None).details()
    assert (told["not_finite"], told["miscounted"], told["worst_error_of_bound"] <= 1) == (0, True, True)
    finding = judge.first_results([row(**told)])
    assert finding.verdict == "fail"
    assert "the device's own count of finite elements is invalid" in finding.message
    assert "not finite" not in finding.message and str(GARBAGE) not in finding.message
    # One that is right about it is believed, and looked at by the host.
    first.out[3, 4] = math.nan
    told = product.check_first(first, first.out, None).details()
    assert (told["not_finite"], told["miscounted"]) == (1, False)


class Clock:
    """A device whose clock a test moves; comparing costs nothing on it."""

    def __init__(self) -> None:
        self.now = 0.0

    def host_now(self) -> float:
        return self.now

    def synchronize(self) -> None:
        return None


def test_the_first_and_the_last_are_compared_and_between_as_the_allowance_affords() -> None:
    clock: Any = Clock()
    made = sets()
    repeats = RepeatCheck(made, clock)
    repeats.before(0, 1)
    assert repeats.compared == 0
    repeats.before(1, 4)
    assert repeats.compared == 1
    repeats.spent_s = 0.2  # that one was dear: a tenth of two seconds
    for now, compared in ((1.0, 1), (1.9, 1), (2.1, 2)):
        clock.now = now
        repeats.before(2, 4)
        assert repeats.compared == compared
    clock.now = 0.5
    repeats.finish()
    assert repeats.compared == 3


def test_each_set_of_a_rotation_is_compared_at_the_end() -> None:
    made = sets(count=5)
    repeats = RepeatCheck(made, CPU)
    flip(made[3].out, 10, 10, 30)
    repeats.before(1, 1)
    assert (repeats.compared, repeats.differing) == (1, 0)
    repeats.finish()
    assert (repeats.compared, repeats.differing) == (6, 1)


# the whole measurement


def failing(monkeypatch: pytest.MonkeyPatch, fault: Callable[[int, torch.Tensor], None]) -> Measurement:
    """A row of a machine whose products have a fault; `fault` is given the number of the product of random data."""
    real, count = torch.mm, 0

    def wrong(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        nonlocal count
        real(a, b, out=out)
        if a.numel() and float(a[0, 0]) != float(a[0, 1]):  # not those that tell the precision
            count += 1
            fault(count, out)
        return out

    monkeypatch.setattr(torch, "mm", wrong)
    return work.measure(ProductCase("float32", (96, 80, 64), NATIVE), CPU, budget_s=0.02, watch=Watch(None))[0]


def found(*rows: Measurement) -> dict[str, Finding]:
    return {one.id: one for one in judged(JUDGE, rows)}


def test_a_wrong_bit_in_a_later_result_is_found_though_the_first_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, lambda number, out: flip(out, 41, 7, 27) if number > 1 else None)
    findings = found(one)
    assert findings["matmul.result"].verdict == "pass"
    wrong = findings["matmul.corruption"]
    assert wrong.verdict == "fail"
    assert "row 41, column 7 is " in wrong.message and ", float64 gives " in wrong.message
    seen = wrong.evidence["float32 96x80x64"]
    assert seen["results_differing"] == seen["results_compared"] > 1


def test_a_wrong_bit_in_the_first_result_is_found_by_sampled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, lambda number, out: flip(out, 0, 7, 27) if number == 1 else None)
    wrong = found(one)["matmul.result"]
    assert wrong.verdict == "fail" and "float32 96x80x64: row 0, column 7 is " in wrong.message
    assert one.method.details["wrong_element"]["column"] == 7


def test_a_wrong_bit_in_a_row_that_is_not_sampled_is_found_by_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, lambda _, out: flip(out, UNSAMPLED, 70, 27))
    details = one.method.details
    assert details["worst_error_of_bound"] < 1 < details["column_sums"]["worst_of_threshold"]
    wrong = found(one)["matmul.result"]
    assert wrong.verdict == "fail" and f"row {UNSAMPLED}, column 70 is " in wrong.message
    # The same each time: to the comparison with the first it is right.
    assert found(one)["matmul.corruption"].verdict == "pass"


def test_a_result_that_is_added_up_in_another_order_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found(failing(monkeypatch, lambda number, out: flip(out, 41, 7, 0) if number > 1 else None))
    told = findings["matmul.corruption"]
    assert told.verdict == "info"
    assert findings["matmul.result"].verdict == "pass"


class Stamps(accel.Accel):
    """A CPU with the events and holds of a GPU, of which the host is always ahead."""

    holds = 0

    @property
    def has_events(self) -> bool:
        return True

    def record(self) -> float:
        return self.host_now()

    def done(self, mark: float) -> bool:
        return False

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def hold(self, seconds: float) -> bool:
        type(self).holds += 1
        return True


@pytest.mark.parametrize("sets", [1, 3])
def test_on_the_clock_of_a_device_results_are_compared_too(sets: int) -> None:
    device = Stamps(torch.device("cpu"), torch.cpu, "a device")
    case = replace(ProductCase("float32", (96, 80, 64), NATIVE), sets=sets)
    (one,) = work.measure(case, device, budget_s=0.05, watch=Watch(None))
    assert (one.method.clock, one.method.launch) == ("device events", "held") and Stamps.holds > 0
    assert one.method.details["corruption"]["results_compared"] >= 1 + sets
    assert found(one)["matmul.corruption"].verdict == "pass"


def test_a_device_whose_kernels_do_nothing_multiplies_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands and result are what its memory held, and zeros times zeros are zeros."""
    monkeypatch.setattr(product, "fill", lambda flat: [flat.a.zero_(), flat.b.zero_(), flat.out.zero_()])
    (one,) = work.measure(ProductCase("float32", (96, 80, 64), NATIVE), CPU, budget_s=0.02, watch=Watch(None))
    wrong = found(one)["matmul.result"]
    assert wrong.verdict == "fail"
    assert wrong.message == "float32 96x80x64: the operands are not random numbers"


# judging what a document holds


def row(dtype: str = "float32", observed: str = "float32", **details: Any) -> Measurement:
    details = {"worst_error_of_bound": 0.5, "not_finite": 0, **details}
    return Measurement(
        name="matmul",
        device=DeviceRef("cuda:0"),
        case={"dtype": dtype, "m": 8, "n": 8, "k": 8, "support": "native"},
        runs=(Run("", 1, (1.0,), (0.0,)),),
        time_s=TimeStats(1.0, 1),
        work={"flop": 1024.0},
        rate=None,
        memory=MemoryFigures(),
        method=Method("device events", "held", "warm", dtype, observed, details=details),
    )


def seen(compared: int, worst: float | None = None, differing: int = 0) -> dict[str, Any]:
    element = None if worst is None else {"row": 1, "column": 2, "got": 3.5, "expected": 1.25, "worst": worst}
    return {
        "results_compared": compared,
        "results_differing": differing,
        "worst": element,
    }


def sums(worst: float) -> dict[str, Any]:
    return {"compared": 8, "worst_of_threshold": worst, "detects": 0.1}


def test_what_was_computed_in_another_precision_is_not_called_corrupt() -> None:
    one = row(observed="tf32", worst_error_of_bound=90.0, column_sums=sums(40.0), corruption=seen(10, 70.0, 3))
    assert judge.first_results([one]).verdict == "pass"
    assert judge.later_results([one])[0].verdict == "info"


def test_sums_that_are_off_without_a_wrong_element_are_a_warning() -> None:
    element = {"row": 1, "column": 2, "got": 3.5, "expected": 3.5, "worst": 0.5}
    finding = judge.first_results([row(column_sums=sums(1.5), wrong_element=element)])
    assert (finding.verdict, finding.message) == ("warn", "float32 8x8x8; every single element is within its bound")
