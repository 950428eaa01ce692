"""`gpucheck find-batch-size` as blocks: on one device, on each, or estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck import units
from gpucheck.render.text import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    advice_line,
    answer,
    by_column,
    column_of_numbers,
    finding_text,
    short_name,
    table,
    verdict_cell,
)
from gpucheck.report.finding import Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    Confidence,
    EpochCheck,
    EstimatedBatchSize,
    FoundBatchSize,
    FoundBatchSizes,
    MemorySplit,
    RecommendedSize,
    StepRecipe,
    TrialEntry,
)

_LIMITS = {
    "memory": "memory",
    "max-batch-size": "--max-batch-size",
    "default-cap": "--max-batch-size, 65536 by default",
    "time": "time: --time-budget ended the search",
    "trial-timeout": "time: a trial exceeded --trial-timeout",
    "kernel-limit": "a kernel's own limit, not memory",
    "safety": "safety: full memory is dangerous here",
    "trials": "the number of trials",
    "interrupted": "an interruption",
    "device": "the device: a larger size broke it",
    "killed": "a kill, not for lack of memory",
    "no-process": "the system: no more processes could start",
    "disturbed": "other processes, which disturbed the trials",
}
# Sizes of which none larger was to be tried: the user's, and the command's own.
_CAPS = ("max-batch-size", "default-cap")
# What ended a search before it knew the largest size.
_ENDED = {
    "time": "time ran out",
    "trials": "trial limit reached",
    "killed": "larger sizes were killed, not for lack of memory",
    "interrupted": "interrupted",
    "disturbed": "other processes disturbed the trials",
    "device": "a larger size broke the device",
    "no-process": "no further process could start",
    "default-cap": "stopped at --max-batch-size, 65536 by default",
}
# A screen of 24 lines has room for so many trials beside the rest; the last ones surround the answer.
_MOST_TRIALS = 12


def page(report: Report) -> Page:
    """The answer and on what device, then the trials in the order they ran, then what the answer means for use."""
    estimate = report.results.get("find_batch_size_estimate")
    several = report.results.get("find_batch_size_devices")
    found = report.results.get("find_batch_size")
    if estimate is not None:
        return _page_of_estimate(report, estimate)
    if several is not None:
        return _page_of_devices(report, several)
    return Page(None, findings=report.findings) if found is None else _page_of_one(report, found)


def _page_of_one(report: Report, found: FoundBatchSize) -> Page:
    # Without a size, what ended the search is the answer; and a device that failed stands before any.
    ended = "fail" if found.largest is None else None
    broken = next((one for one in report.findings if one.verdict == "fail"), None) if report.faults else None
    told = broken or next((one for one in report.findings if one.id == "batch_size.fits" or one.verdict == ended), None)
    is_answered = found.largest is not None and broken is None
    first = answer(report.summary.verdict, _first_line(found)) if is_answered else None
    if first is None and told is not None:
        first = answer(told.verdict, finding_text(told))
    if first is None and not report.summary.complete:
        first = answer("inconclusive", f"no batch passed; {_ENDED['interrupted']}")
    under = [Line(_subject(found), "dim")] if first else []
    return Page(
        first,
        [*_trials_of(found, found.trials[-_MOST_TRIALS:]), *_gap(_in_use(found))],
        _details(found),
        report.findings,
        told if first else None,
        under=[*under, *_doubts(found)],
    )


def _gap(below: Sequence[Block]) -> list[Block]:
    """These blocks, set apart from what stands above."""
    return [Line(), *below] if below else []


def _in_use(found: FoundBatchSize) -> list[Block]:
    """Return what the answer means for use: three sentences at most, then how to reach an effective batch."""
    best = found.knee.batch_size if found.knee is not None else None
    knee = "" if best is None else f"best value: {best} (within 5 % of top speed)"
    limit = f"limited by {_limiting(found)}" if found.max_batch_size and found.limiting_factor != "memory" else ""
    told = (knee, limit if _limiting(found) else "", _split(found.memory_split, found.axis_name))
    advice = [advice_line(text) for text in accumulation_lines(found.accumulation)]
    return [*(Line(text) for text in told if text), *advice]


def _doubts(found: FoundBatchSize) -> list[Line]:
    """Why the answer cannot be relied on as it is; what the answer itself says is left out."""
    confidence = found.confidence
    if confidence is None or confidence.level == "high" or found.is_open or not found.confirmed:
        return []
    return [Line(f"! {_confidence(confidence)}", "yellow")]


def _details(found: FoundBatchSize) -> list[Block]:
    """Return what needs no action: every trial, and how the answer is known."""
    laid_out: list[Block] = []
    if len(found.trials) > _MOST_TRIALS:
        laid_out += [*_trials_of(found, found.trials), Line()]
    if found.largest is not None:
        laid_out += [*(Line(text) for text in _peak_lines(found)), Line()]
    return laid_out


def _subject(found: FoundBatchSize) -> str:
    device = found.device
    name = f"{short_name(device)} ({device.id})" if device.name else device.id
    parts = [f"{_what(found)} on {name}", *_how(found)]
    return " · ".join([*parts, f"budget {units.capacity(found.budget_bytes)}"])


def _what(found: FoundBatchSize | EstimatedBatchSize) -> str:
    return f"{found.target}, {'training' if found.mode == 'train' else 'inference'}"


def _does(found: FoundBatchSize | EstimatedBatchSize) -> str:
    return "trains" if found.mode == "train" else "infers"


def _how(found: FoundBatchSize) -> list[str]:
    parts = [found.optimizer.rpartition(".")[2]] if found.mode == "train" and found.optimizer else []
    parts += [found.dtype] if found.dtype else []
    parts += [f"{found.axis.name} at batch size {found.axis.batch_size}"] if found.axis else []
    parts += _how_run(found.method.recipe) if found.method.recipe else []
    parts += [f"multiples of {found.multiple_of}"] if found.multiple_of > 1 else []
    return [*parts, *(["exact"] if found.tolerance == 0 else [])]


def _trials_of(found: FoundBatchSize, trials: Sequence[TrialEntry]) -> list[Block]:
    """A row for each of these trials, and how many are left out."""
    if not trials:
        return []
    left_out = len(found.trials) - len(trials)
    return [_trials(found, trials), *([Line(f"and {left_out} earlier trials: -v", "dim")] if left_out else [])]


def _trials(found: FoundBatchSize, trials: Sequence[TrialEntry]) -> Block:
    scale, unit = _scale(max(trial.peak_bytes or 0 for trial in trials))
    # Along an axis a size is a length, and the rate is of lengths.
    size, rate = (found.axis_name, f"{found.axis_name}/s") if found.axis_name else ("batch", "samples/s")
    columns: list[tuple[Column, Sequence[Cell | str]]] = [
        (Column(size), [str(trial.batch_size) for trial in trials]),
        (
            Column("result", "left"),
            [verdict_cell(_verdict_of(trial), trial.outcome.replace("-", " ")) for trial in trials],
        ),
        (Column(f"peak, {unit}", keep=7), column_of_numbers([trial.peak_bytes for trial in trials], scale)),
        (Column(rate, keep=6), column_of_numbers([trial.samples_per_s for trial in trials])),
        (Column("run", "left", keep=2), [Cell(trial.purpose, "dim") for trial in trials]),
    ]
    if any(trial.reason for trial in trials):
        reasons = [Cell(trial.reason or "", "dim") for trial in trials]
        columns.append((Column("why", "left", keep=0, wraps=True), reasons))
    return by_column(columns)


def _scale(size: int) -> tuple[int, str]:
    """The unit in which a size is read without leading zeros."""
    return (units.GIB, "GiB") if size >= units.GIB else (units.MIB, "MiB")


# --- The answer, in lines ---------------------------------------------------------------------------------------------


def _first_line(found: FoundBatchSize) -> str:
    """The answer in one line: the largest and the one to use; where more may fit, what fits and what is predicted."""
    axis = f"{found.axis_name} " if found.axis_name else ""
    note = "" if found.confirmed else " (passed once)"
    if found.max_batch_size is not None:
        within = " within 85 %" if found.limited_by == "safety" else ""
        text = f"largest {axis}that {_does(found)}{within}: {found.max_batch_size}{note}"
    elif found.limiting_factor in _CAPS:
        text = f"at least {axis}{found.at_least}{note} (stopped at {_limiting(found)})"
    else:
        return _at_least(found, axis, note)
    recommended = _recommended(found.recommended)
    return f"{text}   {recommended}" if recommended else text


def _at_least(found: FoundBatchSize, axis: str, note: str) -> str:
    size, predicted = found.at_least, found.predicted_batch_size
    failing = f", {found.first_failing} fails" if predicted is None and found.first_failing is not None else ""
    taken = _of_budget(found)
    text = f"at least {axis}{size} fits{note or (taken and f' ({taken})')}{failing}; {_ended(found)}"
    if size is None or predicted is None or predicted <= size:
        return text
    # It is only predicted: two significant digits, in groups of three.
    about = f"{round(predicted, 2 - len(str(predicted))):,}".replace(",", " ")
    return f"{text}, predicted about {about}"


def _ended(found: FoundBatchSize) -> str:
    return _ENDED.get(found.limiting_factor or "", "the search did not end")


def _of_budget(found: FoundBatchSize) -> str:
    """Return the peak and the budget, in one unit: "1010 MiB of 1 GiB" makes a reader reckon."""
    if found.peak_bytes is None:
        return ""
    scale, unit = _scale(found.budget_bytes)
    peak, budget = (units.significant(size / scale) for size in (found.peak_bytes, found.budget_bytes))
    return f"{peak} of {budget} {unit}"


def _recommended(recommended: RecommendedSize | None) -> str:
    if recommended is None or recommended.batch_size is None:
        return ""
    notes = [f"{(recommended.headroom or 0) * 100:.0f} % headroom"]
    if recommended.speed:
        notes.append("same speed" if recommended.speed == "same" else f"{recommended.speed} than the largest")
    return f"recommended: {recommended.batch_size} ({', '.join(notes)})"


def _peak_lines(found: FoundBatchSize) -> list[str]:
    """Return what the answer takes and how that is known, and what it was held against."""
    lines = [*filter(None, (_peak(found),)), *use_lines(found)]
    if found.samples_per_s is not None:
        size = found.at_least or "the largest"
        lines.append(f"{units.significant(found.samples_per_s)} {found.axis_name or 'samples'}/s with {size}")
    margin, reason = found.margin_bytes, found.budget_reason or UNKNOWN
    lines.append(f"budget: {reason}" + (f" (margin {units.capacity(margin)})" if margin else ""))
    if found.loss:
        lines.append(f"loss: {found.loss}")
    predicted = prediction_line(found)
    return [*lines, predicted] if predicted else lines


def _peak(found: FoundBatchSize) -> str:
    taken, how = _of_budget(found), "confirmed in a fresh process" if found.confirmed else ""
    return ", ".join(filter(None, (taken and f"peak {taken}", how)))


def use_lines(found: FoundBatchSize) -> list[str]:
    """Return how far the answer can be relied on, and what else was tried."""
    undetermined = found.knee.reason if found.knee is not None and found.knee.batch_size is None else None
    told = (
        _limit(found),
        "" if _doubts(found) else _confidence(found.confidence),  # else it stands under the answer
        f"best value: undetermined ({undetermined})" if undetermined else "",
        _checks(found.checks),
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
        ("other", split.fixed_bytes),
    )
    held = {name: size for name, size in known if size}
    parts = []
    if split.activation_bytes_per_sample is not None:
        each = f"each unit of {axis}" if axis else "each sample"
        parts.append(f"{each} costs {units.capacity(split.activation_bytes_per_sample)}")
    if held:
        # One unit for all of them, so that they can be compared at a glance.
        steps = ((units.GIB, "GiB"), (units.MIB, "MiB"), (units.KIB, "KiB"))
        scale, unit = next((step for step in steps if max(held.values()) >= 0.1 * step[0]), steps[-1])
        texts = [f"{name} {units.significant(size / scale, 2)}" for name, size in held.items()]
        parts.append(f"{', '.join(texts)} {unit}")
    return "; ".join(parts)


def _limiting(found: FoundBatchSize) -> str:
    """Return what holds the answer where it is, in words; empty where nothing does."""
    factor = found.limiting_factor
    if factor is None:
        return ""
    if found.axis and factor in _CAPS:
        return "the greatest length given" if factor == "max-batch-size" else "65536, the greatest length by default"
    return _LIMITS.get(factor, factor)


def _limit(found: FoundBatchSize) -> str:
    """Return what holds the answer where it is, and the size that shows it."""
    factor = _limiting(found)
    if not factor:
        return ""
    text = f"limited by {factor}"
    if found.predicted_above is not None:
        return f"{text}; {found.predicted_above} is predicted to exceed the budget"
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
    """Return what else passed; what failed is a finding."""
    passed = [check for check in checks if check.outcome == "fits"]
    sizes = [str(check.batch_size) for check in passed if check.kind == "partial batch"]
    parts = [f"partial last batches ({', '.join(sizes)})"] if sizes else []
    parts += ["an evaluation step"] if any(check.kind == "evaluation" for check in passed) else []
    return f"also passed: {', '.join(parts)}" if parts else ""


def prediction_line(found: FoundBatchSize) -> str:
    """Return what was predicted before the search, and how the first trial calibrated it, or why nothing was; else
    empty."""
    predicted = found.prediction
    if predicted is None:
        return ""
    largest, reason, calibration = predicted.max_batch_size, predicted.reason, predicted.calibration
    if predicted.device is None:
        return f"no prediction: {reason}" if reason else ""
    if largest is None:
        smallest = f"the least length of {found.axis_name}" if found.axis else "the smallest batch"
        text = f"predicted from fake tensors: not even {smallest} fits"
    else:
        text = f"predicted from fake tensors: {largest}"
    if reason:
        return f"{text}; not used: {reason}"
    if calibration is None:
        return f"{text}, not calibrated"
    beside = f" plus {units.capacity(calibration.constant_bytes)}" if calibration.constant_bytes else ""
    return f"{text}, calibrated at {calibration.size}: ×{calibration.factor:.2f}{beside}"


def accumulation_lines(how: Accumulation | None) -> list[str]:
    if how is None:
        return []
    text = f"for an effective batch of {how.effective_batch}: micro-batch {how.micro_batch}"
    if how.steps == 1:
        return [f"{text}, no accumulation needed"]
    if not how.smaller:
        return [f"{text} × {how.steps} accumulation steps"]
    return [
        f"{text} × {how.steps - how.smaller} and {how.micro_batch - 1} × {how.smaller} accumulation steps: "
        f"{how.effective_batch} has no divisor near {how.limit}"
    ]


# --- Several devices --------------------------------------------------------------------------------------------------


def _page_of_devices(report: Report, several: FoundBatchSizes) -> Page:
    """Return what every device can take, a row for each, and each one's own search with the details."""
    devices = several.devices
    told = next((one for one in report.findings if one.id == "batch_size.all_devices"), None)
    under = [Line(" · ".join([_what(devices[0]), *_how(devices[0])]), "dim")] if devices else []
    least = report.results.get("find_batch_size")
    advice = [advice_line(text) for text in accumulation_lines(least.accumulation if least else None)]
    details: list[Block] = []
    for one in devices:
        shown = [*_trials_of(one, one.trials), Line()] if one.trials else []
        details += [Line(_subject(one)), Line(), *shown]
        if one.largest is not None:
            details += [*(Line(text) for text in _peak_lines(one)), Line()]
    first = answer(told.verdict if told else report.summary.verdict, _for_all(several))
    return Page(first, [*_devices(several), *_gap(advice)], details, report.findings, told, under=under)


