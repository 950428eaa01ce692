"""Fixes as they work on the system that was looked at, and on the card that is meant alone. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.doctor.condition import Evidence
from gpucheck.machine.stack import TorchProbe
from gpucheck.report.facts import Host

# Commands that act on the kernel or on a card: a container leaves them to its host; WSL and Windows have none.
_OF_THE_KERNEL = re.compile(
    r"\b(dmesg|modprobe|rmmod|reboot|mokutil|dkms|systemctl|nvidia-modprobe|update-initramfs)\b"
    r"|nvidia-smi (-i \S+ )?(--gpu-reset|-c|-mig|mig|conf-compute)"
)
ASK_THE_SCHEDULER = (
    "request a GPU from the scheduler (Slurm: --gres=gpu:1): its control group blocks GPUs that the job did not get"
)
# NVIDIA Container Toolkit, "Support for Container Device Interface": podman hands GPUs in by CDI alone.
CDI = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
IN_WINDOWS = "update NVIDIA's driver, and restart Windows"
FROM_WSL = "in Windows: update NVIDIA's driver, then wsl --shutdown, and start it again"


def here(fix: str, host: Host) -> str:
    """The same fix for a container, whose kernel is its host's, for WSL and Windows, whose driver is Windows', and for
    Windows' shells; as it is elsewhere, and where it already tells of such a place."""
    of_the_kernel = _OF_THE_KERNEL.search(fix) is not None
    if host.system == "Windows":
        # PowerShell has other words for variables.
        fix = re.sub(r"^unset ([\w ]+)$", lambda match: f"Remove-Item Env:{', Env:'.join(match[1].split())}", fix)
        return IN_WINDOWS if of_the_kernel else re.sub(r"^export (\w+)=(\S+)$", r'$env:\1 = "\2"', fix)
    if not of_the_kernel or re.search(r"container|host|Windows", fix):
        return fix
    if host.wsl:
        return FROM_WSL
    if not host.container:
        return fix
    steps = fix.split("; ")
    place = next(place for place, step in enumerate(steps) if _OF_THE_KERNEL.search(step))
    return "; ".join((*steps[:place], f"on the host: {'; '.join(steps[place:])}"))


# -- the card that is meant, and no other ------------------------------------------------------------------------------


def smi(cards: Iterable[str | None], arguments: str) -> str:
    """nvidia-smi on these cards, by UUID, address or index; where none is known it has to be filled in.

    Without -i, nvidia-smi changes every card of the machine.
    """
    return f"sudo nvidia-smi -i {','.join(filter(None, cards)) or 'INDEX'} {arguments}"


# -- containers --------------------------------------------------------------------------------------------------------


START_WITH_GPUS = (
    f"start the container with --gpus all (docker), --device nvidia.com/gpu=all (podman, after `{CDI}` on the host), "
    "or a limit of nvidia.com/gpu (Kubernetes)"
)


def start_with_gpus(host: Host) -> str:
    """Return how a container is started with the GPUs, by what runs it."""
    known = {
        "docker": "start the container with --gpus all",
        "podman": f"on the host: {CDI}; then start the container with --device nvidia.com/gpu=all",
        "kubernetes": "give the container a limit of nvidia.com/gpu (resources.limits)",
    }
    return known.get(host.container or "", START_WITH_GPUS)


# -- packages ----------------------------------------------------------------------------------------------------------


def installer(evidence: Evidence) -> Installer:
    """Return how packages come into the environment that was looked at."""
    probe = evidence.probe
    return Installer(probe.executable, bool(probe.externally_managed), probe.has_pip is not False)


def packages_again(evidence: Evidence, packages: Iterable[str]) -> str:
    """Return the line that reinstalls packages of pinned versions, without their dependencies.

    Where the system's Python must not be changed, the line makes a new environment, which gets their torch too.
    """
    how = installer(evidence)
    if how.managed:
        beside = "".join(f" {package}" for package in packages if not package.startswith("torch=="))
        return reinstall(how, evidence.probe.version or evidence.build.version, beside=beside)
    return how.install(f"--no-deps {' '.join(packages)}", anew=True)


def out_of_library_path(folders: Iterable[str]) -> str:
    """Take what brings a foreign library out of the variable, and leave the rest of it: the driver may be in there."""
    return f"remove {', '.join(folders)} from LD_LIBRARY_PATH"


def pythonpath_of(probe: TorchProbe) -> str | None:
    """The entry of PYTHONPATH that brings the torch which is imported: no installer sees it, and none can replace
    it."""
    if probe.path is None:
        return None
    folder = os.path.dirname(os.path.abspath(probe.path))
    return next((entry for entry in probe.pythonpath_torch if os.path.abspath(entry) == folder), None)


