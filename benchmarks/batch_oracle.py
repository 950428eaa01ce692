"""Whether `find-batch-size` tells the truth on this CPU: each answer is trained again, by nothing that the search uses.

    python benchmarks/batch_oracle.py --kept oracle.jsonl [--runs 20] [--workload mlp] [--memory-limit 1GiB]

A run searches, by the command as a user types it, and then trains with the answer n and with 1.05·n + 1, each in a
process of its own that imports the built-in models and nothing else of gpucheck: three plain steps with AdamW. The peak
is the process's VmHWM, cleared before the model is built, above what was resident after a warm-up, under the malloc
settings that the search's trials have. n must stay within the budget; 1.05·n + 1 must not, by its peak or by running
out of memory. What ends otherwise shows nothing and counts as a miss.

Runs go through the workloads and the budgets in turn. Each is kept in the file as it ends, and an interrupted benchmark
goes on from there: one file for one state of the code. Exits 1 where fewer than 19 of 20 answers hold, or a search took
more trials than wanted or ran out of memory. Linux alone: the peak is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import run_file  # noqa: E402  (found beside this file)
from batch_cases import CAP, WORKLOADS  # noqa: E402

from gpucheck import units  # noqa: E402

LIMITS = ("1GiB", "2GiB", "4GiB")
RUNS, LEAST_SHARE, MOST_TRIALS = 20, 19 / 20, 5
STEPS = 3
# Under these a CPU's resident memory follows the tensors.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
# A wrong answer may be any number: beyond so many budgets an allocation fails instead of filling the machine.
GUARD = 2
# What leads to the answer, as benchmarks/batch_size.py counts it: the rest is about its use.
COUNTED = ("search", "confirm", "default malloc")
OUT_OF_MEMORY = ("out-of-memory", "host-out-of-memory")


@dataclass(frozen=True, slots=True)
class Trained:
    """What training with one size came to: its peak, or why there is none."""

    size: int
    peak_bytes: int | None = None
    out_of_memory: bool = False
    failure: str | None = None

    def within(self, budget_bytes: int) -> bool | None:
        """Whether it fits into the budget; None where it ended without saying so."""
        if self.failure is not None:
            return None
        return not self.out_of_memory and self.peak_bytes is not None and self.peak_bytes <= budget_bytes

    @property
    def text(self) -> str:
        """Its peak, or how it ended."""
        if self.peak_bytes is not None:
            return f"{self.peak_bytes / units.MIB:.0f} MiB"
        return self.failure or "out of memory"


@dataclass(frozen=True, slots=True)
class Run:
    """A search and the check of its answer. `trials` holds a purpose and an outcome each."""

    workload: str
    limit: str
    budget_bytes: int
    search_s: float
    limited_by: str | None
    prediction: str
    trials: tuple[tuple[str, str], ...]
    answer: Trained | None
    beyond: Trained | None

    @property
    def holds(self) -> bool:
        """Whether the answer trains within the budget, and 5 % more does not."""
        if self.answer is None or self.beyond is None:
            return False
        return self.answer.within(self.budget_bytes) is True and self.beyond.within(self.budget_bytes) is False

    @property
    def counted(self) -> int:
        """Trials up to the answer, its confirmation and the run with the user's own malloc included."""
        return sum(purpose in COUNTED for purpose, _ in self.trials)

    @property
    def out_of_memory(self) -> int:
        """Trials that ran out of memory, rather than being measured above the budget."""
        return sum(outcome in OUT_OF_MEMORY for _, outcome in self.trials)

    @property
    def line(self) -> str:
        """The run as it is printed."""
        parts = [f"{self.workload:12}{self.limit:>5}"]
        if self.answer is None or self.beyond is None:
            parts.append("no answer")
        else:
            parts.append(f"{self.answer.size} takes {self.answer.text}, {self.beyond.size} {self.beyond.text}")
        purposes = Counter(purpose for purpose, _ in self.trials)
        told = ", ".join(f"{count} {purpose}" for purpose, count in purposes.items())
        parts.append(f"{self.counted} trials ({told}), {self.out_of_memory} out of memory")
        parts.append(f"limited by {self.limited_by or 'what is unknown'}, {self.prediction}, {self.search_s:.0f} s")
        return ("holds  " if self.holds else "MISS   ") + "; ".join(parts)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The run of one line of the file."""
        trained = {name: data[name] and Trained(**data[name]) for name in ("answer", "beyond")}
        return cls(**{**data, "trials": tuple((purpose, outcome) for purpose, outcome in data["trials"]), **trained})


def beyond(size: int) -> int:
    """The size that must not fit: 1.05·n + 1, rounded down."""
    return size * 105 // 100 + 1


def planned(workloads: Sequence[str], limits: Sequence[str], count: int) -> list[tuple[str, str]]:
    """`count` runs, through every workload of every budget in turn."""
    every = [(workload, limit) for limit in limits for workload in workloads]
    return [every[place % len(every)] for place in range(count)]


def missing(plan: Sequence[tuple[str, str]], kept: Sequence[Run]) -> list[tuple[str, str]]:
    """What of the plan is not among the runs that were kept."""
    there = Counter((run.workload, run.limit) for run in kept)
    left = []
    for one in plan:
        if there[one]:
            there[one] -= 1
        else:
            left.append(one)
    return left


def of_the_plan(plan: Sequence[tuple[str, str]], kept: Sequence[Run]) -> list[Run]:
    """The kept runs that the plan asks for, each no more often than it does."""
    wanted = Counter(plan)
    found = []
    for run in kept:
        if wanted[run.workload, run.limit]:
            wanted[run.workload, run.limit] -= 1
            found.append(run)
    return found


def searched(report: dict[str, Any]) -> dict[str, Any]:
    """The result of a report; empty where the search ended before its first trial."""
    found: dict[str, Any] = report["results"].get("find_batch_size", {})
    return found


def run(workload: str, limit: str, time_budget: str) -> Run:
    """Search, then train with the answer and beyond. Raises CalledProcessError where the command itself fails."""
    command = [sys.executable, "-m", "gpucheck", "find-batch-size", workload, "--device", "cpu", "--json", "--quiet"]
    command += ["--memory-limit", limit, "--time-budget", time_budget, "--max-batch-size", str(CAP)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    started = time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    took = time.monotonic() - started
    if not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, command)
    found = searched(json.loads(done.stdout))
    answer, budget = found.get("max_batch_size"), units.parse_size(limit, "--memory-limit")
    return Run(
        workload=workload,
        limit=limit,
        budget_bytes=budget,
        search_s=took,
        limited_by=found.get("limiting_factor"),
        prediction=found.get("method", {}).get("prediction", "no trial"),
        trials=tuple((trial["purpose"], trial["outcome"]) for trial in found.get("trials", ())),
        answer=trained(workload, answer, budget) if answer else None,
        beyond=trained(workload, beyond(answer), budget) if answer else None,
    )


def trained(workload: str, size: int, budget_bytes: int) -> Trained:
    """Train with one size in a process of its own."""
    command = [sys.executable, __file__, "--train", workload, str(size), str(GUARD * budget_bytes)]
    done = subprocess.run(command, env={**os.environ, **MALLOC}, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Trained(size, failure=f"ended with {done.returncode}: {last}")
    return Trained(size, **json.loads(done.stdout))


# The process that trains


def train(workload: str, size: int, guard_bytes: int) -> dict[str, Any]:
    """Three steps with batches of `size`; growth beyond `guard_bytes` fails as an allocation."""
    import resource

    import torch
    from torch import nn

    from gpucheck.work.models import MODELS

    def loop(model: nn.Module, make_input: Any, steps: int) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(steps):
            step(model, make_input(), optimizer)

    def step(model: nn.Module, data: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        scores = model(data).flatten(0, -2)
        classes = torch.randint(scores.shape[-1], scores.shape[:-1])
        nn.functional.cross_entropy(scores, classes).backward()
        optimizer.step()

    # What torch takes once, whatever is trained: its threads, its kernels' code, oneDNN's and the optimizer's own.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(784, 10))
    loop(tiny, lambda: torch.randn(8, 3, 16, 16), 3)
    torch.mm(torch.randn(600, 600), torch.randn(600, 600))
    del tiny

    before = status_bytes("VmRSS")
    limit = status_bytes("VmData") + guard_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    built = MODELS[workload]
    (one,) = built.inputs

    def make_input() -> torch.Tensor:
        shape = (size, *one.shape)
        if one.dtype == "int64":
            assert one.low is not None and one.high is not None
            return torch.randint(int(one.low), int(one.high) + 1, shape)
        return torch.randn(shape)

    try:
        loop(built.build(), make_input, STEPS)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        return {"out_of_memory": True}
    return {"peak_bytes": status_bytes("VmHWM") - before}


def status_bytes(name: str) -> int:
    """A figure of this process's /proc/self/status, which has it in KiB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


