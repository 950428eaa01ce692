"""A lost CUDA context at any call of any command: does the report survive, with every row measured before?

    python benchmarks/lost_context.py RIG... [--only TEXT]... [--seconds 60] [--most N] [--results FILE]

RIG is the command that stands for `python` where torch's CUDA code runs on a simulated runtime which can fail at a
call: it reads SIM_FAIL=name:N:code (from the N-th call of that name on every call fails; SIM_ONCE=1: that one alone)
and appends a line to the file SIM_LOG where that call is reached. Kernels compute nothing there: where gpucheck
compares results, RIG has to switch that off, or commands end before they have begun.

A cell is a command, a call and a moment. The moments are the 1st, 10th, 100th, … call, as far as the command comes,
and one more between the last that is reached and the first that is not: the first call, the middle and the late ones.
`malloc once` is memory that runs out a single time. Each cell is a separate process with a time limit, one after
another: first the first moment of all commands and calls, then the second, and so on. All of them take some hours,
`--only bench.transfer` or `--only memcpy` a part of that. What is seen of each is a line of FILE; a cell that FILE says
holds is not run again.

`run` ends as its program does: where the program itself is aborted, SIGABRT is its status, and no fault of gpucheck's.

A cell holds where the process was not ended by a signal (SIGABRT above all), did not end with 70 and not after its
limit, and where every row, finding and trial that was emitted before the end is in the JSON document, and every finding
in the JUnit file. What was emitted is written down by a witness, a line for each, before it is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# As small as each can be: what counts is which calls are made, not how often. Budgets leave a busy machine time for the
# later ones.
COMMANDS = {
    "bench.transfer": "bench transfer --size 4KiB --time-budget 12s",
    "bench.matmul": "bench matmul --dtype float32 --size 64 --time-budget 8s",
    "bench.bandwidth": "bench bandwidth --size 64KiB --time-budget 8s",
    "bench.overlap": "bench overlap --size 1MiB --time-budget 8s",
    "smoke": "smoke",
    "stress": "stress --duration 2s --fill 20%",
    "memory": "memory",
    "find-batch-size": "find-batch-size mlp --max-batch-size 4 --time-budget 20s --quick",
    "model": "model mlp",
    "run": "run {program}",
    "bench.crossover": "bench crossover --only elementwise --time-budget 8s",
    "bench.all": "bench all --skip crossover --time-budget 15s",
    "status": "status",
    "doctor": "doctor",
    "fleet.check": "fleet check --skip doctor --with memory --within 30s",
}
CALLS = (
    "launch",
    "graph_launch",
    "memcpy",
    "memset",
    "event_create",
    "event_record",
    "event_query",
    "sync",
    "stream_sync",
    "malloc",
    "free",
    "hostalloc",
    "hostfree",
    "capture",
)
# cudaErrorIllegalAddress, which stays; and cudaErrorMemoryAllocation, once.
LOST, OUT_OF_MEMORY = 700, 2
FACTOR, MOST_CALLS = 10, 1_000_000
# From the last call that is reached up to the first that is not: a late one is found in a few tries.
MOST_HALVINGS = 3

PROGRAM = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(64, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 64))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=16, pin_memory=device == "cuda"):
    optimizer.zero_grad()
    net(batch.to(device, non_blocking=True)).square().mean().backward()
    optimizer.step()
"""

# The command line itself, and before each event that must not be lost a line that tells of it.
WITNESS = """
import json, os, sys
from gpucheck.cli import session
from gpucheck.cli.app import main

took = session._Session.emit
log = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def emit(self, event):
    kind = type(event).__name__
    if kind == "Measured":
        key = [event.measurement.name, event.measurement.device.id, str(sorted(event.measurement.case.items()))]
    elif kind in ("Judged", "Skipped"):
        key = [event.finding.id, event.finding.device]
    elif kind == "Trial":
        key = [event.result["batch_size"], event.result["purpose"]]
    else:
        key = None
    took(self, event)
    if key is not None:
        os.write(log, (json.dumps([kind, *key]) + "\\n").encode())

session._Session.emit = emit
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: the command and the call that fails, at which of its calls, and what came of it.

    `reached` is whether the call was made at all; `wrong` says what promise was broken, and is empty where none was.
    """

    command: str
    call: str
    number: int
    reached: bool
    status: int | None
    seconds: float
    rows: int
    wrong: str
    commit: str = ""


Known = Mapping[tuple[str, str, int], Cell]


