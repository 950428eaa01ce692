"""The kernel's own lines about NVIDIA's driver. Where they may not be read there are none, and that is no good sign."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpucheck.machine import child

ROOT = Path("/")
# How much of the log is looked through; a kernel keeps less by default.
LOG_BYTES = 4 * 2**20
# The journal holds the log for those of its group where /dev/kmsg is root's alone.
JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000", "-o", "short-monotonic")
JOURNAL_TIMEOUT_S = 2.0
_NVIDIAS = re.compile(r"NVRM|nvidia|nouveau|request_free_mem_region|Key was rejected|Loading of .*module.* rejected")


def read(root: Path = ROOT, *, journal: bool = True) -> tuple[tuple[str, ...] | None, str | None]:
    """The lines, oldest first, each with its seconds since boot; None and why where they cannot be read.

    `journal` lets systemd's journal be asked where the kernel's own device is root's alone.
    """
    lines, refused = from_device(root / "dev/kmsg")
    if lines is None and journal and root == ROOT:
        lines = from_journal()
    return (None, refused) if lines is None else (lines, None)


def from_device(path: Path) -> tuple[tuple[str, ...] | None, str | None]:
    """/dev/kmsg from its first record to its end, without waiting for more."""
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
            except BrokenPipeError:  # the record was overwritten meanwhile; the next read goes on after it
                continue
            except OSError as error:
                return (relevant(records), None) if records else (None, os.strerror(error.errno or 0))
            if not record:
                break
            taken += len(record)
            records += record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(handle)
    return relevant(records), None


def from_journal() -> tuple[str, ...] | None:
    """The journal's copy; None where there is no journal, or nothing of it for this user."""
    try:
        told = child.run(JOURNAL, JOURNAL_TIMEOUT_S)
    except OSError:
        return None
    # A user outside the journal's group is shown an empty one.
    return relevant(told.stdout.splitlines()) if told.returncode == 0 and told.stdout.strip() else None


def relevant(records: Iterable[str]) -> tuple[str, ...]:
    """The lines of the records that are about NVIDIA's driver.

    A record of /dev/kmsg is `priority,number,microseconds,flags;text`, a line break in its text is written out as
    `\\x0a`, and lines that begin with a blank tell of the device that it is about.
    """
    found = []
    for record in records:
        if record.startswith(" ") and "=" in record and "NVRM" not in record:
            continue
        match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", record)
        stamp, text = (f"[{int(match[1]) / 1e6:.6f}] ", match[2]) if match else ("", record)
        found += [stamp + line for line in text.split("\\x0a") if _NVIDIAS.search(line)]
    return tuple(found)
