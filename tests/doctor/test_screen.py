"""A card that a screen hangs on: what its programs hold is no fault."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import CARDS, with_cards

from gpucheck.doctor import ladder
from gpucheck.report.facts import Process

MIB = 2**20
SCREEN = (Process(812, "graphics", "Xorg", 600 * MIB), Process(1700, "compute+graphics", "firefox", 900 * MIB))


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [
        (SCREEN, "info"),
        ((*SCREEN, Process(4711, "compute", "python", 500 * MIB)), "info"),  # the torch that is being asked
        ((*SCREEN, Process(4711, "compute", "python", 1100 * MIB)), "warn"),
        ((*SCREEN, Process(4711, "compute", "python", None)), "warn"),
        ((Process(4711, "compute", "python", 500 * MIB),), "warn"),
        ((), "warn"),
        (None, "warn"),
    ],
)
def test_what_a_screens_programs_hold_is_a_remark(processes: tuple[Process, ...] | None, verdict: str) -> None:
    evidence = with_cards(replace(CARDS[0], memory_used_bytes=1600 * MIB, processes=processes))
    (found,) = ladder.findings(ladder.diagnose(evidence, [ladder.BY_ID["devices.foreign_memory"]]))
    assert found.verdict == verdict
    assert found.message.startswith("cuda:0: 1.56 GiB")
    assert found.title.startswith("the desktop uses" if verdict == "info" else "other processes use")
