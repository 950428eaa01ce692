"""A whole machine for `gpucheck doctor`: fakes of both libraries, a torch of a few lines, an interpreter."""

from __future__ import annotations

import inspect
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine

import gpucheck.devices.command  # noqa: F401 - binds its Inventory before the doctor's is given another root
from gpucheck.doctor import command as doctor
from gpucheck.doctor.options import DoctorOptions
from gpucheck.machine import inventory, stack
from gpucheck.machine.host import ROOT
from gpucheck.report.report import Collector, Report

# As two cards are under load: at rest the fake's links sleep.
AWAKE = "pcie.width=16\npcie.generation=4\nsm_clock=1980\n"
TWO_GPUS = f"nvml.count=2\ncuda.order=0,1\nprocesses=\npersistence=1\n{AWAKE}"
TORCH = """
import types
version = types.SimpleNamespace(cuda={cuda!r}, hip=None, xpu=None)
__version__ = "2.11.0+{build}"
backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False))
{top}
class Result(float):
    def sum(self): return self
    def item(self): return float(self)
    def __add__(self, other): return Result(128.0)
    def __matmul__(self, other): return Result(16.0)
def ones(size, device): return {kernel}
def eye(size, device): return Result(16.0)
class Matrix:
    def __matmul__(self, other): return self
    def copy_(self, other, non_blocking): {load}
def randn(size, dtype=None, device=None, pin_memory=False): return Matrix()
empty, float16, uint8 = randn, None, None
class cuda:
    synchronize = staticmethod(lambda device: __import__("time").sleep(0.001))
    get_arch_list = staticmethod(lambda: {architectures!r})
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    get_device_name = staticmethod(lambda device: "NVIDIA Fake 100")
    get_device_capability = staticmethod(lambda device: (9, 0))
"""


def torch_of(
    folder: Path,
    *,
    cuda: str | None = "13.0",
    count: int = 2,
    top: str = "",
    kernel: str = "Result(64.0)",
    architectures: tuple[str, ...] = ("sm_90",),
    load: str = "pass",
) -> Path:
    """A site-packages with a torch of these answers."""
    package = folder / "site" / "torch"
    package.mkdir(parents=True)
    build = "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"
    package.joinpath("__init__.py").write_text(
        TORCH.format(
            cuda=cuda, build=build, count=count, top=top, kernel=kernel, architectures=list(architectures), load=load
        )
    )
    package.joinpath("version.py").write_text(f"__version__ = '2.11.0+{build}'\ncuda = {cuda!r}\nhip = None\n")
    return package.parent


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with two cards and all that belongs to them; and no variable of this one's."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    nodes = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
    machine = FakeMachine(tmp_path / "root").card(0x10).card(0x11).module().on_disk().nodes(*nodes).libraries()
    # The command line has no other root: there the adapters are given this one.
    for reader, name in ((inventory, "Inventory"), (stack, "read")):
        monkeypatch.setattr(reader, name, elsewhere(getattr(reader, name), machine.root))
    return Path(machine.root)


def elsewhere(read: Callable[..., Any], root: Path) -> Callable[..., Any]:
    """An adapter that reads `root` where it was to read this machine."""
    signature = inspect.signature(read)

    def redirected(*positional: Any, **named: Any) -> Any:
        bound = signature.bind(*positional, **named)
        if bound.arguments.get("root", ROOT) == ROOT:
            bound.arguments["root"] = root
        return read(*bound.args, **bound.kwargs)

    return redirected


def interpreter(folder: Path, site: Path | None = None, program: str = "") -> str:
    """An interpreter of its own: this one with nothing but `site` and the standard library."""
    path = folder / "python"
    path.write_text(program or f'#!/bin/sh\nPYTHONPATH="{site or ""}" exec "{sys.executable}" -S "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def diagnosed(options: DoctorOptions) -> Report:
    """What the command finds."""
    collector = Collector()
    doctor.command(options, collector)
    return collector.report(version="0", command="doctor", argv=(), started="", elapsed_s=0.0)


def told(report: Report) -> list[tuple[str, str]]:
    return [(finding.id, finding.verdict) for finding in report.findings]


def worst(report: Report) -> list[tuple[str, str]]:
    """What is more than a remark."""
    return [
        (finding.id, finding.verdict) for finding in report.findings if finding.verdict not in ("pass", "info", "skip")
    ]
