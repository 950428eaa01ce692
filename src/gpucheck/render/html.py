"""Saved reports as one HTML page: without a request or a script, light, dark and on paper.

The page is a template with escaping on (`page/`), filled with plain data. What reports say is text there and never
markup.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import units
from gpucheck.errors import CannotLook
from gpucheck.render import devices, text
from gpucheck.render.text import (
    ADVICE,
    EIGHTHS,
    SIGNS,
    Column,
    Drawing,
    Line,
    Page,
    Table,
    filled_columns,
    finding_line,
    table,
    verdict_cell,
)
from gpucheck.report.codec import from_json, to_json, visible
from gpucheck.report.finding import ASKING, VERDICTS, WORST_FIRST, Verdict
from gpucheck.report.report import Report

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

FOLDER = Path(__file__).with_name("page")
# A page is to be sent by mail: so much raw JSON, so many rows of a table and characters of a text leave it below 1 MB.
MOST_RAW, MOST_ROWS, MOST_TEXT = 400_000, 300, 2000
# A cell of more characters may be broken into lines.
LONG = 40
# Columns that say how a row stands.
_STATES = ("state", "verdict", "result")


def require() -> None:
    """Raise CannotLook where Jinja2, which fills the page, is not installed. It is imported once a page is made.

    torch's Inductor imports it too: a page must not hide that torch's environment lacks it.
    """
    if importlib.util.find_spec("jinja2") is None:
        fix = "install it (pip install jinja2), or give a file that ends in .md"
        raise CannotLook("an HTML page cannot be written", "Jinja2 is not installed", fix)


@dataclass(frozen=True, slots=True)
class Badge:
    """A verdict with its sign."""

    verdict: Verdict

    @property
    def sign(self) -> str:
        """The sign that stands before its word."""
        return SIGNS[self.verdict][0]


def page(report: Report) -> Page:
    """`gpucheck report` on screen: how many results are on the page, and a line for each of them."""
    if not report.findings:
        return Page(None)
    (written, *_) = report.findings
    documents = written.evidence["documents"]
    # A name is enough, unless two files have it.
    names = [Path(path).name for path, _, _ in documents]
    names = names if len(set(names)) == len(names) else [path for path, _, _ in documents]
    rows = [
        (verdict_cell(verdict), name, command, answer)
        for name, (_, command, verdict), answer in zip(names, documents, written.evidence["answers"], strict=True)
    ]
    columns = (
        Column("verdict", "left"),
        Column("document", "left", wraps=True),
        Column("command", "left", keep=2),
        Column("answer", "left", keep=1, wraps=True),
    )
    return Page(finding_line(written), [table(columns, rows)])


def document(report: Report) -> str:
    """The page of one report."""
    return sheet([("", report)])


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return how many documents have each verdict: `10 pass, 1 warn, 1 inconclusive`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(sorted(verdicts, key=VERDICTS.index)).items())


def sheet(reports: Sequence[tuple[str, Report]], compared: Report | None = None, *, serials: bool = False) -> str:
    """One page of these reports, each from the file of that name, the worst first, below how two of them compare.

    Raises CannotLook without Jinja2, and what a renderer raises for a detail that no gpucheck writes.
    """
    from markupsafe import Markup

    template, style = _template()
    sent = [(Path(file).name, to_send(report, serials=serials)) for file, report in reports]
    if compared is None:  # two that are compared stay the earlier and the later
        sent.sort(key=lambda one: WORST_FIRST.index(answer_of(one[1])[0]))
    shown = [*([("", to_send(compared, serials=serials))] if compared is not None else []), *sent]
    sections = [_section(report, file, most_raw=MOST_RAW // len(shown), alone=len(sent) == 1) for file, report in shown]
    # How two compare is no verdict on either.
    verdicts = [one["badge"].verdict for one in sections[-len(reports) :]]
    worst = Badge(min(verdicts, key=WORST_FIRST.index))
    written: str = template.render(
        title=sections[0]["title"] if len(sections) == 1 else f"gpucheck: {len(reports)} results",
        worst=worst,
        counts=counts(verdicts) if len(sections) > 1 else f"{worst.sign} {worst.verdict}",
        machines=dict.fromkeys(filter(None, (_machine(report, serials=serials) for _, report in sent))),
        sections=sections,
        version=gpucheck.__version__,
        style=Markup(style),
    )
    return written.lstrip()


@functools.cache
def _template() -> tuple[Template, str]:
    """The template and the style."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"pieces": _pieces, "table": _table}
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["text"] = lambda block: isinstance(block, Line) and bool(block.text)
    return environment.get_template("page.html"), (FOLDER / "page.css").read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    """What the template prints: text of a length that fits, without characters that do not print."""
    if type(value) is not str:
        return value
    return visible(value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…")


# Folders that every system has. Any other is the sender's, and so are the first parts of pointers into the document.
_OF_THE_SYSTEM = "dev|proc|sys|usr|lib|lib64|etc|bin|sbin|boot|run|var|devices|driver|host|torch|python"
_FOLDER = re.compile(
    rf"(?<![\w:/.~])~?/(?!(?:{_OF_THE_SYSTEM})/)(?:[^\s/:\"'`,;()<>|]+/)+|[A-Za-z]:\\(?:[^\s\\/:\"]+\\)+"
)
# Shorter ones are no serial numbers.
_LEAST_SERIAL = 6


def to_send(report: Report, *, serials: bool) -> Report:
    """The report without the folders of whoever sends it, and without serial numbers of GPUs unless they are wanted."""
    known = [one.serial for one in report.facts.devices if one.serial and not serials]
    hidden = "|".join(re.escape(one) for one in known if len(one) >= _LEAST_SERIAL)
    serial = re.compile(rf"(, )?(serial )?\b({hidden})\b") if hidden else None

    def without(value: Any) -> Any:
        if type(value) is str:
            value = serial.sub("", value) if serial is not None else value
            return _FOLDER.sub("", value) if "/" in value or "\\" in value else value
        if isinstance(value, list):
            return [without(one) for one in value]
        if isinstance(value, dict):
            return {without(name): without(one) for name, one in value.items()}
        return value

    bare = replace(
        report,
        facts=replace(
            report.facts,
            devices=tuple(one if serials else replace(one, serial=None) for one in report.facts.devices),
        ),
    )
    return from_json(Report, without(to_json(bare)))


def _machine(report: Report, *, serials: bool) -> tuple[tuple[str, str], ...]:
    """What names the machine: the host, its GPUs with firmware, and the versions of what was installed."""
    facts = report.facts
    host, cpu = facts.host, next((device for device in facts.devices if device.kind == "cpu"), None)
    gpus = [device for device in facts.devices if device.kind != "cpu"]
    if host is None and not gpus:
        return ()
    about = [] if host is None else [" ".join(filter(None, (host.system, host.release, host.architecture)))]
    about += [host.container] if host is not None and host.container else []
    if cpu is not None:
        about += [text.short_name(cpu), *([f"{cpu.cores_allowed} cores"] if cpu.cores_allowed else [])]
    if host is not None and host.memory_total_bytes:
        about.append(f"{units.capacity(host.memory_total_bytes)} memory")
    rows = [("host", ", ".join(about))]
    for gpu in gpus:
        parts = (
            gpu.name,
            gpu.memory_total_bytes and units.capacity(gpu.memory_total_bytes),
            gpu.vbios_version and f"VBIOS {gpu.vbios_version}",
            gpu.pci_address and f"PCI {gpu.pci_address}",
            serials and gpu.serial and f"serial {gpu.serial}",
        )
        rows.append((devices.called(gpu), ", ".join(str(part) for part in parts if part)))
    if gpus or (facts.torch is not None and facts.torch.version):
        rows.append(("driver, torch", devices.versions(facts)))
    rows.append(("gpucheck", report.gpucheck))
    return tuple((name, value) for name, value in rows if value)


def answer_of(report: Report) -> tuple[Verdict, str]:
    """The verdict of a document on the page, and its first line without the sign.

    The verdict is the worst of the document's, its findings' and its answer's, which is open where a comparison is.
    """
    quiet = text.parts_of(report, verbose=False)
    badge, _, pieces = _pieces(next((block.text for block in quiet[0] if isinstance(block, Line)), ""))
    verdicts = [report.summary.verdict, *(finding.verdict for finding in report.findings)]
    verdicts += [badge.verdict] if badge else []
    asking = [verdict for verdict in verdicts if verdict in ASKING]
    return min(asking or verdicts[:1], key=WORST_FIRST.index), "".join(piece for piece, _ in pieces)


def _section(report: Report, file: str, *, most_raw: int, alone: bool) -> dict[str, Any]:
    """One document as the template takes it: `raw` is its JSON as text, `raw_note` what is missing there."""
    quiet = text.parts_of(report, verbose=False)
    details = text.parts_of(report, verbose=True)[len(quiet) :]
    verdict, said = answer_of(report)
    named = [device for device in report.facts.devices if device.name]
    gpus = [device for device in named if device.kind != "cpu"] or named
    # Of several documents the machine is named once, above all.
    on = f" on {', '.join(list(dict.fromkeys(str(gpu.name) for gpu in gpus))[:3])}" if gpus and alone else ""
    with_devices = alone and report.facts.devices and report.command != "devices"
    origin = {
        "file": file,
        "command": shlex.join(("gpucheck", *(report.argv or (report.command,)))),
        "started": report.started,
        "took": units.duration(report.elapsed_s) if report.elapsed_s > 0 else "",
    }
    raw, note = _raw(report, most_raw)
    return {
        "title": f"gpucheck {report.command}{on}",
        "badge": Badge(verdict),
        "said": said,
        "meta": [(name, value) for name, value in origin.items() if value],
        "head": quiet[0],
        "body": quiet[1:],
        "details": [part for part in details if any(not isinstance(block, Drawing) for block in part)],
        "devices": devices.devices_table(report.facts.devices, report.findings) if with_devices else None,
        "raw": raw,
        "raw_note": note,
    }


def _raw(report: Report, most: int) -> tuple[Markup | None, str]:
    """The document's JSON, or why it is not there."""
    from markupsafe import Markup

    for indent in (1, None):
        written = visible(json.dumps(to_json(report), indent=indent, ensure_ascii=False))
        if len(written) <= most:
            # In text, quotes need no escape: every second character of JSON is one.
            return Markup(html.escape(written, quote=False)), ""
    return None, "The JSON is too long for a page: see the JSON file."


# -- for the template --------------------------------------------------------------------------------------------------


_APART = re.compile(r"(?<=\S) {2,3}(?=\S)")


def _pieces(line: str) -> tuple[Badge | None, bool, list[tuple[str, bool]]]:
    """A line of a screen: its verdict's sign, whether it is advice, and the parts of its text, each with whether it is
    code: between backticks."""
    badge = next((Badge(verdict) for verdict, (sign, _, _) in SIGNS.items() if line.startswith(f"{sign} ")), None)
    advice = line.startswith(ADVICE)
    rest = line[2:] if badge is not None else line.removeprefix(ADVICE)
    # A page has one space where a screen has several.
    rest = _APART.sub(" · ", rest)
    parts = rest.split("`")
    if len(parts) % 2 == 0:
        parts = [rest]
    return badge, advice, [(part, place % 2 == 1) for place, part in enumerate(parts) if part]


def _table(table: Table) -> dict[str, Any]:
    """Heads and rows, without columns of bars, which say in characters what the next column says in figures."""
    bars = set(f"█░ {EIGHTHS}")
    kept = [
        place
        for place in filled_columns(table)
        if table.columns[place].head or not all(set(row[place].text) <= bars for row in table.rows)
    ]
    rows = [[row[place] for place in kept] for row in table.rows[:MOST_ROWS]]
    columns = [table.columns[place] for place in kept]
    longest = [max((len(row[place].text) for row in rows), default=0) for place in range(len(kept))]
    return {
        "heads": [column.head for column in columns],
        # What is short stays on one line: a table that is too wide is moved sideways.
        "kinds": [
            "right" if column.align == "right" else "long" if most > LONG else "short"
            for column, most in zip(columns, longest, strict=True)
        ],
        # A state is read on a phone too: each row of such a table is then a list.
        "state": next((place for place, column in enumerate(columns) if column.head in _STATES), -1),
        "rows": rows,
        "left_out": len(table.rows) - len(rows),
    }
