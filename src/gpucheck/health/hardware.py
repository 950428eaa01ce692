"""Faults that do not depend on the GPU's load, and the Xid errors of the kernel log.

A public function of `device` and `facts` is a check in `checks.py`. It returns None if NVML does not report the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units, xid
from gpucheck.health.nvidia import NOT_READ, Ruling, address_of, addresses_not_listed, is_dead, is_nameless, pointer
from gpucheck.machine.choose import MASK
from gpucheck.machine.driver_reads import NOT_ANSWERING
from gpucheck.machine.inventory import BETWEEN_UNEXPLAINED_S, NO_GPU, unclaimed_bytes
from gpucheck.machine.kernel_driver import RECOVERY
from gpucheck.machine.nvml_fields import NO_PERMISSION, NOT_ACCESSIBLE, REASONS, applies
from gpucheck.messages import FIX
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Device, Driver, Facts, Host, XidError
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.report import few
from gpucheck.xid import DRAIN_AND_RESET, POWER_CABLES, REBOOT, RESET

XIDS, SXIDS, NVLINK = "log.xid", "log.sxid", "log.nvlink"
# The recovery actions that the driver may ask for, with title and fix (nvmlDeviceGpuRecoveryAction_t in nvml.h).
ACTIONS = {
    "gpu_reset": ("reset needed", RESET),
    "node_reboot": ("reboot needed", REBOOT),
    "drain_p2p": ("peer-to-peer copies must stop", "end the jobs that copy between GPUs, then gpucheck devices"),
    "drain_and_reset": ("drain and reset needed", DRAIN_AND_RESET),
    "recover_imex_domain": (
        "IMEX domain must be recovered",
        "sudo systemctl restart nvidia-imex on each node of its NVLink domain",
    ),
    "bus_reset": ("bus reset needed", "drain the node, then sudo reboot (resets the bus)"),
    "system_reboot": ("reboot needed", REBOOT),
}
REPLACE = "drain the node and replace the GPU"


def verdict_of(error: XidError) -> Verdict:
    """Return the verdict by NVIDIA's catalogue; `info` if the GPU has been reset since."""
    return "info" if error.is_past else xid.severity(error.number, is_fatal=error.is_fatal)


def xid_verdict(address: str | None, errors: Sequence[XidError]) -> Ruling | None:
    """Return a verdict on the log entries of the GPU at this PCI address; None if there are none."""
    if not (entries := [error for error in errors if error.pci_address == address]):
        return None
    # Entries that summarise others (Xid 154 and 45) rank last.
    entries.sort(key=lambda error: (WORST_FIRST.index(verdict_of(error)), error.number in (45, RECOVERY)))
    worst, known = entries[0], xid.BY_NUMBER.get(entries[0].number)
    # The action that the driver requests (Xid 154), unless the GPU has been reset since.
    action = next((error.action for error in entries if error.action is not None and not error.is_past), None)
    request = f"asks for: {action.replace('_', ' ')}" if action is not None else ""
    parts = (
        _with_time(request if action and worst.action else known.what if known else "", worst),
        f"Xid {RECOVERY} {request}" if action and not worst.action else "",
        _also("Xid", [error for error in entries[1:] if verdict_of(error) != "info" and error.action is None]),
        "before the driver was reloaded" if worst.is_past else "",
    )
    rows = [
        {"xid": error.number, "nvidia": getattr(xid.BY_NUMBER.get(error.number), "action", None), **to_json(error)}
        for error in entries
    ]
    message = "; ".join(filter(None, parts))
    return Ruling(verdict_of(worst), f"Xid {worst.number}", message, _fix(worst, action), {"xids": rows})


def _with_time(text: str, error: XidError) -> str:
    last = f"last at {error.at.replace('T', ' ').replace('Z', ' UTC')}" if error.at else ""
    return ", ".join(filter(None, (text, last, f"{error.count} times" if error.count > 1 else "")))


