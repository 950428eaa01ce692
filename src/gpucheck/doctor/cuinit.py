"""What cuInit answered, as the conditions tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucheck.doctor.condition import Certainty, Seen
from gpucheck.doctor.evidence import Evidence


def answers(*codes: int) -> Callable[[Evidence], Seen | None]:
    """A judge for what cuInit's answer alone proves."""

    def judge(evidence: Evidence) -> Seen | None:
        return answered(evidence) if evidence.driver.cuinit_code in codes else None

    return judge


def answered(
    evidence: Evidence,
    more: str = "",
    *,
    fix: str | None = None,
    certainty: Certainty | None = None,
    **seen: Any,
) -> Seen:
    """What cuInit answered, `more` that tells its causes apart, and further evidence."""
    driver = evidence.driver
    told = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    said = f"cuInit answers {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Seen(f"{said}; {more}" if more else said, {**told, **seen}, fix=fix, certainty=certainty)
