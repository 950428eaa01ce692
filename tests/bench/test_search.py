"""The search for the fastest shape: on machines whose fastest shape is known, and for real on a few tiny shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from event_recorder import Recorder
from judged import Document
from landscapes import Landscape, Machine, cube, middling, plateau, run, smooth, tiled
from products_here import one_run, together

from gpucheck.bench.dtypes import Support
from gpucheck.bench.matmul import Dimension, MatmulOptions, Shape, judge, product, work
from gpucheck.bench.matmul.product import Grid, ProductCase, ShapeSearch, TryResult
from gpucheck.errors import UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.options import read
from gpucheck.report.events import Answered, Measured, Progress
from gpucheck.report.facts import Facts
from gpucheck.report.results.bench import RefusedShape, SearchedShape, SearchResult

CPU = accel.open_device("cpu")
CASE = ProductCase("float32", (1, 1, 1), Support("native"))

MACHINES: dict[str, tuple[Landscape, Grid]] = {
    "132 SMs, bfloat16": (tiled(132, 800e12), cube(1024, 12288, 1024)),
    "108 SMs, bfloat16": (tiled(108, 280e12), cube(1024, 12288, 1024)),
    "132 SMs, sides that fill no tile": (tiled(132, 800e12), cube(512, 4032, 320)),
    "132 SMs, float32": (tiled(132, 50e12), cube(1024, 12288, 1024)),
    "a CPU": (smooth(60e9), cube(64, 512, 64)),
    "a CPU, long calls": (smooth(60e9), cube(128, 1536, 128)),
    "a plateau": (plateau(60e12), cube(256, 3072, 256)),
    "the biggest is not the fastest": (middling(60e12), cube(512, 6144, 512)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_the_search_finds_99_percent_of_the_best_in_a_twentieth_of_the_time_of_a_scan(name: str) -> None:
    for seed in range(3):
        outcome = run(*MACHINES[name], seed)
        assert outcome.quality >= 0.99, (seed, outcome.search.best)
        assert outcome.time_share <= 1 / 20, seed
        assert outcome.search.complete


@pytest.mark.slow
def test_a_range_too_large_to_be_listed_is_searched_until_the_time_is_over() -> None:
    grid = cube(256, 16384, 64)
    assert grid.count() is None
    machine = Machine(tiled(132, 800e12))
    search = ShapeSearch(grid, 20.0, machine.take)
    search.run()
    assert search.best is not None
    # 256 divides the sides of the fastest: 3072 × 11264 are 33 × 32 tiles, eight whole waves.
    assert machine.landscape(search.best.shape) > 0.98 * machine.landscape((11264, 3072, 16384))
    assert 19.0 < machine.now_s < 21.0


def test_the_final_is_in_turns_and_its_figures_decide() -> None:
    tried: list[Shape] = []
    machine = Machine(smooth(60e9))

    def take(shape: Shape, window_s: float) -> TryResult:
        tried.append(shape)
        return machine.take(shape, window_s)

    search = ShapeSearch(cube(64, 512, 64), 60.0, take)
    search.run()
    turn = len(search.finalists)
    final = tried[-turn * search.finalists[0].rounds :]
    assert 3 <= turn <= 8
    assert set(final[:turn]) == set(final[turn : 2 * turn]) and final[turn : 2 * turn] == final[:turn][::-1]
    assert search.best == search.finalists[0] and search.best.rounds == max(one.rounds for one in search.finalists)
    assert search.best.ci_low is not None and search.best.ci_high is not None
    assert search.best.ci_low <= search.best.flop_per_s <= search.best.ci_high


def searching(
    grid: Grid, landscape: Landscape, without: Callable[[Shape, int], bool], limit_s: float = 60.0
) -> ShapeSearch:
    """A search on a machine that has no kernel for some shapes: `without` is asked with the try's number."""
    machine = Machine(landscape)

    def take(shape: Shape, window_s: float) -> TryResult:
        assert search.tries < 100_000 and shape not in search.refused
        if without(shape, search.tries):
            machine.now_s += 1e-3
            return TryResult(None, 1e-3, "no algorithm")
        return machine.take(shape, window_s)

    search = ShapeSearch(grid, limit_s, take)
    search.run()
    return search


@pytest.mark.parametrize(
    "without",
    [
        lambda shape, tries: shape == (320, 320, 320),  # the middle, which is the reference
        lambda shape, tries: shape[0] % 128 == 0,
        lambda shape, tries: shape == (512, 512, 512),  # the fastest
        lambda shape, tries: sum(shape) % 192 != 0,
        lambda shape, tries: shape == (320, 320, 320) and tries > 20,  # the reference, later
        lambda shape, tries: shape[2] == 512 and tries > 200,
    ],
)
def test_a_shape_without_a_kernel_costs_that_shape(without: Callable[[Shape, int], bool]) -> None:
    grid, landscape = cube(64, 512, 64), smooth(60e9)
    search = searching(grid, landscape, without)
    there = [shape for shape in grid.shapes() if not without(shape, search.tries)]
    assert search.complete and search.best is not None and search.best.shape not in search.refused
    assert landscape(search.best.shape) >= 0.98 * max(map(landscape, there))
    assert search.refused and search.shapes_tried <= 512
    assert all(one.shape not in search.refused for one in search.finalists)


