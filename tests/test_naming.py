"""Names that a user gives: what is proposed in place of an unknown one."""

from __future__ import annotations

import pytest

from gpucheck import naming
from gpucheck.errors import UsageError

MANY = [f"{group}.{name}" for group in ("tensors", "copies", "memory") for name in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("prefix", "names", "told"),
    [
        ("nope", ["copies", "idioms"], "the parts are copies, idioms"),
        ("nope", MANY, "--list shows all"),
        ("copys", ["copies", "idioms"], "did you mean copies?"),
        ("memroy", MANY, "did you mean memory?"),
        ("tensors.tow", MANY, "did you mean tensors.two?"),
        ("", ["copies"], "the parts are copies"),
    ],
)
def test_a_prefix_that_fits_none(prefix: str, names: list[str], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        naming.select(names, str, [prefix], [], noun="part", nothing="")
    assert str(raised.value) == f"--only {prefix!r} matches no part; {told}"
