"""Facts: what a machine is, as its adapters read it. Raw values in SI units; an unknown value is None.

`Facts.unknown` has the reason for what was asked and not answered, under the JSON Pointer of the field, or of the
device for all of its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClockReasons:
    """Why the clock is where it is: NVML's bitmask, and the names of its known bits."""

    bits: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link: its current state, and the maximum of GPU and system together.

    `replays` counts packets resent since the driver was loaded.
    """

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    replays: int | None = None


@dataclass(frozen=True, slots=True)
class Ecc:
    """Error-correcting memory: the mode, and errors since the driver was loaded.

    Where it is off nothing is counted, and the numbers of errors are unknown. `enabled_by_default` is the default.
    """

    enabled: bool | None = None
    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    enabled_after_reset: bool | None = None
    enabled_by_default: bool | None = None


@dataclass(frozen=True, slots=True)
class SramEcc:
    """Uncorrected errors of the on-chip memory: since the driver was loaded (`volatile`) and over the GPU's life.

    `threshold_exceeded` is true if NVML reports more uncorrected errors than the threshold. `sources` are the
    uncorrected errors over the GPU's life by where they arose: l2, sm, pcie, mcu (microcontroller) and other.
    """

    volatile_parity: int
    volatile_secded: int
    aggregate_parity: int
    aggregate_secded: int
    threshold_exceeded: bool
    sources: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows that were replaced by spares, and whether a replacement is pending or has failed.

    Some GPUs that cannot replace rows answer zeros instead of "not supported": zeros prove nothing, `failed` does.
    """

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class RemapBanks:
    """Banks of the memory by how many spare rows they have left: all (`max`), most, some, few, none."""

    max: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Memory pages that were taken out of use, after errors that were corrected and those that were not; and whether
    more wait for the next reset. Up to Turing: later GPUs replace rows."""

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU: its number, whether it is active, and its errors by NVML's names for them."""

    link: int
    active: bool | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The fabric of NVSwitches that a GPU belongs to: `not started`, `in progress` or `completed`, then with what
    error, and what its health tells of problems."""

    state: str
    error: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mig:
    """Multi-instance GPU: the mode now and after a reset, and the UUIDs of the instances."""

    enabled: bool
    enabled_after_reset: bool
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device. NVML gives the host's PIDs, which a container may not know (`name` is then None).

    `user`, `command` (the command line) and `age_s` are read for `devices --processes` alone: a command line may hold
    what its owner shows nobody. `utilization_percent` is NVML's share of the time with a kernel of this process.
    """

    pid: int
    kind: str
    name: str | None = None
    used_memory_bytes: int | None = None
    user: str | None = None
    command: str | None = None
    age_s: float | None = None
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes between two readings of a device, `span_s` apart: the growth of its counters. A counter that is unknown
    in one reading, or ran backwards, is unknown here. `violations_s` are the seconds for which each limit lowered the
    clock, `nvlink_errors` the new errors of all NVLinks by NVML's names for them, and `lasting_clock_reasons` what both
    readings name as the reason for a lower clock. `utilization_before_percent` is of the earlier reading."""

    span_s: float
    violations_s: dict[str, float | None] = field(default_factory=dict)
    pcie_replays: int | None = None
    nvlink_errors: dict[str, int] = field(default_factory=dict)
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    lasting_clock_reasons: tuple[str, ...] = ()
    utilization_before_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `id` is what torch calls it (`cuda:0`, `cpu`); None where torch cannot name it.

    `state` says why it is not simply usable: `lost`, `reset required`, hidden, not answering. `parent_uuid` is the GPU
    that a MIG instance is a part of. `memory_source` says who counted: NVML's version 1 counts what the driver reserved
    as used, version 2 apart. `integrated` devices share the host's memory. `memory_of_processes_bytes` is what the
    processes that NVML lists hold together; `node_holders` are processes that have the device's node open, where those
    do not hold what is used. `iommu` is what the kernel's IOMMU does with what the device sends: `off`,
    `passthrough`, `translating`.

    The GPU's own limits: from `slowdown_celsius` on the hardware lowers the clock, from `gpu_max_celsius` and
    `memory_max_celsius` on the driver does, at `shutdown_celsius` the GPU switches itself off.
    `power_limit_w` is the limit in force, beside the GPU's own default. `fan_percent` is the requested fan speed, and
    may exceed 100.

    `peers` are the other GPUs by their PCI addresses: `ok` where the driver lets this one read them, else why not.

    `violations_s` are the seconds since the driver was loaded for which each limit held the clock. `read_at_s` is when
    the counters were read, on the host's monotonic clock; `changes` what grew since the reading before, where one
    process took two.
    """

    kind: str
    id: str | None = None
    name: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    pci_address: str | None = None
    cuda_index: int | None = None
    nvml_index: int | None = None
    state: str | None = None
    serial: str | None = None
    vbios_version: str | None = None
    gsp_firmware_version: str | None = None
    minor_number: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    integrated: bool | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_source: str | None = None
    memory_of_processes_bytes: int | None = None
    node_holders: tuple[Process, ...] | None = None
    bar1_total_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    slowdown_celsius: float | None = None
    gpu_max_celsius: float | None = None
    memory_max_celsius: float | None = None
    shutdown_celsius: float | None = None
    fan_percent: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    application_sm_clock_hz: float | None = None
    application_memory_clock_hz: float | None = None
    default_application_sm_clock_hz: float | None = None
    default_application_memory_clock_hz: float | None = None
    memory_bus_width_bits: int | None = None
    clock_reasons: ClockReasons | None = None
    violations_s: dict[str, float | None] | None = None
    pcie: Link | None = None
    ecc: Ecc | None = None
    sram_ecc: SramEcc | None = None
    remapped_rows: RemappedRows | None = None
    remap_banks: RemapBanks | None = None
    retired_pages: RetiredPages | None = None
    recovery_action: str | None = None
    mig: Mig | None = None
    fabric: Fabric | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    numa_node: int | None = None
    iommu: str | None = None
    peers: dict[str, str] | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    processes: tuple[Process, ...] | None = None
    read_at_s: float | None = None
    changes: Changes | None = None
    cores_allowed: int | None = None
    load_1min: float | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The device's settings and firmware that are known, in words."""
        found = {
            "VBIOS": self.vbios_version,
            "GSP firmware": self.gsp_firmware_version,
            "power limit": self.power_limit_w and f"{self.power_limit_w:.0f} W",
            "highest clock": self.max_sm_clock_hz and f"{self.max_sm_clock_hz / 1e6:.0f} MHz",
            "application clock": self.application_sm_clock_hz and f"{self.application_sm_clock_hz / 1e6:.0f} MHz",
            "ECC": self.ecc and _ON[self.ecc.enabled],
            "MIG": self.mig and _ON[self.mig.enabled],
            "persistence mode": _ON[self.persistence_mode],
            "compute mode": self.compute_mode,
        }
        return {name: str(value) for name, value in found.items() if value}


