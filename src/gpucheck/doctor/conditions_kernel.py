"""The card and its kernel module: another driver holds it, the module is not there, or it cannot bring the card up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from gpucheck import xid
from gpucheck.cards import at_rest
from gpucheck.cards.card import address_of, name_of
from gpucheck.doctor.condition import Condition, Evidence, Seen, on
from gpucheck.machine import kernel_driver
from gpucheck.machine.host import FOR_GUESTS
from gpucheck.machine.kernel_driver import PciDevice
from gpucheck.report.finding import VERDICTS

# -- NVIDIA's module does not drive any card ---------------------------------------------------------------------------

REJECTED = r"Loading of .*module.* rejected|Key was rejected by service"

Absent = Literal["nouveau", "guests", "other_kernel", "rejected", "unsigned", "not_loaded", "no_driver", "host"]


def why_absent(evidence: Evidence) -> Absent | None:
    """Why NVIDIA's module does not drive any card here; None where it is loaded, or nobody knows.

    One answer, so that one fault is never told twice.
    """
    loaded, gpus = evidence.driver.kernel_module_loaded, evidence.stack.gpus
    if loaded is None and evidence.driver.nvml_code == 9:
        loaded = False
    # A sandbox may pass on the driver's calls and hide its module.
    if evidence.cuda_works or evidence.driver.nvml_code == 0 or not gpus:
        return None
    holders = {gpu.driver for gpu in gpus}
    if holders == {"nouveau"} or (holders <= {"nouveau", None} and "nouveau" in holders and not loaded):
        return "nouveau"
    if holders <= set(FOR_GUESTS):
        return "guests"
    if loaded is not False:
        return None
    if evidence.in_container:
        return "host"
    stack = evidence.stack
    if evidence.logged(REJECTED):
        return "rejected"
    if stack.built_for and stack.running is not None and stack.running not in stack.built_for:
        return "other_kernel"
    if stack.built_for:
        return "unsigned" if stack.secure_boot else "not_loaded"
    if stack.built_for is None and (stack.libraries or stack.path_libraries):
        return "not_loaded"
    return "no_driver"


def _absent(why: Absent, said: Callable[[Evidence], Seen]) -> Callable[[Evidence], Seen | None]:
    return lambda evidence: said(evidence) if why_absent(evidence) == why else None


def addresses(gpus: tuple[PciDevice, ...]) -> str:
    """Where the cards sit on the PCI bus, in one line."""
    return ", ".join(gpu.address for gpu in gpus)


def _held(evidence: Evidence) -> Seen:
    gpus = evidence.stack.gpus
    driver = next(gpu.driver for gpu in gpus if gpu.driver is not None)
    return Seen(f"{driver} drives {addresses(gpus)}", {gpu.address: gpu.driver for gpu in gpus})


def _elsewhere(evidence: Evidence) -> Seen:
    built_for, running = evidence.stack.built_for or (), evidence.stack.running
    return Seen(
        f"nvidia.ko is on disk for {', '.join(built_for)}, but the running kernel is {running}",
        {"built_for": list(built_for), "running": running},
        fix=f"sudo apt install linux-headers-{running} && sudo dkms autoinstall, then sudo modprobe nvidia (Debian, "
        "Ubuntu; elsewhere reinstall the driver's package for this kernel)",
    )


def _rejected(evidence: Evidence) -> Seen:
    found = evidence.logged(REJECTED)
    return Seen(found[-1], {"log": found, "secure_boot": evidence.stack.secure_boot})


def _unsigned(evidence: Evidence) -> Seen:
    return Seen(
        "the module is on disk for this kernel but not loaded, and the firmware enforces Secure Boot",
        {"secure_boot": True, "built_for": list(evidence.stack.built_for or ())},
    )


def _not_loaded(evidence: Evidence) -> Seen:
    stack = evidence.stack
    where = f"its file exists for {stack.running}" if stack.built_for else "its libraries are installed"
    return _on_the_bus(evidence, f"the module is not loaded, and {where}")


def _no_driver(evidence: Evidence) -> Seen:
    known = evidence.stack.built_for == ()
    no_file = "no kernel on this disk has its file" if known else "none of its libraries is installed"
    return _on_the_bus(evidence, f"NVIDIA's module is not loaded, and {no_file}")


def _on_the_host(evidence: Evidence) -> Seen:
    return _on_the_bus(evidence, "the host's kernel has not loaded it")


def _on_the_bus(evidence: Evidence, more: str) -> Seen:
    gpus, driver = evidence.stack.gpus, evidence.driver
    told = {"kernel_module_loaded": driver.kernel_module_loaded, "nvml_code": driver.nvml_code}
    return Seen(f"{addresses(gpus)} on the PCI bus; {more}", {"pci_addresses": [gpu.address for gpu in gpus], **told})


# -- NVIDIA's module has a card and cannot bring it up, mostly by the kernel's log -------------------------------------

# PCI device numbers rise with the architecture; the first of Blackwell's is GB100's, 2901.
FIRST_BLACKWELL = 0x2900
FALLEN = r"fallen off the bus"
OPEN_NEEDED = r"requires use of the NVIDIA open kernel modules"
UNSUPPORTED = r"installed in this system is not supported by the|supported through the NVIDIA .* Legacy drivers"
NO_ROOM = r"This PCI I/O region assigned to your NVIDIA device is invalid"
NOT_STARTED = r"RmInitAdapter failed|rm_init_adapter failed"
NO_POWER = r"does not have the necessary power cables connected|Insufficient External Power"


def missing(evidence: Evidence) -> list[str]:
    """Addresses of cards that NVIDIA's module should drive and NVML does not list; none where NVML did not answer.

    In a container the bus shows the host's other cards too.
    """
    if evidence.in_container or not evidence.nvml_works:
        return []
    listed = {card.pci_address for card in evidence.cards}
    if None in listed:
        return []
    return [gpu.address for gpu in evidence.stack.gpus if gpu.address not in listed and gpu.driver not in FOR_GUESTS]


def _none_comes_up(evidence: Evidence) -> bool:
    """Return whether the module is loaded and no card of it is usable: NVML lists none or does not start, nor does
    CUDA."""
    loaded = evidence.driver.kernel_module_loaded
    if evidence.cuda_works or not loaded or not evidence.stack.gpus or why_absent(evidence) is not None:
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
    gone = missing(evidence)
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
    new = [gpu for gpu in evidence.stack.gpus if (_number(gpu.device) or 0) >= FIRST_BLACKWELL]
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


def _number(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _not_started(evidence: Evidence) -> Seen | None:
    """The module took the card and could not start it; only where no other line says why."""
    explained = (FALLEN, OPEN_NEEDED, UNSUPPORTED, NO_ROOM, NO_POWER)
    if any(evidence.logged(pattern) for pattern in explained) or _open_needed(evidence) is not None:
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
        judge=_absent("nouveau", _held),
        texts=(r"NVIDIA probe routine was not called for \d+ device", r"nouveau, rivafb, nvidiafb or rivatv"),
    ),
    Condition(
        id="driver.passed_through",
        certainty="proof",
        title="the GPU is reserved for a virtual machine",
        meaning="A driver such as vfio-pci reserves the GPU for a virtual machine. This system cannot use it "
        "meanwhile.",
        fix="use it inside the virtual machine; or remove its IDs from vfio-pci's options in /etc/modprobe.d and the "
        "kernel command line, and reboot",
        judge=_absent("guests", _held),
    ),
    Condition(
        id="driver.not_installed",
        certainty="proof",
        title="NVIDIA's driver is not installed",
        meaning="A GPU is on the PCI bus, but this system has no driver for it.",
        fix="sudo ubuntu-drivers install --gpgpu (Ubuntu; elsewhere NVIDIA's package of the distribution), and reboot",
        judge=_absent("no_driver", _no_driver),
        texts=(
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
        judge=_absent("other_kernel", _elsewhere),
        texts=(r"modprobe: FATAL: Module nvidia not found in directory",),
    ),
    Condition(
        id="driver.signature_rejected",
        certainty="proof",
        title="the kernel rejects NVIDIA's unsigned module (Secure Boot)",
        meaning="With Secure Boot the kernel loads only modules signed with a key that the firmware knows. A module "
        "built on this machine is signed with the machine's own key, which must be enrolled once.",
        fix="sudo mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian and others: /var/lib/dkms/mok.pub), "
        "reboot, and enrol the key at the blue screen; or switch Secure Boot off in the firmware",
        judge=_absent("rejected", _rejected),
        texts=(r"insert '?nvidia\w*'?: Key was rejected by service", r"nvidia.{0,60}module.{0,40}key is rejected"),
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
        judge=_absent("unsigned", _unsigned),
    ),
    Condition(
        id="driver.not_loaded",
        title="NVIDIA's kernel module is not loaded",
        meaning="The driver is installed, but its kernel module is not loaded: it was unloaded, is blacklisted, or "
        "failed to load.",
        settle="`sudo modprobe nvidia` loads it or shows the reason",
        fix="sudo modprobe nvidia; if that fails, sudo dmesg | grep -i nvidia",
        judge=_absent("not_loaded", _not_loaded),
        nvml=(9,),
        texts=(r"NVML_ERROR_DRIVER_NOT_LOADED|\bDriver Not Loaded\b",),
    ),
    Condition(
        id="container.host_driver",
        certainty="proof",
        title="the host of this container has no NVIDIA driver running",
        meaning="A container uses the host's kernel and cannot load a module into it.",
        fix="on the host: sudo modprobe nvidia, or install NVIDIA's driver there; then recreate the container",
        judge=_absent("host", _on_the_host),
    ),
    Condition(
        id="gpu.fallen_off",
        rung="hardware",
        certainty="proof",
        title="the GPU has fallen off the bus",
        meaning="The GPU stopped answering on PCI Express: it overheated, lost power, is badly seated, or is broken. "
        "The kernel logs it as Xid 79, or in two lines without a number. From then on, every program that uses the "
        "GPU fails.",
        settle="if it happens again after a power cycle, move the GPU to another slot or power supply to see which "
        "part is faulty",
        fix="power-cycle the machine; if it happens again, reseat the GPU and its power cables",
        judge=_fallen,
        texts=(
            r"fallen off the bus",
            r"\bXid\b.{0,80}:\s*79\b",
            r"Unable to determine the device handle for (?:gpu|GPU)",
        ),
        source="NVIDIA Xid 79; NVIDIA/open-gpu-kernel-modules: osinit.c for the lines without an Xid",
    ),
    Condition(
        id="gpu.no_power",
        rung="hardware",
        certainty="proof",
        title="GPU power cable not connected",
        meaning="The GPU needs auxiliary power and will not start without it.",
        fix="shut down and connect all power cables of the GPU; in a server it may also need the riser's cable",
        judge=_logged(NO_POWER),
        texts=(r"does not have the necessary power cables connected", r"Insufficient External Power"),
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
        texts=(r"This PCI I/O region assigned to your NVIDIA device is invalid", r"BAR\d is 0M @ 0x0"),
        source="NVIDIA/gpu-operator issue 492; system76/firmware-open issue 66",
    ),
    Condition(
        id="driver.unsupported_card",
        certainty="proof",
        title="this driver does not support the GPU",
        meaning="The GPU is newer than the driver, or so old that only a legacy driver supports it.",
        fix="install the newest driver; for a GPU before Turing, the last branch that lists it at nvidia.com/drivers",
        judge=_logged(UNSUPPORTED),
        texts=(r"installed in this system is not supported by the", r"supported through the NVIDIA .* Legacy drivers"),
    ),
    Condition(
        id="driver.open_module_needed",
        title="this GPU needs the open kernel module",
        meaning="From Blackwell on (RTX 50, B200), NVIDIA's proprietary kernel module does not start a GPU. The open "
        "module of the same driver does.",
        settle="the kernel's log has `requires use of the NVIDIA open kernel modules`",
        fix="sudo apt install nvidia-open (the package of the distribution whose name has `-open`), and reboot",
        judge=_open_needed,
        texts=(r"requires use of the NVIDIA open kernel modules",),
        source="NVIDIA/open-gpu-kernel-modules issues 862 and 872",
    ),
    Condition(
        id="driver.card_not_started",
        title="NVIDIA's module cannot start the GPU",
        meaning="The module found the GPU but could not start it. The numbers after `RmInitAdapter failed` show "
        "NVIDIA the place. For a user, a firmware file that does not match, a GPU that needs a power cycle, and a "
        "broken GPU look the same.",
        settle="if a power cycle helps, the cause was the GPU's state; if another version helps, the driver",
        fix="power-cycle the machine, then try the newest driver, then try the GPU in another machine",
        judge=_not_started,
        texts=(r"RmInitAdapter failed", r"rm_init_adapter failed"),
        source="NVIDIA/open-gpu-kernel-modules issues 326 and 789",
    ),
)


def _xid(evidence: Evidence) -> Seen | None:
    """The errors of each GPU, the worst first, under the name that torch has for it."""
    errors = evidence.facts.xids
    if errors is None:
        errors = kernel_driver.xids(evidence.stack.log or ())
    facts = replace(evidence.facts, driver=replace(evidence.driver, xids=errors))
    names = {address_of(card, facts): name_of(card) for card in evidence.cards}
    stories = [
        (address, known)
        for address in dict.fromkeys(one.pci_address for one in errors)
        if (known := at_rest.story([one for one in errors if one.pci_address == address])) is not None
    ]
    if not stories:
        return None
    stories.sort(key=lambda pair: VERDICTS.index(pair[1].verdict), reverse=True)
    address, worst = stories[0]
    called = {place: f"{name} ({place})" for place, name in names.items()}
    told = [
        f"{called.get(place, place)}: {', '.join(part for part in (one.title, one.message) if part)}"
        for place, one in stories
    ]
    rows = [row for _, one in stories for row in one.evidence["xids"]]
    fix = worst.fix.format(card=address) if worst.fix else ""
    return Seen("; ".join(told), {"xids": rows}, fix, verdict=worst.verdict)


def _unreadable(evidence: Evidence) -> Seen | None:
    if evidence.stack.log is not None or evidence.stack.log_error is None or not evidence.is_nvidia_here:
        return None
    return Seen(f"the kernel log cannot be read: {evidence.stack.log_error}", {"error": evidence.stack.log_error})


LOG: tuple[Condition, ...] = (
    Condition(
        id="log.xid",
        title="Xid errors in the kernel log",
        meaning="The driver reports GPU errors to the kernel as Xid numbers. It is a failure if NVIDIA's catalogue "
        "asks for a reset, a reboot or a mechanical check and the driver was not reloaded since. It is a remark if "
        "the program made a mistake or NVIDIA's catalogue says to ignore it. Xid 154 states which action the GPU "
        "needs.",
        settle="NVIDIA's Xid catalogue has the meaning and the immediate action for each error",
        fix="sudo dmesg -T | grep -i xid",
        judge=_xid,
        texts=(r"NVRM: Xid \(", r"\bXid \d+"),
        source=xid.SOURCE,
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
