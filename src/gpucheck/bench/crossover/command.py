"""The command `bench crossover`: every operation, at the sizes that the search asks for, on every device asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpucheck.bench import devices
from gpucheck.bench.crossover import crossing, judge
from gpucheck.bench.crossover.options import CrossoverOptions
from gpucheck.bench.crossover.work import OPERATIONS, Bench, Operation, measure, observed
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.errors import CannotLook
from gpucheck.machine import accel as accels
from gpucheck.machine import host, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Began, Emit, Finished, Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision

# What one size may take of the device's memory that is left.
DEVICE_SHARE = 0.25


def operations(options: CrossoverOptions) -> list[Operation]:
    """The operations that were asked for, in the order of the table."""
    return [one for one in OPERATIONS if one.id in options.operations]


def room(options: CrossoverOptions, accel: Accel) -> int:
    """Bytes that one size may take, on either side."""
    spare = host.memory().usable * options.host_share
    info = accel.memory_info()
    if info is None or accel.integrated:
        # Both sides are in the same memory.
        return int(spare / 2)
    return int(min(spare, info[0] * DEVICE_SHARE))


DEFAULT_BUDGET_S = 30.0
# A size that is not decided by then is even, or near enough to the crossing.
LONGEST_POINT_S = 0.8
# So many sizes an operation usually needs: eight doublings and two times three halvings, some of which are saved.
USUAL_POINTS = 12
# The normal size is an answer by itself, and gets this share of its operation's time.
NORMAL_SHARE = 0.5
# A size costs about so many calls of each side: three to find their length, three rounds, and the check.
CALLS_A_POINT = 7
# Where so many sizes have no kernel, the operation has none that tells anything.
MOST_REFUSED = 4


def command(options: CrossoverOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Find from what size on every device asked for is faster than this CPU. Raises CannotLook and UsageError."""
    shared = devices.shared_with_facts(options.device, emit, shared, _on_a_cpu)
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, shared.facts or Facts(), emit, deadline),
        name="crossover",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=shared,
    )


def _on_a_cpu() -> CannotLook:
    return CannotLook(
        "no second device",
        "crossover compares this CPU with a GPU",
        "run it on a machine with a GPU that torch can use",
        finding="crossover.device",
    )


def _rows(options: CrossoverOptions, accel: Accel, facts: Facts, emit: Emit, deadline: float) -> Iterator[Measurement]:
    if accel.is_cpu:
        raise _on_a_cpu()
    todo = operations(options)
    name = next((device.name for device in facts.devices if device.kind == "cpu"), None)
    cpu = accels.open_device("cpu", name=name)
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        seen = {"cpu": observed(cpu), "device": observed(accel)}
        bench = Bench(accel, cpu, watch, seen, precision.state())
        for place, operation in enumerate(todo):
            pulse.go_on()
            left_s = max(deadline - time.monotonic(), 0.0)
            share_s = left_s * operation.weight / sum(one.weight for one in todo[place:])
            search = Search(operation, bench, emit, time.monotonic() + share_s, room(options, accel))
            emit(Began(judge.part(operation.id), accel.id))
            try:
                yield from search.rows()
            except pulse.OutOfTime:
                emit(Finished(judge.part(operation.id), accel.id, "time"))
                raise
            emit(Finished(judge.part(operation.id), accel.id, search.ended_by))
            accel.empty_cache()


@dataclass(slots=True)
class Search:
    """One operation's way through its sizes, until `deadline` of `time.monotonic`, none of more than `room` bytes."""

    operation: Operation
    bench: Bench
    emit: Emit
    deadline: float
    room: int
    # Why sizes stopped growing; empty where they did not.
    ended_by: str = ""
    # What one call of each side took, added up, by size.
    call_s: dict[int, float] = field(default_factory=dict)
    measured: list[Measurement] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)

    def rows(self) -> Iterator[Measurement]:
        """Measure size after size, each for all three sides. Raises CannotLook where no size fits in memory."""
        one = self.operation
        whole = crossing.ladder(one.smallest, one.largest)
        sizes = tuple(size for size in whole if one.bytes(size) <= self.room)
        if len(sizes) < len(whole):
            self.ended_by = "memory"
        size = one.normal if one.normal in sizes else crossing.next_size([{}], sizes, one.grain)
        if size is None:
            raise _no_room(one, "the memory that is left is less")
        budget_s = self._left_s() * NORMAL_SHARE if size == one.normal else self._point_s()
        while size is not None:
            if self.call_s and self._expected_s(size) > self._left_s():
                self.ended_by = "time"
                if size not in sizes or size < max(self.call_s):
                    return
                # Too much for what is left, but a smaller one may still make the bracket narrower.
                sizes = tuple(other for other in sizes if other < size)
                size = self._next(sizes)
                continue
            pulse.go_on()
            self.emit(Progress(f"{one.id} {crossing.size_text(one.id, size)} on {self.bench.accel.id}"))
            try:
                found = measure(one, size, self.bench, budget_s)
            except (RuntimeError, MemoryError) as error:
                refused = self.bench.accel.why_no_kernel(error)
                if refused is not None:
                    self._skip(size, refused)
                    sizes = tuple(other for other in sizes if other != size)
                    self.refused.add(size)
                elif not self.bench.accel.is_out_of_memory(error):
                    raise
                else:
                    sizes = tuple(other for other in sizes if other < size)
                    self.ended_by = "memory"
                    if not sizes and not self.call_s:
                        raise _no_room(one, str(error).strip().splitlines()[0]) from error
            else:
                self._keep(size, found)
                yield from found
            size, budget_s = self._next(sizes), self._point_s()

    def _skip(self, size: int, reason: str) -> None:
        where = f"{self.operation.id} {crossing.size_text(self.operation.id, size)} on {self.bench.accel.id}"
        title = f"the library has no kernel for {where}"
        found = Finding("crossover.size", "skip", title, reason, {"size": size}, device=self.bench.accel.id)
        self.emit(Skipped(found))

    def _keep(self, size: int, found: list[Measurement]) -> None:
        self.measured += found
        self.call_s[size] = sum(one.time_s.median for one in found if one.time_s is not None)

    def _next(self, sizes: Sequence[int]) -> int | None:
        tried = judge.races(self.measured)
        series = [
            {size: race.winner for size, race in tried.get((self.operation.id, transfers), {}).items()}
            for transfers in (False, True)
        ]
        size = crossing.next_size(series, sizes, self.operation.grain)
        # Between two sizes that were measured another may be asked for, but not the same again.
        return None if size in self.refused or len(self.refused) >= MOST_REFUSED else size

    def _left_s(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)

    def _point_s(self) -> float:
        return min(self._left_s() / max(USUAL_POINTS - len(self.call_s), 2), LONGEST_POINT_S)

    def _expected_s(self, size: int) -> float:
        """About what a size will take: by the work it does, from the next smaller one that was tried, else none."""
        smaller = [other for other in self.call_s if other < size]
        if not smaller:
            return 0.0
        work = self.operation.work
        return CALLS_A_POINT * self.call_s[max(smaller)] * work(size)[1] / work(max(smaller))[1]


def _no_room(operation: Operation, why: str) -> CannotLook:
    return CannotLook(
        f"not enough memory for the smallest size of {operation.id}",
        why,
        "stop other users of the memory",
        finding="crossover.memory",
    )
