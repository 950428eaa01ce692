"""Completion through Typer, from the declarations of the commands."""

from __future__ import annotations

import pytest
from taken import PARAMETERS

from gpucheck.cli import app


def completed(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what Typer's script for bash proposes for the last word of a line."""
    monkeypatch.setenv("_GPUCHECK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    with pytest.raises(SystemExit) as ended:
        app.main([])
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpucheck dev", ["devices"]),
        ("gpucheck --vers", ["--version"]),
        ("gpucheck bench tr", ["transfer"]),
        ("gpucheck fleet j", ["judge"]),
        ("gpucheck bench transfer --dir", ["--direction"]),
        ("gpucheck compare old", []),  # the shell proposes files where nothing is
        ("gpucheck doctor --direction", []),
    ],
)
def test_a_word(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(line, monkeypatch, capsys) == expected


def test_every_option_of_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command, options in PARAMETERS.items():
        proposed = completed(f"gpucheck {command} --", monkeypatch, capsys)
        assert {option.name for option in options if not option.positional} <= {*proposed}
