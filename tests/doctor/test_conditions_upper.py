"""The conditions of the upper rungs and those beside the ladder: seen where they hold, and neither on a healthy machine
nor where nothing is known."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from healthy import (
    CARDS,
    GIB,
    HEALTHY,
    card,
    ended_at,
    seen_by,
    with_cards,
    with_driver,
    with_host,
    with_stack,
    with_torch,
    with_unknown,
    with_variables,
    without_gpu,
)

from gpucheck.doctor import conditions_gpus, conditions_kernel, conditions_torch, ladder
from gpucheck.doctor.condition import Condition, Evidence, Signs
from gpucheck.health import checks
from gpucheck.machine.stack import KernelRun
from gpucheck.report.facts import (
    Ecc,
    Mig,
    Process,
    TorchBuild,
)
from gpucheck.xid import BY_NUMBER

TABLES = (
    conditions_kernel.MASKS,
    conditions_torch.TORCH,
    conditions_torch.PACKAGES,
    conditions_torch.ARCHITECTURE,
    conditions_kernel.ENVIRONMENT,
    conditions_gpus.GPUS,
    conditions_kernel.LOG,
)
CONDITIONS: dict[str, Condition] = {row.id: row for table in TABLES for row in table if row.judge is not None}

HIDDEN = tuple(replace(row, id=None, cuda_index=None, state="not shown by CUDA") for row in CARDS)
FAILED = (KernelRun("cuda:0", "RuntimeError: CUDA error: unspecified launch failure"), KernelRun("cuda:1"))
NO_IMAGE = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"


def masked(value: str, *shown: int, torch_count: int | None = None) -> Evidence:
    """The machine under this mask, of which CUDA shows these cards."""
    cards = [replace(row, cuda_index=shown.index(i) if i in shown else None) for i, row in enumerate(CARDS)]
    evidence = with_variables(with_cards(*cards), CUDA_VISIBLE_DEVICES=value)
    if not shown:
        evidence = with_driver(evidence, cuinit_code=100, cuinit_error="no CUDA-capable device is detected")
    count = len(shown) if torch_count is None else torch_count
    return with_torch(evidence, count=count, available=bool(shown), kernels=())


def of_capability(capability: str, *kernels: KernelRun, architectures: tuple[str, ...] | None = None) -> Evidence:
    """A machine with one card of this capability."""
    evidence = with_cards(card(0, compute_capability=capability))
    listed = {"architectures": architectures} if architectures else {}
    return with_torch(evidence, count=1, capabilities={"cuda:0": capability}, kernels=kernels, **listed)


# Where each condition holds, and some words of what it says there.
CASES: list[tuple[str, Evidence, str]] = [
    ("mask.hides_all", masked(""), "CUDA_VISIBLE_DEVICES='' shows CUDA none of 2 GPUs: '' shows nothing: it is empty"),
    ("mask.hides_all", masked("-1"), "'-1' shows nothing: a negative number ends the list"),
    ("mask.hides_all", masked("all"), "'all' shows nothing: it is neither a number nor a UUID"),
    ("mask.hides_all", masked("2"), "'2' shows nothing: 2 GPUs exist, counted from 0"),
    (
        "mask.hides_all",
        masked("0,0"),
        "'0' shows GPU 0; '0' shows nothing: a GPU that is listed twice empties the list",
    ),
    (
        "mask.hides_all",
        with_driver(masked("0,0"), cuinit_code=101),
        "'0,0' is refused: cuInit returns 101: '0' shows GPU 0",
    ),
    ("mask.hides_all", masked("GPU-9"), "'GPU-9' shows nothing: no GPU has this UUID"),
    ("mask.hides_all", masked("GPU-"), "'GPU-' shows nothing: it matches several GPUs"),
    (
        "mask.shows_fewer",
        masked("0;1", 0),
        "has entries that are neither numbers nor UUIDs and shows 1 GPU: CUDA reads '0;1' as 0",
    ),
    ("mask.shows_fewer", masked("0x1", 0), "CUDA reads '0x1' as 0"),
    (
        "mask.shows_fewer",
        masked("0,5,1", 0),
        "asks for 3 GPUs and shows 1: '0' shows GPU 0; '5' shows nothing: 2 GPUs exist",
    ),
    ("mask.shows_fewer", masked("1,-1,0", 1), "'0' shows nothing: it is after the end of the list"),
    ("mask.shows_fewer", masked("GPU-1,GPU-7", 1), "'GPU-1' shows GPU 1; 'GPU-7' shows nothing: no GPU has this UUID"),
    (
        "devices.order",
        with_cards(card(0, nvml_index=1, name="NVIDIA A100"), card(1, nvml_index=0, name="NVIDIA T4")),
        "cuda:0 is nvidia-smi's 1 (NVIDIA A100); cuda:1 is nvidia-smi's 0 (NVIDIA T4)",
    ),
    ("devices.cuda_shows_fewer", with_cards(*HIDDEN), "NVML lists 2, but CUDA shows 0, without a mask"),
    ("devices.cuda_shows_fewer", with_torch(count=4, kernels=()), "device_count() is 4, but CUDA shows 2"),
    (
        "devices.unlisted",
        with_host(nvidia_pci_addresses=("0000:11:00.0", "0000:21:00.0", "0000:31:00.0")),
        "0000:31:00.0 (bound to no driver, unsupported, or failed",
    ),
    (
        "torch.missing",
        ended_at("import", "ModuleNotFoundError: No module named 'torch'", path=None, versions={}),
        "/env/bin/python: ModuleNotFoundError: No module named 'torch'",
    ),
    (
        "torch.shadowed",
        ended_at("import", "AttributeError: module 'types' has no attribute 'X'", shadowed_by=("types.py",)),
        "the current folder contains types.py",
    ),
    (
        "torch.shadowed",
        ended_at("ask", "AttributeError: module 'torch' has no attribute 'cuda'", version=None, path="/home/me"),
        "/home/me does not contain torch",
    ),
    ("torch.shadowed", ended_at("import", timed_out=True, shadowed_by=("timeit.py",)), "the import did not finish"),
    (
        "torch.undefined_symbol",
        ended_at("import", "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version x"),
        "undefined symbol: __nvJitLinkComplete_12_4",
    ),
    ("torch.import_broken", ended_at("import", "SIGSEGV: last words"), "importing torch ended its process by SIGSEGV"),
    ("torch.hung", ended_at("ask", timed_out=True), "asking torch for its devices did not finish within its time"),
    (
        "torch.import_broken",
        ended_at("import", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
        "importing torch: ImportError: libcudnn.so.9: cannot open",
    ),
    (
        "torch.import_broken",  # a thread of its own kept its process from ending
        ended_at("ask", "RuntimeError: no such operator", timed_out=True),
        "asking torch for its devices: RuntimeError: no such operator",
    ),
    (
        "torch.import_broken",
        ended_at("import", "ModuleNotFoundError: No module named 'torch._dynamo'"),
        "No module named 'torch._dynamo'",
    ),
    (
        "torch.cpu_build",
        with_torch(version="2.13.0+cpu", cuda=None, available=False, count=0, architectures=(), kernels=()),
        "torch 2.13.0+cpu contains no CUDA",
    ),
    (
        "torch.cpu_build",
        replace(HEALTHY, torch=None, facts=replace(HEALTHY.facts, torch=TorchBuild("2.9.1", "/x", "cpu"))),
        "torch 2.9.1 contains no CUDA",
    ),
    ("torch.cpu_build", without_gpu(), "torch 2.13.0+cpu contains no CUDA"),
    (
        "torch.cpu_build",
        with_torch(version="2.11.0+rocm7.0", cuda=None, hip="7.0", available=False, count=0, kernels=()),
        "torch 2.11.0+rocm7.0 is built for AMD's ROCm",
    ),
    (
        "torch.cpu_build",
        with_torch(version="2.11.0+xpu", cuda=None, xpu="20250302", available=False, count=0, kernels=()),
        "built for Intel's XPU",
    ),
    (
        "torch.driver_too_old",
        with_driver(with_torch(available=False, count=0, kernels=()), libcuda_version="12.8", version="570.86"),
        "torch 2.11.0+cu130 is built for CUDA 13.0, but the driver supports CUDA 12.8",
    ),
    (
        "torch.sees_none",
        with_torch(available=False, count=0, kernels=(), warnings=("pynvml is old", "CUDA initialization:\n  why")),
        "CUDA shows 2 devices, but torch.cuda.is_available() is False; torch says: CUDA initialization: why",
    ),
    (
        "torch.foreign_libraries",
        with_torch(foreign_libraries=("/usr/local/cuda/lib64/libcublas.so.12",)),
        "torch loads /usr/local/cuda/lib64/libcublas.so.12",
    ),
    (
        "torch.missing_libraries",
        with_torch(missing_files={"nvidia-cudnn-cu13==9.13.0.50": ["/x/libcudnn_cnn.so.9"]}),
        "missing: libcudnn_cnn.so.9, of nvidia-cudnn-cu13==9.13.0.50",
    ),
    (
        "torch.missing_libraries",
        with_torch(unmet={"nvidia-cudnn-cu13==9.13.0.50": "9.1.0.70", "nvidia-nccl-cu13==2.27.7": None}),
        "requires nvidia-cudnn-cu13==9.13.0.50 (9.1.0.70 is here), nvidia-nccl-cu13==2.27.7 (none is here)",
    ),
    ("torch.two_versions", with_torch(versions={"torch": ("2.9.1", "2.11.0")}), "installed as 2.11.0 and 2.9.1"),
    ("torch.two_versions", with_torch(versions={"torch": ("2.9.1",)}), "as 2.9.1; 2.11.0+cu130 is loaded"),
    ("torch.two_versions", with_torch(versions={"torch": ("2.11.0+cpu",)}), "installed as 2.11.0+cpu"),
    (
        "torch.mixed_environments",
        with_torch(active_elsewhere="VIRTUAL_ENV"),
        "VIRTUAL_ENV is the active environment, but this torch is in /env/lib",
    ),
    (
        "torch.torchvision",
        with_torch(versions={"torchvision": ("0.24.1",)}),
        "torchvision 0.24.1 with torch 2.11.0+cu130; torchvision 0.26 belongs to torch 2.11",
    ),
    ("torch.torchvision", with_torch(versions={"torchvision": ("0.26.0+cpu",)}), "torchvision 0.26.0+cpu with torch"),
    ("triton.compiler", with_torch(has_compiler=False), "triton 3.6.0; no CC, gcc or clang"),
    (
        "architecture.missing",
        of_capability("12.0", architectures=("sm_80", "sm_90")),
        "cuda:0 (NVIDIA H200) is sm_120; torch 2.11.0+cu130 has code for sm_80, sm_90",
    ),
    (
        "architecture.missing",
        of_capability("8.7", KernelRun("cuda:0", NO_IMAGE), architectures=("sm_80", "sm_86")),
        "is sm_87",
    ),
    (
        "architecture.missing",
        of_capability("6.1"),
        "cuda:0 (NVIDIA H200) is sm_61; torch 2.11.0+cu130 has code for sm_75",
    ),
    (
        "architecture.missing",
        of_capability("12.0", KernelRun("cuda:0"), architectures=("sm_90", "compute_90")),
        "is sm_120; torch 2.11.0+cu130 has sm_90, compute_90",
    ),
    (
        "run.kernel_failed",
        with_torch(kernels=(KernelRun("cuda:0", "OutOfMemoryError: CUDA out of memory."),)),
        "cuda:0: OutOfMemoryError",
    ),
    ("run.kernel_failed", with_torch(kernels=FAILED), "cuda:0: RuntimeError: CUDA error: unspecified launch failure"),
    (
        "run.kernel_failed",
        with_torch(kernels=(KernelRun("cuda:1", "the result of a sum is wrong"),)),
        "cuda:1: the result of a sum is wrong",
    ),
    ("run.kernel_failed", ended_at("run", "SIGABRT: last words"), "a kernel ended its process by SIGABRT"),
    ("run.hung", ended_at("run", timed_out=True), "a kernel did not finish within its time"),
    (
        "environment.launch_blocking",
        with_variables(CUDA_LAUNCH_BLOCKING="1"),
        "CUDA_LAUNCH_BLOCKING=1: every launch waits for its kernel",
    ),
    ("environment.small_shm", with_stack(with_host(container="docker"), shm_bytes=64 * 2**20), "/dev/shm has 64 MiB"),
    (
        "devices.foreign_memory",
        with_cards(card(0, memory_used_bytes=80 * GIB, processes=(Process(4711, "compute", "python"),)), card(1)),
        "cuda:0: 80 GiB by python (4711)",
    ),
    (
        "devices.foreign_memory",
        with_cards(
            card(
                0,
                memory_used_bytes=80 * GIB,
                processes=(
                    Process(1, "graphics", "Xorg", GIB),
                    Process(2, "compute", "a"),
                    Process(3, "compute", "b", 70 * GIB),
                ),
            )
        ),
        "cuda:0: 80 GiB by b (3), Xorg (1), and 1 more",
    ),
    (
        "devices.foreign_memory",
        with_cards(card(0, memory_used_bytes=80 * GIB, processes=None)),
        "cuda:0: 80 GiB by processes that are not listed",
    ),
    (
        "devices.mig_empty",
        with_cards(card(0), card(1, cuda_index=None, mig=Mig(True, True))),
        "cuda:1: no program can use the GPU",
    ),
    ("devices.answers", with_cards(card(0), card(1, state="lost")), "cuda:1: off the PCI bus or not answering"),
    ("devices.recovery_action", with_cards(card(0, recovery_action="gpu_reset")), "recovery action is gpu_reset"),
    ("devices.ecc", with_cards(card(0, ecc=Ecc(True, 0, 2))), "cuda:0: results since driver load"),
    (
        "devices.unread",
        with_unknown("/devices/1/ecc", "NVML returns: unknown error"),
        "cuda:1: ecc (NVML returns: unknown error)",
    ),
    (
        "log.xid",
        with_stack(log=("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=77, DBE", "NVRM: Xid (PCI:0000:3b:00): 13, x")),
        "GPU 0000:3b:00.0, which the driver does not list: ",
    ),
    (
        "log.sxid",
        with_stack(log=("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 22003, Fatal, Link 04 Minion Halt",)),
        "NVSwitch 0000:c3:00.0: Link 04 Minion Halt, fatal to the whole fabric",
    ),
    (
        "log.nvlink",
        with_stack(log=("NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",)),
        "Getting peer0's postRxDetLinkMask failed!",
    ),
    (
        "log.unreadable",
        with_stack(log=None, log_error="Operation not permitted"),
        "the kernel log cannot be read: Operation not permitted",
    ),
]


def judged(condition: str, evidence: Evidence) -> Signs | None:
    return seen_by(CONDITIONS[condition], evidence)


@pytest.mark.parametrize(("condition", "evidence", "words"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_it_is_seen_where_it_holds(condition: str, evidence: Evidence, words: str) -> None:
    seen = judged(condition, evidence)
    assert seen is not None and words in seen.message


def test_every_condition_has_a_case() -> None:
    """Checks of a GPU are told as they are: the tests of `health` have their cases."""
    assert {case[0] for case in CASES} >= set(CONDITIONS) - {"devices.persistence", *dict(checks.CHECKS)}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_it_is_not_seen_on_a_healthy_machine_nor_where_nothing_is_known(condition: str) -> None:
    assert judged(condition, HEALTHY) is None
    assert judged(condition, Evidence()) is None


@pytest.mark.parametrize("condition", sorted(set(CONDITIONS) - {"torch.cpu_build"}))
def test_a_machine_without_a_gpu_has_none_of_it(condition: str) -> None:
    assert judged(condition, without_gpu()) is None


@pytest.mark.parametrize(("condition", "evidence", "words"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_one_fault_is_named_once(condition: str, evidence: Evidence, words: str) -> None:
    """Of the conditions that break a rung, no other one holds beside it."""
    others = [value for value in CONDITIONS.values() if value.id != condition and value.stage is not None]
    held = [(process, seen) for process in others if (seen := seen_by(process, evidence)) is not None]
    assert [row.id for row, seen in held if (seen.verdict or row.verdict) == "fail"] == []


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0,1", "1,0", "1", "GPU-1,GPU-0", " 0 , 1 ", "0,1,", "1,-1", "0, "])
def test_a_mask_that_is_obeyed_is_no_finding(value: str) -> None:
    shown = [int(digit) for digit in value.replace("-1", "") if digit in "01"] if "GPU" not in value else [1, 0]
    evidence = masked(value, *shown)
    assert [
        condition
        for condition in CONDITIONS
        if condition.startswith(("mask.", "devices.")) and judged(condition, evidence)
    ] == []


@pytest.mark.parametrize("value", ["0,-1,1", "0,,1"])
def test_what_ends_a_list_early_is_no_gpu_that_was_asked_for(value: str) -> None:
    seen = judged("mask.shows_fewer", masked(value, 0))
    assert seen is not None and "asks for 2 GPUs and shows 1" in seen.message


def test_who_was_given_no_gpu_by_slurm_is_not_told_to_take_one() -> None:
    seen = judged("mask.hides_all", masked("NoDevFiles"))
    assert seen is not None and seen.fix is not None and "--gres=gpu:1" in seen.fix


def test_a_mask_is_not_blamed_for_a_driver_that_does_not_start() -> None:
    evidence = with_driver(masked(""), cuinit_code=999)
    assert judged("mask.hides_all", evidence) is None


def test_a_mask_that_hides_whatever_is_there_needs_no_list_of_cards() -> None:
    blind = with_cards(evidence=with_driver(with_variables(CUDA_VISIBLE_DEVICES="-1"), cuinit_code=100, nvml_code=12))
    seen = judged("mask.hides_all", blind)
    assert seen is not None and "shows CUDA nothing" in seen.message
    assert judged("mask.hides_all", with_variables(blind, CUDA_VISIBLE_DEVICES="3")) is None
    assert judged("mask.hides_all", with_variables(blind, CUDA_VISIBLE_DEVICES="GPU-3")) is None


def test_a_mask_that_is_refused_for_no_reason_of_its_own_is_a_guess() -> None:
    refused = judged("mask.hides_all", with_driver(masked("0"), cuinit_code=101))
    assert refused is not None and refused.certainty == "hint"
    proven = judged("mask.hides_all", with_driver(masked("0,0"), cuinit_code=101))
    assert proven is not None and proven.certainty is None, "a GPU twice empties the list"


def test_an_order_that_was_asked_for_is_no_finding() -> None:
    crossed = with_cards(card(0, nvml_index=1), card(1, nvml_index=0))
    assert judged("devices.order", with_variables(crossed, CUDA_VISIBLE_DEVICES="1,0")) is None
    assert judged("devices.order", with_variables(crossed, CUDA_DEVICE_ORDER="PCI_BUS_ID")) is None
    assert judged("devices.order", with_variables(crossed, CUDA_DEVICE_ORDER="FASTEST_FIRST")) is not None


def test_fewer_gpus_than_nvml_lists_are_a_warning_where_torch_works_all_the_same() -> None:
    counted = judged("devices.cuda_shows_fewer", with_torch(count=4))
    assert counted is not None and counted.verdict == "warn"
    fewer = judged("devices.cuda_shows_fewer", with_cards(CARDS[0], HIDDEN[1]))
    assert fewer is not None and fewer.verdict == "warn"
    # CUDA and NVML name the same GPUs by different UUIDs.
    assert judged("devices.cuda_shows_fewer", with_cards(*CARDS, *HIDDEN)) is not None
    renamed = [replace(row, uuid=f"GPU-{place}", nvml_index=None) for place, row in enumerate(CARDS)]
    assert judged("devices.cuda_shows_fewer", with_cards(*renamed, *HIDDEN)) is None


@pytest.mark.parametrize(("of_python", "verdict"), [(500, "info"), (1100, "warn"), (None, "warn")])
def test_what_a_desktops_programs_hold_is_a_remark(of_python: int | None, verdict: str) -> None:
    """Beside them is no more than the torch that is being asked."""
    python = Process(4711, "compute", "python", None if of_python is None else of_python * 2**20)
    holders = (Process(812, "graphics", "Xorg", GIB), python)
    seen = judged("devices.foreign_memory", with_cards(card(0, memory_used_bytes=2 * GIB, processes=holders)))
    assert seen is not None and (seen.verdict or "warn") == verdict


# --- torch ------------------------------------------------------------------------------------------------------------


def test_a_torch_that_pythonpath_brings_is_taken_out_of_it() -> None:
    """No installer knows of it: uninstalling would remove the other one."""
    folders: dict[str, Any] = {"torch_folders": ("/extra/torch", "/env/lib/torch"), "pythonpath_torch": ("/extra",)}
    seen = judged("torch.two_versions", with_torch(versions={"torch": ("2.9.1", "2.11.0")}, **folders))
    assert seen is not None and seen.fix == "remove /extra from PYTHONPATH (unset PYTHONPATH)"
    assert seen.message.startswith("torch is installed as 2.11.0 and 2.9.1, in /extra/torch and /env/lib/torch; ")
    mixed = judged("torch.two_versions", with_torch(versions={"torch": ("2.9.1",)}))
    assert mixed is not None and (mixed.fix or "").endswith("then /env/bin/python -m pip install torch==2.9.1")


def test_condas_torch_beside_pips_is_told_also_in_one_version() -> None:
    seen = judged("torch.two_versions", with_torch(versions={"torch": ("2.11.0",)}, conda_torch="2.11.0"))
    assert seen is not None and "conda recorded 2.11.0" in seen.message
    assert seen.fix is not None and seen.fix.startswith("conda remove --force pytorch")
    assert "/env/bin/python -m pip install --force-reinstall torch==2.11.0" in seen.fix


# --- CUDA's libraries in torch's process ------------------------------------------------------------------------------

CUDNN = "nvidia-cudnn-cu12==9.10.2.21"


def test_a_foreign_library_is_taken_out_of_the_variable_that_brought_it() -> None:
    """The rest of the variable stays: on some systems the driver's own folder is in it."""
    path = "/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127"
    found = with_torch(foreign_libraries=(path,), foreign_folders=("/usr/local/cuda/lib64",))
    seen = judged("torch.foreign_libraries", found)
    assert seen is not None
    assert seen.message == f"torch loads {path}, through LD_LIBRARY_PATH (/usr/local/cuda/lib64)"
    assert seen.fix == "remove /usr/local/cuda/lib64 from LD_LIBRARY_PATH"
    both = judged("torch.foreign_libraries", with_variables(found, LD_PRELOAD="x"))
    assert both is not None and both.message == f"{seen.message} or LD_PRELOAD"
    assert both.fix == f"{seen.fix}, and its libraries from LD_PRELOAD"
    preloaded = judged("torch.foreign_libraries", with_variables(with_torch(foreign_libraries=(path,)), LD_PRELOAD="x"))
    assert preloaded is not None and preloaded.fix == "unset LD_PRELOAD"
    unknown = judged("torch.foreign_libraries", with_torch(foreign_libraries=(path,)))
    assert unknown is not None and (unknown.fix or "").startswith("LD_DEBUG=libs /env/bin/python -c ")


