"""What there is of NVIDIA's devices, and what is kept away, before anybody asks why."""

from __future__ import annotations

from gpucheck.report.facts import Device, Facts, Host
from gpucheck.report.finding import Finding

WSL_NODE = "/dev/dxg"
# Values of NVIDIA_VISIBLE_DEVICES by which the container toolkit leaves every GPU outside.
KEPT_OUT = ("", "void", "none")


def cards(facts: Facts) -> list[Device]:
    """The devices that NVML or CUDA lists."""
    return [device for device in facts.devices if device.nvml_index is not None or device.cuda_index is not None]


def unlisted(facts: Facts) -> Finding | None:
    """Cards on the bus that the driver does not list. In a container the host's others are on the bus too."""
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
        f"{len(others)} NVIDIA device{'s' * (len(others) != 1)} on the PCI bus not listed by the driver",
        f"{', '.join(others)}: bound to another driver (vfio, nouveau), too new or too old for this one, or failed",
        {"pci_addresses": others},
        f"see what holds it with `lspci -k -s {others[0]}`, and what the kernel says with `sudo dmesg`",
    )
