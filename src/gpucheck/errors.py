"""Errors that a user meets. Each says what, why and what to do, and carries its exit status."""

from __future__ import annotations

import warnings

from gpucheck import exits


class GpucheckError(Exception):
    """A problem to tell the user: what, why, and what to do; as text one sentence.

    `finding` is the id under which the problem stands in the report, `command` the command whose usage was wrong.
    """

    exit_code = exits.COULD_NOT_LOOK
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

    exit_code = exits.USAGE


class TargetError(UsageError):
    """The user's target is missing, raises or rejects its input (exit 2); `trace` is its traceback, for `--debug`."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, trace: str = "", finding: str = "target") -> None:
        super().__init__(what, why, fix, finding=finding)
        self.trace = trace


class CannotLook(GpucheckError):
    """gpucheck could not look: no such device, no usable torch, no space for the output (exit 3)."""


class DeviceFailed(GpucheckError):
    """The device, or what drives it, failed in the work of another process (exit 1); `why` is what was raised there."""

    exit_code = exits.FAILED

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, device: str | None = None, finding: str = "device.error"
    ) -> None:
        super().__init__(what, why, fix, finding=finding)
        self.device = device


class Undecided(GpucheckError):
    """Asked, but it cannot be decided: noise, other processes, time (exit 4)."""

    exit_code = exits.UNDECIDED


class Unprinted(Exception):
    """stdout did not take the result: why not, and the exit status that the result itself asks for."""

    def __init__(self, error: OSError, code: int) -> None:
        super().__init__(error, code)
        self.error = error
        self.code = code


class Terminated(BaseException):
    """SIGTERM, handled like Ctrl-C."""


# torch's C++ warns at its first import without NumPy, which gpucheck does not need (torch/csrc/utils/tensor_numpy.cpp).
WITHOUT_NUMPY = "Failed to initialize NumPy"
# Where `-W error` or PYTHONWARNINGS=error makes an exception of every warning, a deprecation inside these would end a
# command as a bug of gpucheck. They are shown instead.
NOT_THE_USERS = r"(gpucheck|torch|numpy|pynvml|psutil|typer|click|rich)(\.|$)"


def filter_warnings() -> None:
    """Set this process's filters: for the command line and its children, never for who imports gpucheck."""
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.filterwarnings("default", module=NOT_THE_USERS)
    warnings.filterwarnings("ignore", message=WITHOUT_NUMPY)
