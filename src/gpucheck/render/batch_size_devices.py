"""The answers of `gpucheck find-batch-size --device all` side by side."""

from __future__ import annotations

from typing import Any

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, column_of_numbers, table

_COLUMNS = (
    Column("device", "left"),
    Column("largest"),
    Column("recommended", keep=6),
    Column("samples/s", keep=5),
    Column("split", keep=7),
    Column("limited by", "left", keep=0, wraps=True),
)


def blocks(several: dict[str, Any]) -> list[Block]:
    """A row for each device, and what a step divided in proportion comes to where they are unlike."""
    devices, split = several["devices"], several["split"]
    shares = {one["device"]: one["batch_size"] for one in split["shares"]} if split else {}
    rates = column_of_numbers([found["samples_per_s"] for found in devices])
    rows: list[list[Cell | str]] = [
        [
            found["device"]["id"],
            _whole(found["max_batch_size"]),
            _whole((found.get("recommended") or {}).get("batch_size")),
            rate,
            _whole(shares.get(found["device"]["id"])),
            str(found.get("limiting_factor") or UNKNOWN),
        ]
        for found, rate in zip(devices, rates, strict=True)
    ]
    columns = _COLUMNS if split else tuple(column for column in _COLUMNS if column.head != "split")
    if not split:
        rows = [row[:4] + row[5:] for row in rows]
    laid_out: list[Block] = [Line(), table(columns, rows), Line()]
    if split:
        rate, equal = (units.significant(split[name]) for name in ("samples_per_s", "equal_samples_per_s"))
        laid_out.append(
            Line(
                f"split in proportion: {split['batch_size']} a step, {rate} samples/s if exchanging gradients took no "
                f"time; {equal} with equal parts"
            )
        )
    return laid_out


def _whole(size: int | None) -> str:
    return UNKNOWN if size is None else str(size)
