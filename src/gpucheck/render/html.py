"""Render saved reports as one HTML page without scripts or requests. `_text` escapes all text."""

from __future__ import annotations

import html
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpucheck
from gpucheck import units
from gpucheck.render import devices, doctor, text
from gpucheck.render.text import EIGHTHS, SIGNS, Column, Page, PageBlock, Table, TextLine
from gpucheck.report.codec import from_json, to_json, visible
from gpucheck.report.finding import NEEDS_ACTION, VERDICTS, WORST_FIRST, Verdict
from gpucheck.report.report import Report

# These limits on a table's rows and a text's characters keep a page below 1 MB, so that it can be mailed.
MOST_ROWS, MOST_TEXT = 300, 2000
# The content security policy is a second protection besides the escapes. Nothing on the page runs or is loaded.
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
# The classes are the styles of blocks. Each colour has a contrast of at least 4.5 on its background.
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2328; --rule: #d1d9e0;
  --dim: #59636e; --green: #116329; --yellow: #7d4e00; --red: #cf222e; --cyan: #1b7c83; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --rule: #30363d;
  --dim: #b1bac4; --green: #56d364; --yellow: #e3b341; --red: #ff7b72; --cyan: #56d4dd; } }
body { margin: 0 auto; padding: 0 1rem 3rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; padding-top: .75rem; border-top: 2px solid var(--rule); }
p { margin: .35rem 0; } a, summary { color: inherit; } .bold { font-weight: 600; } .dim, footer { color: var(--dim); }
.green { color: var(--green); } .yellow { color: var(--yellow); } .red { color: var(--red); }
.cyan { color: var(--cyan); }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .12rem .7rem .12rem 0; text-align: left; vertical-align: top; white-space: pre; }
th { border-bottom: 1px solid var(--rule); } .right { text-align: right; }
.long { white-space: pre-wrap; min-width: 14rem; }
@media (max-width: 45rem) { body { font-size: 13px; } th, td { white-space: pre-wrap; padding-right: .4rem; } }
@media print { body { max-width: none; } .scroll { overflow: visible; } td { white-space: pre-wrap; } }
"""


def page(report: Report) -> Page:
    return Page(cause=next(iter(report.findings), None))


def document(report: Report) -> str:
    return sheet([("", report)])


def counts(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(sorted(verdicts, key=VERDICTS.index)).items())


def sheet(reports: Sequence[tuple[str, Report]], *, serials: bool = False) -> str:
    """Return one page of these reports with their file names, the worst first."""
    sent = [(to_send(report, serials=serials), Path(file).name) for file, report in reports]
    shown = [(*answer_of(report), f"gpucheck {report.command}", report, file) for report, file in sent]
    shown.sort(key=lambda row: WORST_FIRST.index(row[0]))
    worst, _, head, *_ = shown[0]
    head = head if len(shown) == 1 else f"gpucheck: {len(shown)} results"
    verdicts = counts([verdict for verdict, *_ in shown]) if len(shown) > 1 else worst
    machines = dict.fromkeys(_machine(report, serials=serials) for *_, report, _ in shown)
    body = [f"<h1>{_text(head)}: {verdicts}</h1>", *(f"<p>{_text(line)}</p>" for lines in machines for line in lines)]
    for place, (verdict, said, title, *_) in enumerate(shown if len(shown) > 1 else (), 1):
        link = f'<a href="#d{place}">{place}. {_text(title)}</a>'
        body.append(f"<p>{link} {SIGNS[verdict][0]} {verdict}: {_code(said)}</p>")
    for place, (verdict, _, title, report, file) in enumerate(shown, 1):
        body.append(f'<section id="d{place}"><h2>{place}. {_text(title)}: {SIGNS[verdict][0]} {verdict}</h2>')
        body += [*_section(report, file), "</section>"]
    body.append(f"<footer>Made by gpucheck {gpucheck.__version__}. The page loads nothing from elsewhere.</footer>")
    style = f"<title>{worst}: {_text(head)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    return "".join([_HEAD, style, "\n".join(body), "\n</main>\n</body>\n</html>\n"])


def _text(value: str) -> str:
    """Return the text escaped for HTML, cut to `MOST_TEXT`, with non-printing characters made visible."""
    return html.escape(visible(value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"))


def _code(line: str) -> str:
    """Return a line as HTML. Parts between backticks become code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return _text(line)
    return "".join(f"<code>{_text(part)}</code>" if place % 2 else _text(part) for place, part in enumerate(parts))


# Folders that every system has, and the first parts of JSON Pointers into the document. Other folders are the sender's.
_OF_THE_SYSTEM = "dev|proc|sys|usr|lib|lib64|etc|bin|sbin|boot|run|var|devices|driver|host|torch|python"
_FOLDER = re.compile(
    rf"(?<![\w:/.~])~?/(?!(?:{_OF_THE_SYSTEM})/)(?:[^\s/:\"'`,;()<>|]+/)+|[A-Za-z]:\\(?:[^\s\\/:\"]+\\)+"
)


