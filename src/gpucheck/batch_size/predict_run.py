"""The parent's side of a prediction: the child that runs fake tensors, asked until the maximum is known."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

from gpucheck.batch_size.exchange import IN_TRIAL, Setup
from gpucheck.batch_size.predict import Distrusted, Prediction, checked, prediction
from gpucheck.batch_size.predict_sizes import Point
from gpucheck.machine.child import ChildEnded, LineChild, python_argv
from gpucheck.units import duration

# Importing torch takes seconds; a size takes a tenth of one, a large model's some seconds.
LONGEST_S = 60.0
# A prediction may take so much of the time that there is: it saves a few trials, not more.
SHARE_OF_TIME = 0.3

_PEAKS = ("peak_bytes", "compute_peak_bytes", "update_peak_bytes")
_FIGURES = (*_PEAKS, "parameter_bytes", "gradient_bytes", "optimizer_bytes")


class Predictor:
    """A child that predicts peaks; it begins at once, so that the parent may do something else meanwhile.

    `lowest` None is the smallest batch that the model takes. With `on_host` fake tensors are on the CPU whatever the
    device: it is left alone, or is not here.
    """

    def __init__(
        self,
        setup: Setup,
        budget_bytes: int,
        lowest: int | None,
        highest: int,
        available_s: float,
        *,
        on_host: bool = False,
    ) -> None:
        self._limit = min(LONGEST_S, SHARE_OF_TIME * available_s)
        # On a CPU loading happens beside the first child's, and is no part of the time that there is.
        self._loads = LONGEST_S if setup.is_cpu else 0.0
        self._began = time.monotonic()
        self._axis: str | None = setup.recipe.get("axis")
        self._child = LineChild(python_argv("gpucheck.batch_size.trial_fake"), env={**os.environ, IN_TRIAL: "1"})
        told = {**asdict(setup), "budget_bytes": budget_bytes, "on_host": on_host}
        told |= {"lowest": lowest, "highest": highest}
        try:
            self._child.send(json.dumps(told))
        except ChildEnded:  # said when it is asked
            pass
        except BaseException:  # a signal, before anybody could close this
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        self._child.kill()

    def result(self, budget_bytes: int) -> Prediction:
        """The largest size within the budget, once it is known. Raises Distrusted where fake tensors cannot tell."""
        ready = self._answer(self._began + max(self._limit, self._loads))
        deadline = (time.monotonic() if self._loads else self._began) + self._limit
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

    def _answer(self, deadline: float) -> dict[str, Any]:
        try:
            line = self._child.receive(max(deadline - time.monotonic(), 0.0))
        except ChildEnded as ended:
            raise Distrusted(_ended(ended)) from None
        if line is None:
            raise Distrusted(f"fake tensors took longer than {duration(self._limit)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _ended(ended: ChildEnded) -> str:
    status = ended.returncode
    how = f"by signal {-status}" if status is not None and status < 0 else f"with exit status {status}"
    return f"the process with fake tensors ended {how}"
