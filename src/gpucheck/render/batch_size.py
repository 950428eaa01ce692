"""The page of `gpucheck find-batch-size`, for a search or an estimate."""

from __future__ import annotations

from operator import itemgetter

from gpucheck import units
from gpucheck.render.text import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    ColumnOf,
    Line,
    Page,
    advice_line,
    answer,
    filled,
    finding_of,
    numbers,
    short_name,
    table_of,
    verdict_cell,
)
from gpucheck.report.finding import Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    EstimatedBatchSize,
    FoundBatchSize,
    MemorySplit,
    StepRecipe,
    TrialEntry,
)

# The texts for the limit of the answer or the reason why the search ended.
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
# Limits on the size to try: the user's and the command's default.
_CAPS = ("max-batch-size", "default-cap")
# Outcomes that do not say whether the size fits.
_UNDECIDED = ("timeout", "inconclusive", "suspected", "killed", "out-of-time")


def page(report: Report) -> Page:
    """Return the page: the answer with its device, the trials in the order in which they ran, and advice on use."""
    result, estimate = report.results.get("find_batch_size"), report.results.get("find_batch_size_estimate")
    if estimate is not None:
        return _page_of_estimate(report, estimate)
    if result is None:
        return Page(findings=report.findings)
    # The answer is the reason why the search ended if no size passed. A failed device comes before any answer.
    findings, ended = report.findings, "fail" if result.largest is None else None
    broken = next((finding for finding in findings if finding.verdict == "fail"), None) if report.faults else None
    fits = next((finding for finding in findings if finding.id == "batch_size.fits" or finding.verdict == ended), None)
    cause, first = broken or fits, None
    if result.largest is not None and broken is None:
        first = answer(report.summary.verdict, _first_line(result))
    elif cause is None and not report.summary.complete:
        first = answer("inconclusive", "no batch passed; interrupted")
    under = [Line(_subject(result), "dim")] if first or cause else []
    in_use = _in_use(result)
    body = [*_trials_of(result), *([Line(), *in_use] if in_use else [])]
    details = _details(result) if result.largest is not None else []
    return Page(first, body, details, findings, cause, under=under)


def _in_use(result: FoundBatchSize) -> list[Line]:
    """Return up to three lines of advice on use, then how to reach the effective batch size."""
    lines = []
    if result.knee is not None and result.knee.batch_size is not None:
        lines.append(Line(f"best value: {result.knee.batch_size} (within 5 % of top speed)"))
    if result.max_batch_size and result.limiting_factor not in (None, "memory"):
        lines.append(Line(f"limit: {_limit(result)}"))
    if split := _split(result.memory_split, result.axis_name):
        lines.append(Line(split))
    return lines + ([advice_line(accumulation(result.accumulation))] if result.accumulation else [])


def _details(result: FoundBatchSize) -> list[Block]:
    """Return the details that need no action: the peak, the limit and the budget."""
    lines = [Line(f"peak {taken}")] if (taken := _of_budget(result)) else []
    if result.limiting_factor is not None:
        failing = f"; first that fails: {result.first_failing}" if result.first_failing is not None else ""
        lines.append(Line(f"limit: {_limit(result)}{failing}"))
    return [*lines, Line(f"budget: {result.budget_reason or UNKNOWN}"), Line()]


def _subject(result: FoundBatchSize) -> str:
    """Return the subject of the search: model, device, settings of a step, and budget."""
    device, recipe = result.device, result.method.recipe
    name = f"{short_name(device)} ({device.id})" if device.name else device.id
    parts = [f"{_what(result)} on {name}"]
    parts += [result.optimizer.rpartition(".")[2]] if result.mode == "train" and result.optimizer else []
    parts += [result.dtype] if result.dtype else []
    parts += [f"{result.axis.name} at batch size {result.axis.batch_size}"] if result.axis else []
    parts += _how_run(recipe) if recipe else []
    parts += [f"multiples of {result.multiple_of}"] if result.multiple_of > 1 else []
    parts += ["exact"] if result.tolerance == 0 else []
    return " · ".join([*parts, f"budget {units.capacity(result.budget_bytes)}"])


def _what(result: FoundBatchSize | EstimatedBatchSize) -> str:
    return f"{result.target}, {'training' if result.mode == 'train' else 'inference'}"


def _how_run(recipe: StepRecipe) -> list[str]:
    """Return the settings of a step: autocast."""
    return [f"{recipe.amp} autocast"] if recipe.amp else []


def _trials_of(result: FoundBatchSize) -> list[Block]:
    """Return a table with a row for each trial."""
    trials = result.trials
    if not trials:
        return []
    scale, unit = _scale(max(trial.peak_bytes or 0 for trial in trials))
    # The size in a search along an axis is a length, and the rate counts that length.
    size, rate = (result.axis_name, f"{result.axis_name}/s") if result.axis_name else ("batch", "samples/s")
    columns: list[ColumnOf[TrialEntry]] = [
        filled(Column(size), lambda trial: str(trial.batch_size)),
        filled(
            Column("result", "left"), lambda trial: verdict_cell(_verdict_of(trial), trial.outcome.replace("-", " "))
        ),
        numbers(Column(f"peak, {unit}", keep=7), lambda trial: trial.peak_bytes, scale),
        numbers(Column(rate, keep=6), lambda trial: trial.samples_per_s),
        filled(Column("run", "left", keep=2), lambda trial: Cell(trial.purpose, "dim")),
        filled(Column("why", "left", keep=0, wraps=True), lambda trial: Cell(trial.reason or "", "dim")),
    ]
    return [table_of(trials, columns)]


