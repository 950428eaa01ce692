"""`gpucheck bench overlap` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.directions import SHORT_WAYS
from gpucheck.render import measured
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.overlap import OverlapResult


def _interval(answer: OverlapResult) -> str:
    if answer.ci_low is None or answer.ci_high is None:
        return UNKNOWN
    return f"{units.percent(answer.ci_low).removesuffix(' %')} to {units.percent(answer.ci_high)}"


_COLUMNS: tuple[ColumnOf[OverlapResult], ...] = (
    filled(Column("host memory", "left"), lambda answer: answer.host_memory),
    filled(Column("streams"), lambda answer: str(answer.streams)),
    filled(Column("direction", "left"), lambda answer: SHORT_WAYS[answer.direction]),
    filled(Column("hidden"), lambda answer: units.percent(answer.overlap)),
    filled(Column("95 % interval", keep=6), _interval),
    filled(Column("copy", keep=5), lambda answer: units.duration(answer.copy_s)),
    filled(Column("compute", keep=4), lambda answer: units.duration(answer.compute_s)),
    filled(Column("both", keep=5), lambda answer: units.duration(answer.both_s)),
    filled(Column("rounds", keep=1), lambda answer: str(answer.rounds)),
    filled(Column("notes", "left", keep=7), lambda answer: ", ".join(answer.flags)),
)


def page(report: Report) -> Page:
    """For each device what hides in one line, then a row for each case."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = report.results.get("bench_overlap", ())
    for device, mine in measured.by_device(report.measurements):
        found = [answer for answer in answers if answer.device == device.id]
        laid_out += [Line(f"{measured.name_of(device)} · {_answer(found)}"), Line()]
        laid_out += [measured.table_of(found, _COLUMNS)]
        details.append(Line(_method(mine)))
    return measured.bench_page(report, ("overlap.pinned",), laid_out, details)


def _answer(found: Sequence[OverlapResult]) -> str:
    """What hides at best: of pinned copies on a second stream."""
    best = [answer for answer in found if (answer.host_memory, answer.streams) == ("pinned", 2)]
    if not best:
        return "copies beside compute"
    hidden = ", ".join(f"{units.percent(answer.overlap)} {SHORT_WAYS[answer.direction]}" for answer in best)
    return f"of a pinned copy on a second stream hides {hidden}"


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    sizes = " and ".join(dict.fromkeys(units.capacity(row.case["size_bytes"]) for row in measurements))
    computes = [row for row in measurements if row.case["what"] == "compute"]
    dtypes = " and ".join(dict.fromkeys(str(row.method.precision_requested) for row in computes))
    return (
        f"non-blocking copies of {sizes}, enqueued before as much compute ({dtypes} products) as takes as long; copy, "
        "compute and both in turn by the host's clock, each waited for; hidden = (copy + compute - both) / the shorter "
        f"of the two; the interval covers {measured.covered(measurements)}"
    )
