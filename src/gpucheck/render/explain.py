"""`gpucheck explain` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.render.blocks import Block, Column, Line, Page, advice_line, table
from gpucheck.render.text import said
from gpucheck.report.report import Report
from gpucheck.report.results.explain import Certainty, ExplainResult, IdPage, TextMatch

_LIST = (Column("id", "left"), Column("of", "left", keep=2), Column("what", "left", wraps=True))
_SURE: dict[Certainty, str] = {
    "proof": "the text says so itself",
    "strong": "nearly always so",
    "hint": "the text alone does not prove it",
}
# What else a long log holds: more than this is a list that nobody reads.
_MOST_OTHERS = 5


def page(report: Report) -> Page:
    """The root cause first, what to do, then what else is in the text."""
    told = report.results.get("explain") or ExplainResult()
    if told.known:
        return Page(None, [table(_LIST, [[one.id, one.of, one.title] for one in told.known])])
    if told.page:
        return Page(None, _page(told.page))
    if told.matches:
        return Page(None, _answer(told.matches))
    return Page(None, said(report.findings))


def _answer(matches: Sequence[TextMatch]) -> list[Block]:
    first, *others = matches
    laid_out: list[Block] = [Line(f"{first.title} ({first.id})", "bold")]
    # A sentence and a step that are made of the text's own numbers need no general words beside them.
    laid_out += [Line(text) for text in (first.says, "" if first.specific else first.meaning) if text]
    laid_out.append(Line(f"how sure: {_certainty(first)}"))
    laid_out += _commands(first.then)
    if first.conditions:
        laid_out.append(Line(f"`gpucheck doctor` looks for it: {', '.join(first.conditions)}"))
    if first.source:
        laid_out.append(Line(f"source: {first.source}", "dim"))
    if others:
        laid_out += [Line(), Line("also in the text:")]
        laid_out += [Line(f"· line {one.line}: {one.title} ({one.id})") for one in others[:_MOST_OTHERS]]
        if len(others) > _MOST_OTHERS:
            laid_out.append(Line(f"· and {len(others) - _MOST_OTHERS} more"))
    return laid_out


def _certainty(match: TextMatch) -> str:
    if match.cut:
        return "a part of the text is missing"
    if match.doubt:
        return f"a guess: {match.doubt}"
    return "what caused it is not in the text" if match.symptom else _SURE[match.certainty]


def _page(page: IdPage) -> list[Block]:
    laid_out: list[Block] = [Line(f"{page.title} ({page.id})", "bold"), Line(page.meaning)]
    if page.rung:
        laid_out.append(Line(f"it breaks the rung: {page.rung}"))
    if page.certainty:
        laid_out.append(
            Line(
                f"how sure: {_SURE[page.certainty]}"
                if page.of == "text"
                else f"how sure, where it is seen: {page.certainty}"
            )
        )
    if page.settle:
        laid_out.append(Line(f"to make sure: {page.settle}"))
    laid_out += _commands(page.then)
    if page.texts:
        laid_out.append(Line("error texts: " + " · ".join(page.texts), "dim"))
    if page.source:
        laid_out.append(Line(f"source: {page.source}", "dim"))
    laid_out.append(Line(f"asked by: {_asked_by(page.of)}", "dim"))
    return laid_out


def _asked_by(of: str) -> str:
    return "gpucheck explain" if of == "text" else f"gpucheck {of}"


def _commands(then: str) -> list[Block]:
    return [advice_line(then)] if then else []
