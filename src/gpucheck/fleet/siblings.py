"""Compare each device with its siblings: the others of its model, on its own node and on other nodes. Pure.

Devices of one node share power, heat and links, so the sample size is the number of nodes and not of devices. Rates are
compared by their logarithms. A device is compared with the median of its node's other devices, or with the median of
the nodes if its node has few devices.

One test finds slow devices and slow nodes: `lowest`, Rosner's procedure, whose level is divided among all values and
figures of the fleet (Bonferroni), so that a device of a sound fleet (without slow devices) is almost never reported as
slow. A slow device is far below its node and also below the other nodes. `benchmarks/fleet_power.py` checks both by
simulation.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpucheck import errors, peaks, stats
from gpucheck.fleet.hosts import few, nodes_text
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.results.fleet import FleetGroup, NodeDocument, NodeFigure, SlowDevice

# The standard deviation of a normal distribution, in median absolute deviations (MAD).
_NORMAL = 1.4826
# Of this many fleets without a slow device, at most one may have a device reported as slow, or as possibly slow.
EVEN_FLEETS, EVEN_FLEETS_MAYBE = 1000, 20
# `lowest` tests several values, so its error rate exceeds its level by up to half, by simulation.
ERROR_RATE_FACTOR = 1.5
# With fewer devices on a node, the median of a device's neighbours depends too much on a single one of them.
LEAST_DEVICES = 4
# A comparison needs this many nodes of a model, because fewer do not show which one is slow.
LEAST_NODES = 5
# A device this close to its siblings is no reason to drain a node, even if the difference is certain.
LEAST_DISTANCE = 0.03

Named = TypeVar("Named", str, int)


def slow_devices(
    members: Sequence[tuple[str, NodeFigure]], figures: int, label: str = ""
) -> tuple[float, float, dict[int, SlowDevice]]:
    """Return the centre (as a rate), the relative spread, and the slow devices of a model by their index.

    `members` are pairs of a node's name and the figure of one of its devices, and `label` is the figure's name.
    `figures` is the number of figures in the whole fleet. With fewer than LEAST_NODES nodes, devices are compared
    within their node only. Raises ValueError without members, or for a rate that is not positive.
    """
    logs = [math.log(figure.rate) for _, figure in members]
    by_node = runs.group_by(lambda index: members[index][0], range(len(members)))
    centre = stats.median([stats.median([logs[index] for index in own]) for own in by_node.values()])
    from_centre = {index: log - centre for index, log in enumerate(logs)}
    # A device is left out of the median it is compared with, because it would pull that median towards itself.
    in_node = {
        index: logs[index] - stats.median([logs[other] for other in own if other != index])
        for own in by_node.values()
        if len(own) >= LEAST_DEVICES
        for index in own
    }
    in_fleet = {index: log for index, log in from_centre.items() if index not in in_node}
    is_fleet = len(by_node) >= LEAST_NODES
    # Some nodes vary more than others. Few nodes do not show how much, so the values of a node are tested alone.
    tested = [in_fleet, in_node] if is_fleet else [{index: logs[index] for index in own} for own in by_node.values()]
    tests = ERROR_RATE_FACTOR * figures * (1 if is_fleet else len(by_node))
    placed: dict[int, SlowDevice] = {}
    for values in tested:
        for fleets, certain in ((EVEN_FLEETS_MAYBE, False), (EVEN_FLEETS, True)):
            for index in lowest(values, 1 / (fleets * tests)):
                below = in_node.get(index, from_centre[index])
                if _is_low(max(below, from_centre[index]) if is_fleet else below):
                    ratio = math.exp(from_centre[index] if is_fleet else below)
                    placed[index] = _slow(members[index][1], label, ratio, certain)
    return math.exp(centre), _NORMAL * stats.median([abs(distance) for distance in from_centre.values()]), placed


def _is_low(distance: float) -> bool:
    """Return whether a difference of logarithms is large enough to matter."""
    return distance <= math.log(1 - LEAST_DISTANCE)


# -- whole nodes -------------------------------------------------------------------------------------------------------

# The share of sound fleets in which each of the two tests (all figures together, single figures) may report a node as
# slow, and as possibly slow. At most one sound fleet in 10 has a possibly slow node or device.
NODE_LEVEL, NODE_LEVEL_MAYBE = 0.004, 0.03
# The fewest nodes and their share on each side of two modes, and the gap in standard deviations within the sides.
MODE_NODES, MODE_SHARE, MODE_GAP = 3, 0.1, 5.0


@functools.cache
def node_threshold(nodes: int, level: float) -> float:
    """Return the t beyond which the lowest of `nodes` values is an outlier in at most `level` of the sound fleets.

    It is that of the extreme studentised deviate (Grubbs 1969; Rosner 1983): one-sided Student's t with n - 2 degrees
    of freedom, with the level divided by n (Bonferroni). Raises ValueError below 3 nodes.
    """
    return stats.student_quantile(1 - 2 * level / nodes, nodes - 2)


def lowest(values: Mapping[Named, float], level: float) -> tuple[Named, ...]:
    """Return the names whose values are outliers below the others, lowest first: at most a quarter of them, or one.

    Each value is compared with the mean of the values above it, in units of s * sqrt(1 + 1/(n - 1)) (leave-one-out t).
    The last value beyond its threshold and all lower ones count, as in Rosner's generalised procedure (1983), so that
    two bad nodes do not hide each other. The result is empty with fewer than LEAST_NODES values.
    """
    order = sorted(values, key=values.__getitem__)
    steps = most_low(len(order)) if len(order) >= LEAST_NODES else 0
    # The mean and the sum of squares of the values above are updated from the highest value down (Welford 1962), so the
    # first value beyond its threshold is the last one of Rosner's procedure.
    mean = squares = 0.0
    for above, name in enumerate(reversed(order)):
        distance, left = mean - values[name], len(order) - above
        if left <= steps:
            scale = math.sqrt(squares / (above - 1) * (1 + 1 / above))
            # No threshold is below 2.5, and computing one takes far longer than a comparison.
            if distance > 2.5 * scale and distance > node_threshold(above + 1, level) * scale:
                return tuple(order[:left])
        mean -= distance / (above + 1)
        squares += distance**2 * above / (above + 1)
    return ()


def most_low(nodes: int) -> int:
    """Return the largest number of nodes that may be low. It is not clear which nodes are sound if there are more."""
    return max(1, nodes // 4)


def slower_mode(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names in the slower of two modes, or nothing if there is one mode; `values` are logarithms.

    The split is at the widest gap that leaves enough values on both sides. The gap must exceed MODE_GAP standard
    deviations within the sides, and LEAST_DISTANCE.
    """
    order = sorted(values, key=values.__getitem__)
    ordered = [values[name] for name in order]
    least = max(MODE_NODES, math.ceil(MODE_SHARE * len(order)))
    cuts = range(least, len(order) - least + 1)
    if not cuts:
        return ()
    cut = max(cuts, key=lambda at: ordered[at] - ordered[at - 1])
    gap, sides = ordered[cut] - ordered[cut - 1], (ordered[:cut], ordered[cut:])
    # The deviation is uncertain with few nodes. Without this correction, twice as many of 2 000 sound fleets of 6 nodes
    # were split into two modes.
    freedom = (len(order) - 2) ** 2 / len(order)
    within = math.sqrt(sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom)
    return tuple(order[:cut]) if gap >= MODE_GAP * within and _is_low(-gap) else ()


