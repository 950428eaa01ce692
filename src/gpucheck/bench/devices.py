"""The common part of all benchmarks: the loop over the devices, the division of the time, and `--runs`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucheck import errors
from gpucheck.bench import judge, judging
from gpucheck.config import Limit
from gpucheck.errors import CannotLook, GpucheckError, Terminated, Undecided, UsageError
from gpucheck.machine import child, child_protocol, choose, device_lifetime, faults, inventory, watchdog
from gpucheck.machine.accel import Accel
from gpucheck.machine.child import ChildResult
from gpucheck.measure import runs
from gpucheck.report import events
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault, not_run
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report, events_of

# The next row may take this many times as long as the previous one, because its size or operation differs.
AS_LONG = 2.0

# Measures and yields a device's rows until a time of `time.monotonic`.
MeasureRows = Callable[[Accel, float], Iterator[Measurement]]


@dataclass(frozen=True, slots=True)
class BenchInputs:
    """The input that all benchmarks share: thresholds, the machine if it was read, and whether the plan was emitted.

    `lost` maps the devices that this process can no longer use to their faults, by torch's names. `until_s` is the time
    of `time.monotonic` at which the benchmark must end; None means that its own budget decides.
    """

    limits: tuple[Limit, ...] = ()
    facts: Facts | None = None
    lost: dict[str, Fault] | None = None
    until_s: float | None = None
    is_planned: bool = False


ALONE = BenchInputs()


def begin(
    emit: events.Emit, facts: Facts, names: Sequence[str], device_ids: Sequence[str], shared: BenchInputs
) -> None:
    """Emit the plan. If thresholds name devices, also emit a warning for each device that they do not name."""
    for line in judge.by_other_names(shared.limits, facts, device_ids):
        emit(events.Notice(line, "warning"))
    emit(events.Planned(tuple(names), tuple(device_ids)))


def each(
    name: str,
    options: Any,
    emit: events.Emit,
    shared: BenchInputs,
    rows: MeasureRows,
    default_s: Callable[[Accel], float],
    on_cpu: CannotLook | None = None,
) -> list[str]:
    """Measure the benchmark `name` on every selected device, with one time budget for all.

    Return the devices that were measured without an error. `options` has `device` and `time_budget_s`. Raise
    UsageError, bugs, Ctrl-C, `on_cpu` if the CPU is the only device, and the first CannotLook at the end.
    """
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(events.Started(facts))
    chosen = choose.choose(options.device, facts)
    if on_cpu is not None and chosen.ids == ("cpu",):
        raise on_cpu
    if chosen.notice:
        emit(events.Notice(chosen.notice))
    if not shared.is_planned:
        begin(emit, facts, [name], chosen.ids, shared)
    run = _BenchmarkRun(name, emit, facts, rows, {} if shared.lost is None else shared.lost)
    for place, device_id in enumerate(chosen.ids):

        def times(accel: Accel, place: int = place) -> tuple[float, float]:
            budget_s = options.time_budget_s or default_s(accel) * len(chosen.ids)
            left_s = budget_s - (time.monotonic() - began)
            deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
            until_s = watchdog.ends_by(budget_s, began) if shared.until_s is None else shared.until_s
            return min(deadline, until_s), until_s

        if device_id not in run.lost:
            run.device(device_id, times)
    if run.unseen:
        raise run.unseen[0]
    return run.measured


def share_until(deadline: float, weights: Sequence[float]) -> float:
    """Return the time at which the share of the first weight ends; the weights divide the time until `deadline`."""
    now_s = time.monotonic()
    return now_s + max(deadline - now_s, 0.0) * weights[0] / sum(weights)


def needs_gpu(name: str, what: str, why: str) -> CannotLook:
    """Return the error of a benchmark that a CPU alone cannot run."""
    return CannotLook(what, why, "run it on a machine with a GPU that torch can use", finding=f"{name}.device")


class _BenchmarkRun:
    """One benchmark on the selected devices."""

    def __init__(self, name: str, emit: events.Emit, facts: Facts, rows: MeasureRows, lost: dict[str, Fault]) -> None:
        self.name, self.emit, self.facts, self.rows, self.lost = name, emit, facts, rows, lost
        self.where = f"bench {name}"
        self.unseen: list[GpucheckError] = []
        self.measured: list[str] = []

    def device(self, device_id: str, times: Callable[[Accel], tuple[float, float]]) -> None:
        """Measure on one device. `times` returns the target time for the rows, and the time at which they must end."""
        self.emit(events.Began(self.name, device_id))
        in_use = any(device.id == device_id and judging.is_shared(device) for device in self.facts.devices)
        accel: Accel | None = None
        why = "fault"
        try:
            with watchdog.opening(device_id, self.where):
                accel = choose.open_named(device_id, self.facts)
            self.emit(events.Opened(described(accel)))
            for notice in choose.opened_again(accel):
                self.emit(notice)
            with watchdog.watching(accel, self.where):
                in_time = self._measure(accel, *times(accel), in_use=in_use)
            self.measured.append(device_id)
            why = "" if in_time else "time"
        except watchdog.OutOfTime:
            self.emit(events.Skipped(out_of_time(self.name, "not measured", device_id)))
            why = "time"
        except (KeyboardInterrupt, Terminated, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 (torch and its driver raise anything: it is reported, or raised on)
            self._broken_off(error, device_id, accel)
            if accel is not None and device_id not in self.lost:
                try:
                    with watchdog.watching(accel, self.where):
                        device_lifetime.settle(accel, error=error)
                except RuntimeError as later:  # the reported error was only the first sign
                    self._broken_off(later, device_id, accel)
        self.emit(events.Finished(self.name, device_id, why))

    def _measure(self, accel: Accel, deadline: float, until_s: float, *, in_use: bool) -> bool:
        """Measure every row. Return False if the time ran out. Only the first row may start without time to finish."""
        left_out, together, begun_s, in_time = "not measured", 0, time.monotonic(), True
        with accel.as_current():
            device_lifetime.begin(accel)
            try:
                for row in self.rows(accel, deadline):
                    self.emit(events.Measured(replace(row, flags=(*row.flags, judging.SHARED)) if in_use else row))
                    left_out = "some rows were not measured"
                    # Rows that were timed in turn arrive as a group, and a group is never cut off.
                    together = together - 1 if together else len(row.method.details.get("in_turn_with", ()))
                    now_s = time.monotonic()
                    needs_s = AS_LONG * (now_s - begun_s)
                    watchdog.WATCHDOG.late = not together and now_s >= deadline and now_s + needs_s >= until_s
                    begun_s = begun_s if together else now_s
            except watchdog.OutOfTime:
                in_time = False
            finally:
                watchdog.WATCHDOG.late = False
        device_lifetime.settle(accel)
        accel.empty_cache()
        if not in_time:
            self.emit(events.Skipped(out_of_time(self.name, left_out, accel.id)))
        return in_time

    def _broken_off(self, error: Exception, device_id: str, accel: Accel | None) -> None:
        """Report an error of the device or a library. Keep CannotLook for the end; re-raise a bug."""
        if isinstance(error, GpucheckError) and not faults.is_device(error):
            self.unseen.append(error)
            return
        fault = faults.of(error, self.where, device_id, step=watchdog.step())
        before = next((fault for fault in self.lost.values() if fault.poisons), None)
        if fault.kind == "device" and before is not None:
            # An earlier fault made CUDA unusable in this process, so this device is not at fault.
            self.lost[device_id] = before
            skipped = not_run(self.name, f"{device_id} in {self.where}", before)
            self.emit(events.Skipped(replace(skipped, device=device_id)))
            return
        self.emit(events.Failed(fault))
        if fault.kind != "device":
            if fault.kind == "error" and not faults.is_of_library(error):
                raise error
            return
        if not fault.poisons and accel is not None:
            with watchdog.watching(accel, self.where):
                if accel.why_broken() is None:
                    return
        self.lost[device_id] = fault


def out_of_time(name: str, what: str, device: str | None = None) -> Finding:
    """Return the finding for rows that a benchmark had no time for."""
    return Finding(f"{name}.time", "skip", what, "out of time", fix="use a longer --time-budget", device=device)


def described(accel: Accel) -> Device:
    """Return torch's description of an opened device."""
    capability = accel.compute_capability
    return Device(
        kind=accel.kind,
        id=accel.id,
        name=accel.name,
        uuid=accel.uuid,
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        multiprocessors=accel.multiprocessors,
        memory_bus_width_bits=accel.memory_bus_width_bits,
        max_sm_clock_hz=accel.max_clock_hz,
        max_memory_clock_hz=accel.max_memory_clock_hz,
    )


