"""`gpucheck doctor` on a real GPU: a healthy card yields nothing above a remark but what its own state justifies."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Report

pytestmark = pytest.mark.gpu

# What a well card may have all the same: somebody's setting, use by others, or the machine around it.
OF_ITS_STATE = (
    "devices.foreign_memory",
    "environment.",
    "links.inactive",
    "load.not_run",
    "log.",
    "torch.",
)


@functools.cache
def diagnosed() -> dict[str, Any]:
    """The document; the command runs once for all tests."""
    ended = subprocess.run(
        [sys.executable, "-m", "gpucheck", "doctor", "--json"], capture_output=True, text=True, timeout=180
    )
    assert "Traceback" not in ended.stderr, ended.stderr[-2000:]
    read: dict[str, Any] = json.loads(ended.stdout)
    assert to_json(from_json(Report, read)) == read
    assert ended.returncode == read["summary"]["exit"]
    return read


def under_load() -> list[dict[str, Any]]:
    """What was read of each card that nobody else uses."""
    load = diagnosed()["results"]["doctor"]["load"]
    if load is None:
        pytest.skip("this torch is not one of CUDA's")
    if load["outcome"] == "none":
        pytest.skip(f"no card is free: {load['left_out']}")
    cards: list[dict[str, Any]] = load["cards"]
    return cards


def test_torch_is_seen_to_work_on_every_device() -> None:
    told = diagnosed()["results"]["doctor"]
    assert (told["first"], told["torch_works"]) == (None, True)
    (healthy,) = [one for one in diagnosed()["findings"] if one["id"] == "doctor.healthy"]
    assert all(f"cuda:{index}" in healthy["message"] for index in range(torch.cuda.device_count()))


def test_nothing_above_a_remark_but_what_the_state_justifies() -> None:
    worse = [one for one in diagnosed()["findings"] if one["verdict"] not in ("pass", "info")]
    unexplained = [(one["id"], one["message"]) for one in worse if not one["id"].startswith(OF_ITS_STATE)]
    assert unexplained == []


def test_the_load_was_seen_in_samples() -> None:
    for card in under_load():
        telemetry = card["telemetry"]
        assert telemetry is not None, card["reason"]
        # A second at up to twenty readings each; a slow driver takes longer for one.
        assert telemetry["readings"] >= 5
        assert telemetry["sm_clock_hz"]["median"] > 0
        assert set(card["held_by"]) != {"gpu_idle"}


def test_the_link_under_load_is_known() -> None:
    devices = {device["id"]: device for device in diagnosed()["facts"]["devices"]}
    for card in under_load():
        link = card["telemetry"]["pcie"]
        if devices[card["device"]]["integrated"] or card["telemetry"]["c2c_bytes_per_s"] is not None:
            continue
        assert link["generation"] and link["width"], card["telemetry"]["unknown"]


def test_links_and_the_fabric_are_told_or_do_not_apply() -> None:
    facts = diagnosed()["facts"]
    for place, device in enumerate(facts["devices"]):
        if device["nvml_index"] is None:
            continue
        for name in ("nvlinks", "fabric"):
            reason = facts["unknown"].get(f"/devices/{place}/{name}")
            assert device[name] is not None or reason is not None
