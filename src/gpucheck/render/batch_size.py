"""`gpucheck find-batch-size` as blocks: searched, or estimated."""

from __future__ import annotations

from operator import itemgetter

from gpucheck import units
from gpucheck.render.tables import UNKNOWN, Cell, Column, ColumnOf, filled, numbers, table_of, verdict_cell
from gpucheck.render.text import Block, Line, Page, advice_line, answer, finding_of, short_name
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
    """Return the answer and on what device, then the trials in the order they ran, then what the answer means for
    use."""
    result, estimate = report.results.get("find_batch_size"), report.results.get("find_batch_size_estimate")
    if estimate is not None:
        return _page_of_estimate(report, estimate)
    if result is None:
        return Page(findings=report.findings)
    # Without a size, what ended the search is the answer; and a device that failed stands before any.
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
    """Return what the answer means for use: three sentences at most, then how to reach an effective batch."""
    lines = []
    if result.knee is not None and result.knee.batch_size is not None:
        lines.append(Line(f"best value: {result.knee.batch_size} (within 5 % of top speed)"))
    if result.max_batch_size and result.limiting_factor not in (None, "memory"):
        lines.append(Line(f"limit: {_limit(result)}"))
    if split := _split(result.memory_split, result.axis_name):
        lines.append(Line(split))
    return lines + ([advice_line(accumulation(result.accumulation))] if result.accumulation else [])


def _details(result: FoundBatchSize) -> list[Block]:
    """Return what needs no action: what the answer takes, and what it was held against."""
    lines = [Line(f"peak {taken}")] if (taken := _of_budget(result)) else []
    if result.limiting_factor is not None:
        failing = f"; first that fails: {result.first_failing}" if result.first_failing is not None else ""
        lines.append(Line(f"limit: {_limit(result)}{failing}"))
    return [*lines, Line(f"budget: {result.budget_reason or UNKNOWN}"), Line()]


def _subject(result: FoundBatchSize) -> str:
    """Return what was searched: the model, on which device, how a step is run, and the budget."""
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
    """Return how a step is run, beyond the model."""
    parts = [f"{recipe.amp} autocast"] if recipe.amp else []
    parts += ["checkpointed activations"] if recipe.grad_checkpointing else []
    return parts + (["compiled"] if recipe.compile else [])


def _trials_of(result: FoundBatchSize) -> list[Block]:
    """A row for each trial."""
    trials = result.trials
    if not trials:
        return []
    scale, unit = _scale(max(trial.peak_bytes or 0 for trial in trials))
    # Along an axis a size is a length, and the rate is of lengths.
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
    """The unit in which a size is read without leading zeros."""
    return (units.GIB, "GiB") if size >= units.GIB else (units.MIB, "MiB")


# --- The answer, in lines ---------------------------------------------------------------------------------------------


def _first_line(result: FoundBatchSize) -> str:
    """The answer in one line: the largest and the one to use; where more may fit, what fits and what is predicted."""
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
    # It is only predicted: two significant digits.
    return f"{text}, predicted about {round(predicted, 2 - len(str(predicted)))}"


def _limit(result: FoundBatchSize) -> str:
    """Return what holds the answer where it is, in words."""
    factor = result.limiting_factor or ""
    if result.axis and factor in _CAPS:
        return f"stopped at the greatest length{', 65536 by default' if factor == 'default-cap' else ' given'}"
    return _LIMITS.get(factor, factor or "the search did not end")


def _of_budget(result: FoundBatchSize) -> str:
    if result.peak_bytes is None:
        return ""
    return f"{units.capacity(result.peak_bytes)} of {units.capacity(result.budget_bytes)}"


def _split(split: MemorySplit | None, axis: str | None) -> str:
    """Return where the memory goes, in one line; empty where nothing of it is known."""
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
    """Return how to reach an effective batch size."""
    text = f"for an effective batch of {how.effective_batch}: micro-batch {how.micro_batch}"
    if how.steps == 1:
        return f"{text}, no accumulation needed"
    if not how.smaller:
        return f"{text} × {how.steps} accumulation steps"
    return (
        f"{text} × {how.steps - how.smaller} and {how.micro_batch - 1} × {how.smaller} accumulation steps: "
        f"{how.effective_batch} has no divisor near {how.limit}"
    )


# --- A device that is not here ----------------------------------------------------------------------------------------


def _page_of_estimate(report: Report, result: EstimatedBatchSize) -> Page:
    """An estimate for a device that is not here: what it comes to, and where the memory goes."""
    cause, recipe = finding_of(report, "batch_size.estimate"), result.recipe
    parts = [_what(result), *([result.dtype] if result.dtype else [])]
    parts += [f"{recipe.axis} at batch size {recipe.batch_size}"] if recipe.axis else []
    under = [Line(" · ".join([*parts, *_how_run(recipe), "nothing was run"]), "dim")]
    details = [Line(f"set aside, {result.source}")] if result.context_bytes or result.workspace_bytes else []
    smaller = "use a smaller model, or estimate for a larger --memory-limit"
    then = smaller if result.max_batch_size is None else None
    return Page(None, [_estimate_memory(result)], details, report.findings, cause, then, under)


def _estimate_memory(result: EstimatedBatchSize) -> Block:
    """Return what a step holds, and what is kept free of it."""
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
    # Nothing is set aside for a CPU, and inference has no gradients.
    known = [row for row in held if row[1]]
    name, size = filled(Column("memory", "left"), itemgetter(0)), numbers(Column(unit), itemgetter(1), scale)
    return table_of(known, [name, size])
