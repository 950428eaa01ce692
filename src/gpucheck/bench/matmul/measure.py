"""One product, timed: its precision observed, the clock warmed, and the last result checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpucheck.bench.matmul.cases import Case
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision
from gpucheck.work.reference import Check, check_product

# The clock settles within about a second under load; a cold chip scores too high.
WARM_UP_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Result:
    """A measured case with what was observed of its precision and its result."""

    measurement: Measurement
    check: Check


@dataclass(slots=True)
class _Buffers:
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def _buffers(case: Case, accel: Accel) -> _Buffers:
    m, n, k = case.shape

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=case.torch_dtype, device=accel.device)

    return _Buffers(empty(m, k), empty(k, n), empty(m, n))


def measure(case: Case, accel: Accel, budget_s: float, watch: Watch) -> Result:
    """Time one case: observe its precision, warm up, time, check the last result. Raises what torch raises."""
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    accel.reset_peak()
    buffers = _buffers(case, accel)
    a, b, out = buffers.a, buffers.b, buffers.out
    nothing = a[:0, :0], b[:0, :0], out[:0, :0]
    with precision.precision(wanted):
        settings = precision.state()
        observed = precision.observed(a, b, out)
        # Random data: zeros and ones draw less power and run faster.
        generator = torch.Generator(accel.device).manual_seed(0)
        a.normal_(generator=generator)
        b.normal_(generator=generator)
        work = timing.Work(
            lambda: torch.mm(a, b, out=out), empty=lambda: torch.mm(nothing[0], nothing[1], out=nothing[2])
        )
        limits = timing.Limits(budget_s=budget_s * (1 - WARM_UP_SHARE), warmup_s=budget_s * WARM_UP_SHARE)
        clock: timing.Clock = "device events" if accel.has_events else "host"
        timed, beside = row.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
    memory = accel.memory()
    check = check_product(a, b, out, observed if case.dtype == "tf32" else None)
    m, n, k = case.shape
    measured = row.measurement(
        "matmul",
        accel.ref,
        timed,
        beside,
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        # A product and a sum for each of the m·n·k terms, as the field counts them.
        work=("flop", 2.0 * m * n * k, "FLOP/s"),
        memory=memory,
        cache="warm",
        precision_requested=case.dtype,
        precision_observed=observed,
        details={
            "data": "normal, mean 0, variance 1",
            "output": "preallocated",
            "precision_state": settings,
            "support": case.support.reason or case.support.kind,
            "checked_rows": check.rows,
            "worst_error_of_bound": check.worst,
            "not_finite": check.not_finite,
            "smallest_detectable_error": check.smallest_detectable,
        },
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )
    return Result(measured, check)
