"""Help pages: their layout at every width, their examples, `--list`, and `--verbose`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from gpucheck.cli import app as app_module
from gpucheck.cli import commands, parse
from gpucheck.cli.commands import Common

NAMES = ("", *(row.name for row in commands.COMMANDS if row.commands), *commands.names())
PAGES = tuple(f"gpucheck {name}".strip() for name in NAMES)
Shown = Callable[[str, int], str]


def examples_of(path: str) -> tuple[str, ...]:
    row = commands.find(path.removeprefix("gpucheck").strip())
    assert row is not None
    return row.examples


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The help page of a command at a width."""

    def page(path: str, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert app_module.main([*path.split()[1:], "--help"]) == 0
        return capsys.readouterr().out

    return page


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Common, Any]]:
    """The commands that were read to their end, with their options; none of them runs."""
    found: list[tuple[Common, Any]] = []

    def begin(row: object, common: Common, options: Any, *extra_options: Any) -> int:
        found.append((common, options))
        return 0

    monkeypatch.setattr(parse, "begin", begin)
    return found


def words(text: str) -> list[str]:
    """The words of a page."""
    return text.split()


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("path", PAGES)
def test_no_word_is_cut_and_no_line_is_too_long(path: str, columns: int, shown: Shown) -> None:
    page = shown(path, columns)
    assert "..." not in re.sub(r"(FILE|\[ARGS\]|\[PATH)\.\.\.", "", page)
    # What is longer than a line stands in one of its own.
    told = page.partition("\nExamples:\n")[0]
    assert [line for line in told.splitlines() if len(line) > columns and len(line.split()) > 1] == []
    assert sorted(words(page)) == sorted(words(shown(path, 100)))


@pytest.mark.parametrize(("path", "text"), [(path, text) for path in PAGES for text in examples_of(path)])
def test_examples_are_read_by_their_commands(
    path: str,
    text: str,
    begun: list[tuple[Common, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = re.split(r" [|>] |2>&1|^srun --\S+ |^torchrun .* --no-python ", text)
    (line,) = [part for part in parts if part.strip().startswith("gpucheck ")]
    arguments = shlex.split(line)
    monkeypatch.chdir(tmp_path)
    if "--config" in arguments:
        (tmp_path / arguments[arguments.index("--config") + 1]).touch()
    (tmp_path / "net.py").touch()
    assert app_module.main(arguments[1:]) == 0, capsys.readouterr().err
    if path == "gpucheck schema":
        assert arguments == ["gpucheck", "schema"]
        return
    ((given, _),) = begun
    assert f"gpucheck {given.command} ".startswith(f"{path} ") or path in ("gpucheck", "gpucheck bench")


@pytest.mark.parametrize("name", commands.names())
def test_what_a_row_names_is_there(name: str) -> None:
    row = commands.find(name)
    assert row is not None
    assert callable(resolve_name(row.function))
    assert all(is_dataclass(resolve_name(place)) for place in (row.options, row.extra_options) if place)


# -- --list -----------------------------------------------------------------------------------------------------------
