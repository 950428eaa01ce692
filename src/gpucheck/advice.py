"""What several commands advise alike, as text to type. Pure."""

from __future__ import annotations

# The settings that torch's allocator reads. 2.9.1 ignores the newer name for CUDA (pytorch issue 183387), versions
# before 2.9 do not know it, and later ones call the older deprecated: both together work in all.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator(setting: str) -> str:
    """How to give torch's allocator a setting, such as `expandable_segments:True`, whichever name this torch reads."""
    return " ".join(f"{name}={setting}" for name in ALLOCATOR_VARIABLES)
