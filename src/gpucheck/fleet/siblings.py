"""Each device beside its siblings: the others of its model, on other nodes. Pure.

Devices of one node share its power, heat and links, so nodes are what is counted and not devices. On logarithms of
rates: the centre is the median of the nodes' medians, the spread has two parts, each from a median absolute deviation
(Rousseeuw and Croux 1993): of the nodes' medians about the centre, and of devices about their own node. A device's
distance is held against Student's t at a level that is shared among all devices and figures of the fleet (Bonferroni),
so that an even fleet has no slow device. Its degrees of freedom are those of both parts together (Welch 1947,
Satterthwaite 1946): few nodes with many devices know the spread of devices well, and that of nodes badly.
`benchmarks/fleet_power.py` proves both by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck import stats

# A normal spread is so many MADs.
_NORMAL = 1.4826
# A MAD's variance is 2.70 times that of the standard deviation of as many values (efficiency 37 %).
_EFFICIENCY = 0.37
# Of how many even fleets one may have a device that is called slow.
EVEN_FLEETS = 1000
# Fewer nodes with a model say nothing about one of them.
LEAST_NODES = 5
# What is nearer than this to its siblings is no reason to drain a node, however certain it is.
LEAST_DISTANCE = 0.03

Standing = Literal["even", "slow", "maybe", "fast"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One rate of one device: the median over its own rounds, and the relative standard error of that median."""

    node: str
    device: str
    rate: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A device beside its siblings: `ratio` of its rate to theirs with an interval at the fleet's level.

    `maybe` is far away and not certain, or certain for a node as a whole alone.
    """

    figure: Figure
    ratio: float
    low: float
    high: float
    standing: Standing


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one model in one figure. `centre` is in the unit of the rates; `spread` is relative.

    `placed` is empty where there are fewer than LEAST_NODES nodes.
    """

    nodes: int
    centre: float
    spread: float
    placed: tuple[Placed, ...]


def place(figures: Sequence[Figure], comparisons: int) -> Group:
    """Every device of a group beside the others. `comparisons` is how many devices × figures the whole fleet has.

    Raises ValueError for no figures and for a rate that is not positive.
    """
    logs = [math.log(figure.rate) for figure in figures]
    by_node: dict[str, list[float]] = {}
    for figure, log in zip(figures, logs, strict=True):
        by_node.setdefault(figure.node, []).append(log)
    medians = {node: stats.median(values) for node, values in by_node.items()}
    centre = stats.median(list(medians.values()))
    between, within = _spreads(medians, by_node, centre)
    spread = math.hypot(between, within)
    freedom = _freedom(between, len(medians) - 1, within, len(figures) - len(medians))
    if len(medians) < LEAST_NODES:
        return Group(len(medians), math.exp(centre), spread, ())
    level = 1 - 2 / (EVEN_FLEETS * max(comparisons, len(figures)))
    t = stats.student_quantile(level, freedom)
    # The spread has the usual noise in it; a device that is noisier than its siblings is held less firmly.
    usual = stats.median([figure.error**2 for figure in figures])
    placed = tuple(
        _placed(figure, log - centre, t * math.sqrt(spread**2 + max(figure.error**2 - usual, 0.0)))
        for figure, log in zip(figures, logs, strict=True)
    )
    return Group(len(medians), math.exp(centre), spread, placed)


def _spreads(
    medians: Mapping[str, float], by_node: Mapping[str, Sequence[float]], centre: float
) -> tuple[float, float]:
    """The spread of nodes about the centre, and of devices about the median of their node."""
    between = _NORMAL * stats.median([abs(one - centre) for one in medians.values()])
    deviations = [abs(log - medians[node]) for node, logs in by_node.items() for log in logs if len(logs) > 1]
    # A median of k values lies too near to them: their deviations from it are smaller than from the truth.
    sizes = [len(logs) for logs in by_node.values() if len(logs) > 1]
    shrunk = math.sqrt(1 - 1 / stats.median(sizes)) if sizes else 1.0
    within = _NORMAL * stats.median(deviations) / shrunk if deviations else 0.0
    return between, within


def _freedom(between: float, nodes: int, within: float, devices: int) -> float:
    """The degrees of freedom of both spreads together; `nodes` and `devices` are how many values are free in each."""
    worth = max(_EFFICIENCY * nodes, 1.0), max(_EFFICIENCY * devices, 1.0)
    parts = between**4 / worth[0] + within**4 / worth[1]
    return (between**2 + within**2) ** 2 / parts if parts > 0 else worth[0]


def _placed(figure: Figure, distance: float, reach: float) -> Placed:
    """`distance` and `reach` are of logarithms: how far it is from the centre, and how far chance may take it."""
    ratio = math.exp(distance)
    standing: Standing = "even"
    if abs(ratio - 1) >= LEAST_DISTANCE:
        certain = abs(distance) > reach
        standing = ("fast" if distance > 0 else "slow") if certain else "maybe" if distance < 0 else "even"
    return Placed(figure, ratio, math.exp(distance - reach), math.exp(distance + reach), standing)


def slow_nodes(placed: Iterable[Placed]) -> dict[str, list[Placed]]:
    """The nodes with slow devices, each with these."""
    found: dict[str, list[Placed]] = {}
    for one in placed:
        if one.standing == "slow":
            found.setdefault(one.figure.node, []).append(one)
    return found
