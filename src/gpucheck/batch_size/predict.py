"""The peak as predicted without memory: which sizes to ask for, and what one real trial makes of the prediction. Pure.

The prediction is bisected, since every size costs the same: nothing is assumed of how memory grows. A real trial at
about a quarter of what is predicted calibrates it, and the search then jumps to the calibrated maximum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpucheck.batch_size.recipe import in_words

# The prediction's own bracket; a real trial moves it by more.
TOLERANCE = 0.02
# Between one size and the next, while nothing is above the budget: any size costs the same.
GROWTH = 64
# The calibration runs at this share of what is predicted: large enough that what grows decides, cheap, and safe to fit.
FIRST_SHARE = 0.25
# What the calibration may make of the prediction, in shares of it, is read between these sizes.
SHARES = (FIRST_SHARE, 0.5, 0.75)
# Measured over predicted: outside, something else than the tensors counted rules the memory.
LEAST_FACTOR, LARGEST_FACTOR = 0.9, 1.5
# The jump aims so far below the budget: repeats of a size lie within about 1 % of each other, and 2 % close the search.
AIM = 0.99
# More sizes than a bisection of any range takes.
MOST_SIZES = 40
# A larger batch that takes so much less than a smaller one is none that a prediction can be read from.
FALL = 0.01


@dataclass(frozen=True, slots=True)
class Point:
    """A predicted peak: of a whole step, and of forward and backward alone. Without bytes the size cannot run."""

    size: int
    peak_bytes: int | None
    compute_peak_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    def within(self, budget: float) -> bool:
        """Whether the peak is known and no more than `budget`."""
        return self.peak_bytes is not None and self.peak_bytes <= budget


@dataclass(slots=True)
class Bisection:
    """Asks for sizes from `lowest` to `highest` until the largest within `budget_bytes` is known to 2 %."""

    budget_bytes: int
    lowest: int
    highest: int
    points: list[Point] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The largest size predicted to fit, below every one that is not."""
        limit = min((p.size for p in self.points if not p.within(self.budget_bytes)), default=self.highest + 1)
        fitting = [p for p in self.points if p.size < limit]
        return max(fitting, key=lambda p: p.size, default=None)

    def next(self) -> int | None:
        """The next size to ask for; None once the maximum and the sizes around it are known."""
        best = self.best
        if best is None:
            return None if self.points else self.lowest
        above = min((p for p in self.points if not p.within(self.budget_bytes)), key=lambda p: p.size, default=None)
        if above is None and best.size < self.highest:
            return min(max(self._secant(best), best.size + 1), GROWTH * best.size, self.highest)
        if above is not None and above.size - best.size > max(1, int(TOLERANCE * best.size)):
            return self._inside(best, above)
        asked = {p.size for p in self.points}
        wanted = (min(max(round(best.size * share), self.lowest), self.highest) for share in SHARES)
        return next((size for size in wanted if size not in asked), None)

    def _secant(self, best: Point) -> int:
        """Where the growth seen last meets the budget, and a little further, to have a size above it."""
        below = max((p for p in self.points if p.size < best.size), key=lambda p: p.size, default=None)
        if below is None or best.peak_bytes is None or below.peak_bytes is None or best.peak_bytes <= below.peak_bytes:
            return GROWTH * best.size
        slope = (best.peak_bytes - below.peak_bytes) / (best.size - below.size)
        return int((best.size + (self.budget_bytes - best.peak_bytes) / slope) * (1 + TOLERANCE)) + 1

    def _inside(self, best: Point, above: Point) -> int:
        """A size in the bracket: where a straight line through its ends meets the budget, at times its middle."""
        middle = (best.size + above.size) // 2
        if above.peak_bytes is None or best.peak_bytes is None or len(self.points) % 3 == 0:
            return middle
        share = (self.budget_bytes - best.peak_bytes) / (above.peak_bytes - best.peak_bytes)
        aim = best.size + int(share * (above.size - best.size))
        # A little to either side of the line in turns, so that both ends of the bracket move.
        aside = max(1, int(TOLERANCE / 2 * best.size))
        aim += aside if best.size >= aim - aside else -aside
        return min(max(aim, best.size + 1), above.size - 1)


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
        return next((p for p in self.points if p.size == self.max_batch_size), None)

    def first_size(self) -> int | None:
        """The size that calibrates; None where the smallest is as good."""
        return None if self.max_batch_size is None else max(1, int(FIRST_SHARE * self.max_batch_size)) or None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured over predicted, at `size`, once what lies outside the tensors (`constant_bytes`) is taken off."""

    size: int
    factor: float
    constant_bytes: int = 0


def prediction(points: Sequence[Point], budget_bytes: int, device: str, seconds: float) -> Prediction:
    """What the peaks asked for say of a budget."""
    best = Bisection(budget_bytes, 1, max((p.size for p in points), default=1), list(points)).best
    return Prediction(best.size if best else None, tuple(sorted(points, key=lambda p: p.size)), device, seconds)


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
    allocated: int | None,
    axis: str | None = None,
) -> Calibration:
    """Compare the prediction with a trial of `size`: its peak, that of forward and backward, and that of its tensors.

    `allocated` is what a device's allocator had handed out at the peak; what was held beyond it (context, workspaces,
    cache) does not grow with the size. Raises Distrusted where the prediction is not to be used.
    """
    if measured is None:
        raise Distrusted("the first trial's peak was not measured")
    predicted = at(points, size)
    if predicted is None:
        raise Distrusted(f"nothing is predicted near {in_words(size, axis)}")
    peak, computing = predicted
    if allocated is not None:
        factor, constant = allocated / peak, measured - allocated
    elif compute is not None:
        factor, constant = compute / computing, 0
    else:
        factor, constant = measured / peak, 0
    if not LEAST_FACTOR <= factor <= LARGEST_FACTOR:
        raise Distrusted(f"{in_words(size, axis)} took {factor:.2f} times what was predicted")
    return Calibration(size, factor, max(0, constant))


def aim(points: Sequence[Point], calibration: Calibration, budget: float) -> int | None:
    """The largest size whose calibrated peak is just below the budget, among the sizes predicted; None if none is."""
    room = AIM * (budget - calibration.constant_bytes) / calibration.factor
    known = sorted((p for p in points if p.peak_bytes is not None), key=lambda p: p.size)
    if not known or not known[0].within(room):
        return None
    low, high = known[0].size, known[-1].size
    while low < high:
        middle = (low + high + 1) // 2
        predicted = at(points, middle)
        if predicted is not None and predicted[0] <= room:
            low = middle
        else:
            high = middle - 1
    return low


def at(points: Sequence[Point], size: int) -> tuple[float, float] | None:
    """The two predicted peaks at `size`, in a straight line between the sizes around it; None outside them."""
    known = sorted((p for p in points if p.peak_bytes is not None), key=lambda p: p.size)
    below = max((p for p in known if p.size <= size), key=lambda p: p.size, default=None)
    above = min((p for p in known if p.size >= size), key=lambda p: p.size, default=None)
    if below is None or above is None:
        return None
    share = (size - below.size) / (above.size - below.size) if above.size > below.size else 0.0
    ends = [(p.peak_bytes or 0, p.compute_peak_bytes or p.peak_bytes or 0) for p in (below, above)]
    first, second = (low + share * (high - low) for low, high in zip(*ends, strict=True))
    return first, second
