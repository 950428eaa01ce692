"""What `memory` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What was asked."""

    device: str = "auto"
