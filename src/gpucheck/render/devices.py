"""`gpucheck devices` as blocks."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace

from gpucheck import units
from gpucheck.cards.at_work import work
from gpucheck.cards.checks import Group, grouped
from gpucheck.render.blocks import (
    SIGNS,
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    Table,
    answer,
    by_column,
    finding_line,
    table,
    verdict_cell,
)
from gpucheck.render.text import said
from gpucheck.report.facts import Device, Facts, Link, Process
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Report

# Utilisation, power and the verdict stay on every screen.
_COLUMNS = (
    Column("CUDA", "left"),
    Column("NVML", "left", keep=4),
    Column("device", "left", keep=7),
    Column("memory, GiB", keep=6),
    Column("util"),
    Column("power"),
    Column("temp", keep=5),
    Column("clock", keep=3),
    Column("link", "left", keep=2),
    Column("state", "left", cropped=True),
    Column("PCI address", "left", keep=1),
    Column("UUID", "left", keep=0),
)
# The same in 40 columns, a line for each device.
_NARROW = (
    Column("GPU", "left"),
    Column("util"),
    Column("power"),
    Column("temp", keep=1),
    Column("state", "left", cropped=True),
)
_OF_EVERY_CPU = re.compile(r"\((?:R|TM|C)\)| \d+-Core Processor| Processor\b| CPU @.*", re.IGNORECASE)
# What stands above the table, the worst first.
_FAULTS: tuple[Verdict, ...] = ("fail", "inconclusive", "warn")
# A card that is gone comes before all that is said of others.
_FIRST = "devices.answers"
# Said in the first line where it is so.
NONE = "devices.none"
_HIDDEN = "hidden by CUDA_VISIBLE_DEVICES="
# States of devices in few words; the others are as short as they are.
_SHORT_STATES = (
    (_HIDDEN, "hidden"),
    ("not shown by CUDA", "not shown"),
    ("in MIG mode", "MIG mode"),
    ("not accessible here", "no permission"),
    ("not answering", "not answering"),
    ("not read", "not read"),
)


def page(report: Report) -> Page:
    """What is wrong with the devices, then each in a line, their processes and versions."""
    findings = [_with_time(finding) for finding in sorted(report.findings, key=lambda one: one.id != _FIRST)]
    none = next((finding for finding in findings if finding.id == NONE), None)
    faults = any(finding.verdict in _FAULTS for finding in findings)
    return Page(None if faults else _answer(report), _body(report), findings=findings, cause=none)


def watched(report: Report, read: datetime.datetime, interval_s: float) -> list[Block]:
    """One reading of a watch: when it was taken, what is wrong in a line each, the devices, and then the details.

    A small screen is cut off at its foot.
    """
    faults = _groups(report.findings, _FAULTS)
    following = read + datetime.timedelta(seconds=interval_s)
    laid_out: list[Block] = [
        Line(f"{_clock_time(read)}, next {_clock_time(following)} (every {interval_s:g} s)"),
        *(Line(f"{_sign(group)} {_who(group)}{group.title}", _style(group)) for group in faults),
        *([one] if not faults and (one := _answer(report)) else []),
    ]
    laid_out += [Line()] if report.facts.devices else []
    return [*laid_out, *_body(report), *said([one for one in report.findings if one.verdict in _FAULTS])]


def _body(report: Report) -> list[Block]:
    facts = report.facts
    laid_out: list[Block] = []
    if facts.devices:
        laid_out.append(_filled(facts, report.findings))
        laid_out.append(Line())
    if any(device.processes for device in facts.devices):
        laid_out += [_processes(facts), Line()]
    laid_out += [Line(state) for state in _masks(facts)]
    return laid_out + versions_line(facts)


def _groups(found: tuple[Finding, ...] | list[Finding], verdicts: tuple[Verdict, ...]) -> list[Group]:
    """The findings with these verdicts in their order, each said once for all its cards."""
    ordered = sorted(
        (finding for finding in found if finding.verdict in verdicts),
        key=lambda finding: (verdicts.index(finding.verdict), finding.id != _FIRST),
    )
    return grouped([_with_time(finding) for finding in ordered])


def _with_time(finding: Finding) -> Finding:
    since = finding.evidence.get("since")
    return replace(finding, title=f"{finding.title} since {_time_of(since)}") if since else finding


def _time_of(text: str) -> str:
    return _clock_time(datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc))


def _clock_time(moment: datetime.datetime) -> str:
    """The time of day where the reader is."""
    return moment.astimezone().strftime("%H:%M:%S")


def _sign(group: Group) -> str:
    return SIGNS[group.verdict][0]


def _style(group: Group) -> str:
    return SIGNS[group.verdict][2]


def _who(group: Group) -> str:
    return f"{', '.join(group.devices)}: " if group.devices else ""


def _answer(report: Report) -> Line | None:
    """The first line where nothing is wrong; what there is instead of a GPU where there is none."""
    none = next((finding for finding in report.findings if finding.id == NONE), None)
    if none is not None:
        return finding_line(none)
    cards = [device for device in report.facts.devices if device.nvml_index is not None]
    if not cards:
        return None
    does = [work(card) for card in cards]
    parts = [f"{count} {word}" for word in ("at work", "lightly used", "at rest") if (count := does.count(word))]
    listed = f"{len(cards)} GPU{'s' * (len(cards) != 1)}, no fault seen"
    text = f"{listed} ({', '.join(parts)})" if parts else listed
    return answer("pass", text)


def _masks(facts: Facts) -> list[str]:
    """What hides cards, once for all of them."""
    return list(
        dict.fromkeys(device.state for device in facts.devices if device.state and device.state.startswith(_HIDDEN))
    )


def _filled(facts: Facts, findings: tuple[Finding, ...]) -> Table:
    """The table without the columns that no device here fills."""
    columns = zip(_COLUMNS, zip(*(_row(device, findings) for device in facts.devices), strict=True), strict=True)
    shown = by_column((column, cells) for column, cells in columns if any(cell not in ("", Cell("")) for cell in cells))
    if not any(device.nvml_index is not None for device in facts.devices):
        return shown
    return replace(shown, narrow=table(_NARROW, [_narrow_row(device, findings) for device in facts.devices]))


def _row(device: Device, findings: tuple[Finding, ...]) -> list[str | Cell]:
    if device.kind == "cpu":
        cores = f" ({device.cores_allowed})" if device.cores_allowed else ""
        return ["cpu", "", f"{short_name(device)}{cores}", _memory(device), *[""] * 5, _load(device), "", ""]
    return [
        _index(device),
        UNKNOWN if device.nvml_index is None else str(device.nvml_index),
        (device.name or UNKNOWN).removeprefix("NVIDIA "),
        _memory(device),
        _utilization(device),
        _power(device),
        _temperature(device),
        UNKNOWN if device.sm_clock_hz is None else f"{device.sm_clock_hz / 1e6:.0f} MHz",
        link(device.pcie),
        _state(device, findings),
        device.pci_address or UNKNOWN,
        device.uuid or UNKNOWN,
    ]


def _narrow_row(device: Device, findings: tuple[Finding, ...]) -> list[str | Cell]:
    if device.kind == "cpu":
        return ["cpu", "", "", "", _load(device)]
    power = UNKNOWN if device.power_w is None else f"{device.power_w:.0f} W"
    return [_name(device), _utilization(device), power, _temperature(device), _state(device, findings, brief=True)]


def short_name(device: Device | DeviceRef) -> str:
    """The name without what every one of its maker's has, which would cost the table a column."""
    return _OF_EVERY_CPU.sub("", device.name or "CPU").strip() or "CPU"


