"""The findings about a job's ranks, and the texts that name ranks and calls. No I/O."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.program import ranks_judge
from gpucheck.program.run import judge
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.results.run import Collective, JobHang, JobRank, RankError, RanksResult

FLUSH_S = 1.5  # two intervals of the recorder's thread, and the time of a read
LEFT_NS = 5 * 10**9  # torch and Python may take this long to clean up after a rank's last collective
# Signals with which a user or a scheduler ends a job, or a launcher ends the remaining ranks.
_FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
UNEVEN = "give all ranks equally many batches (DistributedSampler, drop_last=True), or use torch's Join context"


def findings(job: RanksResult) -> list[Finding]:
    return [*filter(None, (_of_mismatch(job), _of_hang(job), _of_end(job))), _of_lateness(job), *_of_period(job)]


def names(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0, 2 and 5` or `ranks 0–3`."""
    if not (listed := sorted(ranks)):
        return "no rank"
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > 2 and listed[-1] - listed[0] == len(listed) - 1:
        return f"ranks {listed[0]}–{listed[-1]}"
    last = f"{len(listed) - 8} more" if len(listed) > 8 else str(listed.pop())
    return f"ranks {', '.join(map(str, listed[:8]))} and {last}"


def _call(call: Collective) -> str:
    where = f" at {call.place}" if call.place else ""
    return f"{call.name} {call.sizes}{where}"


def _of_mismatch(job: RanksResult) -> Finding | None:
    if (mismatch := job.mismatch) is None:
        return None
    title = f"{names(mismatch.ranks)}{' and the others' * mismatch.has_majority} make different calls"
    who, others = names(mismatch.ranks) if mismatch.has_majority else "some", "others"
    if len(mismatch.ranks) == 2 and not mismatch.has_majority:
        who, others = (f"rank {rank}" for rank in mismatch.ranks)
    made = f"{who} made {_call(mismatch.call)}, {others} {_call(mismatch.expected)}"
    message = f"call {mismatch.call.number} of group {mismatch.call.group}: {made}"
    fix = "make the same collectives in the same order on all ranks: a branch may depend on the rank or its data"
    return Finding("run.ranks.mismatch", "fail", title, message, {"ranks": list(mismatch.ranks)}, fix)


def _of_hang(job: RanksResult) -> Finding | None:
    if (hang := job.hang) is None:
        return None
    rows = {row.rank: row for row in job.ranks}
    mismatch = job.mismatch.call if job.mismatch is not None else None
    # The ranks may make different calls with one number, which then have no common name.
    is_other = mismatch is not None and (mismatch.group, mismatch.number) == (hang.call.group, hang.call.number)
    call = f"{'call' if is_other else hang.call.name} number {hang.call.number} of group {hang.call.group}"
    where = f" at {hang.call.place}" if hang.call.place and not is_other else ""
    waits = f"{names(hang.inside)} {'waits' if len(hang.inside) == 1 else 'wait'} in {call}{where}"
    parts = [f"rank {rank}{_state(rows[rank], hang) or ' has not reached the call'}" for rank in hang.missing[:4]]
    if hang.unknown:
        states = {rank: _state(rows[rank], hang) for rank in hang.unknown if rank in rows}
        places = [f"rank {rank}{state}" for rank, state in states.items() if state]
        parts.append(", ".join((f"{names(hang.unknown)} did not answer", *places[:4])))
    everywhere = "all ranks are in a call of this name: the root, sizes or order may differ, or the network failed"
    parts = parts or [everywhere if mismatch is None else "the ranks make different calls"]
    message = f"{waits} for {units.duration(hang.waited_s)}; {'; '.join(parts)}"
    evidence = {"missing": list(hang.missing), "inside": list(hang.inside)}
    if hang.resumed:
        title = f"the job waited for {names(hang.missing)}" if hang.missing else "the job waited"
        return Finding("run.ranks.hang", "warn", title, message + "; the job continued later", evidence)
    ended = [row for row in job.ranks if row.state is None and (row.ended_ns or 0) < (hang.at_ns or 0)]
    killed = {row.rank for row in ended if (row.exit or 0) < 0}
    why, fix = f": {names(hang.missing)} missing" if hang.missing else "", None
    if hang.waiting and hang.waiting == (*hang.missing, *hang.unknown):
        why = ": ranks wait for each other in different collectives"
        fix = "make the collectives of all groups in the same order on all ranks"
    elif left := [rank for rank in hang.missing if rows[rank].left_early]:
        why, fix = f": {names(left)} left early", UNEVEN
    elif gone := [rank for rank in (*hang.missing, *hang.unknown) if rank in killed]:
        ends = {_how(rows[rank].exit or 0) for rank in gone}
        how = f" {ends.pop()}" if len(ends) == 1 else ""
        why = f": {names(gone)} {'was' if len(gone) == 1 else 'were'} ended{how}"
    return Finding("run.ranks.hang", "fail", f"the job hangs{why}", message, evidence, fix)


