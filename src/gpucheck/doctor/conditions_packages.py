"""What is mixed up around torch: packages of its environment, CUDA's libraries in its process, torch.compile's needs.

No rung breaks of it: torch starts, and what fails is told where it fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gpucheck.doctor import fixes, wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_torch import torch_version
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.torch_probe import TorchProbe
from gpucheck.machine.torch_probe_child import version_key

# What a local version may say of what a wheel is built for: `2.13.0+cu130`.
_BUILT_FOR = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")


def _minor_older(evidence: Evidence) -> Seen | None:
    probe, served = evidence.torch, evidence.driver.libcuda_version or evidence.driver.cuda_version
    if probe is None or probe.cuda is None or served is None or "triton" not in (probe.versions or {}):
        return None
    built_parts, served_parts = _parts(probe.cuda), _parts(served)
    if built_parts[:1] != served_parts[:1] or built_parts <= served_parts:
        return None
    return Seen(f"torch is built for CUDA {probe.cuda}, and the driver serves {served}", {"driver_cuda": served})


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _two_versions(evidence: Evidence) -> Seen | None:
    probe = evidence.torch
    told = (probe.versions or {}).get("torch", ()) if probe else ()
    if probe is None or not told:
        return None
    how = fixes.installer(evidence)
    fix = f"{how.uninstall('torch')}, until it finds none; then {how.install(wheels.pinned(told[0]))}"
    if probe.pythonpath_torch:
        # No installer sees what lies there, and none can remove it.
        fix = fixes.out_of_pythonpath(*probe.pythonpath_torch)
    if probe.conda_torch is not None:
        return _condas(probe, told, how)
    if any(not _is_same_version(told[0], other) for other in told[1:]):
        where = f", in {' and '.join(probe.torch_folders)}" if len(probe.torch_folders) > 1 else ""
        told_versions = {"versions": list(told), "folders": list(probe.torch_folders)}
        return Seen(f"torch is installed as {' and '.join(sorted(set(told)))}{where}", told_versions, fix)
    loaded = probe.version
    if loaded is None or _is_same_version(loaded, told[0]):
        return None
    return Seen(f"installed as {told[0]}, and its files say {loaded}", {"versions": list(told), "loaded": loaded}, fix)


def _condas(probe: TorchProbe, told: Sequence[str], how: wheels.Installer) -> Seen:
    """Conda's torch beside pip's: both own files of one name, and what the next installation of either breaks."""
    return Seen(
        f"conda has torch {probe.conda_torch} on record, and pip installed {' and '.join(sorted(set(told)))}",
        {"versions": list(told), "conda": probe.conda_torch, "folders": list(probe.torch_folders)},
        f"conda remove --force pytorch, which removes files of pip's torch too; then "
        f"{how.install(wheels.pinned(probe.version or told[0]), anew=True)}",
        title="conda's torch and pip's are mixed in this environment",
    )


def _is_same_version(one: str, other: str) -> bool:
    """The same release, and not built for two different things. Vendors' own suffixes are written in several ways."""
    local, other_local = one.partition("+")[2], other.partition("+")[2]
    release, other_release = version_key(one)[0], version_key(other)[0]
    kinds = [part for part in (local, other_local) if _BUILT_FOR.fullmatch(part)]
    return release == other_release and len(set(kinds)) < 2


def _mixed(evidence: Evidence) -> Seen | None:
    probe = evidence.torch
    if probe is None or probe.active_elsewhere is None:
        return None
    return Seen(
        f"{probe.active_elsewhere} names another environment than {probe.prefix}, whose torch this is",
        {"variable": probe.active_elsewhere, "prefix": probe.prefix},
        verdict="info" if evidence.torch_works else None,
    )


