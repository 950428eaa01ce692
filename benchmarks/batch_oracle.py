"""Whether `find-batch-size` tells the truth here: each answer is trained again, by nothing that the search uses.

    python benchmarks/batch_oracle.py --kept oracle.jsonl [--runs 20] [--workload mlp] [--memory-limit 1GiB]
    python benchmarks/batch_oracle.py --kept device.jsonl --device cuda:0 --memory-limit 1GiB --memory-limit 3GiB

A run searches, by the command as a user types it, and then trains with the answer n and with 1.05·n + 1, each in a
process of its own that imports the built-in models and nothing else of gpucheck: three plain steps with AdamW. The peak
is the process's VmHWM, cleared before the model is built, above what was resident after a warm-up, under the malloc
settings that the search's trials have. n must stay within the budget; 1.05·n + 1 must not, by its peak or by running
out of memory. What ends otherwise shows nothing and counts as a miss.

With `--device`, of a GPU that nobody else uses, the process takes eight steps with the allocator held to the budget
less what lies outside it, and a size whose last three steps each emptied the allocator's cache does not count as one
that runs. What the idle GPU holds is no process's. The largest size that runs is looked for by bisection, to 1 %, and
the answer is to be at least 97 % of it; each size that the search refused is trained too, and is not to run with as
much of the budget left as a trial leaves. Python may be that of a simulated CUDA runtime,
whose kernels compute nothing and which has no workspaces of cuDNN.

Runs go through the workloads and the budgets in turn. Each is kept in the file as it ends, and an interrupted benchmark
goes on from there: one file for one state of the code. Exits 1 where fewer than 19 of 20 answers hold, or a search took
more trials than wanted or ran out of memory. The CPU's peak is read from /proc, which is Linux's.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import run_file  # noqa: E402  (found beside this file)
from batch_cases import CAP, WORKLOADS  # noqa: E402

from gpucheck import units  # noqa: E402

LIMITS = ("1GiB", "2GiB", "4GiB")
RUNS, LEAST_SHARE, MOST_TRIALS = 20, 19 / 20, 6
STEPS, STEPS_OF_DEVICE = 3, 8
# What an answer on a device is to be of the largest size that runs, and how near that is looked for.
LEAST_OF_LARGEST, NEAR = 0.97, 0.01
# Under these a CPU's resident memory follows the tensors.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
# A wrong answer may be any number: beyond so many budgets an allocation fails instead of filling the machine.
GUARD = 2
# What leads to the answer, as benchmarks/batch_size.py counts it: the rest is about its use.
COUNTED = ("search", "confirm")
OUT_OF_MEMORY = ("out-of-memory", "host-out-of-memory")
# Outcomes by which a search calls a size too large.
REFUSED = (*OUT_OF_MEMORY, "over-budget", "suspected")


@dataclass(frozen=True, slots=True)
class Trained:
    """What training with one size came to: its peak, or why there is none."""

    size: int
    peak_bytes: int | None = None
    out_of_memory: bool = False
    failure: str | None = None
    # Each of the last three steps had to empty the allocator's cache.
    keeps_retrying: bool = False

    def within(self, budget_bytes: int) -> bool | None:
        """Whether it fits into the budget; None where it ended without saying so."""
        if self.failure is not None:
            return None
        if self.out_of_memory or self.keeps_retrying:
            return False
        return self.peak_bytes is not None and self.peak_bytes <= budget_bytes

    @property
    def text(self) -> str:
        """Its peak, or how it ended."""
        if self.peak_bytes is not None:
            return f"{self.peak_bytes / units.MIB:.0f} MiB"
        return self.failure or "out of memory"


@dataclass(frozen=True, slots=True)
class Run:
    """A search and the check of its answer. `trials` holds a purpose and an outcome each.

    Of a device, `largest` is the largest size that runs, and `refused` are those that the search called too large.
    """

    workload: str
    limit: str
    budget_bytes: int
    search_s: float
    limited_by: str | None
    trials: tuple[tuple[str, str], ...]
    answer: Trained | None
    beyond: Trained | None
    device: str = "cpu"
    largest: Trained | None = None
    refused: tuple[Trained, ...] = ()

    @property
    def share(self) -> float | None:
        """What the answer is of the largest size that runs."""
        return self.answer.size / self.largest.size if self.answer and self.largest else None

    @property
    def falsely_refused(self) -> list[int]:
        """Sizes that run all the same."""
        return [one.size for one in self.refused if one.within(self.budget_bytes) is not False]

    @property
    def holds(self) -> bool:
        """Whether the answer trains within the budget, and 5 % more does not; of a device, 3 % less."""
        if self.answer is None or self.beyond is None:
            return False
        if self.share is not None:
            runs = self.answer.within(self.budget_bytes) is True
            return runs and self.share >= LEAST_OF_LARGEST and not self.falsely_refused
        return self.answer.within(self.budget_bytes) is True and self.beyond.within(self.budget_bytes) is False

    @property
    def counted(self) -> int:
        """Trials up to the answer, its confirmation included."""
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
        if self.share is not None and self.largest is not None:
            refused = f", {self.falsely_refused} refused though they run" if self.falsely_refused else ""
            parts.append(f"{self.share:.1%} of {self.largest.size}{refused}")
        purposes = Counter(purpose for purpose, _ in self.trials)
        told = ", ".join(f"{count} {purpose}" for purpose, count in purposes.items())
        parts.append(f"{self.counted} trials ({told}), {self.out_of_memory} out of memory")
        parts.append(f"limited by {self.limited_by or 'what is unknown'}, {self.search_s:.0f} s")
        return ("holds  " if self.holds else "MISS   ") + "; ".join(parts)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The run of one line of the file."""
        trained = {name: data[name] and Trained(**data[name]) for name in ("answer", "beyond", "largest")}
        refused = tuple(Trained(**one) for one in data["refused"])
        trials = tuple((purpose, outcome) for purpose, outcome in data["trials"])
        return cls(**{**data, "trials": trials, "refused": refused, **trained})


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


