"""Read the files of a job's ranks, and judge them together. Free of torch.

Every rank appends lines of JSON to its own file in a folder that all ranks share. Damaged lines are left out.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import os
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucheck.errors import CannotLook
from gpucheck.program import ranks_judge, stages_judge
from gpucheck.program.ranks_judge import CollectiveCall, JobCalls, JobVerdict
from gpucheck.program.run import judge
from gpucheck.program.run.ranks_findings import names
from gpucheck.report.codec import visible
from gpucheck.report.results.run import Collective, JobHang, JobMismatch, JobRank, PeriodicWork, RankError, RanksResult

MOST_TEXT = 500  # characters of an error's text
MOST_BYTES = 512 * 2**20
# The columns of a step after its end and duration. `blocked` is Python's wait for ranks, `p2p` its part in messages.
_TIMES = ("data", "copies", "waits", "backward", "optimizer", "queued", "blocked", "p2p")
_STEP_AT, _BLOCKED_AT, _P2P_AT = 1, 2 + _TIMES.index("blocked"), 2 + _TIMES.index("p2p")
# The largest drift of a server's clock, and NTP's largest correction without a step, in seconds per second.
DRIFT, SLEW = 50e-6, 500e-6
# Collectives in which every rank waits for the last rank.
_WAITED = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier|all_?to_?all", re.IGNORECASE)
# Collectives to which all ranks must give the same number of elements.
_EQUAL = re.compile(r"all_?reduce|broadcast|_(all_?gather|reduce_?scatter)_base|:reduce$", re.IGNORECASE)
# Errors of a damaged line, such as the last line of a killed process.
_DAMAGED = (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
_FILE = re.compile(r"rank(\d{1,6})\.jsonl")

_Key = tuple[str, int]  # a call: its group and number
_Position = tuple[str, int, bool]  # a line of source: its file, its number, and whether a backward pass ran


@dataclass(slots=True)
class RankRecord:
    rank: int
    world: int = 0
    host: str = ""
    hosts: bool = False
    job: tuple[int, str] = (0, "")  # the start in ns, and the key of the job
    calls: dict[_Key, tuple[int, int]] = field(default_factory=dict)  # each call's kind, and its time in ns
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: list[list[int]] = field(default_factory=list)
    clocks: list[tuple[int, int, int]] = field(default_factory=list)
    pending: set[_Key] | None = None  # unfinished calls at a hang, else at the rank's end; None without an answer
    has_answered: bool = False
    places: dict[_Key, _Position] = field(default_factory=dict)
    of_kind: dict[int, _Position] = field(default_factory=dict)
    lines: list[tuple[str, str, int, float]] = field(default_factory=list)
    frames: list[tuple[str, int]] = field(default_factory=list)
    state: str = ""
    exit: int | None = None
    ended_ns: int | None = None
    lost_peer: bool = False
    raised: RankError | None = None
    done: int = 0
    devices: list[str] | None = None
    lost: int = 0
    p2p: int = 0  # sends and receives of NCCL, which the flight recorder has
    has_counted: bool = False  # whether the rank counted other sends and receives
    peers: dict[int, tuple[int, int]] = field(default_factory=dict)  # these messages by peer; -1 is any peer
    hidden: int = 0  # the number of these messages whose wait was not timed
    waited: int = 0  # the number of collectives that Python waited for
    failed: str = ""
    _latest: dict[str, int] = field(default_factory=dict)  # the latest number of each group

    def key(self, kind: int, number: int) -> _Key:
        return self.kinds[kind]["group"], number

    @property
    def steps_made(self) -> int:
        return max(len(self.steps), self.done)

    @property
    def is_of_nccl(self) -> bool:
        return any(kind["name"].startswith("nccl") for kind in self.kinds.values())

    def take(self, line: dict[str, Any]) -> None:
        """Add a line of the file. Raises one of `_DAMAGED`."""
        match line["say"]:
            case "rank":
                # A damaged file may have any number. No job has more ranks than this limit.
                self.world, self.host = min(int(line["world"]), 10**6), visible(str(line["host"]))
                self.hosts, self.job = bool(line["hosts"]), (int(line["at_ns"]), str(line.get("job", "")))
            case "kind":
                sizes, dtypes = [list(map(int, size)) for size in line["sizes"]], [*map(str, line["dtypes"])]
                operation = {"group": str(line["group"]), "name": visible(str(line["name"]))}
                self.kinds[int(line["kind"])] = {**operation, "sizes": sizes, "dtypes": dtypes}
            case "group":
                self.groups[str(line["name"])] = tuple(map(int, line["ranks"]))
            case "calls":
                self.lost, self.p2p = self.lost + int(line["lost"]), self.p2p + int(line["p2p"])
                for row in line["rows"]:
                    self._call(*map(int, row))
            case "steps":
                rows = ([*map(int, row)] for row in line["rows"])
                self.steps += [row for row in rows if len(row) == 2 + len(_TIMES)]
            case "p2p":
                self.peers = {int(peer): (int(sent), int(received)) for peer, sent, received in line["peers"]}
                self.hidden, self.waited, self.has_counted = int(line["hidden"]), int(line["waited"]), True
            case "clock":
                self.clocks.append((int(line["at_ns"]), int(line["offset_ns"]), int(line["error_ns"])))
            case "pending" if not self.has_answered:
                self.pending = {self.key(kind, int(number)) for kind, number in line["rows"]}
                self.has_answered = bool(line.get("hang"))
            case "lines":
                for kind, number, file, at, back in line["rows"]:
                    place = visible(str(file)), int(at), bool(back)
                    self.places[self.key(kind, int(number))] = self.of_kind[kind] = place
            case "where":
                self.frames = [(visible(str(file)), int(at)) for file, at, _ in line["frames"]]
            case "process":
                self.state = visible(str(line["state"]))
            case "end":
                self._end(line)
            case "failed":
                self.failed = visible(str(line["why"]))

    def _call(self, kind: int, number: int, created_ns: int) -> None:
        group = self.kinds[kind]["group"]
        # If a group is created again, its numbers restart. Only the calls of the last group count.
        if number < self._latest.get(group, 0):
            for calls in (self.calls, self.places):
                for key in [key for key in calls if key[0] == group]:
                    del calls[key]
        self._latest[group] = number
        self.calls[group, number] = kind, created_ns

    def _end(self, line: dict[str, Any]) -> None:
        self.exit, self.ended_ns, self.done = int(line["exit"]), int(line["at_ns"]), int(line["steps"])
        self.lines = [(str(a), visible(str(b)), int(c), float(d)) for a, b, c, d in line["lines"]]
        used = line.get("devices")
        self.devices = None if used is None else [visible(str(device)) for device in used]
        self.lost_peer = bool(line.get("lost_peer"))
        if line.get("raised"):
            kind, text, file, at = line["raised"]
            place = None if file is None else _at(visible(str(file)), int(at))
            self.raised = RankError(type=visible(str(kind)), message=visible(str(text))[:MOST_TEXT], place=place)

    def offset(self, at_ns: int) -> tuple[float, float]:
        """Return the correction of this rank's clock, interpolated between readings, and the error, in seconds."""
        if not self.clocks:
            return 0.0, math.inf if self.hosts else 0.0
        place = bisect.bisect(self.clocks, (at_ns, 0, 0))
        near = self.clocks[max(place - 1, 0) : place + 1]
        (before, low, error), (after, high, other) = near[0], near[-1]
        share = (at_ns - before) / max(after - before, 1)
        # Rank 0's own clock has no error and no drift.
        drift = DRIFT * min(abs(at_ns - before), abs(after - at_ns)) if error or other else 0
        # Between two readings, someone set the clock at an unknown time.
        jump = max(abs(high - low) - error - other - SLEW * (after - before), 0)
        return (low + share * (high - low)) / 1e9, (max(error, other) + drift + jump) / 1e9

    def on_rank_0(self, at_ns: int | None) -> int | None:
        """Convert a time to rank 0's clock. Return None without a common clock."""
        offset_s, error_s = self.offset(at_ns or 0)
        return None if at_ns is None or math.isinf(error_s) else at_ns + int(offset_s * 1e9)


