"""Command line, then one file: as users start it where that matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck import naming
from gpucheck.cli import app as app_module
from gpucheck.cli import bench, commands, settings
from gpucheck.cli.commands import Common
from gpucheck.config import THRESHOLDS, Limit, Settings
from gpucheck.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(command: str = "bench transfer", *, config: str = "", **more: Any) -> tuple[Settings, dict[str, Any]]:
    """The settings of a command line, and what became of the command's own options."""
    given = {"min_gbps": "", "baseline": "", "fail_if_slower": "", **more}
    return settings.of_command(command, config, given), given


# A real measurement, the shortest.
MATMUL = ("bench", "matmul", "--device", "cpu", "--size", "64", "--dtype", "float32", "--time-budget", "0.1s")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app_module.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_named_file_then_our_own(folder: Path) -> None:
    (folder / "gpucheck.toml").write_text("thresholds.transfer.min_gbps = 2")
    assert of()[0].thresholds[0].value == 2e9
    (folder / "other.toml").write_text("thresholds.transfer.min_gbps = 1")
    found, _ = of(config="other.toml")
    assert (found.file, found.thresholds[0].value) == ("other.toml", 1e9)


@pytest.mark.parametrize(
    ("content", "path", "sentence"),
    [
        (None, "x.toml", "--config 'x.toml' does not exist; "),
        (None, ".", ". cannot be read; Is a directory; "),
        (None, "/dev/zero", "/dev/zero is not a settings file; "),
        (b"\xff", "x.toml", "x.toml is not UTF-8 text; "),
        (b"[project]", "pyproject.toml", "pyproject.toml:project is unknown; write thresholds below [thresholds]"),
    ],
)
def test_a_file_that_is_none(content: bytes | None, path: str, sentence: str, folder: Path) -> None:
    if content is not None:
        (folder / path).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        of(config=path)
    assert str(caught.value).startswith(sentence)


def test_a_command_has_the_thresholds_of_its_own_figures(folder: Path) -> None:
    (folder / "gpucheck.toml").write_text(
        "[thresholds]\ntransfer.min_gbps = 1\nmatmul.min_tflops = 2\ncompare.slower = 7\n[thresholds.X]\n"
        "transfer.min_gbps = 3"
    )
    named = Limit("transfer.min_gbps", 3e9, "B/s", 'gpucheck.toml:thresholds."X".transfer.min_gbps', "X")
    general = Limit("transfer.min_gbps", 1e9, "B/s", "gpucheck.toml:thresholds.transfer.min_gbps")
    found, given = of()
    assert (found.thresholds, given["fail_if_slower"]) == ((named, general), "")
    found, given = of(min_gbps="4", baseline="x.json")
    assert found.thresholds[0] == Limit("transfer.min_gbps", 4e9, "B/s", "--min-gbps")
    assert given["fail_if_slower"] == "7%"
    assert settings.shown_settings(found).endswith(
        "compare.slower at most 7 % (gpucheck.toml:thresholds.compare.slower)"
    )
    assert "--min-gbps" not in settings.shown_settings(found)
    assert [one.id for one in of("bench all")[0].thresholds] == [*["transfer.min_gbps"] * 2, "matmul.min_tflops"]
    assert of("devices")[0].thresholds == ()
    found, given = of("compare", fail_if_slower="5%")
    assert ([one.value for one in found.thresholds], given["fail_if_slower"]) == ([0.05, 0.07], "5%")


def test_what_is_set_is_told_on_stderr_and_in_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gpucheck.toml").write_text("thresholds.matmul.min_tflops = 0")
    _, out, err = run(capsys, *MATMUL, "--json")
    origin = "gpucheck.toml:thresholds.matmul.min_tflops"
    assert err.splitlines()[0] == f"gpucheck: set: matmul.min_tflops at least 0 FLOP/s ({origin})"
    assert json.loads(out)["settings"] == {
        "file": "gpucheck.toml",
        "variables": {},
        "thresholds": [
            {"id": "matmul.min_tflops", "value": 0.0, "unit": "FLOP/s", "origin": origin, "device": None},
        ],
    }
    assert run(capsys, *MATMUL, "--json", "--quiet")[2] == ""


