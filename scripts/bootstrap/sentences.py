"""What preparing says: each states what, why, and what to do."""

from __future__ import annotations

from typing import Sequence

from .common import OLDEST_PYTHON
from .needs import name_of


def too_old(python: str, version: Sequence[int]) -> str:
    return "{} is Python {}, and gpucheck needs {}.{} or newer; set GPUCHECK_PYTHON to a newer one.".format(
        python, ".".join(map(str, version)), *OLDEST_PYTHON
    )


def no_venv(python: str, version: Sequence[int]) -> str:
    return (
        "no environment can be made from {}, because its venv module is missing or incomplete; on Debian and Ubuntu "
        "install it with `sudo apt install python{}.{}-venv` (python3-venv for the system's own Python), "
        "or set GPUCHECK_PYTHON to another Python.".format(python, version[0], version[1])
    )


def torch_found(version: str, folder: str) -> str:
    return "preparing an environment (only once) that uses torch {} in {} and does not change it".format(
        version, folder
    )


def torch_wanted(version: str, platform: str) -> str:
    """What is about to be fetched, how large it is, and how to do without."""
    if platform.startswith("linux"):
        size = "about 3 GB with the CUDA libraries (usual on Linux), about 200 MB for the CPU"
    else:
        size = "about 200 MB"
    return (
        "preparing an environment (only once); this Python has no torch, so torch {} is downloaded: {}. "
        "To use a torch that you have, stop this and set GPUCHECK_PYTHON to its Python.".format(version, size)
    )


def disk_full(free_bytes: int) -> str:
    return "the environment could not be made: the disk is full ({} MiB free); free disk space and start again.".format(
        free_bytes >> 20
    )


def pip_failed(missing: Sequence[str], code: int) -> str:
    return (
        "pip could not install {} (exit {}, see its output above); the first start needs the network or pip's own "
        "settings for an index, or set GPUCHECK_PYTHON to a Python that has torch.".format(
            ", ".join(name_of(requirement) for requirement in missing), code
        )
    )
