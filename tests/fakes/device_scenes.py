"""Machines as `devices` and `memory` read them: a report for each scene, made by the commands' own judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpucheck.devices.command import judge
from gpucheck.machine.accel import Allocator
from gpucheck.machine.host import HostMemory
from gpucheck.memory import command as memory
from gpucheck.memory import steps
from gpucheck.report.events import Answered, Emit, Failed, Judged, Started
from gpucheck.report.facts import (
    Changes,
    ClockReasons,
    Device,
    Driver,
    Ecc,
    Facts,
    Host,
    Link,
    NvLink,
    Process,
    Python,
    TorchBuild,
    XidError,
)
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import MemoryFigures
from gpucheck.report.report import Collector, Report

GIB, MIB = 2**30, 2**20
CPU = Device(
    kind="cpu",
    id="cpu",
    name="AMD EPYC 9454 48-Core Processor",
    cores_allowed=16,
    load_1min=0.4,
    memory_total_bytes=128 * GIB,
    memory_used_bytes=21 * GIB,
)
DRIVER = Driver(version="580.95.05", cuda_version="13.0", nvml_code=0, cuinit_code=0, libcuda_path="/lib/libcuda.so.1")
TORCH = TorchBuild("2.11.0+cu130", None, "cuda", "13.0")
CPU_TORCH = TorchBuild("2.11.0+cpu", None, "cpu")
FACTS = Facts(
    host=Host(system="Linux"),
    driver=DRIVER,
    python=Python("3.12.3", "CPython", "python3"),
    torch=TORCH,
    devices=(CPU,),
)


def card(index: int, **changes: Any) -> Device:
    """One of eight cards that work as they should."""
    made = Device(
        kind="cuda",
        id=f"cuda:{index}",
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}3f2a1b0-0000-0000-0000-00000000000{index}",
        pci_address=f"0000:{index}1:00.0",
        serial=f"16549220043{index}",
        cuda_index=index,
        nvml_index=index,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=72 * GIB,
        utilization_percent=100.0,
        temperature_celsius=64.0,
        gpu_max_celsius=87.0,
        slowdown_celsius=92.0,
        power_w=690.0,
        power_limit_w=700.0,
        sm_clock_hz=1.98e9,
        max_sm_clock_hz=1.98e9,
        clock_reasons=ClockReasons(0),
        pcie=Link(5, 16, 5, 16),
    )
    return replace(made, **changes)


def idle(index: int, **changes: Any) -> Device:
    """One that nothing uses."""
    resting = {
        "memory_used_bytes": 430 * MIB,
        "utilization_percent": 0.0,
        "temperature_celsius": 31.0,
        "power_w": 71.0,
        "sm_clock_hz": 345e6,
        "clock_reasons": ClockReasons(1, ("gpu_idle",)),
        "pcie": Link(1, 16, 5, 16),
    }
    return card(index, **{**resting, **changes})


LOST = Device(
    kind="cuda",
    id="cuda:3",
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-33f2a1b0-0000-0000-0000-000000000003",
    pci_address="0000:31:00.0",
    serial="165492200433",
    cuda_index=3,
    nvml_index=3,
    state="lost",
)


def eight(*others: Device, **changes: Any) -> Report:
    """Eight cards, with these in the place of those that have their number, and the facts changed so."""
    cards = {index: card(index) for index in range(8)} | {one.nvml_index or 0: one for one in others}
    return devices(*cards.values(), **changes)


def devices(*cards: Device, **changes: Any) -> Report:
    """`devices` of a machine with these cards."""
    facts = replace(FACTS, devices=(*cards, CPU), **changes)
    collector = Collector()
    collector(Started(facts))
    for finding in judge(facts):
        collector(Judged(finding))
    return made("devices", collector)


def made(command: str, collector: Collector, **changes: Any) -> Report:
    return collector.report(version="0", command=command, argv=(), started="", elapsed_s=1.0, **changes)


def hidden(index: int, mask: str) -> Device:
    return idle(index, id=None, cuda_index=None, state=f"hidden by CUDA_VISIBLE_DEVICES={mask}")


def _throttled() -> Device:
    reasons = ("hw_slowdown", "hw_thermal_slowdown")
    return card(
        2,
        clock_reasons=ClockReasons(0x48, reasons),
        changes=Changes(1.0, lasting_clock_reasons=reasons),
        sm_clock_hz=1.2e9,
        temperature_celsius=86.0,
    )


NO_DRIVER = Driver(nvml_code=12, nvml_error="NVML cannot be loaded (x)", cuinit_error="libcuda cannot be loaded (x)")
MISMATCH = Driver(
    nvml_code=18,
    nvml_error="Driver/library version mismatch",
    nvml_path="/usr/lib/libnvidia-ml.so.580.95.05",
    kernel_module_version="575.51.03",
    kernel_module_loaded=True,
)
AT = "2026-01-31T11:59:58Z"


def logged(*errors: XidError) -> Driver:
    """The driver with these in the kernel's log."""
    return replace(DRIVER, xids=errors)


