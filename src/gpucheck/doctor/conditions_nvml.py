"""Conditions of NVML (only warnings if CUDA works) and of CUDA's start: results of nvmlInit and cuInit, GPU states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.doctor import conditions_nodes, fixes
from gpucheck.doctor.condition import Certainty, Condition, Evidence, Signs, cuinit_signs, hint, on, proof
from gpucheck.doctor.conditions_kernel import KERNEL, REFUSED, without_module
from gpucheck.doctor.conditions_nodes import lacks_nodes
from gpucheck.health import hardware
from gpucheck.health.checks import IN_PROGRESS, WAIT, fabric_state
from gpucheck.machine.choose import MASK, read_mask
from gpucheck.machine.kernel_driver import FALLEN
from gpucheck.messages import FIX
from gpucheck.report.facts import Device
from gpucheck.report.finding import Verdict
from gpucheck.report.report import few
from gpucheck.xid import RESET

# NVML_ERROR_OPERATING_SYSTEM of nvml.h.
BLOCKED = 17


def _nvml_error(evidence: Evidence) -> Signs:
    driver = evidence.driver
    text = f"nvmlInit returns {driver.nvml_code} ({driver.nvml_error or 'no text'})"
    details = {"nvml_code": driver.nvml_code, "nvml_error": driver.nvml_error}
    return Signs(text, details, verdict="warn" if evidence.cuda_works else None)


_REINSTALL = "reinstall the driver's libraries in the kernel module's version (cat /proc/driver/nvidia/version)"


def _hung_or_crashed(evidence: Evidence) -> Signs | None:
    error, code = evidence.driver.nvml_error or "", evidence.driver.nvml_code
    has_crashed = "ended early" in error
    if not has_crashed and "did not answer within" not in error:
        return None
    at = [f", at {_name(gpu)}" for gpu in evidence.gpus if (gpu.state or "").startswith("not answering")]
    verdict: Verdict | None = "warn" if evidence.cuda_works else None
    title, fix = ("NVML crashes its process", _REINSTALL) if has_crashed else (None, None)
    return Signs("".join([error, *at[:1]]), {"nvml_code": code}, fix, verdict=verdict, title=title)


def _name(gpu: Device) -> str:
    return gpu.pci_address or gpu.uuid or f"device {gpu.nvml_index}"


def _in_state(state: str, code: int) -> Callable[[Evidence], Signs | None]:
    """Return a judge that reports GPUs in this state, or `code` as the result of nvmlInit."""

    def judge(evidence: Evidence) -> Signs | None:
        if state == "lost" and evidence.logged(FALLEN):  # gpu.fallen_off reports the GPU
            return None
        if evidence.driver.nvml_code == code:
            return _nvml_error(evidence)
        rows = [row for row in evidence.findings.get("devices.answers", ()) if row.evidence.get("state") == state]
        # If CUDA works with other GPUs, devices.answers reports the state.
        signs = None if evidence.cuda_works else Signs.of(rows)
        return signs and replace(signs, title=None)

    return judge


def recovery(evidence: Evidence) -> Signs | None:
    """Report the driver's recovery action for a GPU if CUDA does not start."""
    is_masked = any((gpu.state or "").startswith("hidden") for gpu in evidence.gpus)
    signs = Signs.of(evidence.findings.get("devices.recovery_action", ()))
    if signs is None or evidence.cuda_works or evidence.driver.cuinit_code in (0, None) or is_masked:
        return None
    return replace(signs, title=None, verdict=None)


def _lists_none(evidence: Evidence) -> Signs | None:
    """Report that NVML starts but lists no GPU, unless the kernel module or the device nodes explain this."""
    driver = evidence.driver
    if driver.nvml_code != 0 or driver.nvml_error is not None or evidence.cuda_works or not evidence.pci_gpus:
        return None
    is_listed = any(gpu.nvml_index is not None for gpu in evidence.gpus)
    if is_listed or without_module(evidence) is not None or lacks_nodes(evidence):
        return None
    addresses = [gpu.address for gpu in evidence.pci_gpus]
    return Signs(f"{', '.join(addresses)} on the PCI bus, but none in NVML's list", {"pci_addresses": addresses})