@pytest.mark.parametrize(
    ("gone", "parts", "verdict", "message", "fix"),
    [
        (
            {CUDNN: ["/x/libcudnn_cnn.so.9"]},
            ("libcudnn_cnn.so.9",),
            "fail",
            f"missing: libcudnn_cnn.so.9, of {CUDNN}",
            f"/env/bin/python -m pip install --force-reinstall --no-deps {CUDNN}",
        ),
        (
            {"nvidia-nvshmem-cu12==3.3.20": ["/x/libnvshmem_host.so.3"]},
            (),
            None,
            "missing: libnvshmem_host.so.3, of nvidia-nvshmem-cu12==3.3.20",
            "/env/bin/python -m pip install --force-reinstall --no-deps nvidia-nvshmem-cu12==3.3.20",
        ),
    ],
)
def test_libraries_that_are_gone(
    gone: dict[str, list[str]], parts: tuple[str, ...], verdict: str | None, message: str, fix: str
) -> None:
    seen = judged("torch.missing_libraries", with_torch(missing_files=gone, cudnn_missing=parts))
    assert seen is not None and (seen.verdict, seen.message, seen.fix) == (verdict, message, fix)


def test_a_torch_for_the_cpu_is_a_remark_where_there_is_no_gpu() -> None:
    seen = judged("torch.cpu_build", without_gpu())
    assert seen is not None and (seen.verdict, seen.fix) == ("info", "")
    on_a_mac = with_host(without_gpu(), system="Darwin")
    assert judged("torch.cpu_build", on_a_mac) is None


