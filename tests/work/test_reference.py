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


def test_what_is_no_number_is_counted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, result = product(torch.float32)
    for row in (0, 50, 95):
        result[row, 79] = math.nan
    real, sizes = torch.isfinite, []

    def isfinite(part: torch.Tensor) -> torch.Tensor:
        sizes.append(part.numel())
        return real(part)

    monkeypatch.setattr(torch, "isfinite", isfinite)
    monkeypatch.setattr(reference, "_ELEMENTS_AT_ONCE", 1000)
    assert reference.check_product(a, b, result).not_finite == 3
    assert max(sizes) <= 1000 and sum(sizes) == 96 * 80


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


def whole_numbers() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    a = torch.empty(40, 64, dtype=torch.int8).random_(-127, 128, generator=generator)
    b = torch.empty(24, 64, dtype=torch.int8).random_(-127, 128, generator=generator).t()
    return a, b, (a.double() @ b.double()).to(torch.int32)


def test_whole_numbers_are_right_or_wrong() -> None:
    a, b, result = whole_numbers()
    check = reference.check_product(a, b, result)
    assert check.passed and (check.worst, check.smallest_detectable) == (0.0, 1.0)
    right = int(result[13, 20])
    result[13, 20] += 1
    check = reference.check_product(a, b, result)
    assert (check.passed, check.row, check.column) == (False, 13, 20)
    assert (check.got, check.expected) == (right + 1, right)


def float8_product() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(64, 4096, generator=generator).to(torch.float8_e4m3fn)
    b = torch.randn(48, 4096, generator=generator).to(torch.float8_e4m3fn).t()
    return a, b, (a.double() @ b.double())


def kept_by_hopper(a: torch.Tensor, b: torch.Tensor, promoted: int = 128) -> torch.Tensor:
    """32 products at once, each cut off 13 bits behind the largest of them and of the sum; then promoted."""
    whole = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for start in range(0, a.shape[1], promoted):
        part = torch.zeros_like(whole)
        for first in range(start, start + promoted, 32):
            terms = a[:, first : first + 32, None].double() * b[None, first : first + 32].double()
            terms = torch.cat([terms, part[:, None]], dim=1)
            unit = torch.exp2(torch.floor(torch.log2(terms.abs().amax(1, keepdim=True))) - 13)
            part = ((terms / unit).trunc() * unit).sum(1)
        whole += part
    return whole


def test_float8_added_up_in_few_bits_is_no_fault() -> None:
    a, b, exact = float8_product()
    assert reference.check_product(a, b, exact.to(torch.bfloat16)).passed
    few = kept_by_hopper(a, b).to(torch.bfloat16)
    check = reference.check_product(a, b, few)
    assert check.passed
    # What bfloat16 alone would leave room for is exceeded.
    assert not reference.check_product(a.bfloat16(), b.bfloat16(), few).passed
    few[0, 5] += 16 * check.smallest_detectable
    check = reference.check_product(a, b, few)
    assert (check.passed, check.row, check.column) == (False, 0, 5)


def test_float8_with_fast_accumulation_is_promoted_at_the_end_alone() -> None:
    a, b, _ = float8_product()
    few = kept_by_hopper(a, b, promoted=4096).to(torch.bfloat16)
    check = reference.check_product(a, b, few, reference.FAST_ACCUMULATION)
    assert check.passed
    few[0, 5] += 16 * check.smallest_detectable
    check = reference.check_product(a, b, few, reference.FAST_ACCUMULATION)
    assert (check.passed, check.row, check.column) == (False, 0, 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_single_elements_are_checked_the_worst_first(dtype: torch.dtype) -> None:
    a, b, result = product(dtype)
    right = float(result[3, 4])
    result[3, 4] += 0.5
    found = reference.check_elements(a, b, result, [(95, 79), (3, 4), (0, 0)])
    assert (found[0].row, found[0].column) == (3, 4)
    assert found[0].worst > 1 and found[1].worst <= 1
    assert found[0].expected == pytest.approx(right, rel=0.01)
    assert found[0].got == float(result[3, 4])
    result[0, 0] = math.nan
    assert reference.check_elements(a, b, result, [(3, 4), (0, 0)])[0].worst == math.inf
    assert reference.check_elements(a, b, result, []) == []
