"""The page of `gpucheck find-batch-size`, for a search or an estimate."""

from __future__ import annotations

from operator import itemgetter

from gpucheck import units
from gpucheck.batch_size.answer import FACTORS, OPEN
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Cell, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.finding import Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    EstimatedBatchSize,
    FoundBatchSize,
    MemorySplit,
    TrialEntry,
)

_LIMITS = {
    **{FACTORS.get(reason, reason): why for reason, why in OPEN.items()},
    "memory": "memory",
    "max-batch-size": "stopped at --max-batch-size",
    "trial-timeout": "a trial exceeded --trial-timeout",
    "kernel-limit": "a kernel's own limit, not memory",
    "safety": "safety: full memory is dangerous here",
}
# Limits on the size to try: the user's limit and the default limit.
_CAPS = ("max-batch-size", "default-cap")
# The verdicts of the outcomes after which a size fits, or may fit. Other outcomes fail.
_VERDICTS: dict[str, Verdict] = {
    "fits": "pass",
    **dict.fromkeys(("timeout", "inconclusive", "suspected", "killed", "out-of-time"), "inconclusive"),
}


def page(report: Report) -> Page:
    result, estimate = report.results.get("find_batch_size"), report.results.get("find_batch_size_estimate")
    if estimate is not None:
        return _page_of_estimate(report, estimate)
    if result is None:
        return Page(findings=report.findings)
    # If no size passed, the answer is the reason why the search ended. A failed device comes before any answer.
    findings, largest = report.findings, result.at_least if result.max_batch_size is None else result.max_batch_size
    failure = next((finding for finding in findings if finding.verdict == "fail"), None)
    broken = failure if report.faults else None
    fits = report.finding("batch_size.fits")
    cause, first = broken or fits or (failure if largest is None else None), None
    if largest is not None and broken is None:
        first = text.answer(report.summary.verdict, _first_line(result))
    elif cause is None and not report.summary.complete:
        first = text.answer("inconclusive", "no batch passed; interrupted")
    under = [TextLine(_subject(result), "dim")] if first or cause else []
    in_use = _in_use(result)
    body = [*([_trials(result)] if result.trials else []), *([TextLine(), *in_use] if in_use else [])]
    return Page(first, body, _details(result) if largest is not None else [], findings, cause, under=under)


def _in_use(result: FoundBatchSize) -> list[TextLine]:
    lines = []
    if result.knee and result.knee.batch_size:
        lines.append(TextLine(f"best value: {result.knee.batch_size} (within 5 % of top speed)"))
    if result.max_batch_size and result.limiting_factor not in (None, "memory"):
        lines.append(TextLine(f"limit: {_limit(result)}"))
    if split := _split(result.memory_split, result.axis.name if result.axis else None):
        lines.append(TextLine(split))
    if result.accumulation:
        lines.append(text.advice_line(accumulation(result.accumulation)))
    return lines


def _details(result: FoundBatchSize) -> list[PageBlock]:
    lines = [TextLine(f"peak {taken}")] if (taken := _of_budget(result)) else []
    if result.limiting_factor is not None:
        failing = f"; first that fails: {result.first_failing}" if result.first_failing is not None else ""
        lines.append(TextLine(f"limit: {_limit(result)}{failing}"))
    return [*lines, TextLine(f"budget: {result.budget_reason or UNKNOWN}"), TextLine()]


def _subject(result: FoundBatchSize) -> str:
    device, recipe = result.device, result.method.recipe
    parts = (
        f"{_what(result)} on {f'{text.short_name(device)} ({device.id})' if device.name else device.id}",
        (result.optimizer or "").rpartition(".")[2] if result.mode == "train" else "",
        result.dtype,
        f"{result.axis.name} at batch size {result.axis.batch_size}" if result.axis else "",
        f"{recipe.amp} autocast" if recipe and recipe.amp else "",
        f"multiples of {result.multiple_of}" if result.multiple_of > 1 else "",
        "exact" if result.tolerance == 0 else "",
        f"budget {units.capacity(result.budget_bytes)}",
    )
    return " · ".join(filter(None, parts))


def _what(result: FoundBatchSize | EstimatedBatchSize) -> str:
    return f"{result.target}, {'training' if result.mode == 'train' else 'inference'}"


def _trials(result: FoundBatchSize) -> PageBlock:
    scale, unit = _scale(max(trial.peak_bytes or 0 for trial in result.trials))
    # In a search along an axis, the size is a length, and the rate counts this length.
    size, rate = (result.axis.name, f"{result.axis.name}/s") if result.axis else ("batch", "samples/s")
    columns: list[ColumnOf[TrialEntry]] = [
        filled(Column(size), lambda trial: str(trial.batch_size)),
        filled(Column("result", "left"), _result),
        numbers(Column(f"peak, {unit}", keep=7), lambda trial: trial.peak_bytes, scale),
        numbers(Column(rate, keep=6), lambda trial: trial.samples_per_s),
        filled(Column("run", "left", keep=2), lambda trial: Cell(trial.purpose, "dim")),
        filled(Column("why", "left", keep=0, wraps=True), lambda trial: Cell(trial.reason or "", "dim")),
    ]
    return table_of(result.trials, columns)


