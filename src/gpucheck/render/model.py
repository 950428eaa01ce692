"""`gpucheck model` as blocks: what is wrong, line and fix first, then the tree and what a training step adds."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Column,
    Line,
    Page,
    answer,
    by_column,
    column_of_numbers,
)
from gpucheck.render.text import said
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report
from gpucheck.report.results.model import ModelResult, ModuleRow

_INDENT = "  "


def page(report: Report) -> Page:
    """The verdict, the findings with the worst first, the folded tree, and the totals."""
    result = report.results.get("model")
    if result is None:
        return Page(None, findings=report.findings)
    shown = [one for one in report.findings if not _is_told_elsewhere(one)]
    bad = [one for one in shown if one.verdict in ("fail", "warn", "inconclusive")]
    rest = [one for one in shown if one.verdict == "skip" or one.id == "model.unjudged"]
    body = [*said(rest), *([Line()] if rest else []), _tree(result.rows), Line(), *_totals(result)]
    return Page(_verdict(report, result, bad), body, findings=bad)


def _is_told_elsewhere(finding: Finding) -> bool:
    """Return what a mismatch names as its cause is told there, with its line and its fix."""
    return finding.evidence.get("use") == "mismatched"


def _verdict(report: Report, result: ModelResult, bad: Sequence[Finding]) -> Line:
    """The answer in a line."""
    what = "the training step" if result.run is not None and result.run.phase == "step" else "the forward pass"
    counts = {
        "mismatch": sum(1 for one in bad if one.id == "model.mismatch"),
        "other": sum(1 for one in bad if one.verdict == "fail" and one.id not in ("model.mismatch", "model.on_device")),
    }
    parts = []
    if counts["mismatch"]:
        parts.append(f"{what} mixes devices in {_times(counts['mismatch'], 'place')}")
    if counts["other"]:
        parts.append(f"{_times(counts['other'], 'other fault' if parts else 'fault')} in how it moves")
    verdict = report.summary.verdict
    if not parts and verdict == "pass":
        ran = f", and {what} runs" if result.run is not None else ""
        parts = [f"all of it moves{ran}"]
    elif not parts:
        undecided = result.run is not None and result.run.stopped is not None
        parts = ["not judged to the end" if undecided else bad[0].title if bad else "see below"]
    where = result.device if result.on_device is not None else f"a simulated {result.device}"
    text = f"{result.kind} on {where}: {'; '.join(parts)}"
    return answer(verdict, text)


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _tree(rows: Sequence[ModuleRow]) -> Block:
    names = [_INDENT * one.depth + _name(one) for one in rows]
    scale = units.MIB
    return by_column(
        [
            (Column("module", "left"), names),
            (Column("kind", "left", keep=3), [one.kind for one in rows]),
            (Column("parameters", keep=4), [f"{one.parameters:,}".replace(",", " ") for one in rows]),
            (Column("MiB", keep=8), column_of_numbers([float(one.parameter_bytes) for one in rows], scale)),
            (
                Column("buffers, MiB", keep=2),
                column_of_numbers([float(one.buffer_bytes) or None for one in rows], scale),
            ),
            (Column("dtype", "left", keep=5), [", ".join(one.dtypes) or UNKNOWN for one in rows]),
            (Column("device", "left", keep=6), [", ".join(one.devices) or UNKNOWN for one in rows]),
        ]
    )


def _name(row: ModuleRow) -> str:
    name = row.name.rpartition(".")[2] if row.name else "(model)"
    return f"{name} ×{row.repeats}" if row.repeats > 1 else name


def _totals(result: ModelResult) -> list[Block]:
    sums = result.totals
    buffers = f", buffers {units.capacity(sums.buffer_bytes)}" if sums.buffer_bytes else ""
    weights = f"{sums.parameters:,}".replace(",", " ")
    lines: list[Block] = [Line(f"{weights} parameters: {units.capacity(sums.parameter_bytes)}{buffers}")]
    training = result.training
    if training is None:
        return lines
    gradients = f"gradients {units.capacity(training.gradient_bytes)}"
    if training.optimizer_bytes is None:
        state = f"state of {training.optimizer} unknown ({training.reason})"
        return [*lines, Line(f"training adds {gradients}; {state}")]
    total = sums.parameter_bytes + sums.buffer_bytes + training.gradient_bytes + training.optimizer_bytes
    state = f"{training.optimizer} {units.capacity(training.optimizer_bytes)}"
    return [*lines, Line(f"training adds {gradients} and {state}: {units.capacity(total)} before activations")]
