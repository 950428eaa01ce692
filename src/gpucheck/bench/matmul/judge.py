"""Judge matrix products. A wrong precision or a wrong result in any run fails, whatever the speed. No I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucheck import peaks, units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceiling, Ceilings, DeviceRows, Figure, LimitFigures, Rules, headline, rate
from gpucheck.bench.matmul import Shape
from gpucheck.measure import runs
from gpucheck.messages import FIX
from gpucheck.peaks import GpuPeaks, Unknown
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import few
from gpucheck.report.results.bench import Headline, SearchResult

NAME = "matmul"
AGAIN = FIX["wrong data"]

Rows = Sequence[Measurement]


def label(row: Measurement) -> str:
    return f"{row.case['dtype']} {row.case['m']}x{row.case['n']}x{row.case['k']}"


def is_as_asked(row: Measurement) -> bool:
    """Return whether a product has the requested precision. The result of another precision is not judged."""
    return row.method.precision_observed == row.method.precision_requested


def details_of(rows: Iterable[Measurement]) -> list[dict[str, Any]]:
    return [run["details"] for row in rows for run in runs.each_run(row)]


def findings(device: DeviceRows) -> list[Finding]:
    """Judge the rows and the searches of one device, from one run or several."""
    rows = device.rows
    reason = "the device supports none of the requested products, or has no memory for them"
    findings = [Finding("matmul.speed", "skip", "nothing was timed", reason)]
    if rows:
        findings = [_precision(rows, device.facts), first_results(rows), *later_results(rows), *_fastest(rows)]
        findings += share_of_products(rows, device.part)
    searches = [entry for entry in device.recorded.get("bench_matmul_search", ()) if entry.device == device.id]
    return [*findings, *search(searches, rows)]


# -- precision and results ---------------------------------------------------------------------------------------------

# These details of a first result become evidence.
_CHECKED = (
    "worst_error_of_bound",
    "not_finite",
    "smallest_detectable_error",
    "column_sums",
    "wrong_element",
    "operands_spread",
)


def _precision(rows: Rows, facts: Facts) -> Finding:
    wrong = [(label(row), row.method.precision_observed) for row in rows if not is_as_asked(row)]
    evidence = {label(row): row.method.precision_observed for row in rows} | dict(reversed(wrong))
    texts = [f"{product} computed in {judging.precision_text(observed)}" for product, observed in wrong]
    sound, title = "all products have the requested precision", "a product does not have the requested precision"
    return judging.precision("matmul.precision", sound, title, texts, evidence, facts)


def first_results(rows: Rows) -> Finding:
    """Judge the first result of each row and run, by sampled rows and by sums over 64 columns."""
    evidence: dict[str, Any] = {}
    wrong: list[str] = []
    unclear: list[str] = []
    # A product has several rows if its runs differ in method, such as in precision.
    for product, of_product in runs.group_by(label, rows).items():
        as_asked = details_of(row for row in of_product if is_as_asked(row))
        worst = max(as_asked or details_of(of_product), key=_badness)
        evidence[product] = {name: worst.get(name) for name in _CHECKED}
        if as_asked and (text := _wrong_text(worst)):
            wrong.append(f"{product}: {text}")
        elif as_asked and _sums(worst) > 1:
            unclear.append(product)
    if wrong:
        return Finding("matmul.result", "fail", "a result is wrong", "; ".join(wrong), evidence, AGAIN)
    if unclear:
        title = "column sums of a result differ by more than rounding explains"
        message = f"{', '.join(unclear)}; every single element is within its bound"
        return Finding("matmul.result", "warn", title, message, evidence, AGAIN)
    title = "all results agree with float64"
    return Finding("matmul.result", "pass", title, "sampled rows, and every element in column sums", evidence)


def later_results(rows: Rows) -> list[Finding]:
    """Judge whether repeated results are bit-identical. There is no finding if no result was repeated."""
    evidence: dict[str, Any] = {}
    wrong: list[str] = []
    unsteady: list[str] = []
    for row in rows:
        product = label(row)
        for entry in (details["corruption"] for details in details_of([row]) if "corruption" in details):
            compared, differing, worst = (entry[name] for name in ("results_compared", "results_differing", "worst"))
            counts = evidence.setdefault(product, {"results_compared": 0, "results_differing": 0, "worst": None})
            counts["results_compared"] += compared
            counts["results_differing"] += differing
            if not differing:
                continue
            text = f"{product}: {differing} of {compared} results differ"
            if worst is None:  # a second comparison found no difference
                wrong.append(f"{text} at the first look and not at the second")
                continue
            if counts["worst"] is None or _size(worst["worst"]) > _size(counts["worst"]["worst"]):
                counts["worst"] = worst
            is_wrong = (is_as_asked(row) and _size(worst["worst"]) > 1) or entry.get("results_vanished")
            (wrong if is_wrong else unsteady).append(f"{text}, {_element_text(worst)}")
    if not evidence:
        return []
    name, compared = "matmul.corruption", sum(counts["results_compared"] for counts in evidence.values())
    if wrong:
        return [Finding(name, "fail", "a repeated result is wrong", "; ".join(wrong), evidence, AGAIN)]
    if unsteady:
        return [Finding(name, "info", "repeated results differ within rounding", "; ".join(unsteady), evidence)]
    if not compared:
        return [Finding(name, "inconclusive", judging.UNVERIFIED, "no result was repeated", evidence, judging.RERUN)]
    return [Finding(name, "pass", "repeated results are bit-identical", f"{compared} results compared", evidence)]


def _size(value: float | None) -> float:
    """Return an error as a share of its bound. Documents store infinity as None."""
    return math.inf if value is None or math.isnan(value) else value


def _sums(details: Mapping[str, Any]) -> float:
    return _size(details["column_sums"]["worst_of_threshold"]) if "column_sums" in details else 0.0


def _badness(details: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """Return the sort key of a run: wrong results rank highest, then unclear results, then larger errors."""
    sums = _sums(details)
    return bool(_wrong_text(details)), sums > 1, _size(details["worst_error_of_bound"]), sums


def _wrong_text(details: Mapping[str, Any]) -> str:
    """Describe the faults of a first result; return an empty string if there is none."""
    element, worst = details.get("wrong_element"), details["worst_error_of_bound"]
    texts = []
    if _size(worst) > 1 or (element is not None and _size(element["worst"]) > 1):
        texts.append(f"error {_times(worst)} its bound" if element is None else _element_text(element))
    if details["not_finite"]:
        texts.append(f"{details['not_finite']} elements not finite")
    if details.get("miscounted"):
        texts.append("the device's own count of finite elements is invalid")
    # Zero operands would give a zero product even if nothing was computed.
    if details.get("operands_spread") == 0:
        texts.append("the operands are not random numbers")
    return ", ".join(texts)


def _element_text(element: Mapping[str, Any]) -> str:
    got = element["got"]
    is_number = got is not None and math.isfinite(got)
    value = f"{got:.9g}" if is_number else "no number"
    far = f" ({_times(element['worst'])} its bound)" if is_number else ""
    return f"row {element['row']}, column {element['column']} is {value}, float64 gives {element['expected']:.9g}{far}"


def _times(value: float | None) -> str:
    size = _size(value)
    return f"{units.significant(size)} times" if size < 1e6 else "more than a million times"


# -- rates, and shares of the dense peak -------------------------------------------------------------------------------

# The choice of shapes and clocks can cause a smaller gain.
TF32_GAINS = 1.2
# If the burst rate and the sustained rate differ by at most this share, they are shown as one rate.
ONE_RATE = 0.02


def judged_rows(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return the judged rows of each dtype: the sustained rates, else bursts (`--burst`), else ordinary rows."""
    judged = []
    for of_dtype in runs.group_by(lambda row: row.case["dtype"], (row for row in rows if row.name == NAME)).values():
        by_rate = runs.group_by(lambda row: row.case.get("rate"), of_dtype)
        judged += by_rate.get("sustained") or by_rate.get("burst") or of_dtype
    return judged


