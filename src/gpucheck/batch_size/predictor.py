"""The child that predicts, asked until the maximum is known, and what it does for a search: where that starts, and the
one jump after the first trial."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from gpucheck.batch_size import predict
from gpucheck.batch_size.outcome import IN_TRIAL, Setup, TrialResult
from gpucheck.batch_size.plan import in_words
from gpucheck.batch_size.predict import Distrusted, Foresight, Point, Prediction, checked, prediction
from gpucheck.batch_size.search import SAFE_SHARE, Attempt, Search
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.talk import Ending, Line, Lost, Talk
from gpucheck.report.codec import to_json
from gpucheck.report.results.find_batch_size import Calibration, Outcome
from gpucheck.units import duration

# Importing torch takes seconds; a size takes a tenth of one, a large model's some seconds.
LONGEST_S = 60.0
# A prediction may take so much of the time that there is: it saves a few trials, not more.
SHARE_OF_TIME = 0.3
# On a CPU it loads torch beside the first child's: then both have so much of it.
SHARE_WITH_LOADING = 0.5

_PEAKS = ("peak_bytes", "compute_peak_bytes", "update_peak_bytes")
_FIGURES = (*_PEAKS, "parameter_bytes", "gradient_bytes", "optimizer_bytes")


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
        told = {**to_json(setup), "known_bytes": budget_bytes, "on_host": on_host}
        told |= {"lowest": lowest, "highest": highest}
        argv, environment = python_argv("gpucheck.batch_size.trial_fake"), {**os.environ, IN_TRIAL: "1"}
        self._lost: Lost | None = None
        try:
            self._talk = Talk(lambda: LineChild(argv, env=environment))
            self._talk.send(told)
        except Lost as lost:  # said when it is asked
            self._lost = lost
        except BaseException:  # a signal, before anybody could close this
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        if self._talk is not None:
            self._talk.stop()

    def result(self, budget_bytes: int) -> Prediction:
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
            points.append(Point(answer["size"], *(answer.get(name) for name in _FIGURES)))
        checked(points, self._axis)
        return prediction(points, budget_bytes, ready["device"], time.monotonic() - self._began)

    def _answer(self, deadline: float) -> Line:
        try:
            if self._lost is not None:
                raise self._lost
            assert self._talk is not None
            answer = self._talk.receive(max(deadline - time.monotonic(), 0.0))
        except Lost as lost:
            raise Distrusted(_ended(lost.ending)) from None
        if answer is None:
            raise Distrusted(f"fake tensors took longer than {duration(self._limit)}")
        return answer


def _ended(ending: Ending) -> str:
    if ending.how == "unstarted":
        return f"the fake-tensor process cannot be started ({ending.reason})"
    how = f"by {ending.signal}" if ending.signal else f"with exit status {ending.status}"
    return f"the fake-tensor process ended {how}"


# Below this many sizes the search itself needs as few trials.
LEAST_SIZES = 16
# Trials that say nothing of their size's memory.
SILENT: frozenset[Outcome] = frozenset(("out-of-time", "inconclusive", "user-error"))


class Guide:
    """Predicts beside the first child's start, then steers a Search. `reason` says why trials are fitted instead."""

    def __init__(self) -> None:
        self.prediction: Prediction | None = None
        self.calibration: Calibration | None = None
        self.reason: str | None = None
        self.max_batch_size: int | None = None
        self._predictor: Predictor | None = None
        self._jumped = False
        self._axis: str | None = None

    def begin(
        self, setup: Setup, budget_bytes: int | None, lowest: int | None, highest: int, available_s: float
    ) -> None:
        """Start the child that predicts sizes from `lowest`, None for the smallest batch, to `highest`."""
        self._axis = setup.recipe.axis
        if budget_bytes is None and not setup.device.startswith("cuda"):
            self.reason = "the device's free memory is unknown before a trial"
        elif highest < LEAST_SIZES:
            self.reason = f"at most {highest} sizes are searched"
        elif setup.recipe.compile:
            self.reason = "a compiled model's tensors are known only after it runs"
        else:
            self._predictor = Predictor(setup, budget_bytes, lowest, highest, available_s)

    def finish(self, budget_bytes: int) -> None:
        """Wait for the prediction, and end its child."""
        if self._predictor is None:
            return
        try:
            self.prediction = self._predictor.result(budget_bytes)
        except Distrusted as why:
            self.reason = str(why)
        self.close()

    def close(self) -> None:
        """End the child, if there is one."""
        predictor, self._predictor = self._predictor, None
        if predictor is not None:
            predictor.close()

    def settle(self, budget_bytes: int) -> None:
        """Read the prediction against the budget that a device really has."""
        old = self.prediction
        if old is not None:
            self.prediction = predict.prediction(old.points, budget_bytes, old.device, old.seconds)
            self.max_batch_size = self.prediction.max_batch_size

    def steer(self, attempt: Attempt, search: Search, results: Sequence[TrialResult]) -> Attempt:
        """The attempt, or once, after the first trial, the size at which the calibrated prediction meets the budget."""
        first = next((r for r in results if r.outcome not in SILENT), None)
        if self._jumped or self.prediction is None or first is None or attempt.purpose != "search":
            return attempt
        self._jumped = True
        try:
            self.calibration = self._calibrated(first)
        except Distrusted as why:
            self.reason = str(why)
            return attempt
        assert search.budget_bytes is not None
        self.max_batch_size = self._within(search.budget_bytes)
        size = self._aim(search, search.budget_bytes, rough=first.kept_bytes is None)
        # Trials of an earlier run may know more than the prediction does.
        best, failing = search.best, search.first_failing
        inside = best is not None and size > best.batch_size and (failing is None or size < failing.batch_size)
        return Attempt(size) if inside else attempt

    def _aim(self, search: Search, budget: int, *, rough: bool) -> int:
        """The size to jump to; 0 for none. Where sizes are few, one step nearer to the budget than otherwise."""
        safely = 1.0 if search.seek_failure else SAFE_SHARE
        if rough or not search.seek_failure:
            return search.allowed(self._within(safely * predict.ROUGH_AIM * budget) or 0)
        size, nearer = (search.allowed(self._within(share * budget) or 0) for share in (predict.AIM, predict.NEXT))
        return nearer if nearer >= size + search.step(size) else size

    def _within(self, room: float) -> int | None:
        assert self.prediction is not None and self.calibration is not None
        return predict.largest_within(self.prediction.points, self.calibration, room)

    def _calibrated(self, first: TrialResult) -> Calibration:
        assert self.prediction is not None
        if first.outcome != "fits":
            raise Distrusted(f"{in_words(first.batch_size, self._axis)}, a quarter of the prediction, did not fit")
        return predict.calibrate(
            self.prediction.points,
            first.batch_size,
            first.peak_bytes,
            first.compute_peak_bytes,
            allocated=first.memory.get("max_memory_allocated_bytes"),
            kept=first.kept_bytes,
            axis=self._axis,
        )

    @property
    def foresight(self) -> Foresight:
        """What is predicted by now."""
        return Foresight(self.prediction, self.calibration, self.reason, self.max_batch_size)
