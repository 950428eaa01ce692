"""Evidence made by hand: a healthy machine with two GPUs, from which a test changes what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucheck.doctor.condition import Condition, Evidence, Signs
from gpucheck.machine.host import PciDevice
from gpucheck.machine.stack import DeviceNode, KernelRun, Library, Stack, TorchProbe
from gpucheck.report.facts import ClockReasons, Device, Driver, Ecc, Facts, Host, Link, Python, RemappedRows, TorchBuild

GIB = 2**30
CPU = Device(kind="cpu", id="cpu", name="a CPU")


def card(index: int, **changes: Any) -> Device:
    """A healthy card, the same for CUDA and for NVML."""
    made = Device(
        kind="cuda",
        id=f"cuda:{index}",
        name="NVIDIA H200",
        uuid=f"GPU-{index}0000000-0000-0000-0000-000000000000",
        pci_address=f"0000:{index + 1}1:00.0",
        cuda_index=index,
        nvml_index=index,
        compute_capability="9.0",
        memory_total_bytes=141 * GIB,
        memory_used_bytes=GIB // 4,
        processes=(),
        persistence_mode=True,
        ecc=Ecc(enabled=True, volatile_uncorrected=0),
        remapped_rows=RemappedRows(0, 0, False, False),
        recovery_action="none",
    )
    return replace(made, **changes)


def busy(index: int, *reasons: str, **changes: Any) -> Device:
    """A card at work, with these reasons for a lower clock."""
    made = card(
        index,
        utilization_percent=100.0,
        temperature_celsius=70.0,
        power_w=690.0,
        power_limit_w=700.0,
        sm_clock_hz=1.98e9,
        max_sm_clock_hz=1.98e9,
        clock_reasons=ClockReasons(0, reasons),
        pcie=Link(5, 16, 5, 16, 0),
    )
    return replace(made, **changes)


CARDS = (card(0), card(1))
DRIVER = Driver(
    version="580.95.05",
    cuda_version="13.0",
    kernel_module_version="580.95.05",
    kernel_module_open=True,
    kernel_module_loaded=True,
    nvml_version="13.580.95.05",
    nvml_path="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
    nvml_code=0,
    libcuda_path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    libcuda_version="13.0",
    cuinit_code=0,
)
FACTS = Facts(
    host=Host(
        system="Linux",
        release="6.8.0-45-generic",
        architecture="x86_64",
        nvidia_pci_addresses=("0000:11:00.0", "0000:21:00.0"),
        nvidia_device_nodes=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"),
    ),
    python=Python("3.12.3", "CPython", "/env/bin/python"),
    torch=TorchBuild("2.11.0+cu130", "/env/lib/torch", "cuda", "13.0"),
    driver=DRIVER,
    devices=(*CARDS, CPU),
)
STACK = Stack(
    devices=tuple(PciDevice(c.pci_address or "", "0x2335", "0x030200", "nvidia") for c in CARDS),
    modules=frozenset(("nvidia", "nvidia_uvm")),
    built_for=("6.8.0-45-generic",),
    running="6.8.0-45-generic",
    nodes=tuple(
        DeviceNode(path, True, True, 0)
        for path in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    ),
    libraries=tuple(
        Library(f"{name}.so.1", f"/lib/{name}.so.1", f"/lib/{name}.so.580.95.05", "580.95.05")
        for name in ("libcuda", "libnvidia-ml")
    ),
    secure_boot=False,
    log=(),
    shm_bytes=64 * GIB,
)
PROBE = TorchProbe(
    stage="end",
    executable="/env/bin/python",
    python="3.12.3",
    prefix="/env",
    versions={"torch": ("2.11.0",), "torchvision": ("0.26.0",), "triton": ("3.6.0",), "nvidia-ml-py": ("13.580.82",)},
    path="/env/lib/torch",
    version="2.11.0+cu130",
    cuda="13.0",
    available=True,
    count=2,
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
    capabilities={"cuda:0": "9.0", "cuda:1": "9.0"},
    names={"cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA H200"},
    libcuda="/lib/libcuda.so.580.95.05",
    kernels=(KernelRun("cuda:0"), KernelRun("cuda:1")),
    has_compiler=True,
)
HEALTHY = Evidence(FACTS, STACK, PROBE, frozenset(("PATH", "HOME")))


def with_cards(*cards: Device, evidence: Evidence = HEALTHY) -> Evidence:
    """The machine with these cards."""
    return replace(evidence, facts=replace(evidence.facts, devices=(*cards, CPU)))


def with_driver(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The machine with another answer of the driver's."""
    driver = replace(evidence.facts.driver or Driver(), **changes)
    return replace(evidence, facts=replace(evidence.facts, driver=driver))


def with_unknown(pointer: str, reason: str, evidence: Evidence = HEALTHY) -> Evidence:
    """The machine where a field of the facts could not be read."""
    return replace(evidence, facts=replace(evidence.facts, unknown={**evidence.facts.unknown, pointer: reason}))


def with_host(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """Another machine around the GPUs."""
    return replace(evidence, facts=replace(evidence.facts, host=replace(evidence.facts.host or Host(), **changes)))


def with_torch(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The machine where torch says something else."""
    assert evidence.torch is not None
    return replace(evidence, torch=replace(evidence.torch, **changes))


def with_stack(evidence: Evidence = HEALTHY, **changes: Any) -> Evidence:
    """The machine with something else below the libraries."""
    return replace(evidence, stack=replace(evidence.stack, **changes))


def with_variables(evidence: Evidence = HEALTHY, **values: str) -> Evidence:
    """The machine with variables, of which the facts keep the values that may be kept."""
    facts = replace(evidence.facts, environment={**evidence.facts.environment, **values})
    return replace(evidence, facts=facts, variables=evidence.variables | set(values))


def ended_at(stage: str, error: str | None = None, *, timed_out: bool = False, **changes: Any) -> Evidence:
    """The machine where torch came no further than this step."""
    later: dict[str, Any] = {"available": None, "count": None, "architectures": None, "capabilities": None}
    later |= {"names": None, "kernels": (), "libcuda": None}
    if stage in ("find", "import"):
        later |= {"version": None, "cuda": None}
    if stage == "run":
        later = {"kernels": ()}
    return with_torch(stage=stage, error=error, timed_out=timed_out, **{**later, **changes})


def without_gpu() -> Evidence:
    """A machine without a GPU, with a torch for the CPU."""
    facts = Facts(
        host=Host(system="Linux"),
        torch=TorchBuild("2.13.0+cpu", "/env/lib/torch", "cpu"),
        driver=Driver(nvml_code=12, nvml_error="NVML Shared Library Not Found", cuinit_error="cannot be loaded"),
        devices=(CPU,),
    )
    probe = TorchProbe(stage="end", path="/env/lib/torch", version="2.13.0+cpu", available=False, count=0)
    return Evidence(facts, Stack(devices=(), modules=frozenset(), log_error="Permission denied"), probe)


def seen_by(condition: Condition, evidence: Evidence) -> Signs | None:
    """Return what a condition sees."""
    assert condition.judge is not None
    return condition.judge(evidence)
