"""Error messages of devices and their libraries, and the party at fault for each. No I/O.

Each message is a regular expression that ignores case. The texts are those of torch's allocators (CUDA, HIP, XPU, MPS,
HPU and CPU), the CUDA runtime and driver, cuBLAS, cuDNN, cuSOLVER, NCCL and oneDNN.
"""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import Literal, NamedTuple

CPU_ALLOCATOR = r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
HOST_ALLOCATION = r"std::bad_alloc|\[Errno 12\]|Cannot allocate memory"
OUT_OF_MEMORY = r"\bout of memory\b"
# Messages of torch's caching allocator, and of the runtime or a library whose own allocation failed.
ALLOCATOR = r"Tried to allocate|\b(CUDA|HIP|XPU|MPS|GPU) out of memory"
OF_RUNTIME = r"\b(CUDA|HIP)( driver| runtime)? (error|failure)\b.{0,40}out of memory"
# Page-locked host memory. Its allocation fails with the device's error.
PINNED = (
    r"pin memory thread|pin_memory\.py\b|\.pin_memory\(|cudaHost(Alloc|Register)|cudaMallocHost|"
    r"hipHost(Malloc|Register)|CachingHostAllocator"
)
LEVEL_ZERO = r"OUT_OF_(DEVICE|HOST)_MEMORY"
MPS_BUFFER = r"Invalid buffer size:"
HPU = r"PT_DEVMEM.*Allocation failed"

# Limits of a kernel, which do not depend on memory: blocks of a grid, 32-bit indexing, tensors beyond 2^31 elements.
GRID = r"invalid configuration argument"
INDEX_32_BIT = r"INT_MAX|32-bit ind(ex|ices)|canUse32BitIndexMath|integer out of range"
STORAGE_SIZE = r"Storage size calculation overflowed"
CUDNN_NOT_SUPPORTED = r"CUDNN_STATUS_NOT_SUPPORTED"

# A display driver's watchdog ended the kernel.
LAUNCH_TIMEOUT = r"the launch timed out and was terminated"

# Errors that libraries raise for a failed allocation, and for other reasons.
LIBRARY_FAILED = r"CU(BLAS|DNN|SPARSE|SOLVER|FFT|RAND)_STATUS_(ALLOC_FAILED|INTERNAL_ERROR|EXECUTION_FAILED)"
LIBRARY_NOT_INITIALIZED = r"CU(BLAS|DNN)_STATUS_NOT_INITIALIZED"
NO_ENGINE = (
    r"FIND was unable to find an engine",
    r"GET was unable to find an engine",
    r"No (valid|suitable) execution plans? (found|built)",
)
# A library has no kernel for a shape or dtype. Nothing is broken, and another library may have a kernel. torch also
# reports NOT_SUPPORTED if cuBLASLt's heuristic returned no algorithm (ATen/cuda/CUDABlas.cpp; pytorch PR 106840, issue
# 169956). hipBLAS reports NOT_SUPPORTED for single shapes (rocm-libraries issue 3550).
NO_KERNEL = (
    r"(CU|HIP)(BLAS|BLASLT|DNN|SPARSE)_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)",
    r"rocblas_status_not_implemented|miopenStatus(NotImplemented|UnsupportedOp)",
    r"\bno (suitable |valid |cuBLASLt |hipBLASLt |matching )*(algorithm|kernel|engine|heuristic)s?\b(?! image)",
    r"(unable|failed) to find an? (suitable |valid )*(algorithm|engine|kernel)",
    *NO_ENGINE,
)

NVML_ASSERT = r"NVML_SUCCESS == r"
HANDLES = r"handles_\.at\(i\)"
NOT_READY = r"CUDA driver error: device not ready"
XPU_DEVICE = r"UR_RESULT_ERROR_OUT_OF_RESOURCES|UR_RESULT_ERROR_DEVICE_LOST"
AOT_RUN = r"run_func_\(.*model_container_runner"
ONEDNN = r"could not create a (primitive|memory|descriptor)"
NO_THREAD = r"libgomp: Thread creation failed|can't start new thread"
NO_SEGMENT = r"failed to map segment"


# The party at fault for an error. `device`: the device or its driver failed while it was in use. `setup`: this machine
# or torch cannot use the device. `memory`: there was not enough memory. `library`, `program`: the call itself may be
# wrong, so a small kernel in a fresh process tests the device.
CauseOrigin = Literal["device", "setup", "memory", "library", "program"]


