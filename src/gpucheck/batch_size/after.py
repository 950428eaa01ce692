"""What is run once the search has its answer, as far as time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck.batch_size import use
from gpucheck.batch_size.history import Followed, History, Recommended
from gpucheck.batch_size.outcome import STEPS_CONFIRMED, TRIAL_TIMEOUT_LEAST_S, Refused, TrialResult
from gpucheck.batch_size.plan import in_words, kind_of_size
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.errors import GpucheckError
from gpucheck.report.codec import to_json
from gpucheck.report.events import Emit, Progress, Trial

# A trial may take so many times what the trials before suggest.
PATIENCE_FACTOR = 4.0
_NO_TIME = Recommended(reason="no time left to run it")


class After:
    """What else happens in an epoch; the answer with the system's own malloc (CPU); and the size to use.

    `seconds` forecasts how long so many steps of a size take; `deadline` is on the monotonic clock. What ran is in the
    `history`, but for the size to use, which is returned.
    """

    def __init__(
        self,
        runner: Runner,
        history: History,
        emit: Emit,
        seconds: Callable[[int, int], float],
        deadline: float,
    ) -> None:
        self.runner, self.history, self.emit = runner, history, emit
        self.seconds, self.deadline = seconds, deadline
        self.axis = history.axis
        self._default: Runner | None = None

    def leave_out(self, largest: int, why: str) -> None:
        """Run nothing of it but a batch of 1 where the model may not train with that, and say why."""
        self.history.take(Recommended(reason=why))
        if self.runner.ready.get("smallest_batch", 1) > 1 and largest > 1 and self.axis is None:
            self._check_each([("partial batch", 1)])

    def run(self, largest: int, aim: float, multiple_of: int = 1) -> Recommended:
        """Run what follows the confirmation of `largest`; a size to use takes at most `aim` bytes.

        The size to use comes first where there is not time for all, then the largest with the default malloc.
        """
        is_cpu = self.runner.setup.is_cpu
        once, thrice = self.seconds(largest, 1), self.seconds(largest, STEPS_CONFIRMED)
        # With the default malloc two processes load at the same time.
        left = self.deadline - time.monotonic() - (self.runner.start_s if is_cpu else 0.0) - thrice
        self._check(largest, small_alone=left < 2 * once + (thrice if is_cpu else 0.0))
        try:
            if is_cpu and left >= thrice:
                result = self._with_default_malloc(largest)
                if result is not None and result.peak_bytes is not None:
                    self._take(replace(result, purpose="default malloc"))
            return self._recommend(largest, aim, multiple_of)
        finally:
            if self._default is not None:
                self._default.close()

    def _check(self, largest: int, *, small_alone: bool) -> None:
        """An evaluation step, and what an epoch's last batch may be: one less, and a single sample.

        With `small_alone` only the last, which takes no time.
        """
        evaluates = self.runner.setup.mode == "train" and not small_alone
        wanted: list[tuple[str, int]] = [("evaluation", largest)] if evaluates else []
        if self.axis is None:  # along an axis the batch is fixed
            sizes = dict.fromkeys((1,) if small_alone else (largest - 1, 1))
            wanted += [("partial batch", size) for size in sizes if 1 <= size < largest]
        known = {(check.purpose, check.batch_size) for check in self.history.checks}
        self._check_each([check for check in wanted if check not in known])

    def _check_each(self, wanted: Sequence[tuple[str, int]]) -> None:
        """One step of each purpose and size, as far as there is time."""
        for purpose, size in wanted:
            needed = self._needed(size, steps=1)
            if needed is None:
                continue
            self.emit(self._progress(f"{size}, {purpose}"))
            attempt, evaluating = Attempt(size), purpose == "evaluation"
            try:
                result = self._trial(self.runner, attempt, needed, steps=1, evaluate=evaluating)
            except (Refused, GpucheckError):
                return
            if not result.cut:
                self.history.take(Followed(replace(result, purpose=purpose)))

    def _recommend(self, largest: int, aim: float, multiple_of: int) -> Recommended:
        """The size whose peak is within `aim`, run; on a CPU as the user's own process will, with its malloc."""
        default_malloc = self.history.default_malloc
        # Above the budget with the default malloc, the largest was run all the same, and its steps timed.
        like: list[TrialResult] = (
            [replace(default_malloc, outcome="fits")] if default_malloc else [*self.history.results]
        )
        if self.runner.setup.is_cpu and default_malloc is None:
            like = []  # what was run with other settings of malloc may take less than it will
        known = {r.batch_size: r for r in like if r.outcome == "fits"}
        peaks = use.peaks(self.history.results, largest, default_malloc)
        for _ in range(use.TRIES):
            size = use.choose(peaks, aim, largest, multiple_of)
            if size is None:
                least = "smallest batch" if self.axis is None else f"least {kind_of_size(self.axis)}"
                return Recommended(reason=f"even the {least} leaves less than the headroom")
            result = known.get(size) or self._run(size)
            if result is None:
                # The largest may leave the headroom as it is; then the rounding alone had no time.
                result, size = known.get(largest), largest
                if result is None or not use.meets(result, aim):
                    return _NO_TIME
            if use.meets(result, aim):
                speeds = use.speeds([*like, *self.history.recommended_trials])
                return Recommended(result, speed=use.against(speeds, size, largest))
            if result.peak_bytes is None:
                return Recommended(reason=f"{in_words(size, self.axis)} fails: {result.reason}")
            peaks[size] = result.peak_bytes
        return Recommended(reason="memory grows unevenly: two sizes took more than their neighbours suggest")

    def _run(self, size: int) -> TrialResult | None:
        """One trial of the size to recommend; None where there is no time, or no child could be set up."""
        result = self._with_default_malloc(size) if self.runner.setup.is_cpu else self._in_the_same_child(size)
        if result is None or result.cut:
            return None
        result = replace(result, purpose="recommended")
        self._take(result)
        return result

    def _in_the_same_child(self, size: int) -> TrialResult | None:
        needed = self._needed(size)
        if needed is None:
            return None
        self.emit(self._progress(f"{size}, recommended"))
        try:
            return self._trial(self.runner, Attempt(size), needed)
        except (Refused, GpucheckError):
            return None

    def _with_default_malloc(self, size: int) -> TrialResult | None:
        """One trial in a process of its own with the system's malloc settings; None as above."""
        needed = self._needed(size, start_s=self._default.next_start_s if self._default is not None else None)
        if needed is None:
            return None
        self.runner.close()
        self.emit(self._progress(f"{size} with the default malloc"))
        if self._default is None:
            # Its peak is wanted, not a verdict: the system's limit stays away.
            self._default = Runner(replace(self.runner.setup, guard_bytes=None), malloc="default")
            self._default.load_ahead()  # the size to use takes a second process
        try:
            return self._trial(self._default, Attempt(size, "confirm"), needed)
        except (Refused, GpucheckError):
            return None

    def _trial(
        self, runner: Runner, attempt: Attempt, needed: float, *, steps: int = STEPS_CONFIRMED, evaluate: bool = False
    ) -> TrialResult:
        limit = TRIAL_TIMEOUT_LEAST_S + PATIENCE_FACTOR * needed
        return runner.run(attempt, steps=steps, limit_s=limit, deadline=self.deadline, evaluate=evaluate)

    def _needed(self, size: int, steps: int = STEPS_CONFIRMED, *, start_s: float | None = None) -> float | None:
        """Seconds that a trial takes, a new child included; None where that is more than is left."""
        needed = (self.runner.start_s if start_s is None else start_s) + self.seconds(size, steps)
        return None if time.monotonic() + needed > self.deadline else needed

    def _progress(self, step: str) -> Progress:
        return Progress(f"{self.axis or 'batch'} {step}", done=self.history.trial_count)

    def _take(self, result: TrialResult) -> None:
        self.history.take(Followed(result))
        self.emit(Trial(self.history.trial_count, to_json(result.entry), self.axis))
