"""The options of a search, parsed and held against each other before anything is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import naming
from gpucheck.batch_size.options import DEFAULT_CAP, MODES, FindBatchSizeOptions
from gpucheck.batch_size.outcome import MemoryLimit, parse_limit
from gpucheck.errors import UsageError
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.work.spec import FLOATING, Axis, parse_axis, parse_inputs, parse_target

AMP = ("bfloat16", "float16")
# No tensor's dimension is larger; what a model takes is far below.
LARGEST_BATCH = 2**31 - 1
# A tolerance of half the answer says less than doubling alone would.
LARGEST_TOLERANCE = 0.5
DEFAULT_TARGET = "transformer"


@dataclass(frozen=True, slots=True)
class Plan:
    """The options with their texts parsed.

    `cap` is the largest size to try: of the batch, or along the axis. `is_cap_default` where nobody asked for it.
    """

    options: FindBatchSizeOptions
    target: str
    limit: MemoryLimit | None
    recipe: StepRecipe
    axis: Axis | None
    cap: int
    is_cap_default: bool

    @property
    def sizes(self) -> tuple[int | None, int]:
        """The smallest size to try, None where only the target knows it, and the largest."""
        return (self.axis.low if self.axis else None, self.cap)


def plan(options: FindBatchSizeOptions) -> Plan:
    """Parse what needs no machine, so that a slip costs no time. Raises UsageError."""
    naming.one_of("--mode", options.mode, MODES)
    if not options.optimizer.removeprefix("torch.optim.").isidentifier():  # only a child can look it up
        raise UsageError(
            f"--optimizer {options.optimizer!r} is not a name", "", "give sgd, adam, adamw or another of torch.optim"
        )
    if options.dtype is not None:
        naming.one_of("--dtype", options.dtype, FLOATING)
    cap = DEFAULT_CAP if options.max_batch_size is None else options.max_batch_size
    for name, size in (("--max-batch-size", cap), ("--effective-batch", options.effective_batch)):
        if size is not None and not 1 <= size <= LARGEST_BATCH:
            raise UsageError(f"{name} must be an integer from 1 to {LARGEST_BATCH}, not {size}")
    if not 0 <= options.headroom < 1:
        raise UsageError(f"--headroom must be below 100 %, not {options.headroom:.0%}", "", "write it like 10%")
    for name, value in (("--time-budget", options.time_budget_s), ("--trial-timeout", options.trial_timeout_s)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be a time above 0 s, not {value:g}", "", "write it like 60s")
    if options.estimate and options.resume is not None:
        raise UsageError("--estimate and --resume exclude each other", "an estimate runs no trials")
    if options.axis is not None and options.effective_batch is not None:
        raise UsageError("--effective-batch and --axis exclude each other", "the batch size is fixed along an axis")
    axis = parse_axis(options.axis) if options.axis is not None else None
    is_cap_default = options.max_batch_size is None and (axis is None or axis.high is None)
    if axis is not None:
        cap = axis.high or max(axis.low, cap)
    recipe = _recipe(options, axis)
    if options.target is not None:
        parse_target(options.target)
    limit = None if options.memory_limit is None else parse_limit(options.memory_limit)
    _check_sizes(options, cap, axis.name if axis else None)
    return Plan(options, options.target or DEFAULT_TARGET, limit, recipe, axis, cap, is_cap_default)


def _recipe(options: FindBatchSizeOptions, axis: Axis | None) -> StepRecipe:
    """Return how a step is run. Raises UsageError for what does not go together."""
    amp, batch_size = options.amp, options.batch_size
    # Each dimension that a shape names must be the axis; which inputs a target takes, only a child knows.
    for given in parse_inputs(options.inputs):
        other = next((size for size in given.shape if isinstance(size, str) and (not axis or size != axis.name)), None)
        if other is not None:
            where = f"the axis is {axis.name}" if axis else "no axis is given"
            fix = "give its length" if axis else f"add --axis {other}, or give its length"
            raise UsageError(f"--input {given.name} names a dimension {other!r}", where, fix)
    if axis is None and batch_size is not None:
        raise UsageError("--batch-size needs --axis", "without an axis the batch size is searched for")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, not {batch_size}")
    if amp is not None:
        naming.one_of("--amp", amp, AMP, " or ")
    if amp is not None and options.dtype not in (None, "float32"):
        raise UsageError(
            f"--amp {amp} and --dtype {options.dtype} exclude each other",
            "autocast keeps the weights in float32 and chooses the dtype of each operation",
            "give one of them",
        )
    if options.grad_checkpointing and options.mode != "train":
        raise UsageError("--grad-checkpointing is for training", "inference keeps no activations", "leave it out")
    name = axis.name if axis else None
    return StepRecipe(amp, options.grad_checkpointing, options.compiled, name, batch_size or 1)


def _check_sizes(options: FindBatchSizeOptions, cap: int, axis: str | None) -> None:
    """Raises UsageError for what cannot be asked of a search, alone or together.

    `cap` is --max-batch-size, or the greatest length given along `axis`.
    """
    top = f"--max-batch-size {cap}" if axis is None else f"{cap}, the greatest length of {axis}"
    tolerance, multiple_of, start = options.tolerance, options.multiple_of, options.start
    if options.exact and tolerance is not None:
        raise UsageError("--exact and --tolerance exclude each other", "", "--exact means a tolerance of 0")
    if options.exact and options.avoid_oom:
        raise UsageError("--exact and --avoid-oom exclude each other", "an exact answer needs the next size to fail")
    if tolerance is not None and not 0 < tolerance <= LARGEST_TOLERANCE:
        given = f"{tolerance * 100:g}%"
        raise UsageError(f"--tolerance must be above 0 %, up to 50 %, not {given}", "", "give --exact for no tolerance")
    if multiple_of < 1:
        raise UsageError(f"--multiple-of must be at least 1, not {multiple_of}", "", "write it like 8")
    if multiple_of > cap:
        raise UsageError(f"--multiple-of {multiple_of} exceeds {top}", "no size left to try")
    if start is not None and not 1 <= start <= cap:
        raise UsageError(f"--start must be from 1 to {top}, not {start}")
