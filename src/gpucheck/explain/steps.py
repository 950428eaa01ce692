"""Steps that are made from the facts of a paste, and their equivalents on other platforms. No I/O.

The texts name commands of Linux and of NVIDIA's driver. Some of them do not exist, or do not help, on a Mac, on
Windows, inside WSL and on AMD GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpucheck.doctor import fixes
from gpucheck.explain.facts import Facts, Platform
from gpucheck.explain.figures import OFFLOAD
from gpucheck.explain.text import BACKEND, SERIALIZE, SMALLER

# The patterns of steps that a paste may report as done. Other names of done steps are environment variables.
_STEPS = {
    "sharing": r".*set_sharing_strategy",
    "shm": r".*--shm-size",
    "reboot": r"(?:else |or )?reboot\b",
    "redistributable": r".*redistributable",
}


def install_torch(facts: Facts) -> str:
    """Return the command that installs the same torch with code for these GPUs."""
    if "jetson" in facts.names:
        return fixes.JETSON
    release = fixes.release_of(facts.torch) or fixes.NEWEST
    if not (facts.capabilities or (facts.driver_cuda and release not in fixes.BUILDS_OF_TORCH_1)):
        tags = fixes.RELEASES.get(release) or fixes.BUILDS_OF_TORCH_1.get(release, ())
        if not tags:
            return ""
        return (
            f"pip install --force-reinstall {fixes.pinned(facts.torch)} --index-url {fixes.INDEX}/TAG, where TAG is "
            f"the newest of {', '.join(tags)} that is not above the CUDA version in nvidia-smi"
        )
    wanted, tag = fixes.choose(facts.capabilities, facts.driver_cuda or None, facts.processor, version=facts.torch)
    if tag is None:
        values = [fixes.number(value) for value in facts.capabilities]
        return fixes.JETSON if any(value in fixes.OWN_BOARDS for value in values) else ""
    # torchvision and torchaudio must match the new torch and its CUDA.
    wanted += " torchvision" + " torchaudio" * ("torchaudio" in facts.names)
    # pip does not reach the torch inside a packed program.
    packed = "update the program, or use its sources in a virtual environment: " * ("frozen" in facts.names)
    return f"{packed}pip install --force-reinstall {wanted} --index-url {fixes.INDEX}/{tag}"


def abi(facts: Facts) -> str:
    """Return cxx11abi of torch's wheel, TRUE or FALSE, if a symbol of the other ABI is missing; else an empty text."""
    # Of torch 2.6 only the wheel for CUDA 12.6 has the new ABI.
    if ((fixes.release_of(facts.torch) or (0, 0)), facts.build == "cu126") >= ((2, 6), True):
        return "TRUE" if facts.holds(r"undefined symbol:? \S*sourcelocationess\b") else ""
    return "FALSE" if facts.holds(r"undefined symbol:? \S*cxx11|cxx11abitrue[\s\S]*undefined symbol") else ""


def install_torchvision(facts: Facts) -> str:
    """Return the command for the torchvision that belongs to this torch."""
    if old := re.fullmatch(r"1\.(\d+)\.(\d+)", facts.torch):
        build = facts.build or "cuXYZ"
        tags = fixes.BUILDS_OF_TORCH_1.get((1, int(old[1])), ()) if build == "cuXYZ" else ()
        among = f". cuXYZ is torch.version.cuda: one of {', '.join(tags)}" * bool(tags)
        return (
            f"pip install --force-reinstall --no-deps torchvision=={fixes.torchvision_of(facts.torch)}+{build} -f "
            f"{fixes.INDEX}/torch_stable.html, which fits torch {facts.torch}{among}"
        )
    match = re.fullmatch(r"2\.(\d+)\.(\d+)", facts.torch)
    if match is None:
        return (
            "pip list | grep -i torch, then pip install --force-reinstall --no-deps torchvision==0.N+15.P for torch "
            "2.N.P (0.19.1 for 2.4.1, but 0.15.2 for 2.0.1; torchaudio has torch's number) --index-url "
            f"{fixes.INDEX}/TAG, where TAG is what torch.__version__ shows after the + (cpu, cu128)"
        )
    # torchaudio ends at 2.11. For torch 2.0, its patch number is one higher than torch's.
    audio = f"2.0.{int(match[2]) + 1}" if match[1] == "0" else facts.torch
    beside = f" torchaudio=={audio}" * (int(match[1]) < 12 and facts.holds(r"\btorchaudio\b"))
    index = facts.build or "cuXYZ (what python -c 'import torch; print(torch.__version__)' shows after the +)"
    return (
        f"pip install --force-reinstall --no-deps torchvision=={fixes.torchvision_of(facts.torch)}{beside} --index-url "
        f"{fixes.INDEX}/{index} installs the release that fits torch {facts.torch}, from the same index"
    )


