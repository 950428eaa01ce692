"""How often `gpucheck compare` calls a change that is none, and how often it finds one that is there.

    python benchmarks/compare_power.py --pool runs.jsonl               measure what the pool lacks, then compare
    python benchmarks/compare_power.py --pool copies.jsonl --bench transfer
    python benchmarks/compare_power.py --simulate 2.5%                 runs drawn from a lognormal spread of processes

A run is one process of a bench command. Two pools are filled in turn, so that a machine that changes its pace changes
it for both: one of runs as they are, one whose samples are then made 10 % longer. Both are shuffled and 7 runs a side
are drawn without reuse within an experiment: 40 comparisons of the first pool with itself (560 runs), and 40 of the
first with the second (280 each). For matrix products at most 1 of 40 self-comparisons may call a change and at least 38
of 40 slowdowns must be found; for copies, which differ more from process to process, only a false alarm is wrong. A
pool of 840 runs takes about an hour; it is kept in the file, and an interrupted one is gone on with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import run_file  # noqa: E402  (found beside this file)

from gpucheck import units  # noqa: E402
from gpucheck.compare.comparison import USUAL_RUNS, compare  # noqa: E402
from gpucheck.measure import runs  # noqa: E402
from gpucheck.report.codec import from_json, to_json  # noqa: E402
from gpucheck.report.facts import Facts  # noqa: E402
from gpucheck.report.measurement import (  # noqa: E402
    DeviceRef,
    Measurement,
    MemoryFigures,
    Method,
    Run,
    TimeStats,
)
from gpucheck.report.report import SCHEMA, Report, Summary  # noqa: E402
from gpucheck.report.results.short import Change  # noqa: E402

SLOWDOWN = 1.10
MOST_ALARMS, LEAST_FOUND = 1 / 40, 38 / 40
# One small row each, so that a pool of 840 runs takes less than an hour. A product is timed for about a second: what
# disturbs a busy machine for less than that then averages out within the run, as it does in a run of the usual length.
_ROWS = {
    "matmul": ("--dtype", "float32", "--size", "512", "--time-budget", "1.5s"),
    "transfer": ("--size", "16MiB", "--only", "copies", "--time-budget", "0.4s"),
}
COMMANDS = {name: ("bench", name, "--device", "cpu", *rows) for name, rows in _ROWS.items()}
# As many rows as `bench matmul` has on a CPU by default: two dtypes, two sizes.
SIMULATED_ROWS = 4


def simulated(spread: float) -> Report:
    """A run whose rows each have a median drawn from a lognormal distribution around 1 s."""
    rows = (_simulated_row(math.exp(random.gauss(0.0, spread)), place) for place in range(SIMULATED_ROWS))
    summary = Summary("pass", 0, True)
    return Report(SCHEMA, "0", "bench matmul", (), "", 1.0, Facts(), tuple(rows), (), {}, (), summary)


def _simulated_row(time_s: float, place: int) -> Measurement:
    return Measurement(
        name="matmul",
        device=DeviceRef("cpu"),
        case={"row": place},
        runs=(Run("", 1, (time_s,), (0.0,)),),
        time_s=TimeStats(time_s, 1),
        work={"flop": 1.0},
        rate=None,
        memory=MemoryFigures(),
        method=Method("host", "host", "warm"),
    )


def measured(bench: str) -> Report:
    """A run in a fresh process. Raises CalledProcessError where it fails: a pool of failures proves nothing."""
    command = [sys.executable, "-m", "gpucheck", *COMMANDS[bench], "--json", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return from_json(Report, json.loads(done.stdout))


def pool(path: Path, bench: str, needed: int) -> list[Report]:
    """`needed` runs, those of the file first; what is measured is added to it at once."""
    found = [from_json(Report, one) for one in run_file.read(path)]
    while len(found) < needed:
        found.append(measured(bench))
        run_file.add(path, to_json(found[-1]))
        print(f"\r{len(found)} of {needed} runs", end="", file=sys.stderr, flush=True)
    return found[:needed]


def slowed(report: Report) -> Report:
    """The same run with every sample 10 % longer."""
    rows = [
        replace(one, runs=tuple(replace(run, samples_s=tuple(SLOWDOWN * s for s in run.samples_s)) for run in one.runs))
        for one in report.measurements
    ]
    return replace(report, measurements=tuple(rows))


def split(every: Sequence[Report], self_needed: int, planted_needed: int) -> tuple[list[Report], list[Report]]:
    """The two pools, filled in turn as the runs were measured: two for the first, one for the second."""
    first = [report for place, report in enumerate(every) if place % 3 != 2][:self_needed]
    second = [slowed(report) for place, report in enumerate(every) if place % 3 == 2][:planted_needed]
    return first, second


def sides(shuffled: Sequence[Report], a_side: int) -> Iterator[Sequence[Report]]:
    """Documents of `a_side` runs each, drawn from a shuffled pool without reuse."""
    for start in range(0, len(shuffled) - a_side + 1, a_side):
        yield shuffled[start : start + a_side]


def verdicts(old: Sequence[Sequence[Report]], new: Sequence[Sequence[Report]]) -> list[list[Change]]:
    """For each comparison what was said of each row."""
    return [[row.change for row in compare(runs.merge(a), runs.merge(b)).rows] for a, b in zip(old, new, strict=True)]


def spread_of(reports: Sequence[Report]) -> float:
    """The largest standard deviation over processes of the logarithm of a row's median."""
    rows = runs.merge(reports).measurements
    logs = [[math.log(value) for value in runs.medians(one)] for one in rows if len(one.runs) > 1]
    means = [sum(values) / len(values) for values in logs]
    return max(
        math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        for values, mean in zip(logs, means, strict=True)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--simulate", metavar="SPREAD", help="lognormal spread between processes, like 2.5%%")
    parser.add_argument("--pool", type=Path, help="the file that keeps the runs")
    parser.add_argument("--bench", choices=sorted(COMMANDS), default="matmul")
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--runs", type=int, default=USUAL_RUNS, help="a side")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if bool(chosen.simulate) == bool(chosen.pool):
        parser.error("give one of --simulate and --pool")
    random.seed(chosen.seed)
    count, a_side = chosen.comparisons, chosen.runs
    needed = 3 * count * a_side
    if chosen.simulate:
        spread = units.parse_percent(chosen.simulate, "--simulate")
        every = [simulated(spread) for _ in range(needed)]
    else:
        every = pool(chosen.pool, chosen.bench, needed)
        print(file=sys.stderr)
    first, second = split(every, 2 * count * a_side, count * a_side)
    spread_text = units.percent(spread_of(first))
    print(f"{len(first)} + {len(second)} runs; medians of processes differ by {spread_text}; {a_side} a side")

    random.shuffle(first)
    drawn = list(sides(first, a_side))
    alone = verdicts(drawn[0::2], drawn[1::2])
    alarms = sum(bool({"slower", "faster"} & set(said)) for said in alone)
    random.shuffle(first)
    random.shuffle(second)
    planted = verdicts(list(sides(first[: len(second)], a_side)), list(sides(second, a_side)))
    found = sum("slower" in said for said in planted)
    whole = sum(set(said) == {"slower"} for said in planted)
    print(f"self-comparisons that call a change: {alarms} of {len(alone)} (at most 1 of 40); rows: {_told(alone)}")
    print(
        f"slowdowns of {units.percent(SLOWDOWN - 1)} found: {found} of {len(planted)} (at least 38 of 40), "
        f"in every row {whole}; rows: {_told(planted)}"
    )
    power_counts = chosen.bench == "matmul"
    good = alarms <= MOST_ALARMS * len(alone) and (not power_counts or found >= LEAST_FOUND * len(planted))
    return 0 if good else 1


def _told(said: Sequence[Sequence[Change]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(word for row in said for word in row).items())


if __name__ == "__main__":
    sys.exit(main())
