"""Faults that every tool can be given, and the words by which its answer is judged.

Each is made of what any program meets: the libraries that LD_LIBRARY_PATH finds (fakes of libcuda and libnvidia-ml,
compiled from tests/fakes), variables, packages on PYTHONPATH, files in the current folder. With them goes a nvidia-smi
that asks the same fake NVML and prints what NVIDIA's prints: tools that read it get it. Faults that gpucheck's own
tests build under a root of their own (device nodes, kernel modules, the PCI bus, containers) are left out: no other
tool takes such a root, so they would count for gpucheck alone. So is NVML's "driver not loaded": without a card on the
bus it is what a machine without a GPU answers.

The words were written before the answers were looked at. They are generous: whatever says what is wrong counts, also
where a report merely repeats torch's or nvidia-smi's own message. A value that its reader has to interpret
(`CUDA available: False`, `none detected`) says nothing of the cause.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FAKES = Path(__file__).resolve().parents[1] / "tests" / "fakes"
SOURCES = {"libcuda.so.1": "fake_libcuda.c", "libnvidia-ml.so.1": "fake_libnvidia_ml.c"}
CARD = "nvml.count=1\ncuda.order=0\nmemory.total=85899345920\n"


@dataclass(frozen=True)
class Fault:
    """`words` is a regular expression for what names the cause; `script` is what the fake libraries answer.

    `cuda` and `nvml` say whether that library is whole (True), damaged (False) or missing (None), `folder` where both
    lie. `torch` writes a package into a folder that goes first on PYTHONPATH; without it torch is the interpreter's.
    `files` lie in the current folder. `driver` is False for a machine that has none.
    """

    name: str
    words: str
    script: str = CARD
    variables: dict[str, str] = field(default_factory=dict)
    cuda: bool | None = True
    nvml: bool | None = True
    folder: str = "lib"
    torch: Callable[[Path, Path], None] | None = None
    files: dict[str, str] = field(default_factory=dict)
    driver: bool = True


def refuses(code: int, more: str = "") -> str:
    """One card that NVML lists, and a cuInit that answers `code`."""
    return f"{more}{CARD}cuda.init=!{code}\n"


# -- packages that play torch -----------------------------------------------------------------------------------------

# What each tool asks of torch, with the warning of a real one where the card is of another architecture.
TORCH = """
import sys, types, warnings
if {broken!r}: raise ImportError({broken!r})
from . import version
__version__ = version.__version__
class _C:
    _show_config = staticmethod(lambda: "PyTorch built with: nothing")
class Tensor(float):
    def sum(self): return self
    def item(self): return float(self)
    def __add__(self, other): return Tensor(128.0)
    def __matmul__(self, other): return Tensor(16.0)
def _made(value):
    if {error!r}: raise RuntimeError({error!r})
    return Tensor(value)
def ones(size, device=None): return _made(64.0)
def eye(size, device=None): return _made(16.0)
class cuda:
    init = staticmethod(lambda: {warning!r} and warnings.warn({warning!r}))
    is_available = staticmethod(lambda: {devices} > 0)
    device_count = staticmethod(lambda: {devices})
    get_arch_list = staticmethod(lambda: {architectures!r})
    get_device_capability = staticmethod(lambda device=None: (9, 0))
    @staticmethod
    def get_device_name(device=None):
        cuda.init()
        return "NVIDIA Fake 100"
class xpu:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
backends = types.ModuleType("torch.backends")
backends.__path__ = []
backends.xnnpack = types.ModuleType("torch.backends.xnnpack")
backends.xnnpack.enabled = True
backends.cudnn = types.SimpleNamespace(version=lambda: 91000)
sys.modules.update({{"torch.backends": backends, "torch.backends.xnnpack": backends.xnnpack}})
"""


def torch_package(
    *,
    cuda: str | None = "13.0",
    devices: int = 1,
    architectures: tuple[str, ...] = ("sm_90",),
    error: str = "",
    warning: str = "",
    broken: str = "",
    also: str = "",
) -> Callable[[Path, Path], None]:
    """A torch of these answers, with torch's own collect_env; `also` is the version of a second that is installed."""

    def write(site: Path, own: Path) -> None:
        package = site / "torch"
        (package / "utils").mkdir(parents=True)
        version = f"2.14.1+{'cpu' if cuda is None else 'cu' + cuda.replace('.', '')}"
        told = {"devices": devices, "architectures": list(architectures), "error": error, "warning": warning}
        (package / "__init__.py").write_text(TORCH.format(**told, broken=broken))
        (package / "version.py").write_text(
            f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = None\nxpu = None\ndebug = False\n"
        )
        (package / "utils" / "__init__.py").write_text("")
        shutil.copy(own / "utils" / "collect_env.py", package / "utils")
        for one in (version, *([also] if also else [])):
            metadata = site / f"torch-{one}.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {one}\n")
            (metadata / "RECORD").write_text("torch/__init__.py,,\n")
            (metadata / "INSTALLER").write_text("pip\n")

    return write


