"""The child process that runs trials: it answers each JSON line with a JSON line. `batch_size.runner` starts it.

The first line is the setup. Each later line requests a trial. The parent ends this process after any failure, because
a failed trial may keep memory or leave the device's context unusable. The user's code prints to stderr.

The keys of a trial's answer are fields of `outcome.TrialResult`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Literal

import psutil
import torch
from torch import nn

from gpucheck.batch_size.outcome import LEAST_GROWTH_BYTES, MOST_STEPS, STEPS_CONFIRMED, Setup, on_device
from gpucheck.errors import GpucheckError, TargetError
from gpucheck.machine import child_stdio, device_lifetime, host
from gpucheck.machine.accel import Accel, open_device, reset_resident_peak
from gpucheck.messages import chain_of
from gpucheck.report.codec import from_json, to_json
from gpucheck.units import MIB
from gpucheck.work.spec import parse_inputs, parse_target
from gpucheck.work.target import Batch, Workload, find, import_compiler, load, step

MemoryMethod = Literal["device", "VmHWM", "process peak"]


@dataclass(slots=True)
class DeviceGauge:
    """Measures the peak of a device's allocator, and of memory outside the allocator."""

    accel: Accel
    # Free memory before this process had a context. If that is unknown, right after the context was created.
    free_before: int
    total: int
    budget: int
    reserved: int = 0
    compute: int = 0
    optimizer: int = 0
    # The peak of the bytes that tensors requested. `compute` and `optimizer` count whole blocks of the allocator. Near
    # the budget, where blocks are reused, they exceeded the requests by 4 % (measured at 1 GiB).
    requested: int = 0
    method: MemoryMethod = "device"
    outside_peak: int = 0

    def begin(self, outside: int = 0) -> None:
        """Start a trial. Limit the allocator to the budget less the memory outside it, which is at least `outside`."""
        self.accel.synchronize()
        self.accel.reset_peak()
        self.reserved = self.compute = self.optimizer = self.requested = 0
        self.outside_peak = self.outside()
        if self.accel.set_memory_fraction is not None and self.total:
            share = (self.budget - max(self.outside_peak, outside)) / self.total
            self.accel.set_memory_fraction(min(1.0, max(0.0, share)))

    def outside(self) -> int:
        """Return the bytes outside the allocator now: context, handles, workspaces and other processes."""
        if (info := self.accel.memory_info()) is None:
            return 0
        return max(0, self.free_before - info[0] - (self.accel.memory().memory_reserved_bytes or 0))

    def mark(self, *, computing: bool) -> None:
        """Record the peak of the phase that ends here: if `computing`, forward and backward, else the optimizer's."""
        self.accel.synchronize()
        memory = self.accel.memory()
        self.reserved = max(self.reserved, memory.max_memory_reserved_bytes or memory.memory_reserved_bytes or 0)
        allocated = memory.max_memory_allocated_bytes or memory.memory_allocated_bytes or 0
        _record(self, computing, allocated)
        requested = self.accel.memory_stats().get("requested_bytes.all.peak")  # None if the backend does not count them
        self.requested = max(self.requested, allocated if requested is None else int(requested))
        self.outside_peak = max(self.outside_peak, self.outside())
        self.accel.reset_peak()

    def level(self) -> int:
        return self.accel.memory().memory_allocated_bytes or 0

    def peaks(self) -> tuple[int, int]:
        """Return the peaks in bytes of the whole trial, and of forward and backward. Both include reserved memory."""
        total = self.reserved + self.outside_peak
        return total, total - max(self.compute, self.optimizer) + self.compute

    @property
    def tensor_bytes(self) -> int | None:
        """The peak that tensors requested, plus the memory outside the allocator; None if tensors are not counted."""
        if self.accel.memory().max_memory_allocated_bytes is None:
            return None
        return self.peaks()[0] - self.reserved + self.requested

    def retries(self) -> int:
        """Return how often the allocator emptied its cache and tried again since the process began."""
        return int(self.accel.memory_stats().get("num_alloc_retries", 0))


