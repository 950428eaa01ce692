"""Collectives: what a rank gives and expects, real processes with one of them in trouble, and the judge."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_scenes import GIB, H200, KIB, MIB, row
from judged import Document, run

from gpucheck import errors
from gpucheck.bench import judge as benches
from gpucheck.bench.collective import COLLECTIVES, PEER_COPY, CollectiveOptions, judge, work
from gpucheck.bench.collective.judge import JUDGE, RankOutcome
from gpucheck.bench.collective.rank import CollectiveWork, Rank
from gpucheck.bench.devices import BenchInputs
from gpucheck.bench.judging import DeviceRows
from gpucheck.cli.app import main
from gpucheck.config import Limit
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import child
from gpucheck.machine.accel import open_device
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.launcher import Rendezvous
from gpucheck.report.facts import Device, Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement

CPU = torch.device("cpu")


# what a rank gives, and what it expects


def exchanged(collective: str, ranks: list[CollectiveWork]) -> None:
    """What the collective does, written by its definition."""
    given, world = [one.input.clone() for one in ranks], len(ranks)
    part = ranks[0].count // world
    for rank, one in enumerate(ranks):
        if collective == "all-reduce":
            one.out.copy_(torch.stack(given).sum(0))
        elif collective == "reduce-scatter":
            one.out.copy_(torch.stack(given).sum(0)[rank * part : (rank + 1) * part])
        elif collective == "all-gather":
            one.out.copy_(torch.cat(given))
        elif collective == "all-to-all":
            one.out.copy_(torch.cat([array[rank * part : (rank + 1) * part] for array in given]))
        elif collective == "broadcast":
            one.out.copy_(given[0])
        elif collective == "send-receive":
            one.out.copy_(given[rank - 1])
        else:
            one.call()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_takes_the_collective_as_it_is_defined_for_right(collective: str) -> None:
    ranks = [CollectiveWork(collective, rank, 3, 3 * 600, CPU, CPU) for rank in range(3)]
    for turn in (1, 2):
        for one in ranks:
            one.fill(turn)
        assert all(one.wrong(turn) for one in ranks if (collective, one.rank) != ("broadcast", 0))
        exchanged(collective, ranks)
        assert [one.wrong(turn) for one in ranks] == [0, 0, 0]
        # What was right the turn before is not right now.
        assert all(one.wrong(turn + 1) == one.out.numel() for one in ranks)


@pytest.mark.parametrize("largest", [0.0, math.nan, math.inf])
def test_a_wrong_maximum_of_the_ranks_times_is_no_length_of_a_window(
    monkeypatch: pytest.MonkeyPatch, largest: float
) -> None:
    """A rank that divides by it ends with ZeroDivisionError, and its error names nothing of the device."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda figure, operation: figure.fill_(largest))
    one = object.__new__(Rank)
    one.accel = open_device("cpu")
    with pytest.raises(CannotLook, match="all-reduce computes wrongly"):
        one.slowest(0.5)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda figure, operation: None)
    assert one.slowest(0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_wrong_element_is_counted(collective: str) -> None:
    ranks = [CollectiveWork(collective, rank, 3, 3 * 600, CPU, CPU) for rank in range(3)]
    for one in ranks:
        one.fill(1)
    exchanged(collective, ranks)
    ranks[1].out[-1] += 1
    assert [one.wrong(1) for one in ranks] == [0, 1, 0]
    # Data from another place, by a power of two as addresses go wrong, is wrong too.
    ranks[0].out[:256] = ranks[0].out[256:512].clone()
    assert ranks[0].wrong(1) == 256


# real processes on the host


def start(bad: int, fault: str, at: int = 1) -> work.StartRank:
    """Starts the ranks, one of them with a fault."""

    def started(rank: int) -> LineChild:
        if rank == bad and fault == "unstarted":
            raise OSError(11, "Resource temporarily unavailable")
        environment = work._environment(os.environ)
        if rank != bad:
            return LineChild(python_argv("gpucheck.bench.collective.rank"), env=environment)
        fakes = str(Path(__file__).parents[1] / "fakes")
        more = {"FAULT": fault, "AT": str(at), "PYTHONPATH": fakes}
        return LineChild(python_argv("bad_rank"), env={**environment, **more})

    return started


def measured(options: CollectiveOptions, start: work.StartRank = work.start) -> Document:
    document = Document("bench collective")
    work.command(options, document, start=start)
    return document


def options(**more: Any) -> CollectiveOptions:
    given = {"only": ("all-reduce", "all-to-all"), "sizes": (64 * KIB, 128 * KIB), "ranks": 3, "device": "cpu"}
    return CollectiveOptions(**{**given, "limit_s": 60.0, "time_budget_s": 300.0, **more})


def verdicts(findings: Any) -> list[tuple[str, str, str]]:
    return [(one.id, one.verdict, one.title) for one in findings]


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at how fast a row was: one of a few windows is as good."""
    monkeypatch.setattr(work, "MOST_S", work.LEAST_S)


@pytest.mark.slow
@pytest.mark.usefixtures("short_rows")
def test_processes_on_the_host_are_measured_and_no_rate_is_judged() -> None:
    document = measured(options(only=(), sizes=(8, 3 * 512)))
    rows = document.measurements
    names = [name for name in COLLECTIVES if name != PEER_COPY]
    assert list(dict.fromkeys(one.case["collective"] for one in rows)) == names
    assert [one.case["size_bytes"] for one in rows[:4]] == [8, 1536, 12, 1536]
    for one in rows:
        assert one.case["ranks"] == 3 and one.case["backend"] == "gloo"
        ranks = one.method.details["ranks"]
        assert [(each["rank"], each["wrong_elements"]) for each in ranks] == [(0, 0), (1, 0), (2, 0)]
        # The row's time is that of the last rank, window by window.
        assert one.runs[0].samples_s == tuple(
            max(window) for window in zip(*(r["samples_s"] for r in ranks), strict=True)
        )
        assert one.rate is not None and one.time_s is not None
        factor = COLLECTIVES[one.case["collective"]].factor(3)
        assert one.rate.median == pytest.approx(one.case["size_bytes"] * factor / one.time_s.median)
    report = document.judged((Limit("collective.min_busbw", 1.0, "B/s", "--min-busbw"),))
    # What is noisy on this machine stands behind.
    assert [(one.id, one.verdict) for one in report.findings[:3]] == [
        ("collective.min_busbw", "inconclusive"),
        ("collective.result", "pass"),
        ("collective.speed", "info"),
    ]
    assert report.findings[2].evidence["transport"] == "host"


@pytest.mark.slow
@pytest.mark.usefixtures("short_rows", "forked_children")
def test_wrong_data_on_one_rank_fails_and_names_it() -> None:
    report = measured(options(), start(1, "wrong")).judged()
    result = report.findings[0]
    assert (result.id, result.verdict, result.title) == ("collective.result", "fail", "wrong data on rank 1")
    assert result.message == "rank 1 (cpu): 2 elements in all-reduce, 64 KiB"
    assert report.summary.exit == errors.FAILED


@pytest.mark.slow
@pytest.mark.usefixtures("short_rows", "forked_children")
@pytest.mark.parametrize(
    ("fault", "finding", "why"),
    [
        ("SIGKILL", "collective.rank", "rank 1 (cpu): its process was ended by SIGKILL"),
        ("SIGSEGV", "collective.rank", "rank 1 (cpu): its process was ended by SIGSEGV"),
        ("SIGSTOP", "collective.rank", "rank 1 (cpu): its process is stopped (SIGSTOP, or a debugger)"),
        ("raise", "collective.rank", "rank 1 (cpu): NCCL error in: a test, unhandled system error"),
        ("hang", "collective.hang", "every rank entered it, and none finished: "),
    ],
)
def test_after_a_failure_new_processes_go_on_with_the_next_collective(fault: str, finding: str, why: str) -> None:
    # From its fifth call on, so that a rank which hangs or stops has been well: a row has eight at least.
    document = measured(options(limit_s=8.0, sizes=(64 * KIB,)), start(1, fault, at=5))
    told = document.skips[0]
    assert (told.id, told.verdict) == (finding, "inconclusive")
    assert told.message.startswith(why)
    assert {one.case["collective"] for one in document.measurements} >= {"all-to-all"}
    assert document.judged().summary.exit == errors.UNDECIDED


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_rank_that_cannot_be_started_is_named_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "AFTER_A_FAILURE_S", 0.5)  # the others wait for it, and say nothing
    document = measured(options(), start(2, "unstarted"))
    (told,) = document.skips
    assert verdicts([told]) == [("collective.rank", "inconclusive", "the start: rank 2 failed")]
    assert told.message == "rank 2: its process cannot be started (Resource temporarily unavailable)"
    assert document.judged().summary.exit == errors.UNDECIDED


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun, as on clusters")
@pytest.mark.parametrize("missed", [False, True])
def test_under_torchrun_one_rank_reports_and_all_end_alike(missed: bool, tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    given = [
        "bench",
        "collective",
        "--device",
        "cpu",
        "--only",
        "all-reduce",
        "--size",
        "64KiB",
        "--time-budget",
        "60s",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    more = ["--min-busbw", "1"] if missed else []
    command = [*launcher, sys.executable, "-m", "gpucheck", *given, *more, "--output", str(target), "--json", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    source = str(Path(__file__).parents[2] / "src")
    ended = child.run(command, 240.0, env={**environment, "PYTHONPATH": source})
    # torchrun's own status is 1 for any other than 0 of a rank's.
    assert ended.returncode == (1 if missed else 0), ended.stderr
    document = json.loads(ended.stdout)  # one document
    assert document == json.loads(target.read_text(encoding="utf-8"))
    assert document["summary"]["exit"] == (errors.UNDECIDED if missed else errors.OK)
    assert [one["rank"] for one in document["measurements"][0]["method"]["details"]["ranks"]] == [0, 1]
    if missed:
        assert ended.stderr.count("exitcode  : 4") >= 1


def test_a_rank_whose_leader_gives_up_waits_for_nobody() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    silent = lambda rank: LineChild([sys.executable, "-c", "import time; time.sleep(600)"])  # noqa: E731
    leader = work.Meeting(options(), place=Rendezvous(0, 2, 0, "127.0.0.1", port))
    follower = work.Meeting(options(), place=Rendezvous(1, 2, 1, "127.0.0.1", port), start=silent)
    # Interrupted while the ranks start, before it has counted what it asked.
    leader._set("ask/0", {"begin": "cpu", "limit_s": work.START_S})
    codes: list[int] = []
    following = threading.Thread(target=lambda: codes.append(follower.follow()), daemon=True)
    following.start()
    while not follower.children:
        time.sleep(0.01)
    leader.dismiss(errors.COULD_NOT_LOOK)
    following.join(work.START_S / 2)
    assert codes == [errors.COULD_NOT_LOOK]


# who is to blame


READY = [{"device": {"id": f"cuda:{rank}"}, "host": f"n{rank // 2}"} for rank in range(4)]


def blamed(*answers: RankOutcome, kind: str = "cuda") -> Finding:
    return judge.failed("all-reduce, 1 GiB", answers, READY, kind)


def test_a_rank_that_never_entered_is_named_and_where_all_entered_none() -> None:
    late = [RankOutcome(rank, None, "no answer", "calling", "late") for rank in range(4)]
    one = blamed(*late[:2], RankOutcome(2, None, "no answer", "starting", "late"), late[3])
    assert verdicts([one]) == [("collective.hang", "fail", "all-reduce, 1 GiB hangs: rank 2 failed")]
    assert one.message == "rank 2 (cuda:2, n1): no answer"
    every = blamed(*late)
    assert verdicts([every]) == [("collective.hang", "fail", "all-reduce, 1 GiB hangs")]
    assert every.message == "every rank entered it, and none finished: no answer"
    # On a busy host nothing of it is the hardware's.
    assert blamed(*late, kind="cpu").verdict == "inconclusive"


def test_the_rank_that_died_is_named_and_not_those_that_saw_it() -> None:
    seen = [RankOutcome(rank, None, "Connection closed by peer [10.0.0.1]", "calling") for rank in (0, 1)]
    one = blamed(
        *seen, RankOutcome(2, None, "its process was ended by SIGKILL", "calling", "killed"), RankOutcome(3, {})
    )
    assert (one.verdict, one.message) == ("inconclusive", "rank 2 (cuda:2, n1): its process was ended by SIGKILL")
    crashed = blamed(*seen, RankOutcome(2, None, "its process was ended by SIGSEGV", "calling", "crashed"))
    assert crashed.verdict == "fail"
    spoke = blamed(*seen, RankOutcome(2, None, "unhandled cuda error", "calling"))
    assert (spoke.verdict, spoke.evidence["blamed"]) == ("fail", [2])
    alike = blamed(*(RankOutcome(rank, None, "unhandled cuda error", "joining") for rank in range(2)))
    assert alike.message == "rank 0 (cuda:0, n0), rank 1 (cuda:1, n0): unhandled cuda error"


# the rows of GPUs


def of(
    collective: str = "all-reduce",
    busbw: float = 480e9,
    size: int = 8 * GIB,
    ranks: int = 8,
    device: DeviceRef = H200,
    hosts: int = 1,
    wrong: dict[int, int] | None = None,
    **settings: str,
) -> Measurement:
    factor = COLLECTIVES[collective].factor(ranks)
    case = {"collective": collective, "size_bytes": size, "ranks": ranks, "hosts": hosts, "backend": "nccl"}
    told = [
        {
            "rank": rank,
            "host": f"n{rank * hosts // ranks}",
            "device": f"cuda:{rank}",
            "wrong_elements": (wrong or {}).get(rank, 0),
        }
        for rank in range(ranks)
    ]
    details: dict[str, Any] = {
        "cache": "warm",
        "ranks": told,
        "settings": settings,
        "version": "2.27.5",
        "verified_elements": 10,
        "bus_factor": factor,
    }
    work = size * factor
    return row("collective", device, case, work / busbw, ("bytes", work), "B/s", **details)


def found(*rows: Measurement) -> list[Finding]:
    return JUDGE.together([DeviceRows("cuda:0", rows)], Facts(), ())


def expected(*rows: Measurement) -> list[tuple[str, str]]:
    return [(one.verdict, one.title) for one in found(*rows) if one.id == "collective.expected"]


FAST, SLOW = "all-reduce is as fast as it should be", "all-reduce is slower than it should be"
A100, NVL = DeviceRef("cuda:0", None, "NVIDIA A100-SXM4-80GB"), DeviceRef("cuda:0", None, "NVIDIA H200 NVL")
L40S = DeviceRef("cuda:0", None, "NVIDIA L40S")


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (of(), [("pass", FAST)]),
        (of(busbw=430e9), [("pass", FAST)]),
        (of(busbw=365e9), [("warn", "all-reduce does without NVLS")]),
        (of(busbw=300e9), [("warn", SLOW)]),
        # Who has switched it off gets what he wants.
        (of(busbw=365e9, NCCL_NVLS_ENABLE="0"), [("pass", FAST)]),
        (of(busbw=365e9, NCCL_ALGO="Ring"), [("pass", FAST)]),
        (of(busbw=235e9, device=A100), [("pass", FAST)]),
        # No figure: too small, several hosts, another number of GPUs, a PCIe board, another collective.
        (of(busbw=100e9, size=GIB - 4), []),
        (of(busbw=100e9, hosts=2), []),
        (of(busbw=100e9, ranks=3), []),
        (of(busbw=100e9, device=NVL), []),
        (of("all-to-all", 100e9), []),
    ],
)
def test_the_expected_bus_bandwidth(one: Measurement, told: list[tuple[str, str]]) -> None:
    assert expected(one) == told


def test_a_box_without_a_figure_is_held_against_its_own_copies() -> None:
    copies = of(PEER_COPY, 22e9, device=L40S)
    assert expected(of(busbw=20e9, device=L40S), copies) == [("pass", "all-reduce uses the links as copies do")]
    assert expected(of(busbw=6e9, device=L40S), copies) == [("warn", "all-reduce reaches 27 % of copies")]


def test_wrong_data_fails_and_names_its_ranks() -> None:
    (result, *_) = found(of("all-to-all", ranks=4, wrong={0: 2, 2: 5}), of(ranks=4))
    assert (result.verdict, result.title) == ("fail", "wrong data on ranks 0, 2")
    assert result.message == "rank 0 (cuda:0): 2 elements in all-to-all, 8 GiB; rank 2 (cuda:2): 5 elements in " + (
        "all-to-all, 8 GiB"
    )


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([of(busbw=470e9), of("all-to-all", 100e9)], "pass"),
        ([of(busbw=390e9)], "fail"),
        ([of("all-gather", 470e9), of("all-to-all", 390e9)], "fail"),
        ([of(busbw=10e9, size=64 * MIB)], "inconclusive"),
    ],
)
def test_the_threshold_is_of_all_reduce_where_there_is_one(rows: list[Measurement], verdict: str) -> None:
    limit = Limit("collective.min_busbw", 400e9, "B/s", "--min-busbw")
    assert [one.verdict for one in benches.gated(rows, [limit], H200, {})] == [verdict]


# what can not be


def gpus(count: int) -> Facts:
    cards = tuple(Device(kind="cuda", id=f"cuda:{index}", name="NVIDIA H200") for index in range(count))
    return Facts(devices=(*cards, Device(kind="cpu", id="cpu")), torch=TorchBuild(version="2.9", built_for="cuda"))


def ids(facts: Facts, **more: Any) -> list[str]:
    events: list[Any] = []
    return work._ids(CollectiveOptions(**more), facts, events.append, None)


def test_every_gpu_is_a_rank_or_the_first_ones() -> None:
    assert ids(gpus(3)) == ids(gpus(3), device="cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert ids(gpus(3), ranks=2) == ["cuda:0", "cuda:1"]
    assert ids(gpus(1), device="cpu", ranks=4) == ["cpu"] * 4
    with pytest.raises(CannotLook, match="1 GPU for 2 ranks"):
        ids(gpus(1))
    with pytest.raises(UsageError, match="is one device, and a collective needs several"):
        ids(gpus(3), device="cuda:1")


def test_a_torch_without_nccl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name == "gloo")
    with pytest.raises(CannotLook) as raised:
        run(lambda emit: work.command(CollectiveOptions(), emit, BenchInputs(facts=gpus(2))))
    assert (raised.value.what, raised.value.finding) == ("collective: torch has no NCCL", "collective.backend")
    work._check_backend("cpu")


def test_under_a_launcher_runs_and_ranks_are_the_launchers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert main(["bench", "collective", "--device", "cpu"]) == errors.USAGE
    assert "rank 1 of 2 does not know the host of rank 0" in capsys.readouterr().err
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert main(["bench", "collective", "--device", "cpu", "--runs", "2"]) == errors.USAGE
    assert "--runs and --baseline need one process" in capsys.readouterr().err


class Group:
    """Two ranks that answer as planned."""

    world = 2

    def __init__(self, *answers: dict[str, Any] | str | None, place: Rendezvous | None = None) -> None:
        self.answers, self.place, self.begun = list(answers), place, 0

    def ask(self, request: Any, limit_s: float) -> list[RankOutcome]:
        if "begin" in request:
            self.begun += 1
            ready = {"room": GIB, "device": {"id": "cpu", "uuid": None, "name": "CPU"}, "host": "n"}
            return [RankOutcome(rank, {**ready, "version": None, "settings": {}}) for rank in range(2)]
        line = self.answers.pop(0)
        if isinstance(line, str):  # what the ranks raised
            return [RankOutcome(rank, None, line, "calling") for rank in range(2)]
        return [RankOutcome(rank, line, "" if line else "late", "calling", "" if line else "late") for rank in range(2)]


def line(seconds: float = 0.02) -> dict[str, Any]:
    told = {"started": "", "calls": 1, "began_s": [0.0] * 3, "samples_s": [seconds] * 3, "verified_elements": 1}
    return {**told, "wrong_elements": 0, "memory": {}}


def ran(group: Group, deadline_s: float, sizes: tuple[int, ...] = (64 * KIB, 128 * KIB)) -> tuple[Document, str]:
    document = Document()
    left = time.monotonic() + deadline_s
    run = work._CollectiveRun(options(sizes=sizes), document, group, ["cpu", "cpu"], Facts(), left)  # type: ignore[arg-type]
    return document, run.every_row()


def test_after_a_failure_the_next_row_runs_and_after_two_the_next_collective() -> None:
    rows = ["all-reduce, 128 KiB", "all-to-all, 64 KiB", "all-to-all, 128 KiB"]
    document, why = ran(Group(None, place=Rendezvous(0, 2, 0, "", 0)), 60.0)
    assert (why, [one.id for one in document.skips]) == ("fault", ["collective.hang", "collective.not_run"])
    assert (document.skips[1].evidence["rows"], document.measurements) == (rows, [])
    group = Group(None, line(), line(), line())
    document, why = ran(group, 60.0)
    assert (why, [one.id for one in document.skips], group.begun) == ("fault", ["collective.hang"], 2)
    assert [(one.case["collective"], one.case["size_bytes"]) for one in document.measurements] == [
        ("all-reduce", 128 * KIB),
        ("all-to-all", 64 * KIB),
        ("all-to-all", 128 * KIB),
    ]
    document, _ = ran(Group(None, None, line(), line(), line()), 60.0, (64 * KIB, 128 * KIB, 256 * KIB))
    assert [one.id for one in document.skips] == ["collective.hang", "collective.hang", "collective.not_run"]
    assert document.skips[2].evidence["rows"] == ["all-reduce, 256 KiB"]
    assert [one.case["collective"] for one in document.measurements] == ["all-to-all"] * 3


def test_rows_for_which_there_is_no_time_are_told() -> None:
    document, why = ran(Group(line(), line(), line(), line()), -1.0)
    assert (len(document.measurements), why) == (1, "time")
    # A call of 20 s leaves none for the next size, and time for another collective.
    document, why = ran(Group(line(20.0), line(), line()), 100.0)
    assert [one.case["collective"] for one in document.measurements] == ["all-reduce", "all-to-all", "all-to-all"]
    assert [(one.id, one.title) for one in document.skips] == [("collective.time", "1 of 4 rows were not measured")]
    assert document.skips[0].evidence["rows"] == ["all-reduce, 128 KiB"]


# the screen
