"""`gpucheck devices`: every device, the faults NVML proves, and how the busy cards run."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpucheck.cards.checks import findings
from gpucheck.devices.driver import driver_findings
from gpucheck.devices.options import DevicesOptions
from gpucheck.machine import choose, host
from gpucheck.machine.child import Ahead
from gpucheck.machine.inventory import Inventory, only
from gpucheck.report.events import Emit, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding


def command(
    options: DevicesOptions,
    emit: Emit,
    *,
    sleep: Callable[[float], object] = time.sleep,
    ahead: Ahead | None = None,
) -> None:
    """Read the machine and judge it, once or until interrupted. `ahead` has children that were started already.

    Raises UsageError for a `device` that is no device's name and CannotLook for one that is not there.
    """
    with Inventory(
        with_processes=options.processes, with_links=True, wake=False, details=host.detailed, ahead=ahead
    ) as inventory:
        restarts = 0
        while True:
            begun = time.monotonic()
            machine = inventory.read()
            facts = selected(options.device, machine)
            emit(Started(facts))
            for finding in judge(facts, machine):
                emit(Judged(finding))
            if options.watch_s is None:
                return
            if inventory.restarts > restarts:
                restarts = inventory.restarts
                emit(Notice("NVML stopped answering: the process that reads it is restarted", "warning"))
            emit(Progress(f"next reading in {options.watch_s:g} s"))
            sleep(max(0.0, options.watch_s - (time.monotonic() - begun)))


def selected(requested: str, facts: Facts) -> Facts:
    """The facts with the devices that `requested` names; also those that torch cannot use. `all` includes the CPU."""
    if requested == "all":
        return facts
    if not any(_is_named(device, requested) for device in facts.devices):
        # The one grammar of device names decides what `auto` is and words every refusal.
        ids = choose.choose(requested, facts).ids
        return only(facts, lambda device: device.id in ids)
    return only(facts, lambda device: _is_named(device, requested))


def _is_named(device: Device, requested: str) -> bool:
    if requested in (device.kind, device.id):
        return True
    prefix = requested.lower()
    return prefix.startswith(("gpu-", "mig-")) and (device.uuid or "").lower().startswith(prefix)


def judge(facts: Facts, machine: Facts | None = None) -> list[Finding]:
    """The findings: the driver first, then each device. A link and a clock are judged where the card works.

    `machine` is the whole machine, where `facts` have some of its devices: a card is judged beside all others.
    """
    whole = facts if machine is None else machine
    return [*driver_findings(whole), *(found for device in facts.devices for found in findings(device, whole))]
