"""The memory that the program shares with gpucheck: integers at fixed offsets, and lines of text. Free of torch.

Counts survive any end of the program. Times are nanoseconds of a monotonic clock that both processes read.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SharedMemory = mmap.mmap | memoryview | bytearray
CELLS, TEXT_BYTES = 2**17, 2**20
SIZE = CELLS * 8 + TEXT_BYTES

# The cells of the head. The hook writes 3 bytes of the first cell: the program has started, the hook has failed, and
# the hook saw torch load, missed torch, or started after torch._C.
STARTED, TORCH_NS, END_NS, TEXT_LENGTH, SITES, SITES_LOST, STEPS, DATA_NS = range(8)
COPIES_NS, WAITS_NS, BACKWARD_NS, OPTIMIZER_NS, PHASE, EXPLICIT_STEPS, TORCH_CPU_NS, FORK_ERRORS = range(8, 16)
TORCH_BYTE, UNSEEN = 2, 2
# A forked process writes only the text of its last error, because no lock protects the other cells.
_FORK_TEXT = slice(24 * 8, 64 * 8)
PHASES = ("forward", "backward", "step")  # the cell PHASE has an index into them

# One row for each device.
DEVICES_AT, MOST_DEVICES = 64, 16
DEVICE = [
    *("seen", "allocated", "reserved", "peak_allocated", "peak_reserved", "peak_step", "peak_phase"),
    *("retries", "reserved_at_peak"),
]

# One row for each line and kind of copy or wait.
SITES_AT, MOST_SITES = 512, 2048
SITE = ["count", "bytes", "time_ns", "pinned", "pageable", "unpinned_async", "unchanged_again", "steps", "last_step"]

# A ring buffer of the latest steps.
STEP = [
    *("end_ns", "duration_ns", "data_ns", "copies_ns", "waits_ns", "backward_ns", "optimizer_ns"),
    *("allocated", "reserved", "resident", "number", "cpu_ns"),
]
STEPS_AT, MOST_KEPT = SITES_AT + MOST_SITES * len(SITE), 4096
assert STEPS_AT + MOST_KEPT * len(STEP) <= CELLS


@dataclass(frozen=True, slots=True)
class CounterData:
    head: tuple[int, ...]
    devices: dict[int, dict[str, int]]
    sites: tuple[dict[str, int], ...]
    steps: tuple[dict[str, int], ...]
    lines: tuple[dict[str, Any], ...]

    def lines_of(self, kind: str) -> Iterator[dict[str, Any]]:
        return (line for line in self.lines if line.get("say") == kind)


def cells_of(memory: SharedMemory) -> memoryview:
    return memoryview(memory)[: CELLS * 8].cast("q")


def write(memory: SharedMemory, cells: memoryview, line: dict[str, Any]) -> bool:
    """Add a line of text. Return False if the memory is full."""
    text = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
    begin = CELLS * 8 + cells[TEXT_LENGTH]
    if begin + len(text) > SIZE:
        return False
    memory[begin : begin + len(text)] = text
    cells[TEXT_LENGTH] += len(text)  # the last write, so that a reader sees only complete lines
    return True


def append(path: str, line: dict[str, Any]) -> None:
    """Append a line to a rank's file, or lose the line if the folder is gone or full."""
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def write_of_fork(memory: SharedMemory, cells: memoryview, place: str, text: str) -> None:
    """Count an error of a forked process, and replace the place and the text of the previous error."""
    cells[FORK_ERRORS] += 1
    size = _FORK_TEXT.stop - _FORK_TEXT.start
    memory[_FORK_TEXT] = f"{place[-size // 2 :]}\n{text}".encode("ascii", "replace")[:size].ljust(size)


def read(memory: SharedMemory) -> CounterData:
    with cells_of(memory) as cells:
        length = min(max(cells[TEXT_LENGTH], 0), TEXT_BYTES)
        written = bytes(memory[CELLS * 8 : CELLS * 8 + length])
        lines = tuple(json.loads(line) for line in written.splitlines())
        rows = (_row(cells, DEVICES_AT, n, DEVICE) for n in range(MOST_DEVICES))
        steps = range(max(cells[STEPS] - MOST_KEPT, 0), cells[STEPS])
        if cells[FORK_ERRORS]:
            place, _, text = bytes(memory[_FORK_TEXT]).decode("ascii", "replace").strip().partition("\n")
            lines += ({"say": "fork", "place": place, "text": text, "times": cells[FORK_ERRORS]},)
        return CounterData(
            tuple(cells[:DEVICES_AT]),
            {n: row for n, row in enumerate(rows) if row["seen"]},
            tuple(_row(cells, SITES_AT, n, SITE) for n in range(min(cells[SITES], MOST_SITES))),
            tuple(_row(cells, at, 0, STEP) for at in map(step_at, steps)),
            lines,
        )


def step_at(number: int) -> int:
    return STEPS_AT + number % MOST_KEPT * len(STEP)


def _row(cells: memoryview, at: int, number: int, fields: list[str]) -> dict[str, int]:
    begin = at + number * len(fields)
    return dict(zip(fields, cells[begin : begin + len(fields)].tolist(), strict=True))
