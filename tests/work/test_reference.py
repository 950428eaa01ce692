from __future__ import annotations

import math

import pytest
import torch

from gpucheck.work import reference


def product(dtype: torch.dtype, m: int = 96, k: int = 256, n: int = 80) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(m, k, generator=generator).to(dtype)
    b = torch.randn(k, n, generator=generator).to(dtype)
    return a, b, a @ b


def test_rows_are_spread_from_the_first_to_the_last() -> None:
    assert reference.sampled_rows(5) == [0, 1, 2, 3, 4]
    rows = reference.sampled_rows(1000)
    assert (len(rows), rows[0], rows[-1]) == (64, 0, 999)
    assert reference.sampled_rows(0) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_right_product_passes_with_room(dtype: torch.dtype) -> None:
    check = reference.check_product(*product(dtype))
    assert check.passed and check.rows == 64
    assert 0 <= check.worst <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_wrong_element_is_found_and_named(dtype: torch.dtype) -> None:
    a, b, result = product(dtype)
    row = reference.sampled_rows(96)[10]
    result[row, 33] += 0.5
    check = reference.check_product(a, b, result)
    assert not check.passed
    assert (check.row, check.column) == (row, 33)
    assert check.smallest_detectable < 0.5


def test_float32_computed_in_tf32_fails_as_float32_and_passes_as_tf32() -> None:
    a, b, _ = product(torch.float32)
    rounded = ((a * 2**10).round() / 2**10) @ ((b * 2**10).round() / 2**10)
    assert not reference.check_product(a, b, rounded).passed
    assert reference.check_product(a, b, rounded, "tf32").passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_never_passes(value: float) -> None:
    a, b, result = product(torch.float32)
    result[0, 0] = value
    check = reference.check_product(a, b, result)
    assert not check.passed and check.not_finite == 1
    # Also in a row that is not sampled.
    a, b, result = product(torch.float32)
    unsampled = next(row for row in range(96) if row not in reference.sampled_rows(96))
    result[unsampled, 0] = value
    assert not reference.check_product(a, b, result).passed
