#!/usr/bin/env python3
"""Run everything that needs a real GPU, and keep what came out.

On a CUDA machine with torch, typer, rich, psutil and nvidia-ml-py, nothing installed and no network:

    PYTHONPATH=src python3 scripts/gpu_acceptance.py [FOLDER] [--archive FILE.tar.gz]
    PYTHONPATH=src python3 scripts/gpu_acceptance.py --tests [FOLDER] [--archive FILE.tar.gz]

It runs every command with `--json` and once as a person sees it, and the short ones of the tests marked `gpu`, and
leaves the documents and a summary (summary.md) in FOLDER (default: benchmarks/results/<gpu>-<date>). With `--tests` it
runs all of these tests instead, most of which take the time of whole commands. Either ends within 8 minutes: each step
has its own limit, and a step that overruns or fails does not cost the others. Exit status 1 when any step failed.

On torch's CUDA code over a simulated runtime give `--simulated`. Kernels compute nothing there: comparisons of results
that fail are listed as the simulation's own. What counts is that each step ends by itself, with a document, neither by
a signal nor by a bug of gpucheck (exit 70), in four times the limits; the tests, which compare results, and the
benchmarks, which compare rates, are left out.

What tells most in the least time comes first: nvidia-smi, devices, doctor, smoke, memory, then the tests of events,
holds and graphs. The summary and the archive, one file with all that FOLDER holds, are written anew after each step:
where the run breaks off, what was done until then is in them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOTAL_LIMIT_S = 8 * 60.0
# What a first start may take where torch's files are not in the page cache yet: 20 s were seen on a cold machine.
COLD_S = 40.0
# A simulated device's work is the CPU's own, on a machine that may be small: limits and all are so much longer.
SIMULATED_LONGER = 4.0
# A command that is told to end ends its children, which takes it a second each at most.
END_S = 5.0


@dataclass(frozen=True)
class Step:
    """A command to run: its arguments, the exit statuses that are right, and its share of the time.

    A first argument that is a file is run by itself; it prints no document.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    expected: tuple[int, ...] = (0,)

    @property
    def is_program(self) -> bool:
        """Whether this is a program of its own, not a command of gpucheck."""
        return self.arguments[0].endswith(".py")

    @property
    def told(self) -> str:
        """What to type to run it again."""
        return f"{'python' if self.is_program else 'gpucheck'} {' '.join(self.arguments)}"


@dataclass(frozen=True)
class Outcome:
    """What a step came to. `document` is None where it printed none."""

    step: Step
    code: int | None
    seconds: float
    document: dict[str, Any] | None
    screen: str
    stderr: str

    @property
    def passed(self) -> bool:
        return self.code in self.step.expected and (self.document is not None or self.step.is_program)

    @property
    def ended_well(self) -> bool:
        """Whether it came to its own end, whatever it found: no signal, no limit, no bug of gpucheck."""
        by_itself = self.code is not None and 0 <= self.code < SIGNALLED and self.code != BUG
        return by_itself and (self.document is not None or self.step.is_program)

    @property
    def failed(self) -> list[str]:
        """What failed in its document, each by its id and in words."""
        findings = (self.document or {}).get("findings", [])
        return [f"`{one['id']}`: {one['title']}" for one in findings if one["verdict"] == "fail"]


# The exit status of a bug (gpucheck/errors.py), and from where on shells report signals.
BUG, SIGNALLED = 70, 128

