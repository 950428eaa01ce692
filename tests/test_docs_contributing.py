"""CONTRIBUTING.md's worked examples are changes to this very tree, and say so as long as they apply to it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### ([^\n]+)$.*?^```diff$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_there_is_one_for_each_kind_of_change() -> None:
    assert [name for name, _ in EXAMPLES] == [
        "A condition of the doctor",
        "A column of a table",
        "A threshold",
        "An option",
        "An output format",
        "A benchmark",
    ]


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies them")
@pytest.mark.parametrize(("name", "change"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_applies(name: str, change: str) -> None:
    """`git apply` finds the context of every hunk where it stands today."""
    done = subprocess.run(
        ["git", "apply", "--check", "-p0", "-"], input=change, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr}"


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|toml|md))`", PAGE))
    missing = [name for name in named if not any((ROOT / top / name).exists() for top in ("", "src/gpucheck"))]
    assert sorted(missing) == []
