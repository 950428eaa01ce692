"""One of several devices that copy at the same time: the child that does its copies.

It is bound to the device's NUMA node before torch is imported. Lines on stdin, each answered by one: the setup →
`ready`; a `direction` → `prepared`; `at_s` and `for_s`, when to begin and for how long → when the first window began
and the last one ended; `keep`, from when to when → the measurement of the windows within. The copies follow each other
without a pause: whoever refills or compares in between leaves the link to the others.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from gpucheck.bench.transfer import bound_place
from gpucheck.bench.transfer.together_judge import NAME
from gpucheck.errors import CannotLook
from gpucheck.machine import numa
from gpucheck.machine.speaking import claim_stdout
from gpucheck.report.codec import to_json

if TYPE_CHECKING:  # torch comes after binding
    from gpucheck.bench.transfer.copies import Copies
    from gpucheck.bench.transfer.measure import Buffers
    from gpucheck.directions import Direction, HostMemory
    from gpucheck.machine.accel import Accel
    from gpucheck.measure.telemetry import Watch
    from gpucheck.report.measurement import Measurement


# The wait for the end of a window takes some 20 µs, in which the link is free: below a thousandth of this.
WINDOW_S = 0.02
# The link wakes, and it is known how many copies make up a window.
WARM_UP_S = 0.2


@dataclass(slots=True)
class Taken:
    """The windows of one direction, on CLOCK_MONOTONIC."""

    started: str
    began_s: list[float]
    lengths_s: list[float]


def main() -> int:
    """Answer each line until stdin ends."""
    say = claim_stdout()
    try:
        worker = Worker(json.loads(sys.stdin.readline()))
        say({"ready": True, "directions": worker.directions, "host_memory": worker.memory})
        for line in sys.stdin:
            told = json.loads(line)
            if "direction" in told:
                worker.prepare(told["direction"])
                say({"prepared": True})
            elif "at_s" in told:
                taken = worker.copy(told["at_s"], told["for_s"])
                say({"first_s": taken.began_s[0], "last_s": taken.began_s[-1] + taken.lengths_s[-1]})
            else:
                from_s, to_s = told["keep"]
                say({"measurement": to_json(worker.measurement(from_s, to_s, told["devices"]))})
    except CannotLook as error:
        say({"error": str(error)})
    except RuntimeError as error:  # torch's, for whatever its driver answers
        say({"error": str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__})
    return 0


class Worker:
    """A device, its buffers, and the copies of the direction at hand. Raises CannotLook and torch's errors."""

    def __init__(self, setup: dict[str, Any]) -> None:
        bound, why_not = bound_place.bind(setup["node"])
        # From here on torch may start its threads.
        from gpucheck.bench.transfer import measure
        from gpucheck.machine import accel
        from gpucheck.measure.telemetry import Watch

        self.accel: Accel = accel.open_device(setup["device"], name=setup["name"], uuid=setup["uuid"])
        self.accel.make_current()
        self.size = int(setup["size"])
        self.memory: HostMemory = "pinned" if self.accel.can_pin else "pageable"
        self.directions: list[Direction] = ["host_to_host"] if self.accel.is_cpu else list(setup["directions"])
        share = float(setup["host_share"])
        room = bound_place.within(measure.room_for(self.accel, share), bound, share)
        self.room = replace(room, pinned=self.memory == "pinned")
        self.buffers: Buffers = measure.buffers(self.accel, [self.memory], self.room.capacity(self.size, 1))
        if self.buffers.no_pinned is not None:
            raise CannotLook("no pinned memory was to be had", self.buffers.no_pinned)
        self.numa = bound_place.where(bound, [self.buffers.host[self.memory].words])
        self.details: dict[str, Any] = {"numa_unbound_because": why_not} if why_not else {}
        self.details |= {"pci_bridges": list(numa.bridges(setup["pci_address"]))} if setup["pci_address"] else {}
        self.watch: Watch = Watch(self.accel.uuid)

    def prepare(self, direction: Direction) -> None:
        """Fill the buffers, wake the link, and see how many copies make up a window while they run alone."""
        from gpucheck.bench.transfer.cases import Case
        from gpucheck.bench.transfer.copies import Copies

        self.direction = direction
        source, destination = self.buffers.ends(Case(self.direction, self.memory, self.size, "as_called"))
        self.copies: Copies = Copies(
            source,
            destination,
            self.size,
            span=self.room.span(self.size),
            non_blocking=self.memory == "pinned",
            synchronize=self.accel.synchronize,
            # One filling before, one comparison after: none in between.
            allowance_s=0.0,
        )
        self.accel.reset_peak()
        self.copies.prepare(0, 1)
        began, done = self.accel.host_now(), 0
        while (now := self.accel.host_now()) - began < WARM_UP_S or not done:
            self.copies.call()
            self.accel.synchronize()
            done += 1
        self.calls = max(1, round(WINDOW_S * done / (now - began)))
        self.watch.take()

    def copy(self, at_s: float, for_s: float) -> Taken:
        """Copy from `at_s` on for so long, in windows one right after the other."""
        self.taken = Taken(datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), [], [])
        time.sleep(max(at_s - self.accel.host_now(), 0.0))
        now = self.accel.host_now()
        while now < at_s + for_s or not self.taken.began_s:
            for _ in range(self.calls):
                self.copies.call()
            self.accel.synchronize()
            began, now = now, self.accel.host_now()
            self.taken.began_s.append(began)
            self.taken.lengths_s.append(now - began)
        return self.taken

    def measurement(self, from_s: float, to_s: float, devices: int) -> Measurement:
        """The windows that lie between these times. Raises CannotLook where there is none."""
        from gpucheck.bench.transfer import link
        from gpucheck.measure import row, telemetry, timing
        from gpucheck.report.measurement import Run

        taken = self.taken
        windows = list(zip(taken.began_s, taken.lengths_s, strict=True))
        kept = [(began, length) for began, length in windows if from_s <= began and began + length <= to_s]
        if not kept:
            raise CannotLook("none of its copies ran while all devices copied", f"{len(windows)} windows ran outside")
        run = Run(taken.started, self.calls, tuple(one[1] for one in kept), tuple(one[0] for one in kept))
        seen, why_not = self.watch.during(run)
        verified = self.copies.finish()
        few = ("few-samples",) if len(kept) < timing.WANTED_SAMPLES else ()
        # Others on the CPU are mostly the other devices' children: that is what is measured.
        beside = row.Beside(seen, telemetry.flags(seen), {} if seen is not None else {"no_telemetry_because": why_not})
        made = row.measurement(
            NAME,
            self.accel.ref,
            timing.Timed(run, "host", "host", few),
            beside,
            case={
                "direction": self.direction,
                "host_memory": self.memory,
                "size_bytes": self.size,
                "devices": devices,
            },
            work=("bytes", float(self.size), "B/s"),
            memory=self.accel.memory(),
            cache="cold" if self.copies.span_bytes >= self.room.cold else "warm",
            details={
                "buffers": "preallocated",
                "non_blocking": self.copies.non_blocking,
                "synchronised": "after each window",
                "rotation_bytes": self.copies.span_bytes,
                "windows_outside": len(windows) - len(kept),
                "all_copied_s": to_s - from_s,
                "verified_slices": verified.slices,
                "wrong_bytes": verified.wrong_bytes,
                "first_wrong_byte": verified.first_wrong,
                **self.details,
            },
        )
        rate = made.rate.median if made.rate else None
        below = link.flags(made.telemetry, self.size, rate) if self.memory == "pinned" else ()
        return bound_place.placed(replace(made, flags=(*made.flags, *below)), self.numa)
