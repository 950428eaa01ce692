"""Judge from what size on the GPU is faster, with its copies and without. Pure.

Nothing is taken for monotone: the device is faster *from* a size on only where it was faster at every larger size that
was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from gpucheck import naming, units
from gpucheck.bench import judging, rounds
from gpucheck.bench.judging import Ceilings, Judge, Seen
from gpucheck.measure import runs
from gpucheck.messages import FIX
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import CrossoverResult, Headline, Speedup

NAME = "crossover"
# Below six rounds there is no interval of a median: their extremes, widened by what copies differ by from one process
# to the next, decide only what is plain.
FEW_FACTOR = 1.25
# A ratio this close to 1 is no gain and no loss.
EVEN = 0.05
# The size at which a training step's speed-up is told.
NORMAL = {"training": 32}
NAMES = {"matmul": "matmul", "elementwise": "elementwise", "training": "training step"}


# -- the crossing among the sizes that were tried, each of which may be undecided --------------------------------------

Winner = Literal["cpu", "device", "even"]

FROM_THE_SMALLEST = "the device is faster from the smallest size on"
NEVER = "the device is not faster up to the largest tested size"
NEVER_SLOWER = "the CPU is not certainly faster at any size: at smaller sizes they are even"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The bracket: the largest size at which the CPU is faster and the smallest from which on the device is.

    `even` are sizes that were tried between the two without a winner; `reason` says why one of the two is None.
    """

    cpu_faster_up_to: int | None
    device_faster_from: int | None
    even: tuple[int, ...] = ()
    reason: str | None = None


def winner(low: float, high: float) -> Winner:
    """Who is faster, by the interval of the CPU's time over the device's; `even` where it holds 1."""
    return "device" if low > 1 else "cpu" if high < 1 else "even"


def crossing(points: Mapping[int, Winner]) -> Crossing:
    """Return what the sizes that were tried say, at least one."""
    tried = sorted(points)
    start = len(tried)
    while start and points[tried[start - 1]] == "device":
        start -= 1
    device = tried[start] if start < len(tried) else None
    below = tried[:start]
    cpu = next((size for size in reversed(below) if points[size] == "cpu"), None)
    even = tuple(size for size in below if points[size] == "even" and (cpu is None or size > cpu))
    reason = None
    if device is None:
        reason = NEVER
    elif cpu is None:
        reason = NEVER_SLOWER if below else FROM_THE_SMALLEST
    return Crossing(cpu, device, even, reason)


def size_text(operation: str, size: int) -> str:
    """A size of an operation in words: `512×512`, `1.05 M elements`, `batch 32`."""
    if operation == "matmul":
        return f"{size}×{size}"
    if operation == "training":
        return f"batch {size}"
    return f"{units.significant(size / 1e6)} M elements" if size >= 1e6 else f"{size} elements"


def short_text(operation: str, size: int) -> str:
    """The same beside the operation's name: `512×512`, `1.05 M`, `32`."""
    text = size_text(operation, size)
    return text.removeprefix("batch ").removesuffix(" elements")


# -- what the rows say -------------------------------------------------------------------------------------------------


# One size with or without the copies: who is faster, and by how much. Below six rounds there is no interval, and the
# extremes of the rounds tell who.
Race = tuple[Winner, Speedup]


def races(measurements: Sequence[Measurement]) -> dict[tuple[str, bool], dict[int, Race]]:
    """By operation and whether the copies count: each size at which both sides were timed. For one device's rows."""
    rows = {
        (one.case["operation"], one.case["size"], one.case["side"], one.case["transfers"]): one
        for one in measurements
        if one.name == NAME
    }
    found: dict[tuple[str, bool], dict[int, Race]] = {}
    for (operation, size, side, transfers), one in rows.items():
        cpu = rows.get((operation, size, "cpu", False))
        if side == "device" and cpu is not None and (race := _race(cpu, one, size)) is not None:
            found.setdefault((operation, transfers), {})[size] = race
    return found


