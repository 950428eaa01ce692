"""Check a product against float64 on the CPU, on sampled rows, with an error bound for each element.

The bound is probabilistic: rounding errors of K terms grow like √K, not like K. Source: Higham and Mary, "A New
Approach to Probabilistic Rounding Error Analysis", 2019. The bound for random inputs of mean zero is

    |error| ≤ u_out·|c| + SIGMAS·σ·s + d·(|c| + s),    σ = 2·u_in + √K·u_acc,    s = √(Σ_k (a_ik·b_kj)²)

u_out, u_in and u_acc are the unit roundoffs of the output, of the inputs in the multiplier, and of the accumulator. The
last term is for tensor cores alone. Tensor cores truncate towards zero after every T terms, and errors of one sign grow
like K: d = K/T·u_acc. A worst-case bound would be about √K times wider, and would miss a wrong bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

ROWS = 64
# An error exceeds 8σ by chance once in 10¹⁵ elements.
SIGMAS = 8.0

# The unit roundoff of a format with p-1 explicit mantissa bits is 2^-p, if it rounds to nearest.
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Tensor cores add in float32 and truncate. Truncating costs up to twice as much accuracy as rounding. Source: Fasi,
# Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021.
_ACCUMULATOR = 2.0**-23
# A V100 adds four products at once, and later GPUs add more. Source: the same paper.
_TERMS_AT_ONCE = 4
# Hopper's tensor cores align 32 float8 products to the largest, keep 13 fraction bits of each, and promote the sum to
# float32 after 128 products. With fast accumulation, they promote only at the end. Other tensor cores keep more bits.
# Sources: DeepSeek-V3 Technical Report, 2024, section 3.3.2; CUTLASS, mma_promotion_interval; cuBLAS,
# CUBLASLT_MATMUL_DESC_FAST_ACCUM.
_FLOAT8_ACCUMULATOR, _FLOAT8_AT_ONCE, _FLOAT8_PROMOTED = 2.0**-13, 32, 128
FAST_ACCUMULATION = "fast accumulation"
# Fewer random numbers than this may all be equal by chance, especially small integers.
_FEWEST_TO_SPREAD = 16
# Products of integers are exact, so an error of this size is wrong.
_EXACT_BOUND = 0.5
# The number of columns compared at once (as float64 copies), and of elements examined at once.
_COLUMNS_AT_ONCE = 1024
_ELEMENTS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a product against float64. `worst` is the error as a share of its bound; infinite for NaN."""

    row: int
    column: int
    got: float
    expected: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck(Element):
    """The worst element of a comparison. A `worst` of at most 1 passes. `smallest_detectable` is the lowest bound.

    `not_finite` is the host's count over the whole result. `miscounted` is True if the device's count differs.
    """

    rows: int
    not_finite: int
    smallest_detectable: float
    miscounted: bool = False

    @property
    def passed(self) -> bool:
        return self.worst <= 1.0 and self.not_finite == 0 and not self.miscounted


@dataclass(frozen=True, slots=True)
class ErrorTerms:
    """The u_out, σ and d of the bound of a product of K terms. A product of integers is `exact`."""

    result: float
    sigma: float
    drift: float
    exact: bool = False

    def bound(self, expected: Tensor, s: Tensor) -> Tensor:
        if self.exact:
            return torch.full_like(expected, _EXACT_BOUND)
        size = expected.abs()
        bound = self.result * size + SIGMAS * self.sigma * s + self.drift * (size + s)
        # Errors are divided by the bound, so the bound must not be zero.
        return bound.clamp_min_(torch.finfo(torch.float32).tiny)


