"""`gpucheck bench transfer` as blocks: for each device its copies by size, and common idioms that copy.

Then the other parts, each from its rows: both ways at once and within a device, all devices at once, and from device to
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpucheck import stats, units
from gpucheck.bench import judging
from gpucheck.bench.transfer import judge
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.render import measured
from gpucheck.render.measured import ColumnOf, filled, numbers
from gpucheck.render.text import UNKNOWN, Block, Cell, Column, Line, Page, Table, by_column, column_of_numbers, table
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import LinkUnderLoad, TransferResult

BOTH_WAYS, ON_DEVICE = "transfer.both_ways", "transfer.on_device"
COPY, IDIOM = "transfer", "transfer.idiom"
# Kinds of host memory and of clocks, in the order of the columns.
_KINDS = (("pageable", "as_called"), ("pinned", "as_called"), ("pinned", "link"))
# The fitted line is told of the first of these that there is.
_FITTED = (("pinned", "link"), ("pinned", "as_called"), ("pageable", "as_called"))
# Fewer sizes make no fit.
LEAST_SIZES = 6


def page(report: Report) -> Page:
    """For each device a table of rates by size and direction, then what its other parts measured."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    results = {entry.device: entry for entry in report.results.get("bench_transfer", ())}
    devices = list(measured.by_device([row for row in report.measurements if row.name in (COPY, IDIOM)]))
    for device, mine in devices:
        result = results.get(device.id, TransferResult(device.id))
        copied, written = ([row for row in mine if row.name == name] for name in (COPY, IDIOM))
        answers += _answer(report, device, copied, result)
        laid_out += measured.head(device, several=len(devices) > 1)
        table, method = copies(copied, result)
        short, whole = idioms(written, result)
        laid_out += [*table, *([Line()] if table and short else []), *short]
        details += [*_link(device.id, result.link), *method, *whole]
    for part in PARTS:
        shown, told = part(report.measurements)
        laid_out += [*([Line()] if laid_out and shown else []), *shown]
        details += told
    return measured.bench_page(report, answers, laid_out, details)


def _answer(
    report: Report, device: DeviceRef, rows: Sequence[Measurement], result: TransferResult
) -> list[measured.Answer]:
    """The share of the link that pinned copies reach, in the slower direction; else the rate of the largest copy."""
    link = [*judge.fastest_links(rows).values()]
    rated = [row for row in rows if row.rate is not None]
    if link:
        slowest = min(link, key=judging.rate)
        limit = result.link.limit_bytes_per_s if result.link is not None else None
        share = judging.rate(slowest) / limit if limit and max(map(judging.rate, link)) <= limit else None
        reached = units.byte_rate(judging.rate(slowest))
        reached = f"{units.percent(share)} of the link: {reached}" if share is not None else reached
        place = ""
        if share is not None and (its := result.link) is not None:
            # `PCIe 5 x16`, and `PCIe 5 x8/16` where card and slot have more lanes.
            more = its.width and its.max_width and its.width < its.max_width
            place = f"{its.label}/{its.max_width}" if more else its.label
        return [measured.answer_of(slowest, device, f"pinned copies reach {reached}", place)]
    if rated:
        best = max(rated, key=lambda row: (row.case["host_memory"] == "pinned", judging.size(row)))
        way, kind = best.case["direction"], best.case["host_memory"]
        what = "copies in host memory" if way == "host_to_host" else f"{kind} copies {WAYS[way]}"
        return [measured.answer_of(best, device, f"{what} reach {units.byte_rate(judging.rate(best))}")]
    timed = [row for row in rows if row.time_s is not None]
    if timed:
        least = min(timed, key=judging.size)
        size = units.capacity(judging.size(least))
        text = f"a copy of {size} takes {measured.time_text(least)}: all of it latency"
        return [measured.answer_of(least, device, text)]
    said = next(
        (one for one in report.findings if one.id == "transfer.idioms" and one.device in (None, device.id)), None
    )
    return [measured.Answer(device, said.title)] if said is not None else []


def _link(device_id: str, link: LinkUnderLoad | None) -> list[Line]:
    if link is None or device_id == "cpu":
        return []
    if link.limit_bytes_per_s is None:
        return [Line(f"link unknown: {link.unknown_because or 'it was not read under load'}")]
    return [Line(f"{link.label} under load, limit {units.byte_rate(link.limit_bytes_per_s)} per direction")]


