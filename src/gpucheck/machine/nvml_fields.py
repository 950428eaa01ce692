"""The NVML queries for one device: one row for each field of `report.facts.Device`.

Constants are copied from nvml.h, because an older nvidia-ml-py may lack their names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any, NamedTuple

from gpucheck.links import WIDTHS

# nvmlClocksEventReasons of nvml.h, from bit 0. nvmlClocksEventReasonAll leaves out 0x200 and 0x400, which exist too.
CLOCK_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
)

# nvmlDeviceGpuRecoveryAction_t of nvml.h, from 0: the action that the driver requests.
_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset")
RECOVERY_ACTIONS = dict(enumerate((*_ACTIONS, "system_reboot")))
FIELD_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

# NVML_FI_DEV_C2C_LINK_COUNT, …_GET_STATUS (1 is active) and …_GET_MAX_BW (MB/s) of nvml.h; the last two are per link.
# A Grace Hopper has 10 links of 44712 MB/s. NVIDIA specifies 450 GB/s per direction.
FIELD_C2C_COUNT, FIELD_C2C_STATUS, FIELD_C2C_SPEED = 170, 171, 172
# NVML_FI_DEV_PERF_POLICY_… of nvml.h: for each cause, the nanoseconds for which it lowered the clock since the driver
# was loaded. The newer fields NVML_FI_DEV_CLOCKS_EVENT_REASON_… have different numbers in different drivers.
_CAUSES = ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability")
VIOLATION_FIELDS = dict(enumerate(_CAUSES, start=74))
MOST_C2C_LINKS = 16  # a limit; Grace Hopper has the most links of all known GPUs
ENUM_LIMIT = 100  # a newer driver adds a few values to an enumeration, not a hundred
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
FIELD_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
TEMPERATURE_GPU = 0
# NVML_TEMPERATURE_THRESHOLD_…. At SHUTDOWN the GPU switches itself off. At the other limits the clock is lowered.
THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN, THRESHOLD_MEMORY_MAX, THRESHOLD_GPU_MAX = range(4)
MANY_SINGLE_BIT, DOUBLE_BIT = 0, 1  # nvmlPageRetirementCause_t: why a page was retired
# Application clocks are set for the graphics domain, which includes the SMs.
CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY = 0, 1, 2
CORRECTED, UNCORRECTED = 0, 1
VOLATILE = 0

# Estimates: less memory may belong to a context that is ending, or to a display.
LEAST_UNCLAIMED_BYTES, LEAST_UNCLAIMED_SHARE = 2**30, 0.05


def unclaimed_counts(unclaimed: int, total: int) -> bool:
    return unclaimed > LEAST_UNCLAIMED_BYTES and unclaimed > LEAST_UNCLAIMED_SHARE * total


# The largest plausible values, by the last part of a field's name. A broken or older driver may return wrong values.
MOST = {
    "hz": 20e9,
    "w": 100e3,
    "celsius": 300.0,
    "percent": 1000.0,
    "bytes": 2.0**60,
    "generation": 15.0,
    "width": max(WIDTHS),
    "s": 1e15,
    "bits": 2.0**64,
}
TEXTS = (
    *("name", "uuid", "pci_address", "compute_capability", "serial", "vbios_version", "gsp_firmware_version"),
    *("recovery_action", "compute_mode", "version", "parent_uuid"),
)
GROUPS = ("clock_reasons", "violations_s", "remapped_rows", "remap_banks", "mig", "sram_ecc", "sources")
LARGEST_COUNT = 2.0**62
# NVML's "not available" is the largest number of the type.
NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
LONGEST_TEXT = 200
LARGEST_PID = 2**22  # Linux's PID_MAX_LIMIT; Windows's PIDs are small as well
MOST_DEVICES = 1024  # Linux has device nodes for 256 GPUs in one machine
MOST_LINKS = 72  # NVLinks of a GPU; at most 36 up to 2025
MOST_INSTANCES = 64  # MIG instances of a GPU; at most 7 up to 2025


def whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_plausible(name: str, value: Any) -> bool:
    """Return whether the value is possible for the field and safe to print on a terminal."""
    if name in TEXTS:
        return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()
    if name in GROUPS and isinstance(value, dict):
        own_lists = ("names", "instances")  # gpucheck creates these lists
        return all(part is None or member in own_lists or is_plausible(member, part) for member, part in value.items())
    if isinstance(value, bool):
        return True
    most = MOST.get(name.rpartition("/")[2].rpartition("_")[2], LARGEST_COUNT)
    is_number = isinstance(value, (int, float)) and math.isfinite(value) and value not in NOT_AVAILABLE
    return is_number and (-MOST["celsius"] if name.endswith("celsius") else 0) <= value <= most


class QueryRefused(Exception):
    """A query has no value. An empty `reason` stands for the text of `code`, NVML's return code."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class Field(NamedTuple):
    """A field by its path in Device. The first function that exists is called; `convert` returns SI units."""

    name: str
    functions: tuple[str, ...]
    arguments: tuple[object, ...] = ()
    convert: Callable[[Any], Any] = lambda value: value


