"""The facts that a pasted text states about itself, read once, and the advice that depends on them. Pure.

Texts say what failed; the rest of a paste says where: on which system, with which torch, GPU and launcher, and through
whose code. A fact that the paste does not state is empty, and no advice is made of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpucheck import messages
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Certainty, Condition
from gpucheck.explain.text import Platform, marked


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a paste states.

    `torch` is the version without its build, `build` is `cpu`, `cu128` or `rocm6.4`, `available` what
    torch.cuda.is_available() gave. `capabilities` are the GPUs' (`12.0`), by their names where none is written;
    `architectures` the code that torch has. `packages` are those of the frames, `names` what any line mentions of
    `_NAMED`, and `offers` the lines by which torch itself says what to install. `on_gpu` has each rank that ran out of
    memory with the GPU that it was on. `exceptions` is in the order of the paste.
    """

    platforms: frozenset[Platform] = frozenset()
    torch: str = ""
    build: str = ""
    driver_cuda: str = ""
    python: str = ""
    processor: str = ""
    available: str = ""
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    offers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    on_gpu: tuple[tuple[int, int], ...] = ()
    exceptions: tuple[str, ...] = ()

    @property
    def has_code(self) -> bool | None:
        """Return whether torch has code for every GPU of the paste; None where that is not stated."""
        wanted = [value for value in map(fixes.number, self.capabilities) if value is not None]
        codes = self.architectures
        if not codes and (release := fixes.release_of(self.torch)) is not None and self.build.startswith("cu"):
            builds = (one for one in fixes.BUILDS if one.tag == self.build and release >= (2, 7))
            codes = tuple(f"sm_{code}" for one in builds for code in one.codes)
        if not wanted or not codes:
            return None
        return all(any(fixes.runs_on(code, value) for code in codes) for value in wanted)

    @property
    def extension(self) -> str:
        """The package nearest to the error that has its own kernels; empty where the frames show none."""
        return next((name for name in reversed(self.packages) if name not in _TORCHS), "")

    @property
    def arch_list(self) -> str:
        """Return the value that TORCH_CUDA_ARCH_LIST needs."""
        return ";".join(self.capabilities)


