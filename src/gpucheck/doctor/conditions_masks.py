"""CUDA starts and shows other devices than those that were meant: masks, order, MIG, and doors that disagree.

CUDA_VISIBLE_DEVICES is read entry by entry: by CUDA's rules, and by torch's where they differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import units
from gpucheck.cards.card import unlisted
from gpucheck.doctor.condition import Condition, Evidence, Seen
from gpucheck.doctor.conditions_kernel import FALLEN
from gpucheck.report.facts import Device


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: the device that it shows, by its place in the order without a mask, else why it shows none."""

    text: str
    index: int | None = None
    problem: str | None = None
    is_odd: bool = False

    @property
    def told(self) -> str:
        if self.index is None:
            return f"{self.text!r} shows nothing: {self.problem}"
        return f"CUDA reads {self.text!r} as {self.index}" if self.is_odd else f"{self.text!r} shows GPU {self.index}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole mask: its entries, and which devices it shows."""

    entries: tuple[Entry, ...]
    shown: tuple[int, ...]

    @property
    def is_malformed(self) -> bool:
        """Return whether an entry is no number and no UUID."""
        return any(entry.is_odd for entry in self.entries)


def read_mask(value: str, uuids: Sequence[str | None]) -> Reading:
    """The mask by CUDA's rules, on a machine with a GPU for each of `uuids`.

    The first entry that names no GPU ends the list, and one that is named twice empties it (CUDA C++ Programming Guide,
    CUDA_VISIBLE_DEVICES). A UUID may be cut short as long as it fits one GPU.
    """
    entries: list[Entry] = []
    shown: list[int] = []
    ended = False
    for text in value.split(","):
        entry = _entry(text, uuids)
        if ended:
            entries.append(Entry(text, None, "it is after the end of the list", entry.is_odd))
            continue
        if entry.index is not None and entry.index in shown:
            entries.append(Entry(text, None, "a GPU that is listed twice empties the list", entry.is_odd))
            shown, ended = [], True
            continue
        entries.append(entry)
        if entry.index is None:
            ended = True
        else:
            shown.append(entry.index)
    return Reading(tuple(entries), tuple(shown))


def _entry(text: str, uuids: Sequence[str | None]) -> Entry:
    word = text.strip()
    if not word:
        return Entry(text, None, "it is empty")
    if re.match(r"(GPU|MIG)-", word):
        fits = [place for place, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(word)]
        if len(fits) == 1:
            return Entry(text, fits[0])
        return Entry(text, None, "it matches several GPUs" if fits else "no GPU has this UUID")
    number = leading_number(word)
    is_odd = re.fullmatch(r"-?\d+", word) is None
    if number is None:
        return Entry(text, None, "it is neither a number nor a UUID", is_odd)
    if number < 0:
        return Entry(text, None, "a negative number ends the list", is_odd)
    # A number is a card's: MIG instances have UUIDs alone.
    count = sum(not (uuid or "").startswith("MIG-") for uuid in uuids)
    if number >= count:
        return Entry(text, None, f"{count} GPU{'s' * (count != 1)} exist{'s' * (count == 1)}, counted from 0", is_odd)
    return Entry(text, number, None, is_odd)


def leading_number(word: str) -> int | None:
    """The number that a word begins with, as C's strtoul reads it: `0x1` is 0 and `1gpu` is 1."""
    match = re.match(r"[+-]?\d+", word)
    return int(match[0]) if match else None


def torch_count(value: str, uuids: Sequence[str | None]) -> int | None:
    """Return how many devices torch's own parser makes of it, with which it counts before CUDA starts; None: it does
    not.

    `_parse_visible_devices` and `_device_count_nvml` of torch/cuda/__init__.py: a list that begins with a UUID takes
    nothing but UUIDs, one that begins with a number nothing but numbers, and MIG instances are left to CUDA.
    """
    if value.startswith("MIG-"):
        return None
    if value.startswith("GPU-"):
        words: list[str] = []
        for word in value.split(","):
            if word in words:
                return 0
            if not word.startswith("GPU-"):
                break
            words.append(word)
        return len(read_mask(",".join(words), uuids).shown)
    numbers: list[int] = []
    for word in value.split(","):
        number = leading_number(word.strip())
        number = -1 if number is None else number
        if number in numbers:
            return 0
        if number < 0:
            break
        numbers.append(number)
    return next((place for place, number in enumerate(numbers) if number >= len(uuids)), len(numbers))


