"""The parts of `bench transfer`: what each measures, when it applies, its share of the time, and who judges it.

A part's measurements have a name of their own; its judge and its renderer pick them by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpucheck.bench.transfer import (
    both_ways,
    both_ways_judge,
    bound_judge,
    idioms_judge,
    idioms_measure,
    judge,
    measure,
    on_device,
    peer,
    peer_judge,
    together,
    together_judge,
)
from gpucheck.bench.transfer.setting import Setting, Together
from gpucheck.machine.accel import Accel
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import TransferResult

# Pure: the measurements of one device (of the parts that concern several, all there are) and the facts. A judge is also
# asked about the rows of several processes put together.
Judge = Callable[[Sequence[Measurement], Facts], Iterable[Finding]]
# The device's entry in `results.bench_transfer` with what the part derives from the same.
Answer = Callable[[TransferResult, Sequence[Measurement], Facts], TransferResult]


@dataclass(frozen=True, slots=True)
class Part:
    """A part that concerns one device. `name` is its measurements', `weight` its share of the time among the parts.

    `judge` is asked where the part ran, with every measurement of the device, those of other parts too.
    """

    id: str
    name: str
    weight: float
    rows: Callable[[Setting], Iterator[Measurement]]
    judge: Judge
    applies: Callable[[Accel], bool] = lambda accel: True
    answer: Answer = lambda result, measurements, facts: result


@dataclass(frozen=True, slots=True)
class TogetherPart:
    """A part that concerns several devices at once: after these one by one, where more than one was chosen."""

    id: str
    name: str
    weight: float
    rows: Callable[[Together], Iterator[Measurement]]
    judge: Judge
    applies: Callable[[Sequence[str]], bool] = lambda ids: True


def _judge_copies(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """From wherever they were made, and from the wrong node if they were."""
    return [*judge.of_document(measurements, facts), *bound_judge.judge(measurements, facts)]


PARTS: tuple[Part, ...] = (
    Part("copies", "transfer", 8.0, measure.rows, _judge_copies, answer=judge.answer),
    Part("idioms", idioms_measure.NAME, 3.0, idioms_measure.rows, idioms_judge.judge, answer=idioms_judge.answer),
    Part("both_ways", both_ways.NAME, 3.0, both_ways.rows, both_ways_judge.judge, both_ways.applies),
    Part("on_device", on_device.NAME, 1.5, on_device.rows, on_device.judge, on_device.applies),
)

TOGETHER: tuple[TogetherPart, ...] = (
    TogetherPart("together", together.NAME, 2.0, together.rows, together_judge.judge),
    TogetherPart("peer", peer_judge.NAME, 3.0, peer.rows, peer_judge.judge, peer.applies),
)


def judge_device(measurements: Sequence[Measurement], facts: Facts, ran: Iterable[str]) -> list[Finding]:
    """What the parts with these ids say of one device's rows."""
    ids = set(ran)
    return [finding for part in PARTS if part.id in ids for finding in part.judge(measurements, facts)]


def judge_together(measurements: Sequence[Measurement], facts: Facts, ran: Iterable[str]) -> list[Finding]:
    """What the parts with these ids say of all rows of all devices."""
    ids = set(ran)
    return [finding for part in TOGETHER if part.id in ids for finding in part.judge(measurements, facts)]


def answer(device_id: str, measurements: Sequence[Measurement], facts: Facts) -> TransferResult:
    """The device's entry in `results.bench_transfer`: what all parts derive from its rows."""
    result = TransferResult(device_id)
    for part in PARTS:
        result = part.answer(result, measurements, facts)
    return result
