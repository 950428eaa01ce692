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

NAME = "matmul"
SUSTAINED = "matmul.sustained"
AGAIN = FIX["wrong data"]

Rows = Sequence[Measurement]


def label(row: Measurement) -> str:
    """A product in words."""
    return f"{row.case['dtype']} {row.case['m']}x{row.case['n']}x{row.case['k']}"


def is_as_asked(row: Measurement) -> bool:
    """Return whether it was computed in the precision asked for. If not, that is what is wrong, and no result is."""
    return row.method.precision_observed == row.method.precision_requested


def by_product(rows: Rows) -> dict[str, list[Measurement]]:
    """The rows of each product by its label: runs that differ in their method, as in precision, are several rows."""
    return judging.by(label, rows)


def details_of(rows: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return what was observed in each run of these rows."""
    return [run["details"] for row in rows for run in runs.each(row)]


def in_runs(count: int, rows: Rows) -> str:
    """In how many of a product's runs something happened, in words; empty where it was in all of them."""
    total = len(details_of(rows))
    return "" if count == total else f" (in {count} of {total} runs)"


def findings(seen: Seen) -> list[Finding]:
    """Judge one device's rows, of one run or of several, and its searches and long runs."""
    usual = [row for row in seen.rows if row.name == NAME]
    searches = [entry for entry in seen.recorded.get("bench_matmul_search", ()) if entry.device == seen.device]
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


# -- precision and results ---------------------------------------------------------------------------------------------

# Checks of a first result that stand in the evidence.
_CHECKED = (
    "worst_error_of_bound",
    "not_finite",
    "smallest_detectable_error",
    "column_sums",
    "wrong_element",
    "operands_spread",
)
# Counts of the comparisons of later results; documents of older versions have some of them.
_COUNTED = ("results_compared", "results_differing", "results_examined", "results_vanished", "elements_differing")
# Farther off, a result is no number of a product's at all, and the distance says nothing more.
MANY_TIMES = 1e6


def _precision(rows: Rows, environment: Mapping[str, str]) -> Finding:
    evidence: dict[str, Any] = {}
    texts = []
    for product, its_rows in by_product(rows).items():
        observed = list(dict.fromkeys(row.method.precision_observed for row in its_rows))
        evidence[product] = observed[0] if len(observed) == 1 else observed
        if wrong := [row for row in its_rows if not is_as_asked(row)]:
            names = " and ".join(dict.fromkeys(judging.precision_text(row.method.precision_observed) for row in wrong))
            texts.append(f"{product} computed in {names}{in_runs(len(details_of(wrong)), its_rows)}")
    if not texts:
        return Finding("matmul.precision", "pass", "all products have the requested precision", evidence=evidence)
    title, fix = "a product does not have the requested precision", judging.precision_fix(environment)
    return Finding("matmul.precision", "fail", title, "; ".join(texts), evidence, fix)


def first_results(rows: Rows) -> Finding:
    """The first result of each row and run: sampled rows, and every element in sums of 64 columns."""
    evidence: dict[str, Any] = {}
    wrong: list[str] = []
    unclear: list[str] = []
    for product, its_rows in by_product(rows).items():
        as_asked = details_of(row for row in its_rows if is_as_asked(row))
        worst = max(as_asked or details_of(its_rows), key=_badness)
        evidence[product] = {name: worst.get(name) for name in _CHECKED}
        if wrong_runs := sum(map(is_wrong, as_asked)):
            wrong.append(f"{product}: {_wrong_text(worst)}{in_runs(wrong_runs, its_rows)}")
        elif unclear_runs := sum(_sums(details) > 1 for details in as_asked):
            unclear.append(f"{product}{in_runs(unclear_runs, its_rows)}")
    if wrong:
        return Finding("matmul.result", "fail", "a result is wrong", "; ".join(wrong), evidence, AGAIN)
    if unclear:
        title = "column sums of a result differ by more than rounding explains"
        message = f"{', '.join(unclear)}; every single element is within its bound"
        return Finding("matmul.result", "warn", title, message, evidence, AGAIN)
    title = "all results agree with float64"
    return Finding("matmul.result", "pass", title, "sampled rows, and every element in column sums", evidence)


def later_results(rows: Rows) -> list[Finding]:
    """Judge what was computed again from the same inputs, bit for bit. Nothing where it was not compared."""
    evidence = {
        product: comparisons
        for product, its_rows in by_product(rows).items()
        if (comparisons := _comparisons(its_rows)) is not None
    }
    if not evidence:
        return []
    judged = [later(row) for its_rows in by_product(rows).values() for row in its_rows]
    message = "; ".join(text for kind, text in judged if kind == "wrong")
    if message:
        return [Finding("matmul.corruption", "fail", "a repeated result is wrong", message, evidence, AGAIN)]
    message = "; ".join(text for kind, text in judged if kind == "unsteady")
    if message:
        return [Finding("matmul.corruption", "info", "repeated results differ within rounding", message, evidence)]
    compared = sum(comparisons["results_compared"] for comparisons in evidence.values())
    if not compared:
        title, message = judging.UNVERIFIED, "no result was repeated"
        return [Finding("matmul.corruption", "inconclusive", title, message, evidence, judging.RERUN)]
    title = "repeated results are bit-identical"
    return [Finding("matmul.corruption", "pass", title, f"{compared} results compared", evidence)]


def later(row: Measurement) -> tuple[Literal["wrong", "unsteady", ""], str]:
    """Return whether a later result is wrong or only differs, and where, in words; nothing where none was compared."""
    comparisons = _comparisons([row])
    if comparisons is None:
        return "", ""
    worst, vanished = comparisons["worst"], comparisons["results_vanished"]
    text = f"{label(row)}: {comparisons['results_differing']} of {comparisons['results_compared']} results differ"
    if worst is not None:
        text += f", {_element_text(worst)}"
    if vanished:
        text += f", {vanished} only once: a memory read or the comparison gave two answers"
    is_beyond = worst is not None and is_as_asked(row) and _size(worst["worst"]) > 1
    return "wrong" if is_beyond or vanished else "unsteady" if worst is not None else "", text


def _comparisons(rows: Rows) -> dict[str, Any] | None:
    """The comparisons of all runs together; None where nothing was compared."""
    entries = [details["corruption"] for details in details_of(rows) if "corruption" in details]
    if not entries:
        return None
    elements = [entry["worst"] for entry in entries if entry["worst"] is not None]
    worst = max(elements, key=lambda element: _size(element["worst"]), default=None)
    total = {name: sum(entry.get(name, 0) for entry in entries) for name in _COUNTED}
    return {**total, "worst": worst, "detects": entries[0]["detects"]}


def _size(value: float | None) -> float:
    """An error as a share of its bound; documents hold None for what is infinite."""
    return math.inf if value is None or math.isnan(value) else value


def _sums(details: Mapping[str, Any]) -> float:
    return _size(details["column_sums"]["worst_of_threshold"]) if "column_sums" in details else 0.0


def is_wrong(details: Mapping[str, Any]) -> bool:
    """Return whether the result that a run checked against float64 is wrong, or a product of nothing."""
    return bool(_wrong_text(details))


def _badness(details: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """Sort runs: wrong ones count most, then unclear ones, then how far off rows are within their bound."""
    sums = _sums(details)
    return is_wrong(details), sums > 1, _size(details["worst_error_of_bound"]), sums


def _wrong_text(details: Mapping[str, Any]) -> str:
    """What is wrong with a first result; empty where nothing is."""
    element, worst = details.get("wrong_element"), details["worst_error_of_bound"]
    texts = []
    if _size(worst) > 1 or (element is not None and _size(element["worst"]) > 1):
        texts.append(f"error {_times(worst)} its bound" if element is None else _element_text(element))
    if details["not_finite"]:
        texts.append(f"{details['not_finite']} elements not finite")
    if details.get("miscounted"):
        texts.append("the device's own count of finite elements is invalid")
    # A product of zeros is zero, also where nothing was computed.
    if details.get("operands_spread") == 0:
        texts.append("the operands are not random numbers")
    return ", ".join(texts)


def _element_text(element: Mapping[str, Any]) -> str:
    """An element of a result against float64, in words."""
    got = element["got"]
    is_number = got is not None and math.isfinite(got)
    value = f"{got:.9g}" if is_number else "no number"
    far = f" ({_times(element['worst'])} its bound)" if is_number else ""
    where = f"row {element['row']}, column {element['column']}"
    return f"{where} is {value}, float64 gives {element['expected']:.9g}{far}"


def _times(value: float | None) -> str:
    size = _size(value)
    if not math.isfinite(size):
        return "infinitely far beyond"
    return f"{units.significant(size)} times" if size < MANY_TIMES else "more than a million times"


# -- rates, and shares of the dense peak -------------------------------------------------------------------------------

# TF32 that is faster by less gains nothing beyond what shapes and clocks change.
TF32_GAINS = 1.2
# The cause of a low share that is not the part's doing. torch's int8_gemm takes cuBLASLt's first choice without a
# workspace: on GB300 that was 6 to 13 times slower than TF32 (pytorch issue 187094).
REMARKS = {"int8": "torch._int_mm may choose a slow kernel (pytorch issue 187094): not a fault of the GPU"}
# On screen below this share: what the issue reports is far less, and above it the remark explains nothing.
FAR_BELOW = 0.5


def fastest_products(rows: Rows) -> dict[str, Measurement]:
    """The fastest product of each dtype that was computed in the precision asked for, and not emulated."""
    right = [row for row in rows if row.rate is not None and is_as_asked(row) and row.case.get("support") != "emulated"]
    return judging.best(right, NAME, "dtype", rate)


def _fastest(rows: Rows) -> list[Finding]:
    """The best rate of each dtype, and what a lower precision would gain."""
    best = judging.best([row for row in rows if row.rate is not None], NAME, "dtype", rate)
    if not best:
        return []
    rates = {dtype: rate(row) for dtype, row in best.items()}
    text = ", ".join(f"{dtype} {units.flop_rate(rates[dtype], _unit(row))}" for dtype, row in best.items())
    found = [Finding("matmul.speed", "info", "fastest", text, {"flop_per_s": rates})]
    plain, tf32 = rates.get("float32"), rates.get("tf32")
    if plain and tf32 and tf32 > TF32_GAINS * plain:
        faster = f"{units.significant(tf32 / plain, 2)}× faster"
        title = f"TF32 is {faster} than float32 here"
        fix = f'torch.set_float32_matmul_precision("high"): TF32, {faster}'
        message = "with 10 bits of mantissa"
        found.append(Finding("matmul.tf32_gain", "info", title, message, {"gain": tf32 / plain}, fix))
    return found


def _unit(row: Measurement) -> str:
    return row.rate.unit if row.rate else "FLOP/s"


def ceilings(seen: Seen) -> Ceilings:
    """The dense peak of each dtype that was multiplied in."""
    return product_ceilings(fastest_products(seen.rows), seen.part)


def product_ceilings(dtypes: Iterable[str], part: Part | Unknown | None) -> dict[str, Ceiling]:
    """Return the peak of each of these dtypes that has one; where none has, why, as `products`."""
    names = list(dtypes)
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


def share_of_products(rows: Rows, part: Part | Unknown | None) -> list[Finding]:
    """The fastest product of each dtype as a share of the dense peak. Nothing for a CPU or without a rate."""
    best = fastest_products(rows)
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
    texts = []
    for dtype, peak in known.items():
        text = f"{peak.dtype} {units.percent(shares[dtype])} of {units.flop_rate(peak.flop_per_s, _unit(best[dtype]))}"
        if (share := at_clock[dtype]) is not None and (clock := clocks[dtype]) and peak.clock_hz:
            text += f" and {units.percent(share)} at the observed {clock / 1e6:.0f} of {peak.clock_hz / 1e6:.0f} MHz"
        texts.append(text)
    message = f"{', '.join(texts)} ({_accumulators(known)}; {part.label})"
    if without and part.missing:
        message += f"; peak of {', '.join(without)} unknown: {part.missing}"
    slow = [dtype for dtype in known if dtype in REMARKS and shares[dtype] < FAR_BELOW]
    message += "".join(f"; {dtype}: {REMARKS[dtype]}" for dtype in slow)
    title = f"share of the {judging.kind_of(part)} dense peak"
    or_else = ", or cuBLAS emulates the dtype (env | grep CUBLAS_EMULATE)"
    return [judging.share_of("matmul.share_of_peak", title, message, evidence, part, or_else)]


def _clock_seen(row: Measurement) -> float | None:
    """The median SM clock inside the row's windows, over its runs; None where none of them read it."""
    clocks = [(run["telemetry"] or {}).get("sm_clock_hz") for run in runs.each(row)]
    medians = [clock["median"] for clock in clocks if clock]
    return statistics.median(medians) if medians else None


def _accumulators(known: Mapping[str, Peak]) -> str:
    """The type in which the products are added up: one for all, or each by its dtypes."""
    dtypes = judging.by(lambda dtype: known[dtype].accumulator, known)
    if len(dtypes) == 1:
        return f"{next(iter(dtypes))} accumulator"
    return "; ".join(f"{accumulator} accumulator for {', '.join(names)}" for accumulator, names in dtypes.items())


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The fastest product of each dtype, as a share of its peak: `8192×8192` for square matrices, else M×N×K."""
    found = []
    for dtype, row in fastest_products(seen.rows).items():
        sides = [str(row.case[side]) for side in "mnk"]
        text = "×".join(sides[:2] if len(set(sides)) == 1 else sides)
        found.append(headline(NAME, f"{dtype}, {text}", row, known.get(dtype), "the peak"))
    return found


def _fastest_figure(rows: Rows, known: Ceilings) -> list[Figure]:
    # Operations on whole numbers are no FLOP.
    figures = [
        judging.figure(dtype, row, peak=known.get(dtype))
        for dtype, row in fastest_products(rows).items()
        if _unit(row) != "OP/s"
    ]
    return sorted(figures, key=lambda figure: figure.value or 0.0)[-1:]


def _products_of_peak(rows: Rows, known: Ceilings) -> list[Figure]:
    best = fastest_products(rows)
    figures = [judging.figure(dtype, row, known[dtype]) for dtype, row in best.items() if dtype in known]
    if figures or not best:
        return figures
    return [Figure("products", why=known["products"].doubt if "products" in known else "the GPU's peak is unknown")]


THRESHOLDS = {
    "matmul.min_tflops": Threshold("products", "", _fastest_figure),
    "matmul.min_percent_of_peak": Threshold("products", " of the dense peak", _products_of_peak),
}
JUDGE = Judge(findings, headlines, ceilings, thresholds=THRESHOLDS)


# -- operations per joule ----------------------------------------------------------------------------------------------


def efficiency(rows: Rows) -> list[Finding]:
    """Operations per joule, for the best of each dtype; nothing where no row was watched at all, as on a CPU.

    Power is the energy counter's over a whole row of at least two seconds: a driver's own figure is an average of the
    last second on recent parts, and says nothing of a short row. Between the windows of a row the device rests, and
    takes less: its rate counts for the time at work alone. A long run without a pause tells more: where there is one,
    it counts. Of a row in several runs it is the mean power of those that counted it.
    """
    timed = [row for row in rows if row.rate and any(run["telemetry"] is not None for run in runs.each(row))]
    if not timed:
        return []
    best: dict[str, dict[str, Any]] = {}
    unknown: dict[str, str] = {}
    # Long runs last: where one tells nothing, its reason counts.
    for row in sorted(timed, key=lambda row: row.name == SUSTAINED):
        entry, dtype = _per_joule(row), str(row.case["dtype"])
        known = best.get(dtype)
        if entry is None:
            unknown[dtype] = _why_no_power(row)
        elif known is None or row.name != known["row"] or entry["flop_per_joule"] > known["flop_per_joule"]:
            best[dtype] = entry
    unknown = {dtype: reason for dtype, reason in unknown.items() if dtype not in best}
    evidence = {"efficiency": {**best, **dict.fromkeys(unknown)}, "because": unknown}
    if not best:
        message = next(iter(unknown.values()))
        # A longer run helps where the rows were short, and where there was none.
        if message == ROW_TOO_SHORT and all(row.name != SUSTAINED for row in timed):
            message += "; --sustain runs long enough"
        return [Finding("matmul.efficiency", "info", "rate per watt unknown", message, evidence)]
    text = ", ".join(
        f"{dtype} {units.flop_rate(entry['flop_per_joule'], entry['unit'])} per W at {entry['power_w']:.0f} W"
        for dtype, entry in best.items()
    )
    return [Finding("matmul.efficiency", "info", "rate per watt", text, evidence)]


def _per_joule(row: Measurement) -> dict[str, Any] | None:
    powers = [run["telemetry"]["power_w"] for run in runs.each(row) if (run["telemetry"] or {}).get("power_w")]
    if not powers:
        return None
    # The share of the row, from its first window to the end of its last, in which products ran, timed or not.
    worked_s = span_s = 0.0
    for run, its in zip(row.runs, runs.each(row), strict=False):
        # The first window's untimed calls lie before it.
        worked_s += sum(run.samples_s) + runs.lead_in(run, its["details"]) * sum(run.samples_s[1:])
        span_s += run.started_monotonic_s[-1] + run.samples_s[-1] - run.started_monotonic_s[0]
    power_w = statistics.fmean(powers)
    each = rate(row) * worked_s / span_s / power_w
    return {"flop_per_joule": each, "power_w": power_w, "unit": _unit(row), "row": row.name}


def _why_no_power(row: Measurement) -> str:
    reasons = [(run["telemetry"] or {}).get("unknown", {}).get("power_w") for run in runs.each(row)]
    reasons += [details.get("no_telemetry_because") for details in details_of([row])]
    return next((str(reason) for reason in reasons if reason), "the energy counter was not read")


# -- --search ----------------------------------------------------------------------------------------------------------

# Why a shape has no rate on a device whose work takes no time, by its own clock.
TOO_FAST = "it was shorter than the clock's resolution"
# A gain of less is within what two rows of one product differ by.
LEAST_GAIN = 0.01


def search(entries: Sequence[SearchResult], rows: Rows) -> list[Finding]:
    """One finding for the searches of a device, of one run or of several; none without a search.

    Of several runs the shape counts that most of them found. The gain sets its row against the fastest of the default
    squares.
    """
    rates: dict[tuple[str, Shape], float] = {}
    # Of runs that were measured in different ways the most count.
    for row in sorted(rows, key=lambda row: len(row.runs)):
        if row.rate is not None:
            m, n, k = (int(row.case[side]) for side in "mnk")
            rates[str(row.case["dtype"]), (m, n, k)] = row.rate.median
    evidence, texts = {}, []
    for dtype, of_runs in judging.by(lambda entry: entry.dtype, entries).items():
        found = [(entry, entry.best) for entry in of_runs if entry.best is not None]
        if found:
            its_rates = {shape: median for (name, shape), median in rates.items() if name == dtype}
            evidence[dtype] = _search_evidence(found, len(of_runs), its_rates)
            texts.append(_search_text(found, evidence[dtype]))
    fastest = [Finding("matmul.search", "info", "fastest shapes found", "; ".join(texts), evidence)] if texts else []
    return [*fastest, *_refused(entries)]


def _refused(entries: Sequence[SearchResult]) -> list[Finding]:
    """The shapes that have no kernel, of all dtypes in one finding; none where every shape has one."""
    refusing = [entry for entry in entries if entry.shapes_refused]
    if not refusing:
        return []
    evidence, texts = {}, []
    for dtype, of_runs in judging.by(lambda entry: entry.dtype, refusing).items():
        shapes = list({refused.shape: refused for entry in of_runs for refused in entry.refused}.values())
        # A run names only the first of those that it tried.
        count = max(len(shapes), *(entry.shapes_refused for entry in of_runs))
        others = f" and {count - 1} others" if count > 1 else ""
        texts.append(f"{dtype} {_text(shapes[0].shape)}{others}: {shapes[0].reason}")
        evidence[dtype] = [to_json(refused) for refused in shapes]
    are_fast = all(refused.reason == TOO_FAST for entry in refusing for refused in entry.refused)
    title = "some shapes have no rate" if are_fast else "the library has no kernel for some shapes"
    return [Finding("matmul.shape", "skip", title, "; ".join(texts), evidence)]


# A search, and the fastest shape that it found.
_Found = tuple[SearchResult, SearchedShape]


def _search_evidence(found: Sequence[_Found], searches: int, rates: Mapping[Shape, float]) -> dict[str, Any]:
    """The outcome of `searches` of one dtype. The figures are medians of those that found the shape."""
    by_shape = judging.by(lambda entry_and_best: entry_and_best[1].shape, found)
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
        "as_fast": list(dict.fromkeys(text for entry, best in mine for text in _as_fast(entry, best))),
        "searches": searches,
        "found_by": len(mine),
        "others_found": [_text(other) for other in others],
    }


def _as_fast(entry: SearchResult, best: SearchedShape) -> list[str]:
    """Other finalists whose interval reaches the fastest's: the final cannot tell these apart."""
    low = best.ci_low
    if low is None:
        return []
    return [_text(other.shape) for other in entry.finalists[1:] if other.ci_high is not None and other.ci_high >= low]


def _search_text(found: Sequence[_Found], outcome: Mapping[str, Any]) -> str:
    first = found[0][0]
    text = f"{first.dtype} {outcome['shape']} {units.flop_rate(outcome['flop_per_s'], first.unit)}"
    if outcome["gain"] is not None:
        gained = outcome["gain"] - 1
        text += f", {units.percent(gained)} above" if gained >= LEAST_GAIN else ", no faster than"
        text += f" {outcome['square']}"
    if outcome["as_fast"]:
        others = len(outcome["as_fast"]) - 1
        text += f" ({outcome['as_fast'][0]}{f' and {others} others' if others else ''} as fast)"
    if outcome["searches"] > 1:
        text += f", found by {outcome['found_by']} of {outcome['searches']} runs"
        text += f" (others found {', '.join(outcome['others_found'])})" if outcome["others_found"] else ""
    return text if all(entry.complete for entry, _ in found) else f"{text} (search cut off)"


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


# -- --sustain ---------------------------------------------------------------------------------------------------------

# Clocks come down within about a second of load; windows that begin in it are the burst.
BURST_S = 1.0
# Fewer samples show no trend.
FEWEST_FOR_A_TREND = 2 * stats.FEWEST_SAMPLES
# NVML's reasons for a lower clock, and what they mean.
_CAUSES = {
    "hw_thermal_slowdown": "too hot",
    "sw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "the power supply requested less",
    "hw_slowdown": "heat or a weak power supply",
}


def burst_and_sustained(run: Run, work: float) -> dict[str, Any]:
    """Burst and sustained rate of a run, with the seconds that each covers; `settled` None where none can tell.

    Sustained is the last third, or the last sixth where the third still rises or falls: by more than 2 % and certainly.
    `settled` tells whether that part has no trend either.
    """
    ends_s = run.started_monotonic_s[0] + BURST_S
    first = [length for at, length in zip(run.started_monotonic_s, run.samples_s, strict=True) if at < ends_s]
    last: Sequence[float] = ()
    for part in (3, 6):
        last = run.samples_s[-max(len(run.samples_s) // part, 1) :]
        if not runs.drifts(last):
            break
    per_window = work * run.calls_per_sample
    return {
        "burst": {"flop_per_s": per_window / stats.median(first), "seconds": sum(first)},
        "sustained": {"flop_per_s": per_window / stats.median(last), "seconds": sum(last)},
        "settled": None if len(last) < FEWEST_FOR_A_TREND else not runs.drifts(last),
    }


def sustained(rows: Rows) -> list[Finding]:
    """One finding for all long runs of a device; none where there was none.

    One wrong result in any run fails; the sustained rate is the median of several.
    """
    products = by_product([row for row in rows if row.name == SUSTAINED])
    if not products:
        return []
    evidence, texts, wrong = {}, [], []
    for product, its_rows in products.items():
        if text := _wrong_long_runs(product, its_rows):
            wrong.append(text)
        # Only rows in each run of which the clock told a rate.
        timed = [row for row in its_rows if all(run.get("burst") is not None for run in details_of([row]))]
        if timed:
            evidence[product] = _sustained_evidence(timed)
            texts.append(_sustained_text(product, timed, evidence[product]))
    if wrong:
        return [Finding(SUSTAINED, "fail", "a result is wrong after a long run", "; ".join(wrong), evidence, AGAIN)]
    if not evidence:
        return [Finding(SUSTAINED, "skip", "no sustained rate", "the clock measured no time")]
    shares = [entry["share"] for entry in evidence.values()]
    low, high = units.significant(min(shares), 2), units.significant(max(shares), 2)
    title = f"sustained rate is {low} of burst" if low == high else f"sustained rate is {low} to {high} of burst"
    message = "; ".join(texts)
    all_runs = [run for its_rows in products.values() for row in its_rows for run in runs.each(row)]
    throttled_runs = [run["telemetry"] or {} for run in all_runs if "throttled" in run["flags"]]
    reasons = {reason for telemetry in throttled_runs for reason in telemetry.get("clock_reasons", ())}
    throttled = [cause for cause in _CAUSES if cause in reasons]
    if not throttled:
        return [Finding(SUSTAINED, "info", title, message, evidence)]
    causes = " and ".join(dict.fromkeys(_CAUSES[cause] for cause in throttled))
    message = f"throttled: {causes} ({', '.join(throttled)}); {message}"
    return [Finding(SUSTAINED, "warn", title, message, evidence, judging.CLOCK_FIXES[throttled[0]])]


def _wrong_long_runs(product: str, rows: Rows) -> str:
    """Which long runs of a product left a wrong result; empty where none did."""
    texts = [text for kind, text in map(later, rows) if kind == "wrong"]
    count = sum(map(is_wrong, details_of(rows)))
    return "; ".join(texts) or (f"{product}{in_runs(count, rows)}" if count else "")


def _sustained_evidence(rows: Rows) -> dict[str, Any]:
    each = details_of(rows)
    burst, last = (stats.median([details[part]["flop_per_s"] for details in each]) for part in ("burst", "sustained"))
    settled = [details["settled"] for details in each]
    shares = [details["sustained"]["flop_per_s"] / details["burst"]["flop_per_s"] for details in each]
    return {
        "share": stats.median(shares),
        "burst_flop_per_s": burst,
        "sustained_flop_per_s": last,
        "settled": False if False in settled else None if None in settled else True,
    }


def _sustained_text(product: str, rows: Rows, entry: Mapping[str, Any]) -> str:
    unit = next((row.rate.unit for row in rows if row.rate), "FLOP/s")
    flags = {flag for row in rows for flag in row.flags}
    burst, last = (units.flop_rate(entry[part], unit) for part in ("burst_flop_per_s", "sustained_flop_per_s"))
    text = f"{product} {last} after {burst}"
    if entry["settled"] is False:
        text += ", not settled: use a longer --sustain"
    if "power-limited" in flags:
        text += ", at the power limit (normal at full load)"
    if "cpu-busy" in flags:
        text += ", machine busy"
    return text
