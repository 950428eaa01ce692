"""The cards themselves, beside the ladder: their health, how they run now, how they are set, the links between them.

Nearly each row is a check of `gpucheck devices`, asked of every card. Cards that others keep busy are judged from a
live reading; those that are free by the doctor's own load (`load.`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.cards import checks
from gpucheck.cards.at_work import HARDWARE, LOW_CLOCK, work
from gpucheck.cards.card import is_dead, name_of
from gpucheck.doctor.condition import Certainty, Condition, Evidence, Seen
from gpucheck.links import is_speed_lost, is_width_lost
from gpucheck.machine.inventory import unclaimed_bytes
from gpucheck.machine.nvml.fields import applies
from gpucheck.measure.telemetry import (
    HELD,
    LEAST_VIOLATION_SHARE,
    POWER_LIMITED,
    is_below_maximum,
    violation_shares,
)
from gpucheck.report.facts import Device
from gpucheck.report.finding import VERDICTS, Verdict, grouped, told_once
from gpucheck.report.results.short import CardUnderLoad, LoadResult

# A context of CUDA's takes a few hundred MiB, the one of the torch that is being asked among them.
FOREIGN_BYTES = 2**30
LOOKS = dict(checks.CHECKS)


def _of_every_card(check: str) -> Callable[[Evidence], Seen | None]:
    """A judge for what this check says of every card, with the worst verdict, title and fix of them."""

    def judge(evidence: Evidence) -> Seen | None:
        if _is_the_diagnosis(check, evidence):
            return None
        of_cards = [checks.finding_of(check, LOOKS[check], card, evidence.facts) for card in _cards(evidence)]
        findings = [finding for finding in of_cards if finding is not None and finding.verdict not in ("pass", "skip")]
        if not findings:
            return None
        # info, warn, fail in the order of verdicts: the last is the worst that a card may have.
        worst = max(findings, key=lambda finding: VERDICTS.index(finding.verdict))
        said = [
            group.message if group.title == worst.title else f"{group.message} ({group.title})"
            for group in grouped(findings)
        ]
        seen = {"devices": [finding.evidence for finding in findings]}
        return Seen("; ".join(said), seen, worst.fix or "", verdict=worst.verdict, title=worst.title)

    return judge


def _cards(evidence: Evidence) -> list[Device]:
    return [card for card in evidence.facts.devices if card.nvml_index is not None or card.state == "lost"]


def _is_the_diagnosis(check: str, evidence: Evidence) -> bool:
    """Whether a rung is broken by just this: it is then told there, and not twice."""
    if check == "devices.answers":
        return not evidence.cuda_works and any(is_dead(card) for card in _cards(evidence))
    if check == "devices.mig_empty":
        return not evidence.cuda_works
    return check == "devices.recovery_action" and evidence.driver.cuinit_code not in (0, None)


def _check(
    *,
    id: str,
    verdict: Verdict,
    certainty: Certainty,
    title: str,
    meaning: str,
    fix: str,
    settle: str = "",
    texts: tuple[str, ...] = (),
    source: str = "",
) -> Condition:
    """A check of `gpucheck devices` as a condition of the same id."""
    judge = _of_every_card(id)
    return Condition(
        id, None, verdict, certainty, title, meaning, fix, judge, settle=settle, texts=texts, source=source
    )


# -- what the doctor asks itself ---------------------------------------------------------------------------------------


def _persistence(evidence: Evidence) -> Seen | None:
    off = [name_of(card) for card in evidence.cards if card.persistence_mode is False]
    if not off or evidence.host.wsl or evidence.host.system != "Linux":
        return None
    return Seen(f"off on {', '.join(off)}", {"devices": off})


def _foreign_memory(evidence: Evidence) -> Seen | None:
    """Memory in use by others. In a container their PIDs are the host's, so the amount decides and not the list."""
    taken = [
        (card, card.memory_used_bytes)
        for card in evidence.cards
        if card.memory_used_bytes is not None
        and card.memory_used_bytes > FOREIGN_BYTES
        and not card.integrated
        # What nobody is seen to hold has its own row.
        and not (not card.processes and unclaimed_bytes(card, evidence.facts))
    ]
    if not taken:
        return None
    told = []
    for card, used in taken:
        by = ", ".join(f"{process.name or 'not visible here'} ({process.pid})" for process in card.processes or ())
        told.append(
            f"{name_of(card)}: {units.capacity(used)} {f'by {by}' if by else 'by processes that are not listed'}"
        )
    seen = Seen("; ".join(told), {name_of(card): used for card, used in taken})
    if not all(_is_for_a_screen(card) for card, _ in taken):
        return seen
    return replace(seen, verdict="info", title="the desktop holds GPU memory")


