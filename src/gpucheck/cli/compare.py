"""`gpucheck compare`: what changed between two documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.cli.common import Common
from gpucheck.options import option

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit
    from gpucheck.report.finding import Finding
    from gpucheck.report.report import Report


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The two documents."""

    old: str = option(
        "The earlier result, written by --output FILE.json or --json.", metavar="OLD", positional=True, required=True
    )
    new: str = option("The later result.", metavar="NEW", positional=True, required=True)


def compare(common: Common, options: CompareOptions) -> int:
    """Compare two saved results: what became slower or faster.

    Each row is slower, faster, the same or inconclusive, with the confidence interval of the ratio.
    """
    from gpucheck.cli import session
    from gpucheck.machine.saved import load

    limit = limit_of(common.given.get("fail_if_slower"))
    before, after = load(options.old), load(options.new)
    return session.run(common, lambda emit: conclude(before, after, limit, emit, common))


def conclude(old: Report, new: Report, limit: float | None, emit: Emit, common: Common) -> None:
    """Compare, saying first what differs between the machines and methods."""
    from gpucheck.compare import judge
    from gpucheck.compare.comparison import compare
    from gpucheck.report.events import Answered, Judged, Notice

    comparison = compare(old, new)
    for text in judge.warnings(comparison):
        emit(Notice(text, "warning"))
    emit(Answered("compare", comparison))
    for finding in judge.judge(comparison, limit):
        emit(Judged(_with_origin(finding, common)))


def _with_origin(finding: Finding, common: Common) -> Finding:
    """The gate's finding with where its limit was set."""
    from dataclasses import replace

    from gpucheck.report.codec import to_json

    set_to = common.settings.thresholds if common.settings is not None else ()
    limit = next((one for one in set_to if one.id == finding.id), None)
    if limit is None:
        return finding
    origin = f"set by {limit.origin}"
    message = f"{finding.message} ({origin})" if finding.message else origin
    return replace(finding, message=message, evidence={**finding.evidence, "threshold": to_json(limit)})


def limit_of(text: str | None) -> float | None:
    """The fraction in `--fail-if-slower 5%`; None without the option. Raises UsageError."""
    from gpucheck import units

    return units.parse_percent(text, "--fail-if-slower") if text else None
