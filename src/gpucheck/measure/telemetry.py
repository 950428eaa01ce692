"""Clocks, heat, power and link beside a measurement. Only what was read inside a timed window counts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpucheck.machine.child import ChildEnded, LineChild, python_argv
from gpucheck.report.measurement import Run

# NVML may wake a card first; a child that says nothing for so long is wedged.
START_TIMEOUT_S = 5.0
TAKE_TIMEOUT_S = 1.0
# The energy counter is renewed some ten times a second: over two seconds that is a few percent.
ENERGY_SPAN_S = 2.0

# nvml.h: the clock is lower than asked for, to protect the device.
THROTTLED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# Normal at full load.
POWER_LIMITED = ("sw_power_cap",)

Sample = dict[str, Any]


class Watch:
    """A child that samples one device. Where it cannot, `reason` says why and every answer is None."""

    def __init__(self, uuid: str | None, *, start: Callable[[str], LineChild] | None = None) -> None:
        self.reason = ""
        self._child: LineChild | None = None
        if uuid is None:
            self.reason = "NVML is asked by UUID, and this device has none"
            return
        try:
            self._child = (start or _start)(uuid)
            said = _line(self._child, START_TIMEOUT_S)
        except OSError as error:
            self._fail(f"the process that samples NVML cannot be started ({error.strerror or error})")
        except ChildEnded:
            self._fail("the process that samples NVML ended early")
        else:
            if not said.get("sampling"):
                self._fail(str(said.get("error") or f"NVML did not answer within {START_TIMEOUT_S:g} s"))

    def take(self) -> list[Sample]:
        """What was read since the last time."""
        samples: list[Sample] = []
        if self._child is None:
            return samples
        try:
            self._child.send("take")
            while line := _line(self._child, TAKE_TIMEOUT_S):
                if line.get("end"):
                    return samples
                samples.append(line)
            self._fail(f"NVML's samples did not come within {TAKE_TIMEOUT_S:g} s")
        except ChildEnded:
            self._fail("the process that samples NVML ended early")
        return samples

    def during(self, run: Run) -> tuple[dict[str, Any] | None, str]:
        """What was read inside the run's windows, in few figures; else None and why."""
        samples = self.take()
        if self.reason:
            return None, self.reason
        return summarise(samples, run)

    def close(self) -> None:
        """End the child; it holds nothing that needs an orderly end."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _fail(self, reason: str) -> None:
        self.reason = reason
        self.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def summarise(samples: Sequence[Sample], run: Run) -> tuple[dict[str, Any] | None, str]:
    """The samples that lie inside a window of the run; None and why where there is none."""
    windows = list(zip(run.started_monotonic_s, run.samples_s, strict=True))
    inside = [one for one in samples if any(start <= one["at_s"] <= start + length for start, length in windows)]
    if not inside:
        return None, f"none of {len(samples)} readings fell inside a timed window"
    clocks = _values(inside, "sm_clock_hz")
    links = [one.get("pcie") or {} for one in inside]
    power_w, power_reason = _power(samples, windows)
    told = {
        "readings": len(inside),
        "sm_clock_hz": {"median": statistics.median(clocks), "min": min(clocks), "max": max(clocks)}
        if clocks
        else None,
        "memory_clock_hz": _median(_values(inside, "memory_clock_hz")),
        "temperature_celsius": max(_values(inside, "temperature_celsius"), default=None),
        "power_w": power_w,
        "clock_reasons": sorted({name for one in inside for name in (one.get("clock_reasons") or {}).get("names", ())}),
        "pcie": {
            name: statistics.mode(found) if (found := [link[name] for link in links if link.get(name)]) else None
            for name in (
                "generation",
                "width",
                "max_generation",
                "max_width",
                "device_max_generation",
                "device_max_width",
            )
        },
        # NVLink-C2C to the device's own CPU, in one direction; None where NVML tells of none.
        "c2c_bytes_per_s": _median(_values(inside, "c2c_bytes_per_s")),
    }
    unknown = {name: reason for one in inside for name, reason in one.get("unknown", {}).items()}
    unknown |= {"power_w": power_reason} if power_reason else {}
    return {**told, "unknown": unknown}, ""


def flags(telemetry: dict[str, Any] | None) -> tuple[str, ...]:
    """`throttled` and `power-limited`, from why the clock was held."""
    names = set(telemetry["clock_reasons"]) if telemetry else set()
    return tuple(
        flag for flag, reasons in (("throttled", THROTTLED), ("power-limited", POWER_LIMITED)) if names & set(reasons)
    )


def _power(samples: Sequence[Sample], windows: Sequence[tuple[float, float]]) -> tuple[float | None, str]:
    """Mean power from the energy counter over the whole row; None where it is too short or the counter is not there."""
    first, last = windows[0][0], windows[-1][0] + windows[-1][1]
    counted = [one for one in samples if first <= one["at_s"] <= last and one.get("energy_j") is not None]
    if not counted:
        return None, "the energy counter was not read"
    span_s = counted[-1]["at_s"] - counted[0]["at_s"]
    if span_s < ENERGY_SPAN_S:
        return None, f"the row is shorter than the {ENERGY_SPAN_S:g} s over which energy is counted"
    return (counted[-1]["energy_j"] - counted[0]["energy_j"]) / span_s, ""


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    return [one[name] for one in samples if one.get(name) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _start(uuid: str) -> LineChild:
    return LineChild(python_argv("gpucheck.machine.nvml_sampler", uuid))


def _line(child: LineChild, timeout_s: float) -> dict[str, Any]:
    """The child's next line; empty where none came in time or it is none of ours."""
    text = child.receive(timeout_s)
    try:
        line = json.loads(text or "{}")
    except ValueError:  # cut off by the child's death
        return {}
    return line if isinstance(line, dict) else {}
