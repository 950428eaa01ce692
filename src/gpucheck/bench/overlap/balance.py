"""A copy and as much compute as takes as long: calibrated, and grouped for the rounds. No torch in here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucheck.bench.rounds import Group
from gpucheck.measure.held import Timer

# So that a launch and a synchronise, some 10 µs, are half a percent of what is timed.
SHORTEST_S = 2e-3
# The launch queue blocks the host near 1 000 entries.
MOST_COPIES, MOST_PRODUCTS = 200, 700
# A product is no longer than this share of the copies: their number then fits within half of it.
LONGEST_PRODUCT = 0.05
# The two should agree as well as this; the measuring contract calls for a tenth.
CLOSE, BALANCED = 0.03, 0.10
TRIES, MOST_CORRECTIONS = 3, 4
# Of an unknown product: so many, for launching one and waiting for it is not what it costs.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Pair:
    """A copy and products of some sides, each a call that enqueues one. `beside` makes the copies' stream current.

    `prepare(number, calls)` runs untimed before a window with so many copies.
    """

    copy: Callable[[], object]
    products: Mapping[int, Callable[[], object]]
    beside: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    prepare: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """How many copies stand against how many products of which side, and what each took while it was found out."""

    copies: int
    side: int
    products: int
    copy_s: float
    compute_s: float


def unbalanced(copy_s: float, compute_s: float) -> bool:
    """Whether two times differ by more than a tenth of the longer."""
    return abs(copy_s - compute_s) > BALANCED * max(copy_s, compute_s)


def find(timer: Timer, pair: Pair) -> Balance:
    """How many products take as long as the copies; the larger the matrix the better, while that leaves a choice."""

    def copies_take(count: int) -> float:
        return _least(_copies(timer, pair, count))

    def products_take(side: int, count: int) -> float:
        return _least(Group(timer, _products(pair, side, count)))

    copies = max(1, min(MOST_COPIES, math.ceil(SHORTEST_S / copies_take(1))))
    copy_s = copies_take(copies)
    side, product_s = 0, 0.0
    for candidate in sorted(pair.products):
        taken_s = products_take(candidate, AT_ONCE) / AT_ONCE
        if side and taken_s > LONGEST_PRODUCT * copy_s:
            break
        side, product_s = candidate, taken_s
    for correction in range(MOST_CORRECTIONS):
        products = max(1, min(MOST_PRODUCTS, round(copy_s / product_s)))
        compute_s = products_take(side, products)
        if abs(compute_s - copy_s) <= CLOSE * copy_s or products == 1 or correction == MOST_CORRECTIONS - 1:
            break
        product_s = compute_s / products
        # Clocks rise under load, and links wake: the copies are looked at again too.
        copy_s = copies_take(copies)
    return Balance(copies, side, products, copy_s, compute_s)


def groups(timer: Timer, pair: Pair, balance: Balance) -> dict[str, Group]:
    """The three that are timed in turn: `copy`, `compute` and `both`. Each is one call, with one wait at its end."""
    copy, compute = _copies(timer, pair, balance.copies), _products(pair, balance.side, balance.products)

    def both() -> None:
        copy.call()
        compute()

    return {
        "copy": copy,
        "compute": Group(timer, compute),
        "both": Group(timer, both, prepare=copy.prepare),
    }


def _copies(timer: Timer, pair: Pair, count: int) -> Group:
    """So many copies as one call."""
    copy, beside, prepare = pair.copy, pair.beside, pair.prepare

    def call() -> None:
        with beside():
            for _ in range(count):
                copy()

    return Group(timer, call, prepare=prepare and (lambda number, calls: prepare(number, count * calls)))


def _products(pair: Pair, side: int, count: int) -> Callable[[], None]:
    """So many products as one call."""
    product = pair.products[side]

    def call() -> None:
        for _ in range(count):
            product()

    return call


def _least(group: Group) -> float:
    """Seconds of a group: the least of a few windows, after one that is not counted."""
    group.window(0)
    return max(min(group.window(number + 1)[1] for number in range(TRIES)), 1e-9)
