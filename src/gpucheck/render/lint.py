"""`gpucheck lint` as blocks: a line for each mistake, as compilers write them."""

from __future__ import annotations

from gpucheck.render.blocks import SIGNS, Block, Column, Line, advice_line, finding_line, table
from gpucheck.report.finding import WORST_FIRST, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.lint import LintResult

_LIST = (Column("id", "left"), Column("verdict", "left", keep=2), Column("what", "left", wraps=True))


def blocks(report: Report) -> list[Block]:
    """The verdict, then each mistake: file, line and column, the rule, what is wrong and what to do."""
    told = report.results.get("lint") or LintResult()
    if told.files is None and told.rules:
        return [table(_LIST, [[one.id, one.verdict, one.title] for one in told.rules])]
    placed = [finding for finding in report.findings if "file" in finding.evidence]
    laid_out: list[Block] = [*_verdict(placed, told)]
    laid_out += [line for finding in report.findings if finding not in placed for line in _plain(finding)]
    laid_out += [_mistake(finding) for finding in placed]
    if told.ignored:
        laid_out.append(Line(f"{_count(told.ignored, 'finding')} ignored by comments", "dim"))
    return laid_out


def _verdict(placed: list[Finding], told: LintResult) -> list[Block]:
    """What all of it comes to, in one line; empty where a finding of its own says so."""
    if not placed:
        return []
    parts = []
    for verdict, text in (("fail", "device mistake"), ("inconclusive", "file not judged"), ("info", "remark")):
        count = sum(finding.verdict == verdict for finding in placed)
        if count:
            parts.append(
                f"{count} files not judged" if verdict == "inconclusive" and count > 1 else _count(count, text)
            )
    skipped = sum(finding.verdict == "skip" for finding in placed)
    parts += [f"{_count(skipped, 'notebook')} not read"] if skipped else []
    worst = min((finding.verdict for finding in placed), key=WORST_FIRST.index)
    sign, _, style = SIGNS[worst]
    where = f" in {_count(told.files, 'file')}" if told.files else ""
    return [Line(f"{sign} {', '.join(parts)}{where}", style)]


def _plain(finding: Finding) -> list[Block]:
    return [finding_line(finding), *([advice_line(finding.fix)] if finding.fix else [])]


def _mistake(finding: Finding) -> Line:
    evidence = finding.evidence
    place = ":".join(str(evidence[key]) for key in ("file", "line", "column") if evidence.get(key) is not None)
    fix = f" → {finding.fix}" if finding.fix else ""
    return Line(f"{place} {finding.id} {finding.message}{fix}", SIGNS[finding.verdict][2])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
