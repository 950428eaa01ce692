"""CUDA does not start: its driver hangs or crashes, finds no device, memory or module, or refuses to lend the card."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.doctor import conditions_library, fixes, mask
from gpucheck.doctor.condition import Condition, Seen, answered, answers
from gpucheck.doctor.conditions_masks import MASK, REFUSED
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


# -- it is refused: the card is not lent or not released, or the server of MPS is away ---------------------------------

MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def _unavailable(evidence: Evidence) -> Seen | None:
    """46: the mode in which a card lets one process in, or none, and who is in; else a licence or a partition."""
    if evidence.driver.cuinit_code != 46:
        return None
    modes = {card.compute_mode for card in evidence.cards}
    pids = sorted({process.pid for card in evidence.cards for process in card.processes or ()})
    if "prohibited" in modes:
        return answered(
            evidence,
            "its compute mode is prohibited",
            fix=fixes.each((card.uuid for card in evidence.cards if card.compute_mode == "prohibited"), "-c 0"),
            certainty="proof",
            compute_modes=["prohibited"],
        )
    exclusive = sorted(mode for mode in modes if mode and mode.startswith("exclusive"))
    if exclusive and pids:
        listed = ", ".join(str(pid) for pid in pids)
        return answered(
            evidence,
            f"its compute mode is {exclusive[0]} and PID {listed} is on it",
            fix=f"end PID {listed}, or "
            + fixes.each((card.uuid for card in evidence.cards if card.compute_mode in exclusive), "-c 0"),
            certainty="strong",
            compute_modes=exclusive,
            pids=pids,
        )
    return answered(
        evidence,
        "no card is in exclusive use as far as NVML tells",
        fix="sudo nvidia-smi -q -d COMPUTE; on a virtual GPU, check its licence: nvidia-smi -q | grep -i license",
        compute_modes=sorted(mode for mode in modes if mode),
    )


def _is_confidential(evidence: Evidence) -> bool:
    """802 where NVML says that the GPUs wait, or in a confidential virtual machine without switches of its own."""
    told, stack = evidence.driver.confidential_computing, evidence.stack
    if evidence.driver.cuinit_code != 802 or told in ("off", "ready"):
        return False
    return told == "not ready" or (stack.confidential_guest and not stack.switches)


def _confidential(evidence: Evidence) -> Seen | None:
    if not _is_confidential(evidence):
        return None
    told = evidence.driver.confidential_computing
    return answered(
        evidence,
        f"NVML says that confidential computing is {told}" if told else "this is a confidential virtual machine",
        certainty="proof" if told else None,
        confidential_guest=evidence.stack.confidential_guest,
        confidential_computing=told,
    )


def _fabric(evidence: Evidence) -> Seen | None:
    """802 elsewhere; the manager's absence is proof only where the switches are this machine's own."""
    if evidence.driver.cuinit_code != 802 or _is_confidential(evidence):
        return None
    stack = evidence.stack
    runs = None if evidence.in_container else stack.fabric_manager
    if not stack.switches:
        return answered(
            evidence,
            "no NVSwitch is on the PCI bus of this machine: it is its host's",
            fix="ask who lends the machine: the host's fabric manager has to be started, of the driver's version",
            certainty="hint",
            switches=0,
        )
    several = stack.switches != 1
    more = f"{stack.switches} NVSwitch{'es are' if several else ' is'} on the PCI bus"
    told = {
        True: "; nvidia-fabricmanager runs: is it of the driver's version?",
        False: " and no nvidia-fabricmanager runs",
    }
    return answered(
        evidence,
        more + (told[runs] if runs is not None else ""),
        certainty="proof" if runs is False else None,
        fix="on the host: sudo systemctl restart nvidia-fabricmanager" if evidence.in_container else None,
        switches=stack.switches,
        fabric_manager=runs,
    )


def _mps(*codes: int) -> Callable[[Evidence], Seen | None]:
    """CUDA was sent to a server of MPS: by the variable, or because one was started at its usual place."""

    def judge(evidence: Evidence) -> Seen | None:
        if evidence.driver.cuinit_code not in codes:
            return None
        folder = evidence.value(MPS_FOLDER)
        where = f"{MPS_FOLDER}={folder}" if folder else f"{MPS_FOLDER} is not set: the usual place is /tmp/nvidia-mps"
        # Without the variable a daemon that ended has left its pipes in the usual place, where CUDA finds them.
        fix = None if folder else "nvidia-cuda-mps-control -d; or, to do without, sudo rm -r /tmp/nvidia-mps"
        unreachable = evidence.driver.cuinit_code in (805, 806)
        return answered(evidence, where, fix=fix if unreachable else None, cuda_mps_pipe_directory=folder)

    return judge


def _not_supported(evidence: Evidence) -> Seen | None:
    """801: on a Jetson mostly of a user who may not open its nodes."""
    if evidence.driver.cuinit_code != 801:
        return None
    if evidence.stack.jetson is None:
        return answered(evidence)
    fix = "sudo usermod -aG video,render $USER, then log in again; a container: --group-add video --group-add render"
    return answered(evidence, "this is a Jetson", fix=fix, jetson=evidence.stack.jetson)


def _other(evidence: Evidence) -> Seen | None:
    code = evidence.driver.cuinit_code
    by_mask = code == REFUSED and evidence.value(MASK) is not None
    return None if by_mask or code in (None, 0, *EXPLAINED) else answered(evidence)


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
        title="CUDA's driver crashes the process that starts it",
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
        title="MIG mode is on, but no instance exists",
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
        title="CUDA finds no device, though the machine has one",
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
        title="CUDA does not start: no memory or address space",
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
        title="nvidia-uvm, which CUDA needs, is missing",
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
        title="CUDA does not start (unknown error)",
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
        title="the kernel module's memory management (HMM) does not start",
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
    Condition(
        id="gpu.unavailable",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="the GPU is in exclusive use or not licensed",
        meaning="cuInit answers 46. A card in exclusive mode lets one process in, a prohibited one none; a virtual GPU "
        "without a licence answers so too.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each card",
        fix=fixes.smi(None, "-c 0"),
        judge=_unavailable,
        cuinit=(46,),
        texts=(r"CUDA-capable device\(s\) is/are busy or unavailable", r"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ),
    Condition(
        id="driver.toolchain",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="the driver is older than the CUDA that made the code",
        meaning="Code in PTX is of a newer CUDA than the driver can translate. Triton and NVRTC make such code on the "
        "way.",
        settle="it runs with a newer driver",
        fix="update the driver, or use the torch of an older CUDA",
        judge=answers(222),
        cuinit=(222,),
        texts=(r"the provided PTX was compiled with an unsupported toolchain", r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    ),
    Condition(
        id="driver.not_permitted",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="the driver does not permit CUDA here",
        meaning="cuInit answers 800: the operation is not permitted. A virtual GPU whose profile is for graphics "
        "alone, and a sandbox, answer so.",
        settle="`nvidia-smi -q | grep -i -e product -e license` names a virtual GPU's profile",
        fix="use a profile for computing (vGPU: C or Q series); outside the sandbox, run it again",
        judge=answers(800),
        cuinit=(800,),
        texts=(r"Error 800: operation not permitted", r"CUDA_ERROR_NOT_PERMITTED"),
    ),
    Condition(
        id="driver.not_supported",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="the driver does not support CUDA on this system",
        meaning="cuInit answers 801: not supported. A virtual GPU whose profile is for graphics alone (B and A series) "
        "answers so, a sandbox that passes on only a part of the driver's calls, and a Jetson whose nodes a user "
        "outside the groups video and render may not open.",
        settle="`nvidia-smi -q | grep -i product` names a virtual GPU's profile",
        fix="use a profile for computing (vGPU: C or Q series); outside the sandbox, run it again",
        judge=_not_supported,
        cuinit=(801,),
        texts=(r"Error 801: operation not supported", r"CUDA_ERROR_NOT_SUPPORTED"),
        source="dusty-nv/jetson-containers issue 1136",
    ),
    Condition(
        id="driver.confidential",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the GPU of this confidential machine is not in ready state",
        meaning="In confidential computing a GPU takes no work until it was attested and its ready state was set. "
        "Until then CUDA answers that the system is not ready.",
        settle="`nvidia-smi conf-compute -grs` says `not-ready`",
        fix="sudo nvidia-smi conf-compute -srs 1, after attestation",
        judge=_confidential,
        cuinit=(802,),
        source="NVIDIA/nvtrust issues 37 and 56",
    ),
    Condition(
        id="driver.fabric",
        rung="cuinit",
        verdict="fail",
        certainty="strong",
        title="the fabric between the GPUs is not ready",
        meaning="GPUs on an NVSwitch start only once the fabric manager has set the switches up, and it must be of "
        "exactly the driver's version. On a rented machine with one of eight GPUs, the host's fabric manager is meant.",
        settle="`systemctl status nvidia-fabricmanager` shows whether it runs, and of which version it is",
        fix="sudo systemctl restart nvidia-fabricmanager; if it refuses, install it in exactly the driver's version",
        judge=_fabric,
        cuinit=(802,),
        texts=(r"Error 802: system not yet initialized", r"CUDA_ERROR_SYSTEM_NOT_READY"),
        source="pytorch issue 35710; huggingface_hub issue 4134; hiyouga/LlamaFactory issue 8968",
    ),
    Condition(
        id="mps.unreachable",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="the MPS server cannot be reached",
        meaning="CUDA shares a card through a server (MPS) where its control daemon is found, and the server does not "
        "answer: the daemon ended and left its pipes, runs for another user, or was not handed into this container.",
        fix="nvidia-cuda-mps-control -d; or, to do without, unset CUDA_MPS_PIPE_DIRECTORY",
        judge=_mps(805, 806),
        cuinit=(805, 806),
        texts=(
            r"MPS client failed to connect to the MPS control daemon",
            r"remote procedural call between the MPS server and the MPS client failed",
            r"CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE)",
        ),
        source="NVIDIA Multi-Process Service documentation",
    ),
    Condition(
        id="mps.not_ready",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="the MPS server is not ready for new clients",
        meaning="The server starts, or is getting over a client's fault.",
        settle="its log, server.log in CUDA_MPS_LOG_DIRECTORY, says what it waits for",
        fix="try again in a few seconds; else echo quit | nvidia-cuda-mps-control, and restart it",
        judge=_mps(807),
        cuinit=(807,),
        texts=(r"MPS server is not ready to accept new MPS client", r"CUDA_ERROR_MPS_SERVER_NOT_READY"),
        source="NVIDIA Multi-Process Service documentation",
    ),
    Condition(
        id="mps.full",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="the MPS server has no room for another client",
        meaning="A server of MPS takes a limited number of clients, and of connections to a device.",
        fix="end clients that are no longer needed: echo get_client_list PID | nvidia-cuda-mps-control lists them",
        judge=_mps(808, 809),
        cuinit=(808, 809),
        texts=(
            r"hardware resources required to (?:create MPS client|support device connections) have been exhausted",
            r"CUDA_ERROR_MPS_MAX_(?:CLIENTS|CONNECTIONS)_REACHED",
        ),
        source="NVIDIA Multi-Process Service documentation",
    ),
    Condition(
        id="mps.ended",
        rung="cuinit",
        verdict="fail",
        certainty="proof",
        title="the MPS server ended this client",
        meaning="An operator, or the server as it got over a fault, ended this client's connection.",
        fix="start the program again",
        judge=_mps(810),
        cuinit=(810,),
        texts=(r"MPS client has been terminated by the server", r"CUDA_ERROR_MPS_CLIENT_TERMINATED"),
        source="NVIDIA Multi-Process Service documentation",
    ),
    Condition(
        id="driver.refused",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="CUDA does not start, for no known cause",
        meaning="cuInit answers a code that is none of those whose causes are known. Libraries of several drivers "
        "mixed, and a driver that was updated while it ran, are worth a look.",
        settle="the same answer after a reboot, with LD_LIBRARY_PATH unset, is the installation's",
        fix="unset LD_LIBRARY_PATH and try again; sudo dmesg | grep -i nvrm; reboot",
        judge=_other,
    ),
)

# What the rows of this rung and of the one below it are about; any other answer is told as it is.
EXPLAINED = {code for rows in (conditions_library.CONDITIONS, CONDITIONS) for row in rows for code in row.cuinit}
