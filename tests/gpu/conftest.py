"""The order in which the device's tests run."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`doctor` first: it loads the cards that nobody uses, and the other tests leave a context in this process."""
    items.sort(key=lambda item: "test_doctor_gpu" not in item.nodeid)
