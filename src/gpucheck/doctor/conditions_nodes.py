"""Conditions of the driver's device nodes and libraries, including containers, WSL and Jetsons."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace

from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Certainty, Condition, Evidence, Signs, cuinit_signs, on, proof
from gpucheck.doctor.conditions_kernel import without_module
from gpucheck.health.nvidia import KEPT_OUT, WSL_NODE
from gpucheck.machine.nvml_fields import DRIVER_MISMATCH, LIBRARY_NOT_FOUND
from gpucheck.machine.stack import ONE_VERSION, DeviceNode, Library, are_mixed_packages, is_compat, is_stub, version_of

CONTROL = "/dev/nvidiactl"
MEMORY = "/dev/nvidia-uvm"
# A device control group refuses with EPERM, a security module with EACCES.
REFUSALS = (errno.EPERM, errno.EACCES)
# No driver has the node's device number. The module was unloaded, or loaded again with another number.
STALE = (errno.ENXIO, errno.ENODEV)
VISIBLE, CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"


def _gpu_nodes(evidence: Evidence) -> list[DeviceNode]:
    return [node for node in evidence.stack.nodes if re.fullmatch(r"/dev/nvidia\d+", node.path)]


def lacks_nodes(evidence: Evidence) -> bool:
    """Return whether the module is loaded but lacks its control node, or in a container the nodes of all GPUs."""
    if not evidence.driver.kernel_module_loaded or evidence.cuda_works or evidence.host.wsl:
        return False
    if without_module(evidence) is not None or evidence.stack.devices is None:
        return False
    lacks_gpus = bool(evidence.pci_gpus) and not _gpu_nodes(evidence) and evidence.in_container
    return evidence.stack.node(CONTROL) is None or lacks_gpus


def _without_nodes(evidence: Evidence) -> tuple[str, Signs] | None:
    if not lacks_nodes(evidence):
        return None
    nodes, value = [node.path for node in evidence.stack.nodes], evidence.value(VISIBLE)
    if not evidence.in_container:
        text = f"the module is loaded, but {CONTROL} does not exist"
        return ("driver.nodes_missing", Signs(text, {"kernel_module_loaded": True})) if evidence.pci_gpus else None
    details = {"container": evidence.host.container, "nodes": nodes, VISIBLE: value}
    text, title = f"the host runs NVIDIA's module, but its nodes are incomplete ({', '.join(nodes) or 'none'})", None
    if value in KEPT_OUT:
        text, title = f"{VISIBLE}={value}, and no GPU's device node is in /dev", f"{VISIBLE} hides every GPU here"
    return "container.no_gpu", Signs(text, details, fixes.start_with_gpus(evidence.host), title=title)


def _denied(evidence: Evidence) -> Signs | None:
    """Report missing permissions on device nodes. One accessible GPU node is enough."""
    if evidence.cuda_works:
        return None
    of_gpus = [node.path for node in _gpu_nodes(evidence)]
    denied = [node.path for node in evidence.stack.nodes if not (node.readable and node.writable)]
    shared = [path for path in denied if path in (CONTROL, MEMORY, WSL_NODE)]
    if not (paths := [*shared, *(of_gpus if set(of_gpus) <= set(denied) else ())]):
        return None
    fix = f"ls -ln {paths[0]}; start the container as root, or with --group-add and the number of the node's group"
    text = f"this user has no permission to read and write {', '.join(paths)}"
    return Signs(text, {"denied": paths}, fix if evidence.in_container else None)


def _opened_with(evidence: Evidence, *errors: int) -> dict[str, int]:
    """Return the nodes that could not be opened with one of these errors; empty if CUDA works."""
    nodes = [] if evidence.cuda_works else evidence.stack.nodes
    return {node.path: node.error for node in nodes if node.error in errors and node.error is not None}


def _refused(evidence: Evidence) -> Signs | None:
    """Report nodes that cannot be opened although their permissions allow it."""
    if not (refused := _opened_with(evidence, *REFUSALS)):
        return None
    names = ", ".join(f"{path} ({errno.errorcode[code]})" for path, code in refused.items())
    text = f"opening {names} is refused, although the nodes' permissions allow it"
    details = {"refused": list(refused), "nvml_code": evidence.driver.nvml_code}
    if not evidence.in_container:
        return Signs(text, details, fixes.ASK_THE_SCHEDULER)
    proven = 999 in (evidence.driver.nvml_code, evidence.driver.cuinit_code)
    return Signs(text, details, certainty="proof" if proven else None)


def _stale(evidence: Evidence) -> Signs | None:
    stale = _opened_with(evidence, *STALE)
    names = ", ".join(f"{path}: {os.strerror(code)}" for path, code in stale.items())
    return Signs(f"no driver has the device number of a node ({names})", {"stale": list(stale)}) if stale else None


def _hangs(evidence: Evidence) -> Signs | None:
    hung = list(_opened_with(evidence, errno.ETIMEDOUT))
    return Signs(f"opening {', '.join(hung)} does not return", {"hung": hung}) if hung else None


def _wsl_without_gpu(evidence: Evidence) -> Signs | None:
    if not evidence.host.wsl or not evidence.stack.wsl_driver or evidence.stack.node(WSL_NODE) is not None:
        return None
    return Signs(f"Windows' driver is in /usr/lib/wsl/lib, but {WSL_NODE} is missing", {"wsl_driver": True})


def _wsl_shadowed(evidence: Evidence) -> Signs | None:
    """Report a Linux libcuda in WSL, where only Windows' libcuda works (through /dev/dxg)."""
    path = evidence.driver.libcuda_path
    if not evidence.host.wsl or evidence.in_container or evidence.cuda_works:
        return None
    if path is None or "/usr/lib/wsl/" in path or "/stubs/" in path:
        return None
    text = f"{path} is loaded, but Windows' libcuda is in /usr/lib/wsl/lib"
    return Signs(text, {"libcuda": path}, certainty="proof" if evidence.libcuda_version is not None else None)


