"""The answer of `find-batch-size`: for one device, for several, or as an estimate for another device.

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
ConfidenceLevel = Literal["high", "medium", "low"]
SpeedChange = Literal["same", "slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEntry:
    """One trial: its size, how it ended and why, and what it took.

    `samples_per_s` is by the median of the steps after the first. Where an allocation failed, `asked_bytes` is its size
    and `reached_bytes` what was in use.
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
    asked_bytes: int | None = None
    reached_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EpochCheck:
    """One step of what else an epoch holds (`kind`: an evaluation, a partial last batch)."""

    kind: str
    batch_size: int
    outcome: Outcome
    reason: str | None = None
    peak_bytes: int | None = None


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
    """The method for peaks (`peak`) and sizes (`prediction`). `guard_bytes` is the growth at which the system ends a
    trial. `context_counted` is true if a device's context is part of the peak. None where it does not apply."""

    peak: str | None = None
    baseline_bytes: int | None = None
    guard_bytes: int | None = None
    context_counted: bool | None = None
    malloc: str | None = None
    seek_failure: bool = True
    prediction: str | None = None
    avoid_oom: bool = False
    inputs: tuple[str, ...] = ()
    recipe: StepRecipe | None = None


@dataclass(frozen=True, slots=True)
class Confidence:
    """`doubts` are what speaks against the answer, `support` what speaks for it, each in a few words."""

    level: ConfidenceLevel
    support: tuple[str, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecommendedSize:
    """The size to use, as it was run; without one, `reason` says why.

    `headroom` is the share of the budget that its peak leaves free, `headroom_wanted` the one asked for, `speed` how
    its speed compares with the largest size's.
    """

    batch_size: int | None
    headroom: float | None
    headroom_wanted: float | None = None
    peak_bytes: int | None = None
    samples_per_s: float | None = None
    speed: SpeedChange | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SizeSpeed:
    """Samples per second of one size: the median of its steps after each trial's first, which warms up.

    `spread` is (longest − shortest) / median of those steps; None where only one was timed.
    """

    batch_size: int
    samples_per_s: float
    spread: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest size that was run within 5 % of the fastest; `reason` says why there is none to tell.

    `noise` is the typical spread of a size's steps, as a share.
    """

    batch_size: int | None
    samples_per_s: float | None = None
    noise: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Bytes by what holds them, after a step of the largest size.

    `parameter_bytes` counts buffers too. `activation_bytes_per_sample` is the slope of the peak of forward and backward
    over the batch size; `fixed_bytes` what that peak holds besides, whatever the size (workspaces, a device's context).
    None is unknown, `reason` why.
    """

    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    activation_bytes_per_sample: int | None = None
    fixed_bytes: int | None = None
    reason: str | None = None


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


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured over predicted, at `size`, once what does not grow with the size (`constant_bytes`) is taken off."""

    size: int
    factor: float
    constant_bytes: int = 0

    def peak(self, predicted: float) -> float:
        """The expected value for a predicted one, in bytes."""
        return self.constant_bytes + self.factor * predicted


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The calibrated peak of one size."""

    batch_size: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionResult:
    """The prediction from tensors without data before the first trial, and its calibration by that trial. The bytes are
    those predicted at `uncalibrated_max_batch_size`. `device` is the kind that the tensors were on, `reason` why the
    prediction was not used."""

    max_batch_size: int | None
    uncalibrated_max_batch_size: int | None = None
    peak_bytes: int | None = None
    compute_peak_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    calibration: Calibration | None
    device: str | None
    seconds: float | None = None
    points: tuple[PredictedPeak, ...] = ()
    reason: str | None


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
    first_failing_reason: str | None = None
    first_failing_at_once: bool = False
    predicted_above: int | None = None
    limited_by: str | None = None
    peak_bytes: int | None
    budget_bytes: int
    margin_bytes: int
    budget_reason: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    samples_per_s: float | None
    parameter_bytes: int | None = None
    state_bytes: int | None = None
    target: str
    mode: str
    optimizer: str | None
    loss: str | None
    dtype: str | None
    axis: SearchAxis | None = None
    device: DeviceRef
    tolerance: float | None = None
    multiple_of: int = 1
    start: int | None = None
    method: SearchMethod
    trial_count: int = 0
    trials: tuple[TrialEntry, ...]
    limiting_factor: str | None = None
    confidence: Confidence | None = None
    checks: tuple[EpochCheck, ...] = ()
    recommended: RecommendedSize | None = None
    speeds: tuple[SizeSpeed, ...] = ()
    knee: Knee | None = None
    memory_split: MemorySplit | None = None
    accumulation: Accumulation | None = None
    prediction: PredictionResult | None = None

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


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """One device's part of a shared step: its samples and seconds."""

    device: str
    batch_size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSplit:
    """A batch divided over unlike devices so that all end their step at the same time.

    `samples_per_s` is that of all together, without what it takes to exchange gradients; `equal_samples_per_s` is what
    the same devices reach where each takes the least of their sizes.
    """

    shares: tuple[DeviceShare, ...]
    batch_size: int
    samples_per_s: float
    equal_samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatchSizes:
    """The answers of several devices: the id of the one that takes `least`, its size, and each device's own answer.

    `split` is None where the devices are alike, or one of their answers is not known.
    """

    least: str
    max_batch_size: int | None
    at_least: int | None = None
    devices: tuple[FoundBatchSize, ...]
    split: StepSplit | None = None


@dataclass(frozen=True, slots=True)
class Experience:
    """The measured sizes of real searches as shares of their estimates: the lowest and the highest."""

    low: float
    high: float
    searches: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedBatchSize:
    """The estimated largest size for a device that is not here; nothing was run.

    `budget_bytes` is what is left of `memory_bytes` once margin, context and workspaces are set aside, whose figures
    come from `source`. `error` is how far such estimates were off; None is unknown, `error_reason` why.
    """

    max_batch_size: int | None
    peak_bytes: int | None
    compute_peak_bytes: int | None = None
    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    memory_bytes: int
    budget_bytes: int | None = None
    margin_bytes: int
    context_bytes: int
    workspace_bytes: int
    source: str
    error: Experience | None
    error_reason: str | None
    target: str
    mode: str
    dtype: str | None
    recipe: StepRecipe
    device: str
    fake_device: str
    seconds: float
