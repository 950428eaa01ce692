"""The work itself: checksums, and one wrong bit anywhere, planted where torch multiplies and copies."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from broken_device import COUNT, Counting

from gpucheck.bench.matmul.product import FirstCheck, check_first
from gpucheck.machine import accel
from gpucheck.stress import work as work_module
from gpucheck.stress.work import PATTERNS, StressWork, checksum, text_of
from gpucheck.units import KIB

SEEDS = range(4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work of some milliseconds."""
    for name, size in (("_CHUNK_CPU", 512), ("_COPY_CPU", 16 * KIB), ("_WINDOW_CPU", 32 * KIB), ("STEP_S", 1e-4)):
        monkeypatch.setattr(work_module, name, size)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(seed: int = 0, **more: Any) -> StressWork:
    return StressWork(accel.open_device("cpu"), "float32", 256 * KIB, seed, 64, **more)


# -- checksums --------------------------------------------------------------------------------------------------------


@functools.cache
def weights(size: int = 16) -> torch.Tensor:
    return torch.arange(size) * 2 + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_two_equal_faults_and_words_that_changed_places_do_not_cancel(seed: int) -> None:
    draw = random.Random(seed)
    words = torch.tensor([draw.getrandbits(64) - 2**63 for _ in range(24)])
    right = checksum(words, weights()).item()
    for first in range(24):
        for other in range(first):
            for bit in (0, 31, 32, 62, 63):
                wrong = words.clone()
                for place in (first, other):
                    wrong[place] ^= 1 << bit if bit < 63 else -(2**63)
                assert checksum(wrong, weights()).item() != right
            swapped = words.clone()
            swapped[first], swapped[other] = words[other].item(), words[first].item()
            assert checksum(swapped, weights()).item() != right


def test_a_checksum_is_what_its_formula_says() -> None:
    words = [3, -1, 2**62, -(2**63), 5]
    total = 0
    for at in range(0, len(words), 2):
        unsigned = [word % 2**64 for word in words[at : at + 2]]
        total = total * 6364136223846793005 + sum((w ^ (w >> 32)) * (2 * i + 1) for i, w in enumerate(unsigned))
    assert text_of(int(checksum(torch.tensor(words), weights(2)).item())) == f"{total % 2**64:016x}"


# -- a sound device ---------------------------------------------------------------------------------------------------


def turn(work: StressWork, kind: str, steps: int = 8) -> list[Any]:
    work.begin(kind)
    return [wrong for _ in range(steps) for wrong in work.step(kind).wrong]


def test_a_sound_device_computes_nothing_wrong_and_siblings_the_same() -> None:
    first, other = made(seed=5), made(seed=5)
    for work in (first, other):
        assert work.check() == ()
        assert [wrong for kind in ("products", "memory", "copies", "mixed") for wrong in turn(work, kind)] == []
        assert [wrong for kind in ("copies", "products", "mixed", "memory") for wrong in turn(work, kind)] == []
    assert first.checksums == other.checksums and {name.partition("+")[0] for name in first.checksums} >= {
        "products",
        "ones",
    }
    assert first.worst_of_bound is not None and 0 < first.worst_of_bound < 1
    assert made(seed=6).checksums["products"] != first.checksums["products"]


# -- one wrong bit ----------------------------------------------------------------------------------------------------


def flip(tensor: torch.Tensor, draw: random.Random) -> None:
    """Another bit in one word of a tensor."""
    words = tensor.view(-1).view(torch.int64)
    bit = draw.randrange(64)
    words[draw.randrange(len(words))] ^= 1 << bit if bit < 63 else -(2**63)


def nth(number: int, call: Callable[..., Any], then: Callable[[Any], None]) -> Callable[..., Any]:
    """`call`, and after so many calls `then` with what it gave, once."""
    left = [number]

    def planted(*given: Any, **named: Any) -> Any:
        result = call(*given, **named)
        left[0] -= 1
        if left[0] == 0:
            then(result)
        return result

    return planted


