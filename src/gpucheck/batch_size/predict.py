"""The peak as predicted without memory: which sizes to ask for, and what one real trial makes of the prediction. Pure.

Sizes are searched as in real trials. A real trial at about a quarter of what is predicted then calibrates the
prediction, and the search jumps to the calibrated maximum.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpucheck.batch_size.outcome import IN_TRIAL, Setup, TrialResult, in_words
from gpucheck.batch_size.search import SAFE_SHARE, Attempt, Search
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Line, Lost, Talk
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.results.find_batch_size import Calibration, Outcome, PredictedPeak, PredictionResult
from gpucheck.units import MIB, duration

# The prediction's own bracket; a real trial moves it by more. Peaks that are counted have no noise.
TOLERANCE, EXACT = 0.04, 1e-4
# The calibration runs at this share of what is predicted: large enough that what grows decides, cheap, and safe to fit.
FIRST_SHARE = 0.25
# Shares of the predicted size between which the calibrated prediction is read; the last one shows where the budget
# ends.
SHARES = (FIRST_SHARE, 0.5, 0.75, 1.08)
# A size asked that is so near to a wanted one stands for it.
NEAR = 0.05
# So many sizes do for any search; a staircase may want more, and is left as it is then.
MOST_SIZES = 40


@dataclass(frozen=True, slots=True)
class Point:
    """A predicted peak: of a whole step, of forward and backward alone, and of the optimizer's update alone.

    Without bytes the size cannot run.
    """

    size: int
    peak_bytes: int | None = None
    compute_peak_bytes: int | None = None
    update_peak_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    @property
    def phases(self) -> tuple[int, int]:
        """Return what computing takes, and what the update takes: the whole peak where that is not known apart."""
        peak = self.peak_bytes or 0
        computing = self.compute_peak_bytes or peak
        if self.update_peak_bytes is not None:
            return computing, self.update_peak_bytes
        return computing, peak if peak > computing else 0

    def within(self, budget: float) -> bool:
        """Return whether the peak is known and no more than `budget`."""
        return self.peak_bytes is not None and self.peak_bytes <= budget


class Distrusted(Exception):
    """The prediction does not hold; the text says why, in a few words."""


def _below(points: Iterable[Point], size: float) -> Point | None:
    """The largest size asked below another."""
    return max((p for p in points if p.size < size), key=lambda p: p.size, default=None)


def _above(points: Iterable[Point], size: float) -> Point | None:
    """The smallest size asked above another."""
    return min((p for p in points if p.size > size), key=lambda p: p.size, default=None)


def next_size(points: Sequence[Point], budget_bytes: int, lowest: int, highest: int) -> int | None:
    """The next size to ask for; None once the largest within the budget, and the sizes to read between, are known.

    The largest is searched as in real trials: every size costs the same, and what is asked is never asked again.
    """
    search = Search(minimum=lowest, cap=highest, tolerance=TOLERANCE, budget_bytes=budget_bytes, noise=EXACT)
    for point in points:
        ended: Outcome = "over-budget" if point.peak_bytes is not None else "size-limit"
        search.trials.append(
            TrialResult(
                batch_size=point.size,
                purpose="search",
                outcome="fits" if point.within(budget_bytes) else ended,
                peak_bytes=point.peak_bytes,
                compute_peak_bytes=point.peak_bytes and point.phases[0],
            )
        )
    asked = {point.size for point in points}
    attempt, best = search.next(), search.best
    if attempt is not None and attempt.size not in asked:
        return attempt.size
    if best is None:
        return None
    found = largest_within(points, budget_bytes) or best.batch_size
    wanted = [min(max(round(found * share), lowest), highest) for share in SHARES]
    return next((size for size in wanted if all(abs(size - other) > NEAR * size for other in asked)), None)


def largest_within(points: Iterable[Point], budget_bytes: int) -> int | None:
    """The largest size within the budget, read between those asked up to the first above it; None for none."""
    known = sorted(points, key=lambda p: p.size)
    above = next((p.size for p in known if not p.within(budget_bytes)), math.inf)
    return largest((p for p in known if p.size <= above), lambda peak: peak <= budget_bytes)


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
    """Return what is predicted of `size`, asked or not; None outside the sizes asked.

    What computing takes and what the update takes grow in a straight line between the sizes around it, each by itself.
    """
    known = [p for p in points if p.peak_bytes is not None]
    below, above = _below(known, size + 1), _above(known, size - 1)
    if below is None or above is None:
        return None
    share = (size - below.size) / (above.size - below.size) if above.size > below.size else 0.0
    computing, update = (
        round(low + share * (high - low)) for low, high in zip(below.phases, above.phases, strict=True)
    )
    peak = max(computing, update)
    return replace(below, size=size, peak_bytes=peak, compute_peak_bytes=computing, update_peak_bytes=update)


# Measured over predicted: outside, something else than the tensors counted rules the memory.
LEAST_FACTOR, LARGEST_FACTOR = 0.9, 1.5
# Libraries keep workspaces in the allocator, at most about so much whatever the size: cuBLAS's are no tensor predicted.
WORKSPACES = 16 * MIB
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
class Foresight:
    """The prediction by fake tensors, its calibration by the first trial, and the `reason` if it is not used.

    `points` are the peaks seen, smallest first; none where nothing was predicted. `uncalibrated` is the largest size
    within the budget by them (None: not even the smallest), `max_batch_size` by their calibration too. `device` is the
    kind that the fake tensors were on; `seconds` is what it took, alone.
    """

    points: tuple[Point, ...] = ()
    uncalibrated: int | None = None
    max_batch_size: int | None = None
    device: str | None = None
    seconds: float | None = None
    calibration: Calibration | None = None
    reason: str | None = None

    @property
    def at_max(self) -> Point | None:
        return None if self.uncalibrated is None else at(self.points, self.uncalibrated)

    @property
    def first_size(self) -> int | None:
        """Where to start: at about a quarter of what is predicted; None where nothing is predicted to fit."""
        return None if self.uncalibrated is None else max(1, int(FIRST_SHARE * self.uncalibrated))

    def within(self, room: float) -> int | None:
        """The largest of the sizes predicted whose calibrated peak is at most `room` bytes; None where none is."""
        calibration = self.calibration
        assert calibration is not None
        return largest(self.points, lambda peak: calibration.peak(peak) <= room)

    @property
    def method(self) -> str:
        """Return how the search found its sizes."""
        if self.reason is None and self.points:
            return "fake tensors"
        return f"fitted trials: {self.reason or 'no prediction was made'}"

    def peaks(self, sizes: Iterable[int]) -> dict[int, float]:
        """The calibrated peak of each size in bytes; without those that nothing is predicted of."""
        if self.calibration is None:
            return {}
        found = (at(self.points, size) for size in sizes)
        return {point.size: self.calibration.peak(point.peak_bytes or 0) for point in found if point is not None}

    def result(self) -> PredictionResult:
        """`prediction` of the answer, with the calibrated peak of each size that was predicted, smallest first."""
        at_max = self.at_max or Point(0)
        peaks = self.peaks(point.size for point in self.points)
        return PredictionResult(
            max_batch_size=self.max_batch_size,
            uncalibrated_max_batch_size=self.uncalibrated,
            peak_bytes=at_max.peak_bytes,
            compute_peak_bytes=at_max.compute_peak_bytes,
            parameter_bytes=at_max.parameter_bytes,
            gradient_bytes=at_max.gradient_bytes,
            optimizer_bytes=at_max.optimizer_bytes,
            calibration=self.calibration,
            device=self.device,
            seconds=self.seconds,
            points=tuple(PredictedPeak(size, round(peak)) for size, peak in peaks.items()),
            reason=self.reason,
        )


def foresee(points: Sequence[Point], budget_bytes: int, device: str | None, seconds: float | None) -> Foresight:
    """Return what the peaks asked for say of a budget."""
    fitting = largest_within(points, budget_bytes)
    return Foresight(tuple(sorted(points, key=lambda p: p.size)), fitting, fitting, device, seconds)


def checked(points: Iterable[Point], axis: str | None = None) -> None:
    """Raises Distrusted where more of a batch, or of a length along `axis`, is predicted to take less memory."""
    known = sorted((p for p in points if p.peak_bytes is not None), key=lambda p: p.size)
    for smaller, larger in itertools.pairwise(known):
        assert smaller.peak_bytes is not None and larger.peak_bytes is not None
        if larger.peak_bytes < (1 - FALL) * smaller.peak_bytes:
            more, less = in_words(larger.size, axis), in_words(smaller.size, axis)
            raise Distrusted(f"{more} is predicted to need less than {less}")


def calibrate(points: Sequence[Point], trial: TrialResult, axis: str | None = None) -> Calibration:
    """Compare the prediction with a trial: its peak, that of forward and backward, and what is no tensor.

    Of what the peak holds beyond the tensors, a part does not grow with the size. On a device that is what lies outside
    its allocator (context, workspaces); the allocator's cache, and what it loses in pieces, grow with the tensors. On a
    CPU it is what stays between steps beyond the model's state (threads' stacks, libraries' own): what was kept, and no
    more than was taken beyond the prediction, since what the model itself keeps is predicted. Raises Distrusted where
    the prediction is not to be used.
    """
    size, measured = trial.batch_size, trial.peak_bytes
    if measured is None:
        raise Distrusted("the first trial's peak was not measured")
    predicted = at(points, size)
    if predicted is None:
        raise Distrusted(f"no prediction near {in_words(size, axis)}")
    peak, (computing, _) = predicted.peak_bytes or 0, predicted.phases
    allocated, compute = trial.memory.get("max_memory_allocated_bytes"), trial.compute_peak_bytes
    if allocated is not None:
        reserved = trial.memory.get("max_memory_reserved_bytes") or allocated
        libraries = min(WORKSPACES, max(0, allocated - peak))
        off, factor = (allocated - libraries) / peak, (reserved - libraries) / peak
        constant = max(0, measured - reserved) + libraries
    else:
        taken, foreseen = (measured, peak) if compute is None else (compute, computing)
        constant = min(trial.kept_bytes or 0, max(0, taken - foreseen))
        off = factor = (taken - constant) / foreseen
    if not LEAST_FACTOR <= off <= LARGEST_FACTOR:
        raise Distrusted(f"{in_words(size, axis)} took {off:.2f} times the prediction")
    return Calibration(size, factor, constant)


# --- The child that predicts, and what it does for a search -----------------------------------------------------------

# Importing torch takes seconds; a size takes a tenth of one, a large model's some seconds.
LONGEST_S = 60.0
# A prediction may take so much of the time that there is: it saves a few trials, not more.
SHARE_OF_TIME = 0.3
# On a CPU it loads torch beside the first child's: then both have so much of it.
SHARE_WITH_LOADING = 0.5


class Predictor:
    """A child that predicts peaks; it begins at once, so that the parent may do something else meanwhile.

    `lowest` None is the smallest batch that the model takes; `budget_bytes` None is what a CUDA device tells the child.
    With `on_host` fake tensors are on the CPU whatever the device: it is left alone, or is not here.
    """

    def __init__(
        self,
        setup: Setup,
        budget_bytes: int | None,
        lowest: int | None,
        highest: int,
        available_s: float,
        *,
        on_host: bool = False,
    ) -> None:
        self._limit = min(LONGEST_S, SHARE_OF_TIME * available_s)
        # On a CPU the first child, which is needed anyway, loads meanwhile.
        self._loads = min(LONGEST_S, SHARE_WITH_LOADING * available_s) if setup.is_cpu else 0.0
        self._began = time.monotonic()
        self._axis: str | None = setup.recipe.axis
        self._talk: Talk | None = None
        request = {**to_json(setup), "known_bytes": budget_bytes, "on_host": on_host}
        request |= {"lowest": lowest, "highest": highest}
        argv, environment = python_argv("gpucheck.batch_size.trial_fake"), {**os.environ, IN_TRIAL: "1"}
        self._lost: Lost | None = None
        try:
            self._talk = Talk(lambda: LineChild(argv, env=environment))
            self._talk.send(request)
        except Lost as lost:  # said when it is asked
            self._lost = lost
        except BaseException:  # a signal, before anybody could close this
            self.close()
            raise

    def close(self) -> None:
        if self._talk is not None:
            self._talk.stop()

    def result(self, budget_bytes: int) -> Foresight:
        """The largest size within the budget, once it is known. Raises Distrusted where fake tensors cannot tell."""
        ready = self._answer(self._began + max(self._limit, self._loads))
        deadline = self._began + self._limit
        if self._loads:
            deadline = min(time.monotonic() + self._limit, self._began + self._loads)
        if not ready["ok"]:
            raise Distrusted(f"fake tensors cannot run it: {ready['why']}")
        points: list[Point] = []
        while not (answer := self._answer(deadline)).get("done"):
            if not answer["ok"] and not points:
                raise Distrusted(f"fake tensors cannot run it: {answer['why']}")
            # A kernel's limit, or a size that overflows: whatever it is, it does not run.
            points.append(from_json(Point, answer))
        checked(points, self._axis)
        return foresee(points, budget_bytes, ready["device"], time.monotonic() - self._began)

    def _answer(self, deadline: float) -> Line:
        try:
            if self._lost is not None:
                raise self._lost
            assert self._talk is not None
            answer = self._talk.receive(max(deadline - time.monotonic(), 0.0))
        except Lost as lost:
            ending = lost.ending
            how = f"by {ending.signal}" if ending.signal else f"with exit status {ending.status}"
            ended = f"cannot be started ({ending.reason})" if ending.how == "unstarted" else f"ended {how}"
            raise Distrusted(f"the fake-tensor process {ended}") from None
        if answer is None:
            raise Distrusted(f"fake tensors took longer than {duration(self._limit)}")
        return answer


# Below this many sizes the search itself needs as few trials.
LEAST_SIZES = 16
# Trials that say nothing of their size's memory.
SILENT: frozenset[Outcome] = frozenset(("out-of-time", "inconclusive", "user-error"))


class Guide:
    """Predicts beside the first child's start, then steers a Search. `foresight` is what is predicted by now."""

    def __init__(self) -> None:
        self.foresight = Foresight()
        self._predictor: Predictor | None = None
        self._jumped = False
        self._axis: str | None = None

    def begin(
        self, setup: Setup, budget_bytes: int | None, lowest: int | None, highest: int, available_s: float
    ) -> None:
        """Start the child that predicts sizes from `lowest`, None for the smallest batch, to `highest`."""
        self._axis, why = setup.recipe.axis, None
        if budget_bytes is None and not setup.device.startswith("cuda"):
            why = "the device's free memory is unknown before a trial"
        elif highest < LEAST_SIZES:
            why = f"at most {highest} sizes are searched"
        elif setup.recipe.compile:
            why = "a compiled model's tensors are known only after it runs"
        else:
            self._predictor = Predictor(setup, budget_bytes, lowest, highest, available_s)
        self.foresight = Foresight(reason=why)

    def finish(self, budget_bytes: int) -> None:
        """Wait for the prediction, end its child, and read what is predicted against the budget."""
        if self._predictor is not None:
            try:
                self.foresight = self._predictor.result(budget_bytes)
            except Distrusted as why:
                self.foresight = Foresight(reason=str(why))
            self.close()
        elif (known := self.foresight).points:
            self.foresight = foresee(known.points, budget_bytes, known.device, known.seconds)

    def close(self) -> None:
        predictor, self._predictor = self._predictor, None
        if predictor is not None:
            predictor.close()

    def steer(self, attempt: Attempt, search: Search, results: Sequence[TrialResult]) -> Attempt:
        """The attempt, or once, after the first trial, the size at which the calibrated prediction meets the budget."""
        first = next((r for r in results if r.outcome not in SILENT), None)
        points = self.foresight.points
        best, failing = search.best, search.first_failing
        if self._jumped or not points or first is None or (best is not None and attempt.size <= best.batch_size):
            return attempt
        self._jumped = True
        budget = search.budget_bytes
        assert budget is not None
        try:
            if first.outcome != "fits":
                raise Distrusted(f"{in_words(first.batch_size, self._axis)}, a quarter of the prediction, did not fit")
            calibration = calibrate(points, first, self._axis)
        except Distrusted as why:
            self.foresight = replace(self.foresight, reason=str(why))
            return attempt
        self.foresight = replace(self.foresight, calibration=calibration)
        self.foresight = replace(self.foresight, max_batch_size=self.foresight.within(budget))
        if calibration.factor >= 1:
            search.beyond = min((point.size for point in points if not point.within(budget)), default=None)
        size = self._aim(search, budget, rough=first.kept_bytes is None)
        inside = best is not None and size > best.batch_size and (failing is None or size < failing.batch_size)
        return Attempt(size) if inside else attempt

    def _aim(self, search: Search, budget: int, *, rough: bool) -> int:
        """The size to jump to; 0 for none. Where sizes are few, one step nearer to the budget than otherwise."""
        safely = 1.0 if search.seek_failure else SAFE_SHARE
        if rough or not search.seek_failure:
            return search.allowed(self.foresight.within(safely * ROUGH_AIM * budget) or 0)
        size, nearer = (search.allowed(self.foresight.within(share * budget) or 0) for share in (AIM, NEXT))
        return nearer if nearer >= size + search.step(size) else size