def _also(kind: str, errors: Sequence[XidError]) -> str:
    numbers = dict.fromkeys(str(error.number) for error in errors)
    return f"also {kind} {', '.join(numbers)}" if numbers else ""


def _fix(worst: XidError, action: str | None) -> str | None:
    """Return the fix for the action that the driver requests, else for the worst error."""
    # A GPU that fell off the bus (Xid 79) needs at least a power cycle.
    if action is not None and worst.number != 79:
        return ACTIONS.get(action, ("", "see nvmlDeviceGpuRecoveryAction_t of nvml.h"))[1]
    if verdict_of(worst) == "info":
        return None
    known = xid.BY_NUMBER.get(worst.number)
    return f"{xid.SOURCE}, number {worst.number}" if known is None else known.step


def cause_in_log(device: Device, facts: Facts) -> Ruling | None:
    """Return the cause in the log for a GPU that another check found faulty; None if the log has only `info`."""
    judged = xid_verdict(address_of(device, facts), facts.xids or ())
    return None if judged is None or judged.verdict == "info" else judged


def logged(device: Device, facts: Facts) -> Ruling | None:
    """Report the GPU's Xid errors, unless another check reports their consequence."""
    is_reported = is_dead(device) or device.recovery_action not in (None, "none")
    return None if is_reported else xid_verdict(address_of(device, facts), facts.xids or ())


def elsewhere(facts: Facts) -> list[Finding]:
    """Report Xid errors of GPUs that the driver does not list. In a container, these are `info`."""
    listed = {address_of(device, facts) for device in facts.devices}
    findings = []
    for address in dict.fromkeys(error.pci_address for error in facts.xids or () if error.pci_address not in listed):
        judged = xid_verdict(address, facts.xids or ())
        assert judged is not None
        verdict = "info" if (facts.host or Host()).container else judged.verdict
        message = f"GPU {address}, which the driver does not list: {judged.message}"
        fix = None if judged.fix is None else judged.fix.format(card=address)
        findings.append(Finding(XIDS, verdict, judged.title, message, judged.evidence, fix))
    return findings


def switches(facts: Facts) -> list[Finding]:
    """Report SXid errors, in one finding per NVSwitch. Errors that a lost GPU caused are `info`."""
    lost = next((error.pci_address for error in facts.xids or () if error.number == 79 and not error.is_past), None)
    errors = (facts.driver or Driver()).sxids or ()
    findings = []
    for address in dict.fromkeys(error.pci_address for error in errors):
        rated = [(_of_switch(error, facts, lost), error) for error in errors if error.pci_address == address]
        rated.sort(key=lambda pair: WORST_FIRST.index(pair[0].verdict))
        meaning, worst = rated[0]
        parts = (
            _with_time(", ".join(filter(None, (worst.text, meaning.what))), worst),
            _also("SXid", [error for rating, error in rated[1:] if rating.verdict != "info"]),
            "before the NVSwitch was set up again" if worst.is_past else "",
        )
        rows = [to_json(error) for _, error in rated]
        message = f"NVSwitch {address}: {'; '.join(filter(None, parts))}"
        fix = None if meaning.verdict == "info" else meaning.fix
        findings.append(Finding(SXIDS, meaning.verdict, f"SXid {worst.number}", message, {"sxids": rows}, fix))
    return findings


def _of_switch(error: XidError, facts: Facts, lost: str | None) -> xid.Sxid:
    """Return the meaning of an SXid. Past errors, and errors of lost or other GPUs, are less severe."""
    meaning = xid.sxid(error.number, error.is_fatal)
    if error.number == 20034 and lost is not None:  # the other end of a link was lost
        return replace(meaning, what=f"because GPU {lost} fell off the bus (Xid 79)", verdict="info")
    if error.is_past:
        return replace(meaning, verdict="info")
    of_others = (facts.host or Host()).container and error.number not in xid.FATAL_TO_ALL
    return replace(meaning, verdict="warn") if of_others and meaning.verdict == "fail" else meaning


