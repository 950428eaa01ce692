"""Copies to the device and to the host at the same time: two streams, buffers of their own, each way's rate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpucheck import units
from gpucheck.bench.transfer import both_ways_windows
from gpucheck.bench.transfer.both_ways_judge import NAME
from gpucheck.bench.transfer.both_ways_windows import Lane
from gpucheck.bench.transfer.cases import Room
from gpucheck.bench.transfer.copies import Copies
from gpucheck.bench.transfer.measure import SAMPLING_SHARE, VERIFYING_SHARE, Buffers, buffers, no_pinned, wake
from gpucheck.bench.transfer.setting import Setting
from gpucheck.directions import Direction
from gpucheck.errors import CannotLook
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Progress
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB

# One of the sizes of the copies alone, so that the two can be held against each other; four to a window are 10 ms on
# PCIe 5, and pinning twice two of them takes a tenth of a second.
USUAL_BYTES = 128 * MIB
# Below this launching a copy takes about as long as copying (1 MiB is 19 µs on PCIe 5).
SMALLEST_BYTES = MIB
OTHER: dict[Direction, Direction] = {"host_to_device": "device_to_host", "device_to_host": "host_to_device"}
# Four buffers of this are filled and pinned in about a second; where a cache is larger than the half of it the rows are
# labelled warm.
MOST_ROTATED_BYTES = 512 * MIB
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0

Stream = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Ways:
    """Both ways: for each its own memory on either side, and its own stream."""

    buffers: dict[Direction, Buffers]
    streams: dict[Direction, Stream]


def applies(accel: Accel) -> bool:
    """Whether this device could copy both ways at once, and its clock tell that it did."""
    return accel.can_pin and accel.has_events


def rows(setting: Setting) -> Iterator[Measurement]:
    """A row for each direction, timed while the other copies. Raises CannotLook."""
    options, accel = setting.options, setting.accel
    if "pinned" not in options.memories:
        raise CannotLook(
            "copies both ways at once are of pinned memory", "--host-memory leaves it out", "leave it out", finding=NAME
        )
    room = _each_way(setting.room)
    size = size_of(options.sizes, room)
    setting.emit(Progress("allocating", 0, len(options.directions)))
    ways = Ways({}, _streams(accel))
    capacity = min(room.capacity(size, 1), max(size, MOST_ROTATED_BYTES))
    for direction in OTHER:
        ways.buffers[direction] = buffers(accel, ("pinned",), capacity)
        refused = ways.buffers[direction].no_pinned
        if refused is not None:
            setting.emit(no_pinned(refused, accel.id))
            return
    wake(accel, ways.buffers["host_to_device"])
    for done, direction in enumerate(options.directions):
        setting.emit(
            Progress(f"{units.capacity(size)} {direction.replace('_', ' ')}, both ways", done, len(options.directions))
        )
        budget_s = setting.row_s(len(options.directions) - done, LONGEST_ROW_S)
        yield measure(direction, size, accel, ways, setting.room, budget_s, setting.watch)


def size_of(sizes: tuple[int, ...], room: Room) -> int:
    """The one size: the largest that was asked for, else the usual one, as far as there is room for it each way.

    Raises CannotLook where there is next to none.
    """
    most = room.most(1)
    if most < SMALLEST_BYTES:
        raise CannotLook(
            "there is no room to copy both ways at once",
            f"buffers may take {units.capacity(most)} each",
            "end what else uses this memory",
            finding=NAME,
        )
    wanted = max(max(sizes, default=USUAL_BYTES), SMALLEST_BYTES)
    # A power of two, as the usual sizes are.
    return wanted if wanted <= most else 1 << (most.bit_length() - 1)


def _each_way(room: Room) -> Room:
    """What the buffers of one of the two ways may take."""
    return replace(room, host=room.host // 2, device=None if room.device is None else room.device // 2, pinned=True)


def _streams(accel: Accel) -> dict[Direction, Stream]:
    """A stream for each way. Raises CannotLook where the device has but one."""
    streams: dict[Direction, Stream] = {}
    for direction in OTHER:
        stream = accel.side_stream()
        if stream is None:
            raise CannotLook(f"{accel.id} has no second stream", "copies cannot run at the same time", finding=NAME)
        streams[direction] = stream
    return streams


def measure(
    direction: Direction, size: int, accel: Accel, ways: Ways, room: Room, budget_s: float, watch: Watch
) -> Measurement:
    """Time one direction while the other copies, and compare what either left."""
    accel.reset_peak()
    sampling_s = budget_s * SAMPLING_SHARE
    copies = {
        way: _copies(way, size, accel, ways.buffers[way], room.span(size), sampling_s * VERIFYING_SHARE / 2)
        for way in OTHER
    }
    mine, other = (
        Lane(copies[way].call, ways.streams[way], copies[way].prepare) for way in (direction, OTHER[direction])
    )
    timed, beside = row.watched(watch, 1, lambda: both_ways_windows.take(accel, mine, other, timing.Limits(sampling_s)))
    verified = {way: one.finish() for way, one in copies.items()}
    ours, others = verified[direction], verified[OTHER[direction]]
    per_s = timed.details["beside_calls_per_s"]
    rotation = min(one.span_bytes for one in copies.values())
    return row.measurement(
        NAME,
        accel.ref,
        timed,
        beside,
        case={
            "direction": direction,
            "host_memory": "pinned",
            "size_bytes": size,
            "other": OTHER[direction],
        },
        work=("bytes", float(size), "B/s"),
        memory=accel.memory(),
        cache="cold" if rotation >= room.cold else "warm",
        details={
            "buffers": "preallocated",
            "non_blocking": True,
            "synchronised": "after each window",
            "streams": 2,
            "other_bytes_per_s": None if per_s is None else per_s * size,
            "rotation_bytes": rotation,
            "last_level_cache_bytes": room.cache if room.cache_known else None,
            "verified_slices": ours.slices,
            "other_verified_slices": others.slices,
            "wrong_bytes": ours.wrong_bytes,
            "other_wrong_bytes": others.wrong_bytes,
            "first_wrong_byte": ours.first_wrong,
            "other_first_wrong_byte": others.first_wrong,
        },
    )


def _copies(way: Direction, size: int, accel: Accel, of_way: Buffers, span: int, allowance_s: float) -> Copies:
    pinned = of_way.host["pinned"]
    source, destination = (of_way.device, pinned) if way == "device_to_host" else (pinned, of_way.device)
    return Copies(source, destination, size, span, True, accel.synchronize, allowance_s)
