"""Files of NVIDIA's user libraries, looked for as the dynamic loader does, without loading any.

The loader asks LD_LIBRARY_PATH, then its cache (made of the folders in /etc/ld.so.conf), then its built-in folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Built into the loaders of the common distributions.
BUILT_IN = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
)
# Where packages put the driver's libraries and the loader looks only if it is told to.
ELSEWHERE = (
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/nvidia",
    "run/opengl-driver/lib",
    "usr/local/cuda/compat",
    "usr/local/cuda/lib64/stubs",
)
_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Library:
    """A file of one of the driver's libraries: `version` is what its real name ends in, like 580.95.05."""

    name: str
    path: str
    real_path: str
    version: str | None = None

    @property
    def is_stub(self) -> bool:
        """Whether it is a toolkit's stub, which is for linking alone."""
        return is_stub(self.real_path) or is_stub(self.path)

    @property
    def is_compat(self) -> bool:
        """Whether it is of a forward-compatibility package."""
        return is_compat(self.real_path) or is_compat(self.path)


def is_stub(path: str) -> bool:
    """Whether a library there is a toolkit's stub."""
    return "/stubs/" in path


def is_compat(path: str) -> bool:
    """Whether a library there is of a forward-compatibility package (cuda-compat): a folder compat, or compat-12-8."""
    return re.search(r"/(?:cuda-)?compat[^/]*/", path) is not None


# A reboot alone does not help where what is installed is of two versions.
ONE_VERSION = (
    "dpkg -l | grep -i nvidia (rpm -qa | grep -i nvidia): if packages of both versions are installed, install all in "
    "one version, from one repository; then reboot"
)


def are_mixed_packages(library: str, module: str) -> bool:
    """Whether two versions of a driver are of one release and differ in the number behind it (575.64 and 575.64.03).

    Distributions and NVIDIA's repository package one release under different third numbers.
    """
    one, other = library.split("."), module.split(".")
    return one != other and one[:2] == other[:2]


def version_of(path: str | None) -> str | None:
    """The driver's version that a library's file name ends in; None where it ends in none, as WSL's `.so.1.1`."""
    match = _VERSION.search(path or "")
    # A driver's version has three digits in front; `1.1` is WSL's and Tegra's.
    return match[1] if match and len(match[1].partition(".")[0]) >= 3 else None


def folders_of(library_path: str) -> dict[str, str]:
    """Its folders, from what they really are to what is written there; the first of one counts."""
    return {os.path.realpath(part): part for part in reversed(library_path.split(":")) if part}


def from_path(root: Path, library_path: str) -> tuple[Library, ...]:
    """Those in LD_LIBRARY_PATH, in its order."""
    return tuple(_libraries(_under(root, part) for part in library_path.split(":") if part))


def searched(root: Path) -> tuple[Library, ...]:
    """Those in the folders of /etc/ld.so.conf and in the built-in ones, in the loader's order."""
    folders = [*configured(root), *(root / name for name in BUILT_IN)]
    return tuple(_libraries(dict.fromkeys(folders)))


def elsewhere(root: Path) -> tuple[Library, ...]:
    """Those in folders where the loader does not look by itself."""
    asked = set(configured(root))
    return tuple(_libraries(root / name for name in ELSEWHERE if root / name not in asked))


def configured(root: Path) -> tuple[Path, ...]:
    """The folders of /etc/ld.so.conf, what it includes included."""
    found: list[Path] = []
    waiting = [root / "etc/ld.so.conf"]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            words = line.partition("#")[0].replace(",", " ").split()
            if words[:1] == ["include"]:
                included = (pattern if pattern.startswith("/") else f"/etc/{pattern}" for pattern in words[1:])
                waiting += [path for one in included for path in sorted(root.glob(one.lstrip("/")))]
            else:
                found += [root / word.lstrip("/") for word in words if word.startswith("/")]
    return tuple(dict.fromkeys(found))


def unlinked(root: Path) -> tuple[Library, ...]:
    """libcuda's versioned files in folders that have no `libcuda.so.1`, which is the name that programs ask for."""
    folders = dict.fromkeys([*configured(root), *(root / name for name in (*BUILT_IN, *ELSEWHERE))])
    found: dict[str, Library] = {}
    for folder in folders:
        if os.path.lexists(folder / "libcuda.so.1"):
            continue
        for path in sorted(folder.glob("libcuda.so.*")):
            version = version_of(path.name)
            if version is not None:
                real = os.path.realpath(path)
                found.setdefault(real, Library("libcuda.so.1", str(path), real, version))
    return tuple(found.values())


def cached(root: Path) -> frozenset[str] | None:
    """Paths of these libraries in the loader's cache, whose strings end in a zero byte; None where there is none."""
    try:
        data = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return None
    names = b"|".join(re.escape(name.encode()) for name in LIBRARIES)
    return frozenset(os.fsdecode(path) for path in re.findall(rb"\x00(/[^\x00]*/(?:" + names + rb"))(?=\x00)", data))


def _under(root: Path, part: str) -> Path:
    place = Path(part)
    return place if place.is_relative_to(root) else root / part.lstrip("/")


def _libraries(folders: Iterable[Path]) -> Iterable[Library]:
    seen: set[tuple[str, str]] = set()
    for folder in folders:
        for name in LIBRARIES:
            path = folder / name
            real = os.path.realpath(path)
            # /lib is a link to /usr/lib on most systems: one file, not two.
            if not path.exists() or (name, real) in seen:
                continue
            seen.add((name, real))
            yield Library(name, str(path), real, version_of(real))
