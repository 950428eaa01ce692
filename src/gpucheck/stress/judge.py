"""Judge a run of `stress`: wrong results, slow devices, errors that the driver counted. No I/O."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpucheck import units
from gpucheck.measure import runs
from gpucheck.measure.telemetry import THROTTLED
from gpucheck.messages import FIX, fix_of
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.finding import Finding, Id, Verdict, ids_of
from gpucheck.report.report import Judgement, Report, few
from gpucheck.report.results.stress import StressDevice, StressResult, StressWrong

# A GPU is slow if its rate is this share below the usual rate, as in gpu-fryer. Healthy GPUs differ by a few percent.
SLOW = 0.10
# The share of points that must be slow, because a single dip does not make a device slow.
LEAST_SLOW_SHARE = 0.75
# The fewest points for a judgement of a kind's speed.
FEWEST_POINTS = 6
# The fewest slow points that are more than a dip.
FEWEST_SLOW = 3
# Rates are uneven if this share of points is slow, as with noise of 7 %. A GPU at work has noise of 1 to 2 %.
MOST_UNEVEN = 0.2
# The fewest GPUs of a model that show its usual speed.
FEWEST_SIBLINGS = 3
# Work in which healthy devices may differ, because they share links.
_SHARED = frozenset({"copies"})
# Clock reasons that the hardware gives for heat or missing power, never for a setting.
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
# The driver's counters with the meaning of a rise, the worst first. `lost` is 1 for a GPU that disappeared in the run.
_COUNTERS: dict[str, tuple[Verdict, str]] = {
    "lost": ("fail", "the driver lost the GPU"),
    "xids": ("fail", "Xid errors in the kernel log"),
    "ecc_uncorrected": ("fail", "uncorrected memory errors"),
    "rows_failed": ("fail", "failed row remap"),
    "rows_remapped": ("warn", "memory rows replaced by spares"),
    "rows_pending": ("warn", "pending row remap"),
    "ecc_corrected": ("warn", "corrected memory errors"),
    "pcie_replays": ("warn", "PCIe packets resent"),
}
# The causes of counters that have a specific fix.
_CAUSES = {"lost": "lost", "ecc_uncorrected": "ecc"}
_TEST = f"{FIX['wrong data']} --device {{0}} --duration 30m"
IDS = ids_of(
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
    """Return the findings: faults and skips, wrong results, slow devices, errors that the driver counted."""
    findings = [*document.skips, *(replace(of_fault(fault), device=fault.device) for fault in document.faults)]
    result = document.results.get("stress")
    if result is not None and any(device.steps or device.wrong_steps for device in result.devices):
        findings += [*wrong(result), *slow(result), *errors(result)]
    return Judgement(tuple(findings))


# -- wrong results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A result in which devices of one model differ. `minority` are the devices outside a majority, if there is one."""

    result: str
    devices: Sequence[StressDevice]
    minority: Sequence[StressDevice]


def siblings(devices: Sequence[StressDevice]) -> list[list[StressDevice]]:
    """Return the groups of several devices that must compute equal results: one model, dtype and size."""
    groups = runs.group_by(
        lambda device: (device.device.id.partition(":")[0], device.model, device.dtype, device.side),
        (device for device in devices if device.checksums),
    )
    return [group for group in groups.values() if len(group) > 1]


def disagreements(devices: Sequence[StressDevice]) -> list[Disagreement]:
    differing = []
    for group in siblings(devices):
        for result in dict.fromkeys(name for device in group for name in device.checksums):
            have = [device for device in group if result in device.checksums]
            counted = Counter(device.checksums[result] for device in have)
            if len(counted) < 2:
                continue
            ((most, votes),) = counted.most_common(1)
            minority = [device for device in have if device.checksums[result] != most] if votes > len(have) / 2 else []
            differing.append(Disagreement(result, have, minority))
    return differing


