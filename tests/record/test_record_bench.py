"""What the benchmarks write, held against the record."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from failing_card import ECC, Plan
from recorded import FORMS, Case, cut, failing, hold, threads, wrote

from gpucheck.bench import devices
from gpucheck.bench.collective import work as collective
from gpucheck.bench.collective.judge import RankOutcome
from gpucheck.cli.app import main
from gpucheck.machine.child import ChildResult

__all__ = ["threads"]
ECC_ERROR = getattr(torch, "AcceleratorError", RuntimeError)(ECC)

TRANSFER = "bench transfer --only copies --size 64KiB --size 128KiB --time-budget 10m --device"
BANDWIDTH = "bench bandwidth --size 64KiB --time-budget 10m --device"
MATMUL = "bench matmul --dtype float32 --size 32 --size 64 --time-budget 10m --device"
OVERLAP = "bench overlap --size 1MiB --time-budget 10m --device"
CROSSOVER = "bench crossover --only elementwise --time-budget 10m --device"
ALL = "bench all --only transfer --only bandwidth --only matmul --time-budget 10m --device"


def broken(line: str, after: int = 1) -> list[Case]:
    """The same line cut by a person, by another process, by the device, by a bug of ours and by want of memory."""
    json = f"{line} cuda:0 --quiet --json"
    return [
        Case(f"{line} cuda:0", cut("memory", after), note="cut by Ctrl-C", forms=("json",)),
        Case(json, cut("memory", after, signal.SIGTERM), note="terminated"),
        Case(json, failing("memory", after, ECC_ERROR, poisons=True), note="the device fails"),
        Case(f"{line} all --quiet --json", failing("memory", after, ECC_ERROR, poisons=True), note="one of two fails"),
        Case(json, failing("memory", after, IndexError("of ours")), note="a bug"),
        Case(json, failing("memory", after, MemoryError()), note="no memory"),
        Case(json, failing("open", 0, ECC_ERROR), note="does not open"),
    ]


def usage(name: str) -> list[Case]:
    return [
        Case(f"bench {name} --time-budget soon"),
        Case(f"bench {name} --device cuda:97"),
        Case(f"bench {name} --device warp"),
        Case(f"bench {name} --output x.pdf"),
    ]


def runs_of(line: str) -> list[Case]:
    """The same line in two processes, their rows side by side; again with a threshold for both together."""
    gate = {TRANSFER: " --min-gbps 1e9", BANDWIDTH: " --min-gbps 1e9", MATMUL: " --min-tflops 1e9"}.get(line, "")
    return [
        Case(f"{line} cuda:0 --runs 2", forms=("json",)),
        *([Case(f"{line} cuda:0 --runs 2{gate} --json --quiet")] if gate else []),
    ]


def in_process(patches: pytest.MonkeyPatch) -> None:
    """Let what `--runs` starts in a fresh process run in this one, on cards that are planned anew."""

    def run(argv: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None, **_: Any) -> ChildResult:
        words = list(argv[3:])
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as inner, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            inner.setattr(sys, "argv", ["gpucheck", *words])
            worlds.settle(inner, Plan(), Plan())
            code = main(words)
        return ChildResult(code, out.getvalue(), err.getvalue(), False, False, 1.0)

    patches.setattr(devices.repeated, "__kwdefaults__", {**(devices.repeated.__kwdefaults__ or {}), "run_child": run})


class Ranks:
    """Two ranks on the host whose figures are the same every time; all-to-all hangs."""

    place, world = None, 2

    def __init__(self, options: object, ids: Sequence[str], **_: Any) -> None:
        assert len(ids) == self.world

    def ask(self, request: Mapping[str, Any], limit_s: float) -> list[RankOutcome]:
        if "begin" in request:
            ready = {"room": 2**30, "device": {"id": request["begin"], "uuid": None, "name": "CPU"}, "host": "node1"}
            return [RankOutcome(rank, {**ready, "version": None, "settings": {}}) for rank in range(self.world)]
        if request["collective"] == "all-to-all":
            return [
                RankOutcome(rank, None, "its process did not answer within 30 s", "calling", "late") for rank in (0, 1)
            ]
        seconds = [0.02 * (1 + place % 3 / 100) for place in range(20)]
        told = {"started": "", "calls": 10, "began_s": [0.0] * 20, "samples_s": seconds, "verified_elements": 4}
        line = {**told, "wrong_elements": 0, "memory": {}}
        return [RankOutcome(rank, line, "", "timing") for rank in (0, 1)]

    def stop(self) -> None:
        pass


COLLECTIVE = "bench collective --only all-reduce --size 64KiB --size 1MiB --device"
CASES = {
    "bench_collective": [
        Case(f"{COLLECTIVE} cpu", forms=FORMS),
        Case(f"{COLLECTIVE} cpu --only all-to-all --json --quiet", note="one hangs"),
        Case(f"{COLLECTIVE} cpu --min-busbw 1", note="a gate that decides nothing here"),
        Case(f"{COLLECTIVE} cuda:0"),
        *usage("collective"),
        Case("bench collective --only nonsense"),
        Case("bench collective --ranks 1"),
    ],
    "bench_transfer": [
        Case(f"{TRANSFER} cuda:0", forms=FORMS),
        Case(f"{TRANSFER} cpu"),
        Case(f"{TRANSFER} all --json --quiet"),
        Case(f"{TRANSFER} cuda:0 --min-gbps 1e9", note="a gate that is missed", forms=("json",)),
        Case(
            f"{TRANSFER} cuda:0 --min-gbps 1e-9 --json --quiet",
            failing("memory", 1, ECC_ERROR),
            note="a gate on rows from before a fault",
        ),
        *broken(TRANSFER),
        *runs_of(TRANSFER),
        *usage("transfer"),
        Case("bench transfer --only nonsense"),
        Case("bench transfer --direction up"),
    ],
    "bench_bandwidth": [
        Case(f"{BANDWIDTH} cuda:0", forms=FORMS),
        Case(f"{BANDWIDTH} cuda:0 --min-gbps 1e9", note="a gate that is missed", forms=("xml",)),
        Case(
            f"{BANDWIDTH} cuda:0 --min-gbps 1e-9 --json --quiet",
            failing("memory", 1, ECC_ERROR),
            note="a gate on rows from before a fault",
        ),
        Case(
            f"{BANDWIDTH} cuda:0",
            failing("memory", 1, ECC_ERROR, poisons=True),
            note="the device fails, in every form",
            forms=FORMS,
        ),
        *broken(BANDWIDTH),
        *runs_of(BANDWIDTH),
        *usage("bandwidth"),
        Case("bench bandwidth --size none"),
    ],
    "bench_matmul": [
        Case(f"{MATMUL} cuda:0", forms=FORMS),
        Case(f"{MATMUL} cpu"),
        Case(f"{MATMUL} all --json --quiet"),
        Case(f"{MATMUL} cuda:0 --min-tflops 1e9", note="a gate that is missed", forms=("json",)),
        Case(
            f"{MATMUL} cuda:0 --min-tflops 1e-9 --json --quiet",
            failing("memory", 1, ECC_ERROR),
            note="a gate on rows from before a fault",
        ),
        *broken(MATMUL),
        *runs_of(MATMUL),
        *usage("matmul"),
        Case("bench matmul --dtype float3"),
        Case("bench matmul --search --cold"),
    ],
    "bench_overlap": [
        Case(f"{OVERLAP} cuda:0", forms=FORMS),
        Case(f"{OVERLAP} cpu", forms=("json",)),
        *broken(OVERLAP, 3)[1:3],
        *runs_of(OVERLAP),
        *usage("overlap"),
    ],
    "bench_crossover": [
        Case(f"{CROSSOVER} cuda:0", forms=FORMS),
        Case(f"{CROSSOVER} cpu", forms=("json",)),
        *runs_of(CROSSOVER),
        *usage("crossover"),
        Case("bench crossover --only nonsense"),
    ],
    "bench_all": [
        Case(f"{ALL} cuda:0", forms=FORMS),
        *runs_of(ALL),
        *usage("all"),
        Case("bench all --only nonsense"),
        Case("bench"),
        Case("bench nonsense"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_writes_what_is_recorded(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    found = {}
    for place, case in enumerate(CASES[name]):
        folder = tmp_path / str(place)
        folder.mkdir()
        with monkeypatch.context() as patches:
            worlds.settle(patches, *case.plans())
            in_process(patches)
            patches.setattr(collective, "Meeting", Ranks)
            found[case.title] = wrote(case, capsys, patches, folder)
    hold(name, found, write=request.config.getoption("--write-record", False))
