"""The command `bench collective`: run a process for each rank, on this machine or under a launcher.

Each process of a launcher starts its rank as a child, and so outlives a rank that hangs. The process of rank 0 sends
requests to all ranks through a store, and reports. The other processes follow and end with the same exit status.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import psutil
import torch.distributed as dist

from gpucheck import errors, units
from gpucheck.bench import devices
from gpucheck.bench.collective import BUDGET_S, COLLECTIVES, CPU_BUDGET_S, DEVICES, PEER_COPY, CollectiveOptions, judge
from gpucheck.bench.collective.judge import RankOutcome
from gpucheck.bench.collective.rank import BACKENDS, size_of
from gpucheck.bench.devices import ALONE, BenchInputs
from gpucheck.errors import CannotLook, GpucheckError, UsageError
from gpucheck.machine import child_protocol, choose, inventory, launcher, watchdog
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Message
from gpucheck.machine.launcher import Rendezvous
from gpucheck.measure import timing
from gpucheck.report.codec import from_json
from gpucheck.report.events import Began, Emit, Finished, Measured, Notice, Progress, Skipped, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import first_line
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Run
from gpucheck.report.report import few
from gpucheck.units import GIB, KIB, MIB

# Rates are published for some of these sizes. The other sizes show where latency stops dominating.
SIZES = (8, 32 * KIB, MIB, 64 * MIB, GIB, 4 * GIB, 16 * GIB)
# Below this size, the time of a call hardly depends on the size.
LATENCY_BYTES = MIB
# On a CPU, a larger call takes a second and shows nothing new.
CPU_MOST = 64 * MIB
# All ranks import torch and open their devices at once. CUDA may have to compile for a new architecture.
START_S = 120.0
# After one rank fails, the other ranks have this long to report an error. A rank may hang in the collective instead.
AFTER_A_FAILURE_S = 5.0
POLL_S = 0.01
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
# The processes of a launcher start within two minutes. Later messages take milliseconds.
MEET_S, LINE_S, LEAVE_S = 300.0, 15.0, 10.0
# Filling, comparing and connecting take about this long for each row.
ROW_S = 0.5
# The shortest and longest time of a row's windows, and its least number of calls, warm-ups and verified calls included.
LEAST_S, MOST_S, CALLS = 0.05, 1.0, 8


# -- the ranks ---------------------------------------------------------------------------------------------------------

# A `StartRank` starts the child process of a rank. Raises OSError.
StartRank = Callable[[int], LineChild]


def start(rank: int) -> LineChild:
    return LineChild(python_argv("gpucheck.bench.collective.rank"), env=_environment(os.environ))


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's environment. Without a launcher, gloo uses `lo`, because the host name may not resolve."""
    is_alone = sys.platform == "linux" and launcher.rendezvous(environment) is None
    return {**({"GLOO_SOCKET_IFNAME": "lo"} if is_alone else {}), **environment}


