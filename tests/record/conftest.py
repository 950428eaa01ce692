"""`--write-record` writes the record anew in place of comparing with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path[:0] = [
    str(Path(__file__).parents[1] / "fakes"),
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "doctor"),
]

from fake_driver import fake_driver  # noqa: E402 (found by the path above)

__all__ = ["fake_driver"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-record", action="store_true", help="Write the record of every command anew.")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Give torch back the threads that a recorded machine has not."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
