"""For benchmarks that compare a device with the host: whether there is a device, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpucheck.bench.devices import Shared
from gpucheck.errors import CannotLook, GpucheckError
from gpucheck.machine import choose, inventory
from gpucheck.report.events import Emit, Started


def shared_with_facts(device: str, emit: Emit, shared: Shared, error: Callable[[], CannotLook]) -> Shared:
    """What is shared, with the machine read. Raises a fresh `error()` where `device` means the CPU.

    Said before the loop over devices, which would remark first that it works on the CPU.
    """
    facts = shared.facts or inventory.read()
    try:
        if choose.choose(device, facts).ids == ("cpu",):
            raise error()
    except GpucheckError:
        emit(Started(facts))
        raise
    return replace(shared, facts=facts)
