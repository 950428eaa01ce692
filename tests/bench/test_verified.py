"""The pattern must show every way in which a copy can go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from broken_device import Counting

from gpucheck.bench import buffers
from gpucheck.bench.buffers import Copies, allocate

CPU = torch.device("cpu")
KIB = 1024


def made(size: int, capacity: int = 64 * KIB, allowance_s: float = 10.0) -> Copies:
    return Copies(
        allocate(capacity, CPU),
        allocate(capacity, CPU),
        size,
        span=capacity,
        non_blocking=False,
        synchronize=lambda: None,
        allowance_s=allowance_s,
    )


def verified(slices: int, wrong_bytes: int = 0, first_wrong: int | None = None) -> dict[str, int | None]:
    return {"verified_slices": slices, "wrong_bytes": wrong_bytes, "first_wrong_byte": first_wrong}


def run(made: Copies, calls: int, sample: int = 1) -> None:
    made.prepare(sample, calls)
    for _ in range(calls):
        made.call()


def test_sound_copies_are_counted() -> None:
    sound = made(4 * KIB)
    assert (sound.count, sound.span_bytes) == (16, 64 * KIB)
    run(sound, 5)
    assert sound.finish() == verified(5, 0, None)


def test_a_copy_is_verified_to_its_last_byte() -> None:
    copies = made(4 * KIB)
    run(copies, 3)
    copies.destination.words.view(torch.uint8)[3 * 4 * KIB - 1] ^= 1
    assert copies.finish() == verified(3, 1, 3 * 4 * KIB - 1)


def test_what_cannot_be_counted_is_wrong_all_the_same() -> None:
    copies = made(4 * KIB)
    run(copies, 5)
    copies.destination.words.view(torch.uint8)[100] ^= 1
    with Counting():
        assert copies.finish() == verified(5, 1, 0)


def lost(copies: Copies) -> None:
    """The last call copies nothing."""
    copies._cursor += 1


def misplaced(copies: Copies) -> None:
    words = copies.size // 8
    copies.destination.words[:words].copy_(copies.source.words[words : 2 * words])


def flipped(copies: Copies) -> None:
    copies.destination.words.view(torch.uint8)[5] ^= 0x80


@pytest.mark.parametrize(("fault", "least"), [(lost, 4 * KIB - 64), (misplaced, 512), (flipped, 1)])
def test_faults_are_found(fault: Callable[[Copies], None], least: int) -> None:
    copies = made(4 * KIB)
    run(copies, 4)
    fault(copies)
    details = copies.finish()
    assert (details["wrong_bytes"] or 0) >= least
    assert details["first_wrong_byte"] is not None


def test_data_of_an_earlier_sample_is_stale() -> None:
    """The destination still holds what sample 1 brought: the right bytes a moment ago."""
    copies = made(64 * KIB)
    run(copies, 1, sample=1)
    before = copies.destination.words.clone()
    run(copies, 1, sample=2)
    copies.destination.words.copy_(before)
    assert (copies.finish()["wrong_bytes"] or 0) >= 8 * KIB


def test_a_difference_that_is_gone_at_the_second_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = made(16 * KIB)
    run(copies, 2)
    monkeypatch.setattr(torch, "equal", lambda found, expected: False)
    assert copies.finish() == verified(2, 1, 0)


def test_a_device_that_calls_everything_equal_does_not_verify_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.equal
    monkeypatch.setattr(torch, "equal", lambda found, other: len(found) > 2 * KIB or real(found, other))
    copies = made(64 * KIB)
    copies.prepare(1, 1)
    lost(copies)
    assert (copies.finish()["wrong_bytes"] or 0) >= 63 * KIB


def test_large_copies_are_compared_in_pieces_up_to_the_first_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all is wrong the host looks at all of it."""
    monkeypatch.setattr(buffers, "CHUNK_WORDS", 100)
    copies = made(8 * KIB)
    run(copies, 3)
    copies.destination.words[1024 + 50 :] ^= 1
    assert copies.finish() == verified(2, 26, 8 * (1024 + 50))
    run(copies, 8)
    assert copies.finish()["verified_slices"] == 2


def test_every_window_has_fresh_slices_while_that_is_affordable() -> None:
    copies = made(16 * KIB)  # four slices
    for sample in range(1, 7):
        run(copies, 2, sample)
    assert copies.finish() == verified(12, 0, None)
    assert copies.refills == 3


def test_without_allowance_the_copies_go_on_and_their_end_is_compared() -> None:
    copies = made(16 * KIB, allowance_s=0.0)
    for sample in range(1, 7):
        run(copies, 2, sample)
    assert copies.finish() == verified(4, 0, None)
