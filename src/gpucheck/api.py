"""The commands of gpucheck as Python functions. Each function returns the command's report.

    >>> from gpucheck import api
    >>> report = api.devices()
    >>> [device.kind for device in report.facts.devices][-1]
    'cpu'
    >>> [finding.verdict for finding in api.smoke("cpu", only=["tensors.round_trip"]).findings]
    ['pass']
    >>> measured = api.bench("matmul", "cpu", size=512, dtype="float32", time_budget_s=0.2)
    >>> measured.measurements[0].rate.unit
    'FLOP/s'
    >>> api.judge(measured).findings == measured.findings
    True
    >>> api.doctor(only=["torch.missing"]).summary.exit
    0

A report is the document that `--json` prints (`gpucheck schema`), as dataclasses. Problems (exit codes 1 and 4 of the
command) are in its findings. Wrong options raise `UsageError`. A missing or unusable device raises `CannotLook`.

The search for a batch size:

    from gpucheck import api

    found = api.find_batch_size("models.py:make_net", inputs=["image:3x64x64:float32"])
    size = found.recommended or found.max_batch_size
    if size is None:  # nothing fits, or time ran out and more than `found.answer.at_least` may fit
        raise SystemExit(found.report.findings[0].title)
    loader = DataLoader(data, batch_size=size)

Trials run in separate processes, and this process creates no context on the device. Each trial imports the target by
name, so the target must be a function at the top of a module or script. Guard a script with `__name__ == "__main__"`.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsFloat

import gpucheck
from gpucheck.batch_size.command import command
from gpucheck.batch_size.options import HEADROOM, FindBatchSizeOptions
from gpucheck.errors import CannotLook, GpucheckError, TargetError, UsageError
from gpucheck.report.events import Event
from gpucheck.report.report import Collector, Judge, Report
from gpucheck.report.results.find_batch_size import FoundBatchSize

__all__ = [
    "BatchSize",
    "CannotLook",
    "GpucheckError",
    "Report",
    "TargetError",
    "UsageError",
    "bench",
    "devices",
    "doctor",
    "find_batch_size",
    "judge",
    "smoke",
    "status",
    "step",
]

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The result of a search, with the report of `find-batch-size`. Sizes are lengths if the search has an axis."""

    report: Report

    @property
    def answer(self) -> FoundBatchSize | None:
        """`results.find_batch_size` of the report; None if the search ended before its first trial."""
        return self.report.results.get("find_batch_size")

    @property
    def max_batch_size(self) -> int | None:
        """The largest size that trains, if larger sizes are known not to fit; else None. Then `answer.at_least` is the
        largest size that passed. `at_least` may be far below the limit, so do not train with it automatically."""
        return self.answer.max_batch_size if self.answer else None

    @property
    def recommended(self) -> int | None:
        """A size that was run and leaves the headroom free; None if there is none. `answer` has the reason."""
        recommended = self.answer and self.answer.recommended
        return recommended.batch_size if recommended else None


def step() -> None:
    """Mark the end of a step for `gpucheck run` in loops with no optimizer or several. Then only marked steps count."""
    if (hooks := sys.modules.get("gpucheck.program.run.hooks")) is not None:
        hooks.step()


def status(python: str | None = None, *, on_event: OnEvent | None = None) -> Report:
    """Return whether torch can use the GPUs: `report.results["doctor"]` and the findings. Raises UsageError."""
    from gpucheck.devices.command import status as look
    from gpucheck.devices.options import StatusOptions

    options = _read(StatusOptions, {"python": python})
    return _reported("status", lambda emit: look(options, emit), on_event)


def devices(device: str = "all", *, processes: bool = False, on_event: OnEvent | None = None) -> Report:
    """Return the devices, as `gpucheck devices` shows them: `report.facts.devices`, and a finding for each fault.
    Raises UsageError for an invalid device name and CannotLook for a missing device."""
    from gpucheck.devices.command import command as look
    from gpucheck.devices.options import DevicesOptions

    options = _read(DevicesOptions, {"processes": processes}, device)
    return _reported("devices", lambda emit: look(options, emit), on_event)


