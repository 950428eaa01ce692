"""What every benchmark does the same way: the devices one after another, each with its share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpucheck.errors import Terminated
from gpucheck.machine import choose, inventory
from gpucheck.machine.accel import Accel
from gpucheck.report.events import Emit, Judged, Measured, Notice, Started
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# The rows of a device as they are measured, until this time of `time.monotonic`.
Rows = Callable[[Accel, float], Iterator[Measurement]]
# What they come to, also where a signal cut them off.
Conclude = Callable[[Accel, Facts, Sequence[Measurement]], Iterable[Finding]]


def each(
    device: str,
    emit: Emit,
    rows: Rows,
    conclude: Conclude,
    *,
    time_budget_s: float | None,
    default_s: Callable[[Accel], float],
) -> None:
    """Measure and judge on every device that `device` names. `time_budget_s` is for all of them together.

    Ctrl-C is raised on after what there is was judged. Raises CannotLook and UsageError.
    """
    began = time.monotonic()
    facts = inventory.read()
    emit(Started(facts))
    chosen = choose.choose(device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    for place, device_id in enumerate(chosen.ids):
        accel = choose.open_named(device_id, facts)
        left_s = (time_budget_s or default_s(accel) * len(chosen.ids)) - (time.monotonic() - began)
        deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
        measured: list[Measurement] = []
        try:
            with accel.as_current():
                for measurement in rows(accel, deadline):
                    emit(Measured(measurement))
                    measured.append(measurement)
        except (KeyboardInterrupt, Terminated):
            if measured:
                _judge(conclude(accel, facts, measured), emit)
            raise
        accel.empty_cache()
        _judge(conclude(accel, facts, measured), emit)


def _judge(findings: Iterable[Finding], emit: Emit) -> None:
    for finding in findings:
        emit(Judged(finding))
