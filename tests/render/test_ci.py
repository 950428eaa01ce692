"""What CI reads: JUnit's XML, GitHub's annotations and its summary."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpucheck.render import ci, text
from gpucheck.report.events import Judged, Started
from gpucheck.report.facts import Device, Driver, Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report

CARDS = (Device("cuda", name="H200"), Device("cpu"))
FACTS = Facts(torch=TorchBuild(version="2.13.0"), driver=Driver(version="580.1"), devices=CARDS)
PASS = Finding("tensors.round_trip", "pass", "bits survive", "27 dtypes", {"elapsed_s": 0.25})
FAIL = Finding("numerics.matmul", "fail", "products agree", 'off by <3> & "more"', {"row": 4, "elapsed_s": 1}, "look")
LISTED = Finding("numerics.matmul", "fail", "products agree: float32, bfloat16", "5 % off\r\nin row 3", fix="look")
SKIP = Finding("streams.wait", "skip", "a stream waits", "no streams on cpu")
WARN = Finding("data.loader", "warn", "a loader delivers", "small /dev/shm", fix="--shm-size=1g")


def made(
    *findings: Finding, command: str = "smoke", complete: bool = True, strict: bool = False, code: int | None = None
) -> Report:
    collector = Collector()
    collector(Started(FACTS))
    for finding in findings:
        collector(Judged(finding))
    return collector.report(
        version="0.1.0",
        command=command,
        argv=(),
        started="2026-01-31T12:00:00Z",
        elapsed_s=3.2,
        complete=complete,
        strict=strict,
        code=code,
    )


# -- GitHub ------------------------------------------------------------------------------------------------------------


def test_annotations_are_escaped_and_a_skip_is_none() -> None:
    assert ci.workflow_commands(made(PASS, LISTED, SKIP, WARN)) == (
        "::error title=gpucheck smoke%3A products agree%3A float32%2C bfloat16::"
        "5 %25 off%0D%0Ain row 3%0ATo do: look%0A[numerics.matmul]\n"
        "::warning title=gpucheck smoke%3A a loader delivers::small /dev/shm%0ATo do: --shm-size=1g%0A[data.loader]\n"
    )


def test_a_message_cannot_start_a_command_of_its_own() -> None:
    evil = Finding("a.b", "fail", "t", "x\n::add-mask::secret\x1b[31m\x00")
    lines = ci.workflow_commands(made(evil)).splitlines()
    assert lines == ["::error title=gpucheck smoke%3A t::x%0A::add-mask::secret%0A[a.b]"]


@pytest.mark.slow
def test_a_summary_stays_below_what_github_takes() -> None:
    assert ci.step_summary(made(PASS, LISTED)) == text.markdown_page(made(PASS, LISTED)).replace("\r", "")
    many = [Finding(f"a.b{number}", "fail", f"{number}" + "t" * 900, "m" * 5000) for number in range(900)]
    summary = ci.step_summary(made(*many))
    assert ci.SUMMARY_LIMIT_BYTES - 10_000 < len(summary.encode()) <= ci.SUMMARY_LIMIT_BYTES
    assert summary.endswith(ci.LEFT_OUT)


def test_annotations_go_to_the_stream_and_the_summary_to_its_file(tmp_path: Path) -> None:
    out, summary = io.StringIO(), tmp_path / "summary.md"
    summary.write_text("before\n")
    ci.announce(made(LISTED), out, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert out.getvalue() == ci.workflow_commands(made(LISTED))
    assert summary.read_text(encoding="utf-8") == "before\n" + ci.step_summary(made(LISTED))


def test_a_summary_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    out = io.StringIO()
    ci.announce(made(WARN), out, {"GITHUB_STEP_SUMMARY": str(tmp_path)})
    assert out.getvalue().splitlines()[-1].startswith("gpucheck: the step summary could not be written; ")


# -- JUnit -------------------------------------------------------------------------------------------------------------


def test_the_whole_document() -> None:
    assert ci.junit(made(PASS, FAIL, SKIP)) == (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<testsuites name="gpucheck" tests="3" failures="1" errors="0" skipped="1" time="3.200">\n'
        '  <testsuite name="gpucheck smoke" timestamp="2026-01-31T12:00:00Z" '
        'tests="3" failures="1" errors="0" skipped="1" time="3.200">\n'
        '    <testcase classname="gpucheck.smoke" name="tensors.round_trip" time="0.250">\n'
        "      <system-out>bits survive\n27 dtypes</system-out>\n"
        "    </testcase>\n"
        '    <testcase classname="gpucheck.smoke" name="numerics.matmul" time="1.000">\n'
        '      <failure message="products agree: off by &lt;3&gt; &amp; &quot;more&quot;" type="numerics.matmul">'
        'products agree\noff by &lt;3&gt; &amp; "more"\nto do: look\nrow: 4</failure>\n'
        "    </testcase>\n"
        '    <testcase classname="gpucheck.smoke" name="streams.wait">\n'
        '      <skipped message="a stream waits: no streams on cpu" />\n'
        "    </testcase>\n"
        "  </testsuite>\n"
        "</testsuites>\n"
    )


def case(report: Report, number: int = 0) -> ElementTree.Element:
    return ElementTree.fromstring(ci.junit(report)).findall("./testsuite/testcase")[number]


def test_a_warning_passes_unless_warnings_fail_the_command() -> None:
    relaxed = case(made(WARN))
    assert relaxed.find("failure") is None
    assert relaxed.findtext("system-out") == "a loader delivers\nsmall /dev/shm\nto do: --shm-size=1g"
    assert case(made(WARN, strict=True)).find("failure") is not None
    # Where another finding failed, a warning need not have.
    assert case(made(FAIL, WARN), 1).find("failure") is None


def test_a_report_that_was_cut_off_is_no_pass() -> None:
    document = ElementTree.fromstring(ci.junit(made(PASS, complete=False)))
    assert document.get("errors") == "1"
    assert document.findall("./testsuite/testcase")[1].get("name") == "complete"


def test_control_characters_are_written_as_escapes_and_the_rest_survives() -> None:
    assert ci.clean("a\x1b[31mb\x00\ud800\uffff\tc\n") == "a\\x1b[31mb\\x00\\ud800\\uffff\tc\n"
    torn = Finding("a.b", "fail", "t\x07", "m\x1b\ud8ff", {"k": "v\x01"})
    text = ci.junit(made(torn))
    text.encode("utf-8")
    failure = ElementTree.fromstring(text).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "t\\x07: m\\x1b\\ud8ff"
    assert failure.text == "t\\x07\nm\\x1b\\ud8ff\nk: v\\x01"
