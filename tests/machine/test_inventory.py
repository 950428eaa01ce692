"""The adapters put together: by hand-made readings, and once through both compiled libraries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from gpucheck.machine import host, inventory
from gpucheck.machine.choose import MASK
from gpucheck.machine.driver_reads import (
    DeviceReading,
    DriverReading,
    NvmlReader,
)
from gpucheck.machine.inventory import Inventory, MachineReading, join, select_devices
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Driver, Facts, Host, Mig, Python, TorchBuild

Fake = Callable[..., Path]

CPU = Device(kind="cpu", id="cpu", name="a CPU")
AROUND = MachineReading(
    host=Host(system="Linux", memory_total_bytes=64_000, memory_available_bytes=48_000),
    cpu=CPU,
    python=Python("3.12.3", "CPython", "/usr/bin/python3"),
    torch=TorchBuild(version="2.13.0", built_for="cuda"),
)
NVML = DriverReading(
    code=0, start_s=0.1, path="/lib/nvml", driver_version="580.95.05", nvml_version="13.580", cuda_version="13.0"
)
CUDA = DriverReading(code=0, path="/lib/libcuda", version="13.0")


def by_nvml(index: int, **fields: object) -> DeviceReading:
    told = {
        "uuid": f"GPU-{index}",
        "name": "H200",
        "memory_total_bytes": 1000,
        "memory_used_bytes": 10,
        "memory_source": "nvml v2",
        **fields,
    }
    return DeviceReading(Device(kind="cuda", nvml_index=index, **told))  # type: ignore[arg-type]


def by_cuda(index: int, uuid: str | None, **fields: object) -> DeviceReading:
    told = {
        "name": "from CUDA",
        "memory_total_bytes": 990,
        "multiprocessors": 132,
        "memory_bus_width_bits": 6144,
        "integrated": False,
        **fields,
    }
    return DeviceReading(Device(kind="cuda", cuda_index=index, uuid=uuid, **told))  # type: ignore[arg-type]


def joined(
    nvml: list[DeviceReading], cuda: list[DeviceReading], environment: dict[str, str] | None = None, code: int = 0
) -> Facts:
    return join(
        DriverReading(code=0, driver_version="580.95.05", devices=tuple(nvml)),
        DriverReading(code=code, error=None if code in (0, 100) else "words", devices=tuple(cuda)),
        AROUND,
        environment or {},
    )


def order(facts: Facts) -> list[tuple[str | None, int | None, int | None, str | None]]:
    return [(device.id, device.cuda_index, device.nvml_index, device.state) for device in facts.devices]


# --- joining ----------------------------------------------------------------------------------------------------------


def test_rows_stand_in_cudas_order_with_nvmls_index_beside_and_the_cpu_last() -> None:
    facts = joined(
        [by_nvml(0), by_nvml(1), by_nvml(2)], [by_cuda(0, "GPU-2"), by_cuda(1, "GPU-0"), by_cuda(2, "GPU-1")]
    )
    assert order(facts) == [
        ("cuda:0", 0, 2, None),
        ("cuda:1", 1, 0, None),
        ("cuda:2", 2, 1, None),
        ("cpu", None, None, None),
    ]


def test_nvmls_word_counts_and_libcuda_fills_what_it_lacks() -> None:
    facts = joined([by_nvml(0, name=None, memory_total_bytes=None, memory_source=None)], [by_cuda(0, "GPU-0")])
    device = facts.devices[0]
    assert (device.name, device.multiprocessors, device.memory_total_bytes) == ("from CUDA", 132, 990)
    assert device.memory_bus_width_bits == 6144
    assert device.memory_source == "libcuda"
    whole = joined([by_nvml(0)], [by_cuda(0, "GPU-0")]).devices[0]
    assert (whole.name, whole.memory_total_bytes, whole.memory_source) == ("H200", 1000, "nvml v2")


def test_a_device_that_the_mask_hides_stays_with_its_reason() -> None:
    facts = joined([by_nvml(0), by_nvml(1)], [by_cuda(0, "GPU-1")], {"CUDA_VISIBLE_DEVICES": "1", "SECRET": "x"})
    assert order(facts)[1] == (None, None, 0, "hidden by CUDA_VISIBLE_DEVICES=1")
    assert facts.environment == {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize("mask", ["0", "0,1", "GPU-1"])
def test_a_device_that_the_mask_names_is_not_hidden_by_it(mask: str) -> None:
    """A scheduler sets the mask for every job: where CUDA shows nothing all the same it is not why."""
    states = [device.state for device in joined([by_nvml(0), by_nvml(1)], [], {MASK: mask}, code=100).devices[:-1]]
    named = {"0": [0], "0,1": [0, 1], "GPU-1": [1]}[mask]
    assert states == ["not shown by CUDA" if place in named else f"hidden by {MASK}={mask}" for place in (0, 1)]


def test_libcuda_alone_gives_name_memory_and_capability_and_nvmls_reason_for_the_rest() -> None:
    facts = join(
        DriverReading(code=18, error="mismatch"),
        DriverReading(code=0, version="13.0", devices=(by_cuda(0, "GPU-0", compute_capability="9.0"),)),
        AROUND,
        {},
    )
    device = facts.devices[0]
    assert (device.id, device.name, device.memory_total_bytes) == ("cuda:0", "from CUDA", 990)
    assert (device.compute_capability, device.memory_source) == ("9.0", "libcuda")
    assert facts.unknown == {"/devices/0": "mismatch"}
    assert facts.driver is not None
    assert (facts.driver.version, facts.driver.cuda_version, facts.driver.nvml_code) == (None, "13.0", 18)


def test_without_uuids_the_pci_address_joins() -> None:
    facts = joined(
        [by_nvml(0, uuid=None, pci_address="0000:41:00.0"), by_nvml(1, uuid=None, pci_address="0000:81:00.0")],
        [by_cuda(0, "GPU-b", pci_address="0000:81:00.0")],
    )
    assert [(device.cuda_index, device.nvml_index, device.uuid) for device in facts.devices[:2]] == [
        (0, 1, "GPU-b"),
        (None, 0, None),
    ]


@pytest.mark.parametrize(
    ("nvml", "cuda"),
    [
        ("GPU-0ABC", "GPU-0abc"),
        ("MIG-0ABC", "MIG-GPU-0abc"),
    ],
)
def test_a_uuid_is_the_same_however_a_library_spells_it(nvml: str, cuda: str) -> None:
    facts = joined([by_nvml(3, uuid=nvml), by_nvml(4, uuid="GPU-other")], [by_cuda(0, cuda)])
    assert order(facts)[:1] == [("cuda:0", 0, 3, None)] and len(facts.devices) == 3


def test_a_mig_instance_joins_by_its_own_uuid_and_its_card_says_where_to_look() -> None:
    card = by_nvml(0, mig=Mig(True, True, ("MIG-a", "MIG-b")), pci_address="0000:41:00.0")
    parts = [
        DeviceReading(Device(kind="cuda", uuid=uuid, parent_uuid="GPU-0", pci_address="0000:41:00.0"))
        for uuid in ("MIG-a", "MIG-b")
    ]
    facts = joined([card, *parts], [by_cuda(0, "MIG-b", parent_uuid="GPU-0", pci_address="0000:41:00.0")])
    assert [(device.uuid, device.cuda_index, device.state) for device in facts.devices[:3]] == [
        ("MIG-b", 0, None),
        ("GPU-0", None, "in MIG mode: its instances are the devices"),
        ("MIG-a", None, "not shown by CUDA, which shows one MIG instance"),
    ]


@pytest.mark.parametrize(
    ("script", "cuda", "shared"),
    [
        # As GB10 answers: memory is not supported, by both calls, or zero; with CUDA, and by its name alone.
        ("name=NVIDIA GB10\nmemory=!3\nmemory.v1=!3\nintegrated=1\n", True, True),
        ("name=NVIDIA GB10\nmemory.total=0\nmemory.used=0\nmemory.reserved=0\nintegrated=1\n", True, True),
        ("name=NVIDIA GB10\nmemory=!3\nmemory.v1=!3\n", False, True),
        # These have memory of their own, and NVML tells it.
        ("name=NVIDIA GH200 480GB\n", True, False),
        ("name=NVIDIA H100\nmemory=!3\nmemory.v1=!3\n", False, False),
    ],
)
def test_memory_that_is_shared_with_the_host(fake_driver: Fake, script: str, cuda: bool, shared: bool) -> None:
    fake_driver(f"nvml.count=1\ncuda.order=0\n{script}", cuda=cuda)
    facts = inventory.read()
    device, around = facts.devices[0], facts.host
    assert (device.memory_source == "host (shared with the CPU)") == shared
    if shared:
        assert around is not None and device.memory_total_bytes is not None
        assert around.memory_available_bytes is not None
        assert device.memory_free_bytes == min(around.memory_available_bytes, device.memory_total_bytes)


def test_the_numa_node_comes_from_sysfs() -> None:
    machine = MachineReading(
        AROUND.host, CPU, AROUND.python, AROUND.torch, numa_nodes={"0000:41:00.0": 1, "0000:81:00.0": 0}
    )
    nvml = DriverReading(
        code=0,
        devices=(
            by_nvml(0, pci_address="0000:41:00.0"),
            by_nvml(1, pci_address="0000:81:00.0"),
        ),
    )
    facts = join(nvml, CUDA, machine, {})
    assert [device.numa_node for device in facts.devices[:2]] == [1, 0]


def test_choosing_devices_moves_their_reasons_along() -> None:
    facts = Facts(
        devices=(Device(kind="cuda", cuda_index=0), Device(kind="cuda", cuda_index=1), CPU),
        unknown={
            "/driver/version": "a",
            "/devices/0/power_w": "b",
            "/devices/1/power_w": "c",
            "/devices/1/pcie/width": "d",
        },
    )
    kept = select_devices(facts, lambda device: device.cuda_index == 1)
    assert kept.devices == (facts.devices[1],)
    assert kept.unknown == {"/driver/version": "a", "/devices/0/power_w": "c", "/devices/0/pcie/width": "d"}


# --- both readers at once ---------------------------------------------------------------------------------------------


def test_a_wedged_nvml_leaves_what_libcuda_tells(fake_driver: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver("nvml.init=hang\ncuda.order=0\n")
    monkeypatch.setattr(inventory, "NvmlReader", lambda timeout_s, **named: NvmlReader(0.5, **named))
    facts = inventory.read()
    assert [(device.name, device.memory_total_bytes) for device in facts.devices[:-1]] == [("NVIDIA Fake 100", 1000)]
    assert facts.driver is not None
    assert facts.driver.nvml_error == "NVML did not answer within 0.5 s"


# --- the small readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n",
            Driver(kernel_module_version="580.95.05", kernel_module_open=True, kernel_module_loaded=True),
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n",
            Driver(kernel_module_version="535.183.01", kernel_module_open=False, kernel_module_loaded=True),
        ),
        ("something else\n", Driver(kernel_module_version=None, kernel_module_open=False, kernel_module_loaded=True)),
    ],
)
def test_the_kernel_modules_own_version(tmp_path: Path, text: str, told: Driver) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert host.kernel_driver(tmp_path) == told


@pytest.mark.skipif(not os.path.isdir("/proc/self/ns"), reason="needs Linux' /proc")
def test_a_pid_is_named_only_where_it_is_the_same_process(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    own = os.getpid()
    (tmp_path / f"proc/{own}").mkdir()
    maps = tmp_path / f"proc/{own}/maps"
    inside = tmp_path / "proc/self/ns/pid"
    # In another PID namespace the number may be anyone's, …
    inside.symlink_to("pid:[4026532000]")
    maps.write_text("7f00 r-xp 0 0 0 /usr/lib/libc.so.6\n")
    assert host.gpu_process_name(own, tmp_path) is None
    # … unless that process uses the driver.
    maps.write_text("7f00 rw-s 0 0 0 /dev/nvidia0\n")
    assert host.gpu_process_name(own, tmp_path) is not None
    # On the machine itself every PID is the one that NVML means.
    maps.unlink()
    inside.unlink()
    inside.symlink_to(host.HOST_NAMESPACE)
    assert host.gpu_process_name(own, tmp_path) is not None
    assert host.gpu_process_name(2**22, tmp_path) is None


# --- the reasons as a whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "libraries"),
    [
        ("", {}),
        ("1.handle=!15\n0.power=!3\n0.pcie.width=!4\n", {}),
        ("nvml.init=!9\n", {}),
        ("cuda.init=!999\n1.memory=!3\n1.memory.v1=!3\n", {}),
        ("nvml.count=1\nmig=1\n0.mig.used=0x3\n0.ecc=!3\n", {}),
        ("1.power=crash\nprocesses=7:-\n", {}),
        ("driver=!999\ncuda=!3\nlibcuda=!3\nuuid=!2\nbus=!3\nname=!3\n", {"without": ("MEMORY_V2", "UUID_V2")}),
        ("", {"cuda": False}),
        ("", {"nvml": False, "cuda": False}),
    ],
)
def test_every_reason_is_that_of_an_unknown(fake_driver: Fake, script: str, libraries: dict[str, object]) -> None:
    fake_driver(script, **libraries)
    facts = to_json(inventory.read(processes=True))
    for pointer in facts["unknown"]:
        found = facts
        for step in pointer.split("/")[1:]:
            found = found[int(step)] if isinstance(found, list) else found[step]
        assert found in (None, []) or pointer.count("/") == 2, f"{pointer} is {found}"


# --- a second reading -------------------------------------------------------------------------------------------------


def test_a_card_that_is_lost_during_a_watch_stays_one_row(fake_driver: Fake) -> None:
    script = fake_driver("nvml.count=3\ncuda.order=0,1,2\nserial=s\n")
    with Inventory(with_links=True) as opened:
        first = opened.read()
        script.write_text("nvml.count=3\ncuda.order=0,1,2\n1.handle=!15\n")
        second = opened.read()
    assert [device.state for device in first.devices[:-1]] == [None] * 3
    assert len(second.devices) == len(first.devices)
    was, gone = first.devices[1], second.devices[1]
    assert (gone.id, gone.nvml_index, gone.uuid, gone.name, gone.serial) == (
        was.id,
        1,
        was.uuid,
        "NVIDIA Fake 100",
        "s",
    )
    assert gone.state == "lost"
    assert second.unknown["/devices/1"] == "the device is lost"


def test_a_lost_card_is_found_by_elimination_at_the_first_reading(fake_driver: Fake) -> None:
    fake_driver("nvml.count=3\ncuda.order=0,1,2\n1.handle=!15\n")
    facts = inventory.read()
    assert [(device.cuda_index, device.nvml_index, device.state) for device in facts.devices[:-1]] == [
        (0, 0, None),
        (1, 1, "lost"),
        (2, 2, None),
    ]
    two = "nvml.count=3\ncuda.order=0,1,2\n1.handle=!15\n2.handle=!15\n"
    fake_driver(two)
    assert [(device.cuda_index, device.nvml_index) for device in inventory.read().devices[:-1]] == [
        (0, 0),
        (1, None),
        (2, None),
        (None, 1),
        (None, 2),
    ]


def test_counters_of_a_second_reading(fake_driver: Fake) -> None:
    script = fake_driver("nvml.count=1\ncuda.order=0\npcie.replays=5\nviolation.thermal=1000000\n")
    with Inventory() as opened:
        first = opened.read()
        script.write_text("nvml.count=1\ncuda.order=0\npcie.replays=9\nviolation.thermal=3000000\n")
        second = opened.read()
    assert first.devices[0].changes is None
    grown = second.devices[0].changes
    assert grown is not None and grown.pcie_replays == 4 and grown.span_s > 0
    assert grown.violations_s["thermal"] == pytest.approx(0.002)
    assert grown.lasting_clock_reasons == ("gpu_idle",)


def test_facts_are_read_again_without_libcuda_and_torch(fake_driver: Fake) -> None:
    script = fake_driver(f"nvml.count=2\ncuda.order=1,0\nprocesses={os.getpid()}:5\n")
    with Inventory(with_processes=True, with_links=True) as machine:
        facts = machine.read()
    script.write_text("nvml.count=2\ncuda.init=hang\nutilization=97\nprocesses=\n1.power=!999\n")
    seen = machine.again(facts)
    assert [(device.id, device.cuda_index, device.nvml_index) for device in seen.devices[:-1]] == [
        ("cuda:0", 0, 1),
        ("cuda:1", 1, 0),
    ]
    assert [(device.utilization_percent, device.processes) for device in seen.devices[:-1]] == [(97.0, ())] * 2
    assert all(device.changes is not None for device in seen.devices[:-1])
    assert [device.multiprocessors for device in seen.devices] == [device.multiprocessors for device in facts.devices]
    assert seen.unknown["/devices/0/power_w"] == "NVML returns: unknown error"
    assert seen.devices[-1] == facts.devices[-1]
    assert (seen.host, seen.torch, seen.driver) == (facts.host, facts.torch, replace_start(seen, facts).driver)


def replace_start(seen: Facts, facts: Facts) -> Facts:
    """The facts with the time that NVML's second start took."""
    assert seen.driver is not None and facts.driver is not None
    return replace(facts, driver=replace(facts.driver, nvml_start_s=seen.driver.nvml_start_s))


