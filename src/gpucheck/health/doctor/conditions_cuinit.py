"""CUDA does not start: each answer of cuInit, with what tells one cause of it from another."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.health.doctor.condition import Condition, Seen
from gpucheck.health.doctor.evidence import Evidence


def _answers(*codes: int) -> Callable[[Evidence], Seen | None]:
    """A judge for what cuInit's answer alone proves."""

    def judge(evidence: Evidence) -> Seen | None:
        return _answered(evidence) if evidence.driver.cuinit_code in codes else None

    return judge


def _answered(evidence: Evidence, more: str = "") -> Seen:
    driver = evidence.driver
    seen = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "libcuda": driver.libcuda_path}
    said = f"cuInit answers {driver.cuinit_code} ({driver.cuinit_error or 'no text'})"
    return Seen(f"{said}; {more}" if more else said, seen)


def _hung(evidence: Evidence) -> Seen | None:
    driver = evidence.driver
    if driver.cuinit_code is not None or driver.libcuda_path is None or not driver.cuinit_error:
        return None
    return Seen(driver.cuinit_error, {"libcuda": driver.libcuda_path})


def _no_memory_node(evidence: Evidence) -> Seen | None:
    """999 where the node of the memory module is missing, which `nvidia-smi` does not need."""
    there = {node.path for node in evidence.stack.nodes}
    if evidence.driver.cuinit_code != 999 or "/dev/nvidiactl" not in there or "/dev/nvidia-uvm" in there:
        return None
    return _answered(evidence, "/dev/nvidiactl is there and /dev/nvidia-uvm is not")


def _unknown_error(evidence: Evidence) -> Seen | None:
    if evidence.driver.cuinit_code != 999 or _no_memory_node(evidence) is not None:
        return None
    return _answered(evidence, "the device nodes are there")


def _memory_module(evidence: Evidence) -> Seen | None:
    """3 with the open module: heterogeneous memory management does not start on some kernels."""
    if evidence.driver.cuinit_code != 3:
        return None
    disabled = (evidence.stack.parameters or {}).get("uvm_disable_hmm")
    if not evidence.driver.kernel_module_open or disabled not in (None, "N"):
        return None
    return _answered(evidence, "the kernel module is the open one, and its uvm_disable_hmm is off")


def _not_initialised(evidence: Evidence) -> Seen | None:
    if evidence.driver.cuinit_code != 3 or _memory_module(evidence) is not None:
        return None
    return _answered(evidence)


def _fabric(evidence: Evidence) -> Seen | None:
    if evidence.driver.cuinit_code != 802:
        return None
    switches = evidence.stack.switches
    return _answered(evidence, f"{switches} NVSwitches are on the PCI bus" if switches else "")


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="driver.hung",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="CUDA's driver does not answer",
        meaning="cuInit did not return within its time, or ended its process. Whatever calls it hangs or dies with it: "
        "torch, nvidia-smi, every diagnosis that has no time limit.",
        settle="`sudo dmesg` shows Xid messages, `ps` processes in state D",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then end what uses the GPU, and reboot",
        judge=_hung,
    ),
    Condition(
        id="driver.uvm_missing",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the driver's memory module is not there for CUDA",
        meaning="CUDA needs /dev/nvidia-uvm, which nvidia-smi does not. The node is made by nvidia-modprobe when a program "
        "of root's first asks for it; in a container it has to be handed in.",
        settle="cuInit answers 0 once the node is there",
        fix="sudo nvidia-modprobe -c 0 -u",
        judge=_no_memory_node,
        texts=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
        source="pytorch issue 49081",
    ),
    Condition(
        id="driver.unknown_error",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA does not start and gives no reason",
        meaning="cuInit answers 999 although the device nodes are there. It is seen after a suspend, when the memory "
        "module has lost its state, and where a variable was changed after CUDA had started.",
        settle="it is the suspend if reloading the memory module mends it",
        fix="sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
        judge=_unknown_error,
        source="pytorch issue 88639",
    ),
    Condition(
        id="driver.hmm",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the open kernel module's memory management does not start",
        meaning="With some kernels the open module finds no room for heterogeneous memory management and CUDA does not "
        "start, while nvidia-smi works.",
        settle="the kernel's log has `request_free_mem_region() err -34`",
        fix="echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf, then reboot",
        judge=_memory_module,
        texts=(r"CUDA driver initialization failed, you might not have a CUDA gpu",),
        source="NVIDIA/open-gpu-kernel-modules issues 797, 901 and 947",
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
    ),
    Condition(
        id="driver.fabric",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the fabric between the GPUs is not ready",
        meaning="GPUs on an NVSwitch start only once the fabric manager has set the switches up, and it must be of exactly "
        "the driver's version. On a rented machine with one of eight GPUs, the host's fabric manager is meant.",
        settle="`systemctl status nvidia-fabricmanager` shows whether it runs, and of which version it is",
        fix="sudo systemctl restart nvidia-fabricmanager; on a rented machine, ask who lends it",
        judge=_fabric,
        texts=(r"Error 802: system not yet initialized",),
        source="pytorch issue 35710; huggingface_hub issue 4134",
    ),
    Condition(
        id="library.stub",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="the libcuda that is found is a stub",
        meaning="A CUDA toolkit brings a libcuda for linking alone, in a folder called stubs. Where that folder is in "
        "LD_LIBRARY_PATH the loader takes it in place of the driver's.",
        fix="take the stubs folder out of LD_LIBRARY_PATH",
        judge=_answers(34),
        texts=(r"Error 34: CUDA driver is a stub library",),
        source="NVIDIA/warp issue 219",
    ),
)
