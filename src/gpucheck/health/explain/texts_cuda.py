"""What the CUDA runtime says while kernels run."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.health.explain.text import Text

_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 python …: the traceback then ends at the line that failed"
_SANITIZER = _BLOCKING + "; then `compute-sanitizer python …` names the kernel"
_RUNTIME = "NVIDIA, CUDA Runtime API, cudaError_t"

TEXTS: tuple[Text, ...] = (
    Text(
        "cuda.illegal_access",
        "a kernel touched memory that is not its own",
        messages.BY_ID["cuda.illegal_access"].patterns,
        "Mostly an index out of range, a tensor freed too early, or a custom kernel's bug; now and then out of memory "
        "that a library did not notice. The line in the traceback is where it was noticed, not where it happened. The "
        "process cannot use the GPU any more.",
        _SANITIZER,
        "proof",
        source=_RUNTIME,
    ),
    Text(
        "cuda.misaligned",
        "a kernel read at an address that is not a multiple of its element",
        messages.BY_ID["cuda.misaligned"].patterns,
        "A custom or compiled kernel got a view that begins at an odd offset. The process cannot use the GPU any more.",
        _SANITIZER + "; a .contiguous() or .clone() before the call works around it",
        "proof",
        source=_RUNTIME,
    ),
    Text(
        "cuda.illegal_instruction",
        "a kernel met an instruction that the GPU does not know",
        messages.BY_ID["cuda.illegal_instruction"].patterns,
        "A kernel's bug, or code that was built for another architecture; seldom the hardware.",
        "gpucheck smoke --device cuda; if it passes, the kernel of the traceback is at fault",
        source=_RUNTIME,
    ),
    Text(
        "cuda.launch_failure",
        "a kernel crashed",
        messages.BY_ID["cuda.launch_failure"].patterns,
        "Mostly memory that it may not touch; the driver knows no more. The process cannot use the GPU any more.",
        _SANITIZER + "; sudo dmesg | grep -i xid shows what the driver noted",
        source=_RUNTIME,
    ),
    Text(
        "cuda.device_assert",
        "a check inside a kernel failed",
        messages.BY_ID["cuda.device_assert"].patterns,
        "A kernel found a value that it must not get: mostly an index or a label out of range. Which one stands in "
        "the lines 'Assertion … failed' above, and the same step on the CPU says it in plain words.",
        "run the step on the CPU, or " + _BLOCKING,
        "proof",
        symptom=True,
        source=_RUNTIME,
    ),
    Text(
        "assert.index",
        "an index is out of range",
        (
            r"Assertion [`']?srcIndex < srcSelectDimSize",
            r"index out of bounds[`'\"]* failed",
            r"-sizes\[i\] <= index && index < sizes\[i\]",
            r"idx_dim >= 0 && idx_dim < index_size",
            r"vectorized_gather_kernel",
            r"\bindex out of range in self\b",
            r"\bindex -?\d+ is out of bounds for dimension \d+ with size \d+",
        ),
        "An index into a tensor is negative or beyond its end: in an embedding, a token that is not in the "
        "vocabulary; else in gather, index_select or x[i].",
        "compare index.max() and index.min() with the size of the dimension; for a language model len(tokenizer) with "
        "model.get_input_embeddings().num_embeddings",
        "proof",
    ),
    Text(
        "assert.label",
        "a label is no class of the loss",
        (
            r"t >= 0 && t < n_classes",
            r"cur_target >= 0 && cur_target < n_classes",
            r"Target -?\d+ is out of bounds",
        ),
        "cross_entropy or nll_loss got a target that is negative or not below the number of classes. Labels begin at "
        "0; what is to be left out is ignore_index, −100.",
        "print(target.min(), target.max(), logits.shape[1])",
        "proof",
    ),
    Text(
        "assert.bce",
        "binary cross entropy got a value outside 0 to 1",
        (r"input_val >= zero && input_val <= one", r"all elements of (input|target) should be between 0 and 1"),
        "binary_cross_entropy wants probabilities: a sigmoid is missing, or a value is NaN.",
        "use binary_cross_entropy_with_logits, and look for NaN with torch.isfinite(x).all()",
        "proof",
    ),
    Text(
        "assert.probabilities",
        "sampling got probabilities that are infinite, NaN or negative",
        (
            r"probability tensor contains either [`']?inf",
            r"invalid multinomial distribution",
            r"cumdist\[size - 1\] > .{0,40}0",
        ),
        "The model's output is not finite: mostly float16 that overflowed, a wrong attention mask, or weights that "
        "did not load.",
        "torch.isfinite(logits).all() before the sampling; bfloat16 in place of float16 overflows far later",
        "proof",
    ),
    Text(
        "cuda.launch_timeout",
        "a kernel ran longer than the display driver allows",
        messages.BY_ID["cuda.launch_timeout"].patterns,
        "A GPU that drives a screen ends a kernel after some seconds (on Windows two).",
        "smaller kernels (a smaller batch), another GPU, or a longer limit: TdrDelay on Windows",
        "proof",
        source=_RUNTIME,
    ),
    Text(
        "cuda.no_kernel",
        "this torch has no code for this GPU's architecture",
        messages.BY_ID["cuda.no_kernel"].patterns,
        "The wheel, or the extension that the traceback names, was built for other architectures than this GPU's. "
        "`torch.cuda.get_arch_list()` shows torch's own.",
        "gpucheck doctor names the wheel that has it; an extension has to be built with TORCH_CUDA_ARCH_LIST set",
        "proof",
        source="pytorch issue 167244",
    ),
    Text(
        "cuda.capability",
        "this torch does not support this GPU",
        (
            r"with CUDA capability sm_\d+ is not compatible with the current PyTorch installation",
            r"The current PyTorch install supports CUDA capabilities",
            r"PyTorch no longer supports this GPU because it is too old",
            r"which is of cuda capability \d\.\d",
        ),
        "The GPU is newer or older than every architecture that the wheel was built for. torch.cuda.is_available() is "
        "True all the same.",
        "gpucheck doctor names the wheel that has it",
        "proof",
        source="torch/cuda/__init__.py; pytorch issue 167244",
    ),
    Text(
        "cuda.ordinal",
        "there is no GPU of this number",
        (r"invalid device ordinal", r"CUDA_ERROR_INVALID_DEVICE", r"Invalid device id"),
        "The program asks for cuda:N and fewer than N + 1 are visible. CUDA_VISIBLE_DEVICES renumbers from 0; a "
        "launcher may also have started more processes than there are GPUs.",
        "gpucheck devices",
        "proof",
    ),
    Text(
        "cuda.count_assert",
        "torch's count of GPUs contradicts CUDA's",
        (r"device < num_gpus.{0,60}INTERNAL ASSERT FAILED",),
        "torch counted with NVML and CUDA shows fewer: a MIG instance, or CUDA_VISIBLE_DEVICES that the two read "
        "differently.",
        "gpucheck doctor; with MIG give one instance's UUID in CUDA_VISIBLE_DEVICES",
        source="pytorch issues 110000 and 130181",
    ),
    Text(
        "cuda.initialization",
        "CUDA was used in a process that was forked after CUDA had started",
        (r"CUDA error: initialization error",),
        "A forked child inherits a CUDA that it cannot use. Mostly a DataLoader worker, or multiprocessing's fork, "
        "touches a CUDA tensor.",
        'keep CUDA out of Dataset and collate_fn, or multiprocessing.set_start_method("spawn")',
    ),
    Text(
        "cuda.fork",
        "CUDA cannot start in a forked process",
        (r"Cannot re-initialize (CUDA|XPU|MTIA) in forked subprocess",),
        "CUDA had started in the parent, be it by torch.cuda.is_available() alone, and the child was forked.",
        'multiprocessing.set_start_method("spawn") first of all, or touch CUDA only in the children; '
        "PYTORCH_NVML_BASED_CUDA_CHECK=1 makes is_available() harmless",
        "proof",
        source="torch/cuda/__init__.py",
    ),
    Text(
        "cuda.peer",
        "two GPUs cannot read each other's memory",
        (r"peer access is not supported between these two devices", r"peer mapping resources exhausted"),
        "Direct copies between these two are not possible here, or too many are mapped (eight at most).",
        "NCCL_P2P_DISABLE=1; `gpucheck bench transfer --device all` shows which pairs can",
    ),
    Text(
        "cuda.ecc",
        "the GPU's memory had an error that it could not correct",
        messages.BY_ID["cuda.ecc"].patterns,
        "Data were lost. The process has to end; if it comes again the card is failing.",
        "gpucheck devices shows the counters; then sudo nvidia-smi --gpu-reset, or reboot",
        "proof",
        source=_RUNTIME,
    ),
    Text(
        "cuda.nvlink",
        "NVLink had an error that it could not correct",
        messages.BY_ID["cuda.nvlink"].patterns,
        "A link between GPUs lost data.",
        "nvidia-smi nvlink -e; reset the GPUs or reboot",
        "proof",
        source=_RUNTIME,
    ),
    Text(
        "cuda.hardware_stack",
        "a kernel's call stack was damaged",
        messages.BY_ID["cuda.hardware_stack"].patterns,
        "A stack that was overwritten, or the hardware.",
        _SANITIZER + "; gpucheck smoke --device cuda",
        "hint",
        source=_RUNTIME,
    ),
    Text(
        "cuda.program_counter",
        "a kernel left its own code",
        messages.BY_ID["cuda.program_counter"].patterns,
        "A function pointer or a kernel's memory was overwritten; seldom the hardware. The process cannot use the GPU "
        "any more.",
        _SANITIZER,
        "strong",
        source=_RUNTIME,
    ),
    Text(
        "cuda.contained",
        "the GPU's hardware reported an error of its own",
        messages.BY_ID["cuda.contained"].patterns,
        "Data of this process were lost, and the error was kept from others. The process has to end; if it comes again "
        "the card is failing.",
        "gpucheck devices; sudo dmesg | grep -i xid shows what the driver noted",
        source=_RUNTIME,
    ),
    Text(
        "cuda.handle",
        "a stream, event or handle belongs to another device or context",
        (r"invalid resource handle",),
        "Mostly a stream or event that was made on another GPU, or a process that was forked.",
        "make streams under torch.cuda.device(N) of the tensors that they work on",
    ),
    Text(
        "cuda.argument",
        "CUDA was called with a value that it does not take",
        (
            r"CUDA error: invalid argument",
            r"CUDA_ERROR_INVALID_VALUE",
            r"cuda runtime error \(11\) ?: invalid argument",
        ),
        "The message does not say which. Common causes are an extension built for another torch, and memory that is "
        "pinned twice.",
        _BLOCKING,
        "hint",
    ),
    Text(
        "cuda.capture",
        "an operation is not allowed while a CUDA graph is recorded",
        (
            r"operation not permitted when stream is capturing",
            r"operation would make the legacy stream depend on a capturing",
            r"cudaErrorStreamCapture",
            r"operation failed due to a previous error during capture",
        ),
        "Synchronising, .item(), .cpu(), an allocation outside the graph's pool or the first call of cuBLAS happened "
        "during the capture.",
        "warm up on a side stream before the capture, and keep .item() and prints out of it",
        "proof",
    ),
    Text(
        "cuda.ptx",
        "the driver is too old to compile this PTX",
        (r"the provided PTX was compiled with an unsupported toolchain", r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        "Code that is compiled at run time (Triton, NVRTC) came from a newer CUDA than the driver's, of the same major "
        "version.",
        "update the driver, or use a torch built for the CUDA version that nvidia-smi shows",
        source=_RUNTIME,
    ),
    Text(
        "hip.arch",
        "ROCm has no code for this GPU",
        (
            r"HIP error: invalid device function",
            r"hipErrorInvalidDeviceFunction",
            r"rocBLAS error: Cannot read .{0,200}TensileLibrary",
        ),
        "The wheel was not built for this AMD GPU (gfx number).",
        "use a wheel that lists the GPU; HSA_OVERRIDE_GFX_VERSION of a near relative, such as 10.3.0, is a workaround",
    ),
    Text(
        "hip.none",
        "ROCm finds no GPU, or may not open it",
        (
            r"No HIP GPUs are available",
            r"Unable to open /dev/kfd",
            r"hipErrorNoDevice",
            r"HIP error: no ROCm-capable device is detected",
        ),
        "ROCm needs to read and write /dev/kfd and /dev/dri/render*: the user is not in the groups render and video, a "
        "container was not given them, or the kernel's amdgpu does not serve this GPU for computing.",
        "ls -l /dev/kfd /dev/dri; sudo usermod -aG render,video $USER, then log in anew; a container: "
        "--device /dev/kfd --device /dev/dri",
    ),
    Text(
        "hip.fault",
        "a kernel touched memory that is not its own (ROCm)",
        messages.BY_ID["hip.fault"].patterns,
        "The address that was used belongs to no memory of the process: an index out of range, or code that was built "
        "for another GPU.",
        "AMD_SERIALIZE_KERNEL=3 shows which call it is",
    ),
    Text(
        "xpu.lost",
        "the Intel GPU does not answer any more",
        messages.BY_ID["xpu.lost"].patterns,
        "The driver reset the device, or ran out of its own resources: mostly a kernel that took too long or too much "
        "memory.",
        "a smaller batch; sudo dmesg | grep -i -e i915 -e xe",
        "hint",
    ),
)
