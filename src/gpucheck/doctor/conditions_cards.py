"""The cards themselves, beside the ladder: their health, how they run now, how they are set, the links between them.

Nearly each row is a check of `gpucheck devices`, asked of every card. Cards that others keep busy are judged from a
live reading; those that are free by the doctor's own load (`load.`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from gpucheck import naming, units
from gpucheck.cards import at_work, checks
from gpucheck.cards.card import Said, is_dead, low_clocks, name_of, silent, slow_start
from gpucheck.doctor.condition import Certainty, Condition, Evidence, Seen
from gpucheck.doctor.conditions_nvml import recovery
from gpucheck.links import ACS_FIX, IOMMU_FIX
from gpucheck.machine.nvml_fields import applies
from gpucheck.measure.telemetry import HELD, HELD_BELOW
from gpucheck.messages import FIX, fix_of
from gpucheck.report.facts import Changes, ClockReasons, Device, Facts, Link
from gpucheck.report.finding import VERDICTS, Verdict, grouped, told_once
from gpucheck.report.results.short import CardUnderLoad, LoadResult

# A context of CUDA's takes a few hundred MiB, the one of the torch that is being asked among them.
FOREIGN_BYTES = 2**30
LOOKS = dict(checks.CHECKS)
_UNLOCK = (
    "nvidia-smi -q -d CLOCK,PERFORMANCE; to unlock: `sudo nvidia-smi -i INDEX --reset-gpu-clocks`, or "
    "`--reset-memory-clocks` for the memory clock"
)
_HEAT_OR_POWER = f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; heat: {FIX['heat']}; power: {FIX['power']}"


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
    """Return whether a rung is broken by just this: it is then told there, and not twice."""
    if check == "devices.answers":
        return not evidence.cuda_works and any(is_dead(card) for card in _cards(evidence))
    if check == "devices.mig_empty":
        return not evidence.cuda_works
    return check == "devices.recovery_action" and recovery(evidence) is not None


def _check(id: str, *, verdict: Verdict = "warn", certainty: Certainty = "proof", **row: Any) -> Condition:
    return Condition(id, judge=_of_every_card(id), verdict=verdict, certainty=certainty, **row)


# -- what the doctor asks itself ---------------------------------------------------------------------------------------


def _persistence(evidence: Evidence) -> Seen | None:
    off = [name_of(card) for card in evidence.cards if card.persistence_mode is False]
    if not off or evidence.host.wsl or evidence.host.system != "Linux":
        return None
    if (slow := slow_start(evidence.facts)) is not None:
        return Seen(slow.message, slow.evidence, slow.fix, verdict=slow.verdict, title=slow.title)
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
        and not (not card.processes and LOOKS["devices.unclaimed_memory"](card, evidence.facts))
    ]
    if not taken:
        return None
    message = told_once([(name_of(card), f"{units.capacity(used)} by {_holders(card)}") for card, used in taken])
    seen = Seen(message, {name_of(card): used for card, used in taken})
    if not all(_is_for_a_screen(card) for card, _ in taken):
        return seen
    return replace(seen, verdict="info", title="the desktop uses GPU memory")


def _holders(card: Device) -> str:
    """The processes on a GPU, the largest first."""
    largest = sorted(card.processes or (), key=lambda process: process.used_memory_bytes or 0, reverse=True)
    names = [f"{process.name or 'not visible here'} ({process.pid})" for process in largest]
    return naming.few(names, ", ") or "processes that are not listed"


def _is_for_a_screen(card: Device) -> bool:
    """Return whether programs that draw hold it: beside them is no more than a context or two, torch's own among
    them."""
    computing = [process.used_memory_bytes for process in card.processes or () if "graphics" not in process.kind]
    known = [used for used in computing if used is not None]
    return len(computing) < len(card.processes or ()) and known == computing and sum(known) < FOREIGN_BYTES


def _unread(evidence: Evidence) -> Seen | None:
    """Return what is not known of cards that torch uses; where it cannot use them, that is told by its rung."""
    if not evidence.torch_works:
        return None
    # A Jetson has no NVML.
    unknown = None if evidence.stack.jetson else silent(evidence.facts)
    return Seen(unknown.message, unknown.evidence) if unknown else _of_every_card("devices.unread")(evidence)


CARDS: tuple[Condition, ...] = (
    Condition(
        id="devices.persistence",
        verdict="info",
        certainty="proof",
        title="persistence mode is off: the driver restarts for each program",
        meaning="Without it the driver releases the GPU when its last program ends: the next start takes up to 3 s for "
        "each GPU, and settings are lost. It is a warning if NVML took more than 5 s to start.",
        fix="sudo systemctl enable --now nvidia-persistenced",
        judge=_persistence,
    ),
    Condition(
        id="devices.foreign_memory",
        verdict="warn",
        title="other processes use GPU memory",
        meaning="You cannot use this memory: batches that fitted before may run out of memory.",
        fix=FIX["memory held"],
        judge=_foreign_memory,
    ),
    _check(
        id="devices.unclaimed_memory",
        certainty="strong",
        title="GPU memory is in use, but no visible process holds it",
        meaning="More than 1 GiB and 5 % of the memory is in use, and no process that NVML lists holds it. Another "
        "user's process, another container or MPS may, or it was not freed.",
        fix="sudo fuser -v /dev/nvidia*",
    ),
    _check(
        id="devices.answers",
        verdict="fail",
        title="a GPU does not answer its driver",
        meaning="NVML lists the GPU, but reading it fails: the GPU fell off the bus, or it needs a reset.",
        fix=FIX["lost"],
        patterns=(r"GPU is lost", r"Unable to determine the device handle"),
    ),
    _check(
        id="devices.recovery_action",
        verdict="fail",
        title="the driver asks for a recovery action",
        meaning="The driver reports which action the GPU needs before its results can be trusted.",
        fix="follow the driver's recovery action",
    ),
    _check(
        id="devices.remapped_rows",
        verdict="fail",
        title="faulty memory rows",
        meaning="A GPU replaces faulty memory rows with spare ones. A row that could not be replaced is a permanent "
        "fault. One that waits for a reset is in use until then, which is a warning.",
        fix="drain the node and replace the GPU",
    ),
    _check(
        id="devices.remap_banks",
        title="memory banks without spare rows",
        meaning="A memory bank has spare rows for faulty ones. With none left, its next faulty row cannot be replaced.",
        fix="plan to replace the GPU",
    ),
    _check(
        id="devices.sram_ecc",
        verdict="fail",
        title="errors of the on-chip memory (SRAM)",
        meaning="Caches and registers have no spares. Any uncorrected error since the driver was loaded is a failure, "
        "and so is a count above the threshold at which NVIDIA replaces the GPU.",
        fix="drain the node and replace the GPU",
    ),
    _check(
        id="devices.retired_pages",
        verdict="fail",
        title="memory pages were retired",
        meaning="GPUs up to Turing retire faulty memory pages, 64 at most. A pending page is in use until the next "
        "reset. A GPU that cannot retire more pages must be replaced.",
        fix="reset the GPU; at the limit, replace it",
    ),
    _check(
        id="devices.ecc",
        verdict="fail",
        title="uncorrected memory errors",
        meaning="Counted since the driver was loaded. Results since then may be wrong. Corrected errors are a remark.",
        fix=fix_of("ecc"),
    ),
    Condition(
        id="devices.unread",
        verdict="inconclusive",
        certainty="proof",
        title="a GPU's health could not be read",
        meaning="NVML supports this figure for the GPU but did not report it: an error, no permission, a call that "
        "never returned, or an impossible value. Of a GPU that NVML does not list, nothing is known.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
        judge=_unread,
    ),
    _check(
        id="devices.busy_alone",
        certainty="strong",
        title="a GPU is fully busy, but no process is on it",
        meaning="Two readings 2 s apart show 100 % and no process: one is hidden from this user, or the GPU hangs. The "
        "driver's scrubbing of ECC memory at its start looks the same, but ends soon.",
        fix="sudo fuser -v /dev/nvidia*; if nobody uses the GPU, drain the node and reset the GPU",
    ),
    _check(
        id="devices.fan",
        verdict="fail",
        certainty="strong",
        title="the fan of a hot GPU stands still",
        meaning="The reading is the intended speed. Many fans stand still up to about 60 °C. It is a failure within 10 "
        "°C of the slowdown temperature or if heat throttles the GPU, and from 70 °C on a remark.",
        fix=FIX["heat"],
    ),
    _check(
        id="devices.mig_pending",
        title="a change of MIG mode waits for a reset",
        meaning="MIG mode was switched, but the GPU could not be reset because programs or monitors use it.",
        fix="stop its clients (sudo systemctl stop nvidia-dcgm), then sudo nvidia-smi --gpu-reset -i INDEX; in a "
        "virtual machine with the GPU passed through, reboot it",
    ),
    _check(
        id="devices.odd_one",
        title="a GPU differs from the others of its name",
        meaning="It has less memory or BAR1 than most, or its persistence mode is off. Another VBIOS is a remark.",
        fix="compare nvidia-smi -q -i INDEX with another GPU",
    ),
    _check(
        id="devices.throttled",
        certainty="strong",
        title="a busy GPU throttles to protect itself",
        meaning="Heat, the power supply or the driver lowers the clock of a busy GPU. It is a failure if the hardware "
        "does so in both of two readings: the clock is then at most half.",
        fix=_HEAT_OR_POWER,
    ),
    _check(
        id="devices.slowed_down",
        certainty="hint",
        title="an idle GPU throttles",
        meaning="The hardware lowers the clock for heat or power. An idle GPU has no reason for either, so its cooling "
        "or its power supply may have failed.",
        fix=_HEAT_OR_POWER,
    ),
    _check(
        id="devices.violations",
        verdict="info",
        title="limits lowered the clock",
        meaning="The driver counts how long heat, power and reliability limited the clock. A counter that grew between "
        "two readings shows an active limit. Heat and reliability are a warning.",
        fix="no action needed; nvidia-smi -q -d PERFORMANCE shows what limits the clock now",
    ),
    _check(
        id="devices.hot",
        title="a GPU is at a temperature limit",
        meaning="The driver lowers the clock at the maximum operating temperature of the GPU or its memory, and the "
        "hardware at the slowdown temperature. At the shutdown temperature the GPU switches off.",
        fix=FIX["heat"],
    ),
    _check(
        id="devices.low_clock",
        certainty="hint",
        title="a busy GPU's clock is far too low for no reported reason",
        meaning="NVML reports no limit, but the clock is a fifth below equally busy GPUs of the same name, or below "
        "its default. It may be locked: NVML cannot read a lock. Without a reference it is a remark.",
        fix=_UNLOCK,
    ),
    _check(
        id="devices.power_limited",
        verdict="info",
        title="the power limit lowers a busy GPU's clock",
        meaning="Normal at full load. It is a warning if the GPU draws less than half of the limit and stays below "
        "half of its clock.",
        fix="no action needed",
    ),
    _check(
        id="devices.clock_setting",
        verdict="info",
        title="a setting lowers a busy GPU's clock",
        meaning="Application clocks, a display clock or sync boost are set. It is a warning if the setting costs a "
        "fifth or more.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
    ),
    _check(
        id="devices.link_width",
        certainty="strong",
        title="a busy GPU's PCIe link uses fewer lanes than it supports",
        meaning="Copies are slower in proportion. It is a warning if a GPU of the same name has more lanes, if fewer "
        "than four are left, and for GPUs with sixteen lanes by their data sheet, else a remark: many slots and "
        "laptops are wired with fewer.",
        fix="reseat the GPU, remove risers, check the slot's firmware setting (bifurcation)",
    ),
    _check(
        id="devices.link_generation",
        certainty="strong",
        title="a busy GPU's PCIe link is slower than GPU and slot allow",
        meaning="Each generation has twice the rate of the previous one. If the link stays slow on a busy GPU, "
        "errors or a setting have lowered it.",
        fix="reseat the GPU, remove risers, check the slot's firmware setting",
    ),
    _check(
        id="devices.pcie_replays",
        certainty="strong",
        title="the PCIe link resends packets (replays)",
        meaning="A link corrects errors by resending: the first sign of a bad contact. It is a warning if the counter "
        "grows faster than on a healthy link, or by more than in a day.",
        fix="reseat the GPU and its riser; sudo dmesg | grep -i aer shows bus errors",
    ),
    _check(
        id="devices.mig_empty",
        title="a GPU is in MIG mode without an instance",
        meaning="In MIG mode programs use instances, and none exists, so no program can use this GPU.",
        fix="sudo nvidia-smi mig -i INDEX -cgi 0 -C to create an instance; or sudo nvidia-smi -i INDEX -mig 0 to use "
        "the whole GPU",
    ),
    _check(
        id="devices.ecc_mode",
        verdict="info",
        title="ECC is off now or after a reset",
        meaning="Without ECC, memory errors are neither corrected nor counted. It is a warning if one GPU differs from "
        "others of its name.",
        fix="sudo nvidia-smi --ecc-config=1, and reset the GPU",
    ),
    _check(
        id="devices.power_limit",
        verdict="info",
        title="the power limit is below the GPU's default",
        meaning="It lowers the clock under load. It is a warning if it costs a fifth or more, or if one GPU differs "
        "from others of its name.",
        fix="unless the limit is intended: sudo nvidia-smi --power-limit=WATTS",
    ),
    _check(
        id="devices.application_clocks",
        verdict="info",
        title="application clocks are below the GPU's default",
        meaning="Application clocks are set. The clock does not go higher under load.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
    ),
    _check(
        id="devices.compute_mode",
        verdict="info",
        title="compute mode prohibited",
        meaning="A program that uses the GPU gets the error that the device is busy or unavailable. In exclusive mode "
        "it is a warning if another process than the MPS server has the GPU.",
        fix="sudo nvidia-smi --compute-mode=0",
    ),
    _check(
        id="links.fabric",
        title="a GPU is not connected to the NVSwitch fabric",
        meaning="GPUs on NVSwitches register with the fabric manager, and copy to each other directly only after that. "
        "The fabric's health reports unhealthy routes and degraded bandwidth.",
        fix="sudo systemctl restart nvidia-fabricmanager; its version must match the driver's exactly",
    ),
    _check(
        id="links.inactive",
        certainty="strong",
        title="NVLinks are down",
        meaning="Some GPUs have more links than are connected: inactive links alone are a remark. It is a warning if "
        "another GPU of the name has more active links, and a failure if all links of one GPU on an NVIDIA board are "
        "down and those of others are up.",
        fix="look for Xid 74, 136 and 144 to 150 in `sudo dmesg`; reset the GPUs, then reseat the bridge or the board",
    ),
    _check(
        id="links.errors",
        certainty="strong",
        title="NVLinks count errors",
        meaning="Counted since the last reset. A few corrected checksum errors (crc) are a remark. Replays, recoveries "
        "and lost packets cost time and may stop a job.",
        fix="if they grow, reset the GPUs, then reseat the bridge or the board",
    ),
)


# -- copies from GPU to GPU over PCIe ----------------------------------------------------------------------------------


def _iommu(evidence: Evidence) -> Seen | None:
    """GPUs whose copies to each other take PCIe: without NVLink, and not refused by the driver."""
    whole = [card for card in evidence.cards if card.parent_uuid is None]
    cards = [card for card in whole if not any(link.active for link in card.nvlinks or ())]
    names: dict[str, None] = {}
    for card, other in itertools.combinations(cards, 2):
        is_refused = card.peers is not None and card.peers.get(other.pci_address or "", "ok") != "ok"
        if "translating" in (card.iommu, other.iommu) and not is_refused:
            names |= dict.fromkeys((name_of(card), name_of(other)))
    if not names:
        return None
    return Seen(f"the IOMMU translates what {', '.join(names)} send", {"devices": [*names], "iommu": "translating"})


PEERS: tuple[Condition, ...] = (
    Condition(
        id="peers.iommu",
        verdict="warn",
        certainty="hint",
        title="an IOMMU stands between GPUs that copy over PCIe",
        meaning="On bare metal CUDA does not support copies from GPU to GPU over PCIe while the IOMMU translates "
        "addresses: they may hang, as NCCL at its start, or deliver wrong data without an error. In a virtual machine "
        "the host's IOMMU is needed, and this one is the guest's.",
        fix=IOMMU_FIX,
        judge=_iommu,
        patterns=(
            r"Missing .{0,3}iommu=pt.{0,3} from kernel command line",
            r"\bIO_PAGE_FAULT\b.{0,200}(nvidia|nvrm|xid)",
            r"(nvidia|nvrm).{0,80}(AMD-Vi|DMAR).{0,80}fault",
            r"NCCL_P2P_DISABLE ?= ?1 (works|helps|fixes|solves|avoids|makes it work)",
            r"\b(p2p|peer[- ]to[- ]peer) (copy|copies|transfers?|memcpy)\b.{0,40}\b"
            r"(wrong|incorrect|corrupt\w*|garbage) (values?|data|results?|numbers?)\b",
        ),
    ),
    Condition(
        id="peers.acs",
        verdict="warn",
        certainty="hint",
        title="PCIe ACS sends copies between GPUs up to the CPU",
        meaning="GPUs below one switch could copy to each other within it. Where Access Control Services redirect, "
        "each copy goes up to the CPU's root port and back: slower, and on some machines it hangs.",
        fix=ACS_FIX,
        patterns=(r"\bPCIe? ACS\b.{0,80}\b(nccl|p2p|peer|gpudirect)", r"\bACSCtl ?: ?SrcValid\+"),
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


_ENDS = ("generation", "width", "max_generation", "max_width")
# What a load does not change of a card, as far as its checks need it.
_FIXED = (
    *("kind", "id", "name", "nvml_index", "pci_address", "integrated", "compute_capability"),
    *("application_sm_clock_hz", "default_application_sm_clock_hz", "gpu_max_celsius", "slowdown_celsius"),
    *("power_limit_w", "power_limit_default_w"),
)


def _as_loaded(evidence: Evidence, names: Collection[str] | None, least: int) -> Iterator[tuple[Device, str]]:
    """The cards as they ran under load, for the checks of a busy card, and how often NVML gave which clock reason.

    A reason counts if it is among `names` (None: any) and at least `least` readings have it. Other values that were
    read at rest are left out.
    """
    for card, telemetry in _seen(evidence):
        known = _device(evidence, card.device) or Device("cuda", card.device)
        readings, clock, link = telemetry["readings"], telemetry["sm_clock_hz"], telemetry["pcie"]
        counts = {name: card.held_by.get(name, 0) for name in (card.held_by if names is None else names)}
        held = {name: count for name, count in counts.items() if count >= least}
        lasting = tuple(name for name, count in held.items() if count >= SUSTAINED * readings)
        is_read = bool(held) or "clock_reasons" not in telemetry["unknown"]
        # The driver's own counter of heat is one more word for NVML's reason, and explains no low clock.
        heat_s = (telemetry.get("violations_s") or {}).get("thermal") if "sw_thermal_slowdown" in counts else None
        on_pcie = telemetry.get("c2c_bytes_per_s") is None and not known.integrated
        loaded = Device(
            **{name: getattr(known, name) for name in _FIXED},
            state=at_work.UNDER_LOAD,
            sm_clock_hz=clock["median"] if clock else None,
            max_sm_clock_hz=telemetry["max_sm_clock_hz"],
            temperature_celsius=telemetry["temperature_celsius"],
            clock_reasons=ClockReasons(0, tuple(held)) if is_read else None,
            pcie=Link(**{name: link.get(name) for name in _ENDS}) if on_pcie else None,
            # It is read many times in a row: what lasts does so however short a load is.
            changes=Changes(
                max(telemetry.get("violations_span_s") or 0.0, at_work.LEAST_SPAN_S),
                {"thermal": heat_s},
                lasting_clock_reasons=lasting,
            ),
        )
        yield loaded, ", ".join(f"{name} in {count} of {readings} readings" for name, count in held.items())


def _under_load(look: checks.Look, names: Collection[str] | None = (), least: int = LEAST_READINGS) -> Judge:
    """A judge for what this check of a busy card says of the cards under load, with the worst verdict of them."""

    def judge(evidence: Evidence) -> Seen | None:
        cards = list(_as_loaded(evidence, names, least))
        facts = Facts(devices=tuple(device for device, _ in cards))
        found = [(device, often, said) for device, often in cards if (said := look(device, facts)) is not None]
        if not found:
            return None
        words = [
            (name_of(device), "; ".join(part for part in (said.title, said.message, often) if part))
            for device, often, said in found
        ]
        details = {"devices": [{"device": device.id, **said.evidence} for device, _, said in found]}
        return Seen(told_once(words), details, verdict=max((said.verdict for *_, said in found), key=VERDICTS.index))

    return judge


def _heat(device: Device, facts: Facts) -> Said | None:
    """By NVML's reasons, and by the driver's own counter, which also has what happened between two readings."""
    throttled, counted = at_work.throttled(device, facts), at_work.violations(device, facts)
    if throttled is None or counted is None:
        return throttled or counted
    evidence = {**throttled.evidence, **counted.evidence}
    share = units.percent(evidence["shares"]["thermal"])
    return replace(throttled, message=f"{throttled.message}; limited for {share} of the time", evidence=evidence)


def _setting(device: Device, facts: Facts) -> Said | None:
    """A setting where the clock is really lower: a remark, whatever it costs."""
    lower = low_clocks([("clock", device.sm_clock_hz, device.max_sm_clock_hz)], HELD_BELOW)
    said = at_work.clock_setting(device, facts) if lower else None
    return said and replace(said, verdict="info")


def _hot(device: Device, facts: Facts) -> Said | None:
    """A GPU at its limit, and as a remark one that is close to it."""
    now, limit = device.temperature_celsius, at_work.throttles_at(device)
    if limit is None or now is None or not limit - CLOSE_CELSIUS <= now < limit:
        return at_work.hot(device, facts)
    details = {"temperature_celsius": now, "limits_celsius": [limit]}
    return Said("info", f"{now:.0f} °C, limit {limit:.0f} °C", evidence=details)


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
        load = LoadResult("none", "torch did not run on a GPU, so no GPU was loaded", None, (), {})
    if load.outcome == "failed":
        return None
    reasons = dict(load.left_out)
    # What torch did not run on: hidden from it, lost, or divided.
    for card in evidence.cards:
        if card.nvml_index is not None and card.id not in (*reasons, *(loaded.device for loaded in load.cards)):
            hidden = (card.state or "").startswith("hidden by")
            why = "hidden by CUDA_VISIBLE_DEVICES" if hidden else card.state
            reasons[name_of(card)] = why or load.reason or "torch did not run on it"
    if not reasons and load.outcome == "ran":
        return None
    named = {name_of(card): card for card in evidence.cards}
    said = told_once([(name, f"{why}{_instead(named.get(name))}") for name, why in reasons.items()])
    return Seen(said or load.reason or "", {"left_out": dict(load.left_out), "reason": load.reason})


def _instead(card: Device | None) -> str:
    """Return whether a card that was not loaded was judged all the same: by what others do on it."""
    if card is None or (card.state is not None and not card.state.startswith("hidden by")):
        return ""  # its state says it all
    busy = at_work.work(card) == "busy"
    return ", judged under its own load" if busy else "; its clock and PCIe link are not judged"


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


def _like(check: str, id: str, judge: Judge, **changed: Any) -> Condition:
    """A condition of the load, in the words of the check of a busy GPU."""
    of_check = next(condition for condition in CARDS if condition.id == check)
    return replace(of_check, id=id, judge=judge, **changed)


LOAD: tuple[Condition, ...] = (
    Condition(
        id="load.failed",
        title="the load test failed",
        meaning="A single kernel ran, but one second of matrix products and copies failed: a fault of the GPU, its "
        "power or its driver that only a load shows.",
        fix="sudo dmesg -T | grep -i xid",
        judge=_failed,
    ),
    Condition(
        id="load.hardware_slowdown",
        verdict="warn",
        title="the hardware lowers the clock under load",
        meaning="The GPU is too hot, or its power supply requests less power (power brake). It is a failure if at "
        "least half of the readings in a second show it. A single reading does not count.",
        fix=_HEAT_OR_POWER,
        judge=_under_load(at_work.throttled, at_work.HARDWARE),
    ),
    Condition(
        id="load.thermal",
        verdict="warn",
        title="heat lowers the clock under load",
        meaning="A well-cooled GPU is not that warm after one second of load. Judged by NVML's clock reasons, and by "
        "its counter if that grew by more than 1 % of the time.",
        fix=FIX["heat"],
        judge=_under_load(_heat, ("sw_thermal_slowdown",)),
    ),
    _like(
        "devices.hot",
        "load.hot",
        _under_load(_hot),
        certainty="strong",
        title="the GPU is at its temperature limit",
        meaning="Read under one second of load. Within 5 °C of the limit is a remark.",
    ),
    _like(
        "devices.clock_setting",
        "load.clock_setting",
        _under_load(_setting, HELD, least=1),
        title="a setting lowers the clock",
        meaning="Application clocks, a display clock or sync boost are set.",
    ),
    _like(
        "devices.low_clock",
        "load.low_clock",
        _under_load(at_work.low_clock, None, least=1),
        title="the clock is far too low for no reported reason",
    ),
    _like(
        "devices.link_width",
        "load.link_width",
        _under_load(at_work.link_width),
        title="the PCIe link uses fewer lanes than the GPU has",
    ),
    _like(
        "devices.link_generation",
        "load.link_generation",
        _under_load(at_work.link_generation),
        title="the PCIe link is slower than GPU and slot allow",
    ),
    Condition(
        id="load.not_run",
        verdict="skip",
        certainty="proof",
        title="not every GPU was tested under load",
        meaning="Throttling, heat and the PCIe link are judged under one second of load. A GPU that others use is not "
        "loaded; it is judged under their load if they keep it busy (`devices.`).",
        fix=f"{FIX['memory held']} shows which processes use it; run again when it is free",
        judge=_not_run,
    ),
    Condition(
        id="load.unread",
        verdict="inconclusive",
        certainty="proof",
        title="a GPU's state under load could not be read",
        meaning="The load ran, but NVML did not report the figures that it supports for this GPU: an error, a call "
        "that never returned, or an impossible value.",
        fix="run again; if it persists, sudo dmesg | grep -i xid",
        judge=_unread_load,
    ),
)
