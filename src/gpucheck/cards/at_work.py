"""How a card runs now, from a live reading: what lowers its clock, heat, power and the PCIe link.

At rest a card lowers its clock, its link's generation and on some parts its width: that is no fault, and those checks
are skipped with the reason. Heat and what the hardware does to protect the card are judged whatever it does. Where one
process took two readings, what both show is how the card runs, and counters tell what happened in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from gpucheck import links, units
from gpucheck.cards.card import Said, low_clocks, pointer
from gpucheck.machine.others import AT_WORK_PERCENT
from gpucheck.report.facts import Device, Facts, Link
from gpucheck.report.finding import Verdict

Work = Literal["at work", "lightly used", "at rest", "unknown"]
# Below this it is a display or a monitor that asks.
AT_REST_PERCENT = 5.0
# Where NVML tells no utilisation: at rest a T4 or an L4 that is kept awake takes up to 0.42 of its limit, and others
# less.
AT_WORK_POWER_SHARE = 0.5

# nvml.h, nvmlClocksEventReasons: what lowers the clock to protect the card, and why. The last comes with the others.
PROTECTS = {
    "hw_thermal_slowdown": ("heat", "the hardware lowers the clock because it is too hot"),
    "hw_power_brake_slowdown": ("power brake", "the power supply makes the hardware lower the clock (power brake)"),
    "sw_thermal_slowdown": ("heat", "the driver lowers the clock because of heat"),
    "hw_slowdown": ("heat or power", "the hardware lowers the clock because of heat or for want of power"),
}
# The hardware's own, to protect the card or its power supply: it cuts the clock to half or less.
HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
# What has no place on a card at rest. `hw_slowdown` alone flashes as clocks change.
AT_REST_HOT = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
SETTINGS = {
    "applications_clocks_setting": "application clocks",
    "display_clock_setting": "a display's clocks",
    "sync_boost": "sync boost (a group of cards keeps the clock of its slowest)",
}
POWER_CAP = "sw_power_cap"
# A choice: H100s that are cool have been seen to tell a margin of zero, which nobody can mean at less than this.
PLAUSIBLY_HOT = 80.0
# A clock this close to the highest is the highest: NVML's steps are 15 MHz.
AT_HIGHEST = 0.98
# A choice: a T4's base clock is 0.37 of its highest, which its power limit explains; this is for what nothing explains.
LOW_CLOCK = 0.5
# A card that draws this little is not held by its power limit, whatever it says.
FAR_BELOW_LIMIT = 0.5
AT_LIMIT = 0.98
# The limit holds over a second; what is read for a shorter time may lie above it by a few percent.
OVER_LIMIT = 1.1
# Shorter than this a counter's growth says more of the counter than of the card.
LEAST_SPAN_S = 0.5
# A clock that was held for less than this share of the time cannot move a figure by more than that.
LEAST_SHARE = 0.01
# Since the driver was loaded: less is what any start of a job brings.
LEAST_VIOLATION_S = 1.0
# The driver's counters of what protects the card; those of power and of settings are how it is meant to be.
PROTECTING = ("thermal", "reliability")
COUNTED = ("thermal", "reliability", "board_limit", "power", "sync_boost")
# Fewer over days are a few packets that were sent again.
FEW_REPLAYS = 1000
MINUTES_OF_A_DAY = 24 * 60


def work(device: Device) -> Work:
    """Whether the card works, by its utilisation; where that is not told, by its power and by NVML's word for idle."""
    percent, power, limit = device.utilization_percent, device.power_w, device.power_limit_w
    if percent is not None:
        if percent >= AT_WORK_PERCENT:
            return "at work"
        return "at rest" if percent < AT_REST_PERCENT else "lightly used"
    if power is not None and limit is not None and power >= AT_WORK_POWER_SHARE * limit:
        return "at work"
    return "at rest" if "gpu_idle" in _reasons(device) else "unknown"


def _reasons(device: Device) -> tuple[str, ...]:
    return device.clock_reasons.names if device.clock_reasons is not None else ()


def _lasting(device: Device) -> tuple[str, ...]:
    """What two readings name that lie far enough apart: what flashes is then gone."""
    grown = device.changes
    return grown.lasting_clock_reasons if grown is not None and grown.span_s >= LEAST_SPAN_S else ()


