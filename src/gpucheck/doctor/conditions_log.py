"""Xid errors in the kernel's log: NVIDIA's own action beside our verdict. A log that cannot be read is not empty."""

from __future__ import annotations

import re
from collections import Counter

from gpucheck import xid
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)")


def _xid(evidence: Evidence) -> Seen | None:
    counted = Counter((found["device"], int(found["number"])) for found in map(_XID.search, _lines(evidence)) if found)
    if not counted:
        return None
    worst = sorted(counted, key=lambda key: (_is_mild(key[1]), key))
    told = [_told(device, number, counted[device, number]) for device, number in worst]
    mild = all(_is_mild(number) for _, number in counted)
    rows = [
        {"device": device, "xid": number, "count": counted[device, number], "nvidia": _action(number)}
        for device, number in worst
    ]
    return Seen("; ".join(told), {"xids": rows}, verdict="info" if mild else None)


def _is_mild(number: int) -> bool:
    """Whether it is a program's own mistake, or one that NVIDIA says to ignore: such a card is well."""
    known = xid.BY_NUMBER.get(number)
    return known is not None and (known.blame == "program" or known.action == "IGNORE")


def _action(number: int) -> str | None:
    return xid.BY_NUMBER[number].action if number in xid.BY_NUMBER else None


def _told(device: str, number: int, count: int) -> str:
    what = f", {xid.BY_NUMBER[number].what}" if number in xid.BY_NUMBER else ""
    times = f", {count} times" if count > 1 else ""
    return f"Xid {number} of {device}{what}{times} (NVIDIA: {_action(number) or 'not in its catalogue'})"


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
        source=xid.SOURCE,
    ),
    Condition(
        id="log.unreadable",
        rung=None,
        verdict="skip",
        certainty="proof",
        title="the kernel log could not be read: Xid errors unknown",
        meaning="Reading the kernel's log mostly takes root's rights. What cannot be read is not empty.",
        fix="sudo dmesg | grep -i xid",
        judge=_unreadable,
    ),
)