class Meeting:
    """All ranks of a run, which meet in a store. `local` are the ranks that are children of this process.

    Without a launcher, all ranks are local, on the devices `ids`. Under a launcher, each process has one child, and the
    store has the numbered requests of rank 0 and the answers of all ranks. Raises CannotLook.
    """

    def __init__(
        self,
        options: CollectiveOptions,
        ids: Sequence[str] = (),
        place: Rendezvous | None = None,
        start: StartRank = start,
    ) -> None:
        self.place, self.options, self.start_child = place, options, start
        self.world = place.world if place else len(ids)
        self.local = [place.rank] if place else range(len(ids))
        self.children: dict[int, ChildSession] = {}
        self.unstarted: dict[int, RankOutcome] = {}
        # `number` counts the requests, and `starts` how often the ranks were started.
        self.number = self.starts = 0
        self.checked_at = time.monotonic()
        self.name = f"gpucheck/{place.attempt}" if place else "alone"
        # Without a launcher, the store is in this process, so that the store outlives every rank.
        host, port, is_server = "127.0.0.1", 0, True
        if place:
            host, port, is_server = place.host, place.port, place.rank == 0 and not place.is_kept
        try:
            self.store = dist.TCPStore(host, port, None, is_server, datetime.timedelta(seconds=MEET_S))
        except RuntimeError as error:
            title = f"rank {self.local[0]} cannot meet the others at {host}:{port}"
            fix = "check MASTER_ADDR and MASTER_PORT; a firewall may block the port"
            raise CannotLook(title, first_line(str(error)), fix, finding="collective.start") from error
        self.setup: dict[str, Any] = {
            "devices": list(ids),
            "world": self.world,
            "local_rank": place.local_rank if place else 0,
            "host": host,
            "port": self.store.port,
            "limit_s": START_S,
            "host_share": options.host_share,
        }

    def ask(self, request: Mapping[str, Any], limit_s: float) -> list[RankOutcome]:
        """Return every rank's answer within `limit_s`. The request `begin` starts or restarts the ranks."""
        if self.place is None:
            return self._of_children(request, limit_s)
        number = self.number
        self._set(f"ask/{number}", {**request, "limit_s": limit_s})
        self._answer(request, limit_s)
        until = time.monotonic() + LINE_S
        answers = []
        for rank in range(self.world):
            # The first answers wait until the launcher has started the last process.
            left_s = (MEET_S if number == 0 else 0.0) + max(until - time.monotonic(), 0.1)
            fields = self._get(f"answer/{number}/{rank}", limit_s=left_s)
            answers.append(RankOutcome(**(fields or {"rank": rank, "why": "its host does not answer", "how": "late"})))
        return answers

    def dismiss(self, code: int) -> None:
        """Send the exit status to every process, and wait until each process has read it from the store."""
        with contextlib.suppress(RuntimeError):  # the other processes may be gone
            # The key has no number, because rank 0 may have been interrupted between two numbers.
            self._set("exit", {"exit": code})
            until = time.monotonic() + LEAVE_S
            for rank in range(1, self.world):
                self._get(f"left/{rank}", limit_s=until - time.monotonic())

    def follow(self) -> int:
        """Answer the requests of rank 0 until rank 0 sends an exit status. Return the exit status."""
        limit_s, rank = MEET_S, self.local[0]
        try:
            while True:
                if (request := self._get("exit", f"ask/{self.number}", limit_s=limit_s)) is None:
                    sys.stderr.write(f"gpucheck: rank {rank}: rank 0 does not answer\n")
                    return errors.UNDECIDED
                if "exit" in request:
                    self._set(f"left/{rank}", {})
                    return int(request["exit"])
                self._answer(request, float(request["limit_s"]))
                limit_s = self.options.limit_s + START_S + LINE_S
        except RuntimeError as error:
            sys.stderr.write(f"gpucheck: rank {rank} has lost rank 0: {first_line(str(error))}\n")
            return errors.UNDECIDED
        finally:
            self.stop()

    def _answer(self, request: Mapping[str, Any], limit_s: float) -> None:
        """Pass a request to the rank of this process, and write its answer into the store."""
        (answer,) = self._of_children(request, limit_s)
        self._set(f"answer/{self.number}/{answer.rank}", asdict(answer))
        self.number += 1

    def _is_dismissed(self) -> bool:
        """Return whether rank 0 sent an exit status. The store is checked at most once a second."""
        if self.place is None or self.place.rank == 0 or time.monotonic() - self.checked_at < 1.0:
            return False
        self.checked_at = time.monotonic()
        return bool(self.store.check([f"{self.name}/exit"]))

    def _set(self, key: str, value: Mapping[str, Any]) -> None:
        self.store.set(f"{self.name}/{key}", json.dumps(value))

    def _get(self, *keys: str, limit_s: float) -> dict[str, Any] | None:
        """Return the value of the first of these keys that the store has; None after `limit_s` seconds."""
        names = [f"{self.name}/{key}" for key in keys]
        until = time.monotonic() + limit_s
        while (name := next((name for name in names if self.store.check([name])), None)) is None:
            if time.monotonic() >= until:
                return None
            time.sleep(POLL_S)
        value: dict[str, Any] = json.loads(self.store.get(name))
        return value

    def _of_children(self, request: Mapping[str, Any], limit_s: float) -> list[RankOutcome]:
        """Start the children or forward a request to them. Return their answers."""
        line = request
        if "begin" in request:
            self._start()
            line = {**self.setup, "kind": request["begin"], "prefix": f"{self.name}/{self.starts}"}
        for rank, child in self.children.items():
            with contextlib.suppress(child_protocol.Lost):  # `_answers` reports the loss
                child.send({**line, "rank": rank})
        return self._answers(limit_s)

    def _start(self) -> None:
        self.stop()
        self.starts += 1
        self.unstarted = {}
        for rank in self.local:
            try:
                self.children[rank] = ChildSession(functools.partial(self.start_child, rank))
            except child_protocol.Lost as lost:
                self.unstarted[rank] = RankOutcome(rank, None, lost.ending.in_words, "", lost.ending.how)

    def _answers(self, limit_s: float) -> list[RankOutcome]:
        """Return the answers to the last request. After a failure, the other ranks have AFTER_A_FAILURE_S to answer."""
        answers = dict(self.unstarted)
        steps = dict.fromkeys(self.local, "")
        has_failed = bool(answers)
        until = time.monotonic() + (AFTER_A_FAILURE_S if has_failed else limit_s)
        waiting = [rank for rank in self.local if rank not in answers]
        while waiting and time.monotonic() < until and not self._is_dismissed():
            for rank in waiting:
                try:
                    line = self.children[rank].receive(POLL_S)
                except child_protocol.Lost as lost:
                    answers[rank] = RankOutcome(rank, None, lost.ending.in_words, steps[rank], lost.ending.how)
                else:
                    if line is None:
                        continue
                    steps[rank] = str(line.get("step", steps[rank]))
                    if "error" in line:
                        answers[rank] = RankOutcome(rank, None, str(line["error"]), steps[rank])
                    elif "end" in line:
                        answers[rank] = RankOutcome(rank, line, "", steps[rank])
                if not has_failed:
                    has_failed = rank in answers and answers[rank].line is None
                    until = time.monotonic() + (AFTER_A_FAILURE_S if has_failed else limit_s)
            waiting = [rank for rank in self.local if rank not in answers]
        for rank in waiting:
            why, how = f"its process did not answer within {limit_s:.0f} s", "late"
            with contextlib.suppress(psutil.Error):
                if psutil.Process(self.children[rank].pid).status() in STOPPED:
                    why, how = "its process is stopped (SIGSTOP, or a debugger)", "stopped"
            answers[rank] = RankOutcome(rank, None, why, steps[rank], how)
        return [answers[rank] for rank in self.local]

    def stop(self) -> None:
        while self.children:
            self.children.popitem()[1].stop()


