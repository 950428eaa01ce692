"""Patterns for the beginnings of CUDA's error messages, the platform that a text comes from, and the step that works
there. Pure.

The tables of texts name commands of Linux and of NVIDIA's driver. Some of them do not exist, or do not help, on a Mac,
on Windows, inside WSL and on AMD GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

# Patterns for the introductions of a CUDA message in torch, vLLM and DeepEP, FlashInfer, Triton, CTranslate2, ONNX
# Runtime, torch before 1.0 and caffe, and in programs that name the failed call.
CUDA_SAYS = (
    r"(CUDA(RT)? (driver |runtime )?error( ?\(?\d+\)?)? ?:|CUDA error (\(?[a-z]:)?[^\s:]{1,200}:\d+(\):)?|"
    r"(CUDA|(Batch|Single|Merge)\w{1,80}) failed with error ?:?|CUDA failure \d+:|"
    # NCCL; its lack of memory has its own row.
    r"CUDA failure( \d+)?(?! ?out of memory)|Triton Error \[CUDA\]:|"
    r"CUDA_?Runtime_?Error ?:?|cudaSuccess ?\(\d+ vs\. 0\)|THCudaCheck FAIL .{1,200}error=\d+ ?:|"
    # Triton Inference Server and gpu-burn.
    r"unable to create (CUDA )?stream:|\(gpu_burn\S{1,20}:\d+\):|Runtime API error \d+:|\] CUDA:|\[CUDA\]|"
    r"cuda(Malloc|Memcpy|Memset|Free|Launch|Stream|Event|Device|Set|Get)\w{0,30}( failed| returned error)( with "
    r"error)?:?) ?"
)


def by_code(*numbers: int) -> str:
    """Return a pattern for errors that give only CUDA's error number.

    It covers torch, caffe, torch before 1.0, CUDA's samples, ollama, OpenMM and numba.
    """
    either = "|".join(map(str, numbers))
    call = "cu(Init|Mem|Module|Link|Ctx|Launch|Stream|Event|Device|Func|Occupancy)"
    return (
        rf"(\bCUDA ?(driver |runtime )?(error|failure|return code)( code| detected)?:? ?\(?|\bcudaSuccess \(|"
        rf"\bTHCudaCheck FAIL .{{1,200}} error=|\bRuntime API error |\bcudart init failure: |"
        rf"\bcuda driver library failed to get device context )({either})(?!\.?\d)|"
        rf"\bcode=({either})\(cu|\[({either})\] Call to {call}|\bInvalid error code \(({either})\) at \S{{0,200}}cuda"
    )


Platform = Literal["wsl", "windows", "mac", "rocm", "xpu", "directml"]

# The patterns apply to text in lower case without quotes, as `normal` returns it.
_MARKS: dict[Platform, re.Pattern[str]] = {
    "wsl": re.compile(
        r"/usr/lib/wsl/|\bdxgk?\b|dxgkio|microsoft-standard-wsl|\bwsl environment|\b(in|on|inside|under|using) wsl2?\b|"
        # Inside WSL nvidia-smi's own version differs from the driver's, which is Windows's.
        r"\bnvidia-smi (\d+\.\d+)\S* +driver version: (?!\2)\d|"
        r"\bwsl2?:|\bwsl version\b|\bdesktop-[0-9a-z]{7}:\d+:|(?<!\w)/mnt/[a-z]/users/"
    ),
    "windows": re.compile(
        r"\b[a-z]:\\|\bwinerror \d|\b\w+\.dll\b|\b[a-z]:/users/|\bmicrosoft visual studio\b|\bnvlddmkm\b|"
        r"\bexit status 0xc0000|\bcl is not found|\bwhere, cl\b|\bwindowspath\b"
    ),
    "mac": re.compile(
        r"(?<![\w:/])/users/\w|/opt/homebrew/|\bdarwin\b|\bmacos\b|\bapple silicon\b|\bmps backend\b|"
        r"/library/frameworks/python\.framework/|\.dylib\b|\barm64-apple\b|\bmac(book|mini| mini| studio)\b|"
        r"\b(apple|mac\w*) m[1-5]\b|\bm[1-5] (pro|max|ultra|mac\w*|chip)\b"
    ),
    "rocm": re.compile(
        r"\bhsa_status_|\brocdevice\b|\bhip ?(?:error|out of)|/opt/rocm\b|\+rocm\d|\bamdgpu\b|\bradeon rx\b"
    ),
    "xpu": re.compile(
        r"\bintel\b.{0,8}\b(arc|iris xe)\b|\b[uz][re]_result_|\+xpu\b|\bxpu (error|out of memory)|\bdevice xpu:\d"
    ),
    "directml": re.compile(r"\bdirectml\b|torch_directml|\bdmlexecution|\bprivateuseone"),
}
_IS_WINDOWS = re.compile(
    r"\bwindows[- ](1[01]|server)\b|\bwin_amd64\b|\bpowershell\b|\bin windows ?\?|\bwin ?1[01]\b|"
    r"\b(?:not|doesnt|dont|cannot|cant|isnt) (?:\w+ ){0,4}(?:on|in|under) windows\b|\bim on windows\b"
)
# A laptop's kernel log may mention its AMD GPU. The error is NVIDIA's if its driver appears in the text.
_NVIDIA = re.compile(r"\bnvrm\b|\bcudaerror|\bcuda error\b|\bgeforce\b|\brtx \d{4}")

_CUDA_IS_NOT_THERE = (
    *("torch.cpu_only", "torch.no_accelerator", "cuinit.", "nvml.no", "nvml.permission", "import.libcuda"),
    *("nvcc.", "compile.cuda_h", "driver.", "library.cuda", "library.nvml", "torch.cpu_build", "torch.sees_none"),
)
_NO_MAC = ("attention.package", "attention.flash", "xformers.setup", "bitsandbytes.setup", "quant.", "compile.")
_DRIVER = ("cuinit.", "nvml.", "import.libcuda", "compile.libcuda", "driver.", "library.", "kernel.", "torch.sees_none")
_AS_ON_LINUX = ("cuinit.mps", "cuinit.46", "cuinit.101", "nvml.not_supported", "nvml.pynvml")

# This variable replaces CUDA_LAUNCH_BLOCKING in torch's ROCm builds.
SERIALIZE = (
    "AMD_SERIALIZE_KERNEL=3 python …: the traceback then ends at the line that failed; sudo dmesg | grep -i amdgpu "
    "shows the driver's messages"
)

# The step for full memory where nothing else is known; `facts.room` replaces it by that of the program in the paste.
SMALLER = "use a smaller batch or image, a shorter sequence, or activation checkpointing"
# The servers' options are written `vLLM … (SGLang …)`; `step` keeps those of the server in the paste.
BACKEND = (
    "another attention backend: vLLM --attention-backend TRITON_ATTN or before 0.12 "
    "VLLM_ATTENTION_BACKEND=TRITON_ATTN (SGLang --attention-backend triton)"
)
# Windows resets a GPU whose kernel runs longer.
TDR = (
    "a longer limit, as administrator in Windows: reg add HKLM\\SYSTEM\\CurrentControlSet\\Control\\GraphicsDrivers /v "
    "TdrDelay /t REG_DWORD /d 60 /f, and restart it"
)
_PIP = r"(?<![\w-])(?:python -m )?pip (?=install|uninstall|list|show)"
_OF_SERVERS = r"vLLM ([^(;]*) \(SGLang ([^()]*)\)"

# Steps that replace a text's own step, by platform and prefix of the id. The first match applies.
_INSTEAD: tuple[tuple[Platform, tuple[str, ...], str], ...] = (
    (
        "directml",
        _CUDA_IS_NOT_THERE,
        "DirectML uses no CUDA: device = torch_directml.device() in the code, or the program's option for DirectML "
        "(stable-diffusion-webui --use-directml, ComfyUI --directml)",
    ),
    (
        "mac",
        _CUDA_IS_NOT_THERE,
        'a Mac has no CUDA: use device "mps" where torch.backends.mps.is_available(), else "cpu" (in the code, or the '
        "program's option for its device)",
    ),
    (
        "mac",
        _NO_MAC,
        'this package has no code for a Mac\'s GPU: use the program without it (attention: "sdpa"), or its version for '
        "MPS or MLX",
    ),
    ("wsl", _AS_ON_LINUX, ""),
    (
        "wsl",
        ("compile.libcuda",),
        "export LIBRARY_PATH=/usr/lib/wsl/lib:$LIBRARY_PATH (WSL has its libcuda.so there, where the linker does not "
        "look), and the same folder in LD_LIBRARY_PATH",
    ),
    (
        "wsl",
        ("import.libcuda",),
        "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH (Windows's driver puts libcuda.so there); where "
        "nvidia-smi fails in WSL too, update NVIDIA's driver in Windows, then wsl --update and wsl --shutdown",
    ),
    (
        "wsl",
        _DRIVER,
        "update NVIDIA's driver in Windows, then wsl --update (wsl -l -v has to show version 2: WSL 1 has no GPU); "
        "remove NVIDIA's Linux driver inside WSL (dpkg -l | grep nvidia-driver), because WSL uses Windows's; then wsl "
        "--shutdown and start WSL again",
    ),
    (
        "wsl",
        ("oom.killed", "oom.host", "loader.killed", "process.killed"),
        "a larger memory= in %UserProfile%\\.wslconfig (without it WSL has half of the RAM), then wsl --shutdown; "
        "fewer DataLoader workers; sudo dmesg | grep -i -e oom -e killed inside WSL shows whether it was memory",
    ),
    (
        "windows",
        ("nvml.lost", "nvml.hardware", "nvml.reset"),
        "restart Windows; if it returns, reseat the GPU and its power cables and watch its temperature. The Event "
        "Viewer (System, source nvlddmkm) shows when it happens",
    ),
    (
        "windows",
        ("oom.host", "shm."),
        "a larger paging file (System, Advanced, Performance, Virtual memory), or fewer DataLoader workers: each "
        "process that imports torch reserves some GiB of it",
    ),
    (
        "windows",
        ("import.library", "import.nvjitlink"),
        "where NAME.dll tells whether PATH has the file. If not, put its folder on PATH (of pip's cuDNN: "
        "site-packages\\nvidia\\cudnn\\bin), or install the CUDA or cuDNN of the version in the name",
    ),
    (
        "windows",
        ("attention.package",),
        'attn_implementation="sdpa" does without it; else a wheel for Windows whose name has your torch, CUDA and '
        "Python (flash-attn's own releases have none), or the program inside WSL",
    ),
    (
        "windows",
        ("compile.launcher", "compile.python_h"),
        "a Python from python.org's installer has the headers; into an embedded one copy the folders include and "
        "libs of the same version",
    ),
    (
        "windows",
        ("compile.compiler", "nvcc.host_compiler"),
        'install "Desktop development with C++" of Visual Studio\'s build tools, and start the program in the `x64 '
        "Native Tools` prompt (or call vcvarsall.bat x64 first), so that cl.exe is on PATH",
    ),
    ("windows", _AS_ON_LINUX, ""),
    (
        "windows",
        _DRIVER,
        "install NVIDIA's newest driver for Windows, restart Windows, and see that nvidia-smi lists the GPU; a yellow "
        "sign in the Device Manager names the cause",
    ),
    ("rocm", ("cuda.illegal", "cuda.misaligned", "cuda.launch_failure", "cuda.device_assert"), SERIALIZE),
)

_SWAPPED = str.maketrans("\"'", "'\"")
_DMESG = r"sudo dmesg( -T)? \| grep( -[ei]+| '[^']+'| [\w-]+(?= -e|;| tells| shows| names| for|$))+"
# `dmesg` commands about the driver, without those about the system's memory.
_OF_DRIVER = rf"(?![^;,]*\b(?:oom|killed)\b){_DMESG}"
_RESET = r"sudo nvidia-smi --gpu-reset -i [\w,:.…]+"
_SERVERS = ("server", "vllm", "llama")
# Commands in steps, and their equivalents on a platform.
_SWAPS: tuple[tuple[str, str, str], ...] = (
    (
        "windows",
        r"export PYTORCH_\w+=expandable_segments:True",
        "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 (Windows has no expandable_segments)",
    ),
    ("old_torch", r"TORCH_NCCL_DUMP_\S+ and \S+ write down", "NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=INFO show"),
    ("old_torch", r"=expandable_segments:True", "=max_split_size_mb:128"),
    ("llama", r"PYTORCH_ROCM_ARCH=\S+ or |; a program on torch needs both built.*", ""),
    ("linux", r" \(Windows: [^)]*\)", ""),
    (
        "native",
        r"CC=(gcc\S+) CXX=(\S+) NVCC_\S+ \S+ before the build",
        r"CC=\1 CXX=\2 cmake -DCMAKE_CUDA_HOST_COMPILER=\2 -DCUDA_HOST_COMPILER=\2 in an empty build folder",
    ),
    ("own_code", r" in from_pretrained, or the", r"\g<0> model code's own (Qwen: use_flash_attn=False), or the"),
    ("pixi", r"pip install -U 'jax\[cuda12\]'[^;]* cuDNN,", "pixi update jaxlib cudnn (cudnn not below the minimum),"),
    ("windows", r"ls -l /dev/kfd[^;]*; sudo usermod.*", "run it on Linux: Docker on Windows has no /dev/kfd"),
    ("windows", r"ps -fp ([\d,]+) shows", r"Task Manager (Details, PID \1) shows"),
    (
        "windows",
        r"CUDA_HOME=/usr/local/cuda-([\d.]+\d|X\.Y)",
        r"CUDA_HOME=C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v\1",
    ),
    ("windows", r"NVIDIA's package cuda-toolkit-[\dXY-]+", "NVIDIA's installer of that version"),
    ("powershell", r"(?<![\w=])([A-Z][A-Z0-9_]{3,})=(\S+) (?=python|pip|torchrun|vllm)", r'$env:\1="\2", then '),
    ("powershell", r"\b(?:export|set) ([A-Z_]+)=((?:C:)?[^,;:]+?)(?=$|[,;:)]| and | then | before )", r'$env:\1="\2"'),
    ("windows", r"\bexport (?=[A-Z_]+\b)", "set "),
    ("windows", r"(?<![\w=])([A-Z][A-Z0-9_]{3,}=\S+) (?=python|pip|torchrun|vllm)", r"set \1, then "),
    ("container", r"(?<!host: )sudo modprobe nvidia\b", "on the host: sudo modprobe nvidia"),
    ("windows", r"\$CONDA_PREFIX \(Windows: (\S+)\)", r"\1"),
    ("windows", r"pip list \| grep[^);:,]*?(?= shows|[);:,]|$)", "pip list"),
    (
        "portable",
        _PIP,
        r".\\python_embeded\\python.exe -m pip ",
    ),
    ("uv", r"(?<!uv )" + _PIP, "uv pip "),
    ("webui", r"(?<![\w-])(?:python -m )?pip (?=install --force|uninstall|list|show)", "venv/bin/python -m pip "),
    ("windows", r"venv/bin/python", r"venv\\Scripts\\python"),
    ("windows", r"free -h( and top)?", "Task Manager"),
    ("windows", r"rm -r (\S+)", r"delete \1"),
    ("windows", r"\bsudo (?=nvidia-smi)", ""),
    ("windows", r"apt-get install ffmpeg, conda", 'the "full-shared" build with its bin folder on PATH, or conda'),
    ("mac", r"apt-get install ffmpeg, conda", "brew install ffmpeg, or conda"),
    ("windows", r"for AMD and Intel apt-get install \S+", "install the newest driver of the GPU's maker"),
    ("windows", r"echo \$LD_LIBRARY_PATH: unset it", "take other CUDA folders out of PATH"),
    ("windows", r"echo \$LD_LIBRARY_PATH: a cuDNN of another version there", "a cuDNN of another version on PATH"),
    ("windows", r"journalctl -u ollama", r"%LOCALAPPDATA%\\Ollama\\server.log"),
    ("mac", r"(?:; then LoRA or QLoRA, or|, or) [^;:]*?\bmore GPUs(?: \([^)]*\))?", ""),
    ("mac", r"free -h( and top)?|nvidia-smi(?! -)", "Activity Monitor"),
    ("windows", r"sudo dmesg[^;,]*\b(?:oom|killed)\b(?:'| [^;,]*?(?= names| tells| on that|;|$)|)", "Task Manager"),
    ("windows", r"; Task Manager$", "; Task Manager (Performance) shows whether memory is full"),
    ("windows", _OF_DRIVER, "Event Viewer (System, source nvlddmkm)"),
    ("wsl", _OF_DRIVER, "Windows's Event Viewer (System, source nvlddmkm)"),
    ("mac", _DMESG, "the Console app"),
    ("windows", _RESET, "a restart of Windows"),
    ("wsl", _RESET, "a restart of Windows"),
    ("rocm", r"CUDA_LAUNCH_BLOCKING=1", "AMD_SERIALIZE_KERNEL=3"),
    ("rocm", r"(; then|,) `compute-sanitizer python …` names the kernel", ""),
    ("rocm", r"grep -i xid\b", "grep -i amdgpu"),
    ("directml", r"gpucheck devices --processes \(or nvidia-smi\)|\bnvidia-smi\b", "Task Manager (Performance, GPU)"),
    ("rocm", r"\bnvidia-smi\b", "rocm-smi"),
    ("rocm", r"whl/cu(?:XYZ|\d{3})\b", "whl/rocmX.Y"),
    ("rocm", r"the CUDA toolkit of torch's CUDA", "ROCm's packages for development"),
    ("rocm", r"--gpus all", "--device /dev/kfd --device /dev/dri"),
    ("rocm", r"\bCUDA_VISIBLE_DEVICES\b", "HIP_VISIBLE_DEVICES"),
    ("xpu", r"\bnvidia-smi\b", "xpu-smi"),
    ("xpu", r"\bCUDA_VISIBLE_DEVICES\b", "ZE_AFFINITY_MASK"),
    ("program", r"((?:compute-sanitizer|CUDA_LAUNCH_BLOCKING=1|AMD_SERIALIZE_KERNEL=3)) python …", r"\1 PROGRAM …"),
    # xFormers was the only attention for older GPUs before torch had its own.
    ("vllm", r"pip uninstall xformers: [^;]*; (?:else )?", "--dtype float16 on a GPU before Ampere (V100, T4); else "),
    ("sglang", _OF_SERVERS, r"\2"),
    ("vllm", _OF_SERVERS, r"\1"),
    ("running", r"a wheel of the package in place of a build; else the", "install the"),
    ("podman", r"\. docker wants [^;]*", ""),
    ("accelerate", r"--nproc-per-node", "accelerate launch --num_processes"),
    ("accelerate", r"torchrun --standalone, or another --master-port", "another --main_process_port (0 chooses one)"),
    ("cluster", r"sudo usermod -aG render,video \$USER, then log in again", "--gres=gpu:1, or ask the administrators"),
    ("cluster", r"(?s)\A(?=.*\bsudo ).*", r"\g<0>; the cluster's administrators can do what needs sudo"),
    ("alloc_conf", r"PYTORCH_(CUDA|HIP)_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    (
        "kubernetes",
        r"docker run --shm-size=8g …,? or --ipc=host( \(in Kubernetes an (.*?)\))?",
        "mount an emptyDir with medium: Memory on /dev/shm",
    ),
    (
        "inductor",
        r"^CUDA_LAUNCH_BLOCKING=1 python …:",
        r"TORCHDYNAMO_DISABLE=1 tells whether torch.compile is at fault: then a newer torch; else \g<0>",
    ),
    ("windows", r"compute runtime \(intel-compute-runtime, level-zero\)", "graphics driver from Intel"),
    ("nccl_info", r"NCCL_DEBUG=INFO on every rank; the first WARN", "the first WARN"),
    ("dockerd", r"\bcontainerd\b", "docker"),
    ("conda", r"pip install -U 'jax\[cuda12\]'[^;]* cuDNN,", "conda update -c conda-forge jaxlib cudnn,"),
    # A model server has options instead of a batch size and of code to change.
    *((server, r"; gpucheck find-batch-size[^;]*|print the shapes before the product; ", "") for server in _SERVERS),
    ("sglang", r"use a smaller batch[^;]*", "a smaller --mem-fraction-static, or fewer --max-running-requests"),
    ("vllm", r"use a smaller batch[^;]*", "a smaller --gpu-memory-utilization, --max-model-len or --max-num-seqs"),
    ("llama", r"use a smaller batch[^;]*", "a shorter context (-c N; Ollama num_ctx)"),
    ("server", r"use a smaller batch[^;]*", "a shorter context, or fewer requests at once"),
    *((other, "nvlddmkm", "Display") for other in ("rocm", "xpu", "directml")),
)


# Words of torch, llama.cpp and servers that run on ROCm; they print NVIDIA's names of errors too.
_IS_ROCM = re.compile(
    r"\brocm used to build pytorch: \d|\bfound \d+ rocm devices|\brocm\d+ (?:\w+ )?buffer|\bdetected platform rocm|"
    r"\brocmflash|\b(?:using|in the) rocm\b|\brocm environment"
)
_NO_MAC_HAS = ("cuda.", "cudnn.", "cublas.", "cufft.", "curand.", "cusolver.", "cusparse.", "xid.")


def marked(spaced: str) -> frozenset[Platform]:
    """Return the platforms that a lower-case text comes from. WSL also shows marks of Windows, but counts as Linux."""
    found = {platform for platform, marks in _MARKS.items() if marks.search(spaced)}
    if "directml" in found or (_IS_WINDOWS.search(spaced) and "wsl" not in spaced):
        found.add("windows")
    if "wsl" in found:
        found -= {"windows", "mac"}
    if "windows" in found:
        found -= {"mac"}
    if _NVIDIA.search(spaced):
        found -= {"rocm", "xpu"}
    if _IS_ROCM.search(spaced) and not re.search(r"\bnvrm\b|\bgeforce\b|\brtx \d{4}", spaced):
        found.add("rocm")
    return frozenset(found)


def step(platforms: Collection[str], name: str, then: str, *, specific: bool = False) -> str:
    """Return the step for the text with the id `name` on these platforms.

    A `specific` step was made from the text's own numbers, and is not replaced.
    """
    platforms = set(platforms) - ({"mac"} if name.startswith(_NO_MAC_HAS) else set())
    if not specific:
        there = (text for platform, begins, text in _INSTEAD if platform in platforms and name.startswith(begins))
        then = next(there, "") or then
    for platform, pattern, replacement in _SWAPS:
        if platform in platforms:
            then = re.sub(pattern, replacement, then)
    # Windows' shells do not accept single quotes.
    return re.sub(r" -c '([^']*)'", lambda code: code[0].translate(_SWAPPED), then) if "windows" in platforms else then
