"""Join the readings of all sources to Facts.

A device of NVML and a device of libcuda are the same if their UUIDs are equal, or without a UUID their PCI addresses.
The order is: CUDA's devices in torch's order, devices that CUDA does not show, devices that only torch shows, the CPU.
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
# The kernel log's lines about NVIDIA's driver, or None and the reason.
Log = tuple[tuple[str, ...] | None, str | None]
# The variables that decide which devices CUDA, torch and a container show. Other variables may contain secrets.
VARIABLES = (
    *(MASK, "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_MPS_PIPE_DIRECTORY"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("PYTORCH_ENABLE_MPS_FALLBACK", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)
# After these results of cuInit an empty list of devices is reliable: success and CUDA_ERROR_NO_DEVICE.
RELIABLE_CUINIT = (0, 100)
BY_CUDA = ("cuda_index", "multiprocessors", "memory_bus_width_bits", "integrated")
BY_BOTH = ("parent_uuid", "name", "uuid", "pci_address", "compute_capability")
# NVML updates its values several times a second, and the load of a job changes within a second.
BETWEEN_READINGS_S = 1.0
# A starting driver scrubs the memory of GPUs with ECC. NVML then reports full utilization without a process.
BETWEEN_UNEXPLAINED_S = 2.0
NO_GPU = "no NVIDIA GPU is here"
# Names of GPUs that share the host's memory.
UNIFIED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)
ASLEEP = "asleep (not woken)"


class MachineReading(NamedTuple):
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
    """Join the reports of the libraries to one list of devices. `nvml` and `cuda` are None on macOS. No I/O."""
    nvml_read, cuda_read, torch_read = nvml or DriverReading(), cuda or DriverReading(), torch_read or TorchDevices()
    mask = environment.get(MASK)
    requested = _requested_but_missing(nvml_read, cuda_read, mask)
    rows = [_completed(row, cuda_read, machine, mask, requested) for row in _paired(nvml_read, cuda_read)]
    unknown = {
        f"/devices/{index}{name}": reason for index, row in enumerate(rows) for name, reason in _reasons(row).items()
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
    """Return a UUID without its prefix (`GPU-`, `MIG-`), which differs between the libraries."""
    return None if uuid is None else uuid.rpartition("GPU-")[2].removeprefix("MIG-").lower()


def _is_same(by_nvml: Device, by_cuda: Device) -> bool:
    if by_nvml.uuid and by_cuda.uuid:
        return _key(by_nvml.uuid) == _key(by_cuda.uuid)
    # An instance has the PCI address of its GPU, so addresses identify only whole GPUs.
    are_whole = by_nvml.parent_uuid is None and by_cuda.parent_uuid is None
    return are_whole and by_nvml.pci_address is not None and by_nvml.pci_address == by_cuda.pci_address


def _paired(nvml: DriverReading, cuda: DriverReading) -> list[DeviceReading]:
    """Return CUDA's devices with NVML's data, in CUDA's order, then NVML's other devices: instances after their GPU."""
    unmatched = list(nvml.devices)
    rows = []
    # If NVML has one failing GPU without identity, and CUDA one device that NVML does not list, both are the same GPU.
    failing = [row for row in unmatched if row.device.state not in (None, NOT_ACCESSIBLE)]
    unidentified = [row for row in failing if row.device.uuid is None and row.device.pci_address is None]
    only_cuda = [device for device in cuda.devices if not any(_is_same(row.device, device.device) for row in unmatched)]
    for by_cuda in cuda.devices:
        match = next((row for row in unmatched if _is_same(row.device, by_cuda.device)), None)
        if only_cuda == [by_cuda] and len(unidentified) == 1:
            match = unidentified[0]
        if match is None:
            source = "libcuda" if by_cuda.device.memory_total_bytes is not None else None
            unknown = {"*": nvml.error or "NVML does not list this device", **by_cuda.unknown}
            rows.append(DeviceReading(replace(by_cuda.device, memory_source=source), unknown))
        else:
            unmatched.remove(match)
            rows.append(_merged(match, by_cuda))
    indices = {row.device.uuid: row.device.nvml_index for row in nvml.devices if row.device.nvml_index is not None}

    def order(row: DeviceReading) -> tuple[int, bool]:
        has_no_index = row.device.nvml_index is None
        index = indices.get(row.device.parent_uuid) if has_no_index else row.device.nvml_index
        return (sys.maxsize if index is None else index, has_no_index)

    return [*rows, *sorted(unmatched, key=order)]


def _merged(row: DeviceReading, by_cuda: DeviceReading) -> DeviceReading:
    """Return NVML's row with libcuda's additions. If both report a value, NVML's counts."""
    both = {name: getattr(row.device, name) or getattr(by_cuda.device, name) for name in BY_BOTH}
    device = replace(row.device, **{name: getattr(by_cuda.device, name) for name in BY_CUDA}, **both)
    if device.memory_total_bytes is None and by_cuda.device.memory_total_bytes is not None:
        device = replace(device, memory_total_bytes=by_cuda.device.memory_total_bytes, memory_source="libcuda")
    return DeviceReading(device, {**by_cuda.unknown, **row.unknown})


