"""Memory of a device that is broken, on the host: copies to the host are right, what its own kernels answer is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Beyond any tensor here.
GARBAGE = 10**9
_PLACES = (torch.Tensor.argmax, torch.Tensor.argmin, torch.argmax, torch.Tensor.nonzero, torch.nonzero)


# What one such device told of 1 048 576 elements.
COUNT = 4439540240596601873


class Counting(TorchDispatchMode):  # type: ignore[misc]  # torch counts as Any
    """A device whose counts of what is true are garbage, whatever is asked of it: `count` in place of the number."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "sum" and args[0].dtype == torch.bool:
            result.fill_(self.count)
        return result


class Garbled(torch.Tensor):  # type: ignore[misc]  # torch counts as Any
    """A tensor whose searches and counts answer garbage until it is copied to the host."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor).clone()
        result = super().__torch_function__(func, types, args, kwargs or {})
        return torch.full_like(result, GARBAGE) if func in _PLACES or _counts(func, args) else result


def _counts(func: Callable[..., Any], args: Any) -> bool:
    return func is torch.Tensor.sum and args[0].dtype == torch.bool


def garbled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Garbled)
