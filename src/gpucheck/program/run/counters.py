"""The memory that the program's process and ours share: whole numbers at fixed places, and lines of text.

The program only ever writes, as it runs: whatever ends it, what it had counted is there. All times are nanoseconds of
one monotonic clock that both processes read. Pure, and free of torch.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Shared = mmap.mmap | memoryview | bytearray
CELLS, TEXT_BYTES = 2**17, 2**20
SIZE = CELLS * 8 + TEXT_BYTES

# -- the head: one cell each. The bytes of the first are the hook's: whether the program's process came to its start,
# whether the looking failed, and whether torch's load was seen, was not, or its library was there before. -------------
(
    STARTED,
    TORCH_NS,
    END_NS,
    TEXT_LENGTH,
    SITES,
    SITES_LOST,
    STEPS,
    DATA_NS,
    COPIES_NS,
    WAITS_NS,
    BACKWARD_NS,
    OPTIMIZER_NS,
    PHASE,
    EXPLICIT_STEPS,
    TORCH_CPU_NS,
    FORK_ERRORS,
) = range(16)
TORCH_BYTE, UNSEEN = 2, 2
# Text of the last error that a forked process met, in what is left of the head. Such a process writes
# nowhere else, for no lock orders it.
_FORK_TEXT = slice(24 * 8, 64 * 8)
# Phases of a step, the value of PHASE.
PHASES = ("forward", "backward", "step")

# -- devices: a row each --------------------------------------------------------------------------------------------
DEVICES_AT, MOST_DEVICES = 64, 16
DEVICE: tuple[str, ...] = (
    *("seen", "allocated", "reserved", "peak_allocated", "peak_reserved", "peak_step", "peak_phase", "retries"),
    "reserved_at_peak",
)

# -- sites: a row for each line that copies or waits, by kind ---------------------------------------------------------
SITES_AT, MOST_SITES = 512, 2048
SITE: tuple[str, ...] = (
    *("count", "bytes", "time_ns", "pinned", "pageable", "unpinned_async", "unchanged_again", "steps", "last_step"),
)

# -- steps: a ring of the last ones ------------------------------------------------------------------------------------
STEP: tuple[str, ...] = (
    *("end_ns", "duration_ns", "data_ns", "copies_ns", "waits_ns", "backward_ns", "optimizer_ns", "allocated"),
    *("reserved", "resident", "number", "cpu_ns"),
)
STEPS_AT, MOST_KEPT = SITES_AT + MOST_SITES * len(SITE), 4096
assert STEPS_AT + MOST_KEPT * len(STEP) <= CELLS


@dataclass(frozen=True, slots=True)
class Read:
    """The contents of the shared counters: the head by place, rows by field, and the lines of text."""

    head: tuple[int, ...]
    devices: dict[int, dict[str, int]]
    sites: tuple[dict[str, int], ...]
    steps: tuple[dict[str, int], ...]
    lines: tuple[dict[str, Any], ...]

    def said(self, kind: str) -> Iterator[dict[str, Any]]:
        """The lines of one kind, in the order in which they were written."""
        return (line for line in self.lines if line.get("say") == kind)


def cells_of(memory: Shared) -> memoryview:
    """The cells of the shared counters, 64 bits each, signed."""
    return memoryview(memory)[: CELLS * 8].cast("q")


def write(memory: Shared, cells: memoryview, line: dict[str, Any]) -> bool:
    """Add a line of text. False where there is no room left."""
    text = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
    begin = CELLS * 8 + cells[TEXT_LENGTH]
    if begin + len(text) > SIZE:
        return False
    memory[begin : begin + len(text)] = text
    cells[TEXT_LENGTH] += len(text)  # last: a line counts once it is whole
    return True


def write_of_fork(memory: Shared, cells: memoryview, place: str, text: str) -> None:
    """Count an error of a forked process, and keep its line and text where it is the last."""
    cells[FORK_ERRORS] += 1
    room = _FORK_TEXT.stop - _FORK_TEXT.start
    memory[_FORK_TEXT] = f"{place[-room // 2 :]}\n{text}".encode("ascii", "replace")[:room].ljust(room)


def read(memory: Shared) -> Read:
    """Return what stands there now."""
    with cells_of(memory) as cells:
        length = min(max(cells[TEXT_LENGTH], 0), TEXT_BYTES)
        text = bytes(memory[CELLS * 8 : CELLS * 8 + length])
        lines = tuple(json.loads(line) for line in text.splitlines())
        rows = (_row(cells, DEVICES_AT, n, DEVICE) for n in range(MOST_DEVICES))
        steps = range(max(cells[STEPS] - MOST_KEPT, 0), cells[STEPS])
        if cells[FORK_ERRORS]:
            place, _, said = bytes(memory[_FORK_TEXT]).decode("ascii", "replace").strip().partition("\n")
            lines += ({"say": "fork", "place": place, "text": said, "times": cells[FORK_ERRORS]},)
        return Read(
            tuple(cells[:DEVICES_AT]),
            {n: row for n, row in enumerate(rows) if row["seen"]},
            tuple(_row(cells, SITES_AT, n, SITE) for n in range(min(cells[SITES], MOST_SITES))),
            tuple(_row(cells, at, 0, STEP) for at in map(step_at, steps)),
            lines,
        )


def step_at(number: int) -> int:
    """The cell at which a step's row begins."""
    return STEPS_AT + number % MOST_KEPT * len(STEP)


def _row(cells: memoryview, at: int, number: int, fields: tuple[str, ...]) -> dict[str, int]:
    begin = at + number * len(fields)
    return dict(zip(fields, cells[begin : begin + len(fields)].tolist(), strict=True))