def cuda_not_loaded(evidence: Evidence) -> bool:
    driver = evidence.driver
    return driver.libcuda_path is None and "libcuda cannot be loaded" in (driver.cuinit_error or "")


def without_compute(evidence: Evidence) -> bool:
    """Return whether a container has libnvidia-ml but not libcuda."""
    lacks_libcuda = evidence.in_container and LIBCUDA not in evidence.loadable and cuda_not_loaded(evidence)
    has_nvml = evidence.driver.nvml_code not in (None, LIBRARY_NOT_FOUND) or NVML in evidence.loadable
    return lacks_libcuda and has_nvml and evidence.is_nvidia_here


def _no_compute(evidence: Evidence) -> Signs | None:
    if not without_compute(evidence):
        return None
    value = evidence.value(CAPABILITIES)
    if value is not None and not {"compute", "all"} & set(value.replace(" ", "").split(",")):
        return Signs(f"{CAPABILITIES}={value} leaves out compute", {CAPABILITIES: value}, certainty="proof")
    return Signs("libnvidia-ml exists, but libcuda does not", {CAPABILITIES: value})


NODES = on(
    "nodes",
    Condition(
        id="container.no_gpu",
        title="this container was started without a GPU",
        meaning="The container has no device nodes. CUDA then often reports an insufficient driver version.",
        settle="the same image finds the GPU if it is started with --gpus all",
        fix=fixes.START_WITH_GPUS,
        patterns=(
            "WARNING: The NVIDIA Driver was not detected|CUDA driver version is insufficient for CUDA runtime version",
        ),
    ),
    Condition(
        id="driver.nodes_missing",
        title="the driver's device nodes are missing",
        meaning="/dev has no nodes for the loaded module. nvidia-modprobe creates them.",
        settle="`ls -l /dev/nvidia*` shows the nodes after the fix",
        fix="sudo nvidia-modprobe -c 0 -u",
    ),
    proof(
        id="driver.node_hangs",
        title="opening the driver's device node hangs",
        meaning="Opening the node waits in the kernel and never returns. Every program that uses the GPU hangs.",
        settle="`ps -eo pid,stat,wchan,comm | grep ' D'` shows processes that wait in the driver",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then reboot",
        judge=_hangs,
    ),
    Condition(
        id="container.devices_lost",
        title="a control group blocks the driver's device nodes",
        meaning="`systemctl daemon-reload` or another change of the control group removed the container's devices.",
        settle="a new container of the same image works",
        fix=f"recreate the container; to prevent it, pass the GPUs by CDI (on the host, once: {fixes.CDI}; then "
        "--device nvidia.com/gpu=all), or create the links in /dev/char with `nvidia-ctk system "
        "create-dev-char-symlinks`",
        judge=_refused,
        nvml=(999,),
        patterns=(r"Failed to initialize NVML: Unknown Error",),
    ),
    proof(
        id="driver.nodes_denied",
        title="no permission to open the driver's device nodes",
        meaning="CUDA and NVML need to read and write /dev/nvidiactl, /dev/nvidia-uvm and the GPU's node.",
        fix="join the nodes' group (often video or render): sudo usermod -aG video $USER, then log in again",
        judge=_denied,
        nvml=(4,),
        patterns=(r"NVML_ERROR_NO_PERMISSION|NVML: Insufficient Permissions",),
    ),
    Condition(
        id="driver.nodes_stale",
        title="the device nodes belong to an earlier driver",
        meaning="Each load of the module gives /dev/nvidia-uvm a new number. A running container has the old number.",
        settle="`grep nvidia /proc/devices` lists the current major numbers, `ls -l /dev/nvidia*` the numbers of the "
        "nodes",
        fix="recreate the container; without a container: sudo rm /dev/nvidia-uvm && sudo nvidia-modprobe -c 0 -u",
        judge=_stale,
    ),
    Condition(
        id="wsl.no_gpu",
        title="Windows gives this WSL no GPU",
        meaning="WSL 2 has the GPU as /dev/dxg. WSL 1, an old WSL kernel, or a Windows without a GPU has no /dev/dxg.",
        settle="`wsl --list --verbose` in Windows shows version 2, and nvidia-smi in Windows shows the GPU",
        fix="in Windows: wsl --update, then wsl --shutdown; for version 1: wsl --set-version NAME 2",
        judge=_wsl_without_gpu,
    ),
    Condition(
        id="wsl.shadowed",
        stage="libraries",
        title="a Linux driver's libcuda hides the Windows one",
        meaning="A driver that is installed inside Linux needs device nodes that WSL does not have.",
        settle="`LD_LIBRARY_PATH=/usr/lib/wsl/lib python -c 'import torch; torch.cuda.init()'` raises nothing",
        fix="sudo apt purge 'libnvidia-*' 'nvidia-driver-*' && sudo ldconfig",
        judge=_wsl_shadowed,
    ),
    Condition(
        id="container.no_compute",
        stage="libraries",
        title="this container has NVML but not CUDA's driver",
        meaning="NVIDIA Container Toolkit mounts libraries by capability: utility is NVML, compute is libcuda.",
        settle="NVIDIA_DRIVER_CAPABILITIES in the container lists its capabilities",
        fix="start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        judge=_no_compute,
    ),
    by=_without_nodes,
)


LIBCUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
NOT_FOUND = f"{LIBCUDA}: cannot open shared object file"


def _unloaded(evidence: Evidence) -> tuple[str, Signs] | None:
    """Return the condition that keeps the loader from a usable libcuda, and its signs, or None."""
    error = evidence.driver.cuinit_error or ""
    if not evidence.is_nvidia_here or evidence.host.system == "Windows":
        return None
    if "this libcuda has no cuInit" in error or (cuda_not_loaded(evidence) and NOT_FOUND not in error):
        return "library.broken", _broken(evidence)
    if not cuda_not_loaded(evidence) or without_compute(evidence):
        return None
    stray = [library for library in evidence.stack.stray_libraries if library.name == LIBCUDA]
    installed = filter(None, [evidence.loadable.get(LIBCUDA), *stray])
    if (library := next((library for library in installed if library.is_usable), None)) is not None:
        return "library.cuda_not_searched", _not_searched(evidence, library)
    # Without a driver or its nodes, libcuda is not expected.
    if without_module(evidence) is not None or lacks_nodes(evidence) or evidence.host.wsl:
        return None
    return "library.cuda_missing", _missing(evidence)


def _broken(evidence: Evidence) -> Signs:
    error = evidence.driver.cuinit_error or ""
    libraries = (*evidence.stack.path_libraries, *evidence.stack.libraries)
    paths = [library.path for library in libraries if library.name == LIBCUDA]
    details = {"cuinit_error": error, "libcuda": evidence.driver.libcuda_path, "found": paths}
    repair = "remove an empty or foreign file, else reinstall the driver's libraries; then sudo ldconfig"
    return Signs(error, details, f"ls -l {paths[0]}; {repair}" if paths else None)


