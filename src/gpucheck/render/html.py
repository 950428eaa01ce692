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

# Limits on a table's rows and a text's characters. The page stays below 1 MB, which fits into an e-mail.
MOST_ROWS, MOST_TEXT = 300, 2000
# The content security policy is a second protection besides the escapes: the page runs and loads nothing.
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
# The classes are the styles of `TextLine` and `Cell`. Each colour has a contrast of at least 4.5 on its background.
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
    """Return a page of reports, each with its file name, the worst report first. `serials` shows serial numbers."""
    stripped = [(to_send(report, serials=serials), Path(file).name) for file, report in reports]
    rows = [(*answer_of(report), f"gpucheck {report.command}", report, file) for report, file in stripped]
    rows.sort(key=lambda row: WORST_FIRST.index(row[0]))
    worst, _, head, *_ = rows[0]
    head = head if len(rows) == 1 else f"gpucheck: {len(rows)} results"
    verdicts = counts([verdict for verdict, *_ in rows]) if len(rows) > 1 else worst
    machines = dict.fromkeys(_machine(report, serials=serials) for *_, report, _ in rows)
    body = [f"<h1>{_text(head)}: {verdicts}</h1>", *(f"<p>{_text(line)}</p>" for lines in machines for line in lines)]
    for number, (verdict, answer, title, *_) in enumerate(rows if len(rows) > 1 else (), 1):
        link = f'<a href="#d{number}">{number}. {_text(title)}</a>'
        body.append(f"<p>{link} {SIGNS[verdict][0]} {verdict}: {_code(answer)}</p>")
    for number, (verdict, _, title, report, file) in enumerate(rows, 1):
        body.append(f'<section id="d{number}"><h2>{number}. {_text(title)}: {SIGNS[verdict][0]} {verdict}</h2>')
        body += [*_section(report, file), "</section>"]
    body.append(f"<footer>Made by gpucheck {gpucheck.__version__}. The page loads nothing from elsewhere.</footer>")
    style = f"<title>{worst}: {_text(head)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    return "".join([_HEAD, style, "\n".join(body), "\n</main>\n</body>\n</html>\n"])


def _text(value: str) -> str:
    """Return the text escaped for HTML, cut to `MOST_TEXT` characters, with visible non-printing characters."""
    return html.escape(visible(value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"))


def _code(line: str) -> str:
    """Return a line as HTML. Text between backticks becomes code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return _text(line)
    return "".join(f"<code>{_text(part)}</code>" if index % 2 else _text(part) for index, part in enumerate(parts))


# Folders of every system are shown, and JSON Pointers, which look like paths. Other folders belong to the sender.
_OF_THE_SYSTEM = "dev|proc|sys|usr|lib|lib64|etc|bin|sbin|boot|run|var|devices|driver|host|torch|python"
_FOLDER = re.compile(
    rf"(?<![\w:/.~])~?/(?!(?:{_OF_THE_SYSTEM})/)(?:[^\s/:\"'`,;()<>|]+/)+|[A-Za-z]:\\(?:[^\s\\/:\"]+\\)+"
)


def to_send(report: Report, *, serials: bool) -> Report:
    """Return the report without the sender's folders, and without serial numbers of GPUs unless `serials`."""
    found = [device.serial for device in report.facts.devices if device.serial and not serials]
    # A text shorter than 6 characters may have another meaning.
    hidden = "|".join(re.escape(serial) for serial in found if len(serial) >= 6)
    pattern = re.compile(rf"(, )?(serial )?\b({hidden})\b") if hidden else None

    def strip(value: Any) -> Any:
        if type(value) is str:
            return _FOLDER.sub("", pattern.sub("", value) if pattern is not None else value)
        if isinstance(value, list):
            return [strip(item) for item in value]
        if isinstance(value, dict):
            return {strip(name): strip(item) for name, item in value.items()}
        return value

    shown = tuple(device if serials else replace(device, serial=None) for device in report.facts.devices)
    return from_json(Report, strip(to_json(replace(report, facts=replace(report.facts, devices=shown)))))


def _machine(report: Report, *, serials: bool) -> tuple[str, ...]:
    """Return lines that describe the machine: the host, its GPUs with firmware, and the installed versions."""
    facts, host = report.facts, report.facts.host
    gpus = [device for device in facts.devices if device.kind != "cpu"]
    words = () if host is None else (host.system, host.release, host.architecture, host.container)
    lines = [" ".join(filter(None, words))]
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
    """Return the worst verdict (of the report, a finding or the first line) and the first line without its sign."""
    line = next((block.text for block in text.parts_of(report, verbose=False)[0] if isinstance(block, TextLine)), "")
    verdicts = [report.summary.verdict, *(finding.verdict for finding in report.findings)]
    of_line: Verdict | None = next((key for key, (sign, _, _) in SIGNS.items() if line.startswith(f"{sign} ")), None)
    verdicts += [of_line] if of_line else []
    need_action = [verdict for verdict in verdicts if verdict in NEEDS_ACTION]
    return min(need_action or verdicts[:1], key=WORST_FIRST.index), line[2:] if of_line else line


def _section(report: Report, file: str) -> list[str]:
    screen = text.parts_of(report, verbose=False)
    details = text.parts_of(report, verbose=True)[len(screen) :]
    command = shlex.join(("gpucheck", *(report.argv or (report.command,))))
    took = f"took {units.duration(report.elapsed_s)}" if report.elapsed_s > 0 else ""
    origin = " · ".join(filter(None, (file, f"`{command}`", report.started, took)))
    more = list(_blocks(block for part in details for block in part))
    more = ["<details><summary>Details</summary>", *more, "</details>"] if more else []
    return [*_blocks(block for part in screen for block in part), f'<p class="dim">{_code(origin)}</p>', *more]


def _blocks(blocks: Iterable[PageBlock]) -> Iterable[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, TextLine) and block.text:
            yield f'<p class="{block.style}">{_code(block.text)}</p>'


def _table(table: Table) -> Iterable[str]:
    """Yield a table without the columns of bars, whose values the next column has as numbers."""
    bars = set(f"█░ {EIGHTHS}")
    columns = [
        (index, column)
        for index, column in enumerate(table.columns)
        if column.head or not all(set(row[index].text) <= bars for row in table.rows)
    ]
    if not table.rows:
        return
    yield '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>'
    yield f"<tr>{''.join(_cell(column, column.head, 'th') for _, column in columns)}</tr>"
    for row in table.rows[:MOST_ROWS]:
        yield f"<tr>{''.join(_cell(column, row[index].text, 'td', row[index].style) for index, column in columns)}</tr>"
    yield "</table></div>"
    if len(table.rows) > MOST_ROWS:
        yield f'<p class="dim">and {len(table.rows) - MOST_ROWS} more rows: the JSON has all rows</p>'


def _cell(column: Column, content: str, tag: str, style: str = "") -> str:
    layout = "right" if column.align == "right" else "long" if len(content) > 40 else ""
    return f'<{tag} class="{f"{layout} {style}".strip()}">{_text(content)}</{tag}>'
