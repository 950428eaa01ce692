"""Nodes built by hand: documents of sound machines, and what may be wrong with one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from gpucheck.report.results.fleet import NODE_SCHEMA, NodeDevice, NodeDocument, NodeFigure, NodePart

MODEL = "Test GPU"
FIGURES = (("matmul", "bfloat16 8192x8192x8192", 7e14, "FLOP/s"), ("bandwidth", "copy 4 GiB", 4e12, "B/s"))


def node(host: str = "n1", seed: int = 0, devices: int = 8, **changed: Any) -> NodeDocument:
    """A node that passed: every rate within 1 % (a standard deviation of 0.4 %)."""
    gauss = random.Random(f"{host} {seed}").gauss
    whole = NodeDocument(
        schema=NODE_SCHEMA,
        gpucheck="1.0",
        run="tonight",
        host=host,
        attempt=0,
        boot_id=f"boot of {host}",
        launcher="srun",
        expected=None,
        started_wall_s=1000.0,
        written_wall_s=1060.0,
        written_monotonic_s=60.0,
        within_s=300.0,
        step="",
        exit=0,
        parts=(NodePart("devices", 0, 1.0), NodePart("bench", 0, 30.0)),
        devices=tuple(NodeDevice(f"cuda:{i}", MODEL, f"GPU-{host}-{i}") for i in range(devices)),
        figures=tuple(
            NodeFigure(f"cuda:{i}", name, case, rate * (1 + gauss(0, 0.004)), unit)
            for i in range(devices)
            for name, case, rate, unit in FIGURES
        ),
        settings={"driver": "580.1", "torch": "2.11.0"},
    )
    return replace(whole, **changed)


def slower(document: NodeDocument, device: str, by: float) -> NodeDocument:
    """The same with one device slower in everything, by this share."""
    figures = (replace(one, rate=one.rate * (1 - by)) if one.device == device else one for one in document.figures)
    return replace(document, figures=tuple(figures))
