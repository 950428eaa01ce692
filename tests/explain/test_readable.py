from __future__ import annotations

import itertools
import re

import pytest

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import readable

PATTERNS = [(pattern, one.number) for one in (*TEXTS, *OF_CONDITIONS) for pattern in (*one.patterns, *one.common)]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("fallen off the bus", ("fallen off the bus",)),
        (r"std::bad_alloc|\[Errno 12\]|a|a", ("std::bad_alloc", "[Errno 12]", "a")),
        (r"\bXid\b.{0,80}:\s*79\b", ("Xid…: 79",)),
        (r"couldn'?t (read|write)( now)? ?: \d+", ("couldn't read: N", "couldn't write: N")),
        (r"error (\d\.\d)?[^a-z]{0,3}.*\w+ [`']?sm_[\d.]+[x-z]?$", ("error … 'sm_…x",)),
        (r"No module named '?torch'?(?![\w.])", ("No module named 'torch'",)),
        (r"(outer (inner|other)|second) C\+\+", ("outer inner C++", "outer other C++", "second C++")),
        (r"Error (80[5-9]|810)\b", ("Error 805", "Error 810")),
        (r"BAR\d is \dM, NUMBER N", ("BAR0 is NM, NUMBER N",)),
        ("two\nlines", ("two\nlines",)),
        (r"(a|b|c)(d|e|f)(g|h)", ("adg", "adh", "bdg", "bdh", "cdg", "cdh")),
    ],
)
def test_the_text_that_a_pattern_finds(pattern: str, texts: tuple[str, ...]) -> None:
    assert readable(pattern) == texts


def test_a_number_stands_for_the_group_of_that_name() -> None:
    pattern = r"\bXid ?(\(PCI:[0-9a-f:.]+\)|error)?:? ?(?P<number>\d+)(?!\d)\b"
    assert (readable(pattern, "79"), readable(pattern)) == (("Xid: 79",), ("Xid: N",))


@pytest.mark.parametrize(("pattern", "number"), sorted(set(PATTERNS), key=str))
def test_the_text_of_every_pattern_is_one_that_it_finds(pattern: str, number: str) -> None:
    for text in readable(pattern, number):
        assert not re.search(r"\\[a-z.]|\(\?|\.[*{]|\[\^", text), "no sign of an expression is left"
        # What stands for anything may be letters, spaces or nothing.
        tries = [re.sub("(?<![A-Z])N(?![A-Z])", "9", text), text.replace("N", "9"), text]
        gaps = itertools.product(("x", " ", "", " x ", ".1"), repeat=text.count("…"))
        filled = (one.replace("…", "{}").format(*gap) if "{" not in one else one for gap in gaps for one in tries)
        assert any(re.search(pattern, one, re.IGNORECASE) for one in filled), text