_VERSION = r"v?(\d+\.\d+(?:\.\d+)?)(?:\.post\d+|\.dev\d+|a0|rc\d)?(?:\+(?:git\w*\.)?([\w.]+))?"
# Not what somebody is told to install.
_TORCH = re.compile(
    r"(?<!install )(?<![\w-])(?:py)?torch(?:\.__version__| version)?(?: is| was)?(?:[ \t:=(-]|->){1,24}"
    + _VERSION
    + r"(?![\w.]*/)"
)
_BUILD = re.compile(r"(?:cuda used to build pytorch|cuda build|torch\.version\.cuda\)?)[ \t:=]+(none|n/a|\d+\.\d+)")
_OF_ROCM = re.compile(r"rocm used to build pytorch: \d")
_ONE = {
    "driver_cuda": re.compile(r"cuda version: (\d+\.\d+)"),
    "python": re.compile(r"python(?: version)?[:=]? (\d\.\d+)"),
    "processor": re.compile(r"\b(aarch64|arm64)\b"),
    "available": re.compile(r"(?:is cuda available|torch\.cuda\.is_available\(\)|cuda available)\W{1,4}(true|false)"),
}
_CAPABILITY = re.compile(
    r"(?:(?:cuda |compute )?capability (?:\(cc\) )?(?:of )?|cuda capability sm_)(\d{1,2}\.\d|\d{2,3})\b"
)
# NVIDIA, CUDA GPUs by compute capability. Of names that begin alike the longer is first.
_GPUS = (
    (r"gb10\b|dgx spark", "12.1"),
    (r"rtx 50[5-9]0|rtx pro [2-6]\d00 blackwell|rtx pro 6000", "12.0"),
    (r"\bjetson (?:agx )?thor", "11.0"),
    (r"\bg?b300\b", "10.3"),
    (r"\bg?b200\b", "10.0"),
    (r"\bg?h[12]00\b|\bh20\b|\bh800\b", "9.0"),
    (r"rtx 40[5-9]0|\bl40s?\b|\bl4\b|rtx 6000 ada", "8.9"),
    (r"\borin\b", "8.7"),
    (r"rtx 30[5-9]0|rtx a\d000|\ba10g?\b|\ba40\b", "8.6"),
    (r"\ba100\b|\ba800\b|\ba30\b", "8.0"),
    (r"rtx 20[5-9]0|gtx 16[3-6]0|tesla t4|\bt4\b", "7.5"),
    (r"\bxavier\b", "7.2"),
    (r"\bv100\b|titan v\b", "7.0"),
    (r"gtx 10[3-8]0|\btesla p4\b|\bp40\b", "6.1"),
    (r"\bp100\b", "6.0"),
)
_GPU_LINE = re.compile(r"nvidia|geforce|gpu|rtx|tesla|device")
_CODES = (
    re.compile(
        r"(?:supports cuda capabilities|get_arch_list\(\)\W{0,4}|arch(?:itecture)? list\W{1,4})"
        r"((?:[ ,]{0,2}(?:sm|compute)_\d+[af]?)+)"
    ),
    re.compile(r"^ *- (\d+\.\d) which supports hardware cc", re.MULTILINE),
    re.compile(r"supported by this version of pytorch is\s+\((\d+\.\d)\) - \((\d+\.\d)\)"),
)
_FRAME = re.compile(r"file ([^\n,]+?\.py), line \d+|^\W{0,3}(\S+\.py):\d+ in ", re.MULTILINE)
_RANK = re.compile(r"\[rank(\d+)\]")
_FULL = re.compile(r"\[rank(\d+)\][^\n]{0,200}out of memory[^\n]{0,120}?\bgpu (\d+) has[^\n]{0,200}process \d+ has")
_OFFER = re.compile(r"for cuda [\d.]+ use (pip install \S+ --index-url \S+)")
_EXCEPTION = re.compile(r"^\W*(?:\[\w+\]:? )?(?:[a-z_]\w*\.)*([a-z_]\w*(?:error|exception))\b *(?::|$)", re.MULTILINE)
_NAMED = {
    "ray": r"\bray::|\bray\.exceptions|\(raylet\)",
    "torchrun": r"\btorchrun\b|torch\.distributed\.(?:run|launch|elastic)",
    "slurm": r"\bsrun\b|\bslurmstepd\b|\bslurm_",
    "container": r"\bdocker\b|/\.dockerenv|\bkubectl\b|\bpodman\b|/workspace/",
    "jetson": r"\btegra\b|\bjetson\b|\bjetpack\b|\bl4t\b",
    "colab": r"(?<![\w./])/content/|google\.colab|\bcolab\b",
    "cl": r"\bcl(?:\.exe)? is not found|cpp_builder\.py|\bcl\.exe\b",
    "dispatch": r"in dispatch_model\b",
    "pinned": messages.PINNED,
    "allocator": messages.ALLOCATOR,
    "runtime": r"(?:runtime|accelerator)error: cuda error: out of memory",
    "ptxas": r"sm_1\d\d\w? is not defined for option",
    "code": r"no kernel image|invalid device function",
}
_NAMES = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _NAMED.items()}
# Frames of these show no extension: torch has its own code, the others run what they are given.
_TORCHS = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "functorch", "accelerate", "transformers", "diffusers", "deepspeed"),
        *("lightning", "pytorch_lightning", "ray", "tqdm", "peft", "trl", "numpy", "gradio", "starlette", "uvicorn"),
    )
)


