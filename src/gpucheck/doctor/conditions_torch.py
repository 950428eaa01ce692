"""Conditions of torch: torch is missing, cannot be imported, is not built for the GPU, or does not find the GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Condition, Evidence, Signs, on, proof
from gpucheck.doctor.conditions_nvml import refusing_gpus
from gpucheck.machine.stack import TorchProbe
from gpucheck.report.finding import Verdict
from gpucheck.report.report import few

# The error of a crashed probe is a signal's name.
_SIGNAL = re.compile(r"SIG[A-Z0-9]+|signal \d+")


def _target(evidence: Evidence) -> str | None:
    """Return the target of torch's build, by torch's report or else by its files; None without torch."""
    probe = evidence.probe
    if probe.version is not None:
        return "cuda" if probe.cuda else "rocm" if probe.hip else "xpu" if probe.xpu else "cpu"
    return evidence.build.built_for if evidence.build.version else None


def torch_version(evidence: Evidence) -> str | None:
    return evidence.probe.version or evidence.build.version


def _cuda_build(evidence: Evidence) -> str:
    """Return the command that installs this version of torch for the machine's GPUs and driver."""
    # A torch in PYTHONPATH would take precedence over the installed torch.
    if (entry := fixes.pythonpath_of(evidence.probe)) is not None:
        return fixes.out_of_pythonpath(entry)
    if not evidence.is_nvidia_here:
        return fixes.reinstall(fixes.installer(evidence), torch_version(evidence))
    return build_line(evidence, [gpu.compute_capability for gpu in evidence.gpus if gpu.compute_capability])


def _needs_jetsons_wheel(evidence: Evidence) -> bool:
    """Return whether this is a Jetson that needs NVIDIA's wheels. JetPack 7 (R38) and newer need no special wheels."""
    release = re.search(r"\bR(\d+)", evidence.stack.jetson or "")
    return release is not None and int(release[1]) < 38


def build_line(evidence: Evidence, capabilities: Iterable[str]) -> str:
    """Return the command that installs the published build for these compute capabilities and this driver."""
    if _needs_jetsons_wheel(evidence):
        return fixes.JETSON
    driver, architecture = evidence.served_cuda, evidence.host.architecture
    version, keep = torch_version(evidence), built_for_cuda(evidence)
    requirement, tag = fixes.choose(capabilities, driver, architecture, version=version, keep=keep)
    if tag is None:
        return "look for a build at https://pytorch.org/get-started, or build torch from source for this GPU"
    return fixes.installer(evidence).install(requirement, index=tag, reinstall=True)


def built_for_cuda(evidence: Evidence) -> str | None:
    """Return the CUDA version that torch was built for; None if it is not a CUDA build, or unknown."""
    build = evidence.build
    if evidence.probe.version is not None:
        return evidence.probe.cuda
    return build.toolkit_version if build.built_for == "cuda" else None


def _not_started(evidence: Evidence) -> tuple[str, Signs] | None:
    """Return the condition that prevents the import of torch or a list of its devices, and its signs."""
    probe, error = evidence.probe, evidence.probe.error or ""
    if probe.stage not in ("import", "ask") or (probe.error is None and not probe.timed_out):
        return None
    if probe.path is None and re.search(r"No module named ['\"]torch['\"]$", error):
        message = f"{probe.executable}: {error}"
        return "torch.missing", Signs(message, {"executable": probe.executable}, fix=_cuda_build(evidence))
    if probe.shadowed_by or (probe.stage == "ask" and probe.version is None):
        return "torch.shadowed", _shadowed(probe)
    symbol = re.search(r"undefined symbol: (\w+)", error) if probe.stage == "import" else None
    if symbol is not None:
        return "torch.undefined_symbol", _undefined_symbol(evidence, symbol[1])
    step = "importing torch" if probe.stage == "import" else "asking torch for its devices"
    # An exception of torch is the cause, even if a running thread kept the process from ending.
    if probe.error is None:
        message = f"{step} did not finish within {evidence.torch_limit}"
        return "torch.hung", Signs(message, {"stage": probe.stage, "limit_s": probe.limit_s})
    missing = dict(probe.missing_files or {})
    details = {"stage": probe.stage, "path": probe.path, **({"missing_files": missing} if missing else {})}
    fix = fixes.packages_again(evidence, missing) if missing else _cuda_build(evidence)
    # A reinstalled wheel would need the same system library.
    if re.search(r"(GLIBC|GLIBCXX|CXXABI)_[\d.]+\W? not found", error):
        fix = "use a newer system or container image, or an older torch; in conda: conda install libstdcxx-ng"
    if _SIGNAL.match(error):
        message, title = f"{step} ended its process by {error}", "torch crashes on import or start"
        return "torch.import_broken", Signs(message, details, fix, title=title)
    return "torch.import_broken", Signs(f"{step}: {error}", details, fix)


