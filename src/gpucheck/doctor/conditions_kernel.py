"""The card and its kernel module: another driver holds it, the module is not there, or it cannot bring the card up; and
what CUDA shows of the cards: masks, order, MIG, and doors that disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from gpucheck import units, xid
from gpucheck.cards import at_rest, card
from gpucheck.cards.card import WHY_NOT_SHOWN
from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Condition, Evidence, Seen, on
from gpucheck.machine.choose import MASK, Reading, read_mask
from gpucheck.machine.host import FOR_GUESTS
from gpucheck.machine.inventory import HONEST
from gpucheck.machine.kernel_driver import (
    FALLEN,
    NO_GSP,
    NO_POWER,
    NO_ROOM,
    NOT_STARTED,
    OPEN_NEEDED,
    UNSUPPORTED,
    PciDevice,
)
from gpucheck.messages import FIX
from gpucheck.report.facts import Device
from gpucheck.report.finding import VERDICTS

# -- NVIDIA's module does not drive any card ---------------------------------------------------------------------------

REJECTED = r"Loading of .*module.* rejected|Key was rejected by service"


def absent(evidence: Evidence) -> tuple[str, Seen] | None:
    """Return which condition keeps NVIDIA's module from driving any card here, and how it shows; None where the module
    is loaded, or nobody knows.

    One answer, so that one fault is never told twice.
    """
    loaded, stack, gpus = evidence.driver.kernel_module_loaded, evidence.stack, evidence.stack.gpus
    if loaded is None and evidence.driver.nvml_code == 9:
        loaded = False
    # A sandbox may pass on the driver's calls and hide its module.
    if evidence.cuda_works or evidence.driver.nvml_code == 0 or not gpus:
        return None
    holders = {gpu.driver for gpu in gpus}
    if holders == {"nouveau"} or (holders <= {"nouveau", None} and "nouveau" in holders and not loaded):
        return "driver.nouveau", _held(gpus)
    if holders <= set(FOR_GUESTS):
        return "driver.passed_through", _held(gpus)
    if loaded is not False:
        return None
    if evidence.in_container:
        return "container.host_driver", _on_the_bus(evidence, "the host's kernel has not loaded it")
    if rejected := evidence.logged(REJECTED):
        seen = {"log": rejected, "secure_boot": stack.secure_boot}
        return "driver.signature_rejected", Seen(rejected[-1], seen)
    if stack.built_for:
        return _built(evidence, stack.built_for)
    if stack.built_for is None and (stack.libraries or stack.path_libraries):
        said = "the module is not loaded, and its libraries are installed"
        return "driver.not_loaded", _on_the_bus(evidence, said)
    no_file = "none of its libraries is installed" if stack.built_for is None else "no kernel on this disk has its file"
    return "driver.not_installed", _on_the_bus(evidence, f"NVIDIA's module is not loaded, and {no_file}")


def _built(evidence: Evidence, built_for: tuple[str, ...]) -> tuple[str, Seen]:
    """The condition of a module that is on disk for these kernels and not loaded."""
    running = evidence.stack.running
    if running is not None and running not in built_for:
        said = f"nvidia.ko is on disk for {', '.join(built_for)}, but the running kernel is {running}"
        fix = (
            f"sudo apt install linux-headers-{running} && sudo dkms autoinstall, then sudo modprobe nvidia (Debian, "
            "Ubuntu; elsewhere reinstall the driver's package for this kernel)"
        )
        return "driver.other_kernel", Seen(said, {"built_for": list(built_for), "running": running}, fix)
    if evidence.stack.secure_boot:
        said = "the module is on disk for this kernel but not loaded, and the firmware enforces Secure Boot"
        return "driver.secure_boot", Seen(said, {"secure_boot": True, "built_for": list(built_for)})
    said = f"the module is not loaded, and its file exists for {running}"
    return "driver.not_loaded", _on_the_bus(evidence, said)


def addresses(gpus: tuple[PciDevice, ...]) -> str:
    """Where the cards sit on the PCI bus, in one line."""
    return ", ".join(gpu.address for gpu in gpus)


def _held(gpus: tuple[PciDevice, ...]) -> Seen:
    driver = next(gpu.driver for gpu in gpus if gpu.driver is not None)
    return Seen(f"{driver} drives {addresses(gpus)}", {gpu.address: gpu.driver for gpu in gpus})


def _on_the_bus(evidence: Evidence, more: str) -> Seen:
    gpus, driver = evidence.stack.gpus, evidence.driver
    details = {"kernel_module_loaded": driver.kernel_module_loaded, "nvml_code": driver.nvml_code}
    return Seen(
        f"{addresses(gpus)} on the PCI bus; {more}", {"pci_addresses": [gpu.address for gpu in gpus], **details}
    )


# -- NVIDIA's module has a card and cannot bring it up, mostly by the kernel's log -------------------------------------

# PCI device numbers rise with the architecture; the first of Blackwell's is GB100's, 2901.
FIRST_BLACKWELL = 0x2900


def _none_comes_up(evidence: Evidence) -> bool:
    """Return whether the module is loaded and no card of it is usable: NVML lists none or does not start, nor does
    CUDA."""
    loaded = evidence.driver.kernel_module_loaded
    if evidence.cuda_works or not loaded or not evidence.stack.gpus or absent(evidence) is not None:
        return False
    lists = any(card.nvml_index is not None and card.state != "lost" for card in evidence.cards)
    answered = evidence.driver.nvml_code is not None or evidence.driver.cuinit_code is not None
    return answered and not lists


def _logged(pattern: str) -> Callable[[Evidence], Seen | None]:
    """A judge for a card that does not come up, by NVIDIA's own line in the kernel's log."""

    def judge(evidence: Evidence) -> Seen | None:
        found = evidence.logged(pattern)
        return Seen(found[-1], {"log": found}) if found and _none_comes_up(evidence) else None

    return judge


def _fallen(evidence: Evidence) -> Seen | None:
    """The kernel's log says so, and a card is missing now: a line alone may be of before a reset."""
    found = evidence.logged(FALLEN)
    gone = [] if evidence.in_container else card.addresses_not_listed(evidence.facts)
    lost = [card for card in evidence.cards if card.state == "lost"] or evidence.driver.nvml_code == 15
    if not found or not (gone or lost or _none_comes_up(evidence)):
        return None
    seen: dict[str, object] = {"log": found, "pci_addresses_not_listed": gone}
    # The other cards go on: nothing above is broken for them.
    return Seen(found[-1], seen, verdict="warn" if evidence.cuda_works else None)


