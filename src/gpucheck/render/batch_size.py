"""`gpucheck find-batch-size` as blocks: searched, or estimated."""

from __future__ import annotations

from collections.abc import Sequence

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
    EstimatedBatchSize,
    FoundBatchSize,
    MemorySplit,
    RecommendedSize,
    StepRecipe,
    TrialEntry,
)

# What holds an answer where it is, or ended its search.
_LIMITS = {
    "memory": "memory",
    "max-batch-size": "stopped at --max-batch-size",
    "default-cap": "stopped at --max-batch-size, 65536 by default",
    "time": "time ran out",
    "trial-timeout": "a trial exceeded --trial-timeout",
    "kernel-limit": "a kernel's own limit, not memory",
    "safety": "safety: full memory is dangerous here",
    "trials": "trial limit reached",
    "interrupted": "interrupted",
    "device": "a larger size broke the device",
    "no-process": "no further process could start",
    "disturbed": "the trials were disturbed",
}
# Sizes of which none larger was to be tried: the user's, and the command's own.
_CAPS = ("max-batch-size", "default-cap")
# What ended a trial without a word on its size.
_UNDECIDED = ("timeout", "inconclusive", "suspected", "killed", "out-of-time")


def page(report: Report) -> Page:
    """The answer and on what device, then the trials in the order they ran, then what the answer means for use."""
    estimate = report.results.get("find_batch_size_estimate")
    found = report.results.get("find_batch_size")
    if estimate is not None:
        return _page_of_estimate(report, estimate)
    return Page(None, findings=report.findings) if found is None else _page_of_one(report, found)


def _page_of_one(report: Report, found: FoundBatchSize) -> Page:
    # Without a size, what ended the search is the answer; and a device that failed stands before any.
    findings, ended = report.findings, "fail" if found.largest is None else None
    broken = next((finding for finding in findings if finding.verdict == "fail"), None) if report.faults else None
    fits = next((finding for finding in findings if finding.id == "batch_size.fits" or finding.verdict == ended), None)
    cause = broken or fits
    first = None
    if found.largest is not None and broken is None:
        first = answer(report.summary.verdict, _first_line(found))
    elif cause is not None:
        first = answer(cause.verdict, finding_text(cause))
    elif not report.summary.complete:
        first = answer("inconclusive", "no batch passed; interrupted")
    under = [Line(_subject(found), "dim")] if first else []
    in_use = _in_use(found)
    body = [*_trials_of(found), *([Line(), *in_use] if in_use else [])]
    details = _details(found) if found.largest is not None else []
    return Page(first, body, details, findings, cause if first else None, under=under)


def _in_use(found: FoundBatchSize) -> list[Block]:
    """Return what the answer means for use: three sentences at most, then how to reach an effective batch."""
    best = found.knee.batch_size if found.knee is not None else None
    knee = "" if best is None else f"best value: {best} (within 5 % of top speed)"
    limit = f"limit: {_limit(found)}" if found.max_batch_size and found.limiting_factor not in (None, "memory") else ""
    texts = (knee, limit, _split(found.memory_split, found.axis_name))
    advice = [advice_line(text) for text in accumulation_lines(found.accumulation)]
    return [*(Line(text) for text in texts if text), *advice]


def _details(found: FoundBatchSize) -> list[Block]:
    """Return what needs no action: what the answer takes, how that is known, and what it was held against."""
    taken, how = _of_budget(found), "confirmed in a fresh process" if found.confirmed else ""
    peak = ", ".join(filter(None, (taken and f"peak {taken}", how)))
    limit = f"limit: {_limit(found)}" if found.limiting_factor is not None else ""
    if limit and found.predicted_above is not None:
        limit += f"; {found.predicted_above} is predicted to exceed the budget"
    elif limit and found.first_failing is not None:
        limit += f"; first that fails: {found.first_failing} ({str(found.first_failing_outcome).replace('-', ' ')})"
    margin = f" (margin {units.capacity(found.margin_bytes)})" if found.margin_bytes else ""
    texts = (peak, limit, f"budget: {found.budget_reason or UNKNOWN}{margin}")
    return [*(Line(text) for text in texts if text), Line()]


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


