"""The numbers in an error text: sizes in bytes, versions, devices, ranks; and what they come to in a sentence. Pure.

Each family of texts has a reader, by the beginning of its ids. A reader gets the line where the text stands and those
after it, and gives what it finds under keys with units; what is not written there is left out. `told` makes one
sentence of it, and the step that it suggests in place of the text's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpucheck.machine.stack import ONE_VERSION, are_mixed_packages
from gpucheck.units import GIB, KIB, MIB, TIB

Numbers = dict[str, Any]
# GB is what torch's MPS and llama.cpp write for 2³⁰ too; in an error's rounded figure the difference does not count.
_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kb": KIB, "kib": KIB, "mb": MIB, "mib": MIB, "gb": GIB, "gib": GIB}
_UNITS |= {"tb": TIB, "tib": TIB, "k": KIB, "m": MIB, "g": GIB}
_SIZE = r"([\d.]+) ?([KMGT]i?B|bytes?|B)\b"
# Cached memory of more than this share of the GPU is worth a try with another allocator setting; the share is ours.
_LARGE_CACHE = 0.1
# Another process with less than this share of the GPU is not what fills it: a CUDA context alone is 0.3 to 0.6 GiB.
_LARGE_OTHER = 0.05
# What a process holds beside torch's memory: context, kernels, and the buffers of cuBLAS, cuDNN and NCCL. Published
# messages that name their own process show 0.1 to 2.4 GiB.
_CONTEXT = round(2.5 * GIB)
# torch writes three sizes with two decimals: together they are this far from the exact sum.
_ROUNDED = round(0.03 * GIB)
# NVML's "not available" (all bits set) as torch writes it, 17179869184 GiB, is no size; no machine has this much.
_NO_SIZE = 2**60


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a text: the numbers, the sentence that they make, and the next step where they give one."""

    numbers: Numbers = field(default_factory=dict)
    says: str = ""
    then: str = ""


def read(name: str, said: str, around: str = "") -> Figures:
    """The numbers of a text with the id `name`; `said` is its line and what follows, `around` also what is before."""
    for beginning, reader in _READERS.items():
        if name.startswith(beginning):
            return reader(name, said, around or said)
    return Figures()


def size(number: str, unit: str) -> int | None:
    """Bytes in `2.00` `GiB`; None where it is no number."""
    try:
        return round(float(number.rstrip(".")) * _UNITS[unit.lower()])
    except (ValueError, KeyError):
        return None


_SCALES = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def human(bytes_: int) -> str:
    """A size as torch writes it: at most two decimals, in the largest binary unit."""
    for unit, scale in _SCALES:
        if bytes_ >= scale:
            return f"{_digits(bytes_ / scale)} {unit}"
    return f"{bytes_} bytes"