def _state(row: JobRank, hang: JobHang) -> str:
    """Return the state of a rank during a hang, or an empty text if it is unknown."""
    if row.left_early:
        return f" left after {row.steps} step{'s' * (row.steps != 1)} and ended with exit 0"
    if row.rank in hang.waiting:
        return f" waits in another collective{f' at {row.place}' * bool(row.place)}"
    if (row.state or "").startswith(("T", "t")):
        return " is stopped (SIGSTOP or a debugger)"
    place = f" at {row.place}" if row.place else ""
    if row.exit is None or row.state is not None or (row.exit >= 0 and place):  # the rank was alive during the hang
        return f" is{place}" if place else ""
    return f" had ended {'with ' * (row.exit >= 0)}{_how(row.exit)}{place}"


def _how(code: int) -> str:
    """Return how a rank ended: `exit 1`, `exit 143 (SIGTERM)` or `by SIGKILL`."""
    if code < 0:
        return f"by {judge.signal_name(code)}"
    # Shells and signal handlers report a signal as 128 plus its number.
    signalled = f" ({judge.signal_name(128 - code)})" if code - 128 in _FROM_OUTSIDE else ""
    return f"exit {code}{signalled}"


def _of_end(job: RanksResult) -> Finding | None:
    if not (failed := sorted((row for row in job.ranks if row.exit), key=lambda row: row.ended_ns or 0)):
        return None
    # Ranks that report a lost peer, or that the launcher ended, are not the cause.
    causes = [row for row in failed if not row.lost_peer and (row is failed[0] or row.exit != -signal.SIGTERM)]
    causes = causes or failed
    first, code, hang = causes[0], causes[0].exit or 0, job.hang
    # A rank without more batches makes the others fail, and may end shortly after them.
    left = [row for row in job.ranks if row.left_early and (row.ended_ns or 0) < (first.ended_ns or 0) + LEFT_NS]
    # A timeout or a signal from outside ended a rank that waited in the hanging call.
    waited = not left and first.state is not None and (code > 0 or -code in (signal.SIGABRT, *_FROM_OUTSIDE))
    if hang and not hang.resumed and ((waited and first.rank in hang.inside) or code == -signal.SIGTERM):
        return None
    raised = _raised(failed)
    evidence: dict[str, Any] = {"raised": raised} if raised else {}
    after, fix = f"after {first.steps} steps", None
    reported: list[int] = []  # ranks whose error is in the title or the message
    others = names(row.rank for row in failed if row is not first)
    # No single rank caused an error that several ranks raise at one line.
    same = [row.rank for row in causes if first.raised and not first.lost_peer and _kind(row) == _kind(first)]
    is_signalled = -code in _FROM_OUTSIDE and all(row.lost_peer or row.exit == code for row in failed)
    if left and (code >= 0 or code == -signal.SIGABRT):  # NCCL's watchdog aborts
        title = f"{names(row.rank for row in left)} had ended with exit 0 while the others still made collectives"
        message = f"after {min(row.steps for row in left)} steps; {names(row.rank for row in failed)} probably failed"
        message, evidence["rank"], fix = f"{message} because of it", left[0].rank, UNEVEN
    elif first.raised and 1 < len(same) == len(causes) and not is_signalled:
        who = f"all {job.world} ranks" if len(same) == job.world > 2 else names(same)
        first_line = first.raised.message.strip().partition("\n")[0]
        title, message = f"{who} raised {_error(first.raised, text=False)}", f"{first_line}; {after}"
        reported = same
    elif why := _unknown_first(job, failed, causes, is_signalled=is_signalled):
        how = f"{'were' if len(failed) > 1 else 'was'} ended {_how(code)}" if is_signalled else "failed"
        title, message = f"{names(row.rank for row in failed)} {how}", f"{after}; {why}"
    else:
        title, evidence["rank"] = f"rank {first.rank} ended first, {_how(code)}", first.rank
        reported = [first.rank]
        message = f"{_error(first.raised)}; {after}" if first.raised else after
        message += f"; {others} failed after it" if len(failed) > 1 else ""
    for error in raised[:4]:
        if ranks := [rank for rank in error["ranks"] if rank not in reported]:
            message += f"; {names(ranks)} raised {error['type']}" + (f" at {error['place']}" if error["place"] else "")
    message += "; often the system's out-of-memory killer: sudo dmesg shows it" if code == -signal.SIGKILL else ""
    return Finding("run.ranks.ended", "warn", title, message, evidence, fix)


