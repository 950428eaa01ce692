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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpucheck import errors, peaks, stats
from gpucheck.fleet.hosts import few, nodes_text
from gpucheck.report.finding import Finding
from gpucheck.report.results.fleet import FleetGroup, NodeDocument, NodeFigure, SlowDevice

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
_NEAR = 1 - LEAST_DISTANCE

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
    of_fleet = _scale(spread, _freedom(between, len(medians) - 1, within, devices), count)
    of_node = _scale(beside, max(_EFFICIENCY * devices, 1.0), count)
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


# The square of a spread, and the numbers of such spreads beyond which a device is certain, and worth another look.
_Scale = tuple[float, float, float]


def _scale(spread: float, freedom: float, count: int) -> _Scale:
    """The effect of chance on a device among `count` comparisons."""
    # Slow is one side; half of what an even fleet may have is this test's, half the other one's.
    certain, maybe = (
        stats.student_quantile(1 - 1 / (fleets * count), freedom) for fleets in (EVEN_FLEETS, EVEN_FLEETS_MAYBE)
    )
    return spread**2, certain, maybe


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
    square, certain, maybe = scale
    spread = math.sqrt(square + more)
    reach, look = certain * spread, maybe * spread
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
    return tuple(order[:place]) if gap >= MODE_GAP * within and gap >= -math.log(_NEAR) else ()


# -- a fleet: every node and device in every figure -------------------------------------------------------------------

# A sound device reaches 60 to 95 % of its part's peak with products and cold copies of usual sizes; below half of it
# something is wrong, whatever its siblings do.
FLOOR = 0.5
# What is measured faster than this share of the peak was not measured: clocks and data sheets are a few percent off.
CEILING = 1.15
# These remarks on a row say that the figure is low for a cause outside the device.
DISTURBED = frozenset(("cpu-busy", "device-shared", "few-samples", "noisy"))
# Of three or four nodes of a model, one is far below the others if it has no more than this of the lowest of them, and
# these are within `AGREE` of each other: half of the speed is seen, and what few nodes vary by is not.
FAR_BELOW, AGREE = 0.7, 0.85
# The screen and the JSON hold so many kinds of differences; an attack must not make more.
MOST_KINDS = 20


@dataclass(frozen=True, slots=True)
class Beside:
    """The result of the comparison: slow devices and nodes by host, why a host is in the slower of two modes and
    what to do, the groups, the hosts that were compared with other nodes, what is to be said of it all, and the ratios
    by host. What a host lacks that its siblings have, with the command for it, and how many devices have what few have
    (`partly`)."""

    slow: Mapping[str, Sequence[SlowDevice]]
    modes: Mapping[str, tuple[str, str]]
    groups: Sequence[FleetGroup]
    compared: frozenset[str]
    told: Sequence[Finding]
    ratios: Mapping[str, dict[str, float]]
    unmeasured: Mapping[str, tuple[str, str]]
    partly: str
    # Why a node is far below the few others of its model, and what to do.
    far: Mapping[str, tuple[str, str]]


