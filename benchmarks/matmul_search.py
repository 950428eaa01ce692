"""How near `bench matmul --search` comes to an exhaustive scan of the same range, and in what share of its time.

    python benchmarks/matmul_search.py [--device cuda:0] [--range 1024:12288:1024] [--dtype bfloat16] [--json]

The search runs as the command runs it. The scan then times every shape: one untimed call, a tenth of a second and at
least four calls, in random order, after the same warm-up. The winners of both are measured again in turns, at one
settled clock, and those figures are compared: the search holds where the median ratio is at least 0.99, and where it
took at most a twentieth of the scan's time. Exit status 1 where it does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

OF_THE_BEST, OF_THE_TIME = 0.99, 1 / 20
# More than this nobody scans for a test.
MOST_SHAPES = 2000
SCAN_S, SCAN_CALLS = 0.1, 4
PAIRS, PAIR_S, SETTLE_S = 21, 0.1, 1.0


@dataclass(frozen=True)
class Outcome:
    """Both winners with their rates in turns, the ratio with its 95 % interval, and the times."""

    found: tuple[int, int, int]
    best: tuple[int, int, int]
    found_flop_per_s: float
    best_flop_per_s: float
    ratio: float
    low: float
    high: float
    shapes: int
    tried: int
    search_s: float
    scan_s: float

    @property
    def time_share(self) -> float:
        """The search's time over the scan's."""
        return self.search_s / self.scan_s

    @property
    def near_enough(self) -> bool:
        """Whether the shape found is at most 1 % slower."""
        return self.ratio >= OF_THE_BEST

    @property
    def fast_enough(self) -> bool:
        """Whether the search took at most a twentieth of the time."""
        return self.time_share <= OF_THE_TIME


def scan(tries: Any, shapes: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], float]:
    """The fastest of all shapes as one pass over them tells, and how long it took."""
    from gpucheck.bench.matmul.product import operations

    order = list(shapes)
    random.Random(1).shuffle(order)
    began = time.monotonic()
    tries.warm_up(order[0])
    rates: dict[tuple[int, int, int], float] = {}
    rate = 0.0
    for shape in order:
        window_s = max(SCAN_S, SCAN_CALLS * operations(shape) / rate if rate else 0.0)
        rate = rates[shape] = tries.take(shape, window_s).rate
    return max(rates, key=rates.__getitem__), time.monotonic() - began


def in_turns(tries: Any, first: Any, second: Any) -> tuple[float, float, float, float, float]:
    """Median rates of both, and of their ratio the median with the order statistics that enclose it with 95 %."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        for shape in (first, second):
            tries.take(shape, PAIR_S)
    mine: list[float] = []
    other: list[float] = []
    for pair in range(PAIRS):
        for rates, shape in ((mine, first), (other, second))[:: 1 if pair % 2 == 0 else -1]:
            rates.append(tries.take(shape, PAIR_S).rate)
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    # Binomial(21, 1/2): ranks 6 and 16 enclose the median with 97.3 %, 7 and 15 with 92 %.
    return statistics.median(mine), statistics.median(other), statistics.median(ratios), ratios[5], ratios[15]


def measured(device: str, dtype: str, text: str) -> Outcome:
    """The search, the scan, and both winners in turns. Raises ValueError for a range that is too large."""
    import torch

    from gpucheck.bench.dtypes import support
    from gpucheck.bench.matmul import MatmulOptions, product, work
    from gpucheck.machine import accel, host
    from gpucheck.options import read
    from gpucheck.report.results.bench import SearchResult
    from gpucheck.work import precision

    opened = accel.open_device(device)
    options = read(MatmulOptions, {"dtype": [dtype], "search": True, "range": text})
    case = product.ProductCase(options.dtypes[0], (1, 1, 1), support(options.dtypes[0], opened))
    room = int((info[0] if (info := opened.memory_info()) else host.memory().usable) * 0.5)
    grid = work.grid_in(case, work.grid_of(options, opened), room)
    count = grid.count()
    shapes = list(grid.shapes()) if count is not None and count <= MOST_SHAPES else []
    if not shapes:
        raise ValueError(f"{'too many' if count is None else count} shapes; a scan takes 1 to {MOST_SHAPES}")
    with opened.as_current():
        began = time.monotonic()
        results: list[SearchResult] = []
        found = work.search(case, grid, room, opened, work.DEFAULT_BUDGET_S, lambda event: None, results)
        search_s = time.monotonic() - began
        assert found is not None
        with precision.precision(case.setting), torch.no_grad():
            tries = work.ShapeTrials(opened, case.kind, work.operands(case, grid, room, opened))
            best, scan_s = scan(tries, shapes)
            figures = in_turns(tries, found.shape, best)
    tried = results[0].shapes_tried
    return Outcome(found.shape, best, *figures, len(shapes), tried, search_s, scan_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--range", default="1024:12288:1024")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    from gpucheck import units
    from gpucheck.errors import GpucheckError

    try:
        one = measured(given.device, given.dtype, given.range)
    except (GpucheckError, ValueError) as error:
        print(f"matmul_search: {error}", file=sys.stderr)
        return 3
    if given.json:
        told = {"time_share": one.time_share, "near_enough": one.near_enough, "fast_enough": one.fast_enough}
        print(json.dumps({**vars(one), **told}, indent=1))
    else:
        for name, shape, rate, seconds, count in (
            ("search", one.found, one.found_flop_per_s, one.search_s, one.tried),
            ("scan", one.best, one.best_flop_per_s, one.scan_s, one.shapes),
        ):
            text = "x".join(map(str, shape))
            print(f"{name:6} {text:20} {units.flop_rate(rate):>14}   {count} shapes in {seconds:.2f} s")
        words = {True: "PASS", False: "MISS"}
        print(f"rate, in turns: {one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}]  {words[one.near_enough]} (0.99)")
        print(f"time: 1/{1 / one.time_share:.1f} of the scan's  {words[one.fast_enough]} (1/20)")
    return 0 if one.near_enough and one.fast_enough else 1


if __name__ == "__main__":
    sys.exit(main())
