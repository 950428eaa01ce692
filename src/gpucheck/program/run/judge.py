"""Judge a run, and build the result of a dry run from the shared counters. No I/O.

The findings say what a line costs, not what you would save by removing it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, TypeVar

from gpucheck.messages import BY_ID, EXPANDABLE_SEGMENTS
from gpucheck.program import judge as model_judge
from gpucheck.program import rules
from gpucheck.program.options import RunOptions
from gpucheck.program.run.counters import STEPS, CounterData
from gpucheck.report.codec import from_json
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.results import run as results
from gpucheck.report.results.model import UnjudgedOperation
from gpucheck.report.results.run import DryLine, DryMemory, DryResult, DryStop, OutOfMemory, RunLine, RunResult
from gpucheck.units import capacity, duration, percent

_WORTH = 0.01  # a line with a smaller share of the time gives an `info`, not a warning
# The number of copies up to `_SMALL` bytes determines their cost. The next two are the limits per step and in all.
_SMALL, _MANY_PER_STEP, _MANY = 64 * 1024, 100, 1000
_COPIES = ("to_device", "to_host", "between")
# A line is a habit if it runs this often and in this share of the steps. Without steps, the last number is the limit.
_OFTEN, _MOST_STEPS, _OFTEN_IN_ALL = 3, 0.5, 10
IDLE = 0.5  # a GPU or CPU that works for a smaller share of the time is idle


def findings(result: RunResult, folder: str = "") -> list[Finding]:
    """Return the findings. The first is on time. Paths below `folder` become relative."""
    judged = [time_finding(result)]
    if _is_broken_off(result):
        judged.append(_end(result, folder))
    if result.out_of_memory is not None:
        judged.append(memory_finding(result.out_of_memory, folder))
    if result.growth is not None:
        judged.append(_growth(result, folder))
    judged += model_judge.not_followed(result.not_followed, f"torch {result.torch}", "run.followed")
    return judged + of_lines(result, folder)


def in_child(pid: int) -> str:
    return f"torch was loaded in child {pid}, not measured"


def not_seen(failure: str | None, child: int = 0) -> Finding:
    if failure is not None:
        title, why = "gpucheck could not measure the program", f"a bug in gpucheck: {failure}"
        fix = "report it with the program's first lines, at the project's issue tracker"
        return Finding("run.not_seen", "inconclusive", title, why, fix=fix)
    if child:
        fix = "run the child's own command under gpucheck run"
        return Finding("run.not_seen", "inconclusive", in_child(child), fix=fix)
    return Finding("run.not_seen", "inconclusive", "the program did not load torch")


UNSEEN = "the program loaded torch in a way that gpucheck does not see"


def of_lines(result: RunResult, folder: str) -> list[Finding]:
    """Return the findings on single lines. A line with a noticeable share of the time gives a warning."""
    judged = []
    for line in result.lines:
        verdict: Verdict = "warn" if line.time_s >= _WORTH * window_s(result) else "info"
        evidence = {key: getattr(line, key) for key in ("file", "line", "count", "bytes", "time_s")}
        where = f"{place_text(line.file, line.line, folder)}, {_cost(line)}"
        advice = _advice_on(line, result, verdict)
        judged += [Finding(name, worst, title, where, evidence, fix) for name, worst, title, fix in advice]
    return judged


def place_text(file: str | None, line: int | None, folder: str) -> str:
    return f"{_named(file, folder)}:{line}" if file else "an unknown line"


def _named(file: str, folder: str) -> str:
    is_inside = bool(folder) and file.startswith(os.path.join(folder, ""))
    return os.path.relpath(file, folder) if is_inside else file


def time_finding(result: RunResult) -> Finding:
    """Return the finding on what the program waits for. A program that failed gets no pass."""
    titles = {
        "data": "the program waits for data",
        "host": "the device waits for the host",
        "copies": "the program waits for copies",
        "device": "the device is busy" if result.device_used else "the CPU is busy",
        "inconclusive": "inconclusive",
    }
    busy: Verdict = "info" if _is_broken_off(result) else "pass"
    verdicts: dict[str, Verdict] = {"device": busy, "inconclusive": "inconclusive"}
    fixes = {
        "data": "more num_workers, or cheaper transforms, in the DataLoader",
        "host": "torch.profiler shows the host's time; a larger batch or torch.compile launches fewer kernels",
    }
    cpu_share = result.shares.cpu if result.shares is not None else None
    if cpu_share is not None and cpu_share < IDLE:  # the bottleneck is not the launch of kernels
        waits = "the program waits for files, the network or another rank"
        fixes["host"] = f"the CPU worked for only {percent(cpu_share)} of the time: {waits}"
    verdict, fix = verdicts.get(result.waits_for, "warn"), fixes.get(result.waits_for)
    return Finding("run.time", verdict, titles[result.waits_for], result.reason, {"of": result.waits_for}, fix)


def _is_broken_off(result: RunResult) -> bool:
    return result.error is not None or bool(result.exit)


# Words in errors that `gpucheck explain` may know.
_OF_DEVICES = re.compile(r"\b(CUDA|cu(BLAS|DNN)|NCCL|NVIDIA|HIP|ROCm|MPS|XPU|GPU)\b", re.IGNORECASE)


def _end(result: RunResult, folder: str) -> Finding:
    code = result.exit or 0
    if result.error is not None:
        error = result.error
        first = error.text.strip().splitlines()[0] if error.text.strip() else ""
        where = place_text(error.file, error.line, folder)
        can_be_typed = first.isprintable() and first[:1] not in ("", "-")
        can_be_explained = can_be_typed and (error.cause or _OF_DEVICES.search(first))
        fix = f"gpucheck explain {shlex.quote(first)}" if can_be_explained else None
        return Finding("run.ended", "info", f"the program ended with {error.kind} at {where}", first, fix=fix)
    if code > 0:
        return Finding("run.ended", "info", f"the program ended with status {code}")
    name = signal_name(code)
    why = "often the OOM killer: see sudo dmesg" if name == "SIGKILL" else ""
    return Finding("run.ended", "info", f"the program was ended by {name}", why)


def signal_name(code: int) -> str:
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def _growth(result: RunResult, folder: str) -> Finding:
    growth = result.growth
    assert growth is not None
    of = "the device's memory" if growth.of == "allocated" else "the program's memory"
    message = f"{capacity(growth.bytes_per_step)} a step over {growth.steps} steps, {capacity(growth.bytes)} in all"
    kept = [line for line in (result.traced.lines if result.traced else ()) if line.kept_bytes_per_step > 0]
    fix = None if kept else "gpucheck run --trace 5 … names the line that creates the remaining tensors"
    if kept:
        worst = max(kept, key=lambda line: line.kept_bytes_per_step)
        message += f"; most is created at {place_text(worst.file, worst.line, folder)}"
        # No container holds a graph's tensors, but a container may hold the loss.
        held_by = worst.held_by or next((line.held_by for line in kept if line.held_by), None)
        message += f", kept by {held_by}" if held_by else ""
    return Finding("run.memory.growth", "warn", f"{of} grows from step to step", message, fix=fix)


def memory_finding(memory: OutOfMemory, folder: str) -> Finding:
    parts = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
        "other tensors": memory.others_bytes,
        "activations and the rest": memory.unnamed_bytes or 0,
    }
    message = ", ".join(f"{name} {capacity(size)}" for name, size in parts.items() if size) or "no tensor was alive"
    if memory.asked_bytes is not None:
        message = f"{capacity(memory.asked_bytes)} requested at once in {memory.phase}; {message}"
    if memory.holders:
        most = memory.holders[0]
        where = place_text(most.file, most.line, folder)
        message += f"; most in {most.name} ({capacity(most.bytes)} in {most.tensors} tensors, {where})"
    title = _BLAMED.get(memory.blame or "", ("memory of {} ran out", ""))[0].format(memory.device)
    evidence = {"blame": memory.blame, **parts}
    device = memory.device if ":" in memory.device else None
    return Finding("run.memory.full", "fail", title, message, evidence, advice_of(memory), device)


_BLAMED = {
    "pinned": (BY_ID["oom.host"].title, BY_ID["oom.host"].fix),
    "runtime": (BY_ID["oom.runtime"].title, BY_ID["oom.runtime"].fix),
    "fragmentation": ("memory of {} ran out: fragmented", f"run with {EXPANDABLE_SEGMENTS}"),
    "other-processes": (
        "memory of {} ran out: other processes hold it",
        "gpucheck devices shows the processes on the device: end one, or use another device",
    ),
}


def advice_of(memory: OutOfMemory) -> str | None:
    if memory.blame in _BLAMED:
        return _BLAMED[memory.blame][1]
    fixed = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    for most in memory.holders[:1]:  # a container may hold more than weights, gradients and optimizer states
        if most.kind in ("list", "dict", "tuple", "set", "deque") and most.bytes > fixed and most.tensors > 1:
            return f"{most.name} keeps {most.tensors} tensors: store numbers (loss.item(), .detach().cpu()) instead"
    return _advice_by_size(fixed, memory.others_bytes + (memory.unnamed_bytes or 0) + (memory.asked_bytes or 0))


def _advice_by_size(fixed: int, moving: int) -> str | None:
    """Return the advice. A smaller batch size reduces only the `moving` bytes."""
    if not fixed and not moving:
        return None
    if fixed > moving:
        held = f"weights, gradients and optimizer states ({capacity(fixed)}) are the largest part"
        return f"{held}: bfloat16 weights or 8-bit optimizer states before a smaller batch"
    return "a smaller batch first, then activation checkpointing, then bfloat16 autocast"


def window_s(result: RunResult) -> float:
    return result.shares.window_s if result.shares is not None else result.wall_s


def _cost(line: RunLine) -> str:
    size = f", {capacity(line.bytes)}" if line.bytes else ""
    time = f", {duration(line.time_s)}" if line.time_s else ""  # a dry run has no times
    return f"{line.count} times{size}{time}"


def _is_habit(line: RunLine, result: RunResult, count: int) -> bool:
    steps = result.steps.count if result.steps is not None else 0
    if steps < _OFTEN:
        return count >= _OFTEN_IN_ALL
    return count >= _OFTEN and line.steps >= _MOST_STEPS * steps


def _advice_on(line: RunLine, result: RunResult, verdict: Verdict) -> Iterator[tuple[str, Verdict, str, str]]:
    """Yield the ID, verdict, title and fix of the findings on a line."""
    if line.discarded and line.kind in _COPIES:
        fix = "assign it: x = x.to(device); a tensor does not move in place"
        yield "run.copies.discarded", "warn", "the result of .to() is discarded", fix
    if line.unchanged_again >= _OFTEN and line.kind != "data":
        title = f"the same unchanged tensor is copied {line.unchanged_again + 1} times"
        yield "run.copies.again", verdict, title, "copy it once before the loop; in a module: register_buffer"
    # Repeated copies of an unchanged tensor have the advice above, and do not count below.
    new = line.count - line.unchanged_again
    if min(line.unpinned_async, new) >= _OFTEN:
        title = f"non_blocking=True from pageable memory: {line.unpinned_async} copies"
        yield "run.copies.unpinned", verdict, title, "pin_memory=True in the DataLoader, or tensor.pin_memory()"
    is_pageable = line.kind == "to_device" and not line.unpinned_async and verdict == "warn"
    if is_pageable and _is_habit(line, result, min(line.pageable, new)):
        title = f"pageable copies block the program for {duration(line.time_s)}"
        fix = "pin_memory=True in the DataLoader and non_blocking=True here"
        yield "run.copies.pageable", "warn", title, fix
    are_many = new >= min(_MANY, _MANY_PER_STEP * max(line.steps, 1))
    if line.kind in _COPIES and are_many and line.bytes / line.count <= _SMALL:
        size = capacity(line.bytes / line.count)
        yield "run.copies.small", verdict, f"many small copies of {size}", "stack them and copy once"
    if line.kind == "empty_cache" and _is_habit(line, result, line.count):
        fix = "remove it from the loop: the freed memory is requested from the driver again"
        yield "run.empty_cache", "warn", "empty_cache in a loop", fix
    if line.kind not in (*_COPIES, "data", "empty_cache") and _is_habit(line, result, line.count):
        fix = "read it every N steps, or once at the end"
        yield "run.waits", "info", f"{line.kind} waits for the device", fix


def costly(result: RunResult) -> Iterator[RunLine]:
    judged = {(finding.evidence.get("file"), finding.evidence.get("line")) for finding in findings(result)}
    for line in result.lines:
        if line.time_s >= _WORTH / 10 * window_s(result) or (line.file, line.line) in judged:
            yield line


_FORK_FIX = (
    "in a DataLoader's worker return CPU tensors and move the batch in the main process; else start processes "
    "with spawn"
)
_ENDED_LOOPS = "loops over a DataLoader were ended early, which may be the cause"
# From this share on, workspaces, NCCL's buffers, the context and fragmentation may fill the rest of the memory.
_CLOSE = 0.9


def dry_result(
    read: CounterData, counted: RunResult, options: RunOptions, folder: str = "", not_reached: tuple[str, ...] = ()
) -> DryResult:
    """Return a dry run's result. `counted` is `run`'s result from the same counters."""
    assert options.dry is not None
    stopped = next(iter(rows_of(read, "stopped", DryStop)), None)
    end = next(read.lines_of("end"), None)
    fields = ({name: getattr(line, name) for name in DryLine.__dataclass_fields__} for line in counted.lines)
    lines = (DryLine(**row | {"file": _named(row["file"], folder)}) for row in fields if row["kind"] != "data")
    return DryResult(
        program=options.program,
        device=f"cuda:0 ({options.dry.name})",
        exit=counted.exit,
        torch=counted.torch,
        has_values=not options.no_values,
        steps=read.head[STEPS],
        ended_after_steps=any(read.lines_of("steps_done")),
        mismatches=rows_of(read, "mismatch", results.DryMismatch),
        stopped=stopped,
        lines=tuple(sorted(lines, key=lambda line: (-line.count, -line.bytes, line.file, line.line, line.kind))),
        memory=None if end is None else from_json(DryMemory, end["memory"]),
        assumed=rows_of(read, "assumed", results.AssumedValue),
        assumed_count=0 if end is None else end["assumed"],
        unjudged=rows_of(read, "unjudged", UnjudgedOperation),
        remarks=rows_of(read, "remark", results.Remark),
        mixed=tuple(_errors_caught(read, stopped)),
        trains=end is not None and end["trains"],
        loops_ended=any(line["is_loop"] for line in read.lines_of("left")),
        not_reached=not_reached,
        not_followed=tuple(line["text"] for line in read.lines_of("not_followed")),
    )


_Row = TypeVar("_Row")


def rows_of(read: CounterData, kind: str, made: type[_Row]) -> tuple[_Row, ...]:
    return tuple(from_json(made, line) for line in read.lines_of(kind))


def _errors_caught(read: CounterData, stopped: DryStop | None) -> Iterator[results.CaughtError]:
    for error in rows_of(read, "mixed", results.CaughtError):
        if times := error.times - (stopped is not None and stopped.text == error.text):
            yield replace(error, times=times)
    if stopped is None:  # else a worker's error may have ended the program
        yield from rows_of(read, "fork", results.CaughtError)


def dry_findings(result: DryResult, counted: RunResult, folder: str) -> list[Finding]:
    """Return the findings of a dry run, worst first. The advice on copies is `run`'s, without times."""
    untimed = replace(counted, lines=tuple(replace(line, time_s=0.0) for line in counted.lines))
    advice = of_lines(untimed, folder)
    for finding in advice:  # the findings of a line share an evidence dict, so a second `pop` finds nothing
        finding.evidence.pop("time_s", None)
    judged = [
        *_mismatches(result),
        *_stop(result),
        *_undone(result),
        *model_judge.not_followed(result.not_followed, f"torch {result.torch}", "run.dry.followed"),
        *_memory_findings(result),
        *advice,
        *_remarks(result),
    ]
    if {"run.dry.mismatch", "run.dry.dtype", "run.dry.fork", "run.dry.followed"}.isdisjoint(row.id for row in judged):
        judged.append(Finding("run.dry.placement", "pass", placed(result), _how_far(result)))
    return sorted(judged, key=lambda finding: WORST_FIRST.index(finding.verdict))


