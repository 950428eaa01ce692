"""Set, restore, record and observe the precision of float32 products.

torch 2.9 renamed the settings to `fp32_precision`, and raises an error in a program that uses both names. Environment
variables and drivers can override the settings, so the precision is also observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from gpucheck.machine import accel

Precision = Literal["ieee", "tf32"]

# The mantissa has 52 explicit bits in float64, 23 in float32, 10 in TF32 and float16, 7 in bfloat16, 3 in float8_e4m3.
# Sources: NVIDIA, A100 whitepaper, figure 9; Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
_LOST_BY_FLOAT32 = 1 + 2.0**-52
_LOST_BY_TF32 = 1 + 2.0**-12
_LOST_BY_BF16 = 1 + 2.0**-9
_KEPT_BY_BF16 = 1 + 2.0**-7
_KEPT_BY_FLOAT8 = 1 + 2.0**-3

# The possible precisions of a product of each dtype, best first, with a number that every lower precision rounds.
_FLOAT32_STEPS = (("float32", _LOST_BY_TF32), ("tf32", _LOST_BY_BF16), ("bfloat16", _KEPT_BY_BF16))
_STEPS: dict[torch.dtype, tuple[tuple[str, float], ...]] = {
    torch.float64: (("float64", _LOST_BY_FLOAT32), *_FLOAT32_STEPS),
    torch.float32: _FLOAT32_STEPS,
    torch.float16: (("float16", _LOST_BY_BF16), ("bfloat16", _KEPT_BY_BF16)),
    torch.bfloat16: (("bfloat16", _KEPT_BY_BF16),),
    torch.float8_e4m3fn: (("float8_e4m3fn", _KEPT_BY_FLOAT8),),
    torch.float8_e4m3fnuz: (("float8_e4m3fnuz", _KEPT_BY_FLOAT8),),
    torch.int8: (("int8", 127),),
}

_REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def _settings(wanted: Precision) -> list[tuple[Any, str, str, Any]]:
    """Return the settings of float32 products and of reductions: the backend, its name, the attribute and the value."""
    cuda, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    owners: dict[str, Any] = {"cuda.matmul": cuda, "cudnn": cudnn}
    attribute: str = "allow_tf32"
    value: Any = wanted == "tf32"
    if accel.feature("torch.backends.cuda.matmul.fp32_precision") is not None:
        owners = {"cuda.matmul": cuda, "cudnn.conv": cudnn.conv}
        owners |= {"mkldnn.matmul": mkldnn.matmul, "mkldnn.conv": mkldnn.conv}
        attribute, value = "fp32_precision", wanted
    products = [(owner, name, attribute, value) for name, owner in owners.items()]
    # allow_fp16_accumulation came with torch 2.7.
    return products + [(cuda, "cuda.matmul", name, False) for name in _REDUCTIONS if hasattr(cuda, name)]


def state() -> dict[str, Any]:
    """Return the current value of every setting, by name."""
    return {f"{name}.{attribute}": getattr(owner, attribute) for owner, name, attribute, _ in _settings("ieee")}


@contextlib.contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """Compute float32 products in this precision inside the block, with full-precision reductions."""
    settings = _settings(wanted)
    before = [(owner, attribute, getattr(owner, attribute)) for owner, _, attribute, _ in settings]
    try:
        for owner, _, attribute, value in settings:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def of_device(device: torch.device) -> str:
    """Observe the precision of float32 products on a device under the current settings."""
    return observed(*(torch.empty((256, 256), device=device) for _ in range(3)))


def observed(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, multiply: Callable[[], object] | None = None) -> str:
    """Overwrite these buffers, and return the observed precision of their product: a dtype, `tf32`, or `lower`.

    `multiply` puts the product of `a` and `b` into `out`, by default with `torch.mm`. `a` (M×K) is filled with a
    constant that a lower precision rounds, and `b` (K×N) is the identity, so the product shows the rounded constant.
    """
    diagonal = min(b.shape)
    b.zero_()
    b.diagonal().fill_(1)
    for name, constant in _STEPS[a.dtype]:
        a.fill_(constant)
        torch.mm(a, b, out=out) if multiply is None else multiply()
        if bool((out[:, :diagonal] == constant).all()):
            return name
    return "lower"
