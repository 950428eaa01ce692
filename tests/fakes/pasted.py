"""Each known text once, as it is printed. The Xid numbers are written out of the table."""

from __future__ import annotations

from gpucheck import xid
from gpucheck.explain import command
from gpucheck.report.events import Answered, Event
from gpucheck.report.results.short import ExplainResult, TextMatch

SAMPLES: dict[str, str] = {
    "process.threads": "import torch\nlibgomp: Thread creation failed: Resource temporarily unavailable",
    "accelerate.offload": "ValueError: At least one of the model submodule will be offloaded to disk, please pass "
    "along an `offload_folder`.",
    "accelerate.device_map": "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any "
    "distributed mode.",
    "deepspeed.offload": "AssertionError: CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled "
    "'offload_optimizer': 'cpu' in your ZeRO config.",
    "deepspeed.zero3": "RuntimeError: tracing error at step 42: module id: 4, expected the next 2 parameters",
    "dist.set_device": "ValueError: Inconsistent compute device and `device_id` on rank 3: cuda:0 vs cuda:3",
    "dist.world_size": "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 * 2 * 4",
    "cuda.ipc": "[W CudaIPCTypes.cpp:15] Producer process has been terminated before all shared CUDA tensors released.",
    "cuda.feature": "RuntimeError: _mixed_dtypes_linear: Supported only on GPUs with compute capability 8.x",
    "hip.mask": "RuntimeError: HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES",
    "torch.internal": 'RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
    'CUDACachingAllocator.cpp":3475, please report a bug to PyTorch.',
    "mig.in_use": "Unable to destroy compute instance ID  0 from GPU  0 GPU instance ID  3: In use by another client",
    "vulkan.lost": "terminate called after throwing an instance of 'vk::DeviceLostError'",
    "assert.library": "python3: /build/faiss/gpu/Tensor.cc:120: void copy(): Assertion `numElements == size' failed.",
    "tensor.magma": "RuntimeError: Calling torch.linalg.lstsq on a CUDA tensor requires compiling PyTorch with MAGMA.",
    "build.windows": "OSError: mamba_ssm is not supported on Windows; building its CUDA extension fails",
    "nvcc.old": "nvcc fatal   : Value 'c++17' is not defined for option 'std'",
    "llamacpp.cpu": 'time=2025-10-01T10:11:12Z level=INFO source=types.go:60 msg="inference compute" id=cpu '
    'library=cpu compute="" name=cpu description=cpu',
    "deepep.timeout": "RuntimeError: DeepEP error: timeout (dispatch CPU)",
    "import.torchcodec": "RuntimeError: Could not load libtorchcodec. Likely causes:",
    "checkpoint.weights_only": "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
    "xpu.float64": "RuntimeError: Required aspect fp64 is not supported on the device",
    "kubernetes.driver": 'command failed, retrying after 5 seconds: command "nvidia-smi" failed with exit code 9',
    "kubernetes.mps": "error waiting for MPS daemon: error checking MPS daemon health",
    "dtensor.mixed": "RuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all "
    "torch.Tensor to DTensor before calling distributed operators!",
    "cutlass.arch": "CUTLASS: Arch conditional MMA instruction used without targeting appropriate compute capability. "
    "Aborting.",
    "nvshmem.init": "/dvs/p4/build/gpgpu/main_nvshmem/src/modules/transport/ibgda/ibgda.cpp:2966: non-zero status: 7 "
    "create DCT share err.",
    "llamacpp.start": "Error: llama runner process has terminated: exit status 2",
    "attention.dtype": "RuntimeError: FlashAttention only support fp16 and bf16 data type",
    "dist.model": "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 146 params, while rank 1 has "
    "inconsistent 145 params.",
    "dist.libuv": "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv "
    "support, run with USE_LIBUV=0 to disable it.",
    "nccl.efa": "n1:41:99 [0] nccl_net_ofi_init:1444 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
    "ray.resources": "(autoscaler +12s) Error: No available node types can fulfill resource request {'GPU': 8.0}.",
    "tensor.placed": "ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models. Please use the "
    "model as it is",
    "nvml.call": "pynvml.NVMLError_InvalidArgument: Invalid Argument",
    "nvml.hardware": "pynvml.NVMLError_CorruptedInforom: infoROM is corrupted",
    "xpu.call": "RuntimeError: level_zero backend failed: ZE_RESULT_ERROR_INVALID_KERNEL_NAME",
    # memory
    "oom.cuda": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.12 GiB is free. Process 4711 has 78.02 GiB memory in use. Of the allocated memory 76.90 GiB "
    "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated.",
    "oom.hip": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of",
    "oom.xpu": "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "oom.mps": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.10 GB, other allocations: 9.2 GB, max allowed: "
        "18.13 GB). Tried to allocate 1.00 GB on private pool."
    ),
    "oom.mps_buffer": "RuntimeError: Invalid buffer size: 27.47 GB",
    "oom.hpu": "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824",
    "oom.cpu": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "oom.host": "torch/utils/data/_utils/fetch.py\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 "
    "TiB for an array with shape "
    "(1000000, 1000000) and data type float64",
    "oom.killed": "[88123.123456] Out of memory: Killed process 4711 (python) total-vm:81234567kB, anon-rss:61234567kB",
    "oom.nccl": "node1:411:411 [0] init.cc:1691 NCCL WARN Cuda failure 2 'out of memory'",
    "oom.cublas": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "oom.cudnn": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "oom.nvml_assert": "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
    '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report a bug to PyTorch.',
    "oom.onednn": "RuntimeError: could not create a primitive",
    "oom.handles": 'RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "../c10/cuda/driver_api.cpp"',
    "oom.aot": (
        "RuntimeError: run_func_( container_handle_, input_handles.data(), input_handles.size()) API call failed at "
        "/pytorch/torch/csrc/inductor/aoti_runner/model_container_runner.cpp, line 107"
    ),
    "oom.c10": "RuntimeError: C10 Out of Memory. Trying to allocate 4096 bytes",
    "oom.other": "the job ran out of memory",
    "size.grid": "RuntimeError: CUDA error: invalid configuration argument",
    "size.index": "RuntimeError: nonzero is not supported for tensors with more than INT_MAX elements",
    "size.storage": "RuntimeError: Storage size calculation overflowed with sizes=[9223372036854775807, 2]",
    # the CUDA runtime
    "cuda.illegal_access": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "cuda.misaligned": "RuntimeError: CUDA error: misaligned address",
    "cuda.illegal_instruction": "RuntimeError: CUDA error: an illegal instruction was encountered",
    "cuda.launch_failure": "RuntimeError: CUDA error: unspecified launch failure",
    "cuda.device_assert": "torch.AcceleratorError: CUDA error: device-side assert triggered",
    "assert.index": (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectSmallIndex: block: [3,0,0], thread: "
        "[32,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    ),
    "assert.label": "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: "
    "[0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    "assert.bce": (
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:92: operator(): block: [0,0,0], thread: [1,0,0] Assertion "
        "`input_val >= zero && input_val <= one` failed."
    ),
    "assert.probabilities": "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    "cuda.launch_timeout": "RuntimeError: CUDA error: the launch timed out and was terminated",
    "cuda.no_kernel": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "cuda.capability": "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the "
    "current PyTorch installation.",
    "cuda.ordinal": "RuntimeError: CUDA error: invalid device ordinal",
    "cuda.count_assert": "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "
    '"../aten/src/ATen/cuda/CUDAContext.cpp":49, please report a bug to PyTorch.',
    "cuda.initialization": "RuntimeError: CUDA error: initialization error",
    "cuda.fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
    "must use the 'spawn' start method",
    "cuda.peer": "RuntimeError: CUDA error: peer access is not supported between these two devices",
    "cuda.ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "cuda.nvlink": "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "cuda.hardware_stack": "RuntimeError: CUDA error: hardware stack error",
    "cuda.program_counter": "RuntimeError: CUDA error: invalid program counter",
    "cuda.contained": "cuCtxSynchronize returned 721 (CUDA_ERROR_CONTAINED)",
    "cuda.handle": "RuntimeError: CUDA error: invalid resource handle",
    "cuda.argument": "RuntimeError: CUDA error: invalid argument",
    "cuda.unknown": "torch.AcceleratorError: CUDA error",
    "cuda.not_supported": "RuntimeError: CUDA error: operation not supported",
    "cuda.capture": "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    "cuda.ptx": "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    "hip.arch": "RuntimeError: HIP error: invalid device function",
    "xpu.lost": "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    # the driver
    "cuinit.3": "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "cuinit.34": "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
    "functions before calling NumCudaDevices() that might have already set an error? Error 34: CUDA driver is a stub "
    "library (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)",
    "cuinit.46": "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "cuinit.100": "RuntimeError: No CUDA GPUs are available",
    "cuinit.no_driver": "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU "
    "and installed a driver from http://www.nvidia.com/Download/index.aspx",
    "cuinit.too_old": "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version "
    "12040). Please update your GPU driver",
    "cuinit.101": "Unexpected error from cudaGetDeviceCount(). Error 101: invalid device ordinal",
    "cuinit.802": "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
    "cuinit.803": "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda "
    "driver combination",
    "cuinit.804": "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
    "supported HW",
    "cuinit.mps": (
        "Unexpected error from cudaGetDeviceCount(). Error 805: MPS client failed to connect to the MPS control "
        "daemon or the MPS server"
    ),
    "cuinit.999": (
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
        "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
    ),
    "cuinit.unexpected": "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount().",
    "torch.cpu_only": "AssertionError: Torch not compiled with CUDA enabled",
    "torch.no_accelerator": "RuntimeError: Cannot access accelerator device when none is available.",
    "nvml.mismatch": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
    "nvml.unknown": "Failed to initialize NVML: Unknown Error",
    "nvml.permission": "Failed to initialize NVML: Insufficient Permissions",
    "nvml.not_loaded": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "NVIDIA driver is installed and running."
    ),
    "nvml.no_library": "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    "nvml.no_devices": "No devices were found",
    "nvml.lost": (
        "Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.  Reboot the system to recover"
    ),
    "nvml.reset": "GPU 00000000:17:00.0: GPU requires reset",
    "nvml.wsl": "Failed to initialize NVML: GPU access blocked by the operating system",
    "nvml.pynvml": "FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.",
    "container.no_runtime": 'docker: Error response from daemon: could not select device driver "" with capabilities: '
    "[[gpu]].",
    "container.cli": "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open "
    "shared object file: no such file or directory: unknown.",
    "kernel.key_rejected": "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    "kernel.wrong_module": "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-51-generic",
    # libraries
    "cublas.not_initialized": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    ),
    "cublas.failed": "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, "
    "opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
    "cublas.not_supported": "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`",
    "cublas.invalid": "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`",
    "cudnn.not_initialized": "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cudnn.version": "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 10, 2) but found "
    "runtime version (9, 1, 0).",
    "cudnn.failed": "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "cudnn.not_supported": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input."
    ),
    "cudnn.engine": "RuntimeError: FIND was unable to find an engine to execute this computation",
    "cusolver.failed": "torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling "
    "`cusolverDnCreate(handle)`",
    "cufft.failed": "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
    "curand.failed": "Check failed: status == CURAND_STATUS_SUCCESS (201 vs. 0)  CURAND_STATUS_LAUNCH_FAILURE",
    "tensorrt.no_tactic": "[E] 10: Could not find any implementation for node {ForeignNode[/conv1/Conv.../Softmax]}.",
    "cusparse.failed": "RuntimeError: CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseCreate`",
    "nccl.duplicate": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, invalid usage. "
    "Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 17000",
    "nccl.shared_memory": "misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab12 "
    "(size 9637888)",
    "nccl.unhandled_cuda": "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:3356, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5",
    "nccl.unhandled_system": "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
    "device error.",
    "nccl.internal": "ncclInternalError: Internal check failed.",
    "nccl.usage": "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "nccl.remote": "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.",
    "nccl.timeout": "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
    "nccl.infiniband": (
        "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<48742> with status=12 "
        "opcode=0 len=0 vendor err 129"
    ),
    "nccl.missing": "RuntimeError: Distributed package doesn't have NCCL built in",
    "dist.port": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    "dist.rendezvous": "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients "
    "joined.",
    "dist.child": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "dist.unused": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error indicates that your module has parameters that were not used in producing loss."
    ),
    "dist.tcp": (
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. TCPStore on "
        "host:29500 Broken pipe"
    ),
    # tensors
    "tensor.device_mismatch": (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
        "cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)"
    ),
    "tensor.type_mismatch": (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"
    ),
    "tensor.dtype": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
    "tensor.not_implemented": "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
    "tensor.numpy": (
        "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
        "memory first."
    ),
    "tensor.meta": (
        "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty()"
    ),
    "tensor.backend": (
        "NotImplementedError: Could not run 'torchcodec_ns::create_from_file' with arguments from the 'CUDA' backend."
    ),
    "tensor.load": "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is "
    "False. If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')",
    "tensor.indices": "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    "tensor.generator": "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
    "tensor.pin": "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    "tensor.device_string": "RuntimeError: Invalid device string: 'gpu0'",
    "mps.float64": (
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
    ),
    "mps.operation": "NotImplementedError: The operator 'aten::_linalg_eigh' is not currently implemented for the MPS "
    "device.",
    "mps.command_buffer": "Error: command buffer exited with error status. Caused GPU Timeout Error (00000002:"
    "kIOGPUCommandBufferCallbackErrorTimeout)",
    "amp.unscale": "ValueError: Attempting to unscale FP16 gradients.",
    "amp.bfloat16": (
        "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0"
    ),
    "attention.kernel": "RuntimeError: No available kernel. Aborting execution.",
    "attention.flash": "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    # data and processes
    "shm.bus": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    "shm.open": (
        "RuntimeError: unable to open shared memory object </torch_4711_2412_0> in read-write mode: No space left on "
        "device (28)"
    ),
    "loader.files": "RuntimeError: received 0 items of ancdata",
    "loader.killed": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
    "loader.crashed": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault.",
    "loader.exited": "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly",
    "loader.timeout": "RuntimeError: DataLoader timed out after 30 seconds",
    "process.pickle": 'File "torch/utils/data/dataloader.py", line 1039, in __init__\n'
    "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
    "crash.segfault": "Fatal Python error: Segmentation fault",
    "crash.bus": "Bus error (core dumped)",
    # what does not fit together
    "import.nvjitlink": "ImportError: /venv/lib/python3.11/site-packages/torch/lib/../../nvidia/cusparse/lib/"
    "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
    "import.symbol": (
        "ImportError: /venv/lib/python3.11/site-packages/mmcv/_ext.cpython-311-x86_64-linux-gnu.so: "
        "undefined symbol: _ZN3c104cuda9SetDeviceEi"
    ),
    "import.libcuda": "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "import.library": "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory",
    "import.nms": "RuntimeError: operator torchvision::nms does not exist",
    "import.torch": "ModuleNotFoundError: No module named 'torch'",
    "import.shadowed": (
        "AttributeError: partially initialized module 'torch' has no attribute 'nn' (most likely due to a circular "
        "import)"
    ),
    "import.numpy": "RuntimeError: Numpy is not available",
    "import.glibc": "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
    "/venv/lib/python3.11/site-packages/flash_attn_2_cuda.so)",
    "import.dll": (
        'OSError: [WinError 126] The specified module could not be found. Error loading "C:\\torch\\fbgemm.dll"'
    ),
    "bitsandbytes.setup": (
        "RuntimeError: CUDA Setup failed despite GPU being available. Please run the following command"
    ),
    "compile.libcuda": "AssertionError: libcuda.so cannot found!",
    "compile.compiler": "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    "compile.python_h": "/tmp/tmpab/main.c:2:10: fatal error: Python.h: No such file or directory",
    "compile.resources": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: "
        "101376. Reducing block sizes or `num_stages` may help."
    ),
    "compile.ptxas": "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
    "compile.missing": (
        "RuntimeError: Cannot find a working triton installation. Either the package is not installed or it is too old."
    ),
    "compile.old_gpu": (
        "RuntimeError: Found Tesla P100 which is too old to be supported by the triton GPU compiler, which is used "
        "as the backend."
    ),
    "compile.backend": "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    "nvcc.missing": "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
    "nvcc.mismatch": "RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile "
    "PyTorch (13.0). Please make sure to use the same CUDA versions.",
    "nvcc.arch": "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
    "nvcc.host_compiler": "error: -- unsupported GNU version! gcc versions later than 13 are not supported!",
    # the kernel's log
    "bus.installed": "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands.",
    "bus.off": "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
    "kernel.rm_init": "NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x22:0x56:884)",
    "kernel.nvrm": "NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found [NV_ERR_OBJECT_NOT_FOUND]",
    "kernel.watchdog": "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
    "kernel.pcie": "pcieport 0000:16:01.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "xid.unknown": "NVRM: Xid (PCI:0000:b3:00.0): 999, pid=4711, name=python",
    **{
        f"xid.{one.number}": f"NVRM: Xid (PCI:0000:b3:00.0): {one.number}, pid=4711, name=python, Ch 00000008"
        for one in (*xid.CATALOGUE, *xid.OLDER)
    },
    "kernel.build": "Building module nvidia/550.54.14\nError! Bad return status for module build on kernel: "
    "6.8.0-41-generic (x86_64)",
    "jetson.memory": "NvRmMemInitNvmap failed with Permission denied\n549: Memory Manager Not supported",
    "import.nvrtc": "RuntimeError: nvrtc: error: failed to open libnvrtc-builtins.so.12.1.",
    "oom.vllm": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine.",
    "process.killed": "subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py']' died with "
    "<Signals.SIGKILL: 9>.",
    "crash.abort": "E0902 15:10:49.013000 819010 torch/distributed/elastic/multiprocessing/api.py:874] Signal 6 "
    "(SIGABRT) "
    "received by PID 819025",
    "hip.hang": "HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang",
    "hip.library": "MIOpen Error: /MIOpen/src/hipoc/hipoc_program.cpp:304: Code object build failed.",
    "cuda.shutdown": "RuntimeError: CUDA error: driver shutting down",
    "cuda.registered": "RuntimeError: CUDA error: part or all of the requested memory range is already mapped",
    "xpu.none": "RuntimeError: No XPU devices are available.",
    "nccl.interface": "ncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found",
    "dist.environment": "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
    "variable "
    "RANK expected, but not set",
    "dist.mismatch": "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(OpType=ALLREDUCE)",
    "dist.ready_twice": "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the "
    "following reasons: 1) Use of a module parameter outside the `forward` function.",
    "mask.mig": "ValueError: invalid literal for int() with base 10: 'MIG-4c60d78c-506f-5593-938d-a136eaa1fa52'",
    "container.cdi": "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    "build.isolation": "  × Getting requirements to build wheel did not run successfully.\n  │ exit code: 1\n  ╰─> "
    "[18 lines "
    "of output]\n      ModuleNotFoundError: No module named 'torch'",
    "import.torch_too_old": "AttributeError: module 'torch' has no attribute 'float8_e4m3fn'",
    "compile.launcher": "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmp5x_k1/main.c', '-O3', "
    "'-shared', "
    "'-fPIC', '-lcuda']' returned non-zero exit status 1.",
    "attention.package": "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following "
    "error: the package flash_attn seems to be not installed.",
    "xformers.setup": "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    "
    "PyTorch "
    "2.3.0+cu121 with CUDA 1201 (you have 2.1.0+cu121)",
    "vllm.start": "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "sglang.start": "[2025-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.",
    "quant.dtype": "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: "
    "89. "
    "Current capability: 86.",
    "quant.extension": "ERROR:auto_gptq.nn_modules.qlinear.qlinear_exllama:exllama_kernels not installed.",
    "build.memory": "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "build.ninja": "RuntimeError: Ninja is required to load C++ extensions",
    "build.extension": "RuntimeError: Error building extension 'fused_adam'",
    "numerics.nan": "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    "mps.dtype": "TypeError: Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that "
    "dtype.",
    "xpu.memory_query": "RuntimeError: The device (Intel(R) Arc(TM) Graphics) doesn't support querying the available "
    "free "
    "memory.",
    "cuda.invalid_image": "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
    "cuda.resources": "RuntimeError: CUDA error: too many resources requested for launch",
    "cuda.graph_output": "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a "
    "subsequent run.",
    "hip.init": "UserWarning: HIP initialization: Unexpected error from hipGetDeviceCount().",
    "pip.torch": "ERROR: No matching distribution found for torch==1.7.1+cu110",
    "compile.cuda_h": "/tmp/tmpx/main.c:1:10: fatal error: cuda.h: No such file or directory",
    "kubernetes.dcgm": "Error watching fields: The third-party Profiling module returned an unrecoverable error",
    "kubernetes.plugin": "If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
    "jax.cpu_only": "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed.",
    "kernel.nouveau": "ERROR: The Nouveau kernel driver is currently in use by your system.",
    "nvswitch.sxid": "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error",
    "kernel.gpu_hang": "[29256.536743] [drm] GPU HANG: ecode 9:0:0x84df7efc, in python [9467], reason: Ring hung, "
    "action: "
    "reset",
    "pip.conflict": "ERROR: Cannot install torch~=1.10.0 and torchvision==0.8.2 because these package versions have "
    "conflicting dependencies.",
    "nvml.not_supported": "pynvml.NVMLError_NotSupported: Not Supported",
    "kubernetes.insufficient": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    "slurm.gres": "srun: error: Unable to create step for job 71: Invalid generic resource (gres) specification",
    "mig.no_room": "error creating MIG device: error creating GPU instance for '1g.10gb': Insufficient Resources",
    "hip.none": "RuntimeError: No HIP GPUs are available",
    "hip.fault": "Memory access fault by GPU node-1 (Agent handle: 0x55d0) on address 0x7f0. Reason: Page not present",
}

