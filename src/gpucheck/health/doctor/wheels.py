"""Which build of torch runs on which GPU and driver, and the line that installs it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

INDEX = "https://download.pytorch.org/whl"
# GPUs of a board of their own, which code for the others of their generation does not run on, and code for them only.
# DEVICE_REQUIREMENT of torch 2.13's torch/cuda/__init__.py.
APART = frozenset((53, 62, 72, 87, 101))
JETSON = "install the torch wheel that NVIDIA gives for your JetPack (see `Installing PyTorch for Jetson Platform`)"
# The least driver of each CUDA on Linux: table 3 of the CUDA toolkit's release notes, minor version compatibility.
LEAST_DRIVER = {11: "450", 12: "525", 13: "580"}


@dataclass(frozen=True, slots=True)
class Wheel:
    """A kind of published build: its index, its CUDA, and the hardware it has code for, on x86-64 and on aarch64."""

    tag: str
    cuda_major: int
    codes: tuple[int, ...]
    arm_codes: tuple[int, ...]


# The newest first. PYTORCH_RELEASES_CODE_CC of torch 2.13's torch/cuda/__init__.py; cu118 ended with torch 2.7.
WHEELS = (
    Wheel("cu130", 13, (75, 80, 86, 90, 100, 120), (80, 90, 100, 110, 120)),
    Wheel("cu129", 12, (75, 80, 86, 90, 100, 120), (80, 90, 100, 120)),
    Wheel("cu126", 12, (50, 60, 70, 75, 80, 86, 90), (80, 90)),
    Wheel("cu118", 11, (50, 60, 70, 75, 80, 86, 90), ()),
)


def number(capability: str) -> int | None:
    """`9.0` as 90; None for what is no capability."""
    match = re.fullmatch(r"(\d+)\.(\d)", capability)
    return int(match[1]) * 10 + int(match[2]) if match else None


def runs_on(architecture: str, capability: int) -> bool:
    """Whether code of this name (`sm_90`, `sm_90a`, `compute_90`) runs on hardware of this capability (90).

    Machine code runs on its own major version from its own minor on, PTX on everything as new as itself or newer.
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", architecture)
    if match is None:
        return False
    code, own = int(match[2]), match[3]
    if own == "a":
        return code == capability
    if match[1] == "compute":
        return code <= capability
    if code in APART or capability in APART:
        return code == capability
    return code // 10 == capability // 10 and code <= capability


def tag_for(capabilities: Iterable[str], driver_major: int | None, architecture: str | None = None) -> str | None:
    """The newest published build that runs on all of this hardware and this driver; None where there is none.

    `architecture` is the processor's, as the system names it; None is taken for x86-64.
    """
    wanted = [value for value in map(number, capabilities) if value is not None]
    for wheel in WHEELS:
        fits = driver_major is None or wheel.cuda_major <= driver_major
        codes = wheel.arm_codes if (architecture or "").lower() in ("aarch64", "arm64") else wheel.codes
        if fits and codes and all(any(runs_on(f"sm_{code}", value) for code in codes) for value in wanted):
            return wheel.tag
    return None


def install(python: str | None, tag: str | None) -> str:
    """The line that installs it into the environment of `python`."""
    if tag is None:
        return "look for a build at https://pytorch.org/get-started, or build torch from source for this GPU"
    return f"{interpreter(python)} -m pip install --force-reinstall torch --index-url {INDEX}/{tag}"


def reinstall(python: str | None) -> str:
    """The line that installs torch anew where there is no GPU to choose a build for."""
    return f"{interpreter(python)} -m pip install --force-reinstall torch"


def interpreter(path: str | None) -> str:
    """It as a shell takes it. Windows' shells know no single quotes; where a space asks for any, PowerShell wants &."""
    if path is None or "\\" not in path:
        return shlex.quote(path or "python")
    return f'& "{path}"' if " " in path else path


def major(version: str | None) -> int | None:
    """The major number of a version such as `13.0`."""
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None
