"""Judge a run of `stress`: wrong results, slow devices, errors that the driver counted. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpucheck import units
from gpucheck.measure.telemetry import THROTTLED
from gpucheck.messages import FIX, fix_of
from gpucheck.naming import few
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.finding import Finding, Id, Verdict, of
from gpucheck.report.report import Judgement, Report
from gpucheck.report.results.stress import StressDevice, StressPoint, StressResult, StressWrong

# What gpu-fryer calls slow beside the best GPU of a node; healthy ones of one model lie within some percent.
SLOW = 0.10
# So much of the points must show it: one dip is no slow device.
MOST_POINTS_SHOW = 0.75
# Below this number of points of a kind nothing is said about its speed.
FEWEST_POINTS = 6
# Fewer slow points than this are dips, whatever is said to limit them.
FEWEST_SLOW = 3
# Noise of 7 % brings about so many slow points; a GPU at work has 1 to 2 %.
MOST_UNEVEN = 0.2
# With fewer GPUs of a model it is not known which speed is that of most.
FEWEST_SIBLINGS = 3
# A CPU's process that got less of its cores' time was not alone on them: its rates say nothing.
LEAST_OF_CORES = 0.9
# Where devices share links, or a core is shared with other programs, slower than a sibling is no fault yet.
_SHARED = frozenset({"copies"})
# Held by the hardware, and no setting: heat, or power that does not come.
_BY_HARDWARE = frozenset(THROTTLED) - {"sw_thermal_slowdown", "hw_slowdown"}
_HELD = {
    "sw_power_cap": "the power limit",
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power brake",
    "hw_slowdown": "a hardware slowdown",
    "applications_clocks_setting": "a clock setting",
    "sync_boost": "sync boost",
    "board_limit": "the board's limit",
    "reliability": "the voltage limit",
}
# The driver's counters by what their rise means; first of all, that the GPU was there before the run and not after it.
_LOST = "the driver lost the GPU"
_COUNTERS: dict[str, tuple[Verdict, str]] = {
    "lost": ("fail", _LOST),
    "xids": ("fail", "Xid errors in the kernel log"),
    "ecc_uncorrected": ("fail", "uncorrected memory errors"),
    "rows_failed": ("fail", "failed row remap"),
    "rows_remapped": ("warn", "memory rows replaced by spares"),
    "rows_pending": ("warn", "pending row remap"),
    "ecc_corrected": ("warn", "corrected memory errors"),
    "pcie_replays": ("warn", "PCIe packets resent"),
}
# The cause of a counter that has a fix of its own.
_CAUSES = {"lost": "lost", "ecc_uncorrected": "ecc"}
_LONGER = "use a longer --duration"
_TEST = f"{FIX['wrong data']} --device {{0}} --duration 30m"
_WATCH = "gpucheck devices --device {} --watch 2s: check heat, power limit and clock"
IDS = of(
    "stress",
    Id(
        "stress.wrong",
        "results stay correct under load",
        "The bits of a step differ from the first step, from a device of the same model, or from float64 by more "
        "than rounding. The device, its memory or its link corrupts data without an error.",
        f"{FIX['wrong data']} --device N --duration 30m",
    ),
    Id(
        "stress.slow",
        "devices keep their speed under load",
        "The device lost speed over the run, or is slower than others of its model. The cause is heat, power, a "
        "clock setting, or a GPU that is about to fail.",
        f"gpucheck devices --watch 2s; heat: {FIX['heat']}; power: {FIX['power']}",
    ),
    Id(
        "stress.errors",
        "the driver counts no errors under load",
        "Memory errors, Xid errors or resent packets occurred during the run.",
        "gpucheck doctor; sudo dmesg | grep -i xid",
    ),
    Id(
        "stress.memory",
        "there was enough memory to fill",
        "Much less memory was available than requested.",
        "gpucheck memory; or use a smaller --fill",
    ),
    Id(
        "stress.skipped",
        "the device has the data type",
        "The device has no products of this dtype.",
        "use another --dtype",
    ),
)


def judge(document: Report) -> Judgement:
    """The findings: faults and what was left out, wrong results, slow devices, errors that the driver counted."""
    findings = [*document.skips, *(replace(of_fault(one), device=one.device) for one in document.faults)]
    result = document.results.get("stress")
    if result is not None and any(one.steps or one.wrong_steps for one in result.devices):
        findings += [*wrong(result), *slow(result), *errors(result)]
    return Judgement(tuple(findings))


# -- wrong results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Odd:
    """Results in which devices of one model differ: the `minority`, empty where nobody is in the majority."""

    result: str
    devices: tuple[StressDevice, ...]
    minority: tuple[StressDevice, ...]


def siblings(devices: Sequence[StressDevice]) -> list[list[StressDevice]]:
    """The devices that compute the same: one model, one dtype and size. Groups of one are left out."""
    groups: dict[tuple[str, str, str, int], list[StressDevice]] = {}
    for one in devices:
        if one.checksums:
            groups.setdefault((one.device.id.partition(":")[0], one.model, one.dtype, one.side), []).append(one)
    return [group for group in groups.values() if len(group) > 1]


def odd(devices: Sequence[StressDevice]) -> list[Odd]:
    """The results of which devices of one model have different first ones."""
    found = []
    for group in siblings(devices):
        for result in dict.fromkeys(name for one in group for name in one.checksums):
            have = [one for one in group if result in one.checksums]
            counted = Counter(one.checksums[result] for one in have)
            if len(counted) < 2:
                continue
            ((most, votes),) = counted.most_common(1)
            minority = [one for one in have if one.checksums[result] != most] if votes > len(have) / 2 else []
            found.append(Odd(result, tuple(have), tuple(minority)))
    return found


def wrong(result: StressResult) -> list[Finding]:
    """A finding for each device that computed wrongly, and for those that disagree; else the one that all are right."""
    differing = odd(result.devices)
    findings = [
        _of_device(one, [other for other in differing if one in other.minority])
        for one in result.devices
        if one.wrong_steps or one.wrong or any(one in other.minority for other in differing)
    ]
    findings += _disagreements([one for one in differing if not one.minority])
    if findings:
        return findings
    at_work = [one for one in result.devices if one.steps]
    groups = siblings(at_work)
    same = f"; {sum(map(len, groups))} of one model agree bit for bit" if len(groups) == 1 else ""
    steps, checks = sum(one.steps for one in at_work), sum(one.checks for one in at_work)
    parts = [memory_tested(at_work), _memory_held(at_work)]
    message = "; ".join([f"{checks} checks against float64{same}", *filter(None, parts)])
    title = f"the results of all {steps} steps are correct"
    done = [{point.kind for point in one.points} for one in at_work]
    if missing := [kind for kind in result.kinds if not all(kind in kinds for kinds in done)]:
        title = f"{title}; not tested: {', '.join(missing)}"
        return [Finding("stress.wrong", "inconclusive", title, message, fix=_LONGER)]
    some, filled = _smallest_share(at_work, lambda one: one.memory_tested_bytes)
    # Memory's share of the time does not shrink as a run gets longer.
    fix = f"--duration {math.ceil(result.duration_s * filled / some)}s" if 0 < some < filled else None
    return [Finding("stress.wrong", "pass", title, message, fix=fix)]


def memory_tested(devices: Sequence[StressDevice]) -> str:
    """Return how much of the memory was tested, where that is not all of it on every device."""
    some, filled = _smallest_share(devices, lambda one: one.memory_tested_bytes)
    return f"{units.capacity(some)} of {units.capacity(filled)} of memory tested" if some < filled else ""


def _memory_held(devices: Sequence[StressDevice]) -> str:
    """Return how much of the memory was seen to keep its data, where that is not all of it on every device."""
    some, filled = _smallest_share(devices, lambda one: one.memory_held_bytes)
    if not some and filled:
        return "not tested: whether memory keeps its data"
    whole = f"{units.capacity(some)} of {units.capacity(filled)} read again after all other memory was written"
    return whole if some < filled else ""


def _smallest_share(devices: Sequence[StressDevice], of: Callable[[StressDevice], int | None]) -> tuple[int, int]:
    """The device's with the smallest share of what it filled, and that; (0, 0) where it is unknown."""
    shares = [
        (some / one.filled_bytes, some, one.filled_bytes)
        for one in devices
        if one.filled_bytes and (some := of(one)) is not None
    ]
    return min(shares, default=(1.0, 0, 0))[1:]


