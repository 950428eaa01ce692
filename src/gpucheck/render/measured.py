"""Tables of what was measured: a column and what stands in it are one row here; and the lines around such tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from gpucheck import units
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    Table,
    answer,
    by_column,
    column_of_numbers,
)
from gpucheck.report.finding import Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report

Row = TypeVar("Row")
# Rows that a flag names one by one where there are many; the JSON has all.
MOST_NAMED = 4
# A finding that says more than how fast it is stands on its own below.
_ANSWERS: tuple[Verdict, ...] = ("pass", "info")


@dataclass(frozen=True, slots=True)
class ColumnOf(Generic[Row]):
    """A column of a table, and the cells that it has for these rows."""

    column: Column
    cells: Callable[[Sequence[Row]], Sequence[str | Cell]]


def filled(column: Column, text: Callable[[Row], str | Cell]) -> ColumnOf[Row]:
    """A column whose cells come each from its own row."""
    return ColumnOf(column, lambda rows: [text(row) for row in rows])


def once(column: Column, text: Callable[[Row], str]) -> ColumnOf[Row]:
    """A column that names a group of rows: where the row above has the same, the cell is empty."""

    def cells(rows: Sequence[Row]) -> list[str]:
        texts = [text(row) for row in rows]
        return ["" if before == own else own for before, own in zip(["", *texts], texts, strict=False)]

    return ColumnOf(column, cells)


def numbers(column: Column, value: Callable[[Row], float | None], scale: float = 1.0) -> ColumnOf[Row]:
    """A column of numbers with the same precision down the column."""
    return ColumnOf(column, lambda rows: column_of_numbers([value(row) for row in rows], scale))


def table_of(rows: Sequence[Row], columns: Iterable[ColumnOf[Row]]) -> Table:
    """A table with a line for each row."""
    return by_column([(each.column, each.cells(rows)) for each in columns])


# -- what every measurement has ----------------------------------------------------------------------------------------


def median_rate(measurement: Measurement) -> float | None:
    """Its work per second; None where it has no rate."""
    return measurement.rate.median if measurement.rate else None


def rates(unit: str, scale: float = 1e9, *, percentiles_keep: int) -> tuple[ColumnOf[Measurement], ...]:
    """The columns of the median rate and of its slow and fast ends, which stay as `percentiles_keep` says."""
    return (
        numbers(Column(unit), median_rate, scale),
        numbers(Column("p05", keep=percentiles_keep), lambda row: row.rate.p05 if row.rate else None, scale),
        numbers(Column("p95", keep=percentiles_keep), lambda row: row.rate.p95 if row.rate else None, scale),
    )


def time_text(measurement: Measurement | None) -> str:
    """The time of a call."""
    if measurement is None or measurement.time_s is None:
        return UNKNOWN
    return units.duration(measurement.time_s.median)


def samples_text(measurement: Measurement) -> str:
    """How many windows were timed."""
    return UNKNOWN if measurement.time_s is None else str(measurement.time_s.n)


def notes(measurement: Measurement, unusual_cache: Literal["warm", "cold"]) -> str:
    """What the row says of its own worth, and the state of the caches where that is not the table's usual one."""
    cache = (unusual_cache,) if measurement.method.cache == unusual_cache else ()
    return ", ".join((*cache, *measurement.flags))


def ratio_text(ratio: float | None, digits: int = 2) -> str:
    """`1.9×`."""
    return UNKNOWN if ratio is None else f"{units.significant(ratio, digits)}×"


def flop_scale(fastest: float) -> tuple[float, str]:
    """One scale for a column of FLOP/s, and its prefix: a CPU reaches a hundredth of what a GPU does."""
    return (1e12, "T") if fastest >= 1e12 else (1e9, "G")


# -- the lines around a table ------------------------------------------------------------------------------------------


def by_device(measurements: Sequence[Measurement]) -> Iterator[tuple[DeviceRef, list[Measurement]]]:
    """Each device with its measurements, in the order of the first of each."""
    for device in dict.fromkeys(row.device for row in measurements):
        yield device, [row for row in measurements if row.device == device]


def name_of(device: DeviceRef) -> str:
    """The device as a head has it: its name and its id."""
    return f"{device.name or device.id} ({device.id})"


def bench_page(report: Report, answers: Sequence[str], body: Sequence[Block], details: Sequence[Block] = ()) -> Page:
    """A benchmark's page: the first line is the finding that answers, by the ids in `answers`, and on which device.

    Of several devices each has its answer in a line of its own.
    """
    told = [one for name in answers for one in report.findings if one.id == name and one.verdict in _ANSWERS]
    names = {row.device.id: name_of(row.device) for row in report.measurements}
    lines = []
    for one in told:
        text = f"{one.title}: {one.message}" if one.message else one.title
        lines.append(f"{text} · {names[one.device]}" if one.device in names else text)
    first = lines[0] if lines else f"{report.command}: nothing was measured"
    rest = [Line(f"  {line}") for line in lines[1:]]
    findings = [one for one in report.findings if one not in told]
    return Page(answer(report.summary.verdict, first), [*rest, *([Line()] if rest else []), *body], details, findings)


def timed_by(measurements: Sequence[Measurement]) -> str:
    """By which clocks, and for how long in all."""
    clocks = " and ".join(dict.fromkeys(row.method.clock for row in measurements))
    seconds = sum(sum(run.samples_s) for row in measurements for run in row.runs)
    return f"timed by {clocks} for {units.duration(seconds)}"


def caches(measurements: Sequence[Measurement]) -> str:
    """In how many rows the caches were cold."""
    cold = sum(row.method.cache == "cold" for row in measurements)
    return "caches cold" if cold == len(measurements) else f"caches cold in {cold} of {len(measurements)} rows"


def covered(measurements: Sequence[Measurement]) -> str:
    """What a spread or an interval speaks for."""
    runs = max(len(row.runs) for row in measurements)
    return "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"


def flag_lines(flagged: Iterable[tuple[str, str]], of_rows: int | None = None) -> list[Line]:
    """A line for each flag of these pairs (flag, row) with the rows that have it.

    Where the table has `of_rows` rows, more than a few of them are counted.
    """
    by_flag: dict[str, list[str]] = {}
    for flag, row in flagged:
        by_flag.setdefault(flag, []).append(row)
    return [
        Line(
            f"{flag}: {', '.join(names)}"
            if of_rows is None or len(names) <= MOST_NAMED
            else f"{flag}: {len(names)} of {of_rows} rows",
            "dim",
        )
        for flag, names in by_flag.items()
    ]
