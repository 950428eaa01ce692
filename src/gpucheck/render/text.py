"""The blocks of a page: tables and lines of text. The layout of a command makes blocks of a report, terminal.py prints
blocks, and this module also makes Markdown of blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Literal, TypeAlias, TypeVar

from gpucheck import units
from gpucheck.report.facts import Device
from gpucheck.report.finding import NEEDS_ACTION, WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import LATE, Report, grouped

UNKNOWN = "–"
# The `keep` of a column that every screen shows.
ALWAYS = 9
Row = TypeVar("Row")

# The sign, the ASCII sign and the colour of each verdict. The ASCII sign is for encodings without the other sign.
SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "pass": ("✓", "+", "green"),
    "info": ("·", "-", ""),
    "warn": ("!", "!", "yellow"),
    "fail": ("✗", "x", "red"),
    "inconclusive": ("?", "?", "yellow"),
    "skip": ("–", "-", "dim"),
}

# The words for the certainty of a cause.
SURE = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. `style` is a colour and other attributes in rich's syntax."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. If the head has two lines, the first line names a group of columns. On a narrow screen,
    columns with the lowest `keep` are dropped first. If `wraps`, a cell may take several lines. If `cropped` is not 0,
    a cell may be cut to this many characters, or wrapped there, before other columns are dropped."""

    head: str
    align: Literal["left", "right"] = "right"
    keep: int = ALWAYS
    wraps: bool = False
    cropped: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `narrow` is a table of the same rows for screens that are too narrow for the columns that always stay. A
    `dense` table has less space between its columns. If `may_go`, a short screen may leave out rows."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    narrow: Table | None = None
    dense: bool = False
    may_go: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> Table:
    """Return a table of these rows, without empty columns and without unknown columns that may be dropped."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kept = [
        index
        for index, column in enumerate(columns)
        if not cells or any(row[index].text not in ("", "" if column.keep == ALWAYS else UNKNOWN) for row in cells)
    ]
    return Table(tuple(columns[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in cells))


def by_column(columns: Iterable[tuple[Column, Sequence[str | Cell]]]) -> Table:
    heads, cells = zip(*columns, strict=True)
    return table(heads, zip(*cells, strict=True))


# A column, and the function that makes its cells from the rows.
ColumnOf: TypeAlias = tuple[Column, Callable[[Sequence[Row]], Sequence[str | Cell]]]


def table_of(rows: Sequence[Row], columns: Iterable[ColumnOf[Row]]) -> Table:
    return by_column((column, cells(rows)) for column, cells in columns)


def filled(column: Column, text: Callable[[Row], str | Cell]) -> ColumnOf[Row]:
    return column, lambda rows: [text(row) for row in rows]


def once(column: Column, text: Callable[[Row], str]) -> ColumnOf[Row]:
    """Return a column in which a cell is empty if the row above has the same text."""

    def cells(rows: Sequence[Row]) -> list[str]:
        texts = [text(row) for row in rows]
        return ["" if above == text else text for above, text in zip(["", *texts], texts, strict=False)]

    return column, cells


def numbers(column: Column, value: Callable[[Row], float | None], scale: float = 1.0) -> ColumnOf[Row]:
    """Return a column of numbers divided by `scale`, all with the same precision."""
    return column, lambda rows: column_of_numbers([value(row) for row in rows], scale)


def verdict_cell(verdict: Verdict, text: str | None = None) -> Cell:
    """Return a cell with a verdict's sign, and the verdict or `text`, in the verdict's colour."""
    sign, _, style = SIGNS[verdict]
    return Cell(f"{sign} {text or verdict}", style)


def column_of_numbers(values: Sequence[float | None], scale: float = 1.0) -> list[str]:
    """Return numbers with as many decimals as the lower quartile needs for three significant digits. A number that
    would become 0 has one significant digit."""
    scaled = [None if value is None else value / scale for value in values]
    sizes = sorted(abs(value) for value in scaled if value)
    # A number a hundred times smaller than the largest number does not add decimals to the column.
    large = [size for size in sizes if size >= sizes[-1] / 100]
    decimals = len(units.significant(large[len(large) // 4]).partition(".")[2]) if large else 0
    texts = []
    for value in scaled:
        text = UNKNOWN if value is None else f"{value:.{decimals}f}"
        texts.append(units.significant(value, 1) if value and not float(text) else text)
    return texts


# The characters of a bar that fill one eighth, two eighths, and so on.
EIGHTHS = "▏▎▍▌▋▊▉"
# The replacements of gpucheck's signs for encodings without these signs.
_PLAIN = {"→": "->", "≥": ">=", "≤": "<=", "…": "...", "×": "x", "µ": "u", "²": "2", "°": "", "░": ".", "█": "#"}
ASCII = str.maketrans(
    _PLAIN
    | {sign: plain for sign, plain, _ in SIGNS.values()}
    | {character: "#" if index >= EIGHTHS.index("▌") else "." for index, character in enumerate(EIGHTHS)}
)


def bar(share: float | None, width: int) -> str:
    """Return a bar of `width` characters for a share from 0 to 1. A share above 0 is always visible."""
    if share is None:
        return ""
    eighths = max(round(min(share, 1.0) * width * 8), 1) if share > 0 else 0
    whole, remainder = divmod(eighths, 8)
    filled = "█" * whole + (EIGHTHS[remainder - 1] if remainder else "")
    return filled + "░" * (width - len(filled))


ADVICE = "→ "


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text on a page. An empty line is a gap. If `may_go`, a short screen may leave out the line."""

    text: str = ""
    style: str = ""
    may_go: bool = False


