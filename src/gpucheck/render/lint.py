"""`gpucheck lint` as blocks: each mistake with its line of source, as compilers write them."""

from __future__ import annotations

from gpucheck.render.blocks import SIGNS, Block, Drawing, Line, Page, advice_line, answer, finding_line
from gpucheck.report.finding import WORST_FIRST, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.lint import LintResult


def page(report: Report) -> Page:
    """The verdict, then each mistake: file, line and column, the rule, what is wrong, the source and what to do."""
    told = report.results.get("lint") or LintResult()
    placed = [finding for finding in report.findings if "file" in finding.evidence]
    mistakes = [block for finding in placed for block in _mistake(finding)]
    ignored = [Line(f"{_count(told.ignored, 'finding')} ignored by comments", "dim")] if told.ignored else []
    others = [finding for finding in report.findings if finding not in placed]
    # Nothing was wrong, or there was nothing to read.
    clean = next((finding for finding in others if finding.verdict in ("pass", "skip")), None)
    told_first = finding_line(clean) if clean is not None and not placed else _verdict(placed, told)
    return Page(told_first, mistakes, ignored, others, cause=clean)


def _verdict(placed: list[Finding], told: LintResult) -> Line | None:
    """What all of it comes to, in one line; None where another finding says so."""
    if not placed:
        return None
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
    where = f" in {_count(told.files, 'file')}" if told.files else ""
    return answer(worst, f"{', '.join(parts)}{where}")


def _mistake(finding: Finding) -> list[Block]:
    """The place and what is wrong, the line of source with the place marked, and what to do."""
    evidence = finding.evidence
    place = ":".join(str(evidence[key]) for key in ("file", "line", "column") if evidence.get(key) is not None)
    lines: list[Block] = [Line(f"{place} {finding.id} {finding.message}", SIGNS[finding.verdict][2])]
    if source := evidence.get("source"):
        number, cut = str(evidence["line"]), len(source) - len(source.lstrip())
        # A tab is one character wide in both lines, and what would move the cursor is none.
        shown = "".join(letter if letter.isprintable() else " " for letter in source[cut:])
        before = " " * (evidence["column"] - 1 - cut)
        code, marks = f"{number} | {shown}", f"{' ' * len(number)} | {before}{'^' * evidence['width']}"
        lines += [Drawing((code, marks), (code, marks))]
    return [*lines, *([advice_line(finding.fix)] if finding.fix else [])]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
