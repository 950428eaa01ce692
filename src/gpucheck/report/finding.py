"""Findings: what a judge says, with its evidence and the fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gpucheck import exits
from gpucheck.errors import GpucheckError

Verdict = Literal["pass", "info", "warn", "fail", "inconclusive", "skip"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# `skip` outranks `pass` because it is not one.
WORST_FIRST: tuple[Verdict, ...] = ("fail", "inconclusive", "warn", "skip", "pass", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement. `id` is dotted and never changes its meaning; `fix` is the next command to type, or None.

    `device` is what torch calls the device that it is about, None where it is about none or several.
    """

    id: str
    verdict: Verdict
    title: str
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    device: str | None = None


def of_error(error: GpucheckError, device: str | None = None) -> Finding:
    """What an error of ours comes to where the rest goes on, or was measured before: as its exit status has it."""
    verdicts: dict[int, Verdict] = {exits.FAILED: "fail", exits.USAGE: "fail", exits.UNDECIDED: "inconclusive"}
    verdict = verdicts.get(error.exit_code, "skip")
    return Finding(error.finding, verdict, error.what, error.why, fix=error.fix or None, device=device)
