"""The numbers in an error text, in every wording, and what they come to."""

from __future__ import annotations

from typing import Any

import pytest
from pasted import SAMPLES, first

from gpucheck.explain import figures
from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import find
from gpucheck.units import GIB, KIB, MIB, TIB


def numbers(pasted: str) -> tuple[str, figures.Figures]:
    """The id of a pasted text, and its figures."""
    match = find(pasted, TEXTS, OF_CONDITIONS)[0]
    return match.text.id, figures.read(match.text.id, match.excerpt, match.context)


def bytes_(value: float, unit: int) -> int:
    return round(value * unit)


# --- memory of a GPU --------------------------------------------------------------------------------------------------

TORCH_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 60.00 MiB (GPU 1; 11.17 GiB total capacity; 505.96 MiB "
    "already "
    "allocated; 12.50 MiB free; 530.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation."
)
TORCH_1_OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.00 GiB total capacity; 7.00 GiB already "
    "allocated; 0 bytes free; 2.00 GiB cached)"
)
TORCH_2_0 = TORCH_1.replace("RuntimeError", "torch.cuda.OutOfMemoryError")
TORCH_2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 572.00 MiB. GPU 0 has a total capacty of 79.15 "
    "GiB of which 321.31 MiB is free. Including non-PyTorch memory, this process has 10.00 GiB memory in use. Process "
    "1234 has 60.00 GiB memory in use. Process 99 has 414.00 MiB memory in use. Of the allocated memory 4.04 GiB is "
    "allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
TORCH_2_9 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 GiB. GPU 3 has a total capacity of 79.15 "
    "GiB of "
    "which 70.00 GiB is free. 40.00 GiB allowed; Including non-PyTorch memory, this process has 9.00 GiB memory in "
    "use. "
    "Of the allocated memory 7.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and 100.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (
            TORCH_1,
            {
                "gpu": 1,
                "requested_bytes": 60 * MIB,
                "total_bytes": bytes_(11.17, GIB),
                "allocated_bytes": bytes_(505.96, MIB),
                "free_bytes": bytes_(12.5, MIB),
                "reserved_bytes": 530 * MIB,
            },
        ),
        (
            TORCH_1_OLD,
            {"gpu": 0, "requested_bytes": 2 * GIB, "free_bytes": 0, "reserved_bytes": 9 * GIB, "cached_bytes": 2 * GIB},
        ),
        (TORCH_2_0, {"gpu": 1, "cached_bytes": 530 * MIB - bytes_(505.96, MIB)}),
        (
            TORCH_2_1,
            {
                "gpu": 0,
                "requested_bytes": 572 * MIB,
                "total_bytes": bytes_(79.15, GIB),
                "free_bytes": bytes_(321.31, MIB),
                "own_bytes": 10 * GIB,
                "allocated_bytes": bytes_(4.04, GIB),
                "cached_bytes": 5 * GIB,
                "processes": [{"pid": 1234, "bytes": 60 * GIB}, {"pid": 99, "bytes": 414 * MIB}],
            },
        ),
        (
            TORCH_2_9,
            {"gpu": 3, "allowed_bytes": 40 * GIB, "private_pools_bytes": GIB, "cached_bytes": 100 * MIB},
        ),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 9.00 GB, max allowed: "
            "18.00 GB). Tried to allocate 2.00 GB on private pool.",
            {
                "allocated_bytes": 8 * GIB,
                "other_bytes": 9 * GIB,
                "allowed_bytes": 18 * GIB,
                "requested_bytes": 2 * GIB,
            },
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of "
            "16.00 "
            "GiB of which 1.00 GiB is free.",
            {"requested_bytes": 256 * MIB, "total_bytes": 16 * GIB, "free_bytes": GIB},
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 "
            "bytes.",
            {"requested_bytes": MIB},
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to\nallocate 2.00 GiB. GPU 0 has a total\ncapacity of "
            "79.15 GiB of which 1.00\nGiB is free.",
            {"requested_bytes": 2 * GIB, "total_bytes": bytes_(79.15, GIB), "free_bytes": GIB},
        ),
    ],
)
def test_what_a_gpu_out_of_memory_says(pasted: str, expected: dict[str, Any]) -> None:
    name, read = numbers(pasted)
    assert name.startswith("oom.")
    assert {key: read.numbers.get(key) for key in expected} == expected


