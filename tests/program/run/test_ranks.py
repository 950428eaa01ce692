"""Which rank holds up a job: the judge on tables made by hand, the files of ranks, and the recorder on saved dumps.

`test_real_jobs` starts torchrun with gloo.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program_scenes import COUNTED

from gpucheck.program import ranks_judge, stages_judge
from gpucheck.program.ranks_judge import CollectiveCall, JobCalls, JobVerdict
from gpucheck.program.run import memory_peaks, rank_files, ranks, ranks_findings, recorder
from gpucheck.render import run as shown
from gpucheck.render import text
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.run import RanksResult, RunError

ROOT = Path(__file__).resolve().parents[3]
STEP_S = 0.1
# Lateness without a pattern, the same in every run of the tests: multiples of 0.1 ms.
NOISE = (3, -2, 5, 0, -4, 1, 2, -5, 4, -1, -3)


def noise(rank: int, step: int, part: int = 0) -> float:
    return NOISE[(rank * 7 + step * step + part * 3) % len(NOISE)] * 1e-4


def table(
    own: Callable[[int, int], Sequence[float]],
    ranks_: int = 4,
    steps: int = 80,
    *,
    waits: bool = True,
    error: float = 0.0,
) -> JobCalls:
    """A job of one group: `own` is how long a rank takes to each collective of a step. Those before the last are waited
    for where `waits`."""
    at = [0.0] * ranks_
    calls = []
    for step in range(steps):
        parts = [own(rank, step) for rank in range(ranks_)]
        for part in range(len(parts[0])):
            at = [begun + parts[rank][part] for rank, begun in enumerate(at)]
            calls.append(CollectiveCall("0", step, dict(enumerate(at)), place=part))
            if waits or part == len(parts[0]) - 1:
                at = [max(at)] * ranks_
    errors = {rank: error if rank >= ranks_ // 2 else 0.0 for rank in range(ranks_)}
    return JobCalls(tuple(range(ranks_)), steps, STEP_S, calls, errors, clock_most_s=error)


def test_the_rank_that_takes_longer_is_named_with_its_cost() -> None:
    verdict = ranks_judge.judge(table(lambda rank, step: [STEP_S + noise(rank, step) + 0.02 * (rank == 2)]))
    assert (verdict.outcome, verdict.ranks, verdict.where) == ("straggler", (2,), ("0", 0))
    assert verdict.cost_s == pytest.approx(0.02, abs=1e-3)
    assert verdict.shares[2] == 1.0


def test_a_sound_job_and_one_that_is_late_by_less_than_two_percent_name_nobody() -> None:
    assert ranks_judge.judge(table(lambda rank, step: [STEP_S + noise(rank, step)])).outcome == "alike"
    late = table(lambda rank, step: [STEP_S + noise(rank, step) + 0.0015 * (rank == 2)])
    assert ranks_judge.judge(late).ranks == ()


def test_one_delay_is_counted_once_for_all_buckets_that_it_delays() -> None:
    def own(rank: int, step: int) -> list[float]:
        first = 0.06 + 0.02 * (rank == 1) + noise(rank, step)
        return [first, *(0.005 + noise(rank, step, part) / 10 for part in range(1, 6))]

    handed_over = ranks_judge.judge(table(own, waits=False))
    assert (handed_over.ranks, handed_over.outcome) == ((1,), "straggler")
    assert handed_over.cost_s == pytest.approx(0.02, abs=2e-3)


def test_who_waited_for_a_late_rank_in_one_group_is_not_blamed_in_the_next() -> None:
    calls = []
    at = [0.0] * 4
    for step in range(80):
        at = [begun + STEP_S + noise(rank, step) + 0.02 * (rank == 1) for rank, begun in enumerate(at)]
        for pair in ((0, 1), (2, 3)):
            calls.append(CollectiveCall(f"p{pair[0]}", step, {rank: at[rank] for rank in pair}))
            for rank in pair:
                at[rank] = max(at[each] for each in pair) + 0.001
        calls.append(CollectiveCall("0", step, dict(enumerate(at))))
        at = [max(at)] * 4
    verdict = ranks_judge.judge(JobCalls((0, 1, 2, 3), 80, STEP_S, calls))
    assert (verdict.outcome, verdict.ranks) == ("straggler", (1,))


def test_ranks_that_take_turns_are_no_straggler_and_late_ones_together_are() -> None:
    turns = ranks_judge.judge(table(lambda rank, step: [STEP_S + noise(rank, step) + 0.02 * (rank == step % 2)]))
    assert (turns.outcome, set(turns.ranks) <= {0, 1}) == ("alternating", True)
    node = table(lambda rank, step: [STEP_S + noise(rank, step) + 0.02 * (rank in (2, 3))], 8)
    assert ranks_judge.judge(node).ranks == (2, 3)
    # One is always the later of the two: nobody takes turns.
    uneven = table(lambda rank, step: [STEP_S + noise(rank, step) + {2: 0.02, 3: 0.009}.get(rank, 0.0)])
    verdict = ranks_judge.judge(uneven)
    assert (verdict.outcome, verdict.ranks) == ("straggler", (2, 3))


def test_who_is_seldom_late_by_much_is_named_and_by_its_cost() -> None:
    """A checkpoint on rank 0 each tenth step; in the others the ranks take turns, by next to nothing."""
    often = table(lambda rank, step: [STEP_S + noise(rank, step) + 0.3 * (rank == 0 and step % 10 == 9)], 2, 300)
    verdict = ranks_judge.judge(often)
    assert (verdict.outcome, verdict.ranks) == ("straggler", (0,))
    assert verdict.shares[0] < 0.7
    assert verdict.cost_s == pytest.approx(0.03, abs=2e-3)
    # Each by another rank, nobody stands out.
    turns = table(
        lambda rank, step: [STEP_S + noise(rank, step) + 0.3 * (step % 10 == 9 and step // 10 % 3 == rank)], 3
    )
    assert ranks_judge.judge(turns).outcome == "alternating"
    # Once is chance, and no turns.
    once = ranks_judge.judge(table(lambda rank, step: [STEP_S + noise(rank, step) + 8.0 * (rank == 1 and step == 70)]))
    assert (once.outcome, once.ranks) == ("not_decided", ())
    costs = "waiting for the last rank costs 104 ms of a step, most of it for rank 1"
    assert once.reason == f"{costs}, in 1 of 77 steps: that may be chance"


def test_work_of_every_nth_step_is_named_with_its_period() -> None:
    """Each fifth step of one rank was "too few" or "not evenly enough"."""

    def judged(every: int, ranks_: int = 4, steps: int = 80, rank_: int = 1) -> JobVerdict:
        def own(rank: int, step: int) -> list[float]:
            return [STEP_S + noise(rank, step) + 0.3 * (rank == rank_ and step % every == every - 1)]

        return ranks_judge.judge(table(own, ranks_, steps))

    for every in (2, 5, 7, 20):
        verdict = judged(every)
        assert (verdict.outcome, verdict.ranks, verdict.every) == ("straggler", (1,), every), every
    # Too few times to tell it from chance, with how many steps it takes.
    few = judged(20, 2, 70)
    assert (few.outcome, few.ranks) == ("not_decided", ())
    assert few.reason.endswith(
        "most of it for rank 1 in every 20th step, 3 times: at least 83 steps are needed to tell it from chance"
    )
    # By turns nobody, and without a pattern no period.
    assert ranks_judge.period([1.0, 5.0, 1.0, 1.0, 5.0, 1.0, 1.0, 5.0, 1.0]) == (range(1, 9, 3), 4.0)
    assert ranks_judge.period([1.0, 5.0, 1.0, 5.0, 1.0, 1.0, 1.0, 5.0, 1.0]) is None
    numbers = {2: "2nd", 3: "3rd", 5: "5th", 11: "11th", 13: "13th", 21: "21st", 112: "112th"}
    assert {number: ranks_judge.ordinal(number) for number in numbers} == numbers


def test_who_is_late_in_half_of_a_job_is_not_told_as_one_of_those_that_take_turns() -> None:
    """It sits on a GPU that became hot, or behind a neighbour that came later."""
    late = table(lambda rank, step: [STEP_S + noise(rank, step) + 0.02 * (rank == 1 and step >= 42)], 2)
    verdict = ranks_judge.judge(late)
    assert (verdict.outcome, verdict.ranks) == ("not_decided", ())
    assert "most of it for rank 1, in 35 of 77 steps: that may be chance" in verdict.reason


def test_what_all_ranks_have_of_a_long_tail_names_none_of_them() -> None:
    """Each is beyond the median of its siblings in the mean: of eight sound ranks up to four were named."""
    for seed in range(5):
        random_ = random.Random(seed)
        tail = [[0.005 * random_.lognormvariate(0.0, 1.0) for _ in range(8)] for _ in range(200)]
        for late, expected in ((None, ()), (5, (5,))):
            verdict = ranks_judge.judge(
                table(lambda rank, step: [STEP_S + tail[step][rank] + 0.02 * (rank == late)], 8, 200)  # noqa: B023
            )
            assert (verdict.outcome == "straggler", verdict.ranks) == (late is not None, expected)


def test_what_clocks_may_be_off_is_no_lateness() -> None:
    def own(rank: int, step: int) -> list[float]:
        return [STEP_S + noise(rank, step) + 0.004 * (rank == 3)]

    assert ranks_judge.judge(table(own)).ranks == (3,)
    unclear = ranks_judge.judge(table(own, error=0.005))
    assert (unclear.outcome, unclear.ranks) == ("not_decided", ())
    assert unclear.reason == "the hosts' clocks may differ by 5 ms, which may hide a late rank"
    assert ranks_judge.judge(table(lambda rank, step: [STEP_S + noise(rank, step)], error=0.001)).outcome == "alike"


def test_lateness_that_nobody_waits_for_is_no_pass() -> None:
    # Rank 1 is late at the first collective, and early by as much in what follows: the others may have waited or not.
    calls = []
    for step in range(80):
        first = {rank: step * STEP_S + 0.02 * (rank == 1) for rank in range(4)}
        calls.append(CollectiveCall("0", step, first, waits=False))
        second = {rank: step * STEP_S + 0.03 + noise(rank, step) for rank in range(4)}
        calls.append(CollectiveCall("0", step, second, place=1))
    verdict = ranks_judge.judge(JobCalls((0, 1, 2, 3), 80, STEP_S, calls))
    assert (verdict.outcome, verdict.ranks) == ("not_decided", ())


# -- files of ranks ----------------------------------------------------------------------------------------------------


P2P = {"say": "p2p", "peers": [], "hidden": 0, "waited": 0}


def write(
    folder: Path,
    rank: int,
    lines: Sequence[dict[str, Any]],
    *,
    hosts: bool = False,
    world: int = 3,
    more: Mapping[str, Any] | None = None,
) -> None:
    head = {
        "say": "rank",
        "rank": rank,
        "world": world,
        "hosts": hosts,
        "host": "node1",
        "local_rank": str(rank),
        "at_ns": 0,
        **(more or {}),
    }
    text_ = "".join(json.dumps(line) + "\n" for line in (head, P2P, *lines))
    (folder / f"rank{rank}.jsonl").write_text(text_ + '{"say": "calls", "rows": [[0, ', encoding="ascii")  # cut off


KIND = {"say": "kind", "kind": 0, "group": "0", "name": "gloo:all_reduce", "sizes": [[8]], "dtypes": ["Float"]}
GROUP = {"say": "group", "name": "0", "ranks": [0, 1, 2]}
MS = 1_000_000


def steps_of(rank: int, late: int, count: int = 80) -> list[dict[str, Any]]:
    """A rank's lines: one collective in each step of 100 ms; the DataLoader of rank `late` takes 20 ms longer."""
    calls, steps = [], []
    for step in range(count):
        end = (step + 1) * 120 * MS
        is_late = rank == late
        at = end - 30 * MS + (20 * MS if is_late else 0) + int(noise(rank, step) * 1e9)
        calls.append([0, step + 1, at])
        steps.append([end, 120 * MS, (25 if is_late else 5) * MS, 0, 0, 40 * MS, MS, 0, 0, 0])
    lines = [["data", "/job/train.py", 31, 2.0]] if rank == late else []
    end_line = {"say": "end", "exit": 0, "at_ns": 10**10, "steps": count, "lines": lines, "devices": []}
    return [
        KIND,
        GROUP,
        {"say": "calls", "lost": 0, "p2p": 0, "rows": calls},
        {"say": "steps", "rows": steps},
        end_line,
    ]


