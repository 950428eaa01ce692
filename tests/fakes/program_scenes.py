"""Documents of `run`, `run --dry` and `model`, made by hand: what the screens are tested with."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from gpucheck.program import judge as model_judge
from gpucheck.program.run import command, counters, judge, ranks_findings
from gpucheck.report.events import Answered, Judged
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.model import (
    DeviceMismatchEntry,
    MismatchedTensor,
    ModelResult,
    ModuleRow,
    SimulatedRun,
    Totals,
    TrainingBytes,
)
from gpucheck.report.results.run import (
    CaughtError,
    Collective,
    DryLine,
    DryMemory,
    DryMismatch,
    DryResult,
    HeldBytes,
    JobHang,
    JobRank,
    MemoryMoment,
    RanksResult,
    RunError,
    RunResult,
    Traced,
    TracedLine,
)
from gpucheck.units import MIB

# -- run ---------------------------------------------------------------------------------------------------------------


def a_run(busy: float | None, **parts: int) -> RunResult:
    """Twenty steps of 100 ms on an H200, of which so many milliseconds each went to `data`, `copies` and `waits`."""
    memory = bytearray(counters.SIZE)
    cells = counters.cells_of(memory)
    cells[counters.TORCH_NS], cells[counters.STEPS] = 1, 20
    for number in range(20):
        row: dict[str, int] = dict.fromkeys(counters.STEP, 0) | {
            "allocated": 2**30,
            "reserved": 2**31,
            "number": number,
        }
        row |= {"duration_ns": 10**8, "end_ns": (number + 1) * 10**8, "resident": 2**29}
        row |= {f"{name}_ns": ms * 10**6 for name, ms in parts.items()}
        for place, value in enumerate(row.values(), counters.step_at(number)):
            cells[place] = value
    device = {"seen": 1, "allocated": 2**30, "reserved": 2**31, "peak_allocated": 2**35, "peak_reserved": 36 * 2**30}
    device |= {"peak_step": 1, "peak_phase": 1, "reserved_at_peak": 36 * 2**30}
    for place, name in enumerate(counters.DEVICE):
        cells[counters.DEVICES_AT + place] = device.get(name, 0)
    site = {
        "count": 20,
        "bytes": 20 * 2**20,
        "time_ns": 20 * parts.get("copies", 0) * 10**6,
        "pageable": 20,
        "steps": 20,
    }
    for place, name in enumerate(counters.SITE):
        cells[counters.SITES_AT + place] = site.get(name, 0)
    cells[counters.SITES] = 1
    line: dict[str, Any] = {"say": "site", "site": 0, "kind": "to_device", "file": "/job/train.py", "line": 31}
    line |= {"discarded": False}
    counters.write(memory, cells, line)
    line = {"say": "device", "index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "total": 141 * 2**30}
    counters.write(memory, cells, line)
    loads = () if busy is None else tuple((n / 10, busy) for n in range(20))
    return command.answer(
        counters.read(memory), command.RunEnd(("train.py",), 0, 0, 2 * 10**9, 1.0, 3 * 2**30, loads, "no NVML")
    )


def document(result: RunResult) -> Report:
    collector = Collector()
    collector(Answered("run", result))
    for finding in judge.findings(result, "/job"):
        collector(Judged(finding))
    return collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)


ERROR = RunError("AcceleratorError", "", "cuda.device_assert", "/job/a.py", 3)
ASSERT = "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda"


def ended(busy: float | None, code: int, error: RunError | None = None) -> RunResult:
    """A run that an error or a signal ended."""
    return replace(a_run(busy, data=1), error=error, exit=code)


def job_that_hangs() -> Report:
    """A job of four ranks of which one is missing; NCCL's watchdog aborted rank 0."""
    call = Collective(name="all_reduce", group="0", number=41, sizes="[64]", place="train.py:31")
    hang = JobHang(call=call, waited_s=600.0, inside=(0, 1, 2), missing=(3,), unknown=(), resumed=False)
    blank: dict[str, Any] = dict.fromkeys(field.name for field in fields(JobRank))
    rows = tuple(JobRank(**blank | {"rank": rank, "host": "a", "steps": 20, "exit": -6}) for rank in range(4))
    empty: dict[str, Any] = dict.fromkeys(field.name for field in fields(RanksResult))
    known = {"world": 4, "outcome": "not_decided", "reason": "", "late": (), "arrival": "arrival", "steps": 20}
    job = RanksResult(**empty | known | {"hang": hang, "ranks": rows, "not_seen": ()})
    result = replace(a_run(0.97, data=1), exit=-signal.SIGABRT)
    collector = Collector()
    collector(Answered("ranks", job))
    for finding in ranks_findings.findings(job):
        collector(Judged(finding))
    collector(Answered("run", result))
    for finding in judge.findings(result, "/job"):
        collector(Judged(finding))
    return collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)