def is_job(path: str) -> bool:
    try:
        return os.path.isdir(path) and any(_FILE.fullmatch(name) for name in os.listdir(path))
    except OSError:
        return False


def _number(text: str) -> float:
    """Parse a number of a line. Raises ValueError for a larger number than any time in nanoseconds."""
    value = int(text) if text.lstrip("-").isdigit() else float(text)
    if not abs(value) < 2**63:
        raise ValueError(text)
    return value


def read(folder: Path) -> list[RankRecord]:
    """Return the files of a folder's newest job, by rank. Raises CannotLook."""
    records = []
    for path in sorted(folder.iterdir()):
        if (match := _FILE.fullmatch(path.name)) is None:
            continue
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise CannotLook(f"{str(path)!r} is not a file of a rank", "a link, or too large")
        record = RankRecord(int(match[1]))
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(*_DAMAGED):
                    record.take(json.loads(line, parse_int=_number, parse_float=_number))
        records.append(record)
    newest = max((record.job for record in records), default=(0, ""))[1]
    ranks = sorted((record for record in records if record.job[1] == newest), key=lambda record: record.rank)
    has_hosts = len({record.host for record in ranks}) > 1
    for record in ranks:
        record.hosts |= has_hosts
    # A call needs all ranks, so a rank with calls that ended before the last rank began belongs to an earlier start.
    begun = max((at for record in ranks if (at := record.on_rank_0(record.job[0])) is not None), default=0)
    ranks = [row for row in ranks if not row.calls or (row.on_rank_0(row.ended_ns) or math.inf) >= begun]
    for name in {name for record in ranks for name in record.groups}:
        # In older torch, split_group() may give several groups one name. Their calls do not count.
        if len({record.groups[name] for record in ranks if name in record.groups}) > 1:
            for record in ranks:
                if name in record.groups:
                    record.calls = {key: call for key, call in record.calls.items() if key[0] != name}
    return ranks


