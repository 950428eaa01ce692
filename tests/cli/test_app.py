from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from shown import sentence
from taken import PARAMETERS

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


@pytest.mark.parametrize(
    "arguments", [("help",), ("--help",), ("-h",), ("bench",), ("bench", "--help"), ("fleet",), ("help", "bench")]
)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing-like-it",), "unknown command 'nothing-like-it'"),
        (("transfer",), "unknown command 'transfer'; gpucheck bench transfer"),
        (("devices", "--jsn"), "unknown option '--jsn'; gpucheck devices --json"),
        (("smoke", "--min-devices", "two"), "--min-devices must be an integer from 1 to 2147483647, not 'two'"),
        (("--json", "devices"), "unknown option '--json'; gpucheck devices --json"),
        (
            ("--device", "cpu", "bench", "transfer"),
            "unknown option '--device'; gpucheck bench transfer --device cpu",
        ),
        (("judge", "a.json", "--min-gbps", "9"), "unknown option '--min-gbps'; set thresholds in a file and give it "),
        (("compare", "a.json"), "missing argument NEW"),
        (("smoke", "extra"), "unexpected argument 'extra'"),
        (("devices", "--output"), "option '--output' needs a value; gpucheck devices --output result.json"),
        (("devices", "--json=3"), "option '--json' takes no value"),
        (
            ("run", "--dry", "cuda:24", "x.py"),
            "--dry must be one device, which is cuda:0, not 'cuda:24'; for its memory ",
        ),
        (("devices", "--watch", "soon"), "--watch must be a time above 0s, up to 8784h, not 'soon'; write it like 30s"),
        (("devices", "--watch", "1", "--json"), "--watch refreshes the screen: "),
        (
            ("doctor", "--timeout", "soon"),
            "--time-budget must be a time above 0s, up to 8784h, not 'soon'; write it like 30s",
        ),
        (("devices", "--device", "banana"), "--device 'banana' is not a device; "),
        (
            ("bench", "matmul", "--size", "abc"),
            "--size must have sides that are integers from 1 to 16777216, not 'abc'",
        ),
        (("bench", "transfer", "--size", "-1"), "--size must be a size from 1B to 32TiB, not '-1'; "),
        (("find-batch-size", "--mode", "trian"), "--mode 'trian' is unknown; gpucheck find-batch-size --mode train"),
    ],
)
@pytest.mark.parametrize("columns", ["", "40"])
def test_wrong_usage_is_an_error_a_tip_and_the_usage(
    arguments: tuple[str, ...],
    words: str,
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (errors.USAGE, "")
    if columns:
        # Broken between words, behind its head.
        assert [line for line in err.splitlines() if len(line) > int(columns) and len(line.split()) > 2] == []
        assert " ".join(err.split()).startswith(f"error: {words.partition(';')[0]}")
        return
    assert sentence(err).startswith(words)
    named = " ".join(arguments[: 2 if arguments[0] in ("bench", "fleet") else 1])
    last = err.splitlines()[-1]
    assert last.startswith(f"usage: gpucheck {named} " if named in PARAMETERS else "usage: gpucheck "), last


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