def _open_needed(evidence: Evidence) -> Seen | None:
    """Blackwell and later are driven by the open module alone."""
    if not _none_comes_up(evidence) or evidence.logged(UNSUPPORTED) or evidence.logged(NO_ROOM):
        return None
    found = evidence.logged(OPEN_NEEDED)
    if found:
        return Seen(found[-1], {"log": found}, fix=_open_package(evidence), certainty="proof")
    known = [gpu for gpu in evidence.stack.gpus if re.fullmatch(r"(0x)?[0-9a-fA-F]+", gpu.device or "")]
    new = [gpu for gpu in known if int(gpu.device or "0", 16) >= FIRST_BLACKWELL]
    if not new or evidence.driver.kernel_module_open is not False or evidence.logged(FALLEN):
        return None
    return Seen(
        f"{addresses(tuple(new))} is Blackwell or newer, and the loaded module is the proprietary one",
        {"devices": [gpu.device for gpu in new], "kernel_module_open": False},
        fix=_open_package(evidence),
    )


def _open_package(evidence: Evidence) -> str | None:
    """The line that installs the open module of the branch that is loaded; None where that is not known."""
    branch = (evidence.driver.kernel_module_version or "").partition(".")[0]
    if not branch:
        return None
    return (
        f"sudo apt install nvidia-driver-{branch}-open (Ubuntu; from NVIDIA's own repository nvidia-open), and reboot"
    )


def _not_started(evidence: Evidence) -> Seen | None:
    """The module took the card and could not start it; only where no other line of this GPU says why."""
    if not _none_comes_up(evidence) or _open_needed(evidence) is not None:
        return None
    unexplained = [
        why
        for why in (evidence.from_log.not_started or {}).values()
        if re.search(f"{NOT_STARTED}|{NO_GSP}", why, re.IGNORECASE)
    ]
    if unexplained:
        return Seen(unexplained[-1], {"log": unexplained})
    explained = (FALLEN, OPEN_NEEDED, UNSUPPORTED, NO_ROOM, NO_POWER)
    if any(evidence.logged(pattern) for pattern in explained):
        return None
    return _logged(NOT_STARTED)(evidence)


