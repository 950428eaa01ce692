"""`gpucheck run`: start the program, watch its device from outside, and report the shared counters at the end."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import linecache
import math
import mmap
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpucheck import naming, units
from gpucheck.errors import BUG, FAILED, UNDECIDED, CannotLook, UsageError
from gpucheck.machine.child import LineChild, Program, descendants, interpreter_argv, python_argv
from gpucheck.machine.child_stdio import mapped_library
from gpucheck.measure.telemetry import Watch
from gpucheck.program.options import STEPS, RunOptions, SimulatedGpu
from gpucheck.program.run import counters, judge, ranks, ranks_findings, reached
from gpucheck.report.events import Answered, Emit, Judged, Notice
from gpucheck.report.finding import Finding
from gpucheck.report.report import exit_code
from gpucheck.report.results import run as results
from gpucheck.report.results.run import Growth, OutOfMemory, RunDevice, RunLine, RunResult, RunSteps, TimeShares

_LOOK_EVERY_S = 1.0
# Until torch is loaded, children are checked more often: a child that only loads torch lives for about a second.
_LOOK_FOR_TORCH_EVERY_S = 0.2


def command(options: RunOptions, emit: Emit, folder: str | None = None) -> int:
    """Run the program, report the result, and return the exit status, which is negative for a signal. Raises UsageError
    and CannotLook if the program cannot be started. `folder` keeps the files of a job's ranks."""
    options = _without_interpreter(options, emit)
    script = options.program[0]
    if not options.module and script != "-":
        _check_file(script)
    job = None if options.dry else ranks.job(folder, options.hang_after_s, ends=options.end_on_hang)
    recording, added = (None, {}) if job is None else (job.asked(), ranks.with_flight_recorder(os.environ))
    cpu_before, began, began_s = _used()[0], time.perf_counter_ns(), time.time()
    try:
        if options.dry is not None:
            return _dry(options, options.dry, emit)
        with started(options, ranks=recording, added=added) as running:
            code, busy, unknown = _watched(running, job, emit)
            ended_ns, (cpu, peak) = time.perf_counter_ns(), _used()
            cpu_s = None if cpu is None or cpu_before is None else cpu - cpu_before
            ended = RunEnd(options.program, code, began, ended_ns, cpu_s, peak, busy, unknown, began_s)
            _answer(running, ended, emit, job)
    except OSError as error:
        raise CannotLook(f"{options.program[0]} cannot be started", os.strerror(error.errno or 0)) from error
    return code


_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?(\.exe)?")
# Options of the interpreter that only control output buffering and bytecode files. gpucheck drops them.
_HARMLESS = ("-u", "-B")


def _without_interpreter(options: RunOptions, emit: Emit) -> RunOptions:
    """Return the options without a `python` before the program. Raises UsageError for other options of `python`."""
    first, *words = options.program
    is_script = os.path.isfile(first) and not os.access(first, os.X_OK)  # a script of the user with this name
    if options.module or not words or not _INTERPRETER.fullmatch(os.path.basename(first)) or is_script:
        return options
    while words[1:] and words[0] in _HARMLESS:
        del words[0]
    is_module = words[0] == "-m" and len(words) > 1
    program = words[1:] if is_module else words
    if program[0].startswith("-") and program[0] != "-":
        raise UsageError(f"{first} {program[0]} cannot be run", "", "give a file or, with -m, a module")
    emit(Notice(f"{first} is ignored: the program runs with {interpreter_argv()[0]}"))
    return replace(options, program=tuple(program), module=is_module)


def _check_file(script: str) -> None:
    """Raise UsageError if the program does not exist, or is a folder that Python cannot run."""
    if not os.path.exists(script):
        hint = f"gpucheck run -m {script}" if script.isidentifier() else "use the path of a Python program"
        raise UsageError(f"the program {script!r} does not exist", "", hint)
    if os.path.isdir(script) and not os.path.isfile(os.path.join(script, "__main__.py")):
        raise UsageError(f"the folder {script!r} has no __main__.py", "", f"gpucheck run {script}/PROGRAM.py")


