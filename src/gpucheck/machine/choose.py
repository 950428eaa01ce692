"""Choose a command's devices from the facts, open a device, and judge `--require`.

`auto` means the CPU only if no accelerator is present, or if the user hid all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild
from gpucheck.report.finding import Finding, Verdict

if TYPE_CHECKING:  # importing accel imports torch
    from gpucheck.machine.accel import Accel
    from gpucheck.report.events import Notice

MASK = "CUDA_VISIBLE_DEVICES"
# The spaces of C. CUDA recognizes only ASCII spaces and ASCII digits.
_SPACES = " \t\n\v\f\r"
_UUID = re.compile(r"(GPU|MIG)-", re.IGNORECASE)
_TORCH_NAME = re.compile(r"(?P<kind>cuda|xpu|mps|cpu)(?::(?P<index>\d+))?")
# For each device type of torch, the builds of torch that support it. torch calls ROCm's devices cuda.
_BUILDS = {"cuda": ("cuda", "rocm"), "xpu": ("xpu",), "mps": ("cpu",)}


class Choice(NamedTuple):
    """torch's names of the chosen devices, and a notice that explains the choice to the user."""

    ids: tuple[str, ...]
    notice: str | None = None


def check(requested: str, origin: str = "--device") -> None:
    """Raise UsageError for a text that is no device on any machine. `origin` is the option or variable."""
    if requested not in ("auto", "all") and not (_UUID.match(requested) or _TORCH_NAME.fullmatch(requested)):
        fix = "give auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID"
        raise UsageError(f"{origin} {requested!r} is not a device", "", fix)


def choose(requested: str, facts: Facts) -> Choice:
    """Return the requested devices. Raises UsageError, and CannotLook if a device is missing or unusable."""
    check(requested)
    if requested == "auto":
        return _auto(facts)
    if requested == "all":
        ids = _usable(facts)
        return Choice(ids) if ids else _auto(facts)
    if (match := _TORCH_NAME.fullmatch(requested)) is None:
        return Choice((_by_uuid(requested, facts),))
    kind = match["kind"]
    return Choice(("cpu" if kind == "cpu" else _by_index(kind, int(match["index"] or 0), facts),))


def resolve(requested: str, facts: Facts) -> str:
    """Return the requested device. Raises the errors of `choose`, and UsageError for several devices."""
    ids = choose(requested, facts).ids
    if len(ids) > 1:
        raise UsageError(f"--device {requested!r} means {len(ids)} devices", "this command uses one", "name one")
    return ids[0]


def open_named(device_id: str, facts: Facts) -> Accel:
    """Open the device with this torch name. Raises CannotLook if torch cannot use the device."""
    from gpucheck.machine import installed_torch

    installed_torch.load()
    from gpucheck.machine import accel

    device = next((device for device in facts.devices if device.id == device_id), Device(kind=""))
    return accel.open_device(device_id, name=device.name, uuid=device.uuid)


def opened_again(accel: Accel) -> list[Notice]:
    """Return a notice if only the second attempt to open the device worked."""
    from gpucheck.report.events import Notice

    why = f"the first attempt to open {accel.id} failed, the second worked (transient): {accel.transient}"
    return [Notice(why, "warning")] if accel.transient else []


def is_named(device: Device, requested: str) -> bool:
    """Return whether `requested` is the device's kind, its torch name, or the beginning of its UUID."""
    by_uuid = _UUID.match(requested) and (device.uuid or "").lower().startswith(requested.lower())
    return requested in (device.kind, device.id) or bool(by_uuid)


def is_present(facts: Facts) -> bool:
    """Return whether an accelerator is in this machine, by PCI, NVML, libcuda, torch or /dev."""
    host = facts.host or Host()
    # WSL's /dev/dxg does not count, because it exists with every vendor's GPU.
    nodes = [node for node in host.nvidia_device_nodes if node != "/dev/dxg"]
    return bool(nodes or host.nvidia_pci_addresses) or any(device.kind != "cpu" for device in facts.devices)


