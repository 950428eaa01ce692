"""Each device beside its siblings: the others of its model, on other nodes. Pure.

Devices of one node share its power, heat and links, so nodes are what is counted and not devices. On logarithms of
rates: the centre is the median of the nodes' medians, the spread has two parts, each from a median absolute deviation
(Rousseeuw and Croux 1993): of the nodes' medians about the centre, and of devices about the others of their node. A
device's distance is held against Student's t at a level that is shared among all devices and figures of the fleet
(Bonferroni), so that an even fleet has no slow device. Its degrees of freedom are those of both parts together (Welch
1947, Satterthwaite 1946): few nodes with many devices know the spread of devices well, and that of nodes badly. A
device is also held against the others of its own node, whose power and heat it shares: that spread is the smaller
one, and the level is halved for the second test. Slow is what either calls certain, far enough away from both: a device
that is as fast as its node is not slow, its node may be. Nodes are held against each other below (`lowest`).
`benchmarks/fleet_power.py` proves both by simulation.
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpucheck import stats
from gpucheck.report.results.fleet import NodeFigure

# A normal spread is so many MADs.
_NORMAL = 1.4826
# A MAD's variance is 2.70 times that of the standard deviation of as many values (efficiency 37 %).
_EFFICIENCY = 0.37
# Of how many even fleets one may have a device that is called slow.
EVEN_FLEETS = 1000
# Of how many one may have a device that is worth another look.
EVEN_FLEETS_MAYBE = 10
# The median of fewer devices of a node is mostly the device itself.
LEAST_DEVICES = 4
# Fewer nodes with a model say nothing about one of them.
LEAST_NODES = 5
# What is nearer than this to its siblings is no reason to drain a node, however certain it is.
LEAST_DISTANCE = 0.03

# The logarithm of a number that is larger than any ratio, and still is one.
_LARGEST = 700.0

Standing = Literal["even", "slow", "maybe", "fast"]
_BESIDE_ITS_OWN: dict[Standing, Standing] = {"slow": "maybe", "maybe": "even"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A device beside its siblings: `ratio` of its rate to theirs with an interval at the fleet's level.

    They are those of all nodes, or where these leave it open those of its own. `maybe` is far away and not certain.
    """

    ratio: float
    low: float
    high: float
    standing: Standing


def place(figures: Sequence[tuple[str, NodeFigure]], comparisons: int) -> tuple[float, float, tuple[Placed, ...]]:
    """The centre in the unit of the rates, the relative spread, and every device of a model, each with its node, beside
    the others: none where there are fewer than LEAST_NODES nodes. `comparisons` is how many devices × figures the whole
    fleet has.

    Raises ValueError for no figures and for a rate that is not positive.
    """
    logs = [math.log(figure.rate) for _, figure in figures]
    by_node: dict[str, list[float]] = {}
    for (node, _), log in zip(figures, logs, strict=True):
        by_node.setdefault(node, []).append(log)
    medians = {node: stats.median(values) for node, values in by_node.items()}
    centre = stats.median(list(medians.values()))
    between = _NORMAL * stats.median([abs(one - centre) for one in medians.values()])
    others = {node: _from_others(values) for node, values in by_node.items()}
    from_others = [abs(one) for values in others.values() for one in values]
    beside = _NORMAL * stats.median(from_others) if from_others else 0.0
    # The median of the others varies too, at least as the mean of as many.
    usually = stats.median([len(values) for values in by_node.values()])
    within = beside / math.sqrt(1 + 1 / (usually - 1)) if usually > 1 else beside
    spread = math.hypot(between, within)
    if len(medians) < LEAST_NODES:
        return math.exp(centre), spread, ()
    # The spread has the usual noise in it; a device that is noisier than its siblings is held less firmly.
    squares = [(figure.error or 0.0) ** 2 for _, figure in figures]
    usual = stats.median(squares)
    count, devices = max(comparisons, len(figures)), len(figures) - len(medians)
    of_fleet = _Scale(spread, _freedom(between, len(medians) - 1, within, devices), count)
    of_node = _Scale(beside, max(_EFFICIENCY * devices, 1.0), count)
    placed = []
    remaining = {node: iter(values) for node, values in others.items()}
    for (node, _), log, square in zip(figures, logs, squares, strict=True):
        from_own, has_siblings = next(remaining[node], 0.0), len(by_node[node]) >= LEAST_DEVICES
        more = max(square - usual, 0.0)
        one = _placed(log - centre, of_fleet, more)
        if one.standing in ("maybe", "even") and has_siblings and _is_far(log - centre):
            in_node = _placed(from_own, of_node, more)
            one = in_node if in_node.standing == "slow" else one
        if has_siblings and not (_is_far(from_own) and from_own < 0):
            # It is no lower than its node: whether the node is low is judged by nodes, which few tell badly.
            one = replace(one, standing=_BESIDE_ITS_OWN[one.standing]) if one.standing in _BESIDE_ITS_OWN else one
        placed.append(one)
    return math.exp(centre), spread, tuple(placed)


