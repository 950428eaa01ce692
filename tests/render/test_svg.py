"""A report as a picture: well-formed, complete, the same every time; and the README's pictures are up to date."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from generated_pages import pictures
from gpucheck.render import terminal
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def report(*argv: str, message: str = "<b> & {x}") -> Report:
    findings = (Finding("memory.accounting", "fail", "the resident set", message, fix="end process 12"),)
    summary = Summary("fail", 1, True)
    return Report("gpucheck.report/1", "0", "memory", argv, "", 1.0, Facts(), (), findings, {}, (), summary)


def words(picture: str) -> str:
    """What a reader sees: the texts of the picture in their order."""
    return "".join(ET.fromstring(picture).itertext()).replace("\u00a0", " ")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_is_the_screen_below_its_command_line(theme: terminal.Theme) -> None:
    seen = words(terminal.svg(report("memory", "--device", "cpu", "--output", "x.svg", "--json"), theme))
    assert "$ gpucheck memory --device cpu" in seen and "--output" not in seen and "--json" not in seen
    assert "✗ cpu: the resident set <b> & {x}" in seen
    assert "→ end process 12" in seen


def test_a_picture_fetches_nothing_and_is_the_same_every_time() -> None:
    picture = terminal.svg(report("memory"))
    assert "url(http" not in picture and "@import" not in picture and "<script" not in picture
    assert picture == terminal.svg(report("memory"))
    assert picture != terminal.svg(dataclasses.replace(report("memory"), argv=("memory", "{0} <&>")))


def test_the_pictures_of_the_documentation_are_up_to_date() -> None:
    drawn = pictures(PICTURES)
    assert len(drawn) >= 8
    assert {path.name for path in PICTURES.glob("*.svg")} == {path.name for path in drawn}
    for path, picture in drawn.items():
        assert path.read_text(encoding="utf-8") == picture, f"{path.name} is stale: run scripts/docs"