def beside_siblings(nodes: Mapping[str, NodeDocument]) -> Beside:
    """Every node and device in every figure: against its siblings, and against its part's peak."""
    whole, floors, impossible = _grouped(nodes)
    figures, modes, told = _in_modes(whole, nodes)
    judged = [rows for rows in figures.values() if len({host for host, _ in rows}) >= LEAST_NODES]
    comparisons = sum(len(rows) for rows in judged)
    slow: dict[str, list[SlowDevice]] = defaultdict(list)
    by_node = _slow_nodes(figures, NODE_LEVEL)
    for host, maybe in _slow_nodes(figures, NODE_LEVEL_MAYBE).items():
        if host not in by_node:
            by_node[host] = [replace(one, certain=False) for one in maybe]
    groups: list[FleetGroup] = []
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for (model, label, unit), members in figures.items():
        centre, spread, compared = place(members, comparisons)
        for host, one in members:
            ratios[host][label] = min(round(one.rate / centre, 4), ratios[host].get(label, math.inf))
        beside = _slow_within(members, len(whole), label) if not compared else []
        for placed, (host, one) in zip(compared, members, strict=False):
            # A node that is slow as a whole is one fault, not as many as it has devices.
            if placed.standing in ("slow", "maybe") and not any(
                one.device == WHOLE and one.certain for one in by_node[host]
            ):
                device = replace(_slow(one, label, placed.ratio), low=placed.low, high=placed.high)
                beside.append((host, replace(device, certain=device.certain and placed.standing == "slow")))
        for host, device in beside:
            slow[host].append(device)
        own = {host for host, _ in members}
        found = sum(device.certain for _, device in beside)
        found += sum(one.figure == label and one.certain for host in own for one in by_node[host])
        numbers = len(own), len(members), centre, spread, found
        groups.append(FleetGroup(model, label, unit, *numbers, judged=bool(compared)))
    for host, devices in by_node.items():
        named = {(one.device, one.figure) for one in slow[host] if one.certain}
        slow[host] += [one for one in devices if (one.device, one.figure) not in named]
    for host, device in floors:
        slow[host].append(device)
    if alone := sorted({group.model for group in groups if not group.judged}):
        title = f"fewer than {LEAST_NODES} nodes of a model: nodes are not compared"
        told.append(Finding("fleet.siblings", "info", title, few(alone)))
    if impossible:
        title = "rates above the GPU's peak were left out"
        names = sorted(impossible)
        told.append(Finding("fleet.impossible", "warn", title, few(names), {"nodes": names}))
    hosts_compared = frozenset(host for rows in judged for host, _ in rows)
    unmeasured = _unmeasured(nodes, whole)
    return Beside(slow, modes, groups, hosts_compared, told, ratios, *unmeasured, _far_below(figures))


def _unmeasured(nodes: Mapping[str, NodeDocument], figures: Groups) -> tuple[dict[str, tuple[str, str]], str]:
    """Return what is missing on each node whose check passed, with the command that measures it; and how many devices
    of a model have the figure that fewest of them have, where not all do.

    A figure is due where at least half of a model's devices have it: one node that was asked for more, or a forged
    document, makes no other node lack anything.
    """
    devices: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for host, document in nodes.items():
        gpus = [device for device in document.devices if device.id != "cpu"]
        for device in (gpus or document.devices) if document.exit == errors.OK else ():
            devices[device.name].add((host, device.id))
    lacking: dict[str, list[tuple[str, str]]] = defaultdict(list)
    partly: dict[str, tuple[int, int]] = {}
    for (model, label, _), members in figures.items():
        have = {(host, figure.device) for host, figure in members} & devices[model]
        if have and 2 * len(have) >= len(devices[model]):
            for host, name in sorted(devices[model] - have):
                lacking[host].append((name, label))
        elif have:
            partly[label] = len(have), len(devices[model])
    causes = {}
    for host, missing in lacking.items():
        where, labels = (list(dict.fromkeys(names)) for names in zip(*missing, strict=True))
        fix = f"on {host}: gpucheck bench {labels[0].partition(' ')[0]} --device {'all' if where[1:] else where[0]}"
        causes[host] = f"not measured on {few(where, 3)}: {few(labels, 1)}", fix
    if not partly:
        return causes, ""
    label, (some, whole) = min(partly.items(), key=lambda row: row[1])
    return causes, f"{label} of {some} of {whole} devices compared"


# How a slow node stands among its slow devices.
WHOLE = "all devices"
# A node is slow, and not one of its devices, where so many of them and most of them are.
LEAST_SLOW = 3
# Within a node at most one fleet in so many has a device that is called slow, as beside other nodes.
WITHIN_LEVEL = 1 / EVEN_FLEETS


