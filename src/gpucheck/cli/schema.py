"""`gpucheck schema`."""

from __future__ import annotations

import sys

from gpucheck import exits


def schema() -> int:
    """The JSON Schema of the documents that `--json` prints."""
    from importlib import resources

    sys.stdout.write(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
    return exits.OK
