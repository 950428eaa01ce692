"""Was anybody else on the device before this process went there? Judged by the memory that was in use by then. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gpucheck import units
from gpucheck.machine.others import held_bytes
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding

FLAG = "device-shared"


def judge(facts: Facts, ids: Collection[str]) -> list[Finding]:
    """A warning for each of these devices (torch's names) that was in use; `facts` are from before our own context."""
    return [
        Finding(
            "device.shared",
            "warn",
            f"{device.id} was in use before this began: others hold {units.capacity(held)} of its memory",
            "what they copy and compute takes time from what is measured here",
            {"device": device.id, "memory_used_bytes": held, "judged_by": "memory: the processes were not asked for"},
            fix=f"`gpucheck devices --processes` shows who; run it again when {device.id} is free",
        )
        for device in facts.devices
        if device.id in ids and (held := held_bytes(device)) is not None
    ]