def result(folder: Path) -> RanksResult:
    """Judge the ranks' files. Raises CannotLook."""
    try:
        ranks = read(folder)
    except OSError as error:
        raise CannotLook(f"{str(folder)!r} cannot be read", os.strerror(error.errno or 0)) from error
    world = max([record.world for record in ranks] + [record.rank + 1 for record in ranks], default=0)
    table, positions = _table(ranks)
    # Each rank's time in each step without its waits for other ranks; empty without sends and receives.
    steps = {record.rank: record.steps[ranks_judge.APART : table.steps] for record in ranks}
    has_sends = any(row[_P2P_AT] for rows in steps.values() for row in rows)
    own = {rank: [(r[_STEP_AT] - r[_BLOCKED_AT]) / 1e9 for r in rows] for rank, rows in steps.items() if has_sends}
    verdict = _verdict(ranks, table, own, world)
    means = {record.rank: _means(record) for record in ranks}

    def row(record: RankRecord) -> JobRank:
        rank, mean = record.rank, means[record.rank]
        times: dict[str, Any] = {f"{name}_s": mean.get(name) for name in (*_ACTIVITIES, "backward")}
        return JobRank(
            rank=rank,
            host=record.host,
            device=None if record.devices is None else ", ".join(record.devices) or "cpu",
            steps=record.steps_made,
            late_s=verdict.late_s.get(rank),
            last_share=verdict.shares.get(rank),
            **times,
            own_s=statistics.fmean(own[rank]) if own else None,
            p2p_s=mean.get("p2p") if own else None,
            exit=record.exit,
            lost_peer=record.lost_peer,
            raised=record.raised,
            ended_ns=record.on_rank_0(record.ended_ns),
            state=record.state or None,
            place=_place(record),
            left_early=_has_left_early(record, ranks),
        )

    activity, activity_s, place = _activity(verdict, means, ranks, positions.get(verdict.where or ("", 0)))
    decided = verdict.outcome in ("straggler", "alternating")
    return RanksResult(
        world=world,
        outcome=verdict.outcome,
        reason=verdict.reason,
        arrival="host issue" if any(record.is_of_nccl for record in ranks) else "arrival",
        steps=table.steps,
        step_s=table.step_s or None,
        late=verdict.ranks if decided else (),
        cost_s=verdict.cost_s if decided else None,
        last_share=sum(verdict.shares[rank] for rank in verdict.ranks) if decided and verdict.shares else None,
        busiest=verdict.ranks if verdict.outcome == "busiest" else (),
        since=verdict.since,
        periodic=_periodic(ranks, table, verdict),
        activity=activity,
        activity_s=activity_s,
        place=place,
        ranks=tuple(map(row, ranks)),
        hang=_hang(ranks, world, folder),
        mismatch=_mismatch(ranks),
        not_seen=tuple(_not_seen(ranks, world)),
    )


