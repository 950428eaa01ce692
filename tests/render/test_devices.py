"""The screen of `devices` beside its record: several faults at once, a watch that a small screen cuts, colours."""

from __future__ import annotations

import datetime
import io
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from device_scenes import LOST, card, devices, eight, idle
from shown import shown

from gpucheck.devices.command import command
from gpucheck.devices.options import DevicesOptions
from gpucheck.errors import UNDECIDED
from gpucheck.machine import driver_reads
from gpucheck.render import devices as layout
from gpucheck.render import terminal, text
from gpucheck.report.facts import (
    Changes,
    ClockReasons,
    Ecc,
    Link,
    NvLink,
    RemappedRows,
    SramEcc,
)
from gpucheck.report.report import Collector, Report

Fake = Callable[..., Path]

WHEN = datetime.datetime(2026, 1, 31, 12, 0, 4, tzinfo=datetime.timezone.utc)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_clock_time", lambda moment: moment.strftime("%H:%M:%S"))


def test_the_health_of_a_gpu_that_nvml_does_not_list_is_unknown_and_no_pass() -> None:
    for cards in ((card(0), card(1, nvml_index=None)), (card(1, nvml_index=None),)):
        report = devices(*cards)
        assert shown(text.blocks(report), 80)[0] == "? GPU health unknown: NVML does not list cuda:1"
        assert report.summary.exit == UNDECIDED


# -- a watch -----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def last_frame(written: str) -> list[str]:
    """The lines of the last frame on the alternate screen, without colours."""
    frame = written.partition("\x1b[?1049l")[0].split("\x1b[H")[-1]
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).strip().split("\n")]


@pytest.mark.parametrize("height", [6, 12, 60])
def test_a_small_terminal_cuts_the_table_and_no_fault(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": str(height)}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    made = eight(LOST, card(0, temperature_celsius=91.0), idle(1, recovery_action="gpu_reset"))
    with terminal.refreshing(stream) as show:
        show(layout.watched(made, WHEN, 2.0))
        show(layout.watched(made, WHEN, 2.0))
    seen = last_frame(stream.getvalue())
    assert len(seen) <= height
    assert seen[1].startswith("✗ cuda:3  lost")
    # The terminal is as it was before, and the last reading stays in sight, whole.
    after = stream.getvalue().partition("\x1b[?1049l")[2]
    assert "lost" in after and "load 0.40" in after


# -- several faults at once --------------------------------------------------------------------------------------------

REASONS = ("hw_slowdown", "hw_thermal_slowdown")
# What may be wrong with a card, the worst first: it cannot be used, its results may be wrong, it is slow.
WRONG: tuple[dict[str, Any], ...] = (
    {"state": "no power", "uuid": None, "name": None, "pci_address": None, "utilization_percent": None},
    {"recovery_action": "gpu_reset"},
    {"remapped_rows": RemappedRows(0, 9, False, True)},
    {"sram_ecc": SramEcc(0, 0, 0, 7, True)},
    {"ecc": Ecc(True, 0, 3)},
    {"clock_reasons": ClockReasons(0x48, REASONS), "changes": Changes(1.0, lasting_clock_reasons=REASONS)},
    {"nvlinks": tuple(NvLink(link, active=False) for link in range(18))},
    {"remapped_rows": RemappedRows(0, 1, True, False)},
    {"temperature_celsius": 88.0},
    {"pcie": Link(5, 8, 5, 16)},
    {"ecc": Ecc(True, 900, 0)},
)


@pytest.mark.parametrize("seed", range(20))
def test_of_several_faults_the_worst_card_stands_first(seed: int) -> None:
    draw = random.Random(seed)
    faults = sorted(draw.sample(range(len(WRONG) - 1), draw.randint(1, 5)))
    places = draw.sample(range(8), len(faults))
    links = {"nvlinks": tuple(NvLink(link, active=True) for link in range(18))}
    made = {place: card(place, **{**links, **WRONG[fault]}) for place, fault in zip(places, faults, strict=True)}
    # What is no fault stands beside them.
    others = [idle(n, **links) if draw.random() < 0.5 else card(n, **{**links, **WRONG[-1]}) for n in range(8)]
    first, *_ = text.blocks(eight(*[made.get(place, others[place]) for place in range(8)]))
    line = shown([first])[0]
    assert re.search(rf"cuda:{places[0]}\b|NVML {places[0]}\b", line), line


DEAD = {8: "power cable", 11: "interrupts", 15: "lost", 16: "reset", 999: "not answering"}


# An unknown error in place of one answer is not the card's end.
ASKED = [(8, "uuid"), (11, "temperature"), (15, "handle"), (16, "temperature")]


@pytest.mark.parametrize(("code", "question"), [*ASKED, (999, "handle")])
def test_what_is_unread_because_of_a_dead_card_is_not_listed(fake_driver: Fake, code: int, question: str) -> None:
    others = "0.remap.pending=1\n2.ecc.volatile_uncorrected=2\n"
    fake_driver(f"nvml.count=4\ncuda.order=0,1,2\n{others}3.{question}=!{code}\n")
    lines = shown(text.blocks(read_and_judged()), 100)
    assert lines[0].startswith("✗ NVML 3  ") and DEAD[code] in lines[0]
    assert not any("unread" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("question", ["handle", "power", "ecc", "nvlink.state"])
def test_a_card_that_hangs_stands_alone_at_the_top(
    fake_driver: Fake, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reads, "ANSWER_S", 2.5)
    monkeypatch.setattr(driver_reads, "GPU_START_S", 0.0)
    fake_driver(f"nvml.count=8\ncuda.order=0,1,2\nnvlinks=2\n3.{question}=hang\n")
    lines = shown(text.blocks(read_and_judged()), 100)
    assert lines[0].startswith("✗ NVML 3  not answering: NVML did not answer within")
    assert [line for line in lines[: lines.index("")] if line[:1] in "✗!?"] == lines[:1]


@pytest.mark.parametrize("code", [1, 15, 999])
def test_a_card_that_nvml_counts_and_gives_no_handle_of_is_bad_and_first(fake_driver: Fake, code: int) -> None:
    fake_driver(f"nvml.count=3\ncuda.order=0,1\n0.remap.pending=1\n2.handle=!{code}\n")
    report = read_and_judged()
    assert report.summary.exit == 1
    assert shown(text.blocks(report), 120)[0].startswith("✗ NVML 2  ")


def read_and_judged() -> Report:
    """`devices` on the driver that stands here."""
    collector = Collector()
    command(DevicesOptions(), collector)
    return collector.report(version="0", command="devices", argv=(), started="", elapsed_s=0.0)


# --- narrow screens ---------------------------------------------------------------------------------------------------


def test_of_gpus_with_one_uuid_the_faulty_one_is_named(fake_driver: Fake) -> None:
    """As of cloned virtual machines."""
    fake_driver("nvml.count=3\ncuda.order=0,1,2\nprocesses=\nuuid=GPU-1\n1.recovery_action=1\n")
    report = read_and_judged()
    lines = shown(text.blocks(report), 120)
    assert [line.split()[:2] for line in lines if "  ✗ reset needed" in line] == [["–", "1"]]
