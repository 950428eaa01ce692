"""NVIDIA's two libraries, faked: compiled from C, found by LD_LIBRARY_PATH, answering from a script."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = {"libnvidia-ml.so.1": "fake_libnvidia_ml.c", "libcuda.so.1": "fake_libcuda.c"}
Fake = Callable[..., Path]


@functools.cache
def compiled(source: str, defines: tuple[str, ...]) -> Path:
    """The library made of this source, once for each set of defines and process."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the fake driver needs Linux and a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="fake-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "library.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", *(f"-D{name}" for name in defines), "-o", library, HERE / source],
        check=True,
    )
    return library


@pytest.fixture
def fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """`fake_driver("nvml.count=1\\n…", nvml=True, cuda=True, without=(…))` makes this the driver of every child from
    now on and returns the path of the script, which may be rewritten.

    A library that is False is there and cannot be loaded, one that is None is not there; `folder` is where they lie,
    `version` what the names of their files end in, with a link to each as the driver has it."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def make(
        script: str = "",
        *,
        nvml: bool | None = True,
        cuda: bool | None = True,
        without: tuple[str, ...] = (),
        folder: str | Path = "driver",
        version: str = "",
    ) -> Path:
        folder = tmp_path / folder
        folder.mkdir(exist_ok=True, parents=True)
        for name, there in (("libnvidia-ml.so.1", nvml), ("libcuda.so.1", cuda)):
            target = folder / name
            target.unlink(missing_ok=True)
            if there is None:
                if find_library(name.removeprefix("lib").partition(".")[0]) is not None:
                    pytest.skip(f"this machine has a real {name}")
                continue
            if version:
                target.symlink_to(f"{name.removesuffix('.1')}.{version}")
                target = folder / os.readlink(target)
            if there:
                shutil.copy(compiled(SOURCES[name], tuple(f"WITHOUT_{word}" for word in without)), target)
            else:
                # A real driver may be installed here: this file is found first and cannot be loaded.
                target.write_text("not a library")
        path = folder / "script"
        path.write_text(script)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
        monkeypatch.setenv("FAKE_DRIVER", str(path))
        return path

    yield make