def rate_word(row: Measurement, rows: Rows) -> str:
    """Return `sustained` or `burst`; an empty string if the two rates of the product are about equal."""
    other = _other_rate(row, rows)
    is_one = other is not None and abs(rate(row) - rate(other)) <= ONE_RATE * rate(row)
    return "" if is_one else row.case.get("rate", "")


def _other_rate(row: Measurement, rows: Rows) -> Measurement | None:
    """Return the burst row that belongs to a sustained row, or the reverse; None without one."""
    name = {"burst": "sustained", "sustained": "burst"}.get(row.case.get("rate", ""))
    return next((other for other in rows if name and other.case == {**row.case, "rate": name}), None)


def fastest_products(rows: Rows) -> dict[str, Measurement]:
    """Return the fastest product of each dtype in the requested precision. Emulated products do not count."""
    right = [row for row in rows if row.rate is not None and is_as_asked(row) and row.case.get("support") != "emulated"]
    return judging.best(judged_rows(right), NAME, "dtype", rate)


def _fastest(rows: Rows) -> list[Finding]:
    """Report the best rate of each dtype, and the gain of TF32."""
    best = judging.best(judged_rows(row for row in rows if row.rate is not None), NAME, "dtype", rate)
    if not best:
        return []
    rates = {dtype: rate(row) for dtype, row in best.items()}
    bursts: dict[str, float] = {}
    texts = []
    for dtype, row in best.items():
        word, other = rate_word(row, rows), _other_rate(row, rows)
        texts.append(" ".join(filter(None, (dtype, units.flop_rate(rates[dtype], _unit(row)), word))))
        if word and other is not None:
            bursts[dtype] = rate(other)
            texts[-1] += f" (burst {units.flop_rate(rate(other), _unit(other))})"
    evidence = {"flop_per_s": rates, **({"burst_flop_per_s": bursts} if bursts else {})}
    findings = [Finding("matmul.speed", "info", "fastest", ", ".join(texts), evidence)]
    plain, tf32 = rates.get("float32"), rates.get("tf32")
    if plain and tf32 and tf32 > TF32_GAINS * plain:
        faster = f"{units.significant(tf32 / plain, 2)}× faster"
        title, message = f"TF32 is {faster} than float32 here", "with 10 bits of mantissa"
        fix = f'torch.set_float32_matmul_precision("high"): TF32, {faster}'
        findings.append(Finding("matmul.tf32_gain", "info", title, message, {"gain": tf32 / plain}, fix))
    return findings


