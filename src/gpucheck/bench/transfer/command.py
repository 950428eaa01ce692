"""The command `bench transfer`: its parts on every device asked for, then those that concern several devices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench import devices
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.transfer import bound, bound_place, parts
from gpucheck.bench.transfer.measure import room_for
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.bench.transfer.parts import PARTS, TOGETHER, Part
from gpucheck.bench.transfer.setting import Setting, Together
from gpucheck.errors import CannotLook, DeviceFailed, Terminated
from gpucheck.machine import faults
from gpucheck.machine.accel import Accel
from gpucheck.machine.numa import Bound
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Answered, Emit, Judged, Measured, Notice
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import TransferResult

# The command ends within 20 s on a device and 30 s on a CPU, starting torch included.
DEFAULT_BUDGET_S = {"device": 14.0, "cpu": 18.0, "sweep": 60.0}
# The parts that concern several devices start a child for each, which imports torch.
TOGETHER_S = 30.0
# Of the user's own budget, where he asks for every device.
TOGETHER_SHARE = 0.4


@dataclass(slots=True)
class _Seen:
    """What the devices one by one came to, for the parts that concern all of them."""

    facts: Facts = field(default_factory=Facts)
    ids: list[str] = field(default_factory=list)
    measured: list[Measurement] = field(default_factory=list)
    results: list[TransferResult] = field(default_factory=list)


def command(options: TransferOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Time copies to and from every device asked for. Raises CannotLook and UsageError."""
    began = time.monotonic()
    # A device that fails takes no part in what concerns several.
    shared = replace(shared, lost={} if shared.lost is None else shared.lost)
    chosen = options.select([*(one.id for one in parts.PARTS), *(one.id for one in parts.TOGETHER)])
    alone = [part for part in PARTS if part.id in chosen]
    several = any(part.id in chosen for part in TOGETHER)
    budget_s = options.time_budget_s
    seen = _Seen()
    ran: set[str] = set()

    def rows(accel: Accel, deadline: float) -> Iterator[Measurement]:
        ran.clear()
        if options.numa != "none" and alone:
            return bound.rows(options, [part.id for part in alone], accel, emit, deadline, ran)
        return rows_on(options, alone, accel, emit, deadline, ran)

    def conclude(accel: Accel, facts: Facts, measured: Sequence[Measurement]) -> list[Finding]:
        seen.facts = facts
        seen.ids.append(accel.id)
        seen.measured += measured
        seen.results.append(parts.answer(accel.id, measured, facts))
        emit(Answered("bench_transfer", tuple(seen.results)))
        return parts.judge_device(measured, facts, ran)

    devices.each(
        options.device,
        emit,
        rows,
        conclude,
        # Only with this name there can be several devices; how many there are is not known yet.
        name="transfer",
        time_budget_s=budget_s and budget_s * (1 - TOGETHER_SHARE if several and options.device == "all" else 1),
        default_s=lambda accel: (
            DEFAULT_BUDGET_S["sweep" if options.sweep else "cpu" if accel.is_cpu else "device"]
            + bound.START_S[options.numa]
        ),
        shared=shared,
    )
    seen.ids = [one for one in seen.ids if one not in (shared.lost or {})]
    if len(seen.ids) > 1:
        _together(options, chosen, seen, emit, began + budget_s if budget_s else time.monotonic() + TOGETHER_S)
    elif not alone:
        raise CannotLook(
            f"{', '.join(sorted(chosen))} needs several devices",
            f"{seen.ids[0] if seen.ids else 'none'} is the only one here",
            "give --device all on a machine with several",
            finding="transfer.together",
        )


def rows_on(
    options: TransferOptions,
    wanted: Sequence[Part],
    accel: Accel,
    emit: Emit,
    deadline: float,
    ran: set[str],
    node: Bound | None = None,
) -> Iterator[Measurement]:
    """The rows of every part that applies; `ran` gets their ids. One that has no room costs only itself.

    What there is no time left for is told in one finding; the first part is always measured.

    `node` is what this process was bound to.
    """
    todo = [part for part in wanted if part.applies(accel)]
    if not wanted:
        return
    if not todo:
        names = ", ".join(part.id for part in wanted)
        raise CannotLook(f"{names} cannot be measured on {accel.id}", finding="transfer.part")
    place_told = bound_place.where(node, ())
    with Watch(accel.uuid) as watch:
        for place, part in enumerate(todo):
            left_s = max(deadline - time.monotonic(), 0.0)
            if place and not left_s:
                emit(Judged(_no_time(todo[place:])))
                break
            part_s = left_s * part.weight / sum(one.weight for one in todo[place:])
            room = bound_place.within(room_for(accel, options.host_share), node, options.host_share)
            setting = Setting(options, accel, room, watch, emit, time.monotonic() + part_s, node)
            ran.add(part.id)
            try:
                for one in part.rows(setting):
                    yield bound_place.placed(one, place_told)
            except CannotLook as error:
                if place == 0:
                    raise
                emit(Judged(Finding(error.finding, "skip", error.what, error.why, fix=error.fix or None)))
            accel.empty_cache()


def _no_time(left: Sequence[Part]) -> Finding:
    names = [part.id for part in left]
    return Finding(
        "transfer.time",
        "skip",
        f"not measured: {', '.join(names)}",
        "the time was up",
        {"parts": names},
        fix=f"give a longer --time-budget, or --only {names[0]}",
    )


def _together(options: TransferOptions, chosen: frozenset[str], seen: _Seen, emit: Emit, deadline: float) -> None:
    todo = [part for part in TOGETHER if part.id in chosen and part.applies(seen.ids)]
    ran: set[str] = set()
    try:
        for place, part in enumerate(todo):
            left_s = max(deadline - time.monotonic(), 0.0)
            part_s = left_s * part.weight / sum(one.weight for one in todo[place:])
            together = Together(options, tuple(seen.ids), seen.facts, emit, time.monotonic() + part_s)
            ran.add(part.id)
            try:
                for measurement in part.rows(together):
                    emit(Measured(measurement))
                    seen.measured.append(measurement)
            except DeviceFailed as error:
                faults.tell(faults.of(error, "bench transfer", error.device, step=part.id), emit)
            except CannotLook as error:
                emit(Judged(Finding(error.finding, "skip", error.what, error.why, fix=error.fix or None)))
    except (KeyboardInterrupt, Terminated):
        emit(Notice("interrupted: not every device was measured beside the others", "warning"))
        _judge_together(seen, ran, emit)
        raise
    _judge_together(seen, ran, emit)


def _judge_together(seen: _Seen, ran: set[str], emit: Emit) -> None:
    for finding in parts.judge_together(seen.measured, seen.facts, ran):
        emit(Judged(finding))
