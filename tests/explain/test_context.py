"""The rest of a paste that decides which cause and which step an answer names, and what a text denies."""

from __future__ import annotations

import pytest
from pasted import first

from gpucheck.explain import command
from gpucheck.explain.match import find
from gpucheck.report.events import Event, Judged

XID = "NVRM: Xid (PCI:0000:{}:00): {}, pid=7, name=python"
UNINITIALIZED = "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment"
SYMBOL = "ImportError: /v/site-packages/{}.so: undefined symbol: _ZN3c105ErrorC2E{}"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {}"


def ids(pasted: str) -> list[str]:
    return [match.text.id for match in find(pasted, command.TEXTS, command.OF_CONDITIONS)]


@pytest.mark.parametrize(
    ("pasted", "id", "words", "without"),
    [
        # Values and names of the paste: the image's build, the boards, the versions, the paths and the shares.
        (
            "#12 3.4 bitsandbytes/cextension.py\n#12 3.5 CUDA SETUP: WARNING! libcuda.so not found!",
            "bitsandbytes.setup",
            "from the image's RUN lines",
            "pip install -U",
        ),
        (
            "I compiled a WSL kernel of my own\nFailed to initialize NVML: GPU access blocked by the operating system",
            "nvml.wsl",
            "probably lacks Microsoft's GPU module",
            "every nvidia package",
        ),
        (
            'Jetson Nano, Ubuntu 20.04\n  File "/l/torch/__init__.py", line 9, in <module>\nOSError: libcublas.so.10: '
            "cannot open shared object file",
            "import.library",
            "nvidia-jetpack",
            "--index-url|find /",
        ),
        (
            "NVIDIA Jetson AGX Xavier\nCUDA driver version is insufficient for CUDA runtime version\nggml_cuda_init",
            "cuinit.too_old",
            "CMAKE_CUDA_ARCHITECTURES=72",
            "8.7|87",
        ),
        (
            "app.exe of PyInstaller\nNVIDIA GeForce RTX 5070 with CUDA capability sm_120 is not compatible with the "
            "current PyTorch installation. The current PyTorch install supports CUDA capabilities sm_37 compute_37.",
            "cuda.capability",
            "update the program",
            "harmless",
        ),
        (
            "jax\nOutdated cuDNN installation found.\nMinimum supported: 9100\nInstalled version: 8907\n"
            "/h/.pixi/envs/a/lib",
            "cudnn.version",
            "pixi update jaxlib cudnn",
            "pip install",
        ),
        ("rx 6600\nhipErrorNoBinaryForGpu: Unable to find code object", "hip.arch", "=10.3.0", "11.0.0|gfxNNN"),
        (
            "rocm, gfx101x devices\nTensileLibrary.dat not found",
            "hip.arch",
            "rocminfo | grep gfx",
            "gfx101x",
        ),
        (
            "RuntimeError: Library cublas64_12.dll is not found or cannot be loaded\nD:\\a",
            "import.library",
            "`where cublas64_12.dll` tells",
            "NAME.dll|cudnn",
        ),
        (
            "PyTorch version: 1.7.1+cu110\nCould not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
            "import.nms",
            "torchvision==0.8.2+cu110",
            "0.N",
        ),
        (
            "DeepSpeed Op Builder: Installed CUDA version 9.1 does not match the version torch was compiled with 11.8",
            "nvcc.mismatch",
            "CUDA_HOME=/usr/local/cuda-11.8, its bin",
            "CUDA 9",
        ),
        (
            "xFormers was built for:\n    PyTorch 2.1.0+cu121 with CUDA 1201 (you have 2.1.0+cu118)",
            "xformers.setup",
            "whl/cu118",
            "cu121",
        ),
        (
            "kind: Pod of k8s, vllm --tensor-parallel-size 4\nRuntimeError: No CUDA GPUs are available",
            "cuinit.100",
            "nvidia.com/gpu: 4",
            "gpu: 1",
        ),
        # A torch before 2.1 has other settings; an evaluation has no step of training.
        (
            "after the evaluation step\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB "
            "(GPU 0; 23.00 GiB total capacity; 18.00 GiB already allocated; 0.50 GiB free; "
            "21.50 GiB reserved in total by PyTorch)",
            "oom.cuda",
            "inference_mode",
            "expandable",
        ),
        # Options of the program that runs.
        (
            "python -m sglang.launch_server --mem-fraction-static 0.95\nNCCL WARN Failed to CUDA calloc 67108864 bytes",
            "oom.nccl",
            "--mem-fraction-static below 0.95",
            "max-model-len|-c,",
        ),
        (
            "It does not work on windows\nERROR: No matching distribution found for triton==2.3.0",
            "pip.torch",
            "triton-windows",
            "selector",
        ),
        # The platform: a Jetson has no driver of its own and no wheels but its own.
        (
            "Jetson Orin Nano, nvcc says 12.6\n>>> import torch\nRuntimeError: CUDA error: no kernel image is "
            "available for execution on the device",
            "cuda.no_kernel",
            "NVIDIA's torch wheel for your JetPack",
            "cmake|--index-url",
        ),
        (
            "Linux-5.15.136-tegra-aarch64\nRuntimeError: CUDA error: the provided PTX was compiled with an "
            "unsupported toolchain.",
            "cuda.ptx",
            "JetPack's own nvcc",
            "update the driver",
        ),
        (
            "Xavier NX, JetPack 5\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED",
            "oom.nvml_assert",
            "tegrastats",
            "find-batch-size",
        ),
        (
            "CUDA SETUP: Highest compute capability among GPUs detected: 8.7\nCUDA SETUP: Loading binary "
            "/u/libbitsandbytes_cuda114.so\n/u/libbitsandbytes_cuda114.so: cannot open shared object file",
            "bitsandbytes.setup",
            "COMPUTE_BACKEND=cuda",
            "newer",
        ),
        (
            "Jetson Orin, JetPack 5.1, python 3.10\nERROR: HTTP error 404 while getting "
            "https://x/redist/jp/v512/pytorch/torch-2.1.0a0-cp310-cp310-linux_aarch64.whl",
            "pip.torch",
            "JetPack 5: Python 3.8",
            "--index-url",
        ),
        # A Mac has no NVIDIA GPU, and its memory is not spread over more GPUs.
        (
            "On my MacBook Pro with docker compose:\nError response from daemon: could not select device driver "
            '"nvidia" with capabilities: [[gpu]]',
            "container.no_runtime",
            "a Mac has no NVIDIA GPU",
            "nvidia-container-toolkit|nvidia-ctk",
        ),
        (
            "File '/v/site-packages/transformers/trainer.py', line 2, in f\nRuntimeError: MPS backend out of memory "
            "(MPS allocated: 11.14 GB, other allocations: 6.65 GB, max allowed: 18.13 GB). Tried to allocate 375.40 MB",
            "oom.mps",
            "per_device_train_batch_size=1",
            "ZeRO|QLoRA|more GPUs",
        ),
        (
            "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
            "mps.dtype",
            "x.float() before",
            "GGUF|torch_dtype",
        ),
        ("TypeError: BFloat16 is not supported on MPS", "mps.dtype", "torch_dtype=torch.float16", "NumPy"),
        (
            "Emulate Docker CLI using podman.\nError: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu",
            "container.cdi",
            "nvidia-ctk cdi generate",
            "daemon.json",
        ),
        # A Mac may be only where kubectl runs; an Arc is supported beside an integrated GPU.
        (
            "From my MacBook:\nkubectl describe pod: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            "kubernetes.insufficient",
            "node",
            "Metal",
        ),
        ("Intel Arc A770, the iGPU is off\nRuntimeError: UR error", "xpu.lost", "dmesg", "OpenVINO"),
        # An Intel GPU: float64 by the kernel's name, and an integrated one that torch is not built for.
        (
            'RuntimeError: Native API failed. Native API returns: -996\ninvalid_kernel("uses-fp64-math")',
            "xpu.float64",
            "use float32",
            "dmesg",
        ),
        # Titles that say no more and no less than the text shows.
        (
            "Radeon RX 570, C:\\x\nOSError: PyTorch CUDA is unavailable. requires a CUDA GPU but none",
            "torch.no_accelerator",
            "on a machine with an AMD GPU",
            "ROCm finds",
        ),
        (
            "RuntimeError: \"slow_conv2d_cpu\" not implemented for 'Half'",
            "tensor.not_implemented",
            "float16 (Half) on the CPU",
            "",
        ),
        (
            "Xformers is not installed!\nNVIDIA GeForce RTX 5070 Ti with CUDA capability sm_120 is not compatible",
            "cuda.capability",
            "does not support this GPU",
            "xformers",
        ),
        # What the text shows of the GPU and of torch speaks against the usual cause.
        (
            "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
            "tensor.load",
            'without an NVIDIA GPU use torch.load(path, map_location="cpu")',
            "",
        ),
        (
            "xFormers was built for:\n    PyTorch 2.1.2+cu121 with CUDA 1201 (you have 2.1.2+cpu)",
            "xformers.setup",
            "torch==2.1.2 --index-url",
            "uninstall",
        ),
        # The library whose symbol is missing, and no step for another one.
        (
            "ImportError: /v/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommResume",
            "import.nvjitlink",
            "another NCCL than its own",
            "mkl|cuSPARSE",
        ),
        (
            "ImportError: /v/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
            "import.nvjitlink",
            "conda install 'mkl<2024.1'",
            "CUDA|LD_LIBRARY_PATH",
        ),
        (
            "import torch\nImportError: /home/u/miniconda3/envs/x/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not "
            "found (required by /home/u/x.so)",
            "import.glibc",
            "the conda environment's libstdc++",
            "system (or",
        ),
        (
            "import torch\nImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /v/torch/x.so)",
            "import.glibc",
            "a newer system or container image",
            "conda",
        ),
        # Versions of the paste in the command, with the packages that it names beside torch.
        (
            "$ pip install torch==2.10.0 torchvision\nLooking in indexes: https://download.pytorch.org/whl/cu131\n"
            "ERROR: Could not find a version that satisfies the requirement torch==2.10.0 (from versions: none)",
            "pip.torch",
            "torch==2.10.0 torchvision --index-url https://download.pytorch.org/whl/cu130",
            "torchaudio",
        ),
        (
            "Collecting torch==2.3.1\nCollecting torchvision==0.18.1\nAssertionError: Torch not compiled with CUDA "
            "enabled",
            "torch.cpu_only",
            "torch==2.3.1 torchvision --index-url",
            "cuXYZ|conda",
        ),
        # What was tried, and what the user may do.
        (
            "MASTER_PORT=29500 in the script\nRuntimeError: The server socket has failed to listen on any local "
            "network address. port: 29500, EADDRINUSE",
            "dist.port",
            "another --master-port",
            "sources",
        ),
        (
            "bash NVIDIA-Linux-x86_64-570.1.run --no-kernel-modules\nreboot\nFailed to initialize NVML: Driver/library "
            "version mismatch",
            "nvml.mismatch",
            "/proc/driver/nvidia/version",
            "rmmod",
        ),
        (
            "On our HPC cluster\nUnable to open /dev/kfd read-write: Permission denied",
            "hip.none",
            "--gres=gpu:1, or ask the administrators",
            "sudo",
        ),
        ("CUDA_HOME does not exist", "nvcc.missing", "a wheel of the package", ""),
        (
            'File "/v/site-packages/deepspeed/ops/x.py", line 2, in f\nCUDA_HOME does not exist, unable to compile',
            "nvcc.missing",
            "install the toolkit",
            "a wheel of the package",
        ),
        # Full memory, mixed devices and timeouts: the step is that of the program in the paste.
        (
            "got prompt\nFile '/u/ComfyUI/comfy/sample.py', line 2, in f\n"
            + OOM.format("8.00 GiB of which 9.00 MiB is free."),
            "oom.cuda",
            "VAE Decode (Tiled)",
            "find-batch-size|activation checkpointing",
        ),
        (
            "File '/v/site-packages/transformers/trainer.py', line 2, in f\n"
            + OOM.format("8.00 GiB of which 9.00 MiB is free."),
            "oom.cuda",
            "per_device_train_batch_size=1",
            "find-batch-size",
        ),
        (
            'pipe = P.from_pretrained(x).to("cuda")\npipe.enable_model_cpu_offload()\n'
            + OOM.format("8.00 GiB of which 9.00 MiB is free."),
            "oom.cuda",
            'remove .to("cuda")',
            "smaller batch",
        ),
        (
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
            "cpu! (when checking argument for argument weight in method f)",
            "tensor.device_mismatch",
            "nn.ModuleList",
            "tokenizer",
        ),
        (
            'File "t.py", line 9, in val_one_epoch\n' + OOM.format("8.00 GiB of which 9.00 MiB is free."),
            "oom.cuda",
            "inference_mode",
            "activation checkpointing",
        ),
        (
            "vllm serve m\n" + OOM.format("8.00 GiB of which 9.00 MiB is free.").replace("CUDA out", "HIP out"),
            "oom.hip",
            "rocm-smi",
            "nvidia-smi",
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. I tried a smaller "
            "--max-running-requests too",
            "oom.vllm",
            "mem-fraction-static",
            "max-running-requests",
        ),
        (
            'File "/tmp/torchinductor_u/a.py", line 4, in call\nRuntimeError: Triton Error [CUDA]: an illegal memory '
            "access was encountered",
            "cuda.illegal_access",
            "TORCHDYNAMO_DISABLE=1",
            "vLLM",
        ),
        (
            "python demo.py\n" + OOM.format("8.00 GiB of which 9.00 MiB is free."),
            "oom.cuda",
            "fewer frames",
            "activation checkpointing",
        ),
        (
            "while saving a checkpoint\n[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=31, "
            "OpType=ALLREDUCE)",
            "nccl.timeout",
            "timedelta(hours=2)",
            "P2P",
        ),
        (
            "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
            "nccl.timeout",
            "NCCL_P2P_DISABLE=1",
            "ddp_timeout",
        ),
        # Of the options of vLLM and SGLang, those of the server in the paste.
        (
            "File '/sglang/srt/a.py', line 2, in f\nRuntimeError: CUDA error: an illegal memory access was encountered",
            "cuda.illegal_access",
            "--attention-backend triton",
            "vLLM|enforce-eager",
        ),
        # A loss scaler's skipped step is no NaN.
        (
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
            "numerics.nan",
            "ignore it while it is rare",
            "anomaly",
        ),
        # What the paste says was done already is no step.
        (
            "torch on Linux, docker run --shm-size=16g img\nexitcode: -7 (pid: 7)",
            "crash.bus",
            "checkpoints and caches",
            "--shm-size=8g",
        ),
        (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\nNVRM: Assertion "
            "failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
            "nvml.reset",
            "--gpu-reset",
            "COMPUTE",
        ),
        # A runtime that finds no libcuda says that the driver is insufficient.
        (
            "docker run app\nDriver Version: 550.120\nCUDA driver version is insufficient for CUDA runtime version",
            "cuinit.too_old",
            "the container has no GPU",
            "older than the program's CUDA",
        ),
        (
            "PS C:\\> docker run app\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
            "container.cli",
            "update the host's driver",
            "Docker Desktop brings",
        ),
        # What a system has no package for, and what is no Python.
        (
            "macOS 15\nERROR: No matching distribution found for triton",
            "pip.torch",
            "remove that line",
            "pip index versions",
        ),
        (
            "Microsoft.ML.OnnxRuntime: LoadLibrary failed with error 126 when trying to load "
            "onnxruntime_providers_cuda.dll",
            "import.dll",
            "then 12 and 9",
            "pip uninstall",
        ),
        (
            "PS C:\\me> python train.py\nRuntimeError: CUDA error: an illegal memory access was encountered",
            "cuda.illegal_access",
            '$env:CUDA_LAUNCH_BLOCKING="1", then python',
            "set CUDA",
        ),
        (
            "PS C:\\me> pip install apex\nOSError: CUDA_HOME environment variable is not set",
            "nvcc.missing",
            '$env:CUDA_HOME="C:\\Program Files',
            '"C"',
        ),
        # CTranslate2's libraries by the system.
        ("faster_whisper\nLibrary libcublas.so.12 is not found", "import.library", "nvidia-cublas-cu12", "find /"),
        ("Could not locate cudnn_ops64_9.dll\nwhisper", "import.library", "on PATH", "LD_LIBRARY_PATH"),
        # vLLM's wheel and torch's belong together.
        (
            "vllm==0.20.2\nUserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found "
            "version 12080).",
            "cuinit.too_old",
            "+cu129-cp38-abi3",
            "--force-reinstall torch",
        ),
        (
            "import intel_extension_for_pytorch\ntorch 1.11.0\nRuntimeError: PyTorch is not linked with support for "
            "xpu devices",
            "torch.cpu_only",
            "whl/xpu",
            "cuXYZ",
        ),
        (
            "VLLM_HOST_IP=10.1.1.2/\nValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting "
            "the Ray placement group or running the driver on a GPU node.",
            "ray.resources",
            "VLLM_HOST_IP",
            "fewer GPUs",
        ),
        # The GPU and the wheel as a form of a report has them.
        (
            "- **PyTorch Version:** 2.6.0+cu126\n- **Name:** cuda:0 NVIDIA GeForce RTX 5080\nCUDA error: no kernel "
            "image",
            "cuda.no_kernel",
            "torch torchvision --index-url https://download.pytorch.org/whl/cu13",
            "get_arch_list",
        ),
        (
            "GTX 1080 Ti\n2.8.0 + cu128\nno kernel image is available",
            "cuda.no_kernel",
            "torch==2.8.0 torchvision --index-url https://download.pytorch.org/whl/cu126",
            "cu13",
        ),
        (
            "C:\\C\\python_embeded\\Lib\\site-packages\\torch\\x.py\nRTX 5070\nno kernel image is available",
            "cuda.no_kernel",
            "python_embeded\\python.exe -m pip install",
            "get_arch_list",
        ),
        # The installer that the paste uses, and the torch that belongs to what it names.
        (
            "$ uv sync\ntorch 2.7.0+cpu of the index cu128, torch.cuda.is_available False",
            "torch.cpu_only",
            "whl/cu128 as [[tool.uv.index",
            "pip install",
        ),
        (
            "$ poetry add torch\nTorch not compiled with CUDA enabled",
            "torch.cpu_only",
            "poetry source add",
            "pip install",
        ),
        (
            "Because there is no version of torch==2.4.0+cu124 and your project depends on torch==2.4.0+cu124, we can "
            "conclude that your project's requirements are unsatisfiable.",
            "pip.torch",
            "whl/cu124",
            "of one release first",
        ),
        (
            "pip show torch\nVersion: 2.4.1+cu121\nRuntimeError: operator torchvision::nms does not exist",
            "import.nms",
            "torchvision==0.19.1 --index-url https://download.pytorch.org/whl/cu121",
            "torch==X",
        ),
        (
            "torch 2.7.1\nflash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
            "attention.package",
            "cxx11abiTRUE",
            "sdpa",
        ),
        # The distribution, the cluster and the engine.
        (
            "Fedora 43\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "nvml.not_loaded",
            "akmods --force",
            "dkms",
        ),
        (
            "sbatch job.sh\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "nvml.not_loaded",
            "--gres=gpu:1",
            "modprobe",
        ),
        (
            'docker: error gathering device information while adding custom device "/dev/kfd": no such file\n'
            "C:\\Users\\me> docker run rocm/pytorch",
            "hip.none",
            "has no /dev/kfd",
            "usermod",
        ),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 360757.00 MiB on device 0: cudaMalloc failed: out "
            "of memory",
            "oom.cuda",
            "GGML_SCHED_MAX_COPIES=1",
            "memory is full",
        ),
        # What a build lacks.
        (
            "nvcc was not found. Are you sure your environment has nvcc?\nGetting requirements to build wheel: error\n"
            "torch 2.7.0+cu126\nNameError: name 'bare_metal_version' is not defined",
            "nvcc.missing",
            "cuda-toolkit=12.6",
            "--no-build-isolation",
        ),
        (
            "torch/cudnn-wrapper.h:3:10: fatal error: cudnn.h: No such file",
            "nvcc.missing",
            "CUDNN_PATH",
            "cuda-toolkit",
        ),
        ("No module named 'mmcv._ext', torch 2.1.0+cu121", "import.extension", "dist/cu121/", "apex"),
        (
            "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9}\nwhisper",
            "import.library",
            "nvidia-cudnn-cu12",
            "find /",
        ),
        # Pinned memory is the host's, whatever the message says.
        (
            "WSL version: 2.3\nx.pin_memory() of 1 GB ends in CUDA error: out of memory; 20 GB of the GPU are free",
            "oom.host",
            "memory= in .wslconfig",
            "smaller batch|find-batch-size",
        ),
        (
            "File '/a.py', line 3, in f\n    b = torch.empty(n).pin_memory()\nRuntimeError: CUDA error: out of memory",
            "oom.host",
            "pin_memory=False",
            "find-batch-size",
        ),
        (f"after standby of the laptop:\n{UNINITIALIZED}", "cuinit.999", "suspend: sudo rmmod nvidia_uvm", "ls -l"),
        (f"the machine suspends at night\n{UNINITIALIZED}", "cuinit.999", "suspend: sudo rmmod nvidia_uvm", "ls -l"),
        # The environment, the container's engine, the server.
        (
            "$ conda list | grep jaxlib\nLoaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.8.0.",
            "cudnn.version",
            "conda update -c conda-forge",
            "pip install|newer driver",
        ),
        (
            "$ python -c 'import jax'\nLoaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.8.0.",
            "cudnn.version",
            "pip install -U 'jax[cuda12]'",
            "conda|newer driver",
        ),
        (
            "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
            "kubernetes.plugin",
            "--runtime=docker --set-as-default && sudo systemctl restart docker",
            "containerd",
        ),
        (
            "If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
            "kubernetes.plugin",
            "--runtime=containerd",
            "=docker",
        ),
        (
            "(Worker_TP0 pid=9) RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx(h)`",
            "cublas.invalid",
            "unset LD_LIBRARY_PATH",
            "print the shapes",
        ),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE", "cublas.invalid", "print the shapes", ""),
        (
            "python -m vllm.entrypoints.openai.api_server\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED",
            "oom.nvml_assert",
            "--gpu-memory-utilization",
            "find-batch-size",
        ),
        # The GPU's generation with the version of CUDA.
        (
            "GPU 0: NVIDIA GeForce RTX 3090\ntorch: 1.13.1+cu117\nRuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
            "cufft.failed",
            "smaller batch",
            "cu118",
        ),
        # The line that says why, before those that pass it on.
        (
            "h:1:2 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>\nh:1:2 [0] socket.h:9 NCCL WARN Call to connect "
            "timeout : Connection refused\nh:1:2 [0] NCCL INFO init.cu:4 -> 2",
            "nccl.interface",
            "NCCL_SOCKET_IFNAME",
            "NCCL_DEBUG",
        ),
        (
            "h:1:2 [0] NCCL INFO cudaDriverVersion 12040\nRuntimeError: NCCL error in: x.cpp:1, internal error",
            "nccl.internal",
            "the first WARN of the first rank",
            "NCCL_DEBUG",
        ),
        (
            SYMBOL.format("my_ext/_ops.cpython-310-x86_64-linux-gnu", "NS_4SourceENSt7__cxx1112basic_stringE"),
            "import.symbol",
            "cxx11abiFALSE. Or build it: pip install --no-cache-dir --no-build-isolation --force-reinstall --no-deps "
            "my_ext==",
            "NAME",
        ),
        (
            "torch: 2.8.0+cu128\n" + SYMBOL.format("my_ext/_ops", "NS_4SourceENSt7__cxx1112basic_stringE"),
            "import.symbol",
            "my_ext==VERSION",
            "cxx11abiFALSE",
        ),
        (
            SYMBOL.format("flash_attn_2_cuda.cpython-310-x", "NSt7__cxx11E"),
            "attention.package",
            "flash_attn==VERSION",
            "",
        ),
        (SYMBOL.format("other/_c", "RKS_"), "import.symbol", "other==VERSION", "cxx11abi"),
        (
            'LoadLibrary failed with error 126 "" when trying to load "D:\\v\\onnxruntime_providers_cuda.dll"',
            "import.dll",
            "onnxruntime-gpu[cuda,cudnn]",
            "Visual C++",
        ),
        (
            "RuntimeError: Not compiled with GPU support (roi_align at /src/ops.h:9)",
            "tensor.backend",
            "FORCE_CUDA=1",
            "aten",
        ),
        # What the text names takes the place of what a step leaves open.
        (
            "RuntimeError: Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
            "xpu.lost",
            "the Intel GPU was lost",
            "",
        ),
        (
            "D:\\a\\main.py\nRuntimeError: Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
            "xpu.lost",
            "graphics driver from Intel",
            "level-zero|dmesg",
        ),
        (
            "rocBLAS error: Cannot read TensileLibrary.dat: No such file or directory for GPU arch : gfx1151",
            "hip.arch",
            "lists gfx1151",
            "HSA_OVERRIDE",
        ),
        (
            "rocBLAS error: Cannot read TensileLibrary.dat: No such file or directory for GPU arch : gfx1032",
            "hip.arch",
            "HSA_OVERRIDE_GFX_VERSION=10.3.0",
            "11.0.0",
        ),
        (
            "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory",
            "import.library",
            "does not begin with 12, install a torch for CUDA 12",
            "",
        ),
        (
            "/usr/bin/ld: cannot find -lcuda: No such file or directory",
            "compile.libcuda",
            "export LIBRARY_PATH=FOLDER",
            "",
        ),
        # A candidate is no proof.
        ("NVRM: The NVIDIA probe routine was not called for 2 device(s).", "kernel.nouveau", "usually nouveau", ""),
        # A folder of Linux's is no Mac's, and no Mac has cuDNN.
        (
            'File "/users/k/a.py", line 2\nRuntimeError: GET was unable to find an engine to execute this computation',
            "cudnn.engine",
            "nvidia-smi",
            "Activity Monitor",
        ),
        (
            'File "/Users/k/a.py", line 2\nRuntimeError: GET was unable to find an engine to execute this computation',
            "cudnn.engine",
            "nvidia-smi",
            "Activity Monitor",
        ),
        # A server fits one torch, and ROCm has no use for CUDA's packages.
        (
            "pip install vllm\nNVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
            "PyTorch installation.",
            "cuda.capability",
            "pip install -U vllm --torch-backend=auto",
            "install torch|force-reinstall",
        ),
        (
            'File "/v/site-packages/vllm/engine/a.py", line 1\nTorch not compiled with CUDA enabled\ntorch 2.9.0+cpu',
            "torch.cpu_only",
            "pip install -U vllm",
            "force-reinstall",
        ),
        (
            "ROCM used to build PyTorch: 6.2\n"
            'File "/v/site-packages/sgl_kernel/__init__.py", line 2\n'
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "import.library",
            "pip uninstall sgl_kernel",
            "nvidia-|CUDA 12",
        ),
        (
            "ROCM used to build PyTorch: 6.2\nImportError: libtorch_cuda.so: cannot open shared object file",
            "import.symbol",
            "whl/rocmX.Y",
            "cu1|cuXYZ",
        ),
        (
            "I run vllm on ROCm\nggml_cuda_init: found 1 ROCm devices:\nCUDA error: invalid device function",
            "hip.arch",
            "GPU_TARGETS",
            "CMAKE_CUDA_ARCHITECTURES",
        ),
        # What the user says that he set is not offered, and his GPU is the one that the system names.
        (
            "If I use HSA_OVERRIDE_GFX_VERSION=11.0.0 it hangs\ntargets: gfx1100\namdgcn-amd-amdhsa--gfx1103\n"
            "RuntimeError: HIP error: invalid device function",
            "hip.arch",
            "lists gfx1103",
            "HSA_OVERRIDE",
        ),
        # A program that is compiled is not started by Python.
        (
            "NVRM: Xid (PCI:0000:0a:00): 31, pid=1, name=cuda_plot_k32, Ch 00000010, MMU Fault: ENGINE CE2",
            "xid.31",
            "compute-sanitizer PROGRAM",
            "python",
        ),
        (
            "Jetson AGX Xavier, llama.cpp\nggml_cuda_init: failed to initialize CUDA: CUDA driver version is "
            "insufficient for CUDA runtime version",
            "cuinit.too_old",
            "cuda-compat-12-2",
            "nvidia-smi",
        ),
        # The line that failed, and not what was warned of beside it.
        (
            "ggml_metal_init: error: program_source:3:10: fatal error: 'ggml-common.h' file not found\n"
            "ValueError: Failed to create llama_context\n"
            "warning: failed to munlock buffer: Cannot allocate memory",
            "build.header",
            "GGML_METAL_EMBED_LIBRARY",
            "RAM",
        ),
        (
            "/tmp/tmpx/main.c:1:\n/usr/include/stdlib.h:31:10: fatal error: stddef.h: No such file or directory\n"
            "torch._inductor.exc.InductorError: CalledProcessError",
            "build.header",
            "reinstall gcc",
            "",
        ),
        (
            "torch/include/ATen/cuda/CUDAContextLight.h:7:10: fatal error: cusparse.h: No such file or directory\n"
            "subprocess.CalledProcessError: Command 'cmake --build .' returned non-zero exit status 1.",
            "nvcc.missing",
            "math_libs",
            "",
        ),
        # The numbers and options of the paste.
        (
            "gpu_memory_utilization=0.95\nValueError: No available memory for the cache blocks.",
            "oom.vllm",
            "quantised",
            "larger",
        ),
        (
            "vllm serve m --gpu-memory-utilization 0.4\nValueError: No available memory for the cache blocks.",
            "oom.vllm",
            "0.9 instead of 0.4",
            "end it",
        ),
        (
            "sglang.launch_server --tp 16 --nnodes 2\nRuntimeError: CUDA error: invalid device ordinal",
            "cuda.ordinal",
            "times the nodes",
            "set_device",
        ),
    ],
)
def test_the_answer_to_a_text_beside_its_context(pasted: str, id: str, words: str, without: str) -> None:
    answer = first(pasted)
    assert answer.id == id
    assert words in f"{answer.title}: {answer.then}"
    assert not any(word in f"{answer.title}: {answer.then}" for word in without.split("|") if word)