PageBlock = Table | TextLine


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command.

    `answer` is the first line: the verdict, the main result and its device. `under` has the lines below the answer.
    `cause` is the finding that the answer states. The page adds only the fix of the cause; without an `answer`, the
    cause is the first line. The `findings` that need action follow, the worst first and by `order`, then the `body`.
    `then` is a command for a page without any fix. Only `-v` and files show `details` and the other findings.
    """

    answer: TextLine | None = None
    body: Sequence[PageBlock] = ()
    details: Sequence[PageBlock] = ()
    findings: Sequence[Finding] = ()
    cause: Finding | None = None
    then: str | None = None
    under: Sequence[TextLine] = ()
    order: Callable[[Finding], int] = lambda finding: 0


def signed(verdict: Verdict, text: str) -> TextLine:
    sign, _, style = SIGNS[verdict]
    return TextLine(f"{sign} {text}", style)


def answer(verdict: Verdict, text: str) -> TextLine:
    """Return the first line of a screen: bold, with the verdict's sign and colour."""
    line = signed(verdict, text)
    return replace(line, style=f"bold {line.style}".strip())


def advice_line(text: str) -> TextLine:
    return TextLine(f"{ADVICE}{text}")


def sentence(finding: Finding) -> str:
    return f"{finding.title}: {finding.message}" if finding.message else finding.title


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.verdict), default=None)


_OF_EVERY_CPU = re.compile(r"\((?:R|TM|C)\)| \d+-Core Processor| Processor\b| CPU @.*", re.IGNORECASE)
# The parts of a GPU's name that many GPUs share, or that repeat the size of the memory.
_OF_MANY_GPUS = re.compile(
    r"^(?:NVIDIA|Tesla|Quadro) |GeForce |[ -]\d+ ?GB\b| HBM\d\w?"
    r"| (?:Blackwell )?(?:Server|(?:Max-Q )?Workstation) Edition| Generation| Laptop GPU",
    re.IGNORECASE,
)


def short_name(device: Device | DeviceRef) -> str:
    if device.id == "cpu":
        return _OF_EVERY_CPU.sub("", device.name or "CPU").strip() or "CPU"
    short = _OF_MANY_GPUS.sub("", device.name or "").strip()
    return short or (device.id if isinstance(device, DeviceRef) else UNKNOWN)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# The module and the function of each command's layout. Only the layout in use is loaded.
LAYOUTS = {
    "status": "devices:status_page",
    "devices": "devices:page",
    "memory": "memory:page",
    "doctor": "doctor:page",
    "explain": "explain:page",
    "smoke": "doctor:smoke_page",
    "bench transfer": "transfer:page",
    "bench bandwidth": "bench:bandwidth_page",
    "bench matmul": "compute:matmul_page",
    "bench overlap": "compute:overlap_page",
    "bench crossover": "compute:crossover_page",
    "bench collective": "compute:collective_page",
    "bench all": "bench:all_page",
    "find-batch-size": "batch_size:page",
    "model": "run:model_page",
    "compare": "compare:page",
    "report": "html:page",
    "fleet check": "fleet:page",
    "fleet judge": "fleet:page",
    "lint": "explain:lint_page",
    "run": "run:page",
    "stress": "stress:page",
}


def blocks(report: Report, *, verbose: bool = False) -> list[PageBlock]:
    """Return the report's blocks. `verbose` adds details and findings that need no action."""
    page: list[PageBlock] = []
    for part in parts_of(report, verbose=verbose):
        page += [TextLine(), *part] if page and part else part
    is_whole = verbose or report.command in ("bench all", "explain", "lint")
    return [replace(block, may_go=not is_whole and (block.may_go or isinstance(block, Table))) for block in page]


