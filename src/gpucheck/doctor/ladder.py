"""The diagnosis: the first broken stage, its consequences, other findings, and the state of each stage. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucheck import naming
from gpucheck.doctor import (
    conditions_gpus,
    conditions_kernel,
    conditions_nodes,
    conditions_nvml,
    conditions_torch,
    fixes,
)
from gpucheck.doctor.condition import CERTAINTIES, STAGES, Condition, Evidence, Signs, Stage
from gpucheck.machine.choose import MASK
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import in_short
from gpucheck.report.results.short import StageStanding, StageState

# The conditions of these stages judge each device separately, and skip devices on which torch ran a kernel.
BY_DEVICE: tuple[Stage, ...] = ("architecture", "run")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition that holds on this machine, with the verdict, certainty, title and fix for this machine."""

    condition: Condition
    signs: Signs


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`first` breaks the lowest stage. `consequences` break the same or higher stages. `aside` breaks no stage."""

    first: Sighting | None
    consequences: tuple[Sighting, ...]
    aside: tuple[Sighting, ...]

    @property
    def broken(self) -> Stage | None:
        return None if self.first is None else self.first.condition.stage


def diagnose(evidence: Evidence, conditions: Sequence[Condition]) -> Diagnosis:
    """Judge every condition. Sort those that break a stage by stage (lowest first), certainty and row."""
    # If torch has run a kernel, all other stages work, even if versions or permissions suggest the opposite.
    breaking: list[Sighting] = []
    aside: list[Sighting] = []
    for condition in conditions:
        signs = condition.judge(evidence) if condition.judge is not None else None
        if signs is None:
            continue
        here = replace(
            condition,
            verdict=signs.verdict or condition.verdict,
            certainty=signs.certainty or condition.certainty,
            title=signs.title or condition.title,
            fix=fixes.adapted(condition.fix if signs.fix is None else signs.fix, evidence.host),
        )
        # Only a failure breaks a stage.
        breaks = here.stage is not None and here.verdict == "fail"
        if not breaks or here.stage in BY_DEVICE or not evidence.torch_works:
            (breaking if breaks else aside).append(Sighting(here, signs))
    breaking.sort(key=lambda row: CERTAINTIES.index(row.condition.certainty))
    breaking.sort(key=lambda row: STAGES.index(row.condition.stage or "run"))
    return Diagnosis(breaking[0] if breaking else None, tuple(breaking[1:]), tuple(aside))


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """Return the findings: the first broken stage, its consequences as remarks, then other conditions."""
    if diagnosis.first is None:
        return list(map(_finding, diagnosis.aside))
    consequences = [_finding(sighting, diagnosis.first.condition.id) for sighting in diagnosis.consequences]
    return [_finding(diagnosis.first), *consequences, *map(_finding, diagnosis.aside)]


def _finding(sighting: Sighting, because: str | None = None) -> Finding:
    condition, signs = sighting.condition, sighting.signs
    evidence = {
        **signs.evidence,
        "rung": condition.stage,
        "certainty": condition.certainty,
        "settle": condition.settle or None,
        **({"because_of": because} if because else {}),
    }
    # The fix of the first broken stage also fixes the consequences.
    fix = None if because else condition.fix or None
    verdict: Verdict = "info" if because else condition.verdict
    return Finding(condition.id, verdict, condition.title, signs.message, evidence, fix)


# -- the state of each stage -------------------------------------------------------------------------------------------


def standings(evidence: Evidence, diagnosis: Diagnosis) -> tuple[StageStanding, ...]:
    working, failing = _working(evidence), _failing(evidence)
    failed = {row.condition.stage: row.condition.title for row in reversed(diagnosis.consequences)}
    stages: list[StageStanding] = []
    in_windows, has_bus = evidence.host.wsl or evidence.host.system == "Windows", evidence.stack.devices is not None
    for stage in STAGES:
        state: StageState = "unknown"
        why = failing.get(stage) or "no evidence: it was not checked, or could not be read"
        if diagnosis.first is not None and stage == diagnosis.broken:
            state, why = "broken", diagnosis.first.condition.title
        elif stage in failed:
            state, why = "unreached", failed[stage]
        elif (by := working[stage]) is not None:
            # A stage above the broken one may work, such as NVML without libcuda.
            state, why = "held", by
        elif any(standing.state == "broken" for standing in stages):
            state, why = "unreached", failing.get(stage) or f"not checked: {diagnosis.broken} is broken"
        elif not evidence.is_nvidia_here and stage != "torch" and (stage != "hardware" or has_bus):
            state, why = "absent", "no NVIDIA GPU"
        elif stage in ("hardware", "kernel", "nodes") and in_windows:
            state, why = "absent", "the driver is in Windows"
        stages.append(StageStanding(stage, state, why))
    return tuple(stages)


def _working(evidence: Evidence) -> dict[Stage, str | None]:
    driver, probe, gpus, pci_gpus = evidence.driver, evidence.probe, evidence.gpus, evidence.pci_gpus
    on_bus = f"{len(pci_gpus)} NVIDIA GPU{'s' * (len(pci_gpus) != 1)} on the PCI bus" if pci_gpus else ""
    licence = "open" if driver.kernel_module_open else "proprietary"
    listing = f"lists {sum(gpu.nvml_index is not None for gpu in gpus)}, driver {driver.version or 'unknown'}"
    empty = sum(gpu.mig is not None and gpu.mig.enabled and not gpu.mig.instances for gpu in gpus)
    devices = sum(gpu.cuda_index is not None for gpu in gpus)
    shown = f"CUDA shows {devices}{f'; {empty} in MIG mode without an instance' if empty else ''}"
    started = f"cuInit returns 0, CUDA {driver.cuda_version or 'unknown'}" if driver.cuinit_code == 0 else None
    if driver.cuinit_code == 100 and evidence.value(MASK) is not None:
        started = "cuInit returns 100: a mask hides every GPU"
    torch = f"torch {probe.version}, {probe.count or 0} device{'s' * (probe.count != 1)}" if probe.available else None
    # Without a GPU, the stage works if torch can be imported.
    if probe.available is False and not evidence.is_nvidia_here and probe.stage == "end":
        torch = f"torch {probe.version} imports"
    capabilities = dict.fromkeys((probe.capabilities or {}).values())
    has_code = evidence.torch_works or all(
        (number := fixes.number(value)) is not None
        and any(fixes.runs_on(name, number) for name in probe.architectures or ())
        for value in capabilities
    )
    ran = [run.device for run in probe.kernels] if not any(run.error for run in probe.kernels) else []
    return {
        "hardware": on_bus or ", ".join(dict.fromkeys(gpu.name or "a GPU" for gpu in gpus)) or None,
        "kernel": driver.kernel_module_version and f"nvidia {driver.kernel_module_version}, {licence}",
        "nodes": ", ".join(node.path for node in evidence.stack.nodes if node.error == 0) or None,
        "libraries": driver.libcuda_path,
        "nvml": listing if driver.nvml_code == 0 and not driver.nvml_error else None,
        "cuinit": started,
        "devices": shown if devices else None,
        "torch": torch,
        "architecture": ", ".join(f"sm_{value.replace('.', '')}" for value in capabilities if has_code) or None,
        "run": f"kernel and matrix product correct on {', '.join(in_short(ran))}" if ran else None,
    }


def _failing(evidence: Evidence) -> dict[Stage, str | None]:
    driver, probe, code = evidence.driver, evidence.probe, evidence.driver.cuinit_code
    refused = ", ".join(node.path for node in evidence.stack.nodes if node.error)
    libcuda = f"cuInit returns {code} ({driver.cuinit_error or 'no text'})" if code else driver.cuinit_error
    torch = f"torch {probe.version} imports, but sees no GPU" if probe.available is False else probe.error
    failed = "; ".join(f"{run.device}: {run.error}" for run in probe.kernels if run.error)
    no_kernel = failed or ("not checked: torch has no GPU" if probe.available is False else None)
    return {
        "nodes": f"could not be opened: {refused}" if refused else None,
        "libraries": libcuda,
        "nvml": f"NVML: {driver.nvml_error}" if driver.nvml_error else None,
        "cuinit": libcuda,
        "devices": driver.cuinit_error or "CUDA shows none" if code == 0 else None,
        "torch": torch if probe.not_awaited is None else f"not checked: {probe.not_awaited}",
        "architecture": no_kernel,
        "run": no_kernel,
    }


CONDITIONS: tuple[Condition, ...] = (
    *conditions_kernel.KERNEL,
    *conditions_nodes.NODES,
    *conditions_nodes.LIBRARY,
    *conditions_nvml.NVML,
    *conditions_nvml.CUINIT,
    *conditions_kernel.MASKS,
    *conditions_torch.TORCH,
    *conditions_torch.PACKAGES,
    *conditions_torch.ARCHITECTURE,
    *conditions_kernel.ENVIRONMENT,
    *conditions_gpus.GPUS,
    *conditions_gpus.PEERS,
    *conditions_gpus.LOAD,
    *conditions_kernel.LOG,
)

BY_ID = {condition.id: condition for condition in CONDITIONS}


def causes(*, cuinit: int | None = None, nvml: int | None = None) -> list[Condition]:
    return [condition for condition in CONDITIONS if cuinit in condition.cuinit or nvml in condition.nvml]


def select(only: Sequence[str], skip: Sequence[str]) -> list[Condition]:
    """Return the selected conditions. Raises UsageError for a prefix without a match, or if nothing is left."""
    nothing = "no condition would be checked"
    return naming.select(CONDITIONS, lambda condition: condition.id, only, skip, noun="condition", nothing=nothing)
