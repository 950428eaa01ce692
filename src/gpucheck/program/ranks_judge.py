"""Find the rank that holds up a job, from the times at which each rank arrived at each collective. No I/O.

A rank that is late at one collective makes its siblings late at the next, so neither lateness nor durations show which
rank is slow. If all ranks wait for a collective, the last rank's arrival releases them together. The slow rank takes
longer than its siblings from the release to its next collective.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpucheck import stats

FEWEST_STEPS = 60  # for 8 blocks
# This many first steps are not judged: they load, compile and fill caches, and DDP rebuilds its buckets.
APART = 3
# A rank is named if it costs at least this share of a step, and this time, above the errors of clocks and schedulers.
LEAST_SHARE, LEAST_S = 0.02, 1e-3
LEVEL = 0.001  # the probability that chance names any rank of a sound job
# In more than this share of the steps, a rank continued before the last rank arrived: it did not wait, as with NCCL.
AHEAD = 0.02
MOST = 0.9  # the share of the cost that the costliest steps have
# Work in every n-th step is named if it takes at least this share of the job's time and happened at least this often.
LEAST_PERIODIC, FEWEST_TIMES, MOST_EVERY = 0.03, 3, 1000


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    group: str
    step: int
    arrivals: Mapping[int, float]  # each rank's time of arrival, in seconds of one clock
    waits: bool = True  # all ranks wait for the last rank; in a broadcast the source does not
    place: int = 0  # the number of earlier calls of the group in the same step

    @property
    def position(self) -> tuple[str, int]:
        return self.group, self.place


@dataclass(frozen=True, slots=True)
class JobCalls:
    ranks: tuple[int, ...]
    steps: int
    step_s: float
    calls: Sequence[CollectiveCall]
    clock_error_s: Mapping[int, float] = field(default_factory=dict)  # each rank's mean possible error over its calls
    clock_most_s: float = 0.0  # the largest possible error of any clock at any call


@dataclass(frozen=True, slots=True)
class JobVerdict:
    outcome: Literal["straggler", "alternating", "busiest", "alike", "not_decided"]
    ranks: tuple[int, ...] = ()
    cost_s: float = 0.0
    late_s: Mapping[int, float] = field(default_factory=dict)  # how much later each rank is than its siblings
    reason: str = ""
    shares: Mapping[int, float] = field(default_factory=dict)  # the share of the steps in which each rank is last
    where: tuple[str, int] | None = None  # the position in a step at which the named rank is latest
    since: int | None = None  # the step from which on the rank is slower than before; None if compared with other ranks
    every: int | None = None  # n, if the rank is late in every n-th step


def too_few(steps: int) -> str:
    return f"{steps} steps: at least {FEWEST_STEPS} are needed"


def judge(table: JobCalls) -> JobVerdict:
    if table.steps < FEWEST_STEPS:
        return JobVerdict("not_decided", reason=too_few(table.steps))
    if len(table.ranks) < 2 or not table.calls:
        return JobVerdict("not_decided", reason="no collective was seen on more than one rank")
    if _ahead(table) > AHEAD:
        why = "two jobs, wrong clocks, or calls that nobody waits for"
        return JobVerdict("not_decided", reason=f"ranks go on for a step without the last one: {why}")
    if not any(call.waits for call in table.calls):
        return JobVerdict("not_decided", reason="no collective was seen in which all ranks wait for the last one")
    if math.inf in table.clock_error_s.values():
        return JobVerdict("not_decided", reason="the clocks of the hosts could not be compared")
    lateness = _lateness(table)
    late, lost_by_step = lateness.late, lateness.lost
    steps = sorted(lost_by_step)
    if len(steps) < FEWEST_STEPS - APART:
        reason = f"collectives that all ranks wait for were seen in {len(steps)} of {table.steps} steps"
        return JobVerdict("not_decided", reason=f"{reason}: at least {FEWEST_STEPS - APART} are needed")
    series = {rank: [rows.get(step, 0.0) for step in steps] for rank, rows in late.items()}
    means = {rank: statistics.fmean(values) for rank, values in series.items()}
    # Rare long steps put every rank's mean above the median of its siblings: a shift that all ranks share.
    ordered = sorted(means.values())
    beyond = {
        rank: mean - _clock(table, rank) - max(stats.median_without(ordered, bisect.bisect_left(ordered, mean)), 0.0)
        for rank, mean in means.items()
    }
    least = max(LEAST_SHARE * table.step_s, LEAST_S)
    widths = errors(series, 1 - 2 * LEVEL / len(table.ranks))
    latest_first = sorted(late, key=lambda rank: -means[rank])
    named = tuple(rank for rank in latest_first if beyond[rank] > max(least, widths[rank]))
    lost = [lost_by_step[step] for step in steps]
    lost_s, clock_s = statistics.fmean(lost), max(_clock(table, rank) for rank in late)
    # The smallest number of steps with most of the cost.
    sums = [*itertools.accumulate(sorted(lost, reverse=True))]
    costly_steps = bisect.bisect_left(sums, MOST * sums[-1]) + 1
    shares = {rank: sum(lateness.last[step][1] == rank for step in steps) / len(steps) for rank in late}
    # If a few steps have nearly all of the cost, the time waited for each rank counts instead of its share of steps.
    weights = lateness.waited if costly_steps < len(steps) / 2 else shares
    others = max((weights[rank] for rank in late if rank not in named), default=0.0)
    alone = bool(named) and others < max(weights[rank] for rank in named) / 2
    # Chance does not make a rank late at equal distances: the rank makes a checkpoint or an evaluation.
    indices = (period(lost) or (range(0), 0.0))[0]
    regular, few_times = _regular(lateness, [steps[at] for at in indices], indices.step) if indices else (None, "")

    def cost(ranks: Iterable[int]) -> float:
        costs = lateness.costs(ranks)
        return statistics.fmean(costs.get(step, 0.0) for step in steps)

    if regular is not None and not alone and cost((regular,)) > max(LEAST_PERIODIC * table.step_s, LEAST_S):
        named, alone = (regular,), True
    if alone and (len(named) == 1 or not _alternate(named, late, steps)):
        at = lateness.at[named[0]]
        where = max(at, key=at.__getitem__)
        every = indices.step if named == (regular,) else None
        return JobVerdict("straggler", tuple(sorted(named)), cost(named), means, "", shares, where, every=every)
    reason, top = "", max(lateness.waited, key=lateness.waited.__getitem__)
    if lost_s - clock_s > least:
        if named or lateness.waited[top] <= 0.75 * sum(lost):
            return JobVerdict("alternating", tuple(sorted(named)), lost_s, means, "", shares)
        whose = f"most of it for rank {top}, in {costly_steps} of {len(steps)} steps: that may be chance"
        reason = f"waiting for the last rank costs {lost_s * 1e3:.3g} ms of a step, {few_times or whose}"
    elif clock_s > least:
        reason = f"the hosts' clocks may differ by {clock_s * 1e3:.3g} ms, which may hide a late rank"
    elif (apart := _apart(table) - 2 * clock_s) > 2 * least:
        reason = f"ranks arrive {apart * 1e3:.3g} ms apart, and no rank was seen to wait"
    return JobVerdict("not_decided" if reason else "alike", late_s=means, reason=reason, shares=shares)


def _regular(lateness: _Lateness, steps: Sequence[int], every: int) -> tuple[int | None, str]:
    """Return the rank that is last in nearly all of these periodic steps, or None and the reason of the doubt."""
    ranks = [lateness.last[step][1] for step in steps if step in lateness.last]
    if (top := max(ranks, key=ranks.count, default=None)) is None or ranks.count(top) < 0.9 * len(steps):
        return None, ""

    def chance(times: int) -> float:
        # The first step determines the rank, and the second the distance. All other steps agree by chance.
        return (1 / every) ** (times - 2) * (1 / len(lateness.late)) ** (times - 1)

    needed = next(times for times in itertools.count(FEWEST_TIMES) if chance(times) < LEVEL)
    if len(steps) >= needed:
        return top, ""
    most = f"most of it for rank {top} in every {ordinal(every)} step, {len(steps)} times: at least "
    return None, f"{most}{needed * every + APART} steps are needed to tell it from chance"


def period(values: Sequence[float]) -> tuple[range, float] | None:
    """Return the indices and the mean excess of periodic values. They, and few others, exceed half of the excess."""
    ordered, count = sorted(values), len(values)
    if count < FEWEST_TIMES * 2:
        return None
    base, middle = stats.quantile(values, 0.25), ordered[count // 2]
    for every in range(2, min(count // FEWEST_TIMES, MOST_EVERY) + 1):
        for first in range(every):
            # The first three values rule out nearly all periods.
            if first + 2 * every >= count or min(values[first : first + 2 * every + 1 : every]) < middle:
                continue
            members = values[first::every]
            extra = statistics.fmean(members) - base
            if min(members) <= base + extra / 2 or extra <= 0:
                continue
            above = count - bisect.bisect_right(ordered, base + extra / 2)
            if above - len(members) <= len(members) // 4:
                return range(first, count, every), extra
    return None


def ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else ends.get(number % 10, 'th')}"


def _ahead(table: JobCalls) -> float:
    """Return the share of steps whose last call some rank made before all ranks had made the previous step's last."""
    ends = {(call.group, call.step): call.arrivals.values() for call in table.calls if call.waits}
    pairs = [(ends[group, step - 1], at) for (group, step), at in ends.items() if (group, step - 1) in ends]
    return sum(min(after) < max(before) - 2 * table.clock_most_s for before, after in pairs) / max(len(pairs), 1)


