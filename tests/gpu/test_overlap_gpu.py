"""`bench overlap` for real on a CUDA device, short."""

from __future__ import annotations

import os

import pytest
import torch
from judged import run

from gpucheck.bench.overlap import OverlapOptions
from gpucheck.bench.overlap.work import command
from gpucheck.machine import accel

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def test_pinned_copies_hide_on_a_second_stream() -> None:
    options = OverlapOptions(device="cuda:0", time_budget_s=12.0)
    made = run(lambda emit: command(options, emit))
    found = {finding.id: finding for finding in made.findings}
    rows, answers = made.measurements, made.results["bench_overlap"]
    assert found["overlap.copies"].verdict == "pass"
    assert len(rows) == 6 and len(answers) == 2
    for one in answers:
        assert one.rounds >= 10, one
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            assert one.overlap < 0.2, one
        else:
            # A part with one copy engine has it to itself here too: the two directions never run at once.
            assert one.overlap > 0.7, one


def test_a_side_stream_does_not_wait_for_the_default_one() -> None:
    device = accel.open_device("cuda:0")
    with device.as_current():
        side = device.side_stream()
        assert side is not None
        one = torch.zeros(1, device=device.device)
        one.add_(1)  # loads the kernel, which may wait for all that runs
        torch.cuda.synchronize()
        torch.cuda._sleep(int(0.2 * (device.max_clock_hz or 2e9)))
        with side():
            assert torch.cuda.current_stream() != torch.cuda.default_stream()
            one.add_(1)
            torch.cuda.current_stream().synchronize()
        assert not torch.cuda.default_stream().query()
        torch.cuda.synchronize()
