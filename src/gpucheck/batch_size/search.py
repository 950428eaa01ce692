"""The search for the largest batch that fits: choose the next size from the results so far. No I/O.

The search fits a curve to the measured peaks and jumps instead of doubling. The answer is always a size that was run,
and the number of trials is bounded. A search on a CPU can end without a failure: the best size is the answer if the fit
predicts that a size one tolerance larger exceeds the budget. The result on a device depends on the allocator. Sizes
near the maximum are therefore confirmed at once: such a trial takes more steps, in a new process.
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

# The next size is at most this many times the best size, because a fit from close sizes extrapolates noise.
LARGEST_JUMP = 32
# The relative standard deviation of the peak of one size. Repeats differ by at most 2 %.
PEAK_NOISE = 0.006
# A device's allocator gives the same peak every time. Memory outside the allocator (context, handles) varies a little.
DEVICE_PEAK_NOISE = 0.002
# The predicted peak of the next size, plus this many standard deviations, is within the budget. Few such sizes fail.
MARGIN = 1.0
# The search aims at the likely maximum less this many standard deviations, because a size that passes by noise may fail
# on the next run. A larger value would make the answer too small.
CAUTION = 0.5
# In addition, the search aims this many tolerances lower, because peaks are noisy.
AIM = 0.4
# The search ends if the predicted peak of a size one tolerance larger, less this many standard deviations, exceeds the
# budget. The prediction is right about two times out of three, and more often after more trials near the maximum.
SURE = 0.5
# Sizes to try differ by at least this many tolerances, and a failure this close above the best size ends the search.
# If noise caused the failure, the maximum is above it. The other half of the tolerance leaves room for that.
APART = 0.5
# A device's allocator packs its blocks unpredictably, so the largest size may differ from the fit by a tenth. The first
# step down is this share of the size. Each further failure doubles the step.
STRIDE = 0.04
NEARLY_FULL = 1 - 2 * STRIDE
# On a device, a size up to this many times the best size is confirmed at once, because it may be the answer.
CLOSE = 1.5
# Two sizes closer than this ratio differ more by noise than by growth.
NEAR = 0.75
# Sizes stay below this share of the budget where running out of memory is dangerous (WSL, Windows, unified memory).
SAFE_SHARE = 0.85
SAFE_MARGIN = 3.0
# The first size to try: most workloads fit 8, many do not run with one sample. Where a failure is dangerous, it is 2.
FIRST_SIZE, CAREFUL_SIZE = 8, 2
# With fewer trials, a search also tries the last size below a failure: at 20 samples, one size more is 5 %.
SHORT_SEARCH = 6
# One size does not show how memory grows.
FITTED_SIZES = 2
DEFAULT_TOLERANCE = 0.02
# After a failed first size, the next size is a quarter of it, then a sixteenth of the quarter.
DOWN = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """A size to try. A trial with the purpose `confirm` takes at least three steps, in a new process."""

    size: int
    purpose: Purpose = "search"


@dataclass(slots=True)
class SizeSearch:
    """Finds the largest size in [minimum, cap] whose trial fits, at most `tolerance` below the true maximum.

    If `budget_bytes` is None, the caller does not judge peaks, and the search only bisects. If `on_device`, an
    allocator decides which sizes fit. The search then closes only after a failure, or if the tensors alone exceed the
    budget. Without `seek_failure`, only sizes predicted to stay below 85 % of the budget are tried.

    `static_bytes` are the weights, gradients and optimizer state, once known. Sizes are multiples of `multiple_of`; the
    first one is `start` if given. `tolerance` 0 makes the search exact: it ends only when the next size has failed. A
    search takes at most 2·log2(answer) + 4 trials, plus `extra_trials`.
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

    @property
    def first_failing(self) -> TrialResult | None:
        return min((r for r in self.trials if r.outcome in BOUNDING), key=lambda r: r.batch_size, default=None)

    @property
    def best(self) -> TrialResult | None:
        """The last run of the largest size that passed below every failure, or None."""
        limit = self.first_failing.batch_size if self.first_failing else math.inf
        passed = [r for r in self.trials if r.outcome == FITS and r.batch_size < limit]
        return max(reversed(passed), key=lambda r: r.batch_size, default=None)

    @property
    def confirmed(self) -> bool:
        best = self.best
        return best is not None and best.batch_size in self._confirmed

    @property
    def limited_by(self) -> str | None:
        """The reason why the answer is not larger: the first failure's outcome, `max-batch-size`, `safety` or `trials`.

        `over-budget` may also be a prediction by the fit. None means that the search is still open.
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
        """True if the best size is confirmed and the smallest failed size is at most one tolerance larger."""
        best, failing = self.best, self.first_failing
        if best is None or failing is None or not self.confirmed:
            return False
        return failing.batch_size - best.batch_size <= self.step(best.batch_size)

    @property
    def likely_largest(self) -> int | None:
        """The largest size that should fit by the measured peaks, or None without a reliable prediction."""
        best, failing, fitted = self.best, self.first_failing, self._fit(1.0)
        if best is None or best.allocation_retries or fitted is None or len(dict(self._measured())) < FITTED_SIZES:
            return None
        likely = fitted.largest(best.batch_size, self._highest)
        if failing is not None and likely >= failing.batch_size:
            return None
        return max(best.batch_size, self.rounded(likely))

    @property
    def predicted_above(self) -> int | None:
        """The size one tolerance above the best, if its predicted peak, and not a failure, ended the search."""
        best, failing = self.best, self.first_failing
        if best is None or best.batch_size >= self._highest or not self._closed_by_fit(best):
            return None
        above = best.batch_size + self.step(best.batch_size)
        return above if failing is None or above < failing.batch_size else None

    @property
    def lowest(self) -> int:
        return min(-self.rounded(-self.minimum), self._highest)

    def rounded(self, size: float) -> int:
        return math.floor(size / self.multiple_of) * self.multiple_of

    def next(self) -> Attempt | None:
        """Return the next size to try, or None if the search is over."""
        if (best := self.best) is None:
            return self._down()
        if not self._ended(best) and (candidate := self._candidate(best)) is not None:
            return Attempt(candidate, "confirm" if self._may_be_answer(candidate, best) else "search")
        if not self.confirmed:
            return Attempt(best.batch_size, "confirm")
        return self._neighbour(best)

    def _down(self) -> Attempt | None:
        """Return the first size, or a size far below all failed sizes. Return None after the smallest size."""
        if not (tried := sorted({r.batch_size for r in self.trials if r.outcome != FITS})):
            usual = FIRST_SIZE if self.seek_failure else CAREFUL_SIZE
            first = self.rounded(usual if self.start is None else self.start)
            return Attempt(min(max(first, self.lowest), self._highest))
        if tried[0] <= self.lowest:
            return None
        # A size that ran out of time may be far too large. Step down at least as far as after two failures.
        times = len(tried) if self.trials[-1].outcome != "out-of-time" else max(2, len(tried))
        return Attempt(max(self.lowest, self.rounded(tried[0] / DOWN ** (2 ** (times - 1)))))

    def _may_be_answer(self, size: int, best: TrialResult) -> bool:
        """Return whether to confirm a size at once."""
        failing = self.first_failing
        if self.on_device and self.seek_failure:
            return failing is not None or size <= CLOSE * best.batch_size
        return failing is not None and failing.purpose == "confirm"

    def _neighbour(self, best: TrialResult) -> Attempt | None:
        """Return the next smaller size to confirm if the best size ran only because the allocator emptied its cache.

        A confirmed size at most two tolerances smaller is enough, unless `multiple_of` makes sizes coarse.
        """
        smaller = best.batch_size - self.multiple_of
        near = smaller if self._is_coarse(best.batch_size) else best.batch_size - 2 * self.step(best.batch_size)
        is_known = any(near <= size < best.batch_size for size in self._confirmed)
        if not self.on_device or not best.allocation_retries or smaller < self.lowest or is_known:
            return None
        return None if self._exhausted(best) else Attempt(smaller, "confirm")

    @property
    def _highest(self) -> int:
        return self.rounded(self.cap)

    @property
    def _confirmed(self) -> set[int]:
        return {r.batch_size for r in self.trials if r.purpose == "confirm" and r.outcome == FITS}

    def step(self, size: int) -> int:
        """Return the least distance from `size` to a larger size to try; above the tolerance if sizes are coarse."""
        within = self.rounded(size * self.tolerance)
        return within + self.multiple_of if self._is_coarse(size) else max(self.multiple_of, within)

    def _apart(self, size: int) -> int:
        """Return the least distance between two sizes near `size` at which growth exceeds the noise."""
        return max(self.multiple_of, self.rounded(size * self.tolerance * APART))

    def _is_coarse(self, size: int) -> bool:
        """Return whether `multiple_of` exceeds the usual distance between sizes; always True for an exact search."""
        return self.multiple_of > size * self.tolerance * APART

    def _ended(self, best: TrialResult) -> bool:
        """Return whether no larger size should be tried. A later confirmation can change this."""
        if best.batch_size >= self._highest or self._closed(best) or self._exhausted(best):
            return True
        return not self.seek_failure and self.confirmed

    def _closed(self, best: TrialResult) -> bool:
        if (failing := self.first_failing) is not None:
            width = failing.batch_size - best.batch_size
            # Stop if at most one size is between a confirmed answer and the failure. A short search tries that size.
            is_known = self.on_device and self.confirmed and len(self.trials) >= SHORT_SEARCH
            is_last = is_known and self.tolerance > 0 and width <= 2 * self.multiple_of
            # On a device a failed size fails again, so a failure within one tolerance ends the search.
            if is_last or width <= (self.step(best.batch_size) if self.on_device else self._apart(best.batch_size)):
                return True
        return self._closed_by_fit(best)

    def _closed_by_fit(self, best: TrialResult) -> bool:
        """Return whether a size one tolerance larger is predicted to exceed the budget. Exact searches use no fit."""
        # For a device, the prediction counts only tensors, because their bytes do not depend on the allocator.
        points, size = dict(self._measured(tensors=self.on_device)), best.batch_size
        if not self.tolerance or not self.seek_failure or len(points) < FITTED_SIZES:
            return False
        fitted, step = self._fit(1.0, tensors=self.on_device), self.step(size)
        if fitted is None or fitted.peak(size + step, -SURE) <= 1.0:
            return False
        if not self._is_coarse(size):
            return True
        # For coarse sizes, an extrapolation with the smallest slope must also exceed the budget.
        smaller = [(other, peak) for other, peak in points.items() if other <= NEAR * size]
        smaller += [(0, self.static_bytes)] if self.static_bytes is not None else []
        slope = min(((points[size] - peak) / (size - other) for other, peak in smaller), default=0.0)
        return points[size] + step * slope > (self.budget_bytes or 0)

    def _exhausted(self, best: TrialResult) -> bool:
        largest = self.first_failing.batch_size - 1 if self.first_failing else best.batch_size
        limit = math.floor(2 * math.log2(max(best.batch_size, largest)) + 4)
        return len(self.trials) + 2 > limit + self.extra_trials

    def _candidate(self, best: TrialResult) -> int | None:
        if not self.seek_failure:
            return self._safe(best)
        if self.first_failing is not None:
            return self._between(best, self.first_failing)
        high = min(self._highest, max(self.rounded(best.batch_size * LARGEST_JUMP), best.batch_size + self.multiple_of))
        fitted = self._fit(1.0)
        aim = 2 * best.batch_size if fitted is None else self._aim(best, fitted, high)
        if self.on_device and (packed := self._fit(1.0, tensors=True)) is not None and len(self.trials) >= FITTED_SIZES:
            # The fit of all blocks underestimates the largest size, and the fit of the tensors overestimates it. The
            # first candidate is a third of the way from the first fit to the second, later candidates are halfway.
            most, low, share = packed.largest(best.batch_size, high), best.batch_size, 1 / 2
            if not best.allocation_retries and not any(r.purpose == "confirm" for r in self.trials):
                low, share = aim, 1 / 3
            aim = self.rounded(low + share * (most - low)) if aim < most else most
            # If the allocator's blocks already fill the budget, only slightly larger sizes fit.
            if (best.peak_bytes or 0) > (1 - STRIDE / 2) * (self.budget_bytes or math.inf):
                aim = min(aim, self.rounded(best.batch_size * (1 + 2 * STRIDE)))
        return min(max(aim, best.batch_size + self._apart(best.batch_size)), high)

    def _aim(self, best: TrialResult, fitted: Fit, high: int) -> int:
        """Return a size slightly below the likely maximum, which almost certainly fits."""
        likely = fitted.largest(best.batch_size, 2 * high, CAUTION)
        if self._is_coarse(likely):  # going one size lower would cost more than a failed trial
            return self.rounded(min(likely, high))
        certain = fitted.largest(best.batch_size, high, MARGIN)
        near = likely * (1 - AIM * self.tolerance)
        aim = self.rounded(min(certain, near))
        return aim if aim >= best.batch_size + self._apart(best.batch_size) else self.rounded(near)

    def _between(self, best: TrialResult, failing: TrialResult) -> int:
        """Return a size between both sizes and away from them, so that every trial narrows the bracket."""
        low, high = best.batch_size, failing.batch_size
        step = min(self._apart(low), self.rounded((high - low) / 2))
        # A wide bracket is divided at its geometric mean.
        middle = self.rounded(math.sqrt(low * high) if high > 2 * low else (low + high) / 2)
        middle = min(max(middle, low + self.multiple_of), high - self.multiple_of)
        if (fitted := self._fit(1.0)) is None:
            return middle
        if self.on_device:
            # If the predicted peak of a failed size nearly fills the budget, the size is only slightly too large.
            tried = list(itertools.dropwhile(lambda r: r.outcome != FITS, self.trials))
            below = min((r.batch_size for r in tried if r.outcome == FITS and r.batch_size > high), default=math.inf)
            failures = len({r.batch_size for r in tried if r.outcome in BOUNDING and r.batch_size < below})
            likely = 0
            if failures and fitted.peak(high) > NEARLY_FULL:
                most = fitted.largest(low, high, CAUTION) if failures == 1 else high
                likely = self.rounded(min(most, high * (1 - STRIDE * 2 ** (failures - 1))))
            return min(max(likely, middle), high - max(step, self.multiple_of))
        if fitted.peak(high) <= 1.0:
            return middle
        return min(max(self._aim(best, fitted, high - self.multiple_of), low + step), high - step)

    def _measured(self, *, tensors: bool = False) -> list[tuple[int, int]]:
        """Return (size, peak in bytes) of each trial to fit: the peak of all blocks, or only of the `tensors`."""
        if tensors:
            peaks = [(r.batch_size, r.tensor_bytes) for r in self.trials if r.outcome == FITS]
        else:  # if the allocator had to empty its cache, the peak shows the budget
            peaks = [(r.batch_size, r.fitted_bytes) for r in self.trials if not r.allocation_retries]
        return [(size, peak) for size, peak in peaks if peak is not None]

    def _safe(self, best: TrialResult) -> int | None:
        """Return a size clearly above the best and predicted to stay below the safe share of the budget, or None."""
        failing, fitted = self.first_failing, self._fit(SAFE_SHARE)
        if fitted is None:
            return None
        high = min(self._highest, self.rounded(best.batch_size * LARGEST_JUMP))
        aim: float = fitted.largest(best.batch_size, high, SAFE_MARGIN)
        if failing is not None:
            # The prediction was wrong once, so keep the same distance from the failed size as from the budget.
            aim = min(aim, SAFE_SHARE * failing.batch_size, (best.batch_size + failing.batch_size) / 2)
        target = self.rounded(aim)
        return target if target > best.batch_size + (self.step(best.batch_size) if best.batch_size > 1 else 0) else None

    def _fit(self, share: float, *, tensors: bool = False) -> Fit | None:
        """Fit the peaks up to the first failure, as shares of `share` times the budget. Return None without peaks."""
        if self.budget_bytes is None:
            return None
        limit = self.first_failing.batch_size if self.first_failing else math.inf
        points = [(size, peak) for size, peak in self._measured(tensors=tensors) if size <= limit]
        return fit(points, self.budget_bytes * share, self.noise, self.static_bytes)


def search_for(options: FindBatchSizeOptions, cap: int, budget_bytes: int, *, is_cpu: bool) -> SizeSearch:
    """Return the search that the options request. The first child's report sets its minimum and its real budget."""
    return SizeSearch(
        cap=cap,
        tolerance=0.0 if options.exact else DEFAULT_TOLERANCE if options.tolerance is None else options.tolerance,
        budget_bytes=budget_bytes,
        on_device=not is_cpu,
        seek_failure=not options.avoid_oom,
        multiple_of=options.multiple_of,
        start=options.start,
        noise=PEAK_NOISE if is_cpu else DEVICE_PEAK_NOISE,
    )


