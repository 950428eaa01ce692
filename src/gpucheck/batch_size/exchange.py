"""What a search and its children tell each other: how a child is set up, and what came out of a trial. Plain data."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from gpucheck.batch_size.outcome import Outcome

# A confirmation takes a third step, since caches settle on some devices; later ones repeat it.
STEPS_CONFIRMED = 3
# How the reason of a failure begins that one large allocation explains, and not a full budget.
AT_ONCE = "one allocation of "
# No trial is thought to hang before so long.
TRIAL_TIMEOUT_LEAST_S = 30.0

# A child's environment has it, so that a script that a trial imports cannot begin a search of its own.
IN_TRIAL = "_GPUCHECK_TRIAL"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a child needs to know. `budget_bytes` and `guard_bytes` are the CPU's; `limit` is for other devices."""

    target: str
    inputs: tuple[str, ...]
    mode: str
    optimizer: str
    dtype: str | None
    device: str
    device_name: str | None
    budget_bytes: int
    guard_bytes: int | None
    limit: dict[str, Any] | None
    free_before: int | None
    shared: bool
    # The child's resident memory may grow by so much before it is ended; None where it is not watched.
    watch_bytes: int | None
    # How a step is run: the fields of `work.spec.Recipe` that are not its defaults.
    recipe: dict[str, Any] = field(default_factory=dict)
    # Folders that a child looks for the target in after its own.
    import_path: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether trials take the host's memory."""
        return self.device == "cpu"


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of one trial. `reason` is one line; `trace` is what was raised, in full.

    `cut` is True where the caller's deadline ended it, which says nothing about the size; `resumed` where it ran in an
    earlier run of the search. Where an allocation failed, `asked_bytes` is its size and `reached_bytes` the trial's
    peak until then.
    """

    size: int
    purpose: str
    fresh: bool
    outcome: Outcome
    reason: str = ""
    trace: str = ""
    peak_bytes: int | None = None
    compute_peak_bytes: int | None = None
    seconds: float = 0.0
    cut: bool = False
    steps_s: tuple[float, ...] = ()
    started_monotonic_s: tuple[float, ...] = ()
    retries: int = 0
    state_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    # On a CPU, what stayed resident after the last step beyond the model's state.
    kept_bytes: int | None = None
    loss: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    resumed: bool = False
    # The fewest and the most numbers in one of its batches.
    batch_elements: tuple[int, ...] = ()
    asked_bytes: int | None = None
    reached_bytes: int | None = None

    @property
    def unlike(self) -> bool:
        """Whether its batches were not all as large, though of one size."""
        return len(set(self.batch_elements)) > 1

    @property
    def later_s(self) -> tuple[float, ...]:
        """The steps after the first, which warms up and says nothing of them."""
        return self.steps_s[1:]

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second: the median of the steps after the first, which warms up; of the only one where so."""
        steps = self.steps_s[1:] or self.steps_s
        return self.size / middle if steps and (middle := statistics.median(steps)) > 0 else None


class Refused(Exception):
    """The child could not be set up for want of memory: `outcome` is its class, `reason` one line."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(outcome, reason)
        self.outcome: Outcome = outcome
        self.reason = reason
