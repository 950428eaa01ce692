"""The search for the largest batch that fits: which size to try next, given what came out so far. Pure.

Peaks are measured, so the search fits them and jumps instead of doubling. It never jumps beyond 32 times the last
success, never returns a size that was not run, and bounds its own number of trials. On a CPU it needs no failure to
end: where the fit says that one tolerance more is above the budget, the size that passed is near enough. On a device
the allocator decides, so that near the maximum each size is run as it would be answered, in a separate process.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import BOUNDING, FITS, TrialResult

Purpose = Literal["search", "confirm"]

# A fit from sizes close together extrapolates its own noise: beyond 32 times the last success it is a guess.
LARGEST_JUMP = 32
# Standard deviation of repeats of one size (allocator rounding, retained pages): they lie within 2 % of each other.
PEAK_NOISE = 0.006
# On a device the allocator repeats itself to the block; what lies outside it (context, handles) moves a little.
DEVICE_PEAK_NOISE = 0.002
# Sizes are aimed at where the fit, so many of its standard deviations higher, meets the budget: few of them fail.
DOUBTS = 1.0
# The maximum that is looked for is the likely one less so many standard deviations: noise lets what is above pass, and
# what was found by such luck fails the next day. More of it costs more of the answer than it saves.
CAUTION = 0.5
# The aim below the most likely maximum, in tolerances: it leaves room for noise.
AIM = 0.4
# The search ends where one tolerance more is above the budget though it were so many standard deviations lower: that
# is two to one. What is left is a bet: each further trial near the maximum narrows it.
SURE = 0.5
# Sizes lie so many tolerances apart, and a failure so near above the best ends the search. What failed may have done so
# by noise alone: a whole tolerance below it is more than one below the maximum.
APART = 0.5
# A device's allocator packs its blocks in ways that no sum foretells: its largest size lies up to a tenth beside the
# fit. Sizes go up, and down from a failure, by this share, and by twice as much each time that the same happens again.
STRIDE = 0.04
FULL = 1 - 2 * STRIDE
# A size no larger than so many times the best is near enough to the maximum to be run in a separate process at once.
CLOSE = 1.5
# Sizes closer together than this tell more of noise than of growth.
NEAR = 0.75
# Sizes stay below this share, and with more doubt, where running out of memory is dangerous (WSL, Windows, unified
# memory).
SAFE_SHARE = 0.85
SAFE_DOUBTS = 3.0
# The first size: most workloads fit it, and many do not run with a single sample. The second is where running out of
# memory is dangerous.
FIRST_SIZE, CAREFUL_SIZE = 8, 2
# A single size says nothing of what a large batch adds.
FITTED_SIZES = 2
DEFAULT_TOLERANCE = 0.02
# After a first size that does not fit the next is a quarter of it, then a sixteenth of that, then a 256th: a prediction
# is seldom further off than the first, and a guess of the user's may be off by anything.
DOWN = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """A size to try. `confirm` asks for a separate process."""

    size: int
    purpose: Purpose = "search"


@dataclass(slots=True)
class Search:
    """Finds the largest size in [minimum, cap] whose trial fits, to within `tolerance` below the true one.

    `budget_bytes` None means that peaks are not judged by the caller (the search then only bisects). `on_device` means
    that an allocator decides what fits: only a failure closes the search, or tensors that alone exceed the budget, and
    an answer for which the allocator had to empty its cache counts once the next smaller size has passed too. With
    `seek_failure` False only sizes predicted below 85 % of the budget are tried. `static_bytes`, once known, is what
    the workload holds whatever the batch: weights, gradients and the optimizer's state. Only multiples of `multiple_of`
    are tried, the first at `start` if given. `tolerance` 0 makes the search exact: only a failure right above the
    answer ends it. It takes at most 2·log2(answer) + 4 trials; `extra_trials` raise that, for a caller who has the time
    for them.
    """

    minimum: int = 1
    cap: int = 65536
    tolerance: float = DEFAULT_TOLERANCE
    budget_bytes: int | None = None
    on_device: bool = False
    seek_failure: bool = True
    static_bytes: int | None = None
    multiple_of: int = 1
    start: int | None = None
    # Standard deviation of a peak as a share of itself.
    noise: float = PEAK_NOISE
    extra_trials: int = 0
    trials: list[TrialResult] = field(default_factory=list)

    # The answer so far

    @property
    def first_failing(self) -> TrialResult | None:
        """The smallest size that failed, with why; None where nothing failed."""
        return min((r for r in self.trials if r.outcome in BOUNDING), key=lambda r: r.batch_size, default=None)

    @property
    def best(self) -> TrialResult | None:
        """The largest size that passed below every failure, as it was last run; None where none did."""
        limit = self.first_failing.batch_size if self.first_failing else math.inf
        passed = [r for r in self.trials if r.outcome == FITS and r.batch_size < limit]
        return max(reversed(passed), key=lambda r: r.batch_size, default=None)

    @property
    def confirmed(self) -> bool:
        """Return whether the best size has passed in a separate process."""
        best = self.best
        return best is not None and best.batch_size in self._confirmed

    @property
    def limited_by(self) -> str | None:
        """Return what holds the answer where it is: the class of the first failure, `max-batch-size`, `safety` or
        `trials`.

        Also `over-budget` where nothing near has failed and more is predicted above it. None where the search has not
        closed.
        """
        best, failing = self.best, self.first_failing
        if best is None:
            return failing.outcome if failing else None
        if best.batch_size >= self._highest:
            return "max-batch-size"
        if self._closed(best):
            return failing.outcome if failing and self.predicted_above is None else "over-budget"
        if not self.seek_failure and (self.confirmed or self._safe(best) is None):
            return failing.outcome if failing else "safety"
        return "trials" if self._exhausted(best) else None

    @property
    def within_tolerance(self) -> bool:
        """Return whether the best was confirmed and what failed lies no further above it than one tolerance."""
        best, failing = self.best, self.first_failing
        if best is None or failing is None or not self.confirmed:
            return False
        return failing.batch_size - best.batch_size <= self.step(best.batch_size)

    @property
    def likely_largest(self) -> int | None:
        """The largest size that the peaks measured suggest, below every failure; None where they suggest nothing.

        They suggest none where by them the size that failed fits too (what is below it is a bound, and no prediction),
        or where the allocator held the best to the budget.
        """
        best, failing, fitted = self.best, self.first_failing, self._fit(1.0)
        if best is None or best.allocation_retries or fitted is None or len(dict(self._measured())) < FITTED_SIZES:
            return None
        likely = fitted.largest(best.batch_size, self._highest)
        if failing is not None and likely >= failing.batch_size:
            return None
        return max(best.batch_size, self.rounded(likely))

    @property
    def predicted_above(self) -> int | None:
        """The size, one tolerance above the best, that ended the search by its predicted peak alone; else None.

        None also where a smaller one than that has failed: what was run says more.
        """
        best, failing = self.best, self.first_failing
        if best is None or best.batch_size >= self._highest or not self._closed_by_fit(best):
            return None
        above = best.batch_size + self.step(best.batch_size)
        return above if failing is None or above < failing.batch_size else None

    @property
    def lowest(self) -> int:
        """The smallest size that may be tried."""
        return min(-self.rounded(-self.minimum), self._highest)

    def rounded(self, size: float) -> int:
        """The largest size up to `size` that may be tried, by `multiple_of` alone."""
        return math.floor(size / self.multiple_of) * self.multiple_of

    def next(self) -> Attempt | None:
        """The next size to try, or None when the search is over."""
        best = self.best
        if best is None:
            return self._down()
        if not self._ended(best) and (candidate := self._candidate(best)) is not None:
            return Attempt(candidate, "confirm" if self._is_alone(candidate, best) else "search")
        if not self.confirmed:
            return Attempt(best.batch_size, "confirm")
        return self._neighbour(best)

    def _down(self) -> Attempt | None:
        """The first size, or one some factors below those that have not passed; None after the smallest."""
        tried = sorted({r.batch_size for r in self.trials if r.outcome != FITS})
        if not tried:
            usual = FIRST_SIZE if self.seek_failure else CAREFUL_SIZE
            first = self.rounded(usual if self.start is None else self.start)
            return Attempt(min(max(first, self.lowest), self._highest))
        if tried[0] <= self.lowest:
            return None
        # A size that took longer than its time may take any time: as far down as after two that failed, at least.
        times = len(tried) if self.trials[-1].outcome != "out-of-time" else max(2, len(tried))
        return Attempt(max(self.lowest, self.rounded(tried[0] / DOWN ** (2 ** (times - 1)))))

    def _is_alone(self, size: int, best: TrialResult) -> bool:
        """Return whether a size is run in a separate process at once: it may be the answer, which is confirmed so."""
        failing = self.first_failing
        if self.on_device and self.seek_failure:
            return failing is not None or size <= CLOSE * best.batch_size
        return failing is not None and failing.purpose == "confirm"

    def _neighbour(self, best: TrialResult) -> Attempt | None:
        """The next smaller size, where the answer ran only because the allocator emptied its cache: it may fail."""
        smaller = best.batch_size - self.multiple_of
        if not self.on_device or not best.allocation_retries or smaller < self.lowest or smaller in self._confirmed:
            return None
        return None if self._exhausted(best) else Attempt(smaller, "confirm")

    @property
    def _highest(self) -> int:
        return self.rounded(self.cap)

    @property
    def _confirmed(self) -> set[int]:
        """Sizes that passed in a separate process."""
        return {r.batch_size for r in self.trials if r.purpose == "confirm" and r.outcome == FITS}

    def step(self, size: int) -> int:
        """Return how far above `size` the next is worth a trial: where sizes are few, by more than the tolerance."""
        within = self.rounded(size * self.tolerance)
        return within + self.multiple_of if self._is_coarse(size) else max(self.multiple_of, within)

    def _apart(self, size: int) -> int:
        """The least distance between two sizes near `size` that tells more of growth than of noise."""
        return max(self.multiple_of, self.rounded(size * self.tolerance * APART))

    def _is_coarse(self, size: int) -> bool:
        """Return whether sizes are so few that no two lie closer than trials may; any are for an exact search."""
        return self.multiple_of > size * self.tolerance * APART

    def _ended(self, best: TrialResult) -> bool:
        """Return whether no larger size is to be tried. What a confirmation measures may say that one is.

        Not where failing is dangerous: one confirmation ends that search.
        """
        if best.batch_size >= self._highest or self._closed(best) or self._exhausted(best):
            return True
        return not self.seek_failure and self.confirmed

    def _closed(self, best: TrialResult) -> bool:
        failing = self.first_failing
        if failing is not None:
            width = failing.batch_size - best.batch_size
            # A single size between a confirmed answer and a failure is within what a device's allocator is known to.
            is_last = self.on_device and self.confirmed and self.tolerance > 0 and width <= 2 * self.multiple_of
            # A device's allocator fails by no noise.
            if is_last or width <= (self.step(best.batch_size) if self.on_device else self._apart(best.batch_size)):
                return True
        return self._closed_by_fit(best)

    def _closed_by_fit(self, best: TrialResult) -> bool:
        """Return whether one tolerance more is predicted to exceed the budget; never for an exact search.

        On a device that is predicted of its tensors alone, however well the allocator packs them.
        """
        points, size = dict(self._measured(tensors=self.on_device)), best.batch_size
        if not self.tolerance or not self.seek_failure or len(points) < FITTED_SIZES:
            return False
        fitted, step = self._fit(1.0, tensors=self.on_device), self.step(size)
        if fitted is None or fitted.peak(size + step, -SURE) <= 1.0:
            return False
        if not self._is_coarse(size):
            return True
        # The least slope from a smaller size has to say so too where sizes are few.
        smaller = [(other, peak) for other, peak in points.items() if other <= NEAR * size]
        smaller += [(0, self.static_bytes)] if self.static_bytes is not None else []
        slope = min(((points[size] - peak) / (size - other) for other, peak in smaller), default=0.0)
        return points[size] + step * slope > (self.budget_bytes or 0)

    def _exhausted(self, best: TrialResult) -> bool:
        """Return whether one more trial and the confirmation would break the bound on trials.

        The answer may yet be as large as the first failure allows. Memory that follows any shape known keeps the bound
        of the answer itself; a failure out of the blue (a timeout, a kernel's limit) may cost a few trials more.
        """
        failing = self.first_failing
        hoped = failing.batch_size - 1 if failing else best.batch_size
        return len(self.trials) + 2 > _bound(max(best.batch_size, hoped)) + self.extra_trials

    def _candidate(self, best: TrialResult) -> int | None:
        """A size above the best and below the first failing one; None where none may be tried."""
        if not self.seek_failure:
            return self._safe(best)
        if self.first_failing is not None:
            return self._between(best, self.first_failing)
        high = min(self._highest, max(self.rounded(best.batch_size * LARGEST_JUMP), best.batch_size + self.multiple_of))
        fitted = self._fit(1.0)
        aim = 2 * best.batch_size if fitted is None else self._aim(best, fitted, high)
        if self.on_device and (packed := self._fit(1.0, tensors=True)) is not None and len(self.trials) >= FITTED_SIZES:
            # By the sum of its blocks too few fit, by its tensors alone too many: a third of the way, then halves.
            most, low, share = packed.largest(best.batch_size, high), best.batch_size, 1 / 2
            if not best.allocation_retries and not any(r.purpose == "confirm" for r in self.trials):
                low, share = aim, 1 / 3
            aim = self.rounded(low + share * (most - low)) if aim < most else most
            # An allocator whose blocks fill the budget can pack little better.
            if (best.peak_bytes or 0) > (1 - STRIDE / 2) * (self.budget_bytes or math.inf):
                aim = min(aim, self.rounded(best.batch_size * (1 + 2 * STRIDE)))
        return min(max(aim, best.batch_size + self._apart(best.batch_size)), high)

    def _aim(self, best: TrialResult, fitted: Fit, high: int) -> int:
        """The largest size that is as good as certain to fit, a part of a tolerance below the most likely maximum.

        Where sizes are few it is that maximum itself: one size less costs the answer more than a failure costs time.
        """
        likely = fitted.largest(best.batch_size, 2 * high, CAUTION)
        if self._is_coarse(likely):
            return self.rounded(min(likely, high))
        certain = fitted.largest(best.batch_size, high, DOUBTS)
        near = likely * (1 - AIM * self.tolerance)
        aim = self.rounded(min(certain, near))
        return aim if aim >= best.batch_size + self._apart(best.batch_size) else self.rounded(near)

    def _between(self, best: TrialResult, failing: TrialResult) -> int:
        """A size inside the bracket, away from its ends, so that every trial narrows it."""
        low, high = best.batch_size, failing.batch_size
        step = min(self._apart(low), self.rounded((high - low) / 2))
        # The middle, strictly inside: by ratio where the bracket is wide.
        middle = self.rounded(math.sqrt(low * high) if high > 2 * low else (low + high) / 2)
        middle = min(max(middle, low + self.multiple_of), high - self.multiple_of)
        fitted = self._fit(1.0)
        if fitted is None:
            return middle
        if self.on_device:
            # A size that fills the budget by the fit fails by little; each time that this does not help, by twice that.
            tried = list(itertools.dropwhile(lambda r: r.outcome != FITS, self.trials))
            below = min((r.batch_size for r in tried if r.outcome == FITS and r.batch_size > high), default=math.inf)
            failures = len({r.batch_size for r in tried if r.outcome in BOUNDING and r.batch_size < below})
            likely = 0
            if failures and fitted.peak(high) > FULL:
                most = fitted.largest(low, high, CAUTION) if failures == 1 else high
                likely = self.rounded(min(most, high * (1 - STRIDE * 2 ** (failures - 1))))
            return min(max(likely, middle), high - max(step, self.multiple_of))
        if fitted.peak(high) <= 1.0:
            return middle
        return min(max(self._aim(best, fitted, high - self.multiple_of), low + step), high - step)

    def _measured(self, *, tensors: bool = False) -> list[tuple[int, int]]:
        """Size and peak of each trial that tells how memory grows: none that an allocator held to the budget.

        With `tensors` the peaks are those of tensors alone, which no allocator holds.
        """
        peaks: list[tuple[int, int | None]] = []
        for r in self.trials:
            of_tensors = r.tensor_bytes if r.outcome == FITS else None
            peaks.append((r.batch_size, of_tensors if tensors else None if r.allocation_retries else r.fitted_bytes))
        return [(size, peak) for size, peak in peaks if peak is not None]

    def _safe(self, best: TrialResult) -> int | None:
        """A size predicted to stay below the safe share of the budget, or None where the best is as good."""
        failing, fitted = self.first_failing, self._fit(SAFE_SHARE)
        if fitted is None:
            return None
        high = min(self._highest, self.rounded(best.batch_size * LARGEST_JUMP))
        aim: float = fitted.largest(best.batch_size, high, SAFE_DOUBTS)
        if failing is not None:
            # The prediction was wrong once: keep the same distance from the failure as from the budget.
            aim = min(aim, SAFE_SHARE * failing.batch_size, (best.batch_size + failing.batch_size) / 2)
        target = self.rounded(aim)
        return target if target > best.batch_size + (self.step(best.batch_size) if best.batch_size > 1 else 0) else None

    def _fit(self, share: float, *, tensors: bool = False) -> Fit | None:
        """The peaks measured up to the first failure, against a share of the budget; None without one."""
        if self.budget_bytes is None:
            return None
        limit = self.first_failing.batch_size if self.first_failing else math.inf
        points = [(size, peak) for size, peak in self._measured(tensors=tensors) if size <= limit]
        return fit(points, self.budget_bytes * share, self.noise, self.static_bytes)


def search_for(options: FindBatchSizeOptions, cap: int, budget_bytes: int, *, is_cpu: bool) -> Search:
    """The search that was asked for, before a child has told its smallest batch and its dangers."""
    return Search(
        cap=cap,
        tolerance=0.0 if options.exact else DEFAULT_TOLERANCE if options.tolerance is None else options.tolerance,
        budget_bytes=budget_bytes,
        on_device=not is_cpu,
        seek_failure=not options.avoid_oom,
        multiple_of=options.multiple_of,
        start=options.start,
        noise=PEAK_NOISE if is_cpu else DEVICE_PEAK_NOISE,
    )


def _bound(size: int) -> int:
    """The most trials that a search with the answer `size` may take."""
    return math.floor(2 * math.log2(size) + 4)


# --- The peak as a function of the size -------------------------------------------------------------------------------

# Logits of batch by batch make half of the growth quadratic, most models none of it. A share of the growth seen.
CURVATURE = 0.3
# Curvature is a share of the way to the budget where a line says that it is further away than so many times the size:
# seen from a hundredth of the maximum, it is not hidden in a hundredth of the growth.
FAR = 5.0
# Memory follows no parabola (workspaces come and go): how far a point lies below the largest, so much it is doubted.
MISFIT = 0.05
# Memory beyond weights and optimizer that a trial holds whatever the batch, as a share of the budget.
CONSTANT = 0.02
# Peaks are whole blocks of an allocator: none is known better, as a share of the budget.
LEAST_DOUBT = 1e-4


@dataclass(frozen=True, slots=True)
class Fit:
    """Peaks in shares of the budget. `scale` is the largest size fitted; sizes are counted in it."""

    scale: float
    terms: Sequence[float]
    covariance: Sequence[Sequence[float]]

    def peak(self, size: float, doubts: float = 0.0) -> float:
        """The peak at `size` as a share of the budget, and so many standard deviations more."""
        at = _features(size / self.scale)
        variance = _dot(at, [_dot(row, at) for row in self.covariance]) if doubts else 0.0
        return _dot(self.terms, at) + doubts * math.sqrt(max(variance, 0.0))

    def largest(self, low: int, high: int, doubts: float = 0.0) -> int:
        """The largest size from `low` to `high` up to which the peak stays within the budget; `low` if none does."""
        return low + bisect.bisect(range(low + 1, high + 1), False, key=lambda size: self.peak(size, doubts) > 1.0)


def fit(points: Iterable[tuple[int, int]], budget: float, noise: float, static: int | None = None) -> Fit | None:
    """Fits (size, peak in bytes). `noise` is the standard deviation of a peak as a share of itself.

    `static` is what is held whatever the batch, None if unknown. None without a point.
    """
    measured = sorted((size, peak / budget) for size, peak in points)
    if not measured:
        return None
    scale, top = measured[-1]
    if static is not None:
        start, doubt = static / budget, CONSTANT
    else:
        # Anything from nothing to all of the smallest peak.
        start = doubt = measured[0][1] / 2
    rows = [(0.0, start, math.hypot(doubt, MISFIT * (top - start)))]
    for size, peak in measured:
        rows.append((size / scale, peak, math.hypot(noise * peak, MISFIT * (top - peak), LEAST_DOUBT)))
    growth = max(top - min(peak for _, peak, _ in rows), noise * top, LEAST_DOUBT)
    ahead = 1 + max(1 - top, 0) / growth
    fitted = _parabola(rows, scale, CURVATURE * growth * min(1.0, FAR / ahead))
    # Growth that slows down is a workspace that went, or a point's noise: it does not go on.
    return fitted if fitted.terms[2] > LEAST_DOUBT * growth else _parabola(rows, scale, LEAST_DOUBT * growth)


def _parabola(rows: list[tuple[float, float, float]], scale: float, curvature: float) -> Fit:
    """Least squares over (size in scales, peak, doubt); the curvature is nought give or take `curvature`.

    Row by row: each corrects the terms and narrows their covariance (recursive least squares).
    """
    terms: list[float] = [0.0, 0.0, 0.0]
    # Next to nothing is known of the intercept and the slope: give or take a hundred budgets.
    covariance = [[1e4, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 0.0, curvature**2]]
    for u, peak, doubt in rows:
        at = _features(u)
        spread = [_dot(row, at) for row in covariance]
        gain = [value / (doubt**2 + _dot(spread, at)) for value in spread]
        error = peak - _dot(terms, at)
        terms = [term + g * error for term, g in zip(terms, gain, strict=True)]
        covariance = [[covariance[i][j] - gain[i] * spread[j] for j in range(3)] for i in range(3)]
    return Fit(scale, terms, covariance)


def _features(u: float) -> tuple[float, float, float]:
    return 1.0, u, u * u


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
