"""The evidence that doctor reads, and a condition: a possible fault, its signs and its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from gpucheck import units
from gpucheck.cards import card, checks
from gpucheck.machine import kernel_driver
from gpucheck.machine.kernel_driver import PciDevice
from gpucheck.machine.stack import Library, Stack, TorchProbe, version_of
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict, grouped
from gpucheck.report.results.short import LoadResult


@dataclass(frozen=True)
class Evidence:
    """Everything that was read: the machine's facts, what lies below its driver's libraries, and what torch said.

    `torch` is None where torch was not asked (no torch, or no time), `load` where none was wanted or possible.
    `variables` are the names of all variables that are set; `facts.environment` has the values of those on its list.
    """

    facts: Facts = field(default_factory=Facts)
    stack: Stack = field(default_factory=Stack)
    torch: TorchProbe | None = None
    variables: frozenset[str] = frozenset()
    load: LoadResult | None = None

    # Derived as the evidence is made: the machine outside its accelerators; NVIDIA's driver with the kernel log's
    # events; the torch that is diagnosed, read without importing it, and its own report. Unknown fields are None.
    host: Host = field(init=False)
    driver: Driver = field(init=False)
    build: TorchBuild = field(init=False)
    probe: TorchProbe = field(init=False)
    # The NVIDIA devices that NVML or libcuda lists, and those on the PCI bus.
    cards: tuple[Device, ...] = field(init=False)
    gpus: tuple[PciDevice, ...] = field(init=False)
    # Whether PCI, nodes, WSL's driver or a library shows an NVIDIA GPU.
    is_nvidia_here: bool = field(init=False)
    # The version in the name of the libcuda that was loaded; the files that the loader takes, by the library's name.
    libcuda_version: str | None = field(init=False)
    loadable: Mapping[str, Library] = field(init=False)
    # Findings of the checks of `gpucheck devices`, by their IDs.
    findings: Mapping[str, Sequence[Finding]] = field(init=False)

    def __post_init__(self) -> None:
        facts, stack, driver = self.facts, self.stack, self.facts.driver or Driver()
        if driver.xids is None and stack.log is not None:
            driver = kernel_driver.events(stack.log, None, driver)
        facts = replace(facts, driver=driver)
        found = [
            *checks.of_machine(facts),
            *(row for device in facts.devices for row in checks.findings(device, facts)),
        ]
        vars(self).update(
            host=facts.host or Host(),
            driver=driver,
            build=facts.torch or TorchBuild(),
            probe=self.torch or TorchProbe(),
            cards=tuple(card.cards(facts)),
            gpus=stack.gpus,
            is_nvidia_here=card.is_nvidia_here(facts) or bool(stack.jetson or stack.wsl_driver),
            libcuda_version=version_of(driver.libcuda_path),
            loadable={library.name: library for library in reversed((*stack.path_libraries, *stack.libraries))},
            findings={id: [finding for finding in found if finding.id == id] for id in {row.id for row in found}},
        )

    @property
    def cuda_works(self) -> bool:
        """Return whether CUDA started and shows a device: whatever lies below it holds, as far as that device goes."""
        return self.driver.cuinit_code == 0 and any(device.cuda_index is not None for device in self.cards)

    @property
    def in_container(self) -> bool:
        """Return whether this is a container: the PCI bus and the kernel's modules are then the host's."""
        return self.host.container is not None

    @property
    def torch_works(self) -> bool:
        """Return whether torch ran a kernel on a device: seen, and so above any arithmetic with versions."""
        return any(run.error is None for run in self.probe.kernels)

    @property
    def served_cuda(self) -> str | None:
        """Return the newest CUDA that the driver serves, by libcuda itself where it answered."""
        return self.driver.libcuda_version or self.driver.cuda_version

    @property
    def torch_limit(self) -> str:
        """Return how long torch was waited for, in words, and what gives it longer."""
        limit = self.probe.limit_s
        return "its time" if limit is None else f"{units.duration(limit)} (raise it with --time-budget)"

    def logged(self, pattern: str) -> list[str]:
        """The lines of the kernel's log that match; none where it cannot be read."""
        return [line for line in self.stack.log or () if re.search(pattern, line, re.IGNORECASE)]

    def value(self, variable: str) -> str | None:
        """A variable's value, for those that are on the list of `facts.environment`."""
        return self.facts.environment.get(variable)


# -- conditions --------------------------------------------------------------------------------------------------------

# The ladder, from the ground up: what stands on a rung needs every one below it.
Rung = Literal[
    "hardware",  # the card on the PCI bus
    "kernel",  # the driver's kernel module
    "nodes",  # its device nodes, and a container's right to them
    "libraries",  # libcuda and libnvidia-ml, found and of the module's version
    "nvml",  # NVML starts and lists the cards
    "cuinit",  # CUDA starts
    "devices",  # CUDA shows the devices that were asked for
    "torch",  # a torch that is built for them and can be imported
    "architecture",  # with code for their architecture
    "run",  # that runs
]
RUNGS: tuple[Rung, ...] = get_args(Rung)
# The weight of the signs: nothing else is possible; it is nearly always so; it is worth a look.
Certainty = Literal["proof", "strong", "hint"]
CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)


