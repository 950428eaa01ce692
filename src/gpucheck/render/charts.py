"""Curves and bars of a report as places on paper, which the page's template draws as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.render import batch_size, run
from gpucheck.render.curve import Series, round_steps
from gpucheck.render.measured import short_name
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.stress.judge import of_bytes

# The paper in its own units. It is no wider than a phone, so that its letters stay readable there.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 10, 34
# Of a chart: as many curves have a colour and a dash of their own; more points than these cannot be seen.
MOST_SERIES, MOST_POINTS, MOST_BARS = 8, 120, 30
# So many points have a mark each, and a row in the table below the chart.
MOST_MARKS = 24
# On the x axis, labels this far apart do not touch.
_LABEL_APART = 52
Text = Callable[[float], str]


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
    log_x: bool
    y_top: float
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0
    kind: str = "lines"


@dataclass(frozen=True, slots=True)
class Bar:
    """A named length: `share` (0 to 100) of the longest."""

    name: str
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Lengths below each other."""

    title: str
    name: str
    value: str
    bars: tuple[Bar, ...]
    left_out: int = 0
    kind: str = "bars"


Chart = Lines | Bars


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    y_name: str,
    x_text: Text = units.significant,
    log_x: bool = False,
) -> Lines | None:
    """The series over a linear or logarithmic x axis and a y axis from 0; None where there is no line to draw.

    Points that have no place there (not finite, below 0, no logarithm) are left out.
    """

    def has_place(point: tuple[float, float]) -> bool:
        x, y = point
        return math.isfinite(x) and 0 <= y < 1e30 and (x > 0 or not log_x)

    kept = [Series(one.name, _thinned(tuple(filter(has_place, sorted(one.points))))) for one in series]
    kept = [one for one in kept if one.points]
    shown = kept[:MOST_SERIES]
    xs = sorted({x for one in shown for x, _ in one.points})
    if len(xs) < 2:
        return None
    steps = round_steps(max(y for one in shown for _, y in one.points), 5)
    scale: Callable[[float], float] = math.log10 if log_x else float
    # Time and sizes begin at 0 where the curves nearly do.
    first = 0.0 if not log_x and 0 < xs[0] < xs[-1] / 4 else xs[0]
    low, high, top = scale(first), scale(xs[-1]), steps[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return round(LEFT + across, 2), round(HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM), 2)

    curves = []
    for one in shown:
        marked = one.points if len(one.points) <= MOST_MARKS else ()
        said = f"{one.name}: " if one.name else ""
        marks = tuple(Mark(*place(x, y), f"{said}{x_text(x)}, {units.significant(y)} {y_name}") for x, y in marked)
        drawn = " ".join("{:g},{:g}".format(*place(*point)) for point in one.points)
        curves.append(Curve(one.name, drawn, marks))
    if log_x:
        labels = xs if len(xs) <= MOST_MARKS else [first, math.sqrt(first * xs[-1]), xs[-1]]
    else:
        labels = [first, *(step for step in round_steps(xs[-1], 6) if first < step < xs[-1]), xs[-1]]
    heads, rows = _table(shown, xs, x_name, x_text)
    return Lines(
        title,
        x_name,
        y_name,
        tuple(curves),
        _apart([Mark(place(x, 0)[0], HEIGHT - BOTTOM, x_text(x)) for x in labels]),
        tuple(Mark(LEFT, place(xs[0], y)[1], units.significant(y)) for y in steps),
        (first, xs[-1]),
        log_x,
        top,
        heads,
        rows,
        len(kept) - len(shown),
    )


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
    series: Sequence[Series], xs: Sequence[float], x_name: str, x_text: Text
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The figures of a chart: every point where they are few, else what each curve comes to."""
    if len(xs) > MOST_MARKS:
        heads = ("curve", "first", "lowest", "highest", "last")
        ends = [(one.name, [y for _, y in one.points]) for one in series]
        return heads, tuple((name, *map(units.significant, (ys[0], min(ys), max(ys), ys[-1]))) for name, ys in ends)
    at = [dict(one.points) for one in series]
    cells = ((x_text(x), *(units.significant(ys[x]) if x in ys else "" for ys in at)) for x in xs)
    return (x_name, *(one.name or "value" for one in series)), tuple(cells)


def bars(title: str, name: str, value: str, lengths: Sequence[tuple[str, float]], text: Text) -> Bars | None:
    """Lengths as they come; None where there is none above 0."""
    known = [(label, length) for label, length in lengths if math.isfinite(length) and length >= 0]
    shown = known[:MOST_BARS]
    longest = max((length for _, length in shown), default=0.0)
    if not longest:
        return None
    drawn = tuple(Bar(label, round(100 * length / longest, 2), text(length)) for label, length in shown)
    return Bars(title, name, value, drawn, len(known) - len(shown))


# -- of a report -------------------------------------------------------------------------------------------------------


def of(report: Report) -> list[Chart]:
    """Every chart that the document has data for."""
    charts = [*_over_size(report.measurements), *_products(report.measurements), *_crossover(report.measurements)]
    charts += _batch_sizes(report)
    for one in report.results.get("bench_matmul_sustained", ()):
        charts += _over_time(f"{one.dtype} {one.m}×{one.n}×{one.k} sustained", [(one.device, one.readings)])
    charts += [*_stress(report), *_run(report), *_ranks(report)]
    return [chart for chart in charts if chart is not None]


def _grouped(rows: Sequence[Measurement], *keys: str) -> Iterator[tuple[DeviceRef, str, str, list[Measurement]]]:
    """Rows with a rate and all of these numbers in their case: by device, name and unit."""
    groups: dict[tuple[DeviceRef, str, str], list[Measurement]] = {}
    for row in rows:
        if row.rate is not None and all(_is_number(row.case.get(key)) for key in keys):
            groups.setdefault((row.device, row.name, row.rate.unit), []).append(row)
    for (device, name, unit), mine in groups.items():
        yield device, name, unit, mine


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30


def _titled(what: str, device: DeviceRef) -> str:
    return f"{what}, {short_name(device)} ({device.id})" if device.name else f"{what}, {device.id}"


def _scale(unit: str, largest: float) -> tuple[float, str]:
    """One scale for all figures of a chart, and its unit."""
    if unit not in ("B/s", "FLOP/s", "OP/s"):
        return 1.0, unit
    steps = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
    return next(((scale, f"{prefix}{unit}") for scale, prefix in steps if largest >= scale), (1.0, unit))


def _series_of(rows: Sequence[Measurement], x_key: str, y_of: Callable[[Measurement], float]) -> list[Series]:
    """A series for each case that differs in more than the x axis."""
    cases: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        rest = ((key, value) for key, value in row.case.items() if key != x_key and value is not False)
        words = (value if isinstance(value, str) else key if value is True else f"{key} {value}" for key, value in rest)
        cases.setdefault(" ".join(words).replace("_", " "), []).append((float(row.case[x_key]), y_of(row)))
    return [Series(name, tuple(points)) for name, points in cases.items()]


def _over_size(rows: Sequence[Measurement]) -> Iterator[Chart | None]:
    for device, name, unit, mine in _grouped(rows, "size_bytes"):
        scale, text = _scale(unit, max(map(judging.rate, mine)))
        yield lines(
            _titled(f"{name}: rate over size", device),
            _series_of(mine, "size_bytes", lambda row, scale=scale: judging.rate(row) / scale),  # type: ignore[misc]
            x_name="size",
            y_name=text,
            x_text=lambda size: units.capacity(round(size)),
            log_x=True,
        )


def _products(rows: Sequence[Measurement]) -> Iterator[Chart | None]:
    for device, name, unit, mine in _grouped(rows, "m", "n", "k"):
        shapes = [
            (
                f"{row.case.get('dtype')} {row.case['m']}×{row.case['n']}×{row.case['k']}, {row.method.cache}",
                judging.rate(row),
            )
            for row in mine
        ]
        yield bars(
            _titled(f"{name}: rate by shape", device),
            "product",
            unit,
            shapes,
            lambda rate, unit=unit: units.flop_rate(rate, unit),  # type: ignore[misc]
        )


def _crossover(rows: Sequence[Measurement]) -> Iterator[Chart | None]:
    mine = [row for row in rows if row.time_s is not None and _is_number(row.case.get("size")) and "side" in row.case]
    for operation in dict.fromkeys(str(row.case.get("operation")) for row in mine):
        same = [row for row in mine if str(row.case.get("operation")) == operation]
        yield lines(
            f"{operation}: time over size",
            _series_of(same, "size", lambda row: row.time_s.median * 1e3 if row.time_s else 0.0),
            x_name="size",
            y_name="ms",
            log_x=True,
        )


def _batch_sizes(report: Report) -> Iterator[Chart | None]:
    several, one = report.results.get("find_batch_size_devices"), report.results.get("find_batch_size")
    found: Sequence[FoundBatchSize] = several.devices if several is not None else [one] if one is not None else []
    for each in found:
        memory, speeds = batch_size.series_of(each)
        size, rate = (each.axis_name, f"{each.axis_name}/s") if each.axis_name else ("batch size", "samples/s")
        whole: Text = "{:.0f}".format
        for title, series, name in (("peak memory", memory[0], memory[1]), ("throughput", [speeds], rate)):
            yield lines(_titled(f"{title} by {size}", each.device), series, x_name=size, y_name=name, x_text=whole)


# What is read of a device over time: its name, unit and scale, and the field of a reading.
_READINGS = (
    ("clock", "MHz", 1e6, "sm_clock_hz"),
    ("temperature", "°C", 1.0, "temperature_celsius"),
    ("power", "W", 1.0, "power_w"),
)


def _over_time(title: str, devices: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[Chart | None]:
    """Clock, heat and power of each device: a reading may be the spread of several, of which the median counts."""
    for name, unit, scale, key in _READINGS:
        series = []
        for device, points in devices:
            read = [(point.at_s, getattr(point, key)) for point in points]
            known = [(at_s, getattr(value, "median", value) / scale) for at_s, value in read if value is not None]
            series.append(Series(device, tuple(known)))
        yield lines(f"{title}: {name}", series, x_name="s", y_name=unit)


def _stress(report: Report) -> Iterator[Chart | None]:
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


def _run(report: Report) -> Iterator[Chart | None]:
    """run and run --dry: what the time went to, the lines that wait, and those that hold memory."""
    result, dry = report.results.get("run"), report.results.get("run_dry")
    if result is not None:
        if result.shares is not None:
            parts = ("data", "copies", "waits", "rest")
            shares = [(name, getattr(result.shares, name)) for name in parts]
            yield bars("run: where the time goes", "part", "share", shares, units.percent)
        waits = [(_place(one.file, one.line, run.NAMES.get(one.kind, one.kind)), one.time_s) for one in result.lines]
        yield bars("run: waits and copies by line", "line", "time", waits, units.duration)
        if result.traced is not None:
            held = [(_place(one.file, one.line, one.phase), float(one.peak_bytes)) for one in result.traced.lines]
            yield bars("run: memory at the peak by line", "line", "memory", held, units.capacity)
    if dry is not None and dry.memory is not None:
        held = [(f"{one.place or 'no line'} ({one.phase})", float(one.bytes)) for one in dry.memory.peak.held]
        yield bars("run --dry: memory at the peak by line", "line", "memory", held, units.capacity)


def _ranks(report: Report) -> Iterator[Chart | None]:
    """run under a launcher: when each rank arrives at collectives, after the first, and how often it is the last."""
    answer = to_json(dict(report.results).get("ranks"))
    if answer is None:
        return
    names = {
        one["rank"]: f"rank {one['rank']} ({', '.join(filter(None, (one['host'], one['device'])))})"
        for one in answer["ranks"]
    }
    late = [(names[one["rank"]], one["late_s"]) for one in answer["ranks"] if one["late_s"] is not None]
    first = min((late_s for _, late_s in late), default=0.0)
    after = sorted(((name, late_s - first) for name, late_s in late), key=lambda row: -row[1])
    yield bars("ranks: arrival after the first, mean of a step", "rank", "later by", after, units.duration)
    last = [(names[one["rank"]], one["last_share"]) for one in answer["ranks"] if one["last_share"] is not None]
    last.sort(key=lambda row: -row[1])
    yield bars("ranks: share of steps in which it is last", "rank", "share", last, units.percent)


def _place(file: str, line: int, what: str) -> str:
    return f"{file}:{line} ({what})"
