"""Conditions of the kernel module, the kernel log, the GPUs that CUDA shows (masks, order), and the environment."""

from __future__ import annotations

import re

from gpucheck import units, xid
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Certainty, Condition, Evidence, JudgeCondition, Signs, found, on, proof
from gpucheck.health import hardware, nvidia
from gpucheck.health.nvidia import WHY_NOT_SHOWN
from gpucheck.machine.choose import MASK, read_mask
from gpucheck.machine.host import FOR_GUESTS
from gpucheck.machine.inventory import RELIABLE_CUINIT
from gpucheck.machine.kernel_driver import FALLEN, NO_GSP, NO_POWER, NO_ROOM, NOT_STARTED, OPEN_NEEDED, UNSUPPORTED
from gpucheck.messages import FIX
from gpucheck.report.facts import Device
from gpucheck.report.finding import Verdict


def without_module(evidence: Evidence) -> tuple[str, Signs] | None:
    """Return the condition that keeps NVIDIA's module from all GPUs of this machine, and its signs, or None."""
    driver, stack, gpus = evidence.driver, evidence.stack, evidence.pci_gpus
    is_loaded = False if driver.kernel_module_loaded is None and driver.nvml_code == 9 else driver.kernel_module_loaded
    # If CUDA or NVML works, the module is there: a sandbox may forward the driver's calls and hide the module.
    if evidence.cuda_works or driver.nvml_code == 0 or not gpus:
        return None
    addresses, drivers = [gpu.address for gpu in gpus], {gpu.driver for gpu in gpus}
    holder = next((gpu.driver for gpu in gpus if gpu.driver is not None), None)
    signs = Signs(f"{holder} drives {', '.join(addresses)}", {gpu.address: gpu.driver for gpu in gpus})
    if drivers == {"nouveau"} or (drivers == {"nouveau", None} and not is_loaded):
        return "driver.nouveau", signs
    if drivers <= set(FOR_GUESTS):
        return "driver.passed_through", signs
    if is_loaded is not False:
        return None

    def on_the_bus(reason: str) -> Signs:
        details = {"kernel_module_loaded": driver.kernel_module_loaded, "nvml_code": driver.nvml_code}
        return Signs(f"{', '.join(addresses)} on the PCI bus; {reason}", {"pci_addresses": addresses, **details})

    if evidence.in_container:
        return "container.host_driver", on_the_bus("the host's kernel has not loaded NVIDIA's module")
    if rejected := evidence.logged(r"Loading of .*module.* rejected|Key was rejected by service"):
        return "driver.signature_rejected", Signs(rejected[-1], {"log": rejected, "secure_boot": stack.secure_boot})
    if stack.built_for and stack.running is not None and stack.running not in stack.built_for:
        text = f"nvidia.ko is on disk for {', '.join(stack.built_for)}, but the running kernel is {stack.running}"
        fix = (
            f"sudo apt install linux-headers-{stack.running} && sudo dkms autoinstall, then sudo modprobe nvidia "
            "(Debian, Ubuntu; elsewhere reinstall the driver's package for this kernel)"
        )
        return "driver.other_kernel", Signs(text, {"built_for": list(stack.built_for), "running": stack.running}, fix)
    if stack.built_for and stack.secure_boot:
        text = "the module is on disk for this kernel but not loaded, and the firmware enforces Secure Boot"
        title = "NVIDIA's module is not loaded, and Secure Boot is on"
        return "driver.signature_rejected", Signs(text, {"secure_boot": True}, certainty="hint", title=title)
    if stack.built_for:
        return "driver.not_loaded", on_the_bus(f"the module for {stack.running} is on disk but not loaded")
    if stack.built_for is None and (stack.libraries or stack.path_libraries):
        return "driver.not_loaded", on_the_bus("the module is not loaded, and its libraries are installed")
    absence = "none of its libraries is installed" if stack.built_for is None else "no kernel on this disk has its file"
    return "driver.not_installed", on_the_bus(f"NVIDIA's module is not loaded, and {absence}")