@dataclass(slots=True)
class CpuGauge:
    """Measures the growth of this process's resident set above the baseline, which is taken after the warm-up."""

    accel: Accel
    baseline: int
    method: MemoryMethod
    compute: int = 0
    optimizer: int = 0

    def begin(self, outside: int = 0) -> None:
        self.compute = self.optimizer = 0
        reset_resident_peak()

    def mark(self, *, computing: bool) -> None:
        now = self.accel.memory()
        _record(self, computing, (now.max_resident_bytes or now.resident_bytes or 0) - self.baseline)
        reset_resident_peak()

    def peaks(self) -> tuple[int, int]:
        """Return the peaks in bytes, which are those of the whole process if the system cannot reset a peak."""
        return max(self.compute, self.optimizer), self.compute

    def level(self) -> int:
        return (self.accel.memory().resident_bytes or 0) - self.baseline

    def retries(self) -> int:
        return 0


def _record(gauge: Gauge, computing: bool, peak: int) -> None:
    if computing:
        gauge.compute = max(gauge.compute, peak)
    else:
        gauge.optimizer = max(gauge.optimizer, peak)


def warm_up() -> None:
    """Run threads, autograd, a convolution and an optimizer, so that the memory they keep is in the baseline."""
    small = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 8), nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(small(torch.randn(4, 1, 8, 8)), torch.zeros(4, dtype=torch.int64)).backward()
        optimizer.step()
    # A product of this size uses every thread of the pool.
    large = torch.randn(512, 512)
    (large @ large).relu_().add_(1.0)


def open_cpu_gauge(accel: Accel) -> CpuGauge:
    """Warm this process up and take the baseline. The user's code must not have run yet."""
    # On Linux, the kernel's out-of-memory killer then ends this process before any other.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    warm_up()
    resident = accel.memory().resident_bytes or 0
    return CpuGauge(accel, resident, "VmHWM" if reset_resident_peak() else "process peak")


