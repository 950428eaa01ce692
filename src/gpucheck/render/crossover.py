"""`gpucheck bench crossover` as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.bench import rounds
from gpucheck.bench.crossover.judge import short_text, size_text
from gpucheck.render import measured
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.render.text import UNKNOWN, Block, Column, Line, Page
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import CrossoverResult

# Who works, and whether the copies count.
Side = tuple[str, bool]
_CPU: Side = ("cpu", False)
_DEVICE: Side = ("device", False)
_COPIES: Side = ("device", True)


@dataclass(frozen=True, slots=True)
class _Raced:
    """An operation at one size: what was measured of each side."""

    operation: str
    size: int
    sides: Mapping[Side, Measurement]

    def speedup(self, side: Side) -> float | None:
        """The CPU's time over this side's, round by round as the finding has it; None where one is not known."""
        cpu, other = self.sides.get(_CPU), self.sides.get(side)
        if cpu is None or other is None or cpu.time_s is None or other.time_s is None:
            return None
        paired = rounds.ratio(cpu.runs, other.runs)
        return cpu.time_s.median / other.time_s.median if paired is None else paired.median


_COLUMNS: tuple[ColumnOf[_Raced], ...] = (
    filled(Column("operation", "left"), lambda row: row.operation),
    filled(Column("size"), lambda row: size_text(row.operation, row.size)),
    filled(Column("CPU"), lambda row: measured.time_text(row.sides.get(_CPU))),
    filled(Column("GPU"), lambda row: measured.time_text(row.sides.get(_DEVICE))),
    filled(Column("ratio", keep=7), lambda row: measured.ratio_text(row.speedup(_DEVICE))),
    filled(Column("with copies"), lambda row: measured.time_text(row.sides.get(_COPIES))),
    filled(Column("ratio", keep=7), lambda row: measured.ratio_text(row.speedup(_COPIES))),
    filled(
        Column("rounds", keep=1),
        lambda row: str(min(sum(len(run.samples_s) for run in side.runs) for side in row.sides.values())),
    ),
    measured.notes_column(
        5, lambda row: measured.note_cell([flag for side in row.sides.values() for flag in side.flags])
    ),
)


def page(report: Report) -> Page:
    """For each device the crossing of each operation; every size that was tried stands with the details."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    results = report.results.get("bench_crossover", ())
    devices = list(measured.by_device(report.measurements))
    for device, mine in devices:
        found = [entry for entry in results if entry.device == device.id]
        laid_out += measured.head(device, several=len(devices) > 1)
        if found:
            answers.append(measured.Answer(device, _answer(found)))
            laid_out.append(measured.table_of(found, _CROSSINGS))
        details += [*measured.head(device, several=len(devices) > 1), measured.table_of(_raced(mine), _COLUMNS)]
        named = measured.flags_of(mine, lambda row: f"{row.case['operation']} {row.case['size']} {row.case['side']}")
        known = mine[0].method.details
        cpu = f"{known.get('cpu') or 'CPU'}{f' (threads: {threads})' if (threads := known.get('threads')) else ''}"
        method = (
            f"against {cpu}. Both sides use float32 and are timed in turn on the host's clock, each call synchronized, "
            "caches warm. Ratio: the CPU's time over the GPU's, round by round; with copies: inputs from pageable "
            f"memory and the result back; this covers {measured.covered(mine)}"
        )
        details += [Line(method), *measured.flag_lines(named, len(mine))]
    return measured.bench_page(report, answers, laid_out, details)


def _answer(found: Sequence[CrossoverResult]) -> str:
    """`GPU pays from matmul 512×512, training 8; not elementwise`, its copies counted where they were timed."""
    counted = [entry for entry in found if entry.transfers] or found
    pays = [
        f"{entry.operation} {short_text(entry.operation, entry.device_faster_from)}"
        for entry in counted
        if entry.device_faster_from is not None
    ]
    # At the sizes tried, which the table tells.
    slower = [entry.operation for entry in counted if entry.device_faster_from is None]
    if not pays:
        return f"GPU does not pay for {', '.join(slower)}"
    return f"GPU pays from {', '.join(pays)}" + (f"; not {', '.join(slower)}" if slower else "")


def _size(entry: CrossoverResult, size: int | None) -> str:
    return UNKNOWN if size is None else short_text(entry.operation, size)


def _slower(entry: CrossoverResult) -> str:
    """Where the device did not win: why sizes stopped growing."""
    if entry.device_faster_from is not None:
        return ""
    stopped = {"time": "out of time", "memory": "out of memory"}.get(entry.ended_by or "", entry.ended_by)
    return f"no gain; {stopped}" if stopped else "no gain"


# Each with what its sizes count.
OPERATIONS = {"matmul": "matmul, N×N", "elementwise": "elementwise, elements", "training": "training, batch size"}

_CROSSINGS: tuple[ColumnOf[CrossoverResult], ...] = (
    measured.once(Column("operation", "left"), lambda entry: OPERATIONS.get(entry.operation, entry.operation)),
    filled(Column("copies", "left"), lambda entry: "included" if entry.transfers else "excluded"),
    filled(Column("CPU faster\nup to", keep=6), lambda entry: _size(entry, entry.cpu_faster_up_to)),
    filled(Column("GPU faster\nfrom"), lambda entry: _size(entry, entry.device_faster_from)),
    filled(Column("largest\ntried", keep=5), lambda entry: short_text(entry.operation, entry.largest)),
    filled(
        Column("GPU speed-up", "left", keep=7),
        lambda entry: (
            ""
            if entry.speedup is None
            else f"{measured.ratio_text(entry.speedup.ratio)} at {size_text(entry.operation, entry.speedup.size)}"
        ),
    ),
    filled(Column("", "left", keep=4), _slower),
)


def _raced(measurements: Sequence[Measurement]) -> list[_Raced]:
    """Operations in the order of their first row, and the sizes of each from the smallest on."""
    sizes: dict[str, dict[int, dict[Side, Measurement]]] = {}
    for row in measurements:
        case = row.case
        sides = sizes.setdefault(case["operation"], {}).setdefault(case["size"], {})
        sides[case["side"], case["transfers"]] = row
    return [
        _Raced(operation, size, sides) for operation, found in sizes.items() for size, sides in sorted(found.items())
    ]
