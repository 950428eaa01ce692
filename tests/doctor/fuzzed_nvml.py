"""An nvidia-ml-py that answers as a healthy driver does, except where a case's faults say otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

UUIDS = tuple(f"GPU-{n}0000000-0000-0000-0000-000000000000" for n in (0, 1))
BUSES = (0x11, 0x21)
LINKS = 3
# nvmlReturn_t of nvml.h, and two that are none.
CODES = (*range(1, 31), 999, 77, -5)
KINDS = ("code", "hang", "crash", "text", "nothing", "garbage", "missing")
GARBAGE: tuple[Any, ...] = (
    -1,
    -(2**31),
    2**31,
    2**32 - 1,
    2**64 - 1,
    2**70,
    0.5,
    float("nan"),
    float("inf"),
    True,
    "",
    "x",
    "7",
    "\x1b[2J",
    "\ud800",
    "9" * 5000,
    b"\xff",
    [],
    [None],
    (),
    (1,),
    {},
    {"a": 1},
    object(),
)


class Cut(Exception):
    """Here the child hangs or dies: nothing more is said."""


@dataclass
class Fault:
    """What one function does, on one device or on all."""

    kind: str
    device: int | None
    code: int
    seed: int
    met: bool = False


def _value(**members: Any) -> SimpleNamespace:
    return SimpleNamespace(**members)


def _field(value: int, code: int = 0) -> SimpleNamespace:
    return _value(nvmlReturn=code, value=_value(uiVal=value, ullVal=value))


def _fields(device: int, wanted: Any) -> list[SimpleNamespace]:
    details = {230: 0, 91: LINKS, 74: 10**9, 75: 0, 76: 0, 79: 0}
    asked = [name if isinstance(name, int) else name[0] for name in wanted]
    return [_field(details[row]) if row in details else _field(0, 3) for row in asked]


def _fabric(device: int, pointer: Any) -> None:
    pointer._obj.state, pointer._obj.healthMask = 3, 0x1AA


def _sram(device: int, pointer: Any) -> None:
    pointer._obj.bThresholdExceeded = 0


REFUSED = object()
# What a healthy driver answers, by function: of the device (None for the system) and what else it is asked with.
HEALTHY: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda device: None,
    "nvmlSystemGetDriverVersion": lambda device: "580.95.05",
    "nvmlSystemGetNVMLVersion": lambda device: "13.580.95.05",
    "nvmlSystemGetCudaDriverVersion_v2": lambda device: 13000,
    "nvmlSystemGetConfComputeState": lambda device: REFUSED,
    "nvmlSystemGetConfComputeGpusReadyState": lambda device: 1,
    "nvmlDeviceGetCount": lambda device: 2,
    "nvmlDeviceGetHandleByIndex": lambda device: device,
    "nvmlDeviceGetName": lambda device: "NVIDIA H200",
    "nvmlDeviceGetUUID": lambda device: UUIDS[device],
    "nvmlDeviceGetPciInfo": lambda device: _value(domain=0, bus=BUSES[device], device=0),
    "nvmlDeviceGetCudaComputeCapability": lambda device: (9, 0),
    "nvmlDeviceGetUtilizationRates": lambda device: _value(gpu=0, memory=0),
    "nvmlDeviceGetTemperatureV": lambda device, sensor: 34,
    "nvmlDeviceGetTemperature": lambda device, sensor: 34,
    "nvmlDeviceGetTemperatureThreshold": lambda device, kind: 93,
    "nvmlDeviceGetPowerUsage": lambda device: 76500,
    "nvmlDeviceGetEnforcedPowerLimit": lambda device: 700_000,
    "nvmlDeviceGetClockInfo": lambda device, kind: 1980 if kind == 1 else 2619,
    "nvmlDeviceGetMaxClockInfo": lambda device, kind: 1980 if kind == 1 else 2619,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda device: 0,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda device: 0,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda device: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda device: 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda device: 5,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda device: 16,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda device: 5,
    "nvmlDeviceGetEccMode": lambda device: [1, 1],
    "nvmlDeviceGetTotalEccErrors": lambda device, kind, counter: 0,
    "nvmlDeviceGetRemappedRows": lambda device: (0, 0, 0, 0),
    "nvmlDeviceGetRetiredPages": lambda device, cause: [],
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda device: 0,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetMigMode": lambda device: REFUSED,
    "nvmlDeviceGetMaxMigDeviceCount": lambda device: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": lambda device, slot: REFUSED,
    "nvmlDeviceGetPersistenceMode": lambda device: 1,
    "nvmlDeviceGetComputeMode": lambda device: 0,
    "nvmlDeviceGetMemoryInfo": lambda device, version=None: _value(
        total=141 * 2**30, used=2**28, free=140 * 2**30, **({} if version is None else {"reserved": 2**27})
    ),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda device: [],
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda device: [],
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda device: [],
    "nvmlDeviceGetGraphicsRunningProcesses_v2": lambda device: [],
    "nvmlDeviceGetTotalEnergyConsumption": lambda device: 10**9,
    "nvmlDeviceGetMarginTemperature": lambda device: 53,
    "nvmlDeviceGetFanSpeed": lambda device: REFUSED,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda device: 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda device: [200_000, 700_000],
    "nvmlDeviceGetPerformanceState": lambda device: 0,
    "nvmlDeviceGetApplicationsClock": lambda device, kind: 1980 if kind == 0 else 2619,
    "nvmlDeviceGetDefaultApplicationsClock": lambda device, kind: 1980 if kind == 0 else 2619,
    "nvmlDeviceGetPcieReplayCounter": lambda device: 0,
    "nvmlDeviceGetDefaultEccMode": lambda device: [1],
    "nvmlDeviceGetRowRemapperHistogram": lambda device: _value(max=2560, high=0, partial=0, low=0, none=0),
    "nvmlDeviceGetBAR1MemoryInfo": lambda device: _value(bar1Total=2**37, bar1Free=2**37 - 1, bar1Used=1),
    "nvmlDeviceGetSerial": lambda device: "1650000000000",
    "nvmlDeviceGetBoardPartNumber": lambda device: "900-21001-0000-000",
    "nvmlDeviceGetVbiosVersion": lambda device: "96.00.74.00.01",
    "nvmlDeviceGetGspFirmwareVersion": lambda device: b"580.95.05",
    "nvmlDeviceGetMinorNumber": lambda device: device,
    "nvmlDeviceGetSramEccErrorStatus": _sram,
    "nvmlDeviceGetNvLinkState": lambda device, link: 1,
    "nvmlDeviceGetNvLinkErrorCounter": lambda device, link, counter: 0,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetGpuFabricInfo": _fabric,
}
OF_THE_SYSTEM = tuple(name for name in HEALTHY if "Device" not in name or name == "nvmlDeviceGetCount")


@dataclass
class FuzzedNvml:
    """Stands for the module; `faults` by function."""

    faults: dict[str, Fault] = field(default_factory=dict)
    NVMLError: Any = pynvml.NVMLError
    c_nvmlGpuFabricInfoV_t: Any = pynvml.c_nvmlGpuFabricInfoV_t
    c_nvmlGpuFabricInfo_t: Any = pynvml.c_nvmlGpuFabricInfo_t
    c_nvmlEccSramErrorStatus_v1_t: Any = pynvml.c_nvmlEccSramErrorStatus_v1_t

    def __getattr__(self, name: str) -> Any:
        if name not in HEALTHY:
            raise AttributeError(name)
        fault = self.faults.get(name)
        if fault is not None and fault.kind == "missing":
            fault.met = True
            raise AttributeError(name)
        return lambda *arguments, **named: self._call(name, arguments, named)

    def _call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        device = None if name in OF_THE_SYSTEM else arguments[0]
        healthy = HEALTHY[name](device, *arguments[1 if device is not None else 0 :], **named)
        fault = self.faults.get(name)
        if fault is not None and (device is None or fault.device in (None, device)):
            fault.met = True
            healthy = broken(fault, healthy, arguments)
        if healthy is REFUSED:
            raise pynvml.NVMLError(3)
        return healthy


def broken(fault: Fault, healthy: Any, arguments: tuple[Any, ...]) -> Any:
    """What a faulty function answers in place of what is healthy."""
    chance = random.Random(fault.seed)
    if fault.kind in ("hang", "crash"):
        raise Cut(fault.kind)
    if fault.kind == "code":
        raise pynvml.NVMLError(fault.code)
    if fault.kind == "text":
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    if fault.kind == "nothing":
        for argument in arguments:
            if hasattr(getattr(argument, "_obj", None), "state"):
                argument._obj.state = 0
        return None
    for argument in arguments:
        if hasattr(getattr(argument, "_obj", None), "bThresholdExceeded"):
            argument._obj.bThresholdExceeded = chance.choice((0, 1, 2, 2**32 - 1))
            argument._obj.aggregateUncParity = chance.choice((0, 1, 2**64 - 1))
        if hasattr(getattr(argument, "_obj", None), "state"):
            argument._obj.state, argument._obj.healthMask = (
                chance.choice((0, 1, 2, 3, 4, 2**32 - 1)),
                chance.getrandbits(32),
            )
            argument._obj.status = chance.choice((0, 1, 999, 2**32 - 1))
    return garbled(chance, healthy)


def garbled(chance: random.Random, healthy: Any) -> Any:
    """The answer with one of its parts, or all of it, replaced by nonsense."""
    if chance.random() < 0.5:
        if isinstance(healthy, SimpleNamespace):
            parts = dict(vars(healthy))
            name = chance.choice(sorted(parts))
            if chance.random() < 0.2:
                del parts[name]
            else:
                parts[name] = garbled(chance, parts[name])
            return SimpleNamespace(**parts)
        if isinstance(healthy, (list, tuple)) and healthy:
            items = list(healthy)
            place = chance.randrange(len(items))
            items[place] = garbled(chance, items[place])
            return items
    return chance.choice(GARBAGE)


def case(seed: int) -> dict[str, Fault]:
    """One to four faults."""
    chance = random.Random(seed)
    return {
        name: Fault(chance.choice(KINDS), chance.choice((None, 0, 1)), chance.choice(CODES), chance.getrandbits(32))
        for name in chance.sample(sorted(HEALTHY), chance.choice((1, 1, 2, 3, 4)))
    }
