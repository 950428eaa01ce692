"""Saved reports as one HTML page: without a request, without a script that it needs, light, dark and on paper.

The page is a template with escaping on (`page/`), filled with plain data. What reports say is text there and never
markup; the two files that are markup, the style and the script, are ours, and the page allows that script alone.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import html
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import units
from gpucheck.errors import CannotLook
from gpucheck.render import charts, devices, text
from gpucheck.render.blocks import ADVICE, EIGHTHS, SIGNS, UNKNOWN, Drawing, Line, Page, Table, finding_line
from gpucheck.render.fleet import VERDICTS
from gpucheck.report.codec import to_json, visible
from gpucheck.report.finding import ASKING, WORST_FIRST, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.fleet import FleetNode, FleetResult

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

FOLDER = Path(__file__).with_name("page")
# A page is to be sent by mail: so much raw JSON, so many rows of a table and characters of a text leave it below 1 MB,
# so many nodes below 5 MB.
MOST_RAW, MOST_ROWS, MOST_TEXT, MOST_NODES = 400_000, 300, 2000, 4096
# A cell of more characters may be broken into lines.
LONG = 40
# From so many nodes on, a row each of the map.
MAP_COLUMNS, CELL = 32, 11
# A slowest device's rate over the median of its model: below each of these a cell is a step darker. 3 % is the distance
# from which `fleet judge` calls a device slow.
STEPS = (0.99, 0.97, 0.9)


# Jinja2 and what it imports, while no page is made.
_put_away: dict[str, Any] = {}


@contextlib.contextmanager
def _modules() -> Iterator[None]:
    """Have Jinja2 among the modules of this process within the block alone, unless the process has it already.

    torch's Inductor imports it too: a page that was made before must not hide that torch's environment lacks it. Raises
    CannotLook where it is not installed.
    """
    own = _loaded()
    if own.get("jinja2") is not None and not _put_away:
        yield
        return
    sys.modules.update(_put_away)
    try:
        try:
            import jinja2  # noqa: F401
        except ImportError as error:
            why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported: {error}"
            fix = "install it (pip install jinja2), or give a file that ends in .md"
            raise CannotLook("an HTML page cannot be written", f"Jinja2 {why}", fix) from error
        yield
    finally:
        for name, module in _loaded().items():
            if own.get(name) is not module:
                _put_away[name] = sys.modules.pop(name)
        sys.modules.update(own)


def _loaded() -> dict[str, Any]:
    """Return the modules of Jinja2, and of what it imports, that this process has."""
    return {name: one for name, one in sys.modules.items() if name.partition(".")[0] in ("jinja2", "markupsafe")}


def require() -> None:
    """Raise CannotLook where Jinja2, which fills the page, cannot be imported."""
    with _modules():
        pass


@dataclass(frozen=True, slots=True)
class Badge:
    """A verdict: its name, sign and word."""

    verdict: Verdict
    sign: str
    word: str


def page(report: Report) -> Page:
    """`gpucheck report` on screen: what is on the page."""
    return Page(None if not report.findings else finding_line(report.findings[0]))


def document(report: Report) -> str:
    """The page of one report."""
    return sheet([("", report)])


@_modules()
def sheet(reports: Sequence[tuple[str, Report]], compared: Report | None = None) -> str:
    """One page of these reports, each from the file of that name, below how two of them compare.

    Raises CannotLook without Jinja2, and what a renderer raises for a detail that no gpucheck writes.
    """
    from markupsafe import Markup

    template, style, script = _template()
    shown = [*([("", compared)] if compared is not None else []), *reports]
    sections = [_section(report, file, most_raw=MOST_RAW // len(shown)) for file, report in shown]
    # How two compare is no verdict on either.
    worst = min((one["badge"] for one in sections[-len(reports) :]), key=lambda one: WORST_FIRST.index(one.verdict))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    written: str = template.render(
        title=sections[0]["title"] if len(sections) == 1 else f"gpucheck: {len(reports)} results",
        worst=worst,
        sections=sections,
        version=gpucheck.__version__,
        # Both are ours, and neither contains a closing tag.
        style=Markup(style),
        script=Markup(script),
        digest=digest,
        CELL=CELL,
        **{name: getattr(charts, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")},
    )
    return written.lstrip()


@functools.cache
def _template() -> tuple[Template, str, str]:
    """The template, the style and the script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pieces"] = _pieces
    environment.filters["table"] = _table
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["text"] = lambda block: isinstance(block, Line) and bool(block.text)
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return environment.get_template("page.html"), style, script


