"""What stands on its own, beside the ladder: variables left over, a small /dev/shm, and the state of the cards."""

from __future__ import annotations

from dataclasses import replace

from gpucheck import units
from gpucheck.cards.links import name_of
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.every_card import taken_over
from gpucheck.doctor.evidence import Evidence
from gpucheck.report.facts import Device

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
# A context of CUDA's takes a few hundred MiB, the one of the torch that is being asked among them.
FOREIGN_BYTES = 2**30


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
    return Seen(f"/dev/shm has {units.capacity(size)}", {"shm_bytes": size})


def _persistence(evidence: Evidence) -> Seen | None:
    off = [name_of(card) for card in evidence.cards if card.persistence_mode is False]
    if not off or evidence.host.wsl or evidence.host.system != "Linux":
        return None
    return Seen(f"off on {', '.join(off)}", {"devices": off})


def _foreign_memory(evidence: Evidence) -> Seen | None:
    """Memory in use by others. In a container their PIDs are the host's, so the amount decides and not the list."""
    taken = [
        (card, card.memory_used_bytes)
        for card in evidence.cards
        if card.memory_used_bytes is not None and card.memory_used_bytes > FOREIGN_BYTES and not card.integrated
    ]
    if not taken:
        return None
    told = []
    for card, used in taken:
        by = ", ".join(f"{one.name or 'not visible here'} ({one.pid})" for one in card.processes or ())
        told.append(
            f"{name_of(card)}: {units.capacity(used)} {f'by {by}' if by else 'by processes that are not listed'}"
        )
    seen = Seen("; ".join(told), {name_of(card): used for card, used in taken})
    if not all(_is_for_a_screen(card) for card, _ in taken):
        return seen
    return replace(seen, verdict="info", title="a screen's programs hold memory of this GPU")


def _is_for_a_screen(card: Device) -> bool:
    """Whether programs that draw hold it: beside them is no more than a context or two, torch's own among them."""
    computing = [one.used_memory_bytes for one in card.processes or () if "graphics" not in one.kind]
    known = [used for used in computing if used is not None]
    return len(computing) < len(card.processes or ()) and known == computing and sum(known) < FOREIGN_BYTES