def _digits(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _sizes(said: str, patterns: dict[str, str]) -> Numbers:
    """Return what each pattern, with `SIZE` for a number and its unit, finds first."""
    found: Numbers = {}
    for key, pattern in patterns.items():
        match = re.search(pattern.replace("SIZE", _SIZE), said, re.IGNORECASE)
        value = size(match[1], match[2]) if match else None
        if value is not None:
            found[key] = value
    return found


def _integers(said: str, patterns: dict[str, str]) -> Numbers:
    """Return what each pattern's first group finds first, as a whole number."""
    found: Numbers = {}
    for key, pattern in patterns.items():
        if match := re.search(pattern, said, re.IGNORECASE):
            found[key] = int(match[1])
    return found


def _words(said: str, patterns: dict[str, str]) -> Numbers:
    """Return what each pattern's first group finds first, as it is written."""
    found = {key: re.search(pattern, said, re.IGNORECASE) for key, pattern in patterns.items()}
    return {key: match[1] for key, match in found.items() if match}


# --- memory of a GPU --------------------------------------------------------------------------------------------------

# torch 1.x and 2.0 write a bracket, 2.1 and later sentences; llama.cpp, JAX and ONNX Runtime have words of their own.
_MEMORY = {
    "requested_bytes": r"(?:Tried to allocate|while trying to allocate|failed to allocate|allocating|"
    r"Failed to allocate memory for requested buffer of size) SIZE",
    "total_bytes": r"(?:total capac?i?ty of SIZE)",
    "free_bytes": r"of which SIZE is free",
    "allowed_bytes": r"SIZE allowed",
    "own_bytes": r"this process has SIZE memory in use",
    "allocated_bytes": r"SIZE is allocated by PyTorch",
    "cached_bytes": r"SIZE is reserved by PyTorch but unallocated",
    "private_pools_bytes": r"SIZE allocated in private pools",
}
_MEMORY_1 = {
    "total_bytes": r"SIZE total capacity",
    "free_bytes": r"SIZE free",
    "allocated_bytes": r"SIZE already allocated",
    "reserved_bytes": r"SIZE reserved in total by PyTorch",
    # Before torch 1.4; it does not contain what is allocated.
    "cached_bytes": r"SIZE cached",
}
_MPS = {
    "allocated_bytes": r"MPS allocated: SIZE",
    "other_bytes": r"other allocations: SIZE",
    "allowed_bytes": r"max allowed: SIZE",
}


def _memory(name: str, said: str, around: str) -> Figures:
    """Out of memory on a GPU, in torch's wordings and those of programs beside it."""
    del around
    # Of several ranks each says its own: the first one's message ends where the next begins.
    first = re.search(r"out of memory.*?(?=(?:CUDA|HIP|XPU|MPS backend) out of memory|\Z)", said, re.I | re.S)
    said = first.group() if first else said
    found = {**_sizes(said, _MPS), **_sizes(said, _MEMORY_1), **_sizes(said, _MEMORY)}
    found = {key: value for key, value in found.items() if value < _NO_SIZE}
    found |= _integers(said, {"gpu": r"\bGPU (\d+)(?: has|;)", "requested_bytes": r"allocate (\d+) bytes"})
    others = [
        {"pid": int(match[1]), "bytes": value}
        for match in re.finditer(rf"Process (\d+) has {_SIZE} memory in use", said, re.IGNORECASE)
        if (value := size(match[2], match[3])) is not None and value < _NO_SIZE
    ]
    if others:
        found["processes"] = sorted(others, key=lambda one: -one["bytes"])
    if "reserved_bytes" in found and "allocated_bytes" in found:
        found.setdefault("cached_bytes", max(found["reserved_bytes"] - found["allocated_bytes"], 0))
    elif "cached_bytes" in found and "allocated_bytes" in found:
        found["reserved_bytes"] = found["allocated_bytes"] + found["cached_bytes"]
    found |= _own_process(found)
    return Figures(found, _memory_says(found), _memory_then(name, found))


def _own_process(found: Numbers) -> Numbers:
    """Which of the listed processes is this one, where torch does not say so: in a container it does not know its pid.

    It holds what torch counts and a context. Several that fit are all kept, because nobody can tell them apart.
    """
    if "own_bytes" in found or "reserved_bytes" not in found or "processes" not in found:
        return {}
    least = found["reserved_bytes"] - _ROUNDED
    fitting = [one for one in found["processes"] if least <= one["bytes"] <= found["reserved_bytes"] + _CONTEXT]
    if not fitting:
        return {}
    if len(fitting) > 1:
        return {"own_pids": [one["pid"] for one in fitting]}
    others = [one for one in found["processes"] if one not in fitting]
    return {"own_bytes": fitting[0]["bytes"], "own_pids": [fitting[0]["pid"]], "processes": others}


def _memory_says(found: Numbers) -> str:
    """Who holds the memory: your tensors, torch's cache beside them, other processes; and what is free."""
    whole = _whole(found)
    # In the whole's unit no other size needs one of its own.
    scale = next((scale for _, scale in _SCALES if (whole or 0) >= scale), 0)

    def size_of(bytes_: int) -> str:
        return human(bytes_) if not scale or bytes_ * 100 < scale else _digits(bytes_ / scale)

    allocated, cached, own = (found.get(key) for key in ("allocated_bytes", "cached_bytes", "own_bytes"))
    parts: list[str] = []
    if allocated is not None:
        parts.append(f"your tensors hold {size_of(allocated)}")
        parts += [f"torch's cache {size_of(cached)} on top"] if cached is not None else []
    elif own is not None:
        parts.append(f"your process holds {size_of(own)}")
    if own is not None and allocated is not None:
        beside = own - allocated - (cached or 0)
        parts += [f"your process {size_of(beside)} beside torch"] if beside > GIB else []
    listed = _others(found)
    parts += [f"process {one['pid']} holds {size_of(one['bytes'])}" for one in listed[:3]]
    if left := listed[3:]:
        parts.append(f"{len(left)} more hold {size_of(sum(one['bytes'] for one in left))}")
    if len(found.get("own_pids", ())) > 1:
        parts[-1] += ", one of these is your process"
    rest = _unnamed(found)
    if rest > _CONTEXT:
        parts.append(f"other programs {size_of(rest)}")
    elif rest > max(_LARGE_OTHER * (whole or 0), GIB):
        parts.append(f"CUDA's context or other programs {size_of(rest)}")
    if "other_bytes" in found:
        parts.append(f"other programs {size_of(found['other_bytes'])}")
    if "free_bytes" in found:
        parts.append(f"{size_of(found['free_bytes'])} free")
    said = (f"of {human(whole)} " if whole else "") + ", ".join(parts)
    if "requested_bytes" in found:
        said += ("; " if said else "") + f"{size_of(found['requested_bytes'])} more requested"
    return said


def _whole(found: Numbers) -> int | None:
    """The device's memory, else what torch may use of it."""
    return found.get("total_bytes") or found.get("allowed_bytes")


def _others(found: Numbers) -> list[Numbers]:
    """The listed processes that hold a part of the GPU that counts; without the whole nobody knows."""
    return [one for one in found.get("processes", ()) if one["bytes"] > _LARGE_OTHER * (_whole(found) or 0)]


def _unnamed(found: Numbers) -> int:
    """Return what neither is free nor anybody named holds: in torch before 2.1, and without NVML, others are not
    listed."""
    total, free = found.get("total_bytes"), found.get("free_bytes")
    own = found.get("own_bytes") or found.get("reserved_bytes")
    if len(found.get("own_pids", ())) > 1:
        own = 0
    if total is None or free is None or own is None:
        return 0
    rest: int = total - free - own - sum(one["bytes"] for one in found.get("processes", ()))
    return max(rest, 0)


def _memory_then(name: str, found: Numbers) -> str:
    """The step that helps most by these figures."""
    whole = _whole(found)
    if not whole:
        return ""
    requested, free = found.get("requested_bytes", 0), found.get("free_bytes", 0)
    if requested > whole:
        return "print the tensor's shape, it may be wrong: one request exceeds the whole GPU"
    limited = _limit(found)
    if limited:
        return limited
    listed, unnamed = _others(found), _unnamed(found)
    held = sum(one["bytes"] for one in listed) + (unnamed if unnamed > _CONTEXT else 0)
    cached = found.get("cached_bytes", 0)
    # What would not be enough for this very request is not the step that helps.
    helps = {"others": held if held + free >= requested else 0, "cache": cached if cached + free >= requested else 0}
    if helps["cache"] > max(_LARGE_CACHE * whole, helps["others"]):
        setting = "PYTORCH_HIP_ALLOC_CONF" if name == "oom.hip" else "PYTORCH_CUDA_ALLOC_CONF"
        return (
            f"export {setting}=expandable_segments:True (newer torch: PYTORCH_ALLOC_CONF): "
            f"{human(cached)} is cached in pieces too small for the request"
        )
    if len(listed) > 1 and len(found.get("own_pids", ())) > 1:
        return (
            "if several of these processes are yours, give each its own GPU: torch.cuda.set_device(local_rank), or "
            "CUDA_VISIBLE_DEVICES"
        )
    if helps["others"]:
        return _about_others(listed, is_own_known="own_bytes" in found)
    return "use a smaller batch, a shorter sequence, or activation checkpointing"


def _limit(found: Numbers) -> str:
    """Return what to do where the request was refused though the GPU had room for it; empty elsewhere."""
    requested, free = found.get("requested_bytes"), found.get("free_bytes")
    if requested is None or free is None or free - requested <= _LARGE_OTHER * (found.get("total_bytes") or free):
        return ""
    if "allowed_bytes" in found:
        return (
            f"raise torch.cuda.set_per_process_memory_fraction: it allows this process {human(found['allowed_bytes'])}"
        )
    return (
        f"run it again and watch nvidia-smi: {human(free)} was free when torch gave up, so another process took memory "
        "for a moment, or a limit of the system refused it (ulimit -v, sysctl vm.max_map_count)"
    )


def _about_others(listed: list[Numbers], *, is_own_known: bool) -> str:
    """Return what to do about memory that others hold. One of them may be this program, or another rank of its job."""
    if not listed:
        return "nvidia-smi shows whether another program holds memory: use another GPU, or end that program"
    pids = [str(one["pid"]) for one in listed[:3]]
    if is_own_known:
        return f"use another GPU, or end process {', '.join(pids)} if it is not part of your job"
    return f"ps -fp {','.join(pids)} shows what holds it: your own program, or another one, then use another GPU"


def _vllm(name: str, said: str, around: str) -> Figures:
    """vLLM's free memory against its share, and the cache that one request needs."""
    del name
    found = _sizes(
        around,
        {
            "needed_bytes": r"SIZE KV cache is needed",
            "available_bytes": r"available KV cache memory \(SIZE",
            "desired_bytes": r"desired GPU memory utilization \([\d.]+, SIZE",
        },
    )
    if match := re.search(r"Free memory on device[^(]{0,20}\(([\d.]+)/([\d.]+) GiB\)", around):
        found |= {"free_bytes": size(match[1], "GiB"), "total_bytes": size(match[2], "GiB")}
    found |= _integers(
        around, {"max_length_tokens": r"max seq len \((\d+)\)", "fits_tokens": r"maximum model length is (\d+)"}
    )
    if match := re.search(r"memory utilization \(([\d.]+)", around):
        found["utilization"] = float(match[1])
    if "free_bytes" in found and "desired_bytes" in found:
        share = int(100 * found["free_bytes"] / found["total_bytes"]) / 100
        return Figures(
            found,
            f"of {human(found['total_bytes'])} {human(found['free_bytes'])} free, vLLM wants "
            f"{human(found['desired_bytes'])}",
            f"--gpu-memory-utilization {max(share - 0.02, 0.01):.2f}; or another GPU (nvidia-smi shows who holds "
            "memory here)",
        )
    if "needed_bytes" in found and "available_bytes" in found:
        length = found.get("fits_tokens")
        return Figures(
            found,
            f"one request of {found.get('max_length_tokens', 'the full')} tokens needs {human(found['needed_bytes'])} "
            f"of cache, {human(found['available_bytes'])} left",
            (f"--max-model-len {length}" if length else "a smaller --max-model-len")
            + ", or a larger --gpu-memory-utilization; or more GPUs (--tensor-parallel-size)",
        )
    return Figures(found)


# --- memory of the host -----------------------------------------------------------------------------------------------


def _host(name: str, said: str, around: str) -> Figures:
    """Return what was asked of the host's memory, or whom the kernel killed and how much it held."""
    if name == "oom.killed":
        return _killed(around)
    found = _integers(said, {"requested_bytes": r"tried to allocate (\d+) bytes"})
    found |= _sizes(said, {"requested_bytes": r"Unable to allocate SIZE"})
    if "requested_bytes" not in found:
        return Figures(found)
    return Figures(found, f"{human(found['requested_bytes'])} requested at once")


def _killed(said: str) -> Figures:
    found: Numbers = {}
    match = re.search(r"Kill(?:ed)? process (\d+),? \(?([^)\s,]+)\)?", said)
    if match:
        found |= {"pid": int(match[1]), "name": match[2]}
    for key, word in (
        ("virtual_bytes", "total-vm"),
        ("resident_bytes", "anon-rss"),
        ("shared_bytes", "shmem-rss"),
    ):
        if counted := re.search(word + r":([\d,]+)kB", said):
            found[key] = int(counted[1].replace(",", "")) * KIB
    if usage := re.search(r"memory: usage (\d+)kB, limit (\d+)kB", said):
        found |= {"used_bytes": int(usage[1]) * KIB, "limit_bytes": int(usage[2]) * KIB}
    cgroup = "emory cgroup" in said or "CONSTRAINT_MEMCG" in said
    if "pid" in found or cgroup:
        found["by"] = "cgroup" if cgroup else "system"
    if "pid" not in found:
        return Figures(found)
    held = f" with {human(found['resident_bytes'])} of RAM" if "resident_bytes" in found else ""
    shared = found.get("shared_bytes", 0)
    held += f" and {human(shared)} of shared memory" if shared > GIB else ""
    limit = f" of {human(found['limit_bytes'])}" if "limit_bytes" in found else ""
    whose = f"the limit{limit} of its container or job" if cgroup else "the machine's RAM"
    then = (
        "a higher limit (docker run --memory, Kubernetes resources.limits.memory, Slurm --mem)"
        if cgroup
        else "end other processes that use RAM"
    )
    return Figures(
        found,
        f"RAM, not GPU memory: the kernel killed process {found['pid']} ({found['name']}){held}; {whose} was full",
        then + "; fewer DataLoader workers, a smaller prefetch_factor, weights loaded once per machine (mmap)",
    )


# --- versions and architectures ---------------------------------------------------------------------------------------


def cuda_version(number: int) -> str:
    """CUDA's number as a version: 12040 is 12.4, 9000 is 9.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


# The first Linux driver of each major version of CUDA: NVIDIA, CUDA compatibility, minor version compatibility.
_DRIVERS = {11: "450", 12: "525", 13: "580"}


def _driver(name: str, said: str, around: str) -> Figures:
    """Which CUDA the driver serves."""
    del name, around
    found = _integers(said, {"driver_cuda": r"\(found version (\d{4,5})\)"})
    if "driver_cuda" not in found:
        return Figures()
    version = cuda_version(found["driver_cuda"])
    found = {"driver_cuda": version}
    major = int(version.split(".")[0])
    newest = max(_DRIVERS)
    older = f"a torch wheel for CUDA {major}" if major >= 11 else f"an old torch (CUDA {major} has no wheels today)"
    return Figures(
        found,
        f"the driver supports CUDA up to {version}, torch's CUDA is newer",
        f"update the driver (CUDA 12 needs {_DRIVERS[12]} or newer, CUDA {newest} {_DRIVERS[newest]}), or install "
        f"{older}",
    )


def _versions(name: str, said: str, around: str) -> Figures:
    """Two versions that do not go together: of the driver's halves, of CUDA's toolkit and torch's, of cuDNN."""
    for pattern, one, other, sentence in _PAIRS.get(name, ()):
        if match := re.search(pattern, around, re.IGNORECASE | re.DOTALL):
            first, second = (re.sub(r",\s*", ".", group.strip("()")) for group in match.groups()[:2])
            mixed = name == "nvml.mismatch" and are_mixed_packages(first, second)
            return Figures({one: first, other: second}, sentence.format(first, second), ONE_VERSION if mixed else "")
    if name == "nvml.mismatch" and (match := re.search(r"NVML library version: ([\d.]+)", around)):
        return Figures({"library": match[1]}, f"libraries of driver {match[1]}, kernel module of another")
    del said
    return Figures()


_PAIRS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "nvml.mismatch": (
        (
            r"client has the version ([\d.]+\d).{0,60}kernel module has the version ([\d.]+\d)",
            "library",
            "module",
            "libraries of driver {}, kernel module of {}",
        ),
        (
            r"kernel version ([\d.]+\d) does not match DSO version ([\d.]+\d)",
            "module",
            "library",
            "kernel module of driver {}, libraries of {}",
        ),
    ),
    "nvcc.mismatch": (
        (
            r"detected CUDA version \(([\d.]+)\).{0,80}compile\s*PyTorch \(([\d.]+)\)",
            "toolkit",
            "torch_cuda",
            "nvcc is of CUDA {}, torch of CUDA {}",
        ),
        (
            r"Installed CUDA version ([\d.]+) does not match the version torch was compiled with ([\d.]+\d)",
            "toolkit",
            "torch_cuda",
            "nvcc is of CUDA {}, torch of CUDA {}",
        ),
    ),
    "cudnn.version": (
        (
            r"compiled\s+against (\(\d+, ?\d+, ?\d+\)) but found runtime version (\(\d+, ?\d+, ?\d+\))",
            "wanted",
            "found",
            "torch was built for cuDNN {}, {} was loaded",
        ),
        (
            r"Loaded runtime CuDNN library: ([\d.]+) but source was compiled with: ([\d.]+\d)",
            "found",
            "wanted",
            "cuDNN {} was loaded, the program was built for {}",
        ),
    ),
    "xformers.setup": (
        (
            r"PyTorch ([\d.]+\S*) with CUDA \d+ \(you have ([\d.]+[^)\s]*)\)",
            "wanted",
            "found",
            "xformers was built for torch {}, {} is installed",
        ),
    ),
    "quant.dtype": (
        (
            r"Minimum capability: (\d+)\. Current capability: (\d+)",
            "minimum_capability",
            "capability",
            "the kernel needs compute capability {}, the GPU has {} (written without the point)",
        ),
    ),
}


