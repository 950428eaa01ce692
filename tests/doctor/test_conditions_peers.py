"""Copies from GPU to GPU over PCIe: what stands in their way, judged by evidence made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import HEALTHY, card, seen_by, with_cards, without_gpu

from gpucheck.doctor import conditions_cards, ladder
from gpucheck.doctor.condition import Condition, Evidence, Seen
from gpucheck.report.facts import Device, NvLink

CONDITIONS: dict[str, Condition] = {row.id: row for row in conditions_cards.PEERS}
SUPPORTED, REFUSED = "ok", "the GPU does not support it"


def below(index: int, iommu: str | None = "off", **more: object) -> Device:
    return card(index, numa_node=0, iommu=iommu, **more)


def judged(condition: str, *cards: Device) -> Seen | None:
    return seen_by(CONDITIONS[condition], with_cards(*cards))


def test_it_is_not_seen_where_nothing_is_known_nor_of_one_gpu() -> None:
    for evidence in (HEALTHY, Evidence(), without_gpu(), with_cards(below(0, "translating"))):
        assert seen_by(CONDITIONS["peers.iommu"], evidence) is None


def peers(why: str, *others: int) -> dict[str, str]:
    return {f"0000:{index + 1}1:00.0": why for index in others}


UP, DOWN = NvLink(0, True), NvLink(0, False)


@pytest.mark.parametrize(
    ("device", "is_seen"),
    [
        (below(0, "translating"), True),
        (below(0, "translating", peers=peers(SUPPORTED, 1)), True),
        (below(0, "translating", nvlinks=(DOWN,)), True),
        (below(0, "passthrough"), False),
        (below(0, None), False),
        # Copies take NVLink, or the host's memory.
        (below(0, "translating", nvlinks=(UP,)), False),
        (below(0, "translating", peers=peers(REFUSED, 1)), False),
    ],
)
def test_an_iommu_that_translates(device: Device, is_seen: bool) -> None:
    assert (judged("peers.iommu", device, below(1, "passthrough")) is not None) is is_seen
    if is_seen:
        answer = judged("peers.iommu", device, below(1, "translating"))
        assert answer is not None and answer.message == "the IOMMU translates what cuda:0, cuda:1 send"


def test_it_breaks_no_rung() -> None:
    evidence = with_cards(below(0, "translating"), below(1, "translating"))
    diagnosis = ladder.diagnose(evidence, list(CONDITIONS.values()))
    assert diagnosis.first is None
    assert {finding.id: finding.verdict for finding in ladder.findings(diagnosis)} == {"peers.iommu": "warn"}
