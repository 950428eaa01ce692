"""The command `bench transfer`: measure the parts of each selected device, then the copies between devices."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from gpucheck import units
from gpucheck.bench import buffers, concurrent, devices
from gpucheck.bench.concurrent import Lane, Stream, start_child
from gpucheck.bench.devices import ALONE, BenchInputs, share_until
from gpucheck.bench.transfer import TransferOptions, judge
from gpucheck.bench.transfer.judge import BOTH_WAYS, IDIOM, NAME, PEER
from gpucheck.errors import CannotLook
from gpucheck.links import Direction, HostMemoryKind
from gpucheck.machine import accel as machine_accel
from gpucheck.machine import device_lifetime, inventory, numa, watchdog
from gpucheck.machine.accel import Accel
from gpucheck.machine.child import LineChild
from gpucheck.machine.child_protocol import ChildSession, Lost
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import from_json
from gpucheck.report.events import Began, Emit, Finished, Measured, Notice, Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding, of_error
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, KIB, MIB

# Windows, with their refills and comparisons, take at most this share of a row's time.
SAMPLING_SHARE = 0.6
# More time than this does not make a row more precise.
LONGEST_ROW_S = 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The input of a part on one device. The rows should end by `deadline`, a time of `time.monotonic`."""

    options: TransferOptions
    accel: Accel
    room: buffers.BufferMemory
    watch: Watch
    emit: Emit
    deadline: float

    @property
    def memories(self) -> list[HostMemoryKind]:
        """The selected kinds of host memory that this device supports."""
        return [memory for memory in self.options.memories if memory == "pageable" or self.accel.can_pin]

    def row_s(self, left: float, longest_s: float = LONGEST_ROW_S) -> float:
        """Return the seconds for the next of `left` rows, at most `longest_s`."""
        return min(max(self.deadline - time.monotonic(), 0.0) / left, longest_s)


# -- copies between host and device ------------------------------------------------------------------------------------

# The first three sizes are batches of token IDs, of feature rows and of images. The larger sizes fill a link:
# nvbandwidth uses 512 MiB, and at 1 GiB some machines get slower.
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
SWEEP = tuple(2**power for power in range(12, 31))
# An idle link sleeps, and wakes within milliseconds.
ROW_WARM_UP_S = 0.02


@dataclass(frozen=True, slots=True)
class CopyCase:
    """The case of one row. `link` means the device's clock, `as_called` the host's clock with the wait for the copy."""

    direction: Direction
    memory: HostMemoryKind
    size: int
    timed: Literal["link", "as_called"]


def copies(setting: Setting) -> Iterator[Measurement]:
    """Yield a row for each size, direction and kind of memory. Raises CannotLook and UsageError."""
    options, accel, emit = setting.options, setting.accel, setting.emit
    memories: list[HostMemoryKind] = setting.memories or ["pageable"]
    room, count = replace(setting.room, pinned="pinned" in memories), len(memories)
    sizes, too_large = fitting(options, room, count)
    todo = cases(options, accel, sizes)
    if accel.is_cpu:
        emit(Notice("on a CPU: copies within host memory"))
    if too_large:
        left_out = ", ".join(units.capacity(size) for size in too_large)
        emit(Notice(f"{left_out} skipped: buffers are limited to {units.capacity(room.most(count))} each"))
    if not todo:
        return
    emit(Progress("allocating", 0, len(todo)))
    shared = buffers.allocate_all(accel, memories, room.capacity(max(sizes), count), "transfer.memory")
    if shared.no_pinned is not None:
        emit(_no_pinned(shared.no_pinned, accel))
        todo = [case for case in todo if case.memory != "pinned"]
    if not accel.is_cpu:
        buffers.wake(accel, shared)
    for done, case in enumerate(todo):
        # After the deadline, a new size starts only if the user gave the size or a verdict needs it.
        is_needed = options.sizes or case.size <= judge.LARGE_BYTES or (done and todo[done - 1].size == case.size)
        if not is_needed and time.monotonic() >= setting.deadline:
            late = ", ".join(units.capacity(size) for size in sizes if size >= case.size)
            emit(Notice(f"{late} skipped: out of time; use a longer --time-budget"))
            return
        watchdog.go_on()
        clock = ", the link alone" if case.timed == "link" else ""
        label = f"{units.capacity(case.size)} {case.direction.replace('_', ' ')}, {case.memory}{clock}"
        emit(Progress(label, done, len(todo)))
        # Filling 1 GiB takes as long as four small rows.
        weights = [1.0 + later.size / (256 * MIB) for later in todo[done:]]
        yield measure(case, accel, shared, room, setting.row_s(sum(weights) / weights[0]), setting.watch)


