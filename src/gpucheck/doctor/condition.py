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
    """The evidence for a diagnosis: the machine's facts, the layers below torch, and torch's report."""

    facts: Facts = field(default_factory=Facts)
    stack: Stack = field(default_factory=Stack)
    torch: TorchProbe | None = None
    variables: frozenset[str] = frozenset()  # all names; `facts.environment` has the values of some variables
    load: LoadResult | None = None

    # Derived: NVIDIA's driver with the events of the kernel log, the torch on disk, and torch's report.
    host: Host = field(init=False)
    driver: Driver = field(init=False)
    build: TorchBuild = field(init=False)
    probe: TorchProbe = field(init=False)
    # The NVIDIA devices that NVML or libcuda lists, and the GPUs on the PCI bus.
    gpus: tuple[Device, ...] = field(init=False)
    pci_gpus: tuple[PciDevice, ...] = field(init=False)
    # Whether PCI, device nodes, WSL's driver or a library shows an NVIDIA GPU.
    is_nvidia_here: bool = field(init=False)
    # The version in the file name of the loaded libcuda, and the libraries that the loader finds, by name.
    libcuda_version: str | None = field(init=False)
    loadable: Mapping[str, Library] = field(init=False)
    # The findings of `gpucheck devices`, by ID.
    findings: Mapping[str, Sequence[Finding]] = field(init=False)

    def __post_init__(self) -> None:
        facts, stack, driver = self.facts, self.stack, self.facts.driver or Driver()
        if driver.xids is None and stack.log is not None:
            driver = kernel_driver.events(stack.log, None, driver)
        facts = replace(facts, driver=driver)
        findings = checks.of_machine(facts) + [
            row for device in facts.devices for row in checks.findings(device, facts)
        ]
        vars(self).update(
            host=facts.host or Host(),
            driver=driver,
            build=facts.torch or TorchBuild(),
            probe=self.torch or TorchProbe(),
            gpus=tuple(nvidia.cards(facts)),
            pci_gpus=tuple(device for device in stack.devices or () if device.is_gpu),
            is_nvidia_here=nvidia.is_nvidia_here(facts) or bool(stack.jetson or stack.wsl_driver),
            libcuda_version=version_of(driver.libcuda_path),
            loadable={library.name: library for library in reversed((*stack.path_libraries, *stack.libraries))},
            findings={id: [row for row in findings if row.id == id] for id in {row.id for row in findings}},
        )

    @property
    def cuda_works(self) -> bool:
        """Return whether CUDA started and shows a device. All lower stages then work for this device."""
        return self.driver.cuinit_code == 0 and any(device.cuda_index is not None for device in self.gpus)

    @property
    def in_container(self) -> bool:
        """Return whether this is a container. It shows the PCI bus and the kernel modules of the host."""
        return self.host.container is not None

    @property
    def torch_works(self) -> bool:
        """Return whether torch ran a kernel. This proves more than any conclusion from versions."""
        return any(run.error is None for run in self.probe.kernels)

    @property
    def served_cuda(self) -> str | None:
        """Return the newest CUDA version that the driver supports, by libcuda or NVML."""
        return self.driver.libcuda_version or self.driver.cuda_version

    @property
    def torch_limit(self) -> str:
        """Return the text of the time limit for torch, with the option that raises it."""
        limit = self.probe.limit_s
        return "its time" if limit is None else f"{units.duration(limit)} (raise it with --time-budget)"

    def logged(self, pattern: str) -> list[str]:
        return [line for line in self.stack.log or () if re.search(pattern, line, re.IGNORECASE)]

    def value(self, variable: str) -> str | None:
        """Return the value of one of the variables in `inventory.VARIABLES`; None if it is not set."""
        return self.facts.environment.get(variable)


