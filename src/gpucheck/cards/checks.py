"""What `gpucheck devices` looks at on each card, and the doctor takes over: one table, a row for each check."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.cards import at_rest, at_work, nvlinks, settings, xids
from gpucheck.cards.card import Said, name_of
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding

# The judge of one check: None where the device does not tell, or where there is nothing to say.
Look = Callable[[Device, Facts], Said | None]
# What is worse stands first: a card that cannot be used, one whose results may be wrong, one that is slow, a remark.
CHECKS: tuple[tuple[str, Look], ...] = (
    ("devices.answers", at_rest.answers),
    ("devices.recovery_action", at_rest.recovery_action),
    (xids.ID, xids.logged),
    ("devices.remapped_rows", at_rest.remapped_rows),
    ("devices.remap_banks", at_rest.remap_banks),
    ("devices.sram_ecc", at_rest.sram_ecc),
    ("devices.retired_pages", at_rest.retired_pages),
    ("devices.ecc", at_rest.ecc),
    ("devices.unread", at_rest.unread),
    ("devices.unclaimed_memory", at_rest.unclaimed),
    ("devices.throttled", at_work.throttled),
    ("devices.slowed_down", at_work.slowed_down),
    ("devices.violations", at_work.violations),
    ("devices.hot", at_work.hot),
    ("devices.low_clock", at_work.low_clock),
    ("devices.power_limited", at_work.power_limited),
    ("devices.clock_setting", at_work.clock_setting),
    ("devices.link_width", at_work.link_width),
    ("devices.link_generation", at_work.link_generation),
    ("devices.pcie_replays", at_work.pcie_replays),
    ("links.inactive", nvlinks.inactive),
    ("links.fabric", nvlinks.fabric),
    ("links.errors", nvlinks.errors),
    ("devices.mig_empty", settings.mig_empty),
    ("devices.ecc_mode", settings.ecc_mode),
    ("devices.power_limit", settings.power_limit),
    ("devices.application_clocks", settings.application_clocks),
    ("devices.compute_mode", settings.compute_mode),
    ("devices.not_judged", at_work.not_judged),
)


_ORDER = {check: place for place, (check, _) in enumerate(CHECKS)}


def gravity(finding: Finding) -> int:
    """Where a finding stands beside others of its verdict: the driver's first, then a dead card, down the table."""
    return _ORDER.get(finding.id, -1)


def findings(device: Device, facts: Facts) -> list[Finding]:
    """The findings about one device. What it does not tell is no finding: the reason stands in the facts."""
    # A card that NVML no longer lists has lost its index with the rest.
    if device.nvml_index is None and device.state != "lost":
        return []
    return [found for check, look in CHECKS if (found := finding_of(check, look, device, facts)) is not None]


def finding_of(check: str, look: Look, device: Device, facts: Facts) -> Finding | None:
    """One check's finding about one device; None where it has nothing to say."""
    said = look(device, facts)
    if said is None:
        return None
    evidence = {"uuid": device.uuid, "nvml_index": device.nvml_index, "device": device.id, **(said.evidence or {})}
    fix = said.fix.format(card=smi_name(device)) if said.fix else None
    message = f"{name_of(device)}: {said.message}" if said.message else ""
    return Finding(check, said.verdict, said.title, message, evidence, fix)


def smi_name(device: Device) -> str:
    """What `nvidia-smi -i` takes for this card: its PCI address, which is the same in a container, is the shortest."""
    return device.pci_address or device.uuid or str(device.nvml_index)
