from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

import gpucheck
from generated_pages import reference
from gpucheck import errors
from gpucheck.cli import app as app_module

COMMANDS = {
    "status",
    "devices",
    "memory",
    "smoke",
    "stress",
    "bench transfer",
    "bench bandwidth",
    "bench matmul",
    "bench overlap",
    "bench crossover",
    "bench all",
    "explain",
    "find-batch-size",
    "model",
    "compare",
    "judge",
    "report",
    "schema",
}
SHARED = {"--device", "--json", "--output", "--verbose", "--strict", "--quiet", "--config", "--debug"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app_module.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_version_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(gpucheck.__file__).resolve().parent
    assert run(capsys, "--version") == (0, f"gpucheck {gpucheck.__version__} ({folder})\n", "")


@pytest.mark.parametrize("command", sorted(COMMANDS - {"schema"}))
def test_every_command_takes_the_shared_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    # doctor and status look at every device that there is; explain, model and what reads results at none.
    deviceless = ("status", "doctor", "explain", "compare", "judge", "report", "model")
    wanted = SHARED - {"--device"} if command in deviceless else SHARED
    assert {option for option in SHARED if f"{option} " in out} == wanted


def test_the_overview_tells_the_exit_codes_and_the_other_pages_point_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help")
    told = " ".join(out.split())
    for row in errors.EXITS:
        assert f" {row.code} {row.meaning}" in told
    for command in COMMANDS:
        assert run(capsys, *command.split(), "--help")[1].endswith("\nExit codes: gpucheck --help\n")


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema")
    assert code == 0 and json.loads(out)["title"] == "gpucheck.report/1"


def test_the_documentation_of_the_commands_is_not_stale() -> None:
    root = Path(__file__).resolve().parents[2]
    if f"typer=={metadata.version('typer')}\n" not in (root / "constraints.txt").read_text(encoding="utf-8"):
        pytest.skip("the page is made with the pinned typer: others word their help differently")
    page = root / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference(), "stale: run scripts/docs"
    for command in COMMANDS:
        assert f"## `gpucheck {command}`" in reference()
