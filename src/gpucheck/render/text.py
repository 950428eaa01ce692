"""The blocks that a page consists of (tables and lines of text), a report as blocks by the layout of its command, and
these as Markdown.

One file for each command turns its report into blocks; terminal.py prints them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from gpucheck.render.tables import SIGNS, UNKNOWN, Table
from gpucheck.report.facts import Device
from gpucheck.report.finding import ASKING, WORST_FIRST, Finding, Verdict, grouped
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Report

ADVICE = "→ "


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text below or above a table; an empty one is a gap. `may_go` says that a first view leaves it out."""

    text: str = ""
    style: str = ""
    may_go: bool = False


Block = Table | Line


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command, in the order in which it is read.

    `answer` is the first line: the verdict with the one figure that matters, and on which device. What does not fit
    there (the device, how a fault shows) is `under` it. Then come the `findings` that ask for something, worst first,
    each with its command, then the `body`. `cause` is the finding that the answer says already, or that is the answer
    where there is no other: only its command is left to say. `then` is the command where no finding has one. `details`
    and findings that ask for nothing stand on a screen with `-v` alone, and in every file. `order` ranks findings of
    one verdict, the lowest first.
    """

    answer: Line | None = None
    body: Sequence[Block] = ()
    details: Sequence[Block] = ()
    findings: Sequence[Finding] = ()
    cause: Finding | None = None
    then: str | None = None
    under: Sequence[Line] = ()
    order: Callable[[Finding], int] = lambda finding: 0


def finding_text(finding: Finding) -> str:
    """Return a finding's title and what it says."""
    return f"{finding.title}: {finding.message}" if finding.message else finding.title


def finding_line(finding: Finding) -> Line:
    """Return a finding in one line: sign, title and what it says."""
    return signed(finding.verdict, finding_text(finding))


def signed(verdict: Verdict, text: str) -> Line:
    """Return a line behind the verdict's sign, in its colour."""
    sign, _, style = SIGNS[verdict]
    return Line(f"{sign} {text}", style)


def answer(verdict: Verdict, text: str) -> Line:
    """Return the first line of a screen: the verdict's sign and what it comes to."""
    line = signed(verdict, text)
    return replace(line, style=f"bold {line.style}".strip())


def advice_line(text: str) -> Line:
    return Line(f"{ADVICE}{text}")


def finding_of(report: Report, *ids: str) -> Finding | None:
    """Return the report's first finding of these IDs; None where it has none."""
    return next((finding for finding in report.findings if finding.id in ids), None)


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding of the worst verdict; None where there is no finding."""
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.verdict), default=None)


_OF_EVERY_CPU = re.compile(r"\((?:R|TM|C)\)| \d+-Core Processor| Processor\b| CPU @.*", re.IGNORECASE)
# What tells no card from another once its memory is beside it.
_OF_MANY_GPUS = re.compile(
    r"^(?:NVIDIA|Tesla|Quadro) |GeForce |[ -]\d+ ?GB\b| HBM\d\w?"
    r"| (?:Blackwell )?(?:Server|(?:Max-Q )?Workstation) Edition| Generation| Laptop GPU",
    re.IGNORECASE,
)


def short_name(device: Device | DeviceRef) -> str:
    """Return the name of a device without what all of its maker's have, which would cost the table a column."""
    if device.id == "cpu":
        return _OF_EVERY_CPU.sub("", device.name or "CPU").strip() or "CPU"
    short = _OF_MANY_GPUS.sub("", device.name or "").strip()
    return short or (device.id if isinstance(device, DeviceRef) else UNKNOWN)


