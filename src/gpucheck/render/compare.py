"""The page of `gpucheck compare`."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.compare.comparison import not_comparable, row_label, row_text, speed_text
from gpucheck.measure.runs import FEWEST_RUNS
from gpucheck.render import text
from gpucheck.render.bench import FLAGS, rate_text
from gpucheck.render.text import UNKNOWN, Cell, Column, Page, PageBlock, TextLine
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.short import Change, ComparedRow, Comparison

_COLUMNS = (
    Column("row", "left"),
    Column("old"),
    Column("new"),
    Column("speed, new/old"),
    Column("interval", "left"),
    Column("runs", keep=2),
    Column("verdict", "left"),
    Column("notes", "left", keep=1, wraps=True),
)
# Changes come first.
_SIGNS: dict[Change, tuple[Verdict, str]] = {
    "slower": ("warn", "slower"),
    "cannot tell": ("inconclusive", "inconclusive"),
    "faster": ("pass", "faster"),
    "same": ("info", "same"),
}
_GATE, _CHANGES = "compare.slower", "compare.changes"


def page(report: Report) -> Page:
    compared = report.results.get("compare")
    gate, changes = report.finding(_GATE), report.finding(_CHANGES)
    # With a limit, the first line is about the limit, else about the changes.
    cause = changes if gate is None else gate
    if compared is None or not compared.rows:
        return Page(findings=[finding for finding in report.findings if finding.verdict != "info"], cause=cause)
    others = [finding for finding in report.findings if finding is not changes]
    alpha, within = units.percent(compared.alpha), units.percent(compared.same_within)
    method = (
        f"speed new/old: below 1 is slower. Method: Yuen's t on the logarithms of the runs' lower quartiles, {alpha} "
        f"for the whole table (Holm). Rows within ±{within} are the same"
    )
    first, under = _answer(compared.rows, report.summary.verdict, gate), [TextLine(_subject(compared, gate), "dim")]
    return Page(first, comparison(report), [TextLine(method)], others, cause, changes.fix if changes else None, under)


def _answer(rows: Sequence[ComparedRow], verdict: Verdict, gate: Finding | None) -> TextLine:
    by_change = {change: [row for row in rows if row.change == change] for change in _SIGNS}
    if gate is not None and gate.verdict == "pass":
        return text.answer(verdict, text.sentence(gate))
    if gate is not None and gate.verdict == "inconclusive":
        labels = gate.evidence["undecided"]
        first = next((row_text(row) for row in rows if row_label(row) == labels[0]), labels[0])
        return text.answer("inconclusive", f"inconclusive whether {_some(len(labels), rows)} slower: {first}")
    slower = by_change["slower"] if gate is None else [row for row in rows if row_label(row) in gate.evidence["slower"]]
    if (inconclusive := len(by_change["cannot tell"])) == len(rows):
        return text.answer("inconclusive", f"inconclusive: {text.counted(inconclusive, 'row')}; no row proven slower")
    remark = f"; {inconclusive} inconclusive" if inconclusive and not slower else ""
    if not slower and not by_change["faster"]:
        return text.answer(verdict, f"no change in {text.counted(len(by_change['same']), 'row')}{remark}")
    changed, word = (slower, "slower") if slower else (by_change["faster"], "faster")
    largest = max(changed, key=_distance)
    interval = f" ({bounds})" if (bounds := _interval(largest)) else ""
    change = f"{row_text(largest, ' ')} {speed_text(largest.ratio)}{interval}"
    return text.answer(verdict, f"{_some(len(changed), rows)} {word}: {change}{remark}")


def _some(count: int, rows: Sequence[ComparedRow]) -> str:
    return f"{count} of {text.counted(len(rows), 'row')} {'is' if count == 1 else 'are'}"


def _distance(row: ComparedRow) -> float:
    return max(row.ratio, 1 / row.ratio)


def _interval(row: ComparedRow) -> str:
    if row.ci_low is None or row.ci_high is None:
        return ""
    return " to ".join(speed_text(bound).removeprefix("×") for bound in (row.ci_high, row.ci_low))


def _subject(compared: Comparison, gate: Finding | None) -> str:
    rows = compared.rows
    devices = ", ".join(dict.fromkeys(row.new_device for row in rows))
    counts = {row.old_runs for row in rows}, {row.new_runs for row in rows}
    old, new = (str(min(side)) if len(side) == 1 else f"{min(side)} to {max(side)}" for side in counts)
    runs = f"{old} run{'s' * (old != '1')} each" if old == new else f"{old} old and {new} new runs"
    limit = "" if gate is None else f", limit {(gate.evidence['limit'] - 1) * 100:g} %"
    return f"{compared.new_command or rows[0].name} on {devices}, {runs}{limit}"


def comparison(report: Report) -> list[PageBlock]:
    """Return the table of compared rows, changed rows first, or nothing if nothing was compared."""
    if (compared := report.results.get("compare")) is None or not compared.rows:
        return []
    gate = report.finding(_GATE)
    failed = gate.evidence["slower"] if gate is not None else []
    several = len({row.new_device for row in compared.rows}) > 1
    order = {change: position for position, change in enumerate(_SIGNS)}
    rows = sorted(compared.rows, key=lambda row: (order[row.change], -_distance(row) if row.change != "same" else 0))
    return [text.table(_COLUMNS, [_cells(row, failed=row_label(row) in failed, several=several) for row in rows])]


def _cells(row: ComparedRow, *, failed: bool, several: bool) -> Sequence[str | Cell]:
    notes = [*row.differences, *(FLAGS.get(flag, (flag, ""))[0] or flag for flag in row.flags)]
    # The reason is shown elsewhere if there are too few runs, and in `differences` if rows cannot be compared.
    if row.why and min(row.old_runs, row.new_runs) >= FEWEST_RUNS and not not_comparable(row.differences):
        notes.insert(0, row.why)
    label = row_text(row, " ")
    return [
        f"{label} ({row.new_device})" if several else label,
        *(
            units.duration(time_s) if rate is None or row.rate_unit is None else rate_text(rate, row.rate_unit)
            for rate, time_s in ((row.old_rate, row.old_s), (row.new_rate, row.new_s))
        ),
        speed_text(row.ratio),
        _interval(row) or UNKNOWN,
        str(row.old_runs) if row.old_runs == row.new_runs else f"{row.old_runs}, {row.new_runs}",
        text.verdict_cell("fail", "slower") if failed else text.verdict_cell(*_SIGNS[row.change]),
        ", ".join(notes),
    ]
