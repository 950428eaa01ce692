"""NVML does not start or does not show its cards: each answer of nvmlInit, and what the cards say of themselves.

torch does without NVML: where CUDA works, what is wrong here is worth a warning and breaks no rung.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck.cards.at_rest import ACTIONS
from gpucheck.cards.checks import IN_PROGRESS, WAIT, fabric_state, smi_name
from gpucheck.doctor import conditions_nodes, fixes
from gpucheck.doctor.condition import Condition, Evidence, Seen, answered, by_answer, on
from gpucheck.doctor.conditions_kernel import REFUSED, absent
from gpucheck.doctor.conditions_nodes import lacks_nodes
from gpucheck.machine.choose import MASK, read_mask
from gpucheck.machine.kernel_driver import FALLEN
from gpucheck.messages import FIX
from gpucheck.naming import MOST_NAMED, few
from gpucheck.report.facts import Device, Driver
from gpucheck.units import GIB

# NVML_ERROR_RESET_REQUIRED and NVML_ERROR_OPERATING_SYSTEM of nvml.h.
RESET_REQUIRED, BLOCKED = 16, 17


def _said(evidence: Evidence, more: str = "") -> Seen:
    driver = evidence.driver
    said = f"nvmlInit returns {driver.nvml_code} ({driver.nvml_error or 'no text'})"
    return Seen(
        f"{said}; {more}" if more else said,
        {"nvml_code": driver.nvml_code, "nvml_error": driver.nvml_error},
        verdict="warn" if evidence.cuda_works else None,
    )


def _broken_off(words: str, at: str) -> Callable[[Evidence], Seen | None]:
    """A judge for NVML's child without an answer, by the words of its error: at its start, or at one card."""

    def judge(evidence: Evidence) -> Seen | None:
        error, code = evidence.driver.nvml_error or "", evidence.driver.nvml_code
        # The card at which NVML did not answer in its time, or ended its process.
        card = next((card for card in evidence.cards if (card.state or "").startswith("not answering")), None)
        where = f"{at}{_name(card)}" if card is not None else ""
        known = Seen(f"{error}{where}", {"nvml_code": code}, verdict="warn" if evidence.cuda_works else None)
        return known if words in error else None

    return judge


def _name(card: Device) -> str:
    return card.pci_address or card.uuid or f"device {card.nvml_index}"


def _in_state(state: str, code: int) -> Callable[[Evidence], Seen | None]:
    """A judge for cards that are in this state, or an nvmlInit that answers so; not where the log tells more."""

    def judge(evidence: Evidence) -> Seen | None:
        if state == "lost" and evidence.logged(FALLEN):
            return None
        if evidence.driver.nvml_code == code:
            return _said(evidence)
        cards = [card for card in evidence.cards if card.state == state]
        # Where CUDA works with the others, the card's own check says it.
        if not cards or evidence.cuda_works:
            return None
        actions = sorted({card.recovery_action for card in cards if card.recovery_action} - {"none"})
        asked = f"; the driver's recovery action is {', '.join(actions)}" if actions else ""
        return Seen(
            f"{', '.join(map(_name, cards))}: {state}{asked}",
            {"cards": [_name(card) for card in cards], "recovery_actions": actions},
            fix=fixes.reset(*map(smi_name, cards)) if code == RESET_REQUIRED else None,
        )

    return judge


def recovery(evidence: Evidence) -> Seen | None:
    """CUDA does not start and the driver itself says what to do to a GPU."""
    cards = [card for card in evidence.cards if card.recovery_action not in (None, "none") and card.state is None]
    if not cards or evidence.cuda_works or evidence.driver.cuinit_code in (0, None):
        return None
    action = str(cards[0].recovery_action)
    title, fix = ACTIONS.get(action, (action, ""))
    return Seen(
        f"{', '.join(map(_name, cards))}: the driver reports the recovery action {action} ({title})",
        {"cards": [_name(card) for card in cards], "recovery_action": action},
        fix=fix.format(card=smi_name(cards[0])) or None,
    )