@pytest.mark.parametrize(
    ("pasted", "certainty"),
    [
        # What failed is said, and not why.
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "strong"),
        ("NVRM: This can occur when a driver such as:\nNVRM: nouveau, rivafb, nvidiafb or rivatv", "strong"),
        ('nvidia-smi fails with "Driver/library version mismatch"', "strong"),
        ("I think that it is a Driver/library version mismatch", "hint"),
    ],
)
def test_how_sure_a_text_is(pasted: str, certainty: str) -> None:
    assert first(pasted).certainty == certainty


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (
            "23.00 GiB of which 21.00 GiB is free. Of the allocated memory 1.00 GiB is allocated by PyTorch",
            "run it again",
        ),
        (
            "0 bytes of which 0 bytes is free. Of the allocated memory 0 bytes is allocated by PyTorch",
            "check that nvidia-smi shows memory",
        ),
    ],
)
def test_memory_that_is_free_by_its_own_numbers_is_not_full(numbers: str, words: str) -> None:
    answer = first(OOM.format(numbers))
    assert (answer.title, answer.certainty) == ("an allocation failed although memory was free", "hint")
    assert answer.then.startswith(words) and "smaller batch" not in answer.then


def test_memory_that_is_full_by_its_own_numbers() -> None:
    answer = first(OOM.format("23.00 GiB of which 1.00 GiB is free. 21.00 GiB is allocated by PyTorch"))
    assert (answer.title, answer.certainty) == ("GPU memory is full", "proof")


