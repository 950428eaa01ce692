"""The lines that people write to move a tensor: each as it is written, what it allocates included, and verified.

Every line stands beside the raw copy between preallocated buffers, at one size, timed on the host's clock with the wait
for its end.

Some lines pin by definition, and free what they pinned as they are called: on a device that is lost this aborts the
process. Where memory can be pinned all lines are therefore measured in a child, whose rows come one by one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from gpucheck import messages, units
from gpucheck.bench.buffers import WORD, Buffers, Room, allocate_all, room_for, too_little, why_full
from gpucheck.bench.transfer import Setting, TransferOptions
from gpucheck.bench.transfer.judge import IDIOM as NAME
from gpucheck.errors import CannotLook, DeviceFailed, GpucheckError
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import kept, pulse
from gpucheck.machine.accel import Accel, has_context, open_device
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Lost, Start, Talk
from gpucheck.machine.child_stdio import claim_stdout, raised, requests
from gpucheck.machine.pulse import OPENING_S, SILENT_S
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Event, Notice, Progress
from gpucheck.report.measurement import Measurement
from gpucheck.units import KIB, MIB
from gpucheck.work import reference

HOST = torch.device("cpu")
# How many samples a DataLoader's batch has, whatever its size: each is fetched and stacked on its own.
BATCH_SAMPLES = 64
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
# Every bit but the sign: no index has any of the high ones.
FLIP = 2**63 - 1
Where = Literal["cuda", "pinning", "accelerator", "cpu"]
# From the slice that is to be copied to the tensor that the line left.
Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Stage:
    """Where the lines are written: slices of the shared buffers, and what some lines allocate once."""

    accel: Accel
    shared: Buffers
    size: int
    count: int
    host: dict[HostMemory, list[torch.Tensor]] = field(init=False)
    device: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        words = self.size // WORD
        self.host = {name: self._cut(buffer.words, words) for name, buffer in self.shared.host.items()}
        self.device = self._cut(self.shared.device.words, words)

    def _cut(self, words: torch.Tensor, each: int) -> list[torch.Tensor]:
        return list(words[: self.count * each].view(self.count, each).unbind(0))

    def fill(self) -> None:
        """Write the pattern into every source: each word holds its index."""
        for buffer in (*self.shared.host.values(), self.shared.device):
            buffer.fill(self.count * self.size // WORD, 0)

    def flip(self, place: int) -> None:
        """Turn one slice of every source into what no memory held before; and back, the second time."""
        for slices in (*self.host.values(), self.device):
            slices[place].bitwise_xor_(FLIP)

    def wrong_bytes(self, result: torch.Tensor, place: int, *, flipped: bool) -> int:
        """Return how many bytes of a result are not those of the slice that it was copied from."""
        found = result.reshape(-1)
        words = self.size // WORD
        if len(found) != words:
            return self.size
        number = FLIP if flipped else 0

        def wanted(start: int, stop: int, device: torch.device = HOST) -> torch.Tensor:
            first = place * words
            return torch.arange(first + start, first + stop, device=device).bitwise_xor_(number)

        seen = reference.unequal(found, wanted(0, words, found.device), wanted)
        if seen is None:
            return 0
        # A difference that is gone at the second look is a fault too.
        return reference.counted(seen[0].view(torch.uint8) != seen[1].view(torch.uint8)) or 1


@dataclass(frozen=True, slots=True)
class Idiom:
    """One line of code. `where` is what the device must be; `memory` is where the tensor lies on the host's side."""

    id: str
    code: str
    direction: Direction
    where: Where
    make: Make
    memory: HostMemory = "pageable"


# On a stage and its device: what a line allocates once is made here, outside the timed calls.
Make = Callable[[Stage, torch.device], Call]


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned host memory of a tensor's shape."""
    return kept.own(torch.empty_like(tensor, pin_memory=True))


def of_device(accel: Accel, memories: Sequence[HostMemory]) -> list[Idiom]:
    """The lines that can be written for this device, from these kinds of host memory."""
    kinds = {"cpu"} if accel.is_cpu else {"accelerator"}
    if not accel.is_cpu and accel.can_pin and "pinned" in memories:
        kinds.add("pinning")
    if accel.kind == "cuda":
        kinds.add("cuda")
    return [one for one in IDIOMS if one.where in kinds and one.memory in memories]


# -- the lines ---------------------------------------------------------------------------------------------------------


