"""Read NVML in a child, because a wedged driver may hang any call or crash the process.

A request has the booleans `processes` and `links`. The answer is a line for the driver, lines for each device before
(`at`) and after each step (identity, fields, links), and the `end`. Earlier lines thus survive a call that never
returns. `machine/driver_reads.py` is the parent's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpucheck.machine import nvml_fields as fields
from gpucheck.machine.child_stdio import Send, claim_stdout, mapped_library, requests
from gpucheck.machine.nvml_fields import MISSHAPEN, SENSELESS, DeviceFields, QueryRefused, call, checked

NOT_INSTALLED = "nvidia-ml-py is not installed"

PROCESS_CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
# NVML samples each process's utilisation once or a few times a second.
UTILIZATION_SPAN_S = 2.0


def start(pynvml: Any) -> dict[str, Any]:
    began_s = time.perf_counter()
    code, error = 0, None
    try:
        call(pynvml, "nvmlInit")
    except QueryRefused as refused:
        code = refused.code or 999
        # Users search for NVML's own text.
        error = str(pynvml.NVMLError(code)).rstrip(".")
    start_s = time.perf_counter() - began_s
    if code == fields.LIBRARY_NOT_FOUND:
        error = f"NVML cannot be loaded ({_why_not_loaded()})"
    return {"start_s": start_s, "code": code, "error": error}


def _why_not_loaded() -> str:
    try:
        ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    return "unknown reason"


def system(pynvml: Any) -> dict[str, Any]:
    """Return the versions of the driver and of NVML, and the newest CUDA version that the driver supports."""
    versions: dict[str, Any] = {"path": mapped_library("libnvidia-ml.so")}
    for name, ask in (
        ("driver_version", lambda: checked("version", call(pynvml, "nvmlSystemGetDriverVersion"))),
        ("nvml_version", lambda: checked("version", call(pynvml, "nvmlSystemGetNVMLVersion"))),
        ("cuda_version", lambda: _cuda_version(call(pynvml, "nvmlSystemGetCudaDriverVersion_v2"))),
    ):
        with contextlib.suppress(QueryRefused):
            versions[name] = ask()
    return versions


def _cuda_version(value: Any) -> str:
    if not fields.whole(value, 1000, 999_999):
        raise QueryRefused(SENSELESS)
    return f"{value // 1000}.{value % 1000 // 10}"


def count(pynvml: Any) -> int:
    counted = call(pynvml, "nvmlDeviceGetCount")
    if not fields.whole(counted, 0, fields.MOST_DEVICES):
        raise QueryRefused(f"{SENSELESS}: {counted!r}")
    return int(counted)


def identify(pynvml: Any, counted: int) -> Iterator[tuple[DeviceFields, Any]]:
    """Yield a row for each device that NVML counts, with its handle; None if NVML returns no handle."""
    for index in range(counted):
        row = DeviceFields(nvml_index=index)
        try:
            handle = call(pynvml, "nvmlDeviceGetHandleByIndex", index)
        except QueryRefused as refused:
            row.refuse("*", refused)
            if refused.code == fields.NO_PERMISSION:
                # NVML also counts devices that the container or the scheduler makes inaccessible.
                row.device["state"] = fields.NOT_ACCESSIBLE
            row.device.setdefault("state", refused.reason)
            yield row, None
            continue
        row.read(pynvml, handle, fields.IDENTITY)
        yield row, handle


def read_memory(pynvml: Any, handle: Any, row: DeviceFields) -> None:
    """Read memory by version 2 of NVML's call, which counts the driver's reserved memory separately, or version 1."""
    try:
        source, memory = "nvml v2", call(pynvml, "nvmlDeviceGetMemoryInfo", handle, version=0x02000028)  # nvmlMemory_v2
    except QueryRefused as second:
        try:
            source, memory = "nvml v1", call(pynvml, "nvmlDeviceGetMemoryInfo", handle)
        except QueryRefused:
            for name in fields.MEMORY:
                row.refuse(name, second)
            return
    if (total := getattr(memory, "total", None)) == 0:
        # The call succeeds with zeros for some integrated GPUs.
        for name in fields.MEMORY:
            row.unknown[name] = "NVML returns 0 bytes"
        return
    row.put("memory_source", source)
    for name in fields.MEMORY:
        value = getattr(memory, name.split("_")[1], None)
        try:
            if value is None:
                row.unknown[name] = "version 1 of NVML's memory call counts reserved memory as used"
            elif checked(name, value) > checked(name, total):
                row.unknown[name] = f"{SENSELESS}: more than the GPU has"
            else:
                row.put(name, value)
        except QueryRefused as refused:
            row.refuse(name, refused)


# gpucheck's names of the counters in nvmlEccSramErrorStatus_v1_t of nvml.h, with NVML's names.
SRAM_COUNTS = {
    f"{since}_{error.lower()}": f"{since}Unc{error}"
    for since in ("volatile", "aggregate")
    for error in ("Parity", "SecDed")
}
SRAM_SOURCES = {name.lower(): f"aggregateUncBucket{name}" for name in ("L2", "Sm", "Pcie", "Mcu", "Other")}


def _sram(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Return the errors of the on-chip memory, and whether they exceed NVIDIA's threshold. Raises QueryRefused."""
    try:
        status = fields.filled(pynvml, handle, "c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus")
    except QueryRefused as refused:
        raise QueryRefused(fields.OTHER_STRUCT) if refused.code == fields.STRUCT_MISMATCH else refused from refused
    counts: dict[str, Any] = {name: getattr(status, field) for name, field in SRAM_COUNTS.items()}
    counts["threshold_exceeded"] = fields.flag(status.bThresholdExceeded)
    counts["sources"] = {name: getattr(status, field) for name, field in SRAM_SOURCES.items()}
    if not fields.is_plausible(fields.SRAM, counts):
        raise QueryRefused(SENSELESS)
    return counts


