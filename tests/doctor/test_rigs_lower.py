"""Each fault of the lower rungs rebuilt on a machine without a GPU and diagnosed by the command: a root of our own for
/proc, /sys and /dev, compiled libraries that answer as the driver would, and a package that plays torch."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from event_recorder import Recorder
from fake_machine import DRIVER, RTX_5090, FakeMachine, fake_torch

from gpucheck.doctor.command import command
from gpucheck.doctor.ladder import BY_ID
from gpucheck.doctor.options import DoctorOptions
from gpucheck.machine import inventory, stack
from gpucheck.machine.driver_reads import CudaReader, NvmlReader
from gpucheck.report.events import Answered, Judged
from gpucheck.report.finding import Finding
from gpucheck.report.results.short import DoctorResult

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is faked as Linux has it"),
    pytest.mark.slow,
]

SOURCE = Path(__file__).parents[3] / "src"
ONE_CARD = "nvml.count=1\ncuda.order=0\n"
NO_CARD = "nvml.count=0\ncuda.init=!100\n"
FALLEN = ("NVRM: Xid (PCI:0000:10:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",)
# As the kernel writes one message of several lines.
FALLEN_WITHOUT_XID = (
    r"NVRM: The NVIDIA GPU 0000:10:00.0\x0aNVRM: (PCI ID: 10de:2335) installed in this system has"
    r"\x0aNVRM: fallen off the bus and is not responding to commands.",
)
NOT_STARTED = "NVRM: GPU 0000:10:00.0: RmInitAdapter failed! (0x62:0x65:1792)"
Build = Callable[[FakeMachine], Any]


@dataclass(frozen=True)
class Rig:
    """A fault: what the machine is like, what the libraries answer, and which condition it is."""

    id: str
    build: Build
    script: str = ONE_CARD
    environment: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, Any] = field(default_factory=dict)
    opens: int | None = None
    torch: dict[str, Any] = field(default_factory=dict)
    certainty: str | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.id


def driven(machine: FakeMachine) -> FakeMachine:
    return machine.driven()


def logged(*lines: str) -> Build:
    return lambda machine: machine.driven().log(*lines)


def in_container(*nodes: str, names: tuple[str, ...] = ("cuda", "nvidia-ml")) -> Build:
    def build(machine: FakeMachine) -> None:
        machine.card().module().container().libraries(names=names)
        if nodes:
            machine.nodes(*nodes)

    return build


def denied(machine: FakeMachine) -> None:
    """A node that goes nowhere: nobody may read it, root neither."""
    machine.card().module().on_disk().libraries().nodes("nvidia-uvm", "nvidia0").link("dev/nvidiactl", "gone")


def stale(machine: FakeMachine) -> None:
    """A socket: opening it gives ENXIO, as a node whose number no driver has."""
    machine.card().module().on_disk().libraries().nodes("nvidiactl", "nvidia0")
    os.mknod(machine.root / "dev/nvidia-uvm", stat.S_IFSOCK | 0o666)


def secure(machine: FakeMachine) -> FakeMachine:
    variable = machine.root / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\x00\x00\x00\x01")
    return machine.card(driver=None).on_disk()


def without_uvm(machine: FakeMachine) -> FakeMachine:
    return machine.card().module().on_disk().libraries().nodes("nvidiactl", "nvidia0")


def fabric(machine: FakeMachine) -> FakeMachine:
    return machine.driven().switch()


def astray(machine: FakeMachine) -> None:
    machine.card().module().on_disk().nodes().libraries(names=("nvidia-ml",))
    machine.write({"usr/local/nvidia/lib64/libcuda.so.1": "elf"})


def headless(machine: FakeMachine) -> None:
    machine.card().module().on_disk().nodes().libraries(names=("nvidia-ml",))


def jetson(machine: FakeMachine) -> None:
    machine.write({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3\n"})


def refuses(code: int, more: str = "") -> str:
    return f"{ONE_CARD}cuda.init=!{code}\n{more}"


KERNEL_DOWN = "nvml.init=!9\ncuda.init=!100\n"
RIGS = (
    # hardware
    Rig("gpu.fallen_off", logged(*FALLEN), refuses(100, "handle=!15\n"), name="fallen off: Xid 79"),
    Rig("gpu.fallen_off", logged(*FALLEN_WITHOUT_XID), NO_CARD, name="fallen off: lines without an Xid"),
    Rig(
        "gpu.no_power",
        logged("NVRM: GPU 0000:10:00.0: GPU does not have the necessary power cables connected.", NOT_STARTED),
        NO_CARD,
    ),
    Rig(
        "gpu.no_address_space",
        logged(
            r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\x0aNVRM: BAR1 is 0M @ 0x0",
            NOT_STARTED,
        ),
        NO_CARD,
    ),
    # kernel
    Rig("driver.nouveau", lambda m: m.card(driver="nouveau"), KERNEL_DOWN),
    Rig("driver.passed_through", lambda m: m.card(driver="vfio-pci"), KERNEL_DOWN),
    Rig("driver.not_installed", lambda m: m.card(driver=None), KERNEL_DOWN),
    Rig("driver.other_kernel", lambda m: m.card(driver=None).on_disk("6.8.0-45-generic"), KERNEL_DOWN),
    Rig(
        "driver.signature_rejected",
        lambda m: secure(m).log("Loading of module with unavailable key is rejected"),
        KERNEL_DOWN,
    ),
    Rig("driver.signature_rejected", secure, KERNEL_DOWN, certainty="hint", name="secure boot: not by the log"),
    Rig("driver.not_loaded", lambda m: m.card(driver=None).on_disk(), KERNEL_DOWN),
    Rig("container.host_driver", lambda m: m.card(driver=None).container(), KERNEL_DOWN),
    Rig(
        "driver.unsupported_card",
        logged(
            r"NVRM: The NVIDIA GPU 0000:10:00.0 (PCI ID: 10de:1db4)\x0aNVRM: installed in this system is not supported "
            r"by the\x0aNVRM: NVIDIA 580.95.05 driver release.",
            NOT_STARTED,
        ),
        NO_CARD,
    ),
    Rig(
        "driver.open_module_needed",
        lambda m: m.driven(device=RTX_5090, is_open=False),
        NO_CARD,
        certainty="strong",
        name="open module needed: by the card's number",
    ),
    Rig(
        "driver.open_module_needed",
        logged("NVRM: installed in this system requires use of the NVIDIA open kernel modules.", NOT_STARTED),
        NO_CARD,
        certainty="proof",
        name="open module needed: by the log",
    ),
    Rig("driver.card_not_started", logged(NOT_STARTED), NO_CARD),
    # nodes
    Rig(
        "container.no_gpu",
        in_container(names=()),
        "nvml.init=!9\ncuda.init=!100\n",
        {"NVIDIA_VISIBLE_DEVICES": "void"},
        name="no gpu: kept out",
    ),
    Rig("container.no_gpu", in_container(names=()), "", libraries={"nvml": False, "cuda": False}),
    Rig("container.no_gpu", in_container("nvidiactl", "nvidia-uvm"), NO_CARD, name="no gpu: the driver's nodes alone"),
    Rig("driver.nodes_missing", lambda m: m.card().module().on_disk().libraries(), refuses(999, "nvml.init=!999\n")),
    Rig("driver.node_hangs", driven, refuses(999, "nvml.init=!999\n"), opens=errno.ETIMEDOUT),
    Rig(
        "container.devices_lost",
        lambda m: m.driven().container(),
        refuses(999, "nvml.init=!999\n"),
        opens=errno.EPERM,
        certainty="proof",
    ),
    Rig("driver.nodes_denied", denied, refuses(999, "nvml.init=!4\n")),
    Rig("driver.nodes_stale", stale, refuses(999)),
    Rig("wsl.no_gpu", lambda m: m.wsl().root.joinpath("dev/dxg").unlink(), refuses(100, "nvml.init=!9\n")),
    # libraries
    Rig(
        "wsl.shadowed",
        lambda m: m.wsl(),
        refuses(100, "nvml.init=!9\n"),
        libraries={"version": DRIVER},
        certainty="proof",
    ),
    Rig(
        "container.no_compute",
        in_container("nvidiactl", "nvidia-uvm", "nvidia0", names=("nvidia-ml",)),
        environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"},
        libraries={"cuda": None},
        certainty="proof",
    ),
    Rig("library.broken", driven, libraries={"cuda": False}),
    Rig("library.cuda_not_searched", astray, libraries={"cuda": None}),
    Rig("library.cuda_missing", headless, libraries={"cuda": None}),
    Rig("library.stub", driven, refuses(34), libraries={"folder": "cuda/lib64/stubs"}),
    Rig(
        "library.compat_driver", driven, refuses(803), libraries={"folder": "cuda-13.0/compat", "version": "590.44.01"}
    ),
    Rig(
        "library.compat_driver", driven, refuses(804), libraries={"folder": "cuda-13.0/compat", "version": "590.44.01"}
    ),
    Rig("library.other_version", driven, refuses(803), libraries={"version": "570.124.06"}, certainty="proof"),
    Rig("driver.mismatch", driven, refuses(803, "nvml.init=!18\n"), libraries={"version": "580.105.08"}),
    # Cards that know no forward compatibility answer 804 to a libcuda that is newer than the module.
    Rig(
        "driver.mismatch",
        driven,
        refuses(804, "nvml.init=!18\n"),
        libraries={"version": "580.105.08"},
        name="mismatch: 804",
    ),
    Rig(
        "library.other_version",
        driven,
        refuses(804),
        libraries={"version": "590.44.01"},
        certainty="strong",
        name="other version: 804",
    ),
    Rig(
        "library.other_version",
        lambda m: m.driven().container(),
        refuses(803),
        name="803: in a container, of a libcuda that LD_LIBRARY_PATH brought",
    ),
    # NVML
    Rig("gpu.lost", driven, refuses(100, "handle=!15\n")),
    Rig("gpu.lost", driven, refuses(999, "nvml.init=!15\n"), name="lost: as NVML starts"),
    Rig("gpu.reset_required", driven, refuses(999, "handle=!16\n")),
    Rig("gpu.recovery", driven, refuses(999, "recovery_action=1\n")),
    Rig("driver.nvml_hung", driven, refuses(999, "nvml.init=hang\n")),
    Rig("driver.nvml_hung", driven, refuses(999, "utilization=hang\n"), name="nvml hung: at a card"),
    Rig("driver.nvml_hung", driven, refuses(999, "nvml.init=crash\n")),
    Rig("driver.no_devices_found", driven, NO_CARD),
    Rig("gpu.no_power", driven, refuses(100, "nvml.init=!8\n")),
    Rig("driver.nvml_refused", driven, refuses(100, "nvml.init=!11\n")),
    Rig(
        "wsl.blocked", lambda m: m.wsl(), refuses(100, "nvml.init=!17\n"), libraries={"folder": "root/usr/lib/wsl/lib"}
    ),
    Rig("driver.nvml_refused", driven, refuses(999, "nvml.init=!4\n")),
    Rig("driver.nvml_refused", driven, refuses(100, "nvml.init=!9\n")),
    Rig("driver.nvml_refused", driven, refuses(999, "nvml.init=!999\n")),
    Rig("driver.nvml_refused", driven, refuses(999, "nvml.init=!20\n")),
    # cuInit
    Rig("driver.hung", driven, f"{ONE_CARD}cuda.init=hang\n"),
    Rig("driver.hung", driven, f"{ONE_CARD}cuda.init=crash\n"),
    Rig("gpu.mig_empty", driven, refuses(100, "mig=1\n")),
    Rig("driver.no_device", driven, refuses(100)),
    Rig("driver.out_of_memory", driven, refuses(2)),
    Rig("driver.uvm_missing", without_uvm, refuses(999)),
    Rig("driver.unknown_error", driven, refuses(999)),
    Rig(
        "driver.not_initialised",
        logged("nvidia-uvm: request_free_mem_region() err -34"),
        refuses(3),
        certainty="proof",
        name="hmm: by the log",
    ),
    Rig("driver.not_initialised", driven, refuses(3)),
    Rig("gpu.unavailable", driven, refuses(46, "compute_mode=3\nprocesses=4242:1000\n"), certainty="strong"),
    Rig("gpu.unavailable", driven, refuses(46, "compute_mode=2\n"), certainty="proof", name="unavailable: prohibited"),
    Rig("gpu.unavailable", driven, refuses(46), certainty="hint", name="unavailable: no mode explains it"),
    Rig("driver.toolchain", driven, refuses(222)),
    Rig("driver.not_supported", driven, refuses(800)),
    Rig("driver.not_supported", driven, refuses(801)),
    Rig("driver.fabric", fabric, refuses(802), certainty="proof", name="fabric: the manager does not run"),
    Rig(
        "driver.fabric",
        lambda m: fabric(m).write({"proc/77/comm": "nv-fabricmanage\n"}),
        refuses(802),
        certainty="strong",
        name="fabric: the manager runs",
    ),
    Rig("driver.fabric", driven, refuses(802), certainty="hint", name="fabric: the host's"),
    Rig("mps.unreachable", driven, refuses(805), {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}),
    Rig("mps.unreachable", driven, refuses(806), name="mps unreachable: 806"),
    Rig("mps.not_ready", driven, refuses(807)),
    Rig("mps.not_ready", driven, refuses(808)),
    Rig("mps.not_ready", driven, refuses(809), name="mps full: connections"),
    Rig("mps.not_ready", driven, refuses(810)),
    Rig("driver.refused", driven, refuses(1)),
    # above, by what is read below
    Rig(
        "gpu.exclusive",
        driven,
        f"{ONE_CARD}compute_mode=3\nprocesses=4242:1000\n",
        torch={"devices": 1, "error": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"},
    ),
    Rig("torch.sees_none", jetson, f"{ONE_CARD}nvml.init=!12\n"),
)


@pytest.fixture
def diagnosed(
    tmp_path: Path, fake_driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Rig], tuple[DoctorResult, list[Finding]]]:
    """What the command answers on a rig, and its findings."""

    def run(rig: Rig) -> tuple[DoctorResult, list[Finding]]:
        machine = FakeMachine(tmp_path / "root")
        rig.build(machine)
        fake_driver(rig.script, **rig.libraries)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_DRIVER_CAPABILITIES", "VIRTUAL_ENV", "CONDA_PREFIX"):
            monkeypatch.delenv(name, raising=False)
        for name, value in rig.environment.items():
            monkeypatch.setenv(name, value)
        if rig.opens is not None:
            monkeypatch.setattr(stack, "opened", lambda paths: [rig.opens for _ in paths])
        # What hangs is to be waited for, but not for long; a child that starts slowly is no hang.
        monkeypatch.setattr(inventory, "NvmlReader", lambda timeout_s, **named: NvmlReader(3.0, **named))
        monkeypatch.setattr(inventory, "CudaReader", lambda timeout_s, **named: CudaReader(3.0, **named))
        site = fake_torch(tmp_path / "site", **rig.torch)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(SOURCE))))
        events = Recorder()
        command(DoctorOptions(python=sys.executable, root=machine.root), events)
        (answer,) = [event.value for event in events.events if isinstance(event, Answered)]
        return answer, [event.finding for event in events.events if isinstance(event, Judged)]

    return run


@pytest.mark.parametrize("rig", RIGS, ids=str)
def test_each_fault_is_the_first_broken_rung_and_alone_on_it(
    rig: Rig, diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]]
) -> None:
    answer, findings = diagnosed(rig)
    beside = [name for name in answer.consequences if BY_ID[name].stage == answer.broken]
    assert (answer.first, answer.broken, beside) == (rig.id, BY_ID[rig.id].stage, [])
    first = findings[0]
    assert (first.id, first.verdict) == (rig.id, "fail")
    assert first.fix and first.message
    assert first.evidence["certainty"] == (rig.certainty or BY_ID[rig.id].certainty)


PAIRS = (
    # Two faults at once: what the first of them names is the lower.
    Rig(
        "driver.nouveau",
        lambda m: m.card(driver="nouveau").container(),
        KERNEL_DOWN,
        {"NVIDIA_VISIBLE_DEVICES": "void"},
    ),
    Rig("driver.not_loaded", lambda m: m.card(driver=None).on_disk(), KERNEL_DOWN + "cuda.init=!805\n"),
    Rig("driver.nodes_denied", denied, refuses(34), libraries={"folder": "cuda/lib64/stubs"}),
    Rig("container.no_gpu", in_container(names=("nvidia-ml",)), "nvml.init=!9\n", libraries={"cuda": False}),
    Rig("container.devices_lost", lambda m: m.driven().container(), refuses(803, "nvml.init=!18\n"), opens=errno.EPERM),
    Rig("library.stub", without_uvm, refuses(34, "nvml.init=!999\n"), libraries={"folder": "cuda/lib64/stubs"}),
    Rig("driver.mismatch", lambda m: without_uvm(m).switch(), refuses(802, "nvml.init=!18\n")),
    Rig("driver.nvml_hung", without_uvm, refuses(999, "nvml.init=hang\n")),
    Rig("gpu.reset_required", fabric, refuses(802, "handle=!16\n")),
    Rig("gpu.fallen_off", lambda m: m.driven().switch().log(*FALLEN), refuses(802, "handle=!15\n")),
)


@pytest.mark.parametrize("rig", PAIRS, ids=str)
def test_of_two_faults_the_lower_rung_is_named(
    rig: Rig, diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]]
) -> None:
    answer, findings = diagnosed(rig)
    assert answer.first == rig.id
    # What follows from it is a remark without a fix of its own.
    follows = [finding for finding in findings if finding.id in answer.consequences]
    assert follows and all(follow.verdict == "info" and follow.fix is None for follow in follows)


WORKING = {"devices": 1}
HEALTHY = (
    Rig("", driven, torch=WORKING, name="bare metal"),
    Rig("", lambda m: m.driven().container(), torch=WORKING, name="in a container"),
    Rig("", lambda m: m.wsl(), torch=WORKING, libraries={"folder": "root/usr/lib/wsl/lib"}, name="WSL"),
    Rig("", jetson, f"{ONE_CARD}nvml.init=!12\nintegrated=1\n", torch=WORKING, name="Jetson"),
    Rig("", lambda m: m.driven().switch(), torch=WORKING, name="with NVSwitches"),
    Rig("", lambda m: m.driven().log("NVRM: loading NVIDIA UNIX Open Kernel Module"), torch=WORKING, name="with a log"),
)


@pytest.mark.parametrize("rig", HEALTHY, ids=str)
def test_a_healthy_machine_breaks_no_rung(
    rig: Rig, diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]]
) -> None:
    answer, findings = diagnosed(rig)
    assert (answer.first, answer.consequences, answer.torch_works) == (None, (), True)
    # The environment that runs the tests is not the fakes': what stands there is not looked at here.
    lower = [
        finding
        for finding in findings
        if finding.id.startswith(("driver.", "library.", "gpu.", "container.", "wsl.", "mps."))
    ]
    assert [row for row in lower if row.verdict != "info"] == []
    assert findings[-1].id == "doctor.healthy"


def wsl_without_driver(machine: FakeMachine) -> None:
    machine.wsl().root.joinpath("usr/lib/wsl/lib/libcuda.so.1").unlink()


BESIDE = (
    Rig("library.nvml_missing", driven, "cuda.order=0\n", torch=WORKING, libraries={"nvml": False}),
    Rig("driver.mismatch", driven, "cuda.order=0\nnvml.init=!18\n", torch=WORKING),
    Rig("driver.nvml_refused", driven, "cuda.order=0\nnvml.init=!999\n", torch=WORKING),
    Rig("driver.nvml_hung", driven, "cuda.order=0\nnvml.init=hang\n", torch=WORKING),
    Rig(
        "gpu.fallen_off",
        lambda m: m.driven().card(0x11).log(*FALLEN),
        "nvml.count=2\n1.handle=!15\ncuda.order=0\n",
        torch=WORKING,
    ),
)


@pytest.mark.parametrize("rig", BESIDE, ids=str)
def test_what_torch_works_without_is_a_warning(
    rig: Rig, diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]]
) -> None:
    answer, findings = diagnosed(rig)
    assert (answer.first, answer.torch_works) == (None, True)
    assert [finding.verdict for finding in findings if finding.id == rig.id] == ["warn"]


def test_a_wsl_with_anothers_gpu_is_no_fault(
    diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]],
) -> None:
    answer, findings = diagnosed(Rig("", wsl_without_driver, "", libraries={"nvml": False, "cuda": False}))
    assert answer.first is None
    assert findings[-1].id == "doctor.no_gpu" and "in Windows" in (findings[-1].fix or "")


def test_cards_of_another_maker_and_none_at_all_are_no_fault(
    diagnosed: Callable[[Rig], tuple[DoctorResult, list[Finding]]],
) -> None:
    answer, findings = diagnosed(Rig("", lambda m: m, "", libraries={"nvml": False, "cuda": False}))
    assert answer.first is None
    assert findings[-1].id == "doctor.no_gpu"
