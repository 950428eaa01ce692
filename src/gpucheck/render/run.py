"""The pages of `gpucheck run`, `run --dry` and `model`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from operator import attrgetter

from gpucheck import units
from gpucheck.program.run.judge import costly, place_text, placed
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.finding import NEEDS_ACTION, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.model import ModelResult, ModuleRow
from gpucheck.report.results.run import DryLine, DryMemory, DryResult, JobRank, RanksResult, RunLine, RunResult

NAMES = {
    "to_device": "copy to device",
    "to_host": "copy to host",
    "between": "copy between devices",
    "data": "DataLoader",
    **{name: f"{name}()" for name in ("bool", "float", "int", "nonzero")},
    **{name: f".{name}()" for name in ("item", "tolist")},
}
# The exit statuses of a program that ended on request.
_ASKED_TO_END = tuple(-getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def page(report: Report) -> Page:
    if "run_dry" in report.results:
        return _dry_page(report)
    result, time, ended = report.results.get("run"), report.finding("run.time"), report.finding("run.ended")
    if result is None or time is None:
        return Page(findings=report.findings)
    where = "; ".join(device.name for device in result.devices)
    # The first line is the reason why the program ended. After a normal end or an end on request, it is the time.
    error = result.error
    is_failure = error.kind != "KeyboardInterrupt" if error else (result.exit or 0) not in _ASKED_TO_END
    main = report.finding("run.memory.full") or (ended if is_failure else None) or time
    words = text.sentence(main) + (f" · {where}" if where else "")
    body: list[PageBlock] = list(_time(result))
    job = next((finding for finding in report.findings if finding.id.startswith("run.ranks.")), None)
    if "ranks" in report.results and job is not None:
        if job.verdict == "inconclusive":
            body = [*_periodic(report.findings), *body]
        elif main.id != "run.memory.full":
            # The job's verdict comes before this rank's verdict.
            main, body = job, [*ranks_page(report).body, TextLine(), TextLine(f"rank 0: {words}"), *body]
            words = text.sentence(main)
    folder = os.getcwd()
    if rows := list(costly(result)):
        spent = (Column("time, ms", keep=9), text.column_of_numbers([row.time_s for row in rows], 1e-3))
        memory = (Column("memory", "left", keep=4), [_pinned(row) for row in rows])
        body += [TextLine(), _by_line(rows, [place_text(row.file, row.line, folder) for row in rows], spent, memory)]
    body += [TextLine(), *_memory(result), *_traced(result, folder)]
    body = [text.signed(ended.verdict, text.sentence(ended)), *body] if ended is not None and main is time else body
    # If the program's end is the first line, a warning about the time is shown too.
    shows_time = main.id == "run.ended" and time.verdict == "warn"
    others = [row for row in report.findings if row is not ended and (row is not time or shows_time)]
    return Page(text.answer(main.verdict, words), body, [], others, main)


def ranks_page(report: Report) -> Page:
    result, findings = report.results["ranks"], report.findings
    main = next(finding for finding in findings if finding.id.startswith("run.ranks."))
    body: list[PageBlock] = [*_periodic(findings)]
    if any(row.late_s is not None or row.own_s is not None for row in result.ranks):
        body.append(_ranks(result))
    if result.arrival != "arrival":
        how = "a collective's time is the time at which the host issued it"
        body.append(TextLine(f"{how}; gpucheck was never tested with NCCL between GPUs", "dim"))
    return Page(None, body, [TextLine(f"not seen: {what}") for what in result.not_seen], findings, main)


def _periodic(findings: Sequence[Finding]) -> list[PageBlock]:
    return [text.signed(row.verdict, text.sentence(row)) for row in findings if row.id == "run.ranks.periodic"]


def _ranks(result: RanksResult) -> PageBlock:
    rows = sorted(result.ranks, key=lambda row: -(row.late_s or row.own_s or 0.0))
    has_shares = any(row.last_share for row in rows)
    times = {
        "late_s": Column("late, ms"),
        "data_s": Column("data, ms", keep=8),
        "forward_s": Column("forward, ms", keep=7),
        "backward_s": Column("backward, ms", keep=6),
        "optimizer_s": Column("optimizer, ms", keep=4),
        "queued_s": Column("queued, ms", keep=5),
    }
    # In a pipeline, the phases include waits for other ranks, so the own work is shown instead.
    if any(row.own_s is not None for row in rows):
        times = {"own_s": Column("own work, ms"), "p2p_s": Column("send and receive, ms"), "data_s": times["data_s"]}
    columns: list[ColumnOf[JobRank]] = [
        filled(Column("rank"), lambda row: str(row.rank)),
        filled(Column("host", "left", keep=3), lambda row: row.host),
        filled(Column("last"), lambda row: units.percent(row.last_share or 0.0) if has_shares else ""),
        *(numbers(column, attrgetter(name), 1e-3) for name, column in times.items()),
    ]
    return table_of(rows, columns)


def _time(result: RunResult) -> Iterator[PageBlock]:
    shares, steps = result.shares, result.steps
    if shares is None:
        return
    if steps is None:
        yield TextLine(f"{units.duration(shares.window_s)} since torch was loaded; no steps were seen")
    else:
        median = "" if steps.median_s is None else f", {units.duration(steps.median_s)} each (median)"
        slowest = "" if steps.slowest_s is None else f", slowest {units.duration(steps.slowest_s)}"
        yield TextLine(f"{steps.count} steps{median}{slowest}")
        if steps.first_s:
            yield TextLine(f"first steps: {', '.join(map(units.duration, steps.first_s))}", "dim")
    names = ("data", "copies", "waits", "rest", "device busy")
    busy = UNKNOWN if shares.device_busy is None else units.percent(shares.device_busy)
    parts = [units.percent(share) for share in (shares.data, shares.copies, shares.waits, shares.rest)]
    yield text.table([Column(name) for name in names], [[*parts, busy]])


def _by_line(
    rows: Sequence[RunLine] | Sequence[DryLine], places: list[str], *more: tuple[Column, list[str]]
) -> PageBlock:
    return text.by_column(
        [
            (Column("line", "left"), places),
            (Column("what", "left", keep=8), [NAMES.get(line.kind, line.kind) for line in rows]),
            (Column("times", keep=6), [str(line.count) for line in rows]),
            (Column("bytes", keep=5), [units.capacity(line.bytes) if line.bytes else UNKNOWN for line in rows]),
            *more,
            (Column("source", "left", keep=1, cropped=1), [line.source or UNKNOWN for line in rows]),
        ]
    )


def _pinned(line: RunLine) -> str:
    if not line.pinned and not line.pageable:
        return UNKNOWN
    return "pinned" if not line.pageable else "pageable" if not line.pinned else "both"


def _memory(result: RunResult) -> Iterator[PageBlock]:
    for device in result.devices:
        peak = f"peak {units.capacity(device.peak_allocated_bytes)} of {units.capacity(device.total_bytes)}"
        where = f"in {device.peak_phase}" + (f", step {device.peak_step + 1}" if result.steps is not None else "")
        reserved = f"reserved {units.capacity(device.peak_reserved_bytes)}, unused at the peak "
        retries = f", {device.retries} retries" if device.retries else ""
        yield TextLine(f"{device.id}: {peak} {where}; {reserved}{units.capacity(device.fragmented_bytes)}{retries}")
    if result.host_peak_bytes is not None:
        yield TextLine(f"host memory: peak {units.capacity(result.host_peak_bytes)}")


def _traced(result: RunResult, folder: str) -> list[PageBlock]:
    if (traced := result.traced) is None or not traced.lines:
        return []
    cost = "" if traced.slowdown is None else f", each took {traced.slowdown:.1f} times as long as the others"
    # A line with less than 1 % of the largest line's bytes is shown only if it keeps memory after each step.
    least_bytes = 0.01 * max(row.peak_bytes for row in traced.lines)
    lines = table_of(
        [row for row in traced.lines if row.peak_bytes >= least_bytes or row.kept_bytes_per_step],
        [
            filled(Column("line", "left"), lambda row: place_text(row.file, row.line, folder)),
            filled(Column("module", "left", keep=5), lambda row: row.module or UNKNOWN),
            filled(Column("phase", "left", keep=4), lambda row: row.phase),
            numbers(Column("at the peak, MiB"), lambda row: row.peak_bytes, units.MIB),
            numbers(Column("kept a step, MiB"), lambda row: row.kept_bytes_per_step or None, units.MIB),
            filled(Column("held by", "left", keep=3), lambda row: row.held_by or UNKNOWN),
        ],
    )
    head = f"{text.counted(traced.steps, 'step')} traced{cost}" if traced.steps else "no step was traced"
    return [TextLine(), TextLine(f"{head}; tensors of these steps: peak {units.capacity(traced.peak_bytes)}"), lines]


def _dry_page(report: Report) -> Page:
    result: DryResult = report.results["run_dry"]
    need_action = [finding for finding in report.findings if finding.verdict in NEEDS_ACTION]
    remarks = [finding for finding in report.findings if finding.id in ("run.dry.remark", "run.dry.assumed")]
    shown = [row for row in report.findings if row.verdict != "pass" and row.id != "run.waits" and row not in remarks]
    body: list[PageBlock] = [TextLine(text.sentence(finding)) for finding in remarks]
    if result.lines:
        places = [f"{line.file}:{line.line}" for line in result.lines]
        body += [*([TextLine()] if body else []), _by_line(result.lines, places)]
    if result.memory is not None:
        body += [*([TextLine()] if body else []), *_dry_memory(result.memory)]
    first = _verdict(result, need_action)
    cause = next((finding for finding in need_action if finding.title in first and not finding.message), None)
    return Page(text.answer(report.summary.verdict, first), body, findings=shown, cause=cause)


def _verdict(result: DryResult, findings: Sequence[Finding]) -> str:
    parts = [
        *_counted("tensor", "on the wrong device", [row for row in findings if row.id == "run.dry.mismatch"]),
        *_counted("operation", "with wrong dtypes", [row for row in findings if row.id == "run.dry.dtype"]),
        *("CUDA in a forked process" for row in findings if row.id == "run.dry.fork"),
        *(row.title for row in findings if row.id in ("run.dry.memory", "run.dry.followed")),
    ] or [placed(result)]
    steps = text.counted(result.steps, "step")
    extent = f"ended after {steps}" if result.ended_after_steps else f"whole program, {steps}"
    if result.loops_ended and not result.ended_after_steps:
        extent = f"DataLoader loops ended early, {steps}"
    was_cut = result.stopped is not None or result.memory is None or any(row.ended for row in result.mismatches)
    return f"{result.device}: {'; '.join(parts)}" + ("" if was_cut else f" · {extent}")


def _counted(noun: str, what: str, mistakes: Sequence[Finding]) -> Iterator[str]:
    """Yield the number of mistakes that ended the program, then of the mistakes that the program caught."""
    caught = [finding for finding in mistakes if "times" in finding.evidence and not finding.evidence.get("ended")]
    if ended := len(mistakes) - len(caught):
        yield f"{text.counted(ended, noun)} {what}"
    if caught:
        times = sum(finding.evidence["times"] for finding in caught)
        yield f"{text.counted(len(caught), noun)} {what}, caught by the program ({text.counted(times, 'time')})"


def _dry_memory(memory: DryMemory) -> Iterator[PageBlock]:
    peak = memory.peak
    if not peak.allocated_bytes:
        yield TextLine("tensors on the device: none")
        return
    of = "" if memory.total_bytes is None else f" of {units.capacity(memory.total_bytes)}"
    where = f" in {peak.phase}, step {peak.step + 1}" + (f", {peak.place}" if peak.place else "")
    yield TextLine(f"tensors on the device: peak {units.capacity(peak.allocated_bytes)}{of}{where}")
    sizes = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
    }
    if texts := [f"{name} {units.capacity(size)}" for name, size in sizes.items() if size is not None]:
        yield TextLine(", ".join(texts))
    if peak.held:
        yield table_of(
            peak.held,
            [
                filled(Column("held at the peak by", "left"), lambda row: row.place or "no line"),
                filled(Column("made in", "left"), lambda row: row.phase),
                numbers(Column("MiB"), lambda row: row.bytes, units.MIB),
            ],
        )
    yield TextLine("not counted: workspaces, the context, fragmentation: gpucheck explain run.dry.memory", "dim")


def model_page(report: Report) -> Page:
    if (result := report.results.get("model")) is None:
        return Page(findings=report.findings)
    # The finding of a mismatch contains the tensor that causes it, so the tensor's own finding is left out.
    shown = [finding for finding in report.findings if finding.evidence.get("use") != "mismatched"]
    need_action = [finding for finding in shown if finding.verdict in NEEDS_ACTION]
    unjudged = [finding for finding in shown if finding.verdict == "skip" or finding.id == "model.unjudged"]
    above = [*text.finding_lines(unjudged), TextLine()] if unjudged else []
    body = [*above, _tree(result.rows), TextLine(), *_totals(result)]
    return Page(_model_verdict(report, result, need_action), body, findings=need_action)


def _model_verdict(report: Report, result: ModelResult, need_action: Sequence[Finding]) -> TextLine:
    what = "the training step" if result.run is not None and result.run.phase == "step" else "the forward pass"
    mismatches = sum(finding.id == "model.mismatch" for finding in need_action)
    others = sum(finding.verdict == "fail" and finding.id != "model.mismatch" for finding in need_action)
    parts = [f"{what} mixes devices in {text.counted(mismatches, 'place')}"] if mismatches else []
    if others:
        parts.append(f"{text.counted(others, 'other fault' if parts else 'fault')} when the model moves")
    verdict = report.summary.verdict
    if not parts and verdict == "pass":
        ran = f", and {what} runs" if result.run is not None else ""
        parts = [f"{'all used tensors' if result.left_behind else 'all tensors'} move{ran}"]
    elif not parts:
        was_stopped = result.run is not None and result.run.stopped is not None
        parts = ["not judged to the end" if was_stopped else need_action[0].title if need_action else "see below"]
    return text.answer(verdict, f"{result.kind} on a simulated {result.device}: {'; '.join(parts)}")


def _tree(rows: Sequence[ModuleRow]) -> PageBlock:
    return table_of(
        rows,
        [
            filled(Column("module", "left"), lambda row: "  " * row.depth + _name(row)),
            filled(Column("kind", "left", keep=3), lambda row: row.kind),
            filled(Column("parameters", keep=4), lambda row: _spaced(row.parameters)),
            numbers(Column("MiB", keep=8), lambda row: row.parameter_bytes, units.MIB),
            numbers(Column("buffers, MiB", keep=2), lambda row: row.buffer_bytes or None, units.MIB),
            filled(Column("dtype", "left", keep=5), lambda row: ", ".join(row.dtypes) or UNKNOWN),
            filled(Column("device", "left", keep=6), lambda row: ", ".join(row.devices) or UNKNOWN),
        ],
    )


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _name(row: ModuleRow) -> str:
    name = row.name.rpartition(".")[2] if row.name else "(model)"
    return f"{name} ×{row.repeats}" if row.repeats > 1 else name


def _totals(result: ModelResult) -> list[PageBlock]:
    totals = result.totals
    buffers = f", buffers {units.capacity(totals.buffer_bytes)}" if totals.buffer_bytes else ""
    weights = f"{_spaced(totals.parameters)} parameters: {units.capacity(totals.parameter_bytes)}{buffers}"
    lines: list[PageBlock] = [TextLine(weights)]
    if (training := result.training) is None:
        return lines
    gradients = f"gradients {units.capacity(training.gradient_bytes)}"
    if training.optimizer_bytes is None:
        state = f"state of {training.optimizer} unknown ({training.reason})"
        return [*lines, TextLine(f"training adds {gradients}; {state}")]
    total = totals.parameter_bytes + totals.buffer_bytes + training.gradient_bytes + training.optimizer_bytes
    state = f"{training.optimizer} {units.capacity(training.optimizer_bytes)}"
    return [*lines, TextLine(f"training adds {gradients} and {state}: {units.capacity(total)} before activations")]
