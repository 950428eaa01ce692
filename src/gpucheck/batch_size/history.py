"""A search as the list of what happened in it, and what that list comes to. Pure.

The loop that runs trials records here what it does and learns; `Search.next` reads what to do next from the same state.
The answer (`answer.py`) is a function of the list alone, so that it can be told at any time: a list that is cut short
anywhere has an answer too, one that claims no more than what was run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpucheck.batch_size.options import DEFAULT_CAP, HEADROOM, FindBatchSizeOptions
from gpucheck.batch_size.outcome import NEEDS_SMALLER_PASS, Budget, MemoryLimit, Setup, TrialResult, parse_limit
from gpucheck.batch_size.predict import Foresight
from gpucheck.batch_size.search import Search, search_for
from gpucheck.errors import UsageError
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.results.find_batch_size import SpeedChange, StepRecipe
from gpucheck.work.spec import Axis, parse_axis, parse_inputs, parse_target


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
    if not options.optimizer.removeprefix("torch.optim.").isidentifier():  # only a child can look it up
        raise UsageError(
            f"--optimizer {options.optimizer!r} is not a name", "", "use sgd, adam, adamw or another of torch.optim"
        )
    cap = DEFAULT_CAP if options.max_batch_size is None else options.max_batch_size
    of_trials = {
        "--multiple-of": options.multiple_of != 1,
        "--effective-batch": options.effective_batch is not None,
        "--headroom": options.headroom != HEADROOM,
        "--avoid-oom": options.avoid_oom,
    }
    for name in (name for name, given in of_trials.items() if given and options.estimate):
        raise UsageError(f"--estimate and {name} exclude each other", "an estimate runs no trials")
    if options.axis is not None and options.effective_batch is not None:
        raise UsageError("--effective-batch and --axis exclude each other", "the batch size is fixed along an axis")
    axis = parse_axis(options.axis) if options.axis is not None else None
    if axis is not None and axis.high is not None:
        if options.max_batch_size is not None:
            raise UsageError("--max-batch-size and the range of --axis exclude each other", "each is the largest size")
        cap = axis.high
    is_cap_default = options.max_batch_size is None and (axis is None or axis.high is None)
    recipe = _recipe(options, axis)
    target = parse_target(options.target).text if options.target is not None else "transformer"
    limit = None if options.memory_limit is None else parse_limit(options.memory_limit)
    _check_sizes(options, cap, axis)
    return Plan(options, target, limit, recipe, axis, cap, is_cap_default)


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


def _check_sizes(options: FindBatchSizeOptions, cap: int, axis: Axis | None) -> None:
    """Raises UsageError for what cannot be asked of a search of sizes up to `cap`, alone or together."""
    low, top = (axis.low, f"{cap}, the greatest length of {axis.name}") if axis else (1, f"--max-batch-size {cap}")
    multiple_of, start = options.multiple_of, options.start
    if options.exact and options.tolerance is not None:
        raise UsageError("--exact and --tolerance exclude each other", "", "--exact means a tolerance of 0")
    if options.exact and options.avoid_oom:
        raise UsageError("--exact and --avoid-oom exclude each other", "an exact answer needs the next size to fail")
    if cap // multiple_of * multiple_of < low:
        raise UsageError(f"--multiple-of {multiple_of} has no multiple from {low} to {top}")
    if start is not None and not low <= start <= cap:
        raise UsageError(f"--start must be from {low} to {top}, not {start}")


# -- What happened -----------------------------------------------------------------------------------------------------

# So many sizes that are killed, and not for want of memory, show that the program has its own reasons.
KILLED_ALIKE = 2
# Ends of a trial that say nothing about the size, and so end the search.
STOPPING = ("user-error", "device-broken", "inconclusive")
# What ends a search without an answer to how much more fits, in words.
OPEN = {
    "time": "time ran out",
    "trials": "trial limit reached",
    "killed": "larger sizes were killed, not for lack of memory: by the program or a watchdog",
    "interrupted": "the search was interrupted",
    "inconclusive": "other processes disturbed the search",
    "device-broken": "a larger size broke the device",
    "refused": "no further process could start",
    "default-cap": "stopped at --max-batch-size, 65536 by default",
}
# The search has tried the largest size that it was allowed to.
CAP = "max-batch-size"


@dataclass(frozen=True, slots=True)
class Opened:
    """The first child is ready: the budget as the device has it, and what the child says of itself and the workload.

    `smallest` is the least size to try. `dangerous` is whether running out of memory may take the machine down.
    """

    budget: Budget
    device: DeviceRef
    smallest: int
    parameter_bytes: int | None = None
    optimizer: str | None = None
    peak: str | None = None
    baseline_bytes: int | None = None
    context_counted: bool | None = None
    dangerous: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial of the search ended. `unproven` is a confirmation of a size that had not passed before."""

    result: TrialResult
    unproven: bool = False


