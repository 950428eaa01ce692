"""torch's real allocator comes to the figures that are told beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def document(**environment: str) -> dict[str, Any]:
    """The report of `gpucheck memory` on the first CUDA device, without the allocator settings around it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    child = subprocess.run(
        [sys.executable, "-m", "gpucheck", "memory", "--device", "cuda", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**plain, **environment},
    )
    assert child.returncode == 0, child.stderr[-2000:] + child.stdout[-2000:]
    read: dict[str, Any] = json.loads(child.stdout)
    return read


def findings(read: dict[str, Any]) -> dict[str, Any]:
    return {finding["id"]: finding for finding in read["findings"]}


def test_the_native_allocator_is_told_exactly() -> None:
    read = document()
    found = findings(read)
    assert found["memory.allocator"]["evidence"] == {"backend": "native", "settings": None, "exact": True}
    assert found["memory.accounting"]["message"] == "exact"
    figures = [row for step in read["results"]["memory"] for row in step["figures"]]
    assert len(figures) == 20
    assert {(row["relation"], row["ok"]) for row in figures} == {("=", True)}


@pytest.mark.parametrize(
    "settings", ["expandable_segments:True", "backend:cudaMallocAsync", "roundup_power2_divisions:4"]
)
def test_other_settings_keep_the_bounds(settings: str) -> None:
    read = document(PYTORCH_CUDA_ALLOC_CONF=settings)
    assert findings(read)["memory.accounting"]["verdict"] == "pass"
    assert not read["results"]["memory"][0]["exact"]


def test_without_caching_there_are_no_figures_to_judge() -> None:
    found = findings(document(PYTORCH_NO_CUDA_MEMORY_CACHING="1"))
    assert found["memory.accounting"]["verdict"] == "skip"


def test_the_device_adds_up() -> None:
    found = findings(document())["memory.device"]["evidence"]
    assert found["free_bytes"] + found["used_bytes"] == found["total_bytes"]
    assert found["total_bytes"] > 2**30
    # A CUDA context takes some 200 to 600 MiB; where another process moved meanwhile it is unknown.
    outside = found["outside_allocator_bytes"]
    assert outside is None or outside < 4 * 2**30
