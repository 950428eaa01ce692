"""The table of copies from two NUMA nodes."""

from __future__ import annotations

from dataclasses import replace

from gpucheck.render import transfer
from gpucheck.render.blocks import Line, Table
from gpucheck.render.transfer_parts import bound
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats

MIB = 2**20


def row(name: str, time_s: float, *, size: int = 512 * MIB, rate: bool = True, timed: str = "link") -> Measurement:
    case = {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": size, "timed": timed}
    node = 1 if name == "transfer.remote" else 0
    return Measurement(
        name,
        DeviceRef("cuda:0"),
        case,
        (),
        TimeStats(time_s, 10),
        {},
        Rate(size / time_s, "B/s") if rate else None,
        MemoryFigures(),
        Method("host", "host", "cold", numa=f"node {node} (pages read back)"),
    )


def test_each_copy_from_both_nodes() -> None:
    rows = [
        row("transfer", 0.01),
        row("transfer", 1e-5, size=MIB, rate=False, timed="as_called"),
        row("transfer", 0.5, size=2 * MIB),
        row("transfer.remote", 0.0125),
        row("transfer.remote", 2e-5, size=MIB, rate=False, timed="as_called"),
    ]
    head, _, table, _ = bound(rows)
    assert head == Line("cuda:0: own node is node 0 (pages read back), wrong node is node 1 (pages read back)")
    assert isinstance(table, Table)
    assert [[cell.text for cell in one] for one in table.rows] == [
        ["512 MiB pinned to device (link)", "53.7", "42.9", "1.25×"],
        ["1 MiB pinned to device", "–", "–", "2.00×"],
    ]


def test_flags_of_the_wrong_nodes_rows_are_counted() -> None:
    rows = [row("transfer", 0.01), replace(row("transfer.remote", 0.0125), flags=("noisy", "throttled"))]
    assert bound(rows)[4:] == [Line("from the wrong node noisy: 1 of 1 rows; throttled: 1 of 1 rows", "dim"), Line()]


def test_the_table_of_copies_names_the_node_of_a_bound_process() -> None:
    assert transfer._method([row("transfer", 0.01)]).endswith("smallest copy; from node 0 (pages read back)")
    anywhere = row("transfer", 0.01)
    anywhere = replace(anywhere, method=replace(anywhere.method, numa="any of nodes 0-1"))
    assert transfer._method([anywhere]).endswith("smallest copy")


def test_nothing_without_a_wrong_node() -> None:
    assert bound([row("transfer", 0.01)]) == []