# -- a fleet: every node and device in every figure -------------------------------------------------------------------

# A device below this share of its model's peak is slow. A sound device reaches 60 to 95 % of it with matrix products
# and cold copies of usual sizes.
FLOOR = 0.5
# A rate above this share of the peak is a wrong measurement. Clocks and data sheets differ by a few percent only.
CEILING = 1.15
# Flags for a low figure whose cause lies outside the device.
DISTURBED = frozenset(("cpu-busy", "device-shared", "few-samples", "noisy"))
# The most findings about two speeds, and the most about settings that differ. A forged document cannot create more.
MOST_KINDS = 20
# The device name of a slow node in the list of slow devices.
WHOLE = "all devices"
# The node is reported, instead of its devices, if at least this many and most of its devices are slow.
LEAST_SLOW = 3
# One of three or four nodes of a model is far below if its rate is at most FAR_BELOW of the lowest other node, and the
# others agree within AGREE. That detects half the speed, and ignores the usual variation of few nodes.
FAR_BELOW, AGREE = 0.7, 0.85

# A figure's rates on each node, by host. Groups have these by model, label and unit.
ByHost = dict[str, list[NodeFigure]]
Groups = dict[tuple[str, str, str], ByHost]
# The reason why a node is undecided, and the fix.
Doubt = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SiblingComparison:
    """The result of the comparison.

    `slow` has slow devices and nodes by host, and `ratios` each figure relative to the centre. `compared` are the hosts
    of which every device was compared with other nodes. `modes`, `far` and `unmeasured` are hosts in doubt: in the
    slower of two modes, far below the few others of their model, or without a figure that their siblings have.
    """

    slow: Mapping[str, Sequence[SlowDevice]]
    groups: Sequence[FleetGroup]
    ratios: Mapping[str, dict[str, float]]
    findings: Sequence[Finding]
    compared: frozenset[str]
    modes: Mapping[str, Doubt]
    far: Mapping[str, Doubt]
    unmeasured: Mapping[str, Doubt]