def test_who_holds_the_memory_and_what_to_change_first() -> None:
    _, read = numbers(TORCH_2_1)
    assert read.says == (
        "GPU 79.15 GiB, your tensors 4.04 GiB, torch's cache 5 GiB, process 1234 60 GiB, other programs 8.43 GiB, "
        "free 321.31 MiB, requested 572 MiB"
    )
    assert read.then == "use another GPU, or end process 1234 if it is not part of your job"


# In a container torch does not know its own pid and lists itself as a process: figures of public reports.
ITSELF = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.20 GiB is free. Process 76883 has {} GiB memory in use. Of the allocated memory {} GiB is allocated by "
    "PyTorch, and {} GiB is reserved by PyTorch but unallocated."
)


def test_the_process_that_holds_what_torch_counts_is_your_own() -> None:
    _, read = numbers(ITSELF.format("77.94", "60.00", "17.50"))
    assert read.says == ("GPU 79.15 GiB, your tensors 60 GiB, torch's cache 17.5 GiB, free 1.2 GiB, requested 2 GiB")
    assert (read.numbers["own_bytes"], read.numbers["own_pids"]) == (bytes_(77.94, GIB), [76883])
    assert read.numbers["processes"] == []
    assert "76883" not in read.says + read.then and "end" not in read.then.replace("expandable", "").split()


def test_a_size_that_is_none_is_left_out() -> None:
    """NVML's "not available", as torch prints it under WSL."""
    _, read = numbers(ITSELF.format("17179869184.00", "10.00", "0.10"))
    assert "processes" not in read.numbers and "17179869184" not in read.says


def test_what_is_cached_comes_on_top_of_what_is_allocated() -> None:
    _, read = numbers(TORCH_1_OLD)
    assert read.says == "GPU 10 GiB, your tensors 7 GiB, torch's cache 2 GiB, free 0 bytes, requested 2 GiB"


def test_a_large_cache_is_for_the_allocator() -> None:
    own = TORCH_2_1.replace("Process 1234 has 60.00 GiB memory in use. ", "").replace("10.00 GiB", "78.00 GiB")
    _, read = numbers(own.replace("5.00 GiB is reserved", "20.00 GiB is reserved"))
    assert read.then == (
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: 20 GiB is cached in pieces too small for the request"
    )
    _, read = numbers(own.replace("5.00 GiB is reserved", "1.00 GiB is reserved"))
    assert read.then == "use a smaller batch or image, a shorter sequence, or activation checkpointing"


def test_what_would_not_serve_the_request_is_no_step() -> None:
    """A public report: 9.35 GiB in the cache and 12.73 free do not make the 22.78 that were asked for."""
    _, read = numbers(
        "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB "
        "is free. Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated memory 9.08 "
        "GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated."
    )
    assert read.then == "use a smaller batch or image, a shorter sequence, or activation checkpointing"


def test_memory_that_nobody_named_is_another_programs() -> None:
    """Before torch 2.1, and without NVML, others are not listed."""
    _, read = numbers(TORCH_1)
    assert "other programs 10.64 GiB" in read.says
    assert read.then.startswith(
        "nvidia-smi shows whether another program holds memory. If so, end it or use another GPU; "
    )


def test_more_than_the_gpu_has_is_a_wrong_shape() -> None:
    _, read = numbers(TORCH_2_9)
    assert "one request exceeds the whole GPU; if that is a surprise, print the tensor's shape" in read.then


