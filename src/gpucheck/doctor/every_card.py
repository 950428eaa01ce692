"""What `gpucheck devices` says of each card, taken over by the doctor: one condition for all cards."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.cards import checks as devices_checks
from gpucheck.doctor.condition import Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.report.facts import Device
from gpucheck.report.finding import VERDICTS

LOOKS = dict(devices_checks.CHECKS)


def taken_over(check: str) -> Callable[[Evidence], Seen | None]:
    """A judge for what this check says of every card, with the worst verdict, title and fix of them."""

    def judge(evidence: Evidence) -> Seen | None:
        if _is_the_diagnosis(check, evidence):
            return None
        told = [devices_checks.one(check, LOOKS[check], card, evidence.facts) for card in _cards(evidence)]
        found = [one for one in told if one is not None and one.verdict not in ("pass", "skip")]
        if not found:
            return None
        # info, warn, fail in the order of verdicts: the last is the worst that a card may have.
        worst = max(found, key=lambda one: VERDICTS.index(one.verdict))
        said = [
            group.message if group.title == worst.title else f"{group.message} ({group.title})"
            for group in devices_checks.grouped(found)
        ]
        seen = {"devices": [one.evidence for one in found]}
        return Seen("; ".join(said), seen, worst.fix or "", verdict=worst.verdict, title=worst.title)

    return judge


def _cards(evidence: Evidence) -> list[Device]:
    return [card for card in evidence.facts.devices if card.nvml_index is not None or card.state == "lost"]


def _is_the_diagnosis(check: str, evidence: Evidence) -> bool:
    """Whether a rung is broken by just this: it is then told there, and not twice."""
    if check in ("devices.answers", "devices.mig_empty"):
        return not evidence.cuda_works
    return check == "devices.recovery_action" and evidence.driver.cuinit_code not in (0, None)