def _unread(evidence: Evidence) -> Seen | None:
    """What is not known of cards that torch uses; where it cannot use them, that is told by its rung."""
    if not evidence.torch_works:
        return None
    silent = [name_of(card) for card in evidence.cards if card.nvml_index is None and card.parent_uuid is None]
    # A Jetson has no NVML.
    if silent and not evidence.stack.jetson:
        why = evidence.driver.nvml_error or "it does not list them"
        return Seen(f"NVML tells nothing of {', '.join(silent)}: {why}", {"devices": silent, "reason": why})
    return taken_over("devices.unread")(evidence)


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="environment.launch_blocking",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="every kernel is waited for",
        meaning="CUDA_LAUNCH_BLOCKING is for debugging: an error is then raised where it arises. Left over it makes "
        "everything slower, because the host and the device no longer work at the same time.",
        fix="unset CUDA_LAUNCH_BLOCKING",
        judge=_launch_blocking,
        source="CUDA C++ Programming Guide, environment variables",
    ),
    Condition(
        id="environment.left_over",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="variables of a debugger or a profiler are set",
        meaning="They load code into every process that uses CUDA, or change how it runs.",
        fix="unset them",
        judge=_left_over,
        source="DCGM, software test, bad environment variables",
    ),
    Condition(
        id="environment.small_shm",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="this container's shared memory is small",
        meaning="A DataLoader's workers hand their batches over in /dev/shm. Where it is full they die with a bus "
        "error.",
        fix="start the container with --shm-size=8g or --ipc=host",
        judge=_small_shm,
        texts=(r"DataLoader worker \(pid.*\) is killed by signal: Bus error", r"insufficient shared memory \(shm\)"),
    ),
    Condition(
        id="devices.persistence",
        rung=None,
        verdict="info",
        certainty="proof",
        title="the driver starts anew for each program",
        meaning="Without persistence mode, or a program that holds the card, the driver lets go of it at each end: "
        "the next start takes seconds, and settings are lost.",
        fix="sudo systemctl enable --now nvidia-persistenced",
        judge=_persistence,
    ),
    Condition(
        id="devices.foreign_memory",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="others hold memory of this GPU",
        meaning="What is taken is not there for you: batches that fitted yesterday run out of memory.",
        fix="gpucheck devices --processes",
        judge=_foreign_memory,
    ),
    Condition(
        id="devices.answers",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="a card does not answer its driver",
        meaning="NVML lists the card, and asking it fails: it fell off the bus, or it needs a reset.",
        fix="look for Xid messages in `sudo dmesg`",
        judge=taken_over("devices.answers"),
        texts=(r"GPU is lost", r"Unable to determine the device handle"),
        source="NVML, nvmlReturn_t 15 and 16",
    ),
    Condition(
        id="devices.recovery_action",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="the driver asks for a recovery action",
        meaning="The driver itself says what the card needs before it can be relied on.",
        fix="do what the driver asks for",
        judge=taken_over("devices.recovery_action"),
        source="NVML, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    ),
    Condition(
        id="devices.remapped_rows",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="faulty memory rows",
        meaning="A card replaces faulty rows of its memory by spares. One that could not be replaced is a fault that "
        "stays; one that waits for the next reset is in use until then, and a warning.",
        fix="take the card out of use and have it replaced",
        judge=taken_over("devices.remapped_rows"),
        source="NVML, nvmlDeviceGetRemappedRows",
    ),
    Condition(
        id="devices.remap_banks",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="banks of memory without spare rows",
        meaning="Each bank of a card's memory has spare rows for its faulty ones. Where a bank has none left, its next "
        "faulty row cannot be replaced; few left are a remark.",
        fix="plan to have the card replaced",
        judge=taken_over("devices.remap_banks"),
        source="NVML, nvmlDeviceGetRowRemapperHistogram",
    ),
    Condition(
        id="devices.sram_ecc",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="errors of the on-chip memory (SRAM)",
        meaning="Caches and registers have no spares. NVML itself says when a card has more uncorrected errors there "
        "than it may have: NVIDIA then replaces it. Any since the driver was loaded is a failure as well.",
        fix="take the card out of use and have it replaced",
        judge=taken_over("devices.sram_ecc"),
        source="NVML, nvmlDeviceGetSramEccErrorStatus",
    ),
    Condition(
        id="devices.retired_pages",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="memory pages were retired",
        meaning="Cards up to Turing take faulty pages of their memory out of use; later ones replace rows. A few are "
        "no harm, one that waits is still in use until the next reset, and a card that has none to spare is replaced.",
        fix="reset the card; where the limit is reached, have it replaced",
        judge=taken_over("devices.retired_pages"),
        source="NVIDIA, Dynamic Page Retirement: 64 pages at most; DCGM's diagnostics fail from 63 on, and warn here "
        "beyond 15 after uncorrected errors",
    ),
    Condition(
        id="devices.ecc",
        rung=None,
        verdict="fail",
        certainty="proof",
        title="uncorrected memory errors",
        meaning="Counted since the driver was loaded: results since then may be wrong.",
        fix="reset the card; if they return, have it replaced",
        judge=taken_over("devices.ecc"),
        source="NVML, nvmlDeviceGetTotalEccErrors",
    ),
    Condition(
        id="devices.unread",
        rung=None,
        verdict="inconclusive",
        certainty="proof",
        title="the health of a card is not known",
        meaning="NVML has this figure for the card, and did not tell it: an error, no permission, a call that never "
        "returned, or an answer that cannot be true. What is not supported does not count.",
        fix="read it again; if it stays so, look for Xid messages in `sudo dmesg`",
        judge=_unread,
        source="NVML, nvmlReturn_t",
    ),
)
