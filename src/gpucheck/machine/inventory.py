"""The inventory: the readings of all sources, joined to Facts.

NVML's and libcuda's devices are the same if their UUIDs are equal, or their PCI addresses if a UUID is missing. CUDA's
devices are first, in torch's order; then the devices that CUDA does not show, those that only torch knows, and the CPU.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from gpucheck.machine import host, installed_torch, kernel_driver
from gpucheck.machine.child import LIBCUDA_READER, NVML_READER, PreloadedChildren
from gpucheck.machine.choose import MASK, read_mask
from gpucheck.machine.driver_reads import CudaReader, DeviceReading, DriverReading, NvmlReader
from gpucheck.machine.host import AT_WORK_PERCENT
from gpucheck.machine.installed_torch import TorchDevices
from gpucheck.machine.nvml_fields import NOT_ACCESSIBLE, applies, unclaimed_counts
from gpucheck.report.facts import Changes, Device, Driver, Ecc, Facts, Host, Link, Process, Python, TorchBuild

Counted = TypeVar("Counted", int, float)
# The kernel log's lines about NVIDIA's driver, and the reason if they cannot be read.
Log = tuple[tuple[str, ...] | None, str | None]
# The variables that decide which devices CUDA, torch and a container show. Other variables may contain secrets.
VARIABLES = (
    *(MASK, "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_MPS_PIPE_DIRECTORY"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("PYTORCH_ENABLE_MPS_FALLBACK", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)
# The results of cuInit after which an empty list of devices can be trusted: success and CUDA_ERROR_NO_DEVICE.
RELIABLE_CUINIT = (0, 100)
# The fields that only libcuda reports, and those that both libraries report.
BY_CUDA = ("cuda_index", "multiprocessors", "memory_bus_width_bits", "integrated")
BY_BOTH = ("parent_uuid", "name", "uuid", "pci_address", "compute_capability")
# NVML updates its figures several times a second, and the work of a job changes within a second.
BETWEEN_READINGS_S = 1.0
# When the driver starts it scrubs the memory of GPUs with ECC, which looks like work without a process.
BETWEEN_UNEXPLAINED_S = 2.0
NO_GPU = "no NVIDIA GPU is here"
# GPUs that share the host's memory.
UNIFIED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)
ASLEEP = "asleep (not woken)"


class MachineReading(NamedTuple):
    """The environment of the devices: the machine, its kernel driver, the interpreter and torch."""

    host: Host
    cpu: Device
    python: Python
    torch: TorchBuild
    kernel: Driver = Driver()
    numa_nodes: Mapping[str, int] = MappingProxyType({})


def join(
    nvml: DriverReading | None,
    cuda: DriverReading | None,
    machine: MachineReading,
    environment: Mapping[str, str],
    torch_read: TorchDevices | None = None,
) -> Facts:
    """Join the reports of the libraries to one list of devices. `nvml` and `cuda` are None on macOS. Pure."""
    nvml_read, cuda_read, torch_read = nvml or DriverReading(), cuda or DriverReading(), torch_read or TorchDevices()
    mask = environment.get(MASK)
    named = _named_in_vain(nvml_read, cuda_read, mask)
    rows = [_completed(row, cuda_read, machine, mask, named) for row in _paired(nvml_read, cuda_read)]
    unknown = {
        f"/devices/{place}{name}": reason for place, row in enumerate(rows) for name, reason in _reasons(row).items()
    }
    if torch_read.error:
        unknown["/torch_runtime"] = torch_read.error
    return Facts(
        host=machine.host,
        python=machine.python,
        torch=machine.torch,
        driver=_driver(nvml_read, cuda_read, machine.kernel) if nvml is not None or cuda is not None else None,
        devices=(*(row.device for row in rows), *torch_read.devices, machine.cpu),
        environment={name: environment[name] for name in VARIABLES if name in environment},
        unknown=unknown,
    )


def _key(uuid: str | None) -> str | None:
    """Return a UUID without its prefix (`GPU-`, `MIG-`); the libraries agree on the rest."""
    return None if uuid is None else uuid.rpartition("GPU-")[2].removeprefix("MIG-").lower()


def _is_same(by_nvml: Device, by_cuda: Device) -> bool:
    if by_nvml.uuid and by_cuda.uuid:
        return _key(by_nvml.uuid) == _key(by_cuda.uuid)
    # An instance has the PCI address of its GPU, so addresses identify only whole GPUs.
    whole = by_nvml.parent_uuid is None and by_cuda.parent_uuid is None
    return whole and by_nvml.pci_address is not None and by_nvml.pci_address == by_cuda.pci_address


def _paired(nvml: DriverReading, cuda: DriverReading) -> list[DeviceReading]:
    """Return CUDA's devices in its order, with NVML's report, then NVML's others. Instances follow their GPU."""
    left = list(nvml.devices)
    rows = []
    # If NVML has one GPU without identity, and CUDA one device that NVML does not list, then they are the same.
    silent = [row for row in left if row.device.state not in (None, NOT_ACCESSIBLE)]
    nameless = [row for row in silent if row.device.uuid is None and row.device.pci_address is None]
    alone = [device for device in cuda.devices if not any(_is_same(row.device, device.device) for row in left)]
    for by_cuda in cuda.devices:
        match = next((row for row in left if _is_same(row.device, by_cuda.device)), None)
        if alone == [by_cuda] and len(nameless) == 1:
            match = nameless[0]
        if match is None:
            source = "libcuda" if by_cuda.device.memory_total_bytes is not None else None
            unknown = {"*": nvml.error or "NVML does not list this device", **by_cuda.unknown}
            rows.append(DeviceReading(replace(by_cuda.device, memory_source=source), unknown))
        else:
            left.remove(match)
            rows.append(_merged(match, by_cuda))
    cards = {row.device.uuid: row.device.nvml_index for row in nvml.devices if row.device.nvml_index is not None}

    def order(row: DeviceReading) -> tuple[int, bool]:
        own = row.device.nvml_index
        index = own if own is not None else cards.get(row.device.parent_uuid)
        return (sys.maxsize if index is None else index, own is None)

    return [*rows, *sorted(left, key=order)]


