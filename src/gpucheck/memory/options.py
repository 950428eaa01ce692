"""Options of `memory`. Read before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    device: str = "auto"