class Cause(NamedTuple):
    """The meaning of an error text. `gpucheck explain` may have a page for `id`. `poisons` means that the process
    cannot use the device any more: every later call fails with the same error. `fix` is the command to type next."""

    id: str
    title: str
    patterns: tuple[str, ...]
    whose: CauseOrigin
    poisons: bool = False
    fix: str = ""

    def matches(self, text: str) -> bool:
        return any(_compiled(pattern).search(text) for pattern in self.patterns)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# The fix for each fault, the same in every command. `{card}` is the GPU as `nvidia-smi -i` takes it.
FIX = {
    "heat": "check fans, air flow and room temperature",
    "power": "check power supplies, cables and the rack's power limit",
    "lost": "drain and power-cycle the node; if it recurs, reseat the GPU and its power cables",
    "ecc": "drain the node, then sudo nvidia-smi --gpu-reset -i {card}; if errors return, replace the GPU",
    "wrong data": "take the GPU out of use; check its ECC counters (nvidia-smi -q -d ECC), then gpucheck stress",
    "memory held": "gpucheck devices --processes",
}


def fix_of(cause: str) -> str:
    """Return the fix for an unknown GPU, which the command names `INDEX`."""
    return FIX[cause].format(card="INDEX")


_LOG = "sudo dmesg | grep -i xid shows the driver's messages"
_SMOKE = f"gpucheck smoke in a fresh process shows whether it persists; {_LOG}"
_RESET = f"{_LOG}; stop all processes on it, then reset it with sudo nvidia-smi --gpu-reset -i N, or reboot"


def _device(id: str, title: str, *patterns: str, poisons: bool = True, fix: str = _SMOKE) -> Cause:
    return Cause(id, title, patterns, "device", poisons, fix)


