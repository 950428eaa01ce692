"""Each device beside its siblings: the others of its model, on its own node and on other nodes. Pure.

Devices of one node share its power, heat and links, so nodes are what is counted and not devices. Rates are compared by
their logarithms. A device is held against the median of the other devices of its node, in spreads from a median
absolute deviation (Rousseeuw and Croux 1993) over all nodes; where a node has few devices, against the median of the
nodes. The threshold is Student's t at a level that is shared among all devices and figures of the fleet (Bonferroni),
so that an even fleet has no slow device. A slow device is far below its node and below the other nodes: one that is as
fast as its node is not slow, its node may be. Nodes are held against each other below (`lowest`).
`benchmarks/fleet_power.py` proves both by simulation.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections import defaultdict
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
# Even fleets of which one may have a device that is called slow.
EVEN_FLEETS = 1000
# The same for a device that is worth another look.
EVEN_FLEETS_MAYBE = 20
# The median of fewer devices of a node is mostly the device itself.
LEAST_DEVICES = 4
# Fewer nodes with a model say nothing about one of them.
LEAST_NODES = 5
# A device nearer than this to its siblings is no reason to drain a node, however certain it is.
LEAST_DISTANCE = 0.03

Standing = Literal["even", "maybe", "slow"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A device beside its siblings: `ratio` of its rate to theirs. `maybe` is far below and not certain."""

    ratio: float
    standing: Standing


def place(figures: Sequence[tuple[str, NodeFigure]], comparisons: int) -> tuple[float, float, tuple[Placed, ...]]:
    """The centre in the unit of the rates, the relative spread, and every device of a model, each with its node, beside
    the others: none where there are fewer than LEAST_NODES nodes. `comparisons` is how many devices × figures the whole
    fleet has.

    Raises ValueError for no figures and for a rate that is not positive.
    """
    logs = [math.log(figure.rate) for _, figure in figures]
    by_node: dict[str, list[int]] = defaultdict(list)
    for index, (node, _) in enumerate(figures):
        by_node[node].append(index)
    centre = stats.median([stats.median([logs[index] for index in own]) for own in by_node.values()])
    from_centre = [log - centre for log in logs]
    # From a median that has the value itself in it one of three is no distance at all: such a spread is too small.
    from_own = {
        index: logs[index] - stats.median([logs[other] for other in own if other != index])
        for own in by_node.values()
        if len(own) >= LEAST_DEVICES
        for index in own
    }
    spread = _spread(from_centre)
    if len(by_node) < LEAST_NODES:
        return math.exp(centre), spread, ()
    count = max(comparisons, len(figures))
    in_fleet = _thresholds(spread, len(by_node) - 1, count)
    in_node = _thresholds(_spread(from_own.values()), len(from_own) - len(by_node), count)
    placed = []
    for index, distance in enumerate(from_centre):
        certain, maybe = in_node if index in from_own else in_fleet
        below = from_own.get(index, distance)
        standing: Standing = "even"
        if _is_low(max(distance, below)):
            standing = "slow" if -below > certain else "maybe" if -below > maybe else "even"
        placed.append(Placed(math.exp(distance), standing))
    return math.exp(centre), spread, tuple(placed)


def _is_low(distance: float) -> bool:
    """Return whether a distance of logarithms is far enough to matter."""
    return distance <= math.log(1 - LEAST_DISTANCE)


def _spread(distances: Iterable[float]) -> float:
    """The spread of distances from a median."""
    sizes = [abs(distance) for distance in distances]
    return _NORMAL * stats.median(sizes) if sizes else 0.0


def _thresholds(spread: float, free: int, count: int) -> tuple[float, float]:
    """The distances beyond which a device is certainly slow, and worth another look, by chance among `count`.

    `free` is how many values the spread was made of, less those that it is about.
    """
    freedom = max(_EFFICIENCY * free, 1.0)
    levels = (1 - 2 / (fleets * count) for fleets in (EVEN_FLEETS, EVEN_FLEETS_MAYBE))
    certain, maybe = (spread * stats.student_quantile(level, freedom) for level in levels)
    return certain, maybe


