"""Options of `memory`. Pure: read before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    device: str = "auto"
