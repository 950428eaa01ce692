"""NVML does not start or does not show its cards: each answer of nvmlInit, and what the cards say of themselves.

torch does without NVML: where CUDA works, what is wrong here is worth a warning and breaks no rung.
"""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.cards.checks import smi_name
from gpucheck.cards.xids import ACTIONS
from gpucheck.doctor import conditions_library, fixes
from gpucheck.doctor.condition import Certainty, Condition, Seen
from gpucheck.doctor.conditions_kernel import FALLEN, why_absent
from gpucheck.doctor.conditions_nodes import lacks_nodes
from gpucheck.doctor.evidence import Evidence
from gpucheck.report.facts import Device
from gpucheck.report.finding import Verdict

# NVML_ERROR_RESET_REQUIRED and NVML_ERROR_OPERATING_SYSTEM of nvml.h.
RESET_REQUIRED, BLOCKED = 16, 17


def _unless_cuda_works(evidence: Evidence) -> Verdict | None:
    return "warn" if evidence.cuda_works else None


def _said(evidence: Evidence, more: str = "", *, certainty: Certainty | None = None) -> Seen:
    """What NVML answered to its start."""
    driver = evidence.driver
    said = f"nvmlInit answers {driver.nvml_code} ({driver.nvml_error or 'no text'})"
    return Seen(
        f"{said}; {more}" if more else said,
        {"nvml_code": driver.nvml_code, "nvml_error": driver.nvml_error},
        certainty=certainty,
        verdict=_unless_cuda_works(evidence),
    )


def _stopped(evidence: Evidence) -> Device | None:
    """The card at which NVML did not answer in its time, or ended its process."""
    return next((card for card in evidence.cards if (card.state or "").startswith("not answering")), None)


def _hung(evidence: Evidence) -> Seen | None:
    """NVML's child had no answer in its time: at its start, or at one card."""
    driver, card = evidence.driver, _stopped(evidence)
    if "did not answer within" not in (driver.nvml_error or ""):
        return None
    where = f" at {_name(card)}" if card is not None else ""
    return Seen(f"{driver.nvml_error}{where}", {"nvml_code": driver.nvml_code}, verdict=_unless_cuda_works(evidence))


def _crashed(evidence: Evidence) -> Seen | None:
    driver, card = evidence.driver, _stopped(evidence)
    if "ended early" not in (driver.nvml_error or ""):
        return None
    where = f", at {_name(card)}" if card is not None else ""
    return Seen(f"{driver.nvml_error}{where}", {"nvml_code": driver.nvml_code}, verdict=_unless_cuda_works(evidence))


def _name(card: Device) -> str:
    return card.pci_address or card.uuid or f"device {card.nvml_index}"


def _smi_name(card: Device) -> str | None:
    """What nvidia-smi takes for the card; its own number is NVML's."""
    index = None if card.nvml_index is None else str(card.nvml_index)
    return card.uuid or card.pci_address or index


def _in_state(state: str, code: int) -> Callable[[Evidence], Seen | None]:
    """A judge for cards that are in this state, or an nvmlInit that answers so; not where the log tells more."""

    def judge(evidence: Evidence) -> Seen | None:
        if evidence.driver.nvml_code == code:
            return None if _is_told_by_log(evidence, state) else _said(evidence)
        cards = [card for card in evidence.cards if card.state == state]
        # Where CUDA works with the others, the card's own check says it.
        if not cards or evidence.cuda_works or _is_told_by_log(evidence, state):
            return None
        actions = sorted({card.recovery_action for card in cards if card.recovery_action} - {"none"})
        asked = f"; the driver asks for {', '.join(actions)}" if actions else ""
        return Seen(
            f"{', '.join(map(_name, cards))}: {state}{asked}",
            {"cards": [_name(card) for card in cards], "recovery_actions": actions},
            fix=fixes.reset(*map(_smi_name, cards)) if code == RESET_REQUIRED else None,
        )

    return judge


def _is_told_by_log(evidence: Evidence, state: str) -> bool:
    return state == "lost" and bool(evidence.logged(FALLEN))


def _recovery(evidence: Evidence) -> Seen | None:
    """CUDA does not start and the driver itself says what to do to a card."""
    cards = [card for card in evidence.cards if card.recovery_action not in (None, "none") and card.state is None]
    if not cards or evidence.cuda_works or evidence.driver.cuinit_code in (0, None):
        return None
    action = str(cards[0].recovery_action)
    title, fix = ACTIONS.get(action, (action, ""))
    return Seen(
        f"{', '.join(map(_name, cards))}: the driver asks for the recovery action {action} ({title})",
        {"cards": [_name(card) for card in cards], "recovery_action": action},
        fix=fix.format(card=smi_name(cards[0])) or None,
    )


