from __future__ import annotations

import signal

import pytest

from gpucheck.batch_size.outcome import BOUNDING, End, classify
from gpucheck.messages import ChainedError, chain_of

RUNTIME = ("builtins.RuntimeError", "builtins.Exception", "builtins.BaseException", "builtins.object")
TORCH_OOM = ("torch.OutOfMemoryError", *RUNTIME)
ACCELERATOR = ("torch.AcceleratorError", *RUNTIME)
MEMORY = ("builtins.MemoryError", "builtins.Exception", "builtins.BaseException", "builtins.object")
NUMPY = ("numpy._core._exceptions._ArrayMemoryError", *MEMORY)
VALUE = ("builtins.ValueError", "builtins.Exception", "builtins.BaseException", "builtins.object")
NOT_IMPLEMENTED = ("builtins.NotImplementedError", *RUNTIME)

DEFAULT_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)"
)
DEFAULT_CPU_WINDOWS = (
    "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."
)


def on(device: str, classes: tuple[str, ...], message: str) -> str:
    return classify(End(raised=(ChainedError(classes, message),)), device)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (TORCH_OOM, "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.89 GiB"),
        (TORCH_OOM, "HIP out of memory. Tried to allocate 2.00 GiB"),
        (TORCH_OOM, "XPU out of memory. Tried to allocate 2.00 GiB"),
        (TORCH_OOM, "Allocation on device"),
        (TORCH_OOM, "CUDA out of memory. Process 1 has 17179869184.00 GiB memory in use"),
        (ACCELERATOR, "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        (RUNTIME, "CUDA error: out of memory"),
        (RUNTIME, "CUDA driver error: out of memory"),
        (RUNTIME, "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9 GB)"),
        (RUNTIME, "Invalid buffer size: 25.60 GiB"),
        (RUNTIME, "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        (RUNTIME, "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB"),
        (RUNTIME, "NCCL error: unhandled cuda error. Last error: Cuda failure 'out of memory'"),
        (RUNTIME, "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'"),
    ],
)
def test_memory_of_the_device(classes: tuple[str, ...], message: str) -> None:
    assert on("cuda", classes, message) == "out-of-memory"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (RUNTIME, DEFAULT_CPU),
        (RUNTIME, DEFAULT_CPU_WINDOWS),
        (MEMORY, ""),
        (NUMPY, "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"),
        (RUNTIME, "std::bad_alloc"),
        (MEMORY, "std::bad_alloc"),
        (("builtins.OSError", "builtins.Exception"), "[Errno 12] Cannot allocate memory"),
    ],
)
def test_memory_of_the_host_is_the_device_only_on_a_cpu(classes: tuple[str, ...], message: str) -> None:
    assert on("cuda", classes, message) == "host-out-of-memory"
    assert on("cpu", classes, message) == "out-of-memory"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "No valid execution plans built.",
        "No suitable execution plans found",
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
        "run_func_( container_handle_, x) API call failed at ../model_container_runner.cpp, line 107",
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":838',
        '!handles_.at(i) INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":396',
        "CUDA driver error: device not ready",
        "could not create a primitive",
        "Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    ],
)
def test_what_may_be_memory_is_suspected(message: str) -> None:
    assert on("cuda", RUNTIME, message) == "suspected"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: invalid configuration argument",
        "Storage size calculation overflowed with sizes=[4294967296, 4294967296]",
        "nonzero is not supported for tensors with more than INT_MAX elements, See issue 51871",
        "upsample_nearest2d only supports input tensors with 32-bit index math: canUse32BitIndexMath(input)",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    ],
)
def test_a_kernels_own_limit_is_not_memory(message: str) -> None:
    assert on("cuda", RUNTIME, message) == "size-limit"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: no kernel image is available for execution on the device",
    ],
)
def test_a_broken_device(message: str) -> None:
    assert on("cuda", ACCELERATOR, message) == "device-broken"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (RUNTIME, "mat1 and mat2 shapes cannot be multiplied (1x10 and 1024x4)"),
        (RUNTIME, "CUDA error: device-side assert triggered"),
        (RUNTIME, "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
        (VALUE, "Expected more than 1 value per channel when training, got input size torch.Size([1, 8])"),
        (VALUE, "my model is out of memory slots"),
        (VALUE, "batch larger than 10 is not supported"),
        (("builtins.IndexError", "builtins.Exception"), "index out of range in self"),
        (NOT_IMPLEMENTED, "\"addmm_impl_cpu_\" not implemented for 'Half'"),
        (("builtins.ModuleNotFoundError", "builtins.ImportError"), "No module named 'foo'"),
        (("builtins.KeyError", "builtins.Exception"), "'logits'"),
    ],
)
def test_everything_else_is_the_users(classes: tuple[str, ...], message: str) -> None:
    assert on("cuda", classes, message) == "user-error"


