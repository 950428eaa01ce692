"""The driver's device nodes, and what keeps a container, a WSL or a Jetson from them."""

from __future__ import annotations

import errno
import os
import re

from gpucheck.cards.card import KEPT_OUT, WSL_NODE
from gpucheck.doctor import fixes, wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_kernel import why_absent
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.driver_files import version_of
from gpucheck.machine.stack import Node

CONTROL = "/dev/nvidiactl"
MEMORY = "/dev/nvidia-uvm"
# A control group refuses with the first; a security module with the second.
REFUSALS = (errno.EPERM, errno.EACCES)
# The node's number belongs to no driver: the module was loaded anew and was given another, or it is gone.
STALE = (errno.ENXIO, errno.ENODEV)
VISIBLE, CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
ASK_THE_SCHEDULER = (
    "ask the scheduler for a GPU (Slurm: --gres=gpu:1): its control group refuses those that a job did not get"
)


def _is_module_there(evidence: Evidence) -> bool:
    """Whether NVIDIA's module is loaded and nothing is known to work above it yet, outside WSL."""
    return bool(evidence.driver.kernel_module_loaded) and not evidence.cuda_works and not evidence.host.wsl


def _card_nodes(evidence: Evidence) -> list[Node]:
    return [node for node in evidence.stack.nodes if re.fullmatch(r"/dev/nvidia\d+", node.path)]


def lacks_nodes(evidence: Evidence) -> bool:
    """Whether the module is loaded and the driver's node, or every card's, is not there."""
    if not _is_module_there(evidence) or why_absent(evidence) is not None or evidence.stack.devices is None:
        return False
    no_card = bool(evidence.stack.gpus) and not _card_nodes(evidence) and evidence.in_container
    return evidence.stack.node(CONTROL) is None or no_card


def _kept_out(evidence: Evidence) -> Seen | None:
    value = evidence.value(VISIBLE)
    if value not in KEPT_OUT or not evidence.in_container or not lacks_nodes(evidence):
        return None
    return Seen(
        f"{VISIBLE}={value}, and no GPU's node is in /dev",
        {VISIBLE: value, "nodes": [node.path for node in evidence.stack.nodes]},
    )


def _no_gpu_given(evidence: Evidence) -> Seen | None:
    if not evidence.in_container or not lacks_nodes(evidence) or _kept_out(evidence) is not None:
        return None
    nodes = [node.path for node in evidence.stack.nodes]
    what = f"only {', '.join(nodes)}" if nodes else "none of the driver's nodes"
    return Seen(
        f"the host's kernel runs NVIDIA's module, and {what} is in /dev",
        {"container": evidence.host.container, "nodes": nodes, VISIBLE: evidence.value(VISIBLE)},
        fix=fixes.start_with_gpus(evidence.host),
    )


def _not_made(evidence: Evidence) -> Seen | None:
    if evidence.in_container or not evidence.stack.gpus or not lacks_nodes(evidence):
        return None
    return Seen(f"the module is loaded and {CONTROL} is not there", {"kernel_module_loaded": True})


def _denied(evidence: Evidence) -> Seen | None:
    """Rights by owner and mode; of the cards' own nodes only if none may be opened, since one is enough."""
    if evidence.cuda_works:
        return None
    cards = [node for node in _card_nodes(evidence) if not (node.readable and node.writable)]
    some = len(cards) < len(_card_nodes(evidence))
    shared = [node for node in evidence.stack.nodes if node.path in (CONTROL, MEMORY, WSL_NODE)]
    refused = [node for node in shared if not (node.readable and node.writable)] + ([] if some else cards)
    if not refused:
        return None
    paths = [node.path for node in refused]
    return Seen(
        f"this user may not read and write {', '.join(paths)}",
        {"denied": paths},
        fix=f"ls -ln {paths[0]}; start the container as root, or with --group-add and the number of the node's group"
        if evidence.in_container
        else None,
    )