def rebuild(facts: Facts) -> str:
    name = facts.extension or "the extension in the traceback"
    if "ui" in facts.names:
        return (
            f"install a wheel of {name} for this GPU, torch, CUDA and Python (see its release page), or do without it"
        )
    arch = ";".join(facts.capabilities) or "X.Y (nvidia-smi --query-gpu=compute_cap --format=csv)"
    arch = f'"{arch}"' if ";" in arch else arch
    variable = "set" if "windows" in facts.platforms else "export"
    return (
        f"{variable} TORCH_CUDA_ARCH_LIST={arch}, then build {name} again: pip install --no-build-isolation "
        "--no-cache-dir --force-reinstall --no-deps FOLDER_OF_ITS_SOURCES; or use a release that names this GPU"
        + f"; or {BACKEND}"
        * ("server" in facts.names)
    )


def find_version(facts: Facts) -> str:
    """Return a step to find the requested version: the index of its build, or a Python that it supports."""
    is_index = facts.holds(r"looking in indexes: \S*/whl/")
    release = fixes.release_of(facts.asked + ".0" * (facts.asked.count(".") < 2))
    if release is None:
        if not is_index or facts.wanted in (*fixes.BUILDS, "cpu", "xpu", ""):
            return ""
        return f"pip install torch --index-url {fixes.INDEX}/TAG, TAG one of {', '.join(fixes.RELEASES[fixes.NEWEST])}"
    low, high = next((pythons for since, *pythons in fixes.PYTHONS if release >= since), [None, None])
    range_ = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}" if low and high else ""
    python = tuple(map(int, facts.python.split("."))) if facts.python else ()
    builds = fixes.RELEASES.get(release) or fixes.BUILDS_OF_TORCH_1.get(release, ())
    if facts.listed[-1:] == ((2, 2),) and "mac" in facts.platforms:
        return "pip install torch==2.2.2 'numpy<2' with Python 3.8 to 3.12: the last torch for Macs with Intel CPUs"
    on_index = facts.holds(r"looking in \w+: \S*/whl/[\s\S]*from versions: \d[^)+]*\)")
    if facts.wanted.startswith("cu") and (on_index or "mac" in facts.platforms):
        return (
            f"pip install torch=={facts.asked} without +{facts.wanted}, because a Mac has no CUDA and no build with it"
        )
    listed = facts.listed if not python else ()
    is_new = bool((python and high and python > high) or (listed and release < listed[0]))
    is_old = bool((python and low and python < low) or (listed and release > listed[1]))
    if builds and facts.wanted.startswith("cu") and facts.wanted not in builds:
        index = f"pip install torch=={facts.asked} --index-url {fixes.INDEX}/{builds[0]}"
        step = f"{index}: torch {facts.asked} has no +{facts.wanted}, only {', '.join(builds)}"
    elif is_new or is_old:
        return (
            f"use {'an older' if is_new else 'a newer'} Python (torch {facts.asked} has wheels for {range_}), or "
            f"{'a newer' if is_new else 'an older'} torch: pip index versions torch shows those for this Python"
        )
    elif facts.wanted and not is_index:
        step = f"add --index-url {fixes.INDEX}/{facts.wanted} to the command: PyPI has no +{facts.wanted}"
    else:
        return ""
    return f"{step}. Its wheels are for Python {range_}" if range_ else step


def server_share(facts: Facts) -> float:
    """Return the share of GPU memory that the server may use; 0 if the paste does not state it."""
    found = re.findall(r"gpu[-_]memory[-_]utilization[= ]+(0?\.\d+)", facts.text)
    return float(found[-1]) if found and facts.holds(r"no available memory|kv cache is|is larger than the max") else 0


