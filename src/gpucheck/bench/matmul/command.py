"""The command `bench matmul`: every product that fits, on every device asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpucheck import units
from gpucheck.bench import devices, share
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.matmul.cases import Options, cases, fitting
from gpucheck.bench.matmul.judge import judge
from gpucheck.bench.matmul.measure import measure
from gpucheck.errors import CannotLook
from gpucheck.machine import host
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit, Judged, Notice, Progress
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

DEFAULT_BUDGET_S = 30.0
# Beyond this a row only grows more certain about this one process.
LONGEST_ROW_S = 3.0
# Of the memory that is free: the matrices leave room for the library's workspace and for the check.
MEMORY_SHARE = 0.8


def command(options: Options, emit: Emit, shared: Shared = ALONE) -> None:
    """Time matrix products on every device asked for. Raises CannotLook and UsageError."""
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, emit, deadline),
        lambda accel, facts, measured: judge(measured, share.part_of(accel, facts)),
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=shared,
    )


def _rows(options: Options, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    wanted = cases(options, accel)
    for case in wanted:
        if case.support.kind == "none":
            emit(Notice(f"{case.dtype} is left out: {case.support.reason}", "warning"))
    room = int((info[0] if (info := accel.memory_info()) else host.memory().usable) * MEMORY_SHARE)
    todo = list(fitting([case for case in wanted if case.support.kind != "none"], options, room))
    with Watch(accel.uuid) as watch:
        for done, case in enumerate(todo):
            emit(Progress(f"matmul {case.label} on {accel.id}", done, len(todo)))
            share_s = max(deadline - time.monotonic(), 0.0) / (len(todo) - done)
            try:
                result = measure(case, accel, min(share_s, LONGEST_ROW_S), watch)
            except (RuntimeError, MemoryError) as error:
                if "not implemented for" in str(error):
                    reason = str(error).strip().splitlines()[0]
                    emit(Judged(Finding("matmul.dtype", "skip", f"{accel.id} has no product in {case.dtype}", reason)))
                    continue
                if not accel.is_out_of_memory(error):
                    raise
                raise CannotLook(
                    f"memory ran out at {case.label}",
                    f"its matrices take {units.capacity(case.bytes)}, and something else took what was free",
                    "give a smaller --size, or end what else uses this memory",
                    finding="matmul.memory",
                ) from error
            accel.empty_cache()
            yield result.measurement
