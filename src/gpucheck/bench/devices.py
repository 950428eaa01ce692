"""Run a benchmark on each selected device within its time, and run it several times for `--runs`."""

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

# The next row may take this many times as long as the previous row, because its size or operation differs.
AS_LONG = 2.0

# A `MeasureRows` measures and yields the rows of a device until a deadline, a time of `time.monotonic`.
MeasureRows = Callable[[Accel, float], Iterator[Measurement]]


@dataclass(frozen=True, slots=True)
class BenchInputs:
    """The input that all benchmarks share. `facts` None means that the benchmark reads the machine.

    `lost` maps torch's names of the devices that this process can no longer use to their faults. `until_s` is the time
    of `time.monotonic` at which the benchmark must end; None means that the benchmark's own budget decides.
    `is_planned` means that the caller has emitted the plan.
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
    """Emit the plan. If thresholds name devices, also emit a warning for each device that no threshold names."""
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
    """Measure the benchmark `name` on every selected device within one time budget.

    Return the devices that were measured without an error. `options` has `device` and `time_budget_s`. Raises
    UsageError, bugs, Ctrl-C, `on_cpu` if the CPU is the only device, and at the end the first CannotLook.
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
    for index, device_id in enumerate(chosen.ids):

        def times(accel: Accel, index: int = index) -> tuple[float, float]:
            budget_s = options.time_budget_s or default_s(accel) * len(chosen.ids)
            left_s = budget_s - (time.monotonic() - began)
            deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - index)
            until_s = watchdog.ends_by(budget_s, began) if shared.until_s is None else shared.until_s
            return min(deadline, until_s), until_s

        if device_id not in run.lost:
            run.device(device_id, times)
    if run.errors:
        raise run.errors[0]
    return run.measured


def share_until(deadline: float, weights: Sequence[float]) -> float:
    """Divide the time until `deadline` in proportion to the weights. Return the time at which the first share ends."""
    now_s = time.monotonic()
    return now_s + max(deadline - now_s, 0.0) * weights[0] / sum(weights)


def needs_gpu(name: str, what: str, why: str) -> CannotLook:
    return CannotLook(what, why, "run it on a machine with a GPU that torch can use", finding=f"{name}.device")