def _dry(options: RunOptions, device: SimulatedGpu, emit: Emit) -> int:
    """Run the program on a simulated device. Return the status of the findings, or the program's own."""
    settings = {"steps": options.steps or STEPS, "values": not options.no_values, "device": asdict(device)}
    began, began_s, is_reported = time.perf_counter_ns(), time.time(), False
    emit(Notice("dry run: no GPU is used, but files that the program writes are real"))
    # Real GPUs are hidden, because the data of simulated tensors is on the CPU.
    with started(options, dry=settings, added={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}) as running:
        while (code := running.wait()) is None:
            if running.is_torch_unseen:
                running.program.kill()
            elif running.child and not is_reported:
                is_reported = True
                emit(Notice(f"{judge.in_child(running.child)}: it is not simulated, and what it does is real"))
        failure, read = running.failure(), counters.read(running.memory)
        if running.is_torch_unseen:
            emit(Judged(judge.not_seen(f"{judge.UNSEEN}; it was stopped before it trained for real")))
            return BUG
        if failure is not None or not read.head[counters.TORCH_NS]:
            emit(Judged(judge.not_seen(failure, running.child)))
            return code or UNDECIDED
        ended = RunEnd(options.program, code, began, time.perf_counter_ns(), None, None, began_s=began_s)
        counted = answer(read, ended)
        result = judge.dry_result(read, counted, options, os.getcwd(), not_reached(read, began_s))
    emit(Answered("run_dry", result))
    findings = judge.dry_findings(result, counted, os.getcwd())
    for finding in findings:
        emit(Judged(finding))
    judged = exit_code(tuple(findings))
    return judged if code >= 0 and (judged == FAILED or judge.is_of_ended_loops(result)) else code or judged


def not_reached(read: counters.CounterData, began_s: float) -> tuple[str, ...]:
    ran = {line["file"]: frozenset(line["begins"]) for line in read.lines_of("ran")}
    trees = {}
    for file in ran:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            if _is_as_it_ran(file, began_s):
                trees[file] = ast.parse(Path(file).read_bytes())
    left = [
        reached.LastLine(line["file"], line["function"], line["line"], line["is_loop"])
        for line in read.lines_of("left")
    ]
    return tuple(reached.not_reached(trees, ran, left))


def _watched(
    running: RunningProgram, job: ranks.Job | None, emit: Emit
) -> tuple[int, tuple[tuple[float, float], ...], str | None]:
    """Wait for the program's end. Return its status, the utilization of its first device, or why it is unknown."""
    sampler = lambda uuid: LineChild(python_argv("gpucheck.machine.nvml_sampler", uuid, "busy"))  # noqa: E731
    watch: Watch | None = None
    busy: list[tuple[float, float]] = []
    code = None
    try:
        while code is None:
            code = running.wait()
            if watch is None:
                uuids = (line["uuid"] for line in counters.read(running.memory).lines_of("device"))
                if (uuid := next(filter(None, uuids), None)) is not None:
                    watch = Watch(uuid, start=sampler)
            if watch is not None:
                rows = (row for row in watch.take() if row.get("utilization_percent") is not None)
                busy += [(row["at_s"], row["utilization_percent"] / 100) for row in rows]
            if job is not None and code is None:
                job.tick(running.program.pid, lambda text: emit(Notice(text)))
                if (number := job.ends_by()) is not None:
                    os.kill(running.program.pid, number)
    finally:
        if watch is not None:
            watch.close()
    return code, tuple(busy), "no GPU was seen at work" if watch is None else watch.reason or None


def _answer(running: RunningProgram, ended: RunEnd, emit: Emit, job: ranks.Job | None) -> None:
    failure = running.failure()
    result = None if failure is not None else answer(counters.read(running.memory), ended, running.child)
    if job is not None:
        job.ended(ended.exit or 0, result)
        try:
            if (together := job.result()) is not None:
                emit(Answered("ranks", together))
                for finding in ranks_findings.findings(together):
                    emit(Judged(finding))
        except CannotLook as error:
            emit(Judged(Finding("run.ranks.straggler", "skip", "the ranks' files could not be read", str(error))))
    if running.is_torch_unseen or failure is not None:
        emit(Judged(judge.not_seen(judge.UNSEEN if running.is_torch_unseen else failure)))
        return
    assert result is not None
    emit(Answered("run", result))
    for finding in judge.findings(result, os.getcwd()):
        emit(Judged(finding))


