"""All chosen devices copy at the same time: what a link is worth that several devices share.

One child for each device, bound to the device's NUMA node. All are released at one time of CLOCK_MONOTONIC, and only
windows count that lie inside the time in which every one of them was copying.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from gpucheck import units
from gpucheck.bench.transfer import bound_talk
from gpucheck.bench.transfer.bound_talk import Lost, Start, Talk
from gpucheck.bench.transfer.setting import Together
from gpucheck.bench.transfer.together_judge import NAME
from gpucheck.errors import CannotLook
from gpucheck.machine import host
from gpucheck.report.codec import from_json
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.facts import Device
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

CHILD = "gpucheck.bench.transfer.together_child"

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


def rows(together: Together) -> Iterator[Measurement]:
    """A row for each direction and device, all measured at the same time. Raises CannotLook.

    A child that is lost leaves the question undecided, and says why.
    """
    yield from measured(together)


def measured(together: Together, start: Start = bound_talk.start) -> Iterator[Measurement]:
    """The rows, with children that `start` starts."""
    share = together.options.host_share / len(together.ids)
    # Host and device buffers may be in the same memory.
    size = min(SIZE, int(host.memory().usable * share / 2))
    if size < LEAST_SIZE < SIZE:
        raise CannotLook(
            f"there is no room for {len(together.ids)} buffers of {units.capacity(LEAST_SIZE)}",
            f"the host can spare {units.capacity(size)} for each",
            finding=NAME,
        )
    known = {device.id: device for device in together.facts.devices}
    with ExitStack() as stack:
        try:
            talks = [stack.enter_context(Talk(device_id, CHILD, start)) for device_id in together.ids]
            for talk in talks:
                talk.say(_setup(talk.who, known.get(talk.who), together, size, share))
            together.emit(Progress(f"{len(talks)} devices start together", 0, 1))
            ready = [talk.hear(START_TIMEOUT_S) for talk in talks]
            directions = ready[0]["directions"]
            for done, direction in enumerate(directions):
                together.emit(Progress(f"{len(talks)} devices at once, {direction}", done, len(directions)))
                left_s = (together.deadline - time.monotonic()) / (len(directions) - done)
                yield from _at_once(talks, direction, min(max(left_s, SHORTEST_S), LONGEST_S))
        except Lost as lost:
            lost.raise_for_device(lost.who)
            together.emit(Skipped(_undecided(lost, len(together.ids))))


def _at_once(talks: Sequence[Talk], direction: str, for_s: float) -> list[Measurement]:
    """Every child's row of one direction. Raises Lost."""
    for talk in talks:
        talk.say({"direction": direction})
    for talk in talks:
        talk.hear(ANSWER_TIMEOUT_S)
    at_s = time.perf_counter() + RELEASE_S
    for talk in talks:
        talk.say({"at_s": at_s, "for_s": for_s})
    spans = [talk.hear(for_s + ANSWER_TIMEOUT_S) for talk in talks]
    # All copied from the last one's first window to the first one's last.
    all_copied = [max(span["first_s"] for span in spans), min(span["last_s"] for span in spans)]
    for talk in talks:
        talk.say({"keep": all_copied, "devices": len(talks)})
    return [from_json(Measurement, talk.hear(ANSWER_TIMEOUT_S)["measurement"]) for talk in talks]


def _setup(device_id: str, device: Device | None, together: Together, size: int, share: float) -> dict[str, object]:
    return {
        "device": device_id,
        "name": device.name if device else None,
        "uuid": device.uuid if device else None,
        "node": device.numa_node if device else None,
        "pci_address": device.pci_address if device else None,
        "directions": list(together.options.directions),
        "size": size,
        "host_share": share,
    }


def _undecided(lost: Lost, devices: int) -> Finding:
    return Finding(
        NAME,
        "inconclusive",
        f"{lost.who} did not copy beside the others",
        lost.reason,
        {"device": lost.who, "devices": devices},
        fix=f"run `gpucheck bench transfer --device {lost.who}`, then this again",
    )
