"""The time that `find-batch-size`, Lightning and accelerate take to find a batch size, on a CPU or a GPU.

`benchmarks/batch_size.py --peers` tells what comes of it; each side of a comparison is a process of this file:

    python benchmarks/batch_peers.py SIDE WORKLOAD LIMIT [--first N] [--device cuda:0]

Both peers run in one process by design, whatever fails in it: a backward pass that runs out of memory leaves its
tensors behind there (torch 2.13, seen in a plain loop too), and what is tried next may fail for that. A peer for which
every size failed has no answer, and took the time until it said so. Their trial is that of the search's own children:
the same steps of the same workload under the same malloc settings, the same guard, the peak measured the same way. A
trial that fails for want of memory, or whose peak is above the budget, raises what both take for out of memory
(oneDNN's "could not create a primitive" they do not know). Lightning's Tuner doubles and bisects (`binsearch`, without
the margin that it takes off its answer); accelerate starts from N and takes a tenth off each time. Lightning is told a
limit above its own of 8192, yet 2.6 falls back to 8192 after each failure: where more fits, its answer and its time are
that of a search that does not close.

Wall time is from the start of a side's process until its answer is there: for gpucheck until it is confirmed in a fresh
process, which neither peer does. What gpucheck runs after that (an evaluation, the size to
recommend) is told beside it. A peer may take four times what gpucheck took and is ended then.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from batch_cases import CAP

from gpucheck import api, units
from gpucheck.batch_size.loop import STEPS
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import BOUNDING, End, Setup, classify
from gpucheck.batch_size.runner import TUNED_MALLOC
from gpucheck.messages import ChainedError
from gpucheck.report.events import Event, Trial

OURS = "gpucheck"
# What both peers look for in a RuntimeError; torch's own allocator says so.
OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"
# Of gpucheck's search; the command's own minute is for a CPU that is free.
TIME_BUDGET_S = 1800.0
# A peer that takes so many times what gpucheck's first answer took is ended: the ratio is then at most what is told.
PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Taken:
    """One side's answer. `answer_s` is from the start of its process to its answer, `whole_s` to its end.

    `ended` is True where it was ended without one.
    """

    side: str
    answer: int | None
    trials: int
    failures: int
    answer_s: float
    whole_s: float
    ended: bool = False

    @property
    def line(self) -> str:
        """The side as it is printed."""
        if self.ended:
            return f"    {self.side:12} no answer within {self.whole_s:.0f} s, and ended there"
        after = f", {self.whole_s:.0f} s with what follows" if self.side == OURS else ""
        counts = f"{self.trials} trials, {self.failures} failed"
        answer = "no answer" if self.answer is None else self.answer
        return f"    {self.side:12} {answer} after {self.answer_s:.0f} s{after}; {counts}"


@dataclass(frozen=True, slots=True)
class Against:
    """What a comparison with one peer comes to: the median of gpucheck's time over the peer's, round by round."""

    peer: str
    workload: str
    limit: str
    ratio: float
    whole_ratio: float
    rounds: int


def against(rounds: Sequence[dict[str, Taken]], workload: str, limit: str) -> list[Against]:
    """The comparison with each peer that every round has."""
    peers = [side for side in rounds[0] if side != OURS]
    return [
        Against(
            peer,
            workload,
            limit,
            statistics.median(taken[OURS].answer_s / taken[peer].answer_s for taken in rounds),
            statistics.median(taken[OURS].whole_s / taken[peer].whole_s for taken in rounds),
            len(rounds),
        )
        for peer in peers
    ]


def order(number: int, sides: Sequence[str]) -> list[str]:
    """Who runs when in a round: each side is first in turn, so that a machine that changes its pace favours none."""
    start = number % len(sides)
    return [*sides[start:], *sides[:start]]


def compare(workload: str, limit: str, rounds: int, say: Callable[[str], None]) -> list[Against]:
    """Run every side that is installed, `rounds` times in turn. accelerate starts from 4 times gpucheck's answer."""
    sides = [OURS, *(name for name in PEERS if installed(name))]
    found: list[dict[str, Taken]] = []
    answer, patience = 0, TIME_BUDGET_S
    for number in range(rounds):
        say(f"{workload} under {limit}, round {number + 1} of {rounds}")
        taken: dict[str, Taken] = {}
        for side in order(number, sides):
            taken[side] = measured(side, workload, limit, first_size(side, answer), patience)
            if side == OURS and not answer:
                answer, patience = taken[side].answer or 0, PATIENCE * taken[side].answer_s
            say(taken[side].line)
        found.append(taken)
    return against(found, workload, limit)


def first_size(side: str, answer: int) -> int:
    """Where a peer starts: Lightning at its own default, accelerate at four times the answer."""
    return 4 * answer if side == "accelerate" else 2


def installed(name: str) -> bool:
    """Whether a peer can be imported here."""
    return importlib.util.find_spec(name) is not None


def measured(side: str, workload: str, limit: str, first: int, patience_s: float, device: str = "cpu") -> Taken:
    """One side in a separate process, ended after `patience_s`. Raises CalledProcessError where it fails."""
    command = [sys.executable, __file__, side, workload, limit, "--first", str(first), "--device", device]
    # gpucheck sets them for its trials itself.
    environment = {**os.environ, **({} if side == OURS or device != "cpu" else TUNED_MALLOC)}
    started = time.monotonic()
    # gpucheck has children, which it ends in its own time; a peer is one process.
    longest = None if side == OURS else patience_s
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=longest)
    except subprocess.TimeoutExpired:
        took = time.monotonic() - started
        return Taken(side, None, 0, 0, took, took, ended=True)
    ended = time.monotonic()
    told = json.loads(done.stdout.splitlines()[-1])
    return Taken(
        side, told["answer"], told["trials"], told["failures"], told["answered_monotonic_s"] - started, ended - started
    )