def _capability(name: str, said: str, around: str) -> Figures:
    """The GPU's architecture, and those of the wheel."""
    del name
    found = _words(
        around,
        {
            "device": r"(?:GPU ?\d+ |^|[\s:])((?:NVIDIA|Tesla|GeForce|Quadro|GRID|RTX|GTX)[\w -]*?) (?:with CUDA "
            "capability|which is of)",
            "architecture": r"CUDA capability (sm_\d+\w?)",
        },
    )
    if "architecture" not in found and (
        match := re.search(r"of (?:cuda )?capability (\d+)\.(\d+)", around, re.IGNORECASE)
    ):
        found["architecture"] = f"sm_{match[1]}{match[2]}"
    if listed := re.search(r"supports CUDA capabilities ((?:sm_\d+\w?[ ,]*)+)", around):
        found["wheel_architectures"] = re.findall(r"sm_\d+\w?", listed[1])
    if "architecture" not in found:
        return Figures(found)
    del said
    has = found.get("wheel_architectures")
    wheel = f", torch has code for {has[0]} to {has[-1]}" if has else ""
    return Figures(
        found,
        f"{found.get('device', 'the GPU')} is {found['architecture']}{wheel}",
        _wheel_for(int(re.sub(r"\D", "", found["architecture"]))),
    )


