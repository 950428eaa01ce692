"""`gpucheck run`: start the program, watch its device from outside, and answer when it has ended."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck import units
from gpucheck.errors import CannotLook, UsageError
from gpucheck.exits import FAILED
from gpucheck.machine.child import LineChild, Program, interpreter_argv, python_argv
from gpucheck.measure.telemetry import Watch
from gpucheck.program.run import board, dry_judge, fold, judge, ranks
from gpucheck.program.run.options import STEPS, UNGIVEN_BYTES, Device, RunOptions
from gpucheck.report.events import Answered, Emit, Judged, Notice
from gpucheck.report.finding import Finding
from gpucheck.report.report import exit_code

_LOOK_EVERY_S = 1.0


def command(options: RunOptions, emit: Emit, folder: str | None = None) -> int:
    """Run the program to its end and answer with what was seen; how it ended, negative for a signal.

    As a rank of a job its collectives are looked at too; `folder` is where the files of all ranks stay.
    Raises UsageError where there is no such program, and CannotLook where it cannot be started. Whatever goes wrong
    after that is a finding: the program's own end counts.
    """
    script, *arguments = options.program
    _check(script, module=options.module)
    if options.dry is not None:
        return _dry(options, options.dry, emit)
    snapshot = os.path.abspath(f"gpucheck-memory-{os.getpid()}.pickle") if options.memory else ""
    job = ranks.job(folder, options.hang_after_s, ends=options.end_on_hang)
    added = {} if job is None else ranks.enlarged(os.environ, device_arrival=options.device_arrival)
    cpu_before, began = _cpu_s(), time.perf_counter_ns()
    try:
        with started(
            script,
            arguments,
            module=options.module,
            trace=options.traced,
            snapshot=snapshot,
            ranks=None if job is None else job.asked(),
            added=added,
        ) as running:
            code, busy, unknown = _watched(running, job, emit)
            ended = fold.Ended(
                program=options.program,
                exit=code,
                began_ns=began,
                at_ns=time.perf_counter_ns(),
                cpu_s=None if cpu_before is None else (_cpu_s() or 0.0) - cpu_before,
                host_peak_bytes=_host_peak(),
                busy=busy,
                busy_unknown=unknown,
                snapshot=snapshot if snapshot and os.path.exists(snapshot) else None,
            )
            _answer(running, ended, emit, job)
    except OSError as error:
        raise CannotLook(f"{script} cannot be started", os.strerror(error.errno or 0)) from error
    return code


def _check(script: str, *, module: bool) -> None:
    if not module and script != "-" and not os.path.exists(script):
        hint = f"gpucheck run -m {script}" if script.isidentifier() else "give the path of a Python program"
        raise UsageError(f"there is no program {script!r}", "", hint)


# -- on a claimed device -----------------------------------------------------------------------------------------------


def _dry(options: RunOptions, device: Device, emit: Emit) -> int:
    """Run the program on a device that its tensors claim.

    1 where a finding failed; else the program's own status, or 4 where that is 0 and a finding is inconclusive.
    """
    script, *arguments = options.program
    asked = {
        "steps": options.steps or STEPS,
        "values": not options.no_values,
        **{name: getattr(device, name) for name in ("name", "capability", "multiprocessors", "total_bytes")},
        "readable_bytes": device.total_bytes or UNGIVEN_BYTES,
    }
    began = time.perf_counter_ns()
    try:
        with scratch(enabled=options.scratch) as place:
            emit(Notice(_warning(place)))
            folder = os.getcwd() if place is None else place.path
            with started(script, arguments, module=options.module, dry=asked, folder=folder) as running:
                while (code := running.program.wait(_LOOK_EVERY_S)) is None:
                    pass
                failure = running.failure()
                if failure is not None:
                    emit(Judged(Finding("run.not_seen", "skip", "gpucheck could not look into the program", failure)))
                    return code
                read = board.read(running.memory)
                if not read.head[board.TORCH_NS]:
                    emit(Judged(Finding("run.not_seen", "skip", "the program did not load torch")))
                    return code
                ended = fold.Ended(options.program, code, began, time.perf_counter_ns(), None, None)
                counted = fold.result(read, ended)
                written = None if place is None else place.written()
                result = dry_judge.result(read, counted, options, written)
    except OSError as error:
        raise CannotLook(f"{script} cannot be started", os.strerror(error.errno or 0)) from error
    emit(Answered("run_dry", dry_judge.relative(result, folder)))
    found = dry_judge.findings(result, counted, folder)
    for finding in found:
        emit(Judged(finding))
    judged = exit_code(tuple(found))
    return judged if code >= 0 and judged == FAILED else code or judged


def _warning(place: Scratch | None) -> str:
    if place is None:
        return "dry run: no GPU is used, but what the program writes is real (--scratch: relative writes go to a copy)"
    return f"dry run in a copy of this folder, {place.path}: relative writes land there, absolute ones are real"


def _watched(
    running: Started, job: ranks.Job | None, emit: Emit
) -> tuple[int, tuple[tuple[float, float], ...], str | None]:
    """Wait for the end of the program; beside it read how busy its device is, from when it uses one."""
    watch: Watch | None = None
    busy: list[tuple[float, float]] = []
    try:
        while (code := running.program.wait(_LOOK_EVERY_S)) is None:
            if watch is None and (uuid := _uuid(running)) is not None:
                watch = Watch(uuid, start=_sampler)
            if watch is not None:
                busy += _loads(watch)
            if job is not None:
                job.tick(running.program.pid, lambda text: emit(Notice(text)))
                if (number := job.ends_by()) is not None:
                    os.kill(running.program.pid, number)
        if watch is not None:
            busy += _loads(watch)
    finally:
        if watch is not None:
            watch.close()
    return code, tuple(busy), "no GPU was seen at work" if watch is None else watch.reason or None


def _uuid(running: Started) -> str | None:
    """The device that the program uses first."""
    return next((one["uuid"] for one in board.read(running.memory).said("device") if one["uuid"]), None)


def _sampler(uuid: str) -> LineChild:
    return LineChild(python_argv("gpucheck.machine.nvml.sampler", uuid, "busy"))


def _loads(watch: Watch) -> list[tuple[float, float]]:
    rows: list[dict[str, Any]] = watch.take()
    return [
        (one["at_s"], one["utilization_percent"] / 100) for one in rows if one.get("utilization_percent") is not None
    ]


def _answer(running: Started, ended: fold.Ended, emit: Emit, job: ranks.Job | None) -> None:
    failure = running.failure()
    result = None if failure is not None else fold.result(board.read(running.memory), ended)
    if job is not None:
        lines = () if result is None else [(one.kind, one.file, one.line, one.time_s) for one in result.lines[:20]]
        steps = 0 if result is None or result.steps is None else result.steps.count
        job.ended(ended.exit or 0, steps, lines)
        try:
            together = job.result()
        except CannotLook as error:
            together = None
            emit(Judged(Finding("run.ranks.straggler", "skip", "the ranks' files could not be read", str(error))))
        if together is not None:
            emit(Answered("ranks", together))
            for finding in ranks.findings(together):
                emit(Judged(finding))
    if failure is not None:
        emit(Judged(Finding("run.not_seen", "skip", "gpucheck could not look into the program", failure)))
        return
    assert result is not None
    emit(Answered("run", result))
    for finding in judge.findings(result, os.getcwd()):
        emit(Judged(finding))


def _usage() -> Any:
    """What the processes that have ended under this one took; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN)


