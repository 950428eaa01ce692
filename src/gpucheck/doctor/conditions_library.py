"""libcuda and libnvidia-ml: found by the loader, the driver's own, and of the kernel module's version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Condition, Seen, answered, answers
from gpucheck.doctor.conditions_kernel import why_absent
from gpucheck.doctor.conditions_nodes import (
    cuda_not_loaded,
    has_nvml,
    lacks_nodes,
    without_compute,
)
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.driver_files import (
    ONE_VERSION,
    Library,
    are_mixed_packages,
    is_compat,
    is_stub,
    version_of,
)

LIBCUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
NOT_FOUND = f"{LIBCUDA}: cannot open shared object file"
# NixOS has neither a cache of the loader's nor folders built into it.
NIXOS = "/run/opengl-driver/"
# NVML_ERROR_LIB_RM_VERSION_MISMATCH of nvml.h.
VERSION_MISMATCH = 18

Unloaded = Literal["broken", "unlinked", "not_searched", "missing"]


def why_unloaded(evidence: Evidence) -> Unloaded | None:
    """Why the loader has no libcuda; None where it has one, or something below or beside this condition says why."""
    if not evidence.is_nvidia_here or evidence.host.system == "Windows":
        return None
    if "this libcuda has no cuInit" in (evidence.driver.cuinit_error or ""):
        return "broken"
    if not cuda_not_loaded(evidence):
        return None
    if NOT_FOUND not in (evidence.driver.cuinit_error or ""):
        return "broken"
    if without_compute(evidence):
        return None
    if evidence.stack.unlinked:
        return "unlinked"
    if _on_disk(evidence) is not None:
        return "not_searched"
    # Without a driver, or its nodes, nothing else is to be expected.
    if why_absent(evidence) is not None or lacks_nodes(evidence) or evidence.host.wsl:
        return None
    return "missing"


def _on_disk(evidence: Evidence) -> Library | None:
    """A usable libcuda that is there and was not loaded."""
    stack = evidence.stack
    found = [stack.found(LIBCUDA), *(library for library in stack.stray_libraries if library.name == LIBCUDA)]
    return next(
        (library for library in found if library is not None and not library.is_stub and not library.is_compat), None
    )


def _unloaded(why: Unloaded) -> Callable[[Evidence], Seen | None]:
    def judge(evidence: Evidence) -> Seen | None:
        return _SAID[why](evidence) if why_unloaded(evidence) == why else None

    return judge


def _broken(evidence: Evidence) -> Seen:
    error = evidence.driver.cuinit_error or ""
    found = [
        library.path
        for library in (*evidence.stack.path_libraries, *evidence.stack.libraries)
        if library.name == LIBCUDA
    ]
    told = {"cuinit_error": error, "libcuda": evidence.driver.libcuda_path, "found": found}
    mend = "remove it if it is empty or foreign, else reinstall the driver's libraries; then sudo ldconfig"
    return Seen(error, told, f"ls -l {found[0]}; {mend}" if found else None)


def _unlinked(evidence: Evidence) -> Seen:
    files = [library.path for library in evidence.stack.unlinked]
    return Seen(f"{files[0]} is there, and no {LIBCUDA} beside it", {"files": files})


def _not_searched(evidence: Evidence) -> Seen:
    library = _on_disk(evidence)
    assert library is not None
    folder = library.path.rpartition("/")[0]
    searched = evidence.stack.found(LIBCUDA) is not None
    fix = "sudo ldconfig"
    if NIXOS in folder:
        fix = f"export LD_LIBRARY_PATH={folder}"
    elif not searched:
        fix = f"echo {folder} | sudo tee /etc/ld.so.conf.d/nvidia-driver.conf && sudo ldconfig"
    missed = "the loader's cache does not have it" if searched else "the loader does not look there"
    return Seen(f"{library.path} is there, and {missed}", {"libcuda": library.path}, fix=fix)


def _missing(evidence: Evidence) -> Seen:
    module = evidence.driver.kernel_module_version
    if evidence.in_container:
        return Seen(
            "the device nodes are in this container, the driver's libraries are not",
            {"kernel_module_version": module},
            fix=f"{fixes.start_with_gpus(evidence.host)}: handing in /dev/nvidia* alone does not bring the libraries",
        )
    branch = (module or "").partition(".")[0]
    package = f"libnvidia-compute-{branch}" if branch else "libnvidia-compute-*"
    return Seen(
        f"the loader finds no {LIBCUDA}, and none is in the folders where packages put it",
        {"kernel_module_version": module, "nvml": has_nvml(evidence)},
        fix=f"sudo apt install {package} (Ubuntu; libcuda1 on Debian, nvidia-driver-cuda on Fedora)",
    )


_SAID: dict[Unloaded, Callable[[Evidence], Seen]] = {
    "broken": _broken,
    "unlinked": _unlinked,
    "not_searched": _not_searched,
    "missing": _missing,
}


def _stub(evidence: Evidence) -> Seen | None:
    path = evidence.driver.libcuda_path
    by_path = path is not None and is_stub(path) and evidence.driver.cuinit_code not in (0, None)
    return answered(evidence, f"it is {path}" if path else "") if evidence.driver.cuinit_code == 34 or by_path else None


def _compat(evidence: Evidence) -> Seen | None:
    """803 from a forward-compatibility package: it goes with older drivers than this, or not with one so old."""
    path, module = evidence.driver.libcuda_path, evidence.driver.kernel_module_version
    if evidence.driver.cuinit_code != 803 or path is None or not is_compat(path):
        return None
    given = from_variable(evidence, path)
    return answered(
        evidence,
        f"{path} is loaded over the kernel module {module or 'of unknown version'}"
        f"{f', through LD_LIBRARY_PATH ({_folder(given)})' if given is not None else ''}",
    )


def from_variable(evidence: Evidence, path: str | None, name: str = LIBCUDA) -> Library | None:
    """The library that is in use at `path`, where the loader found it by LD_LIBRARY_PATH alone."""
    if any(path in (library.path, library.real_path) for library in evidence.stack.libraries):
        return None
    found = (library for library in evidence.stack.path_libraries if library.name == name)
    for library in found:
        if path in (library.path, library.real_path):
            return library
    folder, _, file = (path or "").rpartition("/")
    written = evidence.stack.path_folders.get(folder)
    return Library(name, f"{written.rstrip('/')}/{file}", path or "", version_of(path)) if written else None


def _folder(library: Library) -> str:
    return library.path.rpartition("/")[0]


def other_version(evidence: Evidence) -> tuple[str, str] | None:
    """The versions of the libcuda that was loaded and of the kernel module, where both are known and differ."""
    path, module = evidence.driver.libcuda_path, evidence.driver.kernel_module_version
    library = version_of(path)
    if path is None or module is None or library is None or library == module or is_compat(path) or is_stub(path):
        return None
    return library, module


def _other_version(evidence: Evidence) -> Seen | None:
    """Only libcuda is another: NVML goes with the module. Where CUDA works all the same, it is no fault.

    One that LD_LIBRARY_PATH brought and that answers 803 is another one too, whether or not its name has a version.
    """
    versions, code = other_version(evidence), evidence.driver.cuinit_code
    given = from_variable(evidence, evidence.driver.libcuda_path)
    if code in (None, 0) or evidence.driver.nvml_code == VERSION_MISMATCH or _stub(evidence) or _compat(evidence):
        return None
    if versions is None and not (code == 803 and given is not None):
        return None
    said = [f"libcuda is {versions[0]} and the kernel module {versions[1]}"] if versions is not None else []
    if given is not None:
        said.append(f"LD_LIBRARY_PATH brought {given.path}{_in_place_of(evidence, given)}")
    told = answered(
        evidence,
        "; ".join(said),
        fix=_without(evidence, given) if given is not None else None,
        certainty="proof" if versions is not None and code == 803 else None,
        LD_LIBRARY_PATH=_folder(given) if given is not None else None,
    )
    # Its version is not in its name: that it is not the driver's is what is known.
    return told if versions is not None else replace(told, title="another libcuda than the driver's own is loaded")


def _in_place_of(evidence: Evidence, given: Library) -> str:
    """The libcuda that the loader would take without the variable."""
    own = next((library for library in evidence.stack.libraries if library.name == given.name), None)
    return "" if own is None else f" in place of {own.path}"


def _without(evidence: Evidence, given: Library) -> str:
    """Without the variable's the loader needs another; where there is none, the driver's has to come."""
    taken = fixes.out_of_library_path([_folder(given)])
    if any(library.name == given.name for library in evidence.stack.libraries):
        return taken
    if evidence.in_container:
        return f"{taken}, or put the libraries of the host's driver there"
    module = evidence.driver.kernel_module_version
    return f"{taken}, and install the driver's libraries{f' of version {module}' if module else ''}"


def _mismatch(evidence: Evidence) -> Seen | None:
    """The driver was updated under a running module; NVML says so, or CUDA."""
    driver = evidence.driver
    by_cuda = driver.cuinit_code == 803 and _compat(evidence) is None and _other_version(evidence) is None
    if driver.nvml_code != VERSION_MISMATCH and not by_cuda:
        return None
    library = version_of(driver.nvml_path) or version_of(driver.libcuda_path) or _version_on_disk(evidence)
    module = driver.kernel_module_version
    differ = library is not None and module is not None and library != module
    known = f"the libraries are {library}, the loaded module is {module}" if differ else ""
    given = _given(evidence)
    if given is not None:
        known = f"{known}{'; ' if known else ''}LD_LIBRARY_PATH brought {given.path}"
    who = f"NVML answers {VERSION_MISMATCH}" if driver.nvml_code == VERSION_MISMATCH else "cuInit answers 803"
    return Seen(
        f"{who}; {known}" if known else f"{who}: its library and the kernel module are of different versions",
        {
            "nvml_code": driver.nvml_code,
            "cuinit_code": driver.cuinit_code,
            "library_version": library,
            "kernel_module_version": module,
        },
        fix=_mismatch_fix(evidence),
        # torch goes on where its libcuda is the module's: what NVML tells is then all that is missing.
        verdict="warn" if evidence.cuda_works else None,
    )


def _given(evidence: Evidence) -> Library | None:
    """NVML's library or libcuda, where LD_LIBRARY_PATH brought it."""
    driver = evidence.driver
    return from_variable(evidence, driver.nvml_path, NVML) or from_variable(evidence, driver.libcuda_path)


