"""Reports of every command for the pages that are made of them, and the same with hostile text in every field."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import answer_scenes
import bench_scenes
import program_scenes
import stressed
from tests.fleet.nodes import node, slower

from gpucheck.fleet.judge import judge
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Answered, Judged
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.fleet import NodePart, NodeProblem
from gpucheck.report.results.run import Traced, TracedLine

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
HOSTILE = (
    '"\'></title></style></textarea><img src=x onerror="owned=1"><script>owned=1</script>'
    "<svg onload=owned=1><a href=javascript:owned=1>{{ 7*7 }}{% raw %}--><!--\u202e\x1b[2J\x00&lt;&#60;"
)


def fleet(count: int) -> Report:
    """A fleet of so many nodes, of which some are bad, silent or slow."""
    nodes = []
    for number in range(count):
        one = node(f"n{number:04}")
        if number % 97 == 5:
            one = slower(one, "cuda:3", 0.2)
        if number % 211 == 7:
            problem = NodeProblem("smoke", "fail", "numerics.matmul", "a product is wrong", "1 of 9 elements")
            one = node(f"n{number:04}", exit=1, parts=(NodePart("smoke", 1, 9.0),), problems=(problem,))
        if number % 151 == 9:
            one = node(f"n{number:04}", exit=None, step="smoke")
        nodes.append(one)
    judged = judge([*nodes])
    collector = Collector()
    collector(Answered("fleet_judge", judged.result))
    for finding in judged.findings:
        collector(Judged(finding))
    return collector.report(version="0", command="fleet judge", argv=(), started="", elapsed_s=1.0)


def program() -> Report:
    """A run that waited, with memory by line."""
    line = TracedLine("/job/train.py", 40, "Net.head", "forward", 3 * 2**30, 0.0, None)
    traced = Traced(3, 4 * 2**30, 1.2, (line,))
    return program_scenes.document(replace(program_scenes.a_run(0.4, data=10, copies=50, waits=5), traced=traced))


@functools.cache
def everything() -> dict[str, Report]:
    """A report of each kind by a name for it, made once for all files of tests that are of each."""
    saved = {path.stem: path for path in sorted(PICTURES.glob("*.json"))}
    found = {name: from_json(Report, json.loads(path.read_text(encoding="utf-8"))) for name, path in saved.items()}
    found |= {f"answer {name}": scene for name, scene in answer_scenes.SCENES.items()}
    found |= {f"bench {name}": made() for name, made in bench_scenes.SCENES.items()}
    found |= {f"stress {name}": scene for name, scene in stressed.SCREENS.items()}
    return found | {"run": program(), "fleet": fleet(30)}


# What chooses a layout or is one of a few words: another text there is no document of ours.
_NOT_FREE = ("schema", "command", "verdict", "change")


# Words that a renderer looks up: of these a document is not ours any more, and `gpucheck report` refuses it.
_LOOKED_UP = ("case", "details", "evidence", "figure", "shares", "devices", "fits", "idioms", "checks", "least")
_WHOLE = ("results", "measurements")


def hostile(report: Report, made: Callable[[Report], object]) -> Report:
    """The report with hostile text behind every text that may be any.

    Where a document of it is none, or `made` cannot be, words that are looked up by their text are left.
    """
    for spared in ((), *((one,) for one in _LOOKED_UP), _LOOKED_UP, *((*_LOOKED_UP, one) for one in _WHOLE), _WHOLE):
        document = to_json(report)
        try:
            spoilt = _spoilt(document, list(_texts(document, spared)))
            made(spoilt)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            continue
        return spoilt
    raise AssertionError("nothing could be spoilt")


def _spoilt(document: Any, places: list[tuple[Any, Any]]) -> Report:
    before = [(holder, key, holder[key]) for holder, key in places]
    for holder, key, text in before:
        holder[key] = f"{text}{HOSTILE}"
    while True:
        try:
            return from_json(Report, document, foreign=True)
        except TypeError as error:
            # One of a few words after all: the message names its field.
            name = str(error).partition(" ")[0]
            mine = [place for place in before if place[1] == name and place[0][name] != place[2]]
            if not mine:
                raise
            for holder, key, text in mine:
                holder[key] = text


def _texts(value: Any, spared: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """Each text of a document, by what holds it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if isinstance(one, str) and key not in _NOT_FREE:
            yield value, key
        elif key not in spared:
            yield from _texts(one, spared)
