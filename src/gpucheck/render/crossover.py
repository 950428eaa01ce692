"""`gpucheck bench crossover` as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.render import measured
from gpucheck.render.blocks import Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report

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

    @property
    def size_text(self) -> str:
        """`512×512`, and for the others the number: elements and the batch."""
        return f"{self.size}×{self.size}" if self.operation == "matmul" else str(self.size)

    @property
    def rounds(self) -> int:
        """How often each side ran."""
        return min(sum(len(run.samples_s) for run in side.runs) for side in self.sides.values())

    def speedup(self, side: Side) -> float | None:
        """The CPU's time over this side's; None where one of the two is not known."""
        cpu, other = self.sides.get(_CPU), self.sides.get(side)
        if cpu is None or other is None or cpu.time_s is None or other.time_s is None:
            return None
        return cpu.time_s.median / other.time_s.median


_COLUMNS: tuple[ColumnOf[_Raced], ...] = (
    filled(Column("operation", "left"), lambda row: row.operation),
    filled(Column("size"), lambda row: row.size_text),
    filled(Column("CPU"), lambda row: measured.time_text(row.sides.get(_CPU))),
    filled(Column("device"), lambda row: measured.time_text(row.sides.get(_DEVICE))),
    filled(Column("ratio", keep=7), lambda row: measured.ratio_text(row.speedup(_DEVICE))),
    filled(Column("with copies"), lambda row: measured.time_text(row.sides.get(_COPIES))),
    filled(Column("ratio so", keep=7), lambda row: measured.ratio_text(row.speedup(_COPIES))),
    filled(Column("rounds", keep=1), lambda row: str(row.rounds)),
    filled(
        Column("notes", "left", keep=5),
        lambda row: ", ".join(dict.fromkeys(flag for side in row.sides.values() for flag in side.flags)),
    ),
)


def page(report: Report) -> Page:
    """For each device the crossing of each operation, and a row for each size that was tried."""
    laid_out: list[Block] = []
    details: list[Block] = []
    for device, mine in measured.by_device(report.measurements):
        laid_out += [Line(_head(device, mine)), Line(), measured.table_of(_raced(mine), _COLUMNS)]
        details.append(Line(_method(mine)))
    answers = [finding.id for finding in report.findings if finding.evidence.get("device")]
    return measured.bench_page(report, list(dict.fromkeys(answers)), laid_out, details)


def _head(device: DeviceRef, measurements: Sequence[Measurement]) -> str:
    details = measurements[0].method.details
    threads = details.get("threads")
    cpu = f"{details.get('cpu') or 'the CPU'}{f', {threads} threads' if threads else ''}"
    return f"{measured.name_of(device)} against {cpu}"


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


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    return (
        "float32 on both sides, each call waited for, in turn by the host's clock, caches warm; ratio: the CPU's time "
        "over the device's; with copies: inputs from pageable memory and the result back, in the time; this covers "
        f"{measured.covered(measurements)}"
    )
