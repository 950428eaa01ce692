"""What counts as an answer that holds, which runs are left, and a process that trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any

import pytest

MIB = 2**20
TRIALS = (("search", "fits"), ("search", "over-budget"), ("confirm", "fits"))


@pytest.fixture(scope="module")
def oracle(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("batch_oracle")


def made(oracle: ModuleType, **changes: Any) -> Any:
    run = oracle.Run(
        workload="mlp",
        limit="1GiB",
        budget_bytes=1024 * MIB,
        search_s=12.4,
        limited_by="memory",
        trials=(*TRIALS, ("recommended", "fits")),
        answer=oracle.Trained(100, 1000 * MIB),
        beyond=oracle.Trained(106, 1060 * MIB),
    )
    return replace(run, **changes)


def test_an_answer_holds_if_it_fits_and_five_per_cent_more_does_not(oracle: ModuleType) -> None:
    assert made(oracle).holds
    assert made(oracle, beyond=oracle.Trained(106, out_of_memory=True)).holds
    assert made(oracle, answer=oracle.Trained(100, 1024 * MIB)).holds
    assert not made(oracle, answer=oracle.Trained(100, 1024 * MIB + 1)).holds
    assert not made(oracle, answer=oracle.Trained(100, out_of_memory=True)).holds
    assert not made(oracle, beyond=oracle.Trained(106, 1024 * MIB)).holds
    assert not made(oracle, answer=None, beyond=None).holds


def test_a_process_that_ended_otherwise_shows_nothing(oracle: ModuleType) -> None:
    killed = oracle.Trained(106, failure="ended with -9: ")
    assert killed.within(1024 * MIB) is None
    assert not made(oracle, answer=killed).holds
    assert not made(oracle, beyond=killed).holds


def test_trials_are_counted_up_to_the_answer(oracle: ModuleType) -> None:
    run = made(oracle, trials=(*TRIALS, ("search", "out-of-memory"), ("recommended", "fits")))
    assert (run.counted, run.out_of_memory) == (4, 1)


@pytest.mark.parametrize(("size", "more"), [(1, 2), (19, 20), (20, 22), (100, 106), (18969, 19918)])
def test_the_size_that_must_not_fit(oracle: ModuleType, size: int, more: int) -> None:
    assert oracle.beyond(size) == more


def test_a_run_in_one_line(oracle: ModuleType) -> None:
    assert made(oracle).line == (
        "holds  mlp          1GiB; 100 takes 1000 MiB, 106 1060 MiB; 3 trials (2 search, 1 confirm, 1 recommended), "
        "0 out of memory; limited by memory, 12 s"
    )
    assert made(oracle, answer=None, beyond=None, trials=()).line == (
        "MISS   mlp          1GiB; no answer; 0 trials (), 0 out of memory; limited by memory, 12 s"
    )


def test_twenty_runs_take_every_workload_under_every_budget_in_turn(oracle: ModuleType) -> None:
    plan = oracle.planned(oracle.WORKLOADS, oracle.LIMITS, 20)
    assert plan[:4] == [("mlp", "1GiB"), ("convnet", "1GiB"), ("transformer", "1GiB"), ("mlp", "2GiB")]
    assert len(set(plan)) == 9
    assert sorted(plan.count(one) for one in set(plan)) == [2] * 7 + [3] * 2


def test_what_is_kept_is_not_run_again(oracle: ModuleType) -> None:
    plan = oracle.planned(("mlp", "convnet"), ("1GiB",), 3)
    mlp, stranger = made(oracle), made(oracle, workload="transformer")
    assert oracle.missing(plan, []) == plan
    assert oracle.missing(plan, [mlp, stranger]) == [("convnet", "1GiB"), ("mlp", "1GiB")]
    assert oracle.of_the_plan(plan, [mlp, stranger, mlp, mlp]) == [mlp, mlp]


def test_a_line_of_the_file_is_the_run(oracle: ModuleType) -> None:
    for run in (made(oracle), made(oracle, answer=None, beyond=None)):
        assert oracle.Run.from_json(json.loads(json.dumps(asdict(run)))) == run


def test_what_an_idle_gpu_holds_is_read_from_the_facts_of_the_search(oracle: ModuleType) -> None:
    def report(used: int | None) -> dict[str, Any]:
        devices = [{"id": None, "memory_used_bytes": 7}, {"id": "cuda:0", "memory_used_bytes": used}]
        return {"facts": {"devices": devices}, "results": {}}

    assert [oracle.used_before(report(used), "cuda:0") for used in (3 * MIB, 0, None)] == [3 * MIB, 0, 0]
    assert oracle.used_before(report(5), "cuda:1") == 0


def test_the_figures_to_reach(oracle: ModuleType) -> None:
    good, wrong = made(oracle), made(oracle, beyond=oracle.Trained(106, 1000 * MIB))

    def reached(runs: list[Any]) -> list[bool]:
        return [one for one, _ in oracle.verdicts(runs, 20)]

    assert reached([good] * 19 + [wrong]) == [True, True, True]
    assert reached([good] * 18 + [wrong] * 2) == [False, True, True]
    many = made(oracle, trials=TRIALS * 3)
    raised = made(oracle, trials=(*TRIALS, ("search", "out-of-memory")))
    assert reached([good] * 19 + [many]) == [True, False, True]
    assert reached([good] * 19 + [raised]) == [True, True, False]
    # Where nothing was predicted, trials are as many as they are.


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc, which is Linux's")
def test_a_process_that_trains_tells_its_peak(
    oracle: ModuleType,
    run_forked: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert oracle.trained("convnet", 512, 2**23) == oracle.Trained(512, out_of_memory=True)
    monkeypatch.setattr(oracle.subprocess, "run", run_forked)  # one fresh start shows that it starts
    one, eight = (oracle.trained("convnet", size, 2**30) for size in (1, 8))
    assert (one.failure, eight.failure) == (None, None)
    # Seven more images keep at least their first two maps of 16×64×64 floats each.
    assert eight.peak_bytes - one.peak_bytes > 7 * 2 * 16 * 64 * 64 * 4