def read(pasted: str, spaced: str) -> Facts:
    """Read the facts of a paste; `spaced` is the same without colours and prefixes."""
    text = re.sub("[\"'`]", "", pasted.lower())
    version, build = _torch(text)
    frames = [_package(match[1] or match[2]) for match in _FRAME.finditer(text)]
    one = {name: match[1] for name, pattern in _ONE.items() if (match := pattern.search(text))}
    return Facts(
        platforms=marked(spaced),
        torch=version,
        build=build,
        capabilities=_capabilities(text),
        architectures=_architectures(text),
        packages=tuple(filter(None, frames)),
        names=frozenset(name for name, pattern in _NAMES.items() if pattern.search(text)),
        offers=tuple(_OFFER.findall(text)),
        ranks=tuple(sorted({int(rank) for rank in _RANK.findall(text)})),
        on_gpu=tuple((int(rank), int(gpu)) for rank, gpu in _FULL.findall(text)),
        exceptions=tuple(_EXCEPTION.findall(text)),
        **one,
    )


def _torch(text: str) -> tuple[str, str]:
    """The version of torch and its build; of several that are written the first that names its build."""
    versions = _TORCH.findall(text)
    version, build = next((pair for pair in versions if pair[1]), versions[0] if versions else ("", ""))
    build = build if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", build) else ""
    if not build and (built := _BUILD.search(text)):
        build = f"cu{built[1].replace('.', '')}" if built[1][0].isdigit() else "" if _OF_ROCM.search(text) else "cpu"
    return version, build


def _capabilities(text: str) -> tuple[str, ...]:
    written = (one if "." in one else f"{one[:-1]}.{one[-1]}" for one in _CAPABILITY.findall(text))
    if found := tuple(dict.fromkeys(written)):
        return found
    lines = "\n".join(line for line in text.splitlines() if _GPU_LINE.search(line))
    return tuple(capability for pattern, capability in _GPUS if re.search(pattern, lines))


def _architectures(text: str) -> tuple[str, ...]:
    named, listed, between = (pattern.findall(text) for pattern in _CODES)
    if named:
        return tuple(re.findall(r"\w+", named[0]))
    return tuple("sm_" + one.replace(".", "") for one in (listed or (between[0] if between else ())))