KERNEL = on(
    "kernel",
    Condition(
        id="driver.nouveau",
        certainty="proof",
        title="nouveau controls the GPU, so NVIDIA's driver cannot use it",
        meaning="nouveau is the Linux kernel's driver for NVIDIA GPUs. It drives displays but not CUDA. While it "
        "controls the GPU, NVIDIA's module cannot use it.",
        fix="printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/nouveau.conf && "
        "sudo update-initramfs -u (Fedora, RHEL: sudo dracut --force); install NVIDIA's driver, and reboot",
        patterns=(r"NVIDIA probe routine was not called for \d+ device", r"nouveau, rivafb, nvidiafb or rivatv"),
    ),
    Condition(
        id="driver.passed_through",
        certainty="proof",
        title="the GPU is reserved for a virtual machine",
        meaning="A driver such as vfio-pci reserves the GPU for a virtual machine. This system cannot use it "
        "meanwhile.",
        fix="use it inside the virtual machine; or remove its IDs from vfio-pci's options in /etc/modprobe.d and the "
        "kernel command line, and reboot",
    ),
    Condition(
        id="driver.not_installed",
        certainty="proof",
        title="NVIDIA's driver is not installed",
        meaning="A GPU is on the PCI bus, but this system has no driver for it.",
        fix="sudo ubuntu-drivers install --gpgpu (Ubuntu; elsewhere NVIDIA's package of the distribution), and reboot",
        patterns=(
            r"Found no NVIDIA driver on your system",
            r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        ),
    ),
    Condition(
        id="driver.other_kernel",
        title="NVIDIA's module was built for another kernel",
        meaning="The kernel was updated, but the driver's module was not built for the new kernel, usually because "
        "the kernel headers are missing.",
        settle="`dkms status` lists the kernels for which it was built",
        fix="install the headers of the running kernel, sudo dkms autoinstall, then sudo modprobe nvidia",
        patterns=(r"modprobe: FATAL: Module nvidia not found in directory",),
    ),
    Condition(
        id="driver.signature_rejected",
        certainty="proof",
        title="the kernel rejects NVIDIA's unsigned module (Secure Boot)",
        meaning="With Secure Boot the kernel loads only modules signed with a key that the firmware knows. A module "
        "built on this machine is signed with the machine's own key, which must be enrolled once.",
        fix="sudo mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian and others: /var/lib/dkms/mok.pub), "
        "reboot, and enrol the key at the blue screen; or switch Secure Boot off in the firmware",
        patterns=(r"insert '?nvidia\w*'?: Key was rejected by service", r"nvidia.{0,60}module.{0,40}key is rejected"),
    ),
    Condition(
        id="driver.secure_boot",
        certainty="hint",
        title="NVIDIA's module is not loaded, and Secure Boot is on",
        meaning="With Secure Boot the kernel loads only signed modules. The module exists but is not loaded. A "
        "missing signature is the most likely cause.",
        settle="`sudo modprobe nvidia` says `Key was rejected by service`",
        fix="sudo modprobe nvidia; if the key is rejected, sudo mokutil --import /var/lib/shim-signed/mok/MOK.der "
        "(Debian and others: /var/lib/dkms/mok.pub), reboot, and enrol the key",
    ),
    Condition(
        id="driver.not_loaded",
        title="NVIDIA's kernel module is not loaded",
        meaning="The driver is installed, but its kernel module is not loaded: it was unloaded, is blacklisted, or "
        "failed to load.",
        settle="`sudo modprobe nvidia` loads it or shows the reason",
        fix="sudo modprobe nvidia; if that fails, sudo dmesg | grep -i nvidia",
        nvml=(9,),
        patterns=(r"NVML_ERROR_DRIVER_NOT_LOADED|\bDriver Not Loaded\b",),
    ),
    Condition(
        id="container.host_driver",
        certainty="proof",
        title="the host of this container has no NVIDIA driver running",
        meaning="A container uses the host's kernel and cannot load a module into it.",
        fix="on the host: sudo modprobe nvidia, or install NVIDIA's driver there; then recreate the container",
    ),
    Condition(
        id="gpu.fallen_off",
        rung="hardware",
        certainty="proof",
        title="the GPU has fallen off the bus",
        meaning="The GPU stopped answering on PCI Express: it overheated, lost power, is badly seated, or is broken. "
        "From then on, every program that uses it fails.",
        fix=FIX["lost"],
        judge=_fallen,
        patterns=(FALLEN, r"\bXid\b.{0,80}:\s*79\b", r"Unable to determine the device handle for (?:gpu|GPU)"),
    ),
    Condition(
        id="gpu.no_power",
        rung="hardware",
        certainty="proof",
        title="GPU power cable not connected",
        meaning="The GPU needs auxiliary power and will not start without it.",
        fix="shut down and connect all power cables of the GPU; in a server it may also need the riser's cable",
        judge=_logged(NO_POWER),
        patterns=(r"does not have the necessary power cables connected", r"Insufficient External Power"),
    ),
    Condition(
        id="gpu.no_address_space",
        rung="hardware",
        certainty="proof",
        title="the firmware gave the GPU no address space",
        meaning="The GPU's memory window (BAR) has no addresses, usually because the firmware keeps all windows "
        "below 4 GiB, or because a virtual machine's window is too small.",
        fix="switch on Above 4G Decoding (and Resizable BAR) in the firmware; in a virtual machine, widen its 64-bit "
        "memory window",
        judge=_logged(NO_ROOM),
        patterns=(NO_ROOM, r"BAR\d is 0M @ 0x0"),
    ),
    Condition(
        id="driver.unsupported_card",
        certainty="proof",
        title="this driver does not support the GPU",
        meaning="The GPU is newer than the driver, or so old that only a legacy driver supports it.",
        fix="install the newest driver; for a GPU before Turing, the last branch that lists it at nvidia.com/drivers",
        judge=_logged(UNSUPPORTED),
        patterns=(
            r"installed in this system is not supported by the",
            r"supported through the NVIDIA .* Legacy drivers",
        ),
    ),
    Condition(
        id="driver.open_module_needed",
        title="this GPU needs the open kernel module",
        meaning="From Blackwell on (RTX 50, B200), NVIDIA's proprietary kernel module does not start a GPU. The open "
        "module of the same driver does.",
        settle="the kernel's log has `requires use of the NVIDIA open kernel modules`",
        fix="sudo apt install nvidia-open (the package of the distribution whose name has `-open`), and reboot",
        judge=_open_needed,
        patterns=(OPEN_NEEDED,),
    ),
    Condition(
        id="driver.card_not_started",
        title="NVIDIA's module cannot start the GPU",
        meaning="A firmware file that does not match, a GPU that needs a power cycle, and a broken GPU look the same. "
        "The numbers after `RmInitAdapter failed` show NVIDIA the place.",
        settle="if a power cycle helps, the cause was the GPU's state; if another version helps, the driver",
        fix="power-cycle the machine, then try the newest driver, then try the GPU in another machine",
        judge=_not_started,
        patterns=(r"RmInitAdapter failed", r"rm_init_adapter failed"),
    ),
    by=absent,
)


