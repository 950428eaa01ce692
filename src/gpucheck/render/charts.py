"""Curves of a report over time as places on paper, which the page's template draws as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import units
from gpucheck.report.report import Report
from gpucheck.stress.judge import of_bytes

# The paper in its own units. It is no wider than a phone, so that its letters stay readable there.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 10, 34
# Of a chart: as many curves have a colour and a dash of their own; more points than these cannot be seen.
MOST_SERIES, MOST_POINTS = 8, 120
# So many points have a mark each, and a row in the table below the chart.
MOST_MARKS = 24
# On the x axis, labels this far apart do not touch.
_LABEL_APART = 52


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name and its points (x, y), in any order."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point on the paper, or a label on an axis, with its text."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One series on the paper: its line as SVG's `points`, and its marks where they are few."""

    name: str
    points: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over an axis. `x_span` and `y_top` map the paper back to figures, for what is under the pointer."""

    title: str
    x_name: str
    y_name: str
    curves: tuple[Curve, ...]
    x_labels: tuple[Mark, ...]
    y_labels: tuple[Mark, ...]
    x_span: tuple[float, float]
    y_top: float
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y_name: str,
) -> Lines | None:
    """Return the series over a linear x axis and a y axis from 0; None where there is no line to draw.

    Points that have no place there (not finite, below 0) are left out.
    """

    def has_place(point: tuple[float, float]) -> bool:
        x, y = point
        return math.isfinite(x) and 0 <= y < 1e30

    kept = [Series(one.name, _thinned(tuple(filter(has_place, sorted(one.points))))) for one in series]
    kept = [one for one in kept if one.points]
    shown = kept[:MOST_SERIES]
    xs = sorted({x for one in shown for x, _ in one.points})
    if len(xs) < 2:
        return None
    steps = round_steps(max(y for one in shown for _, y in one.points), 5)
    # Time and sizes begin at 0 where the curves nearly do.
    first = 0.0 if 0 < xs[0] < xs[-1] / 4 else xs[0]
    top = steps[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (xs[-1] - first) * (WIDTH - LEFT - RIGHT)
        return round(LEFT + across, 2), round(HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM), 2)

    curves = []
    for one in shown:
        marked = one.points if len(one.points) <= MOST_MARKS else ()
        said = f"{one.name}: " if one.name else ""
        marks = tuple(
            Mark(*place(x, y), f"{said}{units.significant(x)}, {units.significant(y)} {y_name}") for x, y in marked
        )
        drawn = " ".join("{:g},{:g}".format(*place(*point)) for point in one.points)
        curves.append(Curve(one.name, drawn, marks))
    labels = [first, *(step for step in round_steps(xs[-1], 6) if first < step < xs[-1]), xs[-1]]
    heads, rows = _table(shown, xs, x_name)
    return Lines(
        title,
        x_name,
        y_name,
        tuple(curves),
        _apart([Mark(place(x, 0)[0], HEIGHT - BOTTOM, units.significant(x)) for x in labels]),
        tuple(Mark(LEFT, place(xs[0], y)[1], units.significant(y)) for y in steps),
        (first, xs[-1]),
        top,
        heads,
        rows,
        len(kept) - len(shown),
    )


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def round_steps(most: float, wanted: int) -> list[float]:
    """Return round numbers from 0 to at least `most`, no more than `wanted` of them."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / (wanted - 1)))
    step = next(power * step for step in _STEPS if power * step * (wanted - 1) >= most * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step * (1 - 1e-9)) + 1)]


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """The lowest and the highest point of each stretch: what sticks out is kept."""
    if len(points) <= MOST_POINTS:
        return points
    stretches = MOST_POINTS // 2
    kept: dict[tuple[float, float], None] = {}
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept |= dict.fromkeys(sorted(ends))
    return tuple(kept)


def _apart(labels: list[Mark]) -> tuple[Mark, ...]:
    """The ends, and of the labels between them those that do not touch others."""
    shown = [labels[0]]
    for one in labels[1:-1]:
        if one.x - shown[-1].x >= _LABEL_APART and labels[-1].x - one.x >= _LABEL_APART:
            shown.append(one)
    return (*shown, labels[-1])


def _table(
    series: Sequence[Series], xs: Sequence[float], x_name: str
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The figures of a chart: every point where they are few, else what each curve comes to."""
    if len(xs) > MOST_MARKS:
        heads = ("curve", "first", "lowest", "highest", "last")
        ends = [(one.name, [y for _, y in one.points]) for one in series]
        return heads, tuple((name, *map(units.significant, (ys[0], min(ys), max(ys), ys[-1]))) for name, ys in ends)
    at = [dict(one.points) for one in series]
    cells = ((units.significant(x), *(units.significant(ys[x]) if x in ys else "" for ys in at)) for x in xs)
    return (x_name, *(one.name or "value" for one in series)), tuple(cells)


# -- of a report -------------------------------------------------------------------------------------------------------


def of(report: Report) -> list[Lines]:
    """Return what `stress` measured over time, which no table shows."""
    return [chart for chart in _stress(report) if chart is not None]


def _scale(unit: str, largest: float) -> tuple[float, str]:
    """Return one scale for all figures of a chart, and its unit."""
    if unit not in ("B/s", "FLOP/s", "OP/s"):
        return 1.0, unit
    steps = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
    return next(((scale, f"{prefix}{unit}") for scale, prefix in steps if largest >= scale), (1.0, unit))


# What is read of a device over time: its name, unit and scale, and the field of a reading.
_READINGS = (
    ("clock", "MHz", 1e6, "sm_clock_hz"),
    ("temperature", "°C", 1.0, "temperature_celsius"),
    ("power", "W", 1.0, "power_w"),
)


def _over_time(title: str, devices: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[Lines | None]:
    """Clock, heat and power of each device: a reading may be the spread of several, of which the median counts."""
    for name, unit, scale, key in _READINGS:
        series = []
        for device, points in devices:
            read = [(point.at_s, getattr(point, key)) for point in points]
            known = [(at_s, getattr(value, "median", value) / scale) for at_s, value in read if value is not None]
            series.append(Series(device, tuple(known)))
        yield lines(f"{title}: {name}", series, x_name="s", y_name=unit)


def _stress(report: Report) -> Iterator[Lines | None]:
    """stress: the rate of each kind of work, then clock, heat and power, every device over time."""
    result = report.results.get("stress")
    if result is None:
        return
    kinds: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for device in result.devices:
        for point in device.points:
            rate, unit = of_bytes(point.rate.median, point.unit)
            kinds.setdefault((point.kind, unit), {}).setdefault(device.name, []).append((point.at_s, rate))
    for (kind, unit), rates in kinds.items():
        scale, text = _scale(unit, max(rate for points in rates.values() for _, rate in points))
        scaled = [Series(name, tuple((at_s, rate / scale) for at_s, rate in points)) for name, points in rates.items()]
        yield lines(f"stress: {kind}", scaled, x_name="s", y_name=text)
    yield from _over_time("stress", [(device.name, device.points) for device in result.devices])
