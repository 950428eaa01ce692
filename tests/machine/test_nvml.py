"""NVML through its child, against a compiled libnvidia-ml that answers from a script."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.machine import driver_reads, nvml_fields, nvml_read
from gpucheck.machine.driver_reads import DriverReading, NvmlReader, nvml_timeout_s
from gpucheck.machine.nvml_fields import DeviceFields, applies
from gpucheck.report.facts import (
    ClockReasons,
    Device,
    Ecc,
    Fabric,
    Link,
    Mig,
    NvLink,
    Process,
    RemapBanks,
    RemappedRows,
    SramEcc,
)

Fake = Callable[..., Path]
HANG_S = 2.0  # long enough for the child to start and read what comes before the hang

FIRST = "GPU-00000000-0000-0000-0000-000000000000"
SECOND = "GPU-00000000-0000-0000-0000-000000000001"
HEALTHY = Device(
    kind="cuda",
    name="NVIDIA Fake 100",
    uuid=FIRST,
    pci_address="0000:10:00.0",
    nvml_index=0,
    compute_capability="9.0",
    memory_total_bytes=1000,
    memory_used_bytes=100,
    memory_free_bytes=850,
    memory_reserved_bytes=50,
    memory_source="nvml v2",
    utilization_percent=42.0,
    temperature_celsius=34.0,
    power_w=76.5,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    vbios_version="96.00.74.00.01",
    sm_clock_hz=345e6,
    memory_clock_hz=2619e6,
    max_sm_clock_hz=1980e6,
    max_memory_clock_hz=2619e6,
    clock_reasons=ClockReasons(1, ("gpu_idle",)),
    violations_s={
        "power": 0.0,
        "thermal": 0.0,
        "sync_boost": 0.0,
        "board_limit": None,
        "low_utilization": 0.0,
        "reliability": 0.0,
    },
    pcie=Link(generation=1, width=8, max_generation=4, max_width=16, replays=0),
    ecc=Ecc(True, 0, 0, True, True),
    remapped_rows=RemappedRows(0, 0, False, False),
    recovery_action="none",
    persistence_mode=True,
    compute_mode="default",
)
NOT_SUPPORTED = "not supported by this device or driver"
# What the fake refuses unless its script says otherwise.
USUAL = dict.fromkeys(
    (
        "memory_temperature_celsius",
        "slowdown_celsius",
        "gpu_max_celsius",
        "memory_max_celsius",
        "shutdown_celsius",
        "fan_percent",
        "application_sm_clock_hz",
        "application_memory_clock_hz",
        "default_application_sm_clock_hz",
        "default_application_memory_clock_hz",
        "sram_ecc",
        "remap_banks",
        "bar1_total_bytes",
        "serial",
        "gsp_firmware_version",
        "minor_number",
        "retired_pages/corrected",
        "retired_pages/uncorrected",
        "retired_pages/pending",
        "mig",
    ),
    NOT_SUPPORTED,
)


def read(*, processes: bool = False, links: bool = False, timeout_s: float = 30.0) -> DriverReading:
    with NvmlReader(timeout_s) as reader:
        reader.ask(processes=processes, links=links)
        return timeless(reader.reading())


def timeless(reading: DriverReading) -> DriverReading:
    """Without when each card was read."""
    rows = [dataclasses.replace(row, device=dataclasses.replace(row.device, read_at_s=None)) for row in reading.devices]
    return dataclasses.replace(reading, devices=tuple(rows))


def test_every_field_of_the_table_is_a_field_of_the_facts() -> None:
    hints = typing.get_type_hints(Device)
    for field in (*nvml_fields.IDENTITY, *nvml_fields.DETAILS):
        name, _, member = field.name.partition("/")
        assert name in hints
        if member:
            (group,) = (kind for kind in typing.get_args(hints[name]) if dataclasses.is_dataclass(kind))
            assert member in {item.name for item in dataclasses.fields(group)}


@pytest.mark.parametrize(
    ("script", "field"),
    [
        ("ecc.volatile_uncorrected=0xffffffffffffffff", "ecc/volatile_uncorrected"),
        ("persistence=7", "persistence_mode"),
        ("remap.pending=0xffffffff", "remapped_rows"),
        ("sm_clock=0xffffffff", "sm_clock_hz"),
        ("memory.used=0xffffffffffffffff", "memory_used_bytes"),
        ("clock_reasons=0xffffffffffffffff", "clock_reasons"),
        ("capability=123456", "compute_capability"),
    ],
)
def test_an_answer_that_cannot_be_true_is_none(fake_driver: Fake, script: str, field: str) -> None:
    fake_driver(f"nvml.count=1\n{script}\n")
    (row,) = read().devices
    group, _, member = field.partition("/")
    found = getattr(row.device, group)
    assert (getattr(found, member) if member else found) is None
    assert row.unknown[field].startswith("NVML's answer makes no sense")


@pytest.mark.parametrize("answer", [(True, 0), (9, True), (9.0, 0), (0, 0), (9, 10)])
def test_a_compute_capability_is_two_small_whole_numbers(answer: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        nvml_fields.capability(answer)


def test_a_count_of_devices_that_cannot_be_true_is_no_count(fake_driver: Fake) -> None:
    fake_driver("nvml.count=4000000000\n")
    reading = read()
    assert reading.error == "NVML cannot count its devices: NVML's answer makes no sense: 4000000000"
    assert reading.devices == ()


# --- what tells why a card is slow, and what may fail next -----------------------------------------------------------


FULL = """
nvml.count=1
memory_temperature=71
margin=23
slowdown=90
gpu_max=87
memory_max=95
shutdown=95
fan=130
power_limit=350000
power_limit.default=700000
application_clock=1200
application_clock.memory=2619
default_clock=1980
default_clock.memory=2619
violation.thermal=1500000000
pcie.replays=50000
ecc.pending=0
sram.exceeded=1
sram.aggregate_parity=4
sram.aggregate_secded=5
sram.l2=9
banks.max=600
banks.none=40
bar1.total=137438953472
serial=1650000000000
vbios=96.00.74.00.01
gsp=580.95.05
minor=3
"""


def test_everything_that_a_card_tells_of_itself(fake_driver: Fake) -> None:
    fake_driver(FULL)
    (row,) = read().devices
    assert row.device == dataclasses.replace(
        HEALTHY,
        memory_temperature_celsius=71.0,
        slowdown_celsius=90.0,
        gpu_max_celsius=87.0,
        memory_max_celsius=95.0,
        shutdown_celsius=95.0,
        fan_percent=130.0,
        power_limit_w=350.0,
        power_limit_default_w=700.0,
        application_sm_clock_hz=1.2e9,
        application_memory_clock_hz=2.619e9,
        default_application_sm_clock_hz=1.98e9,
        default_application_memory_clock_hz=2.619e9,
        violations_s={**(HEALTHY.violations_s or {}), "thermal": 1.5},
        pcie=Link(1, 8, 4, 16, 50_000),
        ecc=Ecc(True, 0, 0, False, True),
        sram_ecc=SramEcc(0, 0, 4, 5, True, {"l2": 9, "sm": 0, "pcie": 0, "mcu": 0, "other": 0}),
        remap_banks=RemapBanks(600, 0, 0, 0, 40),
        bar1_total_bytes=2**37,
        serial="1650000000000",
        gsp_firmware_version="580.95.05",
        minor_number=3,
    )
    assert set(row.unknown) == {
        "retired_pages/corrected",
        "retired_pages/uncorrected",
        "retired_pages/pending",
        "mig",
    }


def test_where_ecc_is_off_nothing_is_counted(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\necc=0\nsram.exceeded=0\n")
    (row,) = read().devices
    assert row.device.ecc == Ecc(False, enabled_after_reset=False, enabled_by_default=True)
    assert row.device.sram_ecc is None
    counters = (*nvml_fields.ECC_COUNTERS, "sram_ecc")
    assert {row.unknown[name] for name in counters} == {"ECC is off: nothing is counted"}
    # That is no question without an answer.
    assert not applies(row.unknown["sram_ecc"])


@pytest.mark.parametrize(
    ("script", "name", "reason"),
    [
        ("power_limit=0", "power_limit_w", "NVML returns 0 W, which is not a limit"),
        ("bar1.total=0", "bar1_total_bytes", "NVML returns 0 bytes"),
        ("sram.exceeded=!25", "sram_ecc", "the driver's NVML has another version of this structure"),
        ("sram.exceeded=0\nsram.l2=0xffffffffffffffff", "sram_ecc", "NVML's answer makes no sense"),
        ("memory_temperature=0", "memory_temperature_celsius", "NVML's answer makes no sense"),
        ("serial=\x1b[31m", "serial", "NVML's answer makes no sense"),
    ],
)
def test_what_is_no_value_says_why(fake_driver: Fake, script: str, name: str, reason: str) -> None:
    fake_driver(f"nvml.count=1\n{script}\n")
    (row,) = read().devices
    assert getattr(row.device, name) is None and row.unknown[name].startswith(reason)


# --- the links between GPUs -------------------------------------------------------------------------------------------


def test_links_are_told_where_they_are_asked_for(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\nnvlinks=3\n0.nvlink.1.state=0\nnvlink.2.crc_flit=5\nfabric=3\n")
    (row,) = read().devices
    assert (row.device.nvlinks, row.device.fabric, row.unknown) == (None, None, USUAL)
    (row,) = read(links=True).devices
    quiet = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}
    assert row.device.nvlinks == (NvLink(0, True, quiet), NvLink(1, False), NvLink(2, True, {**quiet, "crc_flit": 5}))
    assert row.device.fabric == Fabric("completed")
    assert row.unknown == USUAL


@pytest.mark.parametrize(
    ("script", "fabric"),
    [
        ("fabric=1", Fabric("not started")),
        # Until it is completed its status says nothing.
        ("fabric=2\nfabric.status=999", Fabric("in progress")),
        ("fabric=3\nfabric.status=999", Fabric("completed", "NVML returns: unknown error")),
        # No degraded bandwidth, an unhealthy route, and 4: the GPU is in no partition.
        ("fabric=3\nfabric.health=0x412", Fabric("completed", None, ("route_unhealthy", "incorrect_configuration"))),
        ("fabric=0", None),
        ("fabric=9", None),
    ],
)
def test_the_fabric(fake_driver: Fake, script: str, fabric: Fabric | None) -> None:
    fake_driver(f"nvml.count=1\n{script}\n")
    (row,) = read(links=True).devices
    assert row.device.fabric == fabric
    assert ("fabric" in row.unknown) is (fabric is None)


def test_links_of_the_fifth_generation_have_other_counters(fake_driver: Fake) -> None:
    refused = "".join(f"nvlink.{name}=!3\n" for name in ("replay", "recovery", "crc_flit", "crc_data"))
    fake_driver(f"nvml.count=1\nnvlinks=1\n{refused}nvlink.0.recovery_failed=2\n")
    (row,) = read(links=True).devices
    assert row.device.nvlinks == (NvLink(0, True, {"recovery_failed": 2}),)


@pytest.mark.parametrize(
    ("script", "unknown"),
    [
        ("", {"nvlinks": NOT_SUPPORTED}),
        ("nvlinks=4000000000", {"nvlinks": "NVML's answer makes no sense: '4000000000'"}),
        ("nvlinks=1\nnvlink.state=3", {"nvlinks/0/active": "NVML's answer makes no sense"}),
        ("nvlinks=1\nnvlink.replay=!999", {"nvlinks/0/errors/replay": "NVML returns: unknown error"}),
    ],
)
def test_a_link_that_is_not_told_says_why(fake_driver: Fake, script: str, unknown: dict[str, str]) -> None:
    fake_driver(f"nvml.count=1\n{script}\n")
    (row,) = read(links=True).devices
    assert row.unknown == {**USUAL, "fabric": NOT_SUPPORTED, **unknown}


@pytest.mark.slow
def test_links_that_hang_cost_no_device_its_other_fields(fake_driver: Fake) -> None:
    fake_driver("nvml.count=2\nnvlinks=2\n1.nvlink.state=hang\n")
    reading = read(links=True, timeout_s=HANG_S)
    late = "NVML did not answer within 2 s"
    first, second = reading.devices
    assert reading.error == late
    assert first.device.nvlinks is not None and second.device.nvlinks is None
    assert (second.device.uuid, second.device.power_w) == (SECOND, 76.5)
    assert (first.device.state, second.device.state) == (None, f"not answering: {late}")
    assert second.unknown == {**USUAL, "fabric": late, "nvlinks": late}


def test_a_healthy_card_is_read_whole(fake_driver: Fake) -> None:
    script = fake_driver("nvml.count=1\n")
    reading = read()
    assert (reading.code, reading.error, reading.driver_version) == (0, None, "580.95.05")
    assert (reading.nvml_version, reading.cuda_version) == ("13.580.95.05", "13.0")
    assert reading.path == str(script.parent / "libnvidia-ml.so.1")
    assert reading.start_s is not None
    (row,) = reading.devices
    assert row.device == HEALTHY
    assert row.unknown == USUAL


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, NOT_SUPPORTED),
        (4, "no permission"),
        (999, "NVML returns: unknown error"),
        (20, "NVML returns: Insufficient Memory"),
    ],
)
def test_a_field_that_is_refused_costs_nothing_else(fake_driver: Fake, code: int, reason: str) -> None:
    fake_driver(f"nvml.count=1\npower=!{code}\n")
    (row,) = read().devices
    assert row.device == dataclasses.replace(HEALTHY, power_w=None)
    assert row.unknown == {**USUAL, "power_w": reason}


@pytest.mark.parametrize("lanes", [0, 63])
def test_the_port_of_a_virtual_machine_has_no_width(fake_driver: Fake, lanes: int) -> None:
    fake_driver(f"nvml.count=1\npcie.width={lanes}\npcie.max_width={lanes}\n")
    (row,) = read().devices
    assert row.device.pcie == Link(1, None, 4, None, 0)
    assert row.unknown == {**USUAL, "pcie/width": NOT_SUPPORTED, "pcie/max_width": NOT_SUPPORTED}


def test_a_card_that_gives_no_handle_stays_a_row_and_costs_the_other_nothing(fake_driver: Fake) -> None:
    fake_driver("1.handle=!15\n")
    first, second = read().devices
    assert first.device == HEALTHY
    assert second.device == Device(kind="cuda", nvml_index=1, state="lost")
    assert second.unknown == {"*": "the device is lost"}


def test_a_card_that_the_container_keeps_away_says_so(fake_driver: Fake) -> None:
    fake_driver("0.handle=!4\n")
    first, second = read().devices
    assert (first.device.state, first.device.uuid) == ("not accessible here (no permission)", None)
    assert second.device.uuid == SECOND


def test_a_card_lost_while_it_is_read_keeps_what_it_told(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\npower=!15\ntemperature=!16\n")
    (row,) = read().devices
    assert row.device == dataclasses.replace(HEALTHY, power_w=None, temperature_celsius=None, state="lost")
    assert row.unknown["power_w"] == "the device is lost"
    assert row.unknown["temperature_celsius"] == "the device needs a reset"


def test_memory_falls_back_to_the_first_call_and_says_so(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\n", without=("MEMORY_V2",))
    (row,) = read().devices
    assert row.device == dataclasses.replace(
        HEALTHY, memory_used_bytes=150, memory_reserved_bytes=None, memory_source="nvml v1"
    )
    assert row.unknown["memory_reserved_bytes"] == "version 1 of NVML's memory call counts reserved memory as used"


def test_processes_of_both_kinds(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\nprocesses=12:500,13:-\ngraphics=12:500,14:7\n")
    (row,) = read(processes=True).devices
    assert row.device.processes == (
        Process(12, "compute+graphics", None, 500),
        Process(13, "compute", None, None),
        Process(14, "graphics", None, 7),
    )


@pytest.mark.parametrize("garbage", ["0:500", "4294967295:500", "12:99999999"])
def test_a_scrambled_list_is_no_list(fake_driver: Fake, garbage: str) -> None:
    fake_driver(f"nvml.count=1\nprocesses={garbage}\n")
    (row,) = read(processes=True).devices
    assert row.device.processes is None
    assert row.unknown["processes"].startswith("NVML's list of processes is garbled (PID ")


def test_mig_instances_are_rows_of_their_own(fake_driver: Fake) -> None:
    fake_driver("nvml.count=1\nmig=1\n0.mig.used=0x5\n102.name=NVIDIA Fake 100 MIG 1g\n102.memory.total=200\n")
    card, first, second = read().devices
    names = ("MIG-00000000-0000-0000-0000-000000000100", "MIG-00000000-0000-0000-0000-000000000102")
    assert card.device.mig == Mig(True, True, names)
    assert (first.device.uuid, second.device.uuid) == names
    assert (second.device.name, second.device.memory_total_bytes) == ("NVIDIA Fake 100 MIG 1g", 200)
    assert (second.device.parent_uuid, second.device.nvml_index) == (FIRST, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "Driver Not Loaded"),
        (12, "NVML cannot be loaded (unknown reason)"),
        (18, "RM has detected an NVML/RM version mismatch"),
        (999, "Unknown Error"),
    ],
)
def test_a_start_that_fails_tells_its_code_in_nvmls_words(fake_driver: Fake, code: int, words: str) -> None:
    fake_driver(f"nvml.init=!{code}\n")
    reading = read()
    assert (reading.code, reading.error, reading.devices) == (code, words, ())


def test_a_library_that_cannot_be_loaded_is_told_in_the_loaders_words(fake_driver: Fake) -> None:
    script = fake_driver(nvml=False)
    reading = read()
    library = script.parent / "libnvidia-ml.so.1"
    assert (reading.code, reading.error) == (12, f"NVML cannot be loaded ({library}: file too short)")


@pytest.mark.parametrize(
    ("script", "pids"),
    [
        ("compute_mode=3\nprocesses=7:100\n", [7]),
        ("compute_mode=3\nprocesses=\n", []),
        ("utilization=100\nprocesses=\n", []),
        # Who is at work is told only where it is asked for.
        ("utilization=100\nprocesses=7:100\n", None),
        ("utilization=99\nprocesses=\n", None),
        ("compute_mode=0\nprocesses=7:100\n", None),
    ],
)
def test_who_has_a_card_alone_and_that_nobody_is_on_a_busy_one_is_read(
    fake_driver: Fake, script: str, pids: list[int] | None
) -> None:
    fake_driver(f"nvml.count=1\n{script}")
    with NvmlReader(30.0) as reader:
        reader.ask()
        (row,) = reader.reading().devices
    processes = row.device.processes
    assert (None if processes is None else [process.pid for process in processes]) == pids


def test_a_driver_has_time_to_bring_up_each_card(tmp_path: Path) -> None:
    assert nvml_timeout_s(tmp_path) == 5.0
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / "dev" / name).touch()
    assert nvml_timeout_s(tmp_path) == 14.0
    # Nodes are made for some of those on the bus.
    for index in range(8):
        folder = tmp_path / f"sys/bus/pci/devices/0000:{index}1:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n" if index else "0x068000\n")
    assert nvml_timeout_s(tmp_path) == 5.0 + 7 * 3.0


@pytest.mark.slow
def test_a_driver_that_starts_its_cards_first_is_waited_for_and_that_is_said(
    fake_driver: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reads, "ANSWER_S", 0.5)
    monkeypatch.setattr(driver_reads, "nvml_timeout_s", lambda: 60.0)
    fake_driver("nvml.init=slow\nnvml.count=2\n")
    told: list[str] = []
    with NvmlReader(waiting=told.append) as reader:
        reader.ask()
        reading = reader.reading()
    assert (reading.code, reading.error, len(reading.devices)) == (0, None, 2) and (reading.start_s or 0) > 1.0
    assert [text.rpartition(":")[0] for text in told] == ["NVML has not answered within 0.5 s; waiting up to 60 s"]


@pytest.mark.slow
def test_a_card_that_hangs_after_the_start_is_not_waited_for_as_a_start(
    fake_driver: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reads, "ANSWER_S", 2.0)
    monkeypatch.setattr(driver_reads, "GPU_START_S", 0.0)
    monkeypatch.setattr(driver_reads, "nvml_timeout_s", lambda: 600.0)
    fake_driver("1.power=hang\n")
    told: list[str] = []
    with NvmlReader(waiting=told.append) as reader:
        reader.ask()
        assert reader.reading().error == "NVML did not answer within 2 s"
    assert told == []


@pytest.mark.slow
def test_a_card_that_hangs_costs_neither_the_first_nor_its_own_identity(fake_driver: Fake) -> None:
    fake_driver("nvml.count=3\n1.power=hang\n")
    reading = read(timeout_s=HANG_S)
    first, second, third = (row.device for row in reading.devices)
    late = "NVML did not answer within 2 s"
    assert reading.error == late
    assert first == HEALTHY
    assert (second.uuid, second.state) == (SECOND, f"not answering: {late}")
    assert third.state == "not read: NVML stopped at another device"
    assert reading.devices[2].unknown == {"*": late}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["handle", "name", "bus"])
def test_a_card_that_hangs_before_it_is_identified_is_known_by_its_number(fake_driver: Fake, key: str) -> None:
    fake_driver(f"nvml.count=3\n1.{key}=hang\n")
    first, second, third = (row.device for row in read(timeout_s=HANG_S).devices)
    assert (first.uuid, second.nvml_index, third.nvml_index) == (FIRST, 1, 2)
    assert second.state == "not answering: NVML did not answer within 2 s"
    assert first.state == third.state == "not read: NVML stopped at another device"


def test_a_reader_that_somebody_ended_accuses_no_card(fake_driver: Fake) -> None:
    fake_driver("nvml.count=2\n1.power=hang\n")
    with NvmlReader(60.0) as reader:
        reader.ask()
        assert reader._session is not None
        first = reader._session.receive(60.0)
        assert first is not None
        os.kill(reader._session.pid, signal.SIGKILL)
        reading = reader.reading()
    killed = "the process that asks NVML ended early (SIGKILL)"
    assert reading.error == killed
    assert not any((row.device.state or "").startswith("not answering") for row in reading.devices)


@pytest.mark.parametrize(
    ("code", "state"), [(8, "no power"), (11, "no interrupts"), (15, "lost"), (16, "reset required")]
)
@pytest.mark.parametrize("key", ["handle", "name", "power"])
def test_a_card_that_refuses_to_be_used_has_its_state(fake_driver: Fake, code: int, state: str, key: str) -> None:
    fake_driver(f"1.{key}=!{code}\n")
    first, second = (row.device for row in read().devices)
    assert (first.state, second.state) == (None, state)


@pytest.mark.slow
def test_a_child_that_hung_is_replaced_at_the_next_question(fake_driver: Fake) -> None:
    script = fake_driver("nvml.count=1\npower=hang\n")
    with NvmlReader(HANG_S) as reader:
        reader.ask()
        assert reader.reading().error == "NVML did not answer within 2 s"
        script.write_text("nvml.count=1\npower=100000\n")
        reader.ask()
        (row,) = timeless(reader.reading()).devices
    assert row.device == dataclasses.replace(HEALTHY, power_w=100.0)


def test_one_child_answers_again_and_starts_nvml_anew_after_a_failed_start(fake_driver: Fake) -> None:
    script = fake_driver("nvml.init=!9\n")
    with NvmlReader(30.0) as reader:
        reader.ask()
        assert reader.reading().code == 9
        script.write_text("nvml.count=1\n")
        reader.ask()
        assert [row.device for row in timeless(reader.reading()).devices] == [HEALTHY]
        script.write_text("nvml.count=1\ntemperature=50\n")
        reader.ask()
        assert reader.reading().devices[0].device.temperature_celsius == 50.0


def test_without_nvidia_ml_py_the_reason_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(nvml_read, "claim_stdout", lambda: said.append)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(sys, "stdin", iter(['{"processes": false, "links": false}\n']))
    assert nvml_read.main() == 0
    assert said == [
        {"driver": {"code": None, "error": "nvidia-ml-py is not installed"}},
        {"end": True},
    ]


def test_an_older_nvidia_ml_py_lacks_a_function_and_no_more() -> None:
    class NVMLError(Exception):
        pass

    old = types.SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetPowerUsage=lambda handle: 1500)
    row = DeviceFields()
    power, limit = (field for field in nvml_fields.DETAILS if field.name in ("power_w", "power_limit_w"))
    row.read(old, object(), (power, limit))
    assert row.device == {"kind": "cuda", "power_w": 1.5}
    assert row.unknown == {"power_limit_w": "this nvidia-ml-py has no nvmlDeviceGetEnforcedPowerLimit"}
