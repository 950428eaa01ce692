"""`gpucheck find-batch-size` as blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.render import batch_size_estimate
from gpucheck.render.batch_size_estimate import how_run
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    advice_line,
    answer,
    column_of_numbers,
    table,
    verdict_cell,
)
from gpucheck.render.curve import Series, curve
from gpucheck.render.trials import run, verdict_of
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    Confidence,
    EpochCheck,
    FoundBatchSize,
    FoundBatchSizes,
    Fragmentation,
    Knee,
    MemorySplit,
    RecommendedSize,
    TrialEntry,
)

_COLUMNS = (
    Column("batch"),
    Column("result", "left"),
    Column("peak, GiB", keep=7),
    Column("samples/s", keep=6),
    Column("run", "left", keep=2),
    Column("why", "left", keep=0, wraps=True),
)
_LIMITS = {
    "memory": "memory",
    "max-batch-size": "--max-batch-size",
    "time": "time: it ran out before the search ended",
    "trial-timeout": "time: a trial ran into its limit, see --trial-timeout",
    "kernel-limit": "a kernel's own limit, whatever the memory",
    "safety": "safety: filling the memory is dangerous here",
    "trials": "the number of trials",
    "interrupted": "an interruption",
    "device": "the device, which broke",
    "killed": "a kill that was not for want of memory",
    "no-process": "a process that could not be set up",
    "disturbed": "other processes, which disturbed the trials",
}
# With fewer sizes than this a table says as much as a curve.
FEWEST_SIZES = 3
CURVE_HEIGHT = 10
# After these, memory is that of another malloc, or of another kind of step.
_MALLOC = "default malloc"
# What ended otherwise was cut off below its peak.
_WHOLE = ("fits", "over-budget")


def page(report: Report) -> Page:
    """The answer and what limits it, then the trials in the order they ran."""
    found = report.results.get("find_batch_size")
    several = report.results.get("find_batch_size_devices")
    estimate = report.results.get("find_batch_size_estimate")
    laid_out: list[Block] = batch_size_estimate.blocks(estimate) if estimate else []
    for one in several.devices if several else (found,) if found else ():
        laid_out += [*_gap(laid_out), *_one_device(one)]
    if several:
        laid_out += [*_gap(laid_out), *_devices(several)]
    advice = accumulation_lines(found.accumulation) if found else []
    laid_out += [advice_line(text) for text in advice]
    if found is None or found.largest is None:
        return Page(None, laid_out, findings=report.findings)
    return Page(answer(report.summary.verdict, _first_line(found)), laid_out, curves(found), report.findings)


def _gap(above: list[Block]) -> list[Block]:
    """One empty line between parts; curves end with their own."""
    return [Line()] if above and above[-1] != Line() else []


def _one_device(found: FoundBatchSize) -> list[Block]:
    laid_out: list[Block] = [Line(_subject(found)), Line()]
    if found.trials:
        laid_out += [_trials(found), Line()]
    if found.largest is not None:
        laid_out += [Line(text) for text in _peak_lines(found)]
    return laid_out


def _subject(found: FoundBatchSize) -> str:
    device = found.device
    mode = "training" if found.mode == "train" else "inference"
    parts = [f"{found.target}, {mode} on {device.name or device.id} ({device.id})"]
    if found.mode == "train" and found.optimizer:
        parts.append(found.optimizer)
    if found.dtype:
        parts.append(found.dtype)
    if found.axis:
        parts.append(f"along {found.axis.name} at a batch of {found.axis.batch_size}")
    parts += how_run(found.method.recipe) if found.method.recipe else []
    if found.multiple_of > 1:
        parts.append(f"multiples of {found.multiple_of}")
    if found.tolerance == 0:
        parts.append("exact")
    parts.append(f"budget {units.capacity(found.budget_bytes)}")
    return " · ".join(parts)


def _trials(found: FoundBatchSize) -> Block:
    trials, axis = found.trials, found.axis_name
    peaks = column_of_numbers([trial.peak_bytes for trial in trials], units.GIB)
    rates = column_of_numbers([trial.samples_per_s for trial in trials])
    rows: list[list[Cell | str]] = [
        [
            str(trial.batch_size),
            verdict_cell(verdict_of(trial.outcome, trial.purpose), trial.outcome.replace("-", " ")),
            peak,
            rate,
            run(trial.purpose, resumed=trial.resumed),
            trial.reason or "",
        ]
        for trial, peak, rate in zip(trials, peaks, rates, strict=True)
    ]
    # Along an axis a size is a length, and the rate is of lengths.
    heads = {"batch": axis, "samples/s": f"{axis}/s"} if axis else {}
    columns = [replace(column, head=heads.get(column.head, column.head)) for column in _COLUMNS]
    if not any(trial.reason for trial in trials):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(columns, rows)


# --- The answer, in lines ---------------------------------------------------------------------------------------------


def _first_line(found: FoundBatchSize) -> str:
    """The answer in one line: the largest, the one to use, and the smallest that is nearly as fast.

    Where more may fit, what fits at least, and what is predicted.
    """
    axis, does = found.axis_name, "trains" if found.mode == "train" else "infers"
    note = "" if found.confirmed else " (not confirmed)"
    if found.max_batch_size is not None:
        largest = f"largest {axis}" if axis else "largest"
        within = " within 85 %" if found.limited_by == "safety" else ""
        parts = [f"{largest} that {does}{within}: {found.max_batch_size}{note}"]
    else:
        parts = [f"at least {f'{axis} ' if axis else ''}{found.at_least} {does}{note}"]
        predicted = found.predicted_batch_size
        if predicted is not None and found.at_least is not None and predicted > found.at_least:
            parts.append(f"predicted: about {predicted}")
    return "   ".join(parts + use_parts(found))


def use_parts(found: FoundBatchSize) -> list[str]:
    """The parts of the first line after the largest size."""
    return [text for text in (_recommended(found.recommended), _knee(found.knee)) if text]


def _recommended(recommended: RecommendedSize | None) -> str:
    if recommended is None or recommended.batch_size is None:
        return ""
    notes = [f"{(recommended.headroom or 0) * 100:.0f} % headroom"]
    if recommended.speed:
        notes.append("same speed" if recommended.speed == "same" else f"{recommended.speed} than the largest")
    return f"recommended: {recommended.batch_size} ({', '.join(notes)})"


def _knee(knee: Knee | None) -> str:
    if knee is None or knee.batch_size is None:
        return ""
    return f"best value: {knee.batch_size} (within 5 % of top speed)"


def _peak_lines(found: FoundBatchSize) -> list[str]:
    """What the answer takes and how that is known, what it means for use, and what it was held against."""
    lines = [*filter(None, (_peak(found),)), *use_lines(found)]
    if found.samples_per_s is not None:
        size = "the largest" if found.max_batch_size is not None else found.at_least
        lines.append(f"{units.significant(found.samples_per_s)} {found.axis_name or 'samples'}/s with {size}")
    margin, reason = found.margin_bytes, found.budget_reason or UNKNOWN
    lines.append(f"budget: {reason}" + (f", {units.capacity(margin)} of it left out as margin" if margin else ""))
    if found.loss:
        lines.append(f"loss: {found.loss}")
    predicted = prediction_line(found)
    return [*lines, predicted] if predicted else lines


def _peak(found: FoundBatchSize) -> str:
    how = "confirmed in a fresh process" if found.confirmed else ""
    if found.peak_bytes is None:
        return how
    peak, budget = found.peak_bytes, found.budget_bytes
    # One unit for both: "1010 MiB of 1 GiB" makes a reader reckon.
    scale, unit = (units.GIB, "GiB") if budget >= units.GIB else (units.MIB, "MiB")
    text = f"peak {units.significant(peak / scale)} of {units.significant(budget / scale)} {unit}"
    return f"{text}, {how}" if how else text


def use_lines(found: FoundBatchSize) -> list[str]:
    """What the answer means for use, below the first line."""
    told = (
        _split(found.memory_split, found.axis_name),
        _limit(found),
        _confidence(found.confidence),
        _checks(found.checks),
        _fragmentation(found.fragmentation),
    )
    return [text for text in told if text]


def _split(split: MemorySplit | None, axis: str | None) -> str:
    """Where the memory goes, in one line; empty where nothing of it is known."""
    if split is None:
        return ""
    known = (
        ("weights", split.parameter_bytes),
        ("gradients", split.gradient_bytes),
        ("optimizer", split.optimizer_bytes),
    )
    held = {name: size for name, size in known if size}
    parts = []
    if split.activation_bytes_per_sample is not None:
        each = f"each unit of {axis}" if axis else "each sample"
        parts.append(f"{each} costs {units.capacity(split.activation_bytes_per_sample)} of activations")
    if held:
        # One unit for all of them, so that they can be compared at a glance.
        steps = ((units.GIB, "GiB"), (units.MIB, "MiB"), (units.KIB, "KiB"))
        scale, unit = next((step for step in steps if max(held.values()) >= 0.1 * step[0]), steps[-1])
        texts = [f"{name} {units.significant(size / scale, 2)}" for name, size in held.items()]
        parts.append(f"{', '.join(texts)} {unit}")
    if split.fixed_bytes:
        parts.append(f"the rest {units.capacity(split.fixed_bytes)} whatever the {'length' if axis else 'size'}")
    return "; ".join(parts)


def _limiting(found: FoundBatchSize) -> str:
    """What holds the answer where it is, in words; empty where nothing does."""
    factor = found.limiting_factor
    if factor is None:
        return ""
    if found.axis and factor == "max-batch-size":
        return "the greatest length to try"
    return _LIMITS.get(factor, factor)


def _limit(found: FoundBatchSize) -> str:
    """What holds the answer where it is, and the size that shows it."""
    factor = _limiting(found)
    if not factor:
        return ""
    text = f"limited by {factor}"
    if found.predicted_above is not None:
        return f"{text}; {found.predicted_above} is predicted above the budget"
    if found.first_failing is None:
        return text
    outcome = str(found.first_failing_outcome).replace("-", " ")
    if found.first_failing_at_once:
        outcome = f"{outcome}: {found.first_failing_reason}"
    return f"{text}; first that fails: {found.first_failing} ({outcome})"


def _confidence(confidence: Confidence | None) -> str:
    if confidence is None:
        return ""
    # What speaks against it is what a reader must know; where nothing does, why not.
    reasons = confidence.doubts or confidence.support
    return f"confidence: {confidence.level}" + (f" ({', '.join(reasons)})" if reasons else "")


def _checks(checks: Sequence[EpochCheck]) -> str:
    """What else passed; what failed is a finding."""
    passed = [check for check in checks if check.outcome == "fits"]
    sizes = [str(check.batch_size) for check in passed if check.kind == "partial batch"]
    parts = [f"a partial last batch of {' and of '.join(sizes)}"] if sizes else []
    parts += ["an evaluation step"] if any(check.kind == "evaluation" for check in passed) else []
    return f"passes too: {', '.join(parts)}" if parts else ""


def _fragmentation(gap: Fragmentation | None) -> str:
    if gap is None:
        return ""
    share = gap.gap_bytes / gap.reserved_bytes * 100
    return f"fragmentation: {units.capacity(gap.gap_bytes)} reserved beyond what is allocated ({share:.0f} %)"


def prediction_line(found: FoundBatchSize) -> str:
    """What was predicted before a search and what its first trial made of it, or why nothing was; else empty."""
    predicted = found.prediction
    if predicted is None:
        return ""
    largest, reason, calibration = predicted.max_batch_size, predicted.reason, predicted.calibration
    if predicted.device is None:
        return f"nothing was predicted: {reason}" if reason else ""
    if largest is None:
        smallest = f"the least length of {found.axis_name}" if found.axis else "the smallest batch"
        text = f"predicted: not even {smallest}, from tensors without data"
    else:
        text = f"predicted: {largest} from tensors without data"
    if reason:
        return f"{text}; not used: {reason}"
    if calibration is None:
        return f"{text}, not calibrated"
    outside = calibration.constant_bytes
    beside = f", {units.capacity(outside)} outside the tensors" if outside else ""
    return f"{text}, calibrated ×{calibration.factor:.2f} at {calibration.size}{beside}"


def accumulation_lines(how: Accumulation | None) -> list[str]:
    """How to reach the effective batch that was asked for."""
    if how is None:
        return []
    text = f"for an effective batch of {how.effective_batch}: micro-batch {how.micro_batch}"
    if how.steps == 1:
        return [f"{text}, which needs no accumulation"]
    if not how.smaller:
        return [f"{text} × {how.steps} accumulation steps"]
    return [
        f"{text} × {how.steps - how.smaller} and {how.micro_batch - 1} × {how.smaller} accumulation steps: "
        f"{how.effective_batch} has no divisor near {how.limit}"
    ]


# --- Several devices --------------------------------------------------------------------------------------------------


def _devices(several: FoundBatchSizes) -> list[Block]:
    """A row for each device, and what a step divided in proportion comes to where they are unlike."""
    devices, split = several.devices, several.split
    shares = {share.device: share.batch_size for share in split.shares} if split else {}
    rates = column_of_numbers([found.samples_per_s for found in devices])
    rows = [_device_row(found, rate, shares) for found, rate in zip(devices, rates, strict=True)]
    columns = _device_columns(next((found.axis_name for found in devices if found.axis), None))
    if not split:
        place = next(place for place, column in enumerate(columns) if column.head == "split")
        columns = columns[:place] + columns[place + 1 :]
        rows = [row[:place] + row[place + 1 :] for row in rows]
    laid_out: list[Block] = [table(columns, rows), Line()]
    if split:
        rate, equal = (units.significant(value) for value in (split.samples_per_s, split.equal_samples_per_s))
        laid_out.append(
            Line(
                f"split in proportion: {split.batch_size} a step, {rate} samples/s if exchanging gradients took no "
                f"time; {equal} with equal parts"
            )
        )
    return laid_out


def _device_columns(axis: str | None) -> list[Column]:
    """Along an axis sizes are lengths, and the rate is of lengths."""
    return [
        Column("device", "left"),
        Column("name", "left", keep=4),
        Column(f"largest {axis}" if axis else "largest"),
        Column("recommended", keep=6),
        Column(f"{axis}/s" if axis else "samples/s", keep=5),
        Column("split", keep=7),
        Column("limited by", "left", keep=0, wraps=True),
    ]


def _device_row(found: FoundBatchSize, rate: str, shares: Mapping[str, int]) -> list[Cell | str]:
    return [
        found.device.id,
        found.device.name or UNKNOWN,
        _whole(found.max_batch_size) if found.at_least is None else f"≥{found.at_least}",
        _whole(found.recommended.batch_size if found.recommended else None),
        rate,
        _whole(shares.get(found.device.id)),
        # What could be done about it stands with each device's answer.
        _limiting(found).partition(":")[0] or UNKNOWN,
    ]


def _whole(size: int | None) -> str:
    return UNKNOWN if size is None else str(size)


# --- Curves -----------------------------------------------------------------------------------------------------------


def curves(found: FoundBatchSize) -> list[Block]:
    """The peak of each size under the budget, and the samples per second; what has too few points is left out.

    Beside the peaks that were measured stand those that the calibrated prediction gave.
    """
    peaks = _peaks(found.trials)
    speeds = {speed.batch_size: speed.samples_per_s for speed in found.speeds}
    budget = found.budget_bytes
    # What is predicted above the budget would press the rest together.
    points = found.prediction.points if found.prediction else ()
    predicted: dict[int, float] = {p.batch_size: p.peak_bytes for p in points if p.peak_bytes <= budget}
    sizes = peaks | predicted
    # The budget is a line above the peaks, as long as they are.
    ends = dict.fromkeys((min(sizes, default=0), max(sizes, default=0)), budget)
    scale, unit = (units.GIB, "GiB") if budget >= units.GIB else (units.MIB, "MiB")
    memory = [_series("peak", peaks, scale), _series("budget", ends, scale)]
    memory += [_series("predicted", predicted, scale)] if predicted else []
    axis = found.axis_name
    size, rate = (axis, f"{axis}/s") if axis else ("batch size", "samples/s")
    drawn = [_drawn(memory, sizes, size, f"memory, {unit}"), _drawn([_series("", speeds)], speeds, size, rate)]
    return [block for pair in drawn for block in pair]


def _peaks(trials: Sequence[TrialEntry]) -> dict[int, float]:
    """The highest peak of each size, under the settings of the search."""
    other = {_MALLOC, "recommended"} if any(trial.purpose == _MALLOC for trial in trials) else set()
    found: dict[int, float] = {}
    for trial in trials:
        if trial.outcome in _WHOLE and trial.peak_bytes is not None and trial.purpose not in other:
            found[trial.batch_size] = max(found.get(trial.batch_size, 0), trial.peak_bytes)
    return found


def _series(name: str, points: Mapping[int, float], scale: float = 1.0) -> Series:
    return Series(name, tuple((size, value / scale) for size, value in sorted(points.items())))


def _drawn(series: list[Series], sizes: Mapping[int, float], size: str, name: str) -> list[Block]:
    if len(sizes) < FEWEST_SIZES:
        return []
    whole: Callable[[float], str] = "{:.0f}".format
    drawn = curve(series, x_name=size, y_name=name, x_text=whole, height=CURVE_HEIGHT)
    return [] if drawn is None else [drawn, Line()]
