"""What a prediction does for a search: where it starts, and the one jump after the first trial."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gpucheck.batch_size import predict
from gpucheck.batch_size.exchange import Result, Setup
from gpucheck.batch_size.outcome import Outcome
from gpucheck.batch_size.predict import Calibration, Distrusted, Prediction
from gpucheck.batch_size.predict_run import Predictor
from gpucheck.batch_size.predict_sizes import at
from gpucheck.batch_size.recipe import in_words
from gpucheck.batch_size.search import SAFE_SHARE, Attempt, Search

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
        self._axis = setup.recipe.get("axis")
        if budget_bytes is None:
            self.reason = "what is free on the device is not known before a trial"
        elif highest < LEAST_SIZES:
            self.reason = f"at most {highest} sizes are searched"
        elif setup.recipe.get("compile"):
            self.reason = "what a compiler leaves of a model's tensors is not known before it runs"
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

    @property
    def first_size(self) -> int | None:
        """Where to start: at about a quarter of what is predicted; None without a prediction."""
        return self.prediction.first_size() if self.prediction is not None else None

    def steer(self, attempt: Attempt, search: Search, results: Sequence[Result]) -> Attempt:
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
        inside = best is not None and size > best.size and (failing is None or size < failing.size)
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

    def _calibrated(self, first: Result) -> Calibration:
        assert self.prediction is not None
        if first.outcome != "fits":
            raise Distrusted(f"{in_words(first.size, self._axis)}, a quarter of what was predicted, did not fit")
        return predict.calibrate(
            self.prediction.points,
            first.size,
            first.peak_bytes,
            first.compute_peak_bytes,
            allocated=first.memory.get("max_memory_allocated_bytes"),
            kept=first.kept_bytes,
            axis=self._axis,
        )

    def foreseen(self, sizes: Iterable[int]) -> dict[int, float]:
        """The calibrated peak of each size in bytes; without those that nothing is predicted of."""
        if self.prediction is None or self.calibration is None or self.reason is not None:
            return {}
        found = (at(self.prediction.points, size) for size in sizes)
        return {point.size: self.calibration.peak(point.peak_bytes or 0) for point in found if point is not None}

    @property
    def trusted_size(self) -> int | None:
        """The largest size predicted, once a trial has calibrated that; None where it is not to be used."""
        return self.max_batch_size if self.calibration is not None and self.reason is None else None

    @property
    def method(self) -> str:
        """How the search found its sizes."""
        if self.reason is None and self.prediction is not None:
            return "fake tensors"
        return f"fitted trials: {self.reason or 'nothing was predicted'}"

    def entry(self) -> dict[str, Any]:
        """`prediction` of the report."""
        found = self.prediction
        at_max = found.at_max if found is not None else None
        return {
            "max_batch_size": self.max_batch_size,
            "uncalibrated_max_batch_size": found.max_batch_size if found is not None else None,
            "peak_bytes": at_max.peak_bytes if at_max is not None else None,
            "compute_peak_bytes": at_max.compute_peak_bytes if at_max is not None else None,
            "parameter_bytes": at_max.parameter_bytes if at_max is not None else None,
            "gradient_bytes": at_max.gradient_bytes if at_max is not None else None,
            "optimizer_bytes": at_max.optimizer_bytes if at_max is not None else None,
            "calibration": asdict(self.calibration) if self.calibration is not None else None,
            "device": found.device if found is not None else None,
            "seconds": found.seconds if found is not None else None,
            "points": self._points(),
            "reason": self.reason,
        }

    def _points(self) -> list[dict[str, int]]:
        """The calibrated peak of each size that was predicted, smallest first; none where it is not used."""
        sizes = [point.size for point in self.prediction.points] if self.prediction is not None else []
        return [{"batch_size": size, "peak_bytes": round(peak)} for size, peak in self.foreseen(sizes).items()]


def available(deadline: float) -> float:
    """Seconds until a monotonic deadline."""
    return max(0.0, deadline - time.monotonic())