def without_ecc(row: DeviceFields) -> None:
    """Mark the error counters as unknown if ECC is off, because the counters are then inactive."""
    ecc = row.device.get("ecc") or {}
    if ecc.get("enabled") is not False:
        return
    for name in fields.ECC_COUNTERS:
        ecc.pop(name.partition("/")[2], None)
        row.unknown[name] = fields.ECC_OFF
    if fields.SRAM in row.device or fields.SRAM in row.unknown:
        row.device.pop(fields.SRAM, None)
        row.unknown[fields.SRAM] = fields.ECC_OFF


def read_details(pynvml: Any, handle: Any, row: DeviceFields) -> None:
    row.read(pynvml, handle, fields.DETAILS)
    # All processes share this clock, so the time between readings of different children is known.
    row.put("read_at_s", time.monotonic())
    if (counts := row.answer(pynvml, fields.SRAM, lambda: _sram(pynvml, handle))) is not None:
        row.put(fields.SRAM, counts)
    without_ecc(row)
    read_memory(pynvml, handle, row)


def read_processes(pynvml: Any, handle: Any, row: DeviceFields) -> None:
    """Read compute and graphics processes; a process of both kinds is listed once."""
    by_pid: dict[int, dict[str, Any]] = {}
    for kind, function in PROCESS_CALLS.items():
        try:
            listed = _process_list(pynvml, handle, function, row.device.get("memory_total_bytes"))
        except QueryRefused as refused:
            if kind == "compute" or refused.code not in (3, fields.FUNCTION_NOT_FOUND):
                row.refuse("processes", refused)
                return
            continue
        for process in listed:
            pid = process.pid
            kinds = [by_pid[pid]["kind"], kind] if pid in by_pid else [kind]
            by_pid[pid] = {"pid": pid, "kind": "+".join(kinds), "used_memory_bytes": process.usedGpuMemory}
    for pid, percent in _process_utilization(pynvml, handle).items() if by_pid else ():
        if pid in by_pid:
            by_pid[pid]["utilization_percent"] = percent
    row.put("processes", list(by_pid.values()))


def is_much(row: DeviceFields) -> bool:
    used, total = row.device.get("memory_used_bytes"), row.device.get("memory_total_bytes")
    is_exact = row.device.get("memory_source") == "nvml v2"
    return bool(used and total and is_exact and fields.unclaimed_counts(used, total))


def sum_processes(row: DeviceFields) -> None:
    """Sum the memory of the listed processes. The sum is unknown in MIG mode, or if a process has no figure."""
    listed, divided = row.device.get("processes"), (row.device.get("mig") or {}).get("enabled")
    sizes = [process["used_memory_bytes"] for process in listed or ()]
    if listed is not None and None not in sizes and not divided:
        row.put("memory_of_processes_bytes", sum(sizes))


