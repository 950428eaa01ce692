"""CUDA's libraries in torch's process: which were taken, which are gone, and which are not those it asks for.

No rung breaks of it: torch starts, and what fails is told where it fails.
"""

from __future__ import annotations

import re
from typing import Any

from gpucheck.doctor import fixes, wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_torch import torch_version
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.torch_probe import TorchProbe

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


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _interpreter(evidence: Evidence) -> str:
    return wheels.interpreter(evidence.torch.executable if evidence.torch else None)


CONDITIONS: tuple[Condition, ...] = (
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
        title="libraries that torch loads later are missing",
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
        title="CUDA packages are not those that torch asks for",
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
        title="the CUDA runtime that is loaded is not the one that torch was built with",
        meaning="Within a major version a newer libcudart serves an older torch, never the other way round. Another "
        "one comes of another package's requirement, or of a search path.",
        fix="install the nvidia-cuda-runtime of torch's CUDA, which `python -c 'import torch; "
        "print(torch.version.cuda)'` tells",
        judge=_runtime,
        source="CUDA toolkit's release notes, CUDA minor version compatibility; cudaRuntimeGetVersion",
    ),
)
