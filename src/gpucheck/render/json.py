"""A report as its JSON document."""

from __future__ import annotations

import json

from gpucheck.report.codec import to_json
from gpucheck.report.report import Report


def document(report: Report) -> str:
    """The document, one JSON object and a newline. Non-finite numbers are null, as the schema says."""
    return json.dumps(to_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
