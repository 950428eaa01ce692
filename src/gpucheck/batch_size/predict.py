"""The peak as predicted without memory, and what one real trial makes of the prediction. Pure.

A real trial at about a quarter of what is predicted calibrates it, and the search then jumps to the calibrated maximum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpucheck.batch_size.predict_sizes import FIRST_SHARE, Bisection, Point, at, largest
from gpucheck.batch_size.recipe import in_words

# Measured over predicted: outside, something else than the tensors counted rules the memory.
LEAST_FACTOR, LARGEST_FACTOR = 0.9, 1.5
# The jump aims so far below the budget where what stays between steps is known: what is calibrated then comes within
# 0.4 % of what is measured, repeats within 0.1 % in most models, and 2 % close the search.
AIM = 0.993
# Where sizes are few, so near to the budget too: the search would try that size next.
NEXT = 0.997
# Elsewhere what an allocator wastes may grow with the size.
ROUGH_AIM = 0.99
# A larger batch that takes so much less than a smaller one is none that a prediction can be read from.
FALL = 0.01


@dataclass(frozen=True, slots=True)
class Prediction:
    """What fake tensors say: the largest size within the budget (None: not even the smallest), and the peaks seen.

    `device` is the kind that the fake tensors were on; `seconds` is what it took, alone.
    """

    max_batch_size: int | None
    points: tuple[Point, ...]
    device: str
    seconds: float

    @property
    def at_max(self) -> Point | None:
        """The prediction at the maximum."""
        return None if self.max_batch_size is None else at(self.points, self.max_batch_size)

    def first_size(self) -> int | None:
        """The size that calibrates; None where the smallest is as good."""
        return None if self.max_batch_size is None else max(1, int(FIRST_SHARE * self.max_batch_size)) or None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured over predicted, at `size`, once what lies outside the tensors (`constant_bytes`) is taken off."""

    size: int
    factor: float
    constant_bytes: int = 0

    def peak(self, predicted: float) -> float:
        """What is to be expected where so much is predicted, in bytes."""
        return self.constant_bytes + self.factor * predicted


def prediction(points: Sequence[Point], budget_bytes: int, device: str, seconds: float) -> Prediction:
    """What the peaks asked for say of a budget."""
    fitting = Bisection(budget_bytes, 1, max((p.size for p in points), default=1), list(points)).largest
    return Prediction(fitting, tuple(sorted(points, key=lambda p: p.size)), device, seconds)


class Distrusted(Exception):
    """The prediction does not hold; the text says why, in a few words."""


def checked(points: Iterable[Point], axis: str | None = None) -> None:
    """Raises Distrusted where more of a batch, or of a length along `axis`, is predicted to take less memory."""
    known = sorted((p for p in points if p.peak_bytes is not None), key=lambda p: p.size)
    for smaller, larger in itertools.pairwise(known):
        assert smaller.peak_bytes is not None and larger.peak_bytes is not None
        if larger.peak_bytes < (1 - FALL) * smaller.peak_bytes:
            more, less = in_words(larger.size, axis), in_words(smaller.size, axis)
            raise Distrusted(f"{more} is predicted to take less than {less}")


def calibrate(
    points: Sequence[Point],
    size: int,
    measured: int | None,
    compute: int | None,
    *,
    allocated: int | None = None,
    kept: int | None = None,
    axis: str | None = None,
) -> Calibration:
    """Compare the prediction with a trial of `size`: its peak, that of forward and backward, and what is no tensor.

    Of what the peak holds beyond the tensors, a part does not grow with the size. On a device that is what its
    allocator had not handed out at the peak (context, workspaces, cache): all but `allocated`. On a CPU it is what
    stays between steps beyond the model's state (threads' stacks, libraries' own): `kept`, and no more than was taken
    beyond the prediction, since what the model itself keeps is predicted. Raises Distrusted where the prediction is not
    to be used.
    """
    if measured is None:
        raise Distrusted("the first trial's peak was not measured")
    predicted = at(points, size)
    if predicted is None:
        raise Distrusted(f"nothing is predicted near {in_words(size, axis)}")
    peak, (computing, _) = predicted.peak_bytes or 0, predicted.phases
    if allocated is not None:
        factor, constant = allocated / peak, max(0, measured - allocated)
    else:
        taken, foreseen = (measured, peak) if compute is None else (compute, computing)
        constant = min(kept or 0, max(0, taken - foreseen))
        factor = (taken - constant) / foreseen
    if not LEAST_FACTOR <= factor <= LARGEST_FACTOR:
        raise Distrusted(f"{in_words(size, axis)} took {factor:.2f} times what was predicted")
    return Calibration(size, factor, constant)


def largest_within(points: Sequence[Point], calibration: Calibration, room: float) -> int | None:
    """The largest size whose calibrated peak is at most `room` bytes, among the sizes predicted; None if none is."""
    return largest(points, lambda peak: calibration.peak(peak) <= room)