def compare_siblings(nodes: Mapping[str, NodeDocument]) -> SiblingComparison:
    """Compare every node and device in every figure with its siblings and with its part's peak."""
    whole, floors, impossible = _grouped(nodes)
    figures, modes, findings = _in_modes(whole)
    compared = {key: by_host for key, by_host in figures.items() if len(by_host) >= LEAST_NODES}
    measured = {(host, figure.device) for group in compared.values() for host, own in group.items() for figure in own}
    slow = {
        host: [replace(device, certain=False) for device in devices]
        for host, devices in _slow_nodes(compared, NODE_LEVEL_MAYBE).items()
    }
    slow = defaultdict(list, slow | _slow_nodes(compared, NODE_LEVEL))
    as_a_whole = {host for host, own in slow.items() if any(row.device == WHOLE and row.certain for row in own)}
    groups: list[FleetGroup] = []
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for key, by_host in figures.items():
        label = key[1]
        members = [(host, figure) for host, own in by_host.items() for figure in own]
        centre, spread, placed = slow_devices(members, len(figures), label)
        for host, own in by_host.items():  # A node may have two models with the same figure.
            lowest_rate = min(figure.rate for figure in own)
            ratios[host][label] = min(round(lowest_rate / centre, 4), ratios[host].get(label, math.inf))
        for index, device in placed.items():
            host, _ = members[index]
            # A slow node is one fault, so its devices are not reported separately.
            if host in as_a_whole:
                continue
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
    gpus = {host: _gpus(document) for host, document in nodes.items()}
    whole_hosts = frozenset(host for host, own in gpus.items() if own and all((host, id) in measured for id in own))
    far, unmeasured = _far_below(whole), _unmeasured(nodes, whole)
    return SiblingComparison(slow, groups, ratios, findings, whole_hosts, modes, far, unmeasured)


def _gpus(document: NodeDocument) -> dict[str, str]:
    """Return the model of each GPU, or of the other devices on a node without a GPU."""
    models = {device.id: device.name for device in document.devices}
    return {id: model for id, model in models.items() if id != "cpu"} or models


def _unmeasured(nodes: Mapping[str, NodeDocument], figures: Groups) -> dict[str, Doubt]:
    """Return the figures missing on each node whose check passed, with the command that measures them.

    A figure is expected if at least half of a model's devices have it, so a single document does not affect others.
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
        fix = bench(host, labels[0], "all" if where[1:] else where[0])
        doubts[host] = f"not measured on {few(where, 3)}: {few(labels, 1)}", fix
    return doubts


def bench(host: str, label: str, device: str) -> str:
    """Return the command that measures a figure again."""
    return f"on {host}: gpucheck bench {label.partition(' ')[0]} --device {device}"


def _slow(figure: NodeFigure, label: str, ratio: float, certain: bool = True) -> SlowDevice:
    certain = certain and not DISTURBED.intersection(figure.flags)
    return SlowDevice(figure.device, label, figure.rate, figure.unit, ratio, "siblings", certain)


def _far_below(figures: Groups) -> dict[str, Doubt]:
    """Return nodes with a device far below the two or three other nodes of its model: too few to call it bad."""
    far: dict[str, tuple[float, Doubt]] = {}
    for (_, label, _), by_host in figures.items():
        if not 3 <= len(by_host) < LEAST_NODES:
            continue
        # A node counts with its slowest rate, because one of several links may be slow.
        slowest = [(host, min(own, key=lambda figure: figure.rate)) for host, own in by_host.items()]
        (host, low), *others = sorted(slowest, key=lambda row: row[1].rate)
        least, most = others[0][1].rate, others[-1][1].rate
        ratio, count = low.rate / least, "two" if len(others) == 2 else "three"
        is_far = ratio <= FAR_BELOW and least >= AGREE * most and not DISTURBED.intersection(low.flags)
        if is_far and (host not in far or ratio < far[host][0]):
            cause = f"{low.device} far below the other {count}: {ratio:.2f} of them in {label}"
            far[host] = ratio, (cause, bench(host, label, "all"))
    return {host: doubt for host, (_, doubt) in far.items()}


def _log_rate(own: Sequence[NodeFigure]) -> float:
    """Return the logarithm of a node's rate: the median of its devices."""
    return stats.median([math.log(figure.rate) for figure in own])


