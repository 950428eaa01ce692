"""The types of the entries in a report's `results`. Long results have separate modules, loaded if needed."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from gpucheck.report.results.bench import BenchAll, CrossoverResult, OverlapResult, SearchResult, TransferResult
    from gpucheck.report.results.find_batch_size import EstimatedBatchSize, FoundBatchSize
    from gpucheck.report.results.fleet import FleetResult, NodeDocument
    from gpucheck.report.results.model import ModelResult
    from gpucheck.report.results.run import DryResult, RanksResult, RunResult
    from gpucheck.report.results.short import Comparison, DoctorResult, ExplainResult, LintResult, MemoryStep
    from gpucheck.report.results.stress import StressResult


class Results(TypedDict, total=False):
    """The results of a command by name. Readers keep unknown entries, which later versions may add."""

    memory: tuple[MemoryStep, ...]
    bench_transfer: tuple[TransferResult, ...]
    bench_overlap: tuple[OverlapResult, ...]
    bench_crossover: tuple[CrossoverResult, ...]
    bench_matmul_search: tuple[SearchResult, ...]
    bench_all: BenchAll
    compare: Comparison
    doctor: DoctorResult
    explain: ExplainResult
    find_batch_size: FoundBatchSize
    lint: LintResult
    find_batch_size_estimate: EstimatedBatchSize
    fleet_check: NodeDocument
    fleet_judge: FleetResult
    model: ModelResult
    ranks: RanksResult
    run: RunResult
    stress: StressResult
    run_dry: DryResult


def late_types() -> dict[str, Any]:
    """Load the modules of this package, and return the types that `Results` names, by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {name: kind for module in modules for name, kind in vars(module).items() if is_dataclass(kind)}
