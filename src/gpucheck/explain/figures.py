"""Read the numbers in an error text, and make a sentence and a step from them. No I/O.

The numbers are sizes in bytes, versions, devices, ranks and the like. Each is a named group of a pattern; numbers that
are not in the text are left out. A reading belongs to the texts of `explain` whose ids begin with `of`. It has the
patterns, the sentence, and the step that replaces the text's step. A function compares numbers where that is needed, as
for a full GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpucheck.doctor import fixes
from gpucheck.explain.text import SMALLER
from gpucheck.machine.stack import ONE_VERSION, are_mixed_packages
from gpucheck.units import GIB, KIB, MIB, TIB

Numbers = dict[str, Any]
# torch's MPS backend and llama.cpp also write GB for 2³⁰ bytes. The difference does not matter in rounded figures.
_UNITS = dict.fromkeys(("", "b", "byte", "bytes"), 1) | {
    f"{letter}{end}": scale
    for letter, scale in (("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB))
    for end in ("", "b", "ib")
}
# `SIZE` in a pattern stands for a number with its unit.
_SIZE = r"[\d.]+ ?(?:[KMGT]i?B|bytes?|B)\b"
# torch prints NVML's "not available" (all bits set) as 17179869184 GiB. Sizes from this value on are ignored.
_NO_SIZE = 2**60


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of a text and a sentence about them. The step, doubt and title are set if the numbers give them."""

    numbers: Numbers = field(default_factory=dict)
    says: str = ""
    then: str = ""
    doubt: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """Patterns for the numbers in texts whose id begins with `of`, with a sentence and a step.

    `says` has sentences; the first whose numbers are all known is used. `{key|other}` stands for a number, or for
    `other` if it is unknown. A part in square brackets is left out if one of its numbers is unknown. `then` is the
    step, or a function that makes it. Lines before the text's own line are ignored if `in_line` is set.
    """

    of: str | tuple[str, ...]
    patterns: str | tuple[str, ...]
    says: str | tuple[str, ...]
    then: str | Callable[[Numbers], str] = ""
    in_line: bool = False


def read(name: str, excerpt: str, context: str = "") -> Figures:
    """Read the numbers of the text with the id `name`.

    `excerpt` has the text's line and the lines after it; `context` also has the lines before.
    """
    family = next((reading.of for reading in _READINGS if name.startswith(reading.of)), None)
    for reading in (reading for reading in _READINGS if reading.of == family):
        # A line of the container toolkit itself has the whole error.
        in_line = reading.in_line or (
            name == "container.cli" and re.search("nvidia-container|unsatisfied|unsupported CUDA", excerpt)
        )
        numbers = _numbers_in(excerpt if in_line else context or excerpt, _each(reading.patterns))
        if numbers is not None:
            says = next(filter(None, (_filled(sentence, numbers) for sentence in _each(reading.says))), "")
            then = reading.then(numbers) if callable(reading.then) else _filled(reading.then, numbers)
            return Figures(numbers, says, then)
    if family is not None or not name.startswith(("oom.", "xid.")):
        return Figures()
    if name.startswith("oom.killed"):
        return _killed(context or excerpt)
    return (_xid if name.startswith("xid.") else _memory)(name, excerpt, context or excerpt)


