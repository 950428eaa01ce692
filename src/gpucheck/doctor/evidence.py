"""The evidence of doctor, as plain data. None is unknown; the judges of conditions read nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpucheck import units
from gpucheck.cards import card
from gpucheck.machine.stack import Stack
from gpucheck.machine.torch_probe import TorchProbe
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild
from gpucheck.report.results.doctor import LoadResult


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was read: the machine's facts, what lies below its driver's libraries, and what torch said.

    `torch` is None where torch was not asked (no torch, or no time), `load` where none was wanted or possible.
    `variables` are the names of all variables that are set, without their values; values stand in `facts.environment`
    for those on its list alone.
    """

    facts: Facts = field(default_factory=Facts)
    stack: Stack = field(default_factory=Stack)
    torch: TorchProbe | None = None
    variables: frozenset[str] = frozenset()
    load: LoadResult | None = None

    @property
    def host(self) -> Host:
        """The machine outside its accelerators."""
        return self.facts.host or Host()

    @property
    def driver(self) -> Driver:
        """NVIDIA's driver as the doors see it; all None where there can be none."""
        return self.facts.driver or Driver()

    @property
    def build(self) -> TorchBuild:
        """The torch that is diagnosed, read without importing it."""
        return self.facts.torch or TorchBuild()

    @property
    def cards(self) -> tuple[Device, ...]:
        """NVIDIA devices that NVML or libcuda lists."""
        return tuple(card.cards(self.facts))

    @property
    def is_nvidia_here(self) -> bool:
        """Return whether an NVIDIA device is in this machine, as PCI, its nodes, WSL's driver or the libraries show
        it."""
        return card.is_nvidia_here(self.facts) or bool(self.stack.jetson or self.stack.wsl_driver)

    @property
    def cuda_works(self) -> bool:
        """Return whether CUDA started and shows a device: whatever lies below it holds, as far as that device goes."""
        return self.driver.cuinit_code == 0 and any(device.cuda_index is not None for device in self.cards)

    @property
    def nvml_works(self) -> bool:
        """Return whether NVML started and answered for all that it lists."""
        return self.driver.nvml_code == 0 and self.driver.nvml_error is None

    @property
    def in_container(self) -> bool:
        """Return whether this is a container: the PCI bus and the kernel's modules are then the host's."""
        return self.host.container is not None

    @property
    def torch_works(self) -> bool:
        """Return whether torch ran a kernel on a device: seen, and so above any arithmetic with versions."""
        return self.torch is not None and any(run.error is None for run in self.torch.kernels)

    @property
    def torch_limit(self) -> str:
        """Return how long torch was waited for, in words, and what gives it longer."""
        limit = self.torch.limit_s if self.torch is not None else None
        return "its time" if limit is None else f"{units.duration(limit)} (raise it with --time-budget)"

    def logged(self, pattern: str) -> list[str]:
        """The lines of the kernel's log that match; none where it cannot be read."""
        return [line for line in self.stack.log or () if re.search(pattern, line, re.IGNORECASE)]

    def value(self, variable: str) -> str | None:
        """A variable's value, for those that are on the list of `facts.environment`."""
        return self.facts.environment.get(variable)
