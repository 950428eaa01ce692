"""How large the arrays of `bench bandwidth` are, and what memory they may take."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.bench.bandwidth.options import GRAIN, HOST_SHARE, BandwidthOptions
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import host
from gpucheck.machine.accel import Accel
from gpucheck.units import GIB, MIB

# One array. An H200 copies 1 GiB in half a millisecond, a laptop's memory copies 256 MiB in 20.
DEFAULT_SIZES = {"accelerator": GIB, "cpu": 256 * MIB}
# Cold: what an operation rotates over is so many times the last-level cache.
COLD_FACTOR = 4
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# A virtual machine may show the cache of its whole host: arrays do not grow beyond this for it.
MOST_COLD_BYTES = 2 * GIB
# What the three arrays may take of the device's memory that is left, so that it keeps working.
DEVICE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Room:
    """How large an array may be, and the cache that it must exceed, in bytes; `known` is False where it was assumed."""

    array: int
    cache: int
    known: bool

    @property
    def cold(self) -> int:
        """What operations should rotate over, in whole rows."""
        return -(-min(COLD_FACTOR * self.cache, MOST_COLD_BYTES) // GRAIN) * GRAIN


def room_for(accel: Accel, host_share: float = HOST_SHARE) -> Room:
    """What arrays may take here, and what they must exceed to be cold."""
    cache = host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes
    info = accel.memory_info()
    spare = host.memory().usable * host_share
    if info is not None:
        spare = min(info[0] * DEVICE_SHARE, spare) if accel.integrated else info[0] * DEVICE_SHARE
    return Room(int(spare / 3) // GRAIN * GRAIN, cache or ASSUMED_CACHE_BYTES, cache is not None)


def sizes_for(options: BandwidthOptions, accel: Accel, room: Room) -> tuple[int, ...]:
    """The sizes to measure. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    if room.array < GRAIN:
        raise CannotLook(
            "there is no room to measure in",
            f"three arrays may take {units.capacity(3 * room.array)}",
            "end what else uses this memory",
            finding="bandwidth.memory",
        )
    if options.sizes and options.sizes[-1] > room.array:
        raise UsageError(
            f"--size {units.capacity(options.sizes[-1])} does not fit",
            f"three arrays of it are needed, and {units.capacity(3 * room.array)} can be spared",
            f"give at most {units.capacity(room.array)}",
        )
    usual = max(DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"], room.cold)
    return options.sizes or (min(usual, room.array),)
