"""What a search comes to: its result entry, its measurement and its findings. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import AT_ONCE, Result
from gpucheck.batch_size.recipe import in_words, kind_of_size
from gpucheck.batch_size.search import Record, Search
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.units import capacity

# The step of a confirmation is timed a few times only, beside its purpose.
FEW_SAMPLES = 6

# Ends of a trial that say nothing about its size.
UNDECIDED = ("inconclusive", "device-broken")
_AGAIN = "run it again"
_LIMITS = {
    "max-batch-size": "it is --max-batch-size",
    "safety": "larger sizes are predicted above 85 % of the memory, which is dangerous to fill here",
}
# What ends a search without an answer to how much more fits, in words.
_OPEN = {
    "time": "the time budget ended the search",
    "trials": "the bound on trials ended the search",
    "killed": "larger sizes were killed, and not for want of memory: by the program, or by something that watches it",
    "interrupted": "the search was interrupted",
    "inconclusive": "other processes disturbed the search",
    "device-broken": "a larger size left the device unusable",
    "refused": "no further process could be set up",
}


def is_closed(limited_by: str | None) -> bool:
    """Whether it is known that no larger size fits, or none is to be tried; else the best is one that fits at least."""
    return limited_by is not None and limited_by not in _OPEN


@dataclass(frozen=True, slots=True)
class End:
    """How a search ended: what limits it, the largest size predicted, why no process could be set up (None: one could).

    `more_time_s` is a time budget that would do.
    """

    limited_by: str | None
    predicted: int | None = None
    refused: str | None = None
    more_time_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Context:
    """What the whole search is about: the words that its answer needs."""

    target: str
    mode: str
    optimizer: str | None
    dtype: str | None
    device: DeviceRef
    budget: Budget
    method: dict[str, Any]
    parameter_bytes: int | None
    tolerance: float
    axis: str | None = None
    batch_size: int | None = None


def trial_entry(result: Result) -> dict[str, Any]:
    """A trial as the report shows it."""
    return {
        "batch_size": result.size,
        "outcome": result.outcome,
        "reason": result.reason or None,
        "purpose": result.purpose,
        "fresh_process": result.fresh,
        "peak_bytes": result.peak_bytes,
        "compute_peak_bytes": result.compute_peak_bytes,
        "samples_per_s": result.samples_per_s,
        "steps_s": list(result.steps_s),
        "seconds": result.seconds,
        "allocation_retries": result.retries,
        "asked_bytes": result.asked_bytes,
        "reached_bytes": result.reached_bytes,
        "resumed": result.resumed,
    }


def final_result(search: Search, results: list[Result]) -> Result | None:
    """The run of the best size that counts: its confirmation, else its last pass."""
    best = search.best
    if best is None:
        return None
    runs = [r for r in results if r.size == best.size and r.outcome == "fits"]
    return max(runs, key=lambda r: r.purpose == "confirm", default=None)


def entry(
    search: Search,
    results: list[Result],
    context: Context,
    limited_by: str | None,
    default_malloc: Result | None,
    predicted: int | None = None,
) -> dict[str, Any]:
    """`results.find_batch_size` of the report. `predicted` is the largest size that is predicted to fit."""
    closed = is_closed(limited_by)
    best, failing, final = search.best, search.first_failing, final_result(search, results)
    failed = next((r for r in reversed(results) if failing and r.size == failing.size and r.outcome != "fits"), None)
    confirmed = [r for r in results if r.size == (best.size if best else 0) and r.outcome == "fits"]
    return {
        "max_batch_size": best.size if best and closed else None,
        "at_least": best.size if best and not closed else None,
        "predicted_batch_size": predicted,
        "confirmed": search.confirmed,
        "first_failing": failing.size if failing else None,
        "first_failing_outcome": failing.outcome if failing else None,
        "first_failing_reason": failed.reason if failed else None,
        "first_failing_at_once": bool(failed and failed.reason.startswith(AT_ONCE)),
        "predicted_above": search.predicted_above,
        "limited_by": limited_by,
        "peak_bytes": max((r.peak_bytes for r in confirmed if r.peak_bytes is not None), default=None),
        "default_malloc_peak_bytes": default_malloc.peak_bytes if default_malloc else None,
        "budget_bytes": context.budget.bytes,
        "margin_bytes": context.budget.margin_bytes,
        "budget_reason": context.budget.reason,
        "free_bytes": context.budget.free_bytes,
        "total_bytes": context.budget.total_bytes,
        "samples_per_s": final.samples_per_s if final else None,
        "parameter_bytes": context.parameter_bytes,
        "state_bytes": final.state_bytes if final else None,
        "target": context.target,
        "mode": context.mode,
        "optimizer": context.optimizer,
        "loss": final.loss if final else None,
        "dtype": context.dtype,
        # With an axis, every size here is a length along it.
        "axis": {"name": context.axis, "batch_size": context.batch_size} if context.axis else None,
        "device": {"id": context.device.id, "uuid": context.device.uuid, "name": context.device.name},
        "tolerance": context.tolerance,
        "multiple_of": search.multiple_of,
        "start": search.start,
        "method": context.method,
        "trial_count": len(results) + (default_malloc is not None),
        "trials": [trial_entry(r) for r in results] + ([trial_entry(default_malloc)] if default_malloc else []),
    }


def measurement(final: Result, context: Context, started: str) -> Measurement | None:
    """The answer's speed: the steps of its last run after the first, which warms up."""
    steps, starts = final.steps_s[1:], final.started_monotonic_s[1:]
    if not steps:
        return None
    ordered = sorted(steps)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Measurement(
        name="find_batch_size.step",
        device=context.device,
        case={
            **({context.axis: final.size} if context.axis else {}),
            "batch_size": context.batch_size if context.axis else final.size,
            "target": context.target,
            "mode": context.mode,
            "optimizer": context.optimizer,
        },
        runs=(Run(started, 1, steps, starts),),
        time_s=TimeStats(median=median, n=len(steps)),
        work={context.axis or "samples": final.size},
        rate=Rate(median=final.size / median, unit="1/s"),
        memory=MemoryFigures(**final.memory),
        method=Method("host", "host", "warm", precision_requested=context.dtype, details=context.method),
        flags=("few-samples",) if len(steps) < FEW_SAMPLES else (),
    )


