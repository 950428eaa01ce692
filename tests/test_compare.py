"""What two reports say of each other, from documents made by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.compare import comparison
from gpucheck.compare.comparison import compare, judge
from gpucheck.report.facts import Device, Driver, Ecc, Facts, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results.short import Comparison

FACTS = Facts(
    torch=TorchBuild("2.13.0"),
    driver=Driver(version="580.1"),
    devices=(Device(kind="cuda", id="cuda:0"), Device(kind="cpu", id="cpu", name="EPYC", cores_allowed=16)),
)

H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")
EVENTS = Method("device events", "held", "warm", "float32", "float32")
# Seven processes around 1 s, 1 % apart.
STEADY = (0.990, 0.995, 1.000, 1.000, 1.000, 1.005, 1.010)


def row(medians: Sequence[float], **more: Any) -> Measurement:
    """A row of one run for each median; two calls in each sample."""
    return Measurement(
        name=more.pop("name", "matmul"),
        device=more.pop("device", H200),
        case=more.pop("case", {"dtype": "float32", "m": 64}),
        runs=tuple(Run("", 2, (2 * median, 1.9 * median, 2.3 * median), (0.0, 1.0, 2.0)) for median in medians),
        time_s=TimeStats(1.0, 3),
        work=more.pop("work", {"flop": 1e9}),
        rate=more.pop("rate", Rate(1e9, "FLOP/s")),
        memory=MemoryFigures(),
        method=more.pop("method", EVENTS),
        flags=more.pop("flags", ()),
    )


def report(*rows: Measurement, facts: Facts = FACTS) -> Report:
    return Report(
        "gpucheck.report/1", "0.1.0", "bench matmul", (), "", 1.0, facts, rows, (), {}, (), Summary("pass", 0, True)
    )


def scaled(factor: float) -> list[float]:
    return [factor * median for median in STEADY]


def changes(comparison: Comparison) -> list[str]:
    return [row.change for row in comparison.rows]


def finding(findings: Sequence[Finding], name: str) -> Finding:
    return next(one for one in findings if one.id == name)


def test_welch_is_the_textbook_s() -> None:
    # Welch's own formulas on a set worked by hand: variances 0.01 and 0.04, three and four values.
    old = [math.exp(value) for value in (0.9, 1.0, 1.1)]
    new = [math.exp(value) for value in (1.8, 2.0, 2.0, 2.2)]
    test = comparison.difference(old, new)
    of_old, of_new = 0.01 / 3, (0.08 / 3) / 4
    assert test.difference == pytest.approx(1.0)
    assert test.error == pytest.approx(math.sqrt(of_old + of_new))
    assert test.df == pytest.approx((of_old + of_new) ** 2 / (of_old**2 / 2 + of_new**2 / 3))
    low, high = test.interval(0.95)
    assert math.sqrt(low * high) == pytest.approx(math.e)
    # The interval at 1 - p touches 1.
    assert test.interval(1 - test.p)[0] == pytest.approx(1.0, abs=1e-6)


def test_of_seven_values_the_outermost_are_left_out() -> None:
    # Worked by hand: 1 and 9 are left out of the old, 2 and 4 of the new.
    old = [math.exp(value) for value in (1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 9.0)]
    new = [math.exp(value) for value in (2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 4.0)]
    test = comparison.difference(old, new)
    assert test.difference == pytest.approx(0.0)
    # The winsorised old is 2, 2, 2, 3, 4, 4, 4: its squares add up to 6, and of the new all are 3.
    assert test.error == pytest.approx(math.sqrt(6 / (5 * 4)))
    assert test.df == pytest.approx(4)
    # Six values spare none.
    assert comparison.difference(old[:6], new[:6]).difference != pytest.approx(0.0)


def test_one_run_beside_other_work_hides_no_slowdown() -> None:
    disturbed = [*STEADY[:-1], 2.0]
    comparison = compare(report(row(disturbed)), report(row(scaled(1.1))))
    assert comparison.rows[0].change == "slower"


def test_a_run_is_compared_by_its_lower_quartile() -> None:
    def bursts(factor: float) -> Report:
        """Seven runs, in each of which half the samples were taken beside other work."""
        each = [tuple(factor * value for value in (1.0, 1.0, 1.0, 1.4, 1.4, 1.4)) for _ in range(7)]
        return report(replace(row(STEADY), runs=tuple(Run("", 1, samples, (0.0,) * 6) for samples in each)))

    (found,) = compare(bursts(1.0), bursts(1.1)).rows
    assert found.change == "slower"
    assert found.ratio == pytest.approx(1.1)
    assert found.old_s == pytest.approx(1.2)  # what is shown is the median


def test_holm_holds_the_smallest_p_against_the_smallest_share() -> None:
    # 0.002 < 0.01/4; 0.003 < 0.01/3; 0.006 is not below 0.01/2, so it and 0.0061 stand against 0.01/2.
    levels = comparison.holm_levels([0.0061, 0.002, 0.006, 0.003])
    assert [round(1 - level, 6) for level in levels] == [0.005, 0.0025, 0.005, 0.003333]
    # Bonferroni would not have rejected 0.003; without any rejection all stand against alpha/m.
    assert [round(1 - level, 6) for level in comparison.holm_levels([0.5, 0.9])] == [0.005, 0.005]
    assert comparison.holm_levels([]) == []


@pytest.mark.parametrize(("factor", "change"), [(1.1, "slower"), (0.9, "faster"), (1.0, "same")])
def test_a_change_of_ten_percent_is_found(factor: float, change: str) -> None:
    comparison = compare(report(row(STEADY)), report(row(scaled(factor))))
    (one,) = comparison.rows
    assert one.change == change
    assert one.ratio == pytest.approx(factor)
    assert one.ci_low is not None and one.ci_high is not None and one.ci_low < factor < one.ci_high
    assert one.old_s == 1.0
    assert one.new_s == pytest.approx(factor)
    # Rates come from the work and the times, and the ratio stays that of the times.
    assert one.old_rate == 1e9
    assert one.new_rate == pytest.approx(1e9 / factor)


def test_the_unit_is_the_run_and_not_the_sample() -> None:
    # A thousand samples agree within each process; the processes do not.
    def of(medians: Sequence[float]) -> Measurement:
        runs = tuple(Run("", 1, (median,) * 1000, (0.0,) * 1000) for median in medians)
        return replace(row(()), runs=runs)

    comparison = compare(report(of((1.0, 1.2, 1.4))), report(of((1.1, 1.3, 1.5))))
    assert changes(comparison) == ["cannot tell"]
    assert comparison.rows[0].why == "the runs differ too much"


@pytest.mark.parametrize(("old", "new"), [(2, 7), (7, 2), (1, 1)])
def test_with_fewer_than_three_runs_nothing_can_be_told(old: int, new: int) -> None:
    comparison = compare(report(row([1.0] * old)), report(row([9.0] * new)))
    (one,) = comparison.rows
    assert (one.change, one.ci_low, one.ratio) == ("cannot tell", None, 9.0)
    assert one.why == f"{old} and {new} runs, at least 3 per side needed"
    changed = finding(judge(comparison), "compare.changes")
    assert (changed.verdict, "measure both with --runs 7" in (changed.fix or "")) == ("inconclusive", True)


def test_a_row_that_is_the_same_makes_the_comparison_an_answer() -> None:
    case = {"m": 64}
    old, new = report(row(STEADY), row([1.0], case=case)), report(row(STEADY), row([9.0], case=case))
    comparison = compare(old, new)
    assert changes(comparison) == ["same", "cannot tell"]
    assert finding(judge(comparison), "compare.changes").verdict == "info"


@pytest.mark.slow
def test_chance_alone_calls_few_changes() -> None:
    random.seed(11)

    def drawn() -> Report:
        rows = [[math.exp(random.gauss(0, 0.1)) for _ in range(7)] for _ in range(5)]
        return report(*(row(medians, case={"m": place}) for place, medians in enumerate(rows)))

    documents = 300
    alarms = sum(bool({"slower", "faster"} & set(changes(compare(drawn(), drawn())))) for _ in range(documents))
    # One in a hundred is promised for a document; ten of 300 would be three standard deviations above it.
    assert alarms < 10


def test_rows_are_matched_by_case_whatever_their_order() -> None:
    small, large = {"m": 64}, {"m": 128}
    old = report(row([1.0], case=small), row([2.0], case=large))
    new = report(row([2.0], case=large), row([1.0], case=small), row([3.0], case={"m": 256}))
    comparison = compare(old, new)
    assert [one.ratio for one in comparison.rows] == [1.0, 1.0]
    assert (comparison.only_old, comparison.only_new) == ((), ("matmul 256 on cuda:0",))


def test_a_row_meets_the_same_method_first_and_another_only_after_saying_so() -> None:
    tf32 = replace(EVENTS, precision_observed="tf32")
    both = compare(report(row([1.0]), row([2.0], method=tf32)), report(row([2.0], method=tf32), row([1.0])))
    assert [(one.ratio, one.differences) for one in both.rows] == [(1.0, ()), (1.0, ())]
    other = compare(report(row([1.0])), report(row([2.0], method=tf32)))
    assert other.rows[0].differences == ("precision_observed float32 → tf32",)
    assert finding(judge(other), "compare.method").verdict == "warn"


def test_cards_meet_themselves_first_and_a_cpu_never_meets_a_card() -> None:
    second = DeviceRef("cuda:1", "GPU-2", "NVIDIA H200")
    cpu = DeviceRef("cpu", None, "EPYC")
    comparison = compare(report(row([1.0]), row([2.0], device=second)), report(row([2.0], device=second)))
    assert (comparison.rows[0].ratio, comparison.only_old) == (1.0, ("matmul float32, 64 on cuda:0",))
    assert compare(report(row([1.0])), report(row([1.0], device=cpu))).rows == ()


def test_rows_without_a_time_are_listed() -> None:
    comparison = compare(report(row([])), report(row([1.0])))
    assert comparison.rows == ()
    assert comparison.only_old == comparison.only_new == ("matmul float32, 64 on cuda:0",)
    findings = judge(comparison)
    assert finding(findings, "compare.changes").verdict == "inconclusive"
    only = finding(findings, "compare.only_old")
    assert (only.message, only.evidence["rows"]) == ("1 row", ["matmul float32, 64 on cuda:0"])


def test_other_work_is_never_compared_by_its_time() -> None:
    comparison = compare(report(row(STEADY)), report(row(scaled(9), work={"flop": 9e9})))
    assert changes(comparison) == ["cannot tell"]
    assert comparison.rows[0].differences == ("work per call 1e+09 flop → 9e+09 flop",)


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        ({"method": replace(EVENTS, cache="cold")}, "cache warm → cold"),
        ({"method": replace(EVENTS, precision_observed="tf32")}, "precision_observed float32 → tf32"),
        ({"method": replace(EVENTS, clock="host")}, "clock device events → host"),
        # What launching takes is not what the device takes.
        ({"flags": ("launch-bound",)}, "timed work → launches"),
    ],
)
@pytest.mark.parametrize("factor", [0.1, 1.0, 9.0, 9e3])
def test_what_is_timed_in_another_way_passes_and_fails_no_gate(
    factor: float, more: dict[str, Any], differs: str
) -> None:
    comparison = compare(report(row(STEADY)), report(row(scaled(factor), **more)))
    assert changes(comparison) == ["cannot tell"]
    gate = finding(judge(comparison, 0.05), "compare.slower")
    assert (gate.verdict, gate.message) == ("inconclusive", f"matmul float32, 64: {differs}")
    assert gate.fix == "measure both in the same way"


@pytest.mark.parametrize("more", [{"launch": "graph"}, {"numa": "node 1"}])
def test_launches_and_nodes_are_told_and_compared(more: dict[str, Any]) -> None:
    comparison = compare(report(row(STEADY)), report(row(scaled(2), method=replace(EVENTS, **more))))
    assert (changes(comparison), len(comparison.rows[0].differences)) == (["slower"], 1)
    assert finding(judge(comparison, 0.05), "compare.slower").verdict == "fail"


def test_figures_of_a_result_that_is_wrong_or_cut_off_pass_no_gate() -> None:
    sound = report(row(STEADY))
    wrong = replace(sound, findings=(Finding("matmul.result", "fail", "a result is wrong"),))
    cut = replace(sound, summary=Summary("inconclusive", 130, False))
    slow = replace(sound, findings=(Finding("matmul.min_tflops", "fail", "too slow", evidence={"threshold": {}}),))
    for old, new, told in (
        (sound, wrong, "a result is not reliable: new: a result is wrong"),
        (wrong, sound, "a result is not reliable: old: a result is wrong"),
        (sound, cut, "a result is not reliable: new: not complete: the command was cut off"),
    ):
        comparison = compare(old, new)
        found = finding(judge(comparison, 0.05), "compare.reliable")
        assert (found.verdict, f"{found.title}: {found.message}") == ("inconclusive", told)
        assert finding(judge(comparison), "compare.reliable").verdict == "warn"
    for old, new in ((cut, sound), (slow, slow)):
        assert "compare.reliable" not in {one.id for one in judge(compare(old, new), 0.05)}


@pytest.mark.parametrize(
    ("failure", "doubted"),
    [
        (Finding("matmul.result", "fail", "a result is wrong", device="cuda:0"), True),
        (Finding("gpucheck.error", "fail", "bench all ended with an error"), True),
        # How each row was computed is compared with that row.
        (Finding("matmul.precision", "fail", "float32 ran as tf32", device="cuda:0"), False),
    ],
)
def test_what_failed_doubts_the_figures(failure: Finding, doubted: bool) -> None:
    sound = report(row(STEADY))
    failed = replace(sound, findings=(failure,))
    assert compare(failed, sound).doubts == ((f"old: {failure.title}",) if doubted else ())
    assert compare(sound, failed).doubts == ((f"new: {failure.title}",) if doubted else ())


def test_a_run_that_both_documents_hold_passes_no_gate() -> None:
    started = [replace(run, started="2026-11-27T03:00:00Z") for run in row(STEADY).runs]
    once = replace(row(STEADY), runs=tuple(started))
    others = replace(once, runs=tuple(replace(run, started="2026-11-27T04:00:00Z") for run in started))
    assert finding(judge(compare(report(once), report(others)), 0.05), "compare.slower").verdict == "pass"
    for again in (once, replace(once, runs=(*others.runs[:6], once.runs[0]))):
        comparison = compare(report(once), report(again))
        assert comparison.doubts == ("old and new hold the same run: nothing was measured in between",)
        assert finding(judge(comparison, 0.05), "compare.reliable").verdict == "inconclusive"


def test_another_machine_and_other_software_are_told() -> None:
    facts = replace(FACTS, torch=TorchBuild("2.14.0"), devices=(Device(kind="cpu", id="cpu", cores_allowed=8),))
    other = row([1.0], device=DeviceRef("cuda:0", "GPU-9", "NVIDIA H200"))
    comparison = compare(report(row([1.0])), report(other, facts=facts))
    assert comparison.machine == (
        "cuda:0 UUID GPU-1 → GPU-9",
        "processor EPYC → unknown",
        "cores allowed 16 → 8",
    )
    assert comparison.software == ("torch 2.13.0 → 2.14.0",)
    verdicts = {one.id: one.verdict for one in judge(comparison)}
    assert (verdicts["compare.machine"], verdicts["compare.software"]) == ("warn", "info")
    # A machine of which one side knows less is no other one.
    less = compare(report(row([1.0])), report(row([1.0]), facts=replace(FACTS, devices=())))
    unknown = finding(judge(less), "compare.machine")
    assert (unknown.verdict, unknown.title) == ("info", "the machines may differ")
    assert compare(report(row([1.0])), report(row([1.0]))).machine == ()


@pytest.mark.parametrize(
    ("factor", "limit", "verdict"),
    [
        (1.20, 0.05, "fail"),
        (1.05, 0.05, "inconclusive"),
        (1.00, 0.05, "pass"),
        (0.50, 0.05, "pass"),
        # Slower for certain, and within what is allowed.
        (1.10, 0.20, "pass"),
        (1.10, 0.0, "fail"),
    ],
)
def test_the_gate(factor: float, limit: float, verdict: str) -> None:
    comparison = compare(report(row(STEADY)), report(row(scaled(factor))))
    assert finding(judge(comparison, limit), "compare.slower").verdict == verdict


def test_the_gate_is_about_the_interval_and_not_about_its_middle() -> None:
    """5.5 % slower in the middle, and perhaps 4: within what is allowed."""
    one = compare(report(row(STEADY)), report(row(scaled(1.055))))
    (found,) = one.rows
    assert found.ci_low is not None and found.ci_high is not None
    assert found.ci_low < 1.05 < found.ratio < found.ci_high
    assert finding(judge(one, 0.05), "compare.slower").verdict == "inconclusive"


@pytest.mark.parametrize(
    ("factor", "verdict"), [(3.0, "inconclusive"), (4.0, "inconclusive"), (4.3, "fail"), (8e3, "fail")]
)
@pytest.mark.parametrize("runs", [(1, 1), (2, 7), (7, 1)])
def test_what_no_noise_explains_fails_with_few_runs_too(factor: float, verdict: str, runs: tuple[int, int]) -> None:
    comparison = compare(report(row([1.0] * runs[0])), report(row([factor] * runs[1])))
    gate = finding(judge(comparison, 0.05), "compare.slower")
    assert gate.verdict == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(20.0, "inconclusive"), (40.0, "fail")])
def test_beside_other_work_only_what_that_cannot_explain_fails(factor: float, verdict: str) -> None:
    slow = compare(report(row(STEADY)), report(row(scaled(factor), flags=("cpu-busy",))))
    assert finding(judge(slow, 0.05), "compare.slower").verdict == verdict


@pytest.mark.parametrize("device", [DeviceRef("cpu", None, "CPU"), H200])
def test_a_short_call_can_have_waited_all_of_its_time_for_a_core(device: DeviceRef) -> None:
    def measured(times: float, flags: tuple[str, ...] = ()) -> Report:
        by_host = replace(EVENTS, clock="host")
        return report(row([times * 1e-4 * one for one in STEADY], device=device, method=by_host, flags=flags))

    slow = compare(measured(1), measured(300, ("cpu-busy",)))
    assert finding(judge(slow, 0.05), "compare.slower").verdict == "inconclusive"


def test_the_gate_fails_for_one_row_and_is_undecided_for_too_few_runs() -> None:
    one, two = {"m": 1}, {"m": 2}
    old = report(row(STEADY, case=one), row([1.0], case=two))
    slow = compare(old, report(row(scaled(2), case=one), row([1.0], case=two)))
    gate = finding(judge(slow, 0.05), "compare.slower")
    assert (gate.verdict, gate.evidence["slower"], gate.evidence["undecided"]) == ("fail", ["matmul 1"], ["matmul 2"])
    same = compare(old, old)
    assert finding(judge(same, 0.05), "compare.slower").verdict == "inconclusive"


def test_a_row_that_escapes_the_gate_is_a_warning() -> None:
    comparison = compare(report(row(STEADY), row(STEADY, case={"m": 1})), report(row(STEADY)))
    assert finding(judge(comparison, 0.05), "compare.only_old").verdict == "warn"
    assert finding(judge(comparison), "compare.only_old").verdict == "info"


@pytest.mark.parametrize(("busy", "verdict"), [(7, "inconclusive"), (4, "inconclusive"), (3, "fail")])
def test_a_busy_machine_fails_no_gate(busy: int, verdict: str) -> None:
    each = [{"flags": ["cpu-busy"] if place < busy else ["noisy"]} for place in range(7)]
    slow = row(scaled(2), method=replace(EVENTS, details={"each_run": each}), flags=("cpu-busy",))
    comparison = compare(report(row(STEADY)), report(slow))
    assert changes(comparison) == ["slower"]
    gate = finding(judge(comparison, 0.05), "compare.slower")
    assert gate.verdict == verdict
    disturbed = "matmul float32, 64: ×0.50, but most new runs were disturbed: machine busy"
    assert gate.message == (disturbed if busy > 3 else "matmul float32, 64 ×0.50")


def test_a_gpu_that_others_use_fails_no_gate_and_settings_are_named() -> None:
    shared = compare(report(row(STEADY)), report(row(scaled(2), flags=("device-shared",))))
    assert finding(judge(shared, 0.05), "compare.slower").verdict == "inconclusive"
    before = Device(kind="cuda", id="cuda:0", power_limit_w=700.0, ecc=Ecc(enabled=True), persistence_mode=True)
    after = replace(before, power_limit_w=300.0, ecc=Ecc(enabled=False), persistence_mode=False)
    old, new = (replace(FACTS, devices=(one, FACTS.devices[1])) for one in (before, after))
    assert compare(report(row(STEADY), facts=old), report(row(STEADY), facts=new)).machine == (
        "cuda:0 power limit 700 W → 300 W",
        "cuda:0 ECC on → off",
    )


def test_a_baseline_that_was_disturbed_passes_no_gate() -> None:
    busy = row(STEADY, flags=("cpu-busy",))
    gate = finding(judge(compare(report(busy), report(row(STEADY))), 0.05), "compare.slower")
    assert gate.verdict == "inconclusive"
    assert gate.message == "matmul float32, 64: ×1.00, but most old runs were disturbed: machine busy"
    alike = compare(report(busy), report(busy))
    assert finding(judge(alike, 0.05), "compare.slower").verdict == "pass"
    slower = compare(report(busy), report(row(scaled(2))))
    assert finding(judge(slower, 0.05), "compare.slower").verdict == "fail"