class _BenchmarkRun:
    """One benchmark on the selected devices. `errors` has the errors that are no faults of a device."""

    def __init__(self, name: str, emit: events.Emit, facts: Facts, rows: MeasureRows, lost: dict[str, Fault]) -> None:
        self.name, self.emit, self.facts, self.rows, self.lost = name, emit, facts, rows, lost
        self.where = f"bench {name}"
        self.errors: list[GpucheckError] = []
        self.measured: list[str] = []

    def device(self, device_id: str, times: Callable[[Accel], tuple[float, float]]) -> None:
        """Measure on one device. `times` returns the deadline of the rows, and the time at which they must end."""
        self.emit(events.Began(self.name, device_id))
        is_shared = any(device.id == device_id and judging.is_shared(device) for device in self.facts.devices)
        accel: Accel | None = None
        why = "fault"
        try:
            with watchdog.opening(device_id, self.where):
                accel = choose.open_named(device_id, self.facts)
            self.emit(events.Opened(described(accel)))
            for notice in choose.opened_again(accel):
                self.emit(notice)
            with watchdog.watching(accel, self.where):
                is_whole = self._measure(accel, *times(accel), is_shared=is_shared)
            self.measured.append(device_id)
            why = "" if is_whole else "time"
        except watchdog.OutOfTime:
            self.emit(events.Skipped(out_of_time(self.name, "not measured", device_id)))
            why = "time"
        except (KeyboardInterrupt, Terminated, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 (torch and its driver raise anything: it is reported, or raised on)
            self._fail(error, device_id, accel)
            if accel is not None and device_id not in self.lost:
                try:
                    with watchdog.watching(accel, self.where):
                        device_lifetime.settle(accel, error=error)
                except RuntimeError as later:  # a second error may show that the device is lost
                    self._fail(later, device_id, accel)
        self.emit(events.Finished(self.name, device_id, why))

    def _measure(self, accel: Accel, deadline: float, until_s: float, *, is_shared: bool) -> bool:
        """Measure every row. Return False if the time ran out. Only the first row may start without time to finish."""
        title, left_in_group, begun_s, is_whole = "not measured", 0, time.monotonic(), True
        with accel.as_current():
            device_lifetime.begin(accel)
            try:
                for row in self.rows(accel, deadline):
                    self.emit(events.Measured(replace(row, flags=(*row.flags, judging.SHARED)) if is_shared else row))
                    title = "some rows were not measured"
                    # Rows that were timed in turn arrive as a group. The time limit applies only between groups.
                    left_in_group = (left_in_group or 1 + len(row.method.details.get("in_turn_with", ()))) - 1
                    now_s = time.monotonic()
                    needs_s = AS_LONG * (now_s - begun_s)
                    watchdog.WATCHDOG.late = not left_in_group and now_s >= deadline and now_s + needs_s >= until_s
                    begun_s = begun_s if left_in_group else now_s
            except watchdog.OutOfTime:
                is_whole = False
            finally:
                watchdog.WATCHDOG.late = False
        device_lifetime.settle(accel)
        accel.empty_cache()
        if not is_whole:
            self.emit(events.Skipped(out_of_time(self.name, title, accel.id)))
        return is_whole

    def _fail(self, error: Exception, device_id: str, accel: Accel | None) -> None:
        """Report an error of the device or a library. Store a CannotLook in `errors`; raise a bug again."""
        if isinstance(error, GpucheckError) and not faults.is_device(error):
            self.errors.append(error)
            return
        fault = faults.of(error, self.where, device_id, step=watchdog.step())
        poisoning = next((fault for fault in self.lost.values() if fault.poisons), None)
        if fault.kind == "device" and poisoning is not None:
            # An earlier fault made CUDA unusable in this process, so this device is not at fault.
            self.lost[device_id] = poisoning
            skipped = not_run(self.name, f"{device_id} in {self.where}", poisoning)
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


def out_of_time(name: str, title: str, device: str | None = None) -> Finding:
    return Finding(f"{name}.time", "skip", title, "out of time", fix="use a longer --time-budget", device=device)


def described(accel: Accel) -> Device:
    return Device(
        kind=accel.kind,
        id=accel.id,
        name=accel.name,
        uuid=accel.uuid,
        compute_capability=None if accel.compute_capability is None else ".".join(map(str, accel.compute_capability)),
        multiprocessors=accel.multiprocessors,
        memory_bus_width_bits=accel.memory_bus_width_bits,
        max_sm_clock_hz=accel.max_clock_hz,
        max_memory_clock_hz=accel.max_memory_clock_hz,
    )


# A run hangs if it takes this much longer than the user's time budget. Default budgets are minutes at most.
LONGEST_RUN_S = 3600.0


class FailedRun(GpucheckError):
    """A run ended with a bug. The rows were emitted, and the command exits with 70 too."""

    exit_code = errors.BUG


def repeated(
    arguments: Sequence[str],
    count: int,
    emit: events.Emit,
    *,
    budget_s: float = 0.0,
    run_child: Callable[[Sequence[str], float], ChildResult] = child.run,
) -> Report:
    """Run `gpucheck ARGUMENTS --json` in `count` fresh processes. Merge their documents, emit the result and return it.

    No run follows a failed run. Raises UsageError if the child reports wrong usage, Undecided if the child was killed,
    CannotLook if the child wrote no document, and FailedRun after a bug. Earlier documents are emitted first.
    """
    reports: list[Report] = []
    argv = child.python_argv("gpucheck.cli.app", *arguments, "--json", "--quiet")
    try:
        for number in range(1, count + 1):
            emit(events.Progress(f"run {number} of {count} in a fresh process", number - 1, count))
            ended = run_child(argv, LONGEST_RUN_S + budget_s)
            report = _document(ended, number)
            reports.append(report)
            # A threshold applies to all runs together, so runs follow a run that misses the threshold.
            has_failed = any(finding.verdict == "fail" and not finding.is_gate for finding in report.findings)
            if has_failed or report.faults or report.summary.exit in (errors.COULD_NOT_LOOK, errors.BUG):
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
        emit(events.Notice(ended.stderr.strip(), "warning"))  # stderr has the traceback and the address for reports
        raise FailedRun(f"run {len(reports)} of {count} ended with a bug in gpucheck", finding="runs.child")
    return whole


def _document(ended: ChildResult, number: int) -> Report:
    """Return the child's document. Raises UsageError with the child's message, Undecided and CannotLook."""
    lines = ended.stderr.strip().splitlines() or [""]
    error_lines = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = (error_lines or lines)[-1].removeprefix("gpucheck: ")
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
