"""In gpucheck.pyz this is `gpucheck._bundled`: it lets gpucheck alone import the packages that the file brings.

They are on no path, so that neither torch nor a program finds one that its environment lacks, and they stand before the
environment's own only for gpucheck and for each other: those of the environment may be too old. psutil is also in
processes that run a user's code, which must get the environment's own where there is one.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType

FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARY = os.path.join(FOLDER, "lib")
_BUNDLED = frozenset(os.path.splitext(name)[0] for name in os.listdir(LIBRARY) if ".dist-info" not in name)


class Finder:
    """The first finder of modules: what is bundled, for who is bundled too."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _BUNDLED or not _is_ours(sys._getframe(1)):
            return None
        if name == "psutil" and (own := PathFinder.find_spec(name)) is not None:
            return own
        return PathFinder.find_spec(name, [LIBRARY])


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the code that imports, behind Python's own importing, lies in this folder."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(FOLDER + os.sep)


sys.meta_path.insert(0, Finder)
