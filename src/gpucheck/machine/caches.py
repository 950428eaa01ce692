"""The CPU's last-level cache: what a copy must be larger than, or rotate over, to be cold."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path("/")


def last_level_bytes(root: Path = ROOT) -> int | None:
    """Bytes of all last-level caches that this process's cores reach together; None where the system does not tell.

    Read from /sys/devices/system/cpu (Linux). Several cores share one cache: each counts once.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    caches: dict[tuple[int, str], int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        core = int(folder.parent.parent.name.removeprefix("cpu"))
        size, level, kind = _size(folder / "size"), _text(folder / "level"), _text(folder / "type")
        if (cores is None or core in cores) and size and level.isdigit() and kind != "Instruction":
            caches[int(level), _text(folder / "shared_cpu_list")] = size
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _size(path: Path) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", _text(path))
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
