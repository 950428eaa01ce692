"""The torch that is diagnosed is not there, cannot be imported, is not for this GPU, or does not find it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpucheck.doctor import fixes, wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.evidence import Evidence
from gpucheck.machine.torch_probe import TorchProbe

# torch_probe says a crash as the signal's name.
_SIGNAL = re.compile(r"SIG[A-Z0-9]+|signal \d+")
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_NO_MODULE = re.compile(r"No module named ['\"]torch['\"]$")


def _kind(evidence: Evidence) -> str | None:
    """What the torch is built for: what it says itself, else what its files say."""
    probe = evidence.torch
    if probe is not None and probe.version is not None:
        return "cuda" if probe.cuda else "rocm" if probe.hip else "xpu" if probe.xpu else "cpu"
    return evidence.build.built_for if evidence.build.version else None


def torch_version(evidence: Evidence) -> str | None:
    """The version of the torch that is diagnosed; None where there is none."""
    return (evidence.torch.version if evidence.torch else None) or evidence.build.version


def _cuda_build(evidence: Evidence) -> str:
    """The line that installs a torch for the GPUs and the driver that are here: of the version that is installed.

    What PYTHONPATH brings is taken out of it instead: it would come before whatever is installed.
    """
    entry = fixes.pythonpath_of(evidence.torch) if evidence.torch else None
    if entry is not None:
        return fixes.out_of_pythonpath(entry)
    if not evidence.is_nvidia_here:
        return wheels.reinstall(fixes.installer(evidence), torch_version(evidence))
    # From JetPack 7 (R38) on a Jetson takes the wheels that servers take.
    release = re.search(r"\bR(\d+)", evidence.stack.jetson or "")
    if release is not None and int(release[1]) < 38:
        return wheels.JETSON
    capabilities = [card.compute_capability for card in evidence.cards if card.compute_capability]
    return build_line(evidence, capabilities)


def build_line(evidence: Evidence, capabilities: Iterable[str]) -> str:
    """The line that installs the published build which runs on hardware of these capabilities and on this driver."""
    choice = wheels.choose(
        capabilities,
        evidence.driver.libcuda_version or evidence.driver.cuda_version,
        evidence.host.architecture,
        version=torch_version(evidence),
        keep=built_for_cuda(evidence),
    )
    return wheels.install(fixes.installer(evidence), choice)


def built_for_cuda(evidence: Evidence) -> str | None:
    """The CUDA that the torch which is diagnosed was built for; None for another build, and where it is not known."""
    probe, build = evidence.torch, evidence.build
    if probe is not None and probe.version is not None:
        return probe.cuda
    return build.toolkit_version if build.built_for == "cuda" else None


def _failed(evidence: Evidence, *stages: str) -> TorchProbe | None:
    """The probe, where it ended early at one of these steps."""
    probe = evidence.torch
    ended = probe is not None and (probe.error is not None or probe.timed_out)
    return probe if ended and probe is not None and probe.stage in stages else None


def _is_missing(probe: TorchProbe) -> bool:
    return probe.path is None and _NO_MODULE.search(probe.error or "") is not None


def _missing(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import")
    if probe is None or not _is_missing(probe):
        return None
    return Seen(f"{probe.executable}: {probe.error}", {"executable": probe.executable}, fix=_cuda_build(evidence))


def _shadowed(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import", "ask")
    if probe is None or _is_missing(probe):
        return None
    seen = {"shadowed_by": list(probe.shadowed_by), "path": probe.path, "error": probe.error}
    said = probe.error or "the import did not end"
    if probe.shadowed_by:
        names = ", ".join(probe.shadowed_by)
        return Seen(f"{said}; the current folder has {names}", seen, fix=f"rename {names}, or run from another folder")
    if probe.stage == "ask" and probe.version is None:
        fix = f"remove or rename the torch in {probe.path}"
        return Seen(f"{said}: what is found in {probe.path} is no torch", seen, fix, certainty="proof")
    return None


def _undefined_symbol(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import")
    found = _UNDEFINED.search(probe.error or "") if probe else None
    if probe is None or found is None or _shadowed(evidence):
        return None
    given = "LD_LIBRARY_PATH" in evidence.variables
    fix = None if given and fixes.pythonpath_of(probe) is None else _cuda_build(evidence)
    if probe.foreign_folders:
        fix = fixes.out_of_library_path(probe.foreign_folders)
    foreign = f"; loaded from elsewhere: {', '.join(probe.foreign_libraries)}" if probe.foreign_libraries else ""
    told = {"symbol": found[1], "LD_LIBRARY_PATH": given, "foreign_libraries": list(probe.foreign_libraries)}
    return Seen(f"{probe.error}{foreign}", told, fix)


def _crashed(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import", "ask")
    if probe is None or not _SIGNAL.match(probe.error or "") or _shadowed(evidence):
        return None
    return Seen(f"{_step(probe)} ended its process by {probe.error}", {"stage": probe.stage}, _cuda_build(evidence))


def _hung(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import", "ask")
    if probe is None or not probe.timed_out or _shadowed(evidence):
        return None
    told = f"{_step(probe)} did not end within {evidence.torch_limit}"
    return Seen(told, {"stage": probe.stage, "limit_s": probe.limit_s})


def _step(probe: TorchProbe) -> str:
    return "importing torch" if probe.stage == "import" else "asking torch for its devices"


def _import_broken(evidence: Evidence) -> Seen | None:
    probe = _failed(evidence, "import", "ask")
    if probe is None or probe.error is None or _is_missing(probe):
        return None
    if any(judge(evidence) for judge in (_shadowed, _undefined_symbol, _crashed)):
        return None
    told: dict[str, Any] = {"stage": probe.stage, "path": probe.path}
    broken = dict(probe.missing_files or {})
    if broken:
        told["missing_files"] = broken
        return Seen(f"{_step(probe)}: {probe.error}", told, fixes.packages_again(evidence, broken))
    return Seen(f"{_step(probe)}: {probe.error}", told, _cuda_build(evidence))


def _cpu_build(evidence: Evidence) -> Seen | None:
    if _kind(evidence) != "cpu" or evidence.host.system == "Darwin":
        return None
    message = f"torch {torch_version(evidence)} is a CPU-only build"
    if evidence.is_nvidia_here:
        return Seen(message, {"version": torch_version(evidence)}, _cuda_build(evidence))
    return Seen(
        message, {"version": torch_version(evidence)}, fix="", verdict="info", title="torch is a CPU-only build"
    )


def _wrong_backend(evidence: Evidence) -> Seen | None:
    kind = _kind(evidence)
    if kind not in ("rocm", "xpu") or not evidence.is_nvidia_here or (evidence.torch and evidence.torch.other):
        return None
    name = {"rocm": "AMD's ROCm", "xpu": "Intel's XPU"}[kind]
    return Seen(f"torch {torch_version(evidence)} is built for {name}", {"built_for": kind}, _cuda_build(evidence))


def _driver_too_old(evidence: Evidence) -> Seen | None:
    """CUDA runs under a driver of its own major version or a newer one; a newer minor is no matter."""
    built = built_for_cuda(evidence)
    served = evidence.driver.libcuda_version or evidence.driver.cuda_version
    needs, has = wheels.major(built), wheels.major(served)
    if needs is None or has is None or needs <= has:
        return None
    least = wheels.LEAST_DRIVER.get(needs)
    update = f"update the driver{f' to {least} or newer' if least else ''}, or: "
    return Seen(
        f"torch {torch_version(evidence)} is built for CUDA {built}, and the driver serves CUDA {served}",
        {"torch_cuda": built, "driver_cuda": served, "driver": evidence.driver.version},
        update + _cuda_build(evidence),
    )


def _sees_none(evidence: Evidence) -> Seen | None:
    """A torch for CUDA that finds no device where CUDA shows some: what it says of it itself is all there is."""
    probe = evidence.torch
    if probe is None or probe.available is not False or _kind(evidence) != "cuda" or not evidence.cuda_works:
        return None
    # What tells the reason has a condition of its own; on a Jetson it is the wheel.
    if _driver_too_old(evidence) or evidence.stack.jetson:
        return None
    shown = sum(card.cuda_index is not None for card in evidence.cards)
    words = [" ".join(warning.split()) for warning in probe.warnings if "CUDA" in warning]
    said = f"; torch says: {words[0]}" if words else ", and torch says nothing of it"
    return Seen(
        f"CUDA shows {shown} device{'s' * (shown != 1)} and torch.cuda.is_available() is False{said}",
        {
            "cuda": shown,
            "warnings": words,
            "libcuda": {"gpucheck": evidence.driver.libcuda_path, "torch": probe.libcuda},
        },
    )


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="torch.missing",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="torch is not installed",
        meaning="The interpreter that was asked finds no torch. Another environment may have one: `--python PATH` "
        "asks that. It is a fault on a machine without a GPU too: there is nothing to train with.",
        fix="python -m pip install torch",
        judge=_missing,
        texts=(r"\bNo module named '?torch'?(?![\w.])",),
    ),
    Condition(
        id="torch.shadowed",
        rung="torch",
        verdict="fail",
        certainty="strong",
        title="a file in the current folder shadows torch",
        meaning="Python looks in the current folder first. A file or a folder there with the name of torch, or of a "
        "module of the standard library that torch imports, is taken in its place.",
        settle="the import works from another folder",
        fix="rename the file, or run from another folder",
        judge=_shadowed,
        texts=(
            r"module 'torch' has no attribute 'cuda'",
            r"partially initialized module 'torch' has no attribute",
            r"No module named 'torch\._C'",
        ),
    ),
    Condition(
        id="torch.undefined_symbol",
        rung="torch",
        verdict="fail",
        certainty="strong",
        title="torch loads libraries of another version",
        meaning="A library that torch loads lacks a function which it needs: it is of another CUDA than torch's own, "
        "mostly found through LD_LIBRARY_PATH, or left over from another installation.",
        settle="the import works with LD_LIBRARY_PATH unset",
        fix="unset LD_LIBRARY_PATH",
        judge=_undefined_symbol,
        texts=(
            r"undefined symbol: (_Z\w*[NK](3c10|2at|5torch)|_*nvJitLink|cudnn|cublas|cusparse|nccl)\w*",
            r"__nvJitLink\w+",
        ),
        source="pytorch issues 111469, 131312 and 134929",
    ),
    Condition(
        id="torch.crashed",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="torch crashes on import or start",
        meaning="Importing torch, or asking it for its devices, ends the process by a signal: its libraries are "
        "damaged, are for another processor (SIGILL), or do not go together.",
        fix="reinstall torch in a fresh environment",
        judge=_crashed,
    ),
    Condition(
        id="torch.hung",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="torch does not answer",
        meaning="Importing torch, or asking it for its devices, does not end. A file system over a network that does "
        "not answer looks so, a driver that hangs, and a file that is imported in place of another and waits.",
        settle="`python -X faulthandler -X importtime -c 'import torch'` shows how far it comes",
        fix="python -X importtime -c 'import torch'",
        judge=_hung,
    ),
    Condition(
        id="torch.import_broken",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="torch cannot be imported",
        meaning="The import raises: parts of torch are missing, damaged or of another version than the rest.",
        fix="reinstall torch in a fresh environment",
        judge=_import_broken,
        texts=(r"ImportError: lib(torch|c10|cu|nv|nccl|mkl)\w*\.so[\d.]*: cannot open shared object file",),
    ),
    Condition(
        id="torch.cpu_build",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="this torch is a CPU-only build and cannot use the GPU",
        meaning="The wheel has no CUDA in it, whatever driver and toolkit are installed. `pip install torch` takes "
        "such a wheel on Windows, from an index for the CPU, and where another package asked for it.",
        fix="install a torch that is built for CUDA",
        judge=_cpu_build,
        texts=(r"Torch not compiled with CUDA enabled",),
    ),
    Condition(
        id="torch.wrong_backend",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="this torch is built for another vendor's GPU",
        meaning="A torch for ROCm or XPU cannot use an NVIDIA GPU.",
        fix="install a torch that is built for CUDA",
        judge=_wrong_backend,
    ),
    Condition(
        id="torch.driver_too_old",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="the driver is too old for this torch",
        meaning="A torch for CUDA 13 needs a driver that serves CUDA 13: within a major version a newer torch runs "
        "under an older driver, from one to the next it does not. `driver version is insufficient` alone proves no old "
        "driver: CUDA says it as well where there is no driver to see, as in a container that was given no GPU.",
        fix="update the driver, or install a torch for an older CUDA",
        judge=_driver_too_old,
        texts=(
            r"driver on your system is too old",
            r"CUDA driver version is insufficient for CUDA runtime version",
        ),
        source="CUDA toolkit's release notes, CUDA minor version compatibility",
    ),
    Condition(
        id="torch.sees_none",
        rung="torch",
        verdict="fail",
        certainty="proof",
        title="torch does not see the GPU that CUDA shows",
        meaning="The driver starts and shows a device to gpucheck, and not to torch in the same environment: torch's "
        "own CUDA libraries are others than it was built with, or another libcuda is found by it.",
        settle="`LD_DEBUG=libs python -c 'import torch; torch.cuda.init()'` shows which libraries it takes",
        fix="python -c 'import torch; torch.cuda.init()'",
        judge=_sees_none,
    ),
)