# -- the faults -------------------------------------------------------------------------------------------------------

INCOMPATIBLE = (
    "NVIDIA Fake 100 with CUDA capability sm_90 is not compatible with the current PyTorch installation. The current "
    "PyTorch install supports CUDA capabilities sm_50 sm_60."
)
FAULTS = (
    # cuInit
    Fault("cuInit 802: the fabric is not ready", r"fabric|system not yet initialized", refuses(802)),
    Fault("cuInit 3: not initialised", r"cuInit\D{0,30}\b3\b|driver initialization failed|nvidia.uvm", refuses(3)),
    Fault("cuInit 999: after a suspend", r"cuInit\D{0,30}\b999\b|nvidia.uvm|suspend", refuses(999)),
    Fault(
        "cuInit 803: libcuda of another version",
        r"unsupported display driver|mismatch|different versions|other version",
        refuses(803),
    ),
    Fault(
        "cuInit 804: a compat package on a card without", r"forward.compatib|\bcompat (package|folder)", refuses(804)
    ),
    Fault("cuInit 34: a stub is found", r"\bstub\b", refuses(34), folder="lib/stubs"),
    Fault(
        "cuInit 46: another process has the card alone",
        r"busy or unavailable|exclusive|E\. Process",
        f"{CARD}cuda.init=!46\ncompute_mode=3\nprocesses=4242:1000\n",
    ),
    Fault("cuInit 2: no memory or addresses", r"out of memory|want of memory|ulimit", refuses(2)),
    Fault(
        "cuInit 100: NVML lists a card",
        r"CUDA (finds|sees|detects) no.{0,60}(NVML|nvidia-smi|machine that has)|NVML.{0,40}but.{0,40}CUDA",
        refuses(100),
    ),
    Fault("cuInit 800: a vGPU profile without CUDA", r"operation not permitted|not permit", refuses(800)),
    Fault("cuInit 801: not supported here", r"operation not supported|not support CUDA", refuses(801)),
    Fault("cuInit 805: the MPS server is gone", r"\bMPS\b", refuses(805)),
    Fault(
        "cuInit never returns",
        r"(cuInit|CUDA|driver).{0,60}(hang|hung|does not (return|answer|end)|timed? ?out|no answer)",
        f"{CARD}cuda.init=hang\n",
    ),
    Fault(
        "cuInit ends the process",
        r"(cuInit|CUDA|driver|libcuda).{0,60}(crash|SIGSEGV|signal|ends? (the|its) process)|segmentation fault",
        f"{CARD}cuda.init=crash\n",
    ),
    # masks
    Fault(
        "CUDA_VISIBLE_DEVICES is empty",
        r"CUDA_VISIBLE_DEVICES.{0,60}(hide|hidden|empty|mask|no (GPU|device)|excludes)",
        refuses(100),
        {"CUDA_VISIBLE_DEVICES": ""},
    ),
    Fault(
        "CUDA_VISIBLE_DEVICES=-1",
        r"CUDA_VISIBLE_DEVICES.{0,60}(hide|hidden|negative|mask|no (GPU|device)|excludes)",
        refuses(100),
        {"CUDA_VISIBLE_DEVICES": "-1"},
    ),
    Fault(
        "CUDA_VISIBLE_DEVICES=7 of 1",
        r"CUDA_VISIBLE_DEVICES.{0,80}(hide|hidden|invalid|mask|no (GPU|device)|not exist|out of range|excludes)",
        variables={"CUDA_VISIBLE_DEVICES": "7"},
    ),
    Fault(
        "CUDA_VISIBLE_DEVICES=0,0",
        r"CUDA_VISIBLE_DEVICES.{0,99}(hide|hidden|twice|duplicate|invalid|repeat)",
        refuses(101),
        {"CUDA_VISIBLE_DEVICES": "0,0"},
    ),
    Fault(
        "CUDA_VISIBLE_DEVICES=cuda:0",
        r"CUDA_VISIBLE_DEVICES.{0,80}(hide|hidden|malformed|no number|not a number|invalid|syntax)",
        refuses(100),
        {"CUDA_VISIBLE_DEVICES": "cuda:0"},
    ),
    # NVML and the cards
    Fault(
        "NVML: driver and library of different versions",
        r"unsupported display driver|mismatch|different versions",
        refuses(803, "nvml.init=!18\n"),
    ),
    Fault("NVML: the GPU is lost", r"(GPU|card) is lost|lost (the|a) (GPU|card)", refuses(100, "handle=!15\n")),
    Fault(
        "NVML never returns",
        r"(NVML|nvidia-smi|driver).{0,60}(hang|hung|does not (return|answer|end)|timed? ?out|no answer)",
        refuses(999, "nvml.init=hang\n"),
    ),
    Fault(
        "NVML: unknown error (a container that lost its devices)",
        r"Failed to initialize NVML: Unknown Error|nvmlInit answers 999|lost its devices",
        refuses(999, "nvml.init=!999\n"),
    ),
    Fault("MIG is on and has no instance", r"No MIG devices|MIG.{0,40}no instance", refuses(100, "mig=1\n")),
    # libraries
    Fault(
        "libcuda is missing",
        r"libcuda(\.so(\.1)?)?\b.{0,60}(missing|is not\b|not (found|there|installed)|cannot be)|no libcuda",
        CARD,
        cuda=None,
    ),
    Fault(
        "libcuda is damaged",
        r"libcuda(\.so(\.1)?)?\b.{0,60}(damaged|broken|invalid|cannot be loaded|too short)",
        CARD,
        cuda=False,
    ),
    # torch
    Fault(
        "the driver is too old for the wheel",
        r"driver.{0,60}(too old|older than)|(insufficient|update).{0,40}driver",
        f"{CARD}libcuda=12040\ncuda=12040\ndriver=550.54.15\n",
    ),
    Fault(
        "a torch for the CPU beside a GPU",
        r"built for the CPU|build is CPU-only|CPU.only (build|version|PyTorch|torch)|compiled with(out)? CUDA",
        torch=torch_package(cuda=None, devices=0, architectures=()),
    ),
    Fault(
        "no code for this card in the wheel",
        r"not compatible with the current PyTorch|no code for|(sm_90|architecture|capability).{0,60}(missing|not "
        r"(supported|included|in))",
        torch=torch_package(
            architectures=("sm_50", "sm_60"),
            error="CUDA error: no kernel image is available for execution on the device",
            warning=INCOMPATIBLE,
        ),
    ),
    Fault("a file torch.py in the current folder", r"torch\.py\b", files={"torch.py": "x = 1\n"}),
    Fault(
        "a file random.py in the current folder",
        r"random\.py\b.{0,80}(hide|shadow|rename|same name)|(hide|shadow|rename).{0,80}random\.py",
        files={"random.py": "x = 1\n"},
    ),
    Fault(
        "two torch distributions in one environment",
        r"torch.{0,60}(installed twice|two (versions|distributions|installations)|multiple|2\.6\.0)",
        torch=torch_package(also="2.6.0"),
    ),
    Fault(
        "torch's libraries do not go together",
        r"undefined symbol",
        torch=torch_package(broken="/site/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"),
    ),
)
# Without a fault: what a tool says here too names nothing.
CONTROL = Fault("no GPU, no fault", r"(?!)", driver=False)


