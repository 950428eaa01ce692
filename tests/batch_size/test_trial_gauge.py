from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from gpucheck.batch_size import trial
from gpucheck.batch_size.outcome import Setup
from gpucheck.batch_size.trial import (
    CpuGauge,
    DeviceGauge,
    Session,
    _wait_until_free,
    open_cpu_gauge,
    set_guard,
    swapped_bytes,
)
from gpucheck.machine.accel import Accel, open_device
from gpucheck.report.measurement import MemoryFigures
from gpucheck.units import GIB, MIB
from gpucheck.work.target import Batch, Workload

TOTAL = 16 * GIB


@dataclass
class Device:
    """A device with an allocator that never gives back: what Accel offers, by hand."""

    free: int = 10 * GIB
    allocated: int = 0
    reserved: int = 0
    max_allocated: int = 0
    max_reserved: int = 0
    retries: int = 0
    max_requested: int | None = None
    fractions: list[float] = field(default_factory=list)
    is_cpu: bool = False
    layouts: Any = None

    def use(self, allocated: int, reserved: int, outside: int = 0) -> None:
        """Allocate so much at the peak, reserve so much for good, and take memory outside the allocator."""
        self.max_allocated = max(self.max_allocated, allocated)
        self.free -= max(0, reserved - self.reserved) + outside
        self.reserved = max(self.reserved, reserved)
        self.max_reserved = max(self.max_reserved, self.reserved)

    def memory_info(self) -> tuple[int, int]:
        return self.free, TOTAL

    def memory(self) -> MemoryFigures:
        return MemoryFigures(self.allocated, self.max_allocated, self.reserved, self.max_reserved, source="fake")

    def memory_layout(self) -> list[Any] | None:
        return next(self.layouts, None) if self.layouts else None

    def memory_stats(self) -> dict[str, int]:
        counted = {} if self.max_requested is None else {"requested_bytes.all.peak": self.max_requested}
        return {"num_alloc_retries": self.retries, **counted}

    def set_memory_fraction(self, fraction: float) -> None:
        self.fractions.append(fraction)

    def reset_peak(self) -> None:
        self.max_allocated, self.max_reserved = self.allocated, self.reserved

    def synchronize(self) -> None:
        pass

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError)


def gauge_of(device: Device, *, free_before: int | None, budget: int = 8 * GIB) -> DeviceGauge:
    setup = Setup("mlp", (), "train", "adamw", None, "cuda:0", free_before=free_before)
    gauge, _ = trial._open_gauge(cast(Accel, device), setup, None)
    assert isinstance(gauge, trial.DeviceGauge)
    gauge.budget = budget
    return gauge


def test_the_peak_is_what_is_reserved_and_what_lies_outside() -> None:
    device = Device(free=10 * GIB)  # with the context made: 11 GiB were free before
    gauge = gauge_of(device, free_before=11 * GIB)
    gauge.begin()
    device.use(allocated=2 * GIB, reserved=3 * GIB, outside=256 * MIB)
    gauge.mark(computing=True)
    device.use(allocated=GIB, reserved=3 * GIB)
    gauge.mark(computing=False)
    total, compute = gauge.peaks()
    assert total == 3 * GIB + GIB + 256 * MIB  # reserved, context, workspaces
    assert compute == total  # forward and backward were the peak
    assert gauge.tensor_bytes == total - GIB  # the allocator kept 1 GiB in no tensor


def test_bytes_that_no_tensor_asked_for_are_not_of_tensors() -> None:
    """Torch leaves up to 1 MiB of a block unused: in real blocks, 17 574 rows looked like what 18 400 need."""
    device = Device()
    gauge = gauge_of(device, free_before=device.free)
    gauge.begin()
    device.use(allocated=2 * GIB, reserved=3 * GIB)
    device.max_requested = 2 * GIB - 40 * MIB
    gauge.mark(computing=True)
    assert gauge.tensor_bytes == 2 * GIB - 40 * MIB
    gauge.begin()
    gauge.mark(computing=True)
    assert gauge.peaks()[0] == 3 * GIB


