"""How long `gpucheck fleet judge` takes for a large fleet, and how much memory.

    python benchmarks/fleet_scale.py [--nodes N]

16 384 documents of 64 KB with 8 devices each are written to a temporary folder, 10 % of the nodes missing or broken and
as many stragglers as one in a hundred nodes has; then the command runs on it. Bounds: 60 s and 1 GiB on 2 cores, and
every node that is missing, broken or slow is named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpucheck.fleet import documents
from gpucheck.report.results.fleet import NODE_SCHEMA, NodeDevice, NodeDocument, NodeFigure, NodePart, NodeProblem

ROOT = Path(__file__).resolve().parents[1]
BYTES = 64_000
DEVICES = 8
FIGURES = 12
LONGEST_S, LARGEST_BYTES = 60.0, 2**30


def node(number: int, random_: random.Random) -> NodeDocument:
    """A node that passed, filled up to BYTES with what it noticed."""
    host = f"node{number:05}"
    whole = NodeDocument(
        schema=NODE_SCHEMA,
        gpucheck="1",
        run="scale",
        host=host,
        attempt=0,
        boot_id=f"boot-{number}",
        launcher="srun",
        expected=None,
        started_wall_s=1.0,
        written_wall_s=60.0,
        written_monotonic_s=60.0,
        within_s=300.0,
        step="",
        exit=0,
        parts=(NodePart("bench", 0, 60.0),),
        devices=tuple(NodeDevice(f"cuda:{i}", "Test GPU", f"GPU-{number}-{i}") for i in range(DEVICES)),
        figures=tuple(
            NodeFigure(f"cuda:{i}", "matmul", f"case {case}", 7e14 * (1 + random_.gauss(0, 0.005)), "FLOP/s")
            for i in range(DEVICES)
            for case in range(FIGURES)
        ),
        settings={"driver": "580.1", "torch": "2.11.0"},
    )
    each = NodeProblem("smoke", "memory.example", "warn", "a title of a finding", "some words of evidence " * 10)
    size = len(json.dumps({name: getattr(each, name) for name in each.__slots__}, separators=(",", ":"))) + 1
    return replace(whole, problems=(each,) * ((BYTES - len(documents.packed(whole))) // size))


def write(folder: Path, nodes: int) -> tuple[set[str], set[str]]:
    """The documents of a fleet; the names of the nodes that are missing or broken, and of those with a straggler."""
    random_ = random.Random(1)
    broken, slow = set(), set()
    for number in range(nodes):
        whole = node(number, random_)
        if number % 10 == 0:
            broken.add(whole.host)
            if number % 20 == 0:
                continue
            whole = replace(whole, step="bench", exit=None)
        elif number % 100 == 1:
            slow.add(whole.host)
            figures = (replace(one, rate=one.rate * 0.9) if one.device == "cuda:3" else one for one in whole.figures)
            whole = replace(whole, figures=tuple(figures))
        target = documents.place(folder, whole.host, whole.run)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(documents.packed(whole))  # without the fsync of each
    return broken, slow


def measure(folder: Path, nodes: int) -> tuple[float, float, float, set[str]]:
    """The seconds of the command and of its processor, its most resident bytes, and the nodes that it calls bad."""
    argv = [sys.executable, "-m", "gpucheck", "fleet", "judge", str(folder), "--json", "--quiet", "--max-bad", "50%"]
    argv += ["--expect", f"node[00000-{nodes - 1:05}]"]
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert process.stdout is not None
    text = process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    bad = set(json.loads(text)["results"]["fleet_judge"]["bad"])
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16_384)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        broken, slow = write(Path(name), options.nodes)
        took_s, processor_s, most_bytes, bad = measure(Path(name), options.nodes)
    named = len(bad & broken), len(bad & slow), len(bad - broken - slow)
    print(f"{options.nodes} nodes: {took_s:.1f} s ({processor_s:.1f} s of a processor), {most_bytes / 2**20:.0f} MiB")
    print(f"named: {named[0]} of {len(broken)} broken, {named[1]} of {len(slow)} slow, {named[2]} others")
    is_good = took_s <= LONGEST_S and most_bytes <= LARGEST_BYTES and bad == broken | slow
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
