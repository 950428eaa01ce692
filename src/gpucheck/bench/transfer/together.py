"""All chosen devices copy at the same time: what a link is worth that several devices share.

One child for each device, bound to the device's NUMA node before torch is imported: nothing here imports it as the
module is. All are released at one time of CLOCK_MONOTONIC, and only windows count that lie inside the time in which
every one of them was copying. They follow each other without a pause: whoever refills or compares in between leaves the
link to the others.

Lines of JSON to a child, each answered by one: the setup → `ready`; a `direction` → `prepared`; `at_s` and `for_s`
(when to begin, and for how long) → when the first window began and the last one ended; `keep` (from when to when) → the
measurement of the windows within. `error` instead says why there is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpucheck import messages, units
from gpucheck.bench.transfer import Together, copies_judge
from gpucheck.bench.transfer.judge import TOGETHER as NAME
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import child_protocol, host, kept, numa
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Start, Talk
from gpucheck.machine.child_stdio import claim_stdout, requests
from gpucheck.machine.numa import Bound
from gpucheck.measure import telemetry, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.facts import Device
from gpucheck.report.fault import first_line
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run

if TYPE_CHECKING:  # torch comes after binding
    import torch

    from gpucheck.bench.buffers import Buffers, Copies, Room
    from gpucheck.links import Direction, HostMemory
    from gpucheck.machine.accel import Accel

# Large enough that the link alone decides, small enough that eight devices' buffers are no burden.
SIZE = 256 * units.MIB
# Below this the start of a copy is a part of its time.
LEAST_SIZE = 16 * units.MIB
# Importing torch and opening a device; eight at once on a cold machine take their time.
START_TIMEOUT_S = 90.0
# Filling buffers, comparing them and waking links.
ANSWER_TIMEOUT_S = 30.0
# From the last `prepared` to the start: longer than a line takes to every child.
RELEASE_S = 0.1
# A direction: long enough for a hundred windows, and no longer.
SHORTEST_S, LONGEST_S = 0.5, 2.0
# The wait for the end of a window takes some 20 µs, in which the link is free: below a thousandth of this.
WINDOW_S = 0.02
# The link wakes, and it is known how many copies make up a window.
WARM_UP_S = 0.2


def start_child() -> LineChild:
    """A fresh interpreter that runs this module's `main`. Raises OSError."""
    return LineChild(python_argv("gpucheck.bench.transfer.together"))


def rows(together: Together, start: Start = start_child) -> Iterator[Measurement]:
    """A row for each direction and device, all measured at the same time. Raises CannotLook."""
    share = together.options.host_share / len(together.ids)
    # Host and device buffers may be in the same memory.
    size = min(SIZE, int(host.memory().usable * share / 2))
    if size < LEAST_SIZE < SIZE:
        raise CannotLook(
            f"not enough memory for {len(together.ids)} buffers of {units.capacity(LEAST_SIZE)}",
            f"the host has {units.capacity(size)} available for each",
            finding=NAME,
        )
    known = {device.id: device for device in together.facts.devices}
    with ExitStack() as stack:
        try:
            copiers: list[Copier] = []
            for device_id in together.ids:
                copiers.append(Copier(device_id, start))
                stack.callback(copiers[-1].stop)
            for copier in copiers:
                device = known.get(copier.who, Device(copier.who.partition(":")[0], copier.who))
                directions = list(together.options.directions)
                setup = {"device": to_json(device), "directions": directions, "size": size, "host_share": share}
                copier.say(setup)
            together.emit(Progress(f"{len(copiers)} devices start together", 0, 1))
            ready = [copier.hear(START_TIMEOUT_S) for copier in copiers]
            directions = ready[0]["directions"]
            for done, direction in enumerate(directions):
                together.emit(Progress(f"{len(copiers)} devices at once, {direction}", done, len(directions)))
                left_s = (together.deadline - time.monotonic()) / (len(directions) - done)
                yield from _at_once(copiers, direction, min(max(left_s, SHORTEST_S), LONGEST_S))
        except Lost as lost:
            cause = messages.cause_of(lost.reason)
            if cause is not None and cause.whose == "device":
                raise DeviceFailed(f"{lost.who}: {cause.title}", lost.reason, cause.fix, device=lost.who) from lost
            title = f"{lost.who} did not copy with the others"
            evidence = {"device": lost.who, "devices": len(together.ids)}
            fix = f"run `gpucheck bench transfer --device {lost.who}`, then rerun"
            together.emit(Skipped(Finding(NAME, "inconclusive", title, lost.reason, evidence, fix=fix)))