def _shadowed(probe: TorchProbe) -> Signs:
    details = {"shadowed_by": list(probe.shadowed_by), "path": probe.path, "error": probe.error}
    message, names = probe.error or "the import did not finish", ", ".join(probe.shadowed_by)
    if names:
        fix = f"rename {names}, or run from another folder"
        return Signs(f"{message}; the current folder contains {names}", details, fix)
    fix = f"remove or rename the torch in {probe.path}"
    return Signs(f"{message}: {probe.path} does not contain torch", details, fix, certainty="proof")


def _undefined_symbol(evidence: Evidence, symbol: str) -> Signs:
    probe, is_set = evidence.probe, "LD_LIBRARY_PATH" in evidence.variables
    fix = None if is_set and fixes.pythonpath_of(probe) is None else _cuda_build(evidence)
    if probe.foreign_folders:
        fix = fixes.out_of_library_path(probe.foreign_folders)
    foreign = f"; torch loads {', '.join(probe.foreign_libraries)}" if probe.foreign_libraries else ""
    details = {"symbol": symbol, "LD_LIBRARY_PATH": is_set, "foreign_libraries": list(probe.foreign_libraries)}
    return Signs(f"{probe.error}{foreign}", details, fix)


def _cpu_build(evidence: Evidence) -> Signs | None:
    built_for, version = _target(evidence), torch_version(evidence)
    vendor = {"rocm": "AMD's ROCm", "xpu": "Intel's XPU"}.get(built_for or "")
    if vendor and evidence.is_nvidia_here and not evidence.probe.other:
        message, title = f"torch {version} is built for {vendor}", "this torch is built for another vendor's GPU"
        return Signs(message, {"built_for": built_for}, _cuda_build(evidence), title=title)
    if built_for != "cpu" or evidence.host.system == "Darwin":
        return None
    message, details = f"torch {version} contains no CUDA", {"version": version}
    if evidence.is_nvidia_here:
        return Signs(message, details, _cuda_build(evidence))
    return Signs(message, details, fix="", verdict="info", title="torch is a CPU-only build")


def _driver_too_old(evidence: Evidence) -> Signs | None:
    """Report a driver whose newest CUDA has a lower major version than torch's CUDA."""
    required, served = built_for_cuda(evidence), evidence.served_cuda
    required_release, served_release = fixes.version_of(required), fixes.version_of(served)
    if required_release is None or served_release is None or required_release[0] <= served_release[0]:
        return None
    minimum = fixes.LEAST_DRIVER.get(required_release[0])
    return Signs(
        f"torch {torch_version(evidence)} is built for CUDA {required}, but the driver supports CUDA {served}",
        {"torch_cuda": required, "driver_cuda": served, "driver": evidence.driver.version},
        f"update the driver{f' to {minimum} or newer' if minimum else ''}, or: " + _cuda_build(evidence),
    )


