"""NVIDIA GPUs: presence, names, and findings about missing GPUs. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpucheck import units
from gpucheck.machine import kernel_driver
from gpucheck.machine.choose import MASK
from gpucheck.machine.driver_reads import ANSWER_S, NOT_ANSWERING
from gpucheck.machine.host import FOR_GUESTS
from gpucheck.machine.nvml_fields import NOT_ACCESSIBLE, STATES
from gpucheck.report.facts import Device, Driver, Facts, Host
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import in_short
from gpucheck.xid import POWER_CABLES

WSL_NODE = "/dev/dxg"
# CUDA's names for the GPU of a Jetson. JetPack 5 has no NVML; JetPack 6's has no PCI address for "Orin (nvgpu)".
JETSON = re.compile(r"\b(Tegra|Xavier|Orin|Thor)\b", re.IGNORECASE)
# Values of NVIDIA_VISIBLE_DEVICES for which the container toolkit passes no GPU to the container.
KEPT_OUT = ("", "void", "none")
# Codes of nvmlReturn_t that only a loaded driver returns: no permission, no power, timeout, interrupts, corrupt
# infoROM, lost, reset required, blocked by Windows, version mismatch, in use, internal driver error.
OF_A_LOADED_DRIVER = (4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 999)
# Two other GPUs of a name are enough to show which GPU differs. A value is usual if at least 70 % of the GPUs have it.
LEAST_SAME_MODEL = 2
USUAL_SHARE = 0.7
HashableValue = TypeVar("HashableValue", bound=Hashable)
NOT_READ = "not read"
# Phrases in the error of the child process that calls NVML, if a call hung or crashed.
BROKE_OFF = ("did not answer within", "ended early (SIGSEGV", "ended early (SIGBUS", "ended early (SIGABRT")
# A counter that has not grown for this long describes a past problem.
OLD_S = 3600.0


@dataclass(frozen=True, slots=True)
class Ruling:
    """A check's verdict on one device."""

    verdict: Verdict
    title: str
    message: str = ""
    fix: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def cards(facts: Facts) -> list[Device]:
    return [device for device in facts.devices if device.nvml_index is not None or device.cuda_index is not None]


def name_of(card: Device) -> str:
    """Return torch's name of the GPU, else its NVML index."""
    return card.id or (f"NVML {card.nvml_index}" if card.nvml_index is not None else card.uuid or "a GPU")


def is_divided(card: Device) -> bool:
    """Return whether the GPU is in MIG mode. Programs then use its instances, without NVLinks."""
    return card.mig is not None and card.mig.enabled


def pointer(card: Device, facts: Facts) -> str:
    """Return the prefix of the GPU's keys in `facts.unknown`, such as `/devices/3/`."""
    return f"/devices/{next(index for index, device in enumerate(facts.devices) if device is card)}/"


def is_dead(card: Device) -> bool:
    """Return whether the GPU does not answer, which explains all of its missing values."""
    return card.state in STATES.values() or (card.state or "").startswith(NOT_ANSWERING) or is_nameless(card)


def is_nameless(card: Device) -> bool:
    """Return whether NVML counts the GPU but cannot identify it because of a fault of the GPU."""
    state = card.state or ""
    names = (card.uuid, card.name, card.pci_address)
    return names == (None, None, None) and state not in ("", NOT_ACCESSIBLE) and not state.startswith(NOT_READ)


def addresses_not_listed(facts: Facts) -> list[str]:
    listed = {device.pci_address for device in facts.devices}
    return [address for address in (facts.host.nvidia_pci_addresses if facts.host else ()) if address not in listed]


def address_of(card: Device, facts: Facts) -> str | None:
    """Return the GPU's PCI address; for a single GPU without one, the only unused address of the bus or the log."""
    if card.pci_address is not None:
        return card.pci_address
    nameless = [row for row in facts.devices if row.pci_address is None and row.nvml_index is not None and row.state]
    logged = {error.pci_address for error in facts.xids or ()} - {device.pci_address for device in facts.devices}
    unused = addresses_not_listed(facts) or sorted(logged)
    return unused[0] if nameless == [card] and len(unused) == 1 else None


def same_model(card: Device, facts: Facts) -> list[Device]:
    """Return the other GPUs of the same name that answer."""
    alike = [row for row in facts.devices if row is not card and row.name == card.name and row.nvml_index is not None]
    return [] if card.name is None else [row for row in alike if not is_dead(row)]


