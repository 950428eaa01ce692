"""The exit statuses, and the errors that users see: what is wrong, why, and what to do."""

from __future__ import annotations

import sys
import warnings
from typing import NamedTuple


class Exit(NamedTuple):
    """One exit status. This is not a dataclass, because the children that read NVML and libcuda start in two thirds of
    the time without dataclasses, and the user waits for them."""

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
EXITS: tuple[Exit, ...] = (
    Exit(OK, "ok", "nothing failed"),
    Exit(
        FAILED,
        "failed",
        "a check or the device failed, a threshold or requirement was missed, or the smallest batch does not fit",
    ),
    Exit(USAGE, "usage", "wrong usage, a missing input file, or a target that is missing, raises or rejects its input"),
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

# Seconds that Ctrl-C waits for torch's import before it ends the process. The command line sets this value. In a
# notebook the value is None, and Ctrl-C waits for the whole import.
patience_s: float | None = None

# Temporary files to remove when the process ends at once.
temporary: set[str] = set()

# The start of this process by `time.monotonic`, from which the time budget counts; None if a program calls the API.
began_s: float | None = None

# The exit status by priority: if several apply, the caller gets the first of these.
EXIT_PRIORITY = (INTERRUPTED, TERMINATED, CLOSED_STDOUT, BUG, USAGE, FAILED, COULD_NOT_LOOK, UNDECIDED, OK)


class GpucheckError(Exception):
    """A problem that the user must see: what is wrong, why, and what to do. `finding` is the ID of the problem in the
    report, and `command` is the command whose usage was wrong."""

    exit_code = COULD_NOT_LOOK
    command = ""

    def __init__(self, what: str, why: str = "", fix: str = "", *, finding: str = "error") -> None:
        super().__init__(what, why, fix)
        self.what = what
        self.why = why
        self.fix = fix
        self.finding = finding

    def __str__(self) -> str:
        return "; ".join(part for part in (self.what, self.why, self.fix) if part)


class UsageError(GpucheckError):
    """Wrong usage: an option, a value or a file that the user gave (exit 2)."""

    exit_code = USAGE


class TargetError(UsageError):
    """The user's target is missing, raises or rejects its input (exit 2). `--debug` prints its traceback (`trace`)."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, trace: str = "", finding: str = "target") -> None:
        super().__init__(what, why, fix, finding=finding)
        self.trace = trace


class CannotLook(GpucheckError):
    """gpucheck could not start its work: no such device, no usable torch, no space for the output (exit 3)."""


class DeviceFailed(GpucheckError):
    """The device, or its driver, failed in another process (exit 1). `why` is the error that was raised there."""

    exit_code = FAILED

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, finding: str = "device.error", device: str | None = None
    ) -> None:
        super().__init__(what, why, fix, finding=finding)
        self.device = device


class Undecided(GpucheckError):
    """The question cannot be decided: noise, other processes, time (exit 4)."""

    exit_code = UNDECIDED


class Unprinted(Exception):
    """The result could not be written to stdout. `code` is the exit status of the result itself."""

    def __init__(self, error: OSError, code: int) -> None:
        super().__init__(error, code)
        self.error = error
        self.code = code


class Terminated(BaseException):
    """SIGTERM, handled like Ctrl-C."""


# The dependencies of gpucheck: the module's name, and the distribution's name.
DEPENDENCIES = {"typer": "typer", "rich": "rich", "psutil": "psutil", "tomli": "tomli", "pynvml": "nvidia-ml-py"}


def of_dependency(error: ImportError) -> CannotLook | None:
    """Return the error for a dependency of gpucheck that cannot be imported; None for any other import. The dependency
    may be missing, incomplete, built for another machine, or on a file system that is mounted noexec."""
    importer, trace = "", error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        importer, trace = importer if module == "importlib" else module, trace.tb_next
    # The error for a library that cannot be loaded has no name.
    name = next((name for name in ((error.name or "").partition(".")[0], importer) if name in DEPENDENCIES), None)
    if name is None or importer not in ("gpucheck", "__main__", *DEPENDENCIES):
        return None
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    fix = f"{python} -m pip install --force-reinstall {DEPENDENCIES[name]}"
    return CannotLook(f"{name}, which gpucheck needs, cannot be imported", str(error), fix)


def filter_warnings() -> None:
    """Set the warning filters of the command line and its children, but not of a program that imports gpucheck."""
    # `-W error` and PYTHONWARNINGS=error raise every warning. A deprecation in these libraries would end the command
    # like a bug of gpucheck, so these warnings are printed instead.
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("default", module=r"(gpucheck|torch|numpy|pynvml|psutil|typer|click|rich)(\.|$)")
    # torch's C++ warns at its first import without NumPy, which gpucheck does not need (utils/tensor_numpy.cpp).
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
