"""The fault that interrupted a command: a fact like a measurement, and the one finding made from it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.messages import BY_ID, FIX
from gpucheck.report.finding import Finding

# `device`: the device failed. `memory`: memory ran out, here or on the host. `error`: any other error.
FaultKind = Literal["device", "memory", "error"]
DEVICE_ERROR = "device.error"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that interrupted work.

    `where` is the command (`bench matmul`), and `step` its step. `error` is the exception's class, empty if a process
    ended without an exception, and `text` the exception's message. `cause` is the matching row of `messages.CAUSES`;
    None if the error is unknown. `poisons` means that the process cannot use the device any more. `fresh` is the result
    of a small kernel in a fresh process: `works`, or the reason why it failed; None if no kernel was run. `silent_s` is
    the time without an answer, for a device that does not answer.
    """

    kind: FaultKind
    where: str
    device: str | None
    error: str
    text: str
    step: str = ""
    cause: str | None = None
    poisons: bool = False
    fresh: str | None = None
    silent_s: float | None = None

    def is_of(self, error: BaseException) -> bool:
        """Return whether the fault is about this exception, judged by its text."""
        return (self.error, self.text) == (type(error).__name__, str(error))


def first_line(text: str) -> str:
    """Return the first line of an error's text, cut to 400 characters."""
    return (text.strip().splitlines() or [""])[0][:400]


def first_line_of(error: object) -> str:
    """Return the first line of an error or a warning, or its class if it has no text."""
    return first_line(str(error)) or type(error).__name__


def in_words(fault: Fault) -> str:
    """Return the fault as a clause: `cuda:0 failed in bench matmul: its memory had an error …`."""
    device = fault.device or "the device"
    if fault.silent_s is not None:
        return f"{device}: no answer for {fault.silent_s:.0f} s in {fault.where}"
    return f"{device} failed in {fault.where}: {_cause(fault)}"


def _cause(fault: Fault) -> str:
    cause = BY_ID.get(fault.cause or "")
    # If the call itself may be wrong, the error's own text is more precise.
    if cause is not None and cause.whose not in ("program", "library"):
        return cause.title
    return first_line(fault.text) or fault.error


def judge(fault: Fault) -> Finding:
    """Return the finding about a fault: a failure of the device, a lack of memory, or an error of gpucheck."""
    line = first_line(fault.text)
    is_in_title = fault.kind == "device" and line == _cause(fault)
    during = f" (during {fault.step})" if fault.step else ""
    message = ": ".join(part for part in (fault.error, "" if is_in_title else line) if part) + during
    evidence: dict[str, Any] = {
        "device": fault.device,
        "where": fault.where,
        "step": fault.step or None,
        "error": fault.error,
        "text": fault.text,
        "cause": fault.cause,
        "poisons_process": fault.poisons,
        "fresh_process": fault.fresh,
        "silent_s": fault.silent_s,
    }
    option = f" --device {fault.device}" if fault.device else ""
    # A benchmark's IDs begin with its name.
    group, _, name = fault.where.partition(" ")
    benchmark = name if group == "bench" and name != "all" else ""
    if fault.kind == "error":
        fix = f"run `gpucheck {fault.where} --debug`, then `gpucheck smoke`"
        title = f"{fault.where} ended with an error"
        return Finding(f"{benchmark or 'gpucheck'}.error", "fail", title, message, evidence, fix=fix)
    if fault.kind == "memory":
        is_host = fault.cause in ("oom.cpu", "oom.host")
        title = f"memory ran out on {'the host' if is_host else fault.device or 'the device'} in {fault.where}"
        used = f"{FIX['memory held']} shows which processes use memory"
        fix = f"{'gpucheck memory --device cpu shows the free memory' if is_host else used}; then run again"
        return Finding(f"{benchmark or 'device'}.memory", "inconclusive", title, message, evidence, fix=fix)
    if fault.silent_s is not None:
        message = f"a call did not return{during}"
    if fault.fresh == "works":
        message += "; a kernel in a fresh process works"
    elif fault.fresh is not None:
        message += f"; a kernel in a fresh process failed too: {fault.fresh}"
    fix = BY_ID[fault.cause].fix if fault.cause is not None else ""
    fix = fix or f"gpucheck smoke{option}; sudo dmesg | grep -i xid shows the driver's messages"
    return Finding(DEVICE_ERROR, "fail", in_words(fault), message, evidence, fix=fix)


def not_run(name: str, what: str, fault: Fault) -> Finding:
    """Return the finding for work that an earlier fault prevented."""
    evidence = {"device": fault.device, "cause": fault.cause}
    return Finding(f"{name}.skipped", "skip", f"{what} was not measured", in_words(fault), evidence)
