"""`gpucheck devices` as blocks."""

from __future__ import annotations

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, advice_line, finding_line, table, verdict_cell
from gpucheck.report.facts import Device, Facts, Link, Process
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report

_COLUMNS = (
    Column("CUDA", "left"),
    Column("NVML", "left", keep=6),
    Column("device", "left"),
    Column("memory used, GiB"),
    Column("util", keep=4),
    Column("clock", keep=3),
    Column("power", keep=5),
    Column("temp", keep=7),
    Column("link, idle", "left", keep=2),
    Column("PCI address", "left", keep=1),
    Column("UUID", "left", keep=0),
    Column("at rest", "left", keep=8),
)


def blocks(report: Report) -> list[Block]:
    """The table of devices, their processes, versions, and what was found."""
    facts = report.facts
    laid_out: list[Block] = []
    if facts.devices:
        laid_out.append(_filled([_row(device, report.findings) for device in facts.devices]))
        laid_out.append(Line())
    if any(device.processes for device in facts.devices):
        laid_out += [_processes(facts), Line()]
    laid_out += versions_line(facts)
    laid_out += [finding_line(finding) for finding in report.findings if finding.verdict != "pass"]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix and finding.verdict != "pass"]
    return laid_out


def _filled(rows: list[list[str | Cell]]) -> Block:
    """The table without the columns that no device here fills."""
    whole = table(_COLUMNS, rows)
    kept = [index for index in range(len(_COLUMNS)) if any(row[index].text for row in whole.rows)]
    return table([_COLUMNS[index] for index in kept], [[row[index] for index in kept] for row in whole.rows])


def _row(device: Device, findings: tuple[Finding, ...]) -> list[str | Cell]:
    if device.kind == "cpu":
        cores = f" ({device.cores_allowed})" if device.cores_allowed else ""
        load = UNKNOWN if device.load_1min is None else f"load {units.significant(device.load_1min, 2)}"
        return ["cpu", "", f"{device.name or 'CPU'}{cores}", _memory(device), "", load, *[""] * 6]
    return [
        _index(device),
        UNKNOWN if device.nvml_index is None else str(device.nvml_index),
        device.name or UNKNOWN,
        _memory(device),
        UNKNOWN if device.utilization_percent is None else f"{device.utilization_percent:.0f} %",
        UNKNOWN if device.sm_clock_hz is None else f"{device.sm_clock_hz / 1e6:.0f} MHz",
        _power(device),
        UNKNOWN if device.temperature_celsius is None else f"{device.temperature_celsius:.0f} °C",
        link(device.pcie),
        device.pci_address or UNKNOWN,
        device.uuid or UNKNOWN,
        _at_rest(device, findings),
    ]


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


def _at_rest(device: Device, findings: tuple[Finding, ...]) -> Cell:
    """The worst that is proven of this device, else its state."""
    mine = [finding for finding in findings if _is_about(finding, device)]
    for worst in ("fail", "warn"):
        for finding in mine:
            if finding.verdict == worst:
                return verdict_cell(finding.verdict, finding.title)
    if device.state:
        return Cell(device.state, "yellow")
    return Cell("no fault seen" if device.nvml_index is not None else UNKNOWN)


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