def _apart(table: JobCalls) -> float:
    """Return the delay of the last rank after the median rank at the worst call of a step, as the mean over steps."""
    worst: dict[int, float] = {}
    for call in table.calls:
        if call.step >= APART and len(call.arrivals) > 1:
            worst[call.step] = max(worst.get(call.step, 0.0), _behind_middle(sorted(call.arrivals.values())))
    return statistics.fmean(worst.values())


def _behind_middle(ordered: Sequence[float]) -> float:
    return ordered[-1] - ordered[(len(ordered) - 1) // 2]


def errors(series: Mapping[int, Sequence[float]], level: float) -> dict[int, float]:
    """Return the possible error of each rank's mean at this level (Student's t), from 16 to 8 blocks of steps. Blocks
    become longer until neighbours correlate little. The remaining correlation widens the error."""
    blocks: dict[int, list[float]] = {}
    correlation = 0.0
    for count in range(stats.MOST_BLOCKS, stats.FEWEST_BLOCKS - 1, -2):
        for rank, values in series.items():
            size = len(values) // count
            latest = values[len(values) - size * count :]
            blocks[rank] = [statistics.fmean(latest[n * size : (n + 1) * size]) for n in range(count)]
        sample = statistics.fmean(map(_lag1, blocks.values()))
        # A short series seems to correlate less than it does, by (1 + 3 r) / n (Marriott and Pope 1954).
        if (correlation := sample + (1 + 3 * max(sample, 0.0)) / count) < stats.LARGEST_CORRELATION:
            break
    correlation = min(max(correlation, 0.0), 0.8)
    count = len(next(iter(blocks.values())))
    widened = math.sqrt((1 + correlation) / (1 - correlation) / count)
    variances = {rank: statistics.variance(means) for rank, means in blocks.items()}
    widths = {}
    for rank, variance in variances.items():
        others = statistics.fmean(value for other, value in variances.items() if other != rank)
        # All ranks together give the spread of blocks, except for a rank that varies much more than the others.
        is_separate = len(variances) == 2 or variance > 4 * others
        freedom = (count - 1) * (1 if is_separate else min(len(variances) - 1, 8))
        widths[rank] = widened * math.sqrt(max(variance, others)) * stats.student_quantile(level, freedom)
    return widths


def _lag1(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next."""
    mean = statistics.fmean(values)
    spread = sum((value - mean) ** 2 for value in values)
    along = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    return along / spread if spread else 0.0


def _clock(table: JobCalls, rank: int) -> float:
    """Return by how much a rank may seem later than its siblings because clocks differ."""
    others = [table.clock_error_s.get(other, 0.0) for other in table.ranks if other != rank]
    return table.clock_error_s.get(rank, 0.0) + statistics.median(others)


def _alternate(named: Sequence[int], late: Mapping[int, Mapping[int, float]], steps: Sequence[int]) -> bool:
    """Return whether these ranks are late in different steps, rather than together."""
    latest = dict.fromkeys(named, 0)
    for step in steps:
        first, second, *_ = sorted(named, key=lambda rank: -late[rank].get(step, 0.0))
        latest[first] += late[second].get(step, 0.0) < late[first].get(step, 0.0) / 2
    # A rank that is latest in nearly all steps does not alternate with ranks that are less late.
    return sum(latest.values()) > len(steps) / 2 and sorted(latest.values())[-2] >= max(latest.values()) / 2


@dataclass(slots=True)
class _Lateness:
    late: dict[int, defaultdict[int, float]]  # each rank's lateness behind its siblings, by step
    # For each step: the time between the last rank and the second-to-last, and the last rank.
    last: dict[int, tuple[float, int]] = field(default_factory=dict)
    waited: dict[int, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # the time that others waited for a rank
    # The step and each rank's time since the previous release, for each call that released its ranks.
    own: list[tuple[int, dict[int, float]]] = field(default_factory=list)
    # Each rank's lateness by the position of the call in a step.
    at: dict[int, dict[tuple[str, int], float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    @property
    def lost(self) -> dict[int, float]:
        """Return the time that each step lost in waiting for the last rank."""
        return self._longest(lambda times: _behind_middle(sorted(times.values())))

    def costs(self, ranks: Iterable[int]) -> dict[int, float]:
        """Return how much shorter each step would have been if these ranks had not arrived after all others."""
        chosen = frozenset(ranks)

        def cost(times: Mapping[int, float]) -> float:
            others = [time for rank, time in times.items() if rank not in chosen]
            late = [time for rank, time in times.items() if rank in chosen]
            return max(max(late) - max(others), 0.0) if others and late else 0.0

        return self._longest(cost)

    def _longest(self, seconds: Callable[[Mapping[int, float]], float]) -> dict[int, float]:
        """Return for each step the largest sum over one rank's calls: groups without a common rank wait in parallel."""
        sums: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for step, times in self.own:
            cost = seconds(times)
            for rank in times:
                sums[step][rank] += cost
        return {step: max(by_rank.values()) for step, by_rank in sums.items()}


def releases(table: JobCalls) -> tuple[list[CollectiveCall], list[bool]]:
    """Return the calls, ordered by the arrival of the last rank, and whether the other ranks waited for it."""
    calls = [call for call in table.calls if len(call.arrivals) > 1]
    calls.sort(key=lambda call: max(call.arrivals.values()))
    # Errors of two clocks can make a rank seem to continue before the last rank arrived.
    return calls, _releasing(calls, 2 * table.clock_most_s)


def _lateness(table: JobCalls) -> _Lateness:
    calls, releasing = releases(table)
    lateness = _Lateness({rank: defaultdict(float) for rank in table.ranks})
    released: dict[int, float] = {}
    for call, is_release in zip(calls, releasing, strict=True):
        if not is_release:
            continue
        # The first call of a group is left out: the cause of earlier lateness is unknown.
        if call.step >= APART and released.keys() >= call.arrivals.keys():
            times = {rank: at - released[rank] for rank, at in call.arrivals.items()}
            ordered = sorted(times.values())
            for rank, time in times.items():
                later = time - stats.median_without(ordered, bisect.bisect_left(ordered, time))
                lateness.late[rank][call.step] += later
                lateness.at[rank][call.position] += later
            latest = max(times, key=times.__getitem__)
            lateness.waited[latest] += _behind_middle(ordered)
            gap = ordered[-1] - ordered[-2], latest
            lateness.last[call.step] = max(lateness.last.get(call.step, (0.0, latest)), gap)
            lateness.own.append((call.step, times))
        released |= dict.fromkeys(call.arrivals, max(call.arrivals.values()))
    return lateness


def _releasing(calls: Sequence[CollectiveCall], slack: float) -> list[bool]:
    """Return for each call whether its ranks continued only after the last arrival. They do so at the last of DDP's
    buckets, and at a group's last call in a step, because the next step needs its result."""
    final: dict[tuple[str, int], int] = {}
    orders: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for index, call in enumerate(calls):
        if call.waits:
            final[call.group, call.step] = index
        for rank, at in call.arrivals.items():
            orders[rank].append((at, index))
    lasts = [max(call.arrivals.values()) for call in calls]
    pairs = [pair for order in orders.values() for pair in itertools.pairwise(sorted(order))]
    # By call: the time from the last rank's arrival to the same rank's next call.
    of_last = {index: after - at for (at, index), (after, _) in pairs if at == lasts[index]}
    gaps: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for (at, index), (after, following) in pairs:
        call, wait = calls[index], lasts[index] - at
        if call.step == calls[following].step >= APART and wait > 0:
            gaps[call.position].append((after - at, wait, of_last.get(index, after - at)))
    waited = {position for position, rows in gaps.items() if _is_waited_for(rows, slack)}
    ends = set(final.values())
    return [call.waits and (index in ends or call.position in waited) for index, call in enumerate(calls)]


def _is_waited_for(gaps: Sequence[tuple[float, float, float]], slack: float) -> bool:
    """Return whether ranks wait for a call's last rank. Each gap has the times from a rank's arrival to its next call
    and to the last arrival, and from the last arrival to that rank's next call."""
    if sum(gap < wait - slack for gap, wait, _ in gaps) > AHEAD * len(gaps):
        return False
    ahead = statistics.median(gap - of_last for gap, _, of_last in gaps)
    return ahead > statistics.median(wait for _, wait, _ in gaps) / 2
