"""The layers that there are: where each stands, and whether it is complete and still true. Reads, never makes."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Optional

from .common import ENVIRONMENTS, ROOT, WINDOWS
from .needs import project_tables

LAYOUT = "1"  # counts into every layer's name: raised when layers are made differently, so that old ones are made anew


def layer_folder(python: str, pyproject: str, constraints: str, dev: bool = False) -> str:
    """Where the layer for these inputs stands. Its name changes with everything that decides what it holds."""
    real = os.path.realpath(python)
    inputs = [LAYOUT, ROOT, python, real, project_tables(pyproject), constraints]
    if WINDOWS and os.path.exists(real):  # there python.exe keeps its name from one version to the next
        inputs += [str(os.path.getsize(real)), str(os.path.getmtime(real))]
    digest = hashlib.sha256("\0".join(inputs).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    stem = os.path.splitext(os.path.basename(real))[0] if WINDOWS else os.path.basename(real)
    return os.path.join(ENVIRONMENTS, "{}-{}{}".format(stem, digest, "-dev" if dev else ""))


def read_stamp(folder: str) -> Optional[Dict[str, Any]]:
    """What `ready.json` says: `interpreter`, `torch` (the folder of one outside, or null) and `folders` (that
    Python's package folders). None where there is none to read: then the layer does not count."""
    try:
        with open(os.path.join(folder, "ready.json"), encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(folder: str, stamp: Dict[str, Any]) -> None:
    """Declare the layer complete; there is a whole stamp or none, also after a power cut."""
    path = os.path.join(folder, "ready.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def is_ready(folder: str) -> bool:
    """Whether the layer is complete and still true: its Python starts, and torch stands where it stood.

    Looks at a few file names, so it takes no time. A torch that has appeared in the Python at hand since makes it
    untrue as well: from then on that one is what a person asks about."""
    stamp = read_stamp(folder)
    if stamp is None or not os.path.exists(layer_python(folder)):
        return False
    if stamp["torch"]:
        return os.path.isdir(stamp["torch"])
    return not any(os.path.isfile(os.path.join(f, "torch", "__init__.py")) for f in stamp["folders"])


def layer_python(folder: str) -> str:
    """The path of a layer's interpreter."""
    return os.path.join(folder, "Scripts", "python.exe") if WINDOWS else os.path.join(folder, "bin", "python")