def _unit(row: Measurement) -> str:
    return row.rate.unit if row.rate else "FLOP/s"


def ceilings(device: DeviceRows) -> Ceilings:
    return product_ceilings(fastest_products(device.rows), device.part)


def product_ceilings(dtypes: Iterable[str], part: GpuPeaks | Unknown | None) -> dict[str, Ceiling]:
    """Return the known peaks of these dtypes. If no peak is known, the key `products` has the reason."""
    names = list(dtypes)
    if part is None or not names:
        return {}
    if isinstance(part, Unknown):
        return {"products": Ceiling(None, part.reason)}
    if not (known := {dtype: peak for dtype in names if (peak := part.peak(dtype)) is not None}):
        return {"products": Ceiling(None, _why_no_peak(part, names))}
    return {dtype: Ceiling(peak.flop_per_s, judging.doubt_of(part)) for dtype, peak in known.items()}


def _why_no_peak(part: GpuPeaks, dtypes: Sequence[str]) -> str:
    if part.missing:
        return part.missing
    if all(part.peak(f"{dtype}{peaks.FAST}") for dtype in dtypes):
        return "data sheets give float8 only with fast accumulation"
    return f"{part.source} gives none for {', '.join(dtypes)}"


def share_of_products(rows: Rows, part: GpuPeaks | Unknown | None) -> list[Finding]:
    """Compare the fastest product of each dtype with the dense peak. A CPU, or rows without a rate, have no finding."""
    best = fastest_products(rows)
    if not (ceilings := product_ceilings(best, part)):
        return []
    if not isinstance(part, GpuPeaks) or "products" in ceilings:
        return [judging.unknown_peak("matmul.share_of_peak", ceilings["products"].doubt)]
    without = [dtype for dtype in best if part.peak(dtype) is None]
    evidence: dict[str, Any] = {"share": {}, "share_at_clock_seen": {}, "clock_seen_hz": {}, "peaks": {}}
    texts = []
    for dtype, row in best.items():
        if (peak := part.peak(dtype)) is None:
            continue
        share, clock = rate(row) / peak.flop_per_s, _clock_seen(row)
        word = rate_word(row, rows)
        text = f"{peak.dtype} {units.percent(share)} of {units.flop_rate(peak.flop_per_s, _unit(row))}"
        text += f" ({word})" if word else ""
        # The peak changes in proportion to the clock.
        at_clock = None
        if clock and peak.clock_hz:
            at_clock = share * peak.clock_hz / clock
            text += f" and {units.percent(at_clock)} at the observed {clock / 1e6:.0f} of {peak.clock_hz / 1e6:.0f} MHz"
        texts.append(text)
        evidence["share"][dtype] = share
        evidence["share_at_clock_seen"][dtype] = at_clock
        evidence["clock_seen_hz"][dtype] = clock
        evidence["peaks"][dtype] = {
            "flop_per_s": peak.flop_per_s,
            "accumulator": peak.accumulator,
            "clock_hz": peak.clock_hz,
            "flop_per_clock_per_sm": peak.per_clock_per_sm,
        }
    evidence |= {"without_peak": without, "without_peak_because": _why_no_peak(part, without) if without else None}
    message = f"{', '.join(texts)} ({part.label})"
    if without and part.missing:
        message += f"; peak of {', '.join(without)} unknown: {part.missing}"
    or_else = ", or cuBLAS emulates the dtype (env | grep CUBLAS_EMULATE)"
    return [judging.share_of("matmul.share_of_peak", "dense", message, evidence, part, or_else)]