def _load(device: Device) -> str:
    return UNKNOWN if device.load_1min is None else f"load {units.significant(device.load_1min, 2)}"


def _utilization(device: Device) -> str:
    return UNKNOWN if device.utilization_percent is None else f"{device.utilization_percent:.0f} %"


def _temperature(device: Device) -> str:
    return UNKNOWN if device.temperature_celsius is None else f"{device.temperature_celsius:.0f} °C"


def _index(device: Device) -> str:
    if device.cuda_index is not None:
        return str(device.cuda_index)
    return device.id or UNKNOWN


def _memory(device: Device) -> str:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if total is None:
        return UNKNOWN
    # NVML's first call counts what the driver reserves as used; a device without memory shows the host's.
    mark = {"nvml v1": " (with reserved)", "host (shared with the CPU)": " (shared)"}.get(
        device.memory_source or "", ""
    )
    whole = units.significant(total / units.GIB) + mark
    return f"{UNKNOWN if used is None else units.significant(used / units.GIB, 2)} / {whole}"


def _power(device: Device) -> str:
    if device.power_w is None:
        return UNKNOWN
    limit = UNKNOWN if device.power_limit_w is None else f"{device.power_limit_w:.0f}"
    return f"{device.power_w:.0f} / {limit} W"


def link(pcie: Link | None) -> str:
    """A PCIe link: what it is now, and in brackets what it could be where that differs."""
    if pcie is None or pcie.generation is None or pcie.width is None:
        return UNKNOWN
    now = f"PCIe {pcie.generation} x{pcie.width}"
    most = (pcie.max_generation or pcie.generation, pcie.max_width or pcie.width)
    return now if most == (pcie.generation, pcie.width) else f"{now} ({most[0]} x{most[1]})"


