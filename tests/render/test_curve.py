"""Curves drawn with characters, and what becomes of a drawing on a narrow screen, in ASCII and in Markdown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpucheck.render import terminal
from gpucheck.render.blocks import Drawing, Line
from gpucheck.render.curve import Series, curve
from gpucheck.render.text import markdown

RISING = Series("pinned", ((1, 10.0), (10, 20.0), (100, 40.0), (1000, 40.0)))
FLAT = Series("pageable", ((1, 10.0), (10, 10.0), (100, 10.0), (1000, 10.0)))


def drawn(*series: Series, width: int = 36, height: int = 12, **more: object) -> Drawing:
    made = curve(series, x_name="size", y_name="GB/s", width=width, height=height, **more)  # type: ignore[arg-type]
    assert made is not None
    return made


def test_two_series_over_a_logarithmic_axis() -> None:
    assert drawn(RISING, FLAT).lines == (
        "GB/s   ● pinned   ○ pageable",
        "       * several",
        " 40┤                    ·●·········●",
        "   │                ····",
        "   │            ····",
        " 20┤      ····●·",
        "   │*·········○··········○·········○",
        "   │",
        "  0┤",
        "   └┴─────────┴──────────┴─────────┴",
        "    1        10         100     1000",
        "                                size",
    )


def test_the_same_in_ascii() -> None:
    assert drawn(RISING, FLAT).plain == (
        "GB/s   o pinned   x pageable",
        "       * several",
        " 40|                    .o.........o",
        "   |                ....",
        "   |            ....",
        " 20|      ....o.",
        "   |*.........x..........x.........x",
        "   |",
        "  0|",
        "   ++---------+----------+---------+",
        "    1        10         100     1000",
        "                                size",
    )


def test_a_linear_axis() -> None:
    """Half way in value is half way on the axis."""
    made = drawn(Series("share", ((0, 0.0), (50, 0.5), (100, 1.0))), log_x=False, width=32, height=9)
    assert [line.index("●") - 5 for line in made.lines[1:6] if "●" in line] == [26, 13, 0]


def test_a_legend_that_is_too_wide_takes_more_lines_and_no_more_height() -> None:
    made = drawn(RISING, FLAT, Series("what is pinned and reused", FLAT.points), width=40, height=12)
    assert made.plain[:3] == ("GB/s   o pinned   x pageable", "       # what is pinned and reused", "       * several")
    assert len(made.plain) == 12
    assert made.plain[3].startswith(" 40|")


def test_labels_never_touch_and_the_ends_are_always_there() -> None:
    sizes = Series("x", tuple((2.0**power, 1.0) for power in range(20)))
    made = drawn(sizes, x_text=lambda value: f"{int(value)} bytes")
    assert made.lines[-2].split("  ")[-1].strip() == "524288 bytes"
    assert made.lines[-2].strip().startswith("1 bytes  ")
    assert max(len(line) for line in made.lines) <= 36


@pytest.mark.parametrize(
    ("most", "labels"),
    [(55.4, ["60", "40", "20", "0"]), (1.0, ["1", "0.5", "0"]), (0.0, ["1", "0"]), (100.0, ["100", "50", "0"])],
)
def test_the_y_axis_starts_at_zero_and_is_labelled_roundly(most: float, labels: list[str]) -> None:
    made = drawn(Series("x", ((1, most), (2, 0.0))))
    assert [line.split("┤")[0].strip() for line in made.lines if "┤" in line] == labels


@pytest.mark.parametrize(
    ("points", "width", "height"),
    [
        ((), 76, 12),
        (((1, 1.0),), 76, 12),
        (((1, 1.0), (1, 2.0)), 76, 12),
        (RISING.points, 24, 12),
        (RISING.points, 76, 7),
    ],
)
def test_nothing_to_draw_or_no_room_is_no_drawing(
    points: tuple[tuple[float, float], ...], width: int, height: int
) -> None:
    assert curve([Series("x", points)], x_name="x", y_name="y", width=width, height=height) is None


@pytest.mark.parametrize("point", [(1.0, -1.0), (0.0, 1.0)])
def test_what_has_no_place_on_the_axes_is_refused(point: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a curve needs"):
        curve([Series("x", (point, (2.0, 1.0)))], x_name="x", y_name="y")
    with pytest.raises(ValueError, match="no more series than signs"):
        curve([FLAT] * 7, x_name="x", y_name="y")


# a drawing among blocks

BOX = Drawing(("┌──────┐", "│ here │", "└──────┘"), ("+------+", "| here |", "+------+"))


def shown(width: int, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal.show(Console(file=stream, width=width, color_system=None), [Line("before"), BOX, Line("after")])
    stream.seek(0)
    return stream.read()


def test_a_drawing_is_shown_whole_or_not_at_all() -> None:
    assert shown(8) == "before\n┌──────┐\n│ here │\n└──────┘\nafter\n"
    assert shown(7) == "before\nafter\n"


def test_an_encoding_without_its_characters_gets_the_plain_one() -> None:
    assert shown(40, "ascii") == "before\n+------+\n| here |\n+------+\nafter\n"


def test_markdown_keeps_it_as_drawn() -> None:
    assert markdown("t", [BOX]) == "# t\n\n```text\n┌──────┐\n│ here │\n└──────┘\n```\n"