def _clock_seen(row: Measurement) -> float | None:
    """Return the median SM clock inside the windows of all runs; None if unknown."""
    clocks = [(run["telemetry"] or {}).get("sm_clock_hz") for run in runs.each_run(row)]
    medians = [clock["median"] for clock in clocks if clock]
    return statistics.median(medians) if medians else None


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return the fastest product of each dtype, with its share of the peak. A square is named `8192×8192`."""
    lines = []
    for dtype, row in fastest_products(device.rows).items():
        sides = [str(row.case[side]) for side in "mnk"]
        shape = "×".join(sides[:2] if len(set(sides)) == 1 else sides)
        text = ", ".join(filter(None, (dtype, shape, rate_word(row, device.rows))))
        lines.append(headline(NAME, text, row, known.get(dtype), "the peak"))
    return lines


def _fastest_figure(rows: Rows, known: Ceilings) -> list[Figure]:
    # Integer operations do not count as FLOP.
    best = {dtype: row for dtype, row in fastest_products(rows).items() if _unit(row) != "OP/s"}
    fastest = max(best, key=lambda dtype: rate(best[dtype]), default=None)
    return [] if fastest is None else [judging.figure(fastest, best[fastest], peak=known.get(fastest))]


def _products_of_peak(rows: Rows, known: Ceilings) -> list[Figure]:
    best = fastest_products(rows)
    of_peak = [judging.figure(dtype, row, known[dtype]) for dtype, row in best.items() if dtype in known]
    if of_peak or not best:
        return of_peak
    return [Figure("products", why=known["products"].doubt if "products" in known else "the GPU's peak is unknown")]


THRESHOLDS = {
    "matmul.min_tflops": LimitFigures("products", "", _fastest_figure),
    "matmul.min_percent_of_peak": LimitFigures("products", " of the dense peak", _products_of_peak),
}
JUDGE = Rules(findings, headlines, ceilings, thresholds=THRESHOLDS)


# A shape has no rate if its calls are shorter than the resolution of the device's clock.
TOO_FAST = "it was shorter than the clock's resolution"
# Two measurements of the same product may differ by as much, so a smaller gain is noise.
LEAST_GAIN = 0.01


def search(entries: Sequence[SearchResult], rows: Rows) -> list[Finding]:
    """Report the fastest shapes of all runs in one finding, and compare each with the fastest square."""
    rates = {(row.case["dtype"], _shape(row)): rate(row) for row in rows if row.rate is not None}
    evidence, texts = {}, []
    for dtype, of_runs in runs.group_by(lambda entry: entry.dtype, entries).items():
        if not (searches := [(entry, entry.best) for entry in of_runs if entry.best is not None]):
            continue
        entry, best = max(searches, key=lambda search: search[1].flop_per_s)
        squares = {shape: rate for (name, shape), rate in rates.items() if name == dtype and len({*shape}) == 1}
        square = max(squares.keys() - {best.shape}, key=squares.__getitem__, default=None)
        its_rate = rates.get((dtype, best.shape))
        gain = None if square is None or its_rate is None else its_rate / squares[square]
        text = f"{dtype} {_text(best.shape)} {units.flop_rate(best.flop_per_s, entry.unit)}"
        if gain is not None and square is not None:
            relation = f"{units.percent(gain - 1)} above" if gain - 1 >= LEAST_GAIN else "no faster than"
            text += f", {relation} {_text(square)}"
        texts.append(text if all(entry.complete for entry in of_runs) else f"{text} (search cut off)")
        evidence[dtype] = {
            "shape": _text(best.shape),
            "flop_per_s": best.flop_per_s,
            "square": None if square is None else _text(square),
            "gain": gain,
            "shapes_tried": entry.shapes_tried,
            "shapes_in_range": entry.shapes_in_range,
        }
    fastest = [Finding("matmul.search", "info", "fastest shapes found", "; ".join(texts), evidence)] if texts else []
    return [*fastest, *_refused(entries)]


def _refused(entries: Sequence[SearchResult]) -> list[Finding]:
    """Report the shapes without a kernel, for all dtypes in one finding."""
    evidence, texts = {}, []
    for entry in sorted(entries, key=lambda entry: entry.shapes_refused):
        if entry.shapes_refused:
            first, others = entry.refused[0], entry.shapes_refused - 1
            and_others = f" and {others} others" if others else ""
            texts.append(f"{entry.dtype} {_text(first.shape)}{and_others}: {first.reason}")
            evidence[entry.dtype] = to_json(entry.refused)
    if not texts:
        return []
    are_fast = all(refused.reason == TOO_FAST for entry in entries for refused in entry.refused)
    title = "some shapes have no rate" if are_fast else "the library has no kernel for some shapes"
    return [Finding("matmul.shape", "skip", title, few(list(dict.fromkeys(texts))), evidence)]


def _shape(row: Measurement) -> Shape:
    return row.case["m"], row.case["n"], row.case["k"]


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
