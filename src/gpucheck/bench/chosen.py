"""Which rows stand for a benchmark: what thresholds judge, and what `bench all` shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.report.measurement import Measurement


def size(one: Measurement) -> int:
    """The bytes of a row's copy or array."""
    return int(one.case["size_bytes"])


def rate(one: Measurement) -> float:
    """The median rate; 0 without one."""
    return one.rate.median if one.rate else 0.0


def copies(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The plain copies by direction."""
    found: dict[str, list[Measurement]] = {}
    for one in measurements:
        if one.name == "transfer":
            found.setdefault(str(one.case["direction"]), []).append(one)
    return found


def largest_copies(measurements: Sequence[Measurement]) -> dict[str, Measurement | None]:
    """The largest pinned copy of each direction, by the device's clock where it has one; on the host any copy.

    None where a direction was measured and nothing pinned is among it.
    """
    found: dict[str, Measurement | None] = {}
    for way, rows in copies(measurements).items():
        pinned = [one for one in rows if one.case["host_memory"] == "pinned" or way == "host_to_host"]
        # By the device's clock it is the link's rate.
        by_device = [one for one in pinned if one.case["timed"] == "link"]
        found[way] = max(by_device or pinned, key=size, default=None)
    return found


def largest_arrays(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The largest arrays of each operation on memory, cold or warm."""
    found: dict[str, Measurement] = {}
    for one in measurements:
        if one.name == "bandwidth":
            operation = str(one.case["operation"])
            if operation not in found or size(one) > size(found[operation]):
                found[operation] = one
    return found


def fastest_products(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The fastest product of each dtype that was computed in the precision asked for, and not emulated."""
    found: dict[str, Measurement] = {}
    for one in measurements:
        right = one.method.precision_observed == one.method.precision_requested
        if one.name != "matmul" or one.rate is None or not right or one.case.get("support") == "emulated":
            continue
        dtype = str(one.case["dtype"])
        if dtype not in found or rate(one) > rate(found[dtype]):
            found[dtype] = one
    return found
