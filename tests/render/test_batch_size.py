from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from gpucheck.batch_size.answer import accumulate
from gpucheck.render import batch_size
from gpucheck.render.batch_size import accumulation_lines, prediction_line, use_lines
from gpucheck.render.blocks import Block, Line, Page, Table
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results
from gpucheck.report.results.find_batch_size import FoundBatchSize, MemorySplit
from gpucheck.units import GIB, MIB

# What every document has; the rest came later.
BASE: dict[str, Any] = {
    "target": "mlp",
    "mode": "train",
    "optimizer": None,
    "dtype": None,
    "device": {"id": "cpu", "name": "a CPU", "uuid": None},
    "budget_bytes": 2 * GIB,
    "budget_reason": "r",
    "margin_bytes": 0,
    "max_batch_size": None,
    "confirmed": True,
    "method": {},
    "peak_bytes": None,
    "samples_per_s": None,
    "loss": None,
    "trials": [],
}


def document(**parts: Any) -> FoundBatchSize:
    """The result as it is read from a document with these parts."""
    return from_json(FoundBatchSize, {**BASE, **parts})


RECOMMENDED = {"batch_size": 104, "headroom": 0.118, "speed": "same", "reason": None}
KNEE = {"batch_size": 24, "samples_per_s": 230.0, "noise": 0.01, "reason": None}


def found(**parts: Any) -> FoundBatchSize:
    return document(**{"recommended": RECOMMENDED, "knee": KNEE, **parts})


def below(told: dict[str, Any]) -> list[str]:
    return use_lines(document(**told))


PASSED = Summary("pass", 0, True)


def page(told: FoundBatchSize, summary: Summary = PASSED, findings: tuple[Finding, ...] = ()) -> Page:
    """The screen of one search."""
    held: Results = {"find_batch_size": told}
    return batch_size.page(Report("", "", "", (), "", 1.0, Facts(), (), findings, held, (), summary))


def texts(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Line)]


def first_line(told: FoundBatchSize) -> str:
    answer = page(told).answer
    assert answer is not None
    return answer.text


def test_the_first_line_says_what_to_use() -> None:
    largest = "✓ largest that trains: 116"
    assert first_line(found(max_batch_size=116)) == f"{largest}   recommended: 104 (12 % headroom, same speed)"
    slower = found(max_batch_size=116, recommended={**RECOMMENDED, "speed": "slower"})
    assert first_line(slower) == f"{largest}   recommended: 104 (12 % headroom, slower than the largest)"
    unknown = found(max_batch_size=116, recommended={**RECOMMENDED, "speed": None})
    assert first_line(unknown) == f"{largest}   recommended: 104 (12 % headroom)"
    assert "best value: 24 (within 5 % of top speed)" in texts(page(found(max_batch_size=116)).body)


def test_what_is_not_known_is_no_line_but_a_detail() -> None:
    nothing = found(
        max_batch_size=116,
        recommended={**RECOMMENDED, "batch_size": None, "reason": "no time left to run it"},
        knee={**KNEE, "batch_size": None, "reason": "fewer than two sizes were timed"},
    )
    assert first_line(nothing) == "✓ largest that trains: 116"
    assert "best value" not in " ".join(texts(page(nothing).body))
    assert use_lines(nothing) == ["best value: undetermined (fewer than two sizes were timed)"]


def searched(**parts: Any) -> list[str]:
    """The first line and the details of one search."""
    told = document(
        **{
            "at_least": 9773,
            "predicted_batch_size": 39027,
            "limited_by": "time",
            "limiting_factor": "time",
            "peak_bytes": GIB,
            "samples_per_s": 4093.0,
            **parts,
        }
    )
    return [first_line(told), *(text for text in texts(page(told).details) if text)]


def test_where_time_ended_the_search_the_answer_is_what_fits_at_least() -> None:
    assert searched() == [
        "✓ at least 9773 fits (1.00 of 2.00 GiB); time ran out, predicted about 39 000",
        "peak 1.00 of 2.00 GiB, confirmed in a fresh process",
        "limited by time: --time-budget ended the search",
        "4090 samples/s with 9773",
        "budget: r",
    ]
    bounded = searched(predicted_batch_size=None, first_failing=12_000, first_failing_outcome="over-budget")
    assert bounded[0] == "✓ at least 9773 fits (1.00 of 2.00 GiB), 12000 fails; time ran out"
    # Three digits, as in the table: 134.7 was told as 130.
    full = searched(predicted_batch_size=None, peak_bytes=144671571968, budget_bytes=145603176039)
    assert full[0] == "✓ at least 9773 fits (135 of 136 GiB); time ran out"
    once = searched(confirmed=False, predicted_batch_size=None)
    assert once[0] == "✓ at least 9773 fits (passed once); time ran out"
    along = searched(axis={"name": "seq", "batch_size": 8}, mode="infer", predicted_batch_size=9773)
    assert along[0] == "✓ at least seq 9773 fits (1.00 of 2.00 GiB); time ran out"


