"""Trials that `find-batch-size` needs, on simulated memory shapes, and its time beside its peers', on this CPU.

    PYTHONPATH=src python benchmarks/batch_size.py [--sizes 2000] [--noise 0.02]
    PYTHONPATH=src python benchmarks/batch_size.py --peers [--workload mlp] [--memory-limit 1GiB]... [--rounds 3]

The simulation needs no torch and no device. With `--peers` (from the extra `dev`) real searches follow, gpucheck's,
Lightning's and accelerate's in turn over the same trials; `benchmarks/batch_peers.py` says how. `--sizes 0` leaves the
simulation out.

Prints, for each shape, trials (confirmation included), failures and the answer's share of
the true maximum, then whether all of them reach what is wanted. Exits 1 where the bound of 2·log2(answer) + 4 trials is
broken, or a peer is faster than wanted or not there; another figure that is missed is told.

How it counts: each trial's peak is the true one times a factor of its own, uniform over `--noise` (2 % is from -1 % to
+1 %), and the trial fits if that is within the budget, as a real one does. The true maximum is by the peak without
noise. An answer may so be above it though it passed twice; and where most of the budget is static, a peak known to 1 %
tells the size to no better than several per cent. With `--misread` noise is in what is read of a peak alone, and what
fits is decided by the true one, as where a device refuses memory.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from batch_cases import WORKLOADS
from batch_peers import PEERS, Against, compare, installed

from gpucheck.batch_size.outcome import TrialResult
from gpucheck.batch_size.search import SizeSearch
from gpucheck.report.results.find_batch_size import Outcome

BUDGET = 2**31
# gpucheck's wall time over a peer's, at most.
PEER_MOST = {"lightning": 0.5, "accelerate": 1.0}
Shape = Callable[[float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated search."""

    answer: int
    trials: int
    failures: int
    share: float
    limited_by: str | None


def linear(true_max: int, static: float) -> Shape:
    """`static` of the budget does not depend on the batch; the rest grows in proportion."""

    def peak(size: float) -> tuple[float, float]:
        value = static * BUDGET + (1 - static) * BUDGET * size / (true_max + 0.5)
        return value, value

    return peak


def optimizer_floor(true_max: int, floor: float) -> Shape:
    """The optimizer's step is the peak until the batch outgrows it."""

    def peak(size: float) -> tuple[float, float]:
        compute = 0.2 * BUDGET + 0.8 * BUDGET * size / (true_max + 0.5)
        return max(floor * BUDGET, compute), compute

    return peak


def quantised(true_max: int) -> Shape:
    """The allocator rounds up to 20 MiB blocks."""
    base = linear(true_max, 0.1)
    block = 20 * 2**20

    def peak(size: float) -> tuple[float, float]:
        value = math.ceil(base(size)[0] / block) * block
        return value, value

    return peak


def workspace_jump(true_max: int) -> Shape:
    """From a third of the maximum on a library takes a tenth of the budget more."""

    def peak(size: float) -> tuple[float, float]:
        value = 0.1 * BUDGET + 0.8 * BUDGET * size / (true_max + 0.5) + (0.1 * BUDGET if size > true_max / 3 else 0)
        return value, value

    return peak


def workspace_bump(true_max: int) -> Shape:
    """Between 30 % and 45 % of the maximum memory is higher by a tenth: it is not monotone."""

    def peak(size: float) -> tuple[float, float]:
        bump = 0.1 * BUDGET if 0.30 <= size / true_max <= 0.45 else 0
        value = 0.1 * BUDGET + 0.9 * BUDGET * size / (true_max + 0.5) + bump
        return value, value

    return peak


def half_quadratic(true_max: int) -> Shape:
    """At the maximum half of the growth is quadratic in the batch (logits of batch by batch)."""

    def peak(size: float) -> tuple[float, float]:
        part = size / (true_max + 0.5)
        value = 0.1 * BUDGET + 0.45 * BUDGET * (part + part * part)
        return value, value

    return peak


SHAPES: dict[str, Callable[[int], Shape]] = {
    "linear, 5 % static": lambda n: linear(n, 0.05),
    "linear, 60 % static": lambda n: linear(n, 0.60),
    "optimizer floor 45 %": lambda n: optimizer_floor(n, 0.45),
    "optimizer floor 90 %": lambda n: optimizer_floor(n, 0.90),
    "quantised": quantised,
    "workspace jump": workspace_jump,
    "workspace bump": workspace_bump,
    "half quadratic": half_quadratic,
}


def simulate(
    shape: Shape,
    nominal: int,
    noise: float,
    seed: int,
    *,
    seek_failure: bool = True,
    misread: bool = False,
) -> Result:
    """Runs one search on `shape`; a size above 1.25 × the budget raises out-of-memory and gives no peak.

    `nominal` is the largest size that fits, before the shape rounds its peaks up.
    """
    rng = random.Random(seed)
    # The search is told how noisy peaks are: the standard deviation of a uniform spread.
    search = SizeSearch(cap=2**20, budget_bytes=BUDGET, seek_failure=seek_failure, noise=noise / math.sqrt(12))
    failures = 0
    while (attempt := search.next()) is not None:
        # One factor for a trial: the higher of its two phases is its peak.
        factor = 1 + rng.uniform(-noise, noise) / 2
        true_peak, true_compute = shape(attempt.size)
        peak, compute = true_peak * factor, true_compute * factor
        taken = true_peak if misread else peak
        if taken > 1.25 * BUDGET:
            search.trials.append(TrialResult(batch_size=attempt.size, outcome="out-of-memory", purpose=attempt.purpose))
        else:
            outcome: Outcome = "fits" if taken <= BUDGET else "over-budget"
            search.trials.append(
                TrialResult(
                    batch_size=attempt.size,
                    outcome=outcome,
                    peak_bytes=int(peak),
                    compute_peak_bytes=int(compute),
                    purpose=attempt.purpose,
                )
            )
        search.static_bytes = int(shape(0)[1])
        failures += search.trials[-1].outcome != "fits"
    best = search.best
    answer = best.batch_size if best else 0
    share = answer / largest_that_fits(shape, nominal)
    return Result(answer, len(search.trials), failures, share, search.limited_by)