def _wheel_for(architecture: int) -> str:
    """Which wheels have an architecture, by torch's release table (RELEASE.md) and its issue 157517."""
    if architecture >= 100:
        return "install torch 2.7 or newer from a wheel for CUDA 12.8 or newer (for sm_103 and sm_121 CUDA 13)"
    if architecture < 50:
        return "install a torch older than 2.0 or build torch for this GPU; better: use a newer GPU"
    if architecture < 70:
        return "install a torch wheel for CUDA 12.6 or older (CUDA 11.8 until torch 2.7): newer wheels drop this GPU"
    if architecture < 75:
        return "install a torch wheel for CUDA 12: wheels for CUDA 13 drop this GPU"
    return "install a newer torch for a CUDA that the driver supports"


# --- the kernel's log, ranks, kernels ---------------------------------------------------------------------------------


def _xid(name: str, said: str, around: str) -> Figures:
    """Which GPU, by its address on the bus, and which process."""
    number = name.split(".")[1]
    if not number.isdigit():
        found = _integers(said, {"xid": r"Xid[^\d]{0,20}(?:\(PCI:[0-9a-f:.]+\): )?(\d+)"})
        return Figures(found)
    found = {"xid": int(number)}
    line = re.search(rf"Xid \((?:PCI:)?([0-9a-f:.]+)\): {number}\b(.{{0,200}})", said, re.IGNORECASE)
    line = line or re.search(
        rf"Xid \((?:PCI:)?([0-9a-f:.]+)\): \d+\b(.{{0,160}}?caused by previous Xid {number}\b)", around, re.IGNORECASE
    )
    if line is None:
        return Figures(found)
    rest = line[2].split("NVRM:")[0]
    found["bus"] = line[1].lower()
    found |= _integers(rest, {"pid": r"pid='?(\d+)"}) | _words(rest, {"process": r"name='?([^\s,'<>]+)"})
    if action := re.search(r"recovery action changed from \S+ \(([^)]*)\) to \S+ \(([^)]*)\)", rest, re.IGNORECASE):
        found |= {"recovery_action": action[2]}
    whom = f" in process {found['pid']}" if "pid" in found else ""
    whom += f" ({found['process']})" if whom and "process" in found else ""
    asks = f", recovery action: {found['recovery_action']}" if "recovery_action" in found else ""
    return Figures(found, f"GPU {found['bus']}{whom}{asks}")


