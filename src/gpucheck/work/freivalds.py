"""Is every element of a product right? Freivalds' check: sums of the result's columns against those of B.

Columns are added up with random signs, 64 at a time: C·x must be A·(B·x). One wrong element anywhere changes the sum of
its block. (R. Freivalds, "Probabilistic machines can use less running time", 1977.) Healthy results differ too, by
rounding: the threshold is 8σ of the rounding of the output and of the accumulation, as in reference.py. Sums over whole
rows would hide a wrong element in the rounding of thousands of right ones: in bfloat16 they find almost nothing.

Its products are in float64 and 1/32 of the checked one's operations. They run on the result's device where that has
float64, else on the CPU, a part at a time; `extra_bytes` tells what that takes beside the matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gpucheck.work.reference import SIGMAS, errors

WIDTH = 64
# Elements that are converted to float64 at once: 64 MiB of them, a few times over: a part of A, of the result as it is,
# with its last block filled up, and times the signs; a small part for the sums of these.
_AT_ONCE = 2**23
_COPIES, _DOUBLE = 4.25, 8
# Which devices have float64 is theirs to know: these have, and the CPU does for the others.
_WITH_FLOAT64 = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class Sums:
    """The result of the sums. `worst` is the largest difference as a share of its threshold; at most 1 passes.

    It is in row `row`, in `columns` columns from `column` on. An error larger than `detectable` in any one element is
    found: what it adds to a sum exceeds twice the largest threshold. `blocks` is how many sums were compared.
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


def check_sums(
    a: torch.Tensor,
    b: torch.Tensor,
    result: torch.Tensor,
    precision: str | None = None,
    *,
    width: int = WIDTH,
    seed: int = 0,
) -> Sums:
    """Compare all of `result` with a·b (a is M×K, b K×N, on any one device). The signs come from `seed`."""
    device = a.device if a.device.type in _WITH_FLOAT64 else torch.device("cpu")
    (m, k), n = a.shape, b.shape[1]
    if not m or not n:
        return Sums(0.0, 0, 0, 0, 0.0, 0)
    made = errors(a.dtype, result.dtype, k, precision)
    signs = torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(seed)).double().mul_(2).sub_(1).to(device)
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
            # Of each element: u_out·|c| where it was rounded to any nearest number (a third of its square, on average),
            # and what adding up leaves. A random sign makes of what always has one direction one more of these.
            spread = left.square() @ squares_of_b
            variance = (made.result**2 / 3 + 2 * made.drift**2) * squares + (made.sigma**2 + 2 * made.drift**2) * spread
            threshold = SIGMAS * variance.sqrt_().clamp_min_(torch.finfo(torch.float32).tiny)
        # On the host from here on: a place or a count that a broken device tells may lie anywhere.
        threshold = threshold.cpu()
        share = difference.cpu() / threshold
        # A NaN compares as false with everything: it must not pass as small.
        share = torch.where(share.isnan(), torch.full_like(share, math.inf), share)
        at = int(share.argmax())
        finite = threshold[threshold.isfinite()]
        largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        if float(share.reshape(-1)[at]) > worst:
            worst = float(share.reshape(-1)[at])
            place = first + at // share.shape[1], at % share.shape[1] * width
    blocks = -(-n // width)
    return Sums(worst, place[0], place[1], min(width, n - place[1]), 1.0 if made.exact else 2 * largest, m * blocks)


def extra_bytes(m: int, n: int, k: int) -> int:
    """Return what a check takes beside the matrices, at most: both sums of B, and a part with what is computed from
    it."""
    filled = max(-(-n // WIDTH) * WIDTH, k)
    part = min(max(m, k) * filled, max(_AT_ONCE, filled))
    return int(_DOUBLE * (2 * k * -(-n // WIDTH) + _COPIES * part))


def _wide(part: torch.Tensor, device: torch.device) -> torch.Tensor:
    part = part.to(device)
    # float8 is converted to float32 wherever there is float8; that is exact.
    return (part.float() if part.dtype.itemsize == 1 else part).double()


def _added(
    matrix: torch.Tensor, signs: torch.Tensor, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the sums of its columns with their signs, `width` at a time, and the sums of their squares."""
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