# -- building them ----------------------------------------------------------------------------------------------------


def compile_fakes(folder: Path) -> None:
    """Both libraries, in `folder`."""
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-w"]
    for name, source in SOURCES.items():
        subprocess.run([*compiler, "-o", folder / name, FAKES / source], check=True)


def build(fault: Fault, folder: Path, fakes: Path, python: str, own_torch: Path) -> tuple[dict[str, str], Path]:
    """The fault in an empty `folder`: the environment and the current folder of every tool.

    `own_torch` is the folder of the torch of `python`.
    """
    here, libraries, programs, home = folder / "here", folder / fault.folder, folder / "bin", folder / "home"
    for one in (here, libraries, programs, home):
        one.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "LD_", "PYTHON"))}
    # A width at which nobody wraps, and no network to wait for.
    environment |= {"COLUMNS": "2000", "HOME": str(home), "https_proxy": "http://127.0.0.1:9", **fault.variables}
    if fault.driver:
        for name, there in (("libcuda.so.1", fault.cuda), ("libnvidia-ml.so.1", fault.nvml)):
            if there:
                shutil.copy(fakes / name, libraries / name)
            elif there is not None:
                (libraries / name).write_text("not a library")
        (folder / "script").write_text(fault.script)
        smi = programs / "nvidia-smi"
        smi.write_text(f"#!{python}\n" + (Path(__file__).parent / "doctor_nvidia_smi.py").read_text())
        smi.chmod(0o755)
        environment |= {"LD_LIBRARY_PATH": str(libraries), "FAKE_DRIVER": str(folder / "script")}
        environment["PATH"] = os.pathsep.join((str(programs), environment["PATH"]))
    for name, text in fault.files.items():
        (here / name).write_text(text)
    if fault.torch is not None:
        fault.torch(folder / "site", own_torch)
        environment["PYTHONPATH"] = str(folder / "site")
    return environment, here
