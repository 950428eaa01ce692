"""Judge a run: findings from its answer, each from what was counted. Pure.

It measures what a line costs, not what you would save by removing it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.results.run import OutOfMemory, RunLine, RunResult
from gpucheck.units import capacity, duration, percent

# A line that takes less of the time than this is a remark.
_WORTH = 0.01
# Copies so small that their number costs, and how many of them in one step, or in all, are many.
_SMALL, _MANY_PER_STEP, _MANY = 64 * 1024, 100, 1000
# So often, and in this part of the steps, makes a habit.
_OFTEN, _MOST_STEPS = 3, 0.5


def findings(result: RunResult, folder: str = "") -> list[Finding]:
    """All that was found, the time first. Paths below `folder` are told without it."""
    told = [time_finding(result)]
    if result.error is not None or (result.exit or 0) < 0:
        told.append(_end(result, folder))
    if result.out_of_memory is not None:
        told.append(memory_finding(result.out_of_memory, folder))
    if result.growth is not None:
        told.append(_growth(result, folder))
    return told + of_lines(result, folder)


def of_lines(result: RunResult, folder: str) -> list[Finding]:
    """Return what the counts of each line show."""
    return [made for line in result.lines for judge in _JUDGES if (made := judge(line, result, folder)) is not None]


def at(file: str | None, line: int | None, folder: str) -> str:
    """`train.py:31`, from where the user is."""
    if file is None:
        return "an unknown line"
    inside = bool(folder) and file.startswith(os.path.join(folder, ""))
    return f"{os.path.relpath(file, folder) if inside else file}:{line}"


def time_finding(result: RunResult) -> Finding:
    """Return what the program waits for. A wait that can be cured is a warning."""
    titles = {
        "data": "the program waits for data",
        "host": "the device waits for the host",
        "copies": "the program waits for copies",
        "device": "the device is busy" if result.device_used else "the CPU is busy",
        "inconclusive": "inconclusive",
    }
    verdicts: dict[str, Verdict] = {"device": "pass", "inconclusive": "inconclusive"}
    fix = "more num_workers, or cheaper transforms, in the DataLoader" if result.waits_for == "data" else None
    verdict = verdicts.get(result.waits_for, "warn")
    return Finding("run.time", verdict, titles[result.waits_for], result.reason, {"of": result.waits_for}, fix)


def _end(result: RunResult, folder: str) -> Finding:
    code = result.exit or 0
    if result.error is not None:
        error = result.error
        first = error.text.strip().splitlines()[0] if error.text.strip() else ""
        where = at(error.file, error.line, folder)
        return Finding("run.ended", "info", f"the program ended with {error.kind} at {where}", first)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = "often the OOM killer: see sudo dmesg" if name == "SIGKILL" else ""
    if result.cut_off_in is not None:
        file, _, line = result.cut_off_in.rpartition(":")
        why = f"it waited for data at {at(file, int(line), folder)}"
    return Finding("run.ended", "info", f"the program was ended by {name}", why)


# -- memory -----------------------------------------------------------------------------------------------------------


def _growth(result: RunResult, folder: str) -> Finding:
    growth = result.growth
    assert growth is not None
    of = "the device's memory" if growth.of == "allocated" else "the program's memory"
    message = f"{capacity(growth.bytes_per_step)} a step over {growth.steps} steps, {capacity(growth.bytes)} in all"
    kept = [one for one in (result.traced.lines if result.traced else ()) if one.kept_bytes_per_step > 0]
    fix = None
    if kept:
        worst = max(kept, key=lambda one: one.kept_bytes_per_step)
        message += f"; most is created at {at(worst.file, worst.line, folder)}"
        held_by = worst.held_by or next((one.held_by for one in kept if one.held_by), None)
        message += f", kept by {held_by}" if held_by else ""
    else:
        fix = "gpucheck run --memory … names the line that creates the remaining tensors"
    return Finding("run.memory.growth", "warn", f"{of} grows from step to step", message, fix=fix)


def memory_finding(seen: OutOfMemory, folder: str) -> Finding:
    """Who held the memory that ran out, what is to blame, and what to change first."""
    parts = {
        "parameters": seen.parameters_bytes,
        "gradients": seen.gradients_bytes,
        "optimizer states": seen.optimizer_bytes,
        "other tensors": seen.others_bytes,
        "activations and the rest": seen.unnamed_bytes or 0,
    }
    held = ", ".join(f"{name} {capacity(size)}" for name, size in parts.items() if size) or "no tensor was alive"
    asked = "" if seen.asked_bytes is None else f"{capacity(seen.asked_bytes)} requested at once in {seen.phase}; "
    message = f"{asked}{held}"
    if seen.holders:
        most = seen.holders[0]
        where = at(most.file, most.line, folder)
        message += f"; most in {most.name} ({capacity(most.bytes)} in {most.tensors} tensors, {where})"
    title = f"memory of {seen.device} ran out"
    blamed = {"fragmentation": ": fragmented", "other-processes": ": other processes hold it"}.get(seen.blame or "", "")
    evidence = {"blame": seen.blame, **parts}
    device = seen.device if ":" in seen.device else None
    return Finding("run.memory.full", "fail", title + blamed, message, evidence, advice_of(seen), device)


def advice_of(seen: OutOfMemory) -> str | None:
    """Return what to change first, and by how much where that can be reckoned: to first order, as all such figures
    are."""
    if seen.blame == "fragmentation":
        return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if seen.blame == "other-processes":
        return "gpucheck devices shows the processes on the device: end one, or use another device"
    if seen.holders and seen.holders[0].tensors > 1 and _is_a_heap(seen):
        most = seen.holders[0]
        return f"{most.name} keeps {most.tensors} tensors: store numbers (loss.item(), .detach().cpu()) instead"
    fixed = seen.parameters_bytes + seen.gradients_bytes + seen.optimizer_bytes
    moving = seen.others_bytes + (seen.unnamed_bytes or 0)
    asked = seen.asked_bytes or 0
    if not fixed and not moving:
        return None
    if fixed > moving + asked or not moving:
        states = seen.optimizer_bytes > seen.parameters_bytes
        if states:
            kept = capacity(seen.optimizer_bytes)
            return f"optimizer states ({kept}) are the largest part: try 8-bit states or SGD before a smaller batch"
        return f"weights and gradients ({capacity(fixed)}) are the largest part: bfloat16 halves them"
    short = max(asked - (seen.free_bytes or 0), 0)
    share = short / (moving + asked) if moving + asked else 0.0
    if seen.total_bytes is None or not 0 < share < 1:
        return "a smaller batch first, then activation checkpointing, then bfloat16 autocast"
    return f"a batch smaller by about {percent(share)}, or checkpointing of the {capacity(moving)} of activations"


def _is_a_heap(seen: OutOfMemory) -> bool:
    """Return whether one list or dictionary of the user's holds more than all that training needs."""
    fixed = seen.parameters_bytes + seen.gradients_bytes + seen.optimizer_bytes
    most = seen.holders[0]
    return most.kind in ("list", "dict", "tuple", "set", "deque") and most.bytes > fixed