def _requested_but_missing(nvml: DriverReading, cuda: DriverReading, mask: str | None) -> frozenset[str | None]:
    """Return the UUIDs in CUDA_VISIBLE_DEVICES (by NVML's order) if CUDA shows fewer devices; else nothing."""
    if mask is None:
        return frozenset()
    devices = sorted((row.device for row in nvml.devices), key=lambda device: device.parent_uuid is not None)
    uuids = [device.uuid for device in devices if device.state != NOT_ACCESSIBLE]
    requested = read_mask(mask, uuids).shown if uuids else ()
    return frozenset(uuids[index] for index in requested if len(cuda.devices) < len(requested))


def _why_not_shown(device: Device, cuda: DriverReading, mask: str | None, requested: Collection[object]) -> str | None:
    """Return why CUDA does not show the device; None if libcuda's error is the reason."""
    if device.mig is not None and device.mig.enabled:
        return "in MIG mode: its instances are the devices" if device.mig.instances else "in MIG mode without instances"
    if cuda.code not in RELIABLE_CUINIT:
        return None
    if mask is not None and device.uuid not in requested:
        return f"hidden by {MASK}={mask}"
    return "not shown by CUDA, which shows one MIG instance" if device.parent_uuid else "not shown by CUDA"


def _completed(
    row: DeviceReading, cuda: DriverReading, machine: MachineReading, mask: str | None, requested: Collection[object]
) -> DeviceReading:
    device = row.device
    if device.state is None and device.cuda_index is None:
        device = replace(device, state=_why_not_shown(device, cuda, mask, requested))
    # A torch built for ROCm uses the name cuda for its own devices.
    if device.cuda_index is not None and machine.torch.built_for != "rocm":
        device = replace(device, id=f"cuda:{device.cuda_index}")
    device = replace(device, numa_node=machine.numa_nodes.get(device.pci_address or ""))
    total, available = machine.host.memory_total_bytes, machine.host.memory_available_bytes
    # Without libcuda only the name shows that memory is shared. GH200 and GB200 have separate GPU memory.
    is_shared = device.integrated or (device.integrated is None and UNIFIED.search(device.name or "") is not None)
    if is_shared and device.memory_used_bytes is None and total is not None and available is not None:
        total = device.memory_total_bytes or total
        free = min(available, total)
        device = replace(
            device,
            memory_total_bytes=total,
            memory_used_bytes=total - free,
            memory_free_bytes=free,
            memory_source="host (shared with the CPU)",
        )
    return replace(row, device=device)