def _ranks(name: str, said: str, around: str) -> Figures:
    """Which rank, which collective, how long it waited; who came to the rendezvous; who ended first."""
    found = _integers(
        around,
        {
            "rank": r"\brank\s*: (\d+)" if name == "dist.child" else r"(?:\[ ?Rank |\brank\s*: )(\d+)",
            "local_rank": r"local_rank: (\d+)",
            "sequence": r"SeqNum=(\d+)",
            "elements": r"NumelIn=(\d+)",
            "joined": r"(\d+)/\d+ clients joined",
            "expected": r"\d+/(\d+) clients joined",
            "port": r"\bport:? ?(\d{2,5})\b",
            "pid": r"\(pid: (\d+)\)",
        },
    )
    if match := re.search(r"exitcode\s*: (-?\d+)", around):
        found["exit_code"] = int(match[1])
    if match := re.search(r"Timeout\(ms\)=(\d+)", around):
        found["limit_s"] = int(match[1]) / 1000
    if match := re.search(r"ran for (\d+) milliseconds", around):
        found["waited_s"] = int(match[1]) / 1000
    found |= _words(around, {"collective": r"OpType=(\w+)"})
    del said
    return Figures(found, _ranks_say(found))


def _ranks_say(found: Numbers) -> str:
    if "collective" in found:
        rank = f"rank {found['rank']} waited" if "rank" in found else "a rank waited"
        waited = f" {found['waited_s']:.0f} s" if "waited_s" in found else ""
        which = f" (number {found['sequence']})" if "sequence" in found else ""
        return f"{rank}{waited} in {found['collective']}{which} for missing ranks"
    if "joined" in found:
        return f"{found['joined']} of {found['expected']} processes joined"
    if "exit_code" in found:
        who = f"rank {found['rank']}" if "rank" in found else "a rank"
        who = f"local rank {found['local_rank']}" if "local_rank" in found and "rank" not in found else who
        signal = f" (signal {-found['exit_code']})" if found["exit_code"] < 0 else ""
        return f"{who} failed first with exit code {found['exit_code']}{signal}"
    return f"port {found['port']}" if "port" in found else ""