def findings_of(folder: Path) -> list[Finding]:
    return ranks_findings.findings(rank_files.result(folder))


def finding_of(folder: Path, id: str) -> Finding:
    return next(finding for finding in findings_of(folder) if finding.id == id)


def report_of(result: RanksResult) -> Report:
    collector = Collector()
    from gpucheck.report.events import Answered, Judged

    collector(Answered("ranks", result))
    for finding in ranks_findings.findings(result):
        collector(Judged(finding))
    return collector.report(
        version="1", command="fleet judge", argv=(), started="2026-01-01T00:00:00Z", elapsed_s=1.0, settings=None
    )


def test_the_late_rank_is_told_with_what_it_does(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, steps_of(rank, 1))
    result = rank_files.result(tmp_path)
    assert (result.outcome, result.late, result.steps, result.activity) == ("straggler", (1,), 80, "DataLoader")
    assert result.place == "/job/train.py:31"
    assert result.activity_s == pytest.approx(0.02)
    (finding,) = ranks_findings.findings(result)
    assert finding.verdict == "warn"
    assert finding.title == "rank 1 holds up the job"
    assert finding.message == (
        "rank 1 (cpu, node1) is last in 100 % of steps and costs 20.0 ms of a step of 120 ms; DataLoader at "
        "/job/train.py:31 takes 20.0 ms longer than on its siblings"
    )
    page = text.blocks(report_of(result), verbose=False)
    assert len(page) <= 24
    assert shown.ranks_page(report_of(result)).cause == finding
    assert from_json(RanksResult, json.loads(json.dumps(to_json(result)))) == result


def test_files_of_two_jobs_blame_nobody(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, steps_of(rank, 1))
    # Of a job before with the same name: a minute lies between them.
    earlier = steps_of(2, 1)
    earlier[2]["rows"] = [[kind, number, at - 60 * 1000 * MS] for kind, number, at in earlier[2]["rows"]]
    earlier[3]["rows"] = [[row[0] - 60 * 1000 * MS, *row[1:]] for row in earlier[3]["rows"]]
    write(tmp_path, 2, earlier)
    result = rank_files.result(tmp_path)
    assert (result.outcome, result.late) == ("not_decided", ())
    assert (
        result.reason
        == "ranks go on for a step without the last one: two jobs, wrong clocks, or calls that nobody waits for"
    )
    # Where they have names, those of the newest job are judged.
    for rank in range(3):
        head = {"say": "rank", "rank": rank, "world": 3, "hosts": False, "host": "", "local_rank": ""}
        head |= {"at_ns": rank != 2, "job": "old" if rank == 2 else "new"}
        write(tmp_path, rank, [head, *(earlier if rank == 2 else steps_of(rank, 1))])
    result = rank_files.result(tmp_path)
    assert ([each.rank for each in result.ranks], result.reason) == ([0, 1], "2 of 3 ranks wrote here")
    assert result.not_seen[0].startswith("rank 2 wrote nothing here")


