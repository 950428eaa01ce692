"""The command `bench transfer`: copies to and from every device asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import devices
from gpucheck.bench.transfer import judge
from gpucheck.bench.transfer.cases import Options, cases, fitting
from gpucheck.bench.transfer.judge import Link
from gpucheck.bench.transfer.measure import buffers, measure, room_for, wake
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Answered, Emit, Judged, Notice, Progress
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# The command ends within 20 s on a device and 30 s on a CPU, starting torch included.
DEFAULT_BUDGET_S = {"device": 14.0, "cpu": 18.0, "sweep": 60.0}
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0


def command(options: Options, emit: Emit) -> None:
    """Time copies to and from every device asked for. Raises CannotLook and UsageError."""
    results: list[dict[str, Any]] = []

    def conclude(accel: Accel, facts: Facts, measured: Sequence[Measurement]) -> list[Finding]:
        link = link_under_load(accel, measured)
        results.append(answer(accel.id, measured, link))
        emit(Answered("bench_transfer", results))
        return judge.judge(measured, link)

    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, emit, deadline),
        conclude,
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S["sweep" if options.sweep else "cpu" if accel.is_cpu else "device"],
    )


def answer(device_id: str, measured: Sequence[Measurement], link: Link) -> dict[str, Any]:
    """What the rows of one device come to: gains and latencies as called, and the link."""
    return {
        "device": device_id,
        "link": {
            "generation": link.generation,
            "width": link.width,
            "max_width": link.max_width,
            "limit_bytes_per_s": link.rate,
            "unknown_because": link.reason or None,
        },
        "gains": judge.speedups(measured),
        "latencies": judge.latencies(measured),
    }


def _rows(options: Options, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    memories = [memory for memory in options.memories if accel.can_pin or memory == "pageable"] or ["pageable"]
    room = room_for(accel)
    sizes, too_large = fitting(options, room, len(memories))
    todo = cases(options, accel, sizes)
    if accel.is_cpu:
        emit(Notice("on the CPU these are copies from host memory to host memory"))
    if too_large:
        left_out = ", ".join(units.capacity(size) for size in too_large)
        emit(Notice(f"{left_out} left out: buffers may take {units.capacity(room.most(len(memories)))} each"))
    if not todo:
        return
    emit(Progress("allocating", 0, len(todo)))
    shared = buffers(accel, memories, room.capacity(max(sizes), len(memories)))
    if shared.no_pinned is not None:
        emit(Judged(Finding("transfer.pinned", "skip", "no pinned memory was to be had", shared.no_pinned)))
        todo = [case for case in todo if case.memory != "pinned"]
    if not accel.is_cpu:
        wake(accel, shared)
    with Watch(accel.uuid) as watch:
        for done, case in enumerate(todo):
            emit(Progress(case.label, done, len(todo)))
            share_s = max(deadline - time.monotonic(), 0.0) / (len(todo) - done)
            measured = measure(case, accel, shared, room, min(share_s, LONGEST_ROW_S), watch)
            yield measured


def link_under_load(accel: Accel, measured: Sequence[Measurement]) -> Link:
    """The link as telemetry saw it inside the windows of the largest pinned copies."""
    pinned = [one for one in measured if one.case["host_memory"] == "pinned"]
    for one in sorted(pinned, key=lambda one: -one.case["size_bytes"]):
        seen = (one.telemetry or {}).get("pcie") or {}
        if seen.get("generation") and seen.get("width"):
            return Link(seen["generation"], seen["width"], seen.get("max_width"))
    reasons = [one.method.details.get("no_telemetry_because") for one in pinned]
    return Link(
        reason="a CPU has none" if accel.is_cpu else reasons[-1] if reasons and reasons[-1] else "it was not read"
    )
