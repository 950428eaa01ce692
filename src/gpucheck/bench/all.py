"""The command `bench all`: run the benchmarks one after another, with one document."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from gpucheck.bench.benchmarks import BENCHMARKS, AllOptions, Benchmark
from gpucheck.bench.devices import ALONE, BenchInputs, begin, out_of_time
from gpucheck.errors import GpucheckError, UsageError
from gpucheck.machine import choose, faults, inventory, launcher, watchdog
from gpucheck.report.events import Emit, Event, Failed, Measured, Notice, Planned, Progress, Skipped, Started
from gpucheck.report.fault import Fault
from gpucheck.report.finding import of_error

# A run on a CPU ends within a minute. The budget of an accelerator is about the sum of the budgets of the benchmarks.
DEFAULT_BUDGET_S = {"cpu": 48.0, "accelerator": 90.0}
# Buffers take at most this share of the host's free memory.
HOST_SHARE = 0.2
CPU = ("cpu",)


@dataclass(slots=True)
class _Relay:
    """Forwards the events of a benchmark and stores its faults. Drops repeated notices; steps name the benchmark."""

    emit: Emit
    name: str = ""
    notices: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    # `began_s` is the start of a benchmark without a row yet. `first_s` is the longest wait for a first row.
    began_s: float | None = None
    first_s: float = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Started() | Planned():
                return
            case Notice(text):
                if text in self.notices:
                    return
                self.notices.add(text)
            case Progress(step, done, total):
                count = f" {done + 1}/{total}" if done is not None and total else ""
                event = Progress(f"{self.name}{count}: {step}")
            case Measured() if self.began_s is not None:
                self.first_s, self.began_s = max(self.first_s, time.monotonic() - self.began_s), None
            case Failed(fault):
                self.faults.append(fault)
        self.emit(event)


def command(options: AllOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Run every selected benchmark, even if one fails. Raises UsageError, CannotLook, and at the end the first bug."""
    began = time.monotonic()
    facts = shared.facts or inventory.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    todo = [known for known in BENCHMARKS if known.id in options.selected]
    # A benchmark of several devices needs several devices. Under a launcher, each process would start a process for
    # every device, so the benchmark runs only if selected. `launcher.rendezvous` may raise and is called last.
    unselected = [known for known in todo if known.of_several and known.id not in options.only]
    if unselected and (len(chosen.ids) == 1 or launcher.rendezvous(os.environ) is not None):
        todo = [known for known in todo if known not in unselected]
    begin(emit, facts, [benchmark.id for benchmark in todo if not benchmark.of_several], chosen.ids, shared)
    if several := tuple(benchmark.id for benchmark in todo if benchmark.of_several):
        emit(Planned(several, chosen.ids[:1]))  # the document lists these benchmarks under one device
    usual_s = DEFAULT_BUDGET_S["cpu"] if chosen.ids == CPU else DEFAULT_BUDGET_S["accelerator"] * len(chosen.ids)
    total_s = options.time_budget_s or usual_s
    deadline, until_s = began + total_s, watchdog.ends_by(total_s, began)
    relay = _Relay(emit)
    lost: dict[str, Fault] = {}
    bugs: list[Exception] = []
    for index, benchmark in enumerate(todo):
        now_s = time.monotonic()
        if now_s >= until_s or (now_s >= deadline and now_s + relay.first_s >= until_s):
            emit(Skipped(out_of_time(benchmark.id, "not measured")))
            continue
        weights = sum(other.weight for other in todo[index:] if other.on_cpu or chosen.ids != CPU)
        share = benchmark.weight / max(weights, benchmark.weight)
        # A budget of 0 would mean the default budget.
        budget_s = max((deadline - now_s) * share, 1e-3)
        its_end_s = now_s + max((until_s - now_s) * share, 0.0)
        relay.name, relay.began_s = benchmark.id, now_s
        if all(device in lost for device in chosen.ids):
            break
        given = {"time_budget_s": budget_s, "device": options.device, "host_share": HOST_SHARE}
        names = {field.name for field in fields(benchmark.options)}
        try:
            its_options = benchmark.options(**{name: value for name, value in given.items() if name in names})
            benchmark.command()(its_options, relay, BenchInputs((), facts, lost, its_end_s, is_planned=True))
        except UsageError:
            raise
        except watchdog.OutOfTime:
            some = "" if relay.began_s is not None else "some rows were "
            relay(Skipped(out_of_time(benchmark.id, f"{some}not measured")))
        except Exception as error:  # noqa: BLE001 (it is reported; a bug is raised on at the end)
            bugs += _fail(benchmark, error, relay, lost, chosen.ids)
    if bugs:
        raise bugs[0]


def _fail(
    benchmark: Benchmark, error: Exception, relay: _Relay, lost: dict[str, Fault], ids: Sequence[str]
) -> list[Exception]:
    """Report the error of a benchmark unless it was reported. Record lost devices. Return the error if it is a bug."""
    if isinstance(error, GpucheckError) and not faults.is_device(error):
        relay(Skipped(of_error(error)))
        return []
    if (fault := next((known for known in relay.faults if known.is_of(error)), None)) is None:
        fault = faults.of(error, f"bench {benchmark.id}", ids[0] if len(ids) == 1 else None, step=watchdog.step())
        relay(Failed(fault))
    if fault.poisons:
        lost.update({device: fault for device in ids if device not in lost})
    # A library's error on a working device is not a bug in gpucheck.
    return [error] if fault.kind == "error" and not faults.is_of_library(error) else []
