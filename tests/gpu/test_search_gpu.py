"""The search for the fastest product and a long run for real on a CUDA device, short."""

from __future__ import annotations

import pytest
import torch
from event_recorder import Recorder
from judged import run

from gpucheck.bench.dtypes import Support
from gpucheck.bench.matmul import Dimension, MatmulOptions, work
from gpucheck.bench.matmul.product import Grid, ProductCase
from gpucheck.machine import accel

pytestmark = [pytest.mark.gpu, pytest.mark.long]

CASE = ProductCase("float32", (1, 1, 1), Support("native"))


def test_a_tiny_range_is_searched_and_its_winner_measured() -> None:
    options = MatmulOptions(
        ("float32",), search=True, span=Dimension(512, 1024, 256), device="cuda:0", time_budget_s=10.0
    )
    made = run(lambda emit: work.command(options, emit))
    (entry,) = made.results["bench_matmul_search"]
    assert entry.complete and entry.shapes_in_range == 27 and entry.best is not None and entry.best.rounds >= 3
    assert entry.best.flop_per_s > 1e11
    rows = made.measurements
    best = next(one for one in rows if [one.case[side] for side in "mnk"] == [entry.best.m, entry.best.n, entry.best.k])
    # What the final says and what the measuring loop says of one product are one thing.
    assert best.rate is not None and 0.8 < best.rate.median / entry.best.flop_per_s < 1.25
    found = {finding.id: finding.verdict for finding in made.findings}
    assert found["matmul.search"] == "info" and found["matmul.result"] == "pass"


def test_a_short_product_is_not_bound_by_its_launches() -> None:
    device = accel.open_device("cuda:0")
    grid = Grid((Dimension(256, 512, 256),) * 3)
    tries = work.ShapeTrials(device, CASE.kind, work.operands(CASE, grid, 2**24, device))
    tries.warm_up((256, 256, 256))
    taken = [tries.take((256, 256, 256), 1e-3) for _ in range(9)]
    rates = [reading.rate for reading in taken if reading.rate is not None]
    a = torch.randn(256, 256, device=device.device)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(a)
    torch.mm(a, a, out=out)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(200):
            torch.mm(a, a, out=out)
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    in_graph = 2.0 * 256**3 * 200 / (start.elapsed_time(end) / 1e3)
    # A graph saves a little between kernels; a host that lags behind costs a factor.
    assert sorted(rates)[4] > 0.5 * in_graph


def test_memory_is_taken_once_for_all_shapes() -> None:
    device = accel.open_device("cuda:0")
    work.search(CASE, Grid((Dimension(256, 256, 1),) * 3), 2**24, device, 1.0, Recorder(), [])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    grid = Grid((Dimension(256, 512, 256),) * 3)
    work.search(CASE, grid, 2**24, device, 1.0, Recorder(), [])
    assert torch.cuda.max_memory_allocated() - before <= 3 * 512 * 512 * 4 + 4096