# The sides, each in a separate process


@dataclass(slots=True)
class Trials:
    """The trial function of a search, as a peer calls it: `session` answers, `sizes` remembers."""

    session: Any
    kind: str
    budget_bytes: int
    sizes: list[int] = field(default_factory=list)
    failures: int = 0

    def __call__(self, size: int) -> int:
        """Train with batches of `size` and return it. Raises RuntimeError where memory ran out or the peak is above."""
        self.sizes.append(size)
        answer = self.session.trial(size, STEPS)
        if not answer["ok"]:
            self.failures += 1
            chain = tuple(ChainedError(tuple(link["classes"]), link["message"]) for link in answer["chain"])
            known = OUT_OF_MEMORY if classify(End(raised=chain), self.kind) in BOUNDING else "no want of memory"
            raise RuntimeError(f"{known}: {chain[0].message}")
        if answer["peak_bytes"] > self.budget_bytes:
            self.failures += 1
            raise RuntimeError(f"{OUT_OF_MEMORY}: a peak of {units.capacity(answer['peak_bytes'])} is above the budget")
        return size


def opened(workload: str, limit: str, device: str) -> Trials:
    """The trials of a built-in workload, prepared as a child of the search prepares them."""
    from gpucheck.batch_size.trial import DeviceGauge, Session, load_for, open_cpu_gauge
    from gpucheck.machine.accel import open_device

    accel = open_device(device)
    accel.make_current()
    budget_bytes = units.parse_size(limit, "LIMIT")
    usual = FindBatchSizeOptions(target=workload)
    setup = Setup(workload, usual.inputs, usual.mode, usual.optimizer, usual.dtype, device)
    if accel.is_cpu:
        gauge = open_cpu_gauge(accel)
        return Trials(Session(accel, gauge, load_for(setup, accel.device)), accel.kind, budget_bytes)
    info = accel.memory_info()
    if info is None:
        raise RuntimeError(f"{device} does not say how much of its memory is free")
    on_device = DeviceGauge(accel, *info, budget_bytes)
    on_device.begin()
    return Trials(Session(accel, on_device, load_for(setup, accel.device)), accel.kind, budget_bytes)


def gpucheck(workload: str, limit: str, device: str) -> dict[str, Any]:
    """gpucheck's search; it has answered as its confirmation passed."""
    answered: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Trial) and event.result["purpose"] == "confirm" and event.result["outcome"] == "fits":
            answered.append(time.monotonic())

    found = api.find_batch_size(
        workload,
        memory_limit=limit,
        device=device,
        max_batch_size=CAP,
        time_budget_s=TIME_BUDGET_S,
        on_event=on_event,
    )
    if not answered:
        raise RuntimeError(f"no answer was confirmed: limited by {found.answer and found.answer.limiting_factor}")
    trials = found.answer.trials if found.answer else ()
    return {
        "answer": found.max_batch_size,
        "trials": sum(trial.purpose in ("search", "confirm") for trial in trials),
        "failures": sum(trial.purpose in ("search", "confirm") and trial.outcome != "fits" for trial in trials),
        "answered_monotonic_s": answered[-1],
    }


def lightning(trials: Callable[[int], int], first: int) -> int | None:
    """Lightning's binary search, a trial in each of its training steps; `first` is where it starts."""
    import lightning as pl
    import torch
    from lightning.pytorch.tuner import Tuner

    # Its trial is over before the next begins, so what it says of workers and loggers is beside the point.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    class Samples(torch.utils.data.Dataset[int]):  # type: ignore[misc]  # torch counts as Any
        """More samples than any batch takes: its search ends at the length of the data."""

        def __len__(self) -> int:
            return 4 * CAP

        def __getitem__(self, index: int) -> int:
            return index

    class Module(pl.LightningModule):  # type: ignore[misc]  # lightning may not be there
        """A parameter that makes a step of it, and the trial in the step."""

        def __init__(self) -> None:
            super().__init__()
            self.batch_size = first
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            trials(self.batch_size)
            return self.weight * 0.0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

        def train_dataloader(self) -> torch.utils.data.DataLoader[int]:
            return torch.utils.data.DataLoader(Samples(), batch_size=self.batch_size)

    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        found: int | None = Tuner(trainer).scale_batch_size(
            Module(),
            mode="binsearch",
            steps_per_trial=1,  # a trial has its own steps
            init_val=first,
            max_trials=64,
            margin=0.0,
            max_val=CAP,
        )
        return found


def accelerate(trials: Callable[[int], int], first: int) -> int | None:
    """accelerate's way down from `first`."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=first)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        return trials(batch_size)

    found: int = train()
    return found


PEERS: dict[str, Callable[[Callable[[int], int], int], int | None]] = {
    "lightning": lightning,
    "accelerate": accelerate,
}


def peer(name: str, workload: str, limit: str, first: int, device: str) -> dict[str, Any]:
    """A peer's search over the trial function."""
    trials = opened(workload, limit, device)
    try:
        answer = PEERS[name](trials, first)
    except RuntimeError as error:
        if trials.failures < len(trials.sizes):
            raise
        sys.stderr.write(f"{name}: {error}\n")
        answer = None
    return {
        "answer": answer,
        "trials": len(trials.sizes),
        "failures": trials.failures,
        "answered_monotonic_s": time.monotonic(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=[OURS, *PEERS])
    parser.add_argument("workload")
    parser.add_argument("limit")
    parser.add_argument("--first", type=int, default=2, help="the size that a peer starts from")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.side == OURS:
        found = gpucheck(given.workload, given.limit, given.device)
    else:
        found = peer(given.side, given.workload, given.limit, given.first, given.device)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
