"""What only a CUDA device can show of the smoke test: that all of it passes there, and that faults there are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.long]

# In a child: each of these spoils the device or its settings for the rest of its process.
SCRIPT = """
import json, sys
import torch
from gpucheck.smoke.options import SmokeOptions
from gpucheck.smoke import command as smoke
from gpucheck.smoke import options
from gpucheck.smoke.check import Passed
from gpucheck.report.codec import to_json
from gpucheck.report.events import Judged

def kill_the_device(accel):
    torch.zeros(1, device=accel.device)[torch.tensor([5], device=accel.device)]
    return Passed()

def leave_memory_behind(accel):
    torch.kept = torch.empty(3 * 2**20, device=accel.device)
    return Passed()

rows = {check.id: check for check in smoke.CHECKS}
rows |= {f.__name__: smoke.Check(f.__name__, "planted", "", "", f) for f in (kill_the_device, leave_memory_behind)}
# The tables are replaced: the options select from the one, and what they selected is taken from the other.
smoke.CHECKS = tuple(rows[name] for name in sys.argv[1].split(","))
options.CHECKS = smoke.CHECKS
found = []
smoke.command(SmokeOptions(device="cuda"), lambda event: found.append(event))
torch.kept = None
print(json.dumps([to_json(event.finding) for event in found if isinstance(event, Judged)]))
sys.stdout.flush()
"""


def judged(ids: str, **environment: str) -> dict[str, dict[str, Any]]:
    """The findings of these checks on the first CUDA device, by id, in a separate process."""
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, ids],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    lines = child.stdout.strip().splitlines()
    assert lines, child.stderr[-2000:]
    return {finding["id"]: finding for finding in json.loads(lines[-1])}


def test_everything_passes_on_a_cuda_device() -> None:
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "gpucheck",
            "smoke",
            "--device",
            "cuda",
            "--require",
            "cuda",
            "--min-devices",
            "1",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    document = json.loads(child.stdout)
    bad = {f["id"]: f["message"] for f in document["findings"] if f["verdict"] not in ("pass", "skip", "warn")}
    assert bad == {}
    assert child.returncode == 0
    skipped = {f["id"] for f in document["findings"] if f["verdict"] == "skip"}
    # Older parts have no TF32, and some machines share their memory.
    assert skipped <= {"numerics.tf32", "memory.one_pebibyte"}


def test_an_error_that_kills_the_device_skips_the_rest() -> None:
    found = judged("kill_the_device,tensors.round_trip,copies.pinned")
    assert found["kill_the_device"]["verdict"] == "fail"
    assert "device-side assert" in found["kill_the_device"]["message"]
    for name in ("tensors.round_trip", "copies.pinned"):
        assert found[name]["verdict"] == "skip"
        assert found[name]["message"].startswith("device unusable: kill_the_device failed: ")


def test_tf32_forced_from_outside_is_found() -> None:
    import torch

    if torch.version.cuda is None or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this device has no TF32")
    found = judged("numerics.matmul", NVIDIA_TF32_OVERRIDE="1")["numerics.matmul"]
    if found["verdict"] == "pass":
        # Libraries are free to ignore it: then what was observed must be float32 indeed.
        assert found["evidence"]["precision_observed"] == "float32"
    else:
        assert found["message"] == "float32 products in IEEE precision were requested, but torch computes tf32"
        assert "unset NVIDIA_TF32_OVERRIDE=1" in found["fix"]


def test_tf32_forbidden_from_outside_is_a_warning() -> None:
    import torch

    if torch.version.cuda is None or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this device has no TF32")
    found = judged("numerics.tf32", NVIDIA_TF32_OVERRIDE="0")["numerics.tf32"]
    assert (found["verdict"], found["evidence"]["precision_observed"]) in (("warn", "float32"), ("pass", "tf32"))


def test_running_out_leaves_the_level_as_it_was() -> None:
    found = judged("leave_memory_behind,memory.one_pebibyte")
    # What another check left is that check's level: running out gives back exactly its own.
    assert {name: finding["verdict"] for name, finding in found.items()} == dict.fromkeys(found, "pass")
