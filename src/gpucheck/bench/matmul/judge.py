"""Judge measured products: wrong precision or a wrong result fails, whatever the speed. Pure.

A first result is held against float64, later ones against the first. Every run is judged: one that is wrong makes the
product wrong, however many others were right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gpucheck import peaks, stats, units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceiling, Ceilings, Figure, Judge, Seen, Threshold, headline, rate
from gpucheck.bench.matmul import Shape
from gpucheck.measure import runs
from gpucheck.measure.telemetry import ROW_TOO_SHORT
from gpucheck.messages import FIX
from gpucheck.peaks import Part, Peak, Unknown
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run
from gpucheck.report.results.bench import Headline, SearchedShape, SearchResult

AGAIN = FIX["wrong data"]

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
    return judging.by(label, measurements)


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


def later(measurement: Measurement) -> tuple[Literal["wrong", "unsteady", ""], str]:
    """Return whether a later result is wrong or only differs, and where, in words; nothing where none was compared."""
    seen = _later([measurement])
    if seen is None:
        return "", ""
    compared = f"{seen['results_differing']} of {seen['results_compared']} results differ"
    told = [f"{label(measurement)}: {compared}"]
    worst = seen["worst"]
    if worst is not None:
        told.append(_told(worst))
    if gone := seen["results_vanished"]:
        told.append(f"{gone} only once: a memory read or the comparison gave two answers")
    beyond = worst is not None and is_as_asked(measurement) and _size(worst["worst"]) > 1
    return "wrong" if beyond or gone else "unsteady" if worst is not None else "", ", ".join(told)


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


def later_results(measurements: Sequence[Measurement]) -> list[Finding]:
    """Return what was computed again from the same inputs, bit for bit. Nothing where it was not compared."""
    evidence: dict[str, Any] = {}
    each: list[tuple[str, str]] = []
    for name, rows in by_product(measurements).items():
        each += map(later, rows)
        if (together := _later(rows)) is not None:
            evidence[name] = together
    if not evidence:
        return []
    compared = sum(entry["results_compared"] for entry in evidence.values())
    wrong, unsteady = ([text for kind, text in each if kind == what] for what in ("wrong", "unsteady"))
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
                judging.UNVERIFIED,
                "no result was repeated",
                evidence,
                judging.RERUN,
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
        told.append("the device's own count of finite elements is invalid")
    if _never_drawn(details):
        told.append("the operands are not random numbers")
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


# -- one device --------------------------------------------------------------------------------------------------------

NAME = "matmul"
SUSTAINED = "matmul.sustained"

# Why a shape has no rate on a device whose work takes no time, by its own clock.
TOO_FAST = "it was shorter than the clock's resolution"
# Clocks come down within about a second of load; windows that begin in it are the burst.
BURST_S = 1.0
# Below so many samples no trend can be told.
FEWEST_FOR_A_TREND = 2 * stats.FEWEST_SAMPLES

# Why NVML says that a clock is held, and what that means.
_CAUSES = {
    "hw_thermal_slowdown": "too hot",
    "sw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "the power supply requested less",
    "hw_slowdown": "heat or a weak power supply",
}


def fastest_products(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The fastest product of each dtype that was computed in the precision asked for, and not emulated."""
    right = [
        one
        for one in measurements
        if one.rate is not None
        and one.method.precision_observed == one.method.precision_requested
        and one.case.get("support") != "emulated"
    ]
    return judging.best(right, "matmul", "dtype", rate)


def findings(seen: Seen) -> list[Finding]:
    """Return what one device's rows say, of one run or of several, and its searches and long runs."""
    usual = [one for one in seen.rows if one.name == NAME]
    searches = [one for one in seen.recorded.get("bench_matmul_search", ()) if one.device == seen.device]
    reason = "the device supports none of the requested products, or has no memory for them"
    found = [Finding("matmul.speed", "skip", "nothing was timed", reason)]
    if usual:
        found = [
            _precision(usual, seen.facts.environment),
            first_results(usual),
            *later_results(usual),
            *_fastest(usual),
            *share_of_products(usual, seen.part),
            *judging.clock("matmul.clock", usual),
            *judging.cpu_busy("matmul.cpu_busy", usual, seen.facts),
        ]
    return [*found, *efficiency(seen.rows), *search(searches, usual), *sustained(seen.rows)]