# The first row that matches decides. The source of `poisons` is CUDA Runtime API, cudaError_t: after such an error, the
# process "must be terminated and relaunched". HIP's errors have the same names.
CAUSES: tuple[Cause, ...] = (
    Cause("oom.cpu", "the host's memory is full", (CPU_ALLOCATOR, HOST_ALLOCATION), "memory"),
    Cause("oom.cuda", "the device's memory is full", (OUT_OF_MEMORY, LEVEL_ZERO, MPS_BUFFER, HPU), "memory"),
    # `cause_of` chooses between `oom.cuda` and the next two rows, because their texts overlap.
    Cause(
        "oom.host",
        "no host memory could be pinned",
        (PINNED,),
        "memory",
        fix="pin_memory=False, or fewer workers and a smaller prefetch_factor; free -h and ulimit -l show the limits",
    ),
    Cause(
        "oom.runtime",
        "CUDA had no memory for itself",
        (OF_RUNTIME,),
        "memory",
        fix="gpucheck devices --processes shows who uses the device; torch's own tensors may not be the reason",
    ),
    _device(
        "cuda.ecc",
        "its memory had an uncorrectable error (ECC)",
        r"uncorrectable ECC error",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        r"cudaErrorECCUncorrectable",
        r"hipErrorECCNotCorrectable",
        fix=fix_of("ecc"),
    ),
    _device(
        "cuda.nvlink",
        "NVLink had an uncorrectable error",
        r"uncorrectable NVLink error",
        r"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        r"cudaErrorNvlinkUncorrectable",
        fix=f"nvidia-smi nvlink -e; {_RESET}",
    ),
    _device("cuda.lost", "it has fallen off the bus", r"GPU is lost", r"GPU has fallen off the bus", fix=FIX["lost"]),
    _device(
        "cuda.illegal_access",
        "a kernel accessed memory outside its own",
        r"illegal memory access",
        r"CUDA_ERROR_ILLEGAL_ADDRESS",
        r"cudaErrorIllegalAddress",
    ),
    _device(
        "cuda.misaligned", "a kernel used a misaligned address", r"misaligned address", r"CUDA_ERROR_MISALIGNED_ADDRESS"
    ),
    _device(
        "cuda.illegal_instruction",
        "a kernel used an instruction that the device does not know",
        r"an illegal instruction was encountered",
        r"CUDA_ERROR_ILLEGAL_INSTRUCTION",
    ),
    _device(
        "cuda.launch_failure",
        "a kernel crashed",
        r"unspecified launch failure",
        r"CUDA_ERROR_LAUNCH_FAILED",
        r"cudaErrorLaunchFailure",
    ),
    _device(
        "cuda.device_assert",
        "a check inside a kernel failed",
        r"device-side assert triggered",
        r"CUDA_ERROR_ASSERT",
        r"cudaErrorAssert",
    ),
    _device("cuda.launch_timeout", "the display driver ended a kernel that took too long", LAUNCH_TIMEOUT),
    _device("cuda.hardware_stack", "a kernel's call stack was damaged", r"hardware stack error"),
    _device(
        "cuda.program_counter",
        "a kernel jumped outside its own code",
        r"invalid program counter",
        r"CUDA_ERROR_INVALID_PC",
        r"operation not supported on global/shared address space",
        r"CUDA_ERROR_INVALID_ADDRESS_SPACE",
    ),
    _device(
        "cuda.contained",
        "the hardware failed",
        r"CUDA_ERROR_CONTAINED",
        r"cudaErrorContained",
        r"CUDA_ERROR_EXTERNAL_DEVICE",
        r"cudaErrorExternalDevice",
        fix=fix_of("ecc"),
    ),
    _device(
        "cuinit.mps",
        "the server of NVIDIA's Multi-Process Service failed",
        r"CUDA_ERROR_MPS_\w+",
        r"MPS (client|server|RPC)\b.{0,60}(fail|terminated|not ready)",
        fix="check the log of nvidia-cuda-mps-control, or stop it with echo quit | nvidia-cuda-mps-control",
    ),
    _device(
        "hip.fault",
        "a kernel crashed or accessed memory outside its own (ROCm)",
        r"Memory access fault by GPU node",
        r"hipErrorLaunchFailure",
        r"HSA_STATUS_ERROR_(EXCEPTION|ILLEGAL_INSTRUCTION)",
        r"HSA_STATUS_ERROR_MEMORY_(APERTURE_VIOLATION|FAULT)",
        r"hipErrorIllegalAddress",
        fix="sudo dmesg | grep -i amdgpu; then gpucheck smoke",
    ),
    _device("xpu.lost", "the Intel GPU stopped answering", XPU_DEVICE, fix="sudo dmesg | grep -i -e i915 -e xe"),
    _device(
        "mps.command_buffer",
        "Metal ended the work on the GPU with an error",
        r"kIOGPUCommandBufferCallbackError\w+",
        r"Caused GPU (Hang|Timeout|Address Fault) Error",
        r"MTLCommandBuffer.{0,80}(error|failed)",
        r"commit command buffer with error",
        poisons=False,
        fix="gpucheck smoke; if it fails too, restart the machine",
    ),
    Cause(
        "cuda.no_kernel",
        "this torch has no code for the device's architecture",
        (
            r"no kernel image is available",
            r"cudaErrorNoKernelImageForDevice",
            r"CUDA_ERROR_NO_BINARY_FOR_GPU",
            r"hipErrorNoBinaryForGpu",
        ),
        "setup",
        fix="gpucheck doctor names the wheel that has it",
    ),
    Cause(
        "cuda.setup",
        "this process cannot use the device",
        (
            r"CUDA driver version is insufficient",
            r"busy or unavailable",
            r"no CUDA-capable device is detected",
            r"No (CUDA|HIP) GPUs are available",
            r"\binitialization error\b",
            r"system not yet initialized",
            r"forward compatibility was attempted",
            r"CUDA unknown error",
            r"Torch not compiled with",
            r"no ROCm-capable device is detected",
        ),
        "setup",
        fix="gpucheck doctor",
    ),
    # Errors of an invalid call, which a healthy device raises too.
    Cause(
        "cuda.argument",
        "a call was not allowed",
        (
            r"invalid argument",
            GRID,
            r"invalid resource handle",
            r"invalid device ordinal",
            r"invalid device function",
            r"too many resources requested",
            r"operation not supported\b(?! on global)",
            r"operation not permitted",
            r"peer (access|mapping)",
            r"cudaErrorStreamCapture|previous error during capture|depend on a capturing",
            r"not implemented for",
            INDEX_32_BIT,
            STORAGE_SIZE,
        ),
        "program",
    ),
    Cause(
        "library.failed",
        "a call of one of the device's libraries failed",
        (
            r"(CU|HIP|ROC|MI|MIOPEN)\w*_STATUS_\w+",
            r"\bCUFFT_\w+",
            r"miopenStatus\w+",
            *NO_ENGINE,
            ONEDNN,
            HANDLES,
            NVML_ASSERT,
        ),
        "library",
    ),
    # Any other error of a runtime or a driver.
    Cause(
        "device.runtime",
        "its runtime reported an error",
        (
            r"\b(CUDA|HIP|XPU|MPS)( driver| runtime)? error\b",
            r"\bcudaError\w+|\bhipError\w+|\bCUDA_ERROR_\w+",
            r"\bUR_RESULT_ERROR_\w+",
        ),
        "device",
        fix=_SMOKE,
    ),
)
BY_ID: dict[str, Cause] = {row.id: row for row in CAUSES}

