"""Compare each device with its siblings: the devices of the same model, on the same node and on other nodes. No I/O.

Devices of one node share power, heat and links, so the sample size is the number of nodes and not of devices. A figure
is the rate in one case of a benchmark, compared by its logarithm. A device is compared with the median of the other
devices on its node, or with the median of the nodes if its node has few devices.

One test finds slow devices and slow nodes: `lowest`, Rosner's procedure. Its level is divided among all values and
figures of the fleet (Bonferroni), so almost no device is reported as slow in a fleet without slow devices. A slow
device is far below its node, and also below the other nodes. `benchmarks/fleet_power.py` simulates both.
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
# At most one in this many fleets without slow devices has a device reported as slow. MAYBE: as possibly slow.
EVEN_FLEETS, EVEN_FLEETS_MAYBE = 1000, 20
# In simulations, the error rate of `lowest` is up to 1.5 times its level, because `lowest` tests several values.
ERROR_RATE_FACTOR = 1.5
# With fewer devices on a node, the median of a device's neighbours depends too much on a single neighbour.
LEAST_DEVICES = 4
# With fewer nodes of a model, a comparison does not show which node is slow.
LEAST_NODES = 5
# A device this close to its siblings is no reason to drain the node, even if the difference is certain.
LEAST_DISTANCE = 0.03

Name = TypeVar("Name", str, int)


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
    centre = stats.median([stats.median([logs[index] for index in node]) for node in by_node.values()])
    from_centre = {index: log - centre for index, log in enumerate(logs)}
    # The median of a device's neighbours does not include the device itself.
    in_node = {
        index: logs[index] - stats.median([logs[other] for other in node if other != index])
        for node in by_node.values()
        if len(node) >= LEAST_DEVICES
        for index in node
    }
    in_fleet = {index: log for index, log in from_centre.items() if index not in in_node}
    is_fleet = len(by_node) >= LEAST_NODES
    # Some nodes vary more than others. Few nodes do not show how much, so each node is tested separately.
    samples = [in_fleet, in_node] if is_fleet else [{index: logs[index] for index in node} for node in by_node.values()]
    tests = ERROR_RATE_FACTOR * figures * (1 if is_fleet else len(by_node))
    slow: dict[int, SlowDevice] = {}
    for values in samples:
        for fleets, certain in ((EVEN_FLEETS_MAYBE, False), (EVEN_FLEETS, True)):
            for index in lowest(values, 1 / (fleets * tests)):
                below = in_node.get(index, from_centre[index])
                if _is_low(max(below, from_centre[index]) if is_fleet else below):
                    ratio = math.exp(from_centre[index] if is_fleet else below)
                    slow[index] = _slow(members[index][1], label, ratio, certain)
    return math.exp(centre), _NORMAL * stats.median([abs(distance) for distance in from_centre.values()]), slow


def _is_low(distance: float) -> bool:
    """Return whether a difference of logarithms is large enough to matter."""
    return distance <= math.log(1 - LEAST_DISTANCE)


# -- whole nodes -------------------------------------------------------------------------------------------------------

# Each of two tests (all figures together, single figures) may report a slow node in the first share of fleets without
# slow nodes, and a possibly slow node in the second. At most one such fleet in 10 has a possibly slow node or device.
NODE_LEVEL, NODE_LEVEL_MAYBE = 0.004, 0.03
# The fewest nodes of each of two modes, their least share, and the gap in standard deviations within the modes.
MODE_NODES, MODE_SHARE, MODE_GAP = 3, 0.1, 5.0


@functools.cache
def node_threshold(nodes: int, level: float) -> float:
    """Return the t beyond which the lowest of `nodes` values is an outlier, at the level `level`.

    This is the extreme studentised deviate (Grubbs 1969; Rosner 1983): one-sided Student's t with n - 2 degrees of
    freedom, with the level divided by n (Bonferroni). `student_quantile` is two-sided. Raises ValueError below 3 nodes.
    """
    return stats.student_quantile(1 - 2 * level / nodes, nodes - 2)


def lowest(values: Mapping[Name, float], level: float) -> tuple[Name, ...]:
    """Return the names whose values are outliers below the others, lowest first: at most a quarter of all, or one.

    Each value is compared with the mean of the values above it, in units of s * sqrt(1 + 1/(n - 1)) (leave-one-out t).
    The last value beyond its threshold and all lower values are outliers, as in Rosner's generalised procedure (1983),
    so that two bad nodes do not hide each other. The result is empty with fewer than LEAST_NODES values.
    """
    order = sorted(values, key=values.__getitem__)
    steps = most_low(len(order)) if len(order) >= LEAST_NODES else 0
    # Mean and sum of squares of the values above are updated from the highest value down (Welford 1962), so the first
    # value beyond its threshold is the last value of Rosner's procedure.
    mean = squares = 0.0
    for above, name in enumerate(reversed(order)):
        distance, count = mean - values[name], len(order) - above
        if count <= steps:
            scale = math.sqrt(squares / (above - 1) * (1 + 1 / above))
            # No threshold is below 2.5. This comparison is far faster than the computation of a threshold.
            if distance > 2.5 * scale and distance > node_threshold(above + 1, level) * scale:
                return tuple(order[:count])
        mean -= distance / (above + 1)
        squares += distance**2 * above / (above + 1)
    return ()


def most_low(nodes: int) -> int:
    """Return the largest number of nodes that may be low. With more, it is unclear which nodes are healthy."""
    return max(1, nodes // 4)


def slower_mode(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names in the slower of two modes, or nothing if there is one mode. `values` are logarithms.

    The split is at the widest gap with enough values on both sides. The gap must exceed LEAST_DISTANCE, and MODE_GAP
    standard deviations within the sides.
    """
    order = sorted(values, key=values.__getitem__)
    ordered = [values[name] for name in order]
    fewest = max(MODE_NODES, math.ceil(MODE_SHARE * len(order)))
    if not (cuts := range(fewest, len(order) - fewest + 1)):
        return ()
    cut = max(cuts, key=lambda at: ordered[at] - ordered[at - 1])
    gap, sides = ordered[cut] - ordered[cut - 1], (ordered[:cut], ordered[cut:])
    # The divisor corrects for few nodes. Without the correction, twice as many of 2 000 fleets of 6 nodes were split.
    freedom = (len(order) - 2) ** 2 / len(order)
    within = math.sqrt(sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom)
    return tuple(order[:cut]) if gap >= MODE_GAP * within and _is_low(-gap) else ()


