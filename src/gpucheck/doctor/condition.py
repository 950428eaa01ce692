"""The evidence that doctor reads, and a condition: a possible fault, its signs and its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from gpucheck import units
from gpucheck.health import checks, nvidia
from gpucheck.machine import kernel_driver
from gpucheck.machine.host import PciDevice
from gpucheck.machine.stack import Library, Stack, TorchProbe, version_of
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.report import grouped
from gpucheck.report.results.short import Certainty as Certainty
from gpucheck.report.results.short import LoadResult


@dataclass(frozen=True)
class Evidence:
    """Everything that was read: the machine's facts, the driver's kernel side and files, and torch's report."""

    facts: Facts = field(default_factory=Facts)
    stack: Stack = field(default_factory=Stack)
    torch: TorchProbe | None = None
    variables: frozenset[str] = frozenset()  # the names of all; `facts.environment` has the values of some
    load: LoadResult | None = None

    # Derived: NVIDIA's driver with the events of the kernel log, the torch on disk, and torch's own report.
    host: Host = field(init=False)
    driver: Driver = field(init=False)
    build: TorchBuild = field(init=False)
    probe: TorchProbe = field(init=False)
    # The NVIDIA devices that NVML or libcuda lists, and those on the PCI bus.
    cards: tuple[Device, ...] = field(init=False)
    gpus: tuple[PciDevice, ...] = field(init=False)
    # True if PCI, device nodes, WSL's driver or a library shows an NVIDIA GPU.
    is_nvidia_here: bool = field(init=False)
    # The version in the file name of the loaded libcuda, and the files that the loader finds, by library name.
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
            cards=tuple(nvidia.cards(facts)),
            gpus=tuple(device for device in stack.devices or () if device.is_gpu),
            is_nvidia_here=nvidia.is_nvidia_here(facts) or bool(stack.jetson or stack.wsl_driver),
            libcuda_version=version_of(driver.libcuda_path),
            loadable={library.name: library for library in reversed((*stack.path_libraries, *stack.libraries))},
            findings={id: [finding for finding in found if finding.id == id] for id in {row.id for row in found}},
        )

    @property
    def cuda_works(self) -> bool:
        """Return whether CUDA started and shows a device. All lower stages then work for this device too."""
        return self.driver.cuinit_code == 0 and any(device.cuda_index is not None for device in self.cards)

    @property
    def in_container(self) -> bool:
        """Return whether this is a container. Its PCI bus and kernel modules are those of the host."""
        return self.host.container is not None

    @property
    def torch_works(self) -> bool:
        """Return whether torch ran a kernel, which counts more than any conclusion from versions."""
        return any(run.error is None for run in self.probe.kernels)

    @property
    def served_cuda(self) -> str | None:
        """Return the newest CUDA version that the driver supports, by libcuda or NVML."""
        return self.driver.libcuda_version or self.driver.cuda_version

    @property
    def torch_limit(self) -> str:
        """Return the time limit of torch's answer in words, with the option that raises it."""
        limit = self.probe.limit_s
        return "its time" if limit is None else f"{units.duration(limit)} (raise it with --time-budget)"

    def logged(self, pattern: str) -> list[str]:
        return [line for line in self.stack.log or () if re.search(pattern, line, re.IGNORECASE)]

    def value(self, variable: str) -> str | None:
        """Return a variable's value if it is on the list of `facts.environment`."""
        return self.facts.environment.get(variable)