def test_clocks_of_hosts_that_were_not_compared_decide_nothing(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, steps_of(rank, 1), hosts=True)
    result = rank_files.result(tmp_path)
    assert (result.outcome, result.late) == ("not_decided", ())
    clock = {"say": "clock", "at_ns": 0, "offset_ns": 0, "error_ns": 0}
    for rank in range(3):
        write(tmp_path, rank, [clock, *steps_of(rank, 1)], hosts=True)
    assert rank_files.result(tmp_path).late == (1,)


def test_a_clock_that_was_set_between_two_readings_blames_nobody(tmp_path: Path) -> None:
    """The clock of rank 2's host, 100 ms behind, was set right after a quarter of a job of 10 s."""
    for rank in range(3):
        lines, own = steps_of(rank, -1), 100 * MS * (rank == 2)
        set_at = 25 * 10**8
        lines[2]["rows"] = [[kind, number, at - own * (at < set_at)] for kind, number, at in lines[2]["rows"]]
        clocks = [(0, own), (10 * 10**9, 0)]
        head = [{"say": "clock", "at_ns": at, "offset_ns": offset, "error_ns": 0} for at, offset in clocks]
        write(tmp_path, rank, [*head, *lines], hosts=True)
    result = rank_files.result(tmp_path)
    assert result.outcome == "not_decided" and "clocks may differ by 93.8 ms" in result.reason
    # 10 ms in 30 s is NTP's own pace.
    assert rank_files.RankRecord(1, hosts=True, clocks=[(0, 0, 50), (30 * 10**9, 10 * MS, 50)]).offset(0)[1] < 1e-6


def test_ranks_that_wrote_nothing_are_named(tmp_path: Path) -> None:
    write(tmp_path, 0, steps_of(0, 1))
    result = rank_files.result(tmp_path)
    assert result.outcome == "not_decided"
    assert result.reason == "1 of 3 ranks wrote here"
    assert result.not_seen[0] == "ranks 1 and 2 wrote nothing here: give all ranks one folder with --output DIR/"
    # Those that wrote may all wait for the third.
    for rank in range(2):
        write(tmp_path, rank, steps_of(rank, 1))
    (finding,) = findings_of(tmp_path)
    assert (finding.verdict, finding.message) == ("inconclusive", "2 of 3 ranks wrote here")
    # A file of its own, but no call in it, of a group whose members are not known.
    for rank in range(3):
        lines = [line | ({"rows": []} if line["say"] == "calls" and rank == 2 else {}) for line in steps_of(rank, -1)]
        write(tmp_path, rank, [line for line in lines if line["say"] != "group"])
    (finding,) = findings_of(tmp_path)
    assert (finding.verdict, finding.message) == ("inconclusive", "collectives of 2 of 3 ranks were seen")


def test_what_all_ranks_do_every_nth_step_blames_nobody(tmp_path: Path) -> None:
    for rank in range(3):
        lines = steps_of(rank, -1)
        for at, row in enumerate(lines[3]["rows"]):
            row[1] += 400 * MS * (at % 20 == 19)
        write(tmp_path, rank, lines)
    result = rank_files.result(tmp_path)
    assert (result.outcome, result.late) == ("alike", ())
    finding = ranks_findings.findings(result)[-1]
    assert (finding.id, finding.verdict) == ("run.ranks.periodic", "info")
    assert finding.title == "every 20th step takes 400 ms longer"
    assert finding.message == "15 % of the job, seen 4 times: an evaluation, a checkpoint or logging"
    assert shown.ranks_page(report_of(result)).body[0] == text.signed(finding.verdict, text.sentence(finding))


def test_a_late_rank_is_not_named_where_sends_and_receives_are_not_in_the_record(tmp_path: Path) -> None:
    """Who is late may only wait for a message: NCCL's waits are the device's, and older files have no count."""

    def judged(p2p: int, counted: bool) -> tuple[str, str]:
        for rank in range(3):
            lines = steps_of(rank, 1)
            lines[2]["p2p"] = p2p
            write(tmp_path, rank, lines)
            if not counted:
                path = tmp_path / f"rank{rank}.jsonl"
                path.write_text(path.read_text().replace(json.dumps(P2P) + "\n", ""))
        result = rank_files.result(tmp_path)
        assert result.late == ((1,) if (p2p, counted) == (0, True) else ())
        return ranks_findings.findings(result)[0].verdict, result.reason

    assert judged(0, True) == ("warn", "")
    assert judged(80, True) == ("inconclusive", "ranks send and receive with NCCL, which records no waits")
    assert judged(0, False) == ("inconclusive", "sends and receives were not counted on all ranks")