def test_an_optimizers_peak_is_told_apart() -> None:
    device = Device()
    gauge = gauge_of(device, free_before=device.free)
    gauge.begin()
    device.use(allocated=GIB, reserved=GIB)
    gauge.mark(computing=True)
    device.use(allocated=4 * GIB, reserved=5 * GIB)
    gauge.mark(computing=False)
    total, compute = gauge.peaks()
    assert total == 5 * GIB
    assert compute == 2 * GIB  # its own gibibyte and the one that is reserved beyond what is allocated


def test_the_allocator_is_held_to_the_budget_less_what_lies_outside() -> None:
    device = Device(free=10 * GIB)
    gauge = gauge_of(device, free_before=11 * GIB, budget=9 * GIB)
    gauge.begin()
    assert device.fractions == [8 * GIB / TOTAL]
    # Of a new process it is known from those before what its libraries will take.
    gauge.begin(outside=3 * GIB)
    assert device.fractions[1:] == [6 * GIB / TOTAL]


def test_without_the_level_before_the_context_it_starts_after_it() -> None:
    device = Device(free=10 * GIB)
    gauge = gauge_of(device, free_before=None)
    assert gauge.outside() == 0


def test_what_others_gave_back_is_nothing_outside_and_no_share_is_below_zero() -> None:
    device = Device(free=10 * GIB)
    gauge = gauge_of(device, free_before=11 * GIB, budget=512 * MIB)
    gauge.begin()
    assert device.fractions == [0.0]
    device.free = 12 * GIB
    assert gauge.outside() == 0


