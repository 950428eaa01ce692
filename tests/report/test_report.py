from __future__ import annotations

import pytest

from gpucheck import errors
from gpucheck.render import text
from gpucheck.report.events import Failed, Notice
from gpucheck.report.fault import Fault, FaultKind
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import OUT_OF_TIME, Collector, exit_code, verdict


def findings(*verdicts: Verdict) -> tuple[Finding, ...]:
    return tuple(Finding(f"check.{number}", verdict, "t") for number, verdict in enumerate(verdicts))


@pytest.mark.parametrize(
    ("verdicts", "strict", "code"),
    [
        ((), False, 0),
        (("pass", "info"), False, 0),
        (("pass", "skip"), False, 0),
        (("skip", "skip"), False, 3),
        (("pass", "warn"), False, 0),
        (("pass", "warn"), True, 1),
        (("fail", "inconclusive"), False, 1),
        (("pass", "inconclusive"), False, 4),
    ],
)
def test_the_exit_status_of_findings(verdicts: tuple[Verdict, ...], strict: bool, code: int) -> None:
    assert exit_code(findings(*verdicts), strict=strict) == code


def test_what_was_skipped_for_want_of_time_alone_is_undecided() -> None:
    late, absent = Finding("matmul.time", "skip", "not measured"), Finding("peer.devices", "skip", "one GPU")
    assert [exit_code(found) for found in ((late,), (late, absent), (absent,))] == [4, 4, 3]


@pytest.mark.parametrize(
    ("verdicts", "code", "expected"),
    [
        (("pass", "skip"), 0, "pass"),
        (("pass", "warn"), 0, "warn"),
        (("skip",), 3, "skip"),
        (("pass",), 130, "inconclusive"),
        ((), 3, "skip"),
        (("pass",), 4, "inconclusive"),
        (("warn",), 1, "fail"),
    ],
)
def test_the_verdict_is_never_better_than_the_exit_status(
    verdicts: tuple[Verdict, ...], code: int, expected: str
) -> None:
    assert verdict(findings(*verdicts), code) == expected


def test_a_signal_outranks_what_was_found_and_the_report_says_so() -> None:
    report = Collector(findings=list(findings("fail"))).report(
        version="0", command="smoke", argv=(), started="", elapsed_s=0.0, code=130, complete=False
    )
    assert (report.summary.exit, report.summary.complete, report.summary.verdict) == (130, False, "fail")


@pytest.mark.parametrize(
    ("kind", "device", "code", "said"),
    [
        ("device", "cuda:1", errors.FAILED, "cuda:1 failed"),
        ("device", None, errors.FAILED, "the device failed"),
        ("memory", "cuda:1", errors.UNDECIDED, "memory ran out"),
        ("error", None, errors.BUG, "the command failed"),
        ("device", "cuda:1", errors.INTERRUPTED, "the command was cut off"),
    ],
)
def test_a_document_is_incomplete_for_the_fault_that_ended_the_work(
    kind: FaultKind, device: str | None, code: int, said: str
) -> None:
    collector = Collector()
    collector(Failed(Fault(kind, "find-batch-size", device, "RuntimeError", "text")))
    made = collector.report(version="", command="find-batch-size", argv=(), started="", elapsed_s=1.0, code=code)
    assert made.incomplete == said


def test_a_document_that_ran_out_of_time_says_so_and_advises_more_time() -> None:
    def shown(*events: Notice) -> list[str]:
        collector = Collector()
        for event in events:
            collector(event)
        argv = ("bench", "transfer", "--time-budget", "10s")
        made = collector.report(
            version="",
            command="bench transfer",
            argv=argv,
            started="",
            elapsed_s=1.0,
            code=errors.UNDECIDED,
            complete=False,
        )
        return [line.text for line in text.parts_of(made, verbose=False)[0] if isinstance(line, text.TextLine)][-2:]

    assert shown(Notice(OUT_OF_TIME, "warning")) == ["! not complete: out of time", "→ use a longer --time-budget"]
    assert shown() == [
        "! not complete: the command was cut off",
        "→ gpucheck bench transfer --time-budget 10s",
    ]
