"""The page of `gpucheck bench transfer`: copies by size and idioms of each device, then copies that share a link."""

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
        copied, idioms = ([row for row in rows if row.name == name] for name in (judge.NAME, judge.IDIOM))
        sizes = [_by_size(copied, results.get(device.id, TransferResult(device.id))), TextLine()] if copied else []
        return [*sizes, *_idioms(idioms)] if idioms else sizes[:1]

    of_one_device = [row for row in report.measurements if row.name in (judge.NAME, judge.IDIOM)]
    below: list[PageBlock] = []
    for shared in (_both_ways(report), _peer(report.measurements)):
        below += [TextLine(), *shared] if shared else []
    return bench.pages_of(report, bench.by_device(of_one_device), answer, blocks, below=below)


def _answer(report: Report, device: DeviceRef, rows: Sequence[Measurement], result: TransferResult) -> Answer | None:
    copies = [*judge.fastest_links(rows).values()]
    rated = [row for row in rows if row.rate is not None]
    if copies:
        slowest, link = min(copies, key=judging.rate), result.link
        rate, link_name = units.byte_rate(judging.rate(slowest)), ""
        if link is not None and link.limit_bytes_per_s and max(map(judging.rate, copies)) <= link.limit_bytes_per_s:
            share = judging.rate(slowest) / link.limit_bytes_per_s
            rate, link_name = f"{units.percent(share)} of the link: {rate}", link.label
        return Answer(device, f"pinned copies reach {rate}{bench.doubt(slowest)}", link_name)
    if rated:
        best = max(rated, key=lambda row: (row.case["host_memory"] == "pinned", judging.size(row)))
        direction, host_memory = best.case["direction"], best.case["host_memory"]
        what = "copies in host memory" if direction == "host_to_host" else f"{host_memory} copies {WAYS[direction]}"
        return Answer(device, f"{what} reach {units.byte_rate(judging.rate(best))}{bench.doubt(best)}")
    if timed := [row for row in rows if row.time_s is not None]:
        smallest = min(timed, key=judging.size)
        copy = f"a copy of {units.capacity(judging.size(smallest))} takes {bench.time_text(smallest)}"
        return Answer(device, f"{copy}: latency only{bench.doubt(smallest)}")
    idioms = [finding for finding in report.findings if finding.id == "transfer.idioms"]
    return next((Answer(device, row.title) for row in idioms if row.device in (None, device.id)), None)


def _by_size(measurements: Sequence[Measurement], answer: TransferResult) -> PageBlock:
    sizes = sorted({row.case["size_bytes"] for row in measurements})
    rows = {
        (row.case["direction"], row.case["host_memory"], row.case["timed"], row.case["size_bytes"]): row
        # If several rows have the same case, the row with the most runs comes last and is kept.
        for row in sorted(measurements, key=lambda row: len(row.runs))
    }
    gains = {(gain.direction, gain.size_bytes): gain.gain for gain in answer.gains}
    head: tuple[Column, Sequence[str | Cell]] = (Column("size", "left"), [*map(units.capacity, sizes)])
    columns, narrow = [head], {"": head}
    for way in dict.fromkeys(row.case["direction"] for row in measurements):
        kinds = [kind for kind in _KINDS if any((way, *kind, size) in rows for size in sizes)]
        # The heads of a direction's first two columns are the direction and the unit.
        heads = iter([SHORT_WAYS[way], "GB/s"] if len(kinds) > 1 else [f"{SHORT_WAYS[way]}, GB/s"])
        fastest: list[Measurement | None] = [None] * len(sizes)
        for memory, timed in kinds:
            of_kind = [rows.get((way, memory, timed, size)) for size in sizes]
            is_link = timed == "link"
            fastest = fastest if is_link else of_kind
            rates = text.column_of_numbers([bench.median_rate(row) if row else None for row in of_kind], 1e9)
            second_line = "link" if is_link else memory
            columns.append((Column(f"{next(heads, '')}\n{second_line}", keep=3 if is_link else 9), rates))
            if (memory, timed) == ("pinned", "as_called"):
                ratios = [bench.ratio_text(gains.get((way, size))) for size in sizes]
                columns.append((Column("\ngain", keep=5), ratios))
            if not is_link:
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
    if not (rows := [row for row in measurements if row.name == judge.PEER]):
        return []
    matrix = judge.matrix(rows)
    ids: list[str] = matrix["devices"]
    # All cells have the same precision, because readers compare rows and columns.
    texts = iter(text.column_of_numbers([rate for rates in matrix["bytes_per_s"] for rate in rates], 1e9))
    lines: list[list[str]] = []
    for source, paths in zip(ids, matrix["path"], strict=True):
        cells = [f"{next(texts)}{'*' * (path == 'staged')}" for path in paths]
        # A copy within one device uses no link, so the diagonal is empty.
        cells[len(lines)] = ""
        lines.append([source, *cells])
    # For devices of one kind, the head is only the index, so that eight devices fit into 80 columns.
    is_short = len({name.partition(":")[0] for name in ids}) == 1
    heads = [name.partition(":")[2] if is_short else name for name in ids]
    columns = [Column("from", "left"), *(Column(f"to {head}") for head in heads)]
    head = TextLine("device to device, GB/s: sources down, destinations across")
    is_staged = any("staged" in paths for paths in matrix["path"])
    below = [TextLine("* through host memory, timed with the host's clock", "dim")] if is_staged else []
    return [head, text.table(columns, lines), *below]
