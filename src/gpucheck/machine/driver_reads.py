"""The parent's side of the children that read NVML and libcuda."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from gpucheck.machine import host
from gpucheck.machine.child import LIBCUDA_READER, NVML_READER, LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Ending, How, Lost, Message, StartChild
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device

# A driver that keeps its GPUs ready answers well within this time.
ANSWER_S = 5.0
# Without persistence mode the driver first starts each unused GPU, which takes 1 to 3 s (NVIDIA, Driver Persistence).
GPU_START_S = 3.0
# NOT_ANSWERING begins the state of the GPU at which NVML hung or crashed. NOT_READ is the state of the GPUs after it.
NOT_ANSWERING = "not answering"
NOT_READ = "not read: NVML stopped at another device"


def nvml_timeout_s(root: Path = host.ROOT) -> float:
    """Return the time in which a healthy driver answers, by the number of GPUs."""
    nodes = [node for node in host.nvidia_device_nodes(root) if node[-1].isdigit()]
    gpus = [device for device in host.pci_devices(root) or () if device.is_gpu]
    return ANSWER_S + GPU_START_S * max(len(nodes), len(gpus))


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One library's report on one device.

    `unknown` maps each field without a value (`group/field`, or `*` for all others) to the reason. A later line of the
    child has the fields `lacks`.
    """

    device: Device
    unknown: dict[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverReading:
    """The report of NVML or libcuda. `code` is the result of nvmlInit or cuInit.

    `error` is the reason if readings are missing. `version` is from libcuda; the other three versions are from NVML.
    """

    code: int | None = None
    error: str | None = None
    start_s: float | None = None
    path: str | None = None
    version: str | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    devices: tuple[DeviceReading, ...] = ()


def nvml_reading(lines: Sequence[Message], broken: str | None = None, *, by_nvml: bool = True) -> DriverReading:
    """Return NVML's reading. `broken` is the reason if the lines are incomplete; `by_nvml`: NVML hung or crashed."""
    # If the last line of a device is missing, its identity is still known, and `broken` is the reason for the rest.
    driver: Message = {}
    rows: dict[int, DeviceReading] = {}
    instances: list[DeviceReading] = []
    at: int | None = None
    for line in lines:
        at = line.get("at", at)
        if "driver" in line:
            driver = line["driver"]
            for index in range(line.get("count", 0)):
                rows[index] = DeviceReading(Device(kind="cuda", nvml_index=index), lacks=("*",))
        elif "index" in line:
            rows[line["index"]] = from_json(DeviceReading, line)
        elif "instance" in line:
            instances.append(from_json(DeviceReading, line))
    for index, row in rows.items():
        if broken and row.lacks:
            state = f"{NOT_ANSWERING}: {broken}" if by_nvml and index == at else None
            if "*" in row.lacks:
                state = state or (NOT_READ if by_nvml else f"not read: {broken}")
            device = replace(row.device, state=row.device.state or state)
            rows[index] = DeviceReading(device, {**dict.fromkeys(row.lacks, broken), **row.unknown})
    reading = from_json(DriverReading, driver)
    devices = (*(replace(row, lacks=()) for row in rows.values()), *instances)
    return replace(reading, error=broken or reading.error, devices=devices)


class LibraryReader:
    """A child that reads one of NVIDIA's libraries. Between `ask` and `reading` the parent can do other work."""

    library, module = "", ""
    # The default request; None if the child starts without a request.
    request: Mapping[str, bool] | None = None

    def __init__(
        self,
        timeout_s: float | None = None,
        *,
        start: StartChild | None = None,
        waiting: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Prepare the reader. `waiting` is called with a sentence if NVML starts slowly."""
        self._timeout_s, self._waiting = timeout_s, waiting
        self._start = start or (lambda: LineChild(python_argv(self.module)))
        self._session: ChildSession | None = None
        self._asked_s = 0.0
        self._failed: str | None = f"{self.library} was not asked"
        self._how: How | None = None

    def ask(self, **options: bool) -> None:
        """Start the child if none runs, and send the request with these options."""
        self._asked_s, self._failed = time.monotonic(), None
        try:
            if self._session is None:
                self._session = ChildSession(self._start)
            if self.request is not None:
                self._session.send({**self.request, **options})
        except Lost as lost:
            self._failed = self._why(lost.ending)

    def _answer(
        self, limit_s: float, each_s: float = math.inf, slow: Callable[[], object] | None = None
    ) -> tuple[list[Message], str | None]:
        """Return the lines of the answer, and the reason if they are incomplete, else None.

        `each_s` limits the wait for each line after the first. `slow` is called if the first takes over `ANSWER_S`.
        """
        lines: list[Message] = []
        try:
            if self._failed is None and self._session is not None:
                for line in self._session.answer(limit_s, each_s=each_s, slow=(ANSWER_S, slow) if slow else None):
                    lines.append(line)
        except Lost as lost:
            self._failed = self._why(lost.ending)
        return lines, self._failed

    def _why(self, ending: Ending) -> str:
        self._how = ending.how
        if ending.how == "unstarted":
            return f"the process that asks {self.library} cannot be started ({ending.reason})"
        if ending.how == "late":
            return f"{self.library} did not answer within {ending.limit_s:g} s"
        words = f": {ending.last_words}" if ending.last_words else ""
        how = "it closed its output" if ending.how == "closed" else ending.signal or f"exit {ending.status}{words}"
        return f"the process that asks {self.library} ended early ({how})"

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None

    def __exit__(self, *_: object) -> None:
        self.close()


class NvmlReader(LibraryReader, AbstractContextManager["NvmlReader"]):
    """A child that reads NVML on each request. A dead or wedged child is replaced at the next request."""

    library, module, request = "NVML", NVML_READER, MappingProxyType({"processes": False, "links": False})

    def reading(self) -> DriverReading:
        limit_s = nvml_timeout_s() if self._timeout_s is None else self._timeout_s
        text = (
            f"NVML has not answered within {ANSWER_S:g} s; waiting up to {limit_s:g} s: without persistence mode the "
            "driver starts each GPU first"
        )
        slow = partial(self._waiting, text) if limit_s > ANSWER_S else None
        lines, broken = self._answer(limit_s, ANSWER_S + GPU_START_S, slow)
        if broken:
            self.close()
        return nvml_reading(lines, broken, by_nvml=self._how in ("late", "crashed"))


class CudaReader(LibraryReader, AbstractContextManager["CudaReader"]):
    """A child that reads libcuda once: cuInit's result never changes within a process."""

    library, module = "libcuda", LIBCUDA_READER

    def reading(self, *, are_gpus_up: bool = False) -> DriverReading:
        """Return libcuda's reading. `are_gpus_up`: NVML has answered and keeps the GPUs started."""
        limit_s = nvml_timeout_s() if self._timeout_s is None else self._timeout_s
        if are_gpus_up:
            limit_s = min(limit_s, math.ceil(time.monotonic() - self._asked_s + ANSWER_S))
        lines, broken = self._answer(limit_s)
        self.close()
        driver = {name: value for line in lines for name, value in (line.get("driver") or {}).items()}
        reading = from_json(DriverReading, driver)
        devices = tuple(from_json(DeviceReading, line) for line in lines if "device" in line)
        return replace(reading, error=broken or reading.error, devices=devices)
