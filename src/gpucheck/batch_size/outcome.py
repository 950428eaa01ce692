"""A trial: the settings of its child, its result, and how its end is classified. Pure.

An end is classified by the names and messages of its exceptions, along the whole chain of causes. An end that may or
may not be a lack of memory is `suspected`, and counts only once a smaller batch has passed in a fresh process.
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

# --- What a trial may take --------------------------------------------------------------------------------------------

# The margin is left to the driver, to other processes and to fragmentation. The larger of these two applies.
MARGIN_BYTES = 512 * MIB
MARGIN_SHARE = 0.03
# A trial without --memory-limit gets at most this, and at most half of the available memory, which others need too.
CPU_DEFAULT_BYTES = 2 * GIB
# The system enforces this multiple of the budget in a child on the CPU, to leave room for the allocator's overhead.
GUARD_SHARE = 1.25
GUARD_LEAST_BYTES = 64 * MIB

LIMIT_GRAMMAR = "4GiB, 50% or leave:2GiB"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """`--memory-limit`: a size in bytes, a share of all memory, or bytes to leave free."""

    kind: Literal["size", "share", "leave"]
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a trial may take, and where that figure comes from. `bytes` does not include `margin_bytes`."""

    bytes: int
    margin_bytes: int
    reason: str


def parse_limit(text: str) -> MemoryLimit:
    """Parse `text` as a limit. Raises UsageError for anything else."""
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
    """Return the budget on a CPU, without a margin. `free` and `total` respect a container's limit."""
    if limit is None:
        return Budget(min(CPU_DEFAULT_BYTES, free // 2), 0, "the smaller of 2 GiB and half the available memory")
    return _limited(limit, free, 0, free, total, "available memory")


def margin_bytes(total: int) -> int:
    """Return the margin of a device with this much memory."""
    return int(max(MARGIN_BYTES, MARGIN_SHARE * total))


def on_device(limit: MemoryLimit | None, free: int, total: int, *, shared: bool) -> Budget:
    """Return the budget on a device that has memory apart from the host's. Another process on it doubles the margin."""
    margin = margin_bytes(total) * (2 if shared else 1)
    room = free - margin
    if room <= 0:
        what = f"only {capacity(free)} of the device's {capacity(total)} is free"
        why, fix = (
            f"a margin of {capacity(margin)} is kept free",
            "end other processes on it: gpucheck devices --processes",
        )
        raise CannotLook(what, why, fix, finding="batch_size.budget")
    if limit is None:
        return Budget(room, margin, "free memory minus the margin")
    return _limited(limit, room, margin, free, total, "free minus the margin")


def _limited(limit: MemoryLimit, room: int, margin: int, free: int, total: int, what: str) -> Budget:
    asked = {"size": limit.value, "share": limit.value * total, "leave": free - limit.value}[limit.kind]
    if asked <= 0:
        fix = f"write it like {LIMIT_GRAMMAR}"
        raise UsageError(f"--memory-limit {limit.text} leaves nothing", f"{capacity(free)} are free", fix)
    if asked > room:
        return Budget(room, margin, f"{what}, less than --memory-limit {limit.text}")
    return Budget(int(asked), 0, f"--memory-limit {limit.text}")


def guard_bytes(budget: int) -> int:
    """Return the growth above the warmed baseline at which allocations fail in a trial on the CPU."""
    return max(int(budget * GUARD_SHARE), budget + GUARD_LEAST_BYTES)


# --- The settings of a trial, and its result --------------------------------------------------------------------------

FITS: Outcome = "fits"
# Outcomes that mean "this size is too large" and bound the search from above.
BOUNDING: frozenset[Outcome] = frozenset(
    ("over-budget", "out-of-memory", "host-out-of-memory", "suspected", "size-limit", "spill", "timeout")
)
# Memory ran out, by class or by message.
MEMORY: frozenset[Outcome] = frozenset(("out-of-memory", "host-out-of-memory"))

# A confirmation takes a third step, because on some devices caches settle only then; later steps repeat it.
STEPS_CONFIRMED = 3
# Eight steps show whether memory grows. A confirmation on a device takes no fewer, unless its blocks stay the same.
MOST_STEPS = 8
# Memory grows if this many increments after the third step are equal. A cache that fills looks the same.
EQUAL_INCREMENTS = 4
# Increments are equal within this share of the middle one: a CPU's resident memory moves by pages.
ALIKE = 0.05
# A step's level moves by up to this much for harmless reasons, such as thread stacks or a counter on the device.
LEAST_GROWTH_BYTES = MIB // 4
# The growth of memory does not limit the batch size if memory would last for more steps than this.
FAR_AWAY_STEPS = 10_000

# The child's environment has this variable, so that a script imported by a trial cannot start another search.
IN_TRIAL = "_GPUCHECK_TRIAL"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a child. `budget_bytes` and `guard_bytes` are the CPU's; `limit` is for other devices."""

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
    # The child is ended once its resident memory has grown by more than this; None: it is not watched.
    watch_bytes: int | None = None
    recipe: StepRecipe = field(default_factory=StepRecipe)
    # Folders that are appended to the child's import path, to find the target.
    import_path: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult(TrialEntry):
    """The result of one trial: its part in the report (`entry`), and the values that only the search reads."""

    reason: str = ""
    trace: str = ""
    # Bytes held at the end of each step.
    levels_bytes: tuple[int, ...] = ()
    # Bytes that the allocator took in the last two steps, if its blocks were still changing.
    unsettled_bytes: int = 0
    state_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    loss: str | None = None
    # The peak without memory that no tensor asked for; None where that is unknown.
    tensor_bytes: int | None = None
    # The smallest and the largest number of elements in one of its batches.
    batch_elements: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # The first step warms up; its time counts only if there is no other.
        steps = self.later_s or self.steps_s
        if steps and (middle := statistics.median(steps)) > 0:
            object.__setattr__(self, "samples_per_s", self.batch_size / middle)

    @property
    def entry(self) -> TrialEntry:
        """The trial as the report shows it."""
        shown = {field.name: getattr(self, field.name) for field in fields(TrialEntry)}
        return TrialEntry(**shown | {"reason": self.reason or None})

    @property
    def fitted_bytes(self) -> int | None:
        """The peak that grows with the batch: that of forward and backward, if it was measured separately."""
        return self.compute_peak_bytes if self.compute_peak_bytes is not None else self.peak_bytes

    @property
    def increments(self) -> tuple[int, ...]:
        """The change of the memory held in each step after the third."""
        levels = self.levels_bytes[STEPS_CONFIRMED - 1 :]
        return tuple(after - before for before, after in itertools.pairwise(levels))

    @property
    def growth_bytes(self) -> int | None:
        """The bytes that each step adds to the memory held; None unless all steps add about the same amount."""
        grown = self.increments
        if len(grown) < EQUAL_INCREMENTS:
            return None
        middle = int(statistics.median(grown))
        return middle if min(grown) >= LEAST_GROWTH_BYTES and max(grown) - min(grown) <= ALIKE * middle else None

    def steps_left(self, budget_bytes: int) -> int | None:
        """Return how many more steps fit into the budget; None if memory does not grow, or fills only after many."""
        if self.growth_bytes is None or self.peak_bytes is None:
            return None
        more = max(0, (budget_bytes - self.peak_bytes) // self.growth_bytes)
        return more if more < FAR_AWAY_STEPS else None

    @property
    def later_s(self) -> tuple[float, ...]:
        """The times of all steps but the first, which warms up."""
        return self.steps_s[1:]


def in_words(size: int, axis: str | None) -> str:
    """Describe a size in words: `a batch of 8`, or a length along the axis."""
    return f"a batch of {size}" if axis is None else f"{axis} {size}"


class SetupFailed(Exception):
    """The child could not be set up for want of memory; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a trial. `raised` is the chain from the exception caught to its last cause; `killed_by` is a signal.

    `exit_status` is that of a process that gave no answer. `kernel_says_memory` means that the kernel's out-of-memory
    killer was active during the trial.
    """

    raised: tuple[ChainedError, ...] = ()
    exit_status: int | None = None
    killed_by: int | None = None
    kernel_says_memory: bool = False
    timed_out: bool = False
    stderr_tail: str = ""


# Lack of memory and a broken device are recognised by `messages.cause_of`, other outcomes by these messages.
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
# Users report these crashes near the limit of memory. Other signals come from outside.
_CRASHES = frozenset(
    int(getattr(signal, name)) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE") if hasattr(signal, name)
)
# SIGKILL, which the kernel's out-of-memory killer sends and Windows' signal module does not name.
KILLED = 9


def classify(end: End, device_kind: str) -> Outcome:
    """Return the class of a trial's end; `fits` if nothing went wrong. Peaks are judged elsewhere."""
    if end.timed_out:
        return "timeout"
    if end.raised:
        # A certain lack of memory anywhere in the chain takes precedence over every other link.
        outcomes = [outcome for raised in end.raised if (outcome := _of_exception(raised, device_kind)) is not None]
        return next((outcome for outcome in outcomes if outcome in MEMORY), outcomes[0] if outcomes else "user-error")
    if end.killed_by in _CRASHES:
        return _matched(end.stderr_tail, device_kind) or "suspected"
    if end.killed_by is not None:
        # The kernel counts its out-of-memory kills. Any other SIGKILL was sent for an unknown reason.
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
    # An import that fails for want of memory says so in its message alone.
    of_segment = "builtins.ImportError" in raised.classes and "failed to map segment" in raised.message
    return "suspected" if of_segment else None


def _matched(text: str, device_kind: str) -> Outcome | None:
    """Return the outcome that a text means, or None. A certain meaning takes precedence over a suspected one."""

    def has(patterns: Iterable[str]) -> bool:
        return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)

    cause = messages.cause_of(text)
    if cause is not None and cause.whose == "memory":
        return _of_memory(cause, device_kind)
    outcome = next((outcome for outcome, patterns in MESSAGES.items() if has(patterns)), None)
    # A failed check inside a kernel is the target's own mistake; other such errors leave the context unusable.
    if outcome is None and cause is not None and cause.id not in ("cuda.device_assert", "xpu.lost"):
        outcome = "device-broken" if cause.poisons or cause.id == "cuda.no_kernel" else None
    return outcome or ("suspected" if has(SUSPECTED) else None)


def _of_memory(cause: messages.Cause, device_kind: str) -> Outcome:
    """Return the outcome of a lack of memory. The CPU's own memory is host memory."""
    is_host = cause.id in ("oom.cpu", "oom.host") and device_kind != "cpu"
    return "host-out-of-memory" if is_host else "out-of-memory"
