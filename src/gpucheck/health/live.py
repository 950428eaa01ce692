"""The current state of a GPU from live readings: throttling, clock, temperature, power and the PCIe link.

An idle GPU lowers its clock and the speed of its link, so both are judged only on a busy GPU. A clock reason lasts if
two readings have it. Counters show the time between the readings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from gpucheck import links, units
from gpucheck.health.hardware import is_not_read
from gpucheck.health.nvidia import LEAST_SAME_MODEL, OLD_S, Ruling, is_dead, same_model
from gpucheck.machine.host import AT_WORK_PERCENT
from gpucheck.messages import FIX
from gpucheck.report.facts import Device, Facts, Link
from gpucheck.report.finding import Verdict

Activity = Literal["busy", "light load", "idle", "unknown"]
# The state of a GPU that gpucheck puts under load. This GPU counts as busy at any utilisation.
UNDER_LOAD = "under load"
# Utilisation below this comes from a display or a monitoring tool.
AT_REST_PERCENT = 5.0
# Without utilisation, a GPU above this share of its power limit is busy. An idle T4 or L4 draws up to 0.42.
AT_WORK_POWER_SHARE = 0.5

# Clock reasons that protect the GPU, and their causes. `hw_slowdown` accompanies the other hardware reasons.
PROTECTS = {
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "heat",
    "hw_slowdown": "heat or power",
}
# Clock reasons of the hardware, which cuts the clock to half or less to protect the GPU or its power supply.
HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
SETTINGS = {
    "applications_clocks_setting": "application clocks",
    "display_clock_setting": "a display's clocks",
    "sync_boost": "sync boost (the group runs at the clock of its slowest GPU)",
}
# The fix for each cause.
FIXES = {"heat": FIX["heat"], "power brake": FIX["power"], "heat or power": f"{FIX['heat']}; {FIX['power']}"}
# Clocks within this ratio count as equal, because NVML's steps are 15 MHz.
AT_HIGHEST = 0.98
# A busy GPU below this share of its maximum clock gets a remark if NVML gives no reason. The limit is a choice: the
# base clock of a T4 is 0.37 of its maximum, but there NVML gives the power limit as the reason.
LOW_CLOCK = 0.5
# A loss of this share of the clock is always shown. The limit is a choice.
COSTLY = 0.2
# From this utilisation on, a GPU has no reason to run far below its maximum clock.
WHOLLY_BUSY_PERCENT = 90.0
# Power does not limit a GPU below this share of its power limit, even if the clock reason is power.
FAR_BELOW_LIMIT = 0.5
# If NVML gives no clock reasons, power limits a GPU from this share of its limit on, if its clock is below the maximum.
AT_LIMIT = 0.98
# A counter's growth is not reliable over a shorter time.
LEAST_SPAN_S = 0.5
# A limit that is in force for less than this share of the time lowers a rate by less than this share.
LEAST_SHARE = 0.01
# The driver's counters of protective limits. Limits by power and settings are normal operation.
PROTECTING = ("thermal", "reliability")
COUNTED = (*PROTECTING, "board_limit", "power", "sync_boost")
# Many GPUs stop their fans up to about 60 °C. A stopped fan is a remark from 70 °C, and a failure 10 °C below slowdown.
WARM, CLOSE_TO_SLOWDOWN, FAN_SPAN_S = 70.0, 10.0, 5.0
# The clocks that can be locked (NVML does not report locks), the command to unlock, and its least compute capability.
_CLOCKS = (
    ("clock", "sm_clock_hz", "sudo nvidia-smi -i {card} --reset-gpu-clocks", (7, 0)),
    ("memory clock", "memory_clock_hz", "sudo nvidia-smi -i {card} --reset-memory-clocks", (8, 0)),
)


def activity(device: Device) -> Activity:
    """Return whether the GPU is busy: by utilisation, else by power and NVML's clock reason for idle."""
    if device.state == UNDER_LOAD:
        return "busy"
    percent, power, limit = device.utilization_percent, device.power_w, device.power_limit_w
    if percent is not None:
        if percent >= AT_WORK_PERCENT:
            return "busy"
        return "idle" if percent < AT_REST_PERCENT else "light load"
    if power is not None and limit is not None and power >= AT_WORK_POWER_SHARE * limit:
        return "busy"
    return "idle" if "gpu_idle" in reasons(device) else "unknown"