def _slow_nodes(figures: Groups, level: float) -> dict[str, list[SlowDevice]]:
    """Return the nodes that are slow compared with the others, by single figures or by all figures of their model.
    Each of the two tests has the level `level`."""
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
        # The mean distance over all figures. A figure with two modes counts as two, of which a node has only one, so
        # half of the figures are enough.
        together = {
            host: statistics.fmean(own.values()) for host, own in distances.items() if 2 * len(own) >= len(labels)
        }
        for host in lowest(together, level / len(by_model)) if len(labels) > 1 else ():
            if _is_low(together[host]) and host not in slow:
                label = min(distances[host], key=distances[host].__getitem__)
                slow[host] += _named(label, labels[label][host], centres[label])
    return slow


def _named(label: str, own: Sequence[NodeFigure], centre: float) -> list[SlowDevice]:
    """Return the node if most of its devices are slow in this figure, else its slow devices."""
    logs = [math.log(figure.rate) - centre for figure in own]
    devices = [_slow(figure, label, math.exp(log)) for figure, log in zip(own, logs, strict=True) if _is_low(log)]
    if len(devices) < LEAST_SLOW or 2 * len(devices) <= len(own):
        return devices
    rate, certain = stats.median([figure.rate for figure in own]), all(device.certain for device in devices)
    return [replace(devices[0], device=WHOLE, rate=rate, ratio=math.exp(stats.median(logs)), certain=certain)]


def _in_modes(whole: Groups) -> tuple[Groups, dict[str, Doubt], list[Finding]]:
    """Return the groups with two modes split, the doubt about each node in a slower mode, and a finding per split."""
    figures: Groups = {}
    modes: dict[str, Doubt] = {}
    findings: list[Finding] = []
    fix = "compare what these nodes share with the others (settings, rack, cooling, power), then check again"
    for (model, label, unit), by_host in whole.items():
        logs = {host: _log_rate(own) for host, own in by_host.items()}
        slower = sorted(slower_mode(logs))
        # If only a few nodes are slower, they may be bad nodes rather than a second mode.
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
    """Return the figures by model, label and unit, devices below their floor, and nodes with an impossible rate."""
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
                floors.append((host, replace(_slow(figure, label, figure.rate / peak), against="peak")))
    return figures, floors, impossible


@functools.lru_cache(1024)  # many nodes have the same devices
def _peak(device: tuple[str, str | None, int | None, int | None], figure: str, dtype: str, unit: str) -> float | None:
    """Return the peak for a figure; None if it is unknown or only an estimate."""
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
    if worst.device == WHOLE:
        text = f"the whole node reaches {worst.ratio:.2f} of the other nodes: {worst.figure}"
        more = len({device.figure for device in slow if device.device == WHOLE}) - 1
        return f"{text} and {more} more figure{'s' * (more != 1)}" if more else text
    beside = "of its siblings" if worst.against == "siblings" else "of the part's peak"
    text = f"{worst.device} reaches {worst.ratio:.2f} {beside}: {worst.figure}"
    more = len({device.device for device in slow}) - 1
    return f"{text}; {more} more device{'s' * (more != 1)}" if more else text


def worst_of(slow: Sequence[SlowDevice]) -> SlowDevice:
    """Return the entry for the whole node if there is one, else its slowest device."""
    return min(slow, key=lambda device: (device.device != WHOLE, device.ratio))