def measure(
    case: CopyCase, accel: Accel, shared: buffers.Buffers, room: buffers.BufferMemory, budget_s: float, watch: Watch
) -> Measurement:
    accel.reset_peak()
    sampling_s = budget_s * SAMPLING_SHARE
    repeated = buffers.Copies(
        *shared.ends(case.direction, case.memory),
        case.size,
        span=room.span(case.size),
        non_blocking=case.memory == "pinned",
        synchronize=accel.synchronize,
        allowance_s=sampling_s * buffers.VERIFYING_SHARE,
    )
    row = timing.measure_watched(
        NAME,
        accel,
        repeated.work,
        watch,
        "device events" if case.timed == "link" else "host",
        timing.Limits(sampling_s, 0.0 if accel.is_cpu else min(ROW_WARM_UP_S, budget_s / 10)),
        case={"direction": case.direction, "host_memory": case.memory, "size_bytes": case.size, "timed": case.timed},
        work=("bytes", float(case.size), "B/s"),
        cache="cold" if repeated.span_bytes >= room.cold else "warm",
        verify=lambda: {"rotation_bytes": repeated.span_bytes, **repeated.finish()},
        # Copies to or from a device use one core. Copies on the host use all threads of torch.
        threads=torch.get_num_threads() if accel.is_cpu else 1,
    )
    return judge.flagged(row)


def _only_pinned(accel: Accel, what: str, finding: str) -> CannotLook:
    return CannotLook(
        what, "only copies to a CUDA or XPU device use pinned memory", "rerun without --host-memory", finding=finding
    )


def _no_pinned(reason: str, accel: Accel) -> Skipped:
    return Skipped(Finding("transfer.pinned", "skip", "pinned memory could not be allocated", reason, device=accel.id))


def cases(options: TransferOptions, accel: Accel, sizes: Sequence[int]) -> list[CopyCase]:
    """Return the rows to time. The largest sizes are last, because a lack of time drops them. Raises CannotLook."""
    if not accel.can_pin and options.memories == ("pinned",):
        raise _only_pinned(accel, f"no pinned memory for {accel.id}", "transfer.pinned")
    directions: tuple[Direction, ...] = ("host_to_host",) if accel.is_cpu else options.directions
    todo: list[CopyCase] = []
    for size, direction, memory in itertools.product(sizes, directions, options.memories):
        if memory == "pinned" and accel.can_pin and accel.has_events:
            todo.append(CopyCase(direction, memory, size, "link"))
        if memory == "pageable" or accel.can_pin:
            todo.append(CopyCase(direction, memory, size, "as_called"))
    return todo


def fitting(options: TransferOptions, room: buffers.BufferMemory, host_buffers: int) -> tuple[list[int], list[int]]:
    """Return the sizes that fit, and the sizes that do not. Raises UsageError if a size of the user does not fit."""
    wanted = options.sizes or (SWEEP if options.sweep else SIZES)
    most = room.most(host_buffers)
    fits = [size for size in wanted if size <= most]
    if options.sizes and len(fits) < len(wanted):
        size = max(wanted)
        count, pinned = host_buffers + (room.device is None), ", pinned in powers of two" if room.pinned else ""
        why = f"it needs {count} × {units.capacity(size)} of host memory{pinned}"
        why += f", but only {units.capacity(room.host)} are available"
        why += "" if room.device is None else f", and {units.capacity(room.device)} on the device"
        raise buffers.too_large(size, why, most)
    return fits, [size for size in wanted if size > most]


# -- common ways to write a copy, allocation included ------------------------------------------------------------------

# A hundred images of 224 × 224 in float32 have this size. Larger sizes show nothing new and take all the time.
IDIOM_BYTES = 64 * MIB
# Below this size, the call takes longer than the copy.
LEAST_IDIOM_BYTES = 4 * KIB
# Pinning more memory takes a second. If cold calls need more, the rows are labelled warm.
MOST_ROTATED_BYTES = 512 * MIB
# Ten samples of tens of milliseconds are enough for a ratio.
LONGEST_IDIOM_S, IDIOM_WARM_UP_S = 1.0, 0.05
# The mask flips every bit but the sign. Flipped data differs from every index, because no index has high bits.
FLIP = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Idiom:
    """A line of source code to compile and to time. x is on the host, y on the device."""

    id: str
    code: str
    direction: Direction

    @property
    def memory(self) -> HostMemoryKind:
        return "pinned" if "x_pinned" in self.code else "pageable"