_ON = {True: "on", False: "off", None: None}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine outside its accelerators. `container_limit_bytes` is the least over the container's ancestors.

    `nvidia_pci_drivers` maps the PCI addresses of NVIDIA's GPUs to the kernel driver that is bound to them, where one
    is.
    """

    system: str | None = None
    release: str | None = None
    architecture: str | None = None
    wsl: bool = False
    container: str | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    container_limit_bytes: int | None = None
    container_available_bytes: int | None = None
    nvidia_pci_addresses: tuple[str, ...] = ()
    nvidia_pci_drivers: dict[str, str] = field(default_factory=dict)
    nvidia_device_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter that gpucheck runs in."""

    version: str
    implementation: str
    executable: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, read without importing it. `built_for` is cuda, rocm, xpu or cpu; mps is part of macOS's."""

    version: str | None = None
    path: str | None = None
    built_for: str | None = None
    toolkit_version: str | None = None
    git_version: str | None = None


@dataclass(frozen=True, slots=True)
class XidError:
    """An Xid error of one GPU, or an SXid error of one NVSwitch, in the kernel's log since boot: NVIDIA's number, and
    the PCI address that the line names.

    `at` is when it came last (ISO 8601, UTC) and `count` how often. `action` is what Xid 154 says that the GPU needs;
    `is_fatal` is what errors of NVLink and of NVSwitches say of themselves, `text` an NVSwitch's own words. `is_past`
    is whether the driver was loaded again since, or has said that nothing is needed any more.
    """

    number: int
    pci_address: str
    at: str | None = None
    count: int = 1
    action: str | None = None
    is_fatal: bool | None = None
    is_past: bool = False
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver as the kernel, NVML and libcuda see it, and how long the two libraries took to start.

    `version` is NVML's word for the driver, else the kernel module's. `cuda_version` is the newest CUDA that the driver
    supports; `libcuda_version` is what the loaded libcuda says of itself. `nvml_code` and `cuinit_code` are the
    libraries' own answers to their start, 0 for success. `nvml_start_s` is loading NVML and nvmlInit, `cuinit_start_s`
    loading libcuda and cuInit. `confidential_computing` is off, ready or not ready: until then CUDA does not start.
    `xids` are the Xid errors in the kernel log, `sxids` those of NVSwitches; None where it could not be read, or there
    is no NVIDIA GPU. `not_started` has the log's reason for each GPU that the driver could not start, by PCI address,
    `nvlink_failures` its other lines about an NVLink that failed.
    """

    version: str | None = None
    cuda_version: str | None = None
    confidential_computing: str | None = None
    kernel_module_version: str | None = None
    kernel_module_open: bool | None = None
    kernel_module_loaded: bool | None = None
    nvml_version: str | None = None
    nvml_path: str | None = None
    nvml_code: int | None = None
    nvml_error: str | None = None
    nvml_start_s: float | None = None
    libcuda_path: str | None = None
    libcuda_version: str | None = None
    cuinit_code: int | None = None
    cuinit_error: str | None = None
    xids: tuple[XidError, ...] | None = None
    sxids: tuple[XidError, ...] | None = None
    not_started: dict[str, str] | None = None
    nvlink_failures: tuple[str, ...] | None = None

    @property
    def is_hung(self) -> bool:
        """True if libcuda did not answer in time while it was loaded, started, or opened a device."""
        return "did not answer within" in (self.cuinit_error or "")


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was read, and why the rest could not be: JSON Pointer below `facts` → reason."""

    host: Host | None = None
    python: Python | None = None
    torch: TorchBuild | None = None
    driver: Driver | None = None
    devices: tuple[Device, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    torch_runtime: dict[str, str] | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def xids(self) -> tuple[XidError, ...] | None:
        """The Xid errors in the kernel log; None where nobody knows."""
        return None if self.driver is None else self.driver.xids
