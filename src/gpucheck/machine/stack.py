"""The layers below torch, read from /proc, /sys and /dev without loading anything; and torch's own report.

Everything is read under `root`, so that a test can bring its own. None is unknown: a folder that is not there or may
not be read.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpucheck.errors import UsageError
from gpucheck.machine import child, child_protocol, kernel_driver
from gpucheck.machine.child import Cut
from gpucheck.machine.child_protocol import Ending, Heard, Line
from gpucheck.machine.kernel_driver import ROOT, PciDevice, first_line, names_in, text_of
from gpucheck.report.codec import from_json

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# The loaders of the common distributions search these without configuration.
BUILT_IN = tuple(
    f"{above}{folder}"
    for folder in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
    for above in ("", "usr/")
)
# Folders in which packages put the driver's libraries, and which the loader searches only if it is configured to.
ELSEWHERE = (
    *("usr/lib/wsl/lib", "usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/x86_64-linux-gnu/nvidia/current"),
    *("usr/lib/aarch64-linux-gnu/nvidia", "usr/lib/aarch64-linux-gnu/tegra", "usr/lib/nvidia"),
    *("run/opengl-driver/lib", "usr/local/cuda/compat", "usr/local/cuda/lib64/stubs"),
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
    def is_usable(self) -> bool:
        """Return whether it is neither a toolkit's stub nor of a forward-compatibility package."""
        return not any(is_stub(path) or is_compat(path) for path in (self.path, self.real_path))


def is_stub(path: str) -> bool:
    """Return whether a library there is a toolkit's stub."""
    return "/stubs/" in path


def is_compat(path: str) -> bool:
    """Return whether a library there is of a forward-compatibility package (cuda-compat): a folder compat, or
    compat-12-8."""
    return re.search(r"/(?:cuda-)?compat[^/]*/", path) is not None


# A reboot alone does not help if two versions are installed.
ONE_VERSION = (
    "dpkg -l | grep -i nvidia (rpm -qa | grep -i nvidia): if packages of both versions are installed, install all in "
    "one version, from one repository; then reboot"
)


def are_mixed_packages(library: str, module: str) -> bool:
    """Return whether two versions of a driver are of one release and differ in the number behind it (575.64 and
    575.64.03).

    Distributions and NVIDIA's repository package one release under different third numbers.
    """
    first, other = library.split("."), module.split(".")
    return first != other and first[:2] == other[:2]


def version_of(path: str | None) -> str | None:
    """The driver's version that a library's file name ends in; None where it ends in none, as WSL's `.so.1.1`."""
    match = _VERSION.search(path or "")
    # A driver's version has three digits in front; `1.1` is WSL's and Tegra's.
    return match[1] if match and len(match[1].partition(".")[0]) >= 3 else None


def configured(root: Path) -> tuple[Path, ...]:
    """The folders of /etc/ld.so.conf and of what it includes on every distribution."""
    files = [root / "etc/ld.so.conf", *sorted((root / "etc/ld.so.conf.d").glob("*.conf"))]
    lines = [line.partition("#")[0].replace(",", " ").split() for file in files for line in text_of(file).splitlines()]
    folders = [word for words in lines if words[:1] != ["include"] for word in words if word.startswith("/")]
    return tuple(dict.fromkeys(root / folder.lstrip("/") for folder in folders))


def _libraries(folders: Iterable[Path]) -> tuple[Library, ...]:
    """Return the driver's libraries in these folders, in the order of the folders."""
    by_file: dict[tuple[str, str], Library] = {}
    for folder in folders:
        for name in LIBRARIES:
            path = folder / name
            real = os.path.realpath(path)
            # /lib is a link to /usr/lib on most systems: one file, not two.
            if os.path.exists(path):
                by_file.setdefault((name, real), Library(name, str(path), real, version_of(real)))
    return tuple(by_file.values())


