"""What fake tensors say of a step on CUDA, against what its allocator hands out."""

from __future__ import annotations

import pytest
import torch

from gpucheck.batch_size import trial_fake
from gpucheck.batch_size.command import command
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Setup
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Recorder
from gpucheck.units import MIB
from gpucheck.work.spec import parse_target
from gpucheck.work.target import load, step

pytestmark = [pytest.mark.gpu, pytest.mark.long]


@pytest.mark.parametrize(("target", "size"), [("mlp", 4096), ("transformer", 16)])
def test_predicted_peaks_are_near_those_of_the_allocator(target: str, size: int) -> None:
    _, begun = trial_fake._prepared(Setup(target, (), "train", "adamw", None, "cuda:0"), None, on_host=False)
    assert begun is not None
    predicted = begun[0].run(size)["peak_bytes"]
    device = torch.device("cuda:0")
    workload = load(parse_target(target), (), mode="train", optimizer="adamw", dtype=None, device=device)
    before = torch.cuda.memory_allocated() - workload.parameter_bytes
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step(workload, workload.make_batch(size))
    torch.cuda.synchronize()
    # The libraries' workspaces, up to 64 MiB, are the allocator's but no tensor's.
    measured = torch.cuda.max_memory_allocated() - before
    assert 0.95 * predicted - MIB <= measured <= 1.05 * predicted + 96 * MIB


def test_a_search_is_steered_by_its_prediction() -> None:
    recorder = Recorder()
    command(FindBatchSizeOptions(target="mlp", device="cuda", memory_limit="4GiB"), recorder)
    (found,) = [to_json(event.value) for event in recorder.events if isinstance(event, Answered)]
    assert found["method"]["prediction"] == "fake tensors"
    assert found["prediction"]["device"] == "cuda"
    assert [trial["purpose"] for trial in found["trials"]].count("search") <= 4
    assert all(trial["outcome"] == "fits" for trial in found["trials"][:2])
