"""`gpucheck bench crossover` as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, advice_line, finding_line, table
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report

_COLUMNS = (
    Column("operation", "left"),
    Column("size"),
    Column("CPU"),
    Column("device"),
    Column("ratio", keep=7),
    Column("with copies"),
    Column("ratio so", keep=7),
    Column("rounds", keep=1),
    Column("notes", "left", keep=5),
)
# Who works, and whether the copies count, in the order of the columns.
_CPU, _DEVICE, _COPIES = ("cpu", False), ("device", False), ("device", True)


def blocks(report: Report) -> list[Block]:
    """For each device the crossing of each operation, a row for each size that was tried, then what else was found."""
    laid_out: list[Block] = []
    shown = []
    for device in dict.fromkeys(measurement.device for measurement in report.measurements):
        mine = [measurement for measurement in report.measurements if measurement.device == device]
        answers = [finding for finding in report.findings if finding.evidence.get("device") == device.id]
        shown += answers
        laid_out += [Line(_head(device, mine)), Line(), *map(finding_line, answers), Line()]
        laid_out += [_table(mine), Line(), Line(_method(mine)), Line()]
    rest = [finding for finding in report.findings if finding not in shown]
    laid_out += [finding_line(finding) for finding in rest]
    laid_out += [advice_line(finding.fix) for finding in rest if finding.fix]
    return laid_out


def _head(device: DeviceRef, measurements: Sequence[Measurement]) -> str:
    details = measurements[0].method.details
    threads = details.get("threads")
    cpu = f"{details.get('cpu') or 'the CPU'}{f', {threads} threads' if threads else ''}"
    return f"{device.name or device.id} ({device.id}) against {cpu}"


def _table(measurements: Sequence[Measurement]) -> Block:
    sizes: dict[tuple[str, int], dict[tuple[str, bool], Measurement]] = {}
    for one in measurements:
        case = one.case
        sizes.setdefault((case["operation"], case["size"]), {})[case["side"], case["transfers"]] = one
    order = list(dict.fromkeys(operation for operation, _ in sizes))
    rows = []
    for operation, size in sorted(sizes, key=lambda key: (order.index(key[0]), key[1])):
        sides = sizes[operation, size]
        rows.append(
            [
                operation,
                _size(operation, size),
                _time(sides.get(_CPU)),
                _time(sides.get(_DEVICE)),
                _ratio(sides, _DEVICE),
                _time(sides.get(_COPIES)),
                _ratio(sides, _COPIES),
                str(min(sum(len(run.samples_s) for run in one.runs) for one in sides.values())),
                ", ".join(dict.fromkeys(flag for one in sides.values() for flag in one.flags)),
            ]
        )
    return table(_COLUMNS, rows)


def _size(operation: str, size: int) -> str:
    """`512×512`, and for the others the number: elements and the batch."""
    return f"{size}×{size}" if operation == "matmul" else str(size)


def _time(one: Measurement | None) -> str:
    return UNKNOWN if one is None or one.time_s is None else units.duration(one.time_s.median)


def _ratio(sides: Mapping[tuple[str, bool], Measurement], side: tuple[str, bool]) -> str:
    cpu, device = sides.get(_CPU), sides.get(side)
    if cpu is None or device is None or cpu.time_s is None or device.time_s is None:
        return UNKNOWN
    return f"{units.significant(cpu.time_s.median / device.time_s.median, 2)}×"


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    runs = max(len(one.runs) for one in measurements)
    covers = "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"
    return (
        "float32 on both sides, each call waited for, in turn by the host's clock, caches warm; ratio: the CPU's time "
        "over the device's; with copies: inputs from pageable memory and the result back, in the time; this covers "
        f"{covers}"
    )