# An NVSwitch is a PCI bridge device of NVIDIA's: class 0680.
NVSWITCH_CLASS = "0x0680"
# The places of the module below /lib/modules/KERNEL, by distribution.
MODULE_PLACES = (
    *("updates", "updates/dkms", "extra", "extra/nvidia*", "extramodules", "kernel/drivers/video"),
    *("kernel/drivers/video/nvidia*", "kernel/nvidia*", "misc", "weak-updates/nvidia*"),
)
# These open at once: a card's own node may first have to wake the card, and NVML has opened it already.
OPENED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
# Opening takes microseconds, and a Python for it starts within a second on a busy machine.
OPEN_TIMEOUT_S = 3.0
# A child opens them: a wedged driver may let an open wait for ever. It starts within milliseconds, without our modules.
OPEN_PROGRAM = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        code = 0
    except OSError as refused:
        code = refused.errno
    print('{"errno": %d}' % code, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. `error` is the errno with which opening it was refused, 0 where it was opened, None where it was
    not tried.

    An open that did not return within its time has ETIMEDOUT.
    """

    path: str
    readable: bool
    writable: bool
    error: int | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers between the GPU and NVIDIA's libraries.

    `devices` are all of NVIDIA's on the PCI bus. `modules` are the names of loaded kernel modules, `built_for` the
    kernels that have NVIDIA's module on disk. `log` is the kernel's lines about the driver, None with `log_error` where
    it may not be read.

    `path_folders` are the folders of LD_LIBRARY_PATH, their real path → the path as it is written there.
    `path_libraries` were found in these, which the loader searches first, `libraries` where it searches next.
    `stray_libraries` are on disk where it does not search.

    `fabric_manager` is whether it runs here, `shm_bytes` the size of /dev/shm.
    """

    devices: tuple[PciDevice, ...] | None = None
    modules: frozenset[str] | None = None
    built_for: tuple[str, ...] | None = None
    running: str | None = None
    nodes: tuple[Node, ...] = ()
    libraries: tuple[Library, ...] = ()
    path_folders: Mapping[str, str] = field(default_factory=dict)
    path_libraries: tuple[Library, ...] = ()
    stray_libraries: tuple[Library, ...] = ()
    secure_boot: bool | None = None
    log: tuple[str, ...] | None = None
    log_error: str | None = None
    fabric_manager: bool | None = None
    jetson: str | None = None
    wsl_driver: bool = False
    shm_bytes: int | None = None

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices or () if device.is_gpu)

    @property
    def switches(self) -> int:
        """Return how many NVSwitches are there; they need a fabric manager."""
        return sum((device.class_code or "").startswith(NVSWITCH_CLASS) for device in self.devices or ())

    def node(self, path: str) -> Node | None:
        return next((node for node in self.nodes if node.path == path), None)


