"""Ends of a trial that say nothing about the size, in words. Pure."""

from __future__ import annotations

from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.recipe import in_words
from gpucheck.errors import TargetError
from gpucheck.report.finding import Finding


def users_error(result: Result, target: str, axis: str | None, *, passed: int | None) -> TargetError:
    """The user's own error, with the size at which it came; `passed` is the largest size that did before."""
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
