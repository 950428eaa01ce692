"""The results of a smoke check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gpucheck.machine import host
from gpucheck.machine.accel import Accel


@dataclass(frozen=True, slots=True)
class PassedCheck:
    """A check that passed. `doubt` makes the finding a warning with the fix `fix`."""

    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    doubt: bool = False
    fix: str | None = None


class WrongResult(Exception):
    """A result differs from the expected result. `evidence` has both."""

    def __init__(self, message: str, /, fix: str | None = None, **evidence: Any) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.fix = fix


class Unavailable(Exception):
    """The check cannot run here and is skipped. The message is the reason."""


def expect(holds: bool, message: str, /, **evidence: Any) -> None:
    """Raise WrongResult unless `holds`. (`python -O` would remove an `assert`.)"""
    if not holds:
        raise WrongResult(message, **evidence)


def without_own_memory(accel: Accel) -> str | None:
    """Return the reason for a skip; None if the device's memory can run out without harm to the system."""
    if accel.is_cpu:
        return None
    machine = host.read()
    if machine.wsl or machine.system == "Windows":
        return "dangerous on Windows and WSL: the driver spills into host memory and can crash Windows"
    if accel.integrated or accel.kind == "mps":
        return "dangerous on unified memory: device and system share it"
    return None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