def _at_once(copiers: Sequence[Copier], direction: str, for_s: float) -> list[Measurement]:
    """Every child's row of one direction. Raises Lost."""
    for copier in copiers:
        copier.say({"direction": direction})
    for copier in copiers:
        copier.hear(ANSWER_TIMEOUT_S)
    at_s = time.perf_counter() + RELEASE_S
    for copier in copiers:
        copier.say({"at_s": at_s, "for_s": for_s})
    spans = [copier.hear(for_s + ANSWER_TIMEOUT_S) for copier in copiers]
    # All copied from the last one's first window to the first one's last.
    all_copied = [max(span["first_s"] for span in spans), min(span["last_s"] for span in spans)]
    for copier in copiers:
        copier.say({"keep": all_copied, "devices": len(copiers)})
    return [from_json(Measurement, copier.hear(ANSWER_TIMEOUT_S)["measurement"]) for copier in copiers]


# -- the talk with a child ---------------------------------------------------------------------------------------------


class Lost(Exception):
    """A child that died, hung or could not do what it was told; `who` it was for, and `reason`, in words."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason


class Copier(Talk):
    """The child that copies for `who`. Everything raises Lost where it is gone, late, or says that it failed."""

    def __init__(self, who: str, start: Start) -> None:
        self.who = who
        with self._lost():
            super().__init__(start)

    def say(self, told: dict[str, Any]) -> None:
        """Send one line."""
        with self._lost():
            self.send(told)

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line."""
        with self._lost():
            line = next(self.answer(timeout_s, per_line=True))
        if "error" in line:
            raise Lost(self.who, str(line["error"]))
        return line

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except child_protocol.Lost as lost:
            raise Lost(self.who, lost.ending.in_words) from lost


# -- the child: one of the devices -------------------------------------------------------------------------------------


def main() -> int:
    """Answer each line until stdin ends."""
    say = claim_stdout()
    try:
        asked = requests()
        worker = Worker(next(asked))
        say({"ready": True, "directions": worker.directions, "host_memory": worker.memory})
        for told in asked:
            if "direction" in told:
                worker.prepare(told["direction"])
                say({"prepared": True})
            elif "at_s" in told:
                taken = worker.copy(told["at_s"], told["for_s"])
                began_s, last_s = taken.started_monotonic_s, taken.samples_s[-1]
                say({"first_s": began_s[0], "last_s": began_s[-1] + last_s})
            else:
                from_s, to_s = told["keep"]
                say({"measurement": to_json(worker.measurement(from_s, to_s, told["devices"]))})
    except CannotLook as error:
        say({"error": str(error)})
    except RuntimeError as error:  # torch's, for whatever its driver answers
        kept.saw(error)
        say({"error": first_line(str(error)) or type(error).__name__})
    return 0


