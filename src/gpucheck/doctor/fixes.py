"""Fixes as they work on the system that was looked at, and on the card that is meant alone. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from gpucheck.doctor import wheels
from gpucheck.doctor.evidence import Evidence
from gpucheck.doctor.wheels import Installer
from gpucheck.machine.torch_probe import TorchProbe
from gpucheck.report.facts import Host

# What acts on the kernel or on a card: in a container it is the host's to do, under WSL and on Windows there is none.
_OF_THE_KERNEL = re.compile(
    r"\b(dmesg|modprobe|rmmod|reboot|mokutil|dkms|systemctl|nvidia-modprobe|update-initramfs)\b"
    r"|nvidia-smi (-i \S+ )?(--gpu-reset|-c|-mig|mig|conf-compute)"
)
# Work that a scheduler starts on the node meanwhile would meet a card that is gone.
DRAIN = "drain or cordon the node, end what runs on the card"
# NVIDIA Container Toolkit, "Support for Container Device Interface": podman hands GPUs in by CDI alone.
CDI = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
IN_WINDOWS = "update NVIDIA's driver, and restart Windows"
FROM_WSL = "in Windows: update NVIDIA's driver, then wsl --shutdown, and start it again"


def here(fix: str, host: Host) -> str:
    """The same fix for a container, whose kernel is its host's, for WSL and Windows, whose driver is Windows', and for
    Windows' shells; as it is elsewhere, and where it already tells of such a place."""
    of_the_kernel = _OF_THE_KERNEL.search(fix) is not None
    if host.system == "Windows":
        return IN_WINDOWS if of_the_kernel else _in_its_shells(fix)
    if not of_the_kernel or re.search(r"container|host|Windows", fix):
        return fix
    if host.wsl:
        return FROM_WSL
    return f"on the host: {fix}" if host.container else fix


def _in_its_shells(fix: str) -> str:
    """Variables as PowerShell and cmd set them."""
    if removed := re.fullmatch(r"unset ([\w ]+)", fix):
        names = removed[1].split()
        by_cmd = " && ".join(f"set {name}=" for name in names)
        return f"Remove-Item {', '.join(f'Env:{name}' for name in names)} (cmd: {by_cmd})"
    if given := re.fullmatch(r"export (\w+)=(\S+)", fix):
        return f'$env:{given[1]} = "{given[2]}" (cmd: set {given[1]}={given[2]})'
    return fix


# -- the card that is meant, and no other ------------------------------------------------------------------------------


def smi(card: str | None, arguments: str) -> str:
    """nvidia-smi on one card, by its UUID or its index; `card` is None where none is known, and has to be filled in.

    Without -i, nvidia-smi changes every card of the machine.
    """
    return f"sudo nvidia-smi -i {card or 'INDEX'} {arguments}"


def each(cards: Iterable[str | None], arguments: str) -> str:
    """The same on several cards, which nvidia-smi takes as a list."""
    known = [card for card in cards if card]
    return smi(",".join(known) or None, arguments)


def reset(*cards: str | None) -> str:
    """Reset these cards, after their work has gone elsewhere."""
    return f"{DRAIN}, then {each(cards, '--gpu-reset')}; where that is refused, reboot"


# -- containers --------------------------------------------------------------------------------------------------------


START_WITH_GPUS = (
    f"start the container with --gpus all (docker), --device nvidia.com/gpu=all (podman, after `{CDI}` on the host), "
    "or a limit of nvidia.com/gpu (Kubernetes)"
)


def start_with_gpus(host: Host) -> str:
    """How a container is started with the GPUs, by what runs it."""
    if host.container == "docker":
        return "start the container with --gpus all"
    if host.container == "podman":
        return f"on the host: {CDI}; then start the container with --device nvidia.com/gpu=all"
    if host.container == "kubernetes":
        return "give the container a limit of nvidia.com/gpu (resources.limits)"
    return START_WITH_GPUS


# -- packages ----------------------------------------------------------------------------------------------------------


def installer(evidence: Evidence) -> Installer:
    """How packages come into the environment that was looked at."""
    probe = evidence.torch
    if probe is None:
        return Installer()
    return Installer(probe.executable, bool(probe.externally_managed), probe.has_pip is not False)


def packages_again(evidence: Evidence, packages: Iterable[str]) -> str:
    """The line that installs packages of pinned versions anew, and nothing else."""
    wanted = " ".join(packages)
    how = installer(evidence)
    return how.install(wanted if how.managed else f"--no-deps {wanted}", anew=True)


def out_of_library_path(folders: Iterable[str]) -> str:
    """Take what brings a foreign library out of the variable, and leave the rest of it: the driver may be in there."""
    return f"take {', '.join(folders)} out of LD_LIBRARY_PATH"


def pythonpath_of(probe: TorchProbe) -> str | None:
    """The entry of PYTHONPATH that brings the torch which is imported: no installer sees it, and none can replace "
    "it."""
    if probe.path is None:
        return None
    folder = os.path.dirname(os.path.abspath(probe.path))
    return next((entry for entry in probe.pythonpath_torch if os.path.abspath(entry) == folder), None)


def out_of_pythonpath(*entries: str) -> str:
    """Take what brings a foreign torch out of the variable."""
    return f"take {', '.join(entries)} out of PYTHONPATH (unset PYTHONPATH)"


def cudnn_first(python: str | None = None) -> str:
    """The line that lets every program find the parts of the cuDNN that is installed beside torch.

    OpenNMT/CTranslate2 issue 1826, SYSTRAN/faster-whisper issue 1182: unsetting the variable does not help there.
    """
    told = """import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")"""
    return f"export LD_LIBRARY_PATH=$({wheels.interpreter(python)} -c '{told}'):$LD_LIBRARY_PATH"
