"""Read clocks, temperature, power and link during a measurement, and the counters of clock limits before and after it.
Read the cores and the device memory that other processes use."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import psutil

from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Ending, Lost
from gpucheck.machine.driver_reads import nvml_timeout_s
from gpucheck.report.facts import Device
from gpucheck.report.measurement import Run
from gpucheck.units import MIB

TAKE_TIMEOUT_S = 1.0
# The driver updates the energy counter about ten times a second. A mean over two seconds is accurate to a few percent.
ENERGY_SPAN_S = 2.0

# With these reasons, the driver lowers the clock to protect the device. Source: nvml.h.
THROTTLED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# nvml.h: this reason "may be also reported during PState or clock change", so a single reading proves nothing.
BRIEF_REASON = "hw_slowdown"
# This reason is normal at full load.
POWER_LIMITED = ("sw_power_cap",)
# A clock setting counts only if the clock is below this share of its maximum.
HELD = ("applications_clocks_setting", "sync_boost", "display_clock_setting")
HELD_BELOW = 0.98
# The counters in nvml.h of the time for which a cause lowered the clock.
THROTTLED_VIOLATIONS = ("thermal", "reliability")
POWER_VIOLATIONS = ("power", "board_limit")
# A cause that lowered the clock for a smaller share of the time does not affect a measurement. The driver counts in
# steps of a tenth of a second, with a delay, so a single step may belong to earlier work.
LEAST_VIOLATION_SHARE, VIOLATION_STEP_S = 0.01, 0.1

Sample = dict[str, Any]


class Watch(AbstractContextManager["Watch"]):
    """A child process that samples one device. If the child fails, `reason` is the cause, and there are no readings."""

    def __init__(self, uuid: str | None, *, start: Callable[[str], LineChild] | None = None) -> None:
        self.reason = "NVML is asked by UUID, and this device has none" if uuid is None else ""
        self._session: ChildSession | None = None
        self._last: Sample | None = None
        if uuid is None:
            return
        try:
            argv = python_argv("gpucheck.machine.nvml_sampler", uuid)
            self._session = ChildSession(lambda: LineChild(argv) if start is None else start(uuid))
            (answer,) = self._session.answer(nvml_timeout_s())
            if "error" in answer:
                self._fail(answer["error"])
        except Lost as lost:
            self._fail(_why(lost.ending, "NVML did not answer"))

    @property
    def pid(self) -> int | None:
        return self._session.pid if self._session is not None else None

    def take(self) -> list[Sample]:
        """Return the readings since the previous call."""
        samples: list[Sample] = []
        if self._session is None:
            return samples
        try:
            self._session.send({})
            for line in self._session.answer(TAKE_TIMEOUT_S, per_line=True):
                if "end" not in line:
                    samples.append(line)
                    self._last = line
        except Lost as lost:
            self._fail(_why(lost.ending, "NVML's samples did not come"))
        return samples

    def during(self, run: Run, lead_in: float = 0.0) -> tuple[dict[str, Any] | None, str]:
        """Summarise the readings since the previous call, and the last reading before that call, with `summarise`."""
        before = self._last
        samples = self.take()
        if self.reason:
            return None, self.reason
        return summarise([before, *samples] if before is not None else samples, run, lead_in)

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _fail(self, reason: str) -> None:
        self.reason = reason
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def summarise(samples: Sequence[Sample], run: Run, lead_in: float = 0.0) -> tuple[dict[str, Any] | None, str]:
    """Summarise the samples in windows, or up to `lead_in` window lengths before; without samples, return a reason."""
    windows = list(zip(run.started_monotonic_s, run.samples_s, strict=True))
    inside = [
        sample
        for sample in samples
        if any(start - lead_in * length <= sample["at_s"] <= start + length for start, length in windows)
    ]
    if not inside:
        return None, f"none of {len(samples)} readings fell inside a timed window"
    clocks = _values(inside, "sm_clock_hz")
    clock = {"median": statistics.median(clocks), "min": min(clocks), "max": max(clocks)} if clocks else None
    links = [sample.get("pcie") or {} for sample in inside]
    unknown = {name: reason for sample in inside for name, reason in sample.get("unknown", {}).items()}
    violations_s, span_s = _violations(samples, windows)
    if violations_s is None:
        unknown.setdefault("violations_s", "the counters were not read both before and after the row")
    return {
        "readings": len(inside),
        "sm_clock_hz": clock,
        "max_sm_clock_hz": _median(_values(inside, "max_sm_clock_hz")),
        "memory_clock_hz": _median(_values(inside, "memory_clock_hz")),
        "temperature_celsius": max(_values(inside, "temperature_celsius"), default=None),
        **({"power_w": watts} if (watts := power_w(inside)) is not None else {}),
        "clock_reasons": clock_reasons(inside),
        "violations_s": violations_s,
        "violations_span_s": span_s,
        "pcie": {
            name: statistics.mode(values) if (values := [link[name] for link in links if link.get(name)]) else None
            for name in ("generation", "width", "max_generation", "max_width")
        },
        # The rate of NVLink-C2C between the device and its CPU, in one direction.
        "c2c_bytes_per_s": _median(_values(inside, "c2c_bytes_per_s")),
        "unknown": unknown,
    }, ""


def power_w(inside: Sequence[Sample]) -> float | None:
    """Return the mean power over these samples; None if the device does not count energy, or the time is too short."""
    counted = [sample for sample in inside if sample.get("energy_j") is not None]
    span_s = counted[-1]["at_s"] - counted[0]["at_s"] if counted else 0.0
    joules = counted[-1]["energy_j"] - counted[0]["energy_j"] if counted else 0.0
    # A reloaded driver counts from 0.
    return float(joules / span_s) if span_s >= ENERGY_SPAN_S / 2 and joules > 0 else None


def clock_reasons(inside: Sequence[Sample]) -> list[str]:
    """Return the reasons for a lower clock in any reading. BRIEF_REASON counts only in two consecutive readings."""
    readings = [set((sample.get("clock_reasons") or {}).get("names", ())) for sample in inside]
    lasts = any(BRIEF_REASON in reading and BRIEF_REASON in later for reading, later in itertools.pairwise(readings))
    return sorted(set().union(*readings) - (set() if lasts else {BRIEF_REASON}))


def flags(telemetry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the flags of a row's clock reasons and counters: `throttled`, `power-limited`, `clock-held`."""
    if telemetry is None:
        return ()
    names = set(telemetry["clock_reasons"])
    seconds, span_s = telemetry.get("violations_s") or {}, telemetry.get("violations_span_s") or 0.0
    least_s = max(LEAST_VIOLATION_SHARE * span_s, 1.5 * VIOLATION_STEP_S)
    violations = {name for name, value in seconds.items() if value is not None and value > least_s}
    clock, max_hz = telemetry.get("sm_clock_hz"), telemetry.get("max_sm_clock_hz")
    share = clock["median"] / max_hz if clock and max_hz else None
    is_below = share is not None and share < HELD_BELOW
    # If the clock was at its maximum in this row, the power counters belong to other work.
    is_limited = bool(violations & set(POWER_VIOLATIONS)) and (share is None or is_below)
    raised = {
        "throttled": bool(names & set(THROTTLED) or violations & set(THROTTLED_VIOLATIONS)),
        "power-limited": bool(names & set(POWER_LIMITED)) or is_limited,
        "clock-held": bool(names & set(HELD)) and is_below,
    }
    return tuple(flag for flag, is_raised in raised.items() if is_raised)


