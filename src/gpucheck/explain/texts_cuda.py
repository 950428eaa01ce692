"""Errors of the CUDA runtime while kernels run."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import CUDA_SAYS, SERIALIZE, SMALLER, TDR, by_code

_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 python …: the traceback then ends at the line that failed"
_SANITIZER = _BLOCKING + "; then `compute-sanitizer python …` names the kernel"

# The architectures in torch's wheels, according to torch's release table (RELEASE.md).
_ARCHITECTURES = (
    "install a torch wheel for this architecture: Blackwell (sm_100, sm_120) needs torch 2.7 or newer for CUDA 12.8 "
    "or newer; Maxwell and Pascal (sm_50 to sm_61) need a wheel of CUDA 12.6 or older, Volta (sm_70) one of CUDA 12"
)
_LISTED = "python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'"

TEXTS: tuple[Condition, ...] = (
    Condition(
        id="cuda.illegal_access",
        title="a kernel accessed memory outside its own",
        patterns=(
            r"\bCUDA (illegal memory access|illegal address)\b",
            r"Failed to encode tensor map: 700|an illegal memory access was encountered",
            CUDA_SAYS + r"illegal memory access",
            r"(CUDA_ERROR_|CUDA error: |CUDA_SUCCESS, )ILLEGAL_ADDRESS",
            r"\bInvalid __(global|shared|local)__ (read|write|atomic) of size",
            r"Address 0x[0-9a-f]+ is out of bounds",
            CUDA_SAYS + r"illegal address",
            r"Warp Illegal Address",
        ),
        meaning="Usually an index is out of range, a tensor was freed too early, or a custom kernel has a bug.",
        fix=_SANITIZER,
        certainty="proof",
        follows=("cuda.misaligned", "assert."),
        common=(r"\billegal memory access\b",),
    ),
    Condition(
        id="cuda.misaligned",
        title="a kernel read from a misaligned address",
        patterns=(r"Address 0x[0-9a-f]+ is misaligned",),
        meaning="A custom or compiled kernel got a view that begins at a misaligned offset.",
        fix=_SANITIZER + "; a .contiguous() or .clone() before the call works around it",
        certainty="proof",
        follows=("assert.",),
        common=(r"misaligned address",),
    ),
    Condition(
        id="cuda.illegal_instruction",
        title="a kernel used an instruction that the GPU does not know",
        patterns=(r"an illegal instruction was encountered",),
        meaning="A bug in a kernel, or code built for another architecture. Rarely the hardware.",
        fix="rebuild or reinstall the package whose kernel the traceback names, for this GPU and torch; gpucheck smoke "
        "--device cuda on that machine tests the GPU itself",
        follows=("assert.",),
    ),
    Condition(
        id="cuda.launch_failure",
        title="a kernel crashed",
        patterns=(
            r"unspecified launch failure|hardware stack error|cudaErrorInvalid(Pc|AddressSpace)\b",
            *messages.BY_ID["cuda.program_counter"].patterns,
        ),
        meaning="Usually it accessed memory outside its own, or overwrote its stack or code. The driver gives no "
        "details.",
        fix=_SANITIZER + "; sudo dmesg | grep -i xid shows the driver's messages",
        follows=("assert.",),
    ),
    Condition(
        id="cuda.device_assert",
        title="a check inside a kernel failed",
        patterns=(*messages.BY_ID["cuda.device_assert"].patterns, r"hipErrorAssert", by_code(710, 59)),
        meaning="An index or a label is out of range; the lines 'Assertion … failed' above name it.",
        fix="run the step on the CPU, or " + _BLOCKING,
        certainty="proof",
        symptom=True,
        follows=("assert.",),
    ),
    Condition(
        id="assert.index",
        title="an index is out of range",
        patterns=(
            r"Assertion [`']?srcIndex < srcSelectDimSize",
            r"index out of bounds[`'\"]* failed",
            r"-sizes\[i\] <= index && index < sizes\[i\]|idx_dim >= 0 && idx_dim < index_size",
            r"vectorized_gather_kernel",
            r"\bindex out of range in self\b|\bindex -?\d+ is out of bounds for dimension \d+ with size \d+",
            r"index out of bounds: 0 <= ?tmp|thread: \[[\d, ]+\] Assertion .{0,60}(index|ind|idx)\w* ?(<|>)",
            r"thread: \[[\d, ]+\] Assertion .{0,60}index out of bounds|token (id|index|indices) .{0,40}out of vocab",
        ),
        meaning="An index into a tensor is negative or beyond its end: in an embedding, a token that is not in the "
        "vocabulary; else in gather, index_select or x[i].",
        fix="print the index's min() and max() beside the size of that dimension: in one_hot, scatter and gather of "
        "labels 0 to the number of classes − 1, with an ignored value such as 255 masked; in a language model "
        "model.resize_token_embeddings(len(tokenizer)) after tokens were added, and no input longer than "
        "config.max_position_embeddings",
        certainty="proof",
    ),
    Condition(
        id="assert.label",
        title="a label is not a class of the loss",
        patterns=(
            r"t >= 0 && t < n_classes|cur_target >= 0 && cur_target < n_classes|Target -?\d+ is out of bounds",
            r"(nll_loss|ClassNLLCriterion)\w*: block: .{0,60}Assertion|ClassNLLCriterion\.cu.{0,100}Assertion",
        ),
        meaning="cross_entropy or nll_loss got a label that is negative or not below the number of classes.",
        fix="print(target.min(), target.max(), logits.shape[1]): labels must be 0 to the number of classes − 1, so "
        "make the last layer larger or renumber them (labels from 1: target - 1; padding: ignore_index)",
        certainty="proof",
    ),
    Condition(
        id="assert.bce",
        title="binary cross entropy got a value outside 0 to 1",
        patterns=(r"input_val >= zero && input_val <= one|all elements of (input|target) should be between 0 and 1",),
        meaning="binary_cross_entropy wants probabilities: a sigmoid is missing, or a value is NaN.",
        fix="use binary_cross_entropy_with_logits, and look for NaN with torch.isfinite(x).all()",
        certainty="proof",
    ),
    Condition(
        id="assert.probabilities",
        title="sampling got probabilities that are infinite, NaN or negative",
        patterns=(
            r"probability tensor contains either [`']?inf|invalid multinomial distribution",
            r"cumdist\[size - 1\] > .{0,40}0|sampleMultinomial\w*: block: .{0,60}Assertion",
        ),
        meaning="The model's output is not finite, usually because float16 overflowed, the attention mask is wrong, or "
        "weights did not load.",
        fix="torch.isfinite(logits).all() before the sampling; bfloat16 instead of float16 overflows much later",
        certainty="proof",
    ),
    Condition(
        id="assert.library",
        title="a check in a library's own code failed",
        patterns=(
            r"\.(cpp|cc|cuh?|hpp|h|inl):\d+:? (?!.{0,200}(thread: ?\[|INTERNAL)).{0,160}Assertion .{1,160} failed",
            r"Assertion (error|failed)\W{1,3}\S{1,160}\.(cpp|cc|cuh?|hpp|h):\d+",
            r"Assertion failed: .{1,160}, file .{1,160}, line \d+",
        ),
        meaning="The line names the file and the condition that did not hold. CUDA's errors beside it follow from it.",
        fix="look for that file and condition in the library's issues; usually a shape, a version or a GPU that it "
        "does not expect: its newest release, in the versions of torch and CUDA that it names",
        certainty="hint",
        follows=("oom.", "compile.", "cutlass.", "quant."),
    ),
    Condition(
        id="cuda.launch_timeout",
        title="a kernel ran longer than the display driver allows",
        patterns=(messages.LAUNCH_TIMEOUT,),
        meaning="A GPU that drives a screen ends a kernel after some seconds (on Windows two).",
        fix=f"{SMALLER}, or another GPU for the display; or {TDR}",
        certainty="proof",
    ),
    Condition(
        id="cuda.no_kernel",
        title="a kernel has no code for this GPU's architecture",
        patterns=(
            CUDA_SAYS + r"invalid device function",
            r"no kernel image|not compiled with any CUDA arch",
        ),
        meaning="torch's wheel, or an extension that the traceback ends in, was built for other GPUs than this one.",
        fix=f"{_LISTED} compares them. Where the list has the GPU's generation, build the extension (flash-attn, "
        "xformers, mmcv …) again with TORCH_CUDA_ARCH_LIST set; else " + _ARCHITECTURES,
        follows=("cuda.capability",),
    ),
    Condition(
        id="cuda.invalid_image",
        title="the driver cannot read a kernel's code",
        patterns=(
            r"(CUDA|HIP) error: (invalid kernel file|kernel file is invalid)",
            r"hipErrorInvalid(KernelFile|Image|Source)\b",
            r"(?<!HIP error: )(?<!ROCm error: )device kernel image is invalid",
            CUDA_SAYS + r"named symbol not found",
            r"cudaError(SharedObject)?SymbolNotFound|cudaErrorInvalid(KernelImage|Source)",
            r"CUDA_ERROR_(INVALID_IMAGE|INVALID_SOURCE|NOT_FOUND|SHARED_OBJECT_SYMBOL_NOT_FOUND)",
            r"\b(cuModuleLoad\w*|load_binary)\b.{0,60}(invalid|failed)",
            CUDA_SAYS + r"shared object symbol not found",
        ),
        meaning="The code was found but does not fit this driver.",
        fix="rm -r ~/.triton/cache /tmp/torchinductor_$USER, which may hold code of another GPU or CUDA; then a newer "
        "driver, or a torch for a CUDA that is not newer than nvidia-smi shows",
        follows=("cuda.capability", "cuinit.too_old"),
    ),
    Condition(
        id="cuda.resources",
        title="a kernel needs more registers or threads than a multiprocessor has",
        patterns=(
            r"too many resources requested for launch|too many blocks in cooperative launch",
            r"Requested shared memory .{1,30}exceeds device limit|Too much shared memory required",
            r"(cudaError|CUDA_ERROR_)Cooperative_?Launch_?Too_?Large",
        ),
        meaning="The kernel was compiled for larger blocks than this GPU can start.",
        fix="use a smaller block size in that kernel, or an extension built for this GPU (TORCH_CUDA_ARCH_LIST); "
        + _BLOCKING,
    ),
    Condition(
        id="cuda.graph_output",
        title="an output of a CUDA graph was used after the next run had overwritten it",
        patterns=(r"output of CUDAGraphs .{0,60}overwritten",),
        meaning="torch.compile with mode reduce-overhead keeps outputs in memory that each run uses again.",
        fix="output.clone() before the next call, or torch.compiler.cudagraph_mark_step_begin() at the start of "
        "each step",
        certainty="proof",
    ),
    Condition(
        id="cuda.capability",
        title="this torch does not support this GPU",
        patterns=(
            r"\bRTX ?(PRO )?\d+( \w+)?( \w+)? (cannot|can't|does not|doesn't|can not) (use|work with|run( with| "
            r"on)?|support) (CUDA|torch|pytorch|cu) ?\d",
            r"\b(CUDA|torch|pytorch) ?\d[\d.]*(\+cu\d+)? (does not|doesn't|cannot|can't) (support|work with|work "
            r"on|run on) .{0,20}\b(RTX|Blackwell|sm_?\d|B\d00|5090)",
            r"Mismatched GPU Architecture|which is not yet supported in this version of the container",
            r"No supported GPU\(s\) detected to run this container",
            r"which is of compute capability \(CC\) \d|does not include kernels for this GPU",
            r"not built with CUDA kernel binaries compatible with compute capability",
            r"The current PyTorch install supports CUDA capabilities",
            r"PyTorch no longer supports this GPU because it is too old",
            r"\bYour GPU is too (old|new)\b",
            r"which is of (cuda )?capability \d+\.\d|with CUDA capability sm_\d+",
            r"Minimum and Maximum cuda capability supported by this version of PyTorch",
            r"(compute|cuda) capability .{0,40}(too low|too old|not supported|no longer supported)",
            r"is not compatible with devices with SM <",
        ),
        meaning="The GPU is newer or older than every architecture that the wheel was built for.",
        fix=_ARCHITECTURES,
        certainty="proof",
        # A warning about one GPU; these end a program on any.
        follows=("quant.", "oom.", "tensor.", "dist.", "nccl.", "compile.resources"),
    ),
    Condition(
        id="cuda.ordinal",
        title="no GPU has this number",
        patterns=(
            r"invalid device ordinal|CUDA_ERROR_INVALID_DEVICE(?!_|\w)",
            r"(cuda|hip)ErrorInvalidDevice\b",
            r"You requested GPUs?: .{0,40}But your machine only has: ?\[\d",
            r"Invalid CUDA 'device=.{0,300}is_available\(\): True",
            r"requested GPUs?.{0,60}but only .{0,20}(available|visible)",
            r"The requested CUDA device could not be loaded",
            r"requested to find \S{1,9} devices but this machine only has",
            r"(World|tensor[_-]?parallel) size \S{1,9}( is| cannot be)? (larger|greater) than (the number of "
            r")?available GPUs",
            r"only \d+ devices? available, \d+ requested",
            r"(local_rank|device_?id|device ordinal|device|device index) \S{1,9} (is |exceeds )(out of range|out of "
            r"bounds|available GPUs|not visible)",
            r"Only \d+ device\(s\) available|AssertionError: Invalid device id",
            r"(logical device \d+ )?is not visible \(?(in )?(CUDA|HIP)_VISIBLE_DEVICES",
            r"\bDevice index (value )?\S* ?is out of( index)? range|Device index out of range",
            r"do you have enough GPUs\?|Less than two GPU ids were configured|Insufficient device count",
            r"local_world_size \(\d+\) must be less than or equal to the number of visible devices",
        ),
        meaning="The program uses cuda:N, but fewer than N + 1 GPUs are visible. CUDA_VISIBLE_DEVICES renumbers "
        "from 0; a launcher may also have started more processes than there are GPUs.",
        fix="only numbers below python -c 'import torch; print(torch.cuda.device_count())', from 0 within "
        "CUDA_VISIBLE_DEVICES (with one GPU cuda:0 alone); with a launcher no more processes than a machine has GPUs "
        "(--nproc-per-node), and set_device(LOCAL_RANK), not the global rank",
        certainty="proof",
        follows=("cuinit.", "nvml.", "xid.79", "bus."),
        common=(r"Invalid device id",),
    ),
    Condition(
        id="cuda.count_assert",
        title="torch's count of GPUs contradicts CUDA's",
        patterns=(r"device < num_gpus.{0,60}INTERNAL ASSERT FAILED",),
        meaning="torch counted with NVML, but CUDA shows fewer GPUs: because of a MIG instance, or because the two "
        "read CUDA_VISIBLE_DEVICES differently.",
        fix="unset CUDA_VISIBLE_DEVICES and try again (with MIG, set it to one instance's UUID); gpucheck doctor on "
        "that machine compares what NVML and CUDA see",
    ),
    Condition(
        id="cuda.initialization",
        title="CUDA was used in a process that was forked after CUDA had started",
        patterns=(CUDA_SAYS + r"initialization error", r"cudaErrorInitializationError"),
        meaning="A forked child inherits a CUDA context that it cannot use.",
        fix='multiprocessing.set_start_method("spawn"), or touch CUDA only in the children: not before a fork, and '
        "not in Dataset or collate_fn; celery --pool solo, gunicorn without --preload",
    ),
    Condition(
        id="cuda.fork",
        title="CUDA cannot start in a forked process",
        patterns=(
            r"Cannot re-initialize (CUDA|XPU|MTIA) in forked subprocess",
            r"Lightning can'?t create new processes if CUDA is already initialized",
            r"avoid running any instruction using .{0,4}torch\.cuda|causing CUDA to be initialized",
            r"CUDA has been initialized before the '?notebook_launcher",
            r"`?Accelerator`? should only be initialized inside your training function",
        ),
        meaning="CUDA had started in the parent (torch.cuda.is_available() is enough), and then the child was forked.",
        fix='torch.multiprocessing.set_start_method("spawn") under if __name__ == "__main__": (DataLoader: '
        'multiprocessing_context="spawn"), or touch CUDA only in the children (celery --pool solo, gunicorn without '
        "--preload); PYTORCH_NVML_BASED_CUDA_CHECK=1 makes is_available() harmless. In a notebook restart its kernel, "
        "and let no line before notebook_launcher touch the GPU",
        certainty="proof",
    ),
    Condition(
        id="cuda.peer",
        title="two GPUs cannot read each other's memory",
        patterns=(
            r"cudaDeviceEnablePeerAccess|(Cuda error \S{0,200})?custom_all_?reduce\w*\.cuh:\d+ invalid argument",
            r"invalid argument \S{0,60}custom_all_?reduce\w*\.cuh|Custom allreduce is disabled because",
            r"NCCL_P2P_DISABLE ?=? ?1\W{0,4}( it| this| that)?\b.{0,20}(works?|runs?|fix|solve|help|cure)",
            r"\bp2p (is |was )?(disabled|off)\b.{0,40}\b(works?|well|fine|ok)\b",
            r"hip\w*Peer\w* failed|peer access is not supported between these two devices",
            r"peer mapping resources exhausted",
        ),
        meaning="Direct copies between these GPUs are not possible here, or too many are mapped (at most eight).",
        fix="NCCL_P2P_DISABLE=1, in a server of models --disable-custom-all-reduce too; `gpucheck bench transfer "
        "--device all` shows which pairs can. Where that alone cures a freeze: switch IOMMU and ACS off in the "
        "firmware (gpucheck doctor looks at the IOMMU)",
        conditions=("peers.iommu", "peers.acs"),
    ),
    Condition(
        id="cuda.ecc",
        title="the GPU's memory had an uncorrectable error",
        patterns=(r"uncorrectable ECC error encountered", CUDA_SAYS + r"uncorrectable ECC error"),
        meaning="Data were lost. The process must end. If it happens again, the GPU is failing.",
        fix=f"{messages.fix_of('ecc')}; gpucheck devices shows the counters before and after",
        certainty="proof",
    ),
    Condition(
        id="cuda.nvlink",
        title="NVLink had an uncorrectable error",
        patterns=(r"uncorrectable NVLink error",),
        meaning="A link between GPUs lost data.",
        fix="drain the node; nvidia-smi nvlink -e shows which link. Then reset all GPUs that NVLink joins, together "
        "(sudo nvidia-smi --gpu-reset -i INDEX,INDEX,…), or reboot",
        certainty="proof",
    ),
    Condition(
        id="cuda.contained",
        title="the GPU's hardware reported an error",
        patterns=(
            *messages.BY_ID["cuda.contained"].patterns,
            r"Invalid access of peer GPU memory over nvlink",
            r"async error has occur?red in external entity outside of CUDA",
        ),
        meaning="Data of this process were lost, but other processes were not affected. The process must end.",
        fix="start the program again; sudo dmesg | grep -i xid names the GPU and the cause, gpucheck devices shows "
        "its counters. If it returns, drain the node and sudo nvidia-smi --gpu-reset -i INDEX",
    ),
    Condition(
        id="cuda.handle",
        title="a stream, event or handle belongs to another device or context",
        patterns=(
            r"hip\w+\(.{0,160}\[?HIP error\]?\W{0,3}invalid resource handle",
            r"cudaError(InvalidResourceHandle|DeviceUninitialized|ContextIsDestroyed)",
            CUDA_SAYS + r"(context is destroyed|invalid device context)",
            r"CUDA_ERROR_(CONTEXT_IS_DESTROYED|INVALID_CONTEXT)",
        ),
        meaning="Usually a stream or event was created on another GPU, or the process was forked.",
        fix="create streams under torch.cuda.device(N) of the tensors that they use",
        common=(r"invalid resource handle",),
    ),
    Condition(
        id="cuda.argument",
        title="CUDA was called with an invalid value",
        patterns=(
            r"\bCUDA (error[;,-] ?)?invalid argument",
            CUDA_SAYS + r"(invalid argument|part or all of the requested memory range is already mapped)",
            r"cudaErrorInvalid(Value|PitchValue|Symbol|DevicePointer|HostPointer|Texture\w*|MemcpyDirection)\b",
            CUDA_SAYS
            + r"(invalid (pitch argument|device (symbol|pointer)|texture|copy direction)|__global__ function)",
            r"\bCUDA ?(driver |runtime )?error( detected)?:? ?\(?(1|11)\b(?!\.\d)",
            r"\[1\] Call to cu|HIP error: invalid argument",
        ),
        meaning="The message does not name the value.",
        fix=_BLOCKING,
        certainty="hint",
    ),
    Condition(
        id="cuda.unknown",
        title="a CUDA call failed, and the text does not name the cause",
        patterns=(r"AcceleratorError\W{0,3}CUDA error(?!:| ?\()",),
        meaning="The text does not contain the line that names the error, or gpucheck does not know that error.",
        fix="paste the whole message, including its first line; "
        + _BLOCKING
        + "; sudo dmesg | grep -i xid shows the driver's messages",
        certainty="hint",
        symptom=True,
        weak=(
            r"\bCUDA\w*[^\w\n]{0,2}(runtime |driver |kernel )*(error|failure|exception|failed)(?!s\b)",
            r"Compile with TORCH_USE_CUDA_DSA|consider passing CUDA_LAUNCH_BLOCKING",
            r"\b(CUDA_ERROR_[A-Z]|cudaError[A-Z]|CUresult|cudaError_t)\w*",
            r"AcceleratorError",
        ),
    ),
    Condition(
        id="cuda.not_supported",
        title="the driver does not support this operation here",
        patterns=(
            CUDA_SAYS + r"operation not (supported|permitted)(?! when stream)",
            r"allocate pinned system memory,.{0,60}: operation not supported",
            r"cudaErrorNot(Supported|Permitted)\b",
        ),
        meaning="Virtual GPUs, MIG instances, WSL and Windows lack parts of CUDA, such as handles that processes "
        "share.",
        fix="do not use the feature in the traceback: shared CUDA tensors between processes, expandable_segments in "
        "PYTORCH_CUDA_ALLOC_CONF, cudaMallocAsync, unified memory, the profiler",
        certainty="hint",
    ),
    Condition(
        id="cuda.capture",
        title="an operation is not allowed while a CUDA graph is recorded",
        patterns=(
            r"operation not permitted when stream is capturing",
            r"operation would make the legacy stream depend on a capturing|(cuda|hip)ErrorStreamCapture",
            r"operation failed due to a previous error during capture",
            r"Cannot call \S+ during CUDA graph capture|Cannot prepare for replay during capturing",
            r"Offset increment outside graph capture|capturing stream has unjoined work",
            r"CUDA_ERROR_STREAM_CAPTURE_\w+|dependency created on uncaptured work in another stream",
            r"attempt to terminate a thread-local capture sequence",
            r"CUDA graphs must be captured on a non-default stream|Capture must end on the same stream it began on",
            r"graph capture of step\(\)|param_groups'? capturable is False|cannot be graph captured",
            r"CUDA graph captur\w+ detected at an inappropriate time",
            r"CUDAGraph::\w+\S* without a preceding successful capture|The CUDA Graph is empty",
        ),
        meaning="Synchronising, .item(), .cpu(), an allocation outside the graph's pool or the first call of cuBLAS "
        "happened during the capture.",
        fix="warm up on a side stream before the capture, and keep .item(), .cpu(), synchronize() and prints out of "
        "it; without CUDA graphs (torch.compile: a mode other than reduce-overhead) it runs more slowly",
        certainty="proof",
        weak=(
            r"\bcaptur\w* (of )?(the )?(CUDA )?graphs? (fail|error)",
            r"CUDA graphs? captur\w* (fail|error)",
            r"\b(capture_one_batch_size|capture_model|_capture_cudagraphs)\b",
        ),
    ),
    Condition(
        id="cuda.ptx",
        title="the driver is too old to compile this PTX",
        patterns=(
            r"the provided PTX was compiled with an unsupported toolchain",
            r"CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|INVALID_PTX)|PTX JIT compilation failed",
        ),
        meaning="Code that is compiled at run time (Triton, NVRTC) came from a newer CUDA than the driver's, of the "
        "same major version.",
        fix="update the driver, or use a torch built for the CUDA version that nvidia-smi shows",
        certainty="proof",
    ),
    Condition(
        id="hip.arch",
        title="ROCm has no code for this GPU",
        patterns=(
            r"(HIP|ROCm)\W? error:? .{0,40}no kernel image|Error \[HIP\]: .{0,60}no kernel image",
            r"amdgpu is not supported.{0,60}gfx|No compatible code objects found for",
            r"\bgfx\d+\w?\b (is |are )?(not supported|unsupported)\b",
            r"No compatible (ROCm GPUs|amdgpu devices)|(HIP|ROCm) error: invalid device function",
            r"Triton Error \[HIP\]: .{0,40}(no kernel image|invalid device function)",
            r"hipError(InvalidDeviceFunction|NoBinaryForGpu)|(HIP|ROCm) error: device kernel image is invalid",
            r"rocBLAS error: .{0,200}Tensile|TensileLibrary\w*\.dat .{0,40}(No such file|not found)",
            r"HSA_STATUS_ERROR_INVALID_(ISA|CODE_OBJECT)",
            r"HIP error: (shared object initiali[sz]ation failed|invalid kernel file)",
            r"Attempting to use hipBLASLt on an? unsupported architecture",
            r"GPU archs? of .{0,40}(is|are) (invalid|not supported)",
        ),
        meaning="The wheel was not built for this AMD GPU (gfx number).",
        fix="use a wheel or a ROCm that lists the GPU's gfx number (rocminfo | grep gfx). As a workaround, the number "
        "of a near relative: HSA_OVERRIDE_GFX_VERSION=10.3.0 on RDNA 2 (gfx103x), 11.0.0 on RDNA 3 (gfx110x), never "
        "another generation's",
    ),
    Condition(
        id="hip.init",
        title="HIP does not start",
        patterns=(
            r"filtering device which didn'?t fully initiali[sz]e|Unexpected error from hipGetDeviceCount",
            r"hipError(NotInitialized|InitializationError)|HIP_ERROR_(NotInitialized|InitializationError)",
            r"\bamdgpu\b.{0,80}(Fatal error during GPU init|device_ip_init failed|hw_init of IP block)",
            r"(Failed to|Cannot|could not) initiali[sz]e (HIP|ROCm)\b",
            r"(HIP|ROCm) (error: )?initiali[sz]ation (error|failed)|hsa_init.{0,40}(fail|error)",
            r"\bamdgpu\b.{0,80}(requires firmware installed|failed to load ucode)",
        ),
        meaning="ROCm's runtime and the kernel driver do not match, or the user has no permission to open /dev/kfd.",
        fix="rocminfo on that machine must work first; check ls -l /dev/kfd /dev/dri, and use a ROCm that the kernel's "
        "amdgpu supports",
        follows=("hip.none",),
    ),
    Condition(
        id="hip.none",
        title="ROCm finds no GPU, or has no permission to open it",
        patterns=(
            r"no ROCm-capable device is detected|No HIP GPUs are available",
            r"is not member of .{0,3}(render|video).{0,3} group|ROCk module is NOT loaded",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES.{0,200}(rocminfo|hsa_init)|hsa_init Failed",
            r"(Failed|Unable) to (open|get).{0,20}/dev/kfd|adding custom device \W{0,2}/dev/(kfd|dri)",
            r"\brocm/\w+.{0,300}is_available\W{1,4}(is |returns? |= ?)?False",
            r"(rocminfo|hsa api call failure).{0,120}HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        ),
        meaning="ROCm needs to read and write /dev/kfd and /dev/dri/render*: the user is not in the groups render and "
        "video, the container did not get them, or the kernel's amdgpu does not support compute on this GPU.",
        fix="ls -l /dev/kfd /dev/dri; sudo usermod -aG render,video $USER, then log in again (in a container: --device "
        "/dev/kfd --device /dev/dri --group-add video --group-add render, or the numbers of those groups on the host)",
    ),
    Condition(
        id="hip.fault",
        title="a kernel crashed or accessed memory outside its own (ROCm)",
        patterns=(
            r"\bgfx\d+\w?\b.{0,60}\bpage fault|\bpage fault\b.{0,60}\b(gfx\d+|ROCm|amdgpu)\b",
            r"Memory access fault by GPU node|HSA_STATUS_ERROR_(EXCEPTION|ILLEGAL_INSTRUCTION)",
            r"Memory critical error by agent node|HSA_STATUS_ERROR_MEMORY_(APERTURE_VIOLATION|FAULT)",
            r"HIP error: an illegal memory access(?: was encountered)?|HIP_?ERROR_?IllegalAddress",
            r"\[(gfxhub|mmhub)\d*\] (no-retry |retry )?page fault",
            r"amdgpu: .{0,60}(no-retry )?page fault|VM_L2_PROTECTION_FAULT_STATUS",
        ),
        meaning="The address does not belong to the process's memory: an index is out of range, or the code was "
        "built for another GPU.",
        fix=SERIALIZE,
        logged=True,
    ),
    Condition(
        id="hip.hang",
        title="the AMD GPU hung and was reset",
        patterns=(
            r"\bMES (might be in unrecoverable state|failed to (respond|respon\w+))",
            r"\bMES (0x[0-9a-f]+|firmware|ring).{0,60}(hang|hung|timeout)",
            r"\b(hang|hung)\b.{0,60}\b(amdgpu|gfx\d+|MES)\b.{0,10}\b(MES|firmware|hangcheck|reset)",
            r"\bgfx\d+\w?\b.{0,30}\b(hard |GPU |silent )*(hang|hung|lockup|lock-up|freeze)\b",
            r"amdgpu: The CS has been (cancelled|rejected) because the context is lost",
            r"HW Exception by GPU node|amdgpu.{0,80}GPU reset begin|amdgpu.{0,80}ring \w[\w.]* timeout",
            r"amdgpu.{0,80}(MES failed to respond|VRAM is lost)|VRAM is lost due to GPU reset",
            r"amdgpu.{0,80}(ib ring test failed|IB test failed on|qcm fence wait loop timeout)",
            r"reason ?:GPU Hang|amdgpu.{0,80}SMU: I'?m not done with your previous command",
        ),
        meaning="A kernel did not finish, the GPU lost power or clocks, or its firmware failed.",
        fix="newer linux-firmware, kernel, ROCm and Mesa first; a compute program with AMD_SERIALIZE_KERNEL=3 shows "
        "whether one kernel does it; if it stays: lower clocks, or another GPU. sudo dmesg | grep -i amdgpu names the "
        "program",
        weak=(r"\bamdgpu\b.{0,100}(\*ERROR\*|failed|timed? ?out|fault|lost)",),
        follows=("hip.fault",),
    ),
    Condition(
        id="hip.library",
        title="a ROCm library failed",
        patterns=(
            r"\bHSA_STATUS_ERROR(_\w+)?\b",
            r"fail(ed|s)? to call hip\w+|MIOpen(\(HIP\):)? Error",
            r"miopenStatus(UnknownError|InternalError|NotInitialized|BadParm|AllocFailed)",
            r"(ROCBLAS|HIPBLAS|rocblas|hipblas)_?STATUS_\w+|miopen::(Exception|exec::)|HIPRTC_ERROR_\w+",
        ),
        meaning="MIOpen, rocBLAS or hipBLASLt found no way to compute, or an earlier kernel failed.",
        fix="AMD_SERIALIZE_KERNEL=3 python … names the call; as a test MIOPEN_FIND_MODE=FAST (a convolution, MIOpen) "
        "or TORCH_BLAS_PREFER_HIPBLASLT=0 (a matrix product), and a smaller batch where rocm-smi shows full memory",
        certainty="hint",
        follows=("hip.fault", "hip.arch", "oom."),
        weak=(
            r"\b(HIP|ROCm)\w* (runtime )?(error|failure|failed)|\bhipError\w+",
            r"HIP kernel errors might be asynchronously reported|TORCH_USE_HIP_DSA",
            r"\b(roc|hip)(blas|fft|solver|sparse|rand)\w*.{0,40}(error|fail)|\bMIOpen.{0,40}(error|fail)",
        ),
    ),
    Condition(
        id="cuda.shutdown",
        title="CUDA was used while the process was ending",
        patterns=(r"CUDA error: driver shutting down", r"cudaErrorCudartUnloading", r"CUDA_ERROR_DEINITIALIZED"),
        meaning="A thread or a destructor used the GPU after the driver had begun to stop: a follow-on of how the "
        "program ends.",
        fix="look at the first error above it; end worker threads and destroy_process_group() before the main "
        "thread ends",
        symptom=True,
    ),
    Condition(
        id="cuda.ipc",
        title="a CUDA tensor cannot be shared between these processes",
        patterns=(
            r"Producer process has been terminated before all shared CUDA tensors released",
            r"send CUDA tensor received from another process",
            r"expandable_segments:True cannot be shared between processes|does not support the pidfd_\w+ syscall",
            r"CUDA IPC .{0,60}only supports tensors on the same (GPU|node)",
            r"IPC handle not found for GPU UUID|Error reconstructing CUDA IPC tensor",
        ),
        meaning="The process that made the tensor has to live as long as the other uses it, and both see the same GPU.",
        fix="pass CPU tensors (x.cpu()) between the processes; else keep the producer alive until they are "
        "received, and leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF",
        follows=("oom.", "xid.", "cuda.", "process."),
    ),
    Condition(
        id="cuda.feature",
        title="this GPU's generation does not have what an operation needs",
        patterns=(
            r"(supported|available) (only )?(on|for) GPUs with compute capability",
            r"requires? (a )?(GPU with )?(CUDA )?(compute )?capability (of )?(>=|at least|\d)",
            r"Unsupported compute capability\b",
            r"Rowwise scaling is not currently supported on your device",
            r"requires? (an? )?(NVIDIA )?(Ampere|Hopper|Blackwell|SM ?\d\d\+) .{0,12}(or|GPU|\(|and)",
            r"num_ctas > 1 requires|requires? an SM\d+[- ]?class GPU",
            r"\bkernel \w+ is for sm\d+.{0,20}but was built for sm\d+",
            r"not supported on .target|Feature '[\w.:]+' requires .target sm_\d+\w?( or higher)?",
            r"Instruction '[\w.:]+' (cannot be compiled for architecture|without .{0,40}is not supported)",
            r"Cannot select: (intrinsic )?.{0,60}(%llvm\.nvvm|NVPTX)",
            r"GPU does not have enough shared-memory|Cooperative launch requested but not supported",
        ),
        meaning="It uses instructions or memory that newer GPUs have (8.0 is Ampere, 9.0 Hopper, 10.0 Blackwell).",
        fix="turn that feature or kernel off in the program (it usually has a slower way: another data type, "
        "backend or attention), or use a GPU of the capability that is named; nvidia-smi --query-gpu=name,compute_cap "
        "--format=csv shows this one's",
        follows=("cuda.capability", "amp.", "attention.", "quant.", "cutlass.", "xformers."),
    ),
    Condition(
        id="hip.mask",
        title="variables that choose AMD GPUs contradict each other",
        patterns=(
            r"Inconsistent GPU visibility env vars",
            r"HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES",
            r"Please use \S+ instead of ROCR_VISIBLE_DEVICES",
        ),
        meaning="ROCR_VISIBLE_DEVICES hides GPUs first, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES number what is "
        "left.",
        fix="set HIP_VISIBLE_DEVICES alone, and unset the others",
        certainty="proof",
    ),
    Condition(
        id="torch.internal",
        title="a check inside torch failed",
        patterns=(r"INTERNAL ASSERT FAILED at",),
        meaning="torch met a state that its authors excluded: a bug, or libraries that do not belong together.",
        fix="look for the condition before INTERNAL ASSERT in torch's issues; "
        + _BLOCKING
        + "; a newer torch, in a fresh environment",
        certainty="hint",
        symptom=True,
        follows=("cuda.", "oom.", "cuinit.", "nvml.", "import."),
    ),
    Condition(
        id="xpu.none",
        title="torch finds no Intel GPU",
        patterns=(
            r"torch\.xpu\.is_available\(\)\W{0,4}(is|returns?|==|=)?\W{0,3}False|Failed to initiali[sz]e XPU devices",
            r"No XPU (devices?|GPUs?)( is| are| was| were)? (available|found|detected)",
            r"lib(ur_loader|sycl|ze_loader)\.so[.\d]*: cannot open shared object file",
            r"PI_ERROR_DEVICE_NOT_FOUND|No device of requested type available|XPU device count is zero",
            r"\bXPU is not available\b",
        ),
        meaning="Intel's driver (Level Zero) or the permission for /dev/dri is missing, or torch is not built for XPU.",
        fix="ls -l /dev/dri; sudo usermod -aG render,video $USER, then log in again (sycl-ls lists the driver's "
        "devices); libze_loader: apt-get install libze1; libsycl and libur_loader: torch's wheel for XPU again",
    ),
    Condition(
        id="xpu.memory_query",
        title="this Intel GPU does not report its free memory",
        patterns=(r"doesn'?t support querying the available free memory",),
        meaning="Intel's driver reports free memory only where its management interface (Sysman) is switched on; "
        "integrated GPUs often have none.",
        fix="export ZES_ENABLE_SYSMAN=1 before the program; if the device has no such counter, set the memory size in "
        "the program",
        certainty="proof",
    ),
    Condition(
        id="xpu.call",
        title="Intel's driver (Level Zero) refused a call",
        patterns=(r"\bZE_RESULT_ERROR_INVALID_\w+", r"-999 \(Unknown PI error\)"),
        meaning="A kernel could not be built for this GPU, or a library asked for what the driver or the GPU does "
        "not have.",
        fix="update the compute runtime (intel-compute-runtime, level-zero) and use the torch that was released for it",
        certainty="hint",
        follows=("oom.xpu", "xpu.none", "xpu.lost"),
    ),
    Condition(
        id="xpu.lost",
        title="a call of Intel's GPU driver failed",
        patterns=(
            r"\bDEVICE_LOST\b.{0,80}\b(Arc|XPU|SYCL|Intel)\b",
            r"\b(XPU|SYCL|Intel|Arc|level[_ ]zero)\b.{0,80}\bDEVICE_LOST\b",
            r"Native API (failed|returns)(?!.{0,40}-999)",
            r"PI_ERROR_(OUT_OF_RESOURCES|DEVICE_LOST|DEVICE_NOT_AVAILABLE)",
            r"RuntimeError: UR error|UR_RESULT_ERROR_(?!OUT_OF_(DEVICE|HOST))\w+",
        ),
        follows=("xpu.float64",),
        meaning="The driver reset the device, ran out of memory or resources, or does not take the call: the error's "
        "own name tells (DEVICE_LOST, OUT_OF_RESOURCES, INVALID_…).",
        fix="sudo dmesg | grep -i -e i915 -e xe shows whether the device was reset: then a smaller batch; else the "
        "newest compute runtime (intel-compute-runtime, level-zero) and the torch that was released for it",
        certainty="hint",
        weak=(
            r"\b(level[_-]?zero|sycl|xpu|oneapi|unified runtime)\b.{0,80}(error|fail|exception)|\bZE_RESULT_ERROR\w+",
        ),
    ),
    Condition(
        id="xpu.float64",
        title="this Intel GPU has no float64",
        patterns=(r"Required aspect fp64 is not supported|uses-fp64-math|double type is not supported on",),
        meaning="Intel's Arc and integrated GPUs compute no 64-bit floats.",
        fix="use float32: .float(), dtype=torch.float32 (NumPy's arrays are float64); where it is in a library, export "
        "OverrideDefaultFP64Settings=1 IGC_EnableDPEmulation=1 emulates float64, slowly",
        certainty="proof",
    ),
)
