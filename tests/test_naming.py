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


@pytest.mark.parametrize(
    ("given", "known", "proposed"),
    [
        ("gpu", ["cuda", "rocm", "mps", "xpu"], "give cuda, rocm, mps, xpu"),
        ("float", ["float64", "float32", "tf32", "float16", "bfloat16"], "did you mean float32?"),
        ("fp16", ["float64", "float32", "tf32", "float16", "bfloat16"], "did you mean float16?"),
        ("bf16", ["float64", "float32", "tf32", "float16", "bfloat16"], "did you mean bfloat16?"),
        ("bf16", ["float64", "float32", "float16", "bfloat16"], "did you mean bfloat16?"),
        ("fp64", ["float64", "float32", "float16", "bfloat16"], "did you mean float64?"),
        ("fp8", ["float64", "float8_e4m3fn"], "give float64, float8_e4m3fn"),
        ("adan", ["adam", "adamw", "sgd", "rprop", "asgd"], "did you mean adam?"),
        ("dev", ["status", "devices", "doctor", "explain", "bench"], "did you mean devices?"),
        ("opti", ["dtype", "optimizer", "axis", "budget", "help"], "did you mean optimizer?"),
        ("memory", ["dtype", "memory-limit", "axis", "budget", "help"], "did you mean memory-limit?"),
        ("device", ["device-arrival", "trace", "steps", "dry", "help"], "give device-arrival, trace, steps, dry, help"),
    ],
)
def test_what_to_give_in_place_of_an_unknown_name(given: str, known: list[str], proposed: str) -> None:
    assert naming.hint(given, known) == proposed
