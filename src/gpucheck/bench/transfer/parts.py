"""The parts of `bench transfer`: what each measures, when it applies, and its share of the time.

A part's measurements have a name of their own; its judge (`judge.py`) and its renderer pick them by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpucheck.bench.transfer import both_ways, idioms_measure, measure, on_device, peer, together
from gpucheck.bench.transfer.setting import Setting, Together
from gpucheck.machine.accel import Accel
from gpucheck.report.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Part:
    """A part that concerns one device; `weight` is its share of the time among the parts."""

    id: str
    weight: float
    rows: Callable[[Setting], Iterator[Measurement]]
    applies: Callable[[Accel], bool] = lambda accel: True


@dataclass(frozen=True, slots=True)
class TogetherPart:
    """A part that concerns several devices at once: after these one by one, where more than one was chosen."""

    id: str
    weight: float
    rows: Callable[[Together], Iterator[Measurement]]
    applies: Callable[[Sequence[str]], bool] = lambda ids: True


PARTS: tuple[Part, ...] = (
    Part("copies", 8.0, measure.rows),
    Part("idioms", 3.0, idioms_measure.rows),
    Part("both_ways", 3.0, both_ways.rows, both_ways.applies),
    Part("on_device", 1.5, on_device.rows, on_device.applies),
)

TOGETHER: tuple[TogetherPart, ...] = (
    TogetherPart("together", 2.0, together.rows),
    TogetherPart("peer", 3.0, peer.rows, peer.applies),
)
