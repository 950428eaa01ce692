"""Copies from device to device as a matrix: for each pair a child, so that one that hangs or dies costs only its pair.

The children see what this process sees: `CUDA_VISIBLE_DEVICES` is theirs too, so torch's names mean the same. A child
is started with the names of the two and says a line of JSON for each measurement, or one with the error.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.bench import buffers
from gpucheck.bench.buffers import ASSUMED_CACHE_BYTES, COLD_FACTOR, VERIFYING_SHARE, Copies, allocate, no_room
from gpucheck.bench.transfer import Together
from gpucheck.bench.transfer.judge import PEER as NAME
from gpucheck.bench.transfer.judge import Pair, way
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, child, child_protocol, child_stdio, kept
from gpucheck.machine.accel import Accel
from gpucheck.machine.child_protocol import Heard
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, KIB, MIB

# This module's main() is the child's.
CHILD = "gpucheck.bench.transfer.peer"
# Importing torch and opening two devices takes some seconds, half a minute on a busy machine; the copies two.
CHILD_TIMEOUT_S = 60.0
# What is measured of each ordered pair.
WHAT = {"rate", "latency"}
# torch's names of devices that can copy to each other. The CPU is none, and MPS has but one.
KINDS = ("cuda", "xpu")
# 0.6 ms on NVLink 4 and 10 on PCIe 4: beyond what caches hold, and quick enough for every pair of eight devices.
USUAL_BYTES, LATENCY_BYTES = 256 * MIB, 64 * KIB
# What a buffer may take of the memory that is left on either device.
DEVICE_SHARE = 0.25
# An H200 has 50 MiB of cache, an MI300X 256: cold copies rotate over no more than this.
MOST_BYTES = GIB
# Ten windows of some milliseconds, with refills and comparisons; latencies are known sooner.
RATE_S, LATENCY_S, WARM_UP_S = 0.6, 0.15, 0.05
PATHS: dict[bool | None, str | None] = {True: "peer", False: "staged", None: None}

RunChild = Callable[[Sequence[str], float], Heard]
# The line of a traceback that names the error; CUDA's errors go on for several more.
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b")


def pairs(ids: Sequence[str]) -> list[tuple[str, str]]:
    """Every two devices of a kind: neighbours first, so that each device has its turn where time is short."""
    found: list[tuple[str, str]] = []
    for kind in KINDS:
        mine = [one for one in ids if one.partition(":")[0] == kind]
        found += [(mine[at], mine[at + far]) for far in range(1, len(mine)) for at in range(len(mine) - far)]
    return found


def rows(together: Together, run_child: RunChild = child_protocol.run) -> Iterator[Measurement]:
    """A row for the rate and one for the latency of every ordered pair; a finding for each pair without."""
    todo = pairs(together.ids)
    known = {device.id: device.uuid for device in together.facts.devices}
    for done, (first, second) in enumerate(todo):
        if done and time.monotonic() >= together.deadline:
            what = f"{len(todo) - done} of {len(todo)} pairs of devices were not measured"
            evidence = {"pairs": [list(pair) for pair in todo[done:]]}
            fix = "use a longer --time-budget: about 10 s for each pair"
            together.emit(Skipped(Finding(NAME, "skip", what, "out of time", evidence, fix=fix)))
            return
        together.emit(Progress(f"{first} and {second}", done, len(todo)))
        argv = child.python_argv(CHILD, first, second)
        heard = run_child(argv, CHILD_TIMEOUT_S)
        measurements, reason = read(heard)
        for one in measurements:
            yield replace(one, device=replace(one.device, uuid=known.get(one.device.id) or one.device.uuid))
        for source, destination in ((first, second), (second, first)):
            seen = {one.case["what"] for one in measurements if one.case["source"] == source}
            if seen < WHAT:
                # One that did not finish: often its copies never arrive.
                hangs = heard.ending.how == "late"
                together.emit(Skipped(_missing((source, destination), seen, reason, hangs, together.facts)))


def read(heard: Heard) -> tuple[tuple[Measurement, ...], str]:
    """A child's measurements, and why there are not more of them; empty where nothing went wrong."""
    measurements = tuple(from_json(Measurement, one["measurement"]) for one in heard.lines if "measurement" in one)
    ending = heard.ending
    words = next((line for line in reversed(ending.stderr.splitlines()) if _ERROR.match(line.strip())), None)
    told = replace(ending, stderr=words) if words is not None else ending
    reason = "" if ending.how == "returned" else told.in_words
    return measurements, str(heard.merged.get("error", reason))


