"""`gpucheck doctor` and its peers before the same faults, and in turns on a machine without a GPU."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import doctor_faults
from doctor_faults import CONTROL, FAULTS, Fault
from intervals import interval_of_median

ROOT = Path(__file__).resolve().parents[1]
OURS = "gpucheck"
IMPORT = "import torch"
# The arguments of the interpreter that is diagnosed; ours is asked from outside.
PEERS = {
    "collect_env": ("-m", "torch.utils.collect_env"),
    "cuda-doctor": ("-m", "cuda_doctor", "diagnose", "--verbose"),
    "env-doctor": ("-m", "env_doctor.cli", "check"),
}
VERSIONS = {"cuda-doctor": "0.2.0", "env-doctor": "0.3.5"}
# A tool that takes longer has hung; torch is given half of it by ours.
LIMIT_S = 60.0
# What doctor may take beside one import of torch.
BESIDE_IMPORT_S = 0.6
FEWEST_ROUNDS = 7


class CannotCompare(Exception):
    """The peers, or the machine, are not what the comparison needs: the message says what."""


@dataclass(frozen=True)
class Answer:
    """What a tool said, and whether that names the cause.

    `named` where its report does, `warned` where only a warning does that torch itself wrote to stderr meanwhile;
    `hung` where it had not ended within the limit.
    """

    named: bool
    warned: bool
    hung: bool
    said: str
    beside: str


@dataclass(frozen=True)
class Row:
    """One fault with each tool's answer."""

    fault: Fault
    answers: dict[str, Answer]


@dataclass(frozen=True)
class Timed:
    """Another's time over ours: the median of the rounds with its 95 % interval, and both medians in seconds."""

    peer: str
    ours_s: float
    peer_s: float
    ratio: float
    low: float
    high: float


def tools(python: str) -> dict[str, list[str]]:
    """The command line of each tool for the torch of `python`."""
    ours = [
        sys.executable,
        "-m",
        "gpucheck",
        "doctor",
        "--quiet",
        "--timeout",
        f"{LIMIT_S / 2:.0f}s",
        "--python",
        python,
    ]
    return {OURS: ours, **{name: [python, *arguments] for name, arguments in PEERS.items()}}


def torch_of(python: str) -> Path:
    """The folder of the torch of `python`. Raises CannotCompare where that is no CUDA build or a peer is missing."""
    program = (
        "import importlib.metadata as m, torch; print(torch.version.cuda); print(torch.__path__[0]);"
        f"print(*(m.version(name) for name in {tuple(VERSIONS)!r}))"
    )
    ended = subprocess.run([python, "-W", "ignore", "-c", program], capture_output=True, text=True)
    wanted = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:]
        raise CannotCompare(f"--peer-python {python} has to have torch, {wanted} and nvidia-ml-py: {' '.join(last)}")
    cuda, folder, versions = ended.stdout.splitlines()[-3:]
    if cuda == "None":
        raise CannotCompare(f"--peer-python {python} has a torch without CUDA: it never asks a driver")
    if versions.split() != list(VERSIONS.values()):
        raise CannotCompare(f"--peer-python {python} has {versions}; the comparison is with {wanted}")
    return Path(folder)


def ask(command: Sequence[str], environment: dict[str, str], here: Path, limit_s: float) -> tuple[str, str, bool]:
    """What a tool says on stdout and on stderr, and whether it had to be ended."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as beside:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=beside,
            start_new_session=True,
        )
        hung = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            # Its children too: what asked a driver that does not answer.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0), beside.seek(0)
        return said.read().decode("utf-8", "replace"), beside.read().decode("utf-8", "replace"), hung


def environment_of(tool: str, environment: dict[str, str]) -> dict[str, str]:
    """Ours runs from this checkout, behind what the fault puts on the path."""
    if tool != OURS:
        return environment
    there = [environment["PYTHONPATH"]] if "PYTHONPATH" in environment else []
    return {**environment, "PYTHONPATH": os.pathsep.join((*there, str(ROOT / "src")))}


def names(words: str, said: str, control: str) -> bool:
    """Whether an answer has the words, and would not have had them without the fault.

    What stands in the answer to a machine without a fault too names nothing: some list whatever could be wrong.
    """
    usual = set(_sentences(control))
    return any(re.search(words, one, re.IGNORECASE) for one in _sentences(said) if one not in usual)


def _sentences(said: str) -> list[str]:
    """Lines, cut where a sentence ends; nobody wraps his lines here, and colours and boxes are no part of them."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[\u2500-\u257f]", " ", said)
    cut = (one for line in plain.splitlines() for one in re.split(r"(?<=\.)\s(?=[A-Z])", line))
    return [" ".join(one.split()) for one in cut if one.strip()]


