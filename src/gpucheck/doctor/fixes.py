"""Write fixes that work on the diagnosed system and change only the affected GPU. No I/O."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.doctor.condition import Evidence
from gpucheck.machine.stack import TorchProbe
from gpucheck.report.facts import Host

# Commands that act on the kernel or on a GPU. In a container they must run on the host. WSL and Windows lack them.
_OF_THE_KERNEL = re.compile(
    r"\b(dmesg|modprobe|rmmod|reboot|mokutil|dkms|systemctl|nvidia-modprobe|update-initramfs)\b"
    r"|nvidia-smi (-i \S+ )?(--gpu-reset|-c|-mig|mig|conf-compute)"
)
ASK_THE_SCHEDULER = (
    "request a GPU from the scheduler (Slurm: --gres=gpu:1): its control group blocks GPUs that the job did not get"
)
# Podman passes GPUs to a container only by CDI (NVIDIA Container Toolkit, "Support for Container Device Interface").
CDI = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
IN_WINDOWS = "update NVIDIA's driver, and restart Windows"
FROM_WSL = "in Windows: update NVIDIA's driver, then wsl --shutdown, and start it again"


def adapted(fix: str, host: Host) -> str:
    """Adapt a fix to Windows, to WSL, or to a container, where commands for the kernel run on the host.

    Outside Windows, a fix that mentions a container, a host or Windows is returned unchanged.
    """
    of_the_kernel = _OF_THE_KERNEL.search(fix) is not None
    if host.system == "Windows":
        # PowerShell has its own syntax for variables.
        fix = re.sub(r"^unset ([\w ]+)$", lambda match: f"Remove-Item Env:{', Env:'.join(match[1].split())}", fix)
        return IN_WINDOWS if of_the_kernel else re.sub(r"^export (\w+)=(\S+)$", r'$env:\1 = "\2"', fix)
    if not of_the_kernel or re.search(r"container|host|Windows", fix):
        return fix
    if host.wsl:
        return FROM_WSL
    if not host.container:
        return fix
    steps = fix.split("; ")
    first = next(index for index, step in enumerate(steps) if _OF_THE_KERNEL.search(step))
    return "; ".join((*steps[:first], f"on the host: {'; '.join(steps[first:])}"))


def smi(ids: Iterable[str | None], arguments: str) -> str:
    """Return an nvidia-smi command for the GPUs with these UUIDs. Without `-i` the command would change every GPU."""
    return f"sudo nvidia-smi -i {','.join(filter(None, ids)) or 'INDEX'} {arguments}"


START_WITH_GPUS = (
    f"start the container with --gpus all (docker), --device nvidia.com/gpu=all (podman, after `{CDI}` on the host), "
    "or a limit of nvidia.com/gpu (Kubernetes)"
)


def start_with_gpus(host: Host) -> str:
    fixes = {
        "docker": "start the container with --gpus all",
        "podman": f"on the host: {CDI}; then start the container with --device nvidia.com/gpu=all",
        "kubernetes": "give the container a limit of nvidia.com/gpu (resources.limits)",
    }
    return fixes.get(host.container or "", START_WITH_GPUS)


def installer(evidence: Evidence) -> Installer:
    probe = evidence.probe
    return Installer(probe.executable, bool(probe.externally_managed), probe.has_pip is not False)


def packages_again(evidence: Evidence, packages: Iterable[str]) -> str:
    """Return the command that reinstalls packages. For a protected Python it creates a new environment."""
    tool = installer(evidence)
    if tool.managed:
        others = "".join(f" {package}" for package in packages if not package.startswith("torch=="))
        return reinstall(tool, evidence.probe.version or evidence.build.version, others=others)
    return tool.install(f"--no-deps {' '.join(packages)}", reinstall=True)


def out_of_library_path(folders: Iterable[str]) -> str:
    """Return the fix that removes these folders from LD_LIBRARY_PATH. The driver may need the other entries."""
    return f"remove {', '.join(folders)} from LD_LIBRARY_PATH"


def pythonpath_of(probe: TorchProbe) -> str | None:
    """Return the PYTHONPATH entry with the imported torch, or None. Installers cannot replace a torch in PYTHONPATH."""
    if probe.path is None:
        return None
    folder = os.path.dirname(os.path.abspath(probe.path))
    return next((entry for entry in probe.pythonpath_torch if os.path.abspath(entry) == folder), None)


def out_of_pythonpath(*entries: str) -> str:
    return f"remove {', '.join(entries)} from PYTHONPATH (unset PYTHONPATH)"


INDEX = "https://download.pytorch.org/whl"
# Architectures of special boards, which run only their own code (DEVICE_REQUIREMENT in torch/cuda/__init__.py).
OWN_BOARDS = frozenset((53, 62, 72, 87, 101))
JETSON = "install NVIDIA's torch wheel for your JetPack (see `Installing PyTorch for Jetson Platform`)"
# The minimum driver of each CUDA on Linux, with minor version compatibility (CUDA release notes, table 3).
LEAST_DRIVER = {11: "450", 12: "525", 13: "580"}
# The environment that a fix creates if the system's Python must not be changed.
ENVIRONMENT = "~/torch-env"

Release = tuple[int, int]
_OLD, _NEW, _ARM = (50, 60, 70, 75, 80, 86, 90), (75, 80, 86, 90, 100, 120), (80, 90, 100, 110, 120)
# For each published build: the architectures on x86-64, those on aarch64, and the first release for aarch64. Sources:
# PYTORCH_RELEASES_CODE_CC in torch/cuda/__init__.py of torch 2.13, and PyTorch's RELEASE.md. If a build belongs to
# several releases, the architectures are in all of them. cu134 is assumed to equal cu132.
BUILDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Release]] = {
    "cu134": (_NEW, _ARM, (2, 14)),
    "cu132": (_NEW, _ARM, (2, 12)),
    "cu130": (_NEW, _ARM, (2, 9)),
    "cu129": (_NEW, (80, 90, 100, 120), (2, 8)),
    "cu128": (_NEW, (90, 100, 120), (2, 7)),
    "cu126": (_OLD, (80, 90), (2, 9)),
    "cu124": (_OLD, (), (0, 0)),
    "cu121": (_OLD, (), (0, 0)),
    "cu118": (_OLD, (), (0, 0)),
    "cu117": (_OLD[:-1], (), (0, 0)),
}
# The builds of each release (PyTorch's RELEASE.md and "previous versions"; torch/cuda/__init__.py of 2.13 and 2.14).
RELEASES: dict[Release, tuple[str, ...]] = {
    (2, 14): ("cu134", "cu132", "cu130", "cu126"),
    (2, 13): ("cu132", "cu130", "cu129", "cu126"),
    (2, 12): ("cu132", "cu130", "cu126"),
    **dict.fromkeys(((2, 11), (2, 10), (2, 9)), ("cu130", "cu128", "cu126")),
    (2, 8): ("cu129", "cu128", "cu126"),
    (2, 7): ("cu128", "cu126", "cu118"),
    (2, 6): ("cu126", "cu124", "cu118"),
    **dict.fromkeys(((2, 5), (2, 4)), ("cu124", "cu121", "cu118")),
    **dict.fromkeys(((2, 3), (2, 2), (2, 1)), ("cu121", "cu118")),
    (2, 0): ("cu118", "cu117"),
}
NEWEST = max(RELEASES)
# The architectures in all wheels of torch 1.8 to 1.13, by the beginning of the build's name (PyTorch's RELEASE.md).
CODE_OF_TORCH_1 = {"cu10": (50, 60, 70, 75), "cu11": (50, 60, 70, 75, 80, 86)}
# The last torch with a build for each CUDA version ("previous versions").
LAST_FOR = {"10.2": "1.12.1", "10.1": "1.7.1", "10.0": "1.2.0", "9.2": "1.7.1", "9.0": "1.1.0"}
# The builds of older releases (the same sources).
BUILDS_OF_TORCH_1 = {
    (1, 13): ("cu117", "cu116"),
    (1, 12): ("cu116", "cu113", "cu102"),
    (1, 11): ("cu115", "cu113", "cu102"),
    (1, 10): ("cu113", "cu111", "cu102"),
    (1, 9): ("cu111", "cu102"),
    (1, 8): ("cu111", "cu102", "cu101"),
    (1, 7): ("cu110", "cu102", "cu101", "cu92"),
}
# A release, and the oldest and newest Python for which torch has wheels from this release on.
PYTHONS: tuple[tuple[Release, Release, Release], ...] = (
    ((2, 9), (3, 10), (3, 14)),
    ((2, 6), (3, 9), (3, 13)),
    ((2, 5), (3, 9), (3, 12)),
    ((2, 2), (3, 8), (3, 12)),
    ((2, 0), (3, 8), (3, 11)),
    ((1, 11), (3, 7), (3, 10)),
    ((1, 8), (3, 6), (3, 9)),
)


def number(capability: str) -> int | None:
    """Return a capability such as `9.0` as 90; None if it is not one."""
    match = re.fullmatch(r"(\d+)\.(\d)", capability)
    return int(match[1]) * 10 + int(match[2]) if match else None


def runs_on(architecture: str, capability: int) -> bool:
    """Return whether code for this architecture (`sm_90`, `sm_90a`, `compute_90`) runs on a capability such as 90."""
    # Code runs from its version on: machine code (sm) within its major version, PTX (compute) on all newer ones too.
    if (match := re.fullmatch(r"(sm|compute)_(\d+)([af]?)", architecture)) is None:
        return False
    code, suffix = int(match[2]), match[3]
    if suffix == "a":
        return code == capability
    if match[1] == "compute":
        return code <= capability
    if code in OWN_BOARDS or capability in OWN_BOARDS:
        return code == capability or (code, capability) == (101, 110)  # CUDA 13 renumbered this board
    return code // 10 == capability // 10 and code <= capability


def tag_for(
    capabilities: Iterable[str],
    driver: str | None,
    architecture: str | None = None,
    release: Release = NEWEST,
    *,
    keep: str | None = None,
) -> str | None:
    """Return the best published build of a release for this hardware and driver, or None.

    `driver` is the newest CUDA that the driver supports. `architecture` is the processor's; None is x86-64. A build
    runs if the driver supports its major CUDA version; kernels compiled at run time also need the minor one. The newest
    build with both is best, else the oldest of the newest major version. A build for the CUDA `keep` takes precedence.
    """
    numbers = [value for value in map(number, capabilities) if value is not None]
    is_arm, driver_cuda = (architecture or "").lower() in ("aarch64", "arm64"), version_of(driver)
    fitting = {}
    for tag in RELEASES[release]:
        codes, arm_codes, arm_since = BUILDS[tag]
        codes = codes if not is_arm else arm_codes if release >= arm_since else ()
        cuda = (int(tag[2:4]), int(tag[4:]))
        has_code = codes and all(any(runs_on(f"sm_{code}", value) for code in codes) for value in numbers)
        if has_code and (driver_cuda is None or cuda[0] <= driver_cuda[0]):
            fitting[cuda] = tag
    if not fitting:
        return None
    kept, supported = version_of(keep), [cuda for cuda in fitting if driver_cuda is not None and cuda <= driver_cuda]
    newest = [cuda for cuda in fitting if cuda[0] == max(fitting)[0]]
    return fitting[kept if kept in fitting else max(supported) if supported else min(newest)]


def version_of(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)(?:\.(\d+))?", text or "")
    return (int(match[1]), int(match[2] or 0)) if match else None


def release_of(version: str | None) -> Release | None:
    """Return the release of a published torch, such as (2, 9) for `2.9.1+cu128`; None for other builds."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.\d+(?:\.post\d+)?(?:\+[\w.]+)?", version or "")
    return (int(match[1]), int(match[2])) if match else None