def _sees_none(evidence: Evidence) -> Signs | None:
    """Report a CUDA build of torch that finds no device although CUDA shows a device."""
    probe = evidence.probe
    sees_none = probe.available is False and _target(evidence) == "cuda"
    if not sees_none or not evidence.cuda_works or _driver_too_old(evidence):
        return None
    shown = sum(gpu.cuda_index is not None for gpu in evidence.gpus)
    warnings = [" ".join(warning.split()) for warning in probe.warnings if "CUDA" in warning]
    reason = f"; torch says: {warnings[0]}" if warnings else ", and torch gives no reason"
    libraries = {"gpucheck": evidence.driver.libcuda_path, "torch": probe.libcuda}
    return Signs(
        f"CUDA shows {shown} device{'s' * (shown != 1)}, but torch.cuda.is_available() is False{reason}",
        {"cuda": shown, "warnings": warnings, "libcuda": libraries},
        # The wheels of PyTorch's index have no code for a Jetson before JetPack 7.
        fixes.JETSON if _needs_jetsons_wheel(evidence) else None,
    )


TORCH = on(
    "torch",
    proof(
        id="torch.missing",
        title="torch is not installed",
        meaning="The checked interpreter finds no torch. `--python PATH` checks another environment.",
        fix="python -m pip install torch",
        patterns=(r"\bNo module named '?torch'?(?![\w.])",),
    ),
    Condition(
        id="torch.shadowed",
        title="a file in the current folder shadows torch",
        meaning="Python imports a file of the current folder in place of torch or of a module that torch needs.",
        settle="the import works from another folder",
        fix="rename the file, or run from another folder",
        patterns=(
            "module 'torch' has no attribute 'cuda'|partially initialized module 'torch' has no attribute|No module "
            r"named 'torch\._C'",
        ),
    ),
    Condition(
        id="torch.undefined_symbol",
        title="torch loads libraries of another version",
        meaning="A library of another CUDA than torch's was loaded, usually through LD_LIBRARY_PATH.",
        settle="the import works with LD_LIBRARY_PATH unset",
        fix="unset LD_LIBRARY_PATH",
        patterns=(
            r"undefined symbol: (_Z\w*[NK](3c10|2at|5torch)|_*nvJitLink|cudnn|cublas|cusparse|nccl)\w*|__nvJitLink\w+",
        ),
    ),
    proof(
        id="torch.hung",
        title="torch does not answer",
        meaning="A network file system or a driver hangs, or Python imports a wrong file that waits.",
        settle="`python -X faulthandler -X importtime -c 'import torch'` shows the import that hangs",
        fix="python -X importtime -c 'import torch'",
    ),
    proof(
        id="torch.import_broken",
        title="torch cannot be imported",
        meaning="The import raises an error. Files of torch are missing, damaged or from another version.",
        fix="reinstall torch in a fresh environment",
        patterns=(r"ImportError: lib(torch|c10|cu|nv|nccl|mkl)\w*\.so[\d.]*: cannot open shared object file",),
    ),
    proof(
        id="torch.cpu_build",
        title="this torch is a CPU-only build and cannot use the GPU",
        meaning="The wheel contains no CUDA, so the driver does not matter. `pip install torch` installs a CPU-only "
        "wheel on Windows and from a CPU index. A torch for ROCm or XPU cannot use an NVIDIA GPU either.",
        fix="install a torch that is built for CUDA",
        judge=_cpu_build,
        patterns=(r"Torch not compiled with CUDA enabled",),
    ),
    proof(
        id="torch.driver_too_old",
        title="the driver is too old for this torch",
        meaning="A torch for CUDA 13 needs a driver that supports CUDA 13. `driver version is insufficient` alone is "
        "no proof: CUDA also reports this error without a driver, for example in a container without a GPU.",
        fix="update the driver, or install a torch for an older CUDA",
        judge=_driver_too_old,
        patterns=(r"driver on your system is too old", r"CUDA driver version is insufficient for CUDA runtime version"),
    ),
    proof(
        id="torch.sees_none",
        title="torch does not see the GPU that CUDA shows",
        meaning="torch loads CUDA libraries of another version, or another libcuda.",
        fix="python -c 'import torch; torch.cuda.init()'",
        judge=_sees_none,
    ),
    by=_not_started,
)


# The target in the local version of a build, such as cu130 in `2.13.0+cu130`.
_TARGET = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")