def test_a_request_that_was_refused_beside_free_memory_met_a_limit() -> None:
    _, read = numbers(TORCH_2_9.replace("96.00 GiB", "36.00 GiB"))
    assert read.then == "raise torch.cuda.set_per_process_memory_fraction, which allows this process 40 GiB"


def test_of_several_ranks_each_says_its_own() -> None:
    _, read = numbers(f"[rank0]: {TORCH_2_1}\n[rank1]: {TORCH_2_9}")
    assert (read.numbers["gpu"], read.numbers["requested_bytes"]) == (0, 572 * MIB)


def test_a_text_without_numbers_has_none() -> None:
    assert numbers("CUDA out of memory") == ("oom.cuda", figures.Figures())


def test_vllm_and_its_share() -> None:
    _, read = numbers(
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, "
        "71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert read.numbers["free_bytes"] == bytes_(59.32, GIB) and read.numbers["desired_bytes"] == bytes_(71.24, GIB)
    assert read.then.startswith("set --gpu-memory-utilization 0.72, or use another GPU")
    _, read = numbers(
        "ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is "
        "needed, "
        "which is larger than the available KV cache memory (9.97 GiB). Based on the available memory, the estimated "
        "maximum model length is 54400."
    )
    assert (read.numbers["needed_bytes"], read.numbers["fits_tokens"]) == (24 * GIB, 54400)
    assert read.then.startswith("use --max-model-len 54400")


# --- memory of the host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398046511104 bytes", 4 * TIB),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 1048576 bytes.", MIB),
    ],
)
def test_what_was_asked_of_the_host(pasted: str, expected: int) -> None:
    name, read = numbers(pasted)
    assert name in ("oom.cpu", "oom.host") and read.numbers == {"requested_bytes": expected}


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (
            "[88123.1] Out of memory: Killed process 4711 (python) total-vm:81234567kB, anon-rss:61234567kB, "
            "file-rss:4kB, shmem-rss:8388608kB, UID:0",
            {
                "pid": 4711,
                "name": "python",
                "virtual_bytes": 81234567 * KIB,
                "resident_bytes": 61234567 * KIB,
                "shared_bytes": 8 * GIB,
                "by": "system",
            },
        ),
        (
            "[4.1] Out of memory: Kill process 1234 (python) score 987 or sacrifice child\n"
            "[4.2] Killed process 1234 (python) total-vm:9000kB, anon-rss:8000kB",
            {"pid": 1234, "name": "python", "virtual_bytes": 9000 * KIB, "resident_bytes": 8000 * KIB, "by": "system"},
        ),
        (
            "[4.0] memory: usage 16777216kB, limit 16777216kB, failcnt 9\n"
            "[4.1] Memory cgroup out of memory: Killed process 77 (python3) total-vm:9kB, anon-rss:8kB",
            {
                "pid": 77,
                "name": "python3",
                "virtual_bytes": 9 * KIB,
                "resident_bytes": 8 * KIB,
                "used_bytes": 16 * GIB,
                "limit_bytes": 16 * GIB,
                "by": "cgroup",
            },
        ),
    ],
)
def test_whom_the_kernel_killed(pasted: str, expected: dict[str, Any]) -> None:
    name, read = numbers(pasted)
    assert (name, read.numbers) == ("oom.killed", expected)
    assert read.says.startswith("RAM, not GPU memory: ")
    assert ("--memory" in read.then) == (expected["by"] == "cgroup")


