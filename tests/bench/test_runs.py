"""The same command in fresh processes, behind a child made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from event_recorder import Recorder
from judged import folded

from gpucheck import errors
from gpucheck.bench import devices
from gpucheck.errors import CannotLook, Undecided, UsageError
from gpucheck.machine.child import ChildResult
from gpucheck.report.codec import to_json
from gpucheck.report.events import Measured, Notice, Progress, Skipped, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Part, Report, Summary
from gpucheck.report.results import Results
from gpucheck.report.results.bench import TransferResult

BAD = Finding("transfer.corrupt", "fail", "copies arrived corrupted")
LEFT_OUT = Finding("transfer.time", "skip", "not measured: idioms", device="cpu")


def report(time_s: float, *, code: int = 0, finding: Finding | None = None, wrong: int = 0, **more: Any) -> Report:
    entry = Measurement(
        "transfer",
        DeviceRef("cpu"),
        {"direction": "host_to_host", "host_memory": "pageable", "timed": "as_called", "size_bytes": 4096},
        (Run("", 1, (time_s,), (0.0,)),),
        TimeStats(time_s, 1),
        {"bytes": 4096.0},
        None,
        MemoryFigures(),
        Method("host", "host", "cold", details={"wrong_bytes": wrong, "first_wrong_byte": 0, "verified_slices": 4}),
    )
    results: Results = {"bench_transfer": (TransferResult("cpu"),)}
    summary = Summary(finding.verdict if finding else "pass", code, True)
    findings = (finding,) if finding else ()
    document = ("gpucheck.report/1", "0.1.0", "bench transfer", (), "", 1.0, Facts(), (entry,), findings, results, ())
    ran = tuple(Part(name, "cpu", True, "") for name in ("transfer", "transfer.copies"))
    return replace(Report(*document, summary), parts=ran, skips=(LEFT_OUT,), **more)


def ended(document: Report | None, *, code: int = 0, stderr: str = "", timed_out: bool = False) -> ChildResult:
    return ChildResult(code, json.dumps(to_json(document)) if document else "", stderr, timed_out, False, 1.0)


def playing(*children: ChildResult | BaseException) -> tuple[Callable[[Sequence[str], float], ChildResult], list[Any]]:
    """A child that ends so, one after another, and how each was started."""
    left, starts = list(children), []

    def run_child(argv: Sequence[str], timeout_s: float) -> ChildResult:
        starts.append((list(argv), timeout_s))
        child = left.pop(0)
        if isinstance(child, BaseException):
            raise child
        return child

    return run_child, starts


def told(recorder: Recorder, kind: type) -> list[Any]:
    return [event for event in recorder.events if isinstance(event, kind)]


def judged(recorder: Recorder) -> Report:
    return folded(recorder.events, "bench transfer")


def test_each_run_is_a_fresh_process_with_the_same_command_line() -> None:
    recorder, (run_child, starts) = Recorder(), playing(*(ended(report(time_s)) for time_s in (1.0, 2.0, 4.0)))
    whole = devices.repeated(["bench", "transfer", "--size", "4KiB"], 3, recorder, budget_s=7.0, run_child=run_child)
    assert [argv[3:] for argv, _ in starts] == [["bench", "transfer", "--size", "4KiB", "--json", "--quiet"]] * 3
    assert {timeout_s for _, timeout_s in starts} == {devices.LONGEST_RUN_S + 7.0}
    assert [(event.done, event.total) for event in told(recorder, Progress)] == [(0, 3), (1, 3), (2, 3)]
    (measured,) = told(recorder, Measured)
    assert measured.measurement == whole.measurements[0]
    assert [run.samples_s for run in whole.measurements[0].runs] == [(1.0,), (2.0,), (4.0,)]
    assert [event.finding for event in told(recorder, Skipped)] == [LEFT_OUT]
    assert len(told(recorder, Started)) == 1
    found = {finding.id: finding for finding in judged(recorder).findings}
    assert list(found) == ["transfer.time", "transfer.corrupt"]
    assert found["transfer.corrupt"].evidence == {"copies": 12}


def test_a_run_that_fails_ends_it_with_its_finding() -> None:
    failed = ended(report(2.0, code=1, finding=BAD, wrong=3), code=1)
    recorder, (run_child, starts) = Recorder(), playing(ended(report(1.0)), failed, ended(report(3.0)))
    devices.repeated([], 3, recorder, run_child=run_child)
    assert len(starts) == 2
    (found,) = [finding for finding in judged(recorder).findings if finding.verdict == "fail"]
    assert (found.id, found.message[:13]) == ("transfer.corrupt", "3 wrong bytes")
    assert [event.text for event in told(recorder, Notice)] == ["run 2 of 3 failed; the rest is skipped"]


def test_an_undecided_run_is_no_reason_to_stop() -> None:
    run_child, starts = playing(*(ended(report(1.0, code=4), code=4) for _ in range(2)))
    devices.repeated([], 2, Recorder(), run_child=run_child)
    assert len(starts) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, Undecided])
def test_what_was_measured_before_the_end_is_told(error: type[BaseException]) -> None:
    last = KeyboardInterrupt() if error is KeyboardInterrupt else ended(None, code=-9, stderr="Killed\n")
    recorder, (run_child, _) = Recorder(), playing(ended(report(1.0)), ended(report(2.0)), last)
    with pytest.raises(error):
        devices.repeated([], 7, recorder, run_child=run_child)
    (measured,) = told(recorder, Measured)
    assert len(measured.measurement.runs) == 2


@pytest.mark.parametrize("code", [errors.UNDECIDED, errors.TERMINATED])
def test_runs_that_were_cut_off_are_no_pass(code: int) -> None:
    """Even where they left nothing to judge: a gate would have passed with nothing measured."""
    whole = report(1.0)
    cut = replace(
        whole,
        measurements=(),
        parts=(),
        skips=(),
        findings=(),
        results={},
        summary=Summary("inconclusive", code, False),
    )
    recorder, (run_child, _) = Recorder(), playing(ended(cut, code=code), ended(cut, code=code))
    devices.repeated([], 2, recorder, run_child=run_child)
    summary = judged(recorder).summary
    assert (summary.verdict, summary.exit) == ("inconclusive", errors.UNDECIDED)
    (found,) = [event.finding for event in told(recorder, Skipped)]
    assert (found.id, found.title) == ("runs.child", "runs cut off: 2 of 2")


USAGE = "error: --size 9 is odd\n  tip: 8\nusage: gpucheck\n"


@pytest.mark.parametrize(
    ("child", "kind", "sentence"),
    [
        (ended(None, code=-9, stderr="x\nKilled"), Undecided, "run 1 was killed; SIGKILL: Killed; "),
        (ended(None, code=-11, stderr="x"), CannotLook, "run 1 ended with -11 and no document; x; "),
        (ended(None, code=-9, timed_out=True), CannotLook, "run 1 did not finish in time; "),
        (
            ended(None, code=2, stderr="error: --size 9 is odd\n  tip: 8\nusage: gpucheck\n"),
            UsageError,
            "--size 9 is odd; 8",
        ),
    ],
)
def test_a_child_without_a_document(child: ChildResult, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind) as raised:
        devices.repeated([], 2, Recorder(), run_child=playing(child)[0])
    assert str(raised.value).startswith(sentence)


FAULT = Fault("device", "bench transfer", "cuda:0", "AcceleratorError", "CUDA error: unspecified launch failure")


def test_a_run_that_a_device_broke_off_ends_it_and_the_whole_is_not_complete() -> None:
    broken = replace(report(2.0, code=1), faults=(FAULT,), summary=Summary("fail", 1, False))
    recorder, (run_child, starts) = Recorder(), playing(ended(report(1.0)), ended(broken, code=1), ended(report(3.0)))
    devices.repeated([], 3, recorder, run_child=run_child)
    whole = judged(recorder)
    assert len(starts) == 2
    assert [finding.id for finding in whole.findings if finding.verdict == "fail"] == ["device.error"]
    assert (whole.summary, whole.faults) == (Summary("fail", 1, False), (FAULT,))
    assert len(whole.measurements[0].runs) == 2


def test_a_run_that_ended_with_a_bug_keeps_its_rows() -> None:
    broken = replace(report(2.0), summary=Summary("fail", 70, False))
    words = "Traceback …\nerror: this is a bug"
    recorder, (run_child, starts) = Recorder(), playing(ended(report(1.0)), ended(broken, code=70, stderr=words))
    with pytest.raises(devices.FailedRun) as raised:
        devices.repeated([], 7, recorder, run_child=run_child)
    assert (raised.value.exit_code, len(starts)) == (70, 2)
    assert len(told(recorder, Measured)[0].measurement.runs) == 2
    assert told(recorder, Notice)[-1].text == words
