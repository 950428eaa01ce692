"""The findings of a job's ranks, and the words for its ranks and calls. Pure."""

from __future__ import annotations

import dataclasses
import re
import signal
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gpucheck import units
from gpucheck.program.run import judge
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.results.run import Collective, JobHang, JobRank, RankError, RanksResult

# Two ticks of the recorder's thread, and its reading.
FLUSH_S = 1.5
# Between a rank's last collective and the end of its process torch and Python clean up.
LEFT_NS = 5 * 10**9
# Signals by which a user or a scheduler ends a job, and a launcher the ranks that are left.
_FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
UNEVEN = "give all ranks equally many batches (DistributedSampler, drop_last=True), or use torch's Join context"
# GPUs of one part differ by a few percent in the clock that they reach with the same power.
SLOW_CLOCK = 0.95
# Collectives without a root and unequal parts, which are not recorded: all ranks in one are in the same call.
_ALIKE = re.compile(r"all_?reduce|barrier|_(all_?gather|reduce_?scatter)_base", re.IGNORECASE)


def findings(found: RanksResult) -> list[Finding]:
    """The findings, the worst first."""
    worst = filter(None, (_of_mismatch(found), _of_hang(found), _of_end(found)))
    return [*worst, _of_ranks(found)]


def names(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 5`, `ranks 0–3`."""
    listed = sorted(ranks)
    if not listed:
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


def _of_mismatch(found: RanksResult) -> Finding | None:
    seen = found.mismatch
    if seen is None:
        return None
    title = f"{names(seen.ranks)}{' and the others' * seen.has_majority} make different calls"
    who, one = names(seen.ranks) if seen.has_majority else "some", "makes" if len(seen.ranks) == 1 else "make"
    others = "others"
    if len(seen.ranks) == 2 and not seen.has_majority:
        (who, others), one = (f"rank {rank}" for rank in seen.ranks), "makes"
    made = f"{who} {one} {_call(seen.call)}, {others} {_call(seen.expected)}"
    message = f"call {seen.call.number} of group {seen.call.group}: {made}"
    fix = "make the same collectives in the same order on all ranks: a branch may depend on the rank or its data"
    return Finding("run.ranks.mismatch", "fail", title, message, {"ranks": list(seen.ranks)}, fix)


def _of_hang(found: RanksResult) -> Finding | None:
    seen = found.hang
    if seen is None:
        return None
    rows = {one.rank: one for one in found.ranks}
    other = found.mismatch
    # Ranks that make different calls do not all wait in this one.
    is_other = other is not None and (other.call.group, other.call.number) == (seen.call.group, seen.call.number)
    call = f"{'call' if is_other else seen.call.name} number {seen.call.number} of group {seen.call.group}"
    where = f" at {seen.call.place}" if seen.call.place and not is_other else ""
    waits = f"{names(seen.inside)} {'waits' if len(seen.inside) == 1 else 'wait'} in {call}{where}"
    parts = [f"rank {rank}{_found(rows[rank], seen) or ' has not come to it'}" for rank in seen.missing[:4]]
    if seen.unknown:
        places = [f"rank {rank}{told}" for rank in seen.unknown if rank in rows and (told := _found(rows[rank], seen))]
        parts.append(", ".join((f"{names(seen.unknown)} did not answer", *places[:4])))
    if not parts and other is not None:
        parts.append("the ranks do not make the same calls")
    elif not parts and _ALIKE.search(seen.call.name):
        parts.append("all ranks are in it: the network or the devices, not one rank's program")
    elif not parts:
        parts.append("all ranks are in a call of this name: another root, other sizes or another order are possible")
    message = f"{waits} for {units.duration(seen.waited_s)}; {'; '.join(parts)}"
    evidence = {"missing": list(seen.missing), "inside": list(seen.inside)}
    if seen.resumed:
        title = f"the job waited for {names(seen.missing)}" if seen.missing else "the job waited"
        return Finding("run.ranks.hang", "warn", title, message + "; it went on later", evidence)
    title, fix = f"the job hangs: {names(seen.missing)} missing" if seen.missing else "the job hangs", None
    if seen.waiting and seen.waiting == (*seen.missing, *seen.unknown):
        title = "the job hangs: ranks wait for each other in different collectives"
        fix = "make them in one order on all ranks, whatever their group"
    elif left := [rank for rank in seen.missing if rows[rank].left_early]:
        title, fix = f"the job hangs: {names(left)} left early", UNEVEN
    elif gone := [row for rank in (*seen.missing, *seen.unknown) if (row := rows.get(rank)) and _was_killed(row, seen)]:
        hows = {_how(row.exit or 0) for row in gone}
        title = f"the job hangs: {names(row.rank for row in gone)} {'was' if len(gone) == 1 else 'were'} ended"
        title += f" {hows.pop()}" if len(hows) == 1 else ""
    return Finding("run.ranks.hang", "fail", title, message, evidence, fix)


def _was_killed(row: JobRank, hang: JobHang) -> bool:
    """Return whether a signal had ended a rank before the others were seen to wait."""
    is_before = row.state is None and (row.ended_ns or 0) < (hang.at_ns or 0)
    return row.exit is not None and row.exit < 0 and is_before


def _found(row: JobRank, hang: JobHang) -> str:
    """How a rank was found at a hang; empty where nothing is known."""
    if row.left_early:
        return f" left after {row.steps} step{'s' * (row.steps != 1)} and ended with exit 0"
    if row.rank in hang.waiting:
        return f" waits in another collective{f' at {row.place}' * bool(row.place)}"
    if (row.state or "").startswith(("T", "t")):
        return " is stopped (SIGSTOP or a debugger)"
    place = f" is at {row.place}" if row.place else ""
    if row.exit is None or row.state is not None or (row.exit >= 0 and place):  # it was alive then
        return place
    return f" had ended {'with ' * (row.exit >= 0)}{_how(row.exit)}{place.replace(' is', '', 1)}"


def _how(code: int) -> str:
    """`exit 1`, `exit 143 (SIGTERM)`, `by SIGKILL`."""
    if code < 0:
        return f"by {judge.signal_name(code)}"
    # As shells and handlers of signals say it.
    signalled = f" ({judge.signal_name(128 - code)})" if code - 128 in _FROM_OUTSIDE else ""
    return f"exit {code}{signalled}"


def _of_end(found: RanksResult) -> Finding | None:
    """Who ended first, where the job failed: the others fail because of it."""
    failed = [one for one in found.ranks if one.exit]
    if not failed:
        return None
    failed.sort(key=lambda one: one.ended_ns or 0)
    # A launcher ends the others, and who says that another rank was gone is none of the causes.
    causes = [one for one in failed if not one.lost_peer and (one is failed[0] or one.exit != -signal.SIGTERM)]
    first, *alike = causes or failed
    code = first.exit or 0
    raised = _raised(failed)
    # A rank that has no more batches is missed by those that have: its process may end a moment after theirs.
    left = [one for one in found.ranks if one.left_early and (one.ended_ns or 0) < (first.ended_ns or 0) + LEFT_NS]
    # A rank that waited in the call when it was asked ends by its timeout, or by whoever ended the job that hung.
    # Another signal, as the out-of-memory killer's or a crash's, is a cause of its own.
    waited = not left and first.state is not None and (code > 0 or -code in (signal.SIGABRT, *_FROM_OUTSIDE))
    hang = found.hang
    if hang and not hang.resumed and ((waited and first.rank in hang.inside) or code == -signal.SIGTERM):
        return None
    why = "; often the system's out-of-memory killer: sudo dmesg shows it" if code == -9 else ""
    others = [one.rank for one in failed if one is not first]
    after = f"; {names(others)} failed after it" if others else ""
    what = f"{_error(first.raised)}; " if first.raised else ""
    message = f"{what}after {first.steps} steps{after}{why}"
    title = f"rank {first.rank} ended first, {_how(code)}"
    evidence: dict[str, Any] = {"rank": first.rank}
    # An error that several raise at one line is no one rank's fault.
    same = [one.rank for one in (first, *alike) if first.raised and _kind(one) == _kind(first)]
    gone = set(range(found.world)) - {one.rank for one in found.ranks if one.exit is not None}
    is_signalled = -code in _FROM_OUTSIDE and all(one.lost_peer or one.exit == code for one in failed)
    ends = [one.ended_ns for one in failed if one.exit == code and one.ended_ns is not None]
    if gone and (first.lost_peer or is_signalled):
        how = f"{'were' if others else 'was'} ended {_how(code)}"
        if any(one.lost_peer for one in failed):
            how = "failed because another rank was gone"
        title = f"{names(one.rank for one in failed)} {how}"
        message, evidence = f"after {first.steps} steps; how {names(gone)} ended is in no record", {}
    elif len(same) > 1 and len(same) == len(causes):
        who = f"all {found.world} ranks" if len(same) == found.world > 2 else names(same)
        rest = [rank for rank in others if rank not in same]
        title = f"{who} raised {_error(first.raised, text=False)}"
        message = f"{_first_line(first.raised)}; after {first.steps} steps"
        message += f"; {names(rest)} failed after them" if rest else ""
        evidence = {}
    elif alike and any(one.ended_ns is None for one in (first, *alike)):
        title = f"{names(one.rank for one in (first, *alike))} failed"
        message = f"which of them was first is unknown: the clocks of the hosts could not be compared{why}"
        evidence = {}
    # A launcher ends the others once the first has handed on what it had done.
    elif is_signalled and len(ends) == found.world and max(ends) - min(ends) < FLUSH_S * 1e9:
        title = f"all ranks were ended {_how(code)}"
        message = f"after {first.steps} steps, by a user, the scheduler or --end-on-hang: no rank failed first"
        evidence = {}
    evidence |= {"raised": raised} if raised else {}
    message += _others_raised(raised, first, same)
    if not left or (code < 0 and code != -signal.SIGABRT):  # NCCL's watchdog aborts
        return Finding("run.ranks.ended", "warn", title, message, evidence)
    who, steps = names(one.rank for one in left), min(one.steps for one in left)
    title = f"{who} had ended with exit 0 while the others still made collectives"
    message = f"after {steps} steps; {names([first.rank, *others])} probably failed because of it"
    message += _others_raised(raised, None, ())
    evidence |= {"rank": left[0].rank}
    return Finding("run.ranks.ended", "warn", title, message, evidence, UNEVEN)


def _kind(row: JobRank) -> tuple[str | None, str | None]:
    """The class and line of an error, which tell it from another: its text may name the rank."""
    return (row.raised.type, row.raised.place) if row.raised else (None, None)


def _raised(rows: Sequence[JobRank]) -> list[dict[str, Any]]:
    """The errors of ranks, those alike together, in the order in which they ended."""
    alike: dict[tuple[str | None, str | None], list[JobRank]] = {}
    for row in rows:
        if row.raised is not None:
            alike.setdefault(_kind(row), []).append(row)
    return [
        {"ranks": sorted(one.rank for one in each), **dataclasses.asdict(first.raised)}
        for each in alike.values()
        if (first := each[0]).raised is not None
    ]


def _error(raised: RankError | None, *, text: bool = True) -> str:
    """`ValueError at train.py:31: bad label 17`."""
    if raised is None:
        return ""
    where = f" at {raised.place}" if raised.place else ""
    line = _first_line(raised)
    return f"{raised.type}{where}" + (f": {line}" if text and line else "")


def _first_line(raised: RankError | None) -> str:
    return raised.message.strip().partition("\n")[0] if raised else ""


def _others_raised(raised: Sequence[dict[str, Any]], first: JobRank | None, same: Collection[int]) -> str:
    """The errors of the other ranks, by class and line, as text."""
    told = []
    for each in raised:
        rest = [rank for rank in each["ranks"] if rank not in same and (first is None or rank != first.rank)]
        if rest:
            told.append(f"{names(rest)} raised {each['type']}" + (f" at {each['place']}" if each["place"] else ""))
    return "".join(f"; {one}" for one in told[:4])


def _of_ranks(found: RanksResult) -> Finding:
    verdicts: dict[str, Verdict] = {"straggler": "warn", "alternating": "info", "alike": "pass"}
    verdict = verdicts.get(found.outcome, "inconclusive")
    evidence = {"late": list(found.late), "cost_s": found.cost_s}
    name = "run.ranks.straggler"
    if found.outcome == "not_decided":
        return Finding(name, verdict, "which rank holds up the job is inconclusive", found.reason, evidence)
    step = units.duration(found.step_s or 0.0)
    if found.outcome == "alike":
        counted = f"{found.world} ranks, {found.steps} steps of {step}"
        return Finding(name, verdict, "no rank holds up the job", counted, evidence)
    cost = units.duration(found.cost_s or 0.0)
    # Another rank may be later still.
    among = f"; {len(found.ranks)} of {found.world} ranks wrote here" if len(found.ranks) < found.world else ""
    if found.outcome == "alternating":
        who = f", usually {names(found.late)}" if found.late else ""
        message = f"waiting for the last rank costs {cost} of a step of {step}{who}{among}"
        return Finding(name, verdict, "ranks take turns in being last", message, evidence)
    one = next(row for row in found.ranks if row.rank == found.late[0])
    where = ", ".join(filter(None, (one.device, one.host)))
    who = f"rank {one.rank} ({where})" if len(found.late) == 1 else names(found.late)
    is_last = f"{'is' if len(found.late) == 1 else 'are'} last{' to issue' * (found.arrival == 'host issue')}"
    share = units.percent(found.last_share or 0.0)
    message = f"{who} {is_last} in {share} of steps and cost{'s' * (len(found.late) == 1)} {cost} of a step of {step}"
    if found.activity is not None:
        what = f"{found.activity} at {found.place}" if found.place else found.activity
        if found.activity_s is None:
            message += f"; it is late in {what}"
        else:
            message += f"; before it, {what} takes {units.duration(found.activity_s)} longer than on its siblings"
    message += _slow_clock(one, [row for row in found.ranks if row.rank not in found.late]) + among
    title = f"{names(found.late)} {'holds' if len(found.late) == 1 else 'hold'} up the job"
    return Finding(name, verdict, title, message, evidence)


def _slow_clock(late: JobRank, others: Sequence[JobRank]) -> str:
    """What a late rank's GPU clock is below its siblings', as text."""
    known = [row.sm_clock_hz for row in others if row.sm_clock_hz is not None]
    if late.sm_clock_hz is None or not known or late.sm_clock_hz >= SLOW_CLOCK * (usual := statistics.median(known)):
        return ""
    return f"; its GPU's clock is {late.sm_clock_hz / 1e6:.0f} MHz, its siblings' {usual / 1e6:.0f} MHz"
