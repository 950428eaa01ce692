"""Xid errors in the kernel's log: NVIDIA's own action beside our verdict. A log that cannot be read is not empty."""

from __future__ import annotations

import re
from collections import Counter

from gpucheck.health.doctor.condition import Condition, Seen
from gpucheck.health.doctor.evidence import Evidence

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)")
# The immediate action of each, as NVIDIA's catalogue of Xid errors names it. What is not here it tells by a workflow.
ACTIONS: dict[int, str] = {
    **dict.fromkeys((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), "RESET_GPU"),
    79: "RESTART_BM",
    **dict.fromkeys((13, 31, 68, 94), "RESTART_APP"),
    **dict.fromkeys((43, 44, 63, 92), "IGNORE"),
}
WORKFLOW = "see NVIDIA's catalogue"
MEANINGS: dict[int, str] = {
    13: "a kernel raised an exception",
    31: "a kernel used memory that is not its own",
    43: "a program's work was stopped",
    45: "a program's work was cleaned up",
    48: "an uncorrected memory error",
    61: "an internal fault of the card's microcontroller",
    62: "an internal fault of the card's microcontroller",
    63: "a memory row is to be replaced",
    64: "a memory row could not be replaced",
    68: "an exception of the video processor",
    69: "an exception of the graphics engine",
    74: "an NVLink error",
    79: "the card fell off the bus",
    92: "many corrected memory errors",
    94: "a memory error that was contained",
    95: "a memory error that was not contained",
    109: "a context switch took too long",
    119: "the card's system processor does not answer",
    120: "an error of the card's system processor",
    140: "an uncorrected memory error",
    149: "an NVLink error",
}
# A program's own mistakes, and what follows from them: a card that does this is well.
OF_PROGRAMS = (13, 31, 43, 45, 68, 92)


def _xid(evidence: Evidence) -> Seen | None:
    counted = Counter((found["device"], int(found["number"])) for found in map(_XID.search, _lines(evidence)) if found)
    if not counted:
        return None
    worst = sorted(counted, key=lambda key: (key[1] in OF_PROGRAMS, key))
    told = [_told(device, number, counted[device, number]) for device, number in worst]
    mine = all(number in OF_PROGRAMS for _, number in counted)
    rows = [
        {"device": device, "xid": number, "count": counted[device, number], "nvidia": ACTIONS.get(number)}
        for device, number in worst
    ]
    return Seen("; ".join(told), {"xids": rows}, verdict="info" if mine else None)


def _told(device: str, number: int, count: int) -> str:
    meaning = f", {MEANINGS[number]}" if number in MEANINGS else ""
    times = f", {count} times" if count > 1 else ""
    return f"Xid {number} of {device}{meaning}{times} (NVIDIA: {ACTIONS.get(number, WORKFLOW)})"


def _lines(evidence: Evidence) -> tuple[str, ...]:
    return evidence.stack.log or ()


def _unreadable(evidence: Evidence) -> Seen | None:
    if evidence.stack.log is not None or evidence.stack.log_error is None or not evidence.is_nvidia_here:
        return None
    return Seen(f"the kernel's log cannot be read: {evidence.stack.log_error}", {"error": evidence.stack.log_error})


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="log.xid",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="Xid errors in the kernel's log",
        meaning="The driver reports a GPU's errors to the kernel as Xid numbers. Some are a program's own mistake, "
        "some ask for a reset, some for a new card; how long ago they were the log tells.",
        settle="NVIDIA's catalogue of Xid errors says what each means and what to do at once",
        fix="sudo dmesg -T | grep -i xid",
        judge=_xid,
        texts=(r"NVRM: Xid \(", r"\bXid \d+"),
        source="NVIDIA, Xid Errors, catalogue: immediate action",
    ),
    Condition(
        id="log.unreadable",
        rung=None,
        verdict="skip",
        certainty="proof",
        title="whether there were Xid errors is not known",
        meaning="Reading the kernel's log mostly takes root's rights. What cannot be read is not empty.",
        fix="sudo dmesg | grep -i xid",
        judge=_unreadable,
    ),
)
