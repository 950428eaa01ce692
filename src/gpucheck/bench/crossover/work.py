"""The command `bench crossover`: three operations on the CPU, on the device, and on the device with the copies."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.bench import concurrent, devices
from gpucheck.bench.buffers import too_little
from gpucheck.bench.crossover import CrossoverOptions, judge
from gpucheck.bench.devices import ALONE, BenchInputs, share_until
from gpucheck.machine import accel as accels
from gpucheck.machine import host, inventory, watchdog
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
from gpucheck.work.target import SGD

ITEM = 4  # float32
MODEL, CLASSES, IMAGE = "convnet", 100, (3, 64, 64)
# Sums of 0.5 and an integer below this are exact in float32.
PERIOD = 256
# The two losses may differ by this relative error. A dozen layers err by about 1e-6 in float32, by about 1e-3 in TF32.
LOSSES_AGREE = 1e-3


@dataclass(frozen=True, slots=True)
class Sides:
    """The same work on the CPU, on the device, and on the device with the copies. `check` verifies the result."""

    cpu: Callable[[], object]
    device: Callable[[], object]
    transfers: Callable[[], object]
    check: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SizedOp:
    """An operation and its sizes. `bytes` returns the memory of one side, and `work` is as in `timing.row_of`."""

    id: str
    sizes: Sequence[int]
    build: Callable[[int, Accel], Sides]
    bytes: Callable[[int], int]
    work: Callable[[int], tuple[str, float, str]]
    weight: float


def matmul(size: int, accel: Accel) -> Sides:
    a, b, out = (torch.empty((size, size)) for _ in range(3))
    # The data is random, because zeros and ones draw less power and run faster. The seed is fixed.
    generator = torch.Generator().manual_seed(0)
    a.normal_(generator=generator)
    b.normal_(generator=generator)
    return _binary(torch.mm, a, b, out, accel, lambda: check_product(a, b, out).passed)


def elementwise(size: int, accel: Accel) -> Sides:
    a = torch.arange(size, dtype=torch.float32).remainder_(PERIOD)
    b, out = torch.full_like(a, 0.5), torch.empty_like(a)
    return _binary(torch.add, a, b, out, accel, lambda: bool(out.sub_(a).equal(b)))


def _binary(
    operation: Callable[..., Tensor], a: Tensor, b: Tensor, out: Tensor, accel: Accel, is_right: Callable[[], bool]
) -> Sides:
    """Return the sides of an operation on two operands. `is_right` checks the device's result in `out`."""
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
        return is_right()

    return Sides(lambda: operation(a, b, out=out), lambda: operation(on_a, on_b, out=on_out), transfers, check)


def training(size: int, accel: Accel) -> Sides:
    """Return the sides of a training step of a small residual network. The copies are the batch and the loss."""
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

    # Only the first losses are comparable, because the timed calls leave the two models at different steps.
    is_equal = math.isclose(float(on_cpu()), transfers(), rel_tol=LOSSES_AGREE)
    return Sides(on_cpu, on_device, transfers, lambda: is_equal and math.isfinite(transfers()))


def _step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    optimizer = SGD.build(model.parameters())
    model.train()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _copies(accel: Accel, *tensors: Tensor) -> list[Tensor]:
    """Return copies on the device, in separate memory even if host and device share memory."""
    return [torch.empty_like(tensor, device=accel.device).copy_(tensor) for tensor in tensors]


# A product of side 8192 takes a second on a CPU of 1 TFLOP/s. A vector of 64 Mi elements is 256 MiB.
OPERATIONS: tuple[SizedOp, ...] = (
    SizedOp(
        "matmul",
        (32, 128, 512, 2048, 8192),
        matmul,
        lambda n: 3 * n * n * ITEM,
        lambda n: ("flop", 2.0 * n**3, "FLOP/s"),
        1.0,
    ),
    SizedOp(
        "elementwise",
        [2**power for power in range(10, 27, 2)],
        elementwise,
        lambda n: 3 * n * ITEM,
        lambda n: ("bytes", 3.0 * n * ITEM, "B/s"),
        1.0,
    ),
    SizedOp(
        "training",
        (2, 8, 32, 128),
        training,
        # Each image of a batch takes 4 to 5 MiB. Weights, gradients and momentum take 2 MiB.
        lambda n: (6 * n + 64) * MIB,
        lambda n: ("samples", float(n), "1/s"),
        1.5,
    ),
)