def test_a_variable_sets_an_option_that_the_command_line_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCHECK_DEVICE", "cpu")
    monkeypatch.setenv("GPUCHECK_STRICT", "off")
    code, out, err = run(capsys, "devices", "--json")
    assert (code, err) == (0, "gpucheck: set: GPUCHECK_DEVICE=cpu; GPUCHECK_STRICT=off\n")
    assert json.loads(out)["settings"]["variables"] == {"GPUCHECK_DEVICE": "cpu", "GPUCHECK_STRICT": "off"}
    assert [each["id"] for each in json.loads(out)["facts"]["devices"]] == ["cpu"]
    assert run(capsys, "devices", "--json", "--quiet")[2] == ""
    assert run(capsys, "devices", "--json", "--device", "all")[2] == "gpucheck: set: GPUCHECK_STRICT=off\n"


@pytest.mark.parametrize(
    ("name", "value", "sentence_of"),
    [
        ("GPUCHECK_DEVICE", " cpu ", "GPUCHECK_DEVICE ' cpu ' is not a device; "),
        ("GPUCHECK_DEVICES", "cpu", "variable GPUCHECK_DEVICES is unknown; did you mean GPUCHECK_DEVICE?"),
        ("GPUCHECK_STRICT", "maybe", "Invalid value for '--strict' (env var: 'GPUCHECK_STRICT'): "),
        ("GPUCHECK_TIME_BUDGET", "soon", "--time-budget must be a time above 0s, up to 8784h, not 'soon'; "),
    ],
)
def test_a_wrong_variable(
    name: str, value: str, sentence_of: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    code, _, err = run(capsys, "smoke", "--quiet")
    assert code == 2 and sentence(err).startswith(sentence_of)


def test_the_time_that_torch_has_is_the_doctors_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCHECK_TIME_BUDGET", "soon")
    assert run(capsys, "doctor", "--list")[0] == 0


def test_the_page_tells_every_threshold_and_variable() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    for one in THRESHOLDS:
        cells = (f"`{one.id}`", one.kind, one.direction.removeprefix("at "), f"`{one.command}`", one.judges)
        assert f"| {' | '.join((*cells, f'`{one.option}`'))} |" in page
    for variable in (*commands.VARIABLES.values(), naming.STARTED_AS):
        assert f"`{variable}`" in page


def test_a_run_in_a_fresh_process_has_the_same_settings() -> None:
    common = Common("bench transfer", "cpu", config="x.toml", given={"min_gbps": "5", "time_budget": "1s"})
    line = "bench transfer --time-budget=1s --min-gbps=5 --device=cpu --config=x.toml"
    assert bench.arguments_of(common) == line.split()


def test_a_threshold_reaches_the_judge_and_the_exit_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = (*MATMUL, "--json", "--quiet")
    (folder / "gpucheck.toml").write_text("[thresholds]\nmatmul.min_percent_of_peak = 50")
    code, out, err = run(capsys, *command)
    found = {one["id"]: one for one in json.loads(out)["findings"]}["matmul.min_percent_of_peak"]
    assert (code, found["verdict"], err) == (4, "inconclusive", "")
    assert found["evidence"]["threshold"] == {
        "id": "matmul.min_percent_of_peak",
        "value": 0.5,
        "unit": "1",
        "origin": "gpucheck.toml:thresholds.matmul.min_percent_of_peak",
        "device": None,
    }
    assert json.loads(out)["settings"]["thresholds"] == [found["evidence"]["threshold"]]
    code, _, err = run(capsys, *command, "--min-tflops", "fast")
    assert (code, sentence(err)) == (
        2,
        "--min-tflops must be a number, not 'fast'; write it like 50, which is TFLOP/s",
    )
