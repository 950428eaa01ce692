"""Judge the correctness of products: the first result against float64, later ones against the first. Pure.

Every run is judged: one that is wrong makes the product wrong, however many others were right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import remarks
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

AGAIN = "rerun, then `gpucheck smoke`; if it is wrong twice, the device is faulty"

# What a check of a first result says, in the evidence.
_CHECKED = (
    "worst_error_of_bound",
    "not_finite",
    "smallest_detectable_error",
    "column_sums",
    "wrong_element",
    "operands_spread",
)
# A result that is so far off is no number of a product's at all: how far says nothing more.
MANY_TIMES = 1e6


def label(measurement: Measurement) -> str:
    """A product in words."""
    case = measurement.case
    return f"{case['dtype']} {case['m']}x{case['n']}x{case['k']}"


def is_as_asked(measurement: Measurement) -> bool:
    """Return whether it was computed in the precision asked for. If not, that is what is wrong, and no result is."""
    return measurement.method.precision_observed == measurement.method.precision_requested


def by_product(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The rows of each product by its label: runs that differ in their method, as in precision, are several rows."""
    found: dict[str, list[Measurement]] = {}
    for one in measurements:
        found.setdefault(label(one), []).append(one)
    return found


def details_of(rows: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return what was observed in each run of these rows."""
    return [run["details"] for one in rows for run in runs.each(one)]


def in_runs(count: int, rows: Iterable[Measurement]) -> str:
    """In how many of a product's runs something was seen, in words; empty where it was in all of them."""
    total = sum(len(runs.each(one)) for one in rows)
    return "" if count == total else f" (in {count} of {total} runs)"


def first_results(measurements: Sequence[Measurement]) -> Finding:
    """The first result of each row and run: sampled rows, and every element in sums of 64 columns."""
    evidence: dict[str, Any] = {}
    wrong: list[str] = []
    unclear: list[str] = []
    for name, rows in by_product(measurements).items():
        as_asked = details_of(one for one in rows if is_as_asked(one))
        worst = max(as_asked or details_of(rows), key=_badness)
        evidence[name] = {name: worst.get(name) for name in _CHECKED}
        wrong_runs = sum(is_wrong(details) for details in as_asked)
        unclear_runs = sum(_sums(details) > 1 for details in as_asked)
        if wrong_runs:
            wrong.append(f"{name}: {_first_told(worst)}{in_runs(wrong_runs, rows)}")
        elif unclear_runs:
            unclear.append(f"{name}{in_runs(unclear_runs, rows)}")
    if wrong:
        return Finding("matmul.result", "fail", "a result is wrong", "; ".join(wrong), evidence, fix=AGAIN)
    if unclear:
        title = "column sums of a result differ by more than rounding explains"
        told = f"{', '.join(unclear)}; every single element is within its bound"
        return Finding("matmul.result", "warn", title, told, evidence, fix=AGAIN)
    title = "all results agree with float64"
    return Finding("matmul.result", "pass", title, "sampled rows, and every element in column sums", evidence)


def later_told(measurement: Measurement) -> str:
    """Which later result is wrong, and where; empty where none is, or where none was compared."""
    seen = _later([measurement])
    if seen is None:
        return ""
    beyond = is_as_asked(measurement) and _size((seen["worst"] or {"worst": 0.0})["worst"]) > 1
    return _later_text(measurement, seen) if beyond or seen["results_vanished"] else ""


def _later(rows: Sequence[Measurement]) -> dict[str, Any] | None:
    """Return what the comparisons of all runs came to; None where nothing was compared."""
    seen = [details["corruption"] for details in details_of(rows) if "corruption" in details]
    if not seen:
        return None
    elements = [entry["worst"] for entry in seen if entry["worst"] is not None]
    worst = max(elements, key=lambda element: _size(element["worst"]), default=None)
    # Documents of older versions do not tell all of them.
    total = {name: sum(entry.get(name, 0) for entry in seen) for name in _COUNTED}
    return {**total, "worst": worst, "detects": seen[0]["detects"]}


def _later_text(measurement: Measurement, seen: Mapping[str, Any]) -> str:
    compared = f"{seen['results_differing']} of {seen['results_compared']} results differ"
    told = [f"{label(measurement)}: {compared}"]
    if seen["worst"] is not None:
        told.append(_told(seen["worst"]))
    if gone := seen["results_vanished"]:
        told.append(f"{gone} only once: a memory read or the comparison gave two answers")
    return ", ".join(told)


def later_results(measurements: Sequence[Measurement]) -> list[Finding]:
    """Return what was computed again from the same inputs, bit for bit. Nothing where it was not compared."""
    evidence: dict[str, Any] = {}
    wrong: list[str] = []
    unsteady: list[str] = []
    for name, rows in by_product(measurements).items():
        for one in rows:
            if told := later_told(one):
                wrong.append(told)
            elif (seen := _later([one])) is not None and seen["worst"] is not None:
                unsteady.append(_later_text(one, seen))
        if (together := _later(rows)) is not None:
            evidence[name] = together
    if not evidence:
        return []
    compared = sum(entry["results_compared"] for entry in evidence.values())
    if wrong:
        title = "a repeated result is wrong"
        return [Finding("matmul.corruption", "fail", title, "; ".join(wrong), evidence, fix=AGAIN)]
    if unsteady:
        title = "repeated results differ within rounding"
        return [Finding("matmul.corruption", "info", title, "; ".join(unsteady), evidence)]
    if not compared:
        return [
            Finding(
                "matmul.corruption",
                "inconclusive",
                remarks.UNVERIFIED,
                "no result was repeated",
                evidence,
                remarks.RERUN,
            )
        ]
    title = "repeated results are bit-identical"
    return [Finding("matmul.corruption", "pass", title, f"{compared} results compared", evidence)]


_COUNTED = ("results_compared", "results_differing", "results_examined", "results_vanished", "elements_differing")


def _size(value: float | None) -> float:
    """An error as a share of its bound; documents hold None for what is infinite."""
    return math.inf if value is None or math.isnan(value) else value


def _sums(details: Mapping[str, Any]) -> float:
    return _size(details["column_sums"]["worst_of_threshold"]) if "column_sums" in details else 0.0


def _never_drawn(details: Mapping[str, Any]) -> bool:
    """Return whether the operands hold no random data: a product of zeros is zero, also where nothing was computed."""
    return details.get("operands_spread") == 0


def is_wrong(details: Mapping[str, Any]) -> bool:
    """Return whether the result that a run checked against float64 is wrong, or a product of nothing."""
    beyond = _size(details["worst_error_of_bound"]) > 1
    counts = details["not_finite"] or details.get("miscounted")
    element = details.get("wrong_element")
    return beyond or bool(counts) or (element is not None and _size(element["worst"]) > 1) or _never_drawn(details)


def _badness(details: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """Sorts runs: what is wrong counts most, then what is unclear, then how far off rows are within their bound."""
    sums = _sums(details)
    return is_wrong(details), sums > 1, _size(details["worst_error_of_bound"]), sums


def _first_told(details: Mapping[str, Any]) -> str:
    element, told = details.get("wrong_element"), []
    if element is not None:
        told.append(_told(element))
    elif _size(details["worst_error_of_bound"]) > 1:
        told.append(f"error {_times(details['worst_error_of_bound'])} its bound")
    if details["not_finite"]:
        told.append(f"{details['not_finite']} elements not finite")
    if details.get("miscounted"):
        told.append("the device's own count of finite elements is garbage")
    if _never_drawn(details):
        told.append("the operands hold no random numbers")
    return ", ".join(told)


def _told(element: Mapping[str, Any]) -> str:
    """An element of a result against float64, in words."""
    got = element["got"]
    value = "no number" if got is None or not math.isfinite(got) else f"{got:.9g}"
    far = "" if value == "no number" else f" ({_times(element['worst'])} its bound)"
    where = f"row {element['row']}, column {element['column']}"
    return f"{where} is {value}, float64 gives {element['expected']:.9g}{far}"


def _times(value: float | None) -> str:
    size = _size(value)
    if not math.isfinite(size):
        return "infinitely far beyond"
    return f"{units.significant(size)} times" if size < MANY_TIMES else "more than a million times"
