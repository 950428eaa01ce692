"""What copies measured by hand come to, and what link they went over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judged import copied, findings, seen

from gpucheck.bench.transfer.judge import (
    JUDGE,
    flagged,
    link_under_load,
    of_telemetry,
    share_of_link,
    speedups,
)
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import LinkUnderLoad

KIB, MIB, GIB = 2**10, 2**20, 2**30
X16 = {"generation": 5, "width": 16, "max_width": 16}


def as_read(
    generation: int | None = None, width: int | None = None, max_width: int | None = None, **more: Any
) -> LinkUnderLoad:
    c2c = more.pop("c2c_bytes_per_s", None)
    pcie = {"generation": generation, "width": width, "max_width": max_width, **more}
    link = of_telemetry({"pcie": pcie, "c2c_bytes_per_s": c2c})
    assert link is not None
    return link


C2C = as_read(5, 1, 16, c2c_bytes_per_s=447.12e9)


def row(
    seconds: float,
    size: int = GIB,
    direction: str = "host_to_device",
    memory: str = "pinned",
    timed: str = "link",
    **more: Any,
) -> Measurement:
    case = {"direction": direction, "host_memory": memory, "size_bytes": size, "timed": timed}
    return copied("transfer", case, size / seconds, **more)


def called(seconds: float, memory: str, size: int = GIB, direction: str = "host_to_device") -> Measurement:
    return row(seconds, size, direction, memory, "as_called")


def by_id(measurements: list[Measurement], link: dict[str, int] | None = X16) -> dict[str, Finding]:
    rows = [replace(row, telemetry={"pcie": link}) if link is not None else row for row in measurements]
    return {finding.id: finding for finding in findings(JUDGE, rows, Facts(), parts=["transfer.copies"])}


def read(generation: int = 5, width: int = 16, c2c: float | None = None, **most: int) -> dict[str, Any]:
    return {"pcie": {"generation": generation, "width": width, **most}, "c2c_bytes_per_s": c2c}


def of_link(bytes_per_s: float, link: LinkUnderLoad, pci_address: str | None = None) -> dict[str, Finding]:
    rows = {"host_to_device": row(GIB / bytes_per_s)}
    return {finding.id: finding for finding in share_of_link(rows, link, pci_address)}


# whether copies arrived


def test_a_row_of_which_nothing_was_compared_is_no_pass_and_a_wrong_byte_fails() -> None:
    unseen = by_id([row(1.0), row(1.0, 16 * MIB, verified_slices=0)])["transfer.corrupt"]
    assert unseen.verdict == "inconclusive" and len(unseen.evidence["unverified"]) == 1
    wrong = by_id([row(1.0, verified_slices=0), row(1.0, wrong_bytes=3, first_wrong_byte=0)])["transfer.corrupt"]
    assert (wrong.verdict, [*wrong.evidence["wrong_bytes"].values()]) == ("fail", [3])


def of_seven(bad: dict[str, Any]) -> list[dict[str, Any]]:
    """Seven runs, of which one says this."""
    right = {"wrong_bytes": 0, "verified_slices": 4, "first_wrong_byte": None}
    return [{"details": details, "telemetry": None} for details in (*6 * [right], {**right, **bad})]


def test_one_bad_run_of_seven_stays_bad() -> None:
    wrong = by_id([row(1.0, each_run=of_seven({"wrong_bytes": 3, "first_wrong_byte": 8}))])["transfer.corrupt"]
    assert (wrong.verdict, wrong.evidence["copies"]) == ("fail", 28)
    unseen = by_id([row(1.0, each_run=of_seven({"verified_slices": 0}))])["transfer.corrupt"]
    assert (unseen.verdict, unseen.evidence["copies"]) == ("inconclusive", 24)


def test_bytes_of_a_part_that_older_documents_have_still_count() -> None:
    old = replace(row(1.0, wrong_bytes=3), name="transfer.on_device", case={"size_bytes": GIB})
    for wrong, expected in ((3, ["fail"]), (0, ["pass"])):
        old.method.details["wrong_bytes"] = wrong
        assert [finding.verdict for finding in findings(JUDGE, [old], parts=["transfer.on_device"])] == expected


# the share of the link


def test_the_slower_direction_decides() -> None:
    sound = by_id([row(GIB / 55.4e9), row(GIB / 55e9, direction="device_to_host")])["transfer.link"]
    assert (sound.verdict, sound.evidence["link"]) == ("pass", "PCIe 5 x16")
    assert sound.evidence["share"] == pytest.approx({"host_to_device": 0.879, "device_to_host": 0.873}, abs=0.001)
    slow = by_id([row(GIB / 55e9), row(GIB / 20e9, direction="device_to_host")])["transfer.link"]
    assert slow.verdict == "warn" and slow.fix
    assert "transfer.link" not in by_id([row(1e-3, 64 * KIB)])  # small copies say nothing of it


@pytest.mark.parametrize(("share", "verdict"), [(0.66, "pass"), (0.64, "warn")])
def test_below_two_thirds_of_the_link_copies_are_slow(share: float, verdict: str) -> None:
    link = as_read(5, 16, 16)
    assert link.limit_bytes_per_s is not None
    assert of_link(share * link.limit_bytes_per_s, link)["transfer.link"].verdict == verdict


def test_where_the_link_is_unknown_nothing_is_judged() -> None:
    unread = by_id([row(GIB / 10e9, no_telemetry_because="NVML is not there")], None)["transfer.link"]
    # Faster than the link that was read: another link.
    faster = by_id([row(GIB / 346e9)])["transfer.link"]
    # Read as one lane of generation 1 on a virtual port.
    virtual = of_link(55e9, as_read(1, 1, 16, max_generation=5))
    # Two sources disagree on how many links there are.
    half = of_link(200e9, as_read(c2c_bytes_per_s=5 * 44.712e9))["transfer.link"]
    for finding in (unread, faster, virtual["transfer.link"], half):
        assert (finding.verdict, finding.evidence["limit_bytes_per_s"]) == ("info", None)
    assert set(virtual) == {"transfer.link"}


def test_a_grace_hopper_is_held_against_its_own_link() -> None:
    judged = of_link(346e9, C2C)
    assert set(judged) == {"transfer.link"}  # its narrow PCIe link plays no part
    assert (judged["transfer.link"].verdict, judged["transfer.link"].evidence["kind"]) == ("pass", "NVLink-C2C")
    assert judged["transfer.link"].evidence["share"]["host_to_device"] == pytest.approx(346 / 447.12)


@pytest.mark.parametrize(("lanes", "rate", "verdict"), [(8, 27e9, "info"), (4, 13e9, "info"), (2, 6.5e9, "warn")])
def test_missing_lanes_are_a_warning_where_no_slot_has_so_few(lanes: int, rate: float, verdict: str) -> None:
    judged = by_id([row(GIB / rate)], {**X16, "width": lanes})
    width = judged["transfer.link_width"]
    assert (judged["transfer.link"].verdict, width.verdict) == ("pass", verdict)
    assert width.evidence == {"width": lanes, "max_width": 16}


@pytest.mark.parametrize(
    ("address", "generation", "verdict"),
    [("0000:01:00.0", 3, "warn"), ("0000:00:1e.0", 3, "info"), ("0000:00:1e.0", 1, "warn"), (None, 3, "warn")],
)
def test_a_link_that_stepped_down_is_a_warning_unless_a_virtual_machine_hides_the_slot(
    address: str | None, generation: int, verdict: str
) -> None:
    copied = row(GIB / 3e9, telemetry=read(generation, 16, max_generation=5))
    facts = Facts(devices=(Device("cuda", id="cuda:1"), Device("cuda", id="cuda:0", pci_address=address)))
    judged = {finding.id: finding for finding in findings(JUDGE, [copied], facts, parts=["transfer.copies"])}
    below = judged["transfer.link_generation"]
    assert (below.verdict, below.evidence) == (verdict, {"generation": generation, "max_generation": 5})


@pytest.mark.parametrize(
    ("telemetry", "size", "bytes_per_s", "expected"),
    [
        (read(5, 8, max_width=16), GIB, 27e9, ("link-below-max",)),
        (read(3, 16, max_generation=5), GIB, 13e9, ("link-below-max",)),
        (read(5, 16, max_width=16, max_generation=5), GIB, 55e9, ()),
        (read(1, 16, max_generation=5), MIB, 3e9, ()),  # too small to keep the link awake
        (read(1, 1, max_width=16), GIB, 55e9, ()),  # a virtual port
        (read(1, 1, 447e9, max_width=16), GIB, 346e9, ()),
        (None, GIB, 27e9, ()),
    ],
)
def test_a_row_is_flagged_where_its_link_could_be_faster(
    telemetry: dict[str, Any] | None, size: int, bytes_per_s: float, expected: tuple[str, ...]
) -> None:
    copied = row(size / bytes_per_s, size, telemetry=telemetry)
    assert flagged(copied).flags == flagged(replace(copied, rate=copied.rate if not expected else None)).flags
    assert flagged(copied).flags == expected
    assert flagged(replace(copied, case={**copied.case, "host_memory": "pageable"})).flags == ()


def test_the_link_is_that_of_the_largest_copies_of_any_run() -> None:
    assert of_telemetry(None) is None
    assert of_telemetry({"pcie": {"generation": None, "width": 16}}) is None
    assert of_telemetry({"pcie": {}, "c2c_bytes_per_s": 447e9}) == as_read(c2c_bytes_per_s=447e9)
    rows = [row(1.0, MIB, telemetry=read(1, 16)), row(1.0, GIB, telemetry=read(5, 16, max_generation=5))]
    assert link_under_load(rows) == as_read(5, 16, max_generation=5)
    each = [{"telemetry": None}, {"telemetry": read(4, 16)}]
    assert link_under_load([row(1.0, each_run=each)]) == as_read(4, 16)


# what pinned memory gains


def test_gain_compares_as_called_with_as_called() -> None:
    """The link's own rate, four times better still, plays no part."""
    rows = [row(1.0), called(4.0, "pinned"), called(18.0, "pageable")]
    assert to_json(speedups(rows)) == [{"direction": "host_to_device", "size_bytes": GIB, "gain": 4.5}]
    gains = by_id(rows)["transfer.pinned_speedup"]
    assert gains.evidence == {"gains": to_json(speedups(rows))} and gains.fix
    none = by_id([called(4.0, "pinned"), called(4.1, "pageable")])["transfer.pinned_speedup"]
    assert (none.verdict, none.fix) == ("info", None)


def test_the_answer_is_derived_from_all_rows() -> None:
    (answer,) = JUDGE.answers(seen([row(GIB / 55e9), replace(row(1.0), name="transfer.other", case={})]))
    assert answer.link is not None and answer.link.unknown_because == "it was not read"
    assert answer.gains == ()
