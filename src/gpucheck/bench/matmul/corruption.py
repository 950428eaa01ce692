"""Does a product that is computed again come out the same? Later results against the first one, bit for bit.

The inputs, the memory and the stream are the same, so that the library takes the same kernel: another bit is another
computation. What differs is computed in float64: a wrong element, or a right one that was added up in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gpucheck.bench.matmul.product import Matrices
from gpucheck.machine.accel import Accel
from gpucheck.work import freivalds, reference
from gpucheck.work.reference import Element

# Of the time since the first result, for comparing; the windows themselves are never shortened by it.
ALLOWANCE = 0.1
# Results whose differing elements are looked at one by one, and how many elements of each.
MOST_EXAMINED, MOST_ELEMENTS = 4, 64
# At the end every set is compared; of more than this many, the first ones.
MOST_LAST_SETS = 64
# Elements that are compared one by one at once, to find which differ: each takes some 32 bytes where it does.
_AT_ONCE = 2**22

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: a NaN equals itself there, and -0 is not 0."""
    return tensor.view(_WHOLE_NUMBERS[tensor.dtype.itemsize])


@dataclass(slots=True)
class Repeats:
    """Compares results of equal matrices with the first one; `precision` is what `reference.errors` takes.

    Make it when every set has its first result, computed and waited for. From `until_s` of the host's clock on, once
    something differs, the host looks at no more of it: where everything differs that takes long.
    """

    sets: Sequence[Matrices]
    accel: Accel
    precision: str | None = None
    until_s: float = math.inf
    first: torch.Tensor = field(init=False)
    compared: int = 0
    differing: int = 0
    elements: int = 0
    vanished: int = 0
    spent_s: float = 0.0
    worst: Element | None = None
    _began_s: float = field(init=False)
    _examined: int = 0

    def __post_init__(self) -> None:
        self.first = self.sets[0].out.clone()
        self._began_s = self.accel.host_now()

    def before(self, sample: int, calls: int) -> None:
        """Before a window: compare what the one before left, as often as the allowance affords it; the first always."""
        if sample == 0:  # nothing but the first results themselves
            return
        if not self.compared or self.spent_s <= ALLOWANCE * (self.accel.host_now() - self._began_s):
            self._compare(self.sets[self.compared % len(self.sets)])

    def finish(self) -> None:
        """After the last window."""
        self.accel.synchronize()
        for one in self.sets[:MOST_LAST_SETS]:
            self._compare(one)

    @property
    def _is_late(self) -> bool:
        return self.accel.host_now() >= self.until_s

    def told(self) -> dict[str, Any]:
        """Return what was seen. `worst` is the differing element that lies farthest from float64, None where none
        differs.

        Elements are counted and looked at in the first few results that differ: `results_examined` of them. In
        `results_vanished` of these nothing differed any more.
        """
        return {
            "results_compared": self.compared,
            "results_differing": self.differing,
            "results_examined": self._examined,
            "results_vanished": self.vanished,
            "elements_differing": self.elements,
            "worst": None if self.worst is None else asdict(self.worst),
            "compare_s": self.spent_s,
            "detects": "any bit of a compared result",
        }

    def _compare(self, one: Matrices) -> None:
        began = self.accel.host_now()
        self.compared += 1
        if not torch.equal(bits(one.out), bits(self.first)):
            self.differing += 1
            if self._examined < MOST_EXAMINED and not (self._examined and self._is_late):
                self._examined += 1
                self._examine(one)
        self.spent_s += self.accel.host_now() - began

    def _examine(self, one: Matrices) -> None:
        """Which elements differ, and the worst of those that differ most.

        All of it on a copy that the host has: what a device that computes wrongly says of its own results, a place or a
        count, proves nothing. Where nothing differs there, the difference was gone at the second look.
        """
        found: list[tuple[float, tuple[int, int], float]] = []
        rows = max(1, _AT_ONCE // one.out.shape[1])
        for start in range(0, one.out.shape[0], rows):
            now, before = one.out[start : start + rows].cpu(), self.first[start : start + rows].cpu()
            places = (bits(now) != bits(before)).nonzero()
            self.elements += len(places)
            index = places[:, 0], places[:, 1]
            got = now[index].double()
            # A NaN differs most of all.
            size = (got - before[index].double()).abs_().nan_to_num_(nan=float("inf"))
            size, order = size.topk(min(MOST_ELEMENTS, len(places)))
            at = ((start + row, column) for row, column in places[order].tolist())
            found += zip(size.tolist(), at, got[order].tolist(), strict=True)
            if found and self._is_late:
                break
        if not found:
            self.vanished += 1
            return
        most = sorted(found, key=lambda element: element[:2], reverse=True)[:MOST_ELEMENTS]
        places_of, values = [place for _, place, _ in most], [value for _, _, value in most]
        worst = reference.check_elements(one.a, one.b, one.out, places_of, self.precision, got=values)[0]
        if self.worst is None or worst.worst > self.worst.worst:
            self.worst = worst


@dataclass(frozen=True, slots=True)
class First:
    """The first result against float64: sampled rows, sums of all columns, and the element that a wrong sum led to.

    `operands_spread` is the smaller standard deviation of the two operands: 0 where they do not hold what was drawn.
    """

    rows: reference.Check
    sums: freivalds.Sums
    element: Element | None
    operands_spread: float | None

    def told(self) -> dict[str, Any]:
        """For the record."""
        rows, sums = self.rows, self.sums
        sampled = Element(rows.row, rows.column, rows.got, rows.expected, rows.worst)
        wrong = sampled if rows.worst > 1 else self.element
        return {
            "checked_rows": rows.rows,
            "worst_error_of_bound": rows.worst,
            "not_finite": rows.not_finite,
            "miscounted": rows.miscounted,
            "smallest_detectable_error": rows.smallest_detectable,
            "column_sums": {"compared": sums.blocks, "worst_of_threshold": sums.worst, "detects": sums.detectable},
            "wrong_element": None if wrong is None else asdict(wrong),
            "operands_spread": self.operands_spread,
        }


def check_first(matrices: Matrices, result: torch.Tensor, precision: str | None) -> First:
    """The first result (`result`) of these operands against float64, all of it."""
    a, b = matrices.a, matrices.b
    rows, sums = reference.check_product(a, b, result, precision), freivalds.check_sums(a, b, result, precision)
    element = None
    if not sums.passed:
        places = [(sums.row, column) for column in range(sums.column, sums.column + sums.columns)]
        element = reference.check_elements(a, b, result, places, precision)[0]
    spread = min((one for one in (reference.spread(a), reference.spread(b)) if one is not None), default=None)
    return First(rows, sums, element, spread)
