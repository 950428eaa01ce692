"""The meaning of exit codes: one table that feeds `--help`, the documentation and the tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """One exit status: its number, its name and what it tells the caller."""

    code: int
    name: str
    meaning: str


OK = 0
FAILED = 1
USAGE = 2
COULD_NOT_LOOK = 3
UNDECIDED = 4
BUG = 70
INTERRUPTED = 130
CLOSED_STDOUT = 141
TERMINATED = 143

# 70 is EX_SOFTWARE of sysexits.h; 130, 141 and 143 are 128 + SIGINT, SIGPIPE and SIGTERM, as shells report them.
TABLE: tuple[Exit, ...] = (
    Exit(OK, "ok", "nothing failed"),
    Exit(
        FAILED,
        "failed",
        "a check or the device failed, a threshold or requirement was missed, or the smallest batch does not fit",
    ),
    Exit(
        USAGE,
        "usage",
        "wrong usage, a missing input file, or a target that is missing, raises or rejects its input",
    ),
    Exit(
        COULD_NOT_LOOK,
        "could not look",
        "no such device, no usable torch, nothing was checked, or an output file cannot be written",
    ),
    Exit(UNDECIDED, "undecided", "inconclusive: too noisy, busy, throttled, or out of time"),
    Exit(BUG, "bug", "a bug in gpucheck; the report so far is printed"),
    Exit(INTERRUPTED, "interrupted", "Ctrl-C; the report so far is printed"),
    Exit(CLOSED_STDOUT, "closed stdout", "the reader of stdout closed the pipe"),
    Exit(TERMINATED, "terminated", "SIGTERM; the report so far is printed"),
)

# For how long Ctrl-C waits for torch's import before it ends the process, in seconds. The command sets it for its own
# process; in a notebook it stays None, and the import is waited for.
patience_s: float | None = None

# When the process began that runs one command, by `time.monotonic`: the time budget counts from there. None where a
# program calls ours.
began_s: float | None = None

# If several apply, the first in this order is the one that the caller must know.
PRIORITY: tuple[int, ...] = (
    INTERRUPTED,
    TERMINATED,
    CLOSED_STDOUT,
    BUG,
    USAGE,
    FAILED,
    COULD_NOT_LOOK,
    UNDECIDED,
    OK,
)


def settle(codes: Iterable[int]) -> int:
    """The one exit status that stands for all of `codes`; 0 for none."""
    return min(codes, key=PRIORITY.index, default=OK)