# The quick truths. The doctor comes before all that works on a card: it loads those that are free.
FIRST = (
    Step("devices", ("devices", "--processes"), 45),
    Step("doctor", ("doctor",), 60),
    Step("smoke", ("smoke", "--require", "cuda", "--min-devices", "1"), 60),
    Step("memory", ("memory", "--device", "cuda"), COLD_S),
)
STEPS = (
    *FIRST,
    Step("bench-transfer", ("bench", "transfer", "--device", "cuda"), 45),
    Step("bench-transfer-sweep", ("bench", "transfer", "--sweep", "--only", "copies", "--time-budget", "6s"), COLD_S),
    Step("bench-bandwidth", ("bench", "bandwidth", "--device", "cuda", "--time-budget", "5s"), COLD_S),
    Step("bench-matmul", ("bench", "matmul", "--device", "cuda", "--time-budget", "14s"), 45),
    Step("bench-matmul-rates", ("bench", "matmul", "--device", "cuda", "--dtype", "bfloat16"), 75),
    Step("bench-matmul-search", ("bench", "matmul", "--search", "--dtype", "bfloat16", "--time-budget", "14s"), COLD_S),
    Step("bench-overlap", ("bench", "overlap", "--device", "cuda", "--time-budget", "8s"), COLD_S),
    Step("bench-crossover", ("bench", "crossover", "--device", "cuda", "--time-budget", "12s"), 45),
    Step("bench-all", ("bench", "all", "--only", "bandwidth", "--only", "matmul", "--time-budget", "6s"), COLD_S),
    Step("stress", ("stress", "--duration", "10s", "--fill", "50%"), COLD_S),
    Step("run", ("run", "--trace", "2", "tests/programs/dry/cnn.py"), COLD_S),
    # A limit keeps the search short; the whole card is the last step.
    Step("find-batch-size-8GiB", ("find-batch-size", "--device", "cuda", "--memory-limit", "8GiB"), 60),
    # The benchmarks that hold gpucheck against something else: 1 where a claim is not met, 4 where noise hides it.
    Step("copy-reference", ("benchmarks/copy_reference.py", "--json"), 60),
    Step("telemetry-cost", ("benchmarks/telemetry_cost.py",), 75, (0, 4)),
    # Exit 4 where time runs out before any size passes.
    Step("find-batch-size-whole-card", ("find-batch-size", "--device", "cuda", "--time-budget", "30s"), 60, (0, 4)),
)
# The tests that fit into what the steps leave of the time, and all of them.
SHORT, ALL = "gpu and not long", "gpu"
# Of the short ones those that all figures stand on: the device's clock, holds and graphs. They have so long.
BASE, BASE_LIMIT_S = ("tests/gpu/test_timing_gpu.py", "tests/gpu/test_accel_gpu.py"), 60.0


def run(command: list[str], limit_s: float, **variables: str) -> tuple[int | None, str, str]:
    """The exit status (None when it overran), stdout and stderr. What it started ends with it."""
    # What stands there already may be needed to run at all.
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "110", **variables}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None, *process.communicate()
        except BaseException:
            _end(process)
            raise
    return process.returncode, out, err


def _end(process: subprocess.Popen[str]) -> None:
    """End the process with all that it started: a command ends its own children at the first signal, then is killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def perform(step: Step, folder: Path, deadline: float) -> Outcome:
    """Run one step; its document and its screen are written to `folder`."""
    limit_s = min(step.limit_s, deadline - time.monotonic())
    began = time.monotonic()
    if limit_s <= 1:
        return Outcome(step, None, 0.0, None, "", "no time left")
    if step.is_program:
        code, out, err = run([sys.executable, *step.arguments], limit_s)
        (folder / f"{step.name}.txt").write_text(out + err, encoding="utf-8")
        return Outcome(step, code, time.monotonic() - began, None, f"\n```\n{out.strip()}\n```", err)
    markdown = folder / f"{step.name}.md"
    # What stands behind a program of the user's is the program's: the options come right after the command.
    words = 2 if step.arguments[0] == "bench" else 1
    given = [*step.arguments[:words], "--json", "--output", str(markdown), *step.arguments[words:]]
    code, out, err = run([sys.executable, "-m", "gpucheck", *given], limit_s)
    if step.arguments[0] == "run":  # stdout is the program's
        out = err[max(err.rfind('\n{\n  "schema"'), 0) :]
    try:
        document: dict[str, Any] | None = json.loads(out)
    except ValueError:
        document = None
    (folder / f"{step.name}.json").write_text(out, encoding="utf-8")
    (folder / f"{step.name}.stderr.txt").write_text(err, encoding="utf-8")
    screen = markdown.read_text(encoding="utf-8") if markdown.exists() else ""
    return Outcome(step, code, time.monotonic() - began, document, screen, err)


@dataclass(frozen=True)
class Tests:
    """What some tests came to: which, their exit status (None when they overran) and pytest's last line."""

    what: str
    code: int | None
    last: str