def ceilings(seen: Seen) -> Ceilings:
    """The dense peak of each dtype that was multiplied in."""
    return product_ceilings(fastest_products(seen.rows), seen.part)


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The fastest product of each dtype, as a share of its peak: `8192×8192` for square matrices, else M×N×K."""
    found = []
    for dtype, one in fastest_products(seen.rows).items():
        sides = [str(one.case[side]) for side in "mnk"]
        text = "×".join(sides[:2] if len(set(sides)) == 1 else sides)
        found.append(headline(NAME, f"{dtype}, {text}", one, known.get(dtype), "the peak"))
    return found


# -- what all rows say -------------------------------------------------------------------------------------------------


def _precision(measurements: Sequence[Measurement], environment: Mapping[str, str]) -> Finding:
    evidence: dict[str, Any] = {}
    told = []
    for product, rows in by_product(measurements).items():
        observed = list(dict.fromkeys(one.method.precision_observed for one in rows))
        evidence[product] = observed[0] if len(observed) == 1 else observed
        if wrong := [one for one in rows if not is_as_asked(one)]:
            names = " and ".join(dict.fromkeys(judging.precision_text(one.method.precision_observed) for one in wrong))
            count = sum(len(runs.each(one)) for one in wrong)
            told.append(f"{product} computed in {names}{in_runs(count, rows)}")
    if not told:
        return Finding("matmul.precision", "pass", "all products have the requested precision", evidence=evidence)
    return Finding(
        "matmul.precision",
        "fail",
        "a product does not have the requested precision",
        "; ".join(told),
        evidence,
        fix=judging.precision_fix(environment),
    )


def _fastest(measurements: Sequence[Measurement]) -> list[Finding]:
    """The best rate of each dtype, and what a lower precision would gain."""
    best: dict[str, tuple[float, str]] = {}
    for one in measurements:
        if one.rate is not None:
            dtype = str(one.case["dtype"])
            best[dtype] = max(best.get(dtype, (0.0, "")), (one.rate.median, one.rate.unit))
    if not best:
        return []
    told = ", ".join(f"{dtype} {units.flop_rate(rate, unit)}" for dtype, (rate, unit) in best.items())
    rates = {dtype: rate for dtype, (rate, _) in best.items()}
    found = [Finding("matmul.speed", "info", "fastest", told, {"flop_per_s": rates})]
    plain, tf32 = rates.get("float32"), rates.get("tf32")
    # Below this the gain is within what shapes and clocks change.
    if plain and tf32 and tf32 > 1.2 * plain:
        found.append(
            Finding(
                "matmul.tf32_gain",
                "info",
                f"TF32 is {units.significant(tf32 / plain, 2)}× faster than float32 here",
                "with 10 bits of mantissa",
                {"gain": tf32 / plain},
                fix=f'torch.set_float32_matmul_precision("high"): TF32, {units.significant(tf32 / plain, 2)}× faster',
            )
        )
    return found


# -- operations per joule ----------------------------------------------------------------------------------------------


def efficiency(measurements: Sequence[Measurement]) -> list[Finding]:
    """Operations per joule, for the best of each dtype; nothing where no row was read at all, as on a CPU.

    Power is the energy counter's over a whole row of at least two seconds: what a driver calls its power now is an
    average of the last second on recent parts, and says nothing of a short row. Between the windows of a row the device
    rests, and takes less: its rate counts for the time at work alone. A long run without a pause tells more: where
    there is one, it counts. Of a row in several runs it is the mean power of those that counted it.
    """
    read = [one for one in measurements if any(run["telemetry"] is not None for run in runs.each(one))]
    timed = [one for one in read if one.rate is not None]
    if not timed:
        return []
    best: dict[str, dict[str, Any]] = {}
    for one in sorted(timed, key=lambda row: row.name != SUSTAINED):
        entry, dtype = _per_joule(one), str(one.case["dtype"])
        known = best.get(dtype)
        if entry is None or (known is not None and known["row"] == SUSTAINED != one.name):
            continue
        if known is None or entry["flop_per_joule"] > known["flop_per_joule"]:
            best[dtype] = entry
    # The long run's reason counts: it is what would have told.
    ranked = sorted(timed, key=lambda row: row.name == SUSTAINED)
    unknown = {str(one.case["dtype"]): _why_no_power(one) for one in ranked if str(one.case["dtype"]) not in best}
    evidence = {"efficiency": {**best, **dict.fromkeys(unknown)}, "because": unknown}
    if not best:
        reason = next(iter(unknown.values()))
        # A longer run helps where the rows were short, and where there was none.
        sustained = any(one.name == SUSTAINED for one in timed)
        advice = "; --sustain runs long enough" if reason == ROW_TOO_SHORT and not sustained else ""
        return [Finding("matmul.efficiency", "info", "rate per watt unknown", f"{reason}{advice}", evidence)]
    told = ", ".join(
        f"{dtype} {units.flop_rate(it['flop_per_joule'], it['unit'])} per W at {it['power_w']:.0f} W"
        for dtype, it in best.items()
    )
    return [Finding("matmul.efficiency", "info", "rate per watt", told, evidence)]


def _per_joule(one: Measurement) -> dict[str, Any] | None:
    powers = [run["telemetry"]["power_w"] for run in runs.each(one) if (run["telemetry"] or {}).get("power_w")]
    if one.rate is None or not powers:
        return None
    power_w = sum(powers) / len(powers)
    each = one.rate.median * _at_work(one) / power_w
    return {"flop_per_joule": each, "power_w": power_w, "unit": one.rate.unit, "row": one.name}


def _at_work(one: Measurement) -> float:
    """The share of a row, from its first window to the end of its last, in which products ran, timed or not."""
    worked_s = span_s = 0.0
    for run, its in zip(one.runs, runs.each(one), strict=False):
        # The first window's untimed calls lie before it.
        worked_s += sum(run.samples_s) + runs.lead_in(run, its["details"]) * sum(run.samples_s[1:])
        span_s += run.started_monotonic_s[-1] + run.samples_s[-1] - run.started_monotonic_s[0]
    return worked_s / span_s


def _why_no_power(one: Measurement) -> str:
    reasons = [(run["telemetry"] or {}).get("unknown", {}).get("power_w") for run in runs.each(one)]
    because = [run["details"].get("no_telemetry_because") for run in runs.each(one)]
    return next((str(reason) for reason in (*reasons, *because) if reason), "the energy counter was not read")


# -- --search ----------------------------------------------------------------------------------------------------------


def search(entries: Sequence[SearchResult], measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for the searches of a device, of one run or of several; none without a search.

    Of several runs the shape counts that most of them found. The gain sets its row against the fastest of the default
    squares.
    """
    rates: dict[tuple[str, Shape], float] = {}
    # Of runs that were measured in different ways the most count.
    for one in sorted(measurements, key=lambda row: len(row.runs)):
        if one.rate is not None:
            case = one.case
            rates[str(case["dtype"]), (int(case["m"]), int(case["n"]), int(case["k"]))] = one.rate.median
    evidence, told = {}, []
    for dtype, of_runs in judging.by(lambda one: one.dtype, entries).items():
        found = [(one, one.best) for one in of_runs if one.best is not None]
        if found:
            its_rates = {shape: rate for (name, shape), rate in rates.items() if name == dtype}
            evidence[dtype] = _search_evidence(found, len(of_runs), its_rates)
            told.append(_search_told(found, evidence[dtype]))
    fastest = [Finding("matmul.search", "info", "fastest shapes found", "; ".join(told), evidence)] if told else []
    return [*fastest, *_refused(entries)]