def _merged(row: DeviceReading, by_cuda: DeviceReading) -> DeviceReading:
    """Return NVML's row with libcuda's additions. NVML's value counts if both report one."""
    both = {name: getattr(row.device, name) or getattr(by_cuda.device, name) for name in BY_BOTH}
    device = replace(row.device, **{name: getattr(by_cuda.device, name) for name in BY_CUDA}, **both)
    if device.memory_total_bytes is None and by_cuda.device.memory_total_bytes is not None:
        device = replace(device, memory_total_bytes=by_cuda.device.memory_total_bytes, memory_source="libcuda")
    return DeviceReading(device, {**by_cuda.unknown, **row.unknown})


def _named_in_vain(nvml: DriverReading, cuda: DriverReading, mask: str | None) -> frozenset[str | None]:
    """Return the UUIDs that CUDA_VISIBLE_DEVICES names (in NVML's order) if CUDA shows fewer devices; else nothing."""
    if mask is None:
        return frozenset()
    devices = sorted((row.device for row in nvml.devices), key=lambda device: device.parent_uuid is not None)
    uuids = [device.uuid for device in devices if device.state != NOT_ACCESSIBLE]
    named = read_mask(mask, uuids).shown if uuids else ()
    return frozenset(uuids[place] for place in named if len(cuda.devices) < len(named))


def _why_not_shown(device: Device, cuda: DriverReading, mask: str | None, named: Collection[object]) -> str | None:
    """Return why CUDA does not show the device; `named` are the devices that it should show."""
    if device.mig is not None and device.mig.enabled:
        return "in MIG mode: its instances are the devices" if device.mig.instances else "in MIG mode without instances"
    if cuda.code not in RELIABLE_CUINIT:
        return None  # libcuda shows no device at all, and its error says why
    if mask is not None and device.uuid not in named:
        return f"hidden by {MASK}={mask}"
    return "not shown by CUDA, which shows one MIG instance" if device.parent_uuid else "not shown by CUDA"


