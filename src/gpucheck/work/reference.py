"""The correctness of a product: sampled rows in float64 on the CPU, with a bound for each element.

The bound is probabilistic (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019): rounding
errors of K terms grow like √K, not K. The bound for random inputs of mean zero is

    |error| ≤ u_out·|c| + SIGMAS·σ·s + d·(|c| + s),    σ = 2·u_in + √K·u_acc,    s = √(Σ_k (a_ik·b_kj)²)

with the unit roundoffs of the output, of the inputs as the multiplier sees them, and of the accumulator. The last term
is for tensor cores alone: they truncate after every T terms, always towards zero, and such errors grow like K (d =
K/T·u_acc). The worst-case bound would be about √K times wider, and would miss a wrong bit.
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

# Unit roundoff 2^-(p) of a format with p-1 explicit mantissa bits, rounding to nearest.
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Tensor cores add in float32 and truncate, which costs up to twice what rounding does (Fasi, Higham, Mikaitis, Pranesh,
# "Numerical behavior of NVIDIA tensor cores", 2021).
_ACCUMULATOR = 2.0**-23
# V100 adds four products at once, later parts more (ibid.).
_TERMS_AT_ONCE = 4
# Hopper's tensor cores align 32 float8 products to the largest and keep 13 fraction bits of each. They promote the sum
# to float32 after 128 (DeepSeek-V3 Technical Report, 2024, section 3.3.2; CUTLASS's mma_promotion_interval); with
# fast accumulation, only at the end (cuBLAS, CUBLASLT_MATMUL_DESC_FAST_ACCUM). Other tensor cores keep more bits.
_FLOAT8_ACCUMULATOR, _FLOAT8_AT_ONCE, _FLOAT8_PROMOTED = 2.0**-13, 32, 128
FAST_ACCUMULATION = "fast accumulation"
# Fewer random numbers than this may all be equal by chance, especially small integers.
_FEWEST_TO_SPREAD = 16
# Results of whole numbers are exact, so an error of 0.5 is already wrong.
_HALF_OF_ONE = 0.5
# The columns compared at once, as float64 copies, and the elements examined at once.
_COLUMNS_AT_ONCE = 1024
_ELEMENTS_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a product against float64; `worst` is its error as a share of its bound, infinite for a NaN."""

    row: int
    column: int
    got: float
    expected: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck(Element):
    """The worst element of a comparison; a `worst` of at most 1 passes. `smallest_detectable` is the lowest bound.

    `not_finite` is the host's count over the whole result; `miscounted` is True if the device's count differs.
    """

    rows: int
    not_finite: int
    smallest_detectable: float
    miscounted: bool = False

    @property
    def passed(self) -> bool:
        return self.worst <= 1.0 and self.not_finite == 0 and not self.miscounted


@dataclass(frozen=True, slots=True)
class Errors:
    """The error sources of a product of K terms: u_out, σ and d of the bound; none where it is `exact`."""

    result: float
    sigma: float
    drift: float
    exact: bool = False

    def bound(self, expected: Tensor, spread: Tensor) -> Tensor:
        """Return the bound of each element; `spread` is s."""
        if self.exact:
            return torch.full_like(expected, _HALF_OF_ONE)
        size = expected.abs()
        bound = self.result * size + SIGMAS * self.sigma * spread + self.drift * (size + spread)
        # The bound is never zero, because errors are divided by it.
        return bound.clamp_min_(torch.finfo(torch.float32).tiny)


def errors(operand: torch.dtype, result: torch.dtype, k: int, precision: str | None = None) -> Errors:
    """Return the error sources of a product. `precision` is `tf32`, or FAST_ACCUMULATION for float8."""
    if not result.is_floating_point:
        return Errors(0.0, 0.0, 0.0, exact=True)
    name = str(result).removeprefix("torch.")
    of_inputs = _ROUNDOFF[precision] if precision in ("tf32", "bfloat16") else 0.0
    accumulator = _ROUNDOFF["float64"] if name == "float64" else _ACCUMULATOR
    # float64 is its own reference: both sides round.
    sigma = (2.0 if name == "float64" else 1.0) * (2 * of_inputs + math.sqrt(k) * accumulator)
    drift = k / _TERMS_AT_ONCE * accumulator if of_inputs or name in ("float16", "bfloat16") else 0.0
    if operand.itemsize == 1:
        promoted = k if precision == FAST_ACCUMULATION else _FLOAT8_PROMOTED
        # Each term loses up to one part in 2¹³ of the largest, which is about the sum of a promoted part.
        sigma += _FLOAT8_ACCUMULATOR * math.sqrt(min(k, promoted))
        drift += _FLOAT8_ACCUMULATOR * promoted / _FLOAT8_AT_ONCE
    return Errors(_ROUNDOFF[name], sigma, drift)


