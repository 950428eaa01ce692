"""What the user asked for, and the plan that comes of it: parsed once, before anything is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpucheck import naming
from gpucheck.batch_size import recommend
from gpucheck.batch_size.budget import MemoryLimit, parse_limit
from gpucheck.batch_size.recipe import check_optimizer, parse_recipe
from gpucheck.batch_size.search_options import SearchOptions
from gpucheck.errors import UsageError
from gpucheck.work.spec import FLOATING, Axis, Recipe, parse_axis, parse_inputs, parse_target

MODES = ("train", "infer")
# No tensor's dimension is larger; what a model takes is far below.
LARGEST_BATCH = 2**31 - 1
DEFAULT_TARGET = "transformer"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, as text where it is one; None is the documented default."""

    target: str | None = None
    mode: str = "train"
    optimizer: str = "adamw"
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    max_batch_size: int = 65536
    memory_limit: str | None = None
    time_budget_s: float | None = None
    trial_timeout_s: float | None = None
    headroom: float = recommend.HEADROOM
    effective_batch: int | None = None
    amp: str | None = None
    grad_checkpointing: bool = False
    compiled: bool = False
    axis: str | None = None
    batch_size: int | None = None
    search: SearchOptions = field(default_factory=SearchOptions)
    estimate: bool = False
    quick: bool = False
    resume: str | None = None
    device: str = "auto"
    # Where else the target's module may be, for children that are not started as this process was.
    import_path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The options with their texts parsed. Along an `axis` sizes are lengths, and its greatest is filled in."""

    options: Options
    target: str
    limit: MemoryLimit | None
    recipe: Recipe
    axis: Axis | None

    @property
    def cap(self) -> int:
        """The largest size to try: of the batch, or along the axis."""
        return self.options.max_batch_size if self.axis is None or self.axis.high is None else self.axis.high

    @property
    def sizes(self) -> tuple[int | None, int]:
        """The smallest size to try, None where only the target knows it, and the largest."""
        return (self.axis.low if self.axis else None, self.cap)


def plan(options: Options) -> Plan:
    """Parse what needs no machine, so that a slip costs no time. Raises UsageError."""
    naming.one_of("--mode", options.mode, MODES)
    check_optimizer(options.optimizer)
    if options.dtype is not None:
        naming.one_of("--dtype", options.dtype, FLOATING)
    _batch("--max-batch-size", options.max_batch_size)
    if options.effective_batch is not None:
        _batch("--effective-batch", options.effective_batch)
    if not 0 <= options.headroom < 1:
        raise UsageError(f"--headroom {options.headroom:.0%} leaves no budget", "", "give less than 100%")
    for name, value in (("--time-budget", options.time_budget_s), ("--trial-timeout", options.trial_timeout_s)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value:g} is not more than zero", "", "give seconds, like 60s")
    if options.estimate and options.resume is not None:
        raise UsageError("--estimate and --resume exclude each other", "an estimate runs no trials")
    axis = _axis(options)
    recipe = parse_recipe(
        amp=options.amp,
        grad_checkpointing=options.grad_checkpointing,
        compiled=options.compiled,
        mode=options.mode,
        dtype=options.dtype,
        axis=axis,
        batch_size=options.batch_size,
        inputs=parse_inputs(options.inputs),
    )
    if options.target is not None:
        parse_target(options.target)
    limit = None if options.memory_limit is None else parse_limit(options.memory_limit)
    made = Plan(options, options.target or DEFAULT_TARGET, limit, recipe, axis)
    options.search.check(made.cap, axis.name if axis else None)
    return made


def _axis(options: Options) -> Axis | None:
    if options.axis is None:
        return None
    if options.effective_batch is not None:
        raise UsageError("--effective-batch and --axis exclude each other", "the batch size is fixed along an axis")
    axis = parse_axis(options.axis)
    return replace(axis, high=axis.high or max(axis.low, options.max_batch_size))


def _batch(option: str, value: int) -> None:
    if not 1 <= value <= LARGEST_BATCH:
        raise UsageError(f"{option} {value} is no batch size", f"it lies between 1 and {LARGEST_BATCH}")
