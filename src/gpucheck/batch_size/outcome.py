"""A trial: the settings of its child, its result, and the classification of its end. No I/O.

The names and messages of the exceptions, along the whole chain of causes, classify the end of a trial. If a lack of
memory is possible but not certain, the outcome is `suspected`. A suspected failure counts only once a smaller batch
has passed in a fresh process.
"""

from __future__ import annotations

import itertools
import re
import signal
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Literal

from gpucheck import messages
from gpucheck.errors import CannotLook, UsageError
from gpucheck.messages import ChainedError
from gpucheck.report.results.find_batch_size import Outcome, StepRecipe, TrialEntry
from gpucheck.units import GIB, MIB, Percent, capacity, parse_size, refused

# The larger of these two margins stays free for the driver, other processes and fragmentation.
MARGIN_BYTES = 512 * MIB
MARGIN_SHARE = 0.03
# Without --memory-limit, a trial gets at most 2 GiB and half of the available memory. Other processes need the rest.
CPU_DEFAULT_BYTES = 2 * GIB
# On the CPU, the system limits a child's memory to this multiple of the budget, because the allocator has overhead.
GUARD_SHARE = 1.25
GUARD_LEAST_BYTES = 64 * MIB

LIMIT_GRAMMAR = "4GiB, 50% or leave:2GiB"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The value of `--memory-limit`: a size in bytes, a share of all memory (0 to 1), or bytes to leave free."""

    kind: Literal["size", "share", "leave"]
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a trial may take, and the reason for this limit. `bytes` does not include `margin_bytes`."""

    bytes: int
    margin_bytes: int
    reason: str


def parse_limit(text: str) -> MemoryLimit:
    """Parse the value of `--memory-limit`. Raises UsageError."""
    option = "--memory-limit"
    if text.startswith("leave:"):
        return MemoryLimit("leave", parse_size(text.removeprefix("leave:"), option), text)
    if text.rstrip().endswith("%"):
        return MemoryLimit("share", Percent(1.0, above=True)(text, option), text)
    try:
        return MemoryLimit("size", parse_size(text, option), text)
    except UsageError as error:
        raise refused(option, "a size, a percentage or leave:SIZE", text, f"write it like {LIMIT_GRAMMAR}") from error