def out_of_pythonpath(*entries: str) -> str:
    return f"remove {', '.join(entries)} from PYTHONPATH (unset PYTHONPATH)"


INDEX = "https://download.pytorch.org/whl"
# GPUs of a board of their own, which code for the others of their generation does not run on, and code for them only.
# DEVICE_REQUIREMENT of torch 2.13's torch/cuda/__init__.py.
OWN_BOARDS = frozenset((53, 62, 72, 87, 101))
JETSON = "install NVIDIA's torch wheel for your JetPack (see `Installing PyTorch for Jetson Platform`)"
# The least driver of each CUDA on Linux: table 3 of the CUDA toolkit's release notes, minor version compatibility.
LEAST_DRIVER = {11: "450", 12: "525", 13: "580"}
# The environment that is made where nothing may be installed into the system's Python.
ENVIRONMENT = "~/torch-env"

Release = tuple[int, int]
_OLD, _NEW, _ARM = (50, 60, 70, 75, 80, 86, 90), (75, 80, 86, 90, 100, 120), (80, 90, 100, 110, 120)
# The hardware that each kind of published build has code for, on x86-64 and on aarch64, and the first release that is
# built for the latter. PYTORCH_RELEASES_CODE_CC of torch 2.13's torch/cuda/__init__.py, and before it the table of
# PyTorch's RELEASE.md; where releases differ, what all of them have. 13.4 is taken to have what 13.2 has.
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
# Which builds each release has: PyTorch's RELEASE.md and "previous versions"; for 2.13 and 2.14 torch's own table
# (torch/cuda/__init__.py). The newest first.
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
# Architectures that all wheels of torch 1.8 to 1.13 have, by the beginning of the build (PyTorch's RELEASE.md).
CODE_OF_TORCH_1 = {"cu10": (50, 60, 70, 75), "cu11": (50, 60, 70, 75, 80, 86)}
# The builds of releases before those in `RELEASES`, and the oldest and newest Python of releases from one on:
# PyTorch's "previous versions" and RELEASE.md.
BUILDS_OF_TORCH_1 = {
    (1, 13): ("cu117", "cu116"),
    (1, 12): ("cu116", "cu113", "cu102"),
    (1, 11): ("cu115", "cu113", "cu102"),
    (1, 10): ("cu113", "cu111", "cu102"),
    (1, 9): ("cu111", "cu102"),
    (1, 8): ("cu111", "cu102", "cu101"),
}
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
    """`9.0` as 90; None for what is no capability."""
    match = re.fullmatch(r"(\d+)\.(\d)", capability)
    return int(match[1]) * 10 + int(match[2]) if match else None


def runs_on(architecture: str, capability: int) -> bool:
    """Return whether code of this name (`sm_90`, `sm_90a`, `compute_90`) runs on hardware of this capability (90).

    Machine code runs on its own major version from its own minor on, PTX on everything as new as itself or newer.
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", architecture)
    if match is None:
        return False
    code, own = int(match[2]), match[3]
    if own == "a":
        return code == capability
    if match[1] == "compute":
        return code <= capability
    if code in OWN_BOARDS or capability in OWN_BOARDS:
        return code == capability or (code, capability) == (101, 110)  # one board, which CUDA 13 renumbered
    return code // 10 == capability // 10 and code <= capability


def tag_for(
    capabilities: Iterable[str],
    driver: str | None,
    architecture: str | None = None,
    release: Release = NEWEST,
    *,
    keep: str | None = None,
) -> str | None:
    """The published build of a release that fits this hardware and this driver best; None where none does.

    `driver` is the CUDA version that it serves. A build runs under a driver of its own major version, but what it
    compiles on the way needs its minor too: the newest that the driver knows is best, then the oldest that it does not.
    `architecture` is the processor's, as the system names it; None is taken for x86-64. Where the build of the CUDA
    `keep` fits, it is that one.
    """
    wanted = [value for value in map(number, capabilities) if value is not None]
    is_arm, served = (architecture or "").lower() in ("aarch64", "arm64"), version_of(driver)
    fitting = {}
    for tag in RELEASES[release]:
        codes, arm_codes, arm_since = BUILDS[tag]
        codes = codes if not is_arm else arm_codes if release >= arm_since else ()
        cuda = (int(tag[2:4]), int(tag[4:]))
        has_code = codes and all(any(runs_on(f"sm_{code}", value) for code in codes) for value in wanted)
        if has_code and (served is None or cuda[0] <= served[0]):
            fitting[cuda] = tag
    if not fitting:
        return None
    kept, known = version_of(keep), [cuda for cuda in fitting if served is not None and cuda <= served]
    newest = [cuda for cuda in fitting if cuda[0] == max(fitting)[0]]
    return fitting[kept if kept in fitting else max(known) if known else min(newest)]


def version_of(text: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version; None for what is none."""
    match = re.match(r"(\d+)(?:\.(\d+))?", text or "")
    return (int(match[1]), int(match[2] or 0)) if match else None


