from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from judged import Document
from judged import findings as judged
from products_here import needs, one_run, together

from gpucheck.bench.dtypes import DTYPES, Dtype, Support, support
from gpucheck.bench.matmul import MatmulOptions, product, work
from gpucheck.bench.matmul.judge import JUDGE, fastest_products
from gpucheck.bench.matmul.product import ProductCase
from gpucheck.errors import UsageError
from gpucheck.machine import accel, choose, host, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Measured, Notice
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.work import reference

GIB, MIB = 2**30, 2**20
NATIVE = Support("native")
CPU = accel.open_device("cpu")


def gpu(*capability: int) -> accel.Accel:
    return accel.Accel(torch.device("cuda:0"), torch.cuda, "a GPU", compute_capability=capability or None)  # type: ignore[arg-type]


def measured(dtype: str = "float32", rate: float = 1e12, **more: Any) -> Measurement:
    observed = more.pop("observed", dtype)
    details = {"worst_error_of_bound": 0.1, "not_finite": 0, **more}
    return Measurement(
        name="matmul",
        device=DeviceRef("cuda:0"),
        case={"dtype": dtype, "m": 8, "n": 8, "k": 8, "support": "native"},
        runs=(Run("", 1, (1.0,), (0.0,)),),
        time_s=TimeStats(1.0, 1),
        work={"flop": 1024.0},
        rate=Rate(rate, "FLOP/s"),
        memory=MemoryFigures(),
        method=Method("device events", "held", "warm", dtype, observed, details=details),
    )


def verdicts(*measurements: Measurement) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in judged(JUDGE, measurements)}


# options


# what a device has


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((9, 0), "native native native native native native native none native"),
        ((8, 9), "native native native native native native native none native"),
        ((8, 0), "native native native native native none none none native"),
        ((7, 5), "native native none native emulated none none none native"),
        ((7, 0), "native native none native emulated none none none none"),
        ((5, 2), "native native none emulated emulated none none none none"),
    ],
)
def test_what_a_gpu_multiplies_in_hardware(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert " ".join(support(dtype, gpu(*capability)).kind for dtype in DTYPES) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx512_bf16"}, "native native none emulated native emulated none emulated emulated"),
        ({"amx_bf16", "amx_fp16", "amx_int8"}, "native native none native native emulated none emulated native"),
        ({"sse2"}, "native native none emulated emulated emulated none emulated emulated"),
        (set(), "native native none unknown unknown emulated none emulated unknown"),
    ],
)
def test_what_a_cpu_multiplies_in_hardware(flags: set[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset(flags))
    assert " ".join(support(dtype, CPU).kind for dtype in DTYPES) == expected


def test_what_is_emulated_runs_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    turing = gpu(7, 5)
    assert [case.dtype for case in product.cases(MatmulOptions(shapes=((8, 8, 8),)), turing)] == [
        "float32",
        "float16",
        "int8",
    ]
    asked = product.cases(MatmulOptions(dtypes=("bfloat16",), shapes=((8, 8, 8),)), turing)
    assert [(case.dtype, case.support.kind) for case in asked] == [("bfloat16", "emulated")]


def test_a_case_that_does_not_fit_is_said_only_when_it_was_asked_for() -> None:
    small, large = ProductCase("float32", (8, 8, 8), NATIVE), ProductCase("float32", (65536, 65536, 65536), NATIVE)
    # Three matrices of 16 GiB, a copy of the first result, a byte for each element that is compared.
    assert large.bytes == (3 * 16 + 16 + 4) * GIB
    # The check of a smaller result takes more: two sums of B's rows in blocks of 64, and four and a quarter parts.
    check = ProductCase("bfloat16", (4096, 4096, 4096), NATIVE)
    assert check.bytes == 4 * 32 * MIB + 2 * 8 * 4096 * 64 + int(4.25 * 8 * 2**23)
    assert list(product.fitting([small, large], MatmulOptions(), GIB)) == [small]
    with pytest.raises(UsageError) as raised:
        list(product.fitting([small, large], MatmulOptions(shapes=(large.shape,)), GIB))
    assert str(raised.value) == (
        "float32 65536x65536x65536 does not fit; its matrices, a copy of the result and its check use 68 GiB, but "
        "only 1 GiB are free; use a smaller --size"
    )


# how products are made


def test_by_default_a_gpu_runs_float64_only_where_it_is_fast_and_a_cpu_no_more_than_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset({"avx512_bf16", "avx512_vnni"}))

    def chosen(accel: accel.Accel) -> list[str]:
        return [case.dtype for case in product.cases(MatmulOptions(shapes=((64, 64, 64),)), accel)]

    low = ["float32", "tf32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fn_fast", "int8"]
    assert chosen(gpu(9, 0)) == ["float64", *low]
    assert chosen(gpu(8, 9)) == low
    assert chosen(CPU) == ["float32", "bfloat16"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "int8"])
