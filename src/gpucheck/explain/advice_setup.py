"""Advice that depends on the facts of a paste, for drivers, installations and builds. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpucheck.doctor import fixes
from gpucheck.explain.facts import Advice, Facts, of
from gpucheck.explain.steps import abi, find_version, install_for_amd, install_torch, install_torchvision, rebuild

_CUDAS = (
    *("import.library", "import.libcuda", "import.nv", "nvcc.missing", "cuinit.", "torch.cpu_only", "nvml.no"),
    *("torch.no_accelerator", "torch.sees_none", "driver.", "library.", "compile.libcuda"),
)
# The HSA_OVERRIDE_GFX_VERSION for the other GPUs of an AMD family, by the beginning of its gfx numbers.
_RELATIVES = {"gfx103": "10.3.0", "gfx110": "11.0.0", "gfx90c": "9.0.0"}
# Patterns of the reasons that xFormers gives for rejecting an operator.
_NOT_BUILT, _TOO_OLD, _ON_CPU = r"wasnt buil[dt]", "requires device with capability", "device=cpu"
_SHAPE = r"max\(query\.shape|dtype=torch"


def _operators(reason: str) -> Callable[[Facts], bool]:
    """Return the condition that xFormers lists this reason below each of its operators."""
    return lambda facts: (
        "is not supported because:" in facts.text
        and all(re.search(reason, below) for below in facts.text.split("is not supported because:")[1:])
    )


ADVICE: tuple[Advice, ...] = (
    of("xpu.none")(
        r"libze_intel_gpu\.so",
        "sudo apt-get install libze-intel-gpu1 (Intel's graphics packages; before 24.x intel-level-zero-gpu). sycl-ls "
        "must then list level_zero:gpu",
        title="Intel's Level Zero driver for GPUs (libze_intel_gpu) is not installed",
    ),
    of("hip.none", "torch.sees_none", "cuinit.100")(
        r"(?:rocr|hip|cuda)_visible_devices=\S+ (?:rocr|hip|cuda)_visible_devices=[1-9]",
        "set only one of ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES. The later ones number, "
        "from 0, only what ROCR_VISIBLE_DEVICES leaves",
        title="two variables choose GPUs one after the other, and the second names one that the first has hidden",
    ),
    of("hip.none")(
        r"crw-{7}[^\n]{0,30}root[^\n]{0,60}\bkfd\b",
        'write KERNEL=="kfd", GROUP="render", MODE="0660" into /etc/udev/rules.d/70-kfd.rules, then sudo udevadm '
        "control --reload && sudo udevadm trigger. sudo usermod -aG render,video $USER, and log in again",
        title="only root may open /dev/kfd: the udev rule of ROCm's driver package is missing",
    ),
    of("bitsandbytes.setup")(
        r"libbitsandbytes_rocm\d+\.so",
        "ls the folder of the message: BNB_ROCM_VERSION=NN before the command chooses libbitsandbytes_rocmNN.so. If "
        "there is none, pip install -U bitsandbytes, or build it for this ROCm (cmake -DCOMPUTE_BACKEND=hip -S .)",
        title="this bitsandbytes has no library for torch's ROCm version",
    ),
    of("nvml.no_library")(
        "kubernetes",
        "write runtimeClassName: nvidia into the pod (or make nvidia the node's default runtime), and request "
        "nvidia.com/gpu, or set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        title="the pod does not run with the nvidia runtime, which brings nvidia-smi and NVML in",
        certainty="hint",
    ),
    of("torch.no_acc")(
        "low vram warning",
        "set GPU Weights lower in Forge's first row, so that 2 to 4 GB stay `to do matrix computation`",
        title="Forge's setting GPU Weights leaves too little GPU memory to compute in",
    ),
    of("torch.no_acc", "torch.cpu_only")(
        r"\A(?![\s\S]*\bpip3? install)[\s\S]*\bconda\b[^\n]{0,200}(?:\bis_available\W{1,4}\w* ?\W?false|"
        r"\bcpu version is installed)",
        "conda list | grep -i torch: cpu in the build's name is the cause. conda install -c conda-forge "
        "'pytorch=*=*cuda*', or pip install torch in a fresh environment",
        title="conda probably chose torch's build for the CPU, which fits the other packages",
    ),
    of("attention.flash", "attention.package")(
        r"unsupported cuda architecture|sm\d+ kernel is not available",
        "turn SageAttention off (use sdpa). Or see why it fails: python -c 'from sageattention import _qattn_sm89' "
        "(the message's number), and install a wheel for this torch and GPU (before Ampere sageattention==1.0.6)",
        title="SageAttention has no kernel for this GPU: it is not built for it, or its compiled part does not load",
        meaning="SageAttention 2 needs Ampere (8.0) or newer, and a build that names this GPU's architecture.",
    ),
    of("import.extension")(
        r"no gym module found",
        "use Python 3.8 on Linux with x86-64. On Windows, ARM or with a newer Python use its successor, Isaac Lab",
        title="Isaac Gym has no compiled module for this system or Python: only for Linux with Python 3.6 to 3.8",
        meaning="Its folder _bindings has gym_36, gym_37 and gym_38 for linux-x86_64.",
    ),
    of("nvcc.missing")(
        r"set to notfound[\s\S]*cuda_\w+_library",
        "pip install -U 'cmake<4', empty the build folder and run cmake again, else with -DCUDA_cublas_LIBRARY=FILE",
        title="CMake does not find a library of CUDA: usually CMake is older than the toolkit, which moved or lost it",
    ),
    of("import.shared")(
        r"libpython3|isaac_?gym|libmem_filesys|usd libs",
        "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH in a conda environment (else sudo apt-get install "
        "libpython3.X), and add …/isaacgym/_bindings/linux-x86_64 to it. Warnings of a failed preload are harmless",
        title="a library of the Python environment, or Isaac Gym's own, is not on the loader's path",
    ),
    of("build.windows")(
        r"host_config\.h\W*\d+\W*fatal error c1083|c1083[^\n]{0,50}\b(?:crtdefs|corecrt|std\w+|io|float|windows)\.h",
        title="the C++ compiler does not find its own headers: no Windows SDK, or not the compiler's prompt",
    ),
    of("cuda.not_supported")(
        r"\A(?![\s\S]*expandable)[\s\S]*(?:storagesharing|_share_cuda_|reductions\.py)",
        "return CPU tensors from the Dataset and move each batch to the GPU in the loop, or use num_workers=0",
        title="GPU tensors are sent to another process, which CUDA does not support here (Windows, WSL, some vGPUs)",
    ),
    of("tensor.not_implemented")(
        r"for float8_",
        "load the weights as bfloat16 or float16 (ComfyUI: base precision bf16 in the loader), or x.to(torch.bfloat16)",
        title="float8 weights reach an operation that has no float8 code",
    ),
    of("autograd.inference")(
        r"set version_counter",
        "use torch.no_grad() in place of torch.inference_mode(), or the program's option for it, or update the program",
        title="code under torch.inference_mode() runs on a backend that cannot follow it, usually DirectML or XLA",
    ),
    of("cuda.initialization")(
        r"cuda failure\W{0,3}(?:3 )?\W?initiali[sz]ation error",
        "run nvidia-smi inside the container or job. If it lists no GPU, add --gpus all, or nvidia.com/gpu in "
        "resources.limits. If it does and the program forks, start its processes by spawn, and use CUDA only in them",
        title="CUDA did not start in this process: it has no GPU, or was forked after CUDA had started",
        certainty="hint",
    ),
    of("cuda.argument", "cuda.no_kernel")(
        r"flash[-_]attention[/\\]hopper",
        "pip uninstall xformers (torch's own attention replaces it), or update it: its FlashAttention 3 needs Hopper",
        title="xformers chose an attention kernel that this GPU cannot run",
    ),
    of("tensor.load")(
        lambda facts: (
            facts.holds(r"is_available\W+is false") and not ({"mac", "rocm"} & facts.platforms or "ray" in facts.names)
        ),
        lambda facts: (
            (
                ""
                if facts.vendor == "nvidia"
                else 'without an NVIDIA GPU use torch.load(path, map_location="cpu"). With one '
            )
            + f"install a torch for CUDA that the driver supports (nvidia-smi): {install_torch(facts)}"
        ),
        title="torch sees no GPU here, and the checkpoint was saved on one",
    ),
    of("kernel.nvrm")(
        r"nv_err_no_memory",
        "end programs that hold memory (free -h, nvidia-smi). On GB10 or Jetson set vLLM --gpu-memory-utilization 0.7",
        title="the driver found no memory for itself",
    ),
    of("nvml.wsl", "nvml.not_loaded")(
        lambda facts: "own_kernel" in facts.names and "wsl" in facts.text,
        "remove kernel= from %UserProfile%\\.wslconfig, then wsl --update and wsl --shutdown: Microsoft's kernel has "
        "the module. Else build with CONFIG_DXGKRNL=y from Microsoft's WSL2-Linux-Kernel",
        title="a self-compiled WSL kernel that probably lacks Microsoft's GPU module (dxgkrnl)",
    ),
    of("bitsandbytes.setup", "import.libcuda", "cuinit.100", "cuinit.no_driver", "torch.no_acc", "torch.sees_none")(
        lambda facts: "image_build" in facts.names or facts.holds("_get_cuda_arch_flags"),
        "remove the import or the test from the image's RUN lines: only docker run --gpus all gives a container the "
        "driver and the GPU. A build of extensions needs no GPU: set ENV TORCH_CUDA_ARCH_LIST=X.Y FORCE_CUDA=1",
        title="no GPU is visible while the image or the extension is built",
    ),
    of("xformers.setup")(
        lambda facts: facts.build.startswith("cu") and facts.holds(r"\(you have \d"),
        f"pip install --force-reinstall --no-deps xformers==VERSION --index-url {fixes.INDEX}/cuXYZ, with the release "
        "for this torch (its release notes name it). Or pip uninstall xformers",
        title="xformers was built for another torch or CUDA than the installed one",
    ),
    of("container.no_runtime")(
        lambda facts: "mac" in facts.platforms and facts.vendor != "nvidia",
        "remove the request for an NVIDIA GPU (--gpus; Compose: deploy.resources.reservations.devices), so that the "
        "container uses the CPU. Or run that program outside docker, where it can use Metal (Ollama: its app for "
        "macOS, which containers reach as host.docker.internal:11434)",
        title="docker on a Mac has no NVIDIA GPU to pass to containers",
    ),
    of("dist.unused")(
        r"(?:设置|set|added|tried|us(?:e|ed|ing)|with|enabled)[ 了]{0,3}(?:the )?find_unused_parameters|parallel\([^)"
        "]*find_unused_parameters ?= ?true|find_unused_parameters ?(?:= ?true)?,? (?:is|was|already|but|does)",
        "compute one loss = loss_1 + loss_2 + … from all outputs of forward (0 * x.sum() for an unused one), and call "
        "backward() once before the next forward. TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        title="probably an output of forward does not enter the loss: find_unused_parameters=True is already set",
    ),
    of("import.glibc")(
        r"\A(?![\s\S]*(?:glibcxx_|cxxabi_))",
        "use a newer system or container image (ldd --version shows its GLIBC), or an older wheel, or build the "
        "package here: pip install --no-binary :all: --no-deps --no-build-isolation NAME==VERSION",
    ),
    of("import.glibc")(
        lambda facts: bool(facts.compiled) and "conda" not in facts.text and "cluster" not in facts.names,
        lambda facts: f"pip install -U {facts.compiled}, or use its release before; else a newer system or image",
    ),
    of("import.glibc")(
        r"(?:conda|mamba|forge|envs/)\S*/lib\w*/libstdc\+\+\.so[.\d]*: version|libstdc\+\+\S* (?:[a-z]+ ){0,3}conda",
        "conda install -c conda-forge 'libstdcxx-ng>=13' (GLIBCXX_3.4.33: 14), and rebuild extensions without cache",
        title="the conda environment's libstdc++ is older than the package",
    ),
    of("bitsandbytes.setup")(
        "jetson",
        "build it in its sources: cmake -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=87 -S . && make && pip install ., "
        "or use the wheel or image of jetson-containers for this JetPack",
        title="this bitsandbytes has no library for a Jetson",
    ),
    of("xformers.setup")(
        lambda facts: facts.build == "cpu" and "mac" not in facts.platforms,
        install_torch,
        title="this torch is built without CUDA, which xformers needs",
    ),
    of("import.nvjitlink")(
        r"undefined symbol:? ijit_",
        "conda install 'mkl<2024.1' 'intel-openmp<2024.1' in this environment, or use pip's torch instead of conda's",
        title="conda's MKL is newer than this torch expects, and lacks a function that torch calls",
    ),
    of("nvcc.missing", "compile.cuda_h")(
        r"\b(?:cu(?:sparse|solver|blas|rand|fft|dnn)|nvrtc)\w*\.h\W{0,4}(?:no such|file not)|could not find cudnn",
        "find / -name 'cu*.h' 2>/dev/null shows the header. Add its folder to CPATH (HPC SDK: …/math_libs/X.Y/include, "
        "its lib64 in LIBRARY_PATH; pip's cuDNN: …/nvidia/cudnn/include, CUDNN_PATH=…/nvidia/cudnn), and build again "
        "in an empty folder. If there is none, sudo apt-get install cuda-libraries-dev-X-Y libcudnn9-dev-cuda-12 "
        "(conda install -c nvidia cuda-libraries-dev=X.Y, -c conda-forge cudnn), X.Y of torch.version.cuda",
        title="the compiler does not find a header of CUDA's libraries or of cuDNN",
    ),
    of("import.nms", "import.symbol", "pip.torch", "cuinit.too_old", "cuda.no_kernel", "cuda.cap", "torch.cpu")(
        lambda facts: "jetson" in facts.names and not {"kernels", "llama"} & facts.names,
        f"{fixes.JETSON} (JetPack 5: Python 3.8, 6: 3.10), and its torchvision. Other indexes have none for this GPU",
    ),
    of("hip.none")(
        r"/dev/(?:kfd|dri).{0,40}permission denied|not member of .{0,3}(?:render|video)",
        title="the user may not open /dev/kfd, which ROCm needs",
    ),
    of("hip.none")(
        r"/dev/kfd\b[^\n]{0,40}no such file",
        "ls -l /dev/kfd on the host shows whether it exists. If so, docker run --device=/dev/kfd --device=/dev/dri "
        "--group-add video --group-add render. If not, the host needs Linux with AMD's kernel driver (amdgpu) for this "
        "GPU. Docker Desktop's virtual machine has no /dev/kfd (ROCm inside WSL uses /dev/dxg)",
        title="/dev/kfd is missing: the container did not get it, or the host has no amdgpu driver for this GPU",
    ),
    of("cuinit.too_old")(
        r"\A(?=[\s\S]*(?:docker|podman))(?=[\s\S]*driver version: (?:52[5-9]|5[3-9]\d))[\s\S]*version is insuff",
        "give the container the GPU: docker run --gpus all (Compose: deploy.resources.reservations.devices, Unraid: "
        "--runtime=nvidia and NVIDIA_VISIBLE_DEVICES=all). For CUDA 13 update the driver to 580",
        title="the container has no GPU (or its program needs CUDA 13)",
    ),
    of("import.extension", "import.symbol")(
        r"mmcv[./\\]_ext",
        lambda facts: (
            "pip uninstall -y mmcv mmcv-full mmcv-lite, then install the wheel for this torch and CUDA: pip install "
            + ("mmcv-full==VERSION" if facts.holds(r"mmcv\W{1,3}(?:full|v?1\.)|mmdet\W{1,3}[12]\.") else "mmcv")
            + " -f https://download.openmmlab.com/mmcv/dist/"
            + (facts.build or "cu" + "".join((re.findall(r"cuda\W{1,3}(\d\d)\.(\d)", facts.text) or ["XYZ"])[0]))
            + f"/torch{'.'.join(facts.torch.split('.')[:2]) or 'X.Y'}.0/index.html. If that page has none (torch "
            "after 2.4), MMCV_WITH_OPS=1 FORCE_CUDA=1 pip install -v --no-build-isolation FOLDER_OF_ITS_SOURCES"
        ),
        title="mmcv's compiled operations are missing, or built for another torch (before 2.0 only mmcv-full has them)",
    ),
    of("import.symbol", "attention.package")(
        lambda facts: bool(abi(facts)),
        lambda facts: (
            f"install the wheel for the same torch, CUDA and Python whose name has cxx11abi{abi(facts)}. Or build it: "
            "pip install --no-cache-dir --no-build-isolation --force-reinstall --no-deps NAME==VERSION"
        ),
        title="a package was built with another C++ ABI than torch",
    ),
    of("hip.arch")(
        lambda facts: (
            facts.holds(r"\bmi(?:[123]\d\dx?|[56]0)\b|\binstinct\b|\bgfx9[045]\w+")
            or (
                bool(facts.names & {"native", "llama"})
                and not (facts.torch or "windows" in facts.platforms or facts.holds(r"\bollama|koboldcpp|tensilelib"))
            )
        ),
        "use a release, torch or container whose notes name this GPU (rocminfo | grep gfx), or build it in an empty "
        "folder: PYTORCH_ROCM_ARCH=gfxNNN or cmake -DGPU_TARGETS=gfxNNN (older llama.cpp AMDGPU_TARGETS, its image "
        "ROCM_DOCKER_ARCH=gfxNNN). A program on torch also needs a torch whose torch.cuda.get_arch_list() has it",
    ),
    of("hip.arch")(
        lambda facts: bool(facts.gfx or "llama" in facts.names) and "windows" not in facts.platforms,
        lambda facts: (
            "set HSA_OVERRIDE_GFX_VERSION="
            + _RELATIVES.get(facts.gfx[:6], "10.3.0 (RDNA 2, gfx103x) or 11.0.0 (RDNA 3, gfx110x)")
            + " for the server, as for a close relative (Ollama: Environment= in sudo systemctl edit ollama, "
            "docker run -e; llama.cpp: built for that one). Else use a newer release, or Vulkan (OLLAMA_VULKAN=1)"
            if "llama" in facts.names
            else f"use a torch or ROCm that lists {facts.gfx} ({fixes.INDEX}/rocmX.Y, the newest; else AMD's TheRock)"
            + "; else export HSA_OVERRIDE_GFX_VERSION=".join(("", *filter(None, (_RELATIVES.get(facts.gfx[:6]),))))
        ),
    ),
    of("import.library")(
        r"\A(?![\s\S]*(?:jetson|jetpack|tegra))[\s\S]*(?:torch/__init__\.py\W+line \d+[\s\S]{0,500}|import "
        r"torch\s+(?:\w*error: ?|traceback[^\n]*\n[^\n]+\n[^\n]*error: ?))\blib(?:cu|nccl|nv)\w*\.so\S* cannot open",
        f"pip install --force-reinstall torch==VERSION --index-url {fixes.INDEX}/cuXYZ installs torch's nvidia-… "
        "packages, of which one is missing (because of --no-deps, or a lock file of another index). In a project of "
        "uv: uv lock --upgrade-package torch && uv sync --reinstall-package torch",
        title="a library that belongs to torch's wheel is not installed",
    ),
    of("import.library")(
        lambda facts: (
            (fixes.release_of(facts.torch) or (9, 9)) < (2, 4) and facts.holds(r"whisper[\s\S]*libcudnn_\w+\.so\.9")
        ),
        "pip install ctranslate2==4.4.0, the last one for cuDNN 8, which this torch brings. Or use torch 2.4 or newer",
        title="CTranslate2 4.5 or newer needs cuDNN 9, but torch before 2.4 brings cuDNN 8",
    ),
    of("import.library")(
        r"\A(?![\s\S]*64_\d\.dll)[\s\S]*(?:any of \{lib|could not (?:load|locate)(?: library)? (?:lib)?)cudnn_(?:op|cn)"
        r"|(?:whisper|ctranslate2)[\s\S]*libcublas\.so\.12|library libcublas\.so\.\d+ is not found or cannot be loaded",
        "pip install -U ctranslate2 nvidia-cublas-cu12 'nvidia-cudnn-cu12>=9' (CTranslate2 4.5 needs cuDNN 9, as torch "
        "2.4 does; an older torch needs ctranslate2==4.4.0 and nvidia-cudnn-cu12==8.*), then export "
        'LD_LIBRARY_PATH=$(python -c "import nvidia.cublas.lib as b, nvidia.cudnn.lib as c; print(b.__path__[0], '
        "c.__path__[0], sep=':')\"). For a container use an image nvidia/cuda:12.…-cudnn-runtime, which has both",
        title="a program (usually CTranslate2, of faster-whisper) does not find cuBLAS or cuDNN of CUDA 12",
    ),
    of("import.library")(
        lambda facts: (
            bool(facts.needs)
            and facts.names & {"tf", "pytorch"} != {"tf"}
            and not (
                facts.build or facts.platforms & {"wsl", "windows", "mac", "rocm"} or facts.vendor in ("amd", "intel")
            )
            and "jetson" not in facts.names
        ),
        lambda facts: (
            f"python -c 'import torch; print(torch.version.cuda)': if it does not begin with {facts.needs}, install a "
            f"torch for CUDA {facts.needs}, or the package's release for the printed CUDA, in a new environment. "
            "Else find / -name 'LIBRARY*' 2>/dev/null, and add its folder to LD_LIBRARY_PATH"
        ),
        title="a package was built for a CUDA whose library is not found here",
    ),
    of("import.symbol")(
        lambda facts: (
            facts.holds(r"(?:vllm[/\\]_\w*c|sgl_kernel|common_ops)\S*:? undefined symbol") and not facts.checkout
        ),
        "if you built it, build it again with this torch in an empty folder (pip install --no-build-isolation). Else "
        "use a new environment for it: vLLM uv pip install vllm --torch-backend=auto (SGLang pip install sglang)",
        title="the server's compiled code was built for another torch",
    ),
    of("nvcc.missing")(
        r"cannot find -l(?:cu|nv)",
        "export LIBRARY_PATH=/usr/local/cuda/lib64:$LIBRARY_PATH (in conda $CONDA_PREFIX/lib) before the build. If "
        "neither folder has the file, install the toolkit of torch's CUDA (conda install -c nvidia cuda-toolkit=X.Y)",
        title="the linker does not find a library of the CUDA toolkit",
    ),
    of("import.nms", "import.symbol")(
        r"\A(?=[\s\S]*(?:\] torch==|installed (?:[^\n]* )?torch-)(\d\.\d+\.\d))[\s\S]*"
        r"(?:pytorch version: |(?m:^)(?:>>> )?)(?!\1)[12]\.\d+\.\d[\w+]*(?: (?:true|false)|\n)",
        "python -c 'import torch; print(torch.__file__)' shows which is imported. If it is not this environment's "
        "(~/.local, PYTHONPATH, conda's), pip uninstall torch there; pip install --force-reinstall torch torchvision",
        title="probably two torches are mixed: the imported one is not the one that pip installed",
    ),
    of("import.nms")(r"\[cpu(?![^\]]*\bcuda\b)", install_torchvision, title="torchvision is built without CUDA"),
    of("import.nms")(lambda facts: "jetson" not in facts.names, install_torchvision),
    of("import.symbol")(
        r"\btorch(?:vision|audio|text)\b\S*\.so\S*:? undefined symbol",
        install_torchvision,
        title="torchvision or torchaudio was built for another torch",
    ),
    of("bitsandbytes.setup")(
        r"requires accelerate|requires the latest version of bitsandbytes|need to install .{0,4}pip install "
        r"bitsandbytes|no (?:module named )?bitsandbytes\b|please install bitsandbytes",
        "python -m pip install -U bitsandbytes accelerate with the program's Python, then start it again (a notebook: "
        "its kernel). torch.cuda.is_available() must be True: old transformers raise this error without a GPU. Or use "
        "an optimizer without 8 bits (kohya: --optimizer_type AdamW)",
        title="the program does not find bitsandbytes or accelerate, or finds no GPU for it",
    ),
    of("cuda.no_kernel")(
        r"llama[-_]cpp[-_]python",
        "CMAKE_ARGS='-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native' pip install --force-reinstall --no-cache-dir "
        "llama-cpp-python, with a CUDA toolkit that knows this GPU",
        title="llama-cpp-python was not built for this GPU's architecture",
    ),
    of("import.symbol", "import.torch_too_old")(
        r"torch[/\\]lib[/\\]lib(?:torch|c10|shm|aten|caffe2)\w*\.so[.\d]*: undefined symbol",
        "unset LD_LIBRARY_PATH and try again. Else install torch into a new environment (python -m venv NEW), or pip "
        "uninstall -y torch until it finds none (in conda: conda remove pytorch libtorch) and install one torch again",
        title="files of two torches are mixed",
    ),
    of("import.symbol", "import.library")(
        r"libtorch_cuda\.so\W{0,2} ?cannot open",
        "python -c 'import torch; print(torch.__version__, torch.version.cuda)' shows torch's CUDA. If it prints None, "
        "pip install --force-reinstall torch==VERSION --index-url https://download.pytorch.org/whl/cuXYZ (the selector "
        "on pytorch.org names it). Else reinstall the package whose file the message names, for this torch",
        title="a package needs torch's CUDA library, which this torch lacks",
    ),
    of("import.library", "import.dll", "torch.no_accelerator")(
        r"cudaexecutionprovider.{0,60}not (?:in )?avai|execution-providers?: inv|cuda_path is set but|"
        r"failed to create cudaexecutionprovider|onnxruntime_providers_cuda|(?:providers:|build has) ?\[[\w, ]*cpuexec|"
        r"onnxruntime[\s\S]{0,200}(?:get_device|\b(?:falls?|fell|falling) back to \W?cpu)|get_available_providers",
        lambda facts: (
            "put the bin folders of CUDA and cuDNN on PATH (11.8 and 8 before release 1.19, then 12 and 9)"
            if facts.holds(r"microsoft\.ml|nuget")
            else "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu[cuda,cudnn]' (driver "
            "before 580: …<1.27; for the CPU only: onnxruntime), with the CUDA of the message. Then call "
            "onnxruntime.preload_dlls(), or import torch, before it. get_available_providers() must list CUDA's"
        ),
        title="ONNX Runtime does not find its CUDA provider, or CUDA and cuDNN for it",
    ),
    of("import.libr", "compile.", "import.dll")(r"import cupy|cupy (?:fail|is not)|cupy[._/\\]", becomes="cupy.setup"),
    of("import.library")(
        r"libnvvm cannot be found|numba[\s\S]*\bnvvm",
        "pip install 'numba-cuda[cu12]' (a driver of CUDA 13: cu13), or conda install -c conda-forge cuda-nvcc "
        "cuda-nvrtc cuda-version=12, or set CUDA_HOME to a toolkit. python -m numba -s then shows what it finds",
        title="Numba does not find CUDA's compiler library (NVVM)",
    ),
    of("import.symbol", "import.torch_too")(
        r"graphbolt|dgl_sparse|import dgl\b",
        "pip uninstall -y dgl torchdata, then install torch 2.4.0 and its torchvision (the last to fit), "
        "torchdata==0.8.0 and pip install dgl -f https://data.dgl.ai/wheels/torch-2.4/cu121/repo.html",
        title="DGL has no library for the installed torch",
    ),
    of("import.symbol")(
        r"(?:torch_(?:scatter|sparse|cluster|spline_conv)|pyg[-_]lib)[\w./\\-]*\.(?:so|pyd|dll)|either \W{0,2}pyg-lib|"
        r"and torch_\w+ were compiled|no module named torch_[sc]",
        "pip uninstall -y torch-scatter torch-sparse torch-cluster pyg-lib, then pip install --no-cache-dir "
        "torch-scatter torch-sparse torch-cluster -f https://data.pyg.org/whl/torch-X.Y.0+cuXYZ.html, as "
        "torch.__version__ prints. They fit pip's torch; conda-forge's torch needs conda-forge's pytorch_scatter",
        title="PyG's compiled packages are missing, or built for another torch than the installed one",
    ),
    of("import.symbol", "import.library", "import.dll")(
        r"libggml|libllama|ggml_\w+|llama_cpp[/\\]|\bllama\.dll",
        "unset LLAMA_CPP_LIB LD_LIBRARY_PATH, delete old build folders, then CMAKE_ARGS='-DGGML_CUDA=on' pip install "
        "--force-reinstall --no-cache-dir llama-cpp-python. Its wheel for cu124 needs CUDA 12's libraries on PATH",
        title="llama.cpp's library comes from another build than the program, or does not find its CUDA",
    ),
    of("package.cpu_build")(
        r"\bcv2\b|opencv|setupnet|throw_no_cuda",
        "pip uninstall every opencv-python…, and build it with opencv_contrib: cmake -DWITH_CUDA=ON -DWITH_CUDNN=ON "
        "-DOPENCV_DNN_CUDA=ON -DCUDA_ARCH_BIN=X.Y (5.3 or newer), until cv2.getBuildInformation() says cuDNN: YES",
        title="this OpenCV is built without CUDA",
    ),
    of("package.cpu_build")(
        r"\bdgl",
        "pip uninstall -y dgl. For torch 2.1 to 2.4 then pip install dgl -f "
        "https://data.dgl.ai/wheels/torch-2.4/cu121/repo.html (that torch's number; cu118 or cu121), for torch 1.12 to "
        "2.0 pip install 'dgl<2' -f https://data.dgl.ai/wheels/cu117/repo.html (cu116, cu117, cu118)",
        title="this DGL is PyPI's build for the CPU",
    ),
    of("cuinit.", "torch.cpu_only", "import.libcuda", "nvml.no")(
        r"\b(?:dont have|do not have|without|no) an? n\w?v\w?idia (?:gpu|card)|\brun (?:it )?(?:with|on) cpu only\b|"
        r"\A(?![\s\S]*\bmac(?:book|os)?\b)[\s\S]*\b(?:dont|do not) (?:even )?have (?:an? |any )?(?:dedicated )?gpu\b",
        'set device="cpu" in the code and replace .cuda() by .to("cpu"), or set the program\'s option (faster-whisper: '
        'also compute_type="int8"). If you need its CUDA code, use a machine with an NVIDIA GPU',
        title="the program requests CUDA on a machine without an NVIDIA GPU",
        meaning="A torch without CUDA is right for this machine. The program must use the CPU.",
    ),
    of("nvcc.old")(
        r"unknown option|has no member|requires cuda \d",
        "put CUDA toolkit 12.8 or newer (13 if named) into CUDA_HOME and PATH, and rm -r ~/.cache/flashinfer. To "
        "avoid a build, install flashinfer-cubin and flashinfer-jit-cache, or set vLLM VLLM_USE_FLASHINFER_SAMPLER=0",
        title="the CUDA toolkit in use is older than the package's sources expect",
    ),
    of("cuda.no_kernel")(
        r"compile time compute cap",
        "use the image of Text Embeddings Inference for this GPU: turing-N (compute capability 7.5), N (8.0), 86-N, "
        "89-N, hopper-N (9.0), 100-N and 120-N (Blackwell), with N its release. For GPUs before Turing use cpu-N",
        title="this image is built for another GPU's architecture",
    ),
    of("cuda.no_kernel")(
        r"onnxruntime",
        "pip install -U onnxruntime-gpu (RTX 50: 1.22 or newer, with CUDA 12.8 or newer; a GPU before Turing: the last "
        "release whose notes name it). Until then set providers=['CPUExecutionProvider']",
        title="this onnxruntime-gpu has no code for the GPU's architecture",
    ),
    of("cuda.no_kernel")(
        "bnb",
        "pip install -U bitsandbytes, because an old release, or its Windows build, lacks this GPU. Else use an "
        'optimizer without 8 bits (kohya: --optimizer_type AdamW; optim="adamw_torch"), and weights in float16',
        title="bitsandbytes has no code for this GPU's architecture",
    ),
    of("cuda.no_kernel")(
        r"tinycudann|tcnn_cuda|tiny-cuda-nn",
        "set TCNN_CUDA_ARCHITECTURES=NN (this GPU's compute_cap of nvidia-smi without the dot) before its pip install, "
        "with --force-reinstall --no-cache-dir --no-build-isolation and a torch that sees the GPU",
        title="tiny-cuda-nn was not built for this GPU, or does not know the GPU to build for",
    ),
    of("quant.extension")(
        r"build variants|mxfp4 quantization",
        "pip install -U kernels transformers, and a torch (2.8 or newer, with its own Triton) for which the kernel has "
        "a variant (torch28-cxx11-cu128: torch 2.8 of CUDA 12.8). Else set use_kernels=False, or bfloat16 for MXFP4",
        title="transformers finds no ready-made kernels for this torch and GPU (package kernels)",
    ),
    of("torch.no_accelerator", "torch.cpu_only", "hip.none")(
        lambda facts: (
            facts.holds("hip sdk is detected, but no torch")
            or (facts.vendor == "amd" and facts.holds(r"(?=[\s\S]*\.bat\b)[\s\S]*skip-torch-cuda-test"))
        ),
        "add --use-zluda or --use-directml (SD.Next: once with --reinstall, others: COMMANDLINE_ARGS in webui-user.bat "
        "of the fork stable-diffusion-webui-amdgpu, venv deleted first). Or use AMD's torch for Windows, or Linux",
        title="on Windows this web UI needs an option to use an AMD GPU",
    ),
    of("import.library", "torch.no_acc")(
        lambda facts: {"tf"} == facts.names & {"jax", "tf", "pytorch"} and facts.vendor != "amd",
        becomes="tensorflow.no_gpu",
    ),
    of("compile.missing", "compile.compiler")(
        # These packages bring a small compiler; torch.compile asks for cl.exe.
        lambda facts: "windows" in facts.platforms and not facts.holds(r"\bcl\b|winerror 2|torch[._]_?inductor"),
        'pip install -U "triton-windows<3.2" for torch 2.4 and 2.5, "<3.3" for 2.6, "<3.4" for 2.7, "<3.5" for 2.8, '
        '"<3.6" for 2.9',
    ),
    of("compile.", "import.torch_too_old")(
        r"cannot import name .{1,40} from \W{0,2}triton|triton[\w.]* has no attribute|py_ssize_t_clean|"
        r"compiledkernel has no attribute|cannot convert jitfunction",
        'python -c \'from importlib.metadata import requires; print([r for r in requires("torch") if "triton" in r])\' '
        "shows the Triton that this torch needs: pip install triton==VERSION (on Windows triton-windows). Else the "
        "package in the traceback needs a newer torch with its Triton, or take the package's release before",
        title="Triton's version does not fit this torch, or the package that uses it",
        certainty="strong",
    ),
    of("attention.package")(
        r"(?<!flash)(?<!flash_)sage[-_ ]?att",
        "python -c 'import triton, sageattention' in the program's Python shows which fails: pip install -U triton "
        "(Windows: triton-windows) and sageattention. For SageAttention 2 and 3 take its wheel for this torch, CUDA "
        "and Python, or its sources: pip install --no-build-isolation FOLDER. Or turn the option for SageAttention off",
        title="SageAttention is missing, of another version than the program expects, or built for another torch",
    ),
    of("attention.package")(
        r"flash\S*\.so\S*:? undefined symbol",
        "pip uninstall -y flash-attn, then pip install --no-cache-dir the wheel of its releases page whose name has "
        "this torch, CUDA, Python and cxx11abi (pip list | grep -i torch). Or build it: MAX_JOBS=4 pip install "
        'flash-attn --no-build-isolation --no-cache-dir. attn_implementation="sdpa" does not need it',
        title="flash-attn was built for another torch than the installed one",
    ),
    of("cuda.capture", "torch.internal")(
        lambda facts: facts.holds("captures_underway" if facts.holds("internal assert") else "server"),
        "set vLLM --enforce-eager (SGLang --disable-cuda-graph). If an earlier error is above, solve that; else update",
    ),
    of("torch.cpu_only")(
        r"compiled with mps|support for mps devices",
        "on a Mac, python -c 'import platform; print(platform.machine(), platform.mac_ver()[0])' must print arm64 and "
        '12.3 or newer; then pip install --force-reinstall torch with that Python. Elsewhere use "cuda" or "cpu"',
        title="this torch is built without MPS, which Apple's GPUs need",
    ),
    of("nvcc.host_compiler")(
        r"microsoft visual studio|stl1002",
        "install Visual Studio 2022's build tools beside the newer ones, and build in its `x64 Native Tools` prompt. "
        "Or use a newer CUDA toolkit (before 12.4: the toolset MSVC v143 14.38, vcvarsall.bat x64 -vcvars_ver=14.38 "
        "and set DISTUTILS_USE_SDK=1). set NVCC_PREPEND_FLAGS=-allow-unsupported-compiler skips this check",
        title="Visual Studio is newer, or older, than the CUDA toolkit accepts",
    ),
    of("torch.cpu_only", "torch.no_accelerator")(
        lambda facts: facts.build == "xpu",
        'use device="xpu" instead of "cuda" if torch.xpu.is_available() (code or option); else update Intel\'s driver',
        title="this torch is built for Intel GPUs (XPU), but the program requests CUDA",
    ),
    of("nvml.not_loaded")(
        lambda facts: "wsl" in facts.platforms and facts.vendor in ("", "nvidia"), becomes="nvml.wsl"
    ),
    of("compile.ptxas")(
        "old_llvm",
        "use a newer torch, which brings its Triton (2.7 is the first for Blackwell, sm_120). If Triton was installed "
        "separately, pip install -U triton (Windows: triton-windows for this torch); then rm -r ~/.triton/cache",
        title="the compiler in Triton (LLVM) does not know this GPU",
        certainty="strong",
    ),
    of("cuda.no_kernel", "cuda.capability", "architecture.")(
        lambda facts: (
            ("kepler" in facts.names or bool(facts.capabilities))
            and not (facts.has_code or "native" in facts.names)
            and all((fixes.number(capability) or 99) < 50 for capability in facts.capabilities)
        ),
        'use device="cpu" (in the code or the program\'s option), or a newer GPU: CUDA 12 does not support this one',
        title="this GPU (Kepler or older) is too old for a current torch",
    ),
    of("kernel.nvrm", "cuinit.999", "cuinit.unexpected", "llamacpp.cpu", "torch.no_acc", "cuinit.100")(
        lambda facts: "suspend" in facts.names and not facts.platforms & {"wsl", "windows", "mac"},
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm with no program on the GPU, else reboot. To prevent it, set "
        "NVreg_PreserveVideoMemoryAllocations=1 (options nvidia …, in /etc/modprobe.d), sudo systemctl enable "
        "nvidia-suspend nvidia-resume nvidia-hibernate, and try another driver version",
        title="the driver failed at a suspend",
        certainty="hint",
    ),
    *(
        of("import.nvjitlink")(
            rf"symbol:? _*{name}\w*",
            f"unset LD_LIBRARY_PATH if echo $LD_LIBRARY_PATH prints a folder. Else pip list | grep -i {name} shows the "
            "packages: if those of two CUDAs (cu11, cu12, cu13) share a folder, install only the one that python -c "
            "'from "
            'importlib.metadata import requires; print([r for r in requires("torch") if '
            f'"{name.lower()}" in r])\' shows',
            title=f"torch loads another {name} than its own",
        )
        for name in ("NCCL", "nvJitLink", "cuSPARSE", "cuBLAS", "cuSOLVER", "cuFFT", "NVRTC")
    ),
    of("cuda.no_kernel")(
        lambda facts: bool(facts.names & {"jax", "tf"}) and "pytorch" not in facts.names,
        "update to a release that lists this GPU: pip install -U 'jax[cuda12]' or 'tensorflow[and-cuda]'",
        title="a package has no code for this GPU's architecture",
    ),
    of("cuinit.too_old")(
        r"\A(?=[\s\S]*found version 12\d)(?=[\s\S]*\bvllm)(?![\s\S]*(?:docker|podman|kubectl))",
        "update the driver (CUDA 13 needs 580). Or install vLLM's wheel for CUDA 12.9 in a new environment, without "
        "another torch: uv pip install "
        "https://github.com/vllm-project/vllm/releases/download/vV/vllm-V+cu129-cp38-abi3-manylinux_2_28_x86_64.whl "
        "--extra-index-url https://download.pytorch.org/whl/cu129 (V is the release)",
    ),
    of("import.library")(
        lambda facts: (
            facts.build.startswith("cu")
            and bool(facts.needs)
            and not facts.build[2:].startswith(facts.needs.replace(".", ""))
        ),
        lambda facts: (
            f"install the release of {facts.extension or facts.compiled or 'the package that asks for it'} for CUDA "
            f"{facts.build[2:4]} (torch is {facts.build}; vLLM: the +{facts.build} wheel of its releases, sgl-kernel "
            f"--index-url https://docs.sglang.ai/whl/{facts.build})"
            # A driver before 525 does not run CUDA 12.
            + f"; or install torch and all packages for CUDA {facts.needs}, in a new environment"
            * (not facts.holds(r"driver version: 4\d\d\."))
        ),
        title="a package was built for another CUDA than torch",
    ),
    of("pip.torch")(
        lambda facts: "mac" in facts.platforms and facts.holds(r"(?:requirement|found for) (?:triton|bitsandbytes)"),
        "remove that line from the requirements: Macs have no wheel of triton, and bitsandbytes only from 0.49 on",
    ),
    of("pip.torch", "torch.cpu_only")(
        lambda facts: (
            "mac" not in facts.platforms
            and (
                "project" in facts.names
                or facts.holds(r"no solution found[\s\S]{0,200}no version of torch|@ registry\+")
            )
        ),
        lambda facts: (
            f"poetry source add --priority explicit pytorch {fixes.INDEX}/cuXYZ, then poetry add torch torchvision "
            "--source pytorch; PyPI's torch for Windows is a CPU build, and PyPI has no versions like +cu128"
            if facts.holds(r"\bpoetry\b")
            else f"add to pyproject.toml {fixes.INDEX}/cuXYZ as [[tool.uv.index]] with explicit = true, and torch, "
            "torchvision and torchaudio under [tool.uv.sources], with a marker for this system (ARM: torch 2.9 or newer"
            " from cu130; uv sync does not read [tool.uv.pip]). Set requires-python to one that this torch supports; "
            "then uv lock --upgrade-package torch && uv sync. PyPI's torch for Windows is a CPU build"
        ),
    ),
    of("pip.torch")(lambda facts: bool(facts.asked or facts.wanted) and "no_triton" not in facts.names, find_version),
    of("torch.no_accelerator", "torch.sees_none", "cuinit.100")(
        lambda facts: (
            facts.vendor == "amd"
            and (facts.build.startswith("rocm") or ("rocm" in facts.platforms and "windows" not in facts.platforms))
        ),
        becomes="hip.none",
    ),
    of("cuda.no_kernel")(lambda facts: "rocm" in facts.platforms, becomes="hip.arch"),
    of("compile.ptxas")(
        lambda facts: "build" in facts.names and not facts.names & {"triton", "inductor", "ptxas", "old_llvm"},
        becomes="nvcc.arch",
    ),
    of("pip.torch")(
        lambda facts: "no_triton" in facts.names and "windows" in facts.platforms,
        "pip install triton-windows in the version for this torch (its page lists them), and remove triton",
        title="pip finds no triton: on Windows the package is triton-windows",
    ),
    of("import.libcuda", "import.library")(
        lambda facts: "bnb" in facts.names and ("windows" in facts.platforms or facts.holds(r"cuda[ _]setup:")),
        becomes="bitsandbytes.setup",
    ),
    of("bitsandbytes.setup", "import.libcuda")(
        r"\A(?=[\s\S]*(?:bitsandbytes|cuda[ _]setup:))[\s\S]*\blibcuda\.so: cannot open",
        "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH inside WSL (elsewhere the folder that ldconfig -p | "
        "grep libcuda shows), or pip install -U bitsandbytes, which no longer loads it by this name",
        title="bitsandbytes does not find the driver's libcuda.so",
    ),
    of("bitsandbytes.setup")(
        lambda facts: "mac" not in facts.platforms and facts.holds(r"cuda[ _]setup:|bitsandbytes-windows"),
        "pip uninstall -y bitsandbytes bitsandbytes-windows, then pip install -U bitsandbytes: its releases have "
        "libraries for CUDA 11.8 and newer. python -c 'import torch; print(torch.cuda.is_available())' must print True",
        title="this bitsandbytes is too old, or not built: it finds no library for torch's CUDA or system",
    ),
    of("import.dll")(r"error 1455|paging file is too small", becomes="oom.host"),
    of("cuda.no_kernel")(
        r"\blm[- ]?studio\b|\bllmster\b|\bollama\b",
        "update the program, or choose another runtime (LM Studio: Settings, Runtime): Vulkan runs on any GPU",
        title="the program's CUDA runtime has no code for this GPU",
    ),
    of("cuda.no_kernel", "cuda.invalid_image")(
        lambda facts: "native" in facts.names and not (facts.torch or facts.packages or "pytorch" in facts.names),
        lambda facts: (
            f"build it again in an empty folder: cmake -B build {'-DGGML_CUDA=ON ' * ('llama' in facts.names)}"
            + (f'-DCMAKE_CUDA_ARCHITECTURES="{";".join(facts.capabilities).replace(".", "") or "native"}"')
            + " (OpenCV: -DCUDA_ARCH_BIN=X.Y)" * facts.holds(r"\bopencv\(")
            + f", with a toolkit that knows this GPU{' (12.8 or newer)' * ('12.0' in facts.capabilities)}. If the "
            "program came ready-made, use its newest release"
        ),
        title="the program was not built for this GPU's architecture",
    ),
    of("hip.arch")(
        lambda facts: "windows" in facts.platforms,
        "use a release of the program for this gfx number, or put rocBLAS's library files for it into the HIP SDK's "
        "folder bin\\rocblas\\library. Else use the program's Vulkan or DirectML build",
    ),
    of("compile.resources")(
        "inductor",
        "turn off --enable-torch-compile, else set TORCHINDUCTOR_MAX_AUTOTUNE=0. Try a newer torch, or the last that "
        'worked; else @torch.compiler.disable. For flex_attention: kernel_options={"BLOCK_M": 64, "BLOCK_N": 64}',
    ),
    of("nvml.not_loaded", "kernel.wrong_module")(
        r"\bnvidia(?:-open)?-dkms\b(?!-\d)|\bpacman\b|\barch(?:linux| linux)\b|cachyos|manjaro|endeavouros",
        "uname -r names the kernel. sudo pacman -S its headers (linux-headers, linux-lts-headers, linux-zen-headers, "
        "linux-cachyos-headers) and again nvidia-dkms or nvidia-open-dkms, which builds the module; then reboot",
        title="the driver's kernel module is not loaded: probably this kernel's headers were missing for its build",
    ),
    of("nvml.not_loaded", "kernel.wrong_module", "kernel.nouveau")(
        r"\bfedora\b|\.fc\d\d\b|\bakmod|\brpm ?fusion\b",
        "sudo dnf install akmod-nvidia kernel-devel-$(uname -r) && sudo akmods --force --rebuild && sudo dracut -f "
        '(for an RTX 50, first select the open module: sudo sh -c \'echo "%_with_kmod_nvidia_open 1" > '
        "/etc/rpm/macros.nvidia-kmod'), then reboot. If mokutil --sb-state says enabled: sudo mokutil --import "
        "/etc/pki/akmods/certs/public_key.der, and Enroll MOK at the reboot",
    ),
    of("nvcc.missing")(
        r"no cuda toolset found",
        "copy CUDA\\vX.Y\\extras\\visual_studio_integration\\MSBuildExtensions (in NVIDIA GPU Computing Toolkit) to "
        "MSBuild\\Microsoft\\VC\\v170\\BuildCustomizations of Visual Studio. Or reinstall the CUDA toolkit after it",
        title="Visual Studio lacks the CUDA toolkit's integration",
    ),
    of("nvcc.missing")(
        r"make\S*: nvcc|cmake_cuda_compiler|cuda_architectures is empty|llama[-_.]cpp|find cudatoolkit|cmake error",
        "run nvcc --version in this shell. If it fails, install NVIDIA's CUDA toolkit for a CUDA that nvidia-smi "
        "shows. Then export CUDACXX=/usr/local/cuda/bin/nvcc and, for CMake, set -DCMAKE_CUDA_ARCHITECTURES=native (in "
        "CMAKE_ARGS for pip; 86 for 8.6 if no GPU is visible). Delete the old build folder",
        title="the build finds no CUDA compiler (nvcc)",
    ),
    of("nvml.mismatch")(
        lambda facts: "reboot" in facts.names and "container" not in facts.names,
        "cat /proc/driver/nvidia/version shows the module's version, dpkg -l | grep -i nvidia (rpm -qa) the "
        "libraries'. Remove one (sudo nvidia-uninstall for one of a .run file), and install the other with its DKMS "
        "package. sudo dkms status must list it for uname -r; then sudo update-initramfs -u and reboot",
    ),
    of("torch.no_accelerator")(
        lambda facts: facts.holds("skip-torch-cuda-test") and facts.vendor != "amd",
        "run nvidia-smi, which must list the GPU. Then venv/bin/python -c 'import torch; print(torch.__version__)' in "
        "the webui's folder shows its torch. If it ends in +cpu or +rocm, delete the folder venv and start the webui "
        f"again (TORCH_COMMAND=pip install torch torchvision --index-url {fixes.INDEX}/cu128 chooses the build)",
    ),
    of("nvml.mismatch")(
        "container",
        "run nvidia-smi on the host. If it works, restart the container; if that is not enough, remove NVIDIA's "
        "libraries from its image (dpkg -l | grep -i nvidia in it). If it fails there too, reboot the host",
    ),
    of("torch.cpu_only")(
        r"compiled with(?:out)? xpu|support for xpu devices",
        f"pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu for an Intel GPU (Arc, Core Ultra or Data "
        'Center; older ones: OpenVINO). For other GPUs use device "cuda" or "mps"',
        title="this torch is built without XPU, which Intel's GPUs need",
    ),
    of("cuinit.", "torch.no_accelerator", "torch.sees_none", "nvml.no", "import.libcuda")(
        "colab",
        "choose a GPU (T4) in Runtime, Change runtime type. Then run again, with CUDA_VISIBLE_DEVICES unset or 0. If "
        "none can be chosen, the day's quota is used up",
        title="the Colab runtime has no GPU: the one in your own computer does not matter there",
        certainty="hint",
    ),
    of("torch.cpu_only")(
        lambda facts: facts.vendor == "amd" and facts.build.startswith("cu"),
        install_for_amd,
        title="this torch is built for NVIDIA's GPUs, and the GPU is one of AMD",
    ),
    of("torch.cpu_only", "bitsandbytes.setup")(lambda facts: facts.vendor == "amd", install_for_amd),
    of(*_CUDAS)(
        lambda facts: (
            (facts.vendor == "amd" and "mac" not in facts.platforms and not facts.build.startswith("rocm"))
            or ("rocm" in facts.platforms and facts.holds(r"lib(?:cu|nv|nccl)\w*\.so\S* cannot open"))
        ),
        install_for_amd,
        title="a build for NVIDIA's CUDA on a machine with an AMD GPU",
    ),
    of("cuinit.no_driver")(
        lambda facts: facts.vendor == "intel" or facts.holds(r"\bipex\b|\barc\b"),
        f"pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu, pass /dev/dri to the container, and use "
        "the device xpu (the program's option for Intel GPUs). NVIDIA's driver does not help",
        title="the program asks for NVIDIA's CUDA, and the GPU is one of Intel",
    ),
    of("torch.no_acc")(
        lambda facts: "12.0" in facts.capabilities and not facts.torch,
        f"pip install --force-reinstall torch torchvision --index-url {fixes.INDEX}/cu128, in the program's Python. Or "
        "install a newer release of the program",
        title="the program's torch probably has no code for this GPU: Blackwell needs torch 2.7 or newer with CUDA "
        "12.8",
    ),
    of(*_CUDAS)(
        lambda facts: facts.vendor == "intel",
        f"pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu, install Intel's newest graphics driver, "
        'and use device "xpu" instead of "cuda" (in the code, or the program\'s option for its device)',
    ),
    of("import.library")(
        "jetson",
        "for libcudss: sudo apt-get install cudss; for libcusparseLt: sudo apt-get install libcusparselt0. For others: "
        "sudo apt-get install nvidia-jetpack, and add /usr/local/cuda/lib64 to LD_LIBRARY_PATH (.so.10 is of JetPack "
        "4, CUDA 10.2). In a container use docker run --runtime nvidia with an image of the host's JetPack",
        title="a CUDA library of the Jetson is probably not installed, or the image is for another JetPack",
    ),
    of("container.no_runtime", "container.cli", "container.cdi")(
        lambda facts: ("windows" in facts.platforms or "desktop" in facts.names) and not facts.holds("requirement err"),
        "update Docker Desktop (if it began with an update: the release before), choose its WSL 2 engine (Settings, "
        "General), which brings the toolkit, update NVIDIA's driver in Windows, wsl --update, then docker run --gpus "
        "all …. On Linux docker context use default",
    ),
    of("attention.kernel", "xformers.setup")(_operators(f"{_NOT_BUILT}|{_TOO_OLD}"), becomes="xformers.setup"),
    of("xformers.setup")(_operators(f"{_ON_CPU}|{_SHAPE}"), becomes="attention.kernel"),
    of("xformers.setup")(
        _operators(_NOT_BUILT),
        "install the xformers of this torch (its release notes name it; python -m xformers.info shows what is built): "
        "pip install --no-deps xformers==VERSION --index-url https://download.pytorch.org/whl/cuXYZ (torch's own "
        "CUDA). Else pip uninstall xformers, because torch's own attention replaces it",
        title="xformers was built without its CUDA code",
    ),
    of("xformers.setup")(
        _operators(_TOO_OLD),
        "pip uninstall xformers, because torch's own attention replaces it; else update xformers if the GPU is newer",
        title="xformers has no operator for this GPU",
    ),
    of("attention.kernel")(
        _operators(_ON_CPU),
        'call model.to("cuda"), also on the inputs, if torch.cuda.is_available(). On the CPU run without xformers',
        title="xformers has no operator for the CPU, which holds the tensors",
    ),
    of("attention.kernel")(
        _operators(_SHAPE),
        "use x.half() or bfloat16 if the list names the type; else run without xformers (torch takes any head size)",
        title="xformers has no operator for this data type or head size",
    ),
    of("import.dll", "attention.package")(
        r"winerror 1114|dll.{0,20}initiali[sz]ation routine|dll.{0,8}(?:初始化|初期化|초기화)|"
        r"dll-?initialisierung|(?:inicializaci[oó]n|initialisation|инициализац).{0,40}dll",
        "`where vcruntime140.dll msvcp140.dll libiomp5md.dll` lists them. Rename old ones beside python.exe, or update "
        "them (conda install -c conda-forge vc14_runtime, or Visual C++'s Redistributable). import torch before PyQt",
        title="a DLL was found but failed as it started (error 1114)",
    ),
    of("import.dll")(
        r"fbgemm\.dll",
        "pip install --upgrade torch torchvision --index-url https://download.pytorch.org/whl/cuXYZ, the index of the "
        "installed torch (/whl/cpu for the CPU's). 2.4.1 and newer bring libomp140.x86_64.dll",
        title="fbgemm.dll does not find libomp140.x86_64.dll",
    ),
    of("compile.cuda_h", "nvcc.missing", "nvcc.mismatch")(
        r"\bconda\b|mini(?:conda|forge)|anaconda|mambaforge",
        "conda install -c nvidia cuda-toolkit=X.Y (torch.version.cuda), then export CUDA_HOME=$CONDA_PREFIX (Windows: "
        "%CONDA_PREFIX%\\Library) in the same environment, and build again",
    ),
    of("bitsandbytes.setup", "import.symbol", "quant.extension", "vllm.start", "attention.package", "xformers.setup")(
        lambda facts: bool(facts.checkout),
        lambda facts: (
            f"start the program from another folder, with a release installed (pip install {facts.checkout}): Python "
            f"imports the sources of {facts.checkout} in this folder, not built for this torch. Or build them again "
            f"({'cmake -DCOMPUTE_BACKEND=cuda -S . && make && ' * (facts.checkout == 'bitsandbytes')}pip install "
            "--no-build-isolation -e .)"
        ),
    ),
    of("compile.backend")(
        r"unexpected type fp8",
        "turn torch.compile off for float8 weights (ComfyUI: no torch compile node), or use bfloat16 or GGUF weights",
        title="torch.compile met arithmetic on float8, which Triton lacks",
    ),
    of("compile.backend")(
        lambda facts: "triton" in facts.names and "inductor" not in facts.names,
        "look at the first error: line above. Update triton and the package whose kernel the traceback names, then rm "
        "-r ~/.triton/cache. On a GPU before Ampere (8.0) turn the kernel off",
        title="Triton could not compile a package's kernel",
    ),
    of("torch.no_accelerator", "torch.sees_none", "vllm.start", "sglang.start", "bitsandbytes.setup")(
        lambda facts: facts.build == "cpu" and "mac" not in facts.platforms and "no_driver" not in facts.names,
        becomes="torch.cpu_only",
    ),
    of("torch.cpu_only")(
        # If the paste states no build, the text itself shows that torch has no CUDA.
        lambda facts: (
            (
                facts.build == "cpu"
                or (not facts.build and fixes.release_of(facts.torch) in fixes.BUILDS_OF_TORCH_1 | fixes.RELEASES)
            )
            and not ("mac" in facts.platforms or facts.holds(r"\bconda install [^\n]*torch|_cpu_\d"))
        ),
        lambda facts: (
            install_torch(facts)
            and (
                install_torch(facts)
                + '. Without an NVIDIA GPU, use device="cpu" or the program\'s option' * (not facts.vendor)
            )
        ),
    ),
    of("cuinit.100", "torch.no_accelerator", "torch.sees_none", "tensor.load")(
        "ray",
        "add @ray.remote(num_gpus=1) to the task or actor that uses the GPU, because Ray hides the GPUs elsewhere. "
        'Flower: client_resources={"num_gpus": 1}. vLLM on several GPUs: num_gpus=0 and a placement group of N bundles '
        '{"GPU": 1}, or distributed_executor_backend="mp" with num_gpus=N. ray status shows how many GPUs Ray has',
    ),
    of("cuinit.100", "cuinit.no_driver", "nvml.no_library", "torch.no_accelerator", "torch.sees_none")(
        "jetson",
        "install NVIDIA's torch wheel for the JetPack (those of PyPI and PyTorch's indexes have no code for it), and "
        "sudo usermod -aG video,render $USER. A container needs docker run --runtime nvidia and its JetPack's image",
        title="this Jetson's GPU is not visible: usually torch is not NVIDIA's wheel for the JetPack",
    ),
    of("cuinit.100", "cuinit.no_driver", "torch.no_accelerator", "import.libcuda")(
        "kubernetes",
        "set resources.limits to nvidia.com/gpu: 1 in the pod, and runtimeClassName: nvidia if the cluster has it. "
        "kubectl describe node NODE | grep nvidia.com/gpu shows whether the node offers any. GKE mounts the driver "
        "(/usr/local/nvidia) only for that resource, once its driver installer is done: create the pod again",
        title="the pod probably got no GPU: it does not request nvidia.com/gpu, or the driver was not ready",
    ),
    of("cuinit.100", "cuinit.no_driver", "torch.no_accelerator", "nvml.not_loaded", "nvml.no_devices")(
        r"\bsrun\b|\bslurmstepd\b|\bslurm_|\bsbatch\b",
        "add --gres=gpu:1 (or --gpus=1) to sbatch and srun: a job sees only requested GPUs (nvidia-smi -L in the job)",
        title="the cluster's job sees no GPU",
        certainty="hint",
    ),
    of("cuinit.100", "cuda.ordinal", "torch.no_accelerator", "torch.sees_none")(
        r"environ\W{1,3}cuda_visible_devices\W{1,5}=\W{0,3}[1-9]",
        'remove os.environ["CUDA_VISIBLE_DEVICES"] = … from the program, or write "0": nvidia-smi -L shows the numbers',
        title="the program itself requests a GPU number that this machine probably does not have",
    ),
    of("cuda.no_kernel")(
        lambda facts: facts.has_code or (facts.has_code is None and bool(facts.names & {"kernels", "function"})),
        rebuild,
        title="a package's own code does not fit this GPU, or comes from a stale build",
    ),
    of("cuda.capability", "architecture.")(
        lambda facts: facts.has_code is True and "code" not in facts.names,
        "ignore the warning: it is harmless",
        title="a harmless warning: torch's code runs on this GPU",
    ),
    of("cuda.capability", "cuda.no_kernel", "architecture.", "cudnn.failed", "cublas.failed", "cufft.failed")(
        lambda facts: facts.has_code is False and bool(fixes.release_of(facts.torch)),
        install_torch,
        title="torch has no code for this GPU's architecture",
        certainty="proof",
    ),
    of("cuda.capability")(
        r"in this version of the container|to run this container",
        "use a newer release of the image: nvcr.io/nvidia/pytorch:25.01-py3 is the first one for Blackwell",
        title="this container image does not support this GPU",
    ),
    of("cuda.capability", "architecture.")(lambda facts: bool(facts.capabilities), install_torch),
    of("cuda.no_kernel")(
        # The GPUs between these capabilities have code in torch's own wheels.
        lambda facts: (
            facts.has_code is None
            and any(value >= 100 or value < 70 for value in map(fixes.number, facts.capabilities) if value)
            and not facts.names & {"kernels", "native", "llama"}
        ),
        install_torch,
        title="this torch has no code for this GPU's architecture",
    ),
    of("build.extension")(
        r"torch_extensions/\S{1,120}\.so\W{0,2} ?cannot open",
        "rm -r ~/.cache/torch_extensions, then start again. The interrupted build is repeated and shows its error",
        title="an earlier build of an extension is incomplete",
    ),
    of("compile.ptxas")(
        "ptxas",
        "export TRITON_PTXAS_PATH=/usr/local/cuda-13.0/bin/ptxas and set TRITON_PTXAS_BLACKWELL_PATH to the same "
        "(Triton's older ptxas does not know this GPU, that of CUDA 13 does), or use a newer torch",
    ),
    of("build.isolation")(
        r"python setup\.py egg_info did not run",
        "activate the environment that has torch (conda activate NAME), or install torch into this one. Then try again",
        title="setup.py of a package needs torch, which this Python does not have",
        meaning="pip builds a package that has only a setup.py in the environment itself, which lacks torch.",
    ),
    of("cuda.ptx", "cuinit.too_old")(
        "jetson",
        "rebuild the failing package, without its old build folder, with JetPack's own nvcc for this GPU "
        "(CUDA_HOME=/usr/local/cuda; TORCH_CUDA_ARCH_LIST=8.7, CMAKE_CUDA_ARCHITECTURES=87). CUDA 12 on JetPack 5 also "
        "needs sudo apt-get install cuda-compat-12-2, and /usr/local/cuda-12.2/compat first in LD_LIBRARY_PATH",
        title="a newer CUDA than this JetPack's driver compiled a package",
    ),
)