# -- a fleet: every node and device in every figure -------------------------------------------------------------------

# A device below this share of its model's peak is slow. A healthy device reaches 60 to 95 % with products and copies.
FLOOR = 0.5
# A rate above this share of the peak is a wrong measurement. Clocks and data sheets differ by only a few percent.
CEILING = 1.15
# Flags for a low figure whose cause lies outside the device.
DISTURBED = frozenset(("cpu-busy", "device-shared", "few-samples", "noisy"))
# The most findings about two speeds, and about settings that differ. Forged documents cannot create more.
MOST_KINDS = 20
# The device name of a slow node in the list of slow devices.
WHOLE = "all devices"
# A node is reported instead of its devices if at least this many devices, and more than half, are slow.
LEAST_SLOW = 3
# One of three or four nodes of a model is far below if its rate is at most FAR_BELOW of the lowest other node, and the
# others agree within AGREE. That detects half the speed, and ignores the usual variation of few nodes.
FAR_BELOW, AGREE = 0.7, 0.85

# The rates of a figure by host, and those of all figures by model, label and unit.
ByHost = dict[str, list[NodeFigure]]
Groups = dict[tuple[str, str, str], ByHost]
# The reason why a node is undecided, and the fix.
Doubt = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SiblingComparison:
    """The result of the comparison, by host.

    `slow` has slow devices and nodes, and `ratios` the figures relative to the centre. `compared` are the hosts whose
    devices were all compared with other nodes. `modes`, `far` and `unmeasured` are hosts in doubt: in the slower of two
    modes, far below the few other hosts of the model, or without a figure that siblings have.
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
    """Compare every node and device in every figure with its siblings and with its model's peak."""
    all_figures, floors, impossible = _grouped(nodes)
    figures, modes, findings = _in_modes(all_figures)
    compared = {key: by_host for key, by_host in figures.items() if len(by_host) >= LEAST_NODES}
    measured = {(host, figure.device) for group in compared.values() for host, rows in group.items() for figure in rows}
    slow = {
        host: [replace(device, certain=False) for device in devices]
        for host, devices in _slow_nodes(compared, NODE_LEVEL_MAYBE).items()
    }
    slow = defaultdict(list, slow | _slow_nodes(compared, NODE_LEVEL))
    slow_nodes = {host for host, devices in slow.items() if any(row.device == WHOLE and row.certain for row in devices)}
    groups: list[FleetGroup] = []
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for key, by_host in figures.items():
        label = key[1]
        members = [(host, figure) for host, rows in by_host.items() for figure in rows]
        centre, spread, slow_members = slow_devices(members, len(figures), label)
        for host, rows in by_host.items():  # A node may have two models with the same figure.
            lowest_rate = min(figure.rate for figure in rows)
            ratios[host][label] = min(round(lowest_rate / centre, 4), ratios[host].get(label, math.inf))
        for index, device in slow_members.items():
            host, _ = members[index]
            # A slow node is one fault, so its devices are not reported separately.
            if host in slow_nodes:
                continue
            same = [other for other in slow[host] if (other.device, other.figure) == (device.device, device.figure)]
            if device.certain or not same:
                slow[host] = [device, *(other for other in slow[host] if other not in same)]
        count = sum(device.figure == label and device.certain for host in by_host for device in slow[host])
        groups.append(FleetGroup(*key, len(by_host), len(members), centre, spread, count, judged=key in compared))
    for host, device in floors:
        slow[host].append(device)
    if few_nodes := sorted({group.model for group in groups if not group.judged}):
        title = f"fewer than {LEAST_NODES} nodes of a model: nodes are not compared"
        findings.append(Finding("fleet.siblings", "info", title, few(few_nodes)))
    if impossible:
        title, names = "rates above the GPU's peak were left out", sorted(impossible)
        findings.append(Finding("fleet.impossible", "warn", title, few(names), {"nodes": names}))
    gpus = {host: _gpus(document) for host, document in nodes.items()}
    hosts = frozenset(host for host, ids in gpus.items() if ids and all((host, id) in measured for id in ids))
    far, unmeasured = _far_below(all_figures), _unmeasured(nodes, all_figures)
    return SiblingComparison(slow, groups, ratios, findings, hosts, modes, far, unmeasured)


