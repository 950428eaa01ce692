"""What every benchmark does the same way: the devices one after another, each with its share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpucheck.bench import limits, occupied
from gpucheck.errors import Terminated
from gpucheck.machine import choose, inventory
from gpucheck.machine.accel import Accel
from gpucheck.machine.in_use import held_bytes
from gpucheck.report.events import Emit, Judged, Measured, Notice, Started
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.thresholds import Limit

# The rows of a device as they are measured, until this time of `time.monotonic`.
Rows = Callable[[Accel, float], Iterator[Measurement]]
# What they come to, also where a signal cut them off.
Conclude = Callable[[Accel, Facts, Sequence[Measurement]], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Shared:
    """What every benchmark is given alike: the thresholds to judge by, and the machine where it was read before."""

    limits: tuple[Limit, ...] = ()
    facts: Facts | None = None


# Nothing is asked of the figures, and nobody has read the machine yet.
ALONE = Shared()


def begin(emit: Emit, facts: Facts, device_ids: Sequence[str], shared: Shared) -> None:
    """Say what is to be known before anything is measured: who else is there, and for whom no threshold counts."""
    for line in limits.by_other_names(shared.limits, facts, device_ids):
        emit(Notice(line, "warning"))
    for finding in occupied.judge(facts, device_ids):
        emit(Judged(finding))


def each(
    device: str,
    emit: Emit,
    rows: Rows,
    conclude: Conclude,
    *,
    time_budget_s: float | None,
    default_s: Callable[[Accel], float],
    shared: Shared = ALONE,
) -> None:
    """Measure and judge on every device that `device` names. `time_budget_s` is for all of them together.

    Ctrl-C is raised on after what there is was judged. Raises CannotLook and UsageError.
    """
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    chosen = choose.choose(device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))

    if shared.facts is None:
        begin(emit, facts, chosen.ids, shared)
    in_use = {device.id for device in facts.devices if held_bytes(device) is not None}

    def judge(accel: Accel, measured: Sequence[Measurement], *, complete: bool) -> None:
        found = list(conclude(accel, facts, measured))
        for finding in limits.judge(found, measured, shared.limits, accel.ref, complete=complete):
            emit(Judged(finding))

    for place, device_id in enumerate(chosen.ids):
        accel = choose.open_named(device_id, facts)
        left_s = (time_budget_s or default_s(accel) * len(chosen.ids)) - (time.monotonic() - began)
        deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
        measured: list[Measurement] = []
        try:
            with accel.as_current():
                for one in rows(accel, deadline):
                    measurement = replace(one, flags=(*one.flags, occupied.FLAG)) if device_id in in_use else one
                    emit(Measured(measurement))
                    measured.append(measurement)
        except (KeyboardInterrupt, Terminated):
            if measured:
                judge(accel, measured, complete=False)
            raise
        accel.empty_cache()
        judge(accel, measured, complete=True)
