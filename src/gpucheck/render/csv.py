"""A report's measurements, comparisons and findings as CSV, one row each, for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re

from gpucheck.report.codec import to_json
from gpucheck.report.report import Report

COLUMNS = (
    "kind",
    "name",
    "device",
    "case",
    "verdict",
    "message",
    "time_median_s",
    "time_p05_s",
    "time_p95_s",
    "rate_median",
    "rate_unit",
    "flags",
)
# Beside these, where two documents were compared. Times are seconds per call, the ratio is of times, new over old.
COMPARED = (
    "old_device",
    "old_runs",
    "new_runs",
    "old_s",
    "new_s",
    "old_rate",
    "new_rate",
    "ratio",
    "ci_low",
    "ci_high",
    "ci_level",
    "change",
)


# What begins a formula (OWASP, "CSV Injection"), in its wide forms too, behind spaces as well.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠\t\r]")


def rows(report: Report) -> str:
    """A head and a row for each measurement, each row compared and each finding; what does not apply is empty."""
    out = io.StringIO()
    compared = report.results.get("compare")
    columns = COLUMNS if compared is None else (*COLUMNS, *COMPARED)
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()

    def write(row: dict[str, str]) -> None:
        writer.writerow({name: _no_formula(cell) for name, cell in row.items()})

    for measurement in report.measurements:
        time, rate = measurement.time_s, measurement.rate
        write(
            {
                "kind": "measurement",
                "name": measurement.name,
                "device": measurement.device.id,
                "case": json.dumps(to_json(measurement.case), sort_keys=True),
                "time_median_s": _number(time.median if time else None),
                "time_p05_s": _number(time.p05 if time else None),
                "time_p95_s": _number(time.p95 if time else None),
                "rate_median": _number(rate.median if rate else None),
                "rate_unit": rate.unit if rate else "",
                "flags": " ".join(measurement.flags),
            }
        )
    for row in compared.rows if compared is not None else ():
        told = {name: value if isinstance(value := getattr(row, name), str) else _number(value) for name in COMPARED}
        write(
            {
                **told,
                "kind": "comparison",
                "name": row.name,
                "device": row.new_device,
                "case": json.dumps(to_json(row.case), sort_keys=True),
                "message": _one_line("; ".join((*((row.why,) if row.why else ()), *row.differences))),
                "rate_unit": row.rate_unit or "",
                "flags": " ".join(row.flags),
            }
        )
    for finding in report.findings:
        write(
            {"kind": "finding", "name": finding.id, "verdict": finding.verdict, "message": _one_line(finding.message)}
        )
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _no_formula(cell: str) -> str:
    """The cell, as text where a spreadsheet would compute it: names come from devices and other people's documents."""
    if not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _one_line(text: str) -> str:
    return " ".join(text.split())
