"""Judge measured copies: whether they arrived, what share of the link they reach, what pinned memory gains.

Pure functions on measurements. Gains and latencies compare as called with as called. Start and rate come from a line
through the times of one kind of copy over its sizes, t = t0 + n/B: t0 is what a copy takes to start, B the rate that
large ones near. Sizes span five orders of magnitude, so relative errors count: a plain least-squares fit would see the
largest sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from gpucheck import stats, units
from gpucheck.bench import remarks
from gpucheck.bench.transfer import link as of_link
from gpucheck.bench.transfer.link import LARGE_BYTES
from gpucheck.links import WAYS
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import CopyFit, CopyLatency, LinkUnderLoad, PinnedGain

# Below this a gain is within what differs from run to run.
WORTHWHILE_GAIN = 1.2

# The name of the measurements that are judged here.
NAME = "transfer"

# A line needs so many.
LEAST_SIZES = 3
# A size whose time is further from the line than this does not lie on it: medians of copies differ by a tenth from
# process to process, a cache or a change of method by a factor.
OFF = 0.25
# If more than so many of the sizes lie off the line, there is no line.
MOST_OFF = 0.25
# The usual cut of a reweighted least-squares fit (Rousseeuw and Leroy): 2.5 standard deviations, from the median of the
# absolute residuals of normal errors.
CUT = 2.5 * 1.4826


def judge(measurements: Sequence[Measurement], link: LinkUnderLoad, facts: Facts | None = None) -> list[Finding]:
    """Every finding of one device's rows, the most important first; `facts` tell where it sits, and of the cores."""
    if not measurements:
        return [Finding("transfer.copies", "skip", "nothing was copied", "no size fits in the available memory")]
    known = facts.devices if facts is not None else ()
    pci_address = next((one.pci_address for one in known if one.id == measurements[0].device.id), None)
    return [
        corrupt(measurements),
        *of_link.judge(
            {way: row for way in WAYS if (row := best(measurements, way, "link")) is not None}, link, pci_address
        ),
        *_speedup(measurements),
        *_on_host(measurements),
        *remarks.clock("transfer.clock", measurements),
        *remarks.cpu_busy("transfer.cpu_busy", measurements, facts),
    ]


