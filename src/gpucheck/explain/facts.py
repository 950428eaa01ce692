"""Facts that a pasted text states about its system, and the advice that depends on them. Pure.

The matched text says what failed. Other lines say where: the system, torch, the GPU, the launcher and the packages
involved. A fact that is not stated stays empty, and gives no advice.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpucheck import messages
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Certainty, Condition
from gpucheck.explain.figures import OFFLOAD
from gpucheck.explain.text import BACKEND, SMALLER, Platform, marked


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a paste states.

    `torch` is the version without its build; `build` is `cpu`, `cu128`, `rocm6.4` or the like. `capabilities` are the
    GPUs' compute capabilities, derived from their names if needed. `architectures` are those that torch has code for.
    `packages` are the packages in the traceback, and `names` the keys of `_NAMED` that match a line. `gfx` is the AMD
    GPU that code is missing for.

    `needs` is the major CUDA version in the name of a missing library. `asked` and `wanted` are the version and build
    requested from pip, `listed` the oldest and newest release that pip found. `free` is the free share of memory.
    `checkout` is a package whose sources are in the working folder. `operators` is the reason why xFormers has no
    operator. `tried` are the variables that were already set. `text` is the paste in lower case, without colours and
    quotes.
    """

    platforms: frozenset[Platform] = frozenset()
    torch: str = ""
    build: str = ""
    driver_cuda: str = ""
    python: str = ""
    processor: str = ""
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    gfx: str = ""
    needs: str = ""
    asked: str = ""
    wanted: str = ""
    listed: tuple[fixes.Release, ...] = ()
    free: float | None = None
    checkout: str = ""
    operators: str = ""
    tried: frozenset[str] = frozenset()
    text: str = ""

    def holds(self, pattern: str) -> bool:
        """Return whether the paste holds a pattern, which may be a name of `_NAMED`."""
        return re.search(_NAMED.get(pattern, pattern), self.text, re.IGNORECASE) is not None

    @property
    def vendor(self) -> str:
        """Return the vendor of all named GPUs, or an empty string for several or none."""
        named = self.names & {"nvidia", "amd", "intel"}
        return next(iter(named)) if len(named) == 1 else ""

    @property
    def has_code(self) -> bool | None:
        """Return whether torch has code for every GPU in the paste; None if unknown."""
        wanted = [value for value in map(fixes.number, self.capabilities) if value is not None]
        codes = self.architectures
        if not codes and (release := fixes.release_of(self.torch)) is not None and self.build.startswith("cu"):
            published = fixes.BUILDS.get(self.build)
            built = published[0] if published else fixes.CODE_OF_TORCH_1.get(self.build[:4], ())
            # Some of the older wheels have code for GPUs before these too.
            codes = tuple(f"sm_{code}" for code in built if release >= (2, 7) or min(wanted, default=0) >= 50)
        if not wanted or not codes:
            return None
        # PTX of an older generation alone proves neither: cuBLAS and cuDNN have none for a newer GPU.
        sure = [code for code in codes if code[:2] == "sm" or any(code[8:-1] == str(value)[:-1] for value in wanted)]
        runs, surely = (all(any(fixes.runs_on(c, value) for c in some) for value in wanted) for some in (codes, sure))
        return runs if runs == surely else None

    @property
    def compiled(self) -> str:
        """Return the installed package whose compiled file is in the text; empty if only torch's files are."""
        return next((name for name in _COMPILED.findall(self.text) if name not in (*_TORCHS, "nvidia")), "")

    @property
    def extension(self) -> str:
        """Return the package with its own kernels that is nearest to the error, or an empty string."""
        if named := re.findall(r"no kernel image[^\n]{0,120}[/-](flashinfer|flash_attn|xformers)-\d", self.text):
            return str(named[0])
        return next((name for name in reversed(self.packages) if name not in _TORCHS), "")


_VERSION = r"v?(\d+\.\d+(?:\.\d+)?)(?:\.post\d+|\.dev\d+|a0|rc\d)?(?:(?:\+| \+ ?(?=cu\d))(?:git\w*\.)?([\w.]+))?"
# Skips versions that a message tells the user to install.
_TORCH = re.compile(
    r"(?<!install )(?<![\w-])(?:py)?torch(?:\.__version__| version)?(?: is| was)?(?:[ \t:=(-]|->){1,24}"
    + _VERSION
    + r"(?![\w.]*/)"
)
# A version with a build, without the word torch beside it. Other packages with builds have versions that begin with 0.
_BUILT = re.compile(r"(?<![\w.-])([12]\.\d+\.\d) ?\+ ?(cu\d{3}|cpu|rocm[\d.]+|xpu)\b")
# Words before the version that was requested from pip, uv or poetry.
_ASKED = r"(?:requirement|distribution found for|no version of|distribution|candidates for) "
_ONE = {
    "driver_cuda": re.compile(r"cuda version: (\d+\.\d+)"),
    "python": re.compile(r"python(?: version)?[:= ]{1,3}(\d\.\d+)"),
    "processor": re.compile(r"\b(aarch64|arm64)\b"),
    "gfx": re.compile(
        # The GPU as the system names it comes before other numbers, which may be those that are supported.
        r"(?:\A[\s\S]*?(?:amdhsa--|(?:models and configuration: |\bname: )[^\n]{0,60}\W|not (?:list|support) )(?=gfx)|"
        r"(?:gpu arch\w*|\bfor|device|your|targets|xtx?|\bon|gpu_type|amdgpu versions|amdgpu \[\d\])\W{1,4})"
        r"(gfx(?!\w*x\b)\d{3,4}\w?)\b"
    ),
    "needs": re.compile(r"lib(?:cudart|cublas\w*|cufft|nvrtc|cusparse|cupti)\.so\.(1\d)\b"),
    "asked": re.compile(_ASKED + r"torch ?(?:==|\() ?v?(\d+\.\d+(?:\.\d+)?)"),
    "wanted": re.compile(rf"(?:{_ASKED}torch\w*==[\d.]+\+|looking in indexes: \S*/whl/)((?:cu|cpu|rocm|xpu)[\d.]*)"),
}
_CAPABILITY = re.compile(
    r"(?:(?:cuda |compute )?capability (?:\(cc\) )?(?:of )?|cuda capability sm_)(\d{1,2}\.\d|\d{2,3})\b"
)
# Names of NVIDIA GPUs and their compute capability ("NVIDIA, CUDA GPUs"). Longer names come before their prefixes.
_GPUS = (
    (r"gb10\b|dgx spark", "12.1"),
    (r"(?:rtx|geforce) ?50[5-9]0|\b50[5-9]0 (?:ti|laptop)|rtx ?pro [2-6]\d00 blackwell|rtx ?pro 6000", "12.0"),
    (r"\bjetson (?:agx )?thor", "11.0"),
    (r"\bg?b300\b", "10.3"),
    (r"\bg?b200\b", "10.0"),
    (r"\bg?h[12]00\b|\bh20\b|\bh800\b", "9.0"),
    (r"rtx ?40[5-9]0|\b40[5-9]0 gpu\b|\bl40s?\b|\bl4\b|rtx ?6000 ada", "8.9"),
    (r"\borin\b", "8.7"),
    (r"rtx ?30[5-9]0|\b30[5-9]0 gpu\b|rtx ?a\d000|\ba10g?\b|\ba40\b", "8.6"),
    (r"\ba100\b|\ba800\b|\ba30\b", "8.0"),
    (r"rtx ?20[5-9]0|gtx ?16[3-6]0|titan rtx|quadro rtx|\bt4\b", "7.5"),
    (r"\bxavier\b", "7.2"),
    (r"\bv100\b|titan v\b", "7.0"),
    (r"gtx ?10[3-8]0|\btesla p4\b|\bp40\b", "6.1"),
    (r"\bp100\b", "6.0"),
    (r"gtx ?(?:9[5-8]0|750)", "5.0"),
)
# Radeons and the number of their target ("System requirements" of ROCm).
_RADEONS = "9070:1201 9060:1200 7900:1100 7[78]00:1101 7600:1102 6[89][05]0:1030 67[05]0:1031 66[05]0:1032 5[67]00:1010"
_CODES = (
    re.compile(
        r"(?:supports cuda capabilities|get_arch_list\(\)\W{0,4}|arch(?:itecture)? list\W{1,4})"
        r"((?:[ ,]{0,2}(?:sm|compute)_\d+[af]?)+)"
    ),
    re.compile(r"^ *- (\d+\.\d) which supports hardware cc", re.MULTILINE),
    re.compile(r"supported by this version of pytorch is\s+\((\d+\.\d)\) - \((\d+\.\d)\)"),
)
# A frame of a traceback: the path of its file.
_FRAME = re.compile(r"file ([^\n,]+?\.py), line \d+|^\W{0,3}(\S+\.py):\d+ in ", re.MULTILINE)
_NAMED = {
    "ray": r"\bray::|\bray\.exceptions|\(raylet\)|ray_distributed_executor|\braytaskerror",
    "torchrun": r"\btorchrun\b|torch\.distributed\.(?:run|launch|elastic)",
    "container": r"\bdocker\b|/\.dockerenv|\bkubectl\b|\bpodman\b|/workspace/",
    "kubernetes": r"\bkubectl\b|\bkubernetes\b|\bk8s\b|kube-?ray|volumemounts|emptydir|apiversion: ?v1",
    "jetson": r"\btegra\b|\bjetson\b|\bjetpack\b|\bl4t\b|\borin\b|capabilit[^\n(]{0,40}\b(?:5\.3|7\.2|8\.7)\b",
    "cluster": r"\bhpc\b|\bslurm|\bsbatch\b|\bmodule load\b|\bloading th\w+ modules\b|\blogin node\b",
    # An installed package that compiles as it runs.
    "running": r"\A(?![\s\S]*(?:setup\.py|wheel|pip install|cmake))[\s\S]*packages[/\\][\w/\\]+\.py, line"
    r"[\s\S]*cuda_home",
    "smi": r"driver version: \d{3}\.\d[\s\S]{0,2000}\dmib */ *\d+mib",
    "image_build": r"(?m)^#\d+ (?:\d+\.\d+|\[[\w/ .-]+\]) |^step \d+/\d+ : run ",
    "own_kernel": r"compil\w+ (?:\w+ ){0,5}kernel|kernel (?:\w+ ){0,4}(?:compiled|built)|custom kernel|config_dxg",
    "frozen": r"pyinstaller|\bpyimod\d|整合包|(?<![\w\\/:.])torch\\\w+(?:\\\w+)*\.py:\d+: userwarning",
    "linux": r"\A(?![\s\S]*\b[a-z]:\\)[\s\S]*/(?:home|usr|root|opt)/",
    "own_code": r"trust_remote_code ?= ?true|transformers_modules",
    "pixi": r"\.pixi[/\\]|\bpixi (?:add|install|run)",
    # The forms of messages of torch before 2.1.
    "old_torch": r"\(gpu \d; [\d.]+ [gm]ib total|optype=\w+, timeout\(|[/\\]thc[/\\]",
    "podman": r"\busing podman\b|\bpodman(?:-compose| run| exec| version)",
    "desktop": r"\bdocker desktop\b|start docker compose application|docker_engine|dockerdesktop",
    "nvidia": r"\b(?:geforce|quadro|rtx ?(?:pro )?\d{4}|gtx ?\d{3,4}|tesla [a-z]\d|[ahb][12]00|l40s?)\b|"
    r"driver version: \d{3}\.|(?<!have an )\bnvidia (?:gpu|titan|gb?\d)",
    # This excludes a processor's integrated graphics.
    "amd": r"(?<!w/ )(?<!with )\bradeon\b(?!(?: tm)? graphics| \d{3}m)|"
    r"\bamd instinct\b|\bmi[123]\d\dx?\b|\bgfx\d{3,4}\w?\b|\brx ?[5679]\d00\b|"
    r"\b(?:amd|r9) \d{3}x?\b",
    "intel": r"\bintel\b.{0,8}\b(?:arc|iris(?:\W+r)?\W+xe|data center gpu)\b|\barc\W{1,2}(?:tm\W{1,2})?[ab]\d{3}\b",
    "shm": r"--shm-size[= ]?\d+ ?g|ipc[=: ]host|/dev/shm\b.{0,30} \d{2,} ?gi?b?\b|"
    r"\b(?:not|no|without) (?:in |using )?(?:an? )?(?:docker|container)",
    "sharing": r"\b(?:put|tried|added|used)\b[^.]{0,60}\btorch\.multiprocessing\.set_sharing_strategy",
    "reboot": r"\n\W{0,3}(?:sudo )?reboot\W{0,3}\n|"
    r"\b(?:rebooted|rebooting|restarted (?:the|my) (?:pc|machine|computer|system|server))\b",
    "redistributable": r"(?<!not )installed[^\n.]{0,60}redist|redist\w*[^\n.]{0,40}(?:is|was|already|re) ?installed",
    "torchvision": r"\btorchvision\b|\bultralytics\b",
    "torchaudio": r"\btorchaudio\b|\bpyannote\b|\bwhisperx\b|\bcomfyui",
    "uv": r"\buv (?:pip|sync|add|run|lock|tool)\b|\btool\.uv\b",
    "project": r"\buv (?:sync|add|run|lock)\b|\btool\.uv\b|\bpoetry (?:add|install|lock|update|issue)\b",
    "portable": r"python_embeded",
    "webui": r"stable-diffusion-webui|webui-user|\bwebui\.sh|\bload forge\b",
    "powershell": r"\bps [a-z]:\\|\$env:|\bpowershell\b",
    "old_llvm": r"sm_\d+\w? is not a recognized processor",
    "kepler": r"\bgt ?[67][1-4]0m?\b|\bgtx ?(?:6[5-9]0|7[678]0)(?:m|ti)?\b|\btesla k(?!80)\d+|"
    # The excluded ones are Maxwell GPUs, or the K80, which wheels for CUDA 11.8 support.
    r"\bquadro k(?!620|1200|2200)\d+|"
    r"capability (?:sm_|\(cc\) |of )?3\.?[0-5]\b",
    "suspend": r"\bsuspend(?:s|ed|ing)?\b|powermanagement|powermgmt|\b(?:enters?|from) standby\b|"
    r"\bafter (?:a )?(?:sleep|hibernat\w*|resum\w+|standby|wak\w+)\b",
    "conda": r"\bconda(?:-forge|:\w| (?:install|env\w*|create|activate|list|update)\b)",
    "dockerd": r"docker default runtime|\bdockerd\b|daemon\.json",
    "nccl_info": r"\bnccl info\b",
    "server": r"\bvllm (?:serve|version)|enginecore|\bvllmworker|\bworker_tp\d|multiproc_executor|"
    r"sglang[./\\](?:srt|launch)|"
    r"vllm[./\\](?:v1|worker|engine|entrypoints|executor)|text[-_]generation[-_](?:launcher|server)|tritonserver|"
    r"\blmdeploy\b",
    "function": r"invalid device function(?! at \S*(?:conda-bld/pytorch|/thc/))",  # torch's own files
    "kernels": r"(?:flashinfer|flash_attn|xformers|sgl_kernel|mamba_ssm|causal_conv1d|gsplat|mmcv|"
    r"exllama\w*|nunchaku)[/\\]|"
    r"\bpunica|lora[/\\]ops|vllm[/\\]_custom_ops|vllm[._]_c\b|\b(?:topk|topp|batch(?:prefill|decode))\w* failed with",
    "vllm": r"vllm[/\\]|vllmworker|\bvllm (?:serve|version|api)|llm_engine\.py|no module named vllm|enginecore|"
    r"pip3? (?:install|show) [^\n]{0,30}\bvllm\b|from vllm\b|vllm\.entry|gpu_memory_utilization",
    "sglang": r"sglang[/\\.]|\bsglang\b|\bsgl[-_]kernel",
    "alloc_conf": r"\bpytorch_alloc_conf\b",
    "jax": r"\bjax(?:lib)?\b|\bxla(?: runtime|\.gpu)|\bxla_|external/(?:org_tensorflow|xla)/",
    "tf": r"\btensorflow\b|\bkeras\b",
    "pytorch": r"\b(?:py)?torch\b",
    "no_driver": r"nvidia driver version: no cuda|gpu models and configuration: no cuda",
    "loading": r"load_model|load_weights|model_loader|weight_loader|create_weights|_initialize_model",
    "inductor": r"_inductor|torchinductor|_dynamo|torch\.compile|inductorerror|backendcompiler|loweringexc|cppcompile",
    "triton": r"passmanager|mlir pass|triton[./\\](?:compiler|runtime|backends)|triton error",
    "ipv6": r"errno: 97\b",
    "tcp": r"broken pipe|connection (?:reset|closed|refused|timed)|got 0 bytes|recvvalue|sendbytes",
    "pinned": messages.PINNED + r"|\bpin_memory\(\)",
    "allocator": messages.ALLOCATOR,
    "runtime": r"(?:runtime|accelerator)error: cuda error: out of memory",
    "ptxas": r"sm_1\d\d\w? is not defined for option",
    "code": r"no kernel image|invalid device function",
    # A build calls a compiler, or names an architecture that newer compilers dropped.
    "build": r"\bnvcc(?: fatal| -)|bin/nvcc|\bcmake(?: error|lists)|\bg?make(?:\[\d+\])?: |"
    r"(?:architecture|value) (?:compute|sm)_(?:[1-6]\d|70|72)\b",
    "no_triton": r"(?:satisfies the requirement|distribution found for) triton\b",
    "bnb": r"bitsandbytes[/\\]|cuda[ _]setup:",
    # A compiled program: nothing in the paste comes from Python.
    "program": r"\A(?![\s\S]*(?:torch|python|\.py\b|c10|jax|tensorflow|cupy|triton))"
    r"[\s\S]*(?:, name=\w|\bggml|\bllama[-_.](?:cpp|cli|server)|\.cu:\d)",
    "native": r"\bggml|llama[-_.](?:cpp|cli|server)|whisper\.cpp|\bcmake\b|\bnvcc\b",
    "llama": r"\bggml|llama\.go:|\bllama_(?:model|context|kv|init)|\bcuda\d buffer|\bllama[-_.](?:cpp|cli|server)|"
    r"\bollama\b|"
    r"koboldcpp|lm[- ]?studio",
    "accelerate": r"\baccelerate (?:launch|config)|accelerate[/\\](?:commands|state)",
}
_COMPILED = re.compile(
    r"(?:-packages|\.\.\.)[/\\](\w+?)(?:_\d)?(?:_cuda|_c)?(?:[/\\][\w./\\-]*)?\.(?:cpython|abi3|cp3|so\b|pyd)"
)
# Reasons why xFormers has no operator, most decisive first: the title, its pattern, and the step.
_OPERATORS = {
    "xformers was built without its CUDA code": (
        r"wasnt buil[dt]",
        "the xformers of this torch (its release notes name it; python -m xformers.info shows what is built): pip "
        "install --no-deps xformers==VERSION; or pip uninstall xformers, torch's own attention does without",
    ),
    "xformers has no operator for this GPU": (
        "requires device with capability",
        "pip uninstall xformers: torch's own attention does without; or a newer xformers, where the GPU is newer",
    ),
    "xformers has no operator for the CPU, where the tensors are": (
        "device=cpu",
        'model.to("cuda") and the inputs too, where torch.cuda.is_available() is True; on the CPU run without xformers',
    ),
    "xformers has no operator for this data type or size of heads": (
        r"max\(query\.shape|dtype=torch",
        "x.half() or bfloat16 where the list names the type; else run the program without xformers (torch's attention "
        "takes heads of any size)",
    ),
}
# The version that the other GPUs of an AMD family run as.
_RELATIVES = {"gfx103": "10.3.0", "gfx110": "11.0.0", "gfx90c": "9.0.0"}
# Variables that a paste says were set, in a command or in a sentence.
_SET = re.compile(
    r"\b(?:i|we|ive|weve) [^.\n]{0,60}?(?=[a-z]\w+_\w+ ?= ?\S)([a-z]\w+_\w+)|"
    r"(?:export |environ\[|\bset |setx |env |-e |\$env:|(?<!rerunning )(?<!run )with |tried |using |"
    r"added |adding |already |\$ |&& )"
    r"([a-z]\w+_\w+)\]? ?= ?(?!false\b)\S"
    r"|^([a-z]\w+_\w+)=\S+ +(?:python|torchrun|accelerate|\./|\w+=)",
    re.MULTILINE,
)
# Messages of torch.compile suggest these variables, so they do not count as set.
_SUGGESTED = frozenset(("torch_logs", "torchdynamo_verbose"))
# Steps that a paste may report as done. A variable counts as done if it was set.
_STEPS = {
    "sharing": r".*set_sharing_strategy",
    "shm": r".*--shm-size",
    "reboot": r"(?:else |or )?reboot\b",
    "redistributable": r".*redistributable",
}
# Packages without kernels of their own, apart from torch. Frames in them do not point to an extension.
_TORCHS = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "functorch", "accelerate", "transformers", "diffusers", "deepspeed"),
        *("lightning", "pytorch_lightning", "ray", "tqdm", "peft", "trl", "numpy", "gradio", "starlette"),
        *("uvicorn", "triton"),
    )
)