# -- copies by size ----------------------------------------------------------------------------------------------------


def copies(measurements: Sequence[Measurement], answer: TransferResult) -> tuple[list[Block], list[Block]]:
    """The table of copies by size; the line through them, and how they were taken."""
    if not measurements:
        return [], []
    return [_by_size(measurements, answer)], [
        *fitted(answer),
        *_latencies(answer),
        Line(_method(measurements)),
        *measured.flag_lines(measured.flags_of(measurements, _name), len(measurements)),
    ]


def _name(row: Measurement) -> str:
    case = row.case
    name = f"{units.capacity(case['size_bytes'])} {case['host_memory']} {SHORT_WAYS[case['direction']]}"
    return f"{name} (link)" if case["timed"] == "link" else name


def _by_size(measurements: Sequence[Measurement], answer: TransferResult) -> Block:
    """Sizes down; for each direction pageable and pinned as called, the gain, the link, and the time of a call."""
    sizes = sorted({row.case["size_bytes"] for row in measurements})
    rows = {
        (row.case["direction"], row.case["host_memory"], row.case["timed"], row.case["size_bytes"]): row
        # Of runs that were measured in different ways the most count.
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
            found = [rows.get((way, memory, timed, size)) for size in sizes]
            link = timed == "link"
            fastest = fastest if link else found
            rates = column_of_numbers([measured.median_rate(row) if row else None for row in found], 1e9)
            kept = 3 if link else 9
            columns.append((Column(f"{next(heads, '')}\n{'link' if link else memory}", keep=kept), rates))
            if (memory, timed) == ("pinned", "as_called") and any((way, size) in gains for size in sizes):
                told = [measured.ratio_text(gains.get((way, size))) for size in sizes]
                columns.append((Column("\ngain", keep=5), told))
            if not link:
                narrow[way] = (Column(f"{SHORT_WAYS[way]}\n{memory}, GB/s"), rates)
        columns.append((Column("\ntime", keep=6), list(map(measured.time_text, fastest))))
    rows_of = [[row for row in measurements if row.case["size_bytes"] == size] for size in sizes]
    told_of = [measured.note_cell([flag for row in rows for flag in judging.doubts_of(row.flags)]) for rows in rows_of]
    if any(cell.text for cell in told_of):
        columns.append((Column("notes", "left", keep=7, wraps=True, cropped=14), told_of))
    return replace(by_column(columns), narrow=by_column([*narrow.values()]))


def _latencies(answer: TransferResult) -> list[Line]:
    """The time of the smallest copy of each kind, as called."""
    if not answer.latencies:
        return []
    told = [
        f"{SHORT_WAYS[entry.direction]} {entry.host_memory} {units.duration(entry.time_s)}"
        for entry in answer.latencies
    ]
    return [Line(f"latency ({units.capacity(answer.latencies[0].size_bytes)}): {', '.join(told)}")]


def _method(measurements: Sequence[Measurement]) -> str:
    memories = " and ".join(dict.fromkeys(str(row.case["host_memory"]) for row in measurements))
    has_link = any(row.case["timed"] == "link" for row in measurements)
    link = "; link: the copy alone, on the device's clock" if has_link else ""
    return (
        f"preallocated buffers, {measured.caches(measurements)}; {memories}: the call and its synchronize{link}; time: "
        f"of the call, pinned where there is such a row{_node(measurements)}"
    )


def _node(measurements: Sequence[Measurement]) -> str:
    """Where the buffers lay, for processes that were bound to it: others run anywhere, which is nothing to tell."""
    places = {row.method.numa for row in measurements}
    place = places.pop() if len(places) == 1 else None
    return f"; from {place}" if place is not None and "(" in place else ""


def fitted(answer: TransferResult) -> list[Line]:
    """One line for all directions: the start, the rate and the size at which they cost the same."""
    told = []
    fits = {(fit.direction, fit.host_memory, fit.timed): fit for fit in answer.fits}
    for way in dict.fromkeys(way for way, _, _ in fits):
        memory, timed = next(kind for kind in _FITTED if (way, *kind) in fits)
        fit = fits[way, memory, timed]
        name = f"{SHORT_WAYS[way]} {memory}{' (link)' if timed == 'link' else ''}"
        if fit.latency_s is None or fit.bytes_per_s is None or fit.half_rate_bytes is None:
            # Two sizes that were asked for are no reason to excuse anything.
            told += [] if fit.sizes < LEAST_SIZES else [f"{name} has none: {fit.unknown_because}"]
            continue
        text = (
            f"{name} {units.duration(fit.latency_s)} + size / {units.byte_rate(fit.bytes_per_s)}, "
            f"half that rate at {units.capacity(round(fit.half_rate_bytes))}"
        )
        if fit.worst_residual is not None and fit.worst_residual > 0.1:
            text += f", up to {units.percent(fit.worst_residual)} off"
        told.append(text)
    return [Line(f"fitted time: {'; '.join(told)}")] if told else []


# -- common lines of code ----------------------------------------------------------------------------------------------

# On a screen without `-v`: one for each decision that a user makes. More than so many others are left for `-v`.
_DECISIONS = ("to", "to_non_blocking", "pin_then_to", "cpu")


def idioms(measurements: Sequence[Measurement], answer: TransferResult) -> tuple[list[Block], list[Block]]:
    """The lines that a user chooses between, with the time of each over the raw copy's; and all that were timed."""
    few = [row for row in measurements if row.case["idiom"] in _DECISIONS]
    if not measurements:
        return [], []
    size = units.capacity(measurements[0].case["size_bytes"])
    head = f"common idioms at {size}, allocation included"
    if len(measurements) <= len(_DECISIONS) or not few:
        return [Line(head), _idioms(measurements, answer)], []
    return [Line(head), _idioms(few, answer, whole=False)], [
        Line(),
        Line(f"all idioms at {size}, allocation included; raw: between preallocated buffers"),
        _idioms(measurements, answer),
    ]


def _idioms(measurements: Sequence[Measurement], answer: TransferResult, *, whole: bool = True) -> Table:
    # `x.pin_memory()` goes nowhere: it copies where the tensor is.
    ways = {**SHORT_WAYS, "host_to_host": "on the host"}
    ratios = {tuple(entry.case.items()): entry.times_raw for entry in answer.idioms}
    several = len({row.case["direction"] for row in measurements}) > 1
    direction: ColumnOf[Measurement] = measured.once(
        Column("", "left", keep=2), lambda row: ways[row.case["direction"]]
    )
    first: ColumnOf[Measurement] = filled(
        Column("first time", keep=1),
        lambda row: units.duration(first_s) if (first_s := row.method.details.get("first_call_s")) else UNKNOWN,
    )
    columns: tuple[ColumnOf[Measurement], ...] = (
        *((direction,) if whole and several else ()),
        filled(Column("line of code", "left", wraps=True), lambda row: str(row.method.details["call"])),
        filled(Column("time"), measured.time_text),
        numbers(Column("GB/s", keep=7), measured.median_rate, 1e9),
        filled(Column("of raw", keep=8), lambda row: measured.ratio_text(ratios.get(tuple(row.case.items())))),
        *((first,) if whole else ()),
        measured.notes(6, "warm"),
    )
    return measured.table_of(measurements, columns)


# -- both ways at once, and within a device ----------------------------------------------------------------------------


def at_once(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """A line for each device; and a row for each measurement. Nothing where there is none."""
    rows = [row for row in measurements if row.name in (BOTH_WAYS, ON_DEVICE)]
    if not rows:
        return [], []
    short = [(device.id, _in_a_line(mine)) for device, mine in measured.by_device(rows)]
    several = len(short) > 1
    lines: list[Block] = [Line(f"{name}: {text}" if several else text) for name, text in short if text]
    return lines, [Line(), measured.table_of(rows, _AT_ONCE), *_how_at_once(rows)]


def _in_a_line(rows: Sequence[Measurement]) -> str:
    """`both directions at once: 94.0 GB/s; within the device: 4.20 TB/s`."""
    sums = [(total, row) for row in rows if _is_both_ways(row) and (total := _sum(row)) is not None]
    parts = []
    if sums:
        total, row = max(sums, key=lambda found: found[0])
        parts.append(f"both directions at once: {units.byte_rate(total)}{measured.doubt(row)}")
    parts += [
        f"within the device: {units.byte_rate(row.rate.median)}{measured.doubt(row)}"
        for row in rows
        if not _is_both_ways(row) and row.rate is not None
    ]
    return "; ".join(parts)


def _is_both_ways(row: Measurement) -> bool:
    return row.name == BOTH_WAYS


def _beside(row: Measurement) -> float | None:
    """The rate of the other direction in the same windows."""
    other: float | None = row.method.details.get("other_bytes_per_s")
    return other if row.rate else None


def _sum(row: Measurement) -> float | None:
    other = _beside(row)
    return None if row.rate is None or other is None else row.rate.median + other


def _of_both_ways(column: Column, value: Callable[[Measurement], float | None]) -> ColumnOf[Measurement]:
    """A column of rates that copies within a device do not have."""

    def cells(rows: Sequence[Measurement]) -> list[str]:
        texts = column_of_numbers([value(row) for row in rows], 1e9)
        return [text if _is_both_ways(row) else "" for row, text in zip(rows, texts, strict=True)]

    return ColumnOf(column, cells)


_AT_ONCE: tuple[ColumnOf[Measurement], ...] = (
    measured.once(Column("device", "left", keep=6), lambda row: row.device.id),
    filled(
        Column("copies", "left"),
        lambda row: (
            f"{SHORT_WAYS[row.case['direction']]}, both ways at once" if _is_both_ways(row) else "within the device"
        ),
    ),
    filled(Column("size", keep=5), lambda row: units.capacity(row.case["size_bytes"])),
    *measured.rates("GB/s", percentiles_keep=2),
    _of_both_ways(Column("the other", keep=7), _beside),
    _of_both_ways(Column("sum", keep=8), _sum),
    filled(
        Column("discarded", keep=1),
        lambda row: str(row.method.details["discarded_windows"]) if _is_both_ways(row) else "",
    ),
    measured.notes(6, "warm"),
)


def _how_at_once(rows: Sequence[Measurement]) -> list[Line]:
    lines = []
    if any(map(_is_both_ways, rows)):
        lines.append(
            Line(
                "both ways: pinned, two streams, separate buffers. Only windows that the other direction covered in "
                "full; the other: its rate in the same windows"
            )
        )
    within = next((row for row in rows if row.name == ON_DEVICE), None)
    if within is not None:
        half = UNKNOWN if within.rate is None else units.byte_rate(within.rate.median / 2)
        lines.append(Line(f"within the device: bytes read and written; nvbandwidth counts half, {half}"))
    return lines


# -- all devices at once -----------------------------------------------------------------------------------------------


def together(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """A table with a line for each device and their sum, and its method; nothing where no devices copied at once."""
    rows = [row for row in measurements if row.name == judge.TOGETHER]
    if not rows:
        return [], []
    directions = list(dict.fromkeys(row.case["direction"] for row in rows))
    # Told apart by their place: two rows of one device are two rows.
    most = max(sum(row.case["direction"] == direction for row in rows) for direction in directions)
    names = [row.device.id for row in rows if row.case["direction"] == directions[0]]
    columns = [(Column("device", "left"), [*names, *[UNKNOWN] * (most - len(names)), "all"])]
    for direction in directions:
        mine = [row for row in rows if row.case["direction"] == direction]
        columns += _side_by_side(direction, mine, measurements, gap=[UNKNOWN] * (most - len(mine)))
    named = measured.flags_of(rows, lambda row: f"{row.device.id} {SHORT_WAYS[row.case['direction']]}")
    places = list(dict.fromkeys(row.method.numa for row in rows if row.method.numa is not None))
    outside = sum(row.method.details.get("windows_outside", 0) for row in rows)
    case = rows[0].case
    method = f"{units.capacity(case['size_bytes'])} of {case['host_memory']} memory, a process for each device"
    method += f", {'; '.join(places)}" if places else ""
    left_out = f"; {outside} other windows discarded" if outside else ""
    return [Line(f"{most} devices at once"), by_column(columns)], [
        Line(f"{method}. Started together, windows in which all copied{left_out}"),
        *measured.flag_lines(named),
    ]


def _side_by_side(
    direction: str, mine: Sequence[Measurement], measurements: Sequence[Measurement], *, gap: list[str]
) -> list[tuple[Column, list[str]]]:
    """The columns of a direction: each device's rate beside the others, its rate alone, and the share that is left."""
    carried = [judge.carried(row) for row in mine]
    alone = [judge.alone(row, measurements) for row in mine]
    *each, total = column_of_numbers([*carried, sum(rate for rate in carried if rate is not None)], 1e9)
    shares = [
        units.percent(rate / by_itself) if rate is not None and by_itself else UNKNOWN
        for rate, by_itself in zip(carried, alone, strict=True)
    ]
    return [
        (Column(f"{SHORT_WAYS[direction]}, GB/s\nat once"), [*each, *gap, total]),
        (Column("\nalone", keep=7), [*column_of_numbers(alone, 1e9), *gap, ""]),
        (Column("\nof alone", keep=6), [*shares, *gap, ""]),
    ]


# -- from device to device ---------------------------------------------------------------------------------------------

# What stands behind a rate.
_MARKS = {"peer": "", "staged": "*", None: ""}


def peer(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """The matrix of rates, what its marks mean, the latencies; its method. Nothing where there is no such row."""
    rows = [row for row in measurements if row.name == judge.PEER]
    if not rows:
        return [], []
    matrix = judge.matrix(rows)
    sizes = {row.case["what"]: units.capacity(row.case["size_bytes"]) for row in rows}
    size = f", {sizes['rate']} at a time" if "rate" in sizes else ""
    # A small copy is all call: that is what its latency tells.
    named = (
        (flag, f"{row.case['source']} to {row.case['destination']}{' (latency)' * (row.case['what'] != 'rate')}")
        for row in rows
        for flag in row.flags
        if (flag, row.case["what"]) != ("call-bound", "latency")
    )
    marks, method = _how_pairs(matrix, rows)
    return [
        Line(f"device to device, GB/s{size}: sources down, destinations across"),
        _rates_of_pairs(matrix),
        *marks,
        *_latency(matrix, sizes),
    ], [method, *measured.flag_lines(named)]


def _rates_of_pairs(matrix: dict[str, Any]) -> Block:
    ids: list[str] = matrix["devices"]
    # One precision for the whole: cells are compared down and across.
    texts = iter(column_of_numbers([rate for rates in matrix["bytes_per_s"] for rate in rates], 1e9))
    rows = []
    for at, source in enumerate(ids):
        cells = [f"{next(texts)}{_MARKS[path]}" for path in matrix["path"][at]]
        # To itself it copies elsewhere.
        cells[at] = ""
        rows.append([source, *cells])
    return table([Column("from", "left"), *(Column(f"to {_short(device_id, ids)}") for device_id in ids)], rows)


def _short(device_id: str, ids: Sequence[str]) -> str:
    """The number alone where all are of a kind: eight devices then fit into 80 columns."""
    kinds = {known.partition(":")[0] for known in ids}
    return device_id.partition(":")[2] or device_id if len(kinds) == 1 else device_id


def _how_pairs(matrix: dict[str, Any], rows: Sequence[Measurement]) -> tuple[list[Line], Line]:
    """Return what the marks in the matrix mean, and how its rates were taken."""
    paths = {path for of_source in matrix["path"] for path in of_source}
    samples = [row.time_s.n for row in rows if row.time_s and row.case["what"] == "rate"]
    spread = " to ".join(dict.fromkeys(str(some(samples)) for some in (min, max))) if samples else "no"
    marks = [Line("* through host memory, timed on the host's clock", "dim")] if "staged" in paths else []
    missing = sum(
        path is not None and rate is None
        for of_path, of_rate in zip(matrix["path"], matrix["bytes_per_s"], strict=True)
        for path, rate in zip(of_path, of_rate, strict=True)
    )
    marks += [Line(f"{UNKNOWN} no rate: the launch took longer than the copy", "dim")] if missing else []
    return marks, Line(f"bytes counted once, on the source's stream, one pair at a time, {spread} samples each")


def _latency(matrix: dict[str, Any], sizes: dict[str, str]) -> list[Line]:
    """The median of all pairs, and the slowest."""
    ids = matrix["devices"]
    found = {
        f"{source} to {ids[to]}": seconds
        for source, of_source in zip(ids, matrix["latency_s"], strict=True)
        for to, seconds in enumerate(of_source)
        if seconds is not None
    }
    if not found:
        return []
    slowest = max(found, key=found.__getitem__)
    typical, most = units.duration(stats.median(list(found.values()))), units.duration(found[slowest])
    return [Line(f"latency ({sizes['latency']}): median {typical}, at most {most} ({slowest})")]


# In the order in which they stand below the devices.
PARTS: tuple[Callable[[Sequence[Measurement]], tuple[list[Block], list[Block]]], ...] = (at_once, together, peer)
