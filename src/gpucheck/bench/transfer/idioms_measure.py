"""The lines that people write, timed on the host's clock with the wait for their end, and verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gpucheck import units
from gpucheck.bench.transfer.cases import Room
from gpucheck.bench.transfer.copies import WORD
from gpucheck.bench.transfer.idioms import BATCH_SAMPLES, Call, Idiom, Stage, of_device
from gpucheck.bench.transfer.idioms_judge import NAME
from gpucheck.bench.transfer.measure import buffers
from gpucheck.bench.transfer.setting import Setting
from gpucheck.directions import HostMemory
from gpucheck.errors import CannotLook
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Notice, Progress
from gpucheck.report.measurement import Measurement
from gpucheck.units import KIB, MIB

# A batch of a hundred images of 224 × 224 in float32. Larger ones tell nothing else and take the time of all.
USUAL_BYTES = 64 * MIB
# Below this nothing but the call is timed.
LEAST_BYTES = 4 * KIB
# Slices rotate over this at most; where a cache is larger the rows are labelled warm. Pinning more takes a second.
MOST_ROTATED_BYTES = 512 * MIB
# Every batch has whole samples of whole words.
GRAIN = BATCH_SAMPLES * WORD
# Ten samples of tens of milliseconds; a ratio needs no more.
LONGEST_ROW_S, WARM_UP_S = 1.0, 0.05


@dataclass(slots=True)
class _Taken:
    """One line's calls, slice after slice, and what the last one left."""

    make: Call
    count: int
    calls: int = 0
    last: torch.Tensor | None = None

    def call(self) -> None:
        """Write the line once; what it left before is let go first, as a loop does by and by."""
        place = self.calls % self.count
        self.calls += 1
        self.last = None
        self.last = self.make(place)

    @property
    def place(self) -> int:
        """The slice of the last call."""
        return (self.calls - 1) % self.count


def rows(setting: Setting) -> Iterator[Measurement]:
    """A row for each line of code that this device knows. Raises CannotLook where there is no room."""
    accel = setting.accel
    memories: list[HostMemory] = [one for one in setting.options.memories if one == "pageable" or accel.can_pin]
    room = replace(setting.room, pinned="pinned" in memories)
    size = size_of(setting.options.sizes, room, max(len(memories), 1))
    todo = [one for one in of_device(accel, memories) if accel.is_cpu or one.direction in _asked(setting)]
    if not todo:
        raise CannotLook(
            f"people write no line that copies pinned memory on {accel.id}",
            "pinned memory is for copies to a CUDA or XPU device",
            "leave --host-memory out",
            finding="transfer.idioms",
        )
    setting.emit(Progress("allocating", 0, len(todo)))
    count = slices(size, room, len(memories))
    shared = buffers(accel, memories, count * size)
    if shared.no_pinned is not None:
        setting.emit(Notice(f"lines with pinned memory are left out: {shared.no_pinned}", "warning"))
        todo = [one for one in todo if one.where != "pinning"]
    stage = Stage(accel, shared, size, count)
    stage.fill()
    for done, idiom in enumerate(todo):
        setting.emit(Progress(f"{idiom.code} {units.capacity(size)}", done, len(todo)))
        try:
            one = measure(idiom, stage, room, setting.row_s(len(todo) - done, LONGEST_ROW_S), setting.watch)
        except (RuntimeError, MemoryError) as error:
            if not accel.is_out_of_memory(error):
                raise
            raise CannotLook(
                f"memory ran out at `{idiom.code}`",
                "something else took what was free",
                "end what else uses this memory",
                finding="transfer.idioms",
            ) from error
        yield one


def _asked(setting: Setting) -> tuple[str, ...]:
    """The directions asked for; what stays on the host prepares a copy to the device."""
    asked = setting.options.directions
    return (*asked, "host_to_host") if "host_to_device" in asked else asked


def size_of(sizes: tuple[int, ...], room: Room, host_buffers: int) -> int:
    """The one size: the usual one, or the largest asked for if that is smaller, as far as there is room.

    Raises CannotLook where there is next to none.
    """
    most = room.most(host_buffers + 2) // 2
    size = min(max(sizes, default=USUAL_BYTES), USUAL_BYTES, most) // GRAIN * GRAIN
    if most < LEAST_BYTES:
        raise CannotLook(
            "there is no room for the lines that people write",
            f"a tensor may take {units.capacity(most)}",
            "end what else uses this memory",
            finding="transfer.idioms",
        )
    return max(size, GRAIN)


def slices(size: int, room: Room, host_buffers: int) -> int:
    """How many slices the calls rotate over: what makes them cold, as far as there is room."""
    # What a call makes takes another slice or two.
    fit = room.most(host_buffers) // size - 2
    return max(1, min(-(-room.cold // size), MOST_ROTATED_BYTES // size, fit))


def measure(idiom: Idiom, stage: Stage, room: Room, budget_s: float, watch: Watch) -> Measurement:
    """Time and verify one line."""
    accel = stage.accel
    accel.reset_peak()
    taken = _Taken(idiom.make(stage), stage.count)
    first_s = _first(accel, taken)
    limits = timing.Limits(budget_s, 0.0 if accel.is_cpu else min(WARM_UP_S, budget_s / 10))
    timed, beside = row.watched(
        watch,
        torch.get_num_threads() if accel.is_cpu or idiom.direction == "host_to_host" else 1,
        lambda: timing.measure(accel, timing.Work(taken.call), clock="host", limits=limits),
    )
    memory = accel.memory()
    pinned = taken.last is not None and taken.last.device.type == "cpu" and accel.can_pin and taken.last.is_pinned()
    wrong = _wrong(stage, taken, flipped=False)
    # The same memory may hold the same from an earlier call: once more with what was never there.
    place = taken.calls % stage.count
    stage.flip(place)
    taken.call()
    wrong += _wrong(stage, taken, flipped=True)
    stage.flip(place)
    rotation = stage.count * stage.size
    return row.measurement(
        NAME,
        accel.ref,
        timed,
        beside,
        case={
            "idiom": idiom.id,
            "direction": idiom.direction,
            "host_memory": idiom.memory,
            "size_bytes": stage.size,
        },
        work=("bytes", float(stage.size), "B/s"),
        memory=memory,
        cache="cold" if rotation >= room.cold else "warm",
        details={
            "call": idiom.code,
            "buffers": "allocated by the call" if idiom.allocates else "preallocated",
            "synchronised": "after each call",
            "first_call_s": first_s,
            "result_is_pinned": pinned,
            "batch_samples": BATCH_SAMPLES if idiom.id.startswith("loader") else None,
            "rotation_bytes": rotation,
            "last_level_cache_bytes": room.cache if room.cache_known else None,
            "verified_slices": 2,
            "wrong_bytes": wrong,
        },
    )


def _first(accel: Accel, taken: _Taken) -> float:
    """Seconds of the very first call: what it allocates comes from the system and not from a cache of torch's."""
    accel.synchronize()
    # What lines before this one left in torch's caches.
    accel.empty_cache()
    began = accel.host_now()
    taken.call()
    accel.synchronize()
    return accel.host_now() - began


def _wrong(stage: Stage, taken: _Taken, *, flipped: bool) -> int:
    stage.accel.synchronize()
    assert taken.last is not None
    return stage.wrong_bytes(taken.last, taken.place, flipped=flipped)
