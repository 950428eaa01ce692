"""What measured products say: wrong precision or a wrong result fails, whatever the speed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.bench import busy, share
from gpucheck.peaks import Part, Unknown
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement


def judge(measurements: Sequence[Measurement], part: Part | Unknown | None = None) -> list[Finding]:
    """What one device's measurements say: wrong precision or a wrong result fails, whatever the speed.

    `part` is what the device can do at most; None for a CPU.
    """
    if not measurements:
        return [Finding("matmul.speed", "skip", "nothing was timed", "this device has none of the dtypes asked for")]
    return [
        _precision(measurements),
        _result(measurements),
        *_fastest(measurements),
        *share.of_products(measurements, part),
        *busy.judge("matmul.cpu_busy", measurements),
    ]


def _label(measurement: Measurement) -> str:
    case = measurement.case
    return f"{case['dtype']} {case['m']}x{case['n']}x{case['k']}"


def _precision(measurements: Sequence[Measurement]) -> Finding:
    seen = {_label(one): one.method.precision_observed for one in measurements}
    wrong = [one for one in measurements if one.method.precision_observed != one.method.precision_requested]
    if not wrong:
        return Finding("matmul.precision", "pass", "every product has the precision asked for", evidence=seen)
    told = "; ".join(f"{_label(one)} was computed in {one.method.precision_observed}" for one in wrong)
    return Finding(
        "matmul.precision",
        "fail",
        "a product does not have the precision asked for",
        told,
        seen,
        fix="look for NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE",
    )


def _result(measurements: Sequence[Measurement]) -> Finding:
    worst = {_label(one): one.method.details["worst_error_of_bound"] for one in measurements}
    wrong = [
        one
        for one in measurements
        if one.method.details["worst_error_of_bound"] > 1 or one.method.details["not_finite"]
        # A product in another precision than asked for is that finding's, not a wrong result.
        if one.method.precision_observed == one.method.precision_requested
    ]
    if not wrong:
        return Finding("matmul.result", "pass", "results agree with float64 on the sampled rows", evidence=worst)
    told = "; ".join(
        f"{_label(one)}: error {units.significant(one.method.details['worst_error_of_bound'])} times its bound, "
        f"{one.method.details['not_finite']} elements not finite"
        for one in wrong
    )
    return Finding(
        "matmul.result",
        "fail",
        "a result is wrong",
        told,
        worst,
        fix="run it again, then `gpucheck smoke`: a device that computes wrongly twice is broken",
    )


def _fastest(measurements: Sequence[Measurement]) -> list[Finding]:
    """The best rate of each dtype, and what a lower precision would gain."""
    best: dict[str, float] = {}
    for one in measurements:
        if one.rate is not None:
            dtype = str(one.case["dtype"])
            best[dtype] = max(best.get(dtype, 0.0), one.rate.median)
    if not best:
        return []
    told = ", ".join(f"{dtype} {units.flop_rate(rate)}" for dtype, rate in best.items())
    found = [Finding("matmul.speed", "info", "fastest", told, {"flop_per_s": best})]
    plain, tf32 = best.get("float32"), best.get("tf32")
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