def _violations(
    samples: Sequence[Sample], windows: Sequence[tuple[float, float]]
) -> tuple[dict[str, float | None] | None, float | None]:
    """Return the seconds for which each cause lowered the clock, and the time between the readings around the run."""
    first, last = windows[0][0], windows[-1][0] + windows[-1][1]
    counted = [sample for sample in samples if sample.get("violations_s") is not None]
    start = next((sample for sample in reversed(counted) if sample["at_s"] <= first), None)
    end = next((sample for sample in counted if sample["at_s"] >= last), None)
    if start is None or end is None:
        return None, None
    span_s = end["at_s"] - start["at_s"]
    pairs = {name: (began, end["violations_s"].get(name)) for name, began in start["violations_s"].items()}
    # A reloaded driver counts from 0.
    return {
        name: None if began is None or ended is None or ended < began else min(ended - began, span_s)
        for name, (began, ended) in pairs.items()
    }, span_s


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    return [sample[name] for sample in samples if sample.get(name) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _why(ending: Ending, late: str) -> str:
    """Return the reason for missing readings. `late` is the reason if the child did not answer in time."""
    if ending.how == "unstarted":
        return f"the process that samples NVML cannot be started ({ending.reason})"
    if ending.how == "late":
        return f"{late} within {ending.limit_s:g} s"
    return "the process that samples NVML ended early"


# -- cores and device memory that other processes use ------------------------------------------------------------------

# The kernel samples each core once per tick, so an interval below a tenth of a second has too few samples.
TICK_S, SHORTEST_S = 10e-3, 0.1
# An idle GPU without a visible process may use this much memory. The context of a working process takes about as much.
IDLE_BYTES = 512 * MIB
# NVML's older call counts the driver's reserved memory as used: about 1 % of the GPU's memory, and more with ECC.
RESERVED_SHARE = 0.02


class ProcessorTime(NamedTuple):
    """The processor time until `at_s`, in seconds: of the whole machine, and of this process with its children."""

    at_s: float
    machine_s: float
    own_s: float


def processor_time(child_pid: int | None = None) -> ProcessorTime:
    """Read the counters. The kernel adds only the time of ended children, so this adds the time of `child_pid`."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    # The kernel also counts a guest's time in user and nice.
    machine_s = sum(machine) - sum(getattr(machine, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    own_s = own.user + own.system + getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
    if child_pid is not None:
        with suppress(psutil.Error):  # the child may have ended
            times = psutil.Process(child_pid).cpu_times()
            own_s += times.user + times.system
    return ProcessorTime(time.monotonic(), machine_s, own_s)


class OtherProcesses(NamedTuple):
    """The mean number of cores that other processes used in `span_s` seconds; None if the time was too short."""

    cores: float | None
    span_s: float


def others(before: ProcessorTime, after: ProcessorTime) -> OtherProcesses:
    span_s = after.at_s - before.at_s
    used_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return OtherProcesses(None if span_s < SHORTEST_S else max(0.0, used_s) / span_s, span_s)


def is_busy(used: OtherProcesses, threads: int, cores: int | None) -> bool:
    """Return whether other processes left fewer cores than this process has threads, beyond the measuring error."""
    # The kernel counts a process's time exactly, and samples the machine's time by ticks. The allowed error is the
    # largest possible standard deviation plus a tenth of a core.
    if used.cores is None or cores is None:
        return False
    error = 0.1 + min(threads, cores) * math.sqrt(TICK_S / max(used.span_s, SHORTEST_S)) / 2
    return used.cores > max(cores - threads, 0) + error


def held_bytes(device: Device) -> int | None:
    """Return the bytes of device memory that others use; None if unknown, or if an idle GPU shows as much."""
    used = device.memory_used_bytes
    # Memory shared by host and device is used by every process of the machine.
    if used is None or device.kind == "cpu" or device.integrated:
        return None
    share = RESERVED_SHARE if device.memory_reserved_bytes is None else 0
    return used if used > IDLE_BYTES + share * (device.memory_total_bytes or 0) else None
