"""Patterns made fit for text without spaces."""

from __future__ import annotations

import re

import pytest

from gpucheck.doctor.condition import Condition
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


def cut(pasted: str, *sources: str) -> list[str]:
    """The patterns of which a part is found in what was pasted, each the pattern of a text of its own."""
    return [
        match.text.id for match in find(pasted, [Condition(one, one, "", "", (one,)) for one in sources]) if match.cut
    ]


def test_a_part_that_stops_within_a_word_is_known() -> None:
    source = "an illegal memory access was encountered"
    for pasted in (
        "Error: an illegal memory acc",
        "Error: an illegal memory acc...",
        "emory access was encountered: more",
    ):
        assert cut(pasted, source) == [source]
    assert cut("Error: an illegal mem", source) == []
    assert cut("Error: an illegal memory account", source) == []


def test_what_may_be_a_part_of_several_is_none_of_them() -> None:
    sources = "CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_NOT_SUPPORTED"
    assert cut("CUDA error: CUBLAS_STATUS_NO", *sources) == []
    assert cut("CUDA error: CUBLAS_STATUS_NOT_IN", *sources) == [sources[0]]
    assert cut("CUDA error: CUBLAS_STATUS_NOT_SU", *sources) == [sources[1]]


def test_a_part_that_stops_between_words_needs_an_error_beside_it_or_more_of_them() -> None:
    source = "CUDA driver version is insufficient for CUDA runtime version"
    assert cut("CUDA driver version is", source) == []
    assert cut("RuntimeError: CUDA driver version is", source) == [source]
    assert cut("[rank0]: CUDA driver version is", source) == []
    assert cut("CUDA driver version is insufficient for", source) == [source]


def test_an_example_of_a_pattern_may_be_cut() -> None:
    said = ("CUDA failure 7: the kernel was never started", "HIP kernels were never started")
    row = Condition("a.b", "", "", "", (r"(CUDA|HIP) (failure \d+: the kernel was|kernels were) never started",), said)
    assert [match.cut for match in find("CUDA failure 7: the kern", [row])] == [True]
    assert [match.cut for match in find("ernels were never started: GPU 0", [row])] == [True]
    assert find("CUDA failure 8: the kern", [row]) == []


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ("gcc: No such file or directory", "o such file or directory"),
        ("NCCL: Connection reset by peer", "nnection reset by peer"),
        ("the apple trees in the garden of this cuda", "the apple trees in the gard"),
        ("No matching distribution found for torch", "ERROR: No matching distribution found for"),
    ],
)
def test_what_any_program_prints_is_no_part_of_a_text(source: str, rest: str) -> None:
    assert cut(rest, source) == []


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
def test_a_sentence_or_a_name_of_a_listing_is_no_cut_error(pasted: str) -> None:
    assert [match for match in find(pasted, TEXTS, OF_CONDITIONS) if match.cut] == []
