"""The answer of `find-batch-size`: for one device, or as an estimate for another device.

Along an axis every size is a length. Keys with a default are newer than the first documents, which are read without
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpucheck.report.measurement import DeviceRef

# How a trial ended. `fits` passed; what each of the others says of its size stands in `batch_size/outcome.py`.
Outcome = Literal[
    "fits",
    "over-budget",
    "out-of-memory",
    "host-out-of-memory",
    "suspected",
    "size-limit",
    "spill",
    "timeout",
    "killed",
    "out-of-time",
    "user-error",
    "device-broken",
    "inconclusive",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEntry:
    """One trial: its size, how it ended and why, and what it took.

    `samples_per_s` is by the median of the steps after the first.
    """

    batch_size: int
    outcome: Outcome
    reason: str | None = None
    purpose: str
    fresh_process: bool = False
    peak_bytes: int | None = None
    compute_peak_bytes: int | None = None
    samples_per_s: float | None = None
    steps_s: tuple[float, ...] = ()
    seconds: float = 0.0
    allocation_retries: int = 0


@dataclass(frozen=True, slots=True)
class SearchAxis:
    """The dimension whose length is searched, and the fixed batch size beside it."""

    name: str
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecipe:
    """The settings of a step, beyond the model: autocast's dtype, checkpointed activations, torch.compile, the axis."""

    amp: str | None = None
    grad_checkpointing: bool = False
    compile: bool = False
    # With the name of a dimension, sizes are its length, and `batch_size` is the batch's fixed size.
    axis: str | None = None
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class SearchMethod:
    """The way to the peaks (`peak`), and what ran. With `seek_failure` false, sizes stay below 85 % of the budget."""

    peak: str | None = None
    seek_failure: bool = True
    inputs: tuple[str, ...] = ()
    recipe: StepRecipe | None = None


@dataclass(frozen=True, slots=True)
class RecommendedSize:
    """The size to use, as it was run; without one, `reason` says why.

    `headroom` is the share of the budget that its peak leaves free, `headroom_wanted` the one asked for.
    """

    batch_size: int | None
    headroom: float | None
    headroom_wanted: float | None = None
    peak_bytes: int | None = None
    samples_per_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest size that was run within 5 % of the fastest. `noise` is the typical spread of a size's steps."""

    batch_size: int | None
    samples_per_s: float | None = None
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Bytes by what holds them, after a step of the largest size.

    `parameter_bytes` counts buffers too. `activation_bytes_per_sample` is the slope of the peak of forward and backward
    over the batch size; `fixed_bytes` what that peak holds besides, whatever the size (workspaces, a device's context).
    None is unknown.
    """

    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    activation_bytes_per_sample: int | None = None
    fixed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Accumulation:
    """`steps` micro-batches make `effective_batch`: all of `micro_batch` samples, or `smaller` of them one fewer.

    `limit` is the largest micro-batch that was allowed.
    """

    effective_batch: int
    micro_batch: int
    steps: int
    smaller: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatchSize:
    """The answer of one device.

    `max_batch_size` is the largest size that passed, where larger ones are known not to fit; where the search ended
    before it knew, or at its cap (`limited_by`), it is None and `at_least` has what passed. `limiting_factor` puts
    `limited_by` in one word: `memory` for every way to run out of it. `predicted_above` is a size whose predicted peak
    ended the search. The budget has its margin left out already.
    """

    max_batch_size: int | None
    at_least: int | None = None
    predicted_batch_size: int | None = None
    confirmed: bool
    first_failing: int | None = None
    first_failing_outcome: Outcome | None = None
    predicted_above: int | None = None
    limited_by: str | None = None
    peak_bytes: int | None
    budget_bytes: int
    margin_bytes: int
    budget_reason: str
    samples_per_s: float | None
    parameter_bytes: int | None = None
    target: str
    mode: str
    optimizer: str | None
    loss: str | None
    dtype: str | None
    axis: SearchAxis | None = None
    device: DeviceRef
    tolerance: float | None = None
    multiple_of: int = 1
    method: SearchMethod
    trials: tuple[TrialEntry, ...]
    limiting_factor: str | None = None
    recommended: RecommendedSize | None = None
    knee: Knee | None = None
    memory_split: MemorySplit | None = None
    accumulation: Accumulation | None = None

    @property
    def largest(self) -> int | None:
        """The largest size that passed, whether or not more may fit; None where none did."""
        return self.at_least if self.max_batch_size is None else self.max_batch_size

    @property
    def is_open(self) -> bool:
        """True if the search ended before it knew how much more fits, and the user did not set the limit."""
        return self.max_batch_size is None and self.limiting_factor != "max-batch-size"

    @property
    def axis_name(self) -> str | None:
        """The dimension whose length sizes are; None where they are batch sizes."""
        return self.axis.name if self.axis else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedBatchSize:
    """The estimated largest size for a device that is not here; nothing was run.

    `budget_bytes` is what is left of `memory_bytes` once margin, context and workspaces are set aside, whose figures
    come from `source`.
    """

    max_batch_size: int | None
    peak_bytes: int | None
    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    memory_bytes: int
    budget_bytes: int | None = None
    margin_bytes: int
    context_bytes: int
    workspace_bytes: int
    source: str
    target: str
    mode: str
    dtype: str | None
    recipe: StepRecipe
    device: str