def _lists_none(evidence: Evidence) -> Seen | None:
    """NVML starts and lists nothing, and neither the kernel's rung nor the nodes' says why."""
    if not evidence.nvml_works or evidence.cuda_works or not evidence.stack.gpus:
        return None
    if any(card.nvml_index is not None for card in evidence.cards):
        return None
    if why_absent(evidence) is not None or lacks_nodes(evidence):
        return None
    addresses = [gpu.address for gpu in evidence.stack.gpus]
    return Seen(f"{', '.join(addresses)} on the PCI bus, none in NVML's list", {"pci_addresses": addresses})


def _no_permission(evidence: Evidence) -> Seen | None:
    """4 where the nodes' rights were not seen to be the cause."""
    if evidence.driver.nvml_code != 4 or any(not (n.readable and n.writable) for n in evidence.stack.nodes):
        return None
    return _said(evidence)


def _unknown(evidence: Evidence) -> Seen | None:
    """999 where no node was refused; a control group's refusal has its own condition."""
    if evidence.driver.nvml_code != 999 or any(node.error for node in evidence.stack.nodes):
        return None
    return _said(evidence, "in a container it is mostly lost access to the nodes" if evidence.in_container else "")


def _blocked(evidence: Evidence) -> Seen | None:
    return _said(evidence) if evidence.driver.nvml_code == BLOCKED and evidence.host.wsl else None


def _other(evidence: Evidence) -> Seen | None:
    code = evidence.driver.nvml_code
    # Outside WSL that answer has no usual cause.
    unexplained = code == BLOCKED and not evidence.host.wsl
    return _said(evidence) if unexplained or code not in (None, 0, *EXPLAINED) else None


def _module_not_loaded(evidence: Evidence) -> Seen | None:
    """9 although the kernel's module is loaded: its nodes do not lead to it."""
    if evidence.driver.nvml_code != 9 or not evidence.driver.kernel_module_loaded or lacks_nodes(evidence):
        return None
    return _said(evidence, "the kernel's module is loaded all the same")


