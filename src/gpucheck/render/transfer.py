"""`gpucheck bench transfer` as blocks: for each device its copies by size, and the lines of code that copy.

What else is measured (both ways at once, other devices, other nodes) has its tables in `transfer_parts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.directions import SHORT_WAYS
from gpucheck.render import measured, transfer_parts
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, Page, by_column, column_of_numbers
from gpucheck.render.curve import Series, curve
from gpucheck.render.measured import ColumnOf, filled, numbers
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.transfer import LinkUnderLoad, TransferResult

COPY, IDIOM = "transfer", "transfer.idiom"
# Kinds of host memory and of clocks, in the order of the columns.
_KINDS = (("pageable", "as_called"), ("pinned", "as_called"), ("pinned", "link"))
# The fitted line is told of the first of these that there is.
_FITTED = (("pinned", "link"), ("pinned", "as_called"), ("pageable", "as_called"))
# Fewer sizes make no curve: the table shows as much.
LEAST_SIZES = 6
# Filled signs for pinned memory, hollow ones for pageable.
_SERIES = (
    ("host_to_device", "pinned"),
    ("host_to_device", "pageable"),
    ("device_to_host", "pinned"),
    ("device_to_host", "pageable"),
    ("host_to_host", "pageable"),
)


def page(report: Report) -> Page:
    """For each device a table of rates by size and direction, then what its other parts measured."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = {entry.device: entry for entry in report.results.get("bench_transfer", ())}
    for device, mine in measured.by_device([row for row in report.measurements if row.name in (COPY, IDIOM)]):
        answer = answers.get(device.id, TransferResult(device.id))
        laid_out += [Line(f"{measured.name_of(device)}{_link(device.id, answer.link)}"), Line()]
        table, method = copies([row for row in mine if row.name == COPY], answer)
        laid_out += table
        details += method
        laid_out += idioms([row for row in mine if row.name == IDIOM], answer)
    for part in transfer_parts.PARTS:
        laid_out += part(report.measurements)
    return measured.bench_page(report, ("transfer.speed", "transfer.host_to_host"), laid_out, details)


def _link(device_id: str, link: LinkUnderLoad | None) -> str:
    if link is None or device_id == "cpu":
        return ""
    if link.limit_bytes_per_s is None:
        return f" · link unknown: {link.unknown_because or 'it was not read under load'}"
    # Documents from before the kind was told are of PCIe.
    kind = f"PCIe {link.generation} x{link.width}" if link.kind in ("PCIe", None) else link.kind
    return f" · {kind} under load · limit {units.byte_rate(link.limit_bytes_per_s)} per direction"


# -- copies by size ----------------------------------------------------------------------------------------------------


def copies(measurements: Sequence[Measurement], answer: TransferResult) -> tuple[list[Block], list[Block]]:
    """The table of copies by size; the line through them, how they were taken and, where there is one, the curve."""
    if not measurements:
        return [], []
    return [_by_size(measurements, answer)], [
        *fitted(answer),
        Line(_method(measurements)),
        *measured.flag_lines(((flag, _name(row)) for row in measurements for flag in row.flags), len(measurements)),
        *drawing(measurements),
    ]


def _name(row: Measurement) -> str:
    case = row.case
    name = f"{units.capacity(case['size_bytes'])} {case['host_memory']} {SHORT_WAYS[case['direction']]}"
    return f"{name} (link)" if case["timed"] == "link" else name


def _by_size(measurements: Sequence[Measurement], answer: TransferResult) -> Block:
    """Sizes down; for each direction pageable and pinned as called, the gain, and the link by the device's clock."""
    sizes = sorted({row.case["size_bytes"] for row in measurements})
    rows = {
        (row.case["direction"], row.case["host_memory"], row.case["timed"], row.case["size_bytes"]): row
        for row in measurements
    }
    gains = {(gain.direction, gain.size_bytes): gain.gain for gain in answer.gains}
    columns = [(Column("size", "left"), [*map(units.capacity, sizes), "latency"])]
    for way in dict.fromkeys(row.case["direction"] for row in measurements):
        head = f"{SHORT_WAYS[way]}, GB/s"
        for memory, timed in _KINDS:
            found = [rows.get((way, memory, timed, size)) for size in sizes]
            if not any(found):
                continue
            link = timed == "link"
            column = Column(f"{head}\n{'link' if link else memory}", keep=6 if link else 9)
            columns.append((column, [*_rates(found), "" if link else _latency(answer, way, memory)]))
            head = ""
            if (memory, timed) == ("pinned", "as_called") and any((way, size) in gains for size in sizes):
                told = [measured.ratio_text(gains.get((way, size))) for size in sizes]
                columns.append((Column("\ngain", keep=7), [*told, ""]))
    return by_column(columns)