@pytest.mark.parametrize(
    ("recorded", "loaded"),
    [
        ("2.11.0", "2.11.0+cu130"),
        ("2.11.0+cu130", "2.11.0+cu130"),
        ("2.5.0a0+b465a5843b.nv24.9", "2.5.0a0+b465a5843b.nv24.09"),
        ("2.11", "2.11.0+cu130"),
    ],
)
def test_one_version_in_two_spellings_is_one(recorded: str, loaded: str) -> None:
    assert judged("torch.two_versions", with_torch(versions={"torch": (recorded,)}, version=loaded)) is None


def test_a_stray_file_that_harms_nothing_is_no_finding() -> None:
    assert judged("torch.shadowed", with_torch(shadowed_by=("queue.py",))) is None


def test_another_active_environment_is_a_remark_where_torch_works() -> None:
    works = judged("torch.mixed_environments", with_torch(active_elsewhere="CONDA_PREFIX"))
    fails = judged("torch.mixed_environments", with_torch(active_elsewhere="CONDA_PREFIX", kernels=()))
    assert works is not None and works.verdict == "info"
    assert fails is not None and fails.verdict is None


# --- architectures ----------------------------------------------------------------------------------------------------


def test_a_kernel_that_ran_is_above_the_arithmetic() -> None:
    evidence = of_capability("12.0", KernelRun("cuda:0"), architectures=("sm_80",))
    assert judged("architecture.missing", evidence) is None