def placed(result: DryResult) -> str:
    """Return the title of a run without misplaced tensors, with the functions that certainly did not run."""
    is_whole = not result.not_reached and not is_of_ended_loops(result)
    text = f"no tensor was on the wrong device{'' if is_whole else ' in what ran'}"
    were = "was" if len(result.not_reached) == 1 else "were"
    return f"{text}; {', '.join(result.not_reached)} {were} not reached" if result.not_reached else text


def is_of_ended_loops(result: DryResult) -> bool:
    """Return whether the early end of loops over a DataLoader may have made the program fail."""
    stop = result.stopped
    if not result.loops_ended or result.memory is None or any(mismatch.ended for mismatch in result.mismatches):
        return False
    if stop is None:
        return (result.exit or 0) > 0
    return not stop.of_device and _known(stop.text, "") is None and stop.kind != "OutOfMemoryError"


def _how_far(result: DryResult) -> str:
    steps = f"{result.steps} optimizer step{'' if result.steps == 1 else 's'}"
    if result.ended_after_steps:
        return f"{steps}, then the program was ended"
    whole = "loops over a DataLoader were ended early" if result.loops_ended else "the whole program"
    return f"{whole}, {steps}" if result.steps else whole


def _mismatches(result: DryResult) -> Iterator[Finding]:
    for mismatch in result.mismatches:
        entry = mismatch.mismatch
        found = model_judge.mismatch(entry)
        status = result.exit if result.stopped is None and not mismatch.ended else 0
        verdict: Verdict = "fail" if mismatch.ended or status else "warn"
        message = found.message
        if mismatch.assumed:
            verdict = "inconclusive" if mismatch.ended else "warn"
            message = f"{message}; {mismatch.assumed} values were assumed before"
        if not mismatch.ended:
            message = f"{message}; {_caught(mismatch.times)}" + (f" and ended with status {status}" if status else "")
        evidence = {**found.evidence, "ended": mismatch.ended, "times": mismatch.times}
        fix = found.fix
        if fix is None and any(operand.is_wrong and operand.name == "generator" for operand in entry.operands):
            fix = f'{entry.place}: pass generator=torch.Generator(device="{entry.expected}")'
        if entry.operation == "Tensor.pin_memory" and all(operand.variable is None for operand in entry.operands):
            fix = f"{entry.place}: leave out pin_memory, or keep the data on the CPU"  # the DataLoader makes this call
        yield replace(found, id="run.dry.mismatch", verdict=verdict, message=message, evidence=evidence, fix=fix)
    for caught in result.mixed:
        place = caught.place or "an unknown line"
        name, text, fix = _known(caught.text, place) or ("run.dry.dtype", caught.text, None)
        yield Finding(name, "warn", place, f"{text}; {_caught(caught.times)}", asdict(caught), fix)