def _verdict(
    ranks: Sequence[RankRecord], table: JobCalls, own: Mapping[int, Sequence[float]], world: int
) -> JobVerdict:
    """Return the verdict. It is undecided if the records do not show every possible cause of a late rank."""
    verdict = _of_exchanges(ranks, table, own) or ranks_judge.judge(table)
    arrived = len({rank for call in table.calls for rank in call.arrivals})
    done = min((record.steps_made for record in ranks), default=0)
    reason = verdict.reason
    if len(ranks) < world:  # these ranks may wait for a rank that wrote nothing
        reason = f"{len(ranks)} of {world} ranks wrote here"
    elif verdict.ranks and not own and not all(record.has_counted or record.is_of_nccl for record in ranks):
        reason = "sends and receives were not counted on all ranks"  # a late rank may have waited for a message
    elif table.steps < ranks_judge.FEWEST_STEPS <= done:
        reason = f"{table.steps} of {done} steps are recorded: the others were lost with a process"
    elif table.steps < done < ranks_judge.FEWEST_STEPS:
        reason = ranks_judge.too_few(done)
    elif arrived < world and not own and verdict.outcome != "not_decided":
        reason = f"collectives of {arrived} of {world} ranks were seen"
    return verdict if reason == verdict.reason else JobVerdict("not_decided", reason=reason)


def _not_seen(ranks: Sequence[RankRecord], world: int) -> Iterator[str]:
    if missing := sorted(set(range(world)) - {record.rank for record in ranks}):
        yield f"{names(missing)} wrote nothing here: give all ranks one folder with --output DIR/"
    yield from sorted({record.failed for record in ranks if record.failed})
    if lost := sum(record.lost for record in ranks):
        yield f"{lost} collectives that were recorded and overwritten between two readings"
    yield "replays of CUDA graphs, members of coalesced calls, waits in sends and receives of NCCL"