# -- the conditions ----------------------------------------------------------------------------------------------------

MASK = "CUDA_VISIBLE_DEVICES"
# cuInit's answers after which the number of devices is libcuda's honest word: success and CUDA_ERROR_NO_DEVICE.
HONEST = (0, 100)
# CUDA_ERROR_INVALID_DEVICE: with a mask, cuInit's word that an entry of it is no device.
REFUSED = 101


def _listed(evidence: Evidence) -> list[Device]:
    """The cards that NVML lists, without their MIG instances, in its order."""
    found = [card for card in evidence.cards if card.nvml_index is not None and card.parent_uuid is None]
    return sorted(found, key=lambda card: card.nvml_index or 0)


def _shown(evidence: Evidence) -> list[Device]:
    return [card for card in evidence.cards if card.cuda_index is not None]


def _is_sliced(evidence: Evidence) -> bool:
    return bool(_instances(evidence)) or any(card.mig is not None and card.mig.enabled for card in evidence.cards)


def _instances(evidence: Evidence) -> list[Device]:
    """MIG instances. One that CUDA does not show has no index at all."""
    return [device for device in evidence.facts.devices if device.parent_uuid is not None]


def _unmasked(evidence: Evidence) -> list[str | None]:
    """The UUIDs that a mask chooses from. CUDA's order without a mask is not known: for counting any order serves."""
    return [device.uuid for device in (*_listed(evidence), *_instances(evidence))]


def _seen(evidence: Evidence, reading: Reading, value: str, told: str) -> Seen:
    by_torch = torch_count(value, _unmasked(evidence))
    message = f"{MASK}={value!r} {told}: {'; '.join(entry.told for entry in reading.entries)}"
    if by_torch is not None and by_torch != len(reading.shown):
        message += f"; torch's own parser, which counts before CUDA starts, reads {by_torch}"
    return Seen(
        message,
        {
            MASK: value,
            "entries": [{"text": entry.text, "index": entry.index, "why": entry.problem} for entry in reading.entries],
            "shown": len(_shown(evidence)),
            "by_cuda_rules": len(reading.shown),
            "by_torch": by_torch,
        },
    )


def _mask(evidence: Evidence) -> tuple[str, Reading] | None:
    """The mask and its reading, where CUDA says honestly what it shows under it."""
    value = evidence.value(MASK)
    if value is None or not evidence.is_nvidia_here or evidence.driver.cuinit_code not in (*HONEST, REFUSED):
        return None
    return value, read_mask(value, _unmasked(evidence))


def _hides_all(evidence: Evidence) -> Seen | None:
    found = _mask(evidence)
    if found is None or _shown(evidence):
        return None
    value, reading = found
    if evidence.driver.cuinit_code == REFUSED:
        return _seen(evidence, reading, value, f"is refused: cuInit returns {REFUSED}")
    # Without NVML's list every entry looks like too large a number: then only what hides whatever is there counts.
    if reading.shown or (not _listed(evidence) and not _hides_whatever_is_there(value)):
        return None
    count = len(_listed(evidence))
    return _seen(evidence, reading, value, f"shows CUDA none of {count} GPUs" if count else "shows CUDA nothing")


def _hides_whatever_is_there(value: str) -> bool:
    # With room for any number, an entry fails by its own form alone.
    return not read_mask(value, [None] * 2**16).shown and not value.strip().startswith(("GPU-", "MIG-"))


def _malformed(evidence: Evidence) -> Seen | None:
    found = _mask(evidence)
    if found is None or not _shown(evidence) or not found[1].is_malformed:
        return None
    value, reading = found
    count = len(_shown(evidence))
    told = f"has entries that are neither numbers nor UUIDs and shows {count} GPU{'s' * (count != 1)}"
    return _seen(evidence, reading, value, told)


def _shows_fewer(evidence: Evidence) -> Seen | None:
    found = _mask(evidence)
    shown = len(_shown(evidence))
    if found is None or not shown or found[1].is_malformed or _is_sliced(evidence):
        return None
    value, reading = found
    asked = len(reading.entries)
    if asked <= shown:
        return None
    return _seen(evidence, reading, value, f"asks for {asked} GPUs and shows {shown}")


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