def smoke(
    device: str = "auto",
    *,
    only: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    require: str | None = None,
    min_devices: int | None = None,
    time_budget_s: float | None = None,
    on_event: OnEvent | None = None,
) -> Report:
    """Test everything that a training job needs, with a finding for each check. Raises UsageError and CannotLook."""
    from gpucheck.machine import installed_torch
    from gpucheck.smoke.options import SmokeOptions

    values = {"require": require, "min_devices": min_devices, "only": only, "skip": skip, "time_budget": time_budget_s}
    options = _read(SmokeOptions, values, device)
    installed_torch.load()
    from gpucheck.smoke.command import command as check

    return _reported("smoke", lambda emit: check(options, emit), on_event)


def doctor(
    *,
    python: str | None = None,
    require: str | None = None,
    only: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    time_budget_s: float | None = None,
    on_event: OnEvent | None = None,
) -> Report:
    """Find out why torch does not use the GPU, as `gpucheck doctor` does: `report.results["doctor"]` and the findings.
    Raises UsageError for a prefix that matches no condition and a Python that cannot be started."""
    from gpucheck.doctor.command import command as diagnose
    from gpucheck.doctor.options import DoctorOptions

    values = {"python": python, "require": require, "time_budget": time_budget_s, "only": only, "skip": skip}
    options = _read(DoctorOptions, values)
    return _reported("doctor", lambda emit: diagnose(options, emit), on_event)


def bench(
    name: str,
    device: str = "auto",
    *,
    time_budget_s: float | None = None,
    on_event: OnEvent | None = None,
    **options: object,
) -> Report:
    """Run a benchmark in this process: `transfer`, `bandwidth`, `matmul`, `overlap`, `crossover`, `collective`, `all`.
    The rows are in the report's `measurements`. `options` are those of the command (`docs/cli.md`), with underscores
    for dashes. A value is text as typed, a number, True, or a list of these. Raises UsageError and CannotLook."""
    from gpucheck import naming
    from gpucheck.bench.benchmarks import BENCHMARKS
    from gpucheck.machine import installed_torch

    rows = {benchmark.id: benchmark for benchmark in BENCHMARKS}
    if name not in rows:
        raise UsageError(f"bench {name!r} is unknown", "", naming.hint(name, list(rows)))
    read_options = _read(rows[name].options, {"time_budget": time_budget_s, **options}, device)
    installed_torch.load()
    from gpucheck.bench.judge import judge as judge_bench

    return _reported(f"bench {name}", lambda emit: rows[name].command()(read_options, emit), on_event, judge_bench)


def judge(report: Report | str | os.PathLike[str]) -> Report:
    """Judge a benchmark or stress test again, by the samples and thresholds in its document or file. Raises UsageError
    for other commands, because their findings do not follow from the document alone. It also raises UsageError for rows
    and thresholds that the judge does not read."""
    from gpucheck.bench.judge import check
    from gpucheck.bench.judge import judge as judge_bench
    from gpucheck.machine import saved
    from gpucheck.measure import runs
    from gpucheck.stress.judge import judge as judge_stress

    document = runs.merge([report if isinstance(report, Report) else saved.load(os.fspath(report))])
    group = document.command.partition(" ")[0]
    judges: dict[str, Judge] = {"bench": judge_bench, "stress": judge_stress}
    if group not in judges:
        why = "only benchmarks and stress tests can be judged again"
        fix = "give a result of `gpucheck bench …` or `stress`"
        raise UsageError(f"the document is a result of `gpucheck {document.command}`", why, fix)
    if group == "bench":
        check(document, "the report" if isinstance(report, Report) else repr(os.fspath(report)))
    return document.concluded(judges[group](document))