def _pynvml(evidence: Evidence) -> Seen | None:
    versions = (evidence.torch.versions if evidence.torch else None) or {}
    if not {"pynvml", "nvidia-ml-py"} <= set(versions):
        return None
    told = {name: list(versions[name]) for name in ("pynvml", "nvidia-ml-py")}
    said = f"pynvml {told['pynvml'][0]} and nvidia-ml-py {told['nvidia-ml-py'][0]} are installed"
    how = fixes.installer(evidence)
    remove = how.uninstall("pynvml")
    if _parts(told["pynvml"][0]) >= (12,):
        title = "pynvml is only a name for nvidia-ml-py, and warns of itself"
        return Seen(f"{said}; from 12 on pynvml brings no module of that name", told, remove, "proof", "info", title)
    pinned = f"nvidia-ml-py=={told['nvidia-ml-py'][0]}"
    return Seen(said, told, f"{remove}; {fixes.packages_again(evidence, [pinned])}")


def _interpreter(evidence: Evidence) -> str:
    return wheels.interpreter(evidence.torch.executable if evidence.torch else None)


def _torchvision(evidence: Evidence) -> Seen | None:
    """torchvision 0.N belongs to torch 2.(N - 15), and both must be built for the same thing."""
    probe = evidence.torch
    versions = (probe.versions if probe else None) or {}
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
        f"{wheels.pinned(torch)} 'torchvision==0.{ours[1] + 15}.*'",
        index=tag if re.fullmatch(r"cpu|cu\d+|xpu", tag) else None,
    )
    return Seen(f"torchvision {vision} with torch {torch}; {wanted}", {"torchvision": vision, "torch": torch}, fix)


def _triton(missing: Literal["compiler", "libcuda"]) -> Callable[[Evidence], Seen | None]:
    """A judge of one of the two things that triton looks for."""

    def judge(evidence: Evidence) -> Seen | None:
        probe = evidence.torch
        if probe is None or "triton" not in (probe.versions or {}) or not evidence.is_nvidia_here:
            return None
        version = (probe.versions or {})["triton"][0]
        if missing == "compiler":
            return Seen(f"triton {version}, and no CC, gcc or clang") if probe.has_compiler is False else None
        loaded = evidence.driver.libcuda_path or probe.libcuda
        told = {"TRITON_LIBCUDA_PATH", "LD_LIBRARY_PATH"} & evidence.variables
        if probe.cache_has_libcuda is not False or loaded is None or told:
            return None
        return Seen(f"triton {version}; libcuda is {loaded} and not in the loader's cache", {"libcuda": loaded})

    return judge


# -- CUDA's libraries in torch's process: which were taken, which are gone, and which are not those it asks for --------

_UNDEFINED = re.compile(r"undefined symbol: ")
# More names than these tell nobody more.
SHOWN = 4
# Without one of these, operations that everybody uses fail; the others are used by some.
NEEDED = ("libtorch", "libc10", "libcudart", "libcublas", "libcudnn", "libnvrtc", "libnvJitLink")


def _foreign(evidence: Evidence) -> Seen | None:
    probe = evidence.torch
    # A torch that cannot be imported because of one has a condition of its own, which names it.
    if probe is None or not probe.foreign_libraries or _UNDEFINED.search(probe.error or ""):
        return None
    paths, folders = probe.foreign_libraries, probe.foreign_folders
    by = f", through LD_LIBRARY_PATH ({', '.join(folders)})" if folders else ""
    told: dict[str, Any] = {"paths": list(paths), "LD_LIBRARY_PATH": list(folders)}
    if folders:
        fix = fixes.out_of_library_path(folders)
    elif "LD_PRELOAD" in evidence.variables:
        fix = "unset LD_PRELOAD"
    else:
        fix = f"LD_DEBUG=libs {_interpreter(evidence)} -c 'import torch' shows what asks for them"
    runtime = _runtime_differs(probe)
    if runtime is not None and any("libcudart" in path for path in paths):
        by, told["runtime"] = f"{by}; {runtime}", probe.runtime
    return Seen(f"loaded from elsewhere: {', '.join(paths)}{by}", told, fix)


