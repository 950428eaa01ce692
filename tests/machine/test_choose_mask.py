"""How a mask is read."""

from __future__ import annotations

import pytest

from gpucheck.machine.choose import read_mask

UUIDS = ("GPU-aa000000", "GPU-ab000000", "GPU-bb000000")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0,1,2", (0, 1, 2)),
        ("2,0", (2, 0)),
        (" 1 , 0 ", (1, 0)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", (0,)),
        ("0,3,1", (0,)),
        ("0," + "9" * 5000, (0,)),
        ("0" * 5000 + "1", (1,)),
        ("0,0", ()),
        ("1,0,1", ()),
        ("0;1", (0,)),
        ("0x1", (0,)),
        ("1gpu", (1,)),
        ("+2", (2,)),
        ("cuda:0", ()),
        ("all", ()),
        ("\uff10", ()),
        ("0,\u0661", (0,)),
        ("0,\u00a01", (0,)),
        ("0,", (0,)),
        ("GPU-aa,GPU-b", (0, 2)),
        ("GPU-a", ()),
        ("GPU-aa,GPU-aa0", ()),
        ("GPU-zz,GPU-aa", ()),
    ],
)
def test_what_a_mask_shows(value: str, shown: tuple[int, ...]) -> None:
    assert read_mask(value, UUIDS).shown == shown


def test_every_entry_says_how_it_is_read() -> None:
    assert [entry.effect for entry in read_mask("1,0x2,7,2", UUIDS).entries] == [
        "'1' shows GPU 1",
        "CUDA reads '0x2' as 0",
        "'7' shows nothing: 3 GPUs exist, counted from 0",
        "'2' shows nothing: it is after the end of the list",
    ]


def test_a_number_is_a_cards_and_an_instance_has_its_uuid_alone() -> None:
    with_instance = ("GPU-aa000000", "MIG-11111111")
    assert read_mask("1", with_instance).entries[0].problem == "1 GPU exists, counted from 0"
    assert read_mask("MIG-1", with_instance).shown == (1,)
