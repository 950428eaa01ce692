"""`gpucheck devices` lists every device and the driver's state, and reports faults; clock and link only of busy GPUs.
`gpucheck status` also reports whether torch can use the devices, usually within 10 s."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpucheck import errors
from gpucheck.devices.options import DevicesOptions, StatusOptions
from gpucheck.health.checks import FABRIC_NOT_READY, IN_PROGRESS, WAIT, fabric_state, findings, is_usable, of_machine
from gpucheck.health.nvidia import (
    KEPT_OUT,
    WSL_NODE,
    cards,
    has_gpu,
    is_dead,
    is_divided,
    is_driver_loaded,
    is_nvidia_here,
)
from gpucheck.machine import choose, driver_reads, host, installed_torch, inventory
from gpucheck.machine.child import PreloadedChildren
from gpucheck.machine.choose import MASK, read_mask
from gpucheck.machine.inventory import BETWEEN_UNEXPLAINED_S, Inventory, is_unexplained, select_devices
from gpucheck.machine.nvml_fields import DRIVER_MISMATCH, LIBRARY_NOT_FOUND, NOT_ACCESSIBLE
from gpucheck.report.events import Answered, Emit, Judged, Notice, Progress, Started
from gpucheck.report.facts import Driver, Facts, Host, TorchBuild
from gpucheck.report.finding import Finding, Verdict

if TYPE_CHECKING:  # `devices` loads no module of `doctor`
    from gpucheck.doctor.condition import Evidence
    from gpucheck.report.results.short import DoctorResult


HANG_FIX = "sudo dmesg | grep Xid; if it persists, reboot"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# Results of cuInit that the environment or a temporary state causes: no memory, another libcuda, exclusive use.
OF_THE_ENVIRONMENT = (2, 34, 35, 36, 46, 803, 804)


def driver_findings(facts: Facts) -> list[Finding]:
    """Return the findings about the whole machine; empty if NVML and CUDA answered and list every GPU."""
    if not is_nvidia_here(facts):
        return [] if any(device.kind != "cpu" for device in facts.devices) else [_nothing(facts)]
    nvml, libcuda = _nvml(facts), _libcuda(facts)
    if nvml is not None and libcuda is not None and nvml.verdict == "fail":
        libcuda = replace(libcuda, verdict="info")  # both have the same cause
    rows = [finding for finding in (nvml, libcuda, _masked(facts)) if finding is not None]
    torch = facts.torch or TorchBuild()
    if cards(facts) and torch.version is not None and torch.built_for == "cpu":
        evidence, message = {"built_for": "cpu", "version": torch.version}, f"torch {torch.version} is a CPU build"
        title, fix = "torch cannot use the GPU", "gpucheck doctor"
        rows.append(Finding("devices.torch_build", "info", title, message, evidence, fix))
    # Another finding reports an NVML that does not answer.
    failed = facts.driver is None or facts.driver.nvml_error is not None
    return [*rows, *(row for row in of_machine(facts) if not (failed and row.id == "devices.unread"))]


def _nothing(facts: Facts) -> Finding:
    host, torch, driver = facts.host or Host(), facts.torch or TorchBuild(), facts.driver or Driver()
    reasons = []
    mask, visible = facts.environment.get(MASK), facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    if mask in ("", "-1") and driver.cuinit_code == NO_DEVICE:
        reasons.append(f"CUDA_VISIBLE_DEVICES={mask} hides every GPU")
    if host.container and visible in KEPT_OUT:
        reasons.append(f"NVIDIA_VISIBLE_DEVICES={visible} hides GPUs from this container")
    if host.wsl:
        missing = "WSL has a GPU device, but NVIDIA's Windows driver is missing from it"
        reasons.append(missing if WSL_NODE in host.nvidia_device_nodes else f"WSL has no GPU device ({WSL_NODE})")
    elif host.system == "Linux":
        held = len(host.nvidia_pci_addresses)
        reasons.append(f"{held} held for virtual machines" if held else "no NVIDIA device on the PCI bus")
    if driver.nvml_error:
        reasons.append("no NVIDIA driver" if driver.nvml_code == LIBRARY_NOT_FOUND else driver.nvml_error)
    of_torch = "without torch, other accelerators are not visible"
    if torch.version is not None:
        is_cpu = torch.built_for == "cpu" and host.system != "Darwin"
        of_torch = f"torch {torch.version} {'is a CPU build' if is_cpu else 'sees no other accelerator'}"
    reasons.append(facts.unknown.get("/torch_runtime", of_torch))
    return Finding("devices.none", "info", "no GPU found", ", ".join(reasons))


def _nvml(facts: Facts) -> Finding | None:
    driver, host = facts.driver or Driver(), facts.host or Host()
    # If NVML stopped at a device, the finding of this device reports the error.
    if driver.nvml_error is None or any((card.state or "").startswith("not answering") for card in facts.devices):
        return None
    evidence: dict[str, object] = {"nvml_code": driver.nvml_code, "nvml_error": driver.nvml_error}
    title = "NVML failed after its start" if driver.nvml_code == 0 else "NVML does not start"
    meaning, fix = _causes(nvml=driver.nvml_code)
    if driver.nvml_code == LIBRARY_NOT_FOUND:
        meaning, fix = _no_library(host)
    elif driver.nvml_code is None and "nvidia-ml-py" in driver.nvml_error:
        fix = "install nvidia-ml-py"
    elif driver.nvml_code in (None, 0):
        fix = HANG_FIX
    message = driver.nvml_error if meaning is None else f"{driver.nvml_error}: {meaning}"
    if driver.nvml_code == DRIVER_MISMATCH:
        # The library was updated, but the kernel still runs the old module.
        title, library = "driver version mismatch", PurePath(driver.nvml_path or "").name.partition(".so.")[2]
        module = driver.kernel_module_version
        evidence |= {"library_version": library or None, "kernel_module_version": module}
        message = f"libraries {library}, loaded kernel module {module}" if library and module else meaning or ""
        fix = "recreate the container" if host.container else fix
    return Finding("devices.nvml", _nvml_verdict(facts), title, message, evidence, fix or "sudo dmesg | grep -i nvrm")


def _nvml_verdict(facts: Facts) -> Verdict:
    """Return the verdict if NVML does not start: `fail` if this system should have a GPU and CUDA shows none."""
    # If CUDA works but a loaded driver refuses NVML, the health is unknown. A missing NVML library proves nothing.
    driver = facts.driver or Driver()
    works = driver.cuinit_code == 0 and any(device.cuda_index is not None for device in facts.devices)
    if (driver.nvml_code is not None or is_driver_loaded(facts)) and not works and has_gpu(facts):
        return "fail"
    return "inconclusive" if is_driver_loaded(facts) else "warn"


def _causes(*, cuinit: int | None = None, nvml: int | None = None, mig: bool = True) -> tuple[str | None, str | None]:
    """Return the known causes of this result of cuInit or NVML, and the fix. For several, it is `gpucheck doctor`."""
    # Imported late: a driver that answers needs no causes.
    from gpucheck.doctor.ladder import causes

    # Empty MIG mode cannot be the cause without a GPU in MIG mode.
    known = [cause for cause in causes(cuinit=cuinit, nvml=nvml) if mig or cause.id != "gpu.mig_empty"]
    fix = None if not known else known[0].fix if len(known) == 1 else "gpucheck doctor"
    return ", or ".join(cause.title for cause in known) or None, fix


def _no_library(host: Host) -> tuple[str, str]:
    if host.container:
        fix = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return "the driver's libraries are missing from this container", fix
    return "NVIDIA's driver is not installed, or not on the loader's path", "install NVIDIA's driver"


def _libcuda(facts: Facts) -> Finding | None:
    driver = facts.driver or Driver()
    # cuInit also returns NO_DEVICE if a mask hides every GPU, which is not the driver's fault.
    if driver.cuinit_error is None or (driver.cuinit_code == NO_DEVICE and _is_masked(facts)):
        return None
    evidence = {"cuinit_code": driver.cuinit_code, "cuinit_error": driver.cuinit_error, "path": driver.libcuda_path}
    meaning, fix = _causes(cuinit=driver.cuinit_code, mig=any(map(is_divided, facts.devices)))
    if driver.cuinit_code == FABRIC_NOT_READY and (state := fabric_state(facts)) is not None:
        meaning = f"the fabric between the GPUs is not ready (NVML: {state})"
        fix = WAIT if state.startswith(IN_PROGRESS) else "sudo systemctl restart nvidia-fabricmanager"
    message = driver.cuinit_error
    if driver.cuinit_code:
        message = f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error})"
    elif driver.libcuda_path is None and "cannot be loaded" in driver.cuinit_error:
        # The finding about NVML reports missing libraries.
        meaning, fix = (None, None) if driver.nvml_code == LIBRARY_NOT_FOUND else _no_library(facts.host or Host())
    elif driver.cuinit_code is None:
        fix = HANG_FIX
    message = message if meaning is None else f"{message}: {meaning}"
    return Finding("devices.libcuda", _without_cuda(facts), "CUDA does not start", message, evidence, fix)


def _without_cuda(facts: Facts) -> Verdict:
    """Return the verdict if CUDA does not start: `fail` if NVML lists GPUs that programs should be able to use."""
    driver = facts.driver or Driver()
    listed = [card for card in facts.devices if card.nvml_index is not None]
    usable = [card for card in listed if card.state != NOT_ACCESSIBLE and is_usable(card, facts)]
    if any(map(is_dead, listed)) or (listed and not any(is_usable(card, facts) for card in listed)):
        return "info"  # the finding of the GPU has the cause
    if not usable or (driver.cuinit_code is None and driver.libcuda_path is None):
        return "warn"
    waits = any(card.fabric is not None and card.fabric.state == "in progress" for card in usable)
    return "inconclusive" if waits or driver.cuinit_code in (None, 0, *OF_THE_ENVIRONMENT) else "fail"


def _is_masked(facts: Facts) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES alone explains why CUDA shows no GPU."""
    mask = facts.environment.get(MASK)
    if cards(facts):
        is_unexpected = any((device.state or "").startswith("not shown by CUDA") for device in facts.devices)
        return mask is not None and not is_unexpected
    return mask is not None and not read_mask(mask, ()).shown


