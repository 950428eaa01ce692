"""What `lint` answers beside its findings: what it looked at, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.report.finding import Verdict


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule, and the verdict of what it finds."""

    id: str
    verdict: Verdict
    title: str


@dataclass(frozen=True, slots=True)
class LintResult:
    """How many files were looked at, how many mistakes in them a comment ignores, how many files could not be judged,
    and the rules."""

    files: int = 0
    ignored: int = 0
    unjudged: int = 0
    rules: tuple[LintRule, ...] = ()
