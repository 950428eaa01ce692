"""A report as blocks: which command's layout, and what every layout ends with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from gpucheck.render.blocks import ADVICE, SIGNS, Block, Line, Page, advice_line
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict, grouped
from gpucheck.report.report import Report

# The file of each command's layout, whose `page(report)` makes it. Only the one that is shown is loaded.
LAYOUTS = {
    "devices": "devices",
    "memory": "memory",
    "doctor": "doctor",
    "explain": "explain",
    "smoke": "smoke",
    "bench transfer": "transfer",
    "bench bandwidth": "bandwidth",
    "bench matmul": "matmul",
    "bench overlap": "overlap",
    "bench crossover": "crossover",
    "bench all": "bench_all",
    "find-batch-size": "batch_size",
    "model": "model",
    "compare": "compare",
    "fleet check": "fleet",
    "fleet judge": "fleet",
    "lint": "lint",
    "run": "run",
    "stress": "stress",
}


# Findings that ask for something; the others stand with the details.
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "inconclusive", "warn")


def blocks(report: Report, *, verbose: bool = False) -> list[Block]:
    """The report as its command lays it out; `verbose` adds what asks for nothing: passes, methods, curves."""
    page_of: Callable[[Report], Page] = importlib.import_module(f"gpucheck.render.{LAYOUTS[report.command]}").page
    page = page_of(report)
    laid_out = head(page, complete=report.summary.complete)
    parts: list[Sequence[Block]] = [page.body]
    if report.command != "compare" and "compare" in report.results:
        # Measured and compared in one go: what was measured, then what changed.
        from gpucheck.render import compare

        parts.append(compare.comparison(report))
    if verbose:
        at_rest = [one for one in page.findings if one.verdict not in _WORST_FIRST and one is not page.cause]
        parts += [said(at_rest), page.details]
    for part in parts:
        laid_out += [Line(), *part] if laid_out and part else part
    return laid_out


def head(page: Page, *, complete: bool = True) -> list[Block]:
    """The answer, what asks for something with the command to type, the worst first; whether all was done."""
    ranked = sorted(page.findings, key=lambda one: WORST_FIRST.index(one.verdict))
    asking = [one for one in ranked if one.verdict in _WORST_FIRST and one is not page.cause]
    laid_out: list[Block] = [*([page.answer] if page.answer else []), *page.under]
    if page.cause is not None and page.cause.fix:
        laid_out.append(advice_line(page.cause.fix))
    laid_out += said(asking)
    if not complete:
        laid_out.append(Line("! not complete: the command was cut off", "yellow"))
    if page.then and not any(isinstance(line, Line) and line.text.startswith(ADVICE) for line in laid_out):
        laid_out.append(advice_line(page.then))
    return laid_out


def said(findings: Sequence[Finding]) -> list[Block]:
    """Findings a line each, said once for all cards that have it, and below each what to do, which is said once too.

    Commands that differ in the card's address alone are shown once.
    """
    lines: list[Block] = []
    for group in grouped(findings):
        sign, _, style = SIGNS[group.verdict]
        lines.append(Line(f"{sign} {group.line}", style))
        if group.fixes and (fix := advice_line(f"{group.fixes[0]}{_likewise(len(group.fixes) - 1)}")) not in lines:
            lines.append(fix)
    return lines


def _likewise(others: int) -> str:
    return f" (and {others} more, each by its own address)" if others else ""


def markdown_page(report: Report) -> str:
    """The report as a Markdown page, with everything that a screen shows with `-v`."""
    from gpucheck.render.markdown import markdown

    return markdown(f"gpucheck {report.command}", blocks(report, verbose=True))