def tensor_bytes_held() -> int:
    """Return the bytes of all CPU tensors that Python's garbage collector tracks."""
    storages = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == "cpu" and tensor.layout == torch.strided:
            with contextlib.suppress(RuntimeError):  # the subclass has no storage
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def set_guard(growth: int) -> None:
    """Make allocations fail once this process's data has grown by `growth` bytes, on Linux.

    RLIMIT_DATA counts private writable memory since Linux 4.7. A limit on address space would also count mappings that
    are never touched.
    """
    if sys.platform != "linux":
        return
    import resource  # only POSIX has it

    data = psutil.Process().memory_info().data
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data + growth if hard == resource.RLIM_INFINITY else min(data + growth, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def swapped_bytes() -> int:
    """Return how many bytes of this process are swapped out (Linux); 0 if the system does not report it."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        return 1024 * next((int(line.split()[1]) for line in file if line.startswith("VmSwap:")), 0)
    return 0


Gauge = DeviceGauge | CpuGauge


Json = dict[str, Any]
# While its memory grows, a trial on a device continues up to this many steps, because small caches are still filling.
MOST_GROWING = 20
# Fewer steps than this do not show growth, because the first step creates the optimizer's state.
LEAST_LEVELS = 4
# A third step is run if the second step took less than this. A short third step is closer to the steady state.
CHEAP_STEP_S = 0.25
# The least number of steps if batches of one size differ (sequences of any length): a longer batch may follow.
UNLIKE_STEPS = 8
# The longest wait until the driver releases an ended process's memory, and the missing memory that counts as noise.
SETTLE_S = 10.0
SETTLED_BYTES = 64 * MIB


class Channel:
    """The pipes to the parent. A thread reads requests, so this process ends with the parent even during a step."""

    def __init__(self) -> None:
        self.send = child_stdio.claim_stdout()
        source: BinaryIO = os.fdopen(os.dup(0), "rb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        sys.stdout = sys.stderr
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: BinaryIO) -> None:
        for line in source:
            # A line without a newline is incomplete: the parent died.
            if line.endswith(b"\n"):
                self._lines.put(line)
        os._exit(0)

    def receive(self) -> Json:
        request: Json = json.loads(self._lines.get())
        return request


def main() -> int:
    channel = Channel()
    # The parent may start this process early, so everything slow is loaded before the setup arrives.
    import_compiler()
    request = channel.receive()
    setup = from_json(Setup, request)
    answer, session = _prepare(setup, request.get("free_expected"), channel.send)
    channel.send(answer)
    while session is not None:
        channel.send(session.trial(**channel.receive()))
    return 0


def _prepare(setup: Setup, free_expected: int | None, send: Callable[[Json], None]) -> tuple[Json, Session | None]:
    """Open the device and build the workload. A child on the CPU sends its baseline before the build."""
    stage = "device"
    try:
        accel = open_device(setup.device, name=setup.device_name)
        accel.make_current()  # so that `.cuda()` in the user's code uses this device
        gauge, facts = _open_gauge(accel, setup, free_expected)
        stage = "build"
        gauge.begin()
        factory = import_target(setup, gauge)
        if isinstance(gauge, CpuGauge):
            facts["baseline_bytes"] = gauge.baseline
            send({"baseline_bytes": gauge.baseline})
        workload = load_for(setup, accel.device, factory)
        accel.synchronize()  # asynchronous errors of the build are raised here
    except GpucheckError as error:
        return {"ok": False, "stage": stage, "error": _as_data(error)}, None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's factory may raise anything
        return {"ok": False, "stage": stage, **_failure(error)}, None
    ready = {
        "ok": True,
        "device": to_json(accel.ref),
        "kind": accel.kind,
        "integrated": accel.integrated,
        "smallest_batch": workload.smallest_batch,
        "parameter_bytes": workload.parameter_bytes,
        "optimizer": workload.optimizer_text,
        "method": gauge.method,
        **facts,
    }
    return ready, Session(accel, gauge, workload)


def _open_gauge(accel: Accel, setup: Setup, free_expected: int | None) -> tuple[Gauge, Json]:
    """Return the device's gauge and, if the device reports free memory, the budget."""
    if accel.is_cpu:
        return open_cpu_gauge(accel), {}
    least = 0 if free_expected is None else free_expected - SETTLED_BYTES
    if (info := _wait_until_free(accel, least)) is None:
        return DeviceGauge(accel, 0, 0, setup.budget_bytes), {}
    free_at_open, total = info
    # The free memory before this process had a context, so that the context counts as used. A value below the current
    # free memory is stale, or belongs to another device.
    free = max(setup.free_before or 0, free_at_open)
    budget = on_device(setup.limit, free, total, shared=setup.shared)
    facts = {"budget": asdict(budget), "free_at_open": free_at_open, "settled": free_at_open >= least}
    return DeviceGauge(accel, free, total, budget.bytes), facts


def _wait_until_free(accel: Accel, least: int) -> tuple[int, int] | None:
    """Wait at most 10 s for the last child's memory, until `least` bytes are free. Return free and total bytes."""
    deadline = time.monotonic() + SETTLE_S
    while (info := accel.memory_info()) is not None and info[0] < least and time.monotonic() <= deadline:
        time.sleep(0.1)
    return info


class Session:
    def __init__(self, accel: Accel, gauge: Gauge, workload: Workload) -> None:
        self.accel, self.gauge, self.workload = accel, gauge, workload
        # The last step's batch and output live until the next step replaces them, as in a training loop.
        self._batch: Batch | None = None
        self._output: list[Any] = []

    def trial(
        self, size: int, steps: int, *, spare_s: float = math.inf, confirming: bool = False, outside: int = 0
    ) -> Json:
        """Run at least `steps` steps with batches of `size`, and return the peaks or the error.

        Further steps end within `spare_s` seconds. If `confirming`, the trial continues until the allocator's blocks
        and the memory in use stay the same. `outside` is the argument of `begin`.
        """
        until = time.monotonic() + spare_s
        try:
            self._forget()
            self.gauge.begin(outside)
            return self._run(size, steps, until, confirming=confirming)
        except GpucheckError as error:
            return {"ok": False, "stage": "step", "error": _as_data(error)}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's model may raise anything
            return {"ok": False, "stage": "step", **_failure(error)}

    def _run(self, size: int, steps: int, until: float, *, confirming: bool) -> Json:
        workload, gauge = self.workload, self.gauge
        times: list[float] = []
        levels: list[int] = []
        elements: list[int] = []
        reserved: list[int] = []
        layouts: list[list[Any] | None] = []
        swapped = swapped_bytes()
        # The number of emptied caches so far: before the first step and after each step.
        retries = [gauge.retries()]
        on_device = isinstance(gauge, DeviceGauge)

        def wants_more() -> bool:
            taken = len(times)
            least = max(steps, UNLIKE_STEPS) if len(set(elements)) > 1 else steps
            if taken < least:
                return True
            if confirming and _is_same(layouts):
                return False
            if confirming and taken < (MOST_STEPS if on_device else least + 1):
                return True
            if not confirming and taken == steps and times[-1] < CHEAP_STEP_S:
                return True  # a third step is closer to the steady state
            # While the allocator's blocks still move, a later step may not fit, even if no more memory is in use.
            grows = _rises(levels[-2:]) and (confirming or on_device)
            may_move = len(reserved) >= STEPS_CONFIRMED and reserved[-1] > reserved[-3]
            may_move |= confirming and on_device and layouts[-1] is not None
            may_move |= _retries_always(retries)
            has_time = time.monotonic() + 2 * times[-1] < until
            return (grows or may_move) and has_time and taken < (MOST_GROWING if on_device else MOST_STEPS)

        while wants_more():
            times.append(self._step(size, elements))
            levels.append(gauge.level())
            retries.append(gauge.retries())
            if isinstance(gauge, DeviceGauge):
                layouts.append(self.accel.memory_layout() if confirming else None)
                reserved.append(gauge.reserved)
        peak, compute_peak = gauge.peaks()
        is_settled = len(reserved) < STEPS_CONFIRMED or _is_same(layouts)
        return {
            "ok": True,
            "peak_bytes": peak,
            "compute_peak_bytes": compute_peak,
            "steps_s": times,
            "allocation_retries": retries[-1] - retries[0],
            "retries_always": _retries_always(retries),
            "levels_bytes": self._without_cycles(levels),
            "unsettled_bytes": 0 if is_settled else reserved[-1] - reserved[-3],
            "outside_bytes": gauge.outside_peak if isinstance(gauge, DeviceGauge) else 0,
            "swapped_bytes": max(0, swapped_bytes() - swapped),
            "state_bytes": workload.state_bytes,
            "gradient_bytes": workload.gradient_bytes,
            "optimizer_bytes": workload.optimizer_bytes,
            "batch_elements": [min(elements), max(elements)],
            "loss": workload.loss_text,
            "tensor_bytes": gauge.tensor_bytes if isinstance(gauge, DeviceGauge) else None,
        }

    def _forget(self) -> None:
        """Release the last trial's batch, output and gradients, including reference cycles."""
        if self._batch is not None:
            self._batch, self._output = None, []
            if self.workload.optimizer is not None:
                self.workload.optimizer.zero_grad(set_to_none=True)
            gc.collect()

    def _without_cycles(self, levels: list[int]) -> list[int]:
        """Return the levels, or an empty list if garbage collection frees the growth: cycles are not a leak."""
        if len(levels) < LEAST_LEVELS or not _rises(levels[1:]):
            return levels
        gc.collect()
        return levels if self.gauge.level() > levels[-2] else []

    def _step(self, size: int, elements: list[int]) -> float:
        """Run one step with a new batch. Return its time in seconds, including the device's work."""
        started = time.perf_counter()
        self._batch = self.workload.make_batch(size)
        elements.append(self._batch.elements)
        mark = functools.partial(self.gauge.mark, computing=True)
        step(self.workload, self._batch, after_backward=mark, kept=self._output)
        self.accel.synchronize()
        took = time.perf_counter() - started
        # In inference, the forward pass ends here, and there is no optimizer.
        self.gauge.mark(computing=self.workload.optimizer is None)
        return took


def _retries_always(retries: list[int]) -> bool:
    """Return whether the allocator emptied its cache in each of the last three steps."""
    last = retries[-STEPS_CONFIRMED - 1 :]
    return len(last) > STEPS_CONFIRMED and all(before < after for before, after in itertools.pairwise(last))


def _is_same(layouts: list[list[Any] | None]) -> bool:
    """Return whether at least four steps were run, and the last one left the allocator's blocks as they were."""
    return len(layouts) > STEPS_CONFIRMED and layouts[-1] is not None and layouts[-1] == layouts[-2]


def _rises(levels: list[int]) -> bool:
    return all(after - before >= LEAST_GROWTH_BYTES for before, after in itertools.pairwise(levels))


def _failure(error: BaseException) -> Json:
    """Return an exception as plain data, and clear the frames that hold the trial's tensors."""
    chain = [asdict(link) for link in chain_of(error)]
    failure = {"chain": chain, "traceback": "".join(traceback.format_exception(error))}
    # Freeing the tensors of a lost device would abort this process before it can answer.
    if not device_lifetime.record_error(error):
        with contextlib.suppress(RuntimeError):  # a frame that is still running cannot be cleared
            traceback.clear_frames(error.__traceback__)
    return failure


def _as_data(error: GpucheckError) -> Any:
    """Return one of gpucheck's own errors as plain data, with the traceback of the user's code if there is one."""
    trace = error.trace if isinstance(error, TargetError) else ""
    return child_stdio.raised(error, trace or traceback.format_exc())["raised"]


def import_target(setup: Setup, gauge: Gauge) -> Callable[[], Any] | None:
    """Return the target's factory, or None for a built-in target. On a CPU, add the libraries that the target imports
    to the baseline, but not the tensors that it creates. Raises TargetError."""
    # Libraries map more memory than they use, so the only limit during the import is the machine's memory.
    if isinstance(gauge, CpuGauge) and setup.guard_bytes is not None:
        set_guard(host.memory().usable)
    sys.path += [folder for folder in setup.import_path if folder not in sys.path]
    target = parse_target(setup.target)
    before = tensor_bytes_held()
    factory = None if target.built_in is not None else find(target)
    if isinstance(gauge, CpuGauge):
        created = tensor_bytes_held() - before
        if factory is not None:
            gauge.baseline = max(gauge.baseline, (gauge.accel.memory().resident_bytes or 0) - created)
        if setup.guard_bytes is not None:
            set_guard(setup.guard_bytes - created)
    return factory


def load_for(setup: Setup, device: torch.device, factory: Callable[[], Any] | None = None) -> Workload:
    """Build the workload of a setup on a device. Import its target unless `factory` is given. Raises TargetError."""
    sys.path += [folder for folder in setup.import_path if folder not in sys.path]
    return load(
        parse_target(setup.target),
        parse_inputs(setup.inputs),
        mode="train" if setup.mode == "train" else "infer",
        optimizer=setup.optimizer,
        dtype=setup.dtype,
        device=device,
        recipe=setup.recipe,
        factory=factory,
    )