def _how_run(recipe: StepRecipe) -> list[str]:
    """Return how a step is run, beyond the model."""
    parts = [f"{recipe.amp} autocast"] if recipe.amp else []
    parts += ["checkpointed activations"] if recipe.grad_checkpointing else []
    return parts + (["compiled"] if recipe.compile else [])


def _trials_of(found: FoundBatchSize) -> list[Block]:
    """A row for each trial."""
    trials = found.trials
    if not trials:
        return []
    scale, unit = _scale(max(trial.peak_bytes or 0 for trial in trials))
    # Along an axis a size is a length, and the rate is of lengths.
    size, rate = (found.axis_name, f"{found.axis_name}/s") if found.axis_name else ("batch", "samples/s")
    outcomes = [verdict_cell(_verdict_of(trial), trial.outcome.replace("-", " ")) for trial in trials]
    columns: list[tuple[Column, Sequence[Cell | str]]] = [
        (Column(size), [str(trial.batch_size) for trial in trials]),
        (Column("result", "left"), outcomes),
        (Column(f"peak, {unit}", keep=7), column_of_numbers([trial.peak_bytes for trial in trials], scale)),
        (Column(rate, keep=6), column_of_numbers([trial.samples_per_s for trial in trials])),
        (Column("run", "left", keep=2), [Cell(trial.purpose, "dim") for trial in trials]),
    ]
    if any(trial.reason for trial in trials):
        reasons = [Cell(trial.reason or "", "dim") for trial in trials]
        columns.append((Column("why", "left", keep=0, wraps=True), reasons))
    return [by_column(columns)]


def _verdict_of(trial: TrialEntry) -> Verdict:
    return "pass" if trial.outcome == "fits" else "inconclusive" if trial.outcome in _UNDECIDED else "fail"


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
        text = f"at least {axis}{found.at_least}{note} ({_limit(found)})"
    else:
        return _at_least(found, axis, note)
    recommended = _recommended(found.recommended)
    return f"{text}   {recommended}" if recommended else text


def _at_least(found: FoundBatchSize, axis: str, note: str) -> str:
    size, predicted = found.at_least, found.predicted_batch_size
    failing = f", {found.first_failing} fails" if predicted is None and found.first_failing is not None else ""
    taken = _of_budget(found)
    text = f"at least {axis}{size} fits{note or (taken and f' ({taken})')}{failing}; {_limit(found)}"
    if size is None or predicted is None or predicted <= size:
        return text
    # It is only predicted: two significant digits, in groups of three.
    about = f"{round(predicted, 2 - len(str(predicted))):,}".replace(",", " ")
    return f"{text}, predicted about {about}"


def _limit(found: FoundBatchSize) -> str:
    """Return what holds the answer where it is, in words."""
    factor = found.limiting_factor or ""
    if found.axis and factor in _CAPS:
        return f"stopped at the greatest length{', 65536 by default' if factor == 'default-cap' else ' given'}"
    return _LIMITS.get(factor, factor or "the search did not end")


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
    return f"recommended: {recommended.batch_size} ({(recommended.headroom or 0) * 100:.0f} % headroom)"


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


# --- A device that is not here ----------------------------------------------------------------------------------------


def _page_of_estimate(report: Report, found: EstimatedBatchSize) -> Page:
    """An estimate for a device that is not here: what it comes to, and where the memory goes."""
    cause = next((finding for finding in report.findings if finding.id == "batch_size.estimate"), None)
    size, recipe = found.max_batch_size, found.recipe
    first = answer(cause.verdict, finding_text(cause)) if cause else None
    parts = [_what(found), *([found.dtype] if found.dtype else [])]
    parts += [f"{recipe.axis} at batch size {recipe.batch_size}"] if recipe.axis else []
    under = [Line(" · ".join([*parts, *_how_run(recipe), "nothing was run"]), "dim")]
    is_aside = found.context_bytes or found.workspace_bytes
    details = [Line(f"set aside, {found.source}")] if is_aside else []
    then = None if size is not None else "use a smaller model, or estimate for a larger --memory-limit"
    return Page(first, [_estimate_memory(found)], details, report.findings, cause, then, under)


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
