"""Advice by the facts of a paste, for drivers, containers and packages: the rows that come first. No I/O."""

from __future__ import annotations

from gpucheck.doctor import fixes
from gpucheck.explain.facts import Advice, of
from gpucheck.explain.steps import find_version, install_torch

ADVICE: tuple[Advice, ...] = (
    of("slurm.gres")(
        r"mutually exclusive|you set --ntasks=\d+ in your slurm|--ntasks=1\b[\s\S]{0,400}--ntasks-per-node=[2-9]",
        "keep one of the options that the message names (--ntasks-per-node, or --ntasks for the whole job), and unset "
        "the SLURM_ variables of the other before an srun inside the job (env | grep SLURM_NTASKS; a submitter sets "
        "them)",
        title="options of Slurm, or their variables in the job, contradict each other",
    ),
    of("import.name", "import.module")(
        r"\bmmcv\.(?:parallel|runner|utils|engine|ops\.\w+_ext)\b|\bmmcv import config\b",
        "pip uninstall -y mmcv, then pip install -U openmim and mim install 'mmcv-full<2' (the release that the "
        "program names, such as mmcv==1.7.2). Or use the program's release for mmcv 2 and mmengine",
        title="the program is for mmcv 1, and mmcv 2 is installed, which moved these modules to mmengine",
    ),
    of("import.torch_too_old")(
        "allow_fp16_accumulation",
        "install torch 2.7 or newer, also torchvision and torchaudio, or leave out fp16_fast and update the node",
        title="a program sets allow_fp16_accumulation, which torch has only since 2.7",
    ),
    of("import.torch_too_old")(
        r"base 10: (?:dev|a0|rc)",
        "install a stable release of torch, or let the program parse versions by packaging.version",
        title="the program cannot read the version of a nightly torch, such as 2.8.0.dev20250412",
    ),
    of("import.name", "pip.torch", "import.twice")(
        r"\bspconv|\bcumm\b",
        "pip uninstall -y every spconv… and cumm… of pip list, then pip install spconv-cuXYZ alone, the newest of its "
        "page (cu114 to cu126) that is not above torch's CUDA. It brings its own cumm",
    ),
    of("pip.torch")(
        r"\.whl is not a supported wheel",
        "python -m pip debug --verbose lists the tags that pip accepts. Take the wheel with that cpXY (cp311 is Python "
        "3.11) and system (win_amd64, linux_x86_64), or build it: pip wheel --no-build-isolation --no-deps FOLDER",
        title="the tags in the wheel's name do not fit this Python and system, or are invalid",
    ),
    of("pip.torch")(
        lambda facts: "mac" in facts.platforms and facts.holds(r"torch[^\n]{0,40}\d\+c(?:pu|u\d)"),
        "write the version without +cpu or +cuXYZ for macOS, from PyPI, and the build with its source only for the "
        "other systems (pyproject.toml: markers = \"sys_platform == 'darwin'\" and its opposite)",
        title="the project asks for a build (+cpu, +cu…) that does not exist for Macs",
    ),
    of("import.nvjitlink")(
        r"torch_extensions[/\\]\S*\.so: undefined symbol: cu[a-z]+",
        "pip install -U the package (DeepSpeed links it since), and rm -r ~/.cache/torch_extensions. Else start with "
        "LD_PRELOAD=FOLDER/libcurand.so.10, or that of the symbol's library (…/site-packages/nvidia/curand/lib)",
        title="an extension calls a CUDA library that it was not linked to, and that this torch does not load",
        meaning="Other builds of torch load that library, so the same sources work there.",
    ),
    of("cudnn.version")(
        r"\A(?=[\s\S]*torch)[\s\S]*but jax was built against",
        "pip install -U torch 'jax[cuda12]' in releases for one CUDA and cuDNN, or use an environment for each. Import "
        "jax before torch as a test: the first one's cuDNN is loaded for both",
        title="torch's cuDNN was probably loaded first, and is older than the one that JAX was built for",
    ),
    of("cudnn.version")(
        r"\A(?![\s\S]*\bjax)[\s\S]*(?:loaded runtime cudnn|mixed dnn)",
        "pip install -U 'tensorflow[and-cuda]', which brings its cuDNN; for an old one install "
        "the one named. LD_LIBRARY_PATH and CPATH must lead to one cuDNN (Theano: dnn.library_path, dnn.include_path)",
        title="the program was compiled with another cuDNN than the one that is loaded",
    ),
    of("cupy.setup")(
        r"pynvjitlink|cubinlinker|ptxcompiler",
        "pip uninstall -y all that end in -cu11, then pip install cudf-cu12 cuml-cu12 (-cu13 from driver 580 on)",
        title="the RAPIDS packages (cuDF, cuML) are for another major CUDA than the driver or toolkit here",
    ),
    of("import.library")(
        r"\A(?![\s\S]*(?:cannot open|error 126))[\s\S]*\bonnxruntime(?:==| +)\d[\s\S]{0,400}\bonnxruntime-gpu[ =]+\d",
        "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu alone. If another package "
        "requires onnxruntime, install that one first",
        title="onnxruntime and onnxruntime-gpu are both installed, and the files of the CPU's package win",
    ),
    of("nvml.unknown")(
        r"no-cgroups ?= ?true",
        "set no-cgroups = false in /etc/nvidia-container-runtime/config.toml, then sudo systemctl restart docker. true "
        "is for rootless containers only",
        title="no-cgroups = true keeps the toolkit from allowing the devices in the container's cgroup",
        meaning="Rootful Docker needs that permission.",
    ),
    of("nvml.wsl")(
        r"\b(?:docker|podman|containerd?)\b",
        "if nvidia-smi works inside WSL itself, set no-cgroups = false in /etc/nvidia-container-runtime/config.toml "
        "and sudo systemctl restart docker. Else update NVIDIA's driver in Windows, then wsl --update, wsl --shutdown",
        title="the container inside WSL may not use the GPU: probably no-cgroups = true, else Windows's driver",
    ),
    of("nvml.wsl")(
        r"\btcc +\||\btcc (?:mode|driver)",
        "nvidia-smi -i 0 -dm 0 (WDDM; -dm 2 is MCDM) as administrator in Windows, restart it, and wsl --update",
        title="Windows runs the GPU in TCC mode, and WSL sees only GPUs in WDDM or MCDM mode",
    ),
    of("cuinit.", "torch.no_acc", "torch.sees_none", "nvml.", "import.libcuda")(
        r"\b(?:us(?:e|ing)|on|in|with|have|running) wsl ?1\b(?! ?(?:and|or|/)|\.)|(?m:\w +(?:running|stopped) +1$)",
        "wsl --set-version DISTRIBUTION 2 in Windows (wsl -l -v lists them). Then update NVIDIA's driver in Windows, "
        "and install none inside WSL: nvidia-smi must work there",
        title="WSL 1 has no GPU: CUDA needs WSL 2",
    ),
    of("cuinit.", "nvml.", "torch.no_acc", "import.libcuda", "kernel.")(
        r"vgpu-kvm",
        "in the guest, sudo nvidia-uninstall, then install the guest's driver of the same vGPU release "
        "(NVIDIA-Linux-…-grid.run) with a license token: NVIDIA-Linux-…-vgpu-kvm.run is for the host only",
        title="the host's vGPU manager (vgpu-kvm) is probably installed in the guest, and brings no CUDA",
    ),
    of("cuinit.too_old")(
        r"valid field to query",
        "update the driver (470 and older lack compute_cap; a snap or image may hold an old nvidia-smi), or give the "
        "build its number: CUDA_COMPUTE_CAP=86 (candle), CMAKE_CUDA_ARCHITECTURES=86, TORCH_CUDA_ARCH_LIST=8.6",
        title="nvidia-smi is too old: it does not know the field compute_cap, which a build queries",
    ),
    of("torch.no_acc", "torch.sees_none", "cuinit.100", "cuinit.no_driver", "import.libcuda")(
        r"\bnix(?:os|pkgs|gl)?\b(?!-)|/nix/store",
        "export LD_LIBRARY_PATH=/run/opengl-driver/lib on NixOS (hardware.graphics.enable = true), /usr/lib/wsl/lib "
        "inside WSL; elsewhere use nixGL. torch must have CUDA (config.cudaSupport = true, or torch-bin)",
        title="Nix's Python probably does not find the driver's libcuda, which lies outside the Nix store",
    ),
    of("nvml.not_loaded")(
        r"unattended[- ]upgr",
        "sudo apt-get install linux-headers-$(uname -r), reinstall one driver (sudo ubuntu-drivers install; a .run "
        "file: sudo nvidia-uninstall first), reboot. sudo apt-mark hold 'nvidia-*' 'libnvidia-*' keeps it",
        title="the driver's module is not loaded: probably an automatic upgrade replaced parts of the driver",
    ),
    of("nvml.not_loaded", "kernel.wrong_module")(
        r"prime-select (?:intel|igpu)|insert \W?off\b|alias nvidia\w* off",
        "sudo prime-select on-demand (or nvidia), and reboot. If `alias nvidia off` stays in a file of /etc/modprobe.d "
        "or /lib/modprobe.d, remove it, then sudo update-initramfs -u",
        title="the NVIDIA driver is switched off (prime-select intel, or a file of modprobe.d)",
    ),
    of("kernel.rm_init", "nvml.no_devices")(
        r"not supported by (?:the )?open|required gpu\W+(?:nvrm: )?system processor",
        "install the closed kernel module (nvidia-driver-580 or nvidia-dkms-580 without -open; a .run file: "
        "--kernel-module-type=proprietary), and reboot. 580 is the last branch for a GPU before Turing",
        title="this GPU is older than Turing, and the open kernel module does not support it",
    ),
    of("container.no_runtime")(
        r"runtime ?handler|no runtime for",
        "sudo nvidia-ctk runtime configure --runtime=containerd (or crio) on the node, and restart that runtime. k3s, "
        "rke2: install nvidia-container-toolkit and restart k3s, without --docker, which knows no runtimeClass",
        title="the node's container runtime has no handler called nvidia",
    ),
    of("hip.none")(
        r"rejects atomics",
        "put the GPU into a slot that is wired to the processor, without a riser or chipset between (lspci -tv), and "
        "update the firmware. Else use a newer GPU, which may not need them",
        title="the PCIe path to this AMD GPU has no atomic operations, so the kernel's compute driver skips it",
    ),
    of("dist.mpi")(
        r"\bsrun|--mpi=|\bpyxis|enroot",
        "srun --mpi=pmix PROGRAM, without mpirun in it (a container has no ssh to other nodes). If it does not "
        "start, --mpi=pmi2 (srun --mpi=list), or install Slurm's PMIx plugin. torch needs no MPI: srun torchrun …",
        title="Slurm's and the program's MPI do not fit, or mpirun runs inside srun",
    ),
    of("import.name")(
        r"keyword argument \W?(?:gpus|auto_select|replace_sampler|distributed_b)|root_gpu|use_ddp|data_parallel_device",
        "pip install 'pytorch-lightning<2.0' ('<1.8' for root_gpu), or write Trainer(accelerator=\"gpu\", devices=N) "
        "and trainer.strategy.root_device",
        title="the code is for an older release of Lightning, which has since removed this argument or attribute",
        certainty="strong",
    ),
    of("import.library")(
        r"provider type: cuda\b",
        'write providers=["CUDAExecutionProvider"], which needs onnxruntime-gpu',
        title="ONNX Runtime does not know a provider called cuda: the name is CUDAExecutionProvider",
        certainty="strong",
    ),
    of("container.cli")(
        r"nvidia-ctk: symbol lookup",
        "update the host's driver, or install an older nvidia-container-toolkit. nvidia-ctk --version and nvidia-smi "
        "show both",
        title="nvidia-ctk is newer than the host's driver, whose NVML lacks a function",
    ),
    of("import.glibc")(
        r"required by /\.singularity\.d",
        "use an image with a glibc as new as the host's, or remove the GL lines of nvliblist.conf on the host. CUDA "
        "alone does not need them. apptainer --nvccli passes other libraries in",
        title="--nv brings the host's libraries into the container, and its glibc is older",
    ),
    of("cuinit.no_driver", "torch.no_acc")(
        r"directml initialization failed|no module named torch_directml|--backend directml",
        "start it with --use-directml (the older --backend directml is gone), and install torch-directml: delete the "
        "folder venv and start again, or venv\\Scripts\\python -m pip install torch-directml",
        title="DirectML did not start, so the program looked for an NVIDIA GPU",
    ),
    of("nvcc.missing")(
        r"directory: :?/[^\n]{0,80}:/[^\n]{0,60}nvcc",
        "export CUDA_HOME=/usr/local/cuda, one folder. Remove the line of ~/.bashrc that appends to it with a colon",
        title="CUDA_HOME is a list of folders with colons, as only PATH may be",
    ),
    of("slurm.gres")(
        r"invalid gres core specification",
        "write the physical cores in gres.conf, without their hyperthreads: Cores=48-63, not CPUs=48-63,176-191. Or "
        "use AutoDetect=nvml. Then restart slurmctld and slurmd",
        title="gres.conf names processor threads where Slurm wants cores",
    ),
    of("slurm.gres")(
        r"can.?t stat gres\.conf file",
        "run nvidia-smi on the node. If it fails, install or load the driver; sudo nvidia-modprobe -c 0 -u before "
        "slurmd starts creates the files. Without a GPU, remove the node's line from gres.conf",
        title="gres.conf names a device file that the node does not have: the driver is not loaded, or no GPU is there",
    ),
    of("torch.no_acc", "cuinit.100", "cuinit.999")(
        r"\blxc\b|\bproxmox\b",
        "pass the device files to the container: dev0: /dev/nvidia0, dev1: /dev/nvidiactl, dev2: /dev/nvidia-uvm, "
        "dev3: /dev/nvidia-uvm-tools in /etc/pve/lxc/ID.conf, then restart it. Its driver libraries must be of the "
        "host's version",
        title="the LXC container probably lacks the GPU's device files",
    ),
    of("import.dll")(
        r"\bshm\.dll",
        "install torch 2.3.1 or newer, or pip install mkl: the wheel of 2.3.0 for Windows lacks MKL's DLLs",
        title="shm.dll of torch 2.3.0 does not find MKL's DLLs",
        certainty="strong",
    ),
    of("nccl.missing")(
        lambda facts: "windows" in facts.platforms,
        "call init_process_group('gloo'), or choose the program's option for gloo. With NCCL, run it inside WSL",
        title="torch for Windows has no NCCL",
    ),
    of("import.torch")(r"\bpip3? install (?!(?:-\S+ )*torch)", becomes="build.isolation"),
    of("torch.no_acc")(
        lambda facts: "mac" in facts.platforms and facts.holds("webui"),
        "start it with webui.sh, whose settings for macOS have --skip-torch-cuda-test --no-half. It then uses MPS on "
        "Apple silicon; export COMMANDLINE_ARGS with both if they are missing",
        title="a Mac has no CUDA, so the web UI has to skip its test for CUDA",
    ),
    of("nvcc.old")(
        r"cuda_fp8\.h\b",
        "install the toolkit of torch's CUDA (11.8 or newer has this header), export CUDA_HOME=FOLDER, and put its bin "
        "first in PATH: nvcc --version shows which is used. Then rm -r ~/.cache/flashinfer",
        title="the CUDA toolkit in use is older than 11.8, which brought the header cuda_fp8.h",
    ),
    of("cuinit.too_old")(
        r"\A(?![\s\S]*driver ?>=)[\s\S]*\b(?:microk8s|kubernetes|k8s|crashloopbackoff|pod)\b",
        "write runtimeClassName: nvidia into the pod, and resources.limits nvidia.com/gpu: 1. kubectl exec POD -- "
        "nvidia-smi must work; else the host's driver is older than the image's CUDA",
        title="the pod has no driver: probably it runs without the nvidia runtime (or the host's driver is too old)",
    ),
    of("cuinit.100", "torch.no_acc", "torch.sees_none")(
        r"cuda_visible_devices\W{1,4}all\b",
        "unset CUDA_VISIBLE_DEVICES, or set numbers (0,1). Only NVIDIA_VISIBLE_DEVICES takes the word all",
        title="CUDA_VISIBLE_DEVICES=all hides every GPU: the variable takes numbers or UUIDs",
        certainty="strong",
    ),
    of("cuinit.802")(
        r"fabric ?manager[^\n]{0,80}version [\d.]+ don",
        "install the fabric manager of exactly the driver's version (sudo apt-get install "
        "nvidia-fabricmanager-BRANCH=VERSION; nvidia-smi shows it), then sudo systemctl restart nvidia-fabricmanager",
        title="the fabric manager does not start: its version is not the driver's",
    ),
    of("cuinit.804")(
        r"(?:updat|upgrad)\w*[^.\n]{0,60}\bdriver|\bdriver[^.\n]{0,40}\b(?:updat|upgrad)",
        "reboot. If it stays, compare cat /proc/driver/nvidia/version with nvidia-smi, and remove folders called "
        "compat from LD_LIBRARY_PATH",
        title="the driver was updated, and its old kernel module probably still runs",
    ),
    of("hip.none", "tensor.not_implemented")(
        r"\bzluda\b",
        "install AMD's newest driver and the HIP SDK for Windows, put its folder bin in PATH, delete the folder "
        ".zluda, and install the program again with its ZLUDA option, not DirectML. Older GPUs also need rocBLAS's "
        "library files",
        title="ZLUDA did not start: it finds no HIP SDK, or no AMD GPU that the SDK supports",
    ),
    of("compile.missing")(
        r"no module named triton\.\w",
        "pip install -U triton (Windows: triton-windows), at the release that this torch requires (pip show torch), or "
        "another release of the package that imports it",
        title="the installed Triton lacks a module that a package imports: their releases do not fit",
    ),
    of("kernel.build")(r"\bsecure ?boot\b", becomes="kernel.key_rejected"),
    of("slurm.gres")(
        r"--gpu-bind",
        "leave out --gpu-bind, so that each task sees all GPUs of the job, or use --gpu-bind=per_task:1 and device 0 "
        "in each task",
        title="Slurm's --gpu-bind shows each task only the GPUs near its cores",
    ),
    of("hip.none")(
        r"not supported in kfd",
        "use the processor, or another GPU: sudo dmesg | grep kfd names the unsupported one. ROCm's list of supported "
        "GPUs is at rocm.docs.amd.com; PyTorch's wheels need one of them",
        title="the kernel's compute driver (amdkfd) does not support this AMD GPU",
        certainty="proof",
    ),
    of("kernel.build")(
        r"dkms\.conf does not exist",
        "sudo rm -r /var/lib/dkms/nvidia/OLD_VERSION removes the driver that is no longer installed. Then run sudo "
        "dkms autoinstall; dkms status must list the installed version for uname -r",
        title="DKMS stops at the remains of an older NVIDIA driver, and builds no module",
    ),
    of("bitsandbytes.setup")(
        r"windowspath|[a-z]:\\[^\n]{0,200}libbitsandbytes_\w+\.so",
        "pip uninstall -y bitsandbytes bitsandbytes-windows, then pip install -U bitsandbytes (Windows since 0.43)",
        title="this release of bitsandbytes is built for Linux, not for Windows",
    ),
    of("import.symbol", "import.library")(
        r"libc10\.so: cannot open",
        "write import torch above the import of that package, which loads libc10. If it still fails, build the package "
        "for this torch: pip install --force-reinstall --no-deps --no-build-isolation FOLDER_OF_ITS_SOURCES",
        title="an extension of torch was imported before torch, or was built for another torch",
    ),
    of("import.dll", "import.symbol")(
        r"\bprocedure could not be found|winerror 127|找不到指定的程序",
        "install torch again in a new environment, with the newest patch release of Python (3.6.0 and 3.7.0 are too "
        "old for wheels), and no other torch in PATH",
        title="a DLL, or Python itself, is of another version than the package expects",
    ),
    of("nvml.not_loaded", "nvml.mismatch", "nvml.no_library", "container.cli")(
        r"\A(?![\s\S]*(?:cgroup|requirement err))[\s\S]*\blxc\b",
        "install the host's driver version in the container without its module (NVIDIA-Linux-x86_64-VERSION.run "
        "--no-kernel-module), and pass its devices (Proxmox dev0: /dev/nvidia0, dev1: /dev/nvidiactl, dev2: …-uvm)",
        title="the LXC container lacks the host's driver version, or its devices",
    ),
    of("import.libcuda")(lambda facts: "wsl" in facts.platforms),
    of("nvcc.missing")(
        lambda facts: "mac" in facts.platforms,
        "use its version for MPS or MLX, or do without this package, whose CUDA code runs on no Mac",
        title="a package needs CUDA, which no Mac has",
    ),
    of("torch.no_acc")(
        lambda facts: not facts.torch and any(float(value) < 7.5 for value in facts.capabilities),
        lambda facts: f"{install_torch(facts)}. If the program has its own torch, use its release before",
        title="no GPU is used: probably this torch has no code for a GPU as old as this one",
    ),
    of("torch.no_acc")(
        r"is_available\b[^\n]{0,60}\btrue\b",
        'set the program\'s option for its device (--device cuda), or in its code call model.to("cuda") and '
        'x.to("cuda") of every input. Task Manager shows this load under "Cuda" only, not "3D"',
        title="torch sees the GPU, but the program does not use it",
        meaning="torch.cuda.is_available() is True, so the driver and torch's build are right.",
    ),
    of("torch.no_acc")(
        r"\A(?![\s\S]*torch)[\s\S]*(?:\bollama|\blm ?studio|\bllama\W?(?:cpp|server))", becomes="llamacpp.cpu"
    ),
    of("torch.no_acc", "torch.cpu_only")(
        "fp16 is not supported on cpu",
        "run nvidia-smi. If it lists a GPU, python -m torch.utils.collect_env must print `Is CUDA available: True`; "
        "else reinstall torch from PyTorch's index for CUDA. On a Mac use whisper.cpp or mlx-whisper; without a GPU "
        'faster-whisper with compute_type="int8", or a smaller model. The warning itself is harmless',
        title="Whisper computes on the CPU: torch sees no usable GPU",
    ),
    of("numerics.nan")(
        r"\A(?![\s\S]*(?:nansexc|nans was|loss scale|comfy|webui))[\s\S]*(?:gtx ?16|\bb?float16|\b[fb]p?f?16|\bamp\b)",
        "run once in float32 (Ultralytics amp=False, accelerate --mixed_precision no, no .half()). If the result is "
        "finite, use torch.amp.GradScaler, or bfloat16 (8.0 and newer; a GTX 16 needs float32), or float32 for what "
        "overflows: an SDXL VAE (sdxl-vae-fp16-fix, --no_half_vae), norms, softmax, the loss, an audio decoder. Else "
        "lower the learning rate with warm-up, use clip_grad_norm_, and check torch.isfinite on the batch",
        title="NaN or infinity: probably of float16, which ends at 65 504, needs loss scaling and is wrong on a GTX 16",
    ),
    of("cudnn.version")(
        r"\A(?![\s\S]*\bjax)[\s\S]*(?<![\w.-])/(?:usr/)?(?:lib|local/cuda)\S*libcudnn",
        "export LD_LIBRARY_PATH=$(python -c 'import nvidia.cudnn as c; print(c.__path__[0])')/lib before the program "
        "starts. For a lasting fix, sudo apt-get remove the package that dpkg -S FILE names for the message's file",
        title="the system's cuDNN is loaded beside the one in torch's wheel",
    ),
    of("nvcc.arch")(
        r"value \W?(?:native|all|all-major|any) is not",
        "write the GPU's number instead (compute_cap of nvidia-smi without the dot, 86 for 8.6): make "
        "CUDA_ARCH_FLAG=sm_86, cmake -DCMAKE_CUDA_ARCHITECTURES=86. Or use a newer toolkit than Ubuntu's own",
        title="this nvcc is older than the option -arch=native (CUDA 11.6)",
    ),
    of("process.killed")(
        r"loading checkpoint shards|loading (?:the )?(?:model|weights)|from_pretrained|sync_(?:module|model)_states|"
        r"works[^\n]{0,30} on (?:one|two|\d) gpus?\b",
        "watch free -h while it loads: RAM and swap must hold the weights (2 GB per billion parameters in 16 bits) for "
        "each rank. Raise Slurm's --mem, or let rank 0 alone read them (fsdp_cpu_ram_efficient_loading: true), use "
        'low_cpu_mem_usage=True with device_map="auto", a quantised model, or more swap (WSL: .wslconfig)',
        title="RAM was probably full while the weights were loaded (each rank loads its own copy)",
    ),
    of("graphics.context")(
        r"ncnn|upscayl|video2x|waifu2x|real-?esrgan",
        "install the newest driver of the GPU's maker until vulkaninfo --summary lists the GPU (Intel's HD Graphics "
        "before the 6th generation has no Vulkan). Then leave the program's GPU number empty, or set 0",
        title="Vulkan finds no driver that it can use",
    ),
    of("import.library", "import.dll")(
        r"\A(?=[\s\S]*(?:whisper|ctranslate2))[\s\S]*cu(?:dnn|blas)[\w ]*64_\d+\.dll",
        "pip install -U ctranslate2 nvidia-cublas-cu12 'nvidia-cudnn-cu12>=9' (for torch before 2.4 ctranslate2==4.4.0 "
        "'nvidia-cudnn-cu12==8.*'), and put site-packages\\nvidia\\cudnn\\bin and …\\cublas\\bin on PATH first",
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
        f"torchvision --index-url {fixes.INDEX}/cuXYZ. The channel pytorch ends at 2.5 (pytorch-cuda 11.8, 12.1, 12.4)",
        title="conda's channels have no such torch, or no packages that fit it",
    ),
    of("cuda.capability", "architecture.")(
        lambda facts: facts.vendor == "amd",
        "ignore the warning if the program continues. If it fails, compare rocminfo | grep gfx with "
        "torch.cuda.get_arch_list(), and use a torch or ROCm that lists the GPU (gfx803, RX 4xx and 5xx: old ones)",
        title="a check made for NVIDIA's GPUs, which does not apply to an AMD GPU",
        meaning="ROCm's torch prints a capability for AMD GPUs too, and compares it with NVIDIA's.",
    ),
    of("cuda.capability")(
        r"\A(?![\s\S]*(?:torch|kernel binar))[\s\S]*\b(?:tensorflow|keras|rasa)\b",
        "use TensorFlow 2.4 (RTX 30), 2.10 (RTX 40) or newer; for 1.x nvcr.io/nvidia/tensorflow:23.03-tf1-py3",
        title="this TensorFlow, or its CUDA, is older than the GPU",
    ),
    of("build.extension")(
        r"max_jobs=n\)\s*1\.1\d\.\d",
        "write ['ninja', '-v'] in torch/utils/cpp_extension.py again, or reinstall torch. Delete build and build again",
        title="ninja printed its version and compiled nothing: torch's cpp_extension.py was changed to --version",
    ),
    of("nvcc.old", "build.extension")(
        r"\buintptr_t\b|\buint\d+_t\W{1,2} ?(?:is undefined|was not decl)|flt_max",
        "write #include <cstdint> (for FLT_MAX <cfloat>) at the top of the file in the error (gaussian splatting: "
        "rasterizer_impl.h, simple_knn.cu), then pip install --no-build-isolation its folder again",
        title="a source lacks an #include that newer compilers want",
    ),
    of("llamacpp.cpu")(
        r"\d%/\d+% cpu/gpu|\A(?![\s\S]*(?:fail|error|no usable))[\s\S]*-ngl (?!99)\d\d?\b",
        "lower num_ctx (OLLAMA_CONTEXT_LENGTH=4096) and set OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0, then "
        "use a smaller quantisation or model, until ollama ps shows 100% GPU. nvidia-smi shows other programs",
        title="a part of the model computes on the CPU: GPU memory does not hold it",
    ),
    of("nccl.unhandled")(
        r"\bfirewall|only ports \d",
        "allow all TCP ports between the machines, because NCCL uses free ones besides MASTER_PORT. Or set the open "
        "ports on each machine: sudo sysctl -w net.ipv4.ip_local_port_range='40000 40050'",
        title="a firewall probably blocks NCCL's connections between the machines",
    ),
    of("cuinit.too_old", "torch.cpu_only")(
        lambda facts: bool(fixes.older_build(facts.driver_cuda)) and "container" not in facts.names,
        lambda facts: f"{fixes.older_build(facts.driver_cuda)}; or update driver and torch",
    ),
    of("cuinit.", "torch.no_acc", "torch.sees_none", "import.libcuda", "nvml.no", "container.cli", "tensorflow.")(
        r"\b(?:apptainer|singularity) (?:-\w )?(?:exec|run|shell|instance)\b(?![\s\S]*--(?:nv|rocm)\b)",
        "add --nv (AMD: --rocm) after exec, run or shell, before the image's name. nvidia-smi must work on the host",
        title="singularity or apptainer was started without --nv, which passes the GPU in",
    ),
    of("nvml.no_library", "cuinit.no_driver", "import.libcuda", "cuinit.100", "torch.no_acc")(
        r"\bdocker run (?![\s\S]*(?:--gpus|--runtime|--device|/dev/kfd))[^\n]*\w/\w|"
        r"exec: \S*nvidia-smi\W{1,3}executable file",
        "docker run --gpus all … (Compose: deploy.resources.reservations.devices with driver: nvidia, capabilities: "
        "[gpu]; podman --device nvidia.com/gpu=all). The host needs nvidia-container-toolkit and a working nvidia-smi",
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
        f"pip install --force-reinstall torch==VERSION --index-url {fixes.INDEX}/cuXYZ, then install the other package "
        "with: pip freeze | grep -i ^torch > held.txt && pip install -c held.txt NAME (uv: --torch-backend=auto)",
        title="another package's installation replaced torch with a build for the CPU",
    ),
    of("llamacpp.cpu")(
        r"runners=\W?\[cpu[ \w]*\]",
        "curl -fsSL https://ollama.com/install.sh | sh installs all of it. On Arch install ollama-cuda or ollama-rocm; "
        "on NixOS set services.ollama.acceleration",
        title="this Ollama has only its CPU package",
    ),
    of("kernel.build")(
        r"headers for kernel|kernel source tree|linux-headers\S* package|kernel headers for module|/autoconf\.h: no",
        "sudo apt-get install linux-headers-$(uname -r) (Fedora kernel-devel-$(uname -r), Arch linux-headers of that "
        "kernel, Proxmox proxmox-headers-$(uname -r)), then sudo dkms autoinstall and reboot",
        title="the kernel's headers, which the driver's module needs, are not installed",
    ),
    of("kernel.build")(
        r"ftrivial-auto-var-init|compiler differs from|cc version check failed",
        "sudo apt-get install gcc-12 (the version that `The kernel was built by` names), sudo update-alternatives "
        "--install /usr/bin/gcc gcc /usr/bin/gcc-12 60, then sudo dkms autoinstall",
        title="another gcc than the system's built the kernel",
    ),
    of("kernel.build")(
        r"nvidia\S{0,20}[/-]\d{3}\b|driver.{0,20}\b\d{3}\b",
        "install a newer driver: the newest branch for the GPU, -open from RTX 20 on. 580 is the last for GTX 9xx, "
        "10xx and V100; 470 for Kepler needs an older kernel (Arch linux-lts). Until then boot the previous kernel",
        title="this driver is probably older than the kernel, whose interface has changed",
    ),
    of("import.libcuda", "import.library")(
        r"error: lib(?:cuda|nvrtc)\.so: cannot open",
        "sudo ln -s libcuda.so.1 FOLDER/libcuda.so, with FOLDER from ldconfig -p | grep libcuda.so.1 (WSL: "
        "LD_LIBRARY_PATH=/usr/lib/wsl/lib; a container without it: --gpus all). For libnvrtc.so, link to the libnvrtc… "
        "of site-packages/nvidia/cuda_nvrtc/lib or torch/lib, and add that folder to LD_LIBRARY_PATH",
        title="cuDNN needs a library without a number in its name, but only a numbered one exists",
    ),
    of("import.dll")(
        r"importing core_cc|\bdgl\b",
        "install the CUDA toolkit whose number is in the package's name (pip list: dgl-cu111, cumm-cu120) and put its "
        "bin on PATH, or the package for the toolkit and Python that are there (spconv-cu120, and no plain cumm)",
        title="spconv (cumm) or DGL does not find the DLLs of its CUDA toolkit, or does not fit this Python",
    ),
    of("import.dll")(
        r"importing (?:libtriton|cuda_utils): ?(?:the spec|找|指)",
        "install Microsoft's Visual C++ Redistributable, delete %USERPROFILE%\\.triton\\cache and old vcruntime140 "
        "DLLs at python.exe, then there pip install -U 'triton-windows==3.N.*' (3.3 for torch 2.7, 3.6 for 2.10)",
        title="Triton's compiled part does not load: its DLLs, cache or release do not fit this Python or torch",
    ),
    of("import.dll")(
        r"\A(?![\s\S]*winerror)[\s\S]*while importing (?!torch|fbgemm|cudnn|onnx|flash|tensorrt)\w+: ?(?:the|找|指)",
        "import torch before that module in the program: its DLLs are in torch\\lib. If it still fails, install the "
        "module's wheel for this torch and CUDA, or build it again (pip install --no-build-isolation FOLDER)",
        title="an extension does not find torch's DLLs: torch is imported after it, or has another version",
    ),
    of("pip.torch")(r"\bcpython \d[\s\S]{0,120}abi tag", find_version, title="torch has no wheel for this Python"),
    of("pip.torch")(
        r"youre on (?:linux \(manylinux_2_(?:[5-9]|1\d|2[0-7])_|macos \(\S*x86_64)",
        lambda facts: (
            "pip install torch==2.2.2 'numpy<2' with Python 3.8 to 3.12, the last one for Macs with Intel's processors"
            if facts.holds(r"youre on macos")
            else "ldd --version shows yours. torch 2.7 and newer need glibc 2.28 (RHEL 8, Debian 10): use a newer "
            "system or image, or torch==2.6.0. If the system has it, uv sync --refresh makes uv read the version again"
        ),
        title="this system is older than torch's wheels ask for (or uv remembers an older glibc)",
    ),
    of("nvml.permission")(
        r"\A(?=[\s\S]*(?:nvml: insuff|selinux))[\s\S]*(?:selinux|getenforce|podman|docker|container|\bfedora\b|"
        r"\brhel\b|rocky)",
        "run ls -ln /dev/nvidia* on the host. If not all may read and write (crw-rw-rw-), give the container's user "
        "the number of their group: --group-add NUMBER (Compose group_add), or --user 0. With SELinux use "
        "--security-opt label=disable (sudo ausearch -m avc -ts recent shows what was refused)",
        title="the container's user may not open the GPU's device files, or SELinux denies it",
    ),
    of("container.cli", "cuinit.999")(
        r"(?:after|each|every)\b[^.\n]{0,24}\b(?:re)?boot|(?:until|must) (?:i )?run \W{0,4}nvidia-smi|custom device|"
        r"/dev/nvidia-uvm\b.{0,30}(?:missing|exist|no such|not )|"
        r"(?:dont|didnt|no|not) (?:have|find|see) .{0,8}/dev/nvidia-uvm",
        "sudo nvidia-modprobe -c 0 -u on the host creates /dev/nvidia0 and /dev/nvidia-uvm. For each boot, sudo "
        "systemctl enable --now nvidia-persistenced, and put that command into a unit before docker.service",
        title="the GPU's device files do not exist on the host until a program creates them",
    ),
    of("nvcc.mismatch")(
        r"\A(?![\s\S]*no-build-isolation)[\s\S]*(?:pip-build-env|builds-v0|/overlay/|uv (?:pip install|add|sync))",
        "pip install --no-build-isolation NAME (uv: no-build-isolation-package in [tool.uv]), after torch, setuptools, "
        "wheel and ninja. If nvcc --version then differs from torch.version.cuda, set CUDA_HOME to that toolkit",
        title="build isolation used another torch, whose CUDA differs from nvcc's",
    ),
    of("tensorflow.")(
        r"\A(?![\s\S]*(?:ubuntu|linux_|/home/|/usr/|colab))[\s\S]*\bwindows\b",
        "use WSL, and in it pip install 'tensorflow[and-cuda]'. Only 2.10 and older work in Windows itself: Python "
        "3.10, conda install -c conda-forge cudatoolkit=11.2 cudnn=8.1.0, pip install 'tensorflow<2.11' 'numpy<2'",
        title="TensorFlow has no GPU in Windows after 2.10, and 2.10 needs CUDA 11.2 and cuDNN 8.1",
    ),
    of("xpu.none")(
        r"\A(?![\s\S]*clgetplatformids)[\s\S]*\b(?:docker|podman|container|lxc)\b",
        "use a newer image, or Intel's newest compute runtime in it (libze-intel-gpu1, intel-opencl-icd; B580: 24.48 "
        "or newer). For an older one on kernel 6.8 or newer, add -e NEOReadDebugKeys=1 -e OverrideGpuAddressSpace=48. "
        "Pass --device /dev/dri --group-add with the number of the host's render. sycl-ls must list level_zero:gpu",
        title="Intel's driver inside the container sees no GPU: usually it is older than the GPU or the kernel",
    ),
    of("kernel.rm_init", "nvml.no_devices")(
        r"vmware|\besxi\b|proxmox|\bqemu\b|\bkvm\b|passthrough|hyper-v|\bxen\b|\bqubes|virtual machine|\bhvm\b",
        "use UEFI firmware for the virtual machine (OVMF), machine q35, CPU host (ESXi: pciPassthru.use64bitMMIO=TRUE, "
        "pciPassthru.64bitMMIOSizeGB=128, a power of two above the GPU's memory). On the host, lspci -nnk must show "
        "vfio-pci for all its functions. An RTX 50 needs nvidia-open in the guest. Then power-cycle the host",
        title="the GPU does not start in the virtual machine: usually its memory windows or the firmware are the cause",
    ),
    of("kernel.rm_init", "nvml.no_devices")(
        lambda facts: bool({"12.0", "10.0", "12.1"} & set(facts.capabilities)),
        "sudo apt-get install nvidia-driver-580-open (NVIDIA's repository nvidia-open, Arch nvidia-open-dkms, a .run "
        "file --kernel-module-type=open) instead of the closed module, then reboot",
        title="this GPU (Blackwell) needs the open kernel module, but probably has the closed one",
    ),
    of("nvml.not_loaded")(r"\bnouveau +\d{4,}|in use: nouveau", becomes="kernel.nouveau"),
    of("nvcc.host_compiler")(
        "exception specification is",
        "use CUDA 13.3 or newer, or an image with an older system (nvidia/cuda:12.8.1-devel-ubuntu24.04). Else write "
        "noexcept(true) after the named functions in CUDA's crt/math_functions.h",
        title="the system's glibc (2.41 or newer) and this CUDA toolkit declare the same functions",
    ),
    of("torch.cpu_only")(
        "conda_cpu",
        "conda remove cpuonly _pytorch_select in that environment (those it has), then conda install -c conda-forge "
        "pytorch-gpu. To keep an old release, conda install pytorch=VERSION torchvision cudatoolkit=X.Y -c pytorch",
        title="conda installed a torch without CUDA in this environment",
    ),
    of("cuda.handle", "cuda.ptx", "cuda.capability", "cuda.no_kernel", "cuda.invalid_image")(
        r"\A(?=[\s\S]*tensorflow)(?![\s\S]*torch)[\s\S]*(?:rtx ?(?:pro \d|50[5-9]0)|capability 1[02]\.|\bg?b[12]00?\b)",
        "use NVIDIA's container, nvcr.io/nvidia/tensorflow:25.02-tf2-py3 or newer; else tf-nightly",
        title="TensorFlow's wheel has no code for this GPU (Blackwell)",
    ),
    of("cudnn.", "cublas.", "cuda.no_kernel")(
        lambda facts: (
            # Only torch before 1.5 writes so.
            (facts.torch or "1.4" * facts.holds("cublas runtime"))[:4].strip(".") in {f"1.{n}" for n in range(7)}
            and any(fixes.number(value) in (80, 86, 89, 90) for value in facts.capabilities)
        ),
        "install a torch for CUDA 11.1 or newer, at least pip install torch==1.8.1+cu111 torchvision==0.9.1+cu111 -f "
        f"{fixes.INDEX}/torch_stable.html (Python 3.6 to 3.9). Then build extensions again",
        title="torch is older than the GPU: its CUDA has no code for it",
        certainty="strong",
    ),
    of("container.cli")(
        r"nvidia-container-cli[\s\S]*\bsudo docker run(?![\s\S]*nvidia-container-cli)|\bwith sudo\b[^.\n]{0,40}"
        r"\b(?:works|fine)\b|\b(?:works?|worked|runs|fine|ok)\b[^.\n]{0,30} (?:with|using|as) (?:sudo|root)\b",
        "docker context use default selects the host's Docker (docker context ls shows all; sudo usermod -aG docker "
        "$USER gives you its socket). Or remove Docker Desktop for Linux, whose virtual machine has no NVIDIA GPU",
        title="this is probably Docker Desktop or rootless Docker, not the host's own",
    ),
    of("nvml.not_loaded", "kernel.", "cuinit.no_driver")(
        r"dkms.{0,4} (?:is (?:currently )?not installed|: command not found)|dkms: command not found",
        "sudo apt-get install dkms linux-headers-$(uname -r), then reinstall the driver's package, and reboot",
    ),
    of("kubernetes.plugin", "container.no_runtime", "nvml.no_library")(
        r"\bk3s\b|\brke2\b",
        "install nvidia-container-toolkit on the node and sudo systemctl restart k3s (k3s-agent, rke2-server), which "
        "finds NVIDIA's runtime. Then set runtimeClassName: nvidia for the plugin's pods and those with a GPU",
        title="the pod probably runs without NVIDIA's runtime, which k3s and rke2 do not use by default",
    ),
    of("xpu.none")(
        r"lib(?:ur_loader|sycl|ze_loader|mkl_sycl\w*)\.so",
        "for libze_loader: sudo apt-get install libze1 (Fedora: oneapi-level-zero). For libsycl and libur_loader: pip "
        f"install --force-reinstall torch --index-url {fixes.INDEX}/xpu, which brings them. For libmkl_sycl: "
        "the oneAPI release that the package was built with",
        title="a library of Intel's driver or of its SYCL runtime is not found",
    ),
    of("xpu.none")(
        lambda facts: "windows" in facts.platforms and "wsl" not in facts.platforms,
        f"install the newest graphics driver, then pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu",
    ),
    of("bitsandbytes.setup")(
        r"bnb_cuda_version=\S",
        "unset BNB_CUDA_VERSION, then pip install -U bitsandbytes. python -m bitsandbytes shows what it needs",
    ),
    of("torch.no_accelerator")(
        r"expected a cuda device, but got:? ?(?:cpu|meta|mps)|\b(?:tpu|xla)accelerator\b",
        "call torch.cuda functions only if device.type is cuda. In ComfyUI update the custom node in the traceback, "
        'and remove options that put the model on the CPU (--cpu, device: cpu). In a Trainer set accelerator="auto"',
        title="the program requests another kind of device than the machine or its options provide",
    ),
)