def wrong(result: StressResult) -> list[Finding]:
    """Return a finding for each device with wrong results and each set that disagrees; else the finding of a pass."""
    differing = disagreements(result.devices)
    findings = []
    for device in result.devices:
        in_minority = [row for row in differing if device in row.minority]
        findings += [_of_device(device, in_minority)] if device.wrong_steps or device.wrong or in_minority else []
    findings += _disagreements([row for row in differing if not row.minority])
    if findings:
        return findings
    at_work = [device for device in result.devices if device.steps]
    groups = siblings(at_work)
    same = f"{sum(map(len, groups))} of one model agree bit for bit" if len(groups) == 1 else ""
    checks = f"{sum(device.checks for device in at_work)} checks against float64"
    message = "; ".join(filter(None, (checks, same, memory_tested(at_work))))
    title = f"the results of all {sum(device.steps for device in at_work)} steps are correct"
    tested = [{point.kind for point in device.points} for device in at_work]
    if missing := [kind for kind in result.kinds if not all(kind in kinds for kinds in tested)]:
        title = f"{title}; not tested: {', '.join(missing)}"
        return [Finding("stress.wrong", "inconclusive", title, message, fix="use a longer --duration")]
    return [Finding("stress.wrong", "pass", title, message)]


def memory_tested(devices: Sequence[StressDevice]) -> str:
    """Return the amount of tested memory in words; empty if every device tested all of its memory."""
    known = [(row.memory_tested_bytes, row.filled_bytes) for row in devices if row.memory_tested_bytes is not None]
    tested, filled = min((row for row in known if row[1]), key=lambda row: row[0] / row[1], default=(0, 0))
    return f"{units.capacity(tested)} of {units.capacity(filled)} of memory tested" if tested < filled else ""


def _of_device(device: StressDevice, differing: Sequence[Disagreement]) -> Finding:
    # If a device may add in another order in each call, rounding may explain a difference.
    certain = [
        wrong
        for wrong in device.wrong
        if device.reproducible or wrong.against != "first" or wrong.worst_of_bound is None or wrong.worst_of_bound > 1
    ]
    verdict: Verdict = "fail" if certain or (differing and device.reproducible) else "warn"
    texts = [text_of(wrong) for wrong in (certain or device.wrong)[:1]]
    for row in differing[:1]:
        others = [other.name for other in row.devices if other not in row.minority]
        texts.append(f"{row.result}: bits differ from {few(others, ', ')} of the same model")
    count, steps = device.wrong_steps, max(device.steps, device.wrong_steps)
    where = f"in {count} of {steps} steps" if count else "from the start"
    evidence = {
        "name": device.name,
        "steps": device.steps,
        "wrong_steps": count,
        "wrong": [asdict(wrong) for wrong in device.wrong],
        "differs_from_siblings": [row.result for row in differing],
    }
    fix = _TEST.format(device.device.id) if verdict == "fail" else None
    title = f"{device.name}: {'wrong results' if verdict == 'fail' else 'different bits'} {where}"
    return Finding("stress.wrong", verdict, title, "; ".join(texts), evidence, fix, device.device.id)


def _disagreements(differing: Sequence[Disagreement]) -> list[Finding]:
    """Return a finding for each set of devices that differ without a majority. It names the first differing result."""
    findings = []
    for names, row in {tuple(device.name for device in row.devices): row for row in reversed(differing)}.items():
        verdict: Verdict = "fail" if all(device.reproducible for device in row.devices) else "warn"
        title = f"{' and '.join(names)} computed different bits from the same data"
        why = f"in {row.result}; the device at fault is unknown"
        fix = _TEST.format(row.devices[0].device.id)
        findings.append(Finding("stress.wrong", verdict, title, why, {"names": names, "results": [row.result]}, fix))
    return findings


def text_of(wrong: StressWrong) -> str:
    """Return a wrong step in words: `products at 12.3 s (step 40): 1 element wrong at index 70; …`."""
    count = "" if wrong.elements is None else f"{wrong.elements} element{'s' * (wrong.elements != 1)} wrong"
    where = f"{count}{'' if wrong.place is None else f' at index {wrong.place}'}".strip()
    parts = "; ".join(filter(None, (where, wrong.text)))
    return f"{wrong.result} at {units.duration(wrong.at_s) if wrong.at_s > 0 else '0 s'} (step {wrong.step}): {parts}"


# -- slow devices ------------------------------------------------------------------------------------------------------


def slow(result: StressResult) -> list[Finding]:
    """Return findings for GPUs that lost speed or differ from others of their model; if there are none, a finding about
    the kept speed. The speed of a CPU is not judged, because other programs use its cores and caches."""
    gpus = [device for device in result.devices if device.device.id != "cpu" and device.steps]
    findings = []
    for device in gpus:
        falls = [fall for kind in result.kinds if (fall := _fall(device, kind)) is not None]
        # A cause usually slows every kind of work, so only the largest fall is reported.
        findings += [max(falls, key=lambda fall: fall[0])[1]] if falls else _limited(device)
    for group in siblings(gpus):
        findings += _unlike(group, result.kinds)
    return findings or [_kept_speed(gpus, result.kinds)]


