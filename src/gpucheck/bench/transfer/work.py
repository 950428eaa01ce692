"""The command `bench transfer`: its parts on every device asked for, then those that concern several devices.

Here are also the plainest parts: copies between host and device of every size, way and kind of memory, and within the
device, timed and verified.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import torch

from gpucheck import units
from gpucheck.bench import buffers, devices, judging
from gpucheck.bench.buffers import (
    ASSUMED_CACHE_BYTES,
    COLD_FACTOR,
    MOST_BYTES,
    VERIFYING_SHARE,
    Buffers,
    Copies,
    Room,
    allocate,
    allocate_all,
    no_room,
    room_for,
    too_little,
    wake,
)
from gpucheck.bench.devices import ALONE, Shared, share_until
from gpucheck.bench.transfer import (
    SAMPLING_SHARE,
    Part,
    Setting,
    Together,
    TransferOptions,
    both_ways,
    copies_judge,
    idioms,
    judge,
)
from gpucheck.bench.transfer.copies_judge import NAME
from gpucheck.bench.transfer.judge import MOVES, ON_DEVICE
from gpucheck.errors import CannotLook, DeviceFailed, UsageError
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import faults, inventory, kept, numa, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Began, Emit, Failed, Finished, Measured, Notice, Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding, of_error
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, KIB, MIB

# `link`: on the device's clock; `as_called`: on the host's, with the wait for its end.
Timed = Literal["link", "as_called"]
# A batch of token ids, of feature rows and of images; then what fills a link: 128 MiB, nvbandwidth's 512 MiB, and twice
# that, where some machines fall off.
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
SWEEP = tuple(2**power for power in range(12, 31))

# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0
# The link may sleep since the row before, and wakes within milliseconds.
ROW_WARM_UP_S = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """One row: which way, from which memory, how much, and on whose clock."""

    direction: Direction
    memory: HostMemory
    size: int
    timed: Timed

    @property
    def weight(self) -> float:
        """Return how much time the row needs beside a small one: a GiB takes as long to fill as four small rows."""
        return 1.0 + self.size / (256 * MIB)

    @property
    def label(self) -> str:
        """The row in words."""
        by = ", the link alone" if self.timed == "link" else ""
        return f"{units.capacity(self.size)} {self.direction.replace('_', ' ')}, {self.memory}{by}"


def rows(setting: Setting) -> Iterator[Measurement]:
    """Copies of every size, direction and kind of memory. Raises CannotLook and UsageError."""
    options, accel, emit = setting.options, setting.accel, setting.emit
    memories: list[HostMemory] = [memory for memory in options.memories if accel.can_pin or memory == "pageable"]
    memories = memories or ["pageable"]
    room = replace(setting.room, pinned="pinned" in memories)
    sizes, too_large = fitting(options, room, len(memories))
    todo = cases(options, accel, sizes)
    if accel.is_cpu:
        emit(Notice("on a CPU: copies within host memory"))
    if too_large:
        left_out = ", ".join(units.capacity(size) for size in too_large)
        emit(Notice(f"{left_out} skipped: buffers are limited to {units.capacity(room.most(len(memories)))} each"))
    if not todo:
        return
    emit(Progress("allocating", 0, len(todo)))
    shared = allocate_all(accel, memories, room.capacity(max(sizes), len(memories)), "transfer.memory")
    if shared.no_pinned is not None:
        emit(Skipped(judge.no_pinned(shared.no_pinned, accel.id)))
        todo = [case for case in todo if case.memory != "pinned"]
    if not accel.is_cpu:
        wake(accel, shared)
    for done, case in enumerate(todo):
        if _is_late(case, todo[:done], setting):
            late = ", ".join(units.capacity(size) for size in sizes if size >= case.size)
            emit(Notice(f"{late} skipped: out of time; use a longer --time-budget"))
            return
        pulse.go_on()
        emit(Progress(case.label, done, len(todo)))
        left = sum(one.weight for one in todo[done:]) / case.weight
        yield measure(case, accel, shared, room, setting.row_s(left, LONGEST_ROW_S), setting.watch)


def _is_late(case: Case, done: Sequence[Case], setting: Setting) -> bool:
    """Return whether time ran out before the first row of a size that nobody named, and that no verdict needs."""
    begun = bool(done) and done[-1].size == case.size
    needed = begun or bool(setting.options.sizes) or case.size <= judging.LARGE_BYTES
    return not needed and time.monotonic() >= setting.deadline


def measure(case: Case, accel: Accel, shared: Buffers, room: Room, budget_s: float, watch: Watch) -> Measurement:
    """Time and verify one row."""
    accel.reset_peak()
    sampling_s = budget_s * SAMPLING_SHARE
    copies = Copies(
        *shared.ends(case.direction, case.memory),
        case.size,
        span=room.span(case.size),
        non_blocking=case.memory == "pinned",
        synchronize=accel.synchronize,
        allowance_s=sampling_s * VERIFYING_SHARE,
    )
    by_device = case.timed == "link"
    made = buffers.measure(
        NAME,
        accel,
        copies,
        watch,
        "device events" if by_device else "host",
        timing.Limits(sampling_s, 0.0 if accel.is_cpu else min(ROW_WARM_UP_S, budget_s / 10)),
        case={"direction": case.direction, "host_memory": case.memory, "size_bytes": case.size, "timed": case.timed},
        cold=room.cold,
        details={
            "non_blocking": copies.non_blocking,
            "synchronised": "after each window" if by_device else "after each copy",
            "last_level_cache_bytes": room.known_cache,
        },
        # Copies to or from a device keep one core busy, those on the host torch's threads.
        threads=torch.get_num_threads() if accel.is_cpu else 1,
    )
    calls = made.runs[0].calls_per_sample + int(made.method.details["untimed_calls"])
    # Where a window copies onto the same slice again, what was compared is the last of these copies.
    told = {"refills": copies.refills, "every_copy_in_its_own_slice": calls <= copies.count}
    rate = made.rate.median if made.rate else None
    below = copies_judge.flags(made.telemetry, case.size, rate) if case.memory == "pinned" else ()
    method = replace(made.method, details={**made.method.details, **told})
    return replace(made, method=method, flags=(*made.flags, *below))


def cases(options: TransferOptions, accel: Accel, sizes: Sequence[int]) -> list[Case]:
    """The rows to time, the small ones first: where time runs out, the largest are missing of every kind alike.

    Raises CannotLook where pinned memory alone was asked for and there is nothing to pin it for.
    """
    if not accel.can_pin and options.memories == ("pinned",):
        raise CannotLook(
            f"no pinned memory for {accel.id}",
            "only copies to a CUDA or XPU device use pinned memory",
            "rerun without --host-memory",
            finding="transfer.pinned",
        )
    directions: tuple[Direction, ...] = ("host_to_host",) if accel.is_cpu else options.directions
    memories = [memory for memory in options.memories if accel.can_pin or memory == "pageable"]
    found = []
    for size in sizes:
        for direction in directions:
            for memory in memories:
                clocks: tuple[Timed, ...] = ("as_called",)
                if memory == "pinned" and accel.has_events:
                    clocks = ("link", "as_called")
                found += [Case(direction, memory, size, timed) for timed in clocks]
    return found


def fitting(options: TransferOptions, room: Room, host_buffers: int) -> tuple[list[int], list[int]]:
    """The sizes that fit, and those that do not. Raises UsageError for one that the user named."""
    wanted = options.sizes or (SWEEP if options.sweep else SIZES)
    most = room.most(host_buffers)
    fits = [size for size in wanted if size <= most]
    if options.sizes and len(fits) < len(wanted):
        size = max(wanted)
        where = "" if room.device is None else f", and {units.capacity(room.device)} on the device"
        raise UsageError(
            f"--size {units.capacity(size)} does not fit",
            f"it needs {host_buffers + (room.device is None)} × {units.capacity(size)} of host "
            f"memory{', pinned in powers of two' if room.pinned else ''}, but only {units.capacity(room.host)} are "
            f"available{where}",
            f"use at most {units.capacity(most)}",
        )
    return fits, [size for size in wanted if size > most]


# -- within one device's memory, counted as bytes move: each is read and written ---------------------------------------

# nvbandwidth's size; twice the largest cache of today (256 MiB on an MI300X).
USUAL_BYTES = 512 * MIB
# Below this nothing but the launch is timed.
LEAST_BYTES = 4 * KIB
# Clocks of the device's memory settle within a tenth.
ON_DEVICE_WARM_UP_S = 0.1


def rows_on_device(setting: Setting) -> Iterator[Measurement]:
    """One row: `b.copy_(a)`, both on the device. Raises CannotLook where there is no room."""
    accel = setting.accel
    most = (setting.room.host if setting.room.device is None else setting.room.device) // 2
    scarce = too_little("to copy", f"each of two buffers may use {units.capacity(most)}", ON_DEVICE)
    size = buffers.size_that_fits(max(setting.options.sizes, default=USUAL_BYTES), most, LEAST_BYTES, scarce)
    cold = COLD_FACTOR * (accel.l2_cache_bytes or ASSUMED_CACHE_BYTES)
    # One slice more than is needed: sizes that do not divide it leave a rest.
    capacity = max(size, min(cold + size, most, MOST_BYTES))
    setting.emit(Progress(f"{units.capacity(size)} within {accel.id}", 0, 1))
    with no_room(accel, f"not enough memory for two buffers of {units.capacity(capacity)} on {accel.id}", ON_DEVICE):
        source, destination = (allocate(capacity, accel.device) for _ in range(2))
    budget_s = setting.row_s(1, LONGEST_ROW_S)
    sampling_s = budget_s * SAMPLING_SHARE
    accel.reset_peak()
    allowance_s = sampling_s * VERIFYING_SHARE
    copies = Copies(source, destination, size, max(cold, size), True, accel.synchronize, allowance_s)
    yield buffers.measure(
        ON_DEVICE,
        accel,
        copies,
        setting.watch,
        "device events" if accel.has_events else "host",
        timing.Limits(sampling_s, min(ON_DEVICE_WARM_UP_S, budget_s / 10)),
        case={"size_bytes": size},
        cold=cold,
        details={
            "call": "b.copy_(a)",
            "bytes_counted": "read and written",
            "bytes_copied": size,
            "last_level_cache_bytes": accel.l2_cache_bytes,
        },
        moves=MOVES,
    )


PARTS: tuple[Part[Setting, Accel], ...] = (
    Part("copies", 8.0, rows),
    Part("idioms", 3.0, idioms.measured),
    # Where the device could copy both ways at once, and its clock tell that it did.
    Part("both_ways", 3.0, both_ways.rows, lambda accel: accel.can_pin and accel.has_events),
    # On a CPU that is the copy from host to host.
    Part("on_device", 1.5, rows_on_device, lambda accel: not accel.is_cpu),
)


def _late(part: str) -> ModuleType:
    """The module of a part that concerns several devices: where there is one device it is not loaded."""
    return importlib.import_module(f"gpucheck.bench.transfer.{part}")


TOGETHER: tuple[Part[Together, Sequence[str]], ...] = (
    Part("together", 2.0, lambda several: _late("together").rows(several)),
    Part("peer", 3.0, lambda several: _late("peer").rows(several), lambda ids: bool(_late("peer").pairs(ids))),
)

# The command ends within 30 s, starting torch included. In 14 s an H100 left rows from 128 MiB on with one to seven
# samples, and the last two parts out.
DEFAULT_BUDGET_S = {"device": 24.0, "cpu": 18.0, "sweep": 60.0}
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
        name=NAME,
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
    options: TransferOptions, wanted: Sequence[Part[Setting, Accel]], accel: Accel, emit: Emit, deadline: float
) -> Iterator[Measurement]:
    """The rows of every part that applies; the first is always measured. One that has no room costs only itself."""
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


def _no_time(left: Sequence[Part[Any, Any]], device: str | None = None) -> Finding:
    names = [part.id for part in left]
    # The whole command: `bench all` and `fleet check` tell it too, whose --only means something else.
    return Finding(
        "transfer.time",
        "skip",
        f"not measured: {', '.join(names)}",
        "out of time; a longer --time-budget measures all",
        {"parts": names},
        fix=f"gpucheck bench transfer --only {','.join(names)} --device {device or 'all'}",
        device=device,
    )


def _together(
    options: TransferOptions, chosen: frozenset[str], ids: Sequence[str], facts: Facts, emit: Emit, deadline: float
) -> None:
    """Measure several devices at once: each in a separate process."""
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
