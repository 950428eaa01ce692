"""`gpucheck compare`, `--runs` and `--baseline` as users start it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli import app as app_module
from gpucheck.cli import bench
from gpucheck.cli.commands import Common
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Report, Summary

STEADY = (0.99, 0.995, 1.0, 1.0, 1.0, 1.005, 1.01)


def document(factor: float = 1.0, runs: int = 7, **more: Any) -> dict[str, Any]:
    one = Measurement(
        "matmul",
        DeviceRef("cpu", None, more.pop("machine", "EPYC")),
        {"m": 64},
        tuple(Run("", 1, (factor * median,), (0.0,)) for median in STEADY[:runs]),
        TimeStats(1.0, 1),
        {"flop": 1.0},
        None,
        MemoryFigures(),
        Method("host", "host", "warm"),
    )
    summary = Summary("pass", 0, True)
    written = Report("gpucheck.report/1", "0.1.0", "bench matmul", (), "", 1.0, Facts(), (one,), (), {}, (), summary)
    return {**to_json(written), **more}


def written(folder: Path, name: str, content: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app_module.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("factor", "runs", "gate", "code"),
    [
        (1.2, 7, (), 0),
        (1.2, 7, ("--fail-if-slower", "5%"), 1),
        (1.05, 7, ("--fail-if-slower", "5%"), 4),
        (1.2, 1, ("--fail-if-slower", "5%"), 4),
        (1.0, 7, ("--fail-if-slower", "5%"), 0),
        (1.2, 7, ("--strict",), 1),
    ],
)
def test_the_exit_status(
    factor: float, runs: int, gate: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = written(tmp_path, "old.json", document()), written(tmp_path, "new.json", document(factor, runs))
    assert run(capsys, "compare", old, new, *gate)[0] == code


def nothing_measured(command: str, machine: str) -> dict[str, Any]:
    summary = Summary("pass", 0, True)
    facts = Facts(devices=(Device("cpu", id="cpu", name=machine),))
    report = Report("gpucheck.report/1", "0.1.0", command, (), "", 1.0, facts, (), (), {}, (), summary)
    return dict(to_json(report))


@pytest.mark.parametrize("gate", [(), ("--fail-if-slower", "5%")])
def test_documents_without_measurements_have_nothing_to_compare(
    gate: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (written(tmp_path, f"{name}.json", nothing_measured("devices", name)) for name in ("EPYC", "Xeon"))
    code, out, err = run(capsys, "compare", one, other, *gate)
    assert (code, err) == (4, "")
    assert out.startswith(
        "? nothing to compare: no measurements in old and new: old: gpucheck devices, new: gpucheck devices\n"
    )
    # What the machines are explains nothing here.
    assert "machines differ" not in out and "EPYC" not in out
    measured = written(tmp_path, "measured.json", document())
    code, out, err = run(capsys, "compare", measured, other, *gate)
    assert (code, err) == (4, "") and "? nothing to compare: no measurements in new: old: gpucheck" in out
    # Names of rows explain nothing where none is in common; that some escape the gate is said.
    assert "64" not in out and ("only in old, not compared: 1 row" in out) is bool(gate)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory; "),
        ("{", "is not a JSON document: "),
        (b"\xff\xfe", "is not a JSON document: "),
        ("[]", "is not a gpucheck document: "),
        ('{"schema": "else/1"}', "is not a gpucheck document: "),
        ('{"schema": "gpucheck.report/2"}', "has schema gpucheck.report/2: this gpucheck reads gpucheck.report/1; "),
        ('{"schema": "gpucheck.report/1"}', "is incomplete: "),
        ('{"schema": "gpucheck.report/1", "measurements": [1]}', "is incomplete: "),
    ],
)
def test_a_file_that_is_no_document(
    content: str | bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    good = written(tmp_path, "good.json", document())
    for pair in ((str(path), good), (good, str(path))):
        code, out, err = run(capsys, "compare", *pair)
        assert (code, out) == (2, "") and words in sentence(err)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"samples_s": [0.0]}, "a sample or a median is not a valid time; "),
        ({"samples_s": [-1.0]}, "a sample or a median is not a valid time; "),
        ({"samples_s": [float("nan")]}, "NaN is not a JSON number; "),
        ({"calls_per_sample": 0}, "a sample or a median is not a valid time; "),
        ({"samples_s": [None]}, "it does not follow the schema gpucheck.report/1; "),
        ({"samples_s": ["1 s"]}, "it does not follow the schema gpucheck.report/1; "),
    ],
)
def test_a_document_with_samples_that_are_no_times(
    damage: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = document()
    damaged["measurements"][0]["runs"][0].update(damage)
    new = written(tmp_path, "new.json", damaged)
    code, out, err = run(capsys, "compare", written(tmp_path, "old.json", document()), new)
    assert (code, out) == (2, "") and words in sentence(err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--runs", "none"), "--runs must be an integer from 1 to 1000, not 'none'"),
        (("--runs", "0"), "--runs must be an integer from 1 to 1000, not '0'"),
        (("--runs", "²"), "--runs must be an integer from 1 to 1000, not '²'"),
        (("--fail-if-slower", "5%"), "--fail-if-slower needs a baseline; add --baseline FILE"),
        (("--baseline", "/no/such.json"), "'/no/such.json' cannot be read"),
    ],
)
def test_wrong_runs(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench", "matmul", "--device", "cpu", *arguments)
    assert (code, out) == (2, "") and words in sentence(err)


def test_a_run_is_given_what_the_command_was_given() -> None:
    given: dict[str, Any] = {"size": ["64KiB", "1MiB"], "sweep": True, "shape": None, "direction": "h2d", "runs": "7"}
    given |= {"time_budget": None, "baseline": "x.json", "fail_if_slower": "5%", "other": False}
    line = "bench transfer --size=64KiB --size=1MiB --sweep --direction=h2d --device=cuda:1"
    assert bench.arguments_of(Common("bench transfer", "cuda:1", given=given)) == line.split()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_two_runs_in_fresh_processes_and_a_baseline_in_one_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("bench", "matmul", "--device", "cpu", "--size", "64", "--dtype", "float32", "--time-budget", "0.1s")
    old = tmp_path / "old.json"
    assert run(capsys, *command, "--runs", "2", "--quiet", "--output", str(old))[0] == 0
    (measurement,) = json.loads(old.read_text(encoding="utf-8"))["measurements"]
    assert len(measurement["runs"]) == 2
    # The same file as the baseline and as the output: it is read before it is written.
    code, out, _ = run(capsys, *command, "--runs", "2", "--baseline", str(old), "--fail-if-slower", "900%", "--json")
    found = json.loads(out)
    assert (code, found["command"]) == (4, "bench matmul")
    assert found["results"]["compare"]["rows"][0]["why"] == "2 and 2 runs, at least 3 per side needed"
    assert len(found["measurements"][0]["runs"]) == 2