def _unknown_first(
    job: RanksResult, failed: Sequence[JobRank], causes: Sequence[JobRank], *, is_signalled: bool
) -> str:
    """Return why it is unknown which rank ended first; empty if the first rank is known."""
    gone = set(range(job.world)) - {row.rank for row in job.ranks if row.exit is not None}
    if gone and (causes[0].lost_peer or is_signalled):
        return f"there is no record of how {names(gone)} ended"
    if len(causes) > 1 and any(row.ended_ns is None for row in causes):
        return "which rank was first is unknown: the clocks of the hosts could not be compared"
    ends = [row.ended_ns or 0 for row in failed if not row.lost_peer]
    # A signal to the whole job ends all ranks within FLUSH_S.
    if is_signalled and len(ends) == job.world and max(ends) - min(ends) < FLUSH_S * 1e9:
        return "by a user, the scheduler or --end-on-hang: no rank failed first"
    return ""


def _kind(row: JobRank) -> tuple[str | None, str | None]:
    """Return an error's class and line. Ranks may raise one error with different texts."""
    return (row.raised.type, row.raised.place) if row.raised else (None, None)


def _raised(rows: Sequence[JobRank]) -> list[dict[str, Any]]:
    """Return the ranks' errors, in the order of the ranks' ends. Errors of the same class and line share an entry."""
    alike: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for row in rows:
        if row.raised is not None:
            error = alike.setdefault(_kind(row), {"ranks": [], **dataclasses.asdict(row.raised)})
            error["ranks"] = sorted([*error["ranks"], row.rank])
    return [*alike.values()]


def _error(raised: RankError, *, text: bool = True) -> str:
    """Return an error in one line: `ValueError at train.py:31: bad label 17`."""
    where = f" at {raised.place}" if raised.place else ""
    line = raised.message.strip().partition("\n")[0] if text else ""
    return f"{raised.type}{where}" + (f": {line}" if line else "")