def _of_device(one: StressDevice, differing: Sequence[Odd]) -> Finding:
    sure = [each for each in one.wrong if not _is_rounding(each, one)]
    verdict: Verdict = "fail" if sure or (differing and one.reproducible) else "warn"
    texts = [text_of(each) for each in (sure or one.wrong)[:1]]
    for each in differing[:1]:
        others = [other.name for other in each.devices if other not in each.minority]
        texts.append(f"{each.result}: bits differ from {few(others, ', ')} of the same model")
    what = "wrong results" if verdict == "fail" else "different bits"
    where = f"in {one.wrong_steps} of {max(one.steps, one.wrong_steps)} steps" if one.wrong_steps else "from the start"
    return Finding(
        "stress.wrong",
        verdict,
        f"{one.name}: {what} {where}",
        "; ".join(texts),
        {
            "name": one.name,
            "steps": one.steps,
            "wrong_steps": one.wrong_steps,
            "wrong": [asdict(each) for each in one.wrong],
            "differs_from_siblings": [each.result for each in differing],
        },
        _TEST.format(one.device.id) if verdict == "fail" else None,
        one.device.id,
    )


def _is_rounding(each: StressWrong, one: StressDevice) -> bool:
    """Return whether it may be the same sum in another order, on a device that does not promise the same bits."""
    within = each.worst_of_bound is not None and each.worst_of_bound <= 1
    return each.against == "first" and within and not one.reproducible