def test_where_no_shape_has_a_kernel_the_search_ends_at_once() -> None:
    for grid in (cube(64, 512, 64), cube(256, 16384, 64), Grid((Dimension(64, 64, 1),) * 3)):
        search = searching(grid, smooth(60e9), lambda shape, tries: True)
        assert search.complete and search.best is None and 1 <= search.tries <= 16
        assert len(search.refused) == search.tries == search.shapes_tried


def test_what_does_not_fit_is_not_tried() -> None:
    grid = Grid((Dimension(64, 512, 64),) * 3, lambda shape: shape[0] * shape[1] <= 64 * 512)
    asked: set[Shape] = set()
    searching(grid, smooth(60e9), lambda shape, tries: bool(asked.add(shape)))  # type: ignore[func-returns-value]
    assert asked and all(m * n <= 64 * 512 for m, n, _ in asked)


def test_a_clock_that_falls_all_the_time_is_no_reason_to_prefer_what_came_first() -> None:
    grid, landscape = cube(64, 512, 64), smooth(60e9)
    machine = Machine(landscape, drift=0.0)

    def take(shape: Shape, window_s: float) -> TryResult:
        reading = machine.take(shape, window_s)
        assert reading.rate is not None
        slower = 1 - 0.4 * machine.now_s / search.time_s
        return TryResult(reading.rate * slower, reading.spent_s)

    search = ShapeSearch(grid, 60.0, take)
    search.run()
    most = max(map(landscape, grid.shapes()))
    rates = [landscape(finalist.shape) for finalist in search.finalists]
    assert max(rates) >= 0.99 * most and min(rates) >= 0.95 * most


# the range


