"""Facts that a pasted text states about its system, and the advice that depends on them. No I/O.

The matched text says what failed. Other lines say where: the system, torch, the GPU, the launcher and the packages
involved. A fact that is not stated stays empty, and gives no advice.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpucheck import messages
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Certainty

Platform = Literal["wsl", "windows", "mac", "rocm", "xpu", "directml"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a paste states.

    `torch` is the version without its build; `build` is `cpu`, `cu128`, `rocm6.4` or the like. `capabilities` are the
    GPUs' compute capabilities, derived from their names if needed. `architectures` are those that torch has code for.
    `packages` are the packages in the traceback, `names` the keys of `_NAMED` that match, `gfx` the AMD GPU without
    code. `needs` is the major CUDA version in the name of a missing library. `asked` and `wanted` are the version and
    build requested from pip, `listed` the oldest and newest release that pip found. `free` is the free share of memory.
    `checkout` is a package whose sources are in the working folder. `tried` are the variables that were already set.
    `text` is the paste in lower case, without colours and quotes.
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
    "needs": re.compile(r"lib(?:cudart|cublas\w*|cufft|nvrtc|cusparse|cupti)\.so\.((?:9|10)\.\d|1\d)\b"),
    "asked": re.compile(_ASKED + r"torch ?(?:==|\() ?v?(\d+\.\d+(?:\.\d+)?)"),
    "wanted": re.compile(rf"(?:{_ASKED}torch\w*[=( ]+[\d.]+\+|in indexes: \S*/whl/)((?:cu|cpu|rocm|xpu)[\d.]*)"),
}
_CAPABILITY = re.compile(
    r"(?:(?:cuda |compute )?capability (?:\(cc\) )?(?:of )?|cuda capability sm_)(\d{1,2}\.\d|\d{2,3}(?!\.))[af]?\b"
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
    (r"rtx ?30[5-9]0|\b30[5-9]0 gpu\b|rtx ?a\d000|\ba[456]000\b|\ba10g?\b|\ba40\b", "8.6"),
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
    "ray": r"\bray::|\b(?:import|from) ray\b|@ray\.|\bray\.exceptions|\(raylet\)|ray_distributed_executor|raytaskerror|"
    r"\bflwr\b",
    "torchrun": r"\btorchrun\b|torch\.distributed\.(?:run|launch|elastic)",
    "container": r"\bdocker\b|/\.dockerenv|\bkubectl\b|\bpodman\b|/workspace/",
    "kubernetes": r"\bkubectl\b|\b(?:kubernetes|gke|kubelet)\b|\bk8s\b|kube-?ray|volumemounts|emptydir|apiversion: ?v1",
    "jetson": r"[+.]nv2\d\.\d\d\b|"
    r"\btegra\b|\bjetson\b|\bjetpack\b|\bl4t\b|\borin\b|capabilit[^\n(]{0,40}\b(?:5\.3|7\.2|8\.7)\b",
    "cluster": r"\bhpc\b|\bslurm|\bsbatch\b|\bmodule load\b|\bloading th\w+ modules\b|\blogin node\b",
    # An installed package that compiles as it runs.
    "running": r"\A(?![\s\S]*(?:setup\.py|wheel|pip install|cmake))(?=[\s\S]*cuda_home)"
    r"[\s\S]*packages[/\\][\w/\\]+\.py, line[\s\S]*cuda_home",
    "smi": r"driver version: \d{3}\.\d[\s\S]{0,2000}\dmib */ *\d+mib",
    "image_build": r"(?m)^#\d+ (?:\d+\.\d+|\[[\w/ .-]+\]) |^step \d+/\d+ : run ",
    "own_kernel": r"compil\w+ (?:\w+ ){0,5}kernel|kernel (?:\w+ ){0,4}(?:compiled|built)|custom kernel|config_dxg",
    "frozen": r"pyinstaller|\bpyimod\d|整合包|(?<![\w\\/:.])torch\\\w+(?:\\\w+)*\.py:\d+: userwarning",
    "linux": r"\A(?![\s\S]*\b[a-z]:\\)[\s\S]*/(?:home|usr|root|opt)/",
    "own_code": r"trust_remote_code ?= ?true|transformers_modules",
    "pixi": r"\.pixi[/\\]|\bpixi (?:add|install|run)",
    # The forms of messages of torch before 2.1.
    "old_torch": r"\(gpu \d; [\d.]+ [gm]ib total|optype=\w+, timeout\(|[/\\]thc[/\\]",
    "no_inference_mode": r"thcudacheck|[/\\]thc[/\\]|; [\d.]+ [gm]ib cached\)|"
    r"\btorch(?: version)?[ \t:=-]{1,4}(?:0\.[1-4]|1\.[0-8])\b",
    "conda_cpu": r"(?m)_pytorch_select +\S+ +cpu_|^cpuonly +\d|^pytorch +\d\S+ +(?:cpu_|py\S+_cpu)",
    "crio": r"\bcri-?o\b",
    "podman": r"\busing podman\b|\bpodman(?:-compose| run| exec| version)",
    "desktop": r"\bdocker desktop\b|\bdesktop-linux\b|start docker compose application|docker_engine|dockerdesktop",
    "nvidia": r"\b(?:geforce|quadro|rtx ?(?:pro )?\d{4}|gtx ?\d{3,4}|tesla [a-z]\d|[ahb][12]00|l40s?)\b|"
    r"driver version: \d{3}\.|(?<!have an )\bnvidia (?:gpu|titan|gb?\d)",
    # This excludes a processor's integrated graphics.
    "amd": r"(?<!w/ )(?<!with )\bradeon\b(?!(?: tm)? graphics| \d{3}m)|\bamd instinct\b|\bmi[123]\d\dx?\b|"
    r"\bgfx\d{3,4}\w?\b|\brx ?[5679]\d00\b|\bamd \(rocm\)|\bamd r\d{4}\b|\b(?:amd|r9) \d{3}x?\b|\b(?:on|an|my|with) "
    r"amd (?:gpu|card)",
    "intel": r"\bintel\b.{0,8}\b(?:arc|iris(?:\W+r)?\W+xe|data center gpu)\b|\barc\W{1,2}(?:tm\W{1,2})?[ab]\d{3}\b",
    "shm": r"--shm-size[= ]?\d+ ?g|ipc[=: ]host|/dev/shm\b.{0,30} \d{2,} ?gi?b?\b|"
    r"\b(?:not|no|without) (?:in |using )?(?:an? )?(?:docker|container)",
    "sharing": r"\b(?:put|tried|added|used)\b[^.]{0,60}\btorch\.multiprocessing\.set_sharing_strategy",
    "reboot": r"\n\W{0,3}(?:sudo )?reboot\W{0,3}\n|"
    r"\b(?:rebooted|rebooting|restarted (?:the|my) (?:pc|machine|computer|system|server))\b",
    "redistributable": r"(?<!not )installed[^\n.]{0,60}redist|redist\w*[^\n.]{0,40}(?:is|was|already|re) ?installed",
    "torchvision": r"\btorchvision\b|\bultralytics\b|\bcomfyui",
    "torchaudio": r"\btorchaudio\b|\bpyannote\b|\bwhisperx\b|\bindex-?tts\b|\bcomfyui",
    "uv": r"\buv (?:pip|sync|add|run|lock|tool)\b|\btool\.uv\b",
    "project": r"\buv (?:sync|add|run|lock)\b|\btool\.uv\b|\bpoetry (?:add|install|lock|update|issue)\b",
    "portable": r"python_embeded",
    "bundled": r"\bsystem\\python\\lib",
    # Programs with a user interface, whose users do not change the code.
    "ui": r"comfyui|custom_nodes|\bwebui\b|invokeai|fooocus|oobabooga|kohya_ss[/\\]|onetrainer",
    "colab": r"\A(?![\s\S]*\b(?:works?|working|fine|runs?|ran|ok)\b[^.\n]{0,40}\bcoll?ab)[\s\S]*"
    r"(?:(?<![\w./])/content/|google\.colab|\bcoll?ab\b|//localhost:8080/#\) in)",
    "webui": r"stable-diffusion-webui|webui-user|\bwebui\.sh|\bload forge\b",
    "powershell": r"\bps [a-z]:\\|\$env:|\bpowershell\b",
    "old_llvm": r"sm_\d+\w? is not a recognized processor",
    "kepler": r"\bgt ?[67][1-4]0m?\b|\bgtx ?(?:6[5-9]0|7[678]0)(?:m|ti)?\b|\btesla k(?!80)\d+|"
    # The excluded ones are Maxwell GPUs, or the K80, which wheels for CUDA 11.8 support.
    r"\bquadro k(?!620|1200|2200)\d+|capability (?:sm_|\(cc\) |of )?3\.?[0-5]\b",
    "suspend": r"(?:\b|pmops_)suspend(?:s|ed|ing)?\b|powermanagement|powermgmt|\b(?:enters?|from) standby\b|"
    r"\bto sleep\b|\bafter (?:a )?(?:sleep|hibernat\w*|resum\w+|standby|wak\w+)\b",
    "conda": r"\bconda(?:-forge|:\w| (?:install|env\w*|create|activate|list|update)\b)",
    "dockerd": r"docker default runtime|nvidia-docker2|\bdockerd\b|daemon\.json",
    "nccl_info": r"\bnccl info\b",
    "server": r"\bvllm (?:serve|version)|enginecore|\bvllmworker|\bworker_tp\d|multiproc_executor|sglang[./\\](?:srt|"
    r"launch)|vllm[./\\](?:v1|worker|engine|entrypoints|executor)|text[-_]generation[-_](?:launcher|server)|"
    r"tritonserver|\blmdeploy\b",
    "function": r"invalid device function(?! at \S*(?:conda-bld/pytorch|/thc/))",  # torch's own files
    "kernels": r"running sage|(?:\w+_kernels?|flashinfer|flash_attn|xformers|mamba_ssm|causal_conv1d|gsplat|mmcv|"
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
    "inductor": r"[_h]inductor|def triton_|_dynamo|torch\.compile|inductorerror|backendcompiler|loweringexc|cppcompile",
    "triton": r"compilationerror: at \d|passmanager|mlir pass|triton[./\\](?:compiler|runtime|backends)|triton error",
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
    "native": r"\bggml|llama[-_.](?:cpp|cli|server)|whisper\.cpp|\bcmake\b|\bopencv\(|\bnvcc\b(?!.{0,9}failed with)",
    "llama": r"\bggml|llama\.go:|\bllama_(?:model|context|kv|init)|\bcuda\d buffer|\bllama[-_.](?:cpp|cli|server)|"
    r"\bollama\b|koboldcpp|lm[- ]?studio",
    "accelerate": r"\baccelerate (?:launch|config)|accelerate[/\\](?:commands|state)",
}
_COMPILED = re.compile(
    r"(?:-packages|\.\.\.)[/\\](\w+?)(?:_\d)?(?:_cuda|_c)?(?:[/\\][\w./\\-]*)?\.(?:cpython|abi3|cp3|so\b|pyd)"
)
# Variables that a paste says were set, in a command or in a sentence.
_SET = re.compile(
    r"\b(?:i|we|ive|weve) (?![^.\n]{0,50}(?:like|want|how|need) )[^.\n]{0,60}?(?=[a-z]\w+_\w+ ?= ?\S)([a-z]\w+_\w+)|"
    r"(?:export |environ\[|\b(?<!please )set |setx |env |-e |\$env:|(?<!rerunning )(?<!run )with |tried |added |"
    r"adding |(?<!found, )using |already |\$ |&& )([a-z]\w+_\w+)\]? ?= ?(?!false\b)\S|"
    r"^([a-z]\w+_\w+)=\S+ +(?:python|torchrun|accelerate|\./|\w+=)",
    re.MULTILINE,
)
# Packages without kernels of their own, apart from torch. Frames in them do not point to an extension.
_TORCHS = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "functorch", "accelerate", "transformers", "diffusers", "deepspeed"),
        *("lightning", "pytorch_lightning", "ray", "tqdm", "peft", "trl", "numpy", "gradio", "starlette"),
        *("uvicorn", "triton"),
    )
)
# The patterns apply to text in lower case without quotes, as `normalise` returns it.
_MARKS: dict[Platform, re.Pattern[str]] = {
    "wsl": re.compile(
        r"/usr/lib/wsl/|\bdxgk?\b|dxgkio|microsoft-standard-wsl|\bwsl environment|"
        r"\b(?:in|on|inside|under|using|used) wsl2?\b|\bwsl2? (?:ubuntu|terminal|environment|instance)\b|"
        # Inside WSL nvidia-smi's own version differs from the driver's, which is Windows's.
        r"\bnvidia-smi (\d+\.\d+)\S* +driver version: (?!\1)\d|"
        r"\bwsl2?:|\bwsl version\b|\bdesktop-[0-9a-z]{7}:\d+:|(?<!\w)/mnt/[a-z]/users/"
    ),
    "windows": re.compile(
        r"\b[a-z]:\\|\bwinerror \d|\b\w+\.dll\b|\b[a-z]:/users/|\bmicrosoft visual studio\b|\bnvlddmkm\b|"
        r"\bexit status 0xc0000|\bcl is not found|\bnot recognized as an internal|\bwhere, cl\b|\bwindowspath\b"
        r"|\bwebui(?:-user)?\.bat\b"
    ),
    "mac": re.compile(
        r"(?<![\w:/])/users/\w|/opt/homebrew/|/private/var/|\bdarwin\b|\bmacos\b|\bapple silicon\b|\bmps backend\b|"
        r"/library/frameworks/python\.framework/|\.dylib\b|\barm64-apple\b|\bmac(book|mini| mini| studio)\b|"
        r"\b(apple|mac\w*) m[1-5]\b|\bm[1-5] (pro|max|ultra|mac\w*|chip)\b|"
        r"\b(for|on) (an? |my |the )?m[1-5]\b(?! ?(\.2|ssd|nvme|in |,))"
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
    r"\bwindows[- ](1[01]|server)\b|\bwin_amd64\b|\bpowershell\b|\bin windows ?\?|(?<![a-z])win ?1[01](?!\d)|"
    r"\b(?:not|doesnt|dont|cannot|cant|isnt) (?:\w+ ){0,4}(?:on|in|under) windows\b|\bim on windows\b"
)
# A laptop's kernel log may mention its AMD GPU. The error is NVIDIA's if its driver appears in the text.
_NVIDIA = re.compile(r"\bnvrm\b|\bcudaerror|\bcuda error\b|\bgeforce\b|\brtx \d{4}")
# Words of torch, llama.cpp and servers that run on ROCm; they print NVIDIA's names of errors too.
_IS_ROCM = re.compile(
    r"\brocm used to build pytorch: \d|\bfound \d+ rocm devices|\brocm\d+ (?:\w+ )?buffer|\bdetected platform rocm|"
    r"\brocmflash|\b(?:using|in the) rocm\b|\brocm environment"
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
    return Facts(
        platforms=marked(re.sub(r"(?<![\w:])/users/", "/home/", spaced) if "/users/" in pasted else spaced),
        torch=version,
        build=build,
        capabilities=_capabilities(text),
        architectures=_architectures(text),
        packages=tuple(filter(None, frames)),
        names=frozenset(names | {"old_torch"} if (fixes.release_of(version) or (2, 1)) < (2, 1) else names),
        free=int(free[1]) / max(int(free[2]), 1) if free else None,
        checkout=next((name for path, name in zip(paths, frames, strict=True) if name and "-packages" not in path), ""),
        listed=_listed(text),
        # Messages of torch.compile suggest these two variables, so they do not count as set.
        tried=frozenset(itertools.chain(*_SET.findall(text)))
        - {"", "torch_logs", "torchdynamo_verbose", "map_location"},
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
        r"(?:cuda used to build pytorch|cuda build|torch\.version\.cuda\)?|torch was compiled with|compile\s+pytorch|"
        r"cudatoolkit|\btorch[^\n]{0,24}\d with cuda)[ \t:=(]+(none|n/a|\d+\.\d+)"
    )
    if not build and (built := re.search(cuda, text)):
        without = "" if re.search(r"rocm used to build pytorch: \d", text) else "cpu"
        build = f"cu{built[1].replace('.', '')}" if built[1][0].isdigit() else without
    if not build and re.search(_NAMED["conda_cpu"], text):
        build = "cpu"
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
    """Return the package of a file, in a checkout the folder in one of the same name; empty for the user's own code."""
    parts = re.split(r"[/\\]+", path)
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return next((part for part, following in itertools.pairwise(parts) if part == following), "")


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


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice that replaces a text's answer: the beginnings of the ids it applies to, the condition and the new answer.

    `when` is a key of `_NAMED`, another pattern, or a function of the facts. `becomes` is the id of another text that
    the facts prove.
    """

    ids: tuple[str, ...]
    when: Callable[[Facts], bool | None] | str
    then: Callable[[Facts], str] | str = ""
    title: str = ""
    meaning: str = ""
    becomes: str = ""
    certainty: Certainty | None = None

    def holds(self, name: str, facts: Facts) -> bool:
        """Return whether the advice applies to the text with this id and these facts."""
        if not name.startswith(self.ids):
            return False
        return facts.holds(self.when) if isinstance(self.when, str) else bool(self.when(facts))


def of(*ids: str) -> functools.partial[Advice]:
    """Return the constructor of advice for the texts whose ids begin like this: `of("oom.cuda")(when, then)`."""
    return functools.partial(Advice, ids)