def _two_versions(evidence: Evidence) -> Signs | None:
    """Report a torch with several recorded versions, with another loaded version, or from both conda and pip."""
    probe = evidence.probe
    recorded = (probe.versions or {}).get("torch", ())
    others = [*recorded[1:], *filter(None, [probe.version])]
    if not recorded or (probe.conda_torch is None and all(_is_same(recorded[0], other) for other in others)):
        return None
    tool = fixes.installer(evidence)
    fix = f"{tool.uninstall('torch')}, until it finds none; then {tool.install(fixes.pinned(recorded[0]))}"
    if probe.pythonpath_torch:
        # Installers cannot remove packages on PYTHONPATH.
        fix = fixes.out_of_pythonpath(*probe.pythonpath_torch)
    if probe.conda_torch is not None:
        install = tool.install(fixes.pinned(probe.version or recorded[0]), reinstall=True)
        fix = f"conda remove --force pytorch, which also removes files of pip's torch; then {install}"
    by_conda = f"; conda recorded {probe.conda_torch}" if probe.conda_torch is not None else ""
    where = f", in {' and '.join(probe.torch_folders)}" if len(probe.torch_folders) > 1 else ""
    loaded = f"; {probe.version} is loaded" if probe.version is not None else ""
    details = {"versions": list(recorded), "loaded": probe.version, "conda": probe.conda_torch}
    message = f"torch is installed as {' and '.join(sorted(set(recorded)))}{where}{by_conda}{loaded}"
    return Signs(message, {**details, "folders": list(probe.torch_folders)}, fix)


def _is_same(text: str, other: str) -> bool:
    """Return whether two versions are the same release for the same target. Vendors' suffixes are ignored."""
    releases = {re.sub(r"(\.0)+$", "", version.partition("+")[0]) for version in (text, other)}
    targets = {local for version in (text, other) if _TARGET.fullmatch(local := version.partition("+")[2])}
    return len(releases) == 1 and len(targets) < 2


def _mixed(evidence: Evidence) -> Signs | None:
    probe = evidence.probe
    if probe.active_elsewhere is None:
        return None
    where = f"this torch is in {os.path.dirname(probe.path)}" if probe.path else f"this Python is in {probe.prefix}"
    details = {"variable": probe.active_elsewhere, "prefix": probe.prefix}
    verdict: Verdict | None = "info" if evidence.torch_works else None
    return Signs(f"{probe.active_elsewhere} is the active environment, but {where}", details, verdict=verdict)


def _torchvision(evidence: Evidence) -> Signs | None:
    """Report a torchvision that does not match torch: 0.N belongs to torch 2.(N - 15), with the same target."""
    versions = evidence.probe.versions or {}
    vision = (versions.get("torchvision") or (None,))[0]
    torch = torch_version(evidence) or (versions.get("torch") or (None,))[0]
    # A vendor's build (2.6.0a0+ecf3bae40a.nv25.01) may come from any commit.
    if vision is None or torch is None or "a0+" in torch:
        return None
    torch_release, vision_release = fixes.version_of(torch), fixes.version_of(vision)
    targets = {tag for text in (torch, vision) if _TARGET.fullmatch(tag := text.partition("+")[2])}
    if torch_release is None or vision_release is None or torch_release[0] != 2 or vision_release[0] != 0:
        return None
    if vision_release[1] - 15 == torch_release[1] and len(targets) < 2:
        return None
    minor = torch_release[1]
    both = f"{fixes.pinned(torch)} 'torchvision==0.{minor + 15}.*'"
    fix = fixes.installer(evidence).install(both, index=fixes.index_of(torch))
    if evidence.is_nvidia_here and (_target(evidence) != "cuda" or evidence.stack.jetson) and not evidence.torch_works:
        fix = "replace torch first, and install torchvision with torch from the same index"
    message = f"torchvision {vision} with torch {torch}; torchvision 0.{minor + 15} belongs to torch 2.{minor}"
    return Signs(message, {"torchvision": vision, "torch": torch}, fix)