def _row(name: str, functions: str, *arguments: object, convert: Callable[[Any], Any] = lambda value: value) -> Field:
    return Field(name, tuple(f"nvmlDeviceGet{function}" for function in functions.split()), arguments, convert)


def _value(name: str, field: int, member: str, convert: Callable[[int], Any] = int) -> Field:
    return _row(name, "FieldValues", (field,), convert=lambda values: convert(number(values[0], member)))


def number(answer: Any, member: str) -> int:
    """Return a member of an answer's union of value types. Raises QueryRefused if NVML refused the value."""
    check(answer)
    return int(getattr(answer.value, member))


def check(answer: Any) -> None:
    """Raise QueryRefused if NVML refused this value, and TypeError if the code is no integer."""
    if answer.nvmlReturn:
        raise QueryRefused("", operator.index(answer.nvmlReturn))


def _hertz(name: str, function: str, domain: int) -> Field:
    return _row(name, function, domain, convert=lambda megahertz: megahertz * 1e6)


def _flag(name: str, function: str, index: int | None = None) -> Field:
    """Return the field for a boolean, which an answer with several values has at `index`."""
    return _row(name, function, convert=lambda answer: flag(answer if index is None else answer[index]))


def _watts(name: str, function: str) -> Field:
    def convert(milliwatts: int) -> float:
        if name != "power_w" and milliwatts == 0:
            raise QueryRefused("NVML returns 0 W, which is not a limit")
        return milliwatts / 1e3

    return _row(name, function, convert=convert)


def flag(value: int) -> bool:
    """Return NVML's boolean. Raises ValueError for any other value."""
    if value not in (0, 1):
        raise ValueError(value)
    return bool(value)


def above_zero(value: float) -> float:
    """Return a temperature. Raises ValueError for a value below 1: the sensor was not read."""
    if value < 1:
        raise ValueError(value)
    return float(value)


def celsius(value: float) -> float:
    """Return the GPU's temperature. Raises ValueError for -1 (0xFFFFFFFF): the sensor was not read."""
    if value == -1:
        raise ValueError(value)
    return float(value)


def capability(value: tuple[int, int]) -> str:
    major, minor = value
    if not (whole(major, 1, 99) and whole(minor, 0, 9)):
        raise ValueError(value)
    return f"{major}.{minor}"


def clock_reasons(bits: int) -> dict[str, object]:
    return {"bits": bits, "names": [name for bit, name in enumerate(CLOCK_REASONS) if bits >> bit & 1]}


def lanes(value: int) -> int:
    """Return the width of a link. The port of a virtual machine may report 0 or 63 (all bits set) instead."""
    if value in (0, 63):
        raise QueryRefused("", NOT_SUPPORTED)
    if value not in WIDTHS:
        raise ValueError(value)
    return value


def remapped_rows(value: tuple[int, int, int, int]) -> dict[str, object]:
    correctable, uncorrectable, pending, failed = value
    return {
        "correctable": correctable,
        "uncorrectable": uncorrectable,
        "pending": flag(pending),
        "failed": flag(failed),
    }


def decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()


def window_bytes(memory: Any) -> int:
    """Return the size of BAR1, the host's window to GPU memory. A GPU without one reports 0."""
    if memory.bar1Total == 0:
        raise QueryRefused("NVML returns 0 bytes")
    return int(memory.bar1Total)


