"""`gpucheck doctor`: read the machine and torch, and diagnose why torch cannot use the GPU."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucheck import units
from gpucheck.doctor import fixes, ladder
from gpucheck.doctor.condition import Condition, Evidence
from gpucheck.doctor.ladder import CONDITIONS, select
from gpucheck.doctor.options import DoctorOptions
from gpucheck.errors import UsageError
from gpucheck.health.nvidia import is_divided
from gpucheck.machine import child, child_protocol, choose, installed_torch, inventory, stack
from gpucheck.machine.choose import UsableDevices
from gpucheck.machine.driver_reads import ANSWER_S
from gpucheck.machine.stack import TorchProbe, how_it_ended, probe_answer
from gpucheck.measure.telemetry import Sample, Watch, held_bytes, summarise
from gpucheck.report.events import Answered, Emit, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Run
from gpucheck.report.report import few, in_short
from gpucheck.report.results.short import DoctorResult, GpuUnderLoad, LoadOutcome, LoadResult

# The wait for torch after libcuda hangs. torch may still answer with another error.
TORCH_GRACE_S = 2.0
# The oldest Python that can run the probe's program.
OLDEST = (3, 8)


def command(options: DoctorOptions, emit: Emit) -> Evidence:
    """Read the machine, diagnose it, and report the first broken stage first. Raises UsageError."""
    conditions = select(options.only, options.skip)
    machine = inventory.Inventory(
        with_processes=True, with_links=True, root=options.root, waiting=lambda text: emit(Notice(text))
    )
    evidence = read(options, emit, machine)
    # The second reading is after the end of the child with torch. It shows only other processes, and growing counters.
    evidence = replace(evidence, facts=machine.again(evidence.facts))
    if any(condition.id.startswith("load.") for condition in conditions) and can_load(evidence):
        emit(Progress("running 1 s of load on the GPUs"))
        evidence = replace(evidence, load=run_load(evidence, options.python))
    emit(Started(evidence.facts))
    result, findings = diagnosed(evidence, conditions)
    emit(Answered("doctor", result))
    if options.require is not None:
        fix = None if result.first is None else f"fix {result.first} first"
        required = choose.judge_required(options.require, None, usable(evidence.probe), evidence.facts, fix=fix)
        findings = [*required, *findings]
    for finding in findings:
        emit(Judged(finding))
    return evidence


def diagnosed(evidence: Evidence, conditions: Sequence[Condition]) -> tuple[DoctorResult, list[Finding]]:
    diagnosis = ladder.diagnose(evidence, conditions)
    result = DoctorResult(
        first=diagnosis.first.condition.id if diagnosis.first else None,
        broken=diagnosis.broken,
        rungs=ladder.standings(evidence, diagnosis),
        consequences=tuple(sighting.condition.id for sighting in diagnosis.consequences),
        asked=len(conditions),
        torch_works=evidence.torch_works,
        load=evidence.load,
    )
    findings, checked = ladder.findings(diagnosis), {condition.id for condition in conditions}
    return result, findings if diagnosis.first else [*findings, healthy(evidence, checked)]


def usable(probe: TorchProbe) -> UsableDevices:
    if probe.available and probe.count:
        return UsableDevices("cuda", probe.count, probe.hip is not None)
    return UsableDevices(probe.other, probe.other_count) if probe.other_count else UsableDevices(None, 0)


def read(
    options: DoctorOptions, emit: Emit, machine: inventory.Inventory, late: tuple[float, str] | None = None
) -> Evidence:
    """Read the driver and torch in parallel. Raises UsageError for a --python that cannot start.

    `late` is the monotonic time at which gpucheck stops waiting for torch, and the reason. A slow NVML delays the time.
    """
    emit(Progress("reading driver and torch"))
    # The main thread reads the driver, so that an interrupt works.
    cut = child.Cut()
    with ThreadPoolExecutor(max_workers=1) as executor:
        limit_s = options.time_budget_s or stack.TORCH_TIMEOUT_S
        future = executor.submit(stack.probe, options.python, timeout_s=limit_s, cut=cut)
        try:
            with machine:
                facts = machine.read()
            if (driver := facts.driver) is not None and driver.cuinit_code is None and driver.is_hung:
                # If cuInit hangs, torch hangs too. If only one device hangs, torch may use another device.
                cut.after(TORCH_GRACE_S, f"{driver.cuinit_error}, and torch waits for it too")
            running = facts.host.release if facts.host is not None else None
            # NVIDIA's libraries create missing device nodes if root loads them, so the nodes are read afterwards.
            layers = stack.read(options.root, os.environ.get("LD_LIBRARY_PATH", ""), running)
            if late is not None:
                start_s = (driver.nvml_start_s if driver is not None else None) or 0.0
                delay_s = start_s if start_s > ANSWER_S else 0.0
                cut.after(max(late[0] + delay_s - time.monotonic(), 0.0), late[1])
            probe = _answer(future, options.python)
        finally:
            cut.after(0.0, "interrupted")
    if options.python is not None:
        facts = replace(facts, torch=installed_torch.from_folder(Path(probe.path)) if probe.path else TorchBuild())
        # With --python the user has chosen the environment.
        probe = replace(probe, active_elsewhere=None)
    return Evidence(facts, layers, probe, frozenset(os.environ))


def _answer(future: Future[TorchProbe], python: str | None) -> TorchProbe:
    """Return the probe's report. Raises UsageError if `python` is no interpreter, too old, or fails at once."""
    probe = future.result()
    if probe.unstarted is not None and python is None:  # for example, if this user may not read the interpreter
        return replace(probe, not_awaited=f"{sys.executable} cannot be started ({probe.unstarted})")
    if python is None or probe.stage != "start" or probe.timed_out or probe.not_awaited is not None:
        return probe
    raise stack.unfit(python, "doctor", OLDEST, probe.unstarted) or UsageError(
        f"--python {python} cannot run the probe", probe.error or "it printed nothing", "give another Python"
    )


