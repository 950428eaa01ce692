"""The bytes of the tensors that live on a device, counted as they come and go, without the device's help."""

# mypy: disable-error-code="misc"
# torch's classes count as Any for the type checker, and this derives from one.
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# torch's caching allocators round every request up to so many bytes; the CPU's takes them as they are.
ROUNDING_BYTES = 512


class Storages(TorchDispatchMode):
    """Counts each storage that an operation returns, once, until it is freed.

    The same figures as torch.distributed's memory tracker, whose import takes as long as torch's own, and with the
    peak of every phase. Storages that were there before count once they are added.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.now = self._peak = 0
        self._known: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now on."""
        if tensor.device.type != self.device.type or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        if self.device.type != "cpu":
            size = -(-size // ROUNDING_BYTES) * ROUNDING_BYTES
        self._known.add(key)
        self.now += size
        self._peak = max(self._peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def mark(self) -> int:
        """The peak since the mark before, in bytes; a new phase begins."""
        peak, self._peak = self._peak, self.now
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result
