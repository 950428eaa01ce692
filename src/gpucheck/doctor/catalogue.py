"""Every condition, by rung. A new one is a row in the file of its rung."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import naming
from gpucheck.doctor import (
    conditions_architecture,
    conditions_cards,
    conditions_cuinit,
    conditions_environment,
    conditions_kernel,
    conditions_library,
    conditions_load,
    conditions_log,
    conditions_masks,
    conditions_nodes,
    conditions_nvml,
    conditions_packages,
    conditions_torch,
)
from gpucheck.doctor.condition import Condition

CONDITIONS: tuple[Condition, ...] = (
    *conditions_kernel.CONDITIONS,
    *conditions_nodes.CONDITIONS,
    *conditions_library.CONDITIONS,
    *conditions_nvml.CONDITIONS,
    *conditions_cuinit.CONDITIONS,
    *conditions_masks.CONDITIONS,
    *conditions_torch.CONDITIONS,
    *conditions_packages.CONDITIONS,
    *conditions_architecture.CONDITIONS,
    *conditions_environment.CONDITIONS,
    *conditions_cards.CONDITIONS,
    *conditions_load.CONDITIONS,
    *conditions_log.CONDITIONS,
)

BY_ID = {condition.id: condition for condition in CONDITIONS}


def causes(*, cuinit: int | None = None, nvml: int | None = None) -> list[Condition]:
    """The conditions that an answer of cuInit's or of nvmlInit's may come of; none where it has no usual cause."""
    return [condition for condition in CONDITIONS if cuinit in condition.cuinit or nvml in condition.nvml]


def select(only: Sequence[str], skip: Sequence[str]) -> list[Condition]:
    """The conditions to ask. Raises UsageError for a prefix that fits none, and where nothing is left."""
    nothing = "no condition would be checked"
    return naming.select(CONDITIONS, lambda condition: condition.id, only, skip, noun="condition", nothing=nothing)
