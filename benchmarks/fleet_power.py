"""How often `gpucheck fleet judge` calls parts of an even fleet slow, and how often it finds a straggler. Simulated.

    python benchmarks/fleet_power.py [--fleets N]
    python benchmarks/fleet_power.py --nodes [KIND] [--share X] [--seed S]

With --nodes whole documents are judged: FIGURES_OF_NODES figures, the true log rates of nodes with a standard deviation
and correlated over the figures, each device noisy beside its node (`cases` has the kinds of fleets).
Bounds: 35 of 2 000 sound fleets with anything called bad, fewer than one in 10 with anything undecided, one in 100 of
two speeds; 370 of 400 slow nodes found from 8 nodes on; a link at half speed on one of 5 nodes in 95 of 100. With other
tails what is named is at least TRULY_LOW below the median without any noise.

A device's figure is the median of ROUNDS rounds. Each round has noise of NOISE (normal, relative), of which a part is
shared by the devices of a node in that round; beside it devices differ for good by DEVICES, nodes by NODES.
Bounds: at most one device called slow in 1 000 even fleets of 1 000 nodes with 8 devices and 3 figures; of devices that
are 5 % slower at 1 % noise at least 99 % are found.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import fleet_scale

from gpucheck.fleet import judge, siblings
from gpucheck.report.results.fleet import FleetNode, NodeDocument, NodeFigure, SlowDevice

ROUNDS = 9
NOISE = 0.01
FIGURES = 3
SHARED = 0.3  # of the noise's variance
DEVICES, NODES = 0.003, 0.003


def fleet(
    random_: random.Random, nodes: int, devices: int, slower: float = 0.0, stragglers: int = 0
) -> tuple[list[tuple[str, NodeFigure]], set[tuple[str, str]]]:
    """One figure of a fleet; the first device of the first `stragglers` nodes is slower by `slower`."""
    gauss = random_.gauss
    own, shared = NOISE * (1 - SHARED) ** 0.5, NOISE * SHARED**0.5
    figures, planted = [], set()
    for node in range(nodes):
        of_node = gauss(0, NODES)
        rounds = [gauss(0, shared) for _ in range(ROUNDS)]
        for device in range(devices):
            for_good = of_node + gauss(0, DEVICES)
            is_planted = device == 0 and node < stragglers
            if is_planted:
                planted.add((f"n{node}", f"cuda:{device}"))
            taken = [for_good + common + gauss(0, own) for common in rounds]
            rate = (1 + statistics.median(taken)) * (1 - slower * is_planted)
            figures.append((f"n{node}", NodeFigure(f"cuda:{device}", "", "", rate, "")))
    return figures, planted


def called_slow(figures: list[tuple[str, NodeFigure]]) -> set[tuple[str, str]]:
    *_, placed = siblings.slow_devices(figures, FIGURES)
    return {(figures[index][0], figures[index][1].device) for index, one in placed.items() if one.certain}


FIGURES_OF_NODES = 4
# The rest of a device's rate: for good, and the median of its rounds.
OF_DEVICES = 0.005
# What is named must be so far below the median without any noise; half a percent less than what is measured.
TRULY_LOW = 0.025

Draw = Callable[[random.Random], float]


def normal(random_: random.Random) -> float:
    return random_.gauss(0, 1)


def heavy(random_: random.Random) -> float:
    """Student's t with 3 degrees of freedom, scaled to a variance of 1."""
    return random_.gauss(0, 1) / math.sqrt(random_.gammavariate(1.5, 2))


def left_skewed(random_: random.Random) -> float:
    return 1 - random_.expovariate(1)


@dataclass(frozen=True)
class Case:
    """A kind of fleet: `bad` nodes are slower by `slower` in `figures` figures of `of` devices."""

    what: str
    nodes: int
    spread: float
    correlation: float
    slower: float = 0.0
    figures: int = FIGURES_OF_NODES
    bad: int = 1
    of: int = 8
    draw: Draw = normal
    devices: tuple[int, ...] = (8,)  # of a node, in turn
    own: float = OF_DEVICES
    missing: float = 0.0  # of the figures
    fleets: int = 400


