"""Copies from GPU to GPU over PCIe: what stands in their way, judged by evidence made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import HEALTHY, card, seen_by, with_cards, without_gpu

from gpucheck.doctor import conditions_cards, ladder
from gpucheck.doctor.condition import Condition, Evidence, Seen
from gpucheck.report.facts import Device, NvLink, PciPath

CONDITIONS: dict[str, Condition] = {row.id: row for row in conditions_cards.PEERS}
SWITCH = ("0000:00:01.1", "0000:01:00.0")
SUPPORTED, REFUSED = "ok", "the GPU does not support it"


def below(index: int, iommu: str | None = "off", acs: bool | None = False, **more: object) -> Device:
    """A GPU below a switch that others are below as well."""
    port = f"0000:02:0{index}.0"
    redirecting = None if acs is None else (port,) if acs else ()
    return card(index, numa_node=0, pci_path=PciPath((*SWITCH, port), iommu, redirecting), **more)


def judged(condition: str, *cards: Device) -> Seen | None:
    return seen_by(CONDITIONS[condition], with_cards(*cards))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_it_is_not_seen_where_nothing_is_known_nor_of_one_gpu(condition: str) -> None:
    for evidence in (HEALTHY, Evidence(), without_gpu(), with_cards(below(0, "translating", True))):
        assert seen_by(CONDITIONS[condition], evidence) is None


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


def test_acs_that_redirects_below_a_switch_that_both_share() -> None:
    answer = judged("peers.acs", below(0, acs=True), below(1))
    assert answer is not None and answer.message == "between cuda:0 and cuda:1, at 0000:02:00.0"
    assert answer.fix is not None and "setpci -s 0000:02:00.0 ECAP_ACS+0x6.w=0000" in answer.fix
    assert judged("peers.acs", below(0), below(1)) is None
    assert judged("peers.acs", below(0, acs=None), below(1)) is None
    # Below another root port the way leads through the CPU anyhow.
    elsewhere = card(1, pci_path=PciPath(("0000:80:01.0",), "off", ("0000:80:01.0",)))
    assert judged("peers.acs", below(0, acs=True), elsewhere) is None


def test_it_breaks_no_rung() -> None:
    evidence = with_cards(below(0, "translating", True), below(1, "translating"))
    diagnosis = ladder.diagnose(evidence, list(CONDITIONS.values()))
    assert diagnosis.first is None
    assert {finding.id: finding.verdict for finding in ladder.findings(diagnosis)} == {
        "peers.iommu": "warn",
        "peers.acs": "warn",
    }
