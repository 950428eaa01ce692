"""Which Python is at hand: its path, found without starting it."""

from __future__ import annotations

import os
from typing import Mapping, Optional

from .common import ENVIRONMENTS, OLDEST_PYTHON, USAGE, WINDOWS, Trouble
from .layers import read_stamp


def python_of(environment: str) -> Optional[str]:
    """The interpreter of an environment folder, venv or conda; None where it has none."""
    places = ("Scripts/python.exe", "python.exe") if WINDOWS else ("bin/python", "bin/python3")
    for place in places:
        path = os.path.join(environment, *place.split("/"))
        if os.path.isfile(path):
            return path
    return None


def choose(environ: Mapping[str, str], running: str) -> str:
    """The path of GPUCHECK_PYTHON (a path, a name on PATH or an environment's folder), else of the active
    environment's Python, else `running`, the Python that reads this. USAGE where GPUCHECK_PYTHON names none."""
    wanted = environ.get("GPUCHECK_PYTHON", "")
    if wanted:
        return _named(wanted, environ)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = environ.get(variable, "")
        found = python_of(active) if active else None
        if found:
            return _outside(os.path.abspath(found))
    return _outside(os.path.abspath(running))


def _named(wanted: str, environ: Mapping[str, str]) -> str:
    import shutil

    path = os.path.expanduser(wanted)
    found = python_of(path) if os.path.isdir(path) else shutil.which(path, path=environ.get("PATH"))
    if not found:
        raise Trouble(
            "GPUCHECK_PYTHON={} is no program that can be started; give the path of a Python {}.{} or newer.".format(
                wanted, *OLDEST_PYTHON
            ),
            USAGE,
        )
    return _outside(os.path.abspath(found))


def _outside(python: str) -> str:
    """`python`, or where it belongs to one of our own layers (somebody activated it), the Python that layer was made
    from: a layer made from a layer would not see the torch behind the first."""
    folder = os.path.dirname(os.path.dirname(python))
    if os.path.realpath(os.path.dirname(folder)) != os.path.realpath(ENVIRONMENTS):
        return python
    stamp = read_stamp(folder)
    return stamp["interpreter"] if stamp else os.path.realpath(python)