@dataclass(frozen=True, slots=True)
class Seen:
    """The signs of a condition that holds here, in one sentence and as evidence.

    Fields that are None are the condition's own; a judge that knows more replaces them.
    """

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    certainty: Certainty | None = None
    verdict: Verdict | None = None
    title: str | None = None

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Seen | None:
        """Findings of `gpucheck devices` as what a condition shows, with the worst one's verdict, title and fix."""
        held = [finding for finding in findings if finding.verdict not in ("pass", "skip")]
        if not held:
            return None
        worst = min(held, key=lambda finding: WORST_FIRST.index(finding.verdict))
        said = [
            group.message if group.title == worst.title else f"{group.message} ({group.title})"
            for group in grouped(held)
        ]
        of_cards = {"devices": [finding.evidence for finding in held]} if "nvml_index" in worst.evidence else {}
        rows = {key: [row for finding in held for row in finding.evidence.get(key, ())] for key in ("xids", "sxids")}
        evidence = {**(of_cards or worst.evidence), **{key: listed for key, listed in rows.items() if listed}}
        return cls("; ".join(said), evidence, worst.fix or "", verdict=worst.verdict, title=worst.title)


@dataclass(frozen=True, slots=True)
class Condition:
    """A known fault: the diagnosis in one sentence (`title`), what happened, what to type or do, and how sure it is.

    **Doctor.** `judge` says whether it holds here; missing evidence is unknown, and says nothing. None for what only a
    text shows. `rung` is the stage that it breaks; None for what stands on its own. `settle` is what would make sure of
    it, where that takes more than what is read. `cuinit` and `nvml` are answers of cuInit and nvmlInit that it causes.

    **Explain.** `patterns` are regular expressions, read without regard to case, spaces and quotes; one with `\\b` is
    read by words. Programs of every kind print `common` ones ("Killed"): they count where the rest of the paste
    speaks of GPUs, torch or training, or holds `beside`. `weak` ones are a hint where nothing else is found. `wraps`
    belong to a message that contains another one, which is named where it is known. `names` are whole error names. Rows
    that differ by a number alone share their patterns: `number` is what the group of that name must hold. A `symptom`
    says that something failed and not what, and yields to every text that says more. `follows` are ids, or their
    beginnings, of causes, which come first. Where `unless` is found, the row does not count. `logged` ones count on a
    line that training reports as information too. `conditions` are those that doctor looks at for it.
    """

    id: str
    title: str
    meaning: str
    fix: str
    patterns: tuple[str, ...] = ()
    certainty: Certainty = "strong"
    judge: Callable[[Evidence], Seen | None] | None = None
    rung: Rung | None = None
    verdict: Verdict = "fail"
    settle: str = ""
    cuinit: tuple[int, ...] = ()
    nvml: tuple[int, ...] = ()
    common: tuple[str, ...] = ()
    beside: str = ""
    weak: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    number: str = ""
    symptom: bool = False
    follows: tuple[str, ...] = ()
    unless: str = ""
    logged: bool = False
    conditions: tuple[str, ...] = ()


Judge = Callable[[Evidence], Seen | None]


def found(id: str) -> Judge:
    """A judge for what a check of `gpucheck devices` finds."""
    return lambda evidence: Seen.of(evidence.findings.get(id, ()))


def on(
    rung: Rung, *rows: Condition, by: Callable[[Evidence], tuple[str, Seen] | None] = lambda _: None
) -> tuple[Condition, ...]:
    """The rows as conditions of one rung, except those that name another.

    Rows without a judge exclude each other: `by` says which of them holds, and how. On the rung of cuInit a row that
    names answers of it is asked only where it gave one of them.
    """

    def judge(row: Condition, evidence: Evidence) -> Seen | None:
        if rung == "cuinit" and row.cuinit and evidence.driver.cuinit_code not in row.cuinit:
            return None
        held = (row.id, row.judge(evidence)) if row.judge is not None else by(evidence)
        return held[1] if held is not None and held[0] == row.id else None

    return tuple(replace(row, rung=row.rung or rung, judge=partial(judge, row)) for row in rows)


def answered(
    evidence: Evidence, more: str = "", *, fix: str | None = None, certainty: Certainty | None = None, **seen: Any
) -> Seen:
    """Return what cuInit answered, `more` that tells its causes apart, and further evidence."""
    driver = evidence.driver
    details = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    said = f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Seen(f"{said}; {more}" if more else said, {**details, **seen}, fix=fix, certainty=certainty)