# The expected curvature, as a share of the growth. Half of the growth is quadratic if the logits are batch × batch.
CURVATURE = 0.3
# Less curvature is expected if a line reaches the budget only beyond this many times the largest size fitted.
FAR = 5.0
# Memory does not follow an exact parabola. The standard deviation of a point grows by this share of its distance from
# the largest peak.
MISFIT = 0.05
# The standard deviation of constant memory besides weights and optimizer state, as a share of the budget.
CONSTANT = 0.02
# Peaks consist of whole allocator blocks, so no peak is more precise than this share of the budget.
LEAST_DOUBT = 1e-4


@dataclass(frozen=True, slots=True)
class Fit:
    """A parabola of peaks, as shares of the budget, over sizes divided by `scale`, the largest size fitted."""

    scale: float
    terms: Sequence[float]
    covariance: Sequence[Sequence[float]]

    def peak(self, size: float, deviations: float = 0.0) -> float:
        """Return the predicted peak at `size` plus `deviations` standard deviations, as a share of the budget."""
        powers = _powers(size / self.scale)
        variance = _dot(powers, [_dot(row, powers) for row in self.covariance]) if deviations else 0.0
        return _dot(self.terms, powers) + deviations * math.sqrt(max(variance, 0.0))

    def largest(self, low: int, high: int, deviations: float = 0.0) -> int:
        """Return the largest size from `low` to `high` whose peak stays within the budget, or `low` without one."""
        return low + bisect.bisect(range(low + 1, high + 1), False, key=lambda size: self.peak(size, deviations) > 1.0)