def _disagreements(some: Iterable[Odd]) -> list[Finding]:
    """Devices that differ where no majority says which is wrong, a finding for each set of devices."""
    sets: dict[tuple[str, ...], list[Odd]] = {}
    for each in some:
        sets.setdefault(tuple(one.name for one in each.devices), []).append(each)
    return [
        Finding(
            "stress.wrong",
            "fail" if all(one.reproducible for one in each[0].devices) else "warn",
            f"{' and '.join(names)} computed different bits from the same data",
            f"in {few([one.result for one in each], ', ')}; which of them is wrong is unknown",
            {"names": names, "results": [one.result for one in each]},
            _TEST.format(each[0].devices[0].device.id),
        )
        for names, each in sets.items()
    ]


def text_of(each: StressWrong) -> str:
    """A wrong step in words: `products at 12.3 s, step 40: 1 element differs (…)`."""
    elements = "" if each.elements is None else f"{each.elements} element{'s' * (each.elements != 1)} wrong"
    where = f" at index {each.place}" if each.place is not None else ""
    told = "; ".join(part for part in (f"{elements}{where}" if elements else where.strip(), each.text) if part)
    return f"{each.result} at {units.duration(max(each.at_s, 1e-3))} (step {each.step}): {told}"


# -- slow devices ------------------------------------------------------------------------------------------------------


def slow(result: StressResult) -> list[Finding]:
    """Devices that lost speed over time, or are slower than those of their model; else one of what kept its speed."""
    findings = []
    for one in result.devices:
        falls = [fall for kind in result.kinds if (fall := _fall(one, kind)) is not None]
        # One cause shows in every kind of work: the deepest fall says it.
        findings += [max(falls, key=lambda found: found[0])[1]] if falls else _held_throughout(one) or _at_times(one)
    for group in siblings(result.devices):
        behind = [found for one in group if (found := _behind(one, group, result.kinds)) is not None]
        findings += behind
        told = {kind for found in behind for kind in found.evidence["slower"]}
        findings += _ahead(group, [kind for kind in result.kinds if kind not in told])
    return findings or [_kept_speed(result)]