def _busy(device: Device) -> str:
    return "" if device.utilization_percent is None else f"{device.utilization_percent:.0f} % busy"


def _clock(device: Device) -> str:
    now, most = device.sm_clock_hz, device.max_sm_clock_hz
    return "" if now is None or most is None else f"clock {now / 1e6:.0f} of {most / 1e6:.0f} MHz"


def _cost(device: Device) -> str:
    """What a lower clock takes away."""
    now, most = device.sm_clock_hz, device.max_sm_clock_hz
    if now is None or not most:
        return "what that costs is not known: NVML does not tell the clock"
    if now >= AT_HIGHEST * most:
        return f"{_clock(device)}: it costs nothing now"
    return f"{_clock(device)}, {units.percent(1 - now / most)} below the highest"


def _power(device: Device) -> str:
    if device.power_w is None:
        return ""
    return f"{device.power_w:.0f} W" + ("" if device.power_limit_w is None else f" of {device.power_limit_w:.0f} W")


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _live(device: Device) -> dict[str, Any]:
    """What the verdict rests on."""
    return {
        "utilization_percent": device.utilization_percent,
        "clock_reasons": list(_reasons(device)),
        "lasting_clock_reasons": list(_lasting(device)),
        "sm_clock_hz": device.sm_clock_hz,
        "max_sm_clock_hz": device.max_sm_clock_hz,
        "temperature_celsius": device.temperature_celsius,
        "power_w": device.power_w,
        "power_limit_w": device.power_limit_w,
    }


# --- what protects the card -------------------------------------------------------------------------------------------


def throttled(device: Device, facts: Facts) -> Said | None:
    """A working card whose clock is lowered to protect it; lasting where two readings show it."""
    named = [name for name in PROTECTS if name in _reasons(device)]
    if not named or work(device) != "at work":
        return None
    lasting = any(name in HARDWARE for name in _lasting(device))
    verdict: Verdict = "fail" if lasting else "warn"
    readings = "in both readings" if lasting else "in this reading"
    title = f"clock lowered: {PROTECTS[named[0]][0]}"
    message = _joined(
        f"{', '.join(named)} {readings}: {PROTECTS[named[0]][1]}", _cool(device, named), _busy(device), _cost(device)
    )
    return Said(verdict, title, message, _mend(named[0]), _live(device))


def _cool(device: Device, named: list[str]) -> str:
    """The temperature; where the GPU is far from its limit, what else may be hot."""
    now = device.temperature_celsius
    if now is None:
        return ""
    limits = [limit for limit in (device.slowdown_celsius, device.gpu_max_celsius) if limit is not None]
    if PROTECTS[named[0]][0] != "heat" or not limits or now >= min(limits) - 5.0:
        return f"{now:.0f} °C"
    return (
        f"{now:.0f} °C, and the GPU's own limit is {min(limits):.0f} °C: its memory or its voltage regulators are hot, "
        "or a sensor or the board's signal is wrong"
    )


def _mend(name: str) -> str:
    if PROTECTS[name][0] == "power brake":
        return "look at the power supplies, their cables and the rack's power limit; `nvidia-smi -q -d PERFORMANCE`"
    return "look at fans, air flow and the room; `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` shows the rest"


def slowed_down(device: Device, facts: Facts) -> Said | None:
    """A card that does little or nothing and is slowed down all the same."""
    does = work(device)
    found = [name for name in AT_REST_HOT if name in _reasons(device)]
    # What flashes as clocks change does so in one reading.
    found += [name for name in PROTECTS if name in _lasting(device) and name not in found]
    if not found or does == "at work":
        return None
    title = "slows itself down at rest" if does == "at rest" else "slows itself down"
    said = _joined(f"{', '.join(found)}: {PROTECTS[found[0]][1]}", _cool(device, found), _busy(device))
    return Said("warn", title, said, "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER", _live(device))


