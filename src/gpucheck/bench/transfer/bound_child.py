"""The child that measures a device's rows from one NUMA node: it binds itself, and only then imports torch.

The first line on stdin is the setup, answered by `ready`; the second one is for how long to measure, answered by a line
for each row, finding, notice and step, and `end`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gpucheck.errors import GpucheckError, UsageError
from gpucheck.machine import numa
from gpucheck.machine.speaking import Say, claim_stdout
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Event, Judged, Notice, Progress


def main() -> int:
    """Bind, say that this is ready, and measure when told to."""
    say = claim_stdout()
    try:
        _work(json.loads(sys.stdin.readline()), say)
    except GpucheckError as error:
        usage = isinstance(error, UsageError)
        told = {"what": error.what, "why": error.why, "fix": error.fix, "finding": error.finding, "usage": usage}
        say({"raised": told})
    except RuntimeError as error:  # torch's, for whatever its driver answers
        say({"error": (str(error).strip().splitlines() or [type(error).__name__])[0]})
    return 0


def _work(setup: dict[str, Any], say: Say) -> None:
    bound = numa.bind(setup["node"])
    # From here on torch may start its threads.
    from gpucheck.bench.transfer import command, parts
    from gpucheck.bench.transfer.options import TransferOptions
    from gpucheck.machine import accel

    device = accel.open_device(setup["device"], name=setup["name"], uuid=setup["uuid"])
    device.make_current()
    say({"ready": True, "memory_refused": bound.reason})
    for_s = json.loads(sys.stdin.readline())["for_s"]

    def emit(event: Event) -> None:
        match event:
            case Judged(finding):
                say({"finding": to_json(finding)})
            case Notice():
                say({"notice": to_json(event)})
            case Progress():
                say({"progress": to_json(event)})

    wanted = [part for part in parts.PARTS if part.id in setup["parts"]]
    ran: set[str] = set()
    deadline = time.monotonic() + for_s
    for one in command.rows_on(
        from_json(TransferOptions, setup["options"]), wanted, device, emit, deadline, ran, bound
    ):
        say({"ran": sorted(ran)})
        say({"measurement": to_json(one)})
    say({"end": True})
