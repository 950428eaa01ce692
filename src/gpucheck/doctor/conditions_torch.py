"""The torch that is diagnosed is not there, cannot be imported, is not for this GPU, or does not find it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from gpucheck.doctor import fixes
from gpucheck.doctor.condition import Condition, Evidence, Seen, on
from gpucheck.doctor.conditions_nvml import refusing
from gpucheck.machine.stack import KernelRun, TorchProbe
from gpucheck.machine.torch_probe_child import public

# The probe says a crash as the signal's name.
_SIGNAL = re.compile(r"SIG[A-Z0-9]+|signal \d+")
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_OLD_SYSTEM = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_[\d.]+\W? not found")
_NO_MODULE = re.compile(r"No module named ['\"]torch['\"]$")


def _kind(evidence: Evidence) -> str | None:
    """Return what the torch is built for: what it says itself, else what its files say."""
    probe = evidence.probe
    if probe.version is not None:
        return "cuda" if probe.cuda else "rocm" if probe.hip else "xpu" if probe.xpu else "cpu"
    return evidence.build.built_for if evidence.build.version else None


def torch_version(evidence: Evidence) -> str | None:
    """The version of the torch that is diagnosed; None where there is none."""
    return evidence.probe.version or evidence.build.version


def _cuda_build(evidence: Evidence) -> str:
    """The line that installs a torch for the GPUs and the driver that are here: of the version that is installed.

    What PYTHONPATH brings is taken out of it instead: it would come before whatever is installed.
    """
    entry = fixes.pythonpath_of(evidence.probe)
    if entry is not None:
        return fixes.out_of_pythonpath(entry)
    if not evidence.is_nvidia_here:
        return fixes.reinstall(fixes.installer(evidence), torch_version(evidence))
    # From JetPack 7 (R38) on a Jetson takes the wheels that servers take.
    release = re.search(r"\bR(\d+)", evidence.stack.jetson or "")
    if release is not None and int(release[1]) < 38:
        return fixes.JETSON
    capabilities = [card.compute_capability for card in evidence.cards if card.compute_capability]
    return build_line(evidence, capabilities)


def build_line(evidence: Evidence, capabilities: Iterable[str]) -> str:
    """The line that installs the published build which runs on hardware of these capabilities and on this driver."""
    requirement, tag = fixes.choose(
        capabilities,
        evidence.driver.libcuda_version or evidence.driver.cuda_version,
        evidence.host.architecture,
        version=torch_version(evidence),
        keep=built_for_cuda(evidence),
    )
    return fixes.install(fixes.installer(evidence), requirement, tag)


def built_for_cuda(evidence: Evidence) -> str | None:
    """The CUDA that the torch which is diagnosed was built for; None for another build, and where it is not known."""
    build = evidence.build
    if evidence.probe.version is not None:
        return evidence.probe.cuda
    return build.toolkit_version if build.built_for == "cuda" else None


def _not_started(evidence: Evidence) -> tuple[str, Seen] | None:
    """Return which condition keeps torch from being imported or from telling its devices, and how it shows."""
    probe, error = evidence.probe, evidence.probe.error or ""
    if probe.stage not in ("import", "ask") or (probe.error is None and not probe.timed_out):
        return None
    if probe.path is None and _NO_MODULE.search(error):
        said = f"{probe.executable}: {error}"
        return "torch.missing", Seen(said, {"executable": probe.executable}, fix=_cuda_build(evidence))
    shadowed = _shadowed(probe)
    if shadowed is not None:
        return "torch.shadowed", shadowed
    symbol = _UNDEFINED.search(error) if probe.stage == "import" else None
    if symbol is not None:
        return "torch.undefined_symbol", _undefined_symbol(evidence, symbol[1])
    step = "importing torch" if probe.stage == "import" else "asking torch for its devices"
    if _SIGNAL.match(error):
        said = f"{step} ended its process by {error}"
        return "torch.crashed", Seen(said, {"stage": probe.stage}, _cuda_build(evidence))
    # A process may raise and not end, where a thread of it goes on: what it raised is the cause.
    if probe.error is None:
        said = f"{step} did not finish within {evidence.torch_limit}"
        return "torch.hung", Seen(said, {"stage": probe.stage, "limit_s": probe.limit_s})
    broken = dict(probe.missing_files or {})
    details = {"stage": probe.stage, "path": probe.path, **({"missing_files": broken} if broken else {})}
    fix = fixes.packages_again(evidence, broken) if broken else _cuda_build(evidence)
    if (old := _OLD_SYSTEM.search(error)) is not None:  # the same wheel asks the system for as much
        other = "an older torch" if old[1] == "GLIBC" else "in conda: conda install -c conda-forge libstdcxx-ng"
        fix = f"use a newer system or container image, or {other}"
    return "torch.import_broken", Seen(f"{step}: {error}", details, fix)


def _shadowed(probe: TorchProbe) -> Seen | None:
    seen = {"shadowed_by": list(probe.shadowed_by), "path": probe.path, "error": probe.error}
    said = probe.error or "the import did not finish"
    if probe.shadowed_by:
        names = ", ".join(probe.shadowed_by)
        return Seen(
            f"{said}; the current folder contains {names}", seen, fix=f"rename {names}, or run from another folder"
        )
    if probe.stage == "ask" and probe.version is None:
        fix = f"remove or rename the torch in {probe.path}"
        return Seen(f"{said}: {probe.path} does not contain torch", seen, fix, certainty="proof")
    return None


def _undefined_symbol(evidence: Evidence, symbol: str) -> Seen:
    probe, given = evidence.probe, "LD_LIBRARY_PATH" in evidence.variables
    fix = None if given and fixes.pythonpath_of(probe) is None else _cuda_build(evidence)
    if probe.foreign_folders:
        fix = fixes.out_of_library_path(probe.foreign_folders)
    foreign = f"; loaded from elsewhere: {', '.join(probe.foreign_libraries)}" if probe.foreign_libraries else ""
    details = {"symbol": symbol, "LD_LIBRARY_PATH": given, "foreign_libraries": list(probe.foreign_libraries)}
    return Seen(f"{probe.error}{foreign}", details, fix)


def _cpu_build(evidence: Evidence) -> Seen | None:
    if _kind(evidence) != "cpu" or evidence.host.system == "Darwin":
        return None
    message, details = f"torch {torch_version(evidence)} contains no CUDA", {"version": torch_version(evidence)}
    if evidence.is_nvidia_here:
        return Seen(message, details, _cuda_build(evidence))
    return Seen(message, details, fix="", verdict="info", title="torch is a CPU-only build")


def _wrong_backend(evidence: Evidence) -> Seen | None:
    kind = _kind(evidence)
    if kind not in ("rocm", "xpu") or not evidence.is_nvidia_here or evidence.probe.other:
        return None
    name = {"rocm": "AMD's ROCm", "xpu": "Intel's XPU"}[kind]
    return Seen(f"torch {torch_version(evidence)} is built for {name}", {"built_for": kind}, _cuda_build(evidence))


def _driver_too_old(evidence: Evidence) -> Seen | None:
    """CUDA runs under a driver of its own major version or a newer one; a newer minor is no matter."""
    built = built_for_cuda(evidence)
    served = evidence.driver.libcuda_version or evidence.driver.cuda_version
    needs, has = _parts(built or "")[:1], _parts(served or "")[:1]
    if not has or needs <= has:
        return None
    least = fixes.LEAST_DRIVER.get(needs[0])
    update = f"update the driver{f' to {least} or newer' if least else ''}, or: "
    return Seen(
        f"torch {torch_version(evidence)} is built for CUDA {built}, but the driver supports CUDA {served}",
        {"torch_cuda": built, "driver_cuda": served, "driver": evidence.driver.version},
        update + _cuda_build(evidence),
    )


def _sees_none(evidence: Evidence) -> Seen | None:
    """A torch for CUDA that finds no device where CUDA shows some: what it says of it itself is all there is."""
    probe = evidence.probe
    if probe.available is not False or _kind(evidence) != "cuda" or not evidence.cuda_works:
        return None
    # What tells the reason has a condition of its own; on a Jetson it is the wheel.
    if _driver_too_old(evidence) or evidence.stack.jetson:
        return None
    shown = sum(card.cuda_index is not None for card in evidence.cards)
    words = [" ".join(warning.split()) for warning in probe.warnings if "CUDA" in warning]
    said = f"; torch says: {words[0]}" if words else ", and torch gives no reason"
    return Seen(
        f"CUDA shows {shown} device{'s' * (shown != 1)}, but torch.cuda.is_available() is False{said}",
        {
            "cuda": shown,
            "warnings": words,
            "libcuda": {"gpucheck": evidence.driver.libcuda_path, "torch": probe.libcuda},
        },
    )


TORCH = on(
    "torch",
    Condition(
        id="torch.missing",
        certainty="proof",
        title="torch is not installed",
        meaning="The checked interpreter finds no torch. Another environment may have one: check it with `--python "
        "PATH`. This is a fault on a machine without a GPU too, because nothing can be trained without torch.",
        fix="python -m pip install torch",
        patterns=(r"\bNo module named '?torch'?(?![\w.])",),
    ),
    Condition(
        id="torch.shadowed",
        title="a file in the current folder shadows torch",
        meaning="Python searches the current folder first. It imports a file or folder there that has the name of "
        "torch, or of a standard library module that torch imports.",
        settle="the import works from another folder",
        fix="rename the file, or run from another folder",
        patterns=(
            r"module 'torch' has no attribute 'cuda'",
            r"partially initialized module 'torch' has no attribute",
            r"No module named 'torch\._C'",
        ),
    ),
    Condition(
        id="torch.undefined_symbol",
        title="torch loads libraries of another version",
        meaning="A library that torch loads lacks a function that torch needs. It belongs to another CUDA than "
        "torch's, and usually comes from LD_LIBRARY_PATH or another installation.",
        settle="the import works with LD_LIBRARY_PATH unset",
        fix="unset LD_LIBRARY_PATH",
        patterns=(
            r"undefined symbol: (_Z\w*[NK](3c10|2at|5torch)|_*nvJitLink|cudnn|cublas|cusparse|nccl)\w*",
            r"__nvJitLink\w+",
        ),
    ),
    Condition(
        id="torch.crashed",
        certainty="proof",
        title="torch crashes on import or start",
        meaning="A signal ends the process. torch's libraries are damaged, built for another processor (SIGILL), or "
        "do not match each other.",
        fix="reinstall torch in a fresh environment",
    ),
    Condition(
        id="torch.hung",
        certainty="proof",
        title="torch does not answer",
        meaning="Possible causes are a network file system that does not answer, a driver that hangs, and a file that "
        "is imported instead of another and waits.",
        settle="`python -X faulthandler -X importtime -c 'import torch'` shows where it stops",
        fix="python -X importtime -c 'import torch'",
    ),
    Condition(
        id="torch.import_broken",
        certainty="proof",
        title="torch cannot be imported",
        meaning="The import raises an error: parts of torch are missing, damaged or from another version.",
        fix="reinstall torch in a fresh environment",
        patterns=(r"ImportError: lib(torch|c10|cu|nv|nccl|mkl)\w*\.so[\d.]*: cannot open shared object file",),
    ),
    Condition(
        id="torch.cpu_build",
        certainty="proof",
        title="this torch is a CPU-only build and cannot use the GPU",
        meaning="The wheel contains no CUDA, regardless of the installed driver and toolkit. `pip install torch` "
        "installs such a wheel on Windows, from a CPU index, and if another package requires it.",
        fix="install a torch that is built for CUDA",
        judge=_cpu_build,
        patterns=(r"Torch not compiled with CUDA enabled",),
    ),
    Condition(
        id="torch.wrong_backend",
        certainty="proof",
        title="this torch is built for another vendor's GPU",
        meaning="A torch for ROCm or XPU cannot use an NVIDIA GPU.",
        fix="install a torch that is built for CUDA",
        judge=_wrong_backend,
    ),
    Condition(
        id="torch.driver_too_old",
        certainty="proof",
        title="the driver is too old for this torch",
        meaning="A torch for CUDA 13 needs a driver that supports CUDA 13; a newer minor version does not matter. "
        "`driver version is insufficient` alone does not prove it: CUDA also reports it if no driver is visible, as "
        "in a container without a GPU.",
        fix="update the driver, or install a torch for an older CUDA",
        judge=_driver_too_old,
        patterns=(
            r"driver on your system is too old",
            r"CUDA driver version is insufficient for CUDA runtime version",
        ),
    ),
    Condition(
        id="torch.sees_none",
        certainty="proof",
        title="torch does not see the GPU that CUDA shows",
        meaning="The driver starts and shows a device to gpucheck, but not to torch in the same environment. torch "
        "loads other CUDA libraries than it was built with, or another libcuda.",
        fix="python -c 'import torch; torch.cuda.init()'",
        judge=_sees_none,
    ),
    by=_not_started,
)


# What a local version may say of what a wheel is built for: `2.13.0+cu130`.
_BUILT_FOR = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _two_versions(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    versions = (probe.versions or {}).get("torch", ())
    if not versions:
        return None
    how = fixes.installer(evidence)
    fix = f"{how.uninstall('torch')}, until it finds none; then {how.install(fixes.pinned(versions[0]))}"
    if probe.pythonpath_torch:
        # No installer sees what lies there, and none can remove it.
        fix = fixes.out_of_pythonpath(*probe.pythonpath_torch)
    if probe.conda_torch is not None:
        return _condas(probe, versions, how)
    if any(not _is_same_version(evidence, versions[0], other) for other in versions[1:]):
        where = f", in {' and '.join(probe.torch_folders)}" if len(probe.torch_folders) > 1 else ""
        details = {"versions": list(versions), "folders": list(probe.torch_folders)}
        return Seen(f"torch is installed as {' and '.join(sorted(set(versions)))}{where}", details, fix)
    loaded = probe.version
    if loaded is None or _is_same_version(evidence, loaded, versions[0]):
        return None
    return Seen(
        f"installed as {versions[0]}, but its files say {loaded}", {"versions": list(versions), "loaded": loaded}, fix
    )


def _condas(probe: TorchProbe, versions: Sequence[str], how: fixes.Installer) -> Seen:
    """Conda's torch beside pip's: both own files of one name, and what the next installation of either breaks."""
    return Seen(
        f"conda recorded torch {probe.conda_torch}, but pip installed {' and '.join(sorted(set(versions)))}",
        {"versions": list(versions), "conda": probe.conda_torch, "folders": list(probe.torch_folders)},
        "conda remove --force pytorch, which also removes files of pip's torch; then "
        f"{how.install(fixes.pinned(probe.version or versions[0]), anew=True)}",
        title="conda's torch and pip's are mixed in this environment",
    )


def _is_same_version(evidence: Evidence, text: str, other: str) -> bool:
    """The same release, and not built for two different things. Vendors' own suffixes are written in several ways."""
    local, other_local = text.partition("+")[2], other.partition("+")[2]
    kinds = [part for part in (local, other_local) if _BUILT_FOR.fullmatch(part)]
    return public(text) == public(other) and len(set(kinds)) < 2


