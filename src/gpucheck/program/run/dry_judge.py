"""Judge a dry run: its answer from the board, and findings from that. Pure but for the program's source."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, TypeVar

from gpucheck.program import judge as model_judge
from gpucheck.program import rules
from gpucheck.program.run import board, judge
from gpucheck.program.run.options import STEPS, RunOptions
from gpucheck.report.codec import from_json
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.results.model import DeviceMismatchEntry, UnjudgedOperation
from gpucheck.report.results.run import (
    AssumedValue,
    CaughtError,
    DryLine,
    DryMemory,
    DryMismatch,
    DryResult,
    DryStop,
    HeldBytes,
    MemoryMoment,
    OutOfMemory,
    Remark,
    RunLine,
    RunResult,
)
from gpucheck.units import capacity, percent

_FORK_FIX = (
    "in a DataLoader's worker return CPU tensors and move the batch in the main process; else start processes "
    "with spawn"
)
_UNPUBLISHED = "cuDNN does not publish how much memory an RNN keeps"
# `work.storages` sums tensors, in blocks as CUDA's allocator hands them out.
_NOT_COUNTED = (
    "workspaces of cuDNN, cuBLAS and attention's backward pass",
    "buffers of NCCL",
    "the CUDA context (about 300 to 600 MiB for each process)",
    "memory that the allocator caches or fragments",
)
# From this part of the memory on what is not counted decides.
_CLOSE = 0.9


def result(read: board.Read, counted: RunResult, options: RunOptions, written: tuple[str, ...] | None) -> DryResult:
    """The answer. `counted` is what `run` makes of the same board."""
    assert options.dry is not None
    stopped = _stopped(read)
    return DryResult(
        program=options.program,
        device=f"cuda:0 ({options.dry.name})",
        exit=counted.exit,
        torch=counted.torch,
        has_values=not options.no_values,
        steps=min(read.head[board.STEPS], options.steps or STEPS),
        ended_after_steps=any(read.said("steps_done")),
        mismatches=tuple(
            DryMismatch(
                mismatch=from_json(DeviceMismatchEntry, one["entry"]),
                ended=one["ended"],
                assumed=one["assumed"],
                times=one["times"],
            )
            for one in read.said("mismatch")
        ),
        stopped=stopped,
        lines=tuple(_line(one) for one in counted.lines if one.kind != "data"),
        memory=_memory(read, options),
        assumed=_told(read, "assumed", AssumedValue),
        assumed_count=next((one["assumed"] for one in read.said("memory")), 0),
        unjudged=_told(read, "unjudged", UnjudgedOperation),
        remarks=tuple(dict.fromkeys(_told(read, "remark", Remark))),
        written=written,
        mixed=tuple(_mixed(read, stopped)),
        in_forks=next(iter(_told(read, "fork", CaughtError)), None),
        trains=next((one["trains"] for one in read.said("memory")), False),
    )


_Told = TypeVar("_Told", AssumedValue, UnjudgedOperation, Remark, CaughtError)


def _told(read: board.Read, kind: str, made: type[_Told]) -> tuple[_Told, ...]:
    """The lines of one kind as results have them: said by the names of their fields."""
    return tuple(made(**{name: value for name, value in one.items() if name != "say"}) for one in read.said(kind))


def _stopped(read: board.Read) -> DryStop | None:
    said = next((one for one in read.said("stopped") if not one["mismatch"]), None)
    if said is None:
        return None
    return DryStop(
        kind=said["class"],
        text=said["text"],
        place=said["place"],
        of_device=said["of_device"],
        autocast=said["autocast"],
    )


def _mixed(read: board.Read, stopped: DryStop | None) -> Iterator[CaughtError]:
    """The errors about dtypes but for the one that ended the program."""
    for one in _told(read, "mixed", CaughtError):
        times = one.times - (stopped is not None and stopped.text == one.text)
        if times:
            yield replace(one, times=times)


def _line(one: RunLine) -> DryLine:
    kept = DryLine.__dataclass_fields__
    return DryLine(**{name: value for name in kept if (value := getattr(one, name)) is not None or name == "source"})


def _memory(read: board.Read, options: RunOptions) -> DryMemory | None:
    said = next(read.said("memory"), None)
    if said is None or options.dry is None:
        return None
    kept: dict[str, int] = next(reversed([*read.said("kept")]), {})
    exceeded = next(read.said("exceeded"), None)
    total = options.dry.total_bytes
    return DryMemory(
        total_bytes=total,
        total_of=None if total is None else options.dry.name,
        peak=_moment(said["peak"]),
        peak_by_phase=said["phases"],
        parameters_bytes=kept.get("parameters"),
        gradients_bytes=kept.get("gradients"),
        optimizer_bytes=kept.get("optimizer"),
        exceeded=None if exceeded is None else _moment(exceeded["peak"]),
        not_counted=_NOT_COUNTED,
        most_bytes=said["most"],
    )


def _moment(said: dict[str, Any]) -> MemoryMoment:
    return MemoryMoment(
        place=said["place"],
        phase=said["phase"],
        step=said["step"],
        asked_bytes=said["asked"],
        allocated_bytes=said["allocated"],
        made_in=said["made_in"],
        held=tuple(HeldBytes(**one) for one in said["held"]),
    )


# -- findings ----------------------------------------------------------------------------------------------------------


def findings(result: DryResult, counted: RunResult, folder: str) -> list[Finding]:
    """All findings, the worst first. Advice on copies is what `run` gives, without times."""
    found = [
        *_mismatches(result),
        *_stop(result, folder),
        *_undone(result),
        *_memory_findings(result),
        *_advice(counted, folder),
        *_remarks(result),
    ]
    if not any(one.id in ("run.dry.mismatch", "run.dry.dtype", "run.dry.fork", "run.dry.followed") for one in found):
        found.append(Finding("run.dry.placement", "pass", "no tensor was on the wrong device", _how_far(result)))
    return sorted(found, key=lambda one: WORST_FIRST.index(one.verdict))


def _how_far(result: DryResult) -> str:
    steps = f"{result.steps} optimizer step{'' if result.steps == 1 else 's'}"
    if result.ended_after_steps:
        return f"{steps}, then the program was ended"
    return f"the whole program, {steps}" if result.steps else "the whole program"


def _mismatches(result: DryResult) -> Iterator[Finding]:
    for one in result.mismatches:
        made = model_judge.mismatch(one.mismatch)
        status = result.exit if result.stopped is None and not one.ended else 0
        verdict: Verdict = "fail" if one.ended or status else "warn"
        message = made.message
        if one.assumed:
            verdict = "inconclusive" if one.ended else "warn"
            message = f"{message}; {one.assumed} values were assumed before"
        if not one.ended:
            message = f"{message}; {_caught(one.times)}" + (f" and ended with status {status}" if status else "")
        evidence = {**made.evidence, "ended": one.ended, "times": one.times}
        yield replace(made, id="run.dry.mismatch", verdict=verdict, message=message, evidence=evidence)
    if result.in_forks is not None and result.stopped is None:
        yield _in_forks(result.in_forks)
    for mixed in result.mixed:
        place = mixed.place or "an unknown line"
        message = f"operands of different dtypes: {mixed.text}; {_caught(mixed.times)}"
        yield Finding("run.dry.dtype", "warn", place, message, asdict(mixed), fix=_one_dtype(place))


def _in_forks(seen: CaughtError) -> Finding:
    """Return what a process that the program forked met, such as a DataLoader's worker, and the program went on."""
    place = seen.place or "an unknown line"
    kinds = {rules.APART: ("run.dry.mismatch", f"{place}: bring both to one device")}
    kinds |= dict.fromkeys((rules.FORKED, rules.FORKED_KERNEL), ("run.dry.fork", _FORK_FIX))
    # The board keeps the beginning of a text.
    name, fix = next((to for text, to in kinds.items() if text[:30] in seen.text), ("run.dry.dtype", ""))
    message = f"in a process that the program forked: {seen.text}; {_caught(seen.times)}"
    return Finding(name, "warn", place, message, asdict(seen), fix or _one_dtype(place))


