"""`gpucheck doctor` and `gpucheck devices` on cards that others keep busy: the same verdicts, through the processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from whole import TWO_GPUS, diagnosed, interpreter, root, told, torch_of, worst

from gpucheck.cli.app import main
from gpucheck.devices import command as devices
from gpucheck.devices.options import DevicesOptions
from gpucheck.doctor.options import DoctorOptions
from gpucheck.machine import inventory
from gpucheck.report.report import Collector

pytestmark = pytest.mark.slow

__all__ = ["root"]
Fake = Callable[..., Path]

# Two cards that a job of somebody else's keeps busy, at full clocks, with all of their links.
BUSY = """utilization=100
clock_reasons=0
0.processes=4194301:5
1.processes=4194302:5
temperature=64
gpu_max=87
slowdown=92
shutdown=95
power=650000
nvlinks=4
fabric=3
sram.exceeded=0
banks.max=600
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of the fake stands still: its two readings need not lie a second apart."""
    monkeypatch.setattr(inventory, "BETWEEN_READINGS_S", 0.6)


def listed(severe: bool = True) -> list[tuple[str, str]]:
    """What `gpucheck devices` finds."""
    collector = Collector()
    devices.command(DevicesOptions(), collector)
    found: list[tuple[str, str]] = [
        (finding.id, finding.verdict) for finding in collector.findings if finding.verdict != "pass"
    ]
    return [row for row in found if row[1] in ("warn", "fail", "inconclusive")] if severe else found


def test_two_cards_at_work_are_well(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(BUSY + TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path))))
    assert worst(report) == [] and report.summary.exit == 0
    (skipped,) = [finding for finding in report.findings if finding.id == "load.not_run"]
    assert skipped.message == (
        "cuda:0: in use by others: not visible here (4194301); cuda:1: in use by others: not visible here (4194302)"
    )
    grown = report.facts.devices[0].changes
    assert grown is not None and grown.span_s >= 0.5
    assert listed() == []


@pytest.mark.parametrize(
    ("script", "found", "in_one_reading"),
    [
        ("1.clock_reasons=0x8\n1.sm_clock=900\n", ("devices.throttled", "fail"), "warn"),
        ("1.clock_reasons=0x20\n1.temperature=86\n", ("devices.throttled", "warn"), "warn"),
        ("1.temperature=91\n1.power=690000\n", ("devices.hot", "warn"), "warn"),
        ("1.clock_reasons=0x4\n1.sm_clock=1400\n", ("devices.power_limited", "info"), "info"),
        ("1.clock_reasons=0x2\n1.sm_clock=1400\n", ("devices.clock_setting", "warn"), "warn"),
        ("1.sm_clock=345\n", ("devices.low_clock", "warn"), "warn"),
        ("1.pcie.width=8\n", ("devices.link_width", "warn"), "warn"),
        ("1.pcie.replays=50000\n", ("devices.pcie_replays", "warn"), "warn"),
        ("1.nvlink.state=0\n", ("links.inactive", "fail"), "fail"),
        ("1.fabric=2\n", ("links.fabric", "warn"), "warn"),
        ("1.banks.none=3\n", ("devices.remapped_rows", "warn"), "warn"),
        ("1.power_limit=350000\n1.power=340000\n", ("devices.power_limit", "warn"), "warn"),
        ("1.mig=1\ncuda.order=0\n", ("devices.mig_empty", "warn"), "warn"),
        ("1.handle=!15\ncuda.order=0\n", ("devices.answers", "fail"), "fail"),
    ],
)
def test_each_scene_has_its_verdict_in_both_commands(
    fake_driver: Fake, tmp_path: Path, script: str, found: tuple[str, str], in_one_reading: str
) -> None:
    fake_driver(script + BUSY + TWO_GPUS)
    count = 1 if "cuda.order=0" in script else 2
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, count=count))))
    assert found in told(report)
    assert [row for row in worst(report) if row != found] == []
    assert (found[0], in_one_reading) in listed(severe=False)
    severe = [(found[0], in_one_reading)] if in_one_reading != "info" else []
    assert set(listed()) == set(severe)


def test_through_the_command_line_with_facts_in_the_document(
    fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_driver("1.nvlink.state=0\nserial=1650\n" + BUSY + TWO_GPUS)
    assert main(["devices", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (found,) = [row for row in document["findings"] if row["verdict"] == "fail"]
    assert (found["id"], found["title"]) == ("links.inactive", "all 4 NVLinks down")
    device = next(row for row in document["facts"]["devices"] if row["nvml_index"] == 1)
    assert (device["serial"], device["remap_banks"]["max"], device["fabric"]["state"]) == ("1650", 600, "completed")
    assert device["violations_s"]["thermal"] == 0.0 and device["sram_ecc"]["threshold_exceeded"] is False
    assert main(["devices"]) == 1
    assert capsys.readouterr().out.startswith("✗ cuda:1  all 4 NVLinks down: ")
