"""Answers of devices, made by hand, with the noise of real ones, and children that play them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.machine.child import LineChild
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Event, Failed, Started
from gpucheck.report.facts import Device, Facts, TorchBuild
from gpucheck.report.fault import Fault
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.stress import StressDevice, StressPoint, StressResult, StressSpread, StressWrong
from gpucheck.stress.command import Environment
from gpucheck.stress.judge import judge
from gpucheck.stress.options import StressPlan, plan

KINDS = ("products", "memory", "copies", "mixed")
UNITS = {"memory": "word/s", "copies": "B/s"}
USUAL = {"products": 6e14, "memory": 9e9, "copies": 9e10, "mixed": 4e14}


def points(
    seed: int,
    *,
    speed: Callable[[float], float] = lambda share: 1.0,
    noise: float = 0.02,
    division: StressPlan | None = None,
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


WRONG = StressWrong(
    312.4, 2101, "products", "products", "first", 1, 70, "0xc1f4", "0xc1f0", 0.4, "-30.5 instead of -30"
)
HUNG = Fault("device", "stress", "cuda:2", "TimeoutError", "", "memory", None, True, None, 61.0)


def document(devices: list[StressDevice], *events: Event, complete: bool = True, duration_s: float = 600.0) -> Report:
    collector = Collector()
    for event in (Started(Facts()), Answered("stress", result(devices, duration_s)), *events):
        collector(event)
    argv = ("stress", "--duration", f"{duration_s:g}s")
    return collector.report(
        version="0", command="stress", argv=argv, started="", elapsed_s=600.0, complete=complete, judge=judge
    )


def hot(share: float) -> tuple[str, ...]:
    return ("sw_thermal_slowdown",) if share > 0.5 else ()


SOUND = [device(n) for n in range(4)]
SCREENS = {
    "four sound devices": document(SOUND),
    "a part of the memory": document(
        [
            replace(
                device(0, points=points(0, division=plan(12.0, ("products", "memory", "copies", "mixed")))),
                memory_tested_bytes=30 * 2**30,
            )
        ],
        duration_s=12.0,
    ),
    "wrong, falling and hung": document(
        [
            device(0, wrong=(WRONG,), wrong_steps=1),
            device(1, speed=lambda share: 1 - 0.3 * share, held=hot),
            replace(device(2, points=device(2).points[:20]), ended="fault"),
            device(3, counters={"pcie_replays": 12}),
        ],
        Failed(HUNG),
    ),
    "six points of memory": document([device(0, points=points(0, division=plan(600.0, ("memory",)))[:6])]),
    "a CPU, cut off": document(
        [device(0, id="cpu", points=points(0)[:9], ended="signal", steps=99)],
        complete=False,
    ),
}

# A child as the real one speaks, without torch: it reads the setup, is ready, and does what its script says.
CHILD = """
import json, os, sys, time
script, told = json.loads(sys.argv[1]), json.loads(sys.argv[2])
def say(**line): print(json.dumps(line), flush=True)
json.loads(sys.stdin.readline())
if script == "hangs at the start": time.sleep(600)
if script in ("raises at the start", "is lost at the start"):
    what, why = "no memory", ""
    if script == "is lost at the start":
        what, why = "torch cannot use the device", "CUDA error: an illegal memory access was encountered"
    say(raised={"kind": "CannotLook", "what": what, "why": why, "fix": "", "finding": "stress.memory", "trace": ""})
    sys.exit()
say(ready={"model": told["model"], "dtype": "bfloat16", "side": 8192, "filled_bytes": 2**30, "reproducible": True})
sys.stdin.readline()
points = told["points"]
half = len(points) // 2
for number, point in enumerate(points):
    if number == half and script == "hangs": time.sleep(600)
    if number == half and script == "dies": os.kill(os.getpid(), 11)
    if number == half and script == "fails":
        text = "CUDA error: uncorrectable ECC error encountered"
        say(end=True, fault={"kind": "device", "where": "stress", "device": told["device"]["id"], "error":
            "AcceleratorError", "text": text, "step": "memory", "cause": "cuda.ecc", "poisons": True})
        sys.exit()
    if number == half and script == "talks for ever":
        while True: say(step="memory"); time.sleep(0.05)
    if number == half and script == "computes wrongly":
        say(wrong={"at_s": 1.0, "step": 3, "kind": "products", "result": "products", "against": "first", "elements": 1})
        told["wrong_steps"] = 1
    say(step=point["kind"])
    totals = {name: told[name] for name in ("steps", "wrong_steps", "checks", "checksums")}
    say(point=point, totals=totals)
if script == "waits":
    say(step="all is done")
    time.sleep(600)
say(end=True)
"""


def facts(count: int, **more: Any) -> Facts:
    devices = [
        Device(
            kind="cuda", id=f"cuda:{n}", name="NVIDIA H200", uuid=f"GPU-{n}", pci_address=f"0000:{n:02x}:00.0",
            **{"nvml_index": n, **more},
        )
        for n in range(count)
    ]  # fmt: skip
    return Facts(devices=tuple(devices), torch=TorchBuild(version="2.9", built_for="cuda"))


def environment(scripts: dict[str, str], seed: int = 0, **more: Any) -> Environment:
    def start(name: str) -> LineChild:
        told = json.dumps(to_json(device(int(name[-1]), seed)))
        return LineChild([sys.executable, "-S", "-c", CHILD, json.dumps(scripts.get(name, "")), told])

    given: dict[str, Any] = {
        "read": lambda: facts(4),
        "log": lambda: (None, "not here"),
        "opening_s": 1.5,
        "silent_s": 0.7,
    }
    return Environment(**{**given, **more, "start": start})