# PCI device IDs rise with the architecture. Blackwell's lowest ID is 2901 (GB100).
FIRST_BLACKWELL = 0x2900


def _has_no_working_gpu(evidence: Evidence) -> bool:
    """Return whether the module is loaded but CUDA does not work and NVML lists no GPU."""
    driver = evidence.driver
    if evidence.cuda_works or not driver.kernel_module_loaded or not evidence.pci_gpus:
        return False
    is_listed = any(gpu.nvml_index is not None and gpu.state != "lost" for gpu in evidence.gpus)
    return {driver.nvml_code, driver.cuinit_code} != {None} and not is_listed and without_module(evidence) is None


def _logged(pattern: str) -> JudgeCondition:
    """Return a judge that reports a GPU with a line of the driver in the kernel log, if no GPU works."""

    def judge(evidence: Evidence) -> Signs | None:
        lines = evidence.logged(pattern)
        return Signs(lines[-1], {"log": lines}) if lines and _has_no_working_gpu(evidence) else None

    return judge


def _fallen(evidence: Evidence) -> Signs | None:
    """Report a GPU that fell off the bus. The log alone is no proof, because a later reset may have helped."""
    lines = evidence.logged(FALLEN)
    unlisted = [] if evidence.in_container else nvidia.addresses_not_listed(evidence.facts)
    is_lost = evidence.driver.nvml_code == 15 or any(gpu.state == "lost" for gpu in evidence.gpus)
    if not lines or not (unlisted or is_lost or _has_no_working_gpu(evidence)):
        return None
    # If other GPUs work, no later stage is broken.
    verdict: Verdict | None = "warn" if evidence.cuda_works else None
    return Signs(lines[-1], {"log": lines, "pci_addresses_not_listed": unlisted}, verdict=verdict)


def _no_power(evidence: Evidence) -> Signs | None:
    if evidence.driver.nvml_code == 8:
        verdict: Verdict | None = "warn" if evidence.cuda_works else None
        return Signs(f"nvmlInit returns 8 ({evidence.driver.nvml_error})", {"nvml_code": 8}, verdict=verdict)
    rows = [row for row in evidence.findings.get("devices.answers", ()) if row.evidence.get("state") == "no power"]
    by_state = Signs(rows[0].message, rows[0].evidence) if rows and not evidence.cuda_works else None
    return _logged(NO_POWER)(evidence) or by_state


def _open_needed(evidence: Evidence) -> Signs | None:
    if not _has_no_working_gpu(evidence) or evidence.logged(UNSUPPORTED) or evidence.logged(NO_ROOM):
        return None
    branch = (evidence.driver.kernel_module_version or "").partition(".")[0]
    fix = f"sudo apt install nvidia-driver-{branch}-open (Ubuntu; from NVIDIA's own repository nvidia-open), and reboot"
    if lines := evidence.logged(OPEN_NEEDED):
        return Signs(lines[-1], {"log": lines}, fix if branch else None, certainty="proof")
    numbered = [gpu for gpu in evidence.pci_gpus if re.fullmatch(r"(0x)?[0-9a-fA-F]+", gpu.device or "")]
    new = [gpu for gpu in numbered if int(gpu.device or "0", 16) >= FIRST_BLACKWELL]
    if not new or evidence.driver.kernel_module_open is not False or evidence.logged(FALLEN):
        return None
    addresses = ", ".join(gpu.address for gpu in new)
    text = f"{addresses} is Blackwell or newer, and the proprietary module is loaded"
    return Signs(text, {"devices": [gpu.device for gpu in new], "kernel_module_open": False}, fix if branch else None)


def _not_started(evidence: Evidence) -> Signs | None:
    """Report a GPU that the module could not start, if the log has no line with the cause."""
    if not _has_no_working_gpu(evidence) or _open_needed(evidence) is not None:
        return None
    reasons = (evidence.driver.not_started or {}).values()
    if unexplained := [why for why in reasons if re.search(f"{NOT_STARTED}|{NO_GSP}", why, re.IGNORECASE)]:
        return Signs(unexplained[-1], {"log": unexplained})
    explained = "|".join((FALLEN, OPEN_NEEDED, UNSUPPORTED, NO_ROOM, NO_POWER))
    return None if evidence.logged(explained) else _logged(NOT_STARTED)(evidence)


