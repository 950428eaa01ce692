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

FROM_THE_SMALLEST = "the device is faster from the smallest size on"
NEVER = "the device is not faster up to the largest tested size"
NEVER_SLOWER = "the CPU is not certainly faster at any size: at smaller sizes they are even"

Winner = Literal["cpu", "device", "even"]


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


def crossing(winners: Mapping[int, Winner]) -> Crossing:
    """Return the crossing among the sizes that were tried, at least one."""
    tried = sorted(winners)
    start = len(tried)
    while start and winners[tried[start - 1]] == "device":
        start -= 1
    device = tried[start] if start < len(tried) else None
    below = tried[:start]
    cpu = max((size for size in below if winners[size] == "cpu"), default=None)
    even = tuple(size for size in below if winners[size] == "even" and size > (cpu or 0))
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
    return size_text(operation, size).removeprefix("batch ").removesuffix(" elements")


# One size with or without the copies: who is faster, and by how much.
Race = tuple[Winner, Speedup]


def races(measurements: Sequence[Measurement]) -> dict[tuple[str, bool], dict[int, Race]]:
    """By operation and whether the copies count: each size at which both sides were timed. For one device's rows."""
    rows = {
        (row.case["operation"], row.case["size"], row.case["side"], row.case["transfers"]): row
        for row in measurements
        if row.name == NAME
    }
    found: dict[tuple[str, bool], dict[int, Race]] = {}
    for (operation, size, side, transfers), row in rows.items():
        cpu = rows.get((operation, size, "cpu", False))
        if side == "device" and cpu is not None and (ratio := rounds.ratio(cpu.runs, row.runs)) is not None:
            low, high = ratio.ci_low, ratio.ci_high
            speedup = Speedup(size, ratio.median, low, high)
            if low is None or high is None:
                samples, speedup = rounds.ratios(cpu.runs, row.runs), Speedup(size, ratio.median, None, None)
                low, high = min(samples) / FEW_FACTOR, max(samples) * FEW_FACTOR
            found.setdefault((operation, transfers), {})[size] = winner(low, high), speedup
    return found


def answer(seen: Seen) -> list[CrossoverResult]:
    """For each operation, with and without the copies: the crossing, and the speed-up at a normal size."""
    return [
        CrossoverResult(
            device=seen.device,
            operation=operation,
            transfers=transfers,
            **asdict(crossing({size: faster for size, (faster, _) in tried.items()})),
            smallest=min(tried),
            largest=max(tried),
            # Why sizes stopped growing: `time`, `memory`.
            ended_by=seen.parts.get(f"{NAME}.{operation}") or None,
            speedup=tried[normal][1] if (normal := NORMAL.get(operation, 0)) in tried else None,
        )
        for (operation, transfers), tried in races(seen.rows).items()
    ]


def findings(seen: Seen) -> list[Finding]:
    """Every finding of one device's rows: a sentence for each operation, then whether the results are right."""
    by_operation = judging.by(lambda entry: entry.operation, answer(seen))
    if not by_operation:
        return [Finding("crossover.result", "skip", "nothing was timed", "no size finished")]
    return [
        *(finding for entries in by_operation.values() for finding in (_crossing(entries), *_speedups(entries))),
        _precision(seen.rows, seen.facts.environment),
        _result(seen.rows),
        *judging.clock("crossover.clock", seen.rows),
        *judging.cpu_busy("crossover.cpu_busy", seen.rows, seen.facts),
    ]


def _crossing(entries: Sequence[CrossoverResult]) -> Finding:
    """`matmul: GPU faster from 512×512 (without copies faster from 128×128)`."""
    first = entries[0]
    words = {entry.transfers: _from(entry) for entry in entries}
    title = f"{NAMES[first.operation]}: GPU {words.get(True) or words[False]}"
    if len(words) == 2:
        is_same = words[True] == words[False]
        title += ", with and without copies" if is_same else f" (without copies {words[False]})"
    beside = {entry.transfers: text for entry in entries if (text := _bracket(entry))}
    texts = [f"{'with' if copies else 'without'} copies {text}" for copies, text in beside.items()]
    if len(beside) == 2 and beside[True] == beside[False]:
        texts = [beside[True]]
    if all(entry.device_faster_from is not None for entry in entries):
        texts.append(f"tested up to {size_text(first.operation, first.largest)}")
    evidence = {"device": first.device, "crossings": to_json(entries)}
    return Finding(f"crossover.{first.operation}", "info", title, "; ".join(texts), evidence)


