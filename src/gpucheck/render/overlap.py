"""`gpucheck bench overlap` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, advice_line, finding_line, table
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.overlap import OverlapResult

_WAYS = {"host_to_device": "to device", "device_to_host": "to host"}
_COLUMNS = (
    Column("host memory", "left"),
    Column("streams"),
    Column("direction", "left"),
    Column("hidden"),
    Column("95 % interval", keep=6),
    Column("copy", keep=5),
    Column("compute", keep=4),
    Column("both", keep=5),
    Column("rounds", keep=1),
    Column("notes", "left", keep=7),
)


def blocks(report: Report) -> list[Block]:
    """For each device what hides in one line, then a row for each case; then what was found."""
    laid_out: list[Block] = []
    answers = report.results.get("bench_overlap", ())
    for device in dict.fromkeys(measurement.device for measurement in report.measurements):
        mine = [measurement for measurement in report.measurements if measurement.device == device]
        found = [answer for answer in answers if answer.device == device.id]
        laid_out += [Line(f"{device.name or device.id} ({device.id}) · {_answer(found)}"), Line()]
        laid_out += [_table(found), Line(), Line(_method(mine)), Line()]
    laid_out += [finding_line(finding) for finding in report.findings]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix]
    return laid_out


def _answer(found: Sequence[OverlapResult]) -> str:
    """What hides at best: of pinned copies on a second stream."""
    best = [one for one in found if (one.host_memory, one.streams) == ("pinned", 2)]
    if not best:
        return "copies beside compute"
    told = ", ".join(f"{units.percent(one.overlap)} {_WAYS[one.direction]}" for one in best)
    return f"of a pinned copy on a second stream hides {told}"


def _table(found: Sequence[OverlapResult]) -> Block:
    rows = [
        [
            one.host_memory,
            str(one.streams),
            _WAYS[one.direction],
            units.percent(one.overlap),
            UNKNOWN
            if one.ci_low is None or one.ci_high is None
            else f"{units.percent(one.ci_low).removesuffix(' %')} to {units.percent(one.ci_high)}",
            units.duration(one.copy_s),
            units.duration(one.compute_s),
            units.duration(one.both_s),
            str(one.rounds),
            ", ".join(one.flags),
        ]
        for one in found
    ]
    return table(_COLUMNS, rows)


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    sizes = " and ".join(dict.fromkeys(units.capacity(one.case["size_bytes"]) for one in measurements))
    computes = [one for one in measurements if one.case["what"] == "compute"]
    dtypes = " and ".join(dict.fromkeys(str(one.method.precision_requested) for one in computes))
    runs = max(len(one.runs) for one in measurements)
    covers = "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"
    return (
        f"non-blocking copies of {sizes}, enqueued before as much compute ({dtypes} products) as takes as long; copy, "
        "compute and both in turn by the host's clock, each waited for; hidden = (copy + compute - both) / the shorter "
        f"of the two; the interval covers {covers}"
    )
