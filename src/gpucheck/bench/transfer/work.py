"""The command `bench transfer`: its parts on every device asked for, then those that concern several devices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench import devices
from gpucheck.bench.buffers import room_for
from gpucheck.bench.devices import ALONE, Shared, share_until
from gpucheck.bench.transfer import both_ways, copies, idioms, judge, peer, together
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.bench.transfer.part import Part, Setting, Together, TogetherPart
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import faults, inventory, kept, numa, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Began, Emit, Failed, Finished, Measured, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding, of_error
from gpucheck.report.measurement import Measurement

PARTS: tuple[Part, ...] = (
    Part("copies", 8.0, copies.rows),
    Part("idioms", 3.0, idioms.measured),
    Part("both_ways", 3.0, both_ways.rows, both_ways.applies),
    Part("on_device", 1.5, copies.rows_on_device, copies.has_memory),
)
TOGETHER: tuple[TogetherPart, ...] = (
    TogetherPart("together", 2.0, together.rows),
    TogetherPart("peer", 3.0, peer.rows, peer.applies),
)

# The command ends within 20 s on a device and 30 s on a CPU, starting torch included.
DEFAULT_BUDGET_S = {"device": 14.0, "cpu": 18.0, "sweep": 60.0}
# The parts that concern several devices start a child for each, which imports torch.
TOGETHER_S = 30.0
# Of the user's own budget, where he asks for every device.
TOGETHER_SHARE = 0.4


def command(options: TransferOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Time copies to and from every device asked for. Raises CannotLook and UsageError."""
    began = time.monotonic()
    # A device that fails takes no part in what concerns several.
    lost: dict[str, Fault] = {} if shared.lost is None else shared.lost
    chosen = options.select([*(one.id for one in PARTS), *(one.id for one in TOGETHER)])
    facts = shared.facts or inventory.read()
    alone = [part for part in PARTS if part.id in chosen]
    several = any(part.id in chosen for part in TOGETHER)
    budget_s = options.time_budget_s
    measured = devices.each(
        options.device,
        emit,
        lambda accel, deadline: rows_on(options, alone, accel, emit, deadline),
        # Only with this name there can be several devices; how many there are is not known yet.
        name=judge.NAME,
        time_budget_s=budget_s and budget_s * (1 - TOGETHER_SHARE if several and options.device == "all" else 1),
        default_s=lambda accel: DEFAULT_BUDGET_S["sweep" if options.sweep else "cpu" if accel.is_cpu else "device"],
        shared=replace(shared, facts=facts, lost=lost),
    )
    ids = [one for one in measured if one not in lost]
    if len(ids) > 1:
        until = began + budget_s if budget_s else time.monotonic() + TOGETHER_S
        if shared.until_s is None:
            pulse.ends_by(until - began, began)
        _together(options, chosen, ids, facts, emit, until)
    elif not alone:
        raise CannotLook(
            f"{', '.join(sorted(chosen))} needs several devices",
            f"{ids[0] if ids else 'none'} is the only one here",
            "use --device all on a machine with several",
            finding="transfer.together",
        )


def rows_on(
    options: TransferOptions, wanted: Sequence[Part], accel: Accel, emit: Emit, deadline: float
) -> Iterator[Measurement]:
    """The rows of every part that applies. One that has no room costs only itself.

    What there is no time left for is told in one finding; the first part is always measured.
    """
    todo = [part for part in wanted if part.applies(accel)]
    if not wanted:
        return
    if not todo:
        names = ", ".join(part.id for part in wanted)
        raise CannotLook(f"{names} cannot be measured on {accel.id}", finding="transfer.part")
    # On which node the memory of a process that is not bound came to lie differs from run to run, and is no part of the
    # method: what is told is where it may run.
    nodes = numa.allowed_text()
    with Watch(accel.uuid) as watch:
        for place, part in enumerate(todo):
            pulse.go_on()
            if place and time.monotonic() >= deadline:
                emit(Skipped(_no_time(todo[place:], accel.id)))
                break
            until = share_until(deadline, [one.weight for one in todo[place:]])
            setting = Setting(options, accel, room_for(accel, options.host_share), watch, emit, until)
            emit(Began(judge.part(part.id), accel.id))
            why = ""
            try:
                for one in part.rows(setting):
                    yield replace(one, method=replace(one.method, numa=nodes))
            except pulse.OutOfTime:
                emit(Finished(judge.part(part.id), accel.id, "time"))
                raise
            except CannotLook as error:
                if place == 0:
                    raise
                emit(Skipped(of_error(error, accel.id)))
                why = "memory"
            emit(Finished(judge.part(part.id), accel.id, why))
            kept.settle(accel)
            accel.empty_cache()


def _no_time(left: Sequence[Part | TogetherPart], device: str | None = None) -> Finding:
    names = [part.id for part in left]
    return Finding(
        "transfer.time",
        "skip",
        f"not measured: {', '.join(names)}",
        "out of time",
        {"parts": names},
        fix=f"use a longer --time-budget, or --only {names[0]}",
        device=device,
    )


def _together(
    options: TransferOptions, chosen: frozenset[str], ids: Sequence[str], facts: Facts, emit: Emit, deadline: float
) -> None:
    """Measure several devices at once: each in a process of its own."""
    todo = [part for part in TOGETHER if part.id in chosen and part.applies(ids)]
    for place, part in enumerate(todo):
        until = share_until(deadline, [one.weight for one in todo[place:]])
        emit(Began(judge.part(part.id)))
        why = ""
        try:
            for one in part.rows(Together(options, tuple(ids), facts, emit, until)):
                emit(Measured(one))
        except DeviceFailed as error:
            emit(Failed(faults.of(error, "bench transfer", error.device, step=part.id)))
            why = "fault"
        except CannotLook as error:
            emit(Skipped(of_error(error)))
            why = "memory"
        except pulse.OutOfTime:
            emit(Skipped(_no_time(todo[place:])))
            emit(Finished(judge.part(part.id), why="time"))
            return
        emit(Finished(judge.part(part.id), why=why))