def _not_searched(evidence: Evidence, library: Library) -> Signs:
    folder, is_searched = library.path.rpartition("/")[0], LIBCUDA in evidence.loadable
    fix = "sudo ldconfig"
    if "/run/opengl-driver/" in folder:  # the loader of NixOS has no cache and no built-in folders
        fix = f"export LD_LIBRARY_PATH={folder}"
    elif not is_searched:
        fix = f"echo {folder} | sudo tee /etc/ld.so.conf.d/nvidia-driver.conf && sudo ldconfig"
    reason = "the loader's cache does not contain it" if is_searched else "the loader does not search there"
    return Signs(f"{library.path} exists, but {reason}", {"libcuda": library.path}, fix=fix)


def _missing(evidence: Evidence) -> Signs:
    details = {"kernel_module_version": evidence.driver.kernel_module_version}
    if evidence.in_container:
        fix = f"{fixes.start_with_gpus(evidence.host)}: /dev/nvidia* alone does not provide the libraries"
        return Signs("the device nodes are in this container, but the driver's libraries are not", details, fix)
    branch = (evidence.driver.kernel_module_version or "*").partition(".")[0]
    fix = f"sudo apt install libnvidia-compute-{branch} (Ubuntu; libcuda1 on Debian, nvidia-driver-cuda on Fedora)"
    return Signs(f"the loader finds no {LIBCUDA}, and the usual package folders do not contain it", details, fix)


def _stub(evidence: Evidence) -> Signs | None:
    path, code = evidence.driver.libcuda_path, evidence.driver.cuinit_code
    is_stubbed = code == 34 or (path is not None and is_stub(path) and code not in (0, None))
    return cuinit_signs(evidence, f"it is {path}" if path else "") if is_stubbed else None


def _compat(evidence: Evidence) -> Signs | None:
    """Report errors 803 and 804 of a forward-compatibility package that does not fit this driver or this GPU."""
    # Every libcuda that is newer than the module causes 804, for example after an update.
    driver, path = evidence.driver, evidence.driver.libcuda_path
    by_folder = path is not None and is_compat(path)
    is_explained = other_version(evidence) or driver.nvml_code == DRIVER_MISMATCH
    if driver.cuinit_code not in (803, 804) or not (by_folder or (driver.cuinit_code == 804 and not is_explained)):
        return None
    folder = from_variable(evidence, path)
    through = f", through LD_LIBRARY_PATH ({folder})" if folder is not None else ""
    text = f"{path} is loaded with the kernel module {driver.kernel_module_version or 'of unknown version'}{through}"
    title = "forward compatibility is not supported on this GPU" if driver.cuinit_code == 804 else None
    return replace(cuinit_signs(evidence, text), title=title)


