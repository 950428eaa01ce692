from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size import predict_run, runner

FAKE = Path(__file__).with_name("fake_trial.py")
Scenario = Callable[..., Path]
# A child that predicts: it reads its request and says what it was told to say.
SAYS = "import json, sys; sys.stdin.readline(); [print(json.dumps(line)) for line in json.loads(sys.argv[1])]"


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Let children run a scenario in place of torch; returns the log of what they were asked."""

    def play(**parts: Any) -> Path:
        log = tmp_path / "log"
        log.write_text("")
        predicted = json.dumps(parts.pop("predicted", [{"ok": False, "why": "not in this test"}]))
        monkeypatch.setattr(predict_run, "python_argv", lambda module: [sys.executable, "-S", "-c", SAYS, predicted])
        told = json.dumps({"log": str(log), **parts})
        monkeypatch.setattr(runner, "python_argv", lambda module: [sys.executable, "-S", str(FAKE), told])
        return log

    return play
