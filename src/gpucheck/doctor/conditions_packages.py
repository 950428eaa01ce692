"""What is mixed up around the torch that is diagnosed, and what torch.compile needs beside it: no rung breaks of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from gpucheck.doctor import fixes, wheels
from gpucheck.doctor.condition import Condition, Seen
from gpucheck.doctor.conditions_torch import torch_version
from gpucheck.doctor.evidence import Evidence

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
        fix = f"take {', '.join(probe.pythonpath_torch)} out of PYTHONPATH (unset PYTHONPATH)"
    if len(set(told)) > 1:
        where = f", in {' and '.join(probe.torch_folders)}" if len(probe.torch_folders) > 1 else ""
        told_versions = {"versions": list(told), "folders": list(probe.torch_folders)}
        return Seen(f"torch is installed as {' and '.join(sorted(set(told)))}{where}", told_versions, fix)
    loaded = probe.version
    if loaded is None or _is_same_version(loaded, told[0]):
        return None
    return Seen(f"installed as {told[0]}, and its files say {loaded}", {"versions": list(told), "loaded": loaded}, fix)


def _is_same_version(one: str, other: str) -> bool:
    """The same release, and not built for two different things. Vendors' own suffixes are written in several ways."""
    (release, _, local), (other_release, _, other_local) = one.partition("+"), other.partition("+")
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


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="torch.driver_minor",
        rung=None,
        verdict="info",
        certainty="hint",
        title="the driver is a little older than this torch's CUDA",
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
        "or two tools installed into one folder.",
        fix="python -m pip uninstall -y torch, until it finds none; then install one version once. One "
        "that is found through PYTHONPATH: unset PYTHONPATH",
        judge=_two_versions,
    ),
    Condition(
        id="torch.mixed_environments",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="another environment is active than the one that was looked at",
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
        title="two distributions bring the module pynvml",
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
        title="torchvision is for another torch",
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
)