def _known(text: str, place: str) -> tuple[str, str, str] | None:
    """Return the ID, message and fix of an error with a known text, else None."""
    # The counters keep at least 159 characters of a forked process's error. Each known text is shorter.
    if rules.UNSAFE in text:
        return "run.dry.dtype", text, f"{place}: use binary_cross_entropy_with_logits, without the sigmoid"
    if re.search(rules.NO_KERNEL, text):
        return "run.dry.dtype", f"CUDA has no kernel for this dtype: {text}", f"{place}: use .float()"
    if rules.MIXED_DTYPES.search(text):
        return "run.dry.dtype", f"operands of different dtypes: {text}", f"{place}: bring both to one dtype"
    if rules.FORKED in text or rules.FORKED_KERNEL in text:
        return "run.dry.fork", f"CUDA in a process that was forked after its parent had used CUDA: {text}", _FORK_FIX
    if any(known in text for known in (rules.MISPLACED, *rules.ELSEWHERE)):
        return "run.dry.mismatch", text, f"{place}: move it with .to(device)"
    return ("run.dry.mismatch", text, f"{place}: bring both to one device") if rules.APART in text else None


def _caught(times: int) -> str:
    return "the program caught the error" + (f" {times} times" if times > 1 else "")


def _undone(result: DryResult) -> Iterator[Finding]:
    """Yield a finding if the program ended before its first step, or put no tensor on the device."""
    if result.memory is None or result.stopped is not None or any(mismatch.ended for mismatch in result.mismatches):
        return
    if result.trains and not result.steps:
        why = "the program created an optimizer and ended before its first step"
        yield Finding("run.dry.followed", "inconclusive", "no step was judged", why)
    elif not result.memory.peak.allocated_bytes:
        why = "the device may be set by an option"
        yield Finding("run.dry.followed", "inconclusive", "the program put no tensor on the device", why)


