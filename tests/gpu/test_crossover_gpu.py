"""`bench crossover` for real on a CUDA device, short."""

from __future__ import annotations

import pytest
import torch
from event_recorder import Recorder
from judged import run

from gpucheck.bench.crossover import CrossoverOptions
from gpucheck.bench.crossover.work import command

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def test_large_products_are_faster_on_the_device_and_every_result_is_right() -> None:
    options = CrossoverOptions(device="cuda:0", time_budget_s=12.0)
    made = run(lambda emit: command(options, emit))
    found = {finding.id: finding for finding in made.findings}
    rows, answers = made.measurements, made.results["bench_crossover"]
    assert found["crossover.result"].verdict == "pass" and found["crossover.precision"].verdict == "pass"
    assert [(one.operation, one.transfers) for one in answers] == [
        (operation, transfers) for operation in ("matmul", "elementwise", "training") for transfers in (False, True)
    ]
    without, with_copies = answers[:2]
    # No CPU multiplies 2048×2048 in float32 as fast as a device that is worth its slot.
    assert without.device_faster_from is not None and without.device_faster_from <= 2048
    if with_copies.device_faster_from is not None:
        assert with_copies.device_faster_from >= without.device_faster_from
    for one in answers[4:]:
        assert one.speedup is not None and one.speedup.size == 32 and one.speedup.ratio > 0
    by = {
        (row.case["operation"], row.case["size"], row.case["side"], row.case["transfers"]): row.time_s for row in rows
    }
    for (operation, size, side, transfers), time_s in by.items():
        if transfers and size >= 1024 and operation != "training":
            alone = by[operation, size, side, False]
            assert time_s is not None and alone is not None and time_s.median > alone.median


def test_what_was_set_for_float32_is_as_it_was() -> None:
    before = torch.backends.cudnn.allow_tf32
    command(CrossoverOptions(only=("matmul",), device="cuda:0", time_budget_s=1.0), Recorder())
    assert torch.backends.cudnn.allow_tf32 == before