def release_of(version: str | None) -> Release | None:
    """The release of a published torch (`2.9.1+cu128` is of 2.9); None for nightly, vendors' and own builds."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.\d+(?:\.post\d+)?(?:\+[\w.]+)?", version or "")
    return (int(match[1]), int(match[2])) if match else None


def pinned(version: str | None) -> str:
    """Return what to ask an installer for so that the version stays: `torch==2.9.1`; `torch` for no published
    version."""
    return "torch" if release_of(version) is None else f"torch=={(version or '').partition('+')[0]}"


def choose(
    capabilities: Iterable[str],
    driver: str | None,
    architecture: str | None = None,
    *,
    version: str | None = None,
    keep: str | None = None,
) -> tuple[str, str | None]:
    """The build that runs on this hardware and driver: of the torch that is installed, else of the newest that has one.

    Returns the request to an installer, and the build's tag, None where none is published. `version` and `keep` are the
    installed torch's and its CUDA. Another release is named, so that nobody is surprised by it.
    """
    wanted = list(capabilities)
    # A release that is newer than the table has at least the builds of the newest here.
    installed = min(release_of(version) or (0, 0), NEWEST)
    tag = tag_for(wanted, driver, architecture, installed, keep=keep) if installed in RELEASES else None
    if tag is not None:
        return pinned(version), tag
    for release in sorted(RELEASES, reverse=True):
        tag = tag_for(wanted, driver, architecture, release)
        if tag is not None:
            return "torch" if release == NEWEST else f"'torch=={release[0]}.{release[1]}.*'", tag
    return pinned(version), None


@dataclass(frozen=True, slots=True)
class Installer:
    """The installer of packages for an interpreter's environment.

    `managed` is whether it is the system's own, which its distribution keeps pip from changing (EXTERNALLY-MANAGED),
    `has_pip` whether it has pip: uv makes environments without.
    """

    python: str | None = None
    managed: bool = False
    has_pip: bool = True

    def install(self, packages: str, *, index: str | None = None, anew: bool = False) -> str:
        """The line that installs packages, from an index of PyTorch's (`cu130`); `anew` replaces what is there."""
        source = f" --index-url {INDEX}/{index}" if index else ""
        python = interpreter(self.python)
        if self.managed:
            make = f"{python} -m venv {ENVIRONMENT} && {ENVIRONMENT}/bin/python -m pip install {packages}{source}"
            return f"{make} (a new environment, because the system's Python must not be changed)"
        if not self.has_pip:
            return f"uv pip install --python {python} {'--reinstall ' * anew}{packages}{source}"
        return f"{python} -m pip install {'--force-reinstall ' * anew}{packages}{source}"

    def uninstall(self, packages: str) -> str:
        python = interpreter(self.python)
        if not self.has_pip:
            return f"uv pip uninstall --python {python} {packages}"
        return f"{python} -m pip uninstall -y {packages}"


def install(installer: Installer, requirement: str, tag: str | None) -> str:
    """The line that installs a build in place of what is there."""
    if tag is None:
        return "look for a build at https://pytorch.org/get-started, or build torch from source for this GPU"
    return installer.install(requirement, index=tag, anew=True)


def reinstall(installer: Installer, version: str | None = None, *, beside: str = "") -> str:
    """Return the line that reinstalls the same torch, from its own index, and the packages `beside` it."""
    return installer.install(pinned(version) + beside, index=index_of(version), anew=True)


def index_of(version: str | None) -> str | None:
    """The index that a torch came from, where its version names it."""
    local = (version or "").partition("+")[2]
    return local if re.fullmatch(r"cpu|cu\d+|xpu", local) else None


def interpreter(path: str | None) -> str:
    """Return the path as a shell takes it. Windows' shells know no single quotes; PowerShell wants & before any."""
    if path is None or "\\" not in path:
        return shlex.quote(path or "python")
    return f'& "{path}"' if " " in path else path
