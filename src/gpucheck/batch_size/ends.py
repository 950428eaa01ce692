"""Ends of a trial that say nothing about the size, in words. Pure."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.batch_size.exchange import Result, Setup
from gpucheck.batch_size.recipe import in_words
from gpucheck.errors import DeviceFailed, TargetError
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.work.spec import BUILT_IN

WHERE = "find-batch-size"


def failed_device(setup: Setup, reason: str, *, opening: bool = False) -> DeviceFailed | None:
    """The device's failure where `reason`, why a workload failed, is one; None where it is the workload's own.

    While it is still `opening` no workload has had a part in it.

    Some texts say it themselves. And a workload of ours that is run as it comes has no errors of its own (they would
    show on a CPU too): what fails there is the device, or a library of its.
    """
    name, cause = reason.partition(":")[0], messages.cause_of(reason)
    as_it_comes = not setup.inputs and setup.dtype is None and not setup.recipe.get("amp")
    ours = setup.target in BUILT_IN and as_it_comes and not opening and not setup.is_cpu
    # The words of another class are the workload's own, and a check in a kernel fails on what it was given.
    speaks = f"builtins.{name}" in messages.SPEAKING_CLASSES or name in messages.SPEAKING_CLASSES
    known = speaks and cause is not None and cause.whose == "device" and cause.id != "cuda.device_assert"
    unsupported = (cause is not None and cause.whose == "memory") or "not implemented for" in reason
    if not known and (not ours or unsupported):
        return None
    title = cause.title if cause is not None and known else f"the built-in {setup.target} fails on it"
    return DeviceFailed(f"{setup.device} failed: {title}", reason, cause.fix if cause else "", device=setup.device)


def users_error(result: Result, setup: Setup, axis: str | None, *, passed: int | None) -> TargetError | DeviceFailed:
    """The user's own error, with the size at which it came; `passed` is the largest size that did before.

    Where the workload is ours it is the device's.
    """
    if (failed := failed_device(setup, result.reason)) is not None:
        return failed
    target = setup.target
    before = f", after {in_words(passed, axis)} passed" if passed is not None else ""
    fix = "see the traceback with --debug"
    if axis is not None:  # a model has its least resolution and its longest sequence
        fix = f"give the lengths that it takes with --axis {axis}:LOW..HIGH, or {fix}"
    return TargetError(
        f"{target} fails with {in_words(result.size, axis)}{before}", result.reason, fix, trace=result.trace
    )


def undecided(result: Result, axis: str | None) -> Finding:
    """A device that a trial broke, or other processes that disturbed the trials."""
    evidence = {"batch_size": result.size}
    if result.outcome == "device-broken":
        title = f"{in_words(result.size, axis)} left the device unusable"
        return Finding("batch_size.device", "fail", title, result.reason, evidence, fix="gpucheck smoke")
    return Finding(
        "batch_size.undisturbed",
        "inconclusive",
        "the trials were disturbed",
        result.reason,
        evidence,
        fix="end the other processes, see `gpucheck memory`",
    )


def fault(result: Result, device: str) -> Fault:
    """The device that a trial left unusable, as a fact."""
    cause = messages.cause_of(result.reason)
    error, _, text = result.reason.partition(": ")
    step, poisons = f"a trial of {result.size}", cause is not None and cause.poisons
    return Fault("device", WHERE, device, error, text, step, cause.id if cause else None, poisons)


def unlogged(path: str, why: str) -> Finding:
    """A log of trials that could not be written to the end."""
    return Finding(
        "batch_size.log",
        "warn",
        f"the log of trials {path} is not whole",
        f"{why}: what ran after that is not in it",
        {"file": path},
        fix="make room before going on with --resume",
    )
