"""What a paste states about itself, and the answers that depend on it."""

from __future__ import annotations

import pytest
from pasted import first

from gpucheck.explain.facts import Facts, read

NO_CODE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
WARNING = (
    "UserWarning: Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\nMinimum and Maximum cuda capability "
    "supported by this version of PyTorch is\n    (8.0) - ({})\n"
)


def facts(pasted: str) -> Facts:
    return read(pasted, pasted.lower())


@pytest.mark.parametrize(
    ("pasted", "version", "build"),
    [
        ("torch: 2.11.0+cpu", "2.11.0", "cpu"),
        ("Ultralytics 8.3.40 Python-3.11.9 torch-2.6.0+cpu", "2.6.0", "cpu"),
        ("PyTorch version: 2.3.0\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: N/A", "2.3.0", "cpu"),
        ("PyTorch version: 2.5.1\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: 6.2", "2.5.1", ""),
        ("PyTorch version: 2.4.0\nCUDA used to build PyTorch: 12.1", "2.4.0", "cu121"),
        ("[pip3] torch==2.7.1\n[pip3] torch==2.7.1+cu128", "2.7.1", "cu128"),
        ("run pip install torch==2.13.0 --index-url X", "", ""),
        ("torchvision==0.20.1+cu124", "", ""),
    ],
)
def test_torch_and_its_build(pasted: str, version: str, build: str) -> None:
    read = facts(pasted)
    assert (read.torch, read.build) == (version, build)


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("NVIDIA GeForce RTX 5060 Ti", ("12.0",)),
        ("Quadro RTX 5000", ()),
        ("NVIDIA RTX PRO 6000 Blackwell", ("12.0",)),
        ("NVIDIA GB10", ("12.1",)),
        ("NVIDIA H100 80GB HBM3", ("9.0",)),
        ("NVIDIA GeForce GTX 1080 Ti", ("6.1",)),
        ("AMD Radeon RX 7900", ()),
    ],
)
def test_a_gpu_by_its_name(name: str, capabilities: tuple[str, ...]) -> None:
    assert facts(f"GPU 0: {name}").capabilities == capabilities


def test_what_else_is_stated() -> None:
    read = facts(
        '[rank1]: File "D:\\proj\\gsplat\\gsplat\\strategy\\default.py", line 3, in f\n'
        '[rank1]: File "/x/site-packages/torch/nn/modules/module.py", line 3, in f\nGPU 0: NVIDIA GeForce RTX 4090\n'
        "Driver Version: 550.54  CUDA Version: 12.4\nray::f() (pid=12)\nValueError: a\nRuntimeError: b"
    )
    assert read.capabilities == ("8.9",)
    assert (read.packages, read.extension) == (("gsplat", "torch"), "gsplat")
    assert (read.ranks, read.driver_cuda, read.names) == ((1,), "12.4", frozenset({"ray"}))
    assert read.exceptions == ("valueerror", "runtimeerror")


@pytest.mark.parametrize(
    ("pasted", "has_code"),
    [
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.7.1+cu128", True),
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.7.1+cu126", False),
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.6.0+cu124", None),
        ("torch 2.7.1+cu128", None),
        (WARNING.format("12.0"), True),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'sm_120a']", False),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'sm_120f']", True),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'compute_120']", True),
        ("cuda capability 8.7\nget_arch_list(): ['sm_80', 'sm_86']", False),
        ("cuda capability 11.0\nget_arch_list(): ['sm_101']", True),
    ],
)
def test_whether_torch_has_code_for_the_gpu(pasted: str, has_code: bool | None) -> None:
    assert facts(pasted).has_code is has_code


@pytest.mark.parametrize(
    ("pasted", "id", "words"),
    [
        (
            "torch: 2.11.0+cpu\nRuntimeError: Failed to infer device type",
            "torch.cpu_only",
            "pip install --force-reinstall torch==2.11.0",
        ),
        (
            "ray.exceptions.RayTaskError(RuntimeError): ray::f() (pid=1)\nRuntimeError: No CUDA GPUs are available",
            "cuinit.100",
            "@ray.remote(num_gpus=1)",
        ),
        (
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total "
            "capacity of 23.69 GiB of which 121.00 MiB is free. Process 812 has 11.70 GiB memory in use.",
            "oom.cuda",
            "torch.cuda.set_device",
        ),
        (NO_CODE + "NVIDIA GeForce RTX 5090\nPyTorch:2.7.1+cu128", "cuda.no_kernel", "TORCH_CUDA_ARCH_LIST=12.0"),
        (NO_CODE + "NVIDIA GeForce RTX 5090\nPyTorch:2.7.1+cu126", "cuda.no_kernel", "torch==2.7.1 --index-url"),
        (WARNING.format("12.0"), "cuda.capability", "nothing to install"),
        (WARNING.format("9.0"), "cuda.capability", "install torch 2.7 or newer"),
        (
            'File "F:\\app\\torch\\_inductor\\cpp_builder.py", line 139, in f\nRuntimeError: '
            "Compiler: cl is not found.",
            "compile.compiler",
            "vcvarsall.bat",
        ),
        (
            "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nRuntimeError: CUDA error: out of "
            "memory\nLinux box 5.15.167.4-microsoft-standard-WSL2",
            "oom.host",
            "DataLoader(pin_memory=False)",
        ),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be", "oom.cuda", "pin less host memory"),
        (
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "compile.ptxas",
            "export TRITON_PTXAS_PATH=/usr/local/cuda-13.0/bin/ptxas",
        ),
        (
            "PyTorch version: 2.3.0\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: N/A\nPython "
            "platform: Linux-5.10.192-tegra\nIs CUDA available: False",
            "torch.cpu_only",
            "NVIDIA's torch wheel for your JetPack",
        ),
        (
            "Found GPU0 NVIDIA GeForce RTX 5090 which is of compute capability (CC) 12.0.\n- 9.0 which supports "
            "hardware CC >=9.0,<10.0\nYour installed torch==2.13.0+cpu does not include kernels for this GPU.\n  For "
            "CUDA 12.9 use pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu129\n",
            "cuda.capability",
            "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu129; nvidia-smi",
        ),
    ],
)
def test_an_answer_by_the_facts(pasted: str, id: str, words: str) -> None:
    answer = first(pasted)
    assert answer.id == id
    assert words in answer.then


def test_memory_that_the_allocator_did_not_ask_for_is_no_proof_of_a_full_gpu() -> None:
    assert first("RuntimeError: CUDA error: out of memory").certainty == "strong"
    assert first("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").certainty == "proof"
