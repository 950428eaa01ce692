from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpucheck.batch_size.answer import memory_split
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import MemorySplit
from gpucheck.work.spec import parse_target
from gpucheck.work.target import load, step

# Weights 100, gradients 100, optimizer 200, 50 for each sample, and 30 of workspaces.
SMALL = TrialResult(
    batch_size=1,
    purpose="search",
    fresh_process=True,
    outcome="fits",
    compute_peak_bytes=480,
    gradient_bytes=100,
    optimizer_bytes=200,
)
LARGE = replace(SMALL, batch_size=20, compute_peak_bytes=1430, purpose="confirm")
MIDDLE = replace(SMALL, batch_size=10, compute_peak_bytes=930)


def test_a_line_through_the_peaks_of_forward_and_backward() -> None:
    above = replace(LARGE, batch_size=30, outcome="over-budget", compute_peak_bytes=9999)
    assert memory_split([SMALL, MIDDLE, LARGE, above], 100) == MemorySplit(100, 100, 200, 50, 30)


def test_the_nearest_size_that_is_far_enough_apart_gives_the_slope() -> None:
    middle = replace(MIDDLE, compute_peak_bytes=910)  # (1430 - 910) / 10
    near = replace(SMALL, batch_size=19, compute_peak_bytes=1410)
    found = memory_split([SMALL, middle, near, LARGE], 100)
    assert (found.activation_bytes_per_sample, found.fixed_bytes) == (52, 0)


@pytest.mark.parametrize("results", [[LARGE], [SMALL, replace(LARGE, compute_peak_bytes=520)]])
def test_what_a_line_cannot_tell_is_unknown(results: list[TrialResult]) -> None:
    assert memory_split(results, 100) == MemorySplit(100, 100, 200, None, None)


def test_without_a_trial_only_the_weights_are_known() -> None:
    assert memory_split([], 100) == MemorySplit(100, None, None)


def test_without_phases_the_whole_peak_is_fitted() -> None:
    results = [replace(r, compute_peak_bytes=None, peak_bytes=r.compute_peak_bytes) for r in (SMALL, MIDDLE, LARGE)]
    assert memory_split(results, 100).activation_bytes_per_sample == 50


@pytest.mark.slow
def test_what_a_workload_holds_is_counted_by_its_tensors() -> None:
    workload = load(parse_target("mlp"), (), mode="train", optimizer="adamw", dtype=None, device=torch.device("cpu"))
    assert (workload.gradient_bytes, workload.optimizer_bytes) == (0, 0)
    step(workload, workload.make_batch(1))
    weights = workload.parameter_bytes
    steps = 4 * len(list(workload.model.parameters()))  # AdamW counts its steps in a float each
    assert (workload.gradient_bytes, workload.optimizer_bytes) == (weights, 2 * weights + steps)
    assert weights + weights + 2 * weights + steps == workload.state_bytes


def test_inference_holds_weights_alone() -> None:
    workload = load(parse_target("mlp"), (), mode="infer", optimizer="adamw", dtype=None, device=torch.device("cpu"))
    step(workload, workload.make_batch(1))
    assert (workload.gradient_bytes, workload.optimizer_bytes) == (0, 0)


def test_a_peak_that_the_budget_holds_down_is_no_growth() -> None:
    """On an H100 two sizes for which the allocator made room peaked alike; memory grew all the same."""
    full = [replace(LARGE, batch_size=size, compute_peak_bytes=1440, allocation_retries=3) for size in (40, 80)]
    assert memory_split([SMALL, MIDDLE, LARGE, *full], 100) == MemorySplit(100, 100, 200, 50, 30)
    assert memory_split([LARGE, *full], 100).activation_bytes_per_sample is None
