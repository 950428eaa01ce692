"""What the children say that read NVML and libcuda: the parent's side of their lines, and the data that comes of it."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpucheck.machine import host
from gpucheck.machine.child import ChildEnded, LineChild, python_argv
from gpucheck.machine.nvml_fields import LINKS
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device

# A driver that keeps its cards ready answers well within this.
ANSWER_S = 5.0
# One that does not (no persistence mode, nobody at work) first brings each up, in turn: 1 to 3 s a card, says NVIDIA
# (docs.nvidia.com/deploy/driver-persistence, November 2026).
START_OF_A_CARD_S = 3.0


def door_timeout_s(root: Path = host.ROOT) -> float:
    """How long a healthy driver may take to answer, by the cards that it has nodes for."""
    cards = [node for node in host.nvidia_device_nodes(root) if node[-1].isdigit()]
    return ANSWER_S + START_OF_A_CARD_S * len(cards)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device as one door sees it. `unknown` maps a field, `group/field` or `*` (all else) to why it is not told."""

    device: Device
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """What NVML told. `code` is nvmlInit's answer, 0 for success; `error` is why there is nothing, or not all."""

    code: int | None = None
    error: str | None = None
    start_s: float | None = None
    path: str | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    confidential_computing: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    devices: tuple[DeviceReading, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaReading:
    """What libcuda told. `code` is cuInit's answer, 0 for success; `error` is why there is nothing, or not all."""

    code: int | None = None
    error: str | None = None
    start_s: float | None = None
    path: str | None = None
    version: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    devices: tuple[DeviceReading, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """The lines of one answer, and why there are no more; None where the answer is whole."""

    lines: tuple[dict[str, Any], ...]
    broken: str | None = None


def hear(child: LineChild, asked: float, timeout_s: float, who: str) -> Heard:
    """The child's lines up to its `end`, until `timeout_s` after `asked` on the monotonic clock.

    A child that is late is killed: it would be out of step at the next question.
    """
    lines: list[dict[str, Any]] = []
    deadline = asked + timeout_s
    try:
        while (text := child.receive(deadline - time.monotonic())) is not None:
            line = _parsed(text)
            if line.get("end"):
                return Heard(tuple(lines))
            if line:
                lines.append(line)
    except ChildEnded as ended:
        return Heard(tuple(lines), f"the process that asks {who} ended early ({_how(ended)})")
    gone = "" if child.kill() else ", and its process could not be ended"
    return Heard(tuple(lines), f"{who} did not answer within {timeout_s:g} s{gone}")


def _parsed(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:  # a line cut off by the child's death
        return {}
    return line if isinstance(line, dict) else {}


def _how(ended: ChildEnded) -> str:
    code = ended.returncode
    if code is None:
        return "and could not be reaped"
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    words = ended.stderr.strip().splitlines()
    return f"exit {code}" + (f": {words[-1]}" if words else "")


def _device(line: Mapping[str, Any]) -> DeviceReading:
    return DeviceReading(from_json(Device, line["device"]), dict(line.get("unknown") or {}))


def _known(driver: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: driver[name] for name in names if name in driver}


_SYSTEM = ("driver_version", "nvml_version", "cuda_version", "confidential_computing")


def nvml_reading(heard: Heard) -> NvmlReading:
    """NVML's answer put together. Devices whose line never came keep their identity and say why the rest is missing."""
    driver: dict[str, Any] = {}
    rows: list[DeviceReading] = []
    instances: list[DeviceReading] = []
    waiting: list[int] = []
    links_asked = False
    for line in heard.lines:
        if "driver" in line:
            driver, links_asked = line["driver"], bool(line.get("links"))
            rows = [_device(row) for row in line["devices"]]
            waiting = [place for place, row in enumerate(line["devices"]) if row["more"]]
        elif "place" in line:
            rows[line["place"]] = _device(line)
            waiting.remove(line["place"])
        elif "instance" in line:
            instances.append(_device(line))
        elif "links_of" in line:
            rows[line["links_of"]] = _with_links(rows[line["links_of"]], _device(line))
    if heard.broken:
        for number, place in enumerate(waiting):
            # Devices are read in order: the first that is missing is the one at which it stopped.
            rows[place] = _unread(rows[place], heard.broken, stopped_here=number == 0)
        if links_asked:
            rows = [_links_unread(row, heard.broken) for row in rows]
    return NvmlReading(
        **_known(driver, ("code", "start_s", "path", *_SYSTEM)),
        error=heard.broken or driver.get("error"),
        unknown=dict(driver.get("unknown") or {}),
        devices=(*rows, *instances),
    )


def _with_links(row: DeviceReading, links: DeviceReading) -> DeviceReading:
    told = {name: getattr(links.device, name) for name in LINKS}
    # A card that was lost between its two lines is lost.
    state = row.device.state or links.device.state
    unknown = {name: reason for name, reason in row.unknown.items() if name not in LINKS}
    return DeviceReading(replace(row.device, state=state, **told), {**unknown, **links.unknown})


def _links_unread(row: DeviceReading, broken: str) -> DeviceReading:
    if "*" in row.unknown:
        return row
    untold = [name for name in LINKS if getattr(row.device, name) is None and name not in row.unknown]
    return DeviceReading(row.device, {**row.unknown, **dict.fromkeys(untold, broken)})


def _unread(row: DeviceReading, broken: str, *, stopped_here: bool) -> DeviceReading:
    state = f"not answering: {broken}" if stopped_here else "not read: NVML stopped at another device"
    return DeviceReading(replace(row.device, state=row.device.state or state), {**row.unknown, "*": broken})


def cuda_reading(heard: Heard) -> CudaReading:
    """libcuda's answer put together."""
    driver: dict[str, Any] = {}
    for line in heard.lines:
        driver |= line.get("driver") or {}
    return CudaReading(
        **_known(driver, ("code", "start_s", "path", "version")),
        error=heard.broken or driver.get("error"),
        unknown=dict(driver.get("unknown") or {}),
        devices=tuple(_device(line) for line in heard.lines if "device" in line),
    )


class NvmlDoor:
    """A child that reads NVML as often as it is asked; a dead or wedged one is replaced at the next question.

    `ask` sends the question, `reading` waits for the answer: what the parent does in between costs no time.
    """

    def __init__(self, timeout_s: float | None = None, *, start: Callable[[], LineChild] | None = None) -> None:
        self._timeout_s = door_timeout_s() if timeout_s is None else timeout_s
        self._start = start or (lambda: LineChild(python_argv("gpucheck.machine.nvml")))
        self._child: LineChild | None = None
        self._asked = 0.0
        self._failed: str | None = None
        self.restarts = 0

    def ask(self, *, processes: bool = False, links: bool = False) -> None:
        """Put the question; a child is started where none is there."""
        self._asked = time.monotonic()
        try:
            if self._child is None:
                self._child = self._start()
            self._child.send(" ".join(("read", *["processes"] * processes, *["links"] * links)))
        except OSError as error:
            self._failed = f"the process that asks NVML cannot be started ({error.strerror or error})"
        except ChildEnded as ended:
            self._failed = f"the process that asks NVML ended early ({_how(ended)})"

    def reading(self) -> NvmlReading:
        """The answer to the last question."""
        failed, self._failed = self._failed, None
        if failed is not None or self._child is None:
            heard = Heard((), failed or "NVML was not asked")
        else:
            heard = hear(self._child, self._asked, self._timeout_s, "NVML")
        if heard.broken:
            self.close()
            self.restarts += 1
        return nvml_reading(heard)

    def close(self) -> None:
        """End the child. It holds nothing that needs an orderly end."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> NvmlDoor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CudaDoor:
    """A child that reads libcuda once. libcuda is asked anew only by a new process: cuInit's answer never changes."""

    def __init__(self, timeout_s: float | None = None, *, start: Callable[[], LineChild] | None = None) -> None:
        self._timeout_s = door_timeout_s() if timeout_s is None else timeout_s
        self._start = start or (lambda: LineChild(python_argv("gpucheck.machine.cuda_driver")))
        self._child: LineChild | None = None
        self._asked = 0.0
        self._failed = "libcuda was not asked"

    def ask(self) -> None:
        """Start the child; it needs no question."""
        self._asked = time.monotonic()
        try:
            self._child = self._start()
        except OSError as error:
            self._failed = f"the process that asks libcuda cannot be started ({error.strerror or error})"

    def reading(self, *, cards_are_up: bool = False) -> CudaReading:
        """The answer. `cards_are_up` is whether NVML has answered, and so holds the cards: none has to start now."""
        if self._child is None:
            return CudaReading(error=self._failed)
        limit_s = self._timeout_s
        if cards_are_up:
            limit_s = min(limit_s, math.ceil(time.monotonic() - self._asked + ANSWER_S))
        heard = hear(self._child, self._asked, limit_s, "libcuda")
        self.close()
        return cuda_reading(heard)

    def close(self) -> None:
        """End the child. It holds nothing that needs an orderly end."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> CudaDoor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