def used_before(report: dict[str, Any], device: str) -> int:
    """The bytes that the driver counted as used before the search, 3.25 MiB of an idle H200; 0 where it did not say."""
    used = [one["memory_used_bytes"] for one in report["facts"]["devices"] if one["id"] == device]
    return (used[0] or 0) if used else 0


def run(workload: str, limit: str, time_budget: str, device: str) -> Run:
    """Search, then train with the answer and beyond. Raises CalledProcessError where the command itself fails."""
    command = [sys.executable, "-m", "gpucheck", "find-batch-size", workload, "--device", device, "--json", "--quiet"]
    command += ["--memory-limit", limit, "--time-budget", time_budget, "--max-batch-size", str(CAP)]
    started = time.monotonic()
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=False)
    took = time.monotonic() - started
    if not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, command)
    report = json.loads(done.stdout)
    found = searched(report)
    answer, budget = found.get("max_batch_size"), units.parse_size(limit, "--memory-limit")
    there = device != "cpu"
    idle = used_before(report, device) if there else 0
    once: dict[int, Trained] = {}

    def at(size: int) -> Trained:
        if size not in once:
            once[size] = trained(workload, size, budget, device, idle)
        return once[size]

    trials = found.get("trials", ())
    refused = {trial["batch_size"] for trial in trials if trial["outcome"] in REFUSED} if there else set()
    return Run(
        workload=workload,
        limit=limit,
        budget_bytes=budget,
        search_s=took,
        limited_by=found.get("limiting_factor"),
        trials=tuple((trial["purpose"], trial["outcome"]) for trial in trials),
        answer=at(answer) if answer else None,
        beyond=at(beyond(answer)) if answer else None,
        device=device,
        largest=largest(at, answer, budget) if answer and there else None,
        refused=tuple(trained(workload, size, budget, device, idle) for size in sorted(refused)),
    )


