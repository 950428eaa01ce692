"""Whether others were on a device before it was measured: by its memory, never by our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from judged import Document

from gpucheck.bench import devices
from gpucheck.bench.bandwidth import BandwidthOptions
from gpucheck.bench.devices import BenchInputs
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure.telemetry import held_bytes
from gpucheck.report.facts import Device, Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method

MIB, GIB = 2**20, 2**30
CARD = Device("cuda", id="cuda:0", memory_total_bytes=80 * GIB, memory_reserved_bytes=600 * MIB)


@pytest.mark.parametrize(
    ("device", "held"),
    [
        (replace(CARD, memory_used_bytes=512 * MIB), None),
        (replace(CARD, memory_used_bytes=513 * MIB), 513 * MIB),
        # What the driver reserves is among what is used here.
        (replace(CARD, memory_used_bytes=2 * GIB, memory_reserved_bytes=None), None),
        (replace(CARD, memory_used_bytes=3 * GIB, memory_reserved_bytes=None), 3 * GIB),
        (replace(CARD, memory_used_bytes=3 * GIB, integrated=True), None),
        (Device("cpu", id="cpu", memory_used_bytes=3 * GIB), None),
        (CARD, None),
    ],
)
def test_what_others_hold(device: Device, held: int | None) -> None:
    assert held_bytes(device) == held


def measured(monkeypatch: pytest.MonkeyPatch, facts: Facts, shared: BenchInputs) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: facts)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cuda:0",)))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: accel.open_device("cpu"))

    def rows(*_: Any) -> Iterator[Measurement]:
        method = Method("host", "host", "cold")
        yield Measurement(
            "x", DeviceRef("cuda:0"), {}, (), None, {"bytes": 1.0}, None, MemoryFigures(), method, flags=("y",)
        )

    told = Document()
    options = BandwidthOptions(time_budget_s=1.0)
    devices.each("x", options, told, shared, rows, lambda _: 1.0)
    return told


def seen(told: Document) -> tuple[list[str], list[tuple[str, ...]]]:
    return [finding.verdict for finding in told.judged().findings], [row.flags for row in told.measurements]


def test_a_device_that_was_in_use_is_a_flag_on_every_row_and_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(devices=(replace(CARD, memory_used_bytes=3 * GIB), replace(CARD, id="cuda:1")))
    assert seen(measured(monkeypatch, facts, BenchInputs())) == (["warn"], [("y", "device-shared")])


@pytest.mark.parametrize(
    ("percent", "verdict", "flags"),
    [(0.0, "info", ("y",)), (1.0, "warn", ("y", "device-shared")), (None, "warn", ("y", "device-shared"))],
)
def test_memory_that_nobody_works_with_slows_nothing(
    percent: float | None, verdict: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = replace(CARD, memory_used_bytes=3 * GIB, utilization_percent=percent)
    told = measured(monkeypatch, Facts(devices=(held,)), BenchInputs())
    (finding,) = told.judged().findings
    assert (finding.id, finding.verdict) == ("device.shared", verdict)
    assert [row.flags for row in told.measurements] == [flags]


def test_an_idle_device_is_told_nothing_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(measured(monkeypatch, Facts(devices=(CARD,)), BenchInputs())) == ([], [("y",)])
