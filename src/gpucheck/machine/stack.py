"""Read the layers below torch from /proc, /sys and /dev without loading a library, and ask torch in a child.

A value is None if its folder is missing or cannot be read. Tests pass another `root` for all files.
"""

from __future__ import annotations

import contextlib
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
from gpucheck.machine.child_protocol import ChildOutput, Ending, Message
from gpucheck.machine.host import ROOT, PciDevice, first_line, names_in, pci_devices, text_of
from gpucheck.report.codec import from_json

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Folders that the loaders of common distributions search without configuration.
BUILT_IN = tuple(
    f"{above}{folder}"
    for folder in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
    for above in ("", "usr/")
)
# Folders in which packages install the driver's libraries. The loader searches these folders only if configured to.
ELSEWHERE = (
    *("usr/lib/wsl/lib", "usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/x86_64-linux-gnu/nvidia/current"),
    *("usr/lib/aarch64-linux-gnu/nvidia", "usr/lib/aarch64-linux-gnu/tegra", "usr/lib/nvidia"),
    *("run/opengl-driver/lib", "usr/local/cuda/compat", "usr/local/cuda/lib64/stubs"),
)
# A driver's version begins with three digits. `.so.1.1` belongs to WSL and Tegra.
_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Library:
    """A file of one of the driver's libraries. `version`, such as 580.95.05, is the end of the real file's name."""

    name: str
    path: str
    real_path: str
    version: str | None = None

    @property
    def is_usable(self) -> bool:
        return not any(is_stub(path) or is_compat(path) for path in (self.path, self.real_path))


def is_stub(path: str) -> bool:
    return "/stubs/" in path


def is_compat(path: str) -> bool:
    """Return whether this path is in a folder of a forward-compatibility package, such as compat-12-8."""
    return re.search(r"/(?:cuda-)?compat[^/]*/", path) is not None


# If two versions are installed, a reboot alone does not help.
ONE_VERSION = (
    "dpkg -l | grep -i nvidia (rpm -qa | grep -i nvidia): if packages of both versions are installed, install all in "
    "one version, from one repository; then reboot"
)


def are_mixed_packages(library: str, module: str) -> bool:
    """Return whether two versions differ only in the third number, such as 575.64 and 575.64.03."""
    # Distributions and NVIDIA's repository use different third numbers for the same release.
    library_parts, module_parts = library.split("."), module.split(".")
    return library_parts != module_parts and library_parts[:2] == module_parts[:2]


def version_of(path: str | None) -> str | None:
    """Return the driver's version at the end of a library's file name; None without a version."""
    match = _VERSION.search(path or "")
    return match[1] if match else None


def configured(root: Path) -> tuple[Path, ...]:
    """Return the folders of /etc/ld.so.conf and /etc/ld.so.conf.d, which every distribution includes."""
    files = [root / "etc/ld.so.conf", *sorted((root / "etc/ld.so.conf.d").glob("*.conf"))]
    lines = [line.partition("#")[0].replace(",", " ").split() for file in files for line in text_of(file).splitlines()]
    folders = [word for words in lines if words[:1] != ["include"] for word in words if word.startswith("/")]
    return tuple(dict.fromkeys(root / folder.lstrip("/") for folder in folders))


def _libraries(folders: Iterable[Path]) -> tuple[Library, ...]:
    by_file: dict[tuple[str, str], Library] = {}
    for folder in folders:
        for name in LIBRARIES:
            path = folder / name
            real = os.path.realpath(path)
            # /lib is a link to /usr/lib on most systems, so one file has two paths.
            if os.path.exists(path):
                by_file.setdefault((name, real), Library(name, str(path), real, version_of(real)))
    return tuple(by_file.values())


