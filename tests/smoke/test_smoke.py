"""The smoke test passes where all is well, and every check of it can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from broken_device import COUNT, Counting
from event_recorder import Recorder
from torch import nn
from torch.nn import functional

from gpucheck.errors import UNDECIDED, CannotLook
from gpucheck.machine import accel as devices
from gpucheck.machine import choose, inventory
from gpucheck.machine import host as machine_host
from gpucheck.machine.accel import Accel
from gpucheck.machine.choose import UsableDevices
from gpucheck.messages import FIX
from gpucheck.report.events import Failed, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import exit_code
from gpucheck.smoke import command as smoke
from gpucheck.smoke import data as smoke_data
from gpucheck.smoke import numerics as smoke_numerics
from gpucheck.smoke.check import PassedCheck, Unavailable, WrongResult, without_own_memory
from gpucheck.smoke.options import CHECKS, Check, SmokeOptions
from gpucheck.units import MIB

CPU = devices.open_device("cpu")
FACTS = Facts(host=Host(), torch=TorchBuild("2.13.0", built_for="cpu"), devices=(Device("cpu", "cpu"),))


def findings(recorder: Recorder) -> dict[str, Finding]:
    return {event.finding.id: event.finding for event in recorder.events if isinstance(event, Judged)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Facts], None]:
    return lambda facts: monkeypatch.setattr(inventory, "read", lambda processes=False: facts)


# -- the whole --------------------------------------------------------------------------------------------------------


def test_everything_passes_on_the_cpu(machine: Callable[[Facts], None]) -> None:
    machine(FACTS)
    recorder = Recorder()
    smoke.command(SmokeOptions(), recorder)
    assert recorder.events[:2] == [Started(FACTS), Notice("no accelerator here; using the CPU")]
    found = findings(recorder)
    assert list(found) == [check.id for check in CHECKS]
    skipped = {name: finding.message for name, finding in found.items() if finding.verdict == "skip"}
    assert skipped == {
        "numerics.tf32": "a CPU has no TF32",
        "copies.pinned": "not on cpu: no pinned memory in torch",
    }
    # A container may have little shared memory, which is a warning.
    bad = {name: f.message for name, f in found.items() if f.verdict not in ("pass", "skip", "warn")}
    assert bad == {}
    steps = [event for event in recorder.events if isinstance(event, Progress)]
    assert [(step.done, step.total) for step in steps] == [(n, len(CHECKS)) for n in range(len(CHECKS))]


# -- what is selected -------------------------------------------------------------------------------------------------


def chosen(only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> list[str]:
    return SmokeOptions(only=only, skip=skip).selected


def test_only_and_skip_take_prefixes() -> None:
    assert chosen(("memory", "copies.p")) == ["memory.one_pebibyte", "copies.pinned"]
    assert chosen(("copies",), ("copies.p",)) == ["copies.non_blocking"]
    assert len(chosen(skip=("copies",))) == len(CHECKS) - 2


# -- what is required -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "least", "kind", "count", "rocm", "verdicts"),
    [
        ("cuda", None, "cuda", 1, False, ["pass"]),
        ("cuda", None, None, 0, False, ["fail"]),
        ("cuda", None, "xpu", 1, False, ["fail"]),
        ("cuda", None, "cuda", 1, True, ["pass"]),
        ("rocm", None, "cuda", 1, True, ["pass"]),
        ("rocm", None, "cuda", 1, False, ["fail"]),
        (None, 2, "cuda", 2, False, ["pass"]),
        (None, 3, "cuda", 2, False, ["fail"]),
        (None, 1, None, 0, False, ["fail"]),
        ("mps", 1, "cuda", 2, False, ["fail", "fail"]),
        (None, None, None, 0, False, []),
    ],
)
def test_requirements(
    require: str | None, least: int | None, kind: str | None, count: int, rocm: bool, verdicts: list[str]
) -> None:
    found = choose.judge_required(require, least, UsableDevices(kind, count, rocm), FACTS)
    assert [finding.verdict for finding in found] == verdicts


# -- the device -------------------------------------------------------------------------------------------------------

UNUSED = dataclasses.replace(
    FACTS,
    host=Host(nvidia_pci_addresses=("0000:17:00.0",)),
    devices=(Device("cuda", name="H200"), Device("cpu", "cpu")),
)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_an_accelerator_that_torch_cannot_use_is_a_failed_check(machine: Callable[[Facts], None], device: str) -> None:
    machine(UNUSED)
    recorder = Recorder()
    smoke.command(SmokeOptions(device=device), recorder)
    (found,) = findings(recorder).values()
    assert (found.id, found.verdict) == ("device.usable", "fail")
    assert "torch 2.13.0 is a CPU-only build" in found.message
    assert "--device cpu" in (found.fix or "")


def test_a_device_that_is_not_in_the_machine_is_no_finding(machine: Callable[[Facts], None]) -> None:
    machine(FACTS)
    with pytest.raises(CannotLook, match="--device cuda:0 not found"):
        smoke.command(SmokeOptions(device="cuda"), Recorder())


def test_facts_that_promise_more_than_torch_keeps_are_the_failed_check(machine: Callable[[Facts], None]) -> None:
    cuda = TorchBuild("2.13.0", built_for="cuda")
    machine(dataclasses.replace(FACTS, torch=cuda, devices=(Device("cuda", "cuda:7", name="H200"),)))
    recorder = Recorder()
    smoke.command(SmokeOptions(device="cuda:7"), recorder)
    (found,) = findings(recorder).values()
    assert (found.id, found.verdict, found.title) == ("device.usable", "fail", "torch cannot use cuda:7")


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDA out of memory. Tried to allocate 2.00 MiB."])
def test_a_device_that_others_fill_has_not_failed(
    machine: Callable[[Facts], None], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Its context takes memory too: a full device cannot be opened, and nothing is known of it."""

    def full(_: object) -> None:
        raise RuntimeError(text)

    cuda = TorchBuild("2.13.0", built_for="cuda")
    machine(dataclasses.replace(FACTS, torch=cuda, devices=(Device("cuda", "cuda:0", name="H200"),)))
    monkeypatch.setattr(devices, "_wrong_answer", full)
    recorder = Recorder()
    smoke.command(SmokeOptions(device="cuda:0"), recorder)
    (found,) = findings(recorder).values()
    assert (found.id, found.verdict, found.message) == ("device.usable", "inconclusive", text)
    assert found.fix == "gpucheck devices --processes shows which processes use memory; then run again, or " + (
        "try --device cpu"
    )


