"""The result of `find-batch-size`: a search on one device, or an estimate for another device. In a search along an
axis, sizes are lengths. Keys with a default are missing in the oldest documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpucheck.report.measurement import DeviceRef

# The outcome of a trial. `fits` is a pass. `batch_size/outcome.py` has the meaning of the other outcomes.
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
    """One trial: its size, outcome, memory and time. `samples_per_s` is from the median step after the first."""

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
    """The dimension whose length is searched, and the fixed batch size of the search."""

    name: str
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class StepRecipe:
    """The settings of a step. `amp` is autocast's dtype. With an `axis`, `batch_size` is fixed."""

    amp: str | None = None
    axis: str | None = None
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class SearchMethod:
    """The method of the search. `peak` is the source of the peaks. Without `seek_failure`, sizes stay below 85 %."""

    peak: str | None = None
    seek_failure: bool = True
    inputs: tuple[str, ...] = ()
    recipe: StepRecipe | None = None


@dataclass(frozen=True, slots=True)
class RecommendedSize:
    """The recommended size, which was run. `reason` is the reason if `batch_size` is None. `headroom` is the share of
    the budget that the peak leaves free, and `headroom_wanted` is the requested share."""

    batch_size: int | None
    headroom: float | None
    headroom_wanted: float | None = None
    peak_bytes: int | None = None
    samples_per_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest size whose speed is within 5 % of the fastest. `noise` is the typical spread of a size's steps."""

    batch_size: int | None
    samples_per_s: float | None = None
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """The use of the memory after a step of the largest size. `parameter_bytes` includes buffers.
    `activation_bytes_per_sample` is the slope of the peak of forward and backward over the batch size. `fixed_bytes` is
    the part of this peak that does not depend on the size, such as workspaces and the context."""

    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None
    activation_bytes_per_sample: int | None = None
    fixed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A split of `effective_batch` into `steps` micro-batches of `micro_batch` samples. `smaller` micro-batches have
    one sample fewer. `limit` is the largest allowed micro-batch."""

    effective_batch: int
    micro_batch: int
    steps: int
    smaller: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatchSize:
    """The result of a search on one device. `max_batch_size` is the largest size that passed, if larger sizes are known
    not to fit. It is None if the search ended early or at its cap (`limited_by`). Then `at_least` is the largest size
    that passed. `limiting_factor` is `limited_by` in a word, such as `memory` for every way to run out of memory.
    `predicted_above` is a size whose predicted peak ended the search. `budget_bytes` excludes the margin."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedBatchSize:
    """The estimated largest size for another device. No step was run. `budget_bytes` is `memory_bytes` without margin,
    context and workspaces. `source` is the source of these sizes."""

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
