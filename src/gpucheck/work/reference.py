"""Is a product right? Sampled rows in float64 on the CPU, with a bound for each element.

The bound is probabilistic (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019): rounding
errors of K terms grow like √K, not K. For random inputs of mean zero it is

    |error| ≤ u_out·|c| + SIGMAS·(2·u_in + √K·u_acc)·s,    s = √(Σ_k (a_ik·b_kj)²)

with the unit roundoffs of the output, of the inputs as the multiplier sees them, and of the accumulator. The worst-case
bound would be some √K times wider, and blind to a wrong bit.
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
    index = torch.tensor(chosen, device=a.device)
    left, right = a.index_select(0, index).cpu().double(), b.cpu().double()
    got = result.index_select(0, index).cpu().double()
    expected = left @ right
    spread = (left.square() @ right.square()).sqrt_()
    bound = _bound(expected, spread, a.shape[1], str(result.dtype).removeprefix("torch."), precision)
    share = (got - expected).abs_() / bound
    # A NaN compares as false with everything: it must not pass as small.
    share = torch.where(share.isnan(), torch.full_like(share, math.inf), share)
    worst = int(share.argmax()) if share.numel() else 0
    row, column = divmod(worst, max(share.shape[1], 1))
    return Check(
        rows=len(chosen),
        worst=float(share.reshape(-1)[worst]) if share.numel() else 0.0,
        row=chosen[row] if chosen else 0,
        column=column,
        not_finite=int(result.numel() - int(torch.isfinite(result).sum())),
        smallest_detectable=float(bound.min()) if bound.numel() else 0.0,
    )


def _bound(expected: torch.Tensor, spread: torch.Tensor, k: int, dtype: str, precision: str | None) -> torch.Tensor:
    seen = _ROUNDOFF[precision] if precision in ("tf32", "bfloat16") else 0.0
    accumulator = _ROUNDOFF["float64"] if dtype == "float64" else _ACCUMULATOR
    # float64 is its own reference: both sides round.
    sides = 2.0 if dtype == "float64" else 1.0
    random = sides * SIGMAS * (2 * seen + math.sqrt(k) * accumulator) * spread
    # Where everything is zero the smallest number of the output's format is still room for nothing.
    return (_ROUNDOFF[dtype] * expected.abs() + random).clamp_min_(torch.finfo(torch.float32).tiny)