@dataclass(frozen=True, slots=True)
class Extended:
    """There is time for more trials than the search's own bound."""

    trials: int


@dataclass(frozen=True, slots=True)
class NoProcess:
    """No further process could be set up, and why. `parameter_bytes` is the model's own size, where it was weighed."""

    reason: str
    parameter_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The search is over, by what. `more_time_s` is a time budget that would do where time ended it."""

    limited_by: str
    more_time_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Followed:
    """A trial after the search: of a size to recommend, or of what else an epoch holds."""

    result: TrialResult


@dataclass(frozen=True, slots=True)
class Recommended:
    """The size to use, as it was run; `reason` says why there is none. `speed` compares it with the largest size's."""

    result: TrialResult | None = None
    reason: str | None = None
    speed: SpeedChange | None = None


# What may happen; of several predictions the last one counts.
Entry = Opened | Foresight | Tried | Extended | NoProcess | Ended | Followed | Recommended


@dataclass(slots=True)
class History:
    """The entries of a search so far, and what they come to.

    `budget_before` is the budget as far as it is known before a device has told its own, `search` what to try next.
    `results` are the trials of the search, `single` is how a batch of 1 fails where 2 is the smallest, `stopped` the
    trial whose end says nothing about its size. Of what followed, `checks` are steps of what else an epoch holds.
    """

    plan: Plan
    setup: Setup
    budget_before: Budget
    search: Search = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    results: list[TrialResult] = field(default_factory=list)
    opened: Opened | None = None
    foresight: Foresight = field(default_factory=Foresight)
    single: TrialResult | None = None
    stopped: TrialResult | None = None
    refused: str | None = None
    parameter_bytes: int | None = None
    limited_by: str | None = None
    more_time_s: float = 60.0
    recommended: Recommended | None = None
    recommended_trials: list[TrialResult] = field(default_factory=list)
    checks: list[TrialResult] = field(default_factory=list)
    _disturbed: bool = False
    _killed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.search = search_for(self.plan.options, self.plan.cap, self.budget_before.bytes, is_cpu=self.setup.is_cpu)

    @property
    def budget(self) -> Budget:
        return self.opened.budget if self.opened is not None else self.budget_before

    @property
    def device(self) -> DeviceRef:
        """The device as its child names it, before that as it was asked for."""
        return self.opened.device if self.opened else DeviceRef(self.setup.device, name=self.setup.device_name)

    @property
    def axis(self) -> str | None:
        """The dimension whose length sizes are; None where they are batch sizes."""
        return self.plan.recipe.axis

    @property
    def is_closed(self) -> bool:
        """Return whether it is known that no larger size fits, or the user wants none tried."""
        return self.limited_by is not None and self.limited_by not in OPEN

    @property
    def final(self) -> TrialResult | None:
        """The run of the best size that counts: its confirmation, else its last pass."""
        best = self.search.best
        if best is None:
            return None
        runs = [r for r in self.results if r.batch_size == best.batch_size and r.outcome == "fits"]
        return max(runs, key=lambda r: r.purpose == "confirm", default=None)

    @property
    def predicted(self) -> int | None:
        """The largest size that is predicted: by fake tensors where a trial has calibrated them, else by the peaks."""
        best, failing = self.search.best, self.search.first_failing
        trusted = self.foresight.max_batch_size if self.foresight.calibration is not None else None
        found = trusted or self.search.likely_largest
        if best is None or found is None or (failing is not None and found >= failing.batch_size):
            found = self.search.likely_largest
        return None if found is None or best is None else max(found, best.batch_size)

    @property
    def at_most(self) -> int | None:
        """The largest size that may fit: what is predicted, else what the first failure leaves; None if unknown."""
        failing = self.search.first_failing
        return self.predicted or (failing.batch_size - self.search.multiple_of if failing is not None else None)

    @property
    def trial_count(self) -> int:
        """All trials, but for the checks of an epoch's other steps."""
        return len(self.results) + len(self.recommended_trials)

    def take(self, entry: Entry) -> None:
        self.entries.append(entry)
        match entry:
            case Opened():
                self.opened, self.parameter_bytes = entry, entry.parameter_bytes
                self.search.budget_bytes, self.search.minimum = entry.budget.bytes, entry.smallest
                if entry.dangerous:
                    self.search.seek_failure = False
            case Foresight():
                self.foresight = entry
                if self.opened is not None and self.search.start is None:
                    self.search.start = entry.first_size
            case Tried(result, unproven):
                self.results.append(result)
                self._learn(result, unproven)
            case Extended(trials):
                self.search.extra_trials += trials
            case NoProcess(reason, parameter_bytes):
                self.refused = reason
                self.parameter_bytes = self.parameter_bytes or parameter_bytes
                if self.search.best is not None:  # what the search has closed by then stays so
                    self._end(self.search.limited_by or "refused")
            case Ended(limited_by, more_time_s):
                self._end(limited_by)
                self.more_time_s = more_time_s
            case Followed(result):
                (self.recommended_trials if result.purpose == "recommended" else self.checks).append(result)
            case Recommended():
                self.recommended = entry

    def _learn(self, result: TrialResult, unproven: bool) -> None:
        """Learn from a trial about its size; some trials show nothing, and some end the search."""
        if result.cut:
            if self.search.best is None:
                self._record(result)  # so that the next one is smaller
        elif result.outcome == "inconclusive" and not self._disturbed:
            self._disturbed = True
        elif result.outcome == "user-error" and self._starts_at_two(result):
            self.single, self.search.minimum = result, 2
        elif result.outcome in STOPPING or (
            # Without memory's certain words what fails at the smallest size is an error of the target.
            result.outcome in NEEDS_SMALLER_PASS and result.batch_size <= self.search.lowest
        ):
            self.stopped = result
            if result.outcome in OPEN:
                self._end(result.outcome)
        else:
            # What fails where it was to be confirmed unproven confirms nothing.
            is_search = unproven and result.outcome != "fits"
            self._record(replace(result, purpose="search") if is_search else result)
            if result.outcome == "killed":
                self._killed.add(result.batch_size)
                if len(self._killed) >= KILLED_ALIKE or result.batch_size <= self.search.lowest:
                    self._end("killed")

    def _starts_at_two(self, result: TrialResult) -> bool:
        """Return whether a first batch of 1 may fail because a normalisation over the batch needs two samples."""
        first = result.batch_size == 1 == self.search.lowest and not self.search.trials
        return first and self.axis is None and self.search.cap >= 2 and self.setup.mode == "train"

    def _record(self, result: TrialResult) -> None:
        self.search.static_bytes = result.state_bytes or self.search.static_bytes
        self.search.trials.append(result)

    def _end(self, limited_by: str) -> None:
        """Record the first end of the search as its limit. A cap that nobody asked for leaves it open."""
        if limited_by == CAP and self.plan.is_cap_default:
            limited_by = "default-cap"
        self.limited_by = self.limited_by or limited_by