def pipeline(
    folder: Path,
    own_ms: Callable[[int, int], float],
    *,
    world: int = 4,
    replicas: int = 1,
    counts: Mapping[int, Sequence[Sequence[int]]] | None = None,
    more: Mapping[str, Any] | None = None,
    waited: int = 80,
) -> RanksResult:
    """Ranks of stages that send to each other in steps of 100 ms. What a rank does not work it waits for messages."""
    for rank in range(world):
        stage = rank // replicas
        peers = [each for each in (rank - replicas, rank + replicas) if 0 <= each < world]
        calls, steps = [], []
        for step in range(80):
            own = int((own_ms(rank, step) + noise(rank, step) * 1e3) * MS)
            end = (step + 1) * 100 * MS
            calls.append([0, step + 1, end - 10 * MS])
            steps.append([end, 100 * MS, 0, 0, 0, 0, 0, 0, 100 * MS - own, 100 * MS - own])
        siblings = [each for each in range(world) if each // replicas == stage]
        group = f"stage{stage}" if replicas > 1 else "0"
        judged = P2P | {"peers": (counts or {}).get(rank, [[peer, 80, 80] for peer in peers])}
        lines: list[dict[str, Any]] = [
            KIND | {"group": group},
            {"say": "group", "name": group, "ranks": siblings if replicas > 1 else [*range(world)]},
            {"say": "calls", "lost": 0, "p2p": 0, "rows": calls},
            {"say": "steps", "rows": steps},
            judged | {"waited": waited} | dict(more or {}),
            {"say": "end", "exit": 0, "at_ns": 10**10, "steps": 80, "lines": [], "devices": []},
        ]
        write(folder, rank, lines, world=world)
    return rank_files.result(folder)


def test_a_pipelines_busiest_stage_is_named_without_blame(tmp_path: Path) -> None:
    alike = pipeline(tmp_path, lambda rank, step: 40.0 + rank)
    assert (alike.outcome, alike.late, alike.busiest) == ("alike", (), ())
    (finding,) = ranks_findings.findings(alike)
    assert (finding.verdict, finding.title) == ("pass", "no rank holds up the job")
    assert "each rank's own work takes 39.9 ms to 43.1 ms" in finding.message and "a slow link" in finding.message
    busy = pipeline(tmp_path, lambda rank, step: 60.0 if rank == 2 else 40.0)
    assert (busy.outcome, busy.late, busy.busiest) == ("busiest", (), (2,))
    (finding,) = ranks_findings.findings(busy)
    assert (finding.verdict, finding.title) == ("info", "rank 2 is the busiest stage: more work, or slower")
    assert finding.message == ("own work takes 59.9 ms of a step of 100 ms, that of the other ranks 39.9 ms to 40.1 ms")
    assert [row.own_s for row in busy.ranks] == pytest.approx([0.04, 0.04, 0.06, 0.04], abs=1e-3)
    assert "own work, ms" in text.markdown_page(report_of(busy))
    # Half of the stages are not busy beside the others: one of two is.
    assert pipeline(tmp_path, lambda rank, step: 40.0 if rank == 2 else 60.0).busiest == ()


def test_a_rank_of_a_pipeline_is_slower_than_its_siblings_or_than_before(tmp_path: Path) -> None:
    slow = pipeline(tmp_path, lambda rank, step: 50.0 if rank == 3 else 40.0, replicas=2)
    assert (slow.outcome, slow.late, slow.busiest) == ("straggler", (3,), ())
    (finding,) = ranks_findings.findings(slow)
    assert (finding.verdict, finding.title) == ("warn", "rank 3 is slower than its siblings of the same stage")
    # Both of a stage: that is its work.
    assert pipeline(tmp_path, lambda rank, step: 50.0 if rank > 1 else 40.0, replicas=2).busiest == (2, 3)
    # DDP waits for its buckets in C++: what the sibling waited there is not its own work.
    slow = pipeline(tmp_path, lambda rank, step: 50.0 if rank == 3 else 40.0, replicas=2, waited=0)
    assert (slow.outcome, slow.late) == ("not_decided", ()) and "(as DDP does)" in slow.reason


def test_a_rank_that_becomes_slower_is_held_against_its_own_earlier_steps() -> None:
    def judged(own: Callable[[int, int], float], grows: bool = True) -> JobVerdict:
        rows = {rank: [0.04 + noise(rank, step) + own(rank, step) for step in range(80)] for rank in range(4)}
        steps = [0.1 + 0.02 * (grows and step >= 45) for step in range(80)]
        peers = {rank: [rank - 1, rank + 1] for rank in range(4)}
        return stages_judge.judge(stages_judge.Pipeline(rows, steps, peers, [frozenset(range(4))]))

    verdict = judged(lambda rank, step: 0.02 * (rank == 1 and step >= 45))
    assert (verdict.outcome, verdict.ranks, verdict.since) == ("straggler", (1,), 49)
    assert verdict.cost_s == pytest.approx(0.02)
    # All become slower; one does, and no step takes longer; one does now and then.
    assert judged(lambda rank, step: 0.02 * (step >= 45)).outcome == "alike"
    assert judged(lambda rank, step: 0.02 * (rank == 1 and step >= 45), grows=False).ranks == ()
    assert judged(lambda rank, step: 0.03 * (rank == 1 and step >= 45 and step % 2)).since is None


def test_stages_are_those_whose_ranks_exchange_with_siblings() -> None:
    def of(peers: Mapping[int, Sequence[int]], *groups: Sequence[int]) -> list[tuple[int, ...]]:
        own = {rank: [0.1] for rank in peers}
        return stages_judge.stages(stages_judge.Pipeline(own, [0.1], peers, [frozenset(each) for each in groups]))

    assert of({0: [2], 1: [3], 2: [0], 3: [1]}, (0, 1), (2, 3), (0, 1, 2, 3)) == [(0, 1), (2, 3)]
    # Tied weights: the first and the last stage share a group.
    assert of({0: [1], 1: [0, 2], 2: [1]}, (0, 2)) == [(0,), (1,), (2,)]
    assert of({0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}, (0, 3), (0, 1, 2, 3)) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("counts", "more", "reason"),
    [
        ({1: [[0, 80, 79], [2, 80, 80]]}, {}, "rank 1 received 159 messages, and the others sent it 160"),
        ({1: [[0, 80, 80], [2, 80, 80], [-1, 0, 1]]}, {}, "rank 1 received 161 messages, and the others sent it 160"),
        (
            None,
            {"hidden": 3},
            "rank 0 waited for 3 of its sends and receives in another thread, by asking repeatedly, or never: its own "
            "time is unknown",
        ),
    ],
)
def test_a_message_that_is_not_seen_at_both_ends_decides_nothing(
    counts: Mapping[int, Sequence[Sequence[int]]] | None, more: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    result = pipeline(tmp_path, lambda rank, step: 60.0 if rank == 2 else 40.0, counts=counts, more=more)
    assert (result.outcome, result.busiest, result.reason) == ("not_decided", (), reason)
    # From anybody: which peer it was is not known, how many is.
    any_ = {1: [[0, 80, 0], [2, 80, 80], [-1, 0, 80]]}
    assert pipeline(tmp_path, lambda rank, step: 60.0 if rank == 2 else 40.0, counts=any_).busiest == (2,)


def test_what_keeps_a_job_from_being_judged_is_told_as_it_is(tmp_path: Path) -> None:
    def judged(kept: int, done: int, name: str = "all_reduce") -> str:
        for rank in range(3):
            lines = steps_of(rank, -1)
            lines[0] = KIND | {"name": f"gloo:{name}"}
            lines[3]["rows"], lines[-1]["steps"] = lines[3]["rows"][: kept if rank == 1 else 80], done
            write(tmp_path, rank, lines)
        return rank_files.result(tmp_path).reason

    # A process that ends at once takes with it what was not yet read.
    assert judged(0, 40) == "40 steps: at least 60 are needed"
    assert judged(0, 80) == "0 of 80 steps are recorded: the others were lost with a process"
    assert judged(80, 80, "reduce").startswith("no collective was seen in which all ranks wait")


def test_of_two_known_ranks_that_differ_neither_is_blamed(tmp_path: Path) -> None:
    for rank in (1, 2):  # the record of rank 0 was lost
        kind = KIND | {"sizes": [[16]] if rank == 1 else [[2, 4]]}
        write(tmp_path, rank, [kind, GROUP, {"say": "calls", "lost": 0, "p2p": 0, "rows": [[0, 1, MS]]}])
    found = rank_files.result(tmp_path)
    assert found.mismatch is not None and (found.mismatch.ranks, found.mismatch.has_majority) == ((1, 2), False)
    (judged,) = [finding for finding in ranks_findings.findings(found) if finding.id == "run.ranks.mismatch"]
    assert judged.title == "ranks 1 and 2 make different calls" and ": rank 1 made all_reduce [[16]]" in judged.message
    assert ", rank 2 all_reduce [[2, 4]]" in judged.message


def test_a_call_with_other_elements_is_named_by_its_line(tmp_path: Path) -> None:
    for rank in range(3):
        odd = rank == 2
        kind = KIND | {"sizes": [[16]] if odd else [[2, 4]]}
        rows = {"say": "calls", "lost": 0, "p2p": 0, "rows": [[0, 1, MS]]}
        line = {"say": "lines", "rows": [[0, 1, "/job/train.py", 40 + rank, False]]}
        write(tmp_path, rank, [kind, GROUP, rows, line])
    seen = rank_files.result(tmp_path).mismatch
    assert seen is not None
    assert (seen.ranks, seen.call.place, seen.expected.place) == ((2,), "/job/train.py:42", "/job/train.py:40")
    # All-gathers of unequal parts are NCCL's business, and elements in another shape are the same elements.
    for rank in range(3):
        kind = KIND | {"name": "nccl:all_gather", "sizes": [[rank]]}
        write(tmp_path, rank, [kind, GROUP, {"say": "calls", "lost": 0, "p2p": 0, "rows": [[0, 1, MS]]}])
    assert rank_files.result(tmp_path).mismatch is None


def hang(folder: Path, state: str, frames: Sequence[Any], *, goes_on: bool = False) -> RanksResult:
    for rank in range(3):
        rows = [[0, 1, MS], *([[0, 2, 2 * MS]] if rank != 1 or goes_on else [])]
        if goes_on:
            rows.append([0, 3, 10**9])
        calls = {"say": "calls", "lost": 0, "p2p": 0, "rows": rows}
        pending = {"say": "pending", "at_ns": 0, "rows": [[0, 2]] if rank != 1 else []}
        where: dict[str, Any] = {"say": "where", "frames": frames}
        write(folder, rank, [KIND, GROUP, calls, pending, *([{"say": "process", "state": state}, where] * (rank == 1))])
    (folder / "hang").write_text(f"{10 * MS} 5.0")
    return rank_files.result(folder)


def test_a_hang_tells_who_is_missing_and_where(tmp_path: Path) -> None:
    frames = [
        ("/usr/lib/python3.11/socket.py", 706, "recv"),
        ("/job/load.py", 12, "read"),
        ("/job/train.py", 3, "<module>"),
    ]
    result = hang(tmp_path, "S (sleeping)", frames)
    assert result.hang is not None
    assert (result.hang.inside, result.hang.missing, result.hang.call.number) == ((0, 2), (1,), 2)
    finding = ranks_findings.findings(result)[0]
    assert (finding.verdict, finding.title) == ("fail", "the job hangs: rank 1 missing")
    assert finding.message == (
        "ranks 0 and 2 wait in all_reduce number 2 of group 0 for 5.00 s; rank 1 is at /job/load.py:12"
    )
    (tmp_path / "rank1.jsonl").write_text(
        "".join(
            line for line in (tmp_path / "rank1.jsonl").read_text().splitlines(keepends=True) if "pending" not in line
        )
    )
    silent = rank_files.result(tmp_path)
    assert silent.hang is not None
    assert (silent.hang.missing, silent.hang.unknown) == ((), (1,))
    assert "rank 1 did not answer, rank 1 is at /job/load.py:12" in ranks_findings.findings(silent)[0].message
    # It was at work in the call itself, perhaps, when it was ended: nobody knows what it had not handed on.
    hang(tmp_path, "", frames)
    with open(tmp_path / "rank1.jsonl", "r+") as file:
        kept = [line for line in file if "pending" not in line and '"process"' not in line][:-1]
        end = {"say": "end", "exit": -6, "at_ns": 5 * MS, "steps": 1, "lines": []}
        file.seek(0)
        file.truncate()
        file.write("".join(kept) + json.dumps(end) + "\n")
    died = rank_files.result(tmp_path)
    assert died.hang is not None and (died.hang.missing, died.hang.unknown) == ((), (1,))
    judged = "rank 1 did not answer, rank 1 had ended by SIGABRT at /job/load.py:12"
    assert judged in ranks_findings.findings(died)[0].message
    # It ended before the call, without an error.
    hang(tmp_path, "", [])
    with open(tmp_path / "rank1.jsonl", "a") as file:
        file.write("\n" + json.dumps(end | {"exit": 0}) + "\n")
    left = findings_of(tmp_path)[0]
    assert (left.title, left.fix) == ("the job hangs: rank 1 left early", ranks_findings.UNEVEN)
    assert left.message.endswith("; rank 1 left after 1 step and ended with exit 0")
    # A signal ended it before.
    hang(tmp_path, "", [])
    with open(tmp_path / "rank1.jsonl", "a") as file:
        file.write("\n" + json.dumps(end | {"exit": -15}) + "\n")
    title = findings_of(tmp_path)[0].title
    assert title == "the job hangs: rank 1 was ended by SIGTERM"
    stopped = ranks_findings.findings(hang(tmp_path, "T (stopped)", []))[0]
    assert "rank 1 is stopped (SIGSTOP or a debugger)" in stopped.message


def in_groups(folder: Path, waits: Sequence[tuple[str, ...]], groups: Mapping[str, Sequence[int]]) -> Finding:
    """Each rank waits in these calls, an entry for a rank, one after another: the finding of the hang."""
    names = list(groups)
    for rank, own in enumerate(waits):
        of = [{"say": "group", "name": name, "ranks": list(groups[name])} for name in names if rank in groups[name]]
        kinds = [KIND | {"kind": n, "group": name} for n, name in enumerate(names)]
        rows = [[names.index(name), 1, (rank + n + 1) * MS] for n, name in enumerate(own)]
        calls = {"say": "calls", "lost": 0, "p2p": 0, "rows": rows}
        pending = {"say": "pending", "hang": True, "rows": [row[:2] for row in rows]}
        where = {"say": "where", "frames": [["/job/train.py", 10 + rank, "<module>"]]}
        write(folder, rank, [*kinds, *of, calls, pending, where], world=len(waits))
    (folder / "hang").write_text(f"{100 * MS} 5.0")
    return finding_of(folder, "run.ranks.hang")


def test_who_waits_in_another_call_itself_is_not_to_blame_for_a_hang(tmp_path: Path) -> None:
    """Rank 1 waits for rank 2, which waits for rank 0, which computes: the first call is not the one to look at."""
    finding = in_groups(tmp_path, ((), ("a",), ("b",)), {"a": (1, 2), "b": (0, 2)})
    assert finding.title == "the job hangs: rank 0 missing"
    assert finding.message.endswith(
        "rank 2 waits in all_reduce number 1 of group b for 5.00 s; rank 0 is at /job/train.py:10"
    )
    # Of two ranks that are missing one waits for the other.
    finding = in_groups(tmp_path, (("0",), ("pair",), ()), {"0": (0, 1, 2), "pair": (1, 2)})
    assert finding.title == "the job hangs: rank 2 missing"


def test_ranks_that_wait_for_each_other_are_not_missing(tmp_path: Path) -> None:
    """Two groups of the same ranks in two orders, and a ring of three groups."""
    for waits, groups in (
        ((("a",), ("b",)), {"a": (0, 1), "b": (0, 1)}),
        ((("a",), ("b",), ("c",)), {"a": (0, 1), "b": (1, 2), "c": (2, 0)}),
    ):
        finding = in_groups(tmp_path, waits, groups)
        assert finding.title == "the job hangs: ranks wait for each other in different collectives"
        assert finding.message == (
            "rank 0 waits in all_reduce number 1 of group a for 5.00 s; "
            "rank 1 waits in another collective at /job/train.py:11"
        )
        assert finding.fix == "make the collectives of all groups in the same order on all ranks"


def test_all_ranks_in_a_call_are_not_cleared(tmp_path: Path) -> None:
    def judged(*names: str) -> str:
        for rank in range(3):
            calls = {"say": "calls", "lost": 0, "p2p": 0, "rows": [[0, 2, 2 * MS]]}
            kind = KIND | {"name": f"gloo:{names[rank % len(names)]}"}
            write(tmp_path, rank, [kind, GROUP, calls, {"say": "pending", "hang": True, "rows": [[0, 2]]}])
        (tmp_path / "hang").write_text(f"{10 * MS} 5.0")
        return finding_of(tmp_path, "run.ranks.hang").message

    assert judged("broadcast").endswith("the root, sizes or order may differ, or the network failed")
    assert judged("all_reduce", "broadcast", "all_reduce") == (
        "ranks 0–2 wait in call number 2 of group 0 for 5.00 s; the ranks make different calls"
    )


def test_a_wait_that_came_to_its_end_is_no_hang(tmp_path: Path) -> None:
    finding = ranks_findings.findings(hang(tmp_path, "", [], goes_on=True))[0]
    assert (finding.id, finding.verdict) == ("run.ranks.hang", "warn")


def test_a_hang_stays_the_answer_where_its_timeout_ended_the_job(tmp_path: Path) -> None:
    def ends(code: int, asked: Sequence[int] = (0, 1, 2)) -> RanksResult:
        hang(tmp_path, "S (sleeping)", [])
        for rank in range(3):
            rows = [[0, 2]] if rank != 1 else []
            end = {"say": "end", "exit": code, "at_ns": 10**10, "steps": 1, "lines": []}
            answers = [
                {"say": "pending", "hang": True, "rows": rows},
                {"say": "pending", "hang": True, "rows": []},
                *([{"say": "process", "state": "S (sleeping)"}] if rank in asked else []),
                end,
            ]
            with open(tmp_path / f"rank{rank}.jsonl", "a") as file:
                file.write("\n" + "".join(json.dumps(line) + "\n" for line in answers))
        return rank_files.result(tmp_path)

    finding, *others = ranks_findings.findings(ends(1))
    assert (finding.verdict, finding.title) == ("fail", "the job hangs: rank 1 missing")
    # Whose timeout came first is no cause: rank 0 was told as the one that ended first.
    assert [finding.id for finding in others] == ["run.ranks.straggler"]
    # What killed one that waited is.
    assert "out-of-memory killer" in ranks_findings.findings(ends(-signal.SIGKILL))[1].message
    assert ranks_findings.findings(ends(-signal.SIGSEGV))[1].id == "run.ranks.ended"
    # One that had ended before the ranks were asked may be.
    assert [finding.id for finding in ranks_findings.findings(ends(1, (1, 2)))][1] == "run.ranks.ended"
    # Nothing came after the call, and all ended well.
    finding = ranks_findings.findings(ends(0))[0]
    assert (finding.verdict, finding.title) == ("warn", "the job waited for rank 1")


@pytest.mark.parametrize("code", [1, -signal.SIGABRT])
def test_a_rank_that_left_early_stays_the_cause_of_a_hang_that_its_timeout_ended(tmp_path: Path, code: int) -> None:
    """With NCCL the others wait for its call until the watchdog ends them: what to change about it was not told."""
    hang(tmp_path, "", [])
    for rank in range(3):
        end = {"say": "end", "exit": 0 if rank == 1 else code, "at_ns": 10**10 * (rank != 1), "steps": 1, "lines": []}
        asked = {"say": "process", "state": "R (running)"}
        with open(tmp_path / f"rank{rank}.jsonl", "a") as file:
            file.write("\n" + "".join(json.dumps(line) + "\n" for line in ([end] if rank == 1 else [asked, end])))
    found = {finding.id: finding for finding in findings_of(tmp_path)}
    assert found["run.ranks.hang"].title == "the job hangs: rank 1 left early"
    assert found["run.ranks.ended"].title.startswith("rank 1 had ended with exit 0")
    assert found["run.ranks.ended"].fix == ranks_findings.UNEVEN


def test_who_failed_first_is_told(tmp_path: Path) -> None:
    for rank in range(3):
        end: dict[str, Any] = {
            "say": "end",
            "exit": -9 if rank == 1 else 1,
            "at_ns": 10 + (rank != 1),
            "steps": 7,
            "lines": [],
        }
        write(tmp_path, rank, [KIND, GROUP, end])
    finding = finding_of(tmp_path, "run.ranks.ended")
    assert finding.title == "rank 1 ended first, by SIGKILL"
    assert finding.message.startswith(
        "after 7 steps; ranks 0 and 2 failed after it; often the system's out-of-memory killer"
    )


def ended(
    folder: Path, ends: Sequence[tuple[int | None, int, bool]], *, world: int = 3, hosts: bool = False
) -> Finding:
    """What is told of ranks that end so: the status (None: no record of it), the time, whether their error is one of a
    lost peer."""
    for rank, (code, at_ns, lost_peer) in enumerate(ends):
        end: dict[str, Any] = {
            "say": "end",
            "exit": code,
            "at_ns": at_ns,
            "steps": 7,
            "lines": [],
            "lost_peer": lost_peer,
        }
        write(folder, rank, [KIND, GROUP, *([] if code is None else [end])], world=world, hosts=hosts)
    return finding_of(folder, "run.ranks.ended")


def test_what_ranks_raised_is_told_by_class_and_line_and_alike_ones_together(tmp_path: Path) -> None:
    def judged(*raised: Sequence[Any], lost: Sequence[int] = (), codes: Mapping[int, int] | None = None) -> Finding:
        for rank, error in enumerate(raised):
            end = {"say": "end", "exit": (codes or {}).get(rank, 1), "at_ns": 10 + rank, "steps": 7, "lines": []}
            more = {"raised": error or None, "lost_peer": rank in lost}
            write(tmp_path, rank, [KIND, GROUP, end | more], world=len(raised))
        return finding_of(tmp_path, "run.ranks.ended")

    bad = ["ValueError", "bad label 17\nmore", "/job/train.py", 31]
    finding = judged(*[["ValueError", f"bad label {rank}", "/job/train.py", 31] for rank in range(4)])
    assert finding.title == "all 4 ranks raised ValueError at /job/train.py:31"
    assert finding.message == "bad label 0; after 7 steps"
    error = {"type": "ValueError", "message": "bad label 0", "place": "/job/train.py:31"}
    assert finding.evidence == {"raised": [{"ranks": [0, 1, 2, 3], **error}]}
    # The launcher ended the last before it came to its error.
    finding = judged(bad, bad, bad, (), codes={3: -15})
    assert finding.title == "ranks 0–2 raised ValueError at /job/train.py:31"
    assert finding.message == "bad label 17; after 7 steps"
    # One alone, and who was connected with it.
    gone = ["RuntimeError", "Connection closed by peer", "/job/train.py", 40]
    (tmp_path / "rank3.jsonl").unlink()
    finding = judged(gone, bad, gone, lost=(0, 2))
    assert finding.title == "rank 1 ended first, exit 1"
    assert finding.message == (
        "ValueError at /job/train.py:31: bad label 17; after 7 steps; ranks 0 and 2 failed after it; ranks 0 and 2 "
        "raised RuntimeError at /job/train.py:40"
    )
    assert [error["ranks"] for error in finding.evidence["raised"]] == [[0, 2], [1]] and finding.evidence["rank"] == 1
    # A handler of the program's, which exits as shells say it.
    assert judged((), bad, codes={0: 143}).title == "rank 0 ended first, exit 143 (SIGTERM)"


def test_a_rank_whose_error_says_that_another_was_gone_is_not_the_first(tmp_path: Path) -> None:
    # The other is on a host without a common folder, or was killed with the gpucheck that watched it.
    finding = ended(tmp_path, [(1, 10, True), (1, 11, True)], world=4)
    assert finding.title == "ranks 0 and 1 failed"
    assert finding.message == "after 7 steps; there is no record of how ranks 2 and 3 ended"
    assert ended(tmp_path, [(1, 10, True), (-15, 12, False), (None, 0, False)]).message.endswith(
        "there is no record of how rank 2 ended"
    )
    # Its own end took longer than theirs.
    assert ended(tmp_path, [(1, 10, True), (1, 12, False), (-15, 11, False)]).title == "rank 1 ended first, exit 1"
    # No clock in common is needed where one alone failed by itself.
    assert (
        ended(tmp_path, [(1, 10, True), (1, 12, False), (1, 9, True)], hosts=True).title == "rank 1 ended first, exit 1"
    )
    # The launcher's signal is a cause where it came first.
    assert ended(tmp_path, [(1, 10, True), (-15, 9, False), (0, 8, False)]).title == "rank 1 ended first, by SIGTERM"
    assert ended(tmp_path, [(1, 10, True), (1, 11, True), (1, 12, True)]).title == "rank 0 ended first, exit 1"


def test_an_error_of_the_programs_own_connection_is_none_of_a_lost_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others, which NCCL's watchdog aborts a moment later, were blamed for it."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)

    def first(kind: str, said: str) -> str:
        for rank in range(2):
            write(tmp_path, rank, [KIND, GROUP], world=2)
        for rank, error in ((0, RunError(kind, said, None, None, None)), (1, None)):
            job = ranks.Job(rank, 2, tmp_path, is_kept=True, hang_after_s=None, ends=False, has_hosts=False)
            with open(job.path, "a") as file:
                file.write("\n")
            job.ended(-6 if error is None else 1, replace(COUNTED, error=error))
        return next(finding.title for finding in findings_of(tmp_path) if finding.id == "run.ranks.ended")

    assert first("ConnectionResetError", "[Errno 104] Connection reset by peer") == "rank 0 ended first, exit 1"
    assert first("RuntimeError", "s3: Connection reset by peer: shard-17.tar") == "rank 0 ended first, exit 1"
    gone = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
    for kind in ("RuntimeError", "DistBackendError"):
        assert first(kind, gone) == "rank 1 ended first, by SIGABRT"
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL gloo's words stand on a line of their own.
    detail = f"Rank 1 successfully reached monitoredBarrier, but received errors\n Original exception: \n{gone}"
    assert first("RuntimeError", detail) == "rank 1 ended first, by SIGABRT"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_ended_as_a_whole_blames_no_rank(tmp_path: Path, number: int) -> None:
    """Ctrl-C, scancel: each rank gets the signal, and one of them is the first to end."""
    at_once = [(-number, rank * 300 * MS, False) for rank in range(3)]
    finding = ended(tmp_path, at_once)
    assert finding.title == f"ranks 0–2 were ended by {signal.Signals(number).name}"
    assert finding.evidence == {}
    # A launcher ends the others once one has ended, and what ended one alone is told.
    later = [(-number, 0, False), *((-number, rank * 1000 * MS, False) for rank in (2, 3))]
    assert ended(tmp_path, later).title.startswith("rank 0 ended first, by ")
    # Of one that was killed with its gpucheck nothing is left, and the launcher ends the others.
    killed = ended(tmp_path, [*at_once[:2], (None, 0, False)])
    assert killed.title == f"ranks 0 and 1 were ended by {signal.Signals(number).name}"
    assert (killed.message, killed.evidence) == ("after 7 steps; there is no record of how rank 2 ended", {})


def test_a_damaged_line_is_left_out_as_one_that_is_cut_off(tmp_path: Path) -> None:
    good: list[dict[str, Any]] = [KIND, GROUP, {"say": "calls", "lost": 0, "p2p": 0, "rows": [[0, 1, MS]]}]
    damaged: list[dict[str, Any]] = [
        {"say": "rank", "world": 10**18, "hosts": False, "at_ns": 0, "host": "n", "local_rank": ""},
        KIND | {"kind": 1, "sizes": 5},
        KIND | {"kind": 2, "name": [], "dtypes": [[]]},
        {"say": "calls", "lost": 0, "p2p": 0, "rows": [[1, 2, MS], [0, "3", MS], [0, [], MS]]},
        {"say": "clock", "at_ns": 1, "offset_ns": 10**400, "error_ns": 1e300},
        {"say": "pending", "hang": True, "rows": [[0, "x"]]},
    ]
    for rank in range(2):
        write(tmp_path, rank, [*good, *(damaged if rank else [])], world=2)
    (tmp_path / "hang").write_text("1 inf", encoding="ascii")
    result = rank_files.result(tmp_path)
    assert [finding.id for finding in ranks_findings.findings(result)] == ["run.ranks.straggler"]
    assert result.world == 10**6


def test_a_file_of_a_start_before_this_one_blames_nobody(tmp_path: Path) -> None:
    """A job with the same port, number of ranks and name; rank 2 has not written since."""
    for rank in range(3):
        lines = steps_of(rank, -1)
        if rank == 2:
            lines[-1] |= {"exit": 1, "at_ns": 9 * MS}
        write(tmp_path, rank, lines, more={"at_ns": 0 if rank == 2 else 10 * MS})
    result = rank_files.result(tmp_path)
    assert ([each.rank for each in result.ranks], result.world) == ([0, 1], 3)
    assert [finding.id for finding in ranks_findings.findings(result)] == ["run.ranks.straggler"]


def test_who_failed_first_is_unknown_where_the_clocks_of_hosts_were_not_compared(tmp_path: Path) -> None:
    for rank in range(3):
        end: dict[str, Any] = {"say": "end", "exit": rank > 0, "at_ns": 10 + rank, "steps": 7, "lines": []}
        write(tmp_path, rank, [KIND, GROUP, end], hosts=True)
    finding = finding_of(tmp_path, "run.ranks.ended")
    unknown = "after 7 steps; which rank was first is unknown: the clocks of the hosts could not be compared"
    assert (finding.title, finding.message, finding.evidence) == ("ranks 1 and 2 failed", unknown, {})


def test_a_rank_that_ended_well_but_too_early_is_why_the_others_fail(tmp_path: Path) -> None:
    def judged(calls: int, *, is_complete: bool, done: int = 79, code: int = 1, lost_peer: bool = False) -> str:
        for rank in range(3):
            lines = steps_of(rank, -1)
            if rank == 1:
                lines[2]["rows"], lines[3]["rows"] = lines[2]["rows"][:calls], lines[3]["rows"][:done]
            has_left = rank == 1
            lines[-1] |= {
                "exit": 0 if has_left else code,
                "at_ns": 10**10 + has_left,
                "steps": done if has_left else 80,
                "lost_peer": lost_peer and not has_left,
            }
            answer: dict[str, Any] = {"say": "pending", "rows": []}
            write(tmp_path, rank, [*lines, *([answer] if is_complete else [])])
        (finding,) = (each for each in findings_of(tmp_path) if each.id == "run.ranks.ended")
        assert ("drop_last" in (finding.fix or "")) == finding.title.startswith("rank 1 ")
        return f"{finding.title}: {finding.message}"

    early = "rank 1 had ended with exit 0 while the others still made collectives: after 79 steps"
    assert judged(79, is_complete=True) == early + "; ranks 0 and 2 probably failed because of it"
    assert judged(79, is_complete=True, code=-6).startswith(early)
    # What it had not handed on is lost: its steps tell.
    assert judged(40, is_complete=False).startswith(early)
    # It made all of them, or a rank was killed.
    assert judged(40, is_complete=False, done=80, lost_peer=True).startswith(early.replace("79", "80"))
    others = "ended first, exit 1: after 80 steps; rank 2 failed after it"
    assert judged(80, is_complete=True) == judged(40, is_complete=False, done=80) == "rank 0 " + others
    assert judged(79, is_complete=True, code=-9).startswith("rank 0 ended first, by SIGKILL")


# -- beside the program ------------------------------------------------------------------------------------------------


def test_a_job_is_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert ranks.job(None, None, ends=False) is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "rank1.jsonl").write_text("of a job before")
    found = ranks.job(str(tmp_path), None, ends=False)
    assert found is not None
    assert found.path == tmp_path / "rank1.jsonl"
    (line,) = found.path.read_text().splitlines()
    assert json.loads(line)["rank"] == 1
    assert found.result() is None
    assert rank_files.is_job(str(tmp_path))