def on_cpu(limit: MemoryLimit | None, free: int, total: int) -> Budget:
    """Return the budget on a CPU, without a margin. `free` and `total` are bytes within a container's limit."""
    if limit is None:
        return Budget(min(CPU_DEFAULT_BYTES, free // 2), 0, "the smaller of 2 GiB and half the available memory")
    return _limited(limit, free, 0, free, total, "available memory")


def margin_bytes(total: int) -> int:
    return int(max(MARGIN_BYTES, MARGIN_SHARE * total))


def on_device(limit: MemoryLimit | None, free: int, total: int, *, shared: bool) -> Budget:
    """Return the budget on a device with its own memory. If another process uses the device, the margin is doubled."""
    margin = margin_bytes(total) * (2 if shared else 1)
    if (available := free - margin) <= 0:
        what = f"only {capacity(free)} of the device's {capacity(total)} is free"
        fix = "end other processes on it: gpucheck devices --processes"
        raise CannotLook(what, f"a margin of {capacity(margin)} stays free", fix, finding="batch_size.budget")
    if limit is None:
        return Budget(available, margin, "free memory minus the margin")
    return _limited(limit, available, margin, free, total, "free minus the margin")


def _limited(limit: MemoryLimit, available: int, margin: int, free: int, total: int, source: str) -> Budget:
    requested = {"size": limit.value, "share": limit.value * total, "leave": free - limit.value}[limit.kind]
    if requested <= 0:
        fix = f"write it like {LIMIT_GRAMMAR}"
        raise UsageError(f"--memory-limit {limit.text} leaves nothing", f"{capacity(free)} are free", fix)
    if requested > available:
        return Budget(available, margin, f"{source}, less than --memory-limit {limit.text}")
    return Budget(int(requested), 0, f"--memory-limit {limit.text}")


def guard_bytes(budget: int) -> int:
    """Return how many bytes a trial on the CPU may grow above its warm baseline before allocations fail."""
    return max(int(budget * GUARD_SHARE), budget + GUARD_LEAST_BYTES)


FITS: Outcome = "fits"
# Outcomes that mean "this size is too large" and limit the search from above.
BOUNDING: frozenset[Outcome] = frozenset(
    ("over-budget", "out-of-memory", "host-out-of-memory", "suspected", "size-limit", "spill", "timeout")
)
# Outcomes that certainly mean a lack of memory.
MEMORY: frozenset[Outcome] = frozenset(("out-of-memory", "host-out-of-memory"))

# A confirmation takes a third step, because caches on some devices settle only in the third step.
STEPS_CONFIRMED = 3
# Eight steps show whether memory grows. A confirmation on a device takes fewer if the allocator's blocks stay the
# same, and more while memory grows.
MOST_STEPS = 8
# Memory grows if at least this many increments after the third step are equal. A cache that fills looks the same.
EQUAL_INCREMENTS = 4
# Increments that differ by at most this share of the median are equal: a CPU's resident memory changes by pages.
ALIKE = 0.05
# Thread stacks or a counter on the device can change the memory in use after a step by up to this many bytes.
LEAST_GROWTH_BYTES = MIB // 4
# Growth does not limit the batch size if the memory lasts for more steps than this.
FAR_AWAY_STEPS = 10_000

# A child's environment has this variable, so that a script that a trial imports cannot start another search.
IN_TRIAL = "_GPUCHECK_TRIAL"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a child. `budget_bytes` and `guard_bytes` apply to the CPU, and `limit` to other devices."""

    target: str
    inputs: tuple[str, ...]
    mode: str
    optimizer: str
    dtype: str | None
    device: str
    device_name: str | None = None
    budget_bytes: int = 0
    guard_bytes: int | None = None
    limit: MemoryLimit | None = None
    free_before: int | None = None
    shared: bool = False
    # The parent ends the child once its resident memory has grown by more than this. None means that it may grow.
    watch_bytes: int | None = None
    recipe: StepRecipe = field(default_factory=StepRecipe)
    # Folders that the child appends to its import path to find the target.
    import_path: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(TrialEntry):
    """The result of one trial: the fields that the report shows (`entry`), and fields that only the search reads."""

    reason: str = ""
    trace: str = ""
    # Bytes in use at the end of each step.
    levels_bytes: tuple[int, ...] = ()
    # Bytes that the allocator took in the last two steps, if its blocks were still changing.
    unsettled_bytes: int = 0
    state_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    loss: str | None = None
    # The peak without the allocator's overhead, or None if tensors are not counted.
    tensor_bytes: int | None = None
    # The smallest and the largest number of elements in a batch of this trial.
    batch_elements: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # The first step warms up. Its time counts only if no later step was run.
        if (steps := self.later_s or self.steps_s) and (median_s := statistics.median(steps)) > 0:
            object.__setattr__(self, "samples_per_s", self.batch_size / median_s)

    @property
    def entry(self) -> TrialEntry:
        shown = {field.name: getattr(self, field.name) for field in fields(TrialEntry)}
        return TrialEntry(**shown | {"reason": self.reason or None})

    @property
    def fitted_bytes(self) -> int | None:
        """The peak for the line of memory over size: of forward and backward if measured alone, else of the step."""
        return self.compute_peak_bytes if self.compute_peak_bytes is not None else self.peak_bytes

    @property
    def increments(self) -> tuple[int, ...]:
        """The change of the memory in use in each step after the third, in bytes."""
        levels = self.levels_bytes[STEPS_CONFIRMED - 1 :]
        return tuple(after - before for before, after in itertools.pairwise(levels))

    @property
    def growth_bytes(self) -> int | None:
        """The bytes that each step adds to the memory in use, or None unless all steps add about the same amount."""
        added = self.increments
        if len(added) < EQUAL_INCREMENTS:
            return None
        median = int(statistics.median(added))
        return median if min(added) >= LEAST_GROWTH_BYTES and max(added) - min(added) <= ALIKE * median else None

    def steps_left(self, budget_bytes: int) -> int | None:
        """Return how many more steps fit into the budget, or None if memory does not grow or lasts for many steps."""
        if self.growth_bytes is None or self.peak_bytes is None:
            return None
        more = max(0, (budget_bytes - self.peak_bytes) // self.growth_bytes)
        return more if more < FAR_AWAY_STEPS else None

    @property
    def later_s(self) -> tuple[float, ...]:
        """The times of all steps except the first, which warms up."""
        return self.steps_s[1:]


def in_words(size: int, axis: str | None) -> str:
    """Describe a size in words: `a batch of 8`, or a length along the axis."""
    return f"a batch of {size}" if axis is None else f"{axis} {size}"


class SetupFailed(Exception):
    """The child could not be set up for lack of memory. The text is the reason in one line."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a trial. `raised` is the chain from the caught exception to its last cause; `killed_by` is a signal.

    `exit_status` belongs to a process without an answer. `kernel_says_memory` is True if the kernel's out-of-memory
    killer was active during the trial.
    """

    raised: tuple[ChainedError, ...] = ()
    exit_status: int | None = None
    killed_by: int | None = None
    kernel_says_memory: bool = False
    timed_out: bool = False
    stderr_tail: str = ""


# `messages.cause_of` recognizes a lack of memory and a broken device. These messages mean other outcomes.
MESSAGES: dict[Outcome, tuple[str, ...]] = {
    "size-limit": (messages.GRID, messages.INDEX_32_BIT, messages.STORAGE_SIZE, messages.CUDNN_NOT_SUPPORTED),
    "timeout": (messages.LAUNCH_TIMEOUT,),
}
SUSPECTED = (
    *(messages.LIBRARY_FAILED, messages.LIBRARY_NOT_INITIALIZED, "|".join(messages.NO_ENGINE)),
    *(messages.NVML_ASSERT, messages.HANDLES, messages.NOT_READY, messages.XPU_DEVICE, messages.AOT_RUN),
    *(messages.ONEDNN, f"{messages.NO_THREAD}|{messages.NO_SEGMENT}"),
)

# Windows: STATUS_NO_MEMORY and STATUS_COMMITMENT_LIMIT (ntstatus.h), as unsigned exit statuses.
_WINDOWS_OUT_OF_MEMORY = frozenset((0xC0000017, 0xC000012D))
# Users report these crashes near the limit of memory. Other processes send the other signals.
_CRASHES = frozenset(
    int(getattr(signal, name)) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE") if hasattr(signal, name)
)
# SIGKILL, which the kernel's out-of-memory killer sends. Python's `signal` does not have it on Windows.
KILLED = 9


def classify(end: End, device_kind: str) -> Outcome:
    """Return the outcome of a trial's end, or `fits` if nothing went wrong. `Runner` judges the peak."""
    if end.timed_out:
        return "timeout"
    if end.raised:
        # A certain lack of memory anywhere in the chain takes precedence.
        outcomes = [outcome for link in end.raised if (outcome := _of_exception(link, device_kind)) is not None]
        return next((outcome for outcome in outcomes if outcome in MEMORY), outcomes[0] if outcomes else "user-error")
    if end.killed_by in _CRASHES:
        return _matched(end.stderr_tail, device_kind) or "suspected"
    if end.killed_by is not None:
        # The kernel counts its out-of-memory kills. Any other SIGKILL has an unknown reason.
        return "host-out-of-memory" if end.killed_by == KILLED and end.kernel_says_memory else "inconclusive"
    if end.exit_status is None:
        return FITS
    if end.exit_status & 0xFFFFFFFF in _WINDOWS_OUT_OF_MEMORY:
        return "host-out-of-memory"
    return _matched(end.stderr_tail, device_kind) or "user-error"


def _of_exception(raised: ChainedError, device_kind: str) -> Outcome | None:
    cause = messages.cause_of_error(raised.classes, raised.message, raised.where)
    if cause is not None and cause.whose == "memory":
        return _of_memory(cause, device_kind)
    if messages.LIBRARY_ERRORS.intersection(raised.classes):
        return _matched(raised.message, device_kind)
    # If an import fails for lack of memory, only its message says so.
    of_segment = "builtins.ImportError" in raised.classes and "failed to map segment" in raised.message
    return "suspected" if of_segment else None


def _matched(text: str, device_kind: str) -> Outcome | None:
    """Return the outcome that a text means, or None. A certain outcome takes precedence over `suspected`."""

    def has(patterns: Iterable[str]) -> bool:
        return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)

    if (cause := messages.cause_of(text)) is not None and cause.whose == "memory":
        return _of_memory(cause, device_kind)
    outcome = next((outcome for outcome, patterns in MESSAGES.items() if has(patterns)), None)
    # A failed assertion is the target's error. Another cause that poisons the context, or a missing kernel, is not.
    if outcome is None and cause is not None and cause.id not in ("cuda.device_assert", "xpu.lost"):
        outcome = (
            "device-broken"
            if cause.poisons or cause.id == "cuda.no_kernel" or (cause.whose == "device" and not has(SUSPECTED))
            else None
        )
    return outcome or ("suspected" if has(SUSPECTED) else None)


def _of_memory(cause: messages.Cause, device_kind: str) -> Outcome:
    """Return the outcome of a lack of memory. The CPU's own memory is host memory."""
    is_host = cause.id in ("oom.cpu", "oom.host") and device_kind != "cpu"
    return "host-out-of-memory" if is_host else "out-of-memory"
