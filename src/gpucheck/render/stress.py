"""The page of `gpucheck stress`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Cell, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.finding import NEEDS_ACTION, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.stress import StressDevice, StressResult
from gpucheck.stress.judge import memory_tested, text_of

# The bytes of each kind of work: memory is written, read and compared, and copies run in both directions.
_BYTES_OF = {"memory": " tested", "copies": " both ways"}
# Memory is tested in words of 64 bits, but the rate is shown in bytes.
_WORDS = "word/s"


def page(report: Report) -> Page:
    result = report.results.get("stress")
    worst = text.worst_of(finding for finding in report.findings if finding.verdict in NEEDS_ACTION)
    if result is None or not any(device.steps for device in result.devices):
        cause = worst or next(iter(report.findings), None)
        return Page(None if cause else text.answer("skip", "nothing was done"), findings=report.findings, cause=cause)
    is_whole = report.summary.complete and report.summary.verdict != "inconclusive"
    line = None if worst else text.answer("pass" if is_whole else "inconclusive", _all_correct(report, result))
    columns = _columns(result, report.findings)
    # On a narrow screen, a device has only its first kind of work and its state.
    narrow = table_of(result.devices, [columns[0], *columns[1:2], columns[-1]])
    body: list[PageBlock] = [replace(table_of(result.devices, columns), narrow=narrow)]
    return Page(line, body, _details(result.devices), report.findings, worst, under=[_subject(result.devices)])


def _all_correct(report: Report, result: StressResult) -> str:
    steps = sum(device.steps for device in result.devices)
    last_s = max((point.at_s for device in result.devices for point in device.points), default=0.0)
    duration = units.duration(result.duration_s if report.summary.complete else max(last_s, 1.0))
    speed = report.finding("stress.slow")
    more = (memory_tested(result.devices), speed.title if speed else "")
    return "; ".join([f"the results of all {steps} steps in {duration} are correct", *filter(None, more)])


def _subject(devices: Sequence[StressDevice]) -> TextLine:
    names = dict.fromkeys(text.short_name(device.device) for device in devices)
    what = f"{len(devices)} × {next(iter(names))}" if len(names) == 1 else ", ".join(names)
    sizes = [device.filled_bytes for device in devices if device.filled_bytes] or [0]
    filled_text = " to ".join(dict.fromkeys(units.capacity(size) for size in (min(sizes), max(sizes))))
    dtypes = ", ".join(dict.fromkeys(device.dtype for device in devices if device.dtype))
    return TextLine(f"{what}; {dtypes} products, {filled_text} filled{' on each' if len(devices) > 1 else ''}", "dim")


def _columns(result: StressResult, findings: Sequence[Finding]) -> list[ColumnOf[StressDevice]]:
    return [
        filled(Column("device", "left"), lambda device: device.name),
        *(_rates(result, kind) for kind in result.kinds if any(_rate(device, kind) for device in result.devices)),
        filled(Column("clock, MHz", keep=3), _lowest_clock),
        filled(Column("power, W", keep=9), _power),
        filled(Column("max °C", keep=4), _highest_temperature),
        filled(Column("steps", keep=1), lambda device: str(device.steps)),
        filled(Column("wrong", keep=6), lambda device: str(device.wrong_steps)),
        filled(Column("state", "left"), lambda device: _state(device, findings)),
    ]


def _rates(result: StressResult, kind: str) -> ColumnOf[StressDevice]:
    values = [value for device in result.devices if (value := _rate(device, kind))]
    raw = next((point.unit for device in result.devices for point in device.points if point.kind == kind), "")
    unit = ("B/s" if raw == _WORDS else raw) + _BYTES_OF.get(kind, "")
    is_tera = kind not in _BYTES_OF and bool(values) and max(values) >= 1e12
    scale, letter = (1e12, "T") if is_tera else (1e6, "M") if values and max(values) < 1e8 else (1e9, "G")
    return numbers(Column(f"{kind}\n{letter}{unit}", keep=6), lambda device: _rate(device, kind), scale)


def _rate(device: StressDevice, kind: str) -> float | None:
    points = [point for point in device.points if point.kind == kind]
    rates = [point.rate.median * (8 if point.unit == _WORDS else 1) for point in points]
    return statistics.median(rates) if rates else None


def _lowest_clock(device: StressDevice) -> str:
    clocks = [point.sm_clock_hz.median for point in device.points if point.sm_clock_hz]
    return f"{min(clocks) / 1e6:.0f}" if clocks else UNKNOWN


def _highest_temperature(device: StressDevice) -> str:
    temperatures = [point.temperature_celsius.max for point in device.points if point.temperature_celsius]
    return f"{max(temperatures):.0f}" if temperatures else UNKNOWN


def _power(device: StressDevice) -> str:
    if not (watts := [point.power_w for point in device.points if point.power_w]):
        return ""
    median = statistics.median(watts)
    return f"{median:.0f} ({units.percent(median / device.power_limit_w)})" if device.power_limit_w else f"{median:.0f}"


def _state(device: StressDevice, findings: Sequence[Finding]) -> Cell:
    if device.ended == "fault":
        return text.verdict_cell("fail", "failed" if device.steps else "did not start")
    if device.ended == "error":
        return text.verdict_cell("skip", "not run")
    words = {"stress.wrong": "wrong", "stress.slow": "slow", "stress.errors": "errors"}
    about_device = []
    for finding in findings:
        names = (finding.evidence.get("name"), *finding.evidence.get("names", ()))
        is_about = device.name in names or (finding.id == "stress.errors" and finding.device == device.name)
        about_device += [finding] if is_about and finding.id in words and finding.verdict in NEEDS_ACTION else []
    if (worst := text.worst_of(about_device)) is not None:
        return text.verdict_cell(worst.verdict, words[worst.id])
    was_cut_off = device.ended == "signal"
    return text.verdict_cell("inconclusive", "cut off") if was_cut_off else text.verdict_cell("pass", "correct")


def _details(devices: Sequence[StressDevice]) -> list[TextLine]:
    unknown = dict.fromkeys(f"{what} unknown: {why}" for device in devices for what, why in device.unknown.items())
    wrong = [f"{device.name}: {text_of(step)}" for device in devices for step in device.wrong]
    return [*(TextLine(line, "dim") for line in unknown), *map(text.advice_line, wrong)]