def _lists_none(evidence: Evidence) -> Seen | None:
    """NVML starts and lists nothing, and neither the kernel's rung nor the nodes' says why."""
    driver = evidence.driver
    if driver.nvml_code != 0 or driver.nvml_error is not None or evidence.cuda_works or not evidence.stack.gpus:
        return None
    if any(card.nvml_index is not None for card in evidence.cards):
        return None
    if absent(evidence) is not None or lacks_nodes(evidence):
        return None
    addresses = [gpu.address for gpu in evidence.stack.gpus]
    return Seen(f"{', '.join(addresses)} on the PCI bus, but none in NVML's list", {"pci_addresses": addresses})


def _nvml_answers(
    code: int, holds: Callable[[Evidence], bool], more: Callable[[Evidence], str] = lambda _: ""
) -> Callable[[Evidence], Seen | None]:
    """A judge for what nvmlInit returned, where nothing that was seen explains it."""
    return lambda seen: _said(seen, more(seen)) if seen.driver.nvml_code == code and holds(seen) else None


def _other(evidence: Evidence) -> Seen | None:
    code = evidence.driver.nvml_code
    # Outside WSL that answer has no usual cause.
    unexplained = code == BLOCKED and not evidence.host.wsl
    return _said(evidence) if unexplained or code not in (None, 0, *EXPLAINED) else None


def _users(cards: Sequence[Device]) -> tuple[list[int], str, str]:
    """The processes on cards that let in one or none, their names, and the line that lets in others."""
    pids = sorted({process.pid for card in cards for process in card.processes or ()})
    named = f"PID {few([str(pid) for pid in pids], ', ')}" if pids else "the process on it"
    return (
        pids,
        named,
        f"end {named}{' (gpucheck devices --processes lists them)' if len(pids) > MOST_NAMED else ''}, or "
        + fixes.smi((card.uuid for card in cards), "-c 0"),
    )


def refusing(evidence: Evidence) -> list[Device]:
    """The GPUs that refused a kernel as busy, and that let in one process or none."""
    refused = {run.device for run in evidence.probe.kernels if "busy or unavailable" in (run.error or "")}
    return [card for card in evidence.cards if card.id in refused and (card.compute_mode or "default") != "default"]


def _busy(evidence: Evidence) -> Seen | None:
    """CUDA starts and a kernel is refused, with another process on a GPU that lets in one."""
    cards = refusing(evidence)
    if not cards:
        return None
    pids, named, fix = _users(cards)
    modes = ", ".join(f"{_name(card)} is {card.compute_mode}" for card in cards)
    return Seen(
        f"{modes}, with {named} on it" if pids else modes,
        {"compute_modes": [card.compute_mode for card in cards], "pids": pids},
        fix=fix,
    )