def violations(device: Device, facts: Facts) -> Said | None:
    """For how long limits held the clock: between two readings, else since the driver was loaded."""
    grown = device.changes
    if grown is not None and grown.span_s >= LEAST_SPAN_S:
        shares = {
            name: seconds / grown.span_s
            for name in COUNTED
            if (seconds := grown.violations_s.get(name)) is not None and seconds > LEAST_SHARE * grown.span_s
        }
        if shares:
            protecting = [name for name in shares if name in PROTECTING]
            verdict: Verdict = "warn" if protecting else "info"
            held = ", ".join(
                f"{name.replace('_', ' ')} {units.percent(min(share, 1))}" for name, share in shares.items()
            )
            title = f"clock held: {', '.join(protecting or shares).replace('_', ' ')}"
            message = f"of the last {units.duration(grown.span_s)}: {held}; {_cost(device)}"
            fix = _mend("sw_thermal_slowdown") if "thermal" in shares else None
            return Said(verdict, title, message, fix, {"shares": shares, "span_s": grown.span_s})
    counted = {
        name: seconds
        for name in COUNTED
        if (seconds := (device.violations_s or {}).get(name)) is not None and seconds >= LEAST_VIOLATION_S
    }
    if not counted:
        return None
    held = ", ".join(f"{name.replace('_', ' ')} {units.duration(seconds)}" for name, seconds in counted.items())
    return Said(
        "info", "limits held the clock before", f"since the driver was loaded: {held}", None, {"violations_s": counted}
    )


def hot(device: Device, facts: Facts) -> Said | None:
    """The GPU or its memory is at one of the card's own limits, whatever it does."""
    return _hot_gpu(device) or _hot_memory(device)


COOLING = "look at fans, air flow and the temperature of the room"


def _hot_gpu(device: Device) -> Said | None:
    now, left = device.temperature_celsius, device.temperature_margin_celsius
    steps = (
        (device.gpu_max_celsius, "the driver lowers the clock"),
        (device.slowdown_celsius, "the hardware lowers the clock"),
        (device.shutdown_celsius, "the card switches itself off"),
    )
    limits = sorted((limit, what) for limit, what in steps if limit is not None)
    doing = _joined(_busy(device), _power(device))
    evidence = {**_live(device), "limits_celsius": [limit for limit, _ in limits], "margin_celsius": left}
    if now is None:
        return None
    if not limits and left is not None and left <= 0 and now >= PLAUSIBLY_HOT:
        message = _joined(f"{now:.0f} °C, and {left:.0f} °C are left until it slows down, as NVML tells", doing)
        return Said("warn", f"{now:.0f} °C, no margin left", message, COOLING, evidence)
    if not limits or now < limits[0][0]:
        return None
    off = device.shutdown_celsius is not None and now >= device.shutdown_celsius
    told = ", ".join(f"from {limit:.0f} °C on {what}" for limit, what in limits)
    message = _joined(f"{now:.0f} °C: {told}", doing)
    return Said("fail" if off else "warn", f"{now:.0f} °C, limit {limits[0][0]:.0f} °C", message, COOLING, evidence)


def _hot_memory(device: Device) -> Said | None:
    now, limit = device.memory_temperature_celsius, device.memory_max_celsius
    if now is None or limit is None or now < limit:
        return None
    told = f"the memory is at {now:.0f} °C: from {limit:.0f} °C on the driver lowers the clock"
    evidence = {**_live(device), "memory_temperature_celsius": now, "memory_max_celsius": limit}
    title = f"memory {now:.0f} °C, limit {limit:.0f} °C"
    return Said("warn", title, _joined(told, _busy(device), _power(device)), COOLING, evidence)


# --- how fast it may go -----------------------------------------------------------------------------------------------


def power_limited(device: Device, facts: Facts) -> Said | None:
    """The power limit holds a working card's clock: normal at full load, and not where it draws little."""
    power, limit = device.power_w, device.power_limit_w
    low = _share(device.sm_clock_hz, device.max_sm_clock_hz)
    at_limit = power is not None and limit is not None and power >= AT_LIMIT * limit
    # Where NVML gives no reasons, the power itself shows it.
    inferred = device.clock_reasons is None and at_limit and low is not None and low < AT_HIGHEST
    over = power is not None and limit is not None and power > OVER_LIMIT * limit
    if work(device) != "at work" or not (POWER_CAP in _reasons(device) or inferred or over):
        return None
    message = _joined(_power(device), _busy(device), _cost(device))
    if over:
        return Said("info", "draws more than its power limit", message, None, _live(device))
    starved = power is not None and limit is not None and power < FAR_BELOW_LIMIT * limit
    if starved and low is not None and low < LOW_CLOCK:
        fix = "nvidia-smi -q -d POWER,PERFORMANCE; look at power cables and supply, and reset the card when it is free"
        return Said("warn", "held by its power limit far below it", message, fix, _live(device))
    return Said("info", "the power limit holds the clock", message, None, _live(device))


