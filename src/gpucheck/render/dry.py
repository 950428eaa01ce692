"""`gpucheck run --dry` as blocks: what is wrong by line, then the lines that copy and wait, then the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck import units
from gpucheck.program.run.dry_judge import peak_text
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, Page, answer, column_of_numbers, table
from gpucheck.render.run import NAMES
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report
from gpucheck.report.results.run import DryLine, DryMemory, DryResult

# Rows of a table beyond these say nothing new; all of them stand in the JSON.
_MOST_LINES = 8


def page(report: Report) -> Page:
    """The verdict and how far it was judged, the findings, the lines, and the memory by line."""
    result = report.results.get("run_dry")
    if result is None:
        return Page(None, findings=report.findings)
    bad = [one for one in report.findings if one.verdict in ("fail", "inconclusive", "warn")]
    shown = [one for one in report.findings if one.verdict != "pass" and one.id != "run.waits"]
    remarks = [one for one in report.findings if one.id in ("run.dry.remark", "run.dry.assumed")]
    body: list[Block] = [Line(f"{one.title}: {one.message}" if one.message else one.title) for one in remarks]
    shown = [one for one in shown if one not in remarks]
    if result.lines:
        body += [*([Line()] if body else []), _lines(result.lines[:_MOST_LINES])]
        if len(result.lines) > _MOST_LINES:
            body.append(Line(f"{len(result.lines) - _MOST_LINES} more lines in the JSON", "dim"))
    if result.memory is not None:
        body += [*([Line()] if body else []), *_memory(result.memory)]
    if result.written is not None:
        told = ", ".join(result.written[:5]) or "nothing"
        body += [Line(), Line(f"written in the copy, now deleted: {told}" + _more(len(result.written) - 5))]
    return Page(answer(report.summary.verdict, _verdict(result, bad)), body, findings=shown)


def _verdict(result: DryResult, bad: Sequence[Finding]) -> str:
    """The answer in a line."""
    parts = [
        *_counted("tensor", "on the wrong device", [one for one in bad if one.id == "run.dry.mismatch"]),
        *_counted("operation", "with mixed dtypes", [one for one in bad if one.id == "run.dry.dtype"]),
        *("CUDA in a forked process" for one in bad if one.id == "run.dry.fork"),
        *(one.title for one in bad if one.id in ("run.dry.memory", "run.dry.followed")),
    ]
    if not parts:
        parts = ["no tensor was on the wrong device"]
    steps = _several(result.steps, "step")
    how = f"ended after {steps}" if result.ended_after_steps else f"whole program, {steps}"
    cut = result.stopped is not None or any(one.ended for one in result.mismatches)
    return f"{result.device}: {'; '.join(parts)}" + ("" if cut else f" · {how}")


def _counted(noun: str, what: str, found: Sequence[Finding]) -> Iterator[str]:
    """How many mistakes ended the program, and how many it caught, with how often."""
    caught = [one for one in found if "times" in one.evidence and not one.evidence.get("ended")]
    ended = len(found) - len(caught)
    if ended:
        yield f"{_several(ended, noun)} {what}"
    if caught:
        times = sum(one.evidence["times"] for one in caught)
        yield f"{_several(len(caught), noun)} {what}, caught by the program ({_several(times, 'time')})"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _lines(rows: Sequence[DryLine]) -> Block:
    columns = (
        Column("line", "left"),
        Column("what", "left", keep=8),
        Column("times", keep=6),
        Column("bytes", keep=5),
        Column("source", "left", keep=1, cropped=True),
    )
    return table(
        columns,
        [
            (
                f"{one.file}:{one.line}",
                NAMES.get(one.kind, one.kind),
                str(one.count),
                units.capacity(one.bytes) if one.bytes else UNKNOWN,
                one.source or UNKNOWN,
            )
            for one in rows
        ],
    )


def _memory(memory: DryMemory) -> Iterator[Block]:
    peak = memory.peak
    of = "" if memory.total_bytes is None else f" of {units.capacity(memory.total_bytes)}"
    where = f" in {peak.phase}, step {peak.step + 1}" + (f", {peak.place}" if peak.place else "")
    yield Line(f"tensors on the device: peak {peak_text(memory)}{of}{where}")
    kept = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
    }
    told = [f"{name} {units.capacity(size)}" for name, size in kept.items() if size is not None]
    if told:
        yield Line(", ".join(told))
    rows = peak.held[:_MOST_LINES]
    if rows:
        sizes = column_of_numbers([float(one.bytes) for one in rows], units.MIB)
        columns = (Column("held at the peak by", "left"), Column("made in", "left"), Column("MiB"))
        cells = [(one.place or "no line", one.phase, size) for one, size in zip(rows, sizes, strict=True)]
        yield table(columns, cells)
    yield Line(f"not counted: {'; '.join(memory.not_counted)}", "dim")