def _race(cpu: Measurement, device: Measurement, size: int) -> Race | None:
    ratio = rounds.ratio(cpu.runs, device.runs)
    if ratio is None:
        return None
    low, high = ratio.ci_low, ratio.ci_high
    if low is not None and high is not None:
        return winner(low, high), Speedup(size, ratio.median, low, high)
    samples = rounds.ratios(cpu.runs, device.runs)
    decided = winner(min(samples) / FEW_FACTOR, max(samples) * FEW_FACTOR)
    return decided, Speedup(size, ratio.median, None, None)


def answer(measurements: Sequence[Measurement], ended: Mapping[str, str]) -> list[CrossoverResult]:
    """For each operation, with and without the copies: the crossing, and the speed-up at a normal size.

    `ended` says of an operation why sizes stopped growing: `time`, `memory`.
    """
    told = []
    for (operation, transfers), tried in races(measurements).items():
        known = crossing({size: race[0] for size, race in tried.items()})
        told.append(
            CrossoverResult(
                device=measurements[0].device.id,
                operation=operation,
                transfers=transfers,
                **asdict(known),
                smallest=min(tried),
                largest=max(tried),
                ended_by=ended.get(operation),
                speedup=tried[normal][1] if (normal := NORMAL.get(operation, 0)) in tried else None,
            )
        )
    return told


def _ended(seen: Seen) -> dict[str, str]:
    return {name.partition(".")[2]: why for name, why in seen.parts.items() if "." in name and why}


def findings(seen: Seen) -> list[Finding]:
    """Every finding of one device's rows: a sentence for each operation, then whether the results are right."""
    mine = seen.rows
    told = answer(mine, _ended(seen))
    if not told:
        return [Finding("crossover.result", "skip", "nothing was timed", "no size finished")]
    found = []
    for operation in dict.fromkeys(one.operation for one in told):
        found.append(_crossing([one for one in told if one.operation == operation], operation))
        found += _speedups([one for one in told if one.operation == operation], operation)
    found += [_precision(mine, seen.facts.environment), _result(mine)]
    return [*found, *judging.clock("crossover.clock", mine), *judging.cpu_busy("crossover.cpu_busy", mine, seen.facts)]


def _crossing(told: Sequence[CrossoverResult], operation: str) -> Finding:
    """`matmul: the device is faster from 512×512 on (without the copies faster from 128×128 on)`."""
    words = {one.transfers: _from(one, operation) for one in told}
    title = f"{NAMES[operation]}: GPU {words.get(True) or words[False]}"
    if len(words) == 2:
        same = words[True] == words[False]
        title += ", with and without copies" if same else f" (without copies {words[False]})"
    beside = {one.transfers: text for one in told if (text := _bracket(one, operation))}
    if len(beside) == 2 and beside[True] == beside[False]:
        message = beside[True]
    else:
        message = "; ".join(f"{'with' if copies else 'without'} copies {text}" for copies, text in beside.items())
    if all(one.device_faster_from is not None for one in told):
        tried = f"tested up to {size_text(operation, told[0].largest)}"
        message = f"{message}; {tried}" if message else tried
    evidence = {"device": told[0].device, "crossings": to_json(told)}
    return Finding(f"crossover.{operation}", "info", title, message, evidence)


def _from(one: CrossoverResult, operation: str) -> str:
    start = one.device_faster_from
    if start is None:
        return f"not faster up to {size_text(operation, one.largest)}"
    if start == one.smallest:
        return f"faster at every tested size, from {size_text(operation, start)}"
    return f"faster from {size_text(operation, start)}"


