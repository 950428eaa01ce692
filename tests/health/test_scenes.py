"""Machines with four GPUs, from the fakes of NVML, libcuda and the kernel to the findings of `devices`: what asks for
something, with the command to type, and healthy machines that look odd. Each answer was written before it was run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from gpucheck.devices.command import judge
from gpucheck.health import nvidia
from gpucheck.machine.inventory import Inventory

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is faked as Linux has it"),
    pytest.mark.slow,
]
Fake = Callable[..., Path]
GIB = 2**30
# Four GPUs of one board that a job uses fully. Of two lines of a key the first counts: those of a scene stand first.
BUSY = f"""nvml.count=4 cuda.order=0,1,2,3 utilization=100 clock_reasons=0 processes=4711:{70 * GIB} temperature=64
gpu_max=87 slowdown=92 shutdown=95 power=650000 sm_clock=1980 pcie.width=16 pcie.generation=5 pcie.max_generation=5
memory.total={80 * GIB} memory.used={71 * GIB} memory.reserved={GIB} bar1.total={128 * GIB} nvlinks=2 fabric=3
sram.exceeded=0 banks.max=600"""
WORDS = {
    "IDLE": f"utilization=0 clock_reasons=1 processes= memory.used={GIB} power=70000 sm_clock=345 pcie.generation=1",
    "ALONE": "nvml.count=1 cuda.order=0",
    "DESKTOP": f"nvlinks=!3 fabric=!3 ecc=!3 recovery_action=!3 bar1.total={GIB // 4}",
    "BUSY2": "2.utilization=100 2.clock_reasons=0 2.sm_clock=1980 2.pcie.generation=5",
    "HELD": f"2.memory.used={60 * GIB}",
}
SXID, XID = "log nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): ", "log NVRM: Xid (PCI:0000:12:00): "
NO_MASK, LOADED = (
    "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
    "NVRM: loading NVIDIA UNIX",
)
RM_INIT = "RmInitAdapter failed! (0x62:0x65:1792)"
# By what asks, its verdict and the beginning of its command: the scenes, in parts. A part is words of the libraries'
# script, a line of the kernel's log (`sxid`, `xid`: of an NVSwitch, of the third GPU), or a method of FakeMachine.
SCENES: dict[str, tuple[str, ...]] = {
    "log.sxid fail drain the node, then reboot it; or reset all GPUs and NVSwitches": (
        "sxid 22003, Fatal, Link 04 Minion Halt",
        "sxid 23004, Fatal, Link 61 ingress invalid ACL (First)",
        "sxid 10003, Non-fatal, Host_unhandled_interrupt",
        "IDLE | sxid 19084, Non-fatal, SOE heartbeat",
    ),
    "log.sxid fail in a virtual machine restart the guest; else drain the node": (
        "IDLE | sxid 24007, Fatal, Link 30 timeout (First) | sxid 24007, Severity 1 Engine 30 | sxid 24007, Data {0x1}",
        "sxid 24007, Severity 1 Engine instance 30",
        "sxid 12028, Non-fatal, Link 32 egress non-posted PRIV error",
        "IDLE | sxid 11004, Non-fatal, Link 32 ingress invalid ACL",
    ),
    "log.sxid warn check fans": ("sxid 10004, Non-fatal, Host_thermal_event_start",),
    "log.xid fail drain the node, then reset all GPUs that NVLink joins": (
        "xid 145, NVLink: RLW Fatal XC0 i0 Link 12",
        "xid 74, pid=7, NVLink: fatal error detected on link 2",
    ),
    "log.xid warn drain the node, then reset all GPUs that NVLink joins": (
        "xid 149, NVLink: NETIR Nonfatal XC0 i0 Link 12",
    ),
    "log.nvlink fail drain the node, then sudo reboot": (f"nvlinks=!3 | log {NO_MASK}",),
    "log.nvlink warn drain the node, then sudo reboot": (f"log {NO_MASK}",),
    "devices.answers fail drain and power-cycle the node": (
        "2.handle=!15 | xid 79, GPU has fallen off the bus. | sxid 20034, Fatal, Link 30 LTSSM Fault Up",
    ),
    # One of several does not start.
    "devices.unlisted fail drain and power-cycle the node": (
        f"IDLE | card 0x14 nvidia | log NVRM: GPU 0000:14:00.0: {RM_INIT}",
        "card 0x14 nvidia | log NVRM: GPU 0000:14:00.0: RmInitAdapter: Cannot initialize GSP firmware RM",
    ),
    "devices.unlisted fail shut down the node and connect all power cables": (
        "card 0x14 nvidia | log NVRM: GPU 0000:14:00.0: GPU does not have the necessary power cables connected.",
    ),
    "devices.unlisted warn install a driver that supports the GPU": (
        r"card 0x14 nvidia | log NVRM: GPU 0000:14:00.0\x0aNVRM: installed in this system is not supported by the",
    ),
    "log.xid fail drain and power-cycle the node": (
        "card 0x14 nvidia | log NVRM: GPU 0000:14:00.0: GPU has fallen off the bus.",
    ),
    # Memory that nobody visible holds.
    "devices.unclaimed_memory warn ps -o pid,user,lstart,cmd -p 77; if they are your processes, kill 77": (
        "HELD | IDLE | link proc/77/fd/9 /dev/nvidia2",
    ),
    "devices.unclaimed_memory warn ps -L -o pid,lwp,stat,wchan -p 77": (
        "HELD | IDLE | text proc/77/status State: Z (zombie) | link proc/77/task/78/fd/9 /dev/nvidia2",
    ),
    "devices.unclaimed_memory warn docker ps, crictl ps; MPS": (
        "HELD | IDLE | text proc/77/status State: Z (zombie)",
        "HELD | IDLE",
    ),
    "devices.unclaimed_memory warn sudo fuser -v /dev/nvidia2": ("HELD | IDLE | text proc/77/fd of another user",),
    "devices.unclaimed_memory warn on the host: nvidia-smi, docker ps, crictl ps": ("HELD | IDLE | container",),
    # Clocks.
    "devices.low_clock warn sudo nvidia-smi -i 0000:12:00.0 --reset-gpu-clocks": ("2.sm_clock=1200", "2.sm_clock=1580"),
    "devices.low_clock warn sudo nvidia-smi -i 0000:12:00.0 --reset-memory-clocks": ("2.memory_clock=405",),
    "devices.low_clock warn sudo nvidia-smi -i 0000:10:00.0 --reset-gpu-clocks": (
        "ALONE sm_clock=1000 default_clock=1590 application_clock=1590 clock_reasons=2",
    ),
    "devices.low_clock warn nvidia-smi -q -d CLOCK,PERFORMANCE": (
        "ALONE capability=61 sm_clock=1000 default_clock=1590",
    ),
    "devices.clock_setting warn sudo nvidia-smi -i 0000:10:00.0 --reset-applications-clocks": (
        "ALONE sm_clock=1000 default_clock=1590 application_clock=1000 clock_reasons=2",
        "ALONE sm_clock=1000 default_clock=1590 application_clock=1000",
        "ALONE memory_clock=405 default_clock.memory=2619 application_clock.memory=405",
    ),
    # NVML that is slow to start, and one that hangs.
    "devices.persistence warn sudo nvidia-smi -pm 1": ("IDLE nvml.init=slow persistence=0",),
    "devices.nvml inconclusive sudo dmesg | grep Xid": ("nvml.init=hang",),
    # Fans, modes, work without a process.
    "devices.fan fail check fans": ("DESKTOP 2.fan=0 2.temperature=83 fan=60",),
    "devices.compute_mode warn wait for PID 4711 to end": ("2.compute_mode=3",),
    "devices.compute_mode fail sudo nvidia-smi -i 0000:10:00.0 --compute-mode=0": ("IDLE compute_mode=2",),
    "devices.mig_pending warn end its programs and stop its monitors": ("IDLE 2.mig=0 2.mig.pending=1",),
    "devices.busy_alone warn sudo fuser -v /dev/nvidia*": ("BUSY2 IDLE | again",),
    # The odd one of several.
    "devices.odd_one warn drain the node, then reset the GPU": (f"IDLE 2.memory.total={70 * GIB}",),
    "devices.odd_one warn switch on Above 4G Decoding": (f"2.bar1.total={GIB // 4}",),
    "devices.odd_one warn sudo nvidia-smi -i 0000:12:00.0 -pm 1": ("IDLE 2.persistence=0",),
    "devices.ecc_mode warn sudo nvidia-smi -i 0000:12:00.0 --ecc-config=1": ("2.ecc=0",),
    # Memory errors.
    "devices.remapped_rows warn drain the node, then sudo nvidia-smi --gpu-reset -i 0000:12:00.0": (
        "2.remap.pending=1",
    ),
    "devices.remapped_rows fail drain the node and replace the GPU": ("2.remap.failed=1",),
    "devices.sram_ecc fail drain the node and replace the GPU": ("2.sram.exceeded=1 2.sram.aggregate_secded=9",),
    # The fabric, and masks.
    "devices.libcuda fail sudo systemctl restart nvidia-fabricmanager": ("IDLE fabric=1 cuda.init=!802",),
    "devices.libcuda inconclusive wait a minute, then gpucheck devices": ("IDLE fabric=2 cuda.init=!802",),
    "mask.shows_fewer warn use only GPUs that exist; nvidia-smi -L lists them": ("IDLE mask=0,9,1",),
    # Healthy.
    "": (
        "sxid 24007, Non-fatal, Link 30 sourcetrack timeout (First)",
        "IDLE | sxid 12021, Correctable, Link 05 egress ECC",
        "sxid 99999, Non-fatal, Link 05 something new",
        "sxid 10004, Non-fatal, start | sxid 10005, Non-fatal, end",
        "sxid 22013, Fatal, Minion Link DLREQ interrupt",
        "sxid 22011, Fatal, a | log nvidia-nvswitch1: Probing device 0000:c3:00.0, Vendor Id = 0x10de",
        "log nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
        "log NVRM: knvlinkSetUniqueFabricBaseAddress_GV100: Fabric base addr 0x1 is assigned to GPU 0",
        f"IDLE | log {NO_MASK} | log {LOADED}",
        "xid 31, pid=7, MMU Fault | xid 13, pid=7 | xid 43, pid=7",
        f"xid 79, GPU has fallen off the bus. | log {LOADED}",
        "IDLE | card 0x14 vfio-pci",
        "card 0x14 nvidia | container",
        f"IDLE | log NVRM: GPU 0000:12:00.0: {RM_INIT}",
        f"memory.reserved={6 * GIB} IDLE",
        # A boost is no reference; a busy desktop may do with little.
        "ALONE sm_clock=480",
        "ALONE DESKTOP utilization=60 sm_clock=600 memory_clock=405 performance_state=8",
        "sm_clock=1290 max_sm_clock=1530 default_clock=1290 application_clock=1290 clock_reasons=2",
        "2.sm_clock=1200 2.clock_reasons=4 2.power=698000",
        "IDLE nvml.init=slow",
        "IDLE DESKTOP fan=0 temperature=45",
        "temperature=84",
        f"compute_mode=3 processes=4712:1000 memory.used={GIB}",
        "BUSY2 IDLE",
        "BUSY2 IDLE | container | again",
        "2.vbios=96.00.99.00.01",
        "2.ecc.volatile_corrected=200000",
        "IDLE mask=1,0",
        "",
        "IDLE",
        "IDLE 3.name=T400 3.nvlinks=!3 3.fabric=!3 3.memory.total=4294967296 3.pcie.width=8 3.persistence=0",
    ),
}


@pytest.mark.parametrize(("expected", "scene"), [(one, scene) for one, scenes in SCENES.items() for scene in scenes])
def test_a_scene(expected: str, scene: str, fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path / "root").module().on_disk().libraries()
    machine.nodes("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(4)))
    for n in range(1 if "ALONE" in scene else 4):
        machine.card(0x10 + n)
    parts = [part.replace("sxid ", SXID, 1).replace("xid ", XID, 1) for part in scene.split(" | ")]
    machine.log(*(part[4:] for part in parts if part.startswith("log ")))
    script: list[str] = []
    for part in parts:
        method, _, rest = part.partition(" ")
        if method == "card":
            machine.card(0x14, rest.partition(" ")[2])
        elif method == "link":
            machine.link(*rest.split(" "))
        elif method == "text":
            machine.write({rest.partition(" ")[0]: rest.partition(" ")[2]})
        elif method == "container":
            machine.container()
        elif method not in ("log", "again"):
            script += [part]
    words = " ".join([*script, BUSY])
    for word, meaning in WORDS.items():
        words = words.replace(word, meaning)
    fake_driver(words.replace(" ", "\n") + "\nname=NVIDIA H100 80GB HBM3\n")
    if "mask=" in scene:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", scene.partition("mask=")[2])
    # Two seconds stand for the twenty of a real driver.
    monkeypatch.setattr(nvidia, "ANSWER_S", 1.0)
    names = {4711: "python3", 4712: "nvidia-cuda-mps-server"}
    with Inventory(with_processes=True, with_links=True, root=machine.root, name=names.get, timeout_s=6.0) as inventory:
        facts = inventory.read()
        if "again" in parts:
            time.sleep(2.0)
            facts = inventory.read()
    found = [finding for finding in judge(facts) if finding.verdict not in ("pass", "info", "skip")]
    asking = {f"{finding.id} {finding.verdict}": finding.fix or "" for finding in reversed(found)}
    assert list(asking) == [" ".join(expected.split(" ")[:2])] * bool(expected)
    assert all(fix.startswith(expected.split(" ", 2)[2]) for fix in asking.values())
