"""The command `gpucheck smoke`: check everything that a training job needs.

A check is a row of `options.CHECKS` and a function that returns PassedCheck, or raises WrongResult or Unavailable. Any
other exception is a failure of the check.
"""

from __future__ import annotations

import contextlib
import math
import pkgutil
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gpucheck import messages
from gpucheck.errors import CannotLook
from gpucheck.machine import accel as devices
from gpucheck.machine import choose, device_lifetime, faults, inventory, watchdog
from gpucheck.machine.accel import Accel
from gpucheck.report.events import Emit, Failed, Finished, Judged, Notice, Progress, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault, first_line_of
from gpucheck.report.finding import Finding, Verdict
from gpucheck.smoke.check import Unavailable, WrongResult
from gpucheck.smoke.options import CHECKS, Check, SmokeOptions

USABLE_ID = "device.usable"
# All checks take about 20 s on two cores without a GPU, and finish within this time on a machine ten times as slow.
DEFAULT_BUDGET_S = 300.0
# The time of the longest check on a busy machine. No check begins if less time is left.
LONGEST_CHECK_S = 5.0
# The command, as faults name it.
COMMAND = "smoke"


def command(options: SmokeOptions, emit: Emit) -> None:
    """Run the selected checks on each device. Raises UsageError for a prefix that matches no check, and CannotLook."""
    began_s, budget_s = time.monotonic(), options.time_budget_s or DEFAULT_BUDGET_S
    deadline = min(began_s + budget_s, watchdog.ends_by(budget_s, began_s) - LONGEST_CHECK_S)
    ids = options.selected
    checks = [check for check in CHECKS if check.id in ids]
    facts = inventory.read()
    emit(Started(facts))
    for finding in _required(options.require, options.min_devices, facts):
        emit(Judged(finding))
    chosen = _chosen(options.device, facts, emit)
    for index, device_id in enumerate(chosen):
        now = time.monotonic()
        if _check(device_id, checks, facts, emit, now + (deadline - now) / (len(chosen) - index)) is not None:
            # A lost device may leave errors in this process, which would fail the checks of the next device.
            for other in chosen[index + 1 :]:
                title, why = f"{other} was not checked", f"another device failed in this process: {device_id}"
                emit(Judged(Finding(USABLE_ID, "skip", title, why, device=other)))
            return


def _check(device_id: str, checks: Sequence[Check], facts: Facts, emit: Emit, deadline: float) -> Fault | None:
    """Run the checks on a device. Return the fault if the device failed during a check, else None."""
    try:
        with watchdog.opening(device_id, COMMAND):
            accel = choose.open_named(device_id, facts)
        for notice in choose.opened_again(accel):
            emit(notice)
    except CannotLook as error:
        # A context needs memory. If other processes hold all of it, the state of the device is unknown.
        emit(Judged(unusable(error, "inconclusive" if messages.is_of_memory(error.why) else "fail")))
        return None
    fault: Fault | None = None
    try:
        with watchdog.watching(accel, COMMAND), accel.as_current():
            device_lifetime.begin(accel)
            fault = run(checks, accel, emit, deadline=deadline)
    except RuntimeError as error:
        # Leaving the context of a dead device repeats the error that was already reported.
        if fault is None:
            emit(Failed(faults.of(error, COMMAND, accel.id, step=watchdog.step())))
            raise
    if fault is not None:
        emit(Failed(fault))
    return fault


def _required(require: str | None, min_devices: int | None, facts: Facts) -> list[Finding]:
    driver = facts.driver
    # If libcuda hangs, torch would hang in this process too, and nothing could end this wait.
    is_hung = driver is not None and driver.cuinit_code is None and driver.is_hung
    kind = None if is_hung else devices.default_accelerator()
    usable = choose.UsableDevices(kind, devices.device_count(kind) if kind else 0, torch.version.hip is not None)
    return choose.judge_required(require, min_devices, usable, facts)


def _chosen(requested: str, facts: Facts, emit: Emit) -> tuple[str, ...]:
    """Return the devices to check. If torch cannot use a device that is present, emit a failed check; return none."""
    try:
        chosen = choose.choose(requested, facts)
    except CannotLook as error:
        # A named device that this machine does not have is an error (exit 3), not a finding.
        if not _present_but_unusable(requested, facts):
            raise
        emit(Judged(unusable(error)))
        return ()
    if chosen.notice:
        emit(Notice(chosen.notice))
    return chosen.ids


def _present_but_unusable(requested: str, facts: Facts) -> bool:
    with contextlib.suppress(CannotLook):
        choose.choose("auto", facts)
        return False
    return requested.lower().startswith(("auto", "all", "cuda", "gpu-", "mig-"))


