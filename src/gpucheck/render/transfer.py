"""`gpucheck bench transfer` as blocks: for each device its copies by size, and common idioms that copy.

Copies that share a link follow: in both directions at once, and from device to device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.bench.transfer import judge
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.render import bench, text
from gpucheck.render.bench import Answer
from gpucheck.render.text import Cell, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import TransferResult

# Kinds of host memory and of clocks, in the order of the columns.
_KINDS = (("pageable", "as_called"), ("pinned", "as_called"), ("pinned", "link"))


def page(report: Report) -> Page:
    results = {entry.device: entry for entry in report.results.get("bench_transfer", ())}

    def answer(device: DeviceRef, rows: Sequence[Measurement]) -> Answer | None:
        copied = [row for row in rows if row.name == judge.NAME]
        return _answer(report, device, copied, results.get(device.id, TransferResult(device.id)))

    def blocks(device: DeviceRef, rows: Sequence[Measurement]) -> list[PageBlock]:
        copied, written = ([row for row in rows if row.name == name] for name in (judge.NAME, judge.IDIOM))
        sizes = [_by_size(copied, results.get(device.id, TransferResult(device.id))), TextLine()] if copied else []
        return [*sizes, *_idioms(written)] if written else sizes[:1]

    alone = [row for row in report.measurements if row.name in (judge.NAME, judge.IDIOM)]
    below: list[PageBlock] = []
    for shared in (_both_ways(report), _peer(report.measurements)):
        below += [*([TextLine()] if (alone or below) and shared else []), *shared]
    return bench.pages_of(report, bench.by_device(alone), answer, blocks, below=below)


def _answer(report: Report, device: DeviceRef, rows: Sequence[Measurement], result: TransferResult) -> Answer | None:
    copies = [*judge.fastest_links(rows).values()]
    rated = [row for row in rows if row.rate is not None]
    if copies:
        slowest, link = min(copies, key=judging.rate), result.link
        reached, place = units.byte_rate(judging.rate(slowest)), ""
        if link is not None and link.limit_bytes_per_s and max(map(judging.rate, copies)) <= link.limit_bytes_per_s:
            share = judging.rate(slowest) / link.limit_bytes_per_s
            reached, place = f"{units.percent(share)} of the link: {reached}", link.label
        return Answer(device, f"pinned copies reach {reached}{bench.doubt(slowest)}", place)
    if rated:
        best = max(rated, key=lambda row: (row.case["host_memory"] == "pinned", judging.size(row)))
        way, kind = best.case["direction"], best.case["host_memory"]
        what = "copies in host memory" if way == "host_to_host" else f"{kind} copies {WAYS[way]}"
        return Answer(device, f"{what} reach {units.byte_rate(judging.rate(best))}{bench.doubt(best)}")
    timed = [row for row in rows if row.time_s is not None]
    if timed:
        least = min(timed, key=judging.size)
        copy = f"a copy of {units.capacity(judging.size(least))} takes {bench.time_text(least)}"
        return Answer(device, f"{copy}: all of it latency{bench.doubt(least)}")
    costs = [finding for finding in report.findings if finding.id == "transfer.idioms"]
    return next((Answer(device, cost.title) for cost in costs if cost.device in (None, device.id)), None)


def _by_size(measurements: Sequence[Measurement], answer: TransferResult) -> PageBlock:
    sizes = sorted({row.case["size_bytes"] for row in measurements})
    rows = {
        (row.case["direction"], row.case["host_memory"], row.case["timed"], row.case["size_bytes"]): row
        # If several rows have the same case, the last one counts here: the one with the most runs.
        for row in sorted(measurements, key=lambda row: len(row.runs))
    }
    gains = {(gain.direction, gain.size_bytes): gain.gain for gain in answer.gains}
    head: tuple[Column, Sequence[str | Cell]] = (Column("size", "left"), [*map(units.capacity, sizes)])
    columns, narrow = [head], {"": head}
    for way in dict.fromkeys(row.case["direction"] for row in measurements):
        kinds = [kind for kind in _KINDS if any((way, *kind, size) in rows for size in sizes)]
        # Each line of a group's head stands over a column: the direction, then the unit.
        heads = iter([SHORT_WAYS[way], "GB/s"] if len(kinds) > 1 else [f"{SHORT_WAYS[way]}, GB/s"])
        fastest: list[Measurement | None] = [None] * len(sizes)
        for memory, timed in kinds:
            of_kind = [rows.get((way, memory, timed, size)) for size in sizes]
            link = timed == "link"
            fastest = fastest if link else of_kind
            rates = text.column_of_numbers([bench.median_rate(row) if row else None for row in of_kind], 1e9)
            columns.append((Column(f"{next(heads, '')}\n{'link' if link else memory}", keep=3 if link else 9), rates))
            if (memory, timed) == ("pinned", "as_called"):
                ratios = [bench.ratio_text(gains.get((way, size))) for size in sizes]
                columns.append((Column("\ngain", keep=5), ratios))
            if not link:
                narrow[way] = (Column(f"{SHORT_WAYS[way]}\n{memory}, GB/s"), rates)
        columns.append((Column("\ntime", keep=6), list(map(bench.time_text, fastest))))
    rows_of = [[row for row in measurements if row.case["size_bytes"] == size] for size in sizes]
    notes = [bench.note_cell([flag for row in rows for flag in judging.doubts_of(row.flags)]) for rows in rows_of]
    columns.append((Column("notes", "left", keep=7, wraps=True, cropped=14), notes))
    return replace(text.by_column(columns), narrow=text.by_column([*narrow.values()]))


def _idioms(measurements: Sequence[Measurement]) -> list[PageBlock]:
    rows = [row for row in measurements if not str(row.case["idiom"]).startswith(("raw", "loader"))] or measurements
    ratios = {id(row): ratio for row, ratio in judge.times_raw(measurements)}
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("line of code", "left", wraps=True), lambda row: str(row.method.details["call"])),
        filled(Column("time"), bench.time_text),
        numbers(Column("GB/s", keep=7), bench.median_rate, 1e9),
        filled(Column("of raw", keep=8), lambda row: bench.ratio_text(ratios.get(id(row)))),
        bench.notes(6, "warm"),
    )
    size = units.capacity(rows[0].case["size_bytes"])
    return [TextLine(f"common idioms at {size}, allocation included"), table_of(rows, columns)]


def _both_ways(report: Report) -> list[PageBlock]:
    lines: list[PageBlock] = []
    known = [row for row in report.findings if row.id == judge.BOTH_WAYS and row.evidence.get("sum_bytes_per_s")]
    for finding in known:
        rows = [row for row in report.measurements if row.name == finding.id and row.device.id == finding.device]
        doubt = next(filter(None, map(bench.doubt, rows)), "")
        sentence = f"both directions at once: {units.byte_rate(finding.evidence['sum_bytes_per_s'])}{doubt}"
        lines.append(TextLine(f"{finding.device}: {sentence}" if len(known) > 1 else sentence))
    return lines


def _peer(measurements: Sequence[Measurement]) -> list[PageBlock]:
    rows = [row for row in measurements if row.name == judge.PEER]
    if not rows:
        return []
    matrix = judge.matrix(rows)
    ids: list[str] = matrix["devices"]
    # The whole matrix has one precision, because cells are compared down and across.
    texts = iter(text.column_of_numbers([rate for rates in matrix["bytes_per_s"] for rate in rates], 1e9))
    lines: list[list[str]] = []
    for source, paths in zip(ids, matrix["path"], strict=True):
        cells = [f"{next(texts)}{'*' * (path == 'staged')}" for path in paths]
        # The diagonal is empty: a copy within one device uses no link.
        cells[len(lines)] = ""
        lines.append([source, *cells])
    # If all devices have the same kind, their numbers alone are enough. Eight devices then fit into 80 columns.
    is_short = len({name.partition(":")[0] for name in ids}) == 1
    heads = [name.partition(":")[2] if is_short else name for name in ids]
    columns = [Column("from", "left"), *(Column(f"to {head}") for head in heads)]
    head = TextLine("device to device, GB/s: sources down, destinations across")
    is_staged = any("staged" in paths for paths in matrix["path"])
    below = [TextLine("* through host memory, timed on the host's clock", "dim")] if is_staged else []
    return [head, text.table(columns, lines), *below]
