"""Screens of documents made by hand, held against the record: what no machine of the tests shows.

Of each scene the answer at 80 columns is recorded: the lines above the first gap, three at most. Some have the whole
screen, few of them in every width, and with `-v`.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import answer_scenes
import bench_scenes
import device_scenes
import program_scenes
import pytest
import stressed
from recorded import hold
from shown import shown

from gpucheck.render import devices, terminal, text
from gpucheck.render.text import PageBlock
from gpucheck.report.codec import from_json
from gpucheck.report.report import Report
from gpucheck.report.results import Results

WHEN = datetime.datetime(2026, 1, 31, 12, 0, 4, tzinfo=datetime.timezone.utc)


def of(reports: Mapping[str, Report]) -> dict[str, Callable[[], Report]]:
    """Scenes that are made already."""

    def remade(report: Report) -> Callable[[], Report]:
        return lambda: report

    return {scene: remade(report) for scene, report in reports.items()}


SCENES: dict[str, Mapping[str, Callable[[], Report]]] = {
    "screens_devices": {**device_scenes.DEVICES, "processes": device_scenes.with_processes},
    "screens_memory": device_scenes.MEMORY,
    "screens_bench": bench_scenes.SCENES,
    "screens_answers": of(answer_scenes.SCENES),
    "screens_stress": of(stressed.SCREENS),
    "screens_program": program_scenes.SCENES,
}
EVERY = {name: made for scenes in SCENES.values() for name, made in scenes.items()}
# Columns of a whole screen; None is a pipe.
WIDTHS = (120, 80, 40, None)
IN_EVERY_WIDTH = ("healthy", "lost and hot")
AT_80_AND_40 = ("copies that reach the link", "all is sound", "search_healthy", "compare_devices", "four sound devices")
AT_80 = (
    *("one healthy and idle", "a reset needed", "a mask", "no GPU", "a cache that stays", "on the CPU"),
    *("one of two links is slow", "one slow pair of four", "pairs of three devices"),
    *("cut off by ctrl-c", "a search of shapes", "a card that pays", "all and a lost card"),
    *(
        "search_time",
        "estimate_on_a_cpu",
        "smoke_failing",
        "doctor_throttled",
        "doctor_no_gpu",
        "explain_xid",
    ),
    *("compare_slower", "a part of the memory", "wrong, falling and hung", "run waits for data"),
    *("run with memory by line", "run of a job that hangs", "dry run without a fault", "model without a batch"),
)
AT_120 = ("processes", "wrong, falling and hung")
VERBOSE = (
    *("exact", "copies that reach the link", "sound memory", "sound products", "a search of shapes"),
    "two rates at the power limit",
    *("launches that block", "a card that pays", "search_healthy", "estimate", "smoke_dead_card", "doctor_follows"),
    *("compare_devices", "six points of memory"),
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_clock_time", lambda moment: moment.strftime("%H:%M:%S"))


def widths(scene: str) -> tuple[int | None, ...]:
    if scene in IN_EVERY_WIDTH:
        return WIDTHS
    return (120,) * (scene in AT_120) + (80,) * (scene in (*AT_80, *AT_80_AND_40)) + (40,) * (scene in AT_80_AND_40)


def lines(blocks: Sequence[PageBlock], columns: int | None, mark: str) -> list[str]:
    return [f"{mark}| {line}".rstrip() for line in shown(blocks, columns)]


def recorded(scene: str, made: Report) -> list[str]:
    """The lines of a scene, each with the columns of its screen."""
    blocks, found = text.blocks(made), list[str]()
    if 80 not in widths(scene):
        answer = lines(blocks, 80, "80")[:3]
        found += answer[: answer.index("80|")] if "80|" in answer else answer
    for columns in widths(scene):
        found += lines(blocks, columns, "pipe" if columns is None else str(columns))
    return found + (lines(text.blocks(made, verbose=True), None, "-v") if scene in VERBOSE else [])


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_shown_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    found = {f"$ gpucheck {made.command}  # {scene}": recorded(scene, made) for scene, made in made_of(name).items()}
    if name == "screens_devices":
        watched = devices.watched(device_scenes.DEVICES["lost and hot"](), WHEN, 2.0)
        found["$ gpucheck devices --watch 2s  # lost and hot"] = [*lines(watched, 80, "80"), *lines(watched, 40, "40")]
    hold(name, found, write=request.config.getoption("--write-record", False))


def test_an_answer_differs_from_another_as_recorded(request: pytest.FixtureRequest) -> None:
    """Of a search with `-v` in a pipe: which lines it has in place of others."""
    found = {}
    for name, base, changes in (
        ("search_healthy", answer_scenes.HEALTHY, answer_scenes.OF_HEALTHY),
        ("search_time", answer_scenes.OPEN, answer_scenes.OF_OPEN),
    ):
        first = answer_scenes.SCENES[name]
        before = shown(text.blocks(first, verbose=True))
        for title, parts in changes.items():
            results = from_json(Results, {"find_batch_size": {**base, **parts}})
            after = shown(text.blocks(replace(first, results=results), verbose=True))
            found[f"$ gpucheck find-batch-size  # {name}, but {title}"] = [
                *(f"-| {line}".rstrip() for line in before if line not in after),
                *(f"+| {line}".rstrip() for line in after if line not in before),
            ]
    hold("screens_searches", found, write=request.config.getoption("--write-record", False))


def made_of(name: str) -> dict[str, Report]:
    return {scene: make() for scene, make in SCENES[name].items()}


def test_every_scene_that_is_named_is_there() -> None:
    assert {*IN_EVERY_WIDTH, *AT_80_AND_40, *AT_80, *AT_120, *VERBOSE} <= EVERY.keys()


@pytest.mark.parametrize("scene", EVERY)
def test_no_line_is_wider_than_the_screen(scene: str) -> None:
    made = EVERY[scene]()
    for verbose in (False, True):
        blocks = text.blocks(made, verbose=verbose)
        for columns in (100, 60, 40):
            assert max(map(len, shown(blocks, columns))) <= columns


# A screen of a machine or a program without a fault.
SOUND = (
    *("healthy", "one healthy and idle", "a mask", "copies that reach the link", "all is sound", "sound products"),
    *("a card that pays", "search_healthy", "smoke_healthy", "smoke_cpu", "doctor_healthy"),
)


@pytest.mark.parametrize("scene", SOUND)
def test_a_healthy_screen_has_24_lines_at_most(scene: str) -> None:
    assert len(shown(text.blocks(EVERY[scene]()), 80)) <= 24


@pytest.mark.parametrize("scene", EVERY)
def test_a_first_line_begins_with_a_sign_or_a_word_in_ascii_too(scene: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal.show(terminal.console(stream), text.blocks(EVERY[scene]()))
    stream.seek(0)
    first = stream.readline()
    assert first.startswith(("+ ", "x ", "! ", "? ", "- ")) or first[0].isalpha()
