"""Render a report's measurements, comparisons and findings as CSV rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from typing import Any

from gpucheck.report.codec import to_json
from gpucheck.report.report import Report

COLUMNS: tuple[str, ...] = (
    *("kind", "name", "device", "case", "verdict", "message"),
    *("time_median_s", "time_p05_s", "time_p95_s", "rate_median", "rate_unit", "flags"),
)
# A comparison has these columns too. Times are seconds per call, and the ratio is the new time over the old.
COMPARED = (
    *("old_device", "old_runs", "new_runs", "old_s", "new_s", "old_rate", "new_rate"),
    *("ratio", "ci_low", "ci_high", "ci_level", "change"),
)

# These characters begin a formula, also after spaces and in their full-width forms (OWASP, "CSV Injection").
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠\t\r]")


def rows(report: Report) -> str:
    """Return a header and one row for each measurement, comparison and finding. Cells that do not apply are empty."""
    out = io.StringIO()
    compared = report.results.get("compare")
    columns = COLUMNS if compared is None else (*COLUMNS, *COMPARED)
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()

    def write(kind: str, name: str, **cells: Any) -> None:
        row = {"kind": kind, "name": name, **cells}
        writer.writerow({head: _no_formula(_text(cell)) for head, cell in row.items()})

    for measurement in report.measurements:
        time, rate = measurement.time_s, measurement.rate
        write(
            "measurement",
            measurement.name,
            device=measurement.device.id,
            case=measurement.case,
            time_median_s=time and time.median,
            time_p05_s=time and time.p05,
            time_p95_s=time and time.p95,
            rate_median=rate and rate.median,
            rate_unit=rate and rate.unit,
            flags=" ".join(measurement.flags),
        )
    for row in compared.rows if compared is not None else ():
        write(
            "comparison",
            row.name,
            **{name: getattr(row, name) for name in COMPARED},
            device=row.new_device,
            case=row.case,
            message=" ".join("; ".join(filter(None, (row.why, *row.differences))).split()),
            rate_unit=row.rate_unit,
            flags=" ".join(row.flags),
        )
    for finding in report.findings:
        write("finding", finding.id, verdict=finding.verdict, message=" ".join(finding.message.split()))
    return out.getvalue()


def _text(value: Any) -> str:
    """Return a cell's text, which is empty for an unknown value."""
    if isinstance(value, Mapping):
        return json.dumps(to_json(value), sort_keys=True)
    return value if isinstance(value, str) else "" if value is None else repr(value)


def _no_formula(cell: str) -> str:
    """Return the cell, quoted if a spreadsheet would run it as a formula. Names come from devices and other users."""
    if not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
