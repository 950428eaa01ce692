"""A report as blocks: which command's layout, and what every layout ends with."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.render import (
    bandwidth,
    batch_size,
    bench_all,
    compare,
    crossover,
    devices,
    doctor,
    explain,
    matmul,
    memory,
    overlap,
    smoke,
    transfer,
)
from gpucheck.render.blocks import Block, Line
from gpucheck.render.markdown import markdown
from gpucheck.report.report import Report

LAYOUTS: dict[str, Callable[[Report], list[Block]]] = {
    "devices": devices.blocks,
    "memory": memory.blocks,
    "doctor": doctor.blocks,
    "explain": explain.blocks,
    "smoke": smoke.blocks,
    "bench transfer": transfer.blocks,
    "bench bandwidth": bandwidth.blocks,
    "bench matmul": matmul.blocks,
    "bench overlap": overlap.blocks,
    "bench crossover": crossover.blocks,
    "bench all": bench_all.blocks,
    "find-batch-size": batch_size.blocks,
    "compare": compare.blocks,
}


def blocks(report: Report) -> list[Block]:
    """The report as its command lays it out; a last line says so where it is not complete."""
    laid_out = LAYOUTS[report.command](report)
    if report.command != "compare" and "compare" in report.results:
        # Measured and compared in one go: what was measured, then what changed.
        laid_out += [Line(), *compare.comparison(report)]
    if not report.summary.complete:
        laid_out.append(Line("not complete: the command was cut off", "yellow"))
    return laid_out


def markdown_page(report: Report) -> str:
    """The report as a Markdown page."""
    return markdown(f"gpucheck {report.command}", blocks(report))
