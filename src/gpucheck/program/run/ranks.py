"""Watch a rank of a job from outside its program: the shared folder, a hang, and the end. Free of torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.errors import CannotLook
from gpucheck.machine import launcher
from gpucheck.program.run import counters
from gpucheck.program.run.rank_files import MOST_TEXT, result
from gpucheck.program.run.ranks_findings import FLUSH_S, findings
from gpucheck.report.results.run import RanksResult, RunResult

# The variables for the recorder's size. Each version of torch warns about the other name.
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RENAMED: tuple[int, ...] = (2, 9)
# A read of all entries takes 7 to 25 µs for each entry, and stalls the program for 0.1 s at most.
ENTRIES = 4096
# Seconds from the mark of a hang to the request for a rank's stack, the read of the stack, and rank 0's report.
ASKED_S, READ_S, ENDED_S = 3.0, 5.0, 8.0
# Ranks of a job end within seconds of each other. A launcher gives the ranks 30 s to end.
PATIENCE_S = 10.0


@dataclass(slots=True)
class Job:
    """This rank's side of the job, in the process that watches the program."""

    rank: int
    world: int
    folder: Path
    is_kept: bool
    hang_after_s: float | None
    ends: bool
    has_hosts: bool  # torchrun says that the ranks are on several hosts
    asked_at: float | None = None
    done: int = 0  # the number of finished stages of a hang: `ASKED_S`, `READ_S` and `ENDED_S`

    @property
    def path(self) -> Path:
        return self.folder / f"rank{self.rank}.jsonl"

    def asked(self) -> dict[str, Any]:
        """Return the recorder's options for the program's process."""
        has_hosts = self.has_hosts or "LOCAL_WORLD_SIZE" not in os.environ  # only torchrun sets this variable
        return {"path": str(self.path), "hang_after_s": self.hang_after_s, "hosts": has_hosts}

    def write(self, line: dict[str, Any]) -> None:
        counters.append(str(self.path), line)

    def tick(self, pid: int, tell: Callable[[str], None]) -> None:
        """Record this rank's stack if any rank has marked a hang. Rank 0 also reports the findings."""
        if not (self.folder / "hang").exists():
            return
        self.asked_at = self.asked_at or time.monotonic()
        while self.done < 3 and time.monotonic() - self.asked_at >= (ASKED_S, READ_S, ENDED_S)[self.done]:
            self.done += 1
            if self.done == 1:
                status = _status(pid)
                self.write({"say": "process", "state": status.get("State", "")})
                _ask_stack(pid, status)
            elif self.done == 2:
                self.write({"say": "where", "frames": _frames(self.path.with_suffix(".stack"))})
            elif self.rank == 0:
                with contextlib.suppress(CannotLook):  # reported at the end
                    for finding in findings(result(self.folder)):
                        if finding.id in ("run.ranks.hang", "run.ranks.mismatch"):
                            tell(f"{finding.title}: {finding.message}")

    def ends_by(self) -> int | None:
        """Return the signal that must end a hanging program now: SIGTERM, and later SIGKILL if the program remains."""
        if not self.ends or self.asked_at is None:
            return None
        waited = time.monotonic() - self.asked_at - ENDED_S
        return None if waited < 1 else signal.SIGTERM if waited < PATIENCE_S else signal.SIGKILL

    def ended(self, code: int, measured: RunResult | None) -> None:
        steps = measured.steps.count if measured is not None and measured.steps is not None else 0
        slowest = () if measured is None else measured.lines[:20]
        lines = [(line.kind, line.file, line.line, line.time_s) for line in slowest]
        devices = None if measured is None else [device.id for device in measured.devices]
        error = None if measured is None else measured.error
        # The launcher of a failed program also ends this process, which must write its report first.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        ended_ns = time.time_ns()
        # The program's own connections may fail with this text too. torch's names a gloo file, or is a Dist…Error.
        of_torch = error and re.match(r"(?s)RuntimeError: .*gloo|Dist\w*Error: ", f"{error.kind}: {error.text}")
        lost_peer = error and of_torch and launcher.LOST_PEER.search(error.text)
        end: dict[str, Any] = {"say": "end", "exit": code, "at_ns": ended_ns, "steps": steps, "lines": lines}
        raised = error and [error.kind, error.text[:MOST_TEXT], error.file, error.line]
        self.write({**end, "devices": devices, "lost_peer": bool(lost_peer), "raised": raised})
        if code:
            with contextlib.suppress(OSError):
                (self.folder / "failed").touch(exist_ok=False)
                time.sleep(FLUSH_S)  # the other ranks write their records before the launcher ends them
            self.write({"say": "where", "frames": _frames(self.path.with_suffix(".stack"))})

    def result(self) -> RanksResult | None:
        """Wait for the ends of the ranks, then judge the job on rank 0; None on other ranks. Raises CannotLook."""
        local = os.environ.get("LOCAL_WORLD_SIZE", "")
        is_first = local.isdigit() and os.environ.get("LOCAL_RANK") == "0" and self.path.exists()
        # Several launchers may have started ranks on this host. Rank 0 reads the files of all of them.
        if self.rank != 0 and (self.is_kept or not is_first or (self.folder / "rank0.jsonl").exists()):
            return None
        count = int(local) if local.isdigit() and not self.is_kept else self.world
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not _have_all_ended(self.folder, count, self.world):
            time.sleep(0.2)
        together = result(self.folder) if self.rank == 0 else None
        if not self.is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        return together


