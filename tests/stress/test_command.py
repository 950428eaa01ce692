"""The whole command: scripted children that fail, hang and die beside sound ones; signals; a real short run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_recorder import Recorder
from stressed import device as answer
from stressed import environment, facts

import document_schema as schema
from gpucheck.cli import app as app_module
from gpucheck.cli import session
from gpucheck.cli.commands import Common
from gpucheck.machine.child import LineChild
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Event, Progress
from gpucheck.report.facts import Driver, Ecc, Facts, Link
from gpucheck.report.report import Collector, Report
from gpucheck.stress import command as command_module
from gpucheck.stress.command import Environment, command
from gpucheck.stress.judge import judge
from gpucheck.stress.options import MOST_POINTS, StressOptions, plan


def run(options: StressOptions, given: Environment) -> tuple[Report, list[Event]]:
    collector, events = Collector(), Recorder()

    def emit(event: Event) -> None:
        collector(event)
        events(event)

    command(options, emit, given)
    report = collector.report(version="0", command="stress", argv=(), started="", elapsed_s=1.0, judge=judge)
    return report, events.events


def judged(report: Report) -> list[tuple[str, str, str | None]]:
    return [(finding.id, finding.verdict, finding.device) for finding in report.findings]


def test_four_sound_devices_pass() -> None:
    report, _ = run(StressOptions(duration_s=1.0), environment({}))
    assert judged(report) == [("stress.wrong", "pass", None), ("stress.slow", "pass", None)]
    assert report.summary.exit == 0 and report.summary.complete
    assert [row.name for row in report.results["stress"].devices] == [f"cuda:{n}" for n in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "script", ["hangs", "hangs at the start", "is lost at the start", "dies", "fails", "talks for ever"]
)
def test_a_device_that_fails_or_hangs_costs_the_others_nothing(script: str, seed: int) -> None:
    who = f"cuda:{random.Random(f'{script}{seed}').randrange(4)}"
    # Where none is silent, no sound one is to be called silent on a busy machine.
    patient = {"opening_s": 30.0, "silent_s": 30.0} if script in ("is lost at the start", "dies", "fails") else {}
    report, _ = run(StressOptions(duration_s=0.5), environment({who: script}, seed, **patient))
    assert judged(report)[0] == ("device.error", "fail", who)
    assert report.summary.exit == 1 and not report.summary.complete
    devices = report.results["stress"].devices
    assert [row.ended for row in devices] == ["fault" if row.name == who else "" for row in devices]
    for row in devices:
        whole = len(answer(0).points)
        assert len(row.points) == (0 if "start" in script else whole // 2) if row.name == who else whole
    (fault,) = report.faults
    if script.startswith("hangs"):
        assert fault.silent_s is not None and fault.silent_s >= 0.7
    if script == "dies":
        assert fault.text.startswith("its process was ended by SIGSEGV")
    if script == "fails":
        assert "uncorrectable ECC" in fault.text
    if script == "is lost at the start":
        assert fault.kind == "device" and "illegal memory access" in fault.text


def test_a_device_without_memory_is_left_out_with_its_reason() -> None:
    report, _ = run(StressOptions(duration_s=0.5), environment({"cuda:2": "raises at the start"}))
    assert judged(report)[0] == ("stress.memory", "skip", "cuda:2")
    assert report.summary.exit == 0 and report.results["stress"].devices[2].ended == "error"


@pytest.mark.parametrize("seed", range(4))
def test_a_device_that_computes_wrongly_is_named(seed: int) -> None:
    who = f"cuda:{seed}"
    report, events = run(StressOptions(duration_s=0.5), environment({who: "computes wrongly"}, seed))
    assert judged(report)[0] == ("stress.wrong", "fail", who) and report.summary.exit == 1
    assert all(isinstance(row.step, str) for row in events if isinstance(row, Progress))


def test_counters_that_rise_during_the_run_are_told() -> None:
    readings = [
        facts(1, ecc=Ecc(volatile_corrected=5, volatile_uncorrected=0), pcie=Link(replays=7)),
        facts(1, ecc=Ecc(volatile_corrected=5, volatile_uncorrected=2), pcie=Link(replays=7)),
    ]
    line = "[1.0] NVRM: Xid (PCI:0000:00:00): 48, pid=1, DBE"
    logs: list[tuple[str, ...]] = [(line,), (line, line)]
    given = environment({}, read=lambda: readings.pop(0), log=lambda: (logs.pop(0), None))
    report, _ = run(StressOptions(duration_s=0.5), given)
    (device,) = report.results["stress"].devices
    assert device.counters == {"ecc_corrected": 0, "ecc_uncorrected": 2, "pcie_replays": 0, "xids": 1}
    (found,) = [row for row in report.findings if row.id == "stress.errors"]
    assert found.verdict == "fail" and found.title.startswith("cuda:0: 1 Xid errors")


def counted(before: Facts, after: Facts, *logs: tuple[str, ...] | None) -> list[tuple[str, str | None, str]]:
    """The findings of counters, after readings of the machine and its log before and after the run."""
    readings, lines = [before, after], list(logs or [None, None])
    given = environment({}, read=lambda: readings.pop(0), log=lambda: (lines.pop(0), None))
    report, _ = run(StressOptions(duration_s=0.5), given)
    errors = (finding for finding in report.findings if finding.id == "stress.errors")
    return [(finding.verdict, finding.device, finding.title) for finding in errors]


def test_counters_are_not_taken_for_those_of_a_device_that_has_the_index_of_a_lost_one() -> None:
    first, second = (replace(row, ecc=Ecc(volatile_corrected=50 * n)) for n, row in enumerate(facts(2).devices))
    before = replace(facts(2), devices=(first, second))
    line = "[9.0] NVRM: Xid (PCI:0000:00:00): 79, pid=1, GPU has fallen off the bus."
    after = replace(before, devices=(replace(second, id="cuda:0"),))
    assert counted(before, after) == [("fail", "cuda:0", "cuda:0: the driver lost the GPU")]
    assert counted(before, after, (), (line,)) == [
        ("fail", "cuda:0", "cuda:0: the driver lost the GPU, 1 Xid errors in the kernel log")
    ]


@pytest.mark.parametrize("state", ["lost", "reset required", "not answering: NVML did not answer within 5 s"])
def test_a_gpu_that_does_not_answer_after_the_run_is_lost(state: str) -> None:
    (gpu,) = facts(1).devices
    dead = replace(facts(1), devices=(replace(gpu, state=state),), driver=Driver(nvml_error="broke off"))
    assert counted(replace(facts(1), devices=(gpu,)), dead) == [("fail", "cuda:0", "cuda:0: the driver lost the GPU")]


@pytest.mark.parametrize("left", [{"devices": ()}, {"devices": facts(1, nvml_index=None).devices}])
def test_a_gpu_of_which_nvml_tells_nothing_after_the_run_is_no_pass(left: dict[str, Any]) -> None:
    mismatch = replace(facts(1), **left, driver=Driver(nvml_error="Driver/library version mismatch"))
    given = environment({}, read=iter([facts(1), mismatch]).__next__)
    report, _ = run(StressOptions(duration_s=0.5), given)
    assert (report.summary.verdict, report.summary.exit) == ("inconclusive", 4)
    (found,) = [row for row in report.findings if row.id == "stress.errors"]
    assert found.message == "after the run Driver/library version mismatch"


@pytest.mark.parametrize("signal", [KeyboardInterrupt])
def test_ctrl_c_reports_what_there_is(
    signal: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = environment({f"cuda:{n}": "waits" for n in range(4)}, opening_s=30.0, silent_s=30.0)
    shown = command_module._StressRun._show
    waiting: list[LineChild] = []

    def interrupted(self: Any) -> None:
        shown(self)
        if all(row.step == "all is done" for row in self.runners):
            waiting.extend(row.session._child for row in self.runners)
            raise signal

    monkeypatch.setattr(command_module._StressRun, "_show", interrupted)
    work: Callable[[Any], None] = lambda emit: command(StressOptions(duration_s=60.0), emit, given)  # noqa: E731
    assert session.run(Common("stress", json=True), work, judge=judge) == 130
    document = json.loads(capsys.readouterr().out)
    schema.validator().validate(document)
    devices = document["results"]["stress"]["devices"]
    assert [(row["ended"], len(row["points"])) for row in devices] == [("signal", len(answer(0).points))] * 4
    assert document["summary"]["complete"] is False
    assert [child._process.poll() is not None for child in waiting] == [True] * 4


# -- the plan, and how it is thinned ----------------------------------------------------------------------------------


@pytest.mark.parametrize("duration_s", [0.1, 3.0, 60.0, 599.0, 3600.0, 86400.0])
@pytest.mark.parametrize(
    "kinds", [("memory",), ("products", "copies", "mixed"), ("products", "memory", "copies", "mixed")]
)
def test_an_hour_has_no_more_points_than_a_minute(duration_s: float, kinds: tuple[str, ...]) -> None:
    made = plan(duration_s, kinds)
    assert 2 * MOST_POINTS / 3 <= made.points <= MOST_POINTS
    numbers = [made.point_at(duration_s * share / 1000) for share in range(1000)]
    assert numbers == sorted(numbers) and set(numbers) == set(range(made.points))
    assert made.point_at(duration_s) == made.point_at(2 * duration_s) == made.points
    turns = [made.kind_of(point) for point in range(made.points)]
    assert {turns.count(kind) for kind in kinds} == {made.points // len(kinds)}


# -- for real ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_short_run_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stress.json"
    code = app_module.main(
        ["stress", "--device", "cpu", "--duration", "1s", "--fill", "2%", "--quiet", "--output", str(file)]
    )
    document = json.loads(file.read_text(encoding="utf-8"))
    schema.validator().validate(document)
    assert to_json(from_json(Report, document)) == document
    (results,) = [row for row in document["findings"] if row["id"] == "stress.wrong"]
    assert results["verdict"] == "pass" and code == document["summary"]["exit"] == 0
    devices = document["results"]["stress"]["devices"]
    assert all(row["steps"] and row["points"] and row["checks"] == 2 and row["ended"] == "" for row in devices)
    assert len({row["checksums"]["products"] for row in devices}) == 1
    assert " cpu " in capsys.readouterr().out