def _no_compiler(evidence: Evidence) -> Signs | None:
    versions = (evidence.probe.versions or {}).get("triton", ())
    if evidence.probe.has_compiler is not False or not versions or not evidence.is_nvidia_here:
        return None
    return Signs(f"triton {versions[0]}; no CC, gcc or clang")


# Every program needs these libraries. Other libraries are for certain operations.
NEEDED = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink")


def _foreign(evidence: Evidence) -> Signs | None:
    probe = evidence.probe
    # If a foreign library prevents the import of torch, torch.undefined_symbol reports the library.
    if not probe.foreign_libraries or "undefined symbol: " in (probe.error or ""):
        return None
    paths, folders = probe.foreign_libraries, probe.foreign_folders
    # A preloaded library comes before the libraries in all folders.
    is_preloading = "LD_PRELOAD" in evidence.variables
    by = f", through LD_LIBRARY_PATH ({', '.join(folders)}){' or LD_PRELOAD' * is_preloading}" if folders else ""
    fix = f"LD_DEBUG=libs {fixes.interpreter(probe.executable)} -c 'import torch' shows what loads them"
    if folders:
        fix = fixes.out_of_library_path(folders) + ", and its libraries from LD_PRELOAD" * is_preloading
    elif is_preloading:
        fix = "unset LD_PRELOAD"
    details = {"paths": list(paths), "LD_LIBRARY_PATH": list(folders)}
    return Signs(f"torch loads {', '.join(paths)}{by}", details, fix)


def _missing_libraries(evidence: Evidence) -> Signs | None:
    """Report missing libraries of packages, missing parts of cuDNN, and packages of another version than required."""
    probe = evidence.probe
    missing = {package: list(paths) for package, paths in (probe.missing_files or {}).items()}
    names = [path.rpartition("/")[2] for paths in missing.values() for path in paths]
    parts = [name for name in probe.cudnn_missing if name not in names]
    if probe.unmet and not names and not parts:
        required = [f"{package} ({version or 'none'} is here)" for package, version in probe.unmet.items()]
        message = f"torch {torch_version(evidence)} requires {', '.join(required)}"
        title, fix = "CUDA packages do not match what torch requires", fixes.packages_again(evidence, probe.unmet)
        return Signs(message, {"unmet": dict(probe.unmet)}, fix, "strong", title=title)
    # If the import error has one of the names, torch.import_broken reports the error.
    if (not names and not parts) or any(name in (probe.error or "") for name in names):
        return None
    packages = f", of {', '.join(missing)}" if missing else ""
    needed = parts or [name for name in names if name.startswith(NEEDED)]
    damaged = list(missing) or [package for package in probe.unmet or {} if package.startswith("nvidia-cudnn")]
    if not missing and probe.foreign_folders and any("libcudnn" in path for path in probe.foreign_libraries):
        fix = fixes.out_of_library_path(probe.foreign_folders)
    elif damaged:
        fix = fixes.packages_again(evidence, damaged)
    else:
        # torch's cuDNN has to come first (OpenNMT/CTranslate2 issue 1826, SYSTRAN/faster-whisper issue 1182).
        code = """import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")"""
        fix = f"export LD_LIBRARY_PATH=$({fixes.interpreter(probe.executable)} -c '{code}'):$LD_LIBRARY_PATH"
    details = {"missing_files": missing, "cudnn_missing": list(probe.cudnn_missing)}
    return Signs(f"missing: {few([*names, *parts], ', ')}{packages}", details, fix, verdict="fail" if needed else None)