# -- whole nodes -------------------------------------------------------------------------------------------------------

# The share of sound fleets that may have a node that is called slow: by all figures together, and by single ones.
NODE_LEVEL = 0.004
# The same for a node that is worth another look: with its devices, one sound fleet in 10 is the most in all.
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
    cuts = range(least, len(order) - least + 1)
    if not cuts:
        return ()
    cut = max(cuts, key=lambda at: ordered[at] - ordered[at - 1])
    gap, sides = ordered[cut] - ordered[cut - 1], (ordered[:cut], ordered[cut:])
    # The deviation within few nodes is known badly: half of 2 000 sound fleets of 6 that split did so by that.
    freedom = (len(order) - 2) ** 2 / len(order)
    within = math.sqrt(sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom)
    return tuple(order[:cut]) if gap >= MODE_GAP * within and _is_low(-gap) else ()


# -- a fleet: every node and device in every figure -------------------------------------------------------------------

# A sound device reaches 60 to 95 % of its part's peak with products and cold copies of usual sizes; below half of it
# something is wrong, whatever its siblings do.
FLOOR = 0.5
# A rate above this share of the peak was not measured: clocks and data sheets are a few percent off.
CEILING = 1.15
# Remarks on a row that say that the figure is low for a cause outside the device.
DISTURBED = frozenset(("cpu-busy", "device-shared", "few-samples", "noisy"))
# The screen and the JSON hold so many kinds of differences; an attack must not make more.
MOST_KINDS = 20
# How a slow node stands among its slow devices.
WHOLE = "all devices"
# A node is slow, and not one of its devices, where so many of them and most of them are.
LEAST_SLOW = 3
# A node of three or four of a model is far below the others if it has no more than this of the lowest of them, and
# these are within `AGREE` of each other: half of the speed is seen, and what few nodes vary by is not.
FAR_BELOW, AGREE = 0.7, 0.85

# The rates of a node's devices in one figure, by host; and these by model, label and unit.
ByHost = dict[str, list[NodeFigure]]
Groups = dict[tuple[str, str, str], ByHost]
# Why a node is undecided, and what to do.
Doubt = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Beside:
    """The result of the comparison: slow devices and nodes by host, the groups, the ratios by host, findings, the hosts
    whose every device was compared with other nodes, and why hosts are in doubt: in the slower of two modes, far below
    the few others of their model, or without a figure that their siblings have."""

    slow: Mapping[str, Sequence[SlowDevice]]
    groups: Sequence[FleetGroup]
    ratios: Mapping[str, dict[str, float]]
    findings: Sequence[Finding]
    compared: frozenset[str]
    modes: Mapping[str, Doubt]
    far: Mapping[str, Doubt]
    unmeasured: Mapping[str, Doubt]