def _for_all(several: FoundBatchSizes) -> str:
    """The least answer of all devices, and which one it is that takes no more."""
    # A KeyError where an edited file names another: StopIteration would say nothing.
    found = {one.device.id: one for one in several.devices}[several.least]
    does, what = _does(found), found.axis_name or "a batch of"
    if found.largest is None:
        others = [f"{one.device.id} {does} {one.largest}" for one in several.devices if one.largest is not None]
        return "; ".join([f"{several.least} {does} no batch size", *others[:1]])
    if found.is_open:
        return f"every device {does} at least {what} {found.largest}; on {several.least} {_ended(found)}"
    alike = len({one.largest for one in several.devices}) == 1
    least = "" if alike else f" (least: {several.least})"
    use = found.recommended.batch_size if found.recommended else None
    recommended = "" if use is None else f"   recommended: {use}"
    return f"every device {does} {what} {found.largest}{least}{recommended}"


def _devices(several: FoundBatchSizes) -> list[Block]:
    """A row for each device, and what a step divided in proportion comes to where they are unlike."""
    devices, split = several.devices, several.split
    shares = {share.device: share.batch_size for share in split.shares} if split else {}
    # Along an axis sizes are lengths, and the rate is of lengths.
    axis = next((found.axis_name for found in devices if found.axis), None)
    split_column = (Column("split", keep=7), [_whole(shares.get(found.device.id)) for found in devices])
    columns: list[tuple[Column, list[str]]] = [
        (Column("device", "left"), [found.device.id for found in devices]),
        (
            Column("name", "left", keep=4),
            [short_name(found.device) if found.device.name else UNKNOWN for found in devices],
        ),
        (
            Column(f"largest {axis}" if axis else "largest"),
            [_whole(found.max_batch_size) if found.at_least is None else f"≥{found.at_least}" for found in devices],
        ),
        (
            Column("recommended", keep=6),
            [_whole(found.recommended.batch_size if found.recommended else None) for found in devices],
        ),
        (
            Column(f"{axis}/s" if axis else "samples/s", keep=5),
            column_of_numbers([found.samples_per_s for found in devices]),
        ),
        *([split_column] if split else []),
        # What could be done about it stands with each device's answer.
        (
            Column("limited by", "left", keep=0, wraps=True),
            [_limiting(found).partition(":")[0] or UNKNOWN for found in devices],
        ),
    ]
    laid_out: list[Block] = [by_column(columns)]
    if split:
        rate, equal = (units.significant(value) for value in (split.samples_per_s, split.equal_samples_per_s))
        laid_out += [
            Line(),
            Line(
                f"split in proportion: {split.batch_size} a step, up to {rate} samples/s "
                f"(gradient exchange not counted); equal parts: {equal}"
            ),
        ]
    return laid_out


