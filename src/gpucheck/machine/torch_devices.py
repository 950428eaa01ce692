"""The accelerators that torch alone knows (ROCm, XPU, MPS), listed by importing torch in a child.

Only asked where there is no NVIDIA device and torch's build could see another: importing torch takes seconds, and may
hang or crash.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from gpucheck.machine import child
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device, TorchBuild

# Importing torch from a cold disk or a network file system has been seen to take most of a minute.
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TorchDevices:
    """The devices that torch lists, or why it could not."""

    devices: tuple[Device, ...] = ()
    error: str | None = None


def could_see_another(build: TorchBuild, platform: str = sys.platform) -> bool:
    """Whether this build of torch serves an accelerator that is not NVIDIA's."""
    return build.built_for in ("rocm", "xpu") or (platform == "darwin" and build.version is not None)


def read(timeout_s: float = TIMEOUT_S) -> TorchDevices:
    """Ask torch, in a child."""
    try:
        result = child.run(child.python_argv("gpucheck.machine.torch_devices"), timeout_s)
    except OSError as error:
        return TorchDevices(error=f"Python cannot be started to ask torch ({error.strerror or error})")
    if result.timed_out:
        return TorchDevices(error=f"torch did not answer within {timeout_s:g} s")
    if (sent := child.sent_signal(result.returncode)) is not None:
        return TorchDevices(error=f"the process that asks torch was ended from outside ({sent})")
    lines = result.stdout.strip().splitlines()
    if result.returncode != 0 or not lines:
        words = result.stderr.strip().splitlines() or [f"exit {result.returncode}"]
        return TorchDevices(error=f"torch cannot be asked for its devices: {words[-1]}")
    return TorchDevices(tuple(from_json(Device, row) for row in json.loads(lines[-1])["devices"]))


def listed(torch: Any) -> list[dict[str, Any]]:
    """torch's accelerators as Device's fields, without a device context where torch can do without."""
    # is_available() first: torch 2.6's current_accelerator() raises where there is none.
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator().type
    if kind == "mps":
        total = getattr(torch.mps, "recommended_max_memory", None)
        return [
            {
                "kind": kind,
                "id": kind,
                "name": "Apple GPU",
                "integrated": True,
                "memory_total_bytes": total() if total else None,
                "memory_source": "torch.mps (recommended maximum)",
            }
        ]
    module = torch.get_device_module(kind)
    rows = []
    for index in range(module.device_count()):
        properties = module.get_device_properties(index)
        rows.append(
            {
                "kind": kind,
                "id": f"{kind}:{index}",
                "name": getattr(properties, "name", None),
                "integrated": bool(getattr(properties, "is_integrated", False)),
                "multiprocessors": getattr(properties, "multi_processor_count", None),
                "memory_total_bytes": getattr(properties, "total_memory", None),
                "memory_source": f"torch.{kind}",
            }
        )
    return rows


def main() -> int:
    """Say the devices in one line of JSON."""
    from gpucheck.machine.speaking import claim_stdout

    say = claim_stdout()
    import torch

    say({"devices": listed(torch)})
    return 0