def _bracket(one: CrossoverResult, operation: str) -> str:
    """Return what is on the other side of the crossing, and what ended the search early."""
    parts = []
    if one.device_faster_from is not None and one.cpu_faster_up_to is not None:
        parts.append(f"CPU faster up to {size_text(operation, one.cpu_faster_up_to)}")
    if one.even and one.reason != NEVER:
        first, last = (size_text(operation, one.even[place]) for place in (0, -1))
        parts.append(f"even at {first}" if first == last else f"even from {first} to {last}")
    if one.ended_by and one.device_faster_from is None:
        parts.append(f"larger sizes skipped: out of {one.ended_by}")
    return ", ".join(parts)


def _speedups(told: Sequence[CrossoverResult], operation: str) -> list[Finding]:
    by = {one.transfers: one.speedup for one in told if one.speedup is not None}
    if not by:
        return []
    first = by.get(True) or by[False]
    title = f"{NAMES[operation]} at {size_text(operation, first.size)} {_times(first)} on the GPU"
    message = "no interval: too few rounds"
    if first.ci_low is not None and first.ci_high is not None:
        message = f"interval {units.significant(first.ci_low)}× to {units.significant(first.ci_high)}×"
    if True in by and False in by:
        message += f", with batch and loss copied; without copies it {_times(by[False])}"
    evidence = {
        "device": told[0].device,
        "with_copies": to_json(by.get(True)),
        "without_copies": to_json(by.get(False)),
    }
    return [Finding(f"crossover.{operation}_speedup", "info", title, message, evidence)]


def _times(speedup: Speedup) -> str:
    ratio = speedup.ratio
    low, high = speedup.ci_low or ratio, speedup.ci_high or ratio
    if abs(ratio - 1) < EVEN or low <= 1 <= high:
        return "is as fast"
    if ratio < 1:
        return f"takes {units.significant(1 / ratio, 2)}× as long"
    return f"is {units.significant(ratio, 2)}× as fast"


def _precision(measurements: Sequence[Measurement], environment: Mapping[str, str]) -> Finding:
    observed = [(str(one.case["side"]), one.method.precision_observed) for one in measurements]
    wrong = {side: got for side, got in observed if got != "float32"}
    seen = dict(observed) | wrong
    if not wrong:
        return Finding("crossover.precision", "pass", "both sides compute in float32", evidence=seen)
    told = "; ".join(f"the {side} in {judging.precision_text(got)}" for side, got in wrong.items())
    fix = judging.precision_fix(environment)
    return Finding("crossover.precision", "fail", "one side does not compute in float32", told, seen, fix)


def _result(measurements: Sequence[Measurement]) -> Finding:
    wrong = dict.fromkeys(
        f"{one.case['operation']}, {size_text(one.case['operation'], one.case['size'])}"
        for one in measurements
        if not all(run["details"]["result_is_right"] for run in runs.each(one))
    )
    if not wrong:
        return Finding("crossover.result", "pass", "all results verified")
    return Finding(
        "crossover.result",
        "fail",
        "the GPU computed wrong results",
        naming.few(list(wrong)),
        {"wrong": list(wrong)},
        fix=FIX["wrong data"],
    )


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """For each operation, its copies counted, the device's speed-up at a normal size, else at the largest."""
    found = []
    tried = races(seen.rows)
    for one in answer(seen.rows, {}):
        operation, start = one.operation, one.device_faster_from
        if not one.transfers:
            continue
        shown = one.speedup or tried[operation, True][one.largest][1]
        size = shown.size
        pays = "no gain" if start is None else f"pays from {_side(operation, start)}"
        case = f"{operation} {_side(operation, size)}, {pays}"
        rows = [row for row in seen.rows if (row.case.get("operation"), row.case.get("size")) == (operation, size)]
        flags = tuple(dict.fromkeys(flag for row in rows for flag in row.flags))
        found.append(Headline(NAME, one.device, case, shown.ratio, "times", shown.ci_low, shown.ci_high, flags=flags))
    return found


def _side(operation: str, size: int) -> str:
    """`512` for 512×512."""
    return short_text(operation, size).partition("×")[0]


JUDGE = Judge(findings, headlines, result="bench_crossover", answers=lambda seen: answer(seen.rows, _ended(seen)))
