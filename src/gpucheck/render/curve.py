"""A curve drawn with characters: some quantity over another, several series by sign. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpucheck.render.blocks import Drawing

# Each series' mark, and the same in ASCII.
_MARKS = (("●", "o"), ("○", "x"), ("◆", "#"), ("◇", "+"), ("▲", "^"), ("△", "v"))
# Where marks of several series meet.
_SEVERAL = "*"
# Between a series' points; up the y axis, at its labels, in the corner, along the x axis, and at its labels.
_LINES = ("·", "│", "┤", "└", "─", "┴")
_PLAIN_LINES = (".", "|", "|", "+", "-", "+")
# Fewer columns or rows than this show no shape.
LEAST_WIDTH, LEAST_HEIGHT = 24, 4
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
# Of the y axis, at most; one for each two rows at most too.
_MOST_LABELS = 6

_Cells = dict[tuple[int, int], int]
_JOIN, _MEET = -1, -2


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name and its points (x, y), in any order."""

    name: str
    points: tuple[tuple[float, float], ...]


def curve(
    series: Sequence[Series],
    *,
    x_name: str,
    y_name: str,
    x_text: Callable[[float], str] = "{:g}".format,
    width: int = 76,
    height: int = 12,
    log_x: bool = True,
) -> Drawing | None:
    """The series over a logarithmic (or linear) x axis and a y axis from 0; None where there is nothing to draw.

    `width` and `height` are of the whole drawing, in characters. Labels of the x axis stand at points. Raises
    ValueError for a negative y, an x that has no logarithm, and more series than there are signs.
    """
    points = [point for one in series for point in one.points]
    if any(y < 0 for _, y in points) or (log_x and any(x <= 0 for x, _ in points)) or len(series) > len(_MARKS):
        raise ValueError("a curve needs y of 0 or more, for logarithms x above 0, and no more series than signs")
    xs = sorted({x for x, _ in points})
    # The legend above; below, the axis, its labels and its name.
    rows = height - 3 - len(_legend(series, y_name, width, several=len(series) > 1, plain=1))
    if len(xs) < 2 or rows < LEAST_HEIGHT:
        return None
    labels = round_steps(max(y for _, y in points), min(_MOST_LABELS, (rows + 1) // 2))
    margin = max(len(f"{value:g}") for value in labels) + 1
    columns = width - margin - 1
    if columns < LEAST_WIDTH:
        return None
    scale = math.log if log_x else float
    low, high, top = scale(xs[0]), scale(xs[-1]), labels[-1]

    def column(x: float) -> int:
        return round((scale(x) - low) / (high - low) * (columns - 1))

    def row(y: float) -> int:
        return rows - 1 - round(y / top * (rows - 1))

    cells: _Cells = {}
    for number, one in enumerate(series):
        _plot(cells, number, sorted({(column(x), row(y)) for x, y in one.points}))
    texts = {row(value): f"{value:g}" for value in labels}
    several = _MEET in cells.values()
    return Drawing(
        *(
            (
                *_legend(series, y_name, width, several=several, plain=plain),
                *_body(cells, texts, (margin, columns, rows), plain),
                *_x_axis([(column(x), x_text(x)) for x in xs], x_name, (margin, columns), plain),
            )
            for plain in (0, 1)
        )
    )


def _plot(cells: _Cells, number: int, places: Sequence[tuple[int, int]]) -> None:
    """A series' marks, and dots from one to the next where nothing stands yet."""
    for place in places:
        at = place[1], place[0]
        # Its own dots and other series' give way to a mark.
        cells[at] = number if cells.get(at, _JOIN) in (_JOIN, number) else _MEET
    for (x, y), (next_x, next_y) in pairwise(places):
        for between in range(x + 1, next_x):
            at = round(y + (next_y - y) * (between - x) / (next_x - x)), between
            cells.setdefault(at, _JOIN)


def round_steps(most: float, wanted: int) -> list[float]:
    """Round numbers from 0 to at least `most`, no more than `wanted` of them."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / (wanted - 1)))
    step = next(power * step for step in _STEPS if power * step * (wanted - 1) >= most * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step * (1 - 1e-9)) + 1)]


def _legend(series: Sequence[Series], y_name: str, width: int, *, several: bool, plain: int) -> list[str]:
    """The y axis' name and each series' sign and name, on as many lines as they need."""
    entries = [f"{_MARKS[number][plain]} {one.name}" for number, one in enumerate(series)]
    lines = [y_name]
    for entry in [*entries, *([f"{_SEVERAL} several"] if several else [])]:
        if len(lines[-1]) + 3 + len(entry) > width and lines[-1] != y_name:
            lines.append(" " * len(y_name))
        lines[-1] += f"   {entry}"
    return lines


def _body(cells: _Cells, labels: dict[int, str], size: tuple[int, int, int], plain: int) -> list[str]:
    """The y axis with its labels by row, and what stands right of it."""
    margin, columns, rows = size
    dot, up, label, _, _, _ = _PLAIN_LINES if plain else _LINES
    signs = {_JOIN: dot, _MEET: _SEVERAL, **{number: marks[plain] for number, marks in enumerate(_MARKS)}}
    lines = []
    for row in range(rows):
        inside = "".join(signs[cells[row, place]] if (row, place) in cells else " " for place in range(columns))
        lines.append(f"{labels.get(row, ''):>{margin}}{label if row in labels else up}{inside}".rstrip())
    return lines


def _x_axis(texts: Sequence[tuple[int, str]], name: str, size: tuple[int, int], plain: int) -> list[str]:
    margin, columns = size
    _, _, _, corner, along, tick = _PLAIN_LINES if plain else _LINES
    shown = _fitting(texts, columns)
    axis = [tick if any(place == at for at, _, _ in shown) else along for place in range(columns)]
    below = [" "] * columns
    for _, start, text in shown:
        below[start : start + len(text)] = text
    lines = [" " * margin + corner + "".join(axis), " " * (margin + 1) + "".join(below)]
    return [line.rstrip() for line in (*lines, f"{name:>{margin + 1 + columns}}")]


def _fitting(texts: Sequence[tuple[int, str]], columns: int) -> list[tuple[int, int, str]]:
    """The labels that stand two spaces apart: the ends first, then from the left. Place, start and text of each."""
    placed = [(at, min(max(at - len(text) // 2, 0), columns - len(text)), text) for at, text in texts]
    last = placed[-1]
    shown = [last]
    end = -2
    for at, start, text in placed[:-1]:
        if start >= end + 2 and start + len(text) + 2 <= last[1]:
            shown.append((at, start, text))
            end = start + len(text)
    return sorted(shown)
