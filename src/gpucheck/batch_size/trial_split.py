"""What a workload holds besides its weights: gradients and the optimizer's state, counted tensor by tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from gpucheck.work.target import Workload


def gradient_bytes(workload: Workload) -> int:
    """Bytes of the gradients that are there now."""
    return sum(_bytes(p.grad) for p in workload.model.parameters() if p.grad is not None)


def optimizer_bytes(workload: Workload) -> int:
    """Bytes of the optimizer's tensors on the workload's device; a tensor that several entries share counts once."""
    if workload.optimizer is None:
        return 0
    tensors = {
        id(value): value
        for entry in workload.optimizer.state.values()
        for value in entry.values()
        if isinstance(value, Tensor) and value.device.type == workload.device.type
    }
    return sum(_bytes(tensor) for tensor in tensors.values())


def _bytes(tensor: Tensor) -> int:
    """A sparse tensor has indices and values; others their elements."""
    if tensor.layout is torch.sparse_coo:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    return int(tensor.numel() * tensor.element_size())
