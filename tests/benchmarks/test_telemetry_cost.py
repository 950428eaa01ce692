"""What counts as a small cost of telemetry, and a machine where there is none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from gpucheck.machine import inventory
from gpucheck.report.facts import Device, Facts, TorchBuild


@pytest.fixture(scope="module")
def benchmark(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("telemetry_cost")


def cost(benchmark: ModuleType, ratio: float, spread: float = 0.0) -> tuple[float, float, int]:
    order: list[str] = []
    values = iter([1 + spread * (-1.0) ** number for number in range(30)])

    def watched() -> float:
        order.append("watched")
        return ratio * next(values)

    def unwatched() -> float:
        order.append("unwatched")
        return 1.0

    found = benchmark.cost_of("work", watched, unwatched, 30)
    assert order[:4] == ["watched", "unwatched", "unwatched", "watched"]
    assert (found.seconds, found.pairs) == (1.0, 30)
    return found.median, found.high, found.status


def test_the_whole_interval_decides(benchmark: ModuleType) -> None:
    assert cost(benchmark, 1.004) == (1.004, 1.004, benchmark.SHOWN)
    assert cost(benchmark, 1.006) == (1.006, 1.006, benchmark.REFUTED)
    median, high, status = cost(benchmark, 1.0, spread=0.02)
    assert (median, high, status) == (1.0, 1.02, benchmark.UNDECIDED)


def test_fewer_pairs_show_nothing(benchmark: ModuleType) -> None:
    with pytest.raises(ValueError, match="30 pairs are needed"):
        benchmark.cost_of("work", lambda: 1.0, lambda: 1.0, 29)


def test_without_nvml_there_is_nothing_to_measure(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Facts(torch=TorchBuild("2.9", built_for="cpu"), devices=(Device("cpu", id="cpu"),))
    monkeypatch.setattr(inventory, "read", lambda: facts)
    assert benchmark.main(["--device", "cpu"]) == benchmark.NOTHING
    assert "there is nothing to measure" in capsys.readouterr().err
