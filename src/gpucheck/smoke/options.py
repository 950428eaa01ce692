"""Options of `smoke`, and its checks, one row each. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpucheck import options, units
from gpucheck.bench.benchmarks import Selecting
from gpucheck.messages import FIX
from gpucheck.options import LIMITS, option


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its ID, the meaning of a failure, and the fix (`then`). The functions of the check and of its
    requirement (`need`) are `module.function` in this folder, because these modules import torch."""

    id: str
    title: str
    meaning: str
    then: str
    function: str | Callable[..., Any]
    need: str | Callable[..., Any] | None = None


# The checks are in the order of a training job: later ones rely on earlier ones.
CHECKS = (
    Check(
        "device.usable",
        "torch can use the device",
        "torch sees no device of this kind, or using it raises an error.",
        "gpucheck doctor",
        "data.usable",
    ),
    Check(
        "tensors.round_trip",
        "tensors survive the round trip bit for bit",
        "A tensor of one of torch's data types comes back changed from the device.",
        FIX["wrong data"],
        "data.round_trip",
    ),
    Check(
        "numerics.matmul",
        "matrix products agree with float64",
        "A product differs from the exact one by more than its precision explains.",
        FIX["wrong data"],
        "numerics.matmul",
    ),
    Check(
        "numerics.convolution",
        "convolutions agree with float64",
        "A convolution differs from the exact one by more than its precision explains.",
        "torch.backends.cudnn.enabled = False shows whether cuDNN is the cause",
        "numerics.convolution",
    ),
    Check(
        "numerics.tf32",
        "TF32 errors stay within the bound",
        "TF32 keeps 10 of float32's 23 mantissa bits. A larger error means another precision, or a fault.",
        "gpucheck bench matmul --dtype tf32",
        "numerics.tf32",
        "numerics.without_tf32",
    ),
    Check(
        "training.step",
        "a training step matches the CPU and lowers the loss",
        "Forward, backward and the optimizer together give a different result than on the CPU.",
        "gpucheck smoke --only numerics. shows which part",
        "numerics.training_step",
    ),
    Check(
        "training.autocast",
        "autocast computes in low precision, weights stay float32",
        "Mixed precision does not work correctly on this device.",
        "use a newer torch, or bfloat16 instead of float16",
        "numerics.autocast",
    ),
    Check(
        "memory.one_pebibyte",
        "one allocation of 1 PiB raises out-of-memory",
        "An impossible request did not raise torch.OutOfMemoryError. Programs that catch this error would crash here.",
        "use a newer torch or driver",
        "data.one_pebibyte",
        "check.without_own_memory",
    ),
    Check(
        "copies.pinned",
        "pinned copies are correct after a synchronise",
        "A copy from pinned memory arrived changed.",
        FIX["wrong data"],
        "data.pinned",
        "data.without_pinning",
    ),
    Check(
        "copies.non_blocking",
        "non-blocking copies are correct after a synchronise",
        "A copy arrived changed although the program waited for it. Without the wait, the host may read the data too "
        "early, which is a fault of the program.",
        f"{FIX['wrong data']}; in a program: torch.cuda.synchronize() before the host reads",
        "data.non_blocking",
    ),
    Check(
        "data.loader",
        "a DataLoader with workers and pinned memory works",
        "Workers died or delivered wrong items. Usually /dev/shm is too small in a container.",
        "df -h /dev/shm; docker run --shm-size=8g",
        "data.data_loader",
    ),
)


@dataclass(frozen=True, slots=True)
class SmokeOptions(Selecting):
    """The user's options. `require` is a kind of device. `only` and `skip` are prefixes of check IDs."""

    noun, titles, nothing = "check", {row.id: row.title for row in CHECKS}, "nothing would be checked"
    require: str | None = options.require()
    min_devices: int | None = option(
        "Fail if torch sees fewer than N devices.", metavar="N", parse=units.parse_whole, group=LIMITS
    )
    only: tuple[str, ...] = options.only("checks", named="ID")
    skip: tuple[str, ...] = options.skip("checks", named="ID")
    list_all: bool = options.list_all("checks")
    time_budget_s: float | None = options.time_budget("5m", "Skip checks that have not started by then; exit 4.")
    device: str = "auto"
