"""Others on the CPU, told once for all rows."""

from __future__ import annotations

from gpucheck.bench import judging
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run
from gpucheck.report.results.bench import Headline


def row(used: float | None, *flags: str) -> Measurement:
    method = Method("host", "host", "warm", details={"cores_used_by_others": used})
    runs = (Run("", 1, (1.0,), (0.0,)),)
    return Measurement(
        "matmul", DeviceRef("cpu"), {"size": 1}, runs, None, {}, None, MemoryFigures(), method, flags=flags
    )


def test_the_busiest_row_is_named() -> None:
    (found,) = judging.cpu_busy("matmul", [row(1.25, "cpu-busy"), row(0.5, "noisy", "cpu-busy"), row(None)], Facts())
    assert (found.id, found.verdict) == ("matmul.cpu_busy", "warn")
    assert found.title == "machine busy (1.2 cores)"
    assert found.message == "2 of 3 figures are too low"


def test_an_idle_machine_is_no_finding() -> None:
    assert judging.cpu_busy("matmul", [row(0.0), row(None)], Facts()) == []


def test_a_doubtful_figure_is_no_plain_pass() -> None:
    assert judging.doubts_of(["drift", "noisy", "emulated"]) == ["noisy", "drift"]
    # At its power limit every card drifts.
    assert judging.doubts_of(["drift", "power-limited"]) == []
    assert judging.own_doubts(["few-samples", "cpu-busy"]) == ["few-samples"]
    lines = [Headline("matmul", "cuda:0", "tf32", 1.0, "FLOP/s", flags=flags) for flags in (("noisy",), ("cpu-busy",))]
    (found,) = judging.doubtful("matmul", lines)
    assert (found.id, found.verdict, found.evidence) == ("matmul.doubt", "warn", {"doubts": {"tf32": ["noisy"]}})
    # What slowed the machine has a finding of its own.
    assert judging.doubtful("matmul", lines[1:]) == []