# --- versions and architectures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "step"),
    [
        ("9000", "pytorch=1.1.0 torchvision=0.3.0 cudatoolkit=9.0"),
        ("10020", "pytorch=1.12.1 torchvision=0.13.1 cudatoolkit=10.2"),
        ("8000", "a torch built for CUDA 8"),
    ],
)
def test_the_last_torch_for_an_old_driver(driver: str, step: str) -> None:
    assert step in numbers(f"NVIDIA driver on your system is too old (found version {driver})")[1].then


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (
            "NVRM: API mismatch: the client has the version 550.54.15, but\nNVRM: this kernel module has the version "
            "535.183.01.  Please",
            {"library": "550.54.15", "module": "535.183.01"},
        ),
        (
            "kernel version 384.111.0 does not match DSO version 390.30.0 -- cannot find working devices",
            {"module": "384.111.0", "library": "390.30.0"},
        ),
        (
            "The detected CUDA version (12.4) mismatches the version that was used to compile\nPyTorch (11.8).",
            {"toolkit": "12.4", "torch_cuda": "11.8"},
        ),
        (
            "Installed CUDA version 12.4 does not match the version torch was compiled with 11.8, unable to compile",
            {"toolkit": "12.4", "torch_cuda": "11.8"},
        ),
        (
            "cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, "
            "7).",
            {"wanted": "9.1.0", "found": "8.9.7"},
        ),
        (
            "Loaded runtime CuDNN library: 7.1.4 but source was compiled with: 7.6.5.",
            {"wanted": "7.6.5", "found": "7.1.4"},
        ),
    ],
)
def test_two_versions_that_do_not_go_together(pasted: str, expected: dict[str, str]) -> None:
    _, read = numbers(pasted)
    assert read.numbers == expected
    assert all(value in read.says for value in expected.values())


BLACKWELL = (
    "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
    "installation.\nThe current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90."
)


def test_a_gpu_that_is_newer_than_the_wheel() -> None:
    name, read = numbers(BLACKWELL)
    assert name == "cuda.capability"
    assert read.numbers == {
        "device": "NVIDIA GeForce RTX 5090",
        "architecture": "sm_120",
        "wheel_architectures": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
    }
    assert read.says == "NVIDIA GeForce RTX 5090 is sm_120, torch has code for sm_50 to sm_90"


# --- the kernel's log, ranks, kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:B3:00): 31, pid=4711, name=python, Ch 00000008",
            {"xid": 31, "bus": "0000:b3:00", "pid": 4711, "process": "python"},
        ),
        ("NVRM: Xid (PCI:0000:17:00): 43, pid='<unknown>', name=<unknown>", {"xid": 43, "bus": "0000:17:00"}),
        ("NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.", {"xid": 79, "bus": "0000:03:00"}),
        (
            "NVRM: Xid (PCI:0000:b3:00): 45, pid=7, Ch 8, caused by previous Xid 149",
            {"xid": 149, "bus": "0000:b3:00", "pid": 7},
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            {"xid": 154, "bus": "0000:3b:00", "recovery_action": "GPU Reset Required"},
        ),
        ("xid 79", {"xid": 79}),
    ],
)
def test_which_gpu_an_xid_is_of(pasted: str, expected: dict[str, Any]) -> None:
    assert numbers(pasted)[1].numbers == expected


