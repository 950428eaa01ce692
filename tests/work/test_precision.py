from __future__ import annotations

import pytest
import torch

from gpucheck.machine import accel
from gpucheck.work import precision


def buffers(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty(24, 40, dtype=dtype), torch.empty(40, 32, dtype=dtype), torch.empty(24, 32, dtype=dtype)


def test_the_settings_are_put_back_also_after_an_error() -> None:
    before = precision.state()
    new_names = "cuda.matmul.fp32_precision" in before
    with precision.precision("tf32"):
        name, value = ("cuda.matmul.fp32_precision", "tf32") if new_names else ("cuda.matmul.allow_tf32", True)
        assert precision.state()[name] == value
    assert precision.state() == before
    with pytest.raises(ZeroDivisionError), precision.precision("ieee"):
        name, value = ("cudnn.conv.fp32_precision", "ieee") if new_names else ("cudnn.allow_tf32", False)
        assert precision.state()[name] == value
        assert precision.state()["cuda.matmul.allow_bf16_reduced_precision_reduction"] is False
        raise ZeroDivisionError
    assert precision.state() == before


def test_torch_without_the_new_names_is_set_through_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    real = accel.feature
    monkeypatch.setattr(accel, "feature", lambda path: None if "fp32_precision" in path else real(path))
    written: list[tuple[str, object]] = []

    class Old:
        allow_tf32 = True
        allow_fp16_reduced_precision_reduction = True
        allow_bf16_reduced_precision_reduction = True

        def __setattr__(self, name: str, value: object) -> None:
            written.append((name, value))

    monkeypatch.setattr(torch.backends.cuda, "matmul", Old())
    monkeypatch.setattr(torch.backends, "cudnn", Old())
    with precision.precision("ieee"):
        assert written[:2] == [("allow_tf32", False), ("allow_tf32", False)]
    assert written[-4:] == [
        ("allow_tf32", True),
        ("allow_tf32", True),
        ("allow_fp16_reduced_precision_reduction", True),
        ("allow_bf16_reduced_precision_reduction", True),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_the_cpu_computes_is_what_it_says(dtype: torch.dtype) -> None:
    with precision.precision("ieee"):
        assert precision.observed(*buffers(dtype)) == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("bits", "name"), [(10, "tf32"), (7, "bfloat16"), (3, "lower")], ids=["tf32", "bfloat16", "lower"]
)
def test_a_multiplier_that_rounds_its_inputs_is_seen(bits: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm

    def rounding(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return real((a * 2**bits).round() / 2**bits, b, out=out)

    monkeypatch.setattr(torch, "mm", rounding)
    assert precision.observed(*buffers()) == name
