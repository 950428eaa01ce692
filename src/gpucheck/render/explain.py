"""The pages of `gpucheck explain` and `lint`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpucheck.render import text
from gpucheck.render.text import Column, Page, PageBlock, TextLine
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.short import ExplainResult, IdPage, LintResult, TextMatch

_LIST = (Column("id", "left"), Column("of", "left", keep=2), Column("what", "left", wraps=True))
_BY_TEXT = {"proof": " by the text itself", "strong": "", "hint": "; the text alone does not prove it"}


def page(report: Report) -> Page:
    result = report.results.get("explain") or ExplainResult()
    if result.known:
        return Page(None, [text.table(_LIST, [[entry.id, entry.of, entry.title] for entry in result.known])])
    if result.page:
        return _page_of_id(result.page)
    return _page_of_text(result.matches) if result.matches else Page(cause=next(iter(report.findings), None))


def _page_of_text(matches: Sequence[TextMatch]) -> Page:
    first, *others = matches
    # A specific explanation (with numbers of the text) replaces the general meaning.
    body: list[PageBlock] = [] if first.specific or not first.meaning else [TextLine(first.meaning)]
    certainty = (
        "a symptom: gpucheck finds no cause in this text"
        if first.symptom
        else text.SURE[first.certainty] + _BY_TEXT[first.certainty]
    )
    body.append(TextLine(f"{f'a guess: {first.doubt}' if first.doubt else certainty} ({first.id})", "dim"))
    if first.conditions:
        body.append(TextLine(f"gpucheck doctor checks this: {', '.join(first.conditions)}", "dim"))
    body += [TextLine(), TextLine("also in the text:")] if others else []
    body += [TextLine(f"· line {match.line}: {match.title} ({match.id})") for match in others[:5]]
    body += [TextLine(f"· and {len(others) - 5} more")] if len(others) > 5 else []
    title = f"{first.title}: {first.says}" if first.says else first.title
    return Page(TextLine(title, "bold"), body, under=_steps(first.then))


def _page_of_id(page: IdPage) -> Page:
    parts = (
        "an error text" if page.of == "text" else f"a finding of gpucheck {page.of}",
        page.rung and f"breaks the stage {page.rung}",
        page.certainty and text.SURE[page.certainty],
    )
    settle = [TextLine(f"to make sure: {page.settle}")] if page.settle else []
    body = [TextLine(page.meaning), *settle, TextLine(" · ".join(filter(None, parts)), "dim")]
    # The title of an error text, a condition or a rule is the fault. The title of any other finding is its check.
    is_fault = page.of in ("text", "doctor", "lint")
    title = f"{page.title} ({page.id})" if is_fault else f"{page.id} checks: {page.title}"
    return Page(TextLine(title, "bold"), body, under=_steps(page.then))


# A step ends at a semicolon and a space outside of quotes and brackets. An apostrophe in a word does not quote.
_STEP = re.compile(r"""(?:`[^`]*`|"[^"]*"|\([^()]*\)|(?<!\w)'[^']*'|;(?=\S)|[^;])+""")


def _steps(then: str) -> list[TextLine]:
    return [text.advice_line(step.strip()) for step in _STEP.findall(then) if step.strip()]


def lint_page(report: Report) -> Page:
    result = report.results.get("lint") or LintResult()
    in_files = [finding for finding in report.findings if "file" in finding.evidence]
    mistakes = [block for finding in in_files for block in _mistake(finding)]
    ignored = (
        [TextLine(f"{text.counted(result.ignored, 'finding')} ignored by comments", "dim")] if result.ignored else []
    )
    others = [finding for finding in report.findings if finding not in in_files]
    # A pass means no mistakes, and a skip means no files to read.
    clean = next((finding for finding in others if finding.verdict in ("pass", "skip")), None)
    return Page(_lint_verdict(in_files, result), mistakes, ignored, others, cause=clean)


_COUNTED: dict[Verdict, tuple[str, str]] = {
    "fail": ("device mistake", ""),
    "inconclusive": ("file", " not judged"),
    "info": ("remark", ""),
    "skip": ("notebook", " not read"),
}


def _lint_verdict(in_files: list[Finding], result: LintResult) -> TextLine | None:
    if not in_files:
        return None
    counts = Counter(finding.verdict for finding in in_files)
    parts = [f"{text.counted(counts[key], noun)}{what}" for key, (noun, what) in _COUNTED.items() if counts[key]]
    where = f" in {text.counted(result.files, 'file')}" if result.files else ""
    return text.answer(min(counts, key=WORST_FIRST.index), f"{', '.join(parts)}{where}")


def _mistake(finding: Finding) -> list[PageBlock]:
    evidence = finding.evidence
    location = ":".join(str(evidence[key]) for key in ("file", "line", "column") if evidence.get(key) is not None)
    lines: list[PageBlock] = [TextLine(f"{location} {finding.id} {finding.message}", text.SIGNS[finding.verdict][2])]
    if source := evidence.get("source"):
        # A blank replaces a character that would move the cursor.
        shown = "".join(letter if letter.isprintable() else " " for letter in source.strip())
        lines.append(TextLine(f"{evidence['line']} | {shown}"))
    return [*lines, *([text.advice_line(finding.fix)] if finding.fix else [])]