def to_send(report: Report, *, serials: bool) -> Report:
    """Return the report without the sender's folders, and without serial numbers of GPUs unless `serials`."""
    known = [device.serial for device in report.facts.devices if device.serial and not serials]
    # Shorter values are not treated as serial numbers.
    hidden = "|".join(re.escape(serial) for serial in known if len(serial) >= 6)
    pattern = re.compile(rf"(, )?(serial )?\b({hidden})\b") if hidden else None

    def without(value: Any) -> Any:
        if type(value) is str:
            return _FOLDER.sub("", pattern.sub("", value) if pattern is not None else value)
        if isinstance(value, list):
            return [without(item) for item in value]
        if isinstance(value, dict):
            return {without(name): without(item) for name, item in value.items()}
        return value

    bare = tuple(device if serials else replace(device, serial=None) for device in report.facts.devices)
    return from_json(Report, without(to_json(replace(report, facts=replace(report.facts, devices=bare)))))


def _machine(report: Report, *, serials: bool) -> tuple[str, ...]:
    """Return lines that identify the machine: the host, its GPUs with firmware, and the installed versions."""
    facts, host = report.facts, report.facts.host
    gpus = [device for device in facts.devices if device.kind != "cpu"]
    about = () if host is None else (host.system, host.release, host.architecture, host.container)
    lines = [" ".join(filter(None, about))]
    for gpu in gpus:
        parts = (
            gpu.name,
            gpu.memory_total_bytes and units.capacity(gpu.memory_total_bytes),
            gpu.vbios_version and f"VBIOS {gpu.vbios_version}",
            gpu.pci_address and f"PCI {gpu.pci_address}",
            serials and gpu.serial and f"serial {gpu.serial}",
        )
        lines.append(f"{devices.called(gpu)}: {', '.join(str(part) for part in parts if part)}")
    lines += [doctor.versions(facts)] if gpus or (facts.torch is not None and facts.torch.version) else []
    return tuple(filter(None, lines))


def answer_of(report: Report) -> tuple[Verdict, str]:
    """Return a document's verdict, the worst of report, findings and first line, and that line without its sign."""
    line = next((block.text for block in text.parts_of(report, verbose=False)[0] if isinstance(block, TextLine)), "")
    verdicts = [report.summary.verdict, *(finding.verdict for finding in report.findings)]
    shown: Verdict | None = next((key for key, (sign, _, _) in SIGNS.items() if line.startswith(f"{sign} ")), None)
    verdicts += [shown] if shown else []
    asking = [verdict for verdict in verdicts if verdict in NEEDS_ACTION]
    return min(asking or verdicts[:1], key=WORST_FIRST.index), line[2:] if shown else line


def _section(report: Report, file: str) -> list[str]:
    """Return one document: its screen, its origin, and the details that `-v` shows."""
    quiet = text.parts_of(report, verbose=False)
    details = text.parts_of(report, verbose=True)[len(quiet) :]
    command = shlex.join(("gpucheck", *(report.argv or (report.command,))))
    took = f"took {units.duration(report.elapsed_s)}" if report.elapsed_s > 0 else ""
    origin = " · ".join(filter(None, (file, f"`{command}`", report.started, took)))
    more = list(_blocks(block for part in details for block in part))
    more = ["<details><summary>Details</summary>", *more, "</details>"] if more else []
    return [*_blocks(block for part in quiet for block in part), f'<p class="dim">{_code(origin)}</p>', *more]


def _blocks(blocks: Iterable[PageBlock]) -> Iterable[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, TextLine) and block.text:
            yield f'<p class="{block.style}">{_code(block.text)}</p>'


def _table(table: Table) -> Iterable[str]:
    """Yield a table without columns of bars, which only repeat the next column's figures."""
    bars = set(f"█░ {EIGHTHS}")
    kept = [
        (place, column)
        for place, column in enumerate(table.columns)
        if column.head or not all(set(row[place].text) <= bars for row in table.rows)
    ]
    if not table.rows:
        return
    yield '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>'
    yield f"<tr>{''.join(_cell(column, column.head, 'th') for _, column in kept)}</tr>"
    for row in table.rows[:MOST_ROWS]:
        yield f"<tr>{''.join(_cell(column, row[place].text, 'td', row[place].style) for place, column in kept)}</tr>"
    yield "</table></div>"
    if len(table.rows) > MOST_ROWS:
        yield f'<p class="dim">and {len(table.rows) - MOST_ROWS} more rows: the JSON has all</p>'


def _cell(column: Column, content: str, tag: str, style: str = "") -> str:
    shape = "right" if column.align == "right" else "long" if len(content) > 40 else ""
    return f'<{tag} class="{f"{shape} {style}".strip()}">{_text(content)}</{tag}>'
