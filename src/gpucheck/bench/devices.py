"""The common part of all benchmarks: the devices one after another, each with its share of the time.

A device that fails is a fact among the rows: it does not cost the others theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench import limits, remarks
from gpucheck.errors import CannotLook, GpucheckError, Terminated, UsageError
from gpucheck.machine import choose, faults, inventory, kept, pulse
from gpucheck.machine.accel import Accel
from gpucheck.machine.host import held_bytes
from gpucheck.report.events import Began, Emit, Failed, Finished, Measured, Notice, Opened, Planned, Skipped, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault, not_run
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.thresholds import Limit

# What the next row may take, by the one before: a larger size or another operation takes longer.
AS_LONG = 2.0

# The rows of a device as they are measured, until this time of `time.monotonic`.
Rows = Callable[[Accel, float], Iterator[Measurement]]


@dataclass(frozen=True, slots=True)
class Shared:
    """The input that all benchmarks share: the thresholds that are set, and the machine where it was read before.

    `lost` gets the devices that this process cannot use any more, by torch's names, each with why; None where nobody
    else wants to know. `until_s` is when the benchmark has to be over, by `time.monotonic`; None: its own budget says.
    `is_planned` tells that what will be measured was said before.
    """

    limits: tuple[Limit, ...] = ()
    facts: Facts | None = None
    lost: dict[str, Fault] | None = None
    until_s: float | None = None
    is_planned: bool = False


# Nothing is asked of the figures, and nobody has read the machine yet.
ALONE = Shared()


def begin(emit: Emit, facts: Facts, names: Sequence[str], device_ids: Sequence[str], shared: Shared) -> None:
    """Say what will be measured where, and for whom no threshold counts."""
    for line in limits.by_other_names(shared.limits, facts, device_ids):
        emit(Notice(line, "warning"))
    emit(Planned(tuple(names), tuple(device_ids)))


def each(
    device: str,
    emit: Emit,
    rows: Rows,
    *,
    name: str,
    time_budget_s: float | None,
    default_s: Callable[[Accel], float],
    shared: Shared = ALONE,
    on_cpu: CannotLook | None = None,
) -> list[str]:
    """Measure the benchmark `name` on every device that `device` names, with one time budget for all.

    Returns the devices that were measured to the end. One that fails is told, and does not cost the others their rows;
    a bug of ours and Ctrl-C are raised on. Raises UsageError, `on_cpu` (where it is given) for the CPU, and after all
    else the first CannotLook.
    """
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    chosen = choose.choose(device, facts)
    if on_cpu is not None and chosen.ids == ("cpu",):
        raise on_cpu
    if chosen.notice:
        emit(Notice(chosen.notice))

    if not shared.is_planned:
        begin(emit, facts, [name], chosen.ids, shared)
    run = _Run(name, emit, facts, rows, {} if shared.lost is None else shared.lost)
    run.in_use = {device.id for device in facts.devices if held_bytes(device) is not None}
    for place, device_id in enumerate(chosen.ids):

        def times(accel: Accel, place: int = place) -> tuple[float, float]:
            budget_s = time_budget_s or default_s(accel) * len(chosen.ids)
            left_s = budget_s - (time.monotonic() - began)
            deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
            until_s = pulse.ends_by(budget_s, began) if shared.until_s is None else shared.until_s
            return min(deadline, until_s), until_s

        if device_id not in run.lost:
            run.device(device_id, times)
    if run.unseen:
        raise run.unseen[0]
    return run.measured


def share_until(deadline: float, weights: Sequence[float]) -> float:
    """When the first of what is left, with these weights, has had its share of the time until `deadline`."""
    now_s = time.monotonic()
    return now_s + max(deadline - now_s, 0.0) * weights[0] / sum(weights)


@dataclass(slots=True)
class _Run:
    """One benchmark on the devices that were asked for."""

    name: str
    emit: Emit
    facts: Facts
    rows: Rows
    lost: dict[str, Fault]
    in_use: set[str | None] = field(default_factory=set)
    unseen: list[GpucheckError] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The command, as a user types it."""
        return f"bench {self.name}"

    def device(self, device_id: str, times: Callable[[Accel], tuple[float, float]]) -> None:
        """Measure on one device, whatever becomes of it. Raises what is no device's.

        `times` gives when its rows should be measured, and when they have to be over.
        """
        self.emit(Began(self.name, device_id))
        accel: Accel | None = None
        why = "fault"
        try:
            with pulse.opening(device_id, self.where):
                accel = choose.open_named(device_id, self.facts)
            self.emit(Opened(told(accel)))
            with pulse.watching(accel, self.where):
                in_time = self._measure(accel, *times(accel), shared=device_id in self.in_use)
            self.measured.append(device_id)
            why = "" if in_time else "time"
        except pulse.OutOfTime:
            self.emit(Skipped(out_of_time(self.name, "not measured", device_id)))
            why = "time"
        except (KeyboardInterrupt, Terminated, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 (torch and its driver raise anything: it is told, or raised on)
            self._broken_off(error, device_id, accel)
            self._settle_after(error, device_id, accel)
        self.emit(Finished(self.name, device_id, why))

    def _settle_after(self, error: Exception, device_id: str, accel: Accel | None) -> None:
        """Let go of what an error holds, unless the device went with it."""
        if accel is None or device_id in self.lost:
            return
        try:
            with pulse.watching(accel, self.where):
                kept.settle(accel, error=error)
        except RuntimeError as later:  # what was told was only the first sign of it
            self._broken_off(later, device_id, accel)

    def _measure(self, accel: Accel, deadline: float, until_s: float, *, shared: bool) -> bool:
        """Measure every row; False where there was no time for all of them.

        On a busy machine each takes longer than its share: none begins that may end late, the first apart.
        """
        left_out, together, begun_s = "not measured", 0, time.monotonic()
        in_time = True
        with accel.as_current():
            kept.begin(accel)
            try:
                for one in self.rows(accel, deadline):
                    self.emit(Measured(replace(one, flags=(*one.flags, remarks.SHARED)) if shared else one))
                    left_out = "some rows were not measured"
                    # Rows that were timed in turn are told together.
                    together = together - 1 if together else len(one.method.details.get("in_turn_with", ()))
                    now_s = time.monotonic()
                    needs_s = AS_LONG * (now_s - begun_s)
                    pulse.PULSE.late = not together and now_s >= deadline and now_s + needs_s >= until_s
                    begun_s = begun_s if together else now_s
            except pulse.OutOfTime:
                in_time = False
            finally:
                pulse.PULSE.late = False
        kept.settle(accel)
        accel.empty_cache()
        if not in_time:
            self.emit(Skipped(out_of_time(self.name, left_out, accel.id)))
        return in_time

    def _broken_off(self, error: Exception, device_id: str, accel: Accel | None) -> None:
        """Tell what was raised. A bug of ours is raised on: no device's or library's failure, and no want of memory."""
        if isinstance(error, GpucheckError) and not faults.is_device(error):
            self.unseen.append(error)
            return
        fault = faults.of(error, self.where, device_id, step=pulse.step())
        before = next((one for one in self.lost.values() if one.poisons), None)
        if fault.kind == "device" and before is not None:
            # What follows from a process that CUDA gave up is no fault of this device's.
            self.lost[device_id] = before
            skipped = not_run(self.name, f"{device_id} in {self.where}", before)
            self.emit(Skipped(replace(skipped, device=device_id)))
            return
        self.emit(Failed(fault))
        if fault.kind == "error" and not faults.is_of_library(error):
            raise error
        if fault.kind == "device" and (fault.poisons or accel is None or self._is_silent(accel)):
            self.lost[device_id] = fault

    def _is_silent(self, accel: Accel) -> bool:
        with pulse.watching(accel, self.where):
            return accel.why_broken() is not None


def out_of_time(name: str, what: str, device: str | None = None) -> Finding:
    """Return what a benchmark had no time for."""
    return Finding(f"{name}.time", "skip", what, "out of time", fix="use a longer --time-budget", device=device)


def told(accel: Accel) -> Device:
    """Return what torch tells of a device that it opened, as the facts have it."""
    major_minor = accel.compute_capability
    return Device(
        kind=accel.kind,
        id=accel.id,
        name=accel.name,
        uuid=accel.uuid,
        compute_capability=None if major_minor is None else ".".join(map(str, major_minor)),
        multiprocessors=accel.multiprocessors,
        memory_bus_width_bits=accel.memory_bus_width_bits,
        max_sm_clock_hz=accel.max_clock_hz,
        max_memory_clock_hz=accel.max_memory_clock_hz,
    )
