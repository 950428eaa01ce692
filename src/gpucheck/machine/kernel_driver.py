"""The state of NVIDIA's kernel driver in /sys, /dev and the kernel's log, all read under `root`, for tests."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpucheck.machine import child
from gpucheck.machine.host import ROOT
from gpucheck.machine.nvml_fields import RECOVERY_ACTIONS
from gpucheck.report.facts import Driver, XidError

# The most of the log that is read; a kernel keeps less by default.
LOG_BYTES = 4 * 2**20
# The journal has the kernel's log for members of its group, even if only root may read /dev/kmsg.
JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000", "-o", "short-monotonic")
JOURNAL_TIMEOUT_S = 2.0
_NVIDIAS = re.compile(r"NVRM|nvidia|nouveau|request_free_mem_region|Key was rejected|Loading of .*module.* rejected")


def log(root: Path = ROOT, *, journal: bool = True) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the kernel's lines about NVIDIA's driver, oldest first, with seconds since boot; or None and why not."""
    # Systemd's journal is read if only root may read the kernel's own device.
    lines, refused = log_from_device(root / "dev/kmsg")
    if lines is None and journal and root == ROOT:
        lines = log_from_journal()
    return (None, refused) if lines is None else (lines, None)


def log_from_device(path: Path) -> tuple[tuple[str, ...] | None, str | None]:
    """Return /dev/kmsg from its first record to its current end, without waiting for more."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        return None, os.strerror(error.errno or 0)
    records: list[str] = []
    taken = 0
    try:
        while taken < LOG_BYTES:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:  # the end
                break
            except BrokenPipeError:  # the record was overwritten in the meantime; the next read continues after it
                continue
            if not record:
                break
            taken += len(record)
            records += record.decode("utf-8", "replace").splitlines()
    except OSError as error:
        if not records:
            return None, os.strerror(error.errno or 0)
    finally:
        os.close(handle)
    return relevant(records), None


def log_from_journal() -> tuple[str, ...] | None:
    """Return the journal's copy of the log; None if there is no journal, or it shows this user nothing."""
    with contextlib.suppress(OSError):
        journal = child.run(JOURNAL, JOURNAL_TIMEOUT_S)
        # The journal appears empty to a user outside its group.
        if journal.returncode == 0 and journal.stdout.strip():
            return relevant(journal.stdout.splitlines())
    return None


def relevant(records: Iterable[str]) -> tuple[str, ...]:
    """Return the lines about NVIDIA's driver."""
    # A record of /dev/kmsg is `priority,number,microseconds,flags;text`, with `\x0a` for a line break. Lines that begin
    # with a blank name its device.
    lines = []
    for record in records:
        if record.startswith(" ") and "=" in record and "NVRM" not in record:
            continue
        match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", record)
        stamp, text = (f"[{int(match[1]) / 1e6:.6f}] ", match[2]) if match else ("", record)
        lines += [stamp + line for line in text.split("\\x0a") if _NVIDIAS.search(line)]
    return tuple(lines)


# -- events in it: Xid errors of GPUs, SXid errors of NVSwitches, GPUs that did not start ------------------------------

_STAMP = re.compile(r"^\[ *(\d+\.\d+)\]")
XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)(?P<rest>.*)")
SXID = re.compile(r"nvidia-nvswitch\d*: SXid \((?P<device>[^)]*)\): (?P<number>\d+),? *(?P<rest>.*)")
# Lines with details of the preceding event, which may have been overwritten. The driver's number for fatal is 1.
_DETAIL = re.compile(r"Severity (?P<severity>\d)|Data\b")
# The driver's word decides, because some numbers are printed with different words.
_WORD = re.compile(r"(?P<word>Fatal|Non-fatal|Correctable)\b,? *", re.IGNORECASE)
# The SXid that ends SXid 10004 (too hot).
_COOLED = {10005: 10004}
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})", re.IGNORECASE)
# Xid 154: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`. The number may be missing.
_ACTION = re.compile(r"recovery action changed from .* to (?:0x(?P<number>[0-9a-f]+)|(?P<words>\w.*))", re.IGNORECASE)
RECOVERY = 154
# The module logs this as it loads. It sets up every GPU again, so earlier faults are past.
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
# The line that is logged as an NVSwitch is set up, with its address or without.
_PROBED = re.compile(r"nvidia-nvswitch\d*: Probing device(?P<device>.*)")
# The driver's lines about NVLink, apart from Xid and SXid errors.
NVLINK = re.compile(r"NVRM: (?:GPU\d+ )?knvlink\w+: .*\bfailed\b.*", re.IGNORECASE)
# The lines about a GPU that does not start, the most specific first.
FALLEN = r"fallen off the bus"
NO_POWER = r"does not have the necessary power cables connected|Insufficient External Power"
UNSUPPORTED = r"installed in this system is not supported by the|supported through the NVIDIA .* Legacy drivers"
OPEN_NEEDED = r"requires use of the NVIDIA open kernel modules"
NO_ROOM = r"This PCI I/O region assigned to your NVIDIA device is invalid"
NO_GSP = r"Cannot initialize GSP firmware|_kgspBootGspRm|GSP\b.*\b(failed|timed? ?out|error)"
NOT_STARTED = r"RmInitAdapter failed|rm_init_adapter failed"
START = tuple(
    re.compile(reason, re.IGNORECASE)
    for reason in (FALLEN, NO_POWER, UNSUPPORTED, OPEN_NEEDED, NO_ROOM, NO_GSP, NOT_STARTED)
)