def _refused(entries: Sequence[SearchResult]) -> list[Finding]:
    """The shapes that have no kernel, of all dtypes in one finding; none where every shape has one."""
    evidence, told = {}, []
    for dtype, of_runs in judging.by(lambda one: one.dtype, (one for one in entries if one.shapes_refused)).items():
        shapes = list({one.shape: one for entry in of_runs for one in entry.refused}.values())
        # A run names only the first of those that it tried.
        count = max(len(shapes), *(one.shapes_refused for one in of_runs))
        others = f" and {count - 1} others" if count > 1 else ""
        told.append(f"{dtype} {_text(shapes[0].shape)}{others}: {shapes[0].reason}")
        evidence[dtype] = [to_json(shape) for shape in shapes]
    if not told:
        return []
    fast = all(one.reason == TOO_FAST for entry in entries for one in entry.refused)
    title = "some shapes have no rate" if fast else "the library has no kernel for some shapes"
    return [Finding("matmul.shape", "skip", title, "; ".join(told), evidence)]


# A search, and the fastest shape that it found.
_Found = tuple[SearchResult, SearchedShape]


def _search_evidence(found: Sequence[_Found], searches: int, rates: Mapping[Shape, float]) -> dict[str, Any]:
    """Return what `searches` of one dtype came to. The figures are medians of those that found the shape."""
    by_shape = judging.by(lambda one: one[1].shape, found)
    median = {shape: stats.median([best.flop_per_s for _, best in its]) for shape, its in by_shape.items()}
    # Of two that as many found the faster one.
    shape, *others = sorted(by_shape, key=lambda sides: (-len(by_shape[sides]), -median[sides]))
    mine = by_shape[shape]
    squares = [other for other in rates if other != shape and len(set(other)) == 1]
    square = max(squares, key=rates.__getitem__, default=None)
    return {
        "shape": _text(shape),
        "flop_per_s": median[shape],
        "square": None if square is None else _text(square),
        "gain": None if square is None or shape not in rates else rates[shape] / rates[square],
        "shapes_tried": mine[0][0].shapes_tried,
        "shapes_in_range": mine[0][0].shapes_in_range,
        "as_fast": list(dict.fromkeys(text for one in mine for text in _as_fast(*one))),
        "searches": searches,
        "found_by": len(mine),
        "others_found": [_text(other) for other in others],
    }