def _raw(direction: Direction, memory: HostMemory) -> Make:
    """Between preallocated buffers: the measure of the rest."""

    def make(stage: Stage, device: torch.device) -> Call:
        like = stage.host[memory][0] if direction == "device_to_host" else stage.device[0]
        to_pinned = memory == "pinned" and direction == "device_to_host"
        destination = pinned_like(like) if to_pinned else torch.empty_like(like)
        return lambda x: destination.copy_(x, non_blocking=memory == "pinned")

    return make


def _through_buffer(stage: Stage, device: torch.device) -> Call:
    # Waited for after each call, as whoever fills it again must.
    pinned = pinned_like(stage.host["pageable"][0])

    def call(x: torch.Tensor) -> torch.Tensor:
        pinned.copy_(x)
        return pinned.to(device, non_blocking=True)

    return call


def _loader(pin_memory: bool, non_blocking: bool | None) -> Make:
    """A DataLoader over the pageable slices, in the order of the calls; `non_blocking` None leaves it on the host."""

    def make(stage: Stage, device: torch.device) -> Call:
        samples: Any = [sample for one in stage.host["pageable"] for sample in one.view(BATCH_SAMPLES, -1).unbind(0)]
        places = range(0, len(samples), BATCH_SAMPLES)
        # Batch after batch without end, slice after slice.
        endless: Any = itertools.cycle([list(range(place, place + BATCH_SAMPLES)) for place in places])
        batches = iter(DataLoader[torch.Tensor](samples, batch_sampler=endless, pin_memory=pin_memory))

        def call(x: torch.Tensor) -> torch.Tensor:
            batch: torch.Tensor = next(batches)
            return batch if non_blocking is None else batch.to(device, non_blocking=non_blocking)

        return call

    return make


_TO: Direction = "host_to_device"
_BACK: Direction = "device_to_host"
_HOST: Direction = "host_to_host"

# The raw copies first: where time runs out, the rest has something to be held against.
IDIOMS: tuple[Idiom, ...] = (
    Idiom("raw", "y.copy_(x)", _TO, "accelerator", _raw(_TO, "pageable")),
    Idiom("raw", "y.copy_(x_pinned, non_blocking=True)", _TO, "pinning", _raw(_TO, "pinned"), "pinned"),
    Idiom("to", "x.to(device)", _TO, "accelerator", lambda _, device: lambda x: x.to(device)),
    Idiom("cuda", "x.cuda()", _TO, "cuda", lambda _, device: lambda x: x.cuda(device)),
    Idiom(
        "to_non_blocking",
        "x_pinned.to(device, non_blocking=True)",
        _TO,
        "pinning",
        lambda _, device: lambda x: x.to(device, non_blocking=True),
        "pinned",
    ),
    Idiom(
        "pin_then_to",
        "x.pin_memory().to(device, non_blocking=True)",
        _TO,
        "pinning",
        lambda _, device: lambda x: x.pin_memory().to(device, non_blocking=True),
    ),
    Idiom("pinned_buffer", "pinned.copy_(x); pinned.to(device, non_blocking=True)", _TO, "pinning", _through_buffer),
    Idiom("loader", "for x in loader: x.to(device)", _TO, "accelerator", _loader(False, False)),
    Idiom(
        "loader_non_blocking", "for x in loader: x.to(device, non_blocking=True)", _TO, "pinning", _loader(False, True)
    ),
    Idiom(
        "loader_pinned", "for x in DataLoader(…, pin_memory=True): x.to(device)", _TO, "pinning", _loader(True, False)
    ),
    Idiom(
        "loader_pinned_non_blocking",
        "for x in DataLoader(…, pin_memory=True): x.to(device, non_blocking=True)",
        _TO,
        "pinning",
        _loader(True, True),
    ),
    Idiom("pin_memory", "x.pin_memory()", _HOST, "pinning", lambda *_: lambda x: x.pin_memory()),
    Idiom("raw", "x.copy_(y)", _BACK, "accelerator", _raw(_BACK, "pageable")),
    Idiom("raw", "x_pinned.copy_(y, non_blocking=True)", _BACK, "pinning", _raw(_BACK, "pinned"), "pinned"),
    Idiom("cpu", "y.cpu()", _BACK, "accelerator", lambda *_: lambda x: x.cpu()),
    Idiom(
        "to_cpu_non_blocking",
        'y.to("cpu", non_blocking=True)',
        _BACK,
        "pinning",
        lambda *_: lambda y: y.to("cpu", non_blocking=True),
    ),
    Idiom("raw", "y.copy_(x)", _HOST, "cpu", _raw(_HOST, "pageable")),
    Idiom("to_copy", 'x.to("cpu", copy=True)', _HOST, "cpu", lambda _, device: lambda x: x.to(device, copy=True)),
    Idiom("clone", "x.clone()", _HOST, "cpu", lambda *_: lambda x: x.clone()),
    Idiom("loader", "for x in loader", _HOST, "cpu", _loader(False, None)),
)