KERNEL = on(
    "kernel",
    proof(
        id="driver.nouveau",
        title="nouveau controls the GPU, so NVIDIA's driver cannot use it",
        meaning="nouveau is the Linux kernel's own driver for NVIDIA GPUs. It drives displays but not CUDA.",
        fix="printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/nouveau.conf && "
        "sudo update-initramfs -u (Fedora, RHEL: sudo dracut --force); install NVIDIA's driver, and reboot",
        patterns=(r"NVIDIA probe routine was not called for \d+ device", r"nouveau, rivafb, nvidiafb or rivatv"),
    ),
    proof(
        id="driver.passed_through",
        title="the GPU is reserved for a virtual machine",
        meaning="A driver such as vfio-pci reserves the GPU for a virtual machine. This system cannot use the GPU.",
        fix="use the GPU in the virtual machine; or remove its IDs from vfio-pci in /etc/modprobe.d, and reboot",
    ),
    proof(
        id="driver.not_installed",
        title="NVIDIA's driver is not installed",
        meaning="A GPU is on the PCI bus, but its driver is not installed.",
        fix="sudo ubuntu-drivers install --gpgpu (Ubuntu; elsewhere NVIDIA's package of the distribution), and reboot",
        patterns=(
            r"Found no NVIDIA driver on your system",
            r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        ),
    ),
    Condition(
        id="driver.other_kernel",
        title="NVIDIA's module was built for another kernel",
        meaning="The kernel was updated without the module, usually because the kernel headers are missing.",
        settle="`dkms status` lists the kernels for which the module was built",
        fix="install the headers of the running kernel, sudo dkms autoinstall, then sudo modprobe nvidia",
        patterns=(r"modprobe: FATAL: Module nvidia not found in directory",),
    ),
    proof(
        id="driver.signature_rejected",
        title="the kernel rejects NVIDIA's unsigned module (Secure Boot)",
        meaning="With Secure Boot the kernel loads only modules signed with a key that the firmware knows.",
        fix="sudo mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian and others: /var/lib/dkms/mok.pub), "
        "reboot, and enrol the key at the blue screen; or switch Secure Boot off in the firmware",
        patterns=(r"insert '?nvidia\w*'?: Key was rejected by service", r"nvidia.{0,60}module.{0,40}key is rejected"),
    ),
    Condition(
        id="driver.not_loaded",
        title="NVIDIA's kernel module is not loaded",
        meaning="The driver is installed, but its module was unloaded, is blacklisted, or failed to load.",
        settle="`sudo modprobe nvidia` loads it or shows the reason",
        fix="sudo modprobe nvidia; if that fails, sudo dmesg | grep -i nvidia",
        nvml=(9,),
        patterns=(r"NVML_ERROR_DRIVER_NOT_LOADED|\bDriver Not Loaded\b",),
    ),
    proof(
        id="container.host_driver",
        title="the host of this container has no NVIDIA driver running",
        meaning="A container uses the host's kernel and cannot load a module into it.",
        fix="on the host: sudo modprobe nvidia, or install NVIDIA's driver there; then recreate the container",
    ),
    proof(
        id="gpu.fallen_off",
        stage="hardware",
        title="the GPU has fallen off the bus",
        meaning="The GPU stopped answering on PCI Express: it overheated, lost power, is badly seated, or is broken.",
        fix=FIX["lost"],
        judge=_fallen,
        patterns=(FALLEN, r"\bXid\b.{0,80}:\s*79\b", r"Unable to determine the device handle for (?:gpu|GPU)"),
    ),
    proof(
        id="gpu.no_power",
        stage="hardware",
        title="GPU power cable not connected",
        meaning="The GPU needs auxiliary power and will not start without it.",
        fix="shut down and connect all power cables of the GPU; in a server it may also need the riser's cable",
        judge=_no_power,
        nvml=(8,),
        patterns=(NO_POWER, r"NVML_ERROR_INSUFFICIENT_POWER"),
    ),
    proof(
        id="gpu.no_address_space",
        stage="hardware",
        title="the firmware gave the GPU no address space",
        meaning="Its memory window (BAR) has no addresses: the firmware keeps all windows below 4 GiB.",
        fix="switch on Above 4G Decoding in the firmware; in a virtual machine, widen its memory window",
        judge=_logged(NO_ROOM),
        patterns=(
            NO_ROOM,
            r"BAR\d is 0M @ 0x0",
            r"\bBAR [0-5]:? \[mem.{0,40}(can't assign; no space|failed to assign)",
            r"\bBAR [0-5]: (failed to assign|no space for) \[mem",
        ),
    ),
    proof(
        id="driver.unsupported_card",
        title="this driver does not support the GPU",
        meaning="The GPU is too new for this driver, or so old that it needs a legacy driver.",
        fix="install the newest driver; for a GPU before Turing, the last branch that lists it at nvidia.com/drivers",
        judge=_logged(UNSUPPORTED),
        patterns=(UNSUPPORTED,),
    ),
    Condition(
        id="driver.open_module_needed",
        title="this GPU needs the open kernel module",
        meaning="From Blackwell on (RTX 50, B200) only the open module of the driver starts a GPU.",
        settle="the kernel's log has `requires use of the NVIDIA open kernel modules`",
        fix="sudo apt install nvidia-open (the package of the distribution whose name has `-open`), and reboot",
        judge=_open_needed,
        patterns=(OPEN_NEEDED,),
    ),
    Condition(
        id="driver.card_not_started",
        title="NVIDIA's module cannot start the GPU",
        meaning="The firmware files are wrong, the GPU needs a power cycle, or it is broken: all look the same.",
        settle="if a power cycle helps, the cause was the GPU's state; if another driver helps, the driver",
        fix="power-cycle the machine, then try the newest driver, then try the GPU in another machine",
        judge=_not_started,
        patterns=(NOT_STARTED,),
    ),
    by=without_module,
)


