"""Copies between host and device, timed and verified, between buffers that all rows share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpucheck import messages, units
from gpucheck.bench.transfer import bound_place, link
from gpucheck.bench.transfer.cases import Case, Room, cases, fitting
from gpucheck.bench.transfer.copies import Buffer, Copies, Verified, allocate
from gpucheck.bench.transfer.options import HOST_SHARE
from gpucheck.bench.transfer.setting import Setting
from gpucheck.directions import HostMemory
from gpucheck.errors import CannotLook
from gpucheck.machine import host
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Notice, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB

# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0
# Of a row's time: for windows with their refills and comparisons, and of that for the latter.
SAMPLING_SHARE, VERIFYING_SHARE = 0.6, 0.3
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S, ROW_WARM_UP_S = 0.2, 0.02
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# What buffers may take of the device's memory that is left.
DEVICE_SHARE = 0.8


@dataclass(slots=True)
class Buffers:
    """The memory that all rows share: allocated and touched once."""

    device: Buffer
    host: dict[HostMemory, Buffer]
    no_pinned: str | None = None

    def ends(self, case: Case) -> tuple[Buffer, Buffer]:
        """Source and destination of a row."""
        of_host = self.host[case.memory]
        return (self.device, of_host) if case.direction == "device_to_host" else (of_host, self.device)


def buffers(accel: Accel, memories: Sequence[HostMemory], capacity: int) -> Buffers:
    """Allocate everything. Raises CannotLook where the device or the host has no room after all.

    Pinned memory that is refused costs the pinned rows alone.
    """
    cpu = accel.device if accel.is_cpu else "cpu"
    made: dict[HostMemory, Buffer] = {}
    refused = None
    try:
        device = allocate(capacity, accel.device)
        if "pageable" in memories:
            made["pageable"] = allocate(capacity, cpu)
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(
            f"no room for buffers of {units.capacity(capacity)}",
            str(error).strip().splitlines()[0],
            "give a smaller --size, or end what else uses this memory",
            finding="transfer.memory",
        ) from error
    if "pinned" in memories:
        try:
            made["pinned"] = allocate(capacity, cpu, pinned=True)
        except (RuntimeError, MemoryError) as error:  # the driver's refusal has no class of its own
            cause = messages.cause_of(str(error))
            if cause is not None and cause.poisons:  # it refuses everything from now on
                raise
            refused = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Buffers(device, made, refused)


def rows(setting: Setting) -> Iterator[Measurement]:
    """Copies of every size, direction and kind of memory. Raises CannotLook and UsageError."""
    options, accel, emit = setting.options, setting.accel, setting.emit
    memories: list[HostMemory] = [memory for memory in options.memories if accel.can_pin or memory == "pageable"]
    memories = memories or ["pageable"]
    room = replace(setting.room, pinned="pinned" in memories)
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
        emit(no_pinned(shared.no_pinned, accel.id))
        todo = [case for case in todo if case.memory != "pinned"]
    if not accel.is_cpu:
        wake(accel, shared)
    place = bound_place.where(None, [one.words for one in shared.host.values()])
    for done, case in enumerate(todo):
        if _is_late(case, todo[:done], setting):
            late = ", ".join(units.capacity(size) for size in sizes if size >= case.size)
            emit(Notice(f"{late} left out: the time was up; give a longer --time-budget"))
            return
        emit(Progress(case.label, done, len(todo)))
        one = measure(case, accel, shared, room, setting.row_s(len(todo) - done, LONGEST_ROW_S), setting.watch)
        yield bound_place.placed(one, place)


def _is_late(case: Case, done: Sequence[Case], setting: Setting) -> bool:
    """Whether the time was up before the first row of a size that nobody named, and that no verdict needs.

    A size that was begun is measured to its end.
    """
    begun = bool(done) and done[-1].size == case.size
    return not begun and not setting.options.sizes and case.size > link.LARGE_BYTES and setting.is_over


def measure(case: Case, accel: Accel, shared: Buffers, room: Room, budget_s: float, watch: Watch) -> Measurement:
    """Time and verify one row."""
    accel.reset_peak()
    source, destination = shared.ends(case)
    sampling_s = budget_s * SAMPLING_SHARE
    copies = Copies(
        source,
        destination,
        case.size,
        span=room.span(case.size),
        non_blocking=case.memory == "pinned",
        synchronize=accel.synchronize,
        allowance_s=sampling_s * VERIFYING_SHARE,
    )

    def take() -> timing.Timed:
        return timing.measure(
            accel,
            timing.Work(copies.call, empty=copies.empty, prepare=copies.prepare, forget=copies.forget),
            clock="device events" if case.timed == "link" else "host",
            limits=timing.Limits(sampling_s, 0.0 if accel.is_cpu else min(ROW_WARM_UP_S, budget_s / 10)),
        )

    # Copies to or from a device keep one core busy, those on the host torch's threads.
    timed, beside = row.watched(watch, torch.get_num_threads() if accel.is_cpu else 1, take)
    if timed.launch == "graph":
        # What a graph replays moves no cursor: one copy more, so that something of this row is compared.
        copies.call()
    details = _details(timed, copies, copies.finish(), room)
    made = row.measurement(
        "transfer",
        accel.ref,
        timed,
        beside,
        case={
            "direction": case.direction,
            "host_memory": case.memory,
            "size_bytes": case.size,
            "timed": case.timed,
        },
        work=("bytes", float(case.size), "B/s"),
        memory=accel.memory(),
        cache="cold" if details["rotation_bytes"] >= room.cold else "warm",
        details=details,
    )
    rate = made.rate.median if made.rate else None
    below = link.flags(made.telemetry, case.size, rate) if case.memory == "pinned" else ()
    return replace(made, flags=(*made.flags, *below))


def _details(timed: timing.Timed, copies: Copies, verified: Verified, room: Room) -> dict[str, Any]:
    """How a row's copies were made and what comparing them came to."""
    # A graph replays the slices that it captured.
    slices = min(copies.count, timed.run.calls_per_sample) if timed.launch == "graph" else copies.count
    calls = timed.run.calls_per_sample + int(timed.details["untimed_calls"])
    return {
        "buffers": "preallocated",
        "non_blocking": copies.non_blocking,
        "synchronised": "after each window" if timed.clock == "device events" else "after each copy",
        "rotation_bytes": slices * copies.stride,
        "last_level_cache_bytes": room.cache if room.cache_known else None,
        "verified_slices": verified.slices,
        "refills": verified.refills,
        # Where a window copies onto the same slice again, what was compared is the last of these copies.
        "every_copy_in_its_own_slice": calls <= copies.count,
        "wrong_bytes": verified.wrong_bytes,
        "first_wrong_byte": verified.first_wrong,
    }


def room_for(accel: Accel, host_share: float = HOST_SHARE) -> Room:
    """What buffers may take here, and what cold copies must exceed."""
    cache = host.last_level_cache_bytes()
    info = accel.memory_info()
    return Room(
        host=int(host.memory().usable * host_share),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(cache or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
        cache_known=cache is not None,
    )


def wake(accel: Accel, shared: Buffers) -> None:
    """Copy for a while, so that link and clocks are awake for the first row."""
    some = next(iter(shared.host.values()), None)
    if some is None:
        return
    part = min(len(some.words), 16 * MIB // some.words.element_size())
    until = accel.host_now() + LINK_WARM_UP_S
    while accel.host_now() < until:
        shared.device.words[:part].copy_(some.words[:part])
        accel.synchronize()


def no_pinned(reason: str, device: str) -> Skipped:
    """No pinned memory was to be had for a device."""
    return Skipped(Finding("transfer.pinned", "skip", "no pinned memory was to be had", reason, device=device))
