"""The answer of `doctor`: the broken stage, the state of every stage, and the results of a short load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# `held` was seen to hold, `broken` is where the diagnosis stands, `unreached` lies above it and was not seen to hold;
# `unknown` is not known and `absent` does not apply here.
RungState = Literal["held", "broken", "unreached", "unknown", "absent"]
# `ran` to its end; `failed` with an error, a crash or a hang; `none` where it was not started, or had no memory.
LoadOutcome = Literal["ran", "failed", "none"]


@dataclass(frozen=True, slots=True)
class RungStanding:
    """One stage: its state and the evidence, and the reason if the stage was not seen to work."""

    rung: str
    state: RungState
    shown_by: str = ""


@dataclass(frozen=True, slots=True)
class CardUnderLoad:
    """One GPU under load: `telemetry` as measurements carry it, or None and why (`reason`); `held_by` is in how many of
    its readings each of NVML's reasons for a lower clock was given."""

    device: str
    telemetry: dict[str, Any] | None
    reason: str | None
    held_by: dict[str, int]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The load, `load_s` long: what became of it, and why where it did not run; `left_out` are GPUs that were not
    loaded, with the reason."""

    outcome: LoadOutcome
    reason: str | None
    load_s: float | None
    cards: tuple[CardUnderLoad, ...]
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The diagnosis: the ID of the first broken condition and its stage, None if there is none. `rungs` are all stages
    from the hardware up, `consequences` the ids of conditions that hold only because of the first, and `asked` is how
    many were asked. `torch_works` is whether torch was seen to run a kernel on a device; `load` is None where no load
    was tried."""

    first: str | None
    broken: str | None
    rungs: tuple[RungStanding, ...]
    consequences: tuple[str, ...]
    asked: int
    torch_works: bool
    load: LoadResult | None