def _unmatched_entry(facts: Facts) -> str | None:
    """Describe the effect of the first mask entry that matches no GPU; None if every entry matches one."""
    mask, cards = facts.environment.get(MASK), [card for card in facts.devices if card.nvml_index is not None]
    listed = sorted(cards, key=lambda card: card.nvml_index or 0)
    if mask is None or not listed or any(map(is_divided, listed)):
        return None
    entries = read_mask(mask, [card.uuid for card in listed]).entries
    return next((entry.effect for entry in entries if entry.index is None and entry.asks), None)


def _masked(facts: Facts) -> Finding | None:
    effect, mask, code = _unmatched_entry(facts), facts.environment.get(MASK), (facts.driver or Driver()).cuinit_code
    shown = sum(device.cuda_index is not None for device in facts.devices)
    evidence = {MASK: mask, "shown": shown}
    if shown and effect is not None and code == 0:
        title, fix = f"{MASK} names more GPUs than CUDA shows", "use only GPUs that exist; nvidia-smi -L lists them"
        return Finding("mask.shows_fewer", "warn", title, f"{MASK}={mask}: {effect}; CUDA shows {shown}", evidence, fix)
    if shown or code not in (0, NO_DEVICE) or not cards(facts) or not _is_masked(facts):
        return None
    message = f"{MASK}={mask}{f': {effect}' if effect else ''}"
    return Finding("devices.hidden", "info", "every GPU is hidden from torch", message, evidence, f"unset {MASK}")