def nvlink(facts: Facts) -> Finding | None:
    """Report NVLink lines of the log without an Xid, usually as `info`. Links that were not found are `fail`, but
    `warn` in a container or if all of NVML's links are up."""
    if not (lines := (facts.driver or Driver()).nvlink_failures or ()):
        return None
    # The driver logs PostRxDet if it cannot find the connected links. Other lines are about a single call.
    serious = [line for line in lines if "PostRxDet" in line]
    links = [link.active for device in facts.devices for link in device.nvlinks or ()]
    mild = (facts.host or Host()).container is not None or (links and all(links))
    verdict: Verdict = "info" if not serious else "warn" if mild else "fail"
    message = (serious or lines)[0].removeprefix("NVRM: ")
    return Finding(NVLINK, verdict, "NVLink setup failed", message, {"log": list(lines)}, REBOOT if serious else None)


def log_unread(facts: Facts) -> Finding | None:
    why = facts.unknown.get("/driver/xids")
    if facts.xids is not None or why in (None, NO_GPU):
        return None
    return Finding("log.unreadable", "skip", "Xid unread", f"the kernel log: {why}", {}, "sudo dmesg | grep -i xid")


# -- faults that NVML reports ------------------------------------------------------------------------------------------

# A GPU can retire 64 pages (NVIDIA, Dynamic Page Retirement). NVIDIA's diagnostics (DCGM) fail from 63 on.
MOST_RETIRED_PAGES = 63
# DCGM's diagnostics fail, and its health check warns, from this many rows remapped after uncorrected errors.
DCGM_ROWS = 512
# The fields, besides the processes, on which verdicts depend.
HEALTH = (
    *("uuid", "memory_total_bytes", "memory_used_bytes", "clock_reasons", "ecc", "sram_ecc", "remapped_rows"),
    *("retired_pages", "recovery_action", "mig", "fabric", "nvlinks", "persistence_mode", "compute_mode"),
)
# NVML withholds these fields in a container that has a MIG instance.
WITHHELD = ("memory_total_bytes", "memory_used_bytes", "processes")

# Title, message and fix of a GPU that cannot be used, by its state.
DEAD = {
    "lost": ("lost", "off the PCI bus or not answering", FIX["lost"]),
    "reset required": ("reset needed", "NVML refuses the GPU until it is reset", RESET),
    "no power": ("power cable not connected", "NVML reports that its power cables are not attached", POWER_CABLES),
    "no interrupts": (
        "interrupts do not arrive",
        "the driver found a problem with its interrupts",
        "sudo dmesg | grep -i nvrm; then update the node's firmware, or enable MSI for it in the virtual machine",
    ),
}
# Live values. A working GPU reports each value that it supports.
LIVE = ("temperature_celsius", "power_w", "sm_clock_hz", "utilization_percent", "memory_used_bytes")


def answers(device: Device, facts: Facts) -> Ruling | None:
    if (state := device.state or "") in DEAD:
        return _dead(device, facts, *DEAD[state])
    why = state.removeprefix(f"{NOT_ANSWERING}: ") if state.startswith(NOT_ANSWERING) else ""
    if is_nameless(device):
        why = why or f"NVML lists it but cannot read it ({state})"
    elif (silent := _silent(device, facts)) is not None:
        why = why or f"NVML reads neither temperature, power, clock nor load ({silent})"
    if why:
        return _dead(device, facts, "not answering", why, "drain the node and reboot")
    was_read = device.nvml_index is not None and device.uuid is not None and not is_not_read(device)
    return Ruling("pass", "NVML answers") if was_read else None


def _dead(device: Device, facts: Facts, title: str, message: str, fix: str) -> Ruling:
    """Return the verdict on an unusable GPU, with its identity and its cause from the kernel's log."""
    message = f"{message}{_identity(device, facts)}"
    missing = addresses_not_listed(facts) if device.pci_address is None else []
    evidence: dict[str, object] = {"state": device.state, "pci_addresses_not_listed": missing}
    if (cause := cause_in_log(device, facts)) is not None:
        message, fix = f"{message}; {cause.title}: {cause.message}", cause.fix or fix
        evidence |= cause.evidence
    elif facts.xids is None and title in ("lost", "not answering"):
        fix = f"sudo dmesg | grep Xid; then {fix}"
    return Ruling("fail", title, message, fix, evidence)


