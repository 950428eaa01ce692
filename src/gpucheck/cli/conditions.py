"""docs/conditions.md, made from the catalogue of conditions and the table of error texts."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.doctor.catalogue import CONDITIONS
from gpucheck.doctor.condition import RUNGS, Certainty, Condition, Rung
from gpucheck.explain.pattern import readable
from gpucheck.explain.table import TEXTS
from gpucheck.explain.text import Text

_RUNGS: dict[Rung, str] = {
    "hardware": "the card on the PCI bus",
    "kernel": "the driver's kernel module",
    "nodes": "its device nodes, and a container's right to them",
    "libraries": "libcuda and libnvidia-ml",
    "nvml": "NVML starts and lists the cards",
    "cuinit": "CUDA starts",
    "devices": "CUDA shows the devices that were asked for",
    "torch": "a torch that is built for them and can be imported",
    "architecture": "with code for their architecture",
    "run": "that runs",
}
_SURE: dict[Certainty, str] = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}


def conditions() -> str:
    """The whole page."""
    parts = [
        "# Conditions and error texts",
        "Made by `scripts/docs` from the tables that `gpucheck doctor` and `gpucheck explain` read. `gpucheck explain "
        "ID` "
        'prints an entry, `gpucheck explain "TEXT"` finds the entry that a text points to.',
        "## What `gpucheck doctor` looks for",
        "From the ground up: the first rung that is broken is named, what fails only because of it is its consequence.",
    ]
    for rung in RUNGS:
        mine = [one for one in CONDITIONS if one.rung == rung]
        parts += [f"### Rung {rung}: {_RUNGS[rung]}", *_entries(mine)] if mine else []
    aside = [one for one in CONDITIONS if one.rung is None]
    parts += ["### Beside the ladder", *_entries(aside)] if aside else []
    parts += [
        "## Error texts",
        "What `gpucheck explain` knows beside them. A symptom says that something failed and not what.",
        _table(TEXTS),
    ]
    return "\n\n".join(parts) + "\n"


def _entries(found: Sequence[Condition]) -> list[str]:
    return [part for one in found for part in _entry(one)]


def _entry(one: Condition) -> list[str]:
    rows = [f"- verdict: {one.verdict}; where it is seen it is {_SURE[one.certainty]}"]
    rows += [f"- to make sure: {_cell(one.settle)}"] if one.settle else []
    rows += [f"- what to do: {_cell(one.fix)}"] if one.fix else []
    rows += [f"- error text: `{text}`" for pattern in one.texts for text in readable(pattern)]
    rows += [f"- source: {one.source}"] if one.source else []
    return [f"#### `{one.id}`: {one.title}", _cell(one.meaning), "\n".join(rows)]


def _table(texts: Sequence[Text]) -> str:
    rows = ["| id | what it says | what it means | how sure | what next |", "| :--- | :--- | :--- | :--- | :--- |"]
    for one in texts:
        sure = "symptom" if one.symptom else _SURE[one.certainty]
        cells = (f"`{one.id}`", one.title, one.meaning, sure, one.then)
        rows.append(f"| {' | '.join(_cell(cell).replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    """Text that Markdown shows as it is: what looks like a tag is none."""
    return " ".join(text.replace("<", "&lt;").split())
