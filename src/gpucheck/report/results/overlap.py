"""What `bench overlap` answers of one case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """How much of a copy hides behind compute: (copy + compute - both) over the shorter of the two, 1 is all of it.

    The times are of a whole group of copies and products. The interval comes from the rounds; None below six.
    """

    device: str
    direction: str
    host_memory: str
    streams: int
    size_bytes: int
    overlap: float
    ci_low: float | None
    ci_high: float | None
    copy_s: float
    compute_s: float
    both_s: float
    rounds: int
    flags: tuple[str, ...]
