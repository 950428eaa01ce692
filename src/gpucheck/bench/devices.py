"""What every benchmark does the same way: the devices one after another, each with its share of the time.

A device that fails is a fact among the rows: what it has measured is judged, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench import limits, occupied
from gpucheck.errors import GpucheckError, Terminated, UsageError
from gpucheck.machine import choose, faults, inventory, pulse
from gpucheck.machine.accel import Accel
from gpucheck.machine.others import held_bytes
from gpucheck.report.events import Emit, Finished, Judged, Measured, Notice, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault, not_run
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.thresholds import Limit

# The rows of a device as they are measured, until this time of `time.monotonic`.
Rows = Callable[[Accel, float], Iterator[Measurement]]
# What they come to, also where a signal cut them off.
Conclude = Callable[[Accel, Facts, Sequence[Measurement]], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Shared:
    """What every benchmark is given alike: the thresholds to judge by, and the machine where it was read before.

    `lost` gets the devices that this process cannot use any more, by torch's names, each with why; None where nobody
    else wants to know.
    """

    limits: tuple[Limit, ...] = ()
    facts: Facts | None = None
    lost: dict[str, Fault] | None = None


# Nothing is asked of the figures, and nobody has read the machine yet.
ALONE = Shared()


def begin(emit: Emit, facts: Facts, device_ids: Sequence[str], shared: Shared) -> None:
    """Say what is to be known before anything is measured: who else is there, and for whom no threshold counts."""
    for line in limits.by_other_names(shared.limits, facts, device_ids):
        emit(Notice(line, "warning"))
    for finding in occupied.judge(facts, device_ids):
        emit(Judged(finding))


def refs(ids: Sequence[str], facts: Facts) -> list[DeviceRef]:
    """The devices with these ids, as measurements name them."""
    known = {device.id: device for device in facts.devices}
    return [DeviceRef(one, known[one].uuid, known[one].name) if one in known else DeviceRef(one) for one in ids]


def each(
    device: str,
    emit: Emit,
    rows: Rows,
    conclude: Conclude,
    *,
    name: str = "",
    time_budget_s: float | None,
    default_s: Callable[[Accel], float],
    shared: Shared = ALONE,
) -> None:
    """Measure and judge the benchmark `name` on every device that `device` names, with one time budget for all.

    A device that fails is told, judged by what it has measured, and does not cost the others their rows. Ctrl-C is
    raised on after what there is was judged, and so is a bug. Raises UsageError, and after all else the first
    CannotLook.
    """
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    chosen = choose.choose(device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))

    if shared.facts is None:
        begin(emit, facts, chosen.ids, shared)
    run = _Run(name, emit, facts, rows, conclude, shared.limits, {} if shared.lost is None else shared.lost)
    run.in_use = {device.id for device in facts.devices if held_bytes(device) is not None}
    for place, device_id in enumerate(chosen.ids):

        def deadline(accel: Accel, place: int = place) -> float:
            left_s = (time_budget_s or default_s(accel) * len(chosen.ids)) - (time.monotonic() - began)
            return time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)

        run.device(device_id, deadline)
        emit(Finished(f"{name} on {device_id}"))
    if run.unseen:
        raise run.unseen[0]


@dataclass(slots=True)
class _Run:
    """One benchmark on the devices that were asked for."""

    name: str
    emit: Emit
    facts: Facts
    rows: Rows
    conclude: Conclude
    limits: Sequence[Limit]
    lost: dict[str, Fault]
    in_use: set[str | None] = field(default_factory=set)
    unseen: list[GpucheckError] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The command, as a user types it."""
        return f"bench {self.name}".strip()

    def device(self, device_id: str, deadline: Callable[[Accel], float]) -> None:
        """Measure and judge on one device, whatever becomes of it. Raises what is no device's."""
        if device_id in self.lost:
            self._skip(device_id, self.lost[device_id])
            return
        accel: Accel | None = None
        measured: list[Measurement] = []
        try:
            with pulse.opening(device_id, self.where):
                accel = choose.open_named(device_id, self.facts)
            with pulse.watching(accel, self.where, lambda: self._judge_part(device_id, accel, measured)):
                self._measure(accel, deadline(accel), measured, shared=device_id in self.in_use)
        except (KeyboardInterrupt, Terminated):
            if accel is not None and measured:
                self._judge(accel, measured, complete=False)
            raise
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (torch and its driver raise anything: it is told, or raised on)
            self._judge_part(device_id, accel, measured)
            self._broken_off(error, device_id, accel)
        else:
            self._judge(accel, measured, complete=True)

    def _measure(self, accel: Accel, deadline: float, measured: list[Measurement], *, shared: bool) -> None:
        with accel.as_current():
            for one in self.rows(accel, deadline):
                row = replace(one, flags=(*one.flags, occupied.FLAG)) if shared else one
                self.emit(Measured(row))
                measured.append(row)
        accel.empty_cache()

    def _judge(self, accel: Accel, measured: Sequence[Measurement], *, complete: bool) -> None:
        found = list(self.conclude(accel, self.facts, measured))
        for finding in limits.judge(found, measured, self.limits, accel.ref, complete=complete):
            self.emit(Judged(finding))

    def _judge_part(self, device_id: str, accel: Accel | None, measured: Sequence[Measurement]) -> None:
        """What the rows before a fault come to; of none, that no threshold is known to be met."""
        if accel is not None and measured:
            self._judge(accel, measured, complete=False)
            return
        (ref,) = refs([device_id], self.facts) if accel is None else (accel.ref,)
        for finding in limits.judge((), (), self.limits, ref, complete=False):
            self.emit(Judged(finding))

    def _broken_off(self, error: Exception, device_id: str, accel: Accel | None) -> None:
        """Tell what was raised. What is no fault of a device's and no want of memory is raised on."""
        if isinstance(error, GpucheckError) and not faults.is_device(error):
            self.unseen.append(error)
            return
        fault = faults.of(error, self.where, device_id, step=pulse.step())
        before = next((one for one in self.lost.values() if one.poisons), None)
        if fault.kind == "device" and before is not None:
            # What follows from a process that CUDA gave up is no fault of this device's.
            self.lost[device_id] = before
            self.emit(Judged(not_run(self.name, f"{device_id} in {self.where}", before)))
            return
        faults.tell(fault, self.emit)
        if fault.kind == "error":
            raise error
        if fault.kind == "device" and (fault.poisons or accel is None or self._is_silent(accel)):
            self.lost[device_id] = fault

    def _is_silent(self, accel: Accel) -> bool:
        with pulse.watching(accel, self.where):
            return accel.why_broken() is not None

    def _skip(self, device_id: str, fault: Fault) -> None:
        self.emit(Judged(not_run(self.name, f"{device_id} in {self.where}", fault)))
        self._judge_part(device_id, None, ())
