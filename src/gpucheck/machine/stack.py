"""What lies below NVIDIA's libraries, read from /proc, /sys, /dev and the library folders without loading anything.

Everything is read under `root`, so that a test can bring its own. None is unknown: a folder that is not there or may
not be read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucheck.machine.host import NVIDIA_VENDOR, ROOT

# Where the dynamic loader looks without its cache, the folders of distributions first; WSL's and the toolkit's last.
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
    "usr/local/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "usr/lib/wsl/lib",
)
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# An NVSwitch is a PCI bridge device of NVIDIA's: class 0680.
NVSWITCH_CLASS = "0x0680"
# How much of the kernel's log is looked through: the newest lines.
LOG_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device of NVIDIA's: its address, device and class numbers, and the kernel driver bound to it."""

    address: str
    device: str | None = None
    class_code: str | None = None
    driver: str | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is a display controller: VGA or 3D."""
        return (self.class_code or "").startswith("0x03")


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. `error` is the errno with which opening it was refused, 0 where it was opened, None not tried."""

    path: str
    readable: bool
    writable: bool
    error: int | None = None


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
        return "/stubs/" in self.real_path or "/stubs/" in self.path

    @property
    def is_compat(self) -> bool:
        """Whether it is of a forward-compatibility package."""
        return "/compat/" in self.real_path or "/compat/" in self.path


@dataclass(frozen=True, slots=True)
class Stack:
    """What is there between the card and NVIDIA's libraries.

    `modules` are the names of loaded kernel modules, `built_for` the kernels that have NVIDIA's module on disk,
    `log` the kernel's lines about NVIDIA's driver, None with `log_error` where it may not be read. `shm_bytes` is the
    size of /dev/shm. `devices` are all of NVIDIA's on the PCI bus. `path_libraries` were found in LD_LIBRARY_PATH,
    which the loader asks before the rest.
    """

    devices: tuple[PciDevice, ...] | None = None
    modules: frozenset[str] | None = None
    built_for: tuple[str, ...] = ()
    running: str | None = None
    parameters: Mapping[str, str] | None = None
    nodes: tuple[Node, ...] = ()
    libraries: tuple[Library, ...] = ()
    path_libraries: tuple[Library, ...] = ()
    secure_boot: bool | None = None
    log: tuple[str, ...] | None = None
    log_error: str | None = None
    jetson: str | None = None
    wsl_driver: bool = False
    shm_bytes: int | None = None

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA's display controllers."""
        return tuple(device for device in self.devices or () if device.is_gpu)

    @property
    def switches(self) -> int:
        """How many NVSwitches are there; they need a fabric manager."""
        return sum((device.class_code or "").startswith(NVSWITCH_CLASS) for device in self.devices or ())

    def found(self, name: str) -> Library | None:
        """The file that the loader takes for a library, as far as its folders tell."""
        return next((one for one in (*self.path_libraries, *self.libraries) if one.name == name), None)


