"""Is a product right? Sampled rows in float64 on the CPU, with a bound for each element.

The bound is probabilistic (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019): rounding
errors of K terms grow like √K, not K. For random inputs of mean zero it is

    |error| ≤ u_out·|c| + SIGMAS·(2·u_in + √K·u_acc)·s + K/T·u_acc·(|c| + s),    s = √(Σ_k (a_ik·b_kj)²)

with the unit roundoffs of the output, of the inputs as the multiplier sees them, and of the accumulator. The last term
is for tensor cores alone: they truncate after every T terms, always towards zero, and such errors grow like K. The
worst-case bound would be some √K times wider, and blind to a wrong bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ROWS = 64
# 8σ is passed by chance once in 10¹⁵ elements.
SIGMAS = 8.0

# Unit roundoff 2^-(p) of a format with p-1 explicit mantissa bits, rounding to nearest.
_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
# Tensor cores add in float32 and truncate, which costs up to twice what rounding does (Fasi, Higham, Mikaitis, Pranesh,
# "Numerical behavior of NVIDIA tensor cores", 2021).
_ACCUMULATOR = 2.0**-23
# V100 adds four products at once, later parts more (ibid.).
_TERMS_AT_ONCE = 4
# Columns that are compared at once: float64 copies of a large matrix would not fit beside it.
_COLUMNS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Check:
    """What a comparison came to. `worst` is the largest error as a share of its bound; at most 1 passes.

    `row` and `column` name the worst element; `not_finite` counts elements of the whole result that are no number.
    """

    rows: int
    worst: float
    row: int
    column: int
    not_finite: int
    smallest_detectable: float

    @property
    def passed(self) -> bool:
        """Whether every sampled element lies within its bound and every element is finite."""
        return self.worst <= 1.0 and self.not_finite == 0


def sampled_rows(count: int, rows: int = ROWS) -> list[int]:
    """Evenly spread row numbers, the first and the last among them."""
    if count <= rows:
        return list(range(count))
    return sorted({round(i * (count - 1) / (rows - 1)) for i in range(rows)})


def check_product(a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, precision: str | None = None) -> Check:
    """Compare `result` with a·b on sampled rows (a is M×K, b K×N, random with mean zero, on any one device).

    `precision` names how the multiplier sees float32 (`tf32`); by default the inputs count as exact in their dtype.
    """
    chosen = sampled_rows(a.shape[0])
    index = torch.tensor(chosen, device=a.device, dtype=torch.int64)
    left, got = a.index_select(0, index).cpu().double(), result.index_select(0, index).cpu().double()
    dtype = str(result.dtype).removeprefix("torch.")
    worst, row, column, smallest = 0.0, 0, 0, math.inf
    for first in range(0, b.shape[1] if chosen else 0, _COLUMNS_AT_ONCE):
        right = b[:, first : first + _COLUMNS_AT_ONCE].cpu().double()
        expected = left @ right
        spread = (left.square() @ right.square_()).sqrt_()
        bound = _bound(expected, spread, a.shape[1], dtype, precision)
        share = (got[:, first : first + _COLUMNS_AT_ONCE] - expected).abs_() / bound
        # A NaN compares as false with everything: it must not pass as small.
        share = torch.where(share.isnan(), torch.full_like(share, math.inf), share)
        place = int(share.argmax())
        smallest = min(smallest, float(bound.min()))
        if float(share.reshape(-1)[place]) > worst:
            worst = float(share.reshape(-1)[place])
            row, column = chosen[place // share.shape[1]], first + place % share.shape[1]
    return Check(
        rows=len(chosen),
        worst=worst,
        row=row,
        column=column,
        not_finite=int(result.numel() - int(torch.isfinite(result).sum())),
        smallest_detectable=smallest if math.isfinite(smallest) else 0.0,
    )


def _bound(expected: torch.Tensor, spread: torch.Tensor, k: int, dtype: str, precision: str | None) -> torch.Tensor:
    seen = _ROUNDOFF[precision] if precision in ("tf32", "bfloat16") else 0.0
    accumulator = _ROUNDOFF["float64"] if dtype == "float64" else _ACCUMULATOR
    # float64 is its own reference: both sides round.
    sides = 2.0 if dtype == "float64" else 1.0
    random = sides * SIGMAS * (2 * seen + math.sqrt(k) * accumulator) * spread
    if seen or dtype in ("float16", "bfloat16"):
        random += k / _TERMS_AT_ONCE * accumulator * (expected.abs() + spread)
    # Where everything is zero the smallest number of the output's format is still room for nothing.
    return (_ROUNDOFF[dtype] * expected.abs() + random).clamp_min_(torch.finfo(torch.float32).tiny)
