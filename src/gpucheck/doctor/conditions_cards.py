"""The cards themselves, beside the ladder: their health, how they run now, how they are set, the links between them.

Nearly each row is a check of `gpucheck devices`, asked of every card. Cards that others keep busy are judged from a
live reading; those that are free by the doctor's own load (`load.`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpucheck import units
from gpucheck.cards import checks
from gpucheck.cards.card import is_dead, name_of
from gpucheck.doctor.condition import Certainty, Condition, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.inventory import unclaimed_bytes
from gpucheck.report.facts import Device
from gpucheck.report.finding import VERDICTS, Verdict, grouped

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


CONDITIONS: tuple[Condition, ...] = (
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
