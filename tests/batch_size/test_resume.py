from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.errors import TargetError, UsageError
from gpucheck.report.codec import to_json
from gpucheck.report.report import Collector
from gpucheck.units import MIB

Scenario = Callable[..., Path]
Find = Callable[..., Collector]
OUT_OF_MEMORY = {
    "chain": [{"classes": ["builtins.RuntimeError", "builtins.Exception"], "message": "CUDA out of memory."}],
    "traceback": "t",
}


def answer(said: Collector) -> dict[str, Any]:
    found: dict[str, Any] = to_json(said.results["find_batch_size"])
    return found


def tried(log: Path) -> list[str]:
    """What the children were asked since the log was last emptied."""
    return [line for line in log.read_text().splitlines() if line.startswith("trial")]


def test_a_search_goes_on_where_the_last_ended(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    log = scenario(static=100 * MIB, per_sample=MIB)
    first = answer(find(memory_limit="1GiB", resume=kept))
    searched = [trial for trial in first["trials"] if trial["purpose"] == "search"]
    assert not any(trial["resumed"] for trial in first["trials"])
    log.write_text("")
    said = find(memory_limit="1GiB", resume=kept)
    second = answer(said)
    # Two of the same size: the search's, and the confirmation that the first run ended with.
    assert f"--resume: {len(searched) + 1} trials reused" in said.notices
    assert second["max_batch_size"] == first["max_batch_size"]
    assert second["confirmed"] is True
    assert [trial["purpose"] for trial in second["trials"] if not trial["resumed"]] == [
        "confirm",
        "default malloc",
        "recommended",
    ]
    assert tried(log)[0] == f"trial {first['max_batch_size']}"


def test_with_more_memory_it_looks_further(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    scenario(static=100 * MIB, per_sample=MIB)
    assert answer(find(memory_limit="512MiB", resume=kept))["max_batch_size"] in range(404, 413)
    found = answer(find(memory_limit="1GiB", resume=kept))
    assert found["max_batch_size"] in range(906, 925)
    assert sum(not trial["resumed"] and trial["purpose"] == "search" for trial in found["trials"]) <= 2


def test_with_less_memory_what_fitted_no_longer_does(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    scenario(static=100 * MIB, per_sample=MIB)
    find(memory_limit="1GiB", resume=kept)
    found = answer(find(memory_limit="512MiB", resume=kept))
    assert found["max_batch_size"] in range(404, 413)
    assert found["first_failing_outcome"] in (None, "over-budget")


def test_a_failure_bounds_the_search_that_goes_on(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    log = scenario(static=100, per_sample=100, **{"from": 30, "beyond": OUT_OF_MEMORY})
    find(resume=kept)
    log.write_text("")
    found = answer(find(resume=kept))
    assert (found["max_batch_size"], found["first_failing"]) == (29, 30)
    assert "trial 30" not in tried(log)


def test_a_log_that_cannot_be_kept_costs_a_warning_and_not_the_answer(
    scenario: Scenario, find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(static=100 * MIB, per_sample=MIB)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    said = find(memory_limit="1GiB", resume=str(tmp_path / "trials"))
    assert answer(said)["confirmed"] is True
    assert [(f.id, f.verdict) for f in said.findings][-1] == ("batch_size.log", "warn")
    assert said.findings[-1].message == "No space left on device: later trials are missing"


@pytest.mark.parametrize(
    ("name", "value"),
    [("resume", "trials"), ("multiple_of", 64), ("effective_batch", 512), ("headroom", 0.2), ("avoid_oom", True)],
)
def test_an_estimate_has_no_trials(find: Find, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"--estimate and --{name.replace('_', '-')} exclude each other"):
        find(estimate=True, memory_limit="80GiB", **{name: value})


def test_sizes_that_may_not_be_tried_are_not_taken_over(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    scenario(static=100 * MIB, per_sample=MIB)
    assert answer(find(memory_limit="1GiB", resume=kept))["max_batch_size"] > 900
    found = answer(find(memory_limit="1GiB", resume=kept, max_batch_size=100))
    assert (found["at_least"], found["limited_by"], found["confirmed"]) == (100, "max-batch-size", True)
    found = answer(find(memory_limit="1GiB", resume=kept, multiple_of=64))
    assert found["max_batch_size"] in (832, 896)
    assert all(trial["batch_size"] % 64 == 0 for trial in found["trials"] if trial["purpose"] in ("search", "confirm"))


def test_a_long_log_does_not_use_up_the_trials_of_today(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    scenario(static=100 * MIB, per_sample=30 * MIB)
    for _ in range(6):
        assert answer(find(memory_limit="200MiB", resume=kept))["max_batch_size"] == 3
    found = answer(find(memory_limit="400MiB", resume=kept))
    assert (found["max_batch_size"], found["limited_by"]) == (10, "over-budget")


def test_an_error_at_the_smallest_size_is_the_targets_again(scenario: Scenario, find: Find, tmp_path: Path) -> None:
    kept = str(tmp_path / "trials")
    grid = {"classes": ["builtins.RuntimeError"], "message": "CUDA error: invalid configuration argument"}
    scenario(at={"1": {"chain": [grid], "traceback": "t"}})
    for _ in range(2):
        with pytest.raises(TargetError, match="mlp fails with a batch of 1"):
            find(resume=kept)
