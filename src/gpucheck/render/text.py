"""The blocks of a page, which are tables and lines of text. A report becomes blocks by its command's layout;
terminal.py prints them, and this file makes Markdown of them."""

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

# -- tables: their cells and columns, the priority of a column, and functions that make tables of rows -----------------

UNKNOWN = "–"
# The priority of a column that every screen shows.
ALWAYS = 9
Row = TypeVar("Row")

# Sign, ASCII sign and colour of each verdict. The ASCII sign is used if the encoding lacks the other.
SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "pass": ("✓", "+", "green"),
    "info": ("·", "-", ""),
    "warn": ("!", "!", "yellow"),
    "fail": ("✗", "x", "red"),
    "inconclusive": ("?", "?", "yellow"),
    "skip": ("–", "-", "dim"),
}

# The word for each certainty of a cause.
SURE = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table. `style` is a colour for a verdict, else empty."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, how it is aligned, and how long it stays when the screen is narrow (`keep` 0 goes first). The
    first of two lines of a head names a group of columns. Text that `wraps` may take several lines. Text that may be
    `cropped` loses its end after that many characters (0: never), or wraps there, before another column is dropped."""

    head: str
    align: Literal["left", "right"] = "right"
    keep: int = ALWAYS
    wraps: bool = False
    cropped: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `narrow` is a table of the same rows, shown if this one is too wide even without the columns that may be
    dropped. A `dense` table has less room between its columns. `may_go`: a first view may leave out rows."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    narrow: Table | None = None
    dense: bool = False
    may_go: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> Table:
    """Return a table of these rows, without empty columns and without unknown columns that may be dropped."""
    made = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kept = [
        place
        for place, column in enumerate(columns)
        if not made or any(row[place].text not in ("", "" if column.keep == ALWAYS else UNKNOWN) for row in made)
    ]
    return Table(tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in made))


def by_column(columns: Iterable[tuple[Column, Sequence[str | Cell]]]) -> Table:
    heads, cells = zip(*columns, strict=True)
    return table(heads, zip(*cells, strict=True))


# A column of a table, and the function that makes its cells from the rows.
ColumnOf: TypeAlias = tuple[Column, Callable[[Sequence[Row]], Sequence[str | Cell]]]


def table_of(rows: Sequence[Row], columns: Iterable[ColumnOf[Row]]) -> Table:
    """Return a table with a line for each row."""
    return by_column((column, cells(rows)) for column, cells in columns)


def filled(column: Column, text: Callable[[Row], str | Cell]) -> ColumnOf[Row]:
    """Return a column in which `text` makes each cell from its row."""
    return column, lambda rows: [text(row) for row in rows]


def once(column: Column, text: Callable[[Row], str]) -> ColumnOf[Row]:
    """Return a column that names groups of rows: a cell is empty if the row above has the same text."""

    def cells(rows: Sequence[Row]) -> list[str]:
        texts = [text(row) for row in rows]
        return ["" if before == own else own for before, own in zip(["", *texts], texts, strict=False)]

    return column, cells


def numbers(column: Column, value: Callable[[Row], float | None], scale: float = 1.0) -> ColumnOf[Row]:
    """Return a column of numbers with the same precision down the column."""
    return column, lambda rows: column_of_numbers([value(row) for row in rows], scale)


def verdict_cell(verdict: Verdict, text: str | None = None) -> Cell:
    """Return a cell with a verdict's sign and word (or `text` in the word's place), in its colour."""
    sign, _, style = SIGNS[verdict]
    return Cell(f"{sign} {text or verdict}", style)


def column_of_numbers(values: Sequence[float | None], scale: float = 1.0) -> list[str]:
    """Return numbers with the precision of three significant digits of the lower quartile, but at least one digit."""
    scaled = [None if value is None else value / scale for value in values]
    known = sorted(abs(value) for value in scaled if value)
    # A number a hundred times smaller than the largest must not add digits to the whole column.
    large = [value for value in known if value >= known[-1] / 100]
    places = len(units.significant(large[len(large) // 4]).partition(".")[2]) if large else 0
    texts = []
    for value in scaled:
        text = UNKNOWN if value is None else f"{value:.{places}f}"
        texts.append(units.significant(value, 1) if value and not float(text) else text)
    return texts


# A bar's cells that are filled to one eighth, two eighths, and so on.
EIGHTHS = "▏▎▍▌▋▊▉"
# Replacements of gpucheck's own signs for encodings that lack them.
_PLAIN = {"→": "->", "≥": ">=", "≤": "<=", "…": "...", "×": "x", "µ": "u", "²": "2", "°": "", "░": ".", "█": "#"}
ASCII = str.maketrans(
    _PLAIN
    | {sign: plain for sign, plain, _ in SIGNS.values()}
    | {part: "#" if place >= EIGHTHS.index("▌") else "." for place, part in enumerate(EIGHTHS)}
)


def bar(share: float | None, width: int) -> str:
    """Return a bar of `width` cells. A share above zero is always visible."""
    if share is None:
        return ""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (EIGHTHS[rest - 1] if rest else "")
    return filled + "░" * (width - len(filled))


# -- lines, pages and layouts ------------------------------------------------------------------------------------------

ADVICE = "→ "


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text on a page. An empty one is a gap. A short screen leaves out lines with `may_go`."""

    text: str = ""
    style: str = ""
    may_go: bool = False


