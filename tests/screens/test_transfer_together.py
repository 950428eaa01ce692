"""The table of devices that copy at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucheck.render.blocks import Line, Table
from gpucheck.render.transfer import together
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run

MIB = 2**20


def row(device: str, direction: str, gb: float | None, **case: Any) -> Measurement:
    name = "transfer" if case else "transfer.together"
    given = {"direction": direction, "host_memory": "pinned", "size_bytes": 256 * MIB} | (case or {"devices": 2})
    place = f"node {device[-1]} (pages read back)"
    return Measurement(
        name,
        DeviceRef(device),
        given,
        () if gb is None else (Run("", 1, (1.0, 1.0), (0.0, 1.0)),),
        None,
        {} if gb is None else {"bytes": gb * 1e9},
        None if gb is None else Rate(gb * 1e9, "B/s"),
        MemoryFigures(),
        Method("host", "host", "cold", numa=place, details={"windows_outside": 2}),
    )


def test_each_device_beside_its_rate_alone() -> None:
    rows = [
        row("cuda:0", "host_to_device", 56.0, timed="link"),
        replace(row("cuda:0", "host_to_device", 28.0), flags=("noisy",)),
        row("cuda:1", "host_to_device", 25.5),
        replace(row("cuda:0", "device_to_host", 27.0), flags=("noisy", "few-samples")),
        row("cuda:1", "device_to_host", None),
    ]
    (title, table), (method, noisy, few) = together(rows)
    assert (noisy, few) == (
        Line("noisy (interquartile range above 10 % of the median): cuda:0 to device, cuda:0 to host", "dim"),
        Line("few samples (fewer than 10 in the time available): cuda:0 to host", "dim"),
    )
    assert title == Line("2 devices at once")
    assert isinstance(table, Table)
    assert [column.head for column in table.columns] == [
        "device",
        "to device, GB/s\nat once",
        "\nalone",
        "\nof alone",
        "to host, GB/s\nat once",
        "\nalone",
        "\nof alone",
    ]
    assert [[cell.text for cell in one] for one in table.rows] == [
        ["cuda:0", "28.0", "56.0", "50 %", "27.0", "–", "–"],
        ["cuda:1", "25.5", "–", "–", "–", "–", "–"],
        ["all", "53.5", "", "", "27.0", "", ""],
    ]
    assert method == Line(
        "256 MiB of pinned memory, a process for each device, node 0 (pages read back); node 1 (pages read back). "
        "Started together, windows in which all copied; 8 other windows discarded"
    )


def test_nothing_where_none_copied_at_once() -> None:
    assert together([row("cuda:0", "host_to_device", 56.0, timed="link")]) == ([], [])