def test_metal_that_gives_nothing_is_not_full() -> None:
    answer = first(
        "RuntimeError: MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: "
        "5.00 GB).\nTried to allocate 512 bytes on shared pool."
    )
    assert (answer.title, answer.certainty) == ("the Metal device gives torch no memory", "strong")
    assert answer.then.startswith('set device="cpu"')


@pytest.mark.parametrize(
    "denied",
    [
        "* No `GPU has fallen off the bus`",
        "- no `Xid 79` in dmesg",
        "We did not see any GPU has fallen off the bus",
        "None of these were in the log:\n- `GPU has fallen off the bus`\n- `Xid 79`",
        "No related messages in the journal:\n* `GPU has fallen off the bus`",
        "There is no CUDA error: illegal memory access in the log, it is just slow.",
        "Neither CUDA out of memory nor an NCCL timeout is shown.",
    ],
)
def test_what_a_text_denies_is_no_cause(denied: str) -> None:
    assert (
        ids(f"driver 580 on two RTX 4090\n{denied}\nThe program waits in its first step and writes nothing more.\n")
        == []
    )


def test_what_an_exception_warns_of_is_no_cause() -> None:
    said = "ValueError: context_length (9) is too large. This may lead to incorrect outputs or CUDA errors."
    assert ids(f"sglang on one GPU\n{said}") == []
    assert ids(f"sglang on one GPU\n{said}\nRuntimeError: CUDA error: unspecified launch failure") != []


