"""One device's clocks, temperature, link and energy, sampled by NVML in a child while something runs on the device.

The child samples in a thread and keeps the readings: the measured process is not woken. It is started with the device's
UUID and says one line, `{"sampling": true}` or `{"error": …}`. The answer to a request is a line for each sample since
the last request, then a sample of the present, and the `end`. `measure/telemetry.py` is the parent's side.
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
from gpucheck.machine.nvml_fields import Refused, Row, call

# NVML averages some readings over a second, and more than 20 readings a second disturb what they watch.
INTERVAL_S = 0.05
# Ten minutes of samples; a parent that reads none for that long needs none.
MOST_KEPT = 12_000

_SAMPLED = ("sm_clock_hz", "memory_clock_hz", "temperature_celsius", "clock_reasons", "pcie/generation", "pcie/width")
FIELDS = tuple(field for field in fields.DETAILS if field.name in _SAMPLED)
_ONCE = ("max_sm_clock_hz", "pcie/max_width", "pcie/max_generation")
ONCE = (*(field for field in fields.DETAILS if field.name in _ONCE), fields.C2C)
# The load of the device: it is read only if the second argument asks for it, since it costs a call for each sample.
BUSY = tuple(field for field in fields.DETAILS if field.name == "utilization_percent")
# The counter is in millijoules since the driver was loaded (Volta and later).
ENERGY = fields.Field("energy_j", ("nvmlDeviceGetTotalEnergyConsumption",), (), lambda millijoules: millijoules / 1e3)
# The reason why a MIG instance has no energy.
OF_CARD = "counted for the whole GPU, not for its MIG instances"


class Sampler:
    """Reads the device again and again in a thread."""

    def __init__(self, pynvml: Any, handle: Any, *, of_card: bool = False, busy: bool = False) -> None:
        self._pynvml, self._handle = pynvml, handle
        # Energy includes the other instances of the card; clock, heat and link are shared.
        self._fields = (*FIELDS, fields.VIOLATIONS) if of_card else (*FIELDS, ENERGY, fields.VIOLATIONS)
        self._fields += BUSY if busy else ()
        self._unknown = {ENERGY.name: OF_CARD} if of_card else {}
        self._lock = threading.Lock()
        self._kept: list[dict[str, Any]] = []
        self._once = Row()
        self._once.read(pynvml, handle, ONCE)

    def run(self) -> None:
        while True:
            began = time.perf_counter()
            self.keep()
            time.sleep(max(INTERVAL_S - (time.perf_counter() - began), INTERVAL_S / 5))

    def keep(self) -> None:
        sample = self.sample()
        with self._lock:
            self._kept.append(sample)
            del self._kept[:-MOST_KEPT]

    def sample(self) -> dict[str, Any]:
        """Take one reading; its time is the middle of the calls, on the clock of `Accel.host_now`."""
        began = time.perf_counter()
        row = Row()
        row.read(self._pynvml, self._handle, self._fields)
        link = {**row.device.get("pcie", {}), **self._once.device.get("pcie", {})}
        at_s = (began + time.perf_counter()) / 2
        once = {name: self._once.device.get(name) for name in ("max_sm_clock_hz", fields.C2C.name)}
        unknown = {**self._once.unknown, **row.unknown, **self._unknown}
        return {**row.device, **once, "pcie": link, "at_s": at_s, "unknown": unknown}

    def take(self) -> list[dict[str, Any]]:
        with self._lock:
            taken, self._kept = self._kept, []
        return sorted(taken, key=lambda sample: float(sample["at_s"]))


def find(pynvml: Any, uuid: str) -> tuple[Any, bool]:
    """The handle of the device with this UUID, and whether it is the card of a MIG instance that has it.

    NVML gives these readings for whole cards only. Raises Refused where it lists no such device.
    """
    listed = read.identify(pynvml, read.count(pynvml))
    cards = [(row.device.get("uuid"), handle) for row, handle in listed if handle is not None]
    for known, handle in cards:
        if known == uuid:
            return handle, False
    for _, handle in cards:
        if uuid in _instances(pynvml, handle):
            return handle, True
    raise Refused(f"NVML lists no device {uuid}")


def _instances(pynvml: Any, handle: Any) -> list[str]:
    """The UUIDs of a card's MIG instances; none where NVML does not report any."""
    uuids = []
    with contextlib.suppress(Refused):  # a card that has no such mode
        for instance in read.instances(pynvml, handle):
            uuids.append(call(pynvml, "nvmlDeviceGetUUID", instance))
    return uuids


def main() -> int:
    """Sample the device whose UUID is the first argument, until stdin ends; with a second, `busy`, its load too."""
    say = claim_stdout()
    try:
        import pynvml
    except ImportError:
        say({"error": read.NOT_INSTALLED, "end": True})
        return 0
    try:
        started = read.start(pynvml)
        if started["code"]:
            raise Refused(str(started["error"]))
        handle, of_card = find(pynvml, sys.argv[1])
        sampler = Sampler(pynvml, handle, of_card=of_card, busy="busy" in sys.argv[2:])
    except Refused as refused:
        say({"error": refused.reason, "end": True})
        return 0
    # A daemon: a call into a wedged driver must not keep the process.
    threading.Thread(target=sampler.run, daemon=True).start()
    say({"sampling": True, "end": True})
    for _ in requests():
        # Counters are read before and after a row: what the thread read last may be older than its interval.
        sampler.keep()
        for sample in sampler.take():
            say(sample)
        say({"end": True})
    return 0