def findings(search: Search, context: Context, end: End, default_malloc: Result | None) -> list[Finding]:
    """What the search says, the answer first."""
    best, limited_by = search.best, end.limited_by
    if best is None:
        return [_nothing_fits(search, context, limited_by, end.refused)]
    if not is_closed(limited_by):
        found = [_open(search, best, context, end)]
    else:
        evidence = {"batch_size": best.size, "budget_bytes": context.budget.bytes, "limited_by": limited_by}
        title = f"{in_words(best.size, context.axis)} fits"
        found = [Finding("batch_size.fits", "pass", title, _why(search, best, context, limited_by), evidence)]
    if not search.confirmed and (is_closed(limited_by) or end.refused is not None):
        why, fix = "its run in a process of its own decided nothing", _AGAIN
        if end.refused is not None:
            why = f"no process could be set up to run it again: {end.refused}"
        title, evidence = f"{in_words(best.size, context.axis)} passed once", {"batch_size": best.size}
        found.append(Finding("batch_size.confirmed", "warn", title, why, evidence, fix=fix))
    if default_malloc is not None:
        found.append(_malloc_finding(default_malloc, context))
    return found


def _why(search: Search, best: Record, context: Context, limited_by: str | None) -> str:
    """What closed the search."""
    failing = search.first_failing
    failed = f"{in_words(failing.size, context.axis)} does not ({failing.outcome.replace('-', ' ')})" if failing else ""
    if search.predicted_above is not None:
        failed = f"{in_words(search.predicted_above, context.axis)} is predicted above the budget"
    if limited_by == "max-batch-size" and best.size < search.cap:
        top = f"{search.cap}, the greatest length to try" if context.axis else f"--max-batch-size {search.cap}"
        return f"no larger multiple of {search.multiple_of} is within {top}"
    if limited_by == "max-batch-size" and context.axis:
        return "it is the greatest length to try"
    if limited_by == "safety" and context.method.get("avoid_oom"):
        return "larger sizes are predicted above 85 % of the budget, which --avoid-oom stays below"
    return _LIMITS.get(limited_by or "", failed)