def test_a_list_of_errors_is_no_denial() -> None:
    assert (
        ids("It does not run, I get the following errors:\n- NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.") != []
    )


@pytest.mark.parametrize(
    "said",
    ["A two-rank all_reduce hangs during NCCL communication", "training hangs in all_reduce on two GPUs"],
)
def test_a_hang_beside_p2p_that_fails(said: str) -> None:
    answer = first(f"torch on 2 GPUs\n{said}\nthe P2P test hangs too\n")
    assert answer.id == "nccl.timeout"
    assert answer.then.startswith("set NCCL_P2P_DISABLE=1") and "ACS" in answer.then
    assert "P2P" not in first(f"torch on 2 GPUs\n{said}\n").then


# --- Xids of several GPUs ---------------------------------------------------------------------------------------------


def test_of_several_gpus_the_hardwares_fault_comes_first() -> None:
    log = "\n".join((XID.format("05", 43), XID.format("07", 31), XID.format("08", 94)))
    assert ids(log)[0] == "xid.94"
    assert first(log).doubt == ""


def test_of_one_gpu_the_first_fault_comes_first() -> None:
    assert ids("\n".join((XID.format("05", 31), XID.format("05", 94))))[0] == "xid.31"


def test_one_fault_by_two_numbers_is_no_doubt() -> None:
    log = "\n".join(XID.format(gpu, f"45, Ch 1 caused by previous Xid {by}") for gpu, by in (("1a", 149), ("2a", 145)))
    assert (first(log).title, first(log).doubt) == ("Xid 149: NVLink error", "")
    assert first("\n".join((XID.format("05", 48), XID.format("08", 79)))).doubt != ""


# --- an answer that finds nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "asks"),
    [
        ("requests.exceptions.SSLError: certificate has expired (host x)", False),
        ("it does not work", True),
        ("ValueError", True),
    ],
)
def test_the_whole_traceback_is_asked_for_where_no_message_is_there(pasted: str, asks: bool) -> None:
    events: list[Event] = []
    command.explain(pasted, events.append)
    (finding,) = (event.finding for event in events if isinstance(event, Judged))
    assert finding.id == "explain.unknown"
    assert ("paste the whole traceback" in finding.message) == asks
