"""Which GPUs of NVIDIA's sleep, by the kernel's own word: asking their driver would wake them.

A laptop switches its second GPU off while nothing uses it. Nothing that takes time is imported: it is asked first of
all.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
VENDOR, DISPLAY = "0x10de", "0x03"


def sleeping(root: Path = ROOT) -> tuple[str, ...]:
    """The PCI addresses of all of this machine's NVIDIA GPUs where every one is suspended; else none."""
    gpus = {}
    try:
        for folder in sorted((root / "sys/bus/pci/devices").iterdir()):
            if _text(folder / "vendor") == VENDOR and _text(folder / "class").startswith(DISPLAY):
                gpus[folder.name] = _text(folder / "power/runtime_status")
    except OSError:
        return ()
    return tuple(gpus) if gpus and set(gpus.values()) == {"suspended"} else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
