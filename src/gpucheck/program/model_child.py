"""The child that looks at a model: one request as its argument, one line as its answer. The user's code runs here.

Started by gpucheck.program.command, once for claimed devices and, where a GPU is here, once on the GPU itself.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from gpucheck.errors import GpucheckError, TargetError
from gpucheck.machine import speaking


def main() -> int:
    """Answer the one request."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    say = speaking.claim_stdout()
    say({"started": True})
    try:
        answer = _answer(request)
    except GpucheckError as error:
        trace = error.trace if isinstance(error, TargetError) and error.trace else traceback.format_exc()
        say(speaking.raised(error, trace))
        return 0
    except Exception:  # noqa: BLE001 (what the user's code raises is a TargetError by now: this is ours)
        say({"failed": traceback.format_exc(), "end": True})
        return 1
    say({"answer": answer, "end": True})
    return 0


def _answer(request: dict[str, Any]) -> Any:
    from gpucheck.program import placement
    from gpucheck.report.codec import to_json
    from gpucheck.work.spec import parse_inputs, parse_target
    from gpucheck.work.target import raised

    asked = placement.Asked(
        target=parse_target(request["target"]),
        inputs=parse_inputs(tuple(request["inputs"])),
        train=request["train"],
        optimizer=request["optimizer"],
        dtype=request["dtype"],
        amp=request["amp"],
        batch_size=request["batch_size"],
        depth=request["depth"],
    )
    try:
        return to_json(placement.on_device(asked) if request["on_device"] else placement.examine(asked))
    except (RuntimeError, MemoryError) as error:  # what the factory raises
        raise raised(f"the target {asked.target.text}", error) from error