def main() -> int:
    """Run the cells and print what came of each; 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rig", nargs="+")
    parser.add_argument("--only", action="append", default=[], help="commands or calls, by their names; repeatable")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--most", type=int, default=MOST_CALLS, help="no later call than this")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--commit", default="", help="what each line of the results says it was measured at")
    given = parser.parse_args()
    known = earlier(given.results)
    cells: list[Cell] = []
    waiting = [
        moments(partial(run, given.rig, command, call, given.seconds, known, given.commit), given.most)
        for command, call in pairs(given.only)
    ]
    while waiting:
        for one in list(waiting):
            cell = next(one, None)
            if cell is None:
                waiting.remove(one)
                continue
            cells.append(cell)
            what = cell.wrong or ("holds" if cell.reached else "the call is not made so often")
            told = f"{cell.command:16} {cell.call:12} {cell.number:7} exit {cell.status} {cell.rows:3} rows"
            print(f"{told} {cell.seconds:5.1f} s  {what}", flush=True)
            if given.results and cell not in known.values():
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(cell)) + "\n")
    reached = [cell for cell in cells if cell.reached]
    aborted = sum(cell.status == -signal.SIGABRT and bool(cell.wrong) for cell in cells)
    bugs = sum(cell.status == 70 for cell in cells)
    broken = sum(bool(cell.wrong) for cell in cells)
    print(
        f"{len(reached)} cells where the call failed, {len(cells) - len(reached)} where it was not made: "
        f"{aborted} SIGABRT, {bugs} exit 70, {broken} that do not hold"
    )
    return int(bool(broken))


def pairs(only: Sequence[str]) -> list[tuple[str, str]]:
    """The commands and calls that are asked for; a name of either kind leaves out the others of its kind."""
    calls = (*CALLS, "malloc once")
    known = (*COMMANDS, *calls)
    if unknown := [one for one in only if one not in known]:
        raise SystemExit(f"--only {unknown[0]!r} is unknown: {', '.join(known)}")
    wanted = [one for one in COMMANDS if one in only] or list(COMMANDS)
    return [(command, call) for command in wanted for call in [c for c in calls if c in only] or calls]


def earlier(file: Path | None) -> Known:
    """The cells of an earlier run that hold."""
    told = lines(file) if file else []
    cells = [Cell(**one) for one in told if isinstance(one, dict)]
    return {(one.command, one.call, one.number): one for one in cells if not one.wrong}


def moments(at: Callable[[int], Cell], most: int) -> Iterator[Cell]:
    """The cells of one command and call, from the first call to a late one; `at` makes that of one number."""
    number, last, beyond = 1, 0, 0
    while number <= most and not beyond:
        cell = at(number)
        yield cell
        if cell.reached:
            last, number = number, number * FACTOR
        else:
            beyond = number
    for _ in range(MOST_HALVINGS):
        if not last or beyond - last < 2:
            return
        cell = at((last + beyond) // 2)
        yield cell
        if cell.reached:
            return
        beyond = cell.number


def run(rig: Sequence[str], command: str, call: str, seconds: float, known: Known, commit: str, number: int) -> Cell:
    """One cell, or what is known of it."""
    if (command, call, number) in known:
        return known[command, call, number]
    with tempfile.TemporaryDirectory(prefix="lost-context-") as folder:
        place = Path(folder)
        (place / "program.py").write_text(PROGRAM, encoding="utf-8")
        words = COMMANDS[command].format(program=place / "program.py").split()
        # Behind a program's name everything is the program's.
        files = ["--output", str(place / "out.json"), "--output", str(place / "out.xml")]
        words = [words[0], *files, *words[1:]] if words[0] == "run" else [*words, *files]
        name, _, once = call.partition(" ")
        env = {
            **os.environ,
            "SIM_FAIL": f"{name}:{number}:{OUT_OF_MEMORY if once else LOST}",
            "SIM_LOG": str(place / "reached"),
            "WITNESS": str(place / "witness"),
            **({"SIM_ONCE": "1"} if once else {}),
        }
        began = time.monotonic()
        process = subprocess.Popen(
            [*rig, "-c", WITNESS, *words],
            env=env,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None
        try:
            process.communicate(timeout=seconds)
            status = process.returncode
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
        witnessed = lines(place / "witness")
        ended = 0 if words[0] == "run" and status == -signal.SIGABRT else status  # the program's, told in the report
        wrong = verdict(ended, seconds, witnessed, place / "out.json", place / "out.xml")
        reached = (place / "reached").exists()
        if not wrong and status == 3 and reached and not once:
            wrong = "exit 3: a device that was lost is said not to be there"
        rows = sum(one[0] == "Measured" for one in witnessed)
        took_s = round(time.monotonic() - began, 1)
        return Cell(command, call, number, reached, status, took_s, rows, wrong, commit)


def end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the cell."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def lines(file: Path) -> list[Any]:
    """What the witness wrote down, or an earlier run."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def verdict(status: int | None, limit_s: float, witnessed: Sequence[list[object]], document: Path, suite: Path) -> str:
    """What promise a cell broke; empty where it kept them all."""
    if status is None:
        return f"did not end within {limit_s:.0f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if status == 70:
        return "exit 70"
    if not document.exists() or not suite.exists():
        return "no report" if not document.exists() else "no JUnit"
    report = json.loads(document.read_text(encoding="utf-8"))
    rows: set[tuple[object, ...]] = {
        (one["name"], one["device"]["id"], str(sorted(one["case"].items()))) for one in report["measurements"]
    }
    found: set[tuple[object, ...]] = {(one["id"], one["device"]) for one in report["findings"]}
    searched = report["results"].get("find_batch_size") or {}
    trials: set[tuple[object, ...]] = {(one["batch_size"], one["purpose"]) for one in searched.get("trials", ())}
    known: dict[object, set[tuple[object, ...]]] = {
        "Measured": {tuple(row) for row in rows},
        "Judged": found,
        "Skipped": found,
        "Trial": trials,
    }
    for kind, *key in witnessed:
        if tuple(key) not in known[kind]:
            return f"{kind} {key} is not in the report"
    cases = [one.get("name") or "" for one in ElementTree.parse(suite).iter("testcase")]
    if missing := sorted({str(one) for one, _ in found} - set(cases)):
        return f"{missing[0]} is not in the JUnit file"
    return ""


if __name__ == "__main__":
    sys.exit(main())
