"""Where a pasted text comes from, and a step that works there."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from pasted import first

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.facts import Platform, marked
from gpucheck.explain.match import find
from gpucheck.explain.steps import step

FRAME = 'Traceback (most recent call last):\n  File "{}", line 310, in _lazy_init\n'


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (FRAME.format("/Users/me/venv/lib/python3.12/site-packages/torch/cuda/__init__.py"), {"mac"}),
        (FRAME.format("/opt/homebrew/lib/python3.12/site-packages/torch/cuda/__init__.py"), {"mac"}),
        (FRAME.format("C:\\Users\\me\\venv\\Lib\\site-packages\\torch\\cuda\\__init__.py"), {"windows"}),
        (FRAME.format("/c/Users/me/venv/Lib/site-packages/torch/cuda/__init__.py"), set()),
        (FRAME.format("C:/Users/me/venv/Lib/site-packages/torch/cuda/__init__.py"), {"windows"}),
        (FRAME.format("/mnt/c/Users/me/ComfyUI/main.py"), {"wsl"}),
        ("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/nvcuda64.dll", {"wsl"}),
        ("Linux pc 5.15.167.4-microsoft-standard-WSL2 #1 SMP", {"wsl"}),
        ("see https://docs.nvidia.com/cuda/wsl-user-guide/index.html", set()),
        ("rocdevice.cpp:2986: Aborting with error : HSA_STATUS_ERROR_EXCEPTION", {"rocm"}),
        ("torch 2.9.1+rocm6.4", {"rocm"}),
        ("amdgpu 0000:06:00.0: ring gfx timeout", {"rocm"}),
        ("amdgpu 0000:06:00.0: ready\nNVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", set()),
        ("ROCm version: Could not collect\nRuntimeError: CUDA error: out of memory", set()),
        (FRAME.format("/home/me/venv/lib/python3.12/site-packages/torch/cuda/__init__.py"), set()),
    ],
)
def test_the_marks_of_a_platform(pasted: str, expected: set[Platform]) -> None:
    assert marked(pasted.lower().replace('"', "")) == expected


CPU_BUILD = "AssertionError: Torch not compiled with CUDA enabled"


def test_a_mac_is_not_told_to_install_cuda() -> None:
    here = first(FRAME.format("/home/me/main.py") + CPU_BUILD)
    mac = first(FRAME.format("/Users/me/ComfyUI/main.py") + CPU_BUILD)
    assert here.id == mac.id == "torch.cpu_only"
    assert "PyTorch's index of your CUDA" in here.then
    assert mac.then.startswith('use device "mps"')


@pytest.mark.parametrize(
    "pasted",
    [
        ":0:rocdevice.cpp :2986: 707 us: Callback: Queue 0x7f0a Aborting with error : HSA_STATUS_ERROR_EXCEPTION: An "
        "HSAIL operation resulted in a hardware exception. code: 0x1016",
        "RuntimeError: HIP error: unspecified launch failure",
        "RuntimeError: HIP error: an illegal memory access was encountered",
        "Memory critical error by agent node-0 (Agent handle: 0x5581) on address 0x7f9. Reason: Memory in use.",
    ],
)
def test_amds_gpus_have_no_xid_and_no_compute_sanitizer(pasted: str) -> None:
    answer = first(pasted)
    assert answer.then == (
        "AMD_SERIALIZE_KERNEL=3 python … ends the traceback at the failing line; sudo dmesg | grep -i amdgpu "
        "shows the driver's messages"
    )


def test_on_windows_a_paging_file_and_no_expandable_segments() -> None:
    path = "C:\\\\Users\\\\me\\\\torch\\\\lib\\\\cudnn_ops64_9.dll"
    answer = first(f'OSError: [WinError 1455] The paging file is too small. Error loading "{path}"')
    assert answer.then.startswith("use a larger paging file")
    memory = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 "
        "GiB of which 0 bytes is free. Of the allocated memory 4.00 GiB is allocated by PyTorch, and 3.00 GiB is "
        "reserved by PyTorch but unallocated."
    )
    assert first(memory).then.startswith("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    windows = first(FRAME.format("D:\\ComfyUI\\main.py") + memory)
    assert windows.then.startswith("set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128")


def test_inside_wsl_the_driver_is_windowss() -> None:
    answer = first(
        FRAME.format("/mnt/c/Users/me/main.py")
        + "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"
    )
    assert answer.id == "cuinit.999"
    assert answer.then.startswith("run nvidia-smi inside WSL. If it fails, update NVIDIA's driver in Windows")


# Rows about Linux's kernel, containers and schedulers, which none of these platforms has; NVLink and InfiniBand.
_LINUXS = (
    "kernel.",
    "bus.",
    "xid.",
    "container.",
    "kubernetes.",
    "slurm.",
    "jetson.",
    "nvswitch.",
    "mig.",
    "nccl.",
    "setup.",
)
_FOREIGN: dict[Platform, tuple[str, tuple[str, ...]]] = {
    "mac": (
        r"nvidia-smi|sudo|dmesg|gpu-reset|modprobe|CUDA build",
        (
            "cuda.",
            "cublas.",
            "cudnn.",
            "cufft.",
            "curand.",
            "cusolver.",
            "cusparse.",
            "hip.",
            "xpu.",
            "dist.",
            "nvml.",
            "power.",
        ),
    ),
    "windows": (
        r"dmesg|\bexport |free -h|rm -r|LD_LIBRARY|apt-get|\bsudo\b",
        ("cublas.", "cudnn.", "hip.", "xpu.", "dist.", "import.", "tensorflow."),
    ),
    "wsl": (r"modprobe|dmesg(?!.{0,30}(oom|killed))|gpu-reset|dkms", ("hip.", "xpu.")),
    "rocm": (r"compute-sanitizer|\bxid\b|nvidia-smi", ("nvml.", "cuinit.", "cuda.ecc", "cuda.nvlink", "cudnn.")),
    "xpu": (r"nvidia-smi|CUDA_VISIBLE", ("nvml.", "cuinit.", "cuda.", "cudnn.", "hip.")),
    "directml": (r"nvidia-smi", ("nvml.", "cuda.", "cuinit.", "cudnn.", "cublas.", "hip.")),
}


@pytest.mark.parametrize("platform", get_args(Platform))
def test_no_step_names_a_command_that_the_platform_does_not_have(platform: Platform) -> None:
    foreign, others = _FOREIGN[platform]
    named = {
        text.id: row
        for text in TEXTS
        if not text.id.startswith((*_LINUXS, *others))
        for row in [step({platform}, text.id, text.fix)]
        if re.search(foreign, row, re.IGNORECASE)
    }
    assert named == {}


def test_without_a_mark_every_step_is_the_texts_own() -> None:
    assert all(step((), text.id, text.fix) == text.fix for text in TEXTS)
    (match,) = find(CPU_BUILD, TEXTS, OF_CONDITIONS)
    assert match.facts.platforms == frozenset()