def command(
    options: DevicesOptions,
    emit: Emit,
    *,
    sleep: Callable[[float], object] = time.sleep,
    ahead: PreloadedChildren | None = None,
) -> None:
    """Read and judge the machine, once or until Ctrl-C. Raises UsageError and CannotLook for `device`."""
    with Inventory(
        with_processes=options.processes,
        with_links=True,
        wake=False,
        details=host.detailed,
        ahead=ahead,
        waiting=lambda text: emit(Notice(text)),
    ) as inventory:
        while True:
            begun = time.monotonic()
            machine = inventory.read()
            if is_unexplained(machine) and all(device.changes is None for device in machine.devices):
                sleep(BETWEEN_UNEXPLAINED_S)
                machine = inventory.read()
            facts = selected(options.device, machine)
            emit(Started(facts))
            for finding in judge(facts, machine):
                emit(Judged(finding))
            if options.watch_s is None:
                return
            emit(Progress(f"next reading in {options.watch_s:g} s"))
            sleep(max(0.0, options.watch_s - (time.monotonic() - begun)))


def selected(requested: str, facts: Facts) -> Facts:
    """Return the facts of the devices that `requested` names, including the CPU and those that torch cannot use."""
    if requested == "all":
        return facts
    if not any(choose.is_named(device, requested) for device in facts.devices):
        # `choose` resolves `auto` and raises all errors.
        ids = choose.choose(requested, facts).ids
        return select_devices(facts, lambda device: device.id in ids)
    return select_devices(facts, lambda device: choose.is_named(device, requested))