PageBlock = Table | TextLine


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command, in reading order.

    `answer` is the first line: the verdict, the most important figure and its device; `under` has details that do not
    fit there. `cause` is the finding that the answer states, of which only the fix is added, or the first line if there
    is no `answer`. The `findings` that need action follow, the worst first and by `order`, then the `body`. `then` is a
    command for a page on which no finding has one. `details` and the other findings are shown only with `-v` and in
    files.
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
    """Return a line that begins with the verdict's sign and has its colour."""
    sign, _, style = SIGNS[verdict]
    return TextLine(f"{sign} {text}", style)


def answer(verdict: Verdict, text: str) -> TextLine:
    """Return the first line of a screen, in bold after the verdict's sign."""
    line = signed(verdict, text)
    return replace(line, style=f"bold {line.style}".strip())


def advice_line(text: str) -> TextLine:
    return TextLine(f"{ADVICE}{text}")


def sentence(finding: Finding) -> str:
    """Return the title and the message."""
    return f"{finding.title}: {finding.message}" if finding.message else finding.title


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.verdict), default=None)


_OF_EVERY_CPU = re.compile(r"\((?:R|TM|C)\)| \d+-Core Processor| Processor\b| CPU @.*", re.IGNORECASE)
# Parts of a GPU's name that many GPUs share, or that repeat the memory shown beside it.
_OF_MANY_GPUS = re.compile(
    r"^(?:NVIDIA|Tesla|Quadro) |GeForce |[ -]\d+ ?GB\b| HBM\d\w?"
    r"| (?:Blackwell )?(?:Server|(?:Max-Q )?Workstation) Edition| Generation| Laptop GPU",
    re.IGNORECASE,
)


def short_name(device: Device | DeviceRef) -> str:
    """Return a device's name without the parts that all devices of its vendor have."""
    if device.id == "cpu":
        return _OF_EVERY_CPU.sub("", device.name or "CPU").strip() or "CPU"
    short = _OF_MANY_GPUS.sub("", device.name or "").strip()
    return short or (device.id if isinstance(device, DeviceRef) else UNKNOWN)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# The file and the function of each command's layout. Only the shown layout is loaded.
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
    """Return the report's blocks. `verbose` adds those that need no action."""
    laid_out: list[PageBlock] = []
    for part in parts_of(report, verbose=verbose):
        laid_out += [TextLine(), *part] if laid_out and part else part
    is_whole = verbose or report.command in ("bench all", "explain", "lint")
    return [replace(block, may_go=not is_whole and (block.may_go or isinstance(block, Table))) for block in laid_out]


