"""Texts of DataLoader workers, shared memory and processes, and of packages built on torch: attention, quantisation,
model servers, and building them.
"""

from __future__ import annotations

from gpucheck import messages
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import BACKEND, hint, proof, strong

_SHM = (
    "docker run --shm-size=8g … or --ipc=host (in Kubernetes an emptyDir of medium Memory as /dev/shm); df -h /dev/shm "
    "shows its size"
)

# Errors that may end a process by a signal, or that are its cause if both are in the same text.
_ERRORS = ("oom.", "cuda.", "nccl.", "shm.", "loader.", "xid.", "assert.", "import.", "hip.", "cuinit.", "compile.")

# Words that attribute a Python error to torch.
_TORCH = r"\b(py)?torch\b|torch/|dataloader|lightning[._]|accelerate|deepspeed"
# Errors that may be the cause of a message of vLLM, SGLang or DeepEP, if both are in the same text.
_BELOW = (
    *("oom.", "cuda.", "cuinit.", "nvml.", "import.", "compile.", "nccl.", "dist.", "quant.", "attention.", "amp."),
    *("mask.", "torch.", "cudnn.", "cublas.", "shm.", "build.", "nvcc.", "tensor.", "assert.", "process.", "crash."),
    *("hip.", "loader."),
)

# Programs that compute with Vulkan. Errors of games are not matched.
_VULKAN_USERS = r"llama|ggml|gguf|lm ?studio|koboldcpp|whisper|ncnn|torch|vulkan backend"