def run_under_launcher(place: Rendezvous, options: CollectiveOptions, report: Callable[[Meeting], int]) -> int:
    """Run one process of a launcher. Rank 0 reports, and the other ranks follow. Return the exit status of all."""
    meeting = Meeting(options, place=place)
    if place.rank:
        return meeting.follow()
    code = errors.BUG
    try:
        code = report(meeting)
    except GpucheckError as error:
        code = error.exit_code
        raise
    finally:
        meeting.dismiss(code)
    return code


# -- the command -------------------------------------------------------------------------------------------------------


def command(
    options: CollectiveOptions,
    emit: Emit,
    shared: BenchInputs = ALONE,
    meeting: Meeting | None = None,
    start: StartRank = start,
) -> None:
    """Measure the collectives among all devices or among the ranks of a launcher. Raises UsageError and CannotLook."""
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    ids = _ids(options, facts, emit, meeting)
    kind, device = ids[0].partition(":")[0], ids[0]
    _check_backend(kind)
    if not shared.is_planned:
        devices.begin(emit, facts, ["collective"], [device], shared)
    budget_s = options.time_budget_s or (CPU_BUDGET_S if kind == "cpu" else BUDGET_S)
    until_s = watchdog.ends_by(budget_s, began) if shared.until_s is None else shared.until_s
    emit(Began("collective", device))
    meeting = meeting or Meeting(options, ids, start=start)
    run = _CollectiveRun(options, emit, meeting, ids, facts, min(began + budget_s, until_s))
    why = "fault"
    try:
        why = run.every_row()
    except watchdog.OutOfTime:
        emit(Skipped(run.unmeasured()))
        why = "time"
    finally:
        meeting.stop()
    emit(Finished("collective", device, why))