def is_not_read(device: Device) -> bool:
    """Return whether NVML's reading stopped before this GPU, for a reason that is not this GPU."""
    return (device.state or "").startswith(NOT_READ)


def _silent(device: Device, facts: Facts) -> str | None:
    """Return the reason if NVML reads no live value of the GPU, else None."""
    if device.nvml_index is None or is_not_read(device) or any(getattr(device, name) is not None for name in LIVE):
        return None
    prefix = pointer(device, facts)
    reasons = [facts.unknown.get(f"{prefix}{name}", REASONS[NO_PERMISSION]) for name in LIVE]
    failed = [reason for reason in reasons if applies(reason) and reason != REASONS[NO_PERMISSION]]
    # Some GPUs support only one or two of these values. A dead GPU returns errors for more than half of all values.
    others = [reason for reason in reasons if reason not in failed and applies(reason)]
    return failed[0] if len(failed) > len(LIVE) / 2 and not others else None


def _identity(device: Device, facts: Facts) -> str:
    """Return the PCI address and serial number, as last known."""
    serial = f"serial {device.serial}" if device.serial is not None else None
    name = ", ".join(filter(None, (device.pci_address, serial))) or device.uuid
    if not device.pci_address and not serial and (probable := address_of(device, facts)) is not None:
        name = f"probably {probable}"
    return f" ({name})" if name is not None else ""


def recovery_action(device: Device, facts: Facts) -> Ruling | None:
    if (action := device.recovery_action) is None:
        return None
    evidence: dict[str, object] = {"recovery_action": action}
    if action == "none":
        return Ruling("pass", "no recovery action needed", evidence=evidence)
    title, fix = ACTIONS.get(action, (f"recovery {action}", "see nvmlDeviceGpuRecoveryAction_t of nvml.h"))
    message = f"NVML's recovery action is {action}"
    if (cause := cause_in_log(device, facts)) is not None:
        message, evidence = f"{message}; {cause.title}: {cause.message}", {**evidence, **cause.evidence}
    return Ruling("fail", title, message, fix, evidence)


def _first(evidence: dict[str, Any], pass_title: str, *rows: tuple[object, Verdict, str, str, str | None]) -> Ruling:
    """Return the verdict of the first row whose condition holds; else a pass with the title `pass_title`."""
    for holds, verdict, title, message, fix in rows:
        if holds:
            return Ruling(verdict, title, message, fix, evidence)
    return Ruling("pass", pass_title, evidence=evidence)


def remapped_rows(device: Device, facts: Facts) -> Ruling | None:
    """Judge remapped memory rows: failed, pending or many remaps, and banks without spare rows."""
    rows, full = device.remapped_rows, device.remap_banks.none if device.remap_banks is not None else 0
    if rows is None:
        return None
    evidence = {name: getattr(rows, name) for name in ("correctable", "uncorrectable", "pending")}
    spares = f"{full} memory bank{'s' * (full != 1)} without spares"
    title, many = f"{rows.uncorrectable} rows remapped", f"after uncorrected errors; DCGM fails a GPU at {DCGM_ROWS}"
    return _first(
        {**evidence, **({"banks_without_spares": full} if full else {})},
        "no row remap failed",
        (rows.failed, "fail", "row remap failed", "no spare replaces a faulty memory row", REPLACE),
        (rows.pending, "warn", "row remap pending", "a faulty row stays in use until the next reset", DRAIN_AND_RESET),
        (rows.uncorrectable >= DCGM_ROWS, "warn", title, many, "replace the GPU"),
        (full, "warn", spares, "the next faulty row there cannot be replaced", "plan to replace the GPU"),
    )