def _slow(one: NodeFigure, label: str, ratio: float, against: Literal["siblings", "peak"] = "siblings") -> SlowDevice:
    certain = not DISTURBED.intersection(one.flags)
    return SlowDevice(one.device, label, one.rate, one.unit, ratio, None, None, against, certain)


def _by_host(members: Iterable[tuple[str, NodeFigure]]) -> dict[str, list[NodeFigure]]:
    found: dict[str, list[NodeFigure]] = defaultdict(list)
    for host, one in members:
        found[host].append(one)
    return found


def _slow_within(members: Sequence[tuple[str, NodeFigure]], figures: int, label: str) -> list[tuple[str, SlowDevice]]:
    """Devices that are slow beside the others of their own node, where there are too few nodes to compare."""
    slow: list[tuple[str, SlowDevice]] = []
    by_host = _by_host(members)
    for host, own in by_host.items():
        devices = {figure.device: figure for figure in own}
        logs = {id: math.log(figure.rate) for id, figure in devices.items()}
        low = lowest(logs, WITHIN_LEVEL / (len(by_host) * figures))
        centre = stats.median([log for id, log in logs.items() if id not in low])
        ratios = {id: math.exp(logs[id] - centre) for id in low}
        slow += [(host, _slow(devices[id], label, ratio)) for id, ratio in ratios.items() if ratio <= _NEAR]
    return slow


def _far_below(figures: Groups) -> dict[str, tuple[str, str]]:
    """Nodes with a device far below the two or three other nodes of its model, and what to do: too few to call it bad.

    A node's own slowest device counts: one link of several may be slow.
    """
    worst: dict[str, tuple[float, str, str, int]] = {}
    for (_, label, _), members in figures.items():
        by_host = _by_host(members)
        if not 3 <= len(by_host) < LEAST_NODES:
            continue
        slowest = {host: min(own, key=lambda figure: figure.rate) for host, own in by_host.items()}
        host = min(slowest, key=lambda name: slowest[name].rate)
        low, others = slowest.pop(host), [figure.rate for figure in slowest.values()]
        ratio = low.rate / min(others)
        if ratio <= FAR_BELOW and min(others) >= AGREE * max(others) and not DISTURBED.intersection(low.flags):
            worst[host] = min((ratio, label, low.device, len(others)), worst.get(host, (1.0, "", "", 0)))
    return {
        host: (
            f"{device} far below the other {'two' if count == 2 else 'three'}: {ratio:.2f} of them in {label}",
            f"on {host}: gpucheck bench {label.partition(' ')[0]} --device all",
        )
        for host, (ratio, label, device, count) in worst.items()
    }


# Of each node its figures with their logarithms, absolute or as distances from the median of the other nodes.
Away = dict[str, list[tuple[NodeFigure, float]]]


def _middle(devices: Sequence[tuple[NodeFigure, float]]) -> float:
    return stats.median([log for _, log in devices])


def _slow_nodes(figures: Groups, level: float) -> dict[str, list[SlowDevice]]:
    """The nodes that are slow beside the others, by all figures of their model together and by each of them, in so
    many of the sound fleets by either.

    Where most of the devices are slow the node is named, as WHOLE; else the devices are.
    """
    by_model: dict[str, dict[str, Away]] = defaultdict(dict)
    for (model, label, _), members in figures.items():
        of_hosts = _by_host(members)
        if len(of_hosts) >= LEAST_NODES:
            by_model[model][label] = {
                host: [(figure, math.log(figure.rate)) for figure in own] for host, own in of_hosts.items()
            }
    slow: dict[str, list[SlowDevice]] = defaultdict(list)
    single = level / max(sum(map(len, by_model.values())), 1)
    for labels in by_model.values():
        away: dict[str, Away] = {}
        distances: dict[str, list[float]] = defaultdict(list)
        for label, by_host in labels.items():
            medians = {host: _middle(devices) for host, devices in by_host.items()}
            low = lowest(medians, single)
            centre = stats.median([log for host, log in medians.items() if host not in low])
            away[label] = {host: [(one, log - centre) for one, log in devices] for host, devices in by_host.items()}
            for host, median in medians.items():
                distances[host].append(_middle(away[label][host]))
                if host in low and median - centre <= math.log(_NEAR):
                    slow[host] += _named(label, away[label][host])
        # The mean distance over the figures, of nodes that have half of them: two speeds part a figure.
        together = {host: sum(own) / len(own) for host, own in distances.items() if 2 * len(own) >= len(away)}
        for host in lowest(together, level / len(by_model)) if len(labels) > 1 else ():
            if math.exp(together[host]) <= _NEAR and host not in slow:
                label = min(
                    (label for label in away if host in away[label]), key=lambda name: _middle(away[name][host])
                )
                slow[host] += _named(label, away[label][host])
    return slow


