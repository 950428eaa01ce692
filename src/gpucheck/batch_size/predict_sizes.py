"""Which sizes to predict, so that few tell the largest within the budget and what memory does below it. Pure.

They are bisected, since every size costs the same: nothing is assumed of how memory grows. Only where the sizes asked
lie on one line, no more are asked between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

# The prediction's own bracket; a real trial moves it by more.
TOLERANCE = 0.04
# What is asked for to have a size above the budget lies so far above it: what is measured may be less than predicted.
BEYOND = 0.02
# Sizes inside the bracket lie so far beside the line, so that both of its ends move.
ASIDE = 0.005
# Between one size and the next, while nothing is above the budget: any size costs the same.
GROWTH = 64
# The calibration runs at this share of what is predicted: large enough that what grows decides, cheap, and safe to fit.
FIRST_SHARE = 0.25
# What the calibration may make of the prediction, in shares of it, is read between these sizes. The first is always
# asked for, the others not where memory grows in a straight line.
SHARES = (FIRST_SHARE, 0.5, 0.75)
# A size asked that is so near to a wanted one stands for it.
NEAR = 0.05
# Slopes on both sides of a size that differ by no more than this make a straight line.
STRAIGHT = 0.01
# So many sizes do for a bisection of any range; a staircase may want more, and is left as it is then.
MOST_SIZES = 40


@dataclass(frozen=True, slots=True)
class Point:
    """A predicted peak: of a whole step, of forward and backward alone, and of the optimizer's update alone.

    Without bytes the size cannot run.
    """

    size: int
    peak_bytes: int | None
    compute_peak_bytes: int | None = None
    update_peak_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    @property
    def phases(self) -> tuple[int, int]:
        """What computing takes, and what the update takes: the whole peak where that is not known apart, or above."""
        peak = self.peak_bytes or 0
        computing = self.compute_peak_bytes or peak
        if self.update_peak_bytes is not None:
            return computing, self.update_peak_bytes
        return computing, peak if peak > computing else 0

    def within(self, budget: float) -> bool:
        """Whether the peak is known and no more than `budget`."""
        return self.peak_bytes is not None and self.peak_bytes <= budget


@dataclass(slots=True)
class Bisection:
    """Asks for sizes from `lowest` to `highest` until the largest within `budget_bytes` is known.

    That is where the sizes around it are 4 % apart, or memory grows in a straight line there.
    """

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

    @property
    def _above(self) -> Point | None:
        """The smallest size predicted not to fit."""
        return min((p for p in self.points if not p.within(self.budget_bytes)), key=lambda p: p.size, default=None)

    @property
    def largest(self) -> int | None:
        """The largest size that fits, read between the sizes asked; None where not even the smallest does."""
        best, above = self.best, self._above
        if best is None or above is None:
            return None if best is None else best.size
        return largest((p for p in self.points if p.size <= above.size), lambda peak: peak <= self.budget_bytes)

    def next(self) -> int | None:
        """The next size to ask for; None once the maximum and the sizes around it are known."""
        best, above = self.best, self._above
        if best is None:
            return None if self.points else self.lowest
        if above is None and best.size < self.highest:
            return min(max(self._secant(best), best.size + 1), GROWTH * best.size, self.highest)
        wide = above is not None and above.size - best.size > max(1, int(TOLERANCE * best.size))
        if above is not None and wide and not self._is_straight(best):
            return self._inside(best, above)
        largest = self.largest or best.size
        wanted = [min(max(round(largest * share), self.lowest), self.highest) for share in SHARES]
        if all(abs(p.size - wanted[0]) > NEAR * wanted[0] for p in self.points):
            return wanted[0]
        return next((size for size in wanted if not self._is_known(size)), None)

    def _is_known(self, size: int) -> bool:
        """Whether `size` was asked, or lies between two sizes on one of whose both sides memory grows alike."""
        below, above = _around(self.points, size)
        if below is None or above is None:
            return False
        return below is above or self._is_straight(below) or self._is_straight(above)

    def _is_straight(self, point: Point) -> bool:
        """Whether memory grows as much up to `point`, from the size asked below it, as it does to the one above it."""
        below = self._below(point)
        after = min((p for p in self.points if p.size > point.size), key=lambda p: p.size, default=None)
        if below is None or after is None or after.peak_bytes is None:
            return False
        before, beyond = _slope(below, point), _slope(point, after)
        return abs(before - beyond) <= STRAIGHT * abs(beyond)

    def _secant(self, best: Point) -> int:
        """Where the growth seen last meets the budget, and a little further, to have a size above it."""
        below = self._below(best)
        if below is None or (slope := _slope(below, best)) <= 0:
            return GROWTH * best.size
        return int((best.size + (self.budget_bytes - best.phases[0]) / slope) * (1 + BEYOND)) + 1

    def _inside(self, best: Point, above: Point) -> int:
        """A size in the bracket: about where a line meets the budget, or its middle where lines do not narrow it.

        Where memory curves upwards, the line through the bracket's ends meets the budget too early and the one through
        the two largest sizes that fit too late: taken in turns they close in from both sides.
        """
        middle = (best.size + above.size) // 2
        if above.peak_bytes is None or self._is_stalled(above.size - best.size):
            return middle
        lower = self._below(best)
        late = lower is not None and self.points[-1] is best and _slope(lower, best) > 0
        slope = _slope(lower, best) if late and lower is not None else _slope(best, above)
        if slope <= 0:
            return middle
        aside = max(1, int(ASIDE * best.size))
        aim = best.size + int((self.budget_bytes - best.phases[0]) / slope) + (aside if late else -aside)
        return min(max(aim, best.size + 1), above.size - 1)

    def _below(self, point: Point) -> Point | None:
        """The largest size asked below another."""
        return max((p for p in self.points if p.size < point.size), key=lambda p: p.size, default=None)

    def _is_stalled(self, width: int) -> bool:
        """Whether the last two sizes inside the bracket, now `width` wide, have not halved it."""
        before = Bisection(self.budget_bytes, self.lowest, self.highest, self.points[:-2])
        best = before.best
        above = [p.size for p in before.points if not p.within(self.budget_bytes)]
        return best is not None and bool(above) and width > (min(above) - best.size) / 2


def _slope(lower: Point, upper: Point) -> float:
    """Bytes of forward and backward for each size more: the update's hardly grow."""
    return (upper.phases[0] - lower.phases[0]) / (upper.size - lower.size)