def judge(facts: Facts, machine: Facts | None = None) -> list[Finding]:
    """Return the findings: the driver first, then each device, compared with the others of the whole `machine`."""
    whole = facts if machine is None else machine
    return [*driver_findings(whole), *(finding for device in facts.devices for finding in findings(device, whole))]


# -- status: the findings of `devices` and doctor's diagnosis, each fault once ----------------------------------------

# Users wait for `gpucheck status`, so a slower part is reported as missing. A warm import of torch takes 2 to 4 s.
STATUS_LIMIT_S = 8.0
_LATE = f"torch has not answered within {STATUS_LIMIT_S:g} s"
# The least time limit of the second reading. A driver that answered once answers again within milliseconds.
AGAIN_S = 2.0
# Findings about the driver. If doctor finds a broken stage, it reports the same fault.
OF_THE_DRIVER = ("devices.nvml", "devices.libcuda", "devices.hidden", "devices.torch_build")
# Folders in which pipx and uv keep the environments of installed programs.
_TOOL_FOLDER = re.compile(r"[/\\](?:(pipx)[/\\]venvs|(uv)[/\\](?:tools|archive-v\d|builds-v\d|environments-v\d))[/\\]")


def status(options: StatusOptions, emit: Emit) -> None:
    """Read the machine and judge it like `devices` and `doctor --skip load`. Raises UsageError."""
    from gpucheck.doctor import command as doctor
    from gpucheck.doctor.options import DoctorOptions

    began_s = time.monotonic() if errors.began_s is None else errors.began_s
    # Without persistence mode, the driver initialises the GPUs for each program, and torch has to wait too.
    answer_s = max(began_s + STATUS_LIMIT_S - time.monotonic(), 1.0)
    slow_s = driver_reads.nvml_timeout_s(options.root) - driver_reads.ANSWER_S
    doctor_options = DoctorOptions(options.python, time_budget_s=answer_s + slow_s, root=options.root)
    machine = inventory.Inventory(
        with_processes=True, with_links=True, root=options.root, waiting=lambda text: emit(Notice(text))
    )
    evidence = doctor.read(doctor_options, emit, machine, late=(time.monotonic() + answer_s, _LATE))
    probe = evidence.probe
    if probe.timed_out:
        # The time is over. torch has not opened a GPU, so the first reading is still valid.
        evidence = replace(evidence, torch=replace(probe, timed_out=False, not_awaited=_LATE))
    elif probe.not_awaited != _LATE:
        # Read again, now that the child with torch has ended.
        left_s = max(began_s + STATUS_LIMIT_S - time.monotonic(), AGAIN_S)
        evidence = replace(evidence, facts=machine.again(evidence.facts, left_s))
    emit(Started(evidence.facts))
    result, judged = status_judge(evidence, is_chosen=options.python is not None)
    emit(Answered("doctor", result))
    for finding in judged:
        emit(Judged(finding))


