"""What a second reading is told by the first: how counters grew, and who a lost card was."""

from __future__ import annotations

from typing import Any

from gpucheck.machine.driver_reads import DeviceReading, DriverReading
from gpucheck.machine.inventory import NO_LONGER_LISTED, LastKnownGpus, changes
from gpucheck.report.facts import Changes, ClockReasons, Device, Ecc, Link, NvLink


def card(index: int, uuid: str | None = None, **changes: Any) -> Device:
    identity = {
        "name": "H100",
        "uuid": uuid or f"GPU-{index}",
        "pci_address": f"0000:{index}1:00.0",
        "serial": f"s{index}",
    }
    return Device(kind="cuda", nvml_index=index, **{**identity, "read_at_s": 10.0, **changes})


def reading(*devices: Device, error: str | None = None) -> DriverReading:
    return DriverReading(code=0, error=error, devices=tuple(DeviceReading(device) for device in devices))


def lost(index: int) -> Device:
    """As NVML lists a card that it has lost."""
    return Device(kind="cuda", nvml_index=index, state="lost")


def read_twice(before: tuple[Device, ...], after: tuple[Device, ...]) -> tuple[Device, ...]:
    earlier = LastKnownGpus(before)
    second = earlier.added_to(reading(*after))
    return tuple(row.device for row in second.devices)


def test_a_lost_card_keeps_its_identity() -> None:
    earlier = LastKnownGpus((card(0), card(1), card(2)))
    for _ in range(2):
        told = earlier.added_to(reading(card(0), lost(1), card(2)))
        device = told.devices[1].device
        assert (device.uuid, device.name, device.pci_address, device.serial) == ("GPU-1", "H100", "0000:11:00.0", "s1")
        assert (device.state, device.read_at_s) == ("lost", None)
        assert len(told.devices) == 3
    assert earlier.added_to(reading(card(0), card(1), card(2))).devices[1].device.state is None


def test_a_reading_that_fails_as_a_whole_loses_no_card() -> None:
    earlier = LastKnownGpus((card(0), card(1)))
    for failed in (reading(error="NVML cannot count its devices"), reading(card(0), error="late")):
        assert all(row.device.state is None for row in earlier.added_to(failed).devices)


def test_a_card_that_is_no_longer_listed_is_lost() -> None:
    found = read_twice((card(0), card(1), card(2)), (card(0), card(1, uuid="GPU-2")))
    assert [(finding.nvml_index, finding.uuid, finding.state) for finding in found] == [
        (0, "GPU-0", None),
        # The next has its index now.
        (1, "GPU-2", None),
        (None, "GPU-1", "lost"),
    ]
    told = LastKnownGpus([card(0), card(1)]).added_to(reading(card(0)))
    assert (told.devices[1].device.nvml_index, told.devices[1].unknown) == (1, {"*": NO_LONGER_LISTED})


def test_instances_may_come_and_go() -> None:
    assert read_twice((card(0), Device(kind="cuda", uuid="MIG-1", parent_uuid="GPU-0")), (card(0, read_at_s=9.0),)) == (
        card(0, read_at_s=9.0),
    )


def test_a_nameless_row_is_not_taken_for_a_card_that_is_listed_elsewhere() -> None:
    found = read_twice((card(0), card(1)), (card(0), lost(1), card(2, uuid="GPU-1")))
    assert [finding.uuid for finding in found] == ["GPU-0", None, "GPU-1"]


def test_how_counters_grew() -> None:
    links = (NvLink(0, True, {"replay": 3, "crc_flit": 1}), NvLink(1, True, {"replay": 0}))
    more = (NvLink(0, True, {"replay": 5, "crc_flit": 1}), NvLink(1, True, {"replay": 1}))
    before = card(
        0,
        violations_s={"thermal": 1.0, "power": 5.0, "reliability": None},
        pcie=Link(5, 16, replays=7),
        ecc=Ecc(True, 1, 0),
        nvlinks=links,
        clock_reasons=ClockReasons(12, ("sw_power_cap", "hw_slowdown")),
    )
    now = card(
        0,
        read_at_s=12.0,
        violations_s={"thermal": 1.5, "power": 4.0, "reliability": None},
        pcie=Link(5, 16, replays=9),
        ecc=Ecc(True, 4, 0),
        nvlinks=more,
        clock_reasons=ClockReasons(40, ("hw_slowdown", "sw_thermal_slowdown")),
    )
    assert changes(before, now) == Changes(
        span_s=2.0,
        # A counter that ran backwards was started anew.
        violations_s={"thermal": 0.5, "power": None, "reliability": None},
        pcie_replays=2,
        nvlink_errors={"replay": 3},
        ecc_corrected=3,
        ecc_uncorrected=0,
        lasting_clock_reasons=("hw_slowdown",),
    )
    (compared,) = read_twice((before,), (now,))
    assert compared.changes == changes(before, now)