def _missing_libraries(evidence: Evidence) -> Seen | None:
    """Files that a package recorded and that are gone, and parts of cuDNN that the loader will not find."""
    probe = evidence.torch
    if probe is None:
        return None
    gone = {package: list(paths) for package, paths in (probe.missing_files or {}).items()}
    names = [path.rpartition("/")[2] for paths in gone.values() for path in paths]
    parts = [name for name in probe.cudnn_missing if name not in names]
    # Where the import fails for one of them, that is told in its place.
    if (not names and not parts) or (probe.error is not None and names):
        return None
    missing = [*names, *parts]
    said = f"gone: {', '.join(missing[:SHOWN])}{f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else ''}"
    packages = f", of {', '.join(gone)}" if gone else ""
    needed = parts or [name for name in names if name.startswith(NEEDED)]
    return Seen(
        f"{said}{packages}",
        {"missing_files": gone, "cudnn_missing": list(probe.cudnn_missing)},
        _missing_fix(evidence, probe, gone),
        verdict="fail" if needed else None,
    )


def _missing_fix(evidence: Evidence, probe: TorchProbe, gone: dict[str, list[str]]) -> str:
    """What was recorded is put back; a foreign cuDNN without its parts gives way; else torch's own is put first."""
    if gone:
        return fixes.packages_again(evidence, gone)
    if probe.foreign_folders and any("libcudnn" in path for path in probe.foreign_libraries):
        return fixes.out_of_library_path(probe.foreign_folders)
    absent = [wanted for wanted in probe.unmet or {} if wanted.startswith("nvidia-cudnn")]
    return fixes.packages_again(evidence, absent) if absent else fixes.cudnn_first(probe.executable)


def _unmet(evidence: Evidence) -> Seen | None:
    """Packages of CUDA's libraries that are not those which torch asks for."""
    unmet = dict((evidence.torch.unmet if evidence.torch else None) or {})
    if not unmet:
        return None
    said = [f"{wanted} ({version or 'none'} is here)" for wanted, version in unmet.items()]
    return Seen(
        f"torch {torch_version(evidence)} asks for {', '.join(said)}",
        {"unmet": unmet},
        fixes.packages_again(evidence, unmet),
    )


def _runtime_differs(probe: TorchProbe) -> str | None:
    """That libcudart is older than the one that torch was built with, or of another major version."""
    if probe.runtime is None or probe.cuda is None:
        return None
    has, built = _parts(probe.runtime), _parts(probe.cuda)
    if has[:1] == built[:1] and has >= built:
        return None
    return f"libcudart is of CUDA {probe.runtime}, and torch is built for CUDA {probe.cuda}"


