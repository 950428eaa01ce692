"""Run by the interpreter that is diagnosed, from its text: a short load on the devices that are its arguments.

The first argument is for how many seconds the clocks may settle, the second for how many the load is then kept up; the
others are torch's names. The standard library and torch alone, Python 3.8 or newer. Says a line of JSON at each step,
so that a crash tells where it happened.
"""

from __future__ import annotations

import sys

# A stray json.py in the current folder must break torch, if anything: not this program.
FOLDER = [sys.path.pop(0)] if __name__ == "__main__" and sys.path[:1] == [""] else []

import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

SAID = 1  # where the answer goes
# A product of this size keeps the largest part busy for longer than it takes to enqueue (0.2 ms on an H200), and takes
# 96 MiB with its result.
SIDE = 4096
PRODUCTS = 4  # a turn, between two looks at the clock
# Some links wake up for a copy only.
COPIED_BYTES = 8 * 2**20


def say(**parts: Any) -> None:
    os.write(SAID, (json.dumps(dict(parts, gpucheck=1)) + "\n").encode())


def prepared(torch: Any, device: str) -> tuple[Any, Any, Any]:
    """A matrix on the device, host memory that it can copy from by itself, and where that goes."""
    matrix = torch.randn((SIDE, SIDE), dtype=torch.float16, device=device)
    host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    return matrix, host, torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)


def turn(torch: Any, work: dict[str, tuple[Any, Any, Any]]) -> None:
    """A few products and a copy on every device at the same time."""
    for matrix, host, there in work.values():
        for _ in range(PRODUCTS):
            matrix @ matrix
        there.copy_(host, non_blocking=True)
    for device in work:
        torch.cuda.synchronize(device)


def main(settle_s: float, load_s: float, devices: list[str]) -> None:
    """Load the devices, and say from when to when, on the clock of `time.perf_counter`."""
    sys.path[:0] = FOLDER
    say(stage="import")
    import torch

    say(stage="prepare")
    work = {device: prepared(torch, device) for device in devices}
    turn(torch, work)  # the libraries are loaded here
    say(stage="load")
    settled = time.perf_counter() + settle_s
    while time.perf_counter() < settled:
        turn(torch, work)
    began = now = time.perf_counter()
    turns = 0
    while now < began + load_s:
        turn(torch, work)
        turns += 1
        now = time.perf_counter()
    say(stage="end", began_s=began, took_s=now - began, turns=turns)


if __name__ == "__main__":
    SAID = os.dup(1)
    os.dup2(2, 1)  # what an import prints belongs to stderr
    try:
        main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer
        lines = str(error).strip().splitlines()
        say(error="{}: {}".format(type(error).__name__, lines[0] if lines else ""))
        # Freeing pinned memory on a device that is lost aborts the process: it ends without freeing anything.
        sys.stderr.flush()
        os._exit(1)