def _around(points: Sequence[Point], size: int) -> tuple[Point | None, Point | None]:
    """The sizes asked below and above `size`, itself in both places where it was asked."""
    below = max((p for p in points if p.size <= size), key=lambda p: p.size, default=None)
    above = min((p for p in points if p.size >= size), key=lambda p: p.size, default=None)
    return below, above


def largest(points: Iterable[Point], fits: Callable[[int], bool]) -> int | None:
    """The largest size, among and between those asked, of whose predicted peak `fits` holds; None for none."""
    known: list[Point] = []
    for point in sorted(points, key=lambda p: p.size):
        if point.peak_bytes is None:  # nothing runs from here on
            break
        known.append(point)
    if not known or not fits(known[0].peak_bytes or 0):
        return None
    low, high = known[0].size, known[-1].size
    while low < high:
        middle = (low + high + 1) // 2
        predicted = at(known, middle)
        if predicted is not None and fits(predicted.peak_bytes or 0):
            low = middle
        else:
            high = middle - 1
    return low


def at(points: Iterable[Point], size: int) -> Point | None:
    """What is predicted of `size`, asked or not; None outside the sizes asked.

    What computing takes and what the update takes grow in a straight line between the sizes around it, each by itself.
    """
    below, above = _around([p for p in points if p.peak_bytes is not None], size)
    if below is None or above is None:
        return None
    share = (size - below.size) / (above.size - below.size) if above.size > below.size else 0.0
    computing, update = (
        round(low + share * (high - low)) for low, high in zip(below.phases, above.phases, strict=True)
    )
    peak = max(computing, update)
    return replace(below, size=size, peak_bytes=peak, compute_peak_bytes=computing, update_peak_bytes=update)