@pytest.mark.parametrize("call", ["synchronize", "memory_info", "reset_peak"])
def test_a_device_that_fails_before_a_trial_is_told_as_in_one(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device = Device()
    session = session_on(device, lambda size: Batch(arguments=(torch.ones(size, 1),)))
    monkeypatch.setattr(device, call, lost)
    told = session.trial(2, 1)
    assert not told["ok"]
    assert told["chain"][0]["message"] == "CUDA error: an illegal memory access was encountered"


def session_on(device: Device, make_step: Any) -> Session:
    model = torch.nn.Linear(1, 1)
    workload = Workload(model, make_step, "infer", torch.device("cpu"))
    return Session(cast(Accel, device), gauge_of(device, free_before=device.free), workload)


def retrying(device: Device, retries: list[int]) -> Any:
    """Make batches of a device whose allocator empties its cache so often in each step."""
    script = iter(retries)

    def batch(size: int) -> Batch:
        device.retries += next(script)
        return Batch(arguments=(torch.ones(size, 1),))

    return batch


def test_a_confirmation_goes_on_where_the_allocator_empties_its_cache() -> None:
    """A plain process trains all the same."""
    device = Device()
    retries = [0, 0, 1, 0, 1, 0, 0, 0]
    answer = session_on(device, retrying(device, retries)).trial(1, 3, confirming=True)
    assert (answer["ok"], len(answer["steps_s"]), answer["allocation_retries"]) == (True, 8, 2)


@pytest.mark.parametrize(("retries", "steps", "always"), [([2, 1, 1, 1] + [0] * 16, 5, False), ([2] * 20, 20, True)])
def test_a_trial_goes_on_while_the_allocator_empties_its_cache_in_each_step(
    retries: list[int], steps: int, always: bool
) -> None:
    device = Device()
    answer = session_on(device, retrying(device, retries)).trial(1, 3)
    assert (len(answer["steps_s"]), answer["retries_always"]) == (steps, always)


@pytest.mark.parametrize(
    ("layouts", "steps"),
    [
        ("abcdeeff", 6),  # the same after steps 5 and 6
        ("aaaaaaaa", 4),  # steps before the third say nothing: the optimizer's state comes
        ("ab" * 10, 20),  # blocks that move may leave no room in the twelfth step
        ("", 8),  # it does not tell
    ],
)
def test_a_confirmation_ends_where_the_allocators_blocks_stay_as_they_are(layouts: str, steps: int) -> None:
    device = Device(layouts=iter([[blocks] for blocks in layouts]))
    session = session_on(device, lambda size: Batch(arguments=(torch.ones(size, 1),)))
    assert len(session.trial(1, 3, confirming=True)["steps_s"]) == steps


def test_the_margin_is_what_the_allocator_still_took() -> None:
    device = Device()
    answer = session_on(device, growing(device, [GIB, GIB, GIB, *[MIB] * 17])).trial(1, 3, confirming=True)
    assert (answer["unsettled_bytes"], answer["peak_bytes"]) == (2 * MIB, 3 * GIB + 17 * MIB)
    device = Device()  # a block that came late is no margin once two steps needed none
    late = session_on(device, growing(device, [GIB] * 3 + [0] * 4 + [MIB] + [0] * 9)).trial(1, 3, confirming=True)
    assert (late["unsettled_bytes"], len(late["steps_s"])) == (0, 10)
    device = Device(layouts=iter([[step] for step in (1, 2, 3, 4, 4)]))
    settled = session_on(device, growing(device, [GIB, GIB, GIB, MIB, 0])).trial(1, 3, confirming=True)
    assert (settled["unsettled_bytes"], len(settled["steps_s"])) == (0, 5)


def test_a_confirmation_on_a_device_takes_its_steps_though_time_is_short() -> None:
    device = Device()
    assert len(session_on(device, retrying(device, [0] * 8)).trial(1, 3, spare_s=0.0, confirming=True)["steps_s"]) == 8


def test_a_batch_and_an_output_live_until_the_next_are_there() -> None:
    """As the variables of a plain loop do, which needs the memory for both."""
    seen: list[Any] = []

    def batch(size: int) -> Batch:
        alive.append(sum(reference() is not None for reference in seen))
        made = torch.ones(size, 1)
        seen.append(weakref.ref(made))
        return Batch(arguments=(made,))

    alive: list[int] = []
    session = session_on(Device(), batch)
    session.workload.model.register_forward_hook(lambda *given: seen.append(weakref.ref(given[-1])))
    session.trial(2, 3)
    assert alive == [0, 2, 2, 2]


def growing(device: Device, increments: list[int], *, until: int | None = None) -> Any:
    """Make batches of a device on which each step leaves so much behind; beyond `until` it has no more."""
    script = iter(increments)

    def batch(size: int) -> Batch:
        more = next(script)
        if until is not None and device.allocated + more > until:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        device.allocated += more
        device.use(device.allocated, device.allocated)
        return Batch(arguments=(torch.ones(size, 1),))

    return batch


def test_a_confirmation_goes_on_while_memory_grows() -> None:
    """A cache of so many entries fills in so many steps, and all of it must have room."""
    device = Device()
    answer = session_on(device, growing(device, [100 * MIB] * 30)).trial(1, 3, confirming=True)
    assert answer["levels_bytes"] == [100 * MIB * step for step in range(1, 21)]
    assert answer["peak_bytes"] == 2000 * MIB
    device = Device()
    cache = session_on(device, growing(device, [100 * MIB] * 16 + [0] * 9)).trial(1, 3, confirming=True)
    assert (len(cache["levels_bytes"]), cache["peak_bytes"]) == (18, 1600 * MIB)
    # So does a trial of the search.
    device = Device()
    assert session_on(device, growing(device, [MIB] * 9 + [0] * 9)).trial(1, 3)["peak_bytes"] == 9 * MIB


def test_memory_that_ran_out_in_a_later_step_ran_out() -> None:
    device = Device()
    grown = session_on(device, growing(device, [GIB] * 9, until=5 * GIB)).trial(1, 3, confirming=True)
    assert (grown["ok"], device.allocated) == (False, 5 * GIB)
    device = Device()
    failed = session_on(device, growing(device, [GIB, 0, 0, 9 * GIB], until=5 * GIB)).trial(1, 3, confirming=True)
    assert (failed["ok"], device.allocated) == (False, GIB)


def test_what_the_collector_frees_is_no_growth() -> None:
    device = Device()

    class Cycle:
        def __init__(self) -> None:
            self.me = self
            device.allocated += GIB

        def __del__(self) -> None:
            device.allocated -= GIB

    def batch(size: int) -> Batch:
        Cycle()
        return Batch(arguments=(torch.ones(size, 1),))

    assert session_on(device, batch).trial(1, 3, confirming=True)["levels_bytes"] == []


def test_where_batches_of_one_size_differ_more_of_them_are_run() -> None:
    lengths = iter([96, 64, 80, 128, 96, 64, 80, 128])
    session = session_on(Device(), lambda size: Batch(arguments=(torch.ones(size * next(lengths), 1),)))
    answer = session.trial(2, 2)
    assert (len(answer["steps_s"]), answer["batch_elements"]) == (8, [128, 256])
    assert Batch(keywords={"x": torch.ones(3, 1)}, reference=torch.ones(3)).elements == 6


def test_a_failure_is_told_as_plain_data_and_holds_no_tensors() -> None:
    class Big:
        alive = 0

        def __init__(self) -> None:
            Big.alive += 1

        def __del__(self) -> None:
            Big.alive -= 1

    def batch(size: int) -> Batch:
        held = Big()
        raise RuntimeError(f"CUDA out of memory. {bool(held)}")

    answer = session_on(Device(), batch).trial(3, 2)
    assert not answer["ok"]
    assert answer["chain"][0]["classes"][0] == "builtins.RuntimeError"
    assert answer["chain"][0]["message"] == "CUDA out of memory. True"
    assert "in batch" in answer["traceback"]
    assert Big.alive == 0


def test_an_ended_childs_memory_is_waited_for() -> None:
    device = Device(free=5 * GIB)
    looks = iter([5 * GIB, 5 * GIB, 9 * GIB + GIB - 60 * MIB])

    class Settling(Device):
        def memory_info(self) -> tuple[int, int]:
            return next(looks), TOTAL

    del device
    assert _wait_until_free(cast(Accel, Settling()), 10 * GIB - 64 * MIB) == (10 * GIB - 60 * MIB, TOTAL)
    assert next(looks, None) is None


def test_memory_that_does_not_come_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SETTLE_S", 0.0)
    setup = Setup("mlp", (), "train", "adamw", None, "cuda:0", free_before=11 * GIB)
    told = [
        trial._open_gauge(cast(Accel, Device(free=10 * GIB)), setup, expected)[1]["settled"]
        for expected in (None, 10 * GIB + 60 * MIB, 10 * GIB + 70 * MIB)
    ]
    assert told == [True, True, False]


def test_a_cpus_gauge_counts_what_comes_on_top_of_the_baseline() -> None:
    class Process(Device):
        peak = 0

        def memory(self) -> MemoryFigures:
            return MemoryFigures(resident_bytes=GIB, max_resident_bytes=self.peak, source="fake")

    process = Process()
    gauge = CpuGauge(cast(Accel, process), baseline=GIB, method="VmHWM")
    gauge.begin()
    process.peak = 3 * GIB
    gauge.mark(computing=True)
    process.peak = 4 * GIB
    gauge.mark(computing=False)
    assert gauge.peaks() == (3 * GIB, 2 * GIB)


def test_without_linux_interfaces_it_says_how_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    cpu = open_device("cpu")
    # Without /proc, the process that runs the tests is not offered to the out-of-memory killer.
    monkeypatch.setattr(trial, "open", missing, raising=False)
    monkeypatch.setattr(trial, "reset_resident_peak", lambda: False)
    assert open_cpu_gauge(cpu).method == "process peak"


def test_elsewhere_than_on_linux_nothing_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    set_guard(GIB)


def test_swap_is_none_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(trial, "open", missing, raising=False)
    assert swapped_bytes() == 0