def _rates(found: Sequence[Measurement | None]) -> list[str]:
    """GB/s; where the call is what takes the time, that time."""
    texts = column_of_numbers([measured.median_rate(row) if row else None for row in found], 1e9)
    return [
        measured.time_text(row) if row and row.rate is None and row.time_s else text
        for row, text in zip(found, texts, strict=True)
    ]


def _latency(answer: TransferResult, way: str, memory: str) -> str:
    for entry in answer.latencies:
        if (entry.direction, entry.host_memory) == (way, memory):
            return units.duration(entry.time_s)
    return UNKNOWN


def _method(measurements: Sequence[Measurement]) -> str:
    samples = [row.time_s.n for row in measurements if row.time_s]
    spread = f"{min(samples)} to {max(samples)} samples each" if samples else "no samples"
    memories = " and ".join(dict.fromkeys(str(row.case["host_memory"]) for row in measurements))
    link = ", link by the device's own clock" if any(row.case["timed"] == "link" for row in measurements) else ""
    return (
        f"preallocated buffers, {measured.caches(measurements)}, {spread}; {memories} as called (with the wait for the "
        f"end){link}; latency: the smallest copy{_node(measurements)}"
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


def drawing(measurements: Sequence[Measurement]) -> list[Block]:
    """The rates as called over the size; nothing for a few sizes. A copy without a rate is no point."""
    mine = [row for row in measurements if row.case["timed"] == "as_called"]
    if len({row.case["size_bytes"] for row in mine}) < LEAST_SIZES:
        return []
    series = []
    for way, memory in _SERIES:
        points = [
            (float(row.case["size_bytes"]), row.rate.median / 1e9)
            for row in mine
            if (row.case["direction"], row.case["host_memory"]) == (way, memory) and row.rate is not None
        ]
        if points:
            series.append(Series(f"{SHORT_WAYS[way]} {memory}", tuple(points)))
    drawn = curve(
        series,
        x_name="size",
        y_name="GB/s",
        x_text=lambda size: units.capacity(round(size)),
        height=14,
    )
    return [] if drawn is None else [drawn, Line()]


# -- the lines of code that people write -------------------------------------------------------------------------------


def idioms(measurements: Sequence[Measurement], answer: TransferResult) -> list[Block]:
    """Each line with its time and how many times the raw copy's that is; nothing where there is none."""
    if not measurements:
        return []
    # Such a line goes nowhere: it copies where the tensor is.
    ways = {**SHORT_WAYS, "host_to_host": "on the host"}
    ratios = {tuple(entry.case.items()): entry.times_raw for entry in answer.idioms}
    columns: tuple[ColumnOf[Measurement], ...] = (
        measured.once(Column("", "left", keep=6), lambda row: ways[row.case["direction"]]),
        filled(Column("line of code", "left", wraps=True), lambda row: str(row.method.details["call"])),
        filled(Column("time"), measured.time_text),
        numbers(Column("GB/s", keep=7), measured.median_rate, 1e9),
        filled(Column("of raw", keep=8), lambda row: measured.ratio_text(ratios.get(tuple(row.case.items())))),
        filled(Column("first time", keep=3), _first_call),
        filled(Column("notes", "left", keep=2), lambda row: measured.notes(row, "warm")),
    )
    size = units.capacity(measurements[0].case["size_bytes"])
    head = f"lines that people write, {size}, what they allocate included; raw: between preallocated buffers"
    return [Line(head), Line(), measured.table_of(measurements, columns), Line()]


def _first_call(row: Measurement) -> str:
    first_s = row.method.details.get("first_call_s")
    return UNKNOWN if first_s is None else units.duration(first_s)