PACKAGES: tuple[Condition, ...] = (
    Condition(
        id="torch.two_versions",
        verdict="warn",
        title="two versions of torch are mixed in this environment",
        meaning="An installation was interrupted, or pip and conda installed into one environment.",
        fix="python -m pip uninstall -y torch, until it finds none; then install one version",
        judge=_two_versions,
    ),
    Condition(
        id="torch.mixed_environments",
        verdict="warn",
        title="the active environment is not the checked environment",
        meaning="gpucheck checks the interpreter that runs gpucheck. Your programs may use another torch.",
        fix='run this with --python "$(command -v python)"',
        judge=_mixed,
    ),
    proof(
        id="torch.pynvml",
        verdict="warn",
        title="two packages install the module pynvml",
        meaning="pynvml is the old name of nvidia-ml-py. Both packages install the same module, so torch warns.",
        fix="python -m pip uninstall -y pynvml; then reinstall the same version of nvidia-ml-py",
        patterns=(r"The pynvml package is deprecated",),
    ),
    Condition(
        id="torch.torchvision",
        verdict="warn",
        title="torchvision does not match torch",
        meaning="torchvision's compiled code fits one torch version and one build of it.",
        fix="install the torchvision that matches, from torch's index: 0.(N + 15) belongs to torch 2.N",
        judge=_torchvision,
        patterns=(r"operator torchvision::nms does not exist",),
    ),
    proof(
        id="triton.compiler",
        verdict="warn",
        title="triton has no C compiler: torch.compile fails",
        meaning="Triton compiles a small C launcher for each kernel. It needs CC, gcc or clang.",
        fix="install gcc, or set CC",
        judge=_no_compiler,
        patterns=(r"Failed to find C compiler",),
    ),
    Condition(
        id="triton.libcuda",
        verdict="warn",
        title="triton cannot find libcuda: torch.compile fails",
        meaning="CUDA starts, but Triton searches for libcuda in the loader's cache, which does not contain libcuda.",
        fix="sudo ldconfig, or set TRITON_LIBCUDA_PATH to the folder of libcuda.so.1",
        patterns=(r"libcuda\.so cannot found",),
    ),
    Condition(
        id="torch.foreign_libraries",
        verdict="warn",
        title="torch uses CUDA libraries from outside its environment",
        meaning="Foreign libraries were loaded, usually by LD_LIBRARY_PATH. They may cause errors or other results.",
        fix="remove the other CUDA's folder from LD_LIBRARY_PATH",
        judge=_foreign,
    ),
    proof(
        id="torch.missing_libraries",
        verdict="warn",
        title="libraries that torch loads on demand are missing",
        meaning="Files of a package are missing (a full disk, a reduced image), or cuDNN is incomplete.",
        fix="reinstall the same version of the package; for cuDNN, add its folder to LD_LIBRARY_PATH",
        judge=_missing_libraries,
    ),
)


_NO_IMAGE = re.compile(r"no kernel image is available|not compatible with the current PyTorch|device kernel image is")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def _capabilities(evidence: Evidence) -> dict[str, str]:
    capabilities = dict(evidence.probe.capabilities or {})
    for gpu in evidence.gpus:
        if gpu.cuda_index is not None and gpu.compute_capability:
            capabilities.setdefault(f"cuda:{gpu.cuda_index}", gpu.compute_capability)
    return capabilities


def _uncovered(evidence: Evidence, names: Sequence[str]) -> dict[str, int]:
    """Return the devices on which code for these architectures does not run, with their capability, such as 90."""
    numbers = {device: fixes.number(text) for device, text in _capabilities(evidence).items() if evidence.probe.cuda}
    known = {device: value for device, value in numbers.items() if value is not None}
    return {device: value for device, value in known.items() if not any(fixes.runs_on(name, value) for name in names)}


def _without_code(evidence: Evidence) -> dict[str, int]:
    """Return the devices for which torch has no code and on which no kernel ran."""
    ran = {run.device for run in evidence.probe.kernels if run.error is None}
    names = evidence.probe.architectures or ()
    return {device: value for device, value in _uncovered(evidence, names).items() if names and device not in ran}


