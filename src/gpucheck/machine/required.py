"""`--require KIND` and `--min-devices N`: what the command line asks of the machine, against what torch can use. Pure.

Their findings are no checks to select: they are there when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpucheck.machine import choose
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding

REQUIRED_ID, COUNT_ID = "device.required", "device.count"
DIAGNOSE = "see `gpucheck doctor` for why"


@dataclass(frozen=True, slots=True)
class Usable:
    """The accelerators that torch can use: their kind, None where there are none, and how many."""

    kind: str | None
    count: int
    is_rocm: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What they may be required as. torch calls ROCm's devices cuda: they are both."""
        if self.kind is None:
            return ()
        return ("cuda", "rocm") if self.kind == "cuda" and self.is_rocm else (self.kind,)

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.count} device{'s' * (self.count != 1)} of kind {self.kind}" if self.kind else "no accelerator"

    @property
    def evidence(self) -> dict[str, Any]:
        """As plain data."""
        return {"kind": self.kind, "count": self.count, "rocm": self.is_rocm}


def judge_seen(
    require: str | None, min_devices: int | None, seen: Usable, facts: Facts, *, fix: str | None = DIAGNOSE
) -> list[Finding]:
    """The findings where torch can use what was `seen`; the facts tell why it cannot use more.

    `fix` is what to do where the kind is not there.
    """
    found: list[Finding] = []
    kind_met = require is None or (require in seen.names and seen.count > 0)
    if require is not None:
        why = "" if kind_met or not choose.is_present(facts) else f": {choose.why_unusable(facts)}"
        found.append(
            Finding(
                REQUIRED_ID,
                "pass" if kind_met else "fail",
                f"an accelerator of kind {require} is required",
                f"torch can use {seen.text}{why}",
                seen.evidence,
                None if kind_met else fix,
            )
        )
    if min_devices is not None:
        met = kind_met and seen.count >= min_devices
        found.append(
            Finding(
                COUNT_ID,
                "pass" if met else "fail",
                f"at least {min_devices} device{'s' * (min_devices != 1)} required",
                f"torch can use {seen.text}",
                seen.evidence,
                None if met else "see `gpucheck devices`, and whether CUDA_VISIBLE_DEVICES hides some",
            )
        )
    return found
