"""Patterns made fit for text without spaces."""

from __future__ import annotations

import re

import pytest

from gpucheck.explain.match import compiled, is_cut


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
    ("source", "needs", "head", "tail"),
    [
        ("out of memory", "outofmemory", "outofmemory", "outofmemory"),
        (r"pid \d+ was killed", "waskilled", "pid", "waskilled"),
        ("one|two", "", "", ""),
        ("(one|two) three", "three", "", "three"),
        ("colou?r of it", "rofit", "colo", "rofit"),
        (r"\bXid \d", "xid", "", ""),
    ],
)
def test_what_it_needs_and_how_it_begins_and_ends(source: str, needs: str, head: str, tail: str) -> None:
    made = compiled(source)
    assert (made.needs, made.head, made.tail) == (needs, head, tail)


def test_what_is_cut() -> None:
    pattern = compiled("an illegal memory access was encountered")
    assert is_cut("error:anillegalmemoryacc", pattern)
    assert is_cut("error:anillegalmemoryacc...", pattern)
    assert is_cut("memoryaccesswasencountered:more", pattern)
    assert not is_cut("error:anillegal", pattern)
    assert not is_cut("error:anillegalmemoryaccount", pattern)


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ("gcc: No such file or directory", "nosuchfileordirectory"),
        ("libcudart.so.12: cannot open shared object file: No such file or directory", "nosharedobjectfile"),
        ("libcudart.so.12: cannot open shared object file", "cannotopensharedobjectfile"),
        ("NCCL: Connection reset by peer", "connectionresetbypeer"),
        ("cannot open shared object file: torch", "javacannotopensharedobjectfile"),
    ],
)
def test_what_any_program_prints_is_no_part_of_a_text(source: str, rest: str) -> None:
    assert not is_cut(rest, compiled(source))


def test_a_part_has_to_speak_of_what_is_ours() -> None:
    assert is_cut("error:misalignedaddresswas", compiled("misaligned address was met by this kernel"))
    assert not is_cut("error:theappletreesinthe", compiled("the apple trees in the garden of this cuda"))


def test_no_regular_expression_is_an_error() -> None:
    with pytest.raises(re.error):
        compiled("(")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("/usr/lib/libnvidia-ml.so", r"libnvidia-ml\.so\.1: cannot open"),
        ("libnvidia-ml.so.1->libnvidia-ml.so.570", r"failed to load libnvidia-ml\.so"),
        ("importtorch._inductor", r"torch\._inductor\.exc\.\w+"),
        ("/opt/cuda/lib64/libnvrtc-builtins", r"nvrtc-builtins64_\d+"),
    ],
)
def test_a_name_of_a_listing_is_no_cut_error(name: str, source: str) -> None:
    assert not is_cut(name, compiled(source))
