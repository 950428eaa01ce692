"""A report's measurements and findings as CSV, one row each, for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json

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


def rows(report: Report) -> str:
    """A head and a row for each measurement and each finding; what does not apply is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for measurement in report.measurements:
        time, rate = measurement.time_s, measurement.rate
        writer.writerow(
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
    for finding in report.findings:
        writer.writerow(
            {"kind": "finding", "name": finding.id, "verdict": finding.verdict, "message": _one_line(finding.message)}
        )
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
