"""The table of benchmarks. Importing it loads neither torch nor a benchmark's code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

from gpucheck import naming, options, units


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark. `id` is the name of its package and its command, and the prefix of the IDs of its findings.

    `gpucheck.bench.ID.work.command` measures, `gpucheck.bench.ID.judge.JUDGE` judges, and `options_at` is the name of
    the dataclass of the options. `weight` is the share of the time in `bench all`, about the usual run time in seconds.
    A benchmark `of_several` uses all devices at once, or the processes of a launcher.
    """

    id: str
    help: str
    options_at: str
    examples: tuple[str, ...]
    weight: float = 0.0
    on_cpu: bool = True
    of_several: bool = False

    @property
    def options(self) -> type:
        """The dataclass of the options, loaded on access."""
        options: type = resolve_name(self.options_at)
        return options

    def command(self) -> Callable[..., None]:
        """Return the function `command(options, emit, shared)` that measures. Loads torch."""
        module = self.id if self.id == ALL else f"{self.id}.work"
        command: Callable[..., None] = resolve_name(f"gpucheck.bench.{module}:command")
        return command


# The ID of the benchmark that runs the others.
ALL = "all"


def sizes(text: str, parse: units.Size, shown: str) -> Any:
    """Return the field of a repeatable `--size`. The sizes are sorted and unique."""
    return options.option(
        text,
        name="--size",
        metavar="SIZE",
        parse=parse,
        shown=shown,
        repeat=True,
        fold=lambda given: tuple(sorted(set(given))),
    )


class Selecting:
    """Options with `only` and `skip`, prefixes of the names in `titles`. `nothing` is the error if no name is left."""

    __slots__ = ()
    noun: ClassVar[str]
    titles: ClassVar[Mapping[str, str]]
    nothing: ClassVar[str] = "nothing would be measured"

    @property
    def selected(self) -> list[str]:
        """The selected names. Raises UsageError if a prefix matches no name or if no name is left."""
        only, skip = getattr(self, "only", ()), getattr(self, "skip", ())
        return naming.select([*self.titles], str, only, skip, noun=self.noun, nothing=self.nothing)

    def names(self) -> list[tuple[str, str]]:
        return [(name, self.titles[name]) for name in self.selected]

    def check(self) -> None:
        """Raise UsageError if a prefix matches no name or if no name is left."""
        self.selected  # noqa: B018


# The benchmarks, in the order of the help page.
BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "transfer",
        """Measure copies between host and device.

        Copies pageable and pinned memory in both directions; every copy is verified.
        """,
        "gpucheck.bench.transfer:TransferOptions",
        weight=16.0,
        examples=(
            "gpucheck bench transfer",
            "gpucheck bench transfer --size 64MiB,1GiB --direction h2d --host-memory pinned",
            "gpucheck bench transfer --min-gbps 20 --output transfer.xml",
        ),
    ),
    Benchmark(
        "bandwidth",
        """Measure the bandwidth of device memory; on a CPU, of host memory.

        read sums the rows of an array, write fills one, copy copies one, triad computes c = a + 2b. The cache is cold.
        Bytes read and bytes written both count: a copy of 1 GiB moves 2 GiB. STREAM, bandwidthTest and data sheets
        count the same way; nvbandwidth counts a copy within a device once. As in STREAM, a CPU's read before a write
        does not count. Every result is verified.
        """,
        "gpucheck.bench.bandwidth:BandwidthOptions",
        weight=10.0,
        examples=(
            "gpucheck bench bandwidth",
            "gpucheck bench bandwidth --size 256MiB,4GiB --device all",
            "gpucheck bench bandwidth --min-percent-of-peak 80%",
        ),
    ),
    Benchmark(
        "matmul",
        """Measure matrix products in each data type.

        Reports the precision that was really used; every result is verified.
        """,
        "gpucheck.bench.matmul:MatmulOptions",
        weight=20.0,
        examples=(
            "gpucheck bench matmul --dtype bfloat16,float16",
            "gpucheck bench matmul --search --range 1024:16384:1024 --time-budget 2m",
            "gpucheck bench matmul --dtype bfloat16 --min-tflops 400",
        ),
    ),
    Benchmark(
        "overlap",
        """Measure how much of a copy hides behind compute.

        Runs non-blocking copies of pinned memory on a second stream. Hidden = (copy + compute - both) /
        min(copy, compute), with compute as long as the copy: at 100 % the copy costs no time, at 0 % it waits. The
        copy is enqueued first. Needs a GPU: on a CPU the exit code is 3.
        """,
        "gpucheck.bench.overlap:OverlapOptions",
        weight=10.0,
        on_cpu=False,
        examples=(
            "gpucheck bench overlap",
            "gpucheck bench overlap --size 256MiB --direction h2d",
            "gpucheck bench overlap --device cuda:1 --output overlap.json",
        ),
    ),
    Benchmark(
        "crossover",
        """Find the size at which the GPU beats the CPU.

        Measures square matrix products, sums of two vectors (memory-bound) and training steps of a small network, in
        float32, with and without the copies to and from the GPU. The CPU uses all available cores. Sizes rise in
        steps of 4. Needs a GPU: on a CPU the exit code is 3.
        """,
        "gpucheck.bench.crossover:CrossoverOptions",
        weight=24.0,
        on_cpu=False,
        examples=(
            "gpucheck bench crossover",
            "gpucheck bench crossover --only training --time-budget 1m",
            "gpucheck bench crossover --device cuda:1 --output crossover.json",
        ),
    ),
    Benchmark(
        "collective",
        """Measure collectives: all-reduce and others, among GPUs or nodes.

        Starts a process for each GPU of this machine, or uses those that torchrun, mpirun or srun has started. busbw is
        what each link carries, as nccl-tests defines it. Every result is verified, and a rank that hangs, dies or gets
        wrong data is named. On a CPU the ranks exchange data through the host (gloo), and no rate is judged.
        """,
        "gpucheck.bench.collective:CollectiveOptions",
        weight=24.0,
        on_cpu=False,
        of_several=True,
        examples=(
            "gpucheck bench collective",
            "gpucheck bench collective --only all-reduce --size 8GiB --min-busbw 400",
            "torchrun --nproc-per-node 8 --no-python gpucheck bench collective --only all-reduce",
        ),
    ),
    Benchmark(
        ALL,
        """Run all benchmarks with their default cases.

        If one fails or cannot run, the others still do. Buffers use at most a fifth of the free host memory.
        Thresholds come from the settings; see docs/settings.md.
        """,
        "gpucheck.bench.benchmarks:AllOptions",
        examples=(
            "gpucheck bench all --output today.json",
            "gpucheck bench all --only transfer,bandwidth --time-budget 30s",
            "gpucheck bench all --baseline yesterday.json --fail-if-slower 5%",
        ),
    ),
)


# A benchmark's title is the first sentence of its help text.
_TITLES = {known.id: re.split(r"\.\s", known.help)[0] for known in BENCHMARKS if known.id != ALL}


@dataclass(frozen=True, slots=True)
class AllOptions(Selecting):
    noun = "benchmark"
    titles = _TITLES
    only: tuple[str, ...] = options.only("benchmarks")
    skip: tuple[str, ...] = options.skip("benchmarks")
    list_all: bool = options.list_all("benchmarks")
    time_budget_s: float | None = options.time_budget("90s, on a CPU 48s")
    device: str = "auto"
