"""Findings: the results of the judges. A finding has a verdict, the evidence and the fix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from gpucheck import errors
from gpucheck.errors import GpucheckError

Verdict = Literal["pass", "info", "warn", "fail", "inconclusive", "skip"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# `skip` is worse than `pass`, because a skipped check has not passed.
WORST_FIRST: tuple[Verdict, ...] = ("fail", "inconclusive", "warn", "skip", "pass", "info")
# Verdicts that need action.
NEEDS_ACTION = WORST_FIRST[:3]
# The role of a finding on a benchmark's page. `verifies` checks that results are right. `finds_wrong` appears only if a
# result is wrong or was not compared. `advises` suggests an action.
Role = Literal["", "verifies", "finds_wrong", "advises"]


@dataclass(frozen=True, slots=True)
class Id:
    """The page of a finding's ID: the check (`title`), the meaning of a failure, the fix (`then`), and the command."""

    id: str
    title: str
    meaning: str
    then: str = ""
    role: Role = ""
    command: str = ""


def ids_of(command: str, *ids: Id) -> tuple[Id, ...]:
    return tuple(replace(row, command=command) for row in ids)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `id` is dotted and never changes its meaning. `fix` is the next step, or None. `device` is torch's
    name for the device, or None if the finding is about no device or several."""

    id: str
    verdict: Verdict
    title: str
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    device: str | None = None

    @property
    def is_gate(self) -> bool:
        """Return whether the finding checks a threshold that the user set."""
        return "threshold" in self.evidence


def of_error(error: GpucheckError, device: str | None = None) -> Finding:
    """Return the finding for an error that does not end the command. The error's exit status sets the verdict."""
    verdicts: dict[int, Verdict] = {errors.FAILED: "fail", errors.USAGE: "fail", errors.UNDECIDED: "inconclusive"}
    verdict = verdicts.get(error.exit_code, "skip")
    return Finding(error.finding, verdict, error.what, error.why, fix=error.fix or None, device=device)
