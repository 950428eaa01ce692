"""Errors of the CUDA runtime while kernels run."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import CUDA_SAYS, SERIALIZE, SMALLER, TDR, by_code, hint, proof, strong

_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 python … ends the traceback at the failing line"
_SANITIZER = _BLOCKING + "; then `compute-sanitizer python …` names the kernel"

# The architectures in torch's wheels, according to torch's release table (RELEASE.md).
_ARCHITECTURES = (
    "install a torch wheel for this architecture. Blackwell (sm_100, sm_120) needs torch 2.7 or newer for CUDA 12.8 "
    "or newer. Maxwell and Pascal (sm_50 to sm_61) need a wheel of CUDA 12.6 or older, Volta (sm_70) one of CUDA 12"
)
_LISTED = "python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'"

TEXTS: tuple[Condition, ...] = (
    proof(
        "cuda.illegal_access",
        "a kernel accessed memory outside its own",
        r"Failed to encode tensor map: 700|an illegal memory access was encountered|(CUDA_ERROR_|CUDA error: |"
        r"CUDA_SUCCESS, )ILLEGAL_ADDRESS|Address 0x[0-9a-f]+ is out of bounds|Warp Illegal Address",
        r"\bCUDA (illegal memory access|illegal address)\b|\bInvalid __(global|shared|local)__ (read|write|atomic) of",
        CUDA_SAYS + r"illegal memory access",
        CUDA_SAYS + r"illegal address",
        meaning="Usually an index is out of range, a tensor was freed too early, or a custom kernel has a bug.",
        fix=_SANITIZER,
        follows=("cuda.misaligned", "assert."),
        common=(r"\billegal memory access\b",),
    ),
    proof(
        "cuda.misaligned",
        "a kernel read from a misaligned address",
        r"Address 0x[0-9a-f]+ is misaligned",
        meaning="A custom or compiled kernel got a view that begins at a misaligned offset.",
        fix=_SANITIZER + "; .contiguous() or .clone() before the call works around the error",
        follows=("assert.",),
        common=(r"misaligned address",),
    ),
    strong(
        "cuda.illegal_instruction",
        "a kernel used an instruction that the GPU does not know",
        r"an illegal instruction was encountered",
        meaning="The kernel has a bug or was built for another architecture. The hardware is rarely at fault.",
        fix="reinstall the package that the traceback names, for this GPU and torch. gpucheck smoke tests the GPU",
        follows=("assert.",),
    ),
    strong(
        "cuda.launch_failure",
        "a kernel crashed",
        r"unspecified launch failure|hardware stack error|cudaErrorInvalid(Pc|AddressSpace)\b",
        *messages.BY_ID["cuda.program_counter"].patterns,
        meaning="Usually the kernel accessed memory outside its own, or overwrote its stack or code.",
        fix=_SANITIZER + "; sudo dmesg | grep -i xid shows the driver's messages",
        follows=("assert.", "cutlass.arch"),
    ),
    proof(
        "cuda.device_assert",
        "a check inside a kernel failed",
        *messages.BY_ID["cuda.device_assert"].patterns,
        r"hipErrorAssert",
        by_code(710, 59),
        meaning="An index or a label is out of range. The lines 'Assertion … failed' above name the check.",
        fix="compare labels.max() with the number of classes, and input_ids.max() with the rows of the embedding. Both "
        "must be smaller, and no value negative except ignore_index. Run the step on the CPU. " + _BLOCKING,
        symptom=True,
        follows=("assert.",),
    ),
    proof(
        "assert.index",
        "an index is out of range",
        r"Assertion [`']?srcIndex < srcSelectDimSize|index out of bounds[`'\"]* failed",
        r"-sizes\[i\] <= index && index < sizes\[i\]|idx_dim >= 0 && idx_dim < index_size|vectorized_gather_kernel",
        r"\bindex out of range in self\b|\bindex -?\d+ is out of bounds for dimension \d+ with size \d+",
        r"index out of bounds: 0 <= ?tmp|thread: \[[\d, ]+\] Assertion .{0,60}(index|ind|idx)\w* ?(<|>)",
        r"thread: \[[\d, ]+\] Assertion .{0,60}index out of bounds|token (id|index|indices) .{0,40}out of vocab",
        r"\b\w*(token|index|indices)\w*\b.{0,60}\b(larger|greater|bigger|outside) (than )?(the )?vocab",
        meaning="An index is negative or beyond the end. In an embedding, the index is a token outside the vocabulary.",
        fix="print the index's min() and max() and the size of that dimension. Labels go from 0 to the number of "
        "classes − 1; mask ignored values (255). In a language model, call "
        "model.resize_token_embeddings(len(tokenizer)) for new tokens; config.max_position_embeddings limits the input",
    ),
    proof(
        "assert.label",
        "a label is outside the classes of the loss",
        r"t >= 0 && t < n_classes|cur_target >= 0 && cur_target < n_classes|Target -?\d+ is out of bounds",
        r"(nll_loss|ClassNLLCriterion)\w*: block: .{0,60}Assertion|ClassNLLCriterion\.cu.{0,100}Assertion|"
        r"device-side assert triggered at \S*(NLLCriterion|[/\\]Loss\.|nll_loss)",
        meaning="cross_entropy or nll_loss got a label that is negative or not below the number of classes.",
        fix="print(target.min(), target.max(), logits.shape[1]): labels must lie between 0 and the number of classes − "
        "1. Enlarge the last layer or renumber the labels (from 1: target - 1; padding: ignore_index)",
    ),
    proof(
        "assert.probabilities",
        "sampling got probabilities that are infinite, NaN or negative",
        r"probability tensor contains either [`']?inf|invalid multinomial distribution",
        r"cumdist\[size - 1\] > .{0,40}0|sampleMultinomial\w*: block: .{0,60}Assertion",
        meaning="Usually float16 overflowed, the attention mask is wrong, or weights did not load.",
        fix="check torch.isfinite(logits).all() before sampling. Use bfloat16: it overflows much later than float16",
    ),
    hint(
        "assert.library",
        "a check in a library's own code failed",
        r"\.(cpp|cc|cuh?|hpp|h|inl):\d+:? (?!.{0,200}(thread: ?\[|INTERNAL)).{0,160}Assertion .{1,160} failed",
        r"Assertion (error|fail(ed)?)\W{1,3}\S{1,160}\.(cpp|cc|cuh?|hpp|h):\d+",
        r"Assertion failed: .{1,160}, file .{1,160}, line \d+",
        meaning="The line names the file and the condition that failed. CUDA errors beside it follow from that.",
        fix="search the library's issues for that file and condition. Usually the library does not expect a shape, a "
        "version or this GPU. Install its newest release with the versions of torch and CUDA that its notes name",
        follows=("oom.", "compile.", "cutlass.", "quant.", "tensorrt."),
    ),
    proof(
        "cuda.launch_timeout",
        "a kernel ran longer than the display driver allows",
        messages.LAUNCH_TIMEOUT,
        meaning="A GPU that drives a display stops a kernel after some seconds (on Windows after two).",
        fix=f"{SMALLER}, or connect the display to another GPU; or {TDR}",
    ),
    strong(
        "cuda.no_kernel",
        "a kernel has no code for this GPU's architecture",
        CUDA_SAYS + r"invalid device function",
        r"no kernel image|not compiled with any CUDA arch|Could not find compatible tinycudann extension",
        r"this (function|kernel) is for sm\d+\W{0,2} but was built for sm|Unknown compute capability\. (Specify|"
        r"Ensure)|is not compatible with compile time compute cap",
        meaning="torch's wheel, or the extension at the end of the traceback, was built for other GPUs.",
        fix=f"{_LISTED} prints the architectures of torch and the GPU's. If torch's include it, rebuild the extension "
        "(flash-attn, xformers, mmcv …) with TORCH_CUDA_ARCH_LIST set; else " + _ARCHITECTURES,
        follows=("cuda.capability",),
    ),
    strong(
        "cuda.invalid_image",
        "the driver cannot read a kernel's code",
        "(CUDA|HIP) error: (invalid kernel file|kernel file is invalid)|(?<!HIP error: )(?<!ROCm error: )device "
        "kernel image is invalid|cudaError(SharedObject)?SymbolNotFound|cudaErrorInvalid(KernelImage|Source)|"
        "CUDA_ERROR_(INVALID_IMAGE|INVALID_SOURCE|NOT_FOUND|SHARED_OBJECT_SYMBOL_NOT_FOUND)",
        r"hipErrorInvalid(KernelFile|Image|Source)\b|\b(cuModuleLoad\w*|load_binary)\b.{0,60}(invalid|failed)",
        CUDA_SAYS + r"named symbol not found",
        CUDA_SAYS + r"shared object symbol not found",
        meaning="The code was found but does not fit this driver.",
        fix="rm -r ~/.triton/cache /tmp/torchinductor_$USER removes code for another GPU or CUDA. Then update the "
        "driver, or install a torch whose CUDA is not newer than nvidia-smi shows",
        follows=("cuda.capability", "cuinit.too_old"),
    ),
    strong(
        "cuda.resources",
        "a kernel needs more registers or threads than a multiprocessor has",
        r"too many resources requested for launch|too many blocks in cooperative launch",
        r"Requested shared memory .{1,30}exceeds device limit|Too much shared memory required",
        r"(cudaError|CUDA_ERROR_)Cooperative_?Launch_?Too_?Large",
        meaning="The kernel was compiled for larger blocks than this GPU can start.",
        fix="use a smaller block size in that kernel, or build the extension for this GPU (TORCH_CUDA_ARCH_LIST); "
        + _BLOCKING,
    ),
    proof(
        "cuda.graph_output",
        "an output of a CUDA graph was used after the next run had overwritten it",
        r"output of CUDAGraphs .{0,60}overwritten",
        meaning="torch.compile with mode reduce-overhead reuses the memory of outputs in every run.",
        fix="call output.clone() before the next call, or torch.compiler.cudagraph_mark_step_begin() before each step",
    ),
    proof(
        "cuda.capability",
        "this torch does not support this GPU",
        r"Mismatched GPU Architecture|which is not yet supported in this version of the container|No supported "
        r"GPU\(s\) detected to run this container|which is of compute capability \(CC\) \d|does not include kernels "
        r"for this GPU|not built with CUDA kernel binaries compatible with compute capability|The current PyTorch "
        r"install supports CUDA capabilities|PyTorch no longer supports this GPU because it is too old|which is of "
        r"(cuda )?capability \d+\.\d|with CUDA capability sm_\d+|Minimum and Maximum cuda capability supported by this "
        r"version of PyTorch|(compute|cuda) capability .{0,40}(too low|too old|not supported|no longer supported)|is "
        r"not compatible with devices with SM <|device does not support the current version of Torch/CUDA",
        r"\bRTX ?(PRO )?\d+( \w+)?( \w+)? (cannot|can't|does not|doesn't|can not) (use|work with|run( with| on)?|"
        r"support) (CUDA|torch|pytorch|cu) ?\d|\b(CUDA|torch|pytorch) ?\d[\d.]*(\+cu\d+)? (does not|doesn't|cannot|"
        r"can't) (support|work with|work on|run on) .{0,20}\b(RTX|Blackwell|sm_?\d|B\d00|5090)|\bYour GPU is too "
        r"(old|new)\b",
        meaning="The GPU is newer or older than every architecture that the wheel was built for.",
        fix=_ARCHITECTURES,
        # This is a warning about one GPU; these errors end a program on any GPU.
        follows=("quant.", "oom.", "tensor.", "dist.", "nccl.", "compile.resources"),
        weak=(
            r"\b(not|nt|cannot|never) (work|run|support|compatible)\w* (on |with |for )?(my |an? |the )?(nvidia "
            r"|geforce )?(rtx ?)?(50[5-9]0|blackwell)|\b50[5-9]0\b.{0,20}\b(not |nt |un)(work|support|compat)",
            r"\b([GR]TX|this GPU|my (GPU|card))\b.{0,60}\b(not|\w+n'?t|only|at least|requir\w*)\b.{0,36}(cuda|torch)"
            r".{0,4}\d|torch.{0,9}\d.{0,40}\btoo (old|low|new) for .{0,40}\b([GR]TX|GPU|card)",
        ),
    ),
    proof(
        "cuda.ordinal",
        "no GPU has this number",
        r"invalid device ordinal|CUDA_ERROR_INVALID_DEVICE(?!_|\w)|You requested GPUs?: .{0,40}But your machine only "
        r"has: ?\[\d|Invalid CUDA 'device=.{0,300}is_available\(\): True|requested GPUs?.{0,60}but only "
        r".{0,20}(available|visible)|The requested CUDA device could not be loaded|requested to find \S{1,9} devices "
        r"but this machine only has|(World|tensor[_-]?parallel) size \S{1,9}( is| cannot be)? (larger|greater) than "
        r"(the number of )?available GPUs|only \d+ devices? available, \d+ requested|(local_rank|device_?id|device "
        r"ordinal|device|device index) \S{1,9} (is |exceeds )(out of range|out of bounds|available GPUs|not visible)|"
        r"Only \d+ device\(s\) available|AssertionError: Invalid device id|(logical device \d+ )?is not visible \(?(in "
        r")?(CUDA|HIP)_VISIBLE_DEVICES|do you have enough GPUs\?|Less than two GPU ids were configured|Insufficient "
        r"device count|local_world_size \(\d+\) must be less than or equal to the number of visible devices|to less "
        r"than max local gpu count|Each process is one gpu",
        r"(cuda|hip)ErrorInvalidDevice\b|\bDevice index (value )?(\S* ?is )?out of( index)? range",
        meaning="The program uses cuda:N, but fewer than N + 1 GPUs are visible. CUDA_VISIBLE_DEVICES renumbers GPUs "
        "from 0. A launcher may also have started more processes than there are GPUs.",
        fix="use only numbers below what python -c 'import torch; print(torch.cuda.device_count())' prints. They start "
        "at 0 within CUDA_VISIBLE_DEVICES, so one GPU is cuda:0. With a launcher, start at most one process per GPU "
        "(--nproc-per-node), and call set_device(LOCAL_RANK), not the global rank",
        follows=("cuinit.", "nvml.", "xid.79", "bus."),
        common=(r"Invalid device id",),
    ),
    strong(
        "cuda.count_assert",
        "torch's count of GPUs contradicts CUDA's",
        r"device < num_gpus.{0,60}INTERNAL ASSERT FAILED",
        meaning="torch counts the GPUs of NVML, and CUDA shows fewer because of MIG or CUDA_VISIBLE_DEVICES.",
        fix="unset CUDA_VISIBLE_DEVICES (with MIG, set it to one instance's UUID). gpucheck doctor compares both",
    ),
    strong(
        "cuda.initialization",
        "CUDA was used in a process that was forked after CUDA had started",
        CUDA_SAYS + r"initialization error",
        r"cudaErrorInitializationError",
        meaning="A forked child inherits a CUDA context that it cannot use.",
        fix='start processes with multiprocessing.set_start_method("spawn"), or do not use CUDA '
        "before a fork, in Dataset or in collate_fn. For celery use --pool solo; start gunicorn without --preload",
    ),
    proof(
        "cuda.fork",
        "CUDA cannot start in a forked process",
        r"Cannot re-initialize (CUDA|XPU|MTIA) in forked subprocess|Lightning can'?t create new processes if CUDA is "
        r"already initialized|avoid running any instruction using .{0,4}torch\.cuda|causing CUDA to be initialized|"
        r"CUDA has been initialized before the '?notebook_launcher|`?Accelerator`? should only be initialized inside "
        r"your training function",
        meaning="CUDA had started in the parent before the fork. torch.cuda.is_available() is enough to start it.",
        fix='call torch.multiprocessing.set_start_method("spawn") under if __name__ == "__main__":, or use CUDA only '
        "in the children (celery --pool solo, gunicorn without --preload). For a DataLoader, return CPU tensors from "
        "__getitem__ and collate_fn, and call .to(device) in the training loop. PYTORCH_NVML_BASED_CUDA_CHECK=1 makes "
        "is_available() harmless",
    ),
    strong(
        "cuda.peer",
        "two GPUs cannot read each other's memory",
        r"cudaDeviceEnablePeerAccess|(Cuda error \S{0,200})?custom_all_?reduce\w*\.cuh:\d+ invalid argument",
        r"invalid argument \S{0,60}custom_all_?reduce\w*\.cuh|Custom allreduce is disabled because",
        r"NCCL_P2P_DISABLE ?=? ?1\W{0,4}( it| this| that)?\b.{0,20}(works?|runs?|fix|solve|help|cure)",
        r"\bp2p (is |was )?(disabled|off)\b.{0,40}\b(works?|well|fine|ok)\b",
        r"hip\w*Peer\w* failed|peer access is not supported between these two devices|peer mapping resources exhausted",
        meaning="These GPUs cannot copy directly to each other, or too many peers are mapped (at most eight).",
        fix="set NCCL_P2P_DISABLE=1 (model servers: --disable-custom-all-reduce too). `gpucheck bench transfer "
        "--device all` shows which pairs can copy. If P2P causes a freeze, turn IOMMU and ACS off (gpucheck doctor)",
        conditions=("peers.iommu", "peers.acs"),
    ),
    proof(
        "cuda.ecc",
        "the GPU's memory had an uncorrectable error",
        r"uncorrectable ECC error encountered|(unusable|not usable) (due to|because of) (an )?uncorrectable ECC",
        CUDA_SAYS + r"uncorrectable ECC error",
        meaning="The GPU lost data, so the process must end. If the error returns, the GPU is failing.",
        fix=f"{messages.fix_of('ecc')}; gpucheck devices shows the counters before and after",
    ),
    proof(
        "cuda.nvlink",
        "NVLink had an uncorrectable error",
        r"uncorrectable NVLink error",
        meaning="A link between GPUs lost data.",
        fix="drain the node. nvidia-smi nvlink -e shows which link failed. Then reset all GPUs that NVLink joins, "
        "together (sudo nvidia-smi --gpu-reset -i INDEX,INDEX,…), or reboot",
    ),
    strong(
        "cuda.contained",
        "the GPU's hardware reported an error",
        *messages.BY_ID["cuda.contained"].patterns,
        r"Invalid access of peer GPU memory over nvlink|async error has occur?red in external entity outside of CUDA",
        meaning="This process lost data and must end. Other processes were not affected.",
        fix="start the program again. sudo dmesg | grep -i xid names the GPU and the cause; gpucheck devices shows its "
        "counters. If the error returns, drain the node and run sudo nvidia-smi --gpu-reset -i INDEX",
    ),
    strong(
        "cuda.handle",
        "a stream, event or handle belongs to another device or context",
        r"hip\w+\(.{0,160}\[?HIP error\]?\W{0,3}invalid resource handle|cudaError(InvalidResourceHandle|"
        r"DeviceUninitialized|ContextIsDestroyed)|CUDA_ERROR_(CONTEXT_IS_DESTROYED|INVALID_CONTEXT)",
        CUDA_SAYS + r"(context is destroyed|invalid device context)",
        meaning="Usually a stream or event was created on another GPU, or the process was forked.",
        fix="create streams under torch.cuda.device(N), with the device of the tensors that they use",
        common=(r"invalid resource handle",),
    ),
    hint(
        "cuda.argument",
        "CUDA was called with an invalid value",
        r"\[1\] Call to cu|HIP error: invalid argument",
        r"\bCUDA (error[;,-] ?)?invalid argument|cudaErrorInvalid(Value|PitchValue|Symbol|DevicePointer|HostPointer|"
        r"Texture\w*|MemcpyDirection)\b|\bCUDA ?(driver |runtime )?error( detected)?:? ?\(?(1|11)\b(?!\.\d)",
        CUDA_SAYS + r"(invalid argument|part or all of the requested memory range is already mapped)",
        CUDA_SAYS + r"(invalid (pitch argument|device (symbol|pointer)|texture|copy direction)|__global__ function)",
        meaning="The message does not name the value.",
        fix=_BLOCKING,
    ),
    hint(
        "cuda.unknown",
        "a CUDA call failed",
        r"AcceleratorError\W{0,3}CUDA error(?!:| ?\()",
        meaning="The line that names the error is missing, or gpucheck does not know that error.",
        fix="paste the whole message, including its first line; "
        + _BLOCKING
        + "; sudo dmesg | grep -i xid shows the driver's messages",
        symptom=True,
        weak=(
            r"Compile with TORCH_USE_CUDA_DSA|consider passing CUDA_LAUNCH_BLOCKING|AcceleratorError",
            r"\bCUDA\w*[^\w\n]{0,2}(runtime |driver |kernel )*(error|failure|exception|failed)(?!s\b)|"
            r"\b(CUDA_ERROR_[A-Z]|cudaError[A-Z]|CUresult|cudaError_t)\w*",
        ),
    ),
    hint(
        "cuda.not_supported",
        "the driver does not support this operation here",
        CUDA_SAYS + r"operation not (supported|permitted)(?! when stream)",
        r"allocate pinned system memory,.{0,60}: operation not supported|cudaErrorNot(Supported|Permitted)\b",
        meaning="Virtual GPUs, MIG instances, WSL and Windows lack some CUDA features, such as shared handles.",
        fix="avoid the feature that the traceback names: shared CUDA tensors between processes, expandable_segments in "
        "PYTORCH_CUDA_ALLOC_CONF, cudaMallocAsync, unified memory, or the profiler",
    ),
    proof(
        "cuda.capture",
        "an operation is not allowed while a CUDA graph is recorded",
        r"operation not permitted when stream is capturing|operation would make the legacy stream depend on a "
        r"capturing|(cuda|hip)ErrorStreamCapture|operation failed due to a previous error during capture|Cannot call "
        r"\S+ during CUDA graph capture|Cannot prepare for replay during capturing|Offset increment outside graph "
        r"capture|capturing stream has unjoined work|CUDA_ERROR_STREAM_CAPTURE_\w+|dependency created on uncaptured "
        r"work in another stream|attempt to terminate a thread-local capture sequence|CUDA graphs must be captured on "
        r"a non-default stream|Capture must end on the same stream it began on|graph capture of step\(\)|"
        r"param_groups'? capturable is False|cannot be graph captured|CUDA graph captur\w+ detected at an "
        r"inappropriate time|CUDAGraph::\w+\S* without a preceding successful capture|The CUDA Graph is empty",
        meaning="A capture allows no synchronisation, .item(), .cpu(), new allocation or first call of cuBLAS.",
        fix="warm up on a side stream before the capture, and move .item(), .cpu(), synchronize() and prints out of "
        "it. Without CUDA graphs (torch.compile: a mode other than reduce-overhead) the program runs more slowly",
        weak=(
            r"\bcaptur\w* (of )?(the )?(CUDA )?graphs? (fail\w*(?!: ?\w)|error)",
            r"CUDA graphs? captur\w* (fail|error)",
            r"\b(capture_one_batch_size|capture_model|_capture_cudagraphs)\b",
        ),
    ),
    proof(
        "cuda.ptx",
        "the driver is too old to compile this PTX",
        "the provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|INVALID_PTX)|"
        "PTX JIT compilation failed|(CUDA toolkit version .{0,12} with|CUDA Toolkit is newer than) CUDA driver",
        meaning="Triton or NVRTC compiled code with a newer CUDA than the driver's, of the same major version.",
        fix="update the driver, or use a torch built for the CUDA version that nvidia-smi shows",
    ),
    strong(
        "hip.arch",
        "ROCm has no code for this GPU",
        r"(HIP|ROCm)\W? error:? .{0,40}no kernel image|Error \[HIP\]: .{0,60}no kernel image|amdgpu is not "
        r"supported.{0,60}gfx|No compatible code objects found for|No compatible (ROCm GPUs|amdgpu devices)|(HIP|"
        r"ROCm) error: invalid device function|Triton Error \[HIP\]: .{0,40}(no kernel image|invalid device "
        r"function)|hipError(InvalidDeviceFunction|NoBinaryForGpu)|(HIP|ROCm) error: device kernel image is invalid|"
        r"rocBLAS error: (?!.{0,60}No dev).{0,200}Tensile|TensileLibrary\w*\.dat .{0,40}(No such file|not found)|HIP "
        r"error: (shared object initiali[sz]ation failed|invalid kernel file)|Attempting to use hipBLASLt on an? "
        r"unsupported architecture|GPU archs? of .{0,40}(is|are) (invalid|not supported)",
        r"\bgfx\d+\w?\b (is |are )?(not supported|unsupported)\b|\.hip:.{0,30}instruction not supported|"
        "HSA_STATUS_ERROR_INVALID_(ISA|CODE_OBJECT)",
        meaning="The wheel was not built for this AMD GPU (gfx number).",
        fix="install a wheel or ROCm that lists the GPU's gfx number (rocminfo | grep gfx). As a workaround, set the "
        "version of a close relative: HSA_OVERRIDE_GFX_VERSION=10.3.0 on RDNA 2 (gfx103x), 11.0.0 on RDNA 3 (gfx110x)",
    ),
    strong(
        "hip.init",
        "HIP does not start",
        r"filtering device which didn'?t fully initiali[sz]e|Unexpected error from hipGetDeviceCount|"
        r"hipError(NotInitialized|InitializationError)|HIP_ERROR_(NotInitialized|InitializationError)|(HIP|ROCm) "
        r"(error: )?initiali[sz]ation (error|failed)|hsa_init.{0,40}(fail|error)",
        r"\bamdgpu\b.{0,80}(Fatal error during GPU init|device_ip_init failed|hw_init of IP block)|(Failed to|Cannot|"
        r"could not) initiali[sz]e (HIP|ROCm)\b|\bamdgpu\b.{0,80}(requires firmware installed|failed to load ucode)",
        meaning="ROCm's runtime and the kernel driver do not match, or the user has no permission to open /dev/kfd.",
        fix="make rocminfo work first. Check ls -l /dev/kfd /dev/dri, and use a ROCm that this amdgpu supports",
        follows=("hip.none",),
    ),
    strong(
        "hip.none",
        "ROCm finds no GPU, or has no permission to open it",
        r"no ROCm-capable device is detected|No HIP GPUs are available|Tensile host: No devices found|is not member of "
        r".{0,3}(render|video).{0,3} group|ROCk module is NOT loaded|amdgpu_get_auth .{0,4} failed|"
        r"HSA_STATUS_ERROR_OUT_OF_RESOURCES.{0,200}(rocminfo|hsa_init)|hsa_init Failed|(Failed|Unable) to (open|"
        r"get).{0,20}/dev/kfd( read-write: Cannot allocate memory)?|open /dev/kfd: perm|adding custom device "
        r"\W{0,2}/dev/(kfd|dri)|not supported in kfd|PCI rejects atomics|ZLUDA failed to initialize|ROCm: no agent was|"
        r"(rocminfo|hsa api call failure).{0,120}HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        r"\brocm/\w+.{0,300}is_available\W{1,4}(is |returns? |= ?)?False|crw-{7} .{0,60}\bkfd\b",
        meaning="ROCm reads and writes /dev/kfd and /dev/dri/render*. The user is not in the groups render and video, "
        "the container did not get the files, or the kernel's amdgpu does not support compute on this GPU.",
        fix="ls -l /dev/kfd /dev/dri shows the owners; sudo usermod -aG render,video $USER, then log in again. For a "
        "container use --device /dev/kfd --device /dev/dri --group-add video --group-add render, or the groups' IDs "
        "(rootless podman, which shows them as nogroup: --group-add keep-groups alone)",
    ),
    strong(
        "hip.fault",
        "a kernel crashed or accessed memory outside its own (ROCm)",
        r"Memory access fault by GPU node|HSA_STATUS_ERROR_(EXCEPTION|ILLEGAL_INSTRUCTION)|Memory critical error by "
        r"agent node|HSA_STATUS_ERROR_MEMORY_(APERTURE_VIOLATION|FAULT)|HIP error: an illegal memory access(?: was "
        r"encountered)?|HIP_?ERROR_?IllegalAddress|\[(gfxhub|mmhub)\d*\] (no-retry |retry )?page fault|amdgpu: "
        r".{0,60}(no-retry )?page fault|VM_L2_PROTECTION_FAULT_STATUS",
        r"\bgfx\d+\w?\b.{0,60}\bpage fault|\bpage fault\b.{0,60}\b(gfx\d+|ROCm|amdgpu)\b",
        meaning="The address is not the process's: an index is out of range, or the code is for another GPU.",
        fix=SERIALIZE,
        logged=True,
    ),
    strong(
        "hip.hang",
        "the AMD GPU hung and was reset",
        r"amdgpu: The CS has been (cancelled|rejected) because the context is lost|HW Exception by GPU node|"
        r"amdgpu.{0,80}GPU reset begin|amdgpu.{0,80}ring \w[\w.]* timeout|amdgpu.{0,80}(MES failed to respond|VRAM "
        r"is lost)|VRAM is lost due to GPU reset|amdgpu.{0,80}(ib ring test failed|IB test failed on|qcm fence wait "
        r"loop timeout)|reason ?:GPU Hang|amdgpu.{0,80}SMU: I'?m not done with your previous command",
        r"\bMES (might be in unrecoverable state|failed to (respond|respon\w+))|\bMES (0x[0-9a-f]+|firmware|"
        r"ring).{0,60}(hang|hung|timeout)|\b(hang|hung)\b.{0,60}\b(amdgpu|gfx\d+|MES)\b.{0,10}\b(MES|firmware|"
        r"hangcheck|reset)|\bgfx\d+\w?\b.{0,30}\b(hard |GPU |silent )*(hang|hung|lockup|lock-up|freeze)\b",
        meaning="A kernel did not finish, the GPU lost power or clocks, or its firmware failed.",
        fix="install newer linux-firmware, kernel, ROCm and Mesa. AMD_SERIALIZE_KERNEL=3 shows whether one kernel of a "
        "program hangs. Else lower the clocks, or try another GPU. sudo dmesg | grep -i amdgpu names the program",
        weak=(r"\bamdgpu\b.{0,100}(\*ERROR\*|failed|timed? ?out|fault|lost)",),
        follows=("hip.fault",),
    ),
    hint(
        "hip.library",
        "a ROCm library failed",
        r"\bHSA_STATUS_ERROR(_\w+)?\b|fail(ed|s)? to call hip\w+|MIOpen(\(HIP\):)? Error",
        r"miopenStatus(UnknownError|InternalError|NotInitialized|BadParm|AllocFailed)",
        r"(ROCBLAS|HIPBLAS|rocblas|hipblas)_?STATUS_\w+|miopen::(Exception|exec::)|HIPRTC_ERROR_\w+",
        meaning="MIOpen, rocBLAS or hipBLASLt found no way to compute the operation, or an earlier kernel failed.",
        fix="AMD_SERIALIZE_KERNEL=3 python … names the call. As a test, set MIOPEN_FIND_MODE=FAST (convolutions) or "
        "TORCH_BLAS_PREFER_HIPBLASLT=0 (matrix products). If rocm-smi shows full memory, use a smaller batch",
        follows=("hip.fault", "hip.arch", "oom."),
        weak=(
            r"\b(HIP|ROCm)\w* (runtime )?(error|failure|failed)|\bhipError\w+",
            r"HIP kernel errors might be asynchronously reported|TORCH_USE_HIP_DSA",
            r"\b(roc|hip)(blas|fft|solver|sparse|rand)\w*.{0,40}(error|fail)|\bMIOpen.{0,40}(error|fail)",
        ),
    ),
    strong(
        "cuda.shutdown",
        "CUDA was used while the process was ending",
        r"CUDA error: driver shutting down|cudaErrorCudartUnloading|CUDA_ERROR_DEINITIALIZED",
        meaning="A thread or destructor used the GPU after the driver began to stop at the program's end.",
        fix="look at the first error above. Before the main thread ends, end workers and destroy_process_group()",
        symptom=True,
    ),
    strong(
        "cuda.ipc",
        "a CUDA tensor cannot be shared between these processes",
        r"Producer process has been terminated before all shared CUDA tensors released|send CUDA tensor received from "
        r"another process|expandable_segments:True cannot be shared between processes|does not support the pidfd_\w+ "
        r"syscall|CUDA IPC .{0,60}only supports tensors on the same (GPU|node)|IPC handle not found for GPU UUID|"
        r"Error reconstructing CUDA IPC tensor",
        meaning="The sending process must live as long as the receiver uses the tensor. Both must see the same GPU.",
        fix="pass CPU tensors (x.cpu()) between processes; else keep the producer alive, without expandable_segments",
        follows=("oom.", "xid.", "cuda.", "process."),
    ),
    strong(
        "cuda.feature",
        "this GPU's generation lacks what an operation needs",
        r"(supported|available) (only )?(on|for) GPUs with compute capability|requires? (a )?(GPU with )?(CUDA "
        r")?(compute )?capability (of )?(>=|at least|\d)|Rowwise scaling is not currently supported on your device|"
        r"requires? (an? )?(NVIDIA )?(Ampere|Hopper|Blackwell|SM ?\d\d\+) .{0,12}(or|GPU|\(|and)|num_ctas > 1 requires|"
        r"requires? an SM\d+[- ]?class GPU|not supported on .target|Feature '[\w.:]+' requires .target sm_\d+\w?( or "
        r"higher)?|Instruction '[\w.:]+' (cannot be compiled for architecture|without .{0,40}is not supported)|Cannot "
        r"select: (intrinsic )?.{0,60}(%llvm\.nvvm|NVPTX)|GPU does not have enough shared-memory|Cooperative launch "
        r"requested but not supported|Capability [\d.]+\) or newer arch|requires \.target sm_\d+ or higher",
        r"Unsupported compute capability\b|\bkernel \w+ is for sm\d+.{0,20}but was built for "
        r"sm\d+",
        meaning="The operation uses instructions or memory of newer GPUs (8.0 is Ampere, 9.0 Hopper, 10.0 Blackwell).",
        fix="choose another data type, backend or attention in the program (slower), or use a GPU of the named "
        "capability. nvidia-smi --query-gpu=name,compute_cap --format=csv shows this GPU's",
        follows=("cuda.capability", "amp.", "attention.", "quant.", "cutlass.", "xformers."),
    ),
    hint(
        "torch.internal",
        "a check inside torch failed",
        r"INTERNAL ASSERT FAILED at",
        meaning="torch met a state that its authors excluded: a bug, or libraries that do not fit together.",
        fix="search torch's issues for the condition before INTERNAL ASSERT; "
        + _BLOCKING
        + "; try a newer torch in a fresh environment",
        symptom=True,
        follows=("cuda.", "oom.", "cuinit.", "nvml.", "import."),
    ),
    strong(
        "xpu.none",
        "the program finds no Intel GPU",
        r"torch\.xpu\.is_available\(\)\W{0,4}(is|returns?|==|=)?\W{0,3}False|Failed to initiali[sz]e XPU devices",
        r"No XPU (devices?|GPUs?)( is| are| was| were)? (available|found|detected)|no supported devices found or an",
        r"lib(ur_loader|sycl|ze_loader)\.so[.\d]*: cannot open shared object file|Device with GPU name is not",
        r"PI_ERROR_DEVICE_NOT_FOUND|No device of requested type available|XPU device count is zero",
        r"\bXPU is not available\b|Could not load Intel Extension for Tensorflow\W{0,2} GPU backend",
        r"torch\.xpu\.device_count\(\)\W{0,4}((is|returns?|=+) )?\W{0,3}0\b|SYCL runtime fails to find",
        r"\bsycl-ls\b.{0,30}\bonly (lists|shows) .{0,30}cpu\b",
        r"(libmkl_sycl\w*|libze_intel_gpu)\.so[.\d]*: cannot open shared object file|CLDNN ERROR.{0,9}clGetPlatformIDs",
        meaning="Intel's driver (Level Zero) or the permission for /dev/dri is missing, or torch has no XPU.",
        fix="ls -l /dev/dri shows the owners; sudo usermod -aG render,video $USER, then log in again. sycl-ls lists "
        "the driver's devices. OpenVINO needs OpenCL (intel-opencl-icd), a container --device /dev/dri --group-add ID",
        weak=(r"\b(cannot|can'?t|does not|doesn'?t|not) (see|detect|find|recogni[sz]e)\w* .{0,30}\bArc\b",),
        logged=True,
    ),
    proof(
        "xpu.memory_query",
        "this Intel GPU does not report its free memory",
        r"doesn'?t support querying the available free memory",
        meaning="The driver reports it only through Sysman, its management interface. Many integrated GPUs lack that.",
        fix="export ZES_ENABLE_SYSMAN=1 before the program starts. If that does not help, set the size in the program",
    ),
    hint(
        "xpu.call",
        "Intel's driver (Level Zero) refused a call",
        r"\bZE_RESULT_ERROR_INVALID_\w+|-999 \(Unknown PI error\)",
        meaning="A kernel could not be built for this GPU, or Linux, its driver or the GPU lacks what was requested.",
        fix="update Linux (Arc A: 6.2, Arc B: 6.12), intel-compute-runtime and level-zero, and the torch that fits",
        follows=("oom.xpu", "xpu.none", "xpu.lost"),
    ),
    hint(
        "xpu.lost",
        "a call of Intel's GPU driver failed",
        r"\bDEVICE_LOST\b.{0,80}\b(Arc|XPU|SYCL|Intel)\b|\b(XPU|SYCL|Intel|Arc|level[_ ]zero)\b.{0,80}\bDEVICE_LOST\b",
        r"Native API (failed|returns)(?!.{0,40}-999)|PI_ERROR_(OUT_OF_RESOURCES|DEVICE_LOST|DEVICE_NOT_AVAILABLE)",
        r"RuntimeError: UR error|UR_RESULT_ERROR_(?!OUT_OF_(DEVICE|HOST))\w+|(avoid|code: -5|ocl_\w+\.cpp.{0,40}) CL_O",
        follows=("xpu.float64",),
        meaning="The error's name tells the cause: DEVICE_LOST a reset, OUT_OF_RESOURCES memory, INVALID_… the call.",
        fix="sudo dmesg | grep -i -e i915 -e xe shows whether the device was reset. If so, use a smaller batch "
        "(ComfyUI: VAE Decode (Tiled), --lowvram); else a newer compute runtime (intel-compute-runtime, level-zero)",
        weak=(
            r"\b(level[_-]?zero|sycl|xpu|oneapi|unified runtime)\b.{0,80}(error|fail|exception)|\bZE_RESULT_ERROR\w+",
        ),
    ),
    proof(
        "xpu.float64",
        "this Intel GPU has no float64",
        r"Required aspect fp64 is not supported|uses-fp64-math|double type is not supported on",
        meaning="Intel's Arc and integrated GPUs compute no 64-bit floats.",
        fix="use float32: .float(), dtype=torch.float32 (NumPy's arrays are float64). If a library needs float64, "
        "export OverrideDefaultFP64Settings=1 IGC_EnableDPEmulation=1, which emulates it slowly",
    ),
)
