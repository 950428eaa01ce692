"""The rows of error texts, the patterns and steps that several of them share, and the names of errors. No I/O."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from gpucheck.doctor.condition import CERTAINTIES, Certainty, Condition


def text(certainty: Certainty, id: str, title: str, *patterns: str, **fields: Any) -> Condition:
    """Return the row of an error text: `Condition` describes its fields."""
    return Condition(id, title, patterns=patterns, certainty=certainty, **fields)


# The rows by the weight of their evidence.
proof, strong, hint = (functools.partial(text, certainty) for certainty in CERTAINTIES)

# Patterns for the introductions of a CUDA message in torch, vLLM and DeepEP, FlashInfer, Triton, CTranslate2, ONNX
# Runtime, torch before 1.0 and caffe, and in programs that name the failed call.
CUDA_SAYS = (
    r"(CUDA(RT)? (driver |runtime )?error( ?\(?\d+\)?)? ?:|CUDA error (\(?[a-z]:)?[^\s:]{1,200}:\d+(\):)?|"
    r"(CUDA|(Batch|Single|Merge)\w{1,80}) failed with error ?:?|CUDA failure \d+:|"
    # NCCL. Its message about a lack of memory has its own row.
    r"CUDA failure( \d+)?(?! ?out of memory)|Triton Error \[CUDA\]:|"
    r"CUDA_?Runtime_?Error ?:?|cudaSuccess ?\(\d+ vs\. 0\)|THCudaCheck FAIL .{1,200}error=\d+ ?:|"
    # Triton Inference Server and gpu-burn.
    r"unable to create (CUDA )?stream:|\(gpu_burn\S{1,20}:\d+\):|Runtime API error \d+:|\] CUDA:|\[CUDA\]|cuda(Malloc|"
    r"Memcpy|Memset|Free|Launch|Stream|Event|Device|Set|Get)\w{0,30}( failed| returned error)( with error)?:?) ?"
)


def by_code(*numbers: int) -> str:
    """Return a pattern for errors that give only CUDA's number: torch, caffe, CUDA's samples, ollama, OpenMM, numba."""
    either = "|".join(map(str, numbers))
    call = "cu(Init|Mem|Module|Link|Ctx|Launch|Stream|Event|Device|Func|Occupancy)"
    return (
        rf"(\bCUDA ?(driver |runtime )?(error|failure|return code)( code| detected)?:? ?\(?|\bcudaSuccess \(|"
        rf"\bTHCudaCheck FAIL .{{1,200}} error=|\bRuntime API error |\bcudart init failure: |"
        rf"\bcuda driver library failed to get device context )({either})(?!\.?\d)|"
        rf"\bcode=({either})\(cu|\[({either})\] Call to {call}|\bInvalid error code \(({either})\) at \S{{0,200}}cuda"
    )


# This variable replaces CUDA_LAUNCH_BLOCKING in torch's ROCm builds.
SERIALIZE = (
    "AMD_SERIALIZE_KERNEL=3 python … ends the traceback at the failing line; sudo dmesg | grep -i amdgpu shows the "
    "driver's messages"
)

# The step for full memory if nothing else is known; `steps.room` replaces it by that of the program in the paste.
SMALLER = "use a smaller batch or image, a shorter sequence, or activation checkpointing"
# The servers' options are written `vLLM … (SGLang …)`; `step` keeps those of the server in the paste.
BACKEND = (
    "choose another attention backend: vLLM --attention-backend TRITON_ATTN or before 0.12 "
    "VLLM_ATTENTION_BACKEND=TRITON_ATTN (SGLang --attention-backend triton)"
)
# Windows resets a GPU whose kernel runs longer than TdrDelay, by default 2 s.
TDR = (
    "set a longer limit as administrator in Windows: reg add HKLM\\SYSTEM\\CurrentControlSet\\Control\\GraphicsDrivers "
    "/v TdrDelay /t REG_DWORD /d 60 /f, then restart Windows"
)

_BEGINS = r"(?:CUDA_ERROR_|cudaError|hipError|HIP_ERROR_|NVML_ERROR_|ZE_RESULT_ERROR_|code)(?= )"
_PARTS = re.compile(rf"({_BEGINS})((?: (?!{_BEGINS})\S+)+)")
# The error names and numbers of CUDA, HIP, NVML and Level Zero, by the text that explains them: an id, a prefix and the
# names with that prefix, then possibly more prefixes. The prefix `code` precedes CUDA's error numbers. Names of other
# libraries are patterns in their own rows. NVML's names also match the exceptions of its Python package.
_NAMES = r"""
cuda.argument             hipError InvalidDevicePointer InvalidMemcpyDirection InvalidPitchValue InvalidSymbol
                          InvalidTexture InvalidChannelDescriptor MissingConfiguration UnsupportedLimit InvalidValue
                          HostMemoryAlreadyRegistered HostMemoryNotRegistered CUDA_ERROR_ INVALID_VALUE
                          HOST_MEMORY_ALREADY_REGISTERED code 712 cudaError HostMemoryAlreadyRegistered
