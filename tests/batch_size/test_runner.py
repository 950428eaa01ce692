from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest

from gpucheck.batch_size.outcome import Setup, SetupFailed, TrialResult
from gpucheck.batch_size.runner import SPARE_ROOM_BYTES, MemoryGuard, Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.errors import CannotLook, TargetError
from gpucheck.machine import host
from gpucheck.machine.host import HostMemory
from gpucheck.units import MIB

# From conftest: what children are to do; returns the log of what they were asked.
Scenario = Callable[..., Path]

SETUP = Setup(
    target="models.py:make",
    inputs=(),
    mode="train",
    optimizer="adamw",
    dtype=None,
    device="cpu",
    device_name=None,
    budget_bytes=1000,
    guard_bytes=None,
    limit=None,
    free_before=None,
    shared=False,
    watch_bytes=None,
)
SOON = 20.0


def run(runner: Runner, size: int, purpose: str = "search", limit_s: float = SOON, left_s: float = 60.0) -> TrialResult:
    attempt = Attempt(size, purpose)  # type: ignore[arg-type]
    return runner.run(attempt, steps=2, limit_s=limit_s, deadline=time.monotonic() + left_s)


def children() -> set[int]:
    return {p.pid for p in psutil.Process(os.getpid()).children(recursive=True)}


def test_a_child_is_reused_while_it_passes_and_replaced_after_a_failure(scenario: Scenario) -> None:
    log = scenario(per_sample=100)
    with Runner(SETUP) as runner:
        assert [run(runner, size).outcome for size in (1, 10, 11, 5)] == ["fits", "fits", "over-budget", "fits"]
        assert log.read_text().split("\n")[:-1] == [
            "start 1", "trial 1", "trial 10", "trial 11", "start 1", "trial 5",
        ]  # fmt: skip


def test_a_confirmation_runs_in_a_process_of_its_own(scenario: Scenario) -> None:
    log = scenario(per_sample=100)
    with Runner(SETUP) as runner:
        first, second = run(runner, 3), run(runner, 3, "confirm")
    assert (first.fresh_process, second.fresh_process) == (True, True)
    assert log.read_text().count("start") == 2


def test_the_peak_decides_and_says_by_how_much(scenario: Scenario) -> None:
    scenario(per_sample=MIB)
    with Runner(replace(SETUP, budget_bytes=10 * MIB)) as runner:
        assert run(runner, 10).outcome == "fits"
        result = run(runner, 12)
    assert (result.outcome, result.reason) == ("over-budget", "peak exceeds the budget by 2 MiB")
    assert result.peak_bytes == 12 * MIB


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (
            {"unsettled_bytes": 1000},
            "over-budget",
            "the allocator took 1000 B more in the last two steps, and only 996 B are left",
        ),
        ({"swapped_bytes": 2**30}, "spill", "1 GiB went to swap"),
    ],
)
def test_what_measures_fine_and_yet_does_not_fit(
    scenario: Scenario, answer: dict[str, Any], outcome: str, reason: str
) -> None:
    scenario(per_sample=1, at={"4": {"ok": True, **answer}})
    with Runner(SETUP) as runner:
        result = run(runner, 4)
    assert (result.outcome, result.reason) == (outcome, reason)


def test_a_size_for_which_each_step_empties_the_cache_is_too_large(scenario: Scenario) -> None:
    scenario(per_sample=1, at={"4": {"ok": True, "allocation_retries": 38, "retries_always": True}})
    with Runner(SETUP) as runner:
        result = run(runner, 4)
    assert result.outcome == "over-budget"
    assert result.reason == "the allocator emptied its cache in each of the last three steps"


def test_a_size_that_ran_ran_though_the_allocator_made_room(scenario: Scenario) -> None:
    scenario(per_sample=1, at={"4": {"ok": True, "allocation_retries": 3, "steps_s": [0.9, 0.1, 0.1]}})
    with Runner(SETUP) as runner:
        result = run(runner, 4)
    assert (result.outcome, result.allocation_retries) == ("fits", 3)
    assert result.reason == "runs, but the allocator emptied its cache 3× in 3 steps"


@pytest.mark.parametrize(
    ("levels_mib", "growth_mib", "left"),
    [
        ([100, 161, 222, 283, 344, 405, 466, 527], 61, 10),
        ([100, 300, 300, 300, 300, 300, 300], None, None),  # the optimizer's state
        ([100, 110, 120, 140, 180, 260, 420, 740], None, None),  # a cache that doubles: no equal steps
        ([100, 161, 222, 283, 344, 405], None, None),  # time ended it: three are not enough
        ([*range(100, 116), 115, 115], None, None),  # a cache of 16 entries
    ],
)
def test_memory_that_grows_in_all_steps_seen_is_told(
    levels_mib: list[int], growth_mib: int | None, left: int | None
) -> None:
    levels = tuple(level * MIB for level in levels_mib)
    result = TrialResult(batch_size=4, purpose="confirm", outcome="fits", peak_bytes=400 * MIB, levels_bytes=levels)
    assert result.growth_bytes == (None if growth_mib is None else growth_mib * MIB)
    assert result.steps_left(1023 * MIB) == left


