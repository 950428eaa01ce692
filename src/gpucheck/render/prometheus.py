"""Render a report in Prometheus' text format for node_exporter's textfile collector.

Values are in base units, and labels are names. Lines have no timestamps, because node_exporter refuses timestamps. A
metric keeps its name and meaning in later versions.
"""

from __future__ import annotations

import calendar
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from gpucheck import errors
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device
from gpucheck.report.finding import VERDICTS, WORST_FIRST, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report

PREFIX = "gpucheck_"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
Labels = Mapping[str, str | None]
MetricSample = tuple[str, Labels, float | None]

# Every metric by its name after the prefix: its help and, for a metric of a device, the function that reads its value.
METRICS: dict[str, tuple[str, Callable[[Device], float | None] | None]] = {
    "success": ("1 if the command finished and nothing failed.", None),
    "exit_code": ("Exit status of the command.", None),
    "last_run_timestamp_seconds": ("When the command ended, in seconds since 1970.", None),
    "duration_seconds": ("How long the command took.", None),
    "build_info": ("Versions of gpucheck, torch and the driver; always 1.", None),
    "check_verdict": ("1 for the verdict of the check, 0 for other verdicts.", None),
    "device_info": ("Name and PCI bus ID of a device; always 1.", None),
    "device_memory_total_bytes": ("Memory of the device.", lambda device: device.memory_total_bytes),
    "device_memory_used_bytes": ("Memory in use on the device.", lambda device: device.memory_used_bytes),
    "device_utilization_ratio": (
        "Share of the time in which a kernel ran.",
        lambda device: device.utilization_percent and device.utilization_percent / 100,
    ),
    "device_temperature_celsius": ("Temperature of the device.", lambda device: device.temperature_celsius),
    "device_power_watts": ("Power that the device draws.", lambda device: device.power_w),
    "device_power_limit_watts": ("Power limit in force.", lambda device: device.power_limit_w),
    "device_sm_clock_hertz": ("Clock of the multiprocessors.", lambda device: device.sm_clock_hz),
    "device_pcie_replays_total": (
        "Packets sent again over PCIe since the driver was loaded.",
        lambda device: device.pcie.replays if device.pcie else None,
    ),
    "device_ecc_corrected_total": (
        "Corrected memory errors since the driver was loaded.",
        lambda device: device.ecc.volatile_corrected if device.ecc else None,
    ),
    "device_ecc_uncorrected_total": (
        "Uncorrected memory errors since the driver was loaded.",
        lambda device: device.ecc.volatile_uncorrected if device.ecc else None,
    ),
    "measurement_seconds": ("Median time of a call.", None),
    "measurement_bytes_per_second": ("Median rate in bytes.", None),
    "measurement_flop_per_second": ("Median rate in floating-point operations.", None),
    "measurement_operations_per_second": ("Median rate in operations on whole numbers.", None),
    "measurement_per_second": ("Median rate in samples, launches or another unit of the benchmark.", None),
    "fleet_nodes": ("Nodes of the run by state.", None),
    "fleet_suspect": ("1 if more nodes are bad than --max-bad allows.", None),
    "fleet_node_state": ("1 for the state of the node.", None),
    "fleet_rate_ratio": ("Rate of a slow device, divided by the rate of its siblings or the peak of its model.", None),
}
_RATES = {
    "B/s": "measurement_bytes_per_second",
    "FLOP/s": "measurement_flop_per_second",
    "OP/s": "measurement_operations_per_second",
}


def metrics(report: Report) -> str:
    # Each series is written once, because a duplicate would make the whole file invalid.
    samples: dict[str, dict[str, float]] = {}
    for name, labels, value in _samples(report):
        if value is not None:
            # The format has only three escapes.
            texts = {key: str(text).translate(_ESCAPES) for key, text in labels.items() if text}
            label_text = ",".join(f'{key}="{text}"' for key, text in texts.items())
            samples.setdefault(name, {}).setdefault(f"{{{label_text}}}" if label_text else "", value)
    lines = []
    for name, (help, _) in METRICS.items():
        if values := samples.get(name):
            metric_type = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {metric_type}"]
            for label_text, value in values.items():
                is_whole = float(value).is_integer() and abs(value) < 1e15
                lines.append(f"{PREFIX}{name}{label_text} {int(value) if is_whole else repr(float(value))}")
    return "\n".join(lines) + "\n"


def _samples(report: Report) -> Iterator[MetricSample]:
    command = {"command": report.command}
    yield "success", command, float(report.summary.complete and report.summary.exit == errors.OK)
    yield "exit_code", command, report.summary.exit
    with contextlib.suppress(ValueError):  # the document has no valid time
        started = calendar.timegm(time.strptime(report.started, "%Y-%m-%dT%H:%M:%SZ"))
        yield "last_run_timestamp_seconds", command, started + report.elapsed_s
    yield "duration_seconds", command, report.elapsed_s
    facts = report.facts
    torch = facts.torch.version if facts.torch else None
    driver = facts.driver.version if facts.driver else None
    yield "build_info", {**command, "gpucheck": report.gpucheck, "torch": torch, "driver": driver}, 1
    yield from _verdicts(report, {device.id: device.uuid for device in facts.devices if device.id is not None})
    for device in facts.devices:
        named = {"UUID": device.uuid, "device": device.id or device.pci_address or device.kind}
        yield "device_info", {**command, **named, "name": device.name, "pci_bus_id": device.pci_address}, 1
        for name, (_, read) in METRICS.items():
            yield name, {**command, **named}, read(device) if read else None
    for row in report.measurements:
        yield from _rates(row, command)
    if (fleet := report.results.get("fleet_judge")) is not None:
        for state, count in fleet.counts.items():
            yield "fleet_nodes", {"state": state}, count
        yield "fleet_suspect", {}, float(fleet.suspect)
        for node in fleet.nodes:
            yield "fleet_node_state", {"node": node.host, "state": node.state}, 1
            for slow in node.slow:
                labels = {"node": node.host, "device": slow.device, "figure": slow.figure, "against": slow.against}
                yield "fleet_rate_ratio", labels, slow.ratio


def _verdicts(report: Report, uuids: Mapping[str, str | None]) -> Iterator[MetricSample]:
    """Yield the worst verdict of each check on each device. A check may have several findings on one device."""
    worst: dict[tuple[str, str | None], Verdict] = {}
    for finding in report.findings:
        before = worst.get((finding.id, finding.device), finding.verdict)
        worst[finding.id, finding.device] = min(before, finding.verdict, key=WORST_FIRST.index)
    for (check, device), verdict in worst.items():
        for state in VERDICTS:
            labels = {"check": check, "UUID": uuids.get(device or ""), "device": device, "state": state}
            yield "check_verdict", {"command": report.command, **labels}, float(state == verdict)


def _rates(row: Measurement, command: Labels) -> Iterator[MetricSample]:
    labels = {
        **command,
        "benchmark": row.name,
        "case": ",".join(f"{key}={value}" for key, value in to_json(row.case).items()),
        "cache": row.method.cache,
        "UUID": row.device.uuid,
        "device": row.device.id,
    }
    yield "measurement_seconds", labels, row.time_s.median if row.time_s else None
    if row.rate is not None:
        yield _RATES.get(row.rate.unit, "measurement_per_second"), labels, row.rate.median