# The stages from the hardware up. Each stage needs all stages before it.
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
    """The signs of a condition that holds on this machine. A field that is None has the condition's value."""

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    fix: str | None = None
    certainty: Certainty | None = None
    verdict: Verdict | None = None
    title: str | None = None

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Signs | None:
        """Return findings of `gpucheck devices` as signs, with verdict, title and fix of the worst finding."""
        if not (problems := [finding for finding in findings if finding.verdict not in ("pass", "skip")]):
            return None
        worst = min(problems, key=lambda finding: WORST_FIRST.index(finding.verdict))
        messages = [
            group.message if group.title == worst.title else f"{group.message} ({group.title})"
            for group in grouped(problems)
        ]
        of_devices = {"devices": [row.evidence for row in problems]} if "nvml_index" in worst.evidence else {}
        errors = {key: [xid for row in problems for xid in row.evidence.get(key, ())] for key in ("xids", "sxids")}
        evidence = {**(of_devices or worst.evidence), **{key: xids for key, xids in errors.items() if xids}}
        return cls("; ".join(messages), evidence, worst.fix or "", verdict=worst.verdict, title=worst.title)


@dataclass(frozen=True, slots=True)
class Condition:
    """A known fault, with its `title`, `meaning` and `fix`, and the certainty of the diagnosis.

    **Doctor.** `judge` decides whether the condition holds; it is None if only a text can show the fault. `stage` is
    the broken stage, or None. `settle` describes a test that would make the diagnosis certain. `cuinit` and `nvml` are
    the results of cuInit and nvmlInit that the fault causes.

    **Explain.** `patterns` are regular expressions. Matching ignores case and quotes, and also spaces unless the
    pattern has `\\b`, `^` or `$`. `common` patterns ("Killed") count only if the text matches `beside` or, if that
    is empty, mentions GPUs, torch or training. `weak` patterns give a hint if nothing else matches. `wraps` are for a
    message that contains another message, which is reported if it is known. `names` are complete error names. Rows
    that differ only in a number share a pattern with the group `number`. This group has to match the field `number`.

    A `symptom` shows a failure without its cause, so more specific texts take precedence. `follows` are IDs, or
    prefixes of IDs, of causes to report first. A row does not count if `unless` matches. A `logged` row also counts on
    an information line of a training log. `conditions` are the IDs that doctor checks for this text.
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


# Constructors of conditions with this certainty; the default is `strong`.
proof, hint = partial(Condition, certainty="proof"), partial(Condition, certainty="hint")
JudgeCondition = Callable[[Evidence], Signs | None]


def found(id: str) -> JudgeCondition:
    """Return a judge that reports the findings of `gpucheck devices` with this ID."""
    return lambda evidence: Signs.of(evidence.findings.get(id, ()))


def on(
    stage: Stage, *rows: Condition, by: Callable[[Evidence], tuple[str, Signs] | None] = lambda _: None
) -> tuple[Condition, ...]:
    """Return the rows as conditions of this stage. A row that has a `stage` keeps it.

    Of the rows without a judge at most one holds: `by` returns its ID and signs. In the stage `cuinit`, a row with
    codes is judged only if cuInit returned one of its codes.
    """

    def judge(row: Condition, evidence: Evidence) -> Signs | None:
        if stage == "cuinit" and row.cuinit and evidence.driver.cuinit_code not in row.cuinit:
            return None
        id, signs = (row.id, row.judge(evidence)) if row.judge is not None else by(evidence) or (None, None)
        return signs if id == row.id else None

    return tuple(replace(row, stage=row.stage or stage, judge=partial(judge, row)) for row in rows)


def cuinit_signs(
    evidence: Evidence, cause: str = "", *, fix: str | None = None, certainty: Certainty | None = None, **details: Any
) -> Signs:
    """Return the signs of cuInit's result. `cause` is a text about its cause, and `details` are more evidence."""
    driver = evidence.driver
    result = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    message = f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Signs(f"{message}; {cause}" if cause else message, {**result, **details}, fix=fix, certainty=certainty)
