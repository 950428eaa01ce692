from __future__ import annotations

from xml.etree import ElementTree

from gpucheck.render.ci import clean, junit
from gpucheck.report.events import Judged, Started
from gpucheck.report.facts import Device, Driver, Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report

CARDS = (Device("cuda", name="H200"), Device("cpu"))
FACTS = Facts(torch=TorchBuild(version="2.13.0"), driver=Driver(version="580.1"), devices=CARDS)
PASS = Finding("tensors.round_trip", "pass", "bits survive", "27 dtypes", {"elapsed_s": 0.25})
FAIL = Finding("numerics.matmul", "fail", "products agree", 'off by <3> & "more"', {"row": 4, "elapsed_s": 1}, "look")
SKIP = Finding("streams.wait", "skip", "a stream waits", "no streams on cpu")
WARN = Finding("data.loader", "warn", "a loader delivers", "small /dev/shm", fix="--shm-size=1g")
OPEN = Finding("transfer.speed", "inconclusive", "fast enough", "too noisy")


def made(*findings: Finding, command: str = "smoke", complete: bool = True, strict: bool = False) -> Report:
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
    )


def test_the_whole_document() -> None:
    assert junit(made(PASS, FAIL, SKIP)) == (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<testsuites name="gpucheck" tests="3" failures="1" errors="0" skipped="1" time="3.200">\n'
        '  <testsuite name="gpucheck smoke" timestamp="2026-01-31T12:00:00Z" '
        'tests="3" failures="1" errors="0" skipped="1" time="3.200">\n'
        "    <properties>\n"
        '      <property name="gpucheck" value="0.1.0" />\n'
        '      <property name="torch" value="2.13.0" />\n'
        '      <property name="driver" value="580.1" />\n'
        '      <property name="devices" value="H200, cpu" />\n'
        "    </properties>\n"
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
    return ElementTree.fromstring(junit(report)).findall("./testsuite/testcase")[number]


def test_an_undecided_finding_is_an_error() -> None:
    assert case(made(OPEN)).find("error") is not None
    assert ElementTree.fromstring(junit(made(OPEN))).get("errors") == "1"


def test_a_warning_passes_unless_warnings_fail_the_command() -> None:
    relaxed = case(made(WARN))
    assert relaxed.find("failure") is None
    assert relaxed.findtext("system-out") == "a loader delivers\nsmall /dev/shm\nto do: --shm-size=1g"
    assert case(made(WARN, strict=True)).find("failure") is not None
    # Where another finding failed, a warning need not have.
    assert case(made(FAIL, WARN), 1).find("failure") is None


def test_a_report_without_findings_is_one_case() -> None:
    only = case(made(command="bench matmul"))
    assert only.attrib == {"classname": "gpucheck.bench.matmul", "name": "bench.matmul"}
    assert only.find("failure") is None


def test_a_report_that_was_cut_off_is_no_pass() -> None:
    document = ElementTree.fromstring(junit(made(PASS, complete=False)))
    assert document.get("errors") == "1"
    assert document.findall("./testsuite/testcase")[1].get("name") == "complete"


def test_control_characters_are_written_as_escapes_and_the_rest_survives() -> None:
    assert clean("a\x1b[31mb\x00\ud800\uffff\tc\n") == "a\\x1b[31mb\\x00\\ud800\\uffff\tc\n"
    torn = Finding("a.b", "fail", "t\x07", "m\x1b\ud8ff", {"k": "v\x01"})
    text = junit(made(torn))
    text.encode("utf-8")
    failure = ElementTree.fromstring(text).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "t\\x07: m\\x1b\\ud8ff"
    assert failure.text == "t\\x07\nm\\x1b\\ud8ff\nk: v\\x01"