TEXTS: tuple[Condition, ...] = (
    strong(
        "shm.bus",
        "a process, usually a DataLoader worker, found no space in /dev/shm (shared memory)",
        r"is killed by signal: Bus error|Unexpected bus error encountered in worker",
        r"dataloader'?s workers are out of shared memory|insufficient shared memory \(shm\)",
        r"\b(default|only) .{0,20}64 ?Mi?B? .{0,4}/dev/shm|shutdown with signal 7\b",
        meaning="Workers pass batches through shared memory. A container's /dev/shm is 64 MiB by default.",
        fix=_SHM + ". Or use num_workers=0",
    ),
    strong(
        "shm.open",
        "shared memory for a tensor could not be created",
        r"unable to open (file|shared memory object) </?torch_|unable to (mmap|resize|allocate) .{0,40}(shared memory|"
        r"file </?torch)|unable to write to file </?torch_|torch_shm_manager|No space left on device\W{1,3}/dev/shm",
        r"initialize shared memory key",
        r"multiprocessing.{0,200}\bctx\.\w*(Lock|Semaphore)\(.{0,40}No space left on device",
        meaning="/dev/shm is full or not writable, or too many files are open: each shared tensor is one.",
        fix=_SHM + ". Also set ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
        common=(r"unable to open shared memory object|Couldn'?t allocate shared memory segment",),
        follows=("loader.files",),
    ),
    proof(
        "process.main",
        "the program starts processes while it is imported: no __main__ guard",
        r"attempt has been made to start a new process before the current process has finished its bootstrap",
        r"num_workers.{0,200}\bscript (itself )?(re-?runs|is run again|runs (again|twice))",
        meaning="A spawned process imports the program's file again, and that import starts processes again.",
        fix='put the start of the program under if __name__ == "__main__":, or use num_workers=0',
    ),
    strong(
        "process.pickle",
        "a worker process cannot receive an object, because it cannot be pickled",
        meaning="Windows, macOS and spawn pickle the dataset, transforms, collate_fn and hooks for each worker.",
        fix="move the named lambda or inner function or class to the top level of a .py file (also from a notebook), "
        "and open files and databases (lmdb, HDF5) in the first __getitem__; or use no worker (num_workers = 0)",
        common=(
            r"Can'?t (pickle|get) local object|(can'?t|cannot) pickle \S{1,60} objects?|objects? cannot be pickled|"
            r"Can'?t pickle <|Can'?t get attribute .{1,60} on <module '?__m",
        ),
        beside=r"dataloader|num_?workers|torch[/\\.](utils[/\\.]data|multiprocessing)",
        unless=r"torch[/\\]serialization\.py|torch\.(save|load)\(",
    ),
    proof(
        "loader.files",
        "too many files are open",
        r"received \d+ items of ancdata|Too many open files\. ?Communication with the workers is no longer possible",
        meaning="Every tensor that a worker passes uses a file descriptor until it is freed.",
        fix="ulimit -n 65536 in the shell that starts it (Slurm, systemd and Docker set other limits), and clone "
        "tensors of batches that you keep in a list. Else torch.multiprocessing.set_sharing_strategy('file_system')",
        common=(r"\[Errno 24\]", r"Too many open files"),
        beside=_TORCH + r"|\bmultiprocessing\b",
    ),
    strong(
        "loader.killed",
        "a DataLoader worker was killed",
        r"DataLoader worker \(pid \d+\) is killed by signal: Killed",
        meaning="The OOM killer or a user ended it. Each worker has a copy of the dataset's Python objects.",
        fix="sudo dmesg | grep -i oom; use fewer workers, a smaller prefetch_factor, or arrays instead of lists",
    ),
    strong(
        "loader.crashed",
        "a DataLoader worker crashed",
        r"DataLoader worker \(pid \d+\) is killed by signal: (Segmentation|Aborted|Illegal|Floating)",
        r"Unexpected (segmentation fault|floating-point exception) encountered in worker",
        meaning="A library in __getitem__ crashed: OpenCV's threads, a decoder, or HDF5 opened before the fork.",
        fix="num_workers=0 or PYTHONFAULTHANDLER=1 shows the line. Call cv2.setNumThreads(0); open files in the worker",
    ),
    proof(
        "loader.exited",
        "a DataLoader worker is gone",
        r"DataLoader worker \(pid(\(s\))? [\d, ]+\) exited unexpectedly|background workers are no longer alive",
        r"rebuild_storage_f(d|ilename)\b.{0,900}(ConnectionReset|ConnectionRefused|EOF|FileNotFound)Error",
        r"DataLoader worker \(pid \d+\) is killed by signal|(Error: |raise .{0,20})?Pin memory thread\b",
        meaning="The message does not name the cause. See the worker's earlier output on stderr.",
        fix="num_workers=0 shows the real error; sudo dmesg | grep -i -e oom -e killed shows whether RAM was full",
        symptom=True,
    ),
    strong(
        "process.threads",
        "the system cannot start more threads",
        meaning="The process limit (ulimit -u, a container's pids limit) or the memory limit is reached.",
        fix="set OMP_NUM_THREADS=1 for workers, or raise ulimit -u or docker run --pids-limit",
        common=(
            "OpenBLAS blas_thread_init: pthread_create failed|Resource temporarily unavailable.{0,40}(thread|fork)",
            messages.NO_THREAD,
        ),
        beside=_TORCH,
    ),
    hint(
        "crash.segfault",
        "the process crashed in compiled code",
        r"Signal 11 \(SIGSEGV\)|Segfault encountered|\A\W*(fatal python error: )?(segfault|"
        r"segmentation fault)( \(core dumped\))?\W*\Z|ERROR: Unexpected segmentation fault encountered in worker",
        r"(exitcode ?:|exits with return code =) ?-11\b|to shutdown with signal 11\b",
        r"segmentation fault +(\(core dumped\) +)?nvidia-smi\b",
        weak=(r"\bcrash\w*\b.{0,80}\bcore dump(ed)?\b",),
        meaning="Libraries do not fit together (an extension was built for another torch), or a driver fails.",
        fix="python -X faulthandler … shows the line. Then run it in a fresh environment with only torch",
        symptom=True,
        common=(
            r"\b(segfaults?|segmentation fault)\b.{0,20} (on|in|with|when|during|at|after)\b|\bsegmentation faults? "
            r"(result|error)s?\b|\b(SIGSEGV|exit code 139|signal 11)\b|(exit|return) ?code ?[=:]? ?-11\b|"
            r"\b(Segmentation fault|segfault)\W*$",
            "Process finished with exit code -10737(41819|40791)|Segmentation fault: address not mapped|Floating "
            r"point exception \(core|Floating point exceptionPYTHON|SIGFPE \(@|\(0xC0000(005|409)(?!\w)|(status|code) "
            "322122(5477|6505)|exception: access violation|Fatal Python error: Segmentation fault|Segmentation fault "
            r"\(core dumped\)",
        ),
        follows=_ERRORS,
    ),
    hint(
        "crash.abort",
        "the process aborted in compiled code (SIGABRT)",
        r"Signal 6 \(SIGABRT\)|exitcode ?: ?-6\b",
        meaning="A library printed an error before: a C++ exception (`what():`), an assertion, or NCCL's watchdog.",
        fix="explain the lines before the abort: they name the cause",
        symptom=True,
        common=(
            r"double free (detected in tcache|or corruption)|corrupted size vs|malloc\(\): |free\(\): invalid|SIGABRT "
            r"received at time|Fatal Python error: Aborted|died with <?(Signals\.)?SIGABRT|Aborted \(core dumped\)",
            r"terminated with signal SIGABRT|return ?code ?[=:]? ?-6\b",
        ),
        follows=_ERRORS,
    ),
    strong(
        "crash.bus",
        "the process read memory that does not exist",
        r"Signal 7 \(SIGBUS\)|exitcode ?: ?-7\b|exits with return code = -7\b",
        r"\A\W*bus error( \(core dumped\))?\W*\Z|Caught signal 7 \(Bus error: nonexistent|to shutdown with signal 7\b",
        meaning="Usually /dev/shm is full. Else a memory-mapped file was truncated while it was read.",
        fix=_SHM + ". df -h of the folders of data, checkpoints and caches shows whether a disk is full",
        symptom=True,
        common=(
            r"\bSIGBUS\b|(exit|return) ?code ?[=:]? ?-7\b|Caught signal 7 \(Bus error|Bus error \(core dumped\)",
            r"\bBus error$",
        ),
        follows=_ERRORS,
    ),
    strong(
        "attention.package",
        "flash-attn is missing, built for another torch, or cannot be built",
        r"(flash|sage)[-_ ]?att\w*\b (does not|doesn't|won't|cannot|can't|not|fails to|failed to) (install|build|"
        r"compile)\w*|(flash|sage)[-_ ]?att\w*(\(\))?( got)? an unexpected keyword|FAILED: \S*(flash-|"
        r"sage)attention\S*\.(o|so|obj)\b|\bNo module named '?(flash|sage)_?att\w*",
        r"(install|build|compil)\w* (of )?(flash|sage)[-_ ]?att\w* .{0,20}(fail|error|stuck|hang)|"
        r"flash_?attn\w*[\w./-]*\.so[.\d]*: (undefined symbol(?!: cu[mtligde])|cannot open)|DLL load failed while "
        r"importing flash_attn\w*|you need flash_?attn package version|SM\d+ kernel is not available|GPU_ARCHS not set "
        r"and|while importing _(qattn|fused)|cannot import name '?\w+'? from '?(flash_?attn|sage_?att)|(Failed "
        r"building wheel for|Failed to build|ERROR: Could not build wheels for) flash[-_]attn|flash[-_ ]?attn\w* "
        ".{0,20}(is not installed|not installed|not be installed)|flash[-_]?attention.{0,40}(is not installed|not "
        "installed|not available(?! on CPU))|Please install flash[-_ ]attn|`?sageattention`? package must be "
        r"installed|\W?sageattn\W? is not defined|(?<![/_])flash_attn(?!/).{0,300}(error: subprocess-exited-with-error|"
        r"CUDA_HOME|RuntimeError: Error compiling objects)|undefined symbol: \w*flash\w*|FlashAttention(-\d)? is only "
        r"supported on CUDA [\d.]+ and above",
        meaning="flash-attn is compiled code: a wheel fits one torch, one CUDA, one Python and one C++ ABI.",
        fix='set attn_implementation="sdpa", which does not need it. Else install the wheel of its releases page for '
        "your torch, CUDA, Python and cxx11abi (pip list | grep -i torch), or pip install wheel packaging ninja "
        "psutil, then MAX_JOBS=4 pip install flash-attn --no-build-isolation with the CUDA toolkit of torch's CUDA",
        follows=("build.", "nvcc.", "cuinit.", "torch.cpu_only", "torch.no_accelerator"),
        wraps=(r"Flash ?Attention ?\d? has been toggled on, but it cannot be used",),
        # The package may also have no code for this GPU.
        weak=(
            r"(flash|sage)[-_ ]?att\w*\b (does not|doesn't|won't|cannot|can't|not|fails to|failed to) (work|run)\w*",
        ),
    ),
    strong(
        "xformers.setup",
        "xformers does not fit this torch, or has no code for this GPU",
        r"xFormers can't load C\+\+/CUDA extensions|xFormers wasn'?t build with CUDA support",
        r"xFormers was built for:|No operator found for `?memory_efficient_attention_(forward|backward)",
        r"\bNo module named '?xformers\b",
        r"xformers[\w./-]*\.so[.\d]*: undefined symbol|DLL load failed while importing _C.{0,200}xformers",
        r"xformers is not (available|installed)|requires device with capability .{0,60}but your GPU has capability",
        r"Refer to https://github.com/facebookresearch/xformers for more information on how to install",
        r"Could not run 'xformers::\w+'|torch\.ops\.xformers\.\w+|_OpNamespace' 'xformers",
        meaning="xformers is compiled for one torch and CUDA. Another torch, or one for the CPU, finds none of its "
        "kernels. Existing kernels may still not support the GPU, the data type or the shape.",
        fix="pip uninstall xformers, because torch's own attention (sdpa) replaces it; else install the release for "
        "this torch (its release notes name it) with --no-deps, and check python -m xformers.info",
        follows=("cuinit.", "torch.cpu_only", "attention.kernel"),
    ),
    strong(
        "bitsandbytes.setup",
        "bitsandbytes finds no CUDA library",
        r"bitsandbytes library load error|Configured \w+ binary not found|CUDA Setup failed despite (GPU|CUDA) being "
        "available|bitsandbytes was compiled without GPU support|CUDA[ _]?SETUP: (Required library version|CUDA "
        r"detection failed|Something unexpected|WARNING!)|Required library version not found: libs?bitsandbytes\w*|"
        "requires? (the latest version of )?bitsandbytes|Could not (find|load) (the )?bitsandbytes (CUDA binary|"
        r"native library)|libbitsandbytes\w*\.(so|dll)[.\d]*: (cannot open|undefined symbol)|'?NoneType'? object has "
        r"no attribute '?c(get_|d?e?quantize|adam|igemm|extract_|lion|sgd_)\w*|Attempted to use bitsandbytes native "
        "library functionality but it'?s not available|Using `?bitsandbytes`? .{0,40}requires (the|Accelerate.{0,60} "
        "and the latest)|bitsandbytes.{0,60}(no (gpu|cuda) (found|detected)|CUDA (is )?not available)|"
        r"libbitsandbytes_cpu\.(so|dll)|Could not find module .{0,200}libbitsandbytes_\w+\.dll|CUDA SETUP: Loading "
        r"binary .{0,200}libbitsandbytes\w*\.(so|dll).{0,40}argument of type .{0,3}WindowsPath|argument of type "
        "'?WindowsPath'? is not iterable|not available in CPU-only version of bitsandbytes|No compatible (CUDA|ROCm|"
        r"HIP|XPU|nccl|\w+) binary found at|Error named symbol not found at line \d+ in file|version of "
        "`?bitsandbytes`? that is not compatible|need to install `?pip install bitsandbytes|None of the available "
        "devices .{0,80}supported by the bitsandbytes|No supported devices found for bitsandbytes|Could not detect "
        r"ROCm GPU architecture|bitsandbytes: failed to load backend|did not contain .{0,4}libcudart\.so.{0,60} as "
        "expected",
        r"\bNo module named '?(bitsandbytes|triton\.ops)\b|\bNo (package metadata was found for )?bitsandbytes( /|$)",
        meaning="This release has no library for torch's CUDA, or torch is built for the CPU or sees no GPU.",
        fix="pip install -U bitsandbytes; python -m bitsandbytes shows what it needs. python -c 'import torch; "
        "print(torch.version.cuda, torch.cuda.is_available())' must print a CUDA version and True",
        follows=("cuinit.1", "cuinit.8", "cuinit.9", "cuinit.too_old", "torch.cpu_only", "import.libcuda"),
    ),
    strong(
        "accelerate.offload",
        "the model does not fit on the GPUs and would use the CPU or the disk",
        "We need an `?offload_dir`? to dispatch this model|(pass along|provide|specify) (an|a) `?offload_folder|(will "
        "be|had weights|were) offloaded to (the )?disk|modules are dispatched on the CPU or the disk|device_map that "
        "contains an? (CPU|disk)|does not support CPU or disk (offload|in the device_map)|You are attempting to "
        r"perform (cpu|disk)[\w/]* offload|Disk offload is not supported|loaded in 8-bit or 4-bit precision with CPU "
        "or disk offload|parameters are on the meta device because they were offloaded|Offloaded module must fit in "
        "CPU memory|offloaded layers, which seems does not fit any GPU'?s remaining memory|Found modules on cpu/disk|"
        "trying to offload the whole model to the disk",
        meaning="device_map fills the GPUs first and puts the rest on the CPU and the disk.",
        fix="nvidia-smi shows other holders of memory: end them, or use a smaller model or more GPUs. Slow, from the "
        'disk: offload_folder="x" in from_pretrained (8 bits: llm_int8_enable_fp32_cpu_offload=True)',
        follows=("bitsandbytes.setup", "torch.cpu_only"),
    ),
    proof(
        "accelerate.device_map",
        "several processes train a model that device_map spreads over the GPUs",
        r"You can'?t train a model that has been loaded (with `?device_map|in 8-bit or 4-bit precision on)",
        r"(incompatible|not compatible) with (DDP\. Maybe you loaded your model with|passing a) "
        r"`?(`?low_cpu_mem_usage=True`? or with passing a `?)?device_map",
        r"`?(device_map|tp_plan|Tensor parallelism)`? and `?(device_map|tp_plan)`? are mutually exclusive",
        meaning="Data-parallel training and ZeRO-3 place a whole model, or a shard of it, in each process.",
        fix='set device_map={"": int(os.environ["LOCAL_RANK"])} to use each process\'s own GPU (with ZeRO-3 no '
        'device_map at all). Or start one process without torchrun and accelerate launch, with device_map="auto"',
    ),
    strong(
        "deepspeed.zero3",
        "ZeRO-3 lost track of which parameters a step uses",
        r"tracing error at step \d+|assert not param\.ds_active_sub_modules|still have inflight params|ZeRO parameter "
        r"intra parallel group is already initialized|'?ds_numel'?: ?\d+.{0,300}'?ds_shape|'?status'?: ?'?(AVAILABLE|"
        "NOT_AVAILABLE|INFLIGHT)|backward pass is invalid for module in evaluation mode",
        meaning="ZeRO-3 expects the same order of modules in every step and on every rank. The data changed it.",
        fix="for experts, call deepspeed.utils.set_z3_leaf_modules(model, [MoE class]). Else try a newer DeepSpeed, "
        'use_reentrant=False, and as a test "stage": 2, which gathers no parameters',
    ),
    hint(
        "vllm.start",
        "vLLM did not start, or stopped",
        r"Process (EngineCore|VllmWorker)\w*: ?$|\bNo module named '?vllm(\._C|\.\w+)*|\b(hangs?|stuck) "
        r".{0,60}\btensor[-_ ]parallel|\btensor[-_ ]parallel[\w -]{0,12}[ =]\d.{0,400}\b(hangs?|hung|hanging|stuck|"
        r"freezes|freezing)\b",
        r"RPC call to \w+ timed out|No available shared memory broadcast block found|Current node has no GPU available|"
        "Engine process failed to start|(EngineCore|EngineDeadError).{0,60}(encountered an (issue|fatal)|encountered "
        "a fatal)|EngineDeadError|Engine loop (is dead|has died)|Background loop (has errored already|is stopped)|"
        r"(WorkerProc|VllmWorker\S*|EngineCore\w*) (initialization failed|failed to start|hit an exception|died)|Model "
        "architectures? .{0,80}failed to be inspected",
        meaning="The server's engine runs in separate processes. Their parent printed this message.",
        fix="explain the whole log from the first ERROR on: vllm serve … 2>&1 | tee vllm.log, then gpucheck explain < "
        "vllm.log. --enforce-eager and VLLM_LOGGING_LEVEL=DEBUG distinguish compile and graph failures",
        symptom=True,
        weak=(r"vllm[/\\](v1[/\\])?(executor|engine|worker|entrypoints|core|compilation)[/\\]",),
        follows=_BELOW,
    ),
    strong(
        "sglang.start",
        "SGLang did not start, or stopped",
        r"Scheduler watchdog timeout|Scheduler hit an exception|Received sigquit from a child process?|Rank \d+ "
        r"scheduler (is dead|died|exited)|Initialization failed\. warmup error|sglang.{0,200}(Initialization failed|"
        "child process(es)? (died|failed|exited))|sglang.{0,200}scheduler process .{0,40}(died|exited|failed)|TP rank "
        r"\d+ could finish the model loading, but there are other ranks",
        meaning="The server's schedulers run in separate processes, and their parent printed this message. The cause "
        "is in the traceback after 'Scheduler hit an exception', usually of the first rank.",
        fix="explain the whole log: python -m sglang.launch_server … 2>&1 | tee log, then gpucheck explain < log",
        symptom=True,
        weak=(r"sglang[/\\]srt[/\\](managers|model_executor)[/\\]",),
        follows=_BELOW,
    ),
    proof(
        "quant.dtype",
        "the GPU lacks the data type of this quantised or low-precision kernel",
        r"GPU architecture \W?\d+\W? due to the lack of .{0,20}tensor ?cores|_scaled_mm.{0,40}only supported (on|for)|"
        r"due to the lack of \d-?bit tensor ?cores|use \W?(fp4|int4|fp8|nvfp4)\W? quantization for \w+ GPUs|"
        r"deep_?gemm.{0,120}Unsupported architecture|The quantization method \w+ is not supported for the current GPU|"
        r"Min(imum)? capability: \d+\..{0,4}Current capability: \d+|Quantization scheme is not supported|quantization "
        r"(is )?not support\w* .{0,4}(the current GPU|sm_?\d)|fp8e\w+ not supported in this architecture|fp8e4nv data "
        "type is not supported on CUDA arch|The supported fp8 dtypes are|capability .{0,30}(required|needed) for (fp8|"
        r"AWQ|GPTQ|Marlin|NVFP4|MXFP4)|only supported on CUDA ?>= ?8\.9|torch\.\w+ is not supported for quantization "
        "method|Requested (int8_)?b?float16 compute type, but the target device|MXFP4 quantization (requires model|is "
        "only supported on GPUs)|Current GPU .{0,40}does not support (fp8|FP8|bfloat16 quant|int4)|quantization is "
        r"currently not supported in (cuda|rocm|cpu|tpu|xpu|hpu)|Unsupported conversion from \W?f8E\w+|FP8 is not "
        "available on this machine|compute capability .{0,40}insufficient for FP8",
        r"\bfp8\b.{0,40}(only supported on|requires?|needs?).{0,40}(capability|8\.9|9\.0|H100|4090|Hopper|Ada\b)|"
        r"\b(AWQ|GPTQ|Marlin|fp8|NVFP4|MXFP4)\w* .{0,40}requires? .{0,30}(capability|sm_?\d\d|Hopper|Blackwell)|\b(AWQ|"
        r"GPTQ|Marlin|fp8|NVFP4|MXFP4) .{0,30}not supported (on|for|by) (this|your|the) .{0,9}(GPU|arch)|\b(awq|gptq|"
        r"marlin|fp8|nvfp4|mxfp4)\w* (quantization )?is not supported for (device )?capability",
        meaning="Float8 needs capability 8.9 or 9.0, NVFP4 and MXFP4 10.0, AWQ's and GPTQ's kernels 7.5 or 8.0.",
        fix="use weights in a format of this GPU: bfloat16, float16, int8, 4-bit GPTQ or GGUF (6.0), AWQ (7.5)",
    ),
    strong(
        "quant.extension",
        "a package's compiled kernels are not installed",
        r"\bkernels? (are |is )?(unavailable|not available|not found|missing)\b.{0,80}No module named",
        r"Found empty \W?transformer-engine|transformer_engine\S+ in _load_library.{0,200}StopIteration|"
        r"CUDA extension not installed|import \W?autogptq_cuda",
        r"_OpNamespace'? '?(?!torchvision|xformers)\w+'? object has no attribute|kernels for auto_gptq are not",
        r"does not have one of build variants|MXFP4 quantization requires \W{0,2}triton .{0,20}kernels installed",
        r"(autogptq|exllama|awq|gptqmodel|marlin)\w*_?(cuda|ext|kernel)\w*.{0,40}not (installed|found|available)",
        r"(No module named|\bname) \W?(autogptq_\w*cuda|exllamav?[23]?_(kernels|ext)|awq_(v2_)?(ext|inference_\w+))\b",
        r"No module named \W?(nvdiffrast|diff_gaussian_rasterization|simple_knn|gsplat|spconv|cumm|pytorch3d|"
        r"kaolin|mamba_ssm|causal_conv1d|transformer_engine|deep_(gemm|ep)|flashinfer|sgl_kernel|natten|tinycudann|"
        r"cumesh|o_voxel|flex_gemm|pointnet2_ops|MultiScaleDeformableAttention|fbgemm_gpu|nunchaku|torchao)\b",
        meaning="It was installed without its CUDA code, because the wheel is for another torch, Python or system.",
        fix="install the wheel that its release notes name for this torch and CUDA (pip list | grep -i torch; "
        "TransformerEngine: 'transformer-engine[pytorch]'). Else build it with --no-build-isolation and torch's CUDA",
        follows=("cuinit.", "torch.cpu_only", "import.symbol"),
    ),
    strong(
        "build.memory",
        "a compile was killed, or ran out of memory",
        r"(cicc|nvcc|ptxas|cudafe\+\+)'? died due to signal 9|nvcc error *: .{0,40}died due to signal (9|11)",
        r"Killed signal terminated program cc1plus",
        meaning="Each compiler takes gigabytes, and ninja starts one per core. RAM was full, not GPU memory.",
        fix="set MAX_JOBS=2 (and NVCC_THREADS=1) before the same command, or use a wheel instead of a build",
        common=(r"Killed signal terminated program", r"virtual memory exhausted", r"cc1plus: out of memory"),
        weak=(
            r"\b(install|build|compil)\w*\b.{0,60}\b(flash[-_ ]?attn|extension|wheel|from source|vllm|"
            r"xformers)\b.{0,120}\b(freez|unresponsive|reboot|swap|crash|hang|out of (memory|ram))",
            r"\b(system|server|machine|pc)\b.{0,20}\b(crash|freez|hang)\w*\b.{0,20} when (install|build|compil)ing",
        ),
    ),
    strong(
        "import.module",
        "a Python package is not installed in the environment that runs the program",
        meaning="It may be installed for another Python, or lie only in the folder of a clone.",
        fix="python -m pip install NAME, with the Python that runs the program (python -c 'import sys; "
        "print(sys.executable)'). In a clone: pip install -e . Launchers start their processes in another folder",
        symptom=True,
        common=(r"ModuleNotFoundError: No module named \W?(?!torch|vllm|sglang|triton|sgl_)\w[\w.]*",),
        follows=("import.torch", "import.symbol", "import.extension", "cuinit.", "dist."),
    ),
    strong(
        "import.name",
        "two packages do not fit: one imports a name that this release of the other lacks",
        r"Trainer\W? object has no attribute \W?(root_gpu|use_ddp)|Trainer\.\w+\W? was deprecated in v1\.\d",
        r"__init__\(\) got an unexpected keyword argument \W?(gpus|auto_select_gpus|replace_sampler_ddp)",
        meaning="The other package is older or newer than the first one expects.",
        fix="pip install -U both, or read the requirements of the package whose file is last in the traceback (pip "
        "show NAME), and install that release of the other. pip check lists conflicts",
        common=(
            r"ImportError: cannot import name \W?\w+\W? from \W?(?!triton|torch)\w[\w.]*",
            r"AttributeError: module \W?(?!torch|triton|cv2)\w[\w.]*\W? has no attribute",
        ),
        follows=("import.symbol", "import.extension", "import.numpy", "cuinit."),
    ),
    strong(
        "build.setuptools",
        "setuptools, or Python 3.12, removed what this build imports",
        r"(torch|cuda).{0,400}No module named \W?pkg_res|No module named \W?pkg_resources.{0,400}(torch|cuda|\bnvcc)",
        r"import name \W?packaging\W? from \W?pkg_resources|No module named \W?distutils\.msvccompiler",
        meaning="Newer releases of setuptools removed pkg_resources and parts of distutils.",
        fix="pip install 'setuptools<70' wheel ninja, then pip install --no-build-isolation NAME or a newer NAME",
    ),
    proof(
        "build.ninja",
        "ninja is missing, which torch needs to build extensions",
        r"Ninja is required to load C\+\+ extensions|verify_ninja_availability",
        meaning="torch.utils.cpp_extension starts ninja, a small build program.",
        fix="pip install ninja, and check that ninja --version works in that environment",
        common=(r"No such file or directory: '?ninja'?", r"\bninja: (command )?not found"),
    ),
    strong(
        "build.torch",
        "the sources of an extension are for an older torch",
        r"\bTH\w{0,4}/TH\w*\.\w+\W{0,5}(No such file|file not found|没有)|DeprecatedTypeProperties.{0,30}c10::Scalar",
        r"\b(AT_CHECK|THC\w+|THCuda\w+|THArgCheck)\W{1,3}(is undefined|was not declared|has not been)",
        meaning="torch 1.5 removed AT_CHECK, 1.11 the THC headers, and later releases the dispatch by x.type().",
        fix="use the package's newest release or a fork. Else replace in its sources AT_CHECK → TORCH_CHECK, "
        "THCudaCheck → C10_CUDA_CHECK, THCState_getCurrentStream(state) → at::cuda::getCurrentCUDAStream(), x.type() → "
        "x.scalar_type(), THC/THC.h → ATen/cuda/CUDAContext.h. Or use a torch of its time in a new environment",
    ),
    strong(
        "build.lock",
        "the build of an extension waits for another one: usually an interrupted build left its lock file behind",
        r"file_baton\.py,? line \d+,? in wait|wait \(\S{0,200}file_baton\.py|detected PyTorch CPP extension'?s lock",
        meaning="torch.utils.cpp_extension waits as long as the file called lock exists in the extension's folder.",
        fix="end the program's processes, rm -r ~/.cache/torch_extensions ($TORCH_EXTENSIONS_DIR), and start one first",
        weak=(
            r"\b(stuck|hangs?|hanging|hung|freezes)\b.{0,300}(PyTorch extensions root|torch_extensions|cpp_extension)",
            r"(PyTorch extensions root|Detected CUDA files).{0,400}\b(stuck|hangs?|hanging|hung|freezes|no progress)\b",
        ),
    ),
    hint(
        "build.extension",
        "an extension of torch could not be compiled",
        "nvlink (error|fatal) *:|RuntimeError: Error building extension|Error compiling objects for extension|Ninja "
        r"build failed|NVCC compilation failed|\['?ninja'?, '?-v'?.{0,20}\]\W* returned non-zero exit status|nvcc "
        "(fatal|error) *:(?!.{0,60}(gpu arch|died due|unsupported|host comp|Cannot find compiler))|object has no "
        r"attribute \W?ds_opt_(adam|lion|adagrad)|error: command .{0,99}nvcc(\.exe)?\W{0,3} failed with exit (status|"
        r"code)|nvcc\W{1,3} ?is not able to compile|Compiling the CUDA compiler identification|MAX_JOBS=N\) "
        r"?1\.1\d\.\d+(\.git[\w.-]*)?([gc]\+\+|gcc|x86_64|aarch64|/\w).{0,600}No such file|Error compiling the CUDA|"
        r"Error in building the CUDA|torch_extensions/\S{1,120}\.so\W{0,2} ?cannot open|Unable to JIT load the \w+ op "
        "due to it not being compatible",
        r"\bptxas (fatal|error) *:(?!.{0,60}(gpu-name|Unsupported \.version))|FAILED: \S*(cuda|kernel|csrc|"
        r"\.cu)\S*\.(o|obj)\b|No module named \W?(fused_(adam|lamb|lion)|cpu_(adam|adagrad|lion))\b|(Failed to build|"
        r"Failed building wheel for) .{0,60}\b(causal|mamba|detectron|apex|gsplat|diff.gauss|simple.knn|nvdiffrast|"
        "xformers|deepspeed|vllm|auto.gptq|mmcv|groundingdino|transformer.eng|pointnet|spconv)",
        meaning="The compiler's message is above, in the first line with `error:` or FAILED.",
        fix="explain the lines from the first `error:` on (pip install -v --no-build-isolation NAME shows all). "
        "Usually CUDA toolkit, compiler and torch do not match. A wheel of its releases page for this torch avoids it",
        symptom=True,
        follows=("nvcc.", "build.", "compile.", "import.", "attention.package"),
        weak=(r"(Failed to build|Failed building wheel for|Could not build wheels for) .{0,30}(cuda|torch|attn|gpu)",),
        common=(r"ninja: build stopped: subcommand failed|Error building extension",),
    ),
    strong(
        "import.extension",
        "a package or its CUDA extension is not installed",
        r"No module named \W?(?!flash|auto|torch|triton|vllm|llama|numba|jax|tensor)\w+_cuda(_ext|_kernels?)?\b",
        r"No module named \W?(apex_C|amp_C|syncbn|_ext|apex)\b|name \W?_C\W? is not defined|import name \W?_C\W? from",
        r"custom CUDA extension \w+ module is not found|NoneType object has no attribute \w+_[fb]wd\b",
        r"cannot import name \W?\w+\W? from \W?apex\b|apex\.\w+\.\w+ requires cuda ext|UnencryptedCookieSession",
        r"No module named \W?(?!torchvision|vllm|torch\b|numpy|tensorflow)\w+\._(ext|C)\b",
        r"cannot import name \W?(_C|csrc)\W? from \W?(?!torch|vllm)\w+|load custom C\+\+ ops\. Running on CPU",
        r"No gym module found for the active version of Python",
        meaning="Only its Python code is installed: nvcc was missing, or the options did not reach the build.",
        fix="build it again from its sources with --no-build-isolation, and read its output. pip show -f PACKAGE then "
        "lists a .so file. PyPI's apex is another program: use torch.amp instead of NVIDIA's, or build that from its "
        "sources: APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation ./",
    ),
    strong(
        "build.windows",
        "an extension does not compile on Windows, or was never meant to",
        r"(extension|kernels?|compiling|building|package)\b.{0,60}not (supported|available) (on|for) Windows\b",
        r"not (supported|available) (on|for) Windows\b.{0,60}(extension|kernel|compil|build|triton|nccl)",
        r"(nvcc|cuda|torch)\b.{0,900}(open include file|包括文件|include-Datei|fichier include)\W{1,5}(corecrt|crtdefs|"
        r"std\w+|io|assert|float|windows)\.h|host_config\.h\W*\d+\W*fatal error C1083",
        r"Filename too long.{0,400}(sgl|flash|cutlass|cuda|torch|vllm)|(sgl|flash|cutlass|cuda|torch|"
        r"vllm).{0,400}Filename too long",
        r"_CMAKE_CUDA_WHOLE_FLAG|MinGW.{0,600}\bCUDA Toolkit|\bCUDA Toolkit.{0,600}MinGW",
        meaning="Many CUDA extensions support only gcc and Linux. Others need another Visual Studio.",
        fix="install a wheel for Windows of this torch and Python (see the project's releases and issues), or run the "
        'program inside WSL. To build it, use "Desktop development with C++" and a Windows SDK of Visual Studio\'s '
        "build tools, in a release that the CUDA toolkit lists, and its `x64 Native Tools` prompt",
        common=(
            r"(cl|nvcc)(\.exe)?\W{1,3} ?failed with exit (code|status):? \d",
            r"\berror (C|LNK)\d+:",
            r"Microsoft Visual C\+\+ 14\.0 (or greater )?is required|Could not locate a supported Microsoft Visual C",
        ),
        follows=("nvcc.", "compile.cuda_h", "compile.compiler"),
    ),
    proof(
        "pip.torch",
        "the installer finds no version of a package for this Python and system",
        r"\b(torch|torchvision|torchaudio|triton|xformers|flash.attn)\S{0,20} can'?t be installed because it doesn'?t "
        r"have a source distribution or wheel|(Could not find a version that satisfies the requirement|No matching "
        r"distribution found for) (py)?(torch\w*|triton|bitsandbytes|detectron2|mmcv|vllm|xformers|flash.attn|spconv|"
        r"cumm|cupy|tensorrt|nvidia|jaxlib|\w+-gpu)\b|there (is|are) no versions? of (torch|torchvision|torchaudio|"
        r"triton|xformers)\b|Unable to find (installation )?candidates for (torch|torchvision|torchaudio|triton)\b|"
        r"(torch|attn|xformers|triton|_cuda|\+cu\d)\S*\.whl is not a supported wheel|"
        r"ResolvePackageNotFound.{0,200}\b(py)?torch|\b404\b.{0,200}/redist/jp/v\d+/\S*torch|"
        r"PackagesNotFoundError(?=.{0,200}\b(pytorch|cudatoolkit))|nothing provides (requested )?(pytorch|cudatoolkit)",
        "distribution (torch|torchvision|torchaudio)==.{0,120} can'?t be installed because it doesn'?t have",
        meaning="pip's index lacks the version (only PyTorch's has +cu…), or no wheel fits this Python or system.",
        fix="compare python --version with the release's Python versions. Use the command of the selector on "
        "pytorch.org, with its index. pip index versions NAME shows the versions (triton on Windows: triton-windows)",
        common=(
            r"no wheels with a matching Python|You require CPython .{1,20}but we only found wheels",
            r"Unable to find installation candidates for|\.whl is not a supported wheel on this platform",
        ),
    ),
    strong(
        "pip.conflict",
        "two packages require different versions of torch",
        r"No solution found when resolving dependencies.{0,400}\b(torch|torchvision|torchaudio|triton|vllm|"
        r"xformers|cuda-toolkit|nvidia-\w+)\b|(LibMambaUnsatisfiable|Unsatisfiable)Error.{0,600}\b(py)?torch\b",
        r"(torch|torchvision|torchaudio|nvidia-[\w-]+|triton|xformers|vllm).{0,400}have conflicting dependencies",
        r"(requires|requirement) (torch|torchvision|torchaudio|nvidia-[\w-]+|triton)\W?[=<>!~].{0,80}but you.{0,3}have",
        r"\bdepends on (torch|torchvision|torchaudio|triton)\W?[=<>!~].{0,300}(conflict|incompatible|unsatisfiable)",
        r"(conflict|incompatible|unsatisfiable).{0,600}depends on (torch|torchvision|torchaudio|triton)\W?[=<>!~]",
        meaning="pip finds no version that fits both, or installed one that another package does not accept.",
        fix="pip install 'torch==X' 'torchvision==Y' of one release first (its release notes name the pair), then the "
        "other package at a release for that torch. Check that they have wheels for the Python of python --version",
        follows=("pip.torch",),
    ),
    strong(
        "numerics.nan",
        "the loss or a gradient is NaN or infinite",
        r"\bloss ?(is|was|became|becomes|turned|went|goes|got|=|:|==)? ?(to )?(nan|inf|infinite|infinity|not finite)\b|"
        r"\bnan (in|for|as)? ?(the )?(loss|gradients?|grads?|logits|activations)\b|\b\w*loss\w*\W{1,4}(tensor\()?(nan|"
        r"inf)\b|\b(global_?)?grad(ient)?[ _]?norm\W{1,4}(tensor\()?nan\b|\breturned nan values in its \d+th output|"
        r"\btensor with all NaNs was produced|\bCurrent loss scale already at minimum|\bMinimum loss scale reached|"
        r"\bGradient overflow\. +Skipping step|\bOVERFLOW! .{0,20}Skipping step|\bNan in summary histogram for|\bFound "
        r"NaN, decreased \w*loss_scale|\bTensor had (NaN|Inf) values|\bnon-?finite (loss|gradient|grad_norm|norm)|"
        r"\btotal norm .{0,60}is non-finite|\bfound NaN in local (grad|forward|param)|\bto satisfy the constraint "
        r".{0,200}found invalid values\b.{0,600}\bnan\b|\b(loss|parameter|gradient)s? (is|are|was) not finite\b|\b(nan|"
        r"inf) detected in (in|out)put|\bgradients are nan/inf|\bloss returned in .{1,20} is nan\b|\bnormal expects "
        r"all elements of std\b|\bfloatingpointerror: minimum loss|\bgradients? (are|is|contains?|became|become|has) "
        r"(nan|inf)\b|\bNaN detected in latents|logits.{0,20}\bnans?\b|(fp16|float16).{0,60}(!{8}|感叹号|"
        r"exclamation marks?)|(!{8}|感叹号|exclamation marks?).{0,60}(fp16|float16)",
        meaning="Usually the learning rate is too high, float16 exceeds 65 504, a divisor is zero, or data have NaN.",
        fix="lower the learning rate (in proportion to the batch size, with warm-up), use clip_grad_norm_, and check "
        "torch.isfinite on the batch. For float16, try bfloat16 (GTX 16: float32; kohya: --no_half_vae), for bfloat16 "
        "the loss and norms in float32. torch.autograd.set_detect_anomaly(True) names the operation",
        logged=True,
        common=(
            r"\b(b?float16|bf16|fp16) nans?\b|\b(giv|produc|output|predict|generat)\w* (only )?nans?\b",
            r"\b(found|detected|encountered|contains?|has) (a |an )?(nan|inf)s?( or infs?)? (in|values?|loss|grad)",
            r"\b(nan|inf)s?( or (nan|inf)s?)? (found|detected|encountered|produced|values?) (in|at|during)\b",
            r"\b(all|only) nans? (in|after|from) .{0,30}(output|logits|loss|model)\b",
        ),
        follows=("xid.", "cuda.ecc"),
    ),
    strong(
        "cutlass.arch",
        "a kernel library (CUTLASS, FlashInfer, TurboMind) has no kernel for this GPU",
        r"\bkernel does not support (the )?current device|\bUnsupported (SM (version|arch)|arch: ?\d|architecture \()|"
        r"\bno GPU with the required compute capability|\bsgl_kernel.{0,40}(common_ops )?(not found|cannot be (found|"
        r"loaded))|\b(fp8|fp4|mxfp\d|nvfp4|int8|gemm|moe|attention|kernel|mla)\w*\b.{0,60}(is |are )?not (yet "
        ")?(implemented|supported|available) (for|on|by) (this |the )?(NVIDIA )?(Hopper|Blackwell|Ampere|Ada|Turing|"
        r"Volta|sm_?\d{2,3}a?)|expected sm_?\d+a?( or sm_?\d+a?)+|(NotImplementedError|AssertionError|RuntimeError): "
        r".{0,60}\b(only )?(supports?|requires?|expects?|expected) .{0,20}\b(Hopper|Blackwell|sm_?\d{2,3}a?)\b|(Only|"
        r"requires?(?!s? ?.target)|expects?|supported (on|by)|supports? only) .{0,30}\bsm_?(8|9|10|"
        r"12)\d[a-z]?\b.{0,40}(supported|and above|or (newer|above|higher)|but got|required)|RuntimeError: Error "
        r"Internal\b",
        r"No (compiled )?\w*(cutlass|scaled_mm|gemm|fp8|moe)\w* .{0,20}for (a )?(CUDA )?(device|GPU|compute|this)|"
        "expects arch to be one of|cutlass cannot (implement|initialize)|No decoding kernel|not implemented: dtype=|"
        r"(Runner|Kernel|fmha|gemm|moe|cutlass|flashinfer|deep_?gemm|trtllm)\w*.{0,120}Unsupported architectur|No "
        r"\w{0,8}(FP8|FP4|INT4|MXFP\d)\w{0,8} (MoE|linear|gemm) (backend|kernel)s? supports?|(FlashMLA|DeepGEMM|DeepEP|"
        r"FlashInfer|TRTLLM|CUTLASS)\w*.{0,40} (is |are )?only (supported|available|works?) (on|by|for|with) "
        r".{0,20}(Hopper|Blackwell|sm_?\d)|deep_?gemm.{0,200}(Unknown recipe|Unsupported arch|Unknown SF)|Could not "
        "load any common_ops library|CUTLASS: Arch conditional MMA instruction used without targeting|Failed to open: "
        r".{0,200}sm_?\d+a?_\w+\.cuh|Failed to (initialize|run) cutlass|FlashInfer requires GPUs with sm_?\d+|No "
        "supported CUDA architectures found for major versions|cutlass.{0,60}(Error Internal|kArchMismatch|"
        r"ErrorNotSupported|ErrorArchMismatch)|This kernel only supports sm_?\d+",
        "Error occurred when running GEMM!|Unsupported architecture in fmhaRunner",
        meaning="Its kernels were built for other architectures, or its CUDA toolkit does not know this GPU.",
        fix="update vLLM, SGLang or FlashInfer to a release that lists this GPU. For kernels that are built at run "
        "time use a CUDA toolkit that knows it (12.8 or newer for sm_100 and sm_120); else " + BACKEND,
        follows=("cuda.capability", "nvcc.arch"),
        common=(
            r"(fails?|failed|fa\w+s) to (launch|start|load).{0,6}kernel not found",
            r"\bkernel not found (for|on) (this )?(GPU|device|arch|sm_?\d)",
        ),
    ),
    strong(
        "nvshmem.init",
        "NVSHMEM could not start",
        r"(ibv_\w+ failed.{0,99}){0,9}/.{0,60}nvshmem.{0,160}(non-zero status|NULL value|Error in)",
        r"nvshmem setup connections failed|init failed for transport|nvshmem\w*_init\w* failed",
        r"NVSHMEM.{0,40}(initiali[sz]ation|bootstrap|init) (failed|error)",
        meaning="DeepEP and others use it. It needs memory for its heap and a transport between machines (IBGDA).",
        fix="NVSHMEM_DEBUG=INFO shows which step fails. If the heap is too large, lower NVSHMEM_SYMMETRIC_SIZE. Else "
        "set NVSHMEM_REMOTE_TRANSPORT=none (one machine), or for IBGDA NVreg_EnableStreamMemOPs=1 and "
        "NVreg_RegistryDwords='PeerMappingOverride=1;'",
    ),
    hint(
        "llamacpp.start",
        "llama.cpp failed, or its server ended",
        r"llama runner (was |has )?terminated|(llama|ollama) runner.{0,30}exit status \d+|ggml-\w+(/ggml-\w+)?\.cu:\d+:"
        r" (CUDA|ROCm|MUSA) error|LLAMA_CPP_PROCESS_ERROR|llama runner process (has terminated|no longer running)|"
        r"timed out waiting for llama runner|llama-server.{0,40}(exited|terminated|crashed) (with|unexpectedly)",
        r"ggml_\w+_compute_forward: \w+ failed|\bggml_cuda_error \(",
        meaning="The program runs llama.cpp in a separate process. The message reports that process's end.",
        fix="explain the server's log from the model's loading on (ollama: journalctl -u ollama; OLLAMA_DEBUG=1)",
        symptom=True,
        follows=("cuda.", "oom.", "cuinit.", "hip.", "process.", "crash.", "cublas."),
        weak=(
            r"\b(ggml|llama[._-](cpp|server|model|runner)|ollama|lm ?studio|kobold)\w*\b.{0,99}(error|fail|crash)",
            r"ggml-\w+\.(cu|cpp):\d+|\bggml_abort",
        ),
    ),
    proof(
        "llamacpp.model",
        "llama.cpp does not know this model file: it is older than the model, or the file is no language model",
        r"unknown (model|pre-tokenizer) (architecture|type): \W?\w+|error loading model architecture",
        r"unknown \(magic, version\)|is this really a GGML file|invalid model file .{0,80}\(bad magic\)",
        meaning="A GGUF file names its architecture. Each release of llama.cpp knows those of its time.",
        fix="update llama.cpp, or the program that contains it (Ollama, LM Studio, llama-cpp-python). For `clip`, the "
        "file is a projector: pass it by --mmproj, and the language model by --model. A picture model (sd3, flux) "
        "needs ComfyUI or stable-diffusion.cpp. For an old ggml file, download the model as GGUF",
        follows=("llamacpp.start",),
    ),
    hint(
        "llamacpp.cpu_build",
        "llama.cpp, or llama-cpp-python, was probably built without CUDA",
        r"whisper_backend_init\w*: no GPU",
        r"\bn[-_]gpu[-_]layers?\b.{0,60}\b(ha(s|ve|d)|with|takes?|without) ?(no|any) effect|not compiled with GPU offl|"
        r"llama.{1,3}cpp.{0,2000}\bn_gpu_layers\b.{0,900}\b(no|not|don'?t|doesn'?t|isn'?t|without) (us(e|es|ing)|"
        r"utili[sz]\w+) (the |my |any )?GPU\b|llama.{1,3}cpp.{0,300}(\buse the GPU when i pass n_gpu_layers|compiles? "
        r"without (CUDA|GPU)|\bruns? (only )?on (the )?cpu\b)",
        meaning="Without a CUDA compiler, or with a wrong variable name, pip builds or installs the CPU version.",
        fix="if nvcc --version works, CMAKE_ARGS='-DGGML_CUDA=on' pip install --force-reinstall --no-cache-dir "
        "llama-cpp-python (llama.cpp: cmake -B build -DGGML_CUDA=ON). Else install its wheel: --prefer-binary "
        "--extra-index-url https://abetlen.github.io/llama-cpp-python/whl/cu124 (cu121 to cu125). python -c 'import "
        "llama_cpp; print(llama_cpp.llama_supports_gpu_offload())' must print True",
        follows=("cuda.", "oom.", "cuinit.", "hip.", "nvcc.", "build.", "import."),
        weak=(r"\bBLAS ?= ?0\b", r"CPU\w* (model )?buffer size\b.{0,900}\bn_gpu_layers\b"),
    ),
    strong(
        "vulkan.lost",
        "the GPU was lost during work (Vulkan)",
        r"ggml_vulkan: device lost|vk::DeviceLostError|vk::\w+::\w+: ErrorDeviceLost|VkResult: ERROR_DEVICE_LOST",
        r"vkDestroyFence: Invalid device",
        meaning="The driver reset the GPU: a kernel ran too long or used foreign memory, or the driver failed.",
        fix="use a smaller batch or context (llama.cpp: -ub 128; GGML_VK_MAX_NODES_PER_SUBMIT=1, or on AMD "
        "GGML_VK_ALLOW_GRAPHICS_QUEUE=1). Then try a newer driver or Mesa, or the last release that worked",
        follows=("hip.hang", "xid.", "bus.", "kernel.gpu_hang"),
        common=(r"\bVK_ERROR_DEVICE_LOST", r"ErrorDeviceLost"),
        beside=_VULKAN_USERS,
    ),
    hint(
        "llamacpp.cpu",
        "llama.cpp or Ollama uses the CPU, because it found no usable GPU",
        r"\bollama\b.{0,40}\b(not using|ignor\w+|doesn't use|does not use|won't use|stopped using) (the |my |any )?GPU|"
        r"\b(ollama|llama\.cpp|llama-server)\b.{0,60}\bfall\w* back to CPU|inference compute.{0,30}\bid=cpu\b|"
        r"inference compute.{0,30}library=\W?cpu\b|unable to locate gpu dependency libraries|failed to finish "
        r"discovery before timeout|\bentering low vram mode.{0,60}total vram=\W?0 B|\boffloaded 0/\d+ layers to GPU|"
        r"\buser overrode visible devices|library=(cuda|rocm)\b(?!.{0,6000}\b(CUDA|ROCm)\d+ (model "
        r")?buffer).{0,5000}CPU\w* model buffer size|\b(ollama|lm ?studio|koboldcpp)\b.{0,200}\b(100% CPU|only (us\w+ |"
        r"on )?(the )?CPU|us\w+ only (the )?CPU|not (us\w+|run\w*|load\w*|detect\w*) (on |in )?(the |my )?GPU)|"
        r"ggml_vulkan: No devices found|\b\d+%/\d+% CPU/GPU\b|"
        r"library=(cuda|rocm)\b.{0,900}system CPU\.0(?!.{0,400}(CUDA|ROCm)\.0).{0,400}compiler=",
        r"no compatible GPUs were discovered|Ollama will run in CPU-only mode|CUDA GPU is too old\. Compute Cap|CPU "
        r"does not have AVX.{0,20}, disabling GPU support|Dynamic LLM libraries.{0,6}runners=\W{0,2}\[cpu( cpu_\w+)*\]|"
        "failure during GPU discovery|warning: no usable GPU found, --gpu-layers option will be ignored",
        meaning="Its search for GPUs failed or took too long, or it was built without a backend for them.",
        fix="for llama.cpp: if nvidia-smi works and llama-cli --list-devices lists nothing, use a release with cuda in "
        "its name (Homebrew has none), or cmake -DGGML_CUDA=ON in an empty folder. For Ollama: update it, and run "
        "nvidia-smi (AMD: rocminfo) where it runs. OLLAMA_DEBUG=1 ollama serve prints the reason at discovery",
        follows=("cuinit.", "hip.", "nvml.", "vulkan.", "library."),
        logged=True,
        weak=(
            r"\b(llama[-_.](cli|server|cpp)|\./main|lm ?studio|koboldcpp|gguf|ollama)\b.{0,900}(\bgpus?\b.{0,60}\b(idle"
            r"|not used|does not show)|\b0 usage of gpu|\bslow\w* (on|with) (the )?gpu\b|\b(runs?|running|using) (on "
            r")?(the )?cpu\b)",
            r"\b(igpu|uhd|iris|integrated)\b.{0,80}\b(ignor\w+|instead of|rather than) .{0,20}\b(rtx|nvid|dgpu|ded)",
        ),
    ),
    hint(
        "llamacpp.output",
        "the GPU computes wrong numbers: usually a fault of this release, or of its split mode or cache type",
        meaning="Quantised kernels differ by GPU, split mode and attention, and some releases broke one of them.",
        fix="test one change at a time: --split-mode layer, -fa off, -ctk f16 -ctv f16, one GPU, -ngl 0. If the CPU is "
        "right, use the last release that worked, or build with -DGGML_CUDA_FORCE_CUBLAS=ON; else doubt the file",
        weak=(r"(output|answer|generat|produc|giv|get).{0,40}(gibberish|garbage(?!coll)|incoherent|nonsens|G{9})",),
        unless=r"\A(?!.*(llama\W?cpp|llama-(cli|server|bench)|gguf|ggml|ollama|lm ?studio|koboldcpp))",
    ),
    hint(
        "deepep.timeout",
        "an expert-parallel exchange (DeepEP) was not finished in time",
        r"deep_?ep.{0,80}(timed? ?out|dispatch CPU)",
        meaning="A rank is late or gone, or GPUs of two machines cannot write to each other (NVSHMEM, IBGDA).",
        fix="find the first error in each rank's log; then run DeepEP's tests/test_internode.py alone on these nodes",
        symptom=True,
        follows=_BELOW,
    ),
    strong(
        "import.torchcodec",
        "torchcodec finds no FFmpeg that it can use, or was built for another torch",
        r"libtorchcodec loading traceback|Could not load libtorchcodec|libtorchcodec\w*\.so",
        r"\blibav(util|codec|format|filter|device)\.so\.\d+: cannot open shared object",
        meaning="It loads the system's shared FFmpeg libraries, and each release fits one torch.",
        fix="check ffmpeg -version: 4 to 7, or 8 from 0.8 on, with shared libraries (apt-get install ffmpeg, conda "
        "install ffmpeg). Install the torchcodec for this torch, by its README: 0.7 for torch 2.8, 0.9 for 2.9",
    ),
    proof(
        "checkpoint.weights_only",
        "torch.load refuses a file that holds more than tensors",
        r"WeightsUnpickler error: (Unsupported|Can only|Trying to|Expected|Not allowed)",
        r"\(?weights_only.{0,80}Unsupported (global|class|operand)|GLOBAL \S+ was not an allowed global",
        meaning="Since torch 2.6, torch.load reads only tensors and plain containers, because a pickle can run code.",
        fix="update the program (or use torch<2.6), or call torch.serialization.add_safe_globals([…]) with the named "
        "class. For files that you trust, set weights_only=False, or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        wraps=(r"Weights only load failed", r"WeightsUnpickler error"),
    ),
)
