"""The current state of a GPU from live readings: throttling, clock, temperature, power and the PCIe link.

An idle GPU lowers its clock and the speed of its link; both are judged only on a busy GPU. A clock reason counts as
lasting if both of two readings have it; counters show what happened in between.
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
# The state of a GPU that gpucheck puts under load. The GPU counts as busy, whatever utilisation NVML reports.
UNDER_LOAD = "under load"
# Utilisation below this comes from a display or a monitoring tool.
AT_REST_PERCENT = 5.0
# Without utilisation, a GPU above this share of its power limit is busy. An idle T4 or L4 that is not in its
# low-power state draws 0.42 of its limit.
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
# A busy GPU below this share of its maximum clock gets a remark if NVML gives no reason. The limit is a choice: a T4's
# base clock is 0.37 of its maximum, but its power limit explains that.
LOW_CLOCK = 0.5
# A chosen limit: a loss of this share of the clock is always shown.
COSTLY = 0.2
# A GPU that is busy all the time has no reason to run far below its maximum clock.
WHOLLY_BUSY_PERCENT = 90.0
# A GPU below this share of its power limit is not limited by power, even if the clock reason says so.
FAR_BELOW_LIMIT = 0.5
# If NVML gives no clock reasons, a GPU at this share of its limit with a lower clock counts as limited by power.
AT_LIMIT = 0.98
# A counter's growth is not reliable over a shorter time.
LEAST_SPAN_S = 0.5
# A limit that holds for less than this share of the time lowers a figure by less than that share.
LEAST_SHARE = 0.01
# The driver's counters of protective limits. Limits by power and settings are normal operation.
PROTECTING = ("thermal", "reliability")
COUNTED = (*PROTECTING, "board_limit", "power", "sync_boost")
# Many GPUs stop their fans up to about 60 °C. A stopped fan is a remark from 70 °C, a failure 10 °C below slowdown.
WARM, CLOSE_TO_SLOWDOWN, FAN_SPAN_S = 70.0, 10.0, 5.0
# The clocks that can be locked (NVML does not report locks), the command that unlocks each, and the lowest compute
# capability with that command.
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
    """Report throttling that protects the GPU; `fail` if it is busy and the hardware's reason lasts."""
    does, lasting = activity(device), _lasting(device)
    # A reason that may appear briefly while clocks change (`hw_slowdown`) counts if it lasts or the GPU is busy.
    counts = {"hw_thermal_slowdown", "hw_power_brake_slowdown", *lasting} if does != "busy" else PROTECTS
    named = [name for name in PROTECTS if name in reasons(device) and name in counts]
    if not named:
        return None
    held = does == "busy" and any(name in HARDWARE for name in lasting)
    by, now = PROTECTS[named[0]], device.temperature_celsius
    # Under gpucheck's load there are many readings, whose number doctor reports, so it is left out here.
    counted = f"{', '.join(named)} in {'two readings' if lasting else 'one reading'}"
    parts = (
        _cost(device) if does == "busy" else _busy(device),
        "" if now is None else f"{now:.0f} °C",
        "" if device.state == UNDER_LOAD else counted,
    )
    title = f"throttled by {by}{' while idle' * (does == 'idle')}"
    return _verdict(device, "fail" if held else "warn", title, *parts, fix=FIXES[by])


def violations(device: Device, facts: Facts) -> Ruling | None:
    """Report how long limits lowered the clock between two readings. Older counts say nothing about the present."""
    grown, shares = device.changes, _shares(device)
    if grown is None or not shares:
        return None
    verdict: Verdict = "warn" if set(PROTECTING) & set(shares) else "info"
    held = ", ".join(f"{name.replace('_', ' ')} {units.percent(min(share, 1))}" for name, share in shares.items())
    # The low clock is due to these limits if NVML names no other reason.
    lost = 0.0 if set(reasons(device)) - {"gpu_idle"} else cost(device)
    parts = (f"{held} of the last {units.duration(grown.span_s)}", _cost(device))
    fix = FIX["heat"] if "thermal" in shares else None
    return _verdict(device, verdict, "clock limited", *parts, fix=fix, shares=shares, span_s=grown.span_s, cost=lost)


def _shares(device: Device) -> dict[str, float]:
    """Return each limit's share of the time between two readings, without shares of up to 1 %."""
    grown = device.changes
    if grown is None or grown.span_s < LEAST_SPAN_S:
        return {}
    seconds = {name: grown.violations_s.get(name) or 0.0 for name in COUNTED}
    return {name: held / grown.span_s for name, held in seconds.items() if held > LEAST_SHARE * grown.span_s}


def fan(device: Device, facts: Facts) -> Ruling | None:
    """Report a fan that is set to 0 % on a hot GPU. Passively cooled GPUs have no reading."""
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
    lasts = device.changes is not None and device.changes.span_s >= FAN_SPAN_S
    if now < WARM or not (turning or lasts):
        return None
    message = f"the fan of a GPU as cool and of this name is at {max(turning):.0f} %" if turning else "for 5 s or more"
    return _verdict(device, "info", title, message, fan_percent=0.0)


def hot(device: Device, facts: Facts) -> Ruling | None:
    gpu, memory = device.temperature_celsius, device.memory_temperature_celsius
    steps: tuple[tuple[str, float | None, float | None, Verdict, str], ...] = (
        ("", gpu, device.shutdown_celsius, "fail", "the GPU shuts down"),
        ("", gpu, device.slowdown_celsius, "warn", "the hardware lowers the clock"),
        ("", gpu, device.gpu_max_celsius, "warn", "the driver lowers the clock"),
        ("memory ", memory, device.memory_max_celsius, "warn", "the driver lowers the clock"),
    )
    for part, now, limit, verdict, does in steps:
        if now is not None and limit is not None and now >= limit:
            title = f"{part}{now:.0f} °C, limit {limit:.0f} °C"
            return _verdict(device, verdict, title, does, fix=FIX["heat"], limits_celsius=[limit])
    return None


