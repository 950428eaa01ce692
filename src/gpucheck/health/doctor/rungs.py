"""How each rung of the ladder stands, apart from any condition: what was seen to hold, and what nobody knows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpucheck.health.doctor import wheels
from gpucheck.health.doctor.condition import RUNGS, Rung
from gpucheck.health.doctor.evidence import Evidence
from gpucheck.health.doctor.ladder import Diagnosis

# `held` was seen to hold, `broken` is where the diagnosis stands, `unreached` lies above it; `unknown` is not told and
# `absent` does not apply here.
State = Literal["held", "broken", "unreached", "unknown", "absent"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One rung: how it stands, and by what that shows."""

    rung: Rung
    state: State
    shown_by: str = ""


def standings(evidence: Evidence, diagnosis: Diagnosis) -> tuple[Standing, ...]:
    """Every rung from the ground up."""
    found: list[Standing] = []
    above = False
    for rung in RUNGS:
        if rung == diagnosis.broken:
            assert diagnosis.first is not None
            title = diagnosis.first.seen.title or diagnosis.first.condition.title
            found.append(Standing(rung, "broken", title))
            above = True
        elif above:
            found.append(Standing(rung, "unreached"))
        else:
            found.append(_standing(rung, evidence))
    return tuple(found)


def _standing(rung: Rung, evidence: Evidence) -> Standing:
    shown_by = _SHOWN[rung](evidence)
    if shown_by is not None:
        return Standing(rung, "held", shown_by)
    looked = rung != "hardware" or evidence.stack.devices is not None
    if not evidence.is_nvidia_here and rung != "torch" and looked:
        return Standing(rung, "absent", "no NVIDIA GPU is here")
    if rung in _BELOW_WINDOWS and (evidence.host.wsl or evidence.host.system == "Windows"):
        return Standing(rung, "absent", "Windows has the driver")
    return Standing(rung, "unknown", "not told here")


# Windows' driver stands where these do on Linux.
_BELOW_WINDOWS: tuple[Rung, ...] = ("hardware", "kernel", "nodes")


def _hardware(evidence: Evidence) -> str | None:
    gpus = evidence.stack.gpus
    if gpus:
        return f"{len(gpus)} NVIDIA GPU{'s' * (len(gpus) != 1)} on the PCI bus"
    if evidence.cards:
        return ", ".join(dict.fromkeys(card.name or "a GPU" for card in evidence.cards))
    return None


def _kernel(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.kernel_module_version is None:
        return None
    kind = "open" if driver.kernel_module_open else "proprietary"
    return f"nvidia {driver.kernel_module_version}, {kind}"


def _nodes(evidence: Evidence) -> str | None:
    opened = [node.path for node in evidence.stack.nodes if node.error == 0]
    return ", ".join(opened) if opened else None


def _libraries(evidence: Evidence) -> str | None:
    return evidence.driver.libcuda_path


def _nvml(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.nvml_code != 0 or driver.nvml_error:
        return None
    listed = sum(card.nvml_index is not None for card in evidence.cards)
    return f"lists {listed}, driver {driver.version or 'unknown'}"


def _cuinit(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.cuinit_code == 100 and evidence.value("CUDA_VISIBLE_DEVICES") is not None:
        return "cuInit answers 100, as it does under a mask that hides every GPU"
    return f"cuInit answers 0, CUDA {driver.cuda_version or 'unknown'}" if driver.cuinit_code == 0 else None


def _devices(evidence: Evidence) -> str | None:
    shown = [card for card in evidence.cards if card.cuda_index is not None]
    empty = [card for card in evidence.cards if card.mig is not None and card.mig.enabled and not card.mig.instances]
    without = f"; {len(empty)} in MIG mode without an instance" if empty else ""
    return f"CUDA shows {len(shown)}{without}" if shown else None


def _torch(evidence: Evidence) -> str | None:
    probe = evidence.torch
    if probe is None or probe.available is None:
        return None
    if not probe.available:
        # Without a GPU here there is none to use: what can hold is that it starts.
        return None if evidence.is_nvidia_here or probe.stage != "end" else f"torch {probe.version} can be imported"
    return f"torch {probe.version}, {probe.count or 0} device{'s' * (probe.count != 1)}"


def _architecture(evidence: Evidence) -> str | None:
    probe = evidence.torch
    if probe is None or not probe.capabilities:
        return None
    numbers = {wheels.number(value) for value in probe.capabilities.values()}
    has_code = all(
        value is not None and any(wheels.runs_on(name, value) for name in probe.architectures or ())
        for value in numbers
    )
    if not has_code and not evidence.torch_works:
        return None
    return ", ".join(f"sm_{value.replace('.', '')}" for value in dict.fromkeys(probe.capabilities.values()))


def _run(evidence: Evidence) -> str | None:
    probe = evidence.torch
    if probe is None or not probe.kernels or any(one.error for one in probe.kernels):
        return None
    return f"a kernel and a product are right on {', '.join(one.device for one in probe.kernels)}"


_SHOWN: dict[Rung, Callable[[Evidence], str | None]] = {
    "hardware": _hardware,
    "kernel": _kernel,
    "nodes": _nodes,
    "libraries": _libraries,
    "nvml": _nvml,
    "cuinit": _cuinit,
    "devices": _devices,
    "torch": _torch,
    "architecture": _architecture,
    "run": _run,
}
