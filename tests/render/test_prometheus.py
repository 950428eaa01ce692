"""The `.prom` file: what node_exporter's textfile collector takes, under names that stay."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pages
import pytest

from gpucheck.cli import outputs
from gpucheck.render import prometheus
from gpucheck.report.facts import Device, Ecc, Facts, Link
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report, Summary

REPORTS = pages.everything()
# One report of each command.
EACH = sorted({report.command: name for name, report in REPORTS.items()}.values())
# A promise: a name is only added. Dashboards and alerts stand on these.
NAMES = [
    "gpucheck_build_info",
    "gpucheck_check_verdict",
    "gpucheck_device_ecc_corrected_total",
    "gpucheck_device_ecc_uncorrected_total",
    "gpucheck_device_info",
    "gpucheck_device_memory_total_bytes",
    "gpucheck_device_memory_used_bytes",
    "gpucheck_device_pcie_replays_total",
    "gpucheck_device_power_limit_watts",
    "gpucheck_device_power_watts",
    "gpucheck_device_sm_clock_hertz",
    "gpucheck_device_temperature_celsius",
    "gpucheck_device_utilization_ratio",
    "gpucheck_duration_seconds",
    "gpucheck_exit_code",
    "gpucheck_fleet_node_state",
    "gpucheck_fleet_nodes",
    "gpucheck_fleet_rate_ratio",
    "gpucheck_fleet_suspect",
    "gpucheck_last_run_timestamp_seconds",
    "gpucheck_measurement_bytes_per_second",
    "gpucheck_measurement_flop_per_second",
    "gpucheck_measurement_operations_per_second",
    "gpucheck_measurement_per_second",
    "gpucheck_measurement_seconds",
    "gpucheck_success",
]
# The text format's grammar, less timestamps: node_exporter refuses a file that has any.
SAMPLE = re.compile(
    r'([a-z_][a-z0-9_]*)(\{(?:[a-zA-Z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"(?:,(?=[a-zA-Z_]))?)+\})? -?\d+(\.\d+)?(e[+-]\d+)?'
)


def samples(text: str) -> dict[str, str]:
    """Each series with its value; the file is held against the grammar."""
    assert text.endswith("\n") and not text.endswith("\n\n") and "\r" not in text
    found: dict[str, str] = {}
    described: list[str] = []
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, what, name, *_ = line.split(" ")
            assert what == ("TYPE" if described and described[-1] == name else "HELP")
            described += [name] if what == "HELP" else []
            continue
        assert (match := SAMPLE.fullmatch(line)), line
        assert match[1] == described[-1]  # all of a metric stand together
        series, _, value = line.rpartition(" ")
        assert series not in found, f"twice: {series}"
        found[series] = value
    assert len(described) == len(set(described))
    return found


@pytest.mark.parametrize("name", REPORTS)
def test_every_command_writes_valid_samples(name: str) -> None:
    found = samples(prometheus.metrics(REPORTS[name]))
    command = f'command="{REPORTS[name].command}"'
    assert f"gpucheck_success{{{command}}}" in found
    assert {series.partition("{")[0] for series in found} <= set(NAMES)


@pytest.mark.parametrize("name", EACH)
def test_hostile_text_stays_in_its_label(name: str) -> None:
    samples(prometheus.metrics(pages.hostile(REPORTS[name], prometheus.metrics)))


WORSE: tuple[Verdict, ...] = ("warn", "fail")
STARTED = "2026-11-24T12:00:00Z"
DEVICE = Device(
    "cuda",
    "cuda:0",
    'an "H200"',
    "GPU-1",
    pci_address="0000:3b:00.0",
    memory_total_bytes=150_754_820_096,
    utilization_percent=37.5,
    power_w=118.25,
    sm_clock_hz=1.98e9,
    pcie=Link(replays=3),
    ecc=Ecc(volatile_uncorrected=0),
)


def report(verdict: Verdict = "pass", code: int = 0, *, complete: bool = True, started: str = STARTED) -> Report:
    findings = tuple(Finding("device.power", one, "t", device="cuda:0") for one in WORSE)
    summary = Summary(verdict, code, complete)
    return Report("s", "0.1", "devices", (), started, 1.5, Facts(devices=(DEVICE,)), (), findings, {}, (), summary)


def test_devices_in_base_units_by_their_uuid() -> None:
    found = samples(prometheus.metrics(report()))
    labels = '{command="devices",UUID="GPU-1",device="cuda:0"}'
    assert {series.removesuffix(labels): value for series, value in found.items() if series.endswith(labels)} == {
        "gpucheck_device_memory_total_bytes": "150754820096",
        "gpucheck_device_utilization_ratio": "0.375",
        "gpucheck_device_power_watts": "118.25",
        "gpucheck_device_sm_clock_hertz": "1980000000",
        "gpucheck_device_pcie_replays_total": "3",
        "gpucheck_device_ecc_uncorrected_total": "0",
    }
    info = 'UUID="GPU-1",device="cuda:0",name="an \\"H200\\"",pci_bus_id="0000:3b:00.0"'
    assert found[f'gpucheck_device_info{{command="devices",{info}}}'] == "1"


def test_a_check_has_its_worst_verdict_and_no_other() -> None:
    found = samples(prometheus.metrics(report()))
    states = {series.split('state="')[1][:-2]: value for series, value in found.items() if "check_verdict" in series}
    assert states == {"pass": "0", "info": "0", "warn": "0", "fail": "1", "inconclusive": "0", "skip": "0"}
    assert any('check="device.power",UUID="GPU-1",device="cuda:0"' in series for series in found)


@pytest.mark.parametrize(
    ("made", "success"),
    [(report(), "1"), (report("fail", 1), "0"), (report("inconclusive", 4), "0"), (report(complete=False), "0")],
)
def test_success_is_a_whole_run_in_which_nothing_failed(made: Report, success: str) -> None:
    assert samples(prometheus.metrics(made))['gpucheck_success{command="devices"}'] == success


def test_a_monitor_never_reads_half_a_run(tmp_path: Path) -> None:
    """The file is replaced whole, and while the command works the last run's stays."""
    path = tmp_path / "gpucheck.prom"
    path.write_text("old", encoding="utf-8")
    (tmp_path / "x.json").write_text("old", encoding="utf-8")
    written = outputs.Outputs([str(path), str(tmp_path / "x.json")])
    written.update(dataclasses.replace(report(), summary=Summary("inconclusive", 4, False)))
    assert path.read_text(encoding="utf-8") == "old" != (tmp_path / "x.json").read_text(encoding="utf-8")
    before = path.stat().st_ino
    written.write(report())
    assert samples(path.read_text(encoding="utf-8")) and path.stat().st_ino != before
    # node_exporter reads `*.prom` alone, and as another user.
    assert sorted(os.listdir(tmp_path)) == ["gpucheck.prom", "x.json"]
    assert path.stat().st_mode & 0o444 == 0o444
