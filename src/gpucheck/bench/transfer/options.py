"""What `bench transfer` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import naming, units
from gpucheck.directions import DIRECTIONS, MEMORIES, Direction, HostMemory
from gpucheck.errors import UsageError
from gpucheck.options import option

# The ids of the table of parts, which loads torch.
PARTS = ("copies", "idioms", "both_ways", "on_device", "together", "peer")
LARGEST_SIZE = 2**45
# What buffers may take of the host's memory that is left, so that the machine keeps working.
HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """What the user asked for; no sizes means the six of the documentation, or the sweep.

    `only` and `skip` are prefixes of the ids of parts, `host_share` is what all buffers together may take of the host's
    memory that is left.
    """

    sizes: tuple[int, ...] = option(
        "Only this size, like 64MiB. Repeatable.",
        name="--size",
        metavar="SIZE",
        parse=units.parse_size,
        repeat=True,
        fold=lambda sizes: tuple(sorted(set(sizes))),
    )
    sweep: bool = option("Every power of two from 4 KiB on.", False)
    directions: tuple[Direction, ...] = option(
        "both, host_to_device (h2d) or device_to_host (d2h).",
        DIRECTIONS["both"],
        name="--direction",
        metavar="WAY",
        parse=lambda text, _: DIRECTIONS[text],
        choices=tuple(DIRECTIONS),
        shown="both",
    )
    memories: tuple[HostMemory, ...] = option(
        "both, pageable or pinned.",
        MEMORIES["both"],
        name="--host-memory",
        metavar="KIND",
        parse=lambda text, _: MEMORIES[text],
        choices=tuple(MEMORIES),
        shown="both",
    )
    only: tuple[str, ...] = option(
        "Only these parts: copies, idioms, both_ways, on_device, together, peer. Repeatable.",
        metavar="PART",
        repeat=True,
    )
    skip: tuple[str, ...] = option("Leave these parts out. Repeatable.", metavar="PART", repeat=True)
    time_budget_s: float | None = option(
        "For the whole command; default 14s, a CPU 18s, --sweep 60s.",
        name="--time-budget",
        metavar="TIME",
        parse=units.parse_duration,
    )
    device: str = "auto"
    host_share: float = HOST_SHARE

    def select(self, known: Sequence[str] = PARTS) -> frozenset[str]:
        """The ids of the parts that `only` and `skip` leave. Raises UsageError for a prefix that fits none."""
        chosen = naming.select(
            known,
            str,
            self.only,
            self.skip,
            noun="part",
            nothing="nothing would be measured",
            meant=lambda _: f"the parts are {', '.join(known)}",
        )
        return frozenset(chosen)

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        if self.sizes and self.sweep:
            raise UsageError("--size and --sweep exclude each other", "", "give one of them")
        if self.sizes and max(self.sizes) > LARGEST_SIZE:
            raise UsageError(f"--size {max(self.sizes)} is too large", "no machine holds two buffers of 32 TiB")
        self.select()