def usual(values: Sequence[HashableValue | None]) -> HashableValue | None:
    """Return the value that at least 70 % of the known values have; None if there is none or too few are known."""
    known = [value for value in values if value is not None]
    if len(known) < LEAST_SAME_MODEL:
        return None
    value, count = Counter(known).most_common(1)[0]
    return value if count >= USUAL_SHARE * len(known) else None


def own_addresses(host: Host) -> list[str]:
    """Return the PCI addresses of NVIDIA GPUs that are not reserved for virtual machines."""
    return [address for address in host.nvidia_pci_addresses if host.nvidia_pci_drivers.get(address) not in FOR_GUESTS]


def is_nvidia_here(facts: Facts) -> bool:
    """Return whether this machine has an NVIDIA device, by PCI, device nodes or the driver's answers."""
    host = facts.host or Host()
    # WSL has /dev/dxg for GPUs of any vendor.
    nodes = [node for node in host.nvidia_device_nodes if node != WSL_NODE]
    return bool(own_addresses(host) or nodes or cards(facts) or is_driver_loaded(facts))


def is_driver_loaded(facts: Facts) -> bool:
    """Return whether NVML's result shows a loaded driver: by the code, or because a call hung or crashed."""
    driver = facts.driver or Driver()
    error = driver.nvml_error or ""
    broke_off = driver.nvml_code is None and any(words in error for words in BROKE_OFF)
    # Code 0 with an error means that NVML started, but failed or hung afterwards.
    return driver.nvml_code in OF_A_LOADED_DRIVER or (driver.nvml_code == 0 and bool(error)) or broke_off


def has_gpu(facts: Facts) -> bool:
    """Return whether this system should have a usable GPU. In a container, the PCI bus is the host's."""
    host = facts.host or Host()
    has_node = any(re.fullmatch(r"/dev/nvidia\d+", node) for node in host.nvidia_device_nodes)
    return has_node or is_driver_loaded(facts) or (not host.container and bool(own_addresses(host)))


def silent(facts: Facts) -> Finding | None:
    """Report GPUs that CUDA shows but NVML does not list, because their health is unknown."""
    # The finding of a GPU covers its MIG instances, and NVML reports almost nothing for a Jetson.
    whole = (card for card in cards(facts) if card.parent_uuid is None and not JETSON.search(card.name or ""))
    # Another finding reports dead GPUs.
    if not (names := [name_of(card) for card in whole if card.nvml_index is None and not is_dead(card)]):
        return None
    error, gpus = (facts.driver or Driver()).nvml_error, ", ".join(in_short(names))
    message = f"NVML does not report {gpus}: {error}" if error else f"NVML does not list {gpus}"
    evidence = {"devices": names, "reason": error or "it does not list them"}
    fix = "nvidia-smi -L shows what NVML lists; sudo dmesg | grep -i nvrm shows why"
    return Finding("devices.unread", "inconclusive", "GPU health unknown", message, evidence, fix)


def unlisted(facts: Facts) -> Finding | None:
    """Report GPUs on the PCI bus that the driver does not list, outside a container."""
    host, driver, listing = facts.host or Host(), facts.driver or Driver(), cards(facts)
    if host.container or any(device.pci_address is None for device in listing):
        return None
    # A GPU that fell off the bus is reported by its Xid 79.
    lost = {error.pci_address for error in facts.xids or () if error.number == 79 and not error.is_past}
    known = {device.pci_address for device in listing} | lost
    others = [address for address in own_addresses(host) if address not in known]
    if not others or driver.nvml_code != 0 or driver.nvml_error is not None:
        return None
    # If a scheduler such as Slurm assigned some GPUs of the node, the driver lists only these.
    is_assigned = bool(listing) and MASK in facts.environment
    if failed := {other: why for other, why in (driver.not_started or {}).items() if other in others}:
        return _did_not_start(failed, others, facts, is_assigned=is_assigned)
    # If the driver is bound to a device and does not list it, the driver failed or its settings exclude the device.
    is_bound = any(host.nvidia_pci_drivers.get(other) == "nvidia" for other in others)
    verdict: Verdict = "info" if is_assigned else "warn" if not is_bound else "inconclusive" if listing else "fail"
    bound = ", ".join(sorted({host.nvidia_pci_drivers[other] for other in others if other in host.nvidia_pci_drivers}))
    title = f"{len(others)} NVIDIA device{'s' * (len(others) != 1)} on the PCI bus missing from the driver"
    message = f"{', '.join(others)} (bound to {bound or 'no driver'}, unsupported, or failed)"
    fix = f"lspci -k -s {others[0]} shows its driver; sudo dmesg | grep -i nvrm shows why"
    return Finding("devices.unlisted", verdict, title, message, {"pci_addresses": others}, fix)


