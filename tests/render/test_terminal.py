from __future__ import annotations

import io
import re

import pytest

from gpucheck.render import terminal
from gpucheck.render.blocks import Block, Cell, Column, Drawing, Line, column_of_numbers, table, verdict_cell
from gpucheck.render.text import markdown

TABLE = table(
    (Column("size", "left"), Column("to device\npageable", keep=5), Column("\npinned"), Column("note", "left", keep=0)),
    [("64 KiB", "3.1", "9.8", verdict_cell("pass")), ("512 MiB", "12.2", "55.4", Cell("", ""))],
)


def shown(*blocks: Block, width: str | None = None, encoding: str = "utf-8", monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding=encoding, newline="")
    terminal.show(terminal.console(stream), blocks)
    stream.flush()
    return "\n".join(line.rstrip() for line in data.getvalue().decode(encoding).splitlines())


def test_a_pipe_gets_every_column_and_no_wrapped_line(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "word " * 60
    assert shown(TABLE, Line(sentence.strip()), monkeypatch=monkeypatch) == "\n".join(
        (
            "           to device",
            " size       pageable   pinned   note",
            "───────────────────────────────────────",
            " 64 KiB          3.1      9.8   ✓ pass",
            " 512 MiB        12.2     55.4",
            sentence.strip(),
        )
    )


def test_a_narrower_screen_drops_the_less_important_columns_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for width, kept in (("80", "note"), ("36", None)):
        text = shown(TABLE, width=width, monkeypatch=monkeypatch)
        assert ("note" in text.splitlines()[1]) == (kept == "note") if width == "80" else "size: 64 KiB" in text
    wide = table((Column("a" * 30), Column("b" * 30, keep=3), Column("c" * 30, keep=1)), [("1", "2", "3")])
    heads = shown(wide, width="70", monkeypatch=monkeypatch).splitlines()[0]
    assert "a" in heads and "b" in heads and "c" not in heads


def test_forty_columns_turn_the_table_into_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(TABLE, width="30", monkeypatch=monkeypatch).splitlines()[:5] == [
        "size: 64 KiB",
        "to device pageable: 3.1",
        "to device pinned: 9.8",
        "note: ✓ pass",
        "",
    ]


def test_ascii_signs_where_the_encoding_has_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(TABLE, Line("→ 3× faster"), encoding="ascii", monkeypatch=monkeypatch)
    assert "+ pass" in text and "-> 3x faster" in text


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="every row needs a cell"):
        table((Column("a"),), [("1", "2")])


def test_numbers_keep_the_same_precision_down_a_column() -> None:
    assert column_of_numbers([3.14159, 12.2, None, 55.44]) == ["3.14", "12.20", "–", "55.44"]
    assert column_of_numbers([5.5e10, 0.0, 1e6], scale=1e9) == ["55.0", "0.0", "0.001"]
    assert column_of_numbers([None, 0.0]) == ["–", "0"]


def test_markdown_escapes_what_would_break_a_table() -> None:
    page = markdown("gpucheck x", [table((Column("a|b", "left"), Column("n")), [("x|y", "1")]), Line("1 < 2")])
    assert page == "# gpucheck x\n\n| a\\|b | n |\n| :--- | ---: |\n| x\\|y | 1 |\n\n1 \\< 2\n"


def test_markdown_makes_no_link_or_image_of_a_name_and_keeps_code() -> None:
    name = "![x](http://a/b.png) [y](javascript:1) <img src=x>"
    page = markdown("bench [z](u)", [table((Column("host", "left"),), [(name,)]), Line(name), Line("`a[0] | *b*` [c]")])
    # Without what is escaped no bracket and no tag is left outside code.
    lines = re.sub(r"\\.", "", page.replace("`a[0] | *b*`", "")).splitlines()
    assert not any(character in line for line in lines for character in "[]<")
    assert "`a[0] | *b*` \\[c\\]" in page
    (cell,) = re.findall(r"^\| (.*) \|$", markdown("t", [table((Column("h", "left"),), [("a | `b | c`\nd",)])]), re.M)[
        2:
    ]
    assert cell == "a \\| `b \\| c` d"
    assert "\\[x\\]" in markdown("t", [Line("` [x]")]) and "\\[x\\]" in markdown("t", [Line("``a` [x]`")])
    assert "````text\n```\n[x]\n````" in markdown("t", [Drawing(("```", "[x]"), ())])
