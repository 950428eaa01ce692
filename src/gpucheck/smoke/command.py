"""`gpucheck smoke`: does everything that a training job relies on work here?

A check is a row of CHECKS and a function that returns what it saw, or raises. Whatever else it raises is its finding.
"""

from __future__ import annotations

import math
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpucheck import messages, naming
from gpucheck.errors import CannotLook
from gpucheck.machine import accel as devices
from gpucheck.machine import choose, inventory, pulse
from gpucheck.report.events import Emit, Failed, Finished, Judged, Notice, Progress, Started
from gpucheck.report.facts import Facts, Host
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding, Verdict
from gpucheck.smoke import data as smoke_data
from gpucheck.smoke import memory as smoke_memory
from gpucheck.smoke import numerics as smoke_numerics
from gpucheck.smoke import require as smoke_required
from gpucheck.smoke import tensors as smoke_tensors
from gpucheck.smoke.options import SmokeOptions
from gpucheck.smoke.setting import (
    Need,
    Seen,
    Setting,
    Unavailable,
    Wrong,
    dedicated_memory,
    first_line,
    numpy,
    unchanged,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its id, what it claims, the function that proves it, and why it cannot be made somewhere."""

    id: str
    title: str
    function: Callable[[Setting], Seen]
    needs: tuple[Need, ...] = ()


def _usable(setting: Setting) -> Seen:
    accel = setting.accel
    reason = accel.why_broken()
    if reason:
        raise Wrong(f"{accel.id} computes nothing: {reason}")
    capability = accel.compute_capability
    evidence = {"name": accel.name, "uuid": accel.uuid, "compute_capability": list(capability) if capability else None}
    return Seen(f"{accel.name} ({accel.id}), torch {torch.__version__}", evidence)


# In the order of a training job: what comes first is what the rest stands on.
CHECKS: tuple[Check, ...] = (
    Check("device.usable", "torch can use the device", _usable),
    Check("tensors.round_trip", "tensors survive the round trip bit for bit", smoke_tensors.round_trip),
    Check("tensors.layouts", "odd shapes and strides survive the round trip", smoke_tensors.layouts),
    Check("tensors.to_returns_new", ".to() returns a new tensor and leaves the old", smoke_tensors.to_returns_new),
    Check("tensors.device_mismatch", "a mismatch of devices raises RuntimeError", smoke_tensors.device_mismatch),
    Check("tensors.numpy_needs_cpu", "numpy() needs the CPU", smoke_tensors.numpy_needs_cpu, (numpy,)),
    Check("modules.to", "model.to() moves parameters and buffers", smoke_tensors.module_to),
    Check("training.gradients_through_to", "gradients flow through .to()", smoke_tensors.gradients),
    Check("numerics.matmul", "matrix products agree with float64", smoke_numerics.matmul),
    Check("numerics.convolution", "convolutions agree with float64", smoke_numerics.convolution),
    Check("numerics.tf32", "TF32 stays within its bound", smoke_numerics.tf32, (smoke_numerics.has_tf32,)),
    Check("training.step", "a training step agrees with the CPU's and lowers the loss", smoke_numerics.training_step),
    Check("training.autocast", "autocast computes low, keeps float32 weights", smoke_numerics.autocast),
    Check("memory.accounting", "memory is counted rightly and comes back", smoke_memory.accounting),
    Check(
        "memory.one_pebibyte",
        "one allocation of 1 PiB raises out-of-memory",
        smoke_memory.one_pebibyte,
        (dedicated_memory,),
    ),
    Check(
        "memory.to_the_end",
        "allocating to the end raises out-of-memory",
        smoke_memory.to_the_end,
        (smoke_memory.has_fraction, dedicated_memory),
    ),
    Check("copies.pinned", "pinned copies are right after a synchronise", smoke_data.pinned, (smoke_data.can_pin,)),
    Check("copies.non_blocking", "non-blocking copies are right after a synchronise", smoke_data.non_blocking),
    Check("streams.wait", "a stream waits for another", smoke_data.streams, (smoke_data.has_streams,)),
    Check("device.context", "device contexts are obeyed and end", smoke_data.device_context),
    Check("data.loader", "a DataLoader with workers and pinned memory delivers", smoke_data.data_loader),
)

USABLE_ID = "device.usable"
# All checks take some 20 s on two cores without a GPU; a machine ten times as slow has finished by then.
DEFAULT_BUDGET_S = 300.0
# The command, as faults name it.
WHERE = "smoke"


def command(options: SmokeOptions, emit: Emit) -> None:
    """Run the selected checks on one device and judge each.

    Raises UsageError for a prefix that matches nothing and for an unknown requirement, CannotLook where the device that
    was named is not there.
    """
    deadline = time.monotonic() + (options.time_budget_s or DEFAULT_BUDGET_S)
    checks = select(options.only, options.skip, CHECKS)
    facts = inventory.read()
    emit(Started(facts))
    for finding in smoke_required.judge(options.require, options.min_devices, facts):
        emit(Judged(finding))
    accel = _open(options.device, facts, emit)
    if accel is None:
        return
    died: Fault | None = None
    try:
        with pulse.watching(accel, WHERE), accel.as_current():
            died = run(checks, Setting(accel, facts.host or Host()), emit, deadline=deadline)
    except RuntimeError:
        # Leaving its context asks the device once more; a dead one repeats the error that is told already.
        if died is None:
            raise
    if died is not None:
        emit(Failed(died))


def select(only: Sequence[str], skip: Sequence[str], checks: Sequence[Check]) -> list[Check]:
    """The checks whose id begins with one of `only` (all where it is empty) and with none of `skip`.

    Raises UsageError for a prefix that matches nothing, and where nothing is left.
    """
    ids = [check.id for check in checks]
    # Groups too: who types `tensor.` means `tensors`.
    known = list(dict.fromkeys([*ids, *(name.partition(".")[0] for name in ids)]))
    return naming.select(
        checks,
        lambda check: check.id,
        only,
        skip,
        noun="check",
        nothing="nothing would be checked",
        meant=lambda prefix: naming.did_you_mean(prefix, known),
    )


# -- the device -------------------------------------------------------------------------------------------------------


def _open(requested: str, facts: Facts, emit: Emit) -> devices.Accel | None:
    """The device to check; None where one is there and torch cannot use it, which is then the failed check."""
    try:
        chosen = choose.choose(requested, facts)
        device_id = choose.resolve(requested, facts)
    except CannotLook as error:
        # Asked for by name and not in this machine: that is no finding about the machine (exit 3).
        if not _present_but_unusable(requested, facts):
            raise
        emit(Judged(unusable(error)))
        return None
    if chosen.notice:
        emit(Notice(chosen.notice))
    try:
        with pulse.opening(device_id, WHERE):
            return choose.open_named(device_id, facts)
    except CannotLook as error:
        emit(Judged(unusable(error)))
        return None


def _present_but_unusable(requested: str, facts: Facts) -> bool:
    if not requested.lower().startswith(("auto", "all", "cuda", "gpu-", "mig-")):
        return False
    try:
        choose.choose("auto", facts)
    except CannotLook:
        return True
    return False


def unusable(error: CannotLook) -> Finding:
    """The failed check `device.usable`: an accelerator is there and torch cannot use it."""
    fix = error.fix if "--device cpu" in error.fix else "see `gpucheck doctor`, or work on the CPU with --device cpu"
    return Finding(USABLE_ID, "fail", error.what, error.why, fix=fix)


# -- running ----------------------------------------------------------------------------------------------------------


def run(checks: Sequence[Check], setting: Setting, emit: Emit, *, deadline: float = math.inf) -> Fault | None:
    """Run each check and emit its finding; how the device died on the way, None where it did not.

    Once the device answers nothing, the rest is skipped with that reason; so is what has not begun at `deadline` (of
    `time.monotonic`).
    """
    why_not: str | None = None
    died: Fault | None = None
    for number, check in enumerate(checks):
        emit(Progress(check.title, number, len(checks)))
        if why_not is None and number and time.monotonic() >= deadline:
            why_not = "the time of --time-budget was up"
        if why_not:
            emit(Judged(Finding(check.id, "skip", check.title, why_not)))
            continue
        finding = run_one(check, setting)
        emit(Judged(finding))
        if finding.verdict == "fail" and (reason := setting.accel.why_broken()):
            why_not = f"the device answers nothing since {check.id} failed: {reason}"
            died = _fault(check, finding, setting, reason)
        emit(Finished(check.id))
    return died


def _fault(check: Check, finding: Finding, setting: Setting, reason: str) -> Fault:
    """A device that died in a check: what the check met, where that was an error, else what it answers since."""
    text = str(finding.evidence.get("text", reason))
    cause = messages.cause_of(text)
    error = str(finding.evidence.get("type", "RuntimeError"))
    poisons = cause is not None and cause.poisons
    return Fault("device", WHERE, setting.accel.id, error, text, check.title, cause.id if cause else None, poisons)


def run_one(check: Check, setting: Setting) -> Finding:
    """The finding of one check. Torch's global state is as before, its warnings are kept in the evidence."""
    reason = next((why for need in check.needs if (why := need(setting))), None)
    if reason:
        return Finding(check.id, "skip", check.title, reason)
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        verdict, message, evidence, fix = _outcome(check, setting)
    evidence = {**evidence, "elapsed_s": time.monotonic() - start}
    if texts := list(dict.fromkeys(first_line(one.message) for one in heard)):
        evidence["warnings"] = texts
    return Finding(check.id, verdict, check.title, message, evidence, fix)


def _outcome(check: Check, setting: Setting) -> tuple[Verdict, str, dict[str, Any], str | None]:
    try:
        with unchanged(setting.accel):
            seen = check.function(setting)
            setting.accel.synchronize()  # an error of the device comes up here, not in the next check
    except Unavailable as unavailable:
        return "skip", str(unavailable), {}, None
    except Wrong as wrong:
        return "fail", str(wrong), wrong.evidence, wrong.fix
    except Exception as error:  # noqa: BLE001 - torch and its driver are on trial: whatever they raise is the finding
        return "fail", *_unexpected(error), None
    return "warn" if seen.doubt else "pass", seen.message, seen.evidence, seen.fix


def _unexpected(error: Exception) -> tuple[str, dict[str, Any]]:
    """The text of an error that no check foresees, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    evidence = {
        "type": type(error).__name__,
        "text": str(error),
        "raised_at": f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None,
    }
    return f"{type(error).__name__}: {first_line(error)}", evidence
