"""What a command has written, with what differs from run to run and from machine to machine taken out."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Of these only that they are there: times of this run, and what this machine and this process happen to be.
MASKED = frozenset(
    {"started", "elapsed_s", "gpucheck", "memory", "telemetry", "started_s", "samples_s", "cores_used_by_others"}
    | {"boot_id"}
)
# A number stands for itself where it is a size, a count or a bound that the case sets; elsewhere it is one of this run.
NUMBER = re.compile(r"(?<![\w.:#])-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?![\w:]*[a-zA-Z]{3}-)")
# What was computed, and differs in its last digits from one processor to another; the steady clock makes none such.
COMPUTED = re.compile(r"(?<![\w.])-?\d+\.\d{7,}(?:e[+-]?\d+)?|(?<![\w.])-?\d+(?:\.\d+)?e-\d+")
UNIT = re.compile(r"# ?(?:[numk]?s|µs|[KMGT]i?B(?:/s)?|B|[KMGT]?FLOP/s)\b")


def document(found: Mapping[str, Any], *, figures: bool) -> list[str]:
    """The lines of a JSON document: one for each of its entries, a row and a finding each."""
    lines = []
    for name, value in found.items():
        if name == "argv":  # the title of the case
            continue
        if name == "facts":
            lines.append(f"facts: {keys(value)}")
        elif name == "measurements":
            lines += [f"{name}[{place}]: {compact(_row(entry, place), figures)}" for place, entry in enumerate(value)]
        elif isinstance(value, list):
            lines += [f"{name}[{place}]: {compact(entry, figures)}" for place, entry in enumerate(value)]
        elif name == "results":
            lines += [f"results.{part}: {compact(entry, figures)}" for part, entry in value.items()]
        elif name not in MASKED:
            lines.append(f"{name}: {compact(value, figures or name == 'summary')}")
        else:
            lines.append(f"{name}: #")
    return lines


def _row(row: Mapping[str, Any], place: int) -> Any:
    """The first row as it is; of the others what tells them apart."""
    return row if place == 0 else {name: row[name] for name in ("device", "case", "rate", "flags")}


def keys(value: Any) -> Any:
    """The names of what was read of a machine."""
    return json.dumps(sorted(value))


def compact(value: Any, figures: bool) -> str:
    return json.dumps(masked(value, figures), ensure_ascii=False, separators=(",", ":"))


def masked(value: Any, figures: bool) -> Any:
    """A value without what varies; where no `figures` are to be kept, without any number."""
    match value:
        case dict():
            return {name: "#" if name in MASKED else _part(name, part, figures) for name, part in value.items()}
        case list() if len(value) > 8 and all(isinstance(part, int | float) for part in value):
            return "#…"
        case list():
            return [masked(part, figures) for part in value]
        case bool() | None:
            return value
        case int() | float():
            return value if figures and not COMPUTED.fullmatch(repr(value)) else "#"
        case str():
            return text(value, figures=figures)
    return value


def _part(name: str, value: Any, figures: bool) -> Any:
    """A value by its name: the lines of a program stand in the order of their times, which is none where figures go."""
    inner = masked(value, figures)
    return sorted(inner, key=json.dumps) if name == "lines" and not figures else inner


def text(said: str, *, figures: bool) -> str:
    """A text without what varies; where no `figures` are to be kept, without numbers."""
    said = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "#date", said)
    said = re.sub(r"gpucheck \d[\w.+]*", "gpucheck #version", said)
    said = re.sub(r"#version \(.*/gpucheck\)", "#version (#folder)", said)
    said = re.sub(r"Python \d[\w.+]*", "Python #version", said)
    said = re.sub(r' time="[\d.]+"', ' time="#"', said)
    said = re.sub(r"(_timestamp_seconds\S*) \d[\d.e+]*", r"\1 #", said)
    said = COMPUTED.sub("#", said)
    if figures:
        return said
    said = UNIT.sub("#", NUMBER.sub("#", said))
    return re.sub(r"#( ?/ ?#)*", "#", said)


def page(said: str, *, figures: bool, ragged: bool = False) -> list[str]:
    """The lines of a page; of a traceback, which tells how the code is cut up, its first line and its last.

    Without figures, and where it is ragged, columns are as wide as they happen to be: blanks and rules are one.
    """
    lines, inside = [], False
    for line in text(said, figures=figures).splitlines():
        inside = line.startswith("Traceback (") or (inside and line.startswith(" "))
        lines += [line] if not inside or line.startswith("Traceback (") else []
    if figures and not ragged:
        return [line.rstrip() for line in lines]
    return [re.sub(r"─+", "─", re.sub(r"-{3,}", "---", " ".join(line.split()))) for line in lines]


def differences(recorded: Sequence[str], found: Sequence[str]) -> str:
    """What stands in one and not in the other, as a person reads it: of a long line the place where it differs."""
    told: list[str] = []
    for tag, low, high, begin, end in difflib.SequenceMatcher(None, recorded, found, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        title = next((line for line in reversed(recorded[:low]) if line.startswith("$ ")), "")
        old, new = recorded[low:high], found[begin:end]
        told += [] if title in told else [title]
        if len(old) == len(new):
            for pair in zip(old, new, strict=True):
                told += [f"- {part}\n+ {other}" for part, other in [_around(*pair)]]
        else:
            told += [f"- {line}" for line in old] + [f"+ {line}" for line in new]
    return "\n".join(told)


def _around(old: str, new: str) -> tuple[str, str]:
    """Two lines from shortly before they part on, each with its beginning."""
    same = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    begin = max(0, same - 60)
    head = f"{old[: old.find('|') + 20]} … " if begin > 30 else ""
    begin = begin if head else 0
    return head + old[begin : same + 120], head + new[begin : same + 120]
