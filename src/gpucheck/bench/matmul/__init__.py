"""The options of `bench matmul`, which measures the rate, the real precision and the correctness of matrix products."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.bench.dtypes import DTYPES, Dtype
from gpucheck.errors import UsageError
from gpucheck.options import option

# A shape is M, N and K of the product (M×K)·(K×N).
Shape = tuple[int, int, int]

# No tensor that fits a machine has a larger dimension.
LARGEST_SIDE = 2**24
_SIDE = units.Integer(1, LARGEST_SIDE)
_SIDES = _SIDE.range


@dataclass(frozen=True, slots=True)
class Dimension:
    """The values of one dimension: from `low` to at most `high`, in steps of `step`."""

    low: int
    high: int
    step: int

    @property
    def values(self) -> range:
        return range(self.low, self.high + 1, self.step)

    @property
    def text(self) -> str:
        return f"{self.low}:{self.high}:{self.step}"


def parse_shape(text: str, name: str) -> Shape:
    """Return M, N and K from `4096x4096x1024`. Raises UsageError."""
    parts = text.lower().split("x")
    if len(parts) != 3:
        raise UsageError(f"{name} must be MxNxK, not {text!r}", "", "write it like 4096x4096x1024")
    m, n, k = (_SIDE(part, name) for part in parts)
    return m, n, k


def parse_axis(text: str, option: str) -> Dimension:
    """Return a dimension from `LOW:HIGH:STEP` or from one value. Raises UsageError."""
    if (match := re.fullmatch(r"(\d{1,9})(?::(\d{1,9}):(\d{1,9}))?", text, re.ASCII)) is None:
        raise UsageError(f"{option} must be LOW:HIGH:STEP, not {text!r}", "", "write it like 1024:16384:1024")
    low = int(match[1])
    high, step = (int(match[2]), int(match[3])) if match[2] else (low, 1)
    if not 1 <= low <= high <= LARGEST_SIDE or step < 1:
        wanted = f"rise from LOW to HIGH within 1 to {LARGEST_SIDE}, in steps of at least 1"
        raise UsageError(f"{option} must {wanted}, not {text!r}")
    return Dimension(low, high, step)


@dataclass(frozen=True, slots=True)
class MatmulOptions:
    """The user's options. An empty value means the documented default."""

    dtypes: tuple[Dtype, ...] = option(
        "Data type: float64, float32, tf32, float16, bfloat16, float8_e4m3fn, float8_e4m3fn_fast, float8_e4m3fnuz "
        "or int8. Repeatable.",
        shown="all that the device supports, on a CPU float32, float16 and bfloat16",
        name="--dtype",
        metavar="DTYPE",
        choices=DTYPES,
        repeat=True,
        fold=lambda given: tuple(dtype for dtype in DTYPES if dtype in given),
    )
    squares: tuple[int, ...] = option(
        "Multiply square matrices of N×N. Repeatable.", name="--size", metavar="N", parse=_SIDE, repeat=True
    )
    shapes: tuple[Shape, ...] = option(
        "Multiply M×K by K×N matrices. Repeatable.",
        name="--shape",
        metavar="MxNxK",
        parse=parse_shape,
        repeat=True,
        range=_SIDES,
    )
    cold: bool = option("Rotate over more matrices than the last-level cache holds.", False)
    burst: bool = option("Judge the rate from rest, at the highest clock, instead of the sustained rate.", False)
    search: bool = option("Search for the fastest shape of each data type.", False)
    span: Dimension | None = option(
        "Values of M, N and K for --search.",
        range=_SIDES,
        shown="1024:16384:1024, on a CPU 128:2048:128",
        name="--range",
        metavar="LOW:HIGH:STEP",
        parse=parse_axis,
    )
    m: Dimension | None = option("Values of M only, or one value.", metavar="RANGE", parse=parse_axis, range=_SIDES)
    n: Dimension | None = option("Values of N only, or one value.", metavar="RANGE", parse=parse_axis, range=_SIDES)
    k: Dimension | None = option("Values of K only, or one value.", metavar="RANGE", parse=parse_axis, range=_SIDES)
    time_budget_s: float | None = options.time_budget("60s, on a CPU without --search 30s")
    device: str = "auto"

    @property
    def wanted(self) -> tuple[Shape, ...]:
        """The shapes that the user gave, without duplicates."""
        return tuple(dict.fromkeys((*((side, side, side) for side in self.squares), *self.shapes)))

    @property
    def axes(self) -> tuple[Dimension | None, Dimension | None, Dimension | None]:
        """The axes of M, N and K; None means the device's default."""
        return self.m or self.span, self.n or self.span, self.k or self.span

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.search and self.wanted:
            raise UsageError("--search chooses the shapes", "", "use --range instead of --size and --shape")
        if self.search and self.cold:
            why = "shapes share their matrices, which stay in the cache"
            fix = "use --cold with the --shape that it finds"
            raise UsageError("--search cannot be combined with --cold", why, fix)
        if self.search and self.burst:
            raise UsageError("--search ranks shapes at one settled clock", "", "use --burst with the --shape it finds")
        if any(self.axes) and not self.search:
            raise UsageError("a range needs --search", "", "add --search")
