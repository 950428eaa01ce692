"""What a run comes to: planted faults in many seeds, and no false alarm in as many."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from stressed import device, result

from gpucheck.report.results.stress import StressDevice, StressWrong
from gpucheck.stress import judge

SEEDS = range(4)


def slow(*devices: object) -> list[tuple[str, str | None]]:
    return [(finding.verdict, finding.device) for finding in judge.slow(result(devices))]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_sound_siblings_are_neither_slow_nor_wrong(seed: int) -> None:
    draw = random.Random(seed)
    # Parts of one model differ by a few percent; every one sags a little as it warms up.
    own = [draw.uniform(0.98, 1.02) for _ in range(8)]
    devices = [device(n, seed, speed=lambda share, n=n: own[n] * (1 - 0.04 * share)) for n in range(8)]
    (speed,), (results,) = judge.slow(result(devices)), judge.wrong(result(devices))
    assert (speed.verdict, results.verdict) == ("pass", "pass")
    assert results.title == "the results of all 32000 steps are correct"
    assert results.message == "88 checks against float64; 8 of one model agree bit for bit"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [2, 8])
def test_a_slow_device_is_found_and_no_other(seed: int, count: int) -> None:
    who = seed % count
    devices = [device(index, seed, speed=lambda _, slow=index == who: 0.8 if slow else 1.0) for index in range(count)]
    assert slow(*devices) == [("fail", f"cuda:{who}")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("cause", "verdict"), [("sw_thermal_slowdown", "warn"), ("hw_thermal_slowdown", "fail")])
def test_a_device_that_falls_over_time_is_found_with_its_cause(seed: int, cause: str, verdict: str) -> None:
    falling = device(
        0, seed, speed=lambda share: 1 - 0.35 * share, held=lambda share: (cause,) if share > 0.5 else ()
    )  # fmt: skip
    (found,) = judge.slow(result([falling]))
    assert (found.id, found.verdict, found.device) == ("stress.slow", verdict, "cuda:0")
    assert found.message.startswith(
        f"the clock was limited by {'heat' if verdict == 'warn' else 'heat (hardware)'}; clock "
    )


@pytest.mark.parametrize("cause", ["hw_thermal_slowdown", "hw_power_brake_slowdown"])
def test_a_device_that_the_hardware_holds_back_from_the_start_has_lost_nothing_and_fails(cause: str) -> None:
    held = device(0, speed=lambda _: 0.5, held=lambda share: (cause, "sw_power_cap"))
    (found,) = judge.slow(result([held]))
    assert (found.verdict, found.device) == ("fail", "cuda:0")
    assert found.title.endswith("from the start") and "power limit" not in found.title
    for sound in (device(0, held=lambda _: ("sw_power_cap",)), device(0, held=lambda at: (cause,) if at < 0.5 else ())):
        assert [finding.verdict for finding in judge.slow(result([sound]))] == ["pass"]
    assert [finding.verdict for finding in judge.slow(result([replace(held, points=held.points[:3])]))] == ["skip"]
    (found,) = judge.slow(result([device(0, held=lambda _: ("sw_thermal_slowdown", "hw_slowdown"))]))
    assert (found.verdict, found.title) == ("warn", "cuda:0: the clock was limited by heat from the start")


@pytest.mark.parametrize(("count", "most"), [(4, 3), (8, 5)])
def test_where_most_of_a_model_are_slow_none_is_said_to_be_like_its_siblings(count: int, most: int) -> None:
    devices = [device(n, speed=lambda _, n=n: 0.7 if n < most else 1.0) for n in range(count)]
    found = judge.slow(result(devices))
    assert [(row.verdict, row.device) for row in found] == [("inconclusive", f"cuda:{n}") for n in range(most, count)]
    assert {row.message for row in found} == {"the usual speed of this model is unknown"}
    # Links are shared.
    fast = devices[-1]
    slow = device(count - 1, speed=lambda _: 0.7).points
    points = [p if p.kind == "copies" else q for p, q in zip(fast.points, slow, strict=True)]
    (copies,) = judge.slow(result([*devices[:most], replace(fast, points=tuple(points))]))
    assert (copies.verdict, copies.title[-8:]) == ("warn", "(copies)")


def test_sound_gpus_at_the_power_limit_are_told_of_in_less_than_one_run_of_a_hundred() -> None:
    """Their speeds differ by 9 %; points are 2 % apart, every fiftieth is a dip, and every third is hot."""
    titles = []
    for seed in range(150):
        draw = random.Random(seed)
        speeds = [draw.uniform(0.955, 1.045) for _ in range((2, 4, 8)[seed % 3])]
        gpus = [
            device(
                n, seed,
                speed=lambda _, own=own, draw=draw: own * (draw.uniform(0.6, 0.9) if draw.random() < 0.02 else 1.0),
                held=lambda _, draw=draw: ("sw_power_cap", "sw_thermal_slowdown")[: 1 + (draw.random() < 0.35)],
            )
            for n, own in enumerate(speeds)
        ]  # fmt: skip
        titles += [finding.title for finding in judge.slow(result(gpus)) if finding.verdict != "pass"]
    assert len(titles) <= 1, titles


def test_one_dip_is_no_slow_device() -> None:
    assert slow(device(0, speed=lambda share: 0.4 if 0.8 < share < 0.84 else 1.0), device(1)) == [("pass", None)]


def test_slower_copies_alone_are_a_warning() -> None:
    sound = device(0)
    points = [
        replace(p, rate=replace(p.rate, median=p.rate.median / 2)) if p.kind == "copies" else p for p in sound.points
    ]
    assert slow(replace(sound, points=tuple(points)), device(1)) == [("warn", "cuda:0")]


def only_first(sound: StressDevice, kind: str, count: int) -> StressDevice:
    """The device with no more points of a kind than so many."""
    mine = [point for point in sound.points if point.kind == kind][:count]
    return replace(sound, points=tuple(point for point in sound.points if point.kind != kind or point in mine))


def test_one_device_has_no_siblings_and_is_said_to_keep_its_speed() -> None:
    (found,) = judge.slow(result([device(0, noise=0.0, speed=lambda share: 1 - 0.05 * share)]))
    assert (found.verdict, found.title) == ("pass", "cuda:0 kept its speed")
    assert found.message == (
        "last third of the run against the first: products 97 %, memory 97 %, copies 97 %, mixed 97 %"
    )
    ratios = found.evidence["last_third_to_first"]
    assert ratios == pytest.approx(dict.fromkeys(("products", "memory", "copies", "mixed"), 0.966), abs=1e-3)


def test_what_had_too_few_points_or_was_uneven_is_not_claimed() -> None:
    short = [only_first(device(n), "copies", judge.FEWEST_POINTS - 1) for n in range(2)]
    (found,) = judge.slow(result(short[:1]))
    assert found.title == "cuda:0 kept its speed in products, memory, mixed"
    assert found.message.endswith("; not judged (too few points, or uneven): copies")
    (found,) = judge.slow(result(short))
    assert found.title == "2 of 2 devices kept their speed in products, memory, mixed"
    # Two of four points late in the run are slow: too few for a fall, too many for a speed that was kept.
    uneven = device(0, noise=0.0)
    late = [point for point in uneven.points if point.kind == "mixed"][-4:]
    slowed = [replace(sound, rate=replace(sound.rate, median=0.7 * sound.rate.median)) for sound in late[:2]]
    changed = dict(zip((sound.at_s for sound in late), slowed, strict=False))
    uneven = replace(uneven, points=tuple(changed.get(point.at_s, point) for point in uneven.points))
    (found,) = judge.slow(result([uneven]))
    assert (found.verdict, found.title) == ("pass", "cuda:0 kept its speed in products, memory, copies")
    assert found.message.endswith("; not judged (too few points, or uneven): mixed")


@pytest.mark.parametrize(("tested", "text"), [((40, 100), "; 40 GiB of 120 GiB of memory tested"), ((120,), "")])
def test_memory_that_was_not_tested_is_told(tested: tuple[int, ...], text: str) -> None:
    devices = [device(n, memory_tested_bytes=gib * 2**30) for n, gib in enumerate(tested)]
    (found,) = judge.wrong(result(devices))
    assert (found.verdict, found.message.endswith(text), "tested" in found.message) == ("pass", True, bool(text))


def test_the_speed_of_a_cpu_is_not_judged() -> None:
    (found,) = judge.slow(result([device(0, id="cpu", speed=lambda share: 1 - 0.5 * share)]))
    assert (found.verdict, found.message) == ("skip", "other programs share a CPU's cores")


def test_a_kind_of_work_that_was_not_done_is_told_and_is_no_pass() -> None:
    short = [replace(device(n), points=tuple(p for p in device(n).points if p.kind != "copies")) for n in (0, 1)]
    (found,) = judge.wrong(result([device(0), short[1]]))
    assert (found.verdict, found.title) == (
        "inconclusive", "the results of all 8000 steps are correct; not tested: copies",
    )  # fmt: skip
    (found,) = judge.wrong(replace(result(short), kinds=("products", "memory", "mixed")))
    assert found.verdict == "pass"


# -- wrong results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", range(5))
def test_the_one_that_differs_from_its_siblings_is_named(who: int) -> None:
    devices = [device(n, checksums={"products": "xx" if n == who else "aa", "copies": "bb"}) for n in range(5)]
    (found,) = judge.wrong(result(devices))
    assert (found.id, found.verdict, found.device) == ("stress.wrong", "fail", f"cuda:{who}")
    assert found.evidence["differs_from_siblings"] == ["products"]


def test_two_that_disagree_are_both_told() -> None:
    (found,) = judge.wrong(result([device(0), device(1, checksums={"products": "zz", "copies": "bb"})]))
    assert (found.verdict, found.device) == ("fail", None)
    assert found.title == "cuda:0 and cuda:1 computed different bits from the same data"
    assert found.message == "in products; the device at fault is unknown"


def wrong(**more: object) -> StressWrong:
    given = {"elements": 1, "place": 70, "got": "0x1", "expected": "0x0", "text": "1 instead of 0"} | more
    return StressWrong(12.0, 40, "products", "products", "first", **given)  # type: ignore[arg-type]


def test_a_wrong_step_is_a_failure_that_names_device_step_and_element() -> None:
    (found,) = judge.wrong(result([device(0), device(1, wrong=(wrong(),), wrong_steps=1)]))
    assert (found.verdict, found.device, found.title) == ("fail", "cuda:1", "cuda:1: wrong results in 1 of 4000 steps")
    assert found.message == "products at 12.0 s (step 40): 1 element wrong at index 70; 1 instead of 0"
    assert found.fix is not None and "gpucheck stress --device cuda:1" in found.fix


def test_other_bits_within_rounding_fail_only_where_bits_are_promised() -> None:
    sound = device(0, wrong=(wrong(worst_of_bound=0.3),), wrong_steps=1)
    assert [found.verdict for found in judge.wrong(result([sound]))] == ["fail"]
    (found,) = judge.wrong(result([replace(sound, reproducible=False)]))
    assert (found.verdict, found.title) == ("warn", "cuda:0: different bits in 1 of 4000 steps")
    beyond = device(0, wrong=(wrong(worst_of_bound=3.0),), wrong_steps=1, reproducible=False)
    assert [found.verdict for found in judge.wrong(result([beyond]))] == ["fail"]


def test_counters_that_rose_are_told_by_what_they_mean() -> None:
    devices = [
        device(0, counters={"xids": 0, "pcie_replays": 0}),
        device(1, counters={"ecc_corrected": 3, "pcie_replays": 2}),
        device(2, counters={"ecc_uncorrected": 1, "ecc_corrected": 1}),
        device(3, counters={"lost": 1}),
    ]
    *counted, lost = judge.errors(result(devices))
    assert lost.verdict == "fail" and lost.title.startswith("cuda:3: the driver lost the GPU")
    assert [(finding.verdict, finding.title) for finding in counted] == [
        ("warn", "cuda:1: 3 corrected memory errors, 2 PCIe packets resent"),
        ("fail", "cuda:2: 1 uncorrected memory errors, 1 corrected memory errors"),
    ]
