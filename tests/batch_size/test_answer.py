from __future__ import annotations

from dataclasses import replace

from gpucheck.batch_size.answer import Context, End, entry, final_result, findings, measurement
from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.search import Search
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import GIB, MIB

CONTEXT = Context(
    target="mlp",
    mode="train",
    optimizer="torch.optim.AdamW",
    dtype=None,
    device=DeviceRef("cpu", None, "a CPU"),
    budget=Budget(GIB, 0, "--memory-limit 1GiB", 8 * GIB, 16 * GIB),
    method={"peak": "VmHWM"},
    parameter_bytes=10 * MIB,
    tolerance=0.02,
)
PASSED = Result(8, "search", True, "fits", peak_bytes=900 * MIB, steps_s=(0.5, 0.25), started_monotonic_s=(1.0, 1.5))
FAILED = Result(9, "search", False, "over-budget", "its peak is 1 MiB above the budget", peak_bytes=1025 * MIB)
CONFIRMED = replace(PASSED, purpose="confirm", peak_bytes=910 * MIB, state_bytes=40 * MIB, loss="the model's own")


def closed(*, confirmed: bool = True) -> tuple[Search, list[Result]]:
    search, results = Search(budget_bytes=GIB), [PASSED, FAILED, *([CONFIRMED] if confirmed else [])]
    for result in results:
        search.record(result.size, result.outcome, result.peak_bytes, purpose=result.purpose)  # type: ignore[arg-type]
    return search, results


def test_the_entry_holds_the_answer_and_how_it_came_about() -> None:
    search, results = closed()
    found = entry(search, results, CONTEXT, search.limited_by, None)
    assert {name: found[name] for name in ("max_batch_size", "confirmed", "first_failing", "limited_by")} == {
        "max_batch_size": 8,
        "confirmed": True,
        "first_failing": 9,
        "limited_by": "over-budget",
    }
    assert found["first_failing_reason"] == "its peak is 1 MiB above the budget"
    assert found["peak_bytes"] == 910 * MIB  # the higher of the two runs
    assert found["loss"] == "the model's own"
    assert found["samples_per_s"] == 32.0
    assert found["trial_count"] == len(found["trials"]) == 3
    assert to_json(found) == found


def test_the_default_malloc_is_told_and_not_judged() -> None:
    search, results = closed()
    above = replace(PASSED, purpose="default malloc", outcome="over-budget", reason="r", peak_bytes=1124 * MIB)
    assert entry(search, results, CONTEXT, "over-budget", above)["default_malloc_peak_bytes"] == 1124 * MIB
    finding = findings(search, CONTEXT, End("over-budget"), above)[-1]
    assert (finding.id, finding.verdict) == ("batch_size.default_malloc", "info")
    assert finding.title == "under the system's default malloc its peak is 1.1 GiB"
    assert finding.message == "100 MiB above the budget: freed memory is kept for later"
    within = findings(search, CONTEXT, End("over-budget"), replace(above, peak_bytes=MIB))[-1]
    assert within.message == "within the budget as well"


def test_the_first_finding_is_the_answer() -> None:
    search, _ = closed()
    (finding,) = findings(search, CONTEXT, End(search.limited_by), None)
    assert (finding.id, finding.verdict, finding.title) == ("batch_size.fits", "pass", "a batch of 8 fits")
    assert finding.message == "a batch of 9 does not (over budget)"


def test_an_answer_that_was_not_confirmed_is_a_warning() -> None:
    search, results = closed(confirmed=False)
    last = findings(search, CONTEXT, End("refused", refused="no room"), None)[-1]
    assert (last.id, last.verdict, last.title) == ("batch_size.confirmed", "warn", "a batch of 8 passed once")
    assert final_result(search, results) == PASSED


def test_memory_that_ran_out_at_the_smallest_names_the_model_and_the_budget() -> None:
    search = Search(budget_bytes=GIB)
    search.record(1, "out-of-memory")
    (finding,) = findings(search, CONTEXT, End(search.limited_by), None)
    assert finding.message == (
        "the model alone takes 10 MiB, and memory ran out, and the budget is 1 GiB (--memory-limit 1GiB)"
    )


def test_the_smallest_that_never_ends() -> None:
    search = Search(budget_bytes=GIB)
    search.record(1, "timeout")
    (finding,) = findings(search, CONTEXT, End(search.limited_by), None)
    assert (finding.verdict, finding.message) == ("fail", "its trial ran into --trial-timeout")


def test_its_speed_leaves_the_first_step_out() -> None:
    made = measurement(CONFIRMED, CONTEXT, "2026-01-31T12:00:00Z")
    assert made is not None and made.rate is not None and made.time_s is not None
    assert (made.runs[0].samples_s, made.time_s.median, made.rate.median) == ((0.25,), 0.25, 32.0)
    assert measurement(replace(CONFIRMED, steps_s=(0.5,)), CONTEXT, "") is None