def counted(count: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# -- a report as blocks ------------------------------------------------------------------------------------------------

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
    "bench crossover": "bench.crossover_page",
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

# Whoever asks for these asks for all of it.
_LISTS = frozenset({"bench all", "explain", "lint"})


def blocks(report: Report, *, verbose: bool = False) -> list[Block]:
    """The report as its command lays it out; `verbose` adds what asks for nothing: passes, methods, curves."""
    laid_out: list[Block] = []
    for part in parts_of(report, verbose=verbose):
        laid_out += [Line(), *part] if laid_out and part else part
    is_whole = verbose or report.command in _LISTS
    return [replace(block, may_go=not is_whole and (block.may_go or isinstance(block, Table))) for block in laid_out]


def parts_of(report: Report, *, verbose: bool) -> list[Sequence[Block]]:
    """The same in its parts, of which the first is the answer with what asks for something."""
    report = replace(
        report, findings=tuple(replace(finding, fix=_whole_command(report, finding.fix)) for finding in report.findings)
    )
    page: Page = _layout(LAYOUTS[report.command])(report)
    again = typed(report.argv) if report.argv else ""
    parts: list[Sequence[Block]] = [head(page, incomplete=report.incomplete, again=again), page.body]
    if report.command != "compare" and "compare" in report.results:
        # Measured and compared in one go: what was measured, then what changed.
        parts.append(_layout("compare.comparison")(report))
    if verbose:
        at_rest = [finding for finding in page.findings if finding.verdict not in ASKING and finding is not page.cause]
        parts += [said(at_rest), page.details]
    return parts


def _layout(name: str) -> Callable[[Report], Any]:
    """Return the function of a layout, whose file is loaded with it."""
    file, _, function = name.partition(".")
    layout: Callable[[Report], Any] = resolve_name(f"gpucheck.render.{file}:{function or 'page'}")
    return layout


# An option and its value, which may be repeated: what has more words, or ends like a clause, is a sentence.
_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)[ =](\w|\w\S*[\w%])( \1 \w\S*[\w%])*")
# What every command takes, and what changes nothing but how its result is shown.
_OF_THE_SCREEN = ("--debug", "--quiet", "-q", "--verbose", "-v")


def _whole_command(report: Report, fix: str | None) -> str | None:
    """A fix that is only an option, as the whole command to type: the one that was typed, with this option."""
    option = _OPTION.fullmatch(fix or "")
    if fix is None or option is None or report.command.split()[:1] != list(report.argv[:1]):
        return fix
    argv = [argument for argument in report.argv if argument not in _OF_THE_SCREEN]
    return typed([*without(argv, option[1]), *fix.split()])


def typed(argv: Sequence[str]) -> str:
    """A command line to type, without what only wrote its result elsewhere."""
    return shlex.join(["gpucheck", *without(without([word for word in argv if word != "--json"], "--output"), "-o")])


def without(argv: Sequence[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    kept, given = [], iter(argv)
    for argument in given:
        if argument == option:
            next(given, None)
        elif not argument.startswith(f"{option}=" if option.startswith("--") else option):
            kept.append(argument)
    return kept


def head(page: Page, *, incomplete: str = "", again: str = "") -> list[Block]:
    """The answer, what asks for something with the command to type, the worst first; whether all was done.

    `again` is the command to type where work was cut off and nothing else is to be typed.
    """
    ranked = sorted(page.findings, key=lambda finding: (WORST_FIRST.index(finding.verdict), page.order(finding)))
    asking = [finding for finding in ranked if finding.verdict in ASKING and finding is not page.cause]
    cause, first = page.cause, page.answer
    if cause is not None and first is None:
        first = answer(cause.verdict, finding_text(cause))
    laid_out: list[Block] = [*([first] if first else []), *page.under]
    if cause is not None and cause.fix:
        laid_out.append(advice_line(cause.fix))
    # What failed comes first, and stays on a short screen.
    stay = len(said([finding for finding in asking if finding.verdict == "fail"]))
    laid_out += [replace(line, may_go=place >= stay) for place, line in enumerate(said(asking))]
    if incomplete:
        laid_out.append(signed("warn", f"not complete: {incomplete}"))
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
        lines.append(signed(group.verdict, group.line))
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
    return "; ".join(found[0] if (found := _IN_BRIEF.match(line)) else line for line in told)


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
