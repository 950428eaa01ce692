"""Texts of cuBLAS, cuDNN, NCCL, torch.distributed and similar libraries, and of tensors with a wrong device or data
type.
"""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import hint, proof, strong

_OOM_FIRST = "try a batch of 1. If it works, memory was full (nvidia-smi shows what is free)"
_DEBUG = "set NCCL_DEBUG=INFO on every rank; the first WARN of the first rank that fails says more"
# Errors that end a rank or prevent its start, and cause the other ranks' messages.
_RANK_ENDED = (
    *("oom.", "cuda.", "assert.", "xid.", "bus.", "process.killed", "crash.", "loader.", "import.", "cuinit."),
    "numerics.",
)
# A failed kernel, or full memory, may be reported only by the next library call.
_BEFORE_LIBRARIES = (
    *("assert.", "cuda.illegal_access", "cuda.no_kernel", "cuda.capability", "oom.", "xid.", "cudnn.version"),
    "import.lib",
)
# Any of these errors is the cause if it appears beside a launcher's summary.
_ANYTHING = (
    *_RANK_ENDED,
    *("nccl.", "dist.", "tensor.", "hip.", "shm.", "cublas.", "cudnn.", "compile.", "amp.", "torch."),
)

# cuBLAS's status in words, as printed by llama.cpp, torch before 1.0 and TransformerEngine.
_CUBLAS = r"(CUDA error|cublas (runtime )?error) ?: "
# NCCL's result in words, after a source location, as printed by torch, CuPy and NCCL's own tests.
_NCCL = r"NCCL(_?(error|failure)[\w./:-]{0,120},?| operation .{1,120} failed:) ?"
_TO = "write x = x.to(device): .to() returns a new tensor. Call model.to(device) before the optimizer is made"