def beside_siblings(nodes: Mapping[str, NodeDocument]) -> Beside:
    """Every node and device in every figure: against its siblings, and against its part's peak."""
    whole, floors, impossible = _grouped(nodes)
    figures, modes, findings = _in_modes(whole)
    compared = {key: by_host for key, by_host in figures.items() if len(by_host) >= LEAST_NODES}
    measured = {(host, figure.device) for group in compared.values() for host, own in group.items() for figure in own}
    comparisons = sum(len(own) for by_host in compared.values() for own in by_host.values())
    slow = _slow_nodes(compared, NODE_LEVEL)
    for host, devices in _slow_nodes(compared, NODE_LEVEL_MAYBE).items():
        if host not in slow:
            slow[host] = [replace(device, certain=False) for device in devices]
    as_a_whole = {host for host, own in slow.items() if any(row.device == WHOLE and row.certain for row in own)}
    groups: list[FleetGroup] = []
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for key, by_host in figures.items():
        label = key[1]
        members = [(host, figure) for host, own in by_host.items() for figure in own]
        centre, spread, placed = place(members, comparisons)
        for host, own in by_host.items():  # a node may have two models, each with this figure
            lowest_rate = min(figure.rate for figure in own)
            ratios[host][label] = min(round(lowest_rate / centre, 4), ratios[host].get(label, math.inf))
        beside = [] if key in compared else _slow_within(by_host, len(figures), label)
        for standing, (host, figure) in zip(placed, members, strict=False):
            # A node that is slow as a whole is one fault, not as many as it has devices.
            if standing.standing != "even" and host not in as_a_whole:
                device = _slow(figure, label, standing.ratio)
                beside.append((host, replace(device, certain=device.certain and standing.standing == "slow")))
        for host, device in beside:
            same = [known for known in slow[host] if (known.device, known.figure) == (device.device, device.figure)]
            if device.certain or not same:
                slow[host] = [device, *(known for known in slow[host] if known not in same)]
        count = sum(device.figure == label and device.certain for host in by_host for device in slow[host])
        groups.append(FleetGroup(*key, len(by_host), len(members), centre, spread, count, judged=key in compared))
    for host, device in floors:
        slow[host].append(device)
    if alone := sorted({group.model for group in groups if not group.judged}):
        title = f"fewer than {LEAST_NODES} nodes of a model: nodes are not compared"
        findings.append(Finding("fleet.siblings", "info", title, few(alone)))
    if impossible:
        title, names = "rates above the GPU's peak were left out", sorted(impossible)
        findings.append(Finding("fleet.impossible", "warn", title, few(names), {"nodes": names}))
    hosts_compared = frozenset(
        host
        for host, document in nodes.items()
        if document.devices and all((host, id) in measured for id in _gpus(document))
    )
    far, unmeasured = _far_below(whole), _unmeasured(nodes, whole)
    return Beside(slow, groups, ratios, findings, hosts_compared, modes, far, unmeasured)


def _gpus(document: NodeDocument) -> dict[str, str]:
    """The model of each GPU; of a node without any, of its other devices."""
    models = {device.id: device.name for device in document.devices}
    return {id: model for id, model in models.items() if id != "cpu"} or models


def _unmeasured(nodes: Mapping[str, NodeDocument], figures: Groups) -> dict[str, Doubt]:
    """Return what is missing on each node whose check passed, with the command that measures it.

    A figure is due where at least half of a model's devices have it: one node that was asked for more, or a forged
    document, makes no other node lack anything.
    """
    devices: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for host, document in nodes.items():
        for id, model in _gpus(document).items() if document.exit == errors.OK else ():
            devices[model].add((host, id))
    lacking: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (model, label, _), by_host in figures.items():
        lack = devices[model] - {(host, figure.device) for host, own in by_host.items() for figure in own}
        if lack != devices[model] and 2 * len(lack) <= len(devices[model]):
            for host, id in sorted(lack):
                lacking[host].append((id, label))
    doubts = {}
    for host, missing in lacking.items():
        where, labels = (list(dict.fromkeys(names)) for names in zip(*missing, strict=True))
        fix = f"on {host}: gpucheck bench {labels[0].partition(' ')[0]} --device {'all' if where[1:] else where[0]}"
        doubts[host] = f"not measured on {few(where, 3)}: {few(labels, 1)}", fix
    return doubts


def _slow(
    figure: NodeFigure, label: str, ratio: float, against: Literal["siblings", "peak"] = "siblings"
) -> SlowDevice:
    certain = not DISTURBED.intersection(figure.flags)
    return SlowDevice(figure.device, label, figure.rate, figure.unit, ratio, against, certain)


def _slow_within(by_host: ByHost, figures: int, label: str) -> list[tuple[str, SlowDevice]]:
    """Devices that are slow beside the others of their own node, where there are too few nodes to compare."""
    slow: list[tuple[str, SlowDevice]] = []
    for host, own in by_host.items():
        devices = {figure.device: figure for figure in own}
        logs = {id: math.log(figure.rate) for id, figure in devices.items()}
        low = lowest(logs, 1 / (EVEN_FLEETS * len(by_host) * figures))
        centre = stats.median([log for id, log in logs.items() if id not in low])
        away = {id: logs[id] - centre for id in low}
        slow += [(host, _slow(devices[id], label, math.exp(log))) for id, log in away.items() if _is_low(log)]
    return slow