NVML = on(
    "nvml",
    Condition(
        id="gpu.lost",
        certainty="proof",
        title="the driver lost the GPU",
        meaning="It stopped answering on PCI Express. Only a reset of the machine brings it back, and usually it "
        "takes a power cycle.",
        fix=FIX["lost"],
        judge=_in_state("lost", 15),
        nvml=(15,),
        patterns=(r"NVML_ERROR_GPU_IS_LOST|\bGPU is lost\b",),
    ),
    Condition(
        id="gpu.reset_required",
        certainty="proof",
        title="the GPU needs a reset",
        meaning="An error left the GPU unusable until it is reset.",
        fix=fixes.reset(),
        judge=_in_state("reset required", RESET_REQUIRED),
        nvml=(16,),
        patterns=(r"GPU requires (?:a )?reset", r"NVML_ERROR_RESET_REQUIRED"),
    ),
    Condition(
        id="gpu.recovery",
        title="CUDA does not start, and the driver reports a recovery action for the GPU",
        meaning="The driver reports a recovery action for each GPU: a reset, a reboot, or an end to its work.",
        settle="CUDA starts after that action",
        fix="follow the driver's recovery action: nvidia-smi -q | grep -i recovery",
        judge=recovery,
    ),
    Condition(
        id="driver.nvml_hung",
        certainty="proof",
        title="NVML does not answer",
        meaning="A call to NVML did not return in time. nvidia-smi hangs too, usually because a GPU does not answer "
        "the kernel module.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; if the driver still hangs, reboot",
        judge=_broken_off("did not answer within", " at "),
    ),
    Condition(
        id="driver.nvml_crashed",
        certainty="proof",
        title="NVML crashes its process",
        meaning="The process that called NVML ended before the answer. The library is damaged or does not belong to "
        "the driver.",
        fix="reinstall the driver's libraries in the kernel module's version (cat /proc/driver/nvidia/version)",
        judge=_broken_off("ended early", ", at "),
    ),
    Condition(
        id="driver.no_devices_found",
        title="the driver runs but finds no GPU",
        meaning="nvidia-smi reports `No devices were found`: the module is loaded but could not start any GPU on the "
        "bus.",
        settle="the kernel log (`sudo dmesg`) has an NVRM line for each GPU that it could not start",
        fix="sudo dmesg | grep -i nvrm; then power-cycle the machine and try the newest driver",
        judge=_lists_none,
        patterns=(r"No devices were found",),
    ),
    Condition(
        id="gpu.insufficient_power",
        certainty="proof",
        title="the GPU does not get enough power",
        meaning="NVML reports that the GPU's external power cables are not attached properly.",
        fix="shut down the node and connect all power cables of the GPU",
        judge=_in_state("no power", 8),
        nvml=(8,),
        patterns=(r"NVML_ERROR_INSUFFICIENT_POWER",),
    ),
    Condition(
        id="gpu.interrupts",
        certainty="proof",
        title="the GPU's interrupts do not arrive",
        meaning="The kernel module found a problem with a GPU's interrupts: the firmware or a virtual machine does "
        "not deliver them.",
        settle="the nvidia counters in /proc/interrupts do not change",
        fix="update the machine's firmware; in a virtual machine, enable message-signalled interrupts for the GPU",
        judge=_in_state("no interrupts", 11),
        nvml=(11,),
    ),
    Condition(
        id="wsl.blocked",
        title="the operating system blocks the GPU",
        meaning="Under WSL the driver is the Windows driver. It blocks the GPU if it is too old for this WSL, if a "
        "Linux driver is also installed, or if the GPU is in TCC mode.",
        settle="nvidia-smi in Windows shows the driver version and the mode",
        fix="update NVIDIA's driver in Windows, then wsl --shutdown; for a GPU in TCC mode: nvidia-smi -dm 0 in "
        "Windows",
        judge=_nvml_answers(BLOCKED, lambda seen: bool(seen.host.wsl)),
        nvml=(BLOCKED,),
        patterns=(r"GPU access blocked by the operating system", r"NVML_ERROR_OPERATING_SYSTEM"),
    ),
    Condition(
        id="driver.nvml_no_permission",
        title="NVML has no permission to use the driver",
        meaning="NVML reports that this user has no permission, although the permissions of the device nodes allow it.",
        settle="if `sudo nvidia-smi` works, it is a permissions problem",
        fix="ls -l /dev/nvidia* /dev/nvidia-caps/*; id; sudo nvidia-smi",
        # The nodes' rights were not seen to be the cause.
        judge=_nvml_answers(4, lambda seen: all(node.readable and node.writable for node in seen.stack.nodes)),
        nvml=(4,),
    ),
    Condition(
        id="driver.nvml_not_loaded",
        certainty="hint",
        title="NVML cannot reach the kernel module",
        meaning="NVML reports that the driver is not loaded, but the kernel shows its module: device nodes that lead "
        "elsewhere, a module that just failed, or a sandbox.",
        settle="`sudo dmesg` shows whether the module failed to start",
        fix="sudo dmesg | grep -i nvrm; ls -l /dev/nvidia*",
        # Its nodes do not lead to it.
        judge=_nvml_answers(
            9,
            lambda seen: bool(seen.driver.kernel_module_loaded) and not lacks_nodes(seen),
            lambda _: "the kernel module is nevertheless loaded",
        ),
        nvml=(9,),
    ),
    Condition(
        id="driver.nvml_unknown",
        certainty="hint",
        title="NVML does not start (unknown error)",
        meaning="nvmlInit returns 999. In a container the usual cause is lost access to the device nodes, elsewhere "
        "a GPU that failed.",
        settle="a new container that works, or `sudo dmesg`, shows which",
        fix="recreate the container; outside one, sudo dmesg | grep -i -e nvrm -e xid",
        # A control group's refusal has its own condition.
        judge=_nvml_answers(
            999,
            lambda seen: not any(node.error for node in seen.stack.nodes),
            lambda seen: "in a container the usual cause is lost access to the device nodes" * seen.in_container,
        ),
        nvml=(999,),
    ),
    Condition(
        id="driver.nvml_refused",
        certainty="hint",
        title="NVML does not start, cause unknown",
        meaning="nvmlInit returns a code whose cause gpucheck does not know.",
        settle="if a reboot does not help, the cause is the installation",
        fix="sudo dmesg | grep -i nvrm; nvidia-smi",
        judge=_other,
    ),
    Condition(
        id="gpu.exclusive",
        rung="run",
        title="another process has the GPU in exclusive mode",
        meaning="In exclusive mode a GPU accepts one process, in prohibited mode none: the first use fails.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each GPU",
        fix=f"end the process on it, or {fixes.smi((), '-c 0')}",
        judge=_busy,
        patterns=(r"all CUDA-capable devices are busy or unavailable",),
    ),
)

