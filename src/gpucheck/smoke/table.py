"""The checks of the smoke test: a row each, read before torch is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import naming


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check's id and what it claims; the function that proves it and what that needs, as `module.function`.

    The modules are those of this folder. They import torch: `command` loads them.
    """

    id: str
    title: str
    function: str
    needs: tuple[str, ...] = ()


# In the order of a training job: what comes first is what the rest stands on.
CHECKS = (
    CheckRow("device.usable", "torch can use the device", "tensors.usable"),
    CheckRow("tensors.round_trip", "tensors survive the round trip bit for bit", "tensors.round_trip"),
    CheckRow("tensors.layouts", "odd shapes and strides survive the round trip", "tensors.layouts"),
    CheckRow("tensors.to_returns_new", ".to() returns a new tensor and leaves the old", "tensors.to_returns_new"),
    CheckRow("tensors.device_mismatch", "mixing devices raises RuntimeError", "tensors.device_mismatch"),
    CheckRow("tensors.numpy_needs_cpu", "numpy() needs the CPU", "tensors.numpy_needs_cpu", ("check.numpy",)),
    CheckRow("modules.to", "model.to() moves parameters and buffers", "tensors.module_to"),
    CheckRow("training.gradients_through_to", "gradients flow through .to()", "tensors.gradients"),
    CheckRow("numerics.matmul", "matrix products agree with float64", "numerics.matmul"),
    CheckRow("numerics.convolution", "convolutions agree with float64", "numerics.convolution"),
    CheckRow("numerics.tf32", "TF32 errors stay within the bound", "numerics.tf32", ("numerics.has_tf32",)),
    CheckRow("training.step", "a training step matches the CPU and lowers the loss", "numerics.training_step"),
    CheckRow("training.autocast", "autocast computes in low precision, weights stay float32", "numerics.autocast"),
    CheckRow("memory.accounting", "memory is counted correctly and returned", "memory.accounting"),
    CheckRow(
        "memory.one_pebibyte",
        "one allocation of 1 PiB raises out-of-memory",
        "memory.one_pebibyte",
        ("check.dedicated_memory",),
    ),
    CheckRow(
        "memory.to_the_end",
        "allocating to the end raises out-of-memory",
        "memory.to_the_end",
        ("memory.has_fraction", "check.dedicated_memory"),
    ),
    CheckRow("copies.pinned", "pinned copies are correct after a synchronise", "data.pinned", ("data.can_pin",)),
    CheckRow("copies.non_blocking", "non-blocking copies are correct after a synchronise", "data.non_blocking"),
    CheckRow("streams.wait", "a stream waits for another", "data.streams", ("data.has_streams",)),
    CheckRow("device.context", "device contexts take effect and end", "data.device_context"),
    CheckRow("data.loader", "a DataLoader with workers and pinned memory works", "data.data_loader"),
)


def select(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    """The ids that begin with one of `only` (all where it is empty) and with none of `skip`, in the table's order.

    Raises UsageError for a prefix that matches nothing, and where nothing is left.
    """
    ids = [check.id for check in CHECKS]
    return naming.select(
        ids,
        str,
        only,
        skip,
        noun="check",
        nothing="nothing would be checked",
    )