def _runtime(evidence: Evidence) -> Seen | None:
    """The same of a libcudart that is not foreign; of one that is, it is told there."""
    probe = evidence.torch
    differs = None if probe is None else _runtime_differs(probe)
    if probe is None or differs is None or any("libcudart" in path for path in probe.foreign_libraries):
        return None
    return Seen(differs, {"runtime": probe.runtime, "torch_cuda": probe.cuda})


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="torch.driver_minor",
        rung=None,
        verdict="info",
        certainty="hint",
        title="the driver is slightly older than torch's CUDA",
        meaning="torch's own kernels run. Kernels that are compiled on the way, by Triton or NVRTC, may ask for more "
        "than the driver takes and fail with error 222.",
        fix="update the driver if torch.compile fails with an unsupported toolchain",
        judge=_minor_older,
        texts=(r"PTX was compiled with an unsupported toolchain",),
    ),
    Condition(
        id="torch.two_versions",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="two versions of torch are mixed in this environment",
        meaning="What is recorded as installed and what is loaded are not one version: an installation was cut off, "
        "or two tools (pip and conda) installed into one environment.",
        fix="python -m pip uninstall -y torch, until it finds none; then install one version once. One "
        "that is found through PYTHONPATH: unset PYTHONPATH",
        judge=_two_versions,
    ),
    Condition(
        id="torch.mixed_environments",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the active environment is not the one checked",
        meaning="gpucheck looks at the torch of the interpreter that runs it. Installed by pipx or in another "
        "environment, that is not the one that your programs use.",
        fix='run this with --python "$(command -v python)"',
        judge=_mixed,
    ),
    Condition(
        id="torch.pynvml",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="two packages install the module pynvml",
        meaning="pynvml is the old name of nvidia-ml-py. Both install a module of the same name, the later one "
        "overwrites the other, and torch warns of it.",
        fix="python -m pip uninstall -y pynvml; python -m pip install --force-reinstall --no-deps "
        "nvidia-ml-py==VERSION, the version that is there",
        judge=_pynvml,
        texts=(r"The pynvml package is deprecated",),
    ),
    Condition(
        id="torch.torchvision",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="torchvision does not match torch",
        meaning="torchvision has compiled code for one torch, of one version and built for one thing.",
        fix="install the torchvision of this torch from the index that torch came from: python -m pip install "
        "torch==VERSION 'torchvision==0.MINOR.*' --index-url INDEX; 0.(N + 15) belongs to torch 2.N",
        judge=_torchvision,
        texts=(r"operator torchvision::nms does not exist",),
        source="torchvision's README, table of versions",
    ),
    Condition(
        id="triton.compiler",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="triton has no C compiler: torch.compile fails",
        meaning="Triton compiles a small launcher in C for each kernel, and takes CC, gcc or clang for it.",
        fix="install gcc, or set CC",
        judge=_triton("compiler"),
        texts=(r"Failed to find C compiler",),
        source="triton, runtime/build.py",
    ),
    Condition(
        id="triton.libcuda",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="triton does not find libcuda: torch.compile fails",
        meaning="CUDA starts, but libcuda is not in the loader's cache, which is where Triton looks for it.",
        fix="sudo ldconfig, or set TRITON_LIBCUDA_PATH to the folder of libcuda.so.1",
        judge=_triton("libcuda"),
        texts=(r"libcuda\.so cannot found",),
        source="triton, backends/nvidia/driver.py",
    ),
    Condition(
        id="torch.foreign_libraries",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="torch uses CUDA libraries from outside its environment",
        meaning="The environment has its own, or this torch asks for them, and others were loaded in their place, "
        "mostly through LD_LIBRARY_PATH. Errors and results that differ from machine to machine come of it.",
        fix="take the folder of a foreign CUDA out of LD_LIBRARY_PATH",
        judge=_foreign,
        source="pytorch issue 134929",
    ),
    Condition(
        id="torch.missing_libraries",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="libraries that torch loads on demand are missing",
        meaning="An installed package recorded files that are gone (a full disk, an image made smaller, an "
        "installation that was cut off), or cuDNN is found without its parts. torch starts, and fails at the first "
        "operation that needs one: libcudnn_cnn at a convolution.",
        fix="reinstall the package in its version; for cuDNN, put its folder into LD_LIBRARY_PATH",
        judge=_missing_libraries,
        source="OpenNMT/CTranslate2 issue 1826; SYSTRAN/faster-whisper issue 1182; cuDNN documentation, API overview",
    ),
    Condition(
        id="torch.cuda_packages",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="CUDA packages do not match what torch requires",
        meaning="torch's wheel names the packages of CUDA's libraries in exactly one version each. Another version, "
        "put there for another package, or none at all, shows as missing symbols, a cuDNN that does not fit, or a "
        "library of the system's that is taken instead.",
        fix="install the versions that torch asks for: python -m pip install --no-deps NAME==VERSION",
        judge=_unmet,
        source="torch's metadata, Requires-Dist",
    ),
    Condition(
        id="torch.runtime_version",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the loaded CUDA runtime is not the one torch was built with",
        meaning="Within a major version a newer libcudart serves an older torch, never the other way round. Another "
        "one comes of another package's requirement, or of a search path.",
        fix="install the nvidia-cuda-runtime of torch's CUDA, which `python -c 'import torch; "
        "print(torch.version.cuda)'` tells",
        judge=_runtime,
        source="CUDA toolkit's release notes, CUDA minor version compatibility; cudaRuntimeGetVersion",
    ),
)