def _unreadable(evidence: Evidence) -> Signs | None:
    if evidence.stack.log is not None or evidence.stack.log_error is None or not evidence.is_nvidia_here:
        return None
    return Signs(f"the kernel log cannot be read: {evidence.stack.log_error}", {"error": evidence.stack.log_error})


LOG: tuple[Condition, ...] = (
    Condition(
        id="log.xid",
        title="Xid errors in the kernel log",
        meaning="An Xid is a failure if NVIDIA asks for a reset or a reboot and the driver was not reloaded later.",
        fix="sudo dmesg -T | grep -i xid",
        judge=found("log.xid"),
        patterns=(r"NVRM: Xid \(", r"\bXid \d+"),
    ),
    Condition(
        id="log.sxid",
        title="NVSwitch errors (SXid) in the kernel log",
        meaning="`Fatal` is a failure; `Non-fatal` and `Correctable` are a remark, except for a few numbers.",
        settle="`sudo journalctl -u nvidia-fabricmanager` names the links and partitions",
        fix="sudo dmesg -T | grep -i sxid",
        judge=found("log.sxid"),
    ),
    Condition(
        id=hardware.NVLINK,
        title="NVLink setup failed",
        meaning="Links were not found: copies between GPUs fall back to PCI Express or hang.",
        settle="`nvidia-smi nvlink --status` lists the links; a reload of the driver ends the failure",
        fix=xid.REBOOT,
        judge=found(hardware.NVLINK),
        patterns=(r"NVRM: knvlink(?:DiscoverPostRxDetLinks|UpdatePostRxDetectLinkMask)_\w+: .*[Ff]ailed",),
    ),
    proof(
        id="log.unreadable",
        verdict="skip",
        title="the kernel log could not be read: Xid errors unknown",
        meaning="Reading the kernel log usually requires root. The log may contain errors that gpucheck cannot see.",
        fix="sudo dmesg | grep -i xid",
        judge=_unreadable,
    ),
)