def test_what_cannot_be_read_again_stays_as_it_is(fake_driver: Fake) -> None:
    fake_driver("nvml.init=!9\ncuda.order=0\n")
    with Inventory() as machine:
        facts = machine.read()
    assert machine.again(facts) is facts
    assert Inventory().again(Facts()) == Facts()


def test_the_kernels_log_is_read_beside_the_cards_and_one_that_cannot_be_read_says_so(
    fake_driver: Fake, tmp_path: Path
) -> None:
    fake_driver("nvml.count=2\n")
    machine = FakeMachine(tmp_path / "root").card(0x10).card(0x11)
    (machine.root / "dev/kmsg").unlink()
    unread = inventory.read(root=machine.root)
    assert (unread.xids, unread.unknown["/driver/xids"]) == (None, "No such file or directory")
    machine.log("NVRM: Xid (PCI:0000:11:00): 119, pid=77, Timeout")
    with Inventory(root=machine.root) as opened:
        read = opened.read()
    assert "/driver/xids" not in read.unknown
    assert [(error.number, error.pci_address, error.at is None) for error in read.xids or ()] == [
        (119, "0000:11:00.0", False)
    ]
    machine.log("NVRM: Xid (PCI:0000:10:00): 79, pid=77, GPU has fallen off the bus.")
    assert [error.number for error in opened.again(read).xids or ()] == [119]