def _stop(result: DryResult) -> Iterator[Finding]:
    """Yield the finding on an early end. An error fails only if a real GPU would raise the error too."""
    if (stop := result.stopped) is None:
        code = result.exit or 0
        if code < 0 or result.memory is None:  # a normal end writes the memory and the caught errors
            how = signal_name(code) if code < 0 else "os._exit, which discards what was found"
            yield Finding("run.dry.followed", "inconclusive", f"not judged to the end: ended by {how}")
        elif is_of_ended_loops(result):
            yield Finding("run.dry.remark", "info", f"the program ended with status {code}", _ENDED_LOOPS)
        return
    if stop.kind == "OutOfMemoryError" and result.memory is not None and result.memory.exceeded is not None:
        return  # `_memory_findings` reports it
    place = stop.place or "an unknown line"
    evidence = asdict(stop)
    if (known := _known(stop.text.removeprefix("RuntimeError: "), place)) is not None:
        name, message, fix = known
        verdict: Verdict = "inconclusive" if result.assumed_count and name == "run.dry.dtype" else "fail"
        yield Finding(name, verdict, place, message, evidence, fix)
        return
    text = f"{stop.kind}: {stop.text}" if stop.text else stop.kind
    if is_of_ended_loops(result):
        title = f"the program ended with {stop.kind}"
        yield Finding("run.dry.remark", "info", title, f"{place}: {text}; {_ENDED_LOOPS}", evidence)
        return
    if not result.has_values and stop.of_device:
        text = f"values are needed here, but --no-values has none ({text})"
    fixed = f'{place}: write torch.device("cuda", N) for torch.device(N)' if rules.NO_ACCELERATOR in stop.text else None
    yield Finding("run.dry.followed", "inconclusive", f"not judged from {place} on", text, evidence, fixed)