_Errors = dict[tuple[int, str], XidError]
# The fields of `Driver` that come from the log.
LOGGED = ("xids", "sxids", "not_started", "nvlink_failures")


def events(lines: Sequence[str], booted_s: float | None = None, driver: Driver | None = None) -> Driver:
    """Return the driver with the events of these lines: Xid errors, once per number and GPU; SXid errors, once per
    number and NVSwitch; why GPUs did not start, by PCI address; and other failures of NVLink.

    `booted_s` is when the kernel's clock began, in seconds since 1970; without it, errors have no time.
    """
    xids: _Errors = {}
    sxids: _Errors = {}
    reasons: dict[str, str] = {}
    links: dict[str, None] = {}
    for place, line in enumerate(lines):
        if _LOADED.search(line):
            _end(xids)
            _end(sxids)
            reasons, links = {}, {}
        elif probed := _PROBED.search(line):
            _end(sxids, _address(probed["device"]) if _ADDRESS.search(probed["device"]) else None)
        elif match := XID.search(line):
            _add_xid(xids, match, _time_of(line, booted_s))
        elif match := SXID.search(line):
            _add_sxid(sxids, match, _time_of(line, booted_s))
        elif match := NVLINK.search(line):
            links[match[0]] = None
        elif (rank := _rank(line)) is not None:
            # The message has several lines, and only one of them has the address.
            near = [line, *reversed(lines[max(place - 2, 0) : place]), *lines[place + 1 : place + 2]]
            near = [other for other in near if _stamp(other) == _stamp(line)]
            address = next((_address(other) for other in near if "NVRM" in other and _ADDRESS.search(other)), None)
            if address is not None and (address not in reasons or rank <= (_rank(reasons[address]) or 0)):
                reasons[address] = line[line.index("NVRM") :].strip()
            if address is not None and rank == 0:
                xids.setdefault((79, address), XidError(79, address, _time_of(line, booted_s)))
    return replace(
        driver or Driver(),
        xids=tuple(xids.values()),
        sxids=tuple(sxids.values()),
        not_started=reasons,
        nvlink_failures=tuple(links),
    )


def _stamp(line: str) -> str | None:
    match = _STAMP.match(line)
    return None if match is None else match[1]


def _rank(line: str) -> int | None:
    """Return the rank of a line about a GPU that does not start; None for any other line."""
    return next((rank for rank, pattern in enumerate(START) if "NVRM" in line and pattern.search(line)), None)


def _end(errors: _Errors, address: str | None = None) -> None:
    """Mark the errors of this device, by default of all, as past."""
    for key, error in errors.items():
        if address in (None, error.pci_address):
            errors[key] = replace(error, is_past=True)


def _add_xid(errors: _Errors, match: re.Match[str], at: str | None) -> None:
    number, address = int(match["number"]), _address(match["device"])
    action = _ACTION.search(match["rest"]) if number == RECOVERY else None
    asked = None if action is None else _asked(action)
    if asked == "none":
        return _end(errors, address)
    before = errors.get((number, address))
    count = 1 if before is None else before.count + 1
    is_fatal = None if "atal" not in match["rest"] else "onfatal" not in match["rest"].lower().replace("-", "")
    errors[number, address] = XidError(number, address, at, count, asked, is_fatal)


def _add_sxid(errors: _Errors, match: re.Match[str], at: str | None) -> None:
    number, address = int(match["number"]), _address(match["device"])
    before, cooled = errors.get((number, address)), errors.get((_COOLED.get(number, 0), address))
    detail, word = _DETAIL.match(match["rest"]), _WORD.match(match["rest"])
    if cooled is not None:
        errors[cooled.number, address] = replace(cooled, is_past=True)
    elif number == 22013 or number in _COOLED or (detail is not None and before is not None):
        return  # NVIDIA says to ignore 22013
    elif detail is not None:
        is_fatal = None if detail["severity"] is None else detail["severity"] == "1"
        errors[number, address] = XidError(number, address, at, is_fatal=is_fatal)
    else:
        is_fatal = None if word is None else word["word"].lower() == "fatal"
        if before is not None and not before.is_past and before.is_fatal:
            is_fatal = True
        text = (match["rest"] if word is None else match["rest"][word.end() :]).strip()
        count = 1 if before is None else before.count + 1
        errors[number, address] = XidError(number, address, at, count, None, is_fatal, text=text or None)


def _asked(action: re.Match[str]) -> str | None:
    """Return the recovery action of a line of Xid 154, as in `RECOVERY_ACTIONS`; None if it is unknown."""
    if action["number"]:
        number = int(action["number"], 16)
        return RECOVERY_ACTIONS.get(number, f"action {number}")
    words = action["words"].lower().replace(" ", "_")
    return next((name for name in RECOVERY_ACTIONS.values() if words.startswith(name)), None)


def _address(text: str) -> str:
    """Return the PCI address in sysfs's format; any other text is returned unchanged."""
    match = _ADDRESS.search(text)
    return f"{match[1][-4:]}:{match[2]}:{match[3]}.0".lower() if match else text


def _time_of(line: str, booted_s: float | None) -> str | None:
    stamp = _stamp(line)
    if stamp is None or booted_s is None:
        return None
    moment = datetime.datetime.fromtimestamp(booted_s + float(stamp), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
