"""Which answers of NVML's can be true: a driver that is broken, or older than its caller, also answers with nonsense.

Bounds are wide: what no part and no machine has. NVML's "not available" is the largest number of its type. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from gpucheck.links import WIDTHS

Sound = Callable[[Any], bool]

LONGEST_TEXT = 200
LARGEST_PID = 2**22  # Linux' PID_MAX_LIMIT; Windows' PIDs are small as well
MOST_DEVICES = 1024  # Linux has device nodes for 256 in one machine
WHOLE_CARD_BYTES = 2**60  # an exbibyte
MOST_LINKS = 72  # of NVLink; 36 on parts until 2025
MOST_INSTANCES = 64  # 7 on parts until 2025


def text(value: Any) -> bool:
    """Something that a terminal can show."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


def whole(low: int, high: int) -> Sound:
    """An integer from `low` to `high`."""
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def number(low: float, high: float) -> Sound:
    """A number from `low` to `high`."""
    return lambda value: isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high


def written_as(pattern: str) -> Sound:
    """Text that the whole of the regular expression fits."""
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def flag(value: Any) -> bool:
    """Yes or no."""
    return isinstance(value, bool)


def _width(value: Any) -> bool:
    return whole(1, max(WIDTHS))(value) and value in WIDTHS


def _reasons(value: Any) -> bool:
    return whole(0, 2**64 - 2)(value["bits"])


def _remapped(value: Any) -> bool:
    return all(map(_rows, (value["correctable"], value["uncorrectable"])))


def _mig(value: Any) -> bool:
    return flag(value["enabled"]) and flag(value["enabled_after_reset"])


def _violations(value: Any) -> bool:
    return all(one is None or number(0, 2**62 / 1e9)(one) for one in value.values())


def _each(sound: Sound) -> Sound:
    """Whether every value of a mapping is sound."""
    return lambda value: all(map(sound, value.values()))


def _sram(value: Any) -> bool:
    numbers = {name: part for name, part in value.items() if name not in ("threshold_exceeded", "sources")}
    return flag(value["threshold_exceeded"]) and _each(count)(numbers) and _each(count)(value["sources"])


count = whole(0, 2**62)
_rows = whole(0, 2**32 - 2)
_bytes = whole(0, WHOLE_CARD_BYTES)
_clock = number(0, 20e9)
_watts = number(0, 100e3)
_percent = number(0, 100)
_generation = whole(1, 15)

SOUND: dict[str, Sound] = {
    "name": text,
    "uuid": text,
    "pci_address": written_as(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0"),
    "compute_capability": written_as(r"\d{1,2}\.\d"),
    "utilization_percent": _percent,
    "memory_utilization_percent": _percent,
    "temperature_celsius": number(-100, 300),
    "memory_temperature_celsius": number(1, 300),
    "temperature_margin_celsius": number(-300, 300),
    **dict.fromkeys(("slowdown_celsius", "gpu_max_celsius", "memory_max_celsius", "shutdown_celsius"), number(1, 300)),
    # The share of what is the loudest that it should be: the manual of nvidia-smi says that it may exceed 100.
    "fan_percent": number(0, 1000),
    "power_w": _watts,
    **dict.fromkeys(("power_limit_w", "power_limit_default_w", "power_limit_min_w", "power_limit_max_w"), _watts),
    "performance_state": whole(0, 15),
    "sm_clock_hz": _clock,
    "memory_clock_hz": _clock,
    "max_sm_clock_hz": _clock,
    "max_memory_clock_hz": _clock,
    "application_sm_clock_hz": _clock,
    "application_memory_clock_hz": _clock,
    "default_application_sm_clock_hz": _clock,
    "default_application_memory_clock_hz": _clock,
    "clock_reasons": _reasons,
    "pcie/generation": _generation,
    "pcie/width": _width,
    "pcie/max_generation": _generation,
    "pcie/max_width": _width,
    "pcie/device_max_generation": _generation,
    "pcie/replays": _rows,
    "pcie/sent_bytes": count,
    "pcie/received_bytes": count,
    "ecc/enabled": flag,
    "ecc/enabled_after_reset": flag,
    "ecc/enabled_by_default": flag,
    "ecc/volatile_corrected": count,
    "ecc/volatile_uncorrected": count,
    "ecc/aggregate_corrected": count,
    "ecc/aggregate_uncorrected": count,
    "sram_ecc": _sram,
    "remapped_rows": _remapped,
    "remap_banks": _each(_rows),
    "retired_pages/corrected": _rows,
    "retired_pages/uncorrected": _rows,
    "retired_pages/pending": flag,
    "recovery_action": text,
    "mig": _mig,
    "numa_node": whole(0, 1023),
    "persistence_mode": flag,
    "compute_mode": text,
    "bar1_total_bytes": _bytes,
    "bar1_used_bytes": _bytes,
    "serial": text,
    "part_number": text,
    "vbios_version": text,
    "gsp_firmware_version": text,
    "minor_number": whole(0, 2**20),
    "memory_total_bytes": _bytes,
    "memory_used_bytes": _bytes,
    "memory_free_bytes": _bytes,
    "memory_reserved_bytes": _bytes,
    "c2c_bytes_per_s": number(0, 1e15),
    "driver_version": text,
    "nvml_version": text,
    "cuda_version": written_as(r"\d{1,3}\.\d{1,2}"),
    "nvlinks/count": whole(0, MOST_LINKS),
    "nvlinks/active": flag,
    "nvlinks/errors": count,
    "energy_j": number(0, 2**62),
    "violations_s": _violations,
}
