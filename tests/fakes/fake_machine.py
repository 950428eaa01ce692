"""A machine as the kernel shows it: /proc, /sys, /dev, /etc and the folders of libraries, under a root of its own."""

from __future__ import annotations

from pathlib import Path

KERNEL = "6.8.0-51-generic"
DRIVER = "580.95.05"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
H200, RTX_5090 = "0x2335", "0x2b85"


class FakeMachine:
    """A root that is filled step by step; each step returns the machine, so that they can be strung together."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write({"proc/sys/kernel/osrelease": KERNEL + "\n", "sys/module/kernel/x": "", "proc/1/comm": "init\n"})
        self.log()
        (root / "dev").mkdir(exist_ok=True)
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def write(self, files: dict[str, str]) -> FakeMachine:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def link(self, name: str, target: str) -> FakeMachine:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return self

    def card(
        self, bus: int = 0x10, driver: str | None = "nvidia", *, device: str = H200, class_code: str = "0x030200"
    ) -> FakeMachine:
        """A card at the address that the fake libraries give their first, by its bus."""
        folder = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        self.write({f"{folder}/vendor": "0x10de\n", f"{folder}/device": device, f"{folder}/class": class_code})
        return self.link(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}") if driver else self

    def switch(self) -> FakeMachine:
        return self.card(0x40, None, device="0x22a3", class_code="0x068000")

    def module(self, version: str = DRIVER, *, is_open: bool = True) -> FakeMachine:
        """The kernel module, loaded, with its memory module."""
        kind = "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module"
        return self.write(
            {
                "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build  (root)\n",
                "sys/module/nvidia/x": "",
            }
        )

    def on_disk(self, kernel: str = KERNEL) -> FakeMachine:
        """The module's file for a kernel, with the one that runs installed."""
        self.write({f"lib/modules/{KERNEL}/modules.dep": ""})
        return self.write({f"lib/modules/{kernel}/updates/dkms/nvidia.ko.zst": ""})

    def nodes(self, *names: str) -> FakeMachine:
        return self.write({f"dev/{name}": "" for name in names or ("nvidiactl", "nvidia-uvm", "nvidia0")})

    def libraries(self, version: str = DRIVER, *, names: tuple[str, ...] = ("cuda", "nvidia-ml")) -> FakeMachine:
        for name in names:
            self.write({f"{LIBRARIES}/lib{name}.so.{version}": "elf"})
            self.link(f"{LIBRARIES}/lib{name}.so.1", f"lib{name}.so.{version}")
        return self

    def log(self, *lines: str) -> FakeMachine:
        return self.write({"dev/kmsg": "".join(f"4,{n},{n}000000,-;{line}\n" for n, line in enumerate(lines, 1))})

    def container(self) -> FakeMachine:
        return self.write({".dockerenv": ""})

    def wsl(self) -> FakeMachine:
        """WSL 2 as Windows lends it a GPU: no PCI device, no module, a node and a folder of libraries."""
        release = "5.15.167.4-microsoft-standard-WSL2"
        return self.write({"proc/sys/kernel/osrelease": release, "dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": "elf"})

    def driven(self, *, device: str = H200, is_open: bool = True) -> FakeMachine:
        """A card with its module, nodes and libraries: nothing is missing below NVML."""
        return self.card(device=device).module(is_open=is_open).on_disk().nodes().libraries()


def fake_torch(folder: Path, *, devices: int = 0, error: str | None = None, version: str = "2.14.0+cu130") -> Path:
    """A package `torch` built for CUDA 13 in a folder: it shows `devices`, on which each kernel is right or raises."""
    package = folder / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "version.py").write_text(f"__version__ = {version!r}\ncuda = '13.0'\nhip = None\nxpu = None\n")
    (package / "__init__.py").write_text(
        f"""
import time
from types import SimpleNamespace
from torch import version
__version__ = version.__version__
class Tensor:
    def __init__(self, sum): self._sum = sum
    def __add__(self, other): return Tensor(self._sum + other._sum)
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return self._sum
def made(sum):
    if {error!r}: raise RuntimeError({error!r})
    return Tensor(sum)
def ones(count, device): return made(count)
def eye(count, device): return made(count)
class Matrix:
    def __matmul__(self, other): return self
    def copy_(self, other, non_blocking): pass
def randn(size, dtype=None, device=None, pin_memory=False): return Matrix()
empty, float16, uint8 = randn, None, None
cuda = SimpleNamespace(
    synchronize=lambda device: time.sleep(0.001),
    is_available=lambda: {devices} > 0, device_count=lambda: {devices}, get_arch_list=lambda: ["sm_90", "sm_120"],
    get_device_name=lambda device: "NVIDIA Fake 100", get_device_capability=lambda device: (9, 0))
backends = SimpleNamespace()
xpu = None
"""
    )
    return folder