def _read(options_type: Callable[..., Any], values: Mapping[str, object], device: object = None) -> Any:
    """Return the options of a command from Python values, read as on the command line. Raises UsageError."""
    from gpucheck import naming
    from gpucheck.options import declared, read

    known = {option.key: option for option in declared(options_type)}
    typed: dict[str, object] = {}
    for name, value in values.items():
        if (option := known.get(name)) is None:
            raise UsageError(f"the option {name!r} is unknown", "", naming.hint(name, list(known)))
        if value is not None and isinstance(value, bool) is not option.is_flag:
            takes = "True or False" if option.is_flag else option.metavar
            raise UsageError(f"{option.name} is {value!r}", f"it takes {takes}")
        is_list = option.repeat and isinstance(value, Iterable) and not isinstance(value, (str, SupportsFloat))
        items: Any = value if is_list else [value]
        if texts := [item if option.is_flag else str(item) for item in items if item is not None]:
            typed[name] = texts if option.repeat else texts[0]
    options = read(options_type, typed)
    return options if device is None else replace(options, device=str(device))


def _reported(
    name: str, work: Callable[[OnEvent], object], on_event: OnEvent | None, document_judge: Judge | None = None
) -> Report:
    started, began = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    collector = Collector()

    def emit(event: Event) -> None:
        collector(event)
        if on_event is not None:
            on_event(event)

    work(emit)
    return collector.report(
        version=gpucheck.__version__,
        command=name,
        argv=(),
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        elapsed_s=time.monotonic() - began,
        judge=document_judge,
    )


def find_batch_size(
    target: str | Callable[[], Any] | None = None,
    *,
    mode: str = "train",
    optimizer: str = "adamw",
    dtype: str | None = None,
    inputs: str | Sequence[str] = (),
    amp: str | None = None,
    axis: str | None = None,
    batch_size: int | None = None,
    max_batch_size: int | None = None,
    tolerance: float | None = None,
    exact: bool = False,
    avoid_oom: bool = False,
    multiple_of: int = 1,
    start: int | None = None,
    memory_limit: str | int | None = None,
    headroom: float = HEADROOM,
    effective_batch: int | None = None,
    time_budget_s: float | None = None,
    trial_timeout_s: float | None = None,
    quick: bool = False,
    device: str = "auto",
    on_event: OnEvent | None = None,
) -> BatchSize:
    """Find the largest batch size that trains, or that infers with `mode="infer"`.

    `target` is the command's TARGET or the factory function. All other options are those of the command
    (`docs/cli.md`), with fractions for percentages, seconds for times and bytes for sizes. `time_budget_s` counts from
    the call. With `quick`, no size is recommended. `max_batch_size` is None if nothing fits or time runs out.

    Raises UsageError, TargetError for a workload that is missing or fails, and CannotLook if the device cannot be used.
    """
    values = dict(locals())
    del values["device"], values["on_event"]
    for name, key in (("inputs", "input"), ("time_budget_s", "time_budget"), ("trial_timeout_s", "trial_timeout")):
        values[key] = values.pop(name)
    values["target"] = target if target is None or isinstance(target, str) else _named(target)
    values["tolerance"], values["headroom"] = _percent(tolerance), _percent(headroom)
    folders = tuple(os.path.abspath(folder) for folder in sys.path)
    options = replace(_read(FindBatchSizeOptions, values, device), import_path=folders)
    return BatchSize(_reported("find-batch-size", lambda emit: command(options, emit), on_event))


def _percent(share: Any) -> object:
    """Convert a fraction to a percentage as text. With 12 digits, the rounding error of the product does not show."""
    is_number = isinstance(share, SupportsFloat) and not isinstance(share, bool)
    return f"{float(share) * 100:.12g}%" if is_number else share


def _named(factory: Callable[[], Any]) -> str:
    """Return the TARGET by which a child process imports the factory. Raises UsageError."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not callable(factory) or module is None or name is None:
        raise UsageError(f"the target is {type(factory).__name__}", "", "give a function, or its name as text")
    why = "trials run in separate processes"
    if "<" in name:  # a lambda, or a function inside another function
        fix = "write it as a function at the top of a module"
        raise UsageError(f"the target {name} cannot be imported by its name", why, fix)
    if module == "__main__" and (spec := sys.modules[module].__spec__) is not None:  # started with python -m
        module = spec.name
    if "." in module:  # relative imports in a package need the package's name
        return f"{module}:{name}"
    if (file := getattr(sys.modules.get(module), "__file__", None)) is None or not file.endswith(".py"):
        raise UsageError(f"the target {name} has no source file", why, "write it into a module")
    return f"{file}:{name}"
