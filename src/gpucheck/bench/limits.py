"""Thresholds that were set: which figures each judges, and whether they meet it. Pure.

A threshold is met where the whole interval of every figure meets it, and missed where none of a figure's interval does;
all else cannot be told: an interval that straddles it or is not known, a figure that is missing, a peak that is not
known or only estimated, and a miss that was seen beside other work or on a throttled clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucheck import thresholds, units
from gpucheck.bench import chosen
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.thresholds import BY_ID, Limit

# What makes a figure low and is not the device's doing: a miss beside it fails nothing.
DISTURBING = ("throttled", "noisy", "cpu-busy")
AGAIN = "run it again on a machine at rest, with a longer --time-budget or --runs 7"


@dataclass(frozen=True, slots=True)
class Figure:
    """What is held against a threshold, in its unit, with the interval; None is unknown, `why` says why.

    `doubt` is why a known figure still decides nothing.
    """

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    disturbed: tuple[str, ...] = ()
    why: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a share is a share of, in SI; None is unknown. `doubt` is why, or why it decides nothing."""

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]
# The figures of one device's measurements that a threshold is about.
Figures = Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def judge(
    findings: Sequence[Finding],
    measurements: Sequence[Measurement],
    limits: Sequence[Limit],
    device: DeviceRef,
    *,
    complete: bool = True,
) -> list[Finding]:
    """One device's findings with those that the thresholds ask for, put in the place of what they replace.

    What the benchmark itself says of peaks and links is taken from its findings. `complete` is False where rows may be
    missing: nothing is passed then.
    """
    known = ceilings(findings)
    asked = {one.id: one for one in thresholds.applying(limits, device.name) if one.id in TABLE}
    made = {}
    for name, one in asked.items():
        before = next((finding for finding in findings if finding.id == name), None)
        made[name] = _finding(one, measurements, known, device.id, before, complete=complete)
    kept = [made.pop(finding.id, finding) for finding in findings]
    return [*kept, *made.values()]


def again(findings: Sequence[Finding], measurements: Sequence[Measurement]) -> list[Finding]:
    """Judge anew what was judged by thresholds in one process, by the measurements of several."""
    found = []
    for finding in findings:
        if "threshold" in finding.evidence:
            device, evidence = finding.evidence["device"], finding.evidence
            known = {key: Ceiling(**value) for key, value in evidence["ceilings"].items()}
            mine = [one for one in measurements if one.device.id == device]
            finding = _finding(from_json(Limit, evidence["threshold"]), mine, known, device, finding)
        found.append(finding)
    return found


def is_gate(finding: Finding) -> bool:
    """Whether a finding answers to a threshold that was set."""
    return "threshold" in finding.evidence


def ceilings(findings: Sequence[Finding]) -> dict[str, Ceiling]:
    """What a device can do at most, as its findings tell it: `link`, `memory`, and each dtype of products."""
    found: dict[str, Ceiling] = {}
    for finding in findings:
        evidence = finding.evidence
        doubt = f"the peak is an estimate: {evidence.get('because')}" if evidence.get("kind") == "estimate" else ""
        if finding.id == "transfer.link":
            limit = evidence.get("limit_bytes_per_s")
            found["link"] = Ceiling(limit, "" if limit else finding.message)
        elif finding.id == "bandwidth.share_of_peak":
            peak = evidence.get("peak_bytes_per_s")
            found["memory"] = Ceiling(peak, doubt if peak else finding.message)
        elif finding.id == "matmul.share_of_peak":
            peaks = evidence.get("peaks", {})
            found |= {dtype: Ceiling(peak["flop_per_s"], doubt) for dtype, peak in peaks.items()}
            if not peaks:
                found["products"] = Ceiling(None, finding.message)
    return found


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
    found = figures(measurements, known) or [Figure(subject, why="nothing was measured")]
    told = [_told(figure, limit) for figure in found]
    verdicts = [verdict for verdict, _ in told]
    verdict: Verdict = "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"
    texts = [text for _, text in told]
    if verdict == "pass" and not complete:
        verdict, texts = "inconclusive", [*texts, "not every row was measured"]
    reach = f"{thresholds.told(limit)}{bound}"
    title = {
        "pass": f"{subject} reach {reach}",
        "fail": f"{subject} do not reach {reach}",
        "inconclusive": f"it cannot be told whether {subject} reach {reach}",
    }[verdict]
    evidence: dict[str, Any] = {
        **(before.evidence if before else {}),
        "threshold": to_json(limit),
        "device": device,
        "ceilings": to_json(dict(known)),
        "figures": to_json(found),
    }
    message = f"{'; '.join(texts)} (set by {limit.origin})"
    # What is not known is not known the next time either.
    unclear = [one for one, (word, _) in zip(found, told, strict=True) if word == "inconclusive" and one.value]
    retry = verdict == "inconclusive" and any(not one.doubt for one in unclear)
    return Finding(limit.id, verdict, title, message, evidence, AGAIN if retry else None)