def _missing(pair: Pair, seen: set[str], reason: str, hangs: bool, facts: Facts) -> Finding:
    source, destination = pair
    reason = reason or "no reason was given"
    fix = f"run `gpucheck devices`; if {source} and {destination} look healthy there, look for Xid errors in the "
    fix += "system log"
    evidence: dict[str, Any] = {"source": source, "destination": destination, "reason": reason}
    message = reason
    if hangs:
        words, mend, evidence["way"] = way(pair, facts)
        message, fix = "; ".join(part for part in (reason, words) if part), f"{mend}; {fix}"
    what = " and ".join(sorted(WHAT - seen, reverse=True))
    return Finding(
        NAME,
        "inconclusive",
        f"the {what} of copies from {source} to {destination} was not measured",
        message,
        evidence,
        fix=fix,
    )


# -- the child: one pair, each copying to the other --------------------------------------------------------------------


def main() -> int:
    """Measure the pair named in the arguments; 0 also where it could not be, which is then said."""
    say = child_stdio.claim_stdout()
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
    watch.reason = "clocks and links are not sampled between pairs of devices"
    for source, destination in ((first, second), (second, first)):
        with source.as_current():
            yield from one_way(source, destination, watch)
        kept.settle(source, destination)
        for one in (source, destination):
            one.empty_cache()


def one_way(source: Accel, destination: Accel, watch: Watch) -> Iterator[Measurement]:
    """Rate and latency of copies from one device to another. Raises CannotLook where there is no room."""
    free = [info[0] for one in (source, destination) if (info := one.memory_info()) is not None]
    most = int(min(free) * DEVICE_SHARE) if free else USUAL_BYTES
    why = f"a buffer may use {units.capacity(most)} on each"
    scarce = CannotLook(f"not enough memory on {source.id} and {destination.id}", why, finding=NAME)
    size = buffers.size_that_fits(USUAL_BYTES, most, LATENCY_BYTES, scarce)
    cold = COLD_FACTOR * max(one.l2_cache_bytes or ASSUMED_CACHE_BYTES for one in (source, destination))
    capacity = max(size, min(cold, MOST_BYTES, most))
    with no_room(source, f"not enough memory for buffers of {units.capacity(capacity)}", NAME, fix=""):
        ends = allocate(capacity, source.device), allocate(capacity, destination.device)

    def synchronize() -> None:
        source.synchronize()
        destination.synchronize()

    # Filled and poisoned on streams that the copies' stream knows nothing of.
    synchronize()
    path = PATHS[source.peer_access(destination)]
    for what, copied, budget_s in (("rate", size, RATE_S), ("latency", LATENCY_BYTES, LATENCY_S)):
        copies = Copies(*ends, copied, max(cold, copied), True, synchronize, budget_s * VERIFYING_SHARE)
        # Their rate by the source's clock, their latency as called. Through the host the driver may keep the caller as
        # long as it copies: there the host's clock is the right one.
        by_device = what == "rate" and path != "staged" and source.has_events
        source.reset_peak()
        yield buffers.measure(
            NAME,
            source,
            copies,
            watch,
            "device events" if by_device else "host",
            timing.Limits(budget_s, WARM_UP_S),
            case={"source": source.id, "destination": destination.id, "size_bytes": copied, "what": what},
            cold=cold,
            details={
                "path": path,
                "call": "b.copy_(a, non_blocking=True)",
                "stream": "the source's",
                "bytes_counted": "once",
                "last_level_cache_bytes": source.l2_cache_bytes,
            },
        )
