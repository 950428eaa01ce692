"""Every error name of CUDA, its libraries, NVML, HIP and Level Zero has a row."""

from __future__ import annotations

import pytest

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import find

# How names begin, how a program prints one, and the names, as the libraries' headers have them.
NAMES = (
    (
        "CUDA_ERROR_",
        "RuntimeError: CUDA driver error: {}",
        """
        ALREADY_ACQUIRED ALREADY_MAPPED ARRAY_IS_MAPPED ASSERT CALL_REQUIRES_NEWER_DRIVER CAPTURED_EVENT
        CDP_NOT_SUPPORTED CDP_VERSION_MISMATCH COMPAT_NOT_SUPPORTED_ON_DEVICE CONTAINED CONTEXT_ALREADY_CURRENT
        CONTEXT_ALREADY_IN_USE CONTEXT_IS_DESTROYED COOPERATIVE_LAUNCH_TOO_LARGE DEINITIALIZED DEVICE_NOT_LICENSED
        DEVICE_UNAVAILABLE ECC_UNCORRECTABLE EXTERNAL_DEVICE FILE_NOT_FOUND FUNCTION_NOT_LOADED
        GRAPH_EXEC_UPDATE_FAILURE HARDWARE_STACK_ERROR HOST_MEMORY_ALREADY_REGISTERED HOST_MEMORY_NOT_REGISTERED
        ILLEGAL_ADDRESS ILLEGAL_INSTRUCTION ILLEGAL_STATE INVALID_ADDRESS_SPACE INVALID_CLUSTER_SIZE INVALID_CONTEXT
        INVALID_DEVICE INVALID_GRAPHICS_CONTEXT INVALID_HANDLE INVALID_IMAGE INVALID_PC INVALID_PTX
        INVALID_RESOURCE_CONFIGURATION INVALID_RESOURCE_TYPE INVALID_SOURCE INVALID_VALUE JIT_COMPILATION_DISABLED
        JIT_COMPILER_NOT_FOUND KEY_ROTATION LAUNCH_FAILED LAUNCH_INCOMPATIBLE_TEXTURING LAUNCH_OUT_OF_RESOURCES
        LAUNCH_TIMEOUT LOSSY_QUERY MAP_FAILED MISALIGNED_ADDRESS MPS_CLIENT_TERMINATED MPS_CONNECTION_FAILED
        MPS_MAX_CLIENTS_REACHED MPS_MAX_CONNECTIONS_REACHED MPS_RPC_FAILURE MPS_SERVER_NOT_READY NOT_FOUND
        NOT_INITIALIZED NOT_MAPPED NOT_MAPPED_AS_ARRAY NOT_MAPPED_AS_POINTER NOT_PERMITTED NOT_READY NOT_SUPPORTED
        NO_BINARY_FOR_GPU NO_DEVICE NVLINK_UNCORRECTABLE OPERATING_SYSTEM OUT_OF_MEMORY PEER_ACCESS_ALREADY_ENABLED
        PEER_ACCESS_NOT_ENABLED PEER_ACCESS_UNSUPPORTED PRIMARY_CONTEXT_ACTIVE PROFILER_ALREADY_STARTED
        PROFILER_ALREADY_STOPPED PROFILER_DISABLED PROFILER_NOT_INITIALIZED SHARED_OBJECT_INIT_FAILED
        SHARED_OBJECT_SYMBOL_NOT_FOUND STREAM_CAPTURE_IMPLICIT STREAM_CAPTURE_INVALIDATED STREAM_CAPTURE_ISOLATION
        STREAM_CAPTURE_MERGE STREAM_CAPTURE_UNJOINED STREAM_CAPTURE_UNMATCHED STREAM_CAPTURE_UNSUPPORTED
        STREAM_CAPTURE_WRONG_THREAD STREAM_DETACHED STUB_LIBRARY SYSTEM_DRIVER_MISMATCH SYSTEM_NOT_READY
        TENSOR_MEMORY_LEAK TIMEOUT TOO_MANY_PEERS UNKNOWN UNMAP_FAILED UNSUPPORTED_DEVSIDE_SYNC
        UNSUPPORTED_EXEC_AFFINITY UNSUPPORTED_LIMIT UNSUPPORTED_PTX_VERSION
        """,
    ),
    (
        "cudaError",
        "RuntimeError: CUDA error: {}",
        """
        AddressOfConstant AlreadyAcquired AlreadyMapped ArrayIsMapped Assert CallRequiresNewerDriver CapturedEvent
        CdpNotSupported CdpVersionMismatch CompatNotSupportedOnDevice Contained ContextIsDestroyed
        CooperativeLaunchTooLarge CudartUnloading DeviceAlreadyInUse DeviceNotLicensed DeviceUninitialized
        DevicesUnavailable DuplicateSurfaceName DuplicateTextureName DuplicateVariableName ECCUncorrectable
        ExternalDevice FileNotFound FunctionNotLoaded GraphExecUpdateFailure HardwareStackError
        HostMemoryAlreadyRegistered HostMemoryNotRegistered IllegalAddress IllegalInstruction IllegalState
        IncompatibleDriverContext InitializationError InsufficientDriver InvalidAddressSpace InvalidChannelDescriptor
        InvalidClusterSize InvalidConfiguration InvalidDevice InvalidDeviceFunction InvalidDevicePointer
        InvalidFilterSetting InvalidGraphicsContext InvalidHostPointer InvalidKernelImage InvalidMemcpyDirection
        InvalidNormSetting InvalidPc InvalidPitchValue InvalidPtx InvalidResourceConfiguration InvalidResourceHandle
        InvalidResourceType InvalidSource InvalidSurface InvalidSymbol InvalidTexture InvalidTextureBinding InvalidValue
        JitCompilationDisabled JitCompilerNotFound LaunchFailure LaunchFileScopedSurf LaunchFileScopedTex
        LaunchIncompatibleTexturing LaunchMaxDepthExceeded LaunchOutOfResources LaunchPendingCountExceeded LaunchTimeout
        LossyQuery MapBufferObjectFailed MemoryAllocation MemoryValueTooLarge MisalignedAddress MissingConfiguration
        MixedDeviceExecution MpsClientTerminated MpsConnectionFailed MpsMaxClientsReached MpsMaxConnectionsReached
        MpsRpcFailure MpsServerNotReady NoDevice NoKernelImageForDevice NotMapped NotMappedAsArray NotMappedAsPointer
        NotPermitted NotReady NotSupported NotYetImplemented NvlinkUncorrectable OperatingSystem
        PeerAccessAlreadyEnabled PeerAccessNotEnabled PeerAccessUnsupported PriorLaunchFailure ProfilerAlreadyStarted
        ProfilerAlreadyStopped ProfilerDisabled ProfilerNotInitialized SetOnActiveProcess SharedObjectInitFailed
        SharedObjectSymbolNotFound SoftwareValidityNotEstablished StartupFailure StreamCaptureImplicit
        StreamCaptureInvalidated StreamCaptureIsolation StreamCaptureMerge StreamCaptureUnjoined StreamCaptureUnmatched
        StreamCaptureUnsupported StreamCaptureWrongThread StreamDetached StubLibrary SymbolNotFound SyncDepthExceeded
        SynchronizationError SystemDriverMismatch SystemNotReady TensorMemoryLeak TextureFetchFailed TextureNotBound
        Timeout TooManyPeers Unknown UnmapBufferObjectFailed UnsupportedDevSideSync UnsupportedExecAffinity
        UnsupportedLimit UnsupportedPtxVersion VersionTranslation
        """,
    ),
    (
        "CUBLAS_STATUS_",
        "RuntimeError: CUDA error: {} when calling `cublasCreate(handle)`",
        """
        ALLOC_FAILED ARCH_MISMATCH EXECUTION_FAILED INTERNAL_ERROR INVALID_VALUE LICENSE_ERROR MAPPING_ERROR
        NOT_INITIALIZED NOT_SUPPORTED
        """,
    ),
    (
        "CUDNN_STATUS_",
        "RuntimeError: cuDNN error: {}",
        """
        BAD_PARAM BAD_PARAM_ATTRIBUTE_TYPE BAD_PARAM_CUDA_GRAPH_MISMATCH BAD_PARAM_DESCRIPTOR_TYPE
        BAD_PARAM_DUPLICATED_ENTRIES BAD_PARAM_MISALIGNED_POINTER BAD_PARAM_NOT_FINALIZED BAD_PARAM_NULL_POINTER
        BAD_PARAM_OUT_OF_BOUND BAD_PARAM_SHAPE_MISMATCH BAD_PARAM_SIZE_INSUFFICIENT BAD_PARAM_STREAM_MISMATCH DEPRECATED
        EXECUTION_FAILED EXECUTION_FAILED_CUBLAS EXECUTION_FAILED_CUDART EXECUTION_FAILED_CUDA_DRIVER
        EXECUTION_FAILED_CURAND INTERNAL_ERROR INTERNAL_ERROR_BAD_LAUNCH_PARAM INTERNAL_ERROR_COMPILATION_FAILED
        INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED INTERNAL_ERROR_HOST_ALLOCATION_FAILED
        INTERNAL_ERROR_TEXTURE_CREATION_FAILED INTERNAL_ERROR_UNEXPECTED_VALUE LICENSE_ERROR NOT_INITIALIZED
        NOT_SUPPORTED NOT_SUPPORTED_ARCH_MISMATCH NOT_SUPPORTED_BAD_LAUNCH_PARAM NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API
        NOT_SUPPORTED_DATA_TYPE NOT_SUPPORTED_GRAPH_PATTERN NOT_SUPPORTED_INCOMPATIBLE_CUDART
        NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE NOT_SUPPORTED_LAYOUT
        NOT_SUPPORTED_PADDING NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING NOT_SUPPORTED_SHAPE
        NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE RUNTIME_FP_OVERFLOW
        RUNTIME_IN_PROGRESS SERIALIZATION_VERSION_MISMATCH SUBLIBRARY_LOADING_FAILED SUBLIBRARY_VERSION_MISMATCH
        """,
    ),
    (
        "CUSOLVER_STATUS_",
        "RuntimeError: cusolver error: {}, when calling `cusolverDnCreate(handle)`",
        """
        ALLOC_FAILED ARCH_MISMATCH EXECUTION_FAILED INTERNAL_ERROR INVALID_LICENSE INVALID_VALUE INVALID_WORKSPACE
        IRS_INFOS_NOT_DESTROYED IRS_INFOS_NOT_INITIALIZED IRS_INTERNAL_ERROR IRS_MATRIX_SINGULAR IRS_NOT_SUPPORTED
        IRS_NRHS_NOT_SUPPORTED_FOR_REFINE_GMRES IRS_OUT_OF_RANGE IRS_PARAMS_INVALID IRS_PARAMS_INVALID_MAXITER
        IRS_PARAMS_INVALID_PREC IRS_PARAMS_INVALID_REFINE IRS_PARAMS_NOT_INITIALIZED MAPPING_ERROR
        MATRIX_TYPE_NOT_SUPPORTED NOT_INITIALIZED NOT_SUPPORTED ZERO_PIVOT
        """,
    ),
    (
        "nccl",
        "{}: a call failed",
        """
        InternalError InvalidArgument InvalidUsage RemoteError SystemError UnhandledCudaError
        """,
    ),
    (
        "hipError",
        "RuntimeError: HIP error: {}",
        """
        AlreadyAcquired AlreadyMapped ArrayIsMapped Assert CapturedEvent ContextAlreadyCurrent ContextAlreadyInUse
        ContextIsDestroyed CooperativeLaunchTooLarge Deinitialized ECCNotCorrectable FileNotFound GraphExecUpdateFailure
        HostMemoryAlreadyRegistered HostMemoryNotRegistered IllegalAddress IllegalState InitializationError
        InsufficientDriver InvalidChannelDescriptor InvalidConfiguration InvalidContext InvalidDevice
        InvalidDeviceFunction InvalidDevicePointer InvalidGraphicsContext InvalidHandle InvalidImage InvalidKernelFile
        InvalidMemcpyDirection InvalidPitchValue InvalidResourceHandle InvalidSource InvalidSymbol InvalidTexture
        InvalidValue LaunchFailure LaunchOutOfResources LaunchTimeOut MapBufferObjectFailed MapFailed MemoryAllocation
        MissingConfiguration NoBinaryForGpu NoDevice NotFound NotInitialized NotMapped NotMappedAsArray
        NotMappedAsPointer NotReady NotSupported OperatingSystem OutOfMemory PeerAccessAlreadyEnabled
        PeerAccessNotEnabled PeerAccessUnsupported PriorLaunchFailure ProfilerAlreadyStarted ProfilerAlreadyStopped
        ProfilerDisabled ProfilerNotInitialized RuntimeMemory RuntimeOther SetOnActiveProcess SharedObjectInitFailed
        SharedObjectSymbolNotFound StreamCaptureImplicit StreamCaptureInvalidated StreamCaptureIsolation
        StreamCaptureMerge StreamCaptureUnjoined StreamCaptureUnmatched StreamCaptureUnsupported
        StreamCaptureWrongThread Unknown UnmapFailed UnsupportedLimit
        """,
    ),
    (
        "NVML_ERROR_",
        "nvmlDeviceGetHandleByIndex: {}",
        """
        ALREADY_INITIALIZED ARGUMENT_VERSION_MISMATCH CORRUPTED_INFOROM DEPRECATED DRIVER_NOT_LOADED FREQ_NOT_SUPPORTED
        FUNCTION_NOT_FOUND GPU_IS_LOST GPU_NOT_FOUND INSUFFICIENT_POWER INSUFFICIENT_RESOURCES INSUFFICIENT_SIZE
        INVALID_ARGUMENT INVALID_STATE IN_USE IRQ_ISSUE LIBRARY_NOT_FOUND LIB_RM_VERSION_MISMATCH MEMORY NOT_FOUND
        NOT_READY NOT_SUPPORTED NO_DATA NO_PERMISSION OPERATING_SYSTEM RESET_REQUIRED RESET_TYPE_NOT_SUPPORTED TIMEOUT
        UNINITIALIZED UNKNOWN VGPU_ECC_NOT_SUPPORTED
        """,
    ),
    (
        "ZE_RESULT_ERROR_",
        "RuntimeError: level_zero: {}",
        """
        DEVICE_LOST OUT_OF_HOST_MEMORY OUT_OF_DEVICE_MEMORY MODULE_BUILD_FAILURE MODULE_LINK_FAILURE
        DEVICE_REQUIRES_RESET DEVICE_IN_LOW_POWER_STATE INSUFFICIENT_PERMISSIONS NOT_AVAILABLE DEPENDENCY_UNAVAILABLE
        UNINITIALIZED UNSUPPORTED_VERSION UNSUPPORTED_FEATURE INVALID_ARGUMENT INVALID_NULL_HANDLE HANDLE_OBJECT_IN_USE
        INVALID_NULL_POINTER INVALID_SIZE UNSUPPORTED_SIZE UNSUPPORTED_ALIGNMENT INVALID_SYNCHRONIZATION_OBJECT
        INVALID_ENUMERATION UNSUPPORTED_ENUMERATION UNSUPPORTED_IMAGE_FORMAT INVALID_NATIVE_BINARY INVALID_GLOBAL_NAME
        INVALID_KERNEL_NAME INVALID_FUNCTION_NAME INVALID_GROUP_SIZE_DIMENSION INVALID_GLOBAL_WIDTH_DIMENSION
        INVALID_KERNEL_ARGUMENT_INDEX INVALID_KERNEL_ARGUMENT_SIZE INVALID_KERNEL_ATTRIBUTE_VALUE
        INVALID_MODULE_UNLINKED INVALID_COMMAND_LIST_TYPE OVERLAPPING_REGIONS INVALID_KERNEL_HANDLE UNKNOWN
        """,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "printed", "names"), NAMES, ids=[begin for begin, _, _ in NAMES])