def _other(evidence: Evidence) -> Signs | None:
    """Report a result of nvmlInit without an explanation in the evidence."""
    driver, nodes = evidence.driver, evidence.stack.nodes
    is_explained: dict[int | None, bool] = {
        None: True,
        0: True,
        4: not all(node.readable and node.writable for node in nodes),
        9: not driver.kernel_module_loaded or lacks_nodes(evidence),
        999: any(node.error for node in nodes),
        BLOCKED: bool(evidence.host.wsl),
    }
    if is_explained.get(driver.nvml_code, driver.nvml_code in EXPLAINED):
        return None
    title, _, fix = hardware.DEAD["no interrupts"] if driver.nvml_code == 11 else (None, "", None)
    return replace(_nvml_error(evidence), title=title and f"GPU {title}", fix=fix)


def _exclusive(gpus: Sequence[Device]) -> tuple[str, str, dict[str, Any]]:
    """Return the text, the fix and the evidence for GPUs in exclusive or prohibited mode, with their processes."""
    pids = sorted({process.pid for gpu in gpus for process in gpu.processes or ()})
    text = ", ".join(f"{_name(gpu)} is {gpu.compute_mode}" for gpu in gpus)
    holders = f"PID {few([str(pid) for pid in pids], ', ')}"
    fix = f"{f'end {holders}, or ' if pids else ''}{fixes.smi((gpu.uuid for gpu in gpus), '-c 0')}"
    details = {"compute_modes": [gpu.compute_mode for gpu in gpus], "pids": pids}
    return f"{text}, with {holders} on it" if pids else text, fix, details


def _is_exclusive(gpu: Device) -> bool:
    return (gpu.compute_mode or "default") != "default"


def refusing_gpus(evidence: Evidence) -> list[Device]:
    refused = {run.device for run in evidence.probe.kernels if "busy or unavailable" in (run.error or "")}
    return [gpu for gpu in evidence.gpus if gpu.id in refused and _is_exclusive(gpu)]


def _busy(evidence: Evidence) -> Signs | None:
    text, fix, details = _exclusive(refusing_gpus(evidence))
    return Signs(text, details, fix) if text else None