@pytest.mark.parametrize("factor", ["trials", "killed", "interrupted", "disturbed", "device", "no-process"])
def test_every_other_end_of_a_search_is_named(factor: str) -> None:
    ended = searched(limiting_factor=factor, predicted_batch_size=None)[0].partition("; ")[2]
    assert ended and ended not in ("the search did not end", "time ran out")


def test_an_interrupted_search_without_an_answer_has_a_first_line() -> None:
    first = page(document(), Summary("inconclusive", 130, False)).answer
    assert first is not None and first.text == "? no batch passed; interrupted"


def test_what_ended_a_search_without_an_answer_is_the_answer() -> None:
    wrong = Finding("target", "fail", "make fails with a batch of 1: ValueError")
    told = page(document(), Summary("fail", 2, False), (wrong,))
    assert told.answer is not None and told.answer.text == "✗ make fails with a batch of 1: ValueError"
    assert told.cause is wrong


def trial(size: int, peak: float, purpose: str = "search") -> dict[str, Any]:
    return {"batch_size": size, "peak_bytes": int(peak * GIB), "purpose": purpose, "outcome": "fits"}


def test_of_many_trials_the_last_ones_are_shown() -> None:
    trials = [trial(size, 1.0) for size in range(1, 31)]
    told = page(document(max_batch_size=30, trials=trials))
    shown, rest = told.body[:2]
    assert isinstance(shown, Table) and [row[0].text for row in shown.rows] == [str(n) for n in range(19, 31)]
    assert rest == Line("and 18 earlier trials: -v", "dim")
    whole = told.details[0]
    assert isinstance(whole, Table) and len(whole.rows) == 30


def test_a_search_that_stays_below_says_within_what_it_is_the_largest() -> None:
    safe = searched(max_batch_size=100, at_least=None, limited_by="safety", limiting_factor="safety")
    assert safe[0] == "✓ largest that trains within 85 %: 100"
    assert safe[-2] == "4090 samples/s with the largest"


def test_one_allocation_that_failed_is_told_with_the_limit() -> None:
    said = "one allocation of 851 MiB failed with 375 MiB in use"
    failing = {"first_failing": 489, "first_failing_outcome": "out-of-memory", "first_failing_reason": said}
    closed = {"max_batch_size": 486, "at_least": None, "limiting_factor": "memory", **failing}
    assert f"limited by memory; first that fails: 489 (out of memory: {said})" in searched(
        **closed, first_failing_at_once=True
    )
    assert "limited by memory; first that fails: 489 (out of memory)" in searched(**closed)


def test_documents_from_before_say_nothing_of_it() -> None:
    assert first_line(document(max_batch_size=3)) == "✓ largest that trains: 3" and below({}) == []


def split_line(**parts: Any) -> list[str]:
    return in_use(memory_split=asdict(MemorySplit(**parts)))


def in_use(**parts: Any) -> list[str]:
    """The sentences below the table."""
    return [text for text in texts(page(document(max_batch_size=9, limiting_factor="memory", **parts)).body) if text]


