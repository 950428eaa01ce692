"""Whose fault an exception is, and what a fresh process says where it does not tell."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gpucheck.bench.matmul import product
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import child_protocol, faults
from gpucheck.machine.accel import Accel, open_device
from gpucheck.machine.child import ChildResult
from gpucheck.machine.child_protocol import ChildOutput
from gpucheck.report.events import Failed
from gpucheck.report.report import Collector
from gpucheck.work import reference

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def never(device: str) -> str | None:
    raise AssertionError(f"{device} was asked")


def ended(*lines: object, code: int | None = 0, timed_out: bool = False) -> ChildOutput:
    stdout = "".join(json.dumps(line) + "\n" for line in lines)
    return child_protocol.output_of(ChildResult(code, stdout, "", timed_out, False, 1.0), 90.0)


@pytest.mark.parametrize(
    ("error", "kind", "cause", "poisons"),
    [
        (RuntimeError(ILLEGAL), "device", "cuda.illegal_access", True),
        (RuntimeError("HIP error: unspecified launch failure"), "device", "cuda.launch_failure", True),
        (RuntimeError("CUDA error: device-side assert triggered"), "device", "cuda.device_assert", True),
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "device", "cuda.setup", False),
        (RuntimeError("CUDA error: no kernel image is available"), "device", "cuda.no_kernel", False),
        (RuntimeError("CUDA error: what no table holds"), "device", "device.runtime", False),
        (RuntimeError("Native API failed: UR_RESULT_ERROR_DEVICE_LOST"), "device", "xpu.lost", True),
        (
            RuntimeError("MPS: kIOGPUCommandBufferCallbackErrorHang (Caused GPU Hang Error)"),
            "device",
            "mps.command_buffer",
            False,
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "memory", "oom.cuda", False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory", "oom.cpu", False),
        (torch.OutOfMemoryError("whatever it says"), "memory", "oom.cuda", False),
        (MemoryError(), "memory", "oom.cpu", False),
        (RuntimeError("CUDA error: out of memory"), "memory", "oom.runtime", False),
        (
            RuntimeError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"),
            "memory",
            "oom.runtime",
            False,
        ),
        (RuntimeError("CUDA error: out of memory (cudaHostAlloc)"), "memory", "oom.host", False),
        (
            RuntimeError("Caught RuntimeError in pin memory thread for device 0.\nCUDA error: out of memory"),
            "memory",
            "oom.host",
            False,
        ),
        # The words of these are a program's own.
        (ValueError(ILLEGAL), "error", None, False),
        (KeyError("CUDA error: an illegal memory access was encountered"), "error", None, False),
        (IndexError("list index out of range"), "error", None, False),
    ],
)
def test_class_and_text_decide(error: BaseException, kind: str, cause: str | None, poisons: bool) -> None:
    fault = faults.of(error, "bench matmul", "cuda:0", ask=never)
    assert (fault.kind, fault.cause, fault.poisons, fault.fresh) == (kind, cause, poisons, None)
    assert (fault.error, fault.text) == (type(error).__name__, str(error))


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no class of its own for it")
def test_the_runtimes_own_class_is_the_device_whatever_it_says() -> None:
    fault = faults.of(torch.AcceleratorError("words of tomorrow"), "smoke", "cuda:0", ask=never)
    assert (fault.kind, fault.cause) == ("device", "device.runtime")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(…)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "CUDA error: invalid configuration argument",
        "CUDA error: operation not supported",
        "shape '[3]' is invalid for input of size 4",
        "",
    ],
)
def test_what_does_not_tell_is_asked_in_a_fresh_process(text: str) -> None:
    asked: list[str] = []

    def ask(device: str, *, answer: str | None) -> str | None:
        asked.append(device)
        return answer

    kinds = {}
    for answer in (faults.WORKS, "CUDA error: unknown error", None):
        fault = faults.of(RuntimeError(text), "bench matmul", "cuda:1", ask=functools.partial(ask, answer=answer))
        kinds[answer] = fault.kind
        assert fault.fresh == answer
    assert kinds == {faults.WORKS: "error", "CUDA error: unknown error": "device", None: "error"}
    assert asked == ["cuda:1"] * 3


def test_the_cause_in_a_chain_counts() -> None:
    def raised() -> BaseException:
        try:
            try:
                raise RuntimeError(ILLEGAL)
            except RuntimeError as error:
                raise CannotLook("torch cannot use cuda:0", str(error), finding="device.usable") from error
        except CannotLook as error:
            return error

    error = raised()
    assert isinstance(error, CannotLook) and faults.is_device(error)
    fault = faults.of(error, "memory", "cuda:0", ask=never)
    assert (fault.kind, fault.error, fault.text) == ("device", "RuntimeError", ILLEGAL)
    assert not faults.is_device(CannotLook("no room", "CUDA out of memory"))


def test_what_another_process_saw() -> None:
    error = DeviceFailed("cuda:3: a kernel crashed", "RuntimeError: unspecified launch failure", device="cuda:3")
    fault = faults.of(error, "find-batch-size", None, ask=never)
    assert (fault.kind, fault.device) == ("device", "cuda:3")
    collector = Collector()
    collector(Failed(fault))
    document = collector.report(version="0", command="find-batch-size", argv=(), started="", elapsed_s=0.0)
    assert document.faults == (fault,)
    assert [finding.id for finding in document.findings] == ["device.error"]


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        (ended({"loaded": True}, {"ok": True, "text": None}), faults.WORKS),
        (ended({"loaded": True}, {"ok": False, "text": ILLEGAL}), ILLEGAL),
        # Memory that others hold, and a card that one process has for itself, say nothing of the card.
        (ended({"loaded": True}, {"ok": False, "text": "CUDA out of memory. Tried"}), None),
        (ended({"loaded": True}, {"ok": False, "text": "CUDA error: all devices are busy or unavailable"}), None),
        (ended({"loaded": True}, code=None, timed_out=True), "no answer within 90 s"),
        (ended(code=None, timed_out=True), None),
        (ended({"loaded": True}, code=-11), "ended with -11"),
        (ended({"loaded": True}, code=-9), None),
        (ended(code=1), None),
    ],
)
def test_what_a_fresh_process_came_to(output: ChildOutput, answer: str | None) -> None:
    assert faults.read(output) == answer


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_fresh_process_says_what_it_met() -> None:
    said = faults.fresh_process("cuda:0")
    assert said is not None and said != faults.WORKS


def test_a_device_that_computes_nothing_is_broken() -> None:
    class Dead(Accel):
        def synchronize(self) -> None:
            raise RuntimeError(f"{ILLEGAL}\nmore")

    assert Dead(torch.device("cpu"), torch.cpu, "a CPU").why_broken() == ILLEGAL


def in_cpp_of_torch() -> None:
    """Our own line calls torch, whose C++ leaves no frame."""
    reference.check_product(torch.ones(2, 3), torch.ones(5, 2), torch.ones(2, 2))


def in_python_of_torch() -> None:
    torch.nn.Linear(2, 2).load_state_dict({})


def of_a_library_of_somebody() -> None:
    raise RuntimeError("could not create a primitive")


def of_a_call_that_is_not_allowed() -> None:
    raise RuntimeError("CUDA error: invalid configuration argument")


def by_our_raise() -> None:
    def refuse() -> None:
        raise ValueError("no float8 here")

    product.try_once(refuse, product.KINDS["float8_e4m3fn"], open_device("cpu"))


def by_python_itself() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    pool.submit(print)


def by_a_generator() -> None:
    def stops() -> Iterator[int]:
        yield next(iter(()))

    next(stops())


def by_a_deep_call() -> None:
    by_a_deep_call()


def by_a_key() -> None:
    raise KeyError("CUDA error")


@pytest.mark.parametrize(
    ("raising", "of_library"),
    [
        (in_cpp_of_torch, True),
        (in_python_of_torch, True),
        (of_a_library_of_somebody, True),
        (of_a_call_that_is_not_allowed, False),
        (by_our_raise, False),
        (by_python_itself, False),
        (by_a_generator, False),
        (by_a_deep_call, False),
        (by_a_key, False),
    ],
)
def test_where_it_was_raised_tells_a_librarys_error_from_our_bug(raising: Callable[[], None], of_library: bool) -> None:
    with pytest.raises(Exception) as raised:
        raising()
    assert faults.is_of_library(raised.value) is of_library