def _table(ranks: Sequence[RankRecord]) -> tuple[JobCalls, dict[_Key, _Position | None]]:
    """Return the arrivals at complete calls, which all ranks of their group made, and each position's line."""
    arrivals: dict[_Key, dict[int, float]] = defaultdict(dict)
    starts = min((created for record in ranks for _, created in record.calls.values()), default=0)
    mean_errors_s: dict[int, float] = {}
    most_s = 0.0
    for record in ranks:
        errors_s: list[float] = []
        for key, (_, created) in record.calls.items():
            offset_s, error_s = record.offset(created)
            arrivals[key][record.rank] = (created - starts) / 1e9 + offset_s
            errors_s.append(error_s)
        # The error depends on the distance to a reading of the clock. Lateness is a mean, so the mean error counts.
        mean_errors_s[record.rank] = statistics.fmean(errors_s or [0.0])
        most_s = max(most_s, *errors_s, 0.0)
    ends = {record.rank: [row[0] for row in record.steps] for record in ranks}
    steps = min((len(record.steps) for record in ranks), default=0)
    by_rank = {record.rank: record for record in ranks}
    callers: dict[str, set[int]] = defaultdict(set)
    for (group, _), times in arrivals.items():
        callers[group] |= times.keys()
    calls: list[CollectiveCall] = []
    positions: dict[_Key, _Position | None] = {}
    counted: Counter[_Key] = Counter()
    for key in sorted(arrivals):
        times = arrivals[key]
        first = by_rank[min(times)]
        expected = set(first.groups.get(key[0], callers[key[0]])) & set(by_rank)
        if len(times) < max(len(expected), 2):
            continue
        kind, created = first.calls[key]
        step = bisect.bisect(ends[first.rank], created)
        if step >= steps:  # under torch's Join, other ranks continue after the last step of a rank
            continue
        # Only the last calls have a recorded line. For an earlier call, the line of another call of the kind counts.
        place = first.places.get(key)
        waits = bool(_WAITED.search(first.kinds[kind]["name"]))
        calls.append(call := CollectiveCall(key[0], step, times, waits, counted[key[0], step]))
        counted[key[0], step] += 1
        if place is not None or step >= ranks_judge.APART:
            positions[call.position] = place or positions.get(call.position, first.of_kind.get(kind))
    durations = [row[_STEP_AT] / 1e9 for record in ranks for row in record.steps[ranks_judge.APART : steps]]
    step_s = statistics.fmean(durations or [0.0])  # a median would ignore a few long steps
    return JobCalls(tuple(record.rank for record in ranks), steps, step_s, calls, mean_errors_s, most_s), positions


def _of_exchanges(
    ranks: Sequence[RankRecord], table: JobCalls, own: Mapping[int, Sequence[float]]
) -> JobVerdict | None:
    """Return the verdict on a job whose ranks send messages to each other; None for other jobs."""
    if any(record.p2p for record in ranks) or (own and any(record.is_of_nccl for record in ranks)):
        return JobVerdict("not_decided", reason="ranks send and receive with NCCL, which records no waits")
    if not own:
        return None
    if reason := _unseen(ranks, table):
        return JobVerdict("not_decided", reason=reason)
    if max(table.clock_error_s.values(), default=0.0) > ranks_judge.LEAST_S:
        return JobVerdict("not_decided", reason="the clocks of the hosts could not be compared well enough")
    callers = {group for record in ranks for group, _ in record.calls}
    groups = {frozenset(members) for record in ranks for name, members in record.groups.items() if name in callers}
    peers = {record.rank: frozenset(record.peers) - {-1} for record in ranks}
    return stages_judge.judge(stages_judge.Pipeline(own, _durations(ranks, table), peers, groups))


def _unseen(ranks: Sequence[RankRecord], table: JobCalls) -> str:
    """Return a text on the waits for other ranks that were not seen; empty if all were seen."""
    made = Counter(rank for call in table.calls if call.step >= ranks_judge.APART for rank in call.arrivals)
    sent = {record.rank: {peer: count for peer, (count, _) in record.peers.items()} for record in ranks}
    for record in ranks:
        if not record.has_counted:
            return f"the sends and receives of rank {record.rank} were not counted"
        if record.exit is None:
            return f"the record of rank {record.rank} has no end"
        if record.hidden:
            how = "in another thread, by asking repeatedly, or never: its own time is unknown"
            return f"rank {record.rank} waited for {record.hidden} of its sends and receives {how}"
        if record.waited < 0.9 * made[record.rank]:
            return f"rank {record.rank} waited for collectives in C++ (as DDP does): its own time is unknown"
        received = {peer: count for peer, (_, count) in record.peers.items()}
        arriving = {rank: counts.get(record.rank, 0) for rank, counts in sent.items()}
        is_equal = all(arriving.get(peer, 0) == received.get(peer, 0) for peer in {*arriving, *received})
        # Messages from any peer (-1) are known only in sum.
        if not is_equal and (-1 not in received or sum(arriving.values()) != sum(received.values())):
            others = f"the others sent it {sum(arriving.values())}"
            return f"rank {record.rank} received {sum(received.values())} messages, and {others}"
    return ""