def test_each_kind_of_product_is_computed_as_asked_and_exact_where_it_can_be(dtype: Dtype) -> None:
    needs(dtype)
    case = ProductCase(dtype, (96, 80, 64), NATIVE)
    (one,) = work.measure(case, CPU, budget_s=0.01, watch=Watch(None))
    kind, details = product.KINDS[dtype], one.method.details
    assert (one.method.precision_requested, one.method.precision_observed) == (dtype, dtype)
    assert one.work == {kind.work: 2.0 * 96 * 80 * 64}
    found = verdicts(one)
    assert found["matmul.precision"] == found["matmul.result"] == found["matmul.corruption"] == "pass"
    assert details["checked_rows"] == 64 and details["column_sums"]["compared"] == 96 * 2


def test_random_data_is_the_same_each_time_and_what_it_is_said_to_be() -> None:
    for dtype in ("float32", "float8_e4m3fn", "int8"):
        kind = product.KINDS[dtype]
        one, other = (product.allocate(kind, (4000, 4000, 1), CPU.device) for _ in range(2))
        product.fill(one)
        product.fill(other)
        assert torch.equal(one.a.float(), other.a.float()) and torch.equal(one.b.float(), other.b.float())
        assert not torch.equal(one.a.float(), one.b.float())
        if dtype == "int8":
            assert (int(one.a.min()), int(one.a.max())) == (-127, 127)
        else:
            assert 0.9 < float(one.a.float().var()) < 1.1


def test_what_torch_refuses_is_no_such_product_and_what_breaks_is_raised() -> None:
    def refuse() -> None:
        raise NotImplementedError("Could not run 'aten::_scaled_mm.out' with arguments from this backend\nmore")

    private, plain = product.KINDS["float8_e4m3fn"], product.KINDS["float32"]
    with pytest.raises(product.NoKernel, match=r"^Could not run 'aten::_scaled_mm.out' with arguments from this bac"):
        product.try_once(refuse, private, CPU)
    with pytest.raises(NotImplementedError):
        product.try_once(refuse, plain, CPU)
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        product.try_once(failing("CUDA out of memory"), private, CPU)


# cold


def test_cold_matrices_are_more_than_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 32 * MIB)
    shapes = ((512, 512, 512), (4096, 4096, 4096), (16, 16, 16))
    large, larger_than_it, small = product.cases(MatmulOptions(dtypes=("float32",), shapes=shapes, cold=True), CPU)
    assert (large.set_bytes, large.sets, large.cold) == (3 * MIB, 22, True)
    assert large.bytes == 22 * 3 * MIB + MIB + reference.extra_bytes(512, 512, 512)
    assert (larger_than_it.sets, larger_than_it.cold) == (2, True)
    # So many sets are not made: what is left is warm, and said to be.
    assert (small.sets, small.cold) == (1024, False)
    (unknown,) = product.cases(MatmulOptions(dtypes=("float32",), shapes=shapes[:1], cold=True), gpu(9, 0))
    assert unknown.sets * unknown.set_bytes > 2 * 256 * MIB
    assert [case.sets for case in product.cases(MatmulOptions(dtypes=("float32",), shapes=shapes), CPU)] == [1, 1, 1]


# measuring, for real on the CPU


def test_a_product_is_timed_checked_and_counted() -> None:
    (one,) = work.measure(ProductCase("float32", (512, 384, 256), NATIVE), CPU, budget_s=0.05, watch=Watch(None))
    assert one.work == {"flop": 2.0 * 512 * 384 * 256}
    assert one.time_s is not None and one.rate is not None
    assert one.rate.median == pytest.approx(one.work["flop"] / one.time_s.median)
    assert (one.method.precision_requested, one.method.precision_observed) == ("float32", "float32")
    assert one.method.details["checked_rows"] == 64 and one.method.details["worst_error_of_bound"] <= 1
    assert one.memory.resident_bytes
    # Whether others are busy here is not this test's to say.
    found = {name: verdict for name, verdict in verdicts(one).items() if name != "matmul.cpu_busy"}
    assert found == {
        "matmul.precision": "pass",
        "matmul.result": "pass",
        "matmul.corruption": "pass",
        "matmul.speed": "info",
    }


def test_a_product_whose_call_is_most_of_it_has_a_time_and_no_rate() -> None:
    # On a loaded machine 20 ms were a few samples, most of them as long as others' turns.
    (one,) = work.measure(ProductCase("float32", (8, 8, 8), NATIVE), CPU, budget_s=0.2, watch=Watch(None))
    assert "call-bound" in one.flags
    assert one.time_s is not None and one.rate is None
    assert one.method.details["no_telemetry_because"] == "NVML is asked by UUID, and this device has none"


# judging


def test_float32_that_was_tf32_fails_and_names_what_may_have_done_it() -> None:
    finding = judged(JUDGE, [measured(observed="tf32", worst_error_of_bound=50.0)])[0]
    assert (finding.id, finding.verdict) == ("matmul.precision", "fail")
    assert finding.evidence == {"float32 8x8x8": "tf32"}
    assert finding.fix and "NVIDIA_TF32_OVERRIDE" in finding.fix
    assert verdicts(measured(observed="tf32", worst_error_of_bound=50.0))["matmul.result"] == "pass"