def _told(figure: Figure, limit: Limit) -> tuple[Verdict, str]:
    """The verdict of one figure, and the figure in words with what speaks against it."""
    kind = BY_ID[limit.id].kind
    if figure.value is None:
        return "inconclusive", f"{figure.label}: {figure.why}"
    text = f"{figure.label} {thresholds.amount(kind, figure.value)}"
    if figure.low is None or figure.high is None:
        return "inconclusive", f"{text}, and no interval: too few samples"
    text += f" ({thresholds.amount(kind, figure.low)} to {thresholds.amount(kind, figure.high)})"
    if figure.doubt:
        return "inconclusive", f"{text}; {figure.doubt}"
    if figure.low >= limit.value:
        return "pass", text
    if figure.disturbed:
        return "inconclusive", f"{text}, but {' and '.join(figure.disturbed)}"
    return ("fail", text) if figure.high < limit.value else ("inconclusive", f"{text} straddles it")


# -- figures ----------------------------------------------------------------------------------------------------------


def _rate(label: str, one: Measurement, ceiling: Ceiling | None = None) -> Figure:
    """A row's rate, as a share of the ceiling where there is one."""
    if one.rate is None or one.time_s is None:
        return Figure(label, why="the call takes most of its time")
    if ceiling is not None and ceiling.value is None:
        return Figure(label, why=ceiling.doubt)
    scale = ceiling.value if ceiling is not None and ceiling.value is not None else 1.0
    value, time_s = one.rate.median / scale, one.time_s
    return Figure(
        label,
        value,
        value * time_s.median / time_s.ci_high if time_s.ci_high else None,
        value * time_s.median / time_s.ci_low if time_s.ci_low else None,
        disturbed(one),
        doubt=ceiling.doubt if ceiling else "",
    )


def disturbed(one: Measurement) -> tuple[str, ...]:
    """Which disturbances most of a row's runs were flagged for."""
    runs = [run["flags"] for run in one.method.details.get("each_run", ())] or [one.flags]
    return tuple(flag for flag in DISTURBING if sum(flag in flags for flags in runs) > len(runs) / 2)


def _largest_copies(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return [
        Figure(chosen.WAYS[way], why="no pinned copy was measured")
        if one is None
        else _rate(f"{chosen.WAYS[way]}, {units.capacity(chosen.size(one))},", one)
        for way, one in chosen.largest_copies(measurements).items()
    ]


def _links(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    ceiling = known.get("link", Ceiling(None, "no large pinned copy was timed by the device's clock"))
    figures = []
    for way, rows in chosen.copies(measurements).items():
        timed = [one for one in rows if one.case["timed"] == "link" and one.rate is not None]
        if not timed:
            figures.append(Figure(chosen.WAYS[way], why="no pinned copy was timed by the device's clock"))
            continue
        figures.append(_rate(chosen.WAYS[way], max(timed, key=chosen.rate), ceiling))
    return figures


def _gains(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    figures = []
    for way, rows in chosen.copies(measurements).items():
        called = [one for one in rows if one.case["timed"] == "as_called" and one.time_s is not None]
        pageable, pinned = (
            {chosen.size(one): one for one in called if one.case["host_memory"] == kind} for kind in KINDS
        )
        both = pageable.keys() & pinned.keys()
        if not both:
            figures.append(Figure(chosen.WAYS[way], why="no size was copied from pageable and from pinned memory"))
            continue
        figures.append(_gain(chosen.WAYS[way], pageable[max(both)], pinned[max(both)]))
    return figures


KINDS = ("pageable", "pinned")


def _gain(label: str, slow: Measurement, fast: Measurement) -> Figure:
    over, under = slow.time_s, fast.time_s
    assert over is not None and under is not None
    return Figure(
        label,
        over.median / under.median,
        over.ci_low / under.ci_high if over.ci_low and under.ci_high else None,
        over.ci_high / under.ci_low if over.ci_high and under.ci_low else None,
        tuple(dict.fromkeys((*disturbed(slow), *disturbed(fast)))),
    )


def _operations(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return _memory(measurements, None)


def _operations_of_peak(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return _memory(measurements, known.get("memory", Ceiling(None, "the part's peak is not known")))


def _memory(measurements: Sequence[Measurement], ceiling: Ceiling | None) -> list[Figure]:
    return [
        _rate(operation, one, ceiling)
        if one.method.cache == "cold"
        else Figure(operation, why="what it moves fits into the cache")
        for operation, one in chosen.largest_arrays(measurements).items()
    ]


def _fastest(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = chosen.fastest_products(measurements)
    # Operations on whole numbers are no FLOP.
    rates = [_rate(dtype, one) for dtype, one in best.items() if one.rate is None or one.rate.unit != "OP/s"]
    return sorted(rates, key=lambda figure: figure.value or 0.0)[-1:]


def _products_of_peak(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = chosen.fastest_products(measurements)
    figures = [_rate(dtype, one, known[dtype]) for dtype, one in best.items() if dtype in known]
    if figures or not best:
        return figures
    return [replace(_NO_PEAK, why=known["products"].doubt if "products" in known else _NO_PEAK.why)]


_NO_PEAK = Figure("products", why="the part's peak is not known")

# What reaches it, of what, and the figures.
TABLE: dict[str, tuple[str, str, Figures]] = {
    "transfer.min_gbps": ("copies", "", _largest_copies),
    "transfer.link": ("pinned copies", " of the link", _links),
    "transfer.pinned_speedup": ("pinned copies", " the rate of pageable ones", _gains),
    "bandwidth.min_gbps": ("memory operations", "", _operations),
    "bandwidth.min_percent_of_peak": ("memory operations", " of the memory's peak", _operations_of_peak),
    "matmul.min_tflops": ("products", "", _fastest),
    "matmul.min_percent_of_peak": ("products", " of the dense peak", _products_of_peak),
}
