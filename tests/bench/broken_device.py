"""Memory of a device that is broken, on the host: copies to the host are right, what its own kernels answer is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Beyond any tensor here.
GARBAGE = 10**9
_PLACES = (torch.Tensor.argmax, torch.Tensor.argmin, torch.argmax, torch.Tensor.nonzero, torch.nonzero)


class Garbled(torch.Tensor):  # type: ignore[misc]  # torch counts as Any
    """A tensor whose searches answer garbage until it is copied to the host."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor).clone()
        result = super().__torch_function__(func, types, args, kwargs or {})
        return torch.full_like(result, GARBAGE) if func in _PLACES else result


def garbled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Garbled)
