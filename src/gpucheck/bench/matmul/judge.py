"""What measured products say: wrong precision or a wrong result fails, whatever the speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.bench import efficiency, figures, remarks, share
from gpucheck.bench.figures import Ceilings
from gpucheck.bench.matmul import corruption_judge, search_judge, sustain_judge
from gpucheck.bench.seen import Judge, Seen, headline
from gpucheck.peaks import Part, Unknown
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench_all import Headline

NAME = "matmul"


def findings(seen: Seen) -> list[Finding]:
    """What one device's rows say, of one run or of several, and its searches and long runs."""
    usual = _usual(seen)
    searches = [one for one in seen.recorded.get("bench_matmul_search", ()) if one.device == seen.device]
    return [
        *_of_rows(usual, seen.part),
        *efficiency.judge(seen.rows),
        *search_judge.judge(searches, usual),
        *sustain_judge.judge(seen.rows),
    ]


def _usual(seen: Seen) -> list[Measurement]:
    return [one for one in seen.rows if one.name == NAME]


def _of_rows(measurements: Sequence[Measurement], part: Part | Unknown | None) -> list[Finding]:
    if not measurements:
        return [
            Finding(
                "matmul.speed",
                "skip",
                "nothing was timed",
                "this device has none of the products asked for, or no room for them",
            )
        ]
    return [
        _precision(measurements),
        corruption_judge.first_results(measurements),
        *corruption_judge.later_results(measurements),
        *_fastest(measurements),
        *share.of_products(measurements, part),
        *remarks.clock("matmul.clock", measurements),
        *remarks.cpu_busy("matmul.cpu_busy", measurements),
    ]


def ceilings(seen: Seen) -> Ceilings:
    """The dense peak of each dtype that was multiplied in."""
    return share.product_ceilings(figures.fastest_products(seen.rows), seen.part)


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The fastest product of each dtype, as a share of its peak."""
    return [
        headline(NAME, f"{dtype}, {'×'.join(str(one.case[side]) for side in 'mnk')}", one, known.get(dtype), "the peak")
        for dtype, one in figures.fastest_products(seen.rows).items()
    ]


JUDGE = Judge(findings, headlines, ceilings)


def _precision(measurements: Sequence[Measurement]) -> Finding:
    label = corruption_judge.label
    seen = {label(one): one.method.precision_observed for one in measurements}
    wrong = [one for one in measurements if not corruption_judge.is_as_asked(one)]
    if not wrong:
        return Finding("matmul.precision", "pass", "every product has the precision asked for", evidence=seen)
    told = "; ".join(f"{label(one)} was computed in {one.method.precision_observed}" for one in wrong)
    return Finding(
        "matmul.precision",
        "fail",
        "a product does not have the precision asked for",
        told,
        seen,
        fix="look for NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE",
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
                "it keeps 10 bits of the mantissa",
                {"gain": tf32 / plain},
                fix='torch.set_float32_matmul_precision("high")',
            )
        )
    return found
