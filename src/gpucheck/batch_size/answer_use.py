"""What the answer means for use: the size to train with, how fast each is, how far to rely on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpucheck import advice
from gpucheck.batch_size import knee, recommend, split
from gpucheck.batch_size.accumulate import accumulate
from gpucheck.batch_size.after import After
from gpucheck.batch_size.answer import Context, final_result, is_closed, trial_entry
from gpucheck.batch_size.confidence import Confidence, confidence, fragmentation, limiting_factor
from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.outcome import BOUNDING
from gpucheck.batch_size.recipe import in_words, kind_of_size
from gpucheck.batch_size.search import Search
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.units import capacity


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants of the size to use: the share of the budget to leave free, and the batch to reach."""

    headroom: float
    effective_batch: int | None = None


def entry(
    search: Search,
    results: Sequence[Result],
    context: Context,
    limited_by: str | None,
    after: After,
    wishes: Wishes,
    foreseen: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """More of `results.find_batch_size`: what the trials of the search and those after it come to.

    `foreseen` are the peaks in bytes that a calibrated prediction gives the sizes that were run.
    """
    # A partial batch is a whole step in the child that ran last: its second step, if it took one, is timed too.
    found = knee.speeds([*results, *(check for check in after.checks if check.purpose == "partial batch")])
    best, final = search.best, final_result(search, list(results))
    gap = fragmentation(final.memory) if final else None
    # Where none is recommended, the largest is what there is, but not one of which it is not known.
    closed = is_closed(limited_by)
    use, wanted = after.recommended.result or (final if closed else None), wishes.effective_batch
    return {
        "limiting_factor": limiting_factor(limited_by),
        "confidence": to_json(_confidence(search, results, context, after, foreseen, closed)) if best else None,
        "checks": [_check(result) for result in after.checks],
        "recommended": recommend.entry(after.recommended, context.budget.bytes, wishes.headroom),
        "speeds": [asdict(one) for one in found],
        "knee": asdict(knee.knee(found)),
        "memory_split": asdict(split.split(results, context.parameter_bytes)),
        "fragmentation": asdict(gap) if gap else None,
        "accumulation": asdict(accumulate(wanted, use.size)) if wanted and use else None,
    }


def _confidence(
    search: Search,
    results: Sequence[Result],
    context: Context,
    after: After,
    foreseen: Mapping[int, float] | None,
    closed: bool,
) -> Confidence:
    assert search.best is not None
    size, budget = search.best.size, context.budget.bytes
    return confidence(results, size, search.confirmed, budget, after.default_malloc, foreseen, closed=closed)


def _check(result: Result) -> dict[str, Any]:
    """A step of what else an epoch holds, at the largest size."""
    return {
        "kind": result.purpose,
        "batch_size": result.size,
        "outcome": result.outcome,
        "reason": result.reason or None,
        "peak_bytes": result.peak_bytes,
    }


def findings(search: Search, results: Sequence[Result], context: Context, after: After) -> list[Finding]:
    """What else must be said of the answer: a step of the epoch that fails, and memory that lies in pieces."""
    found = [_failed(result, context.axis) for result in after.checks if result.outcome not in ("fits", "inconclusive")]
    final = final_result(search, list(results))
    if final is not None and final.unlike:
        least, most = final.batch_elements
        found.append(
            Finding(
                "batch_size.unlike_batches",
                "warn",
                "batches of one size are not alike",
                f"of those that ran the smallest held {least} numbers, the largest {most}: a larger one takes more",
                {"batch_size": final.size, "least_elements": least, "most_elements": most},
                fix="let make_batch return the largest batch that training meets",
            )
        )
    gap = fragmentation(final.memory) if final else None
    if gap is not None and gap.large and context.device.id.startswith("cuda"):
        found.append(
            Finding(
                "batch_size.fragmentation",
                "info",
                f"{capacity(gap.gap_bytes)} of what the allocator holds is in no tensor",
                f"{gap.gap_bytes / gap.reserved_bytes * 100:.0f} % of what it reserved at the peak",
                asdict(gap),
                fix=f"run with {advice.allocator('expandable_segments:True')}",
            )
        )
    return found


def _failed(result: Result, axis: str | None) -> Finding:
    evidence = {"batch_size": result.size, "outcome": result.outcome, "peak_bytes": result.peak_bytes}
    if result.purpose == "evaluation":
        return Finding(
            "batch_size.evaluation",
            "warn",
            f"an evaluation step with {in_words(result.size, axis)} fails",
            result.reason,
            evidence,
            fix=f"evaluate with a smaller {kind_of_size(axis)}"
            if result.outcome in BOUNDING
            else "see what model.eval() changes",
        )
    return Finding(
        "batch_size.partial_batch",
        "warn",
        f"a partial last batch of {result.size} fails",
        result.reason,
        evidence,
        fix="drop_last=True in the DataLoader leaves it out",
    )


def add(found: dict[str, Any], more: dict[str, Any], after: Sequence[Result]) -> dict[str, Any]:
    """The entry with what is known beyond the search, and the trials for that."""
    trials = [*found["trials"], *(trial_entry(result) for result in after)]
    return {**found, **more, "trial_count": len(trials), "trials": trials}
