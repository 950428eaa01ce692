"""The last-level cache from a /sys built by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucheck.machine import host


def cache(root: Path, core: int, index: int, *, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared), ("type", kind)):
        (folder / name).write_text(text + "\n")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)


def test_each_shared_cache_counts_once(tmp_path: Path) -> None:
    for core in range(4):
        cache(tmp_path, core, 0, level=1, size="48K", shared=str(core), kind="Data")
        cache(tmp_path, core, 3, level=3, size="32768K", shared="0-1" if core < 2 else "2-3")
    assert host.last_level_cache_bytes(tmp_path) == 64 * 2**20
