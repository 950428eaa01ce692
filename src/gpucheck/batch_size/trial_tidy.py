"""Keeps torch from leaving on the disk what nobody asked for."""

from __future__ import annotations

import importlib
import os
import tempfile

# Where torch keeps what it compiled. It makes the folder, and sets this, as soon as its compiler is imported.
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def import_compiler() -> None:
    """Import torch's compiler, which the first optimizer does (2.13), without the cache folder that this makes.

    An empty one would stay wherever a process is killed before it could remove it. Compiling makes it anew.
    """
    if CACHE in os.environ:  # the user's own
        return
    os.environ[CACHE] = tempfile.gettempdir()  # a folder that is there
    try:
        importlib.import_module("torch._dynamo")
    finally:
        os.environ.pop(CACHE, None)
