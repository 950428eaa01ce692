"""`bench transfer`: how fast copies between host and device run, and whether they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck import units
from gpucheck.bench import transfer_judge
from gpucheck.bench.copies import Buffer, Copies, Verified, allocate
from gpucheck.bench.transfer_judge import Link
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import caches, choose, host, inventory
from gpucheck.machine.accel import Accel
from gpucheck.measure import summary, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.telemetry import flags as telemetry_flags
from gpucheck.report.events import Answered, Emit, Judged, Measured, Notice, Progress, Started
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Method
from gpucheck.units import GIB, KIB, MIB

Direction = Literal["host_to_device", "device_to_host", "host_to_host"]
HostMemory = Literal["pageable", "pinned"]
# `link`: on the device's clock; `as_called`: on the host's, with the wait for its end.
Timed = Literal["link", "as_called"]

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "both": ("host_to_device", "device_to_host"),
    "host_to_device": ("host_to_device",),
    "h2d": ("host_to_device",),
    "device_to_host": ("device_to_host",),
    "d2h": ("device_to_host",),
}
MEMORIES: dict[str, tuple[HostMemory, ...]] = {
    "both": ("pageable", "pinned"),
    "pageable": ("pageable",),
    "pinned": ("pinned",),
}
# A batch of token ids, of feature rows and of images; then what fills a link: 128 MiB, nvbandwidth's 512 MiB, and twice
# that, where some machines fall off.
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
SWEEP = tuple(2**power for power in range(12, 31))
LARGEST_SIZE = 2**45

# The command ends within 20 s on a device and 30 s on a CPU, starting torch included.
DEFAULT_BUDGET_S = {"device": 16.0, "cpu": 18.0, "sweep": 60.0}
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0
# Of a row's time: for windows with their refills and comparisons, and of that for the latter.
SAMPLING_SHARE, VERIFYING_SHARE = 0.6, 0.3
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S, ROW_WARM_UP_S = 0.2, 0.02
# A cold copy's slices rotate over so many times the last-level cache.
COLD_FACTOR = 2
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# What buffers may take of the memory that is left, so that the machine keeps working.
HOST_SHARE, DEVICE_SHARE = 0.5, 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; no sizes means the six of the documentation, or the sweep."""

    sizes: tuple[int, ...] = ()
    sweep: bool = False
    directions: tuple[Direction, ...] = DIRECTIONS["both"]
    memories: tuple[HostMemory, ...] = MEMORIES["both"]
    time_budget_s: float | None = None
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Case:
    """One row: which way, from which memory, how much, and on whose clock."""

    direction: Direction
    memory: HostMemory
    size: int
    timed: Timed

    @property
    def label(self) -> str:
        """The row in words."""
        by = ", the link alone" if self.timed == "link" else ""
        return f"{units.capacity(self.size)} {self.direction.replace('_', ' ')}, {self.memory}{by}"