def from_variable(evidence: Evidence, path: str | None) -> str | None:
    """Return the entry of LD_LIBRARY_PATH without which the loader would not find `path`, or None."""
    if path is None or any(path in (library.path, library.real_path) for library in evidence.stack.libraries):
        return None
    for library in evidence.stack.path_libraries:
        if path in (library.path, library.real_path):
            return library.path.rpartition("/")[0]
    entry = evidence.stack.path_folders.get(path.rpartition("/")[0])
    return None if entry is None else entry.rstrip("/")


def other_version(evidence: Evidence) -> tuple[str, str] | None:
    """Return the versions of libcuda and the kernel module if they differ; None if they are equal or unknown."""
    path, module = evidence.driver.libcuda_path, evidence.driver.kernel_module_version
    library = evidence.libcuda_version
    if path is None or module is None or library is None or library == module or is_compat(path) or is_stub(path):
        return None
    return library, module


def _other_version(evidence: Evidence) -> Signs | None:
    """Report a libcuda of another version if CUDA does not work and NVML matches the module."""
    versions, code = other_version(evidence), evidence.driver.cuinit_code
    folder = from_variable(evidence, evidence.driver.libcuda_path)
    if code in (None, 0) or evidence.driver.nvml_code == DRIVER_MISMATCH or _stub(evidence) or _compat(evidence):
        return None
    # A libcuda from LD_LIBRARY_PATH that returns 803 counts even if its file name has no version.
    if versions is None and not (code == 803 and folder is not None):
        return None
    by_version = f"libcuda is {versions[0]} and the kernel module {versions[1]}" if versions is not None else ""
    by_folder = f"LD_LIBRARY_PATH brought libcuda from {folder}" if folder is not None else ""
    fix = fixes.out_of_library_path([folder]) if folder is not None else None
    certainty: Certainty | None = "proof" if versions is not None and code == 803 else None
    text = "; ".join(filter(None, (by_version, by_folder)))
    return cuinit_signs(evidence, text, fix=fix, certainty=certainty, LD_LIBRARY_PATH=folder)


def _mismatch(evidence: Evidence) -> Signs | None:
    driver = evidence.driver
    by_cuda = driver.cuinit_code == 803 and _compat(evidence) is None and _other_version(evidence) is None
    if driver.nvml_code != DRIVER_MISMATCH and not by_cuda:
        return None
    on_disk = evidence.loadable.get(NVML) or evidence.loadable.get(LIBCUDA)
    loaded = version_of(driver.nvml_path) or evidence.libcuda_version
    library = loaded or (on_disk.version if on_disk is not None else None)
    module = driver.kernel_module_version
    texts = [f"NVML returns {DRIVER_MISMATCH}" if driver.nvml_code == DRIVER_MISMATCH else "cuInit returns 803"]
    if library is not None and module is not None and library != module:
        texts.append(f"the libraries are {library}, the loaded module is {module}")
    folder = from_variable(evidence, driver.nvml_path) or from_variable(evidence, driver.libcuda_path)
    fix = None  # The condition's own fix applies: load the new module.
    if folder is not None:
        texts.append(f"LD_LIBRARY_PATH brought the libraries from {folder}")
        fix = fixes.out_of_library_path([folder])
    elif evidence.in_container:
        fix = "recreate the container: it has the host's libraries from before an update"
    elif loaded and module and are_mixed_packages(loaded, module):
        fix = ONE_VERSION
    text = "; ".join(texts) if texts[1:] else f"{texts[0]}: the versions of its library and the kernel module differ"
    details = {name: getattr(driver, name) for name in ("nvml_code", "cuinit_code", "kernel_module_version")}
    # If CUDA works, torch works too, and only NVML's values are missing.
    return Signs(text, {**details, "library_version": library}, fix, verdict="warn" if evidence.cuda_works else None)


