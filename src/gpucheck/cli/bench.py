"""The commands `gpucheck bench …`, one for each row of `BENCHMARKS`, run in this process or in new processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck import units
from gpucheck.bench.benchmarks import BENCHMARKS
from gpucheck.cli import results
from gpucheck.cli.commands import Command, Common, retyped
from gpucheck.errors import UsageError
from gpucheck.machine import launcher
from gpucheck.options import LIMITS, TIME, option

if TYPE_CHECKING:  # a help page needs no report classes
    from gpucheck.report.events import Emit


@dataclass(frozen=True, slots=True)
class RepeatOptions:
    runs: int | None = option(
        "Run in N new processes, each with its own time budget.",
        metavar="N",
        parse=units.Integer(largest=1000),  # 1000 runs take hours, so more is a typing error
        shown="1, with --baseline 7",
        group=TIME,
    )
    baseline: str | None = option("Compare with an earlier result in FILE (.json).", metavar="FILE", group=LIMITS)


COMMANDS = tuple(
    Command(
        f"bench {benchmark.id}",
        "\n".join([benchmark.help, "", *(f"$ {line}" for line in benchmark.examples)]),
        "gpucheck.cli.bench:run",
        benchmark.options_at,
        device="auto",
        other_python=True,
        extra_options="gpucheck.cli.bench:RepeatOptions",
    )
    for benchmark in BENCHMARKS
)


def run(common: Common, options: Any, repeat: RepeatOptions) -> int:
    from gpucheck.bench.judge import judge
    from gpucheck.cli import session

    benchmark = next(benchmark for benchmark in BENCHMARKS if common.command == f"bench {benchmark.id}")
    if common.given.get("fail_if_slower") and not repeat.baseline:
        raise UsageError("--fail-if-slower needs a baseline", "", "add --baseline FILE")
    place = launcher.rendezvous(os.environ) if benchmark.of_several else None
    if repeat.baseline or (repeat.runs or 1) > 1:
        if place is not None:
            fix = "run the launcher again, and `gpucheck compare` the files"
            raise UsageError("--runs and --baseline need one process", "a launcher started several processes", fix)
        return _repeat(common, options, repeat)
    from gpucheck.machine import installed_torch

    def measure(emit: Emit, **more: Any) -> None:
        # `load` imports torch before the benchmark does, and delays signals until the import ends.
        installed_torch.load(options.time_budget_s)
        from gpucheck.bench.devices import BenchInputs

        benchmark.command()(options, emit, BenchInputs(limits=common.thresholds), **more)

    if place is not None:
        installed_torch.load(options.time_budget_s)
        from gpucheck.bench.collective import work

        def report(meeting: work.Meeting) -> int:
            return session.run(common, lambda emit: measure(emit, meeting=meeting), judge=judge)

        return work.run_under_launcher(place, options, report)
    return session.run(common, measure, judge=judge)


def _repeat(common: Common, options: Any, repeat: RepeatOptions) -> int:
    from gpucheck.bench import devices
    from gpucheck.bench.judge import judge
    from gpucheck.cli import session
    from gpucheck.compare.comparison import USUAL_RUNS
    from gpucheck.machine import saved

    limit = results.limit_of(common.given.get("fail_if_slower"))
    before = saved.load(repeat.baseline) if repeat.baseline else None
    arguments = arguments_of(common)

    def work(emit: Emit) -> None:
        after = devices.repeated(arguments, repeat.runs or USUAL_RUNS, emit, budget_s=options.time_budget_s or 0.0)
        if before is not None:
            results.conclude(before, after, limit, emit, common)

    return session.run(common, work, judge=judge)


def arguments_of(common: Common) -> list[str]:
    """Return the command line of one run, without the options of the comparison."""
    comparing = ("runs", "baseline", "fail_if_slower")
    values = {name: value for name, value in common.given.items() if name not in comparing}
    values |= {"device": common.device, "config": common.config}
    return [*common.command.split(), *retyped(common.command, values)]
