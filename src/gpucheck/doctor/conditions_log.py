"""Xid errors in the kernel's log: NVIDIA's own action beside our verdict. A log that cannot be read is not empty."""

from __future__ import annotations

from dataclasses import replace

from gpucheck import xid
from gpucheck.cards import xids
from gpucheck.cards.card import address_of, name_of
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine import kernel_driver
from gpucheck.report.finding import VERDICTS


def _xid(evidence: Evidence) -> Seen | None:
    """The errors of each GPU, the worst first, under the name that torch has for it."""
    errors = evidence.facts.xids
    if errors is None:
        errors = kernel_driver.xids(evidence.stack.log or ())
    facts = replace(evidence.facts, driver=replace(evidence.driver, xids=errors))
    names = {address_of(card, facts): name_of(card) for card in evidence.cards}
    stories = [
        (address, known)
        for address in dict.fromkeys(one.pci_address for one in errors)
        if (known := xids.story([one for one in errors if one.pci_address == address])) is not None
    ]
    if not stories:
        return None
    stories.sort(key=lambda pair: VERDICTS.index(pair[1].verdict), reverse=True)
    address, worst = stories[0]
    called = {place: f"{name} ({place})" for place, name in names.items()}
    told = [
        f"{called.get(place, place)}: {', '.join(part for part in (one.title, one.message) if part)}"
        for place, one in stories
    ]
    rows = [row for _, one in stories for row in one.evidence["xids"]]
    fix = worst.fix.format(card=address) if worst.fix else ""
    return Seen("; ".join(told), {"xids": rows}, fix, verdict=worst.verdict)


def _unreadable(evidence: Evidence) -> Seen | None:
    if evidence.stack.log is not None or evidence.stack.log_error is None or not evidence.is_nvidia_here:
        return None
    return Seen(f"the kernel's log cannot be read: {evidence.stack.log_error}", {"error": evidence.stack.log_error})


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="log.xid",
        rung=None,
        verdict="fail",
        certainty="strong",
        title="Xid errors in the kernel's log",
        meaning="The driver reports a GPU's errors to the kernel as Xid numbers. A failure where NVIDIA's catalogue "
        "asks for a reset, a reboot or a mechanical check, and the driver was not loaded again since; a remark where "
        "the program made a mistake or NVIDIA says to ignore it. Xid 154 says itself what the GPU needs.",
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
