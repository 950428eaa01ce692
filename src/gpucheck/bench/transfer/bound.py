"""`--numa local` and `--numa remote`: a device's rows from a process that is bound to a NUMA node.

Whoever binds a process that has torch's threads already binds some of them: each node gets a child that binds itself
before it imports torch, and measures the very same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from gpucheck.bench.transfer import bound_talk
from gpucheck.bench.transfer.bound_judge import REMOTE
from gpucheck.bench.transfer.bound_talk import Lost, Start, Talk
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import host, numa
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Emit, Judged, Notice, Progress
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

CHILD = "gpucheck.bench.transfer.bound_child"
# The part that is measured from the wrong node as well.
COPIES = "copies"
# Importing torch and opening the device, which the command's own time must hold too.
START_S = {"none": 0.0, "local": 8.0, "remote": 22.0}
START_TIMEOUT_S = 90.0
# A child that begins late still tells something.
SHORTEST_S = 3.0
# Beyond a child's own time: pinning, filling and comparing the largest buffers.
ANSWER_TIMEOUT_S = 60.0


def rows(
    options: TransferOptions, parts: Sequence[str], accel: Accel, emit: Emit, deadline: float, ran: set[str]
) -> Iterator[Measurement]:
    """The rows of these parts from the device's own node; with `remote` the copies from the farthest node as well.

    `ran` gets the ids of the parts that ran. Raises CannotLook where there is no such node, and UsageError.
    """
    yield from measured(options, parts, accel, emit, deadline, ran, nodes_for(options.numa, parts, accel))


def nodes_for(wanted: str, parts: Sequence[str], accel: Accel) -> tuple[int, ...]:
    """The device's own node and, for `remote`, the one farthest from it. Raises CannotLook and UsageError."""
    if wanted == "remote" and COPIES not in parts:
        raise UsageError("--numa remote compares copies", f"the parts are {', '.join(parts)}", f"add --only {COPIES}")
    if accel.is_cpu:
        raise CannotLook(
            "--numa is for copies to a device", "on the CPU every allowed core copies", finding="transfer.numa"
        )
    there = numa.nodes()
    with Watch(accel.uuid) as watch:
        own, why_not = watch.numa_node, watch.numa_unknown
    if own is None:
        own = _node_by_address(accel)
    if own is None and len(there) == 1:
        own = there[0].number
    if wanted == "remote" and len(there) <= 1:
        raise CannotLook(
            "this machine has one NUMA node" if there else "this system shows no NUMA nodes",
            "there is no wrong one to copy from",
            "leave --numa out",
            finding="transfer.numa",
        )
    if own is None:
        raise CannotLook(
            f"the NUMA node of {accel.id} is not known", why_not, "leave --numa out", finding="transfer.numa"
        )
    if wanted != "remote":
        return (own,)
    other = numa.farthest(own)
    if other is None:
        raise CannotLook(
            f"this process may work on no other NUMA node than {own}",
            "a container, a batch system or taskset keeps it there",
            finding="transfer.numa",
        )
    return own, other


def _node_by_address(accel: Accel) -> int | None:
    """The kernel's word by the PCI address that newer versions of torch tell, for a device that NVML does not know."""
    get = getattr(accel.module, "get_device_properties", None)
    properties = get(accel.device) if get is not None else None
    domain, bus, device = (getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:
        return None
    address = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    return host.numa_nodes([address]).get(address)


def measured(
    options: TransferOptions,
    parts: Sequence[str],
    accel: Accel,
    emit: Emit,
    deadline: float,
    ran: set[str],
    nodes: Sequence[int],
    start: Start = bound_talk.start,
) -> Iterator[Measurement]:
    """The rows, from children on these nodes that `start` starts: all start at once, and measure one by one."""
    with ExitStack() as stack:
        try:
            emit(Progress(f"{accel.id}: a process on node {' and one on '.join(map(str, nodes))}"))
            talks = [stack.enter_context(Talk(f"{accel.id} from node {node}", CHILD, start)) for node in nodes]
            for node, talk in zip(nodes, talks, strict=True):
                mine = list(parts) if node == nodes[0] else [COPIES]
                talk.say(
                    {
                        "device": accel.id,
                        "name": accel.name,
                        "uuid": accel.uuid,
                        "node": node,
                        "parts": mine,
                        "options": to_json(replace(options, numa="none")),
                    }
                )
            for talk in talks:
                ready = _heard(talk, START_TIMEOUT_S)
                if ready["memory_refused"]:
                    emit(
                        Notice(
                            f"{talk.who}: {ready['memory_refused']}; memory comes from there while there is any",
                            "warning",
                        )
                    )
            for place, talk in enumerate(talks):
                for_s = max((deadline - time.monotonic()) / (len(talks) - place), SHORTEST_S)
                name = None if place == 0 else REMOTE
                yield from _of_child(talk, for_s, name, emit, ran)
                talk.end()
        except Lost as lost:
            lost.raise_for_device(accel.id)
            emit(
                Judged(
                    Finding(
                        "transfer.numa",
                        "inconclusive",
                        f"{lost.who}: copies were cut off",
                        lost.reason,
                        fix=f"run `gpucheck bench transfer --device {accel.id}` without --numa",
                    )
                )
            )


def _of_child(talk: Talk, for_s: float, name: str | None, emit: Emit, ran: set[str]) -> Iterator[Measurement]:
    """A child's rows as they come, under another name where one is given, and what it says beside them."""
    talk.say({"for_s": for_s})
    while True:
        line = _heard(talk, for_s + ANSWER_TIMEOUT_S)
        if "end" in line:
            return
        if "ran" in line:
            # The wrong node's copies are judged with the part that ran on the right one.
            ran |= set(line["ran"])
        elif "measurement" in line:
            one = from_json(Measurement, line["measurement"])
            yield one if name is None else replace(one, name=name)
        elif "finding" in line:
            emit(Judged(from_json(Finding, line["finding"])))
        elif "notice" in line:
            emit(from_json(Notice, line["notice"]))
        elif "progress" in line:
            step = from_json(Progress, line["progress"])
            emit(replace(step, step=f"{talk.who}: {step.step}"))


def _heard(talk: Talk, timeout_s: float) -> dict[str, Any]:
    """The next line. Raises what the child raised, and Lost."""
    line = talk.hear(timeout_s)
    if "raised" in line:
        told = line["raised"]
        kind = UsageError if told["usage"] else CannotLook
        raise kind(told["what"], told["why"], told["fix"], finding=told["finding"])
    return line