class Worker:
    """A device, its buffers, and the copies of the direction at hand. Raises CannotLook and torch's errors."""

    def __init__(self, setup: dict[str, Any]) -> None:
        device = from_json(Device, setup["device"])
        bound, why_not = _bind(device.numa_node)
        # From here on torch may start its threads.
        from gpucheck.bench import buffers
        from gpucheck.machine import accel

        self.accel: Accel = accel.open_device(str(device.id), name=device.name, uuid=device.uuid)
        self.accel.make_current()
        self.size = int(setup["size"])
        self.memory: HostMemory = "pinned" if self.accel.can_pin else "pageable"
        self.directions: list[Direction] = ["host_to_host"] if self.accel.is_cpu else list(setup["directions"])
        share = float(setup["host_share"])
        room = _within(buffers.room_for(self.accel, share), bound, share)
        self.room = replace(room, pinned=self.memory == "pinned")
        capacity = self.room.capacity(self.size, 1)
        self.buffers: Buffers = buffers.allocate_all(self.accel, [self.memory], capacity, NAME)
        if self.buffers.no_pinned is not None:
            raise CannotLook("pinned memory could not be allocated", self.buffers.no_pinned)
        self.numa = _where(bound, self.buffers.host[self.memory].words)
        self.details: dict[str, Any] = {"numa_unbound_because": why_not} if why_not else {}
        self.details |= {"pci_bridges": list(numa.bridges(device.pci_address))} if device.pci_address else {}
        self.watch = Watch(self.accel.uuid)

    def prepare(self, direction: Direction) -> None:
        """Fill the buffers, wake the link, and see how many copies make up a window while they run alone."""
        from gpucheck.bench.buffers import Copies

        self.direction = direction
        self.copies: Copies = Copies(
            *self.buffers.ends(direction, self.memory),
            self.size,
            span=self.room.span(self.size),
            non_blocking=self.memory == "pinned",
            synchronize=self.accel.synchronize,
            # One filling before, one comparison after: none in between.
            allowance_s=0.0,
        )
        self.accel.reset_peak()
        self.copies.prepare(0, 1)
        self.calls = max(1, round(WINDOW_S / timing.repeated_s(self.accel, self.copies.call, WARM_UP_S)))
        self.watch.take()

    def copy(self, at_s: float, for_s: float) -> Run:
        """Copy from `at_s` on for so long, in windows one right after the other."""
        started = timing.started_now()
        began_s: list[float] = []
        lengths_s: list[float] = []
        time.sleep(max(at_s - self.accel.host_now(), 0.0))
        now = self.accel.host_now()
        while now < at_s + for_s or not began_s:
            for _ in range(self.calls):
                self.copies.call()
            self.accel.synchronize()
            began, now = now, self.accel.host_now()
            began_s.append(began)
            lengths_s.append(now - began)
        self.taken = Run(started, self.calls, tuple(lengths_s), tuple(began_s))
        return self.taken

    def measurement(self, from_s: float, to_s: float, devices: int) -> Measurement:
        """The windows that lie between these times. Raises CannotLook where there is none."""
        taken = self.taken
        windows = list(zip(taken.started_monotonic_s, taken.samples_s, strict=True))
        kept = [(began, length) for began, length in windows if from_s <= began and began + length <= to_s]
        if not kept:
            raise CannotLook("none of its copies overlapped with all others", f"{len(windows)} windows ran outside")
        run = Run(taken.started, taken.calls_per_sample, tuple(one[1] for one in kept), tuple(one[0] for one in kept))
        seen, why_not = self.watch.during(run)
        verified = self.copies.finish()
        few = ("few-samples",) if len(kept) < timing.WANTED_SAMPLES else ()
        # Others on the CPU are mostly the other devices' children: that is what is measured.
        beside = timing.Beside(
            seen, telemetry.flags(seen), {} if seen is not None else {"no_telemetry_because": why_not}
        )
        made = timing.measurement(
            NAME,
            self.accel.ref,
            timing.Timed(run, "host", "host", few),
            beside,
            case={"direction": self.direction, "host_memory": self.memory, "size_bytes": self.size, "devices": devices},
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
                **verified.details,
                **self.details,
            },
        )
        rate = made.rate.median if made.rate else None
        below = copies_judge.flags(made.telemetry, self.size, rate) if self.memory == "pinned" else ()
        return replace(made, flags=(*made.flags, *below), method=replace(made.method, numa=self.numa))


def _bind(node: int | None) -> tuple[Bound | None, str]:
    """Bind this process to a node; None and why where there is none to bind to or it cannot be."""
    if node is None:
        return None, "the NUMA node of the device is unknown"
    try:
        return numa.bind(node), ""
    except CannotLook as error:
        return None, "; ".join(part for part in (error.what, error.why) if part)


def _within(room: Room, bound: Bound | None, share: float) -> Room:
    """The room that is left on the node whose memory this process was bound to, of which `share` may be taken."""
    free = None if bound is None or not bound.memory else numa.free_bytes(bound.node)
    return room if free is None else replace(room, host=min(room.host, int(free * share)))


def _where(bound: Bound | None, words: torch.Tensor) -> str | None:
    """Where a buffer lies: as read back, else as assumed from the binding. Of an unbound process, where it may run."""
    if bound is None:
        return numa.allowed_text()
    return numa.told(bound, numa.node_of_pages(words.data_ptr(), words.nbytes))
