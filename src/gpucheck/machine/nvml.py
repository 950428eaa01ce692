"""NVML, read in a child: a wedged driver may hang any call or crash the process.

The only file that imports pynvml (the module of nvidia-ml-py). Each line `read` or `read processes` on stdin is
answered by a line for the driver with every device's identity, a line for each device's fields, and `{"end": true}`:
what was read before a call that never returns is not lost. `machine/readings.py` is the parent's side.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

from gpucheck.machine import nvml_fields as fields
from gpucheck.machine.speaking import Say, claim_stdout, mapped_library

# nvmlReturn_t of nvml.h: why a field is not told. A code that is not here is told in nvidia-ml-py's words.
REASONS = {
    2: "NVML does not take this question for this device (invalid argument)",
    3: "not supported by this device or driver",
    4: "no permission",
    13: "the driver's NVML has no such function",
    15: "the device is lost",
    16: "the device needs a reset",
    999: "NVML answers: unknown error",
}
STATES = {15: "lost", 16: "reset required"}
NO_PERMISSION, INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 4, 7, 12, 13
NOT_INSTALLED = "nvidia-ml-py is not installed"

# The largest PID that Linux gives (PID_MAX_LIMIT); Windows' PIDs are small as well.
LARGEST_PID = 2**22
# The struct of a process grew in some R535 drivers without a new version, which scrambles the list; the older function
# is then the one that is right.
PROCESS_CALLS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
}


class Refused(Exception):
    """A question that got no value: NVML's return code (None where it was not NVML that refused) and the reason."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def _refusal(pynvml: Any, code: int) -> Refused:
    return Refused(REASONS.get(code) or f"NVML answers: {pynvml.NVMLError(code)}", code)


def _call(pynvml: Any, function: str, *arguments: object, **named: object) -> Any:
    """Call a function of nvidia-ml-py. Raises Refused for everything that is no answer."""
    call = getattr(pynvml, function, None)
    if call is None:
        raise Refused(f"this nvidia-ml-py has no {function}", FUNCTION_NOT_FOUND)
    try:
        return call(*arguments, **named)
    except pynvml.NVMLError as error:
        raise _refusal(pynvml, error.value) from error
    except UnicodeDecodeError as error:
        raise Refused("NVML's text cannot be read") from error


def _ask(pynvml: Any, handle: Any, field: fields.Field) -> Any:
    """The field's value in SI units. Raises Refused."""
    last = None
    for call in field.calls:
        try:
            return field.convert(_call(pynvml, call.function, handle, *call.arguments))
        except fields.NotTold as error:
            raise Refused(str(error)) from error
        except fields.CodeAnswered as error:
            raise _refusal(pynvml, error.code) from error
        except Refused as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            last = error
    assert last is not None
    raise last


class Row:
    """What is known of one device so far: its fields, why others are not known, and the state that the reasons show."""

    def __init__(self, **known: object) -> None:
        self.device: dict[str, Any] = {"kind": "cuda", **known}
        self.unknown: dict[str, str] = {}

    def refuse(self, name: str, refused: Refused) -> None:
        """The field has no value; a lost device also gets its state."""
        self.unknown[name] = refused.reason
        state = STATES.get(refused.code or 0)
        # Lost outweighs everything: what it answers later does not bring it back.
        if state and self.device.get("state") != "lost":
            self.device["state"] = state

    def put(self, name: str, value: object) -> None:
        """Set the field `name`, or `group/name`."""
        group, _, member = name.rpartition("/")
        (self.device.setdefault(group, {}) if group else self.device)[member] = value

    def read(self, pynvml: Any, handle: Any, table: tuple[fields.Field, ...]) -> None:
        """Ask for each field on its own."""
        for field in table:
            try:
                self.put(field.name, _ask(pynvml, handle, field))
            except Refused as refused:
                self.refuse(field.name, refused)


