"""What several commands advise alike, as text to type. Pure."""

from __future__ import annotations

import re

# The settings that torch's allocator reads. 2.9.1 ignores the newer name for CUDA (pytorch issue 183387), versions
# before 2.9 do not know it, and later ones call the older deprecated: both together work in all.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# ROCm's libraries for these generations are built for the first part of each: gfx1030 and gfx1100 (AMD's ROCm
# documentation, "Linux support matrices"; ROCm/ROCm issues 1743 and 2503). Another generation's code does not run.
ROCM_OVERRIDES = {"103": ("RDNA2", "10.3.0"), "110": ("RDNA3", "11.0.0")}


def allocator(setting: str) -> str:
    """How to give torch's allocator a setting, such as `expandable_segments:True`, whichever name this torch reads."""
    return " ".join(f"{name}={setting}" for name in ALLOCATOR_VARIABLES)


def rocm_override(architecture: str) -> str | None:
    """The variable that lets ROCm use its libraries on a near relative of what they are built for (`gfx1032`).

    None where there is no relative: code of another generation does not run.
    """
    match = re.fullmatch(r"gfx(\d{2}\d)[0-9a-f](?::.*)?", architecture)
    _, version = ROCM_OVERRIDES.get(match[1] if match else "", ("", None))
    return None if version is None else f"HSA_OVERRIDE_GFX_VERSION={version}"


def rocm_overrides() -> str:
    """Each generation that has one, for a text that does not name its architecture."""
    return ", ".join(f"HSA_OVERRIDE_GFX_VERSION={version} on {name}" for name, version in ROCM_OVERRIDES.values())
