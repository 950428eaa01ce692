"""What `gpucheck run` costs a program: a wrapped call, and a training step of some 20 ms.

    python benchmarks/run_overhead.py [--pairs N] [--json]

Steps with and without are taken in random order, in pairs; beside them pairs that are alike (A/A), which tell what the
machine's own noise comes to. On the CPU: its tensors are what most wrapped calls meet on any machine, and a copy or a
wait of a device, which is counted, is tried with the rule pointed at some of these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from gpucheck.program.run import counters, hooks, recorder

CALLS = 20_000
ROUNDS = 15


def main() -> int:
    """Print the figures; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    hooks.begin(bytearray(counters.SIZE), ".")
    calls = calls_ns()
    step = steps(given.pairs)
    hooks.uninstall()
    calls["send and its wait"] = exchange_ns()
    told = {"calls_ns": calls, **step}
    if given.json:
        print(json.dumps(told, indent=1))
    else:
        for name, ns in calls.items():
            print(f"{name:24} {ns:8.0f} ns more a call")
        print(f"step {step['step_ms']:.1f} ms, {step['wrapped_calls']} wrapped calls")
        print(f"with / without: {interval(step['ratio'])}   A/A: {interval(step['a_a'])}")
    return int(max(calls.values()) > 1500 or step["ratio"][1] > 1.03)


def interval(values: list[float]) -> str:
    """`1.012 (1.004 to 1.020)`."""
    return f"{values[1]:.3f} ({values[0]:.3f} to {values[2]:.3f})"


def calls_ns() -> dict[str, float]:
    """Nanoseconds that a call takes longer than without, by what is called: the median of rounds in random order."""
    number, moved = torch.ones(()), torch.ones(16)
    counted, turns = torch.ones(()), itertools.cycle([torch.ones(16), torch.ones(16)])
    work: dict[str, Callable[[], Any]] = {
        "item": lambda: number.item(),
        "bool": lambda: bool(number),
        "float": lambda: float(number),
        "to, nothing to do": lambda: moved.to("cpu"),
        "cpu": lambda: moved.cpu(),
        "copy_": lambda: moved.copy_(moved),
        "item, counted": lambda: counted.item(),
        # By turns: the same again is looked at more closely.
        "to, counted": lambda: next(turns).to(torch.float64),
    }
    rule = hooks.device_of
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, call in random.sample(sorted(work.items()), len(work)):
            took = {}
            for installed in random.sample((True, False), 2):
                switch(installed)
                if name.endswith("counted"):
                    hooks.device_of = lambda tensor: (
                        "cuda" if tensor is counted or tensor.dtype is torch.float64 else None
                    )
                took[installed] = timed(call)
                hooks.device_of = rule
            found[name].append((took[True] - took[False]) / CALLS)
    return {name: statistics.median(values) for name, values in found.items()}


def exchange_ns() -> float:
    """Nanoseconds that a send and the wait for it take longer in a rank of a job, beside a group that does nothing."""

    class Work:
        def wait(self) -> bool:
            return True

        is_completed = get_future = wait

    class Group:
        group_name = "0"

        def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
            return Work()

    group, tensors, took = Group(), [torch.ones(1)], []
    for installed in (False, True):
        if installed:
            recorder.Exchanges().install(types.SimpleNamespace(ProcessGroup=Group, Work=Work))
        took.append(min(timed(lambda: group.send(tensors, 0, 0).wait()) for _ in range(ROUNDS)))
    return (took[1] - took[0]) / CALLS


def switch(installed: bool) -> None:
    """Put what measures in its place, or take it away."""
    hooks.uninstall()
    if installed:
        hooks.install()


def timed(call: Callable[[], Any]) -> float:
    """Nanoseconds of the process for so many calls: what others do on the machine counts least there."""
    for _ in range(100):
        call()
    began = time.process_time_ns()
    for _ in range(CALLS):
        call()
    return time.process_time_ns() - began


def steps(pairs: int) -> dict[str, Any]:
    """A transformer's training step with and without, and without twice."""
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(torch.randn(4_000, 16, 256).repeat(4, 1, 1), batch_size=8)
    batches = iter(data)

    def step() -> float:
        began = time.process_time_ns()
        batch = next(batches).to("cpu")
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(10):
            loss.item()
        if bool(loss > 1e9):
            raise SystemExit("the loss has exploded")
        return (time.process_time_ns() - began) / 1e6

    for _ in range(5):
        step()
    ratios, alike, plain = [], [], []
    for _ in range(pairs):
        took = {}
        for which in random.sample(("with", "without", "again"), 3):
            switch(which == "with")
            step()
            took[which] = statistics.median(step() for _ in range(5))
        ratios.append(took["with"] / took["without"])
        alike.append(took["again"] / took["without"])
        plain.append(took["without"])
    # AdamW reads a counter of its own for each parameter.
    calls = len(optimizer.param_groups[0]["params"]) + 12
    return {
        "step_ms": statistics.median(plain),
        "wrapped_calls": calls,
        "ratio": _middle(ratios),
        "a_a": _middle(alike),
    }


def _middle(values: list[float]) -> list[float]:
    """The median between the ends of its interval of 95 %, by resampling."""
    middles = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(2000))
    return [middles[50], statistics.median(values), middles[-50]]


if __name__ == "__main__":
    sys.exit(main())
