"""A fix as it works on the system that was looked at. Pure."""

from __future__ import annotations

import re

from gpucheck.report.facts import Host

# What acts on the kernel or on a card: in a container it is the host's to do, under WSL and on Windows there is none.
_OF_THE_KERNEL = re.compile(
    r"\b(dmesg|modprobe|rmmod|reboot|mokutil|dkms|systemctl|nvidia-modprobe|update-initramfs)\b"
    r"|nvidia-smi (--gpu-reset|-c|-mig|mig|conf-compute)"
)
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
