"""The pages of `gpucheck devices` and `gpucheck status`."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from gpucheck import units
from gpucheck.health.live import activity
from gpucheck.machine.driver_reads import NOT_ANSWERING
from gpucheck.machine.inventory import ASLEEP
from gpucheck.machine.nvml_fields import NOT_ACCESSIBLE
from gpucheck.render import text
from gpucheck.render.doctor import ladder, sort_position, versions_line
from gpucheck.render.text import UNKNOWN, Cell, Column, ColumnOf, Page, PageBlock, TextLine, filled, table_of
from gpucheck.report.facts import Device, Facts, Link, Process
from gpucheck.report.finding import NEEDS_ACTION, Finding
from gpucheck.report.report import Report

if TYPE_CHECKING:  # only `status` has this result
    from gpucheck.report.results.short import DoctorResult

Number = TypeVar("Number", int, float)
# The ID of the finding that there is no GPU, and the advice below this finding.
NO_GPU, NO_GPU_THEN = "devices.none", "gpucheck doctor, if this machine should have a GPU"
_HIDDEN = "hidden by CUDA_VISIBLE_DEVICES="
# Short texts for states of devices, by the beginning of the state.
_SHORT_STATES = (
    (_HIDDEN, "hidden"),
    ("not shown by CUDA", "not shown"),
    ("in MIG mode", "MIG mode"),
    (NOT_ACCESSIBLE, "no permission"),
    (NOT_ANSWERING, "not answering"),
    (ASLEEP, "asleep"),
    ("not read", "not read"),
)


def page(report: Report) -> Page:
    findings = report.findings
    if any(finding.verdict in NEEDS_ACTION for finding in findings):
        return Page(None, _body(report), findings=findings, order=sort_position)
    line, cause = _answer(report)
    then = NO_GPU_THEN if cause is not None and cause.id == NO_GPU else None
    return Page(line, _body(report), findings=findings, cause=cause, then=then)


def watched(report: Report, read: datetime.datetime, interval_s: float) -> list[PageBlock]:
    """Return one reading of a watch: its time and the time of the next reading, then the page."""
    now, following = map(_clock_time, (read, read + datetime.timedelta(seconds=interval_s)))
    return [TextLine(f"{now}, next {following} (every {interval_s:g} s)", "dim"), *text.blocks(report)]


def _clock_time(moment: datetime.datetime) -> str:
    return moment.astimezone().strftime("%H:%M:%S")


def _body(report: Report) -> list[PageBlock]:
    facts = report.facts
    body: list[PageBlock] = [devices_table(facts.devices, report.findings), TextLine()] if facts.devices else []
    body += [_processes(facts), TextLine()] if any(device.processes for device in facts.devices) else []
    # A setting that hides several GPUs is shown once.
    masks = dict.fromkeys(device.state for device in facts.devices if (device.state or "").startswith(_HIDDEN))
    below = [*(TextLine(mask) for mask in masks if mask), *versions_line(facts)]
    return [*body, *below] if below else body[:-1]


def _answer(report: Report) -> tuple[TextLine | None, Finding | None]:
    """Return the first line and the finding that the line states; without a line, the finding is the first line."""
    if (none := report.finding(NO_GPU)) is not None:
        return None, none
    if not (gpus := [device for device in report.facts.devices if device.nvml_index is not None]):
        sleeping = [device.pci_address or UNKNOWN for device in report.facts.devices if device.state == ASLEEP]
        asleep = f"{text.counted(len(sleeping), 'GPU')} asleep, not woken: {', '.join(sleeping)}"
        return text.answer("pass", asleep) if sleeping else None, None
    inaccessible = sum(gpu.state == NOT_ACCESSIBLE for gpu in gpus)
    unread = [f"{inaccessible} not accessible"] if inaccessible else []
    unread += ["Xid unread"] if report.finding("log.unreadable") else []
    if (unusable := report.finding("devices.hidden") or report.finding("devices.torch_build")) is not None:
        summary = ", ".join([text.counted(len(gpus), "GPU"), "no fault", *unread])
        return text.answer("warn", f"{unusable.title}: {unusable.message} ({summary})"), unusable
    is_single = len(gpus) == 1
    named = f"{called(gpus[0])} ({text.short_name(gpus[0])})" if is_single else f"{len(gpus)} GPUs"
    loads = [activity(gpu) for gpu in gpus]
    words = [f"{loads.count(word)} {word}" for word in ("busy", "light load", "idle") if word in loads]
    words = [word.removeprefix("1 ") for word in words] if is_single else words
    hidden = sum((gpu.state or "").startswith(_HIDDEN) for gpu in gpus)
    words += [f"{hidden} hidden from torch"] if hidden else []
    temperatures = [(gpu.temperature_celsius, called(gpu)) for gpu in gpus if gpu.temperature_celsius is not None]
    if temperatures:
        celsius, name = max(temperatures, key=itemgetter(0))
        words.append(f"{celsius:.0f} °C" if is_single else f"hottest {name} at {celsius:.0f} °C")
    words += unread
    return text.answer("pass", f"no fault on {named}{': ' if words else ''}{', '.join(words)}"), None


def devices_table(devices: Sequence[Device], findings: tuple[Finding, ...]) -> text.Table:
    # If NVML and CUDA have the same indexes, one index is enough.
    has_same_index = all(device.nvml_index in (None, device.cuda_index) for device in devices if device.kind != "cpu")
    narrow, wide = (replace(table_of(devices, columns), dense=True) for columns in _columns(findings, has_same_index))
    return replace(wide, narrow=narrow)


def _columns(findings: tuple[Finding, ...], has_same_index: bool) -> tuple[tuple[ColumnOf[Device], ...], ...]:
    """Return the columns for 40 characters, and the columns for wider screens, which show as many as fit."""
    util = of_gpu(Column("util"), lambda gpu: _percent(gpu.utilization_percent))
    narrow: tuple[ColumnOf[Device], ...] = (
        filled(Column("GPU", "left"), lambda device: called(device).removeprefix("cuda:")),
        filled(Column("mem", keep=3), lambda device: _percent(_memory_share(device), 100)),
        util,
        of_gpu(Column("W"), lambda gpu: _whole(gpu.power_w)),
        of_gpu(Column("°C", keep=3), _temperature),
        filled(Column("state", "left", cropped=1), lambda device: _state(device, findings)),
    )
    wide: tuple[ColumnOf[Device], ...] = (
        filled(Column("GPU", "left"), lambda device: device.id or UNKNOWN),
        of_gpu(Column("NVML", "left", keep=4), lambda gpu: "" if has_same_index else _whole(gpu.nvml_index)),
        filled(Column("device", "left", keep=3, cropped=10), _name),
        filled(Column("", "left", keep=1), lambda device: _bar(_memory_share(device))),
        filled(Column("memory, GiB"), _memory),
        of_gpu(Column("", "left", keep=0), lambda gpu: _bar(gpu.utilization_percent, 0.01)),
        util,
        of_gpu(Column("power, W"), lambda gpu: f"{_whole(gpu.power_w)} / {_whole(gpu.power_limit_w)}"),
        of_gpu(Column("°C", keep=4), _temperature),
        of_gpu(Column("MHz", keep=2), lambda gpu: _whole(gpu.sm_clock_hz, 1e-6)),
        of_gpu(Column("PCIe", "left", keep=2), lambda gpu: link(gpu.pcie).removeprefix("PCIe ")),
        # A CPU's load has nine characters.
        filled(Column("state", "left", cropped=9), lambda device: _state(device, findings)),
        of_gpu(Column("PCI address", "left", keep=1), lambda gpu: Cell(gpu.pci_address or UNKNOWN, "dim")),
        of_gpu(Column("UUID", "left", keep=0), lambda gpu: Cell(gpu.uuid or UNKNOWN, "dim")),
    )
    return narrow, wide


def of_gpu(column: Column, show: Callable[[Device], str | Cell]) -> ColumnOf[Device]:
    return filled(column, lambda device: "" if device.kind == "cpu" else show(device))


def _name(device: Device) -> str:
    cores = f" ({device.cores_allowed})" if device.kind == "cpu" and device.cores_allowed else ""
    return f"{text.short_name(device)}{cores}"


def _whole(value: float | None, scale: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{scale * value:.0f}"


def _bar(value: float | None, scale: float = 1.0) -> Cell:
    return Cell(text.bar(value and scale * value, 5), "cyan")


def _percent(value: float | None, scale: float = 1.0) -> str:
    return UNKNOWN if value is None else f"{_whole(value, scale)} %"


def _memory_share(device: Device) -> float | None:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    return None if used is None or not total else used / total


def _temperature(device: Device) -> Cell:
    """Return the temperature: yellow within 5 °C of the GPU's lowest limit, red above the limit."""
    if (celsius := device.temperature_celsius) is None:
        return Cell(UNKNOWN)
    limits = [limit for limit in (device.gpu_max_celsius, device.slowdown_celsius, device.shutdown_celsius) if limit]
    margin = min(limits, default=math.inf) - celsius  # a choice: 5 °C leaves time to look at the GPU
    return Cell(f"{celsius:.0f}", "" if margin > 5 else "yellow" if margin > 0 else "red")