@functools.cache
def sound_node(number: int, devices: int) -> NodeDocument:
    whole = fleet_scale.node(number, random.Random(number))
    return replace(whole, figures=(), problems=(), devices=whole.devices[:devices])


def fleet_of(random_: random.Random, case: Case) -> tuple[list[NodeDocument], list[list[float]]]:
    """The documents of a fleet, and the true log rates of each node's figures."""
    gauss, draw, rest = random_.gauss, case.draw, math.sqrt(1 - case.correlation)
    found, truth = [], []
    for number in range(case.nodes):
        common = case.spread * math.sqrt(case.correlation) * draw(random_) if case.correlation else 0.0
        document = sound_node(number, case.devices[number % len(case.devices)])
        rows, centres = [], []
        for figure in range(FIGURES_OF_NODES):
            centre = common + (case.spread * rest * draw(random_) if rest else 0.0)
            is_bad = case.slower > 0 and number < case.bad and figure < case.figures
            low = math.log(1 - case.slower) if is_bad else 0.0
            centres.append(centre + (low if case.of >= 8 else 0.0))
            if random_.random() < case.missing:
                continue
            for i, device in enumerate(document.devices):
                log = centre + (low if i < case.of else 0.0) + gauss(0, case.own)
                rows.append(NodeFigure(device.id, "matmul", f"case {figure}", math.exp(log), "FLOP/s"))
        found.append(replace(document, figures=tuple(rows)))
        truth.append(centres)
    return found, truth


def documents_of(
    random_: random.Random, nodes: int, spread: float, correlation: float, slower: float = 0.0, figures: int = 4
) -> list[NodeDocument]:
    """A fleet of 8 devices a node; the first node is slower by `slower` in the first `figures` figures."""
    return fleet_of(random_, Case("", nodes, spread, correlation, slower, figures))[0]


