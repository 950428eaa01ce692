"""Texts about full memory in every wording, and about sizes that exceed any memory."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import CUDA_SAYS, SMALLER

_FINDS = "gpucheck find-batch-size path/to/model.py:make_model finds the largest batch that fits"
_FITS = f"{SMALLER}, end other programs on the GPU; {_FINDS}"
_OTHERS = f"gpucheck devices --processes (or nvidia-smi) shows other processes that hold memory; {SMALLER}; {_FINDS}"
# Names in the kernel's log of Python processes and of model servers.
_OURS = r"\(?(python|pt_|ray|vllm|sglang|torchrun|accelerate|deepspeed|VLLM|llama|ollama|jupyter|ipython)"

TEXTS: tuple[Condition, ...] = (
    Condition(
        id="oom.cuda",
        title="GPU memory is full",
        patterns=(
            r"HAMI-core ERROR.{0,80}\bOOM \d",
            r"OutOfMemoryError.{0,40}Allocation on device|you ran out of memory on your GPU",
            r"Not enough memory, use lower resolution|Not enough memory\b.{0,80}Need: ?[\d.]+ ?[GM]i?B",
            r"CUDA out of memory|(?<!out of memory\.)Tried to allocate .{1,20}\(GPU \d+; .{1,20}total capacity",
            CUDA_SAYS + r"out of memory",
            r"\bCuda Error in \S*allocate\S*: 2\b",
            r"\A\W*(my |the )?(cuda|gpu|vram|torch|pytorch)( memory)?( is| went| ran| error)*\W*(oom|out|full)\b",
            r"\b(cuda|gpu|vram|torch) ?(oom|out of memory|memory is full|memory full)\b",
            r"(oom|out of memory|no memory( left)?|memory is full) on (the |my )?(gpu|cuda)",
            r"(unable|failed) to allocate (CUDA\d* |GPU |cuda |device |backend )(buffer|memory|backend buffer)",
            r"out of memory on device cuda",
            r"RESOURCE[_ ]?EXHAUSTED: Out of memory (while trying to allocate|allocating)",
            r"RESOURCE[_ ]?EXHAUSTED: Failed to allocate request for|(CUDA|RMM)_ERROR_OUT_OF_MEMORY",
            r"Allocation on device ?\d* ?would exceed allowed memory|OOM when allocating tensor",
            r"insufficient memory on requested size of \d+ detected for tactic|GPU memory allocation error during",
            r"\bOut of GPU memory\b|RayTaskError\(OutOfMemoryError\)",
            r"CUDA memory allocation failed|OutOfGPUMemoryError|out_of_memory: CUDA error",
            r"Requested amount of GPU memory .{0,30}could not be allocated",
            r"insufficient (GPU|CUDA|video|VRAM) ?memory|Cuda (Runtime|Driver) \(out of memory\)",
            r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate(?!.{0,200}not a failure)",
        ),
        meaning="The program requested more GPU memory than was free: its tensors, its cache or other processes fill "
        "the GPU. torch's message tells which: 'allocated by PyTorch', 'reserved but unallocated', 'process N has'. "
        "If the reserved part is large, memory is fragmented, and " + messages.EXPANDABLE_SEGMENTS + " helps.",
        fix=_OTHERS,
        certainty="proof",
        common=(r"Maximum pool size exceeded|Out of memory allocating [\d,]+ bytes",),
        follows=("oom.hip",),
    ),
    Condition(
        id="oom.hip",
        title="AMD GPU memory is full",
        patterns=(
            r"HIP out of memory|(HIP|ROCm) error: out of memory|Triton Error \[HIP\]: .{0,20}out of memory",
            r"hipError(OutOfMemory|MemoryAllocation)|hipMalloc\w*\(.{0,60}(out of memory|CUDA error)",
            r"(CUDA|HIP) error: out of memory.{0,200}hipMalloc|unable to allocate ROCm\d* buffer",
        ),
        meaning="torch asked ROCm for more than was free on the device.",
        fix=_OTHERS.replace("gpucheck devices --processes (or nvidia-smi)", "rocm-smi --showpids"),
        certainty="proof",
    ),
    Condition(
        id="oom.xpu",
        title="Intel GPU memory is full",
        patterns=(
            r"(DPCPP|XPU) out of memory",
            messages.LEVEL_ZERO,
            r"PI_ERROR_(MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_HOST_MEMORY)",
        ),
        meaning="torch asked Intel's driver (Level Zero) for more than was free on the device or on the host.",
        fix=_FITS,
        certainty="proof",
    ),
    Condition(
        id="oom.mps",
        title="Apple GPU memory is full (Metal)",
        patterns=(
            r"\[METAL\].{0,60}Insufficient Memory|command buffer \d+ failed with status \d.{0,60}Insufficient Memory",
            r"MPS backend out of memory|Failed to allocate private MTLBuffer",
            r"kIO(GPU|Accel)CommandBufferCallbackErrorOutOfMemory",
        ),
        meaning="Metal shares the machine's memory and torch limits its part of it. The message names the limit.",
        fix=_FITS,
        certainty="proof",
    ),
    Condition(
        id="oom.mps_buffer",
        title="one tensor is larger than Metal allows",
        patterns=(
            r"\[metal::malloc\] Attempting to allocate \d+ bytes|product of dimension sizes > 2\*\*31",
            messages.MPS_BUFFER + r" ?[\d.]+ ?[KMGT]i?B",
            r"total bytes of NDArray > 2\*\*32|buffer is not large enough\. Must be \d+ bytes",
            r"MPSGraph does not support tensor dims larger than INT_MAX",
        ),
        meaning="Metal limits the size of a single buffer, even if more memory is free.",
        fix="make the tensor smaller: a smaller batch, a shorter sequence, or computed in parts",
        certainty="proof",
    ),
    Condition(
        id="oom.cpu",
        title="host memory (RAM) is full",
        patterns=(messages.CPU_ALLOCATOR,),
        meaning="A tensor on the CPU could not be allocated: the machine's, the container's or the shell's limit "
        "(ulimit -v) is reached.",
        fix="ask for less at once: print the shape, it may be wrong; free -h and top show who else uses the RAM, "
        "gpucheck memory --device cpu the limits",
        certainty="proof",
    ),
    Condition(
        id="oom.host",
        title="host memory (RAM) is full",
        patterns=(
            r"(\(os|\[Win) ?error 1455|CUDA out of memory.{0,20}(host|pinned)|cudaHostAlloc.{0,60}out of memory",
            r"(" + messages.PINNED + r").{0,600}" + messages.OF_RUNTIME,
            messages.OF_RUNTIME + r".{0,600}cudaHost(Alloc|Register)",
            r"pin_memory=True\)?.{0,40}" + messages.OF_RUNTIME,
            r"\A.{0,70}std::bad_alloc.{0,30}\Z|\A\W*MemoryError\W*\Z",
        ),
        meaning="The process asked the system for memory and got none: the machine's, the container's or the "
        "shell's limit is reached. It is RAM, not the GPU's memory.",
        fix="fewer DataLoader workers, a smaller prefetch_factor or a smaller data set in memory; free -h and gpucheck "
        "memory --device cpu show the limits. On Windows (WinError 1455) use a larger paging file",
        common=(
            r"_ArrayMemoryError|Unable to allocate .* for an array with shape",
            r"\b(OSError|RuntimeError): \[Errno 12\]",
            messages.HOST_ALLOCATION,
            # Python, NumPy and C++ use these words after the colon. Other words there may mean anything.
            r"\bMemoryError\b(?!:[ ]?\w)",
            r"\bMemoryError: (bad allocation|(unable|failed) to allocate|could not allocate)",
        ),
        follows=("nccl.infiniband",),
    ),
    Condition(
        id="oom.killed",
        title="the kernel killed the process: RAM was full",
        patterns=(
            r"Kill(ed)? process \d+,? ?" + _OURS,
            r"oom-kill:.{0,300}task=" + _OURS,
            _OURS.removeprefix(r"\(?") + r"[\w.:-]* invoked oom-killer",
            r"oom.?kill event",
            r"\A.{0,40}\bOOMKilled\b.{0,40}\Z",
            r"killed by the cgroup out-of-memory handler",
            r"ran out of memory on the host|host ran out of memory|out of host memory",
            r"requires more system memory .{0,40}than is available",
            r"Workers? (is|was|were|are)? ?(killed|died).{0,60}(memory pressure|low on memory|OOM)",
            r"ray\.exceptions\.OutOfMemoryError|[1-9]\d* Workers? \(tasks ?/ ?actors\) killed due to memory pressure",
            r"exceeds the memory usage threshold of .{0,40}Ray killed",
        ),
        meaning="The kernel's out-of-memory killer, or the container's limit, ended it with SIGKILL (9, or 137 in a "
        "shell). It is RAM, not the GPU's memory.",
        fix="fewer DataLoader workers, a smaller prefetch_factor, weights that are loaded once per machine (mmap, "
        "low_cpu_mem_usage), or a higher limit of the container or job (docker --memory, Kubernetes limits.memory, "
        "Slurm --mem); sudo dmesg | grep -i -e oom -e killed names the process and what it held",
        common=(
            r"Out of memory: Kill(ed)? process|oom-kill:|invoked oom-killer|oom_reaper: reaped process|OOMKilled",
            r"Memory cgroup out of memory|SIGKILL.{0,40}(probably|likely|possibly|perhaps).{0,20}memory",
            r"systemd-oomd .{0,80}killed",
        ),
    ),
    Condition(
        id="process.killed",
        title="the process was killed from outside (SIGKILL)",
        patterns=(
            r"A worker died or was killed while executing",
            r"\bactor (is dead|died)\b|its worker process has died",
            r"Worker exit type: (SYSTEM_ERROR|NODE_OUT_OF_MEMORY)",
            r"(exitcode ?:|exits with return code =) ?-9\b",
            r"Signal 9 \(SIGKILL\)|process \d+ terminated with signal (9|SIGKILL)|\A\W*killed\W*\Z",
            r"\bexit(ed with)?( status| code)?:? ?137\b",
            r"interrupted by signal 9",
        ),
        meaning="Signal 9 ended it without a message: usually the kernel's OOM killer (RAM, not GPU memory), or a "
        "scheduler's limit.",
        fix="sudo dmesg -T | grep -i -e oom -e 'killed process' on that machine tells whether it was memory: then "
        "fewer workers, or a higher limit; the scheduler's log (sacct, kubectl describe pod) tells the rest",
        symptom=True,
        common=(
            r"(exit|return) ?code ?[=:]? ?-9\b|^Killed$|line \d+: +\d+ Killed\b|\[\d+\] ?[+-]? ?\d+ killed\b",
            r"\bSIGKILL\b|exit(ed with)?( status| code)?:? ?-9\b",
        ),
        follows=(
            *("oom.", "build.", "cuda.", "nccl.", "loader.", "xid.", "assert.", "import.", "shm.", "vllm."),
            "sglang.",
        ),
    ),
    Condition(
        id="oom.nccl",
        title="NCCL found no memory left on the GPU",
        patterns=(r"Cuda failure (\d+ )?'out of memory'|NCCL (WARN|error.{0,300}) ?Failed to CUDA (m|c)alloc",),
        meaning="NCCL allocates its buffers on the GPU beside torch's memory, but torch had already taken that memory.",
        fix="leave memory free: use a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9) before the "
        "first collective",
        certainty="proof",
    ),
    Condition(
        id="oom.cublas",
        title="cuBLAS found no memory left on the GPU",
        patterns=(
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"\bcuBLAS (error|failure|status)( code)?:? ?\(?3\b",
            r"(CUDA error|cublas runtime error ?): (the )?resource allocation failed",
        ),
        meaning="cuBLAS needs memory for its handle and workspace beside torch's cache, and none was left.",
        fix=_OTHERS,
    ),
    Condition(
        id="oom.cudnn",
        title="cuDNN found no memory left",
        patterns=(r"CUDNN_STATUS_ALLOC_FAILED",),
        meaning="cuDNN could not allocate what it needs, on the GPU or on the host.",
        fix=_OTHERS,
    ),
    Condition(
        id="oom.nvml_assert",
        title="torch could not ask NVML while it was out of memory",
        patterns=(
            r"NVML internal assert.{0,60}(OOM|out of memory)",
            r"NVML_SUCCESS == (r\b|DriverAPI)",
            r"NvMapMemAlloc\w* ?: ?.{0,30}error 12",
        ),
        meaning="Memory was full first. While torch built its out-of-memory message it called NVML, which does not "
        "answer on MIG instances and on Jetson.",
        fix=_FITS,
    ),
    Condition(
        id="oom.onednn",
        title="oneDNN could not set up an operation",
        patterns=(messages.ONEDNN,),
        meaning="On the CPU the host's memory is usually full. Otherwise oneDNN does not support the shape or data "
        "type.",
        fix="try a batch of 1: if that works it was memory, and gpucheck find-batch-size --device cpu finds what fits",
        certainty="hint",
    ),
    Condition(
        id="oom.handles",
        title="a library's handle could not be created",
        patterns=(messages.HANDLES, messages.NOT_READY),
        meaning="It is seen where the GPU's memory is nearly full, as the first call of a library makes its handle.",
        fix=_OTHERS,
        certainty="hint",
    ),
    Condition(
        id="oom.aot",
        title="a model compiled ahead of time failed inside",
        patterns=(messages.AOT_RUN,),
        meaning="The runner hides the cause; out of memory is the most frequent one.",
        fix="CUDA_LAUNCH_BLOCKING=1 and the same input again; then a smaller one",
        certainty="hint",
        symptom=True,
    ),
    Condition(
        id="oom.vllm",
        title="vLLM or SGLang finds too little free GPU memory",
        patterns=(
            r"at least one request with the models?'?s? max seq len",
            r"reserved for KV Cache is -[\d.]+ ?GiB|No available memory for the cache blocks",
            r"Free memory on device.{0,60}is less than desired GPU memory utilization",
            r"max seq len.{0,60}is larger than the maximum number of tokens that can be stored in KV cache",
            r"KV cache is needed, which is larger than the available KV cache memory",
            r"Try increasing gpu_memory_utilization|CUDA out of memory occurred when warming up sampler",
            r"(?<!Automatically )(increas|decreas|reduc|lower)(e|ing) .{0,4}mem.fraction.static",
            r"max_total_tokens=\d+ is larger than the profiled value",
            r"Error in memory profiling\. .{0,40}Initial free memory",
            r"\b(alloc_\w+|Prefill|Decode) (runs |ran )?out of memory\b",
            r"KV cache pool is full\. ?Retract requests|No space left for only one request",
            r"is preempted by PreemptionMode\.|exceeds available Mamba cache blocks",
            r"Insufficient memory to allocate KV-caches|leave no GPU memory for the KV cache",
        ),
        meaning="The server sets aside a share of all memory, for weights and then the cache. Others hold memory, or "
        "the weights leave no room.",
        fix="nvidia-smi shows what else holds memory: end it; then a smaller vLLM --max-model-len (SGLang "
        "--context-length), a larger vLLM --gpu-memory-utilization 0.95 (SGLang --mem-fraction-static), a quantised "
        "or smaller model, or more GPUs by vLLM --tensor-parallel-size (SGLang --tp)",
        logged=True,
    ),
    Condition(
        id="oom.other",
        title="something ran out of memory",
        patterns=(
            r"\bGot an OOM\b|out of memory error, emptying cache",
            r"ggml_backend_\w+: failed to allocate|failed to allocate buffer, size = [\d.]+",
            r"(allocateMemory|vkAllocateMemory|createBuffer)\W{0,4}.{0,20}OutOf(Device|Host)Memory",
            r"\bVK_ERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY",
            r"ErrorOutOf(Device|Host)Memory|unable to allocate Vulkan\d* buffer",
            r"\b(Cuda|Hip|XPU|torch\.|torch\.cuda\.)OutOfMemoryError\b",
            r"not enough GPU (video )?memory|(enough|more) GPU (RAM|memory|VRAM) to fit the (quantized )?model",
            r"cuda_host_malloc: failed to allocate|BFCArena::AllocateRawInternal|C10 Out of Memory",
            messages.HPU,
            r"Failed to allocate memory for requested buffer of size",
            r"\A\W*(an? |the )?(oom|out of memory)\b( error| killed me)?\W*\Z",
            r"\b(train\w*|model|batch|inference|the job) (?!.{0,40}\b(not|never|no|nothing|without|\w+snt|dont)"
            r"\b).{0,40}(ran|runs|running|goes|went) (out of memory|oom)\b",
            r"ggml_vulkan: Device memory allocation of size \d+ failed",
        ),
        meaning="The text does not say whether the GPU's or the host's memory is full.",
        fix="paste the whole message: torch's own says whose memory is full; nvidia-smi shows the GPU's, free -h the "
        "host's",
        certainty="hint",
        symptom=True,
        weak=(r"out ?of ?memory", r"(fail\w*|unable|cannot) to allocate \w* ?(memory|buffer|tensor|[\d.]+ ?[KMGT]i?B)"),
        common=(
            r"(error|fail(ed|ure)?|ran|runs|running)[^a-z]{0,3}(.{0,20}[^a-z])?out of memory\b",
            r"\bout of memory (error|while|when|trying|allocating)|(?<![\w.])OutOfMemoryError\b|\boom\b(?![ -]?kill)",
        ),
        follows=("kernel.nvrm",),
    ),
    Condition(
        id="size.grid",
        title="a kernel was started with a size that CUDA does not allow",
        patterns=(
            r"(CUDA|HIP)\w*( driver| runtime)? ?(error|failure).{0,12}" + messages.GRID,
            r"(cuda|hip)ErrorInvalidConfiguration",
        ),
        meaning="A dimension of the grid or of a block is beyond its limit (65 535 for the second and third), or "
        "zero. It is seen in attention with batch times heads beyond 65 535. More memory does not help.",
        fix="use a smaller batch, or compute in parts",
        common=(messages.GRID,),
    ),
    Condition(
        id="size.index",
        title="a tensor has more elements than the operation can count",
        patterns=(
            r"Can'?t be indexed using 32-bit iterator",
            r"\b(than|exceeds?) INT_MAX (elements|threads|values|entries)\b",
            r"(tensors?|elements|large|more|not) .{0,60}32-bit ind(ex|ices)",
            r"canUse32BitIndexMath|RuntimeError: integer out of range",
        ),
        meaning="Some operations count in 32 bits, to 2³¹ elements. More memory does not help.",
        fix="use a smaller batch, or compute in parts",
        common=(r"\bINT_MAX\b",),
    ),
    Condition(
        id="size.storage",
        title="the sizes of a tensor multiply to more than 64 bits hold",
        patterns=(messages.STORAGE_SIZE,),
        meaning="A size is far too large. Usually a length is wrong, or it is a product of two wrong dimensions.",
        fix="print the shape before the line that fails",
        certainty="proof",
    ),
)