def torchvision_of(torch: str) -> str:
    """Return the torchvision for a release of torch, according to the requirements of torchvision's packages."""
    major, minor, patch = map(int, torch.split("."))
    is_ahead = (major, minor) in ((1, 3), (1, 7), (1, 10), (2, 0))
    return f"0.{minor + (15 if major == 2 else 2 if minor < 3 else 1)}.{patch + is_ahead}"


def older_build(cuda: str) -> str:
    """Return the command for the last torch with a build for this CUDA version (9 or 10); "" for other versions."""
    if (torch := LAST_FOR.get(cuda)) is None:
        return ""
    packages = f"pytorch={torch} torchvision={torchvision_of(torch)} cudatoolkit={cuda}"
    return f"the last torch for this driver's CUDA: conda create -n old python=3.7 {packages} -c pytorch"


def pinned(version: str | None) -> str:
    """Return the requirement of this version (`torch==2.9.1`); `torch` for a version that is not published."""
    return "torch" if release_of(version) is None else f"torch=={(version or '').partition('+')[0]}"


def choose(
    capabilities: Iterable[str],
    driver: str | None,
    architecture: str | None = None,
    *,
    version: str | None = None,
    keep: str | None = None,
) -> tuple[str, str | None]:
    """Return the requirement and the tag (or None) of the best build for this hardware and driver.

    `version` is the installed torch, `keep` its CUDA. If its release has no such build, the newest with one is chosen.
    """
    capabilities = list(capabilities)
    # A release that is newer than this table has at least the builds of the newest release here.
    installed = min(release_of(version) or (0, 0), NEWEST)
    tag = tag_for(capabilities, driver, architecture, installed, keep=keep) if installed in RELEASES else None
    if tag is not None:
        return pinned(version), tag
    for release in sorted(RELEASES, reverse=True):
        if (tag := tag_for(capabilities, driver, architecture, release)) is not None:
            return "torch" if release == NEWEST else f"'torch=={release[0]}.{release[1]}.*'", tag
    return pinned(version), None