def start_child() -> LineChild:
    """A process that measures the lines. Raises OSError."""
    return LineChild(python_argv("gpucheck.bench.transfer.idioms"))


# -- measured ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Calls:
    """One line's calls, slice after slice, and what the last one left."""

    write: Call
    slices: Sequence[torch.Tensor]
    calls: int = 0
    last: torch.Tensor | None = None

    def call(self) -> None:
        """Write the line once; what it left before is let go first, as a loop does by and by."""
        place = self.calls % len(self.slices)
        self.calls += 1
        self.last = None
        self.last = self.write(self.slices[place])

    @property
    def place(self) -> int:
        """The slice of the last call."""
        return (self.calls - 1) % len(self.slices)


def measured(setting: Setting, start: Start = start_child) -> Iterator[Measurement]:
    """A row for each line of code that this device knows, from a child where memory can be pinned for it.

    Raises CannotLook where there is no room, DeviceFailed where the device failed in the child or the child crashed.
    """
    if not has_context(setting.accel):
        yield from rows(setting)
        return
    accel, part_s = setting.accel, setting.deadline - time.monotonic()
    setting.emit(Progress("starting a process for the common idioms"))
    setup = {"device": accel.id, "name": accel.name, "uuid": accel.uuid, "options": to_json(setting.options)}
    try:
        with Talk(start) as child:
            # Its start is not what is measured, and not the part's time either.
            child.ask({**setup, "part_s": max(part_s, 0.0)}, OPENING_S)
            child.send({"go": True})
            for line in child.answer(SILENT_S, per_line=True):
                if "progress" in line:
                    setting.emit(Progress(*line["progress"]))
                elif "notice" in line:
                    setting.emit(Notice(line["notice"], "warning"))
                elif "row" in line:
                    yield from_json(Measurement, line["row"])
                elif "failed" in line:
                    text = str(line["failed"])
                    cause = messages.cause_of(text)
                    if cause is not None and cause.whose == "device":
                        raise DeviceFailed(*_failed(accel, text), device=accel.id)
                    # Of no device: as torch raised it.
                    raise RuntimeError(text.partition(": ")[2])
    except Lost as lost:
        ending = lost.ending
        if ending.how not in ("crashed", "late"):
            raise CannotLook("the common idioms were not measured", ending.in_words, finding=NAME) from lost
        raise DeviceFailed(*_failed(accel, ending.in_words), device=accel.id) from lost


def _failed(accel: Accel, text: str) -> tuple[str, str, str]:
    cause = messages.cause_of(text)
    title = cause.title if cause is not None else "the process that copied to it ended"
    return f"{accel.id}: {title}", text, cause.fix if cause is not None else "gpucheck smoke"


def main() -> int:
    """Measure the lines for a parent: its setup first, then all rows, each as it is there."""
    say = claim_stdout()
    asked = requests()
    setup = next(asked)

    def emit(event: Event) -> None:
        if isinstance(event, Progress):
            say({"progress": [event.step, event.done, event.total]})
        elif isinstance(event, Notice):
            say({"notice": event.text})

    try:
        accel = open_device(setup["device"], name=setup["name"], uuid=setup["uuid"])
        accel.make_current()
        options = from_json(TransferOptions, setup["options"])
        with Watch(accel.uuid) as watch:
            say({"end": True})
            next(asked)
            room, deadline = room_for(accel, options.host_share), time.monotonic() + setup["part_s"]
            for one in rows(Setting(options, accel, room, watch, emit, deadline)):
                say({"row": to_json(one)})
        say({"end": True})
    except GpucheckError as error:
        kept.saw(error)
        say(raised(error))
    except (RuntimeError, MemoryError) as error:  # torch's, for whatever its driver answers
        kept.saw(error)
        say({"failed": f"{type(error).__module__}.{type(error).__qualname__}: {error}", "end": True})
    return 0