class _Scale:
    """The effect of chance on a device: the square of a spread, and the numbers of such spreads beyond which a device
    is certain, and worth another look."""

    def __init__(self, spread: float, freedom: float, count: int) -> None:
        self.square = spread**2
        # Slow is one side; half of what an even fleet may have is this test's, half the other one's.
        self.certain, self.maybe = (
            stats.student_quantile(1 - 1 / (fleets * count), freedom) for fleets in (EVEN_FLEETS, EVEN_FLEETS_MAYBE)
        )


def _from_others(values: Sequence[float]) -> list[float]:
    """Return how far each value is from the median of the others; nothing for a single one.

    From a median that has the value itself in it one of three is no distance at all: such a spread is too small.
    """
    if len(values) < 2:
        return []
    ordered = sorted(values)
    return [value - stats.median_without(ordered, bisect.bisect_left(ordered, value)) for value in values]


def _freedom(between: float, nodes: int, within: float, devices: int) -> float:
    """The degrees of freedom of both spreads together; `nodes` and `devices` are how many values are free in each."""
    worth = max(_EFFICIENCY * nodes, 1.0), max(_EFFICIENCY * devices, 1.0)
    parts = between**4 / worth[0] + within**4 / worth[1]
    return (between**2 + within**2) ** 2 / parts if parts > 0 else worth[0]


def _is_far(distance: float) -> bool:
    return abs(math.exp(distance) - 1) >= LEAST_DISTANCE


def _placed(distance: float, scale: _Scale, more: float) -> Placed:
    """`distance` is of logarithms, from what the device is held against; `more` the variance that is its own."""
    spread = math.sqrt(scale.square + more)
    reach, look = scale.certain * spread, scale.maybe * spread
    standing: Standing = "even"
    if _is_far(distance):
        if abs(distance) > reach:
            standing = "fast" if distance > 0 else "slow"
        elif -distance > look:
            standing = "maybe"
    # Of a few nodes far apart nothing is known: the interval may reach beyond any number.
    high = math.exp(min(distance + reach, _LARGEST))
    return Placed(math.exp(distance), math.exp(distance - reach), high, standing)


# -- whole nodes -------------------------------------------------------------------------------------------------------

# Of how many sound fleets one may have a node that is called slow: by all figures together, and by single ones.
NODE_LEVEL = 0.004
# Of how many one that is worth another look: beside it are the devices, and one sound fleet in 10 is the most in all.
NODE_LEVEL_MAYBE = 0.03
# Two modes: at least so many nodes and this share of them on each side, and so many of their own deviations between.
MODE_NODES, MODE_SHARE, MODE_GAP = 3, 0.1, 5.0


@functools.cache
def node_threshold(nodes: int, level: float) -> float:
    """The t beyond which the lowest of `nodes` values is an outlier in at most `level` of the sound fleets.

    One side of Student's t with n - 2 degrees of freedom, shared among the n values (Bonferroni): the threshold of the
    extreme studentised deviate (Grubbs 1969; Rosner 1983). Raises ValueError below 3 nodes.
    """
    return stats.student_quantile(1 - 2 * level / nodes, nodes - 2)


def lowest(values: Mapping[str, float], level: float) -> tuple[str, ...]:
    """The names whose values are too low for the others, lowest first; at most a quarter of them, or one.

    Each in turn is held against the mean of those that are left, at s * sqrt(1 + 1/(n - 1)) of these (leave-one-out t).
    As in Rosner's generalised procedure (1983) the last that is beyond its threshold counts, and all before it: of two
    bad nodes the second hides neither. Nothing below LEAST_NODES values.
    """
    order = sorted(values, key=values.__getitem__)
    steps = most_low(len(order)) if len(order) >= LEAST_NODES else 0
    # From the highest down the mean and the sum of squares of what is above grow with each value (Welford 1962): the
    # first that is found is the last of the procedure.
    mean = squares = 0.0
    for above, name in enumerate(reversed(order)):
        distance, left = mean - values[name], len(order) - above
        if left <= steps:
            scale = math.sqrt(squares / (above - 1) * (1 + 1 / above))
            if distance > node_threshold(above + 1, level) * scale:
                return tuple(order[:left])
        mean -= distance / (above + 1)
        squares += distance**2 * above / (above + 1)
    return ()


def most_low(nodes: int) -> int:
    """Return how many of so many nodes may be low beside the others: with more it is not known which are sound."""
    return max(1, nodes // 4)


def slower_mode(values: Mapping[str, float]) -> tuple[str, ...]:
    """The names of the slower of two modes, none where there is one: `values` are logarithms.

    The widest gap between neighbours that leaves enough on both sides, if it is MODE_GAP standard deviations within
    the sides wide, and LEAST_DISTANCE.
    """
    order = sorted(values, key=values.__getitem__)
    ordered = [values[name] for name in order]
    least = max(MODE_NODES, math.ceil(MODE_SHARE * len(order)))
    places = range(least, len(order) - least + 1)
    if not places:
        return ()
    place = max(places, key=lambda at: ordered[at] - ordered[at - 1])
    gap, sides = ordered[place] - ordered[place - 1], (ordered[:place], ordered[place:])
    # Of few nodes the deviation within is known badly: half of 2 000 sound fleets of 6 that split did so by that.
    freedom = (len(order) - 2) ** 2 / len(order)
    within = math.sqrt(sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom)
    return tuple(order[:place]) if gap >= MODE_GAP * within and gap >= -math.log(1 - LEAST_DISTANCE) else ()
