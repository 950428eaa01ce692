"""Which rows of two reports are the same measurement, and what differs between the reports. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.measure import runs
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report

METHOD_FIELDS = ("clock", "launch", "cache", "precision_requested", "precision_observed", "numa")
# How a difference in what a call does begins.
OTHER_WORK = "work per call"

Pair = tuple[Measurement, Measurement]


def label(row: Measurement) -> str:
    """A row in words: its name, its case and its device."""
    return f"{row.name} {case_text(row.case)} on {row.device.id}"


def case_text(case: Mapping[str, Any], between: str = ", ") -> str:
    """What a case says, in words; sizes in their units."""
    return between.join(
        units.capacity(value) if name.endswith("_bytes") else str(value) for name, value in case.items()
    )


def _case(row: Measurement) -> tuple[str, str, str]:
    return row.name, row.device.id.partition(":")[0], json.dumps(to_json(row.case), sort_keys=True)


def _method(row: Measurement) -> tuple[str | None, ...]:
    return tuple(getattr(row.method, name) for name in METHOD_FIELDS)


# From the strictest on: what one leaves unmatched the next may match. All agree in name, kind of device and case.
_KEYS: tuple[Callable[[Measurement], object], ...] = (
    lambda row: (_case(row), _method(row), row.device.id),
    lambda row: (_case(row), _method(row)),
    lambda row: (_case(row), row.device.id),
    _case,
)


def matched(old: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[list[Pair], list[str], list[str]]:
    """The pairs in the new report's order, and the rows of either side that have no partner or no time."""
    left = [row for row in old if runs.medians(row)]
    partner: dict[int, Measurement] = {}
    for key in _KEYS:
        for place, row in enumerate(new):
            if place in partner or not runs.medians(row):
                continue
            found = next((other for other in left if key(other) == key(row)), None)
            if found is not None:
                left = [other for other in left if other is not found]
                partner[place] = found
    taken = {id(row) for row in partner.values()}
    return (
        [(partner[place], row) for place, row in enumerate(new) if place in partner],
        [label(row) for row in old if id(row) not in taken],
        [label(row) for place, row in enumerate(new) if place not in partner],
    )


def differences(old: Measurement, new: Measurement) -> tuple[str, ...]:
    """What differs between the methods of two rows, and between what a call of them does."""
    pairs = [(name, getattr(old.method, name), getattr(new.method, name)) for name in METHOD_FIELDS]
    told = [f"{name} {_word(a)} → {_word(b)}" for name, a, b in pairs if a != b]
    if old.work != new.work:
        told.append(f"{OTHER_WORK} {work_text(old)} → {work_text(new)}")
    return tuple(told)


def _word(value: object) -> str:
    return "unknown" if value is None else str(value)


def work_text(row: Measurement) -> str:
    """What a call does, in words."""
    return " and ".join(f"{amount:g} {kind}" for kind, amount in row.work.items())


def facts_differ(old: Report, new: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What differs between the machines, and between the software on them."""
    return (
        _unequal(_machine(old.facts, old.measurements), _machine(new.facts, new.measurements)),
        _unequal(_software(old), _software(new)),
    )


def _unequal(old: dict[str, object], new: dict[str, object]) -> tuple[str, ...]:
    names = dict.fromkeys([*old, *new])
    return tuple(
        f"{name} {_word(old.get(name))} → {_word(new.get(name))}" for name in names if old.get(name) != new.get(name)
    )


def _machine(facts: Facts, measurements: Iterable[Measurement]) -> dict[str, object]:
    """What the devices measured are, and the host's processor: copies and launches run on it."""
    seen: dict[str, object] = {}
    for device in dict.fromkeys(row.device for row in measurements):
        seen[f"{device.id} is"] = device.name
        seen[f"{device.id} UUID"] = device.uuid
    for cpu in (device for device in facts.devices if device.kind == "cpu"):
        seen["processor"], seen["cores allowed"] = cpu.name, cpu.cores_allowed
    if facts.host is not None:
        seen["system"], seen["memory"] = facts.host.system, _capacity(facts.host.memory_total_bytes)
    return {name: value for name, value in seen.items() if value is not None}


def _capacity(size: int | None) -> str | None:
    return None if size is None else units.capacity(size)


def _software(report: Report) -> dict[str, object]:
    facts = report.facts
    seen = {
        "gpucheck": report.gpucheck,
        "torch": facts.torch.version if facts.torch else None,
        "driver": facts.driver.version if facts.driver else None,
        "Python": facts.python.version if facts.python else None,
        "kernel": facts.host.release if facts.host else None,
    }
    return {name: value for name, value in seen.items() if value is not None}