def status_judge(evidence: Evidence, *, is_chosen: bool = False) -> tuple[DoctorResult, list[Finding]]:
    """Return the diagnosis, and the findings of doctor and devices without duplicates."""
    from gpucheck.doctor import command as doctor
    from gpucheck.doctor.ladder import select

    result, diagnosed = doctor.diagnosed(evidence, select((), ("load.",)))
    # With --python, the user knows the judged interpreter.
    facts, interpreter = evidence.facts, [] if is_chosen else _interpreter(evidence)
    if not evidence.is_nvidia_here and all(device.kind == "cpu" for device in facts.devices):
        # Without a GPU, a fault of torch breaks nothing, so failures become warnings.
        mild = [replace(finding, verdict="warn") if finding.verdict == "fail" else finding for finding in diagnosed]
        return result, [*judge(facts), *(finding for finding in mild if finding.id != "doctor.no_gpu"), *interpreter]
    may_see = evidence.is_nvidia_here or installed_torch.could_see_another(evidence.build)
    if evidence.probe.not_awaited == _LATE and may_see:
        # torch may still succeed, which would refute a diagnosis that is based on versions and permissions.
        diagnosed = [
            finding
            if finding.verdict != "fail" or finding.evidence.get("certainty") == "proof"
            else replace(finding, verdict="inconclusive")
            for finding in diagnosed
            if finding.id not in ("doctor.unknown", "doctor.no_gpu")
        ]
        if result.first is None or all(finding.verdict != "fail" for finding in diagnosed):
            why, fix = f"the time limit is {STATUS_LIMIT_S:g} s", "gpucheck doctor"
            diagnosed.insert(0, Finding("status.torch", "inconclusive", "torch has not answered yet", why, fix=fix))
    return result, [*_each_once(diagnosed, judge(facts), result.first), *interpreter]


def _each_once(diagnosed: Sequence[Finding], of_devices: Sequence[Finding], first: str | None) -> list[Finding]:
    """Return doctor's findings, then those of `devices`, without duplicates. For a fault of a GPU, the finding of
    `devices` is kept, unless its ID is `first`, the first broken condition."""
    by_card = {finding.id for finding in of_devices if "nvml_index" in finding.evidence} - {first}
    known = {finding.id for finding in diagnosed} - by_card | ({*OF_THE_DRIVER} if first is not None else set())
    return [
        *(finding for finding in diagnosed if finding.id not in by_card),
        *(finding for finding in of_devices if finding.id not in known),
    ]


def _interpreter(evidence: Evidence) -> list[Finding]:
    """Report the judged interpreter, if it is probably not the user's usual interpreter."""
    from gpucheck.doctor.conditions_torch import torch_version

    probe = evidence.probe
    tool = _TOOL_FOLDER.search(f"{probe.prefix}/")
    if probe.executable is None or (tool is None and torch_version(evidence) is not None):
        return []
    why = "it has no torch" if tool is None else f"{tool[1] or tool[2]} installed gpucheck there"
    title, judged = f"gpucheck looked for torch in {probe.executable}", {"executable": probe.executable}
    return [Finding("status.interpreter", "info", title, why, judged, "gpucheck --python PATH")]