def healthy(evidence: Evidence, checked: Container[str]) -> Finding:
    """Return the finding if no stage is broken: torch works, the machine has no GPU, or the cause is unknown."""
    probe = evidence.probe
    if evidence.torch_works:
        ran = [run.device for run in probe.kernels if run.error is None]
        title = f"torch can use {len(ran)} GPU{'s' * (len(ran) != 1)}"
        message = f"kernel and matrix product correct on {', '.join(in_short(ran))}"
        return Finding("doctor.healthy", "pass", title, message)
    if not evidence.is_nvidia_here:
        others = [device.name or device.kind for device in evidence.facts.devices if device.kind != "cpu"]
        where = f"torch has {', '.join(others)}" if others else "PCI bus, /dev and driver show none"
        fix = (
            "if Windows has one: install NVIDIA's driver in Windows (not inside Linux), then wsl --shutdown"
            if evidence.host.wsl
            else "if there should be one (lspci -d 10de: must list it), check seat, power, firmware and passthrough"
        )
        return Finding("doctor.no_gpu", "info", "no NVIDIA GPU here", where, fix=None if others else fix)
    title = "no known cause found, and torch was not seen to use the GPU"
    # Conditions under load do not count, because they need a working torch.
    is_complete = all(condition.id in checked or condition.id.startswith("load.") for condition in CONDITIONS)
    message = f"no {'known' if is_complete else 'selected'} condition matches, or evidence was unreadable"
    # This command shows torch's full error.
    fix = f"""{fixes.interpreter(probe.executable)} -c 'import torch; print(torch.ones(1, device="cuda"))'"""
    return Finding("doctor.unknown", "inconclusive", title, message, fix=fix)


# -- a short load on the GPUs ------------------------------------------------------------------------------------------

# The errors of torch and cuBLAS if the memory is full, and of the driver for a GPU in exclusive use.
IN_USE_ERRORS = ("OutOfMemoryError", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "busy or unavailable")
NOT_IN_NVML = "NVML does not report on this GPU, so the load would show nothing"


def why_not(gpu: Device) -> str:
    """Return why the GPU must not be loaded; "" if it can be. `gpu` was read while gpucheck did not use the GPU."""
    if gpu.parent_uuid is not None or is_divided(gpu):
        return "NVML reports neither clock nor link of a MIG instance"
    if gpu.uuid is None or gpu.nvml_index is None:
        return NOT_IN_NVML
    if gpu.state is not None:
        return gpu.state
    if computing := [process for process in gpu.processes or () if "compute" in process.kind]:
        names = [f"{process.name or 'not visible here'} ({process.pid})" for process in computing]
        return f"in use by others: {few(names, ', ')}"
    used_bytes = held_bytes(gpu)
    return f"in use by others, which hold {units.capacity(used_bytes)} of its memory" if used_bytes is not None else ""


