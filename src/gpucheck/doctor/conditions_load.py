"""What shows only under load: a clock that is held, a link that does not wake up whole, heat. Beside the ladder.

A card at rest lowers its clock, its link's generation and on some parts its width: none of that is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpucheck import units
from gpucheck.cards.at_work import HARDWARE, LOW_CLOCK, work
from gpucheck.cards.card import name_of
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.doctor.load import CardLoad, Load
from gpucheck.links import is_speed_lost, is_width_lost
from gpucheck.machine.nvml.row import applies
from gpucheck.measure.telemetry import (
    HELD,
    LEAST_VIOLATION_SHARE,
    POWER_LIMITED,
    is_below_maximum,
    violation_shares,
)
from gpucheck.report.facts import Device
from gpucheck.report.finding import Verdict, told_once

# One reading may fall into the change of a clock, where the first of these flashes (DCGM's documentation says so).
LEAST_READINGS = 2
# In this share of a second's readings it is no flash but how the card runs.
SUSTAINED = 0.5
# So close to its slowdown a second after rest, a card will reach it.
CLOSE_CELSIUS = 5.0
Judge = Callable[[Evidence], Seen | None]
# What is read under load, and why a verdict could not be given without it.
READ = ("sm_clock_hz", "clock_reasons", "temperature_celsius", "pcie/generation", "pcie/width")


def _seen(evidence: Evidence) -> Iterator[tuple[CardLoad, Any]]:
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
    return Seen(evidence.load.reason, {"error": evidence.load.reason})


def _not_run(evidence: Evidence) -> Seen | None:
    load = evidence.load
    if load is None:
        # Where torch works the load runs; where NVML lists no card there is nothing to look at.
        listed = any(card.nvml_index is not None for card in evidence.cards)
        if evidence.torch_works or not listed:
            return None
        load = Load("none", "torch did not run on a GPU, so that none was loaded")
    if load.outcome == "failed":
        return None
    loaded = {card.device for card in load.cards}
    kept = [(card, f"{why}{_instead(_device(evidence, card))}") for card, why in load.left_out.items()]
    # What torch did not run on: hidden from it, lost, or divided.
    others = [
        (name_of(card), f"{_why_not_used(card, load.reason)}{_instead(card)}")
        for card in evidence.cards
        if card.nvml_index is not None and card.id not in (*loaded, *load.left_out)
    ]
    if not (kept or others or load.outcome != "ran"):
        return None
    said = told_once([*kept, *others]) or load.reason
    return Seen(said, {"left_out": dict(load.left_out), "reason": load.reason or None})


def _why_not_used(card: Device, reason: str) -> str:
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


def _unread(evidence: Evidence) -> Seen | None:
    missing: dict[str, dict[str, str]] = {}
    for card in evidence.load.cards if evidence.load is not None else ():
        if card.telemetry is None:
            missing[card.device] = {"*": card.reason}
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

CONDITIONS: tuple[Condition, ...] = (
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
        judge=_unread,
        source="NVML, nvmlReturn_t",
    ),
)
