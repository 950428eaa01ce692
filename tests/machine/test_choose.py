from __future__ import annotations

import pytest

from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine.choose import choose, resolve
from gpucheck.report.facts import Device, Driver, Facts, Host, TorchBuild

CPU = Device(kind="cpu", id="cpu", name="EPYC")
H200 = Device(kind="cuda", id="cuda:0", name="NVIDIA H200", uuid="GPU-aaaa1111", cuda_index=0)
SECOND = Device(kind="cuda", id="cuda:1", name="NVIDIA H200", uuid="GPU-aaaa2222", cuda_index=1)
HIDDEN = Device(kind="cuda", id=None, uuid="GPU-bbbb", state="hidden by CUDA_VISIBLE_DEVICES=0")
CUDA_TORCH = TorchBuild("2.11.0+cu130", None, "cuda", "13.0")
CPU_TORCH = TorchBuild("2.13.0+cpu", None, "cpu")


def machine(*devices: Device, torch: TorchBuild | None = CUDA_TORCH, mask: str | None = None, **more: object) -> Facts:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    return Facts(devices=(*devices, CPU), torch=torch, environment=environment, **more)  # type: ignore[arg-type]


def test_auto_takes_the_accelerator_that_torch_can_use() -> None:
    assert choose("auto", machine(H200, SECOND)).ids == ("cuda:0",)
    assert choose("auto", machine(H200)).notice is None


def test_auto_is_the_cpu_only_where_nothing_else_is() -> None:
    chosen = choose("auto", machine(torch=CPU_TORCH))
    assert (chosen.ids, chosen.notice) == (("cpu",), "no accelerator here; using the CPU")


@pytest.mark.parametrize("mask", ["", "-1"])
def test_auto_is_the_cpu_where_the_gpus_were_hidden_on_purpose(mask: str) -> None:
    chosen = choose("auto", machine(HIDDEN, mask=mask))
    assert (chosen.ids, chosen.notice) == (("cpu",), "CUDA_VISIBLE_DEVICES hides every GPU; using the CPU")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (machine(H200, torch=CPU_TORCH), "torch 2.13.0+cpu is a CPU-only build"),
        (machine(H200, torch=TorchBuild()), "torch is not installed"),
        (
            machine(Device(kind="cuda", name="NVIDIA H200"), driver=Driver(cuinit_code=802, cuinit_error="not ready")),
            "cuInit returns 802 (not ready)",
        ),
        (
            machine(host=Host(nvidia_pci_addresses=("0000:17:00.0",)), driver=Driver(nvml_error="Driver Not Loaded")),
            "NVML: Driver Not Loaded",
        ),
    ],
)
def test_a_gpu_that_is_present_is_never_silently_replaced(facts: Facts, why: str) -> None:
    with pytest.raises(CannotLook) as raised:
        choose("auto", facts)
    assert raised.value.why == why
    assert raised.value.finding == "device.usable"
    assert "--device cpu" in str(raised.value)


@pytest.mark.parametrize(
    ("requested", "facts", "sentence"),
    [
        ("cuda:7", machine(H200), "--device cuda:7 not found; torch sees cuda:0; "),
        ("cuda", machine(torch=CPU_TORCH), "--device cuda:0 not found; this machine has no such device; "),
        ("cuda", machine(HIDDEN, mask=""), "--device cuda:0 not found; CUDA_VISIBLE_DEVICES hides every GPU; "),
        ("GPU-ffff", machine(H200), "--device GPU-ffff not found; UUIDs here: GPU-aaaa1111; "),
        ("GPU-bbbb", machine(HIDDEN), "--device GPU-bbbb not found; hidden by CUDA_VISIBLE_DEVICES=0; "),
        ("mps", machine(H200), "--device mps:0 not found; this machine has no such device; "),
    ],
)
def test_a_device_that_is_not_there(requested: str, facts: Facts, sentence: str) -> None:
    with pytest.raises(CannotLook) as raised:
        choose(requested, facts)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("requested", ["banana", "cuda:x", "", "cuda:-1", "gpu0"])
def test_what_is_no_device_at_all_is_wrong_usage(requested: str) -> None:
    with pytest.raises(UsageError):
        choose(requested, machine(H200))


def test_an_ambiguous_uuid_and_all_where_one_is_needed() -> None:
    with pytest.raises(UsageError, match="matches 2 devices"):
        choose("GPU-aaaa", machine(H200, SECOND))
    with pytest.raises(UsageError, match="means 2 devices"):
        resolve("all", machine(H200, SECOND))
    assert resolve("all", machine(H200)) == "cuda:0"
