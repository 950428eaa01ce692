"""Judge `bench crossover`: the size from which the GPU is always faster, with and without copies. No I/O."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceilings, DeviceRows, Rules
from gpucheck.measure import runs
from gpucheck.messages import FIX
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import few
from gpucheck.report.results.bench import CrossoverResult, Headline, Speedup

NAME = "crossover"
# Fewer than six rounds have no interval. The extremes replace the interval, widened by this factor for the spread
# between processes.
FEW_FACTOR = 1.25
# The reasons why no larger size was measured. Sizes beyond a quarter of the device's free memory are not tried.
ENDS = {"time": "out of time", "memory": "too large for memory"}

Winner = Literal["cpu", "device", "even"]


def size_text(operation: str, size: int) -> str:
    """Return a size of an operation in words: `512×512`, `1.05 M elements`, `batch 32`."""
    if operation == "matmul":
        return f"{size}×{size}"
    if operation == "training":
        return f"batch {size}"
    return f"{units.significant(size / 1e6)} M elements" if size >= 1e6 else f"{size} elements"


def short_text(operation: str, size: int) -> str:
    """Return a size for use beside the operation's name: `512×512`, `1.05 M`, `32`."""
    return size_text(operation, size).removeprefix("batch ").removesuffix(" elements")


def races(measurements: Sequence[Measurement]) -> dict[tuple[str, bool], dict[int, tuple[Winner, Speedup]]]:
    """Return the faster side and the device's speed-up for each operation with or without `transfers`, by size."""
    rows = {
        (row.case["operation"], row.case["size"], row.case["side"], row.case["transfers"]): row
        for row in measurements
        if row.name == NAME
    }
    by_case: dict[tuple[str, bool], dict[int, tuple[Winner, Speedup]]] = {}
    for (operation, size, side, transfers), row in rows.items():
        cpu = rows.get((operation, size, "cpu", False))
        ratios = judging.of_rounds(operator.truediv, cpu.runs, row.runs) if side == "device" and cpu else []
        if (ratio := runs.time_stats(ratios)) is not None:
            low, high = ratio.ci_low, ratio.ci_high
            speedup = Speedup(size, ratio.median, low, high)
            if low is None or high is None:
                samples = [sample for run in ratios for sample in run.samples_s]
                low, high = min(samples) / FEW_FACTOR, max(samples) * FEW_FACTOR
            winner: Winner = "device" if low > 1 else "cpu" if high < 1 else "even"
            by_case.setdefault((operation, transfers), {})[size] = winner, speedup
    return by_case


def answer(device: DeviceRows) -> list[CrossoverResult]:
    """Return the crossover and the speed-up at the largest size, for each operation with and without the copies."""
    answers = []
    for (operation, transfers), sizes in races(device.rows).items():
        slower = max((size for size, (winner, _) in sizes.items() if winner == "cpu"), default=None)
        not_faster = max((size for size, (winner, _) in sizes.items() if winner != "device"), default=0)
        start, largest = min((size for size in sizes if size > not_faster), default=None), max(sizes)
        ended_by, speedup = device.parts.get(f"{NAME}.{operation}") or None, sizes[largest][1]
        answers.append(CrossoverResult(device.id, operation, transfers, slower, start, largest, ended_by, speedup))
    return answers


def findings(device: DeviceRows) -> list[Finding]:
    if not (by_operation := runs.group_by(lambda entry: entry.operation, answer(device))):
        return [Finding("crossover.result", "skip", "nothing was timed", "no size finished")]
    return [*map(_crossing, by_operation.values()), _precision(device.rows, device.facts), _result(device.rows)]


def _crossing(entries: Sequence[CrossoverResult]) -> Finding:
    """Return an operation's finding: `matmul: GPU faster from 512×512 (without copies faster from 128×128)`."""
    first = entries[0]
    operation, largest = first.operation, size_text(first.operation, first.largest)
    titles, texts = {}, []
    for entry in entries:
        start, speedup = entry.device_faster_from, entry.speedup
        size = largest if start is None else size_text(operation, start)
        titles[entry.transfers] = f"not clearly faster up to {size}" if start is None else f"faster from {size}"
        if speedup is not None:
            copies = "with" if entry.transfers else "without"
            interval = "no interval: too few rounds"
            if speedup.ci_low is not None and speedup.ci_high is not None:
                interval = f"{units.significant(speedup.ci_low, 2)}× to {units.significant(speedup.ci_high, 2)}×"
            texts.append(f"{copies} copies {units.significant(speedup.ratio, 2)}× as fast ({interval})")
    title = f"{operation}: GPU {titles.get(True) or titles[False]}"
    if len(set(titles.values())) == 2:
        title += f" (without copies {titles[False]})"
    message = f"at {largest} {', '.join(texts)}"
    if first.ended_by:
        message += f"; larger sizes skipped: {ENDS[first.ended_by]}"
    return Finding(
        f"crossover.{operation}", "info", title, message, {"device": first.device, "crossings": to_json(entries)}
    )


def _precision(rows: Sequence[Measurement], facts: Facts) -> Finding:
    observed = [(str(row.case["side"]), row.method.precision_observed) for row in rows]
    wrong = {side: precision for side, precision in observed if precision != "float32"}
    texts = [f"the {side} in {judging.precision_text(precision)}" for side, precision in wrong.items()]
    sound, title = "both sides compute in float32", "one side does not compute in float32"
    return judging.precision("crossover.precision", sound, title, texts, dict(observed) | wrong, facts)


def _result(rows: Sequence[Measurement]) -> Finding:
    bad = [row.case for row in rows if not all(run["details"]["result_is_right"] for run in runs.each_run(row))]
    if not bad:
        return Finding("crossover.result", "pass", "all results verified")
    wrong = list(dict.fromkeys(f"{case['operation']}, {size_text(case['operation'], case['size'])}" for case in bad))
    return Finding(
        "crossover.result", "fail", "the GPU computed wrong results", few(wrong), {"wrong": wrong}, FIX["wrong data"]
    )


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return the device's speed-up at the largest size of each operation, copies included."""
    lines = []
    for entry in answer(device):
        operation, start, speedup = entry.operation, entry.device_faster_from, entry.speedup
        if not entry.transfers or speedup is None:
            continue
        # A headline is short: `512` is 512×512.
        sides = [short_text(operation, size).partition("×")[0] for size in (speedup.size, start or 0)]
        case = f"{operation} {sides[0]}, {'no clear gain' if start is None else f'faster from {sides[1]}'}"
        # The interval already shows the noise of the ratio, so the flags of the rows are left out.
        low, high, flags = speedup.ci_low, speedup.ci_high, () if speedup.ci_low is not None else ("few-samples",)
        lines.append(Headline(NAME, entry.device, case, speedup.ratio, "times", low, high, flags=flags))
    return lines


JUDGE = Rules(findings, headlines, result="bench_crossover", answers=answer)
