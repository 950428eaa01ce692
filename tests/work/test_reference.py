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


def test_columns_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_COLUMNS_AT_ONCE", 32)
    a, b, result = product(torch.float32)
    assert reference.check_product(a, b, result).passed
    result[0, 79] += 0.5
    result[95, 40] += 0.25
    check = reference.check_product(a, b, result)
    assert not check.passed
    assert (check.row, check.column) == (0, 79)


def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product as a tensor core makes it: four products at once, the sum cut off to 24 bits, towards zero."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for first in range(0, a.shape[1], 4):
        total += a[:, first : first + 4].double() @ b[first : first + 4].double()
        fraction, exponent = torch.frexp(total)
        total = torch.ldexp((fraction * 2.0**24).trunc(), exponent - 24)
    return total


def test_truncation_that_adds_up_over_long_sums_is_no_fault() -> None:
    a, b, _ = product(torch.float16, m=64, k=16384, n=64)
    assert reference.check_product(a, b, truncated(a, b).to(torch.float16)).passed


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