def job(folder: str | None, hang_after_s: float | None, *, ends: bool) -> Job | None:
    """Return this rank's side of the launcher's job, or None without several ranks. Without a `folder`, the ranks of a
    host share a temporary folder. Raises CannotLook if `folder` cannot be written."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not (rank.isdigit() and world.isdigit()) or int(world) < 2 or os.name != "posix":
        return None
    path = Path(folder).absolute() if folder is not None else _meeting()  # the program may change its folder
    has_hosts = os.environ.get("LOCAL_WORLD_SIZE", world) != world
    member = Job(int(rank), int(world), path, folder is not None, hang_after_s, ends, has_hosts)
    try:
        path.mkdir(mode=0o777 if member.is_kept else 0o700, parents=member.is_kept, exist_ok=True)
        made = path.lstat()
        if not member.is_kept and not (stat.S_ISDIR(made.st_mode) and made.st_uid == os.getuid()):
            return None  # a folder of another user, or a link to one
        # These marks are from an earlier job: this job sets marks only after all of its ranks have begun.
        for name in ("hang", "failed"):
            (path / name).unlink(missing_ok=True)
        member.path.with_suffix(".stack").unlink(missing_ok=True)
        member.path.write_text("", encoding="ascii")
    except OSError as error:
        if not member.is_kept:  # a temporary folder that cannot be written must not stop the program
            return None
        why = os.strerror(error.errno or 0)
        raise CannotLook(f"{str(path)!r} cannot be written", why, "give another folder") from error
    line = {"say": "rank", "rank": member.rank, "world": member.world, "hosts": member.has_hosts, "job": _job_key()}
    host, local_rank = socket.gethostname(), os.environ.get("LOCAL_RANK", "")
    member.write({**line, "at_ns": time.time_ns(), "host": host, "local_rank": local_rank})
    return member


def _job_key(*more: str) -> str:
    # The default has neither MASTER_ADDR nor the count of restarts, which may differ between hosts.
    names = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "WORLD_SIZE", *more)
    return hashlib.sha256("\n".join(os.environ.get(name, "") for name in names).encode()).hexdigest()[:16]


def _meeting() -> Path:
    """Return the folder that all ranks of a job on this host share."""
    key = _job_key("MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
    return Path(tempfile.gettempdir()) / f"gpucheck-{os.getuid()}-{key}"


def with_flight_recorder(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that sets the flight recorder's size, or nothing if the user has set one."""
    version = RENAMED
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("torch"))[:2]))
    return {} if any(name in env for name in SIZES) else {SIZES[version < RENAMED]: str(ENTRIES)}


def _have_all_ended(folder: Path, count: int, world: int) -> bool:
    """Return whether at least `count` ranks wrote a file, and all of these ranks have ended."""
    files = [path for rank in range(world) if (path := folder / f"rank{rank}.jsonl").exists()]
    for path in files:
        try:
            with open(path, "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 8192, 0))
                if b'"say": "end"' not in file.read():
                    return False
        except OSError:
            return False
    return len(files) >= count


def _status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status; empty on other systems than Linux."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _ask_stack(pid: int, status: Mapping[str, str]) -> None:
    """Let the program write its stack, if gpucheck's handler is installed: else the signal ends the program."""
    number = getattr(signal, "SIGRTMIN", None)
    if number is None or status.get("State", "")[:1] in ("T", "t", "Z", "X", ""):
        return
    if int(status.get("SigCgt", "0"), 16) >> (number + 7 - 1) & 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number + 7)


def _frames(path: Path) -> list[tuple[str, int, str]]:
    """Return the frames of the main thread, innermost first, from faulthandler's output."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[-100_000:]
    except OSError:
        return []
    threads = re.split(r"^(?=Thread 0x|Current thread 0x)", text, flags=re.MULTILINE)
    current = [thread for thread in threads if thread.startswith("Current thread")] or threads
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', current[-1], flags=re.MULTILINE)
    return [(file, int(line), function) for file, line, function in frames[:50]]
