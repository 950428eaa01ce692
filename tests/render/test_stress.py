"""The table of `stress` beside its record: which power of a device it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shown import shown
from stressed import KINDS, device, document, points

from gpucheck.render import text


@pytest.mark.parametrize(
    ("kinds", "power"),
    [
        (KINDS, "690 (99 %)"),
        (("memory", "copies", "mixed"), "420 (60 %)"),
        (("memory",), "300 (43 %)"),
        ((), ""),
    ],
)
def test_the_power_of_a_device_is_that_of_products_before_mixed_work(kinds: tuple[str, ...], power: str) -> None:
    watts = {"products": 690.0, "memory": 300.0, "copies": 200.0, "mixed": 420.0}
    curve = [replace(point, power_w=watts[point.kind] if point.kind in kinds else None) for point in points(0)]
    lines = shown(text.blocks(document([device(0, points=tuple(curve))])), 120)
    row = next((line for line in lines if line.startswith(" cuda:0")), "")
    assert power in row and ("%" in row) == bool(power)
