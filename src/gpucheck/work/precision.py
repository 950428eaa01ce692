"""The precision of float32 products: set, restored, recorded, and above all observed.

torch 2.9 named the settings anew (`fp32_precision`); reading or setting both the new and the old names raises, so each
setting goes through one of the two. Environment variables and drivers can override either, hence the observation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from gpucheck.machine import accel

Precision = Literal["ieee", "tf32"]

# Explicit bits of the mantissa: float64 52, float32 23, TF32 and float16 10, bfloat16 7 (NVIDIA, A100 whitepaper,
# figure 9), float8_e4m3 3 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
_LOST_BY_FLOAT32 = 1 + 2.0**-52
_LOST_BY_TF32 = 1 + 2.0**-12
_LOST_BY_BF16 = 1 + 2.0**-9
_KEPT_BY_BF16 = 1 + 2.0**-7
_KEPT_BY_FLOAT8 = 1 + 2.0**-3

# For each dtype what can be seen, best first: its name, and a number that keeps its value in it and in nothing lower.
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


# One global setting of torch: one of its backends, the backend's name, and the attribute.
Setting = tuple[Any, str, str]


def _product_settings() -> list[tuple[Setting, dict[Precision, Any]]]:
    """The settings that decide the precision of float32 products, each with its values for the two precisions."""
    backends = torch.backends
    if accel.feature("torch.backends.cuda.matmul.fp32_precision") is not None:
        values: dict[Precision, Any] = {"ieee": "ieee", "tf32": "tf32"}
        owners = (
            (backends.cuda.matmul, "cuda.matmul"),
            (backends.cudnn.conv, "cudnn.conv"),
            (backends.mkldnn.matmul, "mkldnn.matmul"),
            (backends.mkldnn.conv, "mkldnn.conv"),
        )
        return [((owner, name, "fp32_precision"), values) for owner, name in owners]
    switches: dict[Precision, Any] = {"ieee": False, "tf32": True}
    return [
        ((backends.cuda.matmul, "cuda.matmul", "allow_tf32"), switches),
        ((backends.cudnn, "cudnn", "allow_tf32"), switches),
    ]


def _reduction_settings() -> list[Setting]:
    owner = torch.backends.cuda.matmul
    # allow_fp16_accumulation came with torch 2.7.
    return [(owner, "cuda.matmul", name) for name in _REDUCTIONS if hasattr(owner, name)]


def state() -> dict[str, Any]:
    """Every setting as it is now, by name, for the record."""
    settings = [setting for setting, _ in _product_settings()] + _reduction_settings()
    return {f"{name}.{attribute}": getattr(owner, attribute) for owner, name, attribute in settings}


@contextlib.contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """Products of float32 in this precision for a while; reduced-precision reductions and accumulation are off."""
    settings: list[tuple[Setting, Any]] = [(setting, values[wanted]) for setting, values in _product_settings()]
    settings += [(setting, False) for setting in _reduction_settings()]
    before = [(owner, attribute, getattr(owner, attribute)) for (owner, _, attribute), _ in settings]
    try:
        for (owner, _, attribute), value in settings:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def observed(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, multiply: Callable[[], object] | None = None) -> str:
    """The precision that a product really has, on these very buffers (which it overwrites).

    `multiply` puts the product of `a` and `b` into `out`; by default it is `torch.mm(a, b, out=out)`. `a` (M×K) becomes
    a constant that a lower precision rounds away, `b` (K×N) the identity: the product is then the constant as the
    multiplier saw it. The answer is the dtype's name, that of a lower one (`tf32`, `bfloat16`, …), or `lower`.
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
