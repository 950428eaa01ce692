"""A text for each id, as programs print it. The Xid numbers are written out of the table."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from gpucheck import xid
from gpucheck.explain import command
from gpucheck.report.events import Answered, Event
from gpucheck.report.results.short import ExplainResult, TextMatch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import explain_corpus

# Texts of rows that neither a library's source nor a short text of the corpus shows.
REST: dict[str, str] = {
    "build.torch": "src/ball_query.cpp:5:10: fatal error: THC/THC.h: No such file or directory",
    "setup.vgpu": "nvidia-gridd: Failed to acquire license from 10.0.0.5 port 443 (Error: Communication failure)",
    "build.setuptools": "  from torch.utils.cpp_extension import BuildExtension\n"
    "ModuleNotFoundError: No module named 'pkg_resources'",
    "build.lock": '  File "/venv/lib/python3.11/site-packages/torch/utils/file_baton.py", line 42, in wait\n'
    "KeyboardInterrupt",
    "nvcc.new": 'src/roi_pool.cu(56): error: identifier "cudaBindTexture" is undefined',
    "import.twice": 'ImportError: generic_type: type "GemmAlgoDesp" is already registered!\nimport spconv.pytorch',
    "setup.shell": "'CUDA_VISIBLE_DEVICES' is not recognized as an internal or external command,\n"
    "operable program or batch file.",
    "crash.illegal": "import torch\nIllegal instruction (core dumped)",
    "comfyui.ended": "got prompt\nRequested to load FluxClipModel_\n\nC:\\ComfyUI>pause\nPress any key to continue",
    "build.header": "/w/vllm/csrc/moe.cu:2:10: fatal error: cutlass/cutlass.h: No such file or directory",
    "kubernetes.mps": "error waiting for MPS daemon: error checking MPS daemon health",
    "jax.versions": "Mismatched PJRT plugin PJRT API version (0.54) and framework PJRT API version 0.51).",
    "quant.extension": "ERROR:auto_gptq.nn_modules.qlinear.qlinear_exllama:exllama_kernels not installed.",
    "process.pickle": "for batch in dataloader:\nAttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
    "dist.rank_order": "torchrun --rdzv_backend c10d --node_rank 1 train.py\nrank 0 is not on the master node",
    "dist.nodes": "worker-2: bash: line 0: cd: /data/train: No such file or directory",
    "download.failed": "fatal: building wheel\nerror: <urlopen error [Errno 104] Connection reset by peer>",
    "file.truncated": "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    "mps.wrong": "torch on an M2: the MPS backend gives wrong results, the CPU right ones",
    "dist.one_gpu": "I have two RTX 4090 and use accelerate, but only one GPU is used",
    "tensor.fp8_shape": "RuntimeError: Expected trailing dimension of mat1 to be divisible by 16 but got (32x8).",
    "optimizer.before": "ValueError: The optimizer does not seem to reference any FSDP parameters.",
    "norm.one_value": "ValueError: Expected more than 1 value per channel when training, got input size [1, 64]",
    "process.threads": "import torch\nlibgomp: Thread creation failed: Resource temporarily unavailable",
    "assert.library": "python3: /build/faiss/gpu/Tensor.cc:120: void copy(): Assertion `numElements == size' failed.",
    "build.windows": "OSError: mamba_ssm is not supported on Windows; building its CUDA extension fails",
    "nvcc.old": "nvcc fatal   : Value 'c++17' is not defined for option 'std'",
    "kubernetes.driver": 'command failed, retrying after 5 seconds: command "nvidia-smi" failed with exit code 9',
    "nvml.hardware": "pynvml.NVMLError_CorruptedInforom: infoROM is corrupted",
    "xpu.call": "RuntimeError: level_zero backend failed: ZE_RESULT_ERROR_INVALID_KERNEL_NAME",
    "oom.nccl": "node1:411:411 [0] init.cc:1691 NCCL WARN Cuda failure 2 'out of memory'",
    "oom.onednn": "RuntimeError: could not create a primitive",
    "oom.handles": 'RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "../c10/cuda/driver_api.cpp"',
    "cuda.initialization": "RuntimeError: CUDA error: initialization error",
    "cuda.contained": "cuCtxSynchronize returned 721 (CUDA_ERROR_CONTAINED)",
    "nvml.reset": "GPU 00000000:17:00.0: GPU requires reset",
    "kernel.key_rejected": "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    "kernel.wrong_module": "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-51-generic",
    "cudnn.not_supported": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input."
    ),
    "tensor.backend": (
        "NotImplementedError: Could not run 'torchcodec_ns::create_from_file' with arguments from the 'CUDA' backend."
    ),
    "crash.bus": "Bus error (core dumped)",
    "import.numpy": "RuntimeError: Numpy is not available",
    "import.glibc": "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by "
    "/venv/lib/python3.11/site-packages/flash_attn_2_cuda.so)",
    "bus.off": "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
    "kernel.nvrm": "NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found [NV_ERR_OBJECT_NOT_FOUND]",
    "kernel.watchdog": "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
    "process.killed": "subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py']' died with "
    "<Signals.SIGKILL: 9>.",
    "crash.abort": "E0902 15:10:49.013000 819010 torch/distributed/elastic/multiprocessing/api.py:874] Signal 6 "
    "(SIGABRT) "
    "received by PID 819025",
    "cuda.shutdown": "RuntimeError: CUDA error: driver shutting down",
    "dist.mismatch": "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(OpType=ALLREDUCE)",
    "compile.cuda_h": "/tmp/tmpx/main.c:1:10: fatal error: cuda.h: No such file or directory",
    "kernel.nouveau": "ERROR: The Nouveau kernel driver is currently in use by your system.",
    "setup.packages": " nvidia-driver-550 : Depends: libnvidia-gl-550 (= 550.90) but 550.120 is to be installed",
    "windows.device": "GeForce RTX 4090: stopped this device because it has reported problems. (Code 43)",
    "power.loss": "My eGPU (RTX 4070) disconnects after five minutes of training.",
    "power.heat": "Driver temperature threshold met on GPU #1. Expect reduced performance.",
    "vulkan.software": "WARNING: lavapipe is not a conformant vulkan implementation, testing use only.",
    "cuda.held": "|    0     31794    C   Unknown Error                                 5371MiB |",
    "memory.shared": "on Windows the shared GPU memory fills up and each picture takes minutes",
    "oom.grows": "During the inference the GPU memory cost is increasing until it OOM",
    "numerics.nan_half": "fooocus/core.py:260: RuntimeWarning: invalid value encountered in cast\n x_sample",
    "program.waits": "GPU utilization is very low during training",
    "tensorflow.no_gpu": ">>> tf.config.list_physical_devices('GPU')\n[]",
    "fsdp.flatten": "ValueError: Cannot flatten integer dtype tensors",
    "import.signature": "TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument "
    "types are supported:\n    1. (arg0: torch.Tensor, arg1: torch.Tensor) -> torch.Tensor",
    "disk.full": "torch.save(state, path)\nOSError: No space left on device",
    "deepspeed.config": "ValueError: `--mixed_precision` arg cannot be set to `bf16` when `fp16` is set in the "
    "DeepSpeed config file.",
    "import.module": "ModuleNotFoundError: No module named 'ultralytics'",
    "import.name": "ImportError: cannot import name 'redirect_numba_module' from 'numba.cuda.utils'",
    "import.shared": "llama-server: error while loading shared libraries: libllama.so: cannot open shared object file",
    "llamacpp.model": "llama_model_load: error loading model: unknown model architecture: 'clip'",
    "program.cpu": "transcription is slow, torch is installed\npipeline = Pipeline.from_pretrained(NAME)\npipeline(x)",
    "link.slow": "LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)",
    "power.capped": "GPU 0 Clocks Event Reasons\n    SW Power Cap : Active",
    "cuda.remap_pending": "Remapped Rows of the GPU\n Uncorrectable Error : 4\n  Pending : Yes",
    "host.memory": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
    "openmm.platform": 'openmm.OpenMMException: There is no registered Platform called "CUDA"',
    "opencl.none": "[LightGBM] [Info] This is the GPU trainer!!\nlightgbm.basic.LightGBMError: No OpenCL device found",
    "gpu.wrong": "both are listed in nvidia-smi, but my training always runs on the wrong GPU",
    "memory.block": "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB!",
    "tensorrt.arch": "IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target GPU SM 61 is not "
    "supported by this TensorRT release.)",
    "triton.backend": "failed to load 'x': Unsupported: Triton backend API version does not support this backend",
    "directml.failed": "onnxruntime\\core\\providers\\dml\\DmlExecutionProvider\\src\\MLOperatorAuthorImpl.cpp(2482) "
    "Exception(3) tid(ae54) 80070057 The parameter is incorrect.",
    "llamacpp.output": "llama-server with -sm row gives gibberish output on two GPUs, with -sm layer it is right",
    "container.mac": "on an M3 Max Ollama is extremely slow in Docker, llama.cpp natively is fast",
    "cloud.quota": "You have requested more vCPU capacity than your current vCPU limit of 0 allows",
    "mig.one": "I made 7 MIG 1g.10gb instances on the A100, but torch.cuda.device_count() returns 1",
    "mps.none": ">>> torch.backends.mps.is_available()\nFalse",
    "nvswitch.sxid": "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error",
}

XIDS = (*xid.CATALOGUE, *xid.OLDER)


def _samples() -> dict[str, str]:
    """The message of a library's source, else the shortest text of the corpus with this label alone."""
    xids = (f"NVRM: Xid (PCI:0000:b3:00.0): {row.number}, pid=4711, name=python, Ch 00000008" for row in XIDS)
    samples = {**REST, **{f"xid.{row.number}": said for row, said in zip(XIDS, xids, strict=True)}}
    with (explain_corpus.CORPUS / "explain-sources.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            samples.setdefault(row["id"], row["message"])
    for entry in sorted(explain_corpus.entries("tune"), key=lambda entry: len(entry.text)):
        if len(entry.expect) == 1:
            samples.setdefault(entry.expect[0], entry.text)
    return {text.id: samples[text.id] for text in command.TEXTS}


SAMPLES = _samples()
# Another wording of the same, which the corpus does not have.
MORE: tuple[tuple[str, str], ...] = (
    ("package.cpu_build", "Your installed Paddle is not compiled with CUDA"),
    ("pip.torch", "ERROR: No matching distribution found for onnxruntime-gpu"),
    ("cuinit.100", "Cannot run short-ranged nonbonded interactions on a GPU because no GPU is detected."),
    ("cuda.capability", "my GPU is an RTX 2070 and it doesn't support cuda 9.0"),
    ("program.waits", "my dataloader is very slow and the GPU utilization stays at 0%"),
    ("program.waits", "PPO training is slower on the GPU than on the CPU"),
    ("build.torch", 'no suitable conversion function from "const at::DeprecatedTypeProperties" to "c10::ScalarType"'),
    ("build.torch", "torch/setup.py\nerror: 'AT_CHECK' was not declared in this scope"),
    ("oom.killed", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("cuinit.too_old", "torch\n/usr/lib64/libcuda.so.418.74: undefined symbol: cuCtxCreate_v3"),
    ("nvcc.host_compiler", "CMake Error: No supported gcc/g++ host compiler found, but clang-14 is available."),
    ("xla.cuda_data", "UNIMPLEMENTED: No PTX compilation provider is available. Neither ptxas nor nvlink"),
    ("tensorflow.no_gpu", "tf.config.list_physical_devices('GPU') returns []"),
    ("torch.cpu_only", "poetry update upgraded torch 2.1.0+cu118 -> 2.1.0 cpu"),
    ("tensor.device_mismatch", "mat2 is on cpu, different from other tensors on cuda:0"),
    (
        "dist.sharded",
        "copying a param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([2560])",
    ),
    (
        "tensor.dtype",
        "AssertionError: FSDP expects uniform original parameter dtype but got {torch.bfloat16, torch.float32}",
    ),
    (
        "llamacpp.model",
        "error loading model: unknown (magic, version) combination: 67676a74, 00000003; is this really a GGML file?",
    ),
    (
        "slurm.gres",
        "error: _node_config_validate: gres/gpu: invalid GRES core specification (48-63,176-191) on node node01",
    ),
    (
        "nvcc.missing",
        "FileNotFoundError: [Errno 2] No such file or directory: ':/usr/local/cuda:/usr/local/cuda-10.1/bin/nvcc'",
    ),
    ("ray.resources", "ValueError: placement group bundle index 6 is invalid. Valid placement group indexes: 0-4"),
    ("cutlass.arch", "RuntimeError: Unsupported architecture in fmhaRunner.cuh"),
    ("cuda.feature", "'.bf16' requires .target sm_80 or higher"),
    ("fsdp.flatten", "ValueError: `FlatParameter` requires uniform `requires_grad`"),
    ("import.shadowed", "ModuleNotFoundError: No module named 'torch.hub'; 'torch' is not a package"),
    ("bitsandbytes.setup", "PackageNotFoundError: No package metadata was found for bitsandbytes"),
    ("compile.backend", "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True"),
    ("torch.cpu_only", "cpuonly                   2.0                           0    pytorch"),
    ("cuda.no_kernel", ">>> a @ b  ->  CUDA error: no kernel image is available for execution on the device"),
    (
        "gpu.no_address_space",
        "pci 0000:01:00.0: [10de:2204]\npci 0000:01:00.0: BAR 1 [mem size 0x10000000]: can't assign; no space",
    ),
    ("kernel.build", "File: /var/lib/dkms/nvidia/390.48/source/dkms.conf does not exist."),
    ("hip.none", "WARNING  ZLUDA failed to initialize: no HIP SDK found"),
    ("tensor.device_mismatch", "AssertionError: Gather function not implemented for CPU tensors"),
    ("compile.ptxas", "RuntimeError: `ptxas` was searched in TRITON_PTXAS_PATH, /usr/local/cuda/bin/ or PATH"),
    (
        "dist.set_device",
        "torch\n|  0  N/A  N/A  58825  C  python3  28175MiB |\n|  3  N/A  N/A  58825  C  python3  1405MiB |",
    ),
    ("dist.world_size", "- `Accelerate` version: 0.30.1\n- num_processes: 1\n- machine_rank: 0\n- num_machines: 2"),
    ("slurm.gres", "srun --gpu-bind=closest env | grep CUDA_VISIBLE_DEVICES"),
    (
        "dist.port",
        "vllm: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8080): address already in use",
    ),
    ("build.memory", "g++: fatal error: Killed signal terminated program cc1plus"),
    ("dtensor.mixed", "AttributeError: 'Tensor' object has no attribute 'full_tensor'"),
    ("nvcc.old", 'error: namespace "cooperative_groups" has no member "labeled_partition"'),
    (
        "power.loss",
        "the machine was hard-power-cut while a GPU ramped from idle, with no MCE, panic, OOM or thermal event",
    ),
    ("mig.one", "despite booking several MIG with slurm it uses only 1"),
    ("power.loss", "my computer turns off when the 1080 Ti is under load and restarts hard"),
    ("import.extension", "ImportError: cannot import name 'amp' from 'apex' (unknown location)"),
    ("compile.compiler", "torch/utils/cpp_extension: Failed to find MSVC."),
    ("autograd.inplace", "RuntimeError: a leaf Variable that requires grad is being used in an in-place operation."),
    ("dist.sharded", "RuntimeError: 'weight' must be 2-D\ndeepspeed train.py --deepspeed ds_z3.json"),
    ("dist.mpi", "*** An error occurred in MPI_Init_thread\n*** MPI_ERRORS_ARE_FATAL\ntorchrun pretrain_gpt.py"),
    ("dist.world_size", "AssertionError: num_layers should be divisible by pipeline_model_parallel_size"),
    ("dist.environment", "AssertionError: pipeline_model parallel group is not initialized"),
    ("dist.mismatch", "NCCL WARN Message truncated : received 1024 bytes instead of 256"),
    ("optimizer.state", "RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16"),
    ("oom.nccl", "Last error:\nFailed to CUDA calloc async 608 bytes"),
    ("crash.abort", "double free or corruption (!prev)\npython train.py"),
    ("import.extension", "RuntimeError: apex.optimizers.FusedAdam requires cuda extensions"),
    ("quant.extension", "RuntimeError: Found empty `transformer-engine` meta package installed."),
    ("tensor.device_mismatch", "ToCopyBackward0 returned an invalid gradient - expected device cuda:1 but got cuda:0"),
    ("torch.no_accelerator", "AssertionError: gpus should be a non-empty list"),
    ("torch.no_accelerator", "`Trainer(devices=[])` value is not a valid input using gpu accelerator."),
    (
        "tensor.placed",
        "ValueError: The module 'T5' has been loaded in `bitsandbytes` 8bit and moving it to cpu via `.to()` is not "
        "supported.",
    ),
    (
        "tensor.placed",
        'File "torch/nn/parallel/parallel_apply.py", line 64\nFile "bitsandbytes/nn/modules.py", line 9\nRuntimeError: '
        "mat1 and mat2 shapes cannot be multiplied (512x4096 and 1x8388608)",
    ),
    ("cuinit.802", 'CUDA error at bandwidthTest.cu:256 code=802(cudaErrorSystemNotReady) "cudaSetDevice(device)"'),
    ("cuinit.mps", "Error 808: the hardware resources required to create MPS client have been exhausted"),
    ("cuinit.mps", "CUDA error: the hardware resources required to support device connections have been exhausted"),
    ("cuinit.mps", "CUDA error: MPS server is not ready to accept new MPS client requests"),
    ("torch.no_accelerator", "ValueError: fp16 mixed precision requires a GPU (not 'cpu')."),
    ("container.cdi", "failed to discover GPU vendor from CDI: no known GPU vendor found"),
    ("compile.ptxas", "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    ("oom.handles", "RuntimeError: CUDA driver error: device not ready"),
    ("oom.host", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"),
    ("oom.host", "Using device cuda:0\nOSError: [Errno 12] Cannot allocate memory"),
    ("oom.host", "MemoryError"),
    ("cuinit.802", "Error 802"),
    ("cuinit.802", "cudaErrorSystemNotReady: system not yet initialized"),
    ("nvml.mismatch", "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch."),
    ("xid.79", "xid 79"),
    ("xid.79", "Xid 79"),
    ("tensor.meta", "RuntimeError: Tensor.item() cannot be called on meta tensors"),
    ("nvml.no_library", "nvidia-smi: command not found"),
    ("nccl.timeout", "nccl timeout"),
    ("process.killed", "Killed"),
    ("crash.segfault", "Segmentation fault (core dumped)"),
    ("build.isolation", "ModuleNotFoundError: No module named 'torch'\nhint: try again with --no-build-isolation"),
    (
        "attention.flash",
        "AssertionError: FlashAttention-3 is only supported on devices with compute capability 9.0",
    ),
    (
        "attention.flash",
        "AssertionError: Sinks are only supported in FlashAttention 3; FA3 is only supported on devices with compute "
        "capability 9",
    ),
    (
        "cuda.feature",
        "ptxas /tmp/x.ptx, line 5; error : Instruction 'tcgen05.alloc' not supported on .target 'sm_120'",
    ),
    (
        "cutlass.arch",
        "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
    ),
    (
        "oom.mps_buffer",
        "MPSNDArray.mm:761: failed assertion `[MPSTemporaryNDArray initWithDevice:descriptor:] Error: product of "
        "dimension sizes > 2**31'",
    ),
    (
        "cuda.peer",
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'",
    ),
    (
        "cuda.peer",
        "[custom_all_reduce.py:137] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P "
        "test failed.",
    ),
    (
        "cuinit.no_driver",
        "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.",
    ),
    (
        "xpu.none",
        "ImportError: libur_loader.so.0: cannot open shared object file: No such file or directory",
    ),
    (
        "nccl.shared_memory",
        "misc/shmutils.cc:72 NCCL WARN Error: failed to open shared memory segment /dev/shm/nccl-xyz: No such file or "
        "directory (2)",
    ),
    (
        "nccl.shared_memory",
        "include/shm.h:28 NCCL WARN Call to shm_open failed : No such file or directory",
    ),
    (
        "attention.kernel",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576). Reasons: "
        "{FLASHMLA: [compute capability not supported]}.",
    ),
    (
        "attention.kernel",
        "NotImplementedError: FlashAttention V1 with FP8 KV cache not yet supported",
    ),
    (
        "cutlass.arch",
        "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
    ),
    (
        "cuda.illegal_access",
        "Exception: Failed to encode tensor map: 700",
    ),
    (
        "mps.operation",
        "MPSCore/Types/MPSNDArray.mm:88: failed assertion `[MPSNDArrayDescriptor sliceDimension:withSubrange:] error",
    ),
    (
        "mps.operation",
        "AssertionError: Device mps not supported",
    ),
    (
        "kubernetes.plugin",
        "lstat /run/nvidia/driver/dev/nvidiactl: no such file or directory",
    ),
    (
        "size.index",
        "RuntimeError: Can't be indexed using 32-bit iterator",
    ),
)

INNOCENT: tuple[str, ...] = (
    "Is PyTorch built with CUDA support?: True",
    "_print_Min = _print_Max = _hprint_variadic_function",
    "psycopg2.errors.NumericValueOutOfRange: integer out of range",
    "node1:411:520 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    "[    5.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14",
    "GPU available: True (cuda), used: True",
    "Building module(s)... done. Installing /lib/modules/6.8.0-41-generic/updates/dkms/nvidia.ko.zst",
    "ModuleNotFoundError: No module named 'torch_scatter'",
    "docker run --rm --device /dev/kfd --device /dev/dri rocm/pytorch",
    "gcc main.o -lcuda -lcudart -o main",
    "Epoch 3/10: loss 2.3412, lr 3e-4, 1234 samples/s, memory 12.3 GiB",
    "[2026-01-31 12:00:00,123] [INFO] [trainer.py:88] step 1200 loss=1.93 grad_norm=0.82",
    "CUDA available: True, device count: 8, NVIDIA H200",
    "NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0",
    "|   0  NVIDIA H200   On  | 00000000:17:00.0 Off |                    0 |",
    "Successfully installed nvidia-cublas-cu12-12.8.4.1 nvidia-cudnn-cu12-9.10.2.21 torch-2.9.0 triton-3.5.0",
    "Requirement already satisfied: torch>=2.6 in ./venv/lib/python3.11/site-packages (2.9.0)",
    "Downloading model.safetensors: 100%|██████████| 15.0G/15.0G [02:31<00:00, 99.1MB/s]",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:08<00:00,  2.01s/it]",
    "[rank0]: Saving checkpoint to /data/run7/step_1000.pt",
    "node1:411:411 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
    "node1:411:499 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7",
    "node1:411:499 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 17000 - Init COMPLETE",
    "W0131 12:00:00.000000 411 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable to be 1",
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "FutureWarning: You are using `torch.load` with `weights_only=False`",
    "Using device: cuda:0 (NVIDIA A100-SXM4-80GB), bf16 mixed precision",
    "usb 1-1: new high-speed USB device number 5 using xhci_hcd",
    "[    3.141593] nvidia: loading out-of-tree module taints kernel.",
    "[    3.200000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "nvidia-uvm: Loaded the UVM driver, major device number 511.",
    "kernel: pcieport 0000:00:01.0: PME: Signaling with IRQ 25",
    "torch.compile: 12 graphs compiled, 0 recompiles, cache hit rate 0.98",
    "All tests passed: 412 passed, 18 skipped in 93.21s",
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True to reduce fragmentation",
    "Batch size 64 uses 41.2 GiB of device memory; 38.7 GiB are free",
    "This feature is not implemented for Windows yet",
    "Device 0 supports peer access to device 1: yes",
    "train: 12%|█▏        | 120/1000 [00:31<03:47,  3.87it/s, loss=3.12]",
    "GET /healthz 200 OK 0.3ms",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    "KeyError: 'attention_mask'",
    "Assertion of taxid 79 in the database took 0.2 s",
)

# Errors of other programs: nothing in them is a GPU's, and none of their words is torch's.
NOT_OURS: tuple[str, ...] = (
    "Invalid error code (700) at line 3",
    "failed to get device context 46",
    "[700] Call to customer service returned",
    "MPS error: row 3 has no bound",
    "Could not find an implementation for Trilu(14) node",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'",
    "bash: foo: No such file or directory",
    "error: command 'gcc' failed: No such file or directory",
    "make: gcc: No such file or directory",
    "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    "error while loading shared libraries: libssl.so.3: cannot open shared object file: No such file or directory",
    "Connection reset by peer",
    "curl: (56) Recv failure: Connection reset by peer",
    "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
    "peer'))",
    "/usr/lib/jvm/java-17/bin/java: symbol lookup error: /lib/libjli.so: undefined symbol: JLI_Launch",
    "git: symbol lookup error: /lib/libcurl.so.4: undefined symbol: nghttp2_option_set",
    "iwlwifi 0000:00:14.3: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "Error: listen EADDRINUSE: address already in use :::3000",
    "OSError: [Errno 98] Address already in use",
    "java.lang.OutOfMemoryError: Java heap space",
    "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    "ERROR:  out of memory\nDETAIL:  Failed on request of size 1048576.",
    "redis: OOM command not allowed when used memory > 'maxmemory'.",
    "gunicorn: Worker (pid:123) was sent SIGKILL! Perhaps out of memory?",
    "[ 1.000000] Out of memory: Killed process 999 (mysqld) total-vm:1kB, anon-rss:1kB",
    "nginx: accept4() failed (24: Too many open files)",
    "bash: fork: Cannot allocate memory",
    "modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service",
    "Error! Bad return status for module build on kernel: 6.8.0-41-generic (x86_64)\nConsult "
    "/var/lib/dkms/v4l2loopback",
    "IndexError: list index out of range",
    "AttributeError: Can't pickle local object 'main.<locals>.f'",
    "RuntimeError: can't start new thread",
    "ModuleNotFoundError: No module named 'numpy'",
    "/lib/libc.so.6: version `GLIBC_2.34' not found (required by ./server)",
    "collected 12 items\nFatal Python error: Aborted",
    "No space left on device",
    "2024-01-01 thread exited unexpectedly",
)


def first(pasted: str) -> TextMatch:
    """The first answer to a pasted text, as the command gives it."""
    events: list[Event] = []
    command.explain(pasted, events.append)
    (answer,) = (event.value for event in events if isinstance(event, Answered))
    assert isinstance(answer, ExplainResult) and answer.matches
    return answer.matches[0]
