"""What NVIDIA's kernel modules show of themselves in /proc and /sys, and the rights of their nodes."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck.machine import child

ROOT = Path("/")
# Below /proc/driver and /sys/module, as patterns; the rest there is counters or can hang a wedged card.
FILES = (
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/registry",
    "proc/driver/nvidia/gpus/*/information",
    "proc/driver/nvidia/capabilities/mig/*",
    "sys/module/nvidia*/version",
    "sys/module/nvidia*/srcversion",
    "sys/module/nvidia*/initstate",
    "sys/module/nvidia*/refcnt",
    "sys/module/nvidia*/taint",
    "sys/module/nvidia_uvm/parameters/*",
    "sys/module/nvidia_drm/parameters/*",
    "sys/module/nouveau/initstate",
    "etc/nv_tegra_release",
)
# The longest of them on a machine with eight cards is some kilobytes.
MOST_CHARACTERS = 64 * 2**10
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node as `ls -l` shows it: its rights, its owner's and its group's number, and its own two numbers."""

    path: str
    mode: str
    uid: int
    gid: int
    major: int | None = None
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class DriverState:
    """The files by their paths, each with its text or, in `refused`, why it cannot be read; and the nodes."""

    files: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()


def read(root: Path = ROOT) -> DriverState:
    """Read what is there; on a machine without the driver that is nothing.

    In a child: a file of a card that is wedged may never be read to its end.
    """
    ended = child.run(child.python_argv(__name__, str(root)), TIMEOUT_S)
    files: dict[str, str] = {}
    refused: dict[str, str] = {}
    begun = None
    for line in ended.stdout.splitlines():
        said = json.loads(line)
        begun = said["path"]
        if "text" in said:
            files[begun] = said["text"]
        elif "refused" in said:
            refused[begun] = said["refused"]
    if begun is not None and begun not in files and begun not in refused:
        refused[begun] = f"could not be read within {TIMEOUT_S:g} s"
    return DriverState(files, refused, _nodes(root))


def main() -> None:
    """The child: a line as a file's reading begins, and one with its text or why it cannot be read."""
    root = Path(sys.argv[1])
    for path in (path for pattern in FILES for path in sorted(root.glob(pattern)) if not path.is_dir()):
        shown = f"/{path.relative_to(root).as_posix()}"
        _say({"path": shown})
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                _say({"path": shown, "text": file.read(MOST_CHARACTERS)})
        except OSError as error:
            _say({"path": shown, "refused": os.strerror(error.errno or 0)})


def _say(line: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _nodes(root: Path) -> tuple[DeviceNode, ...]:
    places = [root / "dev", root / "dev/nvidia-caps"]
    found = []
    for place in places:
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        for name in names:
            if not re.match(r"nvidia|dxg$|nvhost|nvmap$", name):
                continue
            try:
                status = (place / name).lstat()
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                continue
            is_device = stat.S_ISCHR(status.st_mode)
            found.append(
                DeviceNode(
                    f"/{(place / name).relative_to(root).as_posix()}",
                    stat.filemode(status.st_mode),
                    status.st_uid,
                    status.st_gid,
                    os.major(status.st_rdev) if is_device else None,
                    os.minor(status.st_rdev) if is_device else None,
                )
            )
    return tuple(found)