def fit(points: Iterable[tuple[int, int]], budget: float, noise: float, static: int | None = None) -> Fit | None:
    """Fit points of (size, peak in bytes). `noise` is relative. `static` is the memory of batch size 0, if known."""
    if not (measured := sorted((size, peak / budget) for size, peak in points)):
        return None
    scale, top = measured[-1]
    if static is not None:
        start, doubt = static / budget, CONSTANT
    else:
        # The memory at size 0 is unknown: it is between 0 and the smallest peak.
        start = doubt = measured[0][1] / 2
    rows = [(0.0, start, math.hypot(doubt, MISFIT * (top - start)))]
    for size, peak in measured:
        rows.append((size / scale, peak, math.hypot(noise * peak, MISFIT * (top - peak), LEAST_DOUBT)))
    growth = max(top - min(peak for _, peak, _ in rows), noise * top, LEAST_DOUBT)
    ahead = 1 + max(1 - top, 0) / growth
    fitted = _parabola(rows, scale, CURVATURE * growth * min(1.0, FAR / ahead))
    # Growth does not slow down. A falling slope comes from noise, or from a workspace that was freed.
    return fitted if fitted.terms[2] > LEAST_DOUBT * growth else _parabola(rows, scale, LEAST_DOUBT * growth)


def _parabola(rows: list[tuple[float, float, float]], scale: float, curvature: float) -> Fit:
    """Fit a parabola to rows of (size / `scale`, peak, standard deviation) by recursive least squares. The expected
    curvature is 0, with the standard deviation `curvature`."""
    terms: list[float] = [0.0, 0.0, 0.0]
    # The intercept and the slope are unknown at first: their standard deviation is a hundred budgets.
    covariance = [[1e4, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 0.0, curvature**2]]
    for u, peak, deviation in rows:
        powers = _powers(u)
        spread = [_dot(row, powers) for row in covariance]
        gain = [value / (deviation**2 + _dot(spread, powers)) for value in spread]
        error = peak - _dot(terms, powers)
        terms = [term + g * error for term, g in zip(terms, gain, strict=True)]
        covariance = [[covariance[i][j] - gain[i] * spread[j] for j in range(3)] for i in range(3)]
    return Fit(scale, terms, covariance)


def _powers(u: float) -> tuple[float, float, float]:
    return 1.0, u, u * u


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