def load_result(
    answer: Mapping[str, Any],
    failed: str,
    samples: Mapping[str, Sequence[Sample]],
    unseen: Mapping[str, str],
    left_out: dict[str, str],
) -> LoadResult:
    """Return the load's result from the output of its process and the samples of each GPU.

    `unseen` has reasons for missing samples. `failed` is the error if the process ended early, else "".
    """
    if failed:
        # The GPU is not faulty if its load has not begun, or if another process uses the GPU.
        stages = {"import": "while torch was imported", "prepare": "as it began", "load": "under load"}
        stage = str(answer.get("stage"))
        has_begun = stage in ("prepare", "load")
        outcome: LoadOutcome = "failed" if has_begun and not any(text in failed for text in IN_USE_ERRORS) else "none"
        return LoadResult(outcome, f"{failed} ({stages.get(stage, 'as it was started')})", (), left_out)
    run = Run("", 1, (float(answer["took_s"]),), (float(answer["began_s"]),))
    loaded = tuple(_under_load(device, rows, run, unseen.get(device, "")) for device, rows in samples.items())
    return LoadResult("ran", None, loaded, left_out)


def _under_load(device: str, samples: Sequence[Sample], run: Run, unseen: str) -> GpuUnderLoad:
    if unseen:
        return GpuUnderLoad(device, None, unseen, {})
    telemetry, reason = summarise(samples, run)
    start_s, length_s = run.started_monotonic_s[0], run.samples_s[0]
    inside = [sample for sample in samples if start_s <= sample["at_s"] <= start_s + length_s]
    names = Counter(name for sample in inside for name in (sample.get("clock_reasons") or {}).get("names", ()))
    return GpuUnderLoad(device, telemetry, reason or None, dict(names))


# Clocks and links rise within a few tens of milliseconds. NVML may report clock reasons briefly in this time.
SETTLE_S = 0.3
LOAD_S = 1.0  # twenty readings
# The time for importing torch, a context on each GPU, and the load.
LOAD_TIMEOUT_S = 60.0


def can_load(evidence: Evidence) -> bool:
    return evidence.torch_works and evidence.probe.hip is None


def run_load(evidence: Evidence, python: str | None) -> LoadResult:
    """Load every free GPU that torch can use and NVML reports on."""
    ran = {run.device for run in evidence.probe.kernels if run.error is None}
    # The facts are from the second reading. During the first reading, gpucheck's child used torch.
    gpus = {gpu.id: gpu for gpu in evidence.gpus if gpu.id in ran and gpu.id is not None}
    left_out = {
        **{name: why for name, gpu in gpus.items() if (why := why_not(gpu))},
        **dict.fromkeys(ran - set(gpus), NOT_IN_NVML),
    }
    if not (loaded := {name: gpu.uuid for name, gpu in gpus.items() if name not in left_out}):
        return LoadResult("none", "no GPU is free for the load", (), left_out)
    timeout_s = max(LOAD_TIMEOUT_S, evidence.probe.limit_s or 0.0)
    text = stack.TORCH_PROGRAM.read_text(encoding="utf-8")
    argv = [python or sys.executable, "-c", text, str(SETTLE_S), str(LOAD_S), *loaded]
    with ExitStack() as opened:
        watches = {name: opened.enter_context(Watch(uuid)) for name, uuid in loaded.items()}
        output = child_protocol.run(argv, timeout_s)
        samples = {name: watch.take() for name, watch in watches.items()}
        unseen = {name: watch.reason for name, watch in watches.items() if watch.reason}
    answer = probe_answer(output.lines)
    failed = ""
    if answer.get("stage") != "end":
        late = f"the load did not finish within {timeout_s:g} s"
        failed = late if output.ending.how == "late" else str(answer.get("error") or how_it_ended(output.ending))
    return load_result(answer, failed, samples, unseen, left_out)