def _mismatch_fix(evidence: Evidence) -> str | None:
    """None for the condition's own: load the new module."""
    given = _given(evidence)
    if given is not None:
        return _without(evidence, given)
    if evidence.in_container:
        return "recreate the container: it holds the host's libraries of before an update"
    library = version_of(evidence.driver.nvml_path) or version_of(evidence.driver.libcuda_path)
    module = evidence.driver.kernel_module_version
    return ONE_VERSION if library and module and are_mixed_packages(library, module) else None


def _version_on_disk(evidence: Evidence) -> str | None:
    found = evidence.stack.found("libnvidia-ml.so.1") or evidence.stack.found(LIBCUDA)
    return found.version if found is not None else None


def _no_nvml(evidence: Evidence) -> Seen | None:
    """torch does without; what tells of temperature, memory and errors does not. A Jetson may have none."""
    driver = evidence.driver
    if driver.nvml_code != 12 or driver.libcuda_path is None or evidence.stack.jetson or not evidence.is_nvidia_here:
        return None
    fix = "start the container with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility" if evidence.in_container else None
    return Seen(driver.nvml_error or "", {"nvml_code": 12}, fix=fix)


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="library.broken",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="libcuda cannot be loaded",
        meaning="The loader finds a file of this name and refuses it: it is empty, damaged, built for another "
        "processor, or needs a library that is missing. A container that was built while the driver was mounted keeps "
        "empty files of its names.",
        fix="ls -l the file that is named; remove it, or reinstall the driver's libraries, then sudo ldconfig",
        judge=_unloaded("broken"),
        texts=(r"libcuda\.so[.\d]*: (?:file too short|invalid ELF header|wrong ELF class)",),
    ),
    Condition(
        id="library.cuda_unlinked",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="libcuda.so.1 is missing, only its versioned file is installed",
        meaning="Programs ask for libcuda.so.1, a link to the file with the version in its name. The link is missing: "
        "ldconfig was not run after the files came, mostly in a container that was given them.",
        fix="sudo ldconfig",
        judge=_unloaded("unlinked"),
        source="NVIDIA/nvidia-container-toolkit issue 1099; containerd/nerdctl issue 4621",
    ),
    Condition(
        id="library.cuda_not_searched",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="libcuda is not on the loader's search path",
        meaning="The loader looks into LD_LIBRARY_PATH, its cache and its own folders. The driver's libcuda lies "
        "elsewhere, or came after the cache was made.",
        fix="sudo ldconfig",
        judge=_unloaded("not_searched"),
    ),
    Condition(
        id="library.cuda_missing",
        rung="libraries",
        verdict="fail",
        certainty="strong",
        title="libcuda, CUDA's driver library, is missing",
        meaning="The kernel's part of the driver is there and the library that torch loads is not. Distributions part "
        "the driver into packages, and the one for computing may be left out.",
        settle="`ldconfig -p | grep libcuda.so.1` shows nothing",
        fix="install the driver's package for computing",
        judge=_unloaded("missing"),
        texts=(r"libcuda\.so\.1: cannot open shared object file",),
    ),
    Condition(
        id="library.stub",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="libcuda is a stub",
        meaning="A CUDA toolkit brings a libcuda for linking alone, in a folder called stubs. Where that folder is in "
        "LD_LIBRARY_PATH the loader takes it in place of the driver's.",
        fix="take the stubs folder out of LD_LIBRARY_PATH",
        judge=_stub,
        cuinit=(34,),
        texts=(r"Error 34: CUDA driver is a stub library", r"CUDA_ERROR_STUB_LIBRARY"),
        source="NVIDIA/warp issue 219",
    ),
    Condition(
        id="library.compat_driver",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="the forward-compatibility package does not match this driver",
        meaning="A cuda-compat package is a libcuda of a newer driver for an older kernel module. Each is for certain "
        "branches of driver, older than itself; with any other it does not start. Images of NVIDIA's bring one.",
        fix="take the compat folder out of LD_LIBRARY_PATH (or remove the package cuda-compat), or update the driver",
        judge=_compat,
        cuinit=(803,),
        source="NVIDIA CUDA Compatibility: forward compatibility",
    ),
    Condition(
        id="library.compat_card",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="forward compatibility is not supported on this card",
        meaning="Forward compatibility is for data centre cards, and a few of NVIDIA's for professionals. On any other "
        "the package's libcuda does not start.",
        fix="take the compat folder out of LD_LIBRARY_PATH (or remove the package cuda-compat); if torch then finds "
        "the driver too old, update the driver",
        judge=answers(804),
        cuinit=(804,),
        texts=(
            r"Error 804: forward compatibility was attempted on non supported HW",
            r"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        ),
        source="NVIDIA CUDA Compatibility: forward compatibility",
    ),
    Condition(
        id="library.other_version",
        rung="libraries",
        verdict="fail",
        certainty="strong",
        title="libcuda and the kernel module differ in version",
        meaning="The driver's libraries and its kernel module have to be of exactly one version. Another libcuda is "
        "found before the driver's own: through LD_LIBRARY_PATH, or left over from another driver.",
        settle="it starts once the other file is out of the way",
        fix="remove the other driver's packages (`dpkg -S` or `rpm -qf` tell whose the file is), then sudo ldconfig",
        judge=_other_version,
        cuinit=(803,),
    ),
    Condition(
        id="driver.mismatch",
        rung="libraries",
        verdict="fail",
        certainty="proof",
        title="driver libraries and loaded kernel module differ in version",
        meaning="The driver was updated while its old module is still loaded. Everything that starts from now on fails "
        "until the new module is.",
        fix="sudo reboot; or end all that uses the GPU, then sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && "
        "sudo modprobe nvidia",
        judge=_mismatch,
        cuinit=(803,),
        nvml=(VERSION_MISMATCH,),
        texts=(
            r"Driver/library version mismatch",
            r"RM has detected an NVML/RM version mismatch",
            r"Error 803: system has unsupported display driver / cuda driver combination",
            r"API mismatch: the client has the version",
        ),
    ),
    Condition(
        id="library.nvml_missing",
        rung="libraries",
        verdict="warn",
        certainty="proof",
        title="NVML's library is missing",
        meaning="torch works without libnvidia-ml for the most part. Temperature, power, memory, errors and processes "
        "of the GPUs are not to be read.",
        fix="install the driver's package with nvidia-smi (Ubuntu: nvidia-utils-*), then sudo ldconfig",
        judge=_no_nvml,
        nvml=(12,),
        texts=(r"NVML Shared Library Not Found",),
    ),
)
