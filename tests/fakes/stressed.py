"""Answers of devices, made by hand, with the noise of real ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from gpucheck.report.measurement import DeviceRef
from gpucheck.report.results.stress import StressDevice, StressPoint, StressResult, StressSpread
from gpucheck.stress.options import Plan, plan

KINDS = ("products", "memory", "copies", "mixed")
UNITS = {"memory": "word/s", "copies": "B/s"}
USUAL = {"products": 6e14, "memory": 2e12, "copies": 9e10, "mixed": 4e14}


def points(
    seed: int,
    *,
    speed: Callable[[float], float] = lambda share: 1.0,
    noise: float = 0.02,
    division: Plan | None = None,
    held: Callable[[float], tuple[str, ...]] = lambda share: (),
) -> tuple[StressPoint, ...]:
    """A curve; `speed` and `held` are functions of the share of the time that is over."""
    draw = random.Random(seed)
    division = division or plan(600.0, KINDS)
    made = []
    for number in range(division.points):
        kind, share = division.kind_of(number), number / division.points
        rate = USUAL[kind] * speed(share) * draw.gauss(1.0, noise)
        spread = StressSpread(rate * 0.97, rate, rate * 1.02)
        clock = 1.9e9 * speed(share)
        made.append(
            StressPoint(
                share * division.duration_s, kind, 90, spread, UNITS.get(kind, "FLOP/s"),
                StressSpread(clock, clock, clock), StressSpread(60.0, 65.0, 70.0), 650.0, held(share),
            )
        )  # fmt: skip
    return tuple(made)


def device(index: int, seed: int = 0, *, id: str | None = None, **more: Any) -> StressDevice:
    """A device that ran to the end; `more` are its other fields, and those of `points`."""
    curve = {name: more.pop(name) for name in ("speed", "noise", "held", "division") if name in more}
    given: dict[str, Any] = {
        "model": "NVIDIA H200 · 9.0 · 132",
        "dtype": "bfloat16",
        "side": 8192,
        "filled_bytes": 120 * 2**30,
        "steps": 4000,
        "checks": 11,
        "ended": "",
        "power_limit_w": 700.0,
        "checksums": {"products": "aa", "copies": "bb", "address/9": "cc"},
        "points": points(100 * seed + index, **curve),
    } | more
    name = id or f"cuda:{index}"
    return StressDevice(name, DeviceRef(name, f"GPU-{index}", "NVIDIA H200"), **given)


def result(devices: Sequence[StressDevice], duration_s: float = 600.0) -> StressResult:
    return StressResult(duration_s, plan(duration_s, KINDS).turn_s, KINDS, 0, tuple(devices))