def _memory(device: Device) -> str:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if total is None:
        return UNKNOWN
    # NVML's version 1 counts the driver's reserved memory as used. A device without its own memory uses the host's.
    marks = {"nvml v1": " (with reserved)", "host (shared with the CPU)": " (shared)"}
    return f"{UNKNOWN if used is None else _gib(used)} / {_gib(total)}{marks.get(device.memory_source or '', '')}"


def _gib(size: int) -> str:
    value = size / units.GIB
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def link(pcie: Link | None) -> str:
    """Return the state of a PCIe link, with its maximum in brackets if the maximum differs."""
    if pcie is None or pcie.generation is None or pcie.width is None:
        return UNKNOWN
    current = f"PCIe {pcie.generation} x{pcie.width}"
    maximum = (pcie.max_generation or pcie.generation, pcie.max_width or pcie.width)
    return current if maximum == (pcie.generation, pcie.width) else f"{current} ({maximum[0]} x{maximum[1]})"


def _state(device: Device, findings: tuple[Finding, ...]) -> Cell:
    """Return the worst finding about this device, else the reason why it cannot be used, else its activity."""
    if device.kind == "cpu":
        load = device.load_1min
        return Cell(UNKNOWN if load is None else f"load {units.significant(load, 2)}", "dim")
    worst = text.worst_of(finding for finding in findings if is_about(finding, device))
    if worst is not None and worst.verdict in NEEDS_ACTION:
        return text.verdict_cell(worst.verdict, worst.title)
    if device.state:
        short = next((word for start, word in _SHORT_STATES if device.state.startswith(start)), device.state)
        return Cell(short, "yellow")
    if device.nvml_index is None:
        return Cell(UNKNOWN)
    load_word = activity(device)
    return text.verdict_cell("pass", "no fault" if load_word == "unknown" else load_word)