def _plain(value: Any) -> Any:
    """What the template prints: text of a length that fits, without characters that do not print."""
    if type(value) is not str:
        return value
    return visible(value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…")


def _section(report: Report, file: str, *, most_raw: int) -> dict[str, Any]:
    """One document as the template takes it: `raw` is its JSON as text, `raw_note` what is missing there."""
    quiet = text.parts_of(report, verbose=False)
    details = text.parts_of(report, verbose=True)[len(quiet) :]
    answer = next((block.text for block in quiet[0] if isinstance(block, Line)), "")
    fleet = report.results.get("fleet_judge")
    with_devices = report.facts.devices and report.command != "devices"
    body = quiet[1:]
    if fleet is not None:
        # Its own table has every node, and is searched.
        body = [[block for block in part if not isinstance(block, Table)] for part in body]
    raw, note = _raw(report, most_raw)
    return {
        "title": _title(report),
        "badge": _badge(_verdict(report, answer)),
        "answer": answer,
        "meta": tuple(_meta(report, file)),
        "head": quiet[0],
        "body": body,
        "details": [part for part in details if any(not isinstance(block, Drawing) for block in part)],
        "devices": devices.devices_table(report.facts.devices, report.findings) if with_devices else None,
        "charts": charts.of(report),
        "fleet": None if fleet is None else _fleet(fleet),
        "raw": raw,
        "raw_note": note,
    }


def _verdict(report: Report, answer: str) -> Verdict:
    """The worst of the document's verdict, its findings and its answer, which is open where a comparison is."""
    said, _, _ = _pieces(answer)
    verdicts = [report.summary.verdict, *(one.verdict for one in report.findings), *([said.verdict] if said else [])]
    asking = [one for one in verdicts if one in ASKING]
    return min(asking or verdicts[:1], key=WORST_FIRST.index)


def _badge(verdict: Verdict, word: str = "") -> Badge:
    return Badge(verdict, SIGNS[verdict][0], word or verdict)


def _title(report: Report) -> str:
    names = dict.fromkeys(device.name for device in report.facts.devices if device.name and device.kind != "cpu")
    names = names or dict.fromkeys(device.name for device in report.facts.devices if device.name)
    return f"gpucheck {report.command}" + (f" on {', '.join(map(str, list(names)[:3]))}" if names else "")


def _meta(report: Report, file: str) -> list[tuple[str, str]]:
    """Where the document comes from."""
    facts = report.facts
    system = " ".join(filter(None, (facts.host.system, facts.host.release))) if facts.host else ""
    told = (
        ("file", file),
        ("command", shlex.join(("gpucheck", *(report.argv or (report.command,))))),
        ("started", report.started),
        ("took", units.duration(report.elapsed_s) if report.elapsed_s > 0 else ""),
        ("system", system),
        ("driver", facts.driver.version if facts.driver else None),
        ("torch", facts.torch.version if facts.torch else None),
        ("Python", facts.python.version if facts.python else ""),
        ("gpucheck", report.gpucheck),
    )
    return [(name, value) for name, value in told if value]


def _raw(report: Report, most: int) -> tuple[Markup | None, str]:
    """The document's JSON, without the samples where they are too long, and what is missing."""
    from markupsafe import Markup

    bare = replace(
        report,
        measurements=tuple(
            replace(row, runs=tuple(replace(run, samples_s=(), started_monotonic_s=()) for run in row.runs))
            for row in report.measurements
        ),
    )
    left_out = "The samples are left out here: the JSON file has them."
    for shown, indent, note in ((report, 1, ""), (report, None, ""), (bare, 1, left_out), (bare, None, left_out)):
        written = visible(json.dumps(to_json(shown), indent=indent, ensure_ascii=False))
        if len(written) <= most:
            # In text, quotes need no escape: every second character of JSON is one.
            return Markup(html.escape(written, quote=False)), note
    return None, "The JSON is too long for a page: see the JSON file."


# -- for the template --------------------------------------------------------------------------------------------------


def _pieces(line: str) -> tuple[Badge | None, bool, list[tuple[str, bool]]]:
    """A line of a screen: its verdict's sign, whether it is advice, and the parts of its text, each with whether it is
    code: between backticks."""
    badge = next((_badge(verdict) for verdict, (sign, _, _) in SIGNS.items() if line.startswith(f"{sign} ")), None)
    advice = line.startswith(ADVICE)
    rest = line[2:] if badge is not None else line.removeprefix(ADVICE)
    parts = rest.split("`")
    if len(parts) % 2 == 0:
        parts = [rest]
    return badge, advice, [(part, place % 2 == 1) for place, part in enumerate(parts) if part]


def _table(table: Table) -> dict[str, Any]:
    """Heads and rows, without columns of bars, which say in characters what the next column says in figures."""
    bars = set(f"█░ {EIGHTHS}")
    kept = [
        place
        for place, column in enumerate(table.columns)
        if column.head or not all(set(row[place].text) <= bars for row in table.rows)
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
        "rows": rows,
        "left_out": len(table.rows) - len(rows),
    }


# -- a fleet -----------------------------------------------------------------------------------------------------------


def _fleet(result: FleetResult) -> dict[str, Any]:
    """The map of states, one for each figure that was compared, and the nodes, the worst first."""
    nodes = result.nodes[:MOST_NODES]
    # On a map a node keeps its place by its name, so that neighbours in a rack stand beside each other.
    placed = sorted(nodes, key=lambda node: node.host)
    figures = list(dict.fromkeys(name for node in nodes for name in node.ratios))[:6]
    maps = [_map("state", [(node, *_state(node)) for node in placed])]
    maps += [_map(figure, [(node, *_ratio(node, figure)) for node in placed]) for figure in figures]
    rows = tuple(
        (
            node.host,
            _badge(*VERDICTS[node.state]),
            (
                f"{node.cause} {ADVICE}{node.fix}" if node.fix else node.cause,
                *(f"{node.ratios[name]:.3f}" if name in node.ratios else UNKNOWN for name in figures),
            ),
        )
        for node in nodes
    )
    heads = ("cause → what to do", *figures)
    return {"maps": maps, "heads": heads, "rows": rows, "left_out": len(result.nodes) - len(nodes)}


def _map(title: str, cells: Sequence[tuple[FleetNode, str, str, str]]) -> dict[str, Any]:
    """A cell for each node: its place, its step of shade or state, the letter in it, and what it says."""
    columns = min(MAP_COLUMNS, max(len(cells), 1))
    nodes = [
        {
            "x": place % columns * CELL,
            "y": place // columns * CELL,
            "shade": shade,
            "letter": letter,
            "text": f"{node.host}: {said}",
        }
        for place, (node, shade, letter, said) in enumerate(cells)
    ]
    return {"title": title, "nodes": nodes, "width": columns * CELL, "height": -(-len(cells) // columns) * CELL}


def _state(node: FleetNode) -> tuple[str, str, str]:
    verdict, word = VERDICTS[node.state]
    said = f"{word}, {node.cause}" if node.cause else word
    return verdict, "" if node.state == "good" else SIGNS[verdict][0], said


def _ratio(node: FleetNode, figure: str) -> tuple[str, str, str]:
    ratio = node.ratios.get(figure)
    if ratio is None:
        return "skip", UNKNOWN, "not measured"
    step = sum(ratio < limit for limit in STEPS)
    below = min(round(100 * (1 - ratio)), 99)
    return f"h{step}", str(below) if step > 1 else "", f"slowest device {ratio:.3f} of the median"