def _verdict(
    device: Device, verdict: Verdict, title: str, *parts: str, fix: str | None = None, **evidence: Any
) -> Ruling:
    """Return a verdict with the live figures as evidence. Empty parts of the message are left out."""
    names = ("sm_clock_hz", "max_sm_clock_hz", "temperature_celsius", "power_w", "power_limit_w")
    live = {
        "utilization_percent": device.utilization_percent,
        "clock_reasons": list(reasons(device)),
        "lasting_clock_reasons": list(_lasting(device)),
        **{name: getattr(device, name) for name in names},
    }
    return Ruling(verdict, title, "; ".join(part for part in parts if part), fix, {**live, **evidence})


def reasons(device: Device) -> tuple[str, ...]:
    return device.clock_reasons.names if device.clock_reasons is not None else ()


def _lasting(device: Device) -> tuple[str, ...]:
    """Return the clock reasons that both of two sufficiently distant readings have."""
    grown = device.changes
    return grown.lasting_clock_reasons if grown is not None and grown.span_s >= LEAST_SPAN_S else ()


def _busy(device: Device) -> str:
    return "" if device.utilization_percent is None else f"{device.utilization_percent:.0f} % busy"


def _clock(device: Device) -> str:
    now, most = device.sm_clock_hz, device.max_sm_clock_hz
    return "" if now is None or most is None else f"clock {now / 1e6:.0f} of {most / 1e6:.0f} MHz"


def _cost(device: Device) -> str:
    now, most = device.sm_clock_hz, device.max_sm_clock_hz
    if now is None or not most:
        return "cost unknown: NVML reports no clock"
    lower = ", no loss now" if now >= AT_HIGHEST * most else f" ({units.percent(1 - now / most)} lower)"
    return f"{_clock(device)}{lower}"


def _power(device: Device) -> str:
    if device.power_w is None:
        return ""
    return f"{device.power_w:.0f} W" + ("" if device.power_limit_w is None else f" of {device.power_limit_w:.0f} W")


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def cost(device: Device) -> float:
    """Return the missing share of a busy GPU's maximum clock; 0 if unknown."""
    low = _share(device.sm_clock_hz, device.max_sm_clock_hz)
    return 0.0 if low is None or activity(device) != "busy" else max(0.0, 1 - low)


def throttled(device: Device, facts: Facts) -> Ruling | None:
    """Report throttling that protects the GPU: `fail` if the GPU is busy and the hardware's reason lasts."""
    state, lasting = activity(device), _lasting(device)
    # A reason that may appear briefly while clocks change (`hw_slowdown`) counts if it lasts or the GPU is busy.
    relevant = {"hw_thermal_slowdown", "hw_power_brake_slowdown", *lasting} if state != "busy" else PROTECTS
    if not (names := [name for name in PROTECTS if name in reasons(device) and name in relevant]):
        return None
    is_fault = state == "busy" and any(name in HARDWARE for name in lasting)
    cause, now = PROTECTS[names[0]], device.temperature_celsius
    # Under gpucheck's load, doctor reports the number of readings.
    readings = f"{', '.join(names)} in {'two readings' if lasting else 'one reading'}"
    parts = (
        _cost(device) if state == "busy" else _busy(device),
        "" if now is None else f"{now:.0f} °C",
        "" if device.state == UNDER_LOAD else readings,
    )
    title = f"throttled by {cause}{' while idle' * (state == 'idle')}"
    return _verdict(device, "fail" if is_fault else "warn", title, *parts, fix=FIXES[cause])


def violations(device: Device, facts: Facts) -> Ruling | None:
    """Report the time for which limits lowered the clock between two readings. Earlier times are not counted."""
    grown, shares = device.changes, _shares(device)
    if grown is None or not shares:
        return None
    verdict: Verdict = "warn" if set(PROTECTING) & set(shares) else "info"
    limits = ", ".join(f"{name.replace('_', ' ')} {units.percent(min(share, 1))}" for name, share in shares.items())
    # If NVML names no other reason, these limits are the reason for the low clock.
    lost = 0.0 if set(reasons(device)) - {"gpu_idle"} else cost(device)
    parts = (f"{limits} of the last {units.duration(grown.span_s)}", _cost(device))
    fix = FIX["heat"] if "thermal" in shares else None
    return _verdict(device, verdict, "clock limited", *parts, fix=fix, shares=shares, span_s=grown.span_s, cost=lost)


