from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_recorder import Recorder

from gpucheck.batch_size.command import checked_memory, command, estimate
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Setup, parse_limit
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import inventory
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Judged
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]


def told(size: int | None, smallest: int = 1) -> dict[str, Any]:
    held = {"parameter_bytes": 1, "gradient_bytes": 2, "optimizer_bytes": 3}
    peak = GIB + (size or smallest) * 100 * MIB
    return {"ok": True, "largest": size, "smallest": smallest, "peak_bytes": peak, **held}


def estimated(memory: int, device: str = "cuda", **recipe: Any) -> tuple[dict[str, Any], Finding]:
    setup = Setup("mlp", (), "train", "adamw", None, device, budget_bytes=memory, recipe=StepRecipe(**recipe))
    recorder = Recorder()
    estimate(setup, memory, (None, 65536), time.monotonic() + 60, recorder)
    (answered,) = [event for event in recorder.events if isinstance(event, Answered)]
    (judged,) = [event for event in recorder.events if isinstance(event, Judged)]
    assert answered.name == "find_batch_size_estimate"
    found: dict[str, Any] = to_json(answered.value)
    return found, judged.finding


def test_an_estimate_leaves_room_for_what_is_no_tensor(scenario: Scenario) -> None:
    scenario(estimated=told(774))
    found, finding = estimated(80 * GIB)
    margin = int(0.03 * 80 * GIB)
    room = 80 * GIB - margin - 10**9 - 64 * MIB
    assert (found["budget_bytes"], found["margin_bytes"]) == (room, margin)
    assert found["max_batch_size"] == 774
    assert (found["parameter_bytes"], found["gradient_bytes"], found["optimizer_bytes"]) == (1, 2, 3)
    assert (finding.id, finding.verdict) == ("batch_size.estimate", "info")
    assert finding.title == "estimate: a batch of 774 fits 80 GiB"
    assert finding.message == (
        "tensors take 76.6 GiB at peak; 3.39 GiB set aside for context, workspaces and margin. "
        "Nothing was run; accuracy unknown"
    )


def test_a_cpu_has_no_context(scenario: Scenario) -> None:
    scenario(estimated=told(10))
    found, finding = estimated(2 * GIB, "cpu", axis="T")
    assert (found["budget_bytes"], found["max_batch_size"]) == (2 * GIB, 10)
    assert finding.title == "estimate: T 10 fits 2 GiB"
    assert finding.message == "tensors take 1.98 GiB at peak. Nothing was run; accuracy unknown"


def test_not_even_the_smallest(scenario: Scenario) -> None:
    scenario(estimated=told(None, 20))
    found, finding = estimated(2 * GIB, "cpu")
    assert found["max_batch_size"] is None
    assert (finding.verdict, finding.title) == ("fail", "estimate: not even a batch of 20 fits 2 GiB")
    assert finding.message == "tensors take 2.95 GiB at peak"


def test_what_cannot_be_estimated_says_why(scenario: Scenario) -> None:
    scenario()
    with pytest.raises(CannotLook, match="mlp cannot be estimated; not in this test"):
        estimated(80 * GIB)
    with pytest.raises(UsageError, match="1 GiB cannot hold any workload"):
        estimated(GIB)


def test_an_estimate_that_takes_too_long(scenario: Scenario) -> None:
    scenario(estimated="hang")
    setup = Setup("mlp", (), "train", "adamw", None, "cuda", budget_bytes=GIB)
    with pytest.raises(CannotLook, match="the estimate took longer than --time-budget"):
        estimate(setup, 80 * GIB, (None, 8), time.monotonic() + 0.2, Recorder())


@pytest.mark.parametrize("limit", [None, "80%", "leave:2GiB"])
def test_the_memory_has_to_be_told(limit: str | None) -> None:
    with pytest.raises(UsageError, match="--estimate needs --memory-limit as a size"):
        checked_memory(None if limit is None else parse_limit(limit), "auto")


def test_which_devices_it_is_about() -> None:
    limit = parse_limit("80GiB")
    assert [checked_memory(limit, device) for device in ("auto", "cuda:1", "cpu")] == [
        (80 * GIB, "cuda"),
        (80 * GIB, "cuda"),
        (80 * GIB, "cpu"),
    ]
    with pytest.raises(UsageError, match="--estimate does not know mps"):
        checked_memory(limit, "mps")


def test_the_command_asks_no_device(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    log = scenario(estimated=told(774))
    monkeypatch.setattr(inventory, "read", lambda *_, **__: Facts())
    recorder = Recorder()
    command(FindBatchSizeOptions(target="mlp", memory_limit="80GiB", estimate=True), recorder)
    assert [event.name for event in recorder.events if isinstance(event, Answered)] == ["find_batch_size_estimate"]
    assert log.read_text() == ""  # no trial