NVML = on(
    "nvml",
    proof(
        id="gpu.lost",
        title="the driver lost the GPU",
        meaning="The GPU stopped answering on PCI Express. Usually only a power cycle helps.",
        fix=FIX["lost"],
        judge=_in_state("lost", 15),
        nvml=(15,),
        patterns=(r"NVML_ERROR_GPU_IS_LOST|\bGPU is lost\b",),
    ),
    proof(
        id="gpu.reset_required",
        title="the GPU needs a reset",
        meaning="An error left the GPU unusable until it is reset.",
        fix=RESET.format(card="INDEX"),
        judge=_in_state("reset required", 16),
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
    proof(
        id="driver.nvml_hung",
        title="NVML does not answer",
        meaning="A call to NVML did not return, or the call ended the process. nvidia-smi hangs or crashes too.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; if the driver still hangs, reboot",
        judge=_hung_or_crashed,
    ),
    Condition(
        id="driver.no_devices_found",
        title="the driver runs but finds no GPU",
        meaning="The module is loaded but could not start any GPU on the bus.",
        settle="the kernel log (`sudo dmesg`) has an NVRM line for each GPU that it could not start",
        fix="sudo dmesg | grep -i nvrm; then power-cycle the machine and try the newest driver",
        judge=_lists_none,
        patterns=(r"No devices were found",),
    ),
    Condition(
        id="wsl.blocked",
        title="the operating system blocks the GPU",
        meaning="Windows' driver is too old for this WSL, a Linux driver is installed too, or the GPU is in TCC mode.",
        settle="nvidia-smi in Windows shows the driver version and the mode",
        fix="update NVIDIA's driver in Windows, then wsl --shutdown; in TCC mode: nvidia-smi -dm 0 in Windows",
        judge=lambda evidence: (
            _nvml_error(evidence) if evidence.driver.nvml_code == BLOCKED and evidence.host.wsl else None
        ),
        nvml=(BLOCKED,),
        patterns=(r"GPU access blocked by the operating system", r"NVML_ERROR_OPERATING_SYSTEM"),
    ),
    hint(
        id="driver.nvml_refused",
        title="NVML does not start, and no cause is visible",
        meaning="The module is loaded and its device nodes look right, but nvmlInit fails. In a container, 999 usually "
        "means that the container lost access to the nodes. Elsewhere a GPU failed, or the module could not start.",
        settle="`sudo dmesg` shows whether the module failed; if `sudo nvidia-smi` works, it is a permissions problem",
        fix="sudo dmesg | grep -i -e nvrm -e xid; ls -l /dev/nvidia*; sudo nvidia-smi; recreate a container",
        judge=_other,
        nvml=(4, 9, 999),
    ),
    Condition(
        id="gpu.exclusive",
        stage="run",
        title="another process has the GPU in exclusive mode",
        meaning="In exclusive mode a GPU accepts one process, in prohibited mode no process. The first use fails.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each GPU",
        fix=f"end the process on the GPU, or {fixes.smi((), '-c 0')}",
        judge=_busy,
        patterns=(r"all CUDA-capable devices are busy or unavailable",),
    ),
)

# The results of nvmlInit that a condition explains. Other results are reported without an explanation.
EXPLAINED = {code for rows in (KERNEL, conditions_nodes.LIBRARY, NVML) for row in rows for code in row.nvml}


# The kernel logs this if it has no free address range for the driver's pages of device memory.
NO_ROOM_FOR_PAGES = r"request_free_mem_region\(\) err -34"


def _no_answer(evidence: Evidence) -> Signs | None:
    driver, probe = evidence.driver, evidence.probe
    has_crashed = "ended early" in (driver.cuinit_error or "")
    if not has_crashed and not driver.is_hung:
        return None
    text = f"{'cuInit returned; then ' if driver.cuinit_code == 0 else ''}{driver.cuinit_error}"
    details = {"libcuda": driver.libcuda_path, "nvml_error": driver.nvml_error, "torch_not_awaited": probe.not_awaited}
    title, fix = ("CUDA's driver crashes its process", _REINSTALL) if has_crashed else (None, None)
    return Signs(text, details, fix, title=title)


def _uvm_node_missing(evidence: Evidence) -> Signs | None:
    """Report error 999 if the node of nvidia_uvm is missing. `nvidia-smi` works without this node."""
    stack = evidence.stack
    if stack.node("/dev/nvidiactl") is None or stack.node("/dev/nvidia-uvm"):
        return None
    is_unloaded = stack.modules is not None and "nvidia_uvm" not in stack.modules
    text = f"/dev/nvidiactl exists, but /dev/nvidia-uvm does not{', and nvidia_uvm is not loaded' * is_unloaded}"
    fix = "sudo modprobe nvidia_uvm && sudo nvidia-modprobe -c 0 -u" if is_unloaded else None
    if evidence.in_container:
        fix = "on the host: sudo nvidia-modprobe -c 0 -u; then recreate the container with --gpus all"
    return cuinit_signs(evidence, text, fix=fix, nvidia_uvm_loaded=not is_unloaded)


def _unknown_error(evidence: Evidence) -> Signs | None:
    text = "the device nodes exist" if evidence.stack.node("/dev/nvidia-uvm") else ""
    return cuinit_signs(evidence, text) if _uvm_node_missing(evidence) is None else None


def _not_initialised(evidence: Evidence) -> Signs:
    """Report error 3. On some kernels the open module's heterogeneous memory management does not start."""
    if not (lines := evidence.logged(NO_ROOM_FOR_PAGES)):
        return cuinit_signs(evidence)
    fix = "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf, then reboot"
    signs = cuinit_signs(evidence, f"the kernel logs: {lines[-1]}", fix=fix, certainty="proof", log=lines)
    return replace(signs, title="the kernel module's memory management (HMM) does not start")


def _no_device(evidence: Evidence) -> Signs | None:
    """Report error 100 on a machine with a GPU, unless a mask or MIG mode explains the error."""
    if not evidence.is_nvidia_here:
        return None
    value = evidence.value(MASK)
    uuids = [gpu.uuid for gpu in evidence.gpus if gpu.nvml_index is not None or gpu.parent_uuid is not None]
    is_masked = value is not None and not read_mask(value, uuids).shown
    if is_masked or _empty_mig(evidence) is not None:
        return None
    listed = sum(gpu.nvml_index is not None for gpu in evidence.gpus)
    text, fix = f"NVML lists {listed or 'no'} GPU{'s' * (listed != 1)}", None
    if value is not None and not uuids:
        text, fix = f"{MASK}={value!r} may hide a GPU; NVML lists none", f"unset {MASK}"
    return cuinit_signs(evidence, text, fix=fix, nvml_count=listed)


def _empty_mig(evidence: Evidence) -> Signs | None:
    gpus = [gpu for gpu in evidence.gpus if gpu.parent_uuid is None]
    empty = [gpu for gpu in gpus if gpu.mig is not None and gpu.mig.enabled and not gpu.mig.instances]
    if not gpus or len(empty) < len(gpus):
        return None
    uuids = [gpu.uuid for gpu in empty]
    text = f"MIG mode is on without an instance on {', '.join(uuid or 'a GPU' for uuid in uuids)}"
    return cuinit_signs(evidence, text, fix=_mig_fix(",".join(filter(None, uuids)) or "INDEX"), uuids=uuids)


def _mig_fix(ids: str) -> str:
    """Return the fix for the GPUs in this list. Without `-i` each command would change all GPUs."""
    return (
        f"sudo nvidia-smi mig -i {ids} -lgip to list profiles, sudo nvidia-smi mig -i {ids} -cgi 0 -C to create an "
        f"instance; or {fixes.smi([ids], '-mig 0')} to use the whole GPU"
    )


MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"


def _unavailable(evidence: Evidence) -> Signs:
    """Report error 46: a GPU in exclusive or prohibited mode. Otherwise the cause may be a licence."""
    text, fix, details = _exclusive([gpu for gpu in evidence.gpus if _is_exclusive(gpu)])
    if not text:
        fix = "sudo nvidia-smi -q -d COMPUTE; on a virtual GPU, check its licence: nvidia-smi -q | grep -i license"
        return cuinit_signs(evidence, "NVML shows no GPU in exclusive use", fix=fix, **details)
    is_prohibited = "prohibited" in details["compute_modes"]
    certainty: Certainty | None = "proof" if is_prohibited else "strong" if details["pids"] else None
    return cuinit_signs(evidence, text, fix=fix, certainty=certainty, **details)


def _fabric(evidence: Evidence) -> Signs | None:
    """Report error 802. A missing fabric manager is proof only on the machine with the NVSwitches."""
    switches, state = evidence.stack.switches, fabric_state(evidence.facts)
    is_running = evidence.stack.fabric_manager if switches and not evidence.in_container else None
    if state is not None and state.startswith(IN_PROGRESS):
        signs = cuinit_signs(evidence, f"NVML reports the fabric {state}", fix=WAIT, fabric=state)
        return replace(signs, verdict="inconclusive", title="the fabric between the GPUs is being set up")
    if state is None and not switches:
        fix = (
            "ask the host's administrator: the host must run a fabric manager of the driver's version; in a "
            "confidential virtual machine: sudo nvidia-smi conf-compute -srs 1, after attestation"
        )
        return cuinit_signs(evidence, "no NVSwitch is visible here", fix=fix, certainty="hint", switches=0)
    parts = (
        f"{switches} NVSwitch{'es are' if switches != 1 else ' is'} on the PCI bus" if switches else "",
        f"NVML reports the fabric {state}" if state is not None else "",
        "nvidia-fabricmanager does not run" if is_running is False else "",
        "nvidia-fabricmanager runs: check that its version matches the driver's" if is_running else "",
    )
    certainty: Certainty | None = "proof" if is_running is False or state is not None else None
    details = {"switches": switches, "fabric_manager": is_running, "fabric": state}
    on_host = "on the host: sudo systemctl restart nvidia-fabricmanager" if evidence.in_container else None
    return cuinit_signs(evidence, "; ".join(filter(None, parts)), fix=on_host, certainty=certainty, **details)


def _mps(evidence: Evidence) -> Signs:
    """Report that CUDA uses an MPS server, by the variable or by pipes in the default folder."""
    folder, fix = evidence.value(MPS_FOLDER), None
    text = f"{MPS_FOLDER}={folder}" if folder else f"{MPS_FOLDER} is not set: the default is /tmp/nvidia-mps"
    if not folder and evidence.driver.cuinit_code in (805, 806):
        # Without the variable, CUDA may find the pipes of an MPS daemon that has ended.
        stale = "once no MPS daemon runs, remove stale pipes: sudo rm -r /tmp/nvidia-mps"
        fix = f"start MPS: nvidia-cuda-mps-control -d; or, {stale}"
    return cuinit_signs(evidence, text, fix=fix, cuda_mps_pipe_directory=folder)


def _other_cuinit(evidence: Evidence) -> Signs | None:
    code = evidence.driver.cuinit_code
    is_masked = code == REFUSED and evidence.value(MASK) is not None
    return None if is_masked or code in (None, 0, *EXPLAINED_CUINIT) else cuinit_signs(evidence)


CUINIT = on(
    "cuinit",
    proof(
        id="driver.hung",
        title="CUDA's driver does not answer",
        meaning="A call to libcuda did not return, or the call ended the process. torch hangs or crashes too.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then drain the node, end the processes that use the GPU, and reboot",
        judge=_no_answer,
    ),
    proof(
        id="gpu.mig_empty",
        title="MIG mode is on, but no instance exists",
        meaning="In MIG mode the devices are instances, and no instance exists. torch gives no reason.",
        fix=_mig_fix("INDEX"),
        judge=_empty_mig,
        cuinit=(100,),
    ),
    hint(
        id="driver.no_device",
        title="CUDA finds no device, although the machine has one",
        meaning="torch gives no reason: is_available() is False without a warning.",
        settle="`sudo dmesg` shows a GPU that did not start; `ls -l /dev/nvidia*` shows the GPUs of a container",
        fix="sudo dmesg | grep -i nvrm; ls -l /dev/nvidia*",
        judge=_no_device,
        cuinit=(100,),
        patterns=(r"No CUDA GPUs are available", r"Error 100: no CUDA-capable device is detected"),
    ),
    hint(
        id="driver.out_of_memory",
        title="CUDA does not start: no memory or address space",
        meaning="CUDA reserves far more addresses than it uses. A limit of virtual memory prevents this.",
        settle="`ulimit -v` is a number, or `free` shows no free memory",
        fix="ulimit -v unlimited; free",
        judge=cuinit_signs,
        cuinit=(2,),
    ),
    Condition(
        id="driver.uvm_missing",
        title="nvidia-uvm, which CUDA needs, is missing",
        meaning="CUDA needs /dev/nvidia-uvm, nvidia-smi does not. A container must get this node.",
        settle="cuInit returns 0 once the node exists",
        fix="sudo nvidia-modprobe -c 0 -u",
        judge=_uvm_node_missing,
        cuinit=(999,),
        patterns=(r"CUDA unknown error - this may be due to an incorrectly set up environment",),
    ),
    hint(
        id="driver.unknown_error",
        title="CUDA does not start (unknown error)",
        meaning="No other fault is visible. After a suspend, nvidia_uvm may have lost its state.",
        settle="if reloading nvidia_uvm helps, suspend probably caused it",
        fix="sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm",
        judge=_unknown_error,
        cuinit=(999,),
    ),
    hint(
        id="driver.not_initialised",
        title="CUDA's driver does not initialise",
        meaning="cuInit returns 3. With some kernels the open module's memory management (HMM) does not start.",
        settle="the kernel log has `request_free_mem_region() err -34`, or another reason",
        fix="sudo dmesg | grep -i -e nvrm -e nvidia",
        judge=_not_initialised,
        cuinit=(3,),
        patterns=(
            r"CUDA driver initialization failed, you might not have a CUDA gpu",
            r"request_free_mem_region\(\) err -34|CUDA_ERROR_NOT_INITIALIZED",
        ),
    ),
    hint(
        id="gpu.unavailable",
        title="the GPU is in exclusive use or not licensed",
        meaning="In exclusive mode a GPU accepts one process. A virtual GPU without a licence gives the same error.",
        settle="`nvidia-smi -q -d COMPUTE` shows the mode of each GPU",
        fix=fixes.smi((), "-c 0"),
        judge=_unavailable,
        cuinit=(46,),
        patterns=(r"CUDA-capable device\(s\) is/are busy or unavailable", r"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ),
    hint(
        id="driver.toolchain",
        title="the driver is older than the CUDA that compiled the code",
        meaning="The PTX is of a newer CUDA than the driver supports. Triton and NVRTC produce PTX.",
        settle="the program runs with a newer driver",
        fix="update the driver, or use a torch built for an older CUDA",
        judge=cuinit_signs,
        cuinit=(222,),
        patterns=("the provided PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION",),
    ),
    hint(
        id="driver.not_supported",
        title="the driver does not support CUDA on this system",
        meaning="This is a vGPU for graphics (B or A series), a sandbox, or a Jetson whose user lacks its GPU groups.",
        settle="`nvidia-smi -q | grep -i product` shows the profile of a virtual GPU",
        fix="use a compute profile (vGPU: C or Q series); run again outside the sandbox; on a Jetson, sudo usermod -aG "
        "video,render $USER and log in again (a container: --group-add video --group-add render)",
        judge=cuinit_signs,
        cuinit=(800, 801),
        patterns=(r"Error 80[01]: operation not (permitted|supported)", r"CUDA_ERROR_NOT_(PERMITTED|SUPPORTED)"),
    ),
    Condition(
        id="driver.fabric",
        title="the fabric between the GPUs is not ready",
        meaning="GPUs on NVSwitches start only after a fabric manager of the driver's version has set them up.",
        settle="`systemctl status nvidia-fabricmanager` shows the state and the version of the fabric manager",
        fix="sudo systemctl restart nvidia-fabricmanager, of exactly the driver's version",
        judge=_fabric,
        cuinit=(802,),
        patterns=(r"Error 802: system not yet initialized", r"CUDA_ERROR_SYSTEM_NOT_READY"),
    ),
    proof(
        id="mps.unreachable",
        title="the MPS server cannot be reached",
        meaning="The MPS daemon ended and left its pipes, runs for another user, or is not in this container.",
        fix="start MPS: nvidia-cuda-mps-control -d; or, to run without MPS, unset CUDA_MPS_PIPE_DIRECTORY",
        judge=_mps,
        cuinit=(805, 806),
        patterns=(
            "MPS client failed to connect to the MPS control daemon|remote procedural call between the MPS server and "
            "the MPS client failed|CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE)",
        ),
    ),
    proof(
        id="mps.not_ready",
        title="the MPS server does not accept this client",
        meaning="The server starts, recovers, has the maximum number of clients, or has ended this client.",
        settle="server.log in CUDA_MPS_LOG_DIRECTORY shows the reason",
        fix="try again in a few seconds; end clients that you do not need (echo get_client_list PID | "
        "nvidia-cuda-mps-control lists them); else echo quit | nvidia-cuda-mps-control, and restart it",
        judge=_mps,
        cuinit=(807, 808, 809, 810),
        patterns=(
            "MPS server is not ready to accept new MPS client|hardware resources required to (?:create MPS client|"
            "support device connections) have been exhausted|MPS client has been terminated by the server|"
            "CUDA_ERROR_MPS_(?:SERVER_NOT_READY|MAX_(?:CLIENTS|CONNECTIONS)_REACHED|CLIENT_TERMINATED)",
        ),
    ),
    hint(
        id="driver.refused",
        title="CUDA does not start, cause unknown",
        meaning="gpucheck knows no cause of this code. The driver may have been updated without a reboot.",
        settle="if a reboot with LD_LIBRARY_PATH unset does not help, the cause is the installation",
        fix="unset LD_LIBRARY_PATH and try again; sudo dmesg | grep -i nvrm; reboot",
        judge=_other_cuinit,
    ),
)

# The results of cuInit that a condition explains. Other results are reported without an explanation.
EXPLAINED_CUINIT = {code for rows in (conditions_nodes.LIBRARY, CUINIT) for row in rows for code in row.cuinit}
