"""`gpucheck stress` on screen: the verdict first, a line for each device, the curve with `-v`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shown import above, hold, shown
from stressed import device, points, result

from gpucheck.render import text
from gpucheck.report.events import Answered, Event, Failed, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.stress import StressDevice, StressWrong
from gpucheck.stress.judge import judge
from gpucheck.stress.options import plan

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
                memory_held_bytes=0,
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
    "cores, cut off": document(
        [
            replace(device(n, id="cpu", points=points(n)[:9], ended="signal", steps=99), name=f"core {n}")
            for n in range(2)
        ],
        complete=False,
    ),
}


def test_every_screen_fits(request: pytest.FixtureRequest) -> None:
    screens = {name: text.blocks(report) for name, report in SCREENS.items()}
    screens["details"] = text.blocks(
        document([device(0, points=points(0, division=plan(600.0, ("memory",)))[:6])]), verbose=True
    )
    hold("stress", screens, write=request.config.getoption("--write-record"))


def test_the_verdict_is_the_first_line() -> None:
    first = {name: above(text.blocks(report))[0] for name, report in SCREENS.items()}
    assert first == {
        "four sound devices": "✓ the results of all 16000 steps in 10 min are correct; no device is slow",
        "a part of the memory": "✓ the results of all 4000 steps in 12.0 s are correct; 30 GiB of 120 GiB of",
        "wrong, falling and hung": "✗ cuda:2: no answer for 61 s in stress: a call did not return (during memory)",
        "cores, cut off": "? the results of all 198 steps in 1 min 40 s are correct; speed was not judged",
    }


def test_of_a_short_run_the_duration_that_tests_all_memory_is_said_once() -> None:
    for verbose in (False, True):
        lines = shown(text.blocks(SCREENS["a part of the memory"], verbose=verbose), 120)
        assert [line for line in lines if "--duration" in line] == [
            "→ gpucheck stress --duration 48s: enough for all of the memory, as estimated from this run"
        ]


def test_the_power_of_a_device_is_that_of_products_before_mixed_work() -> None:
    watts = {"products": 690.0, "memory": 300.0, "copies": 200.0, "mixed": 420.0}

    def cell(*kinds: str) -> str:
        curve = [replace(one, power_w=watts[one.kind] if one.kind in kinds else None) for one in points(0)]
        lines = shown(text.blocks(document([device(0, points=tuple(curve))])), 120)
        return next((line for line in lines if line.startswith(" cuda:0")), "")

    assert "690 (99 %)" in cell(*watts) and "420 (60 %)" in cell("memory", "copies", "mixed")
    assert "300 (43 %)" in cell("memory") and "%" not in cell()


def test_memory_and_copies_have_bytes_that_people_know() -> None:
    head = shown(text.blocks(document([device(0, noise=0.0)])), 120)[3:6]
    assert [" ".join(line.split()[:5]) for line in head[:1]] == ["products memory copies mixed"]
    assert "GB/s tested   GB/s both ways" in head[1]


def test_a_device_keeps_one_line_on_a_narrow_screen() -> None:
    lines = shown(text.blocks(SCREENS["four sound devices"]), 40)
    assert [line.split()[0] for line in lines if line.strip().startswith("cuda:")] == [f"cuda:{n}" for n in range(4)]