# Another wording of the same, or less of it than is usual.
MORE: tuple[tuple[str, str], ...] = (
    ("torch.no_accelerator", "AssertionError: gpus should be a non-empty list"),
    ("torch.no_accelerator", "`Trainer(devices=[])` value is not a valid input using gpu accelerator."),
    (
        "tensor.placed",
        "ValueError: The module 'T5' has been loaded in `bitsandbytes` 8bit and moving it to cpu via `.to()` is not "
        "supported.",
    ),
    (
        "tensor.placed",
        'File "torch/nn/parallel/parallel_apply.py", line 64\nFile "bitsandbytes/nn/modules.py", line 9\nRuntimeError: '
        "mat1 and mat2 shapes cannot be multiplied (512x4096 and 1x8388608)",
    ),
    # CUDA's error behind a line of a source, and cuBLAS's states in words.
    ("oom.cuda", "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'out of memory'"),
    (
        "cuda.illegal_access",
        "Failed: Cuda error /w/custom_all_reduce.cuh:455 'an illegal memory access was encountered'",
    ),
    ("cuda.argument", "RuntimeError: Failed: CUDA error /root/DeepEP/csrc/kernels/layout.cu:138 'invalid argument'"),
    ("cuda.argument", "RuntimeError: BatchDecodeWithPagedKVCache failed with error: invalid argument"),
    ("cuda.not_supported", "BatchPrefillWithPagedKVCacheSM90Run failed with error: operation not supported"),
    (
        "cublas.not_supported",
        "CUDA error: the requested functionality is not supported\n  current device: 0, in function x",
    ),
    (
        "cublas.not_supported",
        "logging.h:39 in function check_cublas_: CUBLAS Error: the requested functionality is not supported",
    ),
    ("cublas.failed", "CUBLAS Error: an internal operation failed"),
    ("cublas.failed", "Exception: cublasLt ran into an error!"),
    ("cuda.no_kernel", "ggml-cuda/common.cuh:112: ggml was not compiled with any CUDA arch <= 750"),
    ("cudnn.engine", "RuntimeError: UNKNOWN: Failed to determine best cudnn convolution algorithm for:"),
    ("tensor.dtype", "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32"),
    ("llamacpp.cpu", "WARNING: No NVIDIA GPU detected. Ollama will run in CPU-only mode."),
    ("bitsandbytes.setup", "Error named symbol not found at line 117 in file /home/x/git/bitsandbytes/csrc/ops.cu"),
    ("cuda.illegal_access", "RuntimeError: Cuda error: 700[cudaLaunchKernel((void*)setup, blocks, threads, args);]"),
    ("cuda.illegal_access", "numba.cuda.cudadrv.driver.CudaAPIError: [700] Call to cuMemcpyDtoH results in an error"),
    ("cuda.illegal_access", "Invalid error code (700) at /source/platforms/cuda/src/CudaIntegrationUtilities.cpp:812"),
    ("cuda.argument", "Check failed: error == cudaSuccess (11 vs. 0)  invalid argument"),
    ("cuda.no_kernel", "THCudaCheck FAIL file=/pytorch/aten/THCBlas.cu line=33 error=8 : invalid device function"),
    ("cuda.no_kernel", "x.cu(12) : cudaSafeCall() Runtime API error 8: invalid device function."),
    ("cuinit.46", "cuda driver library failed to get device context 46"),
    ("cuinit.802", 'CUDA error at bandwidthTest.cu:256 code=802(cudaErrorSystemNotReady) "cudaSetDevice(device)"'),
    ("cuinit.999", "cudaMalloc failed: unknown error"),
    ("cublas.failed", "cuBLAS error 13 at ggml-cuda.cu:7586"),
    ("cudnn.failed", "OSError: (External) CUDNN error(8)"),
    ("cuinit.mps", "Error 808: the hardware resources required to create MPS client have been exhausted"),
    ("cuinit.mps", "CUDA error: the hardware resources required to support device connections have been exhausted"),
    ("cuinit.mps", "CUDA error: MPS server is not ready to accept new MPS client requests"),
    ("torch.no_accelerator", "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."),
    (
        "torch.no_accelerator",
        "lightning.fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
    ),
    ("container.cdi", "failed to discover GPU vendor from CDI: no known GPU vendor found"),
    (
        "nccl.duplicate",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate "
        "GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    ),
    (
        "dist.tcp",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:20912",
    ),
    ("compile.libcuda", "/usr/bin/ld: cannot find -lcuda: No such file or directory"),
    ("compile.ptxas", "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    (
        "oom.cuda",
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    ),
    (
        "cuda.argument",
        "RuntimeError: cuda runtime error (11) : invalid argument at /pytorch/aten/src/THC/THCGeneral.cpp:383",
    ),
    (
        "oom.host",
        "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "
        "cudnn_cnn_train64_8.dll or one of its dependencies.",
    ),
    ("hip.none", "Unable to open /dev/kfd read-write: Permission denied"),
    ("jetson.memory", "****NvRmMemMgrInit failed**** error type: 196626"),
    (
        "oom.vllm",
        "ValueError: Free memory on device (10.2/23.6 GiB) on startup is less than desired GPU memory utilization",
    ),
    ("oom.cuda", "cuda out of memory"),
    ("oom.handles", "RuntimeError: CUDA driver error: device not ready"),
    ("oom.cuda", "RuntimeError: CUDA driver error: out of memory"),
    (
        "oom.cpu",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried",
    ),
    ("oom.host", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"),
    ("oom.host", "Using device cuda:0\nOSError: [Errno 12] Cannot allocate memory"),
    ("oom.host", "MemoryError"),
    ("oom.killed", "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0"),
    ("oom.killed", "Reason: OOMKilled"),
    ("process.killed", "command terminated with exit code 137"),
    ("cuinit.802", "Error 802"),
    ("cuinit.802", "cudaErrorSystemNotReady: system not yet initialized"),
    ("cuinit.100", "CUDA error: no CUDA-capable device is detected"),
    ("nvml.mismatch", "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch."),
    ("xid.79", "xid 79"),
    ("xid.79", "Xid 79"),
    (
        "shm.bus",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    ("cublas.failed", "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx`"),
    ("tensor.dtype", "RuntimeError: expected scalar type Half but found Float"),
    ("tensor.meta", "RuntimeError: Tensor.item() cannot be called on meta tensors"),
    ("compile.ptxas", "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error"),
    ("crash.segfault", "exitcode: -11 (pid: 4711) of binary: /usr/bin/python"),
    # what people type
    ("oom.other", "OOM"),
    ("oom.cuda", "cuda oom"),
    ("oom.cuda", "CUDA%20out%20of%20memory.%20Tried%20to%20allocate%202.00%20GiB"),
    ("numerics.nan", "loss is nan"),
    ("torch.no_accelerator", "gpu not detected"),
    ("torch.no_accelerator", "torch cuda is not available"),
    ("torch.no_accelerator", "torch.cuda.is_available() returns False"),
    ("nvml.no_library", "nvidia-smi: command not found"),
    ("nccl.timeout", "nccl timeout"),
    ("process.killed", "Killed"),
    ("crash.segfault", "Segmentation fault (core dumped)"),
    # launchers, the kernel
    (
        "process.killed",
        "torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 0 (pid: 8190)",
    ),
    ("crash.bus", "torch.distributed.elastic.multiprocessing.api: failed (exitcode: -7) local_rank: 0 (pid: 8190)"),
    ("oom.killed", "[4.1] Out of memory: Kill process 1234 (python) score 987 or sacrifice child"),
    ("oom.killed", "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB"),
    # cuDNN
    ("cudnn.engine", "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution"),
    ("cudnn.engine", "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built."),
    ("cudnn.engine", "RuntimeError: No valid execution plans built. (cuDNN)"),
    (
        "cudnn.version",
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found "
        "runtime version (8, 9, 7).",
    ),
    # packages beside torch
    (
        "bitsandbytes.setup",
        "RuntimeError: \n        CUDA Setup failed despite GPU being available. Please run the "
        "following command: python -m bitsandbytes",
    ),
    ("attention.package", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("build.isolation", "ModuleNotFoundError: No module named 'torch'\nhint: try again with --no-build-isolation"),
    ("compile.python_h", "/tmp/tmpa/main.c:5:10: fatal error: Python.h: No such file or directory\ntriton"),
    ("compile.libcuda", "/usr/bin/ld: cannot find -lcuda\ncollect2: error: ld returned 1 exit status"),
    # containers
    (
        "container.cdi",
        "docker: Error response from daemon: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all",
    ),
    (
        "nvml.mismatch",
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
    ),
    ("mask.mig", "ValueError: invalid literal for int() with base 10: 'MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6'"),
    # distributed
    ("nccl.interface", "node1:1:1 [0] NCCL WARN Bootstrap : no socket interface found"),
    ("dist.ready_twice", "RuntimeError: Expected to mark a variable ready only once."),
    (
        "kernel.rm_init",
        "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb",
    ),
    (
        "kernel.rm_init",
        "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
    ),
    (
        "nccl.unhandled_cuda",
        "src/transport/p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
    ),
    (
        "nvml.not_supported",
        'GPU plugin fails on GB10: nvmlDeviceGetMemoryInfo returns "Not Supported"',
    ),
    (
        "attention.package",
        "Error running sage attention: SM89 kernel is not available. Make sure you GPUs with compute capability 8.9.",
    ),
    (
        "attention.flash",
        "AssertionError: FlashAttention-3 is only supported on devices with compute capability 9.0",
    ),
    (
        "attention.flash",
        "AssertionError: Sinks are only supported in FlashAttention 3; FA3 is only supported on devices with compute "
        "capability 9",
    ),
    (
        "attention.kernel",
        "[ERROR] Assertion failed: The attention sinks is only supported on SM90",
    ),
    (
        "attention.kernel",
        "Some attention backends are not valid for cuda with AttentionSelectorConfig(head_size=64)",
    ),
    (
        "quant.dtype",
        'ValueError: Please use "fp4" quantization for Blackwell GPUs.',
    ),
    (
        "quant.dtype",
        "tvm.error.InternalError: Assertion error (/deepgemm/csrc/apis/hyperconnection.hpp:56): Unsupported "
        "architecture",
    ),
    (
        "cuda.feature",
        "ptxas /tmp/x.ptx, line 5; error : Instruction 'tcgen05.alloc' not supported on .target 'sm_120'",
    ),
    (
        "compile.ptxas",
        "NVIDIA Jetson Thor: Value 'sm_110a' is not defined for option 'gpu-name'",
    ),
    (
        "compile.ptxas",
        'Assertion failed: false && "computeCapability not supported", file AccelerateMatmul.cpp, line 36',
    ),
    (
        "cuda.capability",
        "Mismatched GPU Architecture: The installed PaddlePaddle package was compiled for 61 70 75, but your current "
        "GPU is 120",
    ),
    (
        "cuda.capability",
        "WARNING: Detected NVIDIA GeForce RTX 5080 GPU, which is not yet supported in this version of the container",
    ),
    (
        "cuda.capability",
        "UserWarning: Found GPU0 NVIDIA GB10 which is of compute capability (CC) 12.1.",
    ),
    (
        "cutlass.arch",
        "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
    ),
    (
        "cutlass.arch",
        "RuntimeError: No supported CUDA architectures found for major versions [10].",
    ),
    (
        "cutlass.arch",
        "Failed to initialize cutlass TMA WS grouped gemm",
    ),
    (
        "nvshmem.init",
        "/nvshmem/src/host/mem/mem_heap.cpp:1590: non-zero status: 7 allocate_physical_memory_to_heap failed",
    ),
    (
        "llamacpp.start",
        "LLAMA_CPP_PROCESS_ERROR\nThe model process encountered an unexpected error.",
    ),
    (
        "oom.other",
        "error loading model: unable to allocate Vulkan0 buffer",
    ),
    (
        "oom.cuda",
        "[HAMI-core ERROR (pid:1 thread=140160828682240 allocator.c:53)]: Device 0 OOM 18446744073707737660 / "
        "24146608128",
    ),
    (
        "oom.cuda",
        "Exception Type: torch.OutOfMemoryError\n"
        "Exception Message: Allocation on device\nThis error means you ran out of memory on your GPU.",
    ),
    (
        "oom.host",
        "OSError: The paging file is too small for this operation to complete. (os error 1455)",
    ),
    (
        "oom.nvml_assert",
        "CUDACachingAllocator.cpp:995 NVML internal assert fires instead of clean OOMError when cudaMalloc fails",
    ),
    (
        "oom.mps_buffer",
        "MPSNDArray.mm:761: failed assertion `[MPSTemporaryNDArray initWithDevice:descriptor:] Error: product of "
        "dimension sizes > 2**31'",
    ),
    (
        "kernel.build",
        "make[2]: *** [/usr/src/linux-headers-6.17.13-2-pve/Makefile:248: __sub-make] Error 2\n"
        "make[2]: Leaving directory '/var/lib/dkms/nvidia-current-open/550.163.01/build'",
    ),
    (
        "kubernetes.insufficient",
        "UnexpectedAdmissionError: vgpu-cores Requested 100, Available 0 after Volcano scheduled pod",
    ),
    (
        "cuda.peer",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'",
    ),
    (
        "cuda.peer",
        "[custom_all_reduce.py:137] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P "
        "test failed.",
    ),
    (
        "compile.backend",
        "torch._dynamo hit config.recompile_limit (8)",
    ),
    (
        "nvcc.mismatch",
        "The detected CUDA version (%s) mismatches the version that was used to compilePyTorch (%s)",
    ),
    (
        "nvml.no_library",
        "libnvidia-ml.so.1 not found under /usr.",
    ),
    (
        "import.library",
        "CUDA image unable to load libcudnn_cnn.so",
    ),
    (
        "import.nvjitlink",
        "RuntimeError: jaxlib/cuda/versions_helpers.cc:72: operation cublasGetVersion( nullptr, &version) failed: "
        "cuBlas internal error",
    ),
    (
        "hip.none",
        "ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected",
    ),
    (
        "hip.hang",
        "radv/amdgpu: The CS has been cancelled because the context is lost. This context is innocent.",
    ),
    (
        "hip.fault",
        "Memory critical error by agent node-0 (Agent handle: 0x5581) on address 0x7f9. Reason: Memory in use.",
    ),
    (
        "import.symbol",
        "flash_attn_2_cuda ImportError: undefined symbol _ZN3c105ErrorC2",
    ),
    (
        "import.glibc",
        "/usr/bin/ld: libtorch/lib/libtorch_cpu.so: undefined reference to `hypot@GLIBC_2.35'",
    ),
    (
        "kernel.key_rejected",
        "nvidia/nvidia-open module keys rejected",
    ),
    (
        "vllm.start",
        "ValueError: Current node has no GPU available. current_node_resource={'CPU': 8.0}",
    ),
    (
        "cuinit.802",
        "Error 802: system not yet initialized",
    ),
    (
        "cuinit.no_driver",
        "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.",
    ),
    (
        "xpu.none",
        "ImportError: libur_loader.so.0: cannot open shared object file: No such file or directory",
    ),
    (
        "xid.unknown",
        "RTX 5060 Ti (GB206, sm_120): Xid 175 GSP RPC timeout (DUP_OBJECT) on CUDA context init",
    ),
    (
        "kernel.watchdog",
        "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
    ),
    (
        "nccl.shared_memory",
        "misc/shmutils.cc:72 NCCL WARN Error: failed to open shared memory segment /dev/shm/nccl-xyz: No such file or "
        "directory (2)",
    ),
    (
        "nccl.shared_memory",
        "include/shm.h:28 NCCL WARN Call to shm_open failed : No such file or directory",
    ),
    (
        "attention.kernel",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576). Reasons: "
        "{FLASHMLA: [compute capability not supported]}.",
    ),
    (
        "attention.kernel",
        "NotImplementedError: FlashAttention V1 with FP8 KV cache not yet supported",
    ),
    (
        "cutlass.arch",
        "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
    ),
    (
        "cuda.illegal_access",
        "Exception: Failed to encode tensor map: 700",
    ),
    (
        "mps.operation",
        "MPSCore/Types/MPSNDArray.mm:88: failed assertion `[MPSNDArrayDescriptor sliceDimension:withSubrange:] error",
    ),
    (
        "mps.operation",
        "AssertionError: Device mps not supported",
    ),
    (
        "kubernetes.plugin",
        "failed to validate the driver, retrying after 5 seconds",
    ),
    (
        "kubernetes.plugin",
        "lstat /run/nvidia/driver/dev/nvidiactl: no such file or directory",
    ),
    (
        "size.index",
        "RuntimeError: Can't be indexed using 32-bit iterator",
    ),
)

INNOCENT: tuple[str, ...] = (
    "_print_Min = _print_Max = _hprint_variadic_function",
    "psycopg2.errors.NumericValueOutOfRange: integer out of range",
    "node1:411:520 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    "[    5.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14",
    "GPU available: True (cuda), used: True",
    "Building module(s)... done. Installing /lib/modules/6.8.0-41-generic/updates/dkms/nvidia.ko.zst",
    "ModuleNotFoundError: No module named 'torch_scatter'",
    "docker run --rm --device /dev/kfd --device /dev/dri rocm/pytorch",
    "gcc main.o -lcuda -lcudart -o main",
    "Epoch 3/10: loss 2.3412, lr 3e-4, 1234 samples/s, memory 12.3 GiB",
    "[2026-01-31 12:00:00,123] [INFO] [trainer.py:88] step 1200 loss=1.93 grad_norm=0.82",
    "CUDA available: True, device count: 8, NVIDIA H200",
    "NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0",
    "|   0  NVIDIA H200   On  | 00000000:17:00.0 Off |                    0 |",
    "Successfully installed nvidia-cublas-cu12-12.8.4.1 nvidia-cudnn-cu12-9.10.2.21 torch-2.9.0 triton-3.5.0",
    "Requirement already satisfied: torch>=2.6 in ./venv/lib/python3.11/site-packages (2.9.0)",
    "Downloading model.safetensors: 100%|██████████| 15.0G/15.0G [02:31<00:00, 99.1MB/s]",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:08<00:00,  2.01s/it]",
    "[rank0]: Saving checkpoint to /data/run7/step_1000.pt",
    "node1:411:411 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
    "node1:411:499 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7",
    "node1:411:499 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 17000 - Init COMPLETE",
    "W0131 12:00:00.000000 411 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable to be 1",
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "FutureWarning: You are using `torch.load` with `weights_only=False`",
    "Using device: cuda:0 (NVIDIA A100-SXM4-80GB), bf16 mixed precision",
    "usb 1-1: new high-speed USB device number 5 using xhci_hcd",
    "[    3.141593] nvidia: loading out-of-tree module taints kernel.",
    "[    3.200000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "nvidia-uvm: Loaded the UVM driver, major device number 511.",
    "kernel: pcieport 0000:00:01.0: PME: Signaling with IRQ 25",
    "torch.compile: 12 graphs compiled, 0 recompiles, cache hit rate 0.98",
    "All tests passed: 412 passed, 18 skipped in 93.21s",
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True to reduce fragmentation",
    "Batch size 64 uses 41.2 GiB of device memory; 38.7 GiB are free",
    "This feature is not implemented for Windows yet",
    "Device 0 supports peer access to device 1: yes",
    "train: 12%|█▏        | 120/1000 [00:31<03:47,  3.87it/s, loss=3.12]",
    "GET /healthz 200 OK 0.3ms",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    "KeyError: 'attention_mask'",
    "Assertion of taxid 79 in the database took 0.2 s",
)

# Errors of other programs: nothing in them is a GPU's, and none of their words is torch's.
NOT_OURS: tuple[str, ...] = (
    "Invalid error code (700) at line 3",
    "failed to get device context 46",
    "[700] Call to customer service returned",
    "MPS error: row 3 has no bound",
    "Could not find an implementation for Trilu(14) node",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'",
    "bash: foo: No such file or directory",
    "error: command 'gcc' failed: No such file or directory",
    "make: gcc: No such file or directory",
    "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    "error while loading shared libraries: libssl.so.3: cannot open shared object file: No such file or directory",
    "Connection reset by peer",
    "curl: (56) Recv failure: Connection reset by peer",
    "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
    "peer'))",
    "/usr/lib/jvm/java-17/bin/java: symbol lookup error: /lib/libjli.so: undefined symbol: JLI_Launch",
    "git: symbol lookup error: /lib/libcurl.so.4: undefined symbol: nghttp2_option_set",
    "iwlwifi 0000:00:14.3: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "Error: listen EADDRINUSE: address already in use :::3000",
    "OSError: [Errno 98] Address already in use",
    "java.lang.OutOfMemoryError: Java heap space",
    "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    "ERROR:  out of memory\nDETAIL:  Failed on request of size 1048576.",
    "redis: OOM command not allowed when used memory > 'maxmemory'.",
    "gunicorn: Worker (pid:123) was sent SIGKILL! Perhaps out of memory?",
    "[ 1.000000] Out of memory: Killed process 999 (mysqld) total-vm:1kB, anon-rss:1kB",
    "nginx: accept4() failed (24: Too many open files)",
    "bash: fork: Cannot allocate memory",
    "modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service",
    "Error! Bad return status for module build on kernel: 6.8.0-41-generic (x86_64)\nConsult "
    "/var/lib/dkms/v4l2loopback",
    "IndexError: list index out of range",
    "AttributeError: Can't pickle local object 'main.<locals>.f'",
    "RuntimeError: can't start new thread",
    "ModuleNotFoundError: No module named 'numpy'",
    "/lib/libc.so.6: version `GLIBC_2.34' not found (required by ./server)",
    "collected 12 items\nFatal Python error: Aborted",
    "No space left on device",
    "2024-01-01 thread exited unexpectedly",
)


def first(pasted: str) -> TextMatch:
    """The first answer to a pasted text, as the command gives it."""
    events: list[Event] = []
    command.explain(pasted, events.append)
    (answer,) = (event.value for event in events if isinstance(event, Answered))
    assert isinstance(answer, ExplainResult) and answer.matches
    return answer.matches[0]