def _no_code(evidence: Evidence) -> Signs | None:
    """Report devices for which torch has no code, or (as a warning) only PTX, which the driver compiles first."""
    probe, without = evidence.probe, _without_code(evidence)
    names = list(probe.architectures or ())
    if not without:
        by_ptx = _uncovered(evidence, [name for name in names if name.startswith("sm_")])
        by_ptx = {device: value for device, value in by_ptx.items() if device not in _uncovered(evidence, names)}
        message = ", ".join(f"{_name(probe, device)} is sm_{value}" for device, value in by_ptx.items())
        title = "torch has only PTX for this GPU: the first use compiles kernels for minutes"
        signs = Signs(f"{message}; torch {probe.version} has {', '.join(names)}", verdict="warn", title=title)
        return signs if by_ptx else None
    numbers = [int(digits) for name in names for digits in re.findall(r"_(\d+)", name)]
    is_dropped = all(value < min(numbers, default=0) for value in without.values())
    message = ", ".join(f"{_name(probe, device)} is sm_{value}" for device, value in without.items())
    capabilities = _capabilities(evidence)
    return Signs(
        f"{message}; torch {probe.version} has code for {', '.join(names)}",
        {"capabilities": capabilities, "architectures": names},
        build_line(evidence, capabilities.values()),
        "proof" if any(run.device in without and _NO_IMAGE.search(run.error or "") for run in probe.kernels) else None,
        title="this torch dropped support for this GPU" if is_dropped else None,
    )


def _name(probe: TorchProbe, device: str) -> str:
    name = (probe.names or {}).get(device)
    return f"{device} ({name})" if name else device


def _kernel_failed(evidence: Evidence) -> Signs | None:
    """Report failed kernels. Devices that torch has no code for, or that refuse this process, are left out."""
    probe, title, fix = evidence.probe, None, None
    shown = sum(gpu.cuda_index is not None for gpu in evidence.gpus)
    explained = {*_without_code(evidence), *(gpu.id for gpu in refusing_gpus(evidence))}
    errors = {
        run.device: run.error
        for run in probe.kernels
        if run.error is not None
        and run.device not in explained
        and (not shown or int(run.device.partition(":")[2] or 0) < shown)
    }
    if errors and all(map(_OUT_OF_MEMORY.search, errors.values())):
        title, fix = "no GPU memory is left, not even for a tiny kernel", "gpucheck devices --processes"
    if errors:
        message = "; ".join(f"{device}: {error}" for device, error in errors.items())
        return Signs(message, {"errors": errors}, fix, title=title)
    if probe.stage != "run" or probe.error is None:
        return None
    title = "torch's first kernel crashes the process" if _SIGNAL.match(probe.error) else None
    how = "ended its process by" if title else "raised"
    return Signs(f"a kernel {how} {probe.error}", {"kernels_that_ended": len(probe.kernels)}, title=title)


def _hung_kernel(evidence: Evidence) -> Signs | None:
    probe = evidence.probe
    if probe.stage != "run" or not probe.timed_out:
        return None
    details = {"kernels_that_ended": len(probe.kernels), "limit_s": probe.limit_s}
    return Signs(f"a kernel did not finish within {evidence.torch_limit}", details)


ARCHITECTURE = on(
    "run",
    Condition(
        id="architecture.missing",
        stage="architecture",
        title="this torch has no code for this GPU",
        meaning="A wheel has code only for certain architectures. On other GPUs is_available() is True, but the first "
        "kernel fails. Wheels for CUDA 13 start at sm_75, wheels for CUDA 12.6 at sm_50.",
        fix="install a torch that is built for this architecture; an old GPU needs a torch for an older CUDA",
        judge=_no_code,
        patterns=(
            "PyTorch no longer supports this GPU because it is too old|no kernel image is available for execution on "
            r"the device|with CUDA capability sm_\d+ is not compatible with the current PyTorch installation|does not "
            "include kernels for this GPU",
        ),
    ),
    proof(
        id="run.kernel_failed",
        title="a kernel fails on this GPU",
        meaning="torch sees the device, but a sum of 64 numbers or a 16 × 16 matrix product fails or is wrong.",
        fix="CUDA_LAUNCH_BLOCKING=1 gpucheck smoke --device cuda; sudo dmesg | grep -i xid",
        judge=_kernel_failed,
    ),
    proof(
        id="run.hung",
        title="torch's first kernel does not finish",
        meaning="The driver hangs, or it compiles every kernel from PTX, which can take minutes.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then end the processes that use the GPU, and reboot",
        judge=_hung_kernel,
    ),
)