# cuInit returns CUDA_ERROR_INVALID_DEVICE if an entry of the mask is not a device.
REFUSED = 101


def _listed(evidence: Evidence) -> list[Device]:
    gpus = [gpu for gpu in evidence.gpus if gpu.nvml_index is not None and gpu.parent_uuid is None]
    return sorted(gpus, key=lambda gpu: gpu.nvml_index or 0)


def _shown(evidence: Evidence) -> list[Device]:
    return [gpu for gpu in evidence.gpus if gpu.cuda_index is not None]


def _masked(evidence: Evidence) -> tuple[str, Signs] | None:
    """Return the condition of the mask that holds, and its signs, if cuInit's result is reliable."""
    value = evidence.value(MASK)
    if value is None or not evidence.is_nvidia_here or evidence.driver.cuinit_code not in (*RELIABLE_CUINIT, REFUSED):
        return None
    # The order of the devices does not matter, because only their number is used.
    instances = [device for device in evidence.facts.devices if device.parent_uuid is not None]
    mask = read_mask(value, [device.uuid for device in (*_listed(evidence), *instances)])
    shown, count = len(_shown(evidence)), len(_listed(evidence))
    details = {MASK: value, "shown": shown, "by_cuda_rules": len(mask.shown)}

    def signs(effect: str, certainty: Certainty | None = None) -> Signs:
        text = f"{MASK}={value!r} {effect}: {'; '.join(entry.effect for entry in mask.entries)}"
        # Slurm sets NoDevFiles for a job without GPUs.
        return Signs(text, details, fixes.ASK_THE_SCHEDULER if value.strip() == "NoDevFiles" else None, certainty)

    if not shown and evidence.driver.cuinit_code == REFUSED:
        # If the mask names existing GPUs, the refusal may have another reason.
        return "mask.hides_all", signs(f"is refused: cuInit returns {REFUSED}", "hint" if mask.shown else None)
    if not shown:
        # Without NVML's list, a UUID may belong to an existing GPU.
        if mask.shown or (not count and value.strip().startswith(("GPU-", "MIG-"))):
            return None
        return "mask.hides_all", signs(f"shows CUDA none of {count} GPUs" if count else "shows CUDA nothing")
    if any(entry.is_odd for entry in mask.entries):
        effect = f"has entries that are neither numbers nor UUIDs and shows {shown} GPU{'s' * (shown != 1)}"
        return "mask.shows_fewer", signs(effect)
    requested = sum(entry.asks for entry in mask.entries)
    # The mask is not the cause if it names existing GPUs that CUDA does not show.
    has_other_cause = count > 0 and len(mask.shown) > shown
    is_divided = instances or any(gpu.mig is not None and gpu.mig.enabled for gpu in evidence.gpus)
    if requested <= shown or has_other_cause or is_divided:
        return None
    return "mask.shows_fewer", signs(f"asks for {requested} GPUs and shows {shown}")


