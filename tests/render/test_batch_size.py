from __future__ import annotations

from typing import Any

from gpucheck.render.batch_size_use import answer, below

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
