"""`gpucheck explain` and `lint` as blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpucheck.render.text import SIGNS, Block, Column, Line, Page, advice_line, answer, counted, table
from gpucheck.report.finding import WORST_FIRST, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.short import Certainty, ExplainResult, IdPage, LintResult, TextMatch

_LIST = (Column("id", "left"), Column("of", "left", keep=2), Column("what", "left", wraps=True))
SURE: dict[Certainty, str] = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}
_BY_TEXT = {"proof": " by the text itself", "strong": "", "hint": "; the text alone does not prove it"}
_SYMPTOM = "a symptom: the text does not name its cause"
# The most further causes of a long log that are shown, because nobody reads a longer list.
_MOST_OTHERS = 5


def page(report: Report) -> Page:
    """Return the root cause first, what to do, and then the other errors in the text."""
    result = report.results.get("explain") or ExplainResult()
    if result.known:
        return Page(None, [table(_LIST, [[entry.id, entry.of, entry.title] for entry in result.known])])
    if result.page:
        return _page_of_id(result.page)
    if result.matches:
        return _page_of_text(result.matches)
    return Page(cause=next(iter(report.findings), None))


def _page_of_text(matches: Sequence[TextMatch]) -> Page:
    first, *others = matches
    # A specific text (with its own numbers) needs no general meaning.
    meaning = [] if first.specific or not first.meaning else [Line(first.meaning)]
    body: list[Block] = [*meaning, Line(f"{_certainty(first)} ({first.id})", "dim")]
    if first.conditions:
        body.append(Line(f"gpucheck doctor checks this: {', '.join(first.conditions)}", "dim"))
    if others:
        body += [Line(), Line("also in the text:")]
        body += [Line(f"· line {process.line}: {process.title} ({process.id})") for process in others[:_MOST_OTHERS]]
        if len(others) > _MOST_OTHERS:
            body.append(Line(f"· and {len(others) - _MOST_OTHERS} more"))
    title = f"{first.title}: {first.says}" if first.says else first.title
    return Page(Line(title, "bold"), body, under=_steps(first.then))


def _certainty(match: TextMatch) -> str:
    if match.doubt:
        return f"a guess: {match.doubt}"
    return _SYMPTOM if match.symptom else SURE[match.certainty] + _BY_TEXT[match.certainty]


def _page_of_id(page: IdPage) -> Page:
    parts = ["an error text" if page.of == "text" else f"a finding of gpucheck {page.of}"]
    parts += [f"breaks the stage {page.rung}"] if page.rung else []
    parts += [SURE[page.certainty]] if page.certainty else []
    settle = [Line(f"to make sure: {page.settle}")] if page.settle else []
    body = [Line(page.meaning), *settle, Line(" · ".join(parts), "dim")]
    # Texts, conditions and rules are titled by what is wrong, other findings by what they check.
    is_fault = page.of in ("text", "doctor", "lint")
    title = f"{page.title} ({page.id})" if is_fault else f"{page.id} checks: {page.title}"
    return Page(Line(title, "bold"), body, under=_steps(page.then))


# A step ends at a semicolon that is not inside quotes or brackets; an apostrophe inside a word opens no quote.
_STEP = re.compile(r"""(?:`[^`]*`|"[^"]*"|\([^()]*\)|(?<!\w)'[^']*'|[^;])+""")


def _steps(then: str) -> list[Line]:
    """Return what to do, with a line for each step in the order in which to try them."""
    return [advice_line(step.strip()) for step in _STEP.findall(then) if step.strip()]


# -- lint: each mistake with its source, as compilers write ------------------------------------------------------------


def lint_page(report: Report) -> Page:
    """Return the verdict, then each mistake: file, line and column, the rule, what is wrong and what to do."""
    result = report.results.get("lint") or LintResult()
    placed = [finding for finding in report.findings if "file" in finding.evidence]
    mistakes = [block for finding in placed for block in _mistake(finding)]
    ignored = [Line(f"{counted(result.ignored, 'finding')} ignored by comments", "dim")] if result.ignored else []
    others = [finding for finding in report.findings if finding not in placed]
    # The finding that nothing was wrong, or that there were no files to read.
    clean = next((finding for finding in others if finding.verdict in ("pass", "skip")), None)
    return Page(_lint_verdict(placed, result), mistakes, ignored, others, cause=clean)


def _lint_verdict(placed: list[Finding], row: LintResult) -> Line | None:
    """Return the verdict on all files in one line, or None if another finding states it."""
    if not placed:
        return None
    counts = Counter(finding.verdict for finding in placed)
    parts = [counted(counts["fail"], "device mistake")] if counts["fail"] else []
    if unjudged := counts["inconclusive"]:
        parts.append(f"{unjudged} file{'s' * (unjudged > 1)} not judged")
    parts += [counted(counts["info"], "remark")] if counts["info"] else []
    parts += [f"{counted(counts['skip'], 'notebook')} not read"] if counts["skip"] else []
    worst = min(counts, key=WORST_FIRST.index)
    where = f" in {counted(row.files, 'file')}" if row.files else ""
    return answer(worst, f"{', '.join(parts)}{where}")


def _mistake(finding: Finding) -> list[Block]:
    """Return the place and what is wrong, the line of source, and what to do."""
    evidence = finding.evidence
    place = ":".join(str(evidence[key]) for key in ("file", "line", "column") if evidence.get(key) is not None)
    lines: list[Block] = [Line(f"{place} {finding.id} {finding.message}", SIGNS[finding.verdict][2])]
    if source := evidence.get("source"):
        # A character that would move the cursor is shown as a blank.
        shown = "".join(letter if letter.isprintable() else " " for letter in source.strip())
        lines.append(Line(f"{evidence['line']} | {shown}"))
    return [*lines, *([advice_line(finding.fix)] if finding.fix else [])]
