"""A card that NVIDIA's module has and cannot bring up, mostly by the kernel's log: it fell off, has no power."""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_module import FOR_GUESTS, addresses, why_absent
from gpucheck.doctor.evidence import Evidence

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
    """Whether the module is loaded and no card of it is usable: NVML lists none or does not start, nor does CUDA."""
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


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="gpu.fallen_off",
        rung="hardware",
        verdict="fail",
        certainty="proof",
        title="the GPU has fallen off the bus",
        meaning="The card stopped answering on PCI Express: it overheated, lost power, sits badly in its slot, or is "
        "broken. The kernel logs it as Xid 79, or in two lines without a number, and every program that uses the card "
        "fails from then on.",
        settle="if it returns after a power cycle, move the card to another slot or supply: the fault goes with one",
        fix="shut down, take the power off and on, and boot; if it returns, reseat the card and its power plugs",
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
        verdict="fail",
        certainty="proof",
        title="the GPU's power plug is not in",
        meaning="The card needs power from its own plugs besides the slot's, and does not start without.",
        fix="shut down and put every power plug of the card in; a card in a server may need its riser's cable",
        judge=_logged(NO_POWER),
        texts=(r"does not have the necessary power cables connected", r"Insufficient External Power"),
    ),
    Condition(
        id="gpu.no_address_space",
        rung="hardware",
        verdict="fail",
        certainty="proof",
        title="the firmware gave the GPU no room for its memory",
        meaning="The card's memory window (BAR) was not given addresses, mostly because the firmware keeps all of them "
        "below 4 GiB, or a virtual machine has too small a window.",
        fix="switch on Above 4G Decoding (and Resizable BAR) in the firmware; in a virtual machine, widen its 64-bit "
        "memory window",
        judge=_logged(NO_ROOM),
        texts=(r"This PCI I/O region assigned to your NVIDIA device is invalid", r"BAR\d is 0M @ 0x0"),
        source="NVIDIA/gpu-operator issue 492; system76/firmware-open issue 66",
    ),
    Condition(
        id="driver.unsupported_card",
        rung="kernel",
        verdict="fail",
        certainty="proof",
        title="this driver does not know the GPU",
        meaning="The card is newer than the driver, or so old that only a legacy driver serves it.",
        fix="install the newest driver; for a card before Turing, the last branch that lists it at nvidia.com/drivers",
        judge=_logged(UNSUPPORTED),
        texts=(r"installed in this system is not supported by the", r"supported through the NVIDIA .* Legacy drivers"),
    ),
    Condition(
        id="driver.open_module_needed",
        rung="kernel",
        verdict="fail",
        certainty="strong",
        title="this GPU needs the open kernel module",
        meaning="From Blackwell on (RTX 50, B200) NVIDIA's proprietary kernel module does not start a card; the open "
        "module of the same driver does.",
        settle="the kernel's log has `requires use of the NVIDIA open kernel modules`",
        fix="sudo apt install nvidia-open (the package of the distribution whose name has `-open`), and reboot",
        judge=_open_needed,
        texts=(r"requires use of the NVIDIA open kernel modules",),
        source="NVIDIA/open-gpu-kernel-modules issues 862 and 872",
    ),
    Condition(
        id="driver.card_not_started",
        rung="kernel",
        verdict="fail",
        certainty="strong",
        title="NVIDIA's module cannot start the GPU",
        meaning="The module took the card and its start failed. The numbers behind `RmInitAdapter failed` tell NVIDIA "
        "where; for a user, a firmware file that does not fit, a card that needs a power cycle and a broken card look "
        "alike.",
        settle="it is the card's state if a power cycle mends it, the driver if another version does",
        fix="shut down, take the power off and on; then try the newest driver; then the card in another machine",
        judge=_not_started,
        texts=(r"RmInitAdapter failed", r"rm_init_adapter failed"),
        source="NVIDIA/open-gpu-kernel-modules issues 326 and 789",
    ),
)
