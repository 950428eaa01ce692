"""The screens of `memory`: the answer in three lines, and the sequence in every width."""

from __future__ import annotations

import pytest
from device_scenes import MEMORY
from shown import above, hold, shown

from gpucheck.render import text

# The first three lines of each scene on a screen of 80 columns, less what stands below a gap.
ANSWERS = {
    "exact": ("✓ cuda:0 (H200): 139 GiB of 140 GiB free; torch's memory figures are exact",),
    "beside another process": ("✓ cuda:0 (H200): 139 GiB of 140 GiB free; torch's memory figures are exact",),
    "with settings": (
        "✓ cuda:0 (H200): 139 GiB of 140 GiB free; torch's memory figures are within",
        "bounds",
    ),
    "a cache that stays": (
        "✗ cuda:0 (H200): memory_reserved is 123731968 B after empty_cache, expected 0",
        "→ gpucheck memory --output memory.json; if it fails again, report it to PyTorch",
    ),
    "memory that stays": (
        "✗ cuda:0 (H200): memory_allocated is 1024 B after free, expected 0 (and 1 more)",
        "→ gpucheck memory --output memory.json; if it fails again, report it to PyTorch",
    ),
    "no caching": (
        "– cuda:0 (H200): 139 GiB of 140 GiB free; torch's memory figures not checked:",
        "torch has no figures without its caching allocator",
    ),
    "on the CPU": (
        "– cpu: 22 GiB of 24 GiB free; torch's memory figures not checked: torch has none",
        "on the CPU",
    ),
    "a full device": (
        "✗ cuda:0 failed in memory: CUDA out of memory. Tried to allocate 64.00 MiB:",
        "OutOfMemoryError",
        "→ gpucheck smoke --device cuda:0; sudo dmesg | grep -i xid shows the driver's",
    ),
    "a device that failed": (
        "✗ cuda:0 failed in memory: CUDA error: an illegal memory access was encountered:",
        "AcceleratorError",
        "→ gpucheck smoke --device cuda:0; sudo dmesg | grep -i xid shows the driver's",
    ),
    "cut off": (
        "? cuda:0 (H100): 79 GiB of 80 GiB free; torch's memory figures not checked",
        "! not complete: the command was cut off",
    ),
}


@pytest.mark.parametrize("scene", MEMORY)
def test_the_first_three_lines_are_the_answer(scene: str) -> None:
    assert above(text.blocks(MEMORY[scene]())) == ANSWERS[scene]


def test_every_screen_in_every_width(request: pytest.FixtureRequest) -> None:
    screens = {
        scene: text.blocks(MEMORY[scene]()) for scene in ("beside another process", "a cache that stays", "on the CPU")
    }
    screens["exact, -v"] = text.blocks(MEMORY["exact"](), verbose=True)
    hold("memory", screens, write=request.config.getoption("--write-record", False))


def test_a_figure_shows_what_is_expected_where_it_differs() -> None:
    lines = shown(text.blocks(MEMORY["a cache that stays"]()), 80)
    (row,) = [line for line in lines if line.startswith(" empty_cache")]
    assert row.split() == ["empty_cache", "0", "100.001", "118", "(expected", "0)", "118", "✗", "fail"]
    assert not any("expected" in line for line in shown(text.blocks(MEMORY["exact"]())))