def _busy(evidence: Evidence) -> Seen | None:
    """CUDA starts and a kernel is refused, with another process on a card that lets in one."""
    probe = evidence.torch
    errors = [run.error for run in probe.kernels if run.error] if probe is not None else []
    if not any("busy or unavailable" in error for error in errors):
        return None
    cards = [card for card in evidence.cards if (card.compute_mode or "default") != "default"]
    if not cards:
        return None
    pids = sorted({process.pid for card in cards for process in card.processes or ()})
    on_it = f", with PID {', '.join(map(str, pids))} on it" if pids else ""
    return Seen(
        f"{', '.join(f'{_name(card)} is {card.compute_mode}' for card in cards)}{on_it}",
        {"compute_modes": [card.compute_mode for card in cards], "pids": pids},
        fix=f"end {'PID ' + ', '.join(map(str, pids)) if pids else 'the process on it'}, or "
        + fixes.each((card.uuid for card in cards), "-c 0"),
    )


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="gpu.lost",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="the driver lost the GPU",
        meaning="NVML answers that the card is lost: it stopped answering on PCI Express. Nothing brings it back but a "
        "reset of the machine, and mostly it takes its power off and on.",
        settle="`sudo dmesg` has Xid 79 or `fallen off the bus`",
        fix="shut down, take the power off and on, and boot; if it returns, reseat the card and its power plugs",
        judge=_in_state("lost", 15),
        nvml=(15,),
        texts=(r"NVML_ERROR_GPU_IS_LOST|\bGPU is lost\b",),
    ),
    Condition(
        id="gpu.reset_required",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="the GPU needs a reset",
        meaning="An error left the card in a state in which it takes no work until it is reset.",
        fix=fixes.reset(None),
        judge=_in_state("reset required", RESET_REQUIRED),
        nvml=(16,),
        texts=(r"GPU requires (?:a )?reset", r"NVML_ERROR_RESET_REQUIRED"),
    ),
    Condition(
        id="gpu.recovery",
        rung="nvml",
        verdict="fail",
        certainty="strong",
        title="CUDA does not start; the driver asks for a recovery of the GPU",
        meaning="The driver tells of each card what would bring it back: a reset, a reboot, or an end to its work.",
        settle="CUDA starts once it was done",
        fix="follow the driver's recovery action: nvidia-smi -q | grep -i recovery",
        judge=_recovery,
        source="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION of nvml.h",
    ),
    Condition(
        id="driver.nvml_hung",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="NVML does not answer",
        meaning="A call to NVML did not return within its time. nvidia-smi hangs in the same way, mostly because a "
        "card does not answer the kernel module.",
        settle="`sudo dmesg` shows Xid messages, `ps` processes in state D",
        fix="sudo dmesg | grep -i -e nvrm -e xid; a driver that stays so needs a reboot",
        judge=_hung,
    ),
    Condition(
        id="driver.nvml_crashed",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="NVML crashes the process that calls it",
        meaning="The process that asked NVML ended before the answer. Its library is damaged, or is not the driver's "
        "own.",
        fix="reinstall the driver's libraries in the kernel module's version (cat /proc/driver/nvidia/version)",
        judge=_crashed,
    ),
    Condition(
        id="driver.no_devices_found",
        rung="nvml",
        verdict="fail",
        certainty="strong",
        title="the driver runs but finds no card",
        meaning="nvidia-smi says `No devices were found`. The module is loaded and started none of the cards on the "
        "bus.",
        settle="the kernel's log, read with `sudo dmesg`, has a line of NVRM for each card that it could not start",
        fix="sudo dmesg | grep -i nvrm; then take the power off and on, and try the newest driver",
        judge=_lists_none,
        texts=(r"No devices were found",),
        source="NVIDIA/open-gpu-kernel-modules issues 862 and 872",
    ),
    Condition(
        id="gpu.insufficient_power",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="the GPU does not get enough power",
        meaning="NVML answers that the card's external power cables are not attached properly.",
        fix="shut down the node and connect all power cables of the GPU",
        judge=_in_state("no power", 8),
        nvml=(8,),
        texts=(r"NVML_ERROR_INSUFFICIENT_POWER",),
        source="nvml.h: NVML_ERROR_INSUFFICIENT_POWER",
    ),
    Condition(
        id="gpu.interrupts",
        rung="nvml",
        verdict="fail",
        certainty="proof",
        title="the GPU's interrupts do not arrive",
        meaning="The kernel module found a problem with a card's interrupts: the firmware or a virtual machine does "
        "not deliver them.",
        settle="the counts of nvidia in /proc/interrupts stand still",
        fix="update the machine's firmware; in a virtual machine, switch message-signalled interrupts on for the card",
        judge=_in_state("no interrupts", 11),
        nvml=(11,),
        source="nvml.h: NVML_ERROR_IRQ_ISSUE",
    ),
    Condition(
        id="wsl.blocked",
        rung="nvml",
        verdict="fail",
        certainty="strong",
        title="the operating system blocks the GPU",
        meaning="Under WSL the driver is Windows'. It refuses where it is too old for this WSL, where a Linux driver "
        "was installed besides, and where the card is in TCC mode.",
        settle="Windows' nvidia-smi shows the driver's version and the mode",
        fix="update NVIDIA's driver in Windows, then wsl --shutdown; a card in TCC mode: nvidia-smi -dm 0 in Windows",
        judge=_blocked,
        nvml=(BLOCKED,),
        texts=(r"GPU access blocked by the operating system", r"NVML_ERROR_OPERATING_SYSTEM"),
        source="microsoft/WSL issues 9938 and 11865",
    ),
    Condition(
        id="driver.nvml_no_permission",
        rung="nvml",
        verdict="fail",
        certainty="strong",
        title="NVML has no permission to use the driver",
        meaning="NVML answers that this user has no permission, although the rights of the nodes allow it.",
        settle="it is this user if `sudo nvidia-smi` works",
        fix="ls -l /dev/nvidia* /dev/nvidia-caps/*; id; sudo nvidia-smi",
        judge=_no_permission,
        nvml=(4,),
    ),
    Condition(
        id="driver.nvml_not_loaded",
        rung="nvml",
        verdict="fail",
        certainty="hint",
        title="NVML does not reach the kernel module",
        meaning="NVML answers that the driver is not loaded, and the kernel shows its module. Nodes that lead "
        "elsewhere, a module that just failed, and a sandbox look so.",
        settle="`sudo dmesg` tells whether the module's start failed",
        fix="sudo dmesg | grep -i nvrm; ls -l /dev/nvidia*",
        judge=_module_not_loaded,
        nvml=(9,),
    ),
    Condition(
        id="driver.nvml_unknown",
        rung="nvml",
        verdict="fail",
        certainty="hint",
        title="NVML does not start (unknown error)",
        meaning="nvmlInit answers 999. In a container it is mostly lost access to the nodes, elsewhere a card that "
        "failed.",
        settle="a new container that works, or `sudo dmesg`, tells which",
        fix="recreate the container; outside one, sudo dmesg | grep -i -e nvrm -e xid",
        judge=_unknown,
        nvml=(999,),
    ),
    Condition(
        id="driver.nvml_refused",
        rung="nvml",
        verdict="fail",
        certainty="hint",
        title="NVML does not start, for no known cause",
        meaning="nvmlInit answers a code that is none of those whose causes are known.",
        settle="the same answer after a reboot is the installation's",
        fix="sudo dmesg | grep -i nvrm; nvidia-smi",
        judge=_other,
    ),
    Condition(
        id="gpu.exclusive",
        rung="devices",
        verdict="fail",
        certainty="strong",
        title="another process has the GPU in exclusive mode",
        meaning="In exclusive mode a card takes one process at a time, in prohibited mode none. CUDA starts and counts "
        "the card, and the first use fails.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each card",
        fix=f"end the process on it, or {fixes.smi(None, '-c 0')}",
        judge=_busy,
        texts=(r"all CUDA-capable devices are busy or unavailable",),
    ),
)

# What the rows of this rung and of the one below it are about; any other answer is told as it is.
EXPLAINED = {code for rows in (conditions_library.CONDITIONS, CONDITIONS) for row in rows for code in row.nvml}
