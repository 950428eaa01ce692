"""Products of every dtype for real on a CUDA device: computed as asked, checked whole, a planted fault found."""

from __future__ import annotations

import math

import pytest
import torch
from judged import folded

from gpucheck.bench import devices
from gpucheck.bench.dtypes import DTYPES, Dtype
from gpucheck.bench.judging import DeviceRows
from gpucheck.bench.matmul import MatmulOptions, product
from gpucheck.bench.matmul.judge import JUDGE
from gpucheck.bench.matmul.product import KINDS, ProductCase, RepeatCheck, bits
from gpucheck.bench.matmul.work import measure
from gpucheck.machine import accel, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Opened, Started
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision, reference

pytestmark = [pytest.mark.gpu, pytest.mark.long]

SIDE = 2048


@pytest.fixture(scope="module")
def device() -> accel.Accel:
    return accel.open_device("cuda:0")


def case_of(device: accel.Accel, dtype: Dtype, *, cold: bool = False) -> ProductCase:
    (case,) = product.cases(MatmulOptions(dtypes=(dtype,), shapes=((SIDE, SIDE, SIDE),), cold=cold), device)
    if case.support.kind == "none":
        pytest.skip(f"{dtype}: {case.support.reason}")
    return case


def measured(device: accel.Accel, case: ProductCase, budget_s: float = 0.3) -> Measurement:
    with Watch(device.uuid) as watch, device.as_current():
        return measure(case, device, budget_s, watch)[0]


def found(*rows: Measurement) -> dict[str, Finding]:
    return {finding.id: finding for finding in JUDGE.findings(DeviceRows("cuda:0", rows))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_computed_as_asked_and_right(device: accel.Accel, dtype: Dtype) -> None:
    one = measured(device, case_of(device, dtype))
    findings = found(one)
    assert findings["matmul.precision"].verdict == findings["matmul.result"].verdict == "pass"
    # Another order of adding up would be told, and is no fault.
    assert findings["matmul.corruption"].verdict in ("pass", "info")
    details = one.method.details
    # Healthy sums of 64 columns stay well within 8σ: what is near it was estimated too low.
    assert details["column_sums"]["worst_of_threshold"] < 0.8
    assert details["corruption"]["results_compared"] >= 2
    assert one.method.clock == "device events" and "launch-bound" not in one.flags
    assert one.rate is not None and one.rate.unit == ("OP/s" if dtype == "int8" else "FLOP/s")


def test_whole_numbers_are_exact(device: accel.Accel) -> None:
    details = measured(device, case_of(device, "int8")).method.details
    assert (details["worst_error_of_bound"], details["column_sums"]["worst_of_threshold"]) == (0.0, 0.0)
    assert details["corruption"]["results_differing"] == 0


def test_what_cublas_refuses_is_left_out_before_it_is_asked(device: accel.Accel) -> None:
    for dtype, shape in (("float8_e4m3fn", (64, 64, 24)), ("float8_e4m3fn", (64, 24, 64)), ("int8", (16, 64, 64))):
        options = MatmulOptions(dtypes=(dtype,), shapes=(shape,))  # type: ignore[arg-type]
        (case,) = product.cases(options, device)
        assert case.support.kind == "none"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_a_bit_that_is_planted_on_the_device_is_found(device: accel.Accel, dtype: Dtype) -> None:
    case = case_of(device, dtype)
    flat = product.allocate(case.kind, case.elements, device.device)
    product.fill(flat)
    one = product.view(case.kind, flat, case.shape)
    KINDS[dtype].bind(one.a, one.b, one.out)()
    device.synchronize()
    repeats = RepeatCheck([one], device)
    repeats.finish()
    assert repeats.differing == 0
    bits(one.out)[1234, 567] ^= 1 << (8 * one.out.dtype.itemsize - 3)
    repeats.finish()
    assert repeats.differing == 1 and repeats.worst is not None
    assert (repeats.worst.row, repeats.worst.column) == (1234, 567) and repeats.worst.worst > 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn"])
def test_a_wrong_element_in_any_row_is_found_by_sums(device: accel.Accel, dtype: Dtype) -> None:
    case = case_of(device, dtype)
    flat = product.allocate(case.kind, case.elements, device.device)
    product.fill(flat)
    one = product.view(case.kind, flat, case.shape)
    with precision.precision("tf32" if dtype == "tf32" else "ieee"):
        KINDS[dtype].bind(one.a, one.b, one.out)()
    seen = "tf32" if dtype == "tf32" else None
    healthy = reference.check_sums(one.a, one.b, one.out, seen)
    assert healthy.passed
    one.out[777, 1999] += 1.1 * healthy.detectable
    wrong = reference.check_sums(one.a, one.b, one.out, seen)
    assert (wrong.passed, wrong.row, wrong.column) == (False, 777, 1984)
    one.out[777, 1999] = math.nan
    assert reference.check_sums(one.a, one.b, one.out, seen).worst == math.inf


def test_a_rotation_is_larger_than_the_cache_and_no_faster(device: accel.Accel) -> None:
    case = case_of(device, "float32", cold=True)
    assert case.sets >= 2 and case.cold
    if device.l2_cache_bytes:
        assert case.sets * case.set_bytes > 2 * device.l2_cache_bytes
    cold, warm = measured(device, case), measured(device, case_of(device, "float32"))
    assert (cold.method.cache, warm.method.cache) == ("cold", "warm")
    assert cold.rate is not None and warm.rate is not None
    assert cold.rate.median < 1.1 * warm.rate.median


def test_the_share_of_the_peak_is_told_where_the_part_is_known(device: accel.Accel) -> None:
    (case,) = product.cases(MatmulOptions(dtypes=("float32",), shapes=((4096, 4096, 4096),)), device)
    one = measured(device, case, 1.0)
    facts = folded([Started(inventory.read()), Opened(devices.described(device))]).facts
    findings = {finding.id: finding for finding in JUDGE.findings(DeviceRows("cuda:0", [one], facts))}
    told = findings["matmul.share_of_peak"]
    if told.evidence["share"] is None:
        pytest.skip(told.message)
    assert 0.05 < told.evidence["share"]["float32"] < 1.5
    clock_hz = told.evidence["clock_seen_hz"]["float32"]
    if clock_hz is not None:
        at_clock = told.evidence["share_at_clock_seen"]["float32"]
        peak = told.evidence["peaks"]["float32"]
        assert at_clock == pytest.approx(told.evidence["share"]["float32"] * peak["clock_hz"] / clock_hz)


def test_memory_stays_within_what_a_case_says(device: accel.Accel) -> None:
    case = case_of(device, "bfloat16")
    device.empty_cache()
    before = torch.cuda.memory_allocated(device.device)
    measured(device, case)
    # To the end of its check, which the row's own figure leaves out.
    peak = torch.cuda.max_memory_allocated(device.device)
    # cuBLAS's workspace is torch's to allocate: 32 MiB on Hopper, less elsewhere.
    assert peak - before <= case.bytes + 64 * 2**20