def _refused(evidence: Evidence) -> Seen | None:
    """Rights look right and opening is refused all the same: a device control group, or a security module."""
    refused = {node.path: node.error for node in evidence.stack.nodes if node.error in REFUSALS}
    if not refused or evidence.cuda_works:
        return None
    names = ", ".join(f"{path} ({errno.errorcode[code]})" for path, code in refused.items() if code is not None)
    proven = evidence.driver.nvml_code == 999 or evidence.driver.cuinit_code == 999
    return Seen(
        f"the rights of the nodes allow it, and opening {names} is refused",
        {"refused": list(refused), "nvml_code": evidence.driver.nvml_code},
        fix=None if evidence.in_container else ASK_THE_SCHEDULER,
        certainty="proof" if proven and evidence.in_container else None,
    )


def _stale(evidence: Evidence) -> Seen | None:
    stale = {node.path: node.error for node in evidence.stack.nodes if node.error in STALE}
    if not stale or evidence.cuda_works:
        return None
    names = ", ".join(f"{path}: {os.strerror(code)}" for path, code in stale.items() if code is not None)
    return Seen(f"no driver answers to the number of a node ({names})", {"stale": list(stale)})


def _hangs(evidence: Evidence) -> Seen | None:
    hung = [node.path for node in evidence.stack.nodes if node.error == errno.ETIMEDOUT]
    if not hung or evidence.cuda_works:
        return None
    return Seen(f"opening {', '.join(hung)} does not return", {"hung": hung})


def _wsl_without_gpu(evidence: Evidence) -> Seen | None:
    if not evidence.host.wsl or not evidence.stack.wsl_driver or evidence.stack.node(WSL_NODE) is not None:
        return None
    return Seen(f"Windows' driver is in /usr/lib/wsl/lib and {WSL_NODE} is missing", {"wsl_driver": True})


def _wsl_without_driver(evidence: Evidence) -> Seen | None:
    """A GPU of any maker has the node: that NVIDIA's driver does not show may be right."""
    if not evidence.host.wsl or evidence.stack.wsl_driver or evidence.stack.node(WSL_NODE) is None:
        return None
    if evidence.cuda_works or evidence.in_container:
        return None
    return Seen(f"{WSL_NODE} is there and /usr/lib/wsl/lib has no libcuda", {"wsl_driver": False})


def _wsl_shadowed(evidence: Evidence) -> Seen | None:
    """Windows' libcuda talks to /dev/dxg; Linux' talks to nodes that WSL does not have."""
    path = evidence.driver.libcuda_path
    if not evidence.host.wsl or evidence.in_container or evidence.cuda_works:
        return None
    if path is None or "/usr/lib/wsl/" in path or "/stubs/" in path:
        return None
    return Seen(
        f"{path} is loaded, and Windows' is in /usr/lib/wsl/lib",
        {"libcuda": path},
        certainty="proof" if version_of(path) is not None else None,
    )


def cuda_not_loaded(evidence: Evidence) -> bool:
    """Whether the loader was asked for libcuda and did not load it."""
    driver = evidence.driver
    return driver.libcuda_path is None and "libcuda cannot be loaded" in (driver.cuinit_error or "")


def has_nvml(evidence: Evidence) -> bool:
    """Whether NVML's library is there, whatever it answers."""
    code = evidence.driver.nvml_code
    return code not in (None, 12) or evidence.stack.found("libnvidia-ml.so.1") is not None


def without_compute(evidence: Evidence) -> bool:
    """Whether a container was given NVML and not libcuda."""
    given = evidence.in_container and evidence.stack.found("libcuda.so.1") is None and not evidence.stack.unlinked
    return given and has_nvml(evidence) and cuda_not_loaded(evidence) and evidence.is_nvidia_here


def _no_compute(evidence: Evidence) -> Seen | None:
    if not without_compute(evidence):
        return None
    asked = evidence.value(CAPABILITIES)
    left_out = asked is not None and not {"compute", "all"} & set(asked.replace(" ", "").split(","))
    said = f"{CAPABILITIES}={asked} leaves out compute" if left_out else "libnvidia-ml is there, libcuda is not"
    return Seen(said, {CAPABILITIES: asked}, certainty="proof" if left_out else None)


