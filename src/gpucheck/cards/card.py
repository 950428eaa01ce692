"""NVIDIA's cards: which are present, their names, and what a check says of one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpucheck.report.facts import Device, Facts, Host
from gpucheck.report.finding import Finding, Verdict

WSL_NODE = "/dev/dxg"
# Values of NVIDIA_VISIBLE_DEVICES by which the container toolkit leaves every GPU outside.
KEPT_OUT = ("", "void", "none")


@dataclass(frozen=True, slots=True)
class Said:
    """A check's verdict on one device."""

    verdict: Verdict
    title: str
    message: str = ""
    fix: str | None = None
    evidence: dict[str, Any] | None = None


def cards(facts: Facts) -> list[Device]:
    """The devices that NVML or CUDA lists."""
    return [device for device in facts.devices if device.nvml_index is not None or device.cuda_index is not None]


def name_of(card: Device) -> str:
    """What torch calls the card, else NVML's number of it."""
    return card.id or (f"NVML {card.nvml_index}" if card.nvml_index is not None else card.uuid or "a GPU")


def low_clocks(pairs: Iterable[tuple[str, float | None, float | None]], share: float) -> list[str]:
    """Which of these clocks (name, now, its own; in Hz) are below this share of their own, in words."""
    return [
        f"{name} {now / 1e6:.0f} of {own / 1e6:.0f} MHz"
        for name, now, own in pairs
        if now is not None and own is not None and now < share * own
    ]


def pointer(card: Device, facts: Facts) -> str:
    """Where the card stands in the document, as the keys of `facts.unknown` begin: `/devices/3/`."""
    return f"/devices/{next(place for place, device in enumerate(facts.devices) if device is card)}/"


def is_nvidia_here(facts: Facts) -> bool:
    """Whether this machine has an NVIDIA device, by PCI, device nodes or the driver's libraries."""
    host = facts.host or Host()
    # Every WSL with a GPU of any maker has /dev/dxg.
    nodes = [node for node in host.nvidia_device_nodes if node != WSL_NODE]
    return bool(host.nvidia_pci_addresses or nodes or cards(facts))


def unlisted(facts: Facts) -> Finding | None:
    """Cards on the PCI bus that the driver does not list; not in a container, which sees the host's other cards."""
    host, listing = facts.host or Host(), cards(facts)
    if host.container or any(device.pci_address is None for device in listing):
        return None
    listed = {device.pci_address for device in listing}
    others = [address for address in host.nvidia_pci_addresses if address not in listed]
    started = facts.driver is not None and facts.driver.nvml_code == 0 and facts.driver.nvml_error is None
    if not others or not started:
        return None
    return Finding(
        "devices.unlisted",
        "warn",
        f"{len(others)} NVIDIA device{'s' * (len(others) != 1)} on the PCI bus missing from the driver",
        f"{', '.join(others)} (bound to vfio or nouveau, unsupported, or failed)",
        {"pci_addresses": others},
        f"lspci -k -s {others[0]} shows its driver; sudo dmesg | grep -i nvrm shows why",
    )