def power_limited(device: Device, facts: Facts) -> Ruling | None:
    """Report a busy GPU whose clock the power limit lowers: normal at full load, a fault at low power."""
    drawn, low = _share(device.power_w, device.power_limit_w), _share(device.sm_clock_hz, device.max_sm_clock_hz)
    # Power at the limit and a lower clock are the sign if NVML gives no reasons.
    inferred = device.clock_reasons is None and (drawn or 0.0) >= AT_LIMIT and low is not None and low < AT_HIGHEST
    if activity(device) != "busy" or not ("sw_power_cap" in reasons(device) or inferred):
        return None
    limit = f"default {device.power_limit_default_w:.0f} W" if device.power_limit_default_w is not None else ""
    parts = (_power(device), _busy(device), _cost(device), limit)
    if drawn is not None and drawn < FAR_BELOW_LIMIT and low is not None and low < LOW_CLOCK:
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
    named = [what for name, what in SETTINGS.items() if name in reasons(device)]
    slower = (_share(device.sm_clock_hz, device.max_sm_clock_hz) or 1.0) < AT_HIGHEST
    set_to = {name: _application_clock(device, clock) for name, clock, *_ in _CLOCKS}
    # Clocks that run at an application clock below its default, with the missing share.
    held = {name: 1 - share for name, (share, stands) in set_to.items() if stands and share and share < AT_HIGHEST}
    if activity(device) != "busy" or not (held or (named and slower and low_clock(device, facts) is None)):
        return None
    of_memory = held.get("memory clock", 0.0)
    is_default = (set_to["clock"][0] or 0.0) >= AT_HIGHEST
    costly = max(of_memory, 0.0 if is_default else cost(device)) >= COSTLY
    parts = (
        ", ".join(named) or SETTINGS["applications_clocks_setting"],
        f"memory clock {units.percent(of_memory)} below its default" if of_memory else "",
        _busy(device),
        _cost(device) if slower else "",
    )
    fix = "sudo nvidia-smi -i {card} --reset-applications-clocks" if held else None
    verdict: Verdict = "warn" if costly else "info"
    return _verdict(device, verdict, "clock limited by a setting", *parts, fix=fix, cost=max(of_memory, cost(device)))


def low_clock(device: Device, facts: Facts) -> Ruling | None:
    """Report a busy GPU far below its default clock or that of GPUs of its name, without a reason. It may be locked."""
    # `applications_clocks_setting` does not exclude a lock, because NVML also gives it at default application clocks.
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
        # Many GPUs never reach their boost clock. Only a very low clock is reported without a reference, as a remark.
        alone = _reference(device, "sm_clock_hz", facts) is None and not _application_clock(device, "sm_clock_hz")[1]
        is_low = alone and cost(device) > 1 - LOW_CLOCK
        return _verdict(device, "info", _clock(device), _busy(device), why) if is_low else None
    titles, besides, unlocks = zip(*low, strict=True)
    why += ": it may be locked, which NVML cannot read" if any(unlocks) else ""
    parts = (", ".join(titles[1:]), *dict.fromkeys(besides), _busy(device), _power(device), why)
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
    # The lower of the two middle values: one fast GPU does not make the others look slow. A single other GPU counts
    # only if its clock is more than twice this one's.
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
    """Report a busy GPU whose link has fewer lanes or a slower generation than GPU and slot support. `field` is `width`
    or `generation`."""
    link = device.pcie or Link()
    now, most = getattr(link, field), getattr(link, f"max_{field}")
    # Copies of an integrated GPU, or over NVLink-C2C, do not use the PCIe link.
    counts = not device.integrated and not links.is_chip_to_chip(device.name)
    if activity(device) != "busy" or not counts or now is None or (most or 0) <= now:
        return None
    alike = [row.pcie for row in facts.devices if row.name == device.name is not None and row.pcie is not None]
    best = max((getattr(other, field) or 0 for other in alike), default=0)
    beside = f"a GPU of the same name has {words}{best}" if best > now else ""
    lost, message = bool(beside) or is_lost(now), "; ".join(filter(None, (beside, _busy(device))))
    title = f"PCIe {words}{now} of {words.strip('gen ')}{most}"
    return Ruling("warn" if lost else "info", title, message, fix if lost else None, {"pcie": asdict(link)})


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
    stopped = grown is not None and grown.pcie_replays == 0 and grown.span_s >= OLD_S
    if link.replays is None or link.replays <= a_day or stopped:
        return None
    message = f"since the driver was loaded; a healthy link has at most {a_day} per day"
    fix, evidence = "sudo dmesg | grep -i aer; reseat the GPU and its riser", {"replays": link.replays, "a_day": a_day}
    return Ruling("warn", f"{link.replays} PCIe replays", message, fix, evidence)


def not_judged(device: Device, facts: Facts) -> Ruling | None:
    does = activity(device)
    if does == "busy" or is_dead(device) or is_not_read(device):
        return None
    known = {"idle": "the GPU is idle", "light load": f"the GPU is only {_busy(device)}"}
    why, link = known.get(does, "NVML reports no utilisation"), device.pcie or Link()
    narrow = link.width is not None and (link.max_width or 0) > link.width
    now = f"; the link is at x{link.width} of x{link.max_width}, normal for some idle GPUs" if narrow else ""
    evidence = {"utilization_percent": device.utilization_percent, "pcie": asdict(link)}
    return Ruling("skip", "clock and PCIe link not judged", f"{why}{now}", "gpucheck doctor", evidence)
