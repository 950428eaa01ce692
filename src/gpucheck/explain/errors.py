"""The error names of HIP, NVML and Level Zero, by the row that answers them. Pure.

The other libraries' names are patterns of their rows. A line is a row's id, how the names begin, and the names; NVML's
are also those of its Python package's exceptions (`NVMLError_DriverNotLoaded`).
"""

from __future__ import annotations

from dataclasses import replace

from gpucheck.doctor.condition import Condition

_NAMES = r"""
cuda.argument       hipError  InvalidDevicePointer InvalidMemcpyDirection InvalidPitchValue InvalidSymbol InvalidTexture
cuda.argument       hipError  InvalidChannelDescriptor MissingConfiguration UnsupportedLimit
cuda.capture        hipError  CapturedEvent
cuda.handle         hipError  ContextIsDestroyed InvalidResourceHandle InvalidContext ContextAlreadyCurrent
cuda.handle         hipError  ContextAlreadyInUse InvalidGraphicsContext SetOnActiveProcess Deinitialized
cuda.invalid_image  hipError  SharedObjectSymbolNotFound NotFound FileNotFound
cuda.not_supported  hipError  NotSupported
cuda.peer           hipError  MapBufferObjectFailed PeerAccessAlreadyEnabled PeerAccessNotEnabled
cuda.registered     hipError  HostMemoryAlreadyRegistered HostMemoryNotRegistered
cuda.resources      hipError  CooperativeLaunchTooLarge
cuda.unknown        hipError  Unknown NotReady PriorLaunchFailure RuntimeMemory RuntimeOther IllegalState NotMapped
cuda.unknown        hipError  AlreadyAcquired AlreadyMapped ArrayIsMapped MapFailed UnmapFailed NotMappedAsArray
cuda.unknown        hipError  NotMappedAsPointer GraphExecUpdateFailure ProfilerDisabled ProfilerNotInitialized
cuda.unknown        hipError  ProfilerAlreadyStarted ProfilerAlreadyStopped
hip.init            hipError  InsufficientDriver OperatingSystem
nvml.call           NVML_ERROR_  UNINITIALIZED ALREADY_INITIALIZED INVALID_ARGUMENT INVALID_STATE INSUFFICIENT_SIZE
nvml.call           NVML_ERROR_  NOT_FOUND NO_DATA NOT_READY IN_USE MEMORY INSUFFICIENT_RESOURCES GPU_NOT_FOUND
nvml.hardware       NVML_ERROR_  IRQ_ISSUE CORRUPTED_INFOROM INSUFFICIENT_POWER TIMEOUT
nvml.no_library     NVML_ERROR_  LIBRARY_NOT_FOUND
nvml.not_loaded     NVML_ERROR_  DRIVER_NOT_LOADED
nvml.not_supported  NVML_ERROR_  FUNCTION_NOT_FOUND FREQ_NOT_SUPPORTED RESET_TYPE_NOT_SUPPORTED DEPRECATED
nvml.not_supported  NVML_ERROR_  VGPU_ECC_NOT_SUPPORTED ARGUMENT_VERSION_MISMATCH
nvml.permission     NVML_ERROR_  NO_PERMISSION
nvml.reset          NVML_ERROR_  RESET_REQUIRED
nvml.unknown        NVML_ERROR_  UNKNOWN OPERATING_SYSTEM
xpu.lost            ZE_RESULT_ERROR_  DEVICE_LOST DEVICE_REQUIRES_RESET DEVICE_IN_LOW_POWER_STATE
xpu.none            ZE_RESULT_ERROR_  UNINITIALIZED DEPENDENCY_UNAVAILABLE INSUFFICIENT_PERMISSIONS NOT_AVAILABLE
xpu.call            ZE_RESULT_ERROR_  MODULE_BUILD_FAILURE MODULE_LINK_FAILURE UNSUPPORTED_VERSION UNSUPPORTED_FEATURE
xpu.call            ZE_RESULT_ERROR_  UNSUPPORTED_SIZE UNSUPPORTED_ALIGNMENT UNSUPPORTED_ENUMERATION UNKNOWN
xpu.call            ZE_RESULT_ERROR_  UNSUPPORTED_IMAGE_FORMAT INVALID_\w+ HANDLE_OBJECT_IN_USE OVERLAPPING_REGIONS
"""


def named(texts: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """The texts, each with the error names that it answers."""
    names: dict[str, list[str]] = {}
    for row, begin, *ends in map(str.split, _NAMES.strip().splitlines()):
        either = "|".join(end.replace("_", "_?") if begin == "NVML_ERROR_" else end for end in ends)
        begin = begin.replace("NVML_", "NVML_?")
        names.setdefault(row, []).append(rf"\b{begin}({either})\b")
    return tuple(replace(text, names=tuple(names.get(text.id, ()))) for text in texts)