def _each(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def _numbers_in(excerpt: str, patterns: tuple[str, ...]) -> Numbers | None:
    """Return the values of the named groups; None if no pattern matches. The last pattern with a group counts."""
    matches = [re.search(pattern.replace("SIZE", _SIZE), excerpt, re.IGNORECASE | re.DOTALL) for pattern in patterns]
    numbers: Numbers = {}
    for match in filter(None, matches):
        for key, text in match.groupdict().items():
            name, value = _number(key, text or "")
            if value is not None:
                numbers[name] = value
    return numbers if any(matches) else None


# Keys of whole numbers. Other keys remain text, unless `_number` has a rule for them.
_WHOLE = frozenset(
    (
        *("gpu", "pid", "xid", "rank", "local_rank", "sequence", "elements", "joined", "expected", "port", "exit_code"),
        *("index", "size", "max_length_tokens", "fits_tokens", "status"),
    )
)


def _number(key: str, text: str) -> tuple[str, Any]:
    """Return a group's name and value. Sizes become bytes, and times seconds. An empty or invalid value is None."""
    name, _, unit = key.rpartition("_")
    if not text:
        return key, None
    if unit in ("bytes", "kib", "gib"):
        value = size(text if unit == "bytes" else text.replace(",", "") + unit)
        return f"{name}_bytes", value if value is not None and value < _NO_SIZE else None
    if unit == "ms":
        return f"{name}_s", int(text) / 1000
    if key in _WHOLE:
        return key, int(text)
    match key:
        case "wanted_cudnn" | "found_cudnn":  # 8907 is 8.9.7, 90100 is 9.1.0
            scale = 10_000 if len(text) > 4 else 1000
            return name, f"{int(text) // scale}.{int(text) % scale // 100}.{int(text) % 100}"
        case "utilization":
            return key, float(text)
        case "ranks":
            return key, [int(row) for row in re.findall(r"\d+", text)]
        case "wheel_architectures":
            return key, re.findall(r"sm_\d+\w?", text)
        case "architecture":
            return key, text if text.startswith("sm_") else f"sm_{text.replace('.', '')}"
        case "driver_cuda":
            return key, f"{int(text) // 1000}.{int(text) % 1000 // 10}"  # 12040 is 12.4, 9000 is 9.0
    return key, re.sub(r",\s*", ".", text)


def size(text: str) -> int | None:
    """Return the bytes of a size such as `2.00 GiB`, or None."""
    number, _, unit = re.sub(r"(?<=[\d.]) ?(?=[A-Za-z]|\Z)", "|", text, count=1).partition("|")
    try:
        return round(float(number.rstrip(".")) * _UNITS[unit.lower()])
    except (ValueError, KeyError):
        return None


def human(bytes_: int) -> str:
    """Return a size as torch writes it: at most two decimals, in the largest binary unit."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if bytes_ >= scale:
            return f"{f'{bytes_ / scale:.2f}'.rstrip('0').rstrip('.')} {unit}"
    return f"{bytes_} bytes"


def _filled(sentence: str, numbers: Numbers) -> str:
    """Return a sentence with its numbers filled in; empty if one is unknown."""
    shown = {key: _shown(key, value) for key, value in numbers.items()}
    if numbers.get("exit_code", 0) < 0:
        shown["signal"] = str(-numbers["exit_code"])

    def filled(part: str) -> str:
        fields = re.findall(r"{(\w+)(?:\|([^}]*))?}", part)
        if any(key not in shown and not other for key, other in fields):
            return ""
        return re.sub(r"{(\w+)(?:\|([^}]*))?}", lambda row: shown.get(row[1], row[2]), part)

    return filled(re.sub(r"\[([^]]*)\]", lambda row: filled(row[1]), sentence))


def _shown(key: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]} to {value[-1]}" if isinstance(value[0], str) else " and ".join(map(str, value))
    return human(value) if key.endswith("_bytes") else f"{value:.0f}" if key.endswith("_s") else str(value)


# --- memory of a GPU --------------------------------------------------------------------------------------------------

# Another allocator setting may help if more than this share of the GPU is cached. The share is a choice.
_LARGE_CACHE = 0.1
# Another process with less than this share of the GPU did not fill it. A CUDA context alone takes 0.3 to 0.6 GiB.
_LARGE_OTHER = 0.05
# A request this many times smaller than the free memory did not fail for lack of memory. The factor is a choice.
_AMPLE = 4
# The most that a process holds besides torch's memory: context, kernels, and buffers of cuBLAS, cuDNN and NCCL.
# Published messages show 0.1 to 2.4 GiB.
_CONTEXT = round(2.5 * GIB)
# torch writes three sizes with two decimals, so their sum differs from the exact one by at most about this.
_ROUNDED = round(0.03 * GIB)
_PROCESS = rf"Process (\d+) has ({_SIZE}) memory in use"
# Wordings: torch up to 2.0 in brackets, torch from 2.1 in sentences, llama.cpp, JAX and ONNX Runtime.
_MEMORY = (
    r"MPS allocated: (?P<allocated_bytes>SIZE)",
    r"other allocations: (?P<other_bytes>SIZE)",
    r"max allowed: (?P<allowed_bytes>SIZE)",
    r"(?P<total_bytes>SIZE) total capacity",
    r"(?P<free_bytes>SIZE) free(?! \(according)",
    # The block that torch 2.5 and newer print for the driver's allocator, as ComfyUI shows it.
    r"Currently allocated *: (?P<allocated_bytes>SIZE)",
    r"Requested *: (?P<requested_bytes>SIZE)",
    r"Device limit *: (?P<total_bytes>SIZE)",
    r"Free \(according to CUDA\) *: (?P<free_bytes>SIZE)",
    r"(?P<allocated_bytes>SIZE) already allocated",
    r"(?P<reserved_bytes>SIZE) reserved in total by PyTorch",
    r"(?P<cached_bytes>SIZE) cached",  # torch before 1.4; here the cache excludes allocated memory
    r"(?:Tried to allocate|while trying to allocate|failed to allocate|allocating|"
    r"Failed to allocate memory for requested buffer of size) (?P<requested_bytes>SIZE)",
    r"total capac?i?ty of (?P<total_bytes>SIZE)",
    r"of which (?P<free_bytes>SIZE) is free",
    r"(?P<allowed_bytes>SIZE) allowed",
    r"this process has (?P<own_bytes>SIZE) memory in use",
    r"(?P<allocated_bytes>SIZE) is allocated by PyTorch",
    r"(?P<cached_bytes>SIZE) is reserved by PyTorch but unallocated",
    r"(?P<private_pools_bytes>SIZE) allocated in private pools",
    r"\bGPU (?P<gpu>\d+)(?: has|;)",
    r"allocate (?P<requested_bytes>\d+ bytes)",
)
# Code that moves or loads a model's weights, whose size does not depend on the batch.
_LOADING = re.compile(
    r"\b(?:pipe\w*|\w*model|module|\w*net|vae|\w*transformer|text_encoder\w*)\.(?:to|cuda|half)\(|param_applied = fn\(|"
    r"\bin (?:convert|_apply|load_state_dict|load_\w*(?:model|weights)|from_pretrained)\b"
)
OFFLOAD = (
    "use a quantised (8 or 4 bit) or smaller model, or keep a part in RAM (pipe.enable_model_cpu_offload() instead of "
    'pipe.to("cuda"), in transformers device_map="auto"): the weights do not fit, and a smaller batch does not help'
)


# The steps where the numbers speak against a full GPU.
_AGAIN, _NONE = "run it again and watch nvidia-smi", "check that nvidia-smi shows memory, because torch sees none"


def _memory(name: str, excerpt: str, context: str) -> Figures:
    """Read a message about full GPU memory, in the wordings of torch and other programs."""
    # Each rank may have its own message; only the first one is read.
    if first := re.search(r"out of memory.*?(?=(?:CUDA|HIP|XPU|MPS backend) out of memory|\Z)", excerpt, re.I | re.S):
        excerpt = first.group()
    numbers = _numbers_in(excerpt, _MEMORY) or {}
    if "reserved_bytes" in numbers and "allocated_bytes" in numbers:
        numbers.setdefault("cached_bytes", max(numbers["reserved_bytes"] - numbers["allocated_bytes"], 0))
    elif "cached_bytes" in numbers and "allocated_bytes" in numbers:
        numbers["reserved_bytes"] = numbers["allocated_bytes"] + numbers["cached_bytes"]
    listed = ((int(match[1]), size(match[2])) for match in re.finditer(_PROCESS, excerpt, re.IGNORECASE))
    processes = [{"pid": pid, "bytes": held} for pid, held in listed if held is not None and held < _NO_SIZE]
    # Torch does not know its own process in a container. It is the one that holds torch's memory and a context.
    least = numbers.get("reserved_bytes", _NO_SIZE) - _ROUNDED
    own = [
        process for process in processes if "own_bytes" not in numbers and least <= process["bytes"] <= least + _CONTEXT
    ]
    if processes:
        numbers["processes"] = sorted(
            (process for process in processes if process not in own), key=lambda process: -process["bytes"]
        )
    if own:
        numbers["own_pids"] = [process["pid"] for process in own]
        numbers |= {"own_bytes": own[0]["bytes"]} if len(own) == 1 else {}
    # Other processes hold the listed sizes and an unnamed rest: torch before 2.1, or without NVML, lists no process.
    whole = numbers.get("total_bytes") or numbers.get("allowed_bytes") or 0
    known = numbers.get("own_bytes") or sum(process["bytes"] for process in own) or numbers.get("reserved_bytes")
    rest = 0
    if "total_bytes" in numbers and "free_bytes" in numbers and known is not None:
        rest = whole - numbers["free_bytes"] - known - sum(process["bytes"] for process in numbers.get("processes", ()))
    others = [process for process in numbers.get("processes", ()) if process["bytes"] > _LARGE_OTHER * whole][:3]
    unnamed = rest if rest > _CONTEXT else 0
    then = _memory_then(name, numbers, whole, others, unnamed, is_loading=_LOADING.search(context) is not None)
    doubt = "by its own numbers memory is not full" if then.startswith((_AGAIN, _NONE)) else ""
    is_larger = name in ("oom.cuda", "oom.hip") and numbers.get("requested_bytes", 0) > (whole or TIB)
    title = "one request for memory is larger than the GPU" if is_larger else ""
    title = "an allocation failed although memory was free" if doubt else title
    return Figures(numbers, _memory_says(numbers, whole, others, unnamed), then, doubt, title)


def _memory_says(numbers: Numbers, whole: int, others: list[Numbers], unnamed: int) -> str:
    """Describe who holds the memory, how much is free, and how much was requested."""
    parts = [("GPU" if "total_bytes" in numbers else "allowed", whole or None)]
    if "allocated_bytes" in numbers:
        parts += [("your tensors", numbers["allocated_bytes"]), ("torch's cache", numbers.get("cached_bytes"))]
    else:
        parts.append(("your process", numbers.get("own_bytes")))
    parts += [(f"process {process['pid']}", process["bytes"]) for process in others]
    # Metal's other allocations are those of the same process.
    parts += [("other programs", unnamed or None), ("other Metal buffers", numbers.get("other_bytes"))]
    parts += [("free", numbers.get("free_bytes")), ("requested", numbers.get("requested_bytes"))]
    return ", ".join(f"{what} {human(size_)}" for what, size_ in parts if size_ is not None)


def _memory_then(
    name: str, numbers: Numbers, whole: int, others: list[Numbers], unnamed: int, *, is_loading: bool
) -> str:
    """Return the step that helps most."""
    requested, free, cached = (numbers.get(f"{key}_bytes", 0) for key in ("requested", "free", "cached"))
    if requested > (whole or TIB):
        return f"{SMALLER}: one request exceeds the whole GPU; if that is a surprise, print the tensor's shape"
    if not whole:
        return f"{_NONE}; else update the driver, or make the MIG instance again" if "total_bytes" in numbers else ""
    if "allowed_bytes" in numbers and free > requested:
        allowed = human(numbers["allowed_bytes"])
        return f"raise torch.cuda.set_per_process_memory_fraction, which allows this process {allowed}"
    # A step counts only if it would free enough for this request.
    held = sum(process["bytes"] for process in others) + unnamed
    held = held if held + free >= requested else 0
    if cached > max(_LARGE_CACHE * whole, held) and cached + free >= requested:
        setting = "PYTORCH_HIP_ALLOC_CONF" if name == "oom.hip" else "PYTORCH_CUDA_ALLOC_CONF"
        cause = f"{human(cached)} is cached in pieces too small for the request"
        return f"export {setting}=expandable_segments:True: {cause}"
    if not others and free > _AMPLE * requested > 0:
        return (
            f"{_AGAIN}: {human(free)} were free, far more than the request. Another program "
            "held them a moment before, or a limit was reached (ulimit -v, that of a virtual or a shared GPU)"
        )
    if not held:
        return OFFLOAD if is_loading else SMALLER
    if not others:
        return (
            f"nvidia-smi shows whether another program holds memory. If so, end it or use another GPU; else {SMALLER}"
        )
    pids = [str(process["pid"]) for process in others]
    if "own_bytes" in numbers:
        return f"use another GPU, or end process {', '.join(pids)} if it is not part of your job"
    return f"ps -fp {','.join(pids)} shows what holds it. If it is another program, use another GPU"


# Steps that provide a missing header or Python module, by pattern.
_BRINGS = {
    r"std\w+\.h|limits\.h": "unset CPATH and C_INCLUDE_PATH, and set CC=/usr/bin/gcc without ccache. If gcc still does "
    "not find its own header, reinstall gcc, cpp and the C library's headers (libc6-dev, glibc-headers)",
    r"ggml": "CMAKE_ARGS='-DGGML_METAL=on -DGGML_METAL_EMBED_LIBRARY=ON' pip install --force-reinstall --no-cache-dir "
    "llama-cpp-python with an arm64 Python, and unset GGML_METAL_PATH_RESOURCES",
    r"cuda\b": "python -m pip install 'cuda-python==X.Y.*', with X.Y of torch.version.cuda",
    r"deep_|sgl_": "use the server's own image. DeepGEMM and DeepEP run only on Hopper and newer",
}


# A chosen limit: with less than this share of a GPU, no server is useful.
_LEAST_SHARE = 0.2


def _vllm_then(numbers: Numbers) -> str:
    """Return the option with a share or a length that fits."""
    if "free_bytes" in numbers and "desired_bytes" in numbers:
        share = int(100 * numbers["free_bytes"] / numbers["total_bytes"]) / 100 - 0.02
        if share < _LEAST_SHARE:
            return "end what holds the memory (nvidia-smi shows it; often an old server), or use another GPU"
        return f"set --gpu-memory-utilization {share:.2f}, or use another GPU (nvidia-smi shows who holds memory here)"
    if "fits_tokens" in numbers or {"needed_bytes", "available_bytes"} <= numbers.keys():
        length = (
            "--max-model-len {0} (in Python max_model_len={0})".format(numbers["fits_tokens"])
            if "fits_tokens" in numbers
            else "a smaller --max-model-len"
        )
        return f"use {length}, a larger --gpu-memory-utilization, or more GPUs (--tensor-parallel-size)"
    return ""


# --- memory of the host -----------------------------------------------------------------------------------------------

_KILLED = (
    r"Kill(?:ed)? process (?P<pid>\d+),? \(?(?P<name>[^)\s,]+)\)?",
    r"total-vm:(?P<virtual_kib>[\d,]+)kB",
    r"anon-rss:(?P<resident_kib>[\d,]+)kB",
    r"shmem-rss:(?P<shared_kib>[\d,]+)kB",
    r"memory: usage (?P<used_kib>\d+)kB, limit (?P<limit_kib>\d+)kB",
)


def _killed(context: str) -> Figures:
    """Read which process the kernel killed, how much memory it held, and whose limit was reached."""
    numbers = _numbers_in(context, _KILLED) or {}
    cgroup = "emory cgroup" in context or "CONSTRAINT_MEMCG" in context
    if "pid" in numbers or cgroup:
        numbers["by"] = "cgroup" if cgroup else "system"
    shared = " and {shared_bytes} of shared memory" if numbers.get("shared_bytes", 0) > GIB else ""
    whose = "the limit[ of {limit_bytes}] of its container or job" if cgroup else "the machine's RAM"
    says = (
        "RAM, not GPU memory: the kernel killed process {pid} ({name})[ with {resident_bytes} of RAM]"
        f"{shared}; {whose} was full"
    )
    then = (
        "raise the limit (docker run --memory, Kubernetes resources.limits.memory, Slurm --mem)"
        if cgroup
        else "end other processes that use RAM"
    )
    then += "; use fewer DataLoader workers, a smaller prefetch_factor, or weights loaded once per machine (mmap)"
    return Figures(numbers, _filled(says, numbers), then if "pid" in numbers else "")


# --- versions and architectures ---------------------------------------------------------------------------------------


def _driver_then(numbers: Numbers) -> str:
    """Return the step to a newer driver, or to a torch that suits the driver."""
    wanted, tag = fixes.choose((), numbers["driver_cuda"])
    major, newest = numbers["driver_cuda"].split(".")[0], max(fixes.LEAST_DRIVER)
    older = f"a torch wheel for CUDA {major}: pip install --force-reinstall {wanted} --index-url {fixes.INDEX}/{tag}"
    return (
        f"update the driver ({'CUDA 10.2 needs 440.33, 11.x 450.80, ' * (int(major) < 11)}CUDA 12 needs "
        f"{fixes.LEAST_DRIVER[12]} or newer, CUDA {newest} {fixes.LEAST_DRIVER[newest]}), or install "
        f"{older if tag else fixes.older_build(numbers['driver_cuda']) or f'a torch built for CUDA {major}'}"
    )


def _toolkit_then(numbers: Numbers) -> str:
    """Return the step that installs the CUDA toolkit of torch's version, or a torch for the installed toolkit."""
    wanted, major = numbers["torch_cuda"], numbers["toolkit"].partition(".")[0]
    return (
        f"export CUDA_HOME=/usr/local/cuda-{wanted}, its bin folder first in PATH (install that toolkit if it "
        f"is missing; in conda: conda install -c nvidia cuda-toolkit={wanted}), and rm -r ~/.cache/torch_extensions"
        + f"; or use a torch for CUDA {major}"
        * any(tag.startswith(f"cu{major}") for tag in fixes.BUILDS)
    )


# The first release of torch with each name, according to the documentation of each release.
_SINCE = {
    "2.0": "compile _dynamo func scaled_dot_product_attention vmap",
    "2.1": "float8_e4m3fn float8_e5m2 compiler",
    "2.2": "register_pytree_node device_mesh init_device_mesh",
    "2.3": "uint16 uint32 uint64 get_default_device sdpa_kernel",
    "2.4": "RMSNorm custom_op register_fake custom_fwd custom_bwd xpu",
    "2.5": "flex_attention create_block_mask",
    "2.6": "accelerator int1 int4 triton_op wrap_triton",
    "2.7": "float8_e8m0fnu",
    "2.8": "float4_e2m1fn_x2",
}


def _since_then(numbers: Numbers) -> str:
    """Return the torch release that has a name, or the step for a name that torch removed."""
    name = numbers["missing"].rpartition(".")[2]
    if name == "_six":
        return "pip install -U the package that needs torch._six, because torch 2.0 removed it"
    release = next((release for release, names in _SINCE.items() if name in names.split()), "")
    return release and (
        f"use torch {release} or newer, which has {name}, and its torchvision (the selector on pytorch.org gives the "
        "command). Or use an older release of the package that needs it"
    )


# The step if the list of architectures of a build has one that is not this GPU's.
_NOT_OWN = (
    "remove the number from the list of the build (TORCH_CUDA_ARCH_LIST, CMAKE_CUDA_ARCHITECTURES, CUDA_ARCH_BIN, "
    "-gencode) if it is not this GPU's own number (nvidia-smi --query-gpu=compute_cap --format=csv)"
)
# The CUDA toolkit that each architecture needs, according to the toolkits' release notes.
_TOOLKITS = (
    (r"[1-4]\d", f"{_NOT_OWN}, and build in an empty folder. For that GPU use CUDA 8 (2.x), 10 (3.0) or 11"),
    (r"[5-6]\d|70|72", f"{_NOT_OWN}. For that GPU use CUDA 12, because CUDA 13 dropped it"),
    *(
        (numbers, f"set CUDA_HOME to a CUDA toolkit {since}, with a torch for the same CUDA; or {_NOT_OWN}")
        for numbers, since in (
            ("75", "10.0 or newer"),
            ("80|86", "11.1 or newer"),
            ("87", "11.4 or newer"),
            ("89|90a?", "11.8 or newer"),
            ("10[01][af]?|120[af]?", "12.8 or newer"),
            ("103[af]?|121[af]?", "12.9 or newer"),
            (r"\d+[af]?", "of the newest release"),
        )
    ),
)


# --- the kernel's log -------------------------------------------------------------------------------------------------


def _xid(name: str, excerpt: str, context: str) -> Figures:
    """Read which GPU, by its PCI address, and which process an Xid names."""
    number = name.split(".")[1]
    if not number.isdigit():
        return Figures(_numbers_in(excerpt, (r"Xid[^\d]{0,20}(?:\(PCI:[0-9a-f:.]+\): )?(?P<xid>\d+)",)) or {})
    line = re.search(rf"Xid \((?:PCI:)?([0-9a-f:.]+)\): {number}\b(.{{0,200}})", excerpt, re.IGNORECASE)
    line = line or re.search(
        rf"Xid \((?:PCI:)?([0-9a-f:.]+)\): \d+\b(.{{0,160}}?caused by previous Xid {number}\b)", context, re.IGNORECASE
    )
    numbers: Numbers = {"xid": int(number)}
    if line is None:
        return Figures(numbers)
    numbers["bus"] = line[1].lower()
    of_process = (r"pid='?(?P<pid>\d+)", r"name='?(?P<process>[^\s,'<>]+)")
    action = r"recovery action changed from \S+ \([^)]*\) to \S+ \((?P<recovery_action>[^)]*)\)"
    numbers |= _numbers_in(line[2].split("NVRM:")[0], (*of_process, action)) or {}
    whom = "[ in process {pid}]" + ("[ ({process})]" if "pid" in numbers else "")
    return Figures(numbers, _filled("GPU {bus}" + whom + "[, recovery action: {recovery_action}]", numbers))


# The error follows within this distance of the message about the segment.
_NEAR = r"\A.{0,380}?"
# Errors of a segment: the pattern, its meaning, and the steps for NCCL and torch. An empty step keeps the text's own.
_SEGMENTS: tuple[tuple[str, str, str, str], ...] = (
    (_NEAR + r"(No space left on device|\(28\))", "/dev/shm is full", "", ""),
    (
        _NEAR + r"(No such file or directory|\(2\))",
        "the segment does not exist: the process that created it has ended, or has another /dev/shm",
        "give ranks of one machine one /dev/shm (one container, or --ipc=host), or set NCCL_SHM_DISABLE=1. If a rank "
        "ended first, its log names the cause; else try another NCCL release (pip install -U nvidia-nccl-cu12)",
        "look for the process that ended first. A process that sends a tensor must live until it is received "
        "(torch.multiprocessing.set_sharing_strategy('file_descriptor') keeps it)",
    ),
    (
        _NEAR + r"(Too many open files|\(24\))",
        "too many files are open",
        "ulimit -n 65536",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        _NEAR + r"(Permission denied|\(13\))",
        "/dev/shm is not writable",
        "sudo chmod 1777 /dev/shm, until ls -ld /dev/shm shows drwxrwxrwt",
        "sudo chmod 1777 /dev/shm, until ls -ld /dev/shm shows drwxrwxrwt",
    ),
    (
        _NEAR + r"(Cannot allocate memory|\(12\))",
        "the memory limit of the container or job is reached, which /dev/shm counts against",
        "raise the memory limit of the container or job, or use fewer processes; free -h and df -h /dev/shm",
        "raise the memory limit of the container or job, or use fewer workers; free -h and df -h /dev/shm",
    ),
)


# The meanings of ibv_wc_status for a transfer (verbs.h in rdma-core), with the step. Status 5 is last, because it only
# follows from another one.
_STATUSES: tuple[tuple[int | str, str, str], ...] = (
    (
        4,
        "local protection error: this machine's adapter may not read or write the buffer",
        "NCCL_NET_GDR_LEVEL=LOC (no GPUDirect RDMA) tells whether it is the GPU's memory. If so, lsmod | grep peermem "
        "must show nvidia_peermem (not the old nv_peer_mem), and ACS must be off; else ulimit -l unlimited",
    ),
    (
        10,
        "remote access error: the other machine's adapter refused the address or its key",
        "look for the first error of the rank on the other machine (it may have freed the buffer). Use the same NCCL "
        "release on all machines. NCCL_NET_GDR_LEVEL=LOC tells whether GPUDirect RDMA is at fault",
    ),
    (
        "9|11|13",
        "the other machine's adapter rejected the request or failed, or its rank did not post a receive in time",
        "look for the rank's first error in the other machine's log; run dmesg | grep -i mlx5 on both machines",
    ),
    (
        12,
        "retries exceeded: no answer from the other machine's adapter",
        "read the other rank's log first (it may have ended). Then check ibstat, the link's error counters, and "
        "ib_write_bw between the machines. On RoCE check NCCL_IB_GID_INDEX (show_gids) and PFC. On a busy network set "
        "NCCL_IB_TIMEOUT=22",
    ),
    (
        5,
        "flushed: its queue had failed before",
        "look for the first completion with another status, here or in the other ranks' logs, which is the cause",
    ),
)
_COMPLETION = r"Got completion .{0,120}?(?:error|status)\W{1,3}(?:IBV_WC_\w+\W)?"


# --- containers -------------------------------------------------------------------------------------------------------

# Errors of NVIDIA's container toolkit with their meaning and the step on the host. The first match applies.
_CONTAINER: tuple[tuple[str, str, str], ...] = (
    (
        r"WSL environment detected but no adapters",
        "WSL shows the container no GPU",
        "update NVIDIA's driver in Windows, then wsl --shutdown. nvidia-smi inside WSL must list the GPU first",
    ),
    (
        r"(?:device error: (?P<asked>[^\s:]+): )?unknown device|invalid device ordinal|"
        r"MIG.{0,40}(not found|invalid)|device id .{0,60}not found",
        "the requested GPU[ ({asked})] does not exist on this host",
        "nvidia-smi -L on the host lists GPUs and MIG instances. Name one in --gpus, NVIDIA_VISIBLE_DEVICES or the "
        "compose file's device_ids, or in the script's argument (if its value is an option, a variable was empty)",
    ),
    (
        r"cgroup|device (rules|filter)|BPF_",
        "the toolkit could not add the GPU to the container's cgroup",
        "set no-cgroups = true in /etc/nvidia-container-runtime/config.toml if docker is rootless or runs in an "
        "unprivileged LXC container, or use CDI: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml. Else "
        "update nvidia-container-toolkit",
    ),
    (
        r"unsatisfied condition: ?(?:(?P<condition>(?:brand|arch)\w* ?[<>=!]+ ?[\w.]+)|brand|arch)",
        "the image requires another kind of GPU ({condition|see the message})",
        "use an image without that requirement. NVIDIA_DISABLE_REQUIRE=1 skips the check",
    ),
    (
        r"(?:unsatisfied condition|unsupported CUDA version)"
        r"(?:: ?(?P<condition>(?:driver )?[\w.]+ ?[<>=!]+ ?(?:image )?[\w.]+))?",
        "the image requires more than the host's driver has ({condition|see the message})",
        "update the host's driver, or use an image of an older CUDA (on a rented machine choose a host with a newer "
        "driver; RunPod: filter by CUDA version). NVIDIA_DISABLE_REQUIRE=1 skips the check",
    ),
    (
        r"driver not loaded|NVML.{0,20}not loaded",
        "the driver's module is not loaded on the host",
        "sudo modprobe nvidia on the host. nvidia-smi must work there first",
    ),
    (
        r"(driver|nvml) (rpc )?error: .{0,40}(failed to process request|timed out|timeout)|rpc error",
        "the host's driver did not answer",
        "run nvidia-smi on the host, also as root. If it hangs, reboot the host",
    ),
    (
        r"file creation failed: \S+: file exists|: file exists",
        "the image contains files of NVIDIA's driver",
        "build the image without the driver's libcuda.so.1 and libnvidia-ml.so.1, which come from the host",
    ),
    (
        r"ldcache|ldconfig",
        "ldconfig did not run inside the container",
        'set ldconfig = "@/sbin/ldconfig" (Ubuntu: "….real") in /etc/nvidia-container-runtime/config.toml. If '
        "pivot_root fails (a RAM disk as root: Unraid), use nvidia-container-toolkit 1.17.9 or one after 1.18.0",
    ),
    (
        r"(open|stat|path|mount operation|load program).{0,200}(permission denied|operation not permitted)|"
        r"insufficient permissions",
        "the toolkit may not open or mount a file of the driver",
        "look at the named file. SELinux or AppArmor, a file system without mknod or setuid, or the user in "
        "/etc/nvidia-container-runtime/config.toml may deny access",
    ),
    (
        r"libnvidia-ml\.so|libcuda\.so|load library failed|Could not find any (nv|nvidia) \w+|no such device",
        "no NVIDIA driver is found where the container is started",
        "run nvidia-smi there. If it fails, install the driver, or request a GPU for the job or virtual machine. Else "
        "use the host's own Docker: docker context use default (Docker Desktop), or docker-ce in place of the snap's",
    ),
    (
        r"(stat|open|mount operation).{0,200}no such file or directory",
        "a file of the driver is missing",
        "sudo nvidia-modprobe -u -c 0 creates the device nodes. After a driver update, sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml, and sudo systemctl restart docker",
    ),
)


# --- the readings of each family of texts -----------------------------------------------------------------------------

_RANKS = (
    r"local_rank: (?P<local_rank>\d+)",
    r"SeqNum=(?P<sequence>\d+)",
    r"NumelIn=(?P<elements>\d+)",
    r"(?P<joined>\d+)/(?P<expected>\d+) clients joined",
    r"\bport:? ?(?P<port>\d{2,5})\b",
    r"\(pid: (?P<pid>\d+)\)",
    r"exitcode\s*: (?P<exit_code>-?\d+)",
    r"Timeout\(ms\)=(?P<limit_ms>\d+)",
    r"ran for (?P<waited_ms>\d+) milliseconds",
    r"OpType=(?P<collective>\w+)",
)
_OF_RANKS = (
    "rank {rank} waited[ {waited_s} s] in {collective}[ (number {sequence})] for missing ranks",
    "a rank waited[ {waited_s} s] in {collective}[ (number {sequence})] for missing ranks",
    "{joined} of {expected} processes joined",
    "rank {rank} failed first with exit code {exit_code}[ (signal {signal})]",
    "local rank {local_rank} failed first with exit code {exit_code}[ (signal {signal})]",
    "a rank failed first with exit code {exit_code}[ (signal {signal})]",
    "port {port}",
)
# The first row whose `of` matches an id selects the family. Its rows are tried in order until a pattern matches.
_READINGS: tuple[Reading, ...] = (
    *(Reading("container.cli", *row) for row in _CONTAINER),
    *(Reading("nccl.shared_memory", pattern, says, then, in_line=True) for pattern, says, then, _ in _SEGMENTS),
    *(Reading("shm.open", pattern, says, then, in_line=True) for pattern, says, _, then in _SEGMENTS),
    Reading(
        "build.header",
        (r"No module named \W?(?P<name>[\w.]+)", r"fatal error: \W?(?P<name>[\w./+-]+\.h\w*)"),
        "{name} is not found",
        lambda numbers: next((then for name, then in _BRINGS.items() if re.match(name, numbers["name"])), ""),
        in_line=True,
    ),
    Reading(
        "oom.vllm",
        (
            r"(?P<needed_bytes>SIZE) KV cache is needed",
            r"available KV cache memory \((?P<available_bytes>SIZE)",
            r"desired GPU memory utilization \([\d.]+, (?P<desired_bytes>SIZE)",
            r"Free memory on device[^(]{0,20}\((?P<free_gib>[\d.]+)/(?P<total_bytes>[\d.]+ GiB)\)",
            r"max seq len \((?P<max_length_tokens>\d+)\)",
            r"(?:maximum model length is|can be stored in KV cache \() ?(?P<fits_tokens>\d+)",
            r"memory utilization \((?P<utilization>\d+\.?\d*)",
        ),
        (
            "{free_bytes} of {total_bytes} free, vLLM wants {desired_bytes}",
            "one request[ of {max_length_tokens} tokens] needs {needed_bytes} of cache, {available_bytes} left",
            "the cache holds {fits_tokens} tokens, a request may have {max_length_tokens}",
        ),
        _vllm_then,
    ),
    Reading(
        ("oom.cpu", "oom.host"),
        (r"tried to allocate (?P<requested_bytes>\d+ bytes)", r"Unable to allocate (?P<requested_bytes>SIZE)"),
        "{requested_bytes} requested at once",
        in_line=True,
    ),
    Reading(
        "import.library",
        (
            r"(?P<library>(?:cu|nv)\w+\.dll) (?:is not|not) found",
            r"any of \{(?P<library>lib[\w-]+\.so[.\d]*)",
            r"(?P<library>lib[\w-]+\.so[.\d]*): cannot open",
        ),
        "{library} is not found",
    ),
    Reading(
        "pip.torch",
        r"(?:satisfies the requirement|distribution found for) (?P<package>[\w.-]+)",
        "pip finds no {package} that fits",
    ),
    Reading(
        "cuinit.too_old",
        r"\(found version (?P<driver_cuda>\d{4,5})\)",
        "the driver supports CUDA up to {driver_cuda}, but torch's CUDA is newer",
        _driver_then,
        in_line=True,
    ),
    Reading(
        "nvml.mismatch",
        (
            r"client has the version (?P<library>[\d.]+\d).{0,60}kernel module has the version (?P<module>[\d.]+\d)",
            r"kernel version (?P<module>[\d.]+\d) does not match DSO version (?P<library>[\d.]+\d)",
        ),
        "the libraries are of driver {library}, the kernel module of {module}",
        # A restart does not help if packages of two sources are mixed, such as 575.64 and 575.64.03.
        lambda numbers: ONE_VERSION if are_mixed_packages(numbers["library"], numbers["module"]) else "",
    ),
    Reading(
        "import.torch_too_old",
        (
            r"has no attribute \W?(?P<missing>\w+)",
            r"cannot import name \W?(?P<missing>\w+)",
            r"No module named \W?torch\.(?P<missing>[\w.]+\w)",
        ),
        "",
        _since_then,
    ),
    Reading(
        "nvcc.mismatch",
        (
            r"detected CUDA version \((?P<toolkit>[\d.]+)\).{0,80}compile\s*PyTorch \((?P<torch_cuda>[\d.]+)\)",
            r"Installed CUDA version (?P<toolkit>[\d.]+) does not match the version torch was compiled with "
            r"(?P<torch_cuda>[\d.]+\d)",
        ),
        "nvcc has CUDA {toolkit}, torch has CUDA {torch_cuda}",
        _toolkit_then,
    ),
    *(Reading("nvcc.arch", rf"architecture \W?compute_(?:{numbers})\b", "", then) for numbers, then in _TOOLKITS),
    Reading(
        "nvcc.host_compiler",
        r"gcc versions later than (?P<newest_gcc>\d+)",
        "this nvcc accepts gcc up to {newest_gcc}",
        "sudo apt-get install g++-{newest_gcc}, then CC=gcc-{newest_gcc} CXX=g++-{newest_gcc} "
        "NVCC_PREPEND_FLAGS='-ccbin g++-{newest_gcc}' before the build (conda install -c conda-forge gxx={newest_gcc})",
    ),
    Reading(
        "nvcc.host_compiler",
        r"GNU version! gcc (?P<refused_gcc>\d\.\d) and up",
        "this nvcc accepts only gcc before {refused_gcc}",
        "install a newer CUDA toolkit, because this one supports no current compiler",
    ),
    Reading(
        "nvcc.old",
        r"We need GCC (?P<needed_gcc>\d+)",
        "torch's headers need gcc {needed_gcc} or newer",
        "sudo apt-get install g++-{needed_gcc} (RHEL gcc-toolset-{needed_gcc}, conda gxx={needed_gcc}), then "
        "CC=gcc-{needed_gcc} CXX=g++-{needed_gcc} before the build",
    ),
    Reading(
        "cudnn.version",
        (
            r"compiled\s+against \((?P<wanted>\d+, ?\d+, ?\d+)\) but found runtime version "
            r"\((?P<found>\d+, ?\d+, ?\d+)\)",
            r"Minimum supported: (?P<wanted_cudnn>\d+).{0,40}Installed version: (?P<found_cudnn>\d+)",
            r"Loaded runtime CuDNN library: (?P<found>[\d.]+).{0,40} source was compiled with:? (?P<wanted>[\d.]+\d)",
        ),
        "cuDNN {found} was loaded, but the program needs {wanted}",
    ),
    Reading(
        ("cuda.capability", "architecture."),
        (
            r"(?:GPU ?\d+ |^|[\s:])(?P<device>(?:NVIDIA|Tesla|GeForce|Quadro|GRID|RTX|GTX)[\w -]*?) (?:with CUDA "
            r"capability|which is of)",
            r"(?<!\] which is )of (?:cuda )?capability (?P<architecture>\d+\.\d+)",
            r"CUDA capability (?P<architecture>sm_\d+\w?)",
            r"supports CUDA capabilities (?P<wheel_architectures>(?:sm_\d+\w?[ ,]*)+)",
        ),
        "{device|the GPU} is {architecture}[, torch has code for {wheel_architectures}]",
    ),
    *(
        Reading("nccl.infiniband", rf"{_COMPLETION}(?P<status>{number})\b", f"status {{status}}, {says}", then)
        for number, says, then in _STATUSES
    ),
    Reading(
        "nccl.infiniband",
        r"ibv_(?P<call>reg_mr|create)\w* failed.{0,60}(?:Cannot allocate memory|error 12)",
        "memory could not be registered with the adapter",
        "ulimit -l unlimited (docker run --ulimit memlock=-1, Slurm: PropagateResourceLimitsExcept=MEMLOCK)",
    ),
    Reading(
        "nccl.infiniband",
        r"async event ?: (?P<event>[\w ]+)",
        "the adapter reports: {event}",
        "check ibstat, and dmesg | grep -i mlx5. A port error points to the cable, switch or adapter, a fatal event to "
        "its firmware",
    ),
    Reading(
        "nccl.duplicate",
        r"rank (?P<ranks>\d+ and rank \d+) both on CUDA device (?P<bus>[0-9a-f]+)",
        "ranks {ranks} both use the GPU at PCI address {bus} (as NCCL writes it)",
    ),
    Reading("dist.child", (r"\brank\s*: (?P<rank>\d+)", *_RANKS), _OF_RANKS),
    Reading(
        ("process.killed", "crash.", "nccl.", "dist."), (r"(?:\[ ?Rank |\brank\s*: )(?P<rank>\d+)", *_RANKS), _OF_RANKS
    ),
    Reading(
        "compile.resources",
        r"Required: (?P<required_bytes>\d+),? Hardware limit: ?(?P<limit_bytes>\d+)",
        "the kernel needs {required_bytes} of shared memory per multiprocessor, the GPU has {limit_bytes}",
    ),
)
