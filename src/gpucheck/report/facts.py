"""Facts about a machine, as the adapters read them. Values are raw and in SI units. An unknown value is None.

`Facts.unknown` has the reason for each missing value, by JSON Pointer. A reason for a device is for all its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClockReasons:
    """The reasons for the current clock: NVML's bitmask, and the names of its known bits."""

    bits: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link: its state, and the maximum of GPU and system together. `replays` counts resent packets."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    replays: int | None = None


@dataclass(frozen=True, slots=True)
class Ecc:
    """Error-correcting memory: the mode, and errors since the driver was loaded. The numbers are unknown if ECC is off,
    because the GPU then counts no errors. `enabled_by_default` is the GPU's default."""

    enabled: bool | None = None
    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    enabled_after_reset: bool | None = None
    enabled_by_default: bool | None = None


@dataclass(frozen=True, slots=True)
class SramEcc:
    """Uncorrected errors of the on-chip memory, since the driver was loaded (`volatile`) and over the GPU's lifetime
    (`aggregate`). `threshold_exceeded` is true if NVML reports more errors than its threshold. `sources` counts the
    errors of the lifetime by source: l2, sm, pcie, mcu (microcontroller) and other."""

    volatile_parity: int
    volatile_secded: int
    aggregate_parity: int
    aggregate_secded: int
    threshold_exceeded: bool
    sources: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Memory rows that were replaced by spares, and whether a replacement is pending or failed. Zeros prove nothing:
    some GPUs that cannot replace rows report zeros instead of "not supported"."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class RemapBanks:
    """Numbers of memory banks by their remaining spare rows: all (`max`), most, some, few, none."""

    max: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Numbers of memory pages that were retired after corrected and uncorrected errors. `pending` is true if more pages
    wait for the next reset. GPUs later than Turing replace rows instead."""

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU: its number, whether it is active, and its error counts under NVML's names."""

    link: int
    active: bool | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVSwitch fabric of a GPU. `state` is `not started`, `in progress` or `completed`. `error` is the error of a
    completed start, and `problems` are from the fabric's health report."""

    state: str
    error: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mig:
    """Multi-instance GPU (MIG): the current mode, the mode after a reset, and the UUIDs of the instances."""

    enabled: bool
    enabled_after_reset: bool
    instances: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device. NVML gives the host's PID. `name` is None if a container does not know that PID. `user`,
    `command` (the command line) and `age_s` are read only for `devices --processes`, because a command line may contain
    secrets. `utilization_percent` is NVML's share of the time in which a kernel of this process ran."""

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
    """The growth of a device's counters between two readings, `span_s` apart. A counter that is unknown in a reading,
    or that decreased, is unknown here. `violations_s` has the seconds for which each limit lowered the clock.
    `nvlink_errors` has the new errors of all NVLinks by NVML's names. `lasting_clock_reasons` are the reasons for a
    lower clock that both readings have. `utilization_before_percent` is from the earlier reading."""

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
    """One device. `id` is torch's name for it (`cuda:0`, `cpu`), or None if torch cannot name it.

    `state` is the reason if the device is not usable: `lost`, `reset required`, hidden, not answering. `parent_uuid` is
    the GPU of a MIG instance. `memory_source` is the way to count memory: version 1 of NVML's call counts the driver's
    reserved memory as used, and version 2 counts reserved memory separately. `integrated` devices share the host's
    memory. `memory_of_processes_bytes` is the total of the processes that NVML lists. `node_holders` are the processes
    that have the device's node open, read if this total does not explain the used memory.

    The hardware lowers the clock from `slowdown_celsius` on, and the driver from `gpu_max_celsius` and
    `memory_max_celsius` on. The GPU switches off at `shutdown_celsius`. `power_limit_w` is the limit in force, and
    `power_limit_default_w` the GPU's default. `fan_percent` is the requested fan speed, and may exceed 100.

    `violations_s` has the seconds since the driver was loaded for which each limit lowered the clock. `read_at_s` is
    the time of the reading on the host's monotonic clock. `changes` is the growth since this process's last reading.
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
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    processes: tuple[Process, ...] | None = None
    read_at_s: float | None = None
    changes: Changes | None = None
    cores_allowed: int | None = None
    load_1min: float | None = None

    @property
    def settings(self) -> dict[str, str]:
        texts = {
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
        return {name: str(value) for name, value in texts.items() if value}


_ON = {True: "on", False: "off", None: None}


@dataclass(frozen=True, slots=True)
class Host:
    """The machine without its accelerators. `container_limit_bytes` is the lowest limit of the container's cgroup and
    its ancestors. `nvidia_pci_drivers` has the bound kernel driver of NVIDIA GPUs by PCI address."""

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
    """The Python interpreter that runs gpucheck."""

    version: str
    implementation: str
    executable: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch, read without an import. `built_for` is cuda, rocm, xpu or cpu (with mps on macOS)."""

    version: str | None = None
    path: str | None = None
    built_for: str | None = None
    toolkit_version: str | None = None
    git_version: str | None = None


@dataclass(frozen=True, slots=True)
class XidError:
    """An Xid error of a GPU, or an SXid error of an NVSwitch, in the kernel log since boot.

    `at` is the time of the last occurrence (ISO 8601, UTC), and `count` the number of occurrences. `action` is the
    recovery action that Xid 154 requests. Errors of NVLinks and NVSwitches have `is_fatal`, and those of NVSwitches
    have `text`. `is_past` is true if the driver was reloaded since, or reported that no action is needed.
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
    """NVIDIA's driver as the kernel, NVML and libcuda report it, and the time that NVML took to start.

    `version` is from NVML, or from the kernel module if NVML has none. `cuda_version` is the newest CUDA that the
    driver supports. `nvml_code` and `cuinit_code` are the return codes of nvmlInit and cuInit, 0 for success.
    `nvml_start_s` is the time to load NVML and to call nvmlInit. `xids` are the GPUs' errors in the kernel log, and
    `sxids` those of NVSwitches; None if the log cannot be read or there is no NVIDIA GPU. `not_started` has the log's
    reason for each GPU that the driver could not start, by PCI address. `nvlink_failures` are NVLink lines without Xid.
    """

    version: str | None = None
    cuda_version: str | None = None
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
        """Return whether libcuda did not answer in time while it was loaded, started, or opened a device."""
        return "did not answer within" in (self.cuinit_error or "")


@dataclass(frozen=True, slots=True)
class Facts:
    """All values that were read. `unknown` has the reason for each missing value, by its JSON Pointer below `facts`."""

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
        return None if self.driver is None else self.driver.xids