def read(root: Path = ROOT, library_path: str = "", running: str | None = None) -> Stack:
    """Read it all. `library_path` is LD_LIBRARY_PATH as the process that is diagnosed has it, `running` the kernel."""
    devices = kernel_driver.pci_devices(root)
    log, log_error = kernel_driver.log(root, journal=bool(devices))
    given = [part for part in library_path.split(":") if part]
    # The folders are in the loader's order.
    searched = [*configured(root), *(root / name for name in BUILT_IN)]
    elsewhere = [root / name for name in ELSEWHERE]
    modules = names_in(root / "sys/module")
    return Stack(
        devices=devices,
        modules=None if modules is None else frozenset(modules),
        built_for=_built_for(root),
        running=running,
        nodes=_nodes(root),
        libraries=_libraries(searched),
        # The first spelling of a folder counts.
        path_folders={os.path.realpath(part): part for part in reversed(given)},
        # The folders that a test gives may lie below its root already.
        path_libraries=_libraries(
            Path(part) if Path(part).is_relative_to(root) else root / part.lstrip("/") for part in given
        ),
        stray_libraries=_libraries(folder for folder in elsewhere if folder not in searched),
        secure_boot=_secure_boot(root),
        log=log,
        log_error=log_error,
        fabric_manager=_has_fabric_manager(root) if devices else None,
        jetson=first_line(root / "etc/nv_tegra_release"),
        wsl_driver=(root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        shm_bytes=_size_of(root / "dev/shm"),
    )


def _built_for(root: Path) -> tuple[str, ...] | None:
    """The kernels under /lib/modules that have an nvidia.ko, compressed or not; None where no kernel is on disk."""
    folders = sorted((root / "lib/modules").glob("*"))
    if not folders:
        return None
    return tuple(f.name for f in folders if any(True for place in MODULE_PLACES for _ in f.glob(f"{place}/nvidia.ko*")))


def _nodes(root: Path) -> tuple[Node, ...]:
    """The driver's nodes and WSL's, and whether this user may open them.

    Only opening shows a refusal by a control group: owner and mode look right.
    """
    names = [name for name in names_in(root / "dev") or () if re.fullmatch(r"nvidia(ctl|\d+|-uvm)|dxg", name)]
    places = {f"/dev/{name}": root / "dev" / name for name in names}
    nodes = [Node(path, os.access(at, os.R_OK), os.access(at, os.W_OK)) for path, at in places.items()]
    tried = [node.path for node in nodes if node.path in OPENED and node.readable and node.writable]
    errors = dict(zip(tried, opened([str(places[path]) for path in tried]), strict=True))
    return tuple(replace(node, error=errors.get(node.path)) for node in nodes)


def opened(paths: Sequence[str]) -> list[int | None]:
    """Open each for reading and writing: the errno of a refusal, 0 for none, ETIMEDOUT for the one that hangs.

    Paths after one that hangs are None.
    """
    if not paths:
        return []
    heard = child_protocol.run([sys.executable, "-I", "-S", "-c", OPEN_PROGRAM, *paths], OPEN_TIMEOUT_S)
    codes: list[int | None] = [line["errno"] for line in heard.lines]
    if heard.ending.how == "late":
        codes.append(errno.ETIMEDOUT)
    return [*codes, *[None] * len(paths)][: len(paths)]


def _secure_boot(root: Path) -> bool | None:
    """Return whether the firmware enforces signatures: the last byte of the EFI variable."""
    for path in (root / "sys/firmware/efi/efivars").glob("SecureBoot-*"):
        try:
            return path.read_bytes()[-1:] == b"\x01"
        except OSError:
            return None
    return None


def _has_fabric_manager(root: Path) -> bool | None:
    """Return whether the fabric manager's process is visible; a container sees only its own processes."""
    folders = list((root / "proc").glob("[0-9]*"))
    # The kernel cuts the name of nv-fabricmanager to 15 letters.
    return any(first_line(folder / "comm") == "nv-fabricmanage" for folder in folders) if folders else None


def _size_of(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


# -- torch, read in a child of the interpreter that is diagnosed -------------------------------------------------------

# It needs nothing but the standard library and Python 3.8.
TORCH_PROGRAM = Path(__file__).with_name("torch_probe_child.py")
# Importing torch takes two seconds from a warm disk and a minute from a cold network one.
TORCH_TIMEOUT_S = 120.0
# An interpreter answers in well under a second; one on a cold network file system takes some.
_ANSWERS_S = 20.0


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel on one of torch's devices: what was raised, None where the result was right."""

    device: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TorchProbe:
    """The report of the diagnosed interpreter and its torch. None means unknown, usually because an earlier step
    failed.

    `stage` is the last step that began: `start`, `find`, `import`, `ask`, `run`, `end`; `error` what ended it early, or
    `timed_out`, after `limit_s` seconds for all steps together. `not_awaited` is why the answer was not awaited, which
    says nothing about torch: it had become pointless, or the process was ended from outside. `unstarted` is why the
    interpreter cannot be started. `active_elsewhere` is the variable that names an active environment whose programs do
    not get this torch. `versions` are those of installed distributions by name, several for one that is installed
    twice. `shadowed_by` are files in the current folder that hide torch or a module of the standard library. `other` is
    an accelerator that is none of CUDA's, `xpu` or `mps`. `warnings` are what torch printed while it was asked.
    `foreign_libraries` are CUDA's libraries that were loaded from elsewhere although the environment has its own, or
    should have, `foreign_folders` the entries of LD_LIBRARY_PATH by which they were found. `cudnn_missing` are parts of
    the loaded cuDNN that the loader will not find. `missing_files` are libraries that installed packages
    (`NAME==VERSION`) recorded and that are gone, `unmet` the packages that torch asks for in exactly one version, with
    the one that is there; None for none. `externally_managed` is whether the interpreter is the system's own, which pip
    may not change. `torch_folders` are all torches on its path, the one that is imported first; `pythonpath_torch` are
    the entries of PYTHONPATH by which any is found. `conda_torch` is the version of a torch that conda has on record
    beside one that pip installed. `has_compiler` is whether triton finds a C compiler.
    """

    stage: str = "start"
    error: str | None = None
    timed_out: bool = False
    not_awaited: str | None = None
    unstarted: str | None = None
    limit_s: float | None = None
    executable: str | None = None
    python: str | None = None
    prefix: str | None = None
    active_elsewhere: str | None = None
    versions: Mapping[str, tuple[str, ...]] | None = None
    path: str | None = None
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    shadowed_by: tuple[str, ...] = ()
    available: bool | None = None
    count: int | None = None
    other: str | None = None
    other_count: int | None = None
    warnings: tuple[str, ...] = ()
    architectures: tuple[str, ...] | None = None
    capabilities: Mapping[str, str] | None = None
    names: Mapping[str, str] | None = None
    foreign_libraries: tuple[str, ...] = ()
    foreign_folders: tuple[str, ...] = ()
    cudnn_missing: tuple[str, ...] = ()
    missing_files: Mapping[str, tuple[str, ...]] | None = None
    unmet: Mapping[str, str | None] | None = None
    libcuda: str | None = None
    kernels: tuple[KernelRun, ...] = ()
    externally_managed: bool | None = None
    has_pip: bool | None = None
    torch_folders: tuple[str, ...] = ()
    pythonpath_torch: tuple[str, ...] = ()
    conda_torch: str | None = None
    has_compiler: bool | None = None


# A program for any Python since 2.0, whose output no other program prints.
_WHICH = "import sys; sys.stdout.write('python %d %d' % sys.version_info[:2])"


def unfit(python: str, command: str, oldest: tuple[int, int], unstarted: str | None = None) -> UsageError | None:
    """Return why `--python` of a command cannot be this interpreter; None where it can. `unstarted` says why it did not
    start.

    The output of a program that is no Python is left out: it usually repeats the given script.
    """
    version, why = None, unstarted
    if why is None:
        try:
            answer = child.run([python, "-c", _WHICH], _ANSWERS_S).stdout.strip()
            match = re.fullmatch(r"python (\d+) (\d+)", answer)
            version = (int(match[1]), int(match[2])) if match else None
        except OSError as error:
            why = error.strerror or str(error)
    if version is not None and version >= oldest:
        return None
    wrong = "cannot be started" if why is not None else "is not a Python interpreter"
    if version is not None:
        wrong, why = "is Python {}.{}".format(*version), "{}.{} is the oldest supported".format(*oldest)
    inside = os.path.join(python, "bin", "python")
    fix = f"gpucheck {command} --python {shlex.quote(inside)}" if os.path.isfile(inside) else None
    give = "give the path of a Python interpreter, {}.{} or newer".format(*oldest)
    return UsageError(f"--python {python} {wrong}", why or "", fix or give)


def probe(
    python: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TORCH_TIMEOUT_S,
    cut: Cut | None = None,
) -> TorchProbe:
    """Ask the torch of `python` (this interpreter without it), until `cut` if another thread sets it."""
    # The child starts like a user's own process: with the current folder on the path, where a stray file may shadow
    # torch.
    argv = [python or sys.executable, "-c", TORCH_PROGRAM.read_text(encoding="utf-8")]
    return replace(read_torch(child_protocol.run(argv, timeout_s, env=env, cut=cut)), limit_s=timeout_s)


def said(lines: Sequence[Line]) -> Line:
    """Return the merged lines of a program of ours in the diagnosed interpreter; later lines replace earlier ones.

    Only lines with our mark count: a start-up file of that interpreter may print anything.
    """
    marked = [line for line in lines if line.get("gpucheck")]
    return {name: value for line in marked for name, value in line.items() if name != "gpucheck"}


def read_torch(heard: Heard) -> TorchProbe:
    """The child's lines put together: each adds to those before, so that a crash costs only what follows it."""
    report, ending = from_json(TorchProbe, said(heard.lines)), heard.ending
    if report.stage == "end":
        return report
    if ending.how == "unstarted":
        return replace(report, unstarted=ending.reason)
    if ending.how == "late":
        return replace(report, timed_out=True)
    if ending.how == "cut":
        return replace(report, not_awaited=ending.reason)
    if ending.how == "killed" and report.error is None:
        often = ", often by the kernel because memory ran out" if ending.signal == "SIGKILL" else ""
        why = f"the process that asks torch was ended from outside ({ending.signal}{often})"
        return replace(report, not_awaited=why)
    return replace(report, error=report.error or how_it_ended(ending))


def how_it_ended(ending: Ending) -> str:
    """A signal or an exit status, and the last line on stderr."""
    how = ending.signal or f"exit status {ending.status}"
    return f"{how}: {ending.last_words}" if ending.last_words else how