def _completed(
    row: DeviceReading, cuda: DriverReading, machine: MachineReading, mask: str | None, named: Collection[object]
) -> DeviceReading:
    device = row.device
    if device.state is None and device.cuda_index is None:
        device = replace(device, state=_why_not_shown(device, cuda, mask, named))
    # A torch built for ROCm uses the name cuda for its own devices.
    if device.cuda_index is not None and machine.torch.built_for != "rocm":
        device = replace(device, id=f"cuda:{device.cuda_index}")
    device = replace(device, numa_node=machine.numa_nodes.get(device.pci_address or ""))
    total, available = machine.host.memory_total_bytes, machine.host.memory_available_bytes
    # Without libcuda only the name shows that memory is shared. GH200 and GB200 have their own memory.
    shares = device.integrated or (device.integrated is None and UNIFIED.search(device.name or "") is not None)
    if shares and device.memory_used_bytes is None and total is not None and available is not None:
        whole = device.memory_total_bytes or total
        free = min(available, whole)
        device = replace(
            device,
            memory_total_bytes=whole,
            memory_used_bytes=whole - free,
            memory_free_bytes=free,
            memory_source="host (shared with the CPU)",
        )
    return replace(row, device=device)


def _reasons(row: DeviceReading) -> dict[str, str]:
    """Return why fields are unknown, by their pointers below the device; "" stands for all other fields."""
    # If a whole group is unknown, one reason stands for the group.
    device = row.device
    reasons: dict[str, str] = {}
    for name, reason in row.unknown.items():
        group, _, member = name.partition("/")
        if name == "*":
            reasons[""] = reason
        elif getattr(device, group) is None:
            # The reason of a member that could not be read replaces that of a member that does not apply.
            if f"/{group}" not in reasons or (applies(reason) and not applies(reasons[f"/{group}"])):
                reasons[f"/{group}"] = reason
        elif member and getattr(getattr(device, group), member, None) in (None, ()):
            reasons[f"/{name}"] = reason
    return reasons


def _driver(nvml: DriverReading, cuda: DriverReading, kernel: Driver) -> Driver:
    return replace(
        kernel,
        version=nvml.driver_version or kernel.kernel_module_version,
        cuda_version=nvml.cuda_version or cuda.version,
        nvml_version=nvml.nvml_version,
        nvml_path=nvml.path,
        nvml_code=nvml.code,
        nvml_error=nvml.error,
        nvml_start_s=nvml.start_s,
        libcuda_path=cuda.path,
        libcuda_version=cuda.version,
        cuinit_code=cuda.code,
        cuinit_error=cuda.error,
    )


