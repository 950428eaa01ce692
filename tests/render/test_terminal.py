from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from gpucheck.render import terminal
from gpucheck.render.text import (
    Block,
    Cell,
    Column,
    Drawing,
    Line,
    Page,
    answer,
    head,
    markdown,
    table,
    verdict_cell,
)
from gpucheck.report.finding import Finding, Verdict

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


# -- a first view that fits the screen ---------------------------------------------------------------------------------

CARDS = replace(
    table(
        (Column("GPU", "left"), Column("figure"), Column("shown by", "left", wraps=True), Column("state", "left")),
        [(f"cuda:{n}", str(n), "words " * 9, verdict_cell("warn" if n == 15 else "pass")) for n in range(16)],
    ),
    least=8,
)
FINDINGS = [
    line
    for n in range(14)
    for line in (Line(f"! finding {n}: {'long ' * 60}", may_go=True), Line(f"→ gpucheck fix {n}", may_go=True))
]


@pytest.mark.parametrize(("width", "most"), [("80", 24), ("120", 24), ("40", 40)])
def test_a_first_view_fits_the_screen_whatever_was_found(
    width: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(Line("✗ the answer"), *FINDINGS, Line(), CARDS, width=width, monkeypatch=monkeypatch).splitlines()
    assert len(lines) <= most and max(map(len, lines)) <= int(width)
    assert lines[0] == "✗ the answer" and lines[1].startswith("! finding 0: long") and "→ gpucheck fix 0" in lines
    # Each of eight devices has its line, and the one that asks is among them.
    assert sum(line.startswith(" cuda:") for line in lines) == 8
    assert any(line.startswith(" cuda:15") and "warn" in line for line in lines)
    shown_whole = sum(line.startswith("! finding") for line in lines)
    others = f"also: {'; '.join(f'finding {n}' for n in range(shown_whole, 14))}; details: -v"
    assert others in " ".join(lines) and "and 8 more rows: -v" in lines


def test_nothing_that_failed_is_cut_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "because " * 40
    verdicts: tuple[Verdict, ...] = ("warn",) * 14 + ("fail",) * 14
    found = [Finding(f"x.{n}", one, f"finding {n}", f"{why}{n}.", fix=f"do {n}") for n, one in enumerate(verdicts)]
    cards = [(f"cuda:{n}", verdict_cell("fail" if n % 2 else "warn")) for n in range(60)]
    states = replace(table((Column("GPU", "left"), Column("state", "left")), cards), least=8)
    view = [*head(Page(answer("fail", f"{why}28."), [], [], found)), states]
    lines = shown(*view, width="80", monkeypatch=monkeypatch).splitlines()
    said = " ".join(lines)
    assert said.startswith("✗ because") and all(f"because {n}. " in said for n in range(14, 29))
    assert [line for line in lines if line.startswith("→ ")] == [f"→ do {n}" for n in (*range(14, 28), 0)]
    assert f"also: {'; '.join(f'finding {n}' for n in range(1, 14))}; details: -v" in said
    assert "and 30 more rows: -v" in lines
    assert sum(line.startswith(" cuda:") and line.endswith("✗ fail") for line in lines) == 30


def test_a_sentence_keeps_its_end_and_rows_go_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = "✓ Sequential on a simulated cuda:0: all of it moves, and the forward pass runs"
    figures = "training adds gradients 4.82 MiB and torch.optim.AdamW 9.65 MiB: 19.3 MiB before activations"
    rows = replace(table((Column("GPU", "left"), Column("MiB")), [(f"cuda:{n}", "1") for n in range(60)]), least=8)
    lines = shown(Line(verdict, "bold"), rows, Line(figures), width="40", monkeypatch=monkeypatch).splitlines()
    said = " ".join(lines)
    assert said.startswith(verdict) and said.endswith(figures) and len(lines) <= 40


def test_what_stands_in_a_tables_place_loses_the_same_rows_and_nothing_where_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = range(60)
    narrow = table((Column("GPU", "left"), Column("MiB")), [(f"cuda:{n}", "1") for n in places])
    wide = table((Column("GPU", "left"), Column("m" * 70), Column("KiB")), [(f"cuda:{n}", "1", "1024") for n in places])
    lines = shown(replace(wide, narrow=narrow, least=8), width="60", monkeypatch=monkeypatch).splitlines()
    assert len(lines) <= 40 and sum(line.startswith(" cuda:") for line in lines) == 60 - int(lines[-1].split()[1])
    assert "KiB: 1024" in shown(replace(wide, narrow=narrow), width="12", monkeypatch=monkeypatch)