def test_the_gain_of_tf32_is_told_where_there_is_one() -> None:
    gain = next(f for f in judged(JUDGE, [measured(), measured("tf32", 7.5e12)]) if f.id == "matmul.tf32_gain")
    assert gain.evidence == {"gain": 7.5} and gain.fix
    assert "matmul.tf32_gain" not in verdicts(measured(), measured("tf32", 1.1e12))


def test_an_emulated_product_stands_for_no_dtype() -> None:
    native, emulated = measured("float16", 1e12), measured("bfloat16", 2e12)
    emulated.case["support"] = "emulated"
    assert list(fastest_products([native, emulated])) == ["float16"]


H200 = Device("cuda", "cuda:0", "NVIDIA H200", compute_capability="9.0", multiprocessors=132)


def on(device: Device, *rows: Measurement) -> list[Finding]:
    return judged(JUDGE, rows, Facts(devices=(device,)))


def test_what_was_computed_otherwise_has_no_share_and_a_cpu_has_none() -> None:
    assert "matmul.share_of_peak" not in verdicts(replace(measured(), device=DeviceRef("cpu")))
    for wrong in (measured(observed="tf32"), replace(measured(), rate=None)):
        assert all("share" not in one.id for one in on(H200, wrong))


# several runs: one that is wrong makes the product wrong


def test_one_run_of_seven_in_another_precision_fails() -> None:
    found = together(*[one_run(measured(rate=rate * 1e12)) for rate in range(1, 7)], one_run(measured(observed="tf32")))
    precision = next(one for one in found.findings if one.id == "matmul.precision")
    assert precision.verdict == "fail"
    assert precision.evidence == {"float32 8x8x8": "tf32"}
    assert "matmul.result" in {one.id for one in found.findings if one.verdict == "pass"}


@pytest.mark.parametrize("more", [{"worst_error_of_bound": math.inf}, {"not_finite": 1}, {"operands_spread": 0.0}])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_wrong_result_of_seven_runs_fails(place: int, more: dict[str, Any]) -> None:
    rows = [measured(worst_error_of_bound=0.9) for _ in range(7)]
    rows[place] = measured(**more)
    wrong = next(one for one in together(*map(one_run, rows)).findings if one.id == "matmul.result")
    assert wrong.verdict == "fail"


# the command


def run(options: MatmulOptions, monkeypatch: pytest.MonkeyPatch) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    document = Document()
    work.command(options, document)
    return document


def failing(message: str) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    return fail


def test_a_dtype_that_torch_does_not_have_there_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", failing("\"addmm_impl_cpu_\" not implemented for 'Half'\nmore"))
    found = run(MatmulOptions(dtypes=("float16",), shapes=((8, 8, 8),)), monkeypatch).judged().findings
    assert [(one.id, one.verdict) for one in found] == [("matmul.shape", "skip"), ("matmul.speed", "skip")]
    assert found[0].message == "\"addmm_impl_cpu_\" not implemented for 'Half'"


def test_a_shape_without_a_kernel_costs_that_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if a.shape[0] == 24:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle )`\nmore")
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    shapes = ((16, 16, 16), (24, 16, 16), (32, 16, 16))
    recorder = run(MatmulOptions(dtypes=("float32",), shapes=shapes, time_budget_s=0.2), monkeypatch)
    rows = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    assert [row.case["m"] for row in rows if row.name == "matmul"] == [16, 32]
    skip = recorder.judged().findings[0]
    assert (skip.id, skip.verdict) == ("matmul.shape", "skip")
    assert skip.evidence == {"case": "float32 24x16x16"}
    assert skip.message.startswith("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling")


@pytest.mark.parametrize(
    "text",
    [
        "mat1 and mat2 shapes cannot be multiplied (24x16 and 8x8)",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
    ],
)
def test_a_mistake_or_a_broken_library_is_no_want_of_a_kernel(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "measure", failing(text))
    (failed,) = run(MatmulOptions(dtypes=("float32",), shapes=((8, 8, 8),)), monkeypatch).judged().findings
    assert (failed.id, failed.verdict) == ("matmul.error", "fail") and text in failed.message


def test_a_usual_size_that_there_is_no_room_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "DEFAULT_SIZES", {"accelerator": (), "cpu": (8, 65536)})
    monkeypatch.setattr(host, "memory", lambda: SimpleNamespace(usable=10 * GIB))
    recorder = run(MatmulOptions(dtypes=("float32",), time_budget_s=0.2), monkeypatch)
    assert [event.measurement.case["m"] for event in recorder.events if isinstance(event, Measured)] == [8]
    assert [event.text for event in recorder.events if isinstance(event, Notice)] == [
        "float32 65536x65536x65536 skipped: it needs 68 GiB, 8 GiB available"
    ]
