"""What `bench all` comes to: for each benchmark the figures that stand for it, and its verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpucheck import units
from gpucheck.bench import chosen, limits
from gpucheck.bench.crossover import judge as crossover
from gpucheck.bench.crossover.crossing import size_text
from gpucheck.bench.figures import Ceilings
from gpucheck.bench.overlap import judge as overlap
from gpucheck.directions import WAYS
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench_all import BenchAll, BenchmarkSummary, Headline

# Remarks and skips say nothing of a benchmark.
_SILENT: tuple[Verdict, ...] = ("skip", "info")


def of(
    measurements: Sequence[Measurement],
    findings: Sequence[Finding],
    names: Iterable[str],
    by_device: Mapping[str, Sequence[Finding]] | None = None,
) -> BenchAll:
    """The headlines of the benchmarks with these names, device by device, and what each benchmark's findings say.

    `by_device` tells whose link and peak a finding is about. Findings name no device: without it, and with several
    devices, that is not known.
    """
    ran = tuple(names)
    devices = tuple(dict.fromkeys(one.device.id for one in measurements))
    whose = by_device if by_device is not None else {devices[0]: findings} if len(devices) == 1 else {}
    known = {device: limits.ceilings(whose.get(device, ())) for device in devices}
    lines = [
        line
        for device in devices
        for name in ran
        if name in HEADLINES
        for line in HEADLINES[name]([one for one in measurements if one.device.id == device], known[device])
    ]
    return BenchAll(tuple(lines), tuple(_summary(name, findings) for name in ran))


def _summary(name: str, findings: Sequence[Finding]) -> BenchmarkSummary:
    # A device that failed in it is told by an id of its own.
    mine = [one for one in findings if one.id.startswith(f"{name}.") or one.evidence.get("where") == f"bench {name}"]
    told = [finding for finding in mine if finding.verdict not in _SILENT]
    if told:
        worst = min(told, key=lambda finding: WORST_FIRST.index(finding.verdict))
        return BenchmarkSummary(name, worst.verdict, "" if worst.verdict == "pass" else worst.title)
    skipped = [finding.title for finding in mine if finding.verdict == "skip"]
    return BenchmarkSummary(name, "skip", skipped[0] if skipped else "nothing was judged")


def _headline(name: str, case: str, one: Measurement, known: Ceilings, ceiling: str, what: str) -> Headline:
    """A row's rate with its interval, and its share of a ceiling where that is known."""
    if one.rate is None or one.time_s is None:
        return Headline(name, one.device.id, case, None, "B/s", flags=one.flags)
    rate, time_s, limit = one.rate.median, one.time_s, known.get(ceiling)
    share = rate / limit.value if limit is not None and limit.value else None
    return Headline(
        name,
        one.device.id,
        case,
        rate,
        one.rate.unit,
        rate * time_s.median / time_s.ci_high if time_s.ci_high else None,
        rate * time_s.median / time_s.ci_low if time_s.ci_low else None,
        share,
        None if share is None else f"{what}, estimated" if limit is not None and limit.doubt else what,
        one.flags,
    )


def _transfer(measurements: Sequence[Measurement], known: Ceilings) -> list[Headline]:
    found = []
    for way, pinned in chosen.largest_copies(measurements).items():
        # Where nothing can be pinned, what was copied.
        one = pinned or max(chosen.copies(measurements)[way], key=chosen.size)
        case = f"{WAYS[way]}, {one.case['host_memory']}, {units.capacity(chosen.size(one))}"
        found.append(_headline("transfer", case, one, known, "link", "the link"))
    return found


def _bandwidth(measurements: Sequence[Measurement], known: Ceilings) -> list[Headline]:
    return [
        _headline("bandwidth", f"{operation}, {units.capacity(chosen.size(one))}", one, known, "memory", "the peak")
        for operation, one in chosen.largest_arrays(measurements).items()
    ]


def _matmul(measurements: Sequence[Measurement], known: Ceilings) -> list[Headline]:
    found = []
    for dtype, one in chosen.fastest_products(measurements).items():
        case = f"{dtype}, {'×'.join(str(one.case[side]) for side in 'mnk')}"
        found.append(_headline("matmul", case, one, known, dtype, "the peak"))
    return found


def _overlap(measurements: Sequence[Measurement], known: Ceilings) -> list[Headline]:
    """What hides of a pinned copy on a second stream; where there is neither, of what was copied."""
    rows = overlap.answer(measurements)
    best = [one for one in rows if (one.host_memory, one.streams) == ("pinned", 2)]
    found = []
    for one in best or rows:
        streams = "two streams" if one.streams == 2 else "one stream"
        case = f"{WAYS[one.direction]}, {one.host_memory}, {streams}"
        found.append(Headline("overlap", one.device, case, one.overlap, "1", one.ci_low, one.ci_high, flags=one.flags))
    return found


def _crossover(measurements: Sequence[Measurement], known: Ceilings) -> list[Headline]:
    """For each operation, its copies counted, the device's speed-up at a normal size, else at the largest."""
    found = []
    races = crossover.races(measurements)
    for one in crossover.answer(measurements, {}):
        operation, start = one.operation, one.device_faster_from
        if not one.transfers:
            continue
        tried = races[operation, True]
        size = one.speedup.size if one.speedup is not None else one.largest
        race = tried[size]
        faster = f"faster from {size_text(operation, start)} on" if start is not None else "never faster"
        case = f"{operation}, {faster}; at {size_text(operation, size)}"
        rows = [row for row in measurements if (row.case.get("operation"), row.case.get("size")) == (operation, size)]
        flags = tuple(dict.fromkeys(flag for row in rows for flag in row.flags))
        ends = race.ci_low, race.ci_high
        found.append(Headline("crossover", one.device, case, race.ratio, "times", *ends, flags=flags))
    return found


# The figures that stand for a benchmark, of one device's measurements.
HEADLINES: dict[str, Callable[[Sequence[Measurement], Ceilings], list[Headline]]] = {
    "transfer": _transfer,
    "bandwidth": _bandwidth,
    "matmul": _matmul,
    "overlap": _overlap,
    "crossover": _crossover,
}
