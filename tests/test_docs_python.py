"""The programs of docs/python.md run as they stand there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
NEEDS = {"plain.py": None, "with_lightning.py": "lightning", "with_accelerate.py": "accelerate"}


def test_every_program_is_known() -> None:
    assert set(PROGRAMS) == set(NEEDS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the budget of a CPU is kept by Linux's limits")
@pytest.mark.parametrize("name", sorted(NEEDS))
def test_it_finds_a_size_and_trains_with_it(name: str, tmp_path: Path) -> None:
    needed = NEEDS[name]
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    (tmp_path / name).write_text(PROGRAMS[name], encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"training with a batch of (\d+)", ended.stdout)
    assert found is not None
    assert 1 <= int(found[1]) <= 4096
