from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from gpucheck.render import terminal
from gpucheck.render.text import Cell, Column, Page, PageBlock, TextLine, answer, head, markdown, table, verdict_cell
from gpucheck.report.finding import Finding, Verdict

TABLE = table(
    (Column("size", "left"), Column("to device\npageable", keep=5), Column("\npinned"), Column("note", "left", keep=0)),
    [("64 KiB", "3.1", "9.8", verdict_cell("pass")), ("512 MiB", "12.2", "55.4", Cell("", ""))],
)


def shown(
    *blocks: PageBlock, width: str | None = None, encoding: str = "utf-8", monkeypatch: pytest.MonkeyPatch
) -> str:
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
    assert shown(TABLE, TextLine(sentence.strip()), monkeypatch=monkeypatch) == "\n".join(
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
    text = shown(TABLE, TextLine("→ 3× faster"), encoding="ascii", monkeypatch=monkeypatch)
    assert "+ pass" in text and "-> 3x faster" in text


def test_markdown_makes_no_link_or_image_of_a_name_and_keeps_code() -> None:
    name = "![x](http://a/b.png) [y](javascript:1) <img src=x>"
    page = markdown(
        "bench [z](u)", [table((Column("host", "left"),), [(name,)]), TextLine(name), TextLine("`a[0] | *b*` [c]")]
    )
    # Without what is escaped no bracket and no tag is left outside code.
    lines = re.sub(r"\\.", "", page.replace("`a[0] | *b*`", "")).splitlines()
    assert not any(character in line for line in lines for character in "[]<")
    assert "`a[0] | *b*` \\[c\\]" in page
    (cell,) = re.findall(r"^\| (.*) \|$", markdown("t", [table((Column("h", "left"),), [("a | `b | c`\nd",)])]), re.M)[
        2:
    ]
    assert cell == "a \\| `b \\| c` d"
    assert "\\[x\\]" in markdown("t", [TextLine("` [x]")]) and "\\[x\\]" in markdown("t", [TextLine("``a` [x]`")])


# -- a first view ------------------------------------------------------------------------------------------------------


def test_a_first_view_counts_what_it_leaves_out_and_a_pipe_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [(f"cuda:{n}", verdict_cell("warn" if n == 19 else "pass")) for n in range(20)]
    states = replace(table((Column("GPU", "left"), Column("state", "left")), cards), may_go=True)
    findings = [
        line
        for n in range(9)
        for line in (TextLine(f"! finding {n}: why", may_go=True), TextLine(f"→ gpucheck fix {n}", may_go=True))
    ]
    lines = shown(TextLine("✗ the answer"), *findings, states, width="80", monkeypatch=monkeypatch).splitlines()
    assert lines[0] == "✗ the answer"
    assert sum(line.startswith("! finding") for line in lines) == 3
    assert f"also: {'; '.join(f'finding {n}' for n in range(3, 9))}; details: -v" in " ".join(lines)
    # The card that asks is among them.
    assert any(line.startswith(" cuda:19") and "warn" in line for line in lines)
    assert sum(line.startswith(" cuda:") for line in lines) == 16 and "and 4 more rows: -v" in lines
    assert len(shown(TextLine("✗ the answer"), *findings, states, monkeypatch=monkeypatch).splitlines()) == 41


def test_nothing_that_failed_is_cut_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "because " * 40
    verdicts: tuple[Verdict, ...] = ("warn",) * 14 + ("fail",) * 14
    found = [Finding(f"x.{n}", one, f"finding {n}", f"{why}{n}.", fix=f"do {n}") for n, one in enumerate(verdicts)]
    cards = [(f"cuda:{n}", verdict_cell("fail" if n % 2 else "warn")) for n in range(60)]
    states = replace(table((Column("GPU", "left"), Column("state", "left")), cards), may_go=True)
    view: list[PageBlock] = [*head(Page(answer("fail", f"{why}28."), [], [], found)), states]
    lines = shown(*view, width="80", monkeypatch=monkeypatch).splitlines()
    said = " ".join(lines)
    assert said.startswith("✗ because") and all(f"because {n}. " in said for n in range(14, 29))
    assert "and 30 more rows: -v" in lines
    assert sum(line.startswith(" cuda:") and line.endswith("✗ fail") for line in lines) == 30
