"""How often `gpucheck fleet judge` calls parts of an even fleet slow, and how often it finds a straggler. Simulated.

    python benchmarks/fleet_power.py [--fleets N]
    python benchmarks/fleet_power.py --nodes [--fleets N]

With --nodes whole documents are judged: FIGURES_OF_NODES figures, the true log rates of nodes normal with a standard
deviation and correlated over the figures, each device noisy beside its node. Sound fleets, then fleets in which one
node is slower in all figures, and one with a link at half speed (one figure).
Bounds: 35 of 2 000 sound fleets with anything called bad; 370 of 400 slow nodes found from 8 nodes on.

A device's figure is the median of ROUNDS rounds. Each round has noise of NOISE (normal, relative), of which a part is
shared by the devices of a node in that round; beside it devices differ for good by DEVICES, nodes by NODES.
Bounds: at most one device called slow in 1 000 even fleets of 1 000 nodes with 8 devices and 3 figures; of devices that
are 5 % slower at 1 % noise at least 99 % are found.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import fleet_scale

from gpucheck.fleet import judge, siblings
from gpucheck.report.results.fleet import NodeDocument, NodeFigure

ROUNDS = 9
NOISE = 0.01
FIGURES = 3
SHARED = 0.3  # of the noise's variance
DEVICES, NODES = 0.003, 0.003


def fleet(
    random_: random.Random, nodes: int, devices: int, slower: float = 0.0, stragglers: int = 0
) -> tuple[list[siblings.Figure], set[tuple[str, str]]]:
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
            error = 1.2533 * statistics.stdev(taken) / ROUNDS**0.5
            rate = (1 + statistics.median(taken)) * (1 - slower * is_planted)
            figures.append(siblings.Figure(f"n{node}", f"cuda:{device}", rate, error))
    return figures, planted


def called_slow(figures: list[siblings.Figure], comparisons: int) -> set[tuple[str, str]]:
    group = siblings.place(figures, comparisons)
    return {(one.figure.node, one.figure.device) for one in group.placed if one.standing == "slow"}


FIGURES_OF_NODES = 4
# The rest of a device's rate: for good, and the median of its rounds.
OF_DEVICES = 0.005


def documents_of(
    random_: random.Random, nodes: int, spread: float, correlation: float, slower: float = 0.0, figures: int = 4
) -> list[tuple[str, NodeDocument]]:
    """A fleet of 8 devices a node; the first node is slower by `slower` in the first `figures` figures."""
    gauss, rest = random_.gauss, math.sqrt(1 - correlation)
    found = []
    for number in range(nodes):
        common = gauss(0, spread * math.sqrt(correlation))
        rows = []
        for figure in range(FIGURES_OF_NODES):
            centre = common + gauss(0, spread) * rest
            if number == 0 and figure < figures:
                centre += math.log(1 - slower)
            rows += [
                NodeFigure(f"cuda:{i}", "matmul", f"case {figure}", math.exp(centre + gauss(0, OF_DEVICES)), "FLOP/s")
                for i in range(8)
            ]
        document = fleet_scale.node(number, random_)
        found.append((document.host, replace(document, figures=tuple(rows), problems=())))
    return found


def of_nodes(random_: random.Random, fleets: int) -> None:
    """Print how many of so many fleets have something bad or undecided, and in how many the slow node is found."""
    cases = [
        (nodes, spread, correlation, slower, figures)
        for slower, figures, spread in ((0.0, 0, 0.01), (0.0, 0, 0.02), (0.2, 4, 0.02), (0.1, 4, 0.01), (0.5, 1, 0.01))
        for nodes in (5, 8, 16, 64)
        for correlation in (0.5, 1.0)
    ]
    for nodes, spread, correlation, slower, figures in cases:
        bad = undecided = found = 0
        count = max(fleets * 16 // max(nodes, 16) // (1 if slower == 0 else 2), 10)
        for _ in range(count):
            result = judge.judge(documents_of(random_, nodes, spread, correlation, slower, figures)).result
            states = {row.host: row.state for row in result.nodes}
            planted = slower > 0 and states.pop("node00000") == "bad"
            found += planted
            bad += "bad" in states.values()
            undecided += "undecided" in states.values()
        what = f"one node {slower:.0%} slower in {figures} figures: {found} found, " if slower else "sound: "
        case = f"{nodes} nodes, sd {spread:.0%}, correlation {correlation}, {count} fleets"
        print(f"{case}, {what}{bad} with another bad, {undecided} with another undecided", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", action="store_true", help="whole nodes, by their documents")
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    if options.nodes:
        of_nodes(random_, options.fleets)
        return 0
    for nodes in (5, 8, 20, 100, 1000):
        fleets = max(options.fleets * 1000 // nodes // 20, options.fleets)
        false = found = planted_in_all = 0
        for _ in range(fleets):
            even, _ = fleet(random_, nodes, 8)
            false += len(called_slow(even, nodes * 8 * FIGURES))
            slow, planted = fleet(random_, nodes, 8, 0.05, max(nodes // 20, 1))
            told = called_slow(slow, nodes * 8 * FIGURES)
            found, planted_in_all = found + len(told & planted), planted_in_all + len(planted)
            false += len(told - planted)
        print(f"{nodes} nodes: {false} false of {2 * fleets} fleets; {found} of {planted_in_all} stragglers found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