# What the rows of this rung and of the one below it are about; any other answer is told as it is.
EXPLAINED = {code for rows in (conditions_nodes.LIBRARY, NVML) for row in rows for code in row.nvml}


# The kernel finds no room for the driver's pages of device memory among its own addresses.
NO_ROOM_FOR_PAGES = r"request_free_mem_region\(\) err -34"


def _after_start(driver: Driver) -> str:
    return ("cuInit returned; then " if driver.cuinit_code == 0 else "") + (driver.cuinit_error or "")


def _hung_cuinit(evidence: Evidence) -> Seen | None:
    driver = evidence.driver
    if not evidence.driver.is_hung:
        return None
    details = {"libcuda": driver.libcuda_path, "nvml_error": driver.nvml_error}
    if evidence.probe.not_awaited is not None:
        details["torch_not_awaited"] = evidence.probe.not_awaited
    return Seen(_after_start(driver), details)


def _crashed_cuinit(evidence: Evidence) -> Seen | None:
    error = _after_start(evidence.driver)
    return Seen(error, {"libcuda": evidence.driver.libcuda_path}) if "ended early" in error else None


def _out_of_memory(evidence: Evidence) -> Seen:
    """2 before any memory was asked for: CUDA sets aside addresses for all memory of host and cards as it starts."""
    limit = evidence.stack.address_limit_bytes
    if limit is None:
        left = evidence.host.container_available_bytes
        more = f"the container has {left / GIB:.1f} GiB left" if left is not None else ""
        return answered(evidence, more, container_available_bytes=left)
    return answered(
        evidence,
        f"a process may use {limit / GIB:.0f} GiB of address space (ulimit -v)",
        fix="ulimit -v unlimited (a scheduler's virtual memory limit must be changed in the scheduler)",
        certainty="strong",
        address_limit_bytes=limit,
    )


def _no_memory_node(evidence: Evidence) -> Seen | None:
    """999 where the node of the memory module is missing, which `nvidia-smi` does not need."""
    stack = evidence.stack
    if stack.node("/dev/nvidiactl") is None or stack.node("/dev/nvidia-uvm"):
        return None
    loaded = None if stack.modules is None else "nvidia_uvm" in stack.modules
    more = "/dev/nvidiactl exists, but /dev/nvidia-uvm does not"
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
    if _no_memory_node(evidence) is not None:
        return None
    return answered(evidence, "the device nodes exist" if evidence.stack.node("/dev/nvidia-uvm") else "")


def _memory_module(evidence: Evidence) -> Seen | None:
    """3 with the open module: heterogeneous memory management does not start on some kernels."""
    logged = evidence.logged(NO_ROOM_FOR_PAGES)
    if logged:
        return answered(evidence, f"the kernel logs: {logged[-1]}", certainty="proof", log=logged)
    disabled = (evidence.stack.parameters or {}).get("uvm_disable_hmm")
    if not evidence.driver.kernel_module_open or disabled not in (None, "N"):
        return None
    said = "its uvm_disable_hmm is off" if disabled else "its parameters cannot be read"
    return answered(evidence, f"the kernel module is the open module, and {said}", uvm_disable_hmm=disabled)