def start(pynvml: Any) -> dict[str, Any]:
    """Start NVML: how long it took, and its code and text where it failed."""
    begun = time.perf_counter()
    code, error = 0, None
    try:
        _call(pynvml, "nvmlInit")
    except Refused as refused:
        code, error = refused.code or 999, refused.reason
    told: dict[str, Any] = {"start_s": time.perf_counter() - begun, "code": code, "error": error}
    if code == LIBRARY_NOT_FOUND:
        told["error"] = f"NVML cannot be loaded ({_why_not_loaded()})"
    elif code:
        # NVML's own words are what people search for.
        told["error"] = str(pynvml.NVMLError(code)).rstrip(".")
    return told


def _why_not_loaded() -> str:
    """The loader's own words: the file may be missing, or there and broken."""
    try:
        ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    return "unknown reason"


def system(pynvml: Any) -> dict[str, Any]:
    """Versions of driver, NVML and the newest CUDA that the driver serves."""
    told: dict[str, Any] = {"path": mapped_library("libnvidia-ml.so"), "unknown": {}}
    for name, function in (
        ("driver_version", "nvmlSystemGetDriverVersion"),
        ("nvml_version", "nvmlSystemGetNVMLVersion"),
        ("cuda_version", "nvmlSystemGetCudaDriverVersion_v2"),
    ):
        try:
            value = _call(pynvml, function)
            told[name] = f"{value // 1000}.{value % 1000 // 10}" if name == "cuda_version" else value
        except Refused as refused:
            told["unknown"][name] = refused.reason
    try:
        told["confidential_computing"] = _confidential(pynvml)
    except Refused as refused:
        told["unknown"]["confidential_computing"] = refused.reason
    return told


def _confidential(pynvml: Any) -> str:
    """`off`, or whether the GPUs of a confidential machine take work: `ready`, `not ready`. Raises Refused."""
    if not _call(pynvml, "nvmlSystemGetConfComputeState").ccFeature:
        return "off"
    return "ready" if _call(pynvml, "nvmlSystemGetConfComputeGpusReadyState") else "not ready"


def identify(pynvml: Any) -> list[tuple[Row, Any]]:
    """A row for each device that NVML counts, with its handle; None for a handle that NVML does not give."""
    rows: list[tuple[Row, Any]] = []
    for index in range(_call(pynvml, "nvmlDeviceGetCount")):
        row = Row(nvml_index=index)
        try:
            handle = _call(pynvml, "nvmlDeviceGetHandleByIndex", index)
        except Refused as refused:
            row.refuse("*", refused)
            if refused.code == NO_PERMISSION:
                # NVML counts devices that the container or the scheduler keeps from us.
                row.device["state"] = "not accessible here (no permission)"
            row.device.setdefault("state", refused.reason)
            rows.append((row, None))
            continue
        row.read(pynvml, handle, fields.IDENTITY)
        rows.append((row, handle))
    return rows


def read_memory(pynvml: Any, handle: Any, row: Row) -> None:
    """Memory by the second version of the call, which counts apart what the driver reserves; else by the first."""
    try:
        memory = _call(pynvml, "nvmlDeviceGetMemoryInfo", handle, version=0x02000028)  # nvmlMemory_v2
        source = "nvml v2"
    except Refused as second:
        try:
            memory = _call(pynvml, "nvmlDeviceGetMemoryInfo", handle)
            source = "nvml v1"
        except Refused:
            for name in fields.MEMORY:
                row.refuse(name, second)
            return
    if not memory.total:
        # Some integrated GPUs answer success and zeros.
        for name in fields.MEMORY:
            row.unknown[name] = "NVML answers 0 bytes"
        return
    row.put("memory_source", source)
    for name in fields.MEMORY:
        value = getattr(memory, name.split("_")[1], None)
        if value is None:
            row.unknown[name] = "NVML's first memory call counts what is reserved as used"
        else:
            row.put(name, int(value))