@pytest.mark.parametrize("given", [{"search": True, "size": ["64"]}, {"m": "64"}])
def test_what_a_search_does_not_go_with(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--search"):
        read(MatmulOptions, given)


# on a device


def searched(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    monkeypatch.setattr(product, "DEFAULT_SIZES", {"accelerator": (48,), "cpu": (48,)})
    options = MatmulOptions(
        ("float32",), search=True, span=Dimension(16, 48, 16), time_budget_s=4.0, device="cpu", **more
    )
    document = Document()
    work.command(options, document)
    return document


@pytest.mark.slow
def test_the_command_tells_the_shape_found_and_measures_it_beside_the_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = searched(monkeypatch)
    entry = [event.value for event in recorder.events if isinstance(event, Answered)][-1][0]
    assert (entry.device, entry.dtype, entry.shapes_in_range, entry.complete) == (
        "cpu",
        "float32",
        27,
        True,
    )
    assert entry.range == {"m": "16:48:16", "n": "16:48:16", "k": "16:48:16"}
    best = entry.best.m, entry.best.n, entry.best.k
    rows = [event.measurement.case for event in recorder.events if isinstance(event, Measured)]
    assert {(row["m"], row["n"], row["k"]) for row in rows} == {(48, 48, 48), best}
    finding = next(one for one in recorder.judged().findings if "search" in one.id)
    assert (finding.id, finding.verdict) == ("matmul.search", "info")
    told = next(event for event in recorder.events if isinstance(event, Progress) and event.best)
    assert re.fullmatch(r"search float32 on cpu, shapes tried: \d+", told.step)
    assert re.fullmatch(r"\d+×\d+×\d+ at [\d.]+ [MGT]FLOP/s", told.best or "")


@pytest.mark.slow
def test_shapes_without_a_kernel_are_told_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if a.shape[0] == 32:  # the middle among them
            raise RuntimeError(
                "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic()`"
            )
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    recorder = searched(monkeypatch)
    entry = [event.value for event in recorder.events if isinstance(event, Answered)][-1][0]
    assert entry.best.m != 32 and entry.complete
    assert entry.shapes_refused == len(entry.refused) > 0 and {one.m for one in entry.refused} == {32}
    found = {one.id: one for one in recorder.judged().findings}
    assert (found["matmul.shape"].verdict, found["matmul.search"].verdict) == ("skip", "info")
    assert found["matmul.shape"].message.startswith("float32 32x")
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in found["matmul.shape"].message
    assert found["matmul.shape"].evidence["float32"][0] == asdict(entry.refused[0])


def test_a_private_product_may_refuse_a_shape_in_words_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(RuntimeError):
        error_code = 700

    monkeypatch.setattr(torch, "AcceleratorError", Broken, raising=False)
    private, plain = product.KINDS["int8"], product.KINDS["float32"]
    odd = ValueError("expected the trailing dimension to be divisible by 16")
    assert product.why_no_kernel(odd, private, CPU) == str(odd) and product.why_no_kernel(odd, plain, CPU) is None
    assert product.why_no_kernel(Broken("CUDA error: an illegal memory access"), private, CPU) is None
    assert product.why_no_kernel(torch.OutOfMemoryError("CUDA out of memory"), private, CPU) is None
    no_kernel = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling ...")
    monkeypatch.setattr(accel, "_wrong_answer", lambda device: "1 times 2 is 0")
    # A device that does not work any more lacks no kernel.
    assert product.why_no_kernel(odd, private, CPU) is product.why_no_kernel(no_kernel, plain, CPU) is None


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    real, taken = work.ShapeTrials.take, []

    def take(self: work.ShapeTrials, shape: Shape, window_s: float) -> TryResult:
        taken.append(shape)
        if len(taken) == 5:
            raise KeyboardInterrupt
        return real(self, shape, window_s)

    monkeypatch.setattr(work.ShapeTrials, "take", take)
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        work.search(CASE, cube(16, 48, 16), 2**20, CPU, 5.0, recorder, [])
    entry = [event.value for event in recorder.events if isinstance(event, Answered)][-1][0]
    assert entry.best is not None and not entry.complete and entry.tries == 4


def test_a_range_of_which_nothing_fits_is_wrong_usage() -> None:
    with pytest.raises(UsageError) as raised:
        work.search(CASE, cube(64, 128, 64), 1024, CPU, 5.0, Recorder(), [])
    assert str(raised.value) == (
        "no shape of the range 64:128:64x64:128:64x64:128:64 fits; 1 KiB are free; use a smaller --range"
    )


# judging


def entry(**more: Any) -> SearchResult:
    def figures(m: int, rate: float) -> SearchedShape:
        return SearchedShape(m, 8, 8, rate, rate - 1e12, rate + 1e12, 8)

    found = SearchResult(
        device="cuda:0",
        dtype="bfloat16",
        unit="FLOP/s",
        best=figures(24, 700e12),
        finalists=(figures(24, 700e12), figures(32, 699e12), figures(40, 690e12)),
        range={},
        shapes_in_range=27,
        shapes_tried=20,
        tries=40,
        time_s=1.0,
        complete=True,
    )
    return replace(found, **more)


def test_a_search_says_what_it_gains() -> None:
    from test_matmul import measured

    def row(m: int, rate: float) -> Any:
        one = measured("bfloat16", rate)
        one.case["m"] = m
        return one

    finding = judge.search([entry()], [row(24, 660e12), row(8, 600e12)])[0]
    assert (finding.id, finding.verdict) == ("matmul.search", "info")
    outcome = finding.evidence["bfloat16"]
    assert (outcome["gain"], outcome["square"]) == (pytest.approx(1.1), "8x8x8")
    finding = judge.search([entry(complete=False, finalists=())], [row(24, 600e12), row(8, 600e12)])[0]
    assert finding.message.endswith("no faster than 8x8x8 (search cut off)")
    finding = judge.search([entry(dtype="int8", unit="OP/s", finalists=())], [])[0]
    assert finding.message == "int8 24x8x8 700 TOP/s" and finding.evidence["int8"]["gain"] is None
    assert judge.search([], []) == judge.search([entry(best=None)], []) == []


def test_of_searches_of_several_runs_the_fastest_counts() -> None:
    from test_matmul import measured

    def run_with(m: int, rate: float) -> Any:
        rows = [measured("bfloat16", rate), measured("bfloat16", 600e12)]
        rows[0].case["m"] = m
        best = SearchedShape(m, 8, 8, rate, rate - 1e12, rate + 1e12, 8)
        return one_run(*rows, searches=[entry(best=best, finalists=(best,))])

    whole = together(run_with(24, 700e12), run_with(32, 720e12), run_with(24, 690e12))
    entries = whole.results["bench_matmul_search"]
    assert [(one.run, one.best.m) for one in entries if one.best] == [(1, 24), (2, 32), (3, 24)]
    outcome = next(one for one in whole.findings if one.id == "matmul.search").evidence["bfloat16"]
    # Another run's shape is no default square.
    assert (outcome["shape"], outcome["flop_per_s"], outcome["square"]) == ("32x8x8", 720e12, "8x8x8")


def test_what_has_no_kernel_is_named_with_its_number() -> None:
    many = replace(entry(), shapes_refused=20, refused=(RefusedShape(24, 8, 8, "no algorithm"),))
    skip = judge.search([entry(), many], [])[-1]
    assert (skip.verdict, skip.message) == ("skip", "bfloat16 24x8x8 and 19 others: no algorithm")
