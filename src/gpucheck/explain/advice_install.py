"""Advice that depends on the facts of a paste, for drivers, containers and packages: the rows that come first. Pure."""

from __future__ import annotations

from gpucheck.doctor import fixes
from gpucheck.explain.facts import Advice, of
from gpucheck.explain.steps import find_version, install_torch

ADVICE: tuple[Advice, ...] = (
    of("nvml.not_loaded", "nvml.mismatch", "nvml.no_library")(
        r"\blxc\b",
        "in the container the host's own driver version without its module (NVIDIA-Linux-x86_64-VERSION.run "
        "--no-kernel-module), and its devices: Proxmox dev0: /dev/nvidia0, dev1: /dev/nvidiactl, dev2: /dev/nvidia-uvm",
        title="the LXC container has no driver of the host's version, or not its devices",
    ),
    of("import.libcuda")(lambda facts: "wsl" in facts.platforms),
    of("nvcc.missing")(
        lambda facts: "mac" in facts.platforms,
        "do without this package, whose CUDA code no Mac runs, or use its version for MPS or MLX",
        title="a package needs CUDA, which no Mac has",
    ),
    of("torch.no_acc")(
        lambda facts: not facts.torch and any(float(value) < 7.5 for value in facts.capabilities),
        lambda facts: f"{install_torch(facts)}; a program with its own torch: its release before, or for cu126",
        title="no GPU is used: probably this torch has no code for a GPU as old as this one",
    ),
    of("torch.no_acc")(
        r"is_available\b[^\n]{0,60}\btrue\b",
        'the program\'s option for its device (--device cuda), or in its code model.to("cuda") and x.to("cuda") of '
        'every input; Task Manager shows this load under "Cuda" only, not "3D"',
        title="torch sees the GPU, and the program does not use it: it was not told to, or moves nothing there",
        meaning="Driver and torch's build are right where torch.cuda.is_available() is True.",
    ),
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
    of("nvcc.mismatch")(
        r"\A(?![\s\S]*no-build-isolation)[\s\S]*(?:pip-build-env|builds-v0|/overlay/|uv (?:pip install|add|sync))",
        "pip install --no-build-isolation NAME (uv: no-build-isolation-package in [tool.uv]), with torch, setuptools, "
        "wheel and ninja there; where nvcc --version still differs from torch.version.cuda, CUDA_HOME of that toolkit",
        title="the package was built against another torch (build isolation), of another CUDA than nvcc",
    ),
    of("tensorflow.")(
        r"\A(?![\s\S]*(?:ubuntu|linux_|/home/|/usr/|colab))[\s\S]*\bwindows\b",
        "WSL, and in it pip install 'tensorflow[and-cuda]'; in Windows itself only 2.10 and older: Python 3.10, conda "
        "install -c conda-forge cudatoolkit=11.2 cudnn=8.1.0, pip install 'tensorflow<2.11' 'numpy<2'",
        title="TensorFlow has no GPU in Windows after 2.10, and 2.10 wants CUDA 11.2 and cuDNN 8.1",
    ),
    of("xpu.none")(
        r"\b(?:docker|podman|container|lxc)\b",
        "a newer image, or Intel's newest compute runtime in it (libze-intel-gpu1, intel-opencl-icd; B580: 24.48 or "
        "newer); an older one on a kernel of 6.8 or newer: -e NEOReadDebugKeys=1 -e OverrideGpuAddressSpace=48; "
        "--device /dev/dri --group-add with the number of the host's render; sycl-ls has to list level_zero:gpu",
        title="Intel's driver inside the container sees no GPU: usually it is older than the GPU or the kernel",
    ),
    of("kernel.rm_init", "nvml.no_devices")(
        r"vmware|\besxi\b|proxmox|\bqemu\b|\bkvm\b|passthrough|hyper-v|\bxen\b|\bqubes|virtual machine|\bhvm\b",
        "UEFI firmware for the virtual machine (OVMF), machine q35, CPU host (ESXi: pciPassthru.use64bitMMIO=TRUE, "
        "pciPassthru.64bitMMIOSizeGB=128, a power of two above the GPU's memory). On the host lspci -nnk shows "
        "vfio-pci for all its functions. An RTX 50 needs nvidia-open in the guest; then a cold start of the host",
        title="the GPU does not start in the virtual machine: usually its memory windows or the firmware",
    ),
    of("kernel.rm_init", "nvml.no_devices")(
        lambda facts: bool({"12.0", "10.0", "12.1"} & set(facts.capabilities)),
        "the open kernel module: sudo apt-get install nvidia-driver-580-open (NVIDIA's repository nvidia-open, Arch "
        "nvidia-open-dkms, a .run file --kernel-module-type=open) in place of the closed one, then reboot",
        title="this GPU (Blackwell) needs the open kernel module, and probably has the closed one",
    ),
    of("nvml.not_loaded")(r"\bnouveau +\d{4,}|in use: nouveau", becomes="kernel.nouveau"),
    of("nvcc.host_compiler")(
        "exception specification is",
        "CUDA 13.3 or newer, or an image with an older system (nvidia/cuda:12.8.1-devel-ubuntu24.04); else "
        "noexcept(true) behind the functions that are named, in CUDA's crt/math_functions.h",
        title="the system's glibc (2.41 or newer) declares functions that this CUDA toolkit declares too",
    ),
    of("torch.cpu_only")(
        "conda_cpu",
        "in that environment conda remove cpuonly _pytorch_select (those it has), then conda install -c conda-forge "
        "pytorch-gpu; to keep an old release conda install pytorch=VERSION torchvision cudatoolkit=X.Y -c pytorch",
        title="conda chose a torch without CUDA in this environment",
    ),
    of("cuda.handle", "cuda.ptx", "cuda.capability", "cuda.no_kernel", "cuda.invalid_image")(
        r"\A(?=[\s\S]*tensorflow)(?![\s\S]*torch)[\s\S]*(?:rtx ?(?:pro \d|50[5-9]0)|capability 1[02]\.|\bg?b[12]00?\b)",
        "NVIDIA's container, nvcr.io/nvidia/tensorflow:25.02-tf2-py3 or newer; else tf-nightly",
        title="TensorFlow's wheel has no code for this GPU (Blackwell)",
    ),
    of("cudnn.", "cublas.", "cuda.no_kernel")(
        lambda facts: (
            # Only torch before 1.5 writes so.
            (facts.torch or "1.4" * facts.holds("cublas runtime"))[:4].strip(".") in {f"1.{n}" for n in range(7)}
            and any(fixes.number(value) in (80, 86, 89, 90) for value in facts.capabilities)
        ),
        "a torch of CUDA 11.1 or newer, at the oldest pip install torch==1.8.1+cu111 torchvision==0.9.1+cu111 -f "
        f"{fixes.INDEX}/torch_stable.html (Python 3.6 to 3.9); extensions have to be built again",
        title="torch is older than the GPU: its CUDA has no code for it",
        certainty="strong",
    ),
    of("container.cli")(
        r"nvidia-container-cli[\s\S]*\bsudo docker run(?![\s\S]*nvidia-container-cli)|\bwith sudo\b[^.\n]{0,40}"
        r"\b(?:works|fine)\b|\b(?:works?|worked|runs|fine|ok)\b[^.\n]{0,30} (?:with|using|as) (?:sudo|root)\b",
        "docker context ls: docker context use default (the host's Docker; sudo usermod -aG docker $USER gives you "
        "its socket), or remove Docker Desktop for Linux, whose virtual machine has no NVIDIA GPU",
        title="this is probably not the host's own Docker, but Docker Desktop's or a rootless one",
    ),
    of("nvml.not_loaded", "kernel.", "cuinit.no_driver")(
        r"dkms.{0,4} (?:is (?:currently )?not installed|: command not found)|dkms: command not found",
        "sudo apt-get install dkms linux-headers-$(uname -r), then reinstall the driver's package, and reboot",
    ),
    of("kubernetes.plugin", "container.no_runtime")(
        r"\bk3s\b|\brke2\b",
        "on the node install nvidia-container-toolkit and sudo systemctl restart k3s (k3s-agent, rke2-server), which "
        "finds NVIDIA's runtime itself; then runtimeClassName: nvidia for the plugin's pods and those with a GPU",
    ),
    of("xpu.none")(
        r"lib(?:ur_loader|sycl|ze_loader)\.so",
        "libze_loader: sudo apt-get install libze1 (Fedora: oneapi-level-zero); libsycl and libur_loader: pip install "
        f"--force-reinstall torch --index-url {fixes.INDEX}/xpu, which brings them",
        title="a library of Intel's driver or of its SYCL runtime is not found",
    ),
    of("xpu.none")(
        lambda facts: "windows" in facts.platforms and "wsl" not in facts.platforms,
        f"Intel's newest graphics driver, then pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu",
    ),
    of("bitsandbytes.setup")(
        r"bnb_cuda_version=\S",
        "unset BNB_CUDA_VERSION, then pip install -U bitsandbytes; python -m bitsandbytes shows what it needs",
    ),
    of("torch.no_accelerator")(
        r"expected a cuda device, but got:? ?(?:cpu|meta|mps)|\b(?:tpu|xla)accelerator\b",
        "torch.cuda functions only where device.type is cuda; in ComfyUI update the custom node in the traceback, "
        'without options that put the model on the CPU (--cpu, device: cpu); in a Trainer accelerator="auto"',
        title="the program asks for another kind of device than the machine or its options give it",
    ),
)