def _kept_speed(gpus: Sequence[StressDevice], kinds: Sequence[str]) -> Finding:
    """Return the finding about the kinds of work that kept their speed on every GPU."""
    judged = [device for device in gpus if any(_ratio(rates_of(device, kind)) for kind in kinds)]
    shares = {}
    for kind in kinds:
        rates = [rates_of(device, kind) for device in judged]
        # The GPU that lost most decides. A GPU with too few points counts as 0, so the kind is not judged.
        lowest = min((_ratio(of_device) or 0.0 for of_device in rates), default=0.0)
        if lowest >= 1 - SLOW and not any(map(_is_uneven, rates)):
            shares[kind] = lowest
    if not shares:
        why = "rates are too uneven" if judged else "too short" if gpus else "other programs share a CPU's cores"
        return Finding("stress.slow", "skip", "speed was not judged", why)
    several = f"{len(judged)} of {len(gpus)} devices kept their speed"
    title = f"{gpus[0].name} kept its speed" if len(gpus) == 1 else several
    texts = ", ".join(f"{kind} {units.percent(share)}" for kind, share in shares.items())
    message = f"last third of the run against the first: {texts}"
    if missing := [kind for kind in kinds if kind not in shares]:
        title = f"{title} in {', '.join(shares)}"
        message = f"{message}; not judged (too few points, or uneven): {', '.join(missing)}"
    return Finding("stress.slow", "pass", title, message, {"last_third_to_first": shares})


def rates_of(device: StressDevice, kind: str) -> list[float]:
    return [point.rate.median for point in device.points if point.kind == kind]


def _ratio(rates: Sequence[float]) -> float | None:
    """Return the median of the last third of the rates as a share of the first third's; None for too few rates."""
    third = len(rates) // 3
    if len(rates) < FEWEST_POINTS or not (first := statistics.median(rates[:third])):
        return None
    return statistics.median(rates[-third:]) / first


