"""The interface of a smoke check: its input, its answer, and the state that it must restore."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gpucheck.machine.accel import Accel
from gpucheck.report.facts import Host


@dataclass(frozen=True, slots=True)
class DeviceUnderTest:
    """Where the checks run: the device under test and the machine around it."""

    accel: Accel
    host: Host = field(default_factory=Host)

    @property
    def device(self) -> torch.device:
        return self.accel.device

    @property
    def other(self) -> torch.device:
        """A second device: the CPU, or `meta` where the CPU itself is under test."""
        return torch.device("meta" if self.accel.is_cpu else "cpu")


@dataclass(frozen=True, slots=True)
class Passed:
    """A check that passed: what it saw. `doubt` makes it a warning, and `fix` then says what to do."""

    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    doubt: bool = False
    fix: str | None = None


class Wrong(Exception):
    """Something came out otherwise than it must; `evidence` holds both."""

    def __init__(self, message: str, /, fix: str | None = None, **evidence: Any) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.fix = fix


class Unavailable(Exception):
    """The check cannot be made here, for the reason given: a skip."""


def expect(holds: bool, message: str, /, **evidence: Any) -> None:
    """Raise Wrong unless `holds`. (`assert` would be gone under `python -O`.)"""
    if not holds:
        raise Wrong(message, **evidence)


# -- what a check needs: each is None, or the reason for a skip -------------------------------------------------------

Need = Callable[[DeviceUnderTest], str | None]


def dedicated_memory(dut: DeviceUnderTest) -> str | None:
    """Needs a device whose memory can run out without harm: where the system shares it, everything would suffer."""
    accel, host = dut.accel, dut.host
    if accel.is_cpu:
        return None
    if host.wsl:
        return "dangerous under WSL: the driver spills into host memory and can crash Windows"
    if host.system == "Windows":
        return "dangerous on Windows: the driver spills into host memory"
    if accel.integrated or accel.kind == "mps":
        return "dangerous on unified memory: device and system share it"
    return None


# -- torch's global state ---------------------------------------------------------------------------------------------


# How one piece of the state is read, and how it is set.
Switch = tuple[Callable[[], Any], Callable[[Any], object]]


def _switches(accel: Accel) -> list[Switch]:
    """Return what the checks may change, beside what their own context managers put back."""
    found: list[Switch] = [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_rng_state, torch.set_rng_state),
    ]
    if accel.kind == "mps":
        found.append((accel.module.get_rng_state, accel.module.set_rng_state))
    elif not accel.is_cpu and hasattr(accel.module, "get_rng_state"):
        of_device, module = accel.device, accel.module
        found.append((partial(module.get_rng_state, of_device), lambda state: module.set_rng_state(state, of_device)))
    flags = (
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        (torch.backends.cuda.matmul, "allow_fp16_accumulation"),
    )
    return found + [(partial(getattr, *flag), partial(setattr, *flag)) for flag in flags if hasattr(*flag)]


@contextlib.contextmanager
def unchanged(accel: Accel) -> Iterator[None]:
    """Put torch's global state back to what it was, whatever happens inside."""
    saved = [(write, read()) for read, write in _switches(accel)]
    try:
        yield
    finally:
        for write, value in saved:
            write(value)


def first_line(said: object) -> str:
    """The first line of what an error or a warning says; its class where it says nothing."""
    return (str(said).strip().splitlines() or [type(said).__name__])[0]
