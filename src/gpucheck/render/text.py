"""A report as blocks: which command's layout, and what every layout ends with; and these as Markdown."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gpucheck.cards.checks import gravity
from gpucheck.render.blocks import ADVICE, SIGNS, Block, Drawing, Line, Page, Table, advice_line
from gpucheck.report.finding import ASKING, WORST_FIRST, Finding, grouped
from gpucheck.report.report import Report

# The file of each command's layout, and its function where that is not `page`. Only the one that is shown is loaded.
LAYOUTS = {
    "status": "doctor.status_page",
    "devices": "devices",
    "memory": "doctor.memory_page",
    "doctor": "doctor",
    "explain": "explain",
    "smoke": "doctor.smoke_page",
    "bench transfer": "transfer",
    "bench bandwidth": "bench.bandwidth_page",
    "bench matmul": "matmul",
    "bench overlap": "bench.overlap_page",
    "bench crossover": "crossover",
    "bench collective": "bench.collective_page",
    "bench all": "bench.all_page",
    "find-batch-size": "batch_size",
    "model": "run.model_page",
    "compare": "compare",
    "report": "html",
    "fleet check": "fleet",
    "fleet judge": "fleet",
    "lint": "explain.lint_page",
    "run": "run",
    "stress": "stress",
}

# Whoever asks for these asks for all of it; any other first view fits a screen, whose tables keep a row for each of
# eight devices.
_LISTS = frozenset({"bench all", "explain", "lint"})
LEAST_ROWS = 8


def blocks(report: Report, *, verbose: bool = False) -> list[Block]:
    """The report as its command lays it out; `verbose` adds what asks for nothing: passes, methods, curves."""
    laid_out: list[Block] = []
    for part in parts_of(report, verbose=verbose):
        laid_out += [Line(), *part] if laid_out and part else part
    if verbose or report.command in _LISTS:
        return [replace(one, may_go=False) if isinstance(one, Line) else one for one in laid_out]
    return [replace(one, least=LEAST_ROWS) if isinstance(one, Table) else one for one in laid_out]


def parts_of(report: Report, *, verbose: bool) -> list[Sequence[Block]]:
    """The same in its parts, of which the first is the answer with what asks for something."""
    file, _, function = LAYOUTS[report.command].partition(".")
    page_of: Callable[[Report], Page] = getattr(importlib.import_module(f"gpucheck.render.{file}"), function or "page")
    report = replace(
        report, findings=tuple(replace(one, fix=_whole_command(report, one.fix)) for one in report.findings)
    )
    page = page_of(report)
    again = typed(report.argv) if report.argv else ""
    parts: list[Sequence[Block]] = [head(page, incomplete=report.incomplete, again=again), page.body]
    if report.command != "compare" and "compare" in report.results:
        # Measured and compared in one go: what was measured, then what changed.
        from gpucheck.render import compare

        parts.append(compare.comparison(report))
    if verbose:
        at_rest = [one for one in page.findings if one.verdict not in ASKING and one is not page.cause]
        parts += [said(at_rest), page.details]
    return parts


# An option and its value: what has more words, or ends like a clause, is a sentence.
_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)[ =](\w|\w\S*[\w%])")
# What every command takes, and what changes nothing but how its result is shown.
_OF_THE_SCREEN = ("--debug", "--quiet", "--verbose", "-v")


def _whole_command(report: Report, fix: str | None) -> str | None:
    """A fix that is only an option, as the whole command to type: the one that was typed, with this option."""
    option = _OPTION.fullmatch(fix or "")
    if fix is None or option is None or report.command.split()[:1] != list(report.argv[:1]):
        return fix
    argv = [argument for argument in report.argv if argument not in _OF_THE_SCREEN]
    return typed([*without(argv, option[1]), *fix.split()])


def typed(argv: Sequence[str]) -> str:
    """A command line to type, without what only wrote its result elsewhere."""
    return shlex.join(["gpucheck", *without([one for one in argv if one != "--json"], "--output")])


def without(argv: Sequence[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    kept, given = [], iter(argv)
    for argument in given:
        if argument == option:
            next(given, None)
        elif not argument.startswith(f"{option}="):
            kept.append(argument)
    return kept


def head(page: Page, *, incomplete: str = "", again: str = "") -> list[Block]:
    """The answer, what asks for something with the command to type, the worst first; whether all was done.

    `again` is the command to type where work was cut off and nothing else is to be typed.
    """
    ranked = sorted(page.findings, key=lambda one: (WORST_FIRST.index(one.verdict), gravity(one)))
    asking = [one for one in ranked if one.verdict in ASKING and one is not page.cause]
    laid_out: list[Block] = [*([page.answer] if page.answer else []), *page.under]
    if page.cause is not None and page.cause.fix:
        laid_out.append(advice_line(page.cause.fix))
    # What failed comes first, and stays on a short screen.
    stay = len(said([one for one in asking if one.verdict == "fail"]))
    laid_out += [replace(one, may_go=place >= stay) for place, one in enumerate(said(asking))]
    if incomplete:
        laid_out.append(Line(f"! not complete: {incomplete}", "yellow"))
    then = page.then or (again if incomplete else "")
    if then and not any(isinstance(line, Line) and line.text.startswith(ADVICE) for line in laid_out):
        laid_out.append(advice_line(then))
    return laid_out


def said(findings: Sequence[Finding]) -> list[Line]:
    """Findings a line each, said once for all cards that have it, and below each what to do, which is said once too.

    Commands that differ in the card's address alone are shown once.
    """
    lines: list[Line] = []
    for group in grouped(findings):
        sign, _, style = SIGNS[group.verdict]
        lines.append(Line(f"{sign} {group.line}", style))
        if group.fixes:
            others = len(group.fixes) - 1
            fix = advice_line(group.fixes[0] + (f" (and {others} more, each by its own address)" if others else ""))
            lines += [fix] if fix not in lines else []
    return lines


# Up to the first colon, but for one behind a device's name.
_IN_BRIEF = re.compile(r"((cpu|[a-z]+:\d+|NVML \d+): )?.+?(?=: |$)")


def in_brief(lines: Iterable[str]) -> str:
    """Findings in one line, each without its sign, its details and its fix: `cuda:6  91 °C, limit 87 °C`."""
    told = [line.partition(" ")[2] for line in lines if not line.startswith(ADVICE)]
    return "; ".join(found[0] if (found := _IN_BRIEF.match(one)) else one for one in told)


def markdown_page(report: Report) -> str:
    """The report as a Markdown page, with everything that a screen shows with `-v`."""
    return markdown(f"gpucheck {report.command}", blocks(report, verbose=True))


# -- Markdown ----------------------------------------------------------------------------------------------------------

# Brackets make links and images, `<` tags, the others emphasis, cells and code.
_SPECIAL = re.compile(r"[\\|*_<`\[\]]")


def markdown(title: str, blocks: Sequence[Block]) -> str:
    parts = [f"# {_escaped(title)}"]
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Drawing):
            # Backticks that no line inside can close.
            longest = max((len(run) for line in block.lines for run in re.findall("`+", line)), default=0)
            fence = "`" * max(3, longest + 1)
            parts.append("\n".join((f"{fence}text", *block.lines, fence)))
        elif block.text:
            parts.append(_escaped(block.text))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str, *, in_table: bool = False) -> str:
    """The text without links, images, tags and emphasis; what stands between single backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return _SPECIAL.sub(r"\\\g<0>", text)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = _SPECIAL.sub(r"\\\g<0>", part)
        elif in_table:
            # A table is split at these before code is looked for.
            parts[place] = part.replace("|", "\\|")
    return "`".join(parts)


def _table(table: Table) -> str:
    heads = [_escaped(" ".join(column.head.split()), in_table=True) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = [[_escaped(" ".join(cell.text.splitlines()), in_table=True) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows))
