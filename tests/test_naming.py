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


# -- the program's own name --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("gpucheck doctor", "./run.pyz doctor"),
        (
            "gpucheck doctor, then gpucheck smoke --device cuda:1",
            "./run.pyz doctor, then ./run.pyz smoke --device cuda:1",
        ),
        ("python train.py 2>&1 | gpucheck explain", "python train.py 2>&1 | ./run.pyz explain"),
        ("gpucheck --python ~/venv/bin/python", "./run.pyz --python ~/venv/bin/python"),
        ("gpucheck -h", "./run.pyz -h"),
        ("usage: gpucheck [OPTIONS] COMMAND [ARGS]...", "usage: ./run.pyz [OPTIONS] COMMAND [ARGS]..."),
        ("The same as `gpucheck` without a command.", "The same as `./run.pyz` without a command."),
        ("a result of `gpucheck bench …`", "a result of `./run.pyz bench …`"),
        # What is no command keeps its name.
        ("another package named gpucheck has overwritten this one", None),
        ("gpucheck: set: device cuda (gpucheck.toml)", None),
        ("gpucheck models are none of ours, nor gpucheck run-time", None),
        ("/opt/gpucheck doctor and scripts/gpucheck doctor", None),
        ("python -m gpucheck doctor", None),
        ("pip install gpucheck-cli", None),
    ],
)
def test_a_command_is_shown_as_it_is_typed(text: str, typed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "as_typed", naming.as_typed)
    assert naming.as_typed(text) == text
    naming.start_as("./run.pyz", ("bench", "doctor", "explain", "model", "run", "smoke"))
    assert naming.as_typed(text) == (text if typed is None else typed)
