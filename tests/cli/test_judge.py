"""`gpucheck judge`: what a saved document comes to by other thresholds, and what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

import document_schema as schema
from gpucheck import api
from gpucheck.bench import judge as whole_judge
from gpucheck.cli import app as app_module
from gpucheck.report.report import Judgement, Report

Change = Callable[[dict[str, Any]], None]


def sample(seconds: float) -> dict[str, Any]:
    """A cold copy of 1 GiB in twenty windows."""
    samples = [seconds * (1 + place / 1e4) for place in range(20)]
    stats = {"median": seconds, "n": 20, "p05": None, "p95": None, "ci_low": seconds, "ci_high": seconds * 1.001}
    return {
        "name": "bandwidth",
        "device": {"id": "cuda:0", "uuid": "GPU-1", "name": "a GPU"},
        "case": {"operation": "copy", "size_bytes": 2**30},
        "runs": [
            {"started": f"{seconds}", "calls_per_sample": 1, "samples_s": samples, "started_monotonic_s": samples}
        ],
        "time_s": {**stats, "ci_level": 0.95, "ci_covers": "this process"},
        "work": {"bytes": 2.0**31},
        "rate": {"median": 2.0**31 / seconds, "unit": "B/s", "p05": None, "p95": None},
        "memory": {},
        "method": {
            "clock": "device events",
            "launch": "held",
            "cache": "cold",
            "details": {"verified_slices": 4, "wrong_elements": 0},
        },
    }


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Writes a document of `bench bandwidth` with one row of so many seconds; its path."""

    def write(name: str = "a.json", seconds: float = 0.5, change: Change = lambda document: None) -> str:
        document: dict[str, Any] = {
            "schema": "gpucheck.report/1",
            "gpucheck": "0.1.0",
            "command": "bench bandwidth",
            "argv": [],
            "started": "2026-11-22T12:00:00Z",
            "elapsed_s": 1.0,
            "facts": {"devices": [{"kind": "cuda", "id": "cuda:0", "uuid": "GPU-1", "name": "a GPU"}]},
            "measurements": [sample(seconds)],
            "findings": [],
            "results": {},
            "notices": [],
            "summary": {"verdict": "pass", "exit": 0, "complete": True},
            "parts": [{"id": "bandwidth", "device": "cuda:0", "begun": True, "ended": ""}],
        }
        change(document)
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    return write


def judged(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = app_module.main(["judge", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def least(tmp_path: Path, gbps: float) -> str:
    path = tmp_path / "limits.toml"
    path.write_text(f'[thresholds]\n"bandwidth.min_gbps" = {gbps}\n', encoding="utf-8")
    return str(path)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in document["findings"]}


@pytest.mark.parametrize(("gbps", "code", "verdict"), [(1, 0, "pass"), (9, 1, "fail")])
def test_other_thresholds_judge_the_same_rows(
    gbps: float, code: int, verdict: str, saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, document = judged(capsys, saved(), "--config", least(tmp_path, gbps))
    assert (ended, verdicts(document)["bandwidth.min_gbps"]) == (code, verdict)
    assert document["command"] == "bench bandwidth"
    assert verdicts(document)["bandwidth.result"] == "pass"


def test_without_others_those_count_that_it_was_measured_with(saved: Any, capsys: pytest.CaptureFixture[str]) -> None:
    limit = {"id": "bandwidth.min_gbps", "value": 9e9, "unit": "B/s", "origin": "--min-gbps", "device": None}
    path = saved(change=lambda document: document.update(settings={"thresholds": [limit]}))
    code, document = judged(capsys, path)
    assert (code, verdicts(document)["bandwidth.min_gbps"]) == (1, "fail")


def test_one_that_was_cut_off_passes_no_threshold(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(change=lambda document: document["parts"][0].update(ended=None))
    code, document = judged(capsys, path, "--config", least(tmp_path, 1))
    assert (code, verdicts(document)["bandwidth.min_gbps"]) == (4, "inconclusive")
    assert document["summary"]["complete"] is False
    # Without a threshold too: what was cut off is no pass.
    code, document = judged(capsys, path)
    assert (code, verdicts(document)["judge.incomplete"]) == (4, "inconclusive")

    def killed(document: dict[str, Any]) -> None:
        document["parts"].append({"id": "matmul", "device": "cuda:0", "begun": False, "ended": None})
        document["summary"]["complete"] = False

    # The file of before the next part began.
    code, document = judged(capsys, saved(change=killed))
    assert (code, verdicts(document)["judge.incomplete"]) == (4, "inconclusive")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(command="doctor"), "is a result of `gpucheck doctor`: only benchmarks can be judged"),
        (lambda one: one.update(command="smoke"), "is a result of `gpucheck smoke`"),
        (lambda one: one.pop("parts"), "does not record which parts ran: the run was cut off before the first part"),
        # A row that no part is about would be judged by nobody.
        (lambda one: one["parts"][0].update(id="matmul"), "record which parts ran: it has rows of bandwidth on cuda:0"),
        (lambda one: one["parts"][0].update(device=None), "record which parts ran: it has rows of bandwidth on cuda:0"),
        (lambda one: one["measurements"][0].update(name="x"), "record which parts ran: it has rows of x on cuda:0"),
        (
            lambda one: one.update(
                settings={"thresholds": [{"id": "later.min", "value": 1.0, "unit": "1", "origin": "--later"}]}
            ),
            "sets thresholds that this gpucheck does not know: it was written by another gpucheck, with later.min",
        ),
        (lambda one: one.update(schema="other/1"), "is not a gpucheck document"),
        (lambda one: one.update(schema="gpucheck.report/9"), "has schema gpucheck.report/9"),
        (lambda one: one.pop("measurements"), "is incomplete"),
        (lambda one: one["measurements"][0]["runs"][0].update(samples_s=[-1.0]), "is incomplete"),
    ],
)
def test_what_cannot_be_judged_is_one_sentence(
    change: Change, words: str, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(change=change)
    assert app_module.main(["judge", path]) == 2
    captured = capsys.readouterr()
    assert words in sentence(captured.err) and captured.out == ""
    with pytest.raises(api.UsageError):
        api.judge(path)


def test_a_judge_that_raises_is_a_finding_and_costs_no_row(
    saved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(document: Report) -> Judgement:
        raise ZeroDivisionError("a judge's own")

    monkeypatch.setattr(whole_judge, "judge", broken)
    target = tmp_path / "out.json"
    assert app_module.main(["judge", saved(), "--json", "--output", str(target)]) == 70
    captured = capsys.readouterr()
    assert "this is a bug in gpucheck" in captured.err and "a judge's own" in captured.err
    for document in (json.loads(captured.out), json.loads(target.read_text(encoding="utf-8"))):
        schema.validator().validate(document)
        assert len(document["measurements"]) == 1
        assert document["summary"] == {"verdict": "fail", "exit": 70, "complete": False}
        (found,) = [one for one in document["findings"] if one["verdict"] == "fail"]
        assert (found["id"], found["evidence"]["step"]) == ("bandwidth.error", "judging")