def environment() -> dict[str, str]:
    """Ours, with this gpucheck before what is on Python's path."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def largest(at: Callable[[int], Trained], size: int, budget_bytes: int) -> Trained | None:
    """The largest size that runs, to within NEAR of it, looked for from `size` on; None where that does not run."""
    low = at(size)
    if not low.within(budget_bytes):
        return None
    high = at(beyond(size))
    while high.within(budget_bytes):
        low, high = high, at(beyond(high.size))
    while high.size - low.size > max(1, low.size * NEAR):
        middle = at((low.size + high.size) // 2)
        low, high = (middle, high) if middle.within(budget_bytes) else (low, middle)
    return low


def trained(workload: str, size: int, budget_bytes: int, device: str = "cpu", idle_bytes: int = 0) -> Trained:
    """Train with one size in a separate process. The device, when idle, holds `idle_bytes`."""
    command = [sys.executable, __file__, "--train", workload, str(size), str(budget_bytes), device, str(idle_bytes)]
    malloc = MALLOC if device == "cpu" else {}
    done = subprocess.run(command, env={**environment(), **malloc}, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Trained(size, failure=f"ended with {done.returncode}: {last}")
    return Trained(size, **json.loads(done.stdout))


# The process that trains


class Training:
    """Plain steps of a model on a device, with AdamW and cross-entropy.

    A step's batch and scores live on until the next step's replace them, as the variables of a loop do: near the budget
    a loop that releases them trains larger sizes.
    """

    batch: Any = None
    scores: Any = None

    def __init__(self, model: Any, device: str) -> None:
        import torch

        self.model, self.device = model.to(device), device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, data: Any) -> None:
        """One step with this batch."""
        import torch

        self.batch = data.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        self.scores = self.model(self.batch).flatten(0, -2)
        classes = torch.randint(self.scores.shape[-1], self.scores.shape[:-1], device=self.device)
        torch.nn.functional.cross_entropy(self.scores, classes).backward()
        self.optimizer.step()


def built_in(workload: str) -> tuple[Any, Callable[[int], Any]]:
    """A built-in model, and what makes a batch for it."""
    import torch

    from gpucheck.work.models import MODELS

    built = MODELS[workload]
    (one,) = built.inputs

    def batch(size: int) -> Any:
        shape = (size, *one.shape)
        if one.dtype == "int64":
            assert one.low is not None and one.high is not None
            return torch.randint(int(one.low), int(one.high) + 1, shape)
        return torch.randn(shape)

    return built.build(), batch


def train(workload: str, size: int, budget_bytes: int) -> dict[str, Any]:
    """Three steps with batches of `size` on the CPU; growth beyond GUARD budgets fails as an allocation."""
    import resource

    import torch
    from torch import nn

    # What torch takes once, whatever is trained: its threads, its kernels' code, oneDNN's and the optimizer's own.
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(784, 10))
    warm = Training(tiny, "cpu")
    for _ in range(STEPS):
        warm.step(torch.randn(8, 3, 16, 16))
    torch.mm(torch.randn(600, 600), torch.randn(600, 600))
    del tiny, warm

    before = status_bytes("VmRSS")
    limit = status_bytes("VmData") + GUARD * budget_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    model, batch = built_in(workload)
    try:
        training = Training(model, "cpu")
        for _ in range(STEPS):
            training.step(batch(size))
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        return {"out_of_memory": True}
    return {"peak_bytes": status_bytes("VmHWM") - before}


def train_on_device(workload: str, size: int, budget_bytes: int, device: str, idle_bytes: int) -> dict[str, Any]:
    """Eight steps with batches of `size` on a GPU that nobody else uses, its allocator held to the budget."""
    import torch

    def outside() -> int:
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free - torch.cuda.memory_reserved(device) - idle_bytes)

    model, batch = built_in(workload)
    training = Training(model, device)
    training.model(batch(2).to(device)).sum().backward()  # kernels and handles are loaded when they are first used
    training.optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    limit = budget_bytes - outside()
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info(device)[1], device)
    retried: list[int] = []
    try:
        for _ in range(STEPS_OF_DEVICE):
            before = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
            training.step(batch(size))
            torch.cuda.synchronize(device)
            retried.append(torch.cuda.memory_stats(device).get("num_alloc_retries", 0) - before)
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    peak = torch.cuda.max_memory_reserved(device) + outside()
    return {"peak_bytes": peak, "keeps_retrying": all(retried[-3:])}


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
    if any(run.device != "cpu" for run in runs):
        return verdicts_of_device(runs, planned_count)
    trials = max((run.counted for run in runs), default=0)
    raised = sum(run.out_of_memory for run in runs)
    return [
        (held >= needed, f"answers that hold: {held} of {planned_count}, at least {needed} wanted"),
        (bool(runs) and trials <= MOST_TRIALS, f"most trials: {trials}, at most {MOST_TRIALS} wanted"),
        (bool(runs) and raised == 0, f"trials out of memory: {raised}, none wanted"),
    ]


def verdicts_of_device(runs: Sequence[Run], planned_count: int) -> list[tuple[bool, str]]:
    """The same of a device, where an answer is held against the largest size that runs."""
    answered = [run for run in runs if run.answer is not None and run.answer.within(run.budget_bytes)]
    least = min((run.share or 0.0 for run in runs), default=0.0)
    trials = max((run.counted for run in runs), default=0)
    falsely = [(run.workload, run.limit, size) for run in runs for size in run.falsely_refused]
    return [
        (len(answered) == planned_count, f"answers that run: {len(answered)} of {planned_count}"),
        (least >= LEAST_OF_LARGEST, f"least of the largest size that runs: {least:.1%}, {LEAST_OF_LARGEST:.0%} wanted"),
        (trials <= MOST_TRIALS, f"most trials: {trials}, at most {MOST_TRIALS} wanted"),
        (not falsely, f"sizes that were refused and run: {falsely or 'none'}"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="the file that keeps the runs")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="default all; may be repeated")
    parser.add_argument("--memory-limit", action="append", help="default 1GiB, 2GiB and 4GiB; may be repeated")
    parser.add_argument("--device", default="cpu", help="the CPU, or a GPU that nobody else uses: cuda:0")
    parser.add_argument("--time-budget", default="600s", help="of each search; the command's own 60s is for a free CPU")
    parser.add_argument("--train", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cpu" and not sys.platform.startswith("linux"):
        parser.error("the peak of a process is read from /proc, which is Linux's")
    if given.train:
        workload, size, budget, device, idle = given.train
        on_cpu = device == "cpu"
        done = (
            train(workload, int(size), int(budget))
            if on_cpu
            else train_on_device(workload, int(size), int(budget), device, int(idle))
        )
        print(json.dumps(done))
        return 0
    if given.kept is None:
        parser.error("give --kept, the file that keeps the runs")
    plan = planned(given.workload or WORKLOADS, given.memory_limit or LIMITS, given.runs)
    runs = of_the_plan(plan, [Run.from_json(one) for one in run_file.read(given.kept)])
    for one in runs:
        print(one.line)
    for workload, limit in missing(plan, runs):
        runs.append(run(workload, limit, given.time_budget, given.device))
        run_file.add(given.kept, asdict(runs[-1]))
        print(runs[-1].line, flush=True)
    figures = verdicts(runs, len(plan))
    print()
    for reached, text in figures:
        print("pass " if reached else "MISS ", text)
    return 0 if all(reached for reached, _ in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