def test_once_a_device_is_lost_the_devices_after_it_are_skipped(
    machine: Callable[[Facts], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = tuple(Device("cuda", f"cuda:{index}", name="H200") for index in range(4))
    machine(dataclasses.replace(FACTS, torch=TorchBuild("2.13.0", built_for="cuda"), devices=several))
    opened: list[str] = []

    def open_named(device_id: str, facts: Facts) -> Any:
        opened.append(device_id)
        return CPU if device_id == "cuda:0" else DeadAccel(device_id)

    monkeypatch.setattr(choose, "open_named", open_named)
    monkeypatch.setattr(smoke, "CHECKS", (check(lambda accel: PassedCheck()),))
    monkeypatch.setattr(SmokeOptions, "selected", ["planted.check"])
    recorder = Recorder()
    smoke.command(SmokeOptions(device="all"), recorder)
    assert opened == ["cuda:0", "cuda:1"]
    found = [event.finding for event in recorder.events if isinstance(event, Judged)]
    assert [(finding.device, finding.verdict) for finding in found] == [
        ("cpu", "pass"),
        ("cuda:1", "fail"),
        ("cuda:2", "skip"),
        ("cuda:3", "skip"),
    ]
    assert [(finding.title, finding.message) for finding in found[2:]] == [
        (f"cuda:{index} was not checked", "another device failed in this process: cuda:1") for index in (2, 3)
    ]
    assert [event.fault.device for event in recorder.events if isinstance(event, Failed)] == ["cuda:1"]


# -- the runner -------------------------------------------------------------------------------------------------------


def check(function: Callable[[Accel], PassedCheck], name: str = "planted.check", **row: Any) -> Check:
    return Check(name, "a planted check", "", "", function, **row)


def raising(error: BaseException) -> Callable[[Accel], PassedCheck]:
    def function(accel: Accel) -> PassedCheck:
        raise error

    return function


def test_what_a_check_answers_is_its_finding() -> None:
    passed = smoke.run_one(check(lambda accel: PassedCheck("well", {"n": 1})), CPU)
    assert (passed.verdict, passed.message, passed.evidence["n"]) == ("pass", "well", 1)
    doubted = smoke.run_one(check(lambda accel: PassedCheck("hm", doubt=True, fix="do")), CPU)
    assert (doubted.verdict, doubted.fix) == ("warn", "do")
    wrong = smoke.run_one(check(raising(WrongResult("off", "mend", by=3))), CPU)
    assert (wrong.verdict, wrong.message, wrong.fix, wrong.evidence["by"]) == ("fail", "off", "mend", 3)
    assert smoke.run_one(check(raising(Unavailable("not here"))), CPU).verdict == "skip"
    needy = check(raising(WrongResult("never run")), need=lambda accel: "no such thing")
    assert smoke.run_one(needy, CPU) == Finding(
        "planted.check", "skip", "a planted check", "no such thing", device="cpu"
    )


@pytest.mark.parametrize("error", [ValueError("odd\nmore"), torch.OutOfMemoryError("odd"), AssertionError("odd")])
def test_whatever_else_it_raises_is_a_failure_and_the_rest_runs(error: Exception) -> None:
    recorder = Recorder()
    smoke.run([check(raising(error)), check(lambda accel: PassedCheck(), "planted.next")], CPU, recorder)
    found = findings(recorder)
    assert found["planted.check"].message == f"{type(error).__name__}: odd"
    assert found["planted.check"].evidence["text"] == str(error)
    assert found["planted.check"].evidence["raised_at"].endswith(" in function")
    assert found["planted.next"].verdict == "pass"


class Terminated(BaseException):
    """As the command line raises for SIGTERM."""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(), SystemExit(1)])