def more_ranks(facts: Facts) -> int:
    """Return the number of visible GPUs if a launcher's command starts more processes than that; else 0."""
    ranks = re.search(r"nproc[-_]per[-_]node[= ]+(\d+)|--num[-_]processes[= ]+(\d+)", facts.text)
    gpus = re.search(r"\b(?:cuda|hip)_visible_devices=(\d+(?:,\d+)*)\b", facts.text)
    visible = len(gpus[1].split(",")) if gpus else 0
    return visible if ranks and visible < int(ranks[1] or ranks[2]) else 0


def install_for_amd(facts: Facts) -> str:
    if "rocm" in facts.platforms and "windows" not in facts.platforms:
        return (
            f"pip uninstall {facts.extension or 'the package that needs it'}, which was built for CUDA. Use its "
            "release for ROCm: vLLM the image rocm/vllm (SGLang the image lmsysorg/sglang, a tag with rocm, or its "
            "sources by pip install -e 'python[all_hip]'). If it is in ~/.local, set PYTHONNOUSERSITE=1"
        )
    if "windows" in facts.platforms:
        return (
            "use AMD's own torch for Windows if its page `PyTorch on Windows` lists the GPU, or ROCm inside WSL. For "
            "other packages use their release for ROCm or DirectML (packages with only CUDA code need an NVIDIA GPU)"
        )
    return (
        "pip uninstall torch torchvision torchaudio, then install them from PyTorch's index for ROCm (the selector on "
        f"pytorch.org names it: {fixes.INDEX}/rocmX.Y), and {facts.extension or 'other packages'} for ROCm"
    )


def of_server(name: str, then: str, facts: Facts) -> str:
    """Return `then`, or if it installs torch for vLLM or SGLang, the step to their own release with its torch."""
    installs = re.search(r"pip install (-\S+ )*torch\b(?!vision|audio)", then) and not name.startswith("pip.")
    if installs and "jetson" in facts.names and "thor" not in facts.text:
        return fixes.JETSON
    if not installs or not facts.names & {"vllm", "sglang"}:
        return then
    if "rocm" in facts.platforms or facts.vendor == "amd":
        return "use its image for ROCm: vLLM rocm/vllm (SGLang lmsysorg/sglang, a tag with rocm)"
    return (
        "in a new environment run vLLM uv pip install -U vllm --torch-backend=auto (SGLang uv pip install -U sglang), "
        "which brings the only torch it supports. Before driver 580 use vLLM the +cu129 wheel of its releases page "
        "(SGLang the image lmsysorg/sglang, a tag with cu12)"
    )


def filled(then: str, facts: Facts) -> str:
    """Return the step with the GPU, and the versions of torch and CUDA, from the paste filled in."""
    then = then.replace("gfxNNN", facts.gfx or "gfxNNN")
    if "7.2" in facts.capabilities:
        then = re.sub(r"\b8(\.?)7\b", r"7\g<1>2", then)
    is_known = "torch==VERSION" in then and fixes.release_of(facts.torch) is not None
    then = then.replace("torch==VERSION", fixes.pinned(facts.torch)) if is_known else then
    # torchvision and torchaudio are reinstalled together with torch.
    extra = "".join(f" {name}" for name in ("torchvision", "torchaudio") if name in facts.names)
    then = re.sub(r"pip install (?:--force-reinstall )?'?torch(?:==[^\s']+)?'?(?= --index-url)", rf"\g<0>{extra}", then)
    named = re.search(r"\bcu\d{3}\b", f"{facts.wanted} {facts.build} {facts.text}")
    if named is None:
        if is_known and (facts.capabilities or facts.driver_cuda):
            driver = facts.driver_cuda or None
            wanted, tag = fixes.choose(facts.capabilities, driver, facts.processor, version=facts.torch)
            then = then.replace("cuXYZ", tag) if tag and wanted == fixes.pinned(facts.torch) else then
        tags = (fixes.BUILDS_OF_TORCH_1 | fixes.RELEASES).get(fixes.release_of(facts.torch) or fixes.NEWEST, ())
        among = f"; cuXYZ is one of {', '.join(tags)}, not above the CUDA version in nvidia-smi"
        return then + among * bool(
            tags
            and "/cuXYZ" in then
            and "openmmlab" not in then
            and "selector" not in then
            and "rocm" not in facts.platforms
        )
    build = named[0]
    major, minor = build[2:4], build[4:]
    then = re.sub(r"(cuda-|cuda-toolkit=|CUDA |shows )X\.Y\b", rf"\g<1>{major}.{minor}", then.replace("cuXYZ", build))
    return then.replace("cuda-toolkit-X-Y", f"cuda-toolkit-{major}-{minor}")