def test_where_the_memory_goes() -> None:
    held = {"parameter_bytes": GIB // 2, "gradient_bytes": GIB // 2, "optimizer_bytes": GIB}
    assert split_line(**held, activation_bytes_per_sample=int(1.16 * GIB), fixed_bytes=0) == [
        "each sample costs 1.16 GiB; weights 0.50, gradients 0.50, optimizer 1.0 GiB"
    ]
    assert split_line(parameter_bytes=18 * MIB, gradient_bytes=0, optimizer_bytes=0, fixed_bytes=3 * MIB) == [
        "weights 18, other 3.0 MiB"
    ]
    assert split_line(parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None) == []


def test_along_an_axis_memory_is_told_by_length() -> None:
    split = MemorySplit(parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None)
    told = {**asdict(split), "activation_bytes_per_sample": 3 * MIB, "fixed_bytes": MIB}
    assert in_use(memory_split=told, axis={"name": "seq", "batch_size": 8}) == [
        "each unit of seq costs 3 MiB; other 1.0 MiB"
    ]


def test_how_to_reach_an_effective_batch() -> None:
    def said(effective: int, limit: int) -> list[str]:
        return accumulation_lines(accumulate(effective, limit))

    assert said(512, 104) == ["for an effective batch of 512: micro-batch 64 × 8 accumulation steps"]
    assert said(64, 104) == ["for an effective batch of 64: micro-batch 64, no accumulation needed"]
    assert said(509, 104) == [
        "for an effective batch of 509: micro-batch 102 × 4 and 101 × 1 accumulation steps: 509 has no divisor near 104"
    ]
    assert accumulation_lines(None) == []


def test_what_limits_it_and_how_sure_it_is() -> None:
    told = {
        "limiting_factor": "memory",
        "first_failing": 118,
        "first_failing_outcome": "out-of-memory",
        "confidence": {"level": "high", "support": ["confirmed in a fresh process"], "doubts": []},
        "checks": [
            {"kind": "evaluation", "batch_size": 116, "outcome": "fits"},
            {"kind": "partial batch", "batch_size": 115, "outcome": "fits"},
            {"kind": "partial batch", "batch_size": 1, "outcome": "fits"},
        ],
    }
    assert below(told) == [
        "limited by memory; first that fails: 118 (out of memory)",
        "confidence: high (confirmed in a fresh process)",
        "also passed: partial last batches (115, 1), an evaluation step",
    ]
    foreseen = {**told, "predicted_above": 117}
    assert below(foreseen)[0] == "limited by memory; 117 is predicted to exceed the budget"
    capped = {"limiting_factor": "max-batch-size", "first_failing": None}
    assert below(capped) == ["limited by --max-batch-size"]
    doubted = {"level": "medium", "support": ["confirmed in a fresh process"], "doubts": ["a trial was disturbed"]}
    assert below({"confidence": doubted}) == ["confidence: medium (a trial was disturbed)"]
    # What the page says above, or as a finding, is not said again.
    closed = {"max_batch_size": 116, "at_least": None, "limiting_factor": None, "confirmed": True}
    assert below({**closed, "confidence": doubted}) == []
    failed = {"checks": [{"kind": "partial batch", "batch_size": 1, "outcome": "user-error"}]}
    assert below(failed) == []


def test_a_cap_is_no_answer_in_the_first_line() -> None:
    def said(factor: str, **parts: Any) -> str:
        told = {"at_least": 8, "recommended": None, "limiting_factor": factor, **parts}
        return first_line(document(**told)).removeprefix("✓ ")

    assert said("max-batch-size") == "at least 8 (stopped at --max-batch-size)"
    assert said("default-cap") == "at least 8 (stopped at --max-batch-size, 65536 by default)"
    assert said("max-batch-size", confirmed=False) == "at least 8 (passed once) (stopped at --max-batch-size)"
    assert said("max-batch-size", axis={"name": "seq"}) == "at least seq 8 (stopped at the greatest length given)"
    recommended = {"batch_size": 8, "headroom": 0.9, "speed": "same", "reason": None}
    capped = said("max-batch-size", recommended=recommended)
    assert capped == "at least 8 (stopped at --max-batch-size)   recommended: 8 (90 % headroom, same speed)"


CALIBRATION = {"size": 158, "factor": 1.018, "constant_bytes": 0}
PREDICTION = {
    "max_batch_size": 634,
    "uncalibrated_max_batch_size": 650,
    "calibration": CALIBRATION,
    "device": "cpu",
    "reason": None,
}
NOTHING = {"max_batch_size": None, "calibration": None}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "predicted from fake tensors: 634, calibrated at 158: ×1.02"),
        (
            {"calibration": {**CALIBRATION, "constant_bytes": 512 * MIB}},
            "predicted from fake tensors: 634, calibrated at 158: ×1.02 plus 512 MiB",
        ),
        ({"calibration": None}, "predicted from fake tensors: 634, not calibrated"),
        (
            {"calibration": None, "reason": "a batch of 158 took 1.93 times the prediction"},
            "predicted from fake tensors: 634; not used: a batch of 158 took 1.93 times the prediction",
        ),
        (
            {**NOTHING, "device": None, "reason": "at most 9 sizes are searched"},
            "no prediction: at most 9 sizes are searched",
        ),
        (
            {**NOTHING, "reason": None},
            "predicted from fake tensors: not even the smallest batch fits, not calibrated",
        ),
        ({**NOTHING, "device": None}, ""),
    ],
)
def test_what_was_predicted_in_a_line(parts: dict[str, Any], said: str) -> None:
    assert prediction_line(document(prediction={**PREDICTION, **parts})) == said


def test_documents_from_before_predicted_nothing() -> None:
    assert prediction_line(document()) == prediction_line(document(prediction=None)) == ""