def gpu_tests(folder: Path, deadline: float, chosen: str, name: str, paths: tuple[str, ...] = ()) -> Tests:
    """Run the `chosen` tests of these files (all of them by default), which fail where there is no GPU."""
    limit_s = max(deadline - time.monotonic(), 1.0)
    # Their folder alone: other tests may import what such a machine does not have. By name: what overran is then seen.
    where = paths or ("tests/gpu", *(f"--ignore={path}" for path in BASE if chosen == SHORT))
    pytest = [sys.executable, "-m", "pytest", "-v", "-m", chosen, "-rs", "--durations=10", *where]
    code, out, err = run(pytest, limit_s, GPUCHECK_REQUIRE_GPU="1")
    (folder / f"{name}.txt").write_text(out + err, encoding="utf-8")
    last = out.strip().splitlines()[-1] if out.strip() else err[-300:]
    return Tests(f"{' '.join(paths) or 'tests/gpu'} (`-m '{chosen}'`)", code, last)


def nvidia_smi(folder: Path) -> None:
    """What NVIDIA's own tool says, for whoever holds ours against it; a machine without it has none."""
    try:
        _, out, err = run(["nvidia-smi", "-q"], COLD_S)
    except OSError as error:
        out, err = "", f"nvidia-smi cannot be started: {error.strerror}\n"
    (folder / "nvidia-smi-q.txt").write_text(out + err, encoding="utf-8")


def warm_files() -> float:
    """Import torch once: from then on its files come from the page cache. Returns the seconds that it took."""
    began = time.monotonic()
    run([sys.executable, "-c", "import torch"], 2 * COLD_S)
    return time.monotonic() - began