def _gpus(document: NodeDocument) -> dict[str, str]:
    """Return the model of each GPU by ID. On a node without a GPU, the other devices count."""
    models = {device.id: device.name for device in document.devices}
    return {id: model for id, model in models.items() if id != "cpu"} or models


def _unmeasured(nodes: Mapping[str, NodeDocument], figures: Groups) -> dict[str, Doubt]:
    """Return the doubt about each node that passed its check but lacks figures, with the command that measures these.

    A figure is expected if at least half of a model's devices have the figure, so a single document has no effect.
    """
    devices: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for host, document in nodes.items():
        for id, model in _gpus(document).items() if document.exit == errors.OK else ():
            devices[model].add((host, id))
    lacking: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (model, label, _), by_host in figures.items():
        missing = devices[model] - {(host, figure.device) for host, rows in by_host.items() for figure in rows}
        if missing != devices[model] and 2 * len(missing) <= len(devices[model]):
            for host, id in sorted(missing):
                lacking[host].append((id, label))
    doubts = {}
    for host, pairs in lacking.items():
        ids, labels = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
        fix = bench(host, labels[0], "all" if ids[1:] else ids[0])
        doubts[host] = f"not measured on {few(ids, 3)}: {few(labels, 1)}", fix
    return doubts


def bench(host: str, label: str, device: str) -> str:
    """Return the command that measures a figure again."""
    return f"on {host}: gpucheck bench {label.partition(' ')[0]} --device {device}"


def _slow(figure: NodeFigure, label: str, ratio: float, certain: bool = True) -> SlowDevice:
    certain = certain and not DISTURBED.intersection(figure.flags)
    return SlowDevice(figure.device, label, figure.rate, figure.unit, ratio, "siblings", certain)


def _far_below(figures: Groups) -> dict[str, Doubt]:
    """Return nodes with a device far below the two or three other nodes of its model, which are too few for a proof."""
    far: dict[str, tuple[float, Doubt]] = {}
    for (_, label, _), by_host in figures.items():
        if not 3 <= len(by_host) < LEAST_NODES:
            continue
        # A node counts with its slowest rate, because one of several links may be slow.
        rates = [(host, min(rows, key=lambda figure: figure.rate)) for host, rows in by_host.items()]
        (host, slowest), *others = sorted(rates, key=lambda row: row[1].rate)
        lowest_other, highest_other = others[0][1].rate, others[-1][1].rate
        ratio, count = slowest.rate / lowest_other, "two" if len(others) == 2 else "three"
        agree = lowest_other >= AGREE * highest_other and not DISTURBED.intersection(slowest.flags)
        if ratio <= FAR_BELOW and agree and (host not in far or ratio < far[host][0]):
            cause = f"{slowest.device} far below the other {count}: {ratio:.2f} of their rate in {label}"
            far[host] = ratio, (cause, bench(host, label, "all"))
    return {host: doubt for host, (_, doubt) in far.items()}


def _log_rate(figures: Sequence[NodeFigure]) -> float:
    """Return the logarithm of a node's rate: the median of its devices."""
    return stats.median([math.log(figure.rate) for figure in figures])