def _no_nvml(evidence: Evidence) -> Signs | None:
    """Report a missing NVML, which torch does not need. A Jetson may have no NVML."""
    driver = evidence.driver
    is_missing = driver.nvml_code == LIBRARY_NOT_FOUND and driver.libcuda_path is not None
    if not is_missing or evidence.stack.jetson or not evidence.is_nvidia_here:
        return None
    fix = "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility" if evidence.in_container else None
    return Signs(driver.nvml_error or "", {"nvml_code": LIBRARY_NOT_FOUND}, fix=fix)


LIBRARY = on(
    "libraries",
    proof(
        id="library.broken",
        title="libcuda cannot be loaded",
        meaning="The loader rejects the file: it is empty (as in some images), damaged, or for another processor.",
        fix="ls -l the named file; remove it, or reinstall the driver's libraries, then sudo ldconfig",
        patterns=(r"libcuda\.so[.\d]*: (?:file too short|invalid ELF header|wrong ELF class)",),
    ),
    proof(
        id="library.cuda_not_searched",
        title="the loader does not find the installed libcuda",
        meaning="libcuda is outside the loader's search path, or the loader's cache is old.",
        fix="sudo ldconfig",
    ),
    Condition(
        id="library.cuda_missing",
        title="libcuda, CUDA's driver library, is missing",
        meaning="The kernel module is installed without the library: distributions split the driver into packages.",
        settle="`ldconfig -p | grep libcuda.so.1` shows nothing",
        fix="install the driver's compute package",
        patterns=(r"libcuda\.so\.1: cannot open shared object file",),
    ),
    proof(
        id="library.stub",
        title="libcuda is a stub",
        meaning="A CUDA toolkit has a libcuda only for linking, in a folder stubs. LD_LIBRARY_PATH has this folder.",
        fix="remove the stubs folder from LD_LIBRARY_PATH",
        judge=_stub,
        cuinit=(34,),
        patterns=(r"Error 34: CUDA driver is a stub library", r"CUDA_ERROR_STUB_LIBRARY"),
    ),
    proof(
        id="library.compat_driver",
        title="the forward-compatibility package does not match this driver",
        meaning="cuda-compat supports only certain older kernel modules and data centre GPUs.",
        fix="remove the compat folder from LD_LIBRARY_PATH (or remove the package cuda-compat), or update the driver",
        judge=_compat,
        cuinit=(803, 804),
        patterns=(
            r"Error 804: forward compatibility was attempted on non supported HW",
            r"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        ),
    ),
    Condition(
        id="library.other_version",
        title="libcuda and the kernel module differ in version",
        meaning="The loader finds another libcuda before the driver's, by LD_LIBRARY_PATH or from another driver.",
        settle="CUDA starts after the other file is removed",
        fix="remove the other driver's packages (`dpkg -S FILE` shows the package of libcuda), then sudo ldconfig",
        judge=_other_version,
        cuinit=(803,),
    ),
    proof(
        id="driver.mismatch",
        title="driver libraries and loaded kernel module differ in version",
        meaning="The driver was updated, but the old module is loaded, so every program that starts now fails.",
        fix="sudo reboot; or end all programs that use the GPU, then sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm "
        "nvidia && sudo modprobe nvidia",
        judge=_mismatch,
        cuinit=(803,),
        nvml=(DRIVER_MISMATCH,),
        patterns=(
            "Driver/library version mismatch|RM has detected an NVML/RM version mismatch|Error 803: system has "
            "unsupported display driver / cuda driver combination|API mismatch: the client has the version",
        ),
    ),
    proof(
        id="library.nvml_missing",
        verdict="warn",
        title="NVML's library is missing",
        meaning="torch usually works without libnvidia-ml. Temperature, power and errors cannot be read.",
        fix="install the driver's package with nvidia-smi (Ubuntu: nvidia-utils-*), then sudo ldconfig",
        judge=_no_nvml,
        nvml=(LIBRARY_NOT_FOUND,),
        patterns=(r"NVML Shared Library Not Found",),
    ),
    by=_unloaded,
)