def test_a_card_without_code_is_named_beside_one_that_works() -> None:
    evidence = with_torch(
        with_cards(card(0), card(1, compute_capability="6.1", name="NVIDIA GTX 1080")),
        capabilities={"cuda:0": "9.0", "cuda:1": "6.1"},
        names={"cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA GTX 1080"},
        kernels=(KernelRun("cuda:0"), KernelRun("cuda:1", NO_IMAGE)),
    )
    seen = judged("architecture.missing", evidence)
    assert seen is not None and seen.message.startswith("cuda:1 (NVIDIA GTX 1080) is sm_61;")


def test_a_device_that_is_not_there_has_no_failing_kernel() -> None:
    beyond = (KernelRun("cuda:0"), KernelRun("cuda:1"), KernelRun("cuda:2", "RuntimeError: INTERNAL ASSERT"))
    assert judged("run.kernel_failed", with_torch(count=3, kernels=beyond)) is None


# --- the environment and the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", ""])
def test_launch_blocking_that_is_off_is_no_finding(value: str) -> None:
    assert judged("environment.launch_blocking", with_variables(CUDA_LAUNCH_BLOCKING=value)) is None


def test_a_programs_own_mistakes_are_a_remark_and_stand_last() -> None:
    mine = judged("log.xid", with_stack(log=("NVRM: Xid (PCI:0000:3b:00): 31, pid=1",) * 3))
    assert mine is not None and mine.verdict == "info"
    assert mine.message == f"GPU 0000:3b:00.0, which the driver does not list: {BY_NUMBER[31].what}, 3 times"
    ignored = judged("log.xid", with_stack(log=("NVRM: Xid (PCI:0000:3b:00): 63, x",)))
    assert ignored is not None and ignored.verdict == "info"
    unknown = judged("log.xid", with_stack(log=("NVRM: Xid (PCI:0): 999, x",)))
    assert unknown is not None and (unknown.verdict, unknown.title) == ("warn", "Xid 999")
    assert unknown.evidence["xids"][0]["nvidia"] is None
    both = judged("log.xid", with_stack(log=("NVRM: Xid (PCI:0): 31, x", "NVRM: Xid (PCI:0): 119, x")))
    assert both is not None and both.verdict == "fail"
    assert [row["xid"] for row in both.evidence["xids"]] == [119, 31]
    assert both.evidence["xids"][0]["nvidia"] == "RESET_GPU"


