"""The command `bench all`: every benchmark one after another, in one document with one table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from gpucheck import exits
from gpucheck.bench import all_headlines, limits
from gpucheck.bench.bandwidth.command import command as run_bandwidth
from gpucheck.bench.bandwidth.options import BandwidthOptions
from gpucheck.bench.benchmarks import AllOptions
from gpucheck.bench.crossover.command import command as run_crossover
from gpucheck.bench.crossover.options import CrossoverOptions
from gpucheck.bench.devices import ALONE, Shared, begin
from gpucheck.bench.matmul.command import command as run_matmul
from gpucheck.bench.matmul.options import MatmulOptions
from gpucheck.bench.overlap.command import command as run_overlap
from gpucheck.bench.overlap.options import OverlapOptions
from gpucheck.bench.transfer.command import command as run_transfer
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.errors import GpucheckError, UsageError
from gpucheck.machine import choose, host, inventory
from gpucheck.report.events import Answered, Emit, Event, Judged, Measured, Notice, Progress, Started
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.thresholds import Limit

# For a CPU: with the start of torch and what a benchmark does beside measuring, this ends within a minute. For each
# accelerator: about what the benchmarks take by themselves.
DEFAULT_BUDGET_S = {"cpu": 48.0, "accelerator": 90.0}
# Of the memory that is there as this begins, the process with torch and all buffers included.
MEMORY_SHARE = 0.25
# What measuring takes beside the buffers: patterns, results in float64 for some rows, threads.
BESIDE_BYTES = 128 * 2**20
CPU = ("cpu",)
# Buffers smaller than this share would tell of a cache and not of the memory.
LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Given:
    """What one benchmark gets: its time, the device as it was asked for, and its part of the host's memory."""

    device: str
    time_budget_s: float
    host_share: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark. `name` begins the ids of its findings; `weight` is its share of the time among those that run.

    One that is not `on_cpu` says so itself there, and takes no time.
    """

    name: str
    weight: float
    run: Callable[[Given, Emit, Shared], None]
    on_cpu: bool = True


# In the order of the table. Weights are about the times that each takes by itself.
BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "transfer",
        16.0,
        lambda given, emit, shared: run_transfer(
            TransferOptions(time_budget_s=given.time_budget_s, device=given.device, host_share=given.host_share),
            emit,
            shared,
        ),
    ),
    Benchmark(
        "bandwidth",
        10.0,
        lambda given, emit, shared: run_bandwidth(
            BandwidthOptions(time_budget_s=given.time_budget_s, device=given.device, host_share=given.host_share),
            emit,
            shared,
        ),
    ),
    Benchmark(
        "matmul",
        20.0,
        lambda given, emit, shared: run_matmul(
            MatmulOptions(time_budget_s=given.time_budget_s, device=given.device), emit, shared
        ),
    ),
    Benchmark(
        "overlap",
        10.0,
        lambda given, emit, shared: run_overlap(
            OverlapOptions(time_budget_s=given.time_budget_s, device=given.device, host_share=given.host_share),
            emit,
            shared,
        ),
        on_cpu=False,
    ),
    Benchmark(
        "crossover",
        24.0,
        lambda given, emit, shared: run_crossover(
            CrossoverOptions(time_budget_s=given.time_budget_s, device=given.device, host_share=given.host_share),
            emit,
            shared,
        ),
        on_cpu=False,
    ),
)


@dataclass(slots=True)
class _Told:
    """Passes a benchmark's events on: facts and notices once, steps with its name; keeps what was found."""

    emit: Emit
    name: str = ""
    notices: set[str] = field(default_factory=set)
    measured: list[Measurement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    # A device is judged after its rows and before the next one's.
    by_device: dict[str, list[Finding]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                return
            case Notice(text):
                if text in self.notices:
                    return
                self.notices.add(text)
            case Progress(step, done, total):
                count = f" {done + 1}/{total}" if done is not None and total else ""
                event = Progress(f"{self.name}{count}: {step}")
            case Measured(measurement):
                self.measured.append(measurement)
            case Judged(finding):
                self.findings.append(finding)
                if self.measured:
                    self.by_device.setdefault(self.measured[-1].device.id, []).append(finding)
        self.emit(event)


def command(options: AllOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Run every benchmark that was not left out; one that fails does not cost the others.

    Raises UsageError for a prefix that fits none, and CannotLook where the device asked for is not there.
    """
    began = time.monotonic()
    todo = [one for one in BENCHMARKS if one.name in options.ids]
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    begin(emit, facts, chosen.ids, shared)
    deadline = began + (options.time_budget_s or default_s(chosen.ids))
    share = host_share()
    told = _Told(emit)
    for place, one in enumerate(todo):
        weights = sum(other.weight for other in todo[place:] if other.on_cpu or chosen.ids != CPU)
        # A budget of nothing would be none at all.
        budget_s = max((deadline - time.monotonic()) * one.weight / max(weights, one.weight), 1e-3)
        told.name = one.name
        mine = tuple(limit for limit in shared.limits if limit.id.startswith(f"{one.name}."))
        rows, findings = len(told.measured), len(told.findings)
        try:
            one.run(Given(options.device, budget_s, share), told, Shared(mine, facts))
        except UsageError:
            raise
        except (GpucheckError, RuntimeError, MemoryError) as error:
            told(Judged(_failed(one, error)))
            # What was asked of the devices that were not judged before it failed is not met.
            judged = {gate.evidence["device"] for gate in told.findings[findings:] if limits.is_gate(gate)}
            rest = [device for device in devices(chosen.ids, facts) if device.id not in judged]
            for finding in _unjudged(told.measured[rows:], mine, rest):
                told(Judged(finding))
        finally:
            ran = [other.name for other in todo[: place + 1]]
            emit(Answered("bench_all", all_headlines.of(told.measured, told.findings, ran, told.by_device)))


def _unjudged(rows: Sequence[Measurement], asked: Sequence[Limit], found: Sequence[DeviceRef]) -> list[Finding]:
    """What the rows of a benchmark that was cut short say to the thresholds, on each device."""
    return [
        finding
        for device in found
        for finding in limits.judge(
            (), [row for row in rows if row.device.id == device.id], asked, device, complete=False
        )
    ]


def default_s(ids: Sequence[str]) -> float:
    """The time for everything on these devices, where none was given."""
    return DEFAULT_BUDGET_S["cpu"] if tuple(ids) == CPU else DEFAULT_BUDGET_S["accelerator"] * len(ids)


def host_share() -> float:
    """What buffers may take of the host's memory that is left, so that this process takes a quarter of it at most."""
    left, mine = host.memory().usable, psutil.Process(os.getpid()).memory_info().rss
    room = MEMORY_SHARE * (left + mine) - mine - BESIDE_BYTES
    return max(room / left, LEAST_SHARE) if left else LEAST_SHARE


def devices(ids: Sequence[str], facts: Facts) -> list[DeviceRef]:
    """The devices with these ids, as measurements name them."""
    known = {device.id: device for device in facts.devices}
    return [DeviceRef(one, known[one].uuid, known[one].name) if one in known else DeviceRef(one) for one in ids]


def _failed(one: Benchmark, error: GpucheckError | RuntimeError | MemoryError) -> Finding:
    if isinstance(error, GpucheckError):
        verdicts: dict[int, Verdict] = {exits.FAILED: "fail", exits.UNDECIDED: "inconclusive"}
        verdict = verdicts.get(error.exit_code, "skip")
        return Finding(error.finding, verdict, error.what, error.why, fix=error.fix or None)
    # What torch and its driver raise: the device may be broken, and that is worth knowing.
    lines = str(error).strip().splitlines() or [""]
    return Finding(
        f"{one.name}.error",
        "fail",
        f"bench {one.name} ended with an error",
        f"{type(error).__name__}: {lines[0]}",
        {"text": str(error)},
        fix=f"run `gpucheck bench {one.name} --debug`, then `gpucheck smoke`",
    )