def _shares(device: Device) -> dict[str, float]:
    """Return each limit's share of the time between two readings, if above 1 %."""
    if (grown := device.changes) is None or grown.span_s < LEAST_SPAN_S:
        return {}
    seconds = {name: grown.violations_s.get(name) or 0.0 for name in COUNTED}
    return {name: held_s / grown.span_s for name, held_s in seconds.items() if held_s > LEAST_SHARE * grown.span_s}


def fan(device: Device, facts: Facts) -> Ruling | None:
    """Report a fan that is set to 0 % on a hot GPU. Passively cooled GPUs have no fan reading."""
    now, limit = device.temperature_celsius, device.slowdown_celsius or device.gpu_max_celsius
    if device.fan_percent != 0 or now is None:
        return None
    title = f"fan at 0 %, {now:.0f} °C"
    by_heat = any(PROTECTS.get(name) == "heat" for name in reasons(device))
    if by_heat or (limit is not None and now >= limit - CLOSE_TO_SLOWDOWN):
        message = "throttled by heat" if by_heat or limit is None else f"the GPU slows down at {limit:.0f} °C"
        return _verdict(device, "fail", title, message, fix=FIX["heat"], fan_percent=0.0)
    turning = [
        card.fan_percent
        for card in same_model(device, facts)
        if card.fan_percent and card.temperature_celsius is not None and card.temperature_celsius <= now
    ]
    is_lasting = device.changes is not None and device.changes.span_s >= FAN_SPAN_S
    if now < WARM or not (turning or is_lasting):
        return None
    message = f"a GPU of this name, no hotter, runs its fan at {max(turning):.0f} %" if turning else "for 5 s or more"
    return _verdict(device, "info", title, message, fan_percent=0.0)


def hot(device: Device, facts: Facts) -> Ruling | None:
    gpu, memory = device.temperature_celsius, device.memory_temperature_celsius
    steps: tuple[tuple[str, float | None, float | None, Verdict, str], ...] = (
        ("", gpu, device.shutdown_celsius, "fail", "the GPU shuts down"),
        ("", gpu, device.slowdown_celsius, "warn", "the hardware lowers the clock"),
        ("", gpu, device.gpu_max_celsius, "warn", "the driver lowers the clock"),
        ("memory ", memory, device.memory_max_celsius, "warn", "the driver lowers the clock"),
    )
    for sensor, now, limit, verdict, effect in steps:
        if now is not None and limit is not None and now >= limit:
            title = f"{sensor}{now:.0f} °C, limit {limit:.0f} °C"
            return _verdict(device, verdict, title, effect, fix=FIX["heat"], limits_celsius=[limit])
    return None


def power_limited(device: Device, facts: Facts) -> Ruling | None:
    """Report a busy GPU whose clock the power limit lowers. This is normal at full load, and a fault at low power."""
    drawn, clock = _share(device.power_w, device.power_limit_w), _share(device.sm_clock_hz, device.max_sm_clock_hz)
    # Without NVML's reasons, power at the limit and a lower clock are the sign.
    is_low = clock is not None and clock < AT_HIGHEST
    is_inferred = device.clock_reasons is None and (drawn or 0.0) >= AT_LIMIT and is_low
    if activity(device) != "busy" or not ("sw_power_cap" in reasons(device) or is_inferred):
        return None
    limit = f"default {device.power_limit_default_w:.0f} W" if device.power_limit_default_w is not None else ""
    parts = (_power(device), _busy(device), _cost(device), limit)
    if drawn is not None and drawn < FAR_BELOW_LIMIT and clock is not None and clock < LOW_CLOCK:
        fix = "check power cables and supply, then reset the GPU; nvidia-smi -q -d POWER,PERFORMANCE"
        return _verdict(device, "warn", "power cap far below the limit", *parts, fix=fix)
    return _verdict(device, "info", "clock limited by power", *parts, cost=cost(device))


def _application_clock(device: Device, clock: str) -> tuple[float | None, bool]:
    """Return an application clock as a share of its default, and whether the current clock equals it."""
    now, set_to = getattr(device, clock), getattr(device, f"application_{clock}")
    is_equal = now is not None and set_to is not None and abs(now - set_to) <= (1 - AT_HIGHEST) * set_to
    return _share(set_to, getattr(device, f"default_application_{clock}")), is_equal