def _one_instance(evidence: Evidence) -> Seen | None:
    instances = _instances(evidence)
    shown = [card for card in instances if card.cuda_index is not None]
    if len(instances) < 2 or len(shown) != 1:
        return None
    return Seen(f"{len(instances)} instances exist", {"instances": len(instances), "shown": shown[0].uuid})


def _cuda_shows_fewer(evidence: Evidence) -> Seen | None:
    listed, shown = _listed(evidence), _shown(evidence)
    if evidence.driver.cuinit_code != 0 or evidence.value(MASK) is not None or _is_sliced(evidence):
        return None
    usable = [card for card in listed if card.state in (None, "not shown by CUDA")]
    if not usable or len(shown) >= len(usable):
        return None
    left = [card.uuid for card in usable if card.cuda_index is None]
    return Seen(
        f"NVML lists {len(listed)}, but CUDA shows {len(shown)}, without a mask",
        {"nvml": len(listed), "cuda": len(shown), "not_shown": left},
        verdict="warn" if shown else None,
    )


def _not_listed(evidence: Evidence) -> Seen | None:
    if not _listed(evidence):
        return None
    found = unlisted(evidence.facts)
    if found is None:
        return None
    # One that the kernel's log calls fallen is lost, whatever the driver lists.
    lines = evidence.logged(FALLEN)
    addresses = found.evidence["pci_addresses"]
    fallen = [address for address in addresses if any(address.rpartition(".")[0] in line for line in lines)]
    if not fallen:
        return Seen(found.message, found.evidence, found.fix, title=found.title)
    message = f"{', '.join(fallen)} fell off the bus, according to the kernel log; {found.message}"
    title = f"{len(fallen)} GPU{'s' * (len(fallen) != 1)} lost: fell off the bus"
    fix = "power-cycle the machine; if it happens again, reseat the GPU and its power cables"
    return Seen(message, {**found.evidence, "fallen": fallen}, fix, verdict="fail", title=title)


def _nvml_check(evidence: Evidence) -> Seen | None:
    probe, code = evidence.torch, evidence.driver.cuinit_code
    asked = evidence.value("PYTORCH_NVML_BASED_CUDA_CHECK")
    if probe is None or not probe.available or asked in (None, "0") or code in (None, 0):
        return None
    return Seen(
        f"torch.cuda.is_available() is True, but cuInit returns {code}",
        {"PYTORCH_NVML_BASED_CUDA_CHECK": asked, "cuinit_code": code, "device_count": probe.count},
    )


