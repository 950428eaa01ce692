"""What the answer means for use: the size to train with, and how fast each one is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpucheck.batch_size import knee, recommend, split
from gpucheck.batch_size.accumulate import accumulate
from gpucheck.batch_size.answer import Context, trial_entry
from gpucheck.batch_size.recommend import Recommended
from gpucheck.batch_size.runner import Result


def entry(
    results: Sequence[Result],
    context: Context,
    recommended: Recommended,
    headroom: float,
    effective_batch: int | None,
) -> dict[str, Any]:
    """More of `results.find_batch_size`, from the trials of the search."""
    found = knee.speeds(results)
    use = recommended.result
    return {
        "recommended": recommend.entry(recommended, context.budget.bytes, headroom),
        "speeds": [asdict(one) for one in found],
        "knee": asdict(knee.knee(found)),
        "memory_split": asdict(split.split(results, context.parameter_bytes)),
        "accumulation": asdict(accumulate(effective_batch, use.size)) if effective_batch and use else None,
    }


def add(found: dict[str, Any], more: dict[str, Any], after: Sequence[Result]) -> dict[str, Any]:
    """The entry with what is known beyond the search, and the trials for that."""
    trials = [*found["trials"], *(trial_entry(result) for result in after)]
    return {**found, **more, "trial_count": len(trials), "trials": trials}