# A run that takes longer than this and the user's time budget counts as hung: default budgets are minutes at most.
LONGEST_RUN_S = 3600.0


class FailedRun(GpucheckError):
    """A run that ended with a bug. Its rows are kept, and the command exits with 70 too."""

    exit_code = errors.BUG


def repeated(
    arguments: Sequence[str],
    count: int,
    emit: events.Emit,
    *,
    budget_s: float = 0.0,
    run_child: Callable[[Sequence[str], float], ChildResult] = child.run,
) -> Report:
    """Run `gpucheck ARGUMENTS --json` in `count` fresh processes; emit and return their documents as one.

    The first run that fails is the last. Raise UsageError if the child reports one, Undecided if the child was killed,
    CannotLook if it left no document, and FailedRun after a bug. Earlier documents are emitted first.
    """
    reports: list[Report] = []
    argv = child.python_argv("gpucheck.cli.app", *arguments, "--json", "--quiet")
    try:
        for number in range(1, count + 1):
            emit(events.Progress(f"run {number} of {count} in a fresh process", number - 1, count))
            ended = run_child(argv, LONGEST_RUN_S + budget_s)
            report = _document(ended, number)
            reports.append(report)
            # A threshold applies to all runs together, so a run that misses it is not the last.
            failed = any(finding.verdict == "fail" and not finding.is_gate for finding in report.findings)
            if failed or report.faults or report.summary.exit in (errors.COULD_NOT_LOOK, errors.BUG):
                if number < count:
                    emit(events.Notice(f"run {number} of {count} failed; the rest is skipped", "warning"))
                break
    except (KeyboardInterrupt, Terminated, CannotLook, Undecided):
        for event in events_of(runs.merge(reports)) if reports else ():
            emit(event)
        raise
    whole = runs.merge(reports)
    for event in events_of(whole):
        emit(event)
    if cut := sum(not (report.summary.complete or report.faults) for report in reports):
        title, why = f"runs cut off: {cut} of {len(reports)}", "out of time, or ended by a signal"
        emit(events.Skipped(Finding("runs.child", "inconclusive", title, why, fix="rerun with a longer --time-budget")))
    if reports[-1].summary.exit == errors.BUG:
        emit(events.Notice(ended.stderr.strip(), "warning"))  # stderr has the traceback and where to report it
        raise FailedRun(f"run {len(reports)} of {count} ended with a bug in gpucheck", finding="runs.child")
    return whole


def _document(ended: ChildResult, number: int) -> Report:
    """Return the child's document. Raises UsageError with the child's message, Undecided and CannotLook."""
    lines = ended.stderr.strip().splitlines() or [""]
    errors_of = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = (errors_of or lines)[-1].removeprefix("gpucheck: ")
    if ended.returncode == errors.USAGE:
        tips = [line.strip().removeprefix("tip: ") for line in lines if line.startswith("  tip: ")]
        raise UsageError(last or "wrong usage", "", tips[-1] if tips else "")
    try:
        return from_json(Report, json.loads(ended.stdout))
    except (ValueError, KeyError, TypeError) as error:
        ending = child_protocol.ending_of(ended, LONGEST_RUN_S)
        if ending.how == "killed":
            why = f"{ending.signal}: {last}" if last else str(ending.signal)
            fix = "check the system log for the OOM killer, then rerun"
            raise Undecided(f"run {number} was killed", why, fix, finding="runs.child") from error
        how = "did not finish in time" if ending.how == "late" else f"ended with {ended.returncode} and no document"
        raise CannotLook(f"run {number} {how}", last, "rerun without --runs", finding="runs.child") from error
