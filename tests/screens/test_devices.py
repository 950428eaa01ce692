"""The screen of `devices`: the answer first, what stays on a narrow one, and a watch that a small one cuts off."""

from __future__ import annotations

import datetime
import io
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.devices.command import judge
from gpucheck.render import devices, terminal
from gpucheck.render.blocks import Line
from gpucheck.report.facts import Device, Driver, Facts, Host, Link, Python, TorchBuild
from gpucheck.report.report import Report, Summary

GIB = 2**30
CPU = Device(kind="cpu", id="cpu", name="AMD EPYC 9454 48-Core Processor", cores_allowed=16, load_1min=0.4)
WHEN = datetime.datetime(2026, 1, 31, 12, 0, 4, tzinfo=datetime.timezone.utc)


def card(index: int, **changes: Any) -> Device:
    made = Device(
        kind="cuda",
        id=f"cuda:{index}",
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}3f2a1b0-0000-0000-0000-00000000000{index}",
        pci_address=f"0000:{index}1:00.0",
        cuda_index=index,
        nvml_index=index,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=72 * GIB,
        utilization_percent=100.0,
        temperature_celsius=64.0,
        gpu_max_celsius=87.0,
        power_w=690.0,
        power_limit_w=700.0,
        sm_clock_hz=1.98e9,
        max_sm_clock_hz=1.98e9,
        pcie=Link(5, 16, 5, 16),
    )
    return replace(made, **changes)


LOST = Device(
    kind="cuda",
    id="cuda:3",
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-3",
    cuda_index=3,
    nvml_index=3,
    state="lost",
    state_since="2026-01-31T12:00:02Z",
)


def report(*others: Device) -> Report:
    cards = {index: card(index) for index in range(8)} | {one.nvml_index or 0: one for one in others}
    facts = Facts(
        host=Host(system="Linux"),
        driver=Driver(version="580.95.05", cuda_version="13.0", nvml_code=0, cuinit_code=0),
        python=Python("3.12.3", "CPython", "python3", "/x"),
        torch=TorchBuild("2.11.0+cu130", None, "cuda", "13.0"),
        devices=(*cards.values(), CPU),
    )
    summary = Summary("pass", 0, True)
    return Report("gpucheck.report/1", "0", "devices", (), "", 1.0, facts, (), tuple(judge(facts)), {}, (), summary)


def shown(blocks: list[Any], monkeypatch: pytest.MonkeyPatch, columns: int | None = None) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), blocks)
    return stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_clock_time", lambda moment: moment.strftime("%H:%M:%S"))


def test_the_first_line_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(devices.blocks(report()), monkeypatch)
    assert lines[0] == "✓ 8 GPUs, no fault seen (8 at work)"
    resting = report(*(card(index, utilization_percent=0.0, power_w=70.0) for index in range(5)))
    lines = shown(devices.blocks(resting), monkeypatch)
    assert lines[0] == "✓ 8 GPUs, no fault seen (3 at work, 5 at rest)"
    assert "– clock and PCIe link not judged: cuda:0 to cuda:4: the card is at rest" in lines
    lines = shown(devices.blocks(report(LOST, card(0, temperature_celsius=91.0))), monkeypatch)
    assert lines[0].startswith("✗ lost since 12:00:02: cuda:3: the driver lost the card")
    assert lines[2].startswith("! 91 °C, limit 87 °C: cuda:0: 91 °C: from 87 °C on")


def test_a_mask_is_told_once_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    state = f"hidden by CUDA_VISIBLE_DEVICES={','.join(f'GPU-{index}0000000' for index in range(6))}"
    hidden = [card(index, id=None, cuda_index=None, state=state) for index in (6, 7)]
    for columns in (None, 80, 40):
        lines = shown(devices.blocks(report(*hidden)), monkeypatch, columns)
        text = "".join(lines)
        assert text.replace("\n", "").count("CUDA_VISIBLE_DEVICES") == 1
        assert sum(" hidden" in line and "100 %" in line for line in lines) == 2


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_utilisation_power_and_the_verdict_stay(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    hot = card(0, temperature_celsius=91.0)
    lines = shown(devices.blocks(report(hot)), monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    (row,) = [line for line in lines if line.startswith(" 0 ")]
    assert all(part in row for part in ("H100 80GB HBM3", "100 %", "690 / 700 W", "! 91 °C, limi"))
    (cpu,) = [line for line in lines if line.startswith(" cpu ")]
    assert "AMD EPYC 9454 (16)" in cpu and cpu.rstrip().endswith("load 0.40")


def test_at_forty_columns_a_device_keeps_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(devices.blocks(report(card(0, temperature_celsius=91.0))), monkeypatch, 40)
    assert max(map(len, lines)) <= 40
    head = next(number for number, line in enumerate(lines) if line.startswith(" GPU "))
    assert lines[head + 2 : head + 11] == [
        " 0     100 %   690 W   ! 91 °C, limit …",
        *(f" {index}     100 %   690 W   ✓ at work" for index in range(1, 8)),
        " cpu                   load 0.40",
    ]


def test_a_small_watch_shows_the_lost_card_and_when_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-four lines are what is seen: the rest is cut off."""
    made = report(LOST, card(0, temperature_celsius=91.0))
    lines = shown(devices.watched(made, WHEN, 2.0), monkeypatch, 40)[:24]
    assert lines[:3] == [
        "12:00:04, next 12:00:06 (every 2 s)",
        "✗ cuda:3: lost since 12:00:02",
        "! cuda:0: 91 °C, limit 87 °C",
    ]
    assert sum(line.startswith(" 3 ") for line in lines) == 1
    assert next(line for line in lines if line.startswith(" 3 ")).split() == ["3", "–", "–", "✗", "lost"]
    wide = shown(devices.watched(made, WHEN, 2.0), monkeypatch)
    assert any("→ look for Xid 79" in line for line in wide) and any("✗ lost since 12:00:02" in line for line in wide)


def test_a_watch_of_well_cards_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(devices.watched(report(), WHEN, 0.5), monkeypatch, 80)
    assert lines[:2] == ["12:00:04, next 12:00:04 (every 0.5 s)", "✓ 8 GPUs, no fault seen (8 at work)"]


def test_the_same_fix_for_several_cards_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = report(*(card(index, recovery_action="gpu_reset") for index in (1, 2, 3)))
    lines = shown(devices.blocks(made), monkeypatch)
    assert lines[0] == "✗ reset needed: cuda:1 to cuda:3: the driver asks for the recovery action gpu_reset"
    assert lines[1].endswith(
        "-i GPU-13f2a1b0-0000-0000-0000-000000000001` (likewise for 2 more cards, each with its own UUID)"
    )


def test_in_ascii_a_cropped_state_has_no_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setenv("COLUMNS", "40")
    terminal.show(terminal.console(stream), [*devices.blocks(report(card(0, temperature_celsius=91.0))), Line()])
    stream.seek(0)
    assert " 0   | 100 % | 690 W | ! 91 C, limit 87\n" in stream.read()