def _no_device(evidence: Evidence) -> Seen | None:
    """100 that no mask and no MIG mode explains, on a machine that has a GPU."""
    if not evidence.is_nvidia_here:
        return None
    value = evidence.value(MASK)
    uuids = [card.uuid for card in evidence.cards if card.nvml_index is not None or card.parent_uuid is not None]
    masked = value is not None and not read_mask(value, uuids).shown
    if masked or _empty_mig(evidence) is not None:
        return None
    listed = sum(card.nvml_index is not None for card in evidence.cards)
    if uuids or value is None:
        return answered(evidence, f"NVML lists {listed}" if listed else "NVML lists none either", nvml_count=listed)
    # Whether it names one of those that are here nobody can say then.
    message = f"{MASK}={value!r} may hide it: NVML lists none to compare"
    return answered(evidence, message, fix=f"unset {MASK}", nvml_count=listed)


def _empty_mig(evidence: Evidence) -> Seen | None:
    """Every card that NVML lists is in MIG mode and none has an instance."""
    whole = [card for card in evidence.cards if card.parent_uuid is None]
    empty = [card for card in whole if card.mig is not None and card.mig.enabled and not card.mig.instances]
    if not whole or len(empty) < len(whole):
        return None
    return answered(
        evidence,
        f"MIG mode is on without an instance on {', '.join(card.uuid or 'a GPU' for card in empty)}",
        fix=_mig_fix(",".join(card.uuid for card in empty if card.uuid) or "INDEX"),
        uuids=[card.uuid for card in empty],
    )


def _mig_fix(cards: str) -> str:
    """On these cards alone: without -i, each of them changes all."""
    return (
        f"sudo nvidia-smi mig -i {cards} -lgip to list profiles, sudo nvidia-smi mig -i {cards} -cgi 0 -C to create "
        f"an instance; or {fixes.smi([cards], '-mig 0')} to use the whole GPU"
    )


# -- it is refused: the card is not lent or not released, or the server of MPS is away ---------------------------------

MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def _unavailable(evidence: Evidence) -> Seen:
    """46: the mode in which a GPU lets one process in, or none, and who is in; else a licence or a partition."""
    modes = sorted({card.compute_mode for card in evidence.cards if card.compute_mode})
    prohibited = [card.uuid for card in evidence.cards if card.compute_mode == "prohibited"]
    if prohibited:
        fix, said = fixes.smi(prohibited, "-c 0"), "its compute mode is prohibited"
        return answered(evidence, said, fix=fix, certainty="proof", compute_modes=["prohibited"])
    exclusive = [card for card in evidence.cards if (card.compute_mode or "").startswith("exclusive")]
    pids, named, fix = _users(exclusive)
    if pids:
        said = f"its compute mode is {exclusive[0].compute_mode} and {named} uses it"
        held = [mode for mode in modes if mode.startswith("exclusive")]
        return answered(evidence, said, fix=fix, certainty="strong", compute_modes=held, pids=pids)
    return answered(
        evidence,
        "NVML shows no GPU in exclusive use",
        fix="sudo nvidia-smi -q -d COMPUTE; on a virtual GPU, check its licence: nvidia-smi -q | grep -i license",
        compute_modes=modes,
    )


def _is_confidential(evidence: Evidence) -> bool:
    """802 where NVML says that the GPUs wait, or in a confidential virtual machine without switches of its own."""
    state, stack = evidence.driver.confidential_computing, evidence.stack
    if state in ("off", "ready"):
        return False
    return state == "not ready" or (stack.confidential_guest and not stack.switches)


def _confidential(evidence: Evidence) -> Seen | None:
    if not _is_confidential(evidence):
        return None
    state = evidence.driver.confidential_computing
    return answered(
        evidence,
        f"NVML reports that confidential computing is {state}" if state else "this is a confidential virtual machine",
        certainty="proof" if state else None,
        confidential_guest=evidence.stack.confidential_guest,
        confidential_computing=state,
    )