@dataclass(frozen=True, slots=True)
class Installer:
    """The installer of an environment: pip, or uv without pip. `managed`: the distribution protects this Python."""

    python: str | None = None
    managed: bool = False
    has_pip: bool = True

    def install(self, packages: str, *, index: str | None = None, reinstall: bool = False) -> str:
        source = f" --index-url {INDEX}/{index}" if index else ""
        python = interpreter(self.python)
        if self.managed:
            make = f"{python} -m venv {ENVIRONMENT} && {ENVIRONMENT}/bin/python -m pip install {packages}{source}"
            return f"{make} (a new environment, because the system's Python must not be changed)"
        if not self.has_pip:
            return f"uv pip install --python {python} {'--reinstall ' * reinstall}{packages}{source}"
        return f"{python} -m pip install {'--force-reinstall ' * reinstall}{packages}{source}"

    def uninstall(self, packages: str) -> str:
        python = interpreter(self.python)
        tool = f"{python} -m pip uninstall -y" if self.has_pip else f"uv pip uninstall --python {python}"
        return f"{tool} {packages}"


def reinstall(installer: Installer, version: str | None = None, *, others: str = "") -> str:
    """Return the command that reinstalls the same torch from its index, together with the packages `others`."""
    return installer.install(pinned(version) + others, index=index_of(version), reinstall=True)


def index_of(version: str | None) -> str | None:
    """Return the index in a version of torch (`cu130` in `2.13.0+cu130`); None without an index."""
    local = (version or "").partition("+")[2]
    return local if re.fullmatch(r"cpu|cu\d+|xpu", local) else None


def interpreter(path: str | None) -> str:
    """Return the path quoted for a shell. PowerShell needs & and double quotes."""
    if path is None or "\\" not in path:
        return shlex.quote(path or "python")
    return f'& "{path}"' if " " in path else path