UP = tuple(NvLink(link, active=True) for link in range(18))
DOWN = tuple(NvLink(link, active=False) for link in range(18))
MASK = ",".join(f"GPU-{index}3f2a1b0-0000-0000-0000-00000000000{index}" for index in range(6))

DEVICES: dict[str, Callable[[], Report]] = {
    "healthy": eight,
    "one healthy and idle": lambda: devices(idle(0, name="NVIDIA H200", memory_total_bytes=141 * GIB)),
    "some idle": lambda: eight(*(idle(index) for index in (5, 6, 7))),
    "a lost card": lambda: eight(LOST),
    "lost, with its cause in the log": lambda: eight(
        LOST, driver=logged(XidError(79, "0000:31:00.0", AT), XidError(154, "0000:31:00.0", AT, action="node_reboot"))
    ),
    "an Xid": lambda: eight(driver=logged(*(XidError(n, "0000:21:00.0", AT, max(n - 93, 1)) for n in (31, 94, 95)))),
    "an Xid whose action the driver names": lambda: eight(
        driver=logged(XidError(119, "0000:21:00.0", AT), XidError(154, "0000:21:00.0", AT, action="node_reboot"))
    ),
    "an Xid of a GPU that is gone": lambda: eight(driver=logged(XidError(79, "0000:99:00.0", AT))),
    "a program's Xid, and one before a reset": lambda: eight(
        driver=logged(XidError(31, "0000:21:00.0", AT, 9), XidError(79, "0000:31:00.0", AT, is_past=True))
    ),
    "a log that cannot be read": lambda: eight(unknown={"/driver/xids": "Operation not permitted"}),
    "throttled": lambda: eight(_throttled()),
    "held by power as all are at full load": lambda: eight(
        card(1, sm_clock_hz=1.38e9, clock_reasons=ClockReasons(4, ("sw_power_cap",)))
    ),
    "all eight capped": lambda: eight(*(card(n, power_limit_w=350.0, power_limit_default_w=700.0) for n in range(8))),
    "hot": lambda: eight(card(0, temperature_celsius=91.0)),
    "lost and hot": lambda: eight(LOST, card(0, temperature_celsius=91.0)),
    "a reset needed": lambda: devices(idle(0, nvml_index=2), idle(1, nvml_index=0, recovery_action="gpu_reset")),
    "three resets needed": lambda: eight(*(idle(index, recovery_action="gpu_reset") for index in (1, 2, 3))),
    "memory errors": lambda: eight(card(5, ecc=Ecc(True, 0, 3))),
    "all links of one down": lambda: eight(*(card(index, nvlinks=UP) for index in range(7)), card(7, nvlinks=DOWN)),
    "a narrow link": lambda: eight(card(4, pcie=Link(5, 8, 5, 16))),
    "not answering": lambda: devices(
        replace(idle(0), state="not answering: NVML did not answer within 5 s", utilization_percent=None),
        idle(1, state="not read: NVML stopped at another device"),
        driver=replace(DRIVER, nvml_error="NVML did not answer within 5 s"),
    ),
    "a mask": lambda: devices(*(idle(index) for index in range(6)), hidden(6, MASK), hidden(7, MASK)),
    "all hidden": lambda: devices(
        hidden(0, "-1"), driver=replace(DRIVER, cuinit_code=100), environment={"CUDA_VISIBLE_DEVICES": "-1"}
    ),
    "a CPU build of torch": lambda: devices(idle(0), torch=CPU_TORCH),
    "no driver": lambda: devices(
        driver=NO_DRIVER, host=Host(system="Linux", nvidia_pci_addresses=("0000:41:00.0",)), torch=TORCH
    ),
    "a driver of two versions": lambda: devices(
        driver=MISMATCH, host=Host(system="Linux", nvidia_pci_addresses=("0000:41:00.0",))
    ),
    "no GPU": lambda: devices(driver=NO_DRIVER, torch=CPU_TORCH),
}