def test_a_process_that_keeps_memory_runs_no_second_trial(scenario: Scenario) -> None:
    log = scenario(per_sample=1, at={"4": {"ok": True, "levels_bytes": [2**20, 2**20, 2**25]}})
    with Runner(SETUP) as runner:
        assert [run(runner, size).fresh_process for size in (2, 4, 6)] == [True, False, True]
    assert log.read_text().count("start") == 2


def test_on_a_device_each_trial_has_a_process(scenario: Scenario) -> None:
    scenario(per_sample=1)
    with Runner(replace(SETUP, device="cuda:0")) as runner:
        assert [run(runner, size).fresh_process for size in (2, 4)] == [True, True]


def test_where_memory_does_not_come_back_nothing_is_tried(scenario: Scenario) -> None:
    log = scenario(per_sample=1, ready={"settled": False})
    with Runner(replace(SETUP, device="cuda:0")) as runner:
        result = run(runner, 4)
    assert (result.outcome, result.reason) == (
        "inconclusive",
        "another process took device memory that was free before the first trial",
    )
    assert "trial" not in log.read_text()


RUNTIME = ["builtins.RuntimeError", "builtins.Exception"]


@pytest.mark.parametrize(
    ("how", "outcome", "reason"),
    [
        ("kill", "host-out-of-memory", "killed by the kernel: the machine's memory ran out"),
        ("exit", "suspected", "exit status 1 (libgomp: Thread creation failed)"),
        (
            {"chain": [{"classes": RUNTIME, "message": "CUDA out of memory.\nmore"}], "traceback": "all"},
            "out-of-memory",
            "RuntimeError: CUDA out of memory.",
        ),
        (
            {"chain": [{"classes": ["builtins.ValueError"], "message": "batch too large"}], "traceback": "all of it"},
            "user-error",
            "ValueError: batch too large",
        ),
    ],
)
def test_how_a_trial_fails(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, how: object, outcome: str, reason: str
) -> None:
    log = scenario(at={"4": how})
    monkeypatch.setattr(host, "memory_kills", iter(range(100)).__next__)
    with Runner(SETUP) as runner:
        result = run(runner, 4)
        assert (result.outcome, result.reason) == (outcome, reason)
        assert run(runner, 1).outcome == "fits"
    assert log.read_text().count("start") == 2


@pytest.mark.parametrize("kills", [7, None])
def test_a_trial_that_the_kernel_did_not_kill(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, kills: int | None
) -> None:
    monkeypatch.setattr(host, "memory_kills", lambda: kills)
    scenario(at={"4": "kill"}, per_sample=1)
    with Runner(SETUP) as runner:
        result = run(runner, 4)
    assert (result.outcome, result.reason) == (
        "inconclusive",
        "killed by SIGKILL, but not by the kernel's out-of-memory killer",
    )


def test_a_trial_that_hangs_is_a_timeout_and_one_cut_by_the_deadline_is_told_apart(scenario: Scenario) -> None:
    scenario(at={"4": "hang"})
    with Runner(SETUP) as runner:
        timeout = run(runner, 4, limit_s=0.2)
        cut = run(runner, 4, limit_s=SOON, left_s=0.2)
    assert (timeout.outcome, timeout.reason) == ("timeout", "no answer within 200 ms")
    assert cut.outcome == "out-of-time"
    assert cut.reason.startswith("--time-budget ended it after ")


def test_the_watchdog_ends_a_child_that_grows_beyond_the_guard(scenario: Scenario) -> None:
    scenario(at={"4": "eat"})
    with Runner(replace(SETUP, watch_bytes=200 * MIB)) as runner:
        result = run(runner, 4)
    assert result.outcome == "over-budget"
    assert result.peak_bytes is not None and 200 * MIB < result.peak_bytes < 1000 * MIB
    assert result.reason.startswith("resident memory grew by ")


@pytest.mark.parametrize("baseline", [200, 2000])
def test_growth_counts_from_what_the_child_had_before_it_built_the_model(scenario: Scenario, baseline: int) -> None:
    """A build of torch with CUDA may map more by itself than a budget on the CPU allows for."""
    resident = [(baseline + 190) * MIB] * 3 + [(baseline + 250) * MIB]
    rows = [SimpleNamespace(rss=rss) for rss in resident]
    with (
        mock.patch("psutil.Process.memory_info", side_effect=rows),
        mock.patch("psutil.Process.children", return_value=[]),  # the test run's own helpers
    ):
        watch = MemoryGuard(os.getpid(), 200 * MIB)
        assert not any(watch.look() for _ in range(3))
        watch.baseline = baseline * MIB
        assert not any(watch.look() for _ in range(3))
        assert watch.look()
    assert watch.exceeded == 250 * MIB
    # The child says it as soon as it knows, so that the watch holds while the model is built.
    scenario(baseline=MIB, setup="eat")
    with (
        Runner(replace(SETUP, watch_bytes=100 * MIB)) as runner,
        pytest.raises(SetupFailed, match="the build took 1"),
    ):
        runner.start()