def clock_setting(device: Device, facts: Facts) -> Said | None:
    """A setting holds a working card's clock."""
    found = [what for name, what in SETTINGS.items() if name in _reasons(device)]
    if not found or work(device) != "at work":
        return None
    fix = None
    if (
        "applications_clocks_setting" in _reasons(device)
        and (_share(device.sm_clock_hz, device.max_sm_clock_hz) or 1) < AT_HIGHEST
    ):
        fix = "sudo nvidia-smi -i {uuid} --reset-applications-clocks"
    return Said(
        "info", "a setting holds the clock", _joined(", ".join(found), _busy(device), _cost(device)), fix, _live(device)
    )


def low_clock(device: Device, facts: Facts) -> Said | None:
    """A working card that runs far below its highest clocks, and nothing says why."""
    if work(device) != "at work" or set(_reasons(device)) - {"gpu_idle"}:
        return None
    pairs = (
        ("clock", device.sm_clock_hz, device.max_sm_clock_hz),
        ("memory clock", device.memory_clock_hz, device.max_memory_clock_hz),
    )
    low = low_clocks(pairs, LOW_CLOCK)
    if not low:
        return None
    why = "NVML gives no reason" if device.clock_reasons is not None else "NVML does not tell why"
    state = "" if device.performance_state is None else f"performance state P{device.performance_state}"
    message = _joined(", ".join(low), _busy(device), _power(device), state, why)
    fix = "nvidia-smi -q -d CLOCK,PERFORMANCE; a lock goes with `sudo nvidia-smi -i {uuid} --reset-gpu-clocks`"
    return Said("warn", low[0], message, fix, _live(device))


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


# --- the PCIe link ----------------------------------------------------------------------------------------------------


def link_width(device: Device, facts: Facts) -> Said | None:
    """Fewer lanes than card and slot have, while the card works."""
    link = device.pcie or Link()
    if not _link_matters(device) or link.width is None or (link.max_width or 0) <= link.width:
        return None
    alike = max((other.width for other in _links_of_its_kind(device, facts) if other.width), default=link.width)
    beside = f", where a card of the same name has x{alike}" if alike > link.width else ""
    lost = bool(beside) or links.is_width_lost(link.width, device.name)
    message = _joined(f"x{link.width}, and x{link.max_width} is possible{beside}", _busy(device))
    fix = "gpucheck bench transfer shows what copies reach; reseat the card, leave out a riser" if lost else None
    title = f"PCIe x{link.width} of x{link.max_width}"
    return Said("warn" if lost else "info", title, message, fix, {"pcie": _told(link)})


def link_generation(device: Device, facts: Facts) -> Said | None:
    """A slower generation than card and slot allow, while the card works."""
    link = device.pcie or Link()
    if not _link_matters(device) or link.generation is None or (link.max_generation or 0) <= link.generation:
        return None
    now, most = link.generation, link.max_generation
    alike = max((other.generation for other in _links_of_its_kind(device, facts) if other.generation), default=now)
    beside = f", where a card of the same name has generation {alike}" if alike > now else ""
    lost = bool(beside) or links.is_speed_lost(now, device.pci_address)
    message = _joined(f"generation {now}, and generation {most} is possible{beside}", _busy(device))
    fix = "gpucheck bench transfer shows what copies reach; `sudo lspci -vv` shows both ends" if lost else None
    return Said("warn" if lost else "info", f"PCIe gen {now} of {most}", message, fix, {"pcie": _told(link)})


def _link_matters(device: Device) -> bool:
    """Whether the card works, and its copies take that link: beside the CPU's memory, or on NVLink-C2C, they do not."""
    return work(device) == "at work" and not device.integrated and not links.is_chip_to_chip(device.name)


