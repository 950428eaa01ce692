"""The child that looks at a model: one request as its argument, one line as its answer. The user's code runs here.

Started by gpucheck.program.command.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from gpucheck.errors import GpucheckError, TargetError
from gpucheck.machine import child_stdio
from gpucheck.program.options import ModelOptions


def main() -> int:
    """Answer the one request."""
    options = json.loads(sys.argv[1])
    say = child_stdio.claim_stdout()
    say({"started": True})
    try:
        answer = _answer(ModelOptions(**{**options, "inputs": tuple(options["inputs"])}))
    except GpucheckError as error:
        trace = error.trace if isinstance(error, TargetError) and error.trace else traceback.format_exc()
        say(child_stdio.raised(error, trace))
        return 0
    except Exception:  # noqa: BLE001 (what the user's code raises is a TargetError by now: this is ours)
        say({"failed": traceback.format_exc(), "end": True})
        return 1
    say({"answer": answer, "end": True})
    return 0


def _answer(options: ModelOptions) -> Any:
    from gpucheck.program import placement
    from gpucheck.report.codec import to_json
    from gpucheck.work.target import raised

    try:
        return to_json(placement.examine(options))
    except (RuntimeError, MemoryError) as error:  # what the factory raises
        raise raised(f"the target {options.target}", error) from error
