"""Several calls timed in turn on the host's clock: what drifts meets all of them alike, and their ratios are paired.

For what is compared within one process: a copy alone, compute alone and both; the CPU and the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpucheck import stats
from gpucheck.machine import watchdog
from gpucheck.measure import runs, telemetry, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import (
    LONG_CALL_S,
    MOST_HOST_CALLS,
    SURELY_LONG_S,
    UNTIMED_CALLS,
    WANTED_SAMPLES,
    Beside,
    Timed,
    Timer,
    calls_for,
)
from gpucheck.report.measurement import Run, TimeStats

# Below this a comparison of two times gains nothing: they differ by more from process to process.
PRECISION = 0.02
# One window may be a hiccup, and which of two was cannot be told.
FEWEST_ROUNDS = 3
# Of an unknown call: the shorter of so many counts, for a hiccup makes it longer and never shorter.
TRIES = 2
ON_THE_HOST = "the device had nothing to do in these windows"


@dataclass(frozen=True, slots=True)
class Group:
    """The calls that are timed together: `calls`, each waited for, after `untimed` ones; `prepare` runs before."""

    timer: Timer
    call: Callable[[], object]
    calls: int = 1
    untimed: int = 0
    prepare: Callable[[int, int], None] | None = None

    def window(self, number: int) -> tuple[float, float]:
        """Run the window with this number; when it began, and how long it took, in seconds of the host's clock."""
        timer = self.timer
        # A large product takes a slow CPU long, beside an idle device.
        with watchdog.off_device() if getattr(timer, "is_cpu", False) else contextlib.nullcontext():
            if self.prepare is not None:
                self.prepare(number, self.untimed + self.calls)
            for _ in range(self.untimed):
                self.call()
            timer.synchronize()
            return timing.host_window(timer, self.call, self.calls)


def filling(timer: Timer, call: Callable[[], object]) -> Group:
    """A group with as many calls as fill a window, after one that loads what is loaded lazily."""
    Group(timer, call).window(0)
    about_s = Group(timer, call).window(0)[1]
    if about_s < SURELY_LONG_S:
        about_s = min(about_s, Group(timer, call).window(0)[1])
    if about_s < LONG_CALL_S:
        # Caches and clocks settle within a few calls; of short ones the mean of several is known better than one.
        some = Group(timer, call, calls=UNTIMED_CALLS, untimed=UNTIMED_CALLS)
        about_s = min(some.window(0)[1] for _ in range(TRIES)) / UNTIMED_CALLS
    calls = calls_for(max(about_s, 1e-9), MOST_HOST_CALLS)
    return Group(timer, call, calls, UNTIMED_CALLS if calls > 1 else 1 if about_s < LONG_CALL_S else 0)


def take(groups: Mapping[str, Group], until_s: float) -> dict[str, Timed]:
    """Time every group once in each round, each round beginning with another, until `until_s` of their clock.

    There are three rounds at least. They end earlier where every interval is narrow, which is asked only at set numbers
    of rounds.
    """
    names = list(groups)
    clock = groups[names[0]].timer
    started = timing.started_now()
    windows: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    done = 0
    while True:
        first = done % len(names)
        for name in (*names[first:], *names[:first]):
            windows[name].append(groups[name].window(done + 1))
        done += 1
        if done < FEWEST_ROUNDS:
            continue
        now_s, lengths = clock.host_now(), [[length for _, length in taken] for taken in windows.values()]
        if all(timing.enough(taken, now_s, until_s, PRECISION) for taken in lengths):
            break
    flags = ("few-samples",) if done < WANTED_SAMPLES else ()
    return {
        name: Timed(
            Run(started, groups[name].calls, tuple(s for _, s in windows[name]), tuple(at for at, _ in windows[name])),
            "host",
            "host",
            flags,
            {"in_turn_with": [other for other in names if other != name], "untimed_calls": groups[name].untimed},
        )
        for name in names
    }


def watched(
    watch: Watch, threads: Mapping[str, int], work: Callable[[], dict[str, Timed]], *, on_host: Sequence[str] = ()
) -> dict[str, tuple[Timed, Beside]]:
    """Do the work while the device is watched; `threads` is how many cores each group would use on the host.

    What a device shows while a group that is only `on_host` runs says nothing of that group.
    """
    timed, used = timing.with_cores_of_others(watch, work)
    samples = watch.take()
    found = {}
    for name, row in timed.items():
        why_not = ON_THE_HOST if name in on_host else watch.reason
        seen = (None, why_not) if why_not else telemetry.summarise(samples, row.run, runs.lead_in(row.run, row.details))
        found[name] = (row, timing.beside(row, threads[name], used, *seen))
    return found


def ratio(over: Sequence[Run], under: Sequence[Run]) -> TimeStats | None:
    """The time of a call over that of another, round by round, with its interval; None where there is no pair.

    It has no unit. The interval covers one process, from three runs on the machine. A run without its counterpart is
    left out.
    """
    return runs.time_stats(_paired(over, under))


def ratios(over: Sequence[Run], under: Sequence[Run]) -> list[float]:
    """The ratio of every round, of all runs."""
    return [sample for run in _paired(over, under) for sample in run.samples_s]


def _paired(over: Sequence[Run], under: Sequence[Run]) -> list[Run]:
    return [
        Run(
            run.started,
            1,
            tuple(
                a / run.calls_per_sample / (b / other.calls_per_sample)
                for a, b in zip(run.samples_s, other.samples_s, strict=True)
            ),
            run.started_monotonic_s,
        )
        for run, other in _same_rounds(over, under)
    ]


def _same_rounds(*parts: Sequence[Run]) -> list[tuple[Run, ...]]:
    """The runs of several groups that were taken in the same rounds: they began as one."""
    later = [{run.started: run for run in part} for part in parts[1:]]
    return [
        (first, *(part[first.started] for part in later))
        for first in parts[0]
        if all(first.started in part for part in later)
    ]


def windows(*parts: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with a window as one call; those of several groups as the sums of their windows, round by round."""
    return tuple(
        Run(
            same[0].started,
            1,
            tuple(map(sum, zip(*(run.samples_s for run in same), strict=True))),
            same[0].started_monotonic_s,
        )
        for same in _same_rounds(*parts)
    )


def window_s(runs: Sequence[Run]) -> float:
    """Seconds of a group's window: the median of all."""
    return stats.median([sample for run in runs for sample in run.samples_s])