def stated(then: str, facts: Facts) -> str:
    """Return the step with the paths, sizes and files from the paste in place of general ones."""
    if gpus := re.search(r"(?:tensor-parallel-size|--tp)\W{1,5}(\d+)", facts.text):
        then = then.replace("nvidia.com/gpu: 1", f"nvidia.com/gpu: {gpus[1]}")
    if cache := re.search(r"(/[\w./-]*\.triton/cache\w*)", facts.text):
        then = then.replace("~/.triton/cache", cache[1])
    if file := re.search(r"(?<![\w-])(cu[a-z]+|nv[a-z]+)(64\w+|\w*)\.dll", facts.text):
        then = (
            then.replace("NAME.dll", file[0])
            .replace("cuDNN: site", "wheels: site")
            .replace("cudnn\\bin", f"{file[1]}\\bin")
        )
    if share := re.search(r"--(mem-fraction-static|gpu-memory-utilization)[ =](0?\.\d+)", facts.text):
        then = then.replace(f"a smaller --{share[1]}", f"--{share[1]} below {share[2]}")
    return then


def untried(then: str, facts: Facts) -> str:
    """Return the advice without steps that were already tried; empty if nothing is left."""
    # Text in brackets, or in the code of `python -c`, is not split.
    kept = [
        part
        for part in re.split(r"(?<=;) (?!print\(|torch\.|[^()]*\))|(?<=\.) (?=[A-Z])", then)
        if not any(
            re.match(_STEPS.get(name, rf".*\b{name}=(?!false\b)"), part, re.IGNORECASE)
            for name in facts.tried | facts.names & set(_STEPS)
        )
    ]
    whole = " ".join(kept).rstrip("; ")
    shorter = re.sub(r"^(?i:then|else|or) ", "", re.sub(r";(?= [A-Z])", ".", whole))
    return whole if len(whole) == len(then) else shorter


# The step that frees memory in each program or library, by the first pattern that matches.
_PROGRAMS: tuple[tuple[str, str], ...] = (
    (
        r"\bverl[/\\.]|ppo_\w*micro_batch|easyr1|openrlhf|skyrl",
        "use a smaller ppo_micro_batch_size_per_gpu and log_prob_micro_batch_size_per_gpu (OpenRLHF: "
        "--micro_train_batch_size, --micro_rollout_batch_size), a smaller rollout.gpu_memory_utilization (0.4), "
        "fsdp_config.param_offload=True and optimizer_offload=True, or shorter prompts and responses",
    ),
    (
        r"comfyui|comfy[/\\]|ksampler",
        "use a smaller image, fewer frames, VAE Decode (Tiled) with small tile_size, a GGUF or fp8 model, or --lowvram",
    ),
    (
        r"sd[-_]scripts|kohya|fluxgym|train_network\.py",
        "use train_batch_size 1, --gradient_checkpointing, --cache_latents, --fp8_base, --optimizer_type AdamW8bit",
    ),
    (
        r"webui|--(?:med|low)vram|modules[/\\](?:txt2img|img2img|processing|sd_\w+)\.py|fooocus|entry_with_update",
        "use a smaller image or upscaling factor, batch size 1, and --medvram or --lowvram in COMMANDLINE_ARGS "
        "(webui-user; Forge: a larger GPU Weights reserve; Fooocus: --always-low-vram)",
    ),
    (
        r"\.to\((?:device=)?cuda\)[\s\S]{0,600}enable_(?:model|sequential)_cpu_offload\(",
        'remove .to("cuda") from the pipeline: it puts every part on the GPU, and enable_model_cpu_offload() then '
        "comes too late. If that is not enough, use the slower enable_sequential_cpu_offload() instead",
    ),
    (
        r"enable_model_cpu_offload\(",
        "use pipe.enable_sequential_cpu_offload() instead of enable_model_cpu_offload() (slower), or transformer and "
        "text encoder in 4 bits (BitsAndBytesConfig of diffusers and transformers), with pipe.vae.enable_tiling()",
    ),
    (
        r"ultralytics|yolov\d",
        "use a smaller batch (batch=-1 chooses one; YOLOv5 --batch-size -1), smaller imgsz, or smaller model (n or s)",
    ),
    (
        r"gaussian[-_ ]?splat|rasterize_gaussians|diff_gaussian|gsplat|scene[/\\]gaussian_model|nerfstudio",
        "use smaller images (-r 2, or 4), --data_device cpu, and fewer Gaussians (a larger densify_grad_threshold)",
    ),
    (r"invokeai", "use a smaller image, a quantised model and T5, and enable_partial_loading: true in invokeai.yaml"),
    (r"dlib|face_recognition", 'use smaller images (to 1600 pixels), number_of_times_to_upsample=0, or model="hog"'),
    (r"whisper", "use a smaller or quantised model (turbo, medium; faster-whisper: compute_type int8), batch_size 1"),
)