def parts_of(report: Report, *, verbose: bool) -> list[Sequence[PageBlock]]:
    """Return the report's blocks in parts. The first part has the answer and the findings that need action."""
    findings = tuple(replace(finding, fix=_whole_command(report, finding.fix)) for finding in report.findings)
    report = replace(report, findings=findings)
    page: Page = resolve_name(f"gpucheck.render.{LAYOUTS[report.command]}")(report)
    # The same command would run out of the same time budget.
    late = "use a longer --time-budget" if report.incomplete == LATE else ""
    again = late or (command_line(report.argv) if report.argv else "")
    parts: list[Sequence[PageBlock]] = [head(page, incomplete=report.incomplete, again=again), page.body]
    if report.command != "compare" and "compare" in report.results:
        # With --baseline, a benchmark's page has the changes below the measurements.
        parts.append(resolve_name("gpucheck.render.compare:comparison")(report))
    if verbose:
        at_rest = [
            finding for finding in page.findings if finding.verdict not in NEEDS_ACTION and finding is not page.cause
        ]
        parts += [finding_lines(at_rest), page.details]
    return parts


# A fix that is only an option with its value, possibly repeated. A fix with more words or a full stop is a sentence.
_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)[ =](\w|\w\S*[\w%])( \1 \w\S*[\w%])*")
# Options of every command that change only the presentation.
_OF_THE_SCREEN = ("--debug", "--quiet", "-q", "--verbose", "-v")


def _whole_command(report: Report, fix: str | None) -> str | None:
    """Return the fix. If the fix is only an option, add it to the user's command."""
    option = _OPTION.fullmatch(fix or "")
    if fix is None or option is None or report.command.split()[:1] != list(report.argv[:1]):
        return fix
    argv = [argument for argument in report.argv if argument not in _OF_THE_SCREEN]
    return command_line([*without(argv, option[1]), *fix.split()])


def command_line(argv: Sequence[str]) -> str:
    return shlex.join(["gpucheck", *without(without([word for word in argv if word != "--json"], "--output"), "-o")])


def without(argv: Sequence[str], option: str) -> list[str]:
    others, arguments = [], iter(argv)
    for argument in arguments:
        if argument == option:
            next(arguments, None)
        elif not argument.startswith(f"{option}=" if option.startswith("--") else option):
            others.append(argument)
    return others


def head(page: Page, *, incomplete: str = "", again: str = "") -> list[TextLine]:
    """Return the answer and the findings that need action, with their fixes. If the work is `incomplete`, add the
    reason, and the command `again` unless there is a fix."""
    ranked = sorted(page.findings, key=lambda finding: (WORST_FIRST.index(finding.verdict), page.order(finding)))
    need_action = [finding for finding in ranked if finding.verdict in NEEDS_ACTION and finding is not page.cause]
    cause, first = page.cause, page.answer
    if cause is not None and first is None:
        first = answer(cause.verdict, sentence(cause))
    lines = [*([first] if first else []), *page.under]
    if cause is not None and cause.fix:
        lines.append(advice_line(cause.fix))
    # Failures come first, and even a short screen has all failures.
    failures = len(finding_lines([finding for finding in need_action if finding.verdict == "fail"]))
    lines += [replace(line, may_go=index >= failures) for index, line in enumerate(finding_lines(need_action))]
    if incomplete:
        lines.append(signed("warn", f"not complete: {incomplete}"))
    then = page.then or (again if incomplete else "")
    if then and not any(line.text.startswith(ADVICE) for line in lines):
        lines.append(advice_line(then))
    return lines


def finding_lines(findings: Sequence[Finding]) -> list[TextLine]:
    """Return a line for each group of findings, and the group's first fix. Fixes differ only in the GPU's address."""
    lines: list[TextLine] = []
    for group in grouped(findings):
        lines.append(signed(group.verdict, group.line))
        if group.fixes:
            others = len(group.fixes) - 1
            fix = advice_line(group.fixes[0] + (f" (and {others} more, each by its own address)" if others else ""))
            lines += [fix] if fix not in lines else []
    return lines


def markdown_page(report: Report) -> str:
    return markdown(f"gpucheck {report.command}", blocks(report, verbose=True))


# Markdown's signs for links, images, tags, emphasis, cells and code.
_SPECIAL = re.compile(r"[\\|*_<`\[\]]")


def markdown(title: str, blocks: Sequence[PageBlock]) -> str:
    parts = [f"# {_escaped(title)}"]
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif block.text:
            parts.append(_escaped(block.text))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str, *, in_table: bool = False) -> str:
    """Return the text with Markdown's signs escaped. Text between single backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return _SPECIAL.sub(r"\\\g<0>", text)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = _SPECIAL.sub(r"\\\g<0>", part)
        elif in_table:
            # Markdown splits a table's row at `|` before it looks for code.
            parts[index] = part.replace("|", "\\|")
    return "`".join(parts)


def _table(table: Table) -> str:
    heads = [_escaped(" ".join(column.head.split()), in_table=True) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = [[_escaped(" ".join(cell.text.splitlines()), in_table=True) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows))
