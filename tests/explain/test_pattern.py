"""Patterns made fit for text without spaces."""

from __future__ import annotations

import re

import pytest

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import compiled, find


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("CUDA out of memory", "cudaoutofmemory"),
        (r"can't find\s+it", "cantfindit"),
        (r"Error \d+: .*", r"error\d{1,200}?:.{0,200}?"),
        (r"[Ff]ile '?[^)]*'?\)", r"[ff]ile[^)]{0,200}?\)"),
        (r"\S+ (A|B)? C", r"\S{1,200}?(a|b)?c"),
        (r"x{2,3} y", "x{2,3}y"),
        (r"(?:a b)(?!\d)", r"(?:ab)(?!\d)"),
        (r"\bXid \d+", r"\bxid\s?\d{1,200}?"),
    ],
)
def test_what_a_pattern_becomes(source: str, made: str) -> None:
    assert compiled(source).regex.pattern == made


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("out of memory", "outofmemory"),
        (r"pid \d+ was killed", "waskilled"),
        ("one|two", ""),
        ("(one|two) three", "three"),
        ("colou?r of it", "rofit"),
        (r"\bXid \d", "xid"),
    ],
)
def test_what_it_needs(source: str, needs: str) -> None:
    assert compiled(source).needs == needs


def test_no_regular_expression_is_an_error() -> None:
    with pytest.raises(re.error):
        compiled("(")


@pytest.mark.parametrize(
    "pasted",
    [
        "triton is not available",
        "Triton is not available on Windows",
        "CUDA GPUs are available",
        "compiled with CUDA enabled",
        "expected all tensors to be",
        "/usr/lib/libnvidia-ml.so",
        "libnvidia-ml.so.1 -> libnvidia-ml.so.570",
        "import torch._inductor",
        "/opt/cuda/lib64/libnvrtc-builtins",
        "nvrtc-builtins64_121.dll",
        "/dev/shm/nccl-XyZ12",
        "nvidia-container-cli",
        "nvidia-container-toolkit is installed",
        "RuntimeError: CUDA driver error:",
        "  Building wheel for flash-attn (setup.py) ... done",
        "  Building wheel for flash-attn (pyproject.toml): started\n  Stored in directory: /root/.cache/pip/wheels",
    ],
)
def test_a_sentence_or_a_name_of_a_listing_is_no_error(pasted: str) -> None:
    assert [match for match in find(pasted, TEXTS, OF_CONDITIONS) if match.certainty != "hint"] == []