def _order(evidence: Evidence) -> Signs | None:
    """Report different orders: CUDA counts the fastest GPU first, nvidia-smi the lowest PCI address."""
    if evidence.value(MASK) is not None or evidence.value("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    both = sorted((c for c in _shown(evidence) if c.nvml_index is not None), key=lambda gpu: gpu.cuda_index or 0)
    if (order := [gpu.nvml_index for gpu in both]) == sorted(order, key=lambda index: index or 0):
        return None
    rows = [f"cuda:{gpu.cuda_index} is nvidia-smi's {gpu.nvml_index} ({gpu.name or 'a GPU'})" for gpu in both]
    return Signs("; ".join(rows), {"nvml_indices_in_cuda_order": order})


def _count(evidence: Evidence) -> Signs | None:
    """Report that CUDA and NVML, or CUDA and torch, count different GPUs. torch parses the mask with its own code."""
    by_driver = found("devices.cuda_shows_fewer")(evidence)
    count, shown = evidence.probe.count or 0, len(_shown(evidence))
    # If torch sees no GPU, another condition reports the reason.
    if by_driver or count in (0, shown) or evidence.probe.cuda is None or evidence.driver.cuinit_code != 0:
        return by_driver
    return Signs(
        f"torch.cuda.device_count() is {count}, but CUDA shows {shown}",
        {"torch": count, "cuda": shown},
        f"export {MASK} with numbers, or with one MIG instance's UUID",
        "proof",
        "warn" if evidence.torch_works else None,
        "torch and CUDA count different devices",
    )


MASKS: tuple[Condition, ...] = (
    *on(
        "devices",
        proof(
            id="mask.hides_all",
            title="CUDA_VISIBLE_DEVICES hides every GPU",
            meaning="An empty value, -1, or a first entry that matches no GPU hides all, and torch gives no reason.",
            fix="unset CUDA_VISIBLE_DEVICES",
            patterns=(r"No CUDA GPUs are available",),
        ),
        proof(
            id="mask.shows_fewer",
            verdict="warn",
            title="CUDA_VISIBLE_DEVICES names more GPUs than CUDA shows",
            meaning="The first entry that matches no GPU ends the list. CUDA reads `0;1` and `0x1` as 0.",
            fix="use only GPUs that exist; `nvidia-smi -L` lists them",
        ),
        by=_masked,
    ),
    proof(
        id="devices.order",
        verdict="warn",
        title="CUDA and nvidia-smi number the GPUs differently",
        meaning="Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA counts the fastest GPU first.",
        fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        judge=_order,
    ),
    Condition(
        id="devices.cuda_shows_fewer",
        stage="devices",
        title="NVML lists GPUs that CUDA does not show",
        meaning="CUDA cannot open them: no device node, no permission, exclusive use by another process, or a fault.",
        fix=WHY_NOT_SHOWN,
        judge=_count,
    ),
    proof(
        id="devices.unlisted",
        verdict="warn",
        title="the driver does not list all NVIDIA devices on the PCI bus",
        meaning="The missing GPU has another kernel driver, is not supported by this driver, or failed to start.",
        fix="lspci -k -d 10de:; sudo dmesg | grep -i nvrm",
        # Another condition reports a driver without any GPU.
        judge=lambda evidence: found("devices.unlisted")(evidence) if _listed(evidence) else None,
    ),
)


# Less shared memory causes a warning. Docker's default of 64 MiB is too little for the image batches of two workers.
SMALL_SHM_BYTES = 2**30


def _launch_blocking(evidence: Evidence) -> Signs | None:
    if (value := evidence.value("CUDA_LAUNCH_BLOCKING")) in (None, "", "0") or not evidence.is_nvidia_here:
        return None
    return Signs(f"CUDA_LAUNCH_BLOCKING={value}: every launch waits for its kernel", {"CUDA_LAUNCH_BLOCKING": value})


def _small_shm(evidence: Evidence) -> Signs | None:
    size = evidence.stack.shm_bytes
    if size is None or size >= SMALL_SHM_BYTES or not evidence.host.container or not evidence.is_nvidia_here:
        return None
    fix = "mount a volume emptyDir with medium: Memory at /dev/shm" if evidence.host.container == "kubernetes" else None
    return Signs(f"/dev/shm has {units.capacity(size)}", {"shm_bytes": size}, fix)


ENVIRONMENT: tuple[Condition, ...] = (
    proof(
        id="environment.launch_blocking",
        verdict="warn",
        title="CUDA_LAUNCH_BLOCKING makes every launch wait for its kernel",
        meaning="The variable is for debugging: host and device do not work at the same time, so programs are slower.",
        fix="unset CUDA_LAUNCH_BLOCKING",
        judge=_launch_blocking,
    ),
    Condition(
        id="environment.small_shm",
        verdict="warn",
        title="this container has little shared memory",
        meaning="A DataLoader's workers pass batches through /dev/shm. A bus error ends them if /dev/shm is full.",
        fix="start the container with --shm-size=8g or --ipc=host",
        judge=_small_shm,
        patterns=(r"DataLoader worker \(pid.*\) is killed by signal: Bus error", r"insufficient shared memory \(shm\)"),
    ),
)