def pack(folder: Path, archive: Path | None) -> None:
    """All files of the folder as one archive, put in the place of the last one when it is whole."""
    if archive is None:
        return
    whole = archive.with_name(f".{archive.name}.part")
    with tarfile.open(whole, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.resolve() not in (archive.resolve(), whole.resolve()):
                packed.add(path, f"{folder.name}/{path.relative_to(folder)}")
    whole.replace(archive)


def simulated(outcomes: list[Outcome]) -> list[str]:
    """The lines about a simulated runtime: which steps did not end well, and what fails there by its nature."""
    bad = [f"- {one.step.name}: {'overran' if one.code is None else f'exit {one.code}'}" for one in outcomes
           if not one.ended_well]  # fmt: skip
    lines = ["Simulated CUDA runtime: its kernels compute nothing, and its rates, caches and clocks mean nothing.", ""]
    lines += ["Steps that did not come to their own end:", "", *bad] if bad else ["Every step came to its own end."]
    told = [f"- {one.step.name}: {text}" for one in outcomes for text in one.failed]
    return [*lines, "", *(["The simulation's own failures:", "", *told, ""] if told else [])]


def summary(outcomes: list[Outcome], tests: list[Tests], name: str, *, simulation: bool = False) -> str:
    """The Markdown page: what ran, how it ended, how long it took, and each command's own page."""
    lines = [f"# GPU acceptance: {name}", ""]
    lines += simulated(outcomes) if simulation else []
    lines += [f"Tests {one.what}: exit {one.code}, {one.last}" for one in tests]
    lines += [""] if tests else []
    lines += ["| step | command | exit | expected | verdict | seconds |", "| :-- | :-- | --: | --: | :-- | --: |"]
    for outcome in outcomes:
        expected = "/".join(map(str, outcome.step.expected))
        missing = "–" if outcome.step.is_program else "no document"
        verdict = (outcome.document or {}).get("summary", {}).get("verdict", missing)
        code = "overran" if outcome.code is None else outcome.code
        command = f"`{outcome.step.told}`"
        lines.append(f"| {outcome.step.name} | {command} | {code} | {expected} | {verdict} | {outcome.seconds:.1f} |")
    for outcome in outcomes:
        lines += ["", f"## {outcome.step.name}", "", outcome.screen.partition("\n")[2].strip()]
        if not outcome.passed:
            lines += ["", "```", outcome.stderr[-2000:], "```"]
    return "\n".join(lines) + "\n"


def gpu_name() -> str | None:
    """The first CUDA device that `gpucheck devices` lists, or None."""
    _, out, _ = run([sys.executable, "-m", "gpucheck", "devices", "--json"], COLD_S)
    try:
        devices = json.loads(out)["facts"]["devices"]
    except (ValueError, KeyError):
        return None
    return next((device["name"] for device in devices if device["cuda_index"] is not None), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--tests", action="store_true", help="run all the tests marked gpu, and no command")
    parser.add_argument("--simulated", action="store_true", help="the runtime is simulated: results are not judged")
    parser.add_argument("--archive", type=Path, metavar="FILE.tar.gz", help="also pack all that it leaves into this")
    given = parser.parse_args()
    deadline = time.monotonic() + TOTAL_LIMIT_S * (SIMULATED_LONGER if given.simulated else 1.0)
    print(f"torch imported in {warm_files():.1f} s", flush=True)
    name = gpu_name()
    if name is None:
        print("gpu_acceptance: gpucheck devices lists no CUDA device here", file=sys.stderr)
        return 3
    today = datetime.date.today().isoformat()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    folder = (given.folder or ROOT / "benchmarks" / "results" / f"{slug}-{today}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.archive is not None:
        given.archive.parent.mkdir(parents=True, exist_ok=True)
    if given.tests:
        tests = gpu_tests(folder, deadline, ALL, "all-tests")
        pack(folder, given.archive)
        print(f"tests: exit {tests.code}: {tests.last}\nwritten to {folder}")
        return 0 if tests.code == 0 else 1
    return everything(folder, deadline, f"{name}, {today}", given.archive, simulation=given.simulated)


def everything(folder: Path, deadline: float, name: str, archive: Path | None, *, simulation: bool = False) -> int:
    """Run all steps and the short tests; 1 where any failed. The summary and the archive hold what is done so far."""
    outcomes: list[Outcome] = []
    tests: list[Tests] = []

    def told(line: str) -> None:
        print(line, flush=True)
        page = summary(outcomes, tests, name, simulation=simulation)
        (folder / "summary.md").write_text(page, encoding="utf-8")
        pack(folder, archive)

    nvidia_smi(folder)
    # Rates that are held against a reference's mean nothing there.
    for step in (one for one in STEPS if not (simulation and one.is_program)):
        limit_s = step.limit_s * (SIMULATED_LONGER if simulation else 1.0)
        outcomes.append(perform(replace(step, limit_s=limit_s), folder, deadline))
        told(f"{step.name}: exit {outcomes[-1].code}, {outcomes[-1].seconds:.1f} s")
        if step is FIRST[-1] and not simulation:
            base = gpu_tests(folder, min(deadline, time.monotonic() + BASE_LIMIT_S), SHORT, "tests-of-the-clock", BASE)
            tests.append(base)
            told(f"tests of the clock: exit {base.code}: {base.last}")
    if simulation:
        print(f"written to {folder}")
        return 0 if all(outcome.ended_well for outcome in outcomes) else 1
    # Last, with what time is left: a test that fails says less than a command that does.
    tests.append(gpu_tests(folder, deadline, SHORT, "tests"))
    told(f"tests: exit {tests[-1].code}: {tests[-1].last}")
    print(f"written to {folder}")
    return 0 if all(one.code == 0 for one in tests) and all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
