"""`gpucheck find-batch-size` as blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.render import batch_size_curves, batch_size_devices, batch_size_predicted, batch_size_use
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    advice_line,
    column_of_numbers,
    finding_line,
    table,
    verdict_cell,
)
from gpucheck.render.trials import run, verdict_of
from gpucheck.report.report import Report

_COLUMNS = (
    Column("batch"),
    Column("result", "left"),
    Column("peak, GiB", keep=7),
    Column("samples/s", keep=6),
    Column("run", "left", keep=2),
    Column("why", "left", keep=0, wraps=True),
)


def blocks(report: Report) -> list[Block]:
    """The trials in the order they ran, the answer, and what limits it."""
    found = report.results.get("find_batch_size")
    several = report.results.get("find_batch_size_devices")
    estimate = report.results.get("find_batch_size_estimate")
    laid_out: list[Block] = batch_size_predicted.blocks(estimate) if estimate else []
    for one in several["devices"] if several else [found] if found else []:
        laid_out += [*_gap(laid_out), *_one_device(one)]
    if several:
        laid_out += [*_gap(laid_out), *batch_size_devices.blocks(several)]
    laid_out += [finding_line(finding) for finding in report.findings]
    advice = batch_size_use.advice(found) if found else []
    laid_out += [advice_line(text) for text in (*advice, *(f.fix for f in report.findings if f.fix))]
    return laid_out


def _gap(above: list[Block]) -> list[Block]:
    """One empty line between parts; curves end with their own."""
    return [Line()] if above and above[-1] != Line() else []


def _one_device(found: dict[str, Any]) -> list[Block]:
    laid_out: list[Block] = [Line(_subject(found)), Line()]
    if found["trials"]:
        laid_out += [_trials(found), Line()]
    if found["max_batch_size"] is not None or found.get("at_least") is not None:
        laid_out += [Line(text) for text in (_answer(found), *_below(found))]
        drawn = batch_size_curves.curves(found)
        laid_out += [Line(), *drawn] if drawn else []
    return laid_out


def _subject(found: dict[str, Any]) -> str:
    device = found["device"]
    mode = "training" if found["mode"] == "train" else "inference"
    parts = [f"{found['target']}, {mode} on {device.get('name') or device['id']} ({device['id']})"]
    if found["mode"] == "train" and found["optimizer"]:
        parts.append(str(found["optimizer"]))
    if found["dtype"]:
        parts.append(str(found["dtype"]))
    if found.get("axis"):
        parts.append(f"along {found['axis']['name']} at a batch of {found['axis']['batch_size']}")
    parts += batch_size_predicted.how_run(found["method"].get("recipe") or {})
    if (found.get("multiple_of") or 1) > 1:
        parts.append(f"multiples of {found['multiple_of']}")
    if found.get("tolerance") == 0:
        parts.append("exact")
    parts.append(f"budget {units.capacity(found['budget_bytes'])}")
    return " · ".join(parts)


def _trials(found: dict[str, Any]) -> Block:
    trials = found["trials"]
    peaks = column_of_numbers([trial["peak_bytes"] for trial in trials], units.GIB)
    rates = column_of_numbers([trial["samples_per_s"] for trial in trials])
    rows: list[list[Cell | str]] = [
        [str(trial["batch_size"]), _result(trial), peak, rate, run(trial), trial["reason"] or ""]
        for trial, peak, rate in zip(trials, peaks, rates, strict=True)
    ]
    axis = (found.get("axis") or {}).get("name")
    # Along an axis a size is a length, and the rate is of lengths.
    heads = {"batch": axis, "samples/s": f"{axis}/s"} if axis else {}
    columns = [replace(column, head=heads.get(column.head, column.head)) for column in _COLUMNS]
    if not any(trial["reason"] for trial in trials):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(columns, rows)


def _result(trial: dict[str, Any]) -> Cell:
    return verdict_cell(verdict_of(trial), trial["outcome"].replace("-", " "))


def _answer(found: dict[str, Any]) -> str:
    """The answer in one line: the largest, the one to use, and the smallest that is nearly as fast.

    Where more may fit, what fits at least, and what is predicted.
    """
    axis, does = (found.get("axis") or {}).get("name"), "trains" if found["mode"] == "train" else "infers"
    note = "" if found["confirmed"] else " (not confirmed)"
    if found["max_batch_size"] is not None:
        largest = f"largest {axis}" if axis else "largest"
        within = " within 85 %" if found.get("limited_by") == "safety" else ""
        parts = [f"{largest} that {does}{within}: {found['max_batch_size']}{note}"]
    else:
        parts = [f"at least {f'{axis} ' if axis else ''}{found['at_least']} {does}{note}"]
        predicted = found.get("predicted_batch_size")
        if predicted is not None and predicted > found["at_least"]:
            parts.append(f"predicted: about {predicted}")
    return "   ".join(parts + batch_size_use.answer(found))


def _peak(found: dict[str, Any]) -> str:
    """What the answer takes, and how it is known."""
    how = "confirmed in a fresh process" if found["confirmed"] else ""
    if found["peak_bytes"] is None:
        return how
    peak, budget = found["peak_bytes"], found["budget_bytes"]
    # One unit for both: "1010 MiB of 1 GiB" makes a reader reckon.
    scale, unit = (units.GIB, "GiB") if budget >= units.GIB else (units.MIB, "MiB")
    text = f"peak {units.significant(peak / scale)} of {units.significant(budget / scale)} {unit}"
    return f"{text}, {how}" if how else text


def _below(found: dict[str, Any]) -> list[str]:
    lines = [*filter(None, (_peak(found),)), *batch_size_use.below(found)]
    if found["samples_per_s"] is not None:
        unit = found["axis"]["name"] if found.get("axis") else "samples"
        size = "the largest" if found["max_batch_size"] is not None else found["at_least"]
        lines.append(f"{units.significant(found['samples_per_s'])} {unit}/s with {size}")
    margin = found["margin_bytes"]
    reason = found["budget_reason"] or UNKNOWN
    lines.append(f"budget: {reason}" + (f", {units.capacity(margin)} of it left out as margin" if margin else ""))
    if found["loss"]:
        lines.append(f"loss: {found['loss']}")
    predicted = batch_size_predicted.line(found)
    return [*lines, predicted] if predicted else lines
