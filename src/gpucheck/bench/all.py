"""The command `bench all`: every benchmark one after another, in one document with one table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from gpucheck import exits
from gpucheck.bench import all_headlines, devices, limits
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
from gpucheck.machine import choose, faults, host, inventory, pulse
from gpucheck.report.events import Answered, Emit, Event, Failed, Finished, Judged, Measured, Notice, Progress, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault, judge, not_run
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
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
    faults: list[Fault] = field(default_factory=list)
    # A device is judged after its rows and before the next one's.
    by_device: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def so_far(self) -> tuple[int, int]:
        """How many rows and findings there are."""
        return len(self.measured), len(self.findings)

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
            case Failed(fault):
                self.faults.append(fault)
            case Judged(finding):
                self.findings.append(finding)
                if self.measured:
                    self.by_device.setdefault(self.measured[-1].device.id, []).append(finding)
        self.emit(event)


def command(options: AllOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Run every benchmark that was not left out; one that fails does not cost the others.

    A device that this process cannot use any more is told once, and what was to be measured on it is skipped. Raises
    UsageError for a prefix that fits none, CannotLook where the device asked for is not there, and at the end the first
    bug.
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
    run = _All(told, todo, shared.limits, chosen.ids, facts)
    for place, one in enumerate(todo):
        weights = sum(other.weight for other in todo[place:] if other.on_cpu or chosen.ids != CPU)
        # A budget of nothing would be none at all.
        budget_s = max((deadline - time.monotonic()) * one.weight / max(weights, one.weight), 1e-3)
        told.name = one.name
        given, begun = Given(options.device, budget_s, share), told.so_far
        try:
            if all(device in run.lost for device in chosen.ids):
                run.skip(one, run.lost[chosen.ids[0]])
                continue
            with pulse.concluding(run.silent):
                one.run(given, told, Shared(run.asked(one), facts, run.lost))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (it is told; a bug is raised on when all others have run)
            run.broken_off(one, error)
            run.say_unjudged(one, begun)
        finally:
            run.answer(todo[: place + 1])
            emit(Finished(one.name))
    if run.bugs:
        raise run.bugs[0]


@dataclass(slots=True)
class _All:
    """What the benchmarks have come to so far, and what became of the devices."""

    told: _Told
    todo: Sequence[Benchmark]
    limits: Sequence[Limit]
    ids: Sequence[str]
    facts: Facts
    lost: dict[str, Fault] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)

    def asked(self, one: Benchmark) -> tuple[Limit, ...]:
        """The thresholds of a benchmark."""
        return tuple(limit for limit in self.limits if limit.id.startswith(f"{one.name}."))

    def answer(self, ran: Sequence[Benchmark]) -> None:
        """Say the table of these."""
        told, names = self.told, [one.name for one in ran]
        told(Answered("bench_all", all_headlines.of(told.measured, told.findings, names, told.by_device)))

    def skip(self, one: Benchmark, fault: Fault) -> None:
        """Say that a benchmark was not run because of a fault before."""
        begun = self.told.so_far
        self.told(Judged(not_run(one.name, f"bench {one.name}", fault)))
        self.say_unjudged(one, begun)

    def silent(self, fault: Fault) -> None:
        """A device does not answer any more, and this process ends: say what this comes to."""
        self.told.findings.append(judge(fault))
        behind = [one.name for one in self.todo].index(self.told.name)
        for one in self.todo[behind + 1 :]:
            self.skip(one, fault)
        self.answer(self.todo)

    def broken_off(self, one: Benchmark, error: Exception) -> None:
        """Tell what a benchmark raised, unless it has done so itself; keep what ends with it: devices, or this run."""
        if isinstance(error, GpucheckError) and not faults.is_device(error):
            self.told(Judged(_as_finding(error)))
            return
        fault = next((known for known in self.told.faults if known.is_of(error)), None)
        if fault is None:
            device = self.ids[0] if len(self.ids) == 1 else None
            fault = faults.of(error, f"bench {one.name}", device, step=pulse.step())
            faults.tell(fault, self.told)
        if fault.poisons:
            self.lost.update({device: fault for device in self.ids if device not in self.lost})
        # What torch raises on a device that works may be its own: that benchmark failed, and the others tell.
        if fault.kind == "error" and not isinstance(error, RuntimeError):
            self.bugs.append(error)

    def say_unjudged(self, one: Benchmark, begun: tuple[int, int]) -> None:
        """What is asked of devices that were not judged in a benchmark: nobody knows that they meet it.

        `begun` is what was told before it.
        """
        rows, findings = begun
        told = self.told
        judged = {gate.evidence["device"] for gate in told.findings[findings:] if limits.is_gate(gate)}
        for device in devices.refs(self.ids, self.facts):
            if device.id not in judged:
                mine = [row for row in told.measured[rows:] if row.device.id == device.id]
                for finding in limits.judge((), mine, self.asked(one), device, complete=False):
                    told(Judged(finding))


def default_s(ids: Sequence[str]) -> float:
    """The time for everything on these devices, where none was given."""
    return DEFAULT_BUDGET_S["cpu"] if tuple(ids) == CPU else DEFAULT_BUDGET_S["accelerator"] * len(ids)


def host_share() -> float:
    """What buffers may take of the host's memory that is left, so that this process takes a quarter of it at most."""
    left, mine = host.memory().usable, psutil.Process(os.getpid()).memory_info().rss
    room = MEMORY_SHARE * (left + mine) - mine - BESIDE_BYTES
    return max(room / left, LEAST_SHARE) if left else LEAST_SHARE


def _as_finding(error: GpucheckError) -> Finding:
    verdicts: dict[int, Verdict] = {exits.FAILED: "fail", exits.UNDECIDED: "inconclusive"}
    return Finding(error.finding, verdicts.get(error.exit_code, "skip"), error.what, error.why, fix=error.fix or None)
