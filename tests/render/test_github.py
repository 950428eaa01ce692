from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpucheck import errors
from gpucheck.render import ci
from gpucheck.report.events import Judged, Started
from gpucheck.report.facts import Device, Driver, Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import Collector, Report

CARD = Device("cuda", name="H200")
FACTS = Facts(torch=TorchBuild(version="2.13.0"), driver=Driver(version="580.1"), devices=(CARD,))
PASS = Finding("tensors.round_trip", "pass", "bits survive", "27 dtypes")
FAIL = Finding("numerics.matmul", "fail", "products agree: float32, bfloat16", "5 % off\r\nin row 3", fix="look")
SKIP = Finding("streams.wait", "skip", "a stream waits", "no streams on cpu")
WARN = Finding("data.loader", "warn", "a loader delivers", "small")


def made(*findings: Finding, complete: bool = True, strict: bool = False) -> Report:
    collector = Collector()
    collector(Started(FACTS))
    for finding in findings:
        collector(Judged(finding))
    return collector.report(
        version="0.1.0", command="smoke", argv=(), started="", elapsed_s=3.2, complete=complete, strict=strict
    )


def test_annotations_are_escaped_and_a_skip_is_none() -> None:
    assert ci.workflow_commands(made(PASS, FAIL, SKIP, WARN)) == (
        "::error title=gpucheck smoke%3A products agree%3A float32%2C bfloat16::"
        "5 %25 off%0D%0Ain row 3%0ATo do: look%0A[numerics.matmul]\n"
        "::warning title=gpucheck smoke%3A a loader delivers::small%0A[data.loader]\n"
    )


def test_a_message_cannot_start_a_command_of_its_own() -> None:
    evil = Finding("a.b", "fail", "t", "x\n::add-mask::secret\x1b[31m\x00")
    lines = ci.workflow_commands(made(evil)).splitlines()
    assert lines == ["::error title=gpucheck smoke%3A t::x%0A::add-mask::secret%0A[a.b]"]


def test_under_strict_a_warning_is_an_error() -> None:
    assert ci.workflow_commands(made(WARN, strict=True)).startswith("::error ")


def test_nothing_to_say_is_no_line_and_a_cut_is_one() -> None:
    assert ci.workflow_commands(made(PASS)) == ""
    assert ci.workflow_commands(made(PASS, complete=False)) == (
        "::error title=gpucheck smoke::cut off: the report is not complete\n"
    )


def test_a_target_that_failed_was_not_cut_off() -> None:
    collector = Collector()
    collector(Judged(FAIL))
    failed, cut = (
        collector.report(
            version="0.1.0",
            command="find-batch-size",
            argv=(),
            started="",
            elapsed_s=3.2,
            code=code,
            complete=False,
        )
        for code in (errors.USAGE, errors.INTERRUPTED)
    )
    assert "**Not complete: the target failed.**" in ci.step_summary(failed)
    assert "**Not complete: the command was cut off.**" in ci.step_summary(cut)
    assert ci.workflow_commands(failed).endswith("::the target failed: the report is not complete\n")
    assert ci.workflow_commands(cut).endswith("::cut off: the report is not complete\n")
    assert (">the command ran to its end\nthe target failed<" in ci.junit(failed), failed.incomplete) == (
        True,
        "the target failed",
    )


def test_the_summary_has_the_worst_first() -> None:
    assert ci.step_summary(made(PASS, SKIP, FAIL)) == (
        "### gpucheck smoke: ✗ fail\n"
        "\n"
        "H200 · torch 2.13.0 · driver 580.1 · 3.2 s\n"
        "\n"
        "| verdict | id | | |\n"
        "|:--|:--|:--|:--|\n"
        "| ✗ fail | `numerics.matmul` | products agree: float32, bfloat16 | 5 % off<br>in row 3<br>→ look |\n"
        "| – skip | `streams.wait` | a stream waits | no streams on cpu |\n"
        "| ✓ pass | `tensors.round_trip` | bits survive | 27 dtypes |\n"
        "\n"
    )


def test_nothing_in_a_cell_is_markup() -> None:
    hostile = Finding("a|`b", "fail", "<img src=x>", "a|b `c` [d](http://e) @f __g__ \x1b[1mh\x1b[0m &amp;")
    text = ci.step_summary(made(hostile))
    assert "| `a\\|'b` | &lt;img src=x&gt; | " in text
    assert "| a\\|b \\`c\\` \\[d\\](http:&#47;&#47;e) &#64;f \\_\\_g\\_\\_ h &amp;amp; |" in text


def test_a_summary_stays_below_what_github_takes() -> None:
    many = [Finding(f"a.b{number}", "fail", "t" * 900, "m" * 5000) for number in range(900)]
    text = ci.step_summary(made(*many))
    assert len(text.encode()) < ci.SUMMARY_LIMIT_BYTES
    shown = text.count("\n| ✗ fail")
    assert 0 < shown < 900
    assert text.endswith(f"\n\n{900 - shown} more findings are left out here.\n\n")


def test_it_speaks_only_under_github_actions(tmp_path: Path) -> None:
    out, summary = io.StringIO(), tmp_path / "summary.md"
    ci.announce(made(FAIL), out, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert (out.getvalue(), summary.exists()) == ("", False)
    summary.write_text("before\n")
    ci.announce(made(FAIL), out, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    assert out.getvalue() == ci.workflow_commands(made(FAIL))
    assert summary.read_text(encoding="utf-8") == "before\n" + ci.step_summary(made(FAIL))


def test_a_summary_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    out = io.StringIO()
    ci.announce(made(WARN), out, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path)})
    assert out.getvalue().splitlines()[-1].startswith("gpucheck: the step summary could not be written; ")


@pytest.mark.parametrize(
    ("text", "data", "prop"), [("100%25", "100%2525", "100%2525"), ("a:b,c", "a:b,c", "a%3Ab%2Cc")]
)
def test_escaping_escapes_the_escape(text: str, data: str, prop: str) -> None:
    assert ci.escape_data(text) == data
    assert ci.escape_property(text) == prop