def read(pasted: str, spaced: str) -> Facts:
    """Read the facts of a paste; `spaced` is the same without colours and prefixes."""
    text = re.sub("\x1b?\\[\\d{1,3}(?:;\\d{1,3})*m|[\"'`]|\\*\\*", "", pasted.lower())
    version, build = _torch(text)
    paths = [match[1] or match[2] for match in _FRAME.finditer(text)]
    frames = [_package(path) for path in paths]
    free = re.search(r"memory usage: (\d+) bytes free, (\d+) bytes total", text)
    singles = {name: match[1] for name, pattern in _ONE.items() if (match := pattern.search(text))}
    radeons = (name.split(":") for name in _RADEONS.split())
    singles.setdefault("gfx", next((f"gfx{target}" for name, target in radeons if re.search(rf"rx ?{name}", text)), ""))
    names = {name for name, pattern in _NAMED.items() if re.search(pattern, text, re.IGNORECASE)}
    names |= {"old_torch"} if (fixes.release_of(version) or (2, 1)) < (2, 1) else set()
    return Facts(
        platforms=marked(re.sub(r"(?<![\w:])/users/", "/home/", spaced) if "/users/" in pasted else spaced),
        torch=version,
        build=build,
        capabilities=_capabilities(text),
        architectures=_architectures(text),
        packages=tuple(filter(None, frames)),
        names=frozenset(names),
        free=int(free[1]) / max(int(free[2]), 1) if free else None,
        checkout=next((name for path, name in zip(paths, frames, strict=True) if name and "-packages" not in path), ""),
        operators=_operators(text),
        listed=_listed(text),
        tried=frozenset(name for pair in _SET.findall(text) for name in pair if name) - _SUGGESTED,
        text=text,
        **singles,
    )


def _torch(text: str) -> tuple[str, str]:
    """Return the version and the build of torch. The first version with a build takes precedence."""
    versions = re.findall(rf"\(you have {_VERSION}", text) or _TORCH.findall(text)
    versions = [pair for pair in versions if pair[1]] or _BUILT.findall(text) or versions
    version, build = versions[0] if versions else ("", "")
    build = build if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", build) else ""
    build = build or ("xpu" if re.search(r"xpu used to build pytorch: \d", text) else "")
    cuda = (
        r"(?:cuda used to build pytorch|cuda build|torch\.version\.cuda\)?|torch was compiled with|compile\s+pytorch)"
        r"[ \t:=(]+(none|n/a|\d+\.\d+)"
    )
    if not build and (built := re.search(cuda, text)):
        build = (
            f"cu{built[1].replace('.', '')}"
            if built[1][0].isdigit()
            else ""
            if re.search(r"rocm used to build pytorch: \d", text)
            else "cpu"
        )
    # The folder of the CUDA libraries that pip installed for torch.
    brought = re.search(r"nvidia[/\\](cu1\d)[/\\]lib", text)
    return version, build or (f"{brought[1]}0" if brought else "")


def _listed(text: str) -> tuple[fixes.Release, ...]:
    """Return the oldest and the newest release of torch that pip found."""
    found = re.search(r"torch\S* \(from versions: (\d[^)]*)\)", text)
    releases = sorted(
        (int(major), int(minor)) for major, minor in re.findall(r"(\d+)\.(\d+)\.\d+", found[1] if found else "")
    )
    return (releases[0], releases[-1]) if releases else ()


def _operators(text: str) -> str:
    """Return why xFormers has no operator.

    A reason applies only if all operators give it.
    """
    listed = text.split("is not supported because:")[1:]
    fitting = (
        title
        for title, (pattern, _) in _OPERATORS.items()
        if listed and all(re.search(pattern, block) for block in listed)
    )
    return next(fitting, "")


def _capabilities(text: str) -> tuple[str, ...]:
    written = (number if "." in number else f"{number[:-1]}.{number[-1]}" for number in _CAPABILITY.findall(text))
    if found := tuple(dict.fromkeys(written)):
        return found
    lines = "\n".join(
        line for line in text.splitlines() if re.search(r"nvidia|geforce|gpu|[rg]tx|tesla|device|\bgb10\b|dgx", line)
    )
    return tuple(capability for pattern, capability in _GPUS if re.search(pattern, lines))


def _architectures(text: str) -> tuple[str, ...]:
    named, listed, between = (pattern.findall(text) for pattern in _CODES)
    if flags := re.search(r"nvcc architecture flags:[^\n]*", text):
        return tuple(re.findall(r"code=((?:sm|compute)_\d+)", flags[0]))
    if named:
        return tuple(re.findall(r"\w+", named[0]))
    return tuple("sm_" + number.replace(".", "") for number in (listed or (between[0] if between else ())))