def _fabric(evidence: Evidence) -> Seen | None:
    """802 elsewhere; the manager's absence is proof only where the switches are this machine's own."""
    if _is_confidential(evidence):
        return None
    switches, state = evidence.stack.switches, fabric_state(evidence.facts)
    runs = evidence.stack.fabric_manager if switches and not evidence.in_container else None
    if state is not None and state.startswith(IN_PROGRESS):
        seen = answered(evidence, f"NVML reports the fabric {state}", fix=WAIT, fabric=state)
        return replace(seen, verdict="inconclusive", title="the fabric between the GPUs is being set up")
    if state is None and not switches:
        fix = "ask the host's administrator: the host must run a fabric manager of the driver's version"
        return answered(evidence, "no NVSwitch is visible here", fix=fix, certainty="hint", switches=0)
    parts = [f"{switches} NVSwitch{'es are' if switches != 1 else ' is'} on the PCI bus"] if switches else []
    parts += [f"NVML reports the fabric {state}"] if state is not None else []
    parts += ["nvidia-fabricmanager does not run"] if runs is False else []
    parts += ["nvidia-fabricmanager runs: check that its version matches the driver's"] if runs else []
    return answered(
        evidence,
        "; ".join(parts),
        certainty="proof" if runs is False or state is not None else None,
        fix="on the host: sudo systemctl restart nvidia-fabricmanager" if evidence.in_container else None,
        switches=switches,
        fabric_manager=runs,
        fabric=state,
    )


def _mps(evidence: Evidence) -> Seen:
    """CUDA was sent to a server of MPS: by the variable, or because one was started at its usual place."""
    folder = evidence.value(MPS_FOLDER)
    where = f"{MPS_FOLDER}={folder}" if folder else f"{MPS_FOLDER} is not set: the default is /tmp/nvidia-mps"
    # Without the variable a daemon that ended has left its pipes in the usual place, where CUDA finds them.
    stale = "once no MPS daemon runs, remove stale pipes: sudo rm -r /tmp/nvidia-mps"
    fix = f"start MPS: nvidia-cuda-mps-control -d; or, {stale}" if not folder else None
    unreachable = evidence.driver.cuinit_code in (805, 806)
    return answered(evidence, where, fix=fix if unreachable else None, cuda_mps_pipe_directory=folder)


def _not_supported(evidence: Evidence) -> Seen:
    """801: on a Jetson mostly of a user who may not open its nodes."""
    if evidence.stack.jetson is None:
        return answered(evidence)
    fix = "sudo usermod -aG video,render $USER, then log in again; a container: --group-add video --group-add render"
    return answered(evidence, "this is a Jetson", fix=fix, jetson=evidence.stack.jetson)


def _other_cuinit(evidence: Evidence) -> Seen | None:
    code = evidence.driver.cuinit_code
    by_mask = code == REFUSED and evidence.value(MASK) is not None
    return None if by_mask or code in (None, 0, *EXPLAINED_CUINIT) else answered(evidence)


