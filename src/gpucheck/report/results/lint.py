"""The answer of `lint` beside its findings: the checked files and the rules."""

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
    """The number of checked files, of mistakes that a comment ignores, and of files that could not be judged, with the
    rules."""

    files: int = 0
    ignored: int = 0
    unjudged: int = 0
    rules: tuple[LintRule, ...] = ()