def unusable(error: CannotLook, verdict: Verdict = "fail") -> Finding:
    """Return the failed check `device.usable`: torch cannot use an accelerator that is present."""
    fix = error.fix if "--device cpu" in error.fix else "gpucheck doctor, or use the CPU with --device cpu"
    return Finding(USABLE_ID, verdict, error.what, error.why, fix=fix)


def run(checks: Sequence[Check], accel: Accel, emit: Emit, *, deadline: float = math.inf) -> Fault | None:
    """Run each check and emit its finding. Return the fault if the device failed during a check, else None.

    Once the device no longer works, the remaining checks are skipped. At `deadline` (by `time.monotonic`), the next
    check is inconclusive, and the checks after it are skipped.
    """
    why_not: str | None = None
    fault: Fault | None = None
    for number, check in enumerate(checks):
        emit(Progress(check.title, number, len(checks)))
        verdict: Verdict = "skip"
        finding = None
        try:
            if why_not is None and number and time.monotonic() >= deadline:
                raise watchdog.OutOfTime
            finding = run_one(check, accel) if why_not is None else None
        except watchdog.OutOfTime:
            why_not, verdict = "--time-budget ended", "inconclusive"
        if finding is None:
            fix = None if verdict == "skip" else "use a longer --time-budget"
            emit(Judged(Finding(check.id, verdict, check.title, why_not or "", fix=fix, device=accel.id)))
            continue
        emit(Judged(finding))
        if finding.verdict == "fail" and (reason := accel.why_broken()) and not messages.is_of_memory(reason):
            why_not = f"device unusable: {check.id} failed: {reason}"
            # The text of the check's error, else of the device's later error.
            text, error = finding.evidence.get("text", reason), finding.evidence.get("type", "RuntimeError")
            fault = Fault("device", COMMAND, accel.id, error, text, check.title)
            if (cause := messages.cause_of(text)) is not None:
                fault = replace(fault, cause=cause.id, poisons=cause.poisons)
        emit(Finished(check.id))
    return fault


def loaded(function: str | Callable[[Accel], Any]) -> Callable[[Accel], Any]:
    """Return a function of the table, given as `module.function`."""
    return function if callable(function) else pkgutil.resolve_name(f"gpucheck.smoke.{function}")


def run_one(check: Check, accel: Accel) -> Finding:
    """Return the finding of a check, with its warnings in the evidence. The random state is restored."""
    if check.need is not None and (reason := loaded(check.need)(accel)):
        return Finding(check.id, "skip", check.title, reason, device=accel.id)
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verdict, message, evidence, fix = _outcome(check, accel)
    evidence = {**evidence, "elapsed_s": time.monotonic() - start}
    if texts := list(dict.fromkeys(first_line_of(warning.message) for warning in caught)):
        evidence["warnings"] = texts
    return Finding(check.id, verdict, check.title, message, evidence, fix, accel.id)


def _outcome(check: Check, accel: Accel) -> tuple[Verdict, str, dict[str, Any], str | None]:
    try:
        # The checks do not use the devices' random number generators.
        with torch.random.fork_rng(devices=()):
            passed = loaded(check.function)(accel)
            device_lifetime.settle(accel)  # a late error of the device is raised here, not in the next check
    except Unavailable as unavailable:
        return "skip", str(unavailable), {}, None
    except WrongResult as wrong:
        # The fix in the table is for a GPU, which can be taken out of use, and does not apply to a CPU.
        return "fail", str(wrong), wrong.evidence, wrong.fix or (None if accel.is_cpu else check.then)
    except Exception as error:  # noqa: BLE001 - torch and its driver are under test, so any error is the finding
        device_lifetime.record_error(error, accel.id)
        cause, _ = messages.cause_in(messages.chain_of(error))
        *_, frame = traceback.extract_tb(error.__traceback__)
        raised_at = f"{frame.filename}:{frame.lineno} in {frame.name}"
        evidence = {"type": type(error).__name__, "text": str(error), "raised_at": raised_at}
        message = f"{type(error).__name__}: {first_line_of(error)}"
        if cause is None or cause.whose != "memory":
            return "fail", message, evidence, None
        # The checks need little memory. If memory runs out, other processes hold it, and the device is not at fault.
        fix = f"{messages.FIX['memory held']} shows which processes use memory; then run again"
        return "inconclusive", message, evidence, cause.fix if cause.id == "oom.host" else fix
    return "warn" if passed.doubt else "pass", passed.message, passed.evidence, passed.fix
