"""The search for the largest batch that fits: which size to try next, given what came out so far. Pure.

Peaks are measured, so the search fits them and jumps instead of doubling. It never jumps beyond 32 times the last
success, never returns a size that was not run, and bounds its own number of trials.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Literal

from gpucheck.batch_size.outcome import BOUNDING, FITS, Outcome

Purpose = Literal["search", "confirm"]

# A fit from sizes close together extrapolates its own noise: beyond 32 times the last success it is a guess.
LARGEST_JUMP = 32
# Below 10 % growth between two sizes the slope is lost in what does not depend on the batch (weights, optimizer).
TRUSTED_GROWTH = 0.10
# Repeats of one size differ by up to 2 % (allocator rounding, retained pages); used as the doubt of a flat slope.
PEAK_NOISE = 0.02
# Extrapolating further than this, half the way is tried first: it mends the slope and costs no failure.
FAR_EXTRAPOLATION = 8.0
SAFE_EXTRAPOLATION = 4.0
# From the weights and one size alone, this share of the predicted maximum is tried: it leaves room for a library that
# takes a workspace, and for growth faster than in proportion.
FIRST_SHARE = 2.5
# Where running out of memory is dangerous (WSL, Windows, unified memory), sizes are chosen to stay below this share.
SAFE_SHARE = 0.85
DEFAULT_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Attempt:
    """One size to try. `confirm` asks for a process of its own."""

    size: int
    purpose: Purpose = "search"


@dataclass(frozen=True, slots=True)
class Record:
    """What came out of one trial. `compute_peak_bytes` is that of forward and backward alone."""

    size: int
    outcome: Outcome
    peak_bytes: int | None = None
    compute_peak_bytes: int | None = None
    purpose: Purpose = "search"

    @property
    def fitted_bytes(self) -> int | None:
        """The peak that grows with the batch: that of forward and backward where it was measured apart."""
        return self.compute_peak_bytes if self.compute_peak_bytes is not None else self.peak_bytes


@dataclass(slots=True)
class Search:
    """Finds the largest size in [minimum, cap] whose trial fits, to within `tolerance` below the true one.

    `budget_bytes` None means that peaks are not judged by the caller (the search then only bisects). With
    `seek_failure` False only sizes predicted below 85 % of the budget are tried. `reserve` is the number of trials
    that the caller makes after the search; they count towards the bound of 2·log2(answer) + 4 trials. `static_bytes`,
    once known, is what the workload holds whatever the batch: weights, gradients and the optimizer's state.
    """

    minimum: int = 1
    cap: int = 65536
    tolerance: float = DEFAULT_TOLERANCE
    budget_bytes: int | None = None
    seek_failure: bool = True
    reserve: int = 0
    static_bytes: int | None = None
    records: list[Record] = field(default_factory=list)

    # What came out

    @property
    def first_failing(self) -> Record | None:
        """The smallest size that failed, with why; None where nothing failed."""
        return min((r for r in self.records if r.outcome in BOUNDING), key=lambda r: r.size, default=None)

    @property
    def best(self) -> Record | None:
        """The largest size that passed below every failure, as it was last run; None where none did."""
        limit = self.first_failing.size if self.first_failing else math.inf
        passed = [r for r in self.records if r.outcome == FITS and r.size < limit]
        return max(reversed(passed), key=lambda r: r.size, default=None)

    @property
    def confirmed(self) -> bool:
        """Whether the best size has passed in a process of its own."""
        best = self.best
        return best is not None and any(
            r.size == best.size and r.purpose == "confirm" and r.outcome == FITS for r in self.records
        )

    @property
    def limited_by(self) -> str | None:
        """What holds the answer where it is: the class of the first failure, `max-batch-size`, `safety` or `trials`.

        None where the search has not closed.
        """
        best = self.best
        if best is None:
            return self.first_failing.outcome if self.first_failing else None
        if best.size >= self.cap:
            return "max-batch-size"
        if self._closed(best):
            return self.first_failing.outcome if self.first_failing else None
        if not self.seek_failure and self._candidate(best) is None:
            return "safety"
        return "trials" if self._exhausted(best) else None

    # What to do next

    def next(self) -> Attempt | None:
        """The next size to try, or None when the search is over."""
        best = self.best
        if best is None:
            failing = self.first_failing
            # After a failure above the minimum with nothing passed below it, only the minimum is left to try.
            return Attempt(self.minimum) if failing is None or failing.size > self.minimum else None
        if self.confirmed:
            return None
        retreat = self._retreat(best)
        if retreat is not None:
            return Attempt(retreat, "confirm")
        candidate = None
        if best.size < self.cap and not self._closed(best) and not self._exhausted(best):
            candidate = self._candidate(best)
        return Attempt(best.size, "confirm") if candidate is None else Attempt(candidate)

    def record(
        self,
        size: int,
        outcome: Outcome,
        peak_bytes: int | None = None,
        *,
        compute_peak_bytes: int | None = None,
        purpose: Purpose = "search",
    ) -> None:
        """Take in what came out of trying `size`."""
        self.records.append(Record(size, outcome, peak_bytes, compute_peak_bytes, purpose))

    # How

    def _step(self, size: int) -> int:
        return max(1, math.floor(size * self.tolerance))

    def _closed(self, best: Record) -> bool:
        failing = self.first_failing
        return failing is not None and failing.size - best.size <= self._step(best.size)

    def _exhausted(self, best: Record) -> bool:
        """Whether one more trial, the confirmation and the caller's own would break the bound on trials.

        The answer may yet be as large as the first failure allows. Memory that follows any shape known keeps the bound
        of the answer itself; a failure out of the blue (a timeout, a kernel's limit) may cost a few trials more.
        """
        failing = self.first_failing
        hoped = failing.size - 1 if failing else best.size
        return len(self.records) + 1 + 1 + self.reserve > _bound(max(best.size, hoped))

    def _retreat(self, best: Record) -> int | None:
        """After a confirmation failed, the size just below it that is run next, straight in a process of its own."""
        failed = [r for r in self.records if r.purpose == "confirm" and r.outcome in BOUNDING]
        if not failed:
            return None
        size = failed[-1].size - self._step(failed[-1].size) * (1 << (len(failed) - 1))
        if size <= best.size or len(self.records) + 1 + self.reserve > _bound(size):
            return None
        return size

    def _candidate(self, best: Record) -> int | None:
        """A size above the best and below the first failing one; None where none may be tried."""
        failing = self.first_failing
        predicted = self._predict(failing)
        if not self.seek_failure:
            return self._safe(best, failing, predicted)
        if failing is not None:
            return self._between(best, failing, predicted)
        high = min(self.cap, best.size * LARGEST_JUMP)
        return min(2 * best.size if predicted is None else self._aim(best, predicted), high)

    def _aim(self, best: Record, predicted: float) -> int:
        """Where to aim while nothing has failed: half-way if that is far, else just below the predicted maximum."""
        if self._sizes_measured() < 2:
            # A slope from the weights and one size alone: what a large batch adds has not been seen.
            return max(best.size + 1, math.floor(predicted / FIRST_SHARE))
        if predicted > FAR_EXTRAPOLATION * best.size:
            return math.floor(predicted / 2)
        step = self._step(best.size)
        below = math.floor(predicted * (1 - self.tolerance / 2))
        if below >= best.size + step:
            return below
        # The best is where the maximum was predicted: close from above, in doubling steps once it lies beyond.
        return best.size + step * (1 << (self._surprises() if best.size > predicted else 0))

    def _between(self, best: Record, failing: Record, predicted: float | None) -> int:
        """A size inside the bracket, at least a tolerance away from its ends, so that every trial narrows it."""
        width = failing.size - best.size
        step = min(self._step(best.size), width // 2)
        if predicted is None or predicted >= failing.size or self._stalled(width):
            return _middle(best.size, failing.size)
        aim = math.floor(predicted * (1 - self.tolerance / 2))
        if aim - best.size < step:
            # Close from above if the estimate says that the best is it.
            aim = best.size + step
        return min(max(aim, best.size + step), failing.size - step)

    def _sizes_measured(self) -> int:
        return len({r.size for r in self.records if r.fitted_bytes is not None})

    def _surprises(self) -> int:
        """How many of the latest successes stood only a small step above the one before."""
        sizes = [r.size for r in self.records if r.outcome == FITS and r.purpose == "search"]
        count = 0
        for later, earlier in itertools.pairwise(sizes[::-1]):
            if not earlier < later <= earlier * (1 + 4 * self.tolerance) + 1:
                break
            count += 1
        return count

    def _stalled(self, width: int) -> bool:
        """Whether the last two trials inside the bracket have not halved it."""
        low, high = 0, 0
        widths: list[int] = []
        for r in self.records:
            if r.outcome == FITS:
                low = max(low, r.size)
            elif r.outcome in BOUNDING:
                high = min(high or r.size, r.size)
            widths.append(high - low if high else 0)
        return len(widths) >= 3 and widths[-3] > 0 and width > widths[-3] / 2

    def _safe(self, best: Record, failing: Record | None, predicted: float | None) -> int | None:
        """A size predicted to stay below the safe share of the budget, or None where the best is as good."""
        if predicted is None:
            return None
        # Without a failure to stop at, a far extrapolation is halved sooner.
        far = predicted > SAFE_EXTRAPOLATION * best.size
        aim = predicted / (FIRST_SHARE if self._sizes_measured() < 2 else 2 if far else 1)
        if failing is not None:
            # The prediction was wrong once: keep the same distance from the failure as from the budget.
            aim = min(aim, SAFE_SHARE * failing.size, _middle(best.size, failing.size))
        target = min(math.floor(aim), self.cap, best.size * LARGEST_JUMP)
        return target if target > best.size + (self._step(best.size) if best.size > 1 else 0) else None

    def _predict(self, failing: Record | None) -> float | None:
        """The size at which the fitted peak meets the budget; None where there is nothing to fit."""
        if self.budget_bytes is None:
            return None
        budget = self.budget_bytes if self.seek_failure else self.budget_bytes * SAFE_SHARE
        limit = failing.size if failing else math.inf
        points = sorted({(r.size, p) for r in self.records if (p := r.fitted_bytes) is not None and r.size <= limit})
        if not points:
            return None
        right_size, right_peak = points[-1]
        if self.static_bytes is not None:
            points.insert(0, (0, self.static_bytes))
        # Nothing grows faster than in proportion, so this much fits.
        proportional = right_size * budget / max(right_peak, 1)
        smaller = points[: [size for size, _ in points].index(right_size)]
        if not smaller:
            return proportional
        near = next((point for point in reversed(smaller) if point[0] <= 0.75 * right_size), smaller[0])
        growth = right_peak - near[1]
        doubt = 0.0 if growth >= TRUSTED_GROWTH * near[1] else PEAK_NOISE * right_peak
        whole = next((point for point in smaller if point[0] > 0), near)
        # The slope near the right end; where the whole rises faster (a workspace came and went), that of the whole.
        slope = max(
            (max(growth, 0) + doubt) / (right_size - near[0]),
            (right_peak - whole[1]) / (right_size - whole[0]),
        )
        if slope <= 0:
            return proportional
        predicted = right_size + (budget - right_peak) / slope
        apart = all(r.compute_peak_bytes is not None for r in self.records if r.outcome == FITS)
        # A flat peak may hide a slope that the optimizer's step covers, unless the two were measured apart.
        return min(predicted, proportional) if doubt and not apart and not self.seek_failure else predicted


def _middle(low: int, high: int) -> int:
    """The middle of a bracket, strictly inside it: by ratio where it is wide."""
    middle = math.sqrt(low * high) if high > 2 * low else (low + high) / 2
    return min(max(math.floor(middle), low + 1), high - 1)


def _bound(size: int) -> int:
    """The most trials that a search with the answer `size` may take."""
    return math.floor(2 * math.log2(size) + 4)
