"""The ladder: which rung breaks first, what fails only because of it, what stands on its own, and how each rung stands;
and every condition, by rung. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpucheck import naming
from gpucheck.doctor import (
    conditions_cards,
    conditions_kernel,
    conditions_nodes,
    conditions_nvml,
    conditions_torch,
    fixes,
)
from gpucheck.doctor.condition import CERTAINTIES, RUNGS, Condition, Evidence, Rung, Seen
from gpucheck.machine.choose import MASK
from gpucheck.report.finding import Finding, Verdict, in_short
from gpucheck.report.results.short import RungStanding

# The rungs whose conditions speak of each device for itself, and leave out one that was seen to work.
BY_DEVICE: tuple[Rung, ...] = ("architecture", "run")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition as it shows here: with the verdict, certainty, title and fix of this machine."""

    condition: Condition
    seen: Seen


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`first` is the first broken rung's condition, `consequences` what fails above it, `aside` all else seen."""

    first: Sighting | None
    consequences: tuple[Sighting, ...]
    aside: tuple[Sighting, ...]

    @property
    def broken(self) -> Rung | None:
        """The first broken rung; None where all that is known holds."""
        return None if self.first is None else self.first.condition.rung


def diagnose(evidence: Evidence, conditions: Sequence[Condition]) -> Diagnosis:
    """Ask every condition, and put what holds in order.

    The lowest rung comes first, and on one rung what is most certain, then what stands first in the catalogue. Where
    torch has run a kernel nothing below it can be broken, whatever versions or permissions suggest: what says so all
    the same is left out, since success was seen. On the rungs that are judged by device another one may still fail.
    """
    breaking: list[Sighting] = []
    aside: list[Sighting] = []
    for condition in conditions:
        seen = condition.judge(evidence) if condition.judge is not None else None
        if seen is None:
            continue
        here = replace(
            condition,
            verdict=seen.verdict or condition.verdict,
            certainty=seen.certainty or condition.certainty,
            title=seen.title or condition.title,
            fix=fixes.here(condition.fix if seen.fix is None else seen.fix, evidence.host),
        )
        # Nothing above a broken rung can work; what is less than a failure lets one climb on.
        breaks = here.rung is not None and here.verdict == "fail"
        if not breaks or here.rung in BY_DEVICE or not evidence.torch_works:
            (breaking if breaks else aside).append(Sighting(here, seen))
    breaking.sort(key=_order)
    return Diagnosis(breaking[0] if breaking else None, tuple(breaking[1:]), tuple(aside))


def _order(sighting: Sighting) -> tuple[int, int]:
    assert sighting.condition.rung is not None
    return RUNGS.index(sighting.condition.rung), CERTAINTIES.index(sighting.condition.certainty)


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """The diagnosis as findings: the first broken rung, its consequences as remarks, then what stands on its own."""
    if diagnosis.first is None:
        return list(map(_finding, diagnosis.aside))
    cause = diagnosis.first.condition.id
    consequences = [_finding(sighting, cause) for sighting in diagnosis.consequences]
    return [_finding(diagnosis.first), *consequences, *map(_finding, diagnosis.aside)]


def _finding(sighting: Sighting, because: str | None = None) -> Finding:
    condition, seen = sighting.condition, sighting.seen
    evidence = {
        **seen.evidence,
        "rung": condition.rung,
        "certainty": condition.certainty,
        "settle": condition.settle or None,
        **({"because_of": because} if because else {}),
    }
    # What mends the first mends this too: a fix of its own would send its reader astray.
    fix = None if because else condition.fix or None
    verdict: Verdict = "info" if because else condition.verdict
    return Finding(condition.id, verdict, condition.title, seen.message, evidence, fix)


# -- how each rung stands, apart from any condition: what was seen to hold, and what nobody knows ----------------------


def standings(evidence: Evidence, diagnosis: Diagnosis) -> tuple[RungStanding, ...]:
    found: list[RungStanding] = []
    above = False
    for rung in RUNGS:
        if rung == diagnosis.broken:
            assert diagnosis.first is not None
            found.append(RungStanding(rung, "broken", diagnosis.first.condition.title))
            above = True
        else:
            found.append(_standing(rung, evidence, diagnosis, above=above))
    return tuple(found)


def _standing(rung: Rung, evidence: Evidence, diagnosis: Diagnosis, *, above: bool) -> RungStanding:
    """A rung that is not the broken one; above that it may hold all the same, as NVML does without libcuda."""
    failed = next((sighting for sighting in diagnosis.consequences if sighting.condition.rung == rung), None)
    if failed is not None:
        return RungStanding(rung, "unreached", failed.condition.title)
    shown, answered, not_looked_at = _STANDING[rung]
    shown_by = shown(evidence)
    if shown_by is not None:
        return RungStanding(rung, "held", shown_by)
    if above:
        return RungStanding(rung, "unreached", answered(evidence) or f"not checked: {diagnosis.broken} is broken")
    looked = rung != "hardware" or evidence.stack.devices is not None
    if not evidence.is_nvidia_here and rung != "torch" and looked:
        return RungStanding(rung, "absent", "no NVIDIA GPU")
    if rung in _BELOW_WINDOWS and (evidence.host.wsl or evidence.host.system == "Windows"):
        return RungStanding(rung, "absent", "the driver is in Windows")
    return RungStanding(rung, "unknown", answered(evidence) or not_looked_at)


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


