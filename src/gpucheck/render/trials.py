"""A trial of a search as one line."""

from __future__ import annotations

from gpucheck import units
from gpucheck.report.events import Trial


def trial_text(trial: Trial) -> str:
    """The trial in one line: its number, the size tried, what came out, the peak and the speed."""
    result = trial.result
    parts = [
        f"trial {trial.number}: batch {result.get('batch_size')}",
        str(result.get("outcome", "")).replace("_", " "),
    ]
    peak, rate = result.get("peak_bytes"), result.get("samples_per_s")
    if peak is not None:
        parts.append(f"peak {units.capacity(peak)}")
    if rate is not None:
        parts.append(f"{units.significant(rate)} samples/s")
    return ", ".join(part for part in parts if part)
