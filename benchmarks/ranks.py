"""Count how often the judge of ranks names the right rank, on generated tables and on real jobs of torchrun with gloo.

    python benchmarks/ranks.py [--tables N] [--seed S]
    python benchmarks/ranks.py --real [--only FAULT]... [--way WAY] [--ranks N] [--runs N] [--steps N] [--output FILE]

A generated job has 2 to 64 ranks and 60 to 2 000 steps of 20 ms to 2 s. Each rank's own time in a step is normal or
long-tailed, and correlates with the step before (up to 0.9). A step has one to four collectives; ranks wait for each of
them, or issue them one after another as DDP does with its buckets. Clocks of other hosts are off by at most their known
error. The planted delay is 3 to 8 standard deviations of a rank's lateness in a step, and at least 3 % of a step.
Bounds: at least 95 % of the delayed ranks are named and no other rank; at most 1 % of the sound tables name a rank.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gpucheck.program import ranks_judge  # noqa: E402
from gpucheck.program.ranks_judge import Call, Table  # noqa: E402

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
    culprits: tuple[int, ...] = (random_.randrange(n),) if kind in ("delayed", "subgroups") else ()
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
                own = (
                    step_s / per_step
                    + wander[rank] / per_step
                    + (delay if rank == victim and part == delayed_part else 0)
                )
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
    return named and seen["sound"] - right["sound"] <= max(MOST_BLAMED * seen["sound"], 1)


# -- real jobs ---------------------------------------------------------------------------------------------------------

# A step of about 100 ms that sleeps, so that four ranks share two cores; `FAULT` is what the culprit does.
JOB = """
import os, signal, sys, time
import torch
import torch.distributed as dist

fault, steps, delay, way, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], float(sys.argv[5])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
culprit = int(os.environ.get("CULPRIT", world - 1))
if way == "repeated":
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    dist.init_process_group("gloo")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return steps
    def __getitem__(self, index):
        time.sleep(0.05 * step_s)
        if fault == "data" and rank == culprit:
            time.sleep(delay)
        return torch.ones(64)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.4 * step_s)
        if late("backward"):
            time.sleep(delay)
        return gradient

def late(what):
    if fault == "alternating":
        return what == "forward" and rank == step % 2
    return fault == what and rank == culprit

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x):
        time.sleep(0.4 * step_s)
        if late("forward"):
            time.sleep(delay)
        return self.second(Slow.apply(self.first(x)))

model = Model()
if way == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
groups = [dist.new_group([first, first + 1]) for first in range(0, world - 1, 2)] if way == "subgroups" else []
second = dist.new_group(list(range(world))) if way == "second" else None
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if way == "late":
    time.sleep(1.0 * rank / world)
