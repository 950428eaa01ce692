"""Read libcuda, CUDA's driver library, in a child through ctypes: the devices that torch will see, in torch's order.

libcuda applies CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. No context is created. The child sends a line when the
library is loaded, a line when cuInit has returned, a line for each device, and the `end`; see `driver_reads`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

from gpucheck.machine import nvml_fields as fields
from gpucheck.machine.child_stdio import claim_stdout, mapped_library
from gpucheck.machine.nvml_fields import QueryRefused

# CUdevice_attribute of cuda.h.
MULTIPROCESSOR_COUNT, INTEGRATED, MEMORY_BUS_WIDTH, MAJOR, MINOR = 16, 18, 37, 75, 76
# Every call of a toolkit's stub library returns this code, even the call that returns a code's text.
STUB, STUB_TEXT = 34, "CUDA_ERROR_STUB_LIBRARY"
SENSELESS = "libcuda's answer makes no sense"


class LibCuda:
    """The loaded library, whose functions are called by name. Errors are raised as QueryRefused."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def code(self, function: str, *arguments: object) -> int:
        """Return the function's CUresult. Raises QueryRefused if this libcuda has no such function."""
        try:
            call = getattr(self._library, function)
        except AttributeError:
            raise QueryRefused(f"this libcuda has no {function}") from None
        return int(call(*arguments))

    def check(self, function: str, *arguments: object) -> None:
        """Call the function. Raises QueryRefused with libcuda's text for any result except success."""
        if code := self.code(function, *arguments):
            raise QueryRefused(f"{function} answers {code} ({self.error_text(code)})")

    def error_text(self, code: int) -> str:
        parts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            with contextlib.suppress(QueryRefused):
                if self.code(function, code, ctypes.byref(text)) == 0 and text.value:
                    parts.append(text.value.decode("utf-8", "replace"))
        return ": ".join(parts) or (STUB_TEXT if code == STUB else "unknown error")

    def integer(self, function: str, *arguments: object, c_type: Any = ctypes.c_int) -> int:
        """Return the number that the function writes through its first argument."""
        value = c_type()
        self.check(function, ctypes.byref(value), *arguments)
        return int(value.value)

    def text(self, function: str, device: int) -> str:
        """Return the text that the function writes. Its arguments are (buffer, length, device)."""
        buffer = ctypes.create_string_buffer(256)
        self.check(function, buffer, len(buffer), device)
        return buffer.value.decode("utf-8", "replace")

    def uuid(self, function: str, device: int) -> str:
        buffer = (ctypes.c_ubyte * 16)()
        self.check(function, ctypes.byref(buffer), device)
        digits = bytes(buffer).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def identity(driver: LibCuda, device: int) -> dict[str, object]:
    """Return the device's UUID, and for a MIG instance its GPU's UUID as `parent_uuid`. Raises QueryRefused."""
    # For a MIG instance, `cuDeviceGetUuid_v2` returns the instance's UUID and `cuDeviceGetUuid` the GPU's.
    gpu = instance = None
    with contextlib.suppress(QueryRefused):
        gpu = driver.uuid("cuDeviceGetUuid", device)
    try:
        instance = driver.uuid("cuDeviceGetUuid_v2", device)
    except QueryRefused:
        if gpu is None:
            raise
    if instance is None or gpu is None or instance == gpu:
        return {"uuid": f"GPU-{instance or gpu}"}
    return {"uuid": f"MIG-{instance}", "parent_uuid": f"GPU-{gpu}"}


def read_device(driver: LibCuda, index: int) -> dict[str, object]:
    """Return the fields of one device that need no context. A refused field does not prevent the others."""
    fields_read: dict[str, Any] = {"kind": "cuda", "cuda_index": index}
    unknown: dict[str, str] = {}
    try:
        device = driver.integer("cuDeviceGet", index)
    except QueryRefused as refused:
        return {"device": fields_read, "unknown": {"uuid": str(refused)}}

    def attribute(number: int) -> int:
        return driver.integer("cuDeviceGetAttribute", number, device)

    for name, read in (
        ("name", lambda: driver.text("cuDeviceGetName", device)),
        ("identity", lambda: identity(driver, device)),
        ("pci_address", lambda: driver.text("cuDeviceGetPCIBusId", device).lower()),
        ("compute_capability", lambda: fields.capability((attribute(MAJOR), attribute(MINOR)))),
        ("multiprocessors", lambda: attribute(MULTIPROCESSOR_COUNT)),
        ("memory_bus_width_bits", lambda: attribute(MEMORY_BUS_WIDTH) or None),
        ("integrated", lambda: bool(attribute(INTEGRATED))),
        ("memory_total_bytes", lambda: driver.integer("cuDeviceTotalMem_v2", device, c_type=ctypes.c_size_t)),
    ):
        try:
            value = read()
            parts = value if isinstance(value, dict) else {name: value}
            if not all(fields.is_plausible(part, answer) for part, answer in parts.items()):
                raise QueryRefused(f"{SENSELESS}: {str(value)[:40]!a}")
            fields_read |= parts
        except QueryRefused as refused:
            unknown["uuid" if name == "identity" else name] = str(refused)
        except ValueError as error:  # from fields.capability
            unknown[name] = f"{SENSELESS}: {error}"
    return {"device": fields_read, "unknown": unknown}


def main() -> int:
    say = claim_stdout()
    try:
        driver = LibCuda(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    except OSError as error:
        say({"driver": {"error": f"libcuda cannot be loaded ({error})"}})
        say({"end": True})
        return 0
    loaded: dict[str, object] = {"path": mapped_library("libcuda.so")}
    with contextlib.suppress(QueryRefused):
        version = driver.integer("cuDriverGetVersion")
        loaded["version"] = f"{version // 1000}.{version % 1000 // 10}"
    say({"driver": loaded})
    count = 0
    try:
        code = driver.code("cuInit", 0)
        say({"driver": {"code": code, "error": driver.error_text(code) if code else None}})
        if not code:
            count = driver.integer("cuDeviceGetCount")
            if not fields.whole(count, 0, fields.MOST_DEVICES):
                raise QueryRefused(f"{SENSELESS}: {count}")
    except QueryRefused as refused:
        say({"driver": {"error": str(refused)}})
    for index in range(count):
        say(read_device(driver, index))
    say({"end": True})
    return 0
