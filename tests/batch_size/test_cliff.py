from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.loop import can_spill
from gpucheck.batch_size.outcome import slowdown
from gpucheck.machine import inventory
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Facts, Host, TorchBuild
from gpucheck.report.report import Collector
from gpucheck.units import GIB

# A size and its steps.
Pace = tuple[int, tuple[float, ...]]


def pace(size: int, seconds: float, first: float = 1.0) -> Pace:
    return (size, (first, seconds, seconds))


PASSED = [pace(1, 0.02), pace(32, 0.04), pace(300, 0.3)]


def test_a_cliff_is_told_with_its_height() -> None:
    assert slowdown(*pace(600, 6.0), PASSED, 0.9) == pytest.approx(10)
    assert slowdown(*pace(600, 1.9), PASSED, 0.9) == pytest.approx(1.9 / 0.6)


@pytest.mark.parametrize(
    ("trial", "filled", "why"),
    [
        (pace(600, 1.7), 0.9, "less than three times"),
        (pace(600, 6.0), 0.4, "the device is far from full"),
        ((600, (1.0, 6.0)), 0.9, "one step may be disturbed"),
        ((600, (1.0, 60.0, 0.61)), 0.9, "one was quick"),
        ((600, ()), 0.9, "no steps"),
        (pace(300, 3.0), 0.9, "nothing smaller passed"),
    ],
)
def test_what_is_no_cliff(trial: Pace, filled: float, why: str) -> None:
    passed = PASSED if trial[0] == 600 else PASSED[2:]
    assert slowdown(*trial, passed, filled) is None, why


def test_the_first_trial_of_all_is_never_one() -> None:
    assert slowdown(*pace(600, 600.0), [], 1.0) is None
    assert slowdown(*pace(600, 600.0), [pace(900, 0.1)], 1.0) is None


def test_milliseconds_are_scheduling() -> None:
    assert slowdown(*pace(600, 0.020), [pace(1, 0.001), pace(300, 0.001)], 0.9) is None


def test_growth_that_was_seen_is_expected() -> None:
    squares = [pace(10, 0.01), pace(100, 1.0)]
    assert slowdown(*pace(1000, 100.0), squares, 0.9) is None
    assert slowdown(*pace(1000, 400.0), squares, 0.9) == pytest.approx(4)
    # After one size alone the square is not excluded.
    assert slowdown(*pace(1000, 100.0), squares[1:], 0.9) is None


def steps(rng: random.Random, seconds: float) -> tuple[float, ...]:
    """Three steps with noise: 15 % either way, and every twentieth is held up tenfold by something else."""
    return tuple(
        seconds * rng.lognormvariate(0, 0.15) * (10 if rng.random() < 0.05 else 1) * (1 + 2 * (index == 0))
        for index in range(3)
    )


def searched(rng: random.Random, spill_from: int, height: float) -> list[tuple[int, float | None]]:
    """A search that jumps: each size with what is said of it. A size's time is a constant and a part in proportion."""
    constant, each = rng.uniform(0.005, 0.2), rng.uniform(1e-4, 5e-2)
    size = 1
    passed: list[Pace] = []
    said: list[tuple[int, float | None]] = []
    while size < 4000:
        clock = rng.choice((1.0, 1.0, 1.6))  # a laptop that throttles
        slow = height if size >= spill_from else 1.0
        trial = (size, steps(rng, clock * slow * (constant + each * size)))
        said.append((size, slowdown(*trial, passed, 0.9)))
        passed.append(trial)
        if said[-1][1] is not None:
            break
        size = int(size * rng.choice((1.05, 2, 8, 32))) + 1
    return said


def test_noise_is_no_cliff_and_a_cliff_is_seen_in_noise() -> None:
    rng = random.Random(7)
    quiet = [told for _ in range(2000) for _, told in searched(rng, 10**9, 1.0)]
    false = sum(told is not None for told in quiet)
    assert false <= 0.004 * len(quiet)
    seen = missed = 0
    for _ in range(2000):
        told = [one for size, one in searched(rng, 500, 20.0) if size >= 500]
        seen += bool(told) and told[0] is not None
        missed += bool(told) and told[0] is None
    assert seen >= 0.95 * (seen + missed) and seen > 1000


# Where it is judged

LINUX, WSL, WINDOWS = Host(system="Linux"), Host(system="Linux", wsl=True), Host(system="Windows")
CARD = Device(kind="cuda", id="cuda:0", name="a GPU", memory_free_bytes=10 * GIB, processes=())
BUDGET = {"bytes": 8 * GIB, "margin_bytes": GIB, "reason": "r", "free_bytes": 10 * GIB, "total_bytes": 12 * GIB}
READY = {"kind": "cuda", "method": "device", "budget": BUDGET, "free_at_open": 9 * GIB}
# From this size on nothing is raised, the peaks are within the budget, and a step takes a minute.
SLOW = {"ok": True, "steps_s": [60.0] * 3, "started_monotonic_s": [1.0] * 3}


@pytest.mark.parametrize(
    ("host", "kind", "integrated", "spills"),
    [
        (LINUX, "cuda", False, False),
        (LINUX, "cuda", True, True),
        (WSL, "cuda", False, True),
        (WINDOWS, "xpu", False, True),
        (Host(system="Darwin"), "mps", False, True),
        (LINUX, "cpu", False, False),
        (WSL, "cpu", False, False),
    ],
)
def test_where_memory_can_spill(host: Host, kind: str, integrated: bool, spills: bool) -> None:
    assert can_spill(Facts(host=host), kind, integrated=integrated) is spills


@pytest.mark.parametrize(
    ("host", "integrated", "spills"), [(LINUX, False, False), (WSL, False, True), (LINUX, True, True)]
)
def test_a_search_takes_a_cliff_for_a_failure(
    host: Host,
    integrated: bool,
    spills: bool,
    scenario: Callable[..., Path],
    find: Callable[..., Collector],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = TorchBuild(version="2.13.0", built_for="cuda")
    monkeypatch.setattr(inventory, "read", lambda *_, **__: Facts(host=host, torch=built, devices=(CARD,)))
    ready = {**READY, "integrated": integrated}
    log = scenario(static=GIB, per_sample=GIB // 64, ready=ready, **{"from": 250, "beyond": SLOW})
    found: dict[str, Any] = to_json(find(device="cuda", time_budget_s=3600.0).results["find_batch_size"])
    outcomes = {trial["batch_size"]: trial["outcome"] for trial in found["trials"]}
    if not spills:
        assert found["max_batch_size"] > 400 and set(outcomes.values()) <= {"fits", "over-budget"}
        return
    assert found["first_failing_outcome"] == found["limited_by"] == "spill"
    assert found["first_failing"] >= 250
    # As far from the cliff as from the budget.
    assert 0.8 * found["first_failing"] < found["max_batch_size"] < 250 and found["confirmed"]
    assert "times as long as expected from smaller sizes: memory spilled to the host" in found["first_failing_reason"]
    # What spilled may have left the device slow: the next trial has a separate process.
    lines = log.read_text().splitlines()
    spilled = next(size for size, outcome in outcomes.items() if outcome == "spill")
    assert lines[lines.index(f"trial {spilled}") + 1].startswith("start")