def _caught(times: int) -> str:
    return "the program caught the error" + (f" {times} times" if times > 1 else "")


def _one_dtype(place: str) -> str:
    return f"{place}: bring both to one dtype with .to(dtype)"


def _undone(result: DryResult) -> Iterator[Finding]:
    """A program that did not do what it was there for has shown nothing."""
    if result.memory is None or result.stopped is not None or any(one.ended for one in result.mismatches):
        return
    if result.trains and not result.steps:
        why = "the program created an optimizer and ended before its first step"
        yield Finding("run.dry.followed", "inconclusive", "no step was judged", why)
    elif not result.memory.peak.allocated_bytes:
        why = "the device may be set by an option"
        yield Finding("run.dry.followed", "inconclusive", "the program put no tensor on the device", why)


def _stop(result: DryResult, folder: str) -> Iterator[Finding]:
    """Yield what ended the program before its end. Only a dtype that CUDA refuses as well is a fault."""
    stop = result.stopped
    if stop is None:
        code = result.exit or 0
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            yield Finding("run.dry.followed", "inconclusive", f"not judged to the end: ended by {name}")
        return
    place = stop.place or "an unknown line"
    evidence = asdict(stop)
    if rules.MIXED_DTYPES.search(stop.text) and not stop.autocast:
        verdict: Verdict = "inconclusive" if result.assumed_count else "fail"
        message = f"operands of different dtypes: {stop.text}"
        yield Finding("run.dry.dtype", verdict, place, message, evidence, _one_dtype(place))
        return
    if rules.APART in stop.text:  # in a worker: there it is raised as plain text
        text = stop.text.removeprefix("RuntimeError: ")
        yield Finding("run.dry.mismatch", "fail", place, text, evidence, f"{place}: bring both to one device")
        return
    if rules.FORKED in stop.text or rules.FORKED_KERNEL in stop.text:
        text = stop.text.removeprefix("RuntimeError: ")
        message = f"CUDA in a process that was forked after its parent had used CUDA: {text}"
        yield Finding("run.dry.fork", "fail", place, message, evidence, _FORK_FIX)
        return
    text = f"{stop.kind}: {stop.text}" if stop.text else stop.kind
    if not result.has_values and stop.of_device:
        text = f"values are needed here, but --no-values has none ({text})"
    yield Finding("run.dry.followed", "inconclusive", f"not judged from {place} on", text, evidence)