def _from(entry: CrossoverResult) -> str:
    start = entry.device_faster_from
    if start is None:
        return f"not faster up to {size_text(entry.operation, entry.largest)}"
    every = "at every tested size, " if start == entry.smallest else ""
    return f"faster {every}from {size_text(entry.operation, start)}"


def _bracket(entry: CrossoverResult) -> str:
    """The other side of the crossing, and what ended the sizes early."""
    texts = []
    if entry.device_faster_from is not None and entry.cpu_faster_up_to is not None:
        texts.append(f"CPU faster up to {size_text(entry.operation, entry.cpu_faster_up_to)}")
    if entry.even and entry.reason != NEVER:
        first, last = (size_text(entry.operation, entry.even[place]) for place in (0, -1))
        texts.append(f"even at {first}" if first == last else f"even from {first} to {last}")
    if entry.ended_by and entry.device_faster_from is None:
        texts.append(f"larger sizes skipped: out of {entry.ended_by}")
    return ", ".join(texts)


def _speedups(entries: Sequence[CrossoverResult]) -> list[Finding]:
    speedups = {entry.transfers: entry.speedup for entry in entries if entry.speedup is not None}
    if not speedups:
        return []
    device, operation = entries[0].device, entries[0].operation
    first = speedups.get(True) or speedups[False]
    title = f"{NAMES[operation]} at {size_text(operation, first.size)} {_times(first)} on the GPU"
    message = "no interval: too few rounds"
    if first.ci_low is not None and first.ci_high is not None:
        message = f"interval {units.significant(first.ci_low)}× to {units.significant(first.ci_high)}×"
    if len(speedups) == 2:
        message += f", with batch and loss copied; without copies it {_times(speedups[False])}"
    with_copies, without = (to_json(speedups.get(copies)) for copies in (True, False))
    evidence = {"device": device, "with_copies": with_copies, "without_copies": without}
    return [Finding(f"crossover.{operation}_speedup", "info", title, message, evidence)]


def _times(speedup: Speedup) -> str:
    ratio = speedup.ratio
    low, high = speedup.ci_low or ratio, speedup.ci_high or ratio
    if abs(ratio - 1) < EVEN or low <= 1 <= high:
        return "is as fast"
    if ratio < 1:
        return f"takes {units.significant(1 / ratio, 2)}× as long"
    return f"is {units.significant(ratio, 2)}× as fast"


def _precision(rows: Sequence[Measurement], environment: Mapping[str, str]) -> Finding:
    observed = [(str(row.case["side"]), row.method.precision_observed) for row in rows]
    wrong = {side: precision for side, precision in observed if precision != "float32"}
    evidence = dict(observed) | wrong
    if not wrong:
        return Finding("crossover.precision", "pass", "both sides compute in float32", evidence=evidence)
    text = "; ".join(f"the {side} in {judging.precision_text(precision)}" for side, precision in wrong.items())
    title, fix = "one side does not compute in float32", judging.precision_fix(environment)
    return Finding("crossover.precision", "fail", title, text, evidence, fix)


def _result(rows: Sequence[Measurement]) -> Finding:
    wrong = list(
        dict.fromkeys(
            f"{row.case['operation']}, {size_text(row.case['operation'], row.case['size'])}"
            for row in rows
            if not all(run["details"]["result_is_right"] for run in runs.each(row))
        )
    )
    if not wrong:
        return Finding("crossover.result", "pass", "all results verified")
    title, fix = "the GPU computed wrong results", FIX["wrong data"]
    return Finding("crossover.result", "fail", title, naming.few(wrong), {"wrong": wrong}, fix)


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """For each operation, its copies counted, the device's speed-up at a normal size, else at the largest."""
    found = []
    tried = races(seen.rows)
    for entry in answer(seen):
        operation, start = entry.operation, entry.device_faster_from
        if not entry.transfers:
            continue
        shown = entry.speedup or tried[operation, True][entry.largest][1]
        # `512` for 512×512.
        sides = [short_text(operation, size).partition("×")[0] for size in (shown.size, start or 0)]
        case = f"{operation} {sides[0]}, {'no gain' if start is None else f'pays from {sides[1]}'}"
        rows = [
            row for row in seen.rows if (row.case.get("operation"), row.case.get("size")) == (operation, shown.size)
        ]
        flags = tuple(dict.fromkeys(flag for row in rows for flag in row.flags))
        interval = shown.ci_low, shown.ci_high
        found.append(Headline(NAME, entry.device, case, shown.ratio, "times", *interval, flags=flags))
    return found


JUDGE = Judge(findings, headlines, result="bench_crossover", answers=answer)