# -- the kernel's log --------------------------------------------------------------------------------------------------


def _xid(evidence: Evidence) -> Seen | None:
    """The errors of each GPU, the worst first, under the name that torch has for it."""
    facts, errors = evidence.with_log, evidence.with_log.xids or ()
    names = {card.address_of(device, facts): card.name_of(device) for device in evidence.cards}
    stories = [
        (address, story)
        for address in dict.fromkeys(error.pci_address for error in errors)
        if (story := at_rest.story(address, errors)) is not None
    ]
    if not stories:
        return None
    stories.sort(key=lambda pair: VERDICTS.index(pair[1].verdict), reverse=True)
    messages = [
        f"{f'{names[address]} ({address})' if address in names else address}: "
        f"{', '.join(filter(None, (story.title, story.message)))}"
        for address, story in stories
    ]
    rows = [row for _, story in stories for row in story.evidence["xids"]]
    address, worst = stories[0]
    fix = worst.fix.format(card=address) if worst.fix else ""
    return Seen("; ".join(messages), {"xids": rows}, fix, verdict=worst.verdict)


def _sxid(evidence: Evidence) -> Seen | None:
    """The errors of each NVSwitch, the worst first."""
    switches = at_rest.switches(evidence.with_log)
    rows = {"sxids": [row for finding in switches for row in finding.evidence["sxids"]]}
    seen = Seen.of(*(replace(finding, message=f"{finding.title}, {finding.message}") for finding in switches))
    return seen and replace(seen, evidence=rows, fix=seen.fix or "", title=None)