def sram_ecc(device: Device, facts: Facts) -> Ruling | None:
    """Judge errors of the on-chip memory, which cannot be remapped. NVML reports whether a threshold is exceeded."""
    if (sram := device.sram_ecc) is None:
        return None
    now, ever = sram.volatile_parity + sram.volatile_secded, sram.aggregate_parity + sram.aggregate_secded
    where = ", ".join(f"{name} {count}" for name, count in sram.sources.items() if count)
    errors = f"{now} uncorrected SRAM error{'s' * (now != 1)}"
    lifetime_text = f"{ever} uncorrected in its lifetime{f' ({where})' if where else ''}"
    return _first(
        {"volatile": now, "aggregate": ever, "threshold_exceeded": sram.threshold_exceeded, **sram.sources},
        "no uncorrected SRAM error",
        (sram.threshold_exceeded, "fail", "SRAM errors over the threshold", lifetime_text, REPLACE),
        (now, "fail", errors, f"results since driver load may be wrong; {lifetime_text}", FIX["ecc"]),
    )


def retired_pages(device: Device, facts: Facts) -> Ruling | None:
    if (pages := device.retired_pages) is None or (pages.corrected is None and pages.uncorrected is None):
        return None
    total = (pages.corrected or 0) + (pages.uncorrected or 0)
    title, message = f"{total} memory pages retired", f"a GPU can retire 64; DCGM fails a GPU at {MOST_RETIRED_PAGES}"
    waits = "a faulty memory page stays in use until the next reset"
    return _first(
        {"corrected": pages.corrected, "uncorrected": pages.uncorrected, "pending": pages.pending},
        title if total else "no memory page retired",
        (total >= MOST_RETIRED_PAGES, "fail", title, message, REPLACE),
        (pages.pending, "warn", "memory page retirement pending", waits, RESET),
    )


def ecc(device: Device, facts: Facts) -> Ruling | None:
    """Judge memory errors since the driver was loaded. NVIDIA publishes no limit for corrected errors."""
    count = device.ecc.volatile_uncorrected if device.ecc is not None else None
    if device.ecc is None or count is None:
        return None
    corrected, wrong = device.ecc.volatile_corrected or 0, "results since driver load may be wrong"
    plural, of_corrected = "s" * (count != 1), "s" * (corrected != 1)
    return _first(
        {"volatile_uncorrected": count, **({"volatile_corrected": corrected} if corrected else {})},
        "no uncorrected memory error",
        (count, "fail", f"{count} uncorrected memory error{plural}", wrong, FIX["ecc"]),
        (corrected, "info", f"{corrected} corrected memory error{of_corrected}", "since the driver was loaded", None),
    )


def unread(device: Device, facts: Facts) -> Ruling | None:
    """Report values that could not be read although the device supports them. Unknown does not mean healthy."""
    if (answer := answers(device, facts)) is not None and answer.verdict != "pass":
        return None  # `answers` reports this GPU
    if device.state == NOT_ACCESSIBLE:
        return _withheld(device, facts)
    prefix = pointer(device, facts)
    # If NVML stopped at a dead GPU, the finding of this GPU also explains the fields that were not read later.
    stopped = facts.driver.nvml_error if facts.driver is not None and any(map(is_dead, facts.devices)) else None
    unknown = {key.removeprefix(prefix): reason for key, reason in facts.unknown.items() if key.startswith(prefix)}
    if prefix.rstrip("/") in facts.unknown:
        unknown["every field"] = facts.unknown[prefix.rstrip("/")]
    missing = {
        name: reason
        for name, reason in unknown.items()
        if (name in ("every field", "processes") or name.partition("/")[0] in HEALTH)
        and applies(reason)
        and reason != stopped
        and not (reason == REASONS[NO_PERMISSION] and name in WITHHELD)
    }
    if not missing:
        return None
    reasons: dict[str, dict[str, None]] = {}
    for name, reason in missing.items():
        # The links are named together.
        reasons.setdefault(reason, {})["nvlinks" if name.startswith("nvlinks/") else name] = None
    message = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    fix = "run gpucheck devices again; if it persists, sudo dmesg | grep Xid"
    return Ruling("inconclusive", "health partly unread", message, fix, {"unread": missing})


