"""One product, timed: its precision observed, the clock warmed, the first result checked and later ones compared."""

from __future__ import annotations

from typing import Any

import torch

from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.cases import Case
from gpucheck.bench.matmul.corruption import Repeats, check_first
from gpucheck.bench.matmul.product import Matrices, Rotation
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision

# The clock settles within about a second under load; a cold chip scores too high.
WARM_UP_SHARE = 0.25
# The clock is read some 20 times a second and counts inside windows alone, which are a fifth of the time where one call
# fills them: a row that is certain after a tenth of a second would not know its clock.
LEAST_WATCHED_S = 1.5
# What else runs on a machine comes in bursts: a row of a tenth of a second lies within one or beside it, and processes
# differ by more than products do.
LEAST_S = 0.8

# For a look at what differs, beside a row's time: enough for small results, and for a part of large ones.
LOOK_S = 1.0


def _sets(case: Case, accel: Accel) -> tuple[list[Matrices], list[Matrices]]:
    """Memory for each set: flat, and the matrices in it."""
    flat = [product.allocate(case.kind, case.elements, accel.device) for _ in range(case.sets)]
    return flat, [product.view(case.kind, one, case.shape) for one in flat]


def _fill(case: Case, flat: list[Matrices]) -> None:
    """The same random data into every set."""
    product.fill(case.kind, flat[0])
    for other in flat[1:]:
        other.a.copy_(flat[0].a)
        other.b.copy_(flat[0].b)


def measure(case: Case, accel: Accel, budget_s: float, watch: Watch) -> Measurement:
    """Time one case: observe its precision, warm up, time, check the first result and compare later ones with it.

    Raises what torch raises.
    """
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    accel.reset_peak()
    flat, sets = _sets(case, accel)
    kind, first = case.kind, sets[0]
    with precision.precision(wanted):
        settings = precision.state()
        rotation = Rotation(kind, sets)
        multiply = kind.bind(first.a, first.b, first.out)
        observed = product.try_once(
            lambda: precision.observed(first.a, first.b, first.out, multiply), case.dtype, accel
        )
        _fill(case, flat)
        rotation.once_each()
        accel.synchronize()
        until_s = accel.host_now() + budget_s + LOOK_S
        repeats = Repeats(sets, accel, observed if case.dtype == "tf32" else kind.seen_as, until_s)
        work = timing.Work(rotation.call, empty=product.empty_call(kind, first), prepare=repeats.before)
        limits = timing.Limits(
            budget_s=budget_s * (1 - WARM_UP_SHARE),
            warmup_s=budget_s * WARM_UP_SHARE,
            least_s=LEAST_S if watch.reason else LEAST_WATCHED_S,
        )
        clock: timing.Clock = "device events" if accel.has_events else "host"
        timed, beside = row.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
    memory = accel.memory()
    repeats.finish()
    checked = check_first(first, repeats.first, repeats.precision)
    m, n, k = case.shape
    return row.measurement(
        "matmul",
        accel.ref,
        timed,
        beside,
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        # A product and a sum for each of the m·n·k terms, as the field counts them.
        work=(kind.work, 2.0 * m * n * k, kind.unit),
        memory=memory,
        cache="cold" if case.cold else "warm",
        precision_requested=case.precision,
        precision_observed=observed,
        details={
            **_method(case),
            "precision_state": settings,
            **checked.told(),
            "corruption": repeats.told(),
        },
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )


def _method(case: Case) -> dict[str, Any]:
    kind = case.kind
    return {
        "data": kind.data,
        "output": "preallocated",
        "layout": f"A by rows, B by {'columns' if kind.by_columns else 'rows'}",
        **({"settings": dict(kind.settings)} if kind.settings else {}),
        **({"rotation_sets": case.sets, "rotation_bytes": case.sets * case.set_bytes} if case.sets > 1 else {}),
        **case.rotation,
        "support": case.support.reason or case.support.kind,
    }