def test_an_error_has_the_name_of_its_card_and_the_command_for_it() -> None:
    line = f"NVRM: Xid (PCI:{CARDS[1].pci_address}): 119, pid=1, Timeout"
    seen = judged("log.xid", with_stack(log=(line,)))
    assert seen is not None and seen.title == "Xid 119" and seen.message.startswith("cuda:1: ")
    assert seen.fix is not None and f"--gpu-reset -i {CARDS[1].pci_address}" in seen.fix


def test_a_log_that_cannot_be_read_is_not_an_empty_one() -> None:
    unreadable = CONDITIONS["log.unreadable"]
    assert unreadable.verdict == "skip"
    assert judged("log.xid", with_stack(log=None, log_error="Operation not permitted")) is None
    assert judged("log.unreadable", with_stack(log=())) is None


def test_a_gpu_that_another_process_has_alone_is_no_broken_gpu_beside_one_that_works() -> None:
    busy_card = card(1, compute_mode="exclusive_process", processes=(Process(44, "compute"),))
    refused = KernelRun("cuda:1", "CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    evidence = with_torch(with_cards(card(0), busy_card), kernels=(KernelRun("cuda:0"), refused))
    assert ladder.diagnose(evidence, ladder.CONDITIONS).first.condition.id == "gpu.exclusive"  # type: ignore[union-attr]
    # The mode of a GPU that works explains nothing of another's failure.
    other = with_torch(evidence, kernels=(KernelRun("cuda:1"), replace(refused, device="cuda:0")))
    assert ladder.diagnose(other, ladder.CONDITIONS).first.condition.id == "run.kernel_failed"  # type: ignore[union-attr]


def test_torchvisions_fix_does_not_keep_a_torch_that_has_to_go() -> None:
    old = {"torch": ("2.10.0+cpu",), "torchvision": ("0.26.0",)}
    cpu = with_torch(version="2.10.0+cpu", cuda=None, available=False, count=0, kernels=(), versions=old)
    seen, kept = judged("torch.torchvision", cpu), judged("torch.torchvision", with_torch(version="2.10.0+cu128"))
    assert (
        seen is not None and seen.fix == "replace torch first, and install torchvision with torch from the same index"
    )
    assert kept is not None and "torch==2.10.0 'torchvision==0.25.*'" in (kept.fix or "")


@pytest.mark.parametrize("crash", [ended_at("run", "SIGABRT: last words"), ended_at("import", "SIGSEGV: last words")])
def test_a_library_that_is_gone_is_told_before_the_crash_that_may_come_of_it(crash: Evidence) -> None:
    gone = {CUDNN: ("/x/libcudnn_cnn.so.9",)}
    found = ladder.findings(ladder.diagnose(with_torch(crash, missing_files=gone), ladder.CONDITIONS))
    assert "torch.missing_libraries" in [row.id for row in found[:2]] and found[0].verdict == "fail"
    answer = with_torch(ended_at("import", "ImportError: libcudnn_cnn.so.9: cannot open"), missing_files=gone)
    assert seen_by(CONDITIONS["torch.missing_libraries"], answer) is None
