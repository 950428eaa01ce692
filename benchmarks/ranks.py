"""How often the judge of ranks names the right one: on made tables of arrivals, and on real jobs of torchrun and gloo.

    python benchmarks/ranks.py [--tables N] [--seed S]
    python benchmarks/ranks.py --real [--only NAME]... [--runs N] [--steps N] [--output FILE]
    python benchmarks/ranks.py --cost [--pairs N]

A made job has 2 to 64 ranks and 60 to 2 000 steps of 20 ms to 2 s. Each rank's own time in a step is normal or has a
long tail, in part from the step before (a correlation of up to 0.9); in a step there are one to four collectives, each
waited for, or handed over one after another as DDP's buckets are. Ranks of other hosts have clocks that are off by up
to what is known of them. The planted delay is 3 to 8 standard deviations of a rank's lateness in a step, and 3 % of a
step or more. Bounds: 95 % of the delayed ranks named, and no other; 1 % of sound tables with anybody named.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gpucheck.program import ranks_judge
from gpucheck.program.ranks_judge import Call, Table

KINDS = ("sound", "delayed", "alternating", "subgroups")
LEAST_NAMED, MOST_BLAMED = 0.95, 0.01
# The simulated work of a large table is bounded, so that ten thousand take minutes.
MOST_ARRIVALS = 60_000


def made(random_: random.Random, kind: str) -> tuple[Table, tuple[int, ...]]:
    """A table of arrivals, and who was delayed in it. In `subgroups` pairs meet first, then all."""
    n = random_.choice((2, 3, 4, 6, 8, 16, 32, 64))
    if kind == "subgroups":
        n = max(n, 4)
    per_step = random_.randint(1, 4)
    longest = max(60, min(2000, MOST_ARRIVALS // (n * per_step)))
    steps = random_.choice((60, random_.randint(60, longest)))
    step_s = math.exp(random_.uniform(math.log(0.02), math.log(2.0)))
    share = random_.uniform(0.002, 0.03)  # of a step: the standard deviation of a rank's own time in it
    memory = random_.choice((0.0, 0.5, 0.9))
    tail = random_.random() < 0.3
    sd = share * step_s
    buckets = random_.random() < 0.5
    hosts = random_.choice((1, 1, 2, 4))
    bound = 0.0 if hosts == 1 else random_.uniform(0.0, 0.003) * step_s
    off = [0.0, *(random_.uniform(-bound, bound) for _ in range(hosts - 1))]
    clock = {rank: off[rank * hosts // n] for rank in range(n)}
    error = {rank: 0.0 if rank * hosts // n == 0 else bound for rank in range(n)}
    delay = max(random_.uniform(3.0, 8.0) * sd, 0.03 * step_s, 1.5 * ranks_judge.LEAST_S + 2 * bound)
    culprits = (random_.randrange(n),) if kind in ("delayed", "subgroups") else ()
    if kind == "alternating":
        culprits = tuple(random_.sample(range(n), 2))
    at = [0.0] * n
    wander = [random_.gauss(0, sd) for _ in range(n)]
    calls = []
    delayed_part = random_.randrange(per_step)
    for step in range(steps):
        for rank in range(n):
            fresh = random_.gauss(0, sd) if not tail else sd * (random_.expovariate(1.0) - 1.0)
            wander[rank] = memory * wander[rank] + math.sqrt(1 - memory**2) * fresh
        victim = culprits[step % len(culprits)] if culprits else -1
        arrivals = list(at)
        for part in range(per_step):
            for rank in range(n):
                own = step_s / per_step + wander[rank] / per_step + (delay if rank == victim and part == delayed_part else 0)
                arrivals[rank] = (at[rank] if part == 0 else arrivals[rank]) + max(own, 0.0)
            if kind == "subgroups":
                for first in range(0, n - 1, 2):
                    pair = {rank: arrivals[rank] for rank in (first, first + 1)}
                    calls.append(Call(f"pair{first}", step, {rank: when + clock[rank] for rank, when in pair.items()}))
                    for rank in pair:
                        arrivals[rank] = max(pair.values()) + step_s / per_step / 10
            calls.append(Call("all", step, {rank: when + clock[rank] for rank, when in enumerate(arrivals)}))
            if not buckets:
                arrivals = [max(arrivals)] * n
        at = [max(arrivals) + 1e-4] * n
    return Table(tuple(range(n)), steps, step_s, calls, error), culprits


def tables(count: int, seed: int) -> bool:
    """Judge this many made tables; whether the bounds hold."""
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        table, culprits = made(random.Random(seed * 1_000_003 + number), kind)
        verdict = ranks_judge.judge(table)
        seen[kind] += 1
        outcomes[kind, verdict.outcome] += 1
        if kind == "sound":
            right[kind] += not verdict.ranks
        elif kind == "alternating":
            right[kind] += verdict.outcome == "alternating" and set(verdict.ranks) <= set(culprits)
        else:
            right[kind] += verdict.outcome == "straggler" and verdict.ranks == culprits
            if "-v" in sys.argv and verdict.ranks != culprits:
                print(number, kind, len(table.ranks), table.steps, culprits, verdict.outcome, verdict.ranks)
    for kind in KINDS:
        told = ", ".join(f"{outcome} {n}" for (of, outcome), n in sorted(outcomes.items()) if of == kind)
        print(f"{kind}: {right[kind]} of {seen[kind]} right ({told})")
    named = all(right[kind] >= LEAST_NAMED * seen[kind] for kind in KINDS if kind != "sound")
    return named and seen["sound"] - right["sound"] <= MOST_BLAMED * seen["sound"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    return 0 if tables(asked.tables, asked.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