def _duplicate(name: str, said: str, around: str) -> Figures:
    del name, said
    match = re.search(r"rank (\d+) and rank (\d+) both on CUDA device ([0-9a-f]+)", around)
    if match is None:
        return Figures()
    ranks = [int(match[1]), int(match[2])]
    return Figures({"ranks": ranks, "bus": match[3]}, f"ranks {ranks[0]} and {ranks[1]} both use GPU {match[3]}")


def _shared_memory(name: str, said: str, around: str) -> Figures:
    """Return what a kernel wants inside a multiprocessor, and what there is."""
    del name, said
    match = re.search(r"Required: (\d+),? Hardware limit: ?(\d+)", around)
    if match is None:
        return Figures()
    wanted, limit = int(match[1]), int(match[2])
    return Figures(
        {"required_bytes": wanted, "limit_bytes": limit},
        f"the kernel needs {human(wanted)} of shared memory per multiprocessor, the GPU has {human(limit)}",
    )


def _index(name: str, said: str, around: str) -> Figures:
    """The index or label that was out of range."""
    del name, around
    found = _integers(
        said, {"index": r"(?:index|Target) (-?\d+) is out of bounds", "size": r"dimension \d+ with size (\d+)"}
    )
    if "index" not in found:
        return Figures(found)
    size_ = f", dimension size {found['size']}" if "size" in found else ""
    return Figures(found, f"index {found['index']}{size_}")