def sampled_rows(count: int) -> list[int]:
    """Return evenly spread row numbers, the first and the last among them."""
    return sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)}) if count > ROWS else list(range(count))


def check_product(a: Tensor, b: Tensor, result: Tensor, precision: str | None = None) -> ResultCheck:
    """Compare `result` with a·b on sampled rows (a is M×K, b K×N, random with mean zero, on any one device)."""
    chosen = sampled_rows(a.shape[0])
    left, got = _rows(a, chosen), _rows(result, chosen)
    made = errors(a.dtype, result.dtype, a.shape[1], precision)
    worst = Element(0, 0, 0.0, 0.0, 0.0)
    smallest = math.inf
    for first in range(0, b.shape[1] if chosen else 0, _COLUMNS_AT_ONCE):
        right = b[:, first : first + _COLUMNS_AT_ONCE].cpu().double()
        expected = left @ right
        bound = made.bound(expected, (left.square() @ right.square()).sqrt_())
        mine = got[:, first : first + _COLUMNS_AT_ONCE]
        share = _share((mine - expected).abs_(), bound)
        at = int(share.argmax())
        smallest = min(smallest, float(bound.min()))
        error, got_here, right_here = (float(values.reshape(-1)[at]) for values in (share, mine, expected))
        if error > worst.worst:
            row, column = divmod(at, share.shape[1])
            worst = Element(chosen[row], first + column, got_here, right_here, error)
    not_finite, miscounted = _not_finite(result)
    return ResultCheck(
        rows=len(chosen),
        **asdict(worst),
        not_finite=not_finite,
        smallest_detectable=(1.0 if made.exact else smallest) if math.isfinite(smallest) else 0.0,
        miscounted=miscounted,
    )


