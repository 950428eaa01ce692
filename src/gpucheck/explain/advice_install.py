"""Advice that depends on the facts of a paste, for drivers, containers and packages: the rows that come first. Pure."""

from __future__ import annotations

from gpucheck.doctor import fixes
from gpucheck.explain.facts import Advice, of
from gpucheck.explain.steps import find_version, install_torch

ADVICE: tuple[Advice, ...] = (
    of("torch.no_acc")(r"\A(?![\s\S]*torch)[\s\S]*(?:\bollama|\blm ?studio|\bllama\W?cpp)", becomes="llamacpp.cpu"),
    of("torch.no_acc", "torch.cpu_only")(
        "fp16 is not supported on cpu",
        "where nvidia-smi lists a GPU, python -m torch.utils.collect_env has to say `Is CUDA available: True`: else "
        "reinstall torch from PyTorch's index for CUDA; on a Mac whisper.cpp or mlx-whisper, without a GPU "
        'faster-whisper with compute_type="int8", or a smaller model. The warning itself is harmless',
        title="Whisper computes on the CPU: torch sees no GPU that it can use",
    ),
    of("numerics.nan")(
        r"\A(?![\s\S]*(?:nansexc|nans was|loss scale|comfy|webui))[\s\S]*(?:gtx ?16|\bb?float16|\b[fb]p?f?16|\bamp\b)",
        "one run in float32 (Ultralytics amp=False, accelerate --mixed_precision no, no .half()): where it is finite, "
        "bfloat16 (8.0 and newer; a GTX 16 stays at float32), or float32 for the part that overflows: an SDXL VAE "
        "(sdxl-vae-fp16-fix, --no_half_vae), norms, softmax, the loss, an audio decoder; else a lower learning rate "
        "with warm-up, clip_grad_norm_, and torch.isfinite on the batch",
        title="NaN or infinity was computed: float16 ends at 65 504, and a GTX 16 computes it wrongly (or the data)",
    ),
    of("cudnn.version")(
        r"\A(?![\s\S]*\bjax)[\s\S]*(?<![\w.-])/(?:usr/)?(?:lib|local/cuda)\S*libcudnn",
        "export LD_LIBRARY_PATH=$(python -c 'import nvidia.cudnn as c; print(c.__path__[0])')/lib before the program "
        "starts; for good sudo apt-get remove the package that dpkg -S FILE names for the file in the message",
        title="the system's cuDNN is loaded beside the one of torch's wheel",
    ),
    of("nvcc.arch")(
        r"value \W?(?:native|all|all-major|any) is not",
        "the GPU's number in place of it (compute_cap of nvidia-smi without the dot, 86 for 8.6): make "
        "CUDA_ARCH_FLAG=sm_86, cmake -DCMAKE_CUDA_ARCHITECTURES=86; or a newer toolkit than Ubuntu's own",
        title="this nvcc is older than the option -arch=native (CUDA 11.6)",
    ),
    of("process.killed")(
        r"loading checkpoint shards|loading (?:the )?(?:model|weights)|from_pretrained",
        "free -h while it loads: RAM and swap have to hold the weights (2 GB for each billion parameters in 16 bits); "
        'low_cpu_mem_usage=True with device_map="auto", a quantised model, more swap (WSL: memory= in .wslconfig)',
        title="RAM was probably full while the weights were loaded",
    ),
    of("graphics.context")(
        r"ncnn|upscayl|video2x|waifu2x|real-?esrgan",
        "the newest driver of the GPU's maker (Intel's HD Graphics before the 6th generation has no Vulkan): "
        "vulkaninfo --summary has to list the GPU; then the program's GPU number left empty, or 0",
        title="Vulkan finds no driver that it can use",
    ),
    of("import.library", "import.dll")(
        r"\A(?=[\s\S]*(?:whisper|ctranslate2))[\s\S]*cu(?:dnn|blas)\w*64_\d+\.dll",
        "pip install -U ctranslate2 nvidia-cublas-cu12 'nvidia-cudnn-cu12>=9' (cudnn_ops_infer64_8.dll without -U: "
        "'nvidia-cudnn-cu12==8.*'), and site-packages\\nvidia\\cudnn\\bin and …\\cublas\\bin on PATH before it starts",
        title="CTranslate2 (faster-whisper) does not find cuDNN's or cuBLAS's DLLs",
    ),
    of("cuinit.too_old")(
        "but jax was built against",
        "pip install -U 'jax[cuda12]', which brings its own CUDA, and unset LD_LIBRARY_PATH: the system's comes first",
        title="JAX loads an older CUDA than the one it was built for",
    ),
    of("pip.torch", "pip.conflict")(
        r"packagesnotfounderror|resolvepackagenotfound|libmamba|unsatisfiableerror|nothing provides",
        "conda install -c conda-forge pytorch-gpu torchvision in a new environment, or in it pip install torch "
        f"torchvision --index-url {fixes.INDEX}/cuXYZ: the channel pytorch ends at 2.5 (pytorch-cuda 11.8, 12.1, 12.4)",
        title="conda's channels have no such torch, or no set that fits it",
    ),
    of("cuda.capability", "architecture.")(
        lambda facts: facts.vendor == "amd",
        "nothing where the program goes on: it is a warning; where it fails, rocminfo | grep gfx and torch.cuda."
        "get_arch_list(): a torch or ROCm that lists the GPU (gfx803, RX 4xx and 5xx, only old ones)",
        title="a check made for NVIDIA's GPUs, which says nothing of an AMD GPU",
        meaning="ROCm's torch prints a capability for AMD GPUs too, and compares it with NVIDIA's.",
    ),
    of("cuda.capability")(
        r"\A(?![\s\S]*(?:torch|kernel binar))[\s\S]*\b(?:tensorflow|keras|rasa)\b",
        "TensorFlow 2.4 (RTX 30), 2.10 (RTX 40) or newer, for 1.x the image nvcr.io/nvidia/tensorflow:23.03-tf1-py3",
        title="this TensorFlow, or its CUDA, is older than the GPU",
    ),
    of("build.extension")(
        r"max_jobs=n\)\s*1\.1\d\.\d",
        "write ['ninja', '-v'] in torch/utils/cpp_extension.py again, or reinstall torch; then delete the folder "
        "build and build again: the first line with error: is the cause",
        title="ninja printed its version and compiled nothing: torch's cpp_extension.py was changed to --version",
    ),
    of("nvcc.old", "build.extension")(
        r"\buintptr_t\b|\buint\d+_t\W{1,2} ?(?:is undefined|was not decl)|flt_max",
        "write #include <cstdint> (for FLT_MAX <cfloat>) at the top of the file in the error (gaussian splatting: "
        "rasterizer_impl.h, simple_knn.cu), then pip install --no-build-isolation its folder again",
        title="a source lacks an #include that newer compilers want",
    ),
    of("llamacpp.cpu")(
        r"\d%/\d+% cpu/gpu",
        "a smaller context (num_ctx, OLLAMA_CONTEXT_LENGTH=4096), OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0, "
        "then a smaller quantisation or model, until ollama ps shows 100% GPU; nvidia-smi shows other programs",
        title="a part of the model computes on the CPU: GPU memory does not hold it",
    ),
    of("nccl.unhandled")(
        r"\bfirewall|only ports \d",
        "allow all TCP ports between the machines, because NCCL takes free ones besides MASTER_PORT; or on each "
        "machine sudo sysctl -w net.ipv4.ip_local_port_range='40000 40050', with the ports that are open",
        title="a firewall probably blocks NCCL's connections between the machines",
    ),
    of("cuinit.too_old", "torch.cpu_only")(
        lambda facts: bool(fixes.older_build(facts.driver_cuda)) and "container" not in facts.names,
        lambda facts: f"{fixes.older_build(facts.driver_cuda)}; or a newer driver, and a newer torch",
    ),
    of("cuinit.", "torch.no_acc", "torch.sees_none", "import.libcuda", "nvml.no", "container.cli", "tensorflow.")(
        r"\b(?:apptainer|singularity) (?:-\w )?(?:exec|run|shell|instance)\b(?![\s\S]*--(?:nv|rocm)\b)",
        "--nv (AMD: --rocm) after exec, run or shell and before the image's name; nvidia-smi has to work on the host",
        title="singularity or apptainer was started without --nv, which passes the GPU in",
    ),
    of("nvml.no_library", "cuinit.no_driver", "import.libcuda", "cuinit.100", "torch.no_acc")(
        r"\bdocker run (?![\s\S]*(?:--gpus|--runtime|--device|/dev/kfd))[^\n]*\w/\w|"
        r"exec: \S*nvidia-smi\W{1,3}executable file",
        "docker run --gpus all … (Compose: deploy.resources.reservations.devices with driver: nvidia, capabilities: "
        "[gpu]; podman --device nvidia.com/gpu=all), with nvidia-container-toolkit and a working nvidia-smi there",
        title="the container was started without the GPU (--gpus all)",
    ),
    of("torch.no_acc", "torch.sees_none")(
        lambda facts: (
            not (facts.build or facts.vendor in ("amd", "intel") or {"jetson", "ray", "container"} & facts.names)
            and not {"wsl", "mac", "directml"} & facts.platforms
            and bool("windows" in facts.platforms or facts.processor)
        ),
        install_torch,
        title="this torch is probably a build for the CPU: PyPI has no other for Windows, and had none for ARM",
    ),
    of("torch.cpu_only")(
        r"(?:uninstall|replac|overwr|downgrad)\w*[\s\S]{0,100}\btorch",
        f"pip install --force-reinstall torch==VERSION --index-url {fixes.INDEX}/cuXYZ, then the package beside it: "
        "pip freeze | grep -i ^torch > held.txt && pip install -c held.txt NAME (uv: --torch-backend=auto)",
        title="another package's installation replaced torch by a build for the CPU",
    ),
    of("llamacpp.cpu")(
        r"runners=\W?\[cpu[ \w]*\]",
        "curl -fsSL https://ollama.com/install.sh | sh installs it whole; a distribution has another package for the "
        "GPU (Arch ollama-cuda or ollama-rocm, NixOS services.ollama.acceleration)",
        title="this Ollama has only its part for the CPU",
    ),
    of("kernel.build")(
        r"headers for kernel|kernel source tree|linux-headers\S* package",
        "sudo apt-get install linux-headers-$(uname -r) (Fedora kernel-devel-$(uname -r), Arch linux-headers of that "
        "kernel, Proxmox proxmox-headers-$(uname -r)), then sudo dkms autoinstall and reboot",
        title="the headers of the kernel are not installed, with which the driver's module is built",
    ),
    of("kernel.build")(
        r"ftrivial-auto-var-init|compiler differs from|cc version check failed",
        "sudo apt-get install gcc-12 (the version that `The kernel was built by` names), sudo update-alternatives "
        "--install /usr/bin/gcc gcc /usr/bin/gcc-12 60, then sudo dkms autoinstall",
        title="the kernel was built by another gcc than the system's",
    ),
    of("kernel.build")(
        r"nvidia\S{0,20}[/-]\d{3}\b|driver.{0,20}\b\d{3}\.\d",
        "a newer driver: the newest branch that knows the GPU (580 is the last for GTX 9xx, 10xx and V100, 470 for "
        "Kepler, which needs an older kernel, Arch linux-lts), -open from RTX 20 on; until then boot the kernel before",
        title="this driver is probably older than the kernel, whose interface has changed",
    ),
    of("import.libcuda", "import.library")(
        r"error: lib(?:cuda|nvrtc)\.so: cannot open",
        "sudo ln -s libcuda.so.1 FOLDER/libcuda.so, FOLDER from ldconfig -p | grep libcuda.so.1 (WSL: "
        "LD_LIBRARY_PATH=/usr/lib/wsl/lib; where it has none, --gpus all). libnvrtc.so: such a link to the libnvrtc… "
        "of site-packages/nvidia/cuda_nvrtc/lib or torch/lib, and that folder in LD_LIBRARY_PATH",
        title="cuDNN looks for a library by its name without a number, and only one with a number is there",
    ),
    of("import.dll")(
        r"\A(?![\s\S]*winerror)[\s\S]*while importing (?!torch|fbgemm|cudnn|onnx|flash|tensorrt)\w+: ?(?:the|找|指)",
        "import torch before that module in the program (its DLLs are in torch\\lib); where it still fails, the "
        "module's wheel for this torch and CUDA, or build it again (pip install --no-build-isolation FOLDER)",
        title="an extension does not find torch's DLLs: torch is imported after it, or is another version",
    ),
    of("pip.torch")(r"\bcpython \d[\s\S]{0,120}abi tag", find_version, title="torch has no wheel for this Python"),
    of("pip.torch")(
        r"youre on (?:linux \(manylinux_2_(?:[5-9]|1\d|2[0-7])_|macos \(\S*x86_64)",
        lambda facts: (
            "pip install torch==2.2.2 'numpy<2' with Python 3.8 to 3.12, the last one for Macs with Intel's processors"
            if facts.holds(r"youre on macos")
            else "ldd --version: torch 2.7 and newer want glibc 2.28 (RHEL 8, Debian 10): a newer system or image, or "
            "torch==2.6.0; where the system has it, uv sync --refresh, because uv keeps what it read before"
        ),
        title="this system is older than torch's wheels ask for (or uv remembers an older glibc)",
    ),
    of("nvml.permission")(
        r"\A(?=[\s\S]*nvml: insuff)[\s\S]*(?:selinux|getenforce|podman|docker|container|\bfedora\b|\brhel\b|rocky)",
        "--security-opt label=disable at the container's start (Compose security_opt: [label=disable]), or for all "
        "sudo setsebool -P container_use_devices on; sudo ausearch -m avc -ts recent shows what was refused",
        title="SELinux probably keeps the container from the GPU's device files",
    ),
    of("container.cli")(
        r"(?:after|each|every)\b[^.\n]{0,24}\b(?:re)?boot|(?:until|must) (?:i )?run \W{0,4}nvidia-smi|custom device",
        "on the host sudo nvidia-modprobe -c 0 -u makes /dev/nvidia0 and /dev/nvidia-uvm; for each boot sudo "
        "systemctl enable --now nvidia-persistenced, and that command in a unit before docker.service",
        title="the GPU's device files are not there on the host until a program makes them",
    ),
)