def _package(path: str) -> str:
    """The package whose file it is; of a checkout the folder that is named twice. Empty for a program's own file."""
    parts = re.split(r"[/\\]+", path)
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return next((one for one, following in itertools.pairwise(parts) if one == following), "")


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for a text: of which ids, when, and the answer in place of the text's own.

    `becomes` is the id of the text that the facts prove instead.
    """

    of: tuple[str, ...]
    when: Callable[[Facts], bool]
    then: Callable[[Facts], str] = lambda _: ""
    title: str = ""
    meaning: str = ""
    becomes: str = ""
    certainty: Certainty | None = None


def _install(facts: Facts) -> str:
    """The line that installs the same torch with code for these GPUs."""
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
        return ""
    return f"pip install --force-reinstall {wanted} --index-url {fixes.INDEX}/{tag}"


def _rebuild(facts: Facts) -> str:
    name = facts.extension or "the extension in the traceback"
    variable = "set" if "windows" in facts.platforms else "export"
    return (
        f"{variable} TORCH_CUDA_ARCH_LIST={facts.arch_list}, then build {name} again: pip install --no-build-isolation "
        "--no-cache-dir --force-reinstall --no-deps FOLDER_OF_ITS_SOURCES; or a release of it that names this GPU"
    )


_OFFLINE = (
    "torch.no_accelerator",
    "torch.sees_none",
    "vllm.start",
    "sglang.start",
    "bitsandbytes.setup",
    "xformers.setup",
)
# The first that fits decides.
ADVICE: tuple[Advice, ...] = (
    Advice(_OFFLINE, lambda facts: facts.build == "cpu" and "mac" not in facts.platforms, becomes="torch.cpu_only"),
    Advice(
        ("torch.cpu_only",),
        lambda facts: facts.build == "cpu" and "mac" not in facts.platforms,
        _install,
    ),
    Advice(
        ("cuinit.100", "torch.no_accelerator"),
        lambda facts: "ray" in facts.names,
        lambda _: (
            "@ray.remote(num_gpus=1) on the task or actor that uses the GPU (Ray hides the GPUs from every other "
            "one); ray status shows how many GPUs Ray has"
        ),
        meaning="Ray sets CUDA_VISIBLE_DEVICES in each task and actor to the GPUs that it asked for: none without "
        "num_gpus.",
    ),
    Advice(
        ("cuinit.100", "torch.no_accelerator", "torch.sees_none"),
        lambda facts: "colab" in facts.names,
        lambda _: "Runtime, Change runtime type, a GPU; then start the notebook again",
    ),
    Advice(
        ("oom.cuda",),
        lambda facts: any(0 < rank < 8 and gpu == 0 for rank, gpu in facts.on_gpu),
        lambda _: (
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made, and no "cuda:0" in '
            "the program: a rank other than 0 is on GPU 0, where another process is too, probably the job's own rank 0"
        ),
    ),
    Advice(
        ("cuda.no_kernel",),
        lambda facts: facts.has_code is True,
        _rebuild,
        title="a package has no code for this GPU's architecture",
        meaning="torch itself has code for this GPU. A package with its own kernels was built for other architectures.",
    ),
    Advice(
        ("cuda.capability", "architecture."),
        lambda facts: facts.has_code is True and "code" not in facts.names,
        lambda _: "nothing to install: the warning is harmless",
        title="a harmless warning: torch's code runs on this GPU",
        meaning="Code of the same major version runs on a GPU of a higher minor version, as that for 12.0 on 12.1.",
    ),
    Advice(
        ("cuda.capability", "cuda.no_kernel", "architecture."),
        lambda facts: bool(facts.offers),
        lambda facts: " or ".join(facts.offers) + "; nvidia-smi shows the newest CUDA that the driver supports",
    ),
    Advice(
        ("cuda.capability", "cuda.no_kernel", "architecture."),
        lambda facts: facts.has_code is False and bool(fixes.release_of(facts.torch)),
        _install,
    ),
    Advice(
        ("compile.compiler",),
        lambda facts: "windows" in facts.platforms and "cl" in facts.names,
        title="torch.compile finds no C++ compiler (cl.exe)",
    ),
    Advice(
        ("compile.ptxas",),
        lambda facts: "ptxas" in facts.names,
        lambda _: (
            "export TRITON_PTXAS_PATH=/usr/local/cuda-13.0/bin/ptxas (Triton brings an older ptxas, which does not "
            "know this GPU; that of CUDA 13 does), or use a newer torch"
        ),
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
        ("oom.host",),
        lambda facts: "wsl" in facts.platforms and "pinned" in facts.names,
        lambda _: (
            "DataLoader(pin_memory=False): Windows limits how much memory WSL may pin; a larger memory= in "
            ".wslconfig raises the rest"
        ),
    ),
    Advice(
        ("tensor.placed",),
        lambda facts: "dispatch" in facts.names,
        lambda _: (
            "pip install -U transformers accelerate bitsandbytes: from_pretrained itself calls .to(), so these "
            "releases do not fit each other"
        ),
    ),
)


def advise(text: Condition, facts: Facts) -> tuple[Condition, bool]:
    """The text with what the facts make of it, and whether they gave its step."""
    for row in ADVICE:
        if not row.becomes and text.id.startswith(row.of) and row.when(facts):
            step = row.then(facts)
            title, meaning = row.title or text.title, row.meaning or text.meaning
            sure = row.certainty or text.certainty
            return replace(text, title=title, meaning=meaning, fix=step or text.fix, certainty=sure), bool(step)
    return text, False


def proven(name: str, facts: Facts) -> str:
    """The id of the text that the facts prove in place of the one with this id; empty for none."""
    return next((row.becomes for row in ADVICE if row.becomes and name.startswith(row.of) and row.when(facts)), "")