def _is_uneven(rates: Sequence[float]) -> bool:
    """Return whether many rates are clearly below the upper quartile, so a comparison of thirds proves nothing."""
    upper_quartile = sorted(rates)[len(rates) * 3 // 4]
    return sum(rate < (1 - SLOW) * upper_quartile for rate in rates) >= max(FEWEST_SLOW, MOST_UNEVEN * len(rates))


def _fall(device: StressDevice, kind: str) -> tuple[float, Finding] | None:
    """Return the lost share of a kind's speed, from the first third of its points to the last, and the finding."""
    rates = rates_of(device, kind)
    third, ratio = len(rates) // 3, _ratio(rates)
    first = statistics.median(rates[:third] or [0.0])
    if ratio is None or ratio >= 1 - SLOW or not _are_apart(rates[-third:], first):
        return None
    points = [point for point in device.points if point.kind == kind]
    late = points[-third:]
    held = Counter(name for point in late for name in point.held)
    clocks = [point.sm_clock_hz.median for point in (points[0], points[-1]) if point.sm_clock_hz is not None]
    heat = max((point.temperature_celsius.max for point in late if point.temperature_celsius), default=None)
    parts = [_limits(held)]
    parts += (
        ["clock " + " to ".join(dict.fromkeys(f"{c / 1e6:.0f}" for c in clocks)) + " MHz"] if len(clocks) == 2 else []
    )
    parts += [f"up to {heat:.0f} °C"] if heat is not None else []
    title = f"lost {units.percent(1 - ratio)} of its speed over the run ({kind})"
    evidence = {"kind": kind, "fall": 1 - ratio, "first": first, "last": first * ratio}
    return 1 - ratio, _slow(device, held, title, "; ".join(parts), evidence)


def _slow(device: StressDevice, held: Iterable[str], title: str, why: str, evidence: dict[str, Any]) -> Finding:
    verdict: Verdict = "fail" if _BY_HARDWARE & set(held) else "warn"
    evidence = {"name": device.name, **evidence, "held": sorted(held)}
    fix = f"gpucheck devices --device {device.device.id} --watch 2s: check heat, power limit and clock"
    return Finding("stress.slow", verdict, f"{device.name}: {title}", why, evidence, fix, device.device.id)


def _limited(device: StressDevice) -> list[Finding]:
    """Return the finding for a GPU whose clock heat or the hardware lowered from the start."""
    # The driver also reports `hw_slowdown` briefly when the clock changes.
    held = Counter(name for point in device.points for name in set(THROTTLED) & set(point.held) - {"hw_slowdown"})
    usual = {name: count for name, count in held.items() if count >= LEAST_SLOW_SHARE * len(device.points)}
    if len(device.points) < FEWEST_POINTS or not usual:
        return []
    return [_slow(device, usual, f"{_limits(Counter(usual))} from the start", "in most of the run", {})]


def _limits(held: Counter[str]) -> str:
    causes = [_HELD.get(name, name) for name, _ in held.most_common()]
    return f"the clock was limited by {few(causes, ', ')}" if causes else "the cause is unknown"


def _unlike(group: Sequence[StressDevice], kinds: Sequence[str]) -> list[Finding]:
    """Return a finding for each GPU that is slower than its siblings in any kind of work. If no GPU is slower, return a
    finding for each GPU that is faster than two or more siblings, because the usual speed is then unknown."""
    word, why = "slower", "the same model, the same work"
    if not (differing := _differences(group, kinds, above=False)) and len(group) >= FEWEST_SIBLINGS:
        word, why = "faster", "the usual speed of this model is unknown"
        differing = _differences(group, kinds, above=True)
    findings = []
    for device in group:
        if not (shares := differing.get(device.name)):
            continue
        kind = max(shares, key=shares.__getitem__)
        verdict: Verdict = "fail" if word == "slower" else "inconclusive"
        verdict = "warn" if set(shares) <= _SHARED else verdict
        others, id = [other.name for other in group if other is not device], device.device.id
        title = f"{device.name}: {units.percent(shares[kind])} {word} than {few(others, ', ')} ({kind})"
        evidence = {"name": device.name, word: shares, "siblings": others}
        fix = f"gpucheck devices --device {id}; then gpucheck doctor"
        findings.append(Finding("stress.slow", verdict, title, why, evidence, fix, id))
    return findings


def _differences(group: Sequence[StressDevice], kinds: Sequence[str], *, above: bool) -> dict[str, dict[str, float]]:
    """Return the share by which GPUs are slower than usual, or faster (`above`), by name and kind of work."""
    differing: dict[str, dict[str, float]] = {}
    for device, kind in itertools.product(group, kinds):
        rates = rates_of(device, kind)
        others = [rates_of(other, kind) for other in group if other is not device]
        usual = statistics.median([statistics.median(of_device) for of_device in others if of_device] or [0.0])
        if usual and len(rates) >= FEWEST_POINTS and _are_apart(rates, usual, above):
            differing.setdefault(device.name, {})[kind] = abs(statistics.median(rates) / usual - 1)
    return differing


def _are_apart(rates: Sequence[float], usual: float, above: bool = False) -> bool:
    """Return whether the median and most of the rates lie clearly below the usual rate, or above it (`above`)."""

    def is_apart(rate: float) -> bool:
        return usual < (1 - SLOW) * rate if above else rate < (1 - SLOW) * usual

    return is_apart(statistics.median(rates)) and sum(map(is_apart, rates)) >= LEAST_SLOW_SHARE * len(rates)


def errors(result: StressResult) -> list[Finding]:
    """Return a finding for each device whose error counters rose, or that the driver no longer lists."""
    findings = []
    for device in result.devices:
        id = device.device.id
        if why := device.unknown.get("state"):
            title = f"{device.name}: state after the run is unknown"
            findings.append(Finding("stress.errors", "inconclusive", title, why, {}, "gpucheck doctor", id))
        if not (risen := {name: device.counters[name] for name in _COUNTERS if device.counters.get(name)}):
            continue
        worst = _COUNTERS[next(iter(risen))][0]
        parts = (f"{'' if name == 'lost' else f'{count} '}{_COUNTERS[name][1]}" for name, count in risen.items())
        fix = "gpucheck doctor; sudo dmesg | grep -i xid" if worst == "fail" else "gpucheck devices"
        fix = next((fix_of(_CAUSES[name]) for name in risen if name in _CAUSES), fix)
        title = f"{device.name}: {', '.join(parts)}"
        findings.append(Finding("stress.errors", worst, title, "during the run", dict(risen), fix, id))
    return findings
