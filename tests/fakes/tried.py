"""A trial as a search takes it in, in few words."""

from __future__ import annotations

from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Outcome


def tried(
    size: int,
    outcome: Outcome,
    peak_bytes: int | None = None,
    compute_peak_bytes: int | None = None,
    purpose: str = "search",
) -> TrialResult:
    """A trial of `size` that came out so."""
    return TrialResult(
        batch_size=size,
        outcome=outcome,
        peak_bytes=peak_bytes,
        compute_peak_bytes=compute_peak_bytes,
        purpose=purpose,
    )