def test_every_error_name_has_a_row(begin: str, printed: str, names: str) -> None:
    unknown = []
    for name in names.split():
        for said in (begin + name, printed.format(begin + name)):
            found = find(said, TEXTS, OF_CONDITIONS)
            if not found:
                unknown.append(said)
    assert unknown == []


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("pynvml.nvml.NVMLError_DriverNotLoaded: Driver Not Loaded", "nvml.not_loaded"),
        ("nvmlInit: NVML_ERROR_NO_PERMISSION", "nvml.permission"),
        ("pynvml.NVMLError_Timeout: Timeout", "nvml.hardware"),
        ("RuntimeError: HIP error: hipErrorInvalidDevicePointer", "cuda.argument"),
        ("RuntimeError: HIP error: hipErrorOutOfMemory", "oom.hip"),
        ("hipMemcpy failed with hipErrorInvalidDevicePointer at line 3", "cuda.argument"),
        ("the call returned NVML_ERROR_NO_PERMISSION when it was asked", "nvml.permission"),
        ("ze error: ZE_RESULT_ERROR_DEVICE_LOST", "xpu.lost"),
        ("ze error: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "oom.xpu"),
    ],
)
def test_a_name_is_answered_by_its_meaning(said: str, row: str) -> None:
    assert find(said, TEXTS, OF_CONDITIONS)[0].text.id == row