def _nvlink(evidence: Evidence) -> Seen | None:
    seen = Seen.of(at_rest.nvlink(evidence.with_log))
    return seen and replace(seen, fix=seen.fix or "")


def _unreadable(evidence: Evidence) -> Seen | None:
    if evidence.stack.log is not None or evidence.stack.log_error is None or not evidence.is_nvidia_here:
        return None
    return Seen(f"the kernel log cannot be read: {evidence.stack.log_error}", {"error": evidence.stack.log_error})


LOG: tuple[Condition, ...] = (
    Condition(
        id="log.xid",
        title="Xid errors in the kernel log",
        meaning="It is a failure if NVIDIA's catalogue asks for a reset, a reboot or a mechanical check and the "
        "driver was not reloaded since, and a remark if the program made a mistake.",
        fix="sudo dmesg -T | grep -i xid",
        judge=_xid,
        patterns=(r"NVRM: Xid \(", r"\bXid \d+"),
    ),
    Condition(
        id="log.sxid",
        title="NVSwitch errors (SXid) in the kernel log",
        meaning="The driver's word in the line decides: `Fatal` is a failure, `Non-fatal` and `Correctable` are a "
        "remark, but for a few numbers by which GPU access hangs. Errors before the NVSwitch was set up again are a "
        "remark.",
        settle="`sudo journalctl -u nvidia-fabricmanager` names the links and partitions",
        fix="sudo dmesg -T | grep -i sxid",
        judge=_sxid,
    ),
    Condition(
        id=at_rest.NVLINK,
        title="NVLink setup failed",
        meaning="The driver could not find out which NVLinks of the GPUs are connected. Copies between GPUs fall back "
        "to PCI Express or hang, and so may nvidia-smi.",
        settle="`nvidia-smi nvlink --status` lists the links; it is past if the driver was reloaded since",
        fix=xid.REBOOT,
        judge=_nvlink,
        patterns=(r"NVRM: knvlink(?:DiscoverPostRxDetLinks|UpdatePostRxDetectLinkMask)_\w+: .*[Ff]ailed",),
    ),
    Condition(
        id="log.unreadable",
        verdict="skip",
        certainty="proof",
        title="the kernel log could not be read: Xid errors unknown",
        meaning="Reading the kernel log usually requires root. A log that cannot be read may still contain errors.",
        fix="sudo dmesg | grep -i xid",
        judge=_unreadable,
    ),
)


# -- CUDA starts and shows other devices than those that were meant ----------------------------------------------------


# CUDA_ERROR_INVALID_DEVICE: with a mask, cuInit's word that an entry of it is no device.
REFUSED = 101


def _listed(evidence: Evidence) -> list[Device]:
    """The cards that NVML lists, without their MIG instances, in its order."""
    found = [card for card in evidence.cards if card.nvml_index is not None and card.parent_uuid is None]
    return sorted(found, key=lambda card: card.nvml_index or 0)


def _shown(evidence: Evidence) -> list[Device]:
    return [card for card in evidence.cards if card.cuda_index is not None]


def _instances(evidence: Evidence) -> list[Device]:
    """MIG instances. One that CUDA does not show has no index at all."""
    return [device for device in evidence.facts.devices if device.parent_uuid is not None]


def _masked(evidence: Evidence) -> tuple[str, Seen] | None:
    """Return which of the masks' conditions holds, and how, where CUDA says honestly what it shows under the mask."""
    value = evidence.value(MASK)
    if value is None or not evidence.is_nvidia_here or evidence.driver.cuinit_code not in (*HONEST, REFUSED):
        return None
    # CUDA's order without a mask is not known: for counting any order serves.
    reading = read_mask(value, [device.uuid for device in (*_listed(evidence), *_instances(evidence))])
    done = _done_by(reading, evidence)
    if done is None:
        return None
    # By its own form it should show some.
    doubtful = evidence.driver.cuinit_code == REFUSED and reading.shown
    # Slurm's word for a job that was given none: what is there then belongs to others.
    fix = fixes.ASK_THE_SCHEDULER if value.strip() == "NoDevFiles" else None
    message = f"{MASK}={reading.value!r} {done[1]}: {'; '.join(entry.told for entry in reading.entries)}"
    seen = {MASK: reading.value, "shown": len(_shown(evidence)), "by_cuda_rules": len(reading.shown)}
    return done[0], Seen(message, seen, fix, "hint" if doubtful else None)