def test_a_signal_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        smoke.run([check(raising(error))], CPU, Recorder())


class DeadAccel:
    """A device that answers nothing any more, as after a CUDA error."""

    kind, is_cpu, module, transient = "cuda", True, torch.cpu, ""
    device = torch.device("cpu")
    why_broken, as_current = Accel.why_broken, Accel.as_current

    def __init__(self, name: str = "cuda:0") -> None:
        self.id = name

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")


def test_once_the_device_is_dead_the_rest_is_skipped_with_that_reason() -> None:
    recorder = Recorder()
    planted = [check(lambda accel: PassedCheck(), f"planted.n{number}") for number in range(3)]
    assert smoke.run(planted, DeadAccel(), recorder)  # type: ignore[arg-type]
    found = [(finding.verdict, finding.message) for finding in findings(recorder).values()]
    text = "CUDA error: an illegal memory access was encountered"
    reason = f"device unusable: planted.n0 failed: {text}"
    assert found == [("fail", f"RuntimeError: {text}"), ("skip", reason), ("skip", reason)]


def test_what_has_not_begun_in_time_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100.0)
    monkeypatch.setattr(smoke, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    recorder = Recorder()
    planted = [check(lambda accel: PassedCheck(), f"planted.n{number}") for number in range(3)]
    # Each look at the clock is a second later; the first check runs whatever the time is.
    assert smoke.run(planted, CPU, recorder, deadline=100.0) is None
    found = [(finding.verdict, finding.message) for finding in findings(recorder).values()]
    late = "--time-budget ended"
    assert found == [("pass", ""), ("inconclusive", late), ("skip", late)]
    assert exit_code(tuple(findings(recorder).values())) == UNDECIDED


# -- every check can fail ---------------------------------------------------------------------------------------------
# A fault is planted in torch itself, and the check that is there for it must name it.

Plant = Callable[[pytest.MonkeyPatch], None]


def quieten(patch: pytest.MonkeyPatch) -> None:
    """A copy that goes through arithmetic: a signalling NaN comes out quiet."""
    real = torch.Tensor.clone

    def clone(self: torch.Tensor) -> torch.Tensor:
        copied = real(self)
        if self.dtype == torch.float32:
            copied.view(torch.int32)[copied.isnan()] |= 0x00400000
        return copied

    patch.setattr(torch.Tensor, "clone", clone)


def bend(patch: pytest.MonkeyPatch, owner: Any, name: str, by: float) -> None:
    """One element of every float32 result is off by `by` of the largest; the reference, in float64, is right."""
    real = getattr(owner, name)

    def bent(*arguments: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = real(*arguments, **options)
        if result.dtype == torch.float32:
            result.view(-1)[5] += by * result.abs().max()
        return result

    patch.setattr(owner, name, bent)


def half_the_products(patch: pytest.MonkeyPatch) -> None:
    """float32 products in bfloat16, as a wrong default would make them."""
    real = torch.mm

    def mm(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(real(left.bfloat16(), right.bfloat16()))

    patch.setattr(torch, "mm", mm)


def approximate(patch: pytest.MonkeyPatch) -> None:
    """An activation that is a little another one in float32: its gradient is off by some thousandths."""
    real = nn.GELU.forward

    def forward(self: nn.GELU, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.dtype == torch.float64:
            return real(self, inputs)
        return functional.gelu(inputs, approximate="tanh")

    patch.setattr(nn.GELU, "forward", forward)


def never_learn(patch: pytest.MonkeyPatch) -> None:
    real = torch.optim.SGD.step

    def step(self: torch.optim.SGD) -> None:
        if self.param_groups[0]["params"][0].dtype == torch.float64:  # the reference learns
            real(self)

    patch.setattr(torch.optim.SGD, "step", step)


def stay_in_float32(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())


def raise_another(patch: pytest.MonkeyPatch) -> None:
    def empty(*arguments: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: unknown error")

    patch.setattr(torch, "empty", empty)


def raise_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "empty", lambda *a, **k: torch.zeros(1))


def copy_too_little(patch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.copy_

    def copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking:
            real(self[:-1], source[:-1])
            return self
        done: torch.Tensor = real(self, source)
        return done

    patch.setattr(torch.Tensor, "copy_", copy)


PLANTED: tuple[tuple[Callable[[Accel], PassedCheck], Plant, str], ...] = (
    (smoke_data.round_trip, quieten, "float32 came back with "),
    # Both are far above rounding (2⁻²⁴ of the terms) and far below what a person would see.
    (smoke_numerics.matmul, lambda p: bend(p, torch.Tensor, "__matmul__", 1e-4), "float32 128×256×192: element (0, 5)"),
    (
        smoke_numerics.matmul,
        half_the_products,
        "float32 products in IEEE precision were requested, but torch computes bfloat16",
    ),
    (smoke_numerics.convolution, lambda p: bend(p, functional, "conv2d", 1e-3), "float32 3×3 convolution: element "),
    (smoke_numerics.training_step, approximate, "the gradient of 0.weight is off by "),
    (smoke_numerics.training_step, never_learn, "the loss is "),
    (smoke_numerics.autocast, stay_in_float32, "a product under autocast is torch.float32, not torch.bfloat16"),
    (smoke_data.one_pebibyte, raise_another, "raised RuntimeError, not torch.OutOfMemoryError: "),
    (smoke_data.one_pebibyte, raise_nothing, "an allocation of 1 PiB raised no error"),
    (smoke_data.non_blocking, copy_too_little, "1 of 1048576 elements wrong on the device"),
)


@pytest.mark.parametrize(("function", "plant", "message"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[Accel], PassedCheck], plant: Plant, message: str
) -> None:
    function(CPU)
    plant(monkeypatch)
    with pytest.raises(WrongResult) as raised:
        function(CPU)
    monkeypatch.undo()
    assert str(raised.value).startswith(message)


def test_tf32_would_not_pass_for_float32() -> None:
    """A product and a convolution whose factors are rounded as TF32 rounds them lie outside the bound of float32."""

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        raw = tensor.view(torch.int32)
        return ((raw + 0x1000) & ~0x1FFF).view(torch.float32)

    for products in (smoke_numerics.matrix_products, smoke_numerics.convolutions):
        for product in products(torch.device("cpu"), torch.float32):
            as_tf32 = dataclasses.replace(product, result=rounded(product.left) @ rounded(product.right))
            with pytest.raises(WrongResult, match="times the bound"):
                smoke_numerics.judge(as_tf32, torch.float32)
            assert smoke_numerics.judge(as_tf32, torch.float32, "tf32") <= 1


# -- running out of memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "changes", "reason"),
    [
        (Host(system="Linux", wsl=True), {}, "dangerous on Windows and WSL"),
        (Host(system="Windows"), {}, "dangerous on Windows and WSL"),
        (Host(system="Linux"), {"integrated": True}, "dangerous on unified memory"),
        (Host(system="Linux"), {"device": torch.device("mps")}, "dangerous on unified memory"),
        (Host(system="Linux"), {}, None),
    ],
)
def test_where_running_out_is_dangerous_it_is_not_tried(
    host: Host, changes: dict[str, Any], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    accel = dataclasses.replace(Accel(torch.device("cuda", 0), torch.cuda, "X"), **changes)
    monkeypatch.setattr(machine_host, "read", lambda: host)
    found = without_own_memory(accel)
    assert found is None if reason is None else (found or "").startswith(reason)


# -- the DataLoader ---------------------------------------------------------------------------------------------------


def test_little_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_data, "shared_memory", lambda: (64 * MIB, 1 * MIB))
    with pytest.raises(WrongResult, match="/dev/shm has only 1 MiB free, too little for DataLoader workers") as raised:
        smoke_data.data_loader(CPU)
    assert raised.value.fix == "start the container with --shm-size=1g or --ipc=host"


@pytest.mark.slow
def test_a_loader_that_loses_or_bends_items_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = smoke_data._batches
    monkeypatch.setattr(smoke_data, "_batches", lambda *a: list(real(*a))[1:])
    with pytest.raises(WrongResult, match="items missing, doubled or out of order"):
        smoke_data.data_loader(CPU)
    monkeypatch.setattr(smoke_data, "_batches", real)
    monkeypatch.setattr(smoke_data, "NumberedItems", Bent)
    with pytest.raises(WrongResult, match="1 values of a batch are wrong on the device") as raised:
        smoke_data.data_loader(CPU)
    assert raised.value.fix == FIX["wrong data"]  # a small /dev/shm changes no value


class Bent(smoke_data.NumberedItems):
    """A dataset one of whose values is not what it must be."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        if index == 13:
            item["values"][3, 3] += 1
        return item


class Dying(smoke_data.NumberedItems):
    """A dataset whose worker is killed, as by the kernel for want of memory."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        os.kill(os.getpid(), 9)
        return {}


@pytest.mark.slow
def test_a_worker_that_is_killed_is_a_failure_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_data, "NumberedItems", Dying)
    # All of it is waited for. Where Python forks no worker, each loads torch first.
    forks = multiprocessing.get_start_method() == "fork"
    monkeypatch.setattr(smoke_data, "LOADER_TIMEOUT_S", 5 if forks else 30)
    found = smoke.run_one(check(smoke_data.data_loader), CPU)
    assert found.verdict == "fail"
    assert found.message.startswith("RuntimeError: DataLoader worker (pid")


class Signalled(smoke_data.NumberedItems):
    """A dataset that sends Ctrl-C as the loader asks for its size, once, and says which thread asked."""

    reached: ClassVar[list[threading.Thread]] = []

    def __len__(self) -> int:
        if not self.reached:
            signal.raise_signal(signal.SIGINT)
            self.reached.append(threading.current_thread())
        return super().__len__()


def test_no_signal_cuts_through_what_torch_does_with_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[threading.Thread] = []
    monkeypatch.setattr(Signalled, "reached", reached)
    monkeypatch.setattr(smoke_data, "NumberedItems", Signalled)
    with pytest.raises(KeyboardInterrupt):
        smoke_data.data_loader(CPU)
        threading.Event().wait(10)  # where the work was done before the signal reached the main thread
    assert reached and threading.main_thread() not in reached


# -- garbage from the device ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [COUNT, -3, smoke_data.COPY_ELEMENTS + 1])
def test_a_count_that_no_count_can_be_is_a_failure_and_never_a_number_on_the_screen(count: int) -> None:
    rows = {row.id: row for row in CHECKS}
    with Counting(count):
        finding = smoke.run_one(rows["copies.non_blocking"], CPU)
    assert finding.verdict == "fail" and finding.message.startswith("the device's own count is invalid"), finding
    assert str(count) not in finding.message
    # A batch has 8 × 16 × 16 values.
    with Counting(count), pytest.raises(WrongResult, match="the device's own count is invalid"):
        list(smoke_data._batches(CPU, pin=False))
    # One that can be is told.
    with Counting(7), pytest.raises(WrongResult, match="7 of 1048576 elements wrong on the device"):
        smoke_data.non_blocking(CPU)


def test_a_driver_that_hangs_is_not_asked_again_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch of this process would wait for it for ever: --require is judged by what is known."""

    def waits() -> str | None:
        raise AssertionError("torch was asked")

    monkeypatch.setattr(devices, "default_accelerator", waits)
    hung = Driver(cuinit_error="libcuda did not answer within 5 s", libcuda_path="/lib/libcuda.so.1")
    (found,) = smoke._required("cuda", None, dataclasses.replace(FACTS, driver=hung))
    assert (found.id, found.verdict) == ("device.required", "fail")
