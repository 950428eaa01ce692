"""Thresholds that were set: whether the figures that each judges meet it. Pure.

A threshold is met where the whole interval of every figure meets it, and missed where none of a figure's interval does.
All else is inconclusive: an interval that straddles it or is unknown, a missing figure, a peak that is unknown or only
estimated, and a miss beside other work or on a throttled clock. But a figure so far from its threshold that nothing
recorded could bridge the gap has missed it (`thresholds.BRIDGES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import naming, thresholds, units
from gpucheck.bench.figures import TABLE, Ceilings, Figure
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.thresholds import BY_ID, Limit

LOOK = "gpucheck devices --processes shows clocks, heat and other programs on the device"
AGAIN = "rerun on an idle machine, with a longer --time-budget or --runs 7"


def judge(
    findings: Sequence[Finding],
    measurements: Sequence[Measurement],
    limits: Sequence[Limit],
    device: DeviceRef,
    known: Ceilings,
    *,
    complete: bool = True,
) -> list[Finding]:
    """One device's findings with those that the thresholds ask for, put in the place of what they replace.

    `known` is what shares are shares of. `complete` is False where rows may be missing: nothing is passed then.
    """
    asked = {one.id: one for one in thresholds.applying(limits, device.name) if one.id in TABLE}
    made = {}
    for name, one in asked.items():
        before = next((finding for finding in findings if finding.id == name), None)
        made[name] = _finding(one, measurements, known, device.id, before, complete=complete)
    kept = [made.pop(finding.id, finding) for finding in findings]
    return [*kept, *made.values()]


def by_other_names(limits: Sequence[Limit], facts: Facts, device_ids: Sequence[str]) -> list[str]:
    """In a line each, the devices for which nothing is asked by name though there is of others: a name may be wrong."""
    known = sorted({one.device for one in limits if one.device is not None})
    if not known:
        return []
    listed = ", ".join(f'"{name}"' for name in known)
    names = dict.fromkeys(one.name or one.id for one in facts.devices if one.id in device_ids)
    return [f'no threshold is set for "{name}"; the settings name {listed}' for name in names if name not in known]


def is_gate(finding: Finding) -> bool:
    """Return whether a finding answers to a threshold that was set."""
    return "threshold" in finding.evidence


def _finding(
    limit: Limit,
    measurements: Sequence[Measurement],
    known: Ceilings,
    device: str,
    before: Finding | None,
    *,
    complete: bool = True,
) -> Finding:
    subject, bound, figures = TABLE[limit.id]
    found = figures(measurements, known) or [Figure(subject, why=_nothing(measurements, limit))]
    told = [_told(figure, limit) for figure in found]
    verdicts = [verdict for verdict, _ in told]
    verdict: Verdict = "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"
    # The figures that decide, the worst first; all are in the evidence.
    order = sorted(range(len(found)), key=lambda place: found[place].value or 0.0)
    texts = [told[place][1] for place in order if told[place][0] == verdict]
    if verdict == "pass" and not complete:
        verdict, texts = "inconclusive", [*texts, "some rows were not measured"]
    reach = f"{thresholds.told(limit)}{bound}"
    least = f"{thresholds.amount(BY_ID[limit.id].kind, limit.value)}{bound}"
    title = {
        "pass": f"{subject} reach {reach} ({limit.origin})",
        "fail": f"{subject} below {least} ({limit.origin})",
        "inconclusive": f"inconclusive: {subject} vs. {least} ({limit.origin})",
    }[verdict]
    evidence: dict[str, Any] = {
        **(before.evidence if before else {}),
        "threshold": to_json(limit),
        "device": device,
        "ceilings": to_json(dict(known)),
        "complete": complete,
        "figures": to_json(found),
    }
    message = naming.few(texts)
    # What is not known is not known the next time either.
    unclear = [one for one, (word, _) in zip(found, told, strict=True) if word == "inconclusive" and one.value]
    retry = verdict == "inconclusive" and any(not one.doubt for one in unclear)
    return Finding(limit.id, verdict, title, message, evidence, LOOK if verdict == "fail" else AGAIN if retry else None)


def _nothing(measurements: Sequence[Measurement], limit: Limit) -> str:
    """Why there is no figure at all."""
    name = limit.id.partition(".")[0]
    if any(one.name == name for one in measurements):
        return "no row has a rate to compare"
    return "nothing was measured"


def _told(figure: Figure, limit: Limit) -> tuple[Verdict, str]:
    """The verdict of one figure, and the figure in words with what speaks against it."""
    kind = BY_ID[limit.id].kind
    if figure.value is None:
        return "inconclusive", f"{figure.label}: {figure.why}"
    text = f"{figure.label} {thresholds.amount(kind, figure.value)}"
    if too_far := _too_far(figure, limit):
        return "fail", "; ".join((f"{text}, {too_far}", *figure.causes))
    if figure.why:
        return "inconclusive", f"{figure.label}: {figure.why}"
    if figure.low is None or figure.high is None:
        return "inconclusive", f"{text}, no interval: too few samples"
    if figure.doubt:
        return "inconclusive", f"{text}; {figure.doubt}"
    if figure.low >= limit.value:
        return "pass", text
    if figure.disturbed:
        return "inconclusive", f"{text}, but {' and '.join(figure.disturbed)}"
    if figure.high >= limit.value:
        text += f", interval {thresholds.amount(kind, figure.low)} to {thresholds.amount(kind, figure.high)}"
    return "fail" if figure.high < limit.value else "inconclusive", "; ".join((text, *figure.causes))


def _too_far(figure: Figure, limit: Limit) -> str:
    """By how much a figure misses a threshold that nothing recorded beside it could bridge; empty where it could."""
    assert figure.value is not None
    beside = list(figure.disturbed)
    if figure.low is None or figure.high is None:
        beside.append("no interval")
    if figure.doubt:
        beside.append("estimate")
    if figure.why:
        beside.append("warm")
    best = max(one for one in (figure.value, figure.high, figure.best) if one is not None)
    if not beside or best * thresholds.bridge(beside) >= limit.value:
        return ""
    times = f"1/{units.significant(limit.value / best, 2)}" if best > 0 else "zero"
    *others, last = (_EXPLAINED[one] for one in beside)
    reasons = f"{', '.join(others)} and {last}" if others else last
    return f"{times} of the threshold, more than {reasons} can explain"


_EXPLAINED = {
    "noisy": "noise",
    "cpu-busy": "machine busy",
    "throttled": "a throttled clock",
    "no interval": "too few samples",
    "estimate": "an estimated peak",
    "warm": "a cache",
}