# Raw copies are first in each direction, because the judge compares the other lines with raw copies.
IDIOMS: tuple[Idiom, ...] = (
    Idiom("raw", "y.copy_(x)", "host_to_device"),
    Idiom("raw", "y.copy_(x_pinned, non_blocking=True)", "host_to_device"),
    Idiom("to", "x.to(device)", "host_to_device"),
    Idiom("to_non_blocking", "x_pinned.to(device, non_blocking=True)", "host_to_device"),
    Idiom("pin_then_to", "x.pin_memory().to(device, non_blocking=True)", "host_to_device"),
    Idiom("raw", "x.copy_(y)", "device_to_host"),
    Idiom("raw", "x_pinned.copy_(y, non_blocking=True)", "device_to_host"),
    Idiom("cpu", "y.cpu()", "device_to_host"),
    Idiom("raw", "y.copy_(x)", "host_to_host"),
    Idiom("clone", "x.clone()", "host_to_host"),
)


def of_device(accel: Accel, memories: Sequence[HostMemoryKind]) -> list[Idiom]:
    """Return the lines that this device supports with these kinds of host memory."""
    has_pinned = accel.can_pin and "pinned" in memories
    idioms = (idiom for idiom in IDIOMS if (idiom.direction == "host_to_host") == accel.is_cpu)
    return [idiom for idiom in idioms if idiom.memory in memories and (has_pinned or "pin" not in idiom.code)]


class IdiomCalls:
    """The calls of an idiom on `count` slices of `size` bytes of the shared buffers, one after the other.

    The next call releases the result of a call. Memory that the line pins is released only after a synchronization,
    because its release on a lost device ends the process (`device_lifetime`).
    """

    def __init__(self, idiom: Idiom, accel: Accel, shared: buffers.Buffers, size: int, count: int) -> None:
        self.idiom, self.accel, self.size, self.rotation = idiom, accel, size, count * size
        self.calls = 0
        self.made: list[torch.Tensor] = []
        buffer, words = shared.ends(idiom.direction, idiom.memory)[0], count * size // buffers.WORD
        if buffer.number is None:
            buffer.fill(words, 0)
        self.sources = list(buffer.words[:words].view(count, -1).unbind(0))
        names: dict[str, Any] = {"device": accel.device, "keep": self._keep}
        back = idiom.direction == "device_to_host"
        source = "y" if back else "x_pinned" if idiom.memory == "pinned" else "x"
        if idiom.id == "raw":  # the target is allocated outside the timed calls
            target, like = idiom.code.partition(".")[0], self.sources[0]
            names[target] = torch.empty_like(like, device="cpu" if back else accel.device)
            if target == "x_pinned":
                names[target] = machine_accel.pinned(len(like), like.dtype)
        # `keep` stores the memory that the line pins, because the memory must outlive the call.
        body = idiom.code.replace("x.pin_memory().", "keep(x.pin_memory()).")
        self._run: Callable[[torch.Tensor], torch.Tensor] = eval(f"lambda {source}: {body}", names)

    def call(self) -> None:
        if self.made and ".pin_memory()" in self.idiom.code:
            self.accel.synchronize()
        self.made.clear()
        self.calls += 1
        self._keep(self._run(self.sources[self.calls % len(self.sources)]))

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.made.append(tensor)
        return tensor

    def wrong_bytes(self) -> int:
        """Copy new data with one more call, and return the number of wrong bytes in the result."""
        index = (self.calls + 1) % len(self.sources)
        source = self.sources[index]
        source.bitwise_xor_(FLIP)
        self.call()
        self.accel.synchronize()
        result, words = self.made[-1], len(source)
        is_whole = result.numel() == words
        wrong = buffers.mismatches(result.reshape(-1), index * words, FLIP)[0] if is_whole else words * buffers.WORD
        source.bitwise_xor_(FLIP)
        return wrong


