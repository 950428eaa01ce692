"""The answer of `compare`: the rows of two documents side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Change = Literal["slower", "faster", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One measurement of both reports. Times are seconds per call, medians over the runs' medians.

    `ratio` is new time over old by the runs' lower quartiles, `ci_low` to `ci_high` its interval at `ci_level`; None
    with fewer than 3 runs a side. `differences` names what differs in method, `why` why it cannot be told. `disturbed`
    is what disturbed most of the new side's runs: others on the CPU, a throttled clock; `old_disturbed` the same of
    the old side.
    """

    name: str
    case: dict[str, Any]
    old_device: str
    new_device: str
    old_runs: int
    new_runs: int
    old_s: float
    new_s: float
    old_rate: float | None
    new_rate: float | None
    rate_unit: str | None
    ratio: float
    ci_low: float | None
    ci_high: float | None
    ci_level: float | None
    change: Change
    why: str | None = None
    differences: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    old_disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that the two reports say of each other. What differs between them stands as `old → new`.

    `alpha` is the chance that a table without a change shows one, `same_within` what counts as the same: 0.05 is ±5 %.
    `old_command` and `new_command` made the documents, with so many measurements in each.
    """

    rows: tuple[ComparedRow, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    machine: tuple[str, ...]
    software: tuple[str, ...]
    alpha: float
    same_within: float
    old_command: str = ""
    new_command: str = ""
    old_measurements: int | None = None
    new_measurements: int | None = None
