from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

import gpucheck
from generated_pages import reference
from gpucheck import exits
from gpucheck.cli import app as app_module

COMMANDS = {
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


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("bench",), ("bench", "--help")])
def test_help_is_no_error(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: gpucheck")


def test_the_version_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(gpucheck.__file__).resolve().parent
    assert run(capsys, "--version") == (0, f"gpucheck {gpucheck.__version__} ({folder})\n", "")


@pytest.mark.parametrize("command", sorted(COMMANDS - {"schema"}))
def test_every_command_takes_the_shared_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    # doctor looks at every device that there is; explain, model and what reads results at none.
    wanted = (
        SHARED - {"--device"} if command in ("doctor", "explain", "compare", "judge", "report", "model") else SHARED
    )
    assert {option for option in SHARED if f"{option} " in out} == wanted


def test_every_help_page_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        _, out, _ = run(capsys, *command.split(), "--help")
        told = " ".join(out.split())
        for row in exits.TABLE:
            assert f" {row.code} {row.meaning}" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("find-batchsize",), "gpucheck: No such command 'find-batchsize'; did you mean 'find-batch-size'; "),
        (("devices", "--jsn"), "gpucheck: No such option: --jsn"),
        (
            ("bench", "trasfer"),
            "gpucheck: No such command 'trasfer'; did you mean 'transfer'; usage: `gpucheck bench ",
        ),
        (
            ("smoke", "--min-devices", "two"),
            "gpucheck: --min-devices must be an integer from 1 to 2147483647, not 'two'",
        ),
        (
            ("bench", "transfer", "--dtype", "float32"),
            "gpucheck: No such option: --dtype; usage: `gpucheck bench transfer [OPTIONS]`; "
            "see `gpucheck bench transfer --help`",
        ),
        (("--json", "devices"), "gpucheck: put --json after the command, like `gpucheck devices --json`"),
        (("compare", "a.json", "b.json", "--device", "cpu"), "gpucheck: No such option: --device"),
        (("explain", "CUDA out of memory", "--device", "cpu"), "gpucheck: No such option: --device"),
        (
            ("devices", "--watch", "soon"),
            "gpucheck: --watch must be a time above 0s, up to 8784h, not 'soon'; write it like 30s",
        ),
        (("devices", "--watch", "1", "--json"), "gpucheck: --watch refreshes the screen; "),
        (
            ("doctor", "--timeout", "soon"),
            "gpucheck: --time-budget must be a time above 0s, up to 8784h, not 'soon'; write it like 30s",
        ),
        (("doctor", "--device", "cpu"), "gpucheck: No such option: --device"),
        (("devices", "--device", "banana"), "gpucheck: --device 'banana' is not a device; "),
        (
            ("bench", "matmul", "--size", "abc"),
            "gpucheck: --size must have sides that are integers from 1 to 16777216, not 'abc'",
        ),
        (("bench", "transfer", "--size", "-1"), "gpucheck: --size must be a size from 1B to 32TiB, not '-1'; "),
        (("find-batch-size", "--mode", "trian"), "gpucheck: --mode 'trian' is unknown; did you mean train?"),
    ],
)
def test_wrong_usage_is_one_plain_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (exits.USAGE, "")
    assert err.startswith(sentence) and err.count("\n") == 1


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