def _memory_findings(result: DryResult) -> Iterator[Finding]:
    memory = result.memory
    if memory is None or memory.total_bytes is None:
        return
    peak, total = memory.peak, memory.total_bytes
    highest = max(memory.most_bytes or 0, peak.allocated_bytes)
    most = f"peak {peak_text(memory)} of {capacity(total)}"
    evidence: dict[str, Any] = {"peak_bytes": peak.allocated_bytes, "most_bytes": highest, "total_bytes": total}
    if memory.exceeded is not None:
        first = memory.exceeded
        held = ", ".join(f"{one.place or 'unknown'} {capacity(one.bytes)}" for one in first.held[:3])
        where = first.place or "an unknown line"
        message = f"{capacity(first.asked_bytes)} requested at {where} in {first.phase}, step {first.step + 1}; {most}"
        evidence |= {"place": first.place}
        verdict: Verdict = "info" if result.assumed_count and not result.has_values and not result.steps else "fail"
        yield Finding(
            "run.dry.memory", verdict, "out of memory", f"{message}; most held by {held}", evidence, _advice_of(memory)
        )
    elif highest > total:
        message = f"{most}: it fits at {capacity(peak.allocated_bytes)} but not at {capacity(highest)}; {_UNPUBLISHED}"
        yield Finding("run.dry.memory", "inconclusive", "memory may run out", message, evidence)
    elif highest >= _CLOSE * total:
        message = f"{most} in tensors only; workspaces, the context and fragmentation are extra"
        yield Finding("run.dry.memory", "warn", "memory is close to full", message, evidence)
    else:
        share = percent(highest / total)
        bound = "" if highest == peak.allocated_bytes else "at most "
        yield Finding("run.dry.memory", "pass", f"tensors take {bound}{share} of the memory", most, evidence)


def peak_text(memory: DryMemory) -> str:
    """The peak, or the two figures between which it lies."""
    least, highest = capacity(memory.peak.allocated_bytes), capacity(memory.most_bytes or 0)
    if (memory.most_bytes or 0) <= memory.peak.allocated_bytes:
        return least
    number, _, unit = least.partition(" ")
    return f"{number if highest.endswith(f' {unit}') else least} to {highest}"


def _advice_of(memory: DryMemory) -> str | None:
    """Return what to change first, as `run` says it, from what was held at the peak: gradients and states may come
    later."""
    first = memory.peak
    there = {"backward": memory.gradients_bytes or 0, "step": memory.optimizer_bytes or 0}
    held = [min(size, first.made_in.get(phase, 0)) if first.made_in else size for phase, size in there.items()]
    parts = [memory.parameters_bytes or 0, *held]
    before = first.allocated_bytes - first.asked_bytes
    seen = OutOfMemory(
        device="cuda:0",
        asked_bytes=first.asked_bytes,
        total_bytes=memory.total_bytes,
        free_bytes=(memory.total_bytes or 0) - before,  # below 0 where more is held already than there is
        allocated_bytes=before,
        reserved_bytes=None,
        largest_free_block_bytes=None,
        other_processes_bytes=None,
        parameters_bytes=parts[0],
        gradients_bytes=parts[1],
        optimizer_bytes=parts[2],
        others_bytes=0,
        unnamed_bytes=max(before - sum(parts), 0),
        blame="size",
        holders=(),
        phase=first.phase,
        step=first.step,
    )
    return judge.advice_of(seen)


def _advice(counted: RunResult, folder: str) -> Iterator[Finding]:
    """Yield what `run` advises on copies and waits, for lines whose times are not known."""
    untimed = replace(counted, lines=tuple(replace(one, time_s=0.0, longest_s=0.0) for one in counted.lines))
    for one in judge.of_lines(untimed, folder):
        evidence = {key: value for key, value in one.evidence.items() if key != "time_s"}
        yield replace(one, evidence=evidence)


def _remarks(result: DryResult) -> Iterator[Finding]:
    for one in result.remarks:
        yield Finding("run.dry.remark", "info", one.text, one.place or "")
    if result.assumed_count:
        places = dict.fromkeys(f"{one.what} {one.place or ''}".strip() for one in result.assumed)
        first = "; ".join([*places][:3])
        title = f"{result.assumed_count} values were assumed"
        yield Finding("run.dry.assumed", "info", title, f"{first}: 0 or False each")
    if result.unjudged:
        told = ", ".join(one.operation + (f" ({one.place})" if one.place else "") for one in result.unjudged)
        yield Finding("run.dry.unjudged", "info", "operations outside aten were not judged", told)


def relative(result: DryResult, folder: str) -> DryResult:
    """The same with its lines' files named from `folder`, where the program ran."""
    lines = tuple(
        replace(one, file=os.path.relpath(one.file, folder)) if one.file.startswith(os.path.join(folder, "")) else one
        for one in result.lines
    )
    return replace(result, lines=lines)