def _done_by(reading: Reading, evidence: Evidence) -> tuple[str, str] | None:
    """Return the condition, and in words what the mask does; None where it does as it says."""
    shown, count = len(_shown(evidence)), len(_listed(evidence))
    if not shown and evidence.driver.cuinit_code == REFUSED:
        return "mask.hides_all", f"is refused: cuInit returns {REFUSED}"
    if not shown:
        # Without NVML's list only what hides whatever is there counts, and a UUID may be of what is there.
        if reading.shown or (not count and reading.value.strip().startswith(("GPU-", "MIG-"))):
            return None
        return "mask.hides_all", f"shows CUDA none of {count} GPUs" if count else "shows CUDA nothing"
    if any(entry.is_odd for entry in reading.entries):
        message = f"has entries that are neither numbers nor UUIDs and shows {shown} GPU{'s' * (shown != 1)}"
        return "mask.malformed", message
    asked = sum(entry.asks for entry in reading.entries)
    # What it names and CUDA does not show all the same is no matter of the mask.
    left_out = count > 0 and len(reading.shown) > shown
    sliced = _instances(evidence) or any(card.mig is not None and card.mig.enabled for card in evidence.cards)
    if asked <= shown or left_out or sliced:
        return None
    return "mask.shows_fewer", f"asks for {asked} GPUs and shows {shown}"