def test_marks_of_a_job_before_are_gone_on_every_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The temporary folder of a host has the name of the job before that had the same master."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    folder = ranks._meeting()
    folder.mkdir(mode=0o700)
    (folder / "hang").write_text("1 5.0")
    found = ranks.job(None, None, ends=True)
    assert found is not None
    found.tick(1, lambda text: None)
    assert (found.asked_at, found.ends_by()) == (None, None)
    # Its two ranks have ended: nobody waits for those of other hosts, and nothing stays behind.
    monkeypatch.setattr("time.sleep", lambda s: pytest.fail("it waits"))
    for rank in (2, 3):
        (folder / f"rank{rank}.jsonl").write_text('{"say": "end"}')
    # Rank 0 reads the folder if another launcher started it here, or if every rank has LOCAL_RANK=0.
    (folder / "rank0.jsonl").write_text("")
    assert (found.result(), folder.exists()) == (None, True)
    assert not ranks._have_all_ended(folder, 2, 4)
    (folder / "rank0.jsonl").unlink()
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert (found.result(), folder.exists()) == (None, True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert found.result() is None
    assert not folder.exists()


def test_the_recorders_size_is_the_users_where_it_was_set() -> None:
    assert ranks.with_flight_recorder({"TORCH_FR_BUFFER_SIZE": "10"}) == {}
    assert list(ranks.with_flight_recorder({}).values()) == ["4096"]


def entry(record: int, number: int, **more: Any) -> dict[str, Any]:
    return {
        "record_id": record,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": number * MS,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "retired": True,
        "timeout_ms": 60_000,
        "is_p2p": False,
        # What is in no file is nobody's: here code that torch.fx made.
        "frames": [
            {"name": "forward", "filename": "<eval_with_key>.3", "line": 5},
            {"name": "step", "filename": "/job/train.py", "line": 9},
        ],
        **more,
    }


def recorder_of(folder: Path, entries: list[dict[str, Any]]) -> recorder.FlightRecorderReader:
    asked: dict[str, Any] = {"path": str(folder / "rank0.jsonl"), "hang_after_s": None, "hosts": False}

    def dump(*, includeCollectives: bool, includeStackTraces: bool, onlyActive: bool) -> bytes:
        return pickle.dumps({"entries": entries})

    return recorder.FlightRecorderReader(asked, dump, memory_peaks.Lines(str(folder), None))


def test_the_recorder_hands_on_what_is_new_and_says_what_was_overwritten(tmp_path: Path) -> None:
    entries = [entry(0, 1), entry(1, 2), entry(2, 3, is_p2p=True)]
    made = recorder_of(tmp_path, entries)
    made.read(stacks=False)
    entries[:] = [entry(5, 6), entry(6, 7, retired=False)]
    made.read(stacks=True)
    lines = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    calls = [line for line in lines if line["say"] == "calls"]
    assert calls[0]["rows"] == [[0, 1, MS], [0, 2, 2 * MS]]
    assert (calls[0]["p2p"], calls[1]["lost"], calls[1]["rows"][0]) == (1, 2, [0, 6, 6 * MS])
    judged = next(line for line in lines if line["say"] == "pending")
    assert judged == {"say": "pending", "hang": False, "rows": [[0, 7]]}
    (tmp_path / "hang").touch()
    made.read(stacks=True)
    assert json.loads((tmp_path / "rank0.jsonl").read_text().splitlines()[-2])["hang"] is True
    assert next(line["rows"][0] for line in lines if line["say"] == "lines") == [0, 6, "/job/train.py", 9, False]
    assert made.timeout_s == 60


def test_sends_and_receives_are_counted_by_peer_and_their_waits_timed() -> None:
    class Work:
        def wait(self) -> bool:
            time.sleep(0.002)
            return True

        def is_completed(self) -> bool:
            return True

        get_future = is_completed

    class Group:
        group_name = "0"

        def send(self, tensors: list[Any], peer: int, tag: int) -> Work:
            return Work()

        recv = send

        def recv_anysource(self, tensors: list[Any], tag: int) -> Work:
            return Work()

    plain = Work.wait
    made, group = recorder.Exchanges(), Group()
    made.install(types.SimpleNamespace(ProcessGroup=Group, Work=Work))
    assert Work.wait is plain  # a job without sends and receives pays nothing
    Work().wait()
    for _ in range(2):
        assert group.send([], 1, 0).wait() and group.recv([], 2, 0).wait()
    group.recv_anysource([], 0).wait()
    group.send([], 1, 0)  # nobody waits for it: what is sent costs the sender nothing
    judged = made.totals()
    assert sorted(judged["peers"]) == [[-1, 0, 1], [1, 3, 0], [2, 0, 2]]
    assert (judged["hidden"], judged["waited"]) == (0, 0)
    assert made.p2p_ns == made.blocked_ns > 0
    # A collective's wait is one for other ranks too.
    Work().wait()
    judged = made.totals()
    assert (judged["waited"], made.blocked_ns > made.p2p_ns) == (1, True)
    # Asked again and again, in another thread, and never: how long it was waited for is not known.
    asked = group.recv([], 1, 0)
    assert asked.is_completed()
    elsewhere = group.recv([], 1, 0)
    thread = threading.Thread(target=elsewhere.wait)
    thread.start()
    thread.join()
    group.recv([], 1, 0)
    assert made.totals()["hidden"] == 3


# -- real --------------------------------------------------------------------------------------------------------------


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_ranks", ROOT / "benchmarks" / "ranks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_made_tables_are_judged_as_the_bounds_ask() -> None:
    assert benchmark().tables(120, 5)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun with signals, as on clusters")
@pytest.mark.parametrize("fault", ["data", "skipped", "killed", "stopped", "shapes", "sound"])
def test_real_jobs(fault: str, request: pytest.FixtureRequest) -> None:
    """The launcher, its ranks and their programs are forks of one process, but for one job."""
    made = benchmark()
    python = made.started if fault == "stopped" else request.getfixturevalue("preloaded").python
    document = made.job(fault, (1,), 0.04, world=3, steps=70, step_s=0.05, python=python)
    is_right, said = made.right(fault, document)
    assert is_right, said or document["screen"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun with signals, as on clusters")
def test_a_real_pipeline(request: pytest.FixtureRequest) -> None:
    """Two stages in the order 1F1B, of which the second sleeps 24 ms longer in a step."""
    made = benchmark()
    arguments = ["stage", "70", "0.024", "1f1b", "1", "1"]
    document = made.launched(made.PIPELINE, arguments, 2, None, request.getfixturevalue("preloaded").python)
    result = document["results"]["ranks"]
    assert (result["outcome"], result["late"], result["busiest"]) == ("busiest", [], [1]), document["screen"]