def _kept_speed(result: StressResult) -> Finding:
    """What kept its speed: only devices and kinds of work that had the points to show it.

    No device is called "not slow" unless there were siblings to compare it with.
    """
    at_work = [one for one in result.devices if one.steps]
    judged = [one for one in at_work if any(_ratio(_judged(one, kind)) for kind in result.kinds)]
    # The device that lost most counts, and one with too few points of a kind leaves that kind unjudged.
    least = {kind: min((_ratio(_judged(one, kind)) or 0.0 for one in judged), default=0.0) for kind in result.kinds}
    uneven = {kind for kind in result.kinds if any(_is_uneven(_judged(one, kind)) for one in judged)}
    kinds = [kind for kind in result.kinds if least[kind] >= 1 - SLOW and kind not in uneven]
    if not kinds:
        busy = any(not _was_alone(point) for one in result.devices for point in one.points)
        why = "other programs used the cores" if busy else "rates are too uneven" if judged else "too short"
        return Finding("stress.slow", "skip", "speed was not judged", why)
    compared = [
        one for group in siblings(judged) for one in group
        if all(
            (usual := _of_siblings(one, group, kind))
            and 1 - SLOW <= _median_of(_judged(one, kind)) / usual <= 1 / (1 - SLOW)
            for kind in kinds
        )
    ]  # fmt: skip
    if len(compared) == len(at_work):
        title, message = "no device is slow", f"all within {units.percent(SLOW)}"
    else:
        title = f"{len(judged)} of {len(at_work)} devices kept their speed"
        title = f"{at_work[0].name} kept its speed" if len(at_work) == 1 else title
        shares = [f"{kind} {units.percent(least[kind])}" for kind in kinds]
        message = f"last third of the run against the first: {', '.join(shares)}"
    if missing := [kind for kind in result.kinds if kind not in kinds]:
        title = f"{title} in {', '.join(kinds)}"
        whys = [f"{kind} ({'too uneven' if least[kind] else 'too few points'})" for kind in missing]
        message = f"{message}; not judged: {', '.join(whys)}"
    return Finding(
        "stress.slow", "pass", title, message, {"last_third_to_first": {kind: least[kind] for kind in kinds}}
    )


def _judged(one: StressDevice, kind: str) -> list[StressPoint]:
    """The points of a kind of work that say something of the device's speed."""
    return [point for point in one.points if point.kind == kind and _was_alone(point)]


def _was_alone(point: StressPoint) -> bool:
    return point.core_share is None or point.core_share >= LEAST_OF_CORES


def _ratio(points: Sequence[StressPoint]) -> float | None:
    """The rate in the last third of the points as a share of that in the first; None for too few points."""
    third = len(points) // 3
    if len(points) < FEWEST_POINTS or not (first := _median_of(points[:third])):
        return None
    return _median_of(points[-third:]) / first