class Inventory(AbstractContextManager["Inventory"]):
    """The machine, which can be read any number of times. Nothing starts before the first `read`.

    NVML is read each time, by a long-lived child that is replaced when it ends or hangs; libcuda and torch only the
    first time. From the second reading on, GPUs have the growth of their counters, and a lost GPU keeps its identity.
    """

    def __init__(
        self,
        *,
        with_processes: bool = False,
        with_links: bool = False,
        wake: bool = True,
        name: Callable[[int], str | None] = host.gpu_process_name,
        details: Callable[[Process], Process] = lambda process: process,
        root: Path = host.ROOT,
        ahead: PreloadedChildren | None = None,
        timeout_s: float | None = None,
        waiting: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Prepare the readers.

        `details` adds to each process; `ahead` holds children that were started earlier. NVML and libcuda each have
        `timeout_s`, by default the longest time of a healthy driver; `waiting` is called if they take long. Without
        `wake`, GPUs that are all asleep are not woken.
        """
        self._wake = wake
        self._with_processes, self._with_links = with_processes, with_links
        self._root = root
        self._name, self._details = name, details
        self._ahead, self._timeout_s = ahead or PreloadedChildren(), timeout_s
        # macOS has no NVIDIA driver.
        start = partial(self._ahead.start, NVML_READER)
        self._nvml = NvmlReader(timeout_s, start=start, waiting=waiting) if sys.platform != "darwin" else None
        self._cuda: DriverReading | None = None
        self._torch: TorchBuild | None = None
        self._torch_devices: TorchDevices | None = None
        self._earlier = LastKnownGpus()
        self._machine: MachineReading | None = None
        self._log: Log = (None, NO_GPU)

    def read(self) -> Facts:
        nvml_read, machine, log = self._ask_readers()
        self._machine = machine
        listed = [*(nvml_read.devices if nvml_read else ()), *(self._cuda.devices if self._cuda else ())]
        nvidia = bool(listed or machine.host.nvidia_pci_addresses)
        if self._torch_devices is None and not nvidia and installed_torch.could_see_another(machine.torch):
            self._torch_devices = installed_torch.devices()
        facts = join(nvml_read, self._cuda, machine, os.environ, self._torch_devices)
        self._log = log if nvidia or machine.host.nvidia_device_nodes else (None, NO_GPU)
        return _with_xids(_with_holders(facts, self._root), *self._log)

    def again(self, facts: Facts, timeout_s: float | None = None) -> Facts:
        """Return the facts with a second reading of NVML by a new child, and the growth of the GPUs' counters."""
        # The facts stay as they are if NVML lists no GPU or did not answer the first time. If a GPU is working, the
        # readings are at least a second apart.
        driver, machine = facts.driver, self._machine
        listed = any(device.nvml_index is not None for device in facts.devices)
        if machine is None or driver is None or driver.nvml_error or not listed:
            return facts
        busy = [device.read_at_s for device in facts.devices if (device.utilization_percent or 0) >= AT_WORK_PERCENT]
        with NvmlReader(timeout_s) as reader:
            apart_s = BETWEEN_UNEXPLAINED_S if is_unexplained(facts) else BETWEEN_READINGS_S
            time.sleep(max([at_s + apart_s - time.monotonic() for at_s in busy if at_s is not None] + [0.0]))
            reader.ask(processes=self._with_processes, links=self._with_links)
            nvml_read = LastKnownGpus(facts.devices).added_to(reader.reading())
        # The facts may describe the torch of another interpreter.
        machine = machine._replace(torch=facts.torch or TorchBuild())
        joined = join(self._with_names(nvml_read), self._cuda, machine, facts.environment, self._torch_devices)
        return _with_xids(_with_holders(joined, self._root), *self._log)

    def _ask_readers(self) -> tuple[DriverReading | None, MachineReading, Log]:
        """Return NVML's answer, the environment and the kernel log. The children work while this process reads."""
        sleepers = () if self._wake or self._cuda is not None else host.sleeping(self._root)
        if sleepers or self._nvml is None:
            rows = (Device(kind="cuda", pci_address=address, state=ASLEEP) for address in sleepers)
            asleep = DriverReading(devices=tuple(DeviceReading(row, {"*": ASLEEP}) for row in rows))
            return asleep if sleepers else None, *self._read_here()
        self._nvml.ask(processes=self._with_processes, links=self._with_links)
        with CudaReader(self._timeout_s, start=partial(self._ahead.start, LIBCUDA_READER)) as cuda:
            if self._cuda is None:
                cuda.ask()
            machine, log = self._read_here()
            nvml_read = self._earlier.added_to(self._with_names(self._nvml.reading()))
            if self._cuda is None:
                self._cuda = cuda.reading(cards_are_up=nvml_read.error is None)
        return nvml_read, machine, log

    def _read_here(self) -> tuple[MachineReading, Log]:
        self._torch = self._torch or installed_torch.read()
        root = self._root
        own_host = host.read(root)
        gpus = own_host.nvidia_pci_addresses
        machine = MachineReading(
            host=own_host,
            cpu=host.cpu(),
            python=host.python(),
            torch=self._torch,
            kernel=host.kernel_driver(root),
            numa_nodes=host.numa_nodes(gpus, root),
        )
        return machine, kernel_driver.log(root, journal=bool(gpus))

    def _with_names(self, nvml: DriverReading) -> DriverReading:
        def named(process: Process) -> Process:
            known = replace(process, name=self._name(process.pid))
            # A PID without a name is another process's in this container.
            return known if known.name is None else self._details(known)

        def of(row: DeviceReading) -> DeviceReading:
            listed = row.device.processes
            return replace(row, device=replace(row.device, processes=tuple(map(named, listed)))) if listed else row

        return replace(nvml, devices=tuple(map(of, nvml.devices)))

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def unclaimed_bytes(device: Device, facts: Facts) -> int:
    """Return the GPU memory that no visible process uses; 0 if it is little or unknown."""
    # Only version 2 of NVML's call excludes the driver's reserved memory. Windows reports no memory of processes.
    used, total, known = device.memory_used_bytes, device.memory_total_bytes, device.memory_of_processes_bytes
    host_facts = facts.host or Host()
    if host_facts.wsl or host_facts.system == "Windows" or device.memory_source != "nvml v2":
        return 0
    if used is None or not total or known is None or device.integrated or device.parent_uuid is not None:
        return 0
    return used - known if unclaimed_counts(used - known, total) else 0


def is_unexplained(facts: Facts) -> bool:
    """Return whether a GPU is fully busy although NVML lists no process, outside a container."""
    host_facts = facts.host or Host()
    return not (host_facts.container or host_facts.wsl) and any(
        (device.utilization_percent or 0) >= 100 and device.processes == () for device in facts.devices
    )


def _with_holders(facts: Facts, root: Path) -> Facts:
    """Return the facts with the processes that have a GPU's node open, for GPUs with unclaimed memory."""
    nodes = {
        place: f"/dev/nvidia{device.nvml_index if device.minor_number is None else device.minor_number}"
        for place, device in enumerate(facts.devices)
        if unclaimed_bytes(device, facts)
    }
    if not nodes:
        return facts
    holders, hidden = host.node_holders(nodes.values(), root)
    devices, unknown = list(facts.devices), dict(facts.unknown)
    for place, node in nodes.items():
        devices[place] = replace(devices[place], node_holders=holders[node])
        if hidden and not holders[node]:
            unknown[f"/devices/{place}/node_holders"] = f"{hidden} processes of other users"
    return replace(facts, devices=tuple(devices), unknown=unknown)


def _with_xids(facts: Facts, lines: tuple[str, ...] | None, refused: str | None) -> Facts:
    if facts.driver is None:
        return facts
    if lines is None:
        unread = dict.fromkeys((f"/driver/{name}" for name in kernel_driver.LOGGED), refused or "it cannot be read")
        return replace(facts, unknown={**facts.unknown, **unread})
    return replace(facts, driver=kernel_driver.events(lines, time.time() - time.monotonic(), facts.driver))


def select_devices(facts: Facts, keep: Callable[[Device], bool]) -> Facts:
    """Return the facts with the devices that `keep` accepts, and the reasons of these devices."""
    kept = [place for place, device in enumerate(facts.devices) if keep(device)]
    unknown = {}
    for pointer, reason in facts.unknown.items():
        match = re.fullmatch(r"/devices/(\d+)(/.*)?", pointer)
        if match is None:
            unknown[pointer] = reason
        elif int(match[1]) in kept:
            unknown[f"/devices/{kept.index(int(match[1]))}{match[2] or ''}"] = reason
    return replace(facts, devices=tuple(facts.devices[place] for place in kept), unknown=unknown)


def read(processes: bool = False, root: Path = host.ROOT) -> Facts:
    """Read the machine once. `processes` adds the processes on each device."""
    with Inventory(with_processes=processes, root=root) as inventory:
        return inventory.read()


# The fields that identify a GPU, and that it keeps when it stops answering.
IDENTITY = ("name", "uuid", "pci_address", "serial", "minor_number", "compute_capability")
NO_LONGER_LISTED = "NVML no longer lists the GPU"


class LastKnownGpus:
    """GPUs by UUID, as they were last read without a failure."""

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        # MIG instances are left out, because they may be created and deleted at any time.
        self._cards = {
            device.uuid: device
            for device in devices
            if device.uuid is not None and device.nvml_index is not None and device.state != "lost"
        }

    def added_to(self, reading: DriverReading) -> DriverReading:
        """Return the reading completed from earlier ones, and remember it for later ones."""
        rows = list(reading.devices)
        listed = {row.device.uuid for row in rows}
        gone = {uuid: card for uuid, card in self._cards.items() if uuid not in listed}
        for place, row in enumerate(rows):
            if row.device.uuid is None and row.device.nvml_index is not None:
                # A row without a UUID is the GPU that had its index, unless another row is that GPU.
                known = next((card for card in gone.values() if card.nvml_index == row.device.nvml_index), None)
                if known is not None:
                    lacks = {name: getattr(known, name) for name in IDENTITY if getattr(row.device, name) is None}
                    rows[place] = replace(row, device=replace(row.device, **lacks))
                    del gone[str(known.uuid)]
        if reading.code == 0 and reading.error is None:
            taken = {row.device.nvml_index for row in rows}
            for card in gone.values():
                identity = {name: getattr(card, name) for name in IDENTITY}
                index = None if card.nvml_index in taken else card.nvml_index
                lost = Device(kind="cuda", nvml_index=index, state="lost", **identity)
                rows.append(DeviceReading(lost, {"*": NO_LONGER_LISTED}))
        return replace(reading, devices=tuple(map(self._with_history, rows)))

    def _with_history(self, row: DeviceReading) -> DeviceReading:
        device, before = row.device, self._cards.get(row.device.uuid or "")
        if device.uuid is None or device.parent_uuid is not None or device.state == "lost":
            return row
        self._cards[device.uuid] = device
        return replace(row, device=replace(device, changes=None if before is None else changes(before, device)))


def changes(before: Device, now: Device) -> Changes | None:
    """Return the growth of a GPU's counters; None if one of the readings has no time."""
    if before.read_at_s is None or now.read_at_s is None or now.read_at_s <= before.read_at_s:
        return None
    started, ended = before.violations_s or {}, now.violations_s or {}
    link, later = before.pcie or Link(), now.pcie or Link()
    ecc, ecc_now = before.ecc or Ecc(), now.ecc or Ecc()
    reasons, lasting = (card.clock_reasons.names if card.clock_reasons is not None else () for card in (before, now))
    return Changes(
        span_s=now.read_at_s - before.read_at_s,
        violations_s={name: _grown(began, ended.get(name)) for name, began in started.items()},
        pcie_replays=_grown(link.replays, later.replays),
        nvlink_errors=_new_errors(before, now),
        ecc_corrected=_grown(ecc.volatile_corrected, ecc_now.volatile_corrected),
        ecc_uncorrected=_grown(ecc.volatile_uncorrected, ecc_now.volatile_uncorrected),
        lasting_clock_reasons=tuple(name for name in lasting if name in reasons),
        utilization_before_percent=before.utilization_percent,
    )


def _grown(began: Counted | None, ended: Counted | None) -> Counted | None:
    """Return the growth of a counter; None if it is unknown, or if the counter was reset or wrapped around."""
    return None if began is None or ended is None or ended < began else ended - began


def _new_errors(before: Device, now: Device) -> dict[str, int]:
    """Return the new errors of all links together, by name; names without new errors are left out."""
    counted: Counter[str] = Counter()
    earlier = {link.link: link.errors for link in before.nvlinks or ()}
    for link in now.nvlinks or ():
        known = earlier.get(link.link, {})
        counted.update({name: max(count - known.get(name, count), 0) for name, count in link.errors.items()})
    return dict(+counted)
