"""A card is lost while memory is pinned for it: no finalizer ends the process, and no row is lost with it."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpucheck import errors
from gpucheck.machine import child

PROGRAM = Path(__file__).parent / "pinned.py"
COMMANDS = {
    "copies": "bench transfer --only copies --size 64KiB --size 128KiB --time-budget 2s",
    "both ways": "bench transfer --only both_ways --size 64KiB --time-budget 2s",
    "overlap": "bench overlap --size 1MiB --time-budget 2s",
    "smoke": "smoke --only copies --only tensors.round_trip",
}


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def loaded_already(request: pytest.FixtureRequest) -> None:
    """Let each process have torch as it begins, but for one case, which goes the whole way."""
    if not request.node.name.endswith("[copies-call-1.0]"):
        request.getfixturevalue("forked_children")


def run(command: str, place: str, after: int, *more: str) -> child.ChildResult:
    argv = [sys.executable, str(PROGRAM), place, str(after), *COMMANDS[command].split(), "--device", "cuda:0", *more]
    return child.run(argv, 300.0, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


@functools.cache
def sound(command: str) -> dict[str, Any]:
    """What a run on a sound card comes to."""
    ended = run(command, "", 0, "--quiet")
    assert ended.returncode in (errors.OK, errors.FAILED, errors.UNDECIDED), ended.stderr
    counts: dict[str, Any] = json.loads(ended.stderr.splitlines()[-1])
    return counts


@pytest.mark.parametrize("command", list(COMMANDS))
def test_what_is_pinned_is_released_once_the_card_was_waited_for(command: str) -> None:
    counts = sound(command)
    assert counts["pinned"] == counts["released"] > 0


@pytest.mark.parametrize("moment", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("place", ["synchronize", "call"])
@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_card_that_is_lost_ends_no_process(command: str, place: str, moment: float, tmp_path: Path) -> None:
    met = sound(command)["calls"][place]
    files = [tmp_path / "out.json", tmp_path / "out.xml"]
    outputs = [word for file in files for word in ("--output", str(file))]
    ended = run(command, place, round((met - 1) * moment), "--json", *outputs)
    assert ended.returncode == errors.FAILED, ended.stderr
    document = json.loads(ended.stdout)
    assert document == json.loads(files[0].read_text(encoding="utf-8"))
    assert [one["verdict"] for one in document["findings"] if one["id"] == "device.error"] == ["fail"]
    names = [case.get("name") or "" for case in ElementTree.parse(files[1]).iter("testcase")]
    assert "device.error" in names