cuda.capture              hipError CapturedEvent code 900 901 902 903 904 905 906 907 908
cuda.contained            code 226 911 914
cuda.ecc                  CUDA_ERROR_ ECC_UNCORRECTABLE code 214 39 cudaError ECCUncorrectable hipError
                          ECCNotCorrectable
cuda.handle               hipError ContextIsDestroyed InvalidResourceHandle InvalidContext ContextAlreadyCurrent
                          ContextAlreadyInUse InvalidGraphicsContext SetOnActiveProcess Deinitialized InvalidHandle
                          CUDA_ERROR_ INVALID_HANDLE code 201 400 33 709
cuda.illegal_access       code 700 77 cudaError IllegalAddress
cuda.illegal_instruction  CUDA_ERROR_ ILLEGAL_INSTRUCTION code 715 73 cudaError IllegalInstruction
cuda.invalid_image        hipError SharedObjectSymbolNotFound NotFound FileNotFound code 200 300 302 500
cuda.launch_failure       CUDA_ERROR_ HARDWARE_STACK_ERROR LAUNCH_FAILED code 714 719 717 718 cudaError LaunchFailure
cuda.launch_timeout       CUDA_ERROR_ LAUNCH_TIMEOUT code 702 6 cudaError LaunchTimeout hipError LaunchTimeOut
cuda.misaligned           CUDA_ERROR_ MISALIGNED_ADDRESS code 716 74 cudaError MisalignedAddress
cuda.no_kernel            CUDA_ERROR_ NO_BINARY_FOR_GPU code 98 8 209 48 cudaError NoKernelImageForDevice
                          InvalidDeviceFunction
cuda.not_supported        hipError NotSupported code 800 801
cuda.nvlink               CUDA_ERROR_ NVLINK_UNCORRECTABLE code 220 cudaError NvlinkUncorrectable
cuda.ordinal              code 101 10
cuda.peer                 hipError MapBufferObjectFailed PeerAccessAlreadyEnabled PeerAccessNotEnabled
                          PeerAccessUnsupported CUDA_ERROR_ PEER_ACCESS_UNSUPPORTED code 217 711 cudaError
                          MapBufferObjectFailed PeerAccessUnsupported TooManyPeers
cuda.ptx                  code 218 222 cudaError UnsupportedPtxVersion InvalidPtx
cuda.resources            hipError CooperativeLaunchTooLarge LaunchOutOfResources CUDA_ERROR_ LAUNCH_OUT_OF_RESOURCES
                          code 701 7 720 cudaError LaunchOutOfResources
cuda.unknown              hipError Unknown NotReady PriorLaunchFailure RuntimeMemory RuntimeOther IllegalState NotMapped
                          AlreadyAcquired AlreadyMapped ArrayIsMapped MapFailed UnmapFailed NotMappedAsArray
                          NotMappedAsPointer GraphExecUpdateFailure ProfilerDisabled ProfilerNotInitialized
                          ProfilerAlreadyStarted ProfilerAlreadyStopped