def with_processes() -> Report:
    """Two cards with processes: one known, one of another container, one whose command line is long."""
    known = Process(4711, "compute", "python3", 71 * GIB, "alice", "/usr/bin/python3 train.py --lr 3e-4", 7500.0, 98.0)
    long = replace(
        known, pid=4712, command=f"/opt/env/bin/python3 -m torch.distributed.run {'--option ' * 12}", age_s=45
    )
    foreign = Process(99, "compute")
    return devices(card(0, processes=(known, foreign)), card(1, processes=(long,)))


# -- memory ------------------------------------------------------------------------------------------------------------


def on_card(
    read: Callable[[dict[str, MemoryFigures]], None] = lambda seen: None,
    settings: str | None = None,
    processes: tuple[Process, ...] = (),
) -> Report:
    """`memory` on a card whose allocator gives the expected figures, as `read` has changed them."""
    collector, card_0 = Collector(), idle(0, name="NVIDIA H200", memory_total_bytes=140 * GIB, processes=processes)
    collector(Started(replace(FACTS, devices=(card_0, CPU))))
    figures = {
        step: MemoryFigures(**dict(zip(steps.FIGURES, level, strict=True)))  # type: ignore[arg-type]
        for step, level in steps.expected(0, 0).items()
    }
    read(figures)  # type: ignore[arg-type]
    allocator = Allocator("native", settings)
    overall = memory.judge_overview("NVIDIA H200", card_0, (139 * GIB, 140 * GIB), MemoryFigures(0, 0, 0, 0))
    collector(Judged(replace(overall, device="cuda:0")))
    collector(Judged(memory.judge_processes(processes, 1, "")))
    walked, finding = steps.judge(figures, allocator, "cuda")
    collector(Judged(memory.judge_allocator(allocator, "cuda")))
    collector(Answered("memory", walked))
    collector(Judged(replace(finding, device="cuda:0")))
    return made("memory", collector)


def on_cpu() -> Report:
    """`memory` on the CPU."""
    collector = Collector()
    collector(Started(replace(FACTS, devices=(CPU,), torch=CPU_TORCH)))
    for finding in memory.judge_host(HostMemory(24 * GIB, 22 * GIB, None, None)):
        collector(Judged(finding))
    collector(Judged(Finding("memory.accounting", "skip", steps.TITLE, "torch has none on the CPU", device="cpu")))
    return made("memory", collector)


def _broken_off(fault: Fault | None, **changes: Any) -> Report:
    """`memory` that came as far as the device's memory."""
    collector = Collector()
    emit: Emit = collector
    emit(Started(replace(FACTS, devices=(idle(0), CPU))))
    overall = memory.judge_overview("NVIDIA H100", idle(0), (79 * GIB, 80 * GIB), MemoryFigures(0, 0, 0, 0))
    emit(Judged(replace(overall, device="cuda:0")))
    if fault is not None:
        emit(Failed(fault))
    return made("memory", collector, **changes)


def _kept(figures: dict[str, MemoryFigures]) -> None:
    figures["empty_cache"] = replace(figures["empty_cache"], memory_reserved_bytes=118 * MIB)


def _leaked(figures: dict[str, MemoryFigures]) -> None:
    for step in ("free", "empty_cache"):
        figures[step] = replace(figures[step], memory_allocated_bytes=1024)


OTHER = Process(4711, "compute", "python3", 2 * GIB)
ILLEGAL = Fault(
    "device", "memory", "cuda:0", "AcceleratorError", "CUDA error: an illegal memory access was encountered"
)
FULL = Fault("device", "memory", "cuda:0", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 64.00 MiB")

MEMORY: dict[str, Callable[[], Report]] = {
    "exact": on_card,
    "beside another process": lambda: on_card(processes=(OTHER,)),
    "with settings": lambda: on_card(settings="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    "a cache that stays": lambda: on_card(_kept),
    "memory that stays": lambda: on_card(_leaked),
    "no caching": lambda: on_card(settings="PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
    "on the CPU": on_cpu,
    "a full device": lambda: _broken_off(FULL),
    "a device that failed": lambda: _broken_off(ILLEGAL),
    "cut off": lambda: _broken_off(None, complete=False),
}