TEXTS: tuple[Condition, ...] = (
    strong(
        "cublas.not_initialized",
        "cuBLAS could not start",
        r"CUBLAS_STATUS_NOT_INITIALIZED|failed to create cublas handle|cublas_?Create.{0,40}failed",
        _CUBLAS + r"(the )?library (was )?not initialized",
        r"BLAS operation using StreamExecutor without BLAS support",
        meaning="Usually the GPU's memory is full when cuBLAS creates its handle.",
        fix=_OOM_FIRST + "; CUDA_LAUNCH_BLOCKING=1 shows an earlier failure",
        follows=_BEFORE_LIBRARIES,
    ),
    hint(
        "cublas.failed",
        "a cuBLAS call failed on the GPU",
        r"CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|LICENSE_ERROR)|cuBLAS API failed",
        r"\bcuBLAS (error|failure|status)( code)?:? ?\(?(11|13|14)\b",
        _CUBLAS + r"(the GPU program failed to execute|an (internal operation|access to GPU memory space) failed)",
        r"cublasLt ran into an error|Blas x?GEMM\w* launch failed",
        meaning="An earlier kernel wrote outside its memory, or memory is full. cuBLAS itself is rarely at fault.",
        fix="CUDA_LAUNCH_BLOCKING=1 python … names an earlier failure, such as an index, or an extension (mmcv) built "
        "for another torch: reinstall it; else " + _OOM_FIRST,
        follows=_BEFORE_LIBRARIES,
        weak=(r"\bcublas\w*.{0,40}(error|fail)|CUBLAS_STATUS_(?!SUCCESS)\w+",),
    ),
    strong(
        "cublas.not_supported",
        "cuBLAS does not support this product",
        r"CUBLAS_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)|\bcuBLAS (error|failure|status)( code)?:? ?\(?(8|15)\b",
        _CUBLAS + r"(the requested functionality is not supported|an absent device architectural feature)",
        meaning="This GPU lacks the data type (bfloat16, float8) or shape, or a size or stride exceeds 32 bits.",
        fix="use float16 instead of int8 (faster-whisper: compute_type; newer CTranslate2), or float32. If float32 "
        "works, the data type is the cause. gpucheck bench matmul shows which types this GPU multiplies",
    ),
    strong(
        "cublas.invalid",
        "cuBLAS got an invalid shape or pointer",
        _CUBLAS + r"an unsupported value or parameter was passed",
        r"CUBLAS_STATUS_INVALID_VALUE",
        meaning="A dimension is 0, a leading dimension is wrong, or another cuBLAS is loaded instead of torch's.",
        fix="print the shapes before the product; unset LD_LIBRARY_PATH if it leads to another cuBLAS",
        follows=_BEFORE_LIBRARIES,
    ),
    strong(
        "cudnn.not_initialized",
        "cuDNN could not start",
        r"CUDNN_STATUS_NOT_INITIALIZED|Could not create cudnn handle|cuDNN failed to initialize|DNN library "
        r"(initialization failed|is not found)|CUDNN_?STATUS_?(ARCH_?MISMATCH|RUNTIME_PREREQUISITE_MISSING)",
        r"calling cudnnCreate|\bcudnn ?(error|failure|status)( code)?:? ?\(?(1|6|1001)\b",
        meaning="Memory is full when cuDNN creates its handle, or its libraries have another version than torch's.",
        fix=_OOM_FIRST + ". Else look for a cuDNN of another version in $LD_LIBRARY_PATH, which hides torch's",
        follows=_BEFORE_LIBRARIES,
    ),
    strong(
        "cudnn.version",
        "cuDNN, or one of its libraries, has the wrong version",
        r"CUDNN_STATUS_(SUBLIBRARY_)?VERSION_MISMATCH|CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED|cuDNN version "
        r"incompatibility|(Could not load|undefined) symbol:? cudnn\w+|Loaded runtime CuDNN library: [\d.]+.{0,40} but "
        r"source was compiled|Mixed dnn version|libcudnn\w*\.so[.\d]*: undefined symbol|Found cuDNN version \d+, but "
        r"\w+ was built against|Outdated cuDNN installation found|cuDNN version .{0,40}(mismatch|does not match|"
        r"incompatible)|(incompatible version of|conflicting) cuDNN( in LD_LIBRARY_PATH)?",
        meaning="All libraries of cuDNN must have the same version.",
        fix="pip install nvidia-cudnn-cu12 (cu11, cu13) in the version that the message or `pip show torch` names. "
        "LD_DEBUG=libs python -c 'import torch; torch.backends.cudnn.version()' shows which is found first. If "
        "LD_LIBRARY_PATH leads to another one, unset it or set it to …/site-packages/nvidia/cudnn/lib",
    ),
    hint(
        "cudnn.failed",
        "a cuDNN call failed on the GPU",
        r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|BAD_PARAM|INVALID_VALUE|LICENSE_ERROR)\w*",
        r"CUDNN_(STATUS_)?BACKEND_API_FAILED|\bcudnn ?(error|failure|status)( code)?:? ?\(?([34578]|[245]00\d)\b",
        meaning="Usually memory is full. Else an earlier kernel failed, or torch's CUDA is older than the GPU.",
        fix=_OOM_FIRST + "; torch.backends.cudnn.enabled = False shows whether cuDNN is the cause",
        weak=(r"\bcudnn\w*.{0,40}(error|fail)|CUDNN_STATUS_(?!SUCCESS)\w+",),
        follows=(*_BEFORE_LIBRARIES, "cudnn.not_initialized"),
    ),
    strong(
        "cudnn.not_supported",
        "cuDNN does not support this operation",
        messages.CUDNN_NOT_SUPPORTED,
        meaning="A tensor is not contiguous or has over 2³¹ elements, or the GPU has no code for its data type.",
        fix="call x.contiguous() before the operation, or use a smaller batch",
    ),
    strong(
        "cudnn.engine",
        "cuDNN found no way to compute a convolution",
        *messages.NO_ENGINE,
        r"Unable to find a valid cuDNN algorithm|No execution plans (support the graph|built)|no valid (execution "
        r"plan|engine)|Failed to (get|determine best cudnn) convolution algorithm|cudnn_frontend\] Error|cuDNN "
        r"Frontend error|CUDNN_BACKEND_\w+: .{0,40}Failed|CUDNN_STATUS_NOT_SUPPORTED.{0,60}(engine|plan|finalize)|"
        r"cuDNN .{0,40}(could not|cannot|unable to|no) .{0,20}(algorithm|engine)",
        meaning="Usually there is no memory for cuDNN's workspace.",
        fix=_OOM_FIRST
        + ". Else look for a cuDNN of another version in $LD_LIBRARY_PATH, or turn cuDNN off: for attention "
        "torch.backends.cuda.enable_cudnn_sdp(False), for the rest torch.backends.cudnn.enabled = False",
        follows=_BEFORE_LIBRARIES,
        common=(r"No algorithm worked",),
    ),
    hint(
        "cusolver.failed",
        "a cuSOLVER call failed",
        r"CUSOLVER_STATUS_\w+|cuSolver internal error|operation cusolver\w+\(.{0,60}\) failed|CUSOLVER API failed",
        meaning="Memory is full, or a matrix holds NaN or infinities.",
        fix="check torch.isfinite(x).all(). torch.backends.cuda.preferred_linalg_library('magma') uses MAGMA instead",
        follows=_BEFORE_LIBRARIES,
    ),
    hint(
        "cufft.failed",
        "a cuFFT call failed",
        r"CUFFT_(?!SUCCESS|FORWARD|INVERSE|R2C|C2[RC]|Z2|D2Z)[A-Z]+_[A-Z_]+|cuFFT ?error: \w+",
        meaning="Memory is full, or torch's CUDA is older than the GPU: cuFFT of CUDA 11.7 fails on Ada.",
        fix="nvidia-smi shows whether the GPU is full. If so, use a smaller batch and call "
        "torch.backends.cuda.cufft_plan_cache.clear(); else install a newer torch or program whose CUDA knows this GPU",
        follows=_BEFORE_LIBRARIES,
    ),
    hint(
        "curand.failed",
        "a cuRAND call failed",
        r"CURAND_STATUS_(?!SUCCESS(?! \())\w+ ?(?!\(\d)|curand(Create|Generate|Set)\w+(.{0,20} failed| error:? \d{3})",
        meaning="Memory is full, an earlier kernel failed, or the library is older than the GPU.",
        fix=_OOM_FIRST + "; CUDA_LAUNCH_BLOCKING=1 shows an earlier failure",
        follows=_BEFORE_LIBRARIES,
    ),
    hint(
        "tensorrt.no_tactic",
        "TensorRT found no way to compute a layer",
        r"Could not find any implementation for node",
        meaning="TensorRT rejected every kernel that it tried.",
        fix="use a larger workspace (config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, N), or trtexec "
        "--memPoolSize=workspace:N) with nothing else on the GPU. Then try a newer TensorRT, or the layer in float32",
        follows=("oom.",),
    ),
    hint(
        "cusparse.failed",
        "a cuSPARSE call failed",
        r"CUSPARSE_STATUS_\w+|CUSPARSE API failed|operation cusparse\w+\(.{0,60}\) failed",
        meaning="Memory is full, or the sparse tensor's indices are wrong.",
        fix="call x.coalesce() and check the indices",
        follows=_BEFORE_LIBRARIES,
    ),
    proof(
        "nccl.duplicate",
        "two ranks use the same GPU",
        r"Duplicate GPU detected|Multiple ranks .{0,40}same (GPU|device|CUDA)",
        meaning="The device of the local rank was not set, or there are more processes than visible GPUs.",
        fix='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group. Start at most as '
        "many processes on a machine (--nproc-per-node) as torch.cuda.device_count() shows",
    ),
    proof(
        "nccl.shared_memory",
        "NCCL could not use shared memory (/dev/shm)",
        r"Call to posix_fallocate failed.{0,40}No space left on device|unable to allocate shared memory.{0,40}nccl|"
        r"/dev/shm/nccl-\w*.{0,80}(No space left|size \d+)|failed to extend /dev/shm/nccl-|failed to (open|create|"
        r"map) shared memory segment .{0,60}nccl-|NCCL WARN Call to shm_open failed",
        meaning="Ranks on one machine communicate through /dev/shm. A container has 64 MiB of it by default.",
        fix="docker run --shm-size=8g …, or --ipc=host; df -h /dev/shm shows its size",
        common=(r"Error while (creating|attaching to) shared memory segment",),
    ),
    strong(
        "nccl.unhandled_cuda",
        "a CUDA call inside NCCL failed",
        r"NCCL WARN (hip|cuda|cu)[A-Z]\w+ failed|ncclUnhandledCudaError",
        _NCCL + "unhandled cuda error",
        meaning="NCCL passes on CUDA's error (memory, a GPU twice, P2P). `Last error:` or NCCL_DEBUG=INFO names it.",
        fix=_DEBUG,
        symptom=True,
        follows=(
            *_RANK_ENDED,
            *("nccl.duplicate", "nccl.shared_memory", "nccl.interface", "nccl.infiniband", "nccl.nvls"),
        ),
    ),
    strong(
        "nccl.nvls",
        "NVLink's multicast (NVLS) could not be set up",
        r"NVLink SHARP \(NVLS\) Multicast|transport/nvls\.cc:\d+ NCCL WARN Cuda failure (?!.{0,4}out of memory)",
        r"cuMulticast\w+.{0,60}(fail|error)",
        meaning="The switches and the fabric manager create the groups. They failed, or were restarted while GPUs ran.",
        fix="systemctl status nvidia-fabricmanager and nvidia-smi -q | grep -A3 Fabric show the state. After a restart "
        "of the fabric manager, reset all GPUs together, or reboot. NCCL_NVLS_ENABLE=0 runs without NVLS, more slowly",
    ),
    proof(
        "nccl.interface",
        "NCCL or gloo finds no network interface that joins the machines",
        r"no (socket|NCCL_SOCKET_IFNAME) interface found|NCCL WARN Error: network .{0,40}not found|NET/Socket ?: (no|"
        r"0) (interface|socket).{0,20}found|NCCL WARN .{0,80}failed ?: ?Network is unreachable|"
        r"Using the loopback address as fallback|ifa != nullptr\. Unable to find (address|interface) for|"
        r"set of common task-to-task communication interfaces|"
        r"connecting to address .{0,60}with family \d+ is neither AF_INET|makeDeviceFor(Interface|"
        r"Hostname)\(\): unsupported gloo device|gloo.{0,60}unsupported gloo device",
        r"gloo.{0,200}(connect|SO_ERROR|timed out)\b(?!.{0,12}closed).{0,80}\[?127\.0\.\d\.1\b",
        meaning="NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names no interface here, or the host name has no address.",
        fix="ip -brief address shows the names. unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME, or set both to the "
        "interface's name, not an address (on one machine: lo). For gloo /etc/hosts must not map the host to 127.0.1.1",
        common=(r"Unable to find address for: ?\W?\w",),
    ),
    strong(
        "nccl.unhandled_system",
        "a system call inside NCCL failed",
        r"ncclSystemError|socketStartConnect: Connect to \S+ failed|NCCL WARN .{0,80}(Connection timed out|"
        r"connect timeout|No route to host|connection abort)",
        _NCCL + "unhandled system error",
        meaning="Sockets, /dev/shm or InfiniBand failed: usually a wrong interface, a firewall, or an ended rank.",
        fix=_DEBUG
        + "; ip -brief address shows the interfaces: set NCCL_SOCKET_IFNAME=NAME to the one that joins the machines",
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.shared_memory", "nccl.interface", "nccl.infiniband"),
    ),
    hint(
        "nccl.internal",
        "NCCL reports an internal error",
        r"ncclInternalError",
        _NCCL + "internal error",
        meaning="NCCL does not understand the topology, the ranks have different NCCL versions, or a rank is gone.",
        fix=_DEBUG,
        symptom=True,
        weak=(
            r"\b[NR]CCL (WARN|error|exception|fail)|\bDistBackendError",
            r"\bProcessGroupNCCL.{0,120}(error|exception|abort|fail)",
        ),
        follows=(*_RANK_ENDED, "nccl.shared_memory", "nccl.interface", "nccl.infiniband"),
    ),
    strong(
        "nccl.usage",
        "NCCL was called in a way that is not allowed",
        r"ncclInvalidUsage|ncclInvalidArgument",
        _NCCL + "invalid (usage|argument)",
        meaning="There are more ranks than GPUs, a device is not set, or tensors are on another device than the group.",
        fix='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group; ' + _DEBUG,
        symptom=True,
    ),
    proof(
        "nccl.remote",
        "another rank is gone",
        r"ncclRemoteError|NCCL group has been destroyed|remote process exited or there was a network error|"
        r"(socketProgress|Net) ?: Connection closed by remote peer|NCCL WARN .{0,60}(Connection closed by remote peer|"
        r"Connection reset by peer|Broken pipe)|NCCL WARN .{0,40}Call to connect returned Connection refused|"
        r"NCCL communicator was aborted on rank(?!.{0,40}Original reason)",
        meaning="This rank is not at fault: find the first rank that failed.",
        fix="look in the other ranks' logs for the earliest error, and explain that one. If all ranks only report lost "
        "connections, check the network: NCCL_SOCKET_IFNAME=NAME of the interface, ibstat, dmesg of each machine",
        symptom=True,
        follows=_RANK_ENDED,
    ),
    strong(
        "nccl.timeout",
        "a collective was not finished in time",
        r"Some NCCL operations have failed or timed out|watchdog got stuck for \d+ seconds|watchdog thread terminated "
        r"with exception|Observed flight recorder dump signal|Timeout at NCCL work|failed to pass monitoredBarrier|"
        r"monitoredBarrier, but received errors|caught collective operation timeout|To avoid data inconsistency, we "
        r"are taking the entire process down|Heartbeat monitor timed out! ?Process will be terminated",
        r"\bNCCLHangError\b|\bcollective (is|was|operation is) (deadlocked|hanging|stuck)|\bnccl (watchdog )?(timeout|"
        r"timed out|hang|hangs)\b",
        meaning="One rank did not join the collective: it crashed, hangs, or runs something else (an uneven number of "
        "batches, a different branch, a slow checkpoint). The link is rarely the cause.",
        fix="look in the other ranks' logs for the earliest error; TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 write down which rank was where. If the first collective hangs on one "
        "machine, run `gpucheck bench collective`, and check the IOMMU with `gpucheck doctor`",
        conditions=("peers.iommu", "peers.acs"),
        symptom=True,
        follows=(*_RANK_ENDED, "nccl.", "dist.port"),
        weak=(
            r"\b(nccl\w*|all_?reduce)\b.{0,80}\b(deadlock\w*|hangs?|hanging|freezes?)\b|\bworks? with NCCL_P2P_DISABLE",
            r"Some NCCL operations have|Watchdog caught|To avoid data inconsistency",
            r"\b(horovod\w*|mpirun|torchrun|multi-?(gpu|node)|fsdp|ddp)\b.{0,300}\b(hangs?|hung|stuck|deadlock\w*)\b|"
            r"\b(hangs?|hung|hanging|stuck|deadlock\w*)\b.{0,200}\b(horovod\w*|mpirun|torchrun|fsdp|ddp|deepspeed)\b|"
            r"Timed out waiting for tasks to start\. ?Please check connectivity between servers|\b(tensor[- ]parallel|"
            r"nranks [2-9]|d[dp]p|distributed)\b.{0,300}\b(stalls?|stalled|stuck|hangs?|hung)\b",
        ),
        common=(
            r"\b(hangs?|stuck\w*|freez\w+)\b.{0,60}(initiali[sz]ing (ddp|distributed)|GLOBAL_RANK|Distributed "
            r"environment)|\b(hangs?|stuck\w*|freez\w+)\b.{0,60}\b(multi\w*|several|two|2|4|8|both)[- ](x |RTX "
            r")?\w{0,8} ?(GPUs?|cards)\b|\b(hangs?|stuck|deadlock(s|ed)?) .{0,30}\b(in|at|on|during) .{0,20}\b(NCCL|"
            r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|ncclCommInit\w*|init_process_group)",
            r"Timed out waiting \d+ms for (recv|send|wait)|(allreduce|all_reduce|allgather|all_gather|barrier|"
            r"broadcast)\w* .{0,20}timed out|Heartbeat monitor timed out",
        ),
    ),
    strong(
        "nccl.infiniband",
        "a transfer of NCCL over InfiniBand or RoCE failed",
        r"NET/IB\w? ?: ?Got (async event|completion .{0,80}(error|status)[= ]{0,2}(\d|IBV_WC))|ibv_\w+ failed|"
        r"misc/ibvwrap\.cc.{0,60}(WARN|fail)|NET/IB ?: (Unable to|No valid|.{0,40}failed)|NET/IB.{0,40}Got async event",
        meaning="The number or word in the message names the cause: it is ibv_wc_status of libibverbs.",
        fix="set NCCL_IB_DISABLE=1 to see whether InfiniBand is the cause. ibstat shows the ports, show_gids the index "
        "for NCCL_IB_GID_INDEX on RoCE. ib_write_bw between the machines tests the link without NCCL",
        common=(r"GID (index|table).{0,40}(invalid|not found|zero)",),
    ),
    proof(
        "nccl.missing",
        "this torch has no NCCL",
        r"Distributed package doesn'?t have NCCL|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        r"No backend type associated with device type cuda|cannot import name 'ProcessGroupNCCL'",
        r"not compiled with NCCL support|NCCL support is not compiled",
        r"Requires distributed package to be available|torch\.distributed is not available",
        meaning="A CPU wheel, Windows or macOS has no NCCL, or no GPU is visible.",
        fix="without a GPU, use init_process_group('gloo'). Else install a torch for CUDA (check torch.version.cuda)",
        follows=("cuinit.", "torch.cpu_only", "nvml."),
    ),
    proof(
        "dist.port",
        "the port of the rendezvous is taken",
        r"The server socket has failed to (listen|bind)",
        r"(c10d|TCPStore|torchrun|rendezvous|MASTER_PORT|distributed).{0,300}(EADDRINUSE|Address already in use)",
        r"(EADDRINUSE|Address already in use).{0,300}(c10d|TCPStore|torchrun|MASTER_PORT|init_process_group)",
        r"errno: 98 - Address already in use|RuntimeError: Address already in use|DistNetworkError.{0,120}EADDRINUSE",
        r"launch distributed communication on port `?\d+`?, but another process is utilizing it",
        meaning="Another process has it: usually an earlier run, or a second job with the same MASTER_PORT.",
        fix="use torchrun --standalone, or another --master-port; ss -ltnp | grep PORT shows which process has it",
        common=(r"error while attempting to bind on address",),
    ),
    strong(
        "dist.rendezvous",
        "not every rank reached the rendezvous",
        r"DistStoreError|Timed out after \d+ seconds waiting for clients|RendezvousTimeoutError|The client socket has "
        r"(timed out|failed to connect to any)|Timed out initializing process group in store based barrier|"
        r"RendezvousConnectionError|RendezvousClosedError|RendezvousStateError|The connection to the C10d store has "
        r"failed|wait timeout after \d+ms, keys:|store->get\('?[\w:/]+'?\) got error: (wait timeout|Socket Timeout)|"
        r"RuntimeError: Socket Timeout|ValueError: host not found: |Unable to meet other processes at the rendezvous|"
        r"retrieved \(gai error: -\d",
        r"The client socket has failed to connect to .{0,80}errno: 1\d\d\b",
        r"ssh -o PasswordAuthentication=no .{1,80}hostname.{0,60}non-zero exit status 255",
        meaning="MASTER_ADDR or MASTER_PORT is wrong or blocked, WORLD_SIZE is wrong, or a rank died earlier.",
        fix="look at the first error of the missing ranks; run nc -vz MASTER_ADDR MASTER_PORT on each machine",
        symptom=True,
        weak=(r"\b(c10d|TCPStore|rendezvous\w*)\b.{0,120}(error|fail|time ?out|timed out|refused|closed)",),
        follows=(*_RANK_ENDED, "dist.port", "nccl.interface"),
        unless=r"built without libuv support",  # that message names its own cause and fix
    ),
    proof(
        "dist.accelerate",
        "accelerate does not start on several RTX 40 GPUs until P2P and InfiniBand are turned off",
        r"RTX [\d or]{4,14} series (doesn'?t|does not) support faster communication",
        meaning="GeForce GPUs have no P2P. Without the settings, NCCL would fail later.",
        fix="export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1 in the shell that starts the program (Windows: set, one a "
        "line), or use accelerate launch, which sets both. For one GPU set CUDA_VISIBLE_DEVICES=0",
    ),
    proof(
        "dist.environment",
        "torch.distributed is not set up: its ranks or groups are not known",
        r"No backend type associated with device type|environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|"
        r"LOCAL_RANK) expected, but not set|(tensor|pipeline|data|context|expert|model)\W?( model)? parallel (group "
        r")?is not initialized|Default process group (has not been|is not) initialized|KeyError: '?((LOCAL_)?RANK|"
        r"WORLD_SIZE|MASTER_ADDR)'?|`?(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE)`? (env(ironment)?( variable)? )?(was "
        r"not set|is not set|is missing)|initialize the accelerate state by calling|(PartialState|Accelerator)`? must "
        r"be initialized before|launch new distributed processes with `?local_rank > 0|Cannot determine (world size|"
        r"global rank|local rank)\. Environment variable|(mismatch in local rank setting|LOCAL_RANK \(\d+\) !=)|(rank|"
        r"world size) parameter missing|Unable to detect suitable master address|torch\.distributed (is|was) not (yet "
        r")?initialized",
        r"requires? the LOCAL_RANK environment variable|\bLOCAL_RANK is not in the environment",
        meaning="The program was started with python, not torchrun, or uses a collective before init_process_group.",
        fix="start it with torchrun --standalone --nproc-per-node=N program.py, and call init_process_group() before "
        "the first collective (Megatron: then initialize_model_parallel(), before the model is made)",
    ),
    strong(
        "dist.set_device",
        "a rank's GPU is not set, or is not the one that its tensors are on",
        r"inconsistent compute device and `?'?device_id|FSDP got the argument `?device_id`? .{0,60}which does not "
        r"have an explicit index|FSDP-managed module .{0,60}has parameters on|FSDP parameters should be materialized "
        r"on CPU|FSDP (only supports single device modules|does not support modules with different device types)|"
        r"support a module with both CPU and GPU params, please pass in device_id|is given device_id argument "
        r".{1,12}but is on|module has CPU parameters or buffers when `?sync_module_states|did not set/select the "
        r"default device for the current process|collective on tensor not on device passed to init_process_group|"
        r"Failed to infer a GPU device id to perform barrier|Guessing device ID based on global rank|GPU \d+ (to "
        r"perform barrier as|as) ?devices? used by this process (is|are) currently unknown|NCCL Communicator since "
        r"the GPU devices are not known|nccl communicator is created to work on|selected device indices .{0,80}don'?t "
        r"match the local rank|DistributedDataParallel'?s? (device_ids and output_device arguments only work|input "
        r"module must be on the same)|DeviceMesh only support homogeneous hardware|participants have overlapping",
        r"\b(\d+) n/a n/a (\d+) c \S+ \d+mib.{0,600}\b(?!\1\b)\d+ n/a n/a \2 c \S+ \d+mib",
        meaning="Each process uses cuda:0 until it sets its own GPU. NCCL, FSDP and DDP then use that one too.",
        fix='set local_rank = int(os.environ["LOCAL_RANK"]), call torch.cuda.set_device(local_rank) before making the '
        'model, init_process_group(device_id=torch.device("cuda", local_rank)), and FSDP(device_id=local_rank)',
        follows=("oom.", "nccl.duplicate"),
    ),
    strong(
        "dist.world_size",
        "the number of processes or parallel parts does not fit the model, the sequence or the configuration",
        r"train_batch_size is not equal to micro_batch_per_gpu|(divisible|divide|divided|equal|match)\w*( evenly)?( "
        r"by| to)?( the)?( \w+){0,2} world[_ ]?size|(divisible|divide\w*) by (the )?(\w+ )?(tensor|model|pipeline|"
        r"data|context|expert|sequence)[-_ ]?(model[-_ ]?)?parallel[\w ]{0,12}size|batch size .{0,40}divisible by "
        r"micro[-_ ]?batch|Mesh should not be bigger than (the )?default world size|(DP world size|world size) of \d+ "
        r"but the current world size is|number of tasks per node configured in SLURM .{0,60}does not match|Bootstrap "
        r"Root ?: (rank \d+ of \d+ ranks has already checked in|mismatch in rank count)|group'?s (world )?size should "
        r"be less or equal to the world|tensor parallel size .{0,60}(cannot|must|should|is not).{0,30}(divi|number of "
        r"attention heads)|not divisible by .{0,24}(block_[nk]|min_thread_[nk]|group_size)|must divisible by "
        r"BLOCK_SIZE_K|not aligned with the quantized weight shape|num_heads must be divisible by",
        r"num_processes: 1\b.{0,200}num_machines: [2-9]",
        r"\bworld[_ ]?size\b.{0,40}(is not|must be|should be|does not|doesn'?t) (divi|evenly|equal|match|valid)",
        meaning="The batch size, the attention heads, a mesh or a checkpoint fits another number of processes.",
        fix="compare WORLD_SIZE (nproc-per-node × nnodes, Slurm's ntasks) with the message. The pipeline size must "
        "divide the layers, the tensor size the heads, and with sequence or context parallelism the (padded) sequence "
        "length. The batch size is micro batch × accumulation × processes",
        common=(r"AssertionError: \d+ is not divisible by \d+",),
        beside=r"torch|cuda|gpu|parallel|megatron|vllm",
    ),
    proof(
        "dist.mismatch",
        "the ranks do not call the same collectives",
        r"Detected mismatch between collectives on ranks|CollectiveFingerPrint|Mismatched collective detected",
        r"(submitted|broadcasted) by (a )?subset of ranks and are waiting",
        r"Message truncated ?: received \d+ bytes instead of|op\.preamble\.(length|nbytes)",
        meaning="One rank runs another branch, or has tensors of another shape.",
        fix="make every rank call the same collectives in the same order with the same shapes. The message names both",
    ),
    proof(
        "dist.libuv",
        "torch's store requires libuv, which this build does not have",
        r"use_libuv was requested but PyTorch was (built|build) with ?out libuv support",
        meaning="torch 2.4 and newer start the TCPStore with libuv. The builds for Windows have none.",
        fix="export USE_LIBUV=0 before the program starts (in code: set os.environ before importing torch)",
    ),
    strong(
        "ray.resources",
        "no Ray node has the requested GPUs",
        r"No available node types can fulfill resource request|placement group creation timed out|resource request "
        r"cannot be scheduled right now: ?\{.{0,60}GPU|(create|reserve|schedule)\w* .{0,60}placement "
        r"group.{0,200}(GPU|timed out|timeout|not ready)|placement group .{0,120}(cannot|can't|could not|couldn't|is "
        r"not) be? ?(created|scheduled|ready)|Total available GPUs .{0,40}is less than total desired GPUs|required "
        r"GPUs exceeds the total number of available GPUs|Ray does not allocate any GPUs on the driver node",
        r"Waiting for creating a placement group of specs for \d{3}|placement group bundle index \d+ is invalid|Tensor "
        r"parallel size \(\d+\) exceeds available GPUs",
        meaning="A task, actor or placement group waits for more GPUs than one node, or the cluster, has free.",
        fix="ray status shows what is used and what waits. If a node left, ray stop on all nodes, then start head and "
        "workers again with one version of Ray and Python. Else request fewer GPUs (num_gpus, workers), or add a node",
        follows=("nvml.", "xid.", "cuinit."),
        logged=True,
        weak=(
            r"waiting for placement group",
            r"use_gpu ?= ?true.{0,800}\b(stuck|hangs?|pending|not (go|start|proceed))",
        ),
    ),
    proof(
        "dist.ready_twice",
        "a parameter's gradient was ready twice in one step",
        r"Expected to mark a variable ready only once|has been marked as ready twice",
        meaning="DistributedDataParallel counts each gradient once, but the parameter was used twice: usually by "
        "reentrant checkpointing, shared weights, or two forward passes before one backward.",
        fix="set gradient_checkpointing_kwargs={'use_reentrant': False}, find_unused_parameters=False; or static_graph",
    ),
    proof(
        "dist.child",
        "a process that torchrun started has failed",
        r"ChildFailedError|torch\.multiprocessing\.spawn\.ProcessExitedException|ProcessRaisedException|failed "
        r"\(exitcode: -?\d+\) local_rank|exits with return code = -?\d+|SignalException: Process \d+ got signal",
        meaning="torchrun only reports it. The cause is the first error above, of the rank called root cause.",
        fix="explain that rank's traceback. @record of torch.distributed.elastic.multiprocessing.errors summarises it",
        symptom=True,
        follows=_ANYTHING,
    ),
    proof(
        "dist.unused",
        "a parameter took no part in the loss",
        r"parameters that were not used in producing|Expected to have finished reduction in the prior iteration "
        r"before|training graph has changed in this iteration|Parameter indices which did not receive grad",
        meaning="DistributedDataParallel waits for every gradient, but a branch or an output was not used.",
        fix="set find_unused_parameters=True (Trainer: ddp_find_unused_parameters, Lightning: "
        "strategy='ddp_find_unused_parameters_true'), or remove the branch. TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    strong(
        "dist.tcp",
        "a rank lost its connection to another",
        r"client socket cannot be initiali[sz]ed to connect|Connection reset by peer.{0,120}TCPStore|TCPStore.{0,200}"
        r"(Broken pipe|Connection reset by peer|Connection was likely closed)|gloo/transport/tcp.{0,80}(Connection "
        r"(closed by peer|reset by peer|refused|timed out)|Broken pipe)|gloo/transport/tcp.{0,80}Timed out|"
        r"gloo/transport/tcp/\w+\.cc:\d+\] (Connection|Read error|Timed out|Application timeout)|Gloo connectFullMesh "
        r"failed|(recvValue|sendBytes|recvVector|recvBytes) failed on SocketImpl|store->get\('?[\w:/]+'?\) got error: "
        r"(Connection reset|Broken pipe|Connection was likely closed|Failed)|setting up NCCL communicator and "
        r"retrieving ncclUniqueId.{0,200}got error|Failed to recv, got 0 bytes|Failed to check the \W?should dump\W? "
        r"flag on TCPStore|DistNetworkError.{0,120}(Connection reset by peer|Broken pipe|Connection was likely closed)",
        meaning="The process at the other end ended earlier. Usually it is rank 0, which holds the store.",
        fix="look for the earliest error in the other ranks' logs, rank 0's first",
        symptom=True,
        follows=(*_RANK_ENDED, "dist.port", "nccl.interface"),
    ),
    proof(
        "tensor.device_mismatch",
        "two tensors are on different devices",
        r"Gather function not implemented for CPU tensors",
        r"Expected all tensors to be on the same device|but found at least two devices|tensors? (to be )?on the same "
        r"device, but got|Unhandled FakeTensor Device Propagation|is on .{1,12}, but expected .{0,30} to be on|all "
        r"tensors must be on devices\[0\]|found two different devices|Tensor on device \w+ is not on the expected "
        r"device|Placeholder storage has not been allocated on MPS device|Expected object of (device type|backend) "
        r"\w+ but got (device type|backend) \w+|Input and (hidden|parameter) tensors are not at the same device|to "
        r"have the same device as tensor for argument|assign a gradient with device type|arguments are located on "
        r"different GPUs|expected device \w+(:\d)? but got (device|\w+:\d)|legacy constructor expects device type|"
        r"argument should be a 1D CPU int64 tensor|\(device=.{1,12}\) and weight\(device=.{1,12}\) +must be on the "
        r"same device|Attempted to set the storage of a tensor on device|Passed CPU tensor to MPS op|(query|q|key|"
        r"value).{0,40}(must|to) (all )?be on the same device|module must have its parameters and buffers on device|"
        r"cannot be accessed from Triton \(cpu tensor\?\)|(tensors|model and input|parameters) .{0,30}on different "
        r"devices|(?<!but )(must|should|need|needs|expected)( all)?( \w+){0,3} (to )?(be|live) (all )?(on|of type) (a "
        r"|the )?(CUDA|GPU)( device)?s?(?!\w)(?! is)|tensor was not on GPU|inputs? tensors? need to be on the same "
        r"(GPU|device)|only supports? CUDA tensors|Tensors must be CUDA and dense|expected '?\w+'? to be CUDA,? but "
        r"got CPU|expects (all inputs to be on GPUs|destination to be on the same GPU)|torch\.Tensor must be on the "
        r"default device|requires CUDA tensors|`?input_ids`? being on a device type different than your model'?s "
        r"device|model and the optimizer parameters are not on the same device|loss must be on the original device|"
        r"tensors passed to .{1,40}were not on the .{1,12}while the `?Accelerator|don'?t match the device of the|"
        r"Expected out tensor to have device|Expected \w+\.device == \S+, got|indices should be either on .{1,12}or "
        r"on the same device as the indexed tensor",
        r"(must|should|need|needs|expected .{1,40}to|expect\w*) (be )?(an? )?(all )?CUDA tensors?\b",
        r"is on \w+(:\d)?, different from other tensors on|\.is_cuda\(\) INTERNAL ASSERT FAILED",
        r"tensors are located on different GPUs",
        meaning="One operand was not moved. The message names both devices.",
        fix=_TO
        + ". Make new tensors with torch.zeros(…, device=x.device) (Lightning: self.device), or self.register_buffer",
    ),
    proof(
        "tensor.type_mismatch",
        "the input and the weights are of different types or devices",
        r"Input type \(.{1,40}\) and (weight|bias) type \(.{1,40}\) should be the same",
        r"Expected object of (type|scalar type|data type) [\w.]+ but (found|got) (type|scalar type|data type)",
        r"expected type torch\.[\w.]+ but got torch\.[\w.]+",
        meaning="torch.cuda.FloatTensor is on the GPU, torch.FloatTensor on the CPU; HalfTensor is another data type.",
        fix=_TO,
    ),
    proof(
        "tensor.dtype",
        "two tensors are of different data types",
        r"Expected \S{1,40}(dtype|scalar_type)\(\) == (torch::\w+|\S+ to be true)|expected scalar type \w+ but found "
        r"\w+|(mat1|m1|self) and (mat2|m2) (must|to) have the same dtype|(must|to) have the same dtype, but got|Found "
        r"dtype \w+ but expected \w+|Expected out tensor to have dtype \S+ but got|input types "
        r"tensor<([\dx?]*x)?(\w?f\d+|[su]?i\d+)> and tensor<(?![\dx?]*\2>)[\w?]+> are not broadcast|expected (data "
        r"type|dtype) (?!\S+ ?for ?(end|weight)).{0,30}but got .{0,30}dtype|mixed dtype \(CPU\): expect|Expected "
        r"tensor for argument .{0,60}to have (one of the following )?scalar types?|value cannot be converted to type "
        r"at::(Half|BFloat16)|(flatten tensors with|requires) uniform dtype but got|Data types for parameters must "
        r"match when outside of autocast|output tensor must have the same type as input tensor|Model data type and "
        r"gradient accumulation data|Index put requires the source and destination dtypes match|result type \w+ "
        r"can'?t be cast to the desired output type",
        r"(query|q|key|value)\b.{0,30}(must|to|should) (all )?have (the )?same dtype|Promotion for Float8 Types is not",
        r"expects uniform (original )?parameter dtype",
        meaning="Parts of the model have different types (float16, bfloat16, float32), or an index is no integer.",
        fix="use model.to(dtype) and x.to(dtype) with one type, or run the step under torch.autocast. Replace layers "
        "before model.to(device): a new layer stays on the CPU in float32, where autocast does not reach it",
    ),
    proof(
        "tensor.not_implemented",
        "torch has no code for this data type on this device",
        r"not implemented for '?(Half|BFloat16|Float|Double|Long|Int|Bool|Byte|Char)\b",
        r"not implemented for '?(Complex|Float8_)\w+|\w+ not implemented for '?(UInt\d+|Float4\w+)",
        r"\b\w+_(cpu|cuda|mps)\w*\b.{0,3} not (currently )?implemented for",
        r"AutocastCPU only support|CPU autocast, but the target dtype is not supported",
        meaning="Usual cases are float16 on the CPU, float8 outside matrix products, and integers in a loss.",
        fix="on the CPU use model.float() and x.float() and no fp16 option (A1111: --no-half --precision full). If "
        "torch.cuda.is_available() is True, run it on the GPU. For a type that the GPU lacks, use bfloat16 or float32",
        weak=(r"\bnot implemented (for|in) \W?(half|bfloat16)\b",),
    ),
    proof(
        "tensor.numpy",
        "a tensor on a device was given to NumPy",
        r"can'?t convert .{1,12} device type tensor to numpy|can'?t convert (a )?(CUDA|MPS|XPU|HIP) tensor to numpy",
        r"Can'?t call numpy\(\) on Tensor that requires grad",
        meaning="NumPy works in host memory and has no gradients.",
        fix="convert with x.detach().cpu().numpy()",
    ),
    proof(
        "tensor.meta",
        "a tensor without data was used",
        r"Cannot copy out of meta tensor; no data|Tensor\.item\(\) cannot be called on meta tensors",
        r"is on the meta device, we need a `?value`?|`?from_pretrained`? with a meta device context manager",
        r"(weight|bias|parameter|tensor)s? .{0,40}(is|are) on (the )?meta device|not on the expected device meta",
        meaning="A module on the meta device (init_empty_weights, low_cpu_mem_usage, device_map) got no weights.",
        fix="call model.to_empty(device=…) and load the weights, or load with device_map and remove .to()",
    ),
    strong(
        "tensor.backend",
        "an operation does not exist on this device",
        r"Could not run '?[\w:.]+'? with arguments from the '?\w+'? backend",
        r"Not compiled with (GPU|CUDA) support|implementation for device \w+(:\d)? not found",
        r"is not implemented on (CPU|GPU|CUDA)\b|aten::\w+\W? is only available for these backends",
        meaning="An extension was built for the CPU only, or the package has CUDA code and torch has none.",
        fix="reinstall the package that the operation's name begins with, at the version for this torch (torchvision: "
        "pip list | grep -i torch, both with or both without +cu…). For aten:: operations, use x.cpu() or .to_dense()",
        follows=("xformers.setup", "import.nms"),
    ),
    proof(
        "tensor.load",
        "a checkpoint was saved on a device that this machine lacks",
        r"Attempting to deserialize object on (a )?(CUDA|MPS|XPU) device",
        r"on CUDA device \d+ but torch\.cuda\.device_count\(\) is \d+|don'?t know how to restore data location of",
        meaning="torch.load puts tensors where they were saved.",
        fix='use torch.load(path, map_location="cpu"), then model.to(device)',
        follows=("cuinit.", "torch.cpu_only", "nvml."),
    ),
    proof(
        "tensor.generator",
        "the random generator is on another device",
        r"Expected a '?[\w:]+'? (device type for generator|generator device) but found '?\w+'?",
        meaning="torch.randperm, a sampler or a DataLoader got another, often after torch.set_default_device.",
        fix="make torch.Generator(device=…) on the tensors' device; a DataLoader needs one on the CPU",
    ),
    proof(
        "tensor.placed",
        "a model that is already on its devices was moved",
        r"\.?(to|cuda|half|float)\W{0,4} is not supported for .{0,4}(4|8)-bit|loaded in `?bitsandbytes`? .{0,12}and "
        r"(moving it|conversion) .{0,60}not supported|parallel_apply\.py.{0,3000}bitsandbytes[/\\].{0,900}shapes "
        r"cannot be multiplied|You (can'?t|shouldn'?t) move a model (that has some modules offloaded|that is "
        r"dispatched|when it is dispatched)|It seems like you have activated (sequential )?(model |cpu )*offloading|"
        r"(Cannot|can'?t) (move|copy) .{0,40}(quantized|offloaded) (model|module)|loaded with `?accelerate`? and "
        r"therefore cannot be moved to a specific device|cannot cast a bitsandbytes model in a new `?dtype",
        weak=(r"shapes cannot be multiplied \(\d+x\d+ and 1x\d{6,}\)",),  # two 4-bit weights in each byte of one row
        meaning="4-bit and 8-bit models, and models with device_map or offloading, are placed while they load.",
        fix="remove .to() and .cuda() of the model, and diffusers' enable_…_cpu_offload(), which calls them. "
        'device_map={"": 0} in from_pretrained uses one GPU for all. For several GPUs start a Trainer by torchrun',
    ),
    proof(
        "tensor.pin",
        "a tensor outside host memory cannot be pinned",
        r"Need to provide pin_memory allocator",
        r"only (dense )?CPU (tensors|memory) can be pinned|Pin memory is only supported for CPU tensors",
        meaning="The dataset returns tensors on the GPU, and the DataLoader has pin_memory=True.",
        fix="keep the dataset's tensors on the CPU, or set pin_memory=False",
    ),
    proof(
        "tensor.device_string",
        "torch does not know this device name",
        r"Invalid CUDA '?(--)?device ?=?'?cuda'? requested|Invalid device string",
        r"Expected one of cpu, cuda, ipu, xpu|Device string must not be empty",
        meaning="Devices are cpu, cuda, cuda:1, mps, xpu and meta. YOLOv5 and similar take only the GPU's number.",
        fix="write cuda, cuda:0, cpu, mps or xpu (YOLOv5: --device 0). gpucheck devices shows torch's name of each",
    ),
    proof(
        "mps.operation",
        "an operation does not exist for Apple's GPU (Metal)",
        r"MPS backend is (only )?supported on Mac ?OS|MPS(NDArray|Graph)\w*\.mm:\d+: ?failed "
        "assertion(?!.{0,200}(total bytes|not large enough|product of dim|INT_MAX))|Device mps not supported|is not "
        "current(ly)? (implemented|supported).{0,60}(for|on|at) the MPS (device|backend)|LLVM ERROR: Failed to infer "
        r"result type|The operator 'aten::\w+.{0,40}MPS",
        r"not (yet )?(implemented|supported) (on|for|at|by|with) (the )?MPS\b|\bMPS: \w+ .{0,60}not (supported|"
        r"implemented)|\bMPS: .{0,60}is supported natively starting from macOS|\bMPS does not support \w+ (op|"
        r"operation|operator)\b",
        meaning="This release of torch has no Metal code for it.",
        fix="pip install -U torch first, because each release adds operations. Else set PYTORCH_ENABLE_MPS_FALLBACK=1 "
        'before Python starts, or call .to("cpu"), to compute it on the CPU; or update macOS',
    ),
    hint(
        "mps.command_buffer",
        "Metal ended the work on Apple's GPU with an error",
        r"\[METAL\] Command buffer execution failed(?!.{0,5}Insufficient)",
        r"failed assertion \W?commit an already committed command buffer",
        r"ggml_metal\w*: error: failed to (create|allocate)|command buffer exited with error status",
        r"kIO(GPU|Accel)CommandBufferCallbackError(?!OutOfMemory)\w+|Caused GPU (Hang|Timeout|Address Fault) Error",
        meaning="A kernel ran too long or used memory outside its own, or another program failed. Results are lost.",
        fix="use a smaller batch and nothing else on the GPU; gpucheck smoke tells whether it still fails",
        follows=("oom.mps",),
    ),
    hint(
        "mps.wrong",
        "Apple's GPU (Metal) computes another result than the CPU",
        weak=(
            r"\bMPS\b.{0,200}\b(wrong|different|incorrect|garbage|inconsistent|zero|noisy?) (result|output|mask|image|"
            r"value|prediction|number|answer)|\b(wrong|different|incorrect|inconsistent) (results?|outputs?|values?|"
            r"predictions?)\b.{0,80}\b(mps|apple silicon|m[1-4] (mac|gpu|chip))\b",
        ),
        meaning="Some releases of macOS and torch have a faulty Metal kernel. Small differences in float16 are normal.",
        fix="run the same on the CPU and print(torch.allclose(a.cpu(), b, atol=1e-3)) after each part to find the "
        "operation. Then x.contiguous() or float32 before it, the CPU for it, or another torch or macOS",
        follows=("mps.", "oom.mps"),
    ),
    proof(
        "mps.dtype",
        "Apple's GPU (Metal) does not have this data type",
        r"Cannot convert a MPS Tensor to float64|MPS framework doesn'?t support float64",
        r"Trying to convert \w+ to the MPS backend but it does not have support for that dtype",
        r"(Undefined type|MPS does not support) \W?(Float8|BFloat16|Complex|ComplexDouble)\w*",
        r"BFloat16 is not supported on MPS|does not support input type \W?\w+\W? in (the )?MPS backend",
        r"(Float8|float8|fp8)\w*.{0,60}\bMPS\b.{0,60}(not support|unsupported|does not)",
        r"\bMPS (backend|device|framework) .{0,30}(does not|doesn'?t) support \W?(float8|bfloat16|complex|int64)",
        meaning="Metal has no float64 (NumPy's default) and no float8. Older macOS lacks bfloat16 and complex numbers.",
        fix="call x.float() before .to('mps') for float64 (NumPy: a.astype('float32')). Else compute it on the CPU",
    ),
    proof(
        "amp.unscale",
        "the gradient scaler was given float16 gradients",
        r"Attempting to unscale FP16 gradients",
        meaning="A GradScaler needs float32 weights, with float16 only in autocast.",
        fix="keep the trained weights in float32 (no .half(); diffusers: cast_training_params(model)) under "
        "torch.autocast, or use bfloat16 without a scaler",
    ),
    strong(
        "amp.bfloat16",
        "this device or torch has no bfloat16",
        r"Your setup doesn'?t support bf16/gpu|Current CUDA Device does not support bfloat16|(bf16|bfloat16) "
        r".{0,30}(is )?(only )?(not )?supported (on|by|with) (this|your|the|Ampere|CUDA|GPU)|(bf16|bfloat16) "
        r".{0,20}requires?(?!s?.target) .{0,20}(Ampere|compute capability|sm_?80)|Your device does not support bf16",
        meaning="GPUs have bfloat16 from compute capability 8.0 on. A torch for the CPU sees no GPU at all.",
        fix="before Ampere use --fp16 instead of --bf16 (vLLM: --dtype half, dtype='half'; LLaMA-Factory: vllm_dtype "
        "or infer_dtype float16). On a newer GPU python -c 'import torch; print(torch.version.cuda, "
        "torch.cuda.get_device_capability())' shows what torch sees",
    ),
    proof(
        "attention.kernel",
        "no attention kernel fits these inputs",
        r"FlashAttention.{0,20}with FP8 KV cache (is )?not (yet )?supported|(attention )?backends? (\S+ )?(are|is) not "
        "valid for|Invalid attention backend for (cuda|rocm|xpu)|No valid attention backend|No valid attention "
        "backend found.{0,800}compute capability not supported|attention sinks? (is|are) only supported on|attention "
        r"backend .{0,60}(is not supported|does not support) (on|for|this|the|sm)|No available kernel\. ?Aborting "
        "execution|FlashInfer Internal Error: Invalid configuration|No viable backend for "
        "scaled_dot_product_attention was found|No dot product attention support for the provided|is not supported "
        r"because: ?(device=cpu|dtype=torch|attn_bias|max\(query)|No operator found for this attention|no kernel found "
        "to launch|FlashAttention (forward |backward )?(only )?(supports?|for) head dim|Expected (query|q), (key|k),? "
        "and (value|v).{0,40}head (dim|size)|(Flash|Mem efficient|Memory efficient) attention kernel not used because|"
        r"Unsupported KV type combination|Unsupported max_mma_kv|cannot run the operation \(CPY\)",
        meaning="The allowed kernels do not support its data type, its head size, its mask or this GPU.",
        fix="read the warnings above, which say why each kernel was rejected (TransformerEngine: NVTE_DEBUG=1 "
        'NVTE_DEBUG_LEVEL=2). attn_implementation="sdpa", or SDPBackend.MATH, takes any input',
    ),
    proof(
        "attention.flash",
        "FlashAttention does not run on this GPU",
        r"could not determine CUDA architecture|(sage|flash)[-_ ]?att\w* (is )?not (a )?new enough|only supported (in|"
        r"by|with|on) (FlashAttention|FA)[- ]?[34]|Unsupported CUDA architecture: ?sm_?\d+|Flash ?Attention-?\d (is "
        r")?only supported on|FlashAttention-?\d? only supports (AMD MI|Ampere|Hopper|Turing)|Flash ?Attention-?\d? "
        r"(only support|requires?|needs?) .{0,40}(Ampere|Hopper|capability|sm_?\d\d)|Expected is_sm\w+ ?(\|\| "
        r"?is_sm\w+ ?)*to be true|FlashAttention backward for head dim > \d+ requires|Flash ?Attention ?[\d.]* "
        "requires compute capability|(Flash|Mem Efficient) attention only supports gpu architectures in the range",
        r"requires Flash Attention enabled models",
        r"\bFA ?[234] is only supported on|(Flash ?Attention|\bFA)-?[34] (is )?not supported (on|for) (this|your|the)",
        meaning="FlashAttention 2 needs 8.0 or newer with 16 bits, 3 a Hopper GPU (9.0), 4 Hopper or Blackwell.",
        fix='set attn_implementation="sdpa" in from_pretrained, or the program\'s option for another attention backend '
        "(exllamav2: pip uninstall flash-attn; TGI: no --num-shard). nvidia-smi --query-gpu=name,compute_cap "
        "--format=csv shows the GPU's",
        wraps=(r"Error running sage attention",),
    ),
    proof(
        "attention.dtype",
        "FlashAttention got a data type other than float16 or bfloat16",
        r"Flash ?Attention[- ]?[\d.]* only supports? (torch\.)?(float16|fp16) and (torch\.)?(bfloat16|bf16)",
        r"Input tensors must be in dtype of torch\.float16 or torch\.bfloat16",
        meaning="The query, key or value is float32: the model was loaded as float32, or a norm or adapter casts it.",
        fix="use dtype=torch.bfloat16 (older: torch_dtype=) in from_pretrained, or torch.autocast around the call",
    ),
    proof(
        "dtensor.mixed",
        "an operation got a sharded tensor beside a plain one",
        r"mixed torch\.Tensor and DTensor",
        r"Tensor'? object has no attribute \W?(full_tensor|to_local)\b",
        meaning="FSDP2 and tensor parallelism make parameters DTensors. Tensors outside the wrapped module stay plain.",
        fix="call the wrapped module instead of using its parameters directly. Else use distribute_tensor(x, mesh, "
        "[Replicate()]) for the plain tensor, or p.full_tensor() for the sharded one",
    ),
)
