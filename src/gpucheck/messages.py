"""Error messages that say that memory, or a size, was too much: one spelling for whoever reads them. Pure.

Each is a regular expression, read without regard to case. The texts are those of torch's allocators (CUDA, HIP, XPU,
MPS, HPU and CPU), the CUDA runtime and driver, cuBLAS, cuDNN, cuSOLVER, NCCL and oneDNN.
"""

from __future__ import annotations

CPU_ALLOCATOR = r"DefaultCPUAllocator: (can't allocate memory|not enough memory)"
HOST_ALLOCATION = r"std::bad_alloc|\[Errno 12\]|Cannot allocate memory"
OUT_OF_MEMORY = r"\bout of memory\b"
LEVEL_ZERO = r"OUT_OF_(DEVICE|HOST)_MEMORY"
MPS_BUFFER = r"Invalid buffer size:"
HPU = r"PT_DEVMEM.*Allocation failed"

# A kernel's own limit, whatever the memory: blocks of a grid, 32-bit indexing, tensors beyond 2^31 elements.
GRID = r"invalid configuration argument"
INDEX_32_BIT = r"INT_MAX|32-bit ind(ex|ices)|canUse32BitIndexMath|integer out of range"
STORAGE_SIZE = r"Storage size calculation overflowed"
CUDNN_NOT_SUPPORTED = r"CUDNN_STATUS_NOT_SUPPORTED"

# A display driver's watchdog ended the kernel.
LAUNCH_TIMEOUT = r"the launch timed out and was terminated"

# Libraries that report a failed allocation of their own as something else.
LIBRARY_FAILED = r"CU(BLAS|DNN|SPARSE|SOLVER|FFT|RAND)_STATUS_(ALLOC_FAILED|INTERNAL_ERROR|EXECUTION_FAILED)"
LIBRARY_NOT_INITIALIZED = r"CU(BLAS|DNN)_STATUS_NOT_INITIALIZED"
NO_ENGINE = (
    r"FIND was unable to find an engine",
    r"GET was unable to find an engine",
    r"No (valid|suitable) execution plans? (found|built)",
)
# A library that has no kernel for one shape or dtype; another may have one, and nothing is broken. torch says
# NOT_SUPPORTED also where cuBLASLt's heuristic returned no algorithm (ATen/cuda/CUDABlas.cpp; pytorch PR 106840, issue
# 169956), and hipBLAS says it of single shapes too (rocm-libraries issue 3550).
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
