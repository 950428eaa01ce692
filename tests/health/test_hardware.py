"""What NVML proves of a card at rest, at the bounds themselves."""

from __future__ import annotations

import pytest

from gpucheck.health import hardware
from gpucheck.report.facts import Device, Facts, RetiredPages


@pytest.mark.parametrize(
    ("corrected", "uncorrected", "verdict"),
    [(63, 0, "fail"), (62, 0, None), (48, 15, "fail"), (46, 16, None), (None, 63, "fail")],
)
def test_retired_pages(corrected: int | None, uncorrected: int, verdict: str | None) -> None:
    """DCGM fails a card at 63 pages."""
    card = Device("cuda", "cuda:0", "Tesla V100", retired_pages=RetiredPages(corrected, uncorrected, False))
    said = hardware.retired_pages(card, Facts(devices=(card,)))
    assert (said.verdict if said is not None and said.verdict in ("fail", "warn") else None) == verdict