def _open(search: Search, best: Record, context: Context, end: End) -> Finding:
    """A size that fits, where it is not known how much more does."""
    said = [_OPEN.get(end.limited_by or "", "the search did not end")]
    if not search.confirmed:
        said.append("it passed once, and there was no run in a process of its own")
    if end.predicted is not None and end.predicted > best.size:
        said.append(f"about {in_words(end.predicted, context.axis)} is predicted")
    fixes = {
        "time": f"--time-budget {_time(end.more_time_s)}",
        "trials": f"go on with --start {best.size}",
        "killed": "run one step of that size yourself, and look at the program's own limits (ulimit, a job's watchdog)",
    }
    evidence: dict[str, Any] = {"batch_size": best.size, "at_least": best.size, "predicted": end.predicted}
    evidence |= {"budget_bytes": context.budget.bytes, "limited_by": end.limited_by, "confirmed": search.confirmed}
    title = f"at least {in_words(best.size, context.axis)} fits"
    fix = fixes.get(end.limited_by or "", _AGAIN)
    return Finding("batch_size.fits", "inconclusive", title, "; ".join(said), evidence, fix=fix)


def _time(seconds: float) -> str:
    """A time budget as it is typed: whole minutes from two on."""
    return f"{math.ceil(seconds / 60)}m" if seconds > 120 else f"{math.ceil(seconds)}s"


def _malloc_finding(result: Result, context: Context) -> Finding:
    peak, budget = result.peak_bytes or 0, context.budget.bytes
    title = f"under the system's default malloc its peak is {capacity(peak)}"
    message = "within the budget as well"
    if peak > budget:
        message = f"{capacity(peak - budget)} above the budget: freed memory is kept for later"
    evidence = {"peak_bytes": peak, "budget_bytes": budget}
    return Finding("batch_size.default_malloc", "info", title, message, evidence)


def _nothing_fits(search: Search, context: Context, limited_by: str | None, refused: str | None) -> Finding:
    budget = context.budget
    evidence: dict[str, Any] = {"budget_bytes": budget.bytes, "parameter_bytes": context.parameter_bytes}
    failing = search.first_failing
    if refused is None and (failing is None or not is_closed(limited_by)):
        kind, in_time = kind_of_size(context.axis), limited_by == "time"
        return Finding(
            "batch_size.fits",
            "inconclusive",
            f"no {kind} passed before the time ran out" if in_time else f"no {kind} was decided",
            "" if in_time else _OPEN.get(limited_by or "", str(limited_by)),
            evidence,
            fix="give more time with --time-budget" if in_time else _AGAIN,
        )
    smallest = failing.size if failing else search.minimum
    evidence |= {"batch_size": smallest}
    fix = "raise --memory-limit, or take a smaller model or input"
    if refused is not None:
        weight = context.parameter_bytes
        alone = f"the model alone takes {capacity(weight)}" if weight is not None else f"building it failed ({refused})"
        message = f"{alone}, and the budget is {capacity(budget.bytes)} ({budget.reason})"
        evidence |= {"reason": refused}
        return Finding("batch_size.fits", "fail", "not even the model fits", message, evidence, fix)
    assert failing is not None
    title = f"not even {in_words(smallest, context.axis)} fits"
    if failing.peak_bytes is not None:
        evidence |= {"peak_bytes": failing.peak_bytes}
        needs = f"it takes {capacity(failing.peak_bytes)}"
    elif context.parameter_bytes is not None:
        needs = f"the model alone takes {capacity(context.parameter_bytes)}, and memory ran out"
    else:
        needs = "memory ran out"
    if failing.outcome == "timeout":
        return Finding("batch_size.fits", "fail", title, "its trial ran into --trial-timeout", evidence, fix)
    message = f"{needs}, and the budget is {capacity(budget.bytes)} ({budget.reason})"
    return Finding("batch_size.fits", "fail", title, message, evidence, fix)
