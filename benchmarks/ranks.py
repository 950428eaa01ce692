"""Count how often the judge of ranks names the right rank, on generated tables and on real jobs of torchrun with gloo.

    python benchmarks/ranks.py [--tables N] [--seed S]
    python benchmarks/ranks.py --real [--runs N] [--start N] [--count N] [--output FILE]
    python benchmarks/ranks.py --real --only FAULT [--way WAY] [--ranks N] [--runs N] [--output FILE]
    python benchmarks/ranks.py --pipelines [--runs N] [--start N] [--count N] [--output FILE]
    python benchmarks/ranks.py --cost [--runs N] [--steps N]

A generated job has 2 to 64 ranks and 60 to 2 000 steps of 20 ms to 2 s. Each rank's own time in a step is normal or
long-tailed, and correlates with the step before (up to 0.9). A step has one to four collectives; ranks wait for each of
them, or issue them one after another as DDP does with its buckets. Clocks of other hosts are off by at most their known
error. The planted delay is 3 to 8 standard deviations of a rank's lateness in a step, and at least 3 % of a step.
Bounds: at least 95 % of the delayed ranks are named and no other rank; at most 1 % of the sound tables name a rank.

A real job has steps of 100 ms or more. Which rank is late is drawn from the seed and the run's number. It sleeps for
5 % of a step, or for three standard deviations of a rank's lateness in the last sound job of its way, if that is more:
so a sound job comes before each way.

A pipeline has 2 or 4 ranks that sleep 56 ms of a step of 60 to 130 ms (4 microbatches, GPipe's order or 1F1B), with
two replicas of each stage in some. The planted fault is a stage that takes 24 ms longer, from the start or from the
middle step on, a replica that does, or a link that delivers each message 4 ms later (a preloaded library delays the
receiving thread of gloo; it needs `cc`). Right are the busiest stage, named as that, the step from which on a rank is
slower, the replica, and nobody. Bounds: nobody is accused in a sound job or beside a slow link, and none is wrong.

The cost is that of a step of about 20 ms with 30 collectives, between readings of the record: a quick step (the lowest
tenth) of a job under torchrun with `gpucheck run` against one without, in pairs of processes in random order. Pairs of
two without (A/A) show the noise of the machine. Bound: 1 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gpucheck import stats  # noqa: E402
from gpucheck.program import ranks_judge  # noqa: E402
from gpucheck.program.ranks_judge import CollectiveCall, JobCalls  # noqa: E402
from gpucheck.program.run import rank_files as files  # noqa: E402

KINDS = ("sound", "delayed", "alternating", "subgroups")
LEAST_NAMED, MOST_BLAMED = 0.95, 0.01
# The simulated work of a large table is bounded, so that ten thousand take minutes.
MOST_ARRIVALS = 60_000


def made(random_: random.Random, kind: str) -> tuple[JobCalls, tuple[int, ...]]:
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
                    met = {rank: when + clock[rank] for rank, when in pair.items()}
                    calls.append(CollectiveCall(f"pair{first}", step, met, place=part))
                    for rank in pair:
                        arrivals[rank] = max(pair.values()) + step_s / per_step / 10
            calls.append(
                CollectiveCall("all", step, {rank: at_ + clock[rank] for rank, at_ in enumerate(arrivals)}, place=part)
            )
            if not buckets:
                arrivals = [max(arrivals)] * n
        at = [max(arrivals) + 1e-4] * n
    return JobCalls(tuple(range(n)), steps, step_s, calls, error, clock_most_s=bound), culprits


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

# A step of 100 ms or more that sleeps, so that four ranks share two cores; `FAULT` is what the culprit does.
JOB = """
import os, signal, sys, time
import torch
import torch.distributed as dist

