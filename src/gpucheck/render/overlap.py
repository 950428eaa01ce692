"""`gpucheck bench overlap` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.links import SHORT_WAYS
from gpucheck.render import measured
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import OverlapResult


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
    filled(Column("notes", "left", keep=7, wraps=True, cropped=14), lambda answer: measured.note_cell(answer.flags)),
)


def page(report: Report) -> Page:
    """For each device what hides in one line, then a row for each case."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    results = report.results.get("bench_overlap", ())
    devices = list(measured.by_device(report.measurements))
    for device, mine in devices:
        found = [entry for entry in results if entry.device == device.id]
        answers += _answer(device, found)
        if found:
            laid_out += [*measured.head(device, several=len(devices) > 1), measured.table_of(found, _COLUMNS)]
        details.append(Line(_method(mine)))
        details += measured.flag_lines((flag, _name(entry)) for entry in found for flag in entry.flags)
    return measured.bench_page(report, answers, laid_out, details)


def _name(entry: OverlapResult) -> str:
    return f"{entry.host_memory} {SHORT_WAYS[entry.direction]}, {entry.streams} stream{'s' * (entry.streams != 1)}"


def _answer(device: DeviceRef, found: Sequence[OverlapResult]) -> list[measured.Answer]:
    """Return how much of a pinned copy on a second stream hides, in the worse direction; without one, of what was
    copied."""
    best = [entry for entry in found if (entry.host_memory, entry.streams) == ("pinned", 2)] or list(found)
    if not best:
        return []
    least = min(best, key=lambda entry: entry.overlap)
    hidden = units.percent(min(max(least.overlap, 0.0), 1.0))
    told = measured.note_cell([flag for flag in least.flags if flag in measured.DOUBTS - measured.OF_A_FINDING]).text
    doubt = f" ({told})" if told else ""
    return [measured.Answer(device, f"{hidden} of a {least.host_memory} copy hides behind compute{doubt}")]


def _method(measurements: Sequence[Measurement]) -> str:
    sizes = " and ".join(dict.fromkeys(units.capacity(row.case["size_bytes"]) for row in measurements))
    computes = [row for row in measurements if row.case["what"] == "compute"]
    dtypes = " and ".join(dict.fromkeys(str(row.method.precision_requested) for row in computes))
    return (
        f"non-blocking copies of {sizes}, enqueued before compute ({dtypes} products) of the same length. Copy, "
        "compute and both are timed in turn on the host's clock, each synchronized. Hidden = (copy + compute - both) "
        f"/ the shorter of the two; the interval covers {measured.covered(measurements)}"
    )