def _is_uneven(points: Sequence[StressPoint]) -> bool:
    """Return whether so many points lie below what the device can do that its thirds show no speed that it kept."""
    rates = sorted(point.rate.median for point in points)
    low = sum(rate < (1 - SLOW) * rates[len(rates) * 3 // 4] for rate in rates)
    return low >= max(FEWEST_SLOW, MOST_UNEVEN * len(rates))


def _median_of(points: Sequence[StressPoint]) -> float:
    return statistics.median(point.rate.median for point in points)


def _fall(one: StressDevice, kind: str) -> tuple[float, Finding] | None:
    """Return how far a kind of work fell from the first third of its points to the last, with its finding; else
    None."""
    points = _judged(one, kind)
    ratio = _ratio(points)
    if ratio is None or ratio >= 1 - SLOW:
        return None
    third = len(points) // 3
    late = points[-third:]
    first, last = _median_of(points[:third]), _median_of(late)
    if not _is_below(late, first):
        return None
    fall = 1 - ratio
    held = Counter(name for point in late for name in point.held)
    clocks = [spread.median for point in (points[0], points[-1]) if (spread := point.sm_clock_hz) is not None]
    heat = max((spread.max for point in late if (spread := point.temperature_celsius)), default=None)
    parts = [_limits(held)]
    parts += [f"clock {clocks[0] / 1e6:.0f} to {clocks[1] / 1e6:.0f} MHz"] if len(clocks) == 2 else []
    parts += [f"up to {heat:.0f} °C"] if heat is not None else []
    verdict: Verdict = "fail" if _BY_HARDWARE & set(held) else "warn"
    title = f"lost {units.percent(fall)} of its speed over the run ({kind})"
    told = {"kind": kind, "fall": fall, "first": first, "last": last, "held": sorted(held)}
    return fall, _slow(one, verdict, title, "; ".join(parts), told)


def _slow(one: StressDevice, verdict: Verdict, title: str, why: str, told: dict[str, Any], fix: str = "") -> Finding:
    title, evidence = f"{one.name}: {title}", {"name": one.name, **told}
    fix += _WATCH.format(one.device.id)
    return Finding("stress.slow", verdict, title, why, evidence, fix, one.device.id)


def _held_throughout(one: StressDevice) -> list[Finding]:
    """The finding for a device that heat or the hardware held back in most of its points: slow from the start."""
    # `hw_slowdown` flashes whenever the clock changes.
    counted = Counter(name for point in one.points for name in set(THROTTLED) & set(point.held) - {"hw_slowdown"})
    held = [name for name, count in counted.most_common() if count >= MOST_POINTS_SHOW * len(one.points)]
    if len(one.points) < FEWEST_POINTS or not held:
        return []
    verdict: Verdict = "fail" if _BY_HARDWARE & set(held) else "warn"
    title = f"the clock was limited by {few([_HELD[name] for name in held], ', ')} from the start"
    return [_slow(one, verdict, title, "in most of the run", {"held": sorted(held)})]


def _at_times(one: StressDevice) -> list[Finding]:
    """The finding for a device that was slow in some points: while heat or the hardware limited it, or in the last."""
    of_kind = {kind: _judged(one, kind) for kind in {point.kind for point in one.points}}
    usual = {
        kind: statistics.quantiles((point.rate.median for point in points), n=4)
        for kind, points in of_kind.items()
        if len(points) >= FEWEST_POINTS
    }
    points = [point for point in one.points if point.kind in usual and _was_alone(point)]

    def is_low(point: StressPoint, quartile: int) -> bool:
        return point.rate.median < (1 - SLOW) * usual[point.kind][quartile]

    # Beside the upper quartile: up to three quarters of the points may be slow. What drifts is often below that at the
    # end, where no limit has to be known: there it is the median.
    low = [point for point in points if is_low(point, 2)]
    limited = [point for point in low if set(THROTTLED) & set(point.held)]
    last = list(itertools.takewhile(lambda point: is_low(point, 1), reversed(points)))[::-1]
    if len(last) >= FEWEST_SLOW:
        slowed, where = last, f"from {units.duration(max(last[0].at_s, 1e-3))} to the end"
    # Where as many are slow without a limit, rates are uneven, and some of them fall together with one.
    elif len(limited) >= max(FEWEST_SLOW, MOST_POINTS_SHOW * len(low)):
        slowed, where = limited, f"in {len(limited)} of {len(points)} points"
    else:
        return []
    fall = statistics.median(1 - point.rate.median / usual[point.kind][2] for point in slowed)
    held = Counter(name for point in slowed for name in point.held)
    told = {"fall": fall, "points": len(slowed), "held": sorted(held)}
    title = f"lost {units.percent(fall)} of its speed {where}"
    return [_slow(one, "warn", title, _limits(held), told, f"{_LONGER} to see if it lasts; ")]


def _limits(held: Counter[str]) -> str:
    causes = [_HELD.get(name, name) for name, _ in held.most_common()]
    return f"the clock was limited by {few(causes, ', ')}" if causes else "the cause is unknown"


def _behind(one: StressDevice, group: Sequence[StressDevice], kinds: Sequence[str]) -> Finding | None:
    """The finding for a device that is slower than its siblings in some kind of work; None for one that is not."""
    told: list[tuple[str, float]] = []
    for kind in kinds:
        own, usual = _judged(one, kind), _of_siblings(one, group, kind)
        if usual and (share := _median_of(own) / usual) < 1 - SLOW and _is_below(own, usual):
            told.append((kind, 1 - share))
    if not told:
        return None
    kind, share = max(told, key=lambda each: each[1])
    shared = one.device.id == "cpu" or {kind for kind, _ in told} <= _SHARED
    others = [other.name for other in group if other is not one]
    return Finding(
        "stress.slow",
        "warn" if shared else "fail",
        f"{one.name}: {units.percent(share)} slower than {few(others, ', ')} ({kind})",
        "other programs may use the core" if one.device.id == "cpu" else "the same model, the same work",
        {"name": one.name, "slower": dict(told), "siblings": others},
        None if one.device.id == "cpu" else f"gpucheck devices --device {one.device.id}; then gpucheck doctor",
        one.device.id,
    )


def _ahead(group: Sequence[StressDevice], kinds: Sequence[str]) -> list[Finding]:
    """The finding for GPUs that are faster than most of their siblings: either these or those are unusual."""
    # Of two, the slower one is judged; and a CPU may have cores of several kinds.
    if len(group) < FEWEST_SIBLINGS or group[0].device.id == "cpu":
        return []
    leads = {
        kind: {
            one.name: _median_of(own) / usual - 1
            for one in group
            if (own := _judged(one, kind))
            and (usual := _of_siblings(one, group, kind))
            and _is_below(own, usual, above=True)
        }
        for kind in kinds
    }
    # Links are shared: more ahead in copies is less than ahead in products.
    shown = [(kind not in _SHARED, max(lead.values()), kind) for kind, lead in leads.items() if lead]
    if not shown:
        return []
    _, lead, kind = max(shown)
    fast = list(leads[kind])
    others = [one.name for one in group if one.name not in fast]
    return [
        Finding(
            "stress.slow",
            "warn" if kind in _SHARED else "inconclusive",
            f"{few(fast, ', ')}: up to {units.percent(lead)} faster than {few(others, ', ')} ({kind})",
            "the same model: which are usual is unknown",
            {"faster": fast, "siblings": others},
            "gpucheck devices: compare power limits, clocks and heat; then gpucheck doctor",
        )
    ]


def _of_siblings(one: StressDevice, group: Sequence[StressDevice], kind: str) -> float | None:
    """The rate that is usual for the device's siblings; None or 0 without theirs, or for too few points of its own."""
    others = [_median_of(theirs) for other in group if other is not one and (theirs := _judged(other, kind))]
    return statistics.median(others) if others and len(_judged(one, kind)) >= FEWEST_POINTS else None


def _is_below(points: Sequence[StressPoint], usual: float, *, above: bool = False) -> bool:
    """Return whether most of the points lie clearly below what is usual, or above it."""
    rates = [(usual, point.rate.median) if above else (point.rate.median, usual) for point in points]
    return sum(less < (1 - SLOW) * more for less, more in rates) >= MOST_POINTS_SHOW * len(rates)


# -- the driver's counters ---------------------------------------------------------------------------------------------


def errors(result: StressResult) -> list[Finding]:
    """A finding for each device whose error counters rose, or that the driver lists no more."""
    findings = []
    for one in result.devices:
        if why := one.unknown.get("state"):
            title = f"{one.name}: whether it still works is unknown"
            findings.append(Finding("stress.errors", "inconclusive", title, why, {}, "gpucheck doctor", one.device.id))
        risen = {name: one.counters[name] for name in _COUNTERS if one.counters.get(name)}
        if not risen:
            continue
        worst = min((_COUNTERS[name][0] for name in risen), key=("fail", "warn").index)
        told = ", ".join(_LOST if name == "lost" else f"{count} {_COUNTERS[name][1]}" for name, count in risen.items())
        cause = next((_CAUSES[name] for name in risen if name in _CAUSES), None)
        fix = "gpucheck doctor; sudo dmesg | grep -i xid" if worst == "fail" else "gpucheck devices"
        fix = fix_of(cause) if cause is not None else fix
        findings.append(
            Finding("stress.errors", worst, f"{one.name}: {told}", "during the run", dict(risen), fix, one.device.id)
        )
    return findings


def live_text(live: Sequence[tuple[str, dict[str, Any], StressDevice]]) -> str:
    """The live line: what is at work, how fast in all, and the hottest, the hungriest and the slowest clock."""
    kind = str(live[0][1]["kind"])
    alike = [told for _, told, _ in live if told["kind"] == kind]
    parts = [f"{kind}: {rate_text(sum(told['rate'] for told in alike), str(alike[0]['unit']))}"]
    told = [one for _, one, _ in live]
    clocks = [one["sm_clock_hz"] for one in told if one.get("sm_clock_hz")]
    parts += [f"{min(clocks) / 1e6:.0f} MHz"] if clocks else []
    watts = [one["power_w"] for one in told if one.get("power_w")]
    parts += [f"{sum(watts):.0f} W"] if watts else []
    heats = [one["temperature_celsius"] for one in told if one.get("temperature_celsius")]
    parts += [f"{max(heats):.0f} °C"] if heats else []
    wrong = sum(answer.wrong_steps for _, _, answer in live)
    parts += [f"{wrong} wrong"] if wrong else []
    return " ".join(parts)


def of_bytes(rate: float, unit: str) -> tuple[float, str]:
    """A rate and its unit as they are shown: memory's 64-bit words are bytes of memory that were tested."""
    return (8 * rate, "B/s") if unit == "word/s" else (rate, unit)


def rate_text(rate: float, unit: str) -> str:
    rate, unit = of_bytes(rate, unit)
    return units.byte_rate(rate) if unit == "B/s" else units.flop_rate(rate, unit.removesuffix("/s") + "/s")
