"""The answers of `gpucheck find-batch-size --device all` side by side."""

from __future__ import annotations

from typing import Any

from gpucheck import units
from gpucheck.render import batch_size_use
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, column_of_numbers, table


def blocks(several: dict[str, Any]) -> list[Block]:
    """A row for each device, and what a step divided in proportion comes to where they are unlike."""
    devices, split = several["devices"], several["split"]
    shares = {one["device"]: one["batch_size"] for one in split["shares"]} if split else {}
    rates = column_of_numbers([found["samples_per_s"] for found in devices])
    rows = [_row(found, rate, shares) for found, rate in zip(devices, rates, strict=True)]
    columns = _columns(next((found["axis"]["name"] for found in devices if found.get("axis")), None))
    if not split:
        place = next(place for place, column in enumerate(columns) if column.head == "split")
        columns, rows = (_without(columns, place), [_without(row, place) for row in rows])
    laid_out: list[Block] = [table(columns, rows), Line()]
    if split:
        rate, equal = (units.significant(split[name]) for name in ("samples_per_s", "equal_samples_per_s"))
        laid_out.append(
            Line(
                f"split in proportion: {split['batch_size']} a step, {rate} samples/s if exchanging gradients took no "
                f"time; {equal} with equal parts"
            )
        )
    return laid_out


def _columns(axis: str | None) -> list[Column]:
    """Along an axis sizes are lengths, and the rate is of lengths."""
    return [
        Column("device", "left"),
        Column("name", "left", keep=4),
        Column(f"largest {axis}" if axis else "largest"),
        Column("recommended", keep=6),
        Column(f"{axis}/s" if axis else "samples/s", keep=5),
        Column("split", keep=7),
        Column("limited by", "left", keep=0, wraps=True),
    ]


def _row(found: dict[str, Any], rate: str, shares: dict[str, int]) -> list[Cell | str]:
    device = found["device"]
    return [
        device["id"],
        device.get("name") or UNKNOWN,
        _whole(found["max_batch_size"]) if found.get("at_least") is None else f"≥{found['at_least']}",
        _whole((found.get("recommended") or {}).get("batch_size")),
        rate,
        _whole(shares.get(device["id"])),
        # What could be done about it stands with each device's answer.
        batch_size_use.limit(found).partition(":")[0] or UNKNOWN,
    ]


def _without(cells: list[Any], place: int) -> list[Any]:
    return cells[:place] + cells[place + 1 :]


def _whole(size: int | None) -> str:
    return UNKNOWN if size is None else str(size)