def with_memory_by_line() -> RunResult:
    """A run with memory by line, of which some lines hold next to nothing."""
    line = TracedLine("/job/train.py", 15, "Sequential.0", "forward", 2**26, 0.0, None)
    little = [replace(line, module=f"Sequential.{n}", peak_bytes=n) for n in (4, 512)]
    kept = replace(line, module="Metric", peak_bytes=4, kept_bytes_per_step=4.0)
    return replace(a_run(0.97), traced=Traced(2, 2**27, 2.6, (line, *little, kept)))


RUN: dict[str, Callable[[], Report]] = {
    "run waits for data": lambda: document(a_run(0.3, data=60, copies=1)),
    "run busy": lambda: document(a_run(0.97, data=1)),
    "run without telemetry": lambda: document(a_run(None)),
    "run ended by a device's error": lambda: document(ended(None, 1, replace(ERROR, text=ASSERT))),
    "run ended by torch's own error about CUDA": lambda: document(
        ended(None, 1, replace(ERROR, text="Torch not compiled with CUDA enabled"))
    ),
    "run ended by an error without a text": lambda: document(ended(None, 1, ERROR)),
    "run ended by a text that is an option": lambda: document(ended(None, 1, replace(ERROR, text="-1"))),
    "run ended by SIGSEGV": lambda: document(ended(None, -signal.SIGSEGV)),
    "run ended by SIGINT while busy": lambda: document(ended(0.97, -signal.SIGINT)),
    "run waits for the host": lambda: document(a_run(0.12)),
    "run waits for the host and a minority for data": lambda: document(
        a_run(0.22, data=28, copies=11, waits=2, cpu=95)
    ),
    "run whose CPU waits too": lambda: document(a_run(0.012, cpu=4)),
    "run without a step": lambda: document(replace(a_run(0.97), steps=None)),
    "run with memory by line": lambda: document(with_memory_by_line()),
    "run of a job that hangs": job_that_hangs,
}

# -- run --dry ---------------------------------------------------------------------------------------------------------

PEAK = MemoryMoment(
    place="train.py:31",
    phase="backward",
    step=1,
    asked_bytes=64 * MIB,
    allocated_bytes=900 * MIB,
    held=(HeldBytes(place="train.py:20", phase="forward", bytes=700 * MIB),),
)
MEMORY = DryMemory(
    total_bytes=1024 * MIB,
    peak=PEAK,
    parameters_bytes=100 * MIB,
    gradients_bytes=100 * MIB,
    optimizer_bytes=200 * MIB,
    exceeded=None,
)
LINE = DryLine(
    kind="item",
    file="train.py",
    line=33,
    count=2,
    bytes=0,
    source="total += loss.item()",
)
CLEAN = DryResult(
    program=("train.py",),
    device="cuda:0 (simulated GPU)",
    exit=0,
    torch="2.13.0",
    has_values=True,
    steps=2,
    ended_after_steps=True,
    mismatches=(),
    stopped=None,
    lines=(LINE,),
    memory=MEMORY,
    assumed=(),
    assumed_count=0,
    unjudged=(),
    remarks=(),
)
WRONG = MismatchedTensor(
    name="target",
    device="cpu",
    shape=(4,),
    is_wrong=True,
    origin="made",
    origin_name="torch.randint",
    origin_place="train.py:8",
)
MISMATCH = DryMismatch(
    mismatch=DeviceMismatchEntry(
        operation="F.cross_entropy",
        module=None,
        place="train.py:30",
        phase="step",
        expected="cuda:0",
        operands=(WRONG,),
        peer=None,
    ),
    ended=True,
    assumed=0,
)
COUNTED = command.answer(
    counters.read(bytearray(counters.SIZE)), command.RunEnd(("train.py",), 0, 0, 10**9, None, None)
)