def parts_of(report: Report, *, verbose: bool) -> list[Sequence[PageBlock]]:
    """Return the report's blocks in parts, the answer and the findings that need action first."""
    findings = tuple(replace(finding, fix=_whole_command(report, finding.fix)) for finding in report.findings)
    report = replace(report, findings=findings)
    page: Page = resolve_name(f"gpucheck.render.{LAYOUTS[report.command]}")(report)
    # The same budget would end too soon again.
    late = "use a longer --time-budget" if report.incomplete == LATE else ""
    again = late or (command_line(report.argv) if report.argv else "")
    parts: list[Sequence[PageBlock]] = [head(page, incomplete=report.incomplete, again=again), page.body]
    if report.command != "compare" and "compare" in report.results:
        # A benchmark with --baseline shows its measurements first, then the changes.
        parts.append(resolve_name("gpucheck.render.compare:comparison")(report))
    if verbose:
        at_rest = [
            finding for finding in page.findings if finding.verdict not in NEEDS_ACTION and finding is not page.cause
        ]
        parts += [finding_lines(at_rest), page.details]
    return parts


# An option and its value, possibly repeated. A fix with more words, or with punctuation at the end, is a sentence.
_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)[ =](\w|\w\S*[\w%])( \1 \w\S*[\w%])*")
# Options of every command that change only how the result is shown.
_OF_THE_SCREEN = ("--debug", "--quiet", "-q", "--verbose", "-v")


def _whole_command(report: Report, fix: str | None) -> str | None:
    """Return the fix, or the user's command with the fix if that is only an option."""
    option = _OPTION.fullmatch(fix or "")
    if fix is None or option is None or report.command.split()[:1] != list(report.argv[:1]):
        return fix
    argv = [argument for argument in report.argv if argument not in _OF_THE_SCREEN]
    return command_line([*without(argv, option[1]), *fix.split()])


def command_line(argv: Sequence[str]) -> str:
    """Return a command line to type, without options such as `--json` and `--output`."""
    return shlex.join(["gpucheck", *without(without([word for word in argv if word != "--json"], "--output"), "-o")])


def without(argv: Sequence[str], option: str) -> list[str]:
    """Return the arguments without an option and its value."""
    kept, given = [], iter(argv)
    for argument in given:
        if argument == option:
            next(given, None)
        elif not argument.startswith(f"{option}=" if option.startswith("--") else option):
            kept.append(argument)
    return kept


def head(page: Page, *, incomplete: str = "", again: str = "") -> list[PageBlock]:
    """Return the answer, the findings that need action with their fixes, and how to repeat incomplete work."""
    ranked = sorted(page.findings, key=lambda finding: (WORST_FIRST.index(finding.verdict), page.order(finding)))
    asking = [finding for finding in ranked if finding.verdict in NEEDS_ACTION and finding is not page.cause]
    cause, first = page.cause, page.answer
    if cause is not None and first is None:
        first = answer(cause.verdict, sentence(cause))
    laid_out: list[PageBlock] = [*([first] if first else []), *page.under]
    if cause is not None and cause.fix:
        laid_out.append(advice_line(cause.fix))
    # Failures come first, and a short screen keeps them.
    stay = len(finding_lines([finding for finding in asking if finding.verdict == "fail"]))
    laid_out += [replace(line, may_go=place >= stay) for place, line in enumerate(finding_lines(asking))]
    if incomplete:
        laid_out.append(signed("warn", f"not complete: {incomplete}"))
    then = page.then or (again if incomplete else "")
    if then and not any(isinstance(line, TextLine) and line.text.startswith(ADVICE) for line in laid_out):
        laid_out.append(advice_line(then))
    return laid_out


def finding_lines(findings: Sequence[Finding]) -> list[TextLine]:
    """Return a line for each group of findings, and its first fix: the others differ only in the GPU's address."""
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


# Brackets make links and images, `<` makes tags, and the others make emphasis, cells and code.
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
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = _SPECIAL.sub(r"\\\g<0>", part)
        elif in_table:
            # Markdown splits a table's row at `|` before it looks for code.
            parts[place] = part.replace("|", "\\|")
    return "`".join(parts)


def _table(table: Table) -> str:
    heads = [_escaped(" ".join(column.head.split()), in_table=True) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = [[_escaped(" ".join(cell.text.splitlines()), in_table=True) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows))
