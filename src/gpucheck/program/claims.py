"""The table of claims: which device a plain CPU tensor says it is on, kept by its storage.

Views share a storage and so a device; what is written in place stays where it is. An entry goes with its storage.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpucheck.program.places import Place
from gpucheck.work.storages import Memory

CPU = torch.device("cpu")
# The device whose memory is counted.
COUNTED = torch.device("cuda:0")

Kind = Literal["attribute", "parameter", "buffer", "input", "made", "moved", "state"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor on the CPU comes from: what it is called or what made it, and the user's line."""

    kind: Kind
    what: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a storage. `device` None is not known: it settles with the first operation that knows."""

    device: torch.device | None
    origin: Origin | None = None


ON_CPU = Claim(CPU)
UNKNOWN = Claim(None)


class Claims:
    """Claims by storage. A tensor that nobody claimed lies on the CPU. `memory` counts what claims cuda:0."""

    def __init__(self, memory: Memory[Place] | None = None) -> None:
        self.memory = memory
        self._claims: weakref.WeakKeyDictionary[torch.UntypedStorage, Claim] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage in self._claims

    def of(self, tensor: Tensor) -> Claim:
        """What is known of a tensor; for one that has no storage of its own nothing is."""
        storage = storage_of(tensor)
        if tensor.device.type != "cpu":  # a meta tensor says so itself, unless it stands for one without values
            claim = None if storage is None else self._claims.get(storage)
            return claim or Claim(tensor.device)
        return UNKNOWN if storage is None else self._claims.get(storage, ON_CPU)

    def device(self, tensor: Tensor) -> torch.device | None:
        """The device that a tensor claims; None where it is not known."""
        return self.of(tensor).device

    def device_of_storage(self, storage: Any) -> torch.device | None:
        """The device that a storage claims; None where it is not known."""
        plain = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
        return self._claims.get(plain, ON_CPU).device

    def put(self, tensor: Tensor, device: torch.device | None, origin: Origin | None = None) -> None:
        """Claim a device for the storage of a tensor."""
        for storage in _storages(tensor):
            self.put_storage(storage, device, origin)

    def put_storage(self, storage: torch.UntypedStorage, device: torch.device | None, origin: Origin | None) -> None:
        """The same for a storage without a tensor, as loading a file has it."""
        if device == CPU and origin is None:
            self._claims.pop(storage, None)
        else:
            self._claims[storage] = Claim(device, origin)
        if self.memory is not None:
            self.memory.put(storage, is_held=device == COUNTED)


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage that stands for a tensor; a sparse one's is that of its values. None where there is none."""
    return next(iter(_storages(tensor)), None)


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    try:
        if tensor.layout is torch.sparse_coo:
            return [tensor._values().untyped_storage(), tensor._indices().untyped_storage()]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (tensor.values(), tensor.crow_indices(), tensor.col_indices())
            return [part.untyped_storage() for part in parts]
        return [tensor.untyped_storage()]
    except (NotImplementedError, RuntimeError, ValueError):  # a wrapper, an opaque layout, a lazy parameter
        return []