def _named(names: dict[int, str], value: int, what: str) -> str:
    """Return the name of an enumeration's value, such as `mode 9` for an unknown value 9."""
    if not isinstance(value, int) or not 0 <= value < ENUM_LIMIT:
        raise ValueError(value)
    return names.get(value, f"{what} {value}")


def c2c_rate(values: Any) -> float:
    """Return the bytes per second in one direction over all active NVLink-C2C links between the GPU and its CPU."""
    count, *links = values
    pairs = zip(links[::2], links[1::2], range(number(count, "uiVal")), strict=False)
    active = [speed for status, speed, _ in pairs if not status.nvmlReturn and status.value.uiVal == 1]
    if not (speeds := [speed.value.uiVal * 1e6 for speed in active if not speed.nvmlReturn]):
        raise QueryRefused("NVML names no active NVLink-C2C link")
    return float(sum(speeds))


def violations(values: Any) -> dict[str, float | None]:
    """Return the seconds for which each cause lowered the clock; None for a cause that this device does not count."""
    counters = dict(zip(VIOLATION_FIELDS.values(), values, strict=True))
    if all(value.nvmlReturn for value in counters.values()):
        check(values[0])
    return {name: None if counter.nvmlReturn else counter.value.ullVal / 1e9 for name, counter in counters.items()}