def read_processes(pynvml: Any, handle: Any, row: Row) -> None:
    """Compute and graphics processes; a process that is both stands once."""
    found: dict[int, dict[str, Any]] = {}
    for kind in PROCESS_CALLS:
        try:
            listed = _process_list(pynvml, handle, kind, row.device.get("memory_total_bytes"))
        except Refused as refused:
            if kind == "compute" or refused.code not in (3, FUNCTION_NOT_FOUND):
                row.refuse("processes", refused)
                return
            continue
        for process in listed:
            pid = int(process.pid)
            kinds = [found[pid]["kind"], kind] if pid in found else [kind]
            found[pid] = {"pid": pid, "kind": "+".join(kinds), "used_memory_bytes": process.usedGpuMemory}
    row.put("processes", list(found.values()))


def _process_list(pynvml: Any, handle: Any, kind: str, total_bytes: int | None) -> list[Any]:
    last = Refused("no function lists processes")
    for function in PROCESS_CALLS[kind]:
        try:
            listed: list[Any] = _call(pynvml, function, handle)
        except Refused as refused:
            last = refused
            if refused.code not in (FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE):
                raise
            continue
        garbled = next((process for process in listed if not _is_plausible(process, total_bytes)), None)
        if garbled is None:
            return listed
        last = Refused(f"NVML's list of processes is garbled (it holds PID {garbled.pid})")
    raise last


def _is_plausible(process: Any, total_bytes: int | None) -> bool:
    used = process.usedGpuMemory
    return 0 < process.pid <= LARGEST_PID and (used is None or total_bytes is None or used <= total_bytes)


def read_instances(pynvml: Any, handle: Any, card: Row, with_processes: bool) -> list[Row]:
    """The MIG instances of a card, a row each. NVML tells their name, memory and processes; the rest is the card's."""
    rows = []
    mig = card.device.get("mig")
    if not mig or not mig["enabled"]:
        return []
    try:
        slots = _call(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle)
    except Refused as refused:
        card.refuse("mig/instances", refused)
        return []
    for slot in range(slots):
        try:
            instance = _call(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        except Refused:  # an empty slot: NOT_FOUND, or INVALID_ARGUMENT from older drivers
            continue
        row = Row(parent_uuid=card.device.get("uuid"), pci_address=card.device.get("pci_address"))
        row.read(pynvml, instance, fields.IDENTITY[:2])
        read_memory(pynvml, instance, row)
        if with_processes:
            read_processes(pynvml, instance, row)
        rows.append(row)
        if row.device.get("uuid"):
            mig["instances"].append(row.device["uuid"])
    return rows


def answer(pynvml: Any, started: dict[str, Any], with_processes: bool, say: Say) -> None:
    """Read everything once and say it."""
    driver = {**started, **system(pynvml)}
    try:
        rows = identify(pynvml)
    except Refused as refused:
        driver["error"] = f"NVML cannot count its devices: {refused.reason}"
        rows = []
    known = [{"device": row.device, "unknown": row.unknown, "more": handle is not None} for row, handle in rows]
    say({"driver": driver, "devices": known})
    for place, (row, handle) in enumerate(rows):
        if handle is None:
            continue
        row.read(pynvml, handle, fields.DETAILS)
        read_memory(pynvml, handle, row)
        if with_processes:
            read_processes(pynvml, handle, row)
        instances = read_instances(pynvml, handle, row, with_processes)
        say({"place": place, "device": row.device, "unknown": row.unknown})
        for instance in instances:
            say({"instance": True, "device": instance.device, "unknown": instance.unknown})


def main() -> int:
    """Answer each request line until stdin ends. NVML is started at the first, and again after a start that failed."""
    say = claim_stdout()
    try:
        import pynvml
    except ImportError:
        pynvml = None
    started: dict[str, Any] = {"code": None, "error": NOT_INSTALLED}
    for line in sys.stdin:
        if pynvml is not None and started["code"] != 0:
            started = start(pynvml)
        if started["code"] == 0:
            answer(pynvml, started, "processes" in line, say)
        else:
            say({"driver": started, "devices": []})
        say({"end": True})
    return 0
