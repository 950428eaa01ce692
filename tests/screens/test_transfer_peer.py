"""The matrix of devices, and both ways and within a device, in a pipe and on narrow screens."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gpucheck.render import terminal, transfer
from gpucheck.render.blocks import Block
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats

KIB, MIB = 2**10, 2**20


def row(
    name: str,
    device_id: str,
    case: dict[str, Any],
    rate: float | None,
    seconds: float = 1e-3,
    flags: tuple[str, ...] = (),
    **details: Any,
) -> Measurement:
    return Measurement(
        name=name,
        device=DeviceRef(device_id),
        case=case,
        runs=(),
        time_s=TimeStats(seconds, 40),
        work={"bytes": 1.0},
        rate=None if rate is None else Rate(rate, "B/s", rate * 0.99, rate * 1.01),
        memory=MemoryFigures(),
        method=Method("device events", "held", "cold", details=details),
        flags=flags,
    )


def pair(source: str, destination: str, rate: float | None, path: str | None = "peer", **more: Any) -> Measurement:
    case = {"source": source, "destination": destination, "size_bytes": 256 * MIB, "what": "rate"}
    return row("transfer.peer", source, case, rate, path=path, **more)


def latency(source: str, destination: str, seconds: float) -> Measurement:
    case = {"source": source, "destination": destination, "size_bytes": 64 * KIB, "what": "latency"}
    return row("transfer.peer", source, case, None, seconds, ("call-bound",), path="peer")


def grid(count: int, rate: float, path: str | None = "peer") -> list[Measurement]:
    ids = [f"cuda:{place}" for place in range(count)]
    return [pair(a, b, rate, path) for a in ids for b in ids if a != b]


def whole(parts: tuple[list[Block], list[Block]]) -> list[Block]:
    """What is shown, then its details."""
    return [*parts[0], *parts[1]]


def shown(blocks: Sequence[Block], monkeypatch: pytest.MonkeyPatch, columns: int | None = None) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), blocks)
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()


def test_three_devices_of_which_one_is_reached_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        pair("cuda:0", "cuda:1", 390.4e9),
        pair("cuda:1", "cuda:0", 391e9, flags=("noisy",)),
        pair("cuda:0", "cuda:2", 20.12e9, "staged"),
        pair("cuda:2", "cuda:0", None, "staged"),
        latency("cuda:0", "cuda:1", 12e-6),
        latency("cuda:1", "cuda:0", 14e-6),
        latency("cuda:0", "cuda:2", 40e-6),
    ]
    assert shown(whole(transfer.peer(rows)), monkeypatch) == [
        "device to device, GB/s, 256 MiB at a time: sources down, destinations across",
        " from      to 0    to 1    to 2",
        "─",
        " cuda:0           390.4   20.1*",
        " cuda:1   391.0               –",
        " cuda:2      –*       –",
        "* through host memory, timed on the host's clock",
        "– no rate: the launch took longer than the copy",
        "latency (64 KiB): median 14.0 µs, at most 40.0 µs (cuda:0 to cuda:2)",
        "bytes counted once, on the source's stream, one pair at a time, 40 samples each",
        "noisy (interquartile range above 10 % of the median): cuda:1 to cuda:0",
    ]


@pytest.mark.parametrize("rate", [395.23e9, 20.1e9, 7e9])
def test_eight_devices_fit_into_80_columns(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*grid(8, rate, "staged"), pair("cuda:0", "cuda:1", 395.2e9, "staged")]
    lines = shown(whole(transfer.peer(rows)), monkeypatch, 80)
    assert max(map(len, lines)) <= 80
    assert [line[:7] for line in lines if line.startswith(" cuda")] == [f" cuda:{place}" for place in range(8)]
    assert lines[1].split() == ["from", *(word for place in range(8) for word in ("to", str(place)))]


def test_at_40_columns_each_source_becomes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(whole(transfer.peer(grid(8, 395e9))), monkeypatch, 40)
    assert max(map(len, lines)) <= 40
    at = lines.index("from: cuda:1")
    assert lines[at + 1 : at + 4] == ["to 0: 395", "to 2: 395", "to 3: 395"]


def test_devices_of_two_kinds_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [pair("cuda:0", "cuda:1", 20e9), pair("xpu:0", "xpu:1", 10e9, None)]
    lines = shown(whole(transfer.peer(rows)), monkeypatch)
    assert lines[1].split() == ["from", "to", "cuda:0", "to", "cuda:1", "to", "xpu:0", "to", "xpu:1"]


def ways(device_id: str = "cuda:0") -> list[Measurement]:
    case = {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": 128 * MIB, "other": "device_to_host"}
    back = {**case, "direction": "device_to_host", "other": "host_to_device"}
    told: dict[str, Any] = {"other_bytes_per_s": 46e9, "discarded_windows": 2}
    return [
        row("transfer.both_ways", device_id, case, 48e9, **told),
        row("transfer.both_ways", device_id, back, None, flags=("never-together",), **told),
        row("transfer.on_device", device_id, {"size_bytes": 512 * MIB}, 4.2e12),
    ]


def test_both_ways_and_within_the_device_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(whole(transfer.at_once(ways())), monkeypatch) == [
        "both directions at once: 94.0 GB/s; within the device: 4.20 TB/s",
        "",
        " device   copies                            size     GB/s      p05      p95   the other    sum   "
        "discarded   notes",
        "─",
        " cuda:0   to device, both ways at once   128 MiB     48.0     47.5     48.5        46.0   94.0           2",
        "          to host, both ways at once     128 MiB        –        –        –           –      –           "
        "2   ! never at once",
        "          within the device              512 MiB   4200.0   4158.0   4242.0",
        "both ways: pinned, two streams, separate buffers. Only windows that the other direction covered in full; "
        "the other: its rate in the same windows",
        "within the device: bytes read and written; nvbandwidth counts half, 2.10 TB/s",
    ]


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_nothing_is_wider_than_the_screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown([*whole(transfer.at_once(ways())), *whole(transfer.peer(grid(2, 1e9)))], monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    assert any("both ways at once" in line for line in lines)


def test_without_such_rows_there_is_nothing_and_all_are_laid_out_below_the_devices() -> None:
    other = row("transfer", "cuda:0", {"size_bytes": MIB}, 1e9)
    assert transfer.peer([other]) == transfer.at_once([other]) == ([], [])
    assert {transfer.peer, transfer.at_once} <= set(transfer.PARTS)
