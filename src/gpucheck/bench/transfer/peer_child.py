"""One pair of devices, each copying to the other, in a process of its own: a wedged link takes only this pair with it.

It is started with torch's names of the two and says a line of JSON for each measurement, or one with the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpucheck import units
from gpucheck.bench.transfer.cases import COLD_FACTOR
from gpucheck.bench.transfer.copies import Copies, allocate
from gpucheck.bench.transfer.measure import ASSUMED_CACHE_BYTES, VERIFYING_SHARE
from gpucheck.bench.transfer.peer_judge import NAME
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, speaking
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, KIB, MIB

# 0.6 ms on NVLink 4 and 10 on PCIe 4: beyond what caches hold, and quick enough for every pair of eight devices.
USUAL_BYTES, LATENCY_BYTES = 256 * MIB, 64 * KIB
# What a buffer may take of the memory that is left on either device.
DEVICE_SHARE = 0.25
# An H200 has 50 MiB of cache, an MI300X 256: cold copies rotate over no more than this.
MOST_BYTES = GIB
# Ten windows of some milliseconds, with refills and comparisons; latencies are known sooner.
RATE_S, LATENCY_S, WARM_UP_S = 0.6, 0.15, 0.05
PATHS: dict[bool | None, str | None] = {True: "peer", False: "staged", None: None}


def main() -> int:
    """Measure the pair named in the arguments; 0 also where it could not be, which is then said."""
    say = speaking.claim_stdout()
    try:
        first, second = (accel.open_device(name) for name in sys.argv[1:3])
        for one in work(first, second):
            say({"measurement": to_json(one)})
    except CannotLook as error:
        say({"error": str(error)})
    return 0


def work(first: Accel, second: Accel) -> Iterator[Measurement]:
    """Rate and latency from the first to the second, and back. Raises CannotLook where there is no room."""
    # Asking NVML takes another process and longer than the copies do.
    watch = Watch(None)
    watch.reason = "clocks and links are not sampled while pairs of devices copy"
    for source, destination in ((first, second), (second, first)):
        with source.as_current():
            yield from one_way(source, destination, watch)
        for one in (source, destination):
            one.empty_cache()


def one_way(source: Accel, destination: Accel, watch: Watch) -> Iterator[Measurement]:
    """Rate and latency of copies from one device to another. Raises CannotLook where there is no room."""
    size = size_of(source, destination)
    cold = COLD_FACTOR * max(one.l2_cache_bytes or ASSUMED_CACHE_BYTES for one in (source, destination))
    capacity = max(size, min(cold, MOST_BYTES, _most(source, destination)))
    try:
        buffers = allocate(capacity, source.device), allocate(capacity, destination.device)
    except RuntimeError as error:
        if not source.is_out_of_memory(error):
            raise
        why = str(error).strip().splitlines()[0]
        raise CannotLook(f"no room for buffers of {units.capacity(capacity)}", why, finding=NAME) from error

    def synchronize() -> None:
        source.synchronize()
        destination.synchronize()

    # Filled and poisoned on streams that the copies' stream knows nothing of.
    synchronize()
    for what, copied, budget_s in (("rate", size, RATE_S), ("latency", LATENCY_BYTES, LATENCY_S)):
        copies = Copies(*buffers, copied, max(cold, copied), True, synchronize, budget_s * VERIFYING_SHARE)
        yield measure(what, source, destination, copies, cold, budget_s, watch)


def size_of(source: Accel, destination: Accel) -> int:
    """How large a copy is: the usual size, less where either device has less room. Raises CannotLook for next to none.

    A power of two.
    """
    most = _most(source, destination)
    if most < LATENCY_BYTES:
        why = f"a buffer may take {units.capacity(most)} on each"
        raise CannotLook(f"there is no room on {source.id} and {destination.id}", why, finding=NAME)
    return min(USUAL_BYTES, 1 << (most.bit_length() - 1))


def _most(source: Accel, destination: Accel) -> int:
    free = [info[0] for one in (source, destination) if (info := one.memory_info()) is not None]
    return int(min(free) * DEVICE_SHARE) if free else USUAL_BYTES


def measure(
    what: str, source: Accel, destination: Accel, copies: Copies, cold: int, budget_s: float, watch: Watch
) -> Measurement:
    """Time and verify copies on the source's stream: their rate by its clock, their latency as called."""
    path = PATHS[source.peer_access(destination)]
    # Through the host the driver may keep the caller as long as it copies: there the host's clock is the right one.
    by_device = what == "rate" and path != "staged" and source.has_events
    work = timing.Work(copies.call, empty=copies.empty, prepare=copies.prepare, forget=copies.forget)
    limits = timing.Limits(budget_s, WARM_UP_S)
    source.reset_peak()
    timed, beside = row.watched(
        watch,
        1,
        lambda: timing.measure(source, work, clock="device events" if by_device else "host", limits=limits),
    )
    if timed.launch == "graph":
        # What a graph replays moves no cursor: one copy more, so that something of this row is compared.
        copies.call()
    slices = min(copies.count, timed.run.calls_per_sample) if timed.launch == "graph" else copies.count
    verified = copies.finish()
    details: dict[str, Any] = {
        "path": path,
        "call": "b.copy_(a, non_blocking=True)",
        "stream": "the source's",
        "bytes_counted": "once",
        "buffers": "preallocated",
        "rotation_bytes": slices * copies.stride,
        "last_level_cache_bytes": source.l2_cache_bytes,
        "verified_slices": verified.slices,
        "wrong_bytes": verified.wrong_bytes,
        "first_wrong_byte": verified.first_wrong,
    }
    return row.measurement(
        NAME,
        source.ref,
        timed,
        beside,
        case={"source": source.id, "destination": destination.id, "size_bytes": copies.size, "what": what},
        work=("bytes", float(copies.size), "B/s"),
        memory=source.memory(),
        cache="cold" if slices * copies.stride >= cold else "warm",
        details=details,
    )
