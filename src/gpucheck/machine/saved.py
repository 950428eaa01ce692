"""Documents that were saved: the one place that reads them back."""

from __future__ import annotations

import json
import math
import os

from gpucheck.errors import UsageError
from gpucheck.report.codec import from_json
from gpucheck.report.measurement import Run
from gpucheck.report.report import SCHEMA, Report


def load(path: str) -> Report:
    """The document in a file. Raises UsageError for what is not there, not JSON, or not of this schema."""
    fix = "give a file written by `gpucheck … --output FILE.json`"
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read", os.strerror(error.errno or 0), fix) from error
    except ValueError as error:  # also what is no UTF-8
        raise UsageError(f"{path!r} is not a JSON document", "", fix) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    name, _, major = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if name != SCHEMA.partition("/")[0]:
        raise UsageError(f"{path!r} is not a gpucheck document", f"its schema is not {SCHEMA}", fix)
    if schema != SCHEMA:
        raise UsageError(f"{path!r} has schema {name}/{major}", f"this gpucheck reads {SCHEMA}", "measure it again")
    try:
        report = from_json(Report, data)
        whole = all(_is_timed(run) for one in report.measurements for run in one.runs)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path!r} is incomplete", f"it does not follow the schema {SCHEMA}", fix) from error
    if not whole:
        raise UsageError(f"{path!r} is incomplete", "a sample is not a valid time", fix)
    return report


def _is_timed(run: Run) -> bool:
    """Whether every sample of a run is a time: ratios are of logarithms."""
    return run.calls_per_sample > 0 and all(0 < sample < math.inf for sample in run.samples_s)