def _nvml(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.nvml_code != 0 or driver.nvml_error:
        return None
    listed = sum(card.nvml_index is not None for card in evidence.cards)
    return f"lists {listed}, driver {driver.version or 'unknown'}"


def _cuinit(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.cuinit_code == 100 and evidence.value(MASK) is not None:
        return "cuInit returns 100: a mask hides every GPU"
    return f"cuInit returns 0, CUDA {driver.cuda_version or 'unknown'}" if driver.cuinit_code == 0 else None


def _devices(evidence: Evidence) -> str | None:
    shown = [card for card in evidence.cards if card.cuda_index is not None]
    empty = [card for card in evidence.cards if card.mig is not None and card.mig.enabled and not card.mig.instances]
    without = f"; {len(empty)} in MIG mode without an instance" if empty else ""
    return f"CUDA shows {len(shown)}{without}" if shown else None


def _torch(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if probe.available is None:
        return None
    if not probe.available:
        # Without a GPU here there is none to use: what can hold is that it starts.
        return None if evidence.is_nvidia_here or probe.stage != "end" else f"torch {probe.version} imports"
    return f"torch {probe.version}, {probe.count or 0} device{'s' * (probe.count != 1)}"


def _architecture(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if not probe.capabilities:
        return None
    numbers = {fixes.number(value) for value in probe.capabilities.values()}
    has_code = all(
        value is not None and any(fixes.runs_on(name, value) for name in probe.architectures or ()) for value in numbers
    )
    if not has_code and not evidence.torch_works:
        return None
    return ", ".join(f"sm_{value.replace('.', '')}" for value in dict.fromkeys(probe.capabilities.values()))


def _run(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if not probe.kernels or any(run.error for run in probe.kernels):
        return None
    return f"kernel and matrix product correct on {', '.join(in_short([run.device for run in probe.kernels]))}"


# -- what a rung answered that was not seen to hold; None where it was not asked ---------------------------------------


def _refused_nodes(evidence: Evidence) -> str | None:
    refused = [node.path for node in evidence.stack.nodes if node.error]
    return f"could not be opened: {', '.join(refused)}" if refused else None


def _libcuda_error(evidence: Evidence) -> str | None:
    driver = evidence.driver
    if driver.cuinit_code:
        return f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return driver.cuinit_error


def _torch_said(evidence: Evidence) -> str | None:
    probe = evidence.probe
    if probe.not_awaited is not None:
        return f"not checked: {probe.not_awaited}"
    if probe.available is False:
        return f"torch {probe.version} imports, but sees no GPU"
    return probe.error


def _no_kernel(evidence: Evidence) -> str | None:
    probe = evidence.probe
    failed = [f"{run.device}: {run.error}" for run in probe.kernels if run.error]
    if failed:
        return "; ".join(failed)
    return "not checked: torch has no GPU" if probe.available is False else None


# What shows that a rung holds, what it answered, and what is told where neither is known.
_STANDING: dict[Rung, tuple[Callable[[Evidence], str | None], Callable[[Evidence], str | None], str]] = {
    "hardware": (_hardware, lambda _: None, "the PCI bus cannot be read"),
    "kernel": (_kernel, lambda _: None, "the kernel does not show the module's version"),
    "nodes": (_nodes, _refused_nodes, "no device node could be opened"),
    "libraries": (lambda seen: seen.driver.libcuda_path, _libcuda_error, "path of the loaded libcuda unknown"),
    "nvml": (
        _nvml,
        lambda seen: f"NVML: {seen.driver.nvml_error}" if seen.driver.nvml_error else None,
        "NVML was not asked",
    ),
    "cuinit": (_cuinit, _libcuda_error, "libcuda was not asked"),
    "devices": (
        _devices,
        lambda seen: seen.driver.cuinit_error or "CUDA shows none" if seen.driver.cuinit_code == 0 else None,
        "libcuda was not asked for its devices",
    ),
    "torch": (_torch, _torch_said, "torch did not report whether it sees a GPU"),
    "architecture": (_architecture, _no_kernel, "torch did not report a GPU architecture"),
    "run": (_run, _no_kernel, "no kernel was run"),
}


# -- every condition; a new one is a row in the file of its rung -------------------------------------------------------

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
    *conditions_cards.CARDS,
    *conditions_cards.PEERS,
    *conditions_cards.LOAD,
    *conditions_kernel.LOG,
)

BY_ID = {condition.id: condition for condition in CONDITIONS}


def causes(*, cuinit: int | None = None, nvml: int | None = None) -> list[Condition]:
    """The conditions that an answer of cuInit's or of nvmlInit's may come of; none where it has no usual cause."""
    return [condition for condition in CONDITIONS if cuinit in condition.cuinit or nvml in condition.nvml]


def select(only: Sequence[str], skip: Sequence[str]) -> list[Condition]:
    """The conditions to ask. Raises UsageError for a prefix that fits none, and where nothing is left."""
    nothing = "no condition would be checked"
    return naming.select(CONDITIONS, lambda condition: condition.id, only, skip, noun="condition", nothing=nothing)