def _as_fast(entry: SearchResult, best: SearchedShape) -> list[str]:
    """Other finalists whose interval reaches the fastest's: between these the final cannot tell."""
    if best.ci_low is None:
        return []
    return [_text(one.shape) for one in entry.finalists[1:] if one.ci_high is not None and one.ci_high >= best.ci_low]


def _search_told(found: Sequence[_Found], seen: Mapping[str, Any]) -> str:
    first = found[0][0]
    text = f"{first.dtype} {seen['shape']} {units.flop_rate(seen['flop_per_s'], first.unit)}"
    if seen["gain"] is not None:
        # A gain within a percent is within what two rows of one product differ by.
        gained = seen["gain"] - 1
        text += f", {units.percent(gained)} above" if gained >= 0.01 else ", no faster than"
        text += f" {seen['square']}"
    if seen["as_fast"]:
        others = len(seen["as_fast"]) - 1
        text += f" ({seen['as_fast'][0]}{f' and {others} others' if others else ''} as fast)"
    if seen["searches"] > 1:
        text += f", found by {seen['found_by']} of {seen['searches']} runs"
        text += f" (others found {', '.join(seen['others_found'])})" if seen["others_found"] else ""
    return text if all(entry.complete for entry, _ in found) else f"{text} (search cut off)"


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


# -- --sustain ---------------------------------------------------------------------------------------------------------


