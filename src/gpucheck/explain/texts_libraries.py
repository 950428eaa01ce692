"""cuBLAS, cuDNN and their kin, NCCL and torch.distributed."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.explain.text import Text

_OOM_FIRST = "a batch of 1: if that works it was memory (nvidia-smi shows what is free)"
_DEBUG = "NCCL_DEBUG=INFO on every rank; the first WARN of the first rank that fails says more"
# What ends a rank, or keeps it from starting: the other ranks' complaints follow from it.
_RANK_ENDED = (
    "oom.",
    "cuda.",
    "assert.",
    "xid.",
    "bus.",
    "process.killed",
    "crash.",
    "loader.",
    "import.",
    "cuinit.",
    "numerics.",
)
# An earlier kernel that failed is told by the next library that is called; and so is memory that is full.
_BEFORE_LIBRARIES = (
    "assert.",
    "cuda.illegal_access",
    "cuda.no_kernel",
    "cuda.capability",
    "oom.",
    "xid.",
    "cudnn.version",
)
# Whatever stands beside a launcher's summary is its cause.
_ANYTHING = (
    *_RANK_ENDED,
    "nccl.",
    "dist.",
    "tensor.",
    "hip.",
    "shm.",
    "cublas.",
    "cudnn.",
    "compile.",
    "amp.",
    "torch.",
)

# Its result in words, as torch, CuPy and its own tests put it after a place in a source.
_NCCL = r"NCCL_?(error|failure)[\w./:-]{0,120},? ?"

TEXTS: tuple[Text, ...] = (
    Text(
        "cublas.not_initialized",
        "cuBLAS could not start",
        (r"CUBLAS_STATUS_NOT_INITIALIZED", r"failed to create cublas handle", r"cublas_?Create.{0,40}failed"),
        "Mostly the GPU's memory is full as cuBLAS makes its handle; else an earlier kernel has already failed, often "
        "by an index out of range, or a foreign cuBLAS is loaded.",
        _OOM_FIRST + "; CUDA_LAUNCH_BLOCKING=1 shows an earlier failure",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cublas.failed",
        "a cuBLAS call failed on the GPU",
        (r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|LICENSE_ERROR)", r"cuBLAS API failed"),
        "An earlier kernel wrote where it must not, or memory is full; a real bug of cuBLAS is rare.",
        "CUDA_LAUNCH_BLOCKING=1 python …; " + _OOM_FIRST,
        "hint",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cublas.not_supported",
        "cuBLAS does not support this product",
        (r"CUBLAS_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)",),
        "The data type (bfloat16, float8) or the shape is not for this GPU's architecture, or a size or stride is "
        "beyond 32 bits.",
        "the same in float32: if that works it is the data type; gpucheck bench matmul shows which ones this "
        "GPU multiplies",
    ),
    Text(
        "cublas.invalid",
        "cuBLAS was given a shape or pointer that it does not take",
        (r"CUBLAS_STATUS_INVALID_VALUE",),
        "A dimension of 0, a leading dimension that does not fit, or a foreign cuBLAS that is loaded in place of "
        "torch's.",
        "print the shapes before the product; echo $LD_LIBRARY_PATH: a cuBLAS of another version there is loaded in "
        "place "
        "of torch's",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cudnn.not_initialized",
        "cuDNN could not start",
        (
            r"CUDNN_STATUS_NOT_INITIALIZED",
            r"Could not create cudnn handle",
            r"cuDNN failed to initialize",
            r"DNN library initialization failed",
            r"CUDNN_STATUS_(ARCH_MISMATCH|RUNTIME_PREREQUISITE_MISSING)",
        ),
        "Memory is full as cuDNN makes its handle, or its libraries are of another version than torch's.",
        _OOM_FIRST + "; else echo $LD_LIBRARY_PATH: a cuDNN of another version there is loaded in place of torch's",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cudnn.version",
        "cuDNN's parts are of different versions",
        (
            r"CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            r"CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
            r"cuDNN version incompatibility",
            r"Could not load symbol cudnn\w+",
            r"Loaded runtime CuDNN library: [\d.]+ but source was compiled with",
            r"libcudnn\w*\.so[.\d]*: undefined symbol",
            r"undefined symbol: cudnn\w+",
            r"CUDNN_STATUS_VERSION_MISMATCH",
            r"cuDNN version .{0,40}(mismatch|does not match|incompatible)",
        ),
        "cuDNN comes in parts that have to be of one version. One from the system, conda or LD_LIBRARY_PATH is mixed "
        "with the one that torch brings, or torch's own parts are not found.",
        "pip install the nvidia-cudnn-cu12 (cu13) of exactly the version that `pip show torch` requires; then look "
        "which copy is found first (LD_DEBUG=libs python -c 'import torch; torch.backends.cudnn.version()'): unset "
        "LD_LIBRARY_PATH where it leads to a foreign one, or set it to …/site-packages/nvidia/cudnn/lib where parts "
        "are not found",
        "strong",
        source="pytorch issues 104591 and 119932",
    ),
    Text(
        "cudnn.failed",
        "a cuDNN call failed on the GPU",
        (
            r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|BAD_PARAM|INVALID_VALUE|LICENSE_ERROR)\w*",
            r"CUDNN_(STATUS_)?BACKEND_API_FAILED",
        ),
        "Memory that is full is the most frequent cause, an earlier kernel that failed the next.",
        _OOM_FIRST + "; torch.backends.cudnn.enabled = False tells whether it is cuDNN at all",
        "hint",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cudnn.not_supported",
        "cuDNN does not support this operation",
        (messages.CUDNN_NOT_SUPPORTED,),
        "A tensor that is not contiguous, larger than 2³¹ elements, or a data type that the GPU has no code for.",
        "x.contiguous() before the call; a smaller batch",
    ),
    Text(
        "cudnn.engine",
        "cuDNN found no way to compute a convolution",
        (
            *messages.NO_ENGINE,
            r"Unable to find a valid cuDNN algorithm",
            r"No execution plans (support the graph|built)",
            r"No valid engine configs",
            r"no valid (execution plan|engine)",
            r"Failed to get convolution algorithm",
            r"cudnn_frontend\] Error",
            r"cuDNN Frontend error",
            r"CUDNN_STATUS_NOT_SUPPORTED.{0,60}(engine|plan|finalize)",
            r"cuDNN .{0,40}(could not|cannot|unable to|no) .{0,20}(algorithm|engine)",
        ),
        "Mostly no memory for its workspace; else a data type, shape or GPU that it does not know. In attention it is "
        "torch's cuDNN backend, which not every GPU and torch has (torch 2.5.0 chose it too often).",
        _OOM_FIRST + "; for attention torch.backends.cuda.enable_cudnn_sdp(False), or a newer torch",
        source="pytorch issue 138354; ostris/ai-toolkit issue 203",
        follows=_BEFORE_LIBRARIES,
        common=(r"No algorithm worked",),
    ),
    Text(
        "cusolver.failed",
        "a cuSOLVER call failed",
        (
            r"CUSOLVER_STATUS_\w+",
            r"cuSolver internal error",
            r"operation cusolver\w+\(.{0,60}\) failed",
            r"CUSOLVER API failed",
        ),
        "Memory is full, or a matrix holds NaN or infinities.",
        "torch.isfinite(x).all(); torch.backends.cuda.preferred_linalg_library('magma') goes another way",
        "hint",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cufft.failed",
        "a cuFFT call failed",
        (r"CUFFT_(INTERNAL_ERROR|ALLOC_FAILED|EXEC_FAILED|SETUP_FAILED)", r"cuFFT ?error: \w+"),
        "Memory is full, or torch is of a CUDA older than the GPU: cuFFT of CUDA 11.7 fails on Ada.",
        "a newer torch; torch.backends.cuda.cufft_plan_cache.clear()",
        "hint",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "cusparse.failed",
        "a cuSPARSE call failed",
        (r"CUSPARSE_STATUS_\w+", r"CUSPARSE API failed", r"operation cusparse\w+\(.{0,60}\) failed"),
        "Memory is full, or the sparse tensor's indices are wrong.",
        "x.coalesce(), and check its indices",
        "hint",
        follows=_BEFORE_LIBRARIES,
    ),
    Text(
        "nccl.duplicate",
        "two ranks use the same GPU",
        (r"Duplicate GPU detected", r"Multiple ranks .{0,40}same (GPU|device|CUDA)"),
        "Every process works on cuda:0: the device of the local rank was not set.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group',
        "proof",
    ),
    Text(
        "nccl.shared_memory",
        "NCCL found no room in /dev/shm",
        (
            r"Call to posix_fallocate failed.{0,40}No space left on device",
            r"unable to allocate shared memory.{0,40}nccl",
            r"/dev/shm/nccl-\w*.{0,80}(No space left|size \d+)",
        ),
        "Ranks on one machine speak through /dev/shm, and a container's is 64 MiB unless it was asked for more.",
        "docker run --shm-size=8g …, or --ipc=host; df -h /dev/shm",
        "proof",
        common=(r"Error while (creating|attaching to) shared memory segment",),
    ),
    Text(
        "nccl.unhandled_cuda",
        "a CUDA call inside NCCL failed",
        (
            _NCCL + "unhandled cuda error",
            r"NCCL error:? unhandled cuda error",
            r"ncclUnhandledCudaError",
        ),
        "NCCL passes on what CUDA said; the line `Last error:` or NCCL_DEBUG=INFO says what: out of memory, a GPU "
        "used twice, peer access.",
        _DEBUG,
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.duplicate", "nccl.shared_memory", "nccl.interface", "nccl.infiniband"),
    ),
    Text(
        "nccl.interface",
        "NCCL or gloo finds no network interface",
        (
            r"Bootstrap ?: no socket interface found",
            r"no socket interface found",
            r"no NCCL_SOCKET_IFNAME interface found",
            r"NET/Socket ?: (no|0) (interface|socket).{0,20}found",
            r"ifa != nullptr\. Unable to find (address|interface) for",
            r"connecting to address .{0,60}with family \d+ is neither AF_INET",
            r"makeDeviceForInterface\(\): unsupported gloo device",
            r"makeDeviceForHostname\(\): unsupported gloo device",
            r"gloo.{0,60}unsupported gloo device",
        ),
        "The name in NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME is of no interface of this machine, the machine has none "
        "beside the loopback, or its own host name leads to no address.",
        "ip -brief address shows the names; unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME, or set both to one that joins "
        "the machines (on one machine: lo)",
        "proof",
        source="NVIDIA/nccl issues 210 and 1837; NVIDIA/Megatron-LM issue 436",
        common=(r"Unable to find address for: ?\w+",),
    ),
    Text(
        "nccl.unhandled_system",
        "a system call inside NCCL failed",
        (
            r"ncclSystemError",
            _NCCL + "unhandled system error",
            r"NCCL error:? unhandled system error",
        ),
        "Sockets, /dev/shm or InfiniBand: mostly a wrong network interface or a firewall.",
        _DEBUG + "; NCCL_SOCKET_IFNAME=eth0 chooses the interface",
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.shared_memory", "nccl.interface", "nccl.infiniband"),
    ),
    Text(
        "nccl.internal",
        "NCCL failed inside",
        (r"ncclInternalError", _NCCL + "internal error"),
        "A topology that NCCL does not understand, ranks with different NCCL versions, or a lost rank.",
        _DEBUG,
        "hint",
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.shared_memory", "nccl.interface", "nccl.infiniband"),
    ),
    Text(
        "nccl.usage",
        "NCCL was called in a way that is not allowed",
        (r"ncclInvalidUsage", r"ncclInvalidArgument", _NCCL + "invalid (usage|argument)"),
        "More ranks than GPUs, a device that is not set, or tensors on another device than the group's.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group; ' + _DEBUG,
        symptom=True,
    ),
    Text(
        "nccl.remote",
        "another rank is gone",
        (
            r"ncclRemoteError",
            r"remote process exited or there was a network error",
            r"socketProgress: Connection closed by remote peer",
            r"NCCL WARN .{0,60}(Connection closed by remote peer|Connection reset by peer|Broken pipe)",
        ),
        "This rank is not at fault: find the first rank that failed.",
        "look in the other ranks' logs for the earliest error, and explain that one",
        "proof",
        symptom=True,
        follows=_RANK_ENDED,
    ),
    Text(
        "nccl.timeout",
        "a collective was not finished in time",
        (
            r"Watchdog caught collective operation timeout",
            r"Some NCCL operations have failed or timed out",
            r"watchdog got stuck for \d+ seconds",
            r"watchdog thread terminated with exception",
            r"Observed flight recorder dump signal",
            r"Timeout at NCCL work",
            r"failed to pass monitoredBarrier",
            r"monitoredBarrier, but received errors",
            r"caught collective operation timeout",
            r"To avoid data inconsistency, we are taking the entire process down",
            r"\bnccl (watchdog )?(timeout|timed out|hang|hangs)\b",
        ),
        "One rank did not come to the collective: it crashed, hangs, or does something else (an uneven number of "
        "batches, a branch of its own, a checkpoint that takes long). The link itself is rarely at fault.",
        "look in the other ranks' logs for the earliest error; TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 write down which rank was where",
        "strong",
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.", "dist.port"),
        common=(
            r"Timed out waiting \d+ms for (recv|send|wait)",
            r"(allreduce|all_reduce|allgather|all_gather|barrier|broadcast)\w* .{0,20}timed out",
            r"Heartbeat monitor timed out",
        ),
    ),
    Text(
        "nccl.infiniband",
        "InfiniBand gave up on another machine",
        (
            r"NET/IB ?: Got (async event|completion .{0,80}(error|status)=? ?\d+)",
            r"Call to ibv_\w+ failed",
            r"ibv_\w+ failed",
            r"misc/ibvwrap\.cc.{0,60}(WARN|fail)",
            r"NET/IB ?: (Unable to|No valid|.{0,40}failed)",
        ),
        "A cable, a switch, a wrong GID index (RoCE), or the other machine is gone.",
        "NCCL_IB_DISABLE=1 tells whether it is InfiniBand; ibstat, and NCCL_IB_GID_INDEX on RoCE",
        common=(r"GID (index|table).{0,40}(invalid|not found|zero)",),
    ),
    Text(
        "nccl.missing",
        "this torch has no NCCL",
        (
            r"Distributed package doesn'?t have NCCL",
            r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            r"No backend type associated with device type cuda",
            r"cannot import name 'ProcessGroupNCCL'",
        ),
        "A CPU wheel, Windows or macOS has none; or no GPU is visible.",
        "init_process_group('gloo') where there is no GPU; else a torch built for CUDA (python -c 'import torch; "
        "print(torch.version.cuda)' must not say None)",
        "proof",
        follows=("cuinit.", "torch.cpu_only", "nvml."),
    ),
    Text(
        "dist.port",
        "the port of the rendezvous is taken",
        (
            r"The server socket has failed to (listen|bind)",
            r"(c10d|TCPStore|torchrun|rendezvous|MASTER_PORT|distributed).{0,300}(EADDRINUSE|Address already in use)",
            r"(EADDRINUSE|Address already in use).{0,300}(c10d|TCPStore|torchrun|MASTER_PORT|init_process_group)",
            r"errno: 98 - Address already in use",
            r"RuntimeError: Address already in use",
            r"DistNetworkError.{0,120}EADDRINUSE",
        ),
        "An earlier run still lives, or two jobs use the same MASTER_PORT.",
        "torchrun --standalone, or another --master-port; ss -ltnp | grep PORT shows which process has it",
        "proof",
    ),
    Text(
        "dist.rendezvous",
        "not every rank came to the rendezvous",
        (
            r"DistStoreError",
            r"Timed out after \d+ seconds waiting for clients",
            r"RendezvousTimeoutError",
            r"The client socket has (timed out|failed to connect to any)",
            r"The client socket has failed to connect to .{0,80}errno: 1\d\d\b",
            r"Timed out initializing process group in store based barrier",
            r"RendezvousConnectionError|RendezvousClosedError|RendezvousStateError",
            r"The connection to the C10d store has failed",
            r"wait timeout after \d+ms, keys:",
            r"store->get\('?[\w:/]+'?\) got error: (wait timeout|Socket Timeout)",
            r"RuntimeError: Socket Timeout",
        ),
        "MASTER_ADDR or MASTER_PORT is wrong or blocked, WORLD_SIZE is not the number of processes, or a rank died "
        "before.",
        "the first error of the ranks that are missing; nc -vz MASTER_ADDR MASTER_PORT from each machine",
        symptom=True,
        follows=(*_RANK_ENDED, "dist.port", "nccl.interface"),
    ),
    Text(
        "dist.environment",
        "torch.distributed was not told its ranks",
        (
            r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set",
            r"Default process group has not been initialized",
            r"KeyError: '?(LOCAL_RANK|WORLD_SIZE|MASTER_ADDR)'?",
            r"torch\.distributed (is|was) not (yet )?initialized",
        ),
        "The program was started with python and not by torchrun, or it uses a collective before init_process_group.",
        "torchrun --standalone --nproc-per-node=N program.py, and init_process_group() before the first collective",
        "proof",
    ),
    Text(
        "dist.mismatch",
        "the ranks do not call the same collectives",
        (
            r"Detected mismatch between collectives on ranks",
            r"CollectiveFingerPrint",
            r"Collectives differ in the following",
        ),
        "One rank takes another branch, or tensors of another shape.",
        "make every rank call the same collectives in the same order, with the same shapes; the message names both",
        "proof",
    ),
    Text(
        "dist.ready_twice",
        "a parameter's gradient was ready twice in one step",
        (r"Expected to mark a variable ready only once", r"has been marked as ready twice"),
        "DistributedDataParallel counts each gradient once: the parameter was used twice, by checkpointing with "
        "reentrant backward (mostly), by shared weights, or by two forward passes before one backward.",
        "gradient_checkpointing_kwargs={'use_reentrant': False} (torch: checkpoint(…, use_reentrant=False)); "
        "find_unused_parameters=False, or ddp static_graph=True",
        "proof",
        source="torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Text(
        "dist.child",
        "a process that torchrun started has failed",
        (
            r"ChildFailedError",
            r"torch\.multiprocessing\.spawn\.ProcessExitedException",
            r"ProcessRaisedException",
            r"failed \(exitcode: -?\d+\) local_rank",
            r"exits with return code = -?\d+",
            r"SignalException: Process \d+ got signal",
        ),
        "torchrun only passes it on. The cause is the first error above, of the rank that is called root cause.",
        "explain that rank's own traceback; @record of torch.distributed.elastic.multiprocessing.errors brings it "
        "into the summary",
        "proof",
        symptom=True,
        follows=_ANYTHING,
    ),
    Text(
        "dist.unused",
        "a parameter took no part in the loss",
        (r"Expected to have finished reduction in the prior iteration before starting a new one",),
        "DistributedDataParallel waits for every gradient, and a branch of the model was not used.",
        "find_unused_parameters=True, or leave the branch out; TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        "proof",
    ),
    Text(
        "dist.tcp",
        "a rank lost its connection to another",
        (
            r"Connection reset by peer.{0,120}TCPStore",
            r"TCPStore.{0,200}(Broken pipe|Connection reset by peer|Connection was likely closed)",
            r"gloo/transport/tcp.{0,80}(Connection closed by peer|Connection reset by peer|Broken pipe|Timed out)",
            r"gloo/transport/tcp/\w+\.cc:\d+\] (Connection|Read error|Timed out|Application timeout)",
            r"Gloo connectFullMesh failed",
            r"(recvValue|sendBytes|recvVector|recvBytes) failed on SocketImpl",
            r"store->get\('?[\w:/]+'?\) got error: (Connection reset|Broken pipe|Connection was likely closed|Failed)",
            r"setting up NCCL communicator and retrieving ncclUniqueId.{0,200}got error",
            r"Failed to recv, got 0 bytes",
            r"Failed to check the \W?should dump\W? flag on TCPStore",
            r"DistNetworkError.{0,120}(Connection reset by peer|Broken pipe|Connection was likely closed)",
        ),
        "The process at the other end, mostly rank 0 that holds the store, ended before.",
        "look in the other ranks' logs, rank 0's first, for the earliest error",
        symptom=True,
        follows=(*_RANK_ENDED, "dist.port", "nccl.interface"),
    ),
)
