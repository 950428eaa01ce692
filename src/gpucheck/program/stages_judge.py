"""Find the busiest stage of a pipeline by each rank's own time in a step. No I/O, no torch.

A rank behind a slow rank is late too, so times of arrival do not show which rank is slow. A rank's own time is a step
without the waits for other ranks. It is compared between siblings of a stage, and with earlier steps.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpucheck import stats
from gpucheck.program import ranks_judge
from gpucheck.program.ranks_judge import APART, LEAST_S, LEAST_SHARE, LEVEL, JobVerdict

# A stage is called the busiest, or a rank slower, from this share on: work around sends differs by some percent.
MORE = 0.1
# The fewest steps before and after a slowdown, and the share of these steps that must show the slowdown.
FEWEST_SIDE, NEARLY = 20, 0.9


@dataclass(frozen=True, slots=True)
class Pipeline:
    own_s: Mapping[int, Sequence[float]]  # each rank's own time in each step
    step_s: Sequence[float]
    peers: Mapping[int, Collection[int]]  # the ranks with which a rank exchanges data
    groups: Collection[frozenset[int]]  # the members of each group with collectives


def judge(pipeline: Pipeline) -> JobVerdict:
    """Return the verdict. A `straggler` with `since` is slower than before; another is slower than its siblings."""
    own, count = pipeline.own_s, len(pipeline.step_s)
    if count < ranks_judge.FEWEST_STEPS - APART:
        return JobVerdict("not_decided", reason=ranks_judge.too_few(count + APART))
    step_s = statistics.fmean(pipeline.step_s)
    least = max(LEAST_SHARE * step_s, LEAST_S)
    all_stages = stages(pipeline)
    slow: dict[int, float] = {}
    for stage in (stage for stage in all_stages if len(stage) > 1):
        slow |= _behind_siblings({rank: own[rank] for rank in stage}, least)
    if slow:
        return JobVerdict("straggler", tuple(sorted(slow)), max(slow.values()), slow)
    slower = {rank: at for rank in own if (at := _slower_since(own[rank], pipeline.step_s, least)) is not None}
    # A slowdown of most ranks is caused by the machine or by the job's work.
    if slower and len(slower) <= len(own) / 2:
        since = min(slower.values())
        cost = statistics.fmean(pipeline.step_s[since:]) - statistics.fmean(pipeline.step_s[:since])
        gains = {rank: _gain(own[rank], at) for rank, at in slower.items()}
        return JobVerdict("straggler", tuple(sorted(slower)), cost, gains, since=since + APART + 1)
    busiest = _busiest(all_stages, pipeline, least)
    return JobVerdict("busiest" if busiest else "alike", busiest)


def stages(pipeline: Pipeline) -> list[tuple[int, ...]]:
    """Return the ranks of each stage. The siblings of a stage share a group and exchange no data within the group. If a
    rank exchanges data with a peer, the rank's siblings do so with the peer's. Tied weights make no siblings."""
    peers = pipeline.peers
    apart = [group for group in pipeline.groups if not any(group & set(peers.get(rank, ())) for rank in group)]
    known = [sorted(group & pipeline.own_s.keys()) for group in apart]
    pairs = {frozenset(pair) for ranks in known for pair in itertools.combinations(ranks, 2)}

    def are_siblings(a: int, b: int) -> bool:
        peers_a, peers_b = set(peers.get(a, ())), set(peers.get(b, ()))
        if len(peers_a) != len(peers_b) or peers_a & peers_b:
            return False
        return all(any(frozenset((x, y)) in pairs for y in peers_b) for x in peers_a)

    stage_of = {rank: rank for rank in pipeline.own_s}
    for a, b in sorted(map(sorted, pairs)):
        if are_siblings(a, b) and stage_of[a] != stage_of[b]:
            old, new = stage_of[b], stage_of[a]
            stage_of = {rank: new if stage == old else stage for rank, stage in stage_of.items()}
    members: dict[int, list[int]] = {}
    for rank, stage in stage_of.items():
        members.setdefault(stage, []).append(rank)
    return [tuple(ranks) for ranks in members.values()]


def _behind_siblings(own: Mapping[int, Sequence[float]], least: float) -> dict[int, float]:
    """Return the ranks of a stage whose own time is longer than the others', each with the difference in seconds."""
    late: dict[int, list[float]] = {rank: [] for rank in own}
    for values in zip(*own.values(), strict=True):
        ordered = sorted(values)
        for rank, value in zip(own, values, strict=True):
            late[rank].append(value - stats.median_without(ordered, ordered.index(value)))
    errors = ranks_judge.errors(late, 1 - 2 * LEVEL / len(own))
    means = {rank: statistics.fmean(values) for rank, values in late.items()}
    slow = {rank: mean for rank, mean in means.items() if mean > max(least, errors[rank])}
    return slow if len(slow) <= len(own) / 2 else {}


def _slower_since(own: Sequence[float], steps: Sequence[float], least: float) -> int | None:
    """Return the index of the step from which on a rank's own time and the job's step time are longer, or None."""
    sums, count = [0.0, *itertools.accumulate(own)], len(own)
    if not (places := range(FEWEST_SIDE, count - FEWEST_SIDE + 1)):
        return None

    def weight(at: int) -> float:
        return ((sums[count] - sums[at]) / (count - at) - sums[at] / at) * math.sqrt(at * (count - at))

    at = max(places, key=weight)
    before, after = own[:at], own[at:]
    if _gain(own, at) <= max(least, MORE * statistics.fmean(before)):
        return None
    if stats.quantile(after, 1 - NEARLY) <= stats.quantile(before, NEARLY):
        return None
    return at if _gain(steps, at) > least else None


def _gain(values: Sequence[float], at: int) -> float:
    return statistics.fmean(values[at:]) - statistics.fmean(values[:at])


def _busiest(all_stages: Sequence[tuple[int, ...]], pipeline: Pipeline, least: float) -> tuple[int, ...]:
    """Return the ranks of the stages with the longest own time: at most half of the stages, or none."""
    series = [
        [*map(statistics.fmean, zip(*(pipeline.own_s[rank] for rank in stage), strict=True))] for stage in all_stages
    ]
    order = sorted(range(len(all_stages)), key=lambda place: -statistics.fmean(series[place]))
    for place in range(1, len(order) // 2 + 1):
        above, below = series[order[place - 1]], series[order[place]]
        gap = [high - low for high, low in zip(above, below, strict=True)]
        error = ranks_judge.errors({0: gap, 1: [-value for value in gap]}, 1 - 2 * LEVEL / len(all_stages))[0]
        if statistics.fmean(gap) > max(least, MORE * statistics.fmean(below), error):
            return tuple(sorted(rank for stage in order[:place] for rank in all_stages[stage]))
    return ()