def _mixed(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    if probe.active_elsewhere is None:
        return None
    place = f"this torch is in {os.path.dirname(probe.path)}" if probe.path else f"this Python is in {probe.prefix}"
    return Seen(
        f"{probe.active_elsewhere} is the active environment, but {place}",
        {"variable": probe.active_elsewhere, "prefix": probe.prefix},
        verdict="info" if evidence.torch_works else None,
    )


def _pynvml(evidence: Evidence) -> Seen | None:
    versions = evidence.probe.versions or {}
    # Since version 12 pynvml contains no module of that name.
    if not {"pynvml", "nvidia-ml-py"} <= set(versions) or _parts(versions["pynvml"][0]) >= (12,):
        return None
    details = {name: list(versions[name]) for name in ("pynvml", "nvidia-ml-py")}
    said = f"pynvml {details['pynvml'][0]} and nvidia-ml-py {details['nvidia-ml-py'][0]} are installed"
    how = fixes.installer(evidence)
    pinned = f"nvidia-ml-py=={details['nvidia-ml-py'][0]}"
    return Seen(said, details, f"{how.uninstall('pynvml')}; {fixes.packages_again(evidence, [pinned])}")


def _torchvision(evidence: Evidence) -> Seen | None:
    """torchvision 0.N belongs to torch 2.(N - 15), and both must be built for the same thing."""
    versions = evidence.probe.versions or {}
    vision = (versions.get("torchvision") or (None,))[0]
    torch = torch_version(evidence) or (versions.get("torch") or (None,))[0]
    # Of a vendor's own builds (2.6.0a0+ecf3bae40a.nv25.01) each is of whatever commit it took.
    if vision is None or torch is None or "a0+" in torch:
        return None
    ours, theirs = _parts(torch), _parts(vision)
    if len(ours) < 2 or len(theirs) < 2 or ours[0] != 2 or theirs[0] != 0:
        return None
    built = [part for part in (torch.partition("+")[2], vision.partition("+")[2]) if _BUILT_FOR.fullmatch(part)]
    if theirs[1] - 15 == ours[1] and len(set(built)) < 2:
        return None
    wanted = f"torchvision 0.{ours[1] + 15} belongs to torch 2.{ours[1]}"
    # torch stays as it is: it is torchvision that has to fit.
    tag = torch.partition("+")[2]
    fix = fixes.installer(evidence).install(
        f"{fixes.pinned(torch)} 'torchvision==0.{ours[1] + 15}.*'",
        index=tag if re.fullmatch(r"cpu|cu\d+|xpu", tag) else None,
    )
    if evidence.is_nvidia_here and (_kind(evidence) != "cuda" or evidence.stack.jetson) and not evidence.torch_works:
        fix = "replace torch first, and install torchvision with it from the same index"
    return Seen(f"torchvision {vision} with torch {torch}; {wanted}", {"torchvision": vision, "torch": torch}, fix)


def _triton(missing: Literal["compiler", "libcuda"]) -> Callable[[Evidence], Seen | None]:

    def judge(evidence: Evidence) -> Seen | None:
        probe = evidence.probe
        versions = probe.versions or {}
        if "triton" not in versions or not evidence.is_nvidia_here:
            return None
        version = versions["triton"][0]
        if missing == "compiler":
            return Seen(f"triton {version}, but no CC, gcc or clang") if probe.has_compiler is False else None
        loaded = evidence.driver.libcuda_path or probe.libcuda
        variables = {"TRITON_LIBCUDA_PATH", "LD_LIBRARY_PATH"} & evidence.variables
        if probe.cache_has_libcuda is not False or loaded is None or variables:
            return None
        return Seen(f"triton {version}; libcuda is {loaded} but not in the loader's cache", {"libcuda": loaded})

    return judge


# -- CUDA's libraries in torch's process: which were taken, which are gone, and which are not those it asks for --------

# More names than these tell nobody more.
SHOWN = 4
# Without one of these, operations that everybody uses fail; the others are used by some.
NEEDED = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink")


def _foreign(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    # A torch that cannot be imported because of one has a condition of its own, which names it.
    if not probe.foreign_libraries or "undefined symbol: " in (probe.error or ""):
        return None
    paths, folders = probe.foreign_libraries, probe.foreign_folders
    by = f", through LD_LIBRARY_PATH ({', '.join(folders)})" if folders else ""
    details: dict[str, Any] = {"paths": list(paths), "LD_LIBRARY_PATH": list(folders)}
    if folders:
        fix = fixes.out_of_library_path(folders)
    elif "LD_PRELOAD" in evidence.variables:
        fix = "unset LD_PRELOAD"
    else:
        fix = f"LD_DEBUG=libs {fixes.interpreter(probe.executable)} -c 'import torch' shows what loads them"
    return Seen(f"loaded from elsewhere: {', '.join(paths)}{by}", details, fix)


def _missing_libraries(evidence: Evidence) -> Seen | None:
    """Files that a package recorded and that are gone, and parts of cuDNN that the loader will not find."""
    probe = evidence.probe
    gone = {package: list(paths) for package, paths in (probe.missing_files or {}).items()}
    names = [path.rpartition("/")[2] for paths in gone.values() for path in paths]
    parts = [name for name in probe.cudnn_missing if name not in names]
    # An import error that names one of them is reported instead. Any other error may follow from the missing library.
    if (not names and not parts) or any(name in (probe.error or "") for name in names):
        return None
    missing = [*names, *parts]
    said = f"gone: {', '.join(missing[:SHOWN])}{f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else ''}"
    packages = f", of {', '.join(gone)}" if gone else ""
    needed = parts or [name for name in names if name.startswith(NEEDED)]
    details = {"missing_files": gone, "cudnn_missing": list(probe.cudnn_missing)}
    fix = _missing_fix(evidence, probe, gone)
    return Seen(f"{said}{packages}", details, fix, verdict="fail" if needed else None)


def _missing_fix(evidence: Evidence, probe: TorchProbe, gone: dict[str, list[str]]) -> str:
    """Return what was recorded is put back; a foreign cuDNN without its parts gives way; else torch's own is put
    first."""
    if gone:
        return fixes.packages_again(evidence, gone)
    if probe.foreign_folders and any("libcudnn" in path for path in probe.foreign_libraries):
        return fixes.out_of_library_path(probe.foreign_folders)
    absent = [wanted for wanted in probe.unmet or {} if wanted.startswith("nvidia-cudnn")]
    return fixes.packages_again(evidence, absent) if absent else fixes.cudnn_first(probe.executable)


def _unmet(evidence: Evidence) -> Seen | None:
    """Packages of CUDA's libraries that are not those which torch asks for."""
    unmet = dict(evidence.probe.unmet or {})
    if not unmet:
        return None
    said = [f"{wanted} ({version or 'none'} is here)" for wanted, version in unmet.items()]
    return Seen(
        f"torch {torch_version(evidence)} requires {', '.join(said)}",
        {"unmet": unmet},
        fixes.packages_again(evidence, unmet),
    )


PACKAGES: tuple[Condition, ...] = (
    Condition(
        id="torch.two_versions",
        verdict="warn",
        title="two versions of torch are mixed in this environment",
        meaning="The installed version on record and the loaded version differ: an installation was interrupted, or "
        "two tools (pip and conda) installed into one environment.",
        fix="python -m pip uninstall -y torch, until it finds none; then install one version. If PYTHONPATH contains "
        "a torch, unset PYTHONPATH",
        judge=_two_versions,
    ),
    Condition(
        id="torch.mixed_environments",
        verdict="warn",
        title="the active environment is not the one checked",
        meaning="gpucheck checks the torch of the interpreter that runs it. If gpucheck is installed by pipx or in "
        "another environment, your programs use a different torch.",
        fix='run this with --python "$(command -v python)"',
        judge=_mixed,
    ),
    Condition(
        id="torch.pynvml",
        verdict="warn",
        certainty="proof",
        title="two packages install the module pynvml",
        meaning="pynvml is the old name of nvidia-ml-py. Both install a module of the same name, the later one "
        "overwrites the other, and torch warns about it.",
        fix="python -m pip uninstall -y pynvml; python -m pip install --force-reinstall --no-deps "
        "nvidia-ml-py==VERSION, with the installed version",
        judge=_pynvml,
        patterns=(r"The pynvml package is deprecated",),
    ),
    Condition(
        id="torch.torchvision",
        verdict="warn",
        title="torchvision does not match torch",
        meaning="torchvision's compiled code fits one torch version and one build of it.",
        fix="install the matching torchvision from the index that torch came from: python -m pip install "
        "torch==VERSION 'torchvision==0.MINOR.*' --index-url INDEX; 0.(N + 15) belongs to torch 2.N",
        judge=_torchvision,
        patterns=(r"operator torchvision::nms does not exist",),
    ),
    Condition(
        id="triton.compiler",
        verdict="warn",
        certainty="proof",
        title="triton has no C compiler: torch.compile fails",
        meaning="Triton compiles a small C launcher for each kernel and needs CC, gcc or clang for it.",
        fix="install gcc, or set CC",
        judge=_triton("compiler"),
        patterns=(r"Failed to find C compiler",),
    ),
    Condition(
        id="triton.libcuda",
        verdict="warn",
        title="triton cannot find libcuda: torch.compile fails",
        meaning="CUDA starts, but libcuda is not in the loader's cache, where Triton searches for it.",
        fix="sudo ldconfig, or set TRITON_LIBCUDA_PATH to the folder of libcuda.so.1",
        judge=_triton("libcuda"),
        patterns=(r"libcuda\.so cannot found",),
    ),
    Condition(
        id="torch.foreign_libraries",
        verdict="warn",
        title="torch uses CUDA libraries from outside its environment",
        meaning="The environment has its own libraries, but others were loaded, usually through LD_LIBRARY_PATH. This "
        "causes errors and results that differ between machines.",
        fix="remove the other CUDA's folder from LD_LIBRARY_PATH",
        judge=_foreign,
    ),
    Condition(
        id="torch.missing_libraries",
        verdict="warn",
        certainty="proof",
        title="libraries that torch loads on demand are missing",
        meaning="Files that a package recorded are gone (a full disk, a reduced image), or cuDNN is incomplete. torch "
        "fails at the first operation that needs one, for example libcudnn_cnn at a convolution.",
        fix="reinstall the same version of the package; for cuDNN, add its folder to LD_LIBRARY_PATH",
        judge=_missing_libraries,
    ),
    Condition(
        id="torch.cuda_packages",
        verdict="warn",
        title="CUDA packages do not match what torch requires",
        meaning="torch's wheel requires exactly one version of each CUDA library package. Another one causes missing "
        "symbols or a cuDNN that does not match.",
        fix="install the versions that torch requires: python -m pip install --no-deps NAME==VERSION",
        judge=_unmet,
    ),
)


_NO_IMAGE = re.compile(r"no kernel image is available|not compatible with the current PyTorch|device kernel image is")
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def _capabilities(evidence: Evidence) -> dict[str, str]:
    """Each device's capability by torch's name, as torch says it, else as the driver does."""
    capabilities = dict(evidence.probe.capabilities or {})
    for card in evidence.cards:
        if card.cuda_index is not None and card.compute_capability:
            capabilities.setdefault(f"cuda:{card.cuda_index}", card.compute_capability)
    return capabilities


def _uncovered(evidence: Evidence, names: Sequence[str]) -> dict[str, int]:
    """The devices that code of none of these names runs on, with their capability as a number."""
    if evidence.probe.cuda is None:
        return {}
    numbers = {device: fixes.number(capability) for device, capability in _capabilities(evidence).items()}
    known = {device: value for device, value in numbers.items() if value is not None}
    return {device: value for device, value in known.items() if not any(fixes.runs_on(name, value) for name in names)}


def _without_code(evidence: Evidence) -> dict[str, int]:
    """The devices that none of torch's code runs on, and that no kernel was seen to run on."""
    ran = {run.device for run in evidence.probe.kernels if run.error is None}
    names = evidence.probe.architectures or ()
    return {device: value for device, value in _uncovered(evidence, names).items() if names and device not in ran}


def _judged(evidence: Evidence, *, is_old: bool) -> Seen | None:
    probe, without = evidence.probe, _without_code(evidence)
    if not without:
        return None
    known = [digits for name in probe.architectures or () for digits in re.findall(r"_(\d+)", name)]
    oldest = min(map(int, known), default=0)
    mine = {device: value for device, value in without.items() if (value < oldest) is is_old}
    if not mine:
        return None
    said = ", ".join(f"{_name(probe, device)} is sm_{value}" for device, value in mine.items())
    refused = any(run.device in mine and _NO_IMAGE.search(run.error or "") for run in probe.kernels)
    return Seen(
        f"{said}; torch {probe.version} has code for {', '.join(probe.architectures or ())}",
        {"capabilities": _capabilities(evidence), "architectures": list(probe.architectures or ())},
        build_line(evidence, _capabilities(evidence).values()),
        "proof" if refused else None,
    )


def _name(probe: TorchProbe, device: str) -> str:
    name = (probe.names or {}).get(device)
    return f"{device} ({name})" if name else device


def _ptx_only(evidence: Evidence) -> Seen | None:
    probe, without = evidence.probe, _without_code(evidence)
    if not probe.architectures:
        return None
    slow = _uncovered(evidence, [name for name in probe.architectures if name.startswith("sm_")])
    compiled = [f"{_name(probe, device)} is sm_{value}" for device, value in slow.items() if device not in without]
    if not compiled:
        return None
    return Seen(
        f"{', '.join(compiled)}; torch {probe.version} has {', '.join(probe.architectures)}",
        {"architectures": list(probe.architectures)},
    )


def _failing(evidence: Evidence) -> list[KernelRun]:
    """Kernels that failed, on devices that are there, that torch has code for, and that let this process in."""
    shown = sum(card.cuda_index is not None for card in evidence.cards)
    without = {*_without_code(evidence), *(card.id for card in refusing(evidence))}
    return [
        run
        for run in evidence.probe.kernels
        if run.error is not None
        and run.device not in without
        and (not shown or int(run.device.partition(":")[2] or 0) < shown)
    ]


def _kernel_failed(evidence: Evidence, *, of_memory: bool) -> Seen | None:
    runs = [run for run in _failing(evidence) if bool(_OUT_OF_MEMORY.search(run.error or "")) is of_memory]
    errors = {run.device: run.error for run in runs}
    return Seen("; ".join(f"{run.device}: {run.error}" for run in runs), {"errors": errors}) if runs else None


def _crashed_architecture(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    if probe.stage != "run" or probe.error is None:
        return None
    how = "ended its process by" if _SIGNAL.match(probe.error) else "raised"
    return Seen(f"a kernel {how} {probe.error}", {"kernels_that_ended": len(probe.kernels)})


def _hung_architecture(evidence: Evidence) -> Seen | None:
    probe = evidence.probe
    if probe.stage != "run" or not probe.timed_out:
        return None
    message = f"a kernel did not finish within {evidence.torch_limit}"
    return Seen(message, {"kernels_that_ended": len(probe.kernels), "limit_s": probe.limit_s})


ARCHITECTURE = on(
    "run",
    Condition(
        id="architecture.missing",
        rung="architecture",
        title="this torch has no code for this GPU",
        meaning="A wheel has machine code only for the architectures that it was built for. torch.cuda.is_available() "
        "is True, but the first kernel fails.",
        fix="install a torch that is built for this architecture",
        judge=partial(_judged, is_old=False),
        patterns=(
            r"no kernel image is available for execution on the device",
            r"with CUDA capability sm_\d+ is not compatible with the current PyTorch installation",
            r"does not include kernels for this GPU",
        ),
    ),
    Condition(
        id="architecture.dropped",
        rung="architecture",
        title="this torch dropped support for this GPU",
        meaning="Newer CUDA versions drop the oldest architectures: wheels for CUDA 13 start at sm_75, wheels for "
        "CUDA 12.6 at sm_50.",
        fix="install a torch for an older CUDA",
        judge=partial(_judged, is_old=True),
        patterns=(r"PyTorch no longer supports this GPU because it is too old",),
    ),
    Condition(
        id="architecture.ptx_only",
        rung="architecture",
        verdict="warn",
        title="torch has only PTX for this GPU: first use compiles kernels",
        meaning="The wheel has no machine code for this architecture, only PTX, which the driver compiles: the first "
        "use takes minutes.",
        fix="install a torch that is built for this architecture",
        judge=_ptx_only,
    ),
    Condition(
        id="run.out_of_memory",
        title="no GPU memory is left, not even for a tiny kernel",
        meaning="Another process uses the device's memory, or a process that crashed still holds it.",
        fix="gpucheck devices --processes",
        judge=partial(_kernel_failed, of_memory=True),
    ),
    Condition(
        id="run.kernel_failed",
        certainty="proof",
        title="a kernel fails on this GPU",
        meaning="torch sees the device, but a sum of 64 numbers or a 16 by 16 product raises an error or is wrong.",
        fix="CUDA_LAUNCH_BLOCKING=1 gpucheck smoke --device cuda; sudo dmesg | grep -i xid",
        judge=partial(_kernel_failed, of_memory=False),
    ),
    Condition(
        id="run.crashed",
        certainty="proof",
        title="torch's first kernel crashes the process",
        meaning="torch sees the device, but the process dies when it uses it.",
        fix="sudo dmesg | grep -i -e xid -e segfault",
        judge=_crashed_architecture,
    ),
    Condition(
        id="run.hung",
        certainty="proof",
        title="torch's first kernel does not finish",
        meaning="torch waits forever when it uses the device: a stuck driver, or one that compiles every kernel from "
        "PTX, which can take minutes.",
        fix="sudo dmesg | grep -i -e nvrm -e xid; then end the processes that use the GPU, and reboot",
        judge=_hung_architecture,
    ),
)