step = 0
for batch in torch.utils.data.DataLoader(Data(), batch_size=1):
    if step == steps // 2 and rank == culprit:
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
    if way == "no_sync":
        with model.no_sync():
            model(batch).sum().backward()
    model(batch).sum().backward()
    if groups and rank // 2 < len(groups):
        dist.all_reduce(torch.ones(8), group=groups[rank // 2])
    if second is not None:
        dist.all_reduce(torch.ones(8), group=second)
    if fault == "shapes" and step == steps // 2:
        dist.all_reduce(torch.ones(16 if rank == culprit else 8))
    if not (fault == "skipped" and rank == culprit and step == steps // 2):
        dist.all_reduce(torch.ones(()))  # the loss
    optimizer.step()
    optimizer.zero_grad()
    step += 1
dist.barrier()
"""
FAULTS = ("sound", "data", "forward", "backward", "alternating", "skipped", "killed", "stopped", "shapes")
WAYS = ("ddp", "fsdp", "no_sync", "subgroups", "second", "late", "repeated")
# What the screen must say the late rank does.
ACTIVITY = {
    "data": ("DataLoader",),
    # Where the forward pass has collectives, as FSDP's has, siblings wait in theirs: the line alone tells.
    "forward": ("the forward pass", "computing before a collective"),
    "backward": ("the backward pass",),
}


def job(
    fault: str,
    way: str = "ddp",
    world: int = 4,
    steps: int = 60,
    delay: float = 0.02,
    step_s: float = 0.1,
    culprit: int = -1,
) -> dict[str, Any]:
    """Run a job under torchrun; rank 0's document, with what it printed under `screen`."""
    culprit = world - 1 if culprit < 0 else culprit
    with tempfile.TemporaryDirectory(prefix="gpucheck-ranks-") as place:
        script, folder = Path(place) / "train.py", Path(place) / "out"
        script.write_text(JOB, encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [*launcher, "-m", "gpucheck", "run", "--hang-after", "4s", "--end-on-hang", "--output", f"{folder}/"]
        arguments = [fault, str(steps), str(delay), way, str(step_s)]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "CULPRIT": str(culprit), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [*command, str(script), *arguments], env=env, cwd=place, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as running:
            _, screen = running.communicate(timeout=600)
        path = folder / "run.rank0.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"findings": []}
        return document | {"screen": screen, "code": running.returncode, "culprit": culprit}


def right(fault: str, document: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the document names this fault correctly, and its sentences."""
    findings = {one["id"]: one for one in document["findings"] if one["id"].startswith("run.ranks.")}
    said = "; ".join(f"{one['title']}: {one['message']}" for one in findings.values())
    result, culprit = document.get("results", {}).get("ranks"), document["culprit"]
    if result is None:
        return False, "no result"
    faults = set(findings) & {"run.ranks.hang", "run.ranks.mismatch", "run.ranks.ended"}
    if fault == "sound":
        return not result["late"] and not faults and result["outcome"] != "not_decided", said
    if fault in ACTIVITY:
        named = result["late"] == [culprit] and (result["activity"] or "").startswith(ACTIVITY[fault])
        return named and not faults, said
    if fault == "alternating":
        return result["outcome"] == "alternating" and set(result["late"]) <= {0, 1}, said
    if fault == "killed":
        return findings.get("run.ranks.ended", {}).get("evidence") == {"rank": culprit} and "SIGKILL" in said, said
    if fault == "stopped":
        hang = result["hang"] or {}
        return hang.get("missing") == [culprit] and "stopped" in said, said
    # With two ranks, or two whose record is there, either may be the one that differs: both are named, none blamed.
    seen = result["mismatch"]
    if fault == "skipped" and seen is None:
        return (result["hang"] or {}).get("missing") == [culprit], said
    return seen is not None and (seen["ranks"] == [culprit] or not seen["has_majority"]) and seen["call"][
        "place"
    ] is not None, said


def real(asked: argparse.Namespace) -> bool:
    """Run the list; whether nine of ten of each are right and nobody was blamed in sound jobs."""
    counts: dict[str, list[int]] = {}
    lines = []
    for number in range(asked.runs):
        for fault in asked.only or FAULTS:
            way = asked.way
            began = time.monotonic()
            document = job(fault, way, asked.ranks, asked.steps, asked.delay, asked.step_s, number % asked.ranks)
            is_right, said = right(fault, document)
            entry = {
                "fault": fault,
                "way": way,
                "ranks": asked.ranks,
                "steps": asked.steps,
                "culprit": document["culprit"],
            }
            lines.append(entry | {"right": is_right, "said": said, "took_s": round(time.monotonic() - began, 1)})
            print(json.dumps(lines[-1], ensure_ascii=False), flush=True)
            if asked.output:
                with open(asked.output, "a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
            tally = counts.setdefault(fault, [0, 0])
            tally[0] += is_right
            tally[1] += 1
    for fault, (good, of) in counts.items():
        print(f"{asked.way}, {asked.ranks} ranks, {fault}: {good} of {of}")
    return all(good >= (of if fault == "sound" else 0.9 * of) for fault, (good, of) in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--only", action="append", choices=FAULTS)
    parser.add_argument("--way", choices=WAYS, default="ddp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds that the late rank sleeps in a step")
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--output", help="append each run's outcome to this file, as a line of JSON")
    parser.add_argument("-v", action="store_true", help="print each made table that was judged wrong")
    asked = parser.parse_args()
    return 0 if (real(asked) if asked.real else tables(asked.tables, asked.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
