"""The benchmarks there are: a row each, read before torch is. The work is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck import naming, units
from gpucheck.bench.bandwidth.options import BandwidthOptions
from gpucheck.bench.crossover.options import CrossoverOptions
from gpucheck.bench.matmul.options import MatmulOptions
from gpucheck.bench.overlap.options import OverlapOptions
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.options import option

if TYPE_CHECKING:  # a help page needs no judge
    from gpucheck.bench.seen import Judge


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark. `id` names its folder, its command and how the ids of its findings begin; `help` is the command's.

    `weight` is its share of the time in `bench all`: about the seconds that it takes by itself. One that is not
    `on_cpu` says so itself there, and takes no time. Its work is `gpucheck.bench.ID.command.command`, its judge
    `gpucheck.bench.ID.judge.JUDGE`.
    """

    id: str
    help: str
    options: type
    weight: float = 0.0
    on_cpu: bool = True

    def command(self) -> Callable[..., None]:
        """`command(options, emit, shared)` measures; torch comes with it."""
        name = f"gpucheck.bench.{self.id}" + ("" if self.id == ALL else ".command")
        found: Callable[..., None] = importlib.import_module(name).command
        return found

    def judge(self) -> Judge:
        """What judges the rows."""
        found: Judge = importlib.import_module(f"gpucheck.bench.{self.id}.judge").JUDGE
        return found


# The one that runs the others.
ALL = "all"


@dataclass(frozen=True, slots=True)
class AllOptions:
    """What the user asked for; `only` and `skip` are prefixes of the benchmarks' names."""

    only: tuple[str, ...] = option("Only benchmarks whose name begins so. Repeatable.", metavar="NAME", repeat=True)
    skip: tuple[str, ...] = option("No benchmarks whose name begins so. Repeatable.", metavar="NAME", repeat=True)
    time_budget_s: float | None = option(
        "For all of them; default 90s, a CPU 48s.", name="--time-budget", metavar="TIME", parse=units.parse_duration
    )
    device: str = "auto"

    @property
    def ids(self) -> list[str]:
        """The benchmarks to run. Raises UsageError for a prefix that fits none, and where nothing is left."""
        known = [one.id for one in BENCHMARKS if one.id != ALL]
        nothing = "nothing would be measured"
        return naming.select(known, str, self.only, self.skip, noun="benchmark", nothing=nothing)

    def check(self) -> None:
        """Raises UsageError for a prefix that fits nothing."""
        self.ids  # noqa: B018


# In the order of the help page.
BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "transfer",
        "How fast copies between host and device run, from pageable and from pinned memory, each verified.",
        TransferOptions,
        weight=16.0,
    ),
    Benchmark(
        "bandwidth",
        """How fast a device reads and writes its own memory, cold; on a CPU, the host's.

        read sums the rows of an array, write fills one, copy copies one, triad adds twice one to another (c = a + 2b).
        Bytes count as they move, read and written: a copy of 1 GiB moves 2 GiB. So count STREAM, bandwidthTest and data
        sheets; nvbandwidth counts a copy within a device once. What a CPU reads before it overwrites it is not counted,
        as in STREAM. Every result is verified.
        """,
        BandwidthOptions,
        weight=10.0,
    ),
    Benchmark(
        "matmul",
        "How fast matrix products run, with the precision observed and the result checked.",
        MatmulOptions,
        weight=20.0,
    ),
    Benchmark(
        "overlap",
        """How much of a non-blocking copy hides behind compute: pinned and pageable, on one stream and on two.

        Hidden is (copy + compute - both) / the shorter of copy and compute, with as much compute as takes as long as
        the copy: 100 % costs nothing beside the compute, 0 % waits for it. The copy is enqueued first. A CPU has no
        copies to hide: exit 3.
        """,
        OverlapOptions,
        weight=10.0,
        on_cpu=False,
    ),
    Benchmark(
        "crossover",
        """From what size on a device is faster than this CPU, with the copies to and from it and without.

        For square products, for sums of two vectors (bound by memory), and for a training step of a small network by
        its batch, all in float32; the CPU uses every core that it may. Sizes double, then the crossing is narrowed to
        10 %. A size at which the intervals overlap is even. Without a second device: exit 3.
        """,
        CrossoverOptions,
        weight=24.0,
        on_cpu=False,
    ),
    Benchmark(
        ALL,
        """How fast, in one go: every benchmark with its usual cases, in one table and one document.

        One that cannot look or fails does not cost the others. The whole process takes a quarter of the host's memory
        that is left at most. Thresholds come from the settings; see docs/settings.md.
        """,
        AllOptions,
    ),
)