def _reasons(row: DeviceReading) -> dict[str, str]:
    """Return why fields are unknown, by JSON pointer below the device; "" stands for all other fields."""
    device = row.device
    reasons: dict[str, str] = {}
    for name, reason in row.unknown.items():
        group, _, member = name.partition("/")
        if name == "*":
            reasons[""] = reason
        elif getattr(device, group) is None:
            # The group has one reason. A failed reading is a better reason than a field that the device does not have.
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
    """Read the machine any number of times. Nothing starts before the first `read`.

    A long-lived child reads NVML each time. It is replaced when it ends or hangs. libcuda and torch are read only once.
    From the second reading on, GPUs have the growth of their counters, and a lost GPU has its earlier identity.
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

        `details` adds data to each process, and `ahead` has children that were started earlier. NVML and libcuda each
        have `timeout_s` to answer, by default the longest time of a healthy driver. `waiting` is called if NVML is
        slow. Without `wake`, GPUs are not read while all of them are asleep.
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
        """Return the facts with a second reading of NVML by a new child, and the growth of the GPUs' counters.

        Without GPUs in NVML, the facts are returned unchanged. A busy GPU's readings are at least a second apart.
        """
        driver, machine = facts.driver, self._machine
        listed = any(device.nvml_index is not None for device in facts.devices)
        if machine is None or driver is None or driver.nvml_error or not listed:
            return facts
        busy = [device.read_at_s for device in facts.devices if (device.utilization_percent or 0) >= AT_WORK_PERCENT]
        with NvmlReader(timeout_s) as reader:
            interval_s = BETWEEN_UNEXPLAINED_S if is_unexplained(facts) else BETWEEN_READINGS_S
            time.sleep(max([at_s + interval_s - time.monotonic() for at_s in busy if at_s is not None] + [0.0]))
            reader.ask(processes=self._with_processes, links=self._with_links)
            nvml_read = LastKnownGpus(facts.devices).added_to(reader.reading())
        # The facts may describe the torch of another interpreter.
        machine = machine._replace(torch=facts.torch or TorchBuild())
        joined = join(self._with_names(nvml_read), self._cuda, machine, facts.environment, self._torch_devices)
        return _with_xids(_with_holders(joined, self._root), *self._log)

    def _ask_readers(self) -> tuple[DriverReading | None, MachineReading, Log]:
        """Return NVML's answer, the environment and the kernel log. The children work while this process reads."""
        addresses = () if self._wake or self._cuda is not None else host.sleeping(self._root)
        if addresses or self._nvml is None:
            rows = (Device(kind="cuda", pci_address=address, state=ASLEEP) for address in addresses)
            asleep = DriverReading(devices=tuple(DeviceReading(row, {"*": ASLEEP}) for row in rows))
            return asleep if addresses else None, *self._read_here()
        self._nvml.ask(processes=self._with_processes, links=self._with_links)
        with CudaReader(self._timeout_s, start=partial(self._ahead.start, LIBCUDA_READER)) as cuda:
            if self._cuda is None:
                cuda.ask()
            machine, log = self._read_here()
            nvml_read = self._earlier.added_to(self._with_names(self._nvml.reading()))
            if self._cuda is None:
                self._cuda = cuda.reading(are_gpus_up=nvml_read.error is None)
        return nvml_read, machine, log

    def _read_here(self) -> tuple[MachineReading, Log]:
        self._torch = self._torch or installed_torch.read()
        root, facts = self._root, host.read(self._root)
        addresses = facts.nvidia_pci_addresses
        numa_nodes = host.numa_nodes(addresses, root)
        kernel = host.kernel_driver(root)
        machine = MachineReading(facts, host.cpu(), host.python(), self._torch, kernel, numa_nodes)
        return machine, kernel_driver.log(root, journal=bool(addresses))

    def _with_names(self, nvml: DriverReading) -> DriverReading:
        def with_name(process: Process) -> Process:
            named = replace(process, name=self._name(process.pid))
            # Without a name, the PID inside this container may belong to another process.
            return named if named.name is None else self._details(named)

        def with_names(row: DeviceReading) -> DeviceReading:
            listed = row.device.processes
            return replace(row, device=replace(row.device, processes=tuple(map(with_name, listed)))) if listed else row

        return replace(nvml, devices=tuple(map(with_names, nvml.devices)))

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self._nvml.close()


def unclaimed_bytes(device: Device, facts: Facts) -> int:
    """Return the GPU memory that no visible process uses; 0 if it is little or unknown."""
    # Only version 2 of NVML's call excludes the driver's reserved memory. Windows does not report processes' memory.
    used, total, claimed = device.memory_used_bytes, device.memory_total_bytes, device.memory_of_processes_bytes
    host_facts = facts.host or Host()
    if host_facts.wsl or host_facts.system == "Windows" or device.memory_source != "nvml v2":
        return 0
    if used is None or not total or claimed is None or device.integrated or device.parent_uuid is not None:
        return 0
    return used - claimed if unclaimed_counts(used - claimed, total) else 0


def is_unexplained(facts: Facts) -> bool:
    """Return whether a GPU is fully busy although NVML lists no process, outside a container."""
    host_facts = facts.host or Host()
    return not (host_facts.container or host_facts.wsl) and any(
        (device.utilization_percent or 0) >= 100 and device.processes == () for device in facts.devices
    )


def _with_holders(facts: Facts, root: Path) -> Facts:
    """Return the facts with the processes that have a GPU's node open, for GPUs with unclaimed memory."""
    nodes = {
        index: f"/dev/nvidia{device.nvml_index if device.minor_number is None else device.minor_number}"
        for index, device in enumerate(facts.devices)
        if unclaimed_bytes(device, facts)
    }
    if not nodes:
        return facts
    holders, hidden = host.node_holders(nodes.values(), root)
    devices, unknown = list(facts.devices), dict(facts.unknown)
    for index, node in nodes.items():
        devices[index] = replace(devices[index], node_holders=holders[node])
        if hidden and not holders[node]:
            unknown[f"/devices/{index}/node_holders"] = f"{hidden} processes of other users"
    return replace(facts, devices=tuple(devices), unknown=unknown)


def _with_xids(facts: Facts, lines: tuple[str, ...] | None, refused: str | None) -> Facts:
    if facts.driver is None:
        return facts
    if lines is None:
        unread = dict.fromkeys((f"/driver/{name}" for name in kernel_driver.LOGGED), refused or "it cannot be read")
        return replace(facts, unknown={**facts.unknown, **unread})
    return replace(facts, driver=kernel_driver.events(lines, time.time() - time.monotonic(), facts.driver))