def _periodic(ranks: Sequence[RankRecord], table: JobCalls, verdict: JobVerdict) -> PeriodicWork | None:
    """Return the work that makes every n-th step longer, if this work takes enough of the job's time."""
    if table.steps < ranks_judge.FEWEST_STEPS:
        return None
    durations = _durations(ranks, table)
    period, whole_s = ranks_judge.period(durations), sum(durations)  # a damaged file may have negative durations
    if period is None or whole_s <= 0:
        return None
    indices, extra_s = period
    every, times, share = indices.step, len(indices), len(indices) * extra_s / whole_s
    if share <= ranks_judge.LEAST_PERIODIC:
        return None
    late = verdict.ranks if verdict.every == every else ()
    return PeriodicWork(every=every, extra_s=extra_s, share=share, times=times, ranks=late)


def _durations(ranks: Sequence[RankRecord], table: JobCalls) -> list[float]:
    """Return the mean seconds over the ranks for each step, without the first steps."""
    rows = [record.steps[ranks_judge.APART : table.steps] for record in ranks]
    return [statistics.fmean(row[_STEP_AT] for row in step) / 1e9 for step in zip(*rows, strict=True)]


def _means(record: RankRecord) -> dict[str, float]:
    """Return a step's mean times in seconds, without the first steps; empty without other steps."""
    columns = [statistics.fmean(column) / 1e9 for column in zip(*record.steps[ranks_judge.APART :], strict=True)][1:]
    if not columns:
        return {}
    means = dict(zip(("step", *_TIMES), columns, strict=True))
    busy = sum(means[name] for name in ("data", "copies", "waits", "backward", "optimizer"))
    return means | {"forward": max(means["step"] - busy, 0.0)}


# An activity that is a part of another comes before the other.
_ACTIVITIES = {
    "data": "DataLoader",
    "copies": "copies to the device",
    "queued": "waiting for a processor",
    "optimizer": "the optimizer's step",
    "forward": "the forward pass and what is around it",
}


def _activity(
    verdict: JobVerdict, means: Mapping[int, Mapping[str, float]], ranks: Sequence[RankRecord], at: _Position | None
) -> tuple[str | None, float | None, str | None]:
    """Return the activity that takes longer on the late rank than on its siblings, the extra seconds, and the line."""
    late = verdict.ranks
    others = [mean for rank, mean in means.items() if rank not in late and mean]
    if late and others and means.get(late[0]):
        for name, text in _ACTIVITIES.items():
            more = means[late[0]][name] - statistics.median(mean[name] for mean in others)
            if more >= verdict.cost_s / 2:
                kinds = {"data": ("data",), "copies": ("to_device", "between")}.get(name, ())
                record = next(record for record in ranks if record.rank == late[0])
                lines = (_at(*line[1:3]) for line in record.lines if line[0] in kinds)
                return text, more, next(lines, None)
        if at is not None:
            what = "the backward pass" if at[2] else "computing before a collective"
            return what, None, _at(*at[:2])
    return None, None, None


def _has_left_early(record: RankRecord, ranks: Sequence[RankRecord]) -> bool:
    """Return whether a rank ended without an error, and another member of a group made more collectives."""
    if record.exit != 0:
        return False
    others = [other for other in ranks if other is not record]
    if record.pending is None:  # the last calls were lost, as in os._exit(), but the steps are known
        return any(other.steps_made + other.lost_peer > record.steps_made for other in others)
    last = dict(sorted(record.calls))  # the largest number of each group
    return any(number > last.get(group, number) for other in others for group, number in other.calls)


def _place(record: RankRecord) -> str | None:
    """Return the line of the innermost frame outside of libraries during a hang."""
    library = r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<"
    return next((_at(file, line) for file, line in record.frames if not re.search(library, file)), None)


def _at(file: str, line: int) -> str:
    return judge.place_text(file, line, os.getcwd())


