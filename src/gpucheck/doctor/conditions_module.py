"""Why NVIDIA's kernel module does not drive the card: another driver holds it, or the module is not there or loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.stack import PciDevice

# Drivers that hold a card back for a virtual machine, on purpose.
FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")
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
    return _why_not_loaded(evidence)


def _why_not_loaded(evidence: Evidence) -> Absent:
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


def _absent(why: Absent) -> Callable[[Evidence], Seen | None]:
    def judge(evidence: Evidence) -> Seen | None:
        return _SAID[why](evidence) if why_absent(evidence) == why else None

    return judge


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
        f"nvidia.ko is on disk for {', '.join(built_for)}, and the kernel that runs is {running}",
        {"built_for": list(built_for), "running": running},
        fix=f"sudo apt install linux-headers-{running} && sudo dkms autoinstall, then sudo modprobe nvidia (Debian, "
        "Ubuntu; elsewhere reinstall the driver's package for this kernel)",
    )


def _rejected(evidence: Evidence) -> Seen:
    return Seen(evidence.logged(REJECTED)[-1], {"log": evidence.logged(REJECTED), "secure_boot": _secure(evidence)})


def _secure(evidence: Evidence) -> bool | None:
    return evidence.stack.secure_boot


def _unsigned(evidence: Evidence) -> Seen:
    return Seen(
        "the module is on disk for this kernel and not loaded, and the firmware enforces Secure Boot",
        {"secure_boot": True, "built_for": list(evidence.stack.built_for or ())},
    )


def _not_loaded(evidence: Evidence) -> Seen:
    stack = evidence.stack
    where = f"its file is there for {stack.running}" if stack.built_for else "its libraries are installed"
    return Seen(
        f"{addresses(stack.gpus)} on the PCI bus; the module is not loaded, and {where}", _module_seen(evidence)
    )


def _no_driver(evidence: Evidence) -> Seen:
    gpus = evidence.stack.gpus
    no_file = "no kernel on this disk has it" if evidence.stack.built_for == () else "none of its libraries is here"
    return Seen(
        f"{addresses(gpus)} on the PCI bus; NVIDIA's module is not loaded, and {no_file}", _module_seen(evidence)
    )


def _on_the_host(evidence: Evidence) -> Seen:
    gpus = evidence.stack.gpus
    return Seen(f"{addresses(gpus)} on the PCI bus; the host's kernel has not loaded it", _module_seen(evidence))


def _module_seen(evidence: Evidence) -> dict[str, object]:
    return {
        "pci_addresses": [gpu.address for gpu in evidence.stack.gpus],
        "kernel_module_loaded": evidence.driver.kernel_module_loaded,
        "nvml_code": evidence.driver.nvml_code,
    }


_SAID: dict[Absent, Callable[[Evidence], Seen]] = {
    "nouveau": _held,
    "guests": _held,
    "other_kernel": _elsewhere,
    "rejected": _rejected,
    "unsigned": _unsigned,
    "not_loaded": _not_loaded,
    "no_driver": _no_driver,
    "host": _on_the_host,
}


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="driver.nouveau",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="nouveau holds the GPU, so NVIDIA's driver cannot",
        meaning="nouveau is the kernel's own driver for NVIDIA's cards. It serves a screen and not CUDA, and while it "
        "holds the card NVIDIA's module is not given it.",
        fix="printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/nouveau.conf && "
        "sudo update-initramfs -u (Fedora, RHEL: sudo dracut --force); install NVIDIA's driver, and reboot",
        judge=_absent("nouveau"),
        texts=(r"NVIDIA probe routine was not called for \d+ device", r"nouveau, rivafb, nvidiafb or rivatv"),
    ),
    Condition(
        id="driver.passed_through",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="the GPU is kept for a virtual machine",
        meaning="A driver such as vfio-pci holds the card so that a virtual machine can be given it. This system "
        "cannot use it meanwhile.",
        fix="use it inside the virtual machine; or take its ids out of vfio-pci's options in /etc/modprobe.d and the "
        "kernel's command line, and reboot",
        judge=_absent("guests"),
    ),
    Condition(
        id="driver.not_installed",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="NVIDIA's driver is not installed",
        meaning="A card is on the PCI bus and nothing on this system drives it.",
        fix="sudo ubuntu-drivers install --gpgpu (Ubuntu; elsewhere NVIDIA's package of the distribution), and reboot",
        judge=_absent("no_driver"),
        texts=(
            r"Found no NVIDIA driver on your system",
            r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        ),
    ),
    Condition(
        id="driver.other_kernel",
        rung="kernel",
        verdict="fail",
        certainty="strong",
        title="NVIDIA's module was built for another kernel",
        meaning="The kernel was updated and the driver's module was not built for the new one, mostly because the "
        "kernel's headers are missing.",
        settle="`dkms status` lists the kernels that it was built for",
        fix="install the headers of the running kernel, sudo dkms autoinstall, then sudo modprobe nvidia",
        judge=_absent("other_kernel"),
        texts=(r"modprobe: FATAL: Module nvidia not found in directory",),
    ),
    Condition(
        id="driver.signature_rejected",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="the kernel refuses NVIDIA's module for want of a signature",
        meaning="With Secure Boot the kernel loads only modules that are signed with a key that the firmware knows. A "
        "module that was built here is signed with a key of this machine, which has to be enrolled once.",
        fix="sudo mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian and others: /var/lib/dkms/mok.pub), "
        "reboot, and enrol the key at the blue screen; or switch Secure Boot off in the firmware",
        judge=_absent("rejected"),
        texts=(r"insert '?nvidia\w*'?: Key was rejected by service", r"nvidia.{0,60}module.{0,40}key is rejected"),
    ),
    Condition(
        id="driver.secure_boot",
        rung="kernel",
        verdict="fail",
        certainty="hint",
        title="NVIDIA's module is not loaded, and Secure Boot is on",
        meaning="With Secure Boot the kernel loads only signed modules. The module is there and is not loaded; a "
        "missing signature is the likeliest cause.",
        settle="`sudo modprobe nvidia` says `Key was rejected by service`",
        fix="sudo modprobe nvidia; if the key is rejected, sudo mokutil --import /var/lib/shim-signed/mok/MOK.der "
        "(Debian and others: /var/lib/dkms/mok.pub), reboot, and enrol the key",
        judge=_absent("unsigned"),
    ),
    Condition(
        id="driver.not_loaded",
        rung="kernel",
        verdict="fail",
        certainty="strong",
        title="NVIDIA's kernel module is not loaded",
        meaning="The driver is installed and the kernel does not run its module: it was unloaded, is on a list of "
        "modules not to load, or failed as it loaded.",
        settle="`sudo modprobe nvidia` loads it or says why not",
        fix="sudo modprobe nvidia; if that fails, sudo dmesg | grep -i nvidia",
        judge=_absent("not_loaded"),
        nvml=(9,),
        texts=(r"NVML_ERROR_DRIVER_NOT_LOADED|\bDriver Not Loaded\b",),
    ),
    Condition(
        id="container.host_driver",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="the host of this container has no NVIDIA driver running",
        meaning="A container uses the host's kernel. Nothing inside the container can load a module into it.",
        fix="on the host: sudo modprobe nvidia, or install NVIDIA's driver there; then recreate the container",
        judge=_absent("host"),
    ),
)
