"""Every element of a product against float64, in sums of columns."""

from __future__ import annotations

import math

import pytest
import torch

from gpucheck.work import reference


def product(dtype: torch.dtype, m: int = 96, k: int = 256, n: int = 200) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    return a, b, a @ b


def whole_numbers(m: int = 40, k: int = 64, n: int = 130) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    a = torch.empty(m, k, dtype=torch.int8).random_(-127, 128, generator=generator)
    b = torch.empty(n, k, dtype=torch.int8).random_(-127, 128, generator=generator).t()
    return a, b, (a.double() @ b.double()).to(torch.int32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_right_product_passes_with_room_and_stays_as_it_is(dtype: torch.dtype) -> None:
    a, b, result = product(dtype)
    before = a.clone(), b.clone(), result.clone()
    sums = reference.check_sums(a, b, result)
    assert sums.passed and 0 < sums.worst < 0.6
    # Four sums of 64 columns, the last of eight, for each of 96 rows.
    assert sums.blocks == 4 * 96
    assert all(torch.equal(one, other) for one, other in zip(before, (a, b, result), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [(0, 0), (77, 63), (95, 199)])
def test_one_wrong_element_anywhere_is_found(dtype: torch.dtype, place: tuple[int, int]) -> None:
    a, b, result = product(dtype)
    result[place] += 1.1 * reference.check_sums(a, b, result).detectable
    sums = reference.check_sums(a, b, result)
    assert not sums.passed
    assert sums.row == place[0] and sums.column <= place[1] < sums.column + sums.columns


def test_bfloat16_at_2048_passes_and_shows_an_error_that_sums_of_whole_rows_hide() -> None:
    a, b, result = product(torch.bfloat16, 128, 2048, 2048)
    healthy = reference.check_sums(a, b, result)
    assert healthy.passed
    rms = float(result.double().square().mean().sqrt())
    assert healthy.detectable < 0.6 * rms
    result[100, 1000] += 1.1 * healthy.detectable
    blocked = reference.check_sums(a, b, result)
    assert (blocked.passed, blocked.row, blocked.column) == (False, 100, 960)
    whole = reference.check_sums(a, b, result, width=2048)
    assert whole.passed and whole.detectable > 1.4 * rms
    # Sampled rows see it only where it lies in one of them.
    assert 100 not in reference.sampled_rows(128) and reference.check_product(a, b, result).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_never_passes(value: float) -> None:
    a, b, result = product(torch.float32)
    result[50, 150] = value
    sums = reference.check_sums(a, b, result)
    assert (sums.worst, sums.row, sums.column, sums.columns) == (math.inf, 50, 128, 64)


def test_whole_numbers_are_exact() -> None:
    a, b, result = whole_numbers()
    assert reference.check_sums(a, b, result) == reference.Sums(0.0, 0, 0, 64, 1.0, 120)
    result[39, 129] -= 1
    sums = reference.check_sums(a, b, result)
    assert (sums.passed, sums.row, sums.column, sums.columns) == (False, 39, 128, 2)


def test_tf32_passes_as_tf32_alone() -> None:
    a, b, _ = product(torch.float32)
    rounded = ((a * 2**10).round() / 2**10) @ ((b * 2**10).round() / 2**10)
    assert not reference.check_sums(a, b, rounded).passed
    assert reference.check_sums(a, b, rounded, "tf32").passed


def test_it_takes_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, result = product(torch.float32)
    whole = reference.check_sums(a, b, result)
    monkeypatch.setattr(reference, "_AT_ONCE", 1000)
    parts = reference.check_sums(a, b, result)
    assert parts.worst == pytest.approx(whole.worst, rel=1e-6)
    assert (parts.row, parts.column, parts.blocks) == (whole.row, whole.column, whole.blocks)


def test_nothing_has_no_error() -> None:
    empty = torch.empty(0, 4)
    assert reference.check_sums(empty, torch.empty(4, 3), torch.empty(0, 3)).passed