def _result(trial: TrialEntry) -> Cell:
    return text.verdict_cell(_VERDICTS.get(trial.outcome, "fail"), trial.outcome.replace("-", " "))


def _scale(size: int) -> tuple[int, str]:
    """Return the bytes and the name of the unit, GiB or MiB, that shows a size without leading zeros."""
    return (units.GIB, "GiB") if size >= units.GIB else (units.MIB, "MiB")


def _first_line(result: FoundBatchSize) -> str:
    """Return the answer in one line: the largest and the recommended size, or the prediction if more may fit."""
    axis = f"{result.axis.name} " if result.axis else ""
    note = "" if result.confirmed else " (passed once)"
    if result.max_batch_size is not None:
        within = " (85 % of budget)" if result.limited_by == "safety" else ""
        does = "trains" if result.mode == "train" else "infers"
        sentence = f"largest {axis}that {does}{within}: {result.max_batch_size}{note}"
    elif result.limiting_factor in _CAPS:
        sentence = f"at least {axis}{result.at_least}{note} ({_limit(result)})"
    else:
        return _at_least(result, axis, note)
    if (recommended := result.recommended) is None or recommended.batch_size is None:
        return sentence
    return f"{sentence}   recommended: {recommended.batch_size} ({(recommended.headroom or 0) * 100:.0f} % headroom)"


def _at_least(result: FoundBatchSize, axis: str, note: str) -> str:
    size, predicted = result.at_least, result.predicted_batch_size
    failing = f", {result.first_failing} fails" if predicted is None and result.first_failing is not None else ""
    taken = _of_budget(result)
    sentence = f"at least {axis}{size} fits{note or (taken and f' ({taken})')}{failing}; {_limit(result)}"
    if size is None or predicted is None or predicted <= size:
        return sentence
    # A prediction has two significant digits.
    return f"{sentence}, predicted about {round(predicted, 2 - len(str(predicted)))}"


def _limit(result: FoundBatchSize) -> str:
    factor = result.limiting_factor or ""
    if result.axis and factor in _CAPS:
        return f"stopped at the greatest length{', 65536 by default' if factor == 'default-cap' else ' given'}"
    return _LIMITS.get(factor, factor or "the search did not end")


def _of_budget(result: FoundBatchSize) -> str:
    peak = result.peak_bytes
    return "" if peak is None else f"{units.capacity(peak)} of {units.capacity(result.budget_bytes)}"


def _split(split: MemorySplit | None, axis: str | None) -> str:
    if split is None:
        return ""
    sizes = {
        "weights": split.parameter_bytes,
        "gradients": split.gradient_bytes,
        "optimizer": split.optimizer_bytes,
        "other": split.fixed_bytes,
    }
    fixed = ", ".join(f"{name} {units.capacity(size)}" for name, size in sizes.items() if size)
    if split.activation_bytes_per_sample is None:
        return fixed
    cost = f"each {f'unit of {axis}' if axis else 'sample'} costs {units.capacity(split.activation_bytes_per_sample)}"
    return f"{cost}; {fixed}" if fixed else cost


def accumulation(split: Accumulation) -> str:
    sentence = f"for an effective batch of {split.effective_batch}: micro-batch {split.micro_batch}"
    if split.steps == 1:
        return f"{sentence}, no accumulation needed"
    if not split.smaller:
        return f"{sentence} × {split.steps} accumulation steps"
    return (
        f"{sentence} × {split.steps - split.smaller} and {split.micro_batch - 1} × {split.smaller} "
        f"accumulation steps: {split.effective_batch} has no divisor near {split.limit}"
    )


def _page_of_estimate(report: Report, result: EstimatedBatchSize) -> Page:
    cause, recipe = report.finding("batch_size.estimate"), result.recipe
    axis = recipe.axis and f"{recipe.axis} at batch size {recipe.batch_size}"
    parts = (_what(result), result.dtype, axis, recipe.amp and f"{recipe.amp} autocast", "nothing was run")
    under = [TextLine(" · ".join(filter(None, parts)), "dim")]
    details = [TextLine(f"set aside, {result.source}")] if result.context_bytes or result.workspace_bytes else []
    then = "use a smaller model, or estimate for a larger --memory-limit" if result.max_batch_size is None else None
    return Page(None, [_estimate_memory(result)], details, report.findings, cause, then, under)


def _estimate_memory(result: EstimatedBatchSize) -> PageBlock:
    scale, unit = _scale(result.memory_bytes)
    rows = (
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
    name, size = filled(Column("memory", "left"), itemgetter(0)), numbers(Column(unit), itemgetter(1), scale)
    return table_of([row for row in rows if row[1]], [name, size])
