"""Others on the CPU, told once for all rows."""

from __future__ import annotations

from gpucheck.bench import judging
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run


def row(used: float | None, *flags: str) -> Measurement:
    method = Method("host", "host", "warm", details={"cores_used_by_others": used})
    runs = (Run("", 1, (1.0,), (0.0,)),)
    return Measurement(
        "matmul", DeviceRef("cpu"), {"size": 1}, runs, None, {}, None, MemoryFigures(), method, flags=flags
    )


def test_the_busiest_row_is_named() -> None:
    (found,) = judging.cpu_busy(
        "matmul.cpu_busy", [row(1.25, "cpu-busy"), row(0.5, "noisy", "cpu-busy"), row(None)], Facts()
    )
    assert (found.id, found.verdict) == ("matmul.cpu_busy", "warn")
    assert found.title == "machine busy (1.2 cores)"
    assert found.message == "2 of 3 figures are too low"


def test_an_idle_machine_is_no_finding() -> None:
    assert judging.cpu_busy("matmul.cpu_busy", [row(0.0), row(None)], Facts()) == []


def test_a_doubtful_figure_is_no_plain_pass() -> None:
    assert judging.doubts_of(["drift", "noisy", "emulated"]) == ["noisy", "drift"]
    # At its power limit every card drifts.
    assert judging.doubts_of(["drift", "power-limited"]) == []
    assert judging.own_doubts(["few-samples", "cpu-busy"]) == ["few-samples"]
    assert [judging.with_doubt(verdict, True) for verdict in ("pass", "info", "fail")] == ["warn", "info", "fail"]
    assert judging.with_doubt("pass", False) == "pass"
