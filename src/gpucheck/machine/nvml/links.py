"""The links between GPUs as NVML tells of them: each NVLink with its errors, and the fabric of NVSwitches."""

from __future__ import annotations

from typing import Any

from gpucheck.machine.nvml.row import (
    FUNCTION_NOT_FOUND,
    MISSHAPEN,
    NOT_SUPPORTED,
    SENSELESS,
    VERSION_MISMATCH,
    Refused,
    Row,
    call,
    checked,
    filled,
    refusal,
)

FIELD_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
# nvmlNvLinkErrorCounter_t, up to the fourth generation of NVLink: since the last reset.
COUNTERS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}
# NVML_FI_DEV_NVLINK_COUNT_… of one link, whose number is the scope: from the fifth generation on.
FIELDS = {
    206: "malformed_packets",
    207: "buffer_overruns",
    208: "received",
    209: "received_remote",
    211: "local_integrity",
    214: "recovery_failed",
}
# NVML_GPU_FABRIC_STATE_…; 0 is "not supported".
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…: two bits each, 1 for yes, 2 for no and 0 where it is not told.
FABRIC_HEALTH = {
    0: "degraded_bandwidth",
    2: "route_recovery",
    4: "route_unhealthy",
    6: "access_timeout_recovery",
}
INCORRECT_CONFIGURATION_SHIFT = 8  # four bits, of which 0 and 1 are no problem
# The struct and the function that fills it, the newer first; the older has no health.
FABRIC_CALLS = (
    ("c_nvmlGpuFabricInfoV_t", "nvmlDeviceGetGpuFabricInfoV"),
    ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
)


def read(pynvml: Any, handle: Any) -> Row:
    """The fields `fabric` and `nvlinks` of one device."""
    row = Row()
    try:
        row.put("fabric", fabric(pynvml, handle))
    except Refused as refused:
        row.refuse("fabric", refused)
    try:
        count = _count(pynvml, handle)
    except Refused as refused:
        row.refuse("nvlinks", refused)
        return row
    row.put("nvlinks", [_link(pynvml, handle, number, row) for number in range(count)])
    return row


def fabric(pynvml: Any, handle: Any) -> dict[str, Any]:
    """The state of the fabric that this GPU belongs to. Raises Refused, also where it belongs to none."""
    for struct, function in FABRIC_CALLS:
        try:
            return _fabric(pynvml, filled(pynvml, handle, struct, function))
        except Refused as error:
            refused = error
            if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH):
                break
    raise refused


def _fabric(pynvml: Any, info: Any) -> dict[str, Any]:
    if not info.state:
        raise refusal(pynvml, NOT_SUPPORTED)
    state = FABRIC_STATES.get(info.state)
    if state is None:
        raise Refused(f"{SENSELESS}: state {info.state}")
    mask = getattr(info, "healthMask", 0)
    problems = [name for shift, name in FABRIC_HEALTH.items() if mask >> shift & 0b11 == 1]
    if mask >> INCORRECT_CONFIGURATION_SHIFT & 0b1111 > 1:
        problems.append("incorrect_configuration")
    return {
        "state": state,
        # What came of it is told once it is completed.
        "error": refusal(pynvml, info.status).reason if info.status and state == "completed" else None,
        "problems": problems,
    }


def _count(pynvml: Any, handle: Any) -> int:
    """How many NVLinks the part has, connected or not. Raises Refused."""
    answer = call(pynvml, "nvmlDeviceGetFieldValues", handle, (FIELD_COUNT,))
    try:
        (told,) = answer
        code, count = told.nvmlReturn, told.value.uiVal
    except MISSHAPEN as error:
        raise Refused(SENSELESS) from error
    if code:
        raise refusal(pynvml, code)
    return int(checked("nvlinks/count", count))


def _link(pynvml: Any, handle: Any, number: int, row: Row) -> dict[str, Any]:
    """One link; an inactive one counts nothing."""
    link: dict[str, Any] = {"link": number, "active": None, "errors": {}}
    try:
        state = call(pynvml, "nvmlDeviceGetNvLinkState", handle, number)
        link["active"] = checked("nvlinks/active", bool(state) if state in (0, 1) else state)
    except Refused as refused:
        row.refuse(f"nvlinks/{number}/active", refused)
    if link["active"]:
        link["errors"] = _counters(pynvml, handle, number, row) or _fields(pynvml, handle, number, row)
    return link


def _counters(pynvml: Any, handle: Any, number: int, row: Row) -> dict[str, int]:
    counted: dict[str, int] = {}
    for counter, name in COUNTERS.items():
        try:
            answer = call(pynvml, "nvmlDeviceGetNvLinkErrorCounter", handle, number, counter)
            counted[name] = checked("nvlinks/errors", answer)
        except Refused as refused:
            row.refuse(f"nvlinks/{number}/errors/{name}", refused)
    return counted


def _fields(pynvml: Any, handle: Any, number: int, row: Row) -> dict[str, int]:
    counted: dict[str, int] = {}
    try:
        told = call(pynvml, "nvmlDeviceGetFieldValues", handle, [(field, number) for field in FIELDS])
        pairs = [(name, one.nvmlReturn, one.value.ullVal) for name, one in zip(FIELDS.values(), told, strict=True)]
    except Refused as refused:
        row.refuse(f"nvlinks/{number}/errors", refused)
        return counted
    except MISSHAPEN:
        row.unknown[f"nvlinks/{number}/errors"] = SENSELESS
        return counted
    for name, code, value in pairs:
        try:
            if code:
                raise refusal(pynvml, code)
            counted[name] = checked("nvlinks/errors", value)
        except Refused as refused:
            row.refuse(f"nvlinks/{number}/errors/{name}", refused)
    return counted