def _count_disagrees(evidence: Evidence) -> Seen | None:
    probe = evidence.torch
    if probe is None or probe.count is None or probe.cuda is None or evidence.driver.cuinit_code != 0:
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
    Condition(
        id="mask.hides_all",
        rung="devices",
        certainty="proof",
        title="CUDA_VISIBLE_DEVICES hides every GPU",
        meaning="CUDA shows a process only the GPUs that this variable names. An empty value, -1, or a first entry "
        "that matches no GPU hides all of them. torch then finds no GPU and gives no reason.",
        fix="unset CUDA_VISIBLE_DEVICES",
        judge=_hides_all,
        texts=(r"No CUDA GPUs are available",),
        source="CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES",
    ),
    Condition(
        id="mask.malformed",
        rung="devices",
        verdict="warn",
        certainty="proof",
        title="CUDA reads CUDA_VISIBLE_DEVICES differently than expected",
        meaning="An entry is a number or the beginning of a UUID. CUDA reads any other entry only as far as it is a "
        "number, or ends the list there, without a message: `0;1` is 0 and `0x1` is 0.",
        fix="export CUDA_VISIBLE_DEVICES with numbers or UUIDs and commas between them; `nvidia-smi -L` lists both",
        judge=_malformed,
        source="CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; torch/cuda/__init__.py, _parse_visible_devices",
    ),
    Condition(
        id="mask.shows_fewer",
        rung="devices",
        verdict="warn",
        certainty="proof",
        title="CUDA_VISIBLE_DEVICES names more GPUs than CUDA shows",
        meaning="The first entry that matches no GPU ends the list, so the GPUs after it are hidden although they "
        "exist.",
        fix="use only GPUs that exist; `nvidia-smi -L` lists them",
        judge=_shows_fewer,
        source="CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES",
    ),
    Condition(
        id="devices.order",
        verdict="warn",
        certainty="proof",
        title="CUDA and nvidia-smi number the GPUs differently",
        meaning="Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA counts the fastest GPU first, and nvidia-smi counts by "
        "PCI address. With different GPU models, `cuda:0` and nvidia-smi's 0 are then different GPUs.",
        fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        judge=_order,
        source="pytorch issue 86539",
    ),
    Condition(
        id="devices.one_instance",
        verdict="info",
        certainty="proof",
        title="CUDA shows one MIG instance of several",
        meaning="A process can use only one MIG instance.",
        fix="start one process for each instance, each with its UUID in CUDA_VISIBLE_DEVICES; `nvidia-smi -L` "
        "lists them",
        judge=_one_instance,
        source="NVIDIA Multi-Instance GPU User Guide; pytorch issue 130181",
    ),
    Condition(
        id="devices.cuda_shows_fewer",
        rung="devices",
        title="NVML lists GPUs that CUDA does not show",
        meaning="Both use the same driver and should agree. CUDA leaves out a GPU that it cannot open: its device "
        "node is missing or not allowed in this container, another process uses it exclusively, or it has failed.",
        settle="`sudo dmesg` and `nvidia-smi -q -d COMPUTE` show which",
        fix="ls -l /dev/nvidia*; nvidia-smi -q -d COMPUTE; sudo dmesg | grep -i -e nvrm -e xid",
        judge=_cuda_shows_fewer,
    ),
    Condition(
        id="devices.unlisted",
        verdict="warn",
        certainty="proof",
        title="the driver does not list all NVIDIA devices on the PCI bus",
        meaning="The bus has more GPUs than the driver lists. The missing GPU is bound to another kernel driver, is "
        "not supported by this driver, or failed to start. It is a failure if the kernel log says that it fell off "
        "the bus.",
        fix="lspci -k -d 10de:; sudo dmesg | grep -i nvrm",
        judge=_not_listed,
    ),
    Condition(
        id="devices.nvml_check",
        verdict="warn",
        certainty="proof",
        title="torch says CUDA is available, but CUDA does not start",
        meaning="With PYTORCH_NVML_BASED_CUDA_CHECK torch asks NVML instead of CUDA. NVML can answer although CUDA "
        "cannot start, and then the first use of the device fails.",
        fix="unset PYTORCH_NVML_BASED_CUDA_CHECK",
        judge=_nvml_check,
        source="torch/cuda/__init__.py, is_available",
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
        texts=(r"device >= 0 && device < num_gpus.{0,40}INTERNAL ASSERT",),
        source="pytorch issues 110000 and 130181",
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
    return Seen(f"/dev/shm has {units.capacity(size)}", {"shm_bytes": size})


ENVIRONMENT: tuple[Condition, ...] = (
    Condition(
        id="environment.launch_blocking",
        verdict="warn",
        certainty="proof",
        title="CUDA_LAUNCH_BLOCKING makes every kernel wait",
        meaning="CUDA_LAUNCH_BLOCKING is for debugging: errors are raised where they occur. It makes everything "
        "slower, because the host and the device no longer work at the same time.",
        fix="unset CUDA_LAUNCH_BLOCKING",
        judge=_launch_blocking,
        source="CUDA C++ Programming Guide, environment variables",
    ),
    Condition(
        id="environment.left_over",
        verdict="warn",
        certainty="proof",
        title="variables of a debugger or a profiler are set",
        meaning="They load code into every process that uses CUDA or change how it runs.",
        fix="unset them",
        judge=_left_over,
        source="DCGM, software test, bad environment variables",
    ),
    Condition(
        id="environment.small_shm",
        verdict="warn",
        title="this container has little shared memory",
        meaning="A DataLoader's workers pass their batches through /dev/shm. If it is full, they die with a bus error.",
        fix="start the container with --shm-size=8g or --ipc=host",
        judge=_small_shm,
        texts=(r"DataLoader worker \(pid.*\) is killed by signal: Bus error", r"insufficient shared memory \(shm\)"),
    ),
)