_FRAMES: tuple[tuple[str, str], ...] = (
    (r"_cuda_deserialize|in restore_location", 'torch.load(path, map_location="cpu"), then load_state_dict'),
    (r"nnunet", "make a plan for less memory (nnUNetv2_plan_experiment -gpu_memory_target 8); predict --not_on_device"),
    (r"mmcv|mmdet|mmengine|detectron2", "use smaller batches (samples_per_gpu, IMS_PER_BATCH) or images, with AMP"),
    (
        r"torch[/\\]optim[/\\]\w+\.py[^\n]*\n(?:[^\n]*\n){0,5}[^\n]*out ?of ?memory",
        'use an optimizer with smaller states (optim="adamw_8bit" of a Trainer, bitsandbytes), LoRA, or states spread '
        "over more GPUs (FSDP, ZeRO): AdamW's take 8 bytes per parameter, and a smaller batch hardly helps",
    ),
    (
        r"deepspeed\.initialize|optimizer states? init|deepspeed[/\\]runtime[/\\]zero[/\\][^\n]*in (?:__init__|"
        "initialize_optimizer_states)",
        'set "stage": 3 with offload_optimizer and offload_param on "cpu" in DeepSpeed\'s configuration, or use more '
        "GPUs: parameters and states do not fit, and a smaller batch does not help",
    ),
    (
        r"in (?:evaluation_loop|prediction_step|nested_concat)\b",
        "set per_device_eval_batch_size=1, eval_accumulation_steps=1, preprocess_logits_for_metrics to keep the argmax",
    ),
    (
        r"transformers[/\\](?:trainer\.py|loss)|trl[/\\]trainer|llama-?factory|axolotl|per_device_train_batch_size",
        "set per_device_train_batch_size=1, more gradient_accumulation_steps, gradient_checkpointing=True, shorter "
        "sequences (max_length, cutoff_len); then LoRA or QLoRA, or ZeRO-3 or FSDP over more GPUs",
    ),
    (
        r"by allocator gpu_\d_bfc|resourceexhaustederror",
        "use a smaller batch or input, tf.keras.mixed_precision's mixed_float16, or set_memory_growth on a shared GPU",
    ),
    (
        r"diffusers\b|\bflux\b|\bimage\W{1,3}\d{3,4} ?x ?\d{3,4}",
        'call pipe.enable_model_cpu_offload(), not pipe.to("cuda"), pipe.vae.enable_tiling(), with smaller images',
    ),
    (
        r"generation[/\\]utils\.py|\.generate\(",
        "use a shorter prompt, fewer sequences and new tokens at once, torch.inference_mode(), weights in bfloat16 "
        'or in 4 bits (BitsAndBytesConfig(load_in_4bit=True)), or device_map="auto" over more GPUs',
    ),
    (
        r"pytorch_lightning|lightning[/\\](?:pytorch|fabric)",
        'use a smaller batch_size with Trainer(accumulate_grad_batches=N, precision="bf16-mixed"), or smaller inputs',
    ),
    (
        r"torch[/\\]utils[/\\]checkpoint\.py",
        "use a smaller batch or smaller inputs (activation checkpointing is on already), torch.autocast in bfloat16 or "
        "the parameters and the optimizer's states spread over more GPUs (FSDP, ZeRO-3)",
    ),
    (
        r"评估|(?:evaluation|validation|inference) (?:step|stage|phase)|(?:during|in|after) (?:the )?(?:eval|infer)|"
        r"in (?:val(?:id\w*|_\w+)?|test\w*|eval\w*|infer\w*|predict\w*)\b|(?:infer|demo|predict|gener)\w*\.(?:py|sh)\b",
        "use torch.inference_mode() around the evaluation, a smaller batch, image or clip there (fewer frames, points "
        "or objects at once), half precision, and .cpu() for each result",
    ),
    (
        r"\.backward\(|loss\.backward",
        "use a smaller batch with gradient accumulation, smaller inputs, bfloat16 autocast, or torch.utils.checkpoint",
    ),
)