def dry(result: DryResult) -> Report:
    """The document of a dry run, judged."""
    collector = Collector()
    collector(Answered("run_dry", result))
    for finding in judge.dry_findings(result, COUNTED, "/job"):
        collector(Judged(finding))
    return collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)


CAUGHT = replace(MISMATCH, ended=False, times=32)


def caught_twice() -> DryResult:
    other = replace(MISMATCH.mismatch, place="train.py:40")
    return replace(CLEAN, mismatches=(CAUGHT, replace(CAUGHT, mismatch=other, times=1)))


def out_of_memory() -> DryResult:
    held = (replace(PEAK.held[0], place="a.py:2"),)
    first = replace(PEAK, place="a.py:9", allocated_bytes=1100 * MIB, asked_bytes=200 * MIB, held=held)
    return replace(CLEAN, memory=replace(MEMORY, peak=first, exceeded=first))


MIXED = replace(CLEAN, mixed=(CaughtError(text="got Half and Float", place="train.py:9", times=2),))
UNDONE = replace(CLEAN, steps=0, ended_after_steps=False, trains=True)
DRY: dict[str, Callable[[], Report]] = {
    "dry run without a fault": lambda: dry(CLEAN),
    "dry run with a tensor on the wrong device": lambda: dry(
        replace(CLEAN, mismatches=(MISMATCH,), ended_after_steps=False)
    ),
    "dry run with mistakes that the program caught": lambda: dry(caught_twice()),
    "dry run with dtypes that the program caught": lambda: dry(MIXED),
    "dry run without a step": lambda: dry(UNDONE),
    "dry run out of memory": lambda: dry(out_of_memory()),
}

# -- model -------------------------------------------------------------------------------------------------------------

ROWS = (
    ModuleRow(name="", kind="Net", depth=0, parameters=1_300_000, parameter_bytes=5 * MIB, buffer_bytes=0),
    ModuleRow(
        name="layers.0-11",
        kind="Linear",
        depth=1,
        repeats=12,
        parameters=100_000,
        parameter_bytes=400_000,
        buffer_bytes=0,
        dtypes=("float32",),
        devices=("cuda:0",),
    ),
)
TOTALS = Totals(parameters=1_300_000, parameter_bytes=5 * MIB, buffer_bytes=0)
TRAINING = TrainingBytes(optimizer="torch.optim.AdamW", gradient_bytes=5 * MIB, optimizer_bytes=10 * MIB)


def model(run: SimulatedRun | None, **more: Any) -> Report:
    """The document of a model, judged."""
    result = ModelResult(
        target="net.py:make", kind="Net", device="cuda:0", rows=ROWS, totals=TOTALS, training=TRAINING, run=run, **more
    )
    collector = Collector()
    collector(Answered("model", result))
    for finding in model_judge.findings(result):
        collector(Judged(finding))
    return collector.report(version="0", command="model", argv=(), started="", elapsed_s=2.0)


MODEL: dict[str, Callable[[], Report]] = {
    "model that is right": lambda: model(SimulatedRun(phase="step", batch_size=2)),
    "model that cannot be followed": lambda: model(
        SimulatedRun(phase="forward", batch_size=2, stopped="NotImplementedError: no kernel", stopped_at="net.py:12")
    ),
    "model without a batch": lambda: model(
        None, not_run="no --input, and the target has no make_batch", proposed="--input x:8:float32"
    ),
}

SCENES = {**RUN, **DRY, **MODEL}
