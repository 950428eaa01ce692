"""Command line, then variables, then one file: through the door that users use where that matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli import app as app_module
from gpucheck.cli import bench, settings
from gpucheck.cli.commands import Common
from gpucheck.config import THRESHOLDS, Limit, Settings
from gpucheck.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(
    command: str = "bench transfer", *, default: str = "auto", **more: Any
) -> tuple[Settings, dict[str, Any], dict[str, Any]]:
    """The settings of a command line, and what became of the shared options and of the command's own."""
    values = {"device": None, "strict": False, "config": ""}
    values |= {name: more.pop(name) for name in tuple(values) if name in more}
    given = {"time_budget": "", "min_gbps": "", "baseline": "", "fail_if_slower": "", **more}
    return settings.of_command(command, values, given, default), values, given


# A real measurement, the shortest.
MATMUL = ("bench", "matmul", "--device", "cpu", "--size", "64", "--dtype", "float32", "--time-budget", "0.1s")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app_module.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_variable_goes_before_the_file_and_the_command_line_before_both(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gpucheck.toml").write_text('device = "cuda:1"\nstrict = true\ntime_budget = "9s"')
    found, values, given = of()
    assert (values["device"], values["strict"], given["time_budget"]) == ("cuda:1", True, "9s")
    assert settings.told(found) == (
        "set: device cuda:1 (gpucheck.toml:device); strict true (gpucheck.toml:strict); "
        "time budget 9s (gpucheck.toml:time_budget)"
    )
    monkeypatch.setenv("GPUCHECK_DEVICE", "cuda:2")
    monkeypatch.setenv("GPUCHECK_STRICT", "0")
    found, values, given = of()
    assert (values["device"], values["strict"], given["time_budget"]) == ("cuda:2", False, "9s")
    assert found.origins == {
        "device": "GPUCHECK_DEVICE",
        "strict": "GPUCHECK_STRICT",
        "time_budget": "gpucheck.toml:time_budget",
    }
    found, values, given = of(device="cpu", strict=True, time_budget="1s")
    assert (values["device"], values["strict"], given["time_budget"]) == ("cpu", True, "1s")
    assert found == Settings(file="gpucheck.toml")


def test_the_named_file_then_our_own_then_the_shared_one(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.gpucheck]\ndevice = "cuda:3"')
    assert of()[1]["device"] == "cuda:3"
    (folder / "gpucheck.toml").write_text('device = "cuda:2"')
    assert of()[1]["device"] == "cuda:2"
    (folder / "other.toml").write_text('device = "cuda:1"')
    assert of(config="other.toml")[1]["device"] == "cuda:1"
    assert of(config="pyproject.toml")[1]["device"] == "cuda:3"
    (folder / "below").mkdir()
    assert of(config="below/../other.toml")[0].file == "below/../other.toml"


@pytest.mark.parametrize(
    ("content", "path", "sentence"),
    [
        (None, "x.toml", "--config 'x.toml' does not exist; "),
        (None, ".", ". cannot be read; Is a directory; "),
        (None, "/dev/zero", "/dev/zero is not a settings file; "),
        (b"\xff", "x.toml", "x.toml is not UTF-8 text; "),
        (b"[project]", "pyproject.toml", "--config 'pyproject.toml' has no table [tool.gpucheck]; "),
    ],
)
def test_a_file_that_is_none(content: bytes | None, path: str, sentence: str, folder: Path) -> None:
    if content is not None:
        (folder / path).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        of(config=path)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("GPUCHECK_DEVICES", "cpu", "variable GPUCHECK_DEVICES is unknown; did you mean GPUCHECK_DEVICE?"),
        ("GPUCHECK_STRICT", "maybe", "GPUCHECK_STRICT must be 1 or 0, not 'maybe'"),
        ("GPUCHECK_TIME_BUDGET", "soon", "GPUCHECK_TIME_BUDGET must be a time above 0s, up to 8784h, not 'soon'; "),
    ],
)
def test_a_wrong_variable(name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        of()
    assert str(caught.value).startswith(sentence)


def test_a_command_has_the_thresholds_of_its_own_figures(folder: Path) -> None:
    (folder / "gpucheck.toml").write_text(
        "[thresholds]\ntransfer.min_gbps = 1\nmatmul.min_tflops = 2\ncompare.slower = 7\n[thresholds.X]\n"
        "transfer.min_gbps = 3"
    )
    named = Limit("transfer.min_gbps", 3e9, "B/s", 'gpucheck.toml:thresholds."X".transfer.min_gbps', "X")
    general = Limit("transfer.min_gbps", 1e9, "B/s", "gpucheck.toml:thresholds.transfer.min_gbps")
    found, _, given = of()
    assert (found.thresholds, given["fail_if_slower"]) == ((named, general), "")
    found, _, given = of(min_gbps="4", baseline="x.json")
    assert found.thresholds[0] == Limit("transfer.min_gbps", 4e9, "B/s", "--min-gbps")
    assert given["fail_if_slower"] == "7%"
    assert settings.told(found).endswith("compare.slower at most 7 % (gpucheck.toml:thresholds.compare.slower)")
    assert "--min-gbps" not in settings.told(found)
    assert [one.id for one in of("bench all")[0].thresholds] == [*["transfer.min_gbps"] * 2, "matmul.min_tflops"]
    assert of("devices")[0].thresholds == ()
    found, _, given = of("compare", fail_if_slower="5%")
    assert ([one.value for one in found.thresholds], given["fail_if_slower"]) == ([0.05, 0.07], "5%")


def test_what_is_set_is_told_on_stderr_and_in_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gpucheck.toml").write_text('device = "cpu"')
    code, out, err = run(capsys, "devices", "--json")
    assert (code, err) == (0, "gpucheck: set: device cpu (gpucheck.toml:device)\n")
    assert json.loads(out)["settings"] == {
        "file": "gpucheck.toml",
        "device": "cpu",
        "strict": None,
        "time_budget": None,
        "origins": {"device": "gpucheck.toml:device"},
        "thresholds": [],
    }
    assert run(capsys, "devices", "--json", "--quiet")[2] == ""
    assert run(capsys, "devices", "--json", "--device", "all")[2] == ""


def test_a_device_is_blamed_on_the_variable_that_named_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCHECK_DEVICE", " cpu ")
    code, _, err = run(capsys, "devices", "--quiet")
    assert code == 2 and sentence(err).startswith("GPUCHECK_DEVICE ' cpu ' is not a device; ")
    code, _, err = run(capsys, "devices", "--quiet", "--device", "banana")
    assert code == 2 and sentence(err).startswith("--device 'banana' is not a device; ")


def test_the_page_tells_every_threshold_and_variable() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    for one in THRESHOLDS:
        cells = (f"`{one.id}`", one.kind, one.direction.removeprefix("at "), f"`{one.command}`", one.judges)
        assert f"| {' | '.join((*cells, f'`{one.option}`'))} |" in page
    for variable in (*settings.VARIABLES.values(), *settings.OTHERS):
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