def _of_lateness(job: RanksResult) -> Finding:
    verdicts: dict[str, Verdict] = {"straggler": "warn", "alternating": "info", "busiest": "info", "alike": "pass"}
    verdict, name = verdicts.get(job.outcome, "inconclusive"), "run.ranks.straggler"
    evidence = {"late": list(job.late), "cost_s": job.cost_s}
    if job.outcome == "not_decided":
        return Finding(name, verdict, "which rank holds up the job is inconclusive", job.reason, evidence)
    step, cost = units.duration(job.step_s or 0.0), units.duration(job.cost_s or 0.0)
    own = {row.rank: row.own_s for row in job.ranks if row.own_s is not None}
    if job.outcome == "alike":
        message = f"{job.world} ranks, {job.steps} steps of {step}"
        if own:
            most = units.duration(max(row.p2p_s or 0.0 for row in job.ranks))
            message += f"; each rank's own work takes {_span(own.values())}, waits in sends and receives up to {most} "
            message += "(the pipeline's order, or a slow link)"
        return Finding(name, verdict, "no rank holds up the job", message, evidence)
    if job.outcome == "busiest" or (own and job.late):
        return _of_stages(job, own, step)
    if job.outcome == "alternating":
        who = f", usually {names(job.late)}" if job.late else ""
        message = f"waiting for the last rank costs {cost} of a step of {step}{who}"
        return Finding(name, verdict, "ranks take turns in being last", message, evidence)
    late, is_one = next(row for row in job.ranks if row.rank == job.late[0]), len(job.late) == 1
    where = ", ".join(filter(None, (late.device, late.host)))
    who = f"rank {late.rank} ({where})" if is_one else names(job.late)
    is_last = f"{'is' if is_one else 'are'} last{' to issue' * (job.arrival == 'host issue')}"
    share = units.percent(job.last_share or 0.0)
    message = f"{who} {is_last} in {share} of steps and cost{'s' * is_one} {cost} of a step of {step}"
    if job.periodic is not None and job.periodic.ranks:
        message += f", in every {ranks_judge.ordinal(job.periodic.every)} step: a checkpoint, an evaluation or logging"
    if job.activity is not None:
        what = f"{job.activity} at {job.place}" if job.place else job.activity
        if job.activity_s is None:
            message += f"; {names(job.late)} {'is' if is_one else 'are'} late in {what}"
        else:
            message += f"; {what} takes {units.duration(job.activity_s)} longer than on its siblings"
    return Finding(name, verdict, f"{names(job.late)} hold{'s' * is_one} up the job", message, evidence)


def _of_period(job: RanksResult) -> Iterator[Finding]:
    if (work := job.periodic) is not None and not work.ranks:
        title = f"every {ranks_judge.ordinal(work.every)} step takes {units.duration(work.extra_s)} longer"
        share = f"{units.percent(work.share)} of the job, seen {work.times} times"
        message, fix = f"{share}: an evaluation, a checkpoint or logging", "do it less often if that is too much"
        yield Finding("run.ranks.periodic", "info", title, message, {"every": work.every, "share": work.share}, fix)


def _of_stages(job: RanksResult, own: Mapping[int, float], step: str) -> Finding:
    chosen = job.busiest or job.late
    evidence = {"late": list(job.late), "busiest": list(job.busiest), "cost_s": job.cost_s}
    who, is_one = names(chosen), len(chosen) == 1
    others = _span(value for rank, value in own.items() if rank not in chosen)
    verb = f"own work takes {_span(own[rank] for rank in chosen)} of a step of {step}"
    cost, its = units.duration(job.cost_s or 0.0), "its" if is_one else "their"
    name, title = "run.ranks.straggler", f"{who} {'is' if is_one else 'are'}"
    if job.since is not None:
        slower = f"from step {job.since} on, a step takes {cost} longer; the own work of the other ranks does not"
        return Finding(name, "warn", f"{title} slower since step {job.since}", f"{verb}; {slower}", evidence)
    if job.late:
        message = f"{verb}, {cost} longer than {its} siblings"
        return Finding(name, "warn", f"{title} slower than {its} siblings of the same stage", message, evidence)
    title += " the busiest stage: more work, or slower"
    return Finding(name, "info", title, f"{verb}, that of the other ranks {others}", evidence)


def _span(seconds: Iterable[float]) -> str:
    """Return a range such as `95 to 100 ms`."""
    low, high = min(known := [*seconds]), max(known)
    low_text, high_text = units.duration(low), units.duration(high)
    return high_text if low_text == high_text else f"{low_text} to {high_text}"
