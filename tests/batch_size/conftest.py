from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size import runner

FAKE = Path(__file__).with_name("fake_trial.py")
Scenario = Callable[..., Path]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Let children run a scenario in place of torch; returns the log of what they were asked."""

    def play(**parts: Any) -> Path:
        log = tmp_path / "log"
        log.write_text("")
        told = json.dumps({"log": str(log), **parts})
        monkeypatch.setattr(runner, "python_argv", lambda module: [sys.executable, "-S", str(FAKE), told])
        return log

    return play
