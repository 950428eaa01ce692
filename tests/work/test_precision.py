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


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.int8])
def test_what_is_multiplied_by_another_function_is_seen_too(dtype: torch.dtype) -> None:
    a, b = torch.empty(24, 32, dtype=dtype), torch.empty(48, 32, dtype=dtype).t()
    out = torch.empty(24, 48, dtype=torch.int32 if dtype == torch.int8 else torch.bfloat16)

    def multiply() -> None:
        out.copy_(a.double() @ b.double())

    def rounding() -> None:
        # What keeps two bits behind the point of a float8, and seven bits of a whole number.
        kept = (a.double() * 4).round() / 4 if dtype != torch.int8 else (a.double() / 2).round() * 2
        out.copy_(kept @ b.double())

    assert precision.observed(a, b, out, multiply) == str(dtype).removeprefix("torch.")
    assert precision.observed(a, b, out, rounding) == "lower"


@pytest.mark.parametrize(
    ("dtype", "computed", "name"),
    [
        (torch.float64, torch.float32, "float32"),
        (torch.float64, torch.bfloat16, "bfloat16"),
        (torch.float16, torch.bfloat16, "bfloat16"),
    ],
)
def test_a_wide_dtype_that_is_multiplied_in_a_lower_one_is_seen(
    dtype: torch.dtype, computed: torch.dtype, name: str
) -> None:
    a, b, out = buffers(dtype)
    assert precision.observed(a, b, out, lambda: out.copy_(a.to(computed) @ b.to(computed))) == name