fault, steps, delay, way, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], float(sys.argv[5])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
culprits = [int(one) for one in os.environ["CULPRITS"].split()]
culprit = culprits[0]
if way == "repeated":
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    # In the launcher's store the keys of the first group still stand, and torch would connect with what they say.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=world)

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
        return what == "forward" and rank == culprits[step % 2]
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
# Of which a step sleeps 85 %; the rest is the machine's.
STEP_S = 0.12
FAULTS = ("sound", "data", "forward", "backward", "alternating", "skipped", "killed", "stopped", "shapes")
WAYS = ("ddp", "fsdp", "no_sync", "subgroups", "second", "late", "repeated")
# What the screen must say the late rank does.
ACTIVITY = {
    "data": ("DataLoader",),
    # Where the forward pass has collectives, as FSDP's has, siblings wait in theirs: the line alone tells.
    "forward": ("the forward pass", "computing before a collective"),
    "backward": ("the backward pass",),
}


def started(*argv: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGV…` in `cwd`, with `more` in its environment."""
    return subprocess.run(
        [sys.executable, *argv],
        env=os.environ | more,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=600,
    )


def job(
    fault: str,
    culprits: Sequence[int],
    delay_s: float,
    way: str = "ddp",
    world: int = 4,
    steps: int = 60,
    step_s: float = STEP_S,
    keep: Path | None = None,
    python: Callable[..., subprocess.CompletedProcess[str]] = started,
) -> dict[str, Any]:
    """Run a job under torchrun; rank 0's document, with what it printed under `screen` and its sound ranks' spread.

    `python` runs Python: `python(argument, …, cwd=folder, NAME=value)`.
    """
    arguments = [fault, str(steps), str(delay_s), way, str(step_s)]
    sound = set(range(world)) - (set() if fault == "sound" else set(culprits))
    document = launched(JOB, arguments, world, keep, python, sound, CULPRITS=" ".join(map(str, culprits)))
    return document | {"culprits": list(culprits)}


def launched(
    text: str,
    arguments: Sequence[str],
    world: int,
    keep: Path | None,
    python: Callable[..., subprocess.CompletedProcess[str]],
    sound: Iterable[int] = (),
    **more: str,
) -> dict[str, Any]:
    """Run a program under torchrun and `gpucheck run`; rank 0's document, the screen and the spread of `sound`."""
    with tempfile.TemporaryDirectory(prefix="gpucheck-ranks-") as place:
        script, folder = Path(place) / "train.py", Path(place) / "out"
        script.write_text(text, encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [*launcher, "-m", "gpucheck", "run", "--hang-after", "4s", "--end-on-hang", "--output", f"{folder}/"]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), **more}
        ended = python(*command, str(script), *arguments, cwd=Path(place), **environment)
        path = folder / "run.rank0.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"findings": []}
        known = {"screen": ended.stderr, "code": ended.returncode}
        if keep is not None and folder.exists():
            shutil.copytree(folder, keep)
        return document | known | {"spread_s": spread(folder, sound) if sound else None}


def spread(folder: Path, ranks: Iterable[int]) -> float | None:
    """The standard deviation of a rank's lateness in a step, over these ranks; None if the job has too few steps."""
    table, _ = files._table(files.read(folder))
    late = ranks_judge._lateness(table).late if table.steps > ranks_judge.FEWEST_STEPS else {}
    series = [list(late[rank].values()) for rank in ranks if len(late.get(rank, ())) > 1]
    return math.sqrt(statistics.fmean(map(statistics.pvariance, series))) if series else None


def right(fault: str, document: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the document names this fault correctly, and its sentences."""
    findings = {one["id"]: one for one in document["findings"] if one["id"].startswith("run.ranks.")}
    said = "; ".join(f"{one['title']}: {one['message']}" for one in findings.values())
    result, culprits = document.get("results", {}).get("ranks"), document["culprits"]
    culprit = culprits[0]
    if result is None:
        return False, "no result"
    faults = set(findings) & {"run.ranks.hang", "run.ranks.mismatch", "run.ranks.ended"}
    if fault == "sound":
        return not result["late"] and not faults and result["outcome"] != "not_decided", said
    if fault in ACTIVITY:
        named = result["late"] == [culprit] and (result["activity"] or "").startswith(ACTIVITY[fault])
        return named and not faults, said
    if fault == "alternating":
        return result["outcome"] == "alternating" and set() < set(result["late"]) <= set(culprits), said
    if fault == "killed":
        named = findings.get("run.ranks.ended", {}).get("evidence", {}).get("rank")
        return named == culprit and "SIGKILL" in said, said
    if fault == "stopped":
        hang = result["hang"] or {}
        return hang.get("missing") == [culprit] and "stopped" in said, said
    if set((result["hang"] or {}).get("missing", ())) - {culprit}:
        return False, said
    # With two ranks, or two whose record is there, either may be the one that differs: both are named, none blamed.
    seen = result["mismatch"]
    if fault == "skipped" and seen is None:
        return (result["hang"] or {}).get("missing") == [culprit], said
    return seen is not None and (seen["ranks"] == [culprit] or not seen["has_majority"]) and seen["call"][
        "place"
    ] is not None, said


def plan(rounds: int) -> list[tuple[str, str, int]]:
    """The runs in an order that is balanced wherever it stops: fault, way and number of ranks.

    Ten rounds are ten of each fault and 60 sound jobs, and each other way with each slow rank once.
    """
    slow = ("data", "forward", "backward")
    runs = []
    for number in range(rounds):
        for place, fault in enumerate(FAULTS[1:]):
            sound = [("sound", "ddp", 4)] if place % 2 == 0 or (number > 2 and place in (3, 7)) else []
            runs += [*sound, (fault, "ddp", 4)]
        if number < len(slow):
            for way in WAYS[1:]:
                runs += [*([("sound", way, 4)] if number == 0 else []), (slow[number], way, 4)]
        if number == 0:
            runs += [(fault, "ddp", ranks) for ranks in (2, 8) for fault in ("sound", slow[ranks % 3])]
    return runs


def real(asked: argparse.Namespace) -> bool:
    """Run the list; whether nine of ten of each are right and nobody was blamed in sound jobs."""
    listed = [(fault, asked.way, asked.ranks) for _ in range(asked.runs) for fault in asked.only or ()]
    runs = list(enumerate(listed or plan(asked.runs)))[asked.start :][: asked.count]
    output = Path(asked.output) if asked.output else None
    past = output.read_text(encoding="utf-8").splitlines() if output is not None and output.exists() else []
    rows = [json.loads(line) for line in past]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    counts: dict[tuple[str, str, int], list[int]] = {}
    for number, (fault, way, ranks) in runs:
        culprits = random.Random(f"{asked.seed} {number}").sample(range(ranks), 2 if fault == "alternating" else 1)
        sound = [row for row in rows if (row["fault"], row["way"], row["ranks"]) == ("sound", way, ranks)]
        known = sound[-1] if sound and sound[-1].get("spread_s") else {"spread_s": 0.0, "step_s": asked.step_s}
        delay_s = max(0.05 * known["step_s"], 3 * known["spread_s"])
        began = time.monotonic()
        keep = Path(asked.keep) / f"{commit}-{number}-{fault}-{way}-{ranks}" if asked.keep else None
        document = job(fault, culprits, delay_s, way, ranks, asked.steps, asked.step_s, keep)
        is_right, said = right(fault, document)
        rows.append(
            {
                "commit": commit,
                "run": number,
                "seed": asked.seed,
                "fault": fault,
                "way": way,
                "ranks": ranks,
                "steps": asked.steps,
                "step_s": (document.get("results", {}).get("ranks") or {}).get("step_s"),
                "culprits": [] if fault == "sound" else culprits,
                "delay_s": delay_s if fault in (*ACTIVITY, "alternating") else None,
                "spread_s": document["spread_s"],
                "load": os.getloadavg()[0],
                "right": is_right,
                "said": said,
                "took_s": round(time.monotonic() - began, 1),
            }
        )
        line = json.dumps(rows[-1], ensure_ascii=False)
        print(line, flush=True)
        if output is not None:
            with open(output, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        tally = counts.setdefault((fault, way, ranks), [0, 0])
        tally[0] += is_right
        tally[1] += 1
    for (fault, way, ranks), (good, of) in counts.items():
        print(f"{way}, {ranks} ranks, {fault}: {good} of {of}")
    return all(good >= (of if fault == "sound" else 0.9 * of) for (fault, *_), (good, of) in counts.items())


# -- pipelines ---------------------------------------------------------------------------------------------------------

PIPELINE = """
import sys, time
import torch
import torch.distributed as dist

fault, order, steps, extra = sys.argv[1], sys.argv[4], int(sys.argv[2]), float(sys.argv[3])
dp, culprit = map(int, sys.argv[5:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
stages, micro = world // dp, 4
stage = rank // dp
groups = [dist.new_group(range(one * dp, one * dp + dp)) for one in range(stages)]
before, behind = (rank - dp if stage else None), (rank + dp if stage < stages - 1 else None)
optimizer = torch.optim.SGD(torch.nn.Linear(64, 64).parameters(), lr=1e-3)
sent = []

def part(source, target, seconds):
    data = torch.empty(64)
    if source is not None:
        dist.recv(data, source)
    time.sleep(seconds)
    if target is not None:
        sent.append((dist.isend(data, target), data))

for step in range(steps):
    late = fault in ("stage", "replica") or (fault == "since" and step >= steps // 2)
    more = extra / micro if late and rank == culprit else 0.0
    forward, backward = (lambda: part(before, behind, 0.006 + more)), (lambda: part(behind, before, 0.008))
    warm = micro if order == "gpipe" else min(stages - 1 - stage, micro)
    for _ in range(warm):
        forward()
    for _ in range(micro - warm):
        forward()
        backward()
    for _ in range(warm):
        backward()
    for work, _ in sent:
        work.wait()
    sent.clear()
    if dp > 1:
        dist.all_reduce(torch.ones(64), group=groups[stage])
    dist.all_reduce(torch.ones(()))
    optimizer.step()
dist.barrier()
"""
# Delays what arrives at one rank, in the thread of gloo that receives it.
LINK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int epoll_wait(int file, struct epoll_event *events, int most, int timeout_ms) {
    int (*real)(int, struct epoll_event *, int, int) = dlsym(RTLD_NEXT, "epoll_wait");
    int count = real(file, events, most, timeout_ms);
    const char *rank = getenv("RANK"), *slow = getenv("SLOW_LINK");
    if (count > 0 && rank && slow && !strcmp(rank, slow) && gettid() != getpid()) usleep(4000);
    return count;
}
"""
EXTRA_S = 0.024


def pipelines(asked: argparse.Namespace) -> bool:
    """Run the pipelines; whether all are right."""
    runs = [
        (fault, order, ranks, dp)
        for _ in range(asked.runs)
        for fault in ("sound", "stage", "link", "since", "sound", "stage")
        for order in ("gpipe", "1f1b")
        for ranks, dp in ((2, 1), (4, 1))
    ] + [(fault, order, 4, 2) for fault in ("sound", "replica", "link") for order in ("gpipe", "1f1b")] * asked.runs
    counts: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="gpucheck-link-") as place:
        library = Path(place) / "link.so"
        (Path(place) / "link.c").write_text(LINK, encoding="ascii")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, Path(place) / "link.c", "-ldl"], check=True)
        for number, (fault, order, ranks, dp) in list(enumerate(runs))[asked.start :][: asked.count]:
            culprit = random.Random(f"{asked.seed} {number}").randrange(ranks)
            # Written down before the run: what the document must say.
            expected = {
                "sound": ("alike", [], []),
                "link": ("alike", [], []),
                "stage": ("busiest", [], [culprit]),
                "since": ("straggler", [culprit], []),
                "replica": ("straggler", [culprit], []),
            }[fault]
            slow = {"LD_PRELOAD": str(library), "SLOW_LINK": str(culprit)} if fault == "link" else {}
            arguments = [fault, str(asked.steps), str(EXTRA_S), order, str(dp), str(culprit)]
            document = launched(PIPELINE, arguments, ranks, None, started, (), **slow)
            result = document.get("results", {}).get("ranks") or {}
            got = result.get("outcome"), result.get("late"), result.get("busiest")
            said = [one for one in document["findings"] if one["id"].startswith("run.ranks.")]
            row = {
                "run": number,
                "fault": fault,
                "order": order,
                "ranks": ranks,
                "replicas": dp,
                "culprit": None if fault == "sound" else culprit,
                "expected": expected,
                "right": got == expected,
                "load": os.getloadavg()[0],
                "said": "; ".join(f"{one['title']}: {one['message']}" for one in said),
            }
            print(line := json.dumps(row, ensure_ascii=False), flush=True)
            if asked.output:
                with open(asked.output, "a", encoding="utf-8") as file:
                    file.write(line + "\n")
            tally = counts.setdefault(fault, [0, 0])
            tally[0] += got == expected
            tally[1] += 1
    for fault, (good, of) in counts.items():
        print(f"pipelines, {fault}: {good} of {of}")
    return all(good == of for good, of in counts.values())


# -- cost --------------------------------------------------------------------------------------------------------------

# Fixed work: a step takes 20 ms of an idle processor, and about as long by the clock where the ranks have one each.
COST_JOB = """
import json, sys, time
import torch
import torch.distributed as dist

steps, path = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(192, 192)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch, sent = torch.ones(192, 192), torch.ones(64)
took = []
for _ in range(steps):
    began = time.perf_counter(), time.process_time()
    for _ in range(10):
        model(batch).sum().backward()
        for _ in range(3):
            dist.all_reduce(sent)
    optimizer.step()
    optimizer.zero_grad()
    took.append((time.perf_counter() - began[0], time.process_time() - began[1]))
if dist.get_rank() == 0:
    with open(path, "w") as file:
        # What else is at work on the machine only makes a step longer.
        json.dump([sorted(column)[len(column) // 10] for column in zip(*took[steps // 10:])], file)
dist.barrier()
"""
MOST_COST = 0.01


def cost(asked: argparse.Namespace) -> bool:
    """Print what a step takes more with `run`, by the clock and of the processor; whether that is within the bound."""
    order = random.Random(asked.seed)
    ratios: dict[str, list[tuple[float, float]]] = {"run": [], "A/A": []}
    for _ in range(asked.runs):
        for name in order.sample(sorted(ratios), 2):
            pair = {}
            for second in order.sample((False, True), 2):
                pair[second] = step_of(asked.steps, with_run=second and name == "run")
            (clock, processor), (plain_clock, plain_processor) = pair[True], pair[False]
            ratios[name].append((clock / plain_clock, processor / plain_processor))
            entry = {"pair": name, "with": pair[True], "without": pair[False], "load": os.getloadavg()[0]}
            print(json.dumps(entry), flush=True)
    within = True
    for name, pairs in ratios.items():
        for place, what in enumerate(("by the clock", "of the processor")):
            logs = [math.log(pair[place]) for pair in pairs]
            half = stats.student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            low, middle, high = (math.expm1(statistics.fmean(logs) + by) for by in (-half, 0, half))
            print(f"{name}, {what}: {middle:+.2%} ({low:+.2%} to {high:+.2%}), {len(logs)} pairs")
            within &= name == "A/A" or low <= MOST_COST
    return within


def step_of(steps: int, *, with_run: bool) -> tuple[float, float]:
    """Seconds of a quick step of rank 0 of 2: by the clock, and of the processor for all threads."""
    with tempfile.TemporaryDirectory(prefix="gpucheck-ranks-") as place:
        script, path = Path(place) / "train.py", Path(place) / "took.json"
        script.write_text(COST_JOB, encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*launcher, *(["-m", "gpucheck", "run"] if with_run else []), str(script), str(steps), str(path)]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, cwd=place, capture_output=True, check=True, timeout=600)
        clock, processor = json.loads(path.read_text(encoding="utf-8"))
        return clock, processor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--pipelines", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--only", action="append", choices=FAULTS)
    parser.add_argument("--way", choices=WAYS, default="ddp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=STEP_S)
    parser.add_argument("--start", type=int, default=0, help="the number of the first run")
    parser.add_argument("--count", type=int, help="end after this many runs")
    parser.add_argument("--keep", help="keep each job's files in a folder of this one")
    parser.add_argument("--output", help="append each run's outcome to this file, as a line of JSON")
    parser.add_argument("-v", action="store_true", help="print each made table that was judged wrong")
    asked = parser.parse_args()
    if asked.pipelines:
        return 0 if pipelines(asked) else 1
    if asked.cost:
        return 0 if cost(asked) else 1
    return 0 if (real(asked) if asked.real else tables(asked.tables, asked.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