def _named(label: str, away: Sequence[tuple[NodeFigure, float]]) -> list[SlowDevice]:
    """The node where most of its devices are slow in this figure, else its devices that are."""
    low = [(one, math.exp(log)) for one, log in away if math.exp(log) <= _NEAR]
    certain = not any(DISTURBED.intersection(one.flags) for one, _ in low)
    if len(low) >= LEAST_SLOW and 2 * len(low) > len(away):
        rate = stats.median([one.rate for one, _ in away])
        whole = _slow(low[0][0], label, math.exp(_middle(away)))
        return [replace(whole, device=WHOLE, rate=rate, certain=certain)]
    return [_slow(one, label, ratio) for one, ratio in low]


def _in_modes(
    whole: Groups, nodes: Mapping[str, NodeDocument]
) -> tuple[Groups, dict[str, tuple[str, str]], list[Finding]]:
    """The groups, those of two modes parted; why each node of a slower mode is slower, and what to do; and a finding
    for each split.

    A slower mode of few nodes without a setting that explains it is left among the others: they may be bad.
    """
    figures: Groups = {}
    modes: dict[str, tuple[str, str]] = {}
    told: list[Finding] = []
    for (model, label, unit), members in whole.items():
        by_host = _by_host(members)
        values = {host: stats.median([math.log(one.rate) for one in own]) for host, own in by_host.items()}
        slower = set(slower_mode(values))
        setting = _setting(slower, values, nodes) if slower else ""
        if not slower or (not setting and len(slower) <= most_low(len(values))):
            figures[model, label, unit] = members
            continue
        sides = [[one for one in members if (one[0] in slower) is is_slower] for is_slower in (False, True)]
        centres = [stats.median([values[host] for host in {host for host, _ in side}]) for side in sides]
        for side, name in zip(sides, ("faster", "slower"), strict=True):
            figures[model, f"{label} ({name} nodes)", unit] = side
        share = math.exp(centres[1] - centres[0])
        why = f": {setting}" if setting else ""
        fix = "give all nodes the same settings, then check again"
        if not setting:
            fix = "no setting explains it: look for what these nodes share (rack, cooling, power), then check again"
        for host in slower:
            modes.setdefault(host, (f"one of {len(slower)} nodes at {share:.2f} of the others in {label}{why}", fix))
        title = f"two speeds in {label}: {len(slower)} of {nodes_text(len(values))} reach {share:.2f} of the others"
        names = tuple(sorted(slower))
        evidence = {"nodes": list(names), "ratio": share}
        told.append(Finding("fleet.modes", "inconclusive", title, setting or few(names), evidence, fix))
    return figures, modes, told[:MOST_KINDS]


# Of the settings that explain two speeds those first that set one.
_SPEED_SETTINGS = ("power limit", "application clock", "highest clock", "MIG", "ECC", "driver")