def _jetson_wheel(evidence: Evidence) -> Seen | None:
    """A Jetson's GPU is not the servers': before JetPack 7 a wheel of the index for aarch64 has no code for it."""
    build = evidence.build
    if evidence.stack.jetson is None or evidence.torch_works or build.version is None:
        return None
    # NVIDIA's own are named like 2.5.0a0+872d972e41.nv24.08.
    if re.search(r"\bnv\d", build.version):
        return None
    tried = evidence.torch is not None and (evidence.torch.available is False or bool(evidence.torch.kernels))
    if not tried:
        return None
    return Seen(
        f"torch {build.version} is not NVIDIA's build for Jetson ({evidence.stack.jetson})",
        {"torch": build.version, "jetson": evidence.stack.jetson},
        # A build for the CPU is the plainer cause and said by its own condition; where to get one is said here.
        verdict="warn" if build.built_for == "cpu" else None,
    )


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="container.gpus_kept_out",
        rung="nodes",
        verdict="fail",
        certainty="proof",
        title="NVIDIA_VISIBLE_DEVICES keeps every GPU out of this container",
        meaning="The container toolkit reads this variable as the container starts: void, none and an empty value hand "
        "in no GPU. Changing it inside changes nothing.",
        fix="start the container with -e NVIDIA_VISIBLE_DEVICES=all, or with --gpus all (podman: --device "
        f"nvidia.com/gpu=all, after `{fixes.CDI}` on the host)",
        judge=_kept_out,
        source="NVIDIA Container Toolkit documentation",
    ),
    Condition(
        id="container.no_gpu",
        rung="nodes",
        verdict="fail",
        certainty="strong",
        title="this container was started without a GPU",
        meaning="The host has a GPU and its driver runs, and the container was not given the nodes. CUDA then often "
        "says that the driver's version is insufficient, though there is no driver for it to see.",
        settle="the same image started with --gpus all finds it",
        fix=fixes.START_WITH_GPUS,
        judge=_no_gpu_given,
        texts=(
            r"WARNING: The NVIDIA Driver was not detected",
            r"CUDA driver version is insufficient for CUDA runtime version",
        ),
    ),
    Condition(
        id="driver.nodes_missing",
        rung="nodes",
        verdict="fail",
        certainty="strong",
        title="the driver's device nodes are missing",
        meaning="The module is loaded and /dev has no nodes for it. nvidia-modprobe, which has to belong to root with "
        "the set-user-ID bit, makes them when a program asks; without it nobody does.",
        settle="`ls -l /dev/nvidia*` shows them after it",
        fix="sudo nvidia-modprobe -c 0 -u",
        judge=_not_made,
    ),
    Condition(
        id="driver.node_hangs",
        rung="nodes",
        verdict="fail",
        certainty="proof",
        title="opening the driver's device node hangs",
        meaning="Opening the node waits in the kernel for something that does not come. Whatever uses the GPU hangs.",
        settle="`ps -eo pid,stat,wchan,comm | grep ' D'` shows processes that wait in the driver",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then reboot",
        judge=_hangs,
    ),
    Condition(
        id="container.devices_lost",
        rung="nodes",
        verdict="fail",
        certainty="strong",
        title="a control group refuses the driver's device nodes",
        meaning="A container that was started with the GPU lost it: `systemctl daemon-reload` on the host, or anything "
        "else that rewrites the container's control group, drops the devices that the runtime had added.",
        settle="a new container of the same image works",
        fix="recreate the container; to keep it from happening, hand the GPUs in by CDI (on the host, once: "
        f"{fixes.CDI}; then --device nvidia.com/gpu=all), or make the links of /dev/char with "
        "`nvidia-ctk system create-dev-char-symlinks`",
        judge=_refused,
        nvml=(999,),
        texts=(r"Failed to initialize NVML: Unknown Error",),
        source="NVIDIA/nvidia-container-toolkit issue 48",
    ),
    Condition(
        id="driver.nodes_denied",
        rung="nodes",
        verdict="fail",
        certainty="proof",
        title="no permission to open the driver's device nodes",
        meaning="CUDA and NVML need to read and write /dev/nvidiactl, /dev/nvidia-uvm and a card's node. Their owner, "
        "group or mode keep this user out.",
        fix="ls -l /dev/nvidia* /dev/dxg; join the group that they belong to (often video or render): "
        "sudo usermod -aG video $USER, then log in again",
        judge=_denied,
        nvml=(4,),
        texts=(r"NVML_ERROR_NO_PERMISSION|NVML: Insufficient Permissions",),
    ),
    Condition(
        id="driver.nodes_stale",
        rung="nodes",
        verdict="fail",
        certainty="strong",
        title="the device nodes belong to an earlier driver",
        meaning="The number of a node belongs to no driver now. /dev/nvidia-uvm gets another one each time the module "
        "is loaded, and a container keeps the one from its start.",
        settle="`grep nvidia /proc/devices` lists the numbers of now, `ls -l /dev/nvidia*` the nodes'",
        fix="in a container, recreate it; outside, sudo rm /dev/nvidia-uvm && sudo nvidia-modprobe -c 0 -u",
        judge=_stale,
    ),
    Condition(
        id="wsl.no_gpu",
        rung="nodes",
        verdict="fail",
        certainty="strong",
        title="Windows gives this WSL no GPU",
        meaning="WSL 2 reaches the GPU through /dev/dxg. It is missing under WSL 1, with an old kernel of WSL's, and "
        "where Windows itself does not use the card.",
        settle="`wsl --list --verbose` in Windows shows version 2, and Windows' nvidia-smi the card",
        fix="in Windows: wsl --update, then wsl --shutdown, and start it again; a distribution of version 1: "
        "wsl --set-version NAME 2",
        judge=_wsl_without_gpu,
    ),
    Condition(
        id="wsl.no_driver",
        rung="libraries",
        verdict="info",
        certainty="hint",
        title="Windows gives this WSL a GPU, but NVIDIA's driver is not visible in it",
        meaning="Any maker's GPU shows as /dev/dxg. NVIDIA's driver for Windows puts its libcuda into "
        "/usr/lib/wsl/lib; where there is an NVIDIA card, that driver is missing or too old for WSL.",
        settle="Windows' Device Manager shows whether there is an NVIDIA card",
        fix="with an NVIDIA card, install NVIDIA's driver in Windows (none inside Linux), then wsl --shutdown",
        judge=_wsl_without_driver,
    ),
    Condition(
        id="wsl.shadowed",
        rung="libraries",
        verdict="fail",
        certainty="strong",
        title="a Linux driver's libcuda hides the one of Windows",
        meaning="Under WSL the driver is Windows' and its libcuda lies in /usr/lib/wsl/lib. A driver that was "
        "installed inside Linux brings another, which looks for device nodes that WSL does not have.",
        settle="`LD_LIBRARY_PATH=/usr/lib/wsl/lib python -c 'import torch; torch.cuda.init()'` raises nothing",
        fix="sudo apt purge 'libnvidia-*' 'nvidia-driver-*' && sudo ldconfig",
        judge=_wsl_shadowed,
        source="NVIDIA CUDA on WSL User Guide: install no Linux driver within WSL",
    ),
    Condition(
        id="container.no_compute",
        rung="libraries",
        verdict="fail",
        certainty="strong",
        title="this container has NVML but not CUDA's driver",
        meaning="The container toolkit hands in libraries by capability: utility brings nvidia-smi and NVML, compute "
        "brings libcuda. nvidia-smi works and torch does not.",
        settle="NVIDIA_DRIVER_CAPABILITIES of the container names what it was given",
        fix="start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        judge=_no_compute,
        source="NVIDIA Container Toolkit documentation: driver capabilities",
    ),
    Condition(
        id="jetson.wheel",
        rung="torch",
        verdict="fail",
        certainty="hint",
        title="this torch was not built for Jetson",
        meaning="Wheels of the common index for aarch64 are for servers. Up to JetPack 6 a Jetson needs NVIDIA's own.",
        settle="the same check passes with NVIDIA's wheel for the JetPack that is installed",
        fix=wheels.JETSON,
        judge=_jetson_wheel,
    ),
)