def slow_start(facts: Facts) -> Finding | None:
    took_s = facts.driver.nvml_start_s if facts.driver is not None else None
    off = [name_of(card) for card in facts.devices if card.persistence_mode is False]
    if took_s is None or took_s <= ANSWER_S or not off:
        return None
    return Finding(
        "devices.persistence",
        "warn",
        f"NVML took {units.duration(took_s)} to start",
        f"persistence mode is off on {', '.join(in_short(off))}: the driver starts each GPU for each program",
        {"devices": off, "nvml_start_s": took_s},
        "sudo nvidia-smi -pm 1; if it is off after a reboot, nvidia-persistenced runs with --no-persistence-mode: "
        "systemctl cat nvidia-persistenced",
    )


# Fixes for a GPU that did not start, by a pattern for the log's reason. The first match applies.
_START_FIXES = (
    (kernel_driver.NO_POWER, POWER_CABLES),
    (kernel_driver.UNSUPPORTED, "install a driver that supports the GPU; nvidia.com/drivers lists it"),
    (kernel_driver.OPEN_NEEDED, "install the open kernel module of the same driver, then reboot"),
    (kernel_driver.NO_ROOM, "switch on Above 4G Decoding (and Resizable BAR) in the firmware"),
    ("", "drain and power-cycle the node; if it recurs, try the newest driver, then move the GPU to another slot"),
)


def _did_not_start(failed: dict[str, str], others: list[str], facts: Facts, *, is_assigned: bool) -> Finding:
    """Report GPUs that the driver could not start. A GPU that the driver does not support is only a warning."""
    reasons = [why for why in failed.values() if not re.search(kernel_driver.UNSUPPORTED, why)]
    # A job with other GPUs cannot see whether these GPUs have started since.
    verdict: Verdict = "warn" if not reasons else "inconclusive" if is_assigned else "fail"
    reason, count = [*reasons, *failed.values()][0], len((facts.host or Host()).nvidia_pci_addresses)
    missing = ", ".join(other for other in others if other not in failed)
    also = f"; also missing: {missing}" if missing else ""
    message = "; ".join(f"{address}: {why}" for address, why in failed.items()) + also
    title, evidence = f"{len(failed)} of {count} GPUs did not start", {"pci_addresses": others, "not_started": failed}
    fix = next(fix for pattern, fix in _START_FIXES if re.search(pattern, reason, re.IGNORECASE))
    return Finding("devices.unlisted", verdict, title, message, evidence, fix)


WHY_NOT_SHOWN = "ls -l /dev/nvidia*; nvidia-smi -q -d COMPUTE; sudo dmesg | grep -i -e nvrm -e xid"


def not_shown(facts: Facts) -> Finding | None:
    """Report GPUs that NVML lists and CUDA does not show, although no mask hides them."""
    # No finding if a GPU is in MIG mode or dead, which may hide others, or if CUDA shows as many under other UUIDs.
    driver = facts.driver or Driver()
    if driver.cuinit_code != 0 or driver.cuinit_error is not None or any(map(is_dead, facts.devices)):
        return None
    listed = [card for card in cards(facts) if card.nvml_index is not None and card.parent_uuid is None]
    hidden = [card for card in listed if card.state == "not shown by CUDA"]
    shown, mask = sum(card.cuda_index is not None for card in cards(facts)), facts.environment.get(MASK)
    has_mig = any(device.parent_uuid is not None or is_divided(device) for device in facts.devices)
    if not hidden or shown >= len(listed) or has_mig:
        return None
    within = "without a mask" if mask is None else f"and {MASK}={mask} names more"
    title = "NVML lists GPUs that CUDA does not show"
    message = f"NVML lists {len(listed)}, but CUDA shows {shown}, {within}"
    evidence = {"nvml": len(listed), "cuda": shown, "not_shown": [card.uuid for card in hidden], MASK: mask}
    return Finding("devices.cuda_shows_fewer", "warn" if shown else "fail", title, message, evidence, WHY_NOT_SHOWN)