def _is_for_a_screen(card: Device) -> bool:
    """Whether programs that draw hold it: beside them is no more than a context or two, torch's own among them."""
    computing = [process.used_memory_bytes for process in card.processes or () if "graphics" not in process.kind]
    known = [used for used in computing if used is not None]
    return len(computing) < len(card.processes or ()) and known == computing and sum(known) < FOREIGN_BYTES


def _unread(evidence: Evidence) -> Seen | None:
    """What is not known of cards that torch uses; where it cannot use them, that is told by its rung."""
    if not evidence.torch_works:
        return None
    silent = [name_of(card) for card in evidence.cards if card.nvml_index is None and card.parent_uuid is None]
    # A Jetson has no NVML.
    if silent and not evidence.stack.jetson:
        why = evidence.driver.nvml_error or "it does not list them"
        return Seen(f"NVML tells nothing of {', '.join(silent)}: {why}", {"devices": silent, "reason": why})
    return _of_every_card("devices.unread")(evidence)


CARDS: tuple[Condition, ...] = (
    Condition(
        id="devices.persistence",
        rung=None,
        verdict="info",
        certainty="proof",
        title="persistence mode is off: the driver restarts for each program",
        meaning="Without persistence mode, or a program that holds the card, the driver lets go of it at each end: "
        "the next start takes seconds, and settings are lost.",
        fix="sudo systemctl enable --now nvidia-persistenced",
        judge=_persistence,
    ),
    Condition(
        id="devices.foreign_memory",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="other processes hold GPU memory",
        meaning="What is taken is not there for you: batches that fitted yesterday run out of memory.",
        fix="gpucheck devices --processes",
        judge=_foreign_memory,
    ),
    _check(
        id="devices.unclaimed_memory",
        verdict="warn",
        certainty="strong",
        title="GPU memory is held by no visible process",
        meaning="More than 1 GiB and 5 % of the card's memory is in use that none of the processes holds which NVML "
        "lists: a process that died and is not yet gone, one in a container, or memory that the driver did not take "
        "back. Not told in a container and on Windows, where processes cannot be seen.",
        fix="sudo fuser -v /dev/nvidia*",
        source="NVML, nvmlDeviceGetMemoryInfo_v2 without what it reserves, less usedGpuMemory of all processes",
    ),
    _check(
        id="devices.answers",
        verdict="fail",
        certainty="proof",
        title="a card does not answer its driver",
        meaning="NVML lists the card, and asking it fails: it fell off the bus, or it needs a reset.",
        fix="sudo dmesg | grep -i xid",
        texts=(r"GPU is lost", r"Unable to determine the device handle"),
        source="NVML, nvmlReturn_t 15 and 16",
    ),
    _check(
        id="devices.recovery_action",
        verdict="fail",
        certainty="proof",
        title="the driver asks for a recovery action",
        meaning="The driver itself says what the card needs before it can be relied on.",
        fix="follow the driver's recovery action",
        source="NVML, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    ),
    _check(
        id="devices.remapped_rows",
        verdict="fail",
        certainty="proof",
        title="faulty memory rows",
        meaning="A card replaces faulty rows of its memory by spares. One that could not be replaced is a fault that "
        "stays; one that waits for the next reset is in use until then, and a warning.",
        fix="drain the node and replace the card",
        source="NVML, nvmlDeviceGetRemappedRows",
    ),
    _check(
        id="devices.remap_banks",
        verdict="warn",
        certainty="proof",
        title="banks of memory without spare rows",
        meaning="Each bank of a card's memory has spare rows for its faulty ones. Where a bank has none left, its next "
        "faulty row cannot be replaced; few left are a remark.",
        fix="plan to replace the card",
        source="NVML, nvmlDeviceGetRowRemapperHistogram",
    ),
    _check(
        id="devices.sram_ecc",
        verdict="fail",
        certainty="proof",
        title="errors of the on-chip memory (SRAM)",
        meaning="Caches and registers have no spares. NVML itself says when a card has more uncorrected errors there "
        "than it may have: NVIDIA then replaces it. Any since the driver was loaded is a failure as well.",
        fix="drain the node and replace the card",
        source="NVML, nvmlDeviceGetSramEccErrorStatus",
    ),
    _check(
        id="devices.retired_pages",
        verdict="fail",
        certainty="proof",
        title="memory pages were retired",
        meaning="Cards up to Turing take faulty pages of their memory out of use; later ones replace rows. A few are "
        "no harm, one that waits is still in use until the next reset, and a card that has none to spare is replaced.",
        fix="reset the card; at the limit, replace it",
        source="NVIDIA, Dynamic Page Retirement: 64 pages at most; DCGM's diagnostics fail from 63 on, and warn here "
        "beyond 15 after uncorrected errors",
    ),
    _check(
        id="devices.ecc",
        verdict="fail",
        certainty="proof",
        title="uncorrected memory errors",
        meaning="Counted since the driver was loaded: results since then may be wrong.",
        fix="reset the card; if errors return, replace it",
        source="NVML, nvmlDeviceGetTotalEccErrors",
    ),
    Condition(
        id="devices.unread",
        rung=None,
        verdict="inconclusive",
        certainty="proof",
        title="a card's health could not be read",
        meaning="NVML has this figure for the card, and did not tell it: an error, no permission, a call that never "
        "returned, or an answer that cannot be true. What is not supported does not count.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
        judge=_unread,
        source="NVML, nvmlReturn_t",
    ),
    _check(
        id="devices.throttled",
        verdict="warn",
        certainty="strong",
        title="a busy card throttles to protect itself",
        meaning="Heat, the power supply or the driver holds the clock of a card that is at work (busy for half of the "
        "time or more). A failure where the hardware does so in both of two readings: its clock is then half or less.",
        settle="`gpucheck devices --watch 2s` shows whether it lasts",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; then check fans, air flow, power cables and supply",
        source="NVML, nvmlClocksEventReasons 0x8, 0x20, 0x40 and 0x80",
    ),
    _check(
        id="devices.slowed_down",
        verdict="warn",
        certainty="hint",
        title="an idle card throttles",
        meaning="The hardware lowers the clock because it is too hot or for want of power. A card at rest has no "
        "cause for either: its cooling or its power supply may have failed.",
        settle="`gpucheck bench matmul` shows the clock under load",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        source="NVML, nvmlClocksEventReasons",
    ),
    _check(
        id="devices.violations",
        verdict="info",
        certainty="proof",
        title="limits lowered the clock",
        meaning="The driver counts for how long heat, power, the board, reliability and sync boost held a clock. What "
        "grew between two readings holds it now: heat and reliability are a warning. Since the driver was loaded it is "
        "a remark, for power limits do so at any full load.",
        fix="no action needed; nvidia-smi -q -d PERFORMANCE shows what holds the clock now",
        source="NVML, NVML_FI_DEV_PERF_POLICY_POWER to _RELIABILITY",
    ),
    _check(
        id="devices.hot",
        verdict="warn",
        certainty="proof",
        title="a card is at a temperature limit",
        meaning="Each card has its limits: the driver lowers the clock at the highest operating temperature of GPU or "
        "memory, the hardware at the slowdown temperature, and at the last the card switches itself off.",
        fix="check fans, air flow and room temperature",
        source="NVML, NVML_TEMPERATURE_THRESHOLD_GPU_MAX, _MEM_MAX, _SLOWDOWN and _SHUTDOWN of this card",
    ),
    _check(
        id="devices.low_clock",
        verdict="warn",
        certainty="hint",
        title="a busy card stays far below its maximum clock for no reported reason",
        meaning="Work is there, nothing is said to hold the clock, and it does not rise: a fifth or more below its "
        "maximum, or below the other cards of the same name that are as busy. A clock that was locked looks so.",
        settle="`gpucheck devices --watch 2s` shows whether it lasts",
        fix="nvidia-smi -q -d CLOCK,PERFORMANCE; "
        "a lock of the clock goes with `sudo nvidia-smi -i INDEX --reset-gpu-clocks`",
        source="a choice: below half for a card that is busy for half of the time; a fifth below for one that is busy "
        "for nine tenths. A Tesla T4's base clock is 585 of 1590 MHz, which its power limit explains",
    ),
    _check(
        id="devices.power_limited",
        verdict="info",
        certainty="proof",
        title="the power limit lowers a busy card's clock",
        meaning="Normal at full load: the card is as fast as its power limit lets it be. A warning where the card says "
        "so, draws less than half of its limit and stays below half of its clock.",
        fix="no action needed; nvidia-smi -q -d POWER says whether the limit is the card's own",
        source="NVML, nvmlClocksEventReasons 0x4",
    ),
    _check(
        id="devices.clock_setting",
        verdict="info",
        certainty="proof",
        title="a setting lowers a busy card's clock",
        meaning="Somebody set application clocks, a display clock or sync boost. A warning where it costs a fifth or "
        "more.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
        source="NVML, nvmlClocksEventReasons 0x2, 0x10 and 0x100",
    ),
    _check(
        id="devices.link_width",
        verdict="warn",
        certainty="strong",
        title="a busy card's PCIe link uses fewer lanes than it could",
        meaning="Copies are slower in proportion. A warning where a card of the same name has more, where fewer than "
        "four are left, and for parts that have sixteen by their data sheet; else a remark, for many laptops, small "
        "cards and slots are wired so.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, remove risers, check the slot's firmware setting (bifurcation)",
        source="NVML, nvmlDeviceGetCurrPcieLinkWidth and nvmlDeviceGetMaxPcieLinkWidth; NVIDIA's data sheets",
    ),
    _check(
        id="devices.link_generation",
        verdict="warn",
        certainty="strong",
        title="a busy card's PCIe link is slower than card and slot allow",
        meaning="Each generation has twice the rate of the one before. A link that does not rise on a card at work was "
        "lowered after errors, or by a setting.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, remove risers, check the slot's firmware setting",
        source="NVML, nvmlDeviceGetCurrPcieLinkGeneration and nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    _check(
        id="devices.pcie_replays",
        verdict="warn",
        certainty="strong",
        title="the PCIe link resends packets (replays)",
        meaning="A link corrects its errors by sending again, which costs time and is the first sign of a bad contact. "
        "A warning where two readings show more than a sound link may have in that time, or the counter more than in a "
        "day; fewer are a remark.",
        settle="`gpucheck devices --watch 60s` shows whether the counter grows",
        fix="reseat the card and its riser; sudo dmesg | grep -i aer shows errors of the bus",
        source="NVML, nvmlDeviceGetPcieReplayCounter; DCGM's health check of PCIe: a bit error rate of 1e-12, which is "
        "31 a minute for sixteen lanes of the fifth generation",
    ),
    _check(
        id="devices.mig_empty",
        verdict="warn",
        certainty="proof",
        title="a card is in MIG mode without an instance",
        meaning="In MIG mode programs use instances, and there is none: the card is not there for anybody. The others "
        "of the machine go on.",
        fix="sudo nvidia-smi mig -i INDEX -cgi 0 -C to make an instance; or sudo nvidia-smi -i INDEX -mig 0 to use the "
        "whole card",
        source="NVIDIA Multi-Instance GPU User Guide",
    ),
    _check(
        id="devices.ecc_mode",
        verdict="info",
        certainty="proof",
        title="ECC is off now or after a reset",
        meaning="Without it errors of the memory are neither corrected nor counted. Not told of cards that come so; a "
        "warning where one card has another mode than the others of its name.",
        fix="sudo nvidia-smi --ecc-config=1, and reset the card",
        source="NVML, nvmlDeviceGetEccMode and nvmlDeviceGetDefaultEccMode",
    ),
    _check(
        id="devices.power_limit",
        verdict="info",
        certainty="proof",
        title="the power limit is below the card's default",
        meaning="Under load the clock is lower for it. A warning where it costs a fifth or more, or where one card has "
        "another limit than the others of its name.",
        fix="sudo nvidia-smi --power-limit=WATTS, where it was not set on purpose",
        source="NVML, nvmlDeviceGetEnforcedPowerLimit and nvmlDeviceGetPowerManagementDefaultLimit",
    ),
    _check(
        id="devices.application_clocks",
        verdict="info",
        certainty="proof",
        title="application clocks are below the card's default",
        meaning="Somebody set them: under load the clock goes no higher.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
        source="NVML, nvmlDeviceGetApplicationsClock and nvmlDeviceGetDefaultApplicationsClock",
    ),
    _check(
        id="devices.compute_mode",
        verdict="info",
        certainty="proof",
        title="compute mode prohibited",
        meaning="No program may compute on the card; a program that tries is told that it is busy or unavailable.",
        fix="sudo nvidia-smi --compute-mode=0",
        source="NVML, nvmlDeviceGetComputeMode",
    ),
    _check(
        id="links.fabric",
        verdict="warn",
        certainty="proof",
        title="a GPU is not connected to the NVSwitch fabric",
        meaning="GPUs on NVSwitches register with the fabric manager, and copy to each other directly only once that "
        "is completed. A route that is unhealthy or a degraded bandwidth is told by the fabric's own health.",
        settle="`nvidia-smi -q | grep -A8 Fabric` and `systemctl status nvidia-fabricmanager` show both sides",
        fix="sudo systemctl restart nvidia-fabricmanager; it must be of exactly the driver's version",
        source="NVML, nvmlDeviceGetGpuFabricInfoV",
    ),
    _check(
        id="links.inactive",
        verdict="warn",
        certainty="strong",
        title="NVLinks are down",
        meaning="Some cards have more links than their board or bridge connects, so that inactive ones alone are a "
        "remark. Where another card of the same name has more active, one was lost: copies between GPUs are slower, or "
        "take another way. A failure where all links of a card on a board of NVIDIA's are down and others' are not; a "
        "warning where all links of all its cards are down although the fabric calls itself completed. A card without "
        "a bridge is left alone, and so is one in MIG mode, whose links no program can use.",
        settle="`nvidia-smi nvlink --status` and `nvidia-smi topo -m` show which GPU a link leads to",
        fix="look for Xid 74, 136 and 144 to 150 in `sudo dmesg`; reset the cards, then reseat the bridge or the board",
        source="NVML, nvmlDeviceGetNvLinkState; DCGM's health check fails for a link that is down",
    ),
    _check(
        id="links.errors",
        verdict="warn",
        certainty="strong",
        title="NVLinks count errors",
        meaning="Counted since the last reset. A link corrects checksum errors (crc) by itself, and some are a remark; "
        "data sent again (replay), links set up anew (recovery) and lost packets cost time and may stop a job.",
        settle="the counters grow under load: `nvidia-smi nvlink --errorcounters`, before and after",
        fix="if they grow, reset the cards; then reseat the bridge or the board",
        source="DCGM's health check of NVLink: one replay, recovery or error of the fifth generation fails there, one "
        "checksum error warns. Its rates need a watch over time, so that here nothing fails",
    ),
)


# One reading may fall into the change of a clock, where the first of these flashes (DCGM's documentation says so).
LEAST_READINGS = 2
# In this share of a second's readings it is no flash but how the card runs.
SUSTAINED = 0.5
# So close to its slowdown a second after rest, a card will reach it.
CLOSE_CELSIUS = 5.0
Judge = Callable[[Evidence], Seen | None]
# What is read under load, and why a verdict could not be given without it.
READ = ("sm_clock_hz", "clock_reasons", "temperature_celsius", "pcie/generation", "pcie/width")


def _seen(evidence: Evidence) -> Iterator[tuple[CardUnderLoad, Any]]:
    """The cards that were read under load, and what was read."""
    for card in evidence.load.cards if evidence.load is not None else ():
        if card.telemetry is not None:
            yield card, card.telemetry


def _device(evidence: Evidence, name: str) -> Device | None:
    return next((card for card in evidence.cards if card.id == name), None)


def _held(evidence: Evidence, names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """By card, in how many readings these reasons were given; without what was seen once."""
    found = {}
    for card, _ in _seen(evidence):
        counts = {name: card.held_by[name] for name in names if card.held_by.get(name, 0) >= LEAST_READINGS}
        if counts:
            found[card.device] = counts
    return found


def _readings(evidence: Evidence) -> dict[str, int]:
    return {card.device: telemetry["readings"] for card, telemetry in _seen(evidence)}


def _words(held: dict[str, dict[str, int]], readings: dict[str, int]) -> str:
    return "; ".join(
        f"{card}: {', '.join(f'{name} in {count} of {readings[card]} readings' for name, count in counts.items())}"
        for card, counts in held.items()
    )


def _hardware(evidence: Evidence) -> Seen | None:
    held, readings = _held(evidence, HARDWARE), _readings(evidence)
    if not held:
        return None
    sustained = any(max(counts.values()) >= SUSTAINED * readings[card] for card, counts in held.items())
    verdict: Verdict | None = "fail" if sustained else None
    return Seen(_words(held, readings), {"held_by": held, "readings": readings}, verdict=verdict)


def _thermal(evidence: Evidence) -> Seen | None:
    held, readings = _held(evidence, ("sw_thermal_slowdown",)), _readings(evidence)
    # The driver's own counter also has what happened between two readings.
    shares = {
        card.device: share
        for card, telemetry in _seen(evidence)
        if (share := violation_shares(telemetry).get("thermal", 0.0)) > LEAST_VIOLATION_SHARE
    }
    if not held and not shares:
        return None
    counted = [f"{card}: held for {units.percent(share)} of the time" for card, share in shares.items()]
    said = "; ".join([*([_words(held, readings)] if held else []), *counted])
    return Seen(said, {"held_by": held, "readings": readings, "violation_shares": shares})


def _power_limited(evidence: Evidence) -> Seen | None:
    held, readings = _held(evidence, POWER_LIMITED), _readings(evidence)
    if not held:
        return None
    return Seen(_words(held, readings), {"held_by": held, "readings": readings})


def _setting(evidence: Evidence) -> Seen | None:
    found = {
        card.device: [name for name in HELD if card.held_by.get(name)]
        for card, telemetry in _seen(evidence)
        if is_below_maximum(telemetry)
    }
    found = {card: names for card, names in found.items() if names}
    if not found:
        return None
    return Seen("; ".join(f"{card}: {', '.join(names)}" for card, names in found.items()), {"held_by": found})


def _low_clock(evidence: Evidence) -> Seen | None:
    said, rows = [], {}
    for card, telemetry in _seen(evidence):
        clock, most = telemetry["sm_clock_hz"], telemetry["max_sm_clock_hz"]
        explained = set(card.held_by) - {"gpu_idle"}
        if clock and most and clock["median"] < LOW_CLOCK * most and not explained:
            said.append(f"{card.device}: {clock['median'] / 1e6:.0f} of {most / 1e6:.0f} MHz")
            rows[card.device] = {"sm_clock_hz": clock["median"], "max_sm_clock_hz": most}
    return Seen("; ".join(said), {"clocks": rows}) if said else None


def _link(evidence: Evidence) -> Iterator[tuple[str, dict[str, Any]]]:
    """The PCIe links that were read; a device beside the CPU's memory, or on NVLink-C2C, has none that matters."""
    for card, telemetry in _seen(evidence):
        device = _device(evidence, card.device)
        if telemetry.get("c2c_bytes_per_s") is None and not (device is not None and device.integrated):
            yield card.device, telemetry["pcie"]


def _below(now: str, most: str, sign: str, is_lost: Callable[[Device | None, dict[str, Any]], bool]) -> Judge:
    """A link that is below what NVML calls possible: a warning where that was lost, else a remark.

    It was lost where `is_lost` says so of the card alone, and where a card of the same name has more.
    """

    def judge(evidence: Evidence) -> Seen | None:
        links = dict(_link(evidence))
        found = {card: link for card, link in links.items() if link.get(now) and (link.get(most) or 0) > link[now]}
        if not found:
            return None
        said, warns = [], False
        for card, link in found.items():
            device = _device(evidence, card)
            alike = [
                other[now]
                for name, other in links.items()
                if other.get(now) and device is not None and _name(evidence, name) == device.name
            ]
            behind = max(alike, default=link[now]) > link[now]
            warns = warns or behind or is_lost(device, link)
            beside = f", where a card of the same name has {sign}{max(alike)}" if behind else ""
            said.append(f"{card}: {sign}{link[now]}, and {sign}{link[most]} is possible{beside}")
        told = {"links": found, "readings": _readings(evidence)}
        return Seen("; ".join(said), told, verdict=None if warns else "info")

    return judge


def _name(evidence: Evidence, card: str) -> str | None:
    device = _device(evidence, card)
    return None if device is None else device.name


def _lost_lanes(device: Device | None, link: dict[str, Any]) -> bool:
    return is_width_lost(link["width"], device.name if device is not None else None)


def _lost_speed(device: Device | None, link: dict[str, Any]) -> bool:
    return is_speed_lost(link["generation"], device.pci_address if device is not None else None)


def _slot(evidence: Evidence) -> Seen | None:
    said, found = [], {}
    for card, link in _link(evidence):
        pairs = (("generation", "generation "), ("width", "x"))
        less = [
            f"{sign}{link[f'max_{name}']} of {sign}{link[f'device_max_{name}']}"
            for name, sign in pairs
            if link.get(f"max_{name}") and (link.get(f"device_max_{name}") or 0) > link[f"max_{name}"]
        ]
        if less:
            said.append(f"{card}: {', '.join(less)}")
            found[card] = link
    return Seen("; ".join(said), {"links": found}) if said else None


def _hot(evidence: Evidence) -> Seen | None:
    said, rows, over = [], {}, False
    for card, telemetry in _seen(evidence):
        device, warmest = _device(evidence, card.device), telemetry["temperature_celsius"]
        limits = (device.gpu_max_celsius, device.slowdown_celsius) if device is not None else ()
        limit = min((known for known in limits if known is not None), default=None)
        if limit is None or warmest is None or warmest < limit - CLOSE_CELSIUS:
            continue
        over = over or warmest >= limit
        said.append(f"{card.device}: {warmest:.0f} °C, and from {limit:.0f} °C on it slows down")
        rows[card.device] = {"temperature_celsius": warmest, "slowdown_celsius": limit}
    if not said:
        return None
    return Seen("; ".join(said), {"temperatures": rows}, verdict=None if over else "info")


def _failed(evidence: Evidence) -> Seen | None:
    if evidence.load is None or evidence.load.outcome != "failed":
        return None
    return Seen(evidence.load.reason or "", {"error": evidence.load.reason})


def _not_run(evidence: Evidence) -> Seen | None:
    load = evidence.load
    if load is None:
        # Where torch works the load runs; where NVML lists no card there is nothing to look at.
        listed = any(card.nvml_index is not None for card in evidence.cards)
        if evidence.torch_works or not listed:
            return None
        load = LoadResult("none", "torch did not run on a GPU, so that none was loaded", None, (), {})
    if load.outcome == "failed":
        return None
    loaded = {card.device for card in load.cards}
    kept = [(card, f"{why}{_instead(_device(evidence, card))}") for card, why in load.left_out.items()]
    # What torch did not run on: hidden from it, lost, or divided.
    others = [
        (name_of(card), f"{_why_not_used(card, load.reason or '')}{_instead(card)}")
        for card in evidence.cards
        if card.nvml_index is not None and card.id not in (*loaded, *load.left_out)
    ]
    if not (kept or others or load.outcome != "ran"):
        return None
    said = told_once([*kept, *others]) or load.reason or ""
    return Seen(said, {"left_out": dict(load.left_out), "reason": load.reason})


def _why_not_used(card: Device, reason: str | None) -> str:
    """Why torch did not run on a card, in few words."""
    state = card.state or ""
    if state.startswith("hidden by"):
        return "hidden by CUDA_VISIBLE_DEVICES"
    return state or reason or "torch did not run on it"


def _instead(card: Device | None) -> str:
    """Whether a card that was not loaded was judged all the same: by what others do on it."""
    hidden = card is not None and (card.state or "").startswith("hidden by")
    if card is None or (card.state is not None and not hidden):
        return ""  # its state says it all
    return {
        "busy": ", judged as it works",
        "idle": ", at rest: its clock and PCIe link are not judged",
        "light load": ", lightly used: its clock and PCIe link are not judged",
        "unknown": ", and NVML does not tell whether it works: its clock and PCIe link are not judged",
    }[work(card)]


def _unread_load(evidence: Evidence) -> Seen | None:
    missing: dict[str, dict[str, str]] = {}
    for card in evidence.load.cards if evidence.load is not None else ():
        if card.telemetry is None:
            missing[card.device] = {"*": card.reason or ""}
            continue
        unknown = card.telemetry["unknown"]
        lost = {name: unknown[name] for name in (*READ, *_MAXIMA) if name in unknown and applies(unknown[name])}
        if lost:
            missing[card.device] = lost
    if not missing:
        return None
    said = [
        f"{card}: {', '.join(why if name == '*' else f'{name} ({why})' for name, why in names.items())}"
        for card, names in missing.items()
    ]
    return Seen("; ".join(said), {"unread": missing})


_MAXIMA = ("pcie/max_generation", "pcie/max_width", "max_sm_clock_hz")

LOAD: tuple[Condition, ...] = (
    Condition(
        id="load.failed",
        rung=None,
        verdict="fail",
        certainty="strong",
        title="the load test failed",
        meaning="One kernel ran, and matrix products and copies for a second did not: an error of the card, its power "
        "or its driver shows only when it works.",
        settle="`gpucheck smoke --device cuda` runs one thing after the other, and `sudo dmesg` shows Xid errors",
        fix="sudo dmesg -T | grep -i xid",
        judge=_failed,
    ),
    Condition(
        id="load.hardware_slowdown",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the hardware lowers the clock under load",
        meaning="It is too hot, or its power supply asks for less (power brake). In half of a second's readings or "
        "more that is how the card runs, and a failure; in fewer a warning. One reading alone does not count.",
        settle="`gpucheck bench matmul --sustain 30s` shows the clock over half a minute",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; then check fans, air flow, power cables and supply",
        judge=_hardware,
        source="NVML, nvmlClocksEventReasons 0x8, 0x40 and 0x80; DCGM's health check has the same",
    ),
    Condition(
        id="load.thermal",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="heat lowers the clock under load",
        meaning="After a second of load a card that is cooled well is not that warm. Judged by NVML's reasons, and by "
        "its counter where that grew by more than 1 % of the time.",
        fix="check fans, air flow and room temperature",
        judge=_thermal,
        source="NVML, nvmlClocksEventReasons 0x20 and NVML_FI_DEV_PERF_POLICY_THERMAL",
    ),
    Condition(
        id="load.hot",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the card is at its temperature limit",
        meaning="Read under a second of load, beside the temperature from which driver or hardware lower the clock. "
        "Within 5 °C of it is a remark.",
        fix="check fans, air flow and room temperature",
        judge=_hot,
        source="NVML, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN and _GPU_MAX, the lower of both",
    ),
    Condition(
        id="load.power_limited",
        rung=None,
        verdict="info",
        certainty="proof",
        title="the power limit lowers the clock",
        meaning="Normal at full load: the card is as fast as its power limit lets it be.",
        fix="no action needed; nvidia-smi -q -d POWER says whether the limit is the card's own",
        judge=_power_limited,
        source="NVML, nvmlClocksEventReasons 0x4",
    ),
    Condition(
        id="load.clock_setting",
        rung=None,
        verdict="info",
        certainty="proof",
        title="a setting lowers the clock",
        meaning="Somebody set application clocks, a display clock or sync boost.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
        judge=_setting,
        source="NVML, nvmlClocksEventReasons 0x2, 0x10 and 0x100",
    ),
    Condition(
        id="load.low_clock",
        rung=None,
        verdict="warn",
        certainty="hint",
        title="the clock stays below half its maximum for no reported reason",
        meaning="Work is there, nothing is said to hold the clock, and it does not rise.",
        settle="`gpucheck bench matmul` shows what that costs",
        fix="nvidia-smi -q -d CLOCK,PERFORMANCE; "
        "a setting of the clock goes with `sudo nvidia-smi -i INDEX --reset-gpu-clocks`",
        judge=_low_clock,
        source="a choice: a Tesla T4's base clock is 585 of 1590 MHz, which its power limit explains; below half "
        "without any reason stands out",
    ),
    Condition(
        id="load.link_width",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the PCIe link uses fewer lanes than the card has",
        meaning="Copies are slower in proportion. A card that is not seated well, a dirty contact or a riser loses "
        "lanes: a warning where a card of the same name has more, where fewer than four are left, and for parts that "
        "have sixteen by their data sheet. Else it is a remark, "
        "for many laptops, small cards and slots are wired so. Judged under load alone: at rest a link may be narrower "
        "on purpose.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, remove risers, check the slot's firmware setting (bifurcation)",
        judge=_below("width", "max_width", "x", _lost_lanes),
        source="NVML, nvmlDeviceGetCurrPcieLinkWidth and nvmlDeviceGetMaxPcieLinkWidth; the latter is 16 also for "
        "an RTX 3050, Amazon's A10G and laptops, all of which have eight lanes",
    ),
    Condition(
        id="load.link_generation",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the PCIe link is slower than card and slot allow",
        meaning="Each generation has twice the rate of the one before. A link that does not rise while copies run was "
        "lowered after errors, or by a setting. In a virtual machine, where NVML does not see the slot, it is a remark "
        "while cards of the same name are alike. Judged under load alone: at rest a link sleeps at generation 1.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, remove risers, check the slot's firmware setting",
        judge=_below("generation", "max_generation", "generation ", _lost_speed),
        source="NVML, nvmlDeviceGetCurrPcieLinkGeneration and nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    Condition(
        id="load.slot",
        rung=None,
        verdict="info",
        certainty="proof",
        title="a faster slot would help the card",
        meaning="The card's own link has more lanes or a newer generation than card and slot have together.",
        fix="another slot, where copies matter: `gpucheck bench transfer` shows what they reach",
        judge=_slot,
        source="NVML, nvmlDeviceGetGpuMaxPcieLinkGeneration; lanes from the kernel's max_link_width",
    ),
    Condition(
        id="load.not_run",
        rung=None,
        verdict="skip",
        certainty="proof",
        title="not every card was tested under load",
        meaning="Throttling, heat and the PCIe link are judged under a second of matrix products and copies. A card "
        "that others use is left alone and judged by what they do on it, where they keep it busy (`devices.`); where "
        "NVML sees nothing a load shows nothing.",
        fix="gpucheck devices --processes shows who uses it; run again when it is free",
        judge=_not_run,
    ),
    Condition(
        id="load.unread",
        rung=None,
        verdict="inconclusive",
        certainty="proof",
        title="a card's state under load could not be read",
        meaning="The load ran, and NVML did not tell what it has for this card: an error, a call that never returned, "
        "or an answer that cannot be true.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
        judge=_unread_load,
        source="NVML, nvmlReturn_t",
    ),
)