def burst_and_sustained(run: Run, work: float) -> dict[str, Any]:
    """Burst and sustained rate of a run, with the seconds that each covers; `settled` None where none can tell.

    Sustained is the last third, or the last sixth where the third still rises or falls: by more than 2 % and certainly.
    `settled` tells whether that part has no trend either.
    """
    began_s = run.started_monotonic_s[0]
    since = [start - began_s for start in run.started_monotonic_s]
    first = [length for at, length in zip(since, run.samples_s, strict=True) if at < BURST_S]
    n = len(run.samples_s)
    last: Sequence[float] = ()
    for part in (3, 6):
        last = run.samples_s[-max(n // part, 1) :]
        if not runs.drifts(last):
            break
    settled = None if len(last) < FEWEST_FOR_A_TREND else not runs.drifts(last)
    per_window = work * run.calls_per_sample
    return {
        "burst": {"flop_per_s": per_window / stats.median(first), "seconds": sum(first)},
        "sustained": {"flop_per_s": per_window / stats.median(last), "seconds": sum(last)},
        "settled": settled,
    }


def sustained(measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for all long runs of a device; none where there was none.

    One wrong result in any run fails; what is sustained is the median of several.
    """
    products = by_product([one for one in measurements if one.name == SUSTAINED])
    if not products:
        return []
    # Only rows in each run of which the clock told a rate.
    timed = {
        name: known
        for name, rows in products.items()
        if (known := [row for row in rows if all(run.get("burst") is not None for run in details_of([row]))])
    }
    evidence = {name: _sustained_evidence(rows) for name, rows in timed.items()}
    wrong = [told for name, rows in products.items() if (told := _wrong_told(name, rows))]
    if wrong:
        title, told = "a result is wrong after a long run", "; ".join(wrong)
        return [Finding(SUSTAINED, "fail", title, told, evidence, AGAIN)]
    if not timed:
        return [Finding(SUSTAINED, "skip", "no sustained rate", "the clock measured no time")]
    shares = [one["share"] for one in evidence.values()]
    low, high = units.significant(min(shares), 2), units.significant(max(shares), 2)
    title = f"sustained rate is {low} of burst" if low == high else f"sustained rate is {low} to {high} of burst"
    told = "; ".join(_sustained_told(name, rows, evidence[name]) for name, rows in timed.items())
    each = [run for rows in products.values() for row in rows for run in runs.each(row) if "throttled" in run["flags"]]
    reasons = {reason for run in each for reason in (run["telemetry"] or {}).get("clock_reasons", ())}
    throttled = [cause for cause in _CAUSES if cause in reasons]
    if not throttled:
        return [Finding(SUSTAINED, "info", title, told, evidence)]
    causes = " and ".join(dict.fromkeys(_CAUSES[cause] for cause in throttled))
    message = f"throttled: {causes} ({', '.join(throttled)}); {told}"
    return [Finding(SUSTAINED, "warn", title, message, evidence, fix=judging.CLOCK_FIXES[throttled[0]])]


def _wrong_told(name: str, rows: Sequence[Measurement]) -> str:
    """Which long runs of a product left a wrong result; empty where none did."""
    told = [text for kind, text in map(later, rows) if kind == "wrong"]
    count = sum(is_wrong(details) for details in details_of(rows))
    return "; ".join(told) or (f"{name}{in_runs(count, rows)}" if count else "")


def _sustained_evidence(rows: Sequence[Measurement]) -> dict[str, Any]:
    each = details_of(rows)
    burst, last = (stats.median([one[part]["flop_per_s"] for one in each]) for part in ("burst", "sustained"))
    settled = [one["settled"] for one in each]
    return {
        "share": stats.median([one["sustained"]["flop_per_s"] / one["burst"]["flop_per_s"] for one in each]),
        "burst_flop_per_s": burst,
        "sustained_flop_per_s": last,
        "settled": False if False in settled else None if None in settled else True,
    }


def _sustained_told(name: str, rows: Sequence[Measurement], seen: Mapping[str, Any]) -> str:
    unit = next((one.rate.unit for one in rows if one.rate), "FLOP/s")
    flags = {flag for one in rows for flag in one.flags}
    burst, last = (units.flop_rate(seen[part], unit) for part in ("burst_flop_per_s", "sustained_flop_per_s"))
    text = f"{name} {last} after {burst}"
    if seen["settled"] is False:
        text += ", not settled: use a longer --sustain"
    if "power-limited" in flags:
        text += ", at the power limit (normal at full load)"
    if "cpu-busy" in flags:
        text += ", machine busy"
    return text


# -- shares of the dense peak ------------------------------------------------------------------------------------------

# What lies between a part and a share of its peak, and is not the part's doing. torch's int8_gemm takes cuBLASLt's
# first choice without a workspace: on GB300 that was 6 to 13 times slower than TF32 (pytorch issue 187094).
REMARKS = {"int8": "torch._int_mm may choose a slow kernel (pytorch issue 187094): not a fault of the GPU"}
# On screen below this share: what the issue reports is far less, and above it the remark explains nothing.
FAR_BELOW = 0.5


def product_ceilings(best: Iterable[str], part: Part | Unknown | None) -> dict[str, Ceiling]:
    """Return what shares of these dtypes are shares of: each that has a peak by its name, else `products`, with the
    reason."""
    names = list(best)
    if part is None or not names:
        return {}
    if isinstance(part, Unknown):
        return {"products": Ceiling(None, part.reason)}
    known = {dtype: peak for dtype in names if (peak := part.peak(dtype)) is not None}
    if not known:
        return {"products": Ceiling(None, _without(part, names))}
    return {dtype: Ceiling(peak.flop_per_s, judging.doubt_of(part)) for dtype, peak in known.items()}


def _without(part: Part, dtypes: Sequence[str]) -> str:
    if part.missing:
        return part.missing
    if all(part.peak(f"{dtype}{peaks.FAST}") for dtype in dtypes):
        return "data sheets give float8 only with fast accumulation"
    return f"{part.source} gives none for {', '.join(dtypes)}"


def share_of_products(measurements: Sequence[Measurement], part: Part | Unknown | None) -> list[Finding]:
    """The fastest product of each dtype as a share of the dense peak. Nothing for a CPU or without a rate."""
    best = fastest_products(measurements)
    if not (ceilings := product_ceilings(best, part)):
        return []
    if not isinstance(part, Part) or "products" in ceilings:
        return [judging.unknown_peak("matmul.share_of_peak", ceilings["products"].doubt)]
    known = {dtype: peak for dtype in best if (peak := part.peak(dtype)) is not None}
    shares = {dtype: rate(best[dtype]) / peak.flop_per_s for dtype, peak in known.items()}
    clocks = {dtype: _clock_seen(best[dtype]) for dtype in known}
    # At another clock the part can do as much more or less.
    at_clock = {
        dtype: None if not (clock := clocks[dtype]) or not peak.clock_hz else shares[dtype] * peak.clock_hz / clock
        for dtype, peak in known.items()
    }
    without = [dtype for dtype in best if dtype not in known]
    told = ", ".join(_told_share(best[dtype], peak, shares[dtype], clocks[dtype]) for dtype, peak in known.items())
    evidence = {
        "share": shares,
        "share_at_clock_seen": at_clock,
        "clock_seen_hz": clocks,
        "peaks": {
            dtype: {
                "flop_per_s": peak.flop_per_s,
                "accumulator": peak.accumulator,
                "clock_hz": peak.clock_hz,
                "flop_per_clock_per_sm": peak.per_clock_per_sm,
            }
            for dtype, peak in known.items()
        },
        "without_peak": without,
        "without_peak_because": _without(part, without) if without else None,
        "remarks": {dtype: REMARKS[dtype] for dtype in known if dtype in REMARKS},
        **judging.provenance(part),
    }
    message = f"{told} ({_accumulators(known)}; {part.label})"
    if without and part.missing:
        message += f"; peak of {', '.join(without)} unknown: {part.missing}"
    slow = [dtype for dtype in known if dtype in REMARKS and shares[dtype] < FAR_BELOW]
    message += "".join(f"; {dtype}: {REMARKS[dtype]}" for dtype in slow)
    return [
        judging.share_of(
            "matmul.share_of_peak",
            f"share of the {judging.kind_of(part)} dense peak",
            message,
            evidence,
            part,
            or_else=", or cuBLAS emulates the dtype (env | grep CUBLAS_EMULATE)",
        )
    ]


def _clock_seen(one: Measurement) -> float | None:
    """The median SM clock inside the row's windows, over its runs; None where none of them read it."""
    seen = [(run["telemetry"] or {}).get("sm_clock_hz") for run in runs.each(one)]
    medians = [clock["median"] for clock in seen if clock]
    return statistics.median(medians) if medians else None


def _told_share(one: Measurement, peak: Peak, share: float, clock_hz: float | None) -> str:
    unit = one.rate.unit if one.rate else "FLOP/s"
    text = f"{peak.dtype} {units.percent(share)} of {units.flop_rate(peak.flop_per_s, unit)}"
    if not clock_hz or not peak.clock_hz:
        return text
    seen, of_peak = f"{clock_hz / 1e6:.0f}", f"{peak.clock_hz / 1e6:.0f}"
    return f"{text} and {units.percent(share * peak.clock_hz / clock_hz)} at the observed {seen} of {of_peak} MHz"


def _accumulators(known: Mapping[str, Peak]) -> str:
    """In what the products are added up: one for all, or each by its dtypes."""
    dtypes = judging.by(lambda dtype: known[dtype].accumulator, known)
    if len(dtypes) == 1:
        return f"{next(iter(dtypes))} accumulator"
    return "; ".join(f"{accumulator} accumulator for {', '.join(names)}" for accumulator, names in dtypes.items())


# -- thresholds --------------------------------------------------------------------------------------------------------


def _fastest_figure(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = fastest_products(measurements)
    # Operations on whole numbers are no FLOP.
    rates = [
        judging.figure(dtype, one, peak=known.get(dtype))
        for dtype, one in best.items()
        if one.rate is None or one.rate.unit != "OP/s"
    ]
    return sorted(rates, key=lambda figure: figure.value or 0.0)[-1:]


def _products_of_peak(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = fastest_products(measurements)
    figures = [judging.figure(dtype, one, known[dtype]) for dtype, one in best.items() if dtype in known]
    if figures or not best:
        return figures
    return [Figure("products", why=known["products"].doubt if "products" in known else "the GPU's peak is unknown")]


THRESHOLDS = {
    "matmul.min_tflops": Threshold("products", "", _fastest_figure),
    "matmul.min_percent_of_peak": Threshold("products", " of the dense peak", _products_of_peak),
}
JUDGE = Judge(findings, headlines, ceilings, thresholds=THRESHOLDS)
