"""`gpucheck bench transfer` as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpucheck import units
from gpucheck.render import (
    transfer_at_once,
    transfer_fit,
    transfer_lines,
    transfer_peer,
    transfer_together,
)
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Column,
    Line,
    advice_line,
    column_of_numbers,
    finding_line,
    table,
)
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.transfer import LinkUnderLoad, TransferResult

_WAYS = transfer_fit.WAYS
# Rows that a flag names one by one; the JSON has all.
MOST_NAMED = 4
# What stands in a device's own section.
_BY_DEVICE = ("transfer", transfer_lines.NAME)
# The other parts, below the devices: each picks its own from all measurements.
BELOW: tuple[Callable[[Sequence[Measurement]], list[Block]], ...] = (
    transfer_at_once.blocks,
    transfer_together.blocks,
    transfer_peer.blocks,
)
_KINDS = (("pageable", "as_called"), ("pinned", "as_called"), ("pinned", "link"))


def blocks(report: Report) -> list[Block]:
    """For each device a table of rates by size and direction, then what its other parts measured; then the findings."""
    laid_out: list[Block] = []
    answers = {entry.device: entry for entry in report.results.get("bench_transfer", ())}
    by_device = [one for one in report.measurements if one.name in _BY_DEVICE]
    for device in dict.fromkeys(measurement.device for measurement in by_device):
        mine = [measurement for measurement in by_device if measurement.device == device]
        answer = answers.get(device.id, TransferResult(device.id))
        laid_out += [Line(_head(device.name or device.id, device.id, answer.link)), Line()]
        laid_out += _copies([one for one in mine if one.name == "transfer"], answer)
        laid_out += transfer_lines.blocks(mine, answer)
    for part in BELOW:
        laid_out += part(report.measurements)
    laid_out += [finding_line(finding) for finding in report.findings]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix]
    return laid_out


def _copies(measurements: Sequence[Measurement], answer: TransferResult) -> list[Block]:
    """The table of copies by size, the line through them and how they were taken; the curve where there is one."""
    if not measurements:
        return []
    told = [_table(measurements, answer), Line(), *transfer_fit.sentences(answer)]
    told += [Line(_method(measurements)), *_flags(measurements), Line()]
    return [*told, *transfer_fit.drawing(measurements)]


def _head(name: str, device_id: str, link: LinkUnderLoad | None) -> str:
    if link is None or device_id == "cpu":
        return f"{name} ({device_id})"
    if link.limit_bytes_per_s is None:
        return f"{name} ({device_id}) · link unknown: {link.unknown_because or 'it was not read under load'}"
    limit = units.byte_rate(link.limit_bytes_per_s)
    # Documents from before the kind was told are of PCIe.
    told = f"PCIe {link.generation} x{link.width}" if link.kind in ("PCIe", None) else link.kind
    return f"{name} ({device_id}) · {told} under load · limit {limit} per direction"


def _table(measurements: Sequence[Measurement], answer: TransferResult) -> Block:
    """Sizes down; for each direction pageable and pinned as called, the gain, and the link by the device's clock."""
    sizes = sorted({one.case["size_bytes"] for one in measurements})
    rows = {
        (one.case["direction"], one.case["host_memory"], one.case["timed"], one.case["size_bytes"]): one
        for one in measurements
    }
    gains = {(gain.direction, gain.size_bytes): gain.gain for gain in answer.gains}
    columns, cells = [Column("size", "left")], [[units.capacity(size) for size in sizes] + ["latency"]]
    for way in dict.fromkeys(one.case["direction"] for one in measurements):
        head = f"{_WAYS[way]}, GB/s"
        for memory, timed in _KINDS:
            found = [rows.get((way, memory, timed, size)) for size in sizes]
            if not any(found):
                continue
            columns.append(Column(f"{head}\n{'link' if timed == 'link' else memory}", keep=6 if timed == "link" else 9))
            head = ""
            cells.append([*_rates(found), _latency(answer, way, memory) if timed == "as_called" else ""])
            if (memory, timed) == ("pinned", "as_called") and any((way, size) in gains for size in sizes):
                columns.append(Column("\ngain", keep=7))
                cells.append([_gain(gains.get((way, size))) for size in sizes] + [""])
    return table(columns, [list(row) for row in zip(*cells, strict=True)])


def _rates(found: Sequence[Measurement | None]) -> list[str]:
    """GB/s; where the call is what takes the time, that time."""
    texts = column_of_numbers([one.rate.median if one and one.rate else None for one in found], 1e9)
    return [
        units.duration(one.time_s.median) if one and one.rate is None and one.time_s else text
        for one, text in zip(found, texts, strict=True)
    ]


def _gain(gain: float | None) -> str:
    return UNKNOWN if gain is None else f"{units.significant(gain, 2)}×"


def _latency(answer: TransferResult, way: str, memory: str) -> str:
    for entry in answer.latencies:
        if (entry.direction, entry.host_memory) == (way, memory):
            return units.duration(entry.time_s)
    return UNKNOWN


def _method(measurements: Sequence[Measurement]) -> str:
    samples = [one.time_s.n for one in measurements if one.time_s]
    spread = f"{min(samples)} to {max(samples)} samples each" if samples else "no samples"
    cold = sum(one.method.cache == "cold" for one in measurements)
    cache = "caches cold" if cold == len(measurements) else f"caches cold in {cold} of {len(measurements)} rows"
    return (
        f"preallocated buffers, {cache}, {spread}; {_memories(measurements)} as called (with the wait for the end)"
        + (", link by the device's own clock" if any(one.case["timed"] == "link" for one in measurements) else "")
        + "; latency: the smallest copy"
        + _node(measurements)
    )


def _node(measurements: Sequence[Measurement]) -> str:
    """Where the buffers lay, for processes that were bound to it: others run anywhere, which is nothing to tell."""
    places = {one.method.numa for one in measurements}
    place = places.pop() if len(places) == 1 else None
    return f"; from {place}" if place is not None and "(" in place else ""


def _memories(measurements: Sequence[Measurement]) -> str:
    return " and ".join(dict.fromkeys(str(one.case["host_memory"]) for one in measurements))


def _flags(measurements: Sequence[Measurement]) -> list[Line]:
    """What the rows say of their own worth, a line for each flag."""
    by_flag: dict[str, list[str]] = {}
    for one in measurements:
        case = one.case
        for flag in one.flags:
            name = f"{units.capacity(case['size_bytes'])} {case['host_memory']} {_WAYS[case['direction']]}"
            by_flag.setdefault(flag, []).append(f"{name} (link)" if case["timed"] == "link" else name)
    total = len(measurements)
    return [
        Line(f"{flag}: {', '.join(names) if len(names) <= MOST_NAMED else f'{len(names)} of {total} rows'}", "dim")
        for flag, names in by_flag.items()
    ]