def _withheld(device: Device, facts: Facts) -> Ruling:
    """Report a GPU that this process may not access. This is normal in a container or job with another GPU."""
    others = any(card.nvml_index is not None and card.state != NOT_ACCESSIBLE for card in facts.devices)
    within = (facts.host or Host()).container or MASK in facts.environment
    message = "no permission: a container, the scheduler or its device node's permissions block this process"
    verdict: Verdict = "skip" if others and within else "inconclusive"
    return Ruling(verdict, "not accessible", message, "ls -l /dev/nvidia*; run it as root", {"state": device.state})


def unclaimed(device: Device, facts: Facts) -> Ruling | None:
    """Report used memory that no visible process holds: a dead process left it, or a hidden process holds it."""
    if not (unclaimed_size := unclaimed_bytes(device, facts)):
        return None
    node = f"/dev/nvidia{device.nvml_index if device.minor_number is None else device.minor_number}"
    holders, in_container = device.node_holders or (), (facts.host or Host()).container is not None
    zombies = [process for process in holders if process.kind == "zombie"]
    pids = [str(process.pid) for process in holders]
    names = few([f"{process.name or 'a process'} (PID {process.pid})" for process in zombies or holders], ", ")
    hidden = facts.unknown.get(f"{pointer(device, facts)}node_holders")
    if in_container and holders:  # NVML does not list the container's processes inside the container
        return None
    if zombies:
        message = f"{names} may hold it: it ended, but some of its threads are alive and have {node} open"
        fix = f"ps -L -o pid,lwp,stat,wchan -p {zombies[0].pid} shows what the threads wait for; if they stay, {RESET}"
    elif holders:
        message = f"{names} may hold it: {'it has' if len(holders) == 1 else 'they have'} {node} open"
        fix = f"ps -o pid,user,lstart,cmd -p {','.join(pids)}; if they are your processes, kill {' '.join(pids)}"
    elif hidden:
        message, fix = f"unknown: {hidden} cannot be inspected", f"sudo fuser -v {node}"
    elif in_container:
        message = "no process in this container has its device node open: another container or the host holds it"
        fix = "on the host: nvidia-smi, docker ps, crictl ps"
    else:
        message = "no process here has its device node open: another container, MPS, or memory that was not freed"
        shows = "docker ps, crictl ps; MPS: echo get_server_list | nvidia-cuda-mps-control"
        fix = f"{shows}; if neither uses the GPU, {DRAIN_AND_RESET}"
    evidence = {
        "unclaimed_bytes": unclaimed_size,
        "used_bytes": device.memory_used_bytes,
        "of_processes_bytes": device.memory_of_processes_bytes,
        "holders": [process.pid for process in holders],
        "zombies": [process.pid for process in zombies],
    }
    return Ruling("warn", f"{units.capacity(unclaimed_size)} held by no visible process", message, fix, evidence)


def busy_alone(device: Device, facts: Facts) -> Ruling | None:
    """Report a GPU that is 100 % busy in two readings without a process, outside a container."""
    # A single reading may be at the end of a process, or while the driver clears memory after its start.
    host, changes = facts.host or Host(), device.changes
    if device.processes != () or host.container or host.wsl or host.system != "Linux" or changes is None:
        return None
    lower = min(device.utilization_percent or 0, changes.utilization_before_percent or 0)
    if lower < 100 or changes.span_s < BETWEEN_UNEXPLAINED_S:
        return None
    fix = f"sudo fuser -v /dev/nvidia*; if nobody uses the GPU, {DRAIN_AND_RESET}"
    message = f"in two readings {units.duration(changes.span_s)} apart"
    return Ruling("warn", "100 % busy without a process", message, fix, {"utilization_percent": lower})
