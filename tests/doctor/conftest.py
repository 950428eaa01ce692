"""What holds for the doctor's tests."""

from __future__ import annotations

import pytest

from gpucheck.doctor import command


@pytest.fixture(autouse=True)
def short_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes settle at once, and some readings are enough."""
    monkeypatch.setattr(command, "SETTLE_S", 0.0)
    monkeypatch.setattr(command, "LOAD_S", 0.4)