@pytest.mark.parametrize("kind", ["products", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_bit_in_a_product_is_found(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    work = made(seed)
    monkeypatch.setattr(torch, "mm", nth(draw.randrange(1, 6), torch.mm, lambda out: flip(out, draw)))
    (wrong,) = turn(work, kind)
    assert (wrong.kind, wrong.result, wrong.against, wrong.elements) == (kind, "products", "first", 1)
    assert wrong.got != wrong.expected and wrong.place is not None and wrong.step >= 1
    assert turn(work, kind) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_bit_in_memory_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    work = made(seed)
    work.begin("memory")
    chunks = len(work.arena) // 512
    monkeypatch.setattr(
        torch.Tensor, "copy_", nth(draw.randrange(1, chunks), torch.Tensor.copy_, lambda x: flip(x, draw))
    )
    found = [wrong for _ in range(8) for wrong in work.step("memory").wrong]
    (wrong,) = found
    assert (wrong.against, wrong.elements) == ("pattern", 1) and wrong.result.split("/")[0].split("+")[0] in PATTERNS
    assert wrong.got is not None and wrong.expected is not None
    differing = int(wrong.got, 16) ^ int(wrong.expected, 16)
    assert differing & (differing - 1) == 0 and differing  # one bit


@pytest.mark.parametrize("count", [COUNT, -1])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_count_of_wrong_words_that_is_garbage_is_wrong_and_never_told(count: int, flipped: bool) -> None:
    work = made()
    work.begin("memory")
    with Counting(count):
        if flipped:
            window = work.arena[: work_module._WINDOW_CPU // 8]
            work._write(window, 0, "ones", 0)
            window[3] ^= 1
            (wrong,) = work._read(window, 0, "ones", 0, "memory")
        else:
            (wrong,) = work.step("memory").wrong
    assert wrong.elements is None and "the device's own count is invalid" in wrong.text
    assert (wrong.place == 3) is flipped
    with Counting(count):
        products = work.step("products").wrong
    assert products and {first.text for first in products} == {
        "the device's own count is invalid; no difference at the second read"
    }


@pytest.mark.parametrize("kind", ["copies", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_bit_in_a_copy_is_found(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    work = made(seed)
    work.begin(kind)
    monkeypatch.setattr(torch.Tensor, "copy_", nth(draw.randrange(1, 5), torch.Tensor.copy_, lambda x: flip(x, draw)))
    found = [wrong for _ in range(8) for wrong in work.step(kind).wrong]
    assert found and all(wrong.elements == 1 for wrong in found)
    assert {wrong.result.partition("+")[0] for wrong in found} <= {"copies", "ones"}
    # What was wrong once is not told for ever.
    assert [wrong for _ in range(4) for wrong in work.step(kind).wrong] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_product_that_is_wrong_is_found_by_float64(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose every product is wrong in the same way agrees with itself."""
    draw = random.Random(seed)
    place, right = draw.randrange(64 * 64), torch.mm

    def wrong_always(*given: Any, **named: Any) -> Any:
        result = right(*given, **named)
        result.view(-1)[place] += 1.0
        return result

    monkeypatch.setattr(torch, "mm", wrong_always)
    work = made(seed)
    (wrong,) = work.check()
    assert (wrong.against, wrong.place) == ("float64", place) and (wrong.worst_of_bound or 0.0) > 1


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ({"not_finite": 3}, "3 elements are not finite"),
        ({"miscounted": True}, "the device's own count is invalid: whether elements are finite is unknown"),
        ({"worst": 2.0, "row": 1, "column": 2, "got": 5.0, "expected": 4.0}, "got 5, float64 gives 4"),
    ],
)
def test_what_is_wrong_with_a_first_product_is_said(
    faults: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampled element within its bound is not named as wrong."""
    work = made()

    def faulty(*given: Any) -> FirstCheck:
        verified = check_first(*given)
        return replace(verified, rows=replace(verified.rows, **faults))

    monkeypatch.setattr(work_module, "check_first", faulty)
    (wrong,) = work.check()
    assert (wrong.text, wrong.place) == (text, 66 if "row" in faults else None)


def test_a_product_that_is_not_computed_at_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    work = made()
    assert turn(work, "products") == []
    monkeypatch.setattr(torch, "mm", lambda *given, **named: None)
    assert turn(work, "products", 2)


def test_a_device_whose_comparisons_find_nothing_is_found_by_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels compute nothing: results hold what was there, and no difference is counted."""
    work = made()
    monkeypatch.setattr(torch, "mm", lambda *given, **named: None)
    unequal = torch.Tensor.__ne__
    monkeypatch.setattr(torch.Tensor, "__ne__", lambda first, other: unequal(first, first))
    assert turn(work, "products", 1)


# -- memory in windows ------------------------------------------------------------------------------------------------


def test_a_window_is_read_once_all_others_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory that answers at two addresses far apart, as with a stuck high address line, is found."""
    work = made()
    size = 32 * KIB // work_module.WORD
    assert len(work.arena) > 4 * size
    work.begin("memory")
    written = StressWork._write

    def aliased(self: StressWork, window: torch.Tensor, at: int, name: str, number: int) -> None:
        written(self, window, at, name, number)
        if at == 3 * size:
            self.arena[5] = window[5]

    monkeypatch.setattr(StressWork, "_write", aliased)
    count = -(-len(work.arena) // size)
    found = [wrong for _ in range(2 * count) for wrong in work.step("memory").wrong]
    assert {(wrong.place, wrong.elements) for wrong in found} == {(5, 1)}


def test_zeros_and_an_invalid_count_are_not_told_as_two_equal_numbers() -> None:
    work = made()
    with Counting(-1):
        (wrong,) = work.check()
    assert (wrong.place, wrong.text) == (
        None,
        "the device's own count is invalid: whether elements are finite is unknown",
    )
    for matrix in work._matrices:
        matrix.zero_()
    (wrong,) = work.check()
    assert (wrong.place, wrong.text) == (None, "the operands are not random numbers")
    work._first[3, 5] = float("nan")
    assert work.check()[0].text == "got nan, float64 gives 0"