def _far_below(figures: Groups) -> dict[str, Doubt]:
    """Nodes with a device far below the two or three other nodes of its model, and what to do: too few to call it bad.

    A node's own slowest device counts: one link of several may be slow.
    """
    far = []
    for (_, label, _), by_host in figures.items():
        if 3 <= len(by_host) < LEAST_NODES:
            slowest = {host: min(own, key=lambda figure: figure.rate) for host, own in by_host.items()}
            host = min(slowest, key=lambda name: slowest[name].rate)
            low, others = slowest.pop(host), [figure.rate for figure in slowest.values()]
            is_far = low.rate <= FAR_BELOW * min(others) and min(others) >= AGREE * max(others)
            if is_far and not DISTURBED.intersection(low.flags):
                far.append((low.rate / min(others), label, low.device, host, "two" if len(others) == 2 else "three"))
    return {
        host: (
            f"{device} far below the other {count}: {ratio:.2f} of them in {label}",
            f"on {host}: gpucheck bench {label.partition(' ')[0]} --device all",
        )
        for ratio, label, device, host, count in sorted(far, reverse=True)  # of a node the lowest comes last, and stays
    }


def _log_rate(own: Sequence[NodeFigure]) -> float:
    """The logarithm of a node's rate: the median of its devices."""
    return stats.median([math.log(figure.rate) for figure in own])


def _slow_nodes(figures: Groups, level: float) -> dict[str, list[SlowDevice]]:
    """The nodes that are slow beside the others, by all figures of their model together and by each of them, in so
    many of the sound fleets by either.

    Where most of the devices are slow the node is named, as WHOLE; else the devices are.
    """
    by_model: dict[str, dict[str, ByHost]] = defaultdict(dict)
    for (model, label, _), by_host in figures.items():
        by_model[model][label] = by_host
    slow: dict[str, list[SlowDevice]] = defaultdict(list)
    for labels in by_model.values():
        centres: dict[str, float] = {}
        distances: dict[str, dict[str, float]] = defaultdict(dict)
        for label, by_host in labels.items():
            logs = {host: _log_rate(own) for host, own in by_host.items()}
            low = lowest(logs, level / len(figures))
            centres[label] = stats.median([log for host, log in logs.items() if host not in low])
            for host, log in logs.items():
                distances[host][label] = log - centres[label]
                if host in low and _is_low(distances[host][label]):
                    slow[host] += _named(label, by_host[host], centres[label])
        # The mean distance over the figures, of nodes that have half of them: two speeds part a figure.
        together = {
            host: statistics.fmean(own.values()) for host, own in distances.items() if 2 * len(own) >= len(labels)
        }
        for host in lowest(together, level / len(by_model)) if len(labels) > 1 else ():
            if _is_low(together[host]) and host not in slow:
                label = min(distances[host], key=distances[host].__getitem__)
                slow[host] += _named(label, labels[label][host], centres[label])
    return slow


def _named(label: str, own: Sequence[NodeFigure], centre: float) -> list[SlowDevice]:
    """The node where most of its devices are slow in this figure, else its devices that are."""
    logs = [math.log(figure.rate) - centre for figure in own]
    devices = [_slow(figure, label, math.exp(log)) for figure, log in zip(own, logs, strict=True) if _is_low(log)]
    if len(devices) < LEAST_SLOW or 2 * len(devices) <= len(own):
        return devices
    rate, certain = stats.median([figure.rate for figure in own]), all(device.certain for device in devices)
    return [replace(devices[0], device=WHOLE, rate=rate, ratio=math.exp(stats.median(logs)), certain=certain)]


