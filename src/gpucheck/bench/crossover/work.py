"""The command `bench crossover`: three operations, each on the CPU, on the device, and there with the copies."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck import stats
from gpucheck.bench import devices, rounds
from gpucheck.bench.buffers import too_little
from gpucheck.bench.crossover import CrossoverOptions, judge
from gpucheck.bench.devices import ALONE, Shared, share_until
from gpucheck.errors import CannotLook
from gpucheck.machine import accel as accels
from gpucheck.machine import host, inventory, pulse
from gpucheck.machine.accel import Accel, resident
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Began, Emit, Finished, Progress, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.fault import first_line
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB
from gpucheck.work import precision
from gpucheck.work.models import MODELS
from gpucheck.work.reference import check_product
from gpucheck.work.target import OPTIMIZERS

ITEM = 4  # float32
MODEL, CLASSES, IMAGE = "convnet", 100, (3, 64, 64)
# Whole numbers below this and a half are exact in float32.
PERIOD = 256
# The mean over a batch of what a dozen layers of float32 lead to: their errors are some 1e-6, TF32's some 1e-3.
LOSSES_AGREE = 1e-3


@dataclass(frozen=True, slots=True)
class Sides:
    """The same work three times, everything allocated. `check` tells whether the device's result is right."""

    cpu: Callable[[], object]
    device: Callable[[], object]
    transfers: Callable[[], object]
    check: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation by its size. `bytes` is what either side allocates, `work` what a call does (name, amount, unit).

    `largest` is where the search ends.
    """

    id: str
    smallest: int
    largest: int
    grain: int
    call: str
    build: Callable[[int, Accel], Sides]
    bytes: Callable[[int], int]
    work: Callable[[int], tuple[str, float, str]]
    weight: float


def matmul(size: int, accel: Accel) -> Sides:
    """A product of two square matrices."""
    a, b, out = (torch.empty((size, size)) for _ in range(3))
    # The same numbers each time; zeros and ones draw less power and run faster.
    generator = torch.Generator().manual_seed(0)
    a.normal_(generator=generator)
    b.normal_(generator=generator)
    return _binary(torch.mm, a, b, out, accel, lambda: check_product(a, b, out).passed)


def elementwise(size: int, accel: Accel) -> Sides:
    """A sum of two vectors, which moves three times their bytes and computes next to nothing."""
    a = torch.arange(size, dtype=torch.float32).remainder_(PERIOD)
    b, out = torch.full_like(a, 0.5), torch.empty_like(a)
    return _binary(torch.add, a, b, out, accel, lambda: bool(out.sub_(a).equal(b)))


def _binary(
    operation: Callable[..., Tensor], a: Tensor, b: Tensor, out: Tensor, accel: Accel, right: Callable[[], bool]
) -> Sides:
    """An operation of two operands into `out`; `right` is asked once the device's result has been copied there."""
    on_a, on_b, on_out = _copies(accel, a, b, out)

    def transfers() -> None:
        on_a.copy_(a)
        on_b.copy_(b)
        operation(on_a, on_b, out=on_out)
        out.copy_(on_out)

    def check() -> bool:
        out.fill_(float("nan"))
        transfers()
        accel.synchronize()
        return right()

    return Sides(lambda: operation(a, b, out=out), lambda: operation(on_a, on_b, out=on_out), transfers, check)