def test_only_a_cpu_is_measured_with_other_malloc_settings(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    log = scenario()
    for setup in (SETUP, replace(SETUP, device="cuda:0")):
        with Runner(setup) as runner:
            runner.start()
    assert log.read_text().split("\n")[:-1] == ["start 1", "start 7"]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        (
            {"error": {"what": "w", "why": "y", "fix": "f", "kind": "TargetError", "trace": "t", "finding": "target"}},
            TargetError,
            "w; y; f",
        ),
        (
            {"error": {"what": "w", "why": "y", "fix": "f", "kind": "CannotLook", "trace": "t", "finding": "d"}},
            CannotLook,
            "w; y; f",
        ),
        (
            {"stage": "build", "chain": [{"classes": RUNTIME, "message": "bad"}], "traceback": "t"},
            TargetError,
            "the target models.py:make raised RuntimeError: bad; run with --debug to see the traceback",
        ),
        (
            {"stage": "device", "chain": [{"classes": RUNTIME, "message": "no driver"}], "traceback": "t"},
            CannotLook,
            "cpu cannot be used; RuntimeError: no driver; see `gpucheck smoke`",
        ),
        ("exit", CannotLook, "the trial process ended before the first trial; exit status 1"),
    ],
)
def test_a_child_that_cannot_be_set_up(scenario: Scenario, how: object, error: type[Exception], text: str) -> None:
    scenario(setup=how)
    with Runner(SETUP) as runner, pytest.raises(error) as caught:
        runner.start()
    assert str(caught.value).startswith(text)


def test_a_child_that_is_killed_before_its_first_trial_is_started_once_more(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(setup="kill", setup_to=1, per_sample=1)
    with Runner(SETUP) as runner:
        assert run(runner, 1).outcome == "fits"
    scenario(setup="kill")
    with Runner(SETUP) as runner, pytest.raises(CannotLook, match="killed by SIGKILL, but not by the kernel's"):
        runner.start()
    monkeypatch.setattr(host, "memory_kills", iter(range(100)).__next__)
    with (
        Runner(SETUP) as runner,
        pytest.raises(SetupFailed, match="killed by the kernel: the machine's memory ran out"),
    ):
        runner.start()


def test_a_child_that_never_gets_ready(scenario: Scenario) -> None:
    scenario(setup="hang")
    with Runner(SETUP, start_timeout_s=0.3) as runner, pytest.raises(CannotLook, match="no trial could start within"):
        runner.start()


def test_no_room_for_the_model_itself(scenario: Scenario) -> None:
    raised = {"classes": RUNTIME, "message": "DefaultCPUAllocator: can't allocate memory: you tried"}
    scenario(setup={"stage": "build", "chain": [raised], "traceback": "t"})
    refused = "RuntimeError: DefaultCPUAllocator: can't allocate memory"
    with Runner(SETUP) as runner, pytest.raises(SetupFailed, match=refused):
        runner.start()


def test_no_child_is_left(scenario: Scenario) -> None:
    scenario(at={"4": "hang"})
    before = children()
    with pytest.raises(KeyboardInterrupt), Runner(SETUP) as runner:
        runner.start()
        raise KeyboardInterrupt
    assert children() <= before


def loaded_ahead(runner: Runner, before: set[int]) -> int:
    """The process that waits to be the next child, after a first trial."""
    run(runner, 3)
    both = children() - before
    assert runner._child is not None
    (waiting,) = both - {runner._child.pid}
    return waiting


def test_the_process_that_was_loaded_ahead_is_the_confirmations(scenario: Scenario) -> None:
    log = scenario(per_sample=100)
    before = children()
    with Runner(SETUP) as runner:
        waiting = loaded_ahead(runner, before)
        assert log.read_text().count("start") == 1, "it waits to be told what to do"
        assert run(runner, 3, "confirm").fresh_process
        assert children() - before == {waiting}
        assert run(runner, 3, "confirm").fresh_process, "a third begins when it is wanted"
    assert children() <= before


def test_a_process_that_was_ended_before_its_turn_is_replaced(scenario: Scenario) -> None:
    scenario(per_sample=100)
    before = children()
    with Runner(SETUP) as runner:
        waiting = loaded_ahead(runner, before)
        psutil.Process(waiting).kill()
        assert run(runner, 3, "confirm").outcome == "fits"
        assert waiting not in children()


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_one_process_alone_where_the_host_has_no_room_for_two(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    scenario(per_sample=100)
    budget = 8 * 2**30
    room = SPARE_ROOM_BYTES + (budget if device == "cpu" else 0)
    before = children()
    for usable, there in ((room - 1, 1), (room, 2)):
        memory = HostMemory(2**40, usable, None, None)
        monkeypatch.setattr("gpucheck.batch_size.runner.host.memory", lambda memory=memory: memory)
        with Runner(replace(SETUP, device=device, budget_bytes=budget)) as runner:
            runner.start()
            assert len(children() - before) == there
    assert children() <= before
