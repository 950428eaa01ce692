"""How often `gpucheck fleet judge` calls an even fleet's device slow, and how often it finds a straggler. Simulated.

    python benchmarks/fleet_power.py [--fleets N]

A device's figure is the median of ROUNDS rounds. Each round has noise of NOISE (normal, relative), of which a part is
shared by the devices of a node in that round; beside it devices differ for good by DEVICES, nodes by NODES.
Bounds: at most one device called slow in 1 000 even fleets of 1 000 nodes with 8 devices and 3 figures; of devices that
are 5 % slower at 1 % noise at least 99 % are found.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpucheck.fleet import siblings

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random_ = random.Random(options.seed)
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