def _order(evidence: Evidence) -> Seen | None:
    """CUDA counts the fastest first and nvidia-smi by PCI address: with unlike cards the numbers differ."""
    if evidence.value(MASK) is not None or evidence.value("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    both = sorted((c for c in _shown(evidence) if c.nvml_index is not None), key=lambda card: card.cuda_index or 0)
    order = [card.nvml_index for card in both]
    if order == sorted(order, key=lambda index: index or 0):
        return None
    rows = [f"cuda:{card.cuda_index} is nvidia-smi's {card.nvml_index} ({card.name or 'a GPU'})" for card in both]
    return Seen("; ".join(rows), {"nvml_indices_in_cuda_order": order})


def _not_listed(evidence: Evidence) -> Seen | None:
    seen = Seen.of(card.unlisted(evidence.with_log)) if _listed(evidence) else None
    return seen if seen is None or "not_started" in seen.evidence else replace(seen, verdict=None)


def _count_disagrees(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    if probe.count is None or probe.cuda is None or evidence.driver.cuinit_code != 0:
        return None
    shown = len(_shown(evidence))
    if probe.count == shown or (probe.count == 0 and not probe.available):
        return None  # a torch that sees none has a reason of its own
    return Seen(
        f"torch.cuda.device_count() is {probe.count}, but CUDA shows {shown}",
        {"torch": probe.count, "cuda": shown},
        verdict="warn" if evidence.torch_works else None,
    )


MASKS: tuple[Condition, ...] = (
    *on(
        "devices",
        Condition(
            id="mask.hides_all",
            certainty="proof",
            title="CUDA_VISIBLE_DEVICES hides every GPU",
            meaning="CUDA shows a process only the GPUs that this variable names. An empty value, -1, or a first "
            "entry that matches no GPU hides all of them, and torch gives no reason.",
            fix="unset CUDA_VISIBLE_DEVICES",
            patterns=(r"No CUDA GPUs are available",),
        ),
        Condition(
            id="mask.malformed",
            verdict="warn",
            certainty="proof",
            title="CUDA reads CUDA_VISIBLE_DEVICES differently than expected",
            meaning="An entry is a number or the beginning of a UUID. CUDA reads any other only as far as it is a "
            "number, or ends the list there, without a message: `0;1` and `0x1` are 0.",
            fix="export CUDA_VISIBLE_DEVICES with numbers or UUIDs and commas between them; `nvidia-smi -L` lists both",
        ),
        Condition(
            id="mask.shows_fewer",
            verdict="warn",
            certainty="proof",
            title="CUDA_VISIBLE_DEVICES names more GPUs than CUDA shows",
            meaning="The first entry that matches no GPU ends the list: the GPUs after it are hidden.",
            fix="use only GPUs that exist; `nvidia-smi -L` lists them",
        ),
        by=_masked,
    ),
    Condition(
        id="devices.order",
        verdict="warn",
        certainty="proof",
        title="CUDA and nvidia-smi number the GPUs differently",
        meaning="Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA counts the fastest GPU first, and nvidia-smi counts by "
        "PCI address.",
        fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        judge=_order,
    ),
    Condition(
        id="devices.cuda_shows_fewer",
        rung="devices",
        title="NVML lists GPUs that CUDA does not show",
        meaning="CUDA leaves out a GPU that it cannot open: its device node is missing or not allowed in this "
        "container, another process uses it exclusively, or it has failed.",
        fix=WHY_NOT_SHOWN,
        judge=lambda evidence: Seen.of(card.not_shown(evidence.with_log)),
    ),
    Condition(
        id="devices.unlisted",
        verdict="warn",
        certainty="proof",
        title="the driver does not list all NVIDIA devices on the PCI bus",
        meaning="The missing GPU is bound to another kernel driver, is not supported by this driver, or failed to "
        "start. It is a failure if the kernel log says that it fell off the bus or did not start.",
        fix="lspci -k -d 10de:; sudo dmesg | grep -i nvrm",
        judge=_not_listed,
    ),
    Condition(
        id="devices.count",
        rung="devices",
        certainty="proof",
        title="torch and CUDA count different devices",
        meaning="Before CUDA starts, torch counts devices with NVML and its own parser. If the result differs from "
        "CUDA's, torch reports a device that does not exist.",
        fix="export CUDA_VISIBLE_DEVICES with numbers, or with one MIG instance's UUID",
        judge=_count_disagrees,
        patterns=(r"device >= 0 && device < num_gpus.{0,40}INTERNAL ASSERT",),
    ),
)


# Variables of debuggers and profilers which slow down or change whatever uses CUDA, once they are left over: those that
# DCGM's software test looks for, and NVIDIA's later names for core dumps. Their values are nobody's business.
LEFT_OVER = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
)
# Docker gives a container 64 MiB, of which two workers' batches of images are more than enough to overflow it.
SMALL_SHM_BYTES = 2**30


def _launch_blocking(evidence: Evidence) -> Seen | None:
    value = evidence.value("CUDA_LAUNCH_BLOCKING")
    if value in (None, "", "0") or not evidence.is_nvidia_here:
        return None
    return Seen(f"CUDA_LAUNCH_BLOCKING={value}: every launch waits for its kernel", {"CUDA_LAUNCH_BLOCKING": value})


def _left_over(evidence: Evidence) -> Seen | None:
    names = [name for name in LEFT_OVER if name in evidence.variables]
    if not names or not evidence.is_nvidia_here:
        return None
    return Seen(f"set here: {', '.join(names)}", {"variables": names}, fix=f"unset {' '.join(names)}")


def _small_shm(evidence: Evidence) -> Seen | None:
    size = evidence.stack.shm_bytes
    if size is None or size >= SMALL_SHM_BYTES or not evidence.host.container or not evidence.is_nvidia_here:
        return None
    pod = "mount a volume emptyDir with medium: Memory at /dev/shm" if evidence.host.container == "kubernetes" else None
    return Seen(f"/dev/shm has {units.capacity(size)}", {"shm_bytes": size}, pod)


ENVIRONMENT: tuple[Condition, ...] = (
    Condition(
        id="environment.launch_blocking",
        verdict="warn",
        certainty="proof",
        title="CUDA_LAUNCH_BLOCKING makes every kernel wait",
        meaning="It is for debugging. It makes everything slower, because host and device no longer work at the same "
        "time.",
        fix="unset CUDA_LAUNCH_BLOCKING",
        judge=_launch_blocking,
    ),
    Condition(
        id="environment.left_over",
        verdict="warn",
        certainty="proof",
        title="variables of a debugger or a profiler are set",
        meaning="They load code into every process that uses CUDA or change how it runs.",
        fix="unset them",
        judge=_left_over,
    ),
    Condition(
        id="environment.small_shm",
        verdict="warn",
        title="this container has little shared memory",
        meaning="A DataLoader's workers pass their batches through /dev/shm. If it is full, they die with a bus error.",
        fix="start the container with --shm-size=8g or --ipc=host",
        judge=_small_shm,
        patterns=(r"DataLoader worker \(pid.*\) is killed by signal: Bus error", r"insufficient shared memory \(shm\)"),
    ),
)
