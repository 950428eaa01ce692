"""Sample one device's clocks, temperature, link and energy by NVML in a child, while the device is measured.

A thread of the child samples and stores the readings, so the measured process does not have to wake up. The child first
sends `{"sampling": true}` or `{"error": …}`. The answer to a request is a line for each sample since the last request,
a current sample, and the `end`. `measure/telemetry.py` is the parent's side.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any

from gpucheck.machine import nvml_fields as fields
from gpucheck.machine import nvml_read as read
from gpucheck.machine.child_stdio import claim_stdout, requests
from gpucheck.machine.nvml_fields import DeviceFields, QueryRefused, call

# NVML averages some readings over a second, and more than 20 readings a second disturb the measurement.
INTERVAL_S = 0.05
# Samples of ten minutes. A parent that has not asked in ten minutes does not need older samples.
MOST_SAMPLES = 12_000

_SAMPLED = ("sm_clock_hz", "memory_clock_hz", "temperature_celsius", "clock_reasons", "pcie/generation", "pcie/width")
FIELDS = tuple(field for field in fields.DETAILS if field.name in _SAMPLED)
_ONCE = ("max_sm_clock_hz", "pcie/max_width", "pcie/max_generation")
ONCE = (*(field for field in fields.DETAILS if field.name in _ONCE), fields.C2C)
# Reading the utilisation costs another call per sample, so it is optional.
BUSY = tuple(field for field in fields.DETAILS if field.name == "utilization_percent")
# The counter is in millijoules since the driver was loaded (Volta and later).
ENERGY = fields.Field("energy_j", ("nvmlDeviceGetTotalEnergyConsumption",), (), lambda millijoules: millijoules / 1e3)
NOT_OF_INSTANCES = "counted for the whole GPU, not for its MIG instances"


class Sampler:
    def __init__(self, pynvml: Any, handle: Any, *, is_instance: bool = False, busy: bool = False) -> None:
        self._pynvml, self._handle = pynvml, handle
        # NVML reads the whole GPU. A MIG instance has the same clocks, temperature and link, but not the same energy.
        self._fields = (*FIELDS, *(() if is_instance else (ENERGY,)), fields.VIOLATIONS, *(BUSY if busy else ()))
        self._unknown = {ENERGY.name: NOT_OF_INSTANCES} if is_instance else {}
        self._lock = threading.Lock()
        self._samples: list[dict[str, Any]] = []
        self._once = DeviceFields()
        self._once.read(pynvml, handle, ONCE)

    def run(self) -> None:
        while True:
            began_s = time.perf_counter()
            self.keep()
            time.sleep(max(INTERVAL_S - (time.perf_counter() - began_s), INTERVAL_S / 5))

    def keep(self) -> None:
        sample = self.sample()
        with self._lock:
            self._samples.append(sample)
            del self._samples[:-MOST_SAMPLES]

    def sample(self) -> dict[str, Any]:
        """Return one reading. Its time `at_s` is the middle of the calls, on the clock of `Accel.host_now`."""
        began_s = time.perf_counter()
        row = DeviceFields()
        row.read(self._pynvml, self._handle, self._fields)
        link = {**row.device.get("pcie", {}), **self._once.device.get("pcie", {})}
        at_s = (began_s + time.perf_counter()) / 2
        once = {name: self._once.device.get(name) for name in ("max_sm_clock_hz", fields.C2C.name)}
        unknown = {**self._once.unknown, **row.unknown, **self._unknown}
        return {**row.device, **once, "pcie": link, "at_s": at_s, "unknown": unknown}

    def take(self) -> list[dict[str, Any]]:
        with self._lock:
            samples, self._samples = self._samples, []
        return sorted(samples, key=lambda sample: float(sample["at_s"]))


def find(pynvml: Any, uuid: str) -> tuple[Any, bool]:
    """Return the handle of the device with this UUID, and whether it is a MIG instance. Raises QueryRefused."""
    listed = read.identify(pynvml, read.count(pynvml))
    gpus = [(row.device.get("uuid"), handle) for row, handle in listed if handle is not None]
    for gpu_uuid, handle in gpus:
        if gpu_uuid == uuid:
            return handle, False
    for _, handle in gpus:
        with contextlib.suppress(QueryRefused):  # the GPU does not support MIG
            if any(call(pynvml, "nvmlDeviceGetUUID", instance) == uuid for instance in read.instances(pynvml, handle)):
                return handle, True
    raise QueryRefused(f"NVML lists no device {uuid}")


def main() -> int:
    """Sample the device with the UUID in the first argument, until stdin ends. The argument `busy` adds utilisation."""
    say = claim_stdout()
    try:
        import pynvml

        started = read.start(pynvml)
        if started["code"]:
            raise QueryRefused(str(started["error"]))
        handle, is_instance = find(pynvml, sys.argv[1])
        sampler = Sampler(pynvml, handle, is_instance=is_instance, busy="busy" in sys.argv[2:])
    except (ImportError, QueryRefused) as error:
        say({"error": error.reason if isinstance(error, QueryRefused) else read.NOT_INSTALLED, "end": True})
        return 0
    # The thread is a daemon, because a call into a wedged driver must not keep the process alive.
    threading.Thread(target=sampler.run, daemon=True).start()
    say({"sampling": True, "end": True})
    for _ in requests():
        # A measured interval needs a reading of the counters at its end. The thread's last sample may be older.
        sampler.keep()
        for sample in sampler.take():
            say(sample)
        say({"end": True})
    return 0