def idioms(setting: Setting) -> Iterator[Measurement]:
    """Yield a row for each line of code that this device supports. Raises CannotLook."""
    accel, memories, options = setting.accel, setting.memories, setting.options
    room = replace(setting.room, pinned="pinned" in memories)
    size, count = sizes_of_idioms(options.sizes, room, max(len(memories), 1))
    todo = [idiom for idiom in of_device(accel, memories) if accel.is_cpu or idiom.direction in options.directions]
    if not todo:
        raise _only_pinned(accel, f"no common idiom copies pinned memory on {accel.id}", "transfer.idioms")
    setting.emit(Progress("allocating", 0, len(todo)))
    shared = buffers.allocate_all(accel, memories, count * size, "transfer.memory")
    if shared.no_pinned is not None:
        setting.emit(Notice(f"idioms with pinned memory skipped: {shared.no_pinned}", "warning"))
        todo = [idiom for idiom in todo if "pin" not in idiom.code]
    for done, idiom in enumerate(todo):
        watchdog.go_on()
        setting.emit(Progress(f"{idiom.code} {units.capacity(size)}", done, len(todo)))
        budget_s = setting.row_s(len(todo) - done, LONGEST_IDIOM_S)
        with buffers.no_room(accel, f"memory ran out at `{idiom.code}`", "transfer.idioms"):
            accel.reset_peak()
            row = measure_line(IdiomCalls(idiom, accel, shared, size, count), room, budget_s, setting.watch)
        yield row