def is_hidden(environment: Mapping[str, str]) -> bool:
    return environment.get(MASK) in ("", "-1")


def _usable(facts: Facts, kind: str | None = None) -> tuple[str, ...]:
    """Return the accelerators (of one kind) that the facts show to torch's build."""
    build = facts.torch.built_for if facts.torch else None
    supported = [device for device in facts.devices if build in _BUILDS.get(device.kind, ())]
    return tuple(device.id for device in supported if device.id and kind in (None, device.kind))


def _auto(facts: Facts) -> Choice:
    if usable := _usable(facts):
        return Choice(usable[:1])
    if not is_present(facts):
        return Choice(("cpu",), "no accelerator here; using the CPU")
    if is_hidden(facts.environment):
        return Choice(("cpu",), f"{MASK} hides every GPU; using the CPU")
    name = next((device.name for device in facts.devices if device.kind != "cpu" and device.name), "the accelerator")
    fix = "gpucheck doctor, or use the CPU with --device cpu"
    raise CannotLook(f"torch cannot use {name}", why_unusable(facts), fix, finding="device.usable")


def why_unusable(facts: Facts) -> str:
    """Return the reason in the facts why torch cannot use the accelerator of this machine."""
    build = facts.torch or TorchBuild()
    if build.version is None:
        return "torch is not installed"
    if build.built_for == "cpu":
        return f"torch {build.version} is a CPU-only build"
    driver = facts.driver or Driver()
    if driver.cuinit_code:
        return f"cuInit returns {driver.cuinit_code} ({driver.cuinit_error or 'unknown error'})"
    if driver.cuinit_error:
        return driver.cuinit_error
    if driver.nvml_error:
        return f"NVML: {driver.nvml_error}"
    return f"torch {build.version}, built for {build.built_for}, sees no device"


def _by_index(kind: str, index: int, facts: Facts) -> str:
    requested = f"{kind}:{index}"
    usable = _usable(facts, kind)
    for device_id in usable:
        # torch's MPS device has no index.
        if device_id == requested or (device_id == kind and index == 0):
            return device_id
    if usable:
        raise _missing(requested, f"torch sees {', '.join(usable)}")
    if is_hidden(facts.environment) and kind == "cuda":
        raise _missing(requested, f"{MASK} hides every GPU")
    if any(device.kind == kind for device in facts.devices) or (kind == "cuda" and is_present(facts)):
        raise _missing(requested, f"a GPU is present, but {why_unusable(facts)}")
    raise _missing(requested, "this machine has no such device")


def _by_uuid(requested: str, facts: Facts) -> str:
    matches = [device for device in facts.devices if is_named(device, requested)]
    if len(matches) > 1:
        raise UsageError(f"--device {requested!r} matches {len(matches)} devices", "", "give more digits of the UUID")
    if not matches:
        uuids = [device.uuid for device in facts.devices if device.uuid]
        raise _missing(requested, f"UUIDs here: {', '.join(uuids) or 'none'}")
    device = matches[0]
    if device.id is None or device.id not in _usable(facts, device.kind):
        raise _missing(requested, device.state or why_unusable(facts))
    return device.id


def _missing(requested: str, why: str) -> CannotLook:
    fix = "gpucheck devices lists the devices; or use --device cpu"
    return CannotLook(f"--device {requested} not found", why, fix, finding="device.usable")


@dataclass(frozen=True, slots=True)
class UsableDevices:
    """The number and the kind of the accelerators that torch can use. `kind` is None without accelerators."""

    kind: str | None
    count: int
    is_rocm: bool = False


