"""Every condition, by rung. A new one is a row in the file of its rung."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import naming
from gpucheck.doctor import (
    conditions_cards,
    conditions_kernel,
    conditions_masks,
    conditions_nodes,
    conditions_nvml,
    conditions_torch,
)
from gpucheck.doctor.condition import Condition

CONDITIONS: tuple[Condition, ...] = (
    *conditions_kernel.KERNEL,
    *conditions_nodes.NODES,
    *conditions_nodes.LIBRARY,
    *conditions_nvml.NVML,
    *conditions_nvml.CUINIT,
    *conditions_masks.MASKS,
    *conditions_torch.TORCH,
    *conditions_torch.PACKAGES,
    *conditions_torch.ARCHITECTURE,
    *conditions_masks.ENVIRONMENT,
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