def _in_modes(whole: Groups) -> tuple[Groups, dict[str, Doubt], list[Finding]]:
    """The groups, those of two modes parted; why each node of a slower mode is slower, and what to do; and a finding
    for each split.

    A slower mode of few nodes is left among the others: they may be bad.
    """
    figures: Groups = {}
    modes: dict[str, Doubt] = {}
    findings: list[Finding] = []
    fix = "compare what these nodes share with the others (settings, rack, cooling, power), then check again"
    for (model, label, unit), by_host in whole.items():
        logs = {host: _log_rate(own) for host, own in by_host.items()}
        slower = sorted(slower_mode(logs))
        if len(slower) <= most_low(len(logs)):
            figures[model, label, unit] = by_host
            continue
        faster = [host for host in by_host if host not in slower]
        for word, side in (("faster", faster), ("slower", slower)):
            figures[model, f"{label} ({word} nodes)", unit] = {host: by_host[host] for host in side}
        fast, slow = (stats.median([logs[host] for host in side]) for side in (faster, slower))
        share = math.exp(slow - fast)
        for host in slower:
            modes.setdefault(host, (f"one of {len(slower)} nodes at {share:.2f} of the others in {label}", fix))
        title = f"two speeds in {label}: {len(slower)} of {nodes_text(len(logs))} reach {share:.2f} of the others"
        evidence = {"nodes": slower, "ratio": share}
        findings.append(Finding("fleet.modes", "inconclusive", title, few(slower), evidence, fix))
    return figures, modes, findings[:MOST_KINDS]


def _grouped(nodes: Mapping[str, NodeDocument]) -> tuple[Groups, list[tuple[str, SlowDevice]], set[str]]:
    """The figures by model, name and unit; the devices below their floor; the nodes with an impossible rate."""
    figures: Groups = defaultdict(dict)
    floors: list[tuple[str, SlowDevice]] = []
    impossible: set[str] = set()
    for host, document in nodes.items():
        devices = {device.id: device for device in document.devices}
        for figure in document.figures:
            device = devices[figure.device]
            part = (device.name, device.compute_capability, device.multiprocessors, device.memory_bus_width_bits)
            peak = _peak(part, figure.name, figure.case.partition(" ")[0], figure.unit)
            if peak is not None and figure.rate > CEILING * peak:
                impossible.add(host)
                continue
            label = f"{figure.name} {figure.case}".strip()
            figures[device.name, label, figure.unit].setdefault(host, []).append(figure)
            if peak is not None and figure.rate < FLOOR * peak:
                floors.append((host, _slow(figure, label, figure.rate / peak, "peak")))
    return figures, floors, impossible


@functools.lru_cache(1024)  # many nodes have the same devices
def _peak(device: tuple[str, str | None, int | None, int | None], figure: str, dtype: str, unit: str) -> float | None:
    """The peak of what a figure measures, None where it is not known or is only an estimate.

    `device` is its name, its compute capability, its multiprocessors and the width of its bus.
    """
    name, capability, multiprocessors, bus = device
    numbers = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", capability or "", re.ASCII)
    if numbers is None:
        return None
    part = peaks.lookup(name, (int(numbers[1]), int(numbers[2])), multiprocessors, bus)
    if isinstance(part, peaks.Unknown) or part.kind != "data sheet":
        return None
    if figure == "bandwidth" and unit == "B/s":
        return part.memory_bytes_per_s
    peak = part.peak(dtype) if figure == "matmul" else None
    return None if peak is None else peak.flop_per_s


def slow_text(slow: Sequence[SlowDevice]) -> str:
    worst = worst_of(slow)
    more = len({device.device for device in slow}) - 1
    if worst.device == WHOLE:
        figures = len({device.figure for device in slow if device.device == WHOLE}) - 1
        others = f" and {figures} more figure{'s' * (figures != 1)}" if figures else ""
        return f"the whole node reaches {worst.ratio:.2f} of the other nodes: {worst.figure}{others}"
    beside = "of its siblings" if worst.against == "siblings" else "of the part's peak"
    others = f"; {more} more device{'s' * (more != 1)}" if more else ""
    return f"{worst.device} reaches {worst.ratio:.2f} {beside}: {worst.figure}{others}"


def worst_of(slow: Sequence[SlowDevice]) -> SlowDevice:
    """Return what is said of a slow node: that it is one, else its slowest device."""
    return min(slow, key=lambda device: (device.device != WHOLE, device.ratio))