def rows(setting: Setting) -> Iterator[Measurement]:
    """A row for each line of code that this device knows, measured here. Raises CannotLook where there is no room."""
    accel = setting.accel
    memories: list[HostMemory] = [one for one in setting.options.memories if one == "pageable" or accel.can_pin]
    room = replace(setting.room, pinned="pinned" in memories)
    size = size_of(setting.options.sizes, room, max(len(memories), 1))
    # What stays on the host prepares a copy to the device.
    asked = {*setting.options.directions, *(["host_to_host"] if "host_to_device" in setting.options.directions else [])}
    todo = [one for one in of_device(accel, memories) if accel.is_cpu or one.direction in asked]
    if not todo:
        raise CannotLook(
            f"no common idiom copies pinned memory on {accel.id}",
            "only copies to a CUDA or XPU device use pinned memory",
            "rerun without --host-memory",
            finding="transfer.idioms",
        )
    setting.emit(Progress("allocating", 0, len(todo)))
    count = slices(size, room, len(memories))
    shared = allocate_all(accel, memories, count * size, "transfer.memory")
    if shared.no_pinned is not None:
        setting.emit(Notice(f"idioms with pinned memory skipped: {shared.no_pinned}", "warning"))
        todo = [one for one in todo if one.where != "pinning"]
    stage = Stage(accel, shared, size, count)
    stage.fill()
    for done, idiom in enumerate(todo):
        pulse.go_on()
        setting.emit(Progress(f"{idiom.code} {units.capacity(size)}", done, len(todo)))
        try:
            one = measure(idiom, stage, room, setting.row_s(len(todo) - done, LONGEST_ROW_S), setting.watch)
        except (RuntimeError, MemoryError) as error:
            if not accel.is_out_of_memory(error):
                raise
            why, fix = why_full(accel, f"its tensors use {units.capacity(size)} each", room.free)
            raise CannotLook(f"memory ran out at `{idiom.code}`", why, fix, finding="transfer.idioms") from error
        yield one


def size_of(sizes: tuple[int, ...], room: Room, host_buffers: int) -> int:
    """The one size: the usual one, or the largest asked for if that is smaller, as far as there is room.

    Raises CannotLook where there is next to none.
    """
    most = room.most(host_buffers + 2) // 2
    size = min(max(sizes, default=USUAL_BYTES), USUAL_BYTES, most) // GRAIN * GRAIN
    if most < LEAST_BYTES:
        raise too_little("for the common idioms", f"a tensor may use {units.capacity(most)}", "transfer.idioms")
    return max(size, GRAIN)


def slices(size: int, room: Room, host_buffers: int) -> int:
    """Return how many slices the calls rotate over: what makes them cold, as far as there is room."""
    # What a call makes takes another slice or two.
    fit = room.most(host_buffers) // size - 2
    return max(1, min(-(-room.cold // size), MOST_ROTATED_BYTES // size, fit))


def measure(idiom: Idiom, stage: Stage, room: Room, budget_s: float, watch: Watch) -> Measurement:
    """Time and verify one line."""
    accel = stage.accel
    accel.reset_peak()
    sources = stage.device if idiom.direction == "device_to_host" else stage.host[idiom.memory]
    taken = _Calls(idiom.make(stage, accel.device), sources)
    # The very first call allocates from the system and not from a cache of torch's, as lines before this one left it.
    accel.synchronize()
    accel.empty_cache()
    began = accel.host_now()
    taken.call()
    accel.synchronize()
    first_s = accel.host_now() - began
    limits = timing.Limits(budget_s, 0.0 if accel.is_cpu else min(WARM_UP_S, budget_s / 10))
    timed, beside = timing.watched(
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
    return timing.measurement(
        NAME,
        accel.ref,
        timed,
        beside,
        case={"idiom": idiom.id, "direction": idiom.direction, "host_memory": idiom.memory, "size_bytes": stage.size},
        work=("bytes", float(stage.size), "B/s"),
        memory=memory,
        cache="cold" if rotation >= room.cold else "warm",
        details={
            "call": idiom.code,
            "buffers": "preallocated" if idiom.id == "raw" else "allocated by the call",
            "synchronised": "after each call",
            "first_call_s": first_s,
            "result_is_pinned": pinned,
            "batch_samples": BATCH_SAMPLES if idiom.id.startswith("loader") else None,
            "rotation_bytes": rotation,
            "last_level_cache_bytes": room.known_cache,
            "verified_slices": 2,
            "wrong_bytes": wrong,
        },
    )


def _wrong(stage: Stage, taken: _Calls, *, flipped: bool) -> int:
    stage.accel.synchronize()
    assert taken.last is not None
    return stage.wrong_bytes(taken.last, taken.place, flipped=flipped)