def read(root: Path = ROOT, library_path: str = "", running: str | None = None) -> Stack:
    """Read it all. `library_path` is LD_LIBRARY_PATH as the process that is diagnosed has it."""
    log, log_error = kernel_log(root)
    return Stack(
        devices=_pci(root),
        modules=_modules(root),
        built_for=_built_for(root),
        running=running,
        parameters=_parameters(root),
        nodes=tuple(_node(root, path) for path in _nodes(root)),
        libraries=tuple(_libraries(root / folder for folder in LIBRARY_FOLDERS)),
        path_libraries=tuple(_libraries(root / part.lstrip("/") for part in library_path.split(":") if part)),
        secure_boot=_secure_boot(root),
        log=log,
        log_error=log_error,
        jetson=_first_line(root / "etc/nv_tegra_release"),
        wsl_driver=(root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        shm_bytes=_size_of(root / "dev/shm"),
    )


def _pci(root: Path) -> tuple[PciDevice, ...] | None:
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    return tuple(
        PciDevice(
            folder.name, _first_line(folder / "device"), _first_line(folder / "class"), _link_name(folder / "driver")
        )
        for folder in folders
        if _first_line(folder / "vendor") == NVIDIA_VENDOR
    )


def _modules(root: Path) -> frozenset[str] | None:
    try:
        return frozenset(os.listdir(root / "sys/module"))
    except OSError:
        return None


def _built_for(root: Path) -> tuple[str, ...]:
    """The kernels under /lib/modules that have an nvidia.ko, compressed or not, wherever a distribution puts it."""
    found = []
    for folder in sorted((root / "lib/modules").glob("*")):
        places = (
            "updates/dkms",
            "extra",
            "kernel/drivers/video",
            "kernel/nvidia*",
            "extramodules",
            "weak-updates/nvidia",
        )
        if any(True for place in places for _ in folder.glob(f"{place}/nvidia.ko*")):
            found.append(folder.name)
    return tuple(found)


def _parameters(root: Path) -> dict[str, str] | None:
    """Parameters of the memory module, which decide whether CUDA starts."""
    folder = root / "sys/module/nvidia_uvm/parameters"
    if not folder.is_dir():
        return None
    return {name: value for name in ("uvm_disable_hmm",) if (value := _first_line(folder / name)) is not None}


def _nodes(root: Path) -> list[str]:
    try:
        names = sorted(os.listdir(root / "dev"))
    except OSError:
        return []
    return [f"/dev/{name}" for name in names if re.fullmatch(r"nvidia(ctl|\d+|-uvm)|dxg", name)]


def _node(root: Path, path: str) -> Node:
    """Whether this user may open it. A cgroup's refusal shows in opening alone: rights and mode look right."""
    place = root / path.lstrip("/")
    readable, writable = os.access(place, os.R_OK), os.access(place, os.W_OK)
    error: int | None = None
    if readable and writable:
        try:
            os.close(os.open(place, os.O_RDWR | getattr(os, "O_CLOEXEC", 0)))
            error = 0
        except OSError as refused:
            error = refused.errno or errno.EIO
    return Node(path, readable, writable, error)


def _libraries(folders: Iterable[Path]) -> Iterable[Library]:
    for folder in folders:
        for name in LIBRARIES:
            path = folder / name
            if path.exists():
                real = os.path.realpath(path)
                version = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real)
                yield Library(name, str(path), real, version.group(1) if version else None)


def _secure_boot(root: Path) -> bool | None:
    """Whether the firmware enforces signatures: the last byte of the EFI variable."""
    for path in (root / "sys/firmware/efi/efivars").glob("SecureBoot-*"):
        try:
            return path.read_bytes()[-1:] == b"\x01"
        except OSError:
            return None
    return None


def kernel_log(root: Path = ROOT) -> tuple[tuple[str, ...] | None, str | None]:
    """The kernel's lines about NVIDIA's driver, or None and why it cannot be read. Not readable is not empty."""
    path = root / "dev/kmsg"
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        return None, os.strerror(error.errno or 0)
    lines: list[str] = []
    taken = 0
    try:
        # Each read is a record; EAGAIN is the end, EPIPE a record that was overwritten while this read.
        while taken < LOG_BYTES:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            except OSError as error:
                return (tuple(lines), None) if lines else (None, os.strerror(error.errno or 0))
            if not record:
                break
            taken += len(record)
            lines += [text for text in record.decode("utf-8", "replace").splitlines() if _is_nvidias(text)]
    finally:
        os.close(handle)
    return tuple(lines), None


def _is_nvidias(line: str) -> bool:
    return bool(re.search(r"NVRM|nvidia|nouveau|request_free_mem_region|Key was rejected", line))


def _first_line(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return text.splitlines()[0] if text else None


def _link_name(path: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def _size_of(path: Path) -> int | None:
    try:
        status = os.statvfs(path)
    except (OSError, AttributeError):
        return None
    return status.f_frsize * status.f_blocks