def errors(operand: torch.dtype, result: torch.dtype, k: int, precision: str | None = None) -> ErrorTerms:
    """Return the terms of a product's error bound. `precision` is `tf32`, or FAST_ACCUMULATION for float8."""
    if not result.is_floating_point:
        return ErrorTerms(0.0, 0.0, 0.0, exact=True)
    name = str(result).removeprefix("torch.")
    of_inputs = _ROUNDOFF[precision] if precision in ("tf32", "bfloat16") else 0.0
    accumulator = _ROUNDOFF["float64"] if name == "float64" else _ACCUMULATOR
    # The reference of a float64 product is float64 too, so both sides round.
    sigma = (2.0 if name == "float64" else 1.0) * (2 * of_inputs + math.sqrt(k) * accumulator)
    drift = k / _TERMS_AT_ONCE * accumulator if of_inputs or name in ("float16", "bfloat16") else 0.0
    if operand.itemsize == 1:
        promoted = k if precision == FAST_ACCUMULATION else _FLOAT8_PROMOTED
        # Each term loses up to 2⁻¹³ of the largest term, which is about the sum of the terms between two promotions.
        sigma += _FLOAT8_ACCUMULATOR * math.sqrt(min(k, promoted))
        drift += _FLOAT8_ACCUMULATOR * promoted / _FLOAT8_AT_ONCE
    return ErrorTerms(_ROUNDOFF[name], sigma, drift)


def sampled_rows(count: int) -> list[int]:
    """Return evenly spread row numbers that include the first and the last row."""
    return sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)}) if count > ROWS else list(range(count))


def check_product(a: Tensor, b: Tensor, result: Tensor, precision: str | None = None) -> ResultCheck:
    """Compare `result` with a·b on sampled rows. a is M×K and b is K×N, both random with mean zero, on one device."""
    rows = sampled_rows(a.shape[0])
    left, got = _rows(a, rows), _rows(result, rows)
    sources = errors(a.dtype, result.dtype, a.shape[1], precision)
    worst = Element(0, 0, 0.0, 0.0, 0.0)
    smallest = math.inf
    for first in range(0, b.shape[1] if rows else 0, _COLUMNS_AT_ONCE):
        right = b[:, first : first + _COLUMNS_AT_ONCE].cpu().double()
        expected = left @ right
        bound = sources.bound(expected, (left.square() @ right.square()).sqrt_())
        got_here = got[:, first : first + _COLUMNS_AT_ONCE]
        share = _share((got_here - expected).abs_(), bound)
        at = int(share.argmax())
        smallest = min(smallest, float(bound.min()))
        if float(share.reshape(-1)[at]) > worst.worst:
            row, column = divmod(at, share.shape[1])
            values = (float(each[row, column]) for each in (got_here, expected, share))
            worst = Element(rows[row], first + column, *values)
    not_finite, miscounted = _not_finite(result)
    return ResultCheck(
        rows=len(rows),
        **asdict(worst),
        not_finite=not_finite,
        smallest_detectable=(1.0 if sources.exact else smallest) if math.isfinite(smallest) else 0.0,
        miscounted=miscounted,
    )