def _package(path: str) -> str:
    """Return the package of a file, or an empty string for the user's own code.

    The package of a checkout is the folder that is nested in one of the same name.
    """
    parts = re.split(r"[/\\]+", path)
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return next((part for part, following in itertools.pairwise(parts) if part == following), "")


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice that replaces a text's answer: the ids it applies to, the condition and the new answer.

    `when` is a key of `_NAMED`, another pattern, or a function of the facts.

    `becomes` is the id of another text that the facts prove.
    """

    of: tuple[str, ...]
    when: Callable[[Facts], bool | None] | str
    then: Callable[[Facts], str] | str = ""
    title: str = ""
    meaning: str = ""
    becomes: str = ""
    certainty: Certainty | None = None

    def holds(self, name: str, facts: Facts) -> bool:
        """Return whether the advice applies to the text with this id and these facts."""
        if not name.startswith(self.of):
            return False
        return facts.holds(self.when) if isinstance(self.when, str) else bool(self.when(facts))


def _install(facts: Facts) -> str:
    """Return the command that installs the same torch with code for these GPUs."""
    if "jetson" in facts.names:
        return fixes.JETSON
    if not (facts.capabilities or facts.driver_cuda):
        tags = fixes.RELEASES.get(fixes.release_of(facts.torch) or fixes.NEWEST, ())
        return (
            f"pip install --force-reinstall {fixes.pinned(facts.torch)} --index-url {fixes.INDEX}/TAG, where TAG is "
            f"the newest of {', '.join(tags)} that is not above the CUDA version in nvidia-smi"
        )
    wanted, tag = fixes.choose(
        facts.capabilities, facts.driver_cuda or None, facts.processor or None, version=facts.torch
    )
    if tag is None:
        values = [fixes.number(value) for value in facts.capabilities]
        return fixes.JETSON if any(value in fixes.OWN_BOARDS for value in values) else ""
    # torchvision and torchaudio must match the new torch and its CUDA.
    wanted += " torchvision" + " torchaudio" * ("torchaudio" in facts.names)
    # pip does not reach the torch inside a packed program.
    packed = "a newer release of the program, else its sources in a virtual environment: " * ("frozen" in facts.names)
    return f"{packed}pip install --force-reinstall {wanted} --index-url {fixes.INDEX}/{tag}"


def _abi(facts: Facts) -> str:
    """Return which C++ ABI torch's wheel has (TRUE for the new one) if a missing symbol belongs to the other ABI; else
    an empty string."""
    # Only the wheel for CUDA 12.6 of torch 2.6 has the new ABI.
    is_new = ((fixes.release_of(facts.torch) or (0, 0)), facts.build == "cu126") >= ((2, 6), True)
    if is_new:
        return "TRUE" if facts.holds(r"undefined symbol:? \S*sourcelocationess\b") else ""
    return "FALSE" if facts.holds(r"undefined symbol:? \S*cxx11|cxx11abitrue[\s\S]*undefined symbol") else ""


def _torchvision(facts: Facts) -> str:
    """Return the command for the torchvision that belongs to a torch 2 (0.15 to 2.0, 0.16 to 2.1)."""
    if old := re.fullmatch(r"1\.(\d+)\.(\d+)", facts.torch):
        # The last number of a few releases is not torch's.
        patch = {"1.7.0": 1, "1.7.1": 2, "1.10.1": 2, "1.10.2": 3}.get(facts.torch, old[2])
        return (
            f"pip install --force-reinstall --no-deps torchvision==0.{int(old[1]) + 1}.{patch}+"
            f"{facts.build or 'cuXYZ'} -f {fixes.INDEX}/torch_stable.html, which belongs to torch {facts.torch}"
        )
    match = re.fullmatch(r"2\.(\d+)\.(\d+)", facts.torch)
    if match is None:
        return (
            "pip list | grep -i torch, then pip install --force-reinstall --no-deps torchvision==0.N+15.P for torch "
            f"2.N.P (0.19.1 for 2.4.1; torchaudio has torch's own number) --index-url {fixes.INDEX}/TAG, TAG what "
            "torch.__version__ shows behind the + (cpu, cu128)"
        )
    beside = f" torchaudio=={facts.torch}" * facts.holds(r"\btorchaudio\b")
    index = facts.build or "cuXYZ (what python -c 'import torch; print(torch.__version__)' shows behind the +)"
    return (
        f"pip install --force-reinstall --no-deps torchvision==0.{int(match[1]) + 15}.{match[2]}{beside} --index-url "
        f"{fixes.INDEX}/{index}: the release that belongs to torch {facts.torch}, from the same index"
    )


def _rebuild(facts: Facts) -> str:
    name = facts.extension or "the extension in the traceback"
    if facts.holds(_UIS):
        return f"a wheel of {name} for this GPU, torch, CUDA and Python (its release page names them), or do without it"
    arch = ";".join(facts.capabilities) or "X.Y (nvidia-smi --query-gpu=compute_cap --format=csv)"
    variable = "set" if "windows" in facts.platforms else "export"
    return (
        f"{variable} TORCH_CUDA_ARCH_LIST={arch}, then build {name} again: pip install --no-build-isolation "
        "--no-cache-dir --force-reinstall --no-deps FOLDER_OF_ITS_SOURCES; or a release of it that names this GPU"
        + f"; or {BACKEND}"
        * ("server" in facts.names)
    )


def _pip(facts: Facts) -> str:
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
        return (
            "pip install torch==2.2.2 'numpy<2' with Python 3.8 to 3.12: the last torch for Macs with Intel processors"
        )
    if facts.wanted.startswith("cu") and facts.holds(r"looking in \w+: \S*/whl/[\s\S]*from versions: \d[^)+]*\)"):
        return f"pip install torch=={facts.asked} without +{facts.wanted}: a Mac has no CUDA, and no build with it"
    is_new = bool(python and high and python > high) or (
        not python and bool(facts.listed) and release < facts.listed[0]
    )
    is_old = bool(python and low and python < low) or (not python and bool(facts.listed) and release > facts.listed[1])
    if builds and facts.wanted.startswith("cu") and facts.wanted not in builds:
        index = f"pip install torch=={facts.asked} --index-url {fixes.INDEX}/{builds[0]}"
        step = f"{index}: torch {facts.asked} has no +{facts.wanted}, only {', '.join(builds)}"
    elif is_new or is_old:
        return (
            f"{'an older' if is_new else 'a newer'} Python (torch {facts.asked} has wheels for {range_}), or "
            f"{'a newer' if is_new else 'an older'} torch: pip index versions torch shows what this Python has"
        )
    elif facts.wanted and not is_index:
        step = (
            f"--index-url {fixes.INDEX}/{facts.wanted} behind the same command: PyPI has no builds with +{facts.wanted}"
        )
    else:
        return ""
    return f"{step}. Its wheels are for Python {range_}" if range_ else step


def _share(facts: Facts) -> float:
    """Return the share of GPU memory that the server may use; 0 if the paste does not state it."""
    found = re.findall(r"gpu[-_]memory[-_]utilization[= ]+(0?\.\d+)", facts.text)
    return float(found[-1]) if found and facts.holds(r"no available memory|kv cache is|is larger than the max") else 0


def _for_amd(facts: Facts) -> str:
    if "rocm" in facts.platforms and "windows" not in facts.platforms:
        return (
            f"pip uninstall {facts.extension or 'the package that asks for it'}, which was built for CUDA, then its "
            "release for ROCm: vLLM the image rocm/vllm (SGLang the image lmsysorg/sglang, a tag with rocm, or its "
            "sources by pip install -e 'python[all_hip]'); PYTHONNOUSERSITE=1 where it lies in ~/.local"
        )
    if "windows" in facts.platforms:
        return (
            "AMD's own torch for Windows, where its page `PyTorch on Windows` lists the GPU, or ROCm inside WSL; of "
            "other packages their release for ROCm or DirectML"
        )
    return (
        "pip uninstall torch torchvision torchaudio, then install them from PyTorch's index for ROCm (the selector on "
        f"pytorch.org names it: {fixes.INDEX}/rocmX.Y); of {facts.extension or 'other packages'} the release for ROCm"
    )


def of_server(name: str, then: str, facts: Facts) -> str:
    """Return the step to the server's own release if the step would install torch, because each release fits only one
    torch."""
    installs = re.search(r"pip install (-\S+ )*torch\b(?!vision|audio)", then) and not name.startswith("pip.")
    if installs and "jetson" in facts.names and "thor" not in facts.text:
        return fixes.JETSON
    if not installs or not facts.names & {"vllm", "sglang"}:
        return then
    if "rocm" in facts.platforms or facts.vendor == "amd":
        return "its image for ROCm: vLLM rocm/vllm (SGLang lmsysorg/sglang, a tag with rocm)"
    return (
        "in a new environment vLLM uv pip install -U vllm --torch-backend=auto (SGLang uv pip install -U sglang): it "
        "brings the one torch that it fits; before driver 580 vLLM the +cu129 wheel of its releases page (SGLang the "
        "image lmsysorg/sglang, a tag with cu12)"
    )


def filled(then: str, facts: Facts) -> str:
    """Return the step with the GPU and the versions from the paste filled in: torch's, and its CUDA's."""
    then = then.replace("gfxNNN", facts.gfx or "gfxNNN")
    if "7.2" in facts.capabilities:
        then = re.sub(r"\b8(\.?)7\b", r"7\g<1>2", then)
    is_known = "torch==VERSION" in then and fixes.release_of(facts.torch) is not None
    then = then.replace("torch==VERSION", fixes.pinned(facts.torch)) if is_known else then
    # The packages of torch's release change with it.
    extra = "".join(f" {name}" for name in ("torchvision", "torchaudio") if name in facts.names)
    then = re.sub(r"pip install (?:--force-reinstall )?'?torch(?:==[^\s']+)?'?(?= --index-url)", rf"\g<0>{extra}", then)
    named = re.search(r"\bcu\d{3}\b", f"{facts.wanted} {facts.build} {facts.text}")
    if named is None:
        if is_known and (facts.capabilities or facts.driver_cuda):
            driver, processor = facts.driver_cuda or None, facts.processor or None
            wanted, tag = fixes.choose(facts.capabilities, driver, processor, version=facts.torch)
            then = then.replace("cuXYZ", tag) if tag and wanted == fixes.pinned(facts.torch) else then
        tags = fixes.RELEASES.get(fixes.release_of(facts.torch) or fixes.NEWEST, ("cu126", "cu128", "cu130"))
        among = f"; cuXYZ is one of {', '.join(tags)}, not above the CUDA version in nvidia-smi"
        return then + among * ("/cuXYZ" in then and "selector" not in then and "rocm" not in facts.platforms)
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
    if file := re.search(r"\b(cu[a-z]+|nv[a-z]+)(64\w+|\w*)\.dll", facts.text):
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
            re.match(_STEPS.get(name, rf".*\b{name}="), part, re.IGNORECASE)
            for name in facts.tried | facts.names & set(_STEPS)
        )
    ]
    whole = " ".join(kept).rstrip("; ")
    shorter = re.sub(r"^(?:then|else|or) ", "", re.sub(r";(?= [A-Z])", ".", whole))
    return whole if len(whole) == len(then) else shorter


# Patterns of programs and libraries that ran out of memory, and the step that frees memory in each. The first match
# applies.
_PROGRAMS: tuple[tuple[str, str], ...] = (
    (
        r"\bverl[/\\.]|ppo_\w*micro_batch|easyr1|openrlhf|skyrl",
        "a smaller ppo_micro_batch_size_per_gpu and log_prob_micro_batch_size_per_gpu (OpenRLHF: "
        "--micro_train_batch_size, --micro_rollout_batch_size), a smaller rollout.gpu_memory_utilization (0.4), "
        "fsdp_config.param_offload=True and optimizer_offload=True, or shorter prompts and responses",
    ),
    (
        r"comfyui|comfy[/\\]|ksampler",
        "a smaller image or fewer frames at once, VAE Decode (Tiled) where the decoding fails, a GGUF or fp8 version "
        "of the model, or python main.py --lowvram",
    ),
    (
        r"sd[-_]scripts|kohya|fluxgym|train_network\.py",
        "train_batch_size 1, --gradient_checkpointing, --cache_latents, --fp8_base, --optimizer_type AdamW8bit (or "
        "Adafactor), and a smaller resolution",
    ),
    (
        r"webui|--(?:med|low)vram|modules[/\\](?:txt2img|img2img|processing|sd_\w+)\.py|fooocus|entry_with_update",
        "a smaller image or upscaling factor, batch size 1, and --medvram or --lowvram in COMMANDLINE_ARGS "
        "(webui-user; Forge: a larger GPU Weights reserve; Fooocus: --always-low-vram)",
    ),
    (
        r"\.to\((?:device=)?cuda\)[\s\S]{0,600}enable_(?:model|sequential)_cpu_offload\(",
        'take .to("cuda") away from the pipeline: it puts every part on the GPU, and enable_model_cpu_offload() then '
        "comes too late; if that is not enough, enable_sequential_cpu_offload() in its place, which is slower",
    ),
    (
        r"enable_model_cpu_offload\(",
        "pipe.enable_sequential_cpu_offload() in place of enable_model_cpu_offload() (slower), or transformer and text "
        "encoder in 4 bits (BitsAndBytesConfig of diffusers and transformers), with pipe.vae.enable_tiling()",
    ),
    (
        r"ultralytics|yolov\d",
        "a smaller batch (batch=-1 lets the program choose one; YOLOv5 --batch-size -1), a smaller imgsz, or a smaller "
        "model (n or s)",
    ),
    (
        r"gaussian[-_ ]?splat|diff_gaussian|gsplat|scene[/\\]gaussian_model|nerfstudio",
        "smaller images (-r 2, or 4), --data_device cpu, and fewer Gaussians (a larger densify_grad_threshold)",
    ),
    (r"whisper", "a smaller or quantised model (turbo, medium; faster-whisper: compute_type int8), and batch_size 1"),
)
_FRAMES: tuple[tuple[str, str], ...] = (
    (
        r"torch[/\\]optim[/\\]\w+\.py[^\n]*\n(?:[^\n]*\n){0,5}[^\n]*out ?of ?memory",
        'an optimizer with smaller states (optim="adamw_8bit" of a Trainer, bitsandbytes), LoRA, or the states spread '
        "over more GPUs (FSDP, ZeRO): AdamW's take 8 bytes for each parameter, and a smaller batch hardly helps",
    ),
    (
        r"deepspeed\.initialize|deepspeed[/\\]runtime[/\\]zero[/\\][^\n]*in (?:__init__|initialize_optimizer_states)",
        '"stage": 3 with offload_optimizer and offload_param on "cpu" in DeepSpeed\'s configuration, or more GPUs: '
        "parameters and states do not fit, and a smaller batch does not help",
    ),
    (
        r"in (?:evaluation_loop|prediction_step|nested_concat)\b",
        "per_device_eval_batch_size=1 and eval_accumulation_steps=1, with preprocess_logits_for_metrics to keep the "
        "argmax alone: the evaluation collects all logits on the GPU",
    ),
    (
        r"transformers[/\\]trainer\.py|trl[/\\]trainer|llama-?factory|axolotl|per_device_train_batch_size",
        "per_device_train_batch_size=1 with more gradient_accumulation_steps, gradient_checkpointing=True, shorter "
        "sequences (max_length, cutoff_len); then LoRA or QLoRA, or ZeRO-3 or FSDP over more GPUs",
    ),
    (
        r"by allocator gpu_\d_bfc|resourceexhaustederror",
        "a smaller batch or input, tf.keras.mixed_precision's mixed_float16; set_memory_growth where others use it",
    ),
    (
        r"diffusers\b|\bflux\b|\bimage\W{1,3}\d{3,4} ?x ?\d{3,4}",
        'pipe.enable_model_cpu_offload() in place of pipe.to("cuda"), pipe.vae.enable_tiling(), and a smaller height '
        "and width, fewer frames or fewer images at once",
    ),
    (
        r"generation[/\\]utils\.py|\.generate\(",
        "a shorter prompt, fewer sequences and new tokens at once, under torch.inference_mode(); weights in bfloat16 "
        'or in 4 bits (BitsAndBytesConfig(load_in_4bit=True)), or device_map="auto" over more GPUs',
    ),
    (
        r"pytorch_lightning|lightning[/\\](?:pytorch|fabric)",
        'a smaller batch_size in the DataLoader with Trainer(accumulate_grad_batches=N, precision="bf16-mixed"), or '
        "smaller inputs",
    ),
    (
        r"torch[/\\]utils[/\\]checkpoint\.py",
        "a smaller batch or smaller inputs (activation checkpointing is on already), torch.autocast in bfloat16, or "
        "the parameters and the optimizer's states spread over more GPUs (FSDP, ZeRO-3)",
    ),
    (
        r"评估|(?:evaluation|validation|inference) (?:step|stage|phase)|(?:during|in|after) (?:the )?(?:eval|infer)|"
        r"in (?:val(?:id\w*|_\w+)?|test\w*|eval\w*|infer\w*|predict\w*)\b|(?:infer|demo|predict|gener)\w*\.(?:py|sh)\b",
        "torch.inference_mode() around the evaluation, a smaller batch, image or clip there (fewer frames, points or "
        "objects at once), half precision, and results moved by .cpu() as they come",
    ),
    (
        r"\.backward\(|loss\.backward",
        "a smaller batch with gradient accumulation, smaller inputs, torch.autocast in bfloat16, and "
        "torch.utils.checkpoint around the largest blocks",
    ),
)


def room(then: str, facts: Facts) -> str:
    """Return the step for full memory, with the options of the program in the paste."""
    tables = _PROGRAMS if OFFLOAD in then else (*_PROGRAMS, *_FRAMES)
    step = next((step for pattern, step in tables if facts.holds(pattern)), "")
    if not step:
        return then
    if "_ALLOC_CONF=" in then and "inference_mode" in step:
        return f"{step}; else {then}"
    return re.sub(r"; gpucheck find-batch-size[^;]*", "", then.replace(OFFLOAD, step).replace(SMALLER, step))


_CUDAS = (
    *("import.library", "import.libcuda", "import.nv", "nvcc.missing", "cuinit.", "torch.cpu_only", "nvml.no"),
    *("torch.no_accelerator", "torch.sees_none", "driver.", "library.", "compile.libcuda"),
)
_OFFLINE = (
    "torch.no_accelerator",
    "torch.sees_none",
    "vllm.start",
    "sglang.start",
    "bitsandbytes.setup",
)
# Programs with a user interface, whose users do not change the code.
_UIS = r"comfyui|custom_nodes|\bwebui\b|invokeai|fooocus|oobabooga"
_NOT_LINUX = frozenset(("wsl", "windows", "mac"))
# The first matching row applies.
ADVICE: tuple[Advice, ...] = (
    Advice(
        ("nvml.wsl", "nvml.not_loaded"),
        lambda facts: "own_kernel" in facts.names and "wsl" in facts.text,
        "take kernel= out of %UserProfile%\\.wslconfig, wsl --update and wsl --shutdown: Microsoft's kernel has it; "
        "else build with CONFIG_DXGKRNL=y from Microsoft's WSL2-Linux-Kernel",
        title="a self-compiled WSL kernel that probably lacks Microsoft's GPU module (dxgkrnl)",
    ),
    Advice(
        ("bitsandbytes.setup", "import.libcuda", "cuinit.100", "cuinit.no_driver", "torch.no_acc", "torch.sees_none"),
        "image_build",
        "take the import or the test out of the image's RUN lines: only docker run --gpus all gives a container the "
        "driver and the GPU. A build of extensions needs no GPU: ENV TORCH_CUDA_ARCH_LIST=X.Y FORCE_CUDA=1 before it",
        title="there is no GPU and no driver while an image is built",
    ),
    Advice(
        ("assert.index", "assert.label"),
        "server",
        "the tokenizer and the model of one folder and release, whose vocabulary (vocab_size in config.json) has all "
        "tokens, also added ones and those of images, and a prompt within the model's length; else a newer server",
    ),
    Advice(("xpu.lost",), r"error_out_of_(?:resources|\w+_memory)|returns: -5\b", becomes="oom.xpu"),
    Advice(
        ("xformers.setup",),
        lambda facts: facts.build.startswith("cu") and facts.holds(r"\(you have \d"),
        f"pip install --force-reinstall --no-deps xformers==VERSION --index-url {fixes.INDEX}/cuXYZ, the release "
        "that was built for this torch (its release notes name it); or pip uninstall xformers",
        title="xformers was built for another torch, or another CUDA, than the one in place",
    ),
    Advice(
        ("container.no_runtime",),
        lambda facts: "mac" in facts.platforms and facts.vendor != "nvidia",
        "take the request for an NVIDIA GPU out of the start (--gpus; Compose: deploy.resources.reservations.devices): "
        "the container then uses the CPU; or run that program outside of docker, where it can use Metal (Ollama: its "
        "app for macOS, which containers reach as host.docker.internal:11434)",
        title="docker on a Mac has no NVIDIA GPU to pass to containers",
        meaning="Docker on macOS runs in a virtual machine without a GPU.",
    ),
    Advice(
        ("import.glibc",),
        r"\A(?![\s\S]*(?:glibcxx_|cxxabi_))",
        "a newer system or container image (ldd --version shows its GLIBC), or an older wheel, or the package built "
        "here: pip install --no-binary :all: --no-deps --no-build-isolation NAME==VERSION",
    ),
    Advice(
        ("import.glibc",),
        lambda facts: bool(facts.compiled) and "conda" not in facts.text and "cluster" not in facts.names,
        lambda facts: f"pip install -U {facts.compiled}, or a release before this one; else a newer system or image",
    ),
    Advice(
        ("import.glibc",),
        r"(?:conda|mamba|forge|envs/)\S*/lib\w*/libstdc\+\+\.so[.\d]*: version",
        "conda install -c conda-forge 'libstdcxx-ng>=13' in that environment (GLIBCXX_3.4.33: 14), and build a "
        "compiled extension again without its cache",
        title="the conda environment's libstdc++ is older than the package",
        meaning="It was compiled with a newer gcc, usually the system's, and runs with the environment's library.",
    ),
    Advice(
        ("bitsandbytes.setup",),
        "jetson",
        "build it: in its sources cmake -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=87 -S . && make && pip install ., "
        "or the wheel or image of jetson-containers for this JetPack",
        title="this bitsandbytes has no library for a Jetson",
    ),
    Advice(
        ("xformers.setup",),
        lambda facts: facts.build == "cpu" and "mac" not in facts.platforms,
        _install,
        title="this torch is built without CUDA, which xformers needs",
    ),
    Advice(
        ("mps.dtype",),
        r"float8|fp8|bfloat16",
        "torch_dtype=torch.float16 (bfloat16 needs macOS 14); of a model in float8 its float16, GGUF or MLX version",
    ),
    Advice(
        ("import.nvjitlink",),
        r"undefined symbol:? ijit_",
        "conda install 'mkl<2024.1' 'intel-openmp<2024.1' in this environment, or pip's torch in place of conda's",
        title="conda's MKL is newer than this torch, and lacks a function that it calls",
        meaning="MKL 2024.1 dropped iJIT_NotifyEvent; torch was linked against an older one. No GPU takes part.",
    ),
    Advice(
        ("oom.cuda", "oom.hip"),
        r"allocating (?:[3-9]\d{5}|\d{7,})(?:\.\d+)? mib on device",
        "--parallel 1, and llama.cpp built again with cmake -DGGML_SCHED_MAX_COPIES=1 (with several GPUs it keeps four "
        "copies of the buffers); until then one GPU, --split-mode none; then a smaller -ub and -c",
        title="llama.cpp asks for a buffer larger than any GPU",
        certainty="strong",
    ),
    Advice(
        ("oom.vllm",),
        lambda facts: 0 < _share(facts) < 0.7 or _share(facts) >= 0.93,
        lambda facts: (
            f"--gpu-memory-utilization 0.9 in place of {_share(facts)}: weights, trial run and cache share it "
            "(nvidia-smi shows what others leave); else a smaller --max-model-len or --max-num-seqs"
            if _share(facts) < 0.7
            else "a quantised (AWQ, GPTQ, FP8) or smaller model, --enforce-eager, and a smaller --max-model-len and "
            "--max-num-seqs: the share of memory is as large as it can be; nvidia-smi shows whether others hold any"
        ),
    ),
    Advice(
        ("nvcc.missing", "compile.cuda_h"),
        r"\b(?:cusparse|cusolver|cublas|curand|cufft|cudnn)\w*\.h\W{0,4}(?:no such|file not)|could not find cudnn",
        "find / -name 'cu*.h' 2>/dev/null: the header's folder in CPATH (HPC SDK: …/math_libs/X.Y/include, its lib64 "
        "in LIBRARY_PATH; pip's cuDNN: …/nvidia/cudnn/include, CUDNN_PATH=…/nvidia/cudnn), and build again in an empty "
        "folder; else sudo apt-get install cuda-libraries-dev-X-Y libcudnn9-dev-cuda-12 (conda install -c nvidia "
        "cuda-libraries-dev=X.Y, -c conda-forge cudnn), X.Y of torch.version.cuda",
        title="a header of CUDA's libraries or of cuDNN is not found by the compiler",
    ),
    Advice(
        ("import.nms", "import.symbol", "pip.torch", "cuinit.too_old", "cuda.no_kernel", "cuda.cap", "torch.cpu"),
        lambda facts: "jetson" in facts.names and not {"kernels", "llama"} & facts.names,
        f"{fixes.JETSON} (JetPack 5: Python 3.8, 6: 3.10), and its torchvision; other indexes have none for this GPU",
    ),
    Advice(("oom.cuda",), lambda facts: "pinned" in facts.names and "allocator" not in facts.names, becomes="oom.host"),
    Advice(
        ("cuda.ptx", "cuinit.too_old"),
        "jetson",
        "build the package that fails again, without its old build folder, with JetPack's own nvcc for this GPU "
        "(CUDA_HOME=/usr/local/cuda; TORCH_CUDA_ARCH_LIST=8.7, CMAKE_CUDA_ARCHITECTURES=87); CUDA 12 on JetPack 5 also "
        "wants sudo apt-get install cuda-compat-12-2, and /usr/local/cuda-12.2/compat first in LD_LIBRARY_PATH",
        title="a package was compiled by a newer CUDA than this JetPack's driver",
        meaning="A Jetson's driver comes with JetPack alone: JetPack 5 has CUDA 11.4, JetPack 6 has 12.2 or 12.6.",
    ),
    Advice(
        ("hip.none",),
        r"/dev/(?:kfd|dri).{0,40}permission denied|not member of .{0,3}(?:render|video)",
        title="the user may not open /dev/kfd, which ROCm needs",
    ),
    Advice(
        ("cuinit.too_old",),
        r"\A(?=[\s\S]*(?:docker|podman))(?=[\s\S]*driver version: (?:52[5-9]|5[3-9]\d))[\s\S]*version is insuff",
        "give the container the GPU: docker run --gpus all (Compose: deploy.resources.reservations.devices, Unraid: "
        "--runtime=nvidia and NVIDIA_VISIBLE_DEVICES=all); for CUDA 13 update the driver to 580",
        title="the container has no GPU (or its program is of CUDA 13)",
    ),
    Advice(("nccl.in", "nccl.un", "nccl.re"), r"\blo:127[\s\S]*nccl warn.*refused", becomes="nccl.interface"),
    Advice(
        ("nccl.timeout",),
        r"sav(?:e|ing)\b.{0,60}(?:checkpoint|model|weights|state)|save_(?:checkpoint|pretrained|model)|checkpoint sav|"
        r"running tokenizer|tokeniz(?:ing|e) .{0,20}dataset|generating train split|skip_first_batches|"
        r"skipp?(?:ing|ed)? [^\n]{0,30}batches|\bresum\w+ .{0,20}checkpoint|fast[- ]?forward",
        "a longer limit for it: init_process_group(timeout=timedelta(hours=2)), in the Trainer ddp_timeout=7200; save "
        "in parts (FSDP: SHARDED_STATE_DICT; with ZeRO-3 and FSDP every rank calls the save), prepare data once "
        "before the run, and skip them faster (ignore_data_skip=True, a sampler with a state)",
        title="a collective timed out while one rank saved a checkpoint, or prepared or skipped data",
    ),
    Advice(
        ("nccl.timeout", "cuda.peer"),
        r"\bp2p (?:is |was )?(?:disabled|off)\b|p2p_disable ?= ?1\W.{0,40}(?:work|run|well|fix|help)|"
        r"\b(?:p2p|peer[- ]to[- ]peer)\b.{0,60}(?:fail|h[au]ng|stuck)|(?:fail|hang)\w* .{0,30}\bp2p\b",
        "NCCL_P2P_DISABLE=1 goes on without P2P; then turn off the IOMMU and ACS (gpucheck doctor shows both), and try "
        "P2P again: gpucheck bench collective",
        title="transfers between the GPUs (P2P) hang or fail",
    ),
    Advice(
        ("import.symbol", "attention.package"),
        lambda facts: bool(_abi(facts)),
        lambda facts: (
            f"the wheel for the same torch, CUDA and Python whose name has cxx11abi{_abi(facts)}; or pip install "
            "--no-cache-dir --no-build-isolation --force-reinstall --no-deps NAME==VERSION, which builds it"
        ),
        title="a package was built with another C++ ABI than torch",
        meaning="pip's torch is built with the new ABI of std::string (cxx11) from 2.7 on, before with the old one.",
    ),
    Advice(
        ("tensor.backend",),
        r"not compiled with (?:gpu|cuda) support",
        "delete build/ and the extension's old .so, set CUDA_HOME to the toolkit of torch's CUDA, then FORCE_CUDA=1 "
        "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps FOLDER_OF_ITS_SOURCES",
        title="an extension was compiled without CUDA",
    ),
    Advice(
        ("hip.arch",),
        lambda facts: (
            facts.holds(r"\bmi[123]\d\dx?\b|\binstinct\b|\bgfx9[045]\w+")
            or (bool(facts.names & {"native", "llama"}) and not (facts.torch or "windows" in facts.platforms))
        ),
        "a release, torch or container whose notes name this GPU (rocminfo | grep gfx), or a build for it in an empty "
        "folder, PYTORCH_ROCM_ARCH=gfxNNN or cmake -DGPU_TARGETS=gfxNNN (older llama.cpp AMDGPU_TARGETS, its image "
        "ROCM_DOCKER_ARCH=gfxNNN); a program on torch needs both built: torch.cuda.get_arch_list() has to name it too, "
        "in an image that of its base",
    ),
    Advice(
        ("hip.arch",),
        lambda facts: bool(facts.gfx or "llama" in facts.names) and "windows" not in facts.platforms,
        lambda facts: (
            "HSA_OVERRIDE_GFX_VERSION="
            + _RELATIVES.get(facts.gfx[:6], "10.3.0 (RDNA 2, gfx103x) or 11.0.0 (RDNA 3, gfx110x)")
            + " for the server, the number of a near relative (Ollama: Environment= in sudo systemctl edit ollama, "
            "docker run -e); else a newer release, or the program's Vulkan backend (OLLAMA_VULKAN=1)"
            if "llama" in facts.names
            else f"a torch or ROCm that lists {facts.gfx} ({fixes.INDEX}/rocmX.Y, the newest; else AMD's TheRock)"
            + "; else export HSA_OVERRIDE_GFX_VERSION=".join(("", *filter(None, (_RELATIVES.get(facts.gfx[:6]),))))
        ),
    ),
    Advice(("xpu.lost",), r"device_lost", title="the Intel GPU was lost: its driver probably reset it"),
    Advice(
        ("import.library",),
        r"\A(?![\s\S]*(?:jetson|jetpack|tegra))[\s\S]*torch/__init__\.py\W+line \d+[\s\S]{0,500}"
        r"\blib(?:cu|nccl|nv)\w*\.so\S* cannot open",
        f"pip install --force-reinstall torch==VERSION --index-url {fixes.INDEX}/cuXYZ brings its nvidia-… packages, "
        "of which one is missing (installed with --no-deps, or from a lock file of another index); in a project of uv: "
        "uv lock --upgrade-package torch && uv sync --reinstall-package torch",
        title="a library that belongs to torch's wheel is not installed",
    ),
    Advice(
        ("import.library",),
        r"\A(?![\s\S]*64_\d\.dll)[\s\S]*(?:any of \{lib|could not (?:load|locate)(?: library)? (?:lib)?)cudnn_(?:op|cn)"
        r"|(?:whisper|ctranslate2)[\s\S]*libcublas\.so\.12",
        "pip install -U ctranslate2 nvidia-cublas-cu12 'nvidia-cudnn-cu12>=9' (CTranslate2 4.5 wants cuDNN 9, as torch "
        "2.4 does; an older torch ctranslate2==4.4.0 and nvidia-cudnn-cu12==8.*), then export LD_LIBRARY_PATH=$(python "
        "-c 'import nvidia.cublas.lib as b, nvidia.cudnn.lib as c; print(b.__path__[0], c.__path__[0], sep=\":\")'); "
        "in a container an image nvidia/cuda:12.…-cudnn-runtime has both",
        title="a program (usually CTranslate2, of faster-whisper) does not find cuBLAS or cuDNN of CUDA 12",
    ),
    Advice(
        ("import.library",),
        lambda facts: (
            bool(facts.needs)
            and facts.names & {"tf", "pytorch"} != {"tf"}
            and not (facts.build or facts.platforms & {*_NOT_LINUX, "rocm"} or facts.vendor in ("amd", "intel"))
            and "jetson" not in facts.names
        ),
        lambda facts: (
            f"python -c 'import torch; print(torch.version.cuda)': where it does not begin with {facts.needs}, a torch "
            f"for CUDA {facts.needs}, or the package's release for the CUDA that it prints, in a new environment; "
            "else find / -name 'LIBRARY*' 2>/dev/null, and its folder in LD_LIBRARY_PATH"
        ),
    ),
    Advice(
        ("cuda.not_supported",),
        "kernels",
        f"{BACKEND}, or a newer FlashInfer: its kernel asks for what this GPU or driver does not have",
    ),
    Advice(
        ("oom.host",),
        lambda facts: "pinned" in facts.names and not facts.platforms - {"wsl"},
        "pin less: DataLoader(pin_memory=False), smaller or fewer buffers (WSL limits it to a part of its memory, "
        "which memory= in .wslconfig raises); ulimit -l shows the limit of locked memory (docker run --ulimit "
        "memlock=-1), free -h what is free",
    ),
    Advice(
        ("oom.killed",),
        r"requires more system memory",
        "a smaller model or quantisation, a shorter context (Ollama: num_ctx), or end other programs that use RAM "
        "(free -h); in a container or virtual machine a higher memory limit",
        title="the model needs more RAM than is free",
        meaning="The program compared what the model needs with the free RAM, and did not start it.",
    ),
    Advice(
        ("import.symbol",),
        lambda facts: (
            facts.holds(r"(?:vllm[/\\]_\w*c|sgl_kernel|common_ops)\S*:? undefined symbol") and not facts.checkout
        ),
        "where you built it: again with this torch, in an empty folder (pip install --no-build-isolation); else a new "
        "environment in which the server brings its own torch: vLLM uv pip install vllm --torch-backend=auto (SGLang "
        "pip install sglang), and no other torch after it",
        title="the server's compiled half was built for another torch",
        meaning="A release of vLLM or SGLang fits exactly one torch, which was replaced.",
    ),
    Advice(
        ("dist.world_size",),
        r"attention heads",
        "a tensor-parallel size that divides the number of heads in the message: vLLM --tensor-parallel-size N "
        "(SGLang --tp N); the other GPUs by --pipeline-parallel-size or --data-parallel-size",
        title="the number of attention heads cannot be divided among these GPUs",
        meaning="Tensor parallelism gives each GPU the same number of heads.",
    ),
    Advice(
        ("cuda.ordinal",),
        r"parallel[_ -]?size .{0,40}(?:larger|greater) than|local_world_size \(\d|--nnodes[= ][2-9]",
        "vLLM --tensor-parallel-size (SGLang --tp) not above the number of GPUs that nvidia-smi -L lists where the "
        "server runs, times the nodes (one GPU on each of 2: --tp 2, --nnodes 2); where it lists more, unset "
        "CUDA_VISIBLE_DEVICES, or start the container with --gpus all",
        title="more GPUs are asked for than are visible",
    ),
    Advice(
        ("nvcc.missing",),
        r"cannot find -l(?:cu|nv)",
        "export LIBRARY_PATH=/usr/local/cuda/lib64:$LIBRARY_PATH (in conda $CONDA_PREFIX/lib) before the build; where "
        "the file is in neither folder, install the toolkit of torch's CUDA (conda install -c nvidia cuda-toolkit=X.Y)",
        title="the linker does not find a library of the CUDA toolkit",
    ),
    Advice(("import.nms",), lambda facts: "jetson" not in facts.names, _torchvision),
    Advice(
        ("import.symbol",),
        r"\btorch(?:vision|audio|text)\b\S*\.so\S*:? undefined symbol",
        _torchvision,
        title="torchvision or torchaudio was built for another torch",
    ),
    Advice(
        ("bitsandbytes.setup",),
        r"requires accelerate|requires the latest version of bitsandbytes|"
        r"need to install .{0,4}pip install bitsandbytes|"
        r"no module named bitsandbytes|please install bitsandbytes",
        "python -m pip install -U bitsandbytes accelerate with the interpreter that runs the program, then start it "
        "again (a notebook: its kernel, which has read the list of packages already); torch.cuda.is_available() has "
        "to be True: older releases of transformers say the same where it is not",
        title="transformers does not find bitsandbytes or accelerate, or finds no GPU for it",
        meaning="transformers asks which packages are installed once, as it is imported.",
    ),
    Advice(
        ("cuda.not_supported",),
        r"cudamallocasync|comfyui",
        "ComfyUI: python main.py --disable-cuda-malloc; in other programs unset PYTORCH_CUDA_ALLOC_CONF: the driver of "
        "this GPU (often a virtual one) has no cudaMallocAsync",
    ),
    Advice(
        ("cuda.no_kernel",),
        r"llama[-_]cpp[-_]python",
        "CMAKE_ARGS='-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native' pip install --force-reinstall --no-cache-dir "
        "llama-cpp-python, with a CUDA toolkit that knows this GPU",
        title="llama-cpp-python was not built for this GPU's architecture",
    ),
    Advice(
        ("import.symbol", "import.torch_too_old"),
        r"torch[/\\]lib[/\\]lib(?:torch|c10|shm|aten|caffe2)\w*\.so[.\d]*: undefined symbol",
        "unset LD_LIBRARY_PATH and try again; else install torch into a new environment (python -m venv "
        "NEW), or pip uninstall -y torch until it finds none (in conda: conda remove pytorch libtorch) and install one "
        "torch again",
        title="parts of two torches are mixed",
        meaning="A library in torch's own folder found another release's in place of the one beside it: two torches "
        "were installed over each other, or LD_LIBRARY_PATH leads to a libtorch.",
    ),
    Advice(
        ("import.symbol", "import.library"),
        r"libtorch_cuda\.so\W{0,2} ?cannot open",
        "python -c 'import torch; print(torch.__version__, torch.version.cuda)': where it prints None, pip install "
        "--force-reinstall torch==VERSION --index-url https://download.pytorch.org/whl/cuXYZ (the selector on "
        "pytorch.org names it); else reinstall the package whose file the message names, at its release for this torch",
        title="a package wants torch's CUDA half, which this torch does not have",
        meaning="A torch for the CPU has no libtorch_cuda.so; a package built for CUDA asks for it.",
    ),
    Advice(
        ("import.library", "import.dll", "torch.no_accelerator"),
        r"cudaexecutionprovider.{0,60}not (?:in available provider|available)|"
        r"failed to create cudaexecutionprovider|onnxruntime_providers_cuda",
        lambda facts: (
            "on PATH the bin folders of what it wants: CUDA 11.8 and cuDNN 8 before 1.19, CUDA 12 and cuDNN 9 since"
            if facts.holds(r"microsoft\.ml|nuget")
            else "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu[cuda,cudnn]', with the "
            "CUDA and cuDNN of the message; then onnxruntime.preload_dlls() (1.21 or newer) or import torch before the "
            "session is made; onnxruntime.get_available_providers() has to list CUDAExecutionProvider"
        ),
        title="ONNX Runtime does not find its CUDA provider, or CUDA and cuDNN for it",
        meaning="The package onnxruntime is for the CPU; onnxruntime-gpu wants one major version of CUDA and of cuDNN.",
    ),
    Advice(
        ("import.library",),
        lambda facts: {"tf"} == facts.names & {"jax", "tf", "pytorch"} and facts.vendor != "amd",
        "python -m pip install -U 'tensorflow[and-cuda]' in a new virtual environment (it brings CUDA and cuDNN), with "
        "LD_LIBRARY_PATH unset; 2.16 and 2.17 find them only by export LD_LIBRARY_PATH=$(python -c 'import glob, "
        'nvidia; print(":".join(glob.glob(nvidia.__path__[0] + "/*/lib")))\'). TensorFlow after 2.10 has no GPU on '
        "Windows: inside WSL",
        title="TensorFlow does not find CUDA's libraries, and uses the CPU",
    ),
    Advice(
        ("compile.missing", "compile.compiler"),
        # These releases bring a small compiler; torch.compile asks for cl.exe.
        lambda facts: "windows" in facts.platforms and not facts.holds(r"\bcl\b|winerror 2|torch[._]_?inductor"),
        "pip install triton-windows in the version for this torch: 3.2 for torch 2.6, 3.3 for 2.7, 3.4 for 2.8, 3.5 "
        'for 2.9 (pip install -U "triton-windows<3.5" brings 3.4)',
    ),
    Advice(
        ("compile.", "import.torch_too_old"),
        r"cannot import name .{1,40} from \W{0,2}triton|module triton\S* has no attribute",
        'python -c \'from importlib.metadata import requires; print([r for r in requires("torch") if "triton" in r])\' '
        "shows the Triton that this torch asks for: pip install triton==VERSION (on Windows triton-windows)",
        title="Triton's version does not fit this torch",
        meaning="The name that is missing exists in another release of Triton.",
        certainty="strong",
    ),
    Advice(
        ("attention.package",),
        r"(?<!flash)(?<!flash_)sage[-_ ]?att",
        "pip install -U sageattention where it is only too old; for SageAttention 2 and 3 its wheel of this torch, "
        "CUDA and Python, or from its sources: pip install --no-build-isolation FOLDER; without it leave out the "
        "program's option for SageAttention",
        title="SageAttention is missing, of another version than the program expects, or built for another torch",
        meaning="PyPI has SageAttention 1, which needs only Triton; 2 and 3 are compiled for one torch and CUDA.",
    ),
    Advice(
        ("attention.package",),
        r"flash\S*\.so\S*:? undefined symbol",
        "pip uninstall -y flash-attn, then pip install --no-cache-dir with the wheel of its releases page whose name "
        "has this torch, CUDA, Python and cxx11abi (pip list | grep -i torch); or MAX_JOBS=4 pip install flash-attn "
        '--no-build-isolation --no-cache-dir, which builds it; attn_implementation="sdpa" does without it',
        title="flash-attn was built for another torch than the one in place",
    ),
    Advice(
        ("attention.flash", "attention.kernel"),
        lambda facts: "server" in facts.names or "vllm" in facts.names,
        "let the server choose (unset VLLM_ATTENTION_BACKEND, no --attention-backend), with an FP8 cache "
        f"--kv-cache-dtype auto; else {BACKEND}, or a newer release",
    ),
    Advice(
        ("cuda.peer",),
        r"allreduce is disabled",
        "nothing to do: the server goes on with NCCL; --disable-custom-all-reduce silences the warning",
        title="a harmless warning: vLLM's own all-reduce is not used between these GPUs",
    ),
    Advice(
        ("cuda.capture",),
        "server",
        "vLLM --enforce-eager (SGLang --disable-cuda-graph) runs without CUDA graphs, more slowly. The first error "
        "above it is the cause if there is one, else a newer release",
    ),
    Advice(
        ("torch.cpu_only",),
        r"compiled with mps|support for mps devices",
        "on a Mac: python -c 'import platform; print(platform.machine(), platform.mac_ver()[0])' has to print arm64 "
        "and 12.3 or newer; then pip install --force-reinstall torch with that Python. On other machines use device "
        '"cuda" or "cpu"',
        title="this torch is built without MPS, which Apple's GPUs need",
        meaning="PyTorch's wheels for Apple silicon have it; those for Intel Macs, Linux and Windows do not.",
    ),
    Advice(
        ("mps.operation",),
        r"supported on mac ?os \d|natively starting from macos",
        "update macOS to the version in the message, or newer (sw_vers shows it), and use an arm64 Python "
        "(python -c 'import platform; print(platform.machine())'); until then device=\"cpu\", or another data type for "
        "that operation",
        title="this macOS is too old for torch's MPS, or for an operation of it",
        meaning="Metal gained it in the macOS that the message names.",
    ),
    Advice(
        ("dist.environment",),
        r"no backend type associated with device type",
        'x.to("cuda") for the tensor that is sent (NCCL takes CUDA tensors alone), or '
        'init_process_group("cpu:gloo,cuda:nccl"), which has a backend for both',
        title="the process group has no backend for the device of a tensor",
        meaning="A collective got a tensor on the device that the message names; the group was made for another.",
    ),
    Advice(
        ("nvcc.host_compiler",),
        r"microsoft visual studio",
        "Visual Studio 2022's build tools beside the newer ones, the build in its `x64 Native Tools` prompt; or a "
        "newer CUDA toolkit. set NVCC_PREPEND_FLAGS=-allow-unsupported-compiler tries it as it is",
        title="Visual Studio is newer, or older, than the CUDA toolkit accepts",
    ),
    Advice(
        ("tensor.type_mismatch",),
        # The device is the same, but the data types differ.
        r"input type \((torch\.cuda\.|torch\.|cuda|mps|xpu)\w+\) and (?:weight|bias) type \(\1(?!cuda\.)\w+\)|"
        r"input type \((?:c10::)?(?:b?float\d*|half|double)\) and (?:weight|bias) type "
        r"\((?:c10::)?(?:b?float|half|double)",
        'x.to(next(model.parameters()).dtype) for the input, or the step under torch.autocast("cuda"); NumPy\'s '
        "arrays are float64: torch.from_numpy(a).float()",
        title="the input and the weights are of different data types",
        meaning="Both are on the same device; one is float16, bfloat16 or float64 and the other float32.",
    ),
    Advice(
        ("tensor.dtype", "tensor.type_mismatch", "tensor.not_implemented"),
        r"expected (?:object of )?(?:scalar )?type \S{0,6}long|scalar types?:? long|"
        r"nll_loss\w*\W{1,3}not implemented for",
        "labels.long(): class numbers of cross_entropy and indices of embedding and gather have to be int64",
        title="labels or indices are not of an integer type that the operation takes",
    ),
    Advice(
        ("tensor.not_implemented",),
        r"not implemented for \W?(?:long|int|bool|byte|char|short)\b",
        "x.float() before the call, where it computes with values; an index or a label belongs in another argument",
        title="an operation got integers or booleans, for which it has no code",
    ),
    Advice(
        ("tensor.dtype",),
        r"\bpeft\b|\blora\b|bitsandbytes|load_in_[48]bit|gptq|\bqlora\b|unsloth",
        'with torch.autocast("cuda", dtype=torch.bfloat16): around the step or generate(); one type for torch_dtype, '
        "bnb_4bit_compute_dtype and the Trainer's bf16=True (fp16=True where it is float16): the adapters are in "
        "float32. Unsloth: dtype=None, for_inference(model) before generate, and pip install -U unsloth unsloth_zoo",
    ),
    Advice(
        ("torch.cpu_only", "torch.no_accelerator"),
        lambda facts: facts.build == "xpu",
        'device="xpu" in place of "cuda", in the code or by the program\'s option; torch.xpu.is_available() has to be '
        "True, else Intel's newest graphics driver",
        title="this torch is built for Intel GPUs (XPU), and the program asks for CUDA",
        meaning="The version ends in +xpu: it has no CUDA. A wheel for CUDA would not run on an Intel GPU.",
    ),
    Advice(
        ("nvml.not_loaded",),
        lambda facts: "wsl" in facts.platforms and facts.vendor in ("", "nvidia"),
        becomes="nvml.wsl",
    ),
    Advice(("cuda.feature",), "old_llvm", becomes="compile.ptxas"),
    Advice(
        ("compile.ptxas",),
        "old_llvm",
        "a newer torch, which brings its Triton (2.7 is the first for Blackwell, sm_120); where Triton was installed "
        "apart from it pip install -U triton (Windows: triton-windows for this torch); then rm -r ~/.triton/cache",
        title="the compiler in Triton (LLVM) does not know this GPU",
        meaning="Triton is older than the GPU. The CUDA toolkit and nvcc play no part in it.",
        certainty="strong",
    ),
    Advice(
        ("oom.mps",),
        r"mps allocated: 0(?:\.0+)? ?\w+, other allocations: 0(?:\.0+)? ?\w+[\s\S]{0,80}"
        r"allocate [\d.]+ ?(?:byte|[km])",
        'device="cpu" (in the code, or the program\'s option for its device), because no smaller batch helps; or a Mac '
        "in place of a virtual machine",
        title="the Metal device gives torch no memory",
        meaning="Nothing is in use, and a small request fails: usually macOS runs in a virtual machine, as a CI's.",
        certainty="strong",
    ),
    Advice(
        ("nccl.interface",),
        r"failed ?: ?network is unreachable|\blo:127",
        "NCCL_SOCKET_IFNAME=NAME on all nodes, of the interface that joins them (ip -brief address), or ^lo,docker0; "
        "NCCL_SOCKET_FAMILY=AF_INET where an address begins with fe80; the firewall has to let NCCL through",
        title="NCCL tries to reach a rank by an interface that does not lead there",
        meaning="The other rank told an address of an interface that this machine has no way to.",
        certainty="strong",
    ),
    Advice(
        ("dist.world_size",),
        r"ranks has already checked in",
        "a different RANK for every process: srun with --ntasks-per-node as many as devices, torchrun with another "
        "--node-rank on each machine, and no process of an earlier run that still uses MASTER_PORT",
        title="two processes have the same rank",
        meaning="NCCL counts each rank once as it starts, and one came twice.",
    ),
    Advice(
        ("cuda.no_kernel", "cuda.capability", "architecture."),
        lambda facts: (
            ("kepler" in facts.names or bool(facts.capabilities))
            and not (facts.has_code or "native" in facts.names)
            and all((fixes.number(capability) or 99) < 50 for capability in facts.capabilities)
        ),
        'device="cpu" (in the code, or the program\'s option for its device), or a newer GPU: CUDA 12 does not know '
        "this one, and so no current torch does",
        title="this GPU (Kepler or older) is too old for a current torch",
    ),
    Advice(
        ("kernel.nvrm", "cuinit.999"),
        lambda facts: "suspend" in facts.names and not facts.platforms & _NOT_LINUX,
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm with no program on the GPU, else reboot; against the next "
        "time NVreg_PreserveVideoMemoryAllocations=1 (options nvidia …, in /etc/modprobe.d), sudo systemctl enable "
        "nvidia-suspend nvidia-resume nvidia-hibernate, and another driver version",
        title="the driver did not come through a suspend",
        meaning="It has to save the GPU's memory before a suspend and to start its firmware again after it.",
        certainty="hint",
    ),
    Advice(
        ("cuda.argument",),
        r"ipcgetmemhandle|ipcopenmemhandle",
        "unset PYTORCH_CUDA_ALLOC_CONF (memory of expandable_segments cannot be shared), or do without the kernel that "
        "shares it: vLLM --disable-custom-all-reduce; in containers of one machine --ipc=host and one PID namespace",
        title="memory could not be shared with another process (CUDA IPC)",
    ),
    Advice(
        ("cudnn.not_initialized", "cudnn.failed", "cublas.", "cusolver.", "oom.cublas", "oom.cuda"),
        lambda facts: "jax" in facts.names and "pytorch" not in facts.names and (facts.free or 0) < 0.5,
        "export XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=0.7: JAX takes 75 % of the GPU "
        "at once; nvidia-smi shows what others hold; else pip install -U 'jax[cuda12]', with LD_LIBRARY_PATH unset",
    ),
    Advice(
        ("cudnn.version",),
        r"ld_library_path contains|comes bundled with cudnn",
        "unset LD_LIBRARY_PATH (or remove the folder of the other cuDNN from it): torch brings its own cuDNN",
    ),
    Advice(
        ("cusolver.failed",),
        r"cusolverdncreate|cublascreate|cudnncreate",
        "nvidia-smi shows whether the GPU is full: then use a smaller batch or end other programs; else call "
        'torch.linalg.inv(torch.eye(2, device="cuda")) before the model is loaded',
        title="cuSOLVER could not create its handle",
        meaning="A handle needs free GPU memory; the values of the matrix play no part in it.",
    ),
    Advice(
        ("oom.cuda",),
        lambda facts: "runtime" in facts.names and "allocator" not in facts.names,
        lambda facts: (
            (
                "try DataLoader(pin_memory=False) first: Windows limits how much memory WSL may pin; then "
                if "wsl" in facts.platforms
                else ""
            )
            + "nvidia-smi shows whether the GPU is full: then use another one, or end what fills it. If memory is "
            "free, pin less host memory (pin_memory=False; ulimit -l)"
        ),
        title="a CUDA call found no memory, outside torch's allocator",
        meaning="torch's allocator says `CUDA out of memory. Tried to allocate`. This text is the runtime's: it needed "
        "memory for a context on a full GPU, a module that is loaded late, a graph, a stream, IPC or pinned host "
        "memory.",
        certainty="strong",
    ),
    Advice(
        ("oom.cuda",),
        lambda facts: (
            "jax" in facts.names and "pytorch" not in facts.names and facts.holds("trying to allocate|allocate request")
        ),
        "a smaller batch or input, jax.checkpoint around layers, jax.jit(…, donate_argnums=…); "
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 lets JAX take more than its 75 % of the GPU, where nvidia-smi shows no "
        "other process",
    ),
    Advice(
        ("cuda.illegal", "cuda.misaligned", "cuda.launch_failure"),
        lambda facts: "jax" in facts.names and "pytorch" not in facts.names,
        "pip install -U 'jax[cuda12]' (jax[cuda13] on a new driver), which brings a newer XLA; XLA_FLAGS="
        "--xla_gpu_autotune_level=0 tells whether a chosen kernel is at fault, compute-sanitizer python … names it",
    ),
    Advice(
        ("cudnn.", "import.nvjitlink", "import.library"),
        lambda facts: "jax" in facts.names and "pytorch" not in facts.names and facts.vendor != "amd",
        "pip install -U 'jax[cuda12]', which brings its own CUDA and cuDNN, and unset LD_LIBRARY_PATH: other libraries "
        "there are loaded first",
    ),
    *(
        Advice(
            ("import.nvjitlink",),
            rf"symbol:? _*{name}\w*",
            f"echo $LD_LIBRARY_PATH: unset it and try again; else pip list | grep -i {name}: where packages of two "
            "CUDAs (cu11, cu12, cu13) share one folder, uninstall them all, then install the one that python -c 'from "
            'importlib.metadata import requires; print([r for r in requires("torch") if '
            f'"{name.lower()}" in r])\' shows',
            title=f"torch loads another {name} than its own",
            meaning="LD_LIBRARY_PATH, a CUDA toolkit, conda or a second package brings it.",
        )
        for name in ("NCCL", "nvJitLink", "cuSPARSE", "cuBLAS", "cuSOLVER", "cuFFT", "NVRTC")
    ),
    Advice(
        ("oom.cuda", "oom.hip", "oom.other", "oom.cublas"),
        lambda facts: "llama" in facts.names and not (facts.torch or facts.packages),
        "a shorter context (-c N; Ollama num_ctx), -ub 256 for a compute buffer, fewer layers on the GPU (-ngl N; "
        "num_gpu), or a smaller quantisation of the model; nvidia-smi shows what else holds memory",
    ),
    Advice(
        ("tensor.device_mismatch", "tensor.type_mismatch", "tensor.dtype"),
        _UIS,
        "update the program and the custom node or extension that the traceback names last, or do without it and "
        "without options that move parts of the model (low VRAM, offload); in your own code: x = x.to(device, dtype)",
    ),
    Advice(
        ("tensor.device_mismatch",),
        r"(?:accelerate[/\\]hooks|device_map|dispatch_model)[\s\S]*devices, \w+:\d+ and \w+:\d",
        "inputs.to(model.device), and x.to(y.device) in the line that the traceback names; pip install -U transformers "
        'accelerate; a model that fits on one GPU: device_map={"": 0}, or CUDA_VISIBLE_DEVICES=0',
    ),
    Advice(
        ("tensor.device_mismatch",),
        r"devices, \w+:\d+ and \w+:\d",
        'x.device (in a LightningModule self.device) in place of "cuda" and "cuda:0", which are GPU 0 in every '
        "process, and torch.cuda.set_device(local_rank) before the model is made",
    ),
    Advice(
        ("tensor.device_mismatch",),
        # torch names the argument that is on the second device; the arguments before it are on the first.
        r"devices, \w+:\d+ and cpu! \(when checking argument for argument (?:weight|bias|mat2|running_\w+)|"
        r"devices, cpu and \w+:\d+! \(when checking argument for argument (?:mat1|index) in method \w*(?:addmm|index_)|"
        r"got (?:weight|bias|mat2|running_\w+) is on cpu, different",
        "model.to(device) before it is used: a layer of it is on the CPU. Layers in a plain list or dict are not "
        "moved: nn.ModuleList, nn.ModuleDict; nor tensors that are attributes: self.register_buffer(name, x)",
    ),
    Advice(
        ("tensor.device_mismatch",),
        r"tokenizer\(|input_ids|\.generate\(|generation[/\\]utils",
        'inputs = tokenizer(text, return_tensors="pt").to(model.device), and every other input too',
    ),
    Advice(
        ("cuda.illegal", "cuda.launch_failure", "cuda.argument", "cuda.handle", "hip.fault", "cublas.", "cudnn."),
        _UIS,
        "a smaller image or fewer frames first, which tells whether memory is short; ComfyUI --disable-cuda-malloc and "
        "--use-pytorch-cross-attention or, on AMD, --use-split-cross-attention (A1111: --opt-sub-quad-attention, no "
        "--xformers); then the newest driver, and update the program and the node that the traceback names last",
    ),
    Advice(
        ("cublas.", "cudnn.", "hip.fault", "cuda.handle", "cuda.argument", "cuda.launch_failure", "cuda.illegal"),
        lambda facts: bool(facts.names & {"native", "llama"}) and not (facts.torch or facts.packages),
        "a newer release of the program: search its issues for this message and GPU; -ngl 0 (or its CPU build) tells "
        "whether the GPU's code is at fault, CUDA_VISIBLE_DEVICES=0 whether several GPUs are; sudo dmesg | grep -i xid",
    ),
    Advice(
        ("oom.cuda", "oom.cublas", "cublas.not_initialized", "cudnn.not_initialized"),
        lambda facts: "tf" in facts.names and not facts.names & {"pytorch", "jax"},
        "a smaller batch; export TF_FORCE_GPU_ALLOW_GROWTH=true, because TensorFlow takes the whole GPU at once; "
        "nvidia-smi shows what else holds memory. For cuDNN pip install -U 'tensorflow[and-cuda]'",
    ),
    Advice(
        ("cuda.no_kernel",),
        lambda facts: bool(facts.names & {"jax", "tf"}) and "pytorch" not in facts.names,
        "a newer release, which lists this GPU: pip install -U 'jax[cuda12]' or 'tensorflow[and-cuda]'; or build the "
        "package for this GPU",
        title="a package has no code for this GPU's architecture",
    ),
    Advice(
        ("cuda.illegal", "cuda.launch_failure", "cuda.device_assert", "cuda.misaligned", "hip.fault"),
        "server",
        "CUDA_LAUNCH_BLOCKING=1 before the server's command names the line; vLLM --enforce-eager (SGLang "
        f"--disable-cuda-graph), {BACKEND} and a newer release tell whose kernel it is",
        certainty="strong",
    ),
    Advice(
        ("assert.index", "assert.label", "cuda.device_assert"),
        r"ultralytics|yolo",
        "the class numbers in the label files (first column) have to be 0 to nc − 1, with nc and names of data.yaml to "
        "match. Delete the *.cache files beside the labels afterwards; device=cpu for one batch names the line",
    ),
    Advice(
        ("cuinit.too_old",),
        r"\A(?=[\s\S]*found version 12\d)(?=[\s\S]*\bvllm)(?![\s\S]*(?:docker|podman|kubectl))",
        "update the driver (CUDA 13 needs 580); or a new environment with vLLM's own wheel for CUDA 12.9, not another "
        "torch beside it: uv pip install https://github.com/vllm-project/vllm/releases/download/vV/vllm-V+cu129-cp38-"
        "abi3-manylinux_2_28_x86_64.whl --extra-index-url https://download.pytorch.org/whl/cu129 (V the release)",
    ),
    Advice(
        ("cuda.fork",),
        "vllm",
        "export VLLM_WORKER_MULTIPROC_METHOD=spawn, with the program's start under if __name__ == '__main__':",
    ),
    Advice(
        ("import.library",),
        lambda facts: facts.build.startswith("cu") and bool(facts.needs) and facts.build[2:4] != facts.needs,
        lambda facts: (
            f"the release of {facts.extension or facts.compiled or 'the package that asks for it'} for CUDA "
            f"{facts.build[2:4]} (torch is {facts.build}; vLLM: the +{facts.build} wheel of its releases, sgl-kernel "
            f"--index-url https://docs.sglang.ai/whl/{facts.build})"
            # A driver before 525 does not run CUDA 12.
            + f"; or torch and all packages for CUDA {facts.needs}, in a new environment"
            * (not facts.holds(r"driver version: 4\d\d\."))
        ),
        title="a package was built for another CUDA than torch",
        meaning="It asks for libraries of another major version of CUDA than torch brings. Both in one process crash.",
    ),
    Advice(
        ("pip.torch",),
        lambda facts: "mac" in facts.platforms and facts.holds(r"(?:requirement|found for) (?:triton|bitsandbytes)"),
        "on a Mac leave that line out of the requirements: triton has no wheel for it, bitsandbytes from 0.49 on alone",
    ),
    Advice(
        ("pip.torch", "torch.cpu_only"),
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
            else f"in pyproject.toml {fixes.INDEX}/cuXYZ as [[tool.uv.index]] with explicit = true, and torch, "
            "torchvision and torchaudio under [tool.uv.sources], with a marker that includes this system (uv sync does "
            "not read [tool.uv.pip]); requires-python has to be one that this torch has wheels for; then uv lock "
            "--upgrade-package torch && uv sync. PyPI's torch for Windows is a CPU build, and PyPI has no versions "
            "like +cu128"
        ),
    ),
    Advice(("pip.torch",), lambda facts: bool(facts.asked or facts.wanted) and "no_triton" not in facts.names, _pip),
    Advice(
        ("oom.vllm",),
        r"retract(?:ed_reqs| requests)|preemptionmode\.",
        "nothing, where it is rare: the requests wait and run again. If it is frequent: fewer at once by vLLM "
        "--max-num-seqs (SGLang --max-running-requests or --schedule-conservativeness 1.3), a larger cache by vLLM "
        "--gpu-memory-utilization (SGLang --mem-fraction-static) while nvidia-smi shows free memory, or a shorter "
        "context",
        title="the server's cache of keys and values is full, and requests wait",
        meaning="That is the server's scheduling, and no error of the GPU: the cache has the size that was set.",
        certainty="hint",
    ),
    Advice(
        ("oom.vllm",),
        r"error in memory profiling",
        "start the server again while no other program, nor an earlier server, ends on that GPU: nvidia-smi shows who "
        "is there; several servers one after the other. With unified memory or without others: a newer vLLM",
        title="GPU memory became free while vLLM measured what it needs",
    ),
    Advice(
        ("oom.cuda", "oom.hip", "oom.nvml_assert"),
        lambda facts: (
            "server" in facts.names
            and facts.holds(r"in (?:profile_run|determine_(?:available_memory|num_available_blocks))\b")
        ),
        "vLLM --max-num-batched-tokens, --max-num-seqs and --max-model-len smaller (for images --limit-mm-per-prompt): "
        "its trial run with the largest batch found no memory; else a quantised model or more GPUs; nvidia-smi shows "
        "whether others hold memory",
    ),
    Advice(
        ("oom.cuda", "oom.hip"),
        lambda facts: {"server", "loading"} <= facts.names,
        "more GPUs by vLLM --tensor-parallel-size N (SGLang --tp N), a quantised or a smaller model: it ran out while "
        "the weights were loaded; nvidia-smi shows whether others hold memory",
    ),
    Advice(
        ("torch.no_accelerator", "torch.sees_none", "cuinit.100"),
        lambda facts: facts.vendor == "amd" and (facts.build.startswith("rocm") or "rocm" in facts.platforms),
        becomes="hip.none",
    ),
    Advice(("cuda.no_kernel",), lambda facts: "rocm" in facts.platforms, becomes="hip.arch"),
    Advice(
        ("compile.ptxas",),
        lambda facts: "build" in facts.names and not facts.names & {"triton", "inductor", "ptxas", "old_llvm"},
        becomes="nvcc.arch",
    ),
    Advice(
        ("pip.torch",),
        lambda facts: "no_triton" in facts.names and "windows" in facts.platforms,
        "pip install triton-windows, in the version for this torch (its page lists them), and leave triton out",
        title="pip finds no triton: on Windows it is the package triton-windows",
    ),
    Advice(
        ("import.libcuda", "import.library"),
        lambda facts: "bnb" in facts.names and ("windows" in facts.platforms or facts.holds(r"cuda[ _]setup:")),
        becomes="bitsandbytes.setup",
    ),
    Advice(
        ("bitsandbytes.setup",),
        r"cuda[ _]setup:|bitsandbytes-windows",
        "pip uninstall -y bitsandbytes bitsandbytes-windows, then pip install -U bitsandbytes: this release is older "
        "than 0.44 (a newer one has libraries for all CUDAs, also for Windows); python -c 'import torch; "
        "print(torch.cuda.is_available())' has to print True",
        title="this bitsandbytes is too old: it has no library for torch's CUDA or system",
    ),
    Advice(("import.dll",), r"error 1455|paging file is too small", becomes="oom.host"),
    Advice(
        ("tensor.backend",), r"could not run aten::\S+ with arguments from the \w*mps backend", becomes="mps.operation"
    ),
    Advice(
        ("cuda.no_kernel",),
        lambda facts: "native" in facts.names and not (facts.torch or facts.packages or "pytorch" in facts.names),
        lambda facts: (
            "build it again: cmake -DCMAKE_CUDA_ARCHITECTURES="
            + (";".join(facts.capabilities).replace(".", "") or "86 for 8.6 (nvidia-smi --query-gpu=compute_cap …)")
            + ", with a toolkit that knows this GPU; a program that came ready-made (LM Studio, Ollama): its newest "
            "release, or another runtime, such as Vulkan"
        ),
        title="the program was not built for this GPU's architecture",
        meaning="Its CUDA code is for other GPUs than this one.",
    ),
    Advice(
        ("hip.arch",),
        lambda facts: "windows" in facts.platforms,
        "a release of the program for this gfx number, or rocBLAS's library files for it in the HIP SDK's folder "
        "bin\\rocblas\\library; else the program's Vulkan or DirectML build",
    ),
    Advice(
        ("compile.resources",),
        "inductor",
        "no --enable-torch-compile, else TORCHINDUCTOR_MAX_AUTOTUNE=0; a newer torch, or the last that worked; else "
        '@torch.compiler.disable on it; flex_attention: kernel_options={"BLOCK_M": 64, "BLOCK_N": 64}',
    ),
    Advice(
        ("nvml.not_loaded", "kernel.wrong_module", "kernel.nouveau"),
        r"\bfedora\b|\.fc\d\d\b|\bakmod|\brpm ?fusion\b",
        "sudo dnf install akmod-nvidia kernel-devel-$(uname -r) && sudo akmods --force --rebuild && sudo dracut -f "
        '(an RTX 50 needs the open kernel module: before it sudo sh -c \'echo "%_with_kmod_nvidia_open 1" > '
        "/etc/rpm/macros.nvidia-kmod'), then reboot. Where mokutil --sb-state says enabled: sudo mokutil --import "
        "/etc/pki/akmods/certs/public_key.der, and Enroll MOK at the reboot",
    ),
    Advice(
        ("nvcc.missing",),
        r"no cuda toolset found",
        "copy the files of CUDA\\vX.Y\\extras\\visual_studio_integration\\MSBuildExtensions (in NVIDIA GPU Computing "
        "Toolkit) to MSBuild\\Microsoft\\VC\\v170\\BuildCustomizations of Visual Studio, or install the CUDA toolkit "
        "again after Visual Studio, with Visual Studio Integration",
        title="Visual Studio does not have the CUDA toolkit's integration",
    ),
    Advice(
        ("nvcc.missing",),
        r"cmake_cuda_compiler|cuda_architectures is empty|llama[-_.]cpp|could not find cudatoolkit|cmake error",
        "nvcc --version has to work in this shell: install NVIDIA's CUDA toolkit for a CUDA that nvidia-smi shows, "
        "then export CUDACXX=/usr/local/cuda/bin/nvcc and, for CMake, -DCMAKE_CUDA_ARCHITECTURES=native (in CMAKE_ARGS "
        "for pip; 86 for 8.6 where no GPU is visible); delete the old build folder",
        title="CMake finds no CUDA compiler (nvcc)",
    ),
    Advice(
        ("import.extension",),
        r"mmcv\._ext",
        "pip uninstall -y mmcv mmcv-full mmcv-lite, then the wheel for this torch: pip install mmcv -f "
        "https://download.openmmlab.com/mmcv/dist/cuXYZ/torchX.Y/index.html; where that page has none (torch after "
        "2.4, Python after 3.11) MMCV_WITH_OPS=1 FORCE_CUDA=1 pip install -v --no-build-isolation "
        "FOLDER_OF_ITS_SOURCES, with the CUDA toolkit of torch's CUDA",
    ),
    Advice(
        ("nvml.mismatch",),
        lambda facts: "reboot" in facts.names and "container" not in facts.names,
        "cat /proc/driver/nvidia/version names the module's version, dpkg -l | grep -i nvidia (rpm -qa) the "
        "libraries': remove one of the two (sudo nvidia-uninstall for one of a .run file) and install the other whole, "
        "with its DKMS package; sudo dkms status has to list it for uname -r, then sudo update-initramfs -u and start "
        "again",
    ),
    Advice(
        ("torch.no_accelerator",),
        lambda facts: facts.holds("skip-torch-cuda-test") and facts.vendor != "amd",
        "nvidia-smi has to list the GPU; then venv/bin/python -c 'import torch; print(torch.__version__)' in the "
        "webui's folder: where it ends in +cpu or +rocm, delete the folder venv and start the webui again "
        f"(TORCH_COMMAND=pip install torch torchvision --index-url {fixes.INDEX}/cu128 chooses the build)",
    ),
    Advice(
        ("nvml.mismatch",),
        "container",
        "nvidia-smi on the host: where it works, start the container again, and if that is not enough remove NVIDIA's "
        "libraries from its image (dpkg -l | grep -i nvidia in it); where it fails there too, reboot the host",
    ),
    Advice(
        ("torch.cpu_only",),
        r"compiled with(?:out)? xpu|support for xpu devices",
        f"pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu for an Intel GPU (Arc, Core Ultra or Data "
        'Center; older ones: OpenVINO); for another choose its device ("cuda", "mps") in the code, or by the '
        "program's option",
        title="this torch is built without XPU, which Intel's GPUs need",
    ),
    Advice(("torch.cpu_only", "bitsandbytes.setup"), lambda facts: facts.vendor == "amd", _for_amd),
    Advice(
        ("ray.resources",),
        r"ray does not allocate any gpus on the driver node",
        "start vllm on a node whose GPUs Ray lists (ray status; not a head node without one), and give VLLM_HOST_IP "
        "the address that ray list nodes shows for it, without a slash or a port",
        title="vLLM's driver process finds none of Ray's GPUs on its own node",
        meaning="vLLM looks for workers with its own address: the node has no GPU in Ray, or the address is another.",
    ),
    Advice(
        _CUDAS,
        lambda facts: (
            (facts.vendor == "amd" and not facts.build.startswith("rocm"))
            or ("rocm" in facts.platforms and facts.holds(r"lib(?:cu|nv|nccl)\w*\.so\S* cannot open"))
        ),
        _for_amd,
        title="a build for NVIDIA's CUDA on a machine with an AMD GPU",
        meaning="CUDA's libraries and NVIDIA's driver are of no use to an AMD GPU: ROCm has other builds.",
    ),
    Advice(
        _CUDAS,
        lambda facts: facts.vendor == "intel",
        f"pip install --force-reinstall torch --index-url {fixes.INDEX}/xpu, Intel's newest graphics driver, and "
        'device "xpu" in place of "cuda" (in the code, or the program\'s option for its device)',
    ),
    Advice(
        ("import.library",),
        "jetson",
        "libcudss: sudo apt-get install cudss; libcusparseLt: sudo apt-get install libcusparselt0 (both from NVIDIA's "
        "CUDA repository: package cuda-keyring); others: sudo apt-get install nvidia-jetpack, and "
        "/usr/local/cuda/lib64 in LD_LIBRARY_PATH (.so.10 is of JetPack 4, CUDA 10.2); in a container docker run "
        "--runtime nvidia with an image of the host's JetPack",
    ),
    Advice(
        ("container.no_runtime", "container.cli", "container.cdi"),
        lambda facts: ("windows" in facts.platforms or "desktop" in facts.names) and not facts.holds("requirement err"),
        "Docker Desktop brings the toolkit: choose its WSL 2 engine (Settings, General), update NVIDIA's driver in "
        "Windows, wsl --update, then docker run --gpus all …; on Linux docker context use default",
    ),
    Advice(("attention.kernel",), lambda facts: facts.operators in list(_OPERATORS)[:2], becomes="xformers.setup"),
    Advice(("xformers.setup",), lambda facts: facts.operators in list(_OPERATORS)[2:], becomes="attention.kernel"),
    *(
        Advice(
            ("attention.kernel", "xformers.setup"),
            functools.partial(lambda facts, title: facts.operators == title, title=title),
            then,
            title=title,
            meaning="xFormers lists below each operator why it does not take these inputs; all of them name this.",
        )
        for title, (_, then) in _OPERATORS.items()
    ),
    Advice(
        ("import.dll", "attention.package"),
        r"winerror 1114|dll.{0,20}initiali[sz]ation routine|dll.{0,8}(?:初始化|初期化|초기화)|"
        r"dll-?initialisierung|(?:inicializaci[oó]n|initialisation|инициализац).{0,40}dll",
        "where vcruntime140.dll msvcp140.dll libiomp5md.dll shows copies: rename old ones beside python.exe, or update "
        "them (conda install -c conda-forge vc14_runtime; else Microsoft's Visual C++ Redistributable); import torch "
        "before packages that load their own, such as PyQt",
        title="a DLL was found and failed as it started (error 1114)",
        meaning="No file is missing. It got an older runtime DLL, usually from beside python.exe or from another "
        "package that was loaded first.",
    ),
    Advice(
        ("import.dll",),
        r"fbgemm\.dll",
        "pip install --upgrade torch torchvision --index-url https://download.pytorch.org/whl/cuXYZ, the index of the "
        "torch in place (/whl/cpu for the CPU's): 2.4.1 and newer bring libomp140.x86_64.dll",
        title="fbgemm.dll does not find libomp140.x86_64.dll",
        meaning="The wheel of torch 2.4.0 lacks that DLL, which Microsoft's redistributable does not have; another "
        "torch may lack the runtime.",
    ),
    Advice(
        ("compile.cuda_h", "nvcc.missing", "nvcc.mismatch"),
        r"\bconda\b|mini(?:conda|forge)|anaconda|mambaforge",
        "conda install -c nvidia cuda-toolkit=X.Y (torch.version.cuda), then export CUDA_HOME=$CONDA_PREFIX (Windows: "
        "%CONDA_PREFIX%\\Library) in the same environment, and build again",
    ),
    Advice(
        ("bitsandbytes.setup", "import.symbol", "quant.extension", "vllm.start", "attention.package", "xformers.setup"),
        lambda facts: bool(facts.checkout),
        lambda facts: (
            f"start the program from another folder, with a release installed (pip install {facts.checkout}): Python "
            f"imports the sources of {facts.checkout} that lie here and are not built for this torch; or build them "
            f"again ({'cmake -DCOMPUTE_BACKEND=cuda -S . && make && ' * (facts.checkout == 'bitsandbytes')}pip install "
            "--no-build-isolation -e .)"
        ),
    ),
    Advice(
        ("nccl.timeout",),
        r"\(seqnum=[1-3],(?![\s\S]*seqnum=\d\d)",
        "NCCL_P2P_DISABLE=1 on one machine (vLLM and SGLang: --disable-custom-all-reduce too) tells whether it is P2P, "
        "which an IOMMU or ACS breaks: gpucheck doctor shows both; between machines NCCL_SOCKET_IFNAME=NAME of the "
        "interface that joins them; NCCL_DEBUG=INFO shows how far each rank came",
        title="one of the first collectives hangs: the GPUs or machines do not reach each other",
    ),
    Advice(
        ("oom.cuda", "oom.nvml_assert"),
        "jetson",
        "run one model at a time, a smaller or quantized one, and stop the desktop, which shares this memory (sudo "
        "systemctl isolate multi-user.target); sudo tegrastats shows it",
    ),
    Advice(
        ("oom.cuda", "oom.hip", "oom.nvml_assert"),
        lambda facts: "server" in facts.names,
        "leave more of the GPU free: vLLM --gpu-memory-utilization 0.85 or less with a smaller --max-model-len and "
        "--max-num-seqs and --max-num-batched-tokens (SGLang --mem-fraction-static 0.8 or less with a smaller "
        "--cuda-graph-max-bs and --chunked-prefill-size); nvidia-smi shows whether others hold memory",
    ),
    Advice(
        ("oom.killed", "process.killed"),
        r"(?<![\w./])/content/|google\.colab|\bcolab\b",
        "Runtime, View resources shows the RAM; then a runtime with more of it (High-RAM), a smaller model or data "
        "set, or data that are not held in memory at once",
    ),
    Advice(
        ("oom.killed",),
        "ray",
        "less RAM per node: fewer workers and actors at once (num_cpus, num_workers), less offloading to the CPU, or "
        "nodes with more RAM; ray memory shows who holds it. RAY_memory_usage_threshold=0.98 only raises Ray's limit",
    ),
    Advice(
        ("process.killed",),
        r"potential root causes",
        "the dead worker's own log names it: /tmp/ray/session_latest/logs/worker-*PID*.err and .out; ray list "
        "workers --detail, and sudo dmesg -T | grep -i -e oom -e segfault on its node",
        title="a Ray worker ended, and the text does not name the cause",
        meaning="Ray lists what may be behind it: the OOM killer, ray stop, a crash in compiled code. None is shown.",
    ),
    Advice(
        ("vllm.start", "sglang.start"),
        r"\b(?:assertion|key|attribute|type|notimplemented|index|value)error\b",
        "search the server's issues for the words of the exception above: it is raised in the server's own code; a "
        "newer release (or the last that worked), and fewer options at once, tell whether the model or an option it is",
    ),
    Advice(
        ("dist.tcp",),
        lambda facts: "ipv6" in facts.names and "tcp" not in facts.names,
        "nothing to do for it; the first error below or on another rank is the cause",
        title="a harmless warning: this machine has no IPv6",
        meaning="torch tries IPv6 first and goes on with IPv4.",
    ),
    Advice(
        ("compile.backend",),
        lambda facts: "triton" in facts.names and "inductor" not in facts.names,
        "look at the first error: line above, and update triton and the package whose kernel the traceback names "
        "together, then rm -r ~/.triton/cache. On a GPU before Ampere (8.0) turn the kernel off",
        title="Triton could not compile a package's kernel",
        meaning="torch.compile takes no part in it: the kernel is that of the package in the traceback.",
    ),
    Advice(
        _OFFLINE,
        lambda facts: facts.build == "cpu" and "mac" not in facts.platforms and "no_driver" not in facts.names,
        becomes="torch.cpu_only",
    ),
    Advice(
        ("torch.cpu_only",),
        # If the paste states no build, the text itself shows that torch has no CUDA.
        lambda facts: (
            (facts.build == "cpu" or (not facts.build and fixes.release_of(facts.torch) in fixes.RELEASES))
            and not ("mac" in facts.platforms or facts.holds(r"\bconda install [^\n]*torch|_cpu_\d"))
        ),
        _install,
    ),
    Advice(
        ("cuinit.100", "torch.no_accelerator"),
        "ray",
        "@ray.remote(num_gpus=1) on the task or actor that uses the GPU (Ray hides the GPUs from every other one; vLLM "
        'on several GPUs: num_gpus=0 and a placement group of N bundles {"GPU": 1}, in Ray Data by ray_remote_args_fn, '
        'or distributed_executor_backend="mp" with num_gpus=N); ray status shows how many GPUs Ray has',
        meaning="Ray sets CUDA_VISIBLE_DEVICES in each task and actor to the GPUs that it asked for: none without "
        "num_gpus.",
    ),
    Advice(
        ("cuinit.100", "cuinit.no_driver", "nvml.no_library"),
        "jetson",
        "a container needs docker run --runtime nvidia and an image of the host's JetPack; outside one, NVIDIA's torch "
        "wheel for the JetPack and sudo usermod -aG video,render $USER (a Jetson before JetPack 7 has no nvidia-smi)",
    ),
    Advice(
        ("cuinit.100", "cuinit.no_driver", "torch.no_accelerator"),
        "kubernetes",
        "resources.limits with nvidia.com/gpu: 1 in the pod, and runtimeClassName: nvidia where the cluster has one; "
        "kubectl describe node NODE | grep nvidia.com/gpu shows whether the node offers any",
    ),
    Advice(
        ("cuinit.100", "cuinit.no_driver", "torch.no_accelerator", "nvml.not_loaded", "nvml.no_devices"),
        r"\bsrun\b|\bslurmstepd\b|\bslurm_|\bsbatch\b",
        "--gres=gpu:1 (or --gpus=1) for sbatch and srun: a job sees no GPU that it did not ask for; nvidia-smi -L "
        "inside the job lists them",
        title="the cluster's job sees no GPU",
        certainty="hint",
    ),
    Advice(
        ("cuinit.", "torch.no_accelerator", "torch.sees_none", "nvml.no"),
        r"(?<![\w./])/content/|google\.colab|\bcolab\b",
        "Runtime, Change runtime type, a GPU; then start the notebook again",
    ),
    Advice(
        ("cuda.no_kernel",),
        lambda facts: facts.has_code or (facts.has_code is None and bool(facts.names & {"kernels", "function"})),
        _rebuild,
        title="a package's own code does not fit this GPU, or is of a stale build",
        meaning="The extension that the traceback ends in was built for other GPUs, or for another CUDA or torch.",
    ),
    Advice(
        ("cuda.capability", "architecture."),
        lambda facts: facts.has_code is True and "code" not in facts.names,
        "nothing to install: the warning is harmless",
        title="a harmless warning: torch's code runs on this GPU",
        meaning="Code of the same major version runs on a GPU of a higher minor version, as that for 12.0 on 12.1.",
    ),
    Advice(
        ("cuda.capability", "cuda.no_kernel", "architecture.", "cudnn.failed"),
        lambda facts: facts.has_code is False and bool(fixes.release_of(facts.torch)),
        _install,
        title="torch has no code for this GPU's architecture",
        certainty="proof",
    ),
    Advice(
        ("cuda.capability",),
        r"in this version of the container|to run this container",
        "a newer release of the image: nvcr.io/nvidia/pytorch:25.01-py3 is the first one for Blackwell",
        title="this container image does not support this GPU",
    ),
    Advice(("cuda.capability", "architecture."), lambda facts: bool(facts.capabilities), _install),
    Advice(
        ("cuda.no_kernel",),
        # The GPUs between these capabilities have code in torch's own wheels.
        lambda facts: (
            facts.has_code is None
            and any(value >= 100 or value < 70 for value in map(fixes.number, facts.capabilities) if value)
            and not facts.names & {"kernels", "native", "llama"}
        ),
        _install,
        title="this torch has no code for this GPU's architecture",
    ),
    Advice(
        ("build.extension",),
        r"torch_extensions/\S{1,120}\.so\W{0,2} ?cannot open",
        "rm -r ~/.cache/torch_extensions, then start again: the build that did not end then shows its error",
        title="an extension's build of an earlier run is incomplete",
        meaning="torch found its folder and took it for built.",
    ),
    Advice(
        ("vllm.start", "quant.extension"),
        lambda facts: "vllm" in facts.names and "windows" in facts.platforms,
        "run it inside WSL, or in its container with Docker's WSL 2 engine; a fork for Windows has its own wheels",
        title="vLLM has no release for Windows",
        meaning="Its compiled half is missing: the package was installed from sources without it.",
    ),
    Advice(
        ("cuda.ptx",),
        r"ptx jit compilation failed|(?:error_|error)invalid_?ptx",
        "build or install the program for this GPU (nvidia-smi --query-gpu=compute_cap --format=csv shows its number; "
        "gpu-burn: make COMPUTE=8.6), and update the driver",
        title="the driver could not compile a kernel's PTX",
        meaning="It was made for a newer GPU than this one, or by a newer CUDA than the driver's.",
        certainty="strong",
    ),
    Advice(
        ("cuda.ptx",),
        lambda facts: not facts.torch and not facts.packages and "triton" not in facts.names,
        "update the driver, or use the program's build for a CUDA that is not newer than nvidia-smi shows",
    ),
    Advice(
        ("compile.ptxas",),
        "ptxas",
        "export TRITON_PTXAS_PATH=/usr/local/cuda-13.0/bin/ptxas and TRITON_PTXAS_BLACKWELL_PATH to the same (Triton "
        "brings an older ptxas, which does not know this GPU; that of CUDA 13 does), or use a newer torch",
    ),
    Advice(
        ("numerics.nan",),
        lambda facts: (
            facts.holds(r"skipping step")
            and not facts.holds(r"\bnan\b|scale:? (?:to )?(?:1(?:\.0)?|0\.\d*|[\d.]+e-\d+)(?![\d.])|at minimum")
        ),
        "nothing while it is rare and the scale stays above 1: float16 training skips such steps and lowers the scale; "
        "if every step is skipped, bfloat16 or a lower learning rate",
        title="the loss scaler skipped a step, as it does while it finds its scale",
        certainty="hint",
    ),
    Advice(("cuda.illegal_access", "cuda.misaligned"), "", certainty="strong"),
)


def advise(text: Condition, facts: Facts) -> tuple[Condition, bool]:
    """Return the text adapted to the facts, and whether its step comes from the facts."""
    for row in ADVICE:
        if not row.becomes and row.holds(text.id, facts):
            step = row.then if isinstance(row.then, str) else row.then(facts)
            title, meaning = row.title or text.title, row.meaning or text.meaning
            # A title with an assumption is only a hint.
            sure = row.certainty or ("hint" if re.search(r"usually|probably|\(or ", row.title) else text.certainty)
            return replace(text, title=title, meaning=meaning, fix=step or text.fix, certainty=sure), bool(step)
    return text, False


def proven(name: str, facts: Facts) -> str:
    """Return the id of the text that the facts prove instead of this one, or an empty string."""
    return next((row.becomes for row in ADVICE if row.becomes and row.holds(name, facts)), "")
