"""What lies below NVIDIA's libraries, read from a root of our own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpucheck.machine import kernel_driver, stack
from gpucheck.machine.host import PciDevice
from gpucheck.machine.stack import DeviceNode

UBUNTU = "usr/lib/x86_64-linux-gnu"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def pci(
    root: Path, address: str, device: str, class_code: str, driver: str | None = None, vendor: str = "0x10de"
) -> None:
    folder = root / "sys/bus/pci/devices" / address
    write(folder, {"vendor": vendor + "\n", "device": device + "\n", "class": class_code + "\n"})
    if driver:
        link(folder / "driver", f"../../../../bus/pci/drivers/{driver}")


def test_an_empty_root_is_unknown_and_not_empty_of_gpus(tmp_path: Path) -> None:
    seen = stack.read(tmp_path)
    assert (seen.devices, seen.modules, seen.built_for) == (None, None, None)
    assert (seen.secure_boot, seen.fabric_manager) == (None, None)
    assert (seen.log, seen.log_error) == (None, "No such file or directory")
    assert (seen.nodes, seen.libraries, seen.switches) == ((), (), 0)
    assert seen.node("/dev/nvidiactl") is None and seen.libraries == ()


def test_cards_bridges_and_the_drivers_that_hold_them(tmp_path: Path) -> None:
    pci(tmp_path, "0000:41:00.0", "0x2335", "0x030200", "nvidia")
    pci(tmp_path, "0000:41:00.1", "0x22bb", "0x040300", "snd_hda_intel")
    pci(tmp_path, "0000:42:00.0", "0x22a3", "0x068000")
    pci(tmp_path, "0000:43:00.0", "0x1638", "0x030000", "amdgpu", vendor="0x1002")
    seen = stack.read(tmp_path)
    assert [device for device in seen.devices or () if device.is_gpu] == [
        PciDevice("0000:41:00.0", "0x2335", "0x030200", "nvidia")
    ]
    assert len(seen.devices or ()) == 3
    assert seen.switches == 1


@pytest.mark.parametrize(
    "place",
    [
        "updates/dkms/nvidia.ko.zst",  # Ubuntu and Debian, by DKMS
        "kernel/nvidia-580/nvidia.ko",  # Ubuntu, built by Canonical
        "extra/nvidia.ko.xz",  # RHEL, by DKMS
        "extra/nvidia/nvidia.ko.xz",  # Fedora, by akmods
        "extramodules/nvidia.ko.zst",  # Arch
        "updates/nvidia.ko",  # SUSE
        "kernel/drivers/video/nvidia.ko",  # NVIDIA's own installer
    ],
)
def test_the_module_on_disk_wherever_a_distribution_puts_it(tmp_path: Path, place: str) -> None:
    write(tmp_path, {f"lib/modules/6.8.0-45-generic/{place}": "", "lib/modules/6.8.0-51-generic/modules.dep": ""})
    assert stack.read(tmp_path).built_for == ("6.8.0-45-generic",)


def test_nodes_are_opened_and_not_only_looked_at(tmp_path: Path) -> None:
    write(tmp_path, {"dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia-modeset": "", "dev/null": ""})
    (tmp_path / "dev/nvidia-uvm").mkdir()  # opens for nobody to write
    nodes = {node.path: node for node in stack.read(tmp_path).nodes}
    assert nodes["/dev/nvidiactl"] == DeviceNode("/dev/nvidiactl", True, True, 0)
    assert nodes["/dev/nvidia-uvm"].error == errno.EISDIR
    # A card's own node would wake the card: only its rights are looked at.
    assert nodes["/dev/nvidia0"] == DeviceNode("/dev/nvidia0", True, True, None)
    assert set(nodes) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"}


def test_an_open_that_hangs_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "OPEN_TIMEOUT_S", 0.5)
    hangs = stack.OPEN_PROGRAM.replace(
        "os.close(", "path == 'hang' and __import__('time').sleep(60)\n        os.close("
    )
    monkeypatch.setattr(stack, "OPEN_PROGRAM", hangs)
    file = tmp_path / "file"
    file.touch()
    assert stack.opened([str(file), "hang", str(file)]) == [0, errno.ETIMEDOUT, None]
    assert stack.opened([]) == []


@pytest.mark.parametrize(("names", "runs"), [(("bash", "nv-fabricmanage"), True), (("bash",), False)])
def test_a_fabric_manager_is_a_process(tmp_path: Path, names: tuple[str, ...], runs: bool) -> None:
    pci(tmp_path, "0000:41:00.0", "0x2335", "0x030200")
    write(tmp_path, {f"proc/{number}/comm": name + "\n" for number, name in enumerate(names, 7)})
    assert stack.read(tmp_path).fabric_manager is runs


def test_wsl_and_jetson(tmp_path: Path) -> None:
    write(tmp_path, {"usr/lib/wsl/lib/libcuda.so.1": "", "etc/nv_tegra_release": "# R36\nx\n"})
    seen = stack.read(tmp_path)
    assert (seen.wsl_driver, seen.jetson) == (True, "# R36")


# --- libraries --------------------------------------------------------------------------------------------------------


def install(root: Path, folder: str, version: str, name: str = "libcuda.so") -> str:
    write(root, {f"{folder}/{name}.{version}": "elf"})
    link(root / folder / f"{name}.1", f"{name}.{version}")
    return str(root / folder / f"{name}.1")


def test_the_loaders_order_is_the_variable_then_its_configuration_then_what_is_built_in(tmp_path: Path) -> None:
    write(tmp_path, {"etc/ld.so.conf": "include ld.so.conf.d/*.conf\n", "etc/ld.so.conf.d/nv.conf": "/opt/nv # ours\n"})
    own = install(tmp_path, "home/me/lib", "535.1")
    configured = install(tmp_path, "opt/nv", "570.2")
    built_in = install(tmp_path, UBUNTU, "580.95.05")
    install(tmp_path, "usr/local/cuda/compat", "590.1")
    seen = stack.read(tmp_path, library_path="/nowhere::/home/me/lib")
    assert [library.path for library in seen.path_libraries] == [own]
    assert [library.path for library in seen.libraries] == [configured, built_in]
    assert [library.version for library in seen.stray_libraries] == ["590.1"]
    assert not seen.stray_libraries[0].is_usable


# --- the kernel's log -------------------------------------------------------------------------------------------------


def test_records_become_the_lines_that_matter(tmp_path: Path) -> None:
    records = (
        "6,1,1000000,-;usb 1-1: new device\n"
        "3,2,12345678,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has"
        "\\x0aNVRM: fallen off the bus and is not responding to commands.\n"
        " SUBSYSTEM=pci\n DEVICE=+pci:nvidia\n"
        "4,3,13000000,-;nouveau 0000:01:00.0: unknown chipset\n"
    )
    write(tmp_path, {"dev/kmsg": records})
    assert kernel_driver.log(tmp_path) == (
        (
            "[12.345678] NVRM: The NVIDIA GPU 0000:b3:00.0",
            "[12.345678] NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "[12.345678] NVRM: fallen off the bus and is not responding to commands.",
            "[13.000000] nouveau 0000:01:00.0: unknown chipset",
        ),
        None,
    )


def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    tool = tmp_path / "bin/journalctl"
    write(tmp_path, {"bin/journalctl": f"#!/bin/sh\n{program}\n"})
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands in for the journal")
@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (
            "echo '[ 5.0] host kernel: NVRM: Xid 79'; echo '[ 6.0] host kernel: usb'",
            ("[ 5.0] host kernel: NVRM: Xid 79",),
        ),
        ("echo '[ 6.0] host kernel: usb'", ()),
        ("exit 1", None),
        ("true", None),  # a user outside its group is shown nothing
    ],
)
def test_the_journal_where_the_device_is_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, lines: tuple[str, ...] | None
) -> None:
    journal(tmp_path, monkeypatch, program)
    assert kernel_driver.log_from_journal() == lines