def training(size: int, accel: Accel) -> Sides:
    """A training step of a small residual network; with the copies the batch goes in and the loss comes back."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((size, *IMAGE), generator=generator)
    y = torch.randint(0, CLASSES, (size,), generator=generator)
    model = MODELS[MODEL].build()
    on_x, on_y = _copies(accel, x, y)
    on_cpu, on_device = _step(model, x, y), _step(copy.deepcopy(model).to(accel.device), on_x, on_y)

    def transfers() -> float:
        on_x.copy_(x)
        on_y.copy_(y)
        return float(on_device())

    # From the same weights and on the same batch both must lose the same; later they are at different steps.
    agree = math.isclose(float(on_cpu()), transfers(), rel_tol=LOSSES_AGREE)
    return Sides(on_cpu, on_device, transfers, lambda: agree and math.isfinite(transfers()))


def _step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    optimizer = OPTIMIZERS["sgd"].build(model.parameters())
    model.train()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _copies(accel: Accel, *tensors: Tensor) -> list[Tensor]:
    """The same on the device, in memory of its own also where host and device are one."""
    made = [torch.empty_like(one, device=accel.device) for one in tensors]
    for there, one in zip(made, tensors, strict=True):
        there.copy_(one)
    return made


# Where the search ends: 8192³ takes a CPU of 1 TFLOP/s a second, a vector of 64 Mi elements is 256 MiB, and a batch of
# 256 images is more than small models are trained with.
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "matmul",
        32,
        8192,
        8,
        "torch.mm(a, b, out=c)",
        matmul,
        lambda n: 3 * n * n * ITEM,
        lambda n: ("flop", 2.0 * n**3, "FLOP/s"),
        1.0,
    ),
    Operation(
        "elementwise",
        2**10,
        2**26,
        2**6,
        "torch.add(a, b, out=c)",
        elementwise,
        lambda n: 3 * n * ITEM,
        lambda n: ("bytes", 3.0 * n * ITEM, "B/s"),
        1.0,
    ),
    Operation(
        "training",
        1,
        256,
        1,
        f"a training step of {MODEL} with SGD",
        training,
        # A resident set grows by 4 to 5 MiB for each image of a batch; weights, gradients and momentum are 2 MiB.
        lambda n: (6 * n + 64) * MIB,
        lambda n: ("samples", float(n), "1/s"),
        1.5,
    ),
)


NAME = "crossover"
# The side of the products on which the precision of both is observed.
OBSERVED_SIDE = 256
# Copies differ by a quarter from one process to the next: beyond twice that a size needs no more rounds.
PLAIN = 1.5


@dataclass(frozen=True, slots=True)
class Bench:
    """The two sides, what watches the device, and what the products of each were seen to be computed in."""

    accel: Accel
    cpu: Accel
    watch: Watch
    observed: dict[str, str]
    settings: dict[str, Any]


def precision_of(accel: Accel) -> str:
    """The precision of float32 products on a device as it is set now."""
    a, b, out = (torch.empty((OBSERVED_SIDE, OBSERVED_SIDE), device=accel.device) for _ in range(3))
    return precision.observed(a, b, out)


def plain(times: Mapping[str, Sequence[float]]) -> bool:
    """Return whether one side is faster, with and without the copies, by more than what processes differ by."""
    for name in ("device", "transfers"):
        known = stats.interval([cpu / device for cpu, device in zip(times["cpu"], times[name], strict=True)])
        if known is None or (known.low <= PLAIN and known.high >= 1 / PLAIN):
            return False
    return True


def measure(operation: Operation, size: int, bench: Bench, budget_s: float) -> list[Measurement]:
    """A row for each side. Raises what torch raises."""
    accel, cpu = bench.accel, bench.cpu
    accel.reset_peak()
    sides = operation.build(size, accel)
    groups = {
        "cpu": rounds.filling(cpu, sides.cpu),
        "device": rounds.filling(accel, sides.device),
        "transfers": rounds.filling(accel, sides.transfers),
    }
    # Building and finding out how long calls are must not cost the rounds.
    until_s = cpu.host_now() + budget_s
    threads = {"cpu": torch.get_num_threads(), "device": 1, "transfers": 1}
    taken = rounds.watched(bench.watch, threads, lambda: rounds.take(groups, until_s, plain=plain), on_host=["cpu"])
    right = sides.check()
    rows = []
    for name, (timed, beside) in taken.items():
        side, transfers = ("cpu" if name == "cpu" else "device"), name == "transfers"
        made = timing.measurement(
            NAME,
            # The CPU's rows too: they are its competitor's, in the same rounds.
            accel.ref,
            timed,
            beside,
            case={"operation": operation.id, "size": size, "side": side, "transfers": transfers},
            work=operation.work(size),
            memory=resident() if side == "cpu" else accel.memory(),
            cache="warm",
            details={
                "call": operation.call,
                "model": MODEL if operation.id == "training" else None,
                "synchronised": "after each call",
                "host_memory": "pageable" if transfers else None,
                "cpu": cpu.name,
                "threads": torch.get_num_threads(),
                "allowed_cores": len(host.cores()),
                "precision_state": bench.settings,
                "result_is_right": right,
            },
            precision_requested="float32",
            precision_observed=bench.observed[side],
        )
        rows.append(made)
    return rows


# -- the command -------------------------------------------------------------------------------------------------------

# What one size may take of the device's memory that is left.
DEVICE_SHARE = 0.25


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
    facts = shared.facts or inventory.read()
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, facts, emit, deadline),
        name="crossover",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=replace(shared, facts=facts),
        on_cpu=CannotLook(
            "no second device",
            "crossover compares this CPU with a GPU",
            "run it on a machine with a GPU that torch can use",
            finding="crossover.device",
        ),
    )


def _rows(options: CrossoverOptions, accel: Accel, facts: Facts, emit: Emit, deadline: float) -> Iterator[Measurement]:
    todo = [one for one in OPERATIONS if one.id in options.operations]
    cpu = accels.open_device("cpu", name=next((one.name for one in facts.devices if one.kind == "cpu"), None))
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        seen = {"cpu": precision_of(cpu), "device": precision_of(accel)}
        bench = Bench(accel, cpu, watch, seen, precision.state())
        for place, operation in enumerate(todo):
            pulse.go_on()
            until = share_until(deadline, [one.weight for one in todo[place:]])
            name = f"{NAME}.{operation.id}"
            search = Search(operation, bench, emit, until, room(options, accel))
            emit(Began(name, accel.id))
            try:
                yield from search.rows()
            except pulse.OutOfTime:
                emit(Finished(name, accel.id, "time"))
                raise
            emit(Finished(name, accel.id, search.ended_by))
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
        one, accel, device = self.operation, self.bench.accel, self.bench.accel.id
        scarce = f"for the smallest size of {one.id}"
        whole = judge.ladder(one.smallest, one.largest)
        sizes = tuple(size for size in whole if one.bytes(size) <= self.room)
        if len(sizes) < len(whole):
            self.ended_by = "memory"
        # The normal size is always measured, also where the search would pass over it.
        normal = judge.NORMAL.get(one.id)
        size = normal if normal in sizes else judge.next_size([{}], sizes, one.grain)
        if size is None:
            raise too_little(scarce, "less memory is left", "crossover.memory")
        budget_s = self._left_s() * NORMAL_SHARE if size == normal else self._point_s()
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
            where = f"{one.id} {judge.size_text(one.id, size)} on {device}"
            self.emit(Progress(where))
            try:
                rows = measure(one, size, self.bench, budget_s)
            except (RuntimeError, MemoryError) as error:
                if (refused := accel.why_no_kernel(error)) is not None:
                    title = f"the library has no kernel for {where}"
                    self.emit(Skipped(Finding("crossover.size", "skip", title, refused, {"size": size}, device=device)))
                    sizes = tuple(other for other in sizes if other != size)
                    self.refused.add(size)
                elif not accel.is_out_of_memory(error):
                    raise
                else:
                    sizes = tuple(other for other in sizes if other < size)
                    self.ended_by = "memory"
                    if not sizes and not self.call_s:
                        raise too_little(scarce, first_line(str(error)), "crossover.memory") from error
            else:
                self.measured += rows
                self.call_s[size] = sum(row.time_s.median for row in rows if row.time_s is not None)
                yield from rows
            size, budget_s = self._next(sizes), self._point_s()

    def _next(self, sizes: Sequence[int]) -> int | None:
        tried = judge.races(self.measured)
        series = [
            {size: faster for size, (faster, _) in tried.get((self.operation.id, transfers), {}).items()}
            for transfers in (False, True)
        ]
        size = judge.next_size(series, sizes, self.operation.grain)
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