def _links_of_its_kind(device: Device, facts: Facts) -> Iterator[Link]:
    for other in facts.devices:
        if other is not device and other.name == device.name and other.pcie is not None and other.name is not None:
            yield other.pcie


def _told(link: Link) -> dict[str, int | None]:
    names = ("generation", "width", "max_generation", "max_width", "replays")
    return {name: getattr(link, name) for name in names}


def pcie_replays(device: Device, facts: Facts) -> Said | None:
    """Packets that were sent again: against what a sound link may come to, between two readings and in a day."""
    link = device.pcie or Link()
    if link.replays is None:
        return None
    a_minute = links.most_replays_a_minute(link.max_generation or link.generation, link.max_width or link.width)
    grown, span_s = (device.changes.pcie_replays, device.changes.span_s) if device.changes is not None else (None, 0.0)
    evidence = {"replays": link.replays, "grown": grown, "span_s": span_s or None, "most_a_minute": a_minute}
    fix = "reseat the card and its riser; `sudo dmesg | grep -i aer` shows errors of the bus"
    if grown and grown > a_minute * max(1, math.ceil(span_s / 60)):
        message = f"{grown} more in {units.duration(span_s)}; a sound link has up to {a_minute} a minute"
        return Said("warn", f"{grown} new PCIe replays", message, fix, evidence)
    if link.replays > a_minute * MINUTES_OF_A_DAY:
        message = (
            f"{link.replays} packets were sent again since the driver was loaded; a sound link has up to "
            f"{a_minute * MINUTES_OF_A_DAY} a day"
        )
        return Said("warn", f"{link.replays} PCIe replays", message, fix, evidence)
    if grown or link.replays >= FEW_REPLAYS:
        more = f", {grown} of them in the last {units.duration(span_s)}" if grown else ""
        message = f"{link.replays} packets were sent again since the driver was loaded{more}"
        return Said("info", f"{link.replays} PCIe replays", message, None, evidence)
    return None


# --- what was not judged ----------------------------------------------------------------------------------------------

# What the checks of a working card need, by how a reader calls it.
UNTOLD = "NVML does not tell it"
NEEDED = {
    "sm_clock_hz": "clock",
    "clock_reasons": "reasons for a lower clock",
    "temperature_celsius": "temperature",
    "power_w": "power",
    "pcie/generation": "PCIe generation",
    "pcie/width": "PCIe width",
}


def not_judged(device: Device, facts: Facts) -> Said | None:
    """What was not looked at, with the reason: a card at rest, or a figure that NVML does not tell of a working one."""
    if device.state in ("lost", "reset required") or (device.state or "").startswith(("not answering", "not read")):
        return None
    does = work(device)
    if does == "at work":
        return _untold(device, facts)
    why = {
        "at rest": "the card is at rest",
        "lightly used": f"the card is only {_busy(device)}",
        "unknown": "NVML does not tell whether the card works (no utilisation)",
    }[does]
    link = device.pcie or Link()
    narrow = link.width is not None and (link.max_width or 0) > link.width
    now = f"; the link now has x{link.width} of x{link.max_width}, as it may at rest" if narrow else ""
    evidence = {"utilization_percent": device.utilization_percent, "pcie": _told(link)}
    fix = "`gpucheck doctor` judges them under a second of load"
    return Said("skip", "clock and PCIe link not judged", f"{why}{now}", fix, evidence)


def _untold(device: Device, facts: Facts) -> Said | None:
    own = pointer(device, facts)
    missing = {}
    limits = ("gpu_max_celsius", "slowdown_celsius", "shutdown_celsius", "temperature_margin_celsius")
    if all(getattr(device, name) is None for name in limits):
        missing["temperature limits"] = facts.unknown.get(f"{own}slowdown_celsius", UNTOLD)
    for name, word in NEEDED.items():
        group = name.partition("/")[0]
        value: Any = device
        for step in name.split("/"):
            value = getattr(value, step, None)
        if value is None:
            missing[word] = facts.unknown.get(f"{own}{name}") or facts.unknown.get(f"{own}{group}") or UNTOLD
    if not missing:
        return None
    said = "; ".join(f"{word} ({reason})" for word, reason in missing.items())
    return Said("skip", "not all of it could be judged", said, None, {"missing": missing})