def _whole(size: int | None) -> str:
    return UNKNOWN if size is None else str(size)


# --- A device that is not here ----------------------------------------------------------------------------------------

_KINDS = {"cuda": "CUDA", "cpu": "CPU"}


def _page_of_estimate(report: Report, found: EstimatedBatchSize) -> Page:
    """An estimate for a device that is not here: what it comes to, how far it can be trusted, where the memory goes."""
    told = next((one for one in report.findings if one.id == "batch_size.estimate"), None)
    if found.max_batch_size is not None:
        first: Line | None = answer("info", _estimate_line(found, found.max_batch_size))
    else:
        first = answer(told.verdict, finding_text(told)) if told else None
    under = [Line(_estimate_subject(found), "dim")] if first else []
    if found.max_batch_size is not None and found.error is None:
        under.append(Line(f"! error unknown: {found.error_reason}", "yellow"))
    details = [Line(text) for text in _estimate_details(found)]
    then = None if found.max_batch_size is not None else "use a smaller model, or estimate for a larger --memory-limit"
    return Page(first, [_estimate_memory(found)], details, report.findings, told if first else None, then, under)


def _how_run(recipe: StepRecipe) -> list[str]:
    """Return how a step is run, beyond the model."""
    parts = [f"{recipe.amp} autocast"] if recipe.amp else []
    parts += ["checkpointed activations"] if recipe.grad_checkpointing else []
    return parts + (["compiled"] if recipe.compile else [])