def room(then: str, facts: Facts) -> str:
    """Return the step for full memory, with the options of the program in the paste."""
    tables = _PROGRAMS if OFFLOAD in then else (*_PROGRAMS, *_FRAMES)
    step = next((step for pattern, step in tables if facts.holds(pattern)), "")
    # torch before 1.10, which says "cached" or ends its message at "reserved", has no such setting.
    if "_ALLOC_CONF=" in then and (re.match(r"1\.[0-9]\b", facts.torch) or facts.holds(r"; [\d.]+ [gm]ib cached\)")):
        then = SMALLER
    if not step:
        return then
    if "_ALLOC_CONF=" in then and "inference_mode" in step:
        return f"{step}; else {then}"
    return re.sub(r"; gpucheck find-batch-size[^;]*", "", then.replace(OFFLOAD, step).replace(SMALLER, step))


_CUDA_IS_NOT_THERE = (
    *("torch.cpu_only", "torch.no_accelerator", "cuinit.", "nvml.no", "nvml.permission", "import.libcuda"),
    *("nvcc.", "compile.cuda_h", "driver.", "library.cuda", "library.nvml", "torch.cpu_build", "torch.sees_none"),
)
_DRIVER = ("cuinit.", "nvml.", "import.libcuda", "compile.libcuda", "driver.", "library.", "kernel.", "torch.sees_none")
_AS_ON_LINUX = ("cuinit.mps", "cuinit.46", "cuinit.101", "nvml.not_supported", "nvml.pynvml")
_PIP = r"(?<![\w-])(?:python -m )?pip (?=install|uninstall|list|show)"
_OF_SERVERS = r"vLLM ([^(;]*) \(SGLang ([^()]*)\)"
# Steps that replace a text's own step, by platform and prefix of the id. The first match applies.
_INSTEAD: tuple[tuple[Platform, tuple[str, ...], str], ...] = (
    (
        "directml",
        _CUDA_IS_NOT_THERE,
        "use device = torch_directml.device() in the code, because DirectML has no CUDA, or the program's option "
        "(stable-diffusion-webui --use-directml, ComfyUI --directml), with torch-directml in the program's venv",
    ),
    (
        "mac",
        _CUDA_IS_NOT_THERE,
        'use device "mps" if torch.backends.mps.is_available(), else "cpu", because a Mac has no CUDA (in the code, or '
        'the program\'s option for its device; Lightning: accelerator="mps")',
    ),
    (
        "mac",
        ("attention.", "xformers.setup", "bitsandbytes.setup", "quant.", "compile.", "import.extension", "package.cpu"),
        'use its MPS or MLX version, or do without it (attention: "sdpa"): this package has no code for a Mac\'s GPU',
    ),
    ("wsl", _AS_ON_LINUX, ""),
    (
        "wsl",
        ("compile.libcuda",),
        "export LIBRARY_PATH=/usr/lib/wsl/lib:$LIBRARY_PATH (WSL's folder of libcuda.so), and LD_LIBRARY_PATH likewise",
    ),
    (
        "wsl",
        ("import.libcuda",),
        "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH (Windows's driver puts libcuda.so there). If "
        "nvidia-smi fails in WSL too, update NVIDIA's driver in Windows, then wsl --update and wsl --shutdown",
    ),
    (
        "wsl",
        _DRIVER,
        "run nvidia-smi inside WSL. If it fails, update NVIDIA's driver in Windows, then wsl --update and wsl "
        "--shutdown (wsl -l -v must show version 2: WSL 1 has no GPU). If it works, remove NVIDIA's Linux driver in "
        "WSL (dpkg -l | grep -e nvidia-driver -e libnvidia-compute), and export LD_LIBRARY_PATH=/usr/lib/wsl/lib",
    ),
    (
        "wsl",
        ("oom.killed", "oom.host", "loader.killed", "process.killed"),
        "raise memory= in %UserProfile%\\.wslconfig (the default is half of the RAM), then wsl --shutdown; use fewer "
        "DataLoader workers; sudo dmesg | grep -i -e oom -e killed inside WSL shows whether memory was full",
    ),
    (
        "windows",
        ("nvml.lost", "nvml.hardware", "nvml.reset"),
        "restart Windows. If the error returns, reseat the GPU and its power cables and watch its temperature. The "
        "Event Viewer (System, source nvlddmkm) shows when it happens",
    ),
    ("windows", ("cuda.held",), "end the program's processes in Task Manager (Details); else restart Windows"),
    (
        "windows",
        ("oom.host", "shm."),
        "use a larger paging file (System, Advanced, Performance, Virtual memory), or fewer workers, which reserve it",
    ),
    (
        "windows",
        ("import.library", "import.nvjitlink"),
        "`where NAME.dll` tells whether PATH has it. If not, put its folder on PATH (pip's cuDNN: site-packages\\nvidia"
        "\\cudnn\\bin; NVIDIA's installer: CUDNN\\v9.N\\bin\\12.N), or install the version in the name",
    ),
    (
        "windows",
        ("attention.package",),
        'set attn_implementation="sdpa", which does not need it; else install a wheel for Windows for your torch, CUDA '
        "and Python (flash-attn's own releases have none), or run the program inside WSL",
    ),
    (
        "windows",
        ("compile.launcher", "compile.python_h"),
        "use python.org's installer, which brings the headers. For an embedded Python, copy include and libs into it",
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
        "install NVIDIA's newest driver for Windows and restart. A yellow sign in the Device Manager names the cause",
    ),
    ("rocm", ("cuda.illegal", "cuda.misaligned", "cuda.launch_failure", "cuda.device_assert"), SERIALIZE),
)
_DMESG = r"sudo dmesg( -T)? \| grep( -[ei]+| '[^']+'| [\w-]+(?= -e|;| tells| shows| names| for|$))+"
# `dmesg` commands about the driver, without those about the system's memory.
_OF_DRIVER = rf"(?![^;,]*\b(?:oom|killed)\b){_DMESG}"
_RESET = r"sudo nvidia-smi --gpu-reset -i [\w,:.…]+"
# Commands in steps, and their equivalents on a platform. `vLLM A (SGLang B)` becomes A or B if the server is known.
_SWAPS: tuple[tuple[str, str, str], ...] = (
    (
        "windows",
        r"export PYTORCH_\w+=expandable_segments:True",
        "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 (Windows has no expandable_segments)",
    ),
    ("old_torch", r"TORCH_NCCL_DUMP_\S+ and \S+ write down", "NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=INFO show"),
    ("no_inference_mode", r"torch\.inference_mode\(\)", "torch.no_grad()"),
    ("crio", r"\bcontainerd\b", "crio"),
    ("cluster", r"\bupdate the driver\b", "ask the administrators for a newer driver"),
    ("old_torch", r"=expandable_segments:True", "=max_split_size_mb:128"),
    ("llama", r"PYTORCH_ROCM_ARCH=\S+ or |\. A program on torch also needs.*", ""),
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
    ("bundled", _PIP, r".\\system\\python\\python.exe -m pip "),
    ("portable", _PIP, r".\\python_embeded\\python.exe -m pip "),
    ("uv", r"(?<!uv )" + _PIP, "uv pip "),
    ("webui", r"(?<![\w-])(?:python -m )?pip (?=install --force|uninstall|list|show)", "venv/bin/python -m pip "),
    ("windows", r"venv/bin/python", r"venv\\Scripts\\python"),
    ("windows", r"free -h( and top)?", "Task Manager"),
    ("windows", r"rm -r (\S+)", r"delete \1"),
    ("windows", r"\bsudo (?=nvidia-smi)", ""),
    ("windows", r"apt-get install ffmpeg, conda", 'the "full-shared" build with its bin folder on PATH, or conda'),
    ("mac", r"apt-get install ffmpeg, conda", "brew install ffmpeg, or conda"),
    (
        "windows",
        r"unset LD_LIBRARY_PATH if echo \$LD_LIBRARY_PATH prints a folder",
        "take other CUDA folders out of PATH",
    ),
    ("windows", r"in \$LD_LIBRARY_PATH", "on PATH"),
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
    ("vllm", r"pip uninstall xformers, [^;]*; else ", "use --dtype float16 on a GPU before Ampere (V100, T4); else "),
    ("sglang", _OF_SERVERS, r"\2"),
    ("vllm", _OF_SERVERS, r"\1"),
    ("sglang", r"install a wheel of the package instead of building it; else", "use an image tagged devel, or"),
    ("running", r"install a wheel of the package instead of building it; else install", "install"),
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
        r"^CUDA_LAUNCH_BLOCKING=1 python …",
        r"set TORCHDYNAMO_DISABLE=1. If the error goes away, torch.compile fails: use a newer torch; else \g<0>",
    ),
    *((here, r"MUJOCO_GL=egl.*", "MUJOCO_GL=glfw, and update the graphics driver") for here in ("windows", "mac")),
    ("mac", r"sudo nvidia-smi -pl .*", "try another power supply and cable, then Apple's diagnostics"),
    ("windows", r"compute runtime \(intel-compute-runtime, level-zero\)", "graphics driver from Intel"),
    ("nccl_info", r"set NCCL_DEBUG=INFO on every rank; the first WARN", "the first WARN"),
    ("dockerd", r"\bcontainerd\b", "docker"),
    ("conda", r"pip install -U 'jax\[cuda12\]'[^;]* cuDNN,", "conda update -c conda-forge jaxlib cudnn,"),
    # A model server has options. It has no batch size, and no code of the user.
    *(
        (server, r"; gpucheck find-batch-size[^;]*|print the shapes before the product; ", "")
        for server in ("server", "vllm", "llama")
    ),
    ("sglang", r"use a smaller batch[^;]*", "use a smaller --mem-fraction-static, or fewer --max-running-requests"),
    ("vllm", r"use a smaller batch[^;]*", "use a smaller --gpu-memory-utilization, --max-model-len or --max-num-seqs"),
    ("llama", r"use a smaller batch[^;]*", "use a shorter context (-c N; Ollama num_ctx)"),
    ("server", r"use a smaller batch[^;]*", "use a shorter context, or fewer requests at once"),
    *((other, "nvlddmkm", "Display") for other in ("rocm", "xpu", "directml")),
)


def step(platforms: Collection[str], name: str, then: str, *, specific: bool = False) -> str:
    """Return the step for the text with the id `name` on these platforms.

    A `specific` step was made from the text's own numbers, and is not replaced.
    """
    # These errors exist on no Mac, whatever the text says.
    of_cuda = name.startswith(("cuda.", "cudnn.", "cublas.", "cufft.", "curand.", "cusolver.", "cusparse.", "xid."))
    platforms = set(platforms) - ({"mac"} if of_cuda else set())
    if not specific:
        there = (text for platform, begins, text in _INSTEAD if platform in platforms and name.startswith(begins))
        then = next(there, "") or then
    for platform, pattern, replacement in _SWAPS:
        if platform in platforms:
            then = re.sub(pattern, replacement, then)
    if "windows" in platforms:  # whose shells do not accept single quotes
        then = re.sub(r" -c '([^']*)'", lambda code: code[0].translate(str.maketrans("\"'", "'\"")), then)
    return then