def _not_finite(result: Tensor) -> tuple[int, bool]:
    """Return the host's count of elements that are not finite, and whether the device's count differs."""
    count, miscounted = 0, False
    for part in result.split(max(1, _ELEMENTS_AT_ONCE // max(1, result.shape[1]))):
        finite = int(torch.isfinite(part).sum())
        if finite != part.numel():
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
    """Compare these elements of `result` with float64; return the worst first. `got` are values read before."""
    if not places:
        return []
    rows, columns = [row for row, _ in places], [column for _, column in places]
    terms = _rows(a, rows) * _rows(b.t(), columns)
    index = (torch.tensor(rows, device=result.device), torch.tensor(columns, device=result.device))
    values = result[index].cpu().double() if got is None else torch.tensor(got, dtype=torch.float64)
    expected = terms.sum(1)
    made = errors(a.dtype, result.dtype, a.shape[1], precision)
    share = _share((values - expected).abs_(), made.bound(expected, terms.square_().sum(1).sqrt_()))
    elements = (
        Element(row, column, float(mine), float(right), float(worst))
        for row, column, mine, right, worst in zip(rows, columns, values, expected, share, strict=True)
    )
    return sorted(elements, key=lambda element: -element.worst)


def spread(matrix: Tensor) -> float | None:
    """Return the standard deviation of sampled rows, computed on the host; None for fewer than 16 elements."""
    sampled = _rows(matrix, sampled_rows(matrix.shape[0]))
    return float(sampled.std(correction=0)) if sampled.numel() >= _FEWEST_TO_SPREAD else None


def _share(error: Tensor, bound: Tensor) -> Tensor:
    """Return errors as shares of their bounds. A NaN becomes infinite, because comparisons with NaN are false."""
    return (error / bound).nan_to_num_(nan=math.inf, posinf=math.inf)


def _rows(matrix: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows in float64 on the CPU."""
    index = torch.tensor(rows, device=matrix.device, dtype=torch.int64)
    # Not every device selects float8; bytes are selected everywhere.
    plain = matrix.view(torch.uint8) if matrix.dtype.itemsize == 1 else matrix
    return plain.index_select(0, index).cpu().view(matrix.dtype).double()


# The number of elements read at either end, which takes as long as reading one.
SAMPLE = 512
GARBAGE = "the device's own count is invalid"
# An `ExpectedElements` returns the right elements from a start to a stop position, on the CPU.
ExpectedElements = Callable[[int, int], Tensor]


def counted(true: Tensor) -> int | None:
    """Return how many elements are true by the device's count; None if that count is impossible."""
    return count_of(int(true.sum()), true.numel())


def count_of(count: int, total: int) -> int | None:
    return count if 0 <= count <= total else None


def unequal(got: Tensor, expected: Tensor, wanted: ExpectedElements) -> tuple[Tensor, Tensor] | None:
    """Return None if `got` (one dimension) is right. Else return a copy of `got` and the right elements, on the CPU.

    `expected` has the right elements on the device of `got`. If the two returned tensors are equal, a second comparison
    found no difference: memory, or the comparison itself, is unreliable.
    """
    if torch.equal(got, expected) and sample_is(got, wanted):
        return None
    return got.cpu(), wanted(0, len(got))


def sample_is(got: Tensor, wanted: ExpectedElements) -> bool:
    """Return whether both ends of `got` (one dimension) are right, as the host sees them."""
    count = len(got)
    ends = {(0, min(SAMPLE, count)), (max(count - SAMPLE, 0), count)}
    return all(torch.equal(got[start:stop].cpu(), wanted(start, stop)) for start, stop in ends)


# -- every element, in sums of columns ---------------------------------------------------------------------------------

# Freivalds' check ("Probabilistic machines can use less running time", 1977): columns are added up with random signs,
# 64 at a time, and C·x must be A·(B·x). One wrong element anywhere changes the sum of its block. Healthy results differ
# too, by rounding: the threshold is 8σ of that rounding. Sums over whole rows would hide a wrong element in the
# rounding of thousands of right ones: in bfloat16 they find almost nothing. The check multiplies in float64 and takes
# 1/32 of the operations of the checked product. It runs on the result's device if that has float64, else on the CPU,
# part by part.
WIDTH = 64
# The elements that are converted to float64 at once (64 MiB), the number of such copies at a time, and the bytes of a
# float64.
_AT_ONCE = 2**23
_COPIES, _DOUBLE = 4.25, 8
# Devices with float64; the CPU computes for the others.
_WITH_FLOAT64 = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class Sums:
    """The result of the sums. `worst` is the largest difference as a share of its threshold; at most 1 passes.

    That difference is in row `row`, in `columns` columns from `column` on. An error in one element is found if it is
    larger than `detectable`, twice the largest threshold. `blocks` is the number of sums.
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
    """Compare all of `result` with a·b (a is M×K, b K×N, on any one device)."""
    device = a.device if a.device.type in _WITH_FLOAT64 else torch.device("cpu")
    (m, k), n = a.shape, b.shape[1]
    if not m or not n:
        return Sums(0.0, 0, 0, 0, 0.0, 0)
    made = errors(a.dtype, result.dtype, k, precision)
    signs = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(0)).double().mul_(2).sub_(1).to(device)
    of_b, squares_of_b = _added(b, signs, width, device)
    worst, place, largest = 0.0, (0, 0), 0.0
    rows = max(1, _AT_ONCE // max(k, -(-n // width) * width))
    for first in range(0, m, rows):
        left = _wide(a[first : first + rows], device)
        sums, squares = _added(result[first : first + rows], signs, width, device)
        difference = (sums - left @ of_b).abs_()
        if made.exact:
            threshold = torch.full_like(difference, 0.5)
        else:
            # The variance of each element: rounding to the nearest number gives u_out·|c| (a third of its square, on
            # average), and adding up gives the rest. A random sign turns an error that always has one direction into
            # one more random term.
            spread = left.square() @ squares_of_b
            variance = (made.result**2 / 3 + 2 * made.drift**2) * squares + (made.sigma**2 + 2 * made.drift**2) * spread
            threshold = SIGMAS * variance.sqrt_().clamp_min_(torch.finfo(torch.float32).tiny)
        # The host computes the rest, because a position or count from a broken device cannot be trusted.
        threshold = threshold.cpu()
        share = _share(difference.cpu(), threshold)
        at = int(share.argmax())
        finite = threshold[threshold.isfinite()]
        largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        if float(share.reshape(-1)[at]) > worst:
            worst = float(share.reshape(-1)[at])
            place = first + at // share.shape[1], at % share.shape[1] * width
    blocks = -(-n // width)
    return Sums(worst, place[0], place[1], min(width, n - place[1]), 1.0 if made.exact else 2 * largest, m * blocks)


def extra_bytes(m: int, n: int, k: int) -> int:
    """Return the most bytes that a check takes besides the matrices: both sums of B, and a part with its results."""
    filled = max(-(-n // WIDTH) * WIDTH, k)
    part = min(max(m, k) * filled, max(_AT_ONCE, filled))
    return int(_DOUBLE * (2 * k * -(-n // WIDTH) + _COPIES * part))


def _wide(part: Tensor, device: torch.device) -> Tensor:
    part = part.to(device)
    # Every device with float8 converts it to float32, exactly.
    return (part.float() if part.dtype.itemsize == 1 else part).double()


def _added(matrix: Tensor, signs: Tensor, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the sums of each row's columns with their signs, `width` at a time, and the sums of their squares."""
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
