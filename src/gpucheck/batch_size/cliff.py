"""Memory that overflows without an error: Windows' and WSL's drivers, and memory shared with the host, then go slow.

Nothing is raised and the allocator's peak may be within the budget; what tells is the time of a step. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.outcome import FITS

# Users report steps 50 times as slow once a driver falls back to the host's memory, some twice. Throttling and
# clocks that change stay below a factor of two.
CLIFF = 3.0
# A device far from full does not spill: what is slow there has another cause.
NEAR_BUDGET = 0.5
# Steps after the first, which warms up: what disturbs one of them is noise, spilling slows all.
LEAST_STEPS = 2
# A step that fills a memory takes tens of milliseconds at any card's rate. What is quicker is scheduling.
LEAST_EXCESS_S = 0.02
# A loss over all pairs of a batch grows with its square; nothing that is trained grows faster.
STEEPEST = 2.0
# Growth is read off sizes that are at least so many times apart, else it is noise.
APART = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The steps of one trial, in seconds, the first included."""

    size: int
    steps_s: tuple[float, ...]

    @property
    def fastest_s(self) -> float | None:
        """The fastest step after the first; None where there are too few."""
        return min(self.steps_s[1:]) if len(self.steps_s) > LEAST_STEPS else None


def judged(result: Result, before: Sequence[Result], budget_bytes: int) -> Result:
    """A trial that raised nothing, as `spill` where its steps say so against those of the trials `before`.

    Only for devices whose memory can spill, and sizes of a batch: along an axis time grows faster by itself.
    """
    passed = [Pace(other.size, other.steps_s) for other in before if other.outcome == FITS]
    times = slowdown(Pace(result.size, result.steps_s), passed, (result.peak_bytes or 0) / budget_bytes)
    if times is None:
        return result
    why = f"its steps took {times:.1f} times as long as smaller sizes suggest: memory spilled over to the host's"
    return replace(result, outcome="spill", reason=why)


def slowdown(trial: Pace, passed: Sequence[Pace], filled: float) -> float | None:
    """How many times longer a trial's steps took than smaller sizes that passed suggest; None short of a cliff.

    `filled` is its peak as a share of the budget. Time is taken to grow with the size, or faster where `passed` show
    it; after a single one, as fast as any workload's does.
    """
    took = trial.fastest_s
    smaller = sorted((p.size, s) for p in passed if p.size < trial.size and (s := p.fastest_s) is not None)
    if took is None or not smaller or filled < NEAR_BUDGET:
        return None
    size, seconds = smaller[-1]
    expected = float(seconds * (trial.size / size) ** _growth(smaller))
    if took - expected < LEAST_EXCESS_S or took < CLIFF * expected:
        return None
    return took / expected


def _growth(smaller: Sequence[tuple[int, float]]) -> float:
    """The power of the size with which time grows, from 1 to the steepest."""
    size, seconds = smaller[-1]
    before = next(((s, t) for s, t in reversed(smaller) if s * APART <= size), None)
    if before is None:
        return STEEPEST
    return min(STEEPEST, max(1.0, math.log(seconds / before[1]) / math.log(size / before[0])))