def _estimate_subject(found: EstimatedBatchSize) -> str:
    recipe = found.recipe
    parts = [_what(found), *([found.dtype] if found.dtype else [])]
    parts += [f"{recipe.axis} at batch size {recipe.batch_size}"] if recipe.axis else []
    return " · ".join([*parts, *_how_run(recipe), "nothing was run"])


def _estimate_memory(found: EstimatedBatchSize) -> Block:
    """Return what a step holds, and what is kept free of it."""
    scale, unit = _scale(found.memory_bytes)
    held = (
        ("weights", found.parameter_bytes),
        ("gradients", found.gradient_bytes),
        ("optimizer", found.optimizer_bytes),
        ("all tensors at peak", found.peak_bytes),
        ("set aside: context", found.context_bytes),
        ("set aside: workspaces", found.workspace_bytes),
        ("set aside: margin", found.margin_bytes),
        ("the device", found.memory_bytes),
    )
    # Nothing is set aside for a CPU, and inference has no gradients.
    known = [(name, size) for name, size in held if size]
    sizes = column_of_numbers([size for _, size in known], scale)
    columns = (Column("memory", "left"), Column(unit))
    return table(columns, [[name, size] for (name, _), size in zip(known, sizes, strict=True)])


def _estimate_line(found: EstimatedBatchSize, largest: int) -> str:
    axis = f"{found.recipe.axis} " if found.recipe.axis else ""
    on = f"{units.capacity(found.memory_bytes)} {_KINDS.get(found.device, found.device)}"
    text = f"estimate for {on}: largest {axis}that {_does(found)} {largest}"
    if found.error is None:
        return text
    return f"{text} (expect {found.error.low * largest:.0f} to {found.error.high * largest:.0f})"


def _estimate_details(found: EstimatedBatchSize) -> Iterator[str]:
    """Where the expected range comes from, the figures for what is no tensor, and the tensors counted."""
    error = found.error
    if found.max_batch_size is not None and error is not None:
        expected = f"{error.low:.2f} to {error.high:.2f} of the estimate"
        yield f"range: {expected} in {error.searches} searches ({error.source})"
    if found.context_bytes or found.workspace_bytes:
        yield f"set aside, {found.source}"
    # Fake tensors have the device's kind where torch is built for it.
    on = f" as if on {found.fake_device}" if found.fake_device != found.device else ""
    yield f"from fake tensors{on}, in {units.duration(found.seconds)}"


# --- A trial ----------------------------------------------------------------------------------------------------------

# What ended a trial without a word on its size.
UNDECIDED = ("timeout", "inconclusive", "suspected", "killed", "out-of-time")


def _verdict_of(trial: TrialEntry) -> Verdict:
    return "pass" if trial.outcome == "fits" else "inconclusive" if trial.outcome in UNDECIDED else "fail"
