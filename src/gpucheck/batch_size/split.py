"""Where the memory goes: weights, gradients, optimizer, each sample's activations, and the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.batch_size.exchange import Result

# The slope near the largest size, as far from it as the trials allow: from a size of at most this share of it.
APART = 0.75
# Below 10 % growth between two sizes the slope is lost in what does not depend on the batch.
TRUSTED_GROWTH = 0.10


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes by what holds them, after a step of the largest size.

    `parameter_bytes` counts buffers too. `activation_bytes_per_sample` is the slope of the peak of forward and backward
    over the batch size; `fixed_bytes` what that peak holds besides, whatever the size (workspaces, a device's context).
    None is unknown, `reason` why.
    """

    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    activation_bytes_per_sample: int | None = None
    fixed_bytes: int | None = None
    reason: str | None = None


def split(results: Iterable[Result], parameter_bytes: int | None) -> Split:
    """The split by the trials of the search that passed."""
    passed = [r for r in results if r.outcome == "fits"]
    if not passed:
        return Split(parameter_bytes, None, None, reason="no trial passed")
    largest = max(passed, key=lambda r: r.size)
    held = Split(parameter_bytes, largest.gradient_bytes, largest.optimizer_bytes)
    apart = all(r.compute_peak_bytes is not None for r in passed)
    peaks: dict[int, int] = {}
    for result in passed:
        peak = result.compute_peak_bytes if apart else result.peak_bytes
        if peak is not None:
            peaks[result.size] = max(peaks.get(result.size, 0), peak)
    smaller = [size for size in peaks if size <= APART * max(peaks)]
    if not smaller:
        return _without(held, "sizes far enough apart were not run")
    low, high = max(smaller), max(peaks)
    if peaks[high] - peaks[low] < TRUSTED_GROWTH * peaks[low]:
        return _without(held, "the peak hardly grows with the size")
    slope = (peaks[high] - peaks[low]) / (high - low)
    known = sum(part or 0 for part in (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes))
    # Gradients come while activations go, so that the peak may hold less than all of both.
    fixed = max(0, int(peaks[high] - slope * high) - known)
    return Split(held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes, int(slope), fixed)


def _without(held: Split, reason: str) -> Split:
    return Split(held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes, reason=reason)