# --- shared memory ----------------------------------------------------------------------------------------------------

# By the system's error behind a segment of shared memory: what it says, and the steps of NCCL and of torch; the text's
# own where it is empty.
_SEGMENTS: tuple[tuple[str, str, str, str], ...] = (
    (r"No space left on device|\(28\)", "/dev/shm is full", "", ""),
    (
        r"No such file or directory|\(2\)",
        "the segment is not there: the process that made it has ended, or has another /dev/shm",
        "give ranks of one machine one /dev/shm (one container, or --ipc=host), or set NCCL_SHM_DISABLE=1; where a "
        "rank ended first, its log names the cause",
        "look for the process that ended first; a process that sends a tensor has to live until it is received "
        "(torch.multiprocessing.set_sharing_strategy('file_descriptor') keeps it)",
    ),
    (
        r"Too many open files|\(24\)",
        "too many files are open",
        "ulimit -n 65536",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        r"Permission denied|\(13\)",
        "/dev/shm may not be written",
        "ls -ld /dev/shm has to show drwxrwxrwt: sudo chmod 1777 /dev/shm",
        "ls -ld /dev/shm has to show drwxrwxrwt: sudo chmod 1777 /dev/shm",
    ),
    (
        r"Cannot allocate memory|\(12\)",
        "the memory limit of the container or job is reached, which /dev/shm counts against",
        "a higher memory limit of the container or job, or fewer processes; free -h and df -h /dev/shm",
        "a higher memory limit of the container or job, or fewer workers; free -h and df -h /dev/shm",
    ),
)


def _segment(name: str, said: str, around: str) -> Figures:
    """Which error of the system stopped a segment of shared memory."""
    del around
    for pattern, sentence, of_nccl, of_torch in _SEGMENTS:
        if re.search(pattern, said[:400]):
            return Figures({}, sentence, of_nccl if name == "nccl.shared_memory" else of_torch)
    return Figures()


# --- containers -------------------------------------------------------------------------------------------------------