# What it comes to


def verdicts(runs: Sequence[Run], planned_count: int) -> list[tuple[bool, str]]:
    """Each figure to reach: whether it is, and its line."""
    needed = math.ceil(LEAST_SHARE * planned_count - 1e-9)
    held = sum(run.holds for run in runs)
    traced = [run for run in runs if run.prediction == "fake tensors"]
    trials = max((run.counted for run in traced), default=0)
    raised = sum(run.out_of_memory for run in traced)
    counted = f"in the {len(traced)} of {len(runs)} that fake tensors predicted"
    return [
        (held >= needed, f"answers that hold: {held} of {planned_count}, at least {needed} wanted"),
        (bool(traced) and trials <= MOST_TRIALS, f"most trials {counted}: {trials}, at most {MOST_TRIALS} wanted"),
        (bool(traced) and raised == 0, f"trials out of memory {counted}: {raised}, none wanted"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="the file that keeps the runs")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default all; may be repeated")
    parser.add_argument("--memory-limit", action="append", help="default 1GiB, 2GiB and 4GiB; may be repeated")
    parser.add_argument("--time-budget", default="600s", help="of each search; the command's own 60s is for a free CPU")
    parser.add_argument("--train", nargs=3, metavar=("WORKLOAD", "SIZE", "GUARD"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("the peak of a process is read from /proc, which is Linux's")
    if given.train:
        workload, size, guard = given.train
        print(json.dumps(train(workload, int(size), int(guard))))
        return 0
    if given.kept is None:
        parser.error("give --kept, the file that keeps the runs")
    plan = planned(given.workload or WORKLOADS, given.memory_limit or LIMITS, given.runs)
    runs = of_the_plan(plan, [Run.from_json(one) for one in run_file.read(given.kept)])
    for one in runs:
        print(one.line)
    for workload, limit in missing(plan, runs):
        runs.append(run(workload, limit, given.time_budget))
        run_file.add(given.kept, asdict(runs[-1]))
        print(runs[-1].line, flush=True)
    figures = verdicts(runs, len(plan))
    print()
    for reached, text in figures:
        print("pass " if reached else "MISS ", text)
    return 0 if all(reached for reached, _ in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
