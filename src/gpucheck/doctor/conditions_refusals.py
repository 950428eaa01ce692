"""CUDA does not start because it is refused: the card is not lent or not released, or the server of MPS is away."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.doctor import conditions_cuinit, conditions_library, conditions_masks, fixes
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.cuinit import answered, answers
from gpucheck.doctor.evidence import Evidence

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
    by_mask = code == conditions_masks.REFUSED and evidence.value(conditions_masks.MASK) is not None
    return None if by_mask or code in (None, 0, *EXPLAINED) else answered(evidence)


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="gpu.unavailable",
        rung="cuinit",
        verdict="fail",
        certainty="hint",
        title="the GPU is in exclusive use or not lent",
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
        title="the driver is older than what made the code",
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
        title="the GPU of this confidential machine is not released for use",
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
        title="CUDA does not start, with an answer that has no usual cause",
        meaning="cuInit answers a code that is none of those whose causes are known. Libraries of several drivers "
        "mixed, and a driver that was updated while it ran, are worth a look.",
        settle="the same answer after a reboot, with LD_LIBRARY_PATH unset, is the installation's",
        fix="unset LD_LIBRARY_PATH and try again; sudo dmesg | grep -i nvrm; reboot",
        judge=_other,
    ),
)

# What the rows of this rung and of the one below it are about; any other answer is told as it is.
EXPLAINED = {
    code
    for rows in (conditions_library.CONDITIONS, conditions_cuinit.CONDITIONS, CONDITIONS)
    for row in rows
    for code in row.cuinit
}
