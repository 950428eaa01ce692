"""cuBLAS, cuDNN and their kin, NCCL and torch.distributed."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.health.explain.text import Text

_OOM_FIRST = "watch the memory with `gpucheck memory`; try a batch of 1; then gpucheck smoke --device cuda"
_DEBUG = "NCCL_DEBUG=INFO on every rank; the first WARN of the first rank that fails says more"

TEXTS: tuple[Text, ...] = (
    Text(
        "cublas.not_initialized",
        "cuBLAS could not start",
        (r"CUBLAS_STATUS_NOT_INITIALIZED",),
        "Mostly the GPU's memory is full as cuBLAS makes its handle; else an earlier kernel has already failed, often "
        "by an index out of range, or a foreign cuBLAS is loaded.",
        _OOM_FIRST + "; CUDA_LAUNCH_BLOCKING=1 shows an earlier failure",
    ),
    Text(
        "cublas.failed",
        "a cuBLAS call failed on the GPU",
        (r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)",),
        "An earlier kernel wrote where it must not, or memory is full; a real bug of cuBLAS is rare.",
        "CUDA_LAUNCH_BLOCKING=1 python …; " + _OOM_FIRST,
        "hint",
    ),
    Text(
        "cublas.not_supported",
        "cuBLAS does not support this product",
        (r"CUBLAS_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)",),
        "The data type (bfloat16, float8) or the shape is not for this GPU's architecture, or a size or stride is "
        "beyond 32 bits.",
        "gpucheck bench matmul shows which data types this GPU multiplies",
    ),
    Text(
        "cublas.invalid",
        "cuBLAS was given a shape or pointer that it does not take",
        (r"CUBLAS_STATUS_INVALID_VALUE",),
        "A dimension of 0, a leading dimension that does not fit, or a foreign cuBLAS that is loaded in place of "
        "torch's.",
        "print the shapes before the product; unset LD_LIBRARY_PATH and try again",
    ),
    Text(
        "cudnn.not_initialized",
        "cuDNN could not start",
        (r"CUDNN_STATUS_NOT_INITIALIZED",),
        "Memory is full as cuDNN makes its handle, or its libraries are of another version than torch's.",
        _OOM_FIRST + "; unset LD_LIBRARY_PATH and try again",
    ),
    Text(
        "cudnn.version",
        "cuDNN's parts are of different versions",
        (
            r"CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            r"CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
            r"cuDNN version incompatibility",
            r"Could not load library libcudnn\w*\.so",
            r"Unable to load any of \{libcudnn",
        ),
        "A cuDNN of the system, of conda or of LD_LIBRARY_PATH is mixed with the one that torch brings.",
        "unset LD_LIBRARY_PATH; pip install --force-reinstall nvidia-cudnn-cu12 (cu13) of the version that torch asks "
        "for",
        "proof",
    ),
    Text(
        "cudnn.failed",
        "a cuDNN call failed on the GPU",
        (r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)\w*",),
        "Memory that is full is the most frequent cause, an earlier kernel that failed the next.",
        _OOM_FIRST + "; torch.backends.cudnn.enabled = False tells whether it is cuDNN at all",
        "hint",
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
        messages.NO_ENGINE,
        "Mostly no memory for its workspace; else a data type or shape that it does not know.",
        _OOM_FIRST,
    ),
    Text(
        "cusolver.failed",
        "a cuSOLVER call failed",
        (r"CUSOLVER_STATUS_\w+",),
        "Memory is full, or a matrix holds NaN or infinities.",
        "torch.isfinite(x).all(); torch.backends.cuda.preferred_linalg_library('magma') goes another way",
        "hint",
    ),
    Text(
        "cufft.failed",
        "a cuFFT call failed",
        (r"CUFFT_(INTERNAL_ERROR|ALLOC_FAILED|EXEC_FAILED|SETUP_FAILED)", r"cuFFT error: CUFFT_\w+"),
        "Memory is full, or torch is of a CUDA older than the GPU: cuFFT of CUDA 11.7 fails on Ada.",
        "a newer torch; torch.backends.cuda.cufft_plan_cache.clear()",
        "hint",
    ),
    Text(
        "cusparse.failed",
        "a cuSPARSE call failed",
        (r"CUSPARSE_STATUS_\w+",),
        "Memory is full, or the sparse tensor's indices are wrong.",
        "x.coalesce(), and check its indices",
        "hint",
    ),
    Text(
        "nccl.duplicate",
        "two ranks use the same GPU",
        (r"Duplicate GPU detected",),
        "Every process works on cuda:0: the device of the local rank was not set.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group',
        "proof",
    ),
    Text(
        "nccl.shared_memory",
        "NCCL found no room in /dev/shm",
        (
            r"Error while creating shared memory segment",
            r"Call to posix_fallocate failed.{0,40}No space left on device",
            r"unable to allocate shared memory.{0,40}nccl",
        ),
        "Ranks on one machine speak through /dev/shm, and a container's is 64 MiB unless it was asked for more.",
        "docker run --shm-size=8g …, or --ipc=host; df -h /dev/shm",
        "proof",
    ),
    Text(
        "nccl.unhandled_cuda",
        "a CUDA call inside NCCL failed",
        (r"NCCL error.{0,200}unhandled cuda error", r"ncclUnhandledCudaError"),
        "NCCL passes on what CUDA said; the line `Last error:` or NCCL_DEBUG=INFO says what: out of memory, a GPU "
        "used twice, peer access.",
        _DEBUG,
        symptom=True,
    ),
    Text(
        "nccl.unhandled_system",
        "a system call inside NCCL failed",
        (r"ncclSystemError", r"NCCL error.{0,200}unhandled system error"),
        "Sockets, /dev/shm or InfiniBand: mostly a wrong network interface or a firewall.",
        _DEBUG + "; NCCL_SOCKET_IFNAME=eth0 chooses the interface",
        symptom=True,
    ),
    Text(
        "nccl.internal",
        "NCCL failed inside",
        (r"ncclInternalError",),
        "A topology that NCCL does not understand, ranks with different NCCL versions, or a lost rank.",
        _DEBUG,
        "hint",
        symptom=True,
    ),
    Text(
        "nccl.usage",
        "NCCL was called in a way that is not allowed",
        (r"ncclInvalidUsage", r"ncclInvalidArgument"),
        "More ranks than GPUs, a device that is not set, or tensors on another device than the group's.",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group; ' + _DEBUG,
        symptom=True,
    ),
    Text(
        "nccl.remote",
        "another rank is gone",
        (r"ncclRemoteError", r"remote process exited or there was a network error"),
        "This rank is not at fault: find the first rank that failed.",
        "look in the other ranks' logs for the earliest error, and explain that one",
        "proof",
        symptom=True,
    ),
    Text(
        "nccl.timeout",
        "a collective was not finished in time",
        (
            r"Watchdog caught collective operation timeout",
            r"Some NCCL operations have failed or timed out",
            r"watchdog got stuck for \d+ seconds",
            r"Timed out waiting \d+ms for (recv|send|wait)",
            r"watchdog thread terminated with exception",
        ),
        "One rank did not come to the collective: it crashed, hangs, or does something else (an uneven number of "
        "batches, a branch of its own, a checkpoint that takes long). The link itself is rarely at fault.",
        "look in the other ranks' logs for the earliest error; TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 write down which rank was where",
        "strong",
        symptom=True,
    ),
    Text(
        "nccl.infiniband",
        "InfiniBand gave up on another machine",
        (r"NET/IB ?: Got completion .{0,80}(error|status)=? ?\d+", r"Call to ibv_\w+ failed", r"ibv_modify_qp failed"),
        "A cable, a switch, a wrong GID index (RoCE), or the other machine is gone.",
        "NCCL_IB_DISABLE=1 tells whether it is InfiniBand; ibstat, and NCCL_IB_GID_INDEX on RoCE",
    ),
    Text(
        "nccl.missing",
        "this torch has no NCCL",
        (r"Distributed package doesn'?t have NCCL", r"ProcessGroupNCCL is only supported with GPUs, no GPUs found"),
        "A CPU wheel, Windows or macOS has none; or no GPU is visible.",
        "init_process_group('gloo'); else gpucheck doctor",
        "proof",
    ),
    Text(
        "dist.port",
        "the port of the rendezvous is taken",
        (
            r"EADDRINUSE",
            r"The server socket has failed to listen on any local network address",
            r"\bAddress already in use\b",
        ),
        "An earlier run still lives, or two jobs use the same MASTER_PORT.",
        "torchrun --standalone, or another --master-port; pgrep -af torchrun shows what is left",
        "proof",
    ),
    Text(
        "dist.rendezvous",
        "not every rank came to the rendezvous",
        (
            r"DistStoreError",
            r"Timed out after \d+ seconds waiting for clients",
            r"RendezvousTimeoutError",
            r"The client socket has (timed out|failed to connect)",
        ),
        "MASTER_ADDR or MASTER_PORT is wrong or blocked, WORLD_SIZE is not the number of processes, or a rank died "
        "before.",
        "the first error of the ranks that are missing; nc -vz MASTER_ADDR MASTER_PORT from each machine",
        symptom=True,
    ),
    Text(
        "dist.child",
        "a process that torchrun started has failed",
        (r"ChildFailedError", r"torch\.multiprocessing\.spawn\.ProcessExitedException", r"ProcessRaisedException"),
        "torchrun only passes it on. The cause is the first error above, of the rank that is called root cause.",
        "explain that rank's own traceback; @record of torch.distributed.elastic.multiprocessing.errors brings it "
        "into the summary",
        "proof",
        symptom=True,
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
            r"gloo/transport/tcp.{0,80}(Connection closed by peer|Connection reset by peer)",
        ),
        "The process at the other end, mostly rank 0 that holds the store, ended before.",
        "look in the other ranks' logs, rank 0's first, for the earliest error",
        symptom=True,
    ),
)