def _process_utilization(pynvml: Any, handle: Any) -> dict[int, float]:
    """Return the latest utilization (percent) by process id; empty if unknown."""
    try:
        since_us = int((time.time() - UTILIZATION_SPAN_S) * 1e6)
        samples = call(pynvml, "nvmlDeviceGetProcessUtilization", handle, since_us)
        newest_last = sorted(samples, key=lambda sample: sample.timeStamp)
        return {sample.pid: float(sample.smUtil) for sample in newest_last if fields.whole(sample.smUtil, 0, 100)}
    except (QueryRefused, *MISSHAPEN):
        return {}


def _process_list(pynvml: Any, handle: Any, function: str, total_bytes: int | None) -> list[Any]:
    """Return the processes of one kind. Raises QueryRefused, also for the invalid lists of some R535 drivers."""
    listed: list[Any] = call(pynvml, function, handle)
    most = int(fields.MOST["bytes"]) if total_bytes is None else total_bytes
    try:
        for process in listed:
            used = 0 if process.usedGpuMemory is None else process.usedGpuMemory
            if not (fields.whole(process.pid, 1, fields.LARGEST_PID) and fields.whole(used, 0, most)):
                raise QueryRefused(f"NVML's list of processes is garbled (PID {process.pid})")
    except MISSHAPEN as error:
        raise QueryRefused("NVML's list of processes is garbled") from error
    return listed


def instances(pynvml: Any, handle: Any) -> Iterator[Any]:
    """Return the handles of a GPU's MIG instances. Raises QueryRefused if NVML does not count them."""
    slots = call(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle)
    if not fields.whole(slots, 0, fields.MOST_INSTANCES):
        raise QueryRefused(f"{SENSELESS}: {slots!r}")
    for slot in range(slots):
        with contextlib.suppress(QueryRefused):  # an empty slot: NOT_FOUND, or INVALID_ARGUMENT from older drivers
            yield call(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)


def read_instances(pynvml: Any, handle: Any, gpu: DeviceFields, with_processes: bool) -> list[DeviceFields]:
    """Return a row for each MIG instance of a GPU: name, UUID, memory and processes."""
    rows: list[DeviceFields] = []
    if not (mig := gpu.device.get("mig")) or not mig["enabled"]:
        return rows
    try:
        listed = list(instances(pynvml, handle))
    except QueryRefused as refused:
        gpu.refuse("mig/instances", refused)
        return rows
    for instance in listed:
        row = DeviceFields(parent_uuid=gpu.device.get("uuid"), pci_address=gpu.device.get("pci_address"))
        row.read(pynvml, instance, fields.IDENTITY[:2])
        read_memory(pynvml, instance, row)
        if with_processes:
            read_processes(pynvml, instance, row)
        rows.append(row)
        if row.device.get("uuid"):
            mig["instances"].append(row.device["uuid"])
    return rows


# -- links between GPUs: each NVLink with its errors, and the fabric of NVSwitches -------------------------------------

LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
# nvmlNvLinkErrorCounter_t, for NVLink up to the fourth generation.
LINK_COUNTERS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}
# NVML_FI_DEV_NVLINK_COUNT_…, from the fifth generation on. The link's number is the scope of the field.
LINK_FIELDS = {
    206: "malformed_packets",
    207: "buffer_overruns",
    208: "received",
    209: "received_remote",
    211: "local_integrity",
    214: "recovery_failed",
}
# NVML_GPU_FABRIC_STATE_…; 0 is "not supported".
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…: each has two bits: 1 is yes, 2 is no, 0 is unknown.
FABRIC_HEALTH = {0: "degraded_bandwidth", 2: "route_recovery", 4: "route_unhealthy", 6: "access_timeout_recovery"}
INCORRECT_CONFIGURATION_SHIFT = 8  # four bits; the values 0 and 1 are no problem


def read_links(pynvml: Any, handle: Any, row: DeviceFields) -> None:
    if (fabric := row.answer(pynvml, "fabric", lambda: _fabric(pynvml, handle))) is not None:
        row.put("fabric", fabric)
    if (count := row.answer(pynvml, "nvlinks", lambda: _link_count(pynvml, handle))) is not None:
        row.put("nvlinks", [_link(pynvml, handle, number, row) for number in range(count)])


def _link_count(pynvml: Any, handle: Any) -> int:
    (answer,) = call(pynvml, "nvmlDeviceGetFieldValues", handle, (LINK_COUNT,))
    counted = fields.number(answer, "uiVal")
    if not fields.whole(counted, 0, fields.MOST_LINKS):
        raise QueryRefused(f"{SENSELESS}: '{counted}'")
    return counted