def is_about(finding: Finding, device: Device) -> bool:
    """Return whether a finding is about a device, by UUID and index. A lost GPU may have only its index."""
    uuid, index = finding.evidence.get("uuid"), finding.evidence.get("nvml_index")
    if device.uuid and uuid:
        # Both must match, because GPUs of cloned virtual machines have had the same UUID.
        return bool((uuid, index) == (device.uuid, device.nvml_index))
    return device.nvml_index is not None and bool(index == device.nvml_index)


def _processes(facts: Facts) -> PageBlock:
    rows = [(device, process) for device in facts.devices for process in device.processes or ()]
    all_compute = {process.kind for _, process in rows} == {"compute"}
    columns: list[ColumnOf[tuple[Device, Process]]] = [
        filled(Column("GPU", "left"), lambda row: called(row[0])),
        filled(Column("PID"), lambda row: str(row[1].pid)),
        filled(Column("user", "left", keep=5), lambda row: row[1].user or UNKNOWN),
        filled(Column("memory"), lambda row: _known(units.capacity, row[1].used_memory_bytes)),
        filled(Column("util", keep=4), lambda row: _percent(row[1].utilization_percent)),
        filled(Column("age", keep=3), lambda row: _known(units.age, row[1].age_s)),
        filled(Column("kind", "left", keep=1), lambda row: "" if all_compute else row[1].kind),
        filled(Column("command", "left", cropped=8), lambda row: _command(row[1])),
    ]
    return replace(table_of(rows, columns), dense=True)