def clock_setting(device: Device, facts: Facts) -> Ruling | None:
    """Report a setting that lowers a busy GPU's clock, such as application clocks, even if NVML names no reason."""
    settings = [text for name, text in SETTINGS.items() if name in reasons(device)]
    is_slower = (_share(device.sm_clock_hz, device.max_sm_clock_hz) or 1.0) < AT_HIGHEST
    set_to = {name: _application_clock(device, clock) for name, clock, *_ in _CLOCKS}
    # The clocks that run at an application clock below its default, with the lost share.
    lost = {name: 1 - share for name, (share, is_equal) in set_to.items() if is_equal and share and share < AT_HIGHEST}
    if activity(device) != "busy" or not (lost or (settings and is_slower and low_clock(device, facts) is None)):
        return None
    memory_loss = lost.get("memory clock", 0.0)
    is_default = (set_to["clock"][0] or 0.0) >= AT_HIGHEST
    is_costly = max(memory_loss, 0.0 if is_default else cost(device)) >= COSTLY
    parts = (
        ", ".join(settings) or SETTINGS["applications_clocks_setting"],
        f"memory clock {units.percent(memory_loss)} below its default" if memory_loss else "",
        _busy(device),
        _cost(device) if is_slower else "",
    )
    fix = "sudo nvidia-smi -i {card} --reset-applications-clocks" if lost else None
    verdict: Verdict = "warn" if is_costly else "info"
    return _verdict(device, verdict, "clock limited by a setting", *parts, fix=fix, cost=max(memory_loss, cost(device)))


def low_clock(device: Device, facts: Facts) -> Ruling | None:
    """Report a busy GPU far below its default clock or that of its model, if NVML gives no reason (a lock has none)."""
    # `applications_clocks_setting` does not exclude a lock, because NVML gives this reason at default clocks too.
    explained = set(reasons(device)) - {"gpu_idle", "applications_clocks_setting"}
    unknown = "applications_clocks_setting" in reasons(device) and device.application_sm_clock_hz is None
    if not _is_wholly_busy(device) or explained or unknown or _shares(device):
        return None
    why = "NVML gives no reason" if device.clock_reasons is not None else "NVML reports no reasons here"
    low: list[tuple[str, str, str]] = []
    architecture = tuple(map(int, re.findall(r"\d+", device.compute_capability or "99")))
    for name, clock, unlock, since in _CLOCKS:
        now, most = getattr(device, clock), getattr(device, f"max_{clock}")
        reference = _reference(device, clock, facts)
        if now is None or reference is None or _application_clock(device, clock)[1]:
            continue
        if now <= (1 - COSTLY) * reference[0]:
            title = f"{name} {now / 1e6:.0f} of {(most or reference[0]) / 1e6:.0f} MHz"
            low.append((title, reference[1], unlock if architecture >= since else ""))
    if not low:
        # Many GPUs never reach their boost clock. Without a reference, only a very low clock is reported, as a remark.
        alone = _reference(device, "sm_clock_hz", facts) is None and not _application_clock(device, "sm_clock_hz")[1]
        is_low = alone and cost(device) > 1 - LOW_CLOCK
        return _verdict(device, "info", _clock(device), _busy(device), why) if is_low else None
    titles, references, unlocks = zip(*low, strict=True)
    why += ": the clock may be locked, which NVML cannot read" if any(unlocks) else ""
    parts = (", ".join(titles[1:]), *dict.fromkeys(references), _busy(device), _power(device), why)
    fix = "; ".join(filter(None, unlocks)) or "nvidia-smi -q -d CLOCK,PERFORMANCE"
    return _verdict(device, "warn", titles[0], *parts, fix=fix)


def _is_wholly_busy(device: Device) -> bool:
    """Return whether the GPU is busy all the time: a low clock can be normal at half load."""
    return device.state == UNDER_LOAD or (device.utilization_percent or 0.0) >= WHOLLY_BUSY_PERCENT


