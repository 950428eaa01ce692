"""The figures that thresholds are held against: which rows each threshold is about, in its unit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucheck.links import SHORT_WAYS
from gpucheck.measure import runs
from gpucheck.report.measurement import Measurement


def size(one: Measurement) -> int:
    """The bytes of a row's copy or array."""
    return int(one.case["size_bytes"])


def rate(one: Measurement) -> float:
    """The median rate; 0 without one."""
    return one.rate.median if one.rate else 0.0


def copies(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The plain copies by direction."""
    found: dict[str, list[Measurement]] = {}
    for one in measurements:
        if one.name == "transfer":
            found.setdefault(str(one.case["direction"]), []).append(one)
    return found


def largest_copies(measurements: Sequence[Measurement]) -> dict[str, Measurement | None]:
    """The largest pinned copy of each direction, by the device's clock where it has one; on the host any copy.

    None where a direction was measured and nothing pinned is among it.
    """
    found: dict[str, Measurement | None] = {}
    for way, rows in copies(measurements).items():
        pinned = [one for one in rows if one.case["host_memory"] == "pinned" or way == "host_to_host"]
        # By the device's clock it is the link's rate.
        by_device = [one for one in pinned if one.case["timed"] == "link"]
        found[way] = max(by_device or pinned, key=size, default=None)
    return found


def largest_arrays(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The largest arrays of each operation on memory, cold or warm."""
    found: dict[str, Measurement] = {}
    for one in measurements:
        if one.name == "bandwidth":
            operation = str(one.case["operation"])
            if operation not in found or size(one) > size(found[operation]):
                found[operation] = one
    return found


def fastest_products(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The fastest product of each dtype that was computed in the precision asked for, and not emulated."""
    found: dict[str, Measurement] = {}
    for one in measurements:
        right = one.method.precision_observed == one.method.precision_requested
        if one.name != "matmul" or one.rate is None or not right or one.case.get("support") == "emulated":
            continue
        dtype = str(one.case["dtype"])
        if dtype not in found or rate(one) > rate(found[dtype]):
            found[dtype] = one
    return found


# What makes a figure low and is not the device's doing: a miss beside it fails nothing.
DISTURBING = ("throttled", "noisy", "cpu-busy")
# What makes a figure low and lasts: the miss is one, and this its likely cause. Run again, it would be as low.
LASTING = {
    "clock-held": "a setting kept the clock below its maximum",
    "power-limited": "the power limit lowered the clock",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is compared with a threshold, in its unit, with the interval; None is unknown, `why` says why.

    `why` beside a value says that it is no figure of what is asked for, but about its upper bound: it can miss the
    threshold, and never meet it. `doubt` is why a known figure still decides nothing, `causes` what may have made it as
    low as it is. `best` is what the fastest window alone gives, None where no window is known.
    """

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    disturbed: tuple[str, ...] = ()
    why: str = ""
    doubt: str = ""
    causes: tuple[str, ...] = ()
    best: float | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The reference of a share, in SI; None is unknown. `doubt` is why, or why it decides nothing."""

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]
# The figures of one device's measurements that a threshold is about.
Figures = Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def _rate(label: str, one: Measurement, ceiling: Ceiling | None = None) -> Figure:
    """A row's rate, as a share of the ceiling where there is one."""
    if one.time_s is None:
        return Figure(label, why="it was shorter than the clock's resolution")
    if one.rate is None:
        return Figure(label, why="the call itself takes most of the time")
    if ceiling is not None and ceiling.value is None:
        return Figure(label, why=ceiling.doubt)
    scale = ceiling.value if ceiling is not None and ceiling.value is not None else 1.0
    value, time_s = one.rate.median / scale, one.time_s
    return Figure(
        label,
        value,
        value * time_s.median / time_s.ci_high if time_s.ci_high else None,
        value * time_s.median / time_s.ci_low if time_s.ci_low else None,
        runs.flagged(one, DISTURBING),
        doubt=ceiling.doubt if ceiling else "",
        causes=tuple(LASTING[flag] for flag in runs.flagged(one, LASTING)),
        best=value * time_s.median / fastest if (fastest := runs.fastest(one)) else None,
    )


def _largest_copies(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return [
        Figure(SHORT_WAYS[way], why="no pinned copy was measured") if one is None else _rate(SHORT_WAYS[way], one)
        for way, one in largest_copies(measurements).items()
    ]


def _links(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    ceiling = known.get("link", Ceiling(None, "no large pinned copy was timed on the device's clock"))
    figures = []
    for way, rows in copies(measurements).items():
        timed = [one for one in rows if one.case["timed"] == "link" and one.rate is not None]
        if not timed:
            figures.append(Figure(SHORT_WAYS[way], why="no pinned copy was timed on the device's clock"))
            continue
        figures.append(_rate(SHORT_WAYS[way], max(timed, key=rate), ceiling))
    return figures


def _gains(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    figures = []
    for way, rows in copies(measurements).items():
        called = [one for one in rows if one.case["timed"] == "as_called" and one.time_s is not None]
        pageable, pinned = ({size(one): one for one in called if one.case["host_memory"] == kind} for kind in KINDS)
        both = pageable.keys() & pinned.keys()
        if not both:
            figures.append(Figure(SHORT_WAYS[way], why="no size was copied from both pageable and pinned memory"))
            continue
        figures.append(_gain(SHORT_WAYS[way], pageable[max(both)], pinned[max(both)]))
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
        tuple(dict.fromkeys((*runs.flagged(slow, DISTURBING), *runs.flagged(fast, DISTURBING)))),
    )


def _operations(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return _memory(measurements, None)


def _operations_of_peak(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return _memory(measurements, known.get("memory", Ceiling(None, "the GPU's peak is unknown")))


def _memory(measurements: Sequence[Measurement], ceiling: Ceiling | None) -> list[Figure]:
    return [
        _rate(operation, one, ceiling)
        if one.method.cache == "cold"
        else replace(_rate(operation, one, ceiling), why="the array fits in the cache")
        for operation, one in largest_arrays(measurements).items()
    ]


def _fastest(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = fastest_products(measurements)
    # Operations on whole numbers are no FLOP.
    rates = [_rate(dtype, one) for dtype, one in best.items() if one.rate is None or one.rate.unit != "OP/s"]
    return sorted(rates, key=lambda figure: figure.value or 0.0)[-1:]


def _products_of_peak(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    best = fastest_products(measurements)
    figures = [_rate(dtype, one, known[dtype]) for dtype, one in best.items() if dtype in known]
    if figures or not best:
        return figures
    return [replace(_NO_PEAK, why=known["products"].doubt if "products" in known else _NO_PEAK.why)]


_NO_PEAK = Figure("products", why="the GPU's peak is unknown")

# What reaches it, of what, and the figures.
TABLE: dict[str, tuple[str, str, Figures]] = {
    "transfer.min_gbps": ("copies", "", _largest_copies),
    "transfer.link": ("pinned copies", " of the link", _links),
    "transfer.pinned_speedup": ("pinned copies", " the rate of pageable copies", _gains),
    "bandwidth.min_gbps": ("memory operations", "", _operations),
    "bandwidth.min_percent_of_peak": ("memory operations", " of the memory's peak", _operations_of_peak),
    "matmul.min_tflops": ("products", "", _fastest),
    "matmul.min_percent_of_peak": ("products", " of the dense peak", _products_of_peak),
}