def _cpu_s() -> float | None:
    usage = _usage()
    return None if usage is None else float(usage.ru_utime + usage.ru_stime)


def _host_peak() -> int | None:
    """The largest resident set of any of these processes, in bytes; macOS tells bytes, others kibibytes."""
    usage = _usage()
    return None if usage is None else int(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


# -- a copy of the folder ----------------------------------------------------------------------------------------------

# A folder of source and small data; copying more takes longer than a dry run should.
LARGEST = units.GIB
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".venv", "venv", "node_modules")

Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scratch:
    """The copy, and the size and time of each of its files before the program ran."""

    path: str
    before: dict[str, Stamp]

    def written(self) -> tuple[str, ...]:
        """Files that are new or changed, by their names in the folder."""
        return tuple(name for name, stamp in sorted(_stamps(self.path).items()) if self.before.get(name) != stamp)


@contextlib.contextmanager
def scratch(*, enabled: bool) -> Iterator[Scratch | None]:
    """A copy of the current folder, deleted at the end; None where it is not wanted.

    Raises UsageError for a folder of more than `LARGEST`, and OSError.
    """
    if not enabled:
        yield None
        return
    here = os.getcwd()
    size = _size(here)
    if size > LARGEST:
        told = f"{units.capacity(size)} are more than {units.capacity(LARGEST)}"
        raise UsageError(f"--scratch cannot copy {here}", told, "start it in a folder with the program alone")
    with tempfile.TemporaryDirectory(prefix="gpucheck-scratch-", ignore_cleanup_errors=True) as place:
        path = os.path.join(os.path.realpath(place), os.path.basename(here) or "root")
        shutil.copytree(here, path, symlinks=False, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
        yield Scratch(path, _stamps(path))


def _size(path: str) -> int:
    total = 0
    for parent, folders, files in os.walk(path, followlinks=True):
        folders[:] = set(folders) - _LEFT_OUT(parent, folders)
        for name in files:
            with contextlib.suppress(OSError):  # a link that leads nowhere is not copied either
                total += os.path.getsize(os.path.join(parent, name))
        if total > LARGEST:
            break
    return total


def _stamps(path: str) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    for parent, folders, files in os.walk(path):
        folders[:] = [one for one in folders if one != "__pycache__"]
        for name in files:
            stat = os.stat(os.path.join(parent, name), follow_symlinks=False)
            found[os.path.relpath(os.path.join(parent, name), path)] = stat.st_size, stat.st_mtime_ns
    return found


_HOOK = Path(__file__).parent / "hook"
_ROOT = Path(__file__).resolve().parents[3]
# In memory, where the system has a place for files there.
_SHARED = "/dev/shm"


# -- start of the program ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """A program that runs, and the board that it writes to."""

    program: Program
    memory: mmap.mmap

    def failure(self) -> str | None:
        """Why nothing can be told of the program; None where it is looked at."""
        if not self.memory[0]:
            return "the program's process did not come to its start"
        if not self.memory[1]:
            return None
        return bytes(self.memory[board.SIZE - 1000 :]).strip(b"\0").decode("ascii", "replace")


@contextlib.contextmanager
def started(
    script: str,
    arguments: Sequence[str],
    *,
    module: bool,
    trace: int = 0,
    snapshot: str = "",
    dry: Mapping[str, Any] | None = None,
    folder: str | None = None,
    ranks: Mapping[str, Any] | None = None,
    added: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Start `python SCRIPT ARGS…`, or with `module` `python -m SCRIPT ARGS…`. Raises OSError.

    `trace` is how many steps are looked at with everything, `snapshot` the file for CUDA's history of memory.
    `dry` is what `dry.begin` is asked, where the program runs on a claimed device. It runs in `folder`, else in this.
    `ranks` is what `recorder.begin` is asked in a rank of a job, `added` what its environment has besides.
    """
    path = _board_file()
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), board.SIZE)
        before = os.environ.get("PYTHONPATH")
        env = {**os.environ, **(added or {})}
        env["PYTHONPATH"] = os.pathsep.join([str(_HOOK), *([] if before is None else [before])])
        given = "" if before is None else f"={before}"
        env["GPUCHECK_RUN"] = "\n".join(
            (
                path,
                str(_ROOT),
                str(trace),
                snapshot,
                *("" if one is None else json.dumps(one) for one in (dry, ranks)),
                given,
            )
        )
        if dry is not None:  # nothing may reach a GPU that is here: what claims it has its data on the CPU
            env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        argv = [*interpreter_argv(), *(["-m"] if module else []), script, *arguments]
        yield Started(Program(argv, env=env, folder=folder), memory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _board_file() -> str:
    folder = _SHARED if sys.platform == "linux" and os.access(_SHARED, os.W_OK) else None
    handle, path = tempfile.mkstemp(prefix="gpucheck-", dir=folder)
    try:
        os.ftruncate(handle, board.SIZE)
    finally:
        os.close(handle)
    return path
