"""Texts about full memory in every wording, and about sizes that exceed any memory."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import CUDA_SAYS, SMALLER, hint, proof, strong

_FINDS = "gpucheck find-batch-size path/to/model.py:make_model finds the largest batch that fits"
_FITS = f"{SMALLER}, and end other programs on the GPU; {_FINDS}"
_OTHERS = f"gpucheck devices --processes (or nvidia-smi) shows other processes that hold memory; {SMALLER}; {_FINDS}"
# Names in the kernel's log of Python processes and of model servers.
_OURS = r"\(?(python|pt_|ray|vllm|sglang|torchrun|accelerate|deepspeed|VLLM|llama|ollama|jupyter|ipython)"

TEXTS: tuple[Condition, ...] = (
    proof(
        "oom.cuda",
        "GPU memory is full",
        r"(OutOfMemoryError|executing \w{1,50}:).{0,40}Allocation on device|you ran out of memory on your GPU|CUDA out "
        r"of memory|(?<!out of memory\.)Tried to allocate .{1,20}\(GPU \d+; .{1,20}total capacity|(oom|out of memory|"
        r"no memory( left)?|memory is full) on (the |my )?(gpu|cuda)|(unable|failed) to allocate ((CUDA|Vulkan)\d*|GPU|"
        "device|backend) (buffer|memory|backend buffer)|out of memory on device cuda|RESOURCE[_ ]?EXHAUSTED: Out of "
        "memory (while trying to allocate|allocating)|RESOURCE[_ ]?EXHAUSTED: Failed to allocate request for|(CUDA|"
        r"RMM)_ERROR_OUT_OF_MEMORY|Allocation on device ?\d* ?would exceed allowed memory|OOM when allocating tensor|"
        r"insufficient memory on requested size of \d+ detected for tactic|GPU memory allocation error during|CUDA "
        "memory allocation failed|OutOfGPUMemoryError|out_of_memory: CUDA error|Requested amount of GPU memory "
        r".{0,30}could not be allocated|on GPU:\d+ failed\. Status: out of memory|insufficient (GPU|CUDA|video|VRAM) "
        r"?memory|Cuda (Runtime|Driver) \(out of memory\)|Allocator \(GPU_\d+_bfc\) ran out of memory trying to "
        "allocate(?!.{0,200}not a failure)|Dst tensor is not initialized|(insufficient|not enough) (GPU|CUDA|video|"
        "VRAM) ?(video )?memory|Insufficient (free )?VRAM(?! ?of)",
        r"HAMI-core ERROR.{0,80}\bOOM \d|Not enough memory, use lower resolution|Not enough memory\b.{0,80}Need: "
        r"?[\d.]+ ?[GM]i?B|\bCuda Error in \S*allocate\S*: 2\b|\A\W*(my |the )?(cuda|gpu|vram|torch|pytorch)( "
        r"memory)?( is| went| ran| error)*\W*(oom|out|full)\b|\b(cuda|gpu|vram|torch) ?(ran |run )?(oom|out of memory|"
        r"memory is full|memory full)\b|\boom( error)?s? .{0,20}\bvram\b|\bOut of GPU memory\b|"
        r"RayTaskError\(OutOfMemoryError\)(?!: Task was)|reason: out of memory\b|\bPxg\w*Allocator fail to allocate "
        "memory",
        CUDA_SAYS + r"out of memory",
        meaning="The program requested more GPU memory than was free. torch's message shows what fills the GPU: "
        "'allocated by PyTorch', 'reserved but unallocated', or 'process N has'. If the reserved part is large, memory "
        f"is fragmented, and {messages.EXPANDABLE_SEGMENTS} helps.",
        fix=_OTHERS,
        common=(r"Maximum pool size exceeded|Out of memory allocating [\d,]+ bytes",),
        follows=("oom.hip", "memory.block"),
    ),
    proof(
        "oom.hip",
        "AMD GPU memory is full",
        r"HIP out of memory|(HIP|ROCm) error: out of memory|Triton Error \[HIP\]: .{0,20}out of memory",
        r"hipError(OutOfMemory|MemoryAllocation)|hipMalloc\w*\(.{0,60}(out of memory|CUDA error)",
        r"(CUDA|HIP) error: out of memory.{0,200}hipMalloc|unable to allocate ROCm\d* buffer",
        meaning="torch requested more than was free on the device.",
        fix=_OTHERS.replace("gpucheck devices --processes (or nvidia-smi)", "rocm-smi --showpids"),
    ),
    proof(
        "oom.xpu",
        "Intel GPU memory is full",
        r"(DPCPP|XPU) out of memory|Exceeded max size of memory object allocation",
        messages.LEVEL_ZERO,
        r"PI_ERROR_(MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_HOST_MEMORY)",
        meaning="torch requested more than was free on the device or on the host.",
        fix=_FITS,
    ),
    proof(
        "oom.mps",
        "Apple GPU memory is full (Metal)",
        r"\[METAL\].{0,60}Insufficient Memory|command buffer \d+ failed with status \d.{0,60}Insufficient Memory",
        r"MPS backend out of memory|Failed to allocate private MTLBuffer",
        r"kIO(GPU|Accel)CommandBufferCallbackErrorOutOfMemory",
        meaning="Metal shares the machine's memory, and torch limits its share. The message names the limit.",
        fix=_FITS,
    ),
    proof(
        "oom.mps_buffer",
        "one tensor is larger than Metal allows",
        r"\[metal::malloc\] Attempting to allocate \d+ bytes|product of dimension sizes > 2\*\*31",
        messages.MPS_BUFFER + r" ?[\d.]+ ?[KMGT]i?B",
        r"total bytes of NDArray > 2\*\*32|buffer is not large enough\. Must be \d+ bytes",
        r"MPSGr?aph does not support tensor dims larger than INT_MAX",
        meaning="Metal limits the size of a single buffer, even if more memory is free.",
        fix="make the tensor smaller: use a smaller batch or a shorter sequence, or compute it in parts",
    ),
    proof(
        "oom.cpu",
        "host memory (RAM) is full",
        messages.CPU_ALLOCATOR,
        meaning="A tensor on the CPU exceeds the machine's, the container's or the shell's limit (ulimit -v).",
        fix="print the shape: it may be wrong. free -h, top show who uses RAM, gpucheck memory --device cpu the limit",
    ),
    strong(
        "oom.host",
        "host memory (RAM) is full",
        r"(\(os|\[Win) ?error 1455|CUDA out of memory.{0,20}(host|pinned)|cudaHostAlloc.{0,60}out of memory",
        r"(" + messages.PINNED + r").{0,600}" + messages.OF_RUNTIME,
        messages.OF_RUNTIME + r".{0,600}cudaHost(Alloc|Register)",
        r"pin_memory=True\)?.{0,40}" + messages.OF_RUNTIME,
        r"\A.{0,70}std::bad_alloc(?!: out_of_memory: CUDA).{0,30}\Z|\A\W*MemoryError\W*\Z",
        meaning="The limit of RAM of the machine, container or shell is reached, not that of GPU memory.",
        fix="use fewer DataLoader workers, a smaller prefetch_factor or a smaller data set in memory. free -h and "
        "gpucheck memory --device cpu show the limits. On Windows (WinError 1455) use a larger paging file",
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
    strong(
        "oom.killed",
        "the kernel killed the process: RAM was full",
        r"Kill(ed)? process \d+,? ?" + _OURS,
        r"oom-kill:.{0,300}task=" + _OURS,
        _OURS.removeprefix(r"\(?") + r"[\w.:-]* invoked oom-killer",
        r"oom.?kill event|killed by the cgroup out-of-memory handler|ran out of memory on the host|"
        r"host ran out of memory|out of host memory|requires more system memory .{0,40}than is available|Workers? (is|"
        r"was|were|are)? ?(killed|died).{0,60}(memory pressure|low on memory|OOM)|ray\.exceptions\.OutOfMemoryError|"
        r"[1-9]\d* Workers? \(tasks ?/ ?actors\) killed due to memory pressure|"
        r"exceeds the memory usage threshold of .{0,40}Ray killed|killed due to the node running low on memory",
        r"\A.{0,40}\bOOMKilled\b.{0,40}\Z",
        r"\bsrun: error: .{0,60}\btasks? [\d,-]+: Out Of Memory",
        meaning="The OOM killer or the container's limit ended it with SIGKILL (9 or 137): RAM, not GPU memory.",
        fix="use fewer DataLoader workers or a smaller prefetch_factor, load weights once per machine (mmap, "
        "low_cpu_mem_usage), or raise the container's or job's limit (docker --memory, Kubernetes limits.memory, Slurm "
        "--mem); sudo dmesg | grep -i -e oom -e killed names the process and its memory",
        common=(
            r"Out of memory: Kill(ed)? process|oom-kill:|invoked oom-killer|oom_reaper: reaped process|OOMKilled",
            r"Memory cgroup out of memory|SIGKILL.{0,40}(probably|likely|possibly|perhaps).{0,20}memory",
            r"systemd-oomd .{0,80}killed",
        ),
    ),
    strong(
        "process.killed",
        "the process was killed from outside (SIGKILL)",
        r"A worker died or was killed while executing|Worker exit type: (SYSTEM_ERROR|NODE_OUT_OF_MEMORY)|Signal 9 "
        r"\(SIGKILL\)|process \d+ terminated with signal (9|SIGKILL)|\A\W*killed\W*\Z|(ed by|down with) signal 9",
        r"\bactor (is dead|died)\b|its worker process has died|(exitcode ?:|exits with return code =) ?-9\b|\bexit(ed "
        r"with)?( status| code)?:? ?137\b",
        meaning="Signal 9 ended it. Usually the OOM killer (RAM, not GPU memory) or a scheduler's limit sent it.",
        fix="sudo dmesg -T | grep -i -e oom -e 'killed process' on that machine tells whether memory was full. If so, "
        "use fewer workers, or raise the limit; else read the scheduler's log (sacct, kubectl describe pod)",
        symptom=True,
        common=(
            r"(exit|return) ?code ?[=:]? ?-9\b|^Killed\.?$|line \d+: +\d+ Killed\b|\[\d+\] ?[+-]? ?\d+ killed\b",
            r"\bSIGKILL\b|exit(ed with)?( status| code)?:? ?-9\b|\berror code -9\b",
        ),
        follows=(
            *("oom.", "build.", "cuda.", "nccl.", "loader.", "xid.", "assert.", "import.", "shm.", "vllm."),
            "sglang.",
        ),
    ),
    proof(
        "oom.nccl",
        "NCCL found no memory left on the GPU",
        r"Cuda failure (\d+ )?'out of memory'|Failed to CUDA (host )?(m|c)alloc",
        meaning="NCCL allocates buffers on the GPU besides torch's memory, and torch had already taken that memory.",
        fix="use a smaller batch; or call torch.cuda.set_per_process_memory_fraction(0.9) before the first collective",
    ),
    strong(
        "oom.cublas",
        "cuBLAS found no memory left on the GPU",
        r"CUBLAS_STATUS_ALLOC_FAILED|(CUDA error|cublas runtime error ?): (the )?resource allocation failed",
        r"\bcuBLAS (error|failure|status)( code)?:? ?\(?3\b",
        meaning="cuBLAS needs memory for its handle and workspace besides torch's cache, and none was left.",
        fix=_OTHERS,
    ),
    strong(
        "oom.cudnn",
        "cuDNN found no memory left",
        r"CUDNN_STATUS_ALLOC_FAILED|CUDA Resources could not be allocated",
        meaning="cuDNN could not allocate what it needs, on the GPU or on the host.",
        fix=_OTHERS,
    ),
    strong(
        "oom.nvml_assert",
        "torch could not ask NVML while it was out of memory",
        r"NVML internal assert.{0,60}(OOM|out of memory)|NvMapMemAlloc\w* ?: ?.{0,30}error 12",
        r"NVML_SUCCESS == (r\b|DriverAPI)",
        meaning="Memory was full. For its message torch called NVML, which does not answer on MIG and Jetson.",
        fix=_FITS,
    ),
    hint(
        "oom.onednn",
        "oneDNN could not set up an operation",
        messages.ONEDNN,
        meaning="On a CPU, usually RAM is full. With an Intel Arc, usually the integrated GPU was used instead.",
        fix="with an Arc GPU, set ONEAPI_DEVICE_SELECTOR=level_zero:N to its number in sycl-ls, or disable the "
        "integrated GPU. On the CPU, try a batch of 1. If it works, run gpucheck find-batch-size --device cpu",
    ),
    hint(
        "oom.handles",
        "a library's handle could not be created",
        messages.HANDLES,
        messages.NOT_READY,
        meaning="A library creates its handle at its first call, which often fails if GPU memory is nearly full.",
        fix=_OTHERS,
    ),
    hint(
        "oom.aot",
        "a model compiled ahead of time failed as it ran",
        messages.AOT_RUN,
        meaning="The runner hides the cause. Full memory is the most frequent one.",
        fix="set CUDA_LAUNCH_BLOCKING=1 and run the same input again, then a smaller one",
        symptom=True,
    ),
    hint(
        "cuda.held",
        "GPU memory is still held after its program ended",
        r"\bC Unknown Error \d{3,}MiB",
        meaning="A child process (DataLoader, a rank, a notebook) or a container still runs. nvidia-smi may hide it.",
        fix="sudo fuser -v /dev/nvidia* on the host lists the holders: kill -9 PID (for a zombie its parent, ps -ef "
        "--forest), or docker stop NAME. Else, with nothing running, sudo nvidia-smi --gpu-reset -i INDEX, or reboot",
        weak=(
            r"zombie process.{0,120}(gpu|cuda)|(gpu|cuda|video) ?(mem\w*|ram) .{0,40}(\bnot|n'?t|still|stays?) "
            r".{0,16}(releas|freed|clear|occup|held|full|used).{0,60}\b(kill|stop|end|exit|terminat|clos|interrupt|"
            r"reboot)|\b(kill|stop|exit|ctrl|interrupt)\w*\b.{0,60}(gpu|cuda|video) ?(mem\w*|ram) .{0,30}(not|n'?t|"
            r"still) (re|f|be|oc)|\bgpus? (were|was|are|is) still (occupied|used|full)|不\w{0,3}释放显存|"
            r"显存.{0,12}占用.{0,20}(没有|看不到).{0,12}进程",
        ),
        follows=("oom.cuda", "cuinit."),
    ),
    hint(
        "disk.full",
        "a disk, its quota or /dev/shm is full: neither GPU memory nor RAM",
        meaning="Checkpoints, caches of models and shared memory of data loading take gigabytes.",
        fix="df -h shows which is full, df -i the inodes. For /dev/shm, docker run --shm-size=8g. Else move caches: "
        "export HF_HOME=FOLDER TMPDIR=FOLDER TORCH_HOME=FOLDER, and pip --no-cache-dir",
        common=(r"No space left on device(?!\. *joblib)|Disk quota exceeded|\[Errno 122\]",),
        follows=("shm.", "nccl."),
    ),
    hint(
        "memory.shared",
        "GPU memory is full, and Windows uses much slower RAM instead (shared GPU memory)",
        r"\bshared (GPU|video) memory\b.{0,90}\b(fill|slow|spill)\w*|\b(uses|into) shared GPU memory|\bsysmem fallback",
        meaning="NVIDIA's driver moves memory to RAM instead of ending the program with out of memory.",
        fix="use a smaller model, batch or picture until Task Manager shows no shared GPU memory. To turn it off, set "
        "NVIDIA Control Panel, Manage 3D settings, CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback",
        weak=(r"\bshared (gpu )?memory\b.{0,60}\bspikes?\b|\bsnail\w* pace\b.{0,200}\bshared (gpu )?memory\b",),
    ),
    hint(
        "oom.grows",
        "memory grows: the program probably keeps tensors of earlier steps",
        meaning="A tensor in a list, a sum of losses or an attribute keeps the whole graph that produced it.",
        fix="in training, add up loss.item() and keep x.detach().cpu(); in inference, call the model under "
        "torch.inference_mode(). print(torch.cuda.memory_allocated()) after each step shows the growth",
        common=(
            r"memory\b.{0,30}\b(is|keeps?) (increas|grow)ing until .{0,20}(OOM|oom|out of)",
            r"\b(gpu|memory) usage (is )?(keep|keeps|keeping|continues|continuously)( to| on)? (grow|increas)",
        ),
        weak=(
            r"\b(rising|growth|increase|leak\w*) (of|in) (the )?(gpu|cuda|vram)( memory)?\b",
            r"\b((gpu|cuda|video) ?(memory|mem|ram)|vram)\b[^.]{0,60}(\b(increas|grow|creep|climb|accumulat|fill)\w*"
            r"[^.]{0,40}\b(each|every|over time|until|continu|constant|step|epoch|iter|request|image)|\b(keep|continu|"
            r"constant|slow|always|is)\w*( \w+)? (adding up|(increas|grow|climb|ris)\w*)|\bnot (released|freed) "
            r"after (every|each|infer))|\b(gpu|cuda|vram)\b[^.]{0,60}\bleak|\bleak\w* [^.]{0,40}\b(gpu|vram)\b|"
            r"\b(ram|memory)\b.{0,200}loss\w* ?\+= ?[\w.]*loss\w*(?!\S*(item|detach))",
        ),
    ),
    strong(
        "oom.vllm",
        "vLLM or SGLang finds too little free GPU memory",
        r"at least one request with the models?'?s? max seq len|reserved for KV Cache is -[\d.]+ ?GiB|No available "
        r"memory for the cache blocks|Free memory on device.{0,60}is less than desired GPU memory utilization|max seq "
        r"len.{0,60}is larger than the maximum number of tokens that can be stored in KV cache|KV cache is needed, "
        r"which is larger than the available KV cache memory|Try increasing gpu_memory_utilization|CUDA out of memory "
        r"occurred when warming up sampler|(?<!Automatically )(increas|decreas|reduc|lower)(e|ing) "
        r".{0,4}mem.fraction.static|max_total_tokens=\d+ is larger than the profiled value|Error in memory profiling\. "
        r".{0,40}Initial free memory|KV cache pool is full\. ?Retract requests|No space left for only one request|is "
        r"preempted by PreemptionMode\.|exceeds available Mamba cache blocks|Not enough memory to handle .{0,20}(total|"
        r"prefill) tokens|tokens\) exceeds the maximum allowed length|Insufficient memory to allocate KV-caches|leave "
        r"no GPU memory for the",
        r"\b(alloc_\w+|Prefill|Decode) (runs |ran )?out of memory\b",
        meaning="Weights and cache share vLLM's memory. Other programs hold memory, or the weights leave no space.",
        fix="nvidia-smi shows other holders of memory: end them. Then use a smaller vLLM --max-model-len (SGLang "
        "--context-length), a larger vLLM --gpu-memory-utilization 0.95 (SGLang --mem-fraction-static), a quantised or "
        "smaller model, or more GPUs by vLLM --tensor-parallel-size (SGLang --tp)",
        logged=True,
    ),
    hint(
        "oom.other",
        "something ran out of memory",
        r"ggml_backend_\w+: failed to allocate|failed to allocate buffer, size = [\d.]+|(allocateMemory|"
        r"vkAllocateMemory|createBuffer)\W{0,4}.{0,20}OutOf(Device|Host)Memory|ErrorOutOf(Device|Host)Memory|unable "
        r"to allocate Vulkan\d* buffer|(enough|more) GPU (RAM|memory|VRAM) to fit the (quantized )?model|"
        r"cuda_host_malloc: failed to allocate|Mi?B of pinned memory: |BFCArena::AllocateRawInternal|C10 Out of "
        r"Memory|Failed to allocate memory for requested buffer of size|bfc_arena\S{1,60} ?Available memory of|"
        r"ggml_vulkan: Device memory allocation of size \d+ failed",
        r"\bGot an OOM\b|out of memory error, emptying cache|\bVK_ERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY|\b(Cuda|Hip|"
        r"XPU|torch\.|torch\.cuda\.)OutOfMemoryError\b|\A\W*(an? |the )?(oom|out of memory)\b( error| killed "
        r"me)?\W*\Z|\b(train\w*|model|batch|inference|the job) (?!.{0,40}\b(not|never|no|nothing|without|\w+snt|"
        r"dont)\b).{0,40}(ran|runs|running|goes|went) (out of memory|oom)\b",
        messages.HPU,
        meaning="The text does not say whether the GPU's or the host's memory was full.",
        fix="paste the whole message: torch's names the memory. nvidia-smi shows the GPU's memory, free -h the RAM",
        symptom=True,
        weak=(r"out ?of ?memory", r"(fail\w*|unable|cannot) to allocate \w* ?(memory|buffer|tensor|[\d.]+ ?[KMGT]i?B)"),
        common=(
            r"(error|fail(ed|ure)?|ran|runs|running)[^a-z]{0,3}(.{0,20}[^a-z])?out of memory\b",
            r"\bout of (vram\b|memory (error|when|while|trying|alloc))|(?<![\w.])OutOfMemoryError\b|\boom\b(?!.?kill)",
        ),
        follows=("kernel.nvrm",),
    ),
    strong(
        "size.grid",
        "a kernel was started with a size that CUDA does not allow",
        r"(CUDA|HIP)\w*( driver| runtime)? ?(error|failure).{0,12}" + messages.GRID,
        r"(cuda|hip)ErrorInvalidConfiguration",
        meaning="A dimension of the grid or block is zero or beyond its limit (65 535). More memory does not help.",
        fix="use a smaller batch, or compute in parts",
        common=(messages.GRID,),
    ),
    strong(
        "size.index",
        "a tensor has more elements than the operation can count",
        r"Can'?t be indexed using 32-bit iterator|(tensors?|elements|large|more|not) .{0,60}32-bit ind(ex|ices)|"
        r"canUse32BitIndexMath|RuntimeError: integer out of range",
        r"\b(than|exceeds?) INT_MAX (elements|threads|values|entries)\b",
        meaning="Some operations count up to 2³¹ elements (32 bits). More memory does not help.",
        fix="use a smaller batch, or compute in parts",
        common=(r"\bINT_MAX\b",),
    ),
    proof(
        "size.storage",
        "the product of a tensor's sizes exceeds 64 bits",
        messages.STORAGE_SIZE,
        meaning="A size is far too large. Usually a length is wrong, or it is the product of two wrong dimensions.",
        fix="print the shape before the line that fails",
    ),
)