# The folders of the module below /lib/modules/KERNEL in different distributions.
MODULE_FOLDERS = (
    *("updates", "updates/dkms", "extra", "extra/nvidia*", "extramodules", "kernel/drivers/video"),
    *("kernel/drivers/video/nvidia*", "kernel/nvidia*", "misc", "weak-updates/nvidia*"),
)
# Nodes that open without delay. Opening a GPU's node may first wake the GPU, and NVML has opened these nodes already.
QUICK_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
# Opening takes microseconds. The Python process that opens the nodes starts within a second on a busy machine.
OPEN_TIMEOUT_S = 3.0
# A child opens the nodes, because a wedged driver may block the call forever. The child starts fast without imports.
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
class DeviceNode:
    """A device node. `error` is the errno of opening the node: 0 is success, ETIMEDOUT a hang, None not tried."""

    path: str
    readable: bool
    writable: bool
    error: int | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers between the GPU and NVIDIA's libraries.

    `modules` are the loaded kernel modules, and `built_for` the kernels for which NVIDIA's module is on disk. `log` has
    the kernel log's lines about the driver. If `log` is None, `log_error` is the reason.

    `path_folders` maps the real path of each folder in LD_LIBRARY_PATH to its path in the variable. The loader searches
    the folders of `path_libraries` (LD_LIBRARY_PATH) first, then those of `libraries`. It does not search the folders
    of `stray_libraries`. `shm_bytes` is the size of /dev/shm.
    """

    devices: tuple[PciDevice, ...] | None = None
    modules: frozenset[str] | None = None
    built_for: tuple[str, ...] | None = None
    running: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
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
    def switches(self) -> int:
        """Return the number of NVSwitches, by their PCI class (bridge device)."""
        return sum((device.class_code or "").startswith("0x0680") for device in self.devices or ())

    def node(self, path: str) -> DeviceNode | None:
        return next((node for node in self.nodes if node.path == path), None)


def read(root: Path = ROOT, library_path: str = "", running: str | None = None) -> Stack:
    """Read all layers. `library_path` is the diagnosed LD_LIBRARY_PATH; `running` is the kernel's release."""
    devices = pci_devices(root)
    log, log_error = kernel_driver.log(root, journal=bool(devices))
    entries = [entry for entry in library_path.split(":") if entry]
    # Tests may pass folders that are already below `root`.
    first = [Path(entry) if Path(entry).is_relative_to(root) else root / entry.lstrip("/") for entry in entries]
    searched = [*configured(root), *(root / name for name in BUILT_IN)]
    elsewhere = [root / name for name in ELSEWHERE]
    modules, shm_bytes = names_in(root / "sys/module"), None
    with contextlib.suppress(OSError):
        shm_bytes = shutil.disk_usage(root / "dev/shm").total
    return Stack(
        devices=devices,
        modules=None if modules is None else frozenset(modules),
        built_for=_built_for(root),
        running=running,
        nodes=_nodes(root),
        libraries=_libraries(searched),
        # If two entries are the same folder, the first one counts.
        path_folders={os.path.realpath(entry): entry for entry in reversed(entries)},
        path_libraries=_libraries(first),
        stray_libraries=_libraries(folder for folder in elsewhere if folder not in searched),
        secure_boot=_secure_boot(root),
        log=log,
        log_error=log_error,
        fabric_manager=_has_fabric_manager(root) if devices else None,
        jetson=first_line(root / "etc/nv_tegra_release"),
        wsl_driver=(root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        shm_bytes=shm_bytes,
    )


def _built_for(root: Path) -> tuple[str, ...] | None:
    """Return the kernels under /lib/modules that have an nvidia.ko; None if no kernel is on disk."""
    if not (folders := sorted((root / "lib/modules").glob("*"))):
        return None
    return tuple(f.name for f in folders if any(next(f.glob(f"{below}/nvidia.ko*"), None) for below in MODULE_FOLDERS))


def _nodes(root: Path) -> tuple[DeviceNode, ...]:
    names = [name for name in names_in(root / "dev") or () if re.fullmatch(r"nvidia(ctl|\d+|-uvm)|dxg", name)]
    files = {f"/dev/{name}": root / "dev" / name for name in names}
    nodes = [DeviceNode(path, os.access(file, os.R_OK), os.access(file, os.W_OK)) for path, file in files.items()]
    # A control group may refuse access although the permissions allow it. Only opening a node shows the refusal.
    tried = [node.path for node in nodes if node.path in QUICK_NODES and node.readable and node.writable]
    errors = dict(zip(tried, opened([str(files[path]) for path in tried]), strict=True))
    return tuple(replace(node, error=errors.get(node.path)) for node in nodes)


def opened(paths: Sequence[str]) -> list[int | None]:
    """Open each path for reading and writing. Return each errno: 0 is success, ETIMEDOUT a hang, None not tried."""
    if not paths:
        return []
    output = child_protocol.run([sys.executable, "-I", "-S", "-c", OPEN_PROGRAM, *paths], OPEN_TIMEOUT_S)
    codes: list[int | None] = [line["errno"] for line in output.lines]
    if output.ending.how == "late":
        codes.append(errno.ETIMEDOUT)
    return [*codes, *[None] * len(paths)][: len(paths)]


def _secure_boot(root: Path) -> bool | None:
    """Return whether Secure Boot is on, by the EFI variable; None if the variable is missing or cannot be read."""
    for path in (root / "sys/firmware/efi/efivars").glob("SecureBoot-*"):
        try:
            return path.read_bytes()[-1:] == b"\x01"
        except OSError:
            return None
    return None


def _has_fabric_manager(root: Path) -> bool | None:
    """Return whether a process of the fabric manager is visible; None without /proc."""
    folders = list((root / "proc").glob("[0-9]*"))
    # The kernel cuts the name nv-fabricmanager to 15 letters.
    return any(first_line(folder / "comm") == "nv-fabricmanage" for folder in folders) if folders else None


# -- torch, read in a child of the diagnosed interpreter ---------------------------------------------------------------

TORCH_PROGRAM = Path(__file__).with_name("torch_probe_child.py")
# Importing torch takes two seconds from a warm disk and a minute from a cold network file system.
TORCH_TIMEOUT_S = 120.0
# An interpreter starts within a second from a local disk. A cold network file system may need several seconds.
_PYTHON_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class KernelRun:
    """The result of one kernel on one device. `error` is None for a correct result."""

    device: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TorchProbe:
    """The report of `torch_probe_child` on an interpreter and its torch. None is unknown: an earlier step failed.

    `stage` is the last step that began: `start`, `find`, `import`, `ask`, `run` or `end`. `error` ended the probe
    early. `timed_out`: all steps together took longer than `limit_s`. `not_awaited` is the reason if gpucheck stopped
    waiting and torch is not the cause. `unstarted` is the reason if the interpreter cannot be started.

    `active_elsewhere` is the variable of the active environment, such as VIRTUAL_ENV, if it lacks this torch.
    `versions` maps a distribution to its installed versions. `shadowed_by` are files in the current folder that hide
    torch or a module of the standard library. `other` is the type of an accelerator without CUDA: `xpu` or `mps`.

    `foreign_libraries` are CUDA libraries from outside the environment, and `foreign_folders` the entries of
    LD_LIBRARY_PATH that contain them. The loader will not find the `cudnn_missing` parts of the loaded cuDNN.
    `missing_files` are libraries that a package (`NAME==VERSION`) has recorded and that do not exist. `unmet` maps a
    package that torch requires in exactly one version to the installed version, which differs.

    `externally_managed`: pip must not change the interpreter. `torch_folders` are all torches on the import path; the
    first one is imported. `pythonpath_torch` are the entries of PYTHONPATH with a torch. `conda_torch` is the version
    of a torch that conda recorded and pip replaced. `has_compiler`: triton finds a C compiler.
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


# The program runs in any Python since 2.0. No other program prints this output.
_WHICH = "import sys; sys.stdout.write('python %d %d' % sys.version_info[:2])"


def unfit(python: str, command: str, oldest: tuple[int, int], unstarted: str | None = None) -> UsageError | None:
    """Return why a command cannot use this `--python`; None if it can. `unstarted` is a known reason."""
    # The error does not quote the program's output, which usually repeats the given script.
    version, why = None, unstarted
    if why is None:
        try:
            match = re.fullmatch(
                r"python (\d+) (\d+)", child.run([python, "-c", _WHICH], _PYTHON_TIMEOUT_S).stdout.strip()
            )
            version = (int(match[1]), int(match[2])) if match else None
        except OSError as error:
            why = error.strerror or str(error)
    if version is not None and version >= oldest:
        return None
    problem = "cannot be started" if why is not None else "is not a Python interpreter"
    if version is not None:
        problem, why = "is Python {}.{}".format(*version), "{}.{} is the oldest supported".format(*oldest)
    fix = "give the path of a Python interpreter, {}.{} or newer".format(*oldest)
    inside = os.path.join(python, "bin", "python")
    if os.path.isfile(inside):
        fix = f"gpucheck {command} --python {shlex.quote(inside)}"
    return UsageError(f"--python {python} {problem}", why or "", fix)


def probe(
    python: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TORCH_TIMEOUT_S,
    cut: Cut | None = None,
) -> TorchProbe:
    """Probe the torch of `python`, by default this interpreter. Another thread may set `cut` to end the probe."""
    # As in the user's process, the current folder is on the import path. A stray file there may shadow torch.
    argv = [python or sys.executable, "-c", TORCH_PROGRAM.read_text(encoding="utf-8")]
    return replace(read_torch(child_protocol.run(argv, timeout_s, env=env, cut=cut)), limit_s=timeout_s)


def probe_answer(lines: Sequence[Message]) -> Message:
    """Merge the lines that the probe marked with `gpucheck`. A start-up file of Python may print other lines."""
    return {name: value for line in lines if line.get("gpucheck") for name, value in line.items() if name != "gpucheck"}


def read_torch(output: ChildOutput) -> TorchProbe:
    """Return the report from the child's lines. After a crash it has the earlier steps."""
    report, ending = from_json(TorchProbe, probe_answer(output.lines)), output.ending
    if report.stage == "end":
        return report
    if ending.how == "unstarted":
        return replace(report, unstarted=ending.reason)
    if ending.how == "late":
        return replace(report, timed_out=True)
    if ending.how == "cut":
        return replace(report, not_awaited=ending.reason)
    if ending.how == "killed" and report.error is None:
        oom = ", often by the kernel because memory ran out" if ending.signal == "SIGKILL" else ""
        why = f"the process that asks torch was ended from outside ({ending.signal}{oom})"
        return replace(report, not_awaited=why)
    return replace(report, error=report.error or how_it_ended(ending))


def how_it_ended(ending: Ending) -> str:
    how = ending.signal or f"exit status {ending.status}"
    return f"{how}: {ending.last_words}" if ending.last_words else how