cuinit.100                CUDA_ERROR_ NO_DEVICE cudaError NoDevice
cuinit.3                  CUDA_ERROR_ NOT_INITIALIZED
cuinit.34                 CUDA_ERROR_ STUB_LIBRARY code 34 cudaError StubLibrary
cuinit.46                 CUDA_ERROR_ DEVICE_UNAVAILABLE cudaError DevicesUnavailable
cuinit.802                CUDA_ERROR_ SYSTEM_NOT_READY cudaError SystemNotReady
cuinit.803                CUDA_ERROR_ SYSTEM_DRIVER_MISMATCH cudaError SystemDriverMismatch
cuinit.804                CUDA_ERROR_ COMPAT_NOT_SUPPORTED cudaError CompatNotSupported
cuinit.999                CUDA_ERROR_ UNKNOWN code 30 304 cudaError Unknown
cuinit.mps                code 806 808 809 810
cuinit.too_old            cudaError InsufficientDriver CallRequiresNewerDriver
hip.arch                  hipError SharedObjectInitFailed InvalidImage
hip.fault                 hipError LaunchFailure
hip.init                  hipError InsufficientDriver OperatingSystem
hip.none                  HIP_ERROR_ NoDevice hipError NoDevice
nvml.hardware             NVML_ERROR_ IRQ_ISSUE CORRUPTED_INFOROM INSUFFICIENT_POWER TIMEOUT
nvml.no_library           NVML_ERROR_ LIBRARY_NOT_FOUND
nvml.not_loaded           NVML_ERROR_ DRIVER_NOT_LOADED
nvml.not_supported        NVML_ERROR_ UNINITIALIZED ALREADY_INITIALIZED INVALID_ARGUMENT INVALID_STATE INSUFFICIENT_SIZE
                          NOT_FOUND NO_DATA NOT_READY IN_USE MEMORY INSUFFICIENT_RESOURCES GPU_NOT_FOUND
                          FUNCTION_NOT_FOUND FREQ_NOT_SUPPORTED RESET_TYPE_NOT_SUPPORTED DEPRECATED
                          VGPU_ECC_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH
nvml.permission           NVML_ERROR_ NO_PERMISSION
nvml.reset                NVML_ERROR_ RESET_REQUIRED
nvml.unknown              NVML_ERROR_ UNKNOWN OPERATING_SYSTEM
oom.cuda                  code 2 cudaError MemoryAllocation
oom.hip                   HIP_ERROR_ OutOfMemory
size.grid                 code 9
xpu.call                  ZE_RESULT_ERROR_ MODULE_BUILD_FAILURE MODULE_LINK_FAILURE UNSUPPORTED_VERSION
                          UNSUPPORTED_FEATURE UNSUPPORTED_SIZE UNSUPPORTED_ALIGNMENT UNSUPPORTED_ENUMERATION UNKNOWN
                          UNSUPPORTED_IMAGE_FORMAT INVALID_\w+ HANDLE_OBJECT_IN_USE OVERLAPPING_REGIONS UNINITIALIZED
xpu.lost                  ZE_RESULT_ERROR_ DEVICE_LOST DEVICE_REQUIRES_RESET DEVICE_IN_LOW_POWER_STATE
xpu.none                  ZE_RESULT_ERROR_ DEPENDENCY_UNAVAILABLE INSUFFICIENT_PERMISSIONS NOT_AVAILABLE
"""


def named(texts: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the texts, each with patterns for the error names that it explains."""
    rows = (" ".join(row.split()).split(" ", 1) for row in re.split(r"\n(?=\S)", _NAMES.strip()))
    names = {id: tuple(_pattern(*part) for part in _PARTS.findall(row)) for id, row in rows}
    return tuple(replace(text, names=names.get(text.id, ())) for text in texts)


def _pattern(begin: str, ends: str) -> str:
    if begin == "code":
        return by_code(*map(int, ends.split()))
    either = "|".join(ends.split())
    return rf"\b{begin}({either})\b" if begin != "NVML_ERROR_" else rf"\bNVML_?ERROR_({either.replace('_', '_?')})\b"