def cases() -> list[Case]:
    """The fleets that are judged, the small ones first."""
    both = (0.5, 1.0)
    made = [Case("sound", nodes, 0.02, one, fleets=2000) for nodes in (5, 8, 16, 64, 256) for one in both]
    for nodes in (5, 6, 7, 8, 16, 64, 256):
        made += [Case("a node 20 % slower", nodes, 0.02, one, 0.2) for one in both]
        made += [Case("a node 10 % slower", nodes, 0.01, one, 0.1) for one in both]
    made += [Case("a link at half speed", 5, 0.01, one, 0.5, 1) for one in both]
    made += [Case("two nodes 20 % slower", nodes, 0.02, one, 0.2, bad=2) for nodes in (8, 16, 64) for one in both]
    made += [Case("a device 10 % slower", nodes, 0.02, 0.5, 0.1, of=1) for nodes in (5, 8, 16, 64)]
    made += [Case("a device 5 % slower", nodes, 0.02, 0.5, 0.05, of=1) for nodes in (5, 8, 16, 64)]
    made += [Case("half of the nodes 15 % slower", nodes, 0.01, 0.5, 0.15, bad=nodes // 2) for nodes in (8, 16, 64)]
    for nodes in (8, 16, 64):
        made += [Case("sound, heavy tails", nodes, 0.02, one, draw=heavy) for one in both]
        made += [Case("sound, left-skewed", nodes, 0.02, one, draw=left_skewed) for one in both]
    for nodes in (9, 18, 66):
        made += [Case("sound, 8, 4 and 1 devices", nodes, 0.02, 0.5, devices=(8, 4, 1))]
        made += [Case("sound, a fifth of the figures missing", nodes, 0.02, 0.5, missing=0.2)]
        made += [Case("sound, devices noisy by 3 %", nodes, 0.02, 0.5, own=0.03)]
        made += [Case("a node 20 % slower, 8, 4 and 1 devices", nodes, 0.02, 0.5, 0.2, devices=(8, 4, 1))]
        made += [Case("a node 20 % slower, a fifth missing", nodes, 0.02, 0.5, 0.2, missing=0.2)]
        made += [Case("a node 20 % slower, devices noisy by 3 %", nodes, 0.02, 0.5, 0.2, own=0.03)]
    return [
        *made,
        Case("sound", 2048, 0.02, 0.5, fleets=20),
        Case("a node 10 % slower", 2048, 0.01, 0.5, 0.1, fleets=20),
    ]


def is_true(found: SlowDevice, centres: Sequence[float], truth: Sequence[Sequence[float]]) -> bool:
    """Whether what is named is low without noise, in the figure that is named."""
    figure = int(found.figure.split()[2])
    middle = statistics.median(one[figure] for one in truth)
    return found.device != siblings.WHOLE or math.exp(centres[figure] - middle) <= 1 - TRULY_LOW


def is_unsure(row: FleetNode) -> bool:
    """Return whether a node is undecided because of its speed, and not because figures or devices are missing."""
    return row.state == "undecided" and bool(row.slow or row.cause.startswith("one of "))


def of_nodes(case: Case, seed: int, share: float) -> str:
    """What the judge makes of a case, in a line."""
    # The name of the draw: its address differs by process.
    random_ = random.Random(f"{seed} {asdict(case) | {'draw': case.draw.__name__}}")
    count = max(round(case.fleets * share), 1)
    found = bad = undecided = split = untrue = good = 0
    for _ in range(count):
        documents, truth = fleet_of(random_, case)
        judged = judge.judge(documents, max_bad=1.0)
        rows = {row.host: row for row in judged.result.nodes}
        planted = [rows.pop(documents[number].host) for number in range(case.bad if case.slower else 0)]
        found += bool(planted) and all(row.state == "bad" for row in planted)
        good += any(row.state in ("good", "undecided") and not is_unsure(row) for row in planted)
        bad += any(row.state == "bad" for row in rows.values())
        undecided += any(is_unsure(row) for row in rows.values())
        split += any(one.id == "fleet.modes" for one in judged.findings)
        named = [(row, one) for row in rows.values() if row.state == "bad" for one in row.slow if one.certain]
        untrue += any(not is_true(one, truth[int(row.host[4:])], truth) for row, one in named)
    told = f"{found} found, {good} called good; " if case.slower else ""
    return (
        f"{case.what}: {case.nodes} nodes, sd {case.spread:.0%}, correlation {case.correlation}, {count} fleets: {told}"
        f"other nodes: {bad} bad ({untrue} of them less than {TRULY_LOW:.1%} low), {undecided} undecided; {split} split"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="with --nodes: of the number of fleets")
    parser.add_argument("--nodes", metavar="KIND", nargs="?", const="", help="whole nodes, by their documents")
    parser.add_argument("--least", type=int, default=0, help="with --nodes: fleets of at least so many nodes")
    parser.add_argument("--most", type=int, default=10**6, help="with --nodes: fleets of at most so many nodes")
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    if options.nodes is not None:
        for case in cases():
            if case.what.startswith(options.nodes) and options.least <= case.nodes <= options.most:
                print(of_nodes(case, options.seed, options.share), flush=True)
        return 0
    for nodes in (5, 8, 20, 100, 1000):
        fleets = max(options.fleets * 1000 // nodes // 20, options.fleets)
        false = found = planted_in_all = 0
        for _ in range(fleets):
            even, _ = fleet(random_, nodes, 8)
            false += len(called_slow(even))
            slow, planted = fleet(random_, nodes, 8, 0.05, max(nodes // 20, 1))
            told = called_slow(slow)
            found, planted_in_all = found + len(told & planted), planted_in_all + len(planted)
            false += len(told - planted)
        print(f"{nodes} nodes: {false} false of {2 * fleets} fleets; {found} of {planted_in_all} stragglers found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
