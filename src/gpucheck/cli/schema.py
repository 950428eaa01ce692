"""`gpucheck schema`."""

from __future__ import annotations

import sys

from gpucheck import exits


def schema() -> int:
    """Print the JSON Schema of the `--json` documents."""
    from importlib import resources

    sys.stdout.write(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
    return exits.OK