# -- lines ------------------------------------------------------------------------------------------------------------


def window_s(result: RunResult) -> float:
    """The time that shares are shares of."""
    return result.shares.window_s if result.shares is not None else result.wall_s


def _verdict(line: RunLine, result: RunResult) -> Verdict:
    """A warning where the line takes a part of the time that can be seen."""
    return "warn" if line.time_s >= _WORTH * window_s(result) else "info"


def _cost(line: RunLine) -> str:
    moved = f" {capacity(line.bytes)}" if line.bytes else ""
    spent = f", {duration(line.time_s)}" if line.time_s else ""  # a dry run tells no times
    return f"{line.count} times{',' if moved else ''}{moved}{spent}"


def _is_habit(line: RunLine, result: RunResult, count: int | None = None) -> bool:
    """Return whether it happens step by step, and not once at the beginning or now and then."""
    steps = result.steps.count if result.steps is not None else 0
    often = (line.count if count is None else count) >= _OFTEN
    return often and (line.steps >= _MOST_STEPS * steps if steps >= _OFTEN else line.in_loop is not False)


def _discarded(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if not line.discarded or line.kind not in ("to_device", "to_host", "between"):
        return None
    fix = "assign it: x = x.to(device); a tensor does not move in place"
    return _of("run.copies.discarded", "warn", "the result of .to() is discarded", line, folder, fix)


def _back(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.unchanged_back < _OFTEN:
        return None
    title = f"{line.unchanged_back} tensors are copied back unchanged"
    return _of("run.copies.back", _verdict(line, result), title, line, folder, "keep the tensor that was copied")


def _again(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.unchanged_again < _OFTEN or line.kind == "data":
        return None
    title = f"the same unchanged tensor is copied {line.unchanged_again + 1} times"
    fix = "copy it once before the loop; in a module: register_buffer"
    return _of("run.copies.again", _verdict(line, result), title, line, folder, fix)


def _made(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.made_by is None or not _is_habit(line, result):
        return None
    title = f"{line.made_by} creates a tensor on the host, which is moved each time"
    fix = f"{line.made_by}(…, device=device)"
    return _of("run.copies.made_on_host", _verdict(line, result), title, line, folder, fix)


def _unpinned(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.unpinned_async < _OFTEN:
        return None
    title = f"non_blocking=True from pageable memory: {line.unpinned_async} copies"
    fix = "pin_memory=True in the DataLoader, or tensor.pin_memory()"
    return _of("run.copies.unpinned", _verdict(line, result), title, line, folder, fix)


def _pageable(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.kind != "to_device" or line.pageable < _OFTEN or line.unpinned_async or line.made_by:
        return None
    if not _is_habit(line, result, line.pageable) or line.unchanged_again >= _OFTEN or _verdict(line, result) == "info":
        return None
    title = f"pageable copies block the program for {duration(line.time_s)}"
    fix = "pin_memory=True in the DataLoader and non_blocking=True here"
    return _of("run.copies.pageable", "warn", title, line, folder, fix)


def _small(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.kind not in ("to_device", "to_host", "between") or not line.count or line.bytes / line.count > _SMALL:
        return None
    if line.count < _MANY and line.count < _MANY_PER_STEP * max(line.steps, 1):
        return None
    size = capacity(line.bytes / line.count)
    fix = "stack them and copy once"
    return _of("run.copies.small", _verdict(line, result), f"many small copies of {size}", line, folder, fix)


def _emptied(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.kind != "empty_cache" or not _is_habit(line, result):
        return None
    fix = "remove it from the loop: the freed memory is requested from the driver again"
    return _of("run.empty_cache", "warn", "empty_cache in a loop", line, folder, fix)


def _read(line: RunLine, result: RunResult, folder: str) -> Finding | None:
    if line.kind in ("to_device", "to_host", "between", "data", "empty_cache") or not _is_habit(line, result):
        return None
    verdict: Verdict = "info"
    title = f"{line.kind} waits for the device"
    return _of("run.waits", verdict, title, line, folder, "read it every N steps, or once at the end")


def _of(name: str, verdict: Verdict, title: str, line: RunLine, folder: str, fix: str) -> Finding:
    where = at(line.file, line.line, folder)
    evidence = {"file": line.file, "line": line.line, "count": line.count, "bytes": line.bytes, "time_s": line.time_s}
    return Finding(name, verdict, title, f"{where}, {_cost(line)}", evidence, fix)


_JUDGES: tuple[Callable[[RunLine, RunResult, str], Finding | None], ...] = (
    *(_discarded, _back, _again, _made, _unpinned, _pageable, _small, _emptied, _read),
)


def costly(result: RunResult) -> Iterator[RunLine]:
    """The lines that are worth a row: what takes time, or what something is said of."""
    told = {(one.evidence.get("file"), one.evidence.get("line")) for one in findings(result)}
    for line in result.lines:
        if line.time_s >= _WORTH / 10 * window_s(result) or (line.file, line.line) in told:
            yield line