def _slow_nodes(figures: Groups, level: float) -> dict[str, list[SlowDevice]]:
    """Return the nodes that are slow compared with the others, in one figure or in all, at the level of each test."""
    by_model: dict[str, dict[str, ByHost]] = defaultdict(dict)
    for (model, label, _), by_host in figures.items():
        by_model[model][label] = by_host
    slow: dict[str, list[SlowDevice]] = defaultdict(list)
    for labels in by_model.values():
        centres: dict[str, float] = {}
        distances: dict[str, dict[str, float]] = defaultdict(dict)
        for label, by_host in labels.items():
            logs = {host: _log_rate(rows) for host, rows in by_host.items()}
            low = lowest(logs, level / len(figures))
            centres[label] = stats.median([log for host, log in logs.items() if host not in low])
            for host, log in logs.items():
                distances[host][label] = log - centres[label]
                if host in low and _is_low(distances[host][label]):
                    slow[host] += _node_or_devices(label, by_host[host], centres[label])
        # Half of the figures are enough, because a figure with two modes counts as two figures and a node has only one.
        means = {host: statistics.fmean(row.values()) for host, row in distances.items() if 2 * len(row) >= len(labels)}
        for host in lowest(means, level / len(by_model)) if len(labels) > 1 else ():
            if _is_low(means[host]) and host not in slow:
                label = min(distances[host], key=distances[host].__getitem__)
                slow[host] += _node_or_devices(label, labels[label][host], centres[label])
    return slow


def _node_or_devices(label: str, rows: Sequence[NodeFigure], centre: float) -> list[SlowDevice]:
    """Return the node if most of its devices are slow in this figure, else its slow devices."""
    logs = [math.log(figure.rate) - centre for figure in rows]
    devices = [_slow(figure, label, math.exp(log)) for figure, log in zip(rows, logs, strict=True) if _is_low(log)]
    if len(devices) < LEAST_SLOW or 2 * len(devices) <= len(rows):
        return devices
    rate, certain = stats.median([figure.rate for figure in rows]), all(device.certain for device in devices)
    return [replace(devices[0], device=WHOLE, rate=rate, ratio=math.exp(stats.median(logs)), certain=certain)]


def _in_modes(groups: Groups) -> tuple[Groups, dict[str, Doubt], list[Finding]]:
    """Return the groups, split where there are two modes, the doubt about each slower node, and a finding per split."""
    figures: Groups = {}
    modes: dict[str, Doubt] = {}
    findings: list[Finding] = []
    fix = "compare what these nodes share with the others (settings, rack, cooling, power), then check again"
    for (model, label, unit), by_host in groups.items():
        logs = {host: _log_rate(rows) for host, rows in by_host.items()}
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
    """Return the figures by model, label and unit, devices below FLOOR, and nodes with a rate above CEILING."""
    figures: Groups = defaultdict(dict)
    floors: list[tuple[str, SlowDevice]] = []
    impossible: set[str] = set()
    for host, document in nodes.items():
        devices = {device.id: device for device in document.devices}
        for figure in document.figures:
            device = devices[figure.device]
            model = (device.name, device.compute_capability, device.multiprocessors, device.memory_bus_width_bits)
            peak = _peak(model, figure.name, figure.case.partition(" ")[0], figure.unit)
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
    if (numbers := re.fullmatch(r"(\d{1,3})\.(\d{1,3})", capability or "", re.ASCII)) is None:
        return None
    model = peaks.lookup(name, (int(numbers[1]), int(numbers[2])), multiprocessors, bus)
    if isinstance(model, peaks.Unknown) or model.kind != "data sheet":
        return None
    if figure == "bandwidth" and unit == "B/s":
        return model.memory_bytes_per_s
    peak = model.peak(dtype) if figure == "matmul" else None
    return None if peak is None else peak.flop_per_s


def slow_text(slow: Sequence[SlowDevice]) -> str:
    worst = worst_of(slow)
    if worst.device == WHOLE:
        text = f"the whole node reaches {worst.ratio:.2f} of the other nodes: {worst.figure}"
        more = len({device.figure for device in slow if device.device == WHOLE}) - 1
        return f"{text} and {more} more figure{'s' * (more != 1)}" if more else text
    reference = "of its siblings" if worst.against == "siblings" else "of the model's peak"
    text = f"{worst.device} reaches {worst.ratio:.2f} {reference}: {worst.figure}"
    more = len({device.device for device in slow}) - 1
    return f"{text}; {more} more device{'s' * (more != 1)}" if more else text


def worst_of(slow: Sequence[SlowDevice]) -> SlowDevice:
    """Return the entry for the whole node if there is one, else its slowest device."""
    return min(slow, key=lambda device: (device.device != WHOLE, device.ratio))
