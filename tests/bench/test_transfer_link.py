"""What link copies went over, what it carries, and what is said of one that could be faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judged import findings

from gpucheck.bench.transfer.judge import (
    JUDGE,
    as_read,
    flagged,
    link_under_load,
    of_telemetry,
    share_of_link,
)
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats
from gpucheck.report.results.bench import LinkUnderLoad

MIB, GIB = 2**20, 2**30
C2C = as_read(5, 1, 16, c2c_bytes_per_s=447.12e9)


def row(
    bytes_per_s: float | None, telemetry: dict[str, Any] | None = None, size: int = GIB, **details: Any
) -> Measurement:
    return Measurement(
        name="transfer",
        device=DeviceRef("cuda:0"),
        case={"direction": "host_to_device", "host_memory": "pinned", "size_bytes": size, "timed": "link"},
        runs=(),
        time_s=TimeStats(size / bytes_per_s, 30, ci_high=1.1 * size / bytes_per_s) if bytes_per_s else None,
        work={"bytes": float(size)},
        rate=Rate(bytes_per_s, "B/s") if bytes_per_s else None,
        memory=MemoryFigures(),
        method=Method("device events", "held", "cold", details=details),
        telemetry=telemetry,
    )


def seen(generation: int = 5, width: int = 16, c2c: float | None = None, **most: int) -> dict[str, Any]:
    return {"pcie": {"generation": generation, "width": width, **most}, "c2c_bytes_per_s": c2c}


def judged(bytes_per_s: float, link: LinkUnderLoad, pci_address: str | None = None) -> dict[str, Finding]:
    return {one.id: one for one in share_of_link({"host_to_device": row(bytes_per_s)}, link, pci_address)}


def test_the_link_of_a_reading() -> None:
    assert of_telemetry(None) is None
    assert of_telemetry({"pcie": {"generation": None, "width": 16}}) is None
    told = seen(4, 8, max_generation=5, max_width=16, device_max_generation=5)
    assert of_telemetry(told) == as_read(4, 8, 16, max_generation=5, device_max_generation=5)
    assert of_telemetry({"pcie": {}, "c2c_bytes_per_s": 447e9}) == as_read(c2c_bytes_per_s=447e9)


def test_the_link_of_several_runs_is_that_of_one_of_them() -> None:
    each = [{"telemetry": None}, {"telemetry": seen(4, 16)}]
    assert link_under_load([row(1e9, each_run=each)]) == as_read(4, 16)


def test_the_largest_copies_tell_the_link() -> None:
    rows = [row(1e9, seen(1, 16), MIB), row(1e9, seen(5, 16), GIB)]
    assert link_under_load(rows) == as_read(5, 16)


def test_a_grace_hopper_is_held_against_its_own_link() -> None:
    found = judged(346e9, C2C)["transfer.link"]
    assert (found.verdict, found.evidence["kind"]) == ("pass", "NVLink-C2C")
    assert found.evidence["share"]["host_to_device"] == pytest.approx(346 / 447.12)
    assert set(judged(346e9, C2C)) == {"transfer.link"}  # its narrow PCIe link plays no part


@pytest.mark.parametrize(("share", "verdict"), [(0.66, "pass"), (0.64, "warn")])
def test_below_two_thirds_of_the_link_copies_are_slow(share: float, verdict: str) -> None:
    link = as_read(5, 16, 16)
    assert link.limit_bytes_per_s is not None
    assert judged(share * link.limit_bytes_per_s, link)["transfer.link"].verdict == verdict


def test_two_sources_that_disagree_give_no_share() -> None:
    half = as_read(c2c_bytes_per_s=5 * 44.712e9)
    assert half.limit_bytes_per_s is None
    found = judged(200e9, half)["transfer.link"]
    assert (found.verdict, found.evidence["limit_bytes_per_s"]) == ("info", None)


def test_a_link_that_stepped_down_is_a_warning() -> None:
    link = as_read(3, 16, 16, max_generation=5, device_max_generation=5)
    found = judged(13e9, link)
    assert found["transfer.link"].verdict == "pass"
    below = found["transfer.link_generation"]
    assert (below.verdict, below.evidence["generation"], below.evidence["max_generation"]) == ("warn", 3, 5)


@pytest.mark.parametrize(
    ("address", "generation", "verdict"),
    [("0000:01:00.0", 3, "warn"), ("0000:00:1e.0", 3, "info"), ("0000:00:1e.0", 1, "warn"), (None, 3, "warn")],
)
def test_in_a_virtual_machine_the_slot_may_be_what_is_slow(address: str | None, generation: int, verdict: str) -> None:
    link = as_read(generation, 16, 16, max_generation=5, device_max_generation=5)
    assert judged(3e9, link, address)["transfer.link_generation"].verdict == verdict


def test_where_the_card_sits_is_told_by_the_facts() -> None:
    each = [{"telemetry": seen(3, 16, max_generation=5), "details": {"wrong_bytes": 0, "verified_slices": 1}}]
    measured = row(13e9, seen(3, 16, max_generation=5), each_run=each)
    for address, verdict in (("0000:00:1e.0", "info"), ("0000:01:00.0", "warn")):
        others = Device("cuda", id="cuda:1", pci_address="0000:02:00.0")
        facts = Facts(devices=(others, Device("cuda", id="cuda:0", pci_address=address)))
        found = {one.id: one.verdict for one in findings(JUDGE, [measured], facts, parts=["transfer.copies"])}
        assert found["transfer.link_generation"] == verdict


def test_a_system_that_offers_less_than_the_card_is_a_remark() -> None:
    found = judged(26e9, as_read(4, 16, 16, max_generation=4, device_max_generation=5))["transfer.link_generation"]
    assert (found.verdict, found.evidence["device_max_generation"]) == ("info", 5)


def test_a_slot_with_fewer_lanes_than_the_card_is_a_remark() -> None:
    """NVML says 8 of 8: its maximum is that of card and slot together."""
    found = judged(27e9, as_read(5, 8, 8, device_max_width=16))["transfer.link_width"]
    assert (found.verdict, found.evidence["device_max_width"]) == ("info", 16)
    assert flagged(row(27e9, seen(5, 8, max_width=8, device_max_width=16))).flags == ()


def test_a_virtual_port_says_nothing() -> None:
    """Read as one lane of generation 1, and copies are faster: what was read is not the link."""
    assert set(judged(55e9, as_read(1, 1, 16, max_generation=5))) == {"transfer.link"}


@pytest.mark.parametrize(
    ("telemetry", "size", "bytes_per_s", "expected"),
    [
        (seen(5, 8, max_width=16), GIB, 27e9, ("link-below-max",)),
        (seen(3, 16, max_generation=5), GIB, 13e9, ("link-below-max",)),
        (seen(5, 8, max_width=16), GIB, None, ("link-below-max",)),
        (seen(5, 16, max_width=16, max_generation=5), GIB, 55e9, ()),
        (seen(1, 16, max_generation=5), MIB, 3e9, ()),  # too small to keep the link awake
        (seen(1, 1, max_width=16), GIB, 55e9, ()),  # a virtual port
        (seen(1, 1, 447e9, max_width=16), GIB, 346e9, ()),
        (None, GIB, 27e9, ()),
    ],
)
def test_a_row_is_flagged_where_its_link_could_be_faster(
    telemetry: dict[str, Any] | None, size: int, bytes_per_s: float | None, expected: tuple[str, ...]
) -> None:
    one = row(bytes_per_s, telemetry, size)
    assert flagged(one).flags == expected
    assert flagged(replace(one, case={**one.case, "host_memory": "pageable"})).flags == ()


def test_the_slow_end_of_the_interval_is_told_with_a_warning() -> None:
    found = judged(20e9, as_read(5, 16, 16))["transfer.link"]
    assert found.evidence["share_at_least"] == pytest.approx(20e9 / 1.1 / 63.0e9, rel=1e-3)


def test_the_document_tells_what_was_read() -> None:
    assert (as_read(reason="a CPU has none").kind, C2C.kind) == (None, "NVLink-C2C")
    assert to_json(as_read(4, 8, 16, max_generation=5)) == {
        "kind": "PCIe",
        "generation": 4,
        "width": 8,
        "max_generation": 5,
        "max_width": 16,
        "device_max_generation": None,
        "device_max_width": None,
        "c2c_bytes_per_s": None,
        "limit_bytes_per_s": pytest.approx(15.75e9, rel=1e-3),
        "unknown_because": None,
    }