@dataclass(frozen=True, slots=True)
class Room:
    """What the buffers may take, in bytes; `device` is None where host and device share their memory or are one."""

    host: int
    device: int | None
    cache: int
    cache_known: bool

    @property
    def cold(self) -> int:
        """What copies must rotate over to be cold."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """How large each buffer is: enough for the largest size and for cold copies, less where there is less room."""
        # One slice more than is needed: sizes that do not divide it leave a rest.
        wanted = max(largest, self.cold + min(largest, self.cache))
        return max(largest, min(wanted, self.most(host_buffers)))

    def most(self, host_buffers: int) -> int:
        """The largest buffer that fits so many times on the host and once on the device."""
        # Where the device takes its memory from the host's, its buffer is one of the host's.
        shares = host_buffers + (1 if self.device is None else 0)
        on_host = self.host // shares
        return on_host if self.device is None else min(on_host, self.device)


# -- options ----------------------------------------------------------------------------------------------------------


def parse(
    *,
    sizes: Sequence[str] = (),
    sweep: bool = False,
    direction: str = "both",
    host_memory: str = "both",
    time_budget_s: float | None = None,
    device: str = "auto",
) -> Options:
    """Options from what was typed. Raises UsageError."""
    if sizes and sweep:
        raise UsageError("--size and --sweep exclude each other", "", "give one of them")
    if direction not in DIRECTIONS:
        raise UsageError(f"--direction {direction!r} is not known", "", f"give {', '.join(DIRECTIONS)}")
    if host_memory not in MEMORIES:
        raise UsageError(f"--host-memory {host_memory!r} is not known", "", f"give {', '.join(MEMORIES)}")
    parsed = {units.parse_size(text) for text in sizes}
    if parsed and max(parsed) > LARGEST_SIZE:
        raise UsageError(f"--size {max(parsed)} is too large", "no machine holds two buffers of 32 TiB")
    return Options(
        sizes=tuple(sorted(parsed)),
        sweep=sweep,
        directions=DIRECTIONS[direction],
        memories=MEMORIES[host_memory],
        time_budget_s=time_budget_s,
        device=device,
    )


def cases(options: Options, accel: Accel, sizes: Sequence[int]) -> list[Case]:
    """The rows to time, in order. Pinned copies are timed twice where the device has a clock.

    Raises CannotLook where pinned memory alone was asked for and there is nothing to pin it for.
    """
    if not accel.can_pin and options.memories == ("pinned",):
        raise CannotLook(
            f"there is no pinned memory for {accel.id}",
            "pinned memory is for copies to a CUDA or XPU device",
            "leave --host-memory out",
            finding="transfer.pinned",
        )
    directions: tuple[Direction, ...] = ("host_to_host",) if accel.is_cpu else options.directions
    memories = [memory for memory in options.memories if accel.can_pin or memory == "pageable"]
    found = []
    for direction in directions:
        for memory in memories:
            clocks: tuple[Timed, ...] = ("as_called",)
            if memory == "pinned" and accel.has_events:
                clocks = ("link", "as_called")
            found += [Case(direction, memory, size, timed) for timed in clocks for size in sizes]
    return found


def fitting(options: Options, room: Room, host_buffers: int) -> tuple[list[int], list[int]]:
    """The sizes that fit, and those that do not. Raises UsageError for one that the user named."""
    wanted = options.sizes or (SWEEP if options.sweep else SIZES)
    most = room.most(host_buffers)
    fits = [size for size in wanted if size <= most]
    if options.sizes and len(fits) < len(wanted):
        size = max(wanted)
        where = "" if room.device is None else f", and the device can spare {units.capacity(room.device)}"
        raise UsageError(
            f"--size {units.capacity(size)} does not fit",
            f"it needs {host_buffers} × {units.capacity(size)} of host memory, which can spare "
            f"{units.capacity(room.host)}{where}",
            f"give at most {units.capacity(most)}",
        )
    return fits, [size for size in wanted if size > most]


# -- measuring --------------------------------------------------------------------------------------------------------


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
            refused = str(error).strip().splitlines()[0]
    return Buffers(device, made, refused)


def measure(case: Case, accel: Accel, shared: Buffers, room: Room, budget_s: float, watch: Watch) -> Measurement:
    """Time and verify one row."""
    accel.reset_peak()
    watch.take()
    source, destination = shared.ends(case)
    sampling_s = budget_s * SAMPLING_SHARE
    copies = Copies(
        source,
        destination,
        case.size,
        non_blocking=case.memory == "pinned",
        synchronize=accel.synchronize,
        allowance_s=sampling_s * VERIFYING_SHARE,
    )
    timed = timing.measure(
        accel,
        timing.Work(copies.call, empty=copies.empty, prepare=copies.prepare, forget=copies.forget),
        clock="device events" if case.timed == "link" else "host",
        limits=timing.Limits(sampling_s, 0.0 if accel.is_cpu else min(ROW_WARM_UP_S, budget_s / 10)),
    )
    seen, why_not = watch.during(timed.run)
    details = _details(timed, copies, copies.finish(), room)
    if seen is None:
        details["no_telemetry_because"] = why_not
    return _measurement(case, accel, timed, details, seen, "cold" if details["rotation_bytes"] >= room.cold else "warm")


def _details(timed: timing.Timed, copies: Copies, verified: Verified, room: Room) -> dict[str, Any]:
    """How a row's copies were made and what comparing them came to."""
    # A graph replays the slices that it captured.
    slices = min(copies.count, timed.run.calls_per_sample) if timed.launch == "graph" else copies.count
    calls = timed.run.calls_per_sample + int(timed.details["untimed_calls"])
    return {
        **timed.details,
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


def _measurement(
    case: Case,
    accel: Accel,
    timed: timing.Timed,
    details: dict[str, Any],
    seen: dict[str, Any] | None,
    cache: str,
) -> Measurement:
    time_s = summary.time_stats((timed.run,))
    bound = {"call-bound", "launch-bound"} & set(timed.flags)
    return Measurement(
        name="transfer",
        device=accel.ref,
        case={
            "direction": case.direction,
            "host_memory": case.memory,
            "size_bytes": case.size,
            "timed": case.timed,
        },
        runs=(timed.run,),
        time_s=time_s,
        work={"bytes": float(case.size)},
        # What the call costs is a latency, not a rate of the link.
        rate=None if time_s is None or bound else summary.rate(time_s, float(case.size), "B/s"),
        memory=accel.memory(),
        method=Method(timed.clock, timed.launch, cache, details=details),
        telemetry=seen,
        flags=(*timed.flags, *summary.sample_flags(timed.run.samples_s), *telemetry_flags(seen)),
    )


# -- the command ------------------------------------------------------------------------------------------------------


def command(options: Options, emit: Emit) -> None:
    """Time copies to and from every device asked for. Raises CannotLook and UsageError."""
    began = time.monotonic()
    facts = inventory.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    results = []
    for place, device_id in enumerate(chosen.ids):
        accel = choose.open_named(device_id, facts)
        default = DEFAULT_BUDGET_S["sweep" if options.sweep else "cpu" if accel.is_cpu else "device"]
        left_s = (options.time_budget_s or default * len(chosen.ids)) - (time.monotonic() - began)
        deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
        with accel.as_current():
            measured = list(_on_device(options, accel, emit, deadline))
        accel.empty_cache()
        link = link_under_load(accel, measured)
        for finding in transfer_judge.judge(measured, link):
            emit(Judged(finding))
        results.append(answer(accel.id, measured, link))
        emit(Answered("bench_transfer", results))


def answer(device_id: str, measured: Sequence[Measurement], link: Link) -> dict[str, Any]:
    """What the rows of one device come to: gains and latencies as called, and the link."""
    return {
        "device": device_id,
        "link": {
            "generation": link.generation,
            "width": link.width,
            "max_width": link.max_width,
            "limit_bytes_per_s": link.rate,
            "unknown_because": link.reason or None,
        },
        "gains": transfer_judge.speedups(measured),
        "latencies": transfer_judge.latencies(measured),
    }


def room_for(accel: Accel) -> Room:
    """What buffers may take here, and what cold copies must exceed."""
    cache = caches.last_level_bytes()
    info = accel.memory_info()
    return Room(
        host=int(host.memory().usable * HOST_SHARE),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(cache or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
        cache_known=cache is not None,
    )


def _on_device(options: Options, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    memories = [memory for memory in options.memories if accel.can_pin or memory == "pageable"] or ["pageable"]
    room = room_for(accel)
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
        emit(Judged(Finding("transfer.pinned", "skip", "no pinned memory was to be had", shared.no_pinned)))
        todo = [case for case in todo if case.memory != "pinned"]
    if not accel.is_cpu:
        _wake(accel, shared)
    with Watch(accel.uuid) as watch:
        for done, case in enumerate(todo):
            emit(Progress(case.label, done, len(todo)))
            share_s = max(deadline - time.monotonic(), 0.0) / (len(todo) - done)
            row = measure(case, accel, shared, room, min(share_s, LONGEST_ROW_S), watch)
            emit(Measured(row))
            yield row


def _wake(accel: Accel, shared: Buffers) -> None:
    """Copy for a while, so that link and clocks are awake for the first row."""
    some = next(iter(shared.host.values()), None)
    if some is None:
        return
    part = min(len(some.words), 16 * MIB // some.words.element_size())
    until = accel.host_now() + LINK_WARM_UP_S
    while accel.host_now() < until:
        shared.device.words[:part].copy_(some.words[:part])
        accel.synchronize()


def link_under_load(accel: Accel, measured: Sequence[Measurement]) -> Link:
    """The link as telemetry saw it inside the windows of the largest pinned copies."""
    pinned = [one for one in measured if one.case["host_memory"] == "pinned"]
    for one in sorted(pinned, key=lambda one: -one.case["size_bytes"]):
        seen = (one.telemetry or {}).get("pcie") or {}
        if seen.get("generation") and seen.get("width"):
            return Link(seen["generation"], seen["width"], seen.get("max_width"))
    reasons = [one.method.details.get("no_telemetry_because") for one in pinned]
    return Link(
        reason="a CPU has none" if accel.is_cpu else reasons[-1] if reasons and reasons[-1] else "it was not read"
    )