# Exception classes whose cause does not depend on the text. A qualified name needs no import of torch.
_CAUSE_OF_CLASS = {"torch.OutOfMemoryError": "oom.cuda", "builtins.MemoryError": "oom.cpu"}
_RUNTIME_ERRORS = ("torch.AcceleratorError", "torch.cuda.DeferredCudaCallError")
# Classes that libraries raise. Only their texts count: other classes, such as ValueError, come from the user's program.
LIBRARY_ERRORS = frozenset(
    ("builtins.RuntimeError", "builtins.MemoryError", "builtins.OSError", "builtins.SystemError", *_RUNTIME_ERRORS)
)


def cause_of(text: str, where: str = "") -> Cause | None:
    """Return the first cause that matches the text, or None for an unknown text.

    "CUDA error: out of memory" does not come from torch's allocator. The CUDA runtime raises this error if no host
    memory could be pinned, which `where` (the text of the frames) shows. It also raises this error if it has no memory
    for a stream, an event, a context or a library's start.
    """
    row = next((row for row in CAUSES if row.matches(text)), None)
    if row is None or row.id not in ("oom.cuda", "oom.host"):
        return row
    if row.id == "oom.host":  # the text names pinned memory, but no lack of memory
        return next((row for row in CAUSES if row.id != "oom.host" and row.matches(text)), None)
    if _compiled(ALLOCATOR).search(text) or not (_compiled(OF_RUNTIME).search(text) or _compiled(PINNED).search(text)):
        return row
    return BY_ID["oom.host" if _compiled(PINNED).search(f"{text}\n{where}") else "oom.runtime"]


def is_of_memory(text: str) -> bool:
    cause = cause_of(text)
    return cause is not None and cause.whose == "memory"


def cause_of_error(classes: Collection[str], text: str, where: str = "") -> Cause | None:
    """Return the cause of an exception: by the qualified names of its class and bases, then by `cause_of`."""
    for name, id in _CAUSE_OF_CLASS.items():
        if name in classes:
            return BY_ID[id]
    cause = cause_of(text, where) if LIBRARY_ERRORS.intersection(classes) else None
    is_of_runtime = any(name in classes for name in _RUNTIME_ERRORS)
    return BY_ID["device.runtime"] if cause is None and is_of_runtime else cause


@dataclass(frozen=True, slots=True)
class ChainedError:
    """One exception of a chain: the names of its class and bases, its message, and its frames' files and functions."""

    classes: tuple[str, ...]
    message: str
    where: str = ""


def chain_of(error: BaseException) -> tuple[ChainedError, ...]:
    """Return an exception and its chain: each `__cause__`, or else each `__context__` that is not suppressed."""
    chain: list[ChainedError] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        classes = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(current).__mro__)
        chain.append(ChainedError(classes, message_of(current), _frames(current.__traceback__)))
        context = None if current.__suppress_context__ else current.__context__
        current = context if current.__cause__ is None else current.__cause__
    return tuple(chain)


def _frames(trace: TracebackType | None) -> str:
    """Return the files and functions of a traceback, with the source of its last line."""
    rows: list[str] = []
    line = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        rows.append(f"{code.co_filename} {code.co_name}")
        line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return "\n".join((*rows, line))


def message_of(error: BaseException) -> str:
    """Return the message of an exception without colours, or a traceback's text for it if its `__str__` fails."""
    try:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # torch colours its error about weights_only
    except Exception:  # noqa: BLE001 (the class is the user's, and so is what it raises)
        return "<exception str() failed>"


def cause_in(chain: Sequence[ChainedError]) -> tuple[Cause | None, ChainedError]:
    """Return the cause of a chain, and the exception that has this cause; the first exception if no cause is known. A
    failed device comes before memory, and memory before the rest, because other errors usually follow from these."""
    causes = [(cause_of_error(error.classes, error.message, error.where), error) for error in chain]
    ranks = {"device": 0, "memory": 1}
    known = [(ranks.get(cause.whose, 2), cause, error) for cause, error in causes if cause is not None]
    return min(known, key=itemgetter(0), default=(0, None, chain[0]))[1:]


# This setting reduces fragmentation. Every version of torch reads this name of the variable. torch 2.9.1 ignores the
# newer PYTORCH_ALLOC_CONF for CUDA (pytorch issue 183387), and earlier versions do not know PYTORCH_ALLOC_CONF.
# Versions 2.9 to 2.11 print a warning that PYTORCH_CUDA_ALLOC_CONF is deprecated.
EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