_CUINIT = on(
    "cuinit",
    Condition(
        id="driver.hung",
        certainty="proof",
        title="CUDA's driver does not answer",
        meaning="A call to libcuda did not return in time. Every program that calls it hangs, torch included.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then drain the node, end the processes that use the GPU, and reboot",
        judge=_hung_cuinit,
    ),
    Condition(
        id="driver.crashed",
        certainty="proof",
        title="CUDA's driver crashes its process",
        meaning="The process that called libcuda ended before the call returned, and so would torch. libcuda is "
        "damaged or does not match the kernel module or the C library.",
        fix="reinstall the driver's libraries in the kernel module's version (cat /proc/driver/nvidia/version)",
        judge=_crashed_cuinit,
    ),
    Condition(
        id="gpu.mig_empty",
        certainty="proof",
        title="MIG mode is on, but no instance exists",
        meaning="In MIG mode the instances are the devices, not the GPU, and none exists. CUDA then behaves as on a "
        "machine without a GPU, and torch gives no reason.",
        fix=_mig_fix("INDEX"),
        judge=_empty_mig,
        cuinit=(100,),
    ),
    Condition(
        id="driver.no_device",
        certainty="hint",
        title="CUDA finds no device, although the machine has one",
        meaning="torch does not report this answer: is_available() is False without a warning. The driver shows this "
        "process no GPU.",
        settle="`sudo dmesg` shows a GPU that did not start, `ls -l /dev/nvidia*` a GPU that was not passed in",
        fix="sudo dmesg | grep -i nvrm; ls -l /dev/nvidia*",
        judge=_no_device,
        cuinit=(100,),
        patterns=(r"No CUDA GPUs are available", r"Error 100: no CUDA-capable device is detected"),
    ),
    Condition(
        id="driver.out_of_memory",
        certainty="hint",
        title="CUDA does not start: no memory or address space",
        meaning="At its start, CUDA reserves addresses for the memory of the host and of all GPUs, far more than it "
        "uses. A virtual memory limit prevents this, or the host has no free memory.",
        settle="`ulimit -v` is a number, or `free` shows no free memory",
        fix="ulimit -v unlimited; free",
        judge=_out_of_memory,
        cuinit=(2,),
    ),
    Condition(
        id="driver.uvm_missing",
        title="nvidia-uvm, which CUDA needs, is missing",
        meaning="CUDA needs /dev/nvidia-uvm; nvidia-smi does not. nvidia-modprobe creates it when a root program "
        "first needs it. In a container it must be passed in.",
        settle="cuInit returns 0 once the node exists",
        fix="sudo nvidia-modprobe -c 0 -u",
        judge=_no_memory_node,
        cuinit=(999,),
        patterns=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
    ),
    Condition(
        id="driver.unknown_error",
        certainty="hint",
        title="CUDA does not start (unknown error)",
        meaning="No other fault is visible. This happens after a suspend, when the memory module has lost its state, "
        "and if a variable was changed after CUDA had started.",
        settle="if reloading nvidia_uvm helps, suspend probably caused it",
        fix="sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
        judge=_unknown_error,
        cuinit=(999,),
    ),
    Condition(
        id="driver.hmm",
        title="the kernel module's memory management (HMM) does not start",
        meaning="With some kernels the open module finds no address range for heterogeneous memory management: CUDA "
        "does not start, although nvidia-smi works.",
        settle="the kernel log has `request_free_mem_region() err -34`",
        fix="echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf, then reboot",
        judge=_memory_module,
        cuinit=(3,),
        patterns=(
            r"CUDA driver initialization failed, you might not have a CUDA gpu",
            r"request_free_mem_region\(\) err -34",
        ),
    ),
    Condition(
        id="driver.not_initialised",
        certainty="hint",
        title="CUDA's driver does not initialise",
        meaning="cuInit returns 3 without a reason.",
        settle="the kernel log (`sudo dmesg`) usually shows the reason",
        fix="sudo dmesg | grep -i -e nvrm -e nvidia",
        judge=lambda seen: answered(seen) if _memory_module(seen) is None else None,
        cuinit=(3,),
        patterns=(r"CUDA_ERROR_NOT_INITIALIZED",),
    ),
    Condition(
        id="gpu.unavailable",
        certainty="hint",
        title="the GPU is in exclusive use or not licensed",
        meaning="A GPU in exclusive mode accepts one process, in prohibited mode none. A virtual GPU without a "
        "licence gives the same answer.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each GPU",
        fix=fixes.smi((), "-c 0"),
        judge=_unavailable,
        cuinit=(46,),
        patterns=(r"CUDA-capable device\(s\) is/are busy or unavailable", r"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ),
    Condition(
        id="driver.toolchain",
        certainty="hint",
        title="the driver is older than the CUDA that compiled the code",
        meaning="The PTX code comes from a newer CUDA than the driver can translate. Triton and NVRTC produce such "
        "code at run time.",
        settle="it runs with a newer driver",
        fix="update the driver, or use a torch built for an older CUDA",
        judge=answered,
        cuinit=(222,),
        patterns=(
            r"the provided PTX was compiled with an unsupported toolchain",
            r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        ),
    ),
    Condition(
        id="driver.not_permitted",
        certainty="hint",
        title="the driver does not allow CUDA here",
        meaning="cuInit returns 800: the operation is not permitted. The usual causes are a virtual GPU with a "
        "graphics-only profile, and a sandbox.",
        settle="`nvidia-smi -q | grep -i -e product -e license` names a virtual GPU's profile",
        fix="use a compute profile (vGPU: C or Q series); or run again outside the sandbox",
        judge=answered,
        cuinit=(800,),
        patterns=(r"Error 800: operation not permitted", r"CUDA_ERROR_NOT_PERMITTED"),
    ),
    Condition(
        id="driver.not_supported",
        certainty="hint",
        title="the driver does not support CUDA on this system",
        meaning="Possible causes are a virtual GPU with a graphics-only profile (B and A series), a sandbox, and a "
        "Jetson if the user is not in the groups video and render.",
        settle="`nvidia-smi -q | grep -i product` names a virtual GPU's profile",
        fix="use a compute profile (vGPU: C or Q series); or run again outside the sandbox",
        judge=_not_supported,
        cuinit=(801,),
        patterns=(r"Error 801: operation not supported", r"CUDA_ERROR_NOT_SUPPORTED"),
    ),
    Condition(
        id="driver.confidential",
        title="the GPU of this confidential machine is not in ready state",
        meaning="In confidential computing a GPU accepts no work until it is attested and its ready state is set.",
        settle="`nvidia-smi conf-compute -grs` says `not-ready`",
        fix="sudo nvidia-smi conf-compute -srs 1, after attestation",
        judge=_confidential,
        cuinit=(802,),
    ),
    Condition(
        id="driver.fabric",
        title="the fabric between the GPUs is not ready",
        meaning="GPUs on an NVSwitch start only after the fabric manager, of exactly the driver's version, has set up "
        "the switches. On a rented machine with one of eight GPUs, this is the host's.",
        settle="`systemctl status nvidia-fabricmanager` shows whether it runs and its version",
        fix="sudo systemctl restart nvidia-fabricmanager; if it does not start, install exactly the driver's version "
        "of it",
        judge=_fabric,
        cuinit=(802,),
        patterns=(r"Error 802: system not yet initialized", r"CUDA_ERROR_SYSTEM_NOT_READY"),
    ),
    Condition(
        id="mps.unreachable",
        certainty="proof",
        title="the MPS server cannot be reached",
        meaning="CUDA found the MPS daemon's pipes, but the server does not answer: the daemon ended and left its "
        "pipes, runs for another user, or was not passed into this container.",
        fix="start MPS: nvidia-cuda-mps-control -d; or, to run without MPS, unset CUDA_MPS_PIPE_DIRECTORY",
        judge=_mps,
        cuinit=(805, 806),
        patterns=(
            r"MPS client failed to connect to the MPS control daemon",
            r"remote procedural call between the MPS server and the MPS client failed",
            r"CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE)",
        ),
    ),
    Condition(
        id="mps.not_ready",
        certainty="proof",
        title="the MPS server is not ready for new clients",
        meaning="The server is starting, or is recovering from a client's fault.",
        settle="its log (server.log in CUDA_MPS_LOG_DIRECTORY) shows what it waits for",
        fix="try again in a few seconds; else echo quit | nvidia-cuda-mps-control, and restart it",
        judge=_mps,
        cuinit=(807,),
        patterns=(r"MPS server is not ready to accept new MPS client", r"CUDA_ERROR_MPS_SERVER_NOT_READY"),
    ),
    Condition(
        id="mps.full",
        certainty="proof",
        title="the MPS server accepts no more clients",
        meaning="An MPS server has a limited number of clients and of connections to a device.",
        fix="end clients that you do not need: echo get_client_list PID | nvidia-cuda-mps-control lists them",
        judge=_mps,
        cuinit=(808, 809),
        patterns=(
            r"hardware resources required to (?:create MPS client|support device connections) have been exhausted",
            r"CUDA_ERROR_MPS_MAX_(?:CLIENTS|CONNECTIONS)_REACHED",
        ),
    ),
    Condition(
        id="mps.ended",
        certainty="proof",
        title="the MPS server ended this client",
        meaning="An operator, or the server while it recovered from a fault, ended this client's connection.",
        fix="start the program again",
        judge=_mps,
        cuinit=(810,),
        patterns=(r"MPS client has been terminated by the server", r"CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    ),
    Condition(
        id="driver.refused",
        certainty="hint",
        title="CUDA does not start, cause unknown",
        meaning="gpucheck does not know a cause of this code. Check for libraries of several drivers and for a driver "
        "that was updated while it ran.",
        settle="if a reboot with LD_LIBRARY_PATH unset does not help, the cause is the installation",
        fix="unset LD_LIBRARY_PATH and try again; sudo dmesg | grep -i nvrm; reboot",
        judge=_other_cuinit,
    ),
)

# Each of these answers is judged by the rows that name it.
CUINIT = tuple(map(by_answer, _CUINIT))
# What the rows of this rung and of the one below it are about; any other answer is told as it is.
EXPLAINED_CUINIT = {code for rows in (conditions_nodes.LIBRARY, CUINIT) for row in rows for code in row.cuinit}
