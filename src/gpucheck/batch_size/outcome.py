"""What a trial's end means: one table of messages, one function. Pure: it sees names and texts, never an exception.

Memory is recognised by class and by message, along the chain of causes; what could be memory or something else is
`suspected` and counts only once a smaller batch has passed in a fresh process; everything else is the user's error.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpucheck import messages
from gpucheck.messages import Raised

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
FITS: Outcome = "fits"
# The outcomes that say "this many are too many" and so bound the search from above. `out-of-time`, which the time of
# the whole search ended, says nothing of the size; `killed` bounds it until another size is killed too.
BOUNDING: frozenset[Outcome] = frozenset(
    ("over-budget", "out-of-memory", "host-out-of-memory", "suspected", "size-limit", "spill", "timeout", "killed")
)
# Memory ran out, by class or by message.
MEMORY: frozenset[Outcome] = frozenset(("out-of-memory", "host-out-of-memory"))
# At the smallest size these are no bound: what fails there for another reason than memory is an error of the target.
NEEDS_SMALLER_PASS: frozenset[Outcome] = frozenset(("suspected", "size-limit"))


@dataclass(frozen=True, slots=True)
class End:
    """How a trial ended. `raised` is the chain from the exception caught to its last cause; `killed_by` is a signal.

    `kernel_says_memory` is True where the kernel counted a kill for want of memory meanwhile.
    """

    raised: tuple[Raised, ...] = ()
    exit_status: int | None = None
    killed_by: int | None = None
    kernel_says_memory: bool = False
    timed_out: bool = False
    stderr_tail: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A text that a message contains, and what it means. Where `host` is set, it speaks of the host's memory."""

    pattern: re.Pattern[str]
    outcome: Outcome
    host: bool = False


def _row(pattern: str, outcome: Outcome, *, host: bool = False) -> Row:
    return Row(re.compile(pattern, re.IGNORECASE), outcome, host)


# The first row that matches decides, so what is certain stands above what is suspected.
MESSAGES: tuple[Row, ...] = (
    _row(messages.CPU_ALLOCATOR, "out-of-memory", host=True),
    _row(messages.HOST_ALLOCATION, "out-of-memory", host=True),
    _row(messages.OUT_OF_MEMORY, "out-of-memory"),
    _row(messages.LEVEL_ZERO, "out-of-memory"),
    _row(messages.MPS_BUFFER, "out-of-memory"),
    _row(messages.HPU, "out-of-memory"),
    _row(messages.GRID, "size-limit"),
    _row(messages.INDEX_32_BIT, "size-limit"),
    _row(messages.STORAGE_SIZE, "size-limit"),
    _row(messages.CUDNN_NOT_SUPPORTED, "size-limit"),
    _row(messages.LAUNCH_TIMEOUT, "timeout"),
    # Errors that leave the device's context unusable. A failed check inside a kernel is the target's own mistake.
    *(
        _row("|".join(cause.patterns), "device-broken")
        for cause in messages.CAUSES
        if (cause.poisons and cause.id not in ("cuda.device_assert", "xpu.lost")) or cause.id == "cuda.no_kernel"
    ),
    _row(messages.LIBRARY_FAILED, "suspected"),
    _row(messages.LIBRARY_NOT_INITIALIZED, "suspected"),
    _row("|".join(messages.NO_ENGINE), "suspected"),
    _row(messages.NVML_ASSERT, "suspected"),
    _row(messages.HANDLES, "suspected"),
    _row(messages.NOT_READY, "suspected"),
    _row(messages.XPU_DEVICE, "suspected"),
    _row(messages.AOT_RUN, "suspected"),
    _row(messages.ONEDNN, "suspected"),
    _row(f"{messages.NO_THREAD}|{messages.NO_SEGMENT}", "suspected"),
)

# What was asked for at once: torch's CPU allocator counts bytes, those of devices round to a unit.
_ASKED = re.compile(r"tried to allocate ([0-9.]+) (bytes|[KMGT]iB|[KMGT]B)\b", re.IGNORECASE)
_UNITS = {"bytes": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_MEMORY_CLASSES = {"torch.OutOfMemoryError": False, "builtins.MemoryError": True}
# Windows: STATUS_NO_MEMORY and STATUS_COMMITMENT_LIMIT (ntstatus.h), as unsigned exit statuses.
_WINDOWS_OUT_OF_MEMORY = frozenset((0xC0000017, 0xC000012D))
# Crashes near the edge of memory are reported by users; signals from outside say nothing about the size.
_CRASHES = frozenset(
    int(getattr(signal, name)) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE") if hasattr(signal, name)
)
# The kernel's OOM killer sends SIGKILL; 9 also where the platform's `signal` has no such name.
_KILL = 9


def classify(end: End, device_kind: str) -> Outcome:
    """The class of a trial's end on a device of kind `device_kind`; `fits` if nothing went wrong.

    Whether the measured peak is within the budget is judged elsewhere.
    """
    if end.timed_out:
        return "timeout"
    if end.raised:
        return _of_chain(end.raised, device_kind)
    if end.killed_by is not None:
        return _of_signal(end, end.killed_by, device_kind)
    if end.exit_status:
        if end.exit_status & 0xFFFFFFFF in _WINDOWS_OUT_OF_MEMORY:
            return "host-out-of-memory"
        return next(_matches(end.stderr_tail, device_kind), "user-error")
    return FITS


def _of_chain(chain: tuple[Raised, ...], device_kind: str) -> Outcome:
    """The most telling link decides: certain memory before the rest, whoever wrapped it."""
    found = [outcome for raised in chain for outcome in _of_exception(raised, device_kind)]
    for outcome in found:
        if outcome in ("out-of-memory", "host-out-of-memory"):
            return outcome
    return found[0] if found else "user-error"


def _of_exception(raised: Raised, device_kind: str) -> Iterator[Outcome]:
    for name, host in _MEMORY_CLASSES.items():
        if name in raised.classes:
            yield _where(host, device_kind)
            return
    if messages.SPEAKING_CLASSES.intersection(raised.classes):
        # An import that fails for want of memory says so in its message alone.
        yield from _matches(raised.message, device_kind)
    elif "builtins.ImportError" in raised.classes and "failed to map segment" in raised.message:
        yield "suspected"


def _of_signal(end: End, number: int, device_kind: str) -> Outcome:
    if number == _KILL:
        # The kernel kills for want of memory and counts it; anybody else has reasons of their own.
        return "host-out-of-memory" if end.kernel_says_memory else "killed"
    if number in _CRASHES:
        return next(_matches(end.stderr_tail, device_kind), "suspected")
    return "inconclusive"


def _matches(text: str, device_kind: str) -> Iterator[Outcome]:
    for row in MESSAGES:
        if row.pattern.search(text):
            yield _where(row.host, device_kind) if row.outcome == "out-of-memory" else row.outcome
            return


def _where(host: bool, device_kind: str) -> Outcome:
    """Host memory is the device's own memory where the device is the CPU."""
    return "host-out-of-memory" if host and device_kind != "cpu" else "out-of-memory"


def asked_bytes(message: str) -> int | None:
    """The size of the allocation that a message of torch's says has failed; None where it names none."""
    found = _ASKED.search(message)
    if found is None:
        return None
    unit = found[2].lower()
    return int(float(found[1].rstrip(".")) * _UNITS[unit if unit == "bytes" else unit[0]])