def _setting(slower: set[str], hosts: Iterable[str], nodes: Mapping[str, NodeDocument]) -> str:
    """The setting that nearly all slower nodes share and nearly no other has; empty where none is."""

    def values(side: Iterable[str], key: str) -> Counter[str]:
        return Counter(nodes[host].settings.get(key, "unknown") for host in side)

    def rank(key: str) -> int:
        return next((place for place, begin in enumerate(_SPEED_SETTINGS) if key.startswith(begin)), 9)

    faster = [host for host in hosts if host not in slower]
    for key in sorted(sorted({key for host in slower for key in nodes[host].settings}), key=rank):
        others = values(faster, key)
        value, many = values(slower, key).most_common(1)[0]
        if many >= 0.9 * len(slower) and others[value] <= 0.1 * len(faster):
            return f"{key} {value}, the others {others.most_common(1)[0][0]}"
    return ""


Groups = dict[tuple[str, str, str], list[tuple[str, NodeFigure]]]


def _grouped(nodes: Mapping[str, NodeDocument]) -> tuple[Groups, list[tuple[str, SlowDevice]], set[str]]:
    """The figures by model, name and unit; the devices below their floor; the nodes with an impossible rate."""
    figures: Groups = defaultdict(list)
    floors: list[tuple[str, SlowDevice]] = []
    impossible: set[str] = set()
    for host, document in nodes.items():
        devices = {device.id: device for device in document.devices}
        for one in document.figures:
            device = devices[one.device]
            part = (device.name, device.compute_capability, device.multiprocessors, device.memory_bus_width_bits)
            peak = _peak(part, one.name, one.case.partition(" ")[0], one.unit)
            if peak is not None and one.rate > CEILING * peak:
                impossible.add(host)
                continue
            label = f"{one.name} {one.case}".strip()
            figures[device.name, label, one.unit].append((host, one))
            if peak is not None and one.rate < FLOOR * peak:
                floors.append((host, _slow(one, label, one.rate / peak, "peak")))
    return figures, floors, impossible


@functools.lru_cache(1024)  # many nodes have the same devices
def _peak(device: tuple[str, str | None, int | None, int | None], figure: str, dtype: str, unit: str) -> float | None:
    """The peak of what a figure measures, None where it is not known or is only an estimate.

    `device` is its name, its compute capability, its multiprocessors and the width of its bus.
    """
    name, capability, multiprocessors, bus = device
    numbers = (capability or "").split(".")
    if len(numbers) != 2 or not all(one.isascii() and one.isdigit() and len(one) < 4 for one in numbers):
        return None
    part = peaks.lookup(name, (int(numbers[0]), int(numbers[1])), multiprocessors, bus)
    if isinstance(part, peaks.Unknown) or part.kind != "data sheet":
        return None
    if figure == "bandwidth" and unit == "B/s":
        return part.memory_bytes_per_s
    peak = part.peak(dtype) if figure == "matmul" else None
    return None if peak is None else peak.flop_per_s


def slow_text(slow: Sequence[SlowDevice]) -> str:
    worst = worst_of(slow)
    more = len({one.device for one in slow}) - 1
    if worst.device == WHOLE:
        figures = len({one.figure for one in slow if one.device == WHOLE}) - 1
        others = f" and {figures} more figure{'s' * (figures != 1)}" if figures else ""
        return f"the whole node reaches {worst.ratio:.2f} of the other nodes: {worst.figure}{others}"
    beside = "of its siblings" if worst.against == "siblings" else "of the part's peak"
    interval = f" ({worst.low:.2f} to {worst.high:.2f})" if worst.low is not None and worst.high is not None else ""
    others = f"; {more} more device{'s' * (more != 1)}" if more else ""
    return f"{worst.device} reaches {worst.ratio:.2f}{interval} {beside}: {worst.figure}{others}"


def worst_of(slow: Sequence[SlowDevice]) -> SlowDevice:
    """Return what is said of a slow node: that it is one, else its slowest device."""
    return min(slow, key=lambda one: (one.device != WHOLE, one.ratio))
