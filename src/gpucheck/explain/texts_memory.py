"""Out of memory, in every wording, and sizes that no memory would help."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.explain.text import CUDA_SAYS, Text, by_code

_FINDS = "gpucheck find-batch-size path/to/model.py:make_model finds the largest batch that fits"
_FITS = f"use a smaller batch or a shorter sequence, end other programs on the GPU; {_FINDS}"
_SMALLER = "use a smaller batch, a shorter sequence, or activation checkpointing"
_OTHERS = f"gpucheck devices --processes (or nvidia-smi) shows other processes that hold memory; {_SMALLER}; {_FINDS}"
# torch 2.9.1 reads the shorter name for the CPU's allocator alone (pytorch issue 183387), newer ones prefer it.
_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (newer torch: PYTORCH_ALLOC_CONF, the same value)"
# What the kernel's log says of a process that is Python's, or of a program that serves models.
_OURS = r"\(?(python|pt_|ray|vllm|sglang|torchrun|accelerate|deepspeed|VLLM|llama|ollama|jupyter|ipython)"

TEXTS: tuple[Text, ...] = (
    Text(
        "oom.cuda",
        "GPU memory is full",
        (
            r"HAMI-core ERROR.{0,80}\bOOM \d",
            r"OutOfMemoryError.{0,40}Allocation on device",
            r"you ran out of memory on your GPU",
            r"CUDA out of memory",
            r"(?<!out of memory\.)Tried to allocate .{1,20}\(GPU \d+; .{1,20}total capacity",
            CUDA_SAYS + r"out of memory",
            r"cudaErrorMemoryAllocation",
            by_code(2),
            r"\bCuda Error in \S*allocate\S*: 2\b",
            r"\A\W*(my |the )?(cuda|gpu|vram|torch|pytorch)( memory)?( is| went| ran| error)*\W*(oom|out|full)\b",
            r"\b(cuda|gpu|vram|torch) ?(oom|out of memory|memory is full|memory full)\b",
            r"(oom|out of memory|no memory( left)?|memory is full) on (the |my )?(gpu|cuda)",
            r"(unable|failed) to allocate (CUDA\d* |GPU |cuda |device |backend )(buffer|memory|backend buffer)",
            r"out of memory on device cuda",
            r"RESOURCE[_ ]?EXHAUSTED: Out of memory (while trying to allocate|allocating)",
            r"RESOURCE[_ ]?EXHAUSTED: Failed to allocate request for",
            r"(CUDA|RMM)_ERROR_OUT_OF_MEMORY",
            r"Allocation on device ?\d* ?would exceed allowed memory",
            r"OOM when allocating tensor",
            r"insufficient memory on requested size of \d+ detected for tactic",
            r"GPU memory allocation error during",
            r"\bOut of GPU memory\b",
            r"CUDA memory allocation failed",
            r"OutOfGPUMemoryError",
            r"out_of_memory: CUDA error",
            r"Requested amount of GPU memory .{0,30}could not be allocated",
            r"insufficient (GPU|CUDA|video|VRAM) ?memory",
            r"Cuda (Runtime|Driver) \(out of memory\)",
            r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate(?!.{0,200}not a failure)",
        ),
        "torch requested more than was free. Your tensors, torch's cache or other processes fill the GPU; "
        "the message tells which: 'allocated by PyTorch', 'reserved but unallocated', 'process N has'. If the "
        "reserved part is large, memory is fragmented, and " + _SEGMENTS + " helps.",
        _OTHERS,
        "proof",
        source="torch's allocator, c10/cuda/CUDACachingAllocator.cpp",
        common=(
            r"Maximum pool size exceeded",
            r"Out of memory allocating [\d,]+ bytes",
        ),
        follows=("oom.hip",),
    ),
    Text(
        "oom.hip",
        "AMD GPU memory is full",
        (
            r"HIP out of memory",
            r"(HIP|ROCm) error: out of memory",
            r"Triton Error \[HIP\]: .{0,20}out of memory",
            r"hipError(OutOfMemory|MemoryAllocation)",
            r"HIP_ERROR_OutOfMemory",
            r"hipMalloc\w*\(.{0,60}(out of memory|CUDA error)",
            r"(CUDA|HIP) error: out of memory.{0,200}hipMalloc",
            r"unable to allocate ROCm\d* buffer",
        ),
        "torch asked ROCm for more than was free on the device.",
        _OTHERS.replace("gpucheck devices --processes (or nvidia-smi)", "rocm-smi --showpids"),
        "proof",
    ),
    Text(
        "oom.xpu",
        "Intel GPU memory is full",
        (
            r"(DPCPP|XPU) out of memory",
            messages.LEVEL_ZERO,
            r"PI_ERROR_(MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_HOST_MEMORY)",
        ),
        "torch asked Intel's driver (Level Zero) for more than was free on the device or on the host.",
        _FITS,
        "proof",
    ),
    Text(
        "oom.mps",
        "Apple GPU memory is full (Metal)",
        (
            r"\[METAL\].{0,60}Insufficient Memory",
            r"command buffer \d+ failed with status \d.{0,60}Insufficient Memory",
            r"MPS backend out of memory",
            r"Failed to allocate private MTLBuffer",
            r"kIO(GPU|Accel)CommandBufferCallbackErrorOutOfMemory",
        ),
        "Metal shares the machine's memory and torch limits its part of it. The message names the limit. Setting "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 takes the limit away, and may make the whole machine stall.",
        _FITS,
        "proof",
    ),
    Text(
        "oom.mps_buffer",
        "one tensor is larger than Metal allows",
        (
            r"\[metal::malloc\] Attempting to allocate \d+ bytes",
            r"product of dimension sizes > 2\*\*31",
            messages.MPS_BUFFER + r" ?[\d.]+ ?[KMGT]i?B",
            r"total bytes of NDArray > 2\*\*32",
            r"buffer is not large enough\. Must be \d+ bytes",
            r"MPSGraph does not support tensor dims larger than INT_MAX",
        ),
        "Metal limits the size of a single buffer, even if more memory is free.",
        "make the tensor smaller: a smaller batch, a shorter sequence, or computed in parts",
        "proof",
    ),
    Text(
        "oom.hpu",
        "Gaudi device memory is full",
        (messages.HPU,),
        "Habana's allocator could not serve the request.",
        "use a smaller batch",
        "proof",
    ),
    Text(
        "oom.cpu",
        "host memory (RAM) is full",
        (messages.CPU_ALLOCATOR,),
        "A tensor on the CPU could not be allocated: the machine's, the container's or the shell's limit (ulimit -v) "
        "is reached.",
        "ask for less at once: print the shape, it may be wrong; free -h and top show who else uses the RAM, gpucheck "
        "memory --device cpu the limits",
        "proof",
        source="torch's allocator, c10/core/impl/alloc_cpu.cpp",
    ),
    Text(
        "oom.host",
        "host memory (RAM) is full",
        (
            r"(\(os|\[Win) ?error 1455",
            r"CUDA out of memory.{0,20}(host|pinned)",
            r"cudaHostAlloc.{0,60}out of memory",
            r"\.pin_memory\(.{0,120}CUDA error: out of memory",
            r"\A.{0,70}std::bad_alloc.{0,30}\Z",
            r"\A\W*MemoryError\W*\Z",
        ),
        "The process asked the system for memory and got none: the machine's, the container's or the shell's limit is "
        "reached. It is RAM, not the GPU's memory.",
        "fewer DataLoader workers, a smaller prefetch_factor or a smaller data set in memory; free -h and gpucheck "
        "memory --device cpu show the limits. On Windows (WinError 1455) use a larger paging file",
        common=(
            r"_ArrayMemoryError",
            r"Unable to allocate .* for an array with shape",
            r"\b(OSError|RuntimeError): \[Errno 12\]",
            messages.HOST_ALLOCATION,
            r"\bMemoryError\b",
        ),
    ),
    Text(
        "oom.killed",
        "the kernel killed the process: RAM was full",
        (
            r"Kill(ed)? process \d+,? ?" + _OURS,
            r"oom-kill:.{0,300}task=" + _OURS,
            _OURS.removeprefix(r"\(?") + r"[\w.:-]* invoked oom-killer",
            r"oom.?kill event",
            r"\A.{0,40}\bOOMKilled\b.{0,40}\Z",
            r"killed by the cgroup out-of-memory handler",
            r"ran out of memory on the host|host ran out of memory|out of host memory",
            r"requires more system memory .{0,40}than is available",
            r"Workers? (is|was|were|are)? ?(killed|died).{0,60}(memory pressure|low on memory|OOM)",
            r"ray\.exceptions\.OutOfMemoryError",
        ),
        "The kernel's out-of-memory killer, or the container's limit, ended it with SIGKILL (9, or 137 in a shell). "
        "It is RAM, not the GPU's memory; exit status 137 alone may also be someone's `kill -9`.",
        "fewer DataLoader workers, a smaller prefetch_factor, weights that are loaded once per machine (mmap, "
        "low_cpu_mem_usage), or a higher limit of the container or job; sudo dmesg | grep -i -e oom -e killed names "
        "the process and what it held",
        common=(
            r"Out of memory: Kill(ed)? process",
            r"oom-kill:",
            r"invoked oom-killer",
            r"oom_reaper: reaped process",
            r"OOMKilled",
            r"Memory cgroup out of memory",
            r"SIGKILL.{0,40}(probably|likely|possibly|perhaps).{0,20}memory",
            r"systemd-oomd .{0,80}killed",
        ),
    ),
    Text(
        "process.killed",
        "the process was killed from outside (SIGKILL)",
        (
            r"A worker died or was killed while executing",
            r"\bactor (is dead|died)\b|its worker process has died",
            r"Worker exit type: (SYSTEM_ERROR|NODE_OUT_OF_MEMORY)",
            r"(exitcode ?:|exits with return code =) ?-9\b",
            r"Signal 9 \(SIGKILL\)",
            r"process \d+ terminated with signal (9|SIGKILL)",
            r"\A\W*killed\W*\Z",
            r"\bexit(ed with)?( status| code)?:? ?137\b",
            r"interrupted by signal 9",
        ),
        "Signal 9 ended it, which leaves no message. Usually it was the kernel's OOM killer because RAM (not GPU "
        "memory) was full, otherwise the scheduler's time or memory limit, or a `kill -9`.",
        "sudo dmesg -T | grep -i -e oom -e 'killed process' on that machine tells whether it was memory: then fewer "
        "workers, or a higher limit; the scheduler's log (sacct, kubectl describe pod) tells the rest",
        "strong",
        symptom=True,
        common=(
            r"(exit|return) ?code ?[=:]? ?-9\b",
            r"^Killed$",
            r"line \d+: +\d+ Killed\b",
            r"\[\d+\] ?[+-]? ?\d+ killed\b",
            r"\bSIGKILL\b",
            r"exit(ed with)?( status| code)?:? ?-9\b",
        ),
        follows=(
            "oom.",
            "build.",
            "cuda.",
            "nccl.",
            "loader.",
            "xid.",
            "assert.",
            "import.",
            "shm.",
            "vllm.",
            "sglang.",
        ),
    ),
    Text(
        "oom.nccl",
        "NCCL found no memory left on the GPU",
        (
            r"Cuda failure (\d+ )?'out of memory'",
            r"NCCL (WARN|error.{0,300}) ?Failed to CUDA (m|c)alloc",
        ),
        "NCCL allocates its buffers on the GPU beside torch's memory, but torch had already taken that memory.",
        "leave memory free: use a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9) before the first "
        "collective",
        "proof",
    ),
    Text(
        "oom.cublas",
        "cuBLAS found no memory left on the GPU",
        (
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"\bcuBLAS (error|failure|status)( code)?:? ?\(?3\b",
            r"(CUDA error|cublas runtime error ?): (the )?resource allocation failed",
        ),
        "cuBLAS needs memory for its handle and workspace beside torch's cache, and none was left. It usually "
        "happens at the first product of a process whose memory is nearly full.",
        _OTHERS,
    ),
    Text(
        "oom.cudnn",
        "cuDNN found no memory left",
        (r"CUDNN_STATUS_ALLOC_FAILED",),
        "cuDNN could not allocate what it needs, on the GPU or on the host.",
        _OTHERS,
    ),
    Text(
        "oom.nvml_assert",
        "torch could not ask NVML while it was out of memory",
        (
            r"NVML internal assert.{0,60}(OOM|out of memory)",
            messages.NVML_ASSERT + " INTERNAL ASSERT",
            r"NVML_SUCCESS == (r\b|DriverAPI)",
            r"NvMapMemAlloc\w* ?: ?.{0,30}error 12",
        ),
        "Memory was full first. While torch built its out-of-memory message it called NVML, which does not answer on "
        "MIG instances and on Jetson.",
        _FITS,
        source="pytorch issues 112377 and 185240",
    ),
    Text(
        "oom.onednn",
        "oneDNN could not set up an operation",
        (messages.ONEDNN,),
        "On the CPU the host's memory is usually full. Otherwise oneDNN does not support the shape or data type.",
        "try a batch of 1: if that works it was memory, and gpucheck find-batch-size --device cpu finds what fits",
        "hint",
    ),
    Text(
        "oom.handles",
        "a library's handle could not be created",
        (messages.HANDLES, messages.NOT_READY),
        "It is seen where the GPU's memory is nearly full, as the first call of a library makes its handle.",
        _OTHERS,
        "hint",
    ),
    Text(
        "oom.aot",
        "a model compiled ahead of time failed inside",
        (messages.AOT_RUN,),
        "The runner hides the cause; out of memory is the most frequent one.",
        "CUDA_LAUNCH_BLOCKING=1 and the same input again; then a smaller one",
        "hint",
        symptom=True,
    ),
    Text(
        "oom.c10",
        "memory for a tensor could not be allocated",
        (r"C10 Out of Memory",),
        "An allocator other than CUDA's could not serve a tensor.",
        _FITS,
    ),
    Text(
        "oom.vllm",
        "vLLM or SGLang finds too little free GPU memory",
        (
            r"at least one request with the models?'?s? max seq len",
            r"reserved for KV Cache is -[\d.]+ ?GiB",
            r"No available memory for the cache blocks",
            r"Free memory on device.{0,60}is less than desired GPU memory utilization",
            r"max seq len.{0,60}is larger than the maximum number of tokens that can be stored in KV cache",
            r"KV cache is needed, which is larger than the available KV cache memory",
            r"Try increasing gpu_memory_utilization",
            r"CUDA out of memory occurred when warming up sampler",
            r"(?<!Automatically )(increas|decreas|reduc|lower)(e|ing) .{0,4}mem.fraction.static",
            r"max_total_tokens=\d+ is larger than the profiled value",
            r"Error in memory profiling\. .{0,40}Initial free memory",
            r"\b(alloc_\w+|Prefill|Decode) (runs |ran )?out of memory\b",
        ),
        "vLLM sets aside the share gpu_memory_utilization of all memory (SGLang: mem_fraction_static), for the weights "
        "first and the cache of keys and values after. Others hold memory, or the weights leave no room.",
        "end other programs on the GPU (nvidia-smi); a smaller max_model_len, a quantised or smaller model, more "
        "GPUs (tensor_parallel_size), or another share",
        source="vllm-project/vllm",
        logged=True,
    ),
    Text(
        "oom.other",
        "something ran out of memory",
        (
            r"\bGot an OOM\b|out of memory error, emptying cache",
            r"ggml_backend_\w+: failed to allocate|failed to allocate buffer, size = [\d.]+",
            r"(allocateMemory|vkAllocateMemory|createBuffer)\W{0,4}.{0,20}OutOf(Device|Host)Memory",
            r"\bVK_ERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY",
            r"ErrorOutOf(Device|Host)Memory",
            r"unable to allocate Vulkan\d* buffer",
            r"\b(Cuda|Hip|XPU|torch\.|torch\.cuda\.)OutOfMemoryError\b",
            r"not enough GPU (video )?memory",
            r"(enough|more) GPU (RAM|memory|VRAM) to fit the (quantized )?model",
            r"BFCArena::AllocateRawInternal",
            r"Failed to allocate memory for requested buffer of size",
            r"\A\W*(an? |the )?(oom|out of memory)\b( error| killed me)?\W*\Z",
            r"\b(train\w*|model|batch|inference|the job) .{0,40}(ran|runs|running|goes|went) (out of memory|oom)\b",
            r"ggml_vulkan: Device memory allocation of size \d+ failed",
        ),
        "The text does not say whether the GPU's or the host's memory is full.",
        "paste the whole message: torch's own says whose memory is full; nvidia-smi shows the GPU's, free -h the "
        "host's",
        "hint",
        symptom=True,
        weak=(r"out ?of ?memory", r"(fail\w*|unable|cannot) to allocate \w* ?(memory|buffer|tensor|[\d.]+ ?[KMGT]i?B)"),
        common=(
            r"(error|fail(ed|ure)?|ran|runs|running)[^a-z]{0,3}(.{0,20}[^a-z])?out of memory\b",
            r"\bout of memory (error|while|when|trying|allocating)",
            r"(?<![\w.])OutOfMemoryError\b",
            r"\boom\b(?![ -]?kill)",
        ),
    ),
    Text(
        "size.grid",
        "a kernel was started with a size that CUDA does not allow",
        (
            r"(CUDA|HIP)\w*( driver| runtime)? ?(error|failure).{0,12}" + messages.GRID,
            r"(cuda|hip)ErrorInvalidConfiguration",
            by_code(9),
        ),
        "A dimension of the grid or of a block is beyond its limit (65 535 for the second and third), or zero. It is "
        "seen in attention with batch times heads beyond 65 535. More memory does not help.",
        "use a smaller batch, or compute in parts",
        source="pytorch issues 142228 and 146704",
        common=(messages.GRID,),
    ),
    Text(
        "size.index",
        "a tensor has more elements than the operation can count",
        (
            r"Can'?t be indexed using 32-bit iterator",
            r"\b(than|exceeds?) INT_MAX (elements|threads|values|entries)\b",
            r"(tensors?|elements|large|more|not) .{0,60}32-bit ind(ex|ices)",
            r"canUse32BitIndexMath",
            r"RuntimeError: integer out of range",
        ),
        "Some operations count in 32 bits, to 2³¹ elements. More memory does not help.",
        "use a smaller batch, or compute in parts",
        common=(r"\bINT_MAX\b",),
    ),
    Text(
        "size.storage",
        "the sizes of a tensor multiply to more than 64 bits hold",
        (messages.STORAGE_SIZE,),
        "A size is far too large. Usually a length is wrong, or it is a product of two wrong dimensions.",
        "print the shape before the line that fails",
        "proof",
    ),
)
