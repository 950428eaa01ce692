"""What `gpucheck devices` looks at on each card, and the doctor takes over: one table, a row for each check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpucheck.cards import at_rest, at_work, nvlinks, settings, xids
from gpucheck.cards.card import Said, name_of
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding, Verdict

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


_IN_BRACKETS = re.compile(r" \([^()]*\)")
# Two names are as short as a range of them.
SHORTENED_FROM = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Findings of one check with one verdict and title: `devices` are their cards, runs of them shortened.

    `messages` pairs each card's name (empty for a finding about no card) with what is said of it.
    """

    verdict: Verdict
    title: str
    devices: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]
    fixes: tuple[str, ...]

    @property
    def message(self) -> str:
        """What is said, with the names of the cards: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
        return told_once(self.messages)

    @property
    def line(self) -> str:
        """The cards first, then title and message: `cuda:0, cuda:1  reset needed: NVML's recovery action is …`."""
        who = f"{', '.join(self.devices)}  " if self.devices else ""
        alike = len({message for _, message in self.messages}) == 1
        message = self.messages[0][1] if alike else self.message
        return f"{who}{self.title}{f': {message}' if message else ''}"


def grouped(found: Sequence[Finding]) -> list[Group]:
    """The findings without repetition: cards of which the same is said share a line. In the order of the first of each.

    What is no card's stands alone.
    """
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for number, finding in enumerate(found):
        of = name_in(finding)
        key = (finding.id, finding.verdict, finding.title, "" if of else str(number))
        groups.setdefault(key, []).append(finding)
    return [_group(members) for members in groups.values()]


def name_in(finding: Finding) -> str:
    """The card that the finding is about, as its message begins; empty where it is about no card."""
    if "nvml_index" not in finding.evidence:
        return ""
    if not finding.message:
        return str(finding.evidence.get("device") or f"NVML {finding.evidence['nvml_index']}")
    name, colon, _ = finding.message.partition(": ")
    return name if colon else ""


def _group(members: list[Finding]) -> Group:
    first = members[0]
    names = [name_in(finding) for finding in members]
    messages = [finding.message.removeprefix(f"{name}: ") for name, finding in zip(names, members, strict=True)]
    if len(set(messages)) >= SHORTENED_FROM:
        # Of many cards what names each at the rack is left to the table and the JSON.
        messages = [_IN_BRACKETS.sub("", message) for message in messages]
    fixes = tuple(dict.fromkeys(finding.fix for finding in members if finding.fix))
    pairs = tuple(zip(names, messages, strict=True))
    return Group(first.verdict, first.title, in_short([name for name in names if name]), pairs, fixes)


def told_once(pairs: Sequence[tuple[str, str]]) -> str:
    """What is said of each name, once for all of whom it is said: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
    by_words: dict[str, list[str]] = {}
    for name, words in pairs:
        by_words.setdefault(words, []).append(name)
    return "; ".join(f"{', '.join(in_short(who))}: {words}" if who[0] else words for words, who in by_words.items())


def in_short(names: Sequence[str]) -> tuple[str, ...]:
    """The names with runs of three and more shortened: `cuda:0 to cuda:7`."""
    runs: list[list[str]] = []
    for name in names:
        follows = bool(runs) and name == _following(runs[-1][-1])
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    return tuple(part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) >= SHORTENED_FROM else run))


def _following(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + 1}" if len(stem) < len(name) else ""