# What NVIDIA's container toolkit says behind the kind of its error, what that is, and the step on the host; the first
# that is there decides.
_CONTAINER: tuple[tuple[str, str, str], ...] = (
    (
        r"WSL environment detected but no adapters",
        "WSL shows the container no GPU",
        "update NVIDIA's driver in Windows, then wsl --shutdown; nvidia-smi inside WSL has to list the GPU first",
    ),
    (
        r"unknown device|invalid device ordinal|MIG.{0,40}(not found|invalid)|device id .{0,60}not found",
        "the GPU that was asked for does not exist on this host",
        "nvidia-smi -L on the host lists the GPUs and MIG instances; name one of these in --gpus, "
        "NVIDIA_VISIBLE_DEVICES "
        "or the compose file's device_ids",
    ),
    (
        r"cgroup|device (rules|filter)|BPF_",
        "the toolkit could not add the GPU to the container's cgroup",
        "install a newer nvidia-container-toolkit; for rootless or nested containers set no-cgroups = true in "
        "/etc/nvidia-container-runtime/config.toml, or use CDI: sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml",
    ),
    (
        r"unsatisfied condition: ?(brand|arch)",
        "the image asks for another kind of GPU ({})",
        "use an image without that requirement; NVIDIA_DISABLE_REQUIRE=1 skips the check",
    ),
    (
        r"unsatisfied condition",
        "the image asks for more than the host's driver has ({})",
        "update the host's driver, or use an image of an older CUDA; NVIDIA_DISABLE_REQUIRE=1 skips the check",
    ),
    (
        r"driver not loaded|NVML.{0,20}not loaded",
        "the driver's module is not loaded on the host",
        "sudo modprobe nvidia on the host; nvidia-smi has to work there first",
    ),
    (
        r"(driver|nvml) (rpc )?error: .{0,40}(failed to process request|timed out|timeout)|rpc error",
        "the host's driver did not answer",
        "nvidia-smi on the host has to answer first, also from its root account; where it hangs, reboot the host",
    ),
    (
        r"file creation failed: \S+: file exists|: file exists",
        "the image contains files of NVIDIA's driver",
        "build the image without the driver's libraries (libcuda.so.1, libnvidia-ml.so.1): they come from the host, "
        "and "
        "an image that was committed from a container with GPUs keeps them",
    ),
    (
        r"ldcache|ldconfig",
        "ldconfig did not run inside the container",
        'set ldconfig = "@/sbin/ldconfig" (Ubuntu: "@/sbin/ldconfig.real") in '
        "/etc/nvidia-container-runtime/config.toml",
    ),
    (
        r"(open|stat|path|mount operation|load program).{0,200}(permission denied|operation not permitted)|"
        r"insufficient permissions",
        "the toolkit may not open or mount a file of the driver",
        "look at the file that is named: SELinux or AppArmor, a file system without mknod or setuid, or the user in "
        "/etc/nvidia-container-runtime/config.toml keep the toolkit from it",
    ),
    (
        r"libnvidia-ml\.so|libcuda\.so|load library failed|Could not find any nv files|no such device",
        "the host has no NVIDIA driver that the toolkit can find",
        "install the driver on the host; nvidia-smi has to work there first. An engine from snap, or Docker Desktop's "
        "own "
        "virtual machine, does not see the host's driver",
    ),
    (
        r"(stat|open|mount operation).{0,200}no such file or directory",
        "a file of the driver is not there",
        "sudo nvidia-modprobe -u -c 0 makes the device nodes; after an update of the driver sudo nvidia-ctk cdi "
        "generate "
        "--output=/etc/cdi/nvidia.yaml, and sudo systemctl restart docker",
    ),
)


def _container(name: str, said: str, around: str) -> Figures:
    """Return what NVIDIA's container toolkit says behind the kind of its error."""
    del name
    text = said if "nvidia-container" in said or "unsatisfied" in said else around
    for pattern, sentence, then in _CONTAINER:
        if re.search(pattern, text, re.IGNORECASE):
            condition = re.search(r"unsatisfied condition: ?(\w+ ?[<>=!]+ ?[\w.]+)", text)
            found = {"condition": condition[1]} if condition else {}
            return Figures(found, sentence.format(condition[1] if condition else "see the message"), then)
    return Figures()


_READERS: dict[str, Callable[[str, str, str], Figures]] = {
    "container.cli": _container,
    "nccl.shared_memory": _segment,
    "shm.open": _segment,
    "oom.vllm": _vllm,
    "oom.cpu": _host,
    "oom.host": _host,
    "oom.killed": _host,
    "oom.": _memory,
    "cuinit.too_old": _driver,
    "nvml.mismatch": _versions,
    "nvcc.mismatch": _versions,
    "cudnn.version": _versions,
    "xformers.setup": _versions,
    "quant.dtype": _versions,
    "cuda.capability": _capability,
    "architecture.": _capability,
    "xid.": _xid,
    "nccl.duplicate": _duplicate,
    "process.killed": _ranks,
    "crash.": _ranks,
    "nccl.": _ranks,
    "dist.": _ranks,
    "compile.resources": _shared_memory,
    "assert.": _index,
}