def _memory_findings(result: DryResult) -> Iterator[Finding]:
    if (memory := result.memory) is None or memory.total_bytes is None:
        return
    peak, total = memory.peak, memory.total_bytes
    most = f"peak {capacity(peak.allocated_bytes)} of {capacity(total)}"
    evidence: dict[str, Any] = {"peak_bytes": peak.allocated_bytes, "total_bytes": total}
    if memory.exceeded is not None:
        first = memory.exceeded
        held = ", ".join(f"{line.place or 'unknown'} {capacity(line.bytes)}" for line in first.held[:3])
        where = first.place or "an unknown line"
        message = f"{capacity(first.asked_bytes)} requested at {where} in {first.phase}, step {first.step + 1}; {most}"
        evidence |= {"place": first.place}
        message += f"; most held by {held}" if held else ""
        verdict: Verdict = "info" if result.assumed_count and not result.has_values and not result.steps else "fail"
        yield Finding("run.dry.memory", verdict, "out of memory", message, evidence, _advice_of(memory))
    elif peak.allocated_bytes >= _CLOSE * total:
        message = f"{most} in tensors only; workspaces, the context and fragmentation are extra"
        yield Finding("run.dry.memory", "warn", "memory is close to full", message, evidence)
    else:
        share = percent(peak.allocated_bytes / total)
        yield Finding("run.dry.memory", "pass", f"tensors take {share} of the memory", most, evidence)


def _advice_of(memory: DryMemory) -> str | None:
    """Return the advice of `run`, from the bytes held at the peak."""
    peak = memory.peak
    gradients, optimizer = memory.gradients_bytes or 0, memory.optimizer_bytes or 0
    if peak.made_in:  # gradients and optimizer states may have been created after the peak
        gradients = min(gradients, peak.made_in.get("backward", 0))
        optimizer = min(optimizer, peak.made_in.get("step", 0))
    fixed = (memory.parameters_bytes or 0) + gradients + optimizer
    return _advice_by_size(fixed, max(peak.allocated_bytes - fixed, 0))


def _remarks(result: DryResult) -> Iterator[Finding]:
    for remark in result.remarks:
        yield Finding("run.dry.remark", "info", remark.text, remark.place or "")
    if result.assumed_count:
        places = dict.fromkeys(f"{value.what} {value.place or ''}".strip() for value in result.assumed)
        first = "; ".join([*places][:3])
        title = f"{result.assumed_count} values were assumed"
        yield Finding("run.dry.assumed", "info", title, f"{first}: 0 or False each")
    if result.unjudged:
        listed = model_judge.listed(result.unjudged)
        yield Finding("run.dry.unjudged", "info", "operations outside aten were not judged", listed)