def _known(show: Callable[[Number], str], value: Number | None) -> str:
    return UNKNOWN if value is None else show(value)


def _command(process: Process) -> str:
    if process.command is None:
        return process.name or f"{UNKNOWN} (another container?)"
    program, space, arguments = process.command.partition(" ")
    return f"{program.rpartition('/')[2]}{space}{arguments}"


def called(device: Device) -> str:
    """Return the unique name of a device: its ID with CUDA's index, else NVML's index, else the shortened UUID."""
    if device.cuda_index is not None or device.id is not None:
        return device.id or UNKNOWN
    return f"NVML {device.nvml_index}" if device.nvml_index is not None else (device.uuid or UNKNOWN)[:12]


def status_page(report: Report) -> Page:
    result: DoctorResult | None = report.results.get("doctor")
    of_python = [finding for finding in report.findings if finding.id == "status.interpreter"]
    findings = [row for row in report.findings if row not in of_python and "because_of" not in row.evidence]
    gpus = [device for device in report.facts.devices if device.kind != "cpu"]
    line, cause, under = _status_answer(result, findings, report.facts)
    body: list[PageBlock] = [devices_table(gpus, report.findings), TextLine()] if gpus else []
    body += versions_line(report.facts)
    for finding in of_python:
        body += [TextLine(text.sentence(finding)), *([text.advice_line(finding.fix)] if finding.fix else [])]
    details = ladder(result.rungs if result is not None else ())
    then = NO_GPU_THEN if cause is not None and cause.id == NO_GPU else None
    then = "gpucheck smoke" if (line or cause) and result is not None and result.torch_works else then
    return Page(line, body, details, findings, cause=cause, then=then, under=under, order=sort_position)


def _status_answer(
    result: DoctorResult | None, findings: Sequence[Finding], facts: Facts
) -> tuple[TextLine | None, Finding | None, list[TextLine]]:
    """Return the first line, the finding that the line states or that replaces the line, and the lines below."""
    by_id = {finding.id: finding for finding in reversed(findings)}
    if NO_GPU in by_id:
        return None, by_id[NO_GPU], []
    torch_works = result is not None and result.torch_works
    first = by_id.get(result.first or "") if result is not None else None
    worst = text.worst_of(finding for finding in findings if finding.verdict in NEEDS_ACTION)
    if first is not None and first.verdict in NEEDS_ACTION:
        is_about_torch = first.message.startswith("torch ")
        words = first.message if is_about_torch else first.title
        lead = "" if torch_works or ("torch" in first.title and not is_about_torch) else "torch cannot use the GPU: "
        under = [] if is_about_torch or not first.message else [TextLine(first.message)]
        return text.answer(first.verdict, f"{lead}{words}"), first, under
    if torch_works and (worst is None or worst.verdict == "warn"):
        warnings = sum(finding.verdict == "warn" for finding in findings)
        more = f"; {text.counted(warnings, 'warning')}" if warnings else ""
        return text.answer("warn" if warnings else "pass", f"{_usable(facts)}{more}"), None, []
    return None, by_id.get("doctor.no_gpu") if worst is None else None, []


def _usable(facts: Facts) -> str:
    usable = [device for device in facts.devices if device.kind != "cpu" and device.id is not None]
    hidden = sum((device.state or "").startswith("hidden") for device in facts.devices)
    torch = facts.torch
    version = torch.version if torch is not None and torch.version else "of unknown version"
    if torch is not None and torch.built_for == "cuda" and torch.toolkit_version:
        version = f"{version.partition('+')[0]} (CUDA {torch.toolkit_version})"
    work = f"{len(usable)} GPUs work" if len(usable) != 1 else "1 GPU works"
    return f"{work} with torch {version}{f', {hidden} hidden from torch' if hidden else ''}"
