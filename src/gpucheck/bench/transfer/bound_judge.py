"""What copies from the wrong NUMA node cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench.transfer.link import LARGE_BYTES
from gpucheck.directions import WAYS
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# The rows of the node farthest from the device; those of its own node are named `transfer`.
REMOTE = "transfer.remote"
# Medians of copies differ by some percent from process to process; a wrong node is known to cost up to 70 %.
COSTLY = 1.1
# Which rows tell it best: the link's own rate, then what a caller gets.
_KINDS = (("pinned", "link"), ("pinned", "as_called"), ("pageable", "as_called"))


def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding of a device's largest copies in each direction; none where no wrong node was measured."""
    if not any(one.name == REMOTE for one in measurements):
        return []
    compared = [_evidence(near, far) for near, far in _largest(measurements)]
    if not compared:
        return [
            Finding(
                "transfer.numa",
                "inconclusive",
                "there is no large copy from both nodes",
                f"only copies from {units.capacity(LARGE_BYTES)} on tell what a node costs",
            )
        ]
    worst = max(compared, key=lambda one: one["ratio"])
    message = "; ".join(
        f"{units.byte_rate(one['remote_bytes_per_s'])} {WAYS[one['direction']]} from {one['remote']}, "
        f"{units.byte_rate(one['local_bytes_per_s'])} from {one['local']} ({units.significant(one['ratio'], 3)}×)"
        for one in compared
    )
    evidence = {"copies": compared}
    if worst["ratio"] < COSTLY:
        return [Finding("transfer.numa", "info", "the NUMA node makes no difference here", message, evidence)]
    lost = units.percent(1 - 1 / worst["ratio"])
    return [
        Finding(
            "transfer.numa",
            "warn",
            f"from the wrong NUMA node copies lose {lost} of their rate",
            message,
            evidence,
            fix="bind what feeds this device: `numactl --cpunodebind=N --membind=N`, N being its own node",
        )
    ]


def pairs(measurements: Sequence[Measurement]) -> Iterator[tuple[Measurement, Measurement]]:
    """Each case that was measured from both nodes: from the device's own one, and from the other."""
    far = {_key(one): one for one in measurements if one.name == REMOTE}
    for one in measurements:
        if one.name == "transfer" and _key(one) in far:
            yield one, far[_key(one)]


def _key(one: Measurement) -> tuple[Any, ...]:
    case = one.case
    return (one.device.id, case["direction"], case["host_memory"], case["timed"], case["size_bytes"])


def _largest(measurements: Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    """For each direction the largest copies that have a rate from both nodes, of the most telling kind there is."""
    large = [
        (near, far)
        for near, far in pairs(measurements)
        if near.rate and far.rate and near.case["size_bytes"] >= LARGE_BYTES
    ]
    found = []
    for direction in dict.fromkeys(near.case["direction"] for near, _ in large):
        mine = [pair for pair in large if pair[0].case["direction"] == direction]
        kind = next(kind for kind in _KINDS if any(_kind(near) == kind for near, _ in mine))
        found.append(
            max((pair for pair in mine if _kind(pair[0]) == kind), key=lambda pair: pair[0].case["size_bytes"])
        )
    return found


def _kind(one: Measurement) -> tuple[str, str]:
    return one.case["host_memory"], one.case["timed"]


def _evidence(near: Measurement, far: Measurement) -> dict[str, Any]:
    assert near.rate is not None and far.rate is not None
    return {
        **near.case,
        "local": near.method.numa,
        "remote": far.method.numa,
        "local_bytes_per_s": near.rate.median,
        "remote_bytes_per_s": far.rate.median,
        "ratio": near.rate.median / far.rate.median,
    }