def select_devices(facts: Facts, keep: Callable[[Device], bool]) -> Facts:
    """Return the facts with only the devices that `keep` accepts, and their reasons for unknown fields."""
    selected = [index for index, device in enumerate(facts.devices) if keep(device)]
    unknown = {}
    for pointer, reason in facts.unknown.items():
        if (match := re.fullmatch(r"/devices/(\d+)(/.*)?", pointer)) is None:
            unknown[pointer] = reason
        elif int(match[1]) in selected:
            unknown[f"/devices/{selected.index(int(match[1]))}{match[2] or ''}"] = reason
    return replace(facts, devices=tuple(facts.devices[index] for index in selected), unknown=unknown)


def read(processes: bool = False, root: Path = host.ROOT) -> Facts:
    """Read the machine once. `processes` adds the processes on each device."""
    with Inventory(with_processes=processes, root=root) as inventory:
        return inventory.read()


# These fields identify a GPU, even after it stops answering.
IDENTITY = ("name", "uuid", "pci_address", "serial", "minor_number", "compute_capability")
NO_LONGER_LISTED = "NVML no longer lists the GPU"


class LastKnownGpus:
    """The last reading of each GPU that was not lost."""

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        # MIG instances are left out, because they may be created and deleted at any time.
        self._gpus = {
            device.uuid: device
            for device in devices
            if device.uuid is not None and device.nvml_index is not None and device.state != "lost"
        }

    def added_to(self, reading: DriverReading) -> DriverReading:
        """Return the reading, completed from earlier readings, and store it for later ones."""
        rows = list(reading.devices)
        listed = {row.device.uuid for row in rows}
        missing = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid not in listed}
        for position, row in enumerate(rows):
            if row.device.uuid is None and row.device.nvml_index is not None:
                # A row without a UUID is the missing GPU with the same index.
                earlier = next((gpu for gpu in missing.values() if gpu.nvml_index == row.device.nvml_index), None)
                if earlier is not None:
                    lacks = {name: getattr(earlier, name) for name in IDENTITY if getattr(row.device, name) is None}
                    rows[position] = replace(row, device=replace(row.device, **lacks))
                    del missing[str(earlier.uuid)]
        if reading.code == 0 and reading.error is None:
            used_indices = {row.device.nvml_index for row in rows}
            for gpu in missing.values():
                identity = {name: getattr(gpu, name) for name in IDENTITY}
                index = None if gpu.nvml_index in used_indices else gpu.nvml_index
                lost = Device(kind="cuda", nvml_index=index, state="lost", **identity)
                rows.append(DeviceReading(lost, {"*": NO_LONGER_LISTED}))
        return replace(reading, devices=tuple(map(self._with_history, rows)))

    def _with_history(self, row: DeviceReading) -> DeviceReading:
        device, before = row.device, self._gpus.get(row.device.uuid or "")
        if device.uuid is None or device.parent_uuid is not None or device.state == "lost":
            return row
        self._gpus[device.uuid] = device
        return replace(row, device=replace(device, changes=None if before is None else changes(before, device)))


def changes(before: Device, now: Device) -> Changes | None:
    """Return the growth of a GPU's counters; None if one of the readings has no time."""
    if before.read_at_s is None or now.read_at_s is None or now.read_at_s <= before.read_at_s:
        return None
    violations, violations_now = before.violations_s or {}, now.violations_s or {}
    link, link_now = before.pcie or Link(), now.pcie or Link()
    ecc, ecc_now = before.ecc or Ecc(), now.ecc or Ecc()
    reasons, reasons_now = (gpu.clock_reasons.names if gpu.clock_reasons is not None else () for gpu in (before, now))
    return Changes(
        span_s=now.read_at_s - before.read_at_s,
        violations_s={name: _growth(violations[name], violations_now.get(name)) for name in violations},
        pcie_replays=_growth(link.replays, link_now.replays),
        nvlink_errors=_new_errors(before, now),
        ecc_corrected=_growth(ecc.volatile_corrected, ecc_now.volatile_corrected),
        ecc_uncorrected=_growth(ecc.volatile_uncorrected, ecc_now.volatile_uncorrected),
        lasting_clock_reasons=tuple(name for name in reasons_now if name in reasons),
        utilization_before_percent=before.utilization_percent,
    )


def _growth(before: Counted | None, now: Counted | None) -> Counted | None:
    """Return the growth of a counter; None if it is unknown, or if the counter was reset or wrapped around."""
    return None if before is None or now is None or now < before else now - before


def _new_errors(before: Device, now: Device) -> dict[str, int]:
    """Return the number of new errors on all links, by name; names without new errors are left out."""
    new: Counter[str] = Counter()
    earlier = {link.link: link.errors for link in before.nvlinks or ()}
    for link in now.nvlinks or ():
        errors = earlier.get(link.link, {})
        new.update({name: max(count - errors.get(name, count), 0) for name, count in link.errors.items()})
    return dict(+new)