def largest_that_fits(shape: Shape, nominal: int) -> int:
    """The true maximum: at most `nominal`, less where an allocator's rounding takes what was left."""
    return next((size for size in range(nominal, 0, -1) if shape(size)[0] <= BUDGET), 1)


def true_maxima(count: int) -> list[int]:
    """`count` maxima from 1 to 100 000, log-uniform, always the same."""
    rng = random.Random(20260131)
    return [round(10 ** rng.uniform(0, 5)) for _ in range(count)]


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A figure to reach: at most `most`."""

    name: str
    value: float
    most: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        return self.value <= self.most

    @property
    def line(self) -> str:
        verdict = "pass" if self.reached else "MISS"
        return f"{verdict}  {self.name}: {self.value:.2f}{self.unit}, at most {self.most:g}{self.unit} wanted"


def wanted(results: list[Result]) -> list[Wanted]:
    """What all the searches together are held to."""
    trials = [r.trials for r in results]
    return [
        Wanted("mean trials", statistics.mean(trials), 7),
        Wanted("95th percentile of trials", percentile(trials, 0.95), 12),
        Wanted("mean failures", statistics.mean(r.failures for r in results), 1),
        Wanted("answers more than 2 % below the true maximum", 100 * share_of(results, below), 0, " %"),
        Wanted("answers above the true maximum", 100 * share_of(results, above), 0, " %"),
    ]


def below(result: Result) -> bool:
    return result.share < 0.98


def above(result: Result) -> bool:
    return result.share > 1


def share_of(results: list[Result], holds: Callable[[Result], bool]) -> float:
    return sum(holds(r) for r in results) / len(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=2000, help="simulated maxima for each shape")
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--safe", action="store_true", help="never seek a failure: stay below 85 %% of the budget")
    parser.add_argument("--misread", action="store_true", help="noise in the reading alone, not in what fits")
    parser.add_argument("--peers", action="store_true", help="then search for real, beside Lightning and accelerate")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="for --peers; default all")
    parser.add_argument("--memory-limit", action="append", help="for --peers; default 1GiB")
    parser.add_argument("--rounds", type=int, default=3, help="for --peers")
    options = parser.parse_args()
    good = simulated(options) if options.sizes else True
    if options.peers:
        good &= beside_peers(options.workload or WORKLOADS, options.memory_limit or ["1GiB"], options.rounds)
    return 0 if good else 1


def simulated(options: argparse.Namespace) -> bool:
    """Run and report the simulated searches; False where the bound on trials is broken."""
    broken = 0
    everything: list[Result] = []
    print(
        f"{'shape':22} {'mean':>6} {'p95':>4} {'max':>4} {'failures':>9}"
        f" {'share':>7} {'least':>7} {'<98%':>6} {'>100%':>6} {'unclosed':>9} {'broken':>7}"
    )
    for name, build in SHAPES.items():
        results = [
            simulate(
                build(n),
                n,
                options.noise,
                seed,
                seek_failure=not options.safe,
                misread=options.misread,
            )
            for seed, n in enumerate(true_maxima(options.sizes))
        ]
        everything += results
        over = sum(r.answer > 0 and r.trials > 2 * math.log2(r.answer) + 4 for r in results)
        broken += over
        report(name, results, over)
    report("all", everything, broken)
    print(f"\n{len(everything)} searches, noise {options.noise:.1%}:")
    for figure in wanted(everything):
        print(figure.line)
    return not broken


def beside_peers(workloads: Sequence[str], limits: Sequence[str], rounds: int) -> bool:
    """Run and report the real searches; False where a figure is missed, or a peer is not installed."""
    figures: list[Wanted] = []
    for limit, workload in itertools.product(limits, workloads):
        for one in compare(workload, limit, rounds, lambda text: print(text, flush=True)):
            figures.append(against_peer(one))
    print()
    for figure in figures:
        print(figure.line)
    absent = [name for name in PEERS if not installed(name)]
    for name in absent:
        print(f'none  {name} is not installed: pip install -e ".[dev]" -c constraints.txt')
    return not absent and all(figure.reached for figure in figures)


def against_peer(one: Against) -> Wanted:
    """What a comparison is held to."""
    name = f"time to the answer over {one.peer}'s, {one.workload} under {one.limit}, median of {one.rounds}"
    return Wanted(f"{name} (with what follows {one.whole_ratio:.2f})", one.ratio, PEER_MOST[one.peer])


def report(name: str, results: list[Result], over: int) -> None:
    trials = [r.trials for r in results]
    print(
        f"{name:22} {statistics.mean(trials):6.2f} {percentile(trials, 0.95):4} {max(trials):4}"
        f" {statistics.mean(r.failures for r in results):9.2f} {statistics.mean(r.share for r in results):7.1%}"
        f" {min(r.share for r in results):7.1%} {sum(map(below, results)):6} {sum(map(above, results)):6}"
        f" {sum(r.limited_by == 'trials' for r in results):9} {over:7}"
    )


if __name__ == "__main__":
    sys.exit(main())