def judge_required(
    require: str | None,
    min_devices: int | None,
    usable: UsableDevices,
    facts: Facts,
    *,
    fix: str | None = "gpucheck doctor says why",
) -> list[Finding]:
    """Return the findings of `--require` and `--min-devices`. `fix` is the fix for a missing kind."""
    kind, count, is_rocm = usable.kind, usable.count, usable.is_rocm
    findings: list[Finding] = []

    def judge(id: str, title: str, is_met: bool, why: str, fix: str | None) -> None:
        devices = f"{count} {kind} device{'s' * (count != 1)}" if kind else "no accelerator"
        evidence = {"kind": kind, "count": count, "rocm": is_rocm}
        verdict: Verdict = "pass" if is_met else "fail"
        findings.append(Finding(id, verdict, title, f"torch can use {devices}{why}", evidence, None if is_met else fix))

    # torch calls ROCm's devices cuda, so both names are correct.
    has_kind = require is None or (count > 0 and require in ((kind, "rocm") if is_rocm else (kind,)))
    if require is not None:
        why = "" if has_kind or count or not is_present(facts) else f": {why_unusable(facts)}"
        judge("device.required", f"--require {require}", has_kind, why, fix)
    if min_devices is not None:
        advice = f"gpucheck devices; check whether {MASK} hides some"
        judge("device.count", f"--min-devices {min_devices}", has_kind and count >= min_devices, "", advice)
    return findings


# -- CUDA_VISIBLE_DEVICES, parsed by CUDA's rules ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the mask. `index` is its GPU without a mask. `is_odd`: no plain number and no UUID, such as `0x1`."""

    text: str
    index: int | None = None
    problem: str | None = None
    is_odd: bool = False

    @property
    def asks(self) -> bool:
        """Return whether the entry asks for a GPU. An empty entry and a negative number do not."""
        return self.text.strip(_SPACES)[:1] not in ("", "-")

    @property
    def effect(self) -> str:
        if self.index is None:
            return f"{self.text!r} shows nothing: {self.problem}"
        return f"CUDA reads {self.text!r} as {self.index}" if self.is_odd else f"{self.text!r} shows GPU {self.index}"


class Mask(NamedTuple):
    entries: tuple[Entry, ...]
    shown: tuple[int, ...]


def read_mask(value: str, uuids: Sequence[str | None]) -> Mask:
    """Parse the mask by CUDA's rules. `uuids` are those of the GPUs, then of MIG instances; empty if unknown."""
    # The first entry that matches no GPU ends the list, and a GPU that is listed twice empties the list (CUDA C++
    # Programming Guide, CUDA_VISIBLE_DEVICES). The beginning of a UUID is enough if it matches only one GPU.
    entries: list[Entry] = []
    shown: list[int] = []
    ended = False
    for text in value.split(","):
        entry = _entry(text, uuids)
        if ended:
            entry = Entry(text, None, "it is after the end of the list", entry.is_odd)
        elif entry.index in shown:
            entry = Entry(text, None, "a GPU that is listed twice empties the list", entry.is_odd)
            shown = []
        elif entry.index is not None:
            shown.append(entry.index)
        ended = entry.index is None
        entries.append(entry)
    return Mask(tuple(entries), tuple(shown))


def _entry(text: str, uuids: Sequence[str | None]) -> Entry:
    if not (word := text.strip(_SPACES)):
        return Entry(text, None, "it is empty")
    if re.match(r"(GPU|MIG)-", word):
        matches = [index for index, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(word)]
        if len(matches) == 1:
            return Entry(text, matches[0])
        return Entry(text, None, "it matches several GPUs" if matches else "no GPU has this UUID")
    # The number is parsed like C's strtoul: `0x1` is 0 and `1gpu` is 1.
    prefix = re.match(r"[+-]?[0-9]+", word)
    is_odd = re.fullmatch(r"-?[0-9]+", word) is None
    if prefix is None:
        return Entry(text, None, "it is neither a number nor a UUID", is_odd)
    # int() refuses more than 4300 digits, but float() does not.
    if (number := int(min(max(float(prefix[0]), -1.0), 2.0**53))) < 0:
        return Entry(text, None, "a negative number ends the list", is_odd)
    # A number can only be a whole GPU. A MIG instance needs its UUID.
    count = sum(not (uuid or "").startswith("MIG-") for uuid in uuids)
    if uuids and number >= count:
        return Entry(text, None, f"{count} GPU{'s' * (count != 1)} exist{'s' * (count == 1)}, counted from 0", is_odd)
    return Entry(text, number, None, is_odd)