# The stages from the hardware up. Each one needs all those below it.
Stage = Literal[
    "hardware",  # the GPU on the PCI bus
    "kernel",  # the driver's kernel module
    "nodes",  # the driver's device nodes, and a container's access to them
    "libraries",  # libcuda and libnvidia-ml, found and of the module's version
    "nvml",  # NVML starts and lists the GPUs
    "cuinit",  # CUDA starts
    "devices",  # CUDA shows the requested devices
    "torch",  # torch can be imported and is built for these devices
    "architecture",  # torch has code for their architecture
    "run",  # torch runs a kernel
]
STAGES: tuple[Stage, ...] = get_args(Stage)
CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of a condition that holds here. A field that is None has the condition's own value."""

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    certainty: Certainty | None = None
    verdict: Verdict | None = None
    title: str | None = None

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Signs | None:
        """Return findings of `gpucheck devices` as signs, with verdict, title and fix of the worst."""
        held = [finding for finding in findings if finding.verdict not in ("pass", "skip")]
        if not held:
            return None
        worst = min(held, key=lambda finding: WORST_FIRST.index(finding.verdict))
        message = [
            group.message if group.title == worst.title else f"{group.message} ({group.title})"
            for group in grouped(held)
        ]
        of_cards = {"devices": [finding.evidence for finding in held]} if "nvml_index" in worst.evidence else {}
        rows = {key: [row for finding in held for row in finding.evidence.get(key, ())] for key in ("xids", "sxids")}
        evidence = {**(of_cards or worst.evidence), **{key: listed for key, listed in rows.items() if listed}}
        return cls("; ".join(message), evidence, worst.fix or "", verdict=worst.verdict, title=worst.title)


@dataclass(frozen=True, slots=True)
class Condition:
    """A known fault: its `title`, `meaning` and `fix`, and how certain the diagnosis is.

    **Doctor.** `judge` decides whether the condition holds here; it is None if only a text can show it. `stage` is the
    stage that it breaks, or None. `settle` describes a test that would make the diagnosis certain. `cuinit` and `nvml`
    are the results of cuInit and nvmlInit that it causes.

    **Explain.** `patterns` are regular expressions. Matching ignores case and quotes, and it ignores spaces too unless
    the pattern has `\\b`, `^` or `$`. `common` patterns ("Killed") count only if the text matches `beside`, by default
    if it mentions GPUs, torch or training. `weak` patterns give a hint if nothing else matches. `wraps` are patterns of
    a message that contains another one, which is reported if it is known. `names` are complete error names. Rows that
    differ only in a number share a pattern with the group `number`; the field `number` is the text that this group has
    to match.

    A `symptom` says that something failed but not why, so any more specific text takes precedence. `follows` are ids,
    or prefixes of ids, of causes to report first. A row does not count if `unless` matches. A `logged` row also counts
    on an information line of a training log. `conditions` are the ids that doctor checks for this text.
    """

    id: str
    title: str
    meaning: str
    fix: str
    patterns: tuple[str, ...] = ()
    certainty: Certainty = "strong"
    judge: Callable[[Evidence], Signs | None] | None = None
    stage: Stage | None = None
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


JudgeCondition = Callable[[Evidence], Signs | None]


def found(id: str) -> JudgeCondition:
    """Return a judge for the findings of a check of `gpucheck devices`."""
    return lambda evidence: Signs.of(evidence.findings.get(id, ()))


def on(
    stage: Stage, *rows: Condition, by: Callable[[Evidence], tuple[str, Signs] | None] = lambda _: None
) -> tuple[Condition, ...]:
    """Return the rows as conditions of one stage, unless a row names another.

    Rows without a judge exclude each other: `by` returns the id and the signs of the one that holds. On the stage of
    cuInit, a row with codes is judged only if cuInit returned one of them.
    """

    def judge(row: Condition, evidence: Evidence) -> Signs | None:
        if stage == "cuinit" and row.cuinit and evidence.driver.cuinit_code not in row.cuinit:
            return None
        held = (row.id, row.judge(evidence)) if row.judge is not None else by(evidence)
        return held[1] if held is not None and held[0] == row.id else None

    return tuple(replace(row, stage=row.stage or stage, judge=partial(judge, row)) for row in rows)


def answered(
    evidence: Evidence, more: str = "", *, fix: str | None = None, certainty: Certainty | None = None, **seen: Any
) -> Signs:
    """Return the signs of a cuInit result; `more` is a text about the cause, `seen` further evidence."""
    driver = evidence.driver
    details = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    message = f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Signs(f"{message}; {more}" if more else message, {**details, **seen}, fix=fix, certainty=certainty)