def _not_finite(result: Tensor) -> tuple[int, bool]:
    """Return the host's count of elements that are not finite, and whether the device's count differs."""
    count, miscounted = 0, False
    for part in result.split(max(1, _ELEMENTS_AT_ONCE // max(1, result.shape[1]))):
        if (finite := int(torch.isfinite(part).sum())) != part.numel():
            on_host = counted(~part.cpu().isfinite())
            count += on_host or 0
            miscounted |= on_host is None or finite != part.numel() - on_host
    return count, miscounted


def check_elements(
    a: Tensor,
    b: Tensor,
    result: Tensor,
    places: Sequence[tuple[int, int]],
    precision: str | None = None,
    *,
    got: Sequence[float] | None = None,
) -> list[Element]:
    """Compare elements of `result` with float64, and return the worst first. `got` replaces the values in `result`."""
    if not places:
        return []
    rows, columns = [row for row, _ in places], [column for _, column in places]
    terms = _rows(a, rows) * _rows(b.t(), columns)
    index = (torch.tensor(rows, device=result.device), torch.tensor(columns, device=result.device))
    values = result[index].cpu().double() if got is None else torch.tensor(got, dtype=torch.float64)
    expected = terms.sum(1)
    sources = errors(a.dtype, result.dtype, a.shape[1], precision)
    share = _share((values - expected).abs_(), sources.bound(expected, terms.square_().sum(1).sqrt_()))
    elements = map(Element, rows, columns, values.tolist(), expected.tolist(), share.tolist())
    return sorted(elements, key=lambda element: -element.worst)


def spread(matrix: Tensor) -> float | None:
    """Return the standard deviation of sampled rows, computed on the CPU; None for fewer than 16 elements."""
    sampled = _rows(matrix, sampled_rows(matrix.shape[0]))
    return float(sampled.std(correction=0)) if sampled.numel() >= _FEWEST_TO_SPREAD else None


def _share(error: Tensor, bound: Tensor) -> Tensor:
    """Return errors as shares of their bounds. A NaN becomes infinite, because comparisons with NaN are false."""
    return (error / bound).nan_to_num_(nan=math.inf, posinf=math.inf)


def _rows(matrix: Tensor, rows: Sequence[int]) -> Tensor:
    index = torch.tensor(rows, device=matrix.device, dtype=torch.int64)
    # Some devices cannot select rows of float8, but every device can select rows of bytes.
    plain = matrix.view(torch.uint8) if matrix.dtype.itemsize == 1 else matrix
    return plain.index_select(0, index).cpu().view(matrix.dtype).double()


# The number of elements read at each end. Reading as many takes as long as reading one.
SAMPLE = 512
GARBAGE = "the device's own count is invalid"
# An `ExpectedElements` returns the right elements between two positions, on the CPU.
ExpectedElements = Callable[[int, int], Tensor]


def counted(true: Tensor) -> int | None:
    """Return the device's count of true elements; None if the count is impossible."""
    return count_of(int(true.sum()), true.numel())


def count_of(count: int, total: int) -> int | None:
    return count if 0 <= count <= total else None


def unequal(got: Tensor, expected: Tensor, wanted: ExpectedElements) -> tuple[Tensor, Tensor] | None:
    """Return None if `got` (one dimension) is right. Else return a copy of `got` and the right elements, on the CPU.

    `expected` has the right elements on the device of `got`. The two returned tensors can be equal. In this case,
    memory or the device's comparison is unreliable.
    """
    if torch.equal(got, expected) and sample_is(got, wanted):
        return None
    return got.cpu(), wanted(0, len(got))


def sample_is(got: Tensor, wanted: ExpectedElements) -> bool:
    """Return whether the host finds both ends of `got` (one dimension) right."""
    count = len(got)
    ends = {(0, min(SAMPLE, count)), (max(count - SAMPLE, 0), count)}
    return all(torch.equal(got[start:stop].cpu(), wanted(start, stop)) for start, stop in ends)


# -- every element, in sums of columns ---------------------------------------------------------------------------------

# Freivalds' check adds up blocks of 64 columns with random signs x, and compares C·x with A·(B·x). Source:
# "Probabilistic machines can use less running time", 1977. One wrong element changes the sum of its block. Rounding
# changes the sums of healthy results, so the threshold is 8σ of that rounding. Sums over whole rows would find almost
# nothing in bfloat16, because the rounding of thousands of right elements hides a wrong element. The check multiplies
# in float64, with 1/32 of the operations of the product. A device without float64 leaves the check to the CPU.
WIDTH = 64
# The number of elements converted to float64 at once (64 MiB), the most copies of them, and the bytes of a float64.
_AT_ONCE = 2**23
_COPIES, _DOUBLE = 4.25, 8
_WITH_FLOAT64 = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class Sums:
    """The result of the sums. `worst` is the largest difference as a share of its threshold; at most 1 passes.

    `row` and `column` locate the largest difference, which spans `columns` columns. The check finds an error in one
    element above `detectable`, twice the largest threshold. `blocks` is the number of sums.
    """

    worst: float
    row: int
    column: int
    columns: int
    detectable: float
    blocks: int

    @property
    def passed(self) -> bool:
        return self.worst <= 1.0


def check_sums(a: Tensor, b: Tensor, result: Tensor, precision: str | None = None, width: int = WIDTH) -> Sums:
    """Compare all of `result` with a·b. a is M×K and b is K×N, on one device."""
    device = a.device if a.device.type in _WITH_FLOAT64 else torch.device("cpu")
    (m, k), n = a.shape, b.shape[1]
    if not m or not n:
        return Sums(0.0, 0, 0, 0, 0.0, 0)
    sources = errors(a.dtype, result.dtype, k, precision)
    signs = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(0)).double().mul_(2).sub_(1).to(device)
    of_b, squares_of_b = _added(b, signs, width, device)
    worst, place, largest = 0.0, (0, 0), 0.0
    rows = max(1, _AT_ONCE // max(k, -(-n // width) * width))
    for first in range(0, m, rows):
        left = _wide(a[first : first + rows], device)
        sums, squares = _added(result[first : first + rows], signs, width, device)
        difference = (sums - left @ of_b).abs_()
        if sources.exact:
            threshold = torch.full_like(difference, _EXACT_BOUND)
        else:
            # Rounding the output gives a variance of (u_out·c)²/3. The accumulation gives the rest. The random signs
            # make the drift, which always has one direction, a random term too.
            s_squared, drift = left.square() @ squares_of_b, 2 * sources.drift**2
            variance = (sources.result**2 / 3 + drift) * squares + (sources.sigma**2 + drift) * s_squared
            threshold = SIGMAS * variance.sqrt_().clamp_min_(torch.finfo(torch.float32).tiny)
        # The host computes the rest, because positions and counts from a broken device may be wrong.
        threshold = threshold.cpu()
        share = _share(difference.cpu(), threshold)
        at = int(share.argmax())
        finite = threshold[threshold.isfinite()]
        largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        if float(share.reshape(-1)[at]) > worst:
            worst = float(share.reshape(-1)[at])
            place = first + at // share.shape[1], at % share.shape[1] * width
    blocks = -(-n // width)
    return Sums(worst, *place, min(width, n - place[1]), 1.0 if sources.exact else 2 * largest, m * blocks)


def extra_bytes(m: int, n: int, k: int) -> int:
    """Return the most bytes that a check takes besides the matrices: both sums of B, and one step with its results."""
    filled = max(-(-n // WIDTH) * WIDTH, k)
    part = min(max(m, k) * filled, max(_AT_ONCE, filled))
    return int(_DOUBLE * (2 * k * -(-n // WIDTH) + _COPIES * part))


def _wide(part: Tensor, device: torch.device) -> Tensor:
    part = part.to(device)
    # Every device with float8 converts float8 to float32, and the conversion is exact.
    return (part.float() if part.dtype.itemsize == 1 else part).double()


def _added(matrix: Tensor, signs: Tensor, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the signed sums of each row over `width` columns at a time, and the sums of the squares."""
    rows, n = matrix.shape
    blocks = -(-n // width)
    sums = torch.empty(rows, blocks, dtype=torch.float64, device=device)
    squares = torch.empty_like(sums)
    step = max(1, _AT_ONCE // (blocks * width))
    for first in range(0, rows, step):
        part = _wide(matrix[first : first + step], device).contiguous()
        padded = torch.nn.functional.pad(part, (0, blocks * width - n)).view(-1, blocks, width)
        weights = torch.nn.functional.pad(signs, (0, blocks * width - n)).view(blocks, width)
        sums[first : first + step] = (padded * weights).sum(2)
        squares[first : first + step] = padded.square().sum(2)
    return sums, squares
