from __future__ import annotations

import pytest

from gpucheck.report.finding import VERDICTS, Finding, Verdict
from gpucheck.report.report import Collector, exit_code, verdict


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


def test_the_words_for_a_verdict_are_fixed() -> None:
    assert VERDICTS == ("pass", "info", "warn", "fail", "inconclusive", "skip")