def sizes_of_idioms(sizes: tuple[int, ...], room: buffers.BufferMemory, host_buffers: int) -> tuple[int, int]:
    """Return the bytes of a slice, and the number of slices that makes calls cold, if possible. Raises CannotLook."""
    most, what = room.most(host_buffers + 2) // 2, "for the common idioms"
    scarce = buffers.too_little(what, f"a tensor may use {units.capacity(most)}", "transfer.idioms")
    wanted = min(max(sizes, default=IDIOM_BYTES), IDIOM_BYTES)
    size = buffers.size_that_fits(wanted, most, LEAST_IDIOM_BYTES, scarce)
    # A call allocates up to two more slices.
    fit = room.most(host_buffers) // size - 2
    return size, max(1, min(-(-room.cold // size), MOST_ROTATED_BYTES // size, fit))


def measure_line(line: IdiomCalls, room: buffers.BufferMemory, budget_s: float, watch: Watch) -> Measurement:
    accel, idiom = line.accel, line.idiom
    return timing.measure_watched(
        IDIOM,
        accel,
        timing.Work(line.call),
        watch,
        "host",
        timing.Limits(budget_s, 0.0 if accel.is_cpu else min(IDIOM_WARM_UP_S, budget_s / 10)),
        threads=torch.get_num_threads() if accel.is_cpu else 1,
        case={"idiom": idiom.id, "direction": idiom.direction, "host_memory": idiom.memory, "size_bytes": line.size},
        work=("bytes", float(line.size), "B/s"),
        cache="cold" if line.rotation >= room.cold else "warm",
        verify=lambda: {
            "call": idiom.code,
            "rotation_bytes": line.rotation,
            "verified_slices": 1,
            "wrong_bytes": line.wrong_bytes(),
        },
    )


# -- copies in both directions at the same time ------------------------------------------------------------------------

# The part `copies` has this size too, so the rates are comparable. Pinning four buffers takes a tenth of a second.
BOTH_WAYS_BYTES = 128 * MIB
# Below this size, launching two copies takes as long as the copies.
LEAST_BOTH_WAYS_BYTES = MIB
OTHER: dict[Direction, Direction] = {"host_to_device": "device_to_host", "device_to_host": "host_to_device"}


def both_ways(setting: Setting) -> Iterator[Measurement]:
    """Yield a row for each direction while the other copies too, whatever `--direction` is. Raises CannotLook."""
    options, accel, whole = setting.options, setting.accel, setting.room
    if "pinned" not in options.memories:
        why, fix = "--host-memory excludes it", "rerun without --host-memory"
        raise CannotLook("copies both ways at once need pinned memory", why, fix, finding=BOTH_WAYS)
    # Each direction has its own buffers.
    room = replace(whole, host=whole.host // 2, device=whole.device and whole.device // 2, pinned=True)
    most = room.most(1)
    wanted = max(max(options.sizes, default=BOTH_WAYS_BYTES), LEAST_BOTH_WAYS_BYTES)
    scarce = buffers.too_little("to copy both ways at once", f"buffers may use {units.capacity(most)} each", BOTH_WAYS)
    size = buffers.size_that_fits(wanted, most, LEAST_BOTH_WAYS_BYTES, scarce)
    setting.emit(Progress("allocating", 0, 1))
    # Filling and pinning four buffers takes about a second. If cold copies need more, the rows are labelled warm.
    capacity = min(room.capacity(size, 1), max(size, MOST_ROTATED_BYTES))
    ways: dict[Direction, tuple[buffers.Buffers, Stream]] = {}
    for direction in OTHER:
        stream = accel.side_stream()
        assert stream is not None
        shared = buffers.allocate_all(accel, ("pinned",), capacity, "transfer.memory")
        if shared.no_pinned is not None:
            setting.emit(_no_pinned(shared.no_pinned, accel))
            return
        ways[direction] = shared, stream
    buffers.wake(accel, ways["host_to_device"][0])
    watchdog.go_on()
    setting.emit(Progress(f"{units.capacity(size)} both ways", 0, 1))
    sampling_s = setting.row_s(1, LONGEST_ROW_S * len(OTHER)) * SAMPLING_SHARE
    accel.reset_peak()
    allowance_s = sampling_s * buffers.VERIFYING_SHARE / 2
    copies = {
        way: buffers.Copies(*shared.ends(way, "pinned"), size, room.span(size), True, accel.synchronize, allowance_s)
        for way, (shared, _) in ways.items()
    }
    lanes = [Lane(copies[way].call, stream, copies[way].prepare) for way, (_, stream) in ways.items()]
    rows = concurrent.watched(
        setting.watch,
        dict.fromkeys(ways, 1),
        lambda: dict(zip(map(str, ways), concurrent.take(accel, lanes, timing.Limits(sampling_s)), strict=True)),
    )
    rotation = min(copied.span_bytes for copied in copies.values())
    for direction, other in OTHER.items():
        yield timing.row_of(
            BOTH_WAYS,
            accel.ref,
            rows[direction],
            case={"direction": direction, "host_memory": "pinned", "size_bytes": size, "other": other},
            work=("bytes", float(size), "B/s"),
            memory=accel.memory(),
            cache="cold" if rotation >= room.cold else "warm",
            details={"in_turn_with": [other], "rotation_bytes": rotation, **copies[direction].finish()},
        )


# -- copies between two devices: a child process for each pair ---------------------------------------------------------

# Importing torch and opening two devices takes half a minute on a busy machine.
PAIR_TIMEOUT_S = 60.0
# Devices of these torch types can copy to each other. A machine has only one CPU device and one MPS device.
KINDS = ("cuda", "xpu")

StartChild = Callable[[Sequence[str]], LineChild]


def pairs(ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of devices of the same type. Neighbours are first, so that a short run reaches every device."""
    found: list[tuple[str, str]] = []
    for kind in KINDS:
        same = [device for device in ids if device.partition(":")[0] == kind]
        found += [(same[at], same[at + far]) for far in range(1, len(same)) for at in range(len(same) - far)]
    return found


def peer(
    ids: Sequence[str], facts: Facts, emit: Emit, deadline: float, start: StartChild = start_child
) -> Iterator[Measurement]:
    """Yield a row for each ordered pair of devices, measured in a child. Emit a finding for each pair without a row."""
    todo = pairs(ids)
    known = {device.id: device.uuid for device in facts.devices}
    for done, pair in enumerate(todo):
        if done and time.monotonic() >= deadline:
            title = f"{len(todo) - done} of {len(todo)} pairs of devices were not measured"
            evidence = {"pairs": [list(left) for left in todo[done:]]}
            fix = "use a longer --time-budget: about 10 s for each pair"
            emit(Skipped(Finding(PEER, "skip", title, "out of time", evidence, fix=fix)))
            return
        emit(Progress(" and ".join(pair), done, len(todo)))
        missing = [pair, pair[::-1]]
        reason, hangs = "no reason was given", False
        try:
            with ChildSession(partial(start, pair)) as child:
                for line in child.answer(PAIR_TIMEOUT_S):
                    reason = line.get("error", reason)
                    if "measurement" not in line:
                        continue
                    row = from_json(Measurement, line["measurement"])
                    missing.remove((row.case["source"], row.case["destination"]))
                    yield replace(row, device=replace(row.device, uuid=known.get(row.device.id) or row.device.uuid))
        except Lost as lost:
            reason, hangs = lost.ending.in_words, lost.ending.how == "late"
        for ends in missing:
            emit(Skipped(judge.not_measured(ends, reason, hangs=hangs)))


# -- the command -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransferPart:
    """A part of the benchmark on one device. `weight` is its share of the time among the parts."""

    id: str
    weight: float
    rows: Callable[[Setting], Iterator[Measurement]]
    applies: Callable[[Accel], bool] = lambda accel: True


PARTS = (
    TransferPart("copies", 8.0, copies),
    TransferPart("idioms", 3.0, idioms),
    # This part needs pinned memory to copy both ways at once, and device events to prove that the copies overlapped.
    TransferPart("both_ways", 3.0, both_ways, lambda accel: accel.can_pin and accel.has_events),
)
# This part follows the others if more than one device is selected.
PAIRS = "peer"

# 14 s are too short: an H100 took one to seven samples for sizes from 128 MiB on, and did not reach the last two parts.
DEFAULT_BUDGET_S = {"device": 24.0, "cpu": 18.0, "sweep": 60.0}
# The child process of each pair takes time to import torch.
PAIRS_S = 30.0
# With `--device all`, pairs of devices get this share of the user's time budget.
PAIRS_SHARE = 0.4


def command(options: TransferOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Time copies to and from each selected device, then between devices. Raises CannotLook and UsageError."""
    began = time.monotonic()
    lost: dict[str, Fault] = {} if shared.lost is None else shared.lost
    chosen, facts = options.selected, shared.facts or inventory.read()
    alone = [part for part in PARTS if part.id in chosen]
    budget_s = options.time_budget_s
    # Only "all" can mean several devices, and the number of devices is not known yet.
    share = 1 - PAIRS_SHARE if PAIRS in chosen and options.device == "all" else 1.0
    measured = devices.each(
        NAME,
        replace(options, time_budget_s=budget_s and budget_s * share),
        emit,
        replace(shared, facts=facts, lost=lost),
        partial(_rows_on, options, alone, emit),
        lambda accel: DEFAULT_BUDGET_S["sweep" if options.sweep else "cpu" if accel.is_cpu else "device"],
    )
    ids = tuple(device for device in measured if device not in lost)
    if len(ids) > 1:
        until = began + budget_s if budget_s else time.monotonic() + PAIRS_S
        if shared.until_s is None:
            watchdog.ends_by(until - began, began)
        if PAIRS in chosen and pairs(ids):
            emit(Began(judge.part(PAIRS), None))
            for row in peer(ids, facts, emit, until):
                emit(Measured(row))
            emit(Finished(judge.part(PAIRS), None, ""))
    elif not alone:
        title = f"{', '.join(sorted(chosen))} needs several devices"
        why = f"{ids[0] if ids else 'none'} is the only one chosen"
        raise CannotLook(title, why, "use --device all on a machine with several", finding=PEER)


def _rows_on(
    options: TransferOptions, wanted: Sequence[TransferPart], emit: Emit, accel: Accel, deadline: float
) -> Iterator[Measurement]:
    """Yield the rows of every part that applies to a device. The first part always starts. Raises CannotLook."""
    todo = [part for part in wanted if part.applies(accel)]
    if wanted and not todo:
        names = ", ".join(part.id for part in wanted)
        raise CannotLook(f"{names} cannot be measured on {accel.id}", finding="transfer.part")
    # The method has the NUMA nodes that a copy may use. The node that a copy does use varies between runs.
    nodes, device = numa.allowed_text(), accel.id
    with Watch(accel.uuid) as watch:
        for index, part in enumerate(todo):
            watchdog.go_on()
            if index and time.monotonic() >= deadline:
                left = [part.id for part in todo[index:]]
                # The fix is a complete command, because `--only` has another meaning in `bench all` and `fleet check`.
                fix = f"gpucheck bench transfer --only {','.join(left)} --device {device}"
                title, why = f"not measured: {', '.join(left)}", "out of time; a longer --time-budget measures all"
                emit(Skipped(Finding(f"{NAME}.time", "skip", title, why, {"parts": left}, fix, device)))
                return
            until, why = share_until(deadline, [left.weight for left in todo[index:]]), ""
            device_lifetime.settle(accel)
            accel.empty_cache()
            setting = Setting(options, accel, buffers.room_for(accel, options.host_share), watch, emit, until)
            emit(Began(judge.part(part.id), device))
            try:
                for row in part.rows(setting):
                    yield replace(row, method=replace(row.method, numa=nodes))
            except watchdog.OutOfTime:
                emit(Finished(judge.part(part.id), device, "time"))
                raise
            except CannotLook as error:
                if index == 0:
                    raise
                emit(Skipped(of_error(error, device)))
                why = "memory"
            emit(Finished(judge.part(part.id), device, why))