def _reference(device: Device, clock: str, facts: Facts) -> tuple[float, str] | None:
    """Return the clock that this GPU should have, with its source in words, or None."""
    clocks = sorted(
        getattr(card, clock)
        for card in same_model(device, facts)
        if getattr(card, clock) is not None and _is_wholly_busy(card)
    )
    # With the lower of two middle values, one fast GPU does not make the others look slow. A single other GPU counts
    # only if its clock is more than twice the clock of this GPU.
    others = clocks[(len(clocks) - 1) // 2] if clocks else 0.0
    if len(clocks) < LEAST_SAME_MODEL and (getattr(device, clock) or 0.0) >= LOW_CLOCK * others:
        others = 0.0
    # Memory has no boost clock, so its maximum is its usual clock.
    highest = device.max_memory_clock_hz if clock == "memory_clock_hz" else None
    default = getattr(device, f"default_application_{clock}") or highest
    if others > (default or 0.0):
        who = "most other GPUs of the same name run" if len(clocks) > 1 else "the other GPU of the same name runs"
        return others, f"{who} at {others / 1e6:.0f} MHz"
    return None if default is None else (default, f"its default is {default / 1e6:.0f} MHz")


def _link_below_maximum(
    device: Device, facts: Facts, field: str, words: str, fix: str, is_lost: Callable[[int], bool]
) -> Ruling | None:
    """Report a busy GPU whose link has a `width` or `generation` (`field`) below that of GPU and slot."""
    link = device.pcie or Link()
    now, most = getattr(link, field), getattr(link, f"max_{field}")
    # Copies of an integrated GPU, or over NVLink-C2C, do not use the PCIe link.
    uses_pcie = not device.integrated and not links.is_chip_to_chip(device.name)
    if activity(device) != "busy" or not uses_pcie or now is None or (most or 0) <= now:
        return None
    alike = [row.pcie for row in facts.devices if row.name == device.name is not None and row.pcie is not None]
    best = max((getattr(other, field) or 0 for other in alike), default=0)
    beside = f"a GPU of the same name has {words}{best}" if best > now else ""
    is_fault, message = bool(beside) or is_lost(now), "; ".join(filter(None, (beside, _busy(device))))
    title = f"PCIe {words}{now} of {words.strip('gen ')}{most}"
    return Ruling("warn" if is_fault else "info", title, message, fix if is_fault else None, {"pcie": asdict(link)})


def link_width(device: Device, facts: Facts) -> Ruling | None:
    fix = "reseat the GPU or remove its riser; measure: gpucheck bench transfer"
    return _link_below_maximum(device, facts, "width", "x", fix, lambda now: links.is_width_lost(now, device.name))


def link_generation(device: Device, facts: Facts) -> Ruling | None:
    fix = "sudo lspci -vv shows both ends; measure: gpucheck bench transfer"
    return _link_below_maximum(
        device, facts, "generation", "gen ", fix, lambda now: links.is_speed_lost(now, device.pci_address)
    )


def pcie_replays(device: Device, facts: Facts) -> Ruling | None:
    """Report more PCIe replays than a healthy link has in a day, unless they stopped long ago."""
    link, grown = device.pcie or Link(), device.changes
    a_day = 24 * 60 * links.most_replays_a_minute(link.max_generation or link.generation, link.max_width or link.width)
    is_past = grown is not None and grown.pcie_replays == 0 and grown.span_s >= OLD_S
    if link.replays is None or link.replays <= a_day or is_past:
        return None
    message = f"since the driver was loaded; a healthy link has at most {a_day} per day"
    fix, evidence = "sudo dmesg | grep -i aer; reseat the GPU and its riser", {"replays": link.replays, "a_day": a_day}
    return Ruling("warn", f"{link.replays} PCIe replays", message, fix, evidence)


def not_judged(device: Device, facts: Facts) -> Ruling | None:
    if (state := activity(device)) == "busy" or is_dead(device) or is_not_read(device):
        return None
    causes = {"idle": "the GPU is idle", "light load": f"the GPU is only {_busy(device)}"}
    why, link = causes.get(state, "NVML reports no utilisation"), device.pcie or Link()
    is_narrow = link.width is not None and (link.max_width or 0) > link.width
    now = f"; the link is at x{link.width} of x{link.max_width}, normal for some idle GPUs" if is_narrow else ""
    evidence = {"utilization_percent": device.utilization_percent, "pcie": asdict(link)}
    return Ruling("skip", "clock and PCIe link not judged", f"{why}{now}", "gpucheck doctor", evidence)