def _verdict_of(trial: TrialEntry) -> Verdict:
    return "pass" if trial.outcome == "fits" else "inconclusive" if trial.outcome in _UNDECIDED else "fail"


def _scale(size: int) -> tuple[int, str]:
    """Return the unit, GiB or MiB, that shows a size without leading zeros."""
    return (units.GIB, "GiB") if size >= units.GIB else (units.MIB, "MiB")


# --- The lines of the answer ------------------------------------------------------------------------------------------


def _first_line(result: FoundBatchSize) -> str:
    """Return the answer in one line: the largest and the recommended size, or the prediction if more may fit."""
    axis = f"{result.axis_name} " if result.axis_name else ""
    note = "" if result.confirmed else " (passed once)"
    if result.max_batch_size is not None:
        within = " within 85 %" if result.limited_by == "safety" else ""
        does = "trains" if result.mode == "train" else "infers"
        text = f"largest {axis}that {does}{within}: {result.max_batch_size}{note}"
    elif result.limiting_factor in _CAPS:
        text = f"at least {axis}{result.at_least}{note} ({_limit(result)})"
    else:
        return _at_least(result, axis, note)
    recommended = result.recommended
    if recommended is None or recommended.batch_size is None:
        return text
    return f"{text}   recommended: {recommended.batch_size} ({(recommended.headroom or 0) * 100:.0f} % headroom)"


def _at_least(result: FoundBatchSize, axis: str, note: str) -> str:
    size, predicted = result.at_least, result.predicted_batch_size
    failing = f", {result.first_failing} fails" if predicted is None and result.first_failing is not None else ""
    taken = _of_budget(result)
    text = f"at least {axis}{size} fits{note or (taken and f' ({taken})')}{failing}; {_limit(result)}"
    if size is None or predicted is None or predicted <= size:
        return text
    # A prediction is shown with two significant digits.
    return f"{text}, predicted about {round(predicted, 2 - len(str(predicted)))}"


def _limit(result: FoundBatchSize) -> str:
    """Return the limit of the answer in words."""
    factor = result.limiting_factor or ""
    if result.axis and factor in _CAPS:
        return f"stopped at the greatest length{', 65536 by default' if factor == 'default-cap' else ' given'}"
    return _LIMITS.get(factor, factor or "the search did not end")


def _of_budget(result: FoundBatchSize) -> str:
    if result.peak_bytes is None:
        return ""
    return f"{units.capacity(result.peak_bytes)} of {units.capacity(result.budget_bytes)}"


def _split(split: MemorySplit | None, axis: str | None) -> str:
    """Return the use of the memory in one line, or an empty text if it is unknown."""
    if split is None:
        return ""
    known = {
        "weights": split.parameter_bytes,
        "gradients": split.gradient_bytes,
        "optimizer": split.optimizer_bytes,
        "other": split.fixed_bytes,
    }
    held = ", ".join(f"{name} {units.capacity(size)}" for name, size in known.items() if size)
    if split.activation_bytes_per_sample is None:
        return held
    cost = f"each {f'unit of {axis}' if axis else 'sample'} costs {units.capacity(split.activation_bytes_per_sample)}"
    return f"{cost}; {held}" if held else cost


def accumulation(how: Accumulation) -> str:
    """Return the micro-batches and accumulation steps that make the effective batch size."""
    text = f"for an effective batch of {how.effective_batch}: micro-batch {how.micro_batch}"
    if how.steps == 1:
        return f"{text}, no accumulation needed"
    if not how.smaller:
        return f"{text} × {how.steps} accumulation steps"
    return (
        f"{text} × {how.steps - how.smaller} and {how.micro_batch - 1} × {how.smaller} accumulation steps: "
        f"{how.effective_batch} has no divisor near {how.limit}"
    )


# --- The estimate for another device ----------------------------------------------------------------------------------


def _page_of_estimate(report: Report, result: EstimatedBatchSize) -> Page:
    """Return the page of an estimate for another device: the size and the use of the memory."""
    cause, recipe = finding_of(report, "batch_size.estimate"), result.recipe
    parts = [_what(result), *([result.dtype] if result.dtype else [])]
    parts += [f"{recipe.axis} at batch size {recipe.batch_size}"] if recipe.axis else []
    under = [Line(" · ".join([*parts, *_how_run(recipe), "nothing was run"]), "dim")]
    details = [Line(f"set aside, {result.source}")] if result.context_bytes or result.workspace_bytes else []
    smaller = "use a smaller model, or estimate for a larger --memory-limit"
    then = smaller if result.max_batch_size is None else None
    return Page(None, [_estimate_memory(result)], details, report.findings, cause, then, under)


def _estimate_memory(result: EstimatedBatchSize) -> Block:
    """Return a table of the memory that a step uses and the memory that is set aside."""
    scale, unit = _scale(result.memory_bytes)
    held = (
        ("weights", result.parameter_bytes),
        ("gradients", result.gradient_bytes),
        ("optimizer", result.optimizer_bytes),
        ("all tensors at peak", result.peak_bytes),
        ("set aside: context", result.context_bytes),
        ("set aside: workspaces", result.workspace_bytes),
        ("set aside: margin", result.margin_bytes),
        ("the device", result.memory_bytes),
    )
    # Rows without bytes are left out: a CPU needs no reserve, and inference has no gradients.
    known = [row for row in held if row[1]]
    name, size = filled(Column("memory", "left"), itemgetter(0)), numbers(Column(unit), itemgetter(1), scale)
    return table_of(known, [name, size])
