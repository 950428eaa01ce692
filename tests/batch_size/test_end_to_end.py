"""Real trials in real children on the CPU: few, small, and none asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from event_recorder import Recorder

from gpucheck.batch_size.command import command
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Setup, guard_bytes
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.machine import host, inventory
from gpucheck.machine.child import python_argv
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Judged
from gpucheck.report.facts import Facts
from gpucheck.units import MIB

pytestmark = pytest.mark.slow

TARGET = """
from torch import nn

class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    def forward(self, x):
        print("a line on stdout that is not JSON")
        return self.body(x)

make = Talkative
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and peaks of a process are Linux's")


@linux
def test_a_users_model_under_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "talkative.py").write_text(TARGET)
    monkeypatch.setattr(inventory, "read", lambda *_, **__: Facts(host=host.read(), devices=(host.cpu(),)))
    recorder = Recorder()
    options = FindBatchSizeOptions(
        target=f"{tmp_path / 'talkative.py'}:make",
        inputs=("x:512:float32",),
        memory_limit="96MiB",
        device="cpu",
        time_budget_s=600.0,  # on a loaded machine the default is too short to close the search
    )
    command(options, recorder)
    (found,) = [to_json(event.value) for event in recorder.events if isinstance(event, Answered)]
    # Weights, gradients and AdamW's state are 16 MiB; each sample then keeps 4 × 2 KiB and more in flight.
    assert 2_000 < found["max_batch_size"] < 20_000
    assert found["confirmed"]
    assert found["method"]["peak"] == "VmHWM"
    assert 0.9 * 96 * MIB < found["peak_bytes"] <= 96 * MIB
    assert found["loss"] == "cross-entropy against random classes"
    assert (found["predicted_above"] or found["first_failing"]) <= 1.02 * found["max_batch_size"] + 1
    split = found["memory_split"]
    assert split["gradient_bytes"] == split["parameter_bytes"] == pytest.approx(4 * MIB, rel=0.01)
    assert split["optimizer_bytes"] == pytest.approx(8 * MIB, rel=0.01)
    assert 8_000 < split["activation_bytes_per_sample"] < 40_000
    recommended = found["recommended"]["batch_size"]
    assert recommended is None or recommended < found["max_batch_size"]
    assert [e.finding.verdict for e in recorder.events if isinstance(e, Judged)] == ["pass"]


@linux
def test_a_budget_that_holds_the_model_is_enough_whatever_its_file_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries are not the model's memory; a tensor that is made at import is."""
    (tmp_path / "library.py").write_text("import os\ncode = os.urandom(300 * 2**20)\n")
    (tmp_path / "small.py").write_text(
        "import library\nimport torch\nfrom torch import nn\n\nheld = torch.ones(20 * 2**18)\n\n"
        "def make():\n    return nn.Linear(64, 64)\n"
    )
    monkeypatch.setattr(inventory, "read", lambda *_, **__: Facts(host=host.read(), devices=(host.cpu(),)))
    for target, inputs in (("mlp", ()), (f"{tmp_path / 'small.py'}:make", ("x:64:float32",))):
        recorder = Recorder()
        command(
            FindBatchSizeOptions(
                target=target, inputs=inputs, memory_limit="96MiB", device="cpu", max_batch_size=8, quick=True
            ),
            recorder,
        )
        (found,) = [event.value for event in recorder.events if isinstance(event, Answered)]
        assert (found.at_least, found.limited_by) == (8, "max-batch-size")
        assert found.peak_bytes < 96 * MIB and (target == "mlp" or found.peak_bytes > 20 * MIB)


@linux
def test_running_out_is_real_and_the_next_child_works() -> None:
    budget = 128 * MIB
    setup = Setup(
        target="mlp",
        inputs=(),
        mode="infer",
        optimizer="adamw",
        dtype=None,
        device="cpu",
        device_name=None,
        budget_bytes=budget,
        guard_bytes=guard_bytes(budget),
        limit=None,
        free_before=None,
        shared=False,
        watch_bytes=None,
    )
    with Runner(setup) as runner:
        failed = runner.run(Attempt(10**6), steps=1, limit_s=60.0, deadline=time.monotonic() + 60)
        assert failed.outcome == "out-of-memory"
        assert "DefaultCPUAllocator: can't allocate memory" in failed.trace
        assert "in make" in failed.trace
        passed = runner.run(Attempt(10), steps=1, limit_s=60.0, deadline=time.monotonic() + 60)
        assert (passed.outcome, passed.fresh_process) == ("fits", True)
        assert passed.peak_bytes is not None and 0 < passed.peak_bytes < budget


def test_a_child_ends_with_its_parent() -> None:
    child = subprocess.Popen(python_argv("gpucheck.batch_size.trial"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(json.dumps({"device": "cpu"}).encode()[:5])
    child.stdin.close()
    assert child.wait(60) == 0