def _state(device: Device, findings: tuple[Finding, ...], *, brief: bool = False) -> Cell:
    """The worst that is seen of this device, else why it is not simply there, else what it does.

    `brief` leaves out since when.
    """
    mine = [finding for finding in findings if _is_about(finding, device)]
    for worst in _FAULTS:
        for finding in mine:
            if finding.verdict == worst:
                return verdict_cell(finding.verdict, (finding if brief else _with_time(finding)).title)
    if device.state:
        short = next((word for begins, word in _SHORT_STATES if device.state.startswith(begins)), device.state)
        return Cell(short, "yellow")
    if device.nvml_index is None:
        return Cell(UNKNOWN)
    does = work(device)
    return Cell(f"{SIGNS['pass'][0]} {'no fault seen' if does == 'unknown' else does}")


def _is_about(finding: Finding, device: Device) -> bool:
    """A card that is lost may not even tell its UUID."""
    uuid, index = finding.evidence.get("uuid"), finding.evidence.get("nvml_index")
    if device.uuid and uuid:
        return bool(uuid == device.uuid)
    return device.nvml_index is not None and bool(index == device.nvml_index)


def _processes(facts: Facts) -> Block:
    rows = []
    for device in facts.devices:
        for process in device.processes or ():
            rows.append(
                [_name(device), str(process.pid), process.kind, _process_memory(process), _process_name(process)]
            )
    columns = (
        Column("device", "left"),
        Column("PID"),
        Column("kind", "left", keep=1),
        Column("memory"),
        Column("process", "left"),
    )
    return table(columns, rows)


def _name(device: Device) -> str:
    """What tells this device from the others: CUDA's index, else NVML's, else the UUID."""
    if device.cuda_index is None and device.id is None:
        return f"NVML {device.nvml_index}" if device.nvml_index is not None else device.uuid or UNKNOWN
    return _index(device)


def _process_memory(process: Process) -> str:
    return UNKNOWN if process.used_memory_bytes is None else units.capacity(process.used_memory_bytes)


def _process_name(process: Process) -> str:
    return process.name or "not visible here (another container?)"


def versions_line(facts: Facts) -> list[Block]:
    """The versions, where they were read: of a command that was cut off before, nothing is said."""
    return [Line(versions(facts))] if facts.python is not None else []


def versions(facts: Facts) -> str:
    """Driver, torch and Python in one line; what is not there is said."""
    parts = []
    driver, torch = facts.driver, facts.torch
    if driver is not None and driver.version:
        cuda = f" (CUDA {driver.cuda_version})" if driver.cuda_version else ""
        parts.append(f"driver {driver.version}{cuda}")
    else:
        parts.append("no NVIDIA driver")
    if torch is None or torch.version is None:
        parts.append("no torch")
    else:
        names = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "the CPU"}
        toolkit = f" {torch.toolkit_version}" if torch.toolkit_version else ""
        parts.append(f"torch {torch.version} built for {names.get(torch.built_for or '', 'unknown')}{toolkit}")
    if facts.python is not None:
        parts.append(f"Python {facts.python.version}")
    return " · ".join(parts)
