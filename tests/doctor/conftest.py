"""The fake driver for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import pytest
from fake_driver import fake_driver

from gpucheck.doctor import load_run

__all__ = ["fake_driver"]


@pytest.fixture(autouse=True)
def short_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes settle at once, and some readings are enough."""
    monkeypatch.setattr(load_run, "SETTLE_S", 0.0)
    monkeypatch.setattr(load_run, "LOAD_S", 0.4)
