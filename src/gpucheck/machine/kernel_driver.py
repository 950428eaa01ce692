"""Read the kernel log: its lines about NVIDIA's driver, and the events in these lines."""

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

# At most this much of the log is read. By default a kernel stores less.
LOG_BYTES = 4 * 2**20
# Members of the journal's group can read the log there, even if only root may read /dev/kmsg.
JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000", "-o", "short-monotonic")
JOURNAL_TIMEOUT_S = 2.0
_RELEVANT = re.compile(r"NVRM|nvidia|nouveau|request_free_mem_region|Key was rejected|Loading of .*module.* rejected")


def log(root: Path = ROOT, *, journal: bool = True) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the log's lines about NVIDIA's driver, oldest first, with seconds since boot; or None and the reason."""
    lines, refused = log_from_device(root / "dev/kmsg")
    if lines is None and journal and root == ROOT:
        lines = log_from_journal()
    return (None, refused) if lines is None else (lines, None)


def log_from_device(path: Path) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the lines of /dev/kmsg about NVIDIA's driver, without waiting for new ones; or None and the reason."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        return None, os.strerror(error.errno or 0)
    records: list[str] = []
    bytes_read = 0
    try:
        while bytes_read < LOG_BYTES:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:  # the end of the log
                break
            except BrokenPipeError:  # the kernel has overwritten the record; the next read returns the one after it
                continue
            if not record:
                break
            bytes_read += len(record)
            records += record.decode("utf-8", "replace").splitlines()
    except OSError as error:
        if not records:
            return None, os.strerror(error.errno or 0)
    finally:
        os.close(handle)
    return relevant(records), None


def log_from_journal() -> tuple[str, ...] | None:
    """Return the journal's lines about NVIDIA's driver; None if this user cannot read a journal."""
    with contextlib.suppress(OSError):
        journal = child.run(JOURNAL, JOURNAL_TIMEOUT_S)
        # The journal is empty for a user outside its group.
        if journal.returncode == 0 and journal.stdout.strip():
            return relevant(journal.stdout.splitlines())
    return None


def relevant(records: Iterable[str]) -> tuple[str, ...]:
    # A record of /dev/kmsg is `priority,number,microseconds,flags;text`. The text has `\x0a` for a line break.
    lines = []
    for record in records:
        if record.startswith(" ") and "=" in record and "NVRM" not in record:  # the device of the record before it
            continue
        match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", record)
        stamp, text = (f"[{int(match[1]) / 1e6:.6f}] ", match[2]) if match else ("", record)
        lines += [stamp + line for line in text.split("\\x0a") if _RELEVANT.search(line)]
    return tuple(lines)


# -- events: Xid errors of GPUs, SXid errors of NVSwitches, GPUs that did not start ------------------------------------

_STAMP = re.compile(r"^\[ *(\d+\.\d+)\]")
XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)(?P<rest>.*)")
SXID = re.compile(r"nvidia-nvswitch\d*: SXid \((?P<device>[^)]*)\): (?P<number>\d+),? *(?P<rest>.*)")
# A line with details of the preceding event, whose own line may already be overwritten. Severity 1 is fatal.
_DETAIL = re.compile(r"Severity (?P<severity>\d)|Data\b")
# The driver prints some numbers with different severities, so the word decides.
_WORD = re.compile(r"(?P<word>Fatal|Non-fatal|Correctable)\b,? *", re.IGNORECASE)
# SXid 10005 ends SXid 10004 (too hot).
_COOLED = {10005: 10004}
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})", re.IGNORECASE)
# Xid 154: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`. The number may be missing.
_ACTION = re.compile(r"recovery action changed from .* to (?:0x(?P<number>[0-9a-f]+)|(?P<words>\w.*))", re.IGNORECASE)
RECOVERY = 154
# The kernel module logs this line when it is loaded. It then sets up every GPU again, so earlier errors are past.
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
# The driver logs this line when it sets up an NVSwitch, with or without the address.
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
LOGGED = ("xids", "sxids", "not_started", "nvlink_failures")


def events(lines: Sequence[str], booted_s: float | None = None, driver: Driver | None = None) -> Driver:
    """Return the driver with the events of these lines: one XidError for each number and GPU, or number and NVSwitch.

    `booted_s` is the start of the kernel's clock in seconds since 1970. Without it, errors have no time.
    """
    xids: _Errors = {}
    sxids: _Errors = {}
    reasons: dict[str, str] = {}
    links: dict[str, None] = {}
    for index, line in enumerate(lines):
        if _LOADED.search(line):
            _mark_past(xids)
            _mark_past(sxids)
            reasons, links = {}, {}
        elif probed := _PROBED.search(line):
            _mark_past(sxids, _address(probed["device"]) if _ADDRESS.search(probed["device"]) else None)
        elif match := XID.search(line):
            _add_xid(xids, match, _time_of(line, booted_s))
        elif match := SXID.search(line):
            _add_sxid(sxids, match, _time_of(line, booted_s))
        elif match := NVLINK.search(line):
            links[match[0]] = None
        elif (rank := _rank(line)) is not None:
            # The message has several lines with the same time stamp, and only one of them has the address.
            nearby = [line, *reversed(lines[max(index - 2, 0) : index]), *lines[index + 1 : index + 2]]
            message = [text for text in nearby if _stamp(text) == _stamp(line)]
            address = next((_address(text) for text in message if "NVRM" in text and _ADDRESS.search(text)), None)
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


def _mark_past(errors: _Errors, address: str | None = None) -> None:
    """Mark the errors of the device at this address as past; None means all devices."""
    for key, error in errors.items():
        if address in (None, error.pci_address):
            errors[key] = replace(error, is_past=True)


def _add_xid(errors: _Errors, match: re.Match[str], at: str | None) -> None:
    number, address = int(match["number"]), _address(match["device"])
    action = _ACTION.search(match["rest"]) if number == RECOVERY else None
    requested = None if action is None else _requested_action(action)
    if requested == "none":
        return _mark_past(errors, address)
    earlier = errors.get((number, address))
    count = 1 if earlier is None else earlier.count + 1
    is_fatal = None if "atal" not in match["rest"] else "onfatal" not in match["rest"].lower().replace("-", "")
    errors[number, address] = XidError(number, address, at, count, requested, is_fatal)


def _add_sxid(errors: _Errors, match: re.Match[str], at: str | None) -> None:
    number, address = int(match["number"]), _address(match["device"])
    earlier, cooled = errors.get((number, address)), errors.get((_COOLED.get(number, 0), address))
    detail, word = _DETAIL.match(match["rest"]), _WORD.match(match["rest"])
    if cooled is not None:
        errors[cooled.number, address] = replace(cooled, is_past=True)
    elif number == 22013 or number in _COOLED or (detail is not None and earlier is not None):
        return  # NVIDIA's documentation says to ignore 22013
    elif detail is not None:
        is_fatal = None if detail["severity"] is None else detail["severity"] == "1"
        errors[number, address] = XidError(number, address, at, is_fatal=is_fatal)
    else:
        is_fatal = None if word is None else word["word"].lower() == "fatal"
        if earlier is not None and not earlier.is_past and earlier.is_fatal:
            is_fatal = True
        text = (match["rest"] if word is None else match["rest"][word.end() :]).strip()
        count = 1 if earlier is None else earlier.count + 1
        errors[number, address] = XidError(number, address, at, count, None, is_fatal, text=text or None)


def _requested_action(action: re.Match[str]) -> str | None:
    """Return the action that Xid 154 requests, named as in `RECOVERY_ACTIONS`; None if unknown."""
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
    if (stamp := _stamp(line)) is None or booted_s is None:
        return None
    moment = datetime.datetime.fromtimestamp(booted_s + float(stamp), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