def _used() -> tuple[float | None, int | None]:
    """Return the CPU seconds of the ended child processes, and their largest resident set in bytes."""
    if sys.platform == "win32":
        return None, None
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # macOS reports bytes, and other systems report kibibytes.
    return usage.ru_utime + usage.ru_stime, int(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


_HOOK = Path(__file__).parent / "hook"
_ROOT = Path(__file__).resolve().parents[3]
_SHARED = "/dev/shm"  # a file system in memory, on Linux
_LIBTORCH = "libtorch_cpu"  # every process that has loaded torch maps this library


@dataclass(slots=True)
class RunningProgram:
    program: Program
    memory: mmap.mmap
    child: int = 0  # the PID of a child process that loaded torch before the program
    is_replaced: bool = False  # whether `exec` replaced the program before the process loaded torch

    def wait(self) -> int | None:
        """Wait briefly. Return the program's exit status, negative for a signal, or None while the program runs."""
        code = self.program.wait(_LOOK_EVERY_S if self.memory[counters.TORCH_BYTE] else _LOOK_FOR_TORCH_EVERY_S)
        if code is None and self.memory[0] and not self.memory[counters.TORCH_BYTE]:
            # The hook sets its byte before the library is mapped. The second read of the byte avoids a race.
            is_mapped = mapped_library(_LIBTORCH, self.program.pid) is not None
            self.is_replaced |= is_mapped and not self.memory[counters.TORCH_BYTE]
            loaded = (pid for pid in descendants(self.program.pid) if mapped_library(_LIBTORCH, pid) is not None)
            self.child = self.child or next(loaded, 0)
        return code

    @property
    def is_torch_unseen(self) -> bool:
        """Return whether the program loaded torch in a way that the hook did not see."""
        return self.is_replaced or self.memory[counters.TORCH_BYTE] == counters.UNSEEN

    def failure(self) -> str | None:
        """Return why gpucheck could not measure the program, or None."""
        if not self.memory[0]:
            return "the program's process did not start"
        if not self.memory[1]:
            return None
        return bytes(self.memory[counters.SIZE - 1000 :]).strip(b"\0").decode("ascii", "replace")


@contextlib.contextmanager
def started(
    options: RunOptions, *, dry: Any = None, ranks: Any = None, added: Mapping[str, str]
) -> Iterator[RunningProgram]:
    """Start the program, whose hook passes `dry` to `dry.begin`, or `ranks` to `recorder.begin`. Raises OSError."""
    shared = _SHARED if sys.platform == "linux" and os.access(_SHARED, os.W_OK) else None
    handle, path = tempfile.mkstemp(prefix="gpucheck-", dir=shared)
    try:
        with open(handle, "r+b") as file:
            file.truncate(counters.SIZE)
            memory = mmap.mmap(file.fileno(), counters.SIZE)
        before = os.environ.get("PYTHONPATH")
        env = {**os.environ, **added}
        env.pop(naming.STARTED_AS, None)  # the variable is for gpucheck's own process
        env["PYTHONPATH"] = os.pathsep.join([str(_HOOK), *([] if before is None else [before])])
        python_path = "" if before is None else f"={before}"
        settings = ("" if begin is None else json.dumps(begin) for begin in (dry, ranks))
        env["GPUCHECK_RUN"] = "\n".join((path, str(_ROOT), str(options.trace or 0), *settings, python_path))
        argv = [*interpreter_argv(), *(["-m"] if options.module else []), *options.program]
        yield RunningProgram(Program(argv, env=env), memory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def source_of(file: str, line: int, began_s: float = math.inf) -> str | None:
    """Return the source of a line, or None if the file changed after the program's start."""
    with contextlib.suppress(OSError, ValueError):
        if _is_as_it_ran(file, began_s):
            return linecache.getline(file, line).strip() or None
    return None


def _is_as_it_ran(file: str, began_s: float) -> bool:
    """Return whether a file is unchanged since `began_s`. A time in the future is from a wrong clock, and ignored."""
    return not began_s < os.stat(file).st_mtime <= time.time()


# `_APART` first steps load kernels and compile, and are reported apart; only the first step below `_ENOUGH` steps.
_APART, _ENOUGH = 3, 8
# `waits_for` is data or copies from this share of the time on. A device counts as busy from `BUSY` on.
WAITS_SHARE, BUSY = 0.25, 0.85
_NVML_BACK_S = 1.0  # the longest time that a reading of NVML's utilization covers; the shortest is 1/6 s
# A resident set varies by some megabytes without a leak. torch's own count of device memory does not.
_LEAST_GROWTH = {"resident": 16 * units.MIB, "allocated": units.MIB}
_PARTS = 6  # memory grows if each of these parts of the run holds more than the part before


@dataclass(frozen=True, slots=True)
class RunEnd:
    program: tuple[str, ...]
    exit: int | None
    began_ns: int  # on the counters' clock, as are `at_ns` and the times of `busy`
    at_ns: int
    cpu_s: float | None
    host_peak_bytes: int | None
    # Times in seconds, each with the share of time in which kernels ran.
    busy: tuple[tuple[float, float], ...] = ()
    busy_unknown: str | None = None
    began_s: float = math.inf  # since the epoch


def answer(read: counters.CounterData, ended: RunEnd, child: int = 0) -> RunResult:
    lines = _lines(read, ended.began_s)
    used = bool(read.devices) or any(line.kind not in ("data", "empty_cache") for line in lines)
    steps, window, begins_ns = _steps(read)
    shares = _shares(read, ended, window, begins_ns)
    waits_for, reason = waits_of(shares, used, child)
    return RunResult(
        program=ended.program,
        exit=ended.exit,
        wall_s=(ended.at_ns - ended.began_ns) / 1e9,
        torch=next((str(line["version"]) for line in read.lines_of("torch")), None),
        device_used=used,
        waits_for=waits_for,
        reason=reason,
        shares=shares,
        steps=steps,
        lines=lines,
        lines_lost=read.head[counters.SITES_LOST],
        devices=_devices(read),
        host_peak_bytes=ended.host_peak_bytes,
        growth=growth(window),
        error=next(iter(judge.rows_of(read, "error", results.RunError)), None),
        out_of_memory=_out_of_memory(read),
        traced=_traced(read, window),
        not_followed=tuple(line["text"] for line in read.lines_of("not_followed")),
    )


def _steps(read: counters.CounterData) -> tuple[RunSteps | None, Sequence[Mapping[str, int]], int | None]:
    """Return the summary of all steps, the rows of the steady steps, and the time at which the steady steps begin."""
    if not (count := read.head[counters.STEPS]):
        return None, (), None
    rows = read.steps
    apart = _APART if count >= _ENOUGH else min(1, count - 1)
    # Traced steps take longer, and are reported separately too.
    apart = min(max(apart, *(int(line["last_step"]) for line in read.lines_of("trace")), 0), count - 1)
    first = [row for row in rows if row["number"] < apart]
    steady = rows[len(first) :]
    durations = [row["duration_ns"] / 1e9 for row in steady]
    steps = RunSteps(
        count,
        "gpucheck.api.step" if read.head[counters.EXPLICIT_STEPS] else "optimizer",
        statistics.median(durations) if durations else None,
        max(durations, default=None),
        tuple(row["duration_ns"] / 1e9 for row in first),
    )
    begins = first[-1]["end_ns"] if first else steady[0]["end_ns"] - steady[0]["duration_ns"]
    return steps, steady, begins


def _shares(
    read: counters.CounterData, ended: RunEnd, window: Sequence[Mapping[str, int]], begins_ns: int | None
) -> TimeShares | None:
    """Return the shares of time in the steady steps, or since torch's load without steps; None without torch."""
    if not read.head[counters.TORCH_NS]:
        return None
    ends_ns = read.head[counters.END_NS] or ended.at_ns
    if window:
        whole, *parts = (sum(row[f"{name}_ns"] for row in window) for name in ("duration", "data", "copies", "waits"))
        begins_ns = begins_ns or 0
    else:
        begins_ns = read.head[counters.TORCH_NS]
        whole = ends_ns - begins_ns
        parts = [read.head[place] for place in (counters.DATA_NS, counters.COPIES_NS, counters.WAITS_NS)]
    if whole <= 0:
        return None
    # The clock is read separately for each part, so the parts may add up to slightly more than the whole.
    data, copies, waits = (min(part / whole, 1.0) for part in parts)
    rest, whole_s = max(1.0 - data - copies - waits, 0.0), whole / 1e9
    inside = [share for at_s, share in ended.busy if begins_ns / 1e9 + _NVML_BACK_S <= at_s <= ends_ns / 1e9]
    none = f"no reading of NVML, each of which covers up to 1 s, lies within these {units.duration(whole_s)}"
    unknown = None if inside else ended.busy_unknown or none
    # The counters have the process's CPU time of steps. Without steps, the time since torch's load includes workers.
    cpu = sum(row["cpu_ns"] for row in window) / whole if window else None
    if cpu is None and ended.cpu_s is not None:
        cpu = max(ended.cpu_s - read.head[counters.TORCH_CPU_NS] / 1e9, 0.0) / whole_s
    busy = statistics.fmean(inside) if inside else None
    return TimeShares(whole_s, data, copies, waits, rest, busy, unknown, cpu)


def waits_of(shares: TimeShares | None, device_used: bool, child: int = 0) -> tuple[results.WaitsFor, str]:
    if shares is None:
        return "inconclusive", judge.in_child(child) if child else "the program did not load torch"
    data, copies, waits = (units.percent(share) for share in (shares.data, shares.copies, shares.waits))
    busy = shares.device_busy
    parts = f"kernels ran for only {units.percent(busy or 0.0)} of the time; data {data}, copies {copies}"
    # All kernels may have run during `rest`, so only `rest - busy` is certainly host time with an idle device.
    if busy is not None and busy < judge.IDLE and shares.rest - busy > max(shares.data, shares.copies):
        return "host", parts
    if shares.data >= WAITS_SHARE and shares.data >= shares.copies:
        return "data", f"{data} of the time is spent waiting for the DataLoader"
    if shares.copies >= WAITS_SHARE:
        return "copies", f"{copies} of the time is spent in copies to the device"
    if not device_used:
        if shares.cpu is not None and shares.cpu < judge.IDLE:
            return "inconclusive", f"no GPU was used, and the CPU worked for {units.percent(shares.cpu)} of the time"
        return "device", "no GPU was used"
    if busy is not None and busy >= BUSY:
        return "device", f"kernels ran for {units.percent(busy)} of the time"
    if busy is not None and busy < judge.IDLE:
        return "host", parts
    if shares.waits >= judge.IDLE:
        return "device", f"the host waited for the device for {waits} of the time"
    if busy is not None:
        return "inconclusive", f"kernels ran for {units.percent(busy)} of the time"
    return "inconclusive", f"how busy the device was is unknown: {shares.device_busy_unknown}"


_SUMS = ("count", "bytes", "pinned", "pageable", "unpinned_async", "unchanged_again")


def _lines(read: counters.CounterData, began_s: float) -> tuple[RunLine, ...]:
    described = {int(line["site"]): line for line in read.lines_of("site")}
    calls: dict[tuple[str, str, int], list[tuple[dict[str, int], bool]]] = {}
    for number, row in enumerate(read.sites):
        if number in described and (row["count"] or row["time_ns"]):
            line = described[number]
            calls.setdefault((line["kind"], line["file"], line["line"]), []).append((row, line["discarded"]))
    lines = []
    for (kind, file, at), rows in calls.items():
        fields: dict[str, Any] = {name: sum(row[name] for row, _ in rows) for name in _SUMS}
        fields |= {"steps": max(row["steps"] for row, _ in rows), "discarded": any(flag for _, flag in rows)}
        time_s = sum(row["time_ns"] for row, _ in rows) / 1e9
        lines.append(RunLine(kind, file, at, time_s=time_s, source=source_of(file, at, began_s), **fields))
    return tuple(sorted(lines, key=lambda line: -line.time_s))


def _devices(read: counters.CounterData) -> tuple[RunDevice, ...]:
    described = {int(line["index"]): line for line in read.lines_of("device")}
    return tuple(
        RunDevice(
            f"cuda:{index}",
            str(described[index]["name"]),
            int(described[index]["total"]),
            row["peak_allocated"],
            row["peak_reserved"],
            row["peak_step"],
            counters.PHASES[row["peak_phase"]],
            max(row["reserved_at_peak"] - row["peak_allocated"], 0),
            row["retries"],
        )
        for index, row in read.devices.items()
        if index in described
    )


def growth(window: Sequence[Mapping[str, int]]) -> Growth | None:
    """Return the growth of memory, or None if a part of the run holds no more than the part before."""
    of: Literal["allocated", "resident"] = "allocated" if window and window[0]["allocated"] >= 0 else "resident"
    held = [(row["number"], row[of]) for row in window if row[of] >= 0]
    if len(held) < 2 * _PARTS:
        return None
    size = len(held) // _PARTS
    parts = [held[n * size : (n + 1) * size] for n in range(_PARTS)]
    medians = [statistics.median(value for _, value in part) for part in parts]
    grown = medians[-1] - medians[0]
    if grown < _LEAST_GROWTH[of] or any(later <= before for before, later in itertools.pairwise(medians)):
        return None
    first, *_, last = (statistics.median(number for number, _ in part) for part in parts)
    steps = int(last - first)
    return Growth(of, grown / steps, steps, int(grown))


# torch's allocators name the requested size and the memory of other processes in these sentences.
_ASKED = re.compile(r"Tried to allocate ([\d.]+ ?\w+)|tried to allocate (\d+) bytes")
_OTHERS = re.compile(r"Process \d+ has ([\d.]+ ?\w+) memory in use")


def _out_of_memory(read: counters.CounterData) -> OutOfMemory | None:
    if (error := next((line for line in read.lines_of("error") if line["memory"]), None)) is None:
        return None
    sums = next(read.lines_of("held"), {})
    held = {f"{name}_bytes": sums.get(name, 0) for name in ("parameters", "gradients", "optimizer", "others")}
    # The last failure ended the program.
    failure: dict[str, Any] = next(reversed([*read.lines_of("oom")]), {}) if error["cause"] == "oom.cuda" else {}
    asked = failure.get("asked") or next(map(_size, _ASKED.finditer(error["text"])), None)
    others = sum(map(_size, _OTHERS.finditer(error["text"]))) or None
    is_host = error["cause"] in ("oom.cpu", "oom.host")
    device = f"cuda:{failure['device']}" if failure else "cpu" if is_host else "cuda"
    allocated, reserved = failure.get("allocated"), failure.get("reserved")
    return OutOfMemory(
        device=device,
        asked_bytes=asked,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        other_processes_bytes=others,
        **held,
        unnamed_bytes=None if allocated is None else max(allocated - sum(held.values()), 0),
        blame=_BLAME.get(error["cause"]) or blame(asked, allocated, reserved, others),
        holders=judge.rows_of(read, "holder", results.Holder),
        phase=counters.PHASES[error["phase"]],
        step=error["step"],
    )


_BLAME = {"oom.host": "pinned", "oom.runtime": "runtime"}


def blame(asked: int | None, allocated: int | None, reserved: int | None, others: int | None) -> str | None:
    """Return the cause, or None for an unknown size: torch's unused memory or other processes cover the request."""
    if asked is None:
        return None
    if allocated is not None and reserved is not None and reserved - allocated >= asked:
        return "fragmentation"
    return "other-processes" if others is not None and others >= asked else "size"


def _size(match: re.Match[str]) -> int:
    text = next(filter(None, match.groups()))
    return int(text) if text.isdigit() else units.Size(smallest=0)(text.replace(" ", ""))


def _traced(read: counters.CounterData, window: Sequence[Mapping[str, int]]) -> results.Traced | None:
    if (trace := next(reversed([*read.lines_of("trace")]), None)) is None:
        return None
    steady_ns = statistics.median(row["duration_ns"] for row in window) if window else None
    slowdown = trace["step_ns"] / steady_ns if steady_ns else None
    return results.Traced(trace["steps"], trace["peak"], slowdown, judge.rows_of(read, "traced", results.TracedLine))
