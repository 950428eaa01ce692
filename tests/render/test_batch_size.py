from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpucheck.batch_size.accumulate import accumulate
from gpucheck.batch_size.split import Split
from gpucheck.render.batch_size_use import advice, answer, below
from gpucheck.units import GIB, MIB

RECOMMENDED = {"batch_size": 104, "headroom": 0.118, "speed": "same", "reason": None}
KNEE = {"batch_size": 24, "samples_per_s": 230.0, "noise": 0.01, "reason": None}


def found(**parts: Any) -> dict[str, Any]:
    return {"recommended": RECOMMENDED, "knee": KNEE, **parts}


def test_the_first_line_says_what_to_use() -> None:
    assert answer(found()) == [
        "recommended: 104 (12 % headroom, same speed)",
        "best value: 24 (within 5 % of top speed)",
    ]
    assert answer(found(recommended={**RECOMMENDED, "speed": "slower"}, knee=None)) == [
        "recommended: 104 (12 % headroom, slower than the largest)"
    ]
    assert answer(found(recommended={**RECOMMENDED, "speed": None}, knee=None)) == ["recommended: 104 (12 % headroom)"]
    assert below(found()) == []


def test_what_is_not_known_says_why() -> None:
    nothing = found(
        recommended={**RECOMMENDED, "batch_size": None, "reason": "there was no time to run it"},
        knee={**KNEE, "batch_size": None, "reason": "fewer than two sizes were timed"},
    )
    assert answer(nothing) == []
    assert below(nothing) == [
        "no size to recommend: there was no time to run it",
        "best value: not to be told (fewer than two sizes were timed)",
    ]


def test_documents_from_before_say_nothing_of_it() -> None:
    assert answer({}) == below({}) == []


def split_line(**parts: Any) -> list[str]:
    return below({"memory_split": asdict(Split(**parts))})


def test_where_the_memory_goes() -> None:
    held = {"parameter_bytes": GIB // 2, "gradient_bytes": GIB // 2, "optimizer_bytes": GIB}
    assert split_line(**held, activation_bytes_per_sample=int(1.16 * GIB), fixed_bytes=0) == [
        "each sample costs 1.16 GiB of activations; weights 0.50, gradients 0.50, optimizer 1.0 GiB"
    ]
    assert split_line(parameter_bytes=18 * MIB, gradient_bytes=0, optimizer_bytes=0, fixed_bytes=3 * MIB) == [
        "weights 18 MiB; the rest 3 MiB whatever the size"
    ]
    assert split_line(parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None) == []


def test_how_to_reach_an_effective_batch() -> None:
    def said(effective: int, limit: int) -> list[str]:
        return advice({"accumulation": asdict(accumulate(effective, limit))})

    assert said(512, 104) == ["for an effective batch of 512: micro-batch 64 × 8 accumulation steps"]
    assert said(64, 104) == ["for an effective batch of 64: micro-batch 64, which needs no accumulation"]
    assert said(509, 104) == [
        "for an effective batch of 509: micro-batch 102 × 4 and 101 × 1 accumulation steps: 509 has no divisor near 104"
    ]
    assert advice({"accumulation": None}) == advice({}) == []
