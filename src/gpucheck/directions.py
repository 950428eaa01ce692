"""Which way a copy goes and from which memory: the field's words, how they are typed, and how a sentence has them."""

from __future__ import annotations

from typing import Any, Literal

from gpucheck.options import option

Direction = Literal["host_to_device", "device_to_host", "host_to_host"]
HostMemory = Literal["pageable", "pinned"]

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "both": ("host_to_device", "device_to_host"),
    "host_to_device": ("host_to_device",),
    "h2d": ("host_to_device",),
    "device_to_host": ("device_to_host",),
    "d2h": ("device_to_host",),
}
MEMORIES: dict[str, tuple[HostMemory, ...]] = {
    "both": ("pageable", "pinned"),
    "pageable": ("pageable",),
    "pinned": ("pinned",),
}
# In a sentence.
WAYS: dict[str, str] = {
    "host_to_device": "to the device",
    "device_to_host": "to the host",
    "host_to_host": "from host to host",
}
# In a table, and beside one.
SHORT_WAYS: dict[str, str] = {
    "host_to_device": "to device",
    "device_to_host": "to host",
    "host_to_host": "host to host",
}


def asked() -> Any:
    """The field of `--direction`: the ways that copies go."""
    return option(
        "Copy direction: both, host_to_device (h2d) or device_to_host (d2h).",
        DIRECTIONS["both"],
        name="--direction",
        metavar="WAY",
        parse=lambda text, _: DIRECTIONS[text],
        choices=tuple(DIRECTIONS),
        shown="both",
    )