def _collective(record: RankRecord, key: _Key) -> Collective:
    kind, _ = record.calls[key]
    made = record.kinds[kind]
    place = record.places.get(key) or record.of_kind.get(kind)
    return Collective(
        name=made["name"].partition(":")[2] or made["name"],
        group=key[0],
        number=key[1],
        sizes=visible(f"{made['sizes']} {'/'.join(made['dtypes'])}".strip()),
        place=None if place is None else _at(*place[:2]),
    )


def _mismatch(ranks: Sequence[RankRecord]) -> JobMismatch | None:
    for key in sorted({key for record in ranks for key in record.calls}, key=lambda key: (key[1], key[0])):
        made = {record.rank: _signature(record.kinds[record.calls[key][0]]) for record in ranks if key in record.calls}
        if len(set(made.values())) < 2:
            continue
        # Two calls that equally many ranks make have no majority. The lower rank's call then comes first.
        (usual, most), (second, next_most) = Counter(made.values()).most_common(2)
        if most == next_most:
            usual = second
        by_rank = {record.rank: record for record in ranks}
        odd = tuple(rank for rank, signature in made.items() if signature != usual)
        other = next(rank for rank, signature in made.items() if signature == usual)
        return JobMismatch(
            ranks=odd if most > next_most else tuple(made),
            call=_collective(by_rank[odd[0]], key),
            expected=_collective(by_rank[other], key),
            has_majority=most > next_most,
        )
    return None


def _signature(kind: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that all ranks must share: the operation and, for some operations, elements and dtypes."""
    name = kind["name"]
    return (name, *kind["dtypes"], *map(math.prod, kind["sizes"])) if _EQUAL.search(name) else (name,)


def _hang(ranks: Sequence[RankRecord], world: int, folder: Path) -> JobHang | None:
    """Return the call that ranks waited for, if a rank has marked a hang."""
    try:
        at_ns, waited = (folder / "hang").read_text(encoding="ascii").split()
        marked_ns, waited_s = int(at_ns), float(waited)
        round(waited_s)  # neither infinite nor NaN
    except (OSError, ValueError, OverflowError):
        return None
    first: dict[_Key, tuple[float, int]] = {}
    for record in ranks:
        for key in (record.pending or set()) & record.calls.keys():
            created = record.calls[key][1]
            first[key] = min(first.get(key, (math.inf, 0)), (created / 1e9 + record.offset(created)[0], record.rank))
    if not first:
        return None
    by_rank = {record.rank: record for record in ranks}
    # A rank that does not answer may be in the call: Python is blocked, the rank died, or its file is elsewhere.
    known = {
        row.rank
        for row in ranks
        if row.pending is not None or (row.exit is not None and row.exit >= 0) or row.state[:1] in ("T", "t")
    }
    members = {key: set(by_rank[rank].groups.get(key[0], range(world))) for key, (_, rank) in first.items()}
    came = {key: {row.rank for row in ranks if key in row.calls and row.calls[key][1] <= marked_ns} for key in first}
    inside = {key: came[key] & members[key] for key in first}
    # A rank that waits in a call is missing from other calls only because other ranks are missing from that call.
    waiting = {row.rank for row in ranks for key in row.pending or () if key in first and inside[key] != members[key]}
    absent = {key: (members[key] - inside[key]) & known for key in first}
    key = min(first, key=lambda key: (len(absent[key] & waiting), first[key]))
    # The call finished if a rank continued after the call, or if all ranks ended without an error.
    later = (call for row in ranks for call in row.calls.items() if call[0][0] == key[0])
    resumed = all(row.exit == 0 for row in ranks if row.rank in members[key])
    resumed = resumed or any(number > key[1] and created > marked_ns for (_, number), (_, created) in later)
    return JobHang(
        call=_collective(by_rank[first[key][1]], key),
        waited_s=waited_s,
        at_ns=marked_ns,
        inside=tuple(sorted(inside[key])),
        missing=tuple(sorted(absent[key])),
        unknown=tuple(sorted(members[key] - inside[key] - known)),
        waiting=tuple(sorted(absent[key] & waiting)),
        resumed=resumed,
    )
