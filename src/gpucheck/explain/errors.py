"""The error names and numbers of CUDA, HIP, NVML and Level Zero, by the row that answers them. Pure.

Names of other libraries are patterns in their own rows. A line here has a row's id, a prefix and the names with that
prefix, then possibly more prefixes with their names. The prefix `code` precedes CUDA's error numbers. NVML's names also
match the exceptions of its Python package (`NVMLError_DriverNotLoaded`).
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import by_code

_BEGINS = r"(?:CUDA_ERROR_|cudaError|hipError|HIP_ERROR_|NVML_ERROR_|ZE_RESULT_ERROR_|code)(?= )"
_PARTS = re.compile(rf"({_BEGINS})((?: (?!{_BEGINS})\S+)+)")
_NAMES = r"""
cuda.argument             hipError InvalidDevicePointer InvalidMemcpyDirection InvalidPitchValue InvalidSymbol
cuda.argument             hipError InvalidTexture InvalidChannelDescriptor MissingConfiguration UnsupportedLimit
cuda.argument             hipError InvalidValue CUDA_ERROR_ INVALID_VALUE
cuda.capture              hipError CapturedEvent code 900 901 902 903 904 905 906 907 908
cuda.contained            code 226 911 914
cuda.ecc                  CUDA_ERROR_ ECC_UNCORRECTABLE code 214 39 cudaError ECCUncorrectable
cuda.ecc                  hipError ECCNotCorrectable
cuda.handle               hipError ContextIsDestroyed InvalidResourceHandle InvalidContext ContextAlreadyCurrent
cuda.handle               hipError ContextAlreadyInUse InvalidGraphicsContext SetOnActiveProcess Deinitialized
cuda.handle               hipError InvalidHandle CUDA_ERROR_ INVALID_HANDLE code 201 400 33 709
cuda.launch_failure       CUDA_ERROR_ HARDWARE_STACK_ERROR code 714
cuda.illegal_access       code 700 77 cudaError IllegalAddress
cuda.illegal_instruction  CUDA_ERROR_ ILLEGAL_INSTRUCTION code 715 73 cudaError IllegalInstruction
cuda.invalid_image        hipError SharedObjectSymbolNotFound NotFound FileNotFound code 200 300 302 500
cuda.launch_failure       CUDA_ERROR_ LAUNCH_FAILED code 719 cudaError LaunchFailure
cuda.launch_timeout       CUDA_ERROR_ LAUNCH_TIMEOUT code 702 6 cudaError LaunchTimeout hipError LaunchTimeOut
cuda.misaligned           CUDA_ERROR_ MISALIGNED_ADDRESS code 716 74 cudaError MisalignedAddress
cuda.no_kernel            CUDA_ERROR_ NO_BINARY_FOR_GPU code 98 8 209 48 cudaError NoKernelImageForDevice
cuda.no_kernel            cudaError InvalidDeviceFunction
cuda.not_supported        hipError NotSupported code 800 801
cuda.nvlink               CUDA_ERROR_ NVLINK_UNCORRECTABLE code 220 cudaError NvlinkUncorrectable
cuda.ordinal              code 101 10
cuda.peer                 hipError MapBufferObjectFailed PeerAccessAlreadyEnabled PeerAccessNotEnabled
cuda.peer                 hipError PeerAccessUnsupported CUDA_ERROR_ PEER_ACCESS_UNSUPPORTED code 217 711
cuda.peer                 cudaError MapBufferObjectFailed PeerAccessUnsupported TooManyPeers
cuda.launch_failure       code 717 718
cuda.ptx                  code 218 222 cudaError UnsupportedPtxVersion InvalidPtx
cuda.argument             hipError HostMemoryAlreadyRegistered HostMemoryNotRegistered
cuda.argument             CUDA_ERROR_ HOST_MEMORY_ALREADY_REGISTERED code 712 cudaError HostMemoryAlreadyRegistered
cuda.resources            hipError CooperativeLaunchTooLarge LaunchOutOfResources CUDA_ERROR_ LAUNCH_OUT_OF_RESOURCES
cuda.resources            code 701 7 720 cudaError LaunchOutOfResources
cuda.unknown              hipError Unknown NotReady PriorLaunchFailure RuntimeMemory RuntimeOther IllegalState
cuda.unknown              hipError NotMapped AlreadyAcquired AlreadyMapped ArrayIsMapped MapFailed UnmapFailed
cuda.unknown              hipError NotMappedAsArray NotMappedAsPointer GraphExecUpdateFailure ProfilerDisabled
cuda.unknown              hipError ProfilerNotInitialized ProfilerAlreadyStarted ProfilerAlreadyStopped
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
nvml.not_supported        NVML_ERROR_ UNINITIALIZED ALREADY_INITIALIZED INVALID_ARGUMENT INVALID_STATE
nvml.not_supported        NVML_ERROR_ INSUFFICIENT_SIZE NOT_FOUND NO_DATA NOT_READY IN_USE MEMORY
nvml.not_supported        NVML_ERROR_ INSUFFICIENT_RESOURCES GPU_NOT_FOUND
nvml.hardware             NVML_ERROR_ IRQ_ISSUE CORRUPTED_INFOROM INSUFFICIENT_POWER TIMEOUT
nvml.no_library           NVML_ERROR_ LIBRARY_NOT_FOUND
nvml.not_loaded           NVML_ERROR_ DRIVER_NOT_LOADED
nvml.not_supported        NVML_ERROR_ FUNCTION_NOT_FOUND FREQ_NOT_SUPPORTED RESET_TYPE_NOT_SUPPORTED DEPRECATED
nvml.not_supported        NVML_ERROR_ VGPU_ECC_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH
nvml.permission           NVML_ERROR_ NO_PERMISSION
nvml.reset                NVML_ERROR_ RESET_REQUIRED
nvml.unknown              NVML_ERROR_ UNKNOWN OPERATING_SYSTEM
oom.cuda                  code 2 cudaError MemoryAllocation
oom.hip                   HIP_ERROR_ OutOfMemory
size.grid                 code 9
xpu.call                  ZE_RESULT_ERROR_ MODULE_BUILD_FAILURE MODULE_LINK_FAILURE UNSUPPORTED_VERSION
xpu.call                  ZE_RESULT_ERROR_ UNSUPPORTED_FEATURE UNSUPPORTED_SIZE UNSUPPORTED_ALIGNMENT
xpu.call                  ZE_RESULT_ERROR_ UNSUPPORTED_ENUMERATION UNKNOWN UNSUPPORTED_IMAGE_FORMAT INVALID_\w+
xpu.call                  ZE_RESULT_ERROR_ HANDLE_OBJECT_IN_USE OVERLAPPING_REGIONS UNINITIALIZED
xpu.lost                  ZE_RESULT_ERROR_ DEVICE_LOST DEVICE_REQUIRES_RESET DEVICE_IN_LOW_POWER_STATE
xpu.none                  ZE_RESULT_ERROR_ DEPENDENCY_UNAVAILABLE INSUFFICIENT_PERMISSIONS NOT_AVAILABLE
"""


def named(texts: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the texts, each with patterns for the error names that it explains."""
    lines = [line.split(maxsplit=1) for line in _NAMES.strip().splitlines()]
    names = {
        text.id: tuple(_pattern(*part) for row, rest in lines if row == text.id for part in _PARTS.findall(rest))
        for text in texts
    }
    return tuple(replace(text, names=names[text.id]) for text in texts)


def _pattern(begin: str, ends: str) -> str:
    if begin == "code":
        return by_code(*map(int, ends.split()))
    either = "|".join(ends.split())
    return rf"\b{begin}({either})\b" if begin != "NVML_ERROR_" else rf"\bNVML_?ERROR_({either.replace('_', '_?')})\b"