# The spare rows of a memory bank: nvmlRowRemapperHistogramValues_t.
BANKS = ("max", "high", "partial", "low", "none")
# The fields that identify a device. They are read first, for all devices.
IDENTITY: tuple[Field, ...] = (
    _row("name", "Name"),
    _row("uuid", "UUID"),
    # The format of sysfs (`0000:41:00.0`). NVML's own text has a longer domain, in capitals.
    _row("pci_address", "PciInfo", convert=lambda info: f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"),
)
VIOLATIONS = _row("violations_s", "FieldValues", tuple(VIOLATION_FIELDS), convert=violations)
DETAILS: tuple[Field, ...] = (
    _row("compute_capability", "CudaComputeCapability", convert=capability),
    _row("utilization_percent", "UtilizationRates", convert=lambda rates: float(rates.gpu)),
    # Drivers before R570 have only the older function, which CUDA 14 is planned to remove.
    _row("temperature_celsius", "TemperatureV Temperature", TEMPERATURE_GPU, convert=celsius),
    _value("memory_temperature_celsius", FIELD_MEMORY_TEMPERATURE, "uiVal", above_zero),
    _row("slowdown_celsius", "TemperatureThreshold", THRESHOLD_SLOWDOWN, convert=above_zero),
    _row("gpu_max_celsius", "TemperatureThreshold", THRESHOLD_GPU_MAX, convert=above_zero),
    _row("memory_max_celsius", "TemperatureThreshold", THRESHOLD_MEMORY_MAX, convert=above_zero),
    _row("shutdown_celsius", "TemperatureThreshold", THRESHOLD_SHUTDOWN, convert=above_zero),
    # A percentage of the speed at the product's maximum noise level. It may exceed 100 (manual of nvidia-smi).
    _row("fan_percent", "FanSpeed", convert=float),
    _watts("power_w", "PowerUsage"),
    _watts("power_limit_w", "EnforcedPowerLimit"),
    _watts("power_limit_default_w", "PowerManagementDefaultLimit"),
    _hertz("sm_clock_hz", "ClockInfo", CLOCK_SM),
    _hertz("memory_clock_hz", "ClockInfo", CLOCK_MEMORY),
    _hertz("max_sm_clock_hz", "MaxClockInfo", CLOCK_SM),
    _hertz("max_memory_clock_hz", "MaxClockInfo", CLOCK_MEMORY),
    # CUDA 14 is planned to remove these functions.
    _hertz("application_sm_clock_hz", "ApplicationsClock", CLOCK_GRAPHICS),
    _hertz("application_memory_clock_hz", "ApplicationsClock", CLOCK_MEMORY),
    _hertz("default_application_sm_clock_hz", "DefaultApplicationsClock", CLOCK_GRAPHICS),
    _hertz("default_application_memory_clock_hz", "DefaultApplicationsClock", CLOCK_MEMORY),
    # Drivers before R535 have only the older name.
    _row("clock_reasons", "CurrentClocksEventReasons CurrentClocksThrottleReasons", convert=clock_reasons),
    VIOLATIONS,
    _row("pcie/generation", "CurrPcieLinkGeneration"),
    _row("pcie/width", "CurrPcieLinkWidth", convert=lanes),
    _row("pcie/max_generation", "MaxPcieLinkGeneration"),
    _row("pcie/max_width", "MaxPcieLinkWidth", convert=lanes),
    _row("pcie/replays", "PcieReplayCounter"),
    _flag("ecc/enabled", "EccMode", 0),
    _flag("ecc/enabled_after_reset", "EccMode", 1),
    _flag("ecc/enabled_by_default", "DefaultEccMode", 0),
    _row("ecc/volatile_corrected", "TotalEccErrors", CORRECTED, VOLATILE),
    _row("ecc/volatile_uncorrected", "TotalEccErrors", UNCORRECTED, VOLATILE),
    _row("remapped_rows", "RemappedRows", convert=remapped_rows),
    _row("remap_banks", "RowRemapperHistogram", convert=lambda value: {name: getattr(value, name) for name in BANKS}),
    # GPUs up to Turing retire pages; later ones remap rows instead.
    _row("retired_pages/corrected", "RetiredPages", MANY_SINGLE_BIT, convert=len),
    _row("retired_pages/uncorrected", "RetiredPages", DOUBLE_BIT, convert=len),
    _flag("retired_pages/pending", "RetiredPagesPendingStatus"),
    _value("recovery_action", FIELD_RECOVERY_ACTION, "uiVal", lambda value: _named(RECOVERY_ACTIONS, value, "action")),
    _row(
        "mig",
        "MigMode",
        convert=lambda modes: {"enabled": flag(modes[0]), "enabled_after_reset": flag(modes[1]), "instances": []},
    ),
    _flag("persistence_mode", "PersistenceMode"),
    _row("compute_mode", "ComputeMode", convert=lambda value: _named(COMPUTE_MODES, value, "mode")),
    _row("bar1_total_bytes", "BAR1MemoryInfo", convert=window_bytes),
    _row("serial", "Serial"),
    _row("vbios_version", "VbiosVersion"),
    _row("gsp_firmware_version", "GspFirmwareVersion", convert=decoded),
    _row("minor_number", "MinorNumber"),
)
# Error counters. Without ECC, NVML returns 0 or refuses.
ECC_COUNTERS = ("ecc/volatile_corrected", "ecc/volatile_uncorrected")

# The link between a GPU and its CPU (Grace). Device has no such field.
_PER_LINK = ((field, link) for link in range(MOST_C2C_LINKS) for field in (FIELD_C2C_STATUS, FIELD_C2C_SPEED))
C2C = _row("c2c_bytes_per_s", "FieldValues", (FIELD_C2C_COUNT, *_PER_LINK), convert=c2c_rate)

# These fields need many calls, so they are read last and only on request.
LINKS = ("fabric", "nvlinks")
SRAM = "sram_ecc"
MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")


# -- queries: a plausible value, or the reason why there is none ------------------------------------------------------

# Texts for codes of nvmlReturn_t (nvml.h). nvidia-ml-py has the texts of other codes.
REASONS = {
    2: "NVML rejects this query for this device (invalid argument)",
    3: "not supported by this device or driver",
    4: "no permission",
    8: "the GPU's power cable is not connected",
    11: "the GPU's interrupts do not arrive",
    13: "the driver's NVML has no such function",
    15: "the device is lost",
    16: "the device needs a reset",
    999: "NVML returns: unknown error",
}
STATES = {8: "no power", 11: "no interrupts", 15: "lost", 16: "reset required"}
# The state of a GPU that a container or a scheduler hides from this process.
NOT_ACCESSIBLE = "not accessible here (no permission)"
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
# DRIVER_MISMATCH is NVML_ERROR_LIB_RM_VERSION_MISMATCH, and STRUCT_MISMATCH NVML_ERROR_ARGUMENT_VERSION_MISMATCH.
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, DRIVER_MISMATCH, STRUCT_MISMATCH = 12, 13, 18, 25
# The errors of a converter for an answer that has not NVML's structure.
MISSHAPEN = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
NO_SUCH_CALL = "this nvidia-ml-py has no "
SENSELESS = "NVML's answer makes no sense"
ECC_OFF = "ECC is off: nothing is counted"
OTHER_STRUCT = "the driver's NVML has another version of this structure"


def applies(reason: str) -> bool:
    """Return whether a field that was refused for this reason exists for the device, with an unknown value."""
    codes = (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
    not_applicable = (*(REASONS[code] for code in codes), ECC_OFF, OTHER_STRUCT)
    return reason not in not_applicable and not reason.startswith(NO_SUCH_CALL)


def refusal(pynvml: Any, code: int) -> QueryRefused:
    return QueryRefused(REASONS.get(code) or f"NVML returns: {pynvml.NVMLError(code)}", code)


def call(pynvml: Any, function: str, *arguments: object, **keywords: object) -> Any:
    """Call a function of nvidia-ml-py. Raises QueryRefused if there is no answer."""
    if (function_of := getattr(pynvml, function, None)) is None:
        raise QueryRefused(f"{NO_SUCH_CALL}{function}", FUNCTION_NOT_FOUND)
    try:
        return function_of(*arguments, **keywords)
    except pynvml.NVMLError as error:
        raise refusal(pynvml, error.value) from error
    except UnicodeDecodeError as error:
        raise QueryRefused("NVML's text cannot be read") from error


def filled(pynvml: Any, handle: Any, struct: str, function: str) -> Any:
    """Return the struct of this name, filled by the function. Raises QueryRefused."""
    if (struct_type := getattr(pynvml, struct, None)) is None:
        raise QueryRefused(f"{NO_SUCH_CALL}{struct}", FUNCTION_NOT_FOUND)
    info = struct_type()
    call(pynvml, function, handle, byref(info))
    return info


def ask(pynvml: Any, handle: Any, field: Field) -> Any:
    """Return the field's value. Raises QueryRefused, also for an implausible value, and the converter's errors."""
    for function in field.functions:
        try:
            return checked(field.name, field.convert(call(pynvml, function, handle, *field.arguments)))
        except QueryRefused as refused:
            if refused.code != FUNCTION_NOT_FOUND or function == field.functions[-1]:
                raise
    return None


def checked(name: str, value: Any) -> Any:
    if not is_plausible(name, value):
        raise QueryRefused(f"{SENSELESS}: {str(value)[:40]!a}")
    return value


class DeviceFields:
    """The known fields of one device, and the reasons why other fields are unknown."""

    def __init__(self, **values: object) -> None:
        self.device: dict[str, Any] = {"kind": "cuda", **values}
        self.unknown: dict[str, str] = {}

    def refuse(self, name: str, refused: QueryRefused) -> None:
        """Record why the field has no value. Some reasons also set the device's state, such as lost."""
        self.unknown[name] = refused.reason
        state = STATES.get(refused.code or 0)
        # A lost device does not come back, so no later state replaces "lost".
        if state and self.device.get("state") != "lost":
            self.device["state"] = state

    def line(self, index: int, *, lacks: tuple[str, ...]) -> dict[str, object]:
        """Return the line for the device at this index. A later line has the fields `lacks` (`*` is all)."""
        return {"index": index, "lacks": lacks, "device": self.device, "unknown": self.unknown}

    def put(self, name: str, value: object) -> None:
        group, _, member = name.rpartition("/")
        (self.device.setdefault(group, {}) if group else self.device)[member] = value

    def answer(self, pynvml: Any, name: str, question: Callable[[], Any]) -> Any:
        """Return the answer to a query; None if it was refused, with the reason recorded."""
        try:
            return question()
        except QueryRefused as refused:
            self.refuse(name, refused if refused.reason else refusal(pynvml, refused.code or 0))
        except MISSHAPEN:
            self.refuse(name, QueryRefused(SENSELESS))
        return None

    def read(self, pynvml: Any, handle: Any, table: tuple[Field, ...]) -> None:
        for field in table:
            if (value := self.answer(pynvml, field.name, partial(ask, pynvml, handle, field))) is not None:
                self.put(field.name, value)