def compare(python: str, chosen: Sequence[Fault] = FAULTS, tell: bool = True, keep: Path | None = None) -> list[Row]:
    """Each fault before each tool; `keep` is a folder for what each of them said."""
    own = torch_of(python)
    found = []
    with tempfile.TemporaryDirectory(prefix="doctor-peers-") as scratch:
        folder = Path(scratch)
        doctor_faults.compile_fakes(folder)
        usual = _answers(CONTROL, folder / "control", folder, python, own, {})
        _keep(CONTROL, usual, keep)
        for number, fault in enumerate(chosen):
            row = Row(fault, _answers(fault, folder / str(number), folder, python, own, usual))
            _keep(fault, row.answers, keep)
            found.append(row)
            if tell:
                print(line(row), flush=True)
    return found


def _keep(fault: Fault, answers: dict[str, Answer], folder: Path | None) -> None:
    if folder is None:
        return
    for tool, answer in answers.items():
        (folder / f"{fault.name} - {tool}.txt").write_text(f"{answer.said}\n--- on stderr ---\n{answer.beside}")


def _answers(
    fault: Fault, folder: Path, fakes: Path, python: str, own: Path, usual: dict[str, Answer]
) -> dict[str, Answer]:
    environment, here = doctor_faults.build(fault, folder, fakes, python, own)
    answers = {}
    for tool, command in tools(python).items():
        said, beside, hung = ask(command, environment_of(tool, environment), here, LIMIT_S)
        without = usual.get(tool, Answer(False, False, False, "", ""))
        named = names(fault.words, said, without.said)
        warned = not named and names(fault.words, beside, without.beside)
        answers[tool] = Answer(named, warned, hung, said, beside)
    return answers


def line(row: Row) -> str:
    """A row of the table."""
    cells = [cell(answer) for answer in row.answers.values()]
    return f"{row.fault.name:57}" + "".join(f"{cell:>14}" for cell in cells)


def head() -> str:
    """The table's head."""
    return f"{'fault':57}" + "".join(f"{tool:>14}" for tool in (OURS, *PEERS))


def cell(answer: Answer) -> str:
    """What the table says of an answer."""
    told = "named" if answer.named else "(torch)" if answer.warned else "-"
    return f"{told}, hung" if answer.hung else told


def times(python: str, rounds: int) -> list[Timed]:
    """Ours against each peer on this machine as it is, in turns; and against one import of torch, which all need."""
    commands = tools(python) | {IMPORT: [python, "-W", "ignore", "-c", "import torch"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="doctor-peers-") as scratch:
        environment, here = doctor_faults.build(CONTROL, Path(scratch), Path(scratch), python, Path(scratch))
        for turn in range(rounds + 1):  # the first fills the caches
            names_in_turn = list(commands)
            for name in names_in_turn[turn % len(commands) :] + names_in_turn[: turn % len(commands)]:
                started = time.perf_counter()
                ask(commands[name], environment_of(name, environment), here, LIMIT_S)
                if turn:
                    seconds[name].append(time.perf_counter() - started)
    ours = seconds.pop(OURS)
    return [_timed(peer, ours, theirs) for peer, theirs in seconds.items()]


def _timed(peer: str, ours: list[float], theirs: list[float]) -> Timed:
    ratios = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    median = statistics.median
    return Timed(peer, median(ours), median(theirs), median(ratios), *interval_of_median(ratios))


def judge(rows: Sequence[Row], timed: Sequence[Timed]) -> list[tuple[str, bool]]:
    """The lines below the table, each with whether it passes: ours names all, and each peer takes longer."""
    named = {tool: sum(row.answers[tool].named for row in rows) for tool in (OURS, *PEERS)}
    warned = {tool: sum(row.answers[tool].warned for row in rows) for tool in PEERS}
    hung = {tool: sum(row.answers[tool].hung for row in rows) for tool in (OURS, *PEERS)}
    best = max(PEERS, key=lambda tool: (named[tool], warned[tool]))
    passed_on = f", and torch's own warning passed on of {warned[best]} more" if warned[best] else ""
    told = f"{named[OURS]} of {len(rows)} faults named; by the best peer, {best}, {named[best]}{passed_on}"
    found = [(told, named[OURS] == len(rows))]
    told = ", ".join(f"{tool} {count}" for tool, count in hung.items())
    found.append((f"did not finish within {LIMIT_S:.0f} s: {told}", hung[OURS] == 0))
    for one in timed:
        ratio = f"{one.ratio:.2f}x [{one.low:.2f}, {one.high:.2f}]"
        if one.peer == IMPORT:
            beside = one.ours_s - one.peer_s
            told = f"{beside:.2f} s beside one import of torch ({one.peer_s:.2f} s), of {BESIDE_IMPORT_S} s"
            found.append((told, beside <= BESIDE_IMPORT_S))
        else:
            told = f"without a GPU {one.ours_s:.2f} s; {one.peer} {one.peer_s:.2f} s, {ratio}"
            found.append((told, one.ratio > 1))
    return found