def _ids(options: CollectiveOptions, facts: Facts, emit: Emit, meeting: Meeting | None) -> list[str]:
    """Return the device of each rank; under a launcher, only of rank 0. Raises UsageError and CannotLook."""
    if options.device not in DEVICES:
        title = f"--device {options.device!r} is one device, and a collective needs several"
        raise UsageError(title, "", f"give {', '.join(DEVICES)}; CUDA_VISIBLE_DEVICES selects GPUs")
    if meeting is not None:
        if options.ranks is not None:
            title = "--ranks is for processes that gpucheck starts"
            raise UsageError(title, "a launcher has started these", "leave it out")
        return [choose.choose(options.device if options.device != "all" else "auto", facts).ids[0]]
    chosen = choose.choose("cpu" if options.device == "cpu" else "all", facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    if chosen.ids == ("cpu",) and options.device in ("auto", "all", "cpu"):
        return ["cpu"] * (options.ranks or 2)
    kind = chosen.ids[0].partition(":")[0] if options.device in ("auto", "all") else options.device
    ids = [device for device in chosen.ids if device.partition(":")[0] == kind]
    if len(ids) < (options.ranks or 2):
        title = f"{len(ids)} GPU{'s' * (len(ids) != 1)} for {options.ranks or 2} ranks"
        why = "each rank needs its own GPU; on a CPU each rank is a process"
        raise CannotLook(title, why, "gpucheck bench collective --device cpu", finding="collective.ranks")
    return ids[: options.ranks]


def _check_backend(kind: str) -> None:
    """Raise CannotLook if torch cannot connect devices of this kind."""
    if (name := BACKENDS.get(kind)) is not None and dist.is_available() and dist.is_backend_available(name):
        return
    backend = (name or f"backend for {kind}").upper() if name != "gloo" else "gloo"
    why = "this build of torch was made without it" if name else "torch cannot connect devices of this kind"
    fix = "install a build with it (NCCL: the CUDA builds for Linux); --device cpu measures gloo on the host"
    raise CannotLook(f"collective: torch has no {backend}", why, fix, finding="collective.backend")


class _CollectiveRun:
    """The rows of one command: `todo` has all rows, `left` the rows that are not measured yet."""

    def __init__(
        self, options: CollectiveOptions, emit: Emit, group: Meeting, ids: Sequence[str], facts: Facts, deadline: float
    ) -> None:
        self.options, self.emit, self.group, self.deadline = options, emit, group, deadline
        self.id, self.kind = ids[0], ids[0].partition(":")[0]
        self.uuid = next((device.uuid for device in facts.devices if device.id == ids[0]), None)
        self.ready: list[Message] = []
        self.todo: list[tuple[str, int]] = []
        self.left: list[tuple[str, int]] = []

    def every_row(self) -> str:
        """Measure every row. Return the reason for missing rows, as in `Finished`."""
        if not self._begin():
            return "fault"
        self.todo = self._todo()
        self.left = list(self.todo)
        has_ranks, failures, not_run = True, Counter[str](), []
        # Each collective maps to its last size and the time of a call at that size.
        before: dict[str, tuple[int, float]] = {}
        for done, (collective, size) in enumerate(self.todo):
            if not has_ranks or failures[collective] > 1:
                not_run.append((collective, size))
                continue
            left_s = self.deadline - time.monotonic()
            last_size, last_s = before.get(collective, (size, 0.0))
            # The time of a call does not grow below LATENCY_BYTES.
            if done and left_s <= CALLS * last_s * max(size / max(last_size, LATENCY_BYTES), 1.0):
                continue
            self.emit(Progress(judge.named(collective, size), done, len(self.todo)))
            for_s = min(max(left_s / (len(self.todo) - done) - ROW_S, LEAST_S), MOST_S)
            answers = self.group.ask({"collective": collective, "size": size, "for_s": for_s}, self.options.limit_s)
            lines = [answer.line for answer in answers if answer.line is not None]
            self.left.remove((collective, size))
            if len(lines) == self.group.world:
                row = self._row(collective, size, lines)
                self.emit(Measured(row))
                before[collective] = size, row.time_s.median if row.time_s else 0.0
                continue
            failure = judge.failed(judge.named(collective, size), answers, self.ready, self.kind)
            self.emit(Skipped(failure))
            # A collective ends at once if it is unsupported or has too little memory. After another failure, it ends
            # the second time: one failure may concern a single size, but each hang takes the whole limit.
            failures[collective] += 2 if failure.verdict == "skip" else 1
            has_ranks = self.group.place is None and self._begin()
        if not_run:
            self.left = [row for row in self.left if row not in not_run]
            title = f"{len(not_run)} more row{'s' * (len(not_run) != 1)} not run"
            why = "a collective failed before" + ("" if has_ranks else ", and its ranks are gone")
            evidence = {"rows": [judge.named(*row) for row in not_run]}
            self.emit(Skipped(Finding("collective.not_run", "skip", title, why, evidence)))
        if self.left:
            self.emit(Skipped(self.unmeasured()))
        return "fault" if failures else "time" if self.left else ""

    def unmeasured(self) -> Finding:
        """Return the finding for rows that were not measured in time."""
        rows = [judge.named(*row) for row in self.left] if self.todo else self.options.selected
        title = f"{len(rows)} of {len(self.todo) or len(rows)} rows were not measured"
        finding = devices.out_of_time("collective", title, self.id)
        return replace(finding, message=f"out of time: {few(rows)}", evidence={"rows": rows})

    def _begin(self) -> bool:
        self.emit(Progress(f"{self.group.world} ranks start"))
        answers = self.group.ask({"begin": self.kind}, START_S)
        self.ready = [answer.line for answer in answers if answer.line is not None]
        if len(self.ready) < self.group.world:
            self.emit(Skipped(judge.failed("the start", answers, (), self.kind)))
            return False
        return True

    def _todo(self) -> list[tuple[str, int]]:
        """Return the collectives and sizes that fit the rank with the least free memory."""
        room = min(int(line["room"]) for line in self.ready)
        usual = [size for size in SIZES if self.kind != "cpu" or size <= CPU_MOST]
        largest = () if self.kind == "cpu" or room < GIB else (1 << (room.bit_length() - 1),)
        sizes = self.options.sizes or sorted({*usual, *largest})
        if too_large := [size for size in self.options.sizes if size > room]:
            title = f"not enough memory for {', '.join(units.capacity(size) for size in too_large)}"
            why = f"an array may take {units.capacity(room)}: a quarter of what is free"
            self.emit(Skipped(Finding("collective.memory", "skip", title, why, fix="give a smaller --size")))
        has_peers = self.group.place is None and self.kind != "cpu"
        names = [name for name in self.options.selected if name != PEER_COPY or has_peers]
        fitting = [size for size in sizes if size <= room]
        return list(dict.fromkeys((name, size_of(name, size, self.group.world)) for name in names for size in fitting))

    def _row(self, collective: str, size: int, lines: Sequence[Message]) -> Measurement:
        """Return the row of the samples of all ranks. A window ends when its slowest rank is done."""
        first, leader, world = lines[0], self.ready[0], self.group.world
        together = tuple(max(window) for window in zip(*(line["samples_s"] for line in lines), strict=True))
        taken = Run(first["started"], int(first["calls"]), together, tuple(first["began_s"]))
        ranks = [
            {"rank": rank, "host": ready["host"], "device": ready["device"]["id"]}
            | {name: line[name] for name in ("samples_s", "wrong_elements")}
            for rank, (ready, line) in enumerate(zip(self.ready, lines, strict=True))
        ]
        factor = COLLECTIVES[collective].factor(world)
        return timing.row_of(
            "collective",
            DeviceRef(self.id, self.uuid or leader["device"]["uuid"], leader["device"]["name"]),
            timing.Timed(taken, "host", "host", ("few-samples",) if len(together) < timing.WANTED_SAMPLES else ()),
            case={
                "collective": collective,
                "size_bytes": size,
                "ranks": world,
                "hosts": len({line["host"] for line in self.ready}),
                "backend": BACKENDS[self.kind],
            },
            work=("bytes", size * factor, "B/s"),
            memory=from_json(MemoryFigures, first["memory"]),
            cache="warm",
            details={
                "bus_factor": factor,
                "version": leader["version"],
                "settings": leader["settings"],
                "verified_elements": sum(line["verified_elements"] for line in lines),
                "ranks": ranks,
            },
        )