def _fabric(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Return the state of the GPU's fabric. Raises QueryRefused, also for a GPU without a fabric."""
    info = fields.filled(pynvml, handle, "c_nvmlGpuFabricInfoV_t", "nvmlDeviceGetGpuFabricInfoV")
    if not info.state:
        raise fields.refusal(pynvml, fields.NOT_SUPPORTED)
    if (state := FABRIC_STATES.get(info.state)) is None:
        raise QueryRefused(f"{SENSELESS}: state {info.state}")
    mask = info.healthMask
    problems = [name for shift, name in FABRIC_HEALTH.items() if mask >> shift & 0b11 == 1]
    if mask >> INCORRECT_CONFIGURATION_SHIFT & 0b1111 > 1:
        problems.append("incorrect_configuration")
    # The status is valid only in the state `completed`.
    error = fields.refusal(pynvml, info.status).reason if info.status and state == "completed" else None
    return {"state": state, "error": error, "problems": problems}


def _link(pynvml: Any, handle: Any, number: int, row: DeviceFields) -> dict[str, Any]:
    path = f"nvlinks/{number}"
    active = row.answer(
        pynvml, f"{path}/active", lambda: fields.flag(call(pynvml, "nvmlDeviceGetNvLinkState", handle, number))
    )
    errors: dict[str, int] = {}

    def add(name: str, question: Callable[[], Any]) -> None:
        counted = row.answer(pynvml, f"{path}/errors/{name}", lambda: checked("count", question()))
        if counted is not None:
            errors[name] = counted

    if active:
        for counter, name in LINK_COUNTERS.items():
            add(name, partial(call, pynvml, "nvmlDeviceGetNvLinkErrorCounter", handle, number, counter))
    if active and not errors:
        scoped = [(field, number) for field in LINK_FIELDS]
        values = row.answer(pynvml, f"{path}/errors", partial(call, pynvml, "nvmlDeviceGetFieldValues", handle, scoped))
        for name, value in zip(LINK_FIELDS.values(), values or (), strict=False):
            add(name, partial(fields.number, value, "ullVal"))
    return {"link": number, "active": active, "errors": errors}


def answer(pynvml: Any, started: dict[str, Any], say: Send, *, processes: bool = False, links: bool = False) -> None:
    """Read and send everything once. The readings that take many calls come last."""
    driver = {**started, **system(pynvml)}
    counted = 0
    try:
        counted = count(pynvml)
    except QueryRefused as refused:
        driver["error"] = f"NVML cannot count its devices: {refused.reason}"
    say({"driver": driver, "count": counted, "at": 0})
    rows: list[tuple[DeviceFields, Any]] = []
    for row, handle in identify(pynvml, counted):
        # A line before each device shows the parent at which device NVML hangs.
        say({**row.line(len(rows), lacks=() if handle is None else ("*",)), "at": len(rows) + 1})
        rows.append((row, handle))
    for index, (row, handle) in enumerate(rows):
        if handle is None:
            continue
        say({"at": index})
        read_details(pynvml, handle, row)
        # The judges of exclusive mode, full load and memory in use need the processes in every case.
        is_exclusive = str(row.device.get("compute_mode")).startswith("exclusive")
        is_full = (row.device.get("utilization_percent") or 0) >= 100
        if processes or is_exclusive or is_full or is_much(row):
            read_processes(pynvml, handle, row)
            sum_processes(row)
            if not (processes or is_exclusive or (is_full and row.device.get("processes") == [])):
                # The request asked for no processes.
                row.device.pop("processes", None)
                row.unknown.pop("processes", None)
        instances = read_instances(pynvml, handle, row, processes)
        say(row.line(index, lacks=fields.LINKS if links else ()))
        for instance in instances:
            say({"instance": True, "device": instance.device, "unknown": instance.unknown})
    for index, (row, handle) in enumerate(rows):
        if links and handle is not None:
            say({"at": index})
            read_links(pynvml, handle, row)
            say(row.line(index, lacks=()))


def main() -> int:
    """Answer each request until stdin ends. NVML is started at the first request, and again after a failed start."""
    say = claim_stdout()
    try:
        import pynvml
    except ImportError:
        pynvml = None
    started: dict[str, Any] = {"code": None, "error": NOT_INSTALLED}
    for request in requests():
        if pynvml is not None and started["code"] != 0:
            started = start(pynvml)
        if started["code"] == 0:
            answer(pynvml, started, say, processes=request["processes"], links=request["links"])
        else:
            say({"driver": started})
        say({"end": True})
    return 0