def measure(
    operation: SizedOp, size: int, accel: Accel, cpu: Accel, watch: Watch, observed: dict[str, str], budget_s: float
) -> list[Measurement]:
    """Return a row for each of the three sides. `observed` is the precision of each device. Raises torch's errors."""
    accel.reset_peak()
    sides, threads = operation.build(size, accel), torch.get_num_threads()
    groups = {
        "cpu": concurrent.filling(cpu, sides.cpu),
        "device": concurrent.filling(accel, sides.device),
        "transfers": concurrent.filling(accel, sides.transfers),
    }
    # The budget starts after the calibration, so that the calibration does not use up the time of the rounds.
    until_s = cpu.host_now() + budget_s
    cores = {"cpu": threads, "device": 1, "transfers": 1}
    taken = concurrent.watched(watch, cores, lambda: concurrent.in_turn(groups, until_s), on_host=["cpu"])
    details = {
        "cpu": cpu.name,
        "threads": threads,
        "precision_state": precision.state(),
        "result_is_right": sides.check(),
    }
    return [
        timing.row_of(
            judge.NAME,
            # The rows of the CPU have this device too, because they belong to its comparison.
            accel.ref,
            taken[name],
            case={"operation": operation.id, "size": size, "side": side, "transfers": name == "transfers"},
            work=operation.work(size),
            memory=resident() if side == "cpu" else accel.memory(),
            cache="warm",
            details=details,
            precision_requested="float32",
            precision_observed=observed[side],
        )
        for name, side in {"cpu": "cpu", "device": "device", "transfers": "device"}.items()
    ]


# One size takes at most this share of the device's free memory.
DEVICE_SHARE = 0.25


def room(options: CrossoverOptions, accel: Accel) -> int:
    """Return the bytes that one size may take on each side."""
    host_bytes = host.memory().usable * options.host_share
    if (info := accel.memory_info()) is None or accel.integrated:
        return int(host_bytes / 2)  # both sides share this memory
    return int(min(host_bytes, info[0] * DEVICE_SHARE))


DEFAULT_BUDGET_S = 30.0
# The longest time for one size. If no side is clearly faster after this time, the judge calls the size even.
LONGEST_S = 0.8
# A size takes about this many calls of each side: four for the calibration, three rounds, and the check.
CALLS_A_SIZE = 8


def command(options: CrossoverOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Find the size from which each selected device is faster than this CPU. Raises CannotLook and UsageError."""
    facts = shared.facts or inventory.read()
    rows = partial(_rows, options, facts, emit)
    on_cpu = devices.needs_gpu(judge.NAME, "no second device", "crossover compares this CPU with a GPU")
    devices.each(judge.NAME, options, emit, replace(shared, facts=facts), rows, lambda accel: DEFAULT_BUDGET_S, on_cpu)


def _rows(options: CrossoverOptions, facts: Facts, emit: Emit, accel: Accel, deadline: float) -> Iterator[Measurement]:
    todo = [operation for operation in OPERATIONS if operation.id in options.selected]
    cpu = accels.open_device("cpu", name=next((device.name for device in facts.devices if device.kind == "cpu"), None))
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        observed = {"cpu": precision.of_device(cpu.device), "device": precision.of_device(accel.device)}
        measured = partial(measure, accel=accel, cpu=cpu, watch=watch, observed=observed)
        most_bytes = room(options, accel)
        for index, operation in enumerate(todo):
            watchdog.go_on()
            until = share_until(deadline, [later.weight for later in todo[index:]])
            name = f"{judge.NAME}.{operation.id}"
            emit(Began(name, accel.id))
            try:
                ended_by = yield from _sizes(operation, accel, measured, emit, until, most_bytes)
            except watchdog.OutOfTime:
                emit(Finished(name, accel.id, "time"))
                raise
            emit(Finished(name, accel.id, ended_by))
            accel.empty_cache()


def _sizes(
    operation: SizedOp,
    accel: Accel,
    measured: Callable[..., list[Measurement]],
    emit: Emit,
    deadline: float,
    most_bytes: int,
) -> Generator[Measurement, None, str]:
    """Yield the rows of all sizes that fit. Return `memory` or `time` if some were left out. Raises CannotLook."""
    sizes = [size for size in operation.sizes if operation.bytes(size) <= most_bytes]
    no_room = partial(too_little, f"for the smallest size of {operation.id}", finding="crossover.memory")
    if not sizes:
        raise no_room(why="less memory is left")
    # The time of a call of all sides is estimated from the previous size, in proportion to the work.
    call_s = 0.0
    for index, size in enumerate(sizes):
        left_s = max(deadline - time.monotonic(), 0.0)
        growth = operation.work(size)[1] / operation.work(sizes[index - 1])[1] if index else 0.0
        if CALLS_A_SIZE * (call_s := call_s * growth) > left_s:
            return "time"
        watchdog.go_on()
        where = f"{operation.id} {judge.size_text(operation.id, size)} on {accel.id}"
        emit(Progress(where))
        try:
            rows = measured(operation, size, budget_s=min(left_s / (len(sizes) - index), LONGEST_S))
        except (RuntimeError, MemoryError) as error:
            if (refused := accel.why_no_kernel(error)) is not None:
                title = f"the library has no kernel for {where}"
                emit(Skipped(Finding("crossover.size", "skip", title, refused, {"size": size}, device=accel.id)))
                continue
            if not accel.is_out_of_memory(error):
                raise
            if index == 0:
                raise no_room(why=first_line(str(error))) from error
            return "memory"
        call_s = sum(row.time_s.median for row in rows if row.time_s is not None)
        yield from rows
    return "" if len(sizes) == len(operation.sizes) else "memory"
