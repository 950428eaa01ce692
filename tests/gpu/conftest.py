"""The order in which the device's tests run, and that they have the device alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`doctor` first: it loads the cards that nobody uses, and the other tests leave a context in this process."""
    items.sort(key=lambda item: "test_doctor_gpu" not in item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def alone_on_the_device() -> Iterator[None]:
    """Let one file at a time use the device, where several processes run tests."""
    with FileLock(Path(tempfile.gettempdir()) / "gpucheck-tests-of-the-device.lock"):
        yield