def test_of_two_gpus_an_xid_is_of_its_own() -> None:
    pasted = "NVRM: Xid (PCI:0000:17:00): 94, pid=7\nNVRM: Xid (PCI:0000:b3:00): 31, pid=8"
    for match in find(pasted, TEXTS):
        read = figures.read(match.text.id, match.excerpt, match.context).numbers
        assert (read["bus"], read["pid"]) == {"xid.94": ("0000:17:00", 7), "xid.31": ("0000:b3:00", 8)}[match.text.id]


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
            "NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
            {
                "rank": 3,
                "sequence": 1580,
                "collective": "ALLREDUCE",
                "elements": 466119168,
                "limit_s": 600.0,
                "waited_s": 600.06,
            },
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
            {"joined": 3, "expected": 4},
        ),
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\nRoot Cause (first "
            "observed failure):\n[0]:\n  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 8190)",
            {"rank": 5, "local_rank": 1, "exit_code": -9, "pid": 8190},
        ),
        (
            "failed (exitcode: -11) local_rank: 2 (pid: 8190) of binary: /usr/bin/python",
            {"local_rank": 2, "exit_code": -11, "pid": 8190},
        ),
        (
            "ncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device b3000",
            {"ranks": [1, 0], "bus": "b3000"},
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: "
            "101376. Reducing block sizes or `num_stages` may help.",
            {"required_bytes": 131072, "limit_bytes": 101376},
        ),
    ],
)
def test_ranks_and_kernels(pasted: str, expected: dict[str, Any]) -> None:
    _, read = numbers(pasted)
    assert read.numbers == expected and read.says


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [text.id for text in TEXTS if figures.read(text.id, SAMPLES[text.id]).numbers])
def test_no_text_breaks_a_reader(name: str) -> None:
    """Cut anywhere, each reader gives what is left."""
    text = SAMPLES[name]
    for end in range(0, len(text), len(text) // 8 + 1):
        assert isinstance(figures.read(name, text[:end], text[:end]), figures.Figures)


# --- shared memory ----------------------------------------------------------------------------------------------------

_NCCLS = "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), error: {}"
_TORCHS = "RuntimeError: unable to open shared memory object </torch_1234_5678_0> in read-write mode: {}"


@pytest.mark.parametrize(
    ("error", "says", "of_nccl", "of_torch"),
    [
        ("No space left on device (28)", "/dev/shm is full", "", ""),
        (
            "No such file or directory (2)",
            "the segment does not exist: the process that created it has ended, or has another /dev/shm",
            "give ranks of one machine one /dev/shm",
            "look for the process that ended first",
        ),
        ("Too many open files (24)", "too many files are open", "ulimit -n", "ulimit -n 65536, or torch."),
        ("Permission denied (13)", "/dev/shm is not writable", "sudo chmod 1777 /dev/shm", "sudo chmod 1777 /dev/shm"),
    ],
)
def test_a_segment_by_the_systems_error(error: str, says: str, of_nccl: str, of_torch: str) -> None:
    """A file that is not there is no full disk."""
    for pasted, name, step in ((_NCCLS, "nccl.shared_memory", of_nccl), (_TORCHS, "shm.open", of_torch)):
        found, read = numbers(pasted.format(error))
        assert (found, read.says) == (name, says)
        assert read.then.startswith(step) and bool(read.then) == bool(step)


# --- containers -------------------------------------------------------------------------------------------------------

_HOOK = "OCI runtime create failed: error running hook #0: exit status 1, stderr: Auto-detected mode as 'legacy'\n"


@pytest.mark.parametrize(
    ("behind", "says", "step"),
    [
        (
            "device error: 7: unknown device",
            "the requested GPU (7) does not exist on this host",
            "nvidia-smi -L",
        ),
        (
            "mount error: failed to add device rules: unable to find any existing device filters attached to the "
            "cgroup: "
            "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
            "the toolkit could not add the GPU to the container's cgroup",
            "no-cgroups = true",
        ),
        (
            "container error: cgroup subsystem devices not found",
            "the toolkit could not add the GPU to the container's cgroup",
            "no-cgroups = true",
        ),
        (
            "initialization error: WSL environment detected but no adapters were found",
            "WSL shows the container no GPU",
            "update NVIDIA's driver in Windows",
        ),
        (
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such "
            "file "
            "or directory",
            "no NVIDIA driver is found where the container is started",
            "install the driver",
        ),
        (
            "initialization error: nvml error: driver not loaded",
            "the driver's module is not loaded on the host",
            "sudo modprobe nvidia",
        ),
        (
            "initialization error: driver rpc error: timed out",
            "the host's driver did not answer",
            "run nvidia-smi on the host",
        ),
        (
            "requirement error: unsatisfied condition: cuda>=12.9, please update your driver to a newer version",
            "the image requires more than the host's driver has (cuda>=12.9)",
            "update the host's driver",
        ),
        (
            "mount error: file creation failed: /var/lib/docker/overlay2/x/merged/usr/lib/libnvidia-ml.so.1: file "
            "exists",
            "the image contains files of NVIDIA's driver",
            "build the image without",
        ),
        (
            "ldcache error: process /sbin/ldconfig failed with error code: 1",
            "ldconfig did not run inside the container",
            "ldconfig =",
        ),
        (
            "detection error: path error: ///usr/local/nvidia/lib64/libvdpau_nvidia.so: permission denied",
            "the toolkit may not open or mount a file of the driver",
            "look at the named file",
        ),
        (
            "mount error: stat failed: /dev/nvidia-uvm: no such file or directory",
            "a file of the driver is missing",
            "sudo nvidia-modprobe",
        ),
    ],
)
def test_a_container_that_does_not_start_by_what_the_toolkit_says(behind: str, says: str, step: str) -> None:
    name, read = numbers(f"{_HOOK}nvidia-container-cli: {behind}: unknown.")
    assert (name, read.says) == ("container.cli", says)
    assert read.then.startswith(step) or step in read.then


@pytest.mark.parametrize(
    ("client", "module", "then"),
    [
        ("575.64", "575.64.03", "dpkg -l | grep -i nvidia"),
        ("535.183.06", "535.183.01", "dpkg -l | grep -i nvidia"),
        ("580.95.05", "575.64.03", ""),
    ],
)
def test_a_driver_of_two_third_numbers_is_mixed_packages(client: str, module: str, then: str) -> None:
    _, read = numbers(
        f"NVRM: API mismatch: the client has the version {client}, but\nNVRM: this kernel module has the version "
        f"{module}.  Please\nNVRM: make sure that this kernel module and all NVIDIA driver components"
    )
    assert read.says == f"the libraries are of driver {client}, the kernel module of {module}"
    assert read.then.startswith(then) and bool(read.then) == bool(then)


def test_what_the_toolkit_says_otherwise_is_left_to_the_text() -> None:
    assert numbers("nvidia-container-cli: initialization error: something new") == ("container.cli", figures.Figures())


@pytest.mark.parametrize(
    ("said", "says", "then"),
    [
        ("with error 4, opcode 1, len 21938, vendor err 81", "status 4, local protection", "GDR_LEVEL=LOC"),
        ("with status=12 opcode=1 len=0 vendor err 129 (Send)", "status 12, retries exceeded", "ibstat"),
        ("with status=10 opcode=2", "status 10, remote access", "first error"),
        ("with status=5 opcode=2 len=0", "status 5, flushed", "another status"),
        (
            "with status=5 opcode=2 len=0\nnode:1:1 NCCL WARN NET/IB : Got completion from peer b with status=12",
            "status 12",
            "",
        ),
    ],
)
def test_the_status_of_a_transfer_of_infiniband_decides(said: str, says: str, then: str) -> None:
    name, read = numbers(f"node:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.1.1.1<5491> {said}")
    assert name == "nccl.infiniband"
    assert read.says.startswith(says)
    assert then in read.then


def test_other_words_of_infiniband() -> None:
    name, read = numbers("NCCL WARN NET/IB : mlx5_0:1 Got async event : port error")
    assert (name, read.says) == ("nccl.infiniband", "the adapter reports: port error")
    assert "memlock" in numbers("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory")[1].then


@pytest.mark.parametrize("line", ["    model.to(device)", "    param_applied = fn(param)", "    loss.backward()"])
def test_a_smaller_batch_is_no_step_for_weights(line: str) -> None:
    then = first(
        f"{line}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity "
        "of 8.00 GiB of which 9.00 MiB is free. Of the allocated memory 7.60 GiB is allocated by PyTorch"
    ).then
    assert ("quantised" in then, "checkpoint" in then) == (("loss" not in line), ("loss" in line))