def corrupt(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every copy that was compared, in every run, arrived as it was sent."""
    comparisons = [row for one in measurements for row in remarks.compared(one, label(one), label(one))]
    return remarks.verification("transfer.corrupt", comparisons, "copies arrived corrupted")


def label(one: Measurement) -> str:
    """A row in words: `in pinned copies to the device, 16 MiB`."""
    case = one.case
    return f"in {case['host_memory']} copies {WAYS[case['direction']]}, {units.capacity(case['size_bytes'])}"


def best(measurements: Sequence[Measurement], direction: str, timed: str) -> Measurement | None:
    """The fastest large row of a direction by its median rate; None where there is none."""
    found = [
        one
        for one in measurements
        if one.rate is not None
        and (one.case["direction"], one.case["timed"]) == (direction, timed)
        and (timed == "as_called" or one.case["host_memory"] == "pinned")
        and one.case["size_bytes"] >= LARGE_BYTES
    ]
    return max(found, key=lambda one: one.rate.median if one.rate else 0.0, default=None)


def speedups(measurements: Sequence[Measurement]) -> tuple[PinnedGain, ...]:
    """For each direction and size that was copied both ways: time from pageable memory over time from pinned."""
    times: dict[tuple[str, int], dict[str, float]] = {}
    for one in measurements:
        if one.case["timed"] == "as_called" and one.time_s is not None:
            key = one.case["direction"], one.case["size_bytes"]
            times.setdefault(key, {})[one.case["host_memory"]] = one.time_s.median
    return tuple(
        PinnedGain(direction, size, both["pageable"] / both["pinned"])
        for (direction, size), both in times.items()
        if both.keys() >= {"pageable", "pinned"}
    )


def latencies(measurements: Sequence[Measurement]) -> tuple[CopyLatency, ...]:
    """For each direction and kind of memory, as called: the smallest copy's time, and the size where it is the half.

    Below `half_rate_bytes` a copy takes longer to start than to run; None where there is no fit to tell it.
    """
    halves = {(one.direction, one.host_memory, one.timed): one.half_rate_bytes for one in fits(measurements)}
    found = []
    for (direction, memory, timed), rows in _kinds(measurements).items():
        if timed != "as_called":
            continue
        small = min(rows, key=lambda one: int(one.case["size_bytes"]))
        assert small.time_s is not None
        size, half = small.case["size_bytes"], halves[direction, memory, timed]
        found.append(CopyLatency(direction, memory, size, small.time_s.median, half))
    return tuple(found)


def fits(measurements: Sequence[Measurement]) -> tuple[CopyFit, ...]:
    """For each direction, kind of memory and clock the line t = t0 + n/B through its sizes, or why there is none."""
    found = []
    for kind, rows in _kinds(measurements).items():
        # What launching takes is not in the link's time; where it is, the row tells the launch.
        usable = [one for one in rows if "launch-bound" not in one.flags]
        found.append(fit([(one.case["size_bytes"], one.time_s.median) for one in usable if one.time_s], kind))
    return tuple(found)


def _kinds(measurements: Sequence[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """The rows that have a time, by direction, kind of memory and clock."""
    kinds: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in measurements:
        if one.time_s is not None:
            kinds.setdefault((one.case["direction"], one.case["host_memory"], one.case["timed"]), []).append(one)
    return kinds


def _speedup(measurements: Sequence[Measurement]) -> list[Finding]:
    gains = speedups(measurements)
    large = [gain for gain in gains if gain.size_bytes >= LARGE_BYTES] or gains
    if not large:
        return []
    # The direction that training waits for, at the largest size.
    first = max(large, key=lambda gain: (gain.direction == "host_to_device", gain.size_bytes))
    gain, way = first.gain, WAYS[first.direction]
    half = next(
        (
            row.half_rate_bytes
            for row in latencies(measurements)
            if (row.direction, row.host_memory) == (first.direction, "pinned")
        ),
        None,
    )
    evidence = {"gains": to_json(gains), "half_rate_bytes": half, "fits": to_json(fits(measurements))}
    small = f"below {units.capacity(half)} latency dominates: batch small copies" if half else ""
    if gain < WORTHWHILE_GAIN:
        title = f"pinned memory gains nothing here: {units.significant(gain, 2)}× {way}"
        return [Finding("transfer.pinned_speedup", "info", title, small, evidence)]
    return [
        Finding(
            "transfer.pinned_speedup",
            "info",
            f"pinned memory copies {units.significant(gain, 2)}× faster {way}",
            small,
            evidence,
            fix=f"pin_memory=True and non_blocking=True copy {units.significant(gain, 2)}× faster {way}",
        )
    ]


def _on_host(measurements: Sequence[Measurement]) -> list[Finding]:
    row = best(measurements, "host_to_host", "as_called")
    if row is None or row.rate is None:
        return []
    size = units.capacity(row.case["size_bytes"])
    return [
        Finding(
            "transfer.host_to_host",
            "info",
            f"copies in host memory reach {units.byte_rate(row.rate.median)}",
            f"{size} at a time; each byte is counted once, although it is read and written",
            {"bytes_per_s": row.rate.median, "size_bytes": row.case["size_bytes"], "fits": to_json(fits(measurements))},
        )
    ]


# -- a line through sizes and times ------------------------------------------------------------------------------------


Points = Sequence[tuple[float, float]]


def fit(points: Points, kind: tuple[str, str, str]) -> CopyFit:
    """The line through `points` of (bytes, seconds), both positive, of one kind of copy (direction, memory, clock).

    Several of one size count as several. First the line with the least sum of absolute relative residuals, which a few
    wild points do not move; then least squares over the points that lie on it.
    """

    def none(why_not: str) -> CopyFit:
        return CopyFit(*kind, len(points), None, None, None, None, None, why_not)

    if len({size for size, _ in points}) < LEAST_SIZES:
        return none(f"a fit needs {LEAST_SIZES} sizes")
    line = _least_absolute(points)
    cut = CUT * stats.median([abs(one) for one in _residuals(points, line)])
    near = [point for point, one in zip(points, _residuals(points, line), strict=True) if abs(one) <= cut]
    if len({size for size, _ in near}) >= LEAST_SIZES:
        line = _least_squares(near)
    start_s, per_byte = line
    off = [abs(one) for one in _residuals(points, line)]
    far = [size for (size, _), one in zip(points, off, strict=True) if one > OFF]
    if len(far) > MOST_OFF * len(points):
        worst = max(zip(off, points, strict=True))[1][0]
        return none(
            f"time is not latency + size / rate: {len(far)} of {len(points)} sizes lie more than "
            f"{units.percent(OFF)} off, worst {units.capacity(int(worst))} (caches, or copies in pieces)"
        )
    if per_byte <= 0:
        return none("time does not grow with size")
    if start_s <= 0:
        return none("no latency visible: small copies take no longer than their size explains")
    bytes_per_s = 1 / per_byte
    # The size that takes as long to start as to run is copied at half the rate.
    half = start_s * bytes_per_s
    return CopyFit(*kind, len(points), start_s, bytes_per_s, half, max(off), tuple(far), None)


def _residuals(points: Points, line: tuple[float, float]) -> list[float]:
    """Relative to the time that was measured."""
    start_s, per_byte = line
    return [(start_s + size * per_byte - time_s) / time_s for size, time_s in points]


def _least_absolute(points: Points) -> tuple[float, float]:
    """Start and seconds per byte. The best line of this kind runs through two of the points: all pairs are tried."""
    lines = [
        (first[1] - first[0] * slope, slope)
        for first, second in combinations(points, 2)
        if first[0] != second[0]
        for slope in ((second[1] - first[1]) / (second[0] - first[0]),)
    ]
    return min(lines, key=lambda line: sum(abs(one) for one in _residuals(points, line)))


def _least_squares(points: Points) -> tuple[float, float]:
    """Start and seconds per byte with the least sum of squared relative residuals."""
    # With 1/t as weights: 1 = start · (1/t) + slope · (n/t).
    ones = [1 / time_s for _, time_s in points]
    slopes = [size / time_s for size, time_s in points]
    aa, bb = sum(one * one for one in ones), sum(one * one for one in slopes)
    ab = sum(one * other for one, other in zip(ones, slopes, strict=True))
    a, b = sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant
