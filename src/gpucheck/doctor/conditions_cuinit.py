"""CUDA does not start: its driver hangs, ends the process, or finds no device, no memory, or its own module amiss."""

from __future__ import annotations

from gpucheck.doctor import fixes, mask
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.cuinit import answered
from gpucheck.doctor.evidence import Evidence
from gpucheck.report.facts import Driver
from gpucheck.units import GIB

MANY = 64  # more cards than a machine has
# The kernel finds no room for the driver's pages of device memory among its own addresses.
NO_ROOM_FOR_PAGES = r"request_free_mem_region\(\) err -34"


def _hung(evidence: Evidence) -> Seen | None:
    driver = evidence.driver
    if not driver.is_hung:
        return None
    told = {"libcuda": driver.libcuda_path, "nvml_error": driver.nvml_error}
    if evidence.torch is not None and evidence.torch.not_awaited is not None:
        told["torch_not_awaited"] = evidence.torch.not_awaited
    return Seen(_after_start(driver) + (driver.cuinit_error or ""), told)


def _crashed(evidence: Evidence) -> Seen | None:
    driver = evidence.driver
    error = driver.cuinit_error or ""
    if "ended early" not in error:
        return None
    return Seen(_after_start(driver) + error, {"libcuda": driver.libcuda_path})


def _after_start(driver: Driver) -> str:
    return "cuInit answered; then " if driver.cuinit_code == 0 else ""


def _out_of_memory(evidence: Evidence) -> Seen | None:
    """2 before any memory was asked for: CUDA sets aside addresses for all memory of host and cards as it starts."""
    if evidence.driver.cuinit_code != 2:
        return None
    limit = evidence.stack.address_limit_bytes
    if limit is None:
        left = evidence.host.container_available_bytes
        more = f"the container has {left / GIB:.1f} GiB left" if left is not None else ""
        return answered(evidence, more, container_available_bytes=left)
    return answered(
        evidence,
        f"a process may take {limit / GIB:.0f} GiB of addresses (ulimit -v)",
        fix="ulimit -v unlimited (a scheduler's limit of virtual memory has to be lifted where it is set)",
        certainty="strong",
        address_limit_bytes=limit,
    )


def _no_memory_node(evidence: Evidence) -> Seen | None:
    """999 where the node of the memory module is missing, which `nvidia-smi` does not need."""
    stack = evidence.stack
    if evidence.driver.cuinit_code != 999 or stack.node("/dev/nvidiactl") is None or stack.node("/dev/nvidia-uvm"):
        return None
    loaded = None if stack.modules is None else "nvidia_uvm" in stack.modules
    more = "/dev/nvidiactl is there and /dev/nvidia-uvm is not"
    fix = "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -c 0 -u" if loaded is False else None
    if evidence.in_container:
        fix = "on the host: sudo nvidia-modprobe -c 0 -u; then recreate the container with --gpus all"
    return answered(
        evidence,
        f"{more}, nor is the module nvidia_uvm loaded" if loaded is False else more,
        fix=fix,
        nvidia_uvm_loaded=loaded,
    )


def _unknown_error(evidence: Evidence) -> Seen | None:
    if evidence.driver.cuinit_code != 999 or _no_memory_node(evidence) is not None:
        return None
    return answered(evidence, "the device nodes are there" if evidence.stack.node("/dev/nvidia-uvm") else "")


def _memory_module(evidence: Evidence) -> Seen | None:
    """3 with the open module: heterogeneous memory management does not start on some kernels."""
    if evidence.driver.cuinit_code != 3:
        return None
    logged = evidence.logged(NO_ROOM_FOR_PAGES)
    if logged:
        return answered(evidence, f"the kernel logs: {logged[-1]}", certainty="proof", log=logged)
    disabled = (evidence.stack.parameters or {}).get("uvm_disable_hmm")
    if not evidence.driver.kernel_module_open or disabled not in (None, "N"):
        return None
    said = "its uvm_disable_hmm is off" if disabled else "its parameters are not to be read"
    return answered(evidence, f"the kernel module is the open one, and {said}", uvm_disable_hmm=disabled)


def _not_initialised(evidence: Evidence) -> Seen | None:
    if evidence.driver.cuinit_code != 3 or _memory_module(evidence) is not None:
        return None
    return answered(evidence)


def _no_device(evidence: Evidence) -> Seen | None:
    """100 that no mask and no MIG mode explains, on a machine that has a card."""
    if evidence.driver.cuinit_code != 100 or not evidence.is_nvidia_here:
        return None
    if _is_masked(evidence) or _empty_mig(evidence) is not None:
        return None
    listed = sum(card.nvml_index is not None for card in evidence.cards)
    return answered(evidence, f"NVML lists {listed}" if listed else "NVML lists none either", nvml_count=listed)


def _is_masked(evidence: Evidence) -> bool:
    """Whether CUDA_VISIBLE_DEVICES lets nothing through, of what NVML lists or, without its list, of many."""
    value = evidence.value("CUDA_VISIBLE_DEVICES")
    uuids = [card.uuid for card in evidence.cards if card.nvml_index is not None or card.parent_uuid is not None]
    return value is not None and not mask.read(value, uuids or [None] * MANY).shown


def _empty_mig(evidence: Evidence) -> Seen | None:
    """Every card that NVML lists is in MIG mode and none has an instance."""
    whole = [card for card in evidence.cards if card.parent_uuid is None]
    empty = [card for card in whole if card.mig is not None and card.mig.enabled and not card.mig.instances]
    if evidence.driver.cuinit_code != 100 or not whole or len(empty) < len(whole):
        return None
    return answered(
        evidence,
        f"MIG mode is on and has no instance on {', '.join(card.uuid or 'a card' for card in empty)}",
        fix=_mig_fix(",".join(card.uuid for card in empty if card.uuid) or "INDEX"),
        uuids=[card.uuid for card in empty],
    )


def _mig_fix(cards: str) -> str:
    """On these cards alone: without -i, each of them changes all."""
    return (
        f"sudo nvidia-smi mig -i {cards} -lgip to list profiles, sudo nvidia-smi mig -i {cards} -cgi 0 -C to make an "
        f"instance; or {fixes.smi(cards, '-mig 0')} to use the whole card"
    )


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="driver.hung",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="CUDA's driver does not answer",
        meaning="libcuda was called and did not return within its time. Whatever calls it hangs with it: torch, and "
        "every diagnosis that has no time limit. torch is then not awaited.",
        settle="`sudo dmesg` shows Xid messages, `ps` processes in state D",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then drain the node, end what uses the GPU, and reboot",
        judge=_hung,
        source="rwth-i6/returnn issue 1756",
    ),
    Condition(
        id="driver.crashed",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="CUDA's driver ends the process that starts it",
        meaning="The process that called libcuda ended before it returned. torch ends in the same way. libcuda is "
        "damaged, or goes with neither the kernel module nor the C library.",
        fix="reinstall the driver's libraries in the kernel module's version (cat /proc/driver/nvidia/version)",
        judge=_crashed,
    ),
    Condition(
        id="gpu.mig_empty",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="MIG mode is on and no instance was made",
        meaning="In MIG mode a card is not a device itself: its instances are, and none exists. CUDA then "
        "answers as on a machine without a GPU, and torch gives no reason.",
        fix=_mig_fix("INDEX"),
        judge=_empty_mig,
        cuinit=(100,),
        source="NVIDIA Multi-Instance GPU User Guide; wilicc/gpu-burn issue 36",
    ),
    Condition(
        id="driver.no_device",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA finds no device on a machine that has one",
        meaning="cuInit answers 100, on which torch is silent: is_available() is False without a warning. The driver "
        "shows this process no card.",
        settle="`sudo dmesg` tells of a card that did not start, `ls -l /dev/nvidia*` of one that was not handed in",
        fix="sudo dmesg | grep -i nvrm; ls -l /dev/nvidia*",
        judge=_no_device,
        cuinit=(100,),
        texts=(r"No CUDA GPUs are available", r"Error 100: no CUDA-capable device is detected"),
    ),
    Condition(
        id="driver.out_of_memory",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA does not start for want of memory or of addresses",
        meaning="cuInit answers 2 before a program asked for any memory. CUDA sets aside addresses for the memory of "
        "the host and of all cards as it starts, far more than it uses, which a limit of virtual memory forbids; or "
        "the host's memory is used up.",
        settle="`ulimit -v` is a number, or `free` shows none left",
        fix="ulimit -v unlimited; free",
        judge=_out_of_memory,
        cuinit=(2,),
    ),
    Condition(
        id="driver.uvm_missing",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the driver's memory module is not there for CUDA",
        meaning="CUDA needs /dev/nvidia-uvm, which nvidia-smi does not. The node is made by nvidia-modprobe when a "
        "program of root's first asks for it; in a container it has to be handed in.",
        settle="cuInit answers 0 once the node is there",
        fix="sudo nvidia-modprobe -c 0 -u",
        judge=_no_memory_node,
        cuinit=(999,),
        texts=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
        source="pytorch issue 49081; NVIDIA/open-gpu-kernel-modules issue 689",
    ),
    Condition(
        id="driver.unknown_error",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA does not start and gives no reason",
        meaning="cuInit answers 999 and nothing else is seen to be wrong. It is seen after a suspend, when the memory "
        "module has lost its state, and where a variable was changed after CUDA had started.",
        settle="it is the suspend if reloading the memory module mends it",
        fix="sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
        judge=_unknown_error,
        cuinit=(999,),
        source="pytorch issue 88639",
    ),
    Condition(
        id="driver.hmm",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the kernel module's memory management does not start",
        meaning="With some kernels the open module finds no room for heterogeneous memory management and CUDA does not "
        "start, while nvidia-smi works.",
        settle="the kernel's log has `request_free_mem_region() err -34`",
        fix="echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf, then reboot",
        judge=_memory_module,
        cuinit=(3,),
        texts=(
            r"CUDA driver initialization failed, you might not have a CUDA gpu",
            r"request_free_mem_region\(\) err -34",
        ),
        source="NVIDIA/open-gpu-kernel-modules issues 797, 901 and 947; release notes of CUDA 13.2",
    ),
    Condition(
        id="driver.not_initialised",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA's driver does not initialise",
        meaning="cuInit answers 3 for a reason that it does not tell.",
        settle="the kernel's log, read with `sudo dmesg`, mostly tells it",
        fix="sudo dmesg | grep -i -e nvrm -e nvidia",
        judge=_not_initialised,
        cuinit=(3,),
        texts=(r"CUDA_ERROR_NOT_INITIALIZED",),
    ),
)