def test_an_import_that_finds_no_room_is_suspected() -> None:
    message = "libfoo.so: failed to map segment from shared object"
    assert on("cpu", ("builtins.ImportError", "builtins.Exception"), message) == "suspected"


def test_the_whole_chain_counts() -> None:
    wrapped = End(raised=(ChainedError(VALUE, "step failed"), ChainedError(TORCH_OOM, "CUDA out of memory.")))
    assert classify(wrapped, "cuda") == "out-of-memory"
    # What is certain decides, also behind what is only suspected.
    mixed = End(raised=(ChainedError(RUNTIME, "could not create a primitive"), ChainedError(RUNTIME, DEFAULT_CPU)))
    assert classify(mixed, "cpu") == "out-of-memory"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (End(), "fits"),
        (End(exit_status=0), "user-error"),
        (End(timed_out=True, killed_by=9), "timeout"),
        (End(killed_by=9), "inconclusive"),
        (End(killed_by=9, kernel_says_memory=True), "host-out-of-memory"),
        (End(killed_by=int(signal.SIGSEGV)), "suspected"),
        (End(killed_by=int(signal.SIGABRT), stderr_tail="terminate … 'std::bad_alloc'"), "host-out-of-memory"),
        (End(killed_by=int(signal.SIGTERM)), "inconclusive"),
        (End(exit_status=1, stderr_tail="libgomp: Thread creation failed: Resource …"), "suspected"),
        (End(exit_status=3, stderr_tail="bye"), "user-error"),
        (End(exit_status=0xC0000017), "host-out-of-memory"),
        (End(exit_status=-1073741801), "host-out-of-memory"),
    ],
)
def test_how_a_child_ended(end: End, expected: str) -> None:
    assert classify(end, "cuda") == expected


def test_the_launch_watchdog_is_a_timeout() -> None:
    assert on("cuda", RUNTIME, "CUDA error: the launch timed out and was terminated") == "timeout"


def test_causes_and_contexts_are_followed_and_suppressed_contexts_are_not() -> None:
    def raised(how: str) -> BaseException:
        try:
            try:
                raise MemoryError("inner")
            except MemoryError as inner:
                if how == "cause":
                    raise ValueError("outer") from inner
                if how == "none":
                    raise ValueError("outer") from None
                raise ValueError("outer")  # noqa: B904
        except ValueError as outer:
            return outer

    assert [r.classes[0] for r in chain_of(raised("cause"))] == ["builtins.ValueError", "builtins.MemoryError"]
    assert [r.message for r in chain_of(raised("context"))] == ["outer", "inner"]
    assert [r.message for r in chain_of(raised("none"))] == ["outer"]


def test_a_chain_that_bites_its_tail_ends() -> None:
    error = ValueError("a")
    error.__context__ = other = ValueError("b")
    other.__context__ = error
    assert len(chain_of(error)) == 2


@pytest.mark.parametrize("fails", [ValueError("no text"), RecursionError(), SystemError()])
def test_an_exception_whose_text_fails_still_has_a_chain(fails: Exception) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise fails

    assert [one.message for one in chain_of(Silent())] == ["<exception str() failed>"]


def test_what_ends_the_search_is_no_bound() -> None:
    assert not {"fits", "user-error", "device-broken", "inconclusive"} & BOUNDING
